"""The files of one folder. No name, symbolic link or race leads out of it: each step is opened by its parent's descriptor."""

import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from actgent.control.arguments import check_flag
from actgent.errors import ConfigurationError, ToolError
from actgent.errors.printable import counted
from actgent.tools.base import Tool
from actgent.tools.function import tool
from actgent.toolsets.toolset import StaticToolset

MAX_READ = 50_000
MAX_ENTRIES = 1000
MAX_SEARCHED = 5000
"""Files that one search looks into."""
MAX_SEARCHED_BYTES = 100_000_000
"""Bytes that one search reads: nobody stops it while it reads."""
MAX_FOUND = 100
MAX_DEPTH = 50
"""Folders in one another that one search goes into: each one holds a descriptor of this process."""
MAX_FILE = 10_000_000
"""Bytes of a file that is searched or written."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def file_tools(folder: str | Path, *, write: bool = False, name: str = "files") -> StaticToolset:
    """Make tools for the files of a folder and those below it: list, read and search, and write with a person's approval.

    Symbolic links are not followed, wherever they lead.

    Args:
        folder: The folder; names that the model gives are relative to it.
        write: Whether there is `write_file`, each call of which a person approves.
        name: The name of the toolset.

    Raises:
        ConfigurationError: there is no such folder.
    """
    check_flag("write", write)
    if not isinstance(folder, str | os.PathLike):
        raise ConfigurationError(f"file_tools takes the path of a folder, not {folder!r:.200}")
    root = Path(folder).resolve()
    if not root.is_dir():
        raise ConfigurationError(f"file_tools takes a folder, and there is none at {str(folder)!r}")
    inside = ConfinedFolder(root)
    return StaticToolset(name, [*_reading(inside), *([_writing(inside)] if write else [])])


def _reading(inside: "ConfinedFolder") -> list[Tool]:
    @tool(effect="pure")
    def list_files(folder: str = "") -> list[str]:
        """List the files of a folder; names of folders end with a slash.

        Args:
            folder: Its name; empty for the whole.
        """
        return inside.names(folder)

    @tool(effect="pure")
    def read_file(file: str, start: int = 0, length: int = MAX_READ) -> str:
        """Read a text file, or a part of it.

        Args:
            file: Its name, as list_files tells it.
            start: The first byte.
            length: How many bytes, at most 50000.
        """
        return inside.read(file, start, length)

    @tool(effect="pure")
    def search_files(text: str, folder: str = "") -> list[str]:
        """Find the lines of files that contain a text, in a folder and below it.

        Args:
            text: What to look for, as it is written.
            folder: Its name; empty for the whole.
        """
        return inside.search(text, folder)

    reading: list[Tool] = [list_files, read_file, search_files]
    for each in reading:
        each.outside = True  # nobody knows who wrote what is in files
    return reading


def _writing(inside: "ConfinedFolder") -> Tool:
    @tool(effect="idempotent", approval=True)
    def write_file(file: str, text: str) -> str:
        """Write a text file, in place of the one that is there.

        Args:
            file: Its name; its folder has to be there.
            text: What is to stand in it.
        """
        return inside.write(file, text)

    return write_file


class ConfinedFolder:
    """A folder whose files are reached step by step from its descriptor, never by a path."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, folder: str) -> list[str]:
        """The names in a folder, in order."""
        with self._opened(_steps(folder)) as descriptor, os.scandir(descriptor) as entries:
            found = [f"{e.name}/" if e.is_dir(follow_symlinks=False) else e.name for e in entries]
        told = sorted(found)[:MAX_ENTRIES]
        return told if len(told) == len(found) else [*told, f"[{len(found) - len(told)} more]"]

    def read(self, file: str, start: int, length: int) -> str:
        """The text of a file from a byte on."""
        if start < 0 or length < 1:
            raise ToolError("start is 0 or more, and length 1 or more")
        *folders, last = _steps(file) or [""]
        with self._opened(folders) as descriptor, _regular(last, descriptor, file) as opened:
            size = os.fstat(opened).st_size
            data = os.pread(opened, min(length, MAX_READ), start)
        text = data.decode("utf-8", "replace")
        behind = start + len(data)
        return text if behind >= size else f"{text}\n[bytes {start} to {behind} of {size}]"

    def search(self, text: str, folder: str) -> list[str]:
        """The lines that contain a text, with their files."""
        if not text:
            raise ToolError("there is no text to look for")
        found: list[str] = []
        searched = size = 0
        with self._opened(_steps(folder)) as descriptor:
            for place, name, here in _files_below(descriptor, ""):
                if not name:
                    if len(found) < MAX_FOUND:
                        found.append(
                            f"[{place[:200]} is more than {MAX_DEPTH} folders deep: search in a folder]"
                        )
                    continue
                searched += 1
                if searched > MAX_SEARCHED or size > MAX_SEARCHED_BYTES or len(found) >= MAX_FOUND:
                    return [*found, "[there is more: search in a folder]"]
                said = _text_of(name, here)
                size += len(said)
                found += _lines(said, text, f"{place}{name}")
        return found

    def write(self, file: str, text: str) -> str:
        """Put a file in the place of the one that is there, whole or not at all."""
        data = text.encode("utf-8", "replace")
        if len(data) > MAX_FILE:
            raise ToolError(f"a file has at most {MAX_FILE:,} bytes")
        *folders, last = _steps(file) or [""]
        if not last:
            raise ToolError("the file has no name")
        with self._opened(folders) as descriptor:
            _replace(last, descriptor, data, file)
        return f"{counted(len(data), 'byte is', 'bytes are')} written to {file}"

    @contextmanager
    def _opened(self, steps: list[str]) -> Generator[int]:
        descriptor = os.open(self._root, _FOLDER)
        try:
            for step in steps:
                below = _open(step, _FOLDER, descriptor, "/".join(steps))
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)


