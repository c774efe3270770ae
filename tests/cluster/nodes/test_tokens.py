"""The tokens by which the broker hands partitions over: a node that goes leaves one behind, whatever it took the partition by."""

from contextlib import asynccontextmanager

import trio

from actgent.cluster.amqp import open_connection, parse_broker
from actgent.cluster.queues import partition_queue
from actgent.cluster.tokens import MISSING, Tokens
from actgent.cluster.wire import Dropped, encode_message, properties

from .pairs import PATIENCE, Echo, drain, make_clerk

COUNT = 64


@asynccontextmanager
async def open_queues(cluster):
    """A block with a channel and the names of the queues of a pool that no node has waited at."""
    async with open_connection(parse_broker(cluster.broker)) as connection:
        channel = await connection.open_channel(confirms=True, prefetch=1)
        forms = [partition_queue(cluster.pool, 1, each, connection.agreed.version) for each in range(COUNT)]
        await channel.declare_durable_queues({each.name: each.arguments for each in forms})
        yield channel, [each.name for each in forms]


async def until_all(runtime, *, but=0):
    """Wait until a node serves all partitions, but for some."""
    while runtime.cluster().partitions < COUNT - but:  # noqa: ASYNC110 - nobody tells
        await trio.sleep(0.02)


async def test_what_a_node_took_by_a_request_goes_to_the_next_one(open_cluster):
    """Also if it leaves before it has looked for tokens: the first that waits at a queue puts one, whatever lies there."""
    with trio.fail_after(PATIENCE):
        async with open_cluster() as cluster:
            async with open_queues(cluster) as (channel, names):
                for name in names:  # as the requests of clients that are faster
                    await channel.publish(name, encode_message(Dropped(id="nobody's")), properties())
            async with cluster.node(make_clerk(Echo()), node="one") as one:
                await until_all(one)
                async with cluster.node(make_clerk(Echo()), node="two") as two:
                    await drain(cluster, one)
                    await until_all(two)


async def test_a_partition_that_nobody_serves_is_taken_though_its_token_is_lost(open_cluster):
    """Whoever waits for it puts another one: the queue was another one's when it came, and empty when that one went."""
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            open_queues(cluster) as (channel, names),
            await channel.consume(names[0]),
            cluster.node(make_clerk(Echo())) as one,
        ):
            await until_all(one, but=1)
            channel.close()
            await until_all(one)


class Link:
    """Notes into which queues something is put."""

    def __init__(self):
        self.put = []

    async def publish(self, key, *_):
        self.put.append(key)
        await trio.lowlevel.checkpoint()


async def test_a_token_is_put_where_none_has_come_for_a_while(autojump_clock):
    """As often as that lasts; a partition that was looked at long ago begins anew."""
    link = Link()
    tokens = Tokens(link, str)
    for wanted in ([1, 2], [1], [1, 2], [1, 2]):
        await tokens.look(wanted)
        await trio.sleep(MISSING / 2 + 0.1)
    assert link.put == ["1"]
    await tokens.look([1, 2])
    assert link.put == ["1", "1", "2"]
