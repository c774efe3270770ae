"""One door to one provider: how many calls go through it, and in which order.

Clients with the same address and key share a governor by themselves. It asks nothing of the user: it takes
more and more calls until the provider refuses one, reads the limits from the headers of answers, and obeys
Retry-After for everybody who waits. What is known of the limits can be said: `Governor(requests_per_minute=500)`.

Each attempt of a call asks anew, so a pause before a repetition holds nothing. A call that waits is its caller's own
task, parked: it has no connection, no slot and no timer. One of those who wait, the *leader*, sleeps until the next
one can be admitted; it admits whoever is next then, and hands that on when it is admitted itself or cancelled.
Source of the algorithms: `window.py`, `rates.py`, `waiting.py`.
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
from actgent.llm.base import Chat
from actgent.llm.doors import BucketStatistics, DoorStatistics, GovernorStatistics, LaneStatistics, Lender
from actgent.messages import NO_USAGE, Usage
from actgent.support.logs import Each, logger_of

from .admission import Admissions, Lane
from .queue import AGE_STEP, Call
from .rate_limits import Bucket, Headers
from .shares import Limit, Share

MINUTE = 60.0
CONCURRENCY = 1000
"""Calls at once of one process, where nobody says."""
_COUNTED = 10_000
"""Calls that wait, at most, of which the cost is counted to ask for a share."""
_RECOVERY = 0.5
"""Of the period: how long the window takes back to the size that was refused."""
_log = logger_of(__name__)


class Governor:
    """Admits model calls as fast as a provider takes them, in order of priority and with a turn for every session.

    One governor serves one trio run at a time. In the next run it begins anew.
    """

    def __init__(
        self,
        *,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        concurrency: int = CONCURRENCY,
        first_window: int = 100,
        burst: float = 0.1,
        period: float = MINUTE,
        age_step: float = AGE_STEP,
        max_wait: float = 600.0,
        max_pause: float = 120.0,
        capacity: int = 100_000,
        name: str = "",
    ) -> None:
        """See `docs/control.md`.

        Args:
            requests_per_minute: What the provider grants; None finds it out.
            tokens_per_minute: The same for tokens, of requests and answers together.
            concurrency: The most calls at once; in a cluster those of each node.
            first_window: Calls at once as long as nothing is known; it grows with each answer until a refusal.
            burst: The share of a minute's allowance that may be spent at once. 1 suits a provider that grants a
                minute's worth in one go; what its headers say is obeyed in any case.
            period: The length of a "minute", in seconds.
            age_step: Seconds of waiting that are worth a level of priority.
            max_wait: Seconds that an attempt waits at most, whatever its own deadline; then it is `RateLimited`.
            max_pause: The longest Retry-After, in seconds, that holds everybody up. A longer one fails its call alone.
            capacity: The most attempts that wait; the next one is `RateLimited` at once.
            name: Under which the nodes of a cluster share what is granted a minute; empty takes the door of the first model.

        Raises:
            ConfigurationError: a number makes no sense; the text names it.
        """
        _check_positive(
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            period=period,
            max_wait=max_wait,
        )
        _check_counts(concurrency=concurrency, first_window=first_window, capacity=capacity)
        if not 0 < burst <= 1:
            raise ConfigurationError(f"Governor(burst=...) is a share above 0 and up to 1, not {burst!r}")
        if not (age_step >= 0 and max_pause >= 0):
            raise ConfigurationError("Governor(age_step=..., max_pause=...) are seconds, at least 0")
        self._limits = {"requests": requests_per_minute, "tokens": tokens_per_minute}
        self._burst, self._period = burst, period
        self._max_wait, self._capacity = max_wait, capacity
        self._new_admissions = partial(
            Admissions,
            window=min(first_window, concurrency),
            concurrency=concurrency,
            period=period,
            recovery=_RECOVERY * period,
            age_step=age_step,
            max_pause=max_pause,
        )
        self._name = name
        self._lender: Lender | None = None
        self._shares: tuple[Share, ...] = ()
        self._run: trio.lowlevel.TrioToken | None = None
        self._admissions: Admissions = self._new_admissions(buckets=())
        self._parked: dict[Call, None] = {}
        """The calls that wait, oldest first."""
        self._leader: Call | None = None
        self._alarm = trio.CancelScope()
        self._waited = 0.0
        self._has_warned = False

    @property
    def counts_tokens(self) -> bool:
        """True if the size of a call matters from the beginning."""
        return self._limits["tokens"] is not None

    def statistics(self) -> GovernorStatistics:
        lanes = self._admissions.lanes.values()
        return GovernorStatistics(
            waiting=len(self._parked),
            running=self._admissions.running,
            window=min(
                self._admissions.concurrency,
                sum(lane.window.size for lane in lanes) or self._admissions.window,
            ),
            admitted=self._admissions.admitted,
            refused=self._admissions.refused,
            waited=self._waited,
        )

    def describe(self, door: str) -> DoorStatistics:
        """All of it, model by model, under a name for people."""
        now = trio.current_time()
        models = sorted(self._admissions.lanes.items())
        return DoorStatistics(
            door=door,
            total=self.statistics(),
            buckets=_filled(self._admissions.buckets, now),
            models=tuple(_describe(model, lane, now) for model, lane in models),
        )

    def waited(self, session: str) -> float:
        """Seconds for which the next call of a session has been waiting by now; 0 if none waits."""
        arrivals = [lane.queue.since(session) for lane in self._admissions.lanes.values()]
        since = min((arrival for arrival in arrivals if arrival is not None), default=math.inf)
        return max(0.0, trio.current_time() - since)

    # --- the way of an attempt ---------------------------------------------------------------

    @asynccontextmanager
    async def admit(
        self, chat: Chat, *, model: str, size: int = 0, arrived: float | None = None
    ) -> AsyncGenerator["Permit"]:
        """Wait until an attempt may go to the provider; it counts as running until the block is left.

        Args:
            chat: Its session and priority decide its place, its `max_tokens` bounds what is reserved for it, its deadline how
                long it may wait.
            model: Calls to different models wait apart, and share only what the user set.
            size: Bytes of the request.
            arrived: When the call first asked, where this is not its first attempt; it keeps its age.

        Raises:
            RateLimited: it waited for `max_wait`, it would certainly have to wait longer than it can, or too many wait.
        """
        self._begin()
        lane = self._admissions.lane(model)
        now = trio.current_time()
        cost = lane.expectation.cost(size, chat.max_tokens)
        call = Call(
            session=chat.session,
            owner=chat.owner,
            priority=chat.priority,
            cost=cost,
            arrived=now if arrived is None else arrived,
        )
        await self._enter(lane, call, model, chat)
        permit = Permit(self._admissions, lane, call, size)
        try:
            yield permit
        except ModelError as error:
            self._admissions.fail(lane, call, error, trio.current_time())
            raise
        finally:
            self._admissions.end(lane, call)
            self._admit_next()

    async def _enter(self, lane: Lane, call: Call, model: str, chat: Chat) -> None:
        """Wait for admission. Whatever ends the waiting otherwise leaves nothing behind."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if len(self._parked) >= self._capacity:
            raise _limited(f"{self._capacity} calls wait for the provider's rate limit already", model)
        now = trio.current_time()
        lane.queue.add(call)
        self._parked[call] = None
        is_admitted = False
        try:
            self._admit_next()
            if call.state == "running":
                await trio.lowlevel.cancel_shielded_checkpoint()
            else:
                self._check_hope(lane, call, model, now, chat.deadline)
                with trio.move_on_at(now + self._max_wait):
                    await self._wait(call)
            is_admitted = call.state == "running"
        finally:
            self._waited += (seconds := trio.current_time() - now)
            if chat.watch is not None and seconds:
                chat.watch.wait(seconds, model)
            self._leave(lane, call, is_admitted=is_admitted)
        if not is_admitted:
            raise _limited(f"waited {self._max_wait:g} s for the provider's rate limit", model)

    def _check_hope(self, lane: Lane, call: Call, model: str, now: float, deadline: float) -> None:
        """Fail at once where waiting cannot help."""
        soonest = self._admissions.earliest(lane, call, now) - now
        if soonest > min(self._max_wait, min(deadline, trio.current_effective_deadline()) - now):
            text = f"the provider's rate limit leaves no room for another {soonest:.1f} s"
            raise _limited(text, model, retry_after=soonest)

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

    def _leave(self, lane: Lane, call: Call, *, is_admitted: bool) -> None:
        """The call waits no more; somebody else keeps watch."""
        self._parked.pop(call, None)
        if self._leader is call:
            self._leader = None
        if not is_admitted:
            self._admissions.withdraw(lane, call, trio.current_time())
            self._admit_next()
        if self._leader is None and self._parked:
            _wake(next(reversed(self._parked)))  # the last one: it will be there for the longest time

    def _admit_next(self) -> None:
        for _, call in self._admissions.decide(trio.current_time()):
            self._parked.pop(call, None)
            _wake(call)
        if self._leader is not None:
            self._alarm.deadline = self._admissions.wakes_at

    def _begin(self) -> None:
        """Be ready for this trio run, whose clock has nothing to do with another's."""
        run = trio.lowlevel.current_trio_token()
        if self._run is run:
            return
        if self._parked or self._admissions.running:
            raise UsageError("a Governor serves one trio run at a time: give the other one its own")
        self._run, now = run, trio.current_time()
        buckets = [Bucket(kind, rate, capacity, capacity, now) for kind, rate, capacity in self._declared()]
        self._admissions = self._new_admissions(buckets=self._shares or buckets)
        self._waited = 0.0

    def _declared(self) -> Iterator[tuple[str, float, float]]:
        """The limits that the user set: what they count, units a second, and units at once."""
        for kind, limit in self._limits.items():
            if limit is not None:
                yield kind, limit / self._period, max(1.0, limit * self._burst)

    # --- several processes -------------------------------------------------------------------

    def share(self, lender: Lender, door: str) -> None:
        """Share with other processes what the user granted a minute, until the lender ends; what is learnt stays this one's.

        So does `concurrency`: calls that run cannot be taken back from a process that hangs, so nobody could lend their places.
        """
        self._warn_of_concurrency(door)
        if self._lender is not None or not any(self._declared()):
            return
        self._begin()
        self._lender = lender
        self._shares = tuple([self._new_share(*each) for each in self._declared()])
        for share in self._shares:
            lender.add(share, self._name or door)
        self._admissions.buckets = self._shares
        self._admit_next()

    def _warn_of_concurrency(self, door: str) -> None:
        """Say once that what was declared holds for each process, as what is granted a minute does not."""
        if self._admissions.concurrency != CONCURRENCY and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "Governor(concurrency=%d) of %s holds for each node of the cluster; requests_per_minute= and tokens_per_minute= "
                "hold for all of them together",
                self._admissions.concurrency,
                Each(self._name or door),
            )

    def _new_share(self, kind: str, rate: float, capacity: float) -> Share:
        return Share(
            kind=kind,
            rate=rate,
            capacity=capacity,
            waiting=self._waiting,
            on_lent=self._admit_next,
            on_ended=self._end_share,
        )

    def _waiting(self, kind: str) -> float:
        """The units that calls wait for; of very many, some of them."""
        return math.fsum(call.cost.of(kind) for call in itertools.islice(self._parked, _COUNTED))

    def _end_share(self) -> None:
        """Nobody lends any more: this process begins with nothing, as others may have spent it all."""
        if self._lender is None:
            return
        lender, self._lender = self._lender, None
        for share in self._shares:
            lender.remove(share)
        self._shares, now = (), trio.current_time()
        self._admissions.buckets = [
            Bucket(kind, rate, capacity, 0.0, now) for kind, rate, capacity in self._declared()
        ]
        self._admit_next()

    def __repr__(self) -> str:
        limits = [f"{kind}_per_minute={limit:g}" for kind, limit in self._limits.items() if limit is not None]
        return f"Governor({', '.join(limits)})"


