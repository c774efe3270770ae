"""A journal's SQLite file: opening it, whatever state it is in, and each piece of work with it.

All of this is sync, and runs in the thread of its connection.
"""

import contextlib
import functools
import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import apsw
import attrs

from actgent.errors import (
    ConfigurationError,
    Fenced,
    JournalDamaged,
    JournalFailed,
    JournalFull,
    JournalVersion,
)

from .lock import Lock
from .reading import Stored
from .steps import HEAD_FIELDS, Head, Row, checksum_head, decode_rows, head_values
from .wal import Log, log_path, may_be_journal, read_identity, read_log

MIGRATIONS: Sequence[str] = (
    """
    CREATE TABLE meta (key TEXT NOT NULL PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID, STRICT;
    CREATE TABLE sessions (
        session_id TEXT NOT NULL PRIMARY KEY, agent TEXT NOT NULL, owner TEXT NOT NULL, parent_id TEXT,
        created_at REAL NOT NULL, updated_at REAL NOT NULL, records INTEGER NOT NULL,
        pending BLOB NOT NULL, closed INTEGER NOT NULL, checksum INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX unfinished ON sessions (agent, created_at, session_id) WHERE length(pending) > 0;
    CREATE TABLE steps (
        session_id TEXT NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL,
        body BLOB NOT NULL, checksum INTEGER NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX places ON steps (session_id, first);
    """,
    """
    ALTER TABLE sessions ADD COLUMN due REAL NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0;
    DROP INDEX unfinished;
    CREATE INDEX unfinished ON sessions (agent, created_at, session_id) WHERE length(pending) > 0 AND NOT suspended;
    CREATE INDEX due ON sessions (agent, due, session_id) WHERE due > 0 AND NOT closed;
    """,
    "CREATE INDEX suspended ON sessions (agent, session_id) WHERE suspended AND NOT closed",
)
"""The n-th leads from schema version n to n + 1; what stands here never changes."""

_HEAD_COLUMNS = (*HEAD_FIELDS, "checksum")
_ROW_COLUMNS = ("session_id", "first", "count", "body", "checksum")
_SELECT_HEADS = f"SELECT {', '.join(_HEAD_COLUMNS)} FROM sessions"  # noqa: S608 - names of our own
_SELECT_ROWS = f"SELECT {', '.join(_ROW_COLUMNS)} FROM steps WHERE session_id = ? ORDER BY first"  # noqa: S608
_OLDEST = " ORDER BY created_at, session_id"
_SELECT_UNFINISHED = (
    f"SELECT session_id FROM sessions WHERE agent = ? AND length(pending) > 0 AND NOT suspended{_OLDEST}"  # noqa: S608
)
_SELECT_DUE = (
    "SELECT session_id, due FROM sessions WHERE agent = ? AND due > 0 AND NOT closed ORDER BY due, session_id"
)
_SELECT_SUSPENDED = (
    "SELECT session_id FROM sessions WHERE agent = ? AND suspended AND NOT closed AND session_id > ? "
    "ORDER BY session_id LIMIT ?"
)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except apsw.FullError as error:
        raise JournalFull(f"no space for the journal: {error}; nothing of the step was written") from error
    except (apsw.CorruptError, apsw.NotADBError, apsw.ConstraintError, UnicodeDecodeError) as error:
        raise JournalDamaged(str(error)) from error
    except (apsw.BusyError, apsw.LockedError) as error:
        raise Fenced(f"another program holds the journal's file: {error}") from error
    except (apsw.Error, OSError) as error:
        raise JournalFailed(f"the journal's file failed: {error}") from error


# --- opening -----------------------------------------------------------------------------


@attrs.frozen
class Facts:
    """What was there before SQLite opened the file."""

    identity: int = 0
    """The application id in the file itself; through a foreign log it would be another."""
    has_log: bool = False
    noted: tuple[bytes, int] = (b"", 0)
    """What the lock file says: an identity, and how many commits there were at least."""
    log: Log = attrs.field(factory=Log)


def check_kind(path: Path) -> None:
    """Refuse what never was the file of a journal; nothing is made beside it.

    Raises:
        ConfigurationError: it is a folder, or a file of another kind.
    """
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"{path} is no file: name a file for the journal")
    if path.exists() and not may_be_journal(path):
        raise ConfigurationError(f"{path} is not the file of a journal: name another file")


