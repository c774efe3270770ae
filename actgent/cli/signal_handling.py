"""Signal handling during a command: the first SIGINT, SIGTERM or SIGHUP drains running turns, the second exits at once."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

GRACE_SECONDS = 10.0
"""Default time in seconds that running turns get to finish after the first signal."""


class Shutdown:
    """Shutdown state of a running command: the received signal, and the cancel scopes that the signal cancels.

    Args:
        notice: Function that prints one line when the first signal arrives.
    """

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.signal: int | None = None
        """Number of the last received signal; None before the first one."""
        self.all = trio.CancelScope()
        self.grace = GRACE_SECONDS
        """Seconds that running turns get after the first signal; a command may raise it before it starts work."""
        self.notice = notice
        """Prints one line about the first signal; `actgent serve` replaces it with its logger."""
        self._waits: set[trio.CancelScope] = set()
        self._stop: trio.Event | None = None

    @property
    def is_requested(self) -> bool:
        """True after the first signal, when the command must start no new work."""
        return self.signal is not None

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Open a `with` block in which the command waits for new work, such as an input line or a pause.

        The first signal cancels the block. Blocks that are opened after the signal are cancelled at once.
        """
        with trio.CancelScope() as scope:
            self._waits.add(scope)
            if self.is_requested:
                scope.cancel()
            try:
                yield
            finally:
                self._waits.remove(scope)

    @contextmanager
    def stoppable(self) -> Iterator[trio.Event]:
        """Open a `with` block for one answer, and yield an event.

        The first SIGINT sets the event, so that the caller stops the answer and the command continues.
        """
        self._stop = event = trio.Event()
        try:
            yield event
        finally:
            self._stop = None

    async def watch(self, signals: AsyncIterator[int]) -> None:
        """Handle received signals until the command ends: stop the current answer, start draining, or cancel the command."""
        async for number in signals:
            if number == signal.SIGINT and self._stop is not None and not self._stop.is_set():
                self._stop.set()
                continue
            is_second, self.signal = self.is_requested, number
            if is_second:
                self.all.cancel()
            else:
                self._begin_drain()

    def _begin_drain(self) -> None:
        """Begin to end the command after the first signal: set a deadline for running turns, and cancel waits for new work."""
        self.notice(
            f"finishing running turns, for at most {self.grace:g} s; press Ctrl-C again to force quit"
        )
        self.all.deadline = trio.current_time() + self.grace
        for scope in self._waits:
            scope.cancel()


def handled_signals() -> list[signal.Signals]:
    """Return the signals that end a command. SIGHUP is left out if the parent process ignores it (`nohup`)."""
    found = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        found.append(signal.SIGHUP)
    return found


async def run_until_signalled(
    command: Callable[[Shutdown], Awaitable[int]], *, notice: Callable[[str], None]
) -> int:
    """Run a command and return its exit code, or 128 plus the number of the signal that ended it (129, 130, 143).

    Args:
        command: Async function that receives the `Shutdown` and returns an exit code.
        notice: Prints one line about the first signal.
    """
    shutdown, code = Shutdown(notice), 0
    failure: Exception | None = None
    with trio.open_signal_receiver(*handled_signals()) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shutdown.watch, signals)
            try:
                with shutdown.all:
                    code = await command(shutdown)
            except Exception as error:  # noqa: BLE001 - raised again below, out of the nursery's exception group
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return code if shutdown.signal is None else 128 + shutdown.signal
