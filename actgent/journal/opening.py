"""From the address of a journal to the journal."""

import importlib.util
from contextlib import AbstractAsyncContextManager
from os import PathLike
from pathlib import Path

from actgent.errors import ConfigurationError

from .base import Journal
from .grouped import GroupedJournal
from .transfer import is_export

_IN_MEMORY = ":memory:"
"""SQLite's name of a database in memory."""


def open_journal(url: str, *, read_only: bool = False) -> AbstractAsyncContextManager[Journal]:
    """Open the journal of an address, in an `async with` block that it lives in.

    `memory:` ends with the block. `sqlite:///agents.db` is a file relative to the working
    directory, `sqlite:////var/agents.db` an absolute one. `postgres://user@host/database` needs the
    extra `postgres`; a query parameter `schema=` names the schema, `actgent` by default.

    With `read_only` it is looked at beside whoever owns it: without `acquire()`, without a lock, and nothing is written or
    made. Each call shows what was confirmed by then; what would write is a `UsageError`.

    Raises:
        ConfigurationError: this is no such address, or its extra is not installed; read-only, there is no journal.
        JournalVersion: read-only, another actgent wrote it.
    """
    return _make_journal(url, read_only=read_only).running()


def find_journal(place: str) -> str:
    """The address of a journal that is there; the path of its file will do.

    Raises:
        ConfigurationError: there is no such file, or it holds no journal.
    """
    name = place.removeprefix("sqlite:///")
    if "://" in name or name == "memory:":
        return place
    from .sqlite import lock_path  # noqa: PLC0415

    path = Path(name)
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder: name the file of a journal")
    if not path.is_file():
        raise ConfigurationError(
            f"no such file: {path} (expected a journal file or postgres://HOST/DATABASE)"
        )
    if is_export(path):
        raise ConfigurationError(
            f"{path} holds exported sessions: `actgent journal import JOURNAL {path}` adds them to a journal"
        )
    if not path.stat().st_size and not lock_path(path).exists():
        raise ConfigurationError(f"{path} is empty: name the file of a journal")
    return f"sqlite:///{path}"


def _make_journal(url: object, *, read_only: bool) -> GroupedJournal:
    if not isinstance(url, str):
        meant = f": write 'sqlite:///{url}'" if isinstance(url, PathLike) else ""
        raise ConfigurationError(
            f"a journal is named by a text such as 'sqlite:///agents.db', not {url!r:.200}{meant}"
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
    """Return an address without user and password, which the log must not have."""
    scheme, separator, rest = url.partition("://")
    place = (rest if separator else scheme).rpartition("@")[2]
    return f"{scheme}{separator}{place}" if separator else place


def _suggestion(url: str) -> str:
    """Return the journal URL that a wrong one is meant to be; empty if that is not clear."""
    url = url.strip()
    scheme, colon, rest = url.partition(":")
    if _IN_MEMORY in url or url.strip("/:").lower() == "memory":
        return "memory:"
    kind = scheme.lower().partition("+")[0]  # a driver stands after the + in addresses of SQLAlchemy
    if colon and kind in ("postgres", "postgresql") and rest.startswith("//"):
        return _without_login(f"{kind}:{rest}")
    if colon and kind in ("sqlite", "sqlite3", "file"):
        path = rest.removeprefix("///") if rest.startswith("///") else rest.removeprefix("//")
        return f"sqlite:///{path}" if path.strip("/") else ""
    is_path = not colon and ("/" in url or Path(url).suffix in (".db", ".sqlite", ".sqlite3"))
    return f"sqlite:///{url}" if is_path and not url.endswith("/") else ""


# Imported when an address names them: each member stands on a library of its own.


def _memory(*, read_only: bool) -> GroupedJournal:
    if read_only:
        raise ConfigurationError("a journal in memory is its owner's alone: name a file or a database")
    from .memory import MemoryJournal  # noqa: PLC0415

    return MemoryJournal()


def _sqlite(path: Path, *, read_only: bool) -> GroupedJournal:
    from .sqlite import SQLiteJournal, SQLiteReader  # noqa: PLC0415

    return SQLiteReader(path) if read_only else SQLiteJournal(path)


def _postgres(url: str, *, read_only: bool) -> GroupedJournal:
    if importlib.util.find_spec("psycopg") is None:
        raise ConfigurationError("a journal in PostgreSQL needs the extra: pip install 'actgent[postgres]'")
    from .postgres import PostgresJournal, PostgresReader  # noqa: PLC0415

    return PostgresReader(url) if read_only else PostgresJournal(url)
