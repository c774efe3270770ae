"""Pages and counts of sessions, which cost the turns nothing until somebody asks for them.

Pages are ordered by the last change. Indexes for that would cost each step a tenth of its time, so a storage orders by a
copy of it that is brought up to date before a page is read, for the sessions that changed since the page before.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import trio

from actgent.journal.listing import NO_COUNTS, Cursor, SessionFilter, SessionKey, State

from .steps import Head

AT_ONCE = 500
"""Changed sessions that are put in order at once: those that write have to wait as long."""
MOST_CHANGED = 10_000
"""Changed sessions that are remembered; beyond it all are looked through."""
_FIRST = SessionKey("", "")


class Shelves(Protocol):
    """A storage, as far as its lists are concerned; each call is made while it is locked."""

    async def settle_all(self) -> None:
        """Take back what is in doubt."""

    async def list_changed(self, after: SessionKey, limit: int) -> list[SessionKey]:
        """Sessions behind this one, in an order of its own, whose last change is not in order."""

    async def put_in_order(self, keys: Sequence[SessionKey]) -> None:
        """Put the last change of these sessions in order."""

    async def select_page(self, wanted: SessionFilter, after: Cursor | None, limit: int) -> list[Head]:
        """At most so many heads, by their last change."""

    async def count_states(self) -> dict[tuple[str, State], int]:
        """Count the sessions by agent and state."""


class Pages:
    """Lists the sessions of one storage."""

    def __init__(self, storage: trio.Semaphore, shelves: Shelves) -> None:
        self._storage = storage
        self._shelves = shelves
        self._turn = trio.Lock()
        self._changed: set[SessionKey] | None = None
        """What changed since the last page; None: anything may have."""
        self._states: Counter[tuple[str, State]] | None = None
        """How many sessions of an agent are in a state; None: to be counted."""

    def forget(self) -> None:
        """Anything may have changed."""
        self._changed = self._states = None

    def forget_counts(self) -> None:
        """A session was erased."""
        self._states = None

    def note(self, heads: Mapping[SessionKey, Head], before: Mapping[SessionKey, Head]) -> None:
        """Sessions were written."""
        if self._changed is not None:
            self._changed.update(heads)
            if len(self._changed) > MOST_CHANGED:
                self._changed = None
        if self._states is not None:
            self._states.update((key.agent, head.state) for key, head in heads.items())
            self._states.subtract((key.agent, before[key].state) for key in heads if key in before)

    async def select(self, wanted: SessionFilter, after: Cursor | None, limit: int) -> list[Head]:
        """A page."""
        async with self._turn:
            await self._put_all_in_order()
        async with self._storage:
            await self._shelves.settle_all()
            return await self._shelves.select_page(wanted, after, limit)

    async def _put_all_in_order(self) -> None:
        changed, self._changed = self._changed, set()
        try:
            if changed is None:
                await self._look_through()
            else:
                keys = list(changed)
                for at in range(0, len(keys), AT_ONCE):
                    await self._put_in_order(keys[at : at + AT_ONCE])
        except BaseException:
            self._changed = None
            raise

    async def _look_through(self) -> None:
        last = _FIRST
        while True:
            async with self._storage:
                found = await self._shelves.list_changed(last, AT_ONCE)
            if not found:
                return
            await self._put_in_order(found)
            last = found[-1]

    async def _put_in_order(self, keys: Sequence[SessionKey]) -> None:
        async with self._storage:
            with trio.CancelScope(shield=True):
                await self._shelves.put_in_order(keys)

    async def count(self, agent: str | None) -> dict[State, int]:
        """Count the sessions in each state."""
        counts = dict(NO_COUNTS)
        async with self._storage:
            await self._shelves.settle_all()
            if self._states is None:
                self._states = Counter(await self._shelves.count_states())
            for (name, state), number in self._states.items():
                if agent in (None, name):
                    counts[state] += number
        return counts
