"""The journal in PostgreSQL: for agents whose machine may not come back.

One connection, in a thread of its own, holds an advisory lock for as long as its process lives, and whatever writes
checks the epoch: who has lost the connection, and with it perhaps the ownership, writes nothing more.
A group of steps is one statement, which checks the epoch itself: it costs one round trip, and a process that stops in the
middle of it leaves no transaction open.
"""

import contextlib
import itertools
import math
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import attrs
import outcome
import psycopg
import psycopg.sql
import trio

from actgent.errors import Fenced, JournalDamaged, JournalError, JournalFailed, WireError
from actgent.journal.base import Snapshot
from actgent.journal.grouped import (
    GROUP_RECORDS,
    Found,
    GroupedJournal,
    Head,
    Page,
    Row,
    SnapshotRow,
    Stored,
    checksum_head,
    decode_page,
    decode_rows,
    is_good_head,
    place_snapshot,
    read_snapshot,
)
from actgent.journal.listing import Cursor, SessionFilter, SessionKey, State
from actgent.support.files import plain_name
from actgent.support.postgres_address import split_schema
from actgent.support.storage_thread import StorageThread

from . import statements
from .arrays import Array, encode_array, encode_columns
from .connecting import (
    OPTIONS,
    Connection,
    break_off,
    connection_to,
    errors_translated,
    in_one_moment,
    in_transaction,
    is_not_yet,
    one_row,
    patiently,
    settle,
)
from .schema import migrate_schema
from .session_pages import session_page_query

WRITING = 10.0
READING = 60.0
"""Seconds that the server may take for a piece of work, until its connection is dropped."""
CLEAR_AGAIN_SECONDS, CLEAR_MORE_SECONDS = 600.0, 5.0
"""Pause between two searches for sessions that have rested; the shorter one if the last search found a full batch."""
LETTING_GO = 1.0
"""Seconds that the server may take to let the lock of one who leaves go at once."""
_GONE = (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction, Fenced)
"""What says that the server is away, or is not the one that is written to any more."""
_REFUSED = (psycopg.errors.ProgramLimitExceeded, psycopg.errors.StatementTooComplex)
"""What a server that is there says of a statement that it will never take."""

T = TypeVar("T")


