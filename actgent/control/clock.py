"""What time it is for people, who have dates; what is measured in seconds goes by `trio.current_time()`."""

import time

import trio


class Clock:
    """Unix time. Where a test runs trio by a clock of its own, dates go by that one, from the moment of opening."""

    def __init__(self) -> None:
        self._opened_at = time.time()
        self._opened = trio.current_time()
        self._is_system = type(trio.lowlevel.current_clock()).__module__.startswith("trio._core._run")
        self.may_be_set = self._is_system
        """Whether it may go by more or less than the time that passes."""

    def now(self) -> float:
        """Unix time in seconds."""
        if self._is_system:
            return time.time()
        return self._opened_at + trio.current_time() - self._opened
