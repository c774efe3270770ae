"""Concurrency window: finds the number of concurrent calls that a provider accepts if it does not report a limit.

The algorithm is additive increase and multiplicative decrease, as in TCP congestion control:

- *Slow start* (RFC 5681, section 3.1): until the first refusal each answered call adds one, so the window doubles in the
  duration of a call.
- A refusal cuts the window to 0.7 of the calls that the provider accepted and still processes (the factor of CUBIC,
  RFC 9438, section 4.6). So calls that were sent and refused together count once.
- Afterwards the window follows the curve of CUBIC (section 4.2): quickly back to near the refused size, slowly past it, then
  faster. The time scale is fixed at `recovery` seconds, since providers count per minute and not per round trip.
- The window grows only while it is used (RFC 7661), since an idle hour proves nothing.

A window below 1 spaces calls out, which TCP does not have: at 0.25 a call starts every four call durations. So the same rule
finds a limit on requests per minute that is below one concurrent call.
"""

import math

import attrs

BETA = 0.7
MIN_SIZE = 0.01
_USED = 0.5
"""Fraction of the window that must be in use for it to grow."""
_WEIGHT = 0.2
"""Weight of the newest call in the average duration."""


@attrs.define(eq=False, kw_only=True)
class Window:
    """Number of calls that may run concurrently. A value below 1 spaces calls out in time."""

    size: float
    """Current size: maximum number of concurrent calls."""
    limit: float
    """Upper bound of the size in concurrent calls."""
    recovery: float
    """Seconds from a cut until the window is back at the refused size."""
    duration: float = 0.0
    """Average duration of a call in seconds."""
    _top: float = math.inf
    """Number of concurrent calls at the last refusal."""
    _grown: float = 0.0
    """Seconds since the last cut during which the window was in use."""
    _seen: float = -math.inf
    _started: float = -math.inf
    _cut: float = -math.inf

    def ready_at(self, running: int, now: float) -> float:
        """Return the earliest start of a further call while `running` calls run; infinity if one must end first."""
        if running >= max(1, math.floor(self.size)):
            return math.inf
        return now if self.size >= 1 else max(now, self._started + self.duration / self.size)

    def start(self, now: float) -> None:
        """Note the start time of a call, since a window below 1 limits the time between calls."""
        self._started = now

    def grow(self, running: int, *, seconds: float, now: float) -> None:
        """Grow the window after a call was answered in `seconds` while `running` calls ran.

        A window that is not used fully stays.
        """
        self.duration += (seconds - self.duration) * (_WEIGHT if self.duration else 1.0)
        passed, self._seen = min(now - self._seen, self.recovery), now
        if running < _USED * self.size:
            return
        if self._top == math.inf:
            self.size = min(self.limit, self.size + 1)
        else:
            self._grown += passed
            bend = (self._grown - self.recovery) / self.recovery
            self.size = min(self.limit, max(self.size, self._top * (1 + (1 - BETA) * bend**3)))

    def shrink(self, left: int, *, started: float, now: float) -> None:
        """Shrink the window after a refusal.

        `started` is the time at which the refused call was sent, `left` the number of other running calls.
        """
        if left < 1 and started < self._cut:
            return  # The call was sent together with a rejected call, for which the window was already reduced.
        top = float(left) if left >= 1 else min(1.0, self.size)
        size = max(MIN_SIZE, BETA * top)
        if size < self.size:
            self.size, self._top = size, max(MIN_SIZE, top)
            self._grown, self._seen, self._cut = 0.0, now, now
