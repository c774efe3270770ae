"""A journal that is looked at and never written, while another process may own it and write.

Each call shows what was confirmed when it was made, of one moment; nothing is kept from one call to the next. No lock is
taken, and nothing is written, so an owner does not notice.
"""

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NoReturn, Self

import trio

from actgent.errors import UsageError

from .base import Backup, Entry, SessionSummary, Snapshot
from .feed import FeedReader
from .grouped import LEAVING, GroupedJournal, KnownHeads
from .listing import ALL, NO_COUNTS, Cursor, SessionFilter, SessionKey, State


class ReadOnlyJournal(GroupedJournal):
    """What members have in common that are opened to be looked at: no queue, no writer and nothing remembered."""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self, None]:
        """The block in which it can be read.

        Raises:
            ConfigurationError: there is no journal, or one of an earlier actgent, or this process owns it itself.
            JournalDamaged: nobody uses the file, and it cannot be trusted as a whole.
            JournalVersion: a newer actgent wrote it.
        """
        self._heads = KnownHeads(bound=0)  # what was read may be another by now
        try:
            self._epoch = await self._take()
            self._is_open = True
            yield self
        finally:
            self._is_open = False
            with trio.move_on_after(LEAVING, shield=True):
                async with self._storage:
                    await self._release()
            self._let_go()

    async def acquire(self) -> int:
        self._refuse()

    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        self._refuse()

    def write_soon(self, entry: Entry, *, epoch: int) -> None:
        self._refuse()

    def feed(
        self, session: SessionKey | None = None, *, capacity: int = 1000, records: bool = True
    ) -> AbstractAsyncContextManager[FeedReader]:
        raise UsageError(
            "a journal that is only looked at is not told what its owner writes: read() behind a number shows it"
        )

    async def erase_trees(
        self, roots: Sequence[SessionKey], *, unchanged_since: float = math.inf
    ) -> list[SessionKey]:
        self._refuse()

    async def delete(self, session_id: str, *, agent: str | None = None) -> None:
        self._refuse()

    async def backup(self, target: Path) -> Backup:
        self._refuse()

    async def keep_snapshot(self, session_id: str, snapshot: Snapshot, *, agent: str, epoch: int) -> bool:
        self._refuse()

    async def drop_snapshots(self, session_id: str, *, agent: str, epoch: int) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UsageError(
            "the journal is open read-only: nothing can be written, and nobody owns it; open it without read_only=True"
        )

    async def page(
        self, wanted: SessionFilter = ALL, *, after: Cursor | None = None, limit: int = 100
    ) -> list[SessionSummary]:
        """List sessions as ever; each page looks through all sessions, as nothing may be kept in order for it."""
        self._check_epoch(self._epoch)
        async with self._storage:
            return [head.summary for head in await self.select_page(wanted, after, limit)]

    async def counts(self, agent: str | None = None) -> dict[State, int]:
        self._check_epoch(self._epoch)
        counts = dict(NO_COUNTS)
        async with self._storage:
            for (name, state), number in (await self.count_states()).items():
                counts[state] += number if agent in (None, name) else 0
        return counts

    # Nothing is queued.

    async def _flush(self, key: SessionKey) -> None:
        self._check_epoch(self._epoch)
        await trio.lowlevel.checkpoint()

    def _check_epoch(self, epoch: int) -> None:
        if not self._is_open:
            raise UsageError("the journal is used outside of its `async with open_journal(...)` block")
