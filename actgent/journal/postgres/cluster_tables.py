"""What the tables of a cluster say, for people who look at it from outside of its nodes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import attrs
import psycopg
import psycopg.sql
import trio

from actgent.errors import ConfigurationError
from actgent.support.postgres_address import split_schema

from .connecting import Connection, connection_to, errors_translated, is_not_yet, one_row, patiently
from .statements import IS_UNFINISHED

_PARTITIONS = "SELECT p, owner, epoch, since, clean FROM partitions WHERE pool = %s ORDER BY p"
_UNFINISHED = (
    "SELECT slot, count(*), extract(epoch FROM now())::float8 - min(updated_at) FROM sessions "  # noqa: S608
    f"WHERE slot >= 0 AND {IS_UNFINISHED} GROUP BY slot"
)

_DEAD = (
    "SELECT session_id, agent, message_id, reason, at, retried_as, request IS NOT NULL FROM dead "
    "ORDER BY at, message_id"
)
_REQUEST = "SELECT request FROM dead WHERE session_id = %s AND agent = %s AND message_id = %s"
_NOTE_RETRIED = "UPDATE dead SET retried_as = %s WHERE session_id = %s AND agent = %s AND message_id = %s"
_DROP = "DELETE FROM dead WHERE session_id = %s AND agent = %s AND message_id = %s"
T = TypeVar("T")


@attrs.frozen(kw_only=True)
class PartitionRow:
    """A partition, as the database has it."""

    partition: int
    owner: str
    """Who took it last."""
    epoch: int
    since: datetime
    is_given_back: bool
    """True: its owner has let it go."""


@attrs.frozen(kw_only=True)
class DeadMessage:
    """A message that was given up, as each process died that worked on it."""

    session_id: str
    agent: str
    message_id: str
    reason: str
    at: datetime
    retried_as: str | None
    """The id under which it was said again; None: it was not."""
    is_request: bool = False
    """True: nothing of it was accepted, so that its request is kept beside it."""


@attrs.frozen(kw_only=True)
class ClusterTables:
    """All of it."""

    partitions: tuple[PartitionRow, ...]
    unfinished: dict[int, int]
    """By slot, sessions that are in the middle of something."""
    lags: dict[int, float]
    """By slot, seconds since the last step of the one of these that has waited longest."""
    suspects: int
    """Sessions that were in the middle of something when a process died."""
    dead: int
    """Messages that were given up."""


async def read_cluster_tables(url: str, pool: str) -> ClusterTables:
    """Read what the database of a cluster knows.

    Raises:
        ConfigurationError: the address is none, or there are no such tables, or they are of an older release.
        JournalFailed: it cannot be read.
    """
    return await run_connected(url, _read, pool)


def _read(connection: Connection, pool: str) -> ClusterTables:
    rows = connection.execute(_PARTITIONS, (pool,)).fetchall()
    unfinished = connection.execute(_UNFINISHED).fetchall()
    (suspects,) = one_row(connection, "SELECT count(*) FROM suspects")
    (dead,) = one_row(connection, "SELECT count(*) FROM dead")
    known = tuple(map(_to_row, rows))
    return ClusterTables(
        partitions=known,
        unfinished={slot: count for slot, count, _ in unfinished},
        lags={slot: max(0.0, lag) for slot, _, lag in unfinished},
        suspects=suspects,
        dead=dead,
    )


def _to_row(columns: tuple[Any, ...]) -> PartitionRow:
    number, owner, epoch, since, clean = columns
    return PartitionRow(partition=number, owner=owner, epoch=epoch, since=since, is_given_back=clean)


async def read_dead(url: str) -> tuple[DeadMessage, ...]:
    """The messages that were given up, oldest first; raises as `read_cluster_tables`."""
    rows = await _run(url, _DEAD)
    names = [field.name for field in attrs.fields(DeadMessage)]
    return tuple(DeadMessage(**dict(zip(names, row, strict=True))) for row in rows)


async def read_request(url: str, message: DeadMessage) -> bytes | None:
    """The request that was given up, as a node had it; None if it is not there any more. Raises as `read_cluster_tables`."""
    rows = await _run(url, _REQUEST, message.session_id, message.agent, message.message_id)
    return rows[0][0] if rows else None


async def note_retried(url: str, message: DeadMessage, retried_as: str) -> None:
    """A message was said again, under another id."""
    await _run(url, _NOTE_RETRIED, retried_as, message.session_id, message.agent, message.message_id)


async def drop_dead(url: str, message: DeadMessage) -> None:
    """Nobody asks for a message any more; the session keeps it."""
    await _run(url, _DROP, message.session_id, message.agent, message.message_id)


async def _run(url: str, sql: str, *values: str) -> list[tuple[Any, ...]]:
    return await run_connected(url, _execute, sql, values)


def _execute(connection: Connection, sql: str, values: tuple[str, ...]) -> list[tuple[Any, ...]]:
    cursor = connection.execute(sql, values)
    return cursor.fetchall() if cursor.description else []


async def run_connected(url: str, fn: Callable[..., T], *args: object) -> T:
    """Run `fn(connection, ...)` in a thread on a connection to the schema of a cluster, as soon as a server that starts lets anybody in.

    Raises as `read_cluster_tables`.
    """
    address, schema = split_schema(url, default="actgent", owner="the journal")

    def run() -> T:
        with _connected(address, schema) as connection:
            return fn(connection, *args)

    return await patiently(partial(trio.to_thread.run_sync, run), is_not_yet)


@contextmanager
def _connected(address: str, schema: str) -> Iterator[Connection]:
    with errors_translated(), connection_to(address) as connection:
        connection.execute(psycopg.sql.SQL("SET search_path TO {}").format(psycopg.sql.Identifier(schema)))
        try:
            yield connection
        except psycopg.errors.UndefinedTable as error:
            raise ConfigurationError(
                f"the schema {schema!r} has no tables of a cluster: start a node with this journal first, or name another one"
            ) from error
        except psycopg.errors.UndefinedColumn as error:
            raise ConfigurationError(
                f"the schema {schema!r} is of an older release: start a node of this one first, or ask with that one"
            ) from error
