"""Commands for clusters: `cluster status`, `drain`, `dead-letters`, `repartition`, `release`, `finish-upgrade`."""

from cyclopts import App

from actgent.cli.command_options import Count, Flag
from actgent.cli.serving.serve_options import ClusterOptions
from actgent.journal.cluster_interface import check_cluster_extra

from .command_app import SERVERS, app, run_command

clusters = App(
    name="cluster",
    help="Operate a cluster: status, drain, dead-letters, repartition, release, finish-upgrade.",
    group=SERVERS,
)
app.command(clusters)


@clusters.command(name="status")
def cluster_status(*, json: Flag = False, full: Flag = False, cluster: ClusterOptions | None = None) -> int:
    """Show the nodes and partitions of a cluster. The exit code is 1 if a partition has no owner.

    Args:
        json: Print the status as one JSON object.
        full: Also list each partition.
        cluster: Journal and name of the cluster.
    """
    check_cluster_extra()
    from actgent.cli.serving.cluster_administration import show_status  # noqa: PLC0415

    options = cluster or ClusterOptions()
    return run_command(lambda terminal, _: show_status(options, terminal, json=json, full=full))


@clusters.command(name="drain")
def cluster_drain(node: str, /, *, cluster: ClusterOptions | None = None) -> int:
    """Make a node transfer all its partitions to other nodes and stop. Returns when the node has finished.

    Args:
        node: Name of the node, or the beginning of its name.
        cluster: Journal and name of the cluster.
    """
    check_cluster_extra()
    from actgent.cli.serving.cluster_administration import drain_node  # noqa: PLC0415

    options = cluster or ClusterOptions()
    return run_command(lambda terminal, _: drain_node(options, node, terminal))


@clusters.command(name="repartition")
def cluster_repartition(partitions: Count, *, cluster: ClusterOptions | None = None) -> int:
    """Change the number of partitions while no node runs. Sessions keep their ids, and no request is lost.

    If the command is interrupted, no node starts until it has been run again.

    Args:
        partitions: New number of partitions, a power of two from 1 to 4096.
        cluster: Journal and name of the cluster.
    """
    check_cluster_extra()
    from actgent.cli.serving.cluster_administration import change_partitions  # noqa: PLC0415

    options = cluster or ClusterOptions()
    return run_command(lambda terminal, _: change_partitions(options, partitions, terminal))


@clusters.command(name="release")
def cluster_release(agent: str, /, *, cluster: ClusterOptions | None = None) -> int:
    """Release an agent, so that another cluster of the same database can host it and resume its sessions.

    No node of this cluster may host the agent.

    Args:
        agent: Name of the agent.
        cluster: Journal, and name of the cluster that has hosted the agent so far.
    """
    check_cluster_extra()
    from actgent.cli.serving.cluster_administration import release_agent  # noqa: PLC0415

    options = cluster or ClusterOptions()
    return run_command(lambda terminal, _: release_agent(options, agent, terminal))


@clusters.command(name="finish-upgrade")
def cluster_finish_upgrade(*, cluster: ClusterOptions | None = None) -> int:
    """Switch all nodes to the record format of this release, after the last node of an older release has stopped.

    Args:
        cluster: Journal and name of the cluster.
    """
    check_cluster_extra()
    from actgent.cli.serving.cluster_administration import end_upgrade  # noqa: PLC0415

    options = cluster or ClusterOptions()
    return run_command(lambda terminal, _: end_upgrade(options, terminal))


dead_letters = App(
    name="dead-letters", help="List, redeliver or drop messages that repeatedly crashed their node."
)
clusters.command(dead_letters)


@dead_letters.default
def list_letters(*, json: Flag = False, cluster: ClusterOptions | None = None) -> int:
    """List dead-lettered messages: each one repeatedly crashed its node. The exit code is 1 if one has not been redelivered.

    Args:
        json: Print the list as one JSON array.
        cluster: Journal and name of the cluster.
    """
    check_cluster_extra()
    from actgent.cli.serving.cluster_administration import list_dead_letters  # noqa: PLC0415 - the SDKs take two seconds

    options = cluster or ClusterOptions()
    return run_command(lambda terminal, _: list_dead_letters(options, terminal, json=json))


@dead_letters.command(name="redeliver")
def redeliver_letter(
    message: str, /, *, session: str | None = None, cluster: ClusterOptions | None = None
) -> int:
    """Redeliver a dead-lettered message once to its session, and print the new message id.

    Args:
        message: Message id, as `actgent cluster dead-letters` lists it.
        session: Id of the session, if several sessions have a message with this id.
        cluster: Journal and name of the cluster.
    """
    check_cluster_extra()
    from actgent.cli.serving.cluster_administration import redeliver_dead_letter  # noqa: PLC0415 - the SDKs take two seconds

    options = cluster or ClusterOptions()
    return run_command(lambda terminal, _: redeliver_dead_letter(options, message, terminal, session=session))


@dead_letters.command(name="drop")
def drop_letter(message: str, /, *, session: str | None = None, cluster: ClusterOptions | None = None) -> int:
    """Remove a message from the list. In its session the message stays failed.

    Args:
        message: Message id, as `actgent cluster dead-letters` lists it.
        session: Id of the session, if several sessions have a message with this id.
        cluster: Journal and name of the cluster.
    """
    check_cluster_extra()
    from actgent.cli.serving.cluster_administration import drop_dead_letter  # noqa: PLC0415 - the SDKs take two seconds

    options = cluster or ClusterOptions()
    return run_command(lambda terminal, _: drop_dead_letter(options, message, terminal, session=session))
