"""Answers without a live handler are written with the end of their turn, for readers of the journal."""

import pytest
import trio

from actgent import Agent, BareAgent, ScriptedLLM, open_runtime
from actgent.errors import JournalFailed
from actgent.events import TurnEnded
from actgent.journal.group_commit.base_journal_with_group_commit import FLUSH_DELAY_SECONDS
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import (
    AgentMessageRecord,
    DeliveryRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    SessionCreatedRecord,
)
from actgent.protocols.protocol_interface import Continue, Protocol, SendReply
from actgent.sessions.subscriptions import FollowedRecord


class NotingJournal(MemoryJournal):
    """A journal that records the kinds and the time of each written row. It fails or blocks while its flags are set."""

    def __init__(self):
        super().__init__()
        self.rows = []
        self.is_failing = False
        self.goes_on = trio.Event()
        self.goes_on.set()

    async def _write(self, rows, heads, epoch):
        await self.goes_on.wait()
        if self.is_failing:
            raise JournalFailed("the disk is what it is")
        await super()._write(rows, heads, epoch)

    def _note_written(self, transaction):
        super()._note_written(transaction)
        for records in transaction.original_records:
            self.rows.append((trio.current_time(), [type(each) for each in records]))


def kinds_of(journal):
    return [kinds for _, kinds in journal.rows]


async def records_of(follower):
    """Return the kinds of the records that arrive within ten seconds."""
    kinds = []
    with trio.move_on_after(10):
        while True:
            item = await follower.receive()
            if isinstance(item, FollowedRecord):
                kinds.append(type(item.record))
    return kinds


WHOLE = [MessageAppendedRecord, AgentMessageRecord, DeliveryRecord, MessageEndRecord]


async def test_answer_without_handlers_is_written_with_the_end_of_its_turn(autojump_clock):
    """The write begins at once, without the delay of steps without a waiting caller."""
    async with NotingJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
        session = await agent.create_session("ada", session_id="s")
        async with session.follow() as follower:
            assert await records_of(follower) == [SessionCreatedRecord]
            journal.rows.clear()
            started = trio.current_time()
            await session.chat("one")
            assert await records_of(follower) == [MessageAcceptedRecord, *WHOLE]
        assert {at for at, _ in journal.rows} == {started}
        # A follower may have had Appended written before the end of the turn.
        assert kinds_of(journal)[-1][-3:] == WHOLE[-3:]


@pytest.mark.parametrize("method", ["on_conversation", "on_event", "on_exception", "on_routing"])
async def test_handled_outcomes_are_written_before_delivery(method, autojump_clock):
    async with NotingJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
        session = await agent.create_session("ada", session_id="s")
        written = []
        getattr(session, method)(
            lambda _: written.append([MessageAppendedRecord, AgentMessageRecord] in kinds_of(journal))
        )
        journal.rows.clear()
        await session.chat("one")
        await session.wait_idle()
        assert written == [True] * (method == "on_conversation")
        await trio.sleep(1)
        assert kinds_of(journal) == [
            [MessageAcceptedRecord],
            [MessageAppendedRecord, AgentMessageRecord],
            [DeliveryRecord, MessageEndRecord],
        ]


async def test_hooks_run_after_their_records_are_written(autojump_clock):
    async with NotingJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent, written = BareAgent("a", llm=ScriptedLLM(["hi"])), []

        @agent.on_message
        def hear(message):
            if message.sender.kind == "assistant":
                written.append([MessageAppendedRecord, AgentMessageRecord] in kinds_of(journal))

        await runtime.start(agent)
        session = await agent.create_session("ada", "one", session_id="s")
        await session.wait_idle()
        assert written == [True]


async def test_end_events_follow_the_written_records(autojump_clock):
    """Data that observers read at the end of a turn therefore survives a crash."""
    async with NotingJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
        session = await agent.create_session("ada", session_id="s")
        async with runtime.events() as events:
            journal.rows.clear()
            await session.chat("one")
            while not isinstance(await events.receive(), TurnEnded):
                pass
            assert kinds_of(journal) == [[MessageAcceptedRecord], [MessageAppendedRecord, AgentMessageRecord]]


async def test_answer_is_written_before_the_caller_receives_it(autojump_clock):
    async with NotingJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
        session = await agent.create_session("ada", session_id="s")
        journal.rows.clear()
        assert (await agent.run("one", session=session)).text == "hi"
        assert [MessageAppendedRecord, AgentMessageRecord] in kinds_of(journal)


