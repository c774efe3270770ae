"""A look at a SQLite file and its write-ahead log from outside, before SQLite opens them.

SQLite takes whatever good log lies beside a file, and drops everything from the first bad frame
on, without a word: it cannot know that there was more. We can: only the very last transaction of
a log may be broken, since each is synced before the next begins.
Formats: https://www.sqlite.org/fileformat2.html, sections 1.3 and 4.
"""

import glob
import struct
from pathlib import Path

import attrs

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = b"SQLite format 3\0"
"""How each file begins."""
_APPLICATION_ID = 68
"""Where the first page has it."""


@attrs.frozen
class Log:
    """The write-ahead log of a file."""

    commits: tuple[int, ...] = ()
    """The numbers of its frames that end a transaction of the log's present round, from 1."""
    frames: int = 0
    """Frames of this round."""

    def is_broken_behind(self, accepted: int) -> bool:
        """Return True if more than one transaction stands behind the frames that SQLite accepts."""
        return any(accepted < commit < self.frames for commit in self.commits)


def log_path(path: Path) -> Path:
    """Where SQLite keeps the log of a file."""
    return path.with_name(f"{path.name}-wal")


def may_be_journal(path: Path) -> bool:
    """Return True for a file of SQLite's, or one that was before it was damaged: something stands beside it then."""
    with path.open("rb") as file:
        found = file.read(len(_MAGIC))
    return found in (b"", _MAGIC) or any(path.parent.glob(f"{glob.escape(path.name)}-*"))


def read_identity(path: Path, noted: bytes) -> int:
    """The application id in the file itself, whatever a log says; 0 where there is none.

    Where a power cut tore the first page, which the log has then, it is the one that was noted.
    """
    with path.open("rb") as file:
        page = file.read(100)
    found = page[_APPLICATION_ID : _APPLICATION_ID + 4] if page.startswith(_MAGIC) else noted
    return int.from_bytes(found, "big", signed=True)


def read_log(path: Path) -> Log:
    """The frames of the log beside a file, empty where there is no log."""
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
