"""Delivery cursors of a webhook, stored in the journal of the sessions that it reports.

The cursors are a session of a reserved agent, like the quotas of owners. It stores `since`, the time up to which all records
were processed, and the number of the last processed record of each session with a later delivery. After a crash the webhook
resumes from both. When the session has many records, its state is written to a new session and the old one is erased.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from actgent.errors import Fenced
from actgent.journal.journal_interface import Entry, Journal
from actgent.journal.record_types import NextTimerRecord, SessionCreatedRecord, StateChangeRecord
from actgent.journal.session_list_queries import WEBHOOK_AGENT, SessionFilter, SessionKey
from actgent.messages import Sender
from actgent.support.safe_logging import logger_of
from actgent.web import json_response_types

CLOCK_SLACK_SECONDS = 3600.0
"""Seconds before `since` that are scanned again after a start, because the clock may have been set back."""
MAX_RECORDS = 5000
"""Records after which the state is written to a new session."""
MAX_FAILED = 100
"""Maximum number of listed failed deliveries; the oldest are dropped."""
CHECKPOINT_SECONDS = 600.0
"""Seconds by which `since` may advance before it is written without a delivery."""
_NEVER = 4e9
_log = logger_of(__name__)
_SINCE, _BEGUN, _FAILED, _ENTRY = "since", "begun", "failed", "at "


@attrs.define(eq=False)
class DeliveryCursors:
    """Delivery cursors of one webhook: the numbers of the last processed record of its sessions."""

    journal: Journal
    name: str
    created_at: float
    """Unix time in seconds at which the webhook was first opened; earlier records are not reported."""
    since: float
    """Unix time in seconds up to which the records of all sessions were processed."""
    failed: tuple[json_response_types.FailedDelivery, ...] = ()
    """Notifications that could not be delivered, the newest last."""
    _seen: dict[SessionKey, tuple[int, float]] = attrs.field(factory=dict)
    """Number and Unix time in seconds of the last processed record of each session."""
    _generation: int = 0
    """Number in the id of the session that currently stores the cursors."""
    _written: int = MAX_RECORDS
    """Number of records in the current cursor session; at `MAX_RECORDS`, a new session replaces it."""
    _stored_since: float = 0.0
    """Value of `since` that the journal has."""

    @classmethod
    async def load(cls, journal: Journal, name: str, now: float) -> "DeliveryCursors":
        """Read the cursors of a webhook from the journal. New cursors start at the Unix time `now`.

        Raises:
            JournalError: The cursors cannot be read or written.
        """
        heads = await journal.page(SessionFilter(agent=WEBHOOK_AGENT, prefix=f"{name} "))
        known = sorted(head.session_id for head in heads)
        cursors = cls(journal, name, now, now)
        if known:
            cursors._generation = int(known[-1].rpartition(" ")[2])
            for record in await journal.load(known[-1], agent=WEBHOOK_AGENT):
                cursors._apply(record.changes if isinstance(record, StateChangeRecord) else {})
        await cursors.compact()
        for former in known:
            await journal.delete(former, agent=WEBHOOK_AGENT)
        return cursors

    def _apply(self, changes: Mapping[str, Any]) -> None:
        for name, value in changes.items():
            if name.startswith(_ENTRY):
                agent, _, session_id = name.removeprefix(_ENTRY).partition("\n")
                self._seen[SessionKey(agent, session_id)] = (value[0], value[1])
            elif name == _FAILED:
                self.failed = tuple(value)
            elif name == _SINCE:
                self.since = value
            elif name == _BEGUN:
                self.created_at = value

    @property
    def start(self) -> float:
        """Unix time in seconds from which the journal is scanned; earlier records have been processed."""
        return max(self.created_at, self.since - CLOCK_SLACK_SECONDS)

    def seen(self, key: SessionKey) -> int | None:
        """Return the number of the last processed record of a session; None if no record after `start` was processed."""
        found = self._seen.get(key)
        return None if found is None else found[0]

    def mark(self, key: SessionKey, number: int, at: float) -> None:
        """Record in the journal that a session's records up to `number` were processed. `at` is the Unix time of that record."""
        self._seen[key] = (number, at)
        self._write(self._entry(key))

    def mark_in_memory(self, key: SessionKey, number: int, at: float) -> None:
        """Set the cursor of a session without a write to the journal, because the records up to `number` need no notification.

        After a restart these records are read again.
        """
        self._seen[key] = (number, at)

    def advance(self, at: float) -> None:
        """Set the Unix time up to which the records of all sessions were processed.

        The time is written to the journal if it differs from the stored time by at least `CHECKPOINT_SECONDS`.
        """
        self.since = at
        if abs(at - self._stored_since) >= CHECKPOINT_SECONDS:
            self._write({})

    def reset(self, key: SessionKey) -> None:
        """Reset the cursor of an erased session, so that a new session with the same id is reported from its first record."""
        if self._seen.pop(key, None) is not None:
            self._seen[key] = (0, self.since)
            self._write(self._entry(key))

    def fail(self, delivery: json_response_types.FailedDelivery) -> None:
        """Add a delivery to the failed deliveries. It replaces an earlier entry with the same notification id."""
        others = [each for each in self.failed if each["webhook_id"] != delivery["webhook_id"]]
        self._set_failed((*others, delivery)[-MAX_FAILED:])

    def remove_failed(self, webhook_id: str) -> None:
        """Remove the notification with this id from the list of failed deliveries; an unknown id is ignored."""
        self._set_failed(tuple(each for each in self.failed if each["webhook_id"] != webhook_id))

    def _set_failed(self, failed: tuple[json_response_types.FailedDelivery, ...]) -> None:
        if failed != self.failed:
            self.failed = failed
            self._write({_FAILED: list(failed)})

    def _entry(self, key: SessionKey) -> dict[str, Any]:
        return {f"{_ENTRY}{key.agent}\n{key.session_id}": list(self._seen[key])}

    def _write(self, changes: Mapping[str, Any]) -> None:
        self._written += 1
        self._stored_since = self.since
        self._append([StateChangeRecord(changes={_SINCE: self.since, **changes})])

    def _append(self, records: Iterable[Any]) -> None:
        entry = Entry(session_id=self._holder, agent=WEBHOOK_AGENT, records=tuple(records))
        try:
            self.journal.enqueue_write(entry, epoch=self.journal.epoch_of(self._holder))
        except Fenced:
            _log.warning(
                "webhook %s: another process owns the journal and sends the notifications", self.name
            )

    @property
    def _holder(self) -> str:
        return f"{self.name} {self._generation:09d}"

    async def compact(self) -> None:
        """If the session of this state has `MAX_RECORDS` records, write the state to a new session and erase the old session."""
        if self._written < MAX_RECORDS:
            return
        former, self._generation, self._written = self._holder, self._generation + 1, 0
        self._seen = {key: seen for key, seen in self._seen.items() if seen[1] >= self.start}
        whole: dict[str, Any] = {_BEGUN: self.created_at, _SINCE: self.since, _FAILED: list(self.failed)}
        for key in self._seen:
            whole |= self._entry(key)
        # A due date far in the future keeps retention from deleting the session.
        opened = SessionCreatedRecord(
            owner=Sender(self.name), agent=WEBHOOK_AGENT, created_at=self.created_at
        )
        self._append([opened, StateChangeRecord(changes=whole), NextTimerRecord(at=_NEVER)])
        await self.journal.commit(
            Entry(session_id=self._holder, agent=WEBHOOK_AGENT, records=()),
            epoch=self.journal.epoch_of(self._holder),
        )
        await self.journal.delete(former, agent=WEBHOOK_AGENT)
