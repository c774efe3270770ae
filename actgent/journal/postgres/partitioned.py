"""A journal with many owners, each of some partitions: for the processes of a cluster.

Nothing is locked for longer than a statement. Whoever takes a partition raises its epoch, and a group of steps names in its
statement the epochs that it was written under: a process that hangs holds nothing, and one that wakes up writes nothing.
A process that owns a whole journal (`PostgresJournal`) and those of a cluster keep each other out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Any

import psycopg
import psycopg.sql
import trio

from actgent.errors import Fenced, JournalDamaged, JournalError, JournalFailed, JournalVersion
from actgent.journal.base import SessionSummary
from actgent.journal.feed import FeedReader
from actgent.journal.grouped import EVERYONE, Found, Head, JournalStep, QueuedStep, Row
from actgent.journal.listing import SessionKey, State
from actgent.messages import new_secret

from . import layout as layouts, statements
from .allowances import AllowanceTable
from .arrays import encode_array, encode_columns
from .connecting import OPTIONS, Connection, in_transaction, one_row
from .hosts import HostTable
from .journal import WRITING, PostgresJournal
from .layout import BEGIN_POOL, SELECT_LAYOUTS, PoolLayout, check_layout, layout_of
from .ownership_table import OwnershipTable
from .partitions import SLOTS, PartitionsLost, Taken, check_partitions, slot_of, slots_of
from .schema import migrate_schema
from .suspects import SuspectTable

TRIES = 32
"""Ids for each partition that are tried, at most, until one is of a partition that this process owns."""
FILLED = 1000
"""Sessions whose slot is filled in at once."""
ENDING = 5000
"""Milliseconds in which the server ends a connection that was lost."""


class PartitionedJournal(PostgresJournal):
    """A journal in one schema, of which this process owns the partitions that it takes."""

    _options = MappingProxyType({**OPTIONS, "idle_in_transaction_session_timeout": "3000"})

    def __init__(
        self,
        url: str,
        *,
        node: str,
        pool: str = "default",
        partitions: int = 64,
        on_lost: Callable[[Mapping[int, int]], object] = lambda _: None,
    ) -> None:
        """Args: `node` is this process, and no other one ever; `partitions` are those of a new pool.

        `on_lost` hears of partitions that another process has taken, with the epochs that are over.
        """
        super().__init__(url)
        self.reads = layouts.READS
        """The highest form that this process reads."""
        self.layout = PoolLayout(generation=1, partitions=check_partitions(partitions), writes=layouts.READS)
        """Of the pool, as it was when this process came in."""
        self.latest = self.layout
        """Of the pool, as it was at the last look."""
        self.owned: dict[int, int] = {}
        """The partitions that this process owns, as far as it knows, with their epochs."""
        self.left = trio.Event()
        """Set when this process has given back all that it had, and takes nothing more."""
        self.fenced = 0
        """Steps that were not written as their partition was another's."""
        self.node = node
        self._pool = pool
        self._on_lost = on_lost
        self._table = OwnershipTable(self._address, self._schema, pool=pool, node=node)
        self.suspects = SuspectTable(self._table, self.partition_of)
        self.allowances = AllowanceTable(self._table)
        self.hosts = HostTable(self._table, pool)
        self._backend: tuple[Any, ...] | None = None
        """The writer's process on the server."""
        self._owned_before: dict[int, int] = {}
        """What was owned when the group that is being written was begun with."""

    # --- owning --------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """The number of partitions."""
        return self.layout.partitions

    def partition_of(self, session_id: str) -> int:
        """The partition of a session, and of all others of its tree."""
        return (
            slot_of(session_id) * self.layout.partitions // SLOTS
        )  # as `partition_of_slot`, some ten times a message

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

    def is_together(self, session_id: str, other_id: str) -> bool:
        return slot_of(session_id) == slot_of(other_id)

    def new_session_id(self) -> str:
        for _ in range(TRIES * self.count):
            if self.partition_of(session_id := new_secret()) in self.owned:
                return session_id
        raise PartitionsLost(range(self.count))

    async def take(self, partitions: Iterable[int]) -> list[Taken]:
        """Become the owner of partitions, whoever owns them; what was known of their sessions is read again.

        Raises:
            JournalFailed: the database does not answer; some may be taken, and can be taken again.
            Fenced: the pool is laid out anew, writes a form that this process does not read, or is another journal's: it may take
            nothing.
        """
        wanted = {each: self.owned.get(each, -1) for each in sorted(set(partitions))}
        generation = self.layout.generation
        taken = await self._table.take(
            wanted, generation=generation, reads=self.reads, identity=self.identity
        )
        if wanted and not taken:
            raise Fenced("the partitions of this pool are not for this process any more: start it again")
        new = [each for each in taken if not each.is_kept]
        self._lose([each.partition for each in new])
        for each in new:
            self.owned[each.partition] = each.epoch
        return taken

    async def give_back(self, partitions: Iterable[int]) -> None:
        """Let others have partitions: all that was queued is written before, and nothing of them after.

        One that was lost and taken again meanwhile stays ours.

        Raises:
            JournalError: something could not be written; they are still ours.
        """
        known = {each: self.owned[each] for each in partitions if each in self.owned}
        await self._flush(EVERYONE)
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

    async def look(self) -> list[int]:
        """Find out which partitions others have taken; returns them, as `on_lost` gets them."""
        before = dict(self.owned)
        known, self.latest = await self._table.look()
        lost = [each for each, epoch in before.items() if known.get(each) != epoch == self.owned.get(each)]
        self._lose(lost)
        return lost

    def _lose(self, partitions: Iterable[int]) -> None:
        gone = [*partitions]
        lost = {each: self.owned.pop(each) for each in gone if each in self.owned}
        if gone:
            self._forget(gone)  # also what came to be known of them since they were lost
        if lost:
            self._on_lost(lost)

    def _forget(self, partitions: Iterable[int]) -> None:
        """Know nothing of the sessions of partitions: others may write to them."""
        gone = frozenset(partitions)
        for known in (self._heads.by_key, self._heads.doubts, self._queue.kept):
            for key in [each for each in known if self.partition_of(each.session_id) in gone]:
                del known[key]
        self._onlookers.feed.lose(lambda each: self.partition_of(each) in gone, PartitionsLost(gone))

    # --- opening -------------------------------------------------------------------------

    async def _take(self) -> int:
        """Come in beside other processes of the cluster; nothing is owned by that. The number is negative, and so no partition's."""
        self.owned.clear()
        return -await super()._take()

    async def _release(self) -> None:
        self.owned.clear()
        await super()._release()

    def _let_go(self) -> None:
        self._table.close()
        super()._let_go()

    def _own(self, connection: Connection) -> None:
        """Keep owners of the whole journal out, and bring the schema up to date."""
        name = f"actgent {self._schema}"
        one_row(connection, statements.LOCK_SETTING_UP, f"{name} is set up")
        if not one_row(connection, statements.TRY_SHARED_LOCK, name)[0]:
            exists = one_row(connection, "SELECT to_regnamespace(%s) IS NOT NULL", self._schema)[0]
            raise Fenced(f"the journal is owned by {self._owner(connection, exists)}, alone: stop it first")
        schema = psycopg.sql.Identifier(self._schema)
        connection.execute(psycopg.sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
        connection.execute(psycopg.sql.SQL("SET search_path TO {}").format(schema))
        try:
            migrate_schema(connection)
        except JournalVersion:
            if not self._is_for_us(connection):
                raise
        self._read_layout(connection)
        self._fill_slots(connection)

    def _read_layout(self, connection: Connection) -> None:
        """Find out how the pool is laid out; one that comes in again finds it as it was.

        Raises:
            ConfigurationError: this process may not come in.
            Fenced: it came in before, and the pool is laid out anew.
        """
        new = self.layout
        connection.execute(BEGIN_POOL, (self._pool, new.partitions, self.reads, self._pool))
        found = layout_of(one_row(connection, SELECT_LAYOUTS, self._pool))
        if not self._is_owner:
            self.layout = self.latest = check_layout(found, self._pool, reads=self.reads)
        elif found.generation != self.layout.generation:
            raise Fenced(
                f"the pool {self._pool!r} was laid out anew while this process was away: start it again"
            )

    def _is_for_us(self, connection: Connection) -> bool:
        """True if a newer release has changed the schema, and still writes what we read."""
        found = connection.execute(SELECT_LAYOUTS, (self._pool,)).fetchone()
        return found is not None and found[2] <= self.reads

    def _fill_slots(self, connection: Connection) -> None:
        """Sessions that the owner of a whole journal wrote have no slot yet."""
        while ids := [each for (each,) in self._select(connection, statements.SELECT_WITHOUT_SLOT, FILLED)]:
            connection.execute(statements.FILL_SLOTS, (ids, [slot_of(each) for each in ids]))

    def _own_again(self, connection: Connection) -> None:
        """After a lost connection: what it was sent last is done, or will never be."""
        self._check_place(connection)
        if self._backend is not None:
            gone = connection.execute(statements.END_BACKEND, (ENDING, *self._backend)).fetchone()
            if gone is not None and not gone[0]:
                raise JournalFailed(
                    "the connection was lost, and its server does not let it go: try again"
                ) from psycopg.OperationalError("it is still there")
        with connection.transaction():
            self._own(connection)
        self._note_backend(connection)

    def _begin_epoch(self, connection: Connection) -> tuple[int, bytes, int]:
        self._note_backend(connection)
        owner = f"the cluster that {self.node} is of"
        epoch, identity, table_id = one_row(connection, statements.BEGIN_EPOCH, owner)
        return epoch, identity, table_id

    def _note_backend(self, connection: Connection) -> None:
        self._backend = one_row(connection, statements.SELECT_BACKEND)

    # --- writing -------------------------------------------------------------------------

    def _check_step(self, step: JournalStep, epoch: int) -> None:
        self._check_epoch(self._epoch)
        if self.owned.get(number := self.partition_of(step.key.session_id)) != epoch:
            raise PartitionsLost([number])

    def _check_session(self, key: SessionKey, epoch: int) -> None:
        self._check_step(JournalStep(key, 0, b""), epoch)

    async def _write_group(self, group: list[QueuedStep], begun: object = None) -> None:
        """Write the steps whose partitions are ours; the others fail, whenever that is found out."""
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

    async def _settle_doubts(self, keys: Iterable[SessionKey]) -> None:
        for key in list(keys):
            try:
                await super()._settle_doubts([key])
            except PartitionsLost as lost:  # whoever owns them goes on with what is there
                self._lose(lost.partitions)

    def _fail_lost(self, group: list[QueuedStep]) -> list[QueuedStep]:
        """Fail the steps of partitions that are not ours any more, and return the others, which are written as what is owned now."""
        self._owned_before = {**self.owned}
        lost = [each for each in group if not self._is_current(each)]
        if not lost:
            return group
        self.fenced += len(lost)
        for each in lost:
            self._fail([each], PartitionsLost([self.partition_of(each.step.key.session_id)]))
        return [each for each in group if not each.is_over]

    def _is_current(self, queued: QueuedStep) -> bool:
        if not queued.step.count:
            return True
        return self.owned.get(self.partition_of(queued.step.key.session_id)) == queued.epoch

    async def _write(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        await self._clear_rested(heads)
        fences = self._fences(head.session_id for head in heads)
        self._check_not_taken_again(fences)
        await self._run_alone(self._insert_fenced, rows, heads, fences, patience=WRITING)
        self._is_new = False

    def _check_not_taken_again(self, fences: Mapping[int, int]) -> None:
        """Raise where partitions were lost and taken again while their sessions were read: others may have written in between."""
        again = {each for each, epoch in fences.items() if self._owned_before.get(each) != epoch}
        if again:
            self._heads.forget(
                [key for key in self._heads.by_key if self.partition_of(key.session_id) in again]
            )
            raise PartitionsLost  # of none that are ours: the steps themselves tell under which epoch they were made

    def _fences(self, session_ids: Iterable[str]) -> dict[int, int]:
        """The partitions of sessions, with their epochs; raises `PartitionsLost` where some are not ours."""
        numbers = {self.partition_of(each) for each in session_ids}
        if lost := numbers - self.owned.keys():
            raise PartitionsLost(lost)
        return {each: self.owned[each] for each in numbers}

    def _insert_fenced(
        self, connection: Connection, rows: Sequence[Row], heads: Sequence[Head], fences: Mapping[int, int]
    ) -> None:
        if self._is_new and in_transaction(connection, self._has_heads, heads):
            return  # the old connection was lost behind the commit
        slots = encode_array("smallint", [slot_of(head.session_id) for head in heads])
        values = [*self._fence_columns(fences), len(fences), *encode_columns(statements.ROW_TYPES, rows)]
        found = connection.execute(
            statements.WRITE_PARTITIONS, [*values, *self._head_columns(heads), slots]
        ).fetchall()
        if lost := fences.keys() - {number for (number,) in found}:
            raise PartitionsLost(lost)

    def _fence_columns(self, fences: Mapping[int, int]) -> list[Any]:
        epochs = encode_array("integer", [*fences]), encode_array("bigint", [*fences.values()])
        return [self._pool, self.node, *epochs]

    def _check_fence(self, connection: Connection, epoch: int, keys: Iterable[SessionKey]) -> None:
        fences = self._fences(key.session_id for key in keys)
        found = self._select(connection, statements.HOLD_PARTITIONS, *self._fence_columns(fences))
        if lost := fences.keys() - {number for (number,) in found}:
            raise PartitionsLost(lost)

    # --- reading -------------------------------------------------------------------------

    def feed(
        self, session: SessionKey | None = None, *, capacity: int = 1000, records: bool = True
    ) -> AbstractAsyncContextManager[FeedReader]:
        if session is not None:
            self.epoch_of(session.session_id)  # or nothing of it would be told here
        return super().feed(session, capacity=capacity, records=records)

    def _kept_heads(self, found: Sequence[Found]) -> Sequence[Found]:
        super()._kept_heads(found)
        self._heads.forget(
            [key for key in self._heads.by_key if self.partition_of(key.session_id) not in self.owned]
        )
        return found

    def head_now(self, agent: str, session_id: str) -> SessionSummary | None:
        return super().head_now(agent, session_id) if self.owns(session_id) else None

    async def head(self, agent: str, session_id: str) -> SessionSummary | None:
        if self.partition_of(session_id) not in self.owned:
            self._heads.forget([SessionKey(agent, session_id)])
        return await super().head(agent, session_id)

    @property
    def _slots(self) -> list[int]:
        return slots_of(self.owned, self.count)

    async def _list_unfinished(self, agent: str) -> list[str]:
        rows = await self._run(self._select, statements.SELECT_UNFINISHED_HERE, agent, self._slots)
        return [session_id for (session_id,) in rows]

    async def _list_due(self, agent: str) -> list[tuple[str, float]]:
        rows = await self._run(self._select, statements.SELECT_DUE_HERE, agent, self._slots)
        return [(session_id, due) for session_id, due in rows]

    async def _list_to_erase(self, limit: int) -> list[SessionKey]:
        rows = await self._run(self._select, statements.SELECT_TO_ERASE_HERE, self._slots, limit)
        return [SessionKey(*columns) for columns in rows]

    async def counts(self, agent: str | None = None) -> dict[State, int]:
        self._onlookers.pages.forget_counts()
        return await super().counts(agent)
