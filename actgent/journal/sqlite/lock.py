"""Who owns a journal's file, and how far it has come: a file beside it that one process holds; and who looks at it."""

import contextlib
import fcntl
import os
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from actgent.errors import Fenced, JournalFailed

from .disk_errors import disk_failure, is_full


class Lock:
    """The file beside a journal's file that one process holds, and that notes how far its log has come."""

    def __init__(self, path: Path) -> None:
        """Lock a journal's file for this process; the lock ends with the process.

        Raises:
            Fenced: another process, or another journal of this one, has it.
            JournalFull: there is no space for it.
            JournalFailed: the folder cannot be written.
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
                else f"make it (the folder {str(folder)!r} does not exist)"
            )
            raise JournalFailed(
                f"no lock file can be written into the folder of the journal {path.name} ({error.strerror}): {remedy}, "
                "or name or copy the journal elsewhere"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._fd, _NOTE_AT, 0).decode(errors="replace").strip() or "another process"
            os.close(self._fd)
            raise Fenced(
                f"the journal {path.name} is owned by {owner}, which is alive: stop it first"
            ) from None
        owner = f"process {os.getpid()} on {socket.gethostname()}"
        try:
            os.pwrite(self._fd, owner.encode()[:_NOTE_AT].ljust(_NOTE_AT), 0)
        except OSError as error:
            os.close(self._fd)
            raise disk_failure(error) from error
        _locks.add(self)

    def note(self, identity: bytes, commits: int) -> None:
        """Note a confirmed commit. It is not synced: after a power cut an earlier note stands here, never a later one."""
        packed = _NOTE.pack(identity, commits)
        os.pwrite(self._fd, packed + zlib.crc32(packed).to_bytes(4, "big"), _NOTE_AT)

    def read_note(self) -> tuple[bytes, int]:
        """The identity and the number of commits that were noted last; none, and 0, where nothing was."""
        return _unpacked(os.pread(self._fd, _NOTE.size + 4, _NOTE_AT))

    def close(self) -> None:
        """Let another process have the journal."""
        _locks.discard(self)
        os.close(self._fd)


def read_note(path: Path) -> tuple[bytes, int]:
    """The same of a journal's file that another process may hold."""
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
    """Return True if this very process has a journal's file open: closing it once more would drop SQLite's locks."""
    return any(lock.path == path.absolute() for lock in _locks)


class LookLock:
    """The lock of the file itself, which those share who look at it from outside, one `looking` at a time each.

    SQLite does not know it: its own locks are of another kind, and those of the owner keep everybody out.
    """

    def __init__(self, path: Path) -> None:
        """Open the file once more; it may be closed only when SQLite has closed it, whose locks would go with it."""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @contextlib.contextmanager
    def kept_out(self) -> Iterator[bool]:
        """Whether nobody looks; nobody begins to within the block, then."""
        is_alone = _try_lock(self._fd, fcntl.LOCK_EX)
        try:
            yield is_alone
        finally:
            if is_alone:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Look after them no more."""
        os.close(self._fd)


@contextlib.contextmanager
def looking(path: Path) -> Iterator[None]:
    """Keep the owner of a file from beginning its log anew.

    That is not sure: an owner that does not answer is not waited for, and one whose log has grown too long does not wait.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + LOOK_PATIENCE
        while not _try_lock(fd, fcntl.LOCK_SH) and time.monotonic() < until:
            time.sleep(LOOK_PAUSE)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError:  # somebody has it, or there are no such locks on this disk
        return False
    return True


LOOK_PATIENCE = 1.0
"""Seconds that a look waits for an owner that begins its log anew, which takes some ms."""
LOOK_PAUSE = 0.005
"""Seconds between two tries."""

_locks: set[Lock] = set()
"""Those of this process."""


def _leave_to_parent() -> None:
    """A forked process shares its parent's locks: held on there, they would outlive the parent's death."""
    while _locks:
        _locks.pop().close()


os.register_at_fork(after_in_child=_leave_to_parent)

_NOTE = struct.Struct(">4sQ")
_NOTE_AT = 256
"""Where the note stands; before it is the owner's name, for people."""


def lock_path(path: Path) -> Path:
    """The file whose lock stands for a journal's file."""
    return path.with_name(f"{path.name}-lock")
