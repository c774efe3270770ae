"""Watchdog of the event loop: logs handlers, tools and models that block it, and the number of suppressed log records.

One thread serves all runtimes of the process. It ends at the first check at which no runtime is open, so a series of short
runtimes shares one thread. The event loop stores only which sync handler it calls. If the thread finds the loop inside a tool, a
model or an async handler, it schedules a callback on the loop. If the callback does not run, the loop is blocked.
"""

import os
import pathlib
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from sys import _current_frames as frames_by_thread
from types import FrameType, MappingProxyType

import attrs
import trio

from actgent.sessions.session_handlers import Handler, name_of
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.safe_logging import LogVariable, logger_of, summarise

_log = logger_of(__name__)

THREAD_NAME = "actgent watchdog"
INTERVAL_SECONDS = 0.5
"""Seconds between two checks whether the event loop is blocked."""
BLOCKED_SECONDS = 1.0
"""Seconds for which code may block the event loop before a warning is logged."""

_PACKAGE = str(pathlib.Path(__file__).parents[1]) + os.sep
_CALLERS: Mapping[tuple[str, str], tuple[str, str]] = MappingProxyType(
    {
        ("actgent.tools.tool_execution", "Batch._run_and_convert"): ("tool", "tool"),
        ("actgent.turns.calls.model_calls", "ModelCaller.ask"): ("model", "llm"),
        ("actgent.turns.outcome_dispatcher", "Dispatcher._finish"): ("handler", "handler"),
    }
)
"""Functions of actgent that call user code: (module, qualified name) -> (kind of the user code, local variable with it)."""


@attrs.frozen(repr=False)
class _BlockingCode(FieldRepr):
    """User code that blocks the event loop."""

    kind: str
    name: str
    place: str


class Watch:
    """State of one watched event loop. The loop stores the running sync handler in `busy`, and the watchdog thread reads it."""

    __slots__ = ("_asked", "_is_alive", "_is_named", "_thread", "_token", "busy", "named")

    def __init__(self) -> None:
        self.busy: tuple[Handler, str, float] | None = None
        """Handler, session id and start time (monotonic seconds) of the running sync handler; None if none runs."""
        self.named: tuple[Handler, str, float] | None = None
        """Value of `busy` for which the last warning was logged."""
        self._thread = threading.get_ident()
        self._token = trio.lowlevel.current_trio_token()
        self._asked: float | None = None
        """Monotonic time at which the callback was scheduled on the loop; None if no callback is pending."""
        self._is_alive = False
        self._is_named = False

    def check(self, now: float) -> None:
        """Log a warning if a handler, tool or model has blocked the event loop for too long. `now` is the monotonic time."""
        self._check_handler(now)
        self._check_loop(now)

    def _check_handler(self, now: float) -> None:
        """Log a warning once if the same sync handler has been running for at least `BLOCKED_SECONDS`."""
        busy = self.busy
        if busy is None or busy is self.named or now - busy[2] < BLOCKED_SECONDS:
            return
        self.named = busy
        _log.warning(
            "handler %s of session %s has held the event loop for %.1f s: make it async, or move the work to a thread",
            name_of(busy[0]),
            LogVariable(busy[1]),
            now - busy[2],
        )

    def _check_loop(self, now: float) -> None:
        """Log a warning once if user code is running and the scheduled callback has not run for `BLOCKED_SECONDS`."""
        if self._asked is not None and self._is_alive:
            self._asked = None
        held = None if self._is_named and self._asked is not None else self._find_holder()
        if held is None:
            return
        if self._asked is None:
            self._schedule_callback(now)
        elif now - self._asked >= BLOCKED_SECONDS:
            self._is_named = True
            _log.warning(
                "%s %s has held the event loop for more than %.1f s, at %s: no other task ran during that time. Await instead "
                "(trio.sleep() for time.sleep(), an async client), make the function sync, which runs a tool in a thread, or "
                "call trio.to_thread.run_sync()",
                held.kind,
                held.name,
                now - self._asked,
                held.place,
            )

    def _schedule_callback(self, now: float) -> None:
        """Schedule the callback `_mark_alive` on the event loop."""
        self._asked, self._is_alive, self._is_named = now, False, False
        try:
            self._token.run_sync_soon(self._mark_alive)
        except trio.RunFinishedError:
            self._asked = None

    def _mark_alive(self) -> None:
        """Note that the event loop runs callbacks, so it is not blocked."""
        self._is_alive = True

    def _find_holder(self) -> _BlockingCode | None:
        """Return the user code that the event loop's thread is running; None if the thread waits or runs other code."""
        foreign: FrameType | None = None
        frame = frames_by_thread().get(self._thread)
        while frame is not None:
            code = frame.f_code
            if not code.co_filename.startswith(_PACKAGE):
                foreign = frame
            elif found := _CALLERS.get((frame.f_globals.get("__name__", ""), code.co_qualname)):
                return _blocking_call(*found, frame, foreign)
            frame = frame.f_back
        return None


def _blocking_call(
    kind: str, variable: str, caller: FrameType, foreign: FrameType | None
) -> _BlockingCode | None:
    called = caller.f_locals.get(variable)
    if called is None or foreign is None:
        return None
    name = name_of(called) if kind == "handler" else str(called.name)
    code = foreign.f_code
    return _BlockingCode(kind, name, f"{code.co_filename}:{foreign.f_lineno} in {code.co_qualname}")


class _WatchdogThread:
    """The watchdog thread of the process, and the event loops that it watches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: list[Watch] = []
        self._thread: threading.Thread | None = None

    def add(self, watch: Watch) -> None:
        with self._lock:
            self._watches.append(watch)
            if self._thread is None or not self._thread.is_alive():  # a forked process has no threads
                self._thread = threading.Thread(target=self._watch, name=THREAD_NAME, daemon=True)
                self._thread.start()

    def remove(self, watch: Watch) -> None:
        with self._lock:
            self._watches.remove(watch)
            is_last = not self._watches
        if is_last:
            summarise(all_of_them=True)

    def _watch(self) -> None:
        while watches := self._wait():
            now = time.monotonic()
            for watch in watches:
                watch.check(now)
            summarise()

    def _wait(self) -> tuple[Watch, ...]:
        """Sleep until the next check, and return the event loops to check. If none is left, the thread ends."""
        time.sleep(INTERVAL_SECONDS)
        with self._lock:
            if not self._watches:
                self._thread = None
            return tuple(self._watches)


_guard = _WatchdogThread()


@contextmanager
def open_watch() -> Iterator[Watch]:
    """Watch the calling event loop for blocking tools, models and handlers until the block exits."""
    watch = Watch()
    _guard.add(watch)
    try:
        yield watch
    finally:
        _guard.remove(watch)
