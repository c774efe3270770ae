"""Quota accounts of owners (see `Quotas`). The usage of all sessions of an owner is charged to the owner's accounts.

In the journal, each account is a session of a reserved agent. This session has the records of the usage in one period, and is
erased at the first start after the period. Quotas are therefore as durable and exact as the limits of sessions.
"""

import hashlib
from collections.abc import Callable, Iterator

import attrs

from actgent.journal.journal_interface import Journal, SessionSummary
from actgent.journal.record_types import AccountKey, NextTimerRecord, SessionCreatedRecord, UsageRecord
from actgent.journal.session_list_queries import QUOTA_AGENT, SessionFilter
from actgent.limits_and_schedules.budget import NOTHING, Account, Amounts, spent_in
from actgent.limits_and_schedules.id_and_number_validation import MAX_ID_CHARS
from actgent.limits_and_schedules.quotas import Period, Quotas, Unit
from actgent.messages import Sender
from actgent.support.attrs_class_repr import FieldRepr

from .session_record_writer import SessionLog

_PAGE = 500


@attrs.define(eq=False, repr=False)
class QuotaAccounts(FieldRepr):
    """Quota accounts of all owners for the current periods."""

    quotas: Quotas
    """Quotas for users, as the runtime was configured."""
    journal: Journal | None
    """Journal of the runtime; None if it has none."""
    now: Callable[[], float]
    """Function that returns the current Unix time in seconds."""
    _periods: dict[Unit, Period] = attrs.field(factory=dict)
    _accounts: dict[tuple[Unit, str], Account] = attrs.field(factory=dict)
    """Accounts of the current periods, by unit (day or month) and owner name."""
    _spent: dict[str, Amounts] = attrs.field(factory=dict)
    """Usage that earlier processes have recorded, by the session id under which the account is stored."""

    async def load(self) -> None:
        """Read the usage of the current periods from the journal, and erase the accounts of past periods."""
        if self.journal is None:
            return
        running = {period.name for period in self._current_periods()}
        for summary in await self._list_quota_sessions(self.journal):
            if summary.session_id.partition(" ")[0] in running:
                records = await self.journal.load(summary.session_id, agent=QUOTA_AGENT)
                self._spent[summary.session_id] = spent_in(
                    [record for record in records if isinstance(record, UsageRecord)]
                )
            else:
                await self.journal.delete(summary.session_id, agent=QUOTA_AGENT)

    async def _list_quota_sessions(self, journal: Journal) -> list[SessionSummary]:
        found: list[SessionSummary] = []
        while True:
            after = found[-1].cursor if found else None
            page = await journal.page(SessionFilter(agent=QUOTA_AGENT), after=after, limit=_PAGE)
            if not page:
                return found
            found += page

    def of(self, owner: str) -> tuple[Account, ...]:
        """Return the quota accounts of an owner for the current day and month."""
        name = _name_in_ids(owner)
        return tuple([self._account(period, name, owner) for period in self._current_periods()])

    def find(self, key: AccountKey) -> Account | None:
        """Return the quota account with this key; None if the account's period is over or the quota has no limits any more."""
        period_name, _, name = key.session_id.partition(" ")
        for period in self._current_periods():
            if period.name == period_name:
                return self._account(period, name, name)
        return None

    def _current_periods(self) -> Iterator[Period]:
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
        key = AccountKey(session_id=f"{period.name} {name}", agent=QUOTA_AGENT)
        limits = self.quotas.limits[period.unit].shared
        known = self._spent.pop(key.session_id, None)
        log = None
        if self.journal is not None:
            log = SessionLog(key.session_id, QUOTA_AGENT, self.journal, self.journal.epoch_of(key.session_id))
            if known is None:
                log.add(
                    SessionCreatedRecord(
                        owner=Sender(name), agent=QUOTA_AGENT, created_at=self.now(), limits=limits
                    )
                )
                # A due date in the future keeps retention from erasing the account before the end of its period.
                log.add(NextTimerRecord(at=period.ends_at))
        return Account(key, limits, known or NOTHING, log=log, owner=owner, period=period.unit)


def _name_in_ids(owner: str) -> str:
    """Return an owner's name as part of a session id. A long or unprintable name is replaced by a digest."""
    if len(owner) <= MAX_ID_CHARS and owner.isprintable():
        return owner
    return "\n" + hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()
