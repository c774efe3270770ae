"""Cached nodes of a pool and owners of its partitions.

Each request reads `PoolDirectory` to find the owner of its session. A node's membership or `follow_pool` keeps it current.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping

import attrs
import trio

from actgent.journal.postgres.node_table import NodeRow, PartitionOwner
from actgent.journal.postgres.session_partitioning import partition_of_slot, slot_of

MAX_DEAD_NODES = 64
"""Maximum number of dead nodes whose names are kept."""
Refresh = Callable[[], Awaitable[None]]


@attrs.frozen(kw_only=True)
class Owner:
    """The owner of a partition, as last read from the database."""

    partition: int
    epoch: int
    """Ownership epoch: it grows with each change of the owner."""
    node: NodeRow | None
    """Row of the node that owns the partition; None if no live node owns it at the moment."""


class PoolDirectory:
    """Nodes and partition owners of a pool, cached in memory and kept current by LISTEN and by polling.

    Example: `directory.owner_of(session_id).node` is the node to which a request for a session goes.
    """

    def __init__(self, name: str, partitions: int, refresh: Refresh) -> None:
        """Create a directory without nodes and owners. `refresh` reads them from the database.

        Args:
            name: Name of this node; empty if this process is not a node of the pool.
            partitions: Number of partitions of the pool.
            refresh: Reads the tables again, and calls `update`.
        """
        self.name = name
        self.partitions = partitions
        self.nodes: Mapping[str, NodeRow] = {}
        """Live nodes of the pool, by name."""
        self.calm_since = trio.current_time()
        """Monotonic time in seconds at which the last death of a node was seen, or at which this directory was created."""
        self._dead: deque[str] = deque(maxlen=MAX_DEAD_NODES)
        """Names of the last nodes that were seen to die."""
        self._missing: set[str] = set()
        """Names of owners that are not live, and have not given their partitions back."""
        self._owners: Mapping[int, PartitionOwner] = {}
        self._serving: set[int] = set()
        self._refresh = refresh
        self._changed = trio.Event()

    def partition_of(self, session_id: str) -> int:
        """Return the number of the partition to which a session belongs."""
        return partition_of_slot(slot_of(session_id), self.partitions)

    def owner_of(self, session_id: str) -> Owner:
        """Return the owner of the partition of a session.

        Its `node` is None if no live node owns the partition.
        """
        return self.owner_of_partition(self.partition_of(session_id))

    def owner_of_partition(self, partition: int) -> Owner:
        """Return the owner of a partition. Its `node` is None if no live node owns the partition."""
        row = self._owners.get(partition)
        if row is None:
            return Owner(partition=partition, epoch=0, node=None)
        node = None if row.is_given_back else self.nodes.get(row.owner)
        return Owner(partition=partition, epoch=row.epoch, node=node)

    def is_ours(self, session_id: str) -> bool:
        """Return True if this node owns the partition of a session and serves it now."""
        return self.partition_of(session_id) in self._serving

    async def refresh(self) -> None:
        """Read the nodes and the partition owners from the database again.

        Raises:
            JournalFailed: The database does not answer.
        """
        await self._refresh()

    def is_dead(self, node: str) -> bool:
        """Return True if a node was seen to die. A node that left as planned did not die."""
        return node in self._dead and node not in self.nodes

    async def wait_changed(self) -> None:
        """Wait until a node or an owner changes, or until this node starts or stops serving a partition."""
        await self._changed.wait()

    # --- for the node --------------------------------------------------------------------

    def update(self, nodes: Iterable[NodeRow], owners: Mapping[int, PartitionOwner]) -> None:
        """Replace the live nodes and the partition owners, and store which nodes died. Wake `wait_changed` after a change.

        Most nodes acquire no partition of a dead node, so they learn of its death only from its missing row.
        """
        known = {each.name: each for each in nodes}
        missing = {each.owner for each in owners.values() if not each.is_given_back} - {"", *known}
        gone = {
            name
            for name, row in self.nodes.items()
            if name not in known and (not row.is_leaving or self._has_lost_partitions(name, owners))
        }
        if dead := gone | (missing - self._missing):
            self.calm_since = trio.current_time()
            self._dead.extend(dead)
        self._missing = missing
        if (known, owners) != (self.nodes, self._owners):
            self.nodes, self._owners = known, owners
            self._notify_changed()

    def set_serving(self, partitions: Iterable[int]) -> None:
        """Replace the numbers of the partitions that this node serves. Wake `wait_changed` if the numbers have changed."""
        if (serving := set(partitions)) != self._serving:
            self._serving = serving
            self._notify_changed()

    def _has_lost_partitions(self, node: str, owners: Mapping[int, PartitionOwner]) -> bool:
        """Return True if other nodes have acquired partitions that `node` had not released when it was last alive."""
        return any(
            before.owner == node
            and not before.is_given_back
            and owners.get(number, before).epoch != before.epoch
            for number, before in self._owners.items()
        )

    def _notify_changed(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
