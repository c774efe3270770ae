"""Which calls may go to a provider now: the deciding half of the governor, without a clock and without waiting.

A call is admitted when the window of its lane has room, no refusal asks everybody to wait, and every bucket holds what
it costs: those that the user set, which all lanes share, and those that the provider's headers tell of, a lane
each, because providers count each model apart. A lane that is not ready lets the others go ahead; a bucket
that all share lets nobody overtake, or the dearest call would wait for ever.
"""

import math
from collections.abc import Sequence

import attrs

from actgent.errors import ModelError, ProviderUnavailable, RateLimited
from actgent.messages import Usage
from actgent.support.rotation import Turns

from .queue import Call, CallQueue
from .rate_limits import NO_COST, Bucket, Cost, Headers, Reading, read_limits
from .shares import Limit
from .window import Window

MAX_LANES = 100
"""Idle lanes beyond that are forgotten, the longest unused first."""
_OVERLOADED = (503, 529)
_WEIGHT = 0.1
"""Of the newest answer in what an answer is expected to take."""
_FIRST_OUTPUT = 256.0
"""Tokens that an answer is expected to have before there was one."""
_FIRST_RATIO = 0.25
"""Tokens a byte of a request, before there was an answer."""


@attrs.define(eq=False)
class Expectation:
    """How many tokens a call will take, learnt from those that were answered."""

    ratio: float = _FIRST_RATIO
    """Input tokens a byte of the request."""
    output: float = _FIRST_OUTPUT
    _weight: float = 1.0

    def cost(self, size: int, max_tokens: int | None) -> Cost:
        """Return what to reserve for a request of `size` bytes."""
        return Cost(size * self.ratio, self.output if max_tokens is None else min(self.output, max_tokens))

    def learn(self, size: int, usage: Usage) -> None:
        self.output += (usage.output_tokens - self.output) * self._weight
        if size:
            self.ratio += (usage.input_tokens / size - self.ratio) * self._weight
        self._weight = max(_WEIGHT, self._weight / 2)


@attrs.define(eq=False, kw_only=True)
class Lane:
    """The calls to one model, and what its provider grants them."""

    window: Window
    queue: CallQueue
    period: float
    running: int = 0
    paused_until: float = -math.inf
    expectation: Expectation = attrs.field(factory=Expectation)
    learnt: dict[str, Bucket] = attrs.field(factory=dict)
    """Limits that headers told of, by kind."""
    total: Cost = NO_COST
    """All that was ever reserved."""
    counted: Cost = NO_COST
    """Of it, what was reserved up to the youngest call that was answered: the provider has counted all of that."""
    admitted: int = 0
    _in_doubt: dict[Call, None] = attrs.field(factory=dict)
    """The calls behind that one, oldest first: the provider may not have counted them yet."""
    _told: Cost = NO_COST
    """What was sure to be counted before the youngest call whose headers were read."""

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.queue

    def ready_at(self, call: Call, now: float) -> float:
        """When a call may start; infinity where another has to end first."""
        ready = max(now, self.paused_until, self.window.ready_at(self.running, now))
        return max([ready, *(bucket.ready_at(call.cost, now) for bucket in self.learnt.values())])

    def start(self, call: Call, now: float) -> None:
        self.running += 1
        self.admitted += 1
        self.total += call.cost
        call.started, call.total, call.counted = now, self.total, self.counted
        self._in_doubt[call] = None
        self.window.start(now)
        for bucket in self.learnt.values():
            bucket.take(call.cost, now)

    def read(self, call: Call, headers: Headers, now: float) -> None:
        """Believe what an answer's headers say of the limits.

        The provider counted when the call came in. Calls come in in another order than they are sent, so all that a
        reading gives are bounds of what is left: the level is moved between them, and no further.
        """
        self._come_in(call)
        if call.total.requests <= self._told.requests:
            return  # A call that came in later has told already.
        self._told = max(self._told, call.counted, key=_requests)
        for reading in read_limits(headers):
            bucket = self.learnt.get(reading.kind)
            rate = reading.rate(bucket.rate if bucket else reading.limit / self.period)
            least, most = self._bounds(call, reading, rate * (now - call.started))
            level = least if bucket is None else max(least, min(most, bucket.fill(now)))
            level = min(reading.limit, level)
            self.learnt[reading.kind] = Bucket(reading.kind, rate, reading.limit, level, now)

    def _come_in(self, call: Call) -> None:
        """The provider has answered a call; those that were sent before it have come in, too."""
        while (first := next(iter(self._in_doubt), None)) and first.total.requests <= call.total.requests:
            del self._in_doubt[first]
            first.settled = self.total
        self.counted = max(self.counted, call.total, key=_requests)

    def _bounds(self, call: Call, reading: Reading, filled: float) -> tuple[float, float]:
        """The least and the most that can be left of a limit, after what has `filled` up since the call was sent.

        At the least, all calls came in behind it that were not counted for sure when it was sent; at the most, only
        those that were sent when it had come in for sure.
        """
        others = (self.total - call.counted - call.cost).of(reading.kind)
        later = (self.total - call.settled).of(reading.kind)
        return min(reading.limit, reading.remaining + filled) - others, reading.remaining + filled - later

    def end(self, call: Call) -> None:
        """The call is over, whatever became of it."""
        self.running -= 1
        self._in_doubt.pop(call, None)

    def answer(self, call: Call, now: float) -> None:
        self.window.grow(self.running, seconds=now - call.started, now=now)

    def refuse(self, call: Call, wish: float | None, now: float) -> None:
        """The provider took no call: wait as long as it wishes, and send fewer, unless a known limit explains it."""
        if wish is not None:
            self.paused_until = max(self.paused_until, now + wish)
        if all(bucket.ready_at(call.cost, now) <= now for bucket in self.learnt.values()):
            self.window.cut(self.running - 1, started=call.started, now=now)


