"""`deps=`: values that a program passes to its tools for a run, a session or an agent, and that no journal stores."""

import functools
import logging

import attrs
import pytest
import trio
import trio.testing

from actgent import (
    AgentBuilder,
    BareAgent,
    ConfigurationError,
    DepsMissing,
    EnvelopedTool,
    Failure,
    PlanAgent,
    ScriptedLLM,
    StepsAgent,
    ToolCall,
    ToolContext,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal


@attrs.frozen
class Shop:
    """The value that a tool uses."""

    name: str


class Bank:
    """Something else."""


@tool
async def sell(context: ToolContext[Shop], what: str) -> str:
    """Sell something."""
    await trio.lowlevel.checkpoint()
    return f"{what} from {context.deps.name}"


@tool
def look(what: str, context: "ToolContext[Shop] | None" = None) -> str:
    """Look at something, in a thread."""
    assert context is not None
    return f"{what} at {context.deps.name}"


@tool(effect="pure")
async def wait(context: ToolContext[Shop]) -> str:
    """Wait, as long as the shop has no name."""
    while not context.deps.name:
        await trio.sleep_forever()
    return context.deps.name


def selling(*names):
    """Return a model that calls these tools, and then answers with the results."""

    def answer(chat):
        last = chat.messages[-1]
        if last.role == "tool":
            return "; ".join(result.content or result.error for result in last.parts)
        return [ToolCall(name, {} if name == "wait" else {"what": "tea"}) for name in names]

    return ScriptedLLM(answer)


def clerk(*names, kind=BareAgent, name="clerk", **options):
    known = {each.name: each for each in (sell, look, wait)}
    return kind(name, llm=selling(*names), tools=[known[name] for name in names], **options)


async def test_deps_of_a_run_precede_those_of_session_and_agent():
    """Each run has separate deps, in async tools and in threads."""
    async with clerk("sell", "look", deps=Shop("A")) as agent:
        session = await agent.create_session("ada", deps=Shop("S"))
        other = await agent.create_session("bob")
        assert str(await agent.run("?", session=other)) == "tea from A; tea at A"
        assert str(await agent.run("?", session=session)) == "tea from S; tea at S"
        assert str(await agent.run("?", session=session, deps=Shop("R"))) == "tea from R; tea at R"
        assert str(await agent.run("?", session=session)) == "tea from S; tea at S"
        assert str(await agent.run("?")) == "tea from A; tea at A"
        assert (session.deps, other.deps) == (Shop("S"), Shop("A"))


async def test_stream_accepts_deps():
    async with clerk("sell") as agent, agent.stream("?", deps=Shop("R")) as events:
        assert str([event async for event in events][-1]) == "tea from R"


async def test_all_agent_kinds_accept_deps():
    """The agents have several stages and classes, and one comes from a builder."""
    built = AgentBuilder("b").llm(selling("sell")).tools(sell).deps(Shop("B")).build()
    async with built:
        assert str(await built.run("?")) == "tea from B"
    script = ScriptedLLM([[ToolCall("sell", {"what": "tea"})], '{"final_answer": "sold"}'])
    async with StepsAgent("worker", llm=script, tools=[sell]) as steps:
        talk, results = await steps.open_conversation(), []
        talk.session.on_tool_result(results.append)
        await talk.run("?", deps=Shop("Y"))
    assert results[0].content == "tea from Y"
    plan = PlanAgent("planner", llm=ScriptedLLM([[ToolCall("sell", {"what": "tea"})], "sold"]), tools=[sell])
    async with plan:
        results = []
        session = await plan.create_session("ada")
        session.on_tool_result(results.append)
        assert (await plan.process("?", session=session, deps=Shop("P"))).status == "success"
    assert results[0].content == "tea from P"


async def test_deps_function_is_called_once_per_session():
    """The function is called before the first message, and not for sessions with explicit deps."""
    opened = []

    async def open_shop(session):
        await trio.lowlevel.checkpoint()
        opened.append(session.owner.name)
        return Shop(f"{session.owner.name}'s")

    async with clerk("sell", deps=open_shop) as agent:
        ada = await agent.create_session("ada")
        bob = await agent.create_session("bob", deps=Shop("B"))
        assert [str(await agent.run("?", session=ada)) for _ in range(2)] == ["tea from ada's"] * 2
        assert str(await agent.run("?", session=bob)) == "tea from B"
    assert opened == ["ada"]


async def test_failing_deps_function_leaves_no_session():
    """The creator of the session gets the error."""

    async def open_shop(_, number):
        await trio.lowlevel.checkpoint()
        return 1 / number

    async with clerk("sell", deps=functools.partial(open_shop, number=0)) as agent:
        with pytest.raises(DepsMissing, match="ZeroDivisionError: division by zero") as caught:
            await agent.create_session("ada", session_id="ada")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        with pytest.raises(LookupError):
            await agent.open_session("ada")


async def test_deps_of_another_type_are_rejected():
    """The check precedes any work, for an agent, a session, a run, and the result of a function."""

    async def open_bank(_):
        await trio.lowlevel.checkpoint()
        return Bank()

    wrong = r"deps= is a Bank, and tool 'sell' takes ToolContext\[Shop\]"
    with pytest.raises(ConfigurationError, match=wrong):
        clerk("sell", deps=Bank())
    async with clerk("sell") as agent:
        with pytest.raises(ConfigurationError, match=wrong):
            await agent.create_session("ada", deps=Bank())
        with pytest.raises(ConfigurationError, match=wrong):
            await agent.ensure_session("ada", "ada", deps=Bank())
        with pytest.raises(ConfigurationError, match=wrong):
            await agent.run("?", deps=Bank())
    async with clerk("sell", deps=open_bank) as agent:
        with pytest.raises(ConfigurationError, match=wrong):
            await agent.create_session("ada")


async def test_turn_without_deps_fails_before_its_model_call(listen):
    """The waiting caller gets the error, or otherwise the handlers. The model is never called."""
    async with clerk("sell") as agent:
        with pytest.raises(DepsMissing, match=r"tool 'sell' needs deps, and none are set; pass deps= to"):
            await agent.run("?")
        session = await agent.create_session("ada")
        received = listen(session)
        await session.chat("?")
        await session.wait_idle()
        (failure,) = [each for each in received if isinstance(each, Failure)]
        assert (failure.kind, type(failure.error)) == ("deps", DepsMissing)
        assert agent._models.clients["default"].chats == []


async def test_untyped_tool_requires_deps_when_it_reads_them():
    """The tool gets the existing value, or has an error result without one.

    An envelope does not hide the requirement.
    """

    @tool
    async def ask(context: ToolContext) -> str:
        """Ask for anything."""
        await trio.lowlevel.checkpoint()
        return str(context.deps)

    script = ScriptedLLM([[ToolCall("ask", {})], "done"] * 2)
    async with BareAgent("clerk", llm=script, tools=[ask]) as agent:
        session = await agent.create_session("ada")
        results = []
        session.on_tool_result(results.append)
        await agent.run("?", session=session, deps=5)
        await agent.run("?", session=session)
    assert results[0].content == "5"
    assert "DepsMissing" in results[1].error
    assert EnvelopedTool(sell).deps_type is Shop
    assert ToolContext(deps=Shop("T")).deps == Shop("T")


async def test_agent_as_a_tool_has_the_deps_of_its_caller():
    """The agent uses the deps of the calling run, unless it has its own."""
    inner, own = clerk("sell", name="inner"), clerk("sell", name="own", deps=Shop("own"))
    model = ScriptedLLM([[ToolCall("inner", {"task": "?"}), ToolCall("own", {"task": "?"})], "done"])
    async with BareAgent("outer", llm=model, tools=[inner.as_tool(), own.as_tool()]) as outer:
        results = []
        session = await outer.create_session("ada", deps=Shop("S"))
        session.on_tool_result(results.append)
        await outer.run("?", session=session, deps=Shop("R"))
    assert [result.content for result in results] == ["tea from R", "tea from own"]


# --- restarts --------------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path):
    return f"sqlite:///{tmp_path}/agents.db"


async def die(journal, *, agent=None, session=None, run=None):
    """One life that ends while a tool waits, because its shop has no name."""
    with trio.CancelScope() as process:
        async with open_runtime(journal=journal) as runtime:
            clerks = await runtime.start(clerk("wait", deps=agent))
            opened = await clerks.create_session("ada", session_id="ada", deps=session)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(functools.partial(clerks.run, "?", session=opened, deps=run))
                while not opened._held.conversation.open_calls:
                    await trio.lowlevel.checkpoint()
                await trio.testing.wait_all_tasks_blocked()
                process.cancel()
    assert process.cancelled_caught


async def test_deps_function_is_called_again_after_a_restart(journal):
    """The turn resumes with the new return value."""
    opened = []

    async def open_shop(session):
        await trio.lowlevel.checkpoint()
        opened.append(session.id)
        return Shop("" if len(opened) == 1 else "B")

    await die(journal, agent=open_shop)
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk("wait", deps=open_shop))
        session = await agent.open_session("ada")
        await session.wait_idle()
        assert session.history[-1].text == "B"
    assert opened == ["ada", "ada"]


