"""Another number of partitions: requests that wait go into the queues of their sessions, each once, wherever it breaks off."""

from contextlib import asynccontextmanager

import pytest
import trio

from actgent import LLM, Answer, BareAgent, ConfigurationError, Text
from actgent.cluster.amqp import Channel, open_connection, parse_broker
from actgent.cluster.operations.changing import _Move, repartition
from actgent.cluster.operations.watching import look_at_cluster, open_cluster_watch
from actgent.cluster.queues import partition_queue
from actgent.cluster.wire import (
    BACKGROUND,
    USER,
    PartitionToken,
    WireRequest,
    decode_message,
    encode_message,
    is_repeated,
    properties,
)
from actgent.journal.postgres import PartitionedJournal
from actgent.journal.postgres.partitions import partition_of_slot, slot_of

PATIENCE = 120
"""Seconds for all of a test, on a machine that does much else."""


class Echo(LLM):
    """Says again what it was told."""

    name = "echo"

    async def complete(self, chat, on_text=None):
        await trio.lowlevel.checkpoint()
        return Answer(parts=(Text(f"you said: {chat.messages[-1].parts[0].text}"),))


class Broken(Exception):
    """The process that changes the partitions has ended."""


def break_at(monkeypatch, number, *, is_done):
    """Break off at the commit of this number, before or after the broker has carried it out."""
    commit, count = Channel.commit, 0

    async def count_commits(channel):
        nonlocal count
        count += 1
        if count == number and not is_done:
            raise Broken
        await commit(channel)
        if count == number:
            raise Broken

    monkeypatch.setattr(Channel, "commit", count_commits)


class Pool:
    """The queues of a pool without nodes, as a broker has them."""

    def __init__(self, cluster, connection, broker):
        self.cluster, self.connection = cluster, connection
        self._broker = broker

    def queue(self, generation, number):
        return partition_queue(self.cluster.pool, generation, number, (self._broker,))

    async def fill(self, count, partitions):
        """Put requests into the queues of the first generation; the ids of each session's in their order."""
        channel = await self.connection.open_channel(confirms=True)
        for number in range(partitions):
            form = self.queue(1, number)
            await channel.declare_queue(form.name, durable=True, arguments=form.arguments)
            await channel.publish(form.name, encode_message(PartitionToken()), properties(priority=4))
        asked = {}
        for number in range(count):
            session_id = f"s{number % 30}"
            kind = USER if number % 3 else BACKGROUND
            request = WireRequest(
                id=str(number),
                verb="POST",
                path=f"/sessions/{session_id}/messages",
                body=b"x" * 100,
                owner="ada",
            )
            name = self.queue(1, partition_of(session_id, partitions)).name
            about = properties(message_id=str(number), reply_to="nobody", priority=kind, expiration="600000")
            await channel.publish(name, encode_message(request), about)
            asked.setdefault((session_id, kind), []).append(str(number))
        return asked

    async def waiting(self, partitions, generation):
        """What is in the queues of a generation, as `fill` returns it."""
        found = {}
        channel = await self.connection.open_channel(prefetch=2000)
        for number in range(partitions):
            name = self.queue(generation, number).name
            count = (await channel.declare_queue(name, passive=True)).message_count
            async with await channel.consume(name) as consumer:
                for _ in range(count):
                    delivery = await anext(consumer)
                    request = decode_message(delivery.body, delivery.properties)
                    session_id = request.path.split("/")[2]
                    assert partition_of(session_id, partitions) == number
                    assert delivery.properties.expiration == "600000"
                    assert delivery.properties.reply_to == "nobody"
                    found.setdefault((session_id, delivery.properties.priority), []).append(request.id)
        return found


def partition_of(session_id, partitions):
    return partition_of_slot(slot_of(session_id), partitions)


@pytest.fixture
async def new_pool(open_cluster, monkeypatch):
    """`new_pool(broker=3)`: a block with a `Pool` of 8 partitions, which a node has begun, as on a broker of that version."""

    @asynccontextmanager
    async def open_pool(broker=3):
        monkeypatch.setattr(_Move, "version", (broker,))
        async with open_cluster() as cluster:
            journal = PartitionedJournal(cluster.journal, node="first", pool=cluster.pool, partitions=8)
            async with journal.running():
                await journal.acquire()
            async with open_connection(parse_broker(cluster.broker)) as connection:
                yield Pool(cluster, connection, broker)

    return open_pool


