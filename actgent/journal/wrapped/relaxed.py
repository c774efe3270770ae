"""A journal that confirms what the disk does not have yet: faster, and a crash loses the last moments."""

from actgent.journal.base import Entry
from actgent.journal.records import Started

from .wrapper import WrappedJournal


class RelaxedJournal(WrappedJournal):
    """Confirms steps when they are queued; they are written in their order, within about 50 ms.

    A crash loses the last of them, of all sessions those that were confirmed after one moment. Before a tool call
    may have an effect it is on the disk even so, and with it all that came before.
    """

    @property
    def is_relaxed(self) -> bool:
        return True

    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        waits = not entry.records or any(type(record) is Started for record in entry.records)
        await self.inner.commit(entry, epoch=epoch, durable=durable and waits)
