"""A call that is stopped or killed may have stored untrusted text in the state of its session.

So the session gets the sources of all text that the call has read, before another tool shows the text.
"""

import pytest
import trio

from actgent import Label, ToolCall, ToolContext, open_runtime, tool
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.testing import CrashingJournal

from .isolating_program import TEXT, Program
from .outer_tool import OuterTool
from .test_boundaries import page, reader, sink  # noqa: F401 - sink is a fixture

NEVER = 1 << 60
SCRIPT = [ToolCall("outer", {}), ToolCall("show", {}), ToolCall("pay", {"to": "bob"}), "ok"]


class Tools:
    """A tool `outer` that stores untrusted text and waits, a tool `show` that shows the text, and the sources of the text."""

    def __init__(self, case, *, effect="idempotent", is_idle=False):
        self.is_idle = is_idle
        self.has_stored = trio.Event()
        self.helper = reader()
        self.source = "fetch" if case == "call that stores" else "page"

        @tool(untrusted=True, sinks=())
        async def fetch(context: ToolContext) -> str:
            """Store a page, and wait."""
            await self._wait(context, TEXT)
            return ""

        @tool(sinks=())
        async def stop() -> str:
            """Wait."""
            self.has_stored.set()
            await trio.sleep_forever()
            return ""

        @tool(effect="pure")
        async def show(context: ToolContext) -> str:
            """Show the stored text."""
            return context.state["note"]

        self.all = [self._outer(case, effect), fetch, stop, show]

    async def _wait(self, context, text):
        context.state.dispatch(("note", text))
        self.has_stored.set()
        await trio.sleep_forever()

    def _outer(self, case, effect):
        helper, wait, is_idle = self.helper, self._wait, self.is_idle

        class Outer(OuterTool):
            async def execute(self, arguments, context):
                if is_idle:
                    return
                if case == "answer":
                    await wait(context, (await helper.run("read")).text)
                elif case == "argument":
                    await wait(context, arguments["text"])
                elif case == "trusted":
                    await wait(context, "hello")
                elif case == "origin":
                    context.origin = "page"
                    await wait(context, TEXT)
                elif case == "call":
                    await wait(context, (await context.tools.call("page", {})).content)
                elif case == "call that stores":
                    await context.tools.call("fetch", {})
                else:  # the start of `stop` is recorded with the state
                    context.state.dispatch(("note", (await context.tools.call("page", {})).content))
                    await context.tools.call("stop", {})

        outer = Outer()
        outer.effect = effect
        if case in ("answer", "origin", "argument", "trusted"):
            outer.calls_tools = outer.exclusive = False
        return outer


async def _stop(agent, has_stored):
    session = await agent.create_session("ada")
    await session.chat("go")
    await has_stored.wait()
    await session.interrupt()
    await agent.run("go on", session=session)


@pytest.mark.parametrize("case", ["answer", "origin", "call", "call that stores"])
async def test_a_stopped_call(sink, case):  # noqa: F811
    """The session has the sources of the answers and of the nested calls of a stopped call."""
    tools = Tools(case)
    async with tools.helper, sink.agent(SCRIPT, tools=[page, *tools.all]) as agent:
        await _stop(agent, tools.has_stored)
    sink.assert_asked(tools.source)


@pytest.mark.parametrize("case", ["answer", "origin", "call", "call that stores"])
async def test_a_stopped_call_of_an_isolating_agent(case):
    """The planner may read the stored text, so the session is untrusted."""
    tools = Tools(case)
    program = Program(SCRIPT, *tools.all)
    async with tools.helper, program.agent as agent:
        await _stop(agent, tools.has_stored)
    assert [labels for _, labels in program.asked] == [{"to": Label({tools.source})}]
    assert program.paid == []


async def _die_after_storing(agent, tools, inner):
    """Run an agent in a process that dies while the tool `outer` waits, after the journal has the state."""
    journal = CrashingJournal(inner, NEVER)
    with trio.CancelScope() as scope:
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(tools.helper)
            await runtime.start(agent)
            session = await agent.create_session("ada", session_id="s")
            await session.chat("go")
            await tools.has_stored.wait()
            await trio.sleep(1)
            journal.died.set()
            scope.cancel()


async def _resume(agent, journal):
    """Run the agent in the next process, where the tool `outer` reads nothing."""
    async with open_runtime(journal=journal) as runtime:
        await runtime.start(agent)
        await (await agent.open_session("s")).wait_idle()


CASES = ["answer", "origin", "call", "call that stores", "killed"]


@pytest.mark.parametrize("effect", ["once", "idempotent", "pure"])
@pytest.mark.parametrize("case", CASES)
async def test_a_killed_call(sink, case, effect, autojump_clock):  # noqa: F811
    """After a crash the session has the sources of the text that a call has stored, also if the call runs again and reads nothing."""
    tools, idle = Tools(case, effect=effect), Tools(case, effect=effect, is_idle=True)
    async with MemoryJournal().running() as journal:
        await _die_after_storing(sink.agent(SCRIPT, tools=[page, *tools.all]), tools, journal)
        await _resume(sink.agent(SCRIPT[1:], tools=[page, *idle.all]), journal)
    sink.assert_asked(tools.source)


@pytest.mark.parametrize("case", [*CASES, "argument"])
async def test_a_killed_call_of_an_isolating_agent(case, autojump_clock):
    """After a crash the planner may read the stored text, so the session is untrusted."""
    script = (
        [ToolCall("page", {}), ToolCall("outer", {"text": "@r1"}), *SCRIPT[1:]]
        if case == "argument"
        else SCRIPT
    )
    tools, idle = Tools(case, effect="pure"), Tools(case, effect="pure", is_idle=True)
    async with MemoryJournal().running() as journal:
        await _die_after_storing(Program(script, *tools.all).agent, tools, journal)
        program = Program(SCRIPT[1:], *idle.all)
        await _resume(program.agent, journal)
    assert [labels for _, labels in program.asked] == [{"to": Label({tools.source})}]


async def test_a_killed_call_that_stores_nothing_of_a_withheld_result(autojump_clock):
    """The planner stays trusted after a crash if only another call of the same answer has read untrusted text."""
    tools = Tools("trusted", effect="pure")

    @tool(name="page", untrusted=True, effect="pure")
    async def slow() -> str:
        """Read a page while the other call stores its text."""
        await trio.sleep(0.5)
        return TEXT

    script = [[ToolCall("page", {}), ToolCall("outer", {})], *SCRIPT[1:]]
    async with MemoryJournal().running() as journal:
        await _die_after_storing(Program(script, *tools.all, page=slow).agent, tools, journal)
        program = Program(SCRIPT[1:], *Tools("trusted", effect="pure", is_idle=True).all)
        await _resume(program.agent, journal)
    assert (program.asked, program.paid) == ([], [("bob", 0, "")])
