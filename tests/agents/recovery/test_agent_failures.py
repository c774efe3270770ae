"""A failing agent restarts: its running turn ends as a failure, queued messages are processed, and the journal has both."""

import pytest
import trio

from actgent import (
    ActorFailed,
    Approve,
    BareAgent,
    NotRunning,
    Priority,
    Reject,
    ScriptedLLM,
    Sender,
    Stopped,
    ToolCall,
    delegation_tools,
    open_runtime,
    tool,
)
from actgent.actors.supervision import Supervision
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry
from actgent.journal.record_types import (
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    SessionCreatedRecord,
)
from actgent.memory.short_term_memory import ShortTermMemory, ShortTermView
from actgent.messages import Message, Text
from actgent.sessions.restore.session_loader import rebuild
from actgent.testing import check_transcript


class Breaking(ShortTermMemory):
    """A memory that breaks at the results of calls that a message named `crash` led to."""

    def open_view(self):
        view = super().open_view()
        view.__class__ = BreakingView
        return view


class BreakingView(ShortTermView):
    def add(self, message, *, answered=False):
        if any(result.tool_name == "crash" for result in message.tool_results):
            raise RuntimeError("a mistake in the memory")
        super().add(message, answered=answered)


def last_text(chat):
    return chat.messages[-1].parts[-1].text


class World:
    """An agent whose model calls the tool that a message names, and answers with the result."""

    def __init__(self):
        self.ran = []
        self.failures = []
        self.views = []

    def agent(self, name="a", **options):
        @tool
        async def crash() -> str:
            """Crash."""
            return "x"

        @tool
        async def wait(seconds: int) -> str:
            """Wait."""
            await trio.sleep(seconds)
            return "waited"

        @tool(approval=True)
        async def pay() -> str:
            """Pay."""
            self.ran.append("pay")
            return "paid"

        calls = {"crash": {}, "wait": {"seconds": 100}, "pay": {}}

        def answer(chat):
            assert check_transcript(chat) == []
            self.views.append(chat.messages)
            text = last_text(chat)
            if chat.messages[-1].role == "user" and text in calls:
                return ToolCall(text, calls[text])
            return f"re: {text}"

        agent = BareAgent(
            name, llm=ScriptedLLM(answer, keep=0), tools=[crash, wait, pay], memory=Breaking(), **options
        )
        agent.on_session(lambda session: session.on_exception(self.failures.append))
        return agent


PATIENT = Supervision(backoff=5.0)
"""The agent is down for five seconds."""


@pytest.fixture(params=[False, True], ids=["no journal", "journal"])
async def journal(request):
    """None, or a journal."""
    if not request.param:
        yield None
        return
    async with MemoryJournal().running() as opened:
        yield opened


async def crash(agent):
    """Have an agent fail, and return when it is down."""
    session = await agent.create_session("eve")
    await session.chat("crash")
    await trio.testing.wait_all_tasks_blocked()
    assert agent._opener.running.runner._nursery is None


@pytest.mark.parametrize("decision", [Approve(), Reject("no")], ids=["approved", "rejected"])
@pytest.mark.parametrize("when", ["down", "up"])
async def test_a_suspended_turn_resumes_after_an_agent_restart(autojump_clock, journal, decision, when):
    """Decisions arrive before or after the restart: granted calls run once, others do not."""
    world = World()
    async with open_runtime(journal=journal, supervision=PATIENT) as runtime:
        agent = await runtime.start(world.agent())
        session = await agent.create_session("ada", "pay")
        await session.wait_idle()
        await session.chat("behind")
        await crash(agent)
        if when == "up":
            await trio.sleep(6)
        await session.answer(session.approvals[0], decision)
        assert when == "up" or world.ran == []
        await session.wait_idle()
        assert world.ran == ["pay"] * isinstance(decision, Approve)
        texts = [message.text for message in session.history if message.sender.kind == "assistant"]
        assert texts[-1] == "re: behind"
        assert len(texts) == 3
    if journal is not None:
        ended = [each.failed for each in await journal.load(session.id) if isinstance(each, MessageEndRecord)]
        assert ended == [None, None]


@pytest.mark.parametrize("how", ["interrupt", "urgent", "aclose"])
async def test_a_suspended_turn_is_withdrawn_while_the_agent_is_down(autojump_clock, journal, how):
    """The turn ends after the restart, and the messages before it are answered."""
    world = World()
    async with open_runtime(journal=journal, supervision=PATIENT) as runtime, trio.open_nursery() as nursery:
        agent = await runtime.start(world.agent())
        session = await agent.create_session("ada", "pay")
        await session.wait_idle()
        await crash(agent)
        match how:
            case "interrupt":
                nursery.start_soon(session.interrupt)
            case "aclose":
                nursery.start_soon(session.aclose)
            case _:
                await session.chat("at once", priority=Priority.URGENT)
        await trio.sleep(6)
        assert [failure.kind for failure in world.failures if failure.kind != "internal"] == ["interrupted"]
        assert world.ran == []
        if how == "urgent":
            assert session.history[-1].text == "re: at once"
        assert session.status == ("closed" if how == "aclose" else "idle")


