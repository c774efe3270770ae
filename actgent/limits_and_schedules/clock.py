"""`Clock`: Unix time for dates, and a steady time for delays.

The wall clock of a machine can be adjusted. Dates follow an adjustment; delays keep their length.
"""

import time

import trio

MIN_JUMP_SECONDS = 0.5
"""Minimum adjustment that is detected, in seconds. A smaller difference is drift between two clocks."""
_BOOT = getattr(time, "CLOCK_BOOTTIME", None)
"""Clock that also counts while the machine sleeps; None if the system has none."""


class Clock:
    """Clock for dates and delays in Unix time. If a test replaces trio's clock, this clock follows the replacement."""

    def __init__(self) -> None:
        self._is_system = type(trio.lowlevel.current_clock()).__module__.startswith("trio._core._run")
        self._opened_at = time.time()
        self._opened = self._elapsed()
        self._ahead = 0.0
        """Sum of all detected adjustments of the wall clock, in seconds."""
        self._correction = 0.0
        """Seconds that are added to the machine's clock to get the corrected time."""
        self.may_be_set = self._is_system
        """True if the wall clock can be adjusted while the process runs."""

    def _elapsed(self) -> float:
        if not self._is_system:
            return trio.current_time()
        return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)

    def now(self) -> float:
        """Return the wall-clock Unix time in seconds, plus the correction set by `correct`, for dates.

        While a test runs trio on a mock clock, the time follows the mock clock.
        """
        return time.time() + self._correction if self._is_system else self.steady()

    def correct(self, seconds: float) -> None:
        """Set the correction, in seconds, that is added to the machine's clock for dates and delays; 0 removes the correction.

        While a test runs trio on a mock clock, the correction has no effect.
        """
        if self._is_system:
            self._correction, self._ahead = seconds, 0.0
            self._opened_at = self.now() - self._elapsed() + self._opened

    def steady(self) -> float:
        """Return a Unix time in seconds that ignores adjustments of the machine's clock, for delays."""
        return self._opened_at + self._elapsed() - self._opened

    def take_adjustment(self) -> float:
        """Return the number of seconds by which the wall clock was adjusted since the last call; small differences count as 0.

        A negative value means that the clock was set back.
        """
        ahead = self.now() - self.steady()
        if abs(ahead - self._ahead) < MIN_JUMP_SECONDS:
            return 0.0
        jump, self._ahead = ahead - self._ahead, ahead
        return jump

    def steady_of(self, at: float) -> float:
        """Convert the wall-clock Unix time `at` to the time of `steady`, under the assumption of no further adjustment."""
        return at - self._ahead
