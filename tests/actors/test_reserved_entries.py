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
    """A message with the attributes that an inbox needs."""

    text: str
    session_id: str = "s"
    priority: Priority = Priority.NORMAL
    deadline: float | None = None


async def reserve(inbox, note):
    entry = inbox.try_reserve(note)
    assert entry is not None
    return entry


async def test_reserved_place_counts_as_taken_without_a_message():
    """A reserved entry is not available to other senders, and `poll` returns nothing for it."""
    inbox = PriorityInbox[Note](session_capacity=1)
    await reserve(inbox, Note("a"))
    assert inbox.try_reserve(Note("b")) is None
    with pytest.raises(InboxFull):
        inbox.put_nowait(Note("b"))
    assert inbox.poll() is None
    assert len(inbox) == 0


async def test_messages_run_in_reservation_order(autojump_clock):
    """Messages run in the order of their reservations, regardless of the order in which they are enqueued."""
    inbox = PriorityInbox[Note]()
    first = await reserve(inbox, Note("a"))
    await trio.sleep(1)
    second = await reserve(inbox, Note("b"))
    inbox.enqueue_reserved(second)
    inbox.enqueue_reserved(first)
    texts = [note.text for _ in range(2) if (note := inbox.poll()) is not None and inbox.release("s") is None]
    assert texts == ["a", "b"]


@pytest.mark.parametrize("priority", [Priority.NORMAL, Priority.URGENT])
async def test_released_place_goes_to_waiting_sender(priority, nursery):
    """The capacity of a cancelled reservation goes to the next waiting sender."""
    inbox = PriorityInbox[Note](session_capacity=1, urgent_capacity=1)
    entry = await reserve(inbox, Note("a", priority=priority))
    entries = []

    async def wait():
        entries.append(await inbox.reserve(Note("b", priority=priority)))

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    inbox.cancel_reservation(entry)
    await wait_all_tasks_blocked()
    assert len(inbox) == 0
    inbox.cancel_reservation(entries[0])
    assert inbox.statistics().sessions == 0


async def test_cancelled_or_late_sender_holds_no_place(autojump_clock):
    """A cancelled sender and a sender past its deadline leave the inbox empty."""
    inbox = PriorityInbox[Note](session_capacity=1)
    entry = await reserve(inbox, Note("a"))
    with trio.move_on_after(1):
        await inbox.reserve(Note("b"))
    with pytest.raises(InboxFull):
        await inbox.reserve(Note("c", deadline=1))
    inbox.cancel_reservation(entry)
    statistics = inbox.statistics()
    assert (statistics.waiting, statistics.senders, statistics.sessions) == (0, 0, 0)


async def test_first_message_is_claimed_directly_from_its_place():
    """Claiming a reserved entry has the effect of enqueuing it and polling."""
    inbox = PriorityInbox[Note](concurrency=1)
    first, second = await reserve(inbox, Note("a")), await reserve(inbox, Note("b"))
    assert inbox.claim_reserved(first)
    assert not inbox.claim_reserved(second)
    inbox.enqueue_reserved(second)
    inbox.release("s")
    assert inbox.poll() == Note("b")
    inbox.release("s")
    assert inbox.statistics().sessions == 0


async def test_reserved_urgent_place_is_not_an_urgent_message():
    """A reserved URGENT entry interrupts no turn, since its message may still be rejected."""
    inbox = PriorityInbox[Note]()
    inbox.put_nowait(Note("a"))
    inbox.poll()
    entry = await reserve(inbox, Note("b", priority=Priority.URGENT))
    assert not inbox.has_urgent("s")
    assert inbox.next_urgent("s") is None
    inbox.enqueue_reserved(entry)
    assert inbox.next_urgent("s") == Note("b", priority=Priority.URGENT)


async def test_granted_message_ignores_inbox_bounds():
    """A granted message exceeds the bounds, and counts against them for later senders."""
    inbox = PriorityInbox[Note](session_capacity=1)
    inbox.put_nowait(Note("a"))
    inbox.enqueue_reserved(inbox.reserve_over_capacity(Note("b")))
    assert len(inbox) == 2
    inbox.poll()
    assert inbox.is_full(Note("c"))
