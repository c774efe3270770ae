"""`actgent node`: agents as a node of a cluster, to the first signal or until it is drained."""

import attrs

from actgent.cli.folders import agents_at
from actgent.cli.signals import Shutdown
from actgent.cli.terminal import Terminal, one_line
from actgent.journal.postgres import PartitionedJournal
from actgent.runtime.runtime import open_runtime

from .cluster_place import NODE_GRACE, ClusterPlace


@attrs.frozen(kw_only=True)
class NodeOptions:
    """What `actgent node` was told."""

    target: str
    place: ClusterPlace
    name: str | None = None


async def serve_node(options: NodeOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Be a node, to the first signal or until somebody drains it; then what runs ends, or goes on at another node."""
    agents = agents_at(options.target)
    shutdown.grace = NODE_GRACE
    place = options.place
    async with open_runtime(
        journal=place.journal_url(), broker=place.broker_url(), pool=place.pool, node=options.name
    ) as runtime:
        async with runtime.starting():
            for agent in agents:
                await runtime.start(agent)
        names = ", ".join(one_line(agent.name, 60) for agent in agents)
        journal = runtime.journal
        assert isinstance(journal, PartitionedJournal)  # noqa: S101 - there is a broker
        terminal.line(f"{names} at node {journal.node}; Ctrl-C hands over what runs, and ends it")
        with shutdown.waiting():
            await journal.left.wait()
            terminal.notice("the node was drained")
    return 0
