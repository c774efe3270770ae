"""Read-only access to a journal file while another process owns and writes it.

The owner holds SQLite's locks and keeps the index of its log in memory, so SQLite's own file sharing does not work.
Three measures replace it. First, the file is opened through a VFS that takes no lock and cannot write, and SQLite
builds its own index of the log. Second, the reader shares a lock that the owner requests before it restarts the log.
So the owner lets the log grow, up to a bound, while a reader is active. Third, each read compares a stamp of the
files before and after, because owners of earlier versions do not request the lock. If the stamp changed, the pages
may be of two moments and the read is repeated. A log that only grows does not change the pages that were read.
"""

import contextlib
import fcntl
import functools
import itertools
import os
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw
import attrs
import outcome

from actgent.errors import ConfigurationError, JournalDamaged, JournalError, JournalFailed, JournalVersion
from actgent.journal.group_commit.read_batching import Found
from actgent.journal.group_commit.row_format import Head
from actgent.journal.read_only_journal import ReadOnlyJournal
from actgent.journal.schema_version import schema_version
from actgent.journal.session_list_queries import Cursor, SessionFilter, SessionKey
from actgent.support.storage_thread import StorageThread

from .damage_checks_on_open import check_identity, check_kind, check_log, examine
from .disk_errors import translate_errors
from .journal import SQLiteJournal, advice, read_tails, read_whole
from .lock_file import holding_reader_lock, is_held_here, lock_path, read_note
from .schema import MIGRATIONS, pragma
from .sql_statements import SqliteFile
from .wal_inspection import log_path

TRIES = 40
"""Maximum number of attempts to read a file that changes."""
PAUSE = 0.025
"""Seconds between two attempts to read. After this time, a change of the file gets another modification time."""
TICK = 0.02
"""Maximum seconds within which two changes of a file may get the same modification time."""
_HEADER = 32
"""Number of bytes at the start of a log that change when the log is restarted."""
_VFS = "actgent-read-only"

T = TypeVar("T")


