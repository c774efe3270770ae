"""How far a webhook has come, kept in the journal whose sessions it tells of.

It is a session of an agent that no program can have, like the quotas of owners: `since`, the time up to which everything
was dealt with, and for each session that something was told of later the number of its record. Both together say after a
kill where to go on. When its records are many it is written anew, and the former one erased.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from actgent.errors import Fenced
from actgent.journal.base import Entry, Journal
from actgent.journal.listing import SessionFilter, SessionKey
from actgent.journal.records import Changed, Due, Opened
from actgent.messages import Sender
from actgent.sessions.owner_accounts import WEBHOOKS
from actgent.support.logs import logger_of

SLACK = 3600.0
"""Seconds that are looked at again after a start: as far may the clock have been put back meanwhile."""
LONG = 5000
"""Records after which it is written anew."""
MAX_FAILED = 100
"""Failed deliveries that are listed; of more, the latest."""
STEP = 600.0
"""Seconds after which progress is noted where nothing was told."""
_NEVER = 4e9
_log = logger_of(__name__)
_SINCE, _BEGUN, _FAILED, _ENTRY = "since", "begun", "failed", "at "


@attrs.define(eq=False)
class DeliveryCursors:
    """The place of one webhook."""

    journal: Journal
    name: str
    begun: float
    """Unix time in seconds at which the webhook was first there: what was before is not told."""
    since: float
    """Unix time in seconds up to which everything was dealt with."""
    failed: tuple[Mapping[str, Any], ...] = ()
    """What was given up, the latest at the end."""
    _seen: dict[SessionKey, tuple[int, float]] = attrs.field(factory=dict)
    """The last record that was dealt with, and when it was written."""
    _generation: int = 0
    _written: int = LONG
    """Records of this generation."""
    _noted: float = 0.0
    """The `since` that the journal has."""

    @classmethod
    async def load(cls, journal: Journal, name: str, now: float) -> "DeliveryCursors":
        """Find the place of a webhook; a new one begins now.

        Raises:
            JournalError: it cannot be read, or not be written.
        """
        heads = await journal.page(SessionFilter(agent=WEBHOOKS, prefix=f"{name} "))
        known = sorted(head.session_id for head in heads)
        cursors = cls(journal, name, now, now)
        if known:
            cursors._generation = int(known[-1].rpartition(" ")[2])
            for record in await journal.load(known[-1], agent=WEBHOOKS):
                cursors._take(record.changes if isinstance(record, Changed) else {})
        await cursors.shorten()
        for former in known:
            await journal.delete(former, agent=WEBHOOKS)
        return cursors

    def _take(self, changes: Mapping[str, Any]) -> None:
        for name, value in changes.items():
            if name.startswith(_ENTRY):
                agent, _, session_id = name.removeprefix(_ENTRY).partition("\n")
                self._seen[SessionKey(agent, session_id)] = (value[0], value[1])
            elif name == _FAILED:
                self.failed = tuple(value)
            elif name == _SINCE:
                self.since = value
            elif name == _BEGUN:
                self.begun = value

    @property
    def start(self) -> float:
        """Unix time in seconds: what was written before was dealt with."""
        return max(self.begun, self.since - SLACK)

    def seen(self, key: SessionKey) -> int | None:
        """The last record of a session that was dealt with; None where none was behind `start`."""
        found = self._seen.get(key)
        return None if found is None else found[0]

    def mark(self, key: SessionKey, number: int, at: float) -> None:
        """Everything of a session up to this record was dealt with."""
        self._seen[key] = (number, at)
        self._write(self._entry(key))

    def note(self, key: SessionKey, number: int, at: float) -> None:
        """The same, where nothing was told: it is known here, and found out again after a start."""
        self._seen[key] = (number, at)

    def settle(self, at: float) -> None:
        """Everything that was written up to this time was dealt with."""
        self.since = at
        if abs(at - self._noted) >= STEP:
            self._write({})

    def forget(self, key: SessionKey) -> None:
        """A session was erased; one of the same id begins with its first record again."""
        if self._seen.pop(key, None) is not None:
            self._seen[key] = (0, self.since)
            self._write(self._entry(key))

    def fail(self, delivery: Mapping[str, Any]) -> None:
        """List something as given up; what was before under its id is not listed twice."""
        others = [each for each in self.failed if each["webhook_id"] != delivery["webhook_id"]]
        self._list((*others, delivery)[-MAX_FAILED:])

    def redeem(self, webhook_id: str) -> None:
        """List something no more that was given up."""
        self._list(tuple(each for each in self.failed if each["webhook_id"] != webhook_id))

    def _list(self, failed: tuple[Mapping[str, Any], ...]) -> None:
        if failed != self.failed:
            self.failed = failed
            self._write({_FAILED: list(failed)})

    def _entry(self, key: SessionKey) -> dict[str, Any]:
        return {f"{_ENTRY}{key.agent}\n{key.session_id}": list(self._seen[key])}

    def _write(self, changes: Mapping[str, Any]) -> None:
        self._written += 1
        self._noted = self.since
        self._step([Changed(changes={_SINCE: self.since, **changes})])

    def _step(self, records: Iterable[Any]) -> None:
        entry = Entry(session_id=self._holder, agent=WEBHOOKS, records=tuple(records))
        try:
            self.journal.write_soon(entry, epoch=self.journal.epoch_of(self._holder))
        except Fenced:
            _log.warning("webhook %s: another process owns the journal, and tells from here on", self.name)

    @property
    def _holder(self) -> str:
        return f"{self.name} {self._generation:09d}"

    async def shorten(self) -> None:
        """Write everything anew where its records are many."""
        if self._written < LONG:
            return
        former, self._generation, self._written = self._holder, self._generation + 1, 0
        self._seen = {key: seen for key, seen in self._seen.items() if seen[1] >= self.start}
        whole: dict[str, Any] = {_BEGUN: self.begun, _SINCE: self.since, _FAILED: list(self.failed)}
        for key in self._seen:
            whole |= self._entry(key)
        # A date that never comes keeps it from leaving as an old session.
        opened = Opened(owner=Sender(self.name), agent=WEBHOOKS, created_at=self.begun)
        self._step([opened, Changed(changes=whole), Due(at=_NEVER)])
        await self.journal.commit(
            Entry(session_id=self._holder, agent=WEBHOOKS, records=()),
            epoch=self.journal.epoch_of(self._holder),
        )
        await self.journal.delete(former, agent=WEBHOOKS)
