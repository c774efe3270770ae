"""Status of a cluster, read from its database by a process that is not a node; and draining of a node."""

from collections import Counter
from collections.abc import Sequence

import trio

from actgent.errors import ConfigurationError, nearest
from actgent.errors.text_escaping import quoted
from actgent.journal.cluster_interface import ClusterStatus, PartitionStatus, PoolLayout
from actgent.journal.postgres import (
    ClusterTables,
    mark_leaving,
    partition_of_slot,
    pool_layout as layouts,
    read_cluster_tables,
)

DRAIN_SECONDS = 60.0
"""Seconds for which `drain` waits until the node has given its partitions back."""
POLL_SECONDS = 0.2
"""Poll interval in seconds of `drain`."""


async def read_cluster_status(journal: str, pool: str) -> ClusterStatus:
    """Read the status of a pool.

    Args:
        journal: Address of the database, `postgresql://...`.
        pool: Name of the pool.

    Raises:
        ConfigurationError: No node of the pool has run yet, or the address is invalid.
        JournalFailed: The database cannot be read.
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
    """Make a node give all its partitions back and stop. Wait until it has given them back, and return its full name.

    Args:
        journal: Address of the database.
        pool: Name of the pool.
        name: Name of the node, or its prefix before a `-`.

    Raises:
        ConfigurationError: No node or several nodes match the name, or the node did not give its partitions back in time.
        JournalFailed: The database cannot be read or written.
    """
    nodes = (await read_cluster_tables(journal, pool)).nodes
    node = _find(name, sorted(each.name for each in nodes))
    await mark_leaving(journal, pool, node)
    with trio.move_on_after(DRAIN_SECONDS):
        while True:
            tables = await read_cluster_tables(journal, pool)
            owned = [each for each in tables.partitions if each.owner == node and not each.is_given_back]
            if not owned or node not in {each.name for each in tables.nodes}:
                return node
            await trio.sleep(POLL_SECONDS)
    raise ConfigurationError(
        f"the node {quoted(node)} is leaving, but has not given all partitions back in time: repeat the command to wait for it"
    )


def _find(name: str, known: Sequence[str]) -> str:
    """Return the full name of the only node in `known` that matches `name`. Raise `ConfigurationError` otherwise."""
    found = [each for each in known if each == name or each.startswith(f"{name}-")]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigurationError(
            f"several nodes match the name {quoted(name)}: pass the full name of one of {', '.join(found)}"
        )
    raise ConfigurationError(f"the cluster has no node {quoted(name)}: {nearest(name, known)}")


def _join(tables: ClusterTables, layout: PoolLayout) -> list[PartitionStatus]:
    """Return the status of each partition: its owner, and its pending messages and unfinished sessions."""
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
