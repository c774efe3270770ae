"""The table of the nodes of a pool, read and written on a connection that also shows that this process lives.

Two connections of a node hold an advisory lock each: this connection, and the connection of `OwnershipTable`. PostgreSQL
releases both locks when the process dies, so other nodes see a killed process at once. A process that lost only one connection
does not count as dead. A process that hangs keeps its locks, and its heartbeat becomes too old.
"""

import secrets
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import attrs
import psycopg.sql

from actgent.journal.cluster_interface import PoolLayout

from .cluster_pool_layout import layout_of
from .connections import Connection, one_row
from .node_liveness_locks import IS_UNLOCKED, NODE_TIMEOUT_SECONDS
from .partition_ownership_table import OwnershipTable, channel_of

_BEAT = """
INSERT INTO nodes (pool, name, address, agents, release, reads, lock_key, heartbeat, is_leaving) VALUES
(%(pool)s, %(node)s, %(address)s, %(agents)s, %(release)s, %(reads)s, %(lock_key)s, clock_timestamp(), %(is_leaving)s)
ON CONFLICT (pool, name) DO UPDATE SET address = excluded.address, agents = excluded.agents, release = excluded.release,
    reads = excluded.reads, lock_key = excluded.lock_key, heartbeat = excluded.heartbeat,
    is_leaving = nodes.is_leaving OR excluded.is_leaving
"""
_NODES = f"""
SELECT name, address, agents, release, reads, is_leaving, extract(epoch FROM clock_timestamp() - heartbeat)::float8,
    CASE WHEN name = %(node)s THEN false ELSE {IS_UNLOCKED} END, extract(epoch FROM clock_timestamp())::float8
FROM nodes WHERE pool = %(pool)s ORDER BY name
"""  # noqa: S608 - words of our own
_PARTITIONS = "SELECT p, owner, epoch, clean FROM partitions WHERE pool = %(pool)s"
_LAYOUT_AND_PARTITIONS = """
SELECT c.generation, c.partitions, c.writes, c.state, t.p, t.owner, t.epoch, t.clean
FROM (SELECT * FROM cluster WHERE pool = %(pool)s ORDER BY generation DESC LIMIT 1) AS c
LEFT JOIN partitions AS t ON t.pool = c.pool
"""
_REMOVE_DEAD = f"""
WITH gone AS MATERIALIZED (
    DELETE FROM nodes WHERE pool = %(pool)s AND name = ANY(%(names)s) AND name <> %(node)s
    AND (heartbeat < clock_timestamp() - interval '{NODE_TIMEOUT_SECONDS} s' OR {IS_UNLOCKED}) RETURNING name
),
notified AS MATERIALIZED (SELECT pg_notify(%(channel)s, 'ownership') FROM gone LIMIT 1)
SELECT name, (SELECT count(*) FROM notified) FROM gone
"""  # noqa: S608 - numbers of our own
_REMOVE_OURS = """
WITH gone AS MATERIALIZED (DELETE FROM nodes WHERE pool = %(pool)s AND name = %(node)s RETURNING name)
SELECT pg_notify(%(channel)s, 'ownership') FROM gone
"""
_PUT_KEY = "INSERT INTO cluster_key (key) VALUES (%(key)s) ON CONFLICT DO NOTHING"
_KEY = "SELECT key FROM cluster_key"


@attrs.frozen(kw_only=True)
class NodeRow:
    """Row of a node in the database. Each node writes its own row."""

    name: str
    address: str
    agents: tuple[str, ...]
    release: str
    reads: int
    """Newest format of messages and records that the node reads."""
    is_leaving: bool = False
    """True if the node transfers its partitions and stops."""


@attrs.frozen(kw_only=True)
class SeenNode:
    """A node's row, with the signs of life that the database shows."""

    row: NodeRow
    age: float
    """Seconds since the node's last heartbeat."""
    is_unlocked: bool
    """True if the database connections of the node have ended, so no process holds its locks."""

    @property
    def is_suspicious(self) -> bool:
        """True if the node is probably dead.

        Its lock is free, or its heartbeat is older than `NODE_TIMEOUT_SECONDS`.
        """
        return self.is_unlocked or self.age > NODE_TIMEOUT_SECONDS


@attrs.frozen(kw_only=True)
class PartitionOwner:
    """The owner of a partition in the database."""

    owner: str
    epoch: int
    is_given_back: bool
    """True if the owner released the partition without unfinished work."""


def _owners_in(rows: Iterable[tuple[int, str, int, bool]]) -> dict[int, PartitionOwner]:
    """Return the owners of partitions by partition number.

    A row has the partition's number, its owner, its epoch, and True if the owner gave the partition back.
    """
    return {
        number: PartitionOwner(owner=owner, epoch=epoch, is_given_back=clean)
        for number, owner, epoch, clean in rows
    }


