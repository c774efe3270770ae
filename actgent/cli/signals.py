"""SIGINT, SIGTERM and SIGHUP during a command: the first one drains the running work, the second one ends it at once."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

GRACE = 10.0
"""Seconds to end what runs after the first signal."""


class Shutdown:
    """A request to end the command, and the scopes that it cancels."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.signal: int | None = None
        """The last signal that came."""
        self.all = trio.CancelScope()
        self.grace = GRACE
        """Seconds to end what runs after the first signal; a command that needs longer says so before it runs."""
        self.notice = notice
        """Prints a line about the first signal; a command that has a log sets another one."""
        self._waits: set[trio.CancelScope] = set()
        self._stop: trio.Event | None = None

    @property
    def is_asked(self) -> bool:
        """True after the first signal: begin nothing new."""
        return self.signal is not None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A wait for something new (a line, a pause), which the first signal ends."""
        with trio.CancelScope() as scope:
            self._waits.add(scope)
            if self.is_asked:
                scope.cancel()
            try:
                yield
            finally:
                self._waits.remove(scope)

    @contextmanager
    def stopping(self) -> Iterator[trio.Event]:
        """Work that the first SIGINT stops by setting the event, so that the command goes on; a second one ends it."""
        self._stop = event = trio.Event()
        try:
            yield event
        finally:
            self._stop = None

    async def watch(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if number == signal.SIGINT and self._stop is not None and not self._stop.is_set():
                self._stop.set()
                continue
            is_second, self.signal = self.is_asked, number
            if is_second:
                self.all.cancel()
            else:
                self._begin_drain()

    def _begin_drain(self) -> None:
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

    `notice` prints a line about the first signal. An ignored SIGHUP stays ignored, so that `nohup` works.
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
