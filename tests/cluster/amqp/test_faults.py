"""Brokers that do what RabbitMQ does seldom, or never: over a stream in memory."""

import struct
from contextlib import asynccontextmanager, suppress

import hypothesis
import pytest
import trio
import trio.testing
from hypothesis import strategies

pytest.importorskip("pamqp", reason="the extra `cluster` is not installed")

from pamqp import body, commands, header, heartbeat

from actgent.cluster.amqp import ChannelClosed, ConsumerCancelled, NotConfirmed, Unroutable
from actgent.cluster.amqp.connection import Agreed, Connection
from actgent.cluster.amqp.failures import ProtocolError
from actgent.cluster.amqp.framing import FrameReader, encode_frames
from actgent.errors import BrokerLost, UsageError

BASIC = commands.Basic
DELIVER = BASIC.Deliver("t", 1, False, "", "q")
AGREED = Agreed(
    place="memory:1", frame_max=4096, channel_max=2, heartbeat=1000, product="a test's", version=(3, 10)
)


class Broker:
    """The other end of a connection, which says what it is told."""

    def __init__(self, stream):
        self.stream = stream
        self._frames = FrameReader()
        self._heard = []

    async def say(self, channel, *frames):
        await self.stream.send_all(encode_frames(channel, *frames))

    async def hear(self, kind):
        """The next frame of a kind; others are skipped."""
        with trio.fail_after(30):
            while True:
                for place, (_, frame) in enumerate(self._heard):
                    if isinstance(frame, kind):
                        del self._heard[: place + 1]
                        return frame
                self._heard += self._frames.feed(await self.stream.receive_some())

    async def deliver(self, channel, tag, consumer_tag, text=b"x"):
        deliver = BASIC.Deliver(consumer_tag=consumer_tag, delivery_tag=tag, exchange="", routing_key="q")
        await self.say(channel, deliver, header.ContentHeader(body_size=len(text)), body.ContentBody(text))


