"""Budgets of turns and sessions: an amount is reserved before a model call and settled after it.

An `Account` counts the usage of one turn with its delegated work, or of one session with its child sessions. A `Budget` has the
accounts to which one turn is charged: those of the turn, of its session, of the parent sessions, and of the calling turn. Each
account appears once. An amount is charged to all of them or to none.

    room = limit - spent - reserved

The journal records a reservation as spent, and later the difference to the real usage. So if the process dies during a call, the
reservation stays charged, as for a cancelled call.

Guarantee: `spent + reserved` never exceeds a limit when an amount is reserved. When a call ends, its real usage replaces its
reservation. So `spent` can exceed a limit only by the amounts by which running calls exceed their reservations, and then no further
amount is reserved. Counts of model and tool calls are exact.
"""

import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter

import attrs
import trio

from actgent.errors import LimitReached
from actgent.journal.record_types import NO_LIMITS, AccountKey, DownstreamUsageRecord, UsageRecord
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.fast_attrs_constructors import fast_init

ANSWER_TOKENS = 4096
"""Assumed maximum length of an answer in tokens if no setting limits it."""
MIN_ANSWER_TOKENS = 16
"""Minimum answer length in tokens for which a model call is made. Some providers reject a smaller limit."""
IN_WORDS = {
    "model_calls": "model calls",
    "tool_calls": "tool calls",
    "tokens": "tokens",
    "cost": "US dollars",
    "seconds": "seconds",
}

Price = Callable[[int, int], float]
"""Function of (prompt tokens, answer tokens) that returns the cost in US dollars. The cost grows with both."""


@fast_init
@attrs.frozen(kw_only=True, repr=False)
class Amounts(FieldRepr):
    """Amounts of usage, reserved or spent: numbers of calls, tokens, cost and working time."""

    model_calls: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    """Cost of model calls in US dollars."""
    seconds: float = 0.0
    """Working time of turns in seconds."""

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(
            model_calls=self.model_calls + other.model_calls,
            tool_calls=self.tool_calls + other.tool_calls,
            tokens=self.tokens + other.tokens,
            cost=self.cost + other.cost,
            seconds=self.seconds + other.seconds,
        )

    def __sub__(self, other: "Amounts") -> "Amounts":
        return Amounts(
            model_calls=self.model_calls - other.model_calls,
            tool_calls=self.tool_calls - other.tool_calls,
            tokens=self.tokens - other.tokens,
            cost=self.cost - other.cost,
            seconds=self.seconds - other.seconds,
        )

    def lasting(self, seconds: float) -> "Amounts":
        """Return a copy of these amounts with `seconds` of working time added."""
        return Amounts(
            model_calls=self.model_calls,
            tool_calls=self.tool_calls,
            tokens=self.tokens,
            cost=self.cost,
            seconds=self.seconds + seconds,
        )

    @classmethod
    def of(cls, record: UsageRecord | DownstreamUsageRecord) -> "Amounts":
        """Convert a usage record of the journal to amounts."""
        if isinstance(record, DownstreamUsageRecord):
            return cls(model_calls=record.model_calls, tool_calls=record.tool_calls)
        return cls(
            model_calls=record.model_calls,
            tool_calls=record.tool_calls,
            tokens=record.tokens,
            cost=record.cost,
            seconds=record.seconds,
        )

    @property
    def used(self) -> dict[str, float]:
        """Amounts that are not zero, such as tokens, cost in US dollars or tool calls, by field name."""
        return {name: amount for name in IN_WORDS if (amount := getattr(self, name))}


NOTHING = Amounts()


def spent_in(records: Iterable[UsageRecord | DownstreamUsageRecord]) -> Amounts:
    """Return the sum of the amounts in usage records."""
    return sum(map(Amounts.of, records), NOTHING)


class AccountLog(typing.Protocol):
    """Interface of a receiver of usage records, such as the journal writer of a session."""

    def add(self, record: UsageRecord | DownstreamUsageRecord, /) -> object:
        """Add a usage record to the session's next journal batch."""

    async def flush(self) -> None:
        """Write the added records, and return when they are durable."""

    def flush_soon(self) -> None:
        """Start writing the added records, without waiting until they are durable."""


