"""Places in an inbox that are reserved before their messages are put."""

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actgent.actors import PriorityInbox
from actgent.errors import InboxFull
from actgent.messages import Priority


@attrs.frozen
class Note:
    """The least that an inbox asks of a message."""

    text: str
    session_id: str = "s"
    priority: Priority = Priority.NORMAL
    deadline: float | None = None


async def reserve(inbox, note):
    place = inbox.try_reserve(note)
    assert place is not None
    return place


async def test_reserved_place_counts_as_taken_without_a_message():
    """It is not handed out, and nobody else gets it."""
    inbox = PriorityInbox[Note](session_capacity=1)
    await reserve(inbox, Note("a"))
    assert inbox.try_reserve(Note("b")) is None
    with pytest.raises(InboxFull):
        inbox.put_nowait(Note("b"))
    assert inbox.poll() is None
    assert len(inbox) == 0


async def test_messages_run_in_reservation_order(autojump_clock):
    """However long each takes to come."""
    inbox = PriorityInbox[Note]()
    first = await reserve(inbox, Note("a"))
    await trio.sleep(1)
    second = await reserve(inbox, Note("b"))
    inbox.fill(second)
    inbox.fill(first)
    texts = [note.text for _ in range(2) if (note := inbox.poll()) is not None and inbox.release("s") is None]
    assert texts == ["a", "b"]


@pytest.mark.parametrize("priority", [Priority.NORMAL, Priority.URGENT])
async def test_released_place_goes_to_waiting_sender(priority, nursery):
    """Who gets a place, and no message with it."""
    inbox = PriorityInbox[Note](session_capacity=1, urgent_capacity=1)
    place = await reserve(inbox, Note("a", priority=priority))
    places = []

    async def wait():
        places.append(await inbox.reserve(Note("b", priority=priority)))

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    inbox.give_back(place)
    await wait_all_tasks_blocked()
    assert len(inbox) == 0
    inbox.give_back(places[0])
    assert inbox.statistics().sessions == 0


async def test_cancelled_or_late_sender_holds_no_place(autojump_clock):
    """The inbox is empty when the first place is given back."""
    inbox = PriorityInbox[Note](session_capacity=1)
    place = await reserve(inbox, Note("a"))
    with trio.move_on_after(1):
        await inbox.reserve(Note("b"))
    with pytest.raises(InboxFull):
        await inbox.reserve(Note("c", deadline=1))
    inbox.give_back(place)
    statistics = inbox.statistics()
    assert (statistics.waiting, statistics.senders, statistics.sessions) == (0, 0, 0)


async def test_first_message_is_claimed_directly_from_its_place():
    """As by filling it and polling."""
    inbox = PriorityInbox[Note](concurrency=1)
    first, second = await reserve(inbox, Note("a")), await reserve(inbox, Note("b"))
    assert inbox.claim_place(first)
    assert not inbox.claim_place(second)
    inbox.fill(second)
    inbox.release("s")
    assert inbox.poll() == Note("b")
    inbox.release("s")
    assert inbox.statistics().sessions == 0


async def test_reserved_urgent_place_is_not_an_urgent_message():
    """So nothing stops for one that may still be refused."""
    inbox = PriorityInbox[Note]()
    inbox.put_nowait(Note("a"))
    inbox.poll()
    place = await reserve(inbox, Note("b", priority=Priority.URGENT))
    assert not inbox.has_urgent("s")
    assert inbox.next_urgent("s") is None
    inbox.fill(place)
    assert inbox.next_urgent("s") == Note("b", priority=Priority.URGENT)


async def test_granted_message_ignores_inbox_bounds():
    """And keeps others out by that."""
    inbox = PriorityInbox[Note](session_capacity=1)
    inbox.put_nowait(Note("a"))
    inbox.fill(inbox.reserve_beyond(Note("b")))
    assert len(inbox) == 2
    inbox.poll()
    assert inbox.is_full(Note("c"))