class Permit:
    """Leave for one attempt; lasts as long as its block."""

    def __init__(self, admissions: Admissions, lane: Lane, call: Call, size: int) -> None:
        self._admissions = admissions
        self._lane = lane
        self._call = call
        self._size = size

    def read(self, headers: Headers) -> None:
        """Learn what the answer's headers say of the provider's limits."""
        self._lane.read(self._call, headers, trio.current_time())

    def report_usage(self, usage: Usage) -> None:
        """The attempt was answered: what was reserved for it becomes what it took."""
        known = None if usage == NO_USAGE else usage
        self._admissions.answer(self._lane, self._call, known, trio.current_time())
        if known is not None:
            self._lane.expectation.learn(self._size, known)


# --- the governor of a key --------------------------------------------------------------------

_shared: trio.lowlevel.RunVar[WeakValueDictionary[str, Governor]] = trio.lowlevel.RunVar("governors")


def rate_limit_key(address: str, key: str) -> str:
    """Hash an address and a key, so that neither is given away."""
    return hashlib.sha256(f"{address}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()


def shared_governor(door: str) -> Governor:
    """The governor of all clients of this trio run with the same address and key, as long as one of them keeps it."""
    try:
        governors = _shared.get()
    except LookupError:
        governors = WeakValueDictionary()
        _shared.set(governors)
    governor = governors.get(door)
    if governor is None:
        governor = governors[door] = Governor()
    return governor


# --- small things -----------------------------------------------------------------------------


@trio.lowlevel.enable_ki_protection  # or a task would be woken that does not wait
async def _park(call: Call) -> None:
    """Sleep until `_wake`."""

    def abort(_: object) -> trio.lowlevel.Abort:
        call.task = None
        return trio.lowlevel.Abort.SUCCEEDED

    call.task = trio.lowlevel.current_task()
    await trio.lowlevel.wait_task_rescheduled(abort)


@trio.lowlevel.enable_ki_protection
def _wake(call: Call) -> None:
    """Wake the task of a call, unless something has woken it already."""
    if isinstance(call.task, trio.lowlevel.Task):
        trio.lowlevel.reschedule(call.task)
        call.task = None


def _describe(model: str, lane: Lane, now: float) -> LaneStatistics:
    return LaneStatistics(
        model=model,
        window=lane.window.size,
        running=lane.running,
        waiting=lane.queue.by_priority(),
        admitted=lane.admitted,
        paused=max(0.0, lane.paused_until - now),
        buckets=_filled(lane.learnt.values(), now),
    )


def _filled(buckets: Iterable[Limit], now: float) -> tuple[BucketStatistics, ...]:
    return tuple(
        BucketStatistics(kind=each.kind, capacity=each.capacity, level=each.fill(now), rate=each.rate)
        for each in buckets
    )


def _limited(text: str, model: str, *, retry_after: float | None = None) -> RateLimited:
    error = RateLimited(text, retry_after=retry_after, model=model)
    error.retryable = False  # another attempt would only wait again
    return error


def _check_positive(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and not 0 < value < math.inf:
            raise ConfigurationError(f"Governor({name}=...) is a number above 0, not {value!r}")


def _check_counts(**numbers: int) -> None:
    for name, value in numbers.items():
        if type(value) is not int or value < 1:
            raise ConfigurationError(f"Governor({name}=...) is a whole number, at least 1, not {value!r}")
