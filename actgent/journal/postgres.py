"""The journal in PostgreSQL: for agents whose machine may not come back.

One connection, in a thread of its own, holds an advisory lock for as long as its process lives, and each
transaction checks the epoch: who has lost the connection, and with it perhaps the ownership,
writes nothing more. Needs the extra `postgres`.
"""

import contextlib
import itertools
import os
import secrets
import socket
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import attrs
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
    WireError,
)
from actgent.support.storage_thread import StorageThread

from .base import Snapshot
from .grouped.group import GroupedJournal
from .grouped.reading import GROUP_RECORDS, Found, Stored
from .grouped.steps import (
    CHANGING,
    HEAD_FIELDS,
    SNAPSHOT_FIELDS,
    Head,
    Page,
    Row,
    SnapshotRow,
    checksum_head,
    decode_page,
    decode_rows,
    is_good_head,
    place_snapshot,
    read_snapshot,
)
from .listing import (
    KEPT_SQL,
    STATE_SQL,
    Cursor,
    SessionFilter,
    SessionKey,
    State,
    page_query,
    unlisted_page_query,
)
from .read_only import ReadOnlyJournal

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
    # Ids become unique for their agent, and heads know their root, which was found by ids alone so far.
    """
    ALTER TABLE steps RENAME COLUMN session_id TO series;
    ALTER TABLE sessions ADD COLUMN parent_agent text, ADD COLUMN root_agent text, ADD COLUMN root_id text,
        ADD COLUMN series text;
    CREATE INDEX kin ON sessions (parent_id);
    WITH RECURSIVE tree (session_id, root_agent, root_id) AS (
        SELECT session_id, agent, session_id FROM sessions AS top
        WHERE NOT EXISTS (SELECT FROM sessions AS above WHERE above.session_id = top.parent_id)
        UNION SELECT below.session_id, tree.root_agent, tree.root_id
        FROM tree JOIN sessions AS below ON below.parent_id = tree.session_id
    )
    UPDATE sessions SET root_agent = tree.root_agent, root_id = tree.root_id
    FROM tree WHERE tree.session_id = sessions.session_id;
    UPDATE sessions SET
        parent_agent = (SELECT above.agent FROM sessions AS above WHERE above.session_id = sessions.parent_id),
        root_agent = coalesce(root_agent, agent), root_id = coalesce(root_id, session_id), series = session_id;
    DROP INDEX kin;
    ALTER TABLE sessions DROP CONSTRAINT sessions_pkey,
        ALTER COLUMN session_id TYPE text COLLATE "C", ALTER COLUMN agent TYPE text COLLATE "C",
        ALTER COLUMN owner TYPE text COLLATE "C", ALTER COLUMN root_agent SET NOT NULL,
        ALTER COLUMN root_id SET NOT NULL, ALTER COLUMN series SET NOT NULL;
    ALTER TABLE sessions ADD PRIMARY KEY (session_id, agent);
    CREATE INDEX children ON sessions (parent_id, parent_agent) WHERE parent_id IS NOT NULL;
    CREATE INDEX trees ON sessions (root_id, root_agent) WHERE parent_id IS NOT NULL;
    CREATE TABLE listing (
        session_id text COLLATE "C", agent text COLLATE "C", owner text COLLATE "C" NOT NULL, state text NOT NULL,
        changed_at double precision NOT NULL, PRIMARY KEY (session_id, agent)
    );
    CREATE INDEX by_change ON listing (changed_at, agent, session_id);
    CREATE INDEX by_agent ON listing (agent, changed_at, session_id);
    CREATE INDEX by_owner ON listing (owner, changed_at, agent, session_id);
    CREATE INDEX by_state ON listing (state, changed_at, agent, session_id);
    """,
    "CREATE INDEX erasable ON sessions (agent, session_id) WHERE due < 0",
    """
    CREATE TABLE snapshots (
        series text PRIMARY KEY, records bigint NOT NULL, last bigint NOT NULL, version integer NOT NULL,
        body bytea NOT NULL, checksum bigint NOT NULL
    );
    """,
    "ALTER TABLE steps ADD COLUMN at double precision",
)
"""The n-th leads from schema version n to n + 1; what stands here never changes."""

