"""`RateLimiter`: limits the rate and concurrency of calls to one provider, and decides their order.

Clients with the same address and key share a rate limiter automatically. The rate limiter needs no configuration. It raises the
number of concurrent calls until the provider rejects a call. It reads limits from response headers, and applies a Retry-After to
all waiting calls. Known limits can be configured: `RateLimiter(requests_per_minute=500)`.

Each attempt of a call asks for admission again, so a retry pause holds no slot. A waiting call is the suspended task of its
caller, and uses no connection, slot or timer. One of the waiting tasks is the *leader*: it sleeps until the next call can be
admitted, and admits this call. When the leader's own call is admitted or cancelled, another waiting task becomes the leader.
The algorithms are in `concurrency_window.py`, `token_buckets.py`, `call_queue.py` and `admission_decisions.py`.
"""

import hashlib
import itertools
import math
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from weakref import WeakValueDictionary

import trio

from actgent.errors import ConfigurationError, ModelError, RateLimited, UsageError
from actgent.llm.model_interface import ModelRequest
from actgent.llm.rate_limiter_statistics import (
    BucketStatistics,
    LimitLeaser,
    ModelStatistics,
    RateLimiterCounters,
    RateLimiterStatistics,
)
from actgent.messages import NO_USAGE, Usage
from actgent.support.safe_logging import LogVariable, logger_of
from actgent.support.unknown_name_hints import lists_arguments

from .admission_decisions import AdmissionController, ModelState
from .call_queue import AGE_STEP_SECONDS, Call
from .shared_rate_limits import LeasedLimit, Limit
from .token_buckets import Bucket, Headers

MINUTE_SECONDS = 60.0
CONCURRENCY = 1000
"""Default maximum number of concurrent calls of one process."""
_MAX_COUNTED_CALLS = 10_000
"""Maximum number of waiting calls whose cost is summed up for a lease request."""
_RECOVERY = 0.5
"""Fraction of the period `period` in which the concurrency window regains the size at which it was refused."""
_log = logger_of(__name__)


