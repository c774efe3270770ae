"""Journal in PostgreSQL, for agents whose machine may be lost.

One connection in its own thread holds an advisory lock while its process lives. Each write checks the epoch, so a
process that lost the connection, and perhaps the ownership, cannot write. A group of batches is one statement that
checks the epoch itself. It needs one round trip, and a process that stops in the middle leaves no open transaction.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import attrs
import outcome
import psycopg
import psycopg.sql
import trio

from actgent.errors import Fenced, JournalDamaged, JournalError, JournalFailed
from actgent.journal.group_commit.base_journal_with_group_commit import GroupedJournal
from actgent.journal.group_commit.read_batching import GROUP_RECORDS, Found, PageRequest, Stored
from actgent.journal.group_commit.row_format import (
    Head,
    Page,
    Row,
    checksum_head,
    decode_page,
    decode_rows,
    is_good_head,
)
from actgent.journal.group_commit.snapshot_rows import SnapshotRow, place_snapshot, read_snapshot
from actgent.journal.journal_interface import Snapshot, already_owned_error, process_name
from actgent.journal.session_list_queries import Cursor, SessionFilter, SessionKey, State
from actgent.support.files_shared_by_processes import plain_name
from actgent.support.postgres_address import split_schema
from actgent.support.storage_thread import StorageThread

from . import sql_statements
from .array_encoding import Array, encode_array, encode_columns
from .connections import (
    OPTIONS,
    Connection,
    abort_connection,
    connection_to,
    has_ended_session,
    in_transaction,
    is_server_not_ready,
    one_row,
    retry_while_lost,
    roll_back_open,
    translate_server_errors,
)
from .schema import migrate_schema
from .session_list_pages import session_page_query

WRITE_TIMEOUT_SECONDS = 10.0
"""Maximum seconds of a write on the server. After it, the connection is dropped."""
READ_TIMEOUT_SECONDS = 60.0
"""Maximum seconds of a read on the server. After it, the connection is dropped."""
CLEAR_AGAIN_SECONDS, CLEAR_MORE_SECONDS = 600.0, 5.0
"""Seconds between two updates of the flag `active` of idle sessions; the shorter pause after a full batch."""
UNLOCK_TIMEOUT_SECONDS = 1.0
"""Seconds that the server may take to release the lock when the journal closes."""
_GONE = (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction, Fenced)
"""Exception classes that mean that the server is away or is no longer the primary."""
_REFUSED = (psycopg.errors.ProgramLimitExceeded, psycopg.errors.StatementTooComplex)
"""Exception classes of statements that the server will never accept."""

_HEAD_LENGTH, _ROW_LENGTH = len(sql_statements.HEAD_TYPES), len(sql_statements.ROW_TYPES)

T = TypeVar("T")


@attrs.define(eq=False)
class _Read:
    """Columns of a session, as the statement `READ_SESSIONS` or `READ_TAILS` returns them."""

    weight: int
    """Cost of reading the session: number of its requested records, plus one per KB of the snapshot."""
    head: Sequence[Any]
    """Column values of the session's stored summary, in the order of `HEAD_TYPES`."""
    snapshot: Sequence[Any]
    """Column values of the snapshot, in the order of `SNAPSHOT_COLUMNS`; empty if it was not read."""
    rows: list[Row] = attrs.field(factory=list)


