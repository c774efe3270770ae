"""Connections to PostgreSQL: addresses, bounds of each wait, and its errors as ours."""

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import psycopg
import psycopg.conninfo
import trio

from actgent.errors import JournalDamaged, JournalFailed, JournalFull
from actgent.support.postgres_address import connection_failure

from .poolers import apply_settings, check_session, is_pooled

SETTINGS: dict[str, Any] = {
    "client_encoding": "utf8",
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
}
"""Texts are sent in UTF-8, whatever the database has; and bounds of each wait for a server that is gone, in seconds
(`tcp_user_timeout` in ms)."""
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
"""Of the session on the server, whatever its database or its role set for others: values come as they were written, and are
read as psycopg reads them. Times in ms, keepalives in seconds: it has to find out soon that a machine is gone, whose lock would
keep another one from going on."""
AWAY = 30.0
"""Seconds in which a lost connection is made again before anybody hears of it: as long as a server takes whose standby goes on."""
_PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Seconds between two tries; the last again and again."""
_CANNOT_CONNECT_NOW = b"57P03"
_OPTIONS_REFUSED = "unsupported startup parameter"
"""How PgBouncer refuses the parameter `options`, unless `ignore_startup_parameters` has it."""
_HELLO = b"\0\0\0\x16\0\3\0\0user\0actgent\0\0"
"""What begins a session, as anybody; a server that starts answers that before it asks who it is."""

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]
_IDLE = psycopg.pq.TransactionStatus.IDLE


class NotYet(psycopg.OperationalError):
    """The server is there and lets nobody in just now: it starts, recovers or ends."""


def connection_to(address: str, options: Mapping[str, str] = OPTIONS) -> Connection:
    """A new connection, which commits each statement, to one session of the server with these settings.

    Raises:
        NotYet: the server says that it will let us in, later.
        ConfigurationError: the address is that of a pooler that gives each transaction another session.
        psycopg.Error: there is none, or it never will.
    """
    connection = _connect(address, options)
    try:
        if is_pooled(connection):
            check_session(connection, partial(_connect, address, options, seconds=2), break_off)
            apply_settings(connection, options)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(address: str, options: Mapping[str, str], *, seconds: int | None = None) -> Connection:
    """Connect; a pooler that takes no options when a connection begins is asked without them."""
    settings: dict[str, Any] = {"autocommit": True, "options": _as_text(options), **SETTINGS}
    if seconds is not None:
        settings["connect_timeout"] = seconds
    try:
        return psycopg.connect(address, **settings)
    except psycopg.OperationalError as error:
        if _OPTIONS_REFUSED in str(error):
            return psycopg.connect(address, **{**settings, "options": ""})
        said = None if error.pgconn is None else _what_it_says(error.pgconn)
        if said == _CANNOT_CONNECT_NOW:
            raise NotYet(str(error)) from error
        if said is None:
            raise
    return psycopg.connect(address, **settings)  # it refuses just us, or has come up since


def _as_text(options: Mapping[str, str]) -> str:
    """Write settings of a session as the parameter `options` of a connection."""
    return " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in options.items())


def _what_it_says(refused: psycopg.pq.abc.PGconn) -> bytes | None:
    """Ask the server that refused us whether it lets anybody in: the SQLSTATE of its error, empty for none; None: no answer.

    libpq does not tell that of a connection that it could not make, whose words are in the server's language, and its
    `PQping` would hold the whole process.
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


async def patiently(attempt: Callable[[], Awaitable[T]], is_lost: Callable[[JournalFailed], bool]) -> T:
    """Do something again and again for as long as a server may be away, where it failed for want of that server."""
    until = time.monotonic() + AWAY
    for pause in itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1])):
        try:
            return await attempt()
        except JournalFailed as error:
            if not is_lost(error) or time.monotonic() + pause > until:
                raise
        await trio.sleep(pause)
    raise AssertionError("the pauses do not end")


def is_not_yet(error: JournalFailed) -> bool:
    """Return True if the server lets nobody in just now, and may be asked again soon."""
    return isinstance(error.__cause__, NotYet)


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
    except psycopg.errors.UntranslatableCharacter as error:
        raise JournalDamaged(
            f"an id, an agent's or an owner's name has a character that its database cannot store ({error}): make a database with "
            "ENCODING 'UTF8' for it, or name them otherwise; nothing of it was written"
        ) from error
    except (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.DataCorrupted) as error:
        raise JournalDamaged(str(error)) from error
    except psycopg.Error as error:
        raise JournalFailed(f"the journal's database failed: {connection_failure(error) or error}") from error


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