async def test_idle_session_has_written_its_answers(autojump_clock):
    """Two callers wait for the idle session, and neither returns before the write."""
    async with NotingJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
        session = await agent.create_session("ada", session_id="s")
        journal.rows.clear()
        found = []

        async def wait():
            await session.wait_idle()
            found.append(kinds_of(journal))

        await session.chat("one")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
        assert found == [[[MessageAcceptedRecord], WHOLE]] * 2


async def test_idle_session_has_written_answers_before_a_failed_turn(autojump_clock):
    """The journal blocks from the first answer on, and no caller flushes it for the second message."""
    async with NotingJournal().running() as journal, open_runtime(journal=journal) as runtime:
        both_are_in = trio.Event()

        async def answer(chat):
            await both_are_in.wait()
            if journal.goes_on.is_set():
                journal.goes_on = trio.Event()
                return "hi"
            raise ValueError("no answer")

        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(answer)))
        session = await agent.create_session("ada", session_id="s")
        await session.chat("one")
        await session.chat("two")
        both_are_in.set()
        with trio.move_on_after(5) as waiting:
            await session.wait_idle()
        assert waiting.cancelled_caught
        journal.goes_on.set()
        await session.wait_idle()
        assert any(kinds[: len(WHOLE)] == WHOLE for kinds in kinds_of(journal))


async def test_answer_is_delivered_once_after_a_journal_failure(autojump_clock):
    """No handler received the answer. A follower receives it once, when the journal works; the session continues meanwhile."""
    async with NotingJournal().running() as journal, open_runtime(journal=journal) as runtime:

        def answer(chat):
            journal.is_failing = len(chat.messages) > 1
            return "hi"

        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(answer)))
        session = await agent.create_session("ada", session_id="s")
        async with session.follow() as follower:
            await session.chat("one")
            assert await records_of(follower) == [SessionCreatedRecord, MessageAcceptedRecord, *WHOLE]
            await session.chat("two")
            await session.wait_idle()
            assert await records_of(follower) == [MessageAcceptedRecord]
            journal.is_failing = False
            assert await records_of(follower) == WHOLE


async def test_fenced_session_becomes_idle(autojump_clock):
    """The other process answers unwritten messages, and waiting callers get no error."""
    async with NotingJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
        session = await agent.create_session("ada", session_id="s")
        await session.chat("one")
        await trio.sleep(1)
        await journal.acquire()
        await session.wait_idle()
        assert session.status == "idle"


class Muttering(Protocol):
    """A model that writes text, thinking and more text in one turn."""

    name = "muttering"
    template = "x"

    def read(self, answer, view):
        said, goes_on = SendReply(text=answer.text), Continue("end" if view.stage else "thinks", "Go on.")
        return {"end": [said], "thinks": [goes_on]}.get(view.stage, [said, goes_on])


async def test_answers_are_written_before_the_turn_continues(autojump_clock):
    """A second model call follows a durable first answer, so a crash repeats only later steps."""
    async with NotingJournal().running() as journal, open_runtime(journal=journal) as runtime:
        found = []

        def answer(chat):
            found.append(kinds_of(journal))
            return "hm"

        agent = await runtime.start(Agent("a", llm=ScriptedLLM(answer), protocol=Muttering()))
        session = await agent.create_session("ada", session_id="s")
        journal.rows.clear()
        await session.chat("one")
        await session.wait_idle()
        first = [[MessageAcceptedRecord], [MessageAppendedRecord, AgentMessageRecord, DeliveryRecord]]
        assert found == [[[MessageAcceptedRecord]], first, first]
        assert kinds_of(journal) == [*first, [AgentMessageRecord] * 4 + [DeliveryRecord, MessageEndRecord]]


async def test_readers_do_not_change_the_commit_interval_of_a_relaxed_journal(autojump_clock):
    """Such a journal writes queued steps together."""
    async with NotingJournal().running() as journal:
        async with open_runtime(journal=journal, durability="relaxed") as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
            session = await agent.create_session("ada", session_id="s")
            started = trio.current_time()
            await session.chat("one")
            await session.wait_idle()
            assert trio.current_time() == started
            await trio.sleep(1)
        ((at, kinds),) = journal.rows
        assert kinds == [SessionCreatedRecord, MessageAcceptedRecord, *WHOLE]
        assert at == started + FLUSH_DELAY_SECONDS
