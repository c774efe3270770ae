"""From the address of memories to what opens their store."""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

from actgent.errors import ConfigurationError

from .store import MemoryStore


def open_store(
    url: str, *, has_vectors: bool, capacity: int | None, half_life: float | None
) -> Callable[[], MemoryStore]:
    """Return what opens a connection to the store of an address, in the thread in which it is called.

    Raises:
        ConfigurationError: this is no such address, or its extra is not installed.
    """
    options: dict[str, Any] = {"has_vectors": has_vectors, "capacity": capacity, "half_life": half_life}
    if url in ("memory:", "memory://"):
        return partial(_sqlite, "", **options)
    if url.startswith("sqlite:///") and not url.endswith("/"):
        return partial(_sqlite, url.removeprefix("sqlite:///"), **options)
    if url.startswith(("postgres://", "postgresql://")):
        if importlib.util.find_spec("psycopg") is None:
            raise ConfigurationError("memories in PostgreSQL need the extra: pip install 'actgent[postgres]'")
        return partial(_postgres, url, **options)
    raise ConfigurationError(
        f"{url.rsplit('@', maxsplit=1)[-1]!r} is not an address of memories; use 'sqlite:///FILE', "
        "'postgres://HOST/DATABASE' or 'memory:'"
    )


# Imported when an address names them: each member stands on a library of its own.


def _sqlite(path: str, **options: Any) -> MemoryStore:
    from .sqlite import SQLiteStore  # noqa: PLC0415

    return SQLiteStore(path, **options)


def _postgres(url: str, **options: Any) -> MemoryStore:
    from .postgres import PostgresStore  # noqa: PLC0415

    return PostgresStore(url, **options)