@asynccontextmanager
async def connected(agreed=AGREED):
    """A connection, and the broker at its other end."""
    ours, theirs = trio.testing.memory_stream_pair()
    connection = Connection(ours, FrameReader(), agreed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        try:
            yield connection, Broker(theirs)
        finally:
            connection.lose("the test is over")


async def open_channel(connection, broker, **options):
    """A channel that the broker lets open."""
    async with trio.open_nursery() as nursery:
        found = []

        async def run():
            found.append(await connection.open_channel(**options))

        nursery.start_soon(run)
        for asked, answer, is_asked in (
            (commands.Channel.Open, commands.Channel.OpenOk(), True),
            (BASIC.Qos, BASIC.QosOk(), "prefetch" in options),
            (commands.Confirm.Select, commands.Confirm.SelectOk(), "confirms" in options),
        ):
            if is_asked:
                await broker.hear(asked)
                await broker.say(1, answer)
    return found[0]


async def consume(channel, broker):
    """A consumer that the broker lets in."""
    async with trio.open_nursery() as nursery:
        found = []

        async def run():
            found.append(await channel.consume("q"))

        nursery.start_soon(run)
        asked = await broker.hear(BASIC.Consume)
        await broker.say(1, BASIC.ConsumeOk(asked.consumer_tag))
    return found[0]


async def test_who_publishes_waits_while_the_broker_takes_nothing():
    """Until it says that it does again, or until who waits is cancelled; then nothing was sent."""
    async with connected() as (connection, broker), trio.open_nursery() as nursery:
        channel = await open_channel(connection, broker, confirms=True)
        await broker.say(0, commands.Connection.Blocked("low on memory"))
        await trio.testing.wait_all_tasks_blocked()
        assert connection.is_blocked
        assert not connection.is_writable
        with trio.move_on_after(0.01) as scope:
            await channel.publish("q", b"never")
        assert scope.cancelled_caught
        nursery.start_soon(channel.publish, "q", b"later")
        await trio.testing.wait_all_tasks_blocked()
        await broker.say(0, commands.Connection.Unblocked())
        assert (await broker.hear(body.ContentBody)).value == b"later"
        await broker.say(1, BASIC.Ack(1))


async def test_who_is_cancelled_keeps_no_answer_from_the_next():
    """Answers come in the order of the questions, also those that nobody waits for any more."""
    async with connected() as (connection, broker), trio.open_nursery() as nursery:
        channel = await open_channel(connection, broker)
        with trio.move_on_after(0.01):
            await channel.declare_queue("one")
        found = []

        async def declare():
            found.append((await channel.declare_queue("two")).message_count)

        nursery.start_soon(declare)
        for count in (1, 2):
            await broker.hear(commands.Queue.Declare)
            await broker.say(1, commands.Queue.DeclareOk("q", count, 0))
        await trio.testing.wait_all_tasks_blocked()
        assert found == [2]


async def test_one_word_for_many_messages():
    """A broker confirms, or refuses, several at once."""
    async with connected() as (connection, broker):
        channel = await open_channel(connection, broker, confirms=True)
        said = {}

        async def publish(number):
            try:
                await channel.publish("q", b"%d" % number)
                said[number] = "taken"
            except NotConfirmed:
                said[number] = "refused"

        async with trio.open_nursery() as nursery:
            for number in range(1, 6):
                nursery.start_soon(publish, number)
                await trio.testing.wait_all_tasks_blocked()
            await broker.say(1, BASIC.Ack(2, multiple=True), BASIC.Nack(4, multiple=True), BASIC.Ack(5))
        assert said == {1: "taken", 2: "taken", 3: "refused", 4: "refused", 5: "taken"}


async def test_channels_are_refused_where_all_are_open():
    """Until one is closed, and the broker says so."""
    async with connected() as (connection, broker):
        channels = [await open_channel(connection, broker)]
        with trio.move_on_after(0.01):
            await connection.open_channel()  # the broker does not answer
        with pytest.raises(UsageError, match="all 2 channels"):
            await connection.open_channel()
        channels[0].close()
        with pytest.raises(UsageError, match="all 2 channels"):
            await connection.open_channel()
        await broker.hear(commands.Channel.Close)
        await broker.say(1, commands.Channel.Close(504, "met in the middle", 0, 0))
        await broker.hear(commands.Channel.CloseOk)
        await broker.say(1, commands.Channel.CloseOk())
        await trio.testing.wait_all_tasks_blocked()
        assert (await open_channel(connection, broker)).number == 1


async def test_what_comes_for_a_consumer_that_has_left_goes_back():
    """Whatever was on its way when it left."""
    async with connected() as (connection, broker):
        channel = await open_channel(connection, broker, prefetch=2)
        async with await consume(channel, broker) as consumer:
            await broker.deliver(1, 1, consumer.tag)
            await trio.testing.wait_all_tasks_blocked()
        await broker.hear(BASIC.Cancel)
        assert (await broker.hear(BASIC.Nack)).delivery_tag == 1
        await broker.deliver(1, 2, consumer.tag)
        nack = await broker.hear(BASIC.Nack)
        assert (nack.delivery_tag, nack.requeue) == (2, True)


async def test_a_broker_that_delivers_without_bound_is_left():
    """More than the prefetch, or one delivery twice."""
    for tags in ((1, 2, 3), (1, 1)):
        async with connected() as (connection, broker):
            channel = await open_channel(connection, broker, prefetch=2)
            consumer = await consume(channel, broker)
            for tag in tags:
                await broker.deliver(1, tag, consumer.tag)
            with trio.fail_after(30):
                assert "does not keep to AMQP" in await connection.wait_lost()


# --- what is no AMQP -----------------------------------------------------------------------------

SAID = (
    (1, commands.Channel.OpenOk()),
    (1, BASIC.QosOk()),
    (1, commands.Confirm.SelectOk()),
    (1, BASIC.ConsumeOk("1.1")),
    (1, commands.Queue.DeclareOk("q", 1, 1)),
    (1, BASIC.Deliver("1.1", 1, False, "", "q")),
    (1, header.ContentHeader(body_size=3, properties=BASIC.Properties(headers={"s": [1, {"a": "x"}]}))),
    (1, body.ContentBody(b"abc")),
    (1, BASIC.Return(312, "NO_ROUTE", "", "q")),
    (1, header.ContentHeader(body_size=0, properties=BASIC.Properties(correlation_id="1"))),
    (1, BASIC.Ack(1, True)),
    (1, BASIC.Nack(1)),
    (1, BASIC.Cancel("1.1")),
    (1, commands.Channel.Close(404, "NOT_FOUND", 0, 0)),
    (1, commands.Channel.CloseOk()),
    (0, heartbeat.Heartbeat()),
    (0, commands.Connection.Blocked("memory")),
    (0, commands.Connection.Unblocked()),
    (0, commands.Connection.Close(320, "CONNECTION_FORCED", 0, 0)),
    (0, commands.Connection.CloseOk()),
)
"""What a broker may say, in an order that makes sense for its first lines."""
REFUSALS = (BrokerLost, ChannelClosed, ConsumerCancelled, NotConfirmed, Unroutable)


async def use(connection):
    """Do all that a connection is for; what it raises is for its users."""
    try:
        channel = await connection.open_channel(prefetch=2, confirms=True)
        async with await channel.consume("q") as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(refused, channel.declare_queue, "q")
            nursery.start_soon(refused, channel.publish, "q", b"x")
            nursery.start_soon(refused, read, consumer)
    except REFUSALS:
        pass


async def read(consumer):
    async for delivery in consumer:
        delivery.acknowledge()


async def refused(fn, *args):
    with suppress(*REFUSALS):
        await fn(*args)


async def hear_out(data):
    """A connection whose broker says this, and closes: all who wait hear of something."""
    with trio.fail_after(60):
        async with connected() as (connection, broker), trio.open_nursery() as nursery:
            nursery.start_soon(use, connection)
            for begin in range(0, len(data), 50):
                await broker.stream.send_all(data[begin : begin + 50])
                await trio.testing.wait_all_tasks_blocked()
            await broker.stream.aclose()
            assert await connection.wait_lost()


async def test_a_wrong_answer_leaves_nobody_waiting():
    """Not even the one who asked."""
    async with connected() as (connection, broker), trio.open_nursery() as nursery:
        nursery.start_soon(broker.say, 1, commands.Queue.DeleteOk(1))
        with pytest.raises(BrokerLost, match="is no answer to"), trio.fail_after(30):
            await connection.open_channel()


@hypothesis.given(
    beginning=strategies.integers(0, len(SAID)),
    others=strategies.lists(strategies.sampled_from(SAID), max_size=8),
    changes=strategies.lists(
        strategies.tuples(strategies.integers(0, 1000), strategies.binary(max_size=3)), max_size=4
    ),
)
@hypothesis.settings(max_examples=150)
def test_whatever_a_broker_says_is_refused_in_our_own_words(beginning, others, changes):
    """Frames in a wrong order, cut, changed or doubled: nothing else is raised, and everything ends."""
    data = bytearray(b"".join(encode_frames(*each) for each in (*SAID[:beginning], *others)))
    for place, new in changes:
        begin = place % (len(data) + 1)
        data[begin : begin + 2] = new
    trio.run(hear_out, bytes(data))


@hypothesis.given(chunks=strategies.lists(strategies.binary(max_size=300), max_size=20))
@hypothesis.settings(max_examples=200)
def test_no_bytes_are_kept_beyond_one_frame(chunks):
    """And whatever cannot be read is no AMQP."""
    reader = FrameReader()
    reader.max_size = 100
    for chunk in chunks:
        try:
            reader.feed(chunk)
        except ProtocolError:
            return
        assert len(reader._rest) < reader.max_size


def frame_of(kind, payload, size=None, end=b"\xce"):
    return struct.pack(">BHI", kind, 1, len(payload) if size is None else size) + payload + end


def nested(depth):
    """Properties whose headers are a table in a table in a table..."""
    table = b""
    for _ in range(depth):
        table = b"\x01aF" + struct.pack(">I", len(table)) + table
    return struct.pack(">HHQH", 60, 0, 0, 0x2000) + struct.pack(">I", len(table)) + table


def about(flag, value):
    """The header of a message of one byte with one property."""
    return struct.pack(">HHQH", 60, 0, 1, flag) + value


@pytest.mark.parametrize(
    "payload",
    [
        about(0x0080, b"\x01\xff"),
        about(0x0040, b"\xff" * 8),
        about(0x2000, struct.pack(">I", 3) + b"\x01a?"),
        about(0x2000, struct.pack(">I", 1 << 20)),
        nested(16_000)[:4] + struct.pack(">Q", 1) + nested(16_000)[12:],
        about(0x0800, b""),
    ],
    ids=["text", "timestamp", "type", "table", "nested", "nothing"],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_message_whose_properties_cannot_be_read_is_rejected(request, caplog, payload, at_once):
    """A stranger may have sent it: all others of its connection go on, and it does not come again."""
    async with connected() as (connection, broker):
        connection._frames.max_size = 131_072
        channel = await open_channel(connection, broker, prefetch=1)
        consumer = await consume(channel, broker)
        queue = request.node.callspec.id  # of its own, as equal lines of a log are told once
        deliver = BASIC.Deliver(consumer.tag, 1, False, "", queue)
        frames = encode_frames(1, deliver), frame_of(2, payload), encode_frames(1, body.ContentBody(b"x"))
        for data in [b"".join(frames)] if at_once else frames:
            await broker.stream.send_all(data)
            await trio.testing.wait_all_tasks_blocked()
        nacked = await broker.hear(BASIC.Nack)
        assert (nacked.delivery_tag, nacked.requeue) == (1, False)
        await broker.deliver(1, 2, consumer.tag, b"next")
        with trio.fail_after(30):
            assert (await anext(consumer)).body == b"next"
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"sent to {queue} is rejected" in caplog.text


async def test_a_message_that_is_too_long_is_rejected(caplog, monkeypatch):
    """As one that cannot be read: put back, it would end the connection of one node after the other. Where it was sent is escaped."""
    monkeypatch.setattr("actgent.cluster.amqp.content.MAX_MESSAGE", 10)
    async with connected() as (connection, broker):
        channel = await open_channel(connection, broker, prefetch=1)
        consumer = await consume(channel, broker)
        pieces = [body.ContentBody(b"x" * 8), body.ContentBody(b"x" * 3)]
        deliver = BASIC.Deliver(consumer.tag, 1, False, "", "a\x1b[2Jb\n")
        await broker.stream.send_all(encode_frames(1, deliver, header.ContentHeader(body_size=11), *pieces))
        nacked = await broker.hear(BASIC.Nack)
        assert (nacked.delivery_tag, nacked.requeue) == (1, False)
        await broker.deliver(1, 2, consumer.tag, b"next")
        with trio.fail_after(30):
            assert (await anext(consumer)).body == b"next"
    assert "sent to a\\x1b[2Jb\\n is rejected" in caplog.text


@pytest.mark.parametrize(
    "data",
    [
        frame_of(1, b"\x00\x0a\x00\x0b", size=1 << 31),
        frame_of(1, b"\x00\x0a\x00\x0b", end=b"\x00"),
        frame_of(1, b"\xff\xff\xff\xff"),
        frame_of(2, nested(16_000)),
        frame_of(7, b""),
        b"AMQP\x00\x00\x09\x01",
        encode_frames(1, header.ContentHeader(body_size=1)),
        encode_frames(1, body.ContentBody(b"x")),
        encode_frames(1, DELIVER, header.ContentHeader(body_size=1 << 60)),
        encode_frames(1, DELIVER, header.ContentHeader(body_size=1), body.ContentBody(b"xy")),
        encode_frames(1, DELIVER, BASIC.Ack(1)),
        encode_frames(1, commands.Queue.DeleteOk(1)),
        encode_frames(1, BASIC.Ack(1)),
        encode_frames(2, commands.Channel.OpenOk()),
        encode_frames(0, commands.Queue.DeleteOk(1)),
    ],
)
async def test_what_is_no_amqp_ends_the_connection(data):
    """With an error that says so."""
    async with connected() as (connection, broker):
        connection._frames.max_size = 131_072
        await open_channel(connection, broker)
        await broker.stream.send_all(data)
        with trio.fail_after(30):
            assert "it does not keep to AMQP" in await connection.wait_lost()
        with pytest.raises(BrokerLost):
            await connection.open_channel()


class Hearer:
    """Notes what the broker says of a message."""

    def __init__(self):
        self.heard = []

    def fulfil(self, _):
        self.heard.append("taken")

    def fail(self, error):
        self.heard.append(type(error()))


async def test_who_sends_without_waiting_hears_what_became_of_it():
    """Once: that it was taken, that no queue takes it, or that nobody knows; and at once where it is not sent at all."""
    async with connected() as (connection, broker):
        channel = await open_channel(connection, broker, confirms=True)
        hearers = [Hearer() for _ in range(5)]
        for number, hearer in enumerate(hearers[:3]):
            assert channel.publish_now("q", b"%d" % number, BASIC.Properties(), hearer)
        returned = await broker.hear(header.ContentHeader)
        returned.properties.correlation_id = "2"
        back = BASIC.Return(reply_code=312, reply_text="NO_ROUTE", exchange="", routing_key="q")
        await broker.say(
            1, back, header.ContentHeader(body_size=1, properties=returned.properties), body.ContentBody(b"1")
        )
        await broker.say(1, BASIC.Ack(2, multiple=True))
        await trio.testing.wait_all_tasks_blocked()
        assert [each.heard for each in hearers[:3]] == [["taken"], [Unroutable], []]
        await broker.say(0, commands.Connection.Blocked("low on memory"))
        await trio.testing.wait_all_tasks_blocked()
        assert not channel.publish_now("q", b"x", BASIC.Properties(), hearers[3])
        connection.lose("it went down")
        assert not channel.publish_now("q", b"x", BASIC.Properties(), hearers[4])
    assert [each.heard for each in hearers] == [["taken"], [Unroutable], [BrokerLost], [], []]


async def test_what_was_read_as_the_connection_was_lost_is_left():
    """The writer may find out first: what the reader has by then is nobody's any more, and ends no process."""
    async with connected() as (connection, broker):
        channel = await open_channel(connection, broker, prefetch=5)
        consumer = await consume(channel, broker)
        deliver = BASIC.Deliver(consumer_tag=consumer.tag, delivery_tag=1, exchange="", routing_key="q")
        connection.lose("connection reset by peer")
        connection.take([(1, (deliver, BASIC.Properties(), b"x"))])
        with pytest.raises(BrokerLost, match="reset by peer"):
            await anext(consumer)


async def test_deliveries_are_told_as_they_come():
    """In their order, in as many frames as they take, until the block is left; what comes then goes back."""
    found = []
    async with connected() as (connection, broker):
        channel = await open_channel(connection, broker, prefetch=5)
        async with trio.open_nursery() as nursery:
            consumers = []

            async def run():
                consumers.append(await channel.consume("q", take=found.append))

            nursery.start_soon(run)
            asked = await broker.hear(BASIC.Consume)
            await broker.deliver(1, 1, asked.consumer_tag, b"first")  # before its own answer
            await broker.say(1, BASIC.ConsumeOk(asked.consumer_tag))
        async with consumers[0] as consumer:
            long = b"y" * 5000
            cut = [body.ContentBody(long[:4000]), body.ContentBody(long[4000:])]
            deliver = BASIC.Deliver(asked.consumer_tag, 2, False, "", "q")
            await broker.say(1, deliver, header.ContentHeader(body_size=5000), *cut)
            await broker.deliver(1, 3, asked.consumer_tag, b"third")
            await trio.testing.wait_all_tasks_blocked()
            assert [each.body for each in found] == [b"first", long, b"third"]
            found[1].acknowledge()
            assert (await broker.hear(BASIC.Ack)).delivery_tag == 2
        await broker.deliver(1, 4, asked.consumer_tag)
        assert (await broker.hear(BASIC.Nack)).delivery_tag == 4
        with pytest.raises(ConsumerCancelled):
            await consumer.wait_end()
    assert len(found) == 3
