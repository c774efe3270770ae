"""Admission decisions of the rate limiter, without a clock and without waiting.

A call is admitted when the concurrency window of its model has room, no Retry-After is active, and every token bucket contains
the cost of the call. The configured buckets are common to all models. The buckets from response headers belong to one model, since
providers count each model separately. A model that is not ready lets other models proceed. A common bucket lets no call
overtake, since the most expensive call would otherwise starve.
"""

import math
from collections.abc import Sequence

import attrs

from actgent.errors import ModelError, ProviderUnavailable, RateLimited
from actgent.messages import Usage
from actgent.support.fair_queue import Turns

from .call_queue import Call, CallQueue
from .shared_rate_limits import Limit
from .token_buckets import NO_COST, Bucket, Cost, Headers, Reading, read_limits

BETA = 0.7
MIN_SIZE = 0.01
_USED = 0.5
"""Fraction of the window that must be in use for it to grow."""
_DURATION_WEIGHT = 0.2
"""Weight of the newest call in the average duration."""


@attrs.define(eq=False, kw_only=True)
class Window:
    """Concurrency window of one model: the number of calls that may run concurrently. A size below 1 spaces calls out in time."""

    size: float
    """Current size: maximum number of concurrent calls."""
    limit: float
    """Upper bound of the size in concurrent calls."""
    recovery: float
    """Seconds after a refusal in which the window grows back to the refused size."""
    duration: float = 0.0
    """Average duration of a call in seconds."""
    _top: float = math.inf
    """Number of concurrent calls at the last refusal."""
    _seconds_in_use: float = 0.0
    """Seconds since the last refusal during which the window was in use."""
    _seen: float = -math.inf
    _started: float = -math.inf
    _cut: float = -math.inf

    def ready_at(self, running: int, now: float) -> float:
        """Return the earliest start time of another call while `running` calls run; infinity if a running call must end first."""
        if running >= max(1, math.floor(self.size)):
            return math.inf
        return now if self.size >= 1 else max(now, self._started + self.duration / self.size)

    def start(self, now: float) -> None:
        """Record that a call starts now. If the window is smaller than one call, the next call must wait for some time."""
        self._started = now

    def grow(self, running: int, *, seconds: float, now: float) -> None:
        """Grow the window after a call was answered in `seconds` while `running` calls ran.

        A window that is not fully used keeps its size.
        """
        self.duration += (seconds - self.duration) * (_DURATION_WEIGHT if self.duration else 1.0)
        passed, self._seen = min(now - self._seen, self.recovery), now
        if running < _USED * self.size:
            return
        if self._top == math.inf:
            self.size = min(self.limit, self.size + 1)
        else:
            self._seconds_in_use += passed
            bend = (self._seconds_in_use - self.recovery) / self.recovery
            self.size = min(self.limit, max(self.size, self._top * (1 + (1 - BETA) * bend**3)))

    def shrink(self, others: int, *, started: float, now: float) -> None:
        """Shrink the window after the provider refused a call.

        `started` is the time at which the refused call was sent. `others` is the number of other running calls.
        """
        if others < 1 and started < self._cut:
            return  # The call was sent together with a rejected call, for which the window was already reduced.
        top = float(others) if others >= 1 else min(1.0, self.size)
        size = max(MIN_SIZE, BETA * top)
        if size < self.size:
            self.size, self._top = size, max(MIN_SIZE, top)
            self._seconds_in_use, self._seen, self._cut = 0.0, now, now


MAX_MODELS = 100
"""Maximum number of models with stored state. Above it, the idle model that was unused longest is removed."""
_OVERLOADED = (503, 529)
_WEIGHT = 0.1
"""Weight of the newest answer in the moving averages of the predicted usage."""
_INITIAL_OUTPUT_TOKENS = 256.0
"""Predicted answer tokens before the first answer."""
_INITIAL_TOKENS_PER_BYTE = 0.25
"""Predicted tokens per request byte before the first answer."""


@attrs.define(eq=False)
class TokenPredictor:
    """Predictor of the tokens of a call, from moving averages over answered calls."""

    ratio: float = _INITIAL_TOKENS_PER_BYTE
    """Predicted input tokens per byte of the request."""
    output: float = _INITIAL_OUTPUT_TOKENS
    """Predicted output tokens of a call."""
    _weight: float = 1.0

    def cost(self, size: int, max_tokens: int | None) -> Cost:
        """Predict the tokens of a request of `size` bytes, which are reserved until the real usage is known.

        `max_tokens` is the maximum of the answer; None if it has none.
        """
        return Cost(size * self.ratio, self.output if max_tokens is None else min(self.output, max_tokens))

    def learn(self, size: int, usage: Usage) -> None:
        """Update the prediction with the usage of an answered request of `size` bytes."""
        self.output += (usage.output_tokens - self.output) * self._weight
        if size:
            self.ratio += (usage.input_tokens / size - self.ratio) * self._weight
        self._weight = max(_WEIGHT, self._weight / 2)


