"""Commands about several machines: `node`, `cluster`."""

from cyclopts import App

from actgent.cli.serving.cluster_place import ClusterPlace
from actgent.journal.membership import check_cluster_extra

from .base import Count, Flag, app, run_command


@app.command
def node(target: str, /, *, name: str | None = None, place: ClusterPlace | None = None) -> int:
    """Run agents as a node of a cluster, to the first signal or until `actgent cluster drain`.

    Each session lives in one node at a time; when that one ends or dies, another one goes on with it.

    Args:
        target: An agent's folder, a folder of such, or a Python file that defines agents.
        name: How the node's name begins; the machine's without it.
        place: Where the cluster is.
    """
    check_cluster_extra()
    from actgent.cli.serving.node import NodeOptions, serve_node  # noqa: PLC0415 - the SDKs take two seconds

    options = NodeOptions(target=target, name=name, place=place or ClusterPlace())
    return run_command(lambda terminal, shutdown: serve_node(options, terminal, shutdown))


clusters = App(
    name="cluster", help="Look after a cluster: status, drain, dead, repartition, release, finish-upgrade."
)
app.command(clusters)


@clusters.command(name="status")
def cluster_status(*, json: Flag = False, full: Flag = False, place: ClusterPlace | None = None) -> int:
    """Show the nodes and partitions of a cluster. 1 if a partition is served by nobody.

    Args:
        json: Write one JSON object, for programs.
        full: Name each partition, too.
        place: Where the cluster is.
    """
    check_cluster_extra()
    from actgent.cli.serving.cluster import show_status  # noqa: PLC0415

    where = place or ClusterPlace()
    return run_command(lambda terminal, _: show_status(where, terminal, json=json, full=full))


@clusters.command(name="drain")
def cluster_drain(node: str, /, *, place: ClusterPlace | None = None) -> int:
    """Have a node hand over all that it serves, and end; returns when it has.

    Args:
        node: Its name, or how it begins.
        place: Where the cluster is; its journal is not asked for.
    """
    check_cluster_extra()
    from actgent.cli.serving.cluster import drain_node  # noqa: PLC0415

    where = place or ClusterPlace()
    return run_command(lambda terminal, _: drain_node(where, node, terminal))


@clusters.command(name="repartition")
def cluster_repartition(partitions: Count, *, place: ClusterPlace | None = None) -> int:
    """Give a cluster another number of partitions while no node runs; sessions keep their ids, and no request is lost.

    Where it breaks off no node starts until it was done again.

    Args:
        partitions: How many: 1, 2, 4, 8 ... or 4096.
        place: Where the cluster is.
    """
    check_cluster_extra()
    from actgent.cli.serving.cluster import change_partitions  # noqa: PLC0415

    where = place or ClusterPlace()
    return run_command(lambda terminal, _: change_partitions(where, partitions, terminal))


@clusters.command(name="release")
def cluster_release(agent: str, /, *, place: ClusterPlace | None = None) -> int:
    """Let another pool of the same database host an agent, and go on with its sessions, once no node of this pool hosts it.

    Args:
        agent: Its name.
        place: Where the cluster is, and which pool has hosted it so far.
    """
    check_cluster_extra()
    from actgent.cli.serving.cluster import release_agent  # noqa: PLC0415

    where = place or ClusterPlace()
    return run_command(lambda terminal, _: release_agent(where, agent, terminal))


@clusters.command(name="finish-upgrade")
def cluster_finish_upgrade(*, place: ClusterPlace | None = None) -> int:
    """Have all nodes write what this release reads, once none of an older one is there.

    Args:
        place: Where the cluster is.
    """
    check_cluster_extra()
    from actgent.cli.serving.cluster import end_upgrade  # noqa: PLC0415

    where = place or ClusterPlace()
    return run_command(lambda terminal, _: end_upgrade(where, terminal))


dead_letters = App(
    name="dead",
    help="Name the messages that were given up, as each process died of them. 1 if one was not said again.",
)
clusters.command(dead_letters)


@dead_letters.default
def dead_list(*, json: Flag = False, place: ClusterPlace | None = None) -> int:
    """Name the messages that were given up, as each process died of them. 1 if one was not said again.

    Args:
        json: Write one JSON array, for programs.
        place: Where the cluster is; its broker is not asked for.
    """
    check_cluster_extra()
    from actgent.cli.serving.cluster import list_dead  # noqa: PLC0415 - the SDKs take two seconds

    where = place or ClusterPlace()
    return run_command(lambda terminal, _: list_dead(where, terminal, json=json))


@dead_letters.command(name="retry")
def dead_retry(message: str, /, *, session: str | None = None, place: ClusterPlace | None = None) -> int:
    """Have a message said again to its session, under a new id, which is printed; however often, it is said once more.

    Args:
        message: Its id, as `actgent cluster dead` names it.
        session: Its session, where several have a message of this id.
        place: Where the cluster is.
    """
    check_cluster_extra()
    from actgent.cli.serving.cluster import say_again  # noqa: PLC0415 - the SDKs take two seconds

    where = place or ClusterPlace()
    return run_command(lambda terminal, _: say_again(where, message, terminal, session=session))


@dead_letters.command(name="drop")
def dead_drop(message: str, /, *, session: str | None = None, place: ClusterPlace | None = None) -> int:
    """Take a message off the list; its session keeps it as failed.

    Args:
        message: Its id, as `actgent cluster dead` names it.
        session: Its session, where several have a message of this id.
        place: Where the cluster is; its broker is not asked for.
    """
    check_cluster_extra()
    from actgent.cli.serving.cluster import drop  # noqa: PLC0415 - the SDKs take two seconds

    where = place or ClusterPlace()
    return run_command(lambda terminal, _: drop(where, message, terminal, session=session))
