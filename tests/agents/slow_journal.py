"""A journal in memory whose writes take a second while it is slow."""

import copy

import trio

from actgent.journal.in_memory_journal import MemoryJournal


class SlowJournal(MemoryJournal):
    """A journal whose writes take a second while it is slow; `stored()` returns the records that a new process would find."""

    is_slow = False

    async def _write(self, *args):
        if self.is_slow:
            await trio.sleep(1)
        await super()._write(*args)

    def stored(self):
        found = type(self)()
        for name in ("_stored_heads", "_stored_rows", "_stored_snapshots"):
            setattr(found, name, copy.deepcopy(getattr(self, name)))
        return found
