"""Safe reading of an untrusted folder: paths are opened without following symbolic links, and never leave the folder.

A path is opened component by component relative to the folder's descriptor, without following symbolic links. So concurrent changes
on disk cannot redirect an open path to another file. Checks use the opened descriptor, not the name.
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
"""Maximum size of a file in bytes."""
MAX_ENTRIES = 2_000
"""Maximum number of entries of a folder that is listed."""
MAX_STEPS = 8
"""Maximum number of components of a relative path."""
_MAX_PATH_CHARACTERS = 512
_MAX_SHOWN_CHARACTERS = 60
_MAX_DIGITS, _MAX_PLAIN = 6, 16
_SECRET = re.compile(r"(?i)\b(sk|pk|ghp|gho|xox[a-z]|AKIA|AIza|tok|bearer)[-_A-Z0-9 ]{6}|://[^/]*@")
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a named pipe would wait for a writer
_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DIRECTORY
_DRIVE = re.compile(r"[A-Za-z]:")
UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that are not allowed in an agent's files: control characters and unpaired surrogates."""
_REASONS = {
    errno.ENOENT: "no such file",
    errno.ELOOP: "it is a link, or its path contains a link: links are not followed",
    errno.ENOTDIR: "no such file, or its path contains a link: links are not followed",
    errno.ENXIO: "it is not a regular file",
}


class Unreachable(InvalidFile):
    """A file is missing or must not be read. Readers report this error for the line that names the file."""


def steps_of(path: str) -> list[str]:
    """Split a relative path into its components, after validation.

    Raises:
        ValueError: The path is absolute, leaves the folder, is too long, or has forbidden characters.
    """
    if not path.strip() or len(path) > _MAX_PATH_CHARACTERS:
        raise ValueError(f"a path must have 1 to {_MAX_PATH_CHARACTERS} characters")
    if not path.isprintable() or "\\" in path:
        raise ValueError(
            "a path must not contain control characters or backslashes: separate its parts with /"
        )
    if path.startswith(("/", "~")) or _DRIVE.match(path):
        raise ValueError("an absolute path is outside the folder: write it relative to this file")
    steps = [step for step in path.split("/") if step not in ("", ".")]
    if ".." in steps:
        raise ValueError(
            "a path with '..' is outside the folder: keep the agent's files in the folder of this file"
        )
    if not 0 < len(steps) <= MAX_STEPS:
        raise ValueError(f"a path must have 1 to {MAX_STEPS} parts")
    return steps


def looks_secret(text: str) -> bool:
    """Return True if a text resembles a secret such as an API key, so that error texts must not quote it."""
    digits = sum(map(str.isdigit, text))
    return _SECRET.search(text) is not None or (digits > _MAX_DIGITS and len(text) > _MAX_PLAIN)


def shown_text(name: str) -> str:
    """Return a name quoted for error texts: on one line and shortened, or a placeholder if it may be a secret."""
    if looks_secret(name):
        return "(not shown)"
    return repr(name if len(name) <= _MAX_SHOWN_CHARACTERS else f"{name[:_MAX_SHOWN_CHARACTERS]}...")


@attrs.frozen
class Folder:
    """An open folder whose files are read safely. Paths are relative to it, and errors name files below its path."""

    path: Path
    """Path of the folder as the caller wrote it."""
    _descriptor: int = attrs.field(repr=False)

    @classmethod
    @contextmanager
    def open(cls, path: str | os.PathLike[str]) -> Iterator[Self]:
        """Open a folder for a `with` block. Symbolic links in `path` itself are followed, links inside the folder are not.

        Raises:
            InvalidFile: The folder does not exist, or is not readable.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "its path has invalid characters"
            raise Unreachable(
                shown_text(str(path))[1:-1], 1, f"{reason}; the path must be that of a folder"
            ) from None
        try:
            yield cls(Path(path), descriptor)
        finally:
            os.close(descriptor)

    def name_of(self, path: str) -> str:
        """Return the path of a file for error texts."""
        return str(self.path / path)

    def read(self, path: str, *, limit: int = MAX_BYTES) -> str:
        """Return the text of a file with Unix line endings; `limit` is its maximum size in bytes.

        Raises:
            Unreachable: The file does not exist, or is not a regular file.
            InvalidFile: The file is too long, or not UTF-8 without a byte order mark.
        """
        with self._open(path, _FILE) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unreachable(self.name_of(path), 1, "it is not a regular file")
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(limit + 1)
        if len(content) > limit:
            raise InvalidFile(self.name_of(path), 1, f"the file is longer than {limit:,} bytes")
        return _decode(content, self.name_of(path))

    def find(self, path: str, *, limit: int = MAX_BYTES) -> str | None:
        """Return the text of a file, or None if it does not exist.

        Raises:
            InvalidFile: The file exists but cannot be read.
        """
        return self.read(path, limit=limit) if self.has(path) else None

    def names(self, path: str) -> list[str]:
        """Return the sorted names of files and folders in a subfolder, without hidden ones; empty if it does not exist.

        Raises:
            InvalidFile: The path is not a folder, or the folder has too many entries.
        """
        if not self.has(path):
            return []
        with self._open(path, _FOLDER) as descriptor:
            entries = os.listdir(descriptor)  # noqa: PTH208 - listing by path could follow a new link
            names = sorted(name for name in entries if not name.startswith("."))
        if len(names) > MAX_ENTRIES:
            raise InvalidFile(self.name_of(path), 1, f"the folder has more than {MAX_ENTRIES:,} entries")
        return names

    def has(self, path: str) -> bool:
        """Return True if a path exists in the folder, also as a dangling link; False if it does not exist or is invalid."""
        with suppress(OSError, ValueError):
            *parents, last = steps_of(path)
            with self._walk(parents, _FOLDER) as parent:
                os.stat(last, dir_fd=parent, follow_symlinks=False)
                return True
        return False

    @contextmanager
    def _open(self, path: str, flags: int) -> Iterator[int]:
        """Open a path of the folder for the block, without following links, and yield its file descriptor.

        Raises:
            Unreachable: The path is invalid, does not exist, or cannot be opened.
        """
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
        """Open the components of a path one after the other without following links, and yield the last descriptor."""
        with ExitStack() as opened:
            here = self._descriptor
            for number, step in enumerate(steps, 1):
                here = os.open(step, flags if number == len(steps) else _FOLDER, dir_fd=here)
                opened.callback(os.close, here)
            yield here


def _decode(content: bytes, name: str) -> str:
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
        raise InvalidFile(name, line, f"the text has a control character (U+{ord(found[0]):04X})")
    return text
