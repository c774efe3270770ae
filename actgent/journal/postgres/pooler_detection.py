"""Detection of connection poolers in transaction mode. A journal needs one server session for its whole lifetime.

The ownership lock of a journal belongs to a server session. A pooler in transaction mode gives the session to another
client after each transaction, so a second process would acquire the lock of a journal in use.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import psycopg

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import quoted

Connection = psycopg.Connection[tuple[Any, ...]]
TRIES = 3
"""Number of checks whether a second client gets the server session of the first client."""
PATIENCE = 2.0
"""Seconds for which a second client waits for a session, because a pooler in session mode may have none left."""


def backend_of(connection: Connection) -> int:
    """Return the process id of the server session that runs the connection's statements now."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None  # noqa: S101 - a function call has one row
    return int(row[0])


def is_pooled(connection: Connection) -> bool:
    """Return True if a pooler answers instead of the server. A server sends its own process id when a connection begins."""
    return backend_of(connection) != connection.info.backend_pid


def check_session(
    connection: Connection, open_other: Callable[[], Connection], break_off: Callable[[Connection], object]
) -> None:
    """Raise if the connection goes through a pooler that does not keep one server session for it.

    Args:
        connection: The connection of the journal.
        open_other: Opens another connection to the same address.
        break_off: Ends a connection from another thread.

    Raises:
        ConfigurationError: The pooler is in transaction or statement mode.
    """
    backend = backend_of(connection)
    for _ in range(TRIES):
        try:
            other = open_other()
        except psycopg.errors.ConnectionTimeout:  # all sessions are taken, so this connection has its own
            return
        timer = threading.Timer(PATIENCE, break_off, [other])
        timer.start()
        try:
            other.execute("BEGIN")
            is_shared = backend_of(other) == backend or backend_of(connection) != backend
        except psycopg.errors.ProtocolViolation:  # a pooler in statement mode refuses transactions
            is_shared = True
        except psycopg.OperationalError:  # broken off, as no session was free in time
            return
        finally:
            timer.cancel()
            other.close()
        if is_shared:
            raise _not_kept(connection)


def _not_kept(connection: Connection) -> ConfigurationError:
    place = quoted(f"{connection.info.host}:{connection.info.port}")
    return ConfigurationError(
        f"{place} is a connection pooler in transaction or statement mode, and a journal needs one server session, "
        "which holds its lock: use the address of the PostgreSQL server itself, or of a pool with "
        "pool_mode = session"
    )


def apply_settings(connection: Connection, settings: Mapping[str, str]) -> None:
    """Apply session settings with `set_config`. A pooler does not pass on those of the connection request."""
    for name, value in settings.items():
        connection.execute("SELECT set_config(%s, %s, false)", (name, value))
