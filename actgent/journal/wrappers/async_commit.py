"""Journal wrapper for `durability="relaxed"`: confirm writes before they are on the disk.

A crash loses the last writes.
"""

from actgent.journal.base import Entry
from actgent.journal.records import CallsStartedRecord

from .wrapper import WrappedJournal


class AsyncCommitJournal(WrappedJournal):
    """Confirms steps when they are queued. They are written in order within about 50 ms.

    A crash loses all steps that were confirmed after one moment, in all sessions. Before a tool call may have an
    effect, its `CallsStartedRecord` record and everything before it are on the disk.
    """

    @property
    def is_relaxed(self) -> bool:
        return True

    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        waits = not entry.records or any(type(record) is CallsStartedRecord for record in entry.records)
        await self.inner.commit(entry, epoch=epoch, durable=durable and waits)
