"""Journals for fault injection: one that simulates a crash at a write, and one whose writes are slow or fail."""

import math
from collections.abc import Awaitable, Callable, Sequence

import trio

from actgent.journal.group_commit.row_format import Head, Row
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry, Journal
from actgent.journal.journal_wrappers import WrappedJournal
from actgent.journal.session_list_queries import SessionKey


class CrashingJournal(WrappedJournal):
    """Journal that simulates the death of its process at its n-th write. This write is stored; later calls wait forever.

    Run the test with `writes` = 1, 2, 3 ... until `is_dead` stays False. Each time, run it in a nursery that you cancel when `died`
    is set. Then resume with the journal `inner`, which contains the records that a real process would find.

    Args:
        inner: The journal that stores the writes.
        writes: Number of the write at which the simulated process dies, from 1.
    """

    def __init__(self, inner: Journal, writes: int) -> None:
        super().__init__(inner)
        self.died = trio.Event()
        self._left = writes

    @property
    def is_dead(self) -> bool:
        """True after the write at which the journal crashed."""
        return self.died.is_set()

    def _count(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self.died.set()

    async def _block_if_dead(self) -> None:
        if self.is_dead:
            await trio.sleep_forever()

    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        await self._block_if_dead()
        await self.inner.commit(entry, epoch=epoch, durable=durable)
        self._count()
        await self._block_if_dead()

    async def erase_trees(
        self, roots: Sequence[SessionKey], *, unchanged_since: float = math.inf
    ) -> list[SessionKey]:
        await self._block_if_dead()
        return await self.inner.erase_trees(roots, unchanged_since=unchanged_since)

    def enqueue_write(self, entry: Entry, *, epoch: int) -> None:
        if not self.is_dead:
            self.inner.enqueue_write(entry, epoch=epoch)
            self._count()


WriteFault = Callable[[int], Awaitable[object]]
"""Async function that is called before each write with the number of the write, from 1; it sleeps, raises or returns."""


class FaultyJournal(MemoryJournal):
    """In-memory journal whose writes are slow or fail.

    Args:
        fault: Async function that is called before each write with the number of the write, from 1. If it raises an
            error, such as `JournalFailed("no disk")`, the write fails with that error. None disables faults.
    """

    def __init__(self, fault: WriteFault | None = None) -> None:
        super().__init__()
        self.fault = fault
        self.writes = 0
        """Number of writes, including failed ones."""

    async def _write(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        self.writes += 1
        if self.fault is not None:
            await self.fault(self.writes)
        await super()._write(rows, heads, epoch)
