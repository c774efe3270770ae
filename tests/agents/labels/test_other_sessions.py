"""A turn that reads texts of another session gets its sources, and a turn that changes another session passes its sources on."""

from collections.abc import Awaitable

import pytest
import trio

from actgent import (
    ApprovalRequest,
    Approve,
    BareAgent,
    Edit,
    Label,
    Reject,
    Respond,
    ScriptedLLM,
    StepsAgent,
    ToolCall,
    ToolContext,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import ApprovalDecisionRecord, StateChangeRecord

from .test_boundaries import PAY, TEXT, page, reader, sink  # noqa: F401 - sink is a fixture


@tool(untrusted=True, effect="pure")
async def mail() -> str:
    """Read a mail."""
    return TEXT


async def _observe(session):
    async with session.observe(after=0) as found:
        await found.receive()


async def _follow(session):
    async with session.follow(after=0) as found:
        await found.receive()


READS = {
    "state": lambda session: session.state,
    "approvals": lambda session: session.approvals,
    "caller_calls": lambda session: session.caller_calls,
    "schedules": lambda session: session.schedules,
    "description": lambda session: session.description,
    "mode_changes": lambda session: session.mode_changes,
    "observations": lambda session: session.observations(),
    "observe": _observe,
    "follow": _follow,
}


@pytest.mark.parametrize("name", READS)
async def test_a_read_of_another_session(sink, name):  # noqa: F811
    """A tool that reads texts of an untrusted session makes its own session untrusted."""
    helper = reader()

    @tool(effect="pure")
    async def look() -> str:
        """Look at the other session."""
        if isinstance(found := READS[name](other), Awaitable):
            await found
        return "looked"

    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(helper)
        other = await helper.create_session("ada")
        await helper.run("read", session=other)
        agent = await runtime.start(sink.agent([ToolCall("look", {}), PAY, "ok"], tools=[look]))
        await agent.run("go", session=await agent.create_session("ada"))
    sink.assert_asked("page")


async def _observe_by_id(runtime, session):
    async with runtime.observe(session.id, agent="reader", after=0) as found:
        await found.receive()


async def _follow_by_id(runtime, session):
    async with runtime.follow(session.id, agent="reader", after=0) as found:
        await found.receive()


async def _events(runtime, session):
    async with runtime.events() as events:
        await session.annotate(add_tags=["x"])
        with trio.move_on_after(0.1):
            await events.receive()


READS_BY_ID = {
    "search": lambda runtime, _: runtime.search("read"),
    "approvals": lambda runtime, _: runtime.approvals(),
    "schedules": lambda runtime, _: runtime.schedules(),
    "dead_letters": lambda runtime, _: runtime.dead_letters,
    "failures": lambda runtime, _: runtime.failures,
    "records": lambda runtime, session: runtime.read_session(session.id, agent="reader"),
    "rebuild": lambda runtime, session: runtime.rebuild(session.id, agent="reader"),
    "observations": lambda runtime, session: runtime.observations(session.id, agent="reader"),
    "observe": _observe_by_id,
    "follow": _follow_by_id,
    "events": _events,
}


@pytest.mark.parametrize("name", READS_BY_ID)
async def test_a_read_of_sessions_by_the_runtime(sink, name, tmp_path):  # noqa: F811
    """A tool that reads texts of any session by the runtime makes its own session untrusted, and confidential."""
    helper, labels = reader(), []

    @tool(effect="pure")
    async def look() -> str:
        """Look at the other session."""
        if isinstance(found := READS_BY_ID[name](runtime, other), Awaitable):
            await found
        return "looked"

    async with open_runtime(journal=f"sqlite:///{tmp_path}/j.db", index=True) as runtime:
        await runtime.start(helper)
        other = await helper.create_session("ada")
        await helper.run("read", session=other)
        agent = await runtime.start(sink.agent([ToolCall("look", {}), PAY, "ok"], tools=[look]))
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        labels.append(session.label)
    sink.assert_asked("sessions")
    assert labels == [Label({"sessions"}, readers=())]


async def test_the_open_approvals_of_an_agent(sink):  # noqa: F811
    """A tool that lists the approvals of an agent reads texts of any of its sessions."""
    helper = reader()

    @tool(effect="pure")
    async def look() -> str:
        """List the approvals."""
        return str(len(await helper.approvals()))

    async with helper, sink.agent([ToolCall("look", {}), PAY, "ok"], tools=[look]) as agent:
        await agent.run("go", session=await agent.create_session("ada"))
    sink.assert_asked("sessions")


async def test_a_session_that_becomes_untrusted_while_it_is_read(sink):  # noqa: F811
    """The sources are those of the session at the end of the read."""
    helper = reader()

    @tool(effect="pure")
    async def look() -> str:
        """Observe the other session while it reads a page."""
        async with other.observe(after=0) as found:
            await other.chat("read")
            await other.wait_idle()
            await found.receive()
        return "looked"

    async with open_runtime() as runtime:
        await runtime.start(helper)
        other = await helper.create_session("ada")
        agent = await runtime.start(sink.agent([ToolCall("look", {}), PAY, "ok"], tools=[look]))
        await agent.run("go", session=await agent.create_session("ada"))
    sink.assert_asked("page")


async def test_a_read_of_the_own_session(sink):  # noqa: F811
    """A tool that reads its own trusted session stays trusted."""

    @tool(effect="pure")
    async def look(context: ToolContext) -> str:
        """Look at the session of the call."""
        return f"{context.session.state} {context.session.description}"

    async with sink.agent([ToolCall("look", {}), PAY, "ok"], tools=[look]) as agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
    assert (session.label, sink.paid, sink.asked) == (Label(), ["mallory"], [])


def _writer(write):
    """An agent that reads a page, and then calls the function `write`."""

    @tool(effect="idempotent", sinks=())
    async def store() -> str:
        """Store."""
        await write()
        return "stored"

    script = [ToolCall("page", {}), ToolCall("store", {}), "ok"]
    return BareAgent("writer", llm=ScriptedLLM(script), tools=[page, store])


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("change", ["state", "prompt"])
async def test_a_change_by_an_untrusted_turn(sink, change, is_restarted):  # noqa: F811
    """A session whose state or system prompt an untrusted turn of another session has written is untrusted, also after a restart."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            payer = await runtime.start(sink.agent([PAY, "ok"], name="payer"))

            async def write():
                if change == "prompt":
                    await payer.create_session("ada", session_id="s", prompt=TEXT)
                else:
                    session = await payer.create_session("ada", session_id="s")
                    session.state.dispatch([("note", TEXT)])

            writer = await runtime.start(_writer(write))
            await writer.run("go")
            if not is_restarted:
                await payer.run("pay", session=await payer.open_session("s"))
        if is_restarted:
            async with open_runtime(journal=journal) as runtime:
                payer = await runtime.start(sink.agent([PAY, "ok"], name="payer"))
                await payer.run("pay", session=await payer.open_session("s"))
    sink.assert_asked("page")


async def test_a_change_by_a_program(sink):  # noqa: F811
    """A program outside of a turn writes trusted values."""
    async with sink.agent([PAY, "ok"]) as agent:
        session = await agent.create_session("ada", prompt="Pay.")
        session.state.dispatch([("note", "hello")])
        await agent.run("pay", session=session)
    assert (sink.paid, session.label) == (["mallory"], Label())


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("change", ["prompt", "message"])
async def test_a_conversation_that_an_untrusted_turn_changes(change, is_restarted):
    """The system prompt and the messages that an untrusted turn adds to a conversation of steps make it untrusted."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            steps = await runtime.start(StepsAgent("steps", llm=ScriptedLLM(["ok"])))
            talk = await steps.open_conversation("ada")

            async def write():
                if change == "prompt":
                    talk.set_system_prompt(TEXT)
                else:
                    talk.add_message("user", TEXT)

            writer = await runtime.start(_writer(write))
            await writer.run("go")
            label, session_id = talk.session.label, talk.session.id
        if is_restarted:
            async with open_runtime(journal=journal) as runtime:
                steps = await runtime.start(StepsAgent("steps", llm=ScriptedLLM(["ok"])))
                label = (await steps.open_session(session_id)).label
    assert label == Label({"page"})


DECISIONS = [Respond(TEXT), Reject(TEXT), Edit({"text": TEXT}), Approve(TEXT)]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("decision", DECISIONS, ids=lambda each: type(each).__name__)
async def test_a_decision_by_an_untrusted_turn(sink, decision, is_restarted):  # noqa: F811
    """A result, reason or argument from an untrusted turn of another session makes the waiting session untrusted."""

    @tool(approval=ApprovalRequest("Really?"), sinks=())
    async def note(text: str) -> str:
        """Note."""
        return "noted"

    def payer(script):
        return sink.agent(script, name="payer", tools=[note])

    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            script = [ToolCall("note", {"text": "x"}), "ok" if is_restarted else PAY, "ok"]
            agent = await runtime.start(payer(script))
            session = await agent.create_session("ada", session_id="s")
            await session.chat("go")
            with trio.fail_after(10):
                while not session.approvals:  # noqa: ASYNC110 - the turn asks
                    await trio.sleep(0.01)

            async def decide():
                await session.answer(session.approvals[0], decision)

            await (await runtime.start(_writer(decide))).run("go")
            await session.wait_idle()
        records = await journal.load("s", agent="payer")
        decided = [type(each) for each in records].index(ApprovalDecisionRecord)
        assert [each.via for each in records[:decided] if isinstance(each, StateChangeRecord)] == ["page"]
        if is_restarted:
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(payer([PAY, "ok"]))
                await agent.run("pay", session=await agent.open_session("s"))
    sink.assert_asked("page")


async def test_a_result_of_the_caller_from_an_untrusted_turn(sink):  # noqa: F811
    """The result of a tool of the caller has the sources of the turn that sends the result."""
    async with open_runtime() as runtime:
        agent = await runtime.start(sink.agent([ToolCall("look", {}), PAY, "ok"], name="payer"))
        session = await agent.create_session("ada")
        await session.chat("go", tools=[{"name": "look"}])
        with trio.fail_after(10):
            while not session.caller_calls:  # noqa: ASYNC110 - the turn calls
                await trio.sleep(0.01)

        async def answer():
            await session.answer(session.caller_calls[0], Respond(TEXT))

        await (await runtime.start(_writer(answer))).run("go")
        await session.wait_idle()
    sink.assert_asked("page")


async def test_a_fork_keeps_the_sources_of_its_system_prompt(sink):  # noqa: F811
    """A copy of a session has the sources of the turn that has written the system prompt."""
    async with open_runtime(journal="memory:") as runtime:
        payer = await runtime.start(sink.agent([PAY, "ok"], name="payer"))

        async def write():
            await payer.create_session("ada", session_id="s", prompt=TEXT)

        await (await runtime.start(_writer(write))).run("go")
        await runtime.fork("s", agent="payer", new_id="f")
        copy = await payer.open_session("f")
        assert copy.label == Label({"page"})
        await payer.run("pay", session=copy)
    sink.assert_asked("page")


async def test_a_fork_by_an_untrusted_turn(sink):  # noqa: F811
    """A turn chooses the last record of a copy, so the copy has the sources of the turn. The original has none."""
    async with open_runtime(journal="memory:") as runtime:
        payer = await runtime.start(sink.agent(["ok", PAY, "ok"], name="payer"))
        original = await payer.create_session("ada", session_id="s")
        await payer.run("hello", session=original)

        async def write():
            await runtime.fork("s", agent="payer", new_id="f")

        await (await runtime.start(_writer(write))).run("go")
        assert original.label == Label()
        await payer.run("pay", session=await payer.open_session("f"))
    sink.assert_asked("page")


async def test_a_change_after_reads_of_two_sessions():
    """The record of a state change has the sources of all answers that the call has read, because a crash may follow."""
    helpers = [reader(), BareAgent("mailer", llm=ScriptedLLM([ToolCall("mail", {}), "ok"]), tools=[mail])]

    @tool(effect="idempotent", sinks=())
    async def store(context: ToolContext) -> str:
        """Read two sessions, and store their answers."""
        context.state.dispatch([("notes", [(await each.run("read")).text for each in helpers])])
        return "ok"

    agent = BareAgent("clerk", llm=ScriptedLLM([ToolCall("store", {}), "ok"]), tools=[store])
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            for each in (*helpers, agent):
                await runtime.start(each)
            await agent.run("go", session=await agent.create_session("ada", session_id="s"))
        records = await journal.load("s", agent="clerk")
    assert [each.via for each in records if isinstance(each, StateChangeRecord)] == ["page, mail"]
