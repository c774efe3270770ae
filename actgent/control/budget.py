"""What turns and sessions may still spend: reserved before a model call, settled after it.

An `Account` is one bounded thing: a turn with all that it delegates, or a session with its children. A `Budget` is
what one turn draws on: its own account, and those of its session, of the sessions above, and of the turn that asked
for it. Each is there once, however many ways lead to it, and what is taken is taken from all of them or from none.

    room = limit - spent - reserved

In the journal what is reserved stands as spent, and what it took beyond or below that is written when it is known: so a
call whose process died counts as one that was cancelled.

What is guaranteed: `spent + reserved` never passes a limit when something is reserved. A call that ends takes what it
took instead of its reservation; only by the difference of the calls that were under way can `spent` pass the limit,
and then nothing further is reserved. Model and tool calls have no such difference.
"""

import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
import trio

from actgent.errors import LimitReached
from actgent.journal.records import NO_LIMITS, AccountKey, Led, Spent
from actgent.support.quick_init import quick_init

ANSWER_TOKENS = 4096
"""What an answer is reckoned with where nothing says how long it may get."""
LEAST_ANSWER = 16
"""Tokens; for less no model is asked. Some providers take no smaller limit."""
IN_WORDS = {
    "model_calls": "model calls",
    "tool_calls": "tool calls",
    "tokens": "tokens",
    "cost": "US dollars",
    "seconds": "seconds",
}

Price = Callable[[int, int], float]
"""US dollars for so many tokens of prompt and answer; rises with both."""


@quick_init
@attrs.frozen(kw_only=True)
class Amounts:
    """What something takes or took."""

    model_calls: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    """US dollars."""
    seconds: float = 0.0

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
        """The same, and so many seconds."""
        return Amounts(
            model_calls=self.model_calls,
            tool_calls=self.tool_calls,
            tokens=self.tokens,
            cost=self.cost,
            seconds=self.seconds + seconds,
        )

    @classmethod
    def of(cls, record: Spent | Led) -> "Amounts":
        """Convert a record of the journal."""
        if isinstance(record, Led):
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
        """The amounts that are not zero, by name."""
        return {name: amount for name in IN_WORDS if (amount := getattr(self, name))}


NOTHING = Amounts()


def spent_in(records: Iterable[Spent | Led]) -> Amounts:
    """Add up records of spending."""
    return sum(map(Amounts.of, records), NOTHING)


class AccountLog(typing.Protocol):
    """Where what is spent is written down."""

    def add(self, record: Spent | Led, /) -> object: ...
    async def flush(self) -> None: ...
    def flush_soon(self) -> None: ...


