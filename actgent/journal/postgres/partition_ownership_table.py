"""The table of partition owners, on a separate connection, so that it never waits for a writer."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import attrs
import psycopg
import psycopg.sql
import trio

from actgent.errors import JournalFailed
from actgent.journal.cluster_interface import PoolLayout
from actgent.support.storage_thread import StorageThread

from .cluster_pool_layout import IS_TAKEN_FROM, layout_of
from .connections import (
    Connection,
    abort_connection,
    connection_to,
    is_server_not_ready,
    retry_while_lost,
    translate_server_errors,
)
from .node_liveness_locks import LOCK_OF_NODE
from .session_partitioning import AcquiredPartition

CHANNEL_BYTES = 63
"""Maximum bytes of a channel name in PostgreSQL."""
ANSWER_TIMEOUT_SECONDS = 10.0
"""Seconds without an answer after which the connection is dropped."""
_COLUMNS = "SELECT * FROM unnest(%(partitions)s::int[], %(epochs)s::bigint[], %(seen)s::bigint[])"
_NOTIFY = "SELECT pg_notify(%(channel)s, 'ownership')"
_TAKE = f"""
WITH layout AS MATERIALIZED ({IS_TAKEN_FROM}),
wanted AS (SELECT given.p, given.epoch, given.seen FROM ({_COLUMNS}) AS given (p, epoch, seen), layout),
old AS MATERIALIZED (
    SELECT t.p, t.epoch, t.owner, t.clean FROM partitions AS t JOIN wanted USING (p) WHERE t.pool = %(pool)s
    ORDER BY t.p FOR UPDATE OF t
),
new AS (
    INSERT INTO partitions AS t (pool, p, epoch, owner, since, clean)
    SELECT %(pool)s, wanted.p, 1, %(node)s, now(), false FROM wanted LEFT JOIN old USING (p)
    WHERE (old.p IS NULL OR old.owner <> %(node)s OR old.epoch <> wanted.epoch)
        AND coalesce(wanted.seen = coalesce(old.epoch, 0), true) ORDER BY wanted.p
    ON CONFLICT (pool, p) DO UPDATE SET epoch = t.epoch + 1, owner = %(node)s, since = now(), clean = false
    RETURNING p, epoch
),
notified AS MATERIALIZED ({_NOTIFY} FROM new LIMIT 1)
SELECT wanted.p, wanted.epoch, new.epoch, old.owner, old.clean, old.epoch, (SELECT count(*) FROM notified)
FROM wanted LEFT JOIN new USING (p) LEFT JOIN old USING (p) ORDER BY wanted.p
"""  # noqa: S608 - names of our own
_GIVE_BACK = f"""
WITH given AS MATERIALIZED (
    UPDATE partitions SET clean = true FROM (SELECT t.p FROM partitions AS t
    JOIN ({_COLUMNS} AS given (p, epoch, seen)) AS given USING (p, epoch)
    WHERE t.pool = %(pool)s AND t.owner = %(node)s ORDER BY t.p FOR UPDATE OF t) AS held
    WHERE partitions.pool = %(pool)s AND partitions.p = held.p RETURNING held.p
)
{_NOTIFY} FROM given LIMIT 1
"""  # noqa: S608 - as above
_LOOK = """
SELECT t.p, t.epoch, c.generation, c.partitions, c.writes, c.state
FROM (SELECT * FROM cluster WHERE pool = %(pool)s ORDER BY generation DESC LIMIT 1) AS c
LEFT JOIN partitions AS t ON t.pool = c.pool AND t.owner = %(node)s
"""
T = TypeVar("T")


def channel_of(pool: str) -> str:
    """Return the name of the channel on which a pool's nodes notify each other of changes."""
    return f"actgent_{pool}".encode()[:CHANNEL_BYTES].decode("utf-8", "ignore")