async def test_turn_of_a_failed_agent_ends_with_a_recorded_failure(autojump_clock):
    """Its calls have results, later messages are durable, and no restart repeats any of it."""
    world = World()
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal, supervision=PATIENT) as runtime:
            agent = await runtime.start(world.agent())
            session = await agent.create_session("ada", "wait", session_id="s")
            await trio.sleep(1)
            await crash(agent)
            assert session.status == "working"
            await session.chat("while it is down")
            await session.wait_idle()
            await session.chat("later")
            await session.wait_idle()
            history = session.history
        assert [type(failure.error) for failure in world.failures] == [RuntimeError, ActorFailed]
        assert [failure.kind for failure in world.failures] == ["internal", "internal"]
        rebuilt = await rebuild(await journal.load("s"))
        assert rebuilt.history == history
        assert rebuilt.waiting == ()
        (result,) = [result for message in history for result in message.tool_results]
        assert result.status == "outcome_unknown"
        assert await journal.unfinished("a") == []
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(world.agent())
            session = await agent.open_session("s")
            await session.chat("hello")
            await session.wait_idle()
            assert session.history[-1].text == "re: hello"


async def test_callers_of_a_failed_agent_get_an_error_at_once(autojump_clock, journal):
    """An asking tool and a session with a delegated task get the error before their timeouts."""
    world = World()
    ask = {"agent": "worker", "task": "wait"}
    calls = [
        ToolCall("delegate_to_agent", ask, "c1"),
        ToolCall("delegate_to_agent", {**ask, "wait": False}, "c2"),
    ]
    llm = ScriptedLLM(lambda chat: calls if len(chat.messages) == 1 else "ok")
    async with open_runtime(journal=journal, supervision=PATIENT) as runtime:
        worker = await runtime.start(world.agent("worker"))
        lead = await runtime.start(BareAgent("lead", llm=llm, tools=delegation_tools()))
        session = await lead.create_session("ada", "go")
        await trio.sleep(1)
        await crash(worker)
        await trio.sleep(7)
        await session.wait_idle()
        errors = [result.error for message in session.history for result in message.tool_results]
        assert "agent 'worker' failed (internal): actor 'worker' gave no answer" in errors[0]
        assert errors[1] is None
        (texts,) = [message.text for message in session.history if message.sender.kind == "agent"]
        assert "failed (internal): actor 'worker' gave no answer" in texts
        assert session.children == ()


async def test_a_session_opened_during_an_agent_restart_resumes(autojump_clock):
    """The unfinished turn runs first; a queued URGENT message stops it."""
    world = World()

    def message(message_id, text, **options):
        return Message(id=message_id, session_id="x", sender=Sender("ada"), parts=(Text(text),), **options)

    records = (
        SessionCreatedRecord(owner=Sender("ada"), created_at=1.0),
        MessageAcceptedRecord(message=message("m1", "first")),
        MessageAppendedRecord(message_id="m1"),
        MessageAcceptedRecord(message=message("m2", "second", priority=Priority.URGENT)),
    )
    async with (
        MemoryJournal().running() as journal,
        open_runtime(journal=journal, supervision=PATIENT) as runtime,
    ):
        agent = await runtime.start(world.agent())
        await crash(agent)
        await journal.commit(Entry(session_id="x", agent="a", records=records), epoch=journal.epoch_of("x"))
        session = await agent.open_session("x")
        await session.wait_idle()
        assert [message.text for message in session.history] == ["first", "second", "re: second"]
        ended = [
            (each.message_id, each.failed)
            for each in await journal.load("x")
            if isinstance(each, MessageEndRecord)
        ]
        assert ended == [("m1", "interrupted"), ("m2", None)]


async def test_an_agent_that_fails_for_good_ends_its_messages(autojump_clock, journal):
    """After too many failures, interrupted turns and queued messages end with a failure."""
    world = World()
    policy = Supervision(max_restarts=0, escalate=True)

    async def live():
        async with open_runtime(journal=journal, supervision=policy) as runtime:
            agent = await runtime.start(world.agent())
            session = await agent.create_session("ada", "wait")
            await session.chat("behind")
            await trio.sleep(1)
            other = await agent.create_session("eve", "crash")
            await other.wait_idle()
            await trio.sleep(10)

    with pytest.raises(ExceptionGroup) as caught:
        await live()
    assert caught.group_contains(ActorFailed)
    assert sorted(failure.kind for failure in world.failures) == ["internal", "stopped", "stopped"]


