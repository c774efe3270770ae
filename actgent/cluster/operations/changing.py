"""Changes of a whole pool: the form in which it writes, once all nodes read it, and the number of its partitions.

Messages change from the queues of one generation to those of the next in transactions of the broker, each with its
acknowledgement: whenever this breaks off, a message is in one queue, and a repetition goes on with the others.
"""

import attrs
import trio

from actgent.cluster.amqp import Channel, ChannelClosed, Connection, Delivery, open_connection, parse_broker
from actgent.cluster.queues import partition_queue
from actgent.cluster.wire import WireRequest, carried_over, decode_message, session_named
from actgent.errors import ConfigurationError, WireError
from actgent.errors.printable import quoted
from actgent.journal.postgres import layout as layouts, partition_of_slot, slot_of
from actgent.support.logs import Each, logger_of

from .watching import open_cluster_watch

TOGETHER = 100
"""Messages of one transaction, at most."""
COMING = 1.0
"""Seconds until a message that was counted and has not come is looked for anew: it may have expired."""
CONSUMED = 30.0
"""Seconds in which a broker has found out that a node is gone, and lets go of its queues."""
AGAIN = 0.2
_GONE, _NOT_EMPTY = 404, 406
_log = logger_of(__name__)


async def finish_upgrade(journal: str, broker: str, pool: str) -> int:
    """Have a pool write what this release reads, for good; returns the form.

    Raises:
        ConfigurationError: a node that is there does not read it, or the pool writes a higher form.
        BrokerLost, JournalFailed: nothing has changed.
    """
    layouts.check_layout(await layouts.read_layout(journal, pool), pool, reads=layouts.READS)
    async with open_cluster_watch(broker, pool) as watch:
        nodes = (await watch.nodes()).values()
    behind = [f"{each.node} (actgent {each.release})" for each in nodes if each.reads < layouts.READS]
    if behind:
        raise ConfigurationError(
            f"the form {layouts.READS} is not read by {', '.join(behind)}: drain what is of an older release first"
        )
    await layouts.raise_form(journal, pool, layouts.READS)
    return layouts.READS


async def release(journal: str, broker: str, pool: str, agent: str) -> None:
    """Let another pool of the same database go on with the sessions of an agent, once no node of this one hosts it.

    Raises:
        ConfigurationError: a node that is there hosts it, or the pool never did.
        BrokerLost, JournalFailed: nothing has changed.
    """
    async with open_cluster_watch(broker, pool) as watch:
        nodes = (await watch.nodes()).values()
    if hosting := [each.node for each in nodes if agent in each.agents]:
        raise ConfigurationError(
            f"agent {quoted(agent)} is hosted by {', '.join(hosting)}: drain and end them, or start them without it, first"
        )
    if not await layouts.forget_host(journal, pool, agent):
        raise ConfigurationError(f"the pool {quoted(pool)} of this database hosts no agent {quoted(agent)}")


async def repartition(journal: str, broker: str, pool: str, partitions: int) -> int:
    """Give a pool another number of partitions while no node runs; returns how many messages changed their queue.

    Where this breaks off, no node can run until it was repeated.

    Raises:
        ConfigurationError: a node is there, another change has begun, or there cannot be so many partitions.
        BrokerLost, JournalFailed: it may have begun.
    """
    async with open_cluster_watch(broker, pool) as watch:
        nodes = await watch.nodes()
    if nodes:
        raise ConfigurationError(
            f"partitions change while no node runs, and there are {', '.join(nodes)}: drain and end them first"
        )
    before, after = await layouts.begin_move(journal, pool, partitions)
    if before.generation == after.generation:
        return 0
    async with open_connection(parse_broker(broker), name="actgent cluster") as connection:
        move = _Move(connection, pool, after)
        await move.declare()
        for number in range(before.partitions):
            await move.empty(partition_queue(pool, before.generation, number, move.version).name)
    await layouts.end_move(journal, pool, after.generation)
    return move.count


@attrs.define
class _Move:
    """The messages of a pool on their way to the queues of its next generation."""

    connection: Connection
    pool: str
    to: layouts.PoolLayout
    count: int = 0
    """Messages that have changed their queue."""

    @property
    def version(self) -> tuple[int, ...]:
        """Of the broker."""
        return self.connection.agreed.version

    async def declare(self) -> None:
        """Have the queues of the new generation."""
        channel = await self.connection.open_channel()
        numbers = range(self.to.partitions)
        forms = [partition_queue(self.pool, self.to.generation, each, self.version) for each in numbers]
        await channel.declare_durable_queues({form.name: form.arguments for form in forms})
        channel.close()

    async def empty(self, queue: str) -> None:
        """Move what is in a queue, and delete it; nothing if it is gone."""
        while True:
            channel = await self.connection.open_channel(prefetch=TOGETHER)
            try:
                waiting = await self._wait_free(channel, queue)
                if not waiting:
                    await channel.delete_queue(
                        queue, if_empty=self.version < (4,)
                    )  # quorum queues know no such
                    return
                await channel.begin_transactions()
                await self._carry(channel, queue, waiting)
            except ChannelClosed as error:
                if error.code == _GONE:
                    return
                if error.code != _NOT_EMPTY:
                    raise
            finally:
                channel.close()

    async def _wait_free(self, channel: Channel, queue: str) -> int:
        """Wait until no node takes from a queue: what that one has not acknowledged is back by then. Returns what waits there."""
        with trio.move_on_after(CONSUMED):
            while True:
                declared = await channel.declare_queue(queue, passive=True)
                if not declared.consumer_count:
                    return declared.message_count or 0
                await trio.sleep(AGAIN)
        raise ConfigurationError(
            f"a node that says nothing still takes from the queue {quoted(queue)}: end it, and repeat this"
        )

    async def _carry(self, channel: Channel, queue: str, waiting: int) -> None:
        async with await channel.consume(queue) as consumer:
            while waiting > 0:
                deliveries: list[Delivery] = []
                with trio.move_on_after(COMING):
                    while len(deliveries) < min(waiting, TOGETHER):
                        deliveries.append(await anext(consumer))
                if not deliveries:
                    return
                carried = [await self._pass_on(channel, each) for each in deliveries]
                await channel.commit()
                waiting -= len(deliveries)
                self.count += carried.count(True)

    async def _pass_on(self, channel: Channel, delivery: Delivery) -> bool:
        """Put a message into its new queue; False for what is of its old queue alone, or cannot be read."""
        try:
            message = decode_message(delivery.body, delivery.properties)
        except WireError as error:
            _log.warning("a message cannot be read, and is dropped: %s", Each(str(error)))
            message = None
        if isinstance(message, WireRequest):
            number = partition_of_slot(slot_of(session_named(message)), self.to.partitions)
            name = partition_queue(self.pool, self.to.generation, number, self.version).name
            await channel.send_certainly(name, delivery.body, carried_over(delivery))
        delivery.acknowledge()
        return isinstance(message, WireRequest)
