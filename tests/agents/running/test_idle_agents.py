"""Agents without work: their task ends, and the next work starts one again."""

from contextvars import ContextVar
from functools import partial

import pytest
import trio
import trio.testing

from actgent import LLM, Approve, BareAgent, Priority, ScriptedLLM, Text, ToolCall, open_runtime, tool
from actgent.errors import NotRunning
from actgent.llm.model_interface import ModelResponse
from actgent.runtime.turn_runner import IDLE_SECONDS

IDLE = 3 * IDLE_SECONDS
STEPS = range(8)
"""Steps of the event loop in which the task of an agent ends."""
_user: ContextVar[str] = ContextVar("user", default="none")
journals = pytest.mark.parametrize("journal", [None, "memory:"], ids=["memory", "journal"])


class Echo(LLM):
    """Answers with the last message, after `seconds`."""

    name = "test:echo"

    def __init__(self, seconds=0):
        self.seconds = seconds

    async def complete(self, chat, *, on_text=None):
        await trio.sleep(self.seconds)
        return ModelResponse(parts=(Text(f"echo {chat.messages[-1].parts[0].text}"),))


def tasks_of(name):
    """Return the tasks of the actor with this name."""
    waiting, found = [trio.lowlevel.current_root_task()], []
    while waiting:
        task = waiting.pop()
        found += [task] if task.name == f"actor {name}" else []
        waiting += [each for nursery in task.child_nurseries for each in nursery.child_tasks]
    return found


async def wait_ending(agent, steps):
    """Let the task of an idle agent begin to end, and wait for a number of steps."""
    await trio.testing.wait_all_tasks_blocked()
    runner = agent._opener.running.runner
    for _ in range(2):  # the first check sees that the worker was needed since the start
        runner._workers._end_unused()
    assert runner.is_dormant
    assert tasks_of(agent.name)
    for _ in range(steps):
        await trio.lowlevel.checkpoint()


@journals
async def test_an_idle_agent_has_no_task(journal, autojump_clock):
    """An agent whose open session has no work has no task, and still reports that it runs."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=Echo()))
        session = await agent.create_session("ada")
        await trio.sleep(IDLE)
        assert not tasks_of("a")
        for number in range(3):
            assert (await agent.run(str(number), session=session)).text == f"echo {number}"
            assert len(tasks_of("a")) == 1
            await trio.sleep(IDLE)
            assert not tasks_of("a")
            assert [each.state for each in runtime.statistics()] == ["running"]
        assert (await agent.run("once")).text == "echo once"


@journals
async def test_a_running_turn_keeps_the_task(journal, autojump_clock):
    """A turn that waits for its model is work."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=Echo(seconds=100)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.run, "slow")
            await trio.sleep(90)
            assert len(tasks_of("a")) == 1
        await trio.sleep(IDLE)
        assert not tasks_of("a")