@attrs.define(eq=False, kw_only=True)
class ModelState:
    """Waiting calls, concurrency window and detected limits of one model."""

    window: Window
    queue: CallQueue
    period: float
    running: int = 0
    paused_until: float = -math.inf
    predictor: TokenPredictor = attrs.field(factory=TokenPredictor)
    detected: dict[str, Bucket] = attrs.field(factory=dict)
    """Rate limits detected from response headers, by kind of limit."""
    total: Cost = NO_COST
    """Sum of the reservations (requests and tokens) of all calls admitted for the model so far."""
    counted: Cost = NO_COST
    """Part of `total` that the provider has certainly counted: the reservations of all calls up to the newest answered call."""
    admitted: int = 0
    _uncounted: dict[Call, None] = attrs.field(factory=dict)
    """Calls whose requests and tokens the provider may not have counted yet, oldest first."""
    _reported: Cost = NO_COST
    """Value of `counted` at the time at which the provider wrote the newest response headers."""

    @property
    def is_idle(self) -> bool:
        """True if no call of the model is running or waits for admission."""
        return not self.running and not self.queue

    def ready_at(self, call: Call, now: float) -> float:
        """Return the earliest time at which a call may start; infinity if another call must end first.

        Other waiting calls are ignored.
        """
        ready = max(now, self.paused_until, self.window.ready_at(self.running, now))
        return max([ready, *(bucket.ready_at(call.cost, now) for bucket in self.detected.values())])

    def start(self, call: Call, now: float) -> None:
        """Count an admitted call as running, and subtract its reservation from the detected limits."""
        self.running += 1
        self.admitted += 1
        self.total += call.cost
        call.started, call.reserved_total, call.counted_total = now, self.total, self.counted
        self._uncounted[call] = None
        self.window.start(now)
        for bucket in self.detected.values():
            bucket.spend(call.cost, now)

    def read(self, call: Call, headers: Headers, now: float) -> None:
        """Update the detected limits from the headers of the response to `call`.

        The provider counts a call when it arrives, and calls can arrive in another order than they were sent. So a reading
        only gives a lower and an upper bound of the remaining units. The level is moved into this range and no further.
        """
        # The provider has counted this call, and so all calls that were sent before it.
        while (
            first := next(iter(self._uncounted), None)
        ) and first.reserved_total.requests <= call.reserved_total.requests:
            del self._uncounted[first]
            first.settled = self.total
        self.counted = max(self.counted, call.reserved_total, key=_requests)
        if call.reserved_total.requests <= self._reported.requests:
            return  # A later call has reported already.
        self._reported = max(self._reported, call.counted_total, key=_requests)
        for reading in read_limits(headers):
            bucket = self.detected.get(reading.kind)
            rate = reading.rate(bucket.rate if bucket else reading.limit / self.period)
            least, most = self._bounds(call, reading, rate * (now - call.started))
            level = least if bucket is None else max(least, min(most, bucket.fill(now)))
            level = min(reading.limit, level)
            self.detected[reading.kind] = Bucket(reading.kind, rate, reading.limit, level, now)

    def _bounds(self, call: Call, reading: Reading, filled: float) -> tuple[float, float]:
        """Return the minimum and maximum units that a limit may have left, from the headers of the response to `call`.

        `filled` is the number of units refilled since the call was sent. The minimum assumes that the headers count none
        of the calls whose arrival was uncertain when `call` was sent. The maximum assumes that the headers count all calls
        sent before `call` certainly arrived.
        """
        others = (self.total - call.counted_total - call.cost).of(reading.kind)
        later = (self.total - call.settled).of(reading.kind)
        return min(reading.limit, reading.remaining + filled) - others, reading.remaining + filled - later

    def end(self, call: Call) -> None:
        """Remove a call from the running calls, after success or failure."""
        self.running -= 1
        self._uncounted.pop(call, None)

    def answer(self, call: Call, now: float) -> None:
        """Record that the provider answered a call: the concurrency window may grow."""
        self.window.grow(self.running, seconds=now - call.started, now=now)

    def refuse(self, call: Call, retry_after: float | None, now: float) -> None:
        """Record that the provider refused a call. Pause the model for `retry_after` seconds; None means no pause.

        Shrink the concurrency window unless a detected limit explains the refusal.
        """
        if retry_after is not None:
            self.paused_until = max(self.paused_until, now + retry_after)
        if all(bucket.ready_at(call.cost, now) <= now for bucket in self.detected.values()):
            self.window.shrink(self.running - 1, started=call.started, now=now)


