"""Journal for the processes of a cluster: each process owns some partitions of the sessions.

No lock lasts longer than a statement. Acquiring a partition raises its epoch, and each write names the epochs of its
partitions. So a process that hangs holds no lock, and its late writes are rejected. An owner of the whole journal
(`PostgresJournal`) and cluster processes exclude each other.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Any

import psycopg
import psycopg.sql
import trio

from actgent.errors import Fenced, JournalDamaged, JournalError, JournalFailed, JournalVersion
from actgent.journal.cluster_interface import PoolLayout
from actgent.journal.group_commit.base_journal_with_group_commit import ALL_SESSIONS
from actgent.journal.group_commit.pending_write_queue import QueuedBatch
from actgent.journal.group_commit.read_batching import Found
from actgent.journal.group_commit.row_format import EncodedBatch, Head, Row
from actgent.journal.journal_interface import SessionSummary
from actgent.journal.postgres import cluster_pool_layout as layouts
from actgent.journal.record_feed_readers import FeedReader
from actgent.journal.session_list_queries import SessionKey, State
from actgent.messages import new_secret

from . import sql_statements
from .array_encoding import encode_array, encode_columns
from .cluster_pool_layout import BEGIN_POOL, SELECT_LAYOUTS, check_layout, layout_of
from .connections import OPTIONS, Connection, in_transaction, one_row
from .journal import WRITE_TIMEOUT_SECONDS, PostgresJournal
from .node_table import NodeTable, PartitionOwner
from .partition_ownership_table import HostTable, OwnershipTable
from .rate_limit_leases import RateLimitLeaseTable
from .schema import migrate_schema
from .session_crash_counts import SuspectTable
from .session_partitioning import (
    SLOTS,
    AcquiredPartition,
    PartitionsLost,
    check_partitions,
    slot_of,
    slots_of,
)
from .unowned_partition_messages import PendingMessageTable

MAX_ID_ATTEMPTS = 32
"""Maximum number of random session ids, per partition, that are tried until one falls into an owned partition."""
SLOTS_PER_STATEMENT = 1000
"""Number of sessions whose slot is set by one statement."""
END_BACKEND_TIMEOUT_MS = 5000
"""Milliseconds that the server gets to end the server session of a lost connection."""


class PartitionedJournal(PostgresJournal):
    """A journal in one database schema, of which this process owns the partitions that it acquired."""

    _options = MappingProxyType({**OPTIONS, "idle_in_transaction_session_timeout": "3000"})

    def __init__(
        self,
        url: str,
        *,
        node: str,
        pool: str = "default",
        partitions: int = 256,
        on_lost: Callable[[Mapping[int, int]], object] = lambda _: None,
    ) -> None:
        """Create the journal of one cluster process, without connecting.

        Args:
            url: URL of the database.
            node: Unique name of this process.
            pool: Name of the pool of processes that share the partitions.
            partitions: Number of partitions if the pool is new.
            on_lost: Called with partitions that another process has acquired, and their former epochs.
        """
        super().__init__(url)
        self.reads = layouts.READS
        """Newest record format that this process reads."""
        self.layout = PoolLayout(generation=1, partitions=check_partitions(partitions), writes=layouts.READS)
        """Layout of the pool when this process joined."""
        self.latest = self.layout
        """Layout of the pool as of the last `detect_lost`."""
        self.owned: dict[int, int] = {}
        """Epoch of each partition that this process owns, as far as it knows, by partition number."""
        self.left = trio.Event()
        """Event that is set when this process has released all partitions and takes no more."""
        self.fenced = 0
        """Number of batches that were rejected because another process owned their partition."""
        self.node = node
        self._pool = pool
        self._on_lost = on_lost
        self._table = OwnershipTable(self._address, self._schema, pool=pool, node=node)
        self.nodes = NodeTable(self._address, self._schema, pool=pool, node=node)
        self.suspects = SuspectTable(self._table, self.partition_of)
        self.allowances = RateLimitLeaseTable(self._table)
        self.hosts = HostTable(self._table, pool)
        self.pending_messages = PendingMessageTable(self._table)
        self._backend: tuple[Any, ...] | None = None
        """Process id and start time of the writer's server session."""
        self._owned_before: dict[int, int] = {}
        """Owned partitions with their epochs when the current group was started."""

    # --- owning --------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of partitions of the pool."""
        return self.layout.partitions

    def partition_of(self, session_id: str) -> int:
        """Return the partition of a session. All sessions of a tree are in one partition."""
        return (
            slot_of(session_id) * self.layout.partitions // SLOTS
        )  # inlined `partition_of_slot`: called about ten times per message

    def epoch_of(self, session_id: str) -> int:
        number = self.partition_of(session_id)
        if number not in self.owned:
            raise PartitionsLost([number])
        return self.owned[number]

    @property
    def is_shared(self) -> bool:
        return True

    def owns(self, session_id: str) -> bool:
        return self.partition_of(session_id) in self.owned

    def have_same_owner(self, session_id: str, other_id: str) -> bool:
        return slot_of(session_id) == slot_of(other_id)

    def new_session_id(self) -> str:
        for _ in range(MAX_ID_ATTEMPTS * self.count):
            if self.partition_of(session_id := new_secret()) in self.owned:
                return session_id
        raise PartitionsLost(range(self.count))

    async def acquire_partitions(
        self, partitions: Iterable[int], *, seen: Mapping[int, int] | None = None
    ) -> list[AcquiredPartition]:
        """Acquire the ownership of partitions for this process, discard cached data of their sessions, and return the acquired partitions.

        Args:
            partitions: Numbers of the partitions.
            seen: Last known epoch of each partition. A partition with another epoch is skipped, because another
                process
                acquired it. None acquires the partitions from any owner.

        Raises:
            JournalFailed: The database does not answer. Some partitions may be acquired; the call can be repeated.
            Fenced: This process can acquire nothing: the pool has another generation, its record format is
                unreadable for
                this process, or it belongs to another journal.
        """
        wanted = {each: self.owned.get(each, -1) for each in sorted(set(partitions))}
        generation = self.layout.generation
        taken = await self._table.acquire_partitions(
            wanted, generation=generation, reads=self.reads, identity=self.identity, seen=seen
        )
        if taken is None:
            raise Fenced(
                f"this process cannot acquire partitions of the pool {self._pool!r}, because the pool changed while the process was "
                "running: restart it"
            )
        new = [each for each in taken if not each.is_kept]
        self._lose([each.partition for each in new])
        for each in new:
            self.owned[each.partition] = each.epoch
        return taken

    def drop_lost(self, owners: Mapping[int, PartitionOwner]) -> None:
        """Drop the owned partitions for which the database names another owner or a later epoch, and call `on_lost`.

        Args:
            owners: Owner of each partition, as read from the database. Rows with an epoch before ours are ignored: they
                were read before we acquired the partition.
        """
        gone = {
            each
            for each, epoch in self.owned.items()
            if (found := owners.get(each)) is not None
            and found.epoch >= epoch
            and (found.owner, found.epoch) != (self.node, epoch)
        }
        self._lose(gone)

    async def give_back(self, partitions: Iterable[int]) -> None:
        """Write all queued batches, then release the ownership of the partitions.

        A partition that was lost and acquired again since the call began is not released.

        Raises:
            JournalError: A batch could not be written; the partitions are still owned.
        """
        known = {each: self.owned[each] for each in partitions if each in self.owned}
        await self._flush(ALL_SESSIONS)
        async with self._storage:
            given = {each: epoch for each, epoch in known.items() if self.owned.get(each) == epoch}
            for each in given:
                del self.owned[each]
            self._forget(given)
        if given:
            await self._give_back(given)

    async def _give_back(self, given: Mapping[int, int]) -> None:
        try:
            await self._table.give_back(given)
        except JournalError:
            for each, epoch in given.items():
                self.owned.setdefault(each, epoch)
            raise

    async def detect_lost(self) -> list[int]:
        """Check in the database which of the owned partitions other processes have acquired.

        Call `on_lost` with these partitions, and return their numbers.
        """
        before = dict(self.owned)
        known, self.latest = await self._table.read_epochs()
        lost = [each for each, epoch in before.items() if known.get(each) != epoch == self.owned.get(each)]
        self._lose(lost)
        return lost

    def _lose(self, partitions: Iterable[int]) -> None:
        gone = [*partitions]
        lost = {each: self.owned.pop(each) for each in gone if each in self.owned}
        if gone:
            self._forget(gone)  # including data that was read after the loss
        if lost:
            self._on_lost(lost)

    def _forget(self, partitions: Iterable[int]) -> None:
        """Discard all cached data of partitions that other processes may write to."""
        gone = frozenset(partitions)
        for known in (self._heads.by_key, self._heads.uncertain, self._queue.failed):
            for key in [each for each in known if self.partition_of(each.session_id) in gone]:
                del known[key]
        self._feed.fence_readers(lambda each: self.partition_of(each) in gone, PartitionsLost(gone))

    # --- opening -------------------------------------------------------------------------

    async def _acquire_storage(self) -> int:
        """Connect to the storage as a process of the cluster, without owning a partition yet.

        Return the number of this connection, which is negative, unlike epochs of partitions.
        """
        self.owned.clear()
        return -await super()._acquire_storage()

    async def _release(self) -> None:
        self.owned.clear()
        await super()._release()

    def _release_now(self) -> None:
        self._table.close()
        self.nodes.close()
        super()._release_now()

    def _own(self, connection: Connection) -> None:
        """Create or migrate the schema, and prevent other processes from owning the whole journal."""
        name = f"actgent {self._schema}"
        one_row(connection, sql_statements.LOCK_SETTING_UP, f"{name} is set up")
        if not one_row(connection, sql_statements.TRY_SHARED_LOCK, name)[0]:
            exists = one_row(connection, "SELECT to_regnamespace(%s) IS NOT NULL", self._schema)[0]
            raise Fenced(
                f"{self._owner(connection, exists)} owns the whole journal, and no cluster can share it: stop that process first"
            )
        schema = psycopg.sql.Identifier(self._schema)
        connection.execute(psycopg.sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
        connection.execute(psycopg.sql.SQL("SET search_path TO {}").format(schema))
        try:
            migrate_schema(connection)
        except JournalVersion:
            if not self._can_use_newer_schema(connection):
                raise
        self._read_layout(connection)
        self._fill_slots(connection)

    def _read_layout(self, connection: Connection) -> None:
        """Read the layout of the pool when this process joins or reconnects. Create the layout if the pool is new.

        A reconnecting process must find the same layout generation as when it joined.

        Raises:
            ConfigurationError: This process must not join the pool.
            Fenced: The layout has changed since this process joined.
        """
        new = self.layout
        connection.execute(BEGIN_POOL, (self._pool, new.partitions, self.reads, self._pool))
        found = layout_of(one_row(connection, SELECT_LAYOUTS, self._pool))
        if not self._is_owner:
            self.layout = self.latest = check_layout(found, self._pool, reads=self.reads)
        elif found.generation != self.layout.generation:
            raise Fenced(
                f"the pool {self._pool!r} was repartitioned while this process was disconnected: restart this process"
            )

    def _can_use_newer_schema(self, connection: Connection) -> bool:
        """Return True if this process may use its database schema although a newer release of actgent has migrated it.

        It must be able to read the record format of the pool.
        """
        found = connection.execute(SELECT_LAYOUTS, (self._pool,)).fetchone()
        return found is not None and found[2] <= self.reads

    def _fill_slots(self, connection: Connection) -> None:
        """Store the slots (hash values) of sessions that have none, because a process without partitions wrote these sessions."""
        while ids := [
            each
            for (each,) in self._select(connection, sql_statements.SELECT_WITHOUT_SLOT, SLOTS_PER_STATEMENT)
        ]:
            connection.execute(sql_statements.FILL_SLOTS, (ids, [slot_of(each) for each in ids]))

    def _reacquire_ownership(self, connection: Connection) -> None:
        """Acquire the ownership of the partitions again on a new database connection, after the old connection was lost.

        First end the PostgreSQL backend of the old connection, so that it runs no further statement.
        """
        self._check_journal_exists(connection)
        if self._backend is not None:
            gone = connection.execute(
                sql_statements.END_BACKEND, (END_BACKEND_TIMEOUT_MS, *self._backend)
            ).fetchone()
            if gone is not None and not gone[0]:
                raise JournalFailed(
                    "the connection was lost, and the server has not ended the old one: try again"
                ) from psycopg.OperationalError("the old connection is still open")
        with connection.transaction():
            self._own(connection)
        self._note_backend(connection)

    def _begin_epoch(self, connection: Connection) -> tuple[int, bytes, int]:
        self._note_backend(connection)
        owner = f"the cluster that {self.node} is of"
        epoch, identity, table_id = one_row(connection, sql_statements.BEGIN_EPOCH, owner)
        return epoch, identity, table_id

    def _note_backend(self, connection: Connection) -> None:
        self._backend = one_row(connection, sql_statements.SELECT_BACKEND)

    # --- writing -------------------------------------------------------------------------

    def _check_batch(self, batch: EncodedBatch, epoch: int) -> None:
        self._check_epoch(self._epoch)
        if self.owned.get(number := self.partition_of(batch.key.session_id)) != epoch:
            raise PartitionsLost([number])

    def _check_session(self, key: SessionKey, epoch: int) -> None:
        self._check_batch(EncodedBatch(key, 0, b""), epoch)

    async def _write_group(self, group: list[QueuedBatch], started: object = None) -> None:
        """Write the batches of owned partitions.

        Batches of lost partitions fail, even if the write itself detects the loss.
        """
        current = self._fail_lost(group)
        while current:
            try:
                await self._try_group(current)
            except PartitionsLost as lost:
                self._lose(lost.partitions)
                current = self._fail_lost(current)
                continue
            except JournalDamaged as damage:
                await self._write_alone(current, damage)
            except (JournalError, Fenced) as error:
                self._fail(self._fail_lost(current), error)
            else:
                self._queue.finish(current)
            return

    async def _resolve_uncertain(self, keys: Iterable[SessionKey]) -> None:
        for key in list(keys):
            try:
                await super()._resolve_uncertain([key])
            except PartitionsLost as lost:  # the new owner resumes from the stored records
                self._lose(lost.partitions)

    def _fail_lost(self, group: list[QueuedBatch]) -> list[QueuedBatch]:
        """Fail the queued batches of partitions that this process no longer owns. Return the other batches."""
        self._owned_before = {**self.owned}
        lost = [each for each in group if not self._is_current(each)]
        if not lost:
            return group
        self.fenced += len(lost)
        for each in lost:
            self._fail([each], PartitionsLost([self.partition_of(each.batch.key.session_id)]))
        return [each for each in group if not each.is_over]

    def _is_current(self, queued: QueuedBatch) -> bool:
        if not queued.batch.count:
            return True
        return self.owned.get(self.partition_of(queued.batch.key.session_id)) == queued.epoch

    async def _write(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        await self._clear_idle_flags(heads)
        fences = self._fences(head.session_id for head in heads)
        self._check_not_reacquired(fences)
        await self._run_alone(self._insert_fenced, rows, heads, fences, timeout_seconds=WRITE_TIMEOUT_SECONDS)
        self._is_new = False

    def _check_not_reacquired(self, fences: Mapping[int, int]) -> None:
        """Raise if partitions were lost and acquired again while their sessions were read. `fences` has the earlier epochs.

        Another process may have written to them since.
        """
        again = {each for each, epoch in fences.items() if self._owned_before.get(each) != epoch}
        if again:
            self._heads.evict(
                [key for key in self._heads.by_key if self.partition_of(key.session_id) in again]
            )
            raise PartitionsLost  # names no partition: each batch has the epoch that it was made in

    def _fences(self, session_ids: Iterable[str]) -> dict[int, int]:
        """Return the epoch of the partition of each session, by partition.

        Raise `PartitionsLost` if some partitions are not owned.
        """
        numbers = {self.partition_of(each) for each in session_ids}
        if lost := numbers - self.owned.keys():
            raise PartitionsLost(lost)
        return {each: self.owned[each] for each in numbers}

    def _insert_fenced(
        self, connection: Connection, rows: Sequence[Row], heads: Sequence[Head], fences: Mapping[int, int]
    ) -> None:
        if self._is_new and in_transaction(connection, self._has_heads, heads):
            return  # the old connection was lost after the commit
        slots = encode_array("smallint", [slot_of(head.session_id) for head in heads])
        values = [*self._fence_columns(fences), len(fences), *encode_columns(sql_statements.ROW_TYPES, rows)]
        found = connection.execute(
            sql_statements.WRITE_PARTITIONS, [*values, *self._head_columns(heads), slots]
        ).fetchall()
        if lost := fences.keys() - {number for (number,) in found}:
            raise PartitionsLost(lost)

    def _fence_columns(self, fences: Mapping[int, int]) -> list[Any]:
        epochs = encode_array("integer", [*fences]), encode_array("bigint", [*fences.values()])
        return [self._pool, self.node, *epochs]

    def _check_fence(self, connection: Connection, epoch: int, keys: Iterable[SessionKey]) -> None:
        fences = self._fences(key.session_id for key in keys)
        found = self._select(connection, sql_statements.HOLD_PARTITIONS, *self._fence_columns(fences))
        if lost := fences.keys() - {number for (number,) in found}:
            raise PartitionsLost(lost)

    # --- reading -------------------------------------------------------------------------

    def feed(
        self, session: SessionKey | None = None, *, capacity: int = 1000, records: bool = True
    ) -> AbstractAsyncContextManager[FeedReader]:
        if session is not None:
            self.epoch_of(session.session_id)  # only the owner publishes the batches of a session
        return super().feed(session, capacity=capacity, records=records)

    def _kept_heads(self, found: Sequence[Found]) -> Sequence[Found]:
        super()._kept_heads(found)
        self._heads.evict(
            [key for key in self._heads.by_key if self.partition_of(key.session_id) not in self.owned]
        )
        return found

    def cached_head(self, agent: str, session_id: str) -> SessionSummary | None:
        return super().cached_head(agent, session_id) if self.owns(session_id) else None

    async def head(self, agent: str, session_id: str) -> SessionSummary | None:
        if self.partition_of(session_id) not in self.owned:
            self._heads.evict([SessionKey(agent, session_id)])
        return await super().head(agent, session_id)

    @property
    def _slots(self) -> list[int]:
        return slots_of(self.owned, self.count)

    async def _select_unfinished(self, agents: list[str]) -> list[tuple[Any, ...]]:
        return await self._ask(sql_statements.SELECT_UNFINISHED_HERE, agents, self._slots)

    async def _select_due(self, agents: list[str]) -> list[tuple[Any, ...]]:
        return await self._ask(sql_statements.SELECT_DUE_HERE, agents, self._slots)

    async def _list_to_erase(self, limit: int) -> list[SessionKey]:
        rows = await self._ask(sql_statements.SELECT_TO_ERASE_HERE, self._slots, limit)
        return [SessionKey(*columns) for columns in rows]

    async def counts(self, agent: str | None = None) -> dict[State, int]:
        self._heads.states = None
        return await super().counts(agent)
