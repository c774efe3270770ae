"""Connections to PostgreSQL: settings, timeouts, reconnects, and translation of errors."""

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import psycopg
import psycopg.conninfo
import trio

from actgent.errors import ConfigurationError, JournalDamaged, JournalFailed, JournalFull
from actgent.errors.text_escaping import quoted
from actgent.support.postgres_address import connection_failure

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]
TRIES = 3
"""Number of checks whether a second client gets the server session of the first client."""
SECOND_CLIENT_TIMEOUT_SECONDS = 2.0
"""Seconds for which a second client waits for a session, because a pooler in session mode may have none left."""


def backend_of(connection: Connection) -> int:
    """Return the process id of the server session that runs the connection's statements now."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None  # noqa: S101 - a function call has one row
    return int(row[0])


def is_pooled(connection: Connection) -> bool:
    """Return True if a connection pooler answers instead of the PostgreSQL server.

    A server sends its own process id when a connection begins.
    """
    return backend_of(connection) != connection.info.backend_pid


def check_session(
    connection: Connection,
    open_other: Callable[[], Connection],
    abort_connection: Callable[[Connection], object],
) -> None:
    """Raise if a connection goes through a pooler that does not keep the same PostgreSQL server session for it.

    Args:
        connection: The connection of the journal.
        open_other: Opens another connection to the same address.
        abort_connection: Ends a connection from another thread.

    Raises:
        ConfigurationError: The pooler is in transaction or statement mode.
    """
    backend = backend_of(connection)
    for _ in range(TRIES):
        try:
            other = open_other()
        except psycopg.errors.ConnectionTimeout:  # all sessions are taken, so this connection has its own
            return
        timer = threading.Timer(SECOND_CLIENT_TIMEOUT_SECONDS, abort_connection, [other])
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
            raise _pooler_error(connection)


def _pooler_error(connection: Connection) -> ConfigurationError:
    place = quoted(f"{connection.info.host}:{connection.info.port}")
    return ConfigurationError(
        f"{place} is a connection pooler in transaction or statement mode, and a journal needs one server session, "
        "which holds its lock: use the address of the PostgreSQL server itself, or of a pool with "
        "pool_mode = session"
    )


def apply_settings(connection: Connection, settings: Mapping[str, str]) -> None:
    """Apply session settings with `set_config`, because a pooler ignores the settings of the connection request."""
    for name, value in settings.items():
        connection.execute("SELECT set_config(%s, %s, false)", (name, value))


SETTINGS: dict[str, Any] = {
    "client_encoding": "utf8",
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
}
"""Connection parameters: UTF-8 encoding, and timeouts in seconds for a dead server (`tcp_user_timeout` in ms)."""
OPTIONS: Mapping[str, str] = {
    "synchronous_commit": "on",
    "statement_timeout": "30000",
    "lock_timeout": "10000",
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "extra_float_digits": "3",
    "default_transaction_isolation": "read committed",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Settings of the server session that override those of the database and the role. Times are in ms, keepalives in
seconds. The server must detect a dead machine soon, because that machine's lock blocks a new owner.
"""
RECONNECT_SECONDS = 30.0
"""Seconds in which a lost connection is re-established before a caller gets an error.

A failover to a standby takes that long.
"""
_PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Seconds between attempts to reconnect; the last value repeats."""
_CANNOT_CONNECT_NOW = b"57P03"
_OPTIONS_REFUSED = "unsupported startup parameter"
"""Fragment of PgBouncer's error for the parameter `options`, if `ignore_startup_parameters` does not list it."""
_HELLO = b"\0\0\0\x16\0\3\0\0user\0actgent\0\0"
"""Startup message without authentication. A starting server reports its state before it checks the user."""

_IDLE = psycopg.pq.TransactionStatus.IDLE


class ServerNotReady(psycopg.OperationalError):
    """Raised if the server runs but accepts no connections now, because it is starting, recovering or stopping."""


def connection_to(address: str, options: Mapping[str, str] = OPTIONS) -> Connection:
    """Open an auto-committing connection to one server session with these settings.

    Raises:
        NotYet: The server will accept connections later.
        ConfigurationError: The address is a pooler in transaction or statement mode.
        psycopg.Error: The connection failed permanently.
    """
    connection = _connect(address, options)
    try:
        if is_pooled(connection):
            check_session(connection, partial(_connect, address, options, seconds=2), abort_connection)
            apply_settings(connection, options)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(address: str, options: Mapping[str, str], *, seconds: int | None = None) -> Connection:
    """Connect to PostgreSQL. If a pooler rejects the connection parameter `options`, connect without this parameter."""
    settings: dict[str, Any] = {"autocommit": True, "options": _encode_options(options), **SETTINGS}
    if seconds is not None:
        settings["connect_timeout"] = seconds
    try:
        return psycopg.connect(address, **settings)
    except psycopg.OperationalError as error:
        if _OPTIONS_REFUSED in str(error):
            return psycopg.connect(address, **{**settings, "options": ""})
        reason = None if error.pgconn is None else _rejection_code(error.pgconn)
        if reason == _CANNOT_CONNECT_NOW:
            raise ServerNotReady(str(error)) from error
        if reason is None:
            raise
    return psycopg.connect(address, **settings)  # the server rejected this user, or is available by now


