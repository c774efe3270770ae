"""`actgent cluster`: show the cluster, drain nodes, change partitions, and handle dead-lettered messages."""

from collections import Counter

import attrs
import orjson

from actgent.cli.terminal_io import Terminal, one_line
from actgent.cluster.dead_letters import drop_message, resend_dead_letter
from actgent.cluster.pool_operations import drain, finish_upgrade, read_cluster_status, release, repartition
from actgent.errors.text_escaping import counted
from actgent.journal.cluster_interface import ClusterStatus, PartitionStatus
from actgent.journal.postgres.cluster_tables_reader import DeadMessage, read_dead

from .serve_options import ClusterOptions


async def show_status(cluster: ClusterOptions, terminal: Terminal, *, json: bool, full: bool) -> int:
    """Print nodes and partitions of a cluster.

    Return the exit code: 1 if no node owns a partition or hosts an agent with open sessions, else 0.
    """
    status = await read_cluster_status(cluster.journal_url(), cluster.cluster)
    if json:
        terminal.json_line(orjson.dumps(attrs.asdict(status), option=orjson.OPT_INDENT_2).decode())
    else:
        _show(status, terminal, full=full)
    return int(not status.is_whole)


def _show(status: ClusterStatus, terminal: Terminal, *, full: bool) -> None:
    for node in status.nodes:
        agents = ", ".join(one_line(each, 60) for each in node.agents) or "no agents"
        leaving = ", leaving" if node.is_leaving else ""
        terminal.line(
            f"{node.name} at {node.address}: {counted(node.partitions, 'partition')}, {agents}, actgent {node.release}{leaving}"
        )
    if not status.nodes:
        terminal.line("no node is running")
    counts = Counter("served" if each.is_served else "not served" for each in status.partitions)
    served = (
        ", ".join(f"{count} {word}" for word, count in sorted(counts.items())) or "none has been served yet"
    )
    pending, unfinished = (
        sum(each.pending for each in status.partitions),
        sum(each.unfinished for each in status.partitions),
    )
    lag = max((each.lag for each in status.partitions), default=0.0)
    last = f", oldest progress {lag:.0f} s ago" if unfinished else ""
    waits = counted(pending, "message waits for an owner", "messages wait for an owner")
    works = counted(unfinished, "session is unfinished", "sessions are unfinished")
    terminal.line(f"partitions: {served}; {waits}, {works}{last}")
    for agent, count in sorted(status.unhosted.items()):
        sessions = counted(count, "open session")
        terminal.line(f"no node hosts agent {one_line(agent, 60)}, which has {sessions}")
    if status.suspects or status.dead:
        suspects, dead = counted(status.suspects, "suspect session"), counted(status.dead, "dead message")
        terminal.line(f"{suspects}, {dead}")
    layout = status.layout
    terminal.line(
        f"{counted(layout.partitions, 'partition')} in generation {layout.generation}; record format {layout.writes}"
    )
    for each in status.partitions if full else ():
        terminal.line(_line_of(each))


def _line_of(each: PartitionStatus) -> str:
    since, state = each.since.isoformat(timespec="seconds"), "" if each.is_served else ", not served"
    lag = f", lag {each.lag:.0f} s" if each.unfinished else ""
    return (
        f"  {each.partition}: {each.owner} since {since}, epoch {each.epoch}, {each.pending} pending, "
        f"{each.unfinished} unfinished{lag}{state}"
    )


async def drain_node(cluster: ClusterOptions, node: str, terminal: Terminal) -> int:
    """Make a node transfer its partitions to other nodes and stop. Wait until the node has stopped."""
    name = await drain(cluster.journal_url(), cluster.cluster, node)
    terminal.notice(f"{name} has handed over all its partitions")
    return 0


async def change_partitions(cluster: ClusterOptions, partitions: int, terminal: Terminal) -> int:
    """Change the number of partitions of a cluster, and print the previous number. No node may run."""
    before = await repartition(cluster.journal_url(), cluster.cluster, partitions)
    terminal.notice(f"the cluster has {counted(partitions, 'partition')}; it had {before}")
    return 0


async def release_agent(cluster: ClusterOptions, agent: str, terminal: Terminal) -> int:
    """Release an agent, so that another cluster of the same database can host it and resume its sessions."""
    await release(cluster.journal_url(), cluster.cluster, agent)
    terminal.notice(
        f"released {one_line(agent, 100)}: the next cluster that starts this agent resumes its sessions"
    )
    return 0


async def end_upgrade(cluster: ClusterOptions, terminal: Terminal) -> int:
    """Switch all nodes of a cluster to the record format of this release. Nodes of older releases cannot join afterwards."""
    form = await finish_upgrade(cluster.journal_url(), cluster.cluster)
    terminal.notice(f"all nodes now write record format {form}; nodes of older releases can no longer join")
    return 0


async def list_dead_letters(cluster: ClusterOptions, terminal: Terminal, *, json: bool) -> int:
    """Print the dead-lettered messages of a cluster, oldest first. Return 1 if one was not redelivered yet, else 0."""
    dead = await read_dead(cluster.journal_url())
    if json:
        terminal.json_line(
            orjson.dumps([attrs.asdict(each) for each in dead], option=orjson.OPT_INDENT_2).decode()
        )
    else:
        for line in map(_line, dead):
            terminal.line(line)
        if not dead:
            terminal.line("no dead-lettered messages")
    return int(any(each.retried_as is None for each in dead))


def _line(dead: DeadMessage) -> str:
    session = one_line(f"{dead.agent}/{dead.session_id}", 80)
    again = "" if dead.retried_as is None else f"; redelivered as {one_line(dead.retried_as, 100)}"
    at = dead.at.isoformat(timespec="seconds")
    return f"{one_line(dead.message_id, 100)}  {at}  {session}: {one_line(dead.reason, 200)}{again}"


async def redeliver_dead_letter(
    cluster: ClusterOptions, message_id: str, terminal: Terminal, *, session: str | None
) -> int:
    """Send a dead-lettered message to its session again, and print its new id on standard output."""
    again = await resend_dead_letter(cluster.journal_url(), cluster.cluster, message_id, session_id=session)
    terminal.notice(f"{one_line(message_id, 100)} was redelivered with the id")
    terminal.line(again)
    return 0


async def drop_dead_letter(
    cluster: ClusterOptions, message_id: str, terminal: Terminal, *, session: str | None
) -> int:
    """Remove a message from the list of dead letters. In its session the message stays failed."""
    await drop_message(cluster.journal_url(), message_id, session_id=session)
    terminal.notice(f"{one_line(message_id, 100)} was dropped; its session keeps it as failed")
    return 0
