"""Connections to PostgreSQL: addresses, bounds of each wait, and its errors as ours."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
import psycopg.conninfo

from actgent.errors import JournalDamaged, JournalFailed, JournalFull

SETTINGS: dict[str, Any] = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
}
"""Bounds of each wait for a server that is gone, in seconds (the second in ms)."""
OPTIONS = (
    "-c synchronous_commit=on -c statement_timeout=30000 -c lock_timeout=10000 -c TimeZone=UTC "
    "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c tcp_user_timeout=30000"
)
"""Of the session on the server, in ms, keepalives in seconds: it has to find out soon that a machine is gone, whose lock
would keep another one from going on."""

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]
_IDLE = psycopg.pq.TransactionStatus.IDLE


def one_row(connection: Connection, sql: Any, *values: Any) -> tuple[Any, ...]:
    """The only row of a table that always has one.

    Raises:
        JournalDamaged: it has none.
    """
    row = connection.execute(sql, values).fetchone()
    if row is None:
        raise JournalDamaged("its description is lost")
    return row


@contextmanager
def errors_translated() -> Iterator[None]:
    """PostgreSQL's errors as ours; none of them quotes the address, which may hold a password."""
    try:
        yield
    except psycopg.errors.DiskFull as error:
        raise JournalFull(f"no space for the journal: {error}; nothing of the step was written") from error
    except (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.DataCorrupted) as error:
        raise JournalDamaged(str(error)) from error
    except psycopg.Error as error:
        raise JournalFailed(f"the journal's database failed: {error}") from error


def settle(connection: Connection) -> None:
    """Leave no transaction behind: a request to stop may meet the COMMIT itself, which then neither ends it nor rolls back."""
    if not connection.closed and connection.info.transaction_status != _IDLE:
        connection.rollback()


def break_off(connection: Connection | None) -> None:
    """End a connection from outside of its thread: whoever waits for the server in it goes on with an error."""
    with contextlib.suppress(psycopg.Error, OSError):  # it is closed
        if connection is not None:
            with socket.socket(fileno=os.dup(connection.fileno())) as doubled:
                doubled.shutdown(socket.SHUT_RDWR)


def in_transaction(connection: Connection, fn: Callable[..., T], *args: Any) -> T:
    """Run `fn(connection, ...)`: what it writes is there whole, or not at all."""
    with connection.transaction():
        return fn(connection, *args)


def in_one_moment(connection: Connection, fn: Callable[..., T], *args: Any) -> T:
    """Run `fn(connection, ...)`, which reads: each of its statements finds what was there at the first, whoever writes meanwhile."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        return fn(connection, *args)
    finally:
        settle(connection)