@attrs.define(eq=False, kw_only=True)
class AdmissionController:
    """Decides when calls that share the limits of one provider may start."""

    buckets: Sequence[Limit]
    """Configured limits of the rate limiter."""
    window: int
    """Initial number of concurrent calls of a new model."""
    concurrency: int
    """Maximum number of concurrent calls over all models."""
    period: float
    """Length of a "minute" of the limits in seconds; other than 60 for tests."""
    recovery: float
    """Seconds after a refusal in which a window grows back to the refused size."""
    age_step: float
    """Seconds of waiting that raise a call by one priority level."""
    max_pause: float
    """Maximum Retry-After in seconds that pauses all calls of a model; a longer one only fails its call."""
    models: dict[str, ModelState] = attrs.field(factory=dict)
    """Admission state of each model by its name, least recently used first."""
    turns: Turns = attrs.field(factory=Turns)
    """Times of the owners' last turns, common to all models, for round robin between owners."""
    running: int = 0
    admitted: int = 0
    refused: int = 0
    wakes_at: float = math.inf
    """Time at which the next decision is due if no call arrives or ends before."""

    def state_of(self, model: str) -> ModelState:
        """Return the admission state of a model, and create it if needed.

        If there are more than `MAX_MODELS` models, the state of an idle one is removed.
        """
        state = self.models.pop(model, None)
        if state is None:
            window = Window(size=self.window, limit=self.concurrency, recovery=self.recovery)
            state = ModelState(window=window, queue=CallQueue(self.age_step, self.turns), period=self.period)
            self._forget()
        self.models[model] = state
        return state

    def _forget(self) -> None:
        if len(self.models) >= MAX_MODELS:
            idle = next((model for model, state in self.models.items() if state.is_idle), None)
            self.models.pop(idle or "", None)

    # --- deciding ------------------------------------------------------------------------

    def decide(self, now: float) -> list[tuple[ModelState, Call]]:
        """Admit all calls that may start now. Return them with the states of their models, in order."""
        admitted: list[tuple[ModelState, Call]] = []
        while (found := self._next_call(now)) is not None:
            self._start(*found, now)
            admitted.append(found)
        return admitted

    def _next_call(self, now: float) -> tuple[ModelState, Call] | None:
        self.wakes_at = math.inf
        firsts = [(*first, state) for state in self.models.values() if (first := state.queue.first())]
        for _, call, state in sorted(firsts, key=_by_sort_key) if len(firsts) > 1 else firsts:
            shared = self._shared_ready_at(call, now)
            ready = max(shared, state.ready_at(call, now))
            if ready <= now:
                return state, call
            self.wakes_at = min(self.wakes_at, ready)
            if shared > now:
                break
        return None

    def _shared_ready_at(self, call: Call, now: float) -> float:
        if self.running >= self.concurrency:
            return math.inf
        return max([now, *(bucket.ready_at(call.cost, now) for bucket in self.buckets)])

    def _start(self, state: ModelState, call: Call, now: float) -> None:
        limits: tuple[Limit, ...] = (*self.buckets, *state.detected.values())
        state.queue.admit(call, now, seconds=max((limit.seconds(call.cost) for limit in limits), default=0.0))
        state.start(call, now)
        self.running += 1
        self.admitted += 1
        self._spend(call.cost, now)

    def earliest(self, state: ModelState, call: Call, now: float) -> float:
        """Return the earliest possible start time of a call if no other call waited or ran."""
        buckets: tuple[Limit, ...] = (*self.buckets, *state.detected.values())
        return max([now, state.paused_until, *(bucket.earliest_start(call.cost, now) for bucket in buckets)])

    # --- outcome of a call -------------------------------------------------------------

    def answer(self, state: ModelState, call: Call, usage: Usage | None, now: float) -> None:
        """Record an answered call. If `usage` is not None, charge it instead of the reservation."""
        state.answer(call, now)
        if usage is not None:
            used = Cost.used(usage)
            self._correct(state, call, used, now)

    def fail(self, state: ModelState, call: Call, error: ModelError, now: float) -> None:
        """Record the failure of a call. If the provider did not process the call, charge a request without tokens."""
        if isinstance(error, RateLimited) or error.status in _OVERLOADED:
            self.refused += 1
            state.refuse(call, self._retry_after(error), now)
            self._spend(NO_COST - attrs.evolve(call.cost, requests=0), now)
        elif isinstance(error, ProviderUnavailable) or error.status in range(400, 500):
            self._correct(state, call, Cost(), now)

    def withdraw(self, state: ModelState, call: Call, now: float) -> None:
        """Remove a waiting or admitted call that was not sent, and return the units that it has reserved to the limits."""
        if call.state == "waiting":
            state.queue.withdraw(call)
        elif call.state == "running":
            self.end(state, call)
            limits: tuple[Limit, ...] = (*self.buckets, *state.detected.values())
            for bucket in limits:
                bucket.spend(NO_COST - call.cost, now)

    def end(self, state: ModelState, call: Call) -> None:
        """Remove a call from the running calls of its model, after success or failure."""
        call.state = "over"
        state.end(call)
        self.running -= 1

    def _retry_after(self, error: ModelError) -> float | None:
        retry_after: float | None = getattr(error, "retry_after", None)
        return None if retry_after is None or retry_after > self.max_pause else retry_after

    def _correct(self, state: ModelState, call: Call, used: Cost, now: float) -> None:
        more = used - attrs.evolve(call.cost, requests=used.requests)
        self._spend(more, now)
        for bucket in state.detected.values():
            bucket.spend(more, now)

    def _spend(self, cost: Cost, now: float) -> None:
        for bucket in self.buckets:
            bucket.spend(cost, now)


def _requests(cost: Cost) -> float:
    return cost.requests


def _by_sort_key(first: tuple[float, Call, ModelState]) -> float:
    return first[0]
