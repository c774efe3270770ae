"""Sessions that would wait for each other forever: the call that would close the cycle raises, and all others continue."""

import json
import time
from contextlib import ExitStack

import pytest
import trio

from actgent import (
    BareAgent,
    DeadlockDetected,
    RouterAgent,
    ScriptedLLM,
    ToolCall,
    WouldDeadlock,
    open_runtime,
    tool,
)
from actgent.actors.wait_graph import WaitNode, waiting


def go_once(chat):
    """Return a model that calls the tool `go`, and then answers with its result."""
    last = chat.messages[-1]
    return last.parts[0].text if last.role == "tool" else ToolCall("go", {})


def waiting_by(how, found, name):
    """Return the code by which a tool or handler waits for a session, for each way."""

    async def wait(agent, session):
        try:
            if how == "wait_idle":
                await session.wait_idle()
                return "idle"
            if how == "stream":
                async with agent.stream("go on", session=session) as events:
                    return str([event async for event in events][-1])
            return str(await agent.run("go on", session=session))
        except DeadlockDetected as error:
            found.append((name, error))
            return "no way"

    return wait


@pytest.mark.parametrize("length", range(2, 9))
@pytest.mark.parametrize("how", ["run", "stream", "wait_idle"])
async def test_wait_cycle_over_tools_is_rejected_at_its_last_ask(autojump_clock, how, length):
    """Every other session gets its answer, no slot is lost, and no wait remains."""
    found, sessions, agents = [], {}, []

    def agent_number(number):
        following = (number + 1) % length

        @tool
        async def go() -> str:
            """Ask the next one."""
            session = sessions[following]
            if how == "wait_idle" and following:
                await session.chat("go on")
            return await waiting_by(how, found, number)(agents[following], session)

        return BareAgent(f"a{number}", llm=ScriptedLLM(go_once), tools=[go], max_concurrent_sessions=1)

    agents += map(agent_number, range(length))
    async with open_runtime() as runtime:
        for number, agent in enumerate(agents):
            await runtime.start(agent)
            sessions[number] = await agent.create_session("ada", session_id=f"s{number}")
        with trio.fail_after(5):
            await agents[0].run("begin", session=sessions[0])
            for session in sessions.values():
                await session.wait_idle()
        assert all(agent._opener.running.inbox.statistics().claimed == 0 for agent in agents)
        assert all(session._context.wait_node is None for session in sessions.values())
    ((closer, error),) = found
    assert closer == length - 1
    assert error.path == tuple(f"a{n}/s{n}" for n in (length - 1, *range(length)))
    assert " -> ".join(error.path) in str(error)
    assert isinstance(error, WouldDeadlock)


async def test_wait_cycle_of_eight_is_detected_within_ten_milliseconds():
    """The time counts from the closing ask to the error, in real time, with 1,000 other waiting sessions."""
    sessions, agents, took, paths = [], [], [], []
    length = 8

    def agent_number(number):
        following = (number + 1) % length

        @tool
        async def go() -> str:
            """Ask the next one."""
            started = time.perf_counter()
            try:
                return str(await agents[following].run("go on", session=sessions[following]))
            except DeadlockDetected as error:
                took.append(time.perf_counter() - started)
                paths.append(len(error.path))
                return "no way"

        return BareAgent(f"a{number}", llm=ScriptedLLM(go_once), tools=[go])

    agents += map(agent_number, range(length))
    lead = WaitNode("lead/s")
    async with open_runtime() as runtime:
        for agent in agents:
            await runtime.start(agent)
            sessions.append(await agent.create_session("ada"))
        with ExitStack() as others:
            first = waiting_node(sessions[0])
            for number in range(1000):
                others.enter_context(waiting(WaitNode(f"b/s{number}"), first))
                others.enter_context(waiting(lead, WaitNode(f"c/s{number}")))
            for _ in range(20):
                await agents[0].run("begin", session=sessions[0])
    assert paths == [length + 1] * 20
    assert sorted(took)[10] < 0.010


def waiting_node(session):
    """The session in the graph, before anyone waits for it."""
    session._context.open_tree().wait_node = WaitNode(f"{session.agent_name}/{session.id}")
    return session._context.wait_node


