"""Changes of a whole pool: its wire version, its number of partitions, and its claims on agents."""

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import quoted
from actgent.journal.cluster_interface import NodeStatus
from actgent.journal.postgres import pool_layout as layouts, read_cluster_tables


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
    if not await layouts.forget_host(journal, pool, agent):
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
    before, after = await layouts.begin_move(journal, pool, partitions)
    if before.generation != after.generation:
        await layouts.end_move(journal, pool, after.generation)
    return before.partitions


async def _nodes(journal: str, pool: str) -> tuple[NodeStatus, ...]:
    return (await read_cluster_tables(journal, pool)).nodes
