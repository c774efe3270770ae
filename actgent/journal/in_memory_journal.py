"""An in-memory journal for tests and for agents that need no durability. Its data ends with the process."""

import heapq
from collections import Counter
from collections.abc import Sequence

import outcome
import trio

from .group_commit.base_journal_with_group_commit import GroupedJournal
from .group_commit.read_batching import Found, Stored, read_each
from .group_commit.row_format import Head, Page, Row, decode_page, decode_rows
from .group_commit.snapshot_rows import SnapshotRow, place_snapshot, read_snapshot
from .journal_interface import Snapshot
from .session_list_queries import Cursor, SessionFilter, SessionKey, State


class MemoryJournal(GroupedJournal):
    """Journal in memory. It stores the same encoded rows as other journals, and scans all sessions for lists."""

    identity = b"memory"

    def __init__(self) -> None:
        super().__init__()
        self._stored_epoch = 0
        self._stored_heads: dict[SessionKey, Head] = {}
        self._stored_rows: dict[str, list[Row]] = {}
        self._stored_snapshots: dict[str, SnapshotRow] = {}

    async def _acquire_storage(self) -> int:
        await trio.lowlevel.checkpoint()
        self._stored_epoch += 1  # kept when the journal is closed and reopened: series names contain it
        return self._stored_epoch

    async def _release(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _read_heads(self, keys: Sequence[SessionKey]) -> dict[SessionKey, Head]:
        await trio.lowlevel.checkpoint()
        return {key: self._stored_heads[key] for key in keys if key in self._stored_heads}

    async def _write(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        for row in rows:
            self._stored_rows.setdefault(row.series, []).append(row)
        for head in heads:
            self._stored_heads[head.key] = head
        await trio.lowlevel.checkpoint()

    async def _roll_back(self, key: SessionKey, head: Head | None, epoch: int) -> None:
        await self._erase(key, epoch) if head is None else await self._cut(key, head)

    async def _cut(self, key: SessionKey, head: Head) -> None:
        self._stored_heads[key] = head
        rows = self._stored_rows[head.series]
        rows[:] = [row for row in rows if row.first <= head.records]
        if (known := self._stored_snapshots.get(head.series)) is not None and known.records > head.records:
            del self._stored_snapshots[head.series]
        await trio.lowlevel.checkpoint()

    async def _read_some(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        await trio.lowlevel.checkpoint()
        return read_each(keys, self._read)

    async def _read_tails(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        await trio.lowlevel.checkpoint()
        return read_each(keys, self._read_tail)

    def _read(self, key: SessionKey, snapshot: Snapshot | None = None) -> Stored:
        head = self._stored_heads.get(key)
        if head is None:
            return Stored()
        after = 0 if snapshot is None else snapshot.records
        rows = self._rows_after(head, after)
        records = decode_rows(rows, head=head, identity=self.identity, after=after)
        return Stored(head, records, snapshot)

    def _read_tail(self, key: SessionKey) -> Stored:
        return self._read(key, self._snapshot_of(key))

    def _rows_after(self, head: Head, after: int) -> list[Row]:
        rows = self._stored_rows.get(head.series, ())
        return [row for row in rows if row.first + row.count - 1 > after]

    async def _read_page(self, key: SessionKey, after: int, limit: int) -> Page:
        await trio.lowlevel.checkpoint()
        return self._read_page_blocking(key, after, limit)

    def _read_page_blocking(self, key: SessionKey, after: int, limit: int) -> Page:
        if (head := self._stored_heads.get(key)) is None:
            return Page()
        rows = [row for row in self._rows_after(head, after) if row.first <= after + limit]
        all_rows = self._stored_rows[head.series]
        return decode_page(
            rows,
            head=head,
            identity=self.identity,
            after=after,
            earlier=lambda first, _: [row for row in all_rows if row.first < first],
        )

    async def _find_snapshot(self, key: SessionKey) -> Snapshot | None:
        await trio.lowlevel.checkpoint()
        return self._snapshot_of(key)

    def _snapshot_of(self, key: SessionKey) -> Snapshot | None:
        head = self._stored_heads.get(key)
        row = None if head is None else self._stored_snapshots.get(head.series)
        if head is None or row is None:
            return None
        return read_snapshot(
            row, head=head, last=self._checksum_at(head, row.records), identity=self.identity
        )

    def _checksum_at(self, head: Head, record: int) -> int | None:
        rows = self._stored_rows.get(head.series, ())
        found = (row.checksum for row in rows if row.first <= record < row.first + row.count)
        return next(found, None)

    async def _keep_snapshot(self, key: SessionKey, snapshot: Snapshot, epoch: int) -> bool:
        await trio.lowlevel.checkpoint()
        head = self._stored_heads.get(key)
        last = None if head is None else self._checksum_at(head, snapshot.records)
        if head is None or last is None:
            return False
        row = place_snapshot(snapshot, head.series, last, identity=self.identity, keys=self._keys)
        self._stored_snapshots[head.series] = row
        return True

    async def _drop_snapshots(self, key: SessionKey, epoch: int) -> None:
        await trio.lowlevel.checkpoint()
        if (head := self._stored_heads.get(key)) is not None:
            self._stored_snapshots.pop(head.series, None)

    async def _list_unfinished(self, agent: str) -> list[str]:
        heads = await self._list_heads(agent)
        return [head.session_id for head in heads if head.pending and not head.suspended]

    async def _count_waiting(self) -> dict[str, int]:
        heads = await self._list_heads(None)
        return dict(Counter(head.agent for head in heads if head.pending and not head.suspended))

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

    async def _list_agents(self, session_ids: Sequence[str]) -> Sequence[outcome.Outcome[list[str]]]:
        await trio.lowlevel.checkpoint()
        found: dict[str, list[str]] = {each: [] for each in session_ids}
        for agent, session_id in self._stored_heads:
            if session_id in found:
                found[session_id].append(agent)
        return [outcome.Value([*found[each]]) for each in session_ids]

    async def _list_children(self, keys: Sequence[SessionKey]) -> list[Head]:
        heads, parents = await self._list_heads(None), {*keys}
        return [head for head in heads if (head.parent_agent, head.parent_id) in parents]

    async def list_changed(self, after: SessionKey, limit: int) -> list[SessionKey]:
        await trio.lowlevel.checkpoint()
        return []  # pages scan the session summaries

    async def update_list_order(self, keys: Sequence[SessionKey]) -> None:
        await trio.lowlevel.checkpoint()

    async def select_page(
        self, session_filter: SessionFilter, after: Cursor | None, limit: int
    ) -> list[Head]:
        await trio.lowlevel.checkpoint()
        found = [
            (_place(head), head) for head in self._stored_heads.values() if session_filter.takes(head.summary)
        ]
        if session_filter.oldest_first:
            behind = ((place, head) for place, head in found if after is None or place > after)
            return [head for _, head in heapq.nsmallest(limit, behind, key=_first_field)]
        behind = ((place, head) for place, head in found if after is None or place < after)
        return [head for _, head in heapq.nlargest(limit, behind, key=_first_field)]

    async def count_states(self) -> dict[tuple[str, State], int]:
        await trio.lowlevel.checkpoint()
        return Counter((key.agent, head.state) for key, head in self._stored_heads.items())

    async def _list_to_erase(self, limit: int) -> list[SessionKey]:
        return [head.key for head in await self._list_heads(None) if head.due < 0][:limit]

    async def _erase_trees(
        self, roots: Sequence[SessionKey], unchanged_since: float, epoch: int
    ) -> list[SessionKey]:
        gone: list[SessionKey] = []
        for root in roots:
            tree = [root] if root in self._stored_heads else []
            for above in tree:
                tree += [head.key for head in self._stored_heads.values() if head.summary.parent == above]
            if not any(self._stored_heads[key].is_retained(unchanged_since) for key in tree):
                gone += tree or [root]
                for key in tree:
                    await self._erase(key, epoch)
        return gone

    async def _erase(self, key: SessionKey, epoch: int) -> None:
        head = self._stored_heads.pop(key, None)
        if head is not None:
            self._stored_rows.pop(head.series, None)
            self._stored_snapshots.pop(head.series, None)
        await trio.lowlevel.checkpoint()


def _place(head: Head) -> Cursor:
    return Cursor(head.updated_at, head.agent, head.session_id)


def _first_field(found: tuple[Cursor, Head]) -> Cursor:
    return found[0]
