"""Command for simulated faults: `simulate`."""

import attrs

from actgent.cli.command_options import SimulateOptions
from actgent.cli.terminal_io import Terminal

from .command_app import AGENTS, app


@app.command(group=AGENTS)
def simulate(program: str, /, *, options: SimulateOptions | None = None) -> int:
    """Run agents under simulated crashes, slow disks, failing models and concurrent callers, and check their guarantees.

    Each seed is one run on a virtual clock: a repeated seed gives the same run. A failing seed is shrunk to a short sequence
    of events and saved as a test. The models are replaced by random ones, so no key is needed and no request is sent.

    Args:
        program: Python file that defines the agents, and functions marked with @invariant.
        options: Seeds, faults, callers and reports.
    """
    from actgent.cli.simulate_command import run_simulation  # noqa: PLC0415 - agents take half a second

    return run_simulation(attrs.evolve(options or SimulateOptions(), program=program), Terminal())