async def test_wait_cycle_over_a_child_session_is_rejected(autojump_clock):
    """An agent that is asked in a child session cannot ask the asking session."""
    found = []

    @tool
    async def go() -> str:
        """Ask the boss back."""
        return await waiting_by("run", found, "worker")(boss, session)

    worker = BareAgent("worker", llm=ScriptedLLM(go_once), tools=[go])
    llm = ScriptedLLM([ToolCall("worker", {"task": "x"}), "done"])
    boss = BareAgent("boss", llm=llm, tools=[worker.as_tool()])
    async with boss:
        session = await boss.create_session("ada", session_id="s")
        with trio.fail_after(5):
            assert str(await boss.run("go", session=session)) == "done"
    path = found[0][1].path
    assert (path[0], path[-1]) == (path[2], path[0])
    assert (path[1], path[0].split("/")[0]) == ("boss/s", "worker")


async def test_wait_cycle_over_a_handler_and_a_route_is_rejected(autojump_clock):
    """A desk routes to a clerk, whose handler asks the desk."""
    found = []
    clerk = BareAgent("clerk", llm=ScriptedLLM(["5 euros"]))
    wish = json.dumps({"top_level_intent": "ACTION", "second_level_intent": "billing"})
    desk = RouterAgent("desk", llm=ScriptedLLM([wish]), routes={"billing": clerk})

    @clerk.on_session
    def attach(clerks):
        @clerks.on_conversation
        async def ask_back(_):
            await waiting_by("run", found, "clerk")(desk, session)

    async with desk:
        session = await desk.create_session("ada", session_id="s")
        with trio.fail_after(5):
            assert str(await desk.run("my bill?", session=session)) == "5 euros"
    assert found[0][1].path == ("clerk/s/billing", "desk/s", "clerk/s/billing")


async def test_wait_cycle_fails_only_one_of_two_concurrent_tools(autojump_clock):
    """A tool in a cycle gets the error, the other gets its answer."""
    found = []

    @tool
    async def go() -> str:
        """Ask the boss back."""
        return await waiting_by("run", found, "worker")(boss, session)

    circular = BareAgent("circular", llm=ScriptedLLM(go_once), tools=[go])
    plain = BareAgent("plain", llm=ScriptedLLM(["fine"], delay=1))
    calls = [ToolCall("plain", {"task": "x"}), ToolCall("circular", {"task": "x"})]
    boss = BareAgent(
        "boss",
        llm=ScriptedLLM([calls, "done"]),
        tools=[plain.as_tool(), circular.as_tool()],
        max_concurrent_sessions=1,
    )
    async with boss:
        session = await boss.create_session("ada")
        with trio.fail_after(5):
            await boss.run("go", session=session)
        assert [result.content for result in session.history[2].tool_results] == ["fine", "no way"]
    assert len(found) == 1


async def test_delegated_task_may_wait_for_its_parent_session(autojump_clock):
    """The turn does not wait for the task, so there is no cycle."""
    answers = []
    async with trio.open_nursery() as nursery:

        async def later():
            answers.append(str(await boss.run("and now?", session=session)))

        @tool
        async def go() -> str:
            """Ask the own session, in a task of one's own."""
            nursery.start_soon(later)
            await trio.lowlevel.checkpoint()
            return "started"

        @tool
        async def wait() -> str:
            """Wait for another session meanwhile."""
            return str(await helper.run("hi"))

        helper = BareAgent("helper", llm=ScriptedLLM(["fine"], delay=1))
        llm = ScriptedLLM([[ToolCall("go", {}), ToolCall("wait", {})], "done", "now"])
        boss = BareAgent("boss", llm=llm, tools=[go, wait])
        async with open_runtime() as runtime:
            await runtime.start(boss)
            await runtime.start(helper)
            session = await boss.create_session("ada")
            with trio.fail_after(5):
                assert str(await boss.run("go", session=session)) == "done"
                await session.wait_idle()
    assert answers == ["now"]


@pytest.mark.parametrize("how", ["interrupt", "aclose"])
async def test_child_may_interrupt_its_waiting_parent(autojump_clock, how):
    """The interrupt does not wait for the end of the parent. Both turns end."""

    @tool
    async def go() -> str:
        """Stop the boss."""
        await getattr(session, how)()
        return "stopped"

    worker = BareAgent("worker", llm=ScriptedLLM(go_once), tools=[go])
    boss = BareAgent("boss", llm=ScriptedLLM(["5"]), tools=[])
    received = []
    async with open_runtime() as runtime:
        for agent in (boss, worker):
            await runtime.start(agent)
        session = await boss.create_session("ada")

        @session.on_conversation
        async def ask(_):
            received.append(str(await worker.run("go")))

        with trio.fail_after(5):
            await session.chat("hi")
            await session.wait_idle()
    assert received == ["stopped"] or how == "aclose"
