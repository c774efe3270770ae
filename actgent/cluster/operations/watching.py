"""The state of a cluster, read from its database by a process that is not a node."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import attrs
import trio

from actgent.errors import ConfigurationError, nearest
from actgent.errors.printable import quoted
from actgent.journal.postgres import (
    ClusterTables,
    NodeStatus,
    layout as layouts,
    mark_leaving,
    partition_of_slot,
    read_cluster_tables,
)

LEAVING = 60.0
"""Seconds that a node has to hand over what it serves."""
LOOK = 0.2
"""Seconds between two looks at whether it did."""


@attrs.frozen(kw_only=True)
class PartitionStatus:
    """A partition."""

    partition: int
    owner: str
    """Name of the node that took it last; empty: none ever did."""
    epoch: int
    since: datetime
    """When it was taken."""
    is_served: bool
    """True: its owner lives, and did not give it back."""
    pending: int
    """Messages that wait for an owner."""
    unfinished: int
    """Sessions that are in the middle of something."""
    lag: float
    """Seconds since the last step of the one of these that has waited longest; 0: there are none."""


@attrs.frozen(kw_only=True)
class ClusterStatus:
    """The state of a pool."""

    layout: layouts.PoolLayout
    nodes: Sequence[NodeStatus]
    partitions: Sequence[PartitionStatus]
    unhosted: dict[str, int]
    """By agent, open sessions of the pool whose agent no live node hosts."""
    suspects: int
    """Sessions in whose turns processes died."""
    dead: int
    """Messages that were given up."""

    @property
    def is_whole(self) -> bool:
        """True if every partition is served, and every session's agent is hosted."""
        return bool(self.nodes) and not self.unhosted and all(each.is_served for each in self.partitions)


async def look_at_cluster(journal: str, pool: str) -> ClusterStatus:
    """Return the state of a pool.

    Args:
        journal: address of the database, `postgresql://...`.
        pool: name of the pool.

    Raises:
        ConfigurationError: no node has been there yet, or the address is none.
        JournalFailed: the database cannot be read.
    """
    tables = await read_cluster_tables(journal, pool)
    layout = await layouts.read_layout(journal, pool)
    hosted = {agent for node in tables.nodes for agent in node.agents}
    return ClusterStatus(
        layout=layout,
        nodes=tables.nodes,
        partitions=_join(tables, layout),
        unhosted={agent: count for agent, count in tables.sessions.items() if agent not in hosted},
        suspects=tables.suspects,
        dead=tables.dead,
    )


async def drain(journal: str, pool: str, name: str) -> str:
    """Have a node hand over all that it serves, and end; returns its whole name when it has.

    Args:
        journal: address of the database.
        pool: name of the pool.
        name: name of the node, or the beginning of it before a `-`.

    Raises:
        ConfigurationError: no node has this name, or several begin so; or it did not leave in time.
        JournalFailed: the database cannot be read or written.
    """
    nodes = (await read_cluster_tables(journal, pool)).nodes
    node = _find(name, sorted(each.name for each in nodes))
    await mark_leaving(journal, pool, node)
    with trio.move_on_after(LEAVING):
        while True:
            tables = await read_cluster_tables(journal, pool)
            owned = [each for each in tables.partitions if each.owner == node and not each.is_given_back]
            if not owned or node not in {each.name for each in tables.nodes}:
                return node
            await trio.sleep(LOOK)
    raise ConfigurationError(f"the node {quoted(node)} was asked to leave, and still serves partitions")


def _find(name: str, known: Sequence[str]) -> str:
    found = [each for each in known if each == name or each.startswith(f"{name}-")]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigurationError(f"several nodes are called {quoted(name)}: {', '.join(found)}")
    raise ConfigurationError(f"there is no node {quoted(name)}: {nearest(name, known)}")


def _join(tables: ClusterTables, layout: layouts.PoolLayout) -> list[PartitionStatus]:
    unfinished: dict[int, int] = {}
    lags: dict[int, float] = {}
    for slot, count in tables.unfinished.items():
        partition = partition_of_slot(slot, layout.partitions)
        unfinished[partition] = unfinished.get(partition, 0) + count
        lags[partition] = max(lags.get(partition, 0.0), tables.lags[slot])
    pending = Counter[int]()
    for slot, count in tables.pending.items():
        pending[partition_of_slot(slot, layout.partitions)] += count
    live = {each.name for each in tables.nodes}
    return [
        PartitionStatus(
            partition=row.partition,
            owner=row.owner,
            epoch=row.epoch,
            since=row.since,
            is_served=row.owner in live and not row.is_given_back,
            pending=pending[row.partition],
            unfinished=unfinished.get(row.partition, 0),
            lag=lags.get(row.partition, 0.0),
        )
        for row in tables.partitions
    ]
