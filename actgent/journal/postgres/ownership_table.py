"""Who owns which partition, as the database has it; on a connection of its own, so that nobody waits for a writer."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import psycopg
import psycopg.sql
import trio

from actgent.errors import JournalFailed
from actgent.support.storage_thread import StorageThread

from .connecting import Connection, break_off, connection_to, errors_translated, is_not_yet, patiently
from .layout import IS_TAKEN_FROM, PoolLayout, layout_of
from .partitions import Taken

ANSWERING = 10.0
"""Seconds that the server may take, until the connection is dropped."""
_COLUMNS = "SELECT * FROM unnest(%(partitions)s::int[], %(epochs)s::bigint[])"
_TAKE = f"""
WITH layout AS MATERIALIZED ({IS_TAKEN_FROM}),
wanted AS (SELECT given.p, given.epoch FROM ({_COLUMNS}) AS given (p, epoch), layout),
old AS MATERIALIZED (
    SELECT t.p, t.epoch, t.owner, t.clean FROM partitions AS t JOIN wanted USING (p) WHERE t.pool = %(pool)s
    ORDER BY t.p FOR UPDATE OF t
),
new AS (
    INSERT INTO partitions AS t (pool, p, epoch, owner, since, clean)
    SELECT %(pool)s, wanted.p, 1, %(node)s, now(), false FROM wanted LEFT JOIN old USING (p)
    WHERE old.p IS NULL OR old.owner <> %(node)s OR old.epoch <> wanted.epoch ORDER BY wanted.p
    ON CONFLICT (pool, p) DO UPDATE SET epoch = t.epoch + 1, owner = %(node)s, since = now(), clean = false
    RETURNING p, epoch
)
SELECT wanted.p, wanted.epoch, new.epoch, old.owner, old.clean
FROM wanted LEFT JOIN new USING (p) LEFT JOIN old USING (p) ORDER BY wanted.p
"""  # noqa: S608 - names of our own
_GIVE_BACK = (
    "UPDATE partitions SET clean = true FROM (SELECT t.p FROM partitions AS t "  # noqa: S608
    f"JOIN ({_COLUMNS} AS given (p, epoch)) AS given USING (p, epoch) WHERE t.pool = %(pool)s AND t.owner = %(node)s ORDER BY t.p FOR UPDATE OF t"
    ") AS held WHERE partitions.pool = %(pool)s AND partitions.p = held.p"
)
_LOOK = """
SELECT t.p, t.epoch, c.generation, c.partitions, c.writes, c.state
FROM (SELECT * FROM cluster WHERE pool = %(pool)s ORDER BY generation DESC LIMIT 1) AS c
LEFT JOIN partitions AS t ON t.pool = c.pool AND t.owner = %(node)s
"""
T = TypeVar("T")


class OwnershipTable:
    """The partitions of one pool, for one process."""

    def __init__(self, address: str, schema: str, *, pool: str, node: str) -> None:
        self._address, self._schema = address, schema
        self._who = {"pool": pool, "node": node}
        self._connection: Connection | None = None
        self._thread: StorageThread | None = None
        self._turn = trio.Lock()

    async def take(
        self, epochs: Mapping[int, int], *, generation: int, reads: int, identity: bytes
    ) -> list[Taken]:
        """Become the owner of these partitions, in one statement; each with the epoch in which we think that we own it, or -1.

        Writes that are under way end before; those that come after find the new epoch. None is ours if the pool has another
        generation by now, writes a higher form than we read, or is of a journal with another identity.
        """
        known = {"generation": generation, "reads": reads, "identity": identity}
        rows = await self._run(self._select, _TAKE, epochs, **known)
        return [self._taken(columns) for columns in rows]

    def _taken(self, columns: tuple[int, int, int | None, str | None, bool | None]) -> Taken:
        number, known, new, before, clean = columns
        if new is None:
            return Taken(partition=number, epoch=known, before=self._who["node"], is_kept=True)
        return Taken(partition=number, epoch=new, before=before or "", was_clean=clean is not False)

    async def give_back(self, epochs: Mapping[int, int]) -> None:
        """Say of partitions, with their epochs, that nothing in them was left in the middle; nothing for those that another one has."""
        await self._run(self._execute, _GIVE_BACK, epochs)

    async def look(self) -> tuple[dict[int, int], PoolLayout]:
        """The epoch of each partition of ours, and how the pool is laid out.

        Raises:
            JournalFailed: the database does not answer, or does not know the pool any more.
        """
        rows = await self._run(self._select, _LOOK, {})
        if not rows:
            raise JournalFailed(
                f"the pool {self._who['pool']!r} was removed from the schema {self._schema!r}"
            )
        epochs = {number: epoch for number, epoch, *_ in rows if number is not None}
        return epochs, layout_of(rows[0][2:])

    async def select(self, sql: str, values: Mapping[str, Any]) -> list[Any]:
        """The rows of another statement about what is owned."""
        return await self._run_whole(self._select, sql, {**self._who, **values})

    async def execute(self, sql: str, values: Mapping[str, Any]) -> None:
        """Run another statement about what is owned."""
        await self._run_whole(self._execute, sql, {**self._who, **values})

    def close(self) -> None:
        """Let the connection go, whoever waits for it."""
        if self._thread is not None:
            break_off(self._connection)
            self._thread.end(self._disconnect)
            self._thread = None

    async def _run(self, fn: Callable[..., T], sql: str, epochs: Mapping[int, int], **values: Any) -> T:
        """Run a statement about some partitions to its end: who is cancelled would not know whose the partitions are."""
        columns = {"partitions": list(epochs), "epochs": list(epochs.values())}
        return await self._run_whole(fn, sql, {**self._who, **columns, **values})

    async def _run_whole(self, fn: Callable[..., T], sql: str, values: Mapping[str, Any]) -> T:
        """Run it in its turn, as soon as a server that starts lets anybody in."""

        async def run() -> T:
            async with self._turn:
                with trio.CancelScope(shield=True):
                    found = await self._run_in_thread(fn, sql, values)
            return found

        return await patiently(run, is_not_yet)

    async def _run_in_thread(self, fn: Callable[..., T], *args: Any) -> T:
        if self._thread is None:
            self._thread = StorageThread(f"partitions of {self._schema}")
        thread = self._thread
        with trio.move_on_after(ANSWERING):
            try:
                return await thread.run(self._connected, fn, *args)
            except trio.ClosedResourceError as error:
                raise JournalFailed("the journal was closed meanwhile") from error
        break_off(self._connection)
        raise JournalFailed(f"the journal's database has not said within {ANSWERING:g} s who owns what")

    # --- in the thread --------------------------------------------------------------------

    def _connected(self, fn: Callable[..., T], *args: Any) -> T:
        """Run a statement, which commits itself; once more where the connection was lost since the last time.

        So a process that stops anywhere holds no row.
        """
        with errors_translated():
            try:
                return fn(self._open(), *args)
            except psycopg.OperationalError:
                if self._connection is not None and not self._connection.closed:
                    raise
            return fn(self._open(), *args)

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connection_to(self._address)
            schema = psycopg.sql.Identifier(self._schema)
            self._connection.execute(psycopg.sql.SQL("SET search_path TO {}").format(schema))
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _select(self, connection: Connection, sql: str, values: Mapping[str, Any]) -> list[Any]:
        return connection.execute(sql, values).fetchall()

    def _execute(self, connection: Connection, sql: str, values: Mapping[str, Any]) -> None:
        connection.execute(sql, values)
