"""Read access to the tables of a cluster, for operators outside of its nodes."""

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
from actgent.journal.cluster_interface import NodeStatus
from actgent.support.postgres_address import split_schema

from .connections import (
    Connection,
    connection_to,
    is_server_not_ready,
    one_row,
    retry_while_lost,
    translate_server_errors,
)
from .node_liveness_locks import IS_UNLOCKED, NODE_TIMEOUT_SECONDS
from .sql_statements import IS_UNFINISHED

_PARTITIONS = "SELECT p, owner, epoch, since, clean FROM partitions WHERE pool = %s ORDER BY p"
_UNFINISHED = (
    "SELECT slot, count(*), extract(epoch FROM now())::float8 - min(updated_at) FROM sessions "  # noqa: S608
    f"WHERE slot >= 0 AND {IS_UNFINISHED} GROUP BY slot"
)
_NODES = f"""
SELECT name, address, agents, release, reads, is_leaving,
    (SELECT count(*) FROM partitions AS t WHERE t.pool = nodes.pool AND t.owner = nodes.name AND NOT t.clean)
FROM nodes WHERE pool = %s AND heartbeat > clock_timestamp() - interval '{NODE_TIMEOUT_SECONDS} s' AND NOT ({IS_UNLOCKED}) ORDER BY name
"""  # noqa: S608 - words of our own
_PENDING = "SELECT slot, count(*) FROM pending_messages WHERE pool = %s GROUP BY 1"
_SESSIONS = """
SELECT s.agent, count(*) FROM sessions AS s JOIN hosts AS h ON h.agent = s.agent AND h.pool = %s
WHERE NOT s.closed GROUP BY s.agent
"""
_MARK_LEAVING = "UPDATE nodes SET is_leaving = true WHERE pool = %s AND name = %s"
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
    """A row of the partition table: the owner of a partition and its epoch (fencing number)."""

    partition: int
    owner: str
    """Name of the node that last acquired the partition."""
    epoch: int
    since: datetime
    is_given_back: bool
    """True if the owner has released the partition without unfinished work."""


@attrs.frozen(kw_only=True)
class DeadMessage:
    """A dead-lettered message: each process that worked on it died."""

    session_id: str
    agent: str
    message_id: str
    reason: str
    at: datetime
    retried_as: str | None
    """Id under which the message was re-sent; None if it was not."""
    is_request: bool = False
    """True if no session accepted the message, so its request is stored."""


@attrs.frozen(kw_only=True)
class ClusterTables:
    """Content of a cluster's tables for one pool, at one moment."""

    nodes: tuple[NodeStatus, ...]
    """Live nodes of the pool."""
    partitions: tuple[PartitionRow, ...]
    pending: dict[int, int]
    """Number of messages that wait until a node owns their session, by slot (hash value of session ids)."""
    sessions: dict[str, int]
    """Number of open sessions by agent, for the agents of the pool."""
    unfinished: dict[int, int]
    """Number of sessions with unfinished work, by slot."""
    lags: dict[int, float]
    """By slot: seconds since the last record of the unfinished session that has waited longest."""
    suspects: int
    """Number of sessions that were unfinished when their process died."""
    dead: int
    """Number of dead-lettered messages in the database."""


async def read_cluster_tables(url: str, pool: str) -> ClusterTables:
    """Read nodes, partitions and dead messages of a cluster pool in one consistent view.

    Raises:
        ConfigurationError: The URL is invalid, the tables do not exist, or an older release created them.
        JournalFailed: The database cannot be read.
    """
    return await run_connected(url, _read, pool)


def _read(connection: Connection, pool: str) -> ClusterTables:
    rows = connection.execute(_PARTITIONS, (pool,)).fetchall()
    unfinished = connection.execute(_UNFINISHED).fetchall()
    (suspects,) = one_row(connection, "SELECT count(*) FROM suspects")
    (dead,) = one_row(connection, "SELECT count(*) FROM dead")
    known = tuple(map(_to_row, rows))
    return ClusterTables(
        nodes=tuple(map(_to_node, connection.execute(_NODES, (pool,)).fetchall())),
        partitions=known,
        pending=dict(connection.execute(_PENDING, (pool,)).fetchall()),
        sessions=dict(connection.execute(_SESSIONS, (pool,)).fetchall()),
        unfinished={slot: count for slot, count, _ in unfinished},
        lags={slot: max(0.0, lag) for slot, _, lag in unfinished},
        suspects=suspects,
        dead=dead,
    )