class PostgresJournal(GroupedJournal):
    """A journal in one schema of a database: `actgent`, or the value of `?schema=` in the URL."""

    _options: Mapping[str, str] = OPTIONS
    """Settings of the connection to the server, by name."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._address, self._schema = split_schema(url, default="actgent", owner="the journal")
        self._connection: Connection | None = None
        self._thread: StorageThread | None = None
        self._is_owner = False
        """True if a new connection must regain the ownership that the previous connection had."""
        self._is_new = False
        """True if nothing was written through this connection yet."""
        self._clear_due = -math.inf
        """Time of the next update of `active` flags, on trio's clock."""
        self._table_id = 0
        """Object id of the table `meta`. A table that was restored from a backup has another id."""

    def sibling_url(self, name: str) -> str | None:
        joint = "&" if "?" in self._address else "?"
        return f"{self._address}{joint}schema={self._schema[:20]}_{plain_name(name)}"

    async def _acquire_storage(self) -> int:
        if self._thread is None:
            self._thread = StorageThread(f"journal {self._schema}")
        self._is_owner = False
        epoch, self.identity, self._table_id = await self._run(self._acquire_new_epoch)
        self._is_owner = True
        return epoch

    async def _release(self) -> None:
        if self._thread is not None:
            with trio.move_on_after(UNLOCK_TIMEOUT_SECONDS):
                await self._thread.run(self._unlock)
            self._release_now()

    def _release_now(self) -> None:
        if self._thread is not None:
            self._drop()
            self._thread.end(self._close)
            self._thread = None

    async def _read_heads(self, keys: Sequence[SessionKey]) -> dict[SessionKey, Head]:
        return await self._run_alone(self._select_heads, keys)

    async def _write(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        await self._clear_idle_flags(heads)
        await self._run_alone(self._insert, rows, heads, epoch, timeout_seconds=WRITE_TIMEOUT_SECONDS)
        self._is_new = False

    async def _clear_idle_flags(self, heads: Sequence[Head]) -> None:
        """Clear the column `active` of idle sessions, but only from time to time.

        `heads` are about to be written. The column only speeds up queries. Errors are ignored, because the
        following write raises them too.
        """
        if not heads or trio.current_time() < self._clear_due:
            return
        now = max(head.updated_at for head in heads)
        count = 0
        with contextlib.suppress(JournalError, Fenced):
            count = await self._run_alone(self._clear_active, now, timeout_seconds=WRITE_TIMEOUT_SECONDS)
        self._clear_due = trio.current_time() + (
            CLEAR_AGAIN_SECONDS if count < sql_statements.CLEAR_BATCH else CLEAR_MORE_SECONDS
        )

    async def _roll_back(self, key: SessionKey, head: Head | None, epoch: int) -> None:
        await self._run(self._cut, key, head, epoch)

    async def _newest_body(self) -> bytes | None:
        rows = await self._ask(sql_statements.SELECT_NEWEST)
        return rows[0][0] if rows else None

    async def _read_some(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        return await self._run_alone(self._select_some, keys)

    async def _read_tails(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        return await self._run_alone(self._select_tails, keys)

    async def _read_page(self, key: SessionKey, after: int, limit: int) -> Page:
        return (await self._read_pages([PageRequest(key, after, limit)]))[0].unwrap()

    async def _read_pages(self, requests: Sequence[PageRequest]) -> Sequence["outcome.Outcome[Page]"]:
        return await self._run_alone(self._select_pages, requests)

    def _read_page_blocking(self, key: SessionKey, after: int, limit: int) -> Page:
        if self._thread is None:
            raise JournalFailed("the journal's database is not connected")
        request = PageRequest(key, after, limit)
        return self._thread.run_now(self._connected, self._select_pages, [request])[0].unwrap()

    async def _find_snapshot(self, key: SessionKey) -> Snapshot | None:
        return await self._run_alone(self._select_snapshot, key)

    async def _keep_snapshot(self, key: SessionKey, snapshot: Snapshot, epoch: int) -> bool:
        return await self._run(
            self._put_snapshot, key, snapshot, epoch, timeout_seconds=WRITE_TIMEOUT_SECONDS
        )

    async def _drop_snapshots(self, key: SessionKey, epoch: int) -> None:
        await self._run(self._delete_snapshot, key, epoch)

    async def _list_unfinished(self, agent: str) -> list[str]:
        return (await self._list_unfinished_of([agent]))[0].unwrap()

    async def _list_unfinished_of(self, agents: Sequence[str]) -> Sequence["outcome.Outcome[list[str]]"]:
        found: dict[str, list[str]] = {each: [] for each in agents}
        for agent, session_id in await self._select_unfinished([*found]):
            found[agent].append(session_id)
        return [outcome.Value([*found[each]]) for each in agents]

    async def _select_unfinished(self, agents: list[str]) -> list[tuple[Any, ...]]:
        return await self._ask(sql_statements.SELECT_UNFINISHED, agents)

    async def _count_waiting(self) -> dict[str, int]:
        return dict(await self._ask(sql_statements.COUNT_WAITING))

    async def _list_due(self, agent: str) -> list[tuple[str, float]]:
        return (await self._list_due_of([agent]))[0].unwrap()

    async def _list_due_of(
        self, agents: Sequence[str]
    ) -> Sequence["outcome.Outcome[list[tuple[str, float]]]"]:
        found: dict[str, list[tuple[str, float]]] = {each: [] for each in agents}
        for agent, session_id, due in await self._select_due([*found]):
            found[agent].append((session_id, due))
        return [outcome.Value([*found[each]]) for each in agents]

    async def _select_due(self, agents: list[str]) -> list[tuple[Any, ...]]:
        return await self._ask(sql_statements.SELECT_DUE, agents)

    async def _list_suspended(self, agent: str, after: str, limit: int) -> list[str]:
        rows = await self._ask(sql_statements.SELECT_SUSPENDED, agent, after, limit)
        return [session_id for (session_id,) in rows]

    async def _list_heads(self, agent: str | None) -> list[Head]:
        where, values = ("", ()) if agent is None else (" WHERE agent = %s", (agent,))
        return await self._heads_in(f"{sql_statements.SELECT_HEADS}{where}{sql_statements.OLDEST}", *values)

    async def _heads_in(self, sql: str, *values: Any) -> list[Head]:
        return [Head(*columns[:-1]) for columns in await self._ask(sql, *values)]

    async def _list_agents(self, session_ids: Sequence[str]) -> Sequence["outcome.Outcome[list[str]]"]:
        found: dict[str, list[str]] = {each: [] for each in session_ids}
        for session_id, agent in await self._ask(sql_statements.SELECT_AGENTS, [*found]):
            found[session_id].append(agent)
        return [outcome.Value([*found[each]]) for each in session_ids]

    async def _list_children(self, keys: Sequence[SessionKey]) -> list[Head]:
        agents, session_ids = [key.agent for key in keys], [key.session_id for key in keys]
        return await self._heads_in(sql_statements.SELECT_CHILDREN, agents, session_ids)

    async def list_changed(self, after: SessionKey, limit: int) -> list[SessionKey]:
        """Return an empty list: PostgreSQL keeps the order of sessions in an index, so no order is outdated."""
        return []

    async def update_list_order(self, keys: Sequence[SessionKey]) -> None:
        """Do nothing, because PostgreSQL keeps the order of sessions in an index."""

    async def select_page(
        self, session_filter: SessionFilter, after: Cursor | None, limit: int
    ) -> list[Head]:
        sql, values = session_page_query(sql_statements.HEAD_TYPES, session_filter, after, limit)
        return await self._heads_in(sql, *values)

    async def count_states(self) -> dict[tuple[str, State], int]:
        rows = await self._ask(sql_statements.COUNT_STATES)
        return {(agent, state): count for agent, state, count in rows}

    async def _list_to_erase(self, limit: int) -> list[SessionKey]:
        return [SessionKey(*each) for each in await self._ask(sql_statements.SELECT_TO_ERASE, limit)]

    async def _erase_trees(
        self, roots: Sequence[SessionKey], unchanged_since: float, epoch: int
    ) -> list[SessionKey]:
        connection = self._connection
        gone = await self._run(self._delete_trees, roots, unchanged_since, epoch)
        if self._connection is not connection:  # an earlier attempt may have erased more
            self._mark_all_possibly_erased()
        return gone

    async def _erase(self, key: SessionKey, epoch: int) -> None:
        await self._run(self._delete, key, epoch)

    async def _run(
        self, fn: Callable[..., T], *args: Any, timeout_seconds: float = READ_TIMEOUT_SECONDS
    ) -> T:
        """Run `fn(connection, ...)` in the database thread, in one transaction.

        Repeat the call if the server was briefly unreachable.
        """
        return await self._run_alone(in_transaction, fn, *args, timeout_seconds=timeout_seconds)

    async def _ask(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one SQL statement outside of a transaction, in one round trip, and return its rows."""
        return await self._run_alone(self._select, sql, *values)

    async def _run_alone(
        self, fn: Callable[..., T], *args: Any, timeout_seconds: float = READ_TIMEOUT_SECONDS
    ) -> T:
        """Run `fn(connection, ...)` in the same way as `_run`, but with each SQL statement as a separate transaction."""
        return await retry_while_lost(
            partial(self._run_once, fn, *args, timeout_seconds=timeout_seconds), self._must_repeat
        )

    def _must_repeat(self, error: JournalFailed) -> bool:
        """Return True if a call that failed with `error` must be repeated: the connection was lost, or the server is starting."""
        cause = error.__cause__
        is_gone = isinstance(cause, _GONE) or has_ended_session(cause)
        was_there = self._is_owner and is_gone and not isinstance(cause, _REFUSED)
        return was_there or is_server_not_ready(error)

    async def _run_once(self, fn: Callable[..., T], *args: Any, timeout_seconds: float) -> T:
        """Run `fn(connection, ...)` in the database thread, with a timeout.

        After a timeout the connection is closed, because a thread that waits for the server cannot be stopped otherwise.
        """
        if self._thread is None:
            raise JournalFailed("the journal's database is not connected")
        with trio.move_on_after(timeout_seconds):
            try:
                return await self._thread.run(self._connected, fn, *args)
            except trio.ClosedResourceError as error:
                raise JournalFailed("the journal was closed during the call") from error
            except JournalFailed as error:
                if isinstance(error.__cause__, psycopg.errors.ReadOnlySqlTransaction):
                    self._drop()
                raise
        self._drop()
        raise JournalFailed(
            f"the journal's database did not answer within {timeout_seconds:g} s"
        ) from psycopg.OperationalError("no answer")

    def _drop(self) -> None:
        abort_connection(self._connection)

    # --- in the thread --------------------------------------------------------------------

    def _unlock(self) -> None:
        """Release the ownership lock before the connection closes, because the server may notice its end late."""
        with contextlib.suppress(psycopg.Error):
            if self._connection is not None:
                self._connection.execute("SELECT pg_advisory_unlock_all()")
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self, fn: Callable[..., T], *args: Any) -> T:
        with translate_server_errors():
            if self._connection is None or self._connection.closed:
                self._connect()
            assert self._connection is not None  # noqa: S101 - just made
            try:
                return fn(self._connection, *args)
            finally:
                roll_back_open(self._connection)

    def _connect(self) -> Connection:
        """Open a connection to the PostgreSQL server.

        If this process owned the journal on a lost connection, acquire the ownership again.
        """
        self._connection = connection = connection_to(self._address, self._options)
        self._is_new = True
        if self._is_owner:
            try:
                self._reacquire_ownership(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    def _reacquire_ownership(self, connection: Connection) -> None:
        self._check_journal_exists(connection)
        with connection.transaction():
            try:
                self._own(connection)
            except Fenced as fenced:
                if self._stored_epoch(connection) == self._epoch:
                    raise JournalFailed(
                        "the connection to the journal was lost, and the server holds its lock until it detects "
                        "that: try again within half a minute"
                    ) from fenced
                raise
            self._check_epoch_there(connection, self._epoch)

    def _check_journal_exists(self, connection: Connection) -> None:
        """Raise if the journal's tables were removed or replaced after this process opened the journal.

        Otherwise a write would create a new journal.
        """
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
                f"the schema {self._schema!r} of the database was removed or replaced while the journal was open: writes "
                "fail from now on. Restore it, or restart this process"
            )

    def _acquire_new_epoch(self, connection: Connection) -> tuple[int, bytes, int]:
        """Acquire the ownership and start an epoch in one transaction.

        If the connection were lost between separate transactions, the ownership could not be regained.
        """
        self._own(connection)
        return self._begin_epoch(connection)

    def _stored_epoch(self, connection: Connection) -> int:
        meta = psycopg.sql.Identifier(self._schema, "meta")
        return int(one_row(connection, psycopg.sql.SQL("SELECT epoch FROM {}").format(meta))[0])

    def _own(self, connection: Connection) -> None:
        """Acquire the ownership lock, and create or migrate the schema.

        Raise `Fenced` if another process holds the lock.
        """
        schema = psycopg.sql.Identifier(self._schema)
        (is_ours,) = one_row(connection, sql_statements.TRY_LOCK, f"actgent {self._schema}")
        exists = one_row(connection, "SELECT to_regnamespace(%s) IS NOT NULL", schema.as_string(connection))[
            0
        ]
        if not is_ours:
            raise already_owned_error("the journal", self._owner(connection, exists))
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
        epoch, identity, table_id = one_row(connection, sql_statements.BEGIN_EPOCH, process_name())
        connection.execute(sql_statements.END_PARTITIONS)
        return epoch, identity, table_id

    def _select(self, connection: Connection, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return connection.execute(sql, values).fetchall()

    def _select_heads(self, connection: Connection, keys: Sequence[SessionKey]) -> dict[SessionKey, Head]:
        heads = [
            self._decode_head(columns)
            for columns in self._select(connection, sql_statements.HEADS_OF, *sql_statements.columns_of(keys))
        ]
        return {head.key: head for head in heads}

    def _decode_head(self, columns: Sequence[Any]) -> Head:
        head = Head(*columns[:-1])
        if not is_good_head(head, columns[-1], self.identity):
            raise JournalDamaged(
                "the checksum of the session's stored summary (its head) is wrong", session_id=head.session_id
            )
        return head

    def _read_together(
        self, connection: Connection, sql: str, requests: Sequence[PageRequest]
    ) -> list["_Read | None"]:
        """Read the sessions of `requests` in one statement.

        The first session is always read, and further ones until `GROUP_RECORDS` records were read. The result has None for a
        session that does not exist.
        """
        columns: dict[str, Sequence[Any]] = {
            "session_ids": [each.key.session_id for each in requests],
            "agents": [each.key.agent for each in requests],
            "after": [each.after for each in requests],
            "up_to": [each.after + each.limit for each in requests],
        }
        arrays = [encode_array(kind, columns[name]) for name, kind in sql_statements.READ_TYPES.items()]
        found: dict[int, _Read] = {}
        for number, weight, *values in connection.execute(sql, [*arrays, GROUP_RECORDS]):
            if weight is None:
                found[number].rows.append(Row(*values[-_ROW_LENGTH:]))
            else:
                found[number] = _Read(weight, values[:_HEAD_LENGTH], values[_HEAD_LENGTH:-_ROW_LENGTH])
        reads = [found.get(number) for number in range(1, len(requests) + 1)]
        before = itertools.accumulate(0 if each is None else each.weight for each in reads[:-1])
        return reads[: 1 + sum(weight < GROUP_RECORDS for weight in before)]

    def _select_some(self, connection: Connection, keys: Sequence[SessionKey]) -> list[Found]:
        requests = [PageRequest(key, 0, sql_statements.ALL) for key in keys]
        reads = self._read_together(connection, sql_statements.READ_SESSIONS, requests)
        return [outcome.capture(self._decode_stored, each) for each in reads]

    def _decode_stored(self, read: "_Read | None") -> Stored:
        if read is None:
            return Stored()
        head = self._decode_head(read.head)
        return Stored(head, decode_rows(read.rows, head=head, identity=self.identity))

    def _select_tails(self, connection: Connection, keys: Sequence[SessionKey]) -> list[Found]:
        requests = [PageRequest(key, 0, sql_statements.ALL) for key in keys]
        reads = self._read_together(connection, sql_statements.READ_TAILS, requests)
        return [
            outcome.capture(self._stored_tail, connection, key, read)
            for key, read in zip(keys, reads, strict=False)
        ]

    def _stored_tail(self, connection: Connection, key: SessionKey, read: "_Read | None") -> Stored:
        if read is None or read.snapshot[0] is None:
            return self._decode_stored(read)
        head = self._decode_head(read.head)
        snapshot = self._snapshot_of(read, head)
        if snapshot is None:
            return self._select_some(connection, [key])[0].unwrap()
        records = decode_rows(read.rows, head=head, identity=self.identity, after=snapshot.records)
        return Stored(head, records, snapshot)

    def _snapshot_of(self, read: "_Read", head: Head) -> Snapshot | None:
        *columns, last = read.snapshot
        if columns[0] is None:
            return None
        return read_snapshot(SnapshotRow(*columns), head=head, last=last, identity=self.identity)

    def _read_rows(
        self, connection: Connection, series: str, after: int, up_to: int = sql_statements.ALL
    ) -> list[Row]:
        """Return the rows of a series, from the row with record `after + 1` to the row with record `up_to`."""
        values = {"series": series, "begin": after + 1, "up_to": up_to}
        return [
            Row(*columns)
            for columns in connection.execute(sql_statements.SELECT_SOME_ROWS, values).fetchall()
        ]

    def _select_pages(
        self, connection: Connection, requests: Sequence[PageRequest]
    ) -> list["outcome.Outcome[Page]"]:
        reads = self._read_together(connection, sql_statements.READ_SESSIONS, requests)
        return [
            outcome.capture(self._page_of_read, connection, request, read)
            for request, read in zip(requests, reads, strict=False)
        ]

    def _page_of_read(self, connection: Connection, request: PageRequest, read: "_Read | None") -> Page:
        if read is None:
            return Page()
        head, after = self._decode_head(read.head), request.after
        return decode_page(
            [row for row in read.rows if row.first + row.count - 1 > after],
            head=head,
            identity=self.identity,
            after=after,
            earlier=lambda first, count: self._read_rows(
                connection, head.series, max(0, first - count - 1), first - 1
            ),
        )

    def _select_snapshot(self, connection: Connection, key: SessionKey) -> Snapshot | None:
        (read,) = self._read_together(connection, sql_statements.READ_TAILS, [PageRequest(key, 0, 0)])
        return None if read is None else self._snapshot_of(read, self._decode_head(read.head))

    def _checksum_at(self, connection: Connection, head: Head, record: int) -> int | None:
        values = {"series": head.series, "record": record}
        found = connection.execute(sql_statements.SELECT_CHECKSUM, values).fetchone()
        return None if found is None else found[0]

    def _put_snapshot(self, connection: Connection, key: SessionKey, snapshot: Snapshot, epoch: int) -> bool:
        self._check_fence(connection, epoch, [key])
        head = self._select_heads(connection, [key]).get(key)
        last = None if head is None else self._checksum_at(connection, head, snapshot.records)
        if head is None or last is None:
            return False
        row = place_snapshot(snapshot, head.series, last, identity=self.identity, keys=self._keys)
        connection.execute(sql_statements.PUT_SNAPSHOT, attrs.astuple(row))
        return True

    def _delete_snapshot(self, connection: Connection, key: SessionKey, epoch: int) -> None:
        self._check_fence(connection, epoch, [key])
        connection.execute(sql_statements.DELETE_SNAPSHOT, key)

    def _insert(self, connection: Connection, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        if self._is_new and in_transaction(connection, self._has_heads, heads):
            return  # the old connection was lost after the commit
        fence = [epoch, self.identity, self._table_id]
        values = [*fence, *encode_columns(sql_statements.ROW_TYPES, rows), *self._head_columns(heads)]
        if connection.execute(sql_statements.WRITE_GROUP, values).fetchone() is None:
            in_transaction(connection, self._check_epoch_there, epoch)
            raise JournalDamaged("the table `meta` is empty: restore the database from a backup")

    def _clear_active(self, connection: Connection, now: float) -> int:
        return connection.execute(sql_statements.CLEAR_ACTIVE, (now,)).rowcount

    def _has_heads(self, connection: Connection, heads: Sequence[Head]) -> bool:
        session_filter = {head.key: head for head in heads}
        return self._select_heads(connection, sorted(session_filter)) == session_filter

    def _head_columns(self, heads: Sequence[Head]) -> list[Array]:
        checksums = [checksum_head(head, self.identity) for head in heads]
        return [*encode_columns(sql_statements.FIELD_TYPES, heads), encode_array("bigint", checksums)]

    def _put_heads(self, connection: Connection, heads: Sequence[Head]) -> None:
        connection.execute(sql_statements.PUT_HEADS, self._head_columns(heads))

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
            found = self._select(connection, sql_statements.SELECT_TREE, *root, unchanged_since)
            if not any(is_kept for *_, is_kept in found):
                keys = [SessionKey(agent, session_id) for agent, session_id, _ in found]
                for key in keys:
                    self._delete(connection, key, epoch)
                gone += keys or [root]
        return gone

    def _delete(self, connection: Connection, key: SessionKey, epoch: int) -> None:
        self._check_fence(connection, epoch, [key])
        connection.execute(sql_statements.DELETE_ROWS, key)
        connection.execute(sql_statements.DELETE_SNAPSHOT, key)
        connection.execute(sql_statements.DELETE_HEAD, key)

    def _check_fence(self, connection: Connection, epoch: int, keys: Iterable[SessionKey]) -> None:
        """Raise `Fenced` if another process owns one of these sessions.

        Ownership cannot change until the transaction ends.
        """
        self._check_epoch_there(connection, epoch)

    def _check_epoch_there(self, connection: Connection, epoch: int) -> None:
        """Raise if another process owns the journal, or the journal was replaced.

        Neither can happen until the transaction ends.
        """
        sql = "SELECT epoch, owner, identity, tableoid FROM meta FOR SHARE"
        current, owner, *found = one_row(connection, sql)
        self._check_found(tuple(found))
        if current != epoch:
            raise Fenced(
                f"this process no longer owns the journal in epoch {epoch}, because {owner} owns it: the records were not written"
            )
