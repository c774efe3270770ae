"""Dead letters: listed, bounded, and redelivered once."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actgent.actors import Actor, Supervision, open_system
from actgent.errors import ActorFailed, DeadLetterGone, InboxFull
from actgent.messages import Priority


class Gate(Actor):
    """An actor that raises for each message until it is opened."""

    def __init__(self, done: list[object], is_open: trio.Event) -> None:
        self.done = done
        self.is_open = is_open

    async def receive(self, payload: object) -> object:
        if isinstance(payload, float):
            await trio.sleep(payload)
        if not self.is_open.is_set():
            raise ValueError("closed")
        self.done.append(payload)
        return payload


@pytest.fixture
async def world():
    """A system with an actor that gave up one message, the list of processed messages, and the event that opens the actor."""
    done: list[object] = []
    is_open = trio.Event()
    async with open_system(supervision=Supervision(deliveries=1), capacity=1) as system:
        gate = await system.spawn(lambda: Gate(done, is_open), name="gate")
        await gate.tell("letter", priority=Priority.HIGH)
        await trio.sleep(1)
        yield system, done, is_open


async def test_dead_letter_has_payload_actor_reason_and_time(world, autojump_clock):
    """A dead letter has payload, actor, reason, time and priority."""
    system, *_ = world
    (letter,) = system.dead_letters
    assert (letter.actor, letter.payload, letter.priority) == ("gate", "letter", Priority.HIGH)
    assert letter.reason == "it failed 1 time, last with ValueError"
    assert isinstance(letter.error, ValueError)
    assert letter.at > 0


async def test_redelivered_letter_is_removed_after_acceptance(world, autojump_clock):
    """A dead letter is removed when it is accepted; a second redelivery raises an error."""
    system, done, is_open = world
    (letter,) = system.dead_letters
    is_open.set()
    await system.send_again(letter)
    assert system.dead_letters == ()
    await system.wait_idle()
    assert done == ["letter"]
    with pytest.raises(DeadLetterGone, match="'gate' cannot be sent: it was sent already"):
        await system.send_again(letter)


async def test_concurrent_redelivery_delivers_once(world, autojump_clock):
    """While one redelivery waits for room, a second one raises an error that says so."""
    system, done, is_open = world
    (letter,) = system.dead_letters
    is_open.set()
    gate = system.find("gate")
    await gate.tell(5.0)
    await wait_all_tasks_blocked()
    await gate.tell("fills the inbox")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(system.send_again, letter)
        await wait_all_tasks_blocked()
        with pytest.raises(DeadLetterGone, match="another task is sending it"):
            await system.send_again(letter)
        assert system.dead_letters == (letter,)
    await system.wait_idle()
    assert sorted(map(str, done)) == ["5.0", "fills the inbox", "letter"]


async def test_undeliverable_letter_stays_in_the_list(world, autojump_clock):
    """A redelivery that is cancelled, finds no room or finds no actor keeps the letter in the list."""
    system, done, is_open = world
    (letter,) = system.dead_letters
    is_open.set()
    gate = system.find("gate")
    await gate.tell(100.0)
    await wait_all_tasks_blocked()
    await gate.tell("fills the inbox")
    with trio.move_on_after(1):
        await system.send_again(letter)
    with pytest.raises(InboxFull):
        await system.send_again(letter)
    assert letter in system.dead_letters
    gate.stop()
    await wait_all_tasks_blocked()
    with pytest.raises(ActorFailed, match="no actor of this name is running"):
        await system.send_again(letter)
    await system.spawn(lambda: Gate(done, is_open), name="gate")
    await system.send_again(letter)
    await system.wait_idle()
    assert done == ["letter"]


async def test_equal_letters_are_distinct(world, autojump_clock):
    """Two letters with equal contents are redelivered separately."""
    system, done, is_open = world
    await system.find("gate").tell("letter")
    await trio.sleep(1)
    first, second = system.dead_letters
    is_open.set()
    await system.send_again(second)
    assert [each is first for each in system.dead_letters] == [True]
    await system.send_again(first)
    await system.wait_idle()
    assert done == ["letter"] * 2


async def test_message_to_an_ended_actor_is_a_dead_letter(world, autojump_clock):
    """`tell` to an ended actor raises and keeps a dead letter; `ask` raises and keeps none, since its caller has the error."""
    system, *_ = world
    gate = system.find("gate")
    gate.stop()
    await wait_all_tasks_blocked()
    for tell in (gate.tell, gate.ask):
        with pytest.raises(ActorFailed, match="it was stopped"):
            await tell("too late")
    with pytest.raises(ActorFailed):
        gate.tell_nowait("too late")
    assert [letter.payload for letter in system.dead_letters] == ["letter", "too late", "too late"]


async def test_repr_shows_the_state(world, autojump_clock):
    """The representations of system, reference and inbox show their state in one line."""
    system, *_ = world
    gate = system.find("gate")
    await gate.tell(5.0)
    await wait_all_tasks_blocked()
    await gate.tell("waits")
    assert repr(gate) == "<ActorRef 'gate', 1 waiting>"
    assert repr(system) == "<ActorSystem: 1 actor, 1 busy, 1 dead letter>"
    gate.stop()
    await wait_all_tasks_blocked()
    assert repr(gate) == "<ActorRef 'gate', gone>"
