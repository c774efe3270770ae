"""Messages that are stopped before they arrive, across deaths of their process, and stops of messages queued before a restart."""

import pytest
import trio

from actgent import ActgentError, BareAgent, Interrupted, JournalFailed, ScriptedLLM, Text, open_runtime
from actgent.agents.session import internal_context
from actgent.journal.record_types import CancellationRecord, SessionClosedRecord
from actgent.sessions.session_context import UNWANTED_IDS
from tests.agents.slow_journal import SlowJournal


class FailingJournal(SlowJournal):
    """Writes `writes_left` steps, then raises `JournalFailed` for one step and works again."""

    writes_left = None

    async def _write(self, *args):
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left < 0:
                self.writes_left = None
                raise JournalFailed("the disk failed")
        await super()._write(*args)


class Life:
    """A process with one session, the requests of its model, and the values received by its handlers."""

    def __init__(self, journal):
        self.journal, self.asked, self.failed = journal, [], []

    def answer(self, chat):
        self.asked += [part.text for part in chat.messages[-1].parts if isinstance(part, Text)]
        return "ok"

    def hear(self, session):
        session.on_exception(lambda failure: self.failed.append((failure.kind, failure.message_id)))

    async def run(self, deed, **options):
        """Run a process for the duration of one operation. Return the journal's records afterwards."""
        async with self.journal.running() as journal, open_runtime(journal=journal) as runtime:
            agent = self.agent = BareAgent("a", llm=ScriptedLLM(self.answer, delay=10), grace=0, **options)
            agent.on_session(self.hear)
            await runtime.start(agent)
            await deed(self, await agent.ensure_session("ada", "s"))
            left = journal.stored()
            journal.is_slow = False
        return left


async def stop_before(life, session):
    await session.interrupt("unwanted", message_id="m1")


async def stop_and_say(life, session):
    """The message is in the journal, and its end is not."""
    await stop_before(life, session)
    await session.chat("transfer", message_id="m1")
    assert life.failed == []


async def stop_behind_another(life, session):
    await session.chat("first", message_id="m0")
    await stop_and_say(life, session)


async def stop_while_it_is_written(life, session):
    life.journal.is_slow = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: session.chat("transfer", message_id="m1"))
        await trio.sleep(0.5)
        await stop_before(life, session)
        nursery.cancel_scope.cancel()


async def stop_many(life, session):
    for number in range(UNWANTED_IDS + 1):
        await session.interrupt(message_id=f"old-{number}")
    await stop_before(life, session)


async def stop_and_go_on(life, session):
    """A snapshot of the session is made."""
    await stop_before(life, session)
    for number in range(20):
        await session.chat(f"more {number}", message_id=f"more-{number}")
        await session.wait_idle()


@pytest.mark.parametrize(
    "deed",
    [stop_before, stop_and_say, stop_behind_another, stop_while_it_is_written, stop_many, stop_and_go_on],
)
async def test_a_message_that_was_stopped_is_not_answered_by_the_next_process(
    deed, autojump_clock, monkeypatch
):
    """The message may arrive before the process dies or later. It ends once, also if it is sent again."""
    monkeypatch.setattr("actgent.sessions.session_record_writer.SNAPSHOT_RECORDS", 10)
    left = await Life(SlowJournal()).run(deed)

    async def say(life, session):
        await session.chat("transfer", message_id="m1")
        await session.chat("later", message_id="m2")
        await session.wait_idle()

    for lives in range(2):
        life = Life(left)
        left = await life.run(say)
        assert "transfer" not in life.asked
        assert ("later" in life.asked) is (lives == 0)
        assert life.failed == ([("interrupted", "m1")] if lives == 0 else [])


async def test_stop_is_written_once_and_removed_with_its_message(autojump_clock):
    """A repeated stop writes no second record; a new message with the id of an ended one is not stopped."""

    async def deed(life, session):
        for _ in range(3):
            await stop_before(life, session)
        await session.chat("transfer", message_id="m1")
        await session.wait_idle()
        await stop_before(life, session)
        records = await life.journal.load("s", agent="a")
        assert [each.message_id for each in records if isinstance(each, CancellationRecord)] == ["m1"]

    left = await Life(SlowJournal()).run(deed)

    async def look(life, session):
        assert internal_context(session).cancellations is None

    await Life(left).run(look)


async def test_messages_queued_before_a_restart_can_be_stopped_by_id(autojump_clock):
    """Otherwise they would stay queued and be answered."""

    async def say(life, session):
        for number in range(3):
            await session.chat(f"text {number}", message_id=f"m{number}")

    async def stop(life, session):
        await session.interrupt(message_id="m1")
        assert life.failed == [("interrupted", "m1")]
        await session.wait_idle()

    life = Life(await Life(SlowJournal()).run(say))
    await life.run(stop)
    assert life.asked == ["text 0", "text 2"]


