"""All SQL statements on an open journal file. The methods block, and run in the thread of the connection."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import apsw
import attrs

from actgent.errors import JournalDamaged, JournalKeyError, JournalVersion, WireError
from actgent.journal.encryption import Keys
from actgent.journal.group_commit.read_batching import Stored
from actgent.journal.group_commit.row_format import (
    CHANGING,
    HEAD_FIELDS,
    Head,
    Page,
    Row,
    decode_page,
    decode_rows,
    head_values,
    is_good,
    is_good_head,
    read_key,
    unseal,
)
from actgent.journal.group_commit.snapshot_rows import (
    SNAPSHOT_FIELDS,
    SnapshotRow,
    place_snapshot,
    read_snapshot,
)
from actgent.journal.journal_interface import Snapshot
from actgent.journal.session_list_queries import (
    STATE_SQL,
    UNFINISHED_SQL,
    Cursor,
    SessionFilter,
    SessionKey,
    State,
    page_query,
    unlisted_page_query,
)

from .lock_file import Lock, ReaderLock
from .replaced_file_checks import JournalFileIdentity
from .schema import pragma, read_fact, transaction

LOG_PAGES = 1000
"""Number of log pages after which the log is restarted, as in SQLite's default: about 4 MB."""
MOST_LOG_PAGES = 16_000
"""Number of log pages after which the log is restarted even if a reader is active and must read again: about 64 MB."""
LOG_STEP = 100
"""Number of log pages between two checks for an active reader."""

_HEAD_COLUMNS = (*HEAD_FIELDS, "checksum")
_ROW_COLUMNS = ("series", "first", "count", "body", "checksum", "at")
_OF_KEY = " WHERE agent = ? AND session_id = ?"
_SELECT_HEADS = f"SELECT {', '.join(_HEAD_COLUMNS)} FROM sessions"  # noqa: S608 - column names only
_SELECT_ROWS = f"SELECT {', '.join(_ROW_COLUMNS)} FROM steps WHERE series = ? ORDER BY first"  # noqa: S608
_SELECT_SOME_ROWS = (
    f"SELECT {', '.join(_ROW_COLUMNS)} FROM steps WHERE series = ?1 AND first <= ?3 AND first >= "  # noqa: S608
    "(SELECT coalesce(max(first), 1) FROM steps WHERE series = ?1 AND first <= ?2) ORDER BY first"
)
_SELECT_CHECKSUM = "SELECT checksum FROM steps WHERE series = ?1 AND first <= ?2 AND first + count > ?2 ORDER BY first DESC LIMIT 1"
_SELECT_SNAPSHOT = f"SELECT {', '.join(SNAPSHOT_FIELDS)} FROM snapshots WHERE series = ?"  # noqa: S608
_PUT_SNAPSHOT = f"INSERT OR REPLACE INTO snapshots VALUES ({', '.join('?' * len(SNAPSHOT_FIELDS))})"  # noqa: S608
_DELETE_SNAPSHOT = f"DELETE FROM snapshots WHERE series = (SELECT series FROM sessions{_OF_KEY})"  # noqa: S608
_ALL = 1 << 62
"""Number above all record numbers."""
_SELECT_CHILDREN = (
    f"{_SELECT_HEADS} WHERE parent_agent = ? AND parent_id = ? ORDER BY created_at, session_id, agent"
)
_SELECT_CHANGED = (
    "SELECT agent, session_id FROM sessions LEFT JOIN listing USING (session_id, agent) "
    "WHERE changed_at IS NOT updated_at AND (session_id, agent) > (?, ?) ORDER BY session_id, agent LIMIT ?"
)
_UPDATE_LIST_ORDER = f"INSERT OR REPLACE INTO listing SELECT session_id, agent, owner, {STATE_SQL}, updated_at FROM sessions{_OF_KEY}"  # noqa: S608
_COUNT_STATES = f"SELECT agent, {STATE_SQL} AS now, count(*) FROM sessions GROUP BY agent, now"  # noqa: S608
_DELETE_ROWS = f"DELETE FROM steps WHERE series = (SELECT series FROM sessions{_OF_KEY})"  # noqa: S608
_SELECT_AGENTS = "SELECT agent FROM sessions WHERE session_id = ?"
_SERIES = _HEAD_COLUMNS.index("series")
_DELETE_HEAD = f"DELETE FROM sessions{_OF_KEY}"  # noqa: S608
_DELETE_LISTED = f"DELETE FROM listing{_OF_KEY}"  # noqa: S608
_OLDEST = " ORDER BY created_at, session_id"
_SELECT_UNFINISHED = (
    f"SELECT session_id FROM sessions WHERE agent = ? AND length(pending) > 0 AND NOT suspended{_OLDEST}"  # noqa: S608
)
_TREE = (
    "WITH RECURSIVE tree (agent, session_id) AS (VALUES (?, ?) UNION SELECT below.agent, below.session_id FROM tree "
    "JOIN sessions AS below ON below.parent_id = tree.session_id AND below.parent_agent = tree.agent)"
)
_IS_KEPT = f"{UNFINISHED_SQL} OR updated_at >= ?"
_SELECT_TREE = (
    f"{_TREE} SELECT agent, session_id, {_IS_KEPT} FROM tree JOIN sessions USING (agent, session_id)"  # noqa: S608
)
_SELECT_TO_ERASE = "SELECT agent, session_id FROM sessions WHERE due < 0 LIMIT ?"
_COUNT_WAITING = (
    "SELECT agent, count(*) FROM sessions WHERE length(pending) > 0 AND NOT suspended GROUP BY agent"
)
_SELECT_DUE = (
    "SELECT session_id, due FROM sessions WHERE agent = ? AND due > 0 AND NOT closed ORDER BY due, session_id"
)
_SELECT_SUSPENDED = (
    "SELECT session_id FROM sessions WHERE agent = ? AND suspended AND NOT closed AND session_id > ? "
    "ORDER BY session_id LIMIT ?"
)