class _ReadOnlyVFS(apsw.VFS):
    """SQLite file system that opens files read-only, without locks, and creates or deletes no file."""

    def __init__(self) -> None:
        super().__init__(_VFS, "unix-none")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - name of SQLite's API
        return _ReadOnlyFile(name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: FBT001, N802 - SQLite's
        raise apsw.ReadOnlyError(f"{filename} is open read-only")


@functools.cache
def _register_vfs() -> apsw.VFS:
    """Register the read-only file system (VFS) with SQLite once per process, and return it.

    It must not be freed, because connections refer to it by name.
    """
    return _ReadOnlyVFS()


class _ReadOnlyFile(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int]) -> None:
        kind = flags[0] & ~(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        super().__init__("unix-none", name, [kind | apsw.SQLITE_OPEN_READONLY, 0])
        flags[1] = flags[0]  # SQLite does not report the valid length of a log that is opened read-only


@attrs.frozen
class _Stamp:
    """Values that change when pages of a journal file, or earlier frames of its write-ahead log, are overwritten."""

    file: tuple[int, ...]
    round: bytes
    """First bytes of the write-ahead log. They change when SQLite restarts the log; empty if there is no log."""
    log: tuple[int, ...]
    """Identity, size and modification time of the write-ahead log.
    It is not compared after a read, because a log that has grown is harmless.
    """
    changed_at: float

    def is_same_round(self, other: "_Stamp") -> bool:
        return (self.file, self.round) == (other.file, other.round)

    def is_settled(self) -> bool:
        """Return True if any later change of the journal file will get a modification time that differs from this one."""
        return abs(time.time() - self.changed_at) > TICK


def _read_stamp(path: Path) -> _Stamp:
    found = path.stat()
    file = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    try:
        with log_path(path).open("rb") as log:
            log_status = os.fstat(log.fileno())
            begin = log.read(_HEADER)
    except FileNotFoundError:
        return _Stamp(file, b"", (), found.st_mtime)
    grown = (log_status.st_ino, log_status.st_size, log_status.st_mtime_ns)
    return _Stamp(file, begin, grown, max(found.st_mtime, log_status.st_mtime))


class FileReader:
    """A journal file that is read repeatedly. All methods run in one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: apsw.Connection | None = None
        self._file: SqliteFile | None = None
        self._stamp: _Stamp | None = None
        self._is_sound: bool | None = None

    def read(self, fn: Callable[[SqliteFile], T], proven: Callable[[T], T | None] = lambda _: None) -> T:
        """Run `fn` on a consistent view of the file, and return its result.

        If the file changed during the read, `proven` returns the part of the result that checksums verify; None if there
        is no such part.

        Raises:
            JournalFailed: The file changes faster than it is read.
        """
        with translate_errors(), holding_reader_lock(self._path):
            for _ in range(TRIES):
                before = _read_stamp(self._path)
                found = self._try_read(fn, before)
                if _read_stamp(self._path).is_same_round(before) and self._is_trusted(before):
                    return found.unwrap()
                self.close()
                if isinstance(found, outcome.Value) and (good := proven(found.value)) is not None:
                    return good
                time.sleep(PAUSE)
        raise JournalFailed(
            f"{self._path.name} changes too fast to be read while its owner writes: try again, or read a copy, made by "
            "`await runtime.backup(path)` in its process"
        )

    def _is_trusted(self, stamp: _Stamp) -> bool:
        """Return True if a change of the journal file during the read would change its modification time.

        False if the file was changed less than `TICK` seconds ago, because a further change may get the same time.
        """
        return time.time_ns() - stamp.file[-1] > TICK * 1e9

    def _try_read(self, fn: Callable[[SqliteFile], T], stamp: _Stamp) -> outcome.Outcome[T]:
        """Return the result or error of `fn`. If the file changed during the call, the error is ignored."""
        try:
            with translate_errors():
                return outcome.Value(fn(self._open_file(stamp)))
        except (JournalError, ConfigurationError) as error:
            return outcome.Error(error)

    def _open_file(self, stamp: _Stamp) -> SqliteFile:
        """Return the open journal file.

        Reopen it if it has changed since the last read, or might have changed unnoticed.
        """
        if self._file is None or stamp != self._stamp or not stamp.is_settled():
            self.close()
            self._open(stamp)
        assert self._file is not None  # noqa: S101 - just opened
        return self._file

    def _open(self, stamp: _Stamp) -> None:
        _register_vfs()
        self._db = db = apsw.Connection(
            _address(self._path, has_log=bool(stamp.round)),
            vfs=_VFS,
            flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
        )
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        for setting in ("locking_mode=EXCLUSIVE", "mmap_size=0", "query_only=1"):
            pragma(db, setting)
        _check_version(db, self._path)
        if self._is_sound is None:
            self._check(db)
        self._file, self._stamp = SqliteFile(db, None, is_sound=self._is_sound), stamp
        self._is_sound = not self._file.is_suspect

    def _check(self, db: apsw.Connection) -> None:
        """Check the file for damage if it has no owner. An owner's unfinished write would look like damage."""
        if is_owned(self._path):
            check_identity(db, examine(self._path, (b"", 0)))
            return
        try:
            check_log(db, examine(self._path, read_note(self._path)))
        except JournalDamaged as error:
            error.add_note(advice(self._path))
            raise

    def close(self) -> None:
        """Close the journal file."""
        self._file, db = None, self._db
        self._db = None
        with contextlib.suppress(apsw.Error):
            if db is not None:
                db.close()


def _address(path: Path, *, has_log: bool) -> str:
    quoted = urllib.parse.quote(str(path.absolute()))
    return f"file:{quoted}?mode=ro{'' if has_log else '&immutable=1'}"


def _check_version(db: apsw.Connection, path: Path) -> None:
    version = pragma(db, "user_version")
    if not version:
        raise ConfigurationError(f"{path} is not the file of a journal: pass the path of a journal")
    if version != (supported := schema_version(MIGRATIONS)):
        raise JournalVersion(version, supported)


def is_owned(path: Path) -> bool:
    """Return True if a live process owns the journal file. False if the lock file cannot be opened."""
    try:
        fd = os.open(lock_path(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class SQLiteReader(ReadOnlyJournal, SQLiteJournal):
    """Read-only journal on a file that another process may own."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._reader = FileReader(path)

    async def _acquire_storage(self) -> int:
        with translate_errors():
            check_kind(self._path)
        if not self._path.is_file():
            raise ConfigurationError(f"no such file: {self._path}; pass the path of a journal file")
        if is_held_here(self._path):
            raise ConfigurationError(f"this process has {self._path.name} open: read it through its runtime")
        self._thread = StorageThread(f"look at {self._path.name}")
        self.identity = await self._thread.run(self._reader.read, _identity)
        return 1

    def _shut(self) -> None:
        self._reader.close()

    def _work(self, method: Callable[..., T], *args: Any) -> T:
        return self._reader.read(lambda file: method(file, *args))

    async def select_page(
        self, session_filter: SessionFilter, after: Cursor | None, limit: int
    ) -> list[Head]:
        return await self._run(SqliteFile.select_unlisted, session_filter, after, limit)

    async def _read_some(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        return await self._read_proven(read_whole, keys)

    async def _read_tails(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        return await self._read_proven(read_tails, keys)

    async def _read_proven(
        self, read: Callable[[SqliteFile, Sequence[SessionKey]], list[Found]], keys: Sequence[SessionKey]
    ) -> Sequence[Found]:
        if self._thread is None:
            raise JournalFailed(f"{self._path.name} is not open")
        return await self._thread.run(self._reader.read, lambda file: read(file, keys), _proven)


def _proven(found: list[Found]) -> list[Found] | None:
    """Return the results before the first session that could not be read completely; None if this is the first session.

    The returned sessions are verified by the checksums of their session summaries and records.
    """
    whole = list(itertools.takewhile(_is_whole, found))
    return whole or None


def _is_whole(found: Found) -> bool:
    return isinstance(found, outcome.Value) and found.value.head is not None


def _identity(file: SqliteFile) -> bytes:
    return file.identity