def examine(path: Path, noted: tuple[bytes, int]) -> Facts:
    """Look at a file and its log; nobody may have it open, as closing it here would drop SQLite's locks."""
    if not path.exists():
        return Facts()
    if not path.stat().st_size:
        return Facts(noted=noted)
    has_log = log_path(path).exists() and log_path(path).stat().st_size > 0
    return Facts(read_identity(path, noted[0]), has_log, noted, read_log(path))


def prepare(db: apsw.Connection, facts: Facts, *, lock: Lock | None = None) -> "File":
    """Set up a fresh connection, bring the schema up to date and look for damage; nothing is changed before."""
    if db.readonly("main"):
        raise JournalFailed("the journal's file is read-only: let this user write it, or copy it")
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    for setting in ("locking_mode=EXCLUSIVE", "mmap_size=0", "synchronous=FULL", "secure_delete=ON"):
        _pragma(db, setting)
    version = _pragma(db, "user_version")
    if version > len(MIGRATIONS):
        raise JournalVersion(version, len(MIGRATIONS))
    if version:
        _check_log(db, facts)
    elif facts.noted[1]:
        raise JournalDamaged("the file is empty, and it was not")
    elif db.execute("SELECT count(*) FROM sqlite_schema").get:
        raise ConfigurationError("the file is a SQLite database of another program: name another file")
    _migrate(db, version)
    file = File(db, lock)
    if lock is not None:
        lock.note(file.identity, file.commits)  # before the first page is written, which a power cut may tear
    file.set_open(True)
    return file


def _check_identity(db: apsw.Connection, facts: Facts) -> None:
    """Raise where a log beside the file belongs to another journal."""
    identity = _pragma(db, "application_id")
    if facts.identity not in (0, identity):
        raise JournalDamaged("the write-ahead log beside it belongs to another journal")
    if _meta(db, "identity") != identity:
        raise JournalDamaged("its identity is altered, or the write-ahead log beside it is not its own")


def _check_log(db: apsw.Connection, facts: Facts) -> None:
    """Raise where the log beside the file is not the one that belongs to it, or has lost its end."""
    _check_identity(db, facts)
    accepted, _ = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    if facts.log.is_broken_behind(accepted):
        raise JournalDamaged("its write-ahead log is damaged, so that confirmed steps are lost")
    identity, commits = facts.noted
    is_noted = commits > 0 and identity == _meta(db, "identity").to_bytes(4, "big")
    if is_noted and _meta(db, "commits") < commits:
        raise JournalDamaged(
            "it lacks confirmed steps: its write-ahead log is cut, or it is an older copy of itself; "
            "to go on with what is there remove the file that ends in -lock"
        )
    # Where the count of commits is right another program of SQLite's has copied the log into the file.
    if not facts.has_log and _meta(db, "open") and not is_noted:
        raise JournalDamaged("its write-ahead log is missing, and with it confirmed steps")


def _migrate(db: apsw.Connection, version: int) -> None:
    _pragma(db, "journal_mode=WAL")
    if version == len(MIGRATIONS):
        return
    with transaction(db):
        for script in MIGRATIONS[version:]:
            db.execute(script)
        if not version:
            identity = secrets.randbits(31) | 1
            db.execute(f"PRAGMA application_id={identity}")
            rows = [("identity", identity), ("epoch", 0), ("open", 0), ("commits", 0)]
            db.executemany("INSERT INTO meta VALUES (?, ?)", rows)
        db.execute(f"PRAGMA user_version={len(MIGRATIONS)}")


def _pragma(db: apsw.Connection, text: str) -> Any:
    return db.execute(f"PRAGMA {text}").get


def _is_sound(db: apsw.Connection, table: str) -> bool:
    """Whether a table and its indexes agree, so that what is not found is not there."""
    try:
        return bool(_pragma(db, f"integrity_check({table})") == "ok")
    except (apsw.CorruptError, UnicodeDecodeError):
        return False


def _meta(db: apsw.Connection, key: str) -> Any:
    return db.execute("SELECT value FROM meta WHERE key = ?", (key,)).get


