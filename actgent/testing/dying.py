"""A process that dies, without a process: a journal after one of whose writes nothing happens any more."""

import math
from collections.abc import Sequence

import trio

from actgent.journal.base import Entry, Journal
from actgent.journal.listing import SessionKey
from actgent.journal.wrapped import WrappedJournal


class DyingJournal(WrappedJournal):
    """A journal whose process dies at its n-th write: that one is there, and who writes after it waits for ever.

    Run it with n = 1, 2, 3 ... until `is_dead` stays False, each time in a nursery that is cancelled once `died` is
    set; then start again over `inner`, which is what a real process would find.

    Args:
        inner: The journal that stays.
        writes: At which of its writes it dies.
    """

    def __init__(self, inner: Journal, writes: int) -> None:
        super().__init__(inner)
        self.died = trio.Event()
        self._left = writes

    @property
    def is_dead(self) -> bool:
        """True once it came to the write at which it dies."""
        return self.died.is_set()

    def _count(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self.died.set()

    async def _go_on(self) -> None:
        if self.is_dead:
            await trio.sleep_forever()

    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        await self._go_on()
        await self.inner.commit(entry, epoch=epoch, durable=durable)
        self._count()
        await self._go_on()

    async def erase_trees(
        self, roots: Sequence[SessionKey], *, unchanged_since: float = math.inf
    ) -> list[SessionKey]:
        await self._go_on()
        return await self.inner.erase_trees(roots, unchanged_since=unchanged_since)

    def write_soon(self, entry: Entry, *, epoch: int) -> None:
        if not self.is_dead:
            self.inner.write_soon(entry, epoch=epoch)
            self._count()
