"""The journal in PostgreSQL: for agents whose machine may not come back.

One connection, in threads, holds an advisory lock for as long as its process lives, and each
transaction checks the epoch: who has lost the connection, and with it perhaps the ownership,
writes nothing more. Needs the extra `postgres`.
"""

import itertools
import os
import secrets
import socket
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import outcome
import psycopg
import psycopg.conninfo
import psycopg.sql
import trio

from actgent.errors import (
    ConfigurationError,
    Fenced,
    JournalDamaged,
    JournalFailed,
    JournalFull,
    JournalVersion,
)

from .group import GroupedJournal
from .reading import GROUP_RECORDS, Found, Stored
from .steps import HEAD_FIELDS, Head, Row, checksum_head, decode_rows

MIGRATIONS: Sequence[str] = (
    """
    CREATE TABLE sessions (
        session_id text PRIMARY KEY, agent text NOT NULL, owner text NOT NULL, parent_id text,
        created_at double precision NOT NULL, updated_at double precision NOT NULL,
        records bigint NOT NULL, pending bytea NOT NULL, closed boolean NOT NULL, checksum bigint NOT NULL
    );
    CREATE INDEX unfinished ON sessions (agent, created_at, session_id) WHERE length(pending) > 0;
    CREATE TABLE steps (
        session_id text, first bigint, count integer NOT NULL, body bytea NOT NULL, checksum bigint NOT NULL,
        PRIMARY KEY (session_id, first)
    );
    """,
    """
    ALTER TABLE sessions ADD COLUMN due double precision NOT NULL DEFAULT 0,
        ADD COLUMN suspended boolean NOT NULL DEFAULT false;
    DROP INDEX unfinished;
    CREATE INDEX unfinished ON sessions (agent, created_at, session_id) WHERE length(pending) > 0 AND NOT suspended;
    CREATE INDEX due ON sessions (agent, due, session_id) WHERE due > 0 AND NOT closed;
    """,
    'CREATE INDEX suspended ON sessions (agent, session_id COLLATE "C") WHERE suspended AND NOT closed',
)
"""The n-th leads from schema version n to n + 1; what stands here never changes."""

_ROW_TYPES = {
    "session_id": "text",
    "first": "bigint",
    "count": "integer",
    "body": "bytea",
    "checksum": "bigint",
}
_HEAD_TYPES = dict(
    zip(
        (*HEAD_FIELDS, "checksum"),
        (
            *("text", "text", "text", "text", "float8", "float8", "bigint", "bytea", "boolean"),
            *("float8", "boolean", "bigint"),
        ),
        strict=True,
    )
)
_SELECT_HEADS = f"SELECT {', '.join(_HEAD_TYPES)} FROM sessions"  # noqa: S608 - names of our own
_HEADS_OF = f"{_SELECT_HEADS} WHERE session_id = ANY(%s)"
_RECORDS = [*_HEAD_TYPES].index("records")
_SELECT_ROWS = (
    f"SELECT {', '.join(_ROW_TYPES)} FROM steps WHERE session_id = ANY(%s) ORDER BY session_id, first"  # noqa: S608
)
_OLDEST = ' ORDER BY created_at, session_id COLLATE "C"'
_SELECT_UNFINISHED = (
    f"SELECT session_id FROM sessions WHERE agent = %s AND length(pending) > 0 AND NOT suspended{_OLDEST}"  # noqa: S608
)
_SELECT_DUE = (
    "SELECT session_id, due FROM sessions WHERE agent = %s AND due > 0 AND NOT closed "
    'ORDER BY due, session_id COLLATE "C"'
)
_SELECT_SUSPENDED = (
    "SELECT session_id FROM sessions WHERE agent = %s AND suspended AND NOT closed "
    'AND session_id COLLATE "C" > %s ORDER BY session_id COLLATE "C" LIMIT %s'
)
_SETTINGS: dict[str, Any] = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
}
"""Bounds of each wait for a server that is gone, in seconds (the second in ms)."""
_OPTIONS = (
    "-c synchronous_commit=on -c statement_timeout=30000 -c lock_timeout=10000 -c TimeZone=UTC "
    "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c tcp_user_timeout=30000"
)
"""Of the session on the server, in ms, keepalives in seconds: it has to find out soon that a machine is gone, whose lock
would keep another one from going on."""

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]