@contextlib.contextmanager
def transaction(db: apsw.Connection) -> Iterator[None]:
    """All statements of the block or none."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


# --- the open file -----------------------------------------------------------------------


class File:
    """The file, opened; its methods run in SQLite's thread."""

    def __init__(self, db: apsw.Connection, lock: Lock | None) -> None:
        self._db = db
        self._lock = lock
        self.commits: int = _meta(db, "commits")
        self.identity: bytes = _meta(db, "identity").to_bytes(4, "big")
        self._is_suspect = not _is_sound(db, "sessions")
        self._has_failed = False
        """A failed write may leave frames in the log that look like a lost end: it has to begin anew."""

    def begin_epoch(self) -> tuple[int, bytes]:
        with transaction(self._db):
            self._db.execute("UPDATE meta SET value = value + 1 WHERE key = 'epoch'")
        return _meta(self._db, "epoch"), self.identity

    def set_open(self, is_open: bool) -> None:  # noqa: FBT001 - a state, not an option
        """Write into the file itself whether a log belongs to it."""
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'open'", (int(is_open),))
        self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART)

    def _checkpoint(self, mode: int) -> None:
        self._db.wal_checkpoint(mode=mode)
        self._has_failed = False

    def end(self) -> None:
        self.set_open(False)
        self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)

    def write(self, rows: Sequence[Row], heads: Sequence[Head]) -> None:
        try:
            with transaction(self._db):
                self._insert(_insert_rows, [_row_values(row) for row in rows])
                self._insert(_upsert_heads, [head_values(head, self.identity) for head in heads])
                self._db.execute("UPDATE meta SET value = ? WHERE key = 'commits'", (self.commits + 1,))
        except BaseException:
            self._has_failed = True
            raise
        self.commits += 1
        with contextlib.suppress(apsw.Error, OSError):  # the step is durable, whatever these two do
            self._follow_up()

    def take_back(self, session_id: str, head: Head | None) -> None:
        """Have a session end at this head again; without one there is none."""
        with transaction(self._db):
            last = 0 if head is None else head.records
            self._db.execute("DELETE FROM steps WHERE session_id = ? AND first > ?", (session_id, last))
            if head is None:
                self._db.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))
            else:
                self._insert(_upsert_heads, [head_values(head, self.identity)])

    def _follow_up(self) -> None:
        if self._lock is not None:
            self._lock.note(self.identity, self.commits)
        if self._has_failed:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART)

    def _insert(self, statement: Callable[[int], str], values: list[tuple[Any, ...]]) -> None:
        """Insert in few statements of many rows: each statement gives the interpreter's lock away once."""
        at = 0
        while at < len(values):
            size = min(64, 1 << (len(values) - at).bit_length() - 1)
            self._db.execute(statement(size), list(chain.from_iterable(values[at : at + size])))
            at += size

    def read_heads(self, session_ids: Sequence[str]) -> dict[str, Head]:
        found = {}
        for session_id in session_ids:
            head = self._find(session_id)
            if head is not None:
                found[session_id] = head
        return found

    def _find(self, session_id: str) -> Head | None:
        columns = self._db.execute(f"{_SELECT_HEADS} WHERE session_id = ?", (session_id,)).get
        if columns is None:
            self._check_absence(session_id)
            return None
        return _good_head(columns, session_id, self.identity)

    def _check_absence(self, session_id: str) -> None:
        if self._is_suspect and self._db.execute(_SELECT_ROWS, (session_id,)).get is not None:
            raise JournalDamaged("its head is lost", session_id=session_id)

    def read(self, session_id: str) -> Stored:
        try:
            head = self._find(session_id)
            rows = [Row(*columns) for columns in self._db.execute(_SELECT_ROWS, (session_id,))]
        except (apsw.CorruptError, UnicodeDecodeError) as error:
            raise JournalDamaged(str(error), session_id=session_id) from error
        if head is None and self._is_suspect:
            raise JournalDamaged("it is not found, where the file is damaged", session_id=session_id)
        return (
            Stored() if head is None else Stored(head, decode_rows(rows, head=head, identity=self.identity))
        )

    def list_unfinished(self, agent: str) -> list[str]:
        listed = [session_id for (session_id,) in self._db.execute(_SELECT_UNFINISHED, (agent,))]
        return [*listed, *(each for each in self._suspects() if each not in listed)]

    def list_due(self, agent: str) -> list[tuple[str, float]]:
        return list(self._db.execute(_SELECT_DUE, (agent,)))

    def list_suspended(self, agent: str, after: str, limit: int) -> list[str]:
        return [session_id for (session_id,) in self._db.execute(_SELECT_SUSPENDED, (agent, after, limit))]

    def list_heads(self, agent: str | None) -> list[Head]:
        found = self._db.execute(f"{_SELECT_HEADS} WHERE ?1 IS NULL OR agent = ?1{_OLDEST}", (agent,))
        return [_head(columns) for columns in found]

    def erase(self, session_id: str) -> None:
        """Delete a session, and overwrite what remains of it in the file and in its log."""
        with transaction(self._db):
            self._db.execute("DELETE FROM steps WHERE session_id = ?", (session_id,))
            self._db.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))
            self._db.execute("UPDATE meta SET value = 0 WHERE key = 'open'")
        self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self.set_open(True)

    def _suspects(self) -> list[str]:
        """Sessions that no index can be trusted to list, where there is damage: to be loaded, which names it."""
        if not self._is_suspect:
            return []
        heads = list(self._readable(f"{_SELECT_HEADS} NOT INDEXED"))
        good = {columns[0] for columns in heads if _is_good(columns, self.identity)}
        return [each for each in self.all_sessions() if each not in good]

    def all_sessions(self) -> list[str]:
        """The ids of all sessions that any readable part of the file names."""
        queries = (
            "SELECT session_id FROM sessions NOT INDEXED",
            "SELECT session_id FROM sessions ORDER BY session_id",
            "SELECT DISTINCT session_id FROM steps NOT INDEXED",
            "SELECT DISTINCT session_id FROM steps INDEXED BY places",
        )
        return list(dict.fromkeys(str(row[0]) for sql in queries for row in self._readable(sql)))

    def _readable(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query up to the first that cannot be read."""
        with contextlib.suppress(apsw.CorruptError, UnicodeDecodeError):
            yield from self._db.execute(sql)

    def structure_problem(self) -> str | None:
        """What SQLite finds wrong with the file's structure; reads all of it."""
        found = str(_pragma(self._db, "integrity_check(1)"))
        return None if found == "ok" else found


# --- rows --------------------------------------------------------------------------------


@functools.cache
def _insert_rows(count: int) -> str:
    return f"INSERT INTO steps ({', '.join(_ROW_COLUMNS)}) VALUES {_places(len(_ROW_COLUMNS), count)}"  # noqa: S608


@functools.cache
def _upsert_heads(count: int) -> str:
    changing = ", ".join(f"{name} = excluded.{name}" for name in _HEAD_COLUMNS[1:])
    return (
        f"INSERT INTO sessions ({', '.join(_HEAD_COLUMNS)}) VALUES {_places(len(_HEAD_COLUMNS), count)} "  # noqa: S608
        f"ON CONFLICT (session_id) DO UPDATE SET {changing}"
    )


def _places(columns: int, rows: int) -> str:
    return ", ".join([f"({', '.join('?' * columns)})"] * rows)


def _row_values(row: Row) -> tuple[Any, ...]:
    return (row.session_id, row.first, row.count, row.body, row.checksum)


def _head(columns: Sequence[Any]) -> Head:
    fields = dict(zip(HEAD_FIELDS, columns, strict=False))
    return Head(**{**fields, "closed": bool(fields["closed"]), "suspended": bool(fields["suspended"])})


def _good_head(columns: Sequence[Any], session_id: str, identity: bytes) -> Head:
    if not _is_good(columns, identity):
        raise JournalDamaged("the checksum of its head is wrong", session_id=session_id)
    return _head(columns)


def _is_good(columns: Sequence[Any], identity: bytes) -> bool:
    try:
        return bool(checksum_head(_head(columns), identity) == columns[-1])
    except (TypeError, ValueError):  # damage may have changed the type of a column
        return False
