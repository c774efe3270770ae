"""A journal that ends with its process: for tests, and for agents that need no more."""

from collections.abc import Sequence

import trio

from .group import GroupedJournal
from .reading import Found, Stored, read_each
from .steps import Head, Row, decode_rows


class MemoryJournal(GroupedJournal):
    """Holds what the others would write, as bytes."""

    identity = b"memory"

    def __init__(self) -> None:
        super().__init__()
        self._stored_heads: dict[str, Head] = {}
        self._stored_rows: dict[str, list[Row]] = {}

    async def _take(self) -> int:
        await trio.lowlevel.checkpoint()
        return self._epoch + 1

    async def _release(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _read_heads(self, session_ids: Sequence[str]) -> dict[str, Head]:
        await trio.lowlevel.checkpoint()
        return {key: self._stored_heads[key] for key in session_ids if key in self._stored_heads}

    async def _write(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        for row in rows:
            self._stored_rows.setdefault(row.session_id, []).append(row)
        for head in heads:
            self._stored_heads[head.session_id] = head
        await trio.lowlevel.checkpoint()

    async def _take_back(self, session_id: str, head: Head | None, epoch: int) -> None:
        await self._erase(session_id, epoch) if head is None else await self._cut(session_id, head)

    async def _cut(self, session_id: str, head: Head) -> None:
        self._stored_heads[session_id] = head
        rows = self._stored_rows[session_id]
        rows[:] = [row for row in rows if row.first <= head.records]
        await trio.lowlevel.checkpoint()

    async def _read_some(self, session_ids: Sequence[str]) -> Sequence[Found]:
        await trio.lowlevel.checkpoint()
        return read_each(session_ids, self._read)

    def _read(self, session_id: str) -> Stored:
        head = self._stored_heads.get(session_id)
        if head is None:
            return Stored()
        return Stored(
            head, decode_rows(self._stored_rows.get(session_id, ()), head=head, identity=self.identity)
        )

    async def _list_unfinished(self, agent: str) -> list[str]:
        heads = await self._list_heads(agent)
        return [head.session_id for head in heads if head.pending and not head.suspended]

    async def _list_due(self, agent: str) -> list[tuple[str, float]]:
        heads = await self._list_heads(agent)
        found = [(head.session_id, head.due) for head in heads if head.due and not head.closed]
        return sorted(found, key=lambda each: (each[1], each[0]))

    async def _list_suspended(self, agent: str, after: str, limit: int) -> list[str]:
        heads = await self._list_heads(agent)
        found = [head.session_id for head in heads if head.suspended and not head.closed]
        return sorted(each for each in found if each > after)[:limit]

    async def _list_heads(self, agent: str | None) -> list[Head]:
        await trio.lowlevel.checkpoint()
        heads = [head for head in self._stored_heads.values() if agent in (None, head.agent)]
        return sorted(heads, key=lambda head: (head.created_at, head.session_id))

    async def _erase(self, session_id: str, epoch: int) -> None:
        self._stored_heads.pop(session_id, None)
        self._stored_rows.pop(session_id, None)
        await trio.lowlevel.checkpoint()