class PostgresJournal(GroupedJournal):
    """A journal in one schema of a database, `actgent` unless the address says `?schema=...`."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._address, self._schema = _split_schema(url)
        self._connection: Connection | None = None
        self._threads = trio.CapacityLimiter(2)
        """For a statement and its end: those of the process may all be taken by tools that block."""
        self._is_owner = False
        """Whether a new connection has to be that of the owner of before."""

    async def _take(self) -> int:
        self._is_owner = False
        await self._run(self._own)
        self._is_owner = True
        epoch, self.identity = await self._run(self._begin_epoch)
        return epoch

    async def _release(self) -> None:
        if self._connection is not None:
            await trio.to_thread.run_sync(self._connection.close, limiter=self._threads)
            self._connection = None

    async def _read_heads(self, session_ids: Sequence[str]) -> dict[str, Head]:
        return await self._run(self._select_heads, session_ids)

    async def _write(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        await self._run(self._insert, rows, heads, epoch)

    async def _take_back(self, session_id: str, head: Head | None, epoch: int) -> None:
        await self._run(self._cut, session_id, head, epoch)

    async def _read_some(self, session_ids: Sequence[str]) -> Sequence[Found]:
        return await self._run(self._select_some, session_ids)

    async def _list_unfinished(self, agent: str) -> list[str]:
        return [session_id for (session_id,) in await self._run(self._select, _SELECT_UNFINISHED, agent)]

    async def _list_due(self, agent: str) -> list[tuple[str, float]]:
        return [(session_id, due) for session_id, due in await self._run(self._select, _SELECT_DUE, agent)]

    async def _list_suspended(self, agent: str, after: str, limit: int) -> list[str]:
        rows = await self._run(self._select, _SELECT_SUSPENDED, agent, after, limit)
        return [session_id for (session_id,) in rows]

    async def _list_heads(self, agent: str | None) -> list[Head]:
        where, values = ("", ()) if agent is None else (" WHERE agent = %s", (agent,))
        rows = await self._run(self._select, f"{_SELECT_HEADS}{where}{_OLDEST}", *values)
        return [Head(*columns[:-1]) for columns in rows]

    async def _erase(self, session_id: str, epoch: int) -> None:
        await self._run(self._delete, session_id, epoch)

    async def _run(self, fn: Callable[..., T], *args: Any) -> T:
        """Run `fn(connection, ...)` in a thread; a cancelled one stops the server's work, too, and is waited for."""
        is_over = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_when_cancelled, is_over)
            result = await trio.to_thread.run_sync(
                outcome.capture, self._connected, fn, *args, limiter=self._threads
            )
            is_over.set()
        await trio.lowlevel.checkpoint_if_cancelled()
        value: T = result.unwrap()
        return value

    async def _stop_when_cancelled(self, is_over: trio.Event) -> None:
        try:
            await is_over.wait()
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._stop_statement, limiter=self._threads)
            raise

    def _stop_statement(self) -> None:
        connection = self._connection
        if connection is not None and connection.info.transaction_status == _ACTIVE:
            connection.cancel_safe(timeout=2)

    # --- in threads -----------------------------------------------------------------------

    def _connected(self, fn: Callable[..., T], *args: Any) -> T:
        with translated():
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
            try:
                with self._connection.transaction():
                    return fn(self._connection, *args)
            finally:
                _settle(self._connection)

    def _connect(self) -> Connection:
        """A new connection; after a lost one it has to be the owner's again."""
        connection = psycopg.connect(self._address, autocommit=True, options=_OPTIONS, **_SETTINGS)
        if self._is_owner:
            try:
                self._own_again(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    def _own_again(self, connection: Connection) -> None:
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
            _check_epoch(connection, self._epoch)

    def _stored_epoch(self, connection: Connection) -> int:
        meta = psycopg.sql.Identifier(self._schema, "meta")
        return int(_one(connection, psycopg.sql.SQL("SELECT epoch FROM {}").format(meta))[0])

    def _own(self, connection: Connection) -> None:
        """Take the lock that names this process the owner, and bring the schema up to date."""
        schema = psycopg.sql.Identifier(self._schema)
        (is_ours,) = _one(connection, _TRY_LOCK, f"actgent {self._schema}")
        exists = _one(connection, "SELECT to_regnamespace(%s) IS NOT NULL", schema.as_string(connection))[0]
        if not is_ours:
            raise Fenced(
                f"the journal is owned by {self._owner(connection, exists)}, which is alive: end it first"
            )
        if not exists:
            connection.execute(psycopg.sql.SQL("CREATE SCHEMA {}").format(schema))
        connection.execute(psycopg.sql.SQL("SET search_path TO {}").format(schema))
        _migrate(connection)

    def _owner(self, connection: Connection, exists: bool) -> str:  # noqa: FBT001 - private
        meta = psycopg.sql.Identifier(self._schema, "meta")
        if not exists or _one(connection, "SELECT to_regclass(%s)", meta.as_string(connection))[0] is None:
            return "another process"
        return str(_one(connection, psycopg.sql.SQL("SELECT owner FROM {}").format(meta))[0])

    def _begin_epoch(self, connection: Connection) -> tuple[int, bytes]:
        owner = f"process {os.getpid()} on {socket.gethostname()}"
        sql = "UPDATE meta SET epoch = epoch + 1, owner = %s RETURNING epoch, identity"
        epoch, identity = _one(connection, sql, owner)
        return epoch, identity

    def _select(self, connection: Connection, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return connection.execute(sql, values).fetchall()

    def _select_heads(self, connection: Connection, session_ids: Sequence[str]) -> dict[str, Head]:
        rows = self._select(connection, _HEADS_OF, list(session_ids))
        return {columns[0]: self._good_head(columns) for columns in rows}

    def _good_head(self, columns: Sequence[Any]) -> Head:
        head = Head(*columns[:-1])
        if checksum_head(head, self.identity) != columns[-1]:
            raise JournalDamaged("the checksum of its head is wrong", session_id=head.session_id)
        return head

    def _select_some(self, connection: Connection, session_ids: Sequence[str]) -> list[Found]:
        heads = {columns[0]: columns for columns in self._select(connection, _HEADS_OF, list(session_ids))}
        counts = itertools.accumulate(
            heads[each][_RECORDS] if each in heads else 0 for each in session_ids[:-1]
        )
        wanted = session_ids[: 1 + sum(count < GROUP_RECORDS for count in counts)]
        rows: dict[str, list[Row]] = {}
        for columns in self._select(connection, _SELECT_ROWS, list(wanted)):
            rows.setdefault(columns[0], []).append(Row(*columns))
        return [outcome.capture(self._stored, heads.get(each), rows.get(each, ())) for each in wanted]

    def _stored(self, columns: Sequence[Any] | None, rows: Sequence[Row]) -> Stored:
        if columns is None:
            return Stored()
        head = self._good_head(columns)
        return Stored(head, decode_rows(rows, head=head, identity=self.identity))

    def _insert(self, connection: Connection, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        _check_epoch(connection, epoch)
        connection.execute(_INSERT_ROWS, [[getattr(row, name) for row in rows] for name in _ROW_TYPES])
        self._put_heads(connection, heads)

    def _put_heads(self, connection: Connection, heads: Sequence[Head]) -> None:
        columns = [[getattr(head, name) for head in heads] for name in HEAD_FIELDS]
        connection.execute(_UPSERT_HEADS, [*columns, [checksum_head(head, self.identity) for head in heads]])

    def _cut(self, connection: Connection, session_id: str, head: Head | None, epoch: int) -> None:
        _check_epoch(connection, epoch)
        last = 0 if head is None else head.records
        connection.execute("DELETE FROM steps WHERE session_id = %s AND first > %s", (session_id, last))
        if head is None:
            connection.execute("DELETE FROM sessions WHERE session_id = %s", (session_id,))
        else:
            self._put_heads(connection, [head])

    def _delete(self, connection: Connection, session_id: str, epoch: int) -> None:
        _check_epoch(connection, epoch)
        for table in ("steps", "sessions"):
            connection.execute(f"DELETE FROM {table} WHERE session_id = %s", (session_id,))  # noqa: S608


_ACTIVE = psycopg.pq.TransactionStatus.ACTIVE
_IDLE = psycopg.pq.TransactionStatus.IDLE
_TRY_LOCK = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"


def _insert_statement(table: str, types: dict[str, str]) -> str:
    arrays = ", ".join(f"%s::{kind}[]" for kind in types.values())
    return f"INSERT INTO {table} ({', '.join(types)}) SELECT * FROM unnest({arrays})"  # noqa: S608


_INSERT_ROWS = _insert_statement("steps", _ROW_TYPES)
_UPSERT_HEADS = (
    f"{_insert_statement('sessions', _HEAD_TYPES)} ON CONFLICT (session_id) DO UPDATE SET "
    f"{', '.join(f'{name} = excluded.{name}' for name in [*_HEAD_TYPES][1:])}"
)


def _split_schema(url: str) -> tuple[str, str]:
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # read for its ValueError
        query = dict(urllib.parse.parse_qsl(parts.query))
        schema = query.pop("schema", "actgent")
        address = urllib.parse.urlunsplit(parts._replace(query=urllib.parse.urlencode(query)))
        psycopg.conninfo.conninfo_to_dict(address)
    except (ValueError, psycopg.Error):  # whose texts may quote the password
        raise ConfigurationError(
            "the journal's address is not of the form postgres://HOST/DATABASE"
        ) from None
    return address, schema


def _one(connection: Connection, sql: Any, *values: Any) -> tuple[Any, ...]:
    row = connection.execute(sql, values).fetchone()
    if row is None:
        raise JournalDamaged("its description is lost")
    return row


def _check_epoch(connection: Connection, epoch: int) -> None:
    """Raise where another process is the owner; until this transaction ends, none can become it."""
    current, owner = _one(connection, "SELECT epoch, owner FROM meta FOR SHARE")
    if current != epoch:
        raise Fenced(f"epoch {epoch} of the journal is over: {owner} owns it; nothing was written")


def _migrate(connection: Connection) -> None:
    connection.execute(
        "CREATE TABLE IF NOT EXISTS meta "
        "(version integer NOT NULL, epoch bigint NOT NULL, identity bytea NOT NULL, owner text NOT NULL)"
    )
    connection.execute(
        "INSERT INTO meta SELECT 0, 0, %s, '' WHERE NOT EXISTS (SELECT FROM meta)", (secrets.token_bytes(4),)
    )
    (version,) = _one(connection, "SELECT version FROM meta")
    if version > len(MIGRATIONS):
        raise JournalVersion(version, len(MIGRATIONS))
    for script in MIGRATIONS[version:]:
        connection.execute(script)
    connection.execute("UPDATE meta SET version = %s", (len(MIGRATIONS),))


@contextmanager
def translated() -> Iterator[None]:
    """PostgreSQL's errors as ours; none of them quotes the address, which may hold a password."""
    try:
        yield
    except psycopg.errors.DiskFull as error:
        raise JournalFull(f"no space for the journal: {error}; nothing of the step was written") from error
    except (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.DataCorrupted) as error:
        raise JournalDamaged(str(error)) from error
    except psycopg.Error as error:
        raise JournalFailed(f"the journal's database failed: {error}") from error


def _settle(connection: Connection) -> None:
    """Leave no transaction behind: a request to stop may meet the COMMIT itself, which then neither ends it nor rolls back."""
    if not connection.closed and connection.info.transaction_status != _IDLE:
        connection.rollback()
