"""The cyclopts application with all commands, and the function that runs a command."""

from collections.abc import Awaitable, Callable

import trio
from cyclopts import App, Group

from actgent.cli.signal_handling import Shutdown, run_until_signalled
from actgent.cli.terminal_io import Terminal

AGENTS, SESSIONS, SERVERS, TOOLS = (
    Group(name, sort_key=number)
    for number, name in enumerate(("Agents", "Stored sessions and memories", "Servers and clusters", "Tools"))
)
"""Groups of commands in the help text, in this order."""

app = App(
    name="actgent",
    help="Build, run and operate LLM agents. `actgent demo` and `actgent chat --offline` need no API key.",
    result_action="return_value",
)


def run_command(command: Callable[[Terminal, Shutdown], Awaitable[int]]) -> int:
    """Run an async command in trio with signal handling, and return its exit code."""
    terminal = Terminal()

    async def with_signals() -> int:
        return await run_until_signalled(lambda shutdown: command(terminal, shutdown), notice=terminal.notice)

    return trio.run(with_signals)
