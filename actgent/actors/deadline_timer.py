"""A timer: one task that watches many deadlines.

Entering and leaving a cancel scope with a deadline costs several microseconds, a call of `Timer.call_at` less than one. Most
timers never fire, since the answer arrives in time. Cancelled entries at the end of the heap are removed at once. Most cancelled
entries are at the end, because entries with equal timeouts are in the order in which they were added. Other cancelled entries
stay until the heap has doubled.
"""

import heapq
import itertools
import math
from collections.abc import Callable

import trio

MIN_COMPACT_ENTRIES = 1000
"""Minimum number of heap entries before cancelled entries are removed."""


class TimerHandle:
    """A scheduled call of a function, which can be cancelled."""

    __slots__ = ("_heap", "fn")

    def __init__(self, fn: Callable[[], object], heap: "list[_Entry]") -> None:
        self.fn: Callable[[], object] | None = fn
        self._heap = heap
        """Heap of the timer, from which cancelled calls are removed."""

    def cancel(self) -> None:
        """Cancel the scheduled call. A call that was made already is unaffected."""
        self.fn = None
        heap = self._heap
        while heap and heap[-1][2].fn is None:  # removing the last entries keeps the heap order
            heap.pop()


_Entry = tuple[float, int, TimerHandle]


class Timer:
    """Scheduler of function calls. The task that executes `run` calls the functions."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._serial = itertools.count()
        self._compact_at = MIN_COMPACT_ENTRIES
        self._wakes_at = math.inf
        self._scope = trio.CancelScope()
        self.now: Callable[[], float] = trio.current_time
        """Current time by trio's clock. `run` replaces it by the method of the clock object, which saves a lookup per call."""

    def __len__(self) -> int:
        """Return the number of scheduled calls that are not cancelled."""
        return sum(handle.fn is not None for _, _, handle in self._heap)

    def call_at(self, deadline: float, fn: Callable[[], object]) -> TimerHandle:
        """Schedule `fn` for a time of trio's clock. `fn` must neither block nor raise."""
        handle = TimerHandle(fn, self._heap)
        if len(self._heap) >= self._compact_at:
            self._compact()
        heapq.heappush(self._heap, (deadline, next(self._serial), handle))
        if deadline < self._wakes_at:
            self._scope.deadline = self._wakes_at = deadline
        return handle

    async def run(self) -> None:
        """Call due functions until cancelled."""
        self.now = trio.lowlevel.current_clock().current_time
        while True:
            self._wakes_at = self._fire(self.now())
            with trio.CancelScope(deadline=self._wakes_at) as self._scope:
                await trio.sleep_forever()

    def _fire(self, now: float) -> float:
        """Call all functions that are due at `now`; return the time of the next one."""
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
        """Remove cancelled entries from the heap."""
        self._heap[:] = [entry for entry in self._heap if entry[2].fn is not None]
        heapq.heapify(self._heap)
        self._compact_at = max(MIN_COMPACT_ENTRIES, 2 * len(self._heap))
