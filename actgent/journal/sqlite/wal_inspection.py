"""Inspection of a SQLite file and its write-ahead log before SQLite opens them.

SQLite uses any valid log next to a file, and silently drops everything after the first invalid frame, because it
cannot know that more followed. Only the last transaction of a log may be invalid, since each one is synced before the
next begins. Formats: https://www.sqlite.org/fileformat2.html, sections 1.3 and 4.
"""

import glob
import struct
from pathlib import Path

import attrs

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = b"SQLite format 3\0"
"""First bytes of every SQLite file."""
_APPLICATION_ID = 68
"""Offset of the application id in the first page, in bytes."""


@attrs.frozen
class Log:
    """Frames of the write-ahead log of a SQLite file."""

    commits: tuple[int, ...] = ()
    """Numbers of the frames that end a transaction. Frames are counted from 1 since SQLite last restarted the log."""
    frames: int = 0
    """Number of frames since SQLite last restarted the log."""

    def is_damaged_after(self, accepted: int) -> bool:
        """Return True if the log has more than one transaction after the frames that SQLite accepts.

        `accepted` is the number of accepted frames. If True, confirmed batches are lost.
        """
        return any(accepted < commit < self.frames for commit in self.commits)


def log_path(path: Path) -> Path:
    """Return the path of the write-ahead log of a SQLite file."""
    return path.with_name(f"{path.name}-wal")


def may_be_journal(path: Path) -> bool:
    """Return True if the file is a SQLite file, or a damaged SQLite file with a log or lock file next to it."""
    with path.open("rb") as file:
        found = file.read(len(_MAGIC))
    return found in (b"", _MAGIC) or any(path.parent.glob(f"{glob.escape(path.name)}-*"))


def read_identity(path: Path, lock_note: bytes) -> int:
    """Return the application id that is stored in the file itself; 0 if it has none. The log is not read.

    If a power cut has damaged the first page, `lock_note` is returned, because the log has the page.
    """
    with path.open("rb") as file:
        page = file.read(100)
    found = page[_APPLICATION_ID : _APPLICATION_ID + 4] if page.startswith(_MAGIC) else lock_note
    return int.from_bytes(found, "big", signed=True)


def read_log(path: Path) -> Log:
    """Return the frames of the log of a file; empty if there is no log."""
    data = log_path(path).read_bytes() if log_path(path).exists() else b""
    if len(data) < _HEADER.size + _FRAME.size:
        return Log()
    *_, page_size, _, salt1, salt2, _, _ = _HEADER.unpack_from(data)
    first = _FRAME.unpack_from(data, _HEADER.size)
    salts = (salt1, salt2) if _is_header_good(data) else first[2:4]
    return _scan(data, page_size if 512 <= page_size <= 65536 else 4096, salts)  # noqa: PLR2004 - SQLite's bounds


def _scan(data: bytes, page_size: int, salts: tuple[int, ...]) -> Log:
    commits, last = [], 0
    places = range(_HEADER.size, len(data) - _FRAME.size - page_size + 1, _FRAME.size + page_size)
    for number, at in enumerate(places, 1):
        _, size_after_commit, salt1, salt2, _, _ = _FRAME.unpack_from(data, at)
        if (salt1, salt2) == salts:
            last = number
            if size_after_commit:
                commits.append(number)
    return Log(tuple(commits), last)


def _is_header_good(data: bytes) -> bool:
    order = ">" if data[3] & 1 else "<"
    a = b = 0
    for even, odd in struct.iter_unpack(f"{order}2I", data[:24]):
        a = (a + even + b) & 0xFFFFFFFF
        b = (b + odd + a) & 0xFFFFFFFF
    return struct.unpack(">2I", data[24:32]) == (a, b)
