"""Tools for reading and writing the files of one folder.

No name, symbolic link or race leads out of the folder: each path component is opened relative to the descriptor of its
parent.
"""

import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from actgent.errors import ConfigurationError, ToolError
from actgent.errors.text_escaping import counted
from actgent.limits_and_schedules.id_and_number_validation import check_flag
from actgent.tools.function_tool import tool
from actgent.tools.tool_interface import Tool
from actgent.toolsets.toolset import StaticToolset

MAX_READ_BYTES = 50_000
"""Maximum number of bytes that one call reads."""
MAX_ENTRIES = 1000
"""Maximum number of listed names."""
MAX_SEARCHED_FILES = 5000
"""Maximum number of files that one search reads."""
MAX_SEARCHED_BYTES = 100_000_000
"""Maximum number of bytes that one search reads; a search cannot be cancelled."""
MAX_MATCHES = 100
"""Maximum number of lines that one search returns."""
MAX_DEPTH = 50
"""Maximum folder depth of a search; each level keeps a descriptor open."""
MAX_FILE_BYTES = 10_000_000
"""Maximum size of a file that is searched or written."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def file_tools(folder: str | Path, *, write: bool = False, name: str = "files") -> StaticToolset:
    """Make tools that list, read and search the files of a folder, and optionally write files with approval.

    Symbolic links are not followed.

    Args:
        folder: Path of an existing folder. The model names files relative to it.
        write: True adds `write_file`, whose calls require approval.
        name: Name of the toolset.

    Raises:
        ConfigurationError: The folder does not exist.
    """
    check_flag("write", write)
    if not isinstance(folder, str | os.PathLike):
        raise ConfigurationError(f"file_tools() requires the path of a folder, not {folder!r:.200}")
    root = Path(folder).resolve()
    if not root.is_dir():
        raise ConfigurationError(
            f"file_tools() requires an existing folder: create {str(folder)!r}, or pass another folder"
        )
    inside = ConfinedFolder(root)
    return StaticToolset(name, [*_make_reading_tools(inside), *([_writing(inside)] if write else [])])


def _make_reading_tools(inside: "ConfinedFolder") -> list[Tool]:
    @tool(effect="pure")
    def list_files(folder: str = "") -> list[str]:
        """List the files of a folder; names of folders end with a slash.

        Args:
            folder: Path of the folder; empty for the top folder.
        """
        return inside.names(folder)

    @tool(effect="pure")
    def read_file(file: str, start: int = 0, length: int = MAX_READ_BYTES) -> str:
        """Read a text file, or a part of it.

        Args:
            file: Path of the file, as list_files returns it.
            start: Index of the first byte to read.
            length: Number of bytes to read, at most 50000.
        """
        return inside.read(file, start, length)

    @tool(effect="pure")
    def search_files(text: str, folder: str = "") -> list[str]:
        """Find the lines that contain a text, in all files of a folder and its subfolders.

        Args:
            text: Text to find; upper and lower case differ.
            folder: Path of the folder; empty for the top folder.
        """
        return inside.search(text, folder)

    reading: list[Tool] = [list_files, read_file, search_files]
    for each in reading:
        each.outside = True  # contents of files are untrusted
    return reading


def _writing(inside: "ConfinedFolder") -> Tool:
    @tool(effect="idempotent", approval=True)
    def write_file(file: str, text: str) -> str:
        """Write a text file; an existing file is replaced.

        Args:
            file: Path of the file; its folder must exist.
            text: New content of the file.
        """
        return inside.write(file, text)

    return write_file


class ConfinedFolder:
    """A folder whose files are opened component by component from its descriptor, never by a path."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of the files and folders in `folder`; names of folders end with a slash.

        At most `MAX_ENTRIES` names are returned, followed by the number of names that were left out.
        """
        with self._open_folder(_parse_name(folder)) as descriptor, os.scandir(descriptor) as entries:
            found = [f"{e.name}/" if e.is_dir(follow_symlinks=False) else e.name for e in entries]
        shown = sorted(found)[:MAX_ENTRIES]
        return shown if len(shown) == len(found) else [*shown, f"[{len(found) - len(shown)} more]"]

    def read(self, file: str, start: int, length: int) -> str:
        """Return at most `length` bytes of a file from byte `start` on, as text.

        If the file has more bytes, the text ends with a note of the range and the size.
        """
        if start < 0 or length < 1:
            raise ToolError("start must be at least 0, and length at least 1")
        *folders, last = _parse_name(file) or [""]
        with self._open_folder(folders) as descriptor, _regular(last, descriptor, file) as opened:
            size = os.fstat(opened).st_size
            data = os.pread(opened, min(length, MAX_READ_BYTES), start)
        text = data.decode("utf-8", "replace")
        behind = start + len(data)
        return text if behind >= size else f"{text}\n[bytes {start} to {behind} of {size}]"

    def search(self, text: str, folder: str) -> list[str]:
        """Return the lines of files in `folder` and its subfolders that contain `text`, with file name and line number.

        Large files and links are skipped. The last line says if the search is incomplete.
        """
        if not text:
            raise ToolError("text must not be empty")
        found: list[str] = []
        searched = size = 0
        with self._open_folder(_parse_name(folder)) as descriptor:
            for prefix, name, here in _files_below(descriptor, ""):
                if not name:
                    if len(found) < MAX_MATCHES:
                        found.append(
                            f"[{prefix[:200]} is more than {MAX_DEPTH} folders deep: search in a subfolder]"
                        )
                    continue
                searched += 1
                if searched > MAX_SEARCHED_FILES or size > MAX_SEARCHED_BYTES or len(found) >= MAX_MATCHES:
                    return [*found, "[incomplete: search in a subfolder]"]
                file_text = _read_searchable(name, here)
                size += len(file_text)
                found += _lines(file_text, text, f"{prefix}{name}")
        return found

    def write(self, file: str, text: str) -> str:
        """Write a text file atomically, and return a confirmation. An existing file is replaced and its permissions are kept."""
        data = text.encode("utf-8", "replace")
        if len(data) > MAX_FILE_BYTES:
            raise ToolError(f"text must have at most {MAX_FILE_BYTES:,} bytes")
        *folders, last = _parse_name(file) or [""]
        if not last:
            raise ToolError("the argument `file` must not be empty")
        with self._open_folder(folders) as descriptor:
            _replace(last, descriptor, data, file)
        return f"{counted(len(data), 'byte is', 'bytes are')} written to {file}"

    @contextmanager
    def _open_folder(self, steps: list[str]) -> Generator[int]:
        descriptor = os.open(self._root, _FOLDER)
        try:
            for step in steps:
                below = _open(step, _FOLDER, descriptor, "/".join(steps))
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)


def _files_below(descriptor: int, prefix: str, depth: int = 0) -> Iterator[tuple[str, str, int]]:
    """Yield each file in an open folder and its subfolders, as folder path, file name and descriptor of the folder.

    A subfolder that is too deep is yielded with an empty file name. Each level keeps one descriptor open.

    Args:
        descriptor: Descriptor of the open folder.
        prefix: Path of that folder from the start of the search, with a slash at the end; empty for the start.
        depth: Number of folders between the start and that folder.
    """
    folders, files = list[str](), list[str]()
    with os.scandir(descriptor) as entries:
        for entry in entries:
            (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
    for name in sorted(files):
        yield prefix, name, descriptor
    for name in sorted(folders):
        below = f"{prefix}{name}/"
        if depth == MAX_DEPTH:
            yield below, "", descriptor
            continue
        with suppress(OSError):
            opened = os.open(name, _FOLDER, dir_fd=descriptor)
            try:
                yield from _files_below(opened, below, depth + 1)
            finally:
                os.close(opened)


def _parse_name(name: str) -> list[str]:
    """Split a path that the model has given into its components. Empty components and `.` are omitted.

    Raises:
        ToolError: The path is absolute, or contains `..` or NUL.
    """
    if "\x00" in name or name.startswith("/") or ".." in name.split("/"):
        raise ToolError(f"{name[:200]!r} is not inside of the folder: use a relative name without `..`")
    return [step for step in name.split("/") if step not in ("", ".")]


def _open(name: str, flags: int, parent: int, shown_name: str) -> int:
    try:
        return os.open(name, flags, 0o666, dir_fd=parent)  # new files are not executable
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "invalid name"
        raise ToolError(f"{shown_name[:200]!r} cannot be opened: {reason} (links are not followed)") from None


@contextmanager
def _regular(name: str, parent: int, shown_name: str) -> Generator[int]:
    opened = _open(name or ".", _FILE, parent, shown_name)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise ToolError(f"{shown_name[:200]!r} is not a regular file")
        yield opened
    finally:
        os.close(opened)


def _read_searchable(name: str, parent: int) -> str:
    """Return the text of the file `name` in the folder with the descriptor `parent`.

    Return an empty text for links, large files and files that were removed.
    """
    try:
        with _regular(name, parent, name) as opened:
            if os.fstat(opened).st_size > MAX_FILE_BYTES:
                return ""
            return os.pread(opened, MAX_FILE_BYTES, 0).decode("utf-8", "replace")
    except ToolError:  # a link, or removed since it was listed
        return ""


def _lines(file_text: str, text: str, name: str) -> list[str]:
    found = ((number, line) for number, line in enumerate(file_text.splitlines(), 1) if text in line)
    return [f"{name}:{number}: {line[:300]}" for number, line in found][:MAX_MATCHES]


def _replace(name: str, parent: int, data: bytes, shown_name: str) -> None:
    made = f".{os.urandom(8).hex()}.tmp"
    opened = _open(made, _NEW, parent, shown_name)
    try:
        with os.fdopen(opened, "wb") as file:
            with suppress(FileNotFoundError):
                there = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if stat.S_ISREG(there.st_mode):
                    os.fchmod(opened, stat.S_IMODE(there.st_mode) & 0o777)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError as error:
        os.unlink(made, dir_fd=parent)
        raise ToolError(f"{shown_name[:200]!r} cannot be written: {error.strerror}") from None
