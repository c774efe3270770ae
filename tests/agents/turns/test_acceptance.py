"""An accepted message runs once; a rejected or cancelled one never runs and leaves nothing."""

import gc
from functools import partial

import pytest
import trio
import trio.testing

from actgent import BareAgent, InboxFull, Limits, ScriptedLLM, open_runtime
from actgent.errors import ActgentError
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import MessageAcceptedRecord
from actgent.runtime.sessions import session_table
from tests.agents.slow_journal import SlowJournal


def texts(session):
    """Return the users' messages in the record."""
    return [message.text for message in session.history if message.sender.kind == "user"]


async def fill(agent, name="ada"):
    """A session with one message at work and one that waits: its inbox, of one place, is full."""
    session = await agent.create_session(name, session_id=name)
    await session.chat("running")
    await session.chat("queued")
    return session


async def outcome_of(call, *args, **options):
    """Return the result of a call: "in", or the name of its error."""
    try:
        await call(*args, **options)
    except ActgentError as error:
        return type(error).__name__
    return "in"


# --- what was refused, or cancelled ----------------------------------------------------------


@pytest.mark.parametrize("how", ["refused", "cancelled"])
@pytest.mark.parametrize("later", ["a restart", "sleep"])
async def test_message_rejected_by_a_full_inbox_never_runs(how, later, autojump_clock, monkeypatch):
    """It does not run after a restart or reload, for any other messages that waited for a slot."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 2)
    received_texts = []

    def answer(chat):
        received_texts.append(chat.messages[-1].parts[0].text)
        return "ok"

    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(
                BareAgent("a", llm=ScriptedLLM(answer, delay=10), session_inbox_capacity=1, grace=0)
            )
            session = await fill(agent)

            async def transfer():
                with trio.move_on_after(1 if how == "cancelled" else 60):
                    assert await outcome_of(session.chat, "transfer", enqueue_timeout=2) == "InboxFull"

            async with trio.open_nursery() as nursery:
                nursery.start_soon(transfer)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(session.chat, "later")
            if later == "sleep":
                await session.wait_idle()
                del session
                for number in range(5):
                    await agent.create_session(f"{number}")
                gc.collect()
                await (await agent.open_session("ada")).wait_idle()
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(answer, delay=10)))
            session = await agent.open_session("ada")
            await session.wait_idle()
            assert texts(session) == ["running", "queued", "later"]
            assert "transfer" not in received_texts


async def test_message_rejected_by_a_full_inbox_is_never_written(autojump_clock):
    """So no crash can restore it."""
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(
            BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True, delay=10), session_inbox_capacity=1, grace=0)
        )
        session = await fill(agent)
        assert await outcome_of(session.chat, "transfer", enqueue_timeout=1) == "InboxFull"
        accepted = [
            each.message.text for each in await journal.load("ada") if isinstance(each, MessageAcceptedRecord)
        ]
    assert accepted == ["running", "queued"]


async def test_a_chat_that_is_cancelled_while_it_is_written_never_runs(autojump_clock):
    """This holds whether the message was written or not. Its inbox slot is free again."""
    async with SlowJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(
                BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True), session_inbox_capacity=1)
            )
            session = await agent.create_session("ada", session_id="ada")
            journal.is_slow = True
            with trio.move_on_after(0.5):
                await session.chat("transfer")
            journal.is_slow = False
            await session.chat("hello")
            await session.wait_idle()
            inbox = agent._opener.running.inbox.statistics()
            assert (inbox.waiting, inbox.sessions) == (0, 0)
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True)))
            session = await agent.open_session("ada")
            await session.wait_idle()
            assert texts(session) == ["hello"]


@pytest.mark.parametrize("when", ["before it comes", "while it is written"])
@pytest.mark.parametrize("is_busy", [False, True])
async def test_message_can_be_stopped_before_it_is_accepted(when, is_busy, autojump_clock):
    """It ends as one that is stopped later. Other messages are answered, and a repetition changes nothing."""
    async with SlowJournal().running() as journal, open_runtime(journal=journal) as runtime:
        model = ScriptedLLM(lambda chat: f"re: {chat.messages[-1].parts[0].text}", delay=10)
        agent = await runtime.start(BareAgent("a", llm=model))
        session = await agent.create_session("ada", session_id="ada")
        answered, failed = [], []
        session.on_conversation(lambda reply: answered.append(reply.text))
        session.on_exception(lambda failure: failed.append((failure.kind, failure.message_id)))
        if is_busy:
            await session.chat("first", message_id="m0")
        journal.is_slow = True
        async with trio.open_nursery() as nursery:
            if when == "while it is written":
                nursery.start_soon(partial(session.chat, "transfer", message_id="m1"))
                await trio.sleep(0.5)
            await session.interrupt("too late", message_id="m1")
            if when == "before it comes":
                nursery.start_soon(partial(session.chat, "transfer", message_id="m1"))
        journal.is_slow = False
        await session.chat("transfer", message_id="m1")
        await session.chat("later", message_id="m2")
        await session.wait_idle()
        assert failed == [("interrupted", "m1")]
        assert answered == [*(["re: first"] if is_busy else []), "re: later"]


async def test_chat_during_the_close_of_its_session_is_durably_rejected(autojump_clock):
    """Its caller gets the error when no restart can run the message."""
    async with SlowJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True), grace=0))
            session = await agent.create_session("ada", session_id="ada")
            journal.is_slow = True
            outcomes = []

            async def chat():
                outcomes.append(await outcome_of(session.chat, "transfer"))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(chat)
                await trio.sleep(0.5)
                await session.aclose()
            assert outcomes == ["SessionClosed"]
        assert await journal.unfinished("a") == []


async def test_inbox_counts_messages_that_are_being_written(autojump_clock):
    """The inbox never exceeds its capacity, for any number of concurrent writes."""
    async with SlowJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(
            BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True, delay=100), session_inbox_capacity=5, grace=0)
        )
        session = await agent.create_session("ada", session_id="ada")
        await session.chat("running")
        journal.is_slow = True
        outcomes = []

        async def chat(number):
            outcomes.append(await outcome_of(session.chat, f"{number}", enqueue_timeout=10))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(chat, number)
        assert sorted(outcomes) == ["InboxFull"] * 15 + ["in"] * 5
        assert agent._opener.running.inbox.statistics().waiting == 5


# --- repetitions -----------------------------------------------------------------------------


@pytest.mark.parametrize("journal", [None, "memory:"])
@pytest.mark.parametrize("first_is", ["cancelled", "refused", "in"])
async def test_a_repetition_waits_for_the_first(first_is, journal, autojump_clock):
    """If the first is rejected, the repetition takes its place, so a confirmed message is answered once."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(
            BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True, delay=5), session_inbox_capacity=1)
        )
        session = await fill(agent)
        confirmed = []

        async def book():
            await session.chat("book", message_id="req", enqueue_timeout=60)
            confirmed.append(trio.current_time() - started)

        async def first():
            with trio.move_on_after(1 if first_is == "cancelled" else 60):
                deadline = 1 if first_is == "refused" else 60
                await outcome_of(session.chat, "book", message_id="req", enqueue_timeout=deadline)

        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3):
                nursery.start_soon(book)
            await trio.sleep(1.5)
            assert confirmed == []
        assert len(confirmed) == 3
        await session.wait_idle()
        assert texts(session) == ["running", "queued", "book"]