_ROW_TYPES = {
    "series": "text",
    "first": "bigint",
    "count": "integer",
    "body": "bytea",
    "checksum": "bigint",
    "at": "float8",
}
_HEAD_TYPES = dict(
    zip(
        (*HEAD_FIELDS, "checksum"),
        (
            *("text", "text", "text", "text", "float8", "float8", "bigint", "bytea", "boolean"),
            *("float8", "boolean", "text", "text", "text", "text", "bigint"),
        ),
        strict=True,
    )
)
_SELECT_HEADS = f"SELECT {', '.join(_HEAD_TYPES)} FROM sessions"  # noqa: S608 - names of our own
_THESE = "(SELECT * FROM unnest(%s::text[], %s::text[]))"
_HEADS_OF = f"{_SELECT_HEADS} WHERE (agent, session_id) IN {_THESE}"
_SELECT_ROWS = f"SELECT {', '.join(_ROW_TYPES)} FROM steps WHERE series = ANY(%s) ORDER BY series, first"  # noqa: S608
_SELECT_SOME_ROWS = (
    f"SELECT {', '.join(_ROW_TYPES)} FROM steps WHERE series = %(series)s AND first <= %(up_to)s AND first >= "  # noqa: S608
    "(SELECT coalesce(max(first), 1) FROM steps WHERE series = %(series)s AND first <= %(begin)s) ORDER BY first"
)
_SELECT_CHECKSUM = (
    "SELECT checksum FROM steps WHERE series = %(series)s AND first <= %(record)s AND first + count > %(record)s "
    "ORDER BY first DESC LIMIT 1"
)
_SELECT_SNAPSHOTS = f"SELECT {', '.join(SNAPSHOT_FIELDS)} FROM snapshots WHERE series = ANY(%s)"  # noqa: S608
_HAVE_SNAPSHOTS = f"SELECT agent, session_id FROM sessions JOIN snapshots USING (series) WHERE (agent, session_id) IN {_THESE}"  # noqa: S608
_PUT_SNAPSHOT = (
    f"INSERT INTO snapshots VALUES ({', '.join(['%s'] * len(SNAPSHOT_FIELDS))}) ON CONFLICT (series) DO UPDATE SET "  # noqa: S608
    f"{', '.join(f'{name} = excluded.{name}' for name in SNAPSHOT_FIELDS[1:])}"
)
_ALL = 1 << 62
"""More records than a session has."""
_SELECT_CHILDREN = (
    f"{_SELECT_HEADS} WHERE parent_agent = %s AND parent_id = %s ORDER BY created_at, session_id, agent"
)
_SELECT_CHANGED = (
    "SELECT agent, session_id FROM sessions LEFT JOIN listing USING (session_id, agent) "
    "WHERE changed_at IS DISTINCT FROM updated_at AND (session_id, agent) > (%s, %s) "
    "ORDER BY session_id, agent LIMIT %s"
)
_PUT_IN_ORDER = (
    f"INSERT INTO listing SELECT session_id, agent, owner, {STATE_SQL}, updated_at FROM sessions "  # noqa: S608
    f"WHERE (agent, session_id) IN {_THESE} ON CONFLICT (session_id, agent) DO UPDATE SET "
    "owner = excluded.owner, state = excluded.state, changed_at = excluded.changed_at"
)
_COUNT_STATES = f"SELECT agent, {STATE_SQL}, count(*) FROM sessions GROUP BY 1, 2"  # noqa: S608
_OF_KEY = " WHERE agent = %s AND session_id = %s"
_DELETE_ROWS = f"DELETE FROM steps WHERE series = (SELECT series FROM sessions{_OF_KEY})"  # noqa: S608
_DELETE_SNAPSHOT = f"DELETE FROM snapshots WHERE series = (SELECT series FROM sessions{_OF_KEY})"  # noqa: S608
_DELETE_HEAD = f"DELETE FROM sessions{_OF_KEY}"  # noqa: S608
_DELETE_LISTED = f"DELETE FROM listing{_OF_KEY}"  # noqa: S608
_OLDEST = ' ORDER BY created_at, session_id COLLATE "C"'
_SELECT_UNFINISHED = (
    f"SELECT session_id FROM sessions WHERE agent = %s AND length(pending) > 0 AND NOT suspended{_OLDEST}"  # noqa: S608
)
_SELECT_NEWEST = (
    "SELECT body FROM steps WHERE series = (SELECT series FROM sessions ORDER BY updated_at DESC LIMIT 1) "
    "ORDER BY first DESC LIMIT 1"
)
_TREE = (
    'WITH RECURSIVE tree (agent, session_id) AS (VALUES (%s::text COLLATE "C", %s::text COLLATE "C") UNION SELECT below.agent, below.session_id FROM tree '
    "JOIN sessions AS below ON below.parent_id = tree.session_id AND below.parent_agent = tree.agent)"
)
_IS_KEPT = f"{KEPT_SQL} OR updated_at >= %s"
_SELECT_TREE = (
    f"{_TREE} SELECT agent, session_id, {_IS_KEPT} FROM tree JOIN sessions USING (agent, session_id)"  # noqa: S608
)
_SELECT_TO_ERASE = "SELECT agent, session_id FROM sessions WHERE due < 0 LIMIT %s"
_COUNT_WAITING = (
    "SELECT agent, count(*) FROM sessions WHERE length(pending) > 0 AND NOT suspended GROUP BY agent"
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

WRITING = 10.0
READING = 60.0
"""Seconds that the server may take for a piece of work, until its connection is dropped."""
LETTING_GO = 1.0
"""Seconds that the server may take to let the lock of one who leaves go at once."""
AWAY = 5.0
"""Seconds in which a lost connection is made again before anybody hears of it."""
_PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Seconds between two tries; the last again and again."""

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]


class PostgresJournal(GroupedJournal):
    """A journal in one schema of a database, `actgent` unless the address says `?schema=...`."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._address, self._schema = _split_schema(url)
        self._connection: Connection | None = None
        self._thread: StorageThread | None = None
        self._is_owner = False
        """True if a new connection has to be that of the owner of before."""
        self._is_new = False
        """True if nothing was written through this connection yet."""

    async def _take(self) -> int:
        if self._thread is None:
            self._thread = StorageThread(f"journal {self._schema}")
        self._is_owner = False
        await self._run(self._own)
        self._is_owner = True
        epoch, self.identity = await self._run(self._begin_epoch)
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
        await self._run(self._insert, rows, heads, epoch, patience=WRITING)
        self._is_new = False

    async def _take_back(self, key: SessionKey, head: Head | None, epoch: int) -> None:
        await self._run(self._cut, key, head, epoch)

    async def _newest_body(self) -> bytes | None:
        rows = await self._run(self._select, _SELECT_NEWEST)
        return rows[0][0] if rows else None

    async def _read_some(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        return await self._run(self._select_some, keys)

    async def _read_tails(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        return await self._run(self._select_tails, keys)

    async def _read_page(self, key: SessionKey, after: int, limit: int) -> Page:
        return await self._run(self._select_page, key, after, limit)

    def _read_page_now(self, key: SessionKey, after: int, limit: int) -> Page:
        if self._thread is None:
            raise JournalFailed("the journal's database is not connected")
        return self._thread.run_now(self._connected, self._select_page, key, after, limit)

    async def _find_snapshot(self, key: SessionKey) -> Snapshot | None:
        return await self._run(self._select_snapshot, key)

    async def _keep_snapshot(self, key: SessionKey, snapshot: Snapshot, epoch: int) -> bool:
        return await self._run(self._put_snapshot, key, snapshot, epoch, patience=WRITING)

    async def _drop_snapshots(self, key: SessionKey, epoch: int) -> None:
        await self._run(self._delete_snapshot, key, epoch)

    async def _list_unfinished(self, agent: str) -> list[str]:
        return [session_id for (session_id,) in await self._run(self._select, _SELECT_UNFINISHED, agent)]

    async def _count_waiting(self) -> dict[str, int]:
        return dict(await self._run(self._select, _COUNT_WAITING))

    async def _list_due(self, agent: str) -> list[tuple[str, float]]:
        return [(session_id, due) for session_id, due in await self._run(self._select, _SELECT_DUE, agent)]

    async def _list_suspended(self, agent: str, after: str, limit: int) -> list[str]:
        rows = await self._run(self._select, _SELECT_SUSPENDED, agent, after, limit)
        return [session_id for (session_id,) in rows]

    async def _list_heads(self, agent: str | None) -> list[Head]:
        where, values = ("", ()) if agent is None else (" WHERE agent = %s", (agent,))
        return await self._heads_in(f"{_SELECT_HEADS}{where}{_OLDEST}", *values)

    async def _heads_in(self, sql: str, *values: Any) -> list[Head]:
        return [Head(*columns[:-1]) for columns in await self._run(self._select, sql, *values)]

    async def _list_agents(self, session_id: str) -> list[str]:
        sql = "SELECT agent FROM sessions WHERE session_id = %s"
        return [agent for (agent,) in await self._run(self._select, sql, session_id)]

    async def _list_children(self, key: SessionKey) -> list[Head]:
        return await self._heads_in(_SELECT_CHILDREN, *key)

    async def list_changed(self, after: SessionKey, limit: int) -> list[SessionKey]:
        rows = await self._run(self._select, _SELECT_CHANGED, after.session_id, after.agent, limit)
        return [SessionKey(*columns) for columns in rows]

    async def put_in_order(self, keys: Sequence[SessionKey]) -> None:
        await self._run(self._update_listed, keys, self._epoch)

    async def select_page(self, wanted: SessionFilter, after: Cursor | None, limit: int) -> list[Head]:
        sql, values = page_query(_HEAD_TYPES, wanted, after, limit)
        return await self._heads_in(sql.replace("?", "%s"), *values)

    async def count_states(self) -> dict[tuple[str, State], int]:
        rows = await self._run(self._select, _COUNT_STATES)
        return {(agent, state): count for agent, state, count in rows}

    async def _list_to_erase(self, limit: int) -> list[SessionKey]:
        return [SessionKey(*each) for each in await self._run(self._select, _SELECT_TO_ERASE, limit)]

    async def _erase_trees(
        self, roots: Sequence[SessionKey], unchanged_since: float, epoch: int
    ) -> list[SessionKey]:
        return await self._run(self._delete_trees, roots, unchanged_since, epoch)

    async def _erase(self, key: SessionKey, epoch: int) -> None:
        await self._run(self._delete, key, epoch)

    async def _run(self, fn: Callable[..., T], *args: Any, patience: float = READING) -> T:
        """Run `fn(connection, ...)` in the thread, and again where the server was away for a moment."""
        until = time.monotonic() + AWAY
        for pause in itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1])):
            try:
                return await self._run_once(fn, *args, patience=patience)
            except JournalFailed as error:
                is_lost = self._is_owner and isinstance(error.__cause__, (psycopg.OperationalError, Fenced))
                if not is_lost or time.monotonic() + pause > until:
                    raise
            await trio.sleep(pause)
        raise AssertionError("the pauses do not end")

    async def _run_once(self, fn: Callable[..., T], *args: Any, patience: float) -> T:
        """Drop the connection of a server that does not answer: a thread that waits for it cannot be stopped otherwise."""
        if self._thread is None:
            raise JournalFailed("the journal's database is not connected")
        with trio.move_on_after(patience):
            return await self._thread.run(self._connected, fn, *args)
        self._drop()
        raise JournalFailed(
            f"the journal's database has not answered within {patience:g} s"
        ) from psycopg.OperationalError("no answer")

    def _drop(self) -> None:
        """End the connection from outside: whoever waits for the server in it goes on with an error."""
        connection = self._connection
        with contextlib.suppress(psycopg.Error, OSError):  # it is closed
            if connection is not None:
                with socket.socket(fileno=os.dup(connection.fileno())) as doubled:
                    doubled.shutdown(socket.SHUT_RDWR)

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
        with _translated():
            if self._connection is None or self._connection.closed:
                self._connect()
            assert self._connection is not None  # noqa: S101 - just made
            try:
                with self._connection.transaction():
                    return fn(self._connection, *args)
            finally:
                _settle(self._connection)

    def _connect(self) -> Connection:
        """A new connection; after a lost one it has to be the owner's again."""
        self._connection = connection = psycopg.connect(
            self._address, autocommit=True, options=_OPTIONS, **_SETTINGS
        )
        self._is_new = True
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
                f"the journal is owned by {self._owner(connection, exists)}, which is alive: stop it first"
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

    def _select_heads(self, connection: Connection, keys: Sequence[SessionKey]) -> dict[SessionKey, Head]:
        heads = [self._good_head(columns) for columns in self._select(connection, _HEADS_OF, *_columns(keys))]
        return {head.key: head for head in heads}

    def _good_head(self, columns: Sequence[Any]) -> Head:
        head = Head(*columns[:-1])
        if not is_good_head(head, columns[-1], self.identity):
            raise JournalDamaged("the checksum of its head is wrong", session_id=head.session_id)
        return head

    def _select_some(self, connection: Connection, keys: Sequence[SessionKey]) -> list[Found]:
        heads: dict[SessionKey, Sequence[Any]] = {}
        for columns in self._select(connection, _HEADS_OF, *_columns(keys)):
            heads[Head(*columns[:-1]).key] = columns
        counts = itertools.accumulate(heads[key][_RECORDS] if key in heads else 0 for key in keys[:-1])
        wanted = keys[: 1 + sum(count < GROUP_RECORDS for count in counts)]
        rows: dict[str, list[Row]] = {}
        series = [heads[key][_SERIES] for key in wanted if key in heads]
        for columns in self._select(connection, _SELECT_ROWS, series):
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
        found = self._select(connection, _HAVE_SNAPSHOTS, *_columns(keys))
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

    def _some_rows(self, connection: Connection, series: str, after: int, up_to: int = _ALL) -> list[Row]:
        """The row that holds the record behind `after`, and those that follow, up to the one that holds `up_to`."""
        values = {"series": series, "begin": after + 1, "up_to": up_to}
        return [Row(*columns) for columns in connection.execute(_SELECT_SOME_ROWS, values).fetchall()]

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
            earlier=lambda first: self._some_rows(
                connection, head.series, max(0, first - limit - 1), first - 1
            ),
        )

    def _select_snapshot(self, connection: Connection, key: SessionKey) -> Snapshot | None:
        head = self._select_heads(connection, [key]).get(key)
        found = [] if head is None else self._select(connection, _SELECT_SNAPSHOTS, [head.series])
        if head is None or not found:
            return None
        row = SnapshotRow(*found[0])
        last = self._checksum_at(connection, head, row.records)
        return read_snapshot(row, head=head, last=last, identity=self.identity)

    def _checksum_at(self, connection: Connection, head: Head, record: int) -> int | None:
        values = {"series": head.series, "record": record}
        found = connection.execute(_SELECT_CHECKSUM, values).fetchone()
        return None if found is None else found[0]

    def _put_snapshot(self, connection: Connection, key: SessionKey, snapshot: Snapshot, epoch: int) -> bool:
        _check_epoch(connection, epoch)
        head = self._select_heads(connection, [key]).get(key)
        last = None if head is None else self._checksum_at(connection, head, snapshot.records)
        if head is None or last is None:
            return False
        row = place_snapshot(snapshot, head.series, last, identity=self.identity, keys=self._keys)
        connection.execute(_PUT_SNAPSHOT, attrs.astuple(row))
        return True

    def _delete_snapshot(self, connection: Connection, key: SessionKey, epoch: int) -> None:
        _check_epoch(connection, epoch)
        connection.execute(_DELETE_SNAPSHOT, key)

    def _insert(self, connection: Connection, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        _check_epoch(connection, epoch)
        wanted = {head.key: head for head in heads}
        if self._is_new and self._select_heads(connection, sorted(wanted)) == wanted:
            return  # the old connection was lost behind the commit
        connection.execute(_INSERT_ROWS, [[getattr(row, name) for row in rows] for name in _ROW_TYPES])
        self._put_heads(connection, heads)

    def _put_heads(self, connection: Connection, heads: Sequence[Head]) -> None:
        columns = [[getattr(head, name) for head in heads] for name in HEAD_FIELDS]
        connection.execute(_UPSERT_HEADS, [*columns, [checksum_head(head, self.identity) for head in heads]])

    def _cut(self, connection: Connection, key: SessionKey, head: Head | None, epoch: int) -> None:
        if head is None:
            self._delete(connection, key, epoch)
            return
        _check_epoch(connection, epoch)
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
            found = self._select(connection, _SELECT_TREE, *root, unchanged_since)
            if not any(is_kept for *_, is_kept in found):
                keys = [SessionKey(agent, session_id) for agent, session_id, _ in found]
                for key in keys:
                    self._delete(connection, key, epoch)
                gone += keys or [root]
        return gone

    def _delete(self, connection: Connection, key: SessionKey, epoch: int) -> None:
        _check_epoch(connection, epoch)
        connection.execute(_DELETE_ROWS, key)
        connection.execute(_DELETE_SNAPSHOT, key)
        connection.execute(_DELETE_HEAD, key)
        connection.execute(_DELETE_LISTED, key)

    def _update_listed(self, connection: Connection, keys: Sequence[SessionKey], epoch: int) -> None:
        _check_epoch(connection, epoch)
        connection.execute(_PUT_IN_ORDER, _columns(keys))


class PostgresReader(ReadOnlyJournal, PostgresJournal):
    """A journal in a database, which another process may own; each call is one transaction that cannot write."""

    async def _take(self) -> int:
        self._thread = StorageThread(f"look at {self._schema}")
        self.identity = await self._run(self._describe)
        return 1

    def _connect(self) -> Connection:
        self._connection = connection = psycopg.connect(
            self._address, autocommit=True, options=f"{_OPTIONS} {_READ_ONLY}", **_SETTINGS
        )
        schema = psycopg.sql.Identifier(self._schema)
        connection.execute(psycopg.sql.SQL("SET search_path TO {}").format(schema))
        return connection

    def _describe(self, connection: Connection) -> bytes:
        """Return the journal's identity, where there is one of this version."""
        meta = psycopg.sql.Identifier(self._schema, "meta").as_string(connection)
        if _one(connection, "SELECT to_regclass(%s)", meta)[0] is None:
            raise ConfigurationError(f"the database has no journal in its schema {self._schema!r}")
        version, identity = _one(connection, "SELECT version, identity FROM meta")
        if version != len(MIGRATIONS):
            raise JournalVersion(version, len(MIGRATIONS))
        return bytes(identity)

    async def select_page(self, wanted: SessionFilter, after: Cursor | None, limit: int) -> list[Head]:
        sql, values = unlisted_page_query(_HEAD_TYPES, wanted, after, limit)
        return await self._heads_in(sql.replace("?", "%s"), *values)


_READ_ONLY = "-c default_transaction_read_only=on -c default_transaction_isolation=repeatable\\ read"
"""Each transaction reads as of one moment, however many statements it has."""
_RECORDS = HEAD_FIELDS.index("records")
_SERIES = HEAD_FIELDS.index("series")
_IDLE = psycopg.pq.TransactionStatus.IDLE
_TRY_LOCK = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"


def _insert_statement(table: str, types: dict[str, str]) -> str:
    arrays = ", ".join(f"%s::{kind}[]" for kind in types.values())
    return f"INSERT INTO {table} ({', '.join(types)}) SELECT * FROM unnest({arrays})"  # noqa: S608


_INSERT_ROWS = _insert_statement("steps", _ROW_TYPES)
_UPSERT_HEADS = (
    f"{_insert_statement('sessions', _HEAD_TYPES)} ON CONFLICT (session_id, agent) DO UPDATE SET "
    f"{', '.join(f'{name} = excluded.{name}' for name in (*CHANGING, 'checksum'))}"
)


def _columns(keys: Sequence[SessionKey]) -> tuple[list[str], list[str]]:
    """For `_THESE`."""
    return [key.agent for key in keys], [key.session_id for key in keys]


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
    if version < len(MIGRATIONS):
        connection.execute("SET LOCAL statement_timeout = 0")  # many sessions take long, once
    for script in MIGRATIONS[version:]:
        connection.execute(script)
    connection.execute("UPDATE meta SET version = %s", (len(MIGRATIONS),))


@contextmanager
def _translated() -> Iterator[None]:
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
