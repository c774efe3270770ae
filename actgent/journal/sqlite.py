"""The journal in one SQLite file: what an agent on one machine needs to survive.

Write-ahead log with `synchronous=FULL`: each transaction is synced before it is confirmed, which
is what survives a power cut. The file belongs to one process: a lock beside it names the owner, and
SQLite's own lock keeps other programs out.
"""

import contextlib
import fcntl
import functools
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import apsw
import attrs

from actgent.errors import (
    ConfigurationError,
    Fenced,
    JournalDamaged,
    JournalError,
    JournalFailed,
    JournalFull,
    JournalVersion,
)

from .group import GroupedJournal
from .records import Record
from .steps import HEAD_FIELDS, Head, Row, checksum_head, decode_rows
from .wal import Log, log_path, read_application_id, read_log

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
)
"""The n-th leads from schema version n to n + 1; what stands here never changes."""

_HEAD_COLUMNS = (*HEAD_FIELDS, "checksum")
_ROW_COLUMNS = ("session_id", "first", "count", "body", "checksum")
_SELECT_HEADS = f"SELECT {', '.join(_HEAD_COLUMNS)} FROM sessions"  # noqa: S608 - names of our own
_SELECT_ROWS = f"SELECT {', '.join(_ROW_COLUMNS)} FROM steps WHERE session_id = ? ORDER BY first"  # noqa: S608
_HEADLESS = "SELECT DISTINCT session_id FROM steps WHERE session_id NOT IN (SELECT session_id FROM sessions)"
_OLDEST = " ORDER BY created_at, session_id"
_SELECT_UNFINISHED = f"SELECT session_id FROM sessions WHERE agent = ? AND length(pending) > 0{_OLDEST}"  # noqa: S608

T = TypeVar("T")