@journals
@pytest.mark.parametrize("steps", STEPS)
async def test_messages_arrive_while_the_task_ends(journal, steps, autojump_clock):
    """Messages of two senders are answered if they arrive at any step of the end."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=Echo()))
        session, other = await agent.create_session("ada"), await agent.create_session("bob")
        await agent.run("first", session=session)
        await wait_ending(agent, steps)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(agent.run, "second", session=session))
            nursery.start_soon(partial(agent.run, "third", session=other))
        assert session.history[-1].text == "echo second"
        assert other.history[-1].text == "echo third"
        assert len(tasks_of("a")) == 1


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["exits", "cancelled"])
@pytest.mark.parametrize("steps", STEPS)
async def test_the_runtime_ends_while_the_task_ends(steps, is_cancelled, autojump_clock):
    """The agent ends once, so that it can start again."""
    agent = BareAgent("a", llm=Echo())
    with trio.CancelScope() as scope:
        async with open_runtime() as runtime:
            await runtime.start(agent)
            await agent.run("first")
            await wait_ending(agent, steps)
            if is_cancelled:
                scope.cancel()
    async with open_runtime() as runtime:
        await runtime.start(agent)
        assert (await agent.run("again")).text == "echo again"


@pytest.mark.parametrize("steps", [*STEPS, 100])
async def test_the_agent_is_stopped_while_its_task_ends(steps, autojump_clock):
    """The agent ends once, rejects messages, and its name is free."""
    async with open_runtime() as runtime, runtime.events() as events:
        agent = await runtime.start(BareAgent("a", llm=Echo()))
        session = await agent.create_session("ada")
        await agent.run("first", session=session)
        await wait_ending(agent, steps)
        runtime.stop("a")
        with pytest.raises(NotRunning):
            await session.chat("second")
        await trio.testing.wait_all_tasks_blocked()
        assert not tasks_of("a")
        again = await runtime.start(BareAgent("a", llm=Echo()))
        assert (await again.run("third")).text == "echo third"
        names = [type(event).__name__ for event in events._backlog.events]
        assert [name for name in names if name.startswith("Actor")] == [
            "ActorStarted",
            "ActorStopped",
            "ActorStarted",
        ]


@pytest.mark.parametrize("steps", [*STEPS, 100])
async def test_background_work_starts_while_the_task_ends(steps, autojump_clock):
    """The work runs with the context variables of its caller.

    If the agent is stopped at once, the work is cancelled, not lost.
    """
    seen = []

    async def work():
        try:
            seen.append(_user.get())
            await trio.sleep(1)
            seen.append("done")
        except trio.Cancelled:
            seen.append("cancelled")
            raise

    for is_stopped in (False, True):
        seen.clear()
        async with open_runtime() as runtime:
            agent = await runtime.start(BareAgent("a", llm=Echo()))
            await agent.run("first")
            await wait_ending(agent, steps)
            _user.set("ada")
            assert agent._opener.running.runner.start_soon(work)
            if is_stopped:
                runtime.stop("a")
            await trio.sleep(IDLE)
            assert not tasks_of("a")
        assert seen == ["ada", "cancelled" if is_stopped else "done"]


async def test_the_agent_restarts_after_a_failure_and_becomes_idle(autojump_clock):
    """A failure of a background task restarts the agent, also if that task has woken it. The restart ends for lack of work."""

    async def fail():
        raise ValueError("broken")

    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("a", llm=Echo()))
        session = await agent.create_session("ada")
        for count in (1, 2):
            assert (await agent.run("hi", session=session)).text == "echo hi"
            await trio.sleep(IDLE)
            assert agent._opener.running.runner.start_soon(fail)
            await trio.sleep(IDLE)
            assert not tasks_of("a")
            assert [each.restarts for each in runtime.statistics()] == [count]
        assert (await agent.run("hi", session=session)).text == "echo hi"


@journals
async def test_a_schedule_wakes_an_idle_agent(journal, autojump_clock):
    """The timers of an agent stay armed while it has no task."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=Echo()))
        session = await agent.create_session("ada")
        await session.schedule("look", after=3600)
        await trio.sleep(1800)
        await session.schedule("listen", after=3600)
        assert not tasks_of("a")
        await trio.sleep(1801)
        assert "look" in session.history[-1].text
        await trio.sleep(1801)
        assert "listen" in session.history[-1].text


@journals
async def test_an_approval_wakes_an_idle_agent(journal, autojump_clock):
    """A suspended turn needs no task, and its approval resumes it."""

    @tool(approval=True)
    async def look() -> str:
        """Look."""
        return "seen"

    async with open_runtime(journal=journal) as runtime:
        agent = BareAgent("a", llm=ScriptedLLM([ToolCall("look", {}), "done"]), tools=[look])
        await runtime.start(agent)
        session = await agent.create_session("ada")
        await session.chat("look")
        await trio.sleep(3600)
        assert not tasks_of("a")
        await session.answer(session.approvals[0], Approve())
        await session.wait_idle()
        assert session.history[-1].text == "done"


async def test_messages_to_an_idle_agent_keep_their_order(autojump_clock):
    """Of the messages that arrive before its task has started, the URGENT one is answered first."""
    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("a", llm=Echo()))
        session, texts = await agent.create_session("ada"), []
        session.on_conversation(lambda reply: texts.append(reply.text))
        await trio.sleep(IDLE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.chat, "first")
            nursery.start_soon(session.chat, "second")
            nursery.start_soon(partial(session.chat, "third", priority=Priority.URGENT))
        await session.wait_idle()
        assert texts[0] == "echo third"
        assert sorted(texts) == ["echo first", "echo second", "echo third"]


async def test_waking_an_agent_changes_no_context_variables(autojump_clock):
    """The next task of the agent has the context variables of its start."""
    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("a", llm=Echo()))
        await agent.run("hi")
        await trio.sleep(IDLE)

        async def wake():
            _user.set("ada")
            await agent.run("hi")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wake)
        (task,) = tasks_of("a")
        assert task.context.get(_user) is None