async def test_a_repetition_is_confirmed_when_the_first_is_durable(autojump_clock):
    """It is not confirmed before the disk has the message."""
    async with SlowJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True)))
        session = await agent.create_session("ada", session_id="ada")
        journal.is_slow = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: session.chat("book", message_id="req"))
            await trio.sleep(0.1)
            await session.chat("book", message_id="req")
            known = await journal.load("ada")
    assert any(isinstance(each, MessageAcceptedRecord) and each.message.id == "req" for each in known)


@pytest.mark.parametrize("moment", ["queued", "running", "answered"])
@pytest.mark.parametrize("journal", [None, "sqlite"])
async def test_an_id_that_chat_returned_is_accepted_once(moment, journal, tmp_path, autojump_clock):
    """A message sent again under the id of the first is a repetition, and the journal stays readable."""
    url = None if journal is None else f"sqlite:///{tmp_path / 'a.db'}"
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True, delay=5)))
        session = await agent.create_session("ada", "first", session_id="s")
        message_id = await session.chat("book")
        await trio.sleep({"queued": 0, "running": 7, "answered": 20}[moment])
        assert await session.chat("book", message_id=message_id) == message_id
        await session.wait_idle()
        assert texts(session) == ["first", "book"]
    if url is not None:
        async with open_runtime(journal=url) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True)))
            assert texts(await agent.open_session("s")) == ["first", "book"]