async def test_an_agent_that_fails_too_often_stops_alone(autojump_clock, journal):
    """By default its accepted messages end as failures, other agents answer, and it can be started again."""
    world, others = World(), World()
    async with open_runtime(journal=journal, supervision=Supervision(max_restarts=0)) as runtime:
        agent, other = await runtime.start(world.agent()), await runtime.start(others.agent("other"))
        session = await agent.create_session("ada", "wait")
        await session.chat("behind")
        await trio.sleep(1)
        eve = await agent.create_session("eve", "crash")
        await eve.wait_idle()
        await trio.sleep(10)
        assert sorted(failure.kind for failure in world.failures) == ["internal", "stopped", "stopped"]
        with pytest.raises(NotRunning):
            await agent.run("hello")
        assert (await other.run("hello")).text == "re: hello"
        await runtime.start(agent)
        assert (await agent.run("again")).text == "re: again"


async def test_stop_of_an_agent_is_not_a_failure(autojump_clock):
    """Turns that run when the block exits are reported as stopped.

    They resume at the next start, in any order of tasks.
    """
    seconds = 100

    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        await trio.sleep(seconds)
        return "seen"

    def agent():
        script = ScriptedLLM(lambda chat: ToolCall("look", {}) if len(chat.messages) == 1 else "done", keep=0)
        made = BareAgent("a", llm=script, tools=[look], grace=0)
        made.on_session(lambda session: session.on_exception(kinds.append))
        return made

    kinds = []
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            a = await runtime.start(agent())
            for number in range(20):
                await a.create_session("ada", "go", session_id=f"s{number}")
            await trio.sleep(1)
        assert [failure.kind for failure in kinds] == ["stopped"] * 20
        seconds = 0
        async with open_runtime(journal=journal) as runtime:
            a = await runtime.start(agent())
            for number in range(20):
                session = await a.open_session(f"s{number}")
                await session.wait_idle()
                assert session.history[-1].text == "done"
                (result,) = [result for message in session.history for result in message.tool_results]
                assert result.status == "success"


@pytest.mark.parametrize("how", ["run", "stream"])
async def test_cancellation_of_the_process_interrupts_no_turn(autojump_clock, how):
    """After a cancellation, e.g. by Ctrl-C, turns resume at the next start, in any order of tasks."""
    seconds = 100

    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        await trio.sleep(seconds)
        return "seen"

    def agent():
        llm = ScriptedLLM(lambda chat: ToolCall("look", {}) if len(chat.messages) == 1 else "done", keep=0)
        return BareAgent("a", llm=llm, tools=[look])

    async def ask(a, number):
        session = await a.create_session("ada", session_id=f"s{number}")
        if how == "run":
            await a.run("go", session=session)
        else:
            async with a.stream("go", session=session) as events:
                assert [event async for event in events]

    for _ in range(5):
        async with MemoryJournal().running() as journal:
            seconds = 100
            with trio.move_on_after(1):
                async with open_runtime(journal=journal) as runtime, trio.open_nursery() as nursery:
                    a = await runtime.start(agent())
                    for number in range(5):
                        nursery.start_soon(ask, a, number)
            seconds = 0
            async with open_runtime(journal=journal) as runtime:
                a = await runtime.start(agent())
                for number in range(5):
                    session = await a.open_session(f"s{number}")
                    await session.wait_idle()
                    (result,) = [result for message in session.history for result in message.tool_results]
                    assert (result.status, session.history[-1].text) == ("success", "done")


async def test_concurrent_calls_end_with_their_agent(autojump_clock):
    """At a stop and at a failure, the handlers receive the result of each call, and the session continues."""
    world, received = World(), []

    @tool
    async def wait() -> str:
        """Wait."""
        await trio.sleep(100)
        return "waited"

    def answer(chat):
        text = last_text(chat)
        if text == "crash":
            return ToolCall("crash", {})
        return [ToolCall("wait", {}), ToolCall("wait", {})] if text == "wait" else f"re: {text}"

    agent = BareAgent(
        "a",
        llm=ScriptedLLM(answer, keep=0),
        tools=[wait, *world.agent().tools][:2],
        memory=Breaking(),
        grace=0,
    )
    agent.on_session(
        lambda session: session.on_exception(lambda failure: received.append(type(failure.error)))
    )
    async with open_runtime(supervision=PATIENT) as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", "wait")
        await trio.sleep(1)
        await crash(agent)
        await session.chat("hello")
        await session.wait_idle()
        assert session.history[-1].text == "re: hello"
        assert received == [RuntimeError, ActorFailed]
        await session.chat("wait")
        await trio.sleep(1)
    assert received == [RuntimeError, ActorFailed, Stopped]
