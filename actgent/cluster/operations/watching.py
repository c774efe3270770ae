"""A cluster seen from outside: its nodes by their beacons, its partitions by the database, its queues by the broker."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import attrs
import trio
from pamqp import commands

from actgent.cluster.amqp import Channel, ChannelClosed, Connection, open_connection, parse_broker
from actgent.cluster.members import EVERY, Members
from actgent.cluster.queues import beacon_exchange, partition_queue, shared_queue
from actgent.cluster.wire import Beacon, Leave, decode_message, encode_message, properties
from actgent.errors import ConfigurationError, nearest
from actgent.errors.printable import quoted
from actgent.journal.postgres import ClusterTables, layout as layouts, partition_of_slot, read_cluster_tables

HEARING = 3 * EVERY
"""Seconds in which each node that is there has said so."""
LEAVING = 60.0
"""Seconds that a node has to hand over what it serves."""


@attrs.frozen(kw_only=True)
class PartitionStatus:
    """A partition."""

    partition: int
    owner: str
    """Who took it last; empty: nobody ever had it."""
    epoch: int
    since: datetime
    """When it was taken."""
    is_served: bool
    """True: a node that is there says that it serves it."""
    waiting: int
    """Requests that nobody has."""
    unfinished: int
    """Sessions that are in the middle of something."""
    lag: float
    """Seconds since the last step of the one of these that has waited longest; 0: there are none."""


@attrs.frozen(kw_only=True)
class ClusterStatus:
    """How a cluster is."""

    layout: layouts.PoolLayout
    nodes: Sequence[Beacon]
    partitions: Sequence[PartitionStatus]


class ClusterWatch:
    """Who looks at a cluster."""

    def __init__(self, connection: Connection, channel: Channel, pool: str) -> None:
        self._connection, self._channel, self._pool = connection, channel, pool
        self._members = Members()

    async def nodes(self, seconds: float = HEARING) -> dict[str, Beacon]:
        """The nodes that are there, after listening for so long; none at once where nobody takes from the queue of all."""
        if (shared := await self._look(shared_queue(self._pool).name)) is None or not shared.consumer_count:
            return {}
        exchange = beacon_exchange(self._pool)
        await self._channel.declare_exchange(exchange, "fanout")
        queue = (await self._channel.declare_queue(exclusive=True, auto_delete=True)).queue or ""
        await self._channel.bind(queue, exchange)
        with trio.move_on_after(seconds):
            async with await self._channel.consume(queue) as consumer:
                async for delivery in consumer:
                    delivery.acknowledge()
                    message = decode_message(delivery.body, delivery.properties)
                    if isinstance(message, Beacon):
                        self._members.hear(message, trio.current_time())
        return dict(sorted(self._members.known(trio.current_time()).items()))

    async def waiting(self, partition: int, generation: int) -> int:
        """Requests in the queue of a partition, without its token, which lies there while nobody has it; 0 if there is no queue."""
        form = partition_queue(self._pool, generation, partition, self._connection.agreed.version)
        queue = await self._look(form.name)
        if queue is None or not queue.message_count:
            return 0
        return queue.message_count - (not queue.consumer_count)

    async def _look(self, queue: str) -> commands.Queue.DeclareOk | None:
        """What the broker says of a queue; None: there is none."""
        channel = await self._connection.open_channel()
        try:
            return await channel.declare_queue(queue, passive=True)
        except ChannelClosed:
            return None
        finally:
            channel.close()

    async def drain(self, name: str) -> str:
        """Have a node hand over all that it serves, and end; returns its whole name when it has.

        Raises:
            ConfigurationError: there is no such node, or several begin so; or it has not left in time.
        """
        node = _find(name, sorted(await self.nodes()))
        channel = await self._connection.open_channel(confirms=True)
        await channel.publish(
            "", encode_message(Leave(node=node)), properties(), exchange=beacon_exchange(self._pool)
        )
        with trio.move_on_after(LEAVING):
            while (beacon := (await self.nodes()).get(node)) is not None and (
                beacon.owned or not beacon.is_leaving
            ):
                await trio.lowlevel.checkpoint()
            return node
        raise ConfigurationError(f"the node {quoted(node)} was asked to leave, and still serves partitions")


def _find(name: str, known: Sequence[str]) -> str:
    found = [each for each in known if each == name or each.startswith(f"{name}-")]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigurationError(f"several nodes are called {quoted(name)}: {', '.join(found)}")
    raise ConfigurationError(f"there is no node {quoted(name)}: {nearest(name, known)}")


@asynccontextmanager
async def open_cluster_watch(broker: str, pool: str) -> AsyncGenerator[ClusterWatch, None]:
    """An `async with` block that looks at the cluster of a broker.

    Raises:
        BrokerLost: the broker cannot be reached.
        ConfigurationError: it lets nobody in, or the address is none.
    """
    async with open_connection(parse_broker(broker), name="actgent cluster") as connection:
        yield ClusterWatch(connection, await connection.open_channel(prefetch=100), pool)


async def look_at_cluster(broker: str, journal: str, pool: str) -> ClusterStatus:
    """How a cluster is just now; raises as `open_cluster_watch`, and `JournalFailed`."""
    tables = await read_cluster_tables(journal, pool)
    layout = await layouts.read_layout(journal, pool)
    async with open_cluster_watch(broker, pool) as watch:
        nodes = await watch.nodes()
        waiting = {
            row.partition: await watch.waiting(row.partition, layout.generation) for row in tables.partitions
        }
    there, partitions = tuple(nodes.values()), tuple(_join(tables, layout, nodes, waiting))
    return ClusterStatus(layout=layout, nodes=there, partitions=partitions)


def _join(
    tables: ClusterTables, layout: layouts.PoolLayout, nodes: dict[str, Beacon], waiting: dict[int, int]
) -> list[PartitionStatus]:
    unfinished: dict[int, int] = {}
    lags: dict[int, float] = {}
    for slot, count in tables.unfinished.items():
        partition = partition_of_slot(slot, layout.partitions)
        unfinished[partition] = unfinished.get(partition, 0) + count
        lags[partition] = max(lags.get(partition, 0.0), tables.lags[slot])
    return [
        PartitionStatus(
            partition=row.partition,
            owner=row.owner,
            epoch=row.epoch,
            since=row.since,
            is_served=row.owner in nodes and row.partition in nodes[row.owner].owned,
            waiting=waiting[row.partition],
            unfinished=unfinished.get(row.partition, 0),
            lag=lags.get(row.partition, 0.0),
        )
        for row in tables.partitions
    ]
