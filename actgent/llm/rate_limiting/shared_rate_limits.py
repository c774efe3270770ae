"""Rate limits that several processes share. A shared lease table leases units to each process, about one second's worth at a time.

The table keeps one bucket for all processes, refills it as `Bucket` does, and leases units out of it. Leased units count as
part of the bucket until they are spent or expire, so both together never exceed the capacity. In any `t` seconds all processes
start calls worth at most `capacity + rate * t`, as a single process would. A lease expires in the process before it expires at
the table, since its time starts with the request. The unspent lease of a dead process simply expires.

This module has no clock and does not wait; `limit_lease_client.py` sends the requests.
"""

import math
from collections.abc import Callable

import attrs

from .token_buckets import TOLERANCE_UNITS, Bucket, Cost

LEASE_INTERVAL_SECONDS = 1.0
"""Interval between lease requests while units are scarce, and the usage in seconds that is leased ahead of calls."""
LEASE_SECONDS = 2.0
"""Validity of a lease in seconds."""


@attrs.frozen(kw_only=True)
class LeaseRequest:
    """Request of a process to lease units of a shared rate limit."""

    at: float
    """Time at which the lease is requested, in seconds of trio's clock."""
    held: float
    """Number of leased units that the process has not spent."""
    charge: float
    """Number of units that calls spent in excess of the lease, because they used more than their reservation."""
    least: float
    """Minimum number of units that the next waiting call needs to start; 0 if no call waits."""
    wanted: float
    """Number of requested units: those that the process expects to spend within a second, at least `least`."""


@attrs.define(eq=False, kw_only=True)
class LeasedLimit:
    """The part of a shared rate limit that is leased to this process. It has the interface of `Bucket`."""

    kind: str
    rate: float
    """Refill rate of the shared limit in units per second."""
    capacity: float
    """Maximum number of units that all processes together can spend at once."""
    waiting: Callable[[str], float]
    """Function that returns the number of units that waiting calls need of a kind of limit, such as `tokens`."""
    on_request: Callable[[], object] = lambda: None
    """Function that is called when a lease must be requested."""
    on_leased: Callable[[], object] = lambda: None
    """Function that is called after an answer to a lease request."""
    on_closed: Callable[[], object] = lambda: None
    """Function that is called when sharing ends, so that the limit becomes local again."""
    level: float = 0.0
    """Number of available leased units; negative after a call that used more than its reservation."""
    next_at: float = -math.inf
    """Earliest time of the next lease request."""
    _expires_at: float = -math.inf
    _least: float = 0.0
    """Number of units that the next waiting call still needs."""
    _spent: float = 0.0
    """Approximate number of units spent within the last second."""
    _requested_at: float = -math.inf

    def fill(self, now: float) -> float:
        """Return the number of leased units that are available at the time `now`. An expired lease has no units."""
        if now >= self._expires_at:
            self.level = min(0.0, self.level)
        return self.level

    def ready_at(self, cost: Cost, now: float) -> float:
        """Return `now` if the lease covers the cost of a call.

        Otherwise request a lease and return infinity. The answer to the request wakes the waiting calls.
        """
        missing = min(cost.of(self.kind), self.capacity) - max(0.0, self.fill(now))
        if missing <= TOLERANCE_UNITS:
            return now
        self._least = missing
        self.on_request()
        return math.inf

    def earliest_start(self, cost: Cost, now: float) -> float:
        """Return the earliest start time of a call with this cost if no other call waits. Request a lease if one is missing."""
        return now if self.ready_at(cost, now) <= now else max(now, self.next_at)

    def spend(self, cost: Cost, now: float) -> None:
        """Subtract the cost of a call from the leased units. A negative cost returns units."""
        units = cost.of(self.kind)
        self.level = min(self.capacity, self.fill(now) - units)
        self._spent += units
        if self.level < 0:
            self.on_request()

    def seconds(self, cost: Cost) -> float:
        """Return how many seconds the limit needs to refill the units of this cost."""
        return cost.of(self.kind) / self.rate

    # --- lending -------------------------------------------------------------------------

    @property
    def needs_lease(self) -> bool:
        """True if a lease must be requested: a call waits for units, or more units were spent than leased."""
        return self.level < 0 or self._least > 0

    def lease_request(self, now: float) -> LeaseRequest:
        """Make the lease request to send at the time `now`.

        It covers the units that waiting calls need, and as many units as were spent in the last second.
        """
        level, waits = self.fill(now), self.waiting(self.kind)
        self._spent = max(
            0.0, self._spent * math.exp(-max(0.0, now - self._requested_at) / LEASE_INTERVAL_SECONDS)
        )
        self._requested_at = now
        least = self._least if waits else 0.0
        ahead = min(self._spent, self.rate * LEASE_INTERVAL_SECONDS)
        wanted = max(least, min(self.capacity, waits + ahead - max(0.0, level))) if waits else 0.0
        return LeaseRequest(at=now, held=max(0.0, level), charge=max(0.0, -level), least=least, wanted=wanted)

    def renew(self, request: LeaseRequest, *, lent: float, held: float, wait: float, room: float) -> None:
        """Apply the answer to a lease request: store the lent units and the time of the next request.

        Args:
            request: The answered request.
            lent: Number of units that are added to the lease.
            held: Number of units of `request.held` that the process may keep.
            wait: Seconds until `request.least` units can be leased, if they were not leased now.
            room: Number of units until the shared limit is full. A full limit does not refill.
        """
        self.level += lent + request.charge - (request.held - held)
        self._expires_at = request.at + LEASE_SECONDS
        self._least = 0.0
        scarce = lent + TOLERANCE_UNITS < request.wanted
        self.next_at = (
            request.at + max(wait, min(LEASE_INTERVAL_SECONDS, room / self.rate)) if scarce else request.at
        )
        self.on_leased()


Limit = Bucket | LeasedLimit
"""One configured limit, local to this process or shared."""
