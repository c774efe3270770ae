"""Commands for pipelines: `pipeline run`, `show`, `resume`, `check`, `draw`."""

from typing import Annotated

import attrs
from cyclopts import App, Parameter

from actgent.cli.command_options import Flag, LimitOptions, PipelineOptions, Repeated
from actgent.cli.terminal_io import Terminal

from .command_app import AGENTS, app, run_command

pipelines = App(
    name="pipeline", help="Run pipelines of agents: run, show, resume, check, draw.", group=AGENTS
)
app.command(pipelines)


@pipelines.command(name="run")
def run_pipeline(file: str, /, *, options: PipelineOptions | None = None) -> int:
    """Run a pipeline and print the results of its steps. The exit code is 1 unless the run succeeds.

    With a journal, a run can be resumed after a crash: pass its id with --run, or use `actgent pipeline resume`.

    Args:
        file: YAML or JSON file, or Python file that defines a pipeline, or FILE.py:NAME.
        options: Inputs, journal, agents, model, limits and output format.
    """
    from actgent.cli.pipeline_command import run_pipeline as start  # noqa: PLC0415 - the SDKs take two seconds

    given = attrs.evolve(options or PipelineOptions(), file=file)
    return run_command(lambda terminal, _: start(given, terminal))


@pipelines.command(name="show")
def show_run(file: str, run: str, /, *, journal: str, json: Flag = False) -> int:
    """Show the results of a run's steps so far. No model is called, and agents may be using the journal.

    Args:
        file: File of the pipeline.
        run: Id of the run.
        journal: Journal of the run: a file, or postgres://HOST/DATABASE.
        json: Print one line of JSON.
    """
    from actgent.cli.pipeline_command import show_run as print_run  # noqa: PLC0415

    options = PipelineOptions(file=file, journal=journal, run=run, json=json)
    return run_command(lambda terminal, _: print_run(options, terminal))


@pipelines.command(name="resume")
def resume_run(
    file: str,
    run: str,
    /,
    *,
    steps: Annotated[Repeated, Parameter(name="--from")] = (),
    journal: str,
    agents: str | None = None,
    model: str | None = None,
    limits: LimitOptions | None = None,
    json: Flag = False,
) -> int:
    """Resume an unfinished run, or run all failed and missing steps again. The exit code is 1 unless the run succeeds.

    Args:
        file: File of the pipeline.
        run: Id of the run.
        steps: Run this step and all dependent steps again; may be given several times. Other steps keep their
            results.
        journal: Journal of the run: a file, or postgres://HOST/DATABASE.
        agents: Agents that a YAML or JSON file names: a Python file, or a folder of agent folders.
        model: Model of steps with a goal.
        limits: Limits of the steps that run again.
        json: Print the result as one line of JSON.
    """
    from actgent.cli.pipeline_command import resume_run as resume  # noqa: PLC0415

    options = PipelineOptions(
        file=file, agents=agents, model=model, journal=journal, run=run, limit_options=limits, json=json
    )
    return run_command(lambda terminal, _: resume(options, terminal, steps=steps))


@pipelines.command(name="check")
def check_pipeline(file: str, /, *, agents: str | None = None) -> int:
    """Check a pipeline without running it: print a summary, or all its errors.

    Args:
        file: YAML or JSON file, or Python file that defines a pipeline, or FILE.py:NAME.
        agents: Agents that the file names. Default: any agent name is accepted.
    """
    from actgent.cli.pipeline_command import check_pipeline as check  # noqa: PLC0415

    return check(PipelineOptions(file=file, agents=agents), Terminal())


@pipelines.command(name="draw")
def draw_pipeline(file: str, /, *, mermaid: Flag = False) -> int:
    """Draw the steps of a pipeline, grouped by what can run concurrently.

    Args:
        file: YAML or JSON file, or Python file that defines a pipeline, or FILE.py:NAME.
        mermaid: Print a Mermaid flowchart.
    """
    from actgent.cli.pipeline_command import draw_pipeline as draw  # noqa: PLC0415

    return draw(PipelineOptions(file=file), Terminal(), mermaid=mermaid)
