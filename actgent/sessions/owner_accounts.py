"""The accounts of owners, from which all their sessions draw; see `Quotas`.

In the journal each is a session of its own, of an agent that no program can have: it holds what was spent in one period,
and leaves with the first start after it. So a quota is durable by the same records, and as exactly, as a session's limits.
"""

import hashlib
from collections.abc import Callable, Iterator

import attrs

from actgent.control.arguments import MAX_ID
from actgent.control.budget import NOTHING, Account, Amounts, spent_in
from actgent.control.quotas import Period, Quotas, Unit
from actgent.journal.base import Journal, SessionSummary
from actgent.journal.listing import SessionFilter, SessionKey
from actgent.journal.records import AccountKey, Due, Opened, Spent
from actgent.messages import Sender

from .session_log import SessionLog

HOLDER = "quotas\n"
"""The agent of these sessions; names of agents have one line."""
WEBHOOKS = "webhooks\n"
"""The agent of the sessions in which gateways note how far their webhooks have come."""
_PAGE = 500


@attrs.define(eq=False)
class OwnerAccounts:
    """The accounts of all owners in the periods that run."""

    quotas: Quotas
    journal: Journal | None
    now: Callable[[], float]
    """Unix time in seconds."""
    _periods: dict[Unit, Period] = attrs.field(factory=dict)
    _accounts: dict[tuple[Unit, str], Account] = attrs.field(factory=dict)
    """By unit and the owner's name in ids."""
    _spent: dict[str, Amounts] = attrs.field(factory=dict)
    """What former processes spent, by the id of the session that holds it."""

    async def load(self) -> None:
        """Read what was spent in the periods that run, and erase what belongs to others."""
        if self.journal is None:
            return
        running = {period.name for period in self._running()}
        for summary in await self._held(self.journal):
            if summary.session_id.partition(" ")[0] in running:
                records = await self.journal.load(summary.session_id, agent=HOLDER)
                self._spent[summary.session_id] = spent_in(
                    [record for record in records if isinstance(record, Spent)]
                )
            else:
                await self.journal.delete(summary.session_id, agent=HOLDER)

    async def _held(self, journal: Journal) -> list[SessionSummary]:
        found: list[SessionSummary] = []
        while True:
            after = found[-1].cursor if found else None
            page = await journal.page(SessionFilter(agent=HOLDER), after=after, limit=_PAGE)
            if not page:
                return found
            found += page

    def of(self, owner: str) -> tuple[Account, ...]:
        """The accounts of an owner in the day and the month that run."""
        name = _name_in_ids(owner)
        return tuple([self._account(period, name, owner) for period in self._running()])

    def find(self, key: AccountKey) -> Account | None:
        """The account of this key; None where its period is over, or is not bounded any more."""
        period_name, _, name = key.session_id.partition(" ")
        for period in self._running():
            if period.name == period_name:
                return self._account(period, name, name)
        return None

    def _running(self) -> Iterator[Period]:
        now = self.now()
        for unit in self.quotas.limits:
            period = self._periods.get(unit)
            if period is None or self.quotas.period(unit, now) != period:
                period = self._periods[unit] = self.quotas.period(unit, now)
                self._accounts = {key: each for key, each in self._accounts.items() if key[0] != unit}
            yield period

    def _account(self, period: Period, name: str, owner: str) -> Account:
        account = self._accounts.get((period.unit, name))
        if account is None:
            account = self._accounts[period.unit, name] = self._open(period, name, owner)
        return account

    def _open(self, period: Period, name: str, owner: str) -> Account:
        key = AccountKey(session_id=f"{period.name} {name}", agent=HOLDER)
        limits = self.quotas.limits[period.unit].shared
        known = self._spent.pop(key.session_id, None)
        log = None
        if self.journal is not None:
            log = SessionLog(key.session_id, HOLDER, self.journal, self.journal.epoch_of(key.session_id))
            if known is None:
                # A date to come keeps it from leaving as an old session before its period is over.
                log.add(
                    Opened(owner=Sender(name), agent=HOLDER, created_at=self.now(), limits=limits),
                    Due(at=period.ends_at),
                )
        return Account(key, limits, known or NOTHING, log=log, owner=owner, period=period.unit)


def _name_in_ids(owner: str) -> str:
    """An owner's name as ids of sessions can hold it: a digest stands for one that is long, or that databases refuse."""
    if len(owner) <= MAX_ID and owner.isprintable():
        return owner
    return "\n" + hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()


def is_holder(session: SessionKey | SessionSummary) -> bool:
    """Return True for a session that holds something for actgent itself: the quota of an owner, the place of a webhook."""
    return session.agent in (HOLDER, WEBHOOKS)
