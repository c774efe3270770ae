"""Messages through RabbitMQ: out, confirmed, back, and each exactly as it was."""

import pytest
import trio
from pamqp import commands

from actgent.cluster.amqp import MAX_MESSAGE, ChannelClosed, ConsumerCancelled, NotConfirmed, Unroutable
from actgent.cluster.queues import partition_queue
from actgent.errors import UsageError

Properties = commands.Basic.Properties


async def declare(channel, form, name):
    """A queue of this form, under a name of the test's own."""
    await channel.declare_queue(name, durable=form.durable, arguments=form.arguments)


async def take(consumer, count):
    with trio.fail_after(30):
        return [await anext(consumer) for _ in range(count)]


async def test_messages_of_any_size_come_back_as_they_were(connection, new_name):
    """Also around the bounds of frames, and longer than many of them."""
    name, payload = new_name(), connection.frame_max - 8
    channel = await connection.open_channel(prefetch=10, confirms=True)
    await channel.declare_queue(name)
    sizes = (0, 1, payload - 1, payload, payload + 1, 3 * payload, 1_000_003)
    for size in sizes:
        headers = {"s": size, "text": "ä\n"}
        properties = Properties(message_id=f"m{size}", headers=headers, message_type="actgent/1", priority=3)
        await channel.publish(name, bytes(number % 251 for number in range(size)), properties)
    async with await channel.consume(name) as consumer:
        for size, delivery in zip(sizes, await take(consumer, len(sizes)), strict=True):
            assert delivery.body == bytes(number % 251 for number in range(size))
            assert (delivery.properties.message_id, delivery.properties.priority) == (f"m{size}", 3)
            assert delivery.properties.headers == {"s": size, "text": "ä\n"}
            assert not delivery.redelivered
            delivery.acknowledge()


async def test_who_publishes_hears_that_no_queue_takes_it(connection, new_name):
    """It alone: those beside it are confirmed, whatever their order."""
    name = new_name()
    channel = await connection.open_channel(confirms=True)
    await channel.declare_queue(name)
    failed = []

    async def publish(number):
        key = name if number % 3 else f"{name}.nobody"
        try:
            await channel.publish(key, b"x", Properties(message_id="the same"))
        except Unroutable:
            failed.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(publish, number)
    assert sorted(failed) == list(range(0, 30, 3))
    assert (await channel.declare_queue(name, passive=True)).message_count == 20