def _to_row(columns: tuple[Any, ...]) -> PartitionRow:
    number, owner, epoch, since, clean = columns
    return PartitionRow(partition=number, owner=owner, epoch=epoch, since=since, is_given_back=clean)


def _to_node(columns: tuple[Any, ...]) -> NodeStatus:
    name, address, agents, release, reads, is_leaving, partitions = columns
    return NodeStatus(
        name=name,
        address=address,
        agents=tuple(agents),
        release=release,
        reads=reads,
        is_leaving=is_leaving,
        partitions=partitions,
    )


async def mark_leaving(url: str, pool: str, node: str) -> None:
    """Mark a node of a pool as leaving, so that it transfers its sessions to other nodes at its next poll.

    An unknown node is ignored. Raises like `read_cluster_tables`.
    """
    await _run(url, _MARK_LEAVING, pool, node)


async def read_dead(url: str) -> tuple[DeadMessage, ...]:
    """Return the dead-lettered messages, oldest first. Raises like `read_cluster_tables`."""
    rows = await _run(url, _DEAD)
    names = [field.name for field in attrs.fields(DeadMessage)]
    return tuple(DeadMessage(**dict(zip(names, row, strict=True))) for row in rows)


async def read_request(url: str, message: DeadMessage) -> bytes | None:
    """Return the stored request of a dead-lettered message; None if it does not exist.

    Raises like `read_cluster_tables`.
    """
    rows = await _run(url, _REQUEST, message.session_id, message.agent, message.message_id)
    return rows[0][0] if rows else None


async def read_cluster_key(url: str) -> bytes:
    """Return the key with which nodes sign requests; raises as `read_cluster_tables`, also if no node has run yet."""
    rows = await _run(url, "SELECT key FROM cluster_key")
    if not rows:
        raise ConfigurationError(
            "no cluster node has used this database yet: start a node with this journal first"
        )
    return bytes(rows[0][0])


async def note_retried(url: str, message: DeadMessage, retried_as: str) -> None:
    """Store that a dead-lettered message was sent again. `retried_as` is the new message id."""
    await _run(url, _NOTE_RETRIED, retried_as, message.session_id, message.agent, message.message_id)


async def delete_dead_letter(url: str, message: DeadMessage) -> None:
    """Delete a dead-lettered message from the table. The records of its session stay."""
    await _run(url, _DROP, message.session_id, message.agent, message.message_id)


async def _run(url: str, sql: str, *values: str) -> list[tuple[Any, ...]]:
    return await run_connected(url, _execute, sql, values)


def _execute(connection: Connection, sql: str, values: tuple[str, ...]) -> list[tuple[Any, ...]]:
    cursor = connection.execute(sql, values)
    return cursor.fetchall() if cursor.description else []


async def run_connected(url: str, fn: Callable[..., T], *args: object) -> T:
    """Run `fn(connection, ...)` in a thread on a connection to the schema of a cluster.

    Waits for a server that is starting.

    Raises like `read_cluster_tables`.
    """
    address, schema = split_schema(url, default="actgent", owner="the journal")

    def run() -> T:
        with _connect(address, schema) as connection:
            return fn(connection, *args)

    return await retry_while_lost(partial(trio.to_thread.run_sync, run), is_server_not_ready)


@contextmanager
def _connect(address: str, schema: str) -> Iterator[Connection]:
    with translate_server_errors(), connection_to(address) as connection:
        connection.execute(psycopg.sql.SQL("SET search_path TO {}").format(psycopg.sql.Identifier(schema)))
        try:
            yield connection
        except psycopg.errors.UndefinedTable as error:
            raise ConfigurationError(
                f"the schema {schema!r} has no cluster tables: start a node with this journal first, or use another journal"
            ) from error
        except psycopg.errors.UndefinedColumn as error:
            raise ConfigurationError(
                f"the schema {schema!r} was created by an older release: start a node of this release first, or use the older release"
            ) from error
