"""Base class of journals that are opened with `read_only=True` while another process may own and write them.

Each call returns the confirmed records of one moment. Nothing is cached between calls. No lock is taken and nothing
is written, so the owner is not affected.
"""

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NoReturn, Self

import trio

from actgent.errors import UsageError

from .group_commit.base_journal_with_group_commit import CLOSE_TIMEOUT_SECONDS, GroupedJournal
from .journal_interface import Backup, Entry, SessionSummary, Snapshot
from .record_feed_readers import FeedReader
from .session_list_queries import ALL, NO_COUNTS, Cursor, SessionFilter, SessionKey, State


class ReadOnlyJournal(GroupedJournal):
    """A journal without queue, writer and cache. All write methods raise `UsageError`."""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self, None]:
        """Async context manager: open the journal for reading until the block exits.

        Raises:
            ConfigurationError: The journal does not exist, an earlier actgent wrote it, or this process owns
                it.
            JournalDamaged: The journal has no owner and is damaged as a whole.
            JournalVersion: A newer actgent wrote the journal.
        """
        self._heads.bound = 0  # the owner may have changed the session summaries since the last read
        try:
            self._epoch = await self._acquire_storage()
            self._is_open = True
            yield self
        finally:
            self._is_open = False
            with trio.move_on_after(CLOSE_TIMEOUT_SECONDS, shield=True):
                async with self._storage:
                    await self._release()
            self._release_now()

    async def acquire(self) -> int:
        self._raise_read_only()

    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        self._raise_read_only()

    def enqueue_write(self, entry: Entry, *, epoch: int) -> None:
        self._raise_read_only()

    def feed(
        self, session: SessionKey | None = None, *, capacity: int = 1000, records: bool = True
    ) -> AbstractAsyncContextManager[FeedReader]:
        raise UsageError(
            "a read-only journal cannot publish new records: call read() with after= to get them"
        )

    async def erase_trees(
        self, roots: Sequence[SessionKey], *, unchanged_since: float = math.inf
    ) -> list[SessionKey]:
        self._raise_read_only()

    async def delete(self, session_id: str, *, agent: str | None = None) -> None:
        self._raise_read_only()

    async def backup(self, target: Path) -> Backup:
        self._raise_read_only()

    async def keep_snapshot(self, session_id: str, snapshot: Snapshot, *, agent: str, epoch: int) -> bool:
        self._raise_read_only()

    async def drop_snapshots(self, session_id: str, *, agent: str, epoch: int) -> None:
        self._raise_read_only()

    def _raise_read_only(self) -> NoReturn:
        raise UsageError("the journal is open read-only: open it without read_only=True to write")

    async def page(
        self, session_filter: SessionFilter = ALL, *, after: Cursor | None = None, limit: int = 100
    ) -> list[SessionSummary]:
        """Return a page of session summaries after the cursor `after`; None returns the first page.

        Each call scans all sessions, because a reader cannot store the list order.
        """
        self._check_epoch(self._epoch)
        async with self._storage:
            return [head.summary for head in await self.select_page(session_filter, after, limit)]

    async def counts(self, agent: str | None = None) -> dict[State, int]:
        self._check_epoch(self._epoch)
        counts = dict(NO_COUNTS)
        async with self._storage:
            for (name, state), number in (await self.count_states()).items():
                counts[state] += number if agent in (None, name) else 0
        return counts

    # The queue is always empty.

    async def _flush(self, key: SessionKey) -> None:
        self._check_epoch(self._epoch)
        await trio.lowlevel.checkpoint()

    def _check_epoch(self, epoch: int) -> None:
        if not self._is_open:
            raise UsageError(
                "the journal is not open: use it inside its `async with open_journal(...)` block"
            )
