"""Rate limits that several processes share. A lender leases units to each process, about one second's worth at a time.

The lender keeps one bucket for all processes, refills it as `Bucket` does, and leases units out of it. Leased units count as
part of the bucket until they are spent or expire, so both together never exceed the capacity. In any `t` seconds all processes
start calls worth at most `capacity + rate * t`, as a single process would. A lease expires in the process before it expires at
the lender, since its time starts with the request. The unspent lease of a dead process simply expires.

This module has no clock and does not wait; `lending.py` sends the requests.
"""

import math
from collections.abc import Callable

import attrs

from .rate_limits import DUST, Bucket, Cost

SHARE_SECONDS = 1.0
"""Interval between lease requests while units are scarce, and the usage in seconds that is leased ahead of calls."""
LEASE_SECONDS = 2.0
"""Validity of a lease in seconds."""


@attrs.frozen(kw_only=True)
class Asking:
    """A lease request of a process."""

    at: float
    """Time of the request, by trio's clock."""
    held: float
    """Leased units that are not spent."""
    charge: float
    """Units spent beyond the lease, by answers that used more than their reservation."""
    least: float
    """Minimum units for the next call to start; 0 if no call waits."""
    wanted: float
    """Units that the process would spend within a second, at least `least`."""


@attrs.define(eq=False, kw_only=True)
class Share:
    """The leased part of a shared bucket. It has the interface of `Bucket`."""

    kind: str
    rate: float
    """Units per second of all processes together."""
    capacity: float
    """Maximum units that all processes together can spend at once."""
    waiting: Callable[[str], float]
    """Returns the units that waiting calls need, by kind."""
    on_wanted: Callable[[], object] = lambda: None
    """Called when a lease request is needed."""
    on_lent: Callable[[], object] = lambda: None
    """Called after an answer to a lease request."""
    on_ended: Callable[[], object] = lambda: None
    """Called when the lender closes."""
    level: float = 0.0
    """Available leased units. Negative after a call that used more than its reservation."""
    next_at: float = -math.inf
    """Earliest time of the next lease request."""
    _lapses_at: float = -math.inf
    _least: float = 0.0
    """Units that the next call still needs."""
    _spent: float = 0.0
    """Units spent within about the last second."""
    _asked_at: float = -math.inf

    def fill(self, now: float) -> float:
        """Return the available units at `now`."""
        if now >= self._lapses_at:
            self.level = min(0.0, self.level)
        return self.level

    def ready_at(self, cost: Cost, now: float) -> float:
        """Return `now` if the lease covers a call, else infinity and request a lease. Its answer wakes the waiting calls."""
        missing = min(cost.of(self.kind), self.capacity) - max(0.0, self.fill(now))
        if missing <= DUST:
            return now
        self._least = missing
        self.on_wanted()
        return math.inf

    def soonest(self, cost: Cost, now: float) -> float:
        """Return the earliest possible start of a call."""
        return now if self.ready_at(cost, now) <= now else max(now, self.next_at)

    def take(self, cost: Cost, now: float) -> None:
        """Subtract the cost of a call. A negative cost is added."""
        units = cost.of(self.kind)
        self.level = min(self.capacity, self.fill(now) - units)
        self._spent += units
        if self.level < 0:
            self.on_wanted()

    def seconds(self, cost: Cost) -> float:
        """Return the seconds in which the limit grants this cost."""
        return cost.of(self.kind) / self.rate

    # --- lending -------------------------------------------------------------------------

    @property
    def is_wanted(self) -> bool:
        """True if a call waits or the level is negative."""
        return self.level < 0 or self._least > 0

    def ask(self, now: float) -> Asking:
        """Return the lease request at `now`: the needs of waiting calls plus the usage of the last second."""
        level, waits = self.fill(now), self.waiting(self.kind)
        self._spent = max(0.0, self._spent * math.exp(-max(0.0, now - self._asked_at) / SHARE_SECONDS))
        self._asked_at = now
        least = self._least if waits else 0.0
        ahead = min(self._spent, self.rate * SHARE_SECONDS)
        wanted = max(least, min(self.capacity, waits + ahead - max(0.0, level))) if waits else 0.0
        return Asking(at=now, held=max(0.0, level), charge=max(0.0, -level), least=least, wanted=wanted)

    def lend(self, asked: Asking, *, lent: float, held: float, wait: float, room: float) -> None:
        """Apply the answer to a lease request.

        Args:
            asked: The request.
            lent: Units that are added to the lease.
            held: Part of `asked.held` that the process may keep.
            wait: Seconds until `least` could be leased, if it was not.
            room: Units that the shared bucket lacks. A full bucket does not refill.
        """
        self.level += lent + asked.charge - (asked.held - held)
        self._lapses_at = asked.at + LEASE_SECONDS
        self._least = 0.0
        scarce = lent + DUST < asked.wanted
        self.next_at = asked.at + max(wait, min(SHARE_SECONDS, room / self.rate)) if scarce else asked.at
        self.on_lent()


Limit = Bucket | Share
"""One configured limit, local to this process or shared."""