@attrs.define(eq=False)
class Account:
    """What one turn or session may spend, and has spent; shared by all that work for it."""

    key: AccountKey
    limits: Mapping[str, float]
    """By the names of `Amounts`; what is not in it is counted and not bounded."""
    spent: Amounts = NOTHING
    reserved: Amounts = NOTHING
    """By calls under way."""
    owner: str = ""
    """Whose quota it is, where it is one."""
    period: str = ""
    """Of the quota: `day` or `month`."""
    is_of_call: bool = False
    """True if its limits were set for one turn, e.g. by `run(limits=...)`."""
    log: AccountLog | None = attrs.field(default=None, repr=False)
    """Where it is written down, if anywhere: its session's end of the journal."""
    _calls: int = 0
    """How many of them there are."""
    _waiting: trio.lowlevel.ParkingLot | None = attrs.field(default=None, repr=False)

    @property
    def left(self) -> Mapping[str, float]:
        """The rest of each bound, without what is reserved; never below zero."""
        return {self.field(name): max(0, self._room(name)) for name in self.limits}

    @property
    def is_busy(self) -> bool:
        """True if calls are under way that may give back some of what they reserved."""
        return self._calls > 0

    def reached(self, name: str, *, estimated: float = 0) -> LimitReached:
        """The error that says so; `estimated` is what the next call would take of it at least."""
        return LimitReached(
            f"{IN_WORDS[name]} of a turn and all that it leads to" if self.key.tree else IN_WORDS[name],
            self.limits[name],
            field=self.field(name),
            used={name: amount for name, amount in self.spent.used.items() if self._is_told(name)},
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
        """Return the name of the bound in `Limits`."""
        return f"tree_{name}" if self.key.tree else name

    def _is_told(self, name: str) -> bool:
        """Seconds pass in every turn; they are told where they are bounded."""
        return name != "seconds" or name in self.limits

    def check(self, name: str, count: float) -> None:
        """Raise where so much more is too much.

        Raises:
            LimitReached: it is.
        """
        if name in self.limits and count > self._room(name):
            raise self.reached(name)

    def longest(self, prompt: int, answer: int, price: Price, *, at_best: bool) -> tuple[int, str]:
        """Bound the length of an answer to a prompt: at most `answer`, and the bound behind it; -1 if the prompt is too long.

        `at_best` is where all that is reserved comes back.
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

    def _room(self, name: str, *, at_best: bool = False) -> float:
        taken: float = getattr(self.spent, name)
        if not at_best:
            taken += getattr(self.reserved, name)
        return self.limits[name] - taken

    def reserve(self, amounts: Amounts) -> None:
        self.reserved = self.reserved + amounts if self._calls else amounts
        self._calls += 1

    def release(self, reserved: Amounts) -> None:
        """A call is over, and what it took is counted: nothing is set apart for it any more."""
        self._calls -= 1
        self.reserved = (
            self.reserved - reserved if self._calls else NOTHING
        )  # fractions may not add up to zero
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.unpark_all()

    async def wait_settled(self) -> None:
        """Wait until a call that is under way has ended."""
        if self._waiting is None:
            self._waiting = trio.lowlevel.ParkingLot()
        await self._waiting.park()

    def record(self, amounts: Amounts, of: str = "", limits: Mapping[str, float] = NO_LIMITS) -> bool:
        """Write down what was spent, and with the first of a tree its limits; its session's next step carries it.

        False where there is nothing to write.
        """
        if self.log is None or (self.key.tree and not (amounts.model_calls or amounts.tool_calls)):
            return False
        if self.key.tree:
            self.log.add(
                Led(
                    turn=self.key.turn,
                    of=of,
                    model_calls=amounts.model_calls,
                    tool_calls=amounts.tool_calls,
                    limits=limits,
                )
            )
        else:
            self.log.add(
                Spent(
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
    """The longest answer that so much money is enough for; -1 where the prompt alone is dearer."""
    if price(prompt, 0) > dollars:
        return -1
    least, most = 0, answer
    while least < most:  # prices have steps, so they are tried out
        middle = (least + most + 1) // 2
        if price(prompt, middle) <= dollars:
            least = middle
        else:
            most = middle - 1
    return least


@attrs.frozen
class Allowance:
    """What there is for one model call."""

    answer: int
    """Tokens that its answer may take."""
    account: Account | None = None
    """Which allows no more; None where the answer may be as long as was asked."""
    why: str = ""
    """Which of its bounds it is."""


@attrs.define(eq=False)
class Budget:
    """The accounts that one turn draws on."""

    accounts: tuple[Account, ...]
    """Its own first."""
    clocked: tuple[Account, ...] = ()
    """Those whose seconds its own are; where another turn waits for it, that one's clock runs already."""
    cut: LimitReached | None = None
    """The limit that cut the last answer short."""
    _reserving: dict[int, tuple[Account, ...]] = attrs.field(factory=dict)
    """Those from which calls under way have reserved, by the identity of what is reserved: others may join meanwhile."""
    _since: float = math.nan
    """Until when its seconds are counted, by trio's clock."""

    @property
    def own(self) -> Account:
        """The turn's own account."""
        return self.accounts[0]

    @property
    def left(self) -> Mapping[str, float]:
        """The rest of each bound, by the tightest account."""
        found: dict[str, float] = {}
        for account in self.accounts:
            for name, amount in account.left.items():
                found[name] = min(amount, found.get(name, math.inf))
        return found

    @property
    def is_exact(self) -> bool:
        """True if a bound is set, so that no call begins that the journal does not know of."""
        return any(account.limits and not account.key.tree for account in self.accounts)

    @property
    def trees(self) -> tuple[Account, ...]:
        """The accounts that bound all that a turn leads to."""
        return tuple(account for account in self.accounts if account.key.tree)

    def bounds(self, *names: str) -> bool:
        """Return True if one of these is bounded."""
        return any(name in account.limits for account in self.accounts for name in names)

    # --- model calls -----------------------------------------------------------------------

    def plan(self, prompt: int, answer: int, price: Price) -> Allowance | Account:
        """Find the room for an answer, or an account that may have more once a call under way has ended.

        Raises:
            LimitReached: there is not enough, and there will not be.
        """
        for account in self.accounts:
            account.check("model_calls", 1)
            best, why = account.longest(prompt, answer, price, at_best=True)
            least = min(LEAST_ANSWER, answer)
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
        """Set apart what `plan` has found room for, and write it down as spent: the call may be paid whatever comes."""
        self._reserving[id(amounts)] = self.accounts
        for account in reversed(self.accounts):
            account.reserve(amounts)
            self._note(account, amounts)

    def settle(self, reserved: Amounts, taken: Amounts, *, now: float) -> None:
        """Count what a call took, and write down how it differs, before anyone acts on its answer."""
        self._take(taken, now, written=reserved)
        for account in self._reserving.pop(id(reserved), ()):
            account.release(reserved)

    # --- tool calls ------------------------------------------------------------------------

    def take_tool_calls(self, count: int, *, of: str, now: float) -> None:
        """Count the tool calls of an answer, which are about to start.

        Raises:
            LimitReached: they are too many, and none of them is counted.
        """
        for account in self.accounts:
            account.check("tool_calls", count)
        self._take(Amounts(tool_calls=count), now, of)

    # --- what others are granted -----------------------------------------------------------

    def room(self, name: str) -> float:
        """The rest of one bound, by the tightest account; `math.inf` where none bounds it."""
        return min(
            (account.left[account.field(name)] for account in self.accounts if name in account.limits),
            default=math.inf,
        )

    def check(self, name: str, count: float) -> None:
        """Raise where so much more is too much.

        Raises:
            LimitReached: it is.
        """
        for account in self.accounts:
            account.check(name, count)

    async def grant(self, amounts: Amounts, *, now: float) -> None:
        """Count what somebody else may take as taken; durable on return, wherever it is counted."""
        self._take(amounts, now)
        for account in self.accounts:
            if account.log is not None:
                await account.log.flush()

    def give_back(self, amounts: Amounts, *, now: float) -> None:
        """Count what was granted and not taken, or was taken besides, where it is below zero."""
        if amounts != NOTHING:
            self._take(NOTHING - amounts, now)

    # --- seconds ---------------------------------------------------------------------------

    def start_clock(self, now: float) -> tuple[float, Account | None]:
        """Count seconds from now on; returns when they are over, and the account whose they are."""
        self._since = now
        bounded = [account for account in self.clocked if "seconds" in account.limits]
        if not bounded:
            return math.inf, None
        tightest = min(bounded, key=lambda account: account.left["seconds"])
        return now + tightest.left["seconds"], tightest

    def stop_clock(self, now: float) -> None:
        """The turn has ended, or is suspended."""
        self.tick(now)
        self._since = math.nan

    def tick(self, now: float) -> None:
        """Count the seconds since something was counted last."""
        if now > self._since:
            self._take(NOTHING, now)

    # --- what is taken ---------------------------------------------------------------------

    def _take(self, amounts: Amounts, now: float, of: str = "", *, written: Amounts = NOTHING) -> None:
        """Count what was taken and the seconds until now, and write down what of it is not `written` yet."""
        timed = amounts
        if now > self._since:
            timed, self._since = amounts.lasting(now - self._since), now
        for account in reversed(self.accounts):
            part = timed if account in self.clocked else amounts
            account.spent += part
            self._note(account, part if written is NOTHING else part - written, of)

    def _note(self, account: Account, amounts: Amounts, of: str = "") -> None:
        """Write something down: in other logs first, so that no session knows of an answer that another has not paid."""
        if amounts == NOTHING or not account.record(amounts, of) or account.log is None:
            return
        if account.log is not self.own.log:
            account.log.flush_soon()


def gather(own: Account, session: Sequence[Account], asker: Sequence[Account]) -> Budget:
    """A turn's budget: its own account, those of its session and of the turn that asked for it, each of them once."""
    found = tuple(dict.fromkeys((own, *session, *asker)))
    return Budget(found, clocked=tuple(account for account in found if account not in asker))


@attrs.frozen
class Funding:
    """Extra budgets of a message's turn: limits set by its sender, and the accounts of the turn that sent it."""

    limits: Mapping[str, float] | None = None
    """Set by its sender; None is the agent's."""
    accounts: tuple[Account, ...] = ()
    """Of the turn that asks."""
    depth: int = 0
    """How many turns led to it, one from the other."""
    deepest: int = 0
    """How deep it may lead on; 0: its own limits say."""
