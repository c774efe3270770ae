"""The order in which an inbox admits senders that wait for room."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actgent.actors import PriorityInbox
from actgent.messages import Message, Priority, Sender

URGENT, HIGH, NORMAL, LOW = Priority


def note(name, level=NORMAL, session=None):
    return Message(
        id=name, session_id=session or name, sender=Sender("u"), parts=name, priority=level, deadline=1000
    )


async def send(inbox, nursery, *notes, pause=0):
    """Start one sender for each message, in order."""
    for each in notes:
        nursery.start_soon(inbox.put, each)
        await wait_all_tasks_blocked()
        await trio.sleep(pause)


async def drain(inbox):
    """Take all messages in order, and admit waiting senders meanwhile."""
    order = []
    while (message := inbox.poll()) is not None:
        order.append(message.id)
        inbox.release(message.session_id)
        await wait_all_tasks_blocked()
    return order


async def test_full_inbox_admits_by_priority(nursery, autojump_clock):
    """A HIGH sender is admitted before LOW senders that waited longer; equal priorities are admitted in order of arrival."""
    inbox = PriorityInbox(capacity=1)
    inbox.put_nowait(note("full", HIGH))
    await send(
        inbox, nursery, note("low 1", LOW), note("low 2", LOW), note("high 1", HIGH), note("high 2", HIGH)
    )
    assert await drain(inbox) == ["full", "high 1", "high 2", "low 1", "low 2"]


@pytest.mark.parametrize(("seconds", "first"), [(59, "high"), (61, "low")])
async def test_waiting_for_room_ages_the_sender(seconds, first, nursery, autojump_clock):
    """A LOW sender is admitted before a HIGH sender that arrived more than 60 s later, and not before one that arrived sooner."""
    inbox = PriorityInbox(capacity=1)
    inbox.put_nowait(note("full"))
    await send(inbox, nursery, note("low", LOW), pause=seconds)
    await send(inbox, nursery, note("high", HIGH))
    assert (await drain(inbox))[1] == first


async def test_full_session_admits_by_priority(nursery, autojump_clock):
    """A full session admits by priority as well; URGENT senders are admitted in order of arrival."""
    inbox = PriorityInbox(session_capacity=1, urgent_capacity=1)
    for level in (NORMAL, URGENT):
        inbox.put_nowait(note(f"full {level}", level, "s"))
    await send(inbox, nursery, note("low", LOW, "s"), note("high", HIGH, "s"))
    await send(inbox, nursery, note("urgent 1", URGENT, "s"), note("urgent 2", URGENT, "s"))
    assert await drain(inbox) == ["full 0", "urgent 1", "urgent 2", "full 2", "high", "low"]


async def test_waiting_senders_alternate_between_owners(nursery, autojump_clock):
    """Ten waiting senders of one owner delay the only sender of another owner by one place."""
    inbox = PriorityInbox(capacity=1, owner_of=lambda session: session[0])
    inbox.put_nowait(note("x"))
    await send(inbox, nursery, *[note(f"a{number}") for number in range(10)], note("b0"))
    assert (await drain(inbox)).index("b0") == 2


async def test_cancelled_sender_leaves_the_admission_order(nursery, autojump_clock):
    """The next sender takes the place of a cancelled sender."""
    inbox = PriorityInbox(capacity=1)
    inbox.put_nowait(note("full"))
    with trio.CancelScope() as scope:
        nursery.start_soon(inbox.put, note("low", LOW))
        await wait_all_tasks_blocked()
        nursery.start_soon(inbox.put, note("normal"))
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as short:
            short.start_soon(inbox.put, note("high", HIGH))
            await wait_all_tasks_blocked()
            scope.cancel()
    assert await drain(inbox) == ["full", "normal", "low"]
