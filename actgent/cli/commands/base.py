"""What all commands are made of: the app that finds them, kinds of options, and how one runs."""

from collections.abc import Awaitable, Callable
from typing import Annotated

import trio
from cyclopts import App, Parameter
from cyclopts.validators import Number

from actgent.cli.signals import Shutdown, run_until_signalled
from actgent.cli.terminal import Terminal

Count = Annotated[int, Parameter(validator=Number(gte=1))]
Repeated = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]

app = App(
    name="actgent",
    help="LLM agents as actors. Neither `actgent demo` nor `actgent chat --offline` needs a key.",
    result_action="return_value",
)


def run_command(command: Callable[[Terminal, Shutdown], Awaitable[int]]) -> int:
    """Run what a command does, which is told of signals; returns its exit code."""
    terminal = Terminal()

    async def with_signals() -> int:
        return await run_until_signalled(lambda shutdown: command(terminal, shutdown), notice=terminal.notice)

    return trio.run(with_signals)
