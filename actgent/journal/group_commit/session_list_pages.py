"""Pages and counts of sessions. Without requests for them, they add no cost to writes.

Pages are ordered by the last change. Indexes on the sessions table would make each batch 10 % slower. So a storage
keeps a copy of the columns, which is updated before a page is read, for the sessions that changed since the previous
page.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import trio

from actgent.journal.session_list_queries import NO_COUNTS, Cursor, SessionFilter, SessionKey, State

from .row_format import Head
from .session_summary_cache import HeadCache

SESSIONS_PER_UPDATE = 500
"""Maximum number of sessions whose list order is updated in one transaction. Writers wait for the transaction."""
_FIRST = SessionKey("", "")


class SessionListStorage(Protocol):
    """Methods of a storage for lists of sessions. The storage is locked during each call."""

    async def resolve_all(self) -> None:
        """Roll back failed batches that may be stored."""

    async def list_changed(self, after: SessionKey, limit: int) -> list[SessionKey]:
        """Return up to `limit` sessions that changed since their position in the list was stored.

        Only keys greater than `after` are returned, in order.
        """

    async def update_list_order(self, keys: Sequence[SessionKey]) -> None:
        """Store the new list positions of these sessions, given by the time of their last change."""

    async def select_page(
        self, session_filter: SessionFilter, after: Cursor | None, limit: int
    ) -> list[Head]:
        """Return up to `limit` session summaries in order of the last change."""

    async def count_states(self) -> dict[tuple[str, State], int]:
        """Return the number of sessions by agent and state."""


class Pages:
    """Lists and counts the sessions of one storage."""

    def __init__(self, storage: trio.Semaphore, shelves: SessionListStorage, heads: HeadCache) -> None:
        self._storage = storage
        self._lists = shelves
        self._heads = heads
        self._turn = trio.Lock()

    async def select(self, session_filter: SessionFilter, after: Cursor | None, limit: int) -> list[Head]:
        """Return at most `limit` summaries of matching sessions after the cursor `after`.

        The new list positions of changed sessions are stored first.
        """
        async with self._turn:
            await self._update_all_list_orders()
        async with self._storage:
            await self._lists.resolve_all()
            return await self._lists.select_page(session_filter, after, limit)

    async def _update_all_list_orders(self) -> None:
        changed, self._heads.changed = self._heads.changed, set()
        try:
            if changed is None:
                await self._rescan()
            else:
                keys = list(changed)
                for at in range(0, len(keys), SESSIONS_PER_UPDATE):
                    await self._update_list_order(keys[at : at + SESSIONS_PER_UPDATE])
        except BaseException:
            self._heads.changed = None
            raise

    async def _rescan(self) -> None:
        last = _FIRST
        while True:
            async with self._storage:
                found = await self._lists.list_changed(last, SESSIONS_PER_UPDATE)
            if not found:
                return
            await self._update_list_order(found)
            last = found[-1]

    async def _update_list_order(self, keys: Sequence[SessionKey]) -> None:
        async with self._storage:
            with trio.CancelScope(shield=True):
                await self._lists.update_list_order(keys)

    async def count(self, agent: str | None) -> dict[State, int]:
        """Return the number of sessions in each state, for one agent or all agents.

        The first call queries the storage. Later calls use counters that are updated by each write.
        """
        counts = dict(NO_COUNTS)
        async with self._storage:
            await self._lists.resolve_all()
            if self._heads.states is None:
                self._heads.states = Counter(await self._lists.count_states())
            for (name, state), number in self._heads.states.items():
                if agent in (None, name):
                    counts[state] += number
        return counts
