"""Start order of overlapping tool calls: the order in the model's answer, although trio starts tasks in random order."""

from contextvars import ContextVar

import trio


class StartGate:
    """Gate of a call that opens after the previous call has started.

    An async call has started when its task runs, a sync call when a worker thread runs its function.
    """

    __slots__ = ("_opened", "_started")

    def __init__(self) -> None:
        self._opened = trio.Event()
        self._started: trio.Event | None = None

    def open(self) -> None:
        """Open the gate, so that the next call can start at the first checkpoint of the current call.

        If the current call calls `hold` before, the next call starts after `release`.
        """
        self._opened.set()

    def hold(self) -> None:
        """Delay the next call until `release`, because the current call waits for a worker thread."""
        if self._started is None:
            self._started = trio.Event()

    def release(self) -> None:
        """End the delay of `hold`: the current call's function runs in a thread, or the call has ended without running."""
        if self._started is not None:
            self._started.set()

    async def wait(self) -> None:
        """Wait until the gate is open and not on hold, which means that the previous call has started."""
        await self._opened.wait()
        if self._started is not None:
            await self._started.wait()


start_gate: ContextVar[StartGate | None] = ContextVar("actgent start gate", default=None)
"""Gate of the next call of the answer; None if the next call need not wait for the current call."""
