"""Admission decisions of the governor, without a clock and without waiting.

A call is admitted when the concurrency window of its model has room, no Retry-After is active, and every bucket holds the
cost of the call. The configured buckets are common to all models. The buckets from response headers belong to one model, since
providers count each model separately. A model that is not ready lets other models proceed. A common bucket lets no call
overtake, since the most expensive call would otherwise starve.
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
"""Maximum number of models with kept state. Beyond it the longest unused idle model is forgotten."""
_OVERLOADED = (503, 529)
_WEIGHT = 0.1
"""Weight of the newest answer in the predicted usage."""
_FIRST_OUTPUT = 256.0
"""Predicted answer tokens before the first answer."""
_FIRST_RATIO = 0.25
"""Predicted tokens per request byte before the first answer."""


@attrs.define(eq=False)
class Expectation:
    """Predictor of the tokens of a call, learnt from answered calls."""

    ratio: float = _FIRST_RATIO
    """Input tokens per request byte."""
    output: float = _FIRST_OUTPUT
    """Predicted output tokens."""
    _weight: float = 1.0

    def cost(self, size: int, max_tokens: int | None) -> Cost:
        """Return the reservation for a request of `size` bytes."""
        return Cost(size * self.ratio, self.output if max_tokens is None else min(self.output, max_tokens))

    def learn(self, size: int, usage: Usage) -> None:
        """Update the prediction with the usage of an answered request of `size` bytes."""
        self.output += (usage.output_tokens - self.output) * self._weight
        if size:
            self.ratio += (usage.input_tokens / size - self.ratio) * self._weight
        self._weight = max(_WEIGHT, self._weight / 2)


@attrs.define(eq=False, kw_only=True)
class Lane:
    """Queue, window and detected limits of one model."""

    window: Window
    queue: CallQueue
    period: float
    running: int = 0
    paused_until: float = -math.inf
    expectation: Expectation = attrs.field(factory=Expectation)
    learnt: dict[str, Bucket] = attrs.field(factory=dict)
    """Limits from response headers, by kind."""
    total: Cost = NO_COST
    """Sum of all reservations."""
    counted: Cost = NO_COST
    """Sum of the reservations up to the newest answered call. The provider has counted all of these."""
    admitted: int = 0
    _in_doubt: dict[Call, None] = attrs.field(factory=dict)
    """Calls after that one, oldest first. The provider may not have counted them yet."""
    _told: Cost = NO_COST
    """Sum that was certainly counted before the newest call whose headers were read."""

    @property
    def is_idle(self) -> bool:
        """True if no call of the model runs or waits."""
        return not self.running and not self.queue

    def ready_at(self, call: Call, now: float) -> float:
        """Return the time at which a call may start; infinity if another call must end first."""
        ready = max(now, self.paused_until, self.window.ready_at(self.running, now))
        return max([ready, *(bucket.ready_at(call.cost, now) for bucket in self.learnt.values())])

    def start(self, call: Call, now: float) -> None:
        """Count an admitted call and take its cost from the detected limits."""
        self.running += 1
        self.admitted += 1
        self.total += call.cost
        call.started, call.total, call.counted = now, self.total, self.counted
        self._in_doubt[call] = None
        self.window.start(now)
        for bucket in self.learnt.values():
            bucket.take(call.cost, now)

    def read(self, call: Call, headers: Headers, now: float) -> None:
        """Update the detected limits from response headers.

        The provider counts a call when it arrives, and calls can arrive in another order than they were sent. So a reading
        only gives a lower and an upper bound of the remaining units. The level is moved into this range and no further.
        """
        self._note_arrival(call)
        if call.total.requests <= self._told.requests:
            return  # A later call has reported already.
        self._told = max(self._told, call.counted, key=_requests)
        for reading in read_limits(headers):
            bucket = self.learnt.get(reading.kind)
            rate = reading.rate(bucket.rate if bucket else reading.limit / self.period)
            least, most = self._bounds(call, reading, rate * (now - call.started))
            level = least if bucket is None else max(least, min(most, bucket.fill(now)))
            level = min(reading.limit, level)
            self.learnt[reading.kind] = Bucket(reading.kind, rate, reading.limit, level, now)

    def _note_arrival(self, call: Call) -> None:
        """Note that the provider has received a call and all calls that were sent before it."""
        while (first := next(iter(self._in_doubt), None)) and first.total.requests <= call.total.requests:
            del self._in_doubt[first]
            first.settled = self.total
        self.counted = max(self.counted, call.total, key=_requests)

    def _bounds(self, call: Call, reading: Reading, filled: float) -> tuple[float, float]:
        """Return the minimum and maximum remaining units of a limit. `filled` is the refill since the call was sent.

        For the minimum, all calls arrived after this one that were not certainly counted when it was sent. For the maximum,
        only the calls did that were sent after its certain arrival.
        """
        others = (self.total - call.counted - call.cost).of(reading.kind)
        later = (self.total - call.settled).of(reading.kind)
        return min(reading.limit, reading.remaining + filled) - others, reading.remaining + filled - later

    def end(self, call: Call) -> None:
        """Remove a running call, with any outcome."""
        self.running -= 1
        self._in_doubt.pop(call, None)

    def answer(self, call: Call, now: float) -> None:
        """Grow the concurrency window after an answered call."""
        self.window.grow(self.running, seconds=now - call.started, now=now)

    def refuse(self, call: Call, wish: float | None, now: float) -> None:
        """Apply the Retry-After of a refusal. Shrink the concurrency window unless a known limit explains the refusal."""
        if wish is not None:
            self.paused_until = max(self.paused_until, now + wish)
        if all(bucket.ready_at(call.cost, now) <= now for bucket in self.learnt.values()):
            self.window.cut(self.running - 1, started=call.started, now=now)


@attrs.define(eq=False, kw_only=True)
class Admissions:
    """All calls that share the limits of one provider."""

    buckets: Sequence[Limit]
    """The configured limits."""
    window: int
    """Initial number of concurrent calls of a new model."""
    concurrency: int
    """Maximum number of concurrent calls over all models."""
    period: float
    """Length of a "minute" in seconds."""
    recovery: float
    """Seconds until the window is back at the refused size."""
    age_step: float
    """Seconds of waiting that are worth one priority level."""
    max_pause: float
    """Maximum Retry-After in seconds that pauses all calls of a model."""
    lanes: dict[str, Lane] = attrs.field(factory=dict)
    """State by model, least recently used first."""
    turns: Turns = attrs.field(factory=Turns)
    """Turns of the owners over all models."""
    running: int = 0
    admitted: int = 0
    refused: int = 0
    wakes_at: float = math.inf
    """Time of the next decision if no event comes earlier."""

    def lane(self, model: str) -> Lane:
        """Return the state of a model; create it if needed."""
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
        """Admit all calls that may start now, in order, and return them."""
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
        """Return the earliest possible start of a call, assuming that no other call waits or runs."""
        buckets: tuple[Limit, ...] = (*self.buckets, *lane.learnt.values())
        return max([now, lane.paused_until, *(bucket.soonest(call.cost, now) for bucket in buckets)])

    # --- outcome of a call -------------------------------------------------------------

    def answer(self, lane: Lane, call: Call, usage: Usage | None, now: float) -> None:
        """Count an answered call. If its usage is known, replace the reservation by the usage."""
        lane.answer(call, now)
        if usage is not None:
            used = Cost.used(usage)
            self._correct(lane, call, used, now)

    def fail(self, lane: Lane, call: Call, error: ModelError, now: float) -> None:
        """Count a failed call. A call that the provider did not process counts as a request without tokens."""
        if isinstance(error, RateLimited) or error.status in _OVERLOADED:
            self.refused += 1
            lane.refuse(call, self._wish(error), now)
            self._take(NO_COST - attrs.evolve(call.cost, requests=0), now)
        elif isinstance(error, ProviderUnavailable) or error.status in range(400, 500):
            self._correct(lane, call, Cost(), now)

    def withdraw(self, lane: Lane, call: Call, now: float) -> None:
        """Remove a call that was not sent, and return its reservation."""
        if call.state == "waiting":
            lane.queue.withdraw(call)
        elif call.state == "running":
            self.end(lane, call)
            limits: tuple[Limit, ...] = (*self.buckets, *lane.learnt.values())
            for bucket in limits:
                bucket.take(NO_COST - call.cost, now)

    def end(self, lane: Lane, call: Call) -> None:
        """Remove a running call, with any outcome."""
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
