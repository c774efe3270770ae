"""No way to the results that isolation stores in the state of a session avoids their label."""

import pytest
import trio

from actgent import Approve, BareAgent, Label, Policy, ScriptedLLM, ToolCall, ToolContext, open_runtime, tool
from actgent.tools.outputs.oversized_state_values import copy_state

from .isolating_program import READ, TEXT, Program, page
from .test_boundaries import sink  # noqa: F401 - a fixture

PAY = ToolCall("pay", {"to": "mallory"})
READS = {
    "state": lambda context: dict(context.state),
    "key": lambda context: context.state.get("_withheld/1"),
    "number": lambda context: [key for key in context.state if key.startswith("_")],
    "size": lambda context: len(context.state),
    "repr": lambda context: repr(context.state),
    "session": lambda context: context.session.state.snapshot,
    "changes": lambda context: context.session.state.history,
    "former": lambda context: context.session.state.replay(1),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_a_trusted_tool_reads_no_withheld_result_in_the_state(read):
    """The state that a tool reads is the same for each untrusted text, and without it."""
    found = []

    @tool(effect="pure")
    async def dump(context: ToolContext) -> str:
        """Show the state."""
        found.append(str(read(context)))
        return found[-1]

    program = Program([READ, ToolCall("dump", {}), "ok"], dump)
    await program.run()
    program.assert_isolated()
    assert TEXT not in found[0]
    if read is READS["size"]:
        assert found == ["0"]
    if read is READS["number"]:
        assert found == ["[]"]


async def test_a_trusted_tool_reads_no_long_result_in_the_state():
    """`read_result` reads a stored long result. No tool gets its text or size by the exact key, also not in a moved value."""
    found = []

    @tool(name="page", untrusted=True, effect="pure")
    async def long_page() -> str:
        """Read a page."""
        return f"{TEXT} " * 4000

    @tool(effect="pure")
    async def dump(context: ToolContext) -> str:
        """Show the long result."""
        states = (
            context.state,
            context.session.state.snapshot,
            copy_state(context.state, {"x": {"moved_to_result": "c1"}}),
        )
        found.extend(str(state.get(key)) for state in states for key in ("_result/c1", "_results", "x"))
        return " ".join(found)

    script = [ToolCall("page", {}, "c1"), ToolCall("dump", {}), ToolCall("read_result", {"id": "c1"}), "@r2"]
    program = Program(script, dump, page=long_page)
    reply = await program.run()
    program.assert_isolated()
    assert set(found) == {"None", "{'moved_to_result': 'c1'}"}
    assert TEXT in reply.text


async def test_the_state_names_no_withheld_key():
    """A key of the framework is in the state neither as a key nor as a value."""
    program = Program([READ, "ok"])
    async with program.agent as agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        assert "_withheld/1" not in session.state
        assert dict(session.state) == {}


async def test_own_records_are_withheld():
    """A tool that reads the records of its own session gets the sources of the withheld results in them."""

    @tool(effect="pure")
    async def dump(context: ToolContext) -> str:
        """Show the records."""
        return str(await context.session.observations())

    program = Program([READ, ToolCall("dump", {}), "ok"], dump)
    await program.run()
    program.assert_isolated()
    assert "@r2: a result of dump, withheld" in program.shown[2]


async def _observed(session):
    async with session.observe(after=0) as found:
        return str(await found.receive())


OTHER = {
    "approvals": lambda session: str([each.arguments for each in session.approvals]),
    "observations": lambda session: session.observations(),
    "observe": _observed,
}


@pytest.mark.parametrize("name", OTHER)
async def test_a_read_of_an_isolating_session(sink, name):  # noqa: F811
    """A tool that reads approvals or records of an isolating session gets the sources of its withheld results."""

    @tool(effect="pure")
    async def look() -> str:
        """Look at the other session."""
        found = OTHER[name](other)
        return found if isinstance(found, str) else str(await found)

    async with open_runtime(journal="memory:") as runtime:
        isolating = await runtime.start(
            BareAgent(
                "isolating",
                llm=ScriptedLLM([READ, ToolCall("pay", {"to": "@r1"}), "ok"], keep=0),
                tools=[page, _pay],
                policy=Policy(untrusted="isolate"),
            )
        )
        other = await isolating.create_session("ada")
        await _ask(other)
        agent = await runtime.start(sink.agent([ToolCall("look", {}), PAY, "ok"], tools=[look]))
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        assert (other.label, session.label) == (Label(), Label({"page"}))
        await other.answer(other.approvals[0], Approve())
    sink.assert_asked("page")


async def test_a_read_of_the_approvals_of_child_sessions(sink):  # noqa: F811
    """The approvals of a session contain those of its child sessions, so a tool that reads them gets the sources of the children."""
    script = [READ, ToolCall("pay", {"to": TEXT}), "ok"]
    child = BareAgent("child", llm=ScriptedLLM(script, keep=0), tools=[page, _pay], policy=Policy())

    @tool(effect="pure")
    async def look() -> str:
        """Look at the approvals."""
        return str([each.arguments for each in parent.approvals])

    async with open_runtime() as runtime:
        await runtime.start(child)
        script = [ToolCall("child", {"task": "pay"}), "ok"]
        boss = await runtime.start(
            BareAgent("boss", llm=ScriptedLLM(script, keep=0), tools=[child.as_tool()])
        )
        parent = await boss.create_session("ada")
        await _ask(parent)
        agent = await runtime.start(sink.agent([ToolCall("look", {}), PAY, "ok"], tools=[look]))
        await agent.run("go")
        await parent.answer(parent.approvals[0], Approve())
    sink.assert_asked("page")


@tool(name="pay")
async def _pay(to: str) -> str:
    """Pay."""
    return "paid"


async def _ask(session):
    """Send a message, and wait until a call needs an approval."""
    await session.chat("go")
    with trio.fail_after(10):
        while not session.approvals:  # noqa: ASYNC110 - the turn asks
            await trio.sleep(0.01)
