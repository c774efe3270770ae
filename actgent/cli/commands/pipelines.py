"""`actgent pipeline`."""

from typing import Annotated

from cyclopts import App, Parameter

from actgent.cli.terminal import Terminal

from .base import Flag, Repeated, app, run_command
from .limits import Bounds, limits_of

pipelines = App(
    name="pipeline", help="Run pipelines of agents: run, look at a run, go on with it, check, draw."
)
app.command(pipelines)


@pipelines.command(name="run")
def run_pipeline(
    file: str,
    /,
    *,
    given: Annotated[Repeated, Parameter(name="--input")] = (),
    inputs: str | None = None,
    run: str | None = None,
    journal: str | None = None,
    agents: str | None = None,
    model: str | None = None,
    bounds: Bounds | None = None,
    json: Flag = False,
) -> int:
    """Run a pipeline, and show what its steps came to. 1 unless all that was wanted is done.

    With a journal a run goes on after a crash: give its id again, or `actgent pipeline resume`.

    Args:
        file: A file of YAML or JSON, or a Python file that defines a pipeline, or FILE.py:NAME.
        given: An input that is a text, as NAME=VALUE; may be given several times.
        inputs: All inputs as a JSON object.
        run: The id of the run; one that is there is joined, or its result shown.
        journal: Keep the run in this file, or in postgres://HOST/DATABASE.
        agents: The agents that a file of YAML or JSON names: a Python file, or a folder of agents' folders.
        model: The model of its steps with a goal, e.g. openai:gpt-5.2.
        bounds: What the run may take, with all of its steps.
        json: The result as one line of JSON.
    """
    from actgent.cli.working.pipelines import PipelineOptions, run_pipeline as start  # noqa: PLC0415 - the SDKs take two seconds

    options = PipelineOptions(
        file=file,
        agents=agents,
        model=model,
        journal=journal,
        run=run,
        inputs=inputs,
        values=given,
        limits=limits_of(bounds),
        json=json,
    )
    return run_command(lambda terminal, _: start(options, terminal))


@pipelines.command(name="show")
def showrun_command(file: str, run: str, /, *, journal: str, json: Flag = False) -> int:
    """Show what the steps of a run came to so far. No model is asked, and agents may be using the journal.

    Args:
        file: The file of the pipeline.
        run: The id of the run.
        journal: The file of the journal, or postgres://HOST/DATABASE.
        json: As one line of JSON.
    """
    from actgent.cli.working.pipelines import PipelineOptions, show_run as show  # noqa: PLC0415

    options = PipelineOptions(file=file, journal=journal, run=run, json=json)
    return run_command(lambda terminal, _: show(options, terminal))


@pipelines.command(name="resume")
def resumerun_command(
    file: str,
    run: str,
    /,
    *,
    steps: Annotated[Repeated, Parameter(name="--from")] = (),
    journal: str,
    agents: str | None = None,
    model: str | None = None,
    bounds: Bounds | None = None,
    json: Flag = False,
) -> int:
    """Go on with a run: where its process left it, or else with all that failed or never ran. 1 unless that is done.

    Args:
        file: The file of the pipeline.
        run: The id of the run.
        steps: Run this step again, and all that comes after it; may be given several times. Others keep what they gave.
        journal: The file of the journal, or postgres://HOST/DATABASE.
        agents: The agents that a file of YAML or JSON names.
        model: The model of its steps with a goal.
        bounds: What it may take from now on, where steps run again.
        json: The result as one line of JSON.
    """
    from actgent.cli.working.pipelines import PipelineOptions, resume_run as go_on  # noqa: PLC0415

    options = PipelineOptions(
        file=file, agents=agents, model=model, journal=journal, run=run, limits=limits_of(bounds), json=json
    )
    return run_command(lambda terminal, _: go_on(options, terminal, steps=steps))


@pipelines.command(name="check")
def check_pipeline(file: str, /, *, agents: str | None = None) -> int:
    """Say what a pipeline holds, or all that is wrong with it, before anything runs.

    Args:
        file: A file of YAML or JSON, or a Python file that defines a pipeline, or FILE.py:NAME.
        agents: The agents that it names; without them any name will do.
    """
    from actgent.cli.working.pipelines import PipelineOptions, check_pipeline as look  # noqa: PLC0415

    return look(PipelineOptions(file=file, agents=agents), Terminal())


@pipelines.command(name="draw")
def draw_pipeline(file: str, /, *, mermaid: Flag = False) -> int:
    """Draw the steps of a pipeline, in groups that may run side by side.

    Args:
        file: A file of YAML or JSON, or a Python file that defines a pipeline, or FILE.py:NAME.
        mermaid: As a flowchart of Mermaid, for pages that draw it.
    """
    from actgent.cli.working.pipelines import PipelineOptions, draw_pipeline as draw  # noqa: PLC0415

    return draw(PipelineOptions(file=file), Terminal(), mermaid=mermaid)