def _encode_options(options: Mapping[str, str]) -> str:
    """Encode session settings as the value of libpq's connection parameter `options`. Spaces are escaped."""
    return " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in options.items())


def _rejection_code(refused: psycopg.pq.abc.PGconn) -> bytes | None:
    """Return the SQLSTATE with which a server rejects connections.

    The result is empty if the server accepts connections, and None if the server does not answer. libpq reports no SQLSTATE for a
    failed connection, and its error text is in the server's language. Its `PQping` would block the process.
    """
    host, port = (refused.hostaddr or refused.host).decode(), refused.port.decode()
    if not (host and port.isdecimal()):
        return None
    is_file = host.startswith(("/", "@"))
    family = socket.AF_UNIX if is_file else socket.AF_INET6 if ":" in host else socket.AF_INET
    place = f"{host}/.s.PGSQL.{port}" if is_file else (host, int(port))
    with contextlib.suppress(OSError), socket.socket(family) as asked:
        asked.settimeout(SETTINGS["connect_timeout"])
        asked.connect(place)
        asked.sendall(_HELLO)
        answer = asked.makefile("rb")
        kind, length = answer.read(1), int.from_bytes(answer.read(4), "big")
        fields = answer.read(length - 4).split(b"\0") if kind == b"E" else []
        return next((each[1:] for each in fields if each[:1] == b"C"), b"") if kind else None
    return None


async def retry_while_lost(
    attempt: Callable[[], Awaitable[T]], is_lost: Callable[[JournalFailed], bool]
) -> T:
    """Call `attempt` again while it fails because of a lost connection, and return its result.

    Only errors for which `is_lost` returns True are retried, after a pause. After `RECONNECT_SECONDS`, the last error is
    raised.
    """
    until = time.monotonic() + RECONNECT_SECONDS
    for pause in itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1])):
        try:
            return await attempt()
        except JournalFailed as error:
            if not is_lost(error) or time.monotonic() + pause > until:
                raise
        await trio.sleep(pause)
    raise AssertionError("this line is never reached, because the pauses between attempts never end")


def is_server_not_ready(error: JournalFailed) -> bool:
    """Return True if the server rejects connections only temporarily, e.g. during its start."""
    return isinstance(error.__cause__, ServerNotReady)


def one_row(connection: Connection, sql: Any, *values: Any) -> tuple[Any, ...]:
    """Run a query with `values`, and return its only row.

    Raises:
        JournalDamaged: The query has no row.
    """
    row = connection.execute(sql, values).fetchone()
    if row is None:
        raise JournalDamaged("the table `meta` is empty: restore the database from a backup")
    return row


@contextmanager
def translate_server_errors() -> Iterator[None]:
    """Context manager: convert PostgreSQL errors of its block to journal errors.

    The address is never quoted, because it may contain a password.
    """
    try:
        yield
    except psycopg.errors.DiskFull as error:
        raise JournalFull(
            f"the disk of the journal is full: {error}; the records were not written"
        ) from error
    except psycopg.errors.UntranslatableCharacter as error:
        raise JournalDamaged(
            f"an id, an agent's or an owner's name has a character that the database cannot store ({error}): create a database with "
            "ENCODING 'UTF8' for it, or use other names; the records were not written"
        ) from error
    except (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.DataCorrupted) as error:
        raise JournalDamaged(str(error)) from error
    except psycopg.Error as error:
        raise JournalFailed(f"the journal's database failed: {connection_failure(error) or error}") from error


def has_ended_session(error: BaseException | None) -> bool:
    """Return True if PostgreSQL ended the server session with this error, e.g. because a transaction was idle for too long.

    psycopg has no common class for such errors: the error of an idle transaction is an `InternalError`.
    """
    return isinstance(error, psycopg.Error) and error.diag.severity_nonlocalized == "FATAL"


def roll_back_open(connection: Connection) -> None:
    """Roll back the open transaction of a connection, if there is one.

    A cancel request may hit the COMMIT itself, which then does not end the transaction.
    """
    if not connection.closed and connection.info.transaction_status != _IDLE:
        connection.rollback()


def abort_connection(connection: Connection | None) -> None:
    """Shut down a connection from another thread. The thread that waits for the connection then gets an error.

    None and closed connections are ignored.
    """
    with contextlib.suppress(psycopg.Error, OSError):  # already closed
        if connection is not None:
            with socket.socket(fileno=os.dup(connection.fileno())) as doubled:
                doubled.shutdown(socket.SHUT_RDWR)


def in_transaction(connection: Connection, fn: Callable[..., T], *args: Any) -> T:
    """Run `fn(connection, *args)` in a transaction, and return its result."""
    with connection.transaction():
        return fn(connection, *args)