async def test_who_publishes_hears_that_a_queue_is_full(connection, new_name):
    """The broker does not take it, and it is not there."""
    name = new_name()
    channel = await connection.open_channel(confirms=True)
    await channel.declare_queue(name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    await channel.publish(name, b"first")
    with pytest.raises(NotConfirmed):
        await channel.publish(name, b"second")
    assert (await channel.declare_queue(name, passive=True)).message_count == 1


async def test_more_than_may_wait_for_their_word_wait_before(connection, new_name, monkeypatch):
    """And all of them come, in the order in which they were sent."""
    monkeypatch.setattr("actgent.cluster.amqp.channel.UNCONFIRMED", 3)
    name = new_name()
    channel = await connection.open_channel(prefetch=100, confirms=True)
    await channel.declare_queue(name)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(channel.publish, name, b"%d" % number)
    async with await channel.consume(name) as consumer:
        assert sorted(int(each.body) for each in await take(consumer, 50)) == list(range(50))


async def test_a_consumer_holds_no_more_than_its_prefetch(connection, new_name):
    """The next comes when one is acknowledged."""
    name = new_name()
    channel = await connection.open_channel(prefetch=2, confirms=True)
    await channel.declare_queue(name)
    for number in range(4):
        await channel.publish(name, b"%d" % number)
    async with await channel.consume(name) as consumer:
        first, second = await take(consumer, 2)
        assert (await channel.declare_queue(name, passive=True)).message_count == 2
        first.acknowledge()
        first.acknowledge()  # only once
        (third,) = await take(consumer, 1)
        assert [each.body for each in (first, second, third)] == [b"0", b"1", b"2"]
        second.requeue()
        (again,) = await take(consumer, 1)
        assert (again.body, again.redelivered) == (b"1", True)
    assert (await channel.declare_queue(name, passive=True)).message_count == 1  # the other two are held


async def test_one_consumer_at_a_time_gets_all_of_a_partition(connection, broker, new_name):
    """When it goes, the next one goes on with what was not acknowledged, in its order."""
    name = new_name()
    form = partition_queue("test", 1, 0, connection.agreed.version)
    owner, standby = [await connection.open_channel(prefetch=10, confirms=True) for _ in range(2)]
    await declare(owner, form, name)
    async with await owner.consume(name) as first, await standby.consume(name) as second:
        for number in range(4):
            await owner.publish(name, b"%d" % number)
        taken = await take(first, 4)
        taken[0].acknowledge()
        owner.close()
        rest = await take(second, 3)
        assert [(each.body, each.redelivered) for each in rest] == [(b"1", True), (b"2", True), (b"3", True)]
        taken[1].acknowledge()  # on a closed channel: nothing
        with pytest.raises(ChannelClosed):
            await anext(first)


async def test_what_is_urgent_goes_first(connection, new_name):
    """The token before control, control before users, and those before what has time."""
    name = new_name()
    form = partition_queue("test", 1, 0, connection.agreed.version)
    if form.arguments["x-queue-type"] != "classic":
        pytest.skip("quorum queues of RabbitMQ 4 know two priorities only")
    channel = await connection.open_channel(prefetch=10, confirms=True)
    await declare(channel, form, name)
    for priority in (0, 1, 3, 1, 4):
        await channel.publish(name, b"", Properties(priority=priority))
    async with await channel.consume(name) as consumer:
        assert [each.properties.priority for each in await take(consumer, 5)] == [4, 3, 1, 1, 0]


async def test_a_consumer_hears_that_its_queue_is_gone(connection, new_name):
    """Others of its channel go on."""
    gone, other = new_name(), new_name()
    channel = await connection.open_channel(prefetch=10, confirms=True)
    for name in (gone, other):
        await channel.declare_queue(name)
    async with await channel.consume(gone) as lost, await channel.consume(other) as consumer:
        await channel.delete_queue(gone)
        with pytest.raises(ConsumerCancelled), trio.fail_after(30):
            await anext(lost)
        await channel.publish(other, b"x")
        assert (await take(consumer, 1))[0].body == b"x"


async def test_what_a_consumer_leaves_is_in_the_queue_again(connection, new_name):
    """Taken out and not acknowledged, not taken out, and on its way."""
    name = new_name()
    channel = await connection.open_channel(prefetch=10, confirms=True)
    await channel.declare_queue(name)
    for number in range(20):
        await channel.publish(name, b"%d" % number)
    async with await channel.consume(name) as consumer:
        (held,) = await take(consumer, 1)
    held.requeue()
    async with await channel.consume(name) as consumer:
        found = []
        for _ in range(20):
            (delivery,) = await take(consumer, 1)
            delivery.acknowledge()
            found.append(int(delivery.body))
        assert found == list(range(20))


async def test_what_the_broker_refuses_closes_a_channel_and_nothing_else(connection, new_name):
    """All who wait on it hear why, and its number is used again."""
    name = new_name()
    channel = await connection.open_channel(prefetch=1, confirms=True)
    await channel.declare_queue(name)
    with pytest.raises(ChannelClosed, match="404") as error:
        await channel.consume(f"{name}.nobody")
    assert error.value.code == 404
    for call in (channel.publish(name, b"x"), channel.declare_queue(name), channel.consume(name)):
        with pytest.raises(ChannelClosed):
            await call
    other = await connection.open_channel()
    assert other.number == channel.number
    with pytest.raises(ChannelClosed, match="406"):
        await other.declare_queue(name, durable=True)


async def test_numbers_of_channels_are_used_again(connection):
    """There may be any number of them, one after the other."""
    with trio.fail_after(120):
        for _ in range(connection.agreed.channel_max + 200):
            channel = await connection.open_channel()
            channel.close()
    assert channel.number < connection.agreed.channel_max


@pytest.mark.parametrize(
    ("options", "call", "words"),
    [
        ({}, lambda channel: channel.publish("q", b""), "confirms=True"),
        ({}, lambda channel: channel.consume("q"), "prefetch="),
        ({"confirms": True}, lambda channel: channel.publish("k" * 300, b""), "nothing that AMQP carries"),
        ({"confirms": True}, lambda channel: channel.publish("q", bytes(MAX_MESSAGE + 1)), "16,000,000"),
    ],
)
async def test_wrong_calls_are_refused_before_anything_is_sent(connection, options, call, words):
    """The channel is as good as before."""
    channel = await connection.open_channel(**options)
    with pytest.raises(UsageError, match=words):
        await call(channel)
    queue = await channel.declare_queue(exclusive=True)
    if "confirms" in options:
        await channel.publish(queue.queue, b"x")


async def test_messages_of_which_nobody_hears_again(connection):
    """To all queues of a fanout exchange."""
    channel = await connection.open_channel(prefetch=5)
    exchange = "actgent.test.nodes"
    await channel.declare_exchange(exchange, "fanout")
    queues = [(await channel.declare_queue(exclusive=True)).queue for _ in range(2)]
    for queue in queues:
        await channel.bind(queue, exchange)
    assert channel.send("", b"here I am", exchange=exchange)
    for queue in queues:
        async with await channel.consume(queue) as consumer:
            assert [each.body for each in await take(consumer, 1)] == [b"here I am"]
    channel.close()
    assert not channel.send("", b"here I am", exchange=exchange)