@pytest.mark.parametrize("value", ["session", "run"])
async def test_session_without_its_deps_is_skipped_and_logged(journal, value, caplog):
    """The agent's own deps do not replace explicit ones; opened with deps, the session resumes."""
    await die(journal, **{value: Shop("")})
    for _ in range(2):
        caplog.clear()
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(clerk("wait", deps=Shop("A")))
            (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
            assert "session 'ada'" in record.getMessage()
            assert "its deps from before the restart are lost" in record.getMessage()
            with pytest.raises(DepsMissing, match="open_session"):
                await agent.open_session("ada")
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk("wait", deps=Shop("A")))
        session = await agent.open_session("ada", deps=Shop("S"))
        await session.wait_idle()
        assert session.history[-1].text == "S"
        assert str(await agent.run("?", session=session)) == "S"


async def test_session_is_skipped_if_its_agent_has_no_deps(journal, caplog):
    """The next program does not pass them."""
    await die(journal, agent=Shop(""))
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk("wait"))
        assert "tool 'wait' needs deps, and none are set" in caplog.text
        session = await agent.ensure_session("ada", "ada", deps=Shop("S"))
        await session.wait_idle()
        assert session.history[-1].text == "S"


async def test_a_deps_function_that_fails_at_a_restart_affects_one_session(journal, caplog):
    """The log names the session, and the agent starts."""
    await die(journal, agent=Shop(""))

    async def open_shop(session):
        await trio.lowlevel.checkpoint()
        if session.id == "ada":
            raise OSError("no such shop")
        return Shop("B")

    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk("wait", deps=open_shop))
        assert "OSError: no such shop" in caplog.text
        assert str(await agent.run("?")) == "B"


async def test_schedule_of_a_session_without_deps_waits_for_them(autojump_clock, caplog):
    """The log names it once, and the schedule fires when the session is opened with deps."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(clerk("sell"))
            session = await agent.create_session("ada", session_id="ada", deps=Shop("S"))
            await session.schedule("sell", after=60)
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(clerk("sell", deps=Shop("A")))
            await trio.sleep(600)
            (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
            assert "session 'ada'" in record.getMessage()
            session = await agent.open_session("ada", deps=Shop("T"))
            answered = trio.Event()
            session.on_conversation(lambda _: answered.set())
            await answered.wait()
            assert session.history[-1].text == "tea from T"


async def test_deps_are_not_written_to_the_journal(journal):
    """Neither the value nor its text is in the journal."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk("sell"))
        session = await agent.create_session("ada", session_id="ada", deps=Shop("secret-of-session"))
        await agent.run("?", session=session, deps=Shop("x"))
        records = repr(await runtime.journal.load("ada", agent="clerk"))
    assert "secret-of-session" not in records
    assert "deps=True" in records
