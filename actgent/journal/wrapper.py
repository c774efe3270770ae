"""A journal round another one, for those that change a part of what it does."""

from .base import Entry, Journal, SessionSummary
from .records import Record


class WrappedJournal(Journal):
    """Does what the journal in it does."""

    def __init__(self, inner: Journal) -> None:
        self.inner = inner

    async def acquire(self) -> int:
        return await self.inner.acquire()

    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        await self.inner.commit(entry, epoch=epoch, durable=durable)

    def write_soon(self, entry: Entry, *, epoch: int) -> None:
        self.inner.write_soon(entry, epoch=epoch)

    async def load(self, session_id: str) -> tuple[Record, ...]:
        return await self.inner.load(session_id)

    async def unfinished(self, agent: str) -> list[str]:
        return await self.inner.unfinished(agent)

    async def due(self, agent: str) -> list[tuple[str, float]]:
        return await self.inner.due(agent)

    async def suspended(self, agent: str, *, after: str = "", limit: int = 100) -> list[str]:
        return await self.inner.suspended(agent, after=after, limit=limit)

    async def sessions(self, agent: str | None = None) -> list[SessionSummary]:
        return await self.inner.sessions(agent)

    async def delete(self, session_id: str) -> None:
        await self.inner.delete(session_id)