_COUNT_COMMIT = "UPDATE meta SET value = ? WHERE key = 'commits'"


def _is_sound(db: apsw.Connection, table: str) -> bool:
    """Return True if a table and its indexes are consistent. In an inconsistent table, an existing session may not be found."""
    try:
        return bool(pragma(db, f"integrity_check({table})") == "ok")
    except (apsw.CorruptError, UnicodeDecodeError):
        return False


class SqliteFile:
    """An open journal file. Its methods run in the storage thread."""

    def __init__(self, db: apsw.Connection, lock: Lock | None, *, is_sound: bool | None = None) -> None:
        """Create the statements for an open journal file.

        Args:
            db: Connection to the journal file.
            lock: Lock of the journal file, or None.
            is_sound: True if the session summaries are undamaged. None checks it, which reads the summaries of all sessions.
        """
        self._db = db
        self._lock = lock
        self.commits: int = read_fact(db, "commits")
        self.identity: bytes = read_fact(db, "identity").to_bytes(4, "big")
        self.is_suspect = not (_is_sound(db, "sessions") if is_sound is None else is_sound)
        self._has_failed = False
        """True after a failed write. Frames of that write in the log may look like a lost end, so the log must be
        restarted.
        """
        self._written: tuple[Any, ...] | None = None
        """Values of the rarely changed fields of the session summary at the last write; None if something else was written since."""
        self.file_identity: JournalFileIdentity | None = None
        """Identity of the file, to detect its replacement; None if no other process can reach the file."""
        self._look_lock: ReaderLock | None = None
        self._log_pages = 0
        """Number of log pages after the last commit."""
        self._log_bound = LOG_PAGES
        """Number of log pages at which the log is restarted."""

    def begin_epoch(self) -> tuple[int, bytes]:
        with transaction(self._db):
            self._db.execute("UPDATE meta SET value = value + 1 WHERE key = 'epoch'")
        return read_fact(self._db, "epoch"), self.identity

    def set_open(self, is_open: bool) -> None:  # noqa: FBT001 - sets a state
        """Store in the journal file whether a write-ahead log belongs to the file, so that the next start detects a missing log."""
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'open'", (int(is_open),))
        self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART)

    def use_reader_lock(self, reader_lock: ReaderLock) -> None:
        """Disable SQLite's automatic restart of the write-ahead log.

        `restart_long_log` restarts the log instead, when no reader holds `reader_lock`.
        """
        self._look_lock = reader_lock
        self._db.set_wal_hook(self._note_log)

    def _note_log(self, _: apsw.Connection, __: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def restart_long_log(self) -> None:
        """Restart the write-ahead log if it is long and no reader is active. Call this method after a write.

        Readers are excluded during the restart, which includes the first write to the new log. If a reader is active, the
        restart is skipped, and a later call tries it again. A log of `MOST_LOG_PAGES` is restarted although readers are
        active. A failing disk does not change the data that is already written.
        """
        if self._log_pages < self._log_bound or self._look_lock is None or self.is_lost:
            return
        with contextlib.suppress(apsw.Error, OSError), self._look_lock.exclude_readers() as is_alone:
            if is_alone or self._log_pages >= MOST_LOG_PAGES:
                self._begin_log()
        self._log_bound = max(LOG_PAGES, self._log_pages + LOG_STEP)

    def _begin_log(self) -> None:
        try:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART)
            with transaction(self._db):
                self._db.execute("UPDATE meta SET value = value WHERE key = 'open'")
        except BaseException:
            self._has_failed = True
            raise

    def _checkpoint(self, mode: int) -> None:
        self._db.wal_checkpoint(mode=mode)
        if mode == apsw.SQLITE_CHECKPOINT_TRUNCATE and self.file_identity is not None:
            self.file_identity.begin_log()
        self._has_failed = False

    def end(self) -> None:
        self.set_open(False)
        self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)

    def write(self, rows: Sequence[Row], heads: Sequence[Head]) -> None:
        try:
            if len(rows) == len(heads) == 1:
                self._write_one(rows[0], heads[0])
            else:
                self._write_all(rows, heads)
        except BaseException:
            self._has_failed = True
            raise
        self.commits += 1
        self.check_file()
        with contextlib.suppress(apsw.Error, OSError):  # the batch is durable even if these calls fail
            self._follow_up()

    def _write_one(self, row: Row, head: Head) -> None:
        """Write the batch of a single session with one call. Five calls would cost 10 % more."""
        state = _state_values(head)
        sql, self._written = _WRITE_ON if state == self._written else _WRITE_ONE, None
        try:
            values = (*_row_values(row), *head_values(head, self.identity), self.commits + 1)
            self._db.execute(sql, values)
            self._written = state
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _write_all(self, rows: Sequence[Row], heads: Sequence[Head]) -> None:
        self._written = None
        with transaction(self._db):
            self._insert(_insert_rows, [_row_values(row) for row in rows])
            self._insert(_upsert_heads, [head_values(head, self.identity) for head in heads])
            self._db.execute(_COUNT_COMMIT, (self.commits + 1,))

    @property
    def is_lost(self) -> bool:
        """True if the journal file was missing or replaced at the last check."""
        return self.file_identity is not None and self.file_identity.is_lost

    def check_file(self) -> None:
        """Raise `JournalFailed` if the journal file is missing or was replaced."""
        if self.file_identity is not None:
            self.file_identity.check()

    def roll_back(self, key: SessionKey, head: Head | None) -> None:
        """Reset a session to the stored state that `head` describes, and delete later rows.

        If `head` is None, delete the session.
        """
        self._written = None
        with transaction(self._db):
            if head is None:
                self._delete(key)
            else:
                for table, column in (("steps", "first"), ("snapshots", "records")):
                    sql = f"DELETE FROM {table} WHERE series = ? AND {column} > ?"  # noqa: S608
                    self._db.execute(sql, (head.series, head.records))
                self._insert(_upsert_heads, [head_values(head, self.identity)])

    def _delete(self, key: SessionKey) -> None:
        self._written = None
        self._db.execute(_DELETE_ROWS, key)
        self._db.execute(_DELETE_SNAPSHOT, key)
        self._db.execute(_DELETE_HEAD, key)
        self._db.execute(_DELETE_LISTED, key)

    def _follow_up(self) -> None:
        if self._lock is not None:
            self._lock.note(self.identity, self.commits)
        if self._has_failed:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART)

    def _insert(self, statement: Callable[[int], str], values: list[tuple[Any, ...]]) -> None:
        """Insert many rows with few statements, because each statement releases the GIL once.

        `statement(count)` returns the SQL for `count` rows.
        """
        if len(values) == 1:
            self._db.execute(statement(1), values[0])
            return
        at = 0
        while at < len(values):
            size = min(64, 1 << (len(values) - at).bit_length() - 1)
            self._db.execute(statement(size), list(chain.from_iterable(values[at : at + size])))
            at += size

    def read_heads(self, keys: Sequence[SessionKey]) -> dict[SessionKey, Head]:
        found = {}
        for key in keys:
            head = self._find(key)
            if head is not None:
                found[key] = head
        return found

    def _find(self, key: SessionKey) -> Head | None:
        columns = self._db.execute(f"{_SELECT_HEADS}{_OF_KEY}", key).get
        if columns is None:
            # A session without a summary that has rows must not be created again.
            if self.is_suspect and key.session_id in self._lost_ids:
                raise JournalDamaged(
                    "the session's stored summary (its head) is missing", session_id=key.session_id
                )
            return None
        return _decode_head(columns, key.session_id, self.identity)

    @functools.cached_property
    def _lost_ids(self) -> frozenset[str]:
        return frozenset(self.id_in(series) for series, key in self.all_sessions().items() if key is None)

    def read(self, key: SessionKey) -> Stored:
        """Read a session from the journal file, with all its records."""
        return self._read(key, is_tail=False)

    def read_tail(self, key: SessionKey) -> Stored:
        """Read the summary of a session, its newest valid snapshot, and the records after the snapshot.

        Without one, read all records.
        """
        return self._read(key, is_tail=True)

    def _read(self, key: SessionKey, *, is_tail: bool) -> Stored:
        with _report_damaged_session(key.session_id):
            head = self._find(key)
            if head is None:
                self._check_found(key.session_id)
                return Stored()
            snapshot = self._snapshot_of(head) if is_tail else None
            after = 0 if snapshot is None else snapshot.records
            rows = self._read_rows(head.series, after) if after else self._rows_of(head.series)
        records = decode_rows(rows, head=head, identity=self.identity, after=after)
        return Stored(head, records, snapshot)

    def read_page(self, key: SessionKey, after: int, limit: int) -> Page:
        """Return a page of a session's records after record number `after`; see `Journal.read`."""
        with _report_damaged_session(key.session_id):
            head = self._find(key)
            if head is None:
                self._check_found(key.session_id)
                return Page()
            rows = self._read_rows(head.series, after, after + limit)
            return decode_page(
                [row for row in rows if row.first + row.count - 1 > after],
                head=head,
                identity=self.identity,
                after=after,
                earlier=lambda first, count: self._read_rows(
                    head.series, max(0, first - count - 1), first - 1
                ),
            )

    def _read_rows(self, series: str, after: int, up_to: int = _ALL) -> list[Row]:
        """Return the rows of a series, from the row with record `after + 1` to the row with record `up_to`."""
        return [Row(*columns) for columns in self._db.execute(_SELECT_SOME_ROWS, (series, after + 1, up_to))]

    def find_snapshot(self, key: SessionKey) -> Snapshot | None:
        """Return the newest valid snapshot of a session; None if it has none."""
        head = self._find(key)
        return None if head is None else self._snapshot_of(head)

    def _snapshot_of(self, head: Head) -> Snapshot | None:
        """Return the newest valid snapshot of the session with this summary; None without one.

        Unreadable snapshots are ignored.
        """
        with contextlib.suppress(apsw.CorruptError, UnicodeDecodeError, TypeError):
            columns = self._db.execute(_SELECT_SNAPSHOT, (head.series,)).fetchone()
            if columns is not None:
                row = SnapshotRow(*columns)
                last = self._checksum_at(head, row.records)
                return read_snapshot(row, head=head, last=last, identity=self.identity)
        return None

    def _checksum_at(self, head: Head, record: int) -> int | None:
        checksum: int | None = self._db.execute(_SELECT_CHECKSUM, (head.series, record)).get
        return checksum

    def keep_snapshot(self, key: SessionKey, snapshot: Snapshot, keys: Keys | None) -> bool:
        """Replace the snapshot of a session. Return False if the covered records do not exist."""
        try:
            with transaction(self._db):
                head = self._find(key)
                last = None if head is None else self._checksum_at(head, snapshot.records)
                if head is None or last is None:
                    return False
                row = place_snapshot(snapshot, head.series, last, identity=self.identity, keys=keys)
                self._db.execute(_PUT_SNAPSHOT, attrs.astuple(row))
        except BaseException:
            self._has_failed = True
            raise
        return True

    def drop_snapshots(self, key: SessionKey) -> None:
        """Delete the snapshot of a session, if there is one."""
        with transaction(self._db):
            self._db.execute(_DELETE_SNAPSHOT, key)

    def _rows_of(self, series: str) -> list[Row]:
        return [Row(*columns) for columns in self._db.execute(_SELECT_ROWS, (series,))]

    def _check_found(self, session_id: str) -> None:
        if self.is_suspect:
            raise JournalDamaged(
                "the session was not found, and may be lost because the file is damaged",
                session_id=session_id,
            )

    def list_agents(self, session_ids: Sequence[str]) -> list[list[str]]:
        return [self._agents_with(each) for each in session_ids]

    def _agents_with(self, session_id: str) -> list[str]:
        with _report_damaged_session(session_id):
            found = [agent for (agent,) in self._db.execute(_SELECT_AGENTS, (session_id,))]
        if not found:
            self._check_found(session_id)
        return found

    def list_children(self, keys: Sequence[SessionKey]) -> list[Head]:
        return [_head(columns) for key in keys for columns in self._db.execute(_SELECT_CHILDREN, key)]

    def list_changed(self, after: SessionKey, limit: int) -> list[SessionKey]:
        found = self._db.execute(_SELECT_CHANGED, (after.session_id, after.agent, limit))
        return [SessionKey(*columns) for columns in found]

    def update_list_order(self, keys: Sequence[SessionKey]) -> None:
        with transaction(self._db):
            self._db.executemany(_UPDATE_LIST_ORDER, keys)

    def select_page(self, session_filter: SessionFilter, after: Cursor | None, limit: int) -> list[Head]:
        found = self._db.execute(*page_query(_HEAD_COLUMNS, session_filter, after, limit))
        return [_head(columns) for columns in found]

    def select_unlisted(self, session_filter: SessionFilter, after: Cursor | None, limit: int) -> list[Head]:
        """Return a page of sessions computed without the stored list order, which a reader cannot update."""
        found = self._db.execute(*unlisted_page_query(_HEAD_COLUMNS, session_filter, after, limit))
        return [_head(columns) for columns in found]

    def count_states(self) -> dict[tuple[str, State], int]:
        return {(agent, state): count for agent, state, count in self._db.execute(_COUNT_STATES)}

    def newest_body(self) -> bytes | None:
        """Return the body of the last written row, to check whether it is encrypted.

        None if there is no readable row.
        """
        with contextlib.suppress(apsw.CorruptError):
            body: bytes | None = self._db.execute("SELECT body FROM steps ORDER BY rowid DESC LIMIT 1").get
            return body if isinstance(body, bytes) else None
        return None

    def list_unfinished(self, agent: str) -> list[str]:
        listed = [session_id for (session_id,) in self._db.execute(_SELECT_UNFINISHED, (agent,))]
        return [*listed, *(each for each in self._suspects() if each not in listed)]

    def count_waiting(self) -> dict[str, int]:
        return dict(self._db.execute(_COUNT_WAITING))

    def list_due(self, agent: str) -> list[tuple[str, float]]:
        return list(self._db.execute(_SELECT_DUE, (agent,)))

    def list_suspended(self, agent: str, after: str, limit: int) -> list[str]:
        return [session_id for (session_id,) in self._db.execute(_SELECT_SUSPENDED, (agent, after, limit))]

    def list_heads(self, agent: str | None) -> list[Head]:
        found = self._db.execute(f"{_SELECT_HEADS} WHERE ?1 IS NULL OR agent = ?1{_OLDEST}", (agent,))
        return [_head(columns) for columns in found]

    def list_to_erase(self, limit: int) -> list[SessionKey]:
        return [SessionKey(*each) for each in self._db.execute(_SELECT_TO_ERASE, (limit,))]

    def erase_trees(self, roots: Sequence[SessionKey], unchanged_since: float) -> list[SessionKey]:
        """Delete sessions with all their descendants, and return the deleted sessions.

        SQLite overwrites the deleted bytes in the file. A tree with pending work, or with a change at or after the Unix
        time `unchanged_since` in seconds, is skipped.
        """
        gone: list[SessionKey] = []
        with transaction(self._db):
            for root in roots:
                found = list(self._db.execute(_SELECT_TREE, (*root, unchanged_since)))
                if not any(is_kept for *_, is_kept in found):
                    keys = [SessionKey(agent, session_id) for agent, session_id, _ in found]
                    for key in keys:
                        self._delete(key)
                    gone += keys or [root]
        return gone

    def erase(self, key: SessionKey) -> None:
        """Delete a session, and overwrite its bytes in the journal file and in the write-ahead log."""
        with transaction(self._db):
            self._delete(key)
            self._db.execute("UPDATE meta SET value = 0 WHERE key = 'open'")
        self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self.set_open(True)

    def _suspects(self) -> list[str]:
        """Return the ids of sessions that a damaged index may hide. When such a session is loaded, the damage is reported."""
        if not self.is_suspect:
            return []
        heads = list(self._readable_rows(f"{_SELECT_HEADS} NOT INDEXED"))
        good = {columns[_SERIES] for columns in heads if _is_good(columns, self.identity)}
        return [
            self.id_in(series) if key is None else key.session_id
            for series, key in self.all_sessions().items()
            if series not in good
        ]

    def all_sessions(self) -> dict[str, SessionKey | None]:
        """Return the key (agent and id) of each session in the file. The dictionary key is the session's `Head.series`.

        The value is None if the summary of the session is unreadable.
        """
        heads = ("FROM sessions NOT INDEXED", "FROM sessions ORDER BY session_id, agent")
        rows = ("FROM steps NOT INDEXED", "FROM steps INDEXED BY places")
        found: dict[str, SessionKey | None] = {}
        for place in heads:
            for series, agent, session_id in self._readable_rows(f"SELECT series, agent, session_id {place}"):
                found[str(series)] = SessionKey(str(agent), str(session_id))
        for place in rows:
            for (series,) in self._readable_rows(f"SELECT DISTINCT series {place}"):
                found.setdefault(str(series), None)
        return found

    def id_in(self, series: str) -> str:
        """Return the session id that the rows of a series contain. If no row can be read, return the name of the series."""
        unreadable = (apsw.CorruptError, UnicodeDecodeError, JournalVersion, JournalKeyError, WireError)
        with contextlib.suppress(*unreadable):
            good = (row for row in self._rows_of(series) if is_good(row, self.identity))
            return read_key(unseal(row, self.identity) for row in good).session_id or series
        return series

    def _readable_rows(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query until one is unreadable. The error is not raised."""
        with contextlib.suppress(apsw.CorruptError, UnicodeDecodeError):
            yield from self._db.execute(sql)

    def structure_problem(self) -> str | None:
        """Return the first structural problem that SQLite finds, or None. Reads the whole file."""
        found = str(pragma(self._db, "integrity_check(1)"))
        return None if found == "ok" else found


@contextlib.contextmanager
def _report_damaged_session(session_id: str) -> Iterator[None]:
    """Context manager: convert errors about damaged data in its block to `JournalDamaged` with the session's id."""
    try:
        yield
    except (apsw.CorruptError, UnicodeDecodeError) as error:
        raise JournalDamaged(str(error), session_id=session_id) from error


# --- rows --------------------------------------------------------------------------------


@functools.cache
def _insert_rows(count: int) -> str:
    return (
        f"INSERT INTO steps ({', '.join(_ROW_COLUMNS)}) VALUES {_row_placeholders(len(_ROW_COLUMNS), count)}"  # noqa: S608
    )


@functools.cache
def _upsert_heads(count: int, *, names: Sequence[str] = CHANGING) -> str:
    changing = ", ".join(f"{name} = excluded.{name}" for name in (*names, "checksum"))
    return (
        f"INSERT INTO sessions ({', '.join(_HEAD_COLUMNS)}) VALUES {_row_placeholders(len(_HEAD_COLUMNS), count)} "  # noqa: S608
        f"ON CONFLICT (session_id, agent) DO UPDATE SET {changing}"
    )


def _row_placeholders(columns: int, rows: int) -> str:
    return ", ".join([f"({', '.join('?' * columns)})"] * rows)


def _one_batch_transaction(upsert: str) -> str:
    return f"BEGIN IMMEDIATE; {_insert_rows(1)}; {upsert}; {_COUNT_COMMIT}; COMMIT"


_WRITE_ONE = _one_batch_transaction(_upsert_heads(1))
_WRITE_ON = _one_batch_transaction(_upsert_heads(1, names=("updated_at", "records")))
"""SQL of a batch that leaves the other fields of the session summary unchanged, so that their indexes are not rewritten."""


def _state_values(head: Head) -> tuple[Any, ...]:
    return (
        *(head.session_id, head.agent, head.pending, head.closed, head.due, head.suspended),
        head.annotations,
    )


def _row_values(row: Row) -> tuple[Any, ...]:
    return (row.series, row.first, row.count, row.body, row.checksum, row.at)


def _head(columns: Sequence[Any]) -> Head:
    fields = dict(zip(HEAD_FIELDS, columns, strict=False))
    return Head(**{**fields, "closed": bool(fields["closed"]), "suspended": bool(fields["suspended"])})


def _decode_head(columns: Sequence[Any], session_id: str, identity: bytes) -> Head:
    if not _is_good(columns, identity):
        raise JournalDamaged(
            "the checksum of the session's stored summary (its head) is wrong", session_id=session_id
        )
    return _head(columns)


def _is_good(columns: Sequence[Any], identity: bytes) -> bool:
    try:
        return is_good_head(_head(columns), columns[-1], identity)
    except (TypeError, ValueError):  # damage may have changed the type of a column
        return False