class SQLiteJournal(GroupedJournal):
    """A journal in one file; the file, its log and the lock stand beside each other."""

    def __init__(self, path: Path, *, vfs: str | None = None) -> None:
        super().__init__()
        self._path = path
        self._vfs = vfs
        self._lock: IO[str] | None = None
        self._db: apsw.AsyncConnection | None = None
        self._file: File | None = None

    async def _take(self) -> int:
        if self._file is None:
            self._lock = self._lock or lock_file(self._path)
            await self._open()
        epoch, self.identity = await self._run(File.begin_epoch)
        return epoch

    async def _open(self) -> None:
        with translated():
            facts = examine(self._path)
            self._db = await apsw.Connection.as_async(str(self._path), vfs=self._vfs)
        try:
            self._file = await self._db.async_run(_call, prepare, self._db, facts)
        except BaseException:
            await self._release()
            raise

    async def _release(self) -> None:
        if self._db is not None:
            if self._file is not None:
                with contextlib.suppress(JournalError):  # the log stays, and is read at the next start
                    await self._run(File.end)
            await self._db.aclose()
            self._db = self._file = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def _read_heads(self, session_ids: Sequence[str]) -> dict[str, Head]:
        return await self._run(File.read_heads, session_ids)

    async def _write(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        await self._run(File.write, rows, heads)

    async def _read(self, session_id: str) -> tuple[Record, ...]:
        return await self._run(File.read, session_id)

    async def _list_unfinished(self, agent: str) -> list[str]:
        return await self._run(File.list_unfinished, agent)

    async def _list_heads(self, agent: str | None) -> list[Head]:
        return await self._run(File.list_heads, agent)

    async def _erase(self, session_id: str, epoch: int) -> None:
        await self._run(File.erase, session_id)

    async def _run(self, method: Callable[..., T], *args: Any) -> T:
        """Run a whole piece of work in SQLite's thread: each hop there costs more than a statement."""
        if self._db is None:
            raise JournalFailed(f"{self._path.name} is not open")
        result: T = await self._db.async_run(_call, method, self._file, *args)
        return result


def _call(fn: Callable[..., T], *args: Any) -> T:
    with translated():
        return fn(*args)


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


def lock_file(path: Path) -> IO[str]:
    """Lock a journal's file for this process, by a file beside it; the lock ends with the process.

    Raises:
        Fenced: another process, or another journal of this one, has it.
        JournalFailed: the folder cannot be written.
    """
    with translated():
        lock = path.with_name(f"{path.name}-lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        owner = lock.read(200).strip() or "another process"
        lock.close()
        raise Fenced(f"the journal {path.name} is owned by {owner}, which is alive: end it first") from None
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {socket.gethostname()}")
    lock.flush()
    return lock


@attrs.frozen
class Facts:
    """What was there before SQLite opened the file."""

    identity: int = 0
    """The application id in the file itself; through a foreign log it would be another."""
    has_log: bool = False
    log: Log = attrs.field(factory=Log)


def examine(path: Path) -> Facts:
    """Look at a file and its log; nobody may have it open, as closing it here would drop SQLite's locks."""
    if not path.exists() or not path.stat().st_size:
        return Facts()
    has_log = log_path(path).exists() and log_path(path).stat().st_size > 0
    return Facts(read_application_id(path), has_log, read_log(path))


def prepare(db: apsw.Connection, facts: Facts) -> "File":
    """Set up a fresh connection, bring the schema up to date and look for damage; nothing is changed before."""
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    for setting in ("locking_mode=EXCLUSIVE", "mmap_size=0", "synchronous=FULL", "secure_delete=ON"):
        _pragma(db, setting)
    version = _pragma(db, "user_version")
    if version > len(MIGRATIONS):
        raise JournalVersion(version, len(MIGRATIONS))
    if version:
        _check_log(db, facts)
    elif db.execute("SELECT count(*) FROM sqlite_schema").get:
        raise ConfigurationError("the file is a SQLite database of another program: name another file")
    _migrate(db, version)
    file = File(db)
    file.set_open(True)
    return file


def _check_log(db: apsw.Connection, facts: Facts) -> None:
    """Raise where the log beside the file is not the one that belongs to it, or has lost its end."""
    if facts.identity and facts.identity != _pragma(db, "application_id"):
        raise JournalDamaged("the write-ahead log beside it belongs to another journal")
    if _meta(db, "identity") != _pragma(db, "application_id"):
        raise JournalDamaged(
            "it says two things about its identity, or its write-ahead log belongs to another"
        )
    accepted, _ = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    if facts.log.is_broken_behind(accepted):
        raise JournalDamaged("its write-ahead log is damaged, so that confirmed steps are lost")
    if not facts.has_log and _meta(db, "open"):
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

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._identity: bytes = _meta(db, "identity").to_bytes(4, "big")
        self._is_suspect = _pragma(db, "integrity_check(sessions)") != "ok"
        self._has_failed = False
        """A failed write may leave frames in the log that look like a lost end: it has to begin anew."""

    def begin_epoch(self) -> tuple[int, bytes]:
        with transaction(self._db):
            self._db.execute("UPDATE meta SET value = value + 1 WHERE key = 'epoch'")
        return _meta(self._db, "epoch"), self._identity

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
                self._insert(_upsert_heads, [_head_values(head, self._identity) for head in heads])
                self._db.execute("UPDATE meta SET value = value + 1 WHERE key = 'commits'")
        except BaseException:
            self._has_failed = True
            raise
        if self._has_failed:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART)

    def _insert(self, statement: Callable[[int], str], values: list[tuple[Any, ...]]) -> None:
        """Insert in few statements of many rows: each statement gives the interpreter's lock away once."""
        at = 0
        while at < len(values):
            size = min(64, 1 << (len(values) - at).bit_length() - 1)
            self._db.execute(statement(size), [value for row in values[at : at + size] for value in row])
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
        return _good_head(columns, session_id, self._identity)

    def _check_absence(self, session_id: str) -> None:
        if self._is_suspect and self._db.execute(_SELECT_ROWS, (session_id,)).get is not None:
            raise JournalDamaged("its head is lost", session_id=session_id)

    def read(self, session_id: str) -> tuple[Record, ...]:
        try:
            head = self._find(session_id)
            rows = [Row(*columns) for columns in self._db.execute(_SELECT_ROWS, (session_id,))]
        except (apsw.CorruptError, UnicodeDecodeError) as error:
            raise JournalDamaged(str(error), session_id=session_id) from error
        return () if head is None else decode_rows(rows, head=head, identity=self._identity)

    def list_unfinished(self, agent: str) -> list[str]:
        listed = [session_id for (session_id,) in self._db.execute(_SELECT_UNFINISHED, (agent,))]
        return [*listed, *(each for each in self._suspects() if each not in listed)]

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
        bad = [
            str(columns[0])
            for columns in self._db.execute(f"{_SELECT_HEADS} NOT INDEXED")
            if not _is_good(columns, self._identity)
        ]
        lost = (
            "SELECT DISTINCT session_id FROM steps WHERE session_id NOT IN (SELECT session_id FROM sessions)"
        )
        return [*bad, *(session_id for (session_id,) in self._db.execute(lost))]


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


def _head_values(head: Head, identity: bytes) -> tuple[Any, ...]:
    return (*(getattr(head, name) for name in HEAD_FIELDS), checksum_head(head, identity))


def _head(columns: Sequence[Any]) -> Head:
    fields = dict(zip(HEAD_FIELDS, columns, strict=False))
    return Head(**{**fields, "closed": bool(fields["closed"])})


def _good_head(columns: Sequence[Any], session_id: str, identity: bytes) -> Head:
    if not _is_good(columns, identity):
        raise JournalDamaged("the checksum of its head is wrong", session_id=session_id)
    return _head(columns)


def _is_good(columns: Sequence[Any], identity: bytes) -> bool:
    return bool(checksum_head(_head(columns), identity) == columns[-1])