@pytest.mark.parametrize("broker", [3, 4])
@pytest.mark.parametrize("partitions", [2, 32])
@pytest.mark.parametrize("is_done", [False, True])
async def test_wherever_it_breaks_off_each_request_is_in_one_queue(
    new_pool, monkeypatch, partitions, is_done, broker
):
    """At each of its transactions once; and the repetition goes on where it was, in order. From 4 on they are quorum queues."""
    with trio.fail_after(PATIENCE):
        async with new_pool(broker) as pool:
            place = (pool.cluster.journal, pool.cluster.broker, pool.cluster.pool)
            asked = await pool.fill(200, 8)
            for number in (1, 2, 3):
                with monkeypatch.context() as patched:
                    break_at(patched, number, is_done=is_done)
                    with pytest.raises(Broken):
                        await repartition(*place, partitions)
            with pytest.raises(ConfigurationError, match=f"on its way to {partitions} partitions"):
                await repartition(*place, 8)
            moved = await repartition(*place, partitions)
            assert 0 < moved < 200 or not is_done
            assert await pool.waiting(partitions, 2) == asked
            assert await repartition(*place, partitions) == 0
            channel = await pool.connection.open_channel()
            assert await channel.delete_queue(pool.queue(1, 0).name) == 0


async def test_a_request_that_was_delivered_before_is_known_as_such(new_pool):
    """By whoever answers it: it may have had its effect at a node that has gone."""
    with trio.fail_after(PATIENCE):
        async with new_pool() as pool:
            await pool.fill(1, 8)
            old = pool.queue(1, partition_of("s0", 8)).name
            channel = await pool.connection.open_channel(prefetch=10)
            async with await channel.consume(old) as consumer:
                await anext(consumer)
                await anext(consumer)
            channel.close()
            assert await repartition(pool.cluster.journal, pool.cluster.broker, pool.cluster.pool, 1) == 1
            again = await pool.connection.open_channel(prefetch=10)
            async with await again.consume(pool.queue(2, 0).name) as consumer:
                delivery = await anext(consumer)
                assert not delivery.redelivered
                assert is_repeated(delivery)


async def test_a_cluster_goes_on_with_other_partitions(open_cluster):
    """It is refused while a node is there; then what was said meanwhile is answered once, also to a client that stayed."""
    with trio.fail_after(PATIENCE):
        async with open_cluster() as cluster, cluster.connect(patience=PATIENCE) as client:
            place = (cluster.journal, cluster.broker, cluster.pool)
            agent = client.agent("clerk")
            async with cluster.node(BareAgent("clerk", llm=Echo()), node="web"):
                sessions = [await agent.create_session("ada") for _ in range(8)]
                for session in sessions:
                    await session.chat("one", message_id="m1")
                    await session.wait_idle()
                with pytest.raises(ConfigurationError, match=r"there are web-.*drain"):
                    await repartition(*place, 16)
            await wait_gone(cluster)
            tokens = await waiting(cluster)
            async with trio.open_nursery() as nursery:
                for session in sessions:
                    nursery.start_soon(say, session, "two", "m2")
                while await waiting(cluster) < tokens + len(sessions):  # noqa: ASYNC110 - a broker tells nobody
                    await trio.sleep(0.05)
                assert await repartition(*place, 16) >= len(sessions)
                async with cluster.node(BareAgent("clerk", llm=Echo())) as runtime:
                    assert runtime.journal.count == 16
                    for session in sessions:
                        await session.wait_idle()
                        await session.chat("three", message_id="m3")
                        await session.wait_idle()
                        said = [each.text for each in await session.history() if each.sender.kind == "user"]
                        answers = [
                            each.text for each in await session.history() if each.sender.kind == "assistant"
                        ]
                        assert said == ["one", "two", "three"]
                        assert answers == [f"you said: {each}" for each in said]
                    status = await look_at_cluster(cluster.broker, cluster.journal, cluster.pool)
                    assert (status.layout.generation, len(status.partitions)) == (2, 16)


async def say(session, words, message_id):
    await session.chat(words, message_id=message_id)


async def wait_gone(cluster):
    """Wait until the beacons of a node that has ended are forgotten."""
    async with open_cluster_watch(cluster.broker, cluster.pool) as watch:
        while await watch.nodes():
            pass


async def waiting(cluster):
    """How many messages are in the queues of the first generation."""
    async with open_cluster_watch(cluster.broker, cluster.pool) as watch:
        return sum([await watch.waiting(each, 1) for each in range(64)])