class OwnershipTable:
    """Owner and epoch of each partition of one pool, as this process reads and changes them in the database."""

    def __init__(self, address: str, schema: str, *, pool: str, node: str) -> None:
        self._address, self._schema = address, schema
        self._who = {"pool": pool, "node": node, "channel": channel_of(pool)}
        self._connection: Connection | None = None
        self._thread: StorageThread | None = None
        self._turn = trio.Lock()

    async def acquire_partitions(
        self,
        epochs: Mapping[int, int],
        *,
        generation: int,
        reads: int,
        identity: bytes,
        seen: Mapping[int, int] | None = None,
    ) -> list[AcquiredPartition] | None:
        """Make this node the owner of partitions, with one SQL statement.

        Writes of the previous owner that have begun end first. Its later writes are rejected because of the new epoch.

        Args:
            epochs: Partition numbers, each with the epoch in which this node owned it last, or -1.
            generation: Generation of the partition layout that this node has read.
            reads: Newest record format that this node reads.
            identity: Identity of the journal.
            seen: Epoch of each partition as this node last read it; 0 if the table had no row. A partition is
                acquired only
                if its epoch is unchanged, so only one of several nodes acquires it. None acquires all.

        Returns:
            The partitions that this node owns now. None if no partition can be acquired: the pool has another generation,
            writes a newer record format than `reads`, or belongs to a journal with another identity.
        """
        columns = None if seen is None else [seen[each] for each in epochs]
        known = {"generation": generation, "reads": reads, "identity": identity, "seen": columns}
        rows = await self._run(self._select, _TAKE, epochs, **known)
        found = [self._taken(columns) for columns in rows]
        return [each for each in found if each is not None] if rows or not epochs else None

    def _taken(self, columns: tuple[Any, ...]) -> AcquiredPartition | None:
        number, known, new, before, clean, old_epoch, _ = columns
        if new is not None:
            return AcquiredPartition(
                partition=number, epoch=new, before=before or "", was_clean=clean is not False
            )
        if before == self._who["node"] and old_epoch == known:
            return AcquiredPartition(partition=number, epoch=known, before=before, is_kept=True)
        return None

    async def give_back(self, epochs: Mapping[int, int]) -> None:
        """Release partitions that have no unfinished work, if this node still owns them in these epochs.

        Other partitions are ignored.
        """
        await self._run(self._execute, _GIVE_BACK, epochs)

    async def read_epochs(self) -> tuple[dict[int, int], PoolLayout]:
        """Read the epoch (fencing number) of each partition of this node, and the newest partition layout of the pool.

        Raises:
            JournalFailed: The database does not answer, or the pool was removed.
        """
        rows = await self._run(self._select, _LOOK, {})
        if not rows:
            raise JournalFailed(
                f"the pool {self._who['pool']!r} was removed from the schema {self._schema!r}"
            )
        epochs = {number: epoch for number, epoch, *_ in rows if number is not None}
        return epochs, layout_of(rows[0][2:])

    async def select(self, sql: str, values: Mapping[str, Any]) -> list[Any]:
        """Run a statement and return its rows.

        In addition to `values`, it can use the parameters pool, node and channel.
        """
        return await self._run_whole(self._select, sql, {**self._who, **values})

    async def execute(self, sql: str, values: Mapping[str, Any]) -> None:
        """Run an SQL statement that returns no rows.

        In addition to `values`, it can use the parameters pool, node and channel.
        """
        await self._run_whole(self._execute, sql, {**self._who, **values})

    def close(self) -> None:
        """Close the connection at once, even while a statement runs."""
        if self._thread is not None:
            abort_connection(self._connection)
            self._thread.end(self._disconnect)
            self._thread = None

    async def _run(self, fn: Callable[..., T], sql: str, epochs: Mapping[int, int], **values: Any) -> T:
        """Run an SQL statement about the partitions in `epochs` by `fn`, shielded from cancellation.

        A cancelled statement would leave their owner unknown.
        """
        columns = {"partitions": list(epochs), "epochs": list(epochs.values()), "seen": None}
        return await self._run_whole(fn, sql, {**self._who, **columns, **values})

    async def _run_whole(self, fn: Callable[..., T], sql: str, values: Mapping[str, Any]) -> T:
        """Run a statement. Concurrent calls wait for each other. Retry while the server is starting."""

        async def run() -> T:
            async with self._turn:
                with trio.CancelScope(shield=True):
                    found = await self._run_in_thread(fn, sql, values)
            return found

        return await retry_while_lost(run, is_server_not_ready)

    async def _run_in_thread(self, fn: Callable[..., T], *args: Any) -> T:
        if self._thread is None:
            self._thread = StorageThread(f"partitions of {self._schema}")
        thread = self._thread
        with trio.move_on_after(ANSWER_TIMEOUT_SECONDS):
            try:
                return await thread.run(self._connected, fn, *args)
            except trio.ClosedResourceError as error:
                raise JournalFailed("the journal was closed during the call") from error
        abort_connection(self._connection)
        raise JournalFailed(
            f"the journal's database did not return the partition owners within {ANSWER_TIMEOUT_SECONDS:g} s"
        )

    # --- in the thread --------------------------------------------------------------------

    def _connected(self, fn: Callable[..., T], *args: Any) -> T:
        """Run `fn(connection, ...)`, which executes an auto-committing statement, and return its result.

        Repeat it once if the connection was lost since the previous statement. So a process that stops at any point
        holds no row lock.
        """
        with translate_server_errors():
            try:
                return fn(self._open(), *args)
            except psycopg.OperationalError:
                if self._connection is not None and not self._connection.closed:
                    raise
            return fn(self._open(), *args)

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            connection = connection_to(self._address)
            try:
                schema = psycopg.sql.Identifier(self._schema)
                connection.execute(psycopg.sql.SQL("SET search_path TO {}").format(schema))
                self._begin(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _begin(self, connection: Connection) -> None:
        """Acquire the lock that shows other nodes that this process is alive; see `node_table`."""
        connection.execute(LOCK_OF_NODE, self._who)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _select(self, connection: Connection, sql: str, values: Mapping[str, Any]) -> list[Any]:
        return connection.execute(sql, values).fetchall()

    def _execute(self, connection: Connection, sql: str, values: Mapping[str, Any]) -> None:
        connection.execute(sql, values)


_CLAIM = "INSERT INTO hosts SELECT agent, %(pool)s FROM unnest(%(agents)s::text[]) AS agent ORDER BY agent ON CONFLICT DO NOTHING"
_OTHERS = "SELECT agent, pool FROM hosts WHERE agent = ANY(%(agents)s) AND pool <> %(pool)s ORDER BY agent"


@attrs.frozen
class HostTable:
    """Table of the agents in a database, each with the pool that hosts it."""

    _table: OwnershipTable
    pool: str
    """Name of the pool of this process."""

    async def claim(self, agents: Collection[str]) -> Mapping[str, str]:
        """Register agents as hosted by this pool permanently.

        Return the agents that another pool hosts, with that pool.

        Raises:
            JournalFailed: The database does not answer.
        """
        values = {"agents": list(agents), "pool": self.pool}
        await self._table.execute(_CLAIM, values)
        return dict(await self._table.select(_OTHERS, values))