@attrs.define(eq=False, kw_only=True)
class Admissions:
    """All calls that share one provider's limits."""

    buckets: Sequence[Limit]
    """The limits that the user set."""
    window: int
    """Calls at once in a lane of which nothing is known yet."""
    concurrency: int
    """The most calls at once, over all lanes."""
    period: float
    recovery: float
    age_step: float
    max_pause: float
    """The longest wish of a provider that holds everybody up, in seconds."""
    lanes: dict[str, Lane] = attrs.field(factory=dict)
    turns: Turns = attrs.field(factory=Turns)
    """Of owners, over all lanes."""
    running: int = 0
    admitted: int = 0
    refused: int = 0
    wakes_at: float = math.inf
    """When to decide again if nothing happens until then."""

    def lane(self, model: str) -> Lane:
        """The lane of a model, made where there is none."""
        lane = self.lanes.pop(model, None)
        if lane is None:
            window = Window(size=self.window, limit=self.concurrency, recovery=self.recovery)
            lane = Lane(window=window, queue=CallQueue(self.age_step, self.turns), period=self.period)
            self._forget()
        self.lanes[model] = lane
        return lane

    def _forget(self) -> None:
        if len(self.lanes) >= MAX_LANES:
            idle = next((model for model, lane in self.lanes.items() if lane.is_idle), None)
            self.lanes.pop(idle or "", None)

    # --- deciding ------------------------------------------------------------------------

    def decide(self, now: float) -> list[tuple[Lane, Call]]:
        """Admit whom there is room for, in order."""
        admitted: list[tuple[Lane, Call]] = []
        while (found := self._next(now)) is not None:
            self._start(*found, now)
            admitted.append(found)
        return admitted

    def _next(self, now: float) -> tuple[Lane, Call] | None:
        self.wakes_at = math.inf
        firsts = [(*first, lane) for lane in self.lanes.values() if (first := lane.queue.first())]
        for _, call, lane in sorted(firsts, key=_by_place) if len(firsts) > 1 else firsts:
            shared = self._shared_ready_at(call, now)
            ready = max(shared, lane.ready_at(call, now))
            if ready <= now:
                return lane, call
            self.wakes_at = min(self.wakes_at, ready)
            if shared > now:
                break
        return None

    def _shared_ready_at(self, call: Call, now: float) -> float:
        if self.running >= self.concurrency:
            return math.inf
        return max([now, *(bucket.ready_at(call.cost, now) for bucket in self.buckets)])

    def _start(self, lane: Lane, call: Call, now: float) -> None:
        limits: tuple[Limit, ...] = (*self.buckets, *lane.learnt.values())
        lane.queue.admit(call, now, seconds=max((limit.seconds(call.cost) for limit in limits), default=0.0))
        lane.start(call, now)
        self.running += 1
        self.admitted += 1
        self._take(call.cost, now)

    def earliest(self, lane: Lane, call: Call, now: float) -> float:
        """No sooner than this can a call start, even if no other one waited or ran."""
        buckets: tuple[Limit, ...] = (*self.buckets, *lane.learnt.values())
        return max([now, lane.paused_until, *(bucket.soonest(call.cost, now) for bucket in buckets)])

    # --- what became of a call -------------------------------------------------------------

    def answer(self, lane: Lane, call: Call, usage: Usage | None, now: float) -> None:
        """The call was answered; with its usage the reservation becomes what it really took."""
        lane.answer(call, now)
        if usage is not None:
            used = Cost.used(usage)
            self._correct(lane, call, used, now)

    def fail(self, lane: Lane, call: Call, error: ModelError, now: float) -> None:
        """The call has no answer. What the provider did not work on takes no tokens, but counts as a request."""
        if isinstance(error, RateLimited) or error.status in _OVERLOADED:
            self.refused += 1
            lane.refuse(call, self._wish(error), now)
            self._take(NO_COST - attrs.evolve(call.cost, requests=0), now)
        elif isinstance(error, ProviderUnavailable) or error.status in range(400, 500):
            self._correct(lane, call, Cost(), now)

    def withdraw(self, lane: Lane, call: Call, now: float) -> None:
        """The call goes before it was sent, admitted or not; it leaves nothing behind."""
        if call.state == "waiting":
            lane.queue.withdraw(call)
        elif call.state == "running":
            self.end(lane, call)
            limits: tuple[Limit, ...] = (*self.buckets, *lane.learnt.values())
            for bucket in limits:
                bucket.take(NO_COST - call.cost, now)

    def end(self, lane: Lane, call: Call) -> None:
        """The call is over, whatever became of it."""
        call.state = "over"
        lane.end(call)
        self.running -= 1

    def _wish(self, error: ModelError) -> float | None:
        wish: float | None = getattr(error, "retry_after", None)
        return None if wish is None or wish > self.max_pause else wish

    def _correct(self, lane: Lane, call: Call, used: Cost, now: float) -> None:
        more = used - attrs.evolve(call.cost, requests=used.requests)
        self._take(more, now)
        for bucket in lane.learnt.values():
            bucket.take(more, now)

    def _take(self, cost: Cost, now: float) -> None:
        for bucket in self.buckets:
            bucket.take(cost, now)


def _requests(cost: Cost) -> float:
    return cost.requests


def _by_place(first: tuple[float, Call, Lane]) -> float:
    return first[0]
