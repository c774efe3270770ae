"""Where accounts are found: those in use, and those that the journal knows of."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from weakref import WeakValueDictionary

import attrs

from actgent.control.budget import NOTHING, Account, Amounts, Budget, Funding, gather, spent_in
from actgent.errors import LimitReached
from actgent.journal.base import Journal
from actgent.journal.listing import SessionKey
from actgent.journal.records import AccountKey, Appended, Led, Opened, Record, Spent
from actgent.messages import Message

from .context import SessionContext
from .owner_accounts import HOLDER, OwnerAccounts
from .restore import Restored
from .session_log import SessionLog
from .turn import Turn


@attrs.define(eq=False)
class Accounts:
    """The accounts of one runtime; each is there once, as long as someone uses it."""

    journal: Journal | None = None
    owners: OwnerAccounts | None = None
    """Of quotas, if there are any."""
    _accounts: WeakValueDictionary[AccountKey, Account] = attrs.field(factory=WeakValueDictionary)

    def open(
        self,
        key: AccountKey,
        limits: Mapping[str, float],
        *,
        log: SessionLog | None,
        spent: Amounts = NOTHING,
    ) -> Account:
        """The account of this key as it is used, or else a new one, of which so much is spent.

        One that was found before its session was loaded is written by the session's own log from now on.
        """
        if self.journal is None:  # nobody comes to look for it
            return Account(key, limits, spent)
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(key, limits, spent, log=log)
        elif account.log is not None and log is not None:
            account.log = log
        return account

    def forget(self, session: SessionKey) -> None:
        """A session is erased: what others still take from its budget is written nowhere."""
        for account in list(self._accounts.values()):
            if (account.key.agent, account.key.session_id) == session:
                account.log = None

    def leave(self, is_left: Callable[[str], bool]) -> None:
        """Another process goes on with sessions: what others here still take from their budgets is written nowhere."""
        for key, account in list(self._accounts.items()):
            if key.agent != HOLDER and is_left(key.session_id):
                account.log = None
                del self._accounts[key]

    # --- sessions --------------------------------------------------------------------------

    def open_session(
        self, context: SessionContext, agent: str, limits: Mapping[str, float], *, spent: Amounts = NOTHING
    ) -> None:
        """Give a session its account, if it is bounded, and those of the sessions above it."""
        above = () if context.parent is None else context.parent.accounts
        own = []
        if limits:
            key = AccountKey(session_id=context.id, agent=agent)
            own = [self.open(key, limits, log=context.log, spent=spent)]
        context.tree.accounts = tuple(dict.fromkeys((*own, *context.accounts, *above)))

    async def restore(self, context: SessionContext, agent: str, restored: Restored) -> None:
        """Give a session from the journal the accounts that it had, and its waiting messages the funding that they had."""
        context.tree.accounts = await self.find_all(restored.opened.within)
        self.open_session(context, agent, restored.opened.limits, spent=restored.spent)
        for accepted in restored.bounded:
            acceptance = context.mail.find(accepted.message.id)
            assert acceptance is not None  # noqa: S101 - it was restored with its message
            within = await self.find_all(accepted.within)
            acceptance.funding = Funding(
                accepted.limits or None, within, depth=accepted.depth, deepest=accepted.deepest
            )

    async def find_all(self, keys: Iterable[AccountKey]) -> tuple[Account, ...]:
        """Those of these keys that are there; see `find`."""
        return tuple([account for key in keys if (account := await self.find(key)) is not None])

    async def find(self, key: AccountKey) -> Account | None:
        """An account in use, or as the journal has it; None where its session was erased, or its period is over."""
        if key.agent == HOLDER:
            return None if self.owners is None else self.owners.find(key)
        if key in self._accounts or self.journal is None:
            return self._accounts.get(key)
        if not self.journal.owns(key.session_id):
            return None  # of another tree, which is another process's by now
        epoch = self.journal.epoch_of(key.session_id)
        records = await self.journal.load(key.session_id, agent=key.agent or None)
        if not records or key in self._accounts:
            return self._accounts.get(key)
        spent = spent_in([each for each in records if isinstance(each, Spent | Led) and _is_of(each, key)])
        log = SessionLog(key.session_id, key.agent, self.journal, epoch)
        return self.open(key, _limits_in(records, key), log=log, spent=spent)

    # --- turns -----------------------------------------------------------------------------

    def begin(
        self, context: SessionContext, turn: Turn, agent: str, *, fundings: Sequence[Funding | None]
    ) -> None:
        """Give a turn its budget, if anything bounds it; one that goes on has spent what it had spent.

        `fundings` are those of the messages that it answers; the last is that of the message that it is about.
        """
        limits_asked = None if (last := fundings[-1]) is None else last.limits
        resume = turn.checkpoint
        limits = turn.limits.shared if limits_asked is None else limits_asked
        if resume is not None and resume.limits:
            limits = resume.limits
        accounts = [account for each in fundings if each is not None for account in each.accounts]
        shared = context.accounts
        if self.owners is not None:
            shared = (*shared, *self.owners.of(context.works_for))
        if resume is not None and resume.tree_limits:
            key = AccountKey(session_id=context.id, turn=turn.message.id, agent=agent, tree=True)
            tree = self.open(key, resume.tree_limits, log=context.log, spent=resume.tree_spent)
            accounts.append(tree)
        for each in filter(None, fundings):
            turn.depth = max(turn.depth, each.depth)
            turn.deepest = min(turn.deepest or each.deepest, each.deepest or turn.deepest)
        if not (limits or accounts or shared):
            return
        spent = NOTHING
        if resume is not None:
            spent = attrs.evolve(
                resume.spent, model_calls=max(resume.spent.model_calls, resume.progress.calls)
            )
        key = AccountKey(session_id=context.id, turn=turn.message.id, agent=agent)
        own = self.open(key, limits, log=context.log, spent=spent)
        own.is_of_call = limits_asked is not None
        turn.budget = gather(own, shared, accounts)

    def beside(self, context: SessionContext) -> Budget | None:
        """Return what a session's work draws on that belongs to no turn: its own bounds, those above it, and its owner's."""
        owners = () if self.owners is None else self.owners.of(context.works_for)
        found = (*context.accounts, *owners)
        return Budget(found) if found else None

    # --- trees -----------------------------------------------------------------------------

    def lead(self, context: SessionContext, turn: Turn, agent: str) -> Funding:
        """Return the funding of a turn that this one leads to: it draws on all that this one draws on.

        Raises:
            LimitReached: it is too deep.
        """
        depth, deepest = turn.depth + 1, _deepest(turn)
        if depth > deepest:
            raise too_deep(deepest, agent, context.id)
        budget = self._rooted(context, turn, agent)
        return Funding(accounts=budget.accounts, depth=depth, deepest=deepest)

    def lead_later(self, context: SessionContext, turn: Turn, agent: str) -> Funding:
        """Return the funding of a turn that this one brings about and does not wait for: it is of the same tree, and as deep.

        Raises:
            LimitReached: the tree has no model call left for it.
        """
        trees = self._rooted(context, turn, agent).trees
        for tree in trees:
            tree.check("model_calls", 1)
        return Funding(accounts=trees, depth=turn.depth, deepest=_deepest(turn))

    def _rooted(self, context: SessionContext, turn: Turn, agent: str) -> Budget:
        """The budget of a turn that leads to others, with the account of its tree.

        A turn that leads to nothing needs no account for its tree, since its own limits are tighter. It gets one here, where
        none that it draws on bounds as much.
        """
        limits = {"model_calls": turn.limits.tree_model_calls, "tool_calls": turn.limits.tree_tool_calls}
        budget = turn.budget or Budget(())
        if any(_is_looser(budget.trees, name, bound) for name, bound in limits.items()):
            budget.accounts = (*budget.accounts, self._plant(context, turn, agent, limits))
            turn.budget = budget
        return budget

    def _plant(self, context: SessionContext, turn: Turn, agent: str, limits: Mapping[str, float]) -> Account:
        """The account of a turn's tree, with what the turn has taken up to now."""
        key = AccountKey(session_id=context.id, turn=turn.message.id, agent=agent, tree=True)
        spent = Amounts(
            model_calls=turn.progress.calls,
            tool_calls=_tool_calls(context.conversation.messages, turn.message.id),
        )
        account = self.open(key, limits, log=context.log, spent=spent)
        account.record(spent, turn.answer.id, limits)
        return account