@attrs.define(eq=False, repr=False)
class Account(FieldRepr):
    """Limits and usage of one turn or session. Turns that work for it are charged to the same account."""

    key: AccountKey
    limits: Mapping[str, float]
    """Limits by field name of `Amounts`. A missing field is counted without a limit."""
    spent: Amounts = NOTHING
    reserved: Amounts = NOTHING
    """Sum of the reservations of running calls."""
    owner: str = ""
    """Name of the owner if the account counts the usage of a quota; empty for other accounts."""
    period: str = ""
    """Period of the quota, `day` or `month`; empty for other accounts."""
    is_of_call: bool = False
    """True if the limits were set for one turn by the call that started it, as with `run(limits=...)`."""
    log: AccountLog | None = attrs.field(default=None, repr=False)
    """Writer of the session's journal records; None without a journal."""
    _calls: int = 0
    """Number of running calls that hold a reservation."""
    _waiting: trio.lowlevel.ParkingLot | None = attrs.field(default=None, repr=False)

    @property
    def left(self) -> Mapping[str, float]:
        """Remaining amount of each limit, without the reservations of running calls, by field name of `Limits`; at least 0."""
        return {self.field(name): self.remaining(name) for name in self.limits}

    @property
    def is_busy(self) -> bool:
        """True if a running call holds a reservation. After the call, more may remain, because it may use less than reserved."""
        return self._calls > 0

    def reached(self, name: str, *, estimated: float = 0) -> LimitReached:
        """Build the error for reaching the limit `name`. `estimated` is the minimum amount of the rejected call."""
        return LimitReached(
            f"{IN_WORDS[name]} of a turn and the turns that it causes" if self.key.tree else IN_WORDS[name],
            self.limits[name],
            field=self.field(name),
            used={name: amount for name, amount in self.spent.used.items() if self._is_reported(name)},
            reserved=getattr(self.reserved, name),
            estimated=estimated,
            agent=self.key.agent,
            session_id=self.key.session_id,
            is_session=not self.key.turn,
            owner=self.owner,
            period=self.period,
            is_call=self.is_of_call,
        )

    def field(self, name: str) -> str:
        """Return the field of `Limits` that sets the limit `name` of this account.

        The field has the prefix `tree_` if this account also counts the turns that the turn causes.
        """
        return f"tree_{name}" if self.key.tree else name

    def _is_reported(self, name: str) -> bool:
        """Return True if an error lists this amount. Seconds are listed only if they are limited."""
        return name != "seconds" or name in self.limits

    def check(self, name: str, count: float) -> None:
        """Raise if adding `count` to the usage would exceed the limit `name`.

        Raises:
            LimitReached: The limit would be exceeded.
        """
        if name in self.limits and count > self._room(name):
            raise self.reached(name)

    def longest(self, prompt: int, answer: int, price: Price, *, at_best: bool) -> tuple[int, str]:
        """Return the maximum answer length in tokens, up to `answer`, and the name of the limit that determines it.

        `prompt` is the number of prompt tokens. The name is empty if no limit shortens the answer. The length is -1 if
        the prompt alone exceeds a limit. With `at_best`, assume that the running calls use none of their reservations.
        """
        why = ""
        if "tokens" in self.limits:
            room = int(self._room("tokens", at_best=at_best)) - prompt
            if room < answer:
                answer, why = max(room, -1), "tokens"
        if "cost" in self.limits and answer >= 0:
            dollars = self._room("cost", at_best=at_best)
            if price(prompt, answer) > dollars:
                answer, why = _affordable(prompt, answer, price, dollars), "cost"
        return answer, why

    def remaining(self, name: str) -> float:
        """Return the remaining amount of the limit `name`, without the reservations of running calls; at least 0."""
        return max(0, self._room(name))

    def _room(self, name: str, *, at_best: bool = False) -> float:
        taken: float = getattr(self.spent, name)
        if not at_best:
            taken += getattr(self.reserved, name)
        return self.limits[name] - taken

    def reserve(self, amounts: Amounts) -> None:
        """Reserve amounts for one call. `release` removes the reservation."""
        self.reserved = self.reserved + amounts if self._calls else amounts
        self._calls += 1

    def release(self, reserved: Amounts) -> None:
        """Remove the reservation of a call whose usage has been counted, and wake waiting callers."""
        self._calls -= 1
        self.reserved = (
            self.reserved - reserved if self._calls else NOTHING
        )  # sums of fractions may not return to exactly zero
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.unpark_all()

    async def wait_settled(self) -> None:
        """Wait until one of the running calls of this account has ended and released its reservation."""
        if self._waiting is None:
            self._waiting = trio.lowlevel.ParkingLot()
        await self._waiting.park()

    def record(self, amounts: Amounts, of: str = "", limits: Mapping[str, float] = NO_LIMITS) -> bool:
        """Add a usage record to the session's next journal batch. The first record of a tree account also contains its limits.

        Return False if there is no journal or no amount to record.
        """
        if self.log is None or (self.key.tree and not (amounts.model_calls or amounts.tool_calls)):
            return False
        if self.key.tree:
            self.log.add(
                DownstreamUsageRecord(
                    turn=self.key.turn,
                    of=of,
                    model_calls=amounts.model_calls,
                    tool_calls=amounts.tool_calls,
                    limits=limits,
                )
            )
        else:
            self.log.add(
                UsageRecord(
                    turn=self.key.turn,
                    of=of,
                    model_calls=amounts.model_calls,
                    tool_calls=amounts.tool_calls,
                    tokens=amounts.tokens,
                    cost=amounts.cost,
                    seconds=amounts.seconds,
                )
            )
        return True


