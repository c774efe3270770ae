"""One task that watches many deadlines.

A cancel scope with a deadline costs several microseconds to enter and leave, an alarm a fraction of one;
and most alarms never ring, because the answer came in time. Cancelled alarms stay in the heap until it has
doubled; then they are thrown away.
"""

import heapq
import itertools
import math
from collections.abc import Callable

import trio

COMPACT_FROM = 1000
"""Fewer alarms than this are never looked through for cancelled ones."""


class Alarm:
    """Something to be called at a time, unless it is cancelled before."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[], object]) -> None:
        self.fn: Callable[[], object] | None = fn

    def cancel(self) -> None:
        """Never ring. Does nothing when it has rung."""
        self.fn = None


class Timer:
    """Rings alarms while its `run` runs."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Alarm]] = []
        self._serial = itertools.count()
        self._compact_at = COMPACT_FROM
        self._wakes_at = math.inf
        self._scope = trio.CancelScope()

    def __len__(self) -> int:
        """Count the timers that are set."""
        return sum(alarm.fn is not None for _, _, alarm in self._heap)

    def call_at(self, deadline: float, fn: Callable[[], object]) -> Alarm:
        """Have `fn` called at a time of trio's clock; it must neither wait nor raise."""
        alarm = Alarm(fn)
        if len(self._heap) >= self._compact_at:
            self._compact()
        heapq.heappush(self._heap, (deadline, next(self._serial), alarm))
        if deadline < self._wakes_at:
            self._scope.deadline = self._wakes_at = deadline
        return alarm

    async def run(self) -> None:
        """Ring what is due, for ever."""
        while True:
            self._wakes_at = self._ring(trio.current_time())
            with trio.CancelScope(deadline=self._wakes_at) as self._scope:
                await trio.sleep_forever()

    def _ring(self, now: float) -> float:
        """Ring all that is due at `now`; returns when the next one is."""
        while self._heap:
            deadline, _, alarm = self._heap[0]
            if alarm.fn is not None and deadline > now:
                return deadline
            heapq.heappop(self._heap)
            if alarm.fn is not None:
                fn, alarm.fn = alarm.fn, None
                fn()
        return math.inf

    def _compact(self) -> None:
        """Throw the cancelled alarms away."""
        self._heap = [entry for entry in self._heap if entry[2].fn is not None]
        heapq.heapify(self._heap)
        self._compact_at = max(COMPACT_FROM, 2 * len(self._heap))