async def test_message_that_waits_for_a_slot_can_be_stopped_by_id(autojump_clock):
    """The message had left the queue, and the agent failed when its turn began."""

    async def deed(life, session):
        await session.chat("first", message_id="m0")
        other = await life.agent.create_session("bob", session_id="t")
        for number in (1, 2):
            await other.chat(f"text {number}", message_id=f"m{number}")
        await other.interrupt(message_id="m1")
        await other.wait_idle()
        await session.chat("again", message_id="m3")
        alone = await life.agent.create_session("cy", session_id="u")
        await alone.chat("alone", message_id="m4")
        await alone.interrupt(message_id="m4")
        await session.wait_idle()
        await alone.chat("last", message_id="m5")
        await alone.wait_idle()

    life = Life(SlowJournal())
    with trio.fail_after(1000):
        await life.run(deed, max_concurrent_sessions=1)
    assert life.asked == ["first", "text 2", "again", "last"]
    assert life.failed == [("interrupted", "m1"), ("interrupted", "m4")]


@pytest.mark.parametrize("restarts", [False, True], ids=["same process", "next process"])
async def test_stop_applies_again_after_the_end_was_not_written(restarts, autojump_clock):
    """A message whose end was not written may be sent again. It is stopped again, and not answered."""
    journal = FailingJournal()
    outcomes = []

    async def send(life, session):
        reply = None
        with pytest.raises(ActgentError) as caught:
            reply = await life.agent.run("transfer", session=session, message_id="m1")
        assert reply is None
        outcomes.append(type(caught.value).__name__)
        await session.wait_idle()

    async def fail_once(life, session):
        await session.chat("first", message_id="m0")
        await session.wait_idle()
        await stop_before(life, session)
        journal.writes_left = 1  # the message is accepted; its failure is not written
        await send(life, session)
        if not restarts:
            await send(life, session)

    life = Life(journal)
    left = await life.run(fail_once)
    if restarts:
        life = Life(left)
        await life.run(send)
    assert "transfer" not in life.asked
    assert outcomes == ["JournalFailed", "Interrupted"]


async def interrupt_turn(session):
    await session.interrupt()


async def interrupt_message(session):
    await session.interrupt(message_id="m0")


async def interrupt_queued(session):
    await session.interrupt(message_id="m1")


async def interrupt_all(session):
    await session.interrupt(drop_queued=True)


@pytest.mark.parametrize("callers", [1, 2])
@pytest.mark.parametrize("interrupt", [interrupt_turn, interrupt_message, interrupt_queued, interrupt_all])
async def test_an_interruption_that_is_not_recorded_raises(interrupt, callers, autojump_clock):
    """The stopped message may be sent again and is answered then, so each caller of `interrupt` gets the journal's error."""
    journal = FailingJournal()
    stopped = "m1" if interrupt is interrupt_queued else "m0"
    outcomes = []

    async def stop(session):
        with pytest.raises(JournalFailed, match="the disk failed"):
            await interrupt(session)
        outcomes.append(interrupt)

    async def deed(life, session):
        await session.chat("text m0", message_id="m0")
        if interrupt in (interrupt_queued, interrupt_all):
            await session.chat("text m1", message_id="m1")
        await trio.sleep(1)
        journal.writes_left = 0
        async with trio.open_nursery() as nursery:
            for _ in range(callers):
                nursery.start_soon(stop, session)
        assert outcomes == [interrupt] * callers
        assert ("journal", stopped) in life.failed
        await session.wait_idle()
        life.asked.clear()
        assert (await life.agent.run(f"text {stopped}", session=session, message_id=stopped)).text == "ok"
        assert life.asked == [f"text {stopped}"]

    await Life(journal).run(deed)


async def test_a_repeated_interruption_stops_a_message_that_is_sent_again(autojump_clock):
    """The first call raised the journal's error. The second call is recorded before the message arrives."""
    journal = FailingJournal()

    async def deed(life, session):
        await session.chat("text", message_id="m0")
        await trio.sleep(1)
        journal.writes_left = 0
        with pytest.raises(JournalFailed):
            await interrupt_message(session)
        await interrupt_message(session)
        life.asked.clear()
        with pytest.raises(Interrupted):
            await life.agent.run("text", session=session, message_id="m0")
        assert life.asked == []

    await Life(journal).run(deed)


async def test_a_session_is_closed_although_the_end_of_its_turn_is_not_recorded(autojump_clock):
    """`aclose` returns, because the close is recorded: no message of a closed session is answered."""
    journal = FailingJournal()

    async def deed(life, session):
        await session.chat("text", message_id="m0")
        await trio.sleep(1)
        journal.writes_left = 0
        await session.aclose()
        assert life.failed == [("journal", "m0")]
        records = await journal.load("s", agent="a")
        assert any(isinstance(each, SessionClosedRecord) for each in records)

    await Life(journal).run(deed)
