"""The order of waiting model calls: priority with ageing, round robin between owners and between sessions of an owner.

Only the first call of a session competes with other sessions. Its key is the time since which it is first, plus its level
times `age_step`, as in the inbox. HIGH precedes NORMAL within one step of time, an older call of a lower level overtakes, and
no call starves. URGENT has the key minus infinity. When a call is admitted, the next call of its session becomes the
first, and its key has the current time. So this session follows all waiting sessions of the owner. That is round robin (Nagle,
RFC 970): a session with a hundred calls delays a session with one call by at most one call. Owners alternate in the same way
over all models, see `actgent/support/fair_queue.py`. A call without an owner uses its session as the owner.

Round robin is fair in calls. For fairness in tokens, an expensive call delays the next call of its session and owner. The delay
is the time that the fair shares of the other sessions and owners take, at most `age_step`. These are the start tags of start-time
fair queueing (Goyal et al. 1996).
"""

import heapq
import itertools
import math
from collections import Counter
from typing import Literal

import attrs

from actgent.messages import Priority
from actgent.support.fair_queue import FairQueue, QueueEntry, Turns

from .token_buckets import NO_COST, Cost

AGE_STEP_SECONDS = 30.0
"""Default seconds of waiting that raise a call by one priority level, equal to that of the inbox."""

State = Literal["new", "waiting", "running", "over"]


@attrs.define(eq=False, kw_only=True)
class Call:
    """One attempt of a model call in the rate limiter, from its arrival to its end."""

    session: str
    """Session id; empty for a call without a session. Such a call counts as the only call of a session."""
    priority: Priority
    cost: Cost
    """Requests and tokens reserved for the call."""
    arrived: float
    """Arrival time of the first attempt, in seconds of trio's clock. Retries keep it."""
    owner: str = ""
    """Owner for whom the call is made; empty uses the session."""
    state: State = "new"
    started: float = -math.inf
    key: float = math.inf
    """Sort key of the call while it is the first of its session; the smallest key is next."""
    reserved_total: Cost = NO_COST
    """Value of `ModelState.total` directly after the call was admitted."""
    counted_total: Cost = NO_COST
    """Value of `ModelState.counted` (the usage that the provider has certainly counted) when the call was admitted."""
    settled: Cost = NO_COST
    """Value of `ModelState.total` at the time at which the provider had certainly received this call."""
    task: object = None
    """Trio task that waits for the call's admission, set by the rate limiter; None if no task waits."""

    @property
    def session_key(self) -> object:
        """Key of the queue of the call's session: the session id, or the call itself if it has no session."""
        return self.session or self

    @property
    def owner_key(self) -> object:
        """Key of the call's owner in the round robin. If the call has no owner, the key is its session."""
        return self.owner or self.session_key


_Entry = tuple[float, int, Call]
"""Entry of a session queue: sort key, serial number and call."""


@attrs.define(eq=False)
class _SessionQueue:
    """The waiting calls of one session. It exists only while calls wait."""

    turn: float
    """Time of the session's next turn in the round robin."""
    calls: list[_Entry] = attrs.field(factory=list)
    stale: int = 0
    """Number of withdrawn calls that are still in `calls`."""
    entry: QueueEntry[Call] | None = None
    """Entry of the session's first call in the round robin."""

    def first(self) -> Call | None:
        """Return the next waiting call of the session, and remove withdrawn calls before it. Return None if no call waits."""
        while self.calls and self.calls[0][2].state != "waiting":
            heapq.heappop(self.calls)
            self.stale -= 1
        return self.calls[0][2] if self.calls else None

    def drop_stale(self) -> None:
        """Count a withdrawn call of this session. If most entries of the queue are withdrawn, remove the withdrawn entries."""
        self.stale += 1
        if self.stale * 2 > len(self.calls):
            self.calls = [entry for entry in self.calls if entry[2].state == "waiting"]
            heapq.heapify(self.calls)
            self.stale = 0


