"""`FaultyJournal`: a journal in memory whose writes take time or fail, as those of a disk do."""

from collections.abc import Awaitable, Callable, Sequence

from actgent.journal.grouped import Head, Row
from actgent.journal.memory import MemoryJournal

WriteFault = Callable[[int], Awaitable[object]]
"""An async function that gets the number of a write, counted from 1, and sleeps, raises or does nothing."""


class FaultyJournal(MemoryJournal):
    """A journal in memory whose writes are slow or fail, as `fault` says; set `fault` to None for a disk that works.

    Args:
        fault: An async function that is awaited before each write, with the number of the write, counted from 1. If it
            raises an error, such as `JournalFailed("no disk")`, the write fails with that error.
    """

    def __init__(self, fault: WriteFault | None = None) -> None:
        super().__init__()
        self.fault = fault
        self.writes = 0
        """Writes so far, failed ones too."""

    async def _write(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        self.writes += 1
        if self.fault is not None:
            await self.fault(self.writes)
        await super()._write(rows, heads, epoch)
