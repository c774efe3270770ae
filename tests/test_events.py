import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actgent.errors import ConfigurationError
from actgent.events import ActorStarted, EventStream


def started(name: str) -> ActorStarted:
    return ActorStarted(actor=name, at=0)


async def test_every_reader_gets_every_event_in_order():
    """Readers do not take events from each other. A reader gets no events that were published before its subscription."""
    stream = EventStream()
    stream.publish(started("before"))
    async with stream.read() as first, stream.read() as second:
        for name in "abc":
            stream.publish(started(name))
        stream.end()
        assert [event.actor async for event in first] == ["a", "b", "c"]
        assert [event.actor async for event in second] == ["a", "b", "c"]


async def test_slow_event_reader_loses_the_oldest_events():
    """A reader above its capacity keeps the newest events. The publisher does not wait for a reader."""
    stream = EventStream()
    async with stream.read(2) as slow, stream.read() as fast:
        for name in "abcde":
            stream.publish(started(name))
        stream.end()
        assert [event.actor async for event in slow] == ["d", "e"]
        assert (slow.lost, fast.lost) == (3, 0)


async def test_watched_is_true_if_a_reader_needs_the_event():
    """Without a reader, the event is not built."""
    stream = EventStream()
    assert not stream.watched
    async with stream.read():
        assert stream.watched
    assert not stream.watched


async def test_a_reader_waits_for_the_next_event(nursery):
    """`receive` waits until an event is published."""
    stream = EventStream()
    seen = []

    async with stream.read() as reader:

        async def watch() -> None:
            seen.append(await reader.receive())

        nursery.start_soon(watch)
        await wait_all_tasks_blocked()
        stream.publish(started("a"))
        await wait_all_tasks_blocked()
    assert seen == [started("a")]


async def test_close_wakes_waiting_readers(nursery):
    """A waiting reader gets the end of the stream."""
    stream = EventStream()
    async with stream.read() as reader:

        async def watch() -> None:
            with pytest.raises(trio.EndOfChannel):
                await reader.receive()

        nursery.start_soon(watch)
        await wait_all_tasks_blocked()
        stream.end()
        await wait_all_tasks_blocked()
        stream.publish(started("after the end"))
        with pytest.raises(trio.EndOfChannel):
            await reader.receive()
    async with stream.read() as late:
        with pytest.raises(trio.EndOfChannel):
            await late.receive()


async def test_closed_event_reader_keeps_no_events():
    """After its block or `aclose`, a reader gets no events and raises ClosedResourceError."""
    stream = EventStream()
    async with stream.read() as reader:
        stream.publish(started("a"))
        await reader.aclose()
        stream.publish(started("b"))
        with pytest.raises(trio.ClosedResourceError):
            await reader.receive()
    async with stream.read() as reader:
        stream.publish(started("a"))
    with pytest.raises(trio.ClosedResourceError):
        await reader.receive()
    assert reader.lost == 0


async def test_a_cancelled_receive_loses_no_event():
    """The next `receive` returns the event that a cancelled one did not get."""
    stream = EventStream()
    async with stream.read() as reader:
        stream.publish(started("a"))
        with trio.CancelScope() as scope:
            scope.cancel()
            await reader.receive()
        assert scope.cancelled_caught
        assert await reader.receive() == started("a")


async def test_event_reader_capacity_below_one_is_rejected():
    """A capacity below one is an error."""
    with pytest.raises(ConfigurationError, match="at least 1"):
        async with EventStream().read(0):
            pass


def test_an_event_is_frozen():
    """A reader cannot change the attributes of an event."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        started("a").actor = "b"


async def test_a_reader_can_look_without_waiting():
    """`receive_nowait` returns an event or raises, as other receive channels of trio do."""
    stream = EventStream()
    async with stream.read() as reader:
        with pytest.raises(trio.WouldBlock):
            reader.receive_nowait()
        stream.publish(started("a"))
        stream.end()
        assert reader.receive_nowait() == started("a")
        with pytest.raises(trio.EndOfChannel):
            reader.receive_nowait()
    with pytest.raises(trio.ClosedResourceError):
        reader.receive_nowait()
