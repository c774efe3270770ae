"""Durable timers of sessions, and the index of sessions by the time of their next timer.

A timer is an id and a time. The timer service executes a due timer by a function that it finds by the class of the timer.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping

import attrs
import trio

from actgent.support.attrs_class_repr import FieldRepr

from .clock import Clock
from .schedule import Schedule

TIMER_TOLERANCE_SECONDS = 0.001
"""Maximum seconds that a timer may fire early, because clocks round."""
STILL_DUE_SECONDS = 1.0
"""Minimum seconds until a session that is still due after its timers fired is popped again."""
MIN_COMPACT_ENTRIES = 1000
"""Number of heap entries below which outdated entries are not removed."""


@attrs.frozen(eq=False, repr=False)
class DurableTimer(FieldRepr):
    """A timer of a session. It also fires if the session was unloaded or the process was restarted.

    `SessionContext.set_timer` sets a timer and `drop_timer` removes it. The journal stores only the time of the earliest timer of a
    session. So the feature that uses a timer must restore it from its own records when the session is loaded.
    """

    id: str
    """Id of the timer, unique in the session."""
    at: float
    """Time at which the timer fires, as Unix time in seconds."""
    is_delay: bool = False
    """True for a delay, which follows `Clock.steady` and ignores adjustments of the wall clock."""

    def is_due(self, clock: Clock) -> bool:
        """Return True if the timer's time has been reached by `clock`, within the tolerance."""
        return self.at <= (clock.steady() if self.is_delay else clock.now()) + TIMER_TOLERANCE_SECONDS

    def steady_at(self, clock: Clock) -> float:
        """Return the timer's time as a time of `Clock.steady`, in seconds."""
        return self.at if self.is_delay else clock.steady_of(self.at)


@attrs.define(eq=False, repr=False)
class SessionTimers(FieldRepr):
    """Timers and schedules of one session. Sessions that never had a timer have no such object."""

    due: dict[str, DurableTimer] = attrs.field(factory=dict)
    """Timers of the session by timer id."""
    scheduled: dict[str, Schedule] = attrs.field(factory=dict)
    """Schedules of the session by id, including those that have fired."""
    writing: dict[str, trio.Event] = attrs.field(factory=dict)
    """Events of schedules that are being written, by schedule id. An event is set when the write has ended."""


def first_time(timers: Mapping[str, DurableTimer]) -> float:
    """Return the Unix time of the earliest timer; 0 without timers."""
    return min((timer.at for timer in timers.values()), default=0.0)


def first_steady_time(timers: Mapping[str, DurableTimer], clock: Clock) -> float:
    """Return the time of the earliest timer, in seconds of `Clock.steady`; 0 without timers."""
    return min((timer.steady_at(clock) for timer in timers.values()), default=0.0)


class DueIndex:
    """Heap of sessions by the time of their earliest timer, in seconds of `Clock.steady`.

    The index has an id and a time for each session, also for unloaded sessions. `pop` removes due sessions from the heap, and
    `put_back` adds them again.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.on_push: Callable[[float], object] = lambda _: None
        """Called with the time of each entry that is added to the heap."""
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        """Heap of (time, session id). An entry whose time differs from `_at` is outdated and skipped."""
        self._popped: dict[str, None] = {}  # empty, it takes a third of the bytes of a set

    def __len__(self) -> int:
        """Return the number of sessions with a timer."""
        return len(self._at)

    @property
    def first(self) -> float:
        """Earliest steady time in the heap in seconds, possibly of an outdated entry; infinity if the heap is empty."""
        return self._heap[0][0] if self._heap else math.inf

    def set(self, session_id: str, at: float) -> None:
        """Set the steady time in seconds of a session's earliest timer in the index; 0 removes the session."""
        if not at:
            self._at.pop(session_id, None)
        elif self._at.get(session_id) != at:
            self._at[session_id] = at
            if session_id not in self._popped:
                self._push(at, session_id)

    def load(self, times: Iterable[tuple[str, float]]) -> None:
        """Add sessions with the steady times of their next timers, as the journal lists them. Sessions in the index are not changed."""
        for session_id, at in times:
            self._at.setdefault(session_id, at)
        self._rebuild()

    def forget(self, has_moved: Callable[[str], bool]) -> None:
        """Remove the sessions for which `has_moved` returns True, because another process owns them now."""
        self._at = {session_id: at for session_id, at in self._at.items() if not has_moved(session_id)}
        self._rebuild()

    def pop(self) -> list[str]:
        """Remove the sessions with a due timer from the heap, and return their ids, earliest first."""
        now = self.clock.steady() + TIMER_TOLERANCE_SECONDS
        due = []
        while self._heap and self._heap[0][0] <= now:
            at, session_id = heapq.heappop(self._heap)
            if self._at.get(session_id) == at and session_id not in self._popped:
                self._popped[session_id] = None
                due.append(session_id)
        return due

    def put_back(self, session_id: str, *, delay: float = 0.0) -> None:
        """Add a popped session to the heap again if it has a timer. Call this method after its due timers were processed.

        The session is popped again after `delay` seconds at the earliest, and after `STILL_DUE_SECONDS` if a timer is still due.
        """
        self._popped.pop(session_id, None)
        at = self._at.get(session_id)
        if at is not None:
            now = self.clock.steady()
            if delay or at <= now:
                at = self._at[session_id] = max(at, now + (delay or STILL_DUE_SECONDS))
            self._push(at, session_id)

    def advance(self, seconds: float) -> None:
        """Make all times earlier by `seconds`, because the wall clock was set forward.

        Sessions whose timer is a delay are popped too early by this; `put_back` adds them again.
        """
        self._at = {session_id: at - seconds for session_id, at in self._at.items()}
        self._rebuild()

    def _push(self, at: float, session_id: str) -> None:
        heapq.heappush(self._heap, (at, session_id))
        if len(self._heap) > max(MIN_COMPACT_ENTRIES, 2 * len(self._at)):
            self._rebuild()
        self.on_push(at)

    def _rebuild(self) -> None:
        self._heap = [
            (at, session_id) for session_id, at in self._at.items() if session_id not in self._popped
        ]
        heapq.heapify(self._heap)
