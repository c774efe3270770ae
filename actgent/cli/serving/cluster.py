"""`actgent cluster`: its nodes and partitions, nodes that are to leave, and messages that were given up."""

from collections import Counter

import attrs
import orjson

from actgent.cli.terminal import Terminal, one_line
from actgent.cluster.operations.changing import finish_upgrade, release, repartition
from actgent.cluster.operations.dead import drop_message, retry_dead
from actgent.cluster.operations.watching import (
    ClusterStatus,
    PartitionStatus,
    look_at_cluster,
    open_cluster_watch,
)
from actgent.errors.printable import counted
from actgent.journal.postgres import DeadMessage, read_dead

from .cluster_place import ClusterPlace


async def show_status(place: ClusterPlace, terminal: Terminal, *, json: bool, full: bool) -> int:
    """Show nodes and partitions; 1 if a partition is served by nobody."""
    status = await look_at_cluster(place.broker_url(), place.journal_url(), place.pool)
    if json:
        terminal.raw(orjson.dumps(attrs.asdict(status), option=orjson.OPT_INDENT_2).decode())
    else:
        _show(status, terminal, full=full)
    return int(any(not each.is_served for each in status.partitions) or not status.nodes)


def _show(status: ClusterStatus, terminal: Terminal, *, full: bool) -> None:
    for node in status.nodes:
        agents = ", ".join(one_line(each, 60) for each in node.agents) or "no agents"
        leaving = ", leaving" if node.is_leaving else ""
        terminal.line(
            f"{node.node}: {counted(len(node.owned), 'partition')}, {counted(node.turns, 'turn')}, {agents}, actgent {node.release}{leaving}"
        )
    if not status.nodes:
        terminal.line("no node is there")
    counts = Counter("served" if each.is_served else "not served" for each in status.partitions)
    said = ", ".join(f"{count} {word}" for word, count in sorted(counts.items())) or "none was ever served"
    waiting, unfinished = (
        sum(each.waiting for each in status.partitions),
        sum(each.unfinished for each in status.partitions),
    )
    lag = max((each.lag for each in status.partitions), default=0.0)
    behind = f", the last step of one {lag:.0f} s ago" if unfinished else ""
    waits = counted(waiting, "request waits", "requests wait")
    works = counted(unfinished, "session is at work", "sessions are at work")
    terminal.line(f"partitions: {said}; {waits}, {works}{behind}")
    layout = status.layout
    terminal.line(
        f"{counted(layout.partitions, 'partition')} in generation {layout.generation}; all write the form {layout.writes}"
    )
    for each in status.partitions if full else ():
        terminal.line(_line_of(each))


def _line_of(each: PartitionStatus) -> str:
    since, state = each.since.isoformat(timespec="seconds"), "" if each.is_served else ", not served"
    behind = f", lag {each.lag:.0f} s" if each.unfinished else ""
    return (
        f"  {each.partition}: {each.owner} since {since}, epoch {each.epoch}, {each.waiting} waiting, "
        f"{each.unfinished} at work{behind}{state}"
    )


async def drain_node(place: ClusterPlace, node: str, terminal: Terminal) -> int:
    """Have a node hand over what it serves, and end."""
    async with open_cluster_watch(place.broker_url(), place.pool) as watch:
        name = await watch.drain(node)
    terminal.notice(f"{name} has handed over all that it served")
    return 0


async def change_partitions(place: ClusterPlace, partitions: int, terminal: Terminal) -> int:
    """Give a pool another number of partitions while no node runs."""
    moved = await repartition(place.journal_url(), place.broker_url(), place.pool, partitions)
    there = counted(partitions, "partition is there", "partitions are there")
    changed = counted(moved, "request has changed its queue", "requests have changed their queue")
    terminal.notice(f"{there}, and {changed}")
    return 0


async def release_agent(place: ClusterPlace, agent: str, terminal: Terminal) -> int:
    """Let another pool of the same database host an agent."""
    await release(place.journal_url(), place.broker_url(), place.pool, agent)
    terminal.notice(f"the pool that starts {one_line(agent, 100)} next goes on with its sessions")
    return 0


async def end_upgrade(place: ClusterPlace, terminal: Terminal) -> int:
    """Have a pool write the form of this release."""
    form = await finish_upgrade(place.journal_url(), place.broker_url(), place.pool)
    terminal.notice(f"all nodes write the form {form} from now on; older releases can be no nodes any more")
    return 0


async def list_dead(place: ClusterPlace, terminal: Terminal, *, json: bool) -> int:
    """Name the messages that were given up, oldest first. 1 if one was not said again."""
    dead = await read_dead(place.journal_url())
    if json:
        terminal.raw(orjson.dumps([attrs.asdict(each) for each in dead], option=orjson.OPT_INDENT_2).decode())
    else:
        for line in map(_line, dead):
            terminal.line(line)
        if not dead:
            terminal.line("no message was given up")
    return int(any(each.retried_as is None for each in dead))


def _line(dead: DeadMessage) -> str:
    session = one_line(f"{dead.agent}/{dead.session_id}", 80)
    again = "" if dead.retried_as is None else f"; said again as {one_line(dead.retried_as, 100)}"
    at = dead.at.isoformat(timespec="seconds")
    return f"{one_line(dead.message_id, 100)}  {at}  {session}: {one_line(dead.reason, 200)}{again}"


async def say_again(place: ClusterPlace, message_id: str, terminal: Terminal, *, session: str | None) -> int:
    """Have a message said again; its new id goes to standard output."""
    journal, broker = place.journal_url(), place.broker_url()
    again = await retry_dead(journal, broker, place.pool, message_id, session_id=session)
    terminal.notice(f"{one_line(message_id, 100)} was said again under the id")
    terminal.line(again)
    return 0


async def drop(place: ClusterPlace, message_id: str, terminal: Terminal, *, session: str | None) -> int:
    """Take a message off the list."""
    await drop_message(place.journal_url(), message_id, session_id=session)
    terminal.notice(f"{one_line(message_id, 100)} is dropped; its session keeps it as failed")
    return 0