@lists_arguments
class RateLimiter:
    """Rate limiter for model calls: admits calls by priority, alternates between sessions, and adapts to the provider.

    One rate limiter serves one trio run at a time. A later run starts with fresh state.
    """

    def __init__(
        self,
        *,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        concurrency: int = CONCURRENCY,
        first_window: int = 100,
        burst: float = 0.1,
        period: float = MINUTE_SECONDS,
        age_step: float = AGE_STEP_SECONDS,
        max_wait: float = 600.0,
        max_pause: float = 120.0,
        capacity: int = 100_000,
        name: str = "",
    ) -> None:
        """Create a rate limiter. Without arguments, it detects the provider's limits.

        Args:
            requests_per_minute: Request limit of the provider; None detects it.
            tokens_per_minute: Token limit of the provider, requests and answers together; None detects it.
            concurrency: Maximum number of concurrent calls, in a cluster per node.
            first_window: Initial number of concurrent calls. It grows with each answer until a refusal.
            burst: Fraction of a minute's limit that may be spent at once. 1 suits providers that grant a whole minute at
                once. Limits in response headers are obeyed in any case.
            period: Length of a "minute" in seconds.
            age_step: Seconds of waiting that raise a call by one priority level.
            max_wait: Maximum wait of an attempt in seconds, even with a later deadline. Then it fails with `RateLimited`.
            max_pause: Maximum Retry-After in seconds that pauses all calls. A longer one only fails its call.
            capacity: Maximum number of waiting attempts. Further attempts fail with `RateLimited` at once.
            name: Name under which the nodes of a cluster share the limits per minute; empty uses the first model's name.

        Raises:
            ConfigurationError: A number is out of range. The text names the argument.
        """
        _check_positive(
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            period=period,
            max_wait=max_wait,
        )
        _check_counts(concurrency=concurrency, first_window=first_window, capacity=capacity)
        if not (_is_number(burst) and 0 < burst <= 1):
            raise ConfigurationError(
                f"RateLimiter(burst=...) must be a fraction of the limit above 0 and up to 1, not {burst!r:.200}"
            )
        if not all(_is_number(seconds) and seconds >= 0 for seconds in (age_step, max_pause)):
            raise ConfigurationError(
                "RateLimiter(age_step=..., max_pause=...) must be numbers of seconds of at least 0"
            )
        self._limits = {"requests": requests_per_minute, "tokens": tokens_per_minute}
        self._burst, self._period = burst, period
        self._max_wait, self._capacity = max_wait, capacity
        self._new_admissions = partial(
            AdmissionController,
            window=min(first_window, concurrency),
            concurrency=concurrency,
            period=period,
            recovery=_RECOVERY * period,
            age_step=age_step,
            max_pause=max_pause,
        )
        self._name = name
        self._leaser: LimitLeaser | None = None
        self._shares: tuple[LeasedLimit, ...] = ()
        self._run: trio.lowlevel.TrioToken | None = None
        self._admissions: AdmissionController = self._new_admissions(buckets=())
        self._parked: dict[Call, None] = {}
        """Waiting calls, oldest first."""
        self._leader: Call | None = None
        self._alarm = trio.CancelScope()
        self._waited = 0.0
        self._has_warned = False

    @property
    def counts_tokens(self) -> bool:
        """True if tokens are limited, so that callers must pass the request size."""
        return self._limits["tokens"] is not None

    def statistics(self) -> RateLimiterCounters:
        """Return the current counters of this rate limiter, summed over all models."""
        models = self._admissions.models.values()
        return RateLimiterCounters(
            waiting=len(self._parked),
            running=self._admissions.running,
            window=min(
                self._admissions.concurrency,
                sum(state.window.size for state in models) or self._admissions.window,
            ),
            admitted=self._admissions.admitted,
            refused=self._admissions.refused,
            waited=self._waited,
        )

    def describe(self, name: str) -> RateLimiterStatistics:
        """Return the statistics of this rate limiter and its models. `name` is the display name in the result."""
        now = trio.current_time()
        models = sorted(self._admissions.models.items())
        return RateLimiterStatistics(
            name=name,
            total=self.statistics(),
            buckets=_refilled(self._admissions.buckets, now),
            models=tuple(_describe(model, state, now) for model, state in models),
        )

    def waiting_seconds(self, session: str) -> float:
        """Return the seconds that the next call of a session has been waiting; 0 if no call of the session waits."""
        arrivals = [state.queue.since(session) for state in self._admissions.models.values()]
        since = min((arrival for arrival in arrivals if arrival is not None), default=math.inf)
        return max(0.0, trio.current_time() - since)

    # --- admission of an attempt ---------------------------------------------------------------

    @asynccontextmanager
    async def admit(
        self, chat: ModelRequest, *, model: str, size: int = 0, arrived: float | None = None
    ) -> AsyncGenerator["Permit"]:
        """Context manager: wait until an attempt of a call may be sent, then count it as running until the block exits.

        Args:
            chat: The request. Its session and priority set the position, `max_tokens` the reservation, and its deadline the
                maximum wait.
            model: Model name. Each model has a separate queue; only the configured limits are common to all models.
            size: Size of the request in bytes.
            arrived: Time of the first attempt of this call, in seconds of `trio.current_time()`. A retry keeps the age of its
                call.

        Raises:
            RateLimited: The wait reached `max_wait`, would exceed the deadline, or too many attempts are waiting.
        """
        self._begin()
        state = self._admissions.state_of(model)
        now = trio.current_time()
        cost = state.predictor.cost(size, chat.max_tokens)
        call = Call(
            session=chat.session,
            owner=chat.owner,
            priority=chat.priority,
            cost=cost,
            arrived=now if arrived is None else arrived,
        )
        await self._enter(state, call, model, chat)
        permit = Permit(self._admissions, state, call, size)
        try:
            yield permit
        except ModelError as error:
            self._admissions.fail(state, call, error, trio.current_time())
            raise
        finally:
            self._admissions.end(state, call)
            self._admit_next()

    async def _enter(self, state: ModelState, call: Call, model: str, chat: ModelRequest) -> None:
        """Enqueue a call, and wait until it is admitted. A cancelled or failed wait removes the call from the queue.

        Raise `RateLimited` if too many calls wait.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if len(self._parked) >= self._capacity:
            raise _limit_error(
                f"{self._capacity} calls already wait for the provider's rate limit (RateLimiter(capacity=...))",
                model,
            )
        now = trio.current_time()
        state.queue.add(call)
        self._parked[call] = None
        is_admitted = False
        try:
            self._admit_next()
            if call.state == "running":
                await trio.lowlevel.cancel_shielded_checkpoint()
            else:
                self._check_deadline(state, call, model, now, chat.deadline)
                with trio.move_on_at(now + self._max_wait):
                    await self._wait(call)
            is_admitted = call.state == "running"
        finally:
            self._waited += (seconds := trio.current_time() - now)
            if chat.watch is not None and seconds:
                chat.watch.wait(seconds, model)
            self._leave(state, call, is_admitted=is_admitted)
        if not is_admitted:
            raise _limit_error(
                f"the call waited {self._max_wait:g} s for the provider's rate limit (RateLimiter(max_wait=...))",
                model,
            )

    def _check_deadline(self, state: ModelState, call: Call, model: str, now: float, deadline: float) -> None:
        """Raise `RateLimited` at once if the earliest possible start is after the deadline."""
        earliest_start = self._admissions.earliest(state, call, now) - now
        if earliest_start > min(self._max_wait, min(deadline, trio.current_effective_deadline()) - now):
            text = f"the provider's rate limit leaves no room for another {earliest_start:.1f} s"
            raise _limit_error(text, model, retry_after=earliest_start)

    async def _wait(self, call: Call) -> None:
        while call.state == "waiting":
            if self._leader is None:
                self._leader = call
            if self._leader is call:
                with trio.CancelScope(deadline=self._admissions.wakes_at) as self._alarm:
                    await _park(call)
                self._admit_next()
            else:
                await _park(call)

    def _leave(self, state: ModelState, call: Call, *, is_admitted: bool) -> None:
        """Remove a call from the waiting calls, because the call was admitted or its wait has failed.

        If its task is the leader, which sleeps until the next call can be admitted, make another waiting task the leader.
        """
        self._parked.pop(call, None)
        if self._leader is call:
            self._leader = None
        if not is_admitted:
            self._admissions.withdraw(state, call, trio.current_time())
            self._admit_next()
        if self._leader is None and self._parked:
            _wake(next(reversed(self._parked)))  # the newest call, which will probably wait longest

    def _admit_next(self) -> None:
        for _, call in self._admissions.decide(trio.current_time()):
            self._parked.pop(call, None)
            _wake(call)
        if self._leader is not None:
            self._alarm.deadline = self._admissions.wakes_at

    def _begin(self) -> None:
        """Reset the state if a new trio run uses this rate limiter, because each run has a separate clock.

        Raise `UsageError` if calls of another run are active.
        """
        run = trio.lowlevel.current_trio_token()
        if self._run is run:
            return
        if self._parked or self._admissions.running:
            raise UsageError(
                "a RateLimiter serves one trio run at a time: create a separate RateLimiter for the other run"
            )
        self._run, now = run, trio.current_time()
        buckets = [
            Bucket(kind, rate, capacity, capacity, now) for kind, rate, capacity in self._configured_limits()
        ]
        self._admissions = self._new_admissions(buckets=self._shares or buckets)
        self._waited = 0.0

    def _configured_limits(self) -> Iterator[tuple[str, float, float]]:
        """Yield the configured limits as (kind of limit, units per second, maximum units at once)."""
        for kind, limit in self._limits.items():
            if limit is not None:
                yield kind, limit / self._period, max(1.0, limit * self._burst)

    # --- several processes -------------------------------------------------------------------

    def share(self, leaser: LimitLeaser, name: str) -> None:
        """Share the limits per minute with other processes until the leaser closes. All processes use the same `name`.

        Detected limits and `concurrency` stay local: the slots of running calls cannot be revoked from a hanging process.
        """
        self._warn_of_concurrency(name)
        if self._leaser is not None or not any(self._configured_limits()):
            return
        self._begin()
        self._leaser = leaser
        self._shares = tuple([self._new_leased_limit(*each) for each in self._configured_limits()])
        for share in self._shares:
            leaser.add(share, self._name or name)
        self._admissions.buckets = self._shares
        self._admit_next()

    def _warn_of_concurrency(self, name: str) -> None:
        """Log once that `concurrency=` applies per process, unlike the limits per minute."""
        if self._admissions.concurrency != CONCURRENCY and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "RateLimiter(concurrency=%d) of %s applies to each node of the cluster; requests_per_minute= and tokens_per_minute= "
                "apply to all nodes together",
                self._admissions.concurrency,
                LogVariable(self._name or name),
            )

    def _new_leased_limit(self, kind: str, rate: float, capacity: float) -> LeasedLimit:
        return LeasedLimit(
            kind=kind,
            rate=rate,
            capacity=capacity,
            waiting=self._waiting_units,
            on_leased=self._admit_next,
            on_closed=self._stop_sharing,
        )

    def _waiting_units(self, kind: str) -> float:
        """Return how many units of a limit (`kind`, such as `tokens`) all waiting calls together need.

        At most `_MAX_COUNTED_CALLS` calls are counted.
        """
        return math.fsum(call.cost.of(kind) for call in itertools.islice(self._parked, _MAX_COUNTED_CALLS))

    def _stop_sharing(self) -> None:
        """Replace the shared limits by local buckets after the leaser closed.

        The buckets start empty, because other processes may have spent the limits.
        """
        if self._leaser is None:
            return
        leaser, self._leaser = self._leaser, None
        for share in self._shares:
            leaser.remove(share)
        self._shares, now = (), trio.current_time()
        self._admissions.buckets = [
            Bucket(kind, rate, capacity, 0.0, now) for kind, rate, capacity in self._configured_limits()
        ]
        self._admit_next()

    def __repr__(self) -> str:
        limits = [f"{kind}_per_minute={limit:g}" for kind, limit in self._limits.items() if limit is not None]
        return f"RateLimiter({', '.join(limits)})"


class Permit:
    """Permission to send one attempt of a call, valid inside the `admit` block."""

    def __init__(self, admissions: AdmissionController, state: ModelState, call: Call, size: int) -> None:
        self._admissions = admissions
        self._state = state
        self._call = call
        self._size = size

    def read(self, headers: Headers) -> None:
        """Update the limits of the model from the headers of the response to this attempt."""
        self._state.read(self._call, headers, trio.current_time())

    def report_usage(self, usage: Usage) -> None:
        """Charge the real usage of the answered attempt instead of its reservation. An empty usage keeps the reservation."""
        known = None if usage == NO_USAGE else usage
        self._admissions.answer(self._state, self._call, known, trio.current_time())
        if known is not None:
            self._state.predictor.learn(self._size, known)


# --- the rate limiter of a key --------------------------------------------------------------------

_shared: trio.lowlevel.RunVar[WeakValueDictionary[str, RateLimiter]] = trio.lowlevel.RunVar("rate_limiters")


def rate_limit_key(address: str, key: str) -> str:
    """Return the key of the shared rate limiter: a hash of an API address and an API key, which reveals neither."""
    return hashlib.sha256(f"{address}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()


def shared_rate_limiter(key: str) -> RateLimiter:
    """Return the rate limiter for `rate_limit_key`. All clients with this key in one trio run share the rate limiter.

    It exists as long as one of these clients.
    """
    try:
        rate_limiters = _shared.get()
    except LookupError:
        rate_limiters = WeakValueDictionary()
        _shared.set(rate_limiters)
    rate_limiter = rate_limiters.get(key)
    if rate_limiter is None:
        rate_limiter = rate_limiters[key] = RateLimiter()
    return rate_limiter


# --- helpers -----------------------------------------------------------------------------


@trio.lowlevel.enable_ki_protection  # an interrupt in between would wake a task that does not wait
async def _park(call: Call) -> None:
    """Suspend the current task, which waits for the admission of `call`, until `_wake(call)` or a cancellation."""

    def abort(_: object) -> trio.lowlevel.Abort:
        call.task = None
        return trio.lowlevel.Abort.SUCCEEDED

    call.task = trio.lowlevel.current_task()
    await trio.lowlevel.wait_task_rescheduled(abort)


@trio.lowlevel.enable_ki_protection
def _wake(call: Call) -> None:
    """Wake the task that waits for the admission of a call; do nothing if the task is already awake."""
    if isinstance(call.task, trio.lowlevel.Task):
        trio.lowlevel.reschedule(call.task)
        call.task = None


def _describe(model: str, state: ModelState, now: float) -> ModelStatistics:
    return ModelStatistics(
        model=model,
        window=state.window.size,
        running=state.running,
        waiting=state.queue.by_priority(),
        admitted=state.admitted,
        paused=max(0.0, state.paused_until - now),
        buckets=_refilled(state.detected.values(), now),
    )


def _refilled(buckets: Iterable[Limit], now: float) -> tuple[BucketStatistics, ...]:
    return tuple(
        BucketStatistics(kind=each.kind, capacity=each.capacity, level=each.fill(now), rate=each.rate)
        for each in buckets
    )


def _limit_error(text: str, model: str, *, retry_after: float | None = None) -> RateLimited:
    error = RateLimited(text, retry_after=retry_after, model=model)
    error.retryable = False  # another attempt would only wait again
    return error


def _check_positive(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and not (_is_number(value) and 0 < value < math.inf):
            raise ConfigurationError(f"RateLimiter({name}=...) must be a number above 0, not {value!r:.200}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_counts(**numbers: int) -> None:
    for name, value in numbers.items():
        if type(value) is not int or value < 1:
            raise ConfigurationError(
                f"RateLimiter({name}=...) must be a whole number of at least 1, not {value!r}"
            )