class NodeTable(OwnershipTable):
    """Nodes of one pool in the database. Only one task may use the table at a time."""

    def __init__(self, address: str, schema: str, *, pool: str, node: str) -> None:
        super().__init__(address, schema, pool=pool, node=node)
        self.connections = 0
        """Number of connections that were opened so far."""
        self.payloads: list[str] = []
        """Notifications that have arrived and that `take_payloads` has not returned yet."""
        self.is_server_new = False
        """True if the server had been running for less than `NODE_TIMEOUT_SECONDS` when the connection was opened."""
        self._lock_key = 0

    def fileno(self) -> int | None:
        """Return the descriptor of the connection's socket.

        It becomes readable when a notification arrives. None if the connection is closed.
        """
        is_open = self._connection is not None and not self._connection.closed
        return self._connection.fileno() if is_open and self._connection is not None else None

    async def beat(self, row: NodeRow) -> None:
        """Write this node's row with a new heartbeat time.

        Raises:
            JournalFailed: The database does not answer.
        """
        await self._run_whole(
            self._beat, _BEAT, {**self._who, **attrs.asdict(row), "agents": list(row.agents)}
        )

    async def nodes(self) -> tuple[list[SeenNode], float]:
        """Return the nodes of the pool, and the current Unix time of the database in seconds. Without nodes, the time is 0.

        Raises:
            JournalFailed: The database does not answer.
        """
        rows = await self.select(_NODES, {})
        seen = [
            SeenNode(
                row=NodeRow(
                    name=name,
                    address=address,
                    agents=tuple(agents),
                    release=release,
                    reads=reads,
                    is_leaving=is_leaving,
                ),
                age=age,
                is_unlocked=is_unlocked,
            )
            for name, address, agents, release, reads, is_leaving, age, is_unlocked, _ in rows
        ]
        return seen, rows[0][-1] if rows else 0.0

    async def partitions(self) -> dict[int, PartitionOwner]:
        """Return the owner of each partition, by partition number.

        Raises:
            JournalFailed: The database does not answer.
        """
        return _owners_in(await self.select(_PARTITIONS, {}))

    async def layout_and_partitions(self) -> tuple[PoolLayout | None, dict[int, PartitionOwner]]:
        """Return the newest layout of the pool and the owners of its partitions. The layout is None if the pool was removed.

        Raises:
            JournalFailed: The database does not answer.
        """
        rows = await self.select(_LAYOUT_AND_PARTITIONS, {})
        if not rows:
            return None, {}
        return layout_of(rows[0][:4]), _owners_in([row[4:] for row in rows if row[4] is not None])

    async def remove_dead(self, names: Collection[str]) -> list[str]:
        """Delete the rows of the nodes in `names` that are dead, and return the names of these nodes.

        Raises:
            JournalFailed: The database does not answer.
        """
        return [name for name, _ in await self.select(_REMOVE_DEAD, {"names": list(names)})]

    async def remove_ours(self) -> None:
        """Delete the row of this node.

        Raises:
            JournalFailed: The database does not answer.
        """
        await self.select(_REMOVE_OURS, {})

    async def cluster_key(self) -> bytes:
        """Return the key with which all nodes of the database sign their requests to each other.

        The first call of any node creates the key.

        Raises:
            JournalFailed: The database does not answer.
        """
        await self.execute(_PUT_KEY, {"key": secrets.token_bytes(32)})
        return bytes((await self.select(_KEY, {}))[0][0])

    def take_payloads(self) -> list[str]:
        """Return the payloads of the notifications that arrived since the last call, and clear the list."""
        payloads, self.payloads = self.payloads, []
        return payloads

    # --- in the thread --------------------------------------------------------------------

    def _beat(self, connection: Connection, sql: str, values: Mapping[str, Any]) -> None:
        connection.execute(sql, {**values, "node": values["name"], "lock_key": self._lock_key})

    def _begin(self, connection: Connection) -> None:
        """Acquire the lock that shows other nodes that this node is alive, and subscribe to the notifications of the pool.

        The lock key is new: a lost connection may still hold the previous one.
        """
        self._lock_key = secrets.randbits(63)
        one_row(connection, "SELECT pg_advisory_lock(%s)", self._lock_key)
        channel = psycopg.sql.Identifier(channel_of(self._who["pool"]))
        connection.execute(psycopg.sql.SQL("LISTEN {}").format(channel))
        connection.add_notify_handler(lambda notify: self.payloads.append(notify.payload))
        (age,) = one_row(
            connection, "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8"
        )
        self.is_server_new = age < NODE_TIMEOUT_SECONDS
        self.connections += 1
