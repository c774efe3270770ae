"""How many calls at once a provider takes that does not say so: found by going up until it refuses.

Additive increase and multiplicative decrease, as TCP finds the room on a line:

- *Slow start* (RFC 5681, section 3.1): until the first refusal each answered call makes room for one more, so the
  window doubles in the time of a call.
- A refusal cuts the window to 0.7 of the calls that the provider did take and still works on (the factor is
  CUBIC's, RFC 9438, section 4.6). Calls that were sent together and refused together count once that way.
- After that it grows along CUBIC's curve (section 4.2): quickly back to near the size that was refused, slowly
  past it, then faster. The curve's time is fixed at `recovery` seconds: providers count by the minute, not by the
  round trip.
- It grows only while it is used (RFC 7661): a quiet hour proves nothing.

A window below one, which TCP does not have, spaces calls out: at 0.25 a call starts every four durations of a
call. So the same rule finds a limit on requests a minute that is below one call at a time.
"""

import math

import attrs

BETA = 0.7
FLOOR = 0.01
_USED = 0.5
"""Of the window; below that it does not grow."""
_WEIGHT = 0.2
"""Of the newest call in the average duration."""


@attrs.define(eq=False, kw_only=True)
class Window:
    """The number of calls that may run at once; a fraction spaces them out."""

    size: float
    limit: float
    """The largest size."""
    recovery: float
    """Seconds from a cut back to the size that was refused."""
    duration: float = 0.0
    """Seconds that a call takes, on average."""
    _top: float = math.inf
    """The size that was refused last."""
    _grown: float = 0.0
    """Seconds since the cut in which it was used."""
    _seen: float = -math.inf
    _started: float = -math.inf
    _cut: float = -math.inf

    def ready_at(self, running: int, now: float) -> float:
        """When one more call may start beside `running`; infinity where one of them has to end first."""
        if running >= max(1, math.floor(self.size)):
            return math.inf
        return now if self.size >= 1 else max(now, self._started + self.duration / self.size)

    def start(self, now: float) -> None:
        self._started = now

    def grow(self, running: int, *, seconds: float, now: float) -> None:
        """A call was answered after `seconds`, as one of `running`."""
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

    def cut(self, left: int, *, started: float, now: float) -> None:
        """The provider refused a call that was sent at `started`, and works on `left` others."""
        if left < 1 and started < self._cut:
            return  # It was refused together with others, and those have told.
        top = float(left) if left >= 1 else min(1.0, self.size)
        size = max(FLOOR, BETA * top)
        if size < self.size:
            self.size, self._top = size, max(FLOOR, top)
            self._grown, self._seen, self._cut = 0.0, now, now
