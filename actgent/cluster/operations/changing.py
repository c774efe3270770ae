"""Changes of a whole pool: the form in which it writes, the number of its partitions, and the pool that hosts an agent."""

from actgent.errors import ConfigurationError
from actgent.errors.printable import quoted
from actgent.journal.postgres import NodeStatus, layout as layouts, read_cluster_tables


async def finish_upgrade(journal: str, pool: str) -> int:
    """Have a pool write what this release reads, for good; returns the form.

    Raises:
        ConfigurationError: a live node does not read it, or the pool writes a higher form.
        JournalFailed: nothing has changed.
    """
    layouts.check_layout(await layouts.read_layout(journal, pool), pool, reads=layouts.READS)
    nodes = await _nodes(journal, pool)
    behind = [f"{each.name} (actgent {each.release})" for each in nodes if each.reads < layouts.READS]
    if behind:
        raise ConfigurationError(
            f"the form {layouts.READS} is not read by {', '.join(behind)}: drain what is of an older release first"
        )
    await layouts.raise_form(journal, pool, layouts.READS)
    return layouts.READS


async def release(journal: str, pool: str, agent: str) -> None:
    """Let another pool of the same database resume the sessions of an agent, once no node of this one hosts it.

    Raises:
        ConfigurationError: a live node hosts it, or the pool never did.
        JournalFailed: nothing has changed.
    """
    if hosting := [each.name for each in await _nodes(journal, pool) if agent in each.agents]:
        raise ConfigurationError(
            f"agent {quoted(agent)} is hosted by {', '.join(hosting)}: drain and end them, or start them without it, first"
        )
    if not await layouts.forget_host(journal, pool, agent):
        raise ConfigurationError(f"the pool {quoted(pool)} of this database hosts no agent {quoted(agent)}")


async def repartition(journal: str, pool: str, partitions: int) -> int:
    """Give a pool another number of partitions while no node runs; returns the number of before.

    Where this breaks off, no node can run until it was repeated.

    Raises:
        ConfigurationError: a node lives, another change has begun, or there cannot be so many partitions.
        JournalFailed: it may have begun.
    """
    if nodes := [each.name for each in await _nodes(journal, pool)]:
        raise ConfigurationError(
            f"partitions change while no node runs, and there are {', '.join(nodes)}: drain and end them first"
        )
    before, after = await layouts.begin_move(journal, pool, partitions)
    if before.generation != after.generation:
        await layouts.end_move(journal, pool, after.generation)
    return before.partitions


async def _nodes(journal: str, pool: str) -> tuple[NodeStatus, ...]:
    return (await read_cluster_tables(journal, pool)).nodes
