"""Where accounts are found: those in use, and those that the journal knows of."""

from collections.abc import Iterable, Mapping, Sequence
from weakref import WeakValueDictionary

import attrs

from actgent.control.budget import NOTHING, Account, Amounts, gather, spent_in
from actgent.journal.base import Journal
from actgent.journal.records import AccountKey, Appended, Opened, Record, Spent

from .context import SessionContext
from .log import Restored, SessionLog
from .turn import Asked, Turn


@attrs.define(eq=False)
class Ledger:
    """The accounts of one runtime; each is there once, as long as someone uses it."""

    journal: Journal | None = None
    epoch: int = 0
    _accounts: WeakValueDictionary[AccountKey, Account] = attrs.field(factory=WeakValueDictionary)

    def open(
        self,
        key: AccountKey,
        limits: Mapping[str, float],
        *,
        log: SessionLog | None,
        spent: Amounts = NOTHING,
    ) -> Account:
        """The account of this key as it is used, or else a new one, of which so much is spent."""
        if self.journal is None:  # nobody comes to look for it
            return Account(key, limits, spent)
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(key, limits, spent, log=log)
        return account

    def forget(self, session_id: str) -> None:
        """A session is erased: what others still take from its budget is written nowhere."""
        for account in list(self._accounts.values()):
            if account.key.session_id == session_id:
                account.log = None

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
        context.accounts = tuple(dict.fromkeys((*own, *context.accounts, *above)))

    async def restore(self, context: SessionContext, agent: str, restored: Restored) -> None:
        """Give a session from the journal the accounts that it had, and its waiting messages those of their askers."""
        context.accounts = await self._find_all(restored.opened.within)
        self.open_session(context, agent, restored.opened.limits, spent=restored.spent)
        for accepted in restored.bounded:
            asked = Asked(accepted.limits or None, await self._find_all(accepted.within))
            context.ask(accepted.message.id, asked)

    async def _find_all(self, keys: Iterable[AccountKey]) -> tuple[Account, ...]:
        return tuple([account for key in keys if (account := await self.find(key)) is not None])

    async def find(self, key: AccountKey) -> Account | None:
        """An account in use, or as the journal has it; None where its session was erased."""
        if key in self._accounts or self.journal is None:
            return self._accounts.get(key)
        records = await self.journal.load(key.session_id)
        if not records:
            return None
        spent = spent_in([each for each in records if isinstance(each, Spent) and each.turn == key.turn])
        log = SessionLog(key.session_id, key.agent, self.journal, self.epoch)
        return self.open(key, _limits_in(records, key.turn), log=log, spent=spent)

    # --- turns -----------------------------------------------------------------------------

    def begin(self, context: SessionContext, turn: Turn, agent: str) -> None:
        """Give a turn its budget, if anything bounds it; one that goes on has spent what it had spent."""
        asked = context.take_asked(turn.message.id)
        askers = [context.take_asked(message.id) for message in turn.joined] + [asked]
        resume = turn.resume
        limits = turn.limits.shared if asked.limits is None else asked.limits
        if resume is not None and resume.limits:
            limits = resume.limits
        accounts = [account for each in askers for account in each.accounts]
        if not (limits or accounts or context.accounts):
            return
        spent = NOTHING
        if resume is not None:
            spent = attrs.evolve(resume.spent, model_calls=max(resume.spent.model_calls, resume.calls))
        key = AccountKey(session_id=context.id, turn=turn.message.id, agent=agent)
        own = self.open(key, limits, log=context.log, spent=spent)
        turn.budget = gather(own, context.accounts, accounts)


def _limits_in(records: Sequence[Record], turn: str) -> Mapping[str, float]:
    for record in records:
        match record:
            case Opened() if not turn:
                return record.limits
            case Appended() if record.message_id == turn:
                return record.limits
    return {}
