"""Byte limits of the inbox: of one message, of all queued messages, and of URGENT messages."""

import random

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actgent.actors import Actor, open_system
from actgent.actors.inbox import PriorityInbox
from actgent.errors import InboxFull, MessageTooLarge
from actgent.messages import Priority

NORMAL, URGENT = Priority.NORMAL, Priority.URGENT


@attrs.frozen(eq=False)
class Parcel:
    """A message with a size in bytes."""

    size: int
    session_id: str = "s"
    priority: Priority = NORMAL
    deadline: float | None = None


def make(**options):
    return PriorityInbox[Parcel]("ada", size_of=lambda parcel: parcel.size, **options)


def test_oversized_message_error_names_the_size():
    """The error names the size of the message and the limit, which is at most the bound of the inbox."""
    inbox = make(message_bytes=10, capacity_bytes=8)
    inbox.check_size(Parcel(8))
    with pytest.raises(
        MessageTooLarge, match="has 9 bytes, and ada takes messages of at most 8 bytes"
    ) as caught:
        inbox.check_size(Parcel(9))
    assert (caught.value.size, caught.value.limit, caught.value.owner) == (9, 8, "ada")


@pytest.mark.parametrize("priority", [NORMAL, URGENT])
def test_queued_bytes_are_bounded(priority):
    """A message that leaves frees its bytes; URGENT messages have a bound of the same size."""
    inbox = make(capacity_bytes=10)
    for size in (4, 6):
        inbox.put_nowait(Parcel(size, f"s{size}", priority), now=0)
    assert inbox.statistics().bytes == 10
    with pytest.raises(InboxFull, match=r"is full \(10 bytes\)") as caught:
        inbox.put_nowait(Parcel(1, "other", priority), now=0)
    assert (caught.value.unit, caught.value.capacity) == ("byte", 10)
    other = URGENT if priority == NORMAL else NORMAL
    inbox.put_nowait(Parcel(10, "other", other), now=0)
    inbox.put_nowait(Parcel(0, "empty", priority), now=0)
    out = [inbox.get_nowait() for _ in range(4)]
    for parcel in out:
        inbox.release(parcel.session_id)
    assert inbox.statistics().bytes == 0
    assert inbox.statistics().sessions == 0


async def test_each_removal_releases_the_bytes():
    """Bytes are freed by take, withdraw, hand-back, and by the take of a message restored beyond the bound."""
    inbox = make(capacity_bytes=10)
    entry = inbox.restore(Parcel(30), now=0)
    assert inbox.statistics().bytes == 30
    inbox.remove(entry)
    inbox.cancel_reservation(inbox.try_reserve(Parcel(10)))
    inbox.put_nowait(Parcel(10), now=0)
    assert [parcel.size for parcel in inbox.withdraw("s")] == [10]
    entry = inbox.try_reserve(Parcel(10))
    assert inbox.claim_reserved(entry)
    inbox.release("s")
    assert inbox.statistics().bytes == 0


async def test_removed_large_message_admits_several_senders(autojump_clock):
    """No sender waits although there is room, and small messages do not overtake a large message that arrived first."""
    inbox, order = make(capacity_bytes=10), []

    async def send(parcel):
        await inbox.put(parcel)
        order.append(parcel.size)

    async with trio.open_nursery() as nursery:
        inbox.put_nowait(Parcel(10, "first"), now=0)
        for size in (3, 4, 9, 1):
            nursery.start_soon(send, Parcel(size, f"s{size}", NORMAL, 100))
            await wait_all_tasks_blocked()
        inbox.release(inbox.get_nowait().session_id)
        await wait_all_tasks_blocked()
        assert sorted(order) == [3, 4]
        for _ in range(2):
            inbox.release(inbox.get_nowait().session_id)
        await wait_all_tasks_blocked()
        assert sorted(order[2:]) == [1, 9]
    assert inbox.statistics().bytes == 10


@pytest.mark.parametrize("priority", [NORMAL, URGENT])
async def test_cancelled_sender_releases_its_bytes(priority, autojump_clock):
    """A sender whose deadline passes or that is cancelled frees its place in the session."""
    inbox = make(capacity_bytes=10, session_capacity=2, urgent_capacity=2)
    inbox.put_nowait(Parcel(10, "a", priority), now=0)
    with pytest.raises(InboxFull, match="10 bytes"):
        await inbox.put(Parcel(5, "b", priority, 1.0))
    with trio.move_on_after(1):
        await inbox.put(Parcel(5, "b", priority, 9.0))
    assert inbox.sessions() == ["a"]
    inbox.release(inbox.get_nowait().session_id)
    assert inbox.statistics().bytes == 0
    with trio.fail_after(1):
        await inbox.wait_idle()


@pytest.mark.parametrize("seed", range(20))
async def test_random_senders_respect_bounds_and_are_all_admitted(seed, autojump_clock):
    """With random URGENT and other senders no bound is exceeded and no wake-up is lost."""
    chance = random.Random(seed)
    inbox = make(capacity_bytes=20, capacity=6, session_capacity=3, urgent_capacity=2)
    taken = []

    async def send():
        await trio.sleep(chance.random())
        priority = URGENT if chance.random() < 0.3 else NORMAL
        parcel = Parcel(chance.randrange(12), chance.choice("abc"), priority, 1000)
        if chance.random() < 0.2:
            with trio.move_on_after(chance.random() * 3):
                await inbox.put(parcel)
                taken.append(parcel)
        else:
            await inbox.put(parcel)
            taken.append(parcel)

    async def take():
        while True:
            parcel = await inbox.get()
            statistics = inbox.statistics()
            assert statistics.bytes <= 40
            assert statistics.waiting <= 6
            await trio.sleep(chance.random() / 4)
            inbox.release(parcel.session_id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        async with trio.open_nursery() as senders:
            for _ in range(60):
                senders.start_soon(send)
        await inbox.wait_idle()
        assert trio.current_time() < 300
        assert inbox.statistics().bytes == inbox.statistics().senders == 0
        nursery.cancel_scope.cancel()
    assert len(taken) >= 40


class Keeper(Actor):
    """An actor that ignores its messages."""

    async def receive(self, payload: object) -> object:
        await trio.sleep(1)
        return len(payload)


async def test_payload_bytes_of_plain_actors_are_counted(autojump_clock):
    """A payload that is larger than the inbox is rejected; objects other than bytes and text have no size."""
    large = bytes(60_000_000)
    async with open_system() as system:
        ref = await system.spawn(Keeper, name="keeper")
        for send in (ref.tell, ref.ask):
            with pytest.raises(MessageTooLarge):
                await send(bytes(100_000_001))
        await ref.tell(large)
        await wait_all_tasks_blocked()
        await ref.tell(large)
        with pytest.raises(InboxFull, match="100,000,000 bytes"):
            ref.tell_nowait(large)
        ref.tell_nowait([large] * 5)
        assert await ref.ask("é" * 3) == 3
