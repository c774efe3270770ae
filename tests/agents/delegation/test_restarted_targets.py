"""Only the agent that works for another agent is stopped, and started again."""

import pytest
import trio

from actgent import Approve, BareAgent, Policy, Reply, ScriptedLLM, ToolCall, handoff, open_runtime, tool
from actgent.journal.in_memory_journal import MemoryJournal

TOOLS = {
    "as_tool": (lambda helper: helper.as_tool(), [ToolCall("helper", {"task": "x"}), "done: helped"]),
    "handoff": (handoff, [ToolCall("handoff_to_helper", {})]),
}


@pytest.mark.parametrize("how", TOOLS)
async def test_turn_waits_until_the_stopped_agent_runs_again(autojump_clock, listen, how):
    """The next start of the agent continues its task, and the waiting turn receives the outcome."""
    make_tool, script = TOOLS[how]

    async def help_slowly(chat):
        await trio.sleep(1)
        return "helped"

    helper = BareAgent("helper", llm=ScriptedLLM(help_slowly))
    desk = BareAgent("desk", llm=ScriptedLLM(script), tools=[make_tool(helper)])
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        await runtime.start(desk)
        session = await desk.create_session("ada")
        received = listen(session)
        await session.chat("hi")
        for _ in range(2):
            await trio.sleep(0.5)
            runtime.stop("helper")
            await trio.sleep(20)
            await runtime.start(helper)
        with trio.fail_after(5):
            await session.wait_idle()
        assert [str(each).removeprefix("done: ") for each in received if isinstance(each, Reply)] == [
            "helped"
        ]


@tool(effect="once", approval=True)
async def sign(order: str) -> str:
    """Sign an order."""
    return "signed"


@pytest.mark.parametrize("stops", [1, 2])
@pytest.mark.parametrize("how", TOOLS)
async def test_suspended_task_continues_after_a_restart_of_its_agent(autojump_clock, listen, how, stops):
    """The task waits for an approval while its agent is stopped. The waiting turn receives the outcome after the decision."""
    make_tool, script = TOOLS[how]
    helper = BareAgent("helper", llm=ScriptedLLM([ToolCall("sign", {"order": "7"}), "helped"]), tools=[sign])
    desk = BareAgent("desk", llm=ScriptedLLM(script), tools=[make_tool(helper)])
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        await runtime.start(desk)
        session = await desk.create_session("ada")
        received = listen(session)
        await session.chat("hi")
        for _ in range(stops):
            await trio.sleep(1)
            runtime.stop("helper")
            await trio.sleep(20)
            await runtime.start(helper)
        await trio.sleep(1)
        (approval,) = await helper.approvals()
        await helper.answer(approval.id, Approve())
        with trio.fail_after(5):
            await session.wait_idle()
        assert [str(each).removeprefix("done: ") for each in received if isinstance(each, Reply)] == [
            "helped"
        ]


async def test_interrupted_turn_ends_the_suspended_task_of_a_restarted_agent(autojump_clock):
    """The task waits for an approval since before the restart, and the turn that gave the task is interrupted."""
    helper = BareAgent("helper", llm=ScriptedLLM([ToolCall("sign", {"order": "7"})]), tools=[sign])
    desk = BareAgent("desk", llm=ScriptedLLM([ToolCall("helper", {"task": "x"})]), tools=[helper.as_tool()])
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        await runtime.start(desk)
        session = await desk.create_session("ada", "hi")
        await trio.sleep(1)
        runtime.stop("helper")
        await trio.sleep(1)
        await runtime.start(helper)
        await trio.sleep(1)
        await session.interrupt()
        await trio.sleep(1)
        assert await helper.approvals() == ()
        assert [each.closed for each in await runtime.sessions() if each.agent == "helper"] == [True]


@tool(untrusted=True, effect="pure")
async def page() -> str:
    """Read a page."""
    return "a text"


async def test_call_of_a_stopped_agent_under_a_policy_is_an_error_result(autojump_clock, listen):
    """The tools of the stopped agent are unknown, so the policy treats its tool as unsafe for untrusted text."""
    helper = BareAgent("helper", llm=ScriptedLLM(["helped"]))
    script = [ToolCall("page", {}), ToolCall("helper", {"task": "x"}), "done"]
    desk = BareAgent(
        "desk", llm=ScriptedLLM(script), tools=[page, helper.as_tool()], policy=Policy(violation="refuse")
    )
    async with open_runtime() as runtime:
        await runtime.start(desk)
        runtime.stop("helper")
        await trio.sleep(1)
        session = await desk.create_session("ada", "hi")
        received = listen(session)
        await session.wait_idle()
        assert [each.status for each in received if hasattr(each, "status")] == ["success", "error"]
        assert [str(each) for each in received if isinstance(each, Reply)] == ["done"]
