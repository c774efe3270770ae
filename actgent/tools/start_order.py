"""Start overlapping tool calls in the order of their answer, although trio starts tasks in random order."""

from contextvars import ContextVar

import trio


class StartGate:
    """Held closed until the call before has started: an async call at once, a sync call when a thread runs its function."""

    __slots__ = ("_opened", "_started")

    def __init__(self) -> None:
        self._opened = trio.Event()
        self._started: trio.Event | None = None

    def open(self) -> None:
        """Let the next call start at the first checkpoint of this call, unless `hold` is called before."""
        self._opened.set()

    def hold(self) -> None:
        """Delay the next call until `release`, since this call still waits for a thread."""
        if self._started is None:
            self._started = trio.Event()

    def release(self) -> None:
        """Let the next call start: the thread runs the function, or the call has ended without it."""
        if self._started is not None:
            self._started.set()

    async def wait(self) -> None:
        """Wait until the call before has started."""
        await self._opened.wait()
        if self._started is not None:
            await self._started.wait()


start_gate: ContextVar[StartGate | None] = ContextVar("actgent start gate", default=None)
"""The gate of the call after the current one; None if no call waits for the current one to start."""