def funding_of_result(child: SessionContext) -> Funding | None:
    """Return the funding of the turn that a delegated task's result begins: its tree is the giving turn's."""
    turn = child.turn
    if turn is None or turn.budget is None:
        return None
    own = (child.agent, child.id)
    accounts = tuple(tree for tree in turn.budget.trees if (tree.key.agent, tree.key.session_id) != own)
    return Funding(accounts=accounts, depth=turn.depth - 1, deepest=turn.deepest) if accounts else None


def _deepest(turn: Turn) -> int:
    """How deep may be what a turn leads to."""
    return int(min(turn.depth + turn.limits.depth, turn.deepest or math.inf))


def too_deep(deepest: int, agent: str, session_id: str) -> LimitReached:
    """The error of an ask that would be one level too deep."""
    return LimitReached(
        "levels of agents that ask agents",
        deepest,
        field="depth",
        used={"levels": deepest},
        agent=agent,
        session_id=session_id,
    )


def _is_looser(trees: Sequence[Account], name: str, bound: float) -> bool:
    """Return True if none of these accounts bounds as much."""
    return all(tree.limits.get(name, math.inf) > bound for tree in trees)


def _tool_calls(record: Sequence[Message], turn: str) -> int:
    """Count the calls in the running turn's answers; calls that stand in text count when they have results."""
    calls = results = 0
    for message in reversed(record):
        if message.id == turn:
            break
        calls += len(message.tool_calls)
        results += len(message.tool_results)
    return max(calls, results)


def _is_of(record: Spent | Led, key: AccountKey) -> bool:
    return record.turn == key.turn and isinstance(record, Led) == key.tree


def _limits_in(records: Sequence[Record], key: AccountKey) -> Mapping[str, float]:
    for record in records:
        match record:
            case Opened() if not key.turn:
                return record.limits
            case Appended() if record.message_id == key.turn and not key.tree:
                return record.limits
            case Led() if record.limits and _is_of(record, key):
                return record.limits
    return {}
