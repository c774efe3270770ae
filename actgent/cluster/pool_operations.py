"""Operations on a pool from a process that is not a node: status, drain, record format, partitions, claims on agents."""

from collections import Counter
from collections.abc import Sequence

import trio

from actgent.errors import ConfigurationError, did_you_mean_or_list
from actgent.errors.text_escaping import quoted
from actgent.journal.cluster_interface import ClusterStatus, NodeStatus, PartitionStatus, PoolLayout
from actgent.journal.postgres import cluster_pool_layout as layouts
from actgent.journal.postgres.cluster_tables_reader import ClusterTables, mark_leaving, read_cluster_tables
from actgent.journal.postgres.session_partitioning import partition_of_slot

DRAIN_SECONDS = 60.0
"""Seconds for which `drain` waits until the node has given its partitions back."""
POLL_SECONDS = 0.2
"""Poll interval in seconds of `drain`."""


async def read_cluster_status(journal: str, pool: str) -> ClusterStatus:
    """Read the status of a cluster pool, its nodes and its partitions from the database.

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
        partitions=_partition_statuses(tables, layout),
        unhosted={agent: count for agent, count in tables.sessions.items() if agent not in hosted},
        suspects=tables.suspects,
        dead=tables.dead,
    )


async def drain(journal: str, pool: str, name: str) -> str:
    """Make a node release all its partitions and stop. Wait until it has released them, and return its full name.

    Args:
        journal: Address of the database.
        pool: Name of the pool.
        name: Name of the node, or its prefix before a `-`.

    Raises:
        ConfigurationError: No node or several nodes match the name, or the node did not give its partitions back in time.
        JournalFailed: The database cannot be read or written.
    """
    nodes = await _nodes(journal, pool)
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
    """Return the full name of the node in `known` that matches `name`. Raise `ConfigurationError` if not exactly one matches."""
    found = [each for each in known if each == name or each.startswith(f"{name}-")]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigurationError(
            f"several nodes match the name {quoted(name)}: pass the full name of one of {', '.join(found)}"
        )
    raise ConfigurationError(f"the cluster has no node {quoted(name)}: {did_you_mean_or_list(name, known)}")


def _partition_statuses(tables: ClusterTables, layout: PoolLayout) -> list[PartitionStatus]:
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


async def finish_upgrade(journal: str, pool: str) -> int:
    """Raise the record format that a pool writes to the newest format of this release, and return the format.

    The format cannot be lowered again.

    Raises:
        ConfigurationError: A live node cannot read this format, or the pool already writes a newer format.
        JournalFailed: The database failed; the pool was not changed.
    """
    layouts.check_layout(await layouts.read_layout(journal, pool), pool, reads=layouts.READS)
    nodes = await _nodes(journal, pool)
    behind = [f"{each.name} (actgent {each.release})" for each in nodes if each.reads < layouts.READS]
    if behind:
        raise ConfigurationError(
            f"record format {layouts.READS} cannot be read by {', '.join(behind)}: drain the nodes of older releases first"
        )
    await layouts.raise_record_format(journal, pool, layouts.READS)
    return layouts.READS


async def release(journal: str, pool: str, agent: str) -> None:
    """Release a pool's claim on an agent, so that another pool of the same database can host the agent's sessions.

    Raises:
        ConfigurationError: A live node of the pool hosts the agent, or the pool never hosted it.
        JournalFailed: The database failed; the claim was not changed.
    """
    if hosting := [each.name for each in await _nodes(journal, pool) if agent in each.agents]:
        raise ConfigurationError(
            f"agent {quoted(agent)} is hosted by {', '.join(hosting)}: first drain and stop these nodes, or restart them without the agent"
        )
    if not await layouts.release_agent_claim(journal, pool, agent):
        raise ConfigurationError(f"the pool {quoted(pool)} of this database hosts no agent {quoted(agent)}")


async def repartition(journal: str, pool: str, partitions: int) -> int:
    """Change the number of partitions of a pool while no node runs. Return the previous number.

    If the change is interrupted, no node can run until the change is repeated.

    Raises:
        ConfigurationError: A node is alive, another change is in progress, or the number of partitions is not allowed.
        JournalFailed: The database failed; the change may have begun.
    """
    if nodes := [each.name for each in await _nodes(journal, pool)]:
        raise ConfigurationError(
            f"the number of partitions can only change while no node runs, but {', '.join(nodes)} run: drain and end them first"
        )
    before, after = await layouts.begin_repartitioning(journal, pool, partitions)
    if before.generation != after.generation:
        await layouts.end_repartitioning(journal, pool, after.generation)
    return before.partitions


async def _nodes(journal: str, pool: str) -> tuple[NodeStatus, ...]:
    return (await read_cluster_tables(journal, pool)).nodes