async def test_repetition_waits_until_its_own_deadline(autojump_clock):
    """The time that it waited for the first call counts."""
    async with BareAgent(
        "a", llm=ScriptedLLM(["ok"], repeat=True, delay=100), session_inbox_capacity=1, grace=0
    ) as agent:
        session = await fill(agent)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outcome_of, lambda: session.chat("book", message_id="req", enqueue_timeout=5))
            await trio.testing.wait_all_tasks_blocked()
            started = trio.current_time()
            with pytest.raises(InboxFull):
                await session.chat("book", message_id="req", enqueue_timeout=2)
            assert trio.current_time() - started == pytest.approx(2)
            with pytest.raises(InboxFull):
                await session.chat("book", message_id="req", enqueue_timeout=8)
            assert trio.current_time() - started == pytest.approx(10)


async def test_rejected_id_can_be_used_again_after_a_restart(autojump_clock):
    async with SlowJournal().running() as journal:
        for life in range(2):
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True)))
                session = await agent.ensure_session("ada", "ada")
                journal.is_slow = not life
                with trio.move_on_after(0.5):
                    await session.chat("book", message_id="req")
                journal.is_slow = False
                await session.wait_idle()
        assert texts(session) == ["book"]


@pytest.mark.parametrize("first_is", ["cancelled", "set"])
async def test_a_schedule_that_is_set_again_waits_for_the_first(first_is, autojump_clock):
    """If the first call fails, the second sets the schedule. It fires once."""
    async with SlowJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True)))
        session = await agent.create_session("ada", session_id="ada")
        set_at = []

        async def plan(seconds):
            with trio.move_on_after(seconds):
                await session.schedule("water the flowers", after=50, key="flowers")
                set_at.append(trio.current_time())

        journal.is_slow = True
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(plan, 0.5 if first_is == "cancelled" else 10)
            await trio.sleep(0.1)
            nursery.start_soon(plan, 10)
        journal.is_slow = False
        assert len(set_at) == (1 if first_is == "cancelled" else 2)
        assert min(set_at) >= started + 1
        assert len(session.schedules) == 1
        assert session._context.schedules.writing == {}
        await trio.sleep(100)
        assert [message.text for message in session.history if message.sender.kind == "system"] == [
            "Running scheduled task: water the flowers"
        ]


async def test_a_schedule_that_was_cancelled_may_be_set_again_after_a_restart(autojump_clock):
    """No caller got a confirmation, so the key is free."""
    async with SlowJournal().running() as journal:
        for life in range(2):
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True)))
                session = await agent.ensure_session("ada", "ada")
                assert session.schedules == ()
                journal.is_slow = not life
                with trio.move_on_after(0.5):
                    await session.schedule("water the flowers", after=50, key="flowers")
                journal.is_slow = False
                assert len(session.schedules) == life


# --- nothing is left -------------------------------------------------------------------------


def left_in(session):
    """Return the entries of ended messages that a session keeps in memory."""
    context = session._context
    return (context.acceptances, context.pending, context.pins, context._idle)


@pytest.mark.parametrize("journal", [None, "memory:"])
@pytest.mark.parametrize(
    "end", ["answered", "dropped", "cancelled", "refused", "interrupted", "rejected", "urgent", "closed"]
)
async def test_ended_messages_leave_no_state(end, journal, autojump_clock):
    """A hundred messages leave as much state as none."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(
            BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True, delay=1), session_inbox_capacity=3, grace=1)
        )
        session = await agent.create_session("ada", on_busy="collect" if end == "answered" else None)

        async def ask(number):
            limits = Limits(tokens=10_000) if number % 2 else None
            with trio.move_on_after(0.1 if end == "cancelled" else 100):
                await outcome_of(lambda: agent.run("x", session=session, limits=limits))

        async def chat(number):
            rule = {"rejected": "reject", "interrupted": "interrupt"}.get(end)
            priority = "URGENT" if end == "urgent" else "NORMAL"
            deadline = 0.1 if end == "refused" else 100
            await outcome_of(
                lambda: session.chat(
                    "x", message_id=f"{number}", enqueue_timeout=deadline, on_busy=rule, priority=priority
                )
            )

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, number)
                nursery.start_soon(chat, number)
            await trio.sleep(0.5)
            if end == "dropped":
                for _ in range(200):
                    await session.interrupt(drop_queued=True)
            elif end == "closed":
                await session.aclose()
        await session.wait_idle()
        assert left_in(session) == (None, 0, 0, None)
        inbox = agent._opener.running.inbox.statistics()
        assert (inbox.waiting, inbox.urgent, inbox.claimed, inbox.senders, inbox.sessions) == (0, 0, 0, 0, 0)
