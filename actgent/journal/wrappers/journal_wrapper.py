"""Base class of journals that wrap another journal."""

import math
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from actgent.journal.journal_interface import Backup, Entry, Journal, SessionSummary, SessionTail, Snapshot
from actgent.journal.record_feed_backlog import FeedReader, Written
from actgent.journal.record_types import CallsStartedRecord, Record
from actgent.journal.session_list_queries import ALL, Cursor, SessionFilter, SessionKey, State


class WrappedJournal(Journal):
    """Journal that forwards all calls to the journal that it wraps."""

    def __init__(self, inner: Journal) -> None:
        self.inner = inner
        self.statistics = inner.statistics

    async def acquire(self) -> int:
        return await self.inner.acquire()

    def epoch_of(self, session_id: str) -> int:
        return self.inner.epoch_of(session_id)

    @property
    def is_shared(self) -> bool:
        return self.inner.is_shared

    @property
    def is_relaxed(self) -> bool:
        return self.inner.is_relaxed

    def owns(self, session_id: str) -> bool:
        return self.inner.owns(session_id)

    def have_same_owner(self, session_id: str, other_id: str) -> bool:
        return self.inner.have_same_owner(session_id, other_id)

    def sibling_url(self, name: str) -> str | None:
        return self.inner.sibling_url(name)

    def new_session_id(self) -> str:
        return self.inner.new_session_id()

    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        await self.inner.commit(entry, epoch=epoch, durable=durable)

    def enqueue_write(self, entry: Entry, *, epoch: int) -> None:
        self.inner.enqueue_write(entry, epoch=epoch)

    async def load(self, session_id: str, *, agent: str | None = None) -> tuple[Record, ...]:
        return await self.inner.load(session_id, agent=agent)

    async def read(
        self, session_id: str, *, agent: str | None = None, after: int = 0, limit: int = 1000
    ) -> tuple[Record, ...]:
        return await self.inner.read(session_id, agent=agent, after=after, limit=limit)

    async def read_steps(
        self, session_id: str, *, agent: str | None = None, after: int = 0, limit: int = 1000
    ) -> tuple[Written, ...]:
        return await self.inner.read_steps(session_id, agent=agent, after=after, limit=limit)

    def feed(
        self, session: SessionKey | None = None, *, capacity: int = 1000, records: bool = True
    ) -> AbstractAsyncContextManager[FeedReader]:
        return self.inner.feed(session, capacity=capacity, records=records)

    def read_blocking(
        self, session_id: str, *, agent: str, after: int = 0, limit: int = 1000
    ) -> tuple[Record, ...]:
        return self.inner.read_blocking(session_id, agent=agent, after=after, limit=limit)

    async def load_tail(self, session_id: str, *, agent: str) -> SessionTail:
        return await self.inner.load_tail(session_id, agent=agent)

    async def find_snapshot(self, session_id: str, *, agent: str) -> Snapshot | None:
        return await self.inner.find_snapshot(session_id, agent=agent)

    async def keep_snapshot(self, session_id: str, snapshot: Snapshot, *, agent: str, epoch: int) -> bool:
        return await self.inner.keep_snapshot(session_id, snapshot, agent=agent, epoch=epoch)

    async def drop_snapshots(self, session_id: str, *, agent: str, epoch: int) -> None:
        await self.inner.drop_snapshots(session_id, agent=agent, epoch=epoch)

    async def unfinished(self, agent: str) -> list[str]:
        return await self.inner.unfinished(agent)

    async def waiting(self) -> dict[str, int]:
        return await self.inner.waiting()

    async def due(self, agent: str) -> list[tuple[str, float]]:
        return await self.inner.due(agent)

    async def suspended(self, agent: str, *, after: str = "", limit: int = 100) -> list[str]:
        return await self.inner.suspended(agent, after=after, limit=limit)

    async def sessions(self, agent: str | None = None) -> list[SessionSummary]:
        return await self.inner.sessions(agent)

    async def to_erase(self, limit: int = 100) -> list[SessionKey]:
        return await self.inner.to_erase(limit)

    async def erase_trees(
        self, roots: Sequence[SessionKey], *, unchanged_since: float = math.inf
    ) -> list[SessionKey]:
        return await self.inner.erase_trees(roots, unchanged_since=unchanged_since)

    async def backup(self, target: Path) -> Backup:
        return await self.inner.backup(target)

    async def agents_with_session(self, session_id: str) -> list[str]:
        return await self.inner.agents_with_session(session_id)

    async def head(self, agent: str, session_id: str) -> SessionSummary | None:
        return await self.inner.head(agent, session_id)

    def cached_head(self, agent: str, session_id: str) -> SessionSummary | None:
        return self.inner.cached_head(agent, session_id)

    async def children(self, agent: str, session_id: str) -> list[SessionSummary]:
        return await self.inner.children(agent, session_id)

    async def children_of(self, keys: Sequence[SessionKey]) -> list[SessionSummary]:
        return await self.inner.children_of(keys)

    async def page(
        self, session_filter: SessionFilter = ALL, *, after: Cursor | None = None, limit: int = 100
    ) -> list[SessionSummary]:
        return await self.inner.page(session_filter, after=after, limit=limit)

    async def counts(self, agent: str | None = None) -> dict[State, int]:
        return await self.inner.counts(agent)

    async def delete(self, session_id: str, *, agent: str | None = None) -> None:
        await self.inner.delete(session_id, agent=agent)


class AsyncCommitJournal(WrappedJournal):
    """Journal wrapper for `durability="relaxed"`: confirms steps when they are queued. They are written in order within about 50 ms.

    A crash loses all steps that were confirmed after one moment, in all sessions. Before a tool call may have an
    effect, its `CallsStartedRecord` record and everything before it are on the disk.
    """

    @property
    def is_relaxed(self) -> bool:
        return True

    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        waits = not entry.records or any(type(record) is CallsStartedRecord for record in entry.records)
        await self.inner.commit(entry, epoch=epoch, durable=durable and waits)
