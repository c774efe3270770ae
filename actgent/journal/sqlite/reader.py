"""Reading a journal's file that another process has open and writes.

Its owner keeps SQLite's locks for itself, and the index of its log in memory, so SQLite's own ways of sharing a file do
not apply. Three things make up for it. The file is opened through a VFS that takes no lock and cannot write, and SQLite
makes an index of its own of the log as it stands. While somebody looks the owner lets its log grow, up to a bound: who
looks shares a lock that the owner asks for before it begins the log anew. And each look compares before and after what a
checkpoint or a new round of the log would have changed, as owners of former versions do not ask: if they differ, the pages
may have been of two moments, and it looks again. A log that only grows changes nothing of what was seen.
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
from actgent.journal.grouped import Found, Head
from actgent.journal.listing import Cursor, SessionFilter, SessionKey
from actgent.journal.read_only import ReadOnlyJournal
from actgent.support.storage_thread import StorageThread

from .disk_errors import translated
from .file import SqliteFile
from .journal import SQLiteJournal, advice, read_tails, read_whole
from .lock import is_held_here, lock_path, looking, read_note
from .opening import check_identity, check_kind, check_log, examine
from .schema import MIGRATIONS, pragma
from .wal import log_path

TRIES = 40
"""How often a look is repeated while the file is changed below it."""
PAUSE = 0.025
"""Seconds between two of them, until when a change of the file has another date than one from now on."""
TICK = 0.02
"""Seconds within which two changes of a file may have the same date."""
_HEADER = 32
"""Bytes of a log that are other ones in its next round."""
_VFS = "actgent-read-only"

T = TypeVar("T")


class _ReadOnlyVFS(apsw.VFS):
    """Files that are opened for reading alone, without locks; nothing is made or removed."""

    def __init__(self) -> None:
        super().__init__(_VFS, "unix-none")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        return _ReadOnlyFile(name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: FBT001, N802 - SQLite's
        raise apsw.ReadOnlyError(f"{filename} is only read")


@functools.cache
def _register_vfs() -> apsw.VFS:
    """Keep it for as long as the process lives: connections know it by its name."""
    return _ReadOnlyVFS()


class _ReadOnlyFile(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int]) -> None:
        kind = flags[0] & ~(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        super().__init__("unix-none", name, [kind | apsw.SQLITE_OPEN_READONLY, 0])
        flags[1] = flags[0]  # SQLite would refuse to say how much of a read-only log is good


@attrs.frozen
class _Stamp:
    """What changes where pages of the file, or the log's former frames, are written over."""

    file: tuple[int, ...]
    round: bytes
    """The beginning of the log; empty where there is none."""
    log: tuple[int, ...]
    """Of the log as it grows; not compared after a look."""
    changed_at: float

    def is_same_round(self, other: "_Stamp") -> bool:
        return (self.file, self.round) == (other.file, other.round)

    def is_settled(self) -> bool:
        """Return True if a change from now on gets another date."""
        return abs(time.time() - self.changed_at) > TICK


def _stamp(path: Path) -> _Stamp:
    found = path.stat()
    file = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    try:
        with log_path(path).open("rb") as log:
            beside = os.fstat(log.fileno())
            begin = log.read(_HEADER)
    except FileNotFoundError:
        return _Stamp(file, b"", (), found.st_mtime)
    grown = (beside.st_ino, beside.st_size, beside.st_mtime_ns)
    return _Stamp(file, begin, grown, max(found.st_mtime, beside.st_mtime))


class FileReader:
    """One file as it is looked at again and again; all of it runs in one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: apsw.Connection | None = None
        self._file: SqliteFile | None = None
        self._stamp: _Stamp | None = None
        self._is_sound: bool | None = None

    def read(self, fn: Callable[[SqliteFile], T], proven: Callable[[T], T | None] = lambda _: None) -> T:
        """Return what `fn` finds in the file, all of one moment; of another look, what is `proven` by its own checksums.

        Raises:
            JournalFailed: the file changes faster than it is read.
        """
        with translated(), looking(self._path):
            for _ in range(TRIES):
                before = _stamp(self._path)
                found = self._tried(fn, before)
                if _stamp(self._path).is_same_round(before) and self._is_trusted(before):
                    return found.unwrap()
                self.close()
                if isinstance(found, outcome.Value) and (good := proven(found.value)) is not None:
                    return good
                time.sleep(PAUSE)
        raise JournalFailed(
            f"{self._path.name} is written too fast to be read beside its owner: try again, or read a copy, made by "
            "`await runtime.backup(path)` in its process"
        )

    def _is_trusted(self, stamp: _Stamp) -> bool:
        """Return True if the file itself would show a change; its last one may be as old as the log's."""
        return time.time_ns() - stamp.file[-1] > TICK * 1e9

    def _tried(self, fn: Callable[[SqliteFile], T], stamp: _Stamp) -> outcome.Outcome[T]:
        """Return what it found, or why it failed, which means nothing where the file changed meanwhile."""
        try:
            with translated():
                return outcome.Value(fn(self._opened(stamp)))
        except (JournalError, ConfigurationError) as error:
            return outcome.Error(error)

    def _opened(self, stamp: _Stamp) -> SqliteFile:
        """The file as of now; opened again where anything has changed."""
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
        """Look for damage as an owner does, where there is none: an owner is writing what would look like it."""
        if is_owned(self._path):
            check_identity(db, examine(self._path, (b"", 0)))
            return
        try:
            check_log(db, examine(self._path, read_note(self._path)))
        except JournalDamaged as error:
            error.add_note(advice(self._path))
            raise

    def close(self) -> None:
        """Let the file go."""
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
        raise ConfigurationError(f"{path} is not the file of a journal: name another file")
    if version != len(MIGRATIONS):
        raise JournalVersion(version, len(MIGRATIONS))


def is_owned(path: Path) -> bool:
    """Return True if a living process owns a journal's file."""
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
    """A journal's file, which another process may own."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._reader = FileReader(path)

    async def _take(self) -> int:
        with translated():
            check_kind(self._path)
        if not self._path.is_file():
            raise ConfigurationError(f"no such file: {self._path}")
        if is_held_here(self._path):
            raise ConfigurationError(
                f"this process has {self._path.name} open itself: ask its runtime, not the file beside it"
            )
        self._thread = StorageThread(f"look at {self._path.name}")
        self.identity = await self._thread.run(self._reader.read, _identity)
        return 1

    def _shut(self) -> None:
        self._reader.close()

    def _work(self, method: Callable[..., T], *args: Any) -> T:
        return self._reader.read(lambda file: method(file, *args))

    async def select_page(self, wanted: SessionFilter, after: Cursor | None, limit: int) -> list[Head]:
        return await self._run(SqliteFile.select_unlisted, wanted, after, limit)

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
    """The sessions up to the first that is not whole: a head and all of its records have checksums."""
    whole = list(itertools.takewhile(_is_whole, found))
    return whole or None


def _is_whole(found: Found) -> bool:
    return isinstance(found, outcome.Value) and found.value.head is not None


def _identity(file: SqliteFile) -> bytes:
    return file.identity
