"""Names the sync handler that holds the event loop, and tells how many equal records the log has left out.

The loop itself cannot notice that it is held, so a thread looks on. One thread serves all
runtimes of the process, and exists only while one is open.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from actgent.logs import Each, logger_of, summarise
from actgent.sessions.handlers import Handler, name_of

_log = logger_of(__name__)

INTERVAL = 0.5
"""Seconds between two looks."""
LIMIT = 1.0
"""Seconds that a sync handler may take before it is named."""


class Watch:
    """What one event loop is busy with. The loop writes `busy`, the thread reads it."""

    __slots__ = ("busy", "named")

    def __init__(self) -> None:
        self.busy: tuple[Handler, str, float] | None = None
        """Handler, session and monotonic time of its start."""
        self.named: tuple[Handler, str, float] | None = None
        """What was reported already."""

    def look(self, now: float) -> None:
        busy = self.busy
        if busy is None or busy is self.named or now - busy[2] < LIMIT:
            return
        self.named = busy
        _log.warning(
            "handler %s of session %s has held the event loop for %.1f s: make it async, or move the work to a thread",
            name_of(busy[0]),
            Each(busy[1]),
            now - busy[2],
        )


class _Guard:
    """The thread and those it looks after."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: list[Watch] = []
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, watch: Watch) -> None:
        with self._lock:
            self._watches.append(watch)
            if self._thread is None:
                self._done = threading.Event()
                self._thread = threading.Thread(
                    target=self._look_on, args=(self._done,), name="actgent watchdog", daemon=True
                )
                self._thread.start()

    def remove(self, watch: Watch) -> None:
        with self._lock:
            self._watches.remove(watch)
            if self._watches:
                return
            self._done.set()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        summarise(all_of_them=True)

    def _look_on(self, done: threading.Event) -> None:
        while not done.wait(INTERVAL):
            now = time.monotonic()
            for watch in tuple(self._watches):
                watch.look(now)
            summarise()


_guard = _Guard()


@contextmanager
def open_watch() -> Iterator[Watch]:
    """Have the handlers of this event loop watched."""
    watch = Watch()
    _guard.add(watch)
    try:
        yield watch
    finally:
        _guard.remove(watch)