class PostgresJournal(GroupedJournal):
    """A journal in one schema of a database, `actgent` unless the address says `?schema=...`."""

    _options: Mapping[str, str] = OPTIONS
    """Of the session on the server."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._address, self._schema = split_schema(url, default="actgent", owner="the journal")
        self._connection: Connection | None = None
        self._thread: StorageThread | None = None
        self._is_owner = False
        """True if a new connection has to be that of the owner of before."""
        self._is_new = False
        """True if nothing was written through this connection yet."""
        self._clear_due = -math.inf
        """When sessions that have rested are looked for next, by trio's clock."""
        self._table_id = 0
        """Of the table that says who owns the journal: one that was put back from a backup has another."""

    def beside(self, name: str) -> str | None:
        joint = "&" if "?" in self._address else "?"
        return f"{self._address}{joint}schema={self._schema[:20]}_{plain_name(name)}"

    async def _take(self) -> int:
        if self._thread is None:
            self._thread = StorageThread(f"journal {self._schema}")
        self._is_owner = False
        epoch, self.identity, self._table_id = await self._run(self._own_anew)
        self._is_owner = True
        return epoch

    async def _release(self) -> None:
        if self._thread is not None:
            with trio.move_on_after(LETTING_GO):
                await self._thread.run(self._unlock)
            self._let_go()

    def _let_go(self) -> None:
        if self._thread is not None:
            self._drop()
            self._thread.end(self._close)
            self._thread = None

    async def _read_heads(self, keys: Sequence[SessionKey]) -> dict[SessionKey, Head]:
        return await self._run(self._select_heads, keys)

    async def _write(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        await self._clear_rested(heads)
        await self._run_alone(self._insert, rows, heads, epoch, patience=WRITING)
        self._is_new = False

    async def _clear_rested(self, heads: Sequence[Head]) -> None:
        """Clear the flag `active` of sessions that have rested, now and then; `heads` are about to be written.

        The flag only speeds up queries, so a failure is ignored: the write that follows meets it, too.
        """
        if not heads or trio.current_time() < self._clear_due:
            return
        now = max(head.updated_at for head in heads)
        count = 0
        with contextlib.suppress(JournalError, Fenced):
            count = await self._run(self._clear_active, now, patience=WRITING)
        self._clear_due = trio.current_time() + (
            CLEAR_AGAIN_SECONDS if count < statements.CLEAR_BATCH else CLEAR_MORE_SECONDS
        )

    async def _take_back(self, key: SessionKey, head: Head | None, epoch: int) -> None:
        await self._run(self._cut, key, head, epoch)

    async def _newest_body(self) -> bytes | None:
        rows = await self._run(self._select, statements.SELECT_NEWEST)
        return rows[0][0] if rows else None

    async def _read_some(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        return await self._run_alone(in_one_moment, self._select_some, keys)

    async def _read_tails(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        return await self._run_alone(in_one_moment, self._select_tails, keys)

    async def _read_page(self, key: SessionKey, after: int, limit: int) -> Page:
        return await self._run_alone(in_one_moment, self._select_page, key, after, limit)

    def _read_page_now(self, key: SessionKey, after: int, limit: int) -> Page:
        if self._thread is None:
            raise JournalFailed("the journal's database is not connected")
        return self._thread.run_now(self._connected, self._select_page, key, after, limit)

    async def _find_snapshot(self, key: SessionKey) -> Snapshot | None:
        return await self._run_alone(in_one_moment, self._select_snapshot, key)

    async def _keep_snapshot(self, key: SessionKey, snapshot: Snapshot, epoch: int) -> bool:
        return await self._run(self._put_snapshot, key, snapshot, epoch, patience=WRITING)

    async def _drop_snapshots(self, key: SessionKey, epoch: int) -> None:
        await self._run(self._delete_snapshot, key, epoch)

    async def _list_unfinished(self, agent: str) -> list[str]:
        return [
            session_id for (session_id,) in await self._run(self._select, statements.SELECT_UNFINISHED, agent)
        ]

    async def _count_waiting(self) -> dict[str, int]:
        return dict(await self._run(self._select, statements.COUNT_WAITING))

    async def _list_due(self, agent: str) -> list[tuple[str, float]]:
        return [
            (session_id, due)
            for session_id, due in await self._run(self._select, statements.SELECT_DUE, agent)
        ]

    async def _list_suspended(self, agent: str, after: str, limit: int) -> list[str]:
        rows = await self._run(self._select, statements.SELECT_SUSPENDED, agent, after, limit)
        return [session_id for (session_id,) in rows]

    async def _list_heads(self, agent: str | None) -> list[Head]:
        where, values = ("", ()) if agent is None else (" WHERE agent = %s", (agent,))
        return await self._heads_in(f"{statements.SELECT_HEADS}{where}{statements.OLDEST}", *values)

    async def _heads_in(self, sql: str, *values: Any) -> list[Head]:
        return [Head(*columns[:-1]) for columns in await self._run(self._select, sql, *values)]

    async def _list_agents(self, session_id: str) -> list[str]:
        sql = "SELECT agent FROM sessions WHERE session_id = %s"
        return [agent for (agent,) in await self._run(self._select, sql, session_id)]

    async def _list_children(self, keys: Sequence[SessionKey]) -> list[Head]:
        agents, session_ids = [key.agent for key in keys], [key.session_id for key in keys]
        return await self._heads_in(statements.SELECT_CHILDREN, agents, session_ids)

    async def list_changed(self, after: SessionKey, limit: int) -> list[SessionKey]:
        """Nothing: indexes of the sessions themselves have their order."""
        return []

    async def put_in_order(self, keys: Sequence[SessionKey]) -> None:
        """Nothing, as above."""

    async def select_page(self, wanted: SessionFilter, after: Cursor | None, limit: int) -> list[Head]:
        sql, values = session_page_query(statements.HEAD_TYPES, wanted, after, limit)
        return await self._heads_in(sql, *values)

    async def count_states(self) -> dict[tuple[str, State], int]:
        rows = await self._run(self._select, statements.COUNT_STATES)
        return {(agent, state): count for agent, state, count in rows}

    async def _list_to_erase(self, limit: int) -> list[SessionKey]:
        return [
            SessionKey(*each) for each in await self._run(self._select, statements.SELECT_TO_ERASE, limit)
        ]

    async def _erase_trees(
        self, roots: Sequence[SessionKey], unchanged_since: float, epoch: int
    ) -> list[SessionKey]:
        connection = self._connection
        gone = await self._run(self._delete_trees, roots, unchanged_since, epoch)
        if self._connection is not connection:  # a try before this one may have erased more
            self._doubt_all()
        return gone

    async def _erase(self, key: SessionKey, epoch: int) -> None:
        await self._run(self._delete, key, epoch)

    async def _run(self, fn: Callable[..., T], *args: Any, patience: float = READING) -> T:
        """Run `fn(connection, ...)` in the thread, in one transaction; again where the server was away for a moment."""
        return await self._run_alone(in_transaction, fn, *args, patience=patience)

    async def _run_alone(self, fn: Callable[..., T], *args: Any, patience: float = READING) -> T:
        """The same without a transaction round it: each of its statements is one."""
        return await patiently(partial(self._run_once, fn, *args, patience=patience), self._is_lost)

    def _is_lost(self, error: JournalFailed) -> bool:
        """Return True if a step failed for want of its server, and may be tried again; who comes in waits for one that starts."""
        cause = error.__cause__
        was_there = self._is_owner and isinstance(cause, _GONE) and not isinstance(cause, _REFUSED)
        return was_there or is_not_yet(error)

    async def _run_once(self, fn: Callable[..., T], *args: Any, patience: float) -> T:
        """Drop the connection of a server that does not answer: a thread that waits for it cannot be stopped otherwise."""
        if self._thread is None:
            raise JournalFailed("the journal's database is not connected")
        with trio.move_on_after(patience):
            try:
                return await self._thread.run(self._connected, fn, *args)
            except trio.ClosedResourceError as error:
                raise JournalFailed("the journal was closed meanwhile") from error
            except JournalFailed as error:
                if isinstance(error.__cause__, psycopg.errors.ReadOnlySqlTransaction):
                    self._drop()
                raise
        self._drop()
        raise JournalFailed(
            f"the journal's database has not answered within {patience:g} s"
        ) from psycopg.OperationalError("no answer")

    def _drop(self) -> None:
        break_off(self._connection)

    # --- in the thread --------------------------------------------------------------------

    def _unlock(self) -> None:
        """Let the lock go, and then the connection, of whose end the server may learn only after the next one has asked."""
        with contextlib.suppress(psycopg.Error):
            if self._connection is not None:
                self._connection.execute("SELECT pg_advisory_unlock_all()")
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self, fn: Callable[..., T], *args: Any) -> T:
        with errors_translated():
            if self._connection is None or self._connection.closed:
                self._connect()
            assert self._connection is not None  # noqa: S101 - just made
            try:
                return fn(self._connection, *args)
            finally:
                settle(self._connection)

    def _connect(self) -> Connection:
        """A new connection; after a lost one it has to be the owner's again."""
        self._connection = connection = connection_to(self._address, self._options)
        self._is_new = True
        if self._is_owner:
            try:
                self._own_again(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    def _own_again(self, connection: Connection) -> None:
        self._check_place(connection)
        with connection.transaction():
            try:
                self._own(connection)
            except Fenced as fenced:
                if self._stored_epoch(connection) == self._epoch:
                    raise JournalFailed(
                        "the connection to the journal was lost, and its server keeps the old one's lock until it finds "
                        "that out: try again within half a minute"
                    ) from fenced
                raise
            self._check_epoch_there(connection, self._epoch)

    def _check_place(self, connection: Connection) -> None:
        """Refuse to go on in another journal, or where there is none any more: it would be a new one."""
        meta = psycopg.sql.Identifier(self._schema, "meta")
        sql = psycopg.sql.SQL("SELECT identity, tableoid FROM {}").format(meta)
        try:
            found = connection.execute(sql).fetchone()
        except psycopg.errors.UndefinedTable:
            found = None
        self._check_found(found)

    def _check_found(self, found: tuple[Any, ...] | None) -> None:
        if found != (self.identity, self._table_id):
            raise JournalFailed(
                f"the schema {self._schema!r} of the database was removed or replaced while the journal was open: nothing is "
                "written any more. Put it back, or end this process and start again"
            )

    def _own_anew(self, connection: Connection) -> tuple[int, bytes, int]:
        """In one transaction: between two a connection might be lost, and there is nothing yet that it could come back to."""
        self._own(connection)
        return self._begin_epoch(connection)

    def _stored_epoch(self, connection: Connection) -> int:
        meta = psycopg.sql.Identifier(self._schema, "meta")
        return int(one_row(connection, psycopg.sql.SQL("SELECT epoch FROM {}").format(meta))[0])

    def _own(self, connection: Connection) -> None:
        """Take the lock that names this process the owner, and bring the schema up to date."""
        schema = psycopg.sql.Identifier(self._schema)
        (is_ours,) = one_row(connection, statements.TRY_LOCK, f"actgent {self._schema}")
        exists = one_row(connection, "SELECT to_regnamespace(%s) IS NOT NULL", schema.as_string(connection))[
            0
        ]
        if not is_ours:
            raise Fenced(
                f"the journal is owned by {self._owner(connection, exists)}, which is alive: stop it first"
            )
        if not exists:
            connection.execute(psycopg.sql.SQL("CREATE SCHEMA {}").format(schema))
        connection.execute(psycopg.sql.SQL("SET search_path TO {}").format(schema))
        migrate_schema(connection)

    def _owner(self, connection: Connection, exists: bool) -> str:  # noqa: FBT001 - private
        meta = psycopg.sql.Identifier(self._schema, "meta")
        if not exists or one_row(connection, "SELECT to_regclass(%s)", meta.as_string(connection))[0] is None:
            return "another process"
        return str(one_row(connection, psycopg.sql.SQL("SELECT owner FROM {}").format(meta))[0])

    def _begin_epoch(self, connection: Connection) -> tuple[int, bytes, int]:
        owner = f"process {os.getpid()} on {socket.gethostname()}"
        epoch, identity, table_id = one_row(connection, statements.BEGIN_EPOCH, owner)
        connection.execute(statements.END_PARTITIONS)
        return epoch, identity, table_id

    def _select(self, connection: Connection, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return connection.execute(sql, values).fetchall()

    def _select_heads(self, connection: Connection, keys: Sequence[SessionKey]) -> dict[SessionKey, Head]:
        heads = [
            self._good_head(columns)
            for columns in self._select(connection, statements.HEADS_OF, *statements.columns_of(keys))
        ]
        return {head.key: head for head in heads}

    def _good_head(self, columns: Sequence[Any]) -> Head:
        head = Head(*columns[:-1])
        if not is_good_head(head, columns[-1], self.identity):
            raise JournalDamaged("the checksum of its head is wrong", session_id=head.session_id)
        return head

    def _select_some(self, connection: Connection, keys: Sequence[SessionKey]) -> list[Found]:
        heads: dict[SessionKey, Sequence[Any]] = {}
        for columns in self._select(connection, statements.HEADS_OF, *statements.columns_of(keys)):
            heads[Head(*columns[:-1]).key] = columns
        counts = itertools.accumulate(
            heads[key][statements.RECORDS] if key in heads else 0 for key in keys[:-1]
        )
        wanted = keys[: 1 + sum(count < GROUP_RECORDS for count in counts)]
        rows: dict[str, list[Row]] = {}
        series = [heads[key][statements.SERIES] for key in wanted if key in heads]
        for columns in self._select(connection, statements.SELECT_ROWS, series):
            rows.setdefault(columns[0], []).append(Row(*columns))
        return [outcome.capture(self._stored, heads.get(key), rows) for key in wanted]

    def _stored(self, columns: Sequence[Any] | None, rows: Mapping[str, list[Row]]) -> Stored:
        if columns is None:
            return Stored()
        head = self._good_head(columns)
        records = decode_rows(rows.get(head.series, ()), head=head, identity=self.identity)
        return Stored(head, records)

    def _select_tails(self, connection: Connection, keys: Sequence[SessionKey]) -> list[Found]:
        """Sessions up to the first that has a snapshot; that one by itself."""
        found = self._select(connection, statements.HAVE_SNAPSHOTS, *statements.columns_of(keys))
        known = {SessionKey(*columns) for columns in found}
        plain = list(itertools.takewhile(lambda key: key not in known, keys))
        if plain:
            return self._select_some(connection, plain)
        try:
            return [outcome.Value(self._select_tail(connection, keys[0]))]
        except (JournalDamaged, WireError) as error:
            return [outcome.Error(error)]

    def _select_tail(self, connection: Connection, key: SessionKey) -> Stored:
        snapshot = self._select_snapshot(connection, key)
        if snapshot is None:
            return self._select_some(connection, [key])[0].unwrap()
        head = self._select_heads(connection, [key])[key]
        rows = self._some_rows(connection, head.series, snapshot.records)
        records = decode_rows(rows, head=head, identity=self.identity, after=snapshot.records)
        return Stored(head, records, snapshot)

    def _some_rows(
        self, connection: Connection, series: str, after: int, up_to: int = statements.ALL
    ) -> list[Row]:
        """The row that holds the record behind `after`, and those that follow, up to the one that holds `up_to`."""
        values = {"series": series, "begin": after + 1, "up_to": up_to}
        return [
            Row(*columns) for columns in connection.execute(statements.SELECT_SOME_ROWS, values).fetchall()
        ]

    def _select_page(self, connection: Connection, key: SessionKey, after: int, limit: int) -> Page:
        head = self._select_heads(connection, [key]).get(key)
        if head is None:
            return Page()
        rows = self._some_rows(connection, head.series, after, after + limit)
        return decode_page(
            [row for row in rows if row.first + row.count - 1 > after],
            head=head,
            identity=self.identity,
            after=after,
            earlier=lambda first, count: self._some_rows(
                connection, head.series, max(0, first - count - 1), first - 1
            ),
        )

    def _select_snapshot(self, connection: Connection, key: SessionKey) -> Snapshot | None:
        head = self._select_heads(connection, [key]).get(key)
        found = [] if head is None else self._select(connection, statements.SELECT_SNAPSHOTS, [head.series])
        if head is None or not found:
            return None
        row = SnapshotRow(*found[0])
        last = self._checksum_at(connection, head, row.records)
        return read_snapshot(row, head=head, last=last, identity=self.identity)

    def _checksum_at(self, connection: Connection, head: Head, record: int) -> int | None:
        values = {"series": head.series, "record": record}
        found = connection.execute(statements.SELECT_CHECKSUM, values).fetchone()
        return None if found is None else found[0]

    def _put_snapshot(self, connection: Connection, key: SessionKey, snapshot: Snapshot, epoch: int) -> bool:
        self._check_fence(connection, epoch, [key])
        head = self._select_heads(connection, [key]).get(key)
        last = None if head is None else self._checksum_at(connection, head, snapshot.records)
        if head is None or last is None:
            return False
        row = place_snapshot(snapshot, head.series, last, identity=self.identity, keys=self._keys)
        connection.execute(statements.PUT_SNAPSHOT, attrs.astuple(row))
        return True

    def _delete_snapshot(self, connection: Connection, key: SessionKey, epoch: int) -> None:
        self._check_fence(connection, epoch, [key])
        connection.execute(statements.DELETE_SNAPSHOT, key)

    def _insert(self, connection: Connection, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        if self._is_new and in_transaction(connection, self._has_heads, heads):
            return  # the old connection was lost behind the commit
        fence = [epoch, self.identity, self._table_id]
        values = [*fence, *encode_columns(statements.ROW_TYPES, rows), *self._head_columns(heads)]
        if connection.execute(statements.WRITE_GROUP, values).fetchone() is None:
            in_transaction(connection, self._check_epoch_there, epoch)
            raise JournalDamaged("its description is lost")

    def _clear_active(self, connection: Connection, now: float) -> int:
        return connection.execute(statements.CLEAR_ACTIVE, (now,)).rowcount

    def _has_heads(self, connection: Connection, heads: Sequence[Head]) -> bool:
        wanted = {head.key: head for head in heads}
        return self._select_heads(connection, sorted(wanted)) == wanted

    def _head_columns(self, heads: Sequence[Head]) -> list[Array]:
        checksums = [checksum_head(head, self.identity) for head in heads]
        return [*encode_columns(statements.FIELD_TYPES, heads), encode_array("bigint", checksums)]

    def _put_heads(self, connection: Connection, heads: Sequence[Head]) -> None:
        connection.execute(statements.PUT_HEADS, self._head_columns(heads))

    def _cut(self, connection: Connection, key: SessionKey, head: Head | None, epoch: int) -> None:
        if head is None:
            self._delete(connection, key, epoch)
            return
        self._check_fence(connection, epoch, [key])
        connection.execute("DELETE FROM steps WHERE series = %s AND first > %s", (head.series, head.records))
        connection.execute(
            "DELETE FROM snapshots WHERE series = %s AND records > %s", (head.series, head.records)
        )
        self._put_heads(connection, [head])

    def _delete_trees(
        self, connection: Connection, roots: Sequence[SessionKey], unchanged_since: float, epoch: int
    ) -> list[SessionKey]:
        gone: list[SessionKey] = []
        for root in roots:
            found = self._select(connection, statements.SELECT_TREE, *root, unchanged_since)
            if not any(is_kept for *_, is_kept in found):
                keys = [SessionKey(agent, session_id) for agent, session_id, _ in found]
                for key in keys:
                    self._delete(connection, key, epoch)
                gone += keys or [root]
        return gone

    def _delete(self, connection: Connection, key: SessionKey, epoch: int) -> None:
        self._check_fence(connection, epoch, [key])
        connection.execute(statements.DELETE_ROWS, key)
        connection.execute(statements.DELETE_SNAPSHOT, key)
        connection.execute(statements.DELETE_HEAD, key)

    def _check_fence(self, connection: Connection, epoch: int, keys: Iterable[SessionKey]) -> None:
        """Refuse to write these sessions where another process owns them; until this transaction ends, none can."""
        self._check_epoch_there(connection, epoch)

    def _check_epoch_there(self, connection: Connection, epoch: int) -> None:
        """Raise where another process is the owner, or this is another journal; until this transaction ends, none can become it."""
        sql = "SELECT epoch, owner, identity, tableoid FROM meta FOR SHARE"
        current, owner, *found = one_row(connection, sql)
        self._check_found(tuple(found))
        if current != epoch:
            raise Fenced(f"epoch {epoch} of the journal is over: {owner} owns it; nothing was written")
