"""A folder of text files that somebody else may have written, read without ever leaving it.

A path is walked step by step from the folder's own descriptor and no step follows a link, so what is opened is
what was asked for, whatever changes on the disk meanwhile. What was opened is then looked at, not its name.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import attrs

from actgent.errors import InvalidFile

MAX_BYTES = 256 * 1024
"""The longest file that is read."""
MAX_ENTRIES = 2_000
"""The most entries of a folder that are listed."""
MAX_STEPS = 8
_MAX_PATH = 512
_SHOWN = 60
_MAX_DIGITS, _MAX_PLAIN = 6, 16
_SECRET = re.compile(r"(?i)\b(sk|pk|ghp|gho|xox[a-z]|AKIA|AIza|tok|bearer)[-_A-Z0-9 ]{6}|://[^/]*@")
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a named pipe would wait for a writer
_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DIRECTORY
_DRIVE = re.compile(r"[A-Za-z]:")
UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that no text of an agent has: controls, halves of characters."""
_REASONS = {
    errno.ENOENT: "no such file",
    errno.ELOOP: "it is a link, or lies behind one: links are not followed",
    errno.ENOTDIR: "no such file, or it lies behind a link: links are not followed",
    errno.ENXIO: "it is not a regular file",
}


class Unreachable(InvalidFile):
    """A file that is not there, or must not be reached: the mistake is where its path stands."""


def steps_of(path: str) -> list[str]:
    """The steps of a relative path, with `/` between them.

    Raises:
        ValueError: it is absolute, leaves the folder, or has characters that no such path needs.
    """
    if not path.strip() or len(path) > _MAX_PATH:
        raise ValueError(f"a path has 1 to {_MAX_PATH} characters")
    if not path.isprintable() or "\\" in path:
        raise ValueError("a path has no control characters and no backslashes: use / between its steps")
    if path.startswith(("/", "~")) or _DRIVE.match(path):
        raise ValueError("an absolute path leaves the folder: write it relative to this file")
    steps = [step for step in path.split("/") if step not in ("", ".")]
    if ".." in steps:
        raise ValueError("'..' leaves the folder: keep what belongs to the agent beside this file")
    if not 0 < len(steps) <= MAX_STEPS:
        raise ValueError(f"a path has 1 to {MAX_STEPS} steps")
    return steps


def looks_secret(text: str) -> bool:
    """Return True for a name that may be a key in the wrong place: better not quoted."""
    digits = sum(map(str.isdigit, text))
    return _SECRET.search(text) is not None or (digits > _MAX_DIGITS and len(text) > _MAX_PLAIN)


def shown_text(name: str) -> str:
    """A name as errors quote it: in one line, not endless, and not if it may be a secret."""
    if looks_secret(name):
        return "(not shown)"
    return repr(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}...")


@attrs.frozen
class Folder:
    """An open folder; paths are relative to it, and errors name files by it."""

    path: Path
    _descriptor: int = attrs.field(repr=False)

    @classmethod
    @contextmanager
    def open(cls, path: str | os.PathLike[str]) -> Iterator[Self]:
        """Open a folder for as long as the block; how it is reached is the caller's own business, links included.

        Raises:
            InvalidFile: there is no such folder, or it may not be read.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "its path has characters that no path has"
            raise Unreachable(shown_text(str(path))[1:-1], 1, f"no folder to read: {reason}") from None
        try:
            yield cls(Path(path), descriptor)
        finally:
            os.close(descriptor)

    def name_of(self, path: str) -> str:
        """A file of this folder as errors call it."""
        return str(self.path / path)

    def read(self, path: str, *, limit: int = MAX_BYTES) -> str:
        """The text of a file, its line ends as on Unix.

        Raises:
            Unreachable: there is none at this path, or it is not a regular file.
            InvalidFile: it is too long, or not UTF-8 without a byte order mark.
        """
        with self._open(path, _FILE) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unreachable(self.name_of(path), 1, "it is not a regular file")
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(limit + 1)
        if len(content) > limit:
            raise InvalidFile(
                self.name_of(path), 1, f"the file is too long: at most {limit:,} bytes are read"
            )
        return _decoded(content, self.name_of(path))

    def find(self, path: str, *, limit: int = MAX_BYTES) -> str | None:
        """The text of a file that may be missing.

        Raises:
            InvalidFile: it is there, and cannot be used.
        """
        return self.read(path, limit=limit) if self.has(path) else None

    def names(self, path: str) -> list[str]:
        """List the entries of a folder below this one, sorted, without hidden ones; empty if it is not there.

        Raises:
            InvalidFile: it is no folder but a link, or has too many entries.
        """
        if not self.has(path):
            return []
        with self._open(path, _FOLDER) as descriptor:
            entries = os.listdir(descriptor)  # noqa: PTH208 - a path could lead elsewhere by now
            names = sorted(name for name in entries if not name.startswith("."))
        if len(names) > MAX_ENTRIES:
            raise InvalidFile(self.name_of(path), 1, f"the folder has more than {MAX_ENTRIES:,} entries")
        return names

    def has(self, path: str) -> bool:
        """Return True if there is something, also a link that leads nowhere; False for a path that cannot be right."""
        with suppress(OSError, ValueError):
            *way, last = steps_of(path)
            with self._walk(way, _FOLDER) as parent:
                os.stat(last, dir_fd=parent, follow_symlinks=False)
                return True
        return False

    @contextmanager
    def _open(self, path: str, flags: int) -> Iterator[int]:
        """The descriptor of what a path leads to."""
        with ExitStack() as opened:
            try:
                descriptor = opened.enter_context(self._walk(steps_of(path), flags))
            except OSError as error:
                reason = _REASONS.get(error.errno or 0, error.strerror or "it cannot be read")
                raise Unreachable(self.name_of(path), 1, reason) from None
            except ValueError as error:
                raise Unreachable(str(self.path), 1, str(error)) from None
            yield descriptor

    @contextmanager
    def _walk(self, steps: list[str], flags: int) -> Iterator[int]:
        """The descriptor at the end of the steps, which it opens one after the other."""
        with ExitStack() as opened:
            here = self._descriptor
            for number, step in enumerate(steps, 1):
                here = os.open(step, flags if number == len(steps) else _FOLDER, dir_fd=here)
                opened.callback(os.close, here)
            yield here


def _decoded(content: bytes, name: str) -> str:
    if content.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise InvalidFile(name, 1, "the file begins with a byte order mark: save it as UTF-8 without one")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidFile(name, line, "the text is not UTF-8: save it as UTF-8") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if found := UNREADABLE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise InvalidFile(name, line, f"there is a control character (U+{ord(found[0]):04X})")
    return text
