"""Durable timers of sessions as data, and the index of the sessions that are due next.

A timer is an id and a time. What it does when it fires is a row in a table that the service above is given.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping

import attrs
import trio

from .clock import Clock
from .schedule import Schedule

TIMER_TOLERANCE_SECONDS = 0.001
"""How early a timer may fire: clocks round."""
STILL_DUE_SECONDS = 1.0
"""After how long a session is popped again whose timers fired and that is due all the same."""
COMPACT_FROM = 1000
"""A heap with fewer entries is never searched for outdated ones."""


@attrs.frozen(eq=False)
class DurableTimer:
    """A time at which something happens in a session, even if it was unloaded or the process ended meanwhile.

    `SessionContext.set_timer` sets it and `drop_timer` removes it. With a journal, records of its own have to bring it
    back when the session is restored: the journal itself keeps only the earliest time of a session.
    """

    id: str
    """Unique in the session."""
    at: float
    """Unix time in seconds."""
    is_delay: bool = False
    """True: it was set as seconds from then on, so it follows `Clock.steady`, even if somebody sets the clock."""

    def is_due(self, clock: Clock) -> bool:
        """Return True if its time has come, give or take the tolerance."""
        return self.at <= (clock.steady() if self.is_delay else clock.now()) + TIMER_TOLERANCE_SECONDS

    def steady_at(self, clock: Clock) -> float:
        """Return its time by `Clock.steady`."""
        return self.at if self.is_delay else clock.steady_of(self.at)


@attrs.define(eq=False)
class SessionTimers:
    """Timers that are set, and the schedules behind some of them; only a session that ever had one has this."""

    due: dict[str, DurableTimer] = attrs.field(factory=dict)
    """By their ids."""
    scheduled: dict[str, Schedule] = attrs.field(factory=dict)
    """Schedules that were set, by their ids, also those that have fired."""
    writing: dict[str, trio.Event] = attrs.field(factory=dict)
    """Schedules that are just being written, by their ids."""


def first_time(timers: Mapping[str, DurableTimer]) -> float:
    """Return the Unix time of the first timer; 0 if there is none."""
    return min((timer.at for timer in timers.values()), default=0.0)


def first_steady_time(timers: Mapping[str, DurableTimer], clock: Clock) -> float:
    """Return the time of the first timer by `Clock.steady`; 0 if there is none."""
    return min((timer.steady_at(clock) for timer in timers.values()), default=0.0)


class DueIndex:
    """Sessions by the time of their first timer, by `Clock.steady`: a heap.

    A session costs an id and a number here, even if it is unloaded or was never read since the start. `pop` hands a due
    session out; it is not handed out again until `put_back`.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.on_push: Callable[[float], object] = lambda _: None
        """Called with each time that enters the heap."""
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        """Entries that differ from `_at` are outdated and skipped."""
        self._popped: set[str] = set()

    def __len__(self) -> int:
        """Count the sessions with a time."""
        return len(self._at)

    @property
    def first(self) -> float:
        """The earliest time in the heap, perhaps an outdated one; infinity if it is empty."""
        return self._heap[0][0] if self._heap else math.inf

    def set(self, session_id: str, at: float) -> None:
        """Set the time of a session in place of its earlier one; 0 is never."""
        if not at:
            self._at.pop(session_id, None)
        elif self._at.get(session_id) != at:
            self._at[session_id] = at
            if session_id not in self._popped:
                self._push(at, session_id)

    def load(self, times: Iterable[tuple[str, float]]) -> None:
        """Add the times that a journal lists, except for sessions whose time is known: that one is newer."""
        for session_id, at in times:
            self._at.setdefault(session_id, at)
        self._rebuild()

    def forget(self, is_left: Callable[[str], bool]) -> None:
        """Watch sessions no more that another process goes on with."""
        self._at = {session_id: at for session_id, at in self._at.items() if not is_left(session_id)}
        self._rebuild()

    def pop(self) -> list[str]:
        """Take out the sessions that are due by now, the earliest first."""
        now = self.clock.steady() + TIMER_TOLERANCE_SECONDS
        due = []
        while self._heap and self._heap[0][0] <= now:
            at, session_id = heapq.heappop(self._heap)
            if self._at.get(session_id) == at and session_id not in self._popped:
                self._popped.add(session_id)
                due.append(session_id)
        return due

    def put_back(self, session_id: str, *, delay: float = 0.0) -> None:
        """Watch a popped session again, if it has a time; it is popped after `delay` seconds at the earliest."""
        self._popped.discard(session_id)
        at = self._at.get(session_id)
        if at is not None:
            now = self.clock.steady()
            if delay or at <= now:
                at = self._at[session_id] = max(at, now + (delay or STILL_DUE_SECONDS))
            self._push(at, session_id)

    def advance(self, seconds: float) -> None:
        """Bring all times forward, because the clock was set forward. Delays are popped too early by that, and wait on."""
        self._at = {session_id: at - seconds for session_id, at in self._at.items()}
        self._rebuild()

    def _push(self, at: float, session_id: str) -> None:
        heapq.heappush(self._heap, (at, session_id))
        if len(self._heap) > max(COMPACT_FROM, 2 * len(self._at)):
            self._rebuild()
        self.on_push(at)

    def _rebuild(self) -> None:
        self._heap = [
            (at, session_id) for session_id, at in self._at.items() if session_id not in self._popped
        ]
        heapq.heapify(self._heap)
