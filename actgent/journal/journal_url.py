"""Function that opens a journal by its URL."""

import importlib.util
from contextlib import AbstractAsyncContextManager
from os import PathLike
from pathlib import Path

from actgent.errors import ConfigurationError

from .group_commit.base_journal_with_group_commit import GroupedJournal
from .journal_interface import Journal

_IN_MEMORY = ":memory:"
"""Name that SQLite uses for an in-memory database."""


def open_journal(url: str, *, read_only: bool = False) -> AbstractAsyncContextManager[Journal]:
    """Open the journal with this URL in an `async with` block.

    The data of `memory:` is lost when the block exits. `sqlite:///agents.db` is a file relative to the working
    directory, `sqlite:////var/agents.db` an absolute path. `postgres://user@host/database` needs the extra
    `postgres`. The query parameter `schema=` sets the database schema, `actgent` by default.

    With `read_only` the journal may be owned by another process. It is opened without `acquire()` and without a lock,
    and nothing is written. Each call returns the records that were confirmed at that time. Write calls raise
    `UsageError`.

    Raises:
        ConfigurationError: The URL is invalid, or its extra is not installed. With `read_only`: the journal
            does not exist.
        JournalVersion: With `read_only`: another version of actgent wrote the journal.
    """
    return _make_journal(url, read_only=read_only).running()


def find_journal(location: str) -> str:
    """Return the URL of an existing journal. `location` is such a URL, or the path of a journal file.

    Raises:
        ConfigurationError: The file does not exist, or is not a journal.
    """
    name = location.removeprefix("sqlite:///")
    if "://" in name or name == "memory:":
        return location
    from .session_export_and_fork import is_export  # noqa: PLC0415
    from .sqlite import lock_path  # noqa: PLC0415

    path = Path(name)
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder: pass the path of a journal file")
    if not path.is_file():
        raise ConfigurationError(
            f"no such file: {path} (expected a journal file or postgres://HOST/DATABASE)"
        )
    if is_export(path):
        raise ConfigurationError(
            f"{path} holds exported sessions: `actgent journal import JOURNAL {path}` adds them to a journal"
        )
    if not path.stat().st_size and not lock_path(path).exists():
        raise ConfigurationError(f"{path} is an empty file: pass the path of a journal file")
    return f"sqlite:///{path}"


def _make_journal(url: object, *, read_only: bool) -> GroupedJournal:
    if not isinstance(url, str):
        meant = f": write 'sqlite:///{url}'" if isinstance(url, PathLike) else ""
        raise ConfigurationError(
            f"a journal URL must be a string such as 'sqlite:///agents.db', not {url!r:.200}{meant}"
        )
    if url in ("memory:", "memory://"):
        return _memory(read_only=read_only)
    if url.startswith("sqlite:///") and not url.endswith("/") and _IN_MEMORY not in url:
        return _sqlite(Path(url.removeprefix("sqlite:///")), read_only=read_only)
    if url.startswith(("postgres://", "postgresql://")):
        return _postgres(url, read_only=read_only)
    meant = f"; did you mean {suggested!r}?" if (suggested := _suggestion(url)) else ""
    raise ConfigurationError(
        f"{_without_login(url)!r} is not a journal URL; use 'sqlite:///FILE', 'postgres://HOST/DATABASE' or 'memory:'{meant}"
    )


def _without_login(url: str) -> str:
    """Return the URL without user and password, for logs and errors."""
    scheme, separator, rest = url.partition("://")
    place = (rest if separator else scheme).rpartition("@")[2]
    return f"{scheme}{separator}{place}" if separator else place


def _suggestion(url: str) -> str:
    """Return a hint with the valid URL that the user of an invalid journal URL probably meant; empty if it is unclear."""
    url = url.strip()
    scheme, colon, rest = url.partition(":")
    if _IN_MEMORY in url or url.strip("/:").lower() == "memory":
        return "memory:"
    kind = scheme.lower().partition("+")[0]  # SQLAlchemy URLs have a driver after the +
    if colon and kind in ("postgres", "postgresql") and rest.startswith("//"):
        return _without_login(f"{kind}:{rest}")
    if colon and kind in ("sqlite", "sqlite3", "file"):
        path = rest.removeprefix("///") if rest.startswith("///") else rest.removeprefix("//")
        return f"sqlite:///{path}" if path.strip("/") else ""
    is_path = not colon and ("/" in url or Path(url).suffix in (".db", ".sqlite", ".sqlite3"))
    return f"sqlite:///{url}" if is_path and not url.endswith("/") else ""


# Imported on demand, since each kind of journal needs another library.


def _memory(*, read_only: bool) -> GroupedJournal:
    if read_only:
        raise ConfigurationError(
            "an in-memory journal cannot be opened read-only: pass the URL of a file or a database"
        )
    from .in_memory_journal import MemoryJournal  # noqa: PLC0415

    return MemoryJournal()


def _sqlite(path: Path, *, read_only: bool) -> GroupedJournal:
    from .sqlite import SQLiteJournal, SQLiteReader  # noqa: PLC0415

    return SQLiteReader(path) if read_only else SQLiteJournal(path)


def _postgres(url: str, *, read_only: bool) -> GroupedJournal:
    if importlib.util.find_spec("psycopg") is None:
        raise ConfigurationError(
            "a journal in PostgreSQL requires an extra package: pip install 'actgent[postgres]'"
        )
    from .postgres.journal import PostgresJournal  # noqa: PLC0415
    from .postgres.read_only_journal import PostgresReader  # noqa: PLC0415

    return PostgresReader(url) if read_only else PostgresJournal(url)
