"""Check that a call comes from the trio event loop of the called object."""

import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import trio

from actgent.errors import OutsideTrio

call_from_outside: ContextVar[Callable[[Callable[[], Any]], Any] | None] = ContextVar(
    "actgent_call_from_outside", default=None
)
"""Function that runs a callable in the event loop while the calling thread blocks. A portal sets it; None without a portal."""


def check_loop(what: str, loop: trio.lowlevel.TrioToken | None = None) -> None:
    """Raise if the caller runs outside trio, or in another event loop than `loop`.

    `what` names the called function in the error text. None as `loop` accepts any trio event loop.

    Raises:
        OutsideTrio: The caller is not in that event loop.
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
    asyncio = sys.modules.get("asyncio")  # a module that is not imported cannot have a running loop
    try:
        return asyncio is not None and asyncio.get_running_loop() is not None
    except RuntimeError:
        return False
