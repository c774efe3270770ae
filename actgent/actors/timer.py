"""One task that watches many deadlines.

A cancel scope with a deadline costs several microseconds to enter and leave, a call of `Timer.call_at` a
fraction of one; and most timers never fire, because the answer came in time. Cancelled ones stay in the heap until it has
doubled; then they are thrown away.
"""

import heapq
import itertools
import math
from collections.abc import Callable

import trio

COMPACT_FROM = 1000
"""A heap with fewer entries is never searched for cancelled ones."""


class TimerHandle:
    """Something to be called at a time, unless it is cancelled before."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[], object]) -> None:
        self.fn: Callable[[], object] | None = fn

    def cancel(self) -> None:
        """Never fire. Does nothing if it has fired."""
        self.fn = None


class Timer:
    """Calls functions at their times, while its `run` runs."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, TimerHandle]] = []
        self._serial = itertools.count()
        self._compact_at = COMPACT_FROM
        self._wakes_at = math.inf
        self._scope = trio.CancelScope()
        self.now: Callable[[], float] = trio.current_time
        """The time by trio's clock, which is not looked for each time while `run` runs."""

    def __len__(self) -> int:
        """Count the timers that are set."""
        return sum(handle.fn is not None for _, _, handle in self._heap)

    def call_at(self, deadline: float, fn: Callable[[], object]) -> TimerHandle:
        """Have `fn` called at a time of trio's clock; it must neither wait nor raise."""
        handle = TimerHandle(fn)
        if len(self._heap) >= self._compact_at:
            self._compact()
        heapq.heappush(self._heap, (deadline, next(self._serial), handle))
        if deadline < self._wakes_at:
            self._scope.deadline = self._wakes_at = deadline
        return handle

    async def run(self) -> None:
        """Fire what is due, for ever."""
        self.now = trio.lowlevel.current_clock().current_time
        while True:
            self._wakes_at = self._fire(self.now())
            with trio.CancelScope(deadline=self._wakes_at) as self._scope:
                await trio.sleep_forever()

    def _fire(self, now: float) -> float:
        """Fire all that is due at `now`; returns when the next one is."""
        while self._heap:
            deadline, _, handle = self._heap[0]
            if handle.fn is not None and deadline > now:
                return deadline
            heapq.heappop(self._heap)
            if handle.fn is not None:
                fn, handle.fn = handle.fn, None
                fn()
        return math.inf

    def _compact(self) -> None:
        """Throw the cancelled entries away."""
        self._heap = [entry for entry in self._heap if entry[2].fn is not None]
        heapq.heapify(self._heap)
        self._compact_at = max(COMPACT_FROM, 2 * len(self._heap))
