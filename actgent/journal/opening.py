"""From the address of a journal to the journal."""

import importlib.util
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from actgent.errors import ConfigurationError

from .base import Journal
from .group import GroupedJournal
from .transfer import is_export


def open_journal(url: str) -> AbstractAsyncContextManager[Journal]:
    """Open the journal of an address, in an `async with` block that it lives in.

    `memory:` ends with the block. `sqlite:///agents.db` is a file relative to the working
    directory, `sqlite:////var/agents.db` an absolute one. `postgres://user@host/database` needs the
    extra `postgres`; a query parameter `schema=` names the schema, `actgent` by default.

    Raises:
        ConfigurationError: this is no such address, or its extra is not installed.
    """
    return _make_journal(url).running()


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


def _make_journal(url: str) -> GroupedJournal:
    if url in ("memory:", "memory://"):
        return _memory()
    if url.startswith("sqlite:///") and not url.endswith("/"):
        return _sqlite(Path(url.removeprefix("sqlite:///")))
    if url.startswith(("postgres://", "postgresql://")):
        return _postgres(url)
    raise ConfigurationError(
        f"{url.rsplit('@', maxsplit=1)[-1]!r} is not a journal URL; use 'sqlite:///FILE', 'postgres://HOST/DATABASE' or 'memory:'"
    )


# Imported when an address names them: each member stands on a library of its own.


def _memory() -> GroupedJournal:
    from .memory import MemoryJournal  # noqa: PLC0415

    return MemoryJournal()


def _sqlite(path: Path) -> GroupedJournal:
    from .sqlite import SQLiteJournal  # noqa: PLC0415

    return SQLiteJournal(path)


def _postgres(url: str) -> GroupedJournal:
    if importlib.util.find_spec("psycopg") is None:
        raise ConfigurationError("a journal in PostgreSQL needs the extra: pip install 'actgent[postgres]'")
    from .postgres import PostgresJournal  # noqa: PLC0415

    return PostgresJournal(url)