def _affordable(prompt: int, answer: int, price: Price, dollars: float) -> int:
    """Return the maximum answer length in tokens whose cost is at most `dollars`; -1 if the prompt alone costs more."""
    if price(prompt, 0) > dollars:
        return -1
    least, most = 0, answer
    while least < most:  # a price can have steps, so search instead of solving for the length
        middle = (least + most + 1) // 2
        if price(prompt, middle) <= dollars:
            least = middle
        else:
            most = middle - 1
    return least


@attrs.frozen(repr=False)
class Allowance(FieldRepr):
    """Permitted length of the answer of one model call, and the limit that determines it."""

    answer: int
    """Maximum length of the answer in tokens."""
    account: Account | None = None
    """Account whose limit shortens the answer; None if no limit does."""
    why: str = ""
    """Name of the limit that shortens the answer; empty if no limit does."""


@attrs.define(eq=False, repr=False)
class Budget(FieldRepr):
    """The accounts to which one turn is charged."""

    accounts: tuple[Account, ...]
    """All accounts; the account of the turn is first."""
    clocked: tuple[Account, ...] = ()
    """Accounts that count the seconds of this turn. The others already count the seconds of a turn that waits for this turn."""
    cut: LimitReached | None = None
    """Error of the limit that shortened the last answer; None if no limit shortened it."""
    _reserving: dict[int, tuple[Account, ...]] = attrs.field(factory=dict)
    """Accounts that hold a reservation, by `id()` of the reserved amounts; without accounts that were added later."""
    _since: float = math.nan
    """Time by trio's clock up to which seconds are counted; NaN while the clock is stopped."""

    @property
    def own(self) -> Account:
        """Account that counts only this turn."""
        return self.accounts[0]

    @property
    def left(self) -> Mapping[str, float]:
        """Remaining amount of each limit by name: the minimum over all accounts."""
        found: dict[str, float] = {}
        for account in self.accounts:
            for name, amount in account.left.items():
                found[name] = min(amount, found.get(name, math.inf))
        return found

    @property
    def is_exact(self) -> bool:
        """True if a limit other than a tree limit is set. Then each call is recorded in the journal before it begins."""
        return any(account.limits and not account.key.tree for account in self.accounts)

    @property
    def trees(self) -> tuple[Account, ...]:
        """Tree accounts of this turn. Each is shared by a turn and all turns that it causes directly or indirectly."""
        return tuple(account for account in self.accounts if account.key.tree)

    def bounds(self, *names: str) -> bool:
        """Return True if an account has a limit with one of these names."""
        return any(name in account.limits for account in self.accounts for name in names)

    # --- model calls -----------------------------------------------------------------------

    def plan(self, prompt: int, answer: int, price: Price) -> Allowance | Account:
        """Return the permitted length of the next call's answer. Call this method before `reserve`.

        If too little of a limit remains because of the reservations of running calls, return the account of this limit instead. The
        caller then awaits `wait_settled` of the account, and calls `plan` again.

        Raises:
            LimitReached: Too little of a limit remains, also if the running calls use none of their reservations.
        """
        for account in self.accounts:
            account.check("model_calls", 1)
            best, why = account.longest(prompt, answer, price, at_best=True)
            least = min(MIN_ANSWER_TOKENS, answer)
            if best < least:
                raise account.reached(
                    why, estimated=price(prompt, least) if why == "cost" else prompt + least
                )
        room = Allowance(answer)
        for account in self.accounts:
            longest, why = account.longest(prompt, room.answer, price, at_best=False)
            if longest < room.answer:
                if account.is_busy:
                    return account
                room = Allowance(longest, account, why)
        return room

    def reserve(self, amounts: Amounts) -> None:
        """Reserve amounts that `plan` has allowed and record them as spent, since the provider may bill the call in any case."""
        self._reserving[id(amounts)] = self.accounts
        for account in reversed(self.accounts):
            account.reserve(amounts)
            if account.log is not None:
                self._note(account, account.log, amounts)

    def settle(self, reserved: Amounts, taken: Amounts, *, now: float) -> None:
        """Replace the reservation of an ended call by its real usage `taken`, and record the difference.

        Also count the seconds of work until `now`. Call this method before the answer takes effect.
        """
        self._charge(taken, now, written=reserved)
        for account in self._reserving.pop(id(reserved), ()):
            account.release(reserved)

    # --- tool calls ------------------------------------------------------------------------

    def take_tool_calls(self, count: int, *, of: str, now: float) -> None:
        """Count the tool calls of an answer before they start.

        Raises:
            LimitReached: The calls exceed a limit; none of them is counted.
        """
        for account in self.accounts:
            account.check("tool_calls", count)
        self._charge(Amounts(tool_calls=count), now, of)

    # --- what others are granted -----------------------------------------------------------

    def room(self, name: str) -> float:
        """Return the remaining amount of one limit: the minimum over all accounts; `math.inf` without a limit."""
        return min(
            (account.remaining(name) for account in self.accounts if name in account.limits), default=math.inf
        )

    def check(self, name: str, count: float) -> None:
        """Raise if adding `count` to the usage would exceed the limit `name` of any account.

        Raises:
            LimitReached: The limit would be exceeded.
        """
        for account in self.accounts:
            account.check(name, count)

    async def grant(self, amounts: Amounts, *, now: float) -> None:
        """Charge amounts that another process may use. The charge is durable on return."""
        self._charge(amounts, now)
        for account in self.accounts:
            if account.log is not None:
                await account.log.flush()

    def give_back(self, amounts: Amounts, *, now: float) -> None:
        """Refund amounts that `grant` has charged and another process has not used. Negative amounts are charged additionally."""
        if amounts != NOTHING:
            self._charge(NOTHING - amounts, now)

    # --- seconds ---------------------------------------------------------------------------

    def start_clock(self, now: float) -> tuple[float, Account | None]:
        """Start counting seconds of work. Return the time at which the first limit of seconds is reached, and its account.

        The time is in seconds of trio's clock. Without a limit of seconds, it is infinite and the account is None.
        """
        self._since = now
        bounded = [account for account in self.clocked if "seconds" in account.limits]
        if not bounded:
            return math.inf, None
        seconds, tightest = min(
            ((account.remaining("seconds"), account) for account in bounded), key=itemgetter(0)
        )
        return now + seconds, tightest

    def stop_clock(self, now: float) -> None:
        """Stop counting seconds, because the turn has ended or is suspended."""
        self.tick(now)
        self._since = math.nan

    def tick(self, now: float) -> None:
        """Count the working time since the last count, up to `now`, a time of trio's clock in seconds."""
        if now > self._since:
            self._charge(NOTHING, now)

    # --- what is taken ---------------------------------------------------------------------

    def _charge(self, amounts: Amounts, now: float, of: str = "", *, written: Amounts = NOTHING) -> None:
        """Charge amounts and the seconds until `now` to the accounts. Record them without the part `written`, which is recorded already.

        `of` is the id of the answer that used the amounts, so that its calls are not counted again after a restart.
        """
        timed = amounts
        if now > self._since:
            timed, self._since = amounts.lasting(now - self._since), now
        for account in reversed(self.accounts):
            part = timed if account in self.clocked else amounts
            account.spent += part
            if account.log is not None:
                self._note(account, account.log, part if written is NOTHING else part - written, of)

    def _note(self, account: Account, log: AccountLog, amounts: Amounts, of: str = "") -> None:
        """Record amounts that were charged to an account in the log of its session.

        The journals of other sessions are written first. So after a crash, no session has an answer whose cost is missing in another
        session.
        """
        if amounts != NOTHING and account.record(amounts, of) and log is not self.own.log:
            log.flush_soon()


def gather(own: Account, session: Sequence[Account], caller: Sequence[Account]) -> Budget:
    """Build the budget of a turn from its own account, the accounts of its session and the accounts of the calling turn (`caller`).

    Each account occurs once. The accounts of the calling turn do not count the seconds of this turn, because they count the time for
    which the calling turn waits.
    """
    found = tuple(dict.fromkeys((own, *session, *caller)))
    return Budget(found, clocked=tuple(account for account in found if account not in caller))


@attrs.frozen(repr=False)
class Funding(FieldRepr):
    """Budget of the turn that answers a message: limits set by the sender, and accounts of the sending turn."""

    limits: Mapping[str, float] | None = None
    """Limits that the message's sender set for the turn; None uses the limits of the agent."""
    accounts: tuple[Account, ...] = ()
    """Budget accounts of the turn that sent the message."""
    depth: int = 0
    """Number of nested calls between agents that led to the sending turn."""
    deepest: int = 0
    """Maximum number of nested calls between agents; 0 uses the limits of the agent."""
