"""Command for simulated faults: `simulate`."""

from typing import Annotated

from cyclopts import Parameter

from actgent.cli.command_options import Count, Flag, Repeated
from actgent.cli.terminal_io import Terminal

from .command_app import AGENTS, app


@app.command(group=AGENTS)
def simulate(
    program: str,
    /,
    *,
    seeds: Count = 1000,
    start: int = 0,
    seed: str | None = None,
    duration: Annotated[str | None, Parameter(name="--for")] = None,
    jobs: Count | None = None,
    sessions: Count = 3,
    faults: str = "all",
    journal: str = "memory",
    say: Repeated = (),
    own_models: Flag = False,
    twice: Flag = False,
    json: str | None = None,
    junit: str | None = None,
    save: str = "tests/seeds",
) -> int:
    """Run agents under simulated crashes, slow disks, failing models and concurrent callers, and check what they promise.

    Each seed is one run on a virtual clock: the same seed does the same. A failing seed is shrunk to a short story and saved as
    a test. The models are replaced by random ones, so no key is needed and no request is sent.

    Args:
        program: Python file that defines the agents, and functions marked with @invariant.
        seeds: Number of seeds to run.
        start: First seed.
        seed: Run one seed and print its whole story: SEED, or SEED:DIGEST from a report.
        duration: Time limit, e.g. 30s, 10m or 2h.
        jobs: Number of processes. Default: the number of cores.
        sessions: Maximum number of sessions in a seed.
        faults: Kinds of faults, separated by commas: kill, stop, model, tool, journal, cancel, interrupt, close,
            priority, memory; or `all`, or `none`.
        journal: Storage of the sessions: memory, or sqlite on a simulated disk whose power can fail.
        say: Text that callers send to the agents; may be given several times. Default: "message 1", "message 2" ...
        own_models: Use the models of the program instead of random ones, e.g. a ScriptedLLM.
        twice: Run each seed twice, and report seeds whose runs differ.
        json: Write a report with all failures to this file.
        junit: Write a report in the JUnit format to this file.
        save: Folder for failing seeds, which the pytest plugin runs again.
    """
    from actgent.cli.simulate_command import SimulateOptions, run_simulation  # noqa: PLC0415 - agents take half a second

    options = SimulateOptions(
        program=program,
        seeds=seeds,
        start=start,
        seed=seed,
        duration=duration,
        jobs=jobs,
        sessions=sessions,
        faults=faults,
        journal=journal,
        messages=say,
        own_models=own_models,
        twice=twice,
        json=json,
        junit=junit,
        save=save,
    )
    return run_simulation(options, Terminal())
