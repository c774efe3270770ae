"""Session trees deeper than Python's stack: close, evict, erase, ask and hold."""

import math

import pytest
import trio

from actgent import (
    Approve,
    BareAgent,
    Limits,
    ScriptedLLM,
    SessionNotFound,
    ToolCall,
    delegation_tools,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.sessions.pending.turn_future import TurnFuture
from actgent.testing import assert_no_leaks

DEEP = 1200


def chain_of(runtime_limits, count):
    """Two agents that pass a task on to each other so often, without waiting; the last one works."""
    passed, done = [0], trio.Event()

    def pass_on(other):
        async def answer(chat):
            last = chat.messages[-1]
            if last.role == "tool":
                return "passed on"
            passed[0] += 1
            if passed[0] > count:
                done.set()
                await trio.sleep_forever()
            return ToolCall("delegate_to_agent", {"agent": other, "task": "next", "wait": False})

        return answer

    def agent(name, other):
        llm = ScriptedLLM(pass_on(other), keep=0)
        return BareAgent(name, llm=llm, tools=delegation_tools(), limits=runtime_limits, grace=0.5)

    return agent("x", "y"), agent("y", "x"), done


@pytest.mark.parametrize("how", ["aclose", "delete_session", "leave"])
@pytest.mark.parametrize("durable", [False, True])
async def test_a_long_chain_of_tasks_ends_with_its_root(durable, how, autojump_clock):
    """The whole chain is closed at once, and other sessions of its agents continue."""
    limits = Limits(depth=10_000, tree_model_calls=10_000, tree_tool_calls=10_000)
    x, y, done = chain_of(limits, 400)
    answers = []
    third = BareAgent("third", llm=ScriptedLLM(lambda _: "fine", delay=2))
    async with assert_no_leaks(), MemoryJournal().running() as journal:
        async with open_runtime(journal=journal if durable else None) as runtime:
            for agent in (x, y, third):
                await runtime.start(agent)
            other = await third.create_session("bob")
            other.on_conversation(answers.append)
            root = await x.create_session("ada", "go", session_id="root")
            await done.wait()
            await other.chat("hello")
            if how == "aclose":
                await root.aclose()
                assert root.status == "closed"
            elif how == "delete_session":
                await runtime.delete_session("root")
                with pytest.raises(SessionNotFound):
                    await x.open_session("root")
            if how != "leave":
                await trio.sleep(1)
                assert len(x._opener.running.sessions) == len(y._opener.running.sessions) == 0
            await other.wait_idle()
        assert [answer.text for answer in answers] == ["fine"]


async def test_session_trees_may_have_any_depth(autojump_clock):
    """Sessions are created, listed, asked at the bottom and closed. Ancestors of a closed session stay open."""

    @tool(approval=True)
    async def delete() -> str:
        """Delete."""
        return "deleted"

    script = lambda chat: "done" if chat.messages[-1].role == "tool" else ToolCall("delete", {})  # noqa: E731
    async with BareAgent("a", llm=ScriptedLLM(script, keep=0), tools=[delete]) as agent:
        sessions = [await agent.create_session("ada")]
        for _ in range(DEEP):
            sessions.append(await agent.create_session("ada", parent=sessions[-1]))
        received = []
        sessions[-1].on_conversation(received.append)
        await sessions[-1].chat("go")
        await sessions[-1].wait_idle()
        (asked,) = sessions[0].approvals
        await sessions[0].answer(asked, Approve())
        await sessions[-1].wait_idle()
        assert [reply.text for reply in received] == ["done"]
        await sessions[600].aclose()
        assert {session.status for session in sessions[600:]} == {"closed"}
        assert {session.status for session in sessions[:600]} == {"idle"}
        await sessions[0].aclose()
        assert len(agent._opener.running.sessions) == 0


async def test_a_long_chain_of_waits_is_held_and_released(autojump_clock):
    """Time limits pause for each caller in a chain that waits for an approval."""

    class Asker:
        def __init__(self, future):
            self.turn = type("", (), {"listeners": (future,), "time_limit_at": math.inf})()

    first = TurnFuture(None)
    futures = [first]
    for _ in range(DEEP):
        future = TurnFuture(None)
        future.bind_time_limits(Asker(futures[-1]))
        futures.append(future)
    futures[-1].hold()
    assert {future._holds for future in futures} == {1}
    assert futures[-1].deadline() == float("inf")
    futures[-1].release()
    assert {future._holds for future in futures} == {0}
