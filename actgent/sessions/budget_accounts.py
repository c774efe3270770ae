"""Budget accounts: counters of the tokens, cost, time and calls that a session, turn or owner has used of its limits.

Functions of this module find the accounts that limit a turn, and load their counts from the journal.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from weakref import WeakValueDictionary

import attrs

from actgent.errors import LimitReached
from actgent.journal.journal_interface import Journal
from actgent.journal.record_types import (
    AccountKey,
    DownstreamUsageRecord,
    MessageAppendedRecord,
    Record,
    SessionCreatedRecord,
    UsageRecord,
)
from actgent.journal.session_list_queries import QUOTA_AGENT, SessionKey
from actgent.limits_and_schedules.budget import NOTHING, Account, Amounts, Budget, Funding, gather, spent_in
from actgent.messages import Message
from actgent.support.attrs_class_repr import FieldRepr

from .quota_accounts import QuotaAccounts
from .restore.record_replayer import RestoredSession
from .session_context import SessionContext, Turn
from .session_record_writer import SessionLog


@attrs.define(eq=False, repr=False)
class BudgetAccounts(FieldRepr):
    """Budget accounts of one runtime, which count usage against limits. Each account exists once while it is in use."""

    journal: Journal | None = None
    """Journal of the runtime; None if it has none."""
    owners: QuotaAccounts | None = None
    """Accounts for the quotas of users that own sessions; None without quotas."""
    _accounts: WeakValueDictionary[AccountKey, Account] = attrs.field(factory=WeakValueDictionary)
    """Accounts in use, by key."""

    def open(
        self,
        key: AccountKey,
        limits: Mapping[str, float],
        *,
        log: SessionLog | None,
        spent: Amounts = NOTHING,
    ) -> Account:
        """Return the budget account with this key. If it is not in use, create it with `limits` and the used amounts `spent`.

        Without a journal, each call creates an account, because no other session searches for the account. `log` records the usage of
        the account, also if the account existed before.
        """
        if self.journal is None:  # without a journal no other session looks it up
            return Account(key, limits, spent)
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(key, limits, spent, log=log)
        elif account.log is not None and log is not None:
            account.log = log
        return account

    def forget(self, session: SessionKey) -> None:
        """Stop recording the usage of the accounts of an erased session. The accounts still count usage."""
        for account in list(self._accounts.values()):
            if (account.key.agent, account.key.session_id) == session:
                account.log = None

    def drop_moved(self, has_moved: Callable[[str], bool]) -> None:
        """Remove the accounts of sessions that another process owns; `has_moved` selects the sessions by id.

        Usage that this process still counts in these accounts is not recorded.
        """
        for key, account in list(self._accounts.items()):
            if key.agent != QUOTA_AGENT and has_moved(key.session_id):
                account.log = None
                del self._accounts[key]

    # --- sessions --------------------------------------------------------------------------

    def open_session(
        self, context: SessionContext, agent: str, limits: Mapping[str, float], *, spent: Amounts = NOTHING
    ) -> None:
        """Set the budget accounts of a session: those of its parent sessions and, if the session has limits, its own account.

        `spent` is the usage of the session so far.
        """
        inherited = () if context.parent is None else context.parent.accounts
        own = []
        if limits:
            key = AccountKey(session_id=context.id, agent=agent)
            own = [self.open(key, limits, log=context.log, spent=spent)]
        context.open_tree().accounts = tuple(dict.fromkeys((*own, *context.accounts, *inherited)))

    async def restore(self, context: SessionContext, agent: str, restored: RestoredSession) -> None:
        """Set the budget accounts of a session that was loaded from the journal, and those of its queued messages."""
        context.open_tree().accounts = await self.find_all(restored.opened.within)
        self.open_session(context, agent, restored.opened.limits, spent=restored.spent)
        for accepted in restored.bounded:
            acceptance = context.find_message(accepted.message.id)
            assert acceptance is not None  # noqa: S101 - the acceptance was restored with the message
            within = await self.find_all(accepted.within)
            acceptance.funding = Funding(
                accepted.limits or None, within, depth=accepted.depth, deepest=accepted.deepest
            )

    async def find_all(self, keys: Iterable[AccountKey]) -> tuple[Account, ...]:
        """Return the accounts with these keys, from memory or from the journal. Keys without an account are omitted."""
        return tuple([account for key in keys if (account := await self.find(key)) is not None])

    async def find(self, key: AccountKey) -> Account | None:
        """Return the account with this key, from memory or from the journal.

        Return None if the account's session was erased or moved to another process, or if the quota period is over.
        """
        if key.agent == QUOTA_AGENT:
            return None if self.owners is None else self.owners.find(key)
        if key in self._accounts or self.journal is None:
            return self._accounts.get(key)
        if not self.journal.owns(key.session_id):
            return None  # another process owns the tree of this session now
        epoch = self.journal.epoch_of(key.session_id)
        records = await self.journal.load(key.session_id, agent=key.agent or None)
        if not records or key in self._accounts:
            return self._accounts.get(key)
        spent = spent_in(
            [
                each
                for each in records
                if isinstance(each, UsageRecord | DownstreamUsageRecord) and _is_of(each, key)
            ]
        )
        log = SessionLog(key.session_id, key.agent, self.journal, epoch)
        return self.open(key, _limits_in(records, key), log=log, spent=spent)

    # --- turns -----------------------------------------------------------------------------

    def begin(self, turn: Turn, agent: str, *, fundings: Sequence[Funding | None]) -> None:
        """Set the budget of a turn that starts or resumes, if a limit applies. A resumed turn keeps its used amounts.

        Args:
            turn: The turn; its `budget`, `depth` and `deepest` (maximum depth) are set.
            agent: Name of the session's agent.
            fundings: Budget sources of the messages that the turn answers; the last one belongs to the turn's own
                message.
        """
        context = turn.session
        call_limits = None if (last := fundings[-1]) is None else last.limits
        resume = turn.checkpoint
        limits = turn.limits.shared if call_limits is None else call_limits
        if resume is not None and resume.limits:
            limits = resume.limits
        accounts = [account for each in fundings if each is not None for account in each.accounts]
        shared = context.accounts
        if self.owners is not None:
            shared = (*shared, *self.owners.of(context.quota_owner))
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
        own.is_of_call = call_limits is not None
        turn.budget = gather(own, shared, accounts)

    def budget_outside_turns(self, context: SessionContext) -> Budget | None:
        """Return the budget for work of a session outside of turns; None if no limit applies.

        The budget consists of the accounts of the session, its parents and its owner.
        """
        owners = () if self.owners is None else self.owners.of(context.quota_owner)
        found = (*context.accounts, *owners)
        return Budget(found) if found else None

    # --- trees -----------------------------------------------------------------------------

    def fund_awaited_turn(self, turn: Turn, agent: str) -> Funding:
        """Return the budget for the turn that answers a message which `turn` sends to another session, and whose answer it awaits.

        The answering turn is charged to all accounts of `turn`. `agent` is the name of the sending agent.

        Raises:
            LimitReached: The chain of agents that ask agents would exceed the maximum depth.
        """
        context = turn.session
        depth, deepest = turn.depth + 1, _max_child_depth(turn)
        if depth > deepest:
            raise too_deep(deepest, agent, context.id)
        budget = self._with_tree_account(turn, agent)
        return Funding(accounts=budget.accounts, depth=depth, deepest=deepest)

    def fund_caused_turn(self, turn: Turn, agent: str) -> Funding:
        """Return the budget for the turn that answers a message which `turn` sends without waiting, such as a task or a schedule.

        The answering turn is charged only to the accounts that limit `turn` together with all turns that it causes. `agent` is the
        name of the sending agent.

        Raises:
            LimitReached: `turn` and the turns that it causes have no model call left.
        """
        trees = self._with_tree_account(turn, agent).trees
        for tree in trees:
            tree.check("model_calls", 1)
        return Funding(accounts=trees, depth=turn.depth, deepest=_max_child_depth(turn))

    def _with_tree_account(self, turn: Turn, agent: str) -> Budget:
        """Return the budget of a turn, with an account that the turn shares with all turns that it causes (tree account).

        The tree account is created unless the budget already has tree accounts with limits that are at least as low. It is created
        only when the turn causes another turn, because the own limits of a turn are lower.
        """
        limits = {"model_calls": turn.limits.tree_model_calls, "tool_calls": turn.limits.tree_tool_calls}
        budget = turn.budget or Budget(())
        if any(_is_looser(budget.trees, name, bound) for name, bound in limits.items()):
            budget.accounts = (*budget.accounts, self._open_tree_account(turn, agent, limits))
            turn.budget = budget
        return budget

    def _open_tree_account(self, turn: Turn, agent: str, limits: Mapping[str, float]) -> Account:
        """Create the account for a turn and all turns that it causes, with the turn's usage so far."""
        context = turn.session
        key = AccountKey(session_id=context.id, turn=turn.message.id, agent=agent, tree=True)
        spent = Amounts(
            model_calls=turn.progress.calls,
            tool_calls=_tool_calls(context.conversation.messages, turn.message.id),
        )
        account = self.open(key, limits, log=context.log, spent=spent)
        account.record(spent, turn.answer_id, limits)
        return account


