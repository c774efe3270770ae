"""The event loop that something belongs to, and a clear error for calls from anywhere else."""

import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import trio

from actgent.errors import OutsideTrio

call_from_outside: ContextVar[Callable[[Callable[[], Any]], Any] | None] = ContextVar(
    "actgent_call_from_outside", default=None
)
"""Calls a function in the event loop of what reads it, for a thread that waits meanwhile; None where no portal does."""


def check_loop(what: str, loop: trio.lowlevel.TrioToken | None = None) -> None:
    """Refuse a call from outside of trio, or of the one event loop that it is for.

    Raises:
        OutsideTrio: nothing was done.
    """
    try:
        here = trio.lowlevel.current_trio_token()
    except RuntimeError:
        raise OutsideTrio(
            what, "asyncio runs this code" if is_asyncio_running() else "no trio runs here"
        ) from None
    if loop is not None and here is not loop:
        raise OutsideTrio(what, "it belongs to the trio of another thread")


def is_asyncio_running() -> bool:
    """Return True if an asyncio event loop runs in this thread."""
    asyncio = sys.modules.get("asyncio")  # where nobody has imported it, it does not run
    try:
        return asyncio is not None and asyncio.get_running_loop() is not None
    except RuntimeError:
        return False