class CallQueue:
    """Queue of the waiting calls for one model. Queues of several models can share the turns of the owners."""

    def __init__(self, age_step: float = AGE_STEP_SECONDS, turns: Turns | None = None) -> None:
        self._age_step = age_step
        self._delays = (-math.inf, 0.0, age_step, 2 * age_step)
        self._sessions: dict[object, _SessionQueue] = {}
        self._round_robin: FairQueue[Call] = FairQueue(len(Priority), turns)
        """The first call of each session."""
        self._serial = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def entries(self) -> int:
        """Number of entries in the queue, including withdrawn calls. It is proportional to the number of waiting calls."""
        return self._round_robin.entries + sum(len(queue.calls) for queue in self._sessions.values())

    def by_priority(self) -> dict[str, int]:
        """Return the number of waiting calls by priority name. Priorities without calls are omitted."""
        waiting = (
            call for queue in self._sessions.values() for _, _, call in queue.calls if call.state == "waiting"
        )
        return dict(Counter(call.priority.name.lower() for call in waiting))

    def since(self, session: str) -> float | None:
        """Return the arrival time of the next call of a session; None if no call of the session waits."""
        queue = self._sessions.get(session)
        first = None if queue is None else queue.first()
        return None if first is None else first.arrived

    def add(self, call: Call) -> None:
        """Add a model call to the queue of calls that wait for the rate limit."""
        call.state = "waiting"
        self._count += 1
        queue = self._sessions.setdefault(call.session_key, _SessionQueue(-math.inf))
        before = queue.first()
        heapq.heappush(queue.calls, (call.arrived + self._delays[call.priority], next(self._serial), call))
        if queue.first() is not before:
            self._update_round_robin(queue)

    def first(self) -> tuple[float, Call] | None:
        """Return the sort key of the next call and the call; None if no call waits.

        The keys of several models' queues are comparable.
        """
        entry = self._round_robin.first()
        return None if entry is None else (entry.owner.turn + self._delays[entry.level], entry.item)

    def admit(self, call: Call, now: float, *, seconds: float) -> None:
        """Remove a model call from the queue, because the rate limiter has admitted it.

        The next calls of its owner and its session then come later in the round robin.

        `seconds` is the time that the rate limit takes to refill the cost of the call.
        """
        queue = self._sessions[call.session_key]
        if queue.entry is not None and queue.entry.item is call:
            self._round_robin.take(queue.entry, now + self._share(seconds, len(self._round_robin.owners)))
        self._remove(call, "running", now + self._share(seconds, len(self._sessions)))

    def _share(self, seconds: float, sharers: int) -> float:
        """Return the seconds by which an admitted call delays the next turn of its session or owner.

        `seconds` is the time that the rate limit takes to refill the cost of the call. `sharers` is the number of sessions
        or owners that then each get an equal share.

        The delay is at most `age_step`.
        """
        return min(self._age_step, seconds * sharers)

    def withdraw(self, call: Call) -> None:
        """Remove a call from the queue because its caller no longer waits."""
        self._remove(call, "over", -math.inf)

    def _remove(self, call: Call, state: State, turn: float) -> None:
        queue = self._sessions[call.session_key]
        was_first = queue.first() is call
        call.state = state
        self._count -= 1
        queue.drop_stale()
        queue.turn = max(queue.turn, turn)
        if was_first:
            self._update_round_robin(queue)
        if queue.first() is None:
            del self._sessions[call.session_key]

    def _update_round_robin(self, queue: _SessionQueue) -> None:
        """Add the first waiting call of a session to the round robin between owners, in place of the session's previous entry."""
        before, queue.entry = queue.entry, None
        if (call := queue.first()) is not None:
            call.key = max(call.arrived, queue.turn) + self._delays[call.priority]
            queue.entry = self._round_robin.add(
                call,
                owner=call.owner_key,
                level=call.priority,
                key=call.key,
                serial=next(self._serial),
                turn=call.arrived,
            )
        if before is not None:  # remove it afterwards, so that its owner keeps its turn
            self._round_robin.remove(before)