def _files_below(descriptor: int, place: str, depth: int = 0) -> Iterator[tuple[str, str, int]]:
    """Yield each file below a folder: the path of its folder, its name, and the open folder that has it.

    A folder that is too deep is yielded without a name. Each level keeps one descriptor open.
    """
    folders, files = list[str](), list[str]()
    with os.scandir(descriptor) as entries:
        for entry in entries:
            (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
    for name in sorted(files):
        yield place, name, descriptor
    for name in sorted(folders):
        below = f"{place}{name}/"
        if depth == MAX_DEPTH:
            yield below, "", descriptor
            continue
        with suppress(OSError):
            opened = os.open(name, _FOLDER, dir_fd=descriptor)
            try:
                yield from _files_below(opened, below, depth + 1)
            finally:
                os.close(opened)


def _steps(name: str) -> list[str]:
    """The parts of a name.

    Raises:
        ToolError: it leads out of the folder, or is none.
    """
    if "\x00" in name or name.startswith("/") or ".." in name.split("/"):
        raise ToolError(
            f"{name[:200]!r} does not lead into the folder: names are relative to it, without `..`"
        )
    return [step for step in name.split("/") if step not in ("", ".")]


def _open(name: str, flags: int, parent: int, told: str) -> int:
    try:
        return os.open(name, flags, 0o666, dir_fd=parent)  # a new one is for nobody to run
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no name"
        raise ToolError(f"{told[:200]!r} cannot be opened: {reason}; links are not followed") from None


@contextmanager
def _regular(name: str, parent: int, told: str) -> Generator[int]:
    opened = _open(name or ".", _FILE, parent, told)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise ToolError(f"{told[:200]!r} is not a file")
        yield opened
    finally:
        os.close(opened)


def _text_of(name: str, parent: int) -> str:
    """Return what a file says that is searched; nothing where it is no file, or too long."""
    try:
        with _regular(name, parent, name) as opened:
            if os.fstat(opened).st_size > MAX_FILE:
                return ""
            return os.pread(opened, MAX_FILE, 0).decode("utf-8", "replace")
    except ToolError:  # a link, or gone by now
        return ""


def _lines(said: str, text: str, told: str) -> list[str]:
    found = ((number, line) for number, line in enumerate(said.splitlines(), 1) if text in line)
    return [f"{told}:{number}: {line[:300]}" for number, line in found][:MAX_FOUND]


def _keep_mode(name: str, parent: int, made: int) -> None:
    """Let the same people use a new file as the one that it replaces."""
    with suppress(FileNotFoundError):
        there = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISREG(there.st_mode):
            os.fchmod(made, stat.S_IMODE(there.st_mode) & 0o777)


def _replace(name: str, parent: int, data: bytes, told: str) -> None:
    made = f".{os.urandom(8).hex()}.tmp"
    opened = _open(made, _NEW, parent, told)
    try:
        with os.fdopen(opened, "wb") as file:
            _keep_mode(name, parent, opened)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError as error:
        os.unlink(made, dir_fd=parent)
        raise ToolError(f"{told[:200]!r} cannot be written: {error.strerror}") from None
