"""Ctrl-C during waits: a task that left its wait is not rescheduled, and a task that is to be rescheduled has not left."""

import signal

import outcome
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actgent.actors import PriorityInbox
from actgent.actors.actor_ref import Promise
from actgent.messages import Message, Sender


@pytest.fixture
def press(monkeypatch):
    """Return a function `press(name)` that raises KeyboardInterrupt at the next call of that function of `trio.lowlevel`."""

    def at(name):
        call = getattr(trio.lowlevel, name)

        def pressed(*given):
            monkeypatch.setattr(trio.lowlevel, name, call)
            signal.raise_signal(signal.SIGINT)
            return call(*given)

        monkeypatch.setattr(trio.lowlevel, name, pressed)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    return at


def inbox_and_note():
    inbox = PriorityInbox()
    return inbox.get, lambda: inbox.put_nowait(Message(session_id="s", sender=Sender("u"), parts="hello"))


def promise_and_answer():
    promise = Promise()
    return promise.wait, lambda: promise.settle(outcome.Value("done"))


@pytest.mark.parametrize("made", [inbox_and_note, promise_and_answer])
def test_sender_cancelled_at_wait_start_is_not_woken(made, press):
    """A sender that was interrupted as its wait began is not rescheduled, which would break trio."""

    async def live():
        wait, wake = made()
        press("wait_task_rescheduled")
        with pytest.raises(KeyboardInterrupt):
            await wait()
        wake()
        await trio.lowlevel.checkpoint()

    trio.run(live)


def gate_and_room():
    inbox = PriorityInbox(capacity=1)
    first, second = (Message(session_id=name, sender=Sender("u"), parts="hello") for name in "st")
    inbox.put_nowait(first)
    return lambda: inbox.put(second), inbox.poll


@pytest.mark.parametrize("made", [inbox_and_note, gate_and_room])
def test_admitted_sender_is_woken(made, press):
    """An admitted sender is rescheduled despite Ctrl-C; otherwise nothing could cancel it."""

    async def live():
        wait, wake = made()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            press("reschedule")
            wake()
            with trio.fail_after(10):
                await trio.Event().wait()

    with pytest.RaisesGroup(KeyboardInterrupt, allow_unwrapped=True, flatten_subgroups=True):
        trio.run(live)
