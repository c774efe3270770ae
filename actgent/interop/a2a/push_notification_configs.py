"""Configurations of A2A push notifications, stored in the same journal as the sessions of their tasks.

A session of a reserved agent has the configurations, like the delivery cursors of webhooks. When this session has many
records, the configurations are written to a new session and the old one is erased.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from actgent.journal.journal_interface import Entry, Journal
from actgent.journal.record_types import NextTimerRecord, SessionCreatedRecord, StateChangeRecord
from actgent.journal.session_list_queries import WEBHOOK_AGENT, SessionFilter, SessionKey
from actgent.messages import Sender
from actgent.web.problem_documents import Problem

MAX_PER_TASK = 10
MAX_PER_SESSION = 100
MAX_RECORDS = 5000
"""Number of records after which the configurations move to a new session."""
_NAME = "a2a-push"
_NEVER = 4e9


@attrs.frozen(kw_only=True)
class PushConfig:
    """Configuration of the push notifications of one task."""

    id: str
    agent: str
    session_id: str
    message_id: str
    created_at: float
    """Unix time in seconds at which the task's session was created. A later session with the same id has another time."""
    url: str
    after: int
    """Number of the record after which updates of the task are sent."""
    token: str = attrs.field(default="", repr=False)
    """Token with which the receiver verifies the notification, sent as the header `X-A2A-Notification-Token`."""
    scheme: str = ""
    """HTTP authentication scheme of the notifications; empty without authentication."""
    credentials: str = attrs.field(default="", repr=False)

    @property
    def key(self) -> SessionKey:
        """Agent and id of the task's session."""
        return SessionKey(self.agent, self.session_id)

    @property
    def entry(self) -> str:
        """Name under which the journal stores the configuration. None of its parts contains a newline."""
        return f"{self.agent}\n{self.session_id}\n{self.message_id}\n{self.id}"

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers to add to the notifications: token and authentication."""
        found = {"x-a2a-notification-token": self.token} if self.token else {}
        if self.scheme:
            found["authorization"] = f"{self.scheme} {self.credentials}".strip()
        return found


@attrs.define(eq=False)
class PushConfigs:
    """Push notification configurations of all tasks of a gateway."""

    journal: Journal
    _by_session: dict[SessionKey, dict[str, PushConfig]] = attrs.field(factory=dict)
    _generation: int = 0
    """Number in the id of the session that currently stores the configurations."""
    _written: int = MAX_RECORDS
    """Number of records in the session that currently stores the configurations."""

    @classmethod
    async def load(cls, journal: Journal) -> "PushConfigs":
        """Read the configurations from the journal, without those of erased sessions.

        Raises:
            JournalError: The journal cannot be read or written.
        """
        heads = await journal.page(SessionFilter(agent=WEBHOOK_AGENT, prefix=f"{_NAME} "))
        known = sorted(head.session_id for head in heads)
        configs = cls(journal)
        if known:
            configs._generation = int(known[-1].rpartition(" ")[2])
            for record in await journal.load(known[-1], agent=WEBHOOK_AGENT):
                if isinstance(record, StateChangeRecord):
                    configs._apply(record.changes)
        for key in list(configs._by_session):
            if await journal.head(*key) is None:
                del configs._by_session[key]
        for former in known[:-1]:
            await journal.delete(former, agent=WEBHOOK_AGENT)
        return configs

    def _apply(self, changes: Mapping[str, Any]) -> None:
        for entry, value in changes.items():
            agent, session_id, _, _ = entry.split("\n")
            key = SessionKey(agent, session_id)
            if value is not None:
                self._by_session.setdefault(key, {})[entry] = PushConfig(**value)
            elif key in self._by_session:
                self._by_session[key].pop(entry, None)

    def of_session(self, key: SessionKey) -> Sequence[PushConfig]:
        """Return the configurations of all tasks of a session, including those of erased sessions with the same id."""
        return tuple(self._by_session.get(key, {}).values())

    def of_task(self, key: SessionKey, message_id: str, created_at: float) -> Sequence[PushConfig]:
        """Return the push configurations of a task, in order of their creation.

        `created_at` is the creation time of the session. Configurations of a deleted session with the same id have another
        time, and are omitted.
        """
        return tuple(
            each
            for each in self.of_session(key)
            if each.message_id == message_id and each.created_at == created_at
        )

    def find(self, config: PushConfig) -> PushConfig | None:
        """Return the stored configuration with the same id as `config`; None if it was removed."""
        return self._by_session.get(config.key, {}).get(config.entry)

    async def add(self, config: PushConfig) -> None:
        """Store a configuration, or replace the configuration with the same id.

        The new configuration gets the field `after` of the replaced one, so that no update is sent twice.

        Raises:
            Problem: The task or the session already has the maximum number of configurations.
        """
        known = self._by_session.get(config.key, {})
        former = known.get(config.entry)
        if former is not None and former.created_at == config.created_at:
            config = attrs.evolve(config, after=former.after)
            if config == former:
                return
        elif (
            len(known) >= MAX_PER_SESSION
            or len(self.of_task(config.key, config.message_id, config.created_at)) >= MAX_PER_TASK
        ):
            raise Problem(
                "invalid",
                f"a task must have at most {MAX_PER_TASK} push notification configurations, and a context {MAX_PER_SESSION}",
            )
        self._by_session.setdefault(config.key, {})[config.entry] = config
        try:
            await self._write({config.entry: attrs.asdict(config)})
        except BaseException:  # the client gets an error, so nothing may be sent
            if self.find(config) is config:
                self._by_session[config.key].pop(config.entry)
                if former is not None:
                    self._by_session[config.key][config.entry] = former
            raise

    async def remove(self, configs: Iterable[PushConfig]) -> None:
        """Remove configurations; unknown ones are ignored."""
        changes: dict[str, Any] = {}
        for config in configs:
            known = self._by_session.get(config.key, {})
            if known.pop(config.entry, None) is not None:
                changes[config.entry] = None
            if not known:
                self._by_session.pop(config.key, None)
        if changes:
            await self._write(changes)

    async def _write(self, changes: Mapping[str, Any]) -> None:
        self._written += 1
        if self._written <= MAX_RECORDS:
            await self._commit([StateChangeRecord(changes=changes)])
            return
        former, self._generation, self._written = self._holder, self._generation + 1, 0
        whole = {
            entry: attrs.asdict(each) for known in self._by_session.values() for entry, each in known.items()
        }
        # A due date far in the future keeps retention from deleting the session.
        opened = SessionCreatedRecord(owner=Sender(_NAME), agent=WEBHOOK_AGENT, created_at=0.0)
        try:
            await self._commit([opened, StateChangeRecord(changes=whole), NextTimerRecord(at=_NEVER)])
        except BaseException:
            self._written = MAX_RECORDS  # the next write begins another session with all configurations
            raise
        await self.journal.delete(former, agent=WEBHOOK_AGENT)

    async def _commit(self, records: Iterable[Any]) -> None:
        entry = Entry(session_id=self._holder, agent=WEBHOOK_AGENT, records=tuple(records))
        await self.journal.commit(entry, epoch=self.journal.epoch_of(self._holder))

    @property
    def _holder(self) -> str:
        return f"{_NAME} {self._generation:09d}"