def funding_of_result(child: SessionContext) -> Funding | None:
    """Return the budget for the turn of the parent session that receives the result of a child session's task.

    It has the tree accounts of the turn that delegated the task, and of the turns that caused that turn. Return None if there are
    no such accounts.
    """
    turn = child.turn
    if turn is None or turn.budget is None:
        return None
    own = (child.agent, child.id)
    accounts = tuple(tree for tree in turn.budget.trees if (tree.key.agent, tree.key.session_id) != own)
    return Funding(accounts=accounts, depth=turn.depth - 1, deepest=turn.deepest) if accounts else None


def _max_child_depth(turn: Turn) -> int:
    """Return the maximum depth of nested agent calls for the turns that this turn causes.

    It is the lowest limit of this turn and of the turns that caused it.
    """
    return int(min(turn.depth + turn.limits.depth, turn.deepest or math.inf))


def too_deep(deepest: int, agent: str, session_id: str) -> LimitReached:
    """Build the error for a call that exceeds the maximum depth `deepest` of nested agent calls."""
    return LimitReached(
        "levels of agents that ask agents",
        deepest,
        field="depth",
        used={"levels": deepest},
        agent=agent,
        session_id=session_id,
    )


def _is_looser(trees: Sequence[Account], name: str, bound: float) -> bool:
    """Return True if each of the accounts allows more than `bound` of the amount `name`, such as `model_calls`."""
    return all(tree.limits.get(name, math.inf) > bound for tree in trees)


def _tool_calls(record: Sequence[Message], turn: str) -> int:
    """Return the number of tool calls in the answers of the turn with the id `turn`.

    Calls that a model wrote as text are counted by their results.
    """
    calls = results = 0
    for message in reversed(record):
        if message.id == turn:
            break
        calls += len(message.tool_calls)
        results += len(message.tool_results)
    return max(calls, results)


def _is_of(record: UsageRecord | DownstreamUsageRecord, key: AccountKey) -> bool:
    return record.turn == key.turn and isinstance(record, DownstreamUsageRecord) == key.tree


def _limits_in(records: Sequence[Record], key: AccountKey) -> Mapping[str, float]:
    for record in records:
        match record:
            case SessionCreatedRecord() if not key.turn:
                return record.limits
            case MessageAppendedRecord() if record.message_id == key.turn and not key.tree:
                return record.limits
            case DownstreamUsageRecord() if record.limits and _is_of(record, key):
                return record.limits
    return {}
