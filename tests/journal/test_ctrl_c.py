"""Ctrl-C during writes of a session: the next start can always resume."""

import itertools
import signal

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.actors.inbox import PriorityInbox
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import (
    REFUSED,
    MessageAppendedRecord,
    MessageEndRecord,
    NextTimerRecord,
    SessionCreatedRecord,
    StateChangeRecord,
)
from actgent.messages import Sender
from actgent.runtime.turn_runner import TurnRunner
from actgent.sessions.session_record_writer import SessionLog
from actgent.support.storage_thread import StorageThread
from actgent.turns.turn_lifecycle import TurnLifecycle


@pytest.fixture
def press(monkeypatch):
    """Return a function `press(where, name)` that raises KeyboardInterrupt at the first call of that method."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def at(where, name):
        method, pressed = getattr(where, name), []

        def wrapped(*args, **options):
            if not pressed:
                pressed.append(True)
                signal.raise_signal(signal.SIGINT)
            return method(*args, **options)

        monkeypatch.setattr(where, name, wrapped)

    yield at
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_during_the_end_of_a_turn_writes_the_end(press, monkeypatch, tmp_path):
    """Without the end, the next start would answer a message of the session again."""
    url = f"sqlite:///{tmp_path}/a.db"
    release = TurnRunner._release

    def release_beside_others(self, context):
        release(self, context)
        self.pump()  # as the end of another session's turn does in the same moment

    async def live(answers):
        agent = BareAgent("clerk", llm=ScriptedLLM(answers))
        async with open_runtime(journal=url) as runtime:
            await runtime.start(agent)
            session = await agent.ensure_session("ada", "s")
            for text in ("first", "second"):
                await session.chat(text, message_id=text)
            await session.wait_idle()
        return agent

    press(TurnLifecycle, "_write_end")
    with monkeypatch.context() as patched:
        patched.setattr(TurnRunner, "_release", release_beside_others)
        with pytest.RaisesGroup(KeyboardInterrupt, allow_unwrapped=True, flatten_subgroups=True):
            trio.run(live, ["1", "2"])
    trio.run(live, ["2"])

    async def read():
        async with open_runtime(journal=url) as runtime:
            return await runtime.journal.load("s")

    records = [each for each in trio.run(read) if isinstance(each, MessageAppendedRecord | MessageEndRecord)]
    if isinstance(records[2], MessageEndRecord):  # the second was cut on its way in, refused, and said again
        assert records.pop(2).failed == REFUSED
    assert [(type(each), each.message_id) for each in records] == [
        (MessageAppendedRecord, "first"),
        (MessageEndRecord, "first"),
        (MessageAppendedRecord, "second"),
        (MessageEndRecord, "second"),
    ]


async def open_log(journal):
    """Return the log of a session whose first record is written.

    A journal rejects further records of a session without it.
    """
    log = SessionLog("s", "clerk", journal, await journal.acquire())
    log.record_creation(SessionCreatedRecord(owner=Sender("ada"), created_at=1.0))
    await log.flush()
    return log


@pytest.mark.parametrize("write", ["flush_soon", "flush", "write", "record_state_change"])
def test_accepted_steps_are_written_after_ctrl_c(press, write):
    """A session has no records after a missing one."""
    first, second = (StateChangeRecord(changes={"n": number}) for number in (1, 2))

    async def live():
        async with MemoryJournal().running() as journal:
            log = await open_log(journal)
            log.add(first)
            press(SessionLog, "_entry")
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - at the next pause at the latest
                done = getattr(log, write)(*([second] if write in ("write", "record_state_change") else []))
                if done is not None:
                    await done
                await trio.lowlevel.checkpoint()
            log.add(second)
            await log.flush()
            return await journal.load("s")

    assert list(trio.run(live))[1:3] == [first, second]


@pytest.mark.parametrize("is_date", [True, False])
def test_a_date_or_state_change_is_written_despite_ctrl_c(press, is_date):
    """A schedule is written with the next step; a change of state is a step."""
    changed = StateChangeRecord(changes={"n": 1})

    async def live():
        async with MemoryJournal().running() as journal:
            log = await open_log(journal)
            if is_date:
                log.set_timer(5.0)
            press(SessionLog, "_entry")
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - at the next pause at the latest
                if is_date:
                    await log.write(changed)
                else:
                    log.record_state_change(changed)
                await trio.lowlevel.checkpoint()
            await log.flush()
            return await journal.load("s")

    assert trio.run(live)[1:] == ((NextTimerRecord(at=5.0), changed) if is_date else (changed,))


def test_a_lost_wakeup_does_not_block_the_shutdown(press, monkeypatch, tmp_path):
    """The shutdown processes the queue until it is empty, regardless of counters."""
    tried, withdraw = [], PriorityInbox.withdraw

    def withdraw_seldom(self, session_id):
        tried.append(session_id)
        assert len(tried) < 100
        return withdraw(self, session_id)

    async def hang(chat):
        await trio.sleep_forever()

    async def live():
        async with open_runtime(journal=f"sqlite:///{tmp_path}/a.db") as runtime:
            agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(hang)))
            session = await agent.create_session("ada", "first")
            await session.chat("second")

    monkeypatch.setattr(PriorityInbox, "withdraw", withdraw_seldom)
    press(PriorityInbox, "_push")
    with pytest.RaisesGroup(KeyboardInterrupt, allow_unwrapped=True, flatten_subgroups=True):
        trio.run(live)


def test_a_caller_of_the_storage_is_woken_once(press, tmp_path):
    """A second wake-up of a task that does not wait would end the process by an internal error of trio."""

    async def live():
        async with open_journal(f"sqlite:///{tmp_path}/a.db") as journal:
            await journal.acquire()
            press(StorageThread, "_begin")
            with pytest.raises(KeyboardInterrupt):
                await journal.load("s", agent="clerk")
            return await journal.load("s", agent="clerk")

    assert trio.run(live) == ()


async def live_shortly():
    """Run two turns of one session and one turn of another, of an agent whose inbox has room for one."""
    agent = BareAgent("clerk", llm=ScriptedLLM(["ok"], repeat=True), inbox_capacity=1)
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", "hello")
        async with trio.open_nursery() as nursery:
            for text in ("first", "second", "third"):
                nursery.start_soon(agent.run, text)
        await session.wait_idle()


def test_each_waiter_is_woken_once(press, monkeypatch):
    """Workers, senders and steps are woken once, wherever Ctrl-C arrives."""
    wait, calls = trio.lowlevel.wait_task_rescheduled, []

    def pressed(abort):
        calls.append(True)
        if len(calls) == at:
            signal.raise_signal(signal.SIGINT)
        return wait(abort)

    monkeypatch.setattr(trio.lowlevel, "wait_task_rescheduled", pressed)
    for at in itertools.count(1):
        calls.clear()
        try:
            trio.run(live_shortly)
        except BaseException as error:  # noqa: BLE001 - it is looked at
            group = error if isinstance(error, BaseExceptionGroup) else BaseExceptionGroup("", [error])
            assert group.split(KeyboardInterrupt)[1] is None, at
        else:
            break  # it came nowhere
    assert at > 10


def _plain(hear):
    return lambda _: hear()


def _awaited(hear):
    async def handler(_):
        await trio.lowlevel.checkpoint()
        hear()

    return handler


@pytest.mark.parametrize("made", [_plain, _awaited])
def test_ctrl_c_interrupts_a_handler_at_the_end_of_a_turn(made):
    """The handler of the user may run forever."""
    went_on = []

    def hear():
        signal.raise_signal(signal.SIGINT)
        went_on.append(True)

    async def live():
        async with open_runtime(journal="memory:") as runtime:
            agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM([])))
            session = await agent.create_session("ada")
            session.on_exception(made(hear))
            await session.chat("one")
            await session.wait_idle()

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.RaisesGroup(KeyboardInterrupt, allow_unwrapped=True, flatten_subgroups=True):
        trio.run(live)
    assert went_on == []
