"""Lock files of journals: ownership by one process, a note of the last commit, and locks of readers."""

import contextlib
import fcntl
import os
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from actgent.errors import JournalFailed
from actgent.journal.journal_interface import already_owned_error, process_name

from .disk_errors import disk_failure, is_full


class Lock:
    """The lock file of a journal file. Its owner holds it, and notes the last commit in it."""

    def __init__(self, path: Path) -> None:
        """Lock a journal file for this process. The operating system releases the lock when the process ends.

        Raises:
            Fenced: Another process, or another journal of this process, owns the file.
            JournalFull: The disk is full.
            JournalFailed: The folder cannot be written.
        """
        self.path = path.absolute()
        try:
            self._fd = os.open(lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if is_full(error):
                raise disk_failure(error) from error
            folder = self.path.parent
            remedy = (
                "give this user the right to write it"
                if folder.is_dir()
                else f"create it (the folder {str(folder)!r} does not exist)"
            )
            raise JournalFailed(
                f"cannot write a lock file into the folder of the journal {path.name} ({error.strerror}): {remedy}, "
                "or move the journal"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._fd, _NOTE_AT, 0).decode(errors="replace").strip() or "another process"
            os.close(self._fd)
            raise already_owned_error(f"the journal {path.name}", owner) from None
        try:
            os.pwrite(self._fd, process_name().encode()[:_NOTE_AT].ljust(_NOTE_AT), 0)
        except OSError as error:
            os.close(self._fd)
            raise disk_failure(error) from error
        _locks.add(self)

    def note(self, identity: bytes, commits: int) -> None:
        """Write the journal's identity and number of confirmed commits into the lock file.

        The note is not synced: after a power cut it may be too old, but never too new.
        """
        packed = _NOTE.pack(identity, commits)
        os.pwrite(self._fd, packed + zlib.crc32(packed).to_bytes(4, "big"), _NOTE_AT)

    def read_note(self) -> tuple[bytes, int]:
        """Return the journal's identity and its number of commits from the lock file; empty and 0 if the lock file has no note."""
        return _unpacked(os.pread(self._fd, _NOTE.size + 4, _NOTE_AT))

    def close(self) -> None:
        """Release the lock of the journal file."""
        _locks.discard(self)
        os.close(self._fd)


def read_note(path: Path) -> tuple[bytes, int]:
    """Return the identity and the number of commits in the note of a journal file's lock file.

    Another process may own the file.
    """
    try:
        with lock_path(path).open("rb") as file:
            file.seek(_NOTE_AT)
            return _unpacked(file.read(_NOTE.size + 4))
    except FileNotFoundError:
        return b"", 0


def _unpacked(found: bytes) -> tuple[bytes, int]:
    packed, checksum = found[: _NOTE.size], found[_NOTE.size :]
    if len(checksum) < 4 or zlib.crc32(packed).to_bytes(4, "big") != checksum:  # noqa: PLR2004 - bytes of a CRC-32
        return b"", 0
    identity, commits = _NOTE.unpack(packed)
    return identity, commits


def is_held_here(path: Path) -> bool:
    """Return True if this process has the journal file open. Closing the file once more would drop SQLite's locks."""
    return any(lock.path == path.absolute() for lock in _locks)


class ReaderLock:
    """Lock on the journal file itself, which readers in other processes share while they read.

    This lock and SQLite's locks are of different kinds and do not affect each other. The owner's SQLite locks exclude all other
    programs.
    """

    def __init__(self, path: Path) -> None:
        """Open the journal file for locks between owner and readers.

        Close this after SQLite has closed the file: closing it drops SQLite's locks.
        """
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @contextlib.contextmanager
    def exclude_readers(self) -> Iterator[bool]:
        """Context manager: keep readers in other processes out while its block runs.

        Yield False if a reader is active; the block then has no lock.
        """
        is_alone = _try_lock(self._fd, fcntl.LOCK_EX)
        try:
            yield is_alone
        finally:
            if is_alone:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file descriptor of the lock file, which releases its locks."""
        os.close(self._fd)


@contextlib.contextmanager
def holding_reader_lock(path: Path) -> Iterator[None]:
    """Context manager: hold the shared reader lock of a journal file, so that its owner does not restart the log.

    This is best effort: the reader waits at most `READER_WAIT_SECONDS` for the owner, and an owner with a very long log
    restarts it anyway.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + READER_WAIT_SECONDS
        while not _try_lock(fd, fcntl.LOCK_SH) and time.monotonic() < until:
            time.sleep(READER_PAUSE_SECONDS)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError:  # another process has the lock, or the file system has no such locks
        return False
    return True


READER_WAIT_SECONDS = 1.0
"""Seconds that a reader waits for an owner that restarts its log, which takes some milliseconds."""
READER_PAUSE_SECONDS = 0.005
"""Seconds between two attempts."""

_locks: set[Lock] = set()
"""All locks that this process holds."""


def close_all_locks() -> None:
    """Close all locks of this process. Called in a forked child process, which must not hold the locks of its parent."""
    while _locks:
        _locks.pop().close()


os.register_at_fork(after_in_child=close_all_locks)

_NOTE = struct.Struct(">4sQ")
_NOTE_AT = 256
"""Offset of the note in the lock file in bytes. Before it is the name of the owner, for error messages."""


def lock_path(path: Path) -> Path:
    """Return the path of the lock file of a journal file."""
    return path.with_name(f"{path.name}-lock")
