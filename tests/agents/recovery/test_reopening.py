"""Reopened sessions with concurrent callers, and with failing handlers."""

import pytest
import trio
import trio.testing

from actgent import (
    BareAgent,
    JournalDamaged,
    ScriptedLLM,
    SessionClosed,
    ToolCall,
    WouldDeadlock,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry
from actgent.journal.record_types import MessageAcceptedRecord, MessageAppendedRecord, SessionCreatedRecord
from actgent.messages import Message, Sender, Text
from actgent.testing import CrashingJournal, check_transcript


def make_agent(problems):
    @tool(effect="pure")
    async def look(order: str) -> str:
        """Look an order up."""
        return f"seen {order}"

    def answer(chat):
        problems.extend(check_transcript(chat))
        last = chat.messages[-1]
        if last.role == "tool":
            return f"done: {last.parts[0].text}"
        text = last.parts[0].text
        return ToolCall("look", {"order": text}) if text.startswith("order") else f"heard {text}"

    return BareAgent("clerk", llm=ScriptedLLM(answer, keep=0), tools=[look])


async def interrupt_at(inner, writes):
    """Return a session whose process died at the given write of its first turn."""
    dying = CrashingJournal(inner, writes)

    async def run():
        async with open_runtime(journal=dying) as runtime:
            agent = await runtime.start(make_agent([]))
            session = await agent.create_session("ada", session_id="s")
            await session.chat("order 1")
            await session.wait_idle()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await dying.died.wait()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("writes", range(2, 6))
@pytest.mark.parametrize("who", ["handler", "other task"])
async def test_queued_messages_run_before_new_ones_after_a_restart(writes, who, autojump_clock):
    """The interrupted turn ends first, also if `on_session` is slow or sends messages."""
    problems = []
    async with MemoryJournal().running() as journal:
        await interrupt_at(journal, writes)
        agent = make_agent(problems)
        received = []

        @agent.on_session
        async def attach(session):
            await trio.sleep(1)
            session.on_conversation(lambda reply: received.append(str(reply)))
            session.on_exception(lambda failure: received.append(failure.kind))
            if who == "handler":
                await session.chat("welcome back")

        async def intrude():
            session = await agent.open_session("s")
            await session.chat("welcome back")

        async with open_runtime(journal=journal) as runtime, trio.open_nursery() as nursery:
            nursery.start_soon(runtime.start, agent)
            if who == "other task":
                await trio.sleep(0.5)
                nursery.start_soon(intrude)
            await trio.sleep(10)
            session = await agent.open_session("s")
            await session.wait_idle()
            assert problems == []
            assert received == ["done: seen order 1", "heard welcome back"]
            texts = [message.text for message in session.history if message.text]
            assert texts == ["order 1", "done: seen order 1", "welcome back", "heard welcome back"]
            assert await journal.unfinished("clerk") == []


@pytest.mark.parametrize("how", ["wait_idle", "run"])
async def test_a_handler_cannot_wait_for_the_session_that_it_opens(how, autojump_clock):
    """The handler would wait for work that runs only after it; the session is reopened nevertheless."""
    async with MemoryJournal().running() as journal:
        await interrupt_at(journal, 3)
        agent, received = make_agent([]), []

        @agent.on_session
        async def attach(session):
            with pytest.raises(WouldDeadlock, match=how):
                await (session.wait_idle() if how == "wait_idle" else agent.run("hi", session=session))
            session.on_conversation(lambda reply: received.append(str(reply)))

        async with open_runtime(journal=journal) as runtime:
            await runtime.start(agent)
            session = await agent.open_session("s")
            await session.wait_idle()
        assert received == ["done: seen order 1"]


async def test_a_session_with_failing_handlers_keeps_its_messages(autojump_clock):
    """Its queued messages stay in the journal, and the next successful open processes all."""
    async with MemoryJournal().running() as journal:
        await interrupt_at(journal, 3)
        async with open_runtime(journal=journal) as runtime:
            agent, received = make_agent([]), []

            @agent.on_session
            async def attach(session):
                if not received:
                    received.append("failed")
                    await session.chat("welcome back")
                    raise ZeroDivisionError
                session.on_conversation(lambda reply: received.append(str(reply)))

            with pytest.raises(ZeroDivisionError):
                await runtime.start(agent)
            session = await agent.open_session("s")
            await session.wait_idle()
            assert received == ["failed", "done: seen order 1", "heard welcome back"]


async def test_cancelled_open_lets_the_next_caller_open_the_session(autojump_clock):
    """Handlers may open the session they are called for."""
    async with MemoryJournal().running() as journal:
        await interrupt_at(journal, 3)
        async with open_runtime(journal=journal) as runtime, trio.open_nursery() as nursery:
            agent, received, opened = make_agent([]), [], []

            @agent.on_session
            async def attach(session):
                assert await agent.open_session("s") is session
                await trio.sleep(1)
                session.on_conversation(lambda reply: received.append(str(reply)))

            async def open_again():
                opened.append(await agent.open_session("s"))

            with trio.move_on_after(0.5) as scope:
                await runtime.start(agent)
            assert scope.cancelled_caught
            for _ in range(3):
                nursery.start_soon(open_again)
            await trio.sleep(2)
            assert opened == [opened[0]] * 3
            await opened[0].wait_idle()
            assert received == ["done: seen order 1"]


@pytest.mark.parametrize("url", ["memory:", None])
async def test_concurrent_ensure_session_calls_share_one_session(url, autojump_clock):
    """This includes the first calls for the id. They return after the handlers are attached."""
    agent, attached, found = make_agent([]), [], []

    @agent.on_session
    async def attach(session):
        await trio.sleep(1)
        attached.append(session)

    async def request(number):
        session = await agent.ensure_session("ada", "s")
        assert attached == [session]
        await session.chat(f"hello {number}")
        found.append(session)

    async with open_runtime(journal=url) as runtime:
        await runtime.start(agent)
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(request, number)
        await found[0].wait_idle()
        assert found == [found[0]] * 5
        assert len(found[0].history) == 10


@pytest.mark.parametrize("writes", range(1, 6))
@pytest.mark.parametrize("how", ["delete", "close"])
async def test_a_session_may_be_closed_or_erased_while_it_is_opened(writes, how, autojump_clock):
    """Only the delivery of a stored answer continues, nothing remains, and no caller waits."""
    async with MemoryJournal().running() as journal:
        await interrupt_at(journal, writes)
        agent, received = make_agent([]), []

        @agent.on_session
        async def attach(session):
            session.on_conversation(lambda reply: received.append(str(reply)))
            opened.set()
            await trio.sleep(1)

        opened = trio.Event()
        async with open_runtime(journal=journal) as runtime, trio.open_nursery() as nursery:
            nursery.start_soon(runtime.start, agent)
            if writes == 1:  # it has no message that waits, so nobody opens it
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(agent.open_session, "s")
            await opened.wait()
            with trio.fail_after(30):
                if how == "delete":
                    await runtime.delete_session("s")
                else:
                    await agent._opener.running.sessions["s"].public_session.aclose()
            await trio.sleep(5)
            with pytest.raises((LookupError, SessionClosed)):
                await agent.open_session("s")
        assert received == ["done: seen order 1"] * (writes == 5)
        assert bool(await journal.load("s")) is (how == "close")
        assert await journal.unfinished("clerk") == []


OPENED = SessionCreatedRecord(owner=Sender("ada"), agent="clerk", created_at=1.0)
ACCEPTED = MessageAcceptedRecord(
    message=Message(session_id="s", id="m", sender=Sender("ada"), parts=(Text("hi"),))
)


@pytest.mark.parametrize(
    ("records", "number"),
    [
        ((OPENED, ACCEPTED, MessageAppendedRecord(message_id="lost")), 3),
        (
            (
                OPENED,
                MessageAppendedRecord(message_id="m", is_repeated=True),
                MessageAppendedRecord(message_id="n", joins=True),
                ACCEPTED,
            ),
            3,
        ),
        ((ACCEPTED, MessageAppendedRecord(message_id="m")), 1),
    ],
)
async def test_session_with_a_missing_record_names_the_dependent_record(records, number):
    """Other sessions continue, and the start of the agent skips the session, as it skips a damaged one."""
    async with MemoryJournal().running() as journal:
        entry = Entry(session_id="s", agent="clerk", records=records)
        await journal.commit(entry, epoch=await journal.acquire())
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(make_agent([]))
            assert (await agent.run("order 1")).text == "done: seen order 1"
            with pytest.raises(JournalDamaged, match=f"session 's' .* at record {number}: ") as caught:
                await agent.open_session("s")
            assert (caught.value.session_id, caught.value.record) == ("s", number)
