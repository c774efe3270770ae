"""What time it is for people, who have dates; what is measured in seconds goes by `trio.current_time()`.

Someone may set the clock of a machine. Dates follow it; delays do not, they take as long as was said.
"""

import time

import trio

JUMP = 0.5
"""Seconds by which a clock is set at least; less is the difference of two clocks that run."""
_BOOT = getattr(time, "CLOCK_BOOTTIME", None)
"""The clock that goes on while the machine sleeps, where there is one."""


class Clock:
    """Unix time. Where a test runs trio by a clock of its own, dates go by that one, from the moment of opening."""

    def __init__(self) -> None:
        self._is_system = type(trio.lowlevel.current_clock()).__module__.startswith("trio._core._run")
        self._opened_at = time.time()
        self._opened = self._passed()
        self._ahead = 0.0
        """Seconds by which the clock is known to have been set since."""
        self.may_be_set = self._is_system
        """True if the wall clock may be adjusted while we run."""

    def _passed(self) -> float:
        if not self._is_system:
            return trio.current_time()
        return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)

    def now(self) -> float:
        """Unix time in seconds, as the machine has it: for dates."""
        return time.time() if self._is_system else self.steady()

    def steady(self) -> float:
        """Unix time in seconds as it would be had nobody set the clock since the opening: for delays."""
        return self._opened_at + self._passed() - self._opened

    def look(self) -> float:
        """By how many seconds the clock was set since this was asked last; less than 0 is back."""
        ahead = self.now() - self.steady()
        if abs(ahead - self._ahead) < JUMP:
            return 0.0
        jump, self._ahead = ahead - self._ahead, ahead
        return jump

    def steady_of(self, at: float) -> float:
        """When a date comes by `steady`, if nobody sets the clock until then."""
        return at - self._ahead
