"""Limits that several processes share: what each of them may spend is lent to it, a second's worth at a time.

A lender keeps one bucket for all, fills it as `Bucket` does, and lends out of it. What is lent counts as in the bucket until
it is spent or lapses: the two together never exceed the capacity. So in any `t` seconds all processes start calls worth at most
`capacity + rate * t`, as one process would, whenever each of them spends what it has. A share lapses here before its lender
counts it as lapsed, since its time runs from the asking; a process that dies with one only leaves it unspent.

Decides without a clock and without waiting; `lending.py` asks for it.
"""

import math
from collections.abc import Callable

import attrs

from .rate_limits import DUST, Bucket, Cost

SHARE = 1.0
"""Seconds between two askings where more is wanted than there is, and of what is lent ahead of calls."""
LASTS = 2.0
"""Seconds for which a share may be spent."""


@attrs.frozen(kw_only=True)
class Asking:
    """What a process asks of a limit at one moment."""

    at: float
    held: float
    """Units lent before that are not spent."""
    charge: float
    """Units spent beyond what was lent: answers that took more than was thought."""
    least: float
    """Units without which the next call cannot start; 0: none waits."""
    wanted: float
    """Units that would be spent within a second; at least `least`."""


@attrs.define(eq=False, kw_only=True)
class Share:
    """A bucket of which this process has what was lent to it; stands where a `Bucket` would."""

    kind: str
    rate: float
    """Units a second that all processes have together."""
    capacity: float
    """Units that they can spend at once."""
    waiting: Callable[[str], float]
    """Returns the units that calls wait for."""
    on_wanted: Callable[[], object] = lambda: None
    """Called when something is to be asked for."""
    on_lent: Callable[[], object] = lambda: None
    """Called when something was lent."""
    on_ended: Callable[[], object] = lambda: None
    """Called when nothing more will be lent."""
    level: float = 0.0
    """Units that may be spent; below zero where a call took more than was thought."""
    next_at: float = -math.inf
    """Nothing is lent before."""
    _lapses_at: float = -math.inf
    _least: float = 0.0
    """What the next call lacks."""
    _spent: float = 0.0
    """Within about a second."""
    _asked_at: float = -math.inf

    def fill(self, now: float) -> float:
        """The level at `now`."""
        if now >= self._lapses_at:
            self.level = min(0.0, self.level)
        return self.level

    def ready_at(self, cost: Cost, now: float) -> float:
        """`now` if enough is lent for a call; infinity otherwise: whoever lends wakes those who wait."""
        missing = min(cost.of(self.kind), self.capacity) - max(0.0, self.fill(now))
        if missing <= DUST:
            return now
        self._least = missing
        self.on_wanted()
        return math.inf

    def soonest(self, cost: Cost, now: float) -> float:
        """No sooner than this can a call start."""
        return now if self.ready_at(cost, now) <= now else max(now, self.next_at)

    def take(self, cost: Cost, now: float) -> None:
        """Take a cost out; a negative one is given back."""
        units = cost.of(self.kind)
        self.level = min(self.capacity, self.fill(now) - units)
        self._spent += units
        if self.level < 0:
            self.on_wanted()

    def seconds(self, cost: Cost) -> float:
        """Return how long the limit takes to grant a call of this cost."""
        return cost.of(self.kind) / self.rate

    # --- lending -------------------------------------------------------------------------

    @property
    def is_wanted(self) -> bool:
        """True: a call waits, or something is owed."""
        return self.level < 0 or self._least > 0

    def ask(self, now: float) -> Asking:
        """What to ask for now: what calls wait for, and as much ahead as was spent in the last second."""
        level, waits = self.fill(now), self.waiting(self.kind)
        self._spent = max(0.0, self._spent * math.exp(-max(0.0, now - self._asked_at) / SHARE))
        self._asked_at = now
        least = self._least if waits else 0.0
        ahead = min(self._spent, self.rate * SHARE)
        wanted = max(least, min(self.capacity, waits + ahead - max(0.0, level))) if waits else 0.0
        return Asking(at=now, held=max(0.0, level), charge=max(0.0, -level), least=least, wanted=wanted)

    def lend(self, asked: Asking, *, lent: float, held: float, wait: float, room: float) -> None:
        """Something was lent, or nothing.

        Args:
            asked: To which this is the answer.
            lent: Units that come to what is held.
            held: Of `asked.held`, what may be kept.
            wait: Seconds until `least` could be lent, if it was not.
            room: Units that the bucket lacks: while it is full, or all is lent, nothing fills it.
        """
        self.level += lent + asked.charge - (asked.held - held)
        self._lapses_at = asked.at + LASTS
        self._least = 0.0
        scarce = lent + DUST < asked.wanted
        self.next_at = asked.at + max(wait, min(SHARE, room / self.rate)) if scarce else asked.at
        self.on_lent()


Limit = Bucket | Share
"""One limit that the user set: of this process alone, or shared."""
