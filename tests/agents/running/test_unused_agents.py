"""Started agents without a message: they have a name and no task, and the first use starts them."""

from contextvars import ContextVar

import pytest
import trio
import trio.testing

from actgent import (
    AgentCore,
    BareAgent,
    PoolAgent,
    RouterAgent,
    ScriptedLLM,
    SummarizingMemory,
    ToolCall,
    handoff,
    open_runtime,
)
from actgent.errors import ConfigurationError, MissingKey, NotRunning, OutsideTrio

_user: ContextVar[str] = ContextVar("user", default="none")


def all_tasks(top=None):
    """Yield a task, by default the first of trio, and all tasks below it."""
    top = top or trio.lowlevel.current_root_task()
    yield top
    for nursery in top.child_nurseries:
        for task in nursery.child_tasks:
            yield from all_tasks(task)


def count_tasks():
    return trio.lowlevel.current_statistics().tasks_living


async def test_an_unused_agent_has_no_task():
    """A hundred started agents are listed and have no task; the first session of one starts one actor."""
    async with open_runtime() as runtime:
        before = count_tasks()
        for number in range(100):
            await runtime.start(BareAgent(f"a{number}", llm=ScriptedLLM(["hi"])))
        await trio.testing.wait_all_tasks_blocked()
        assert count_tasks() == before
        assert (runtime.count, len(runtime.agents), len(runtime.statistics())) == (100, 100, 100)
        assert {each.state for each in runtime.statistics()} == {"running"}
        await runtime.agents.agent("a7").create_session("ada")
        await trio.testing.wait_all_tasks_blocked()
        assert count_tasks() > before
        assert [opener.running.name for opener in runtime.agents.openers] == ["a7"]


async def test_statistics_are_the_same_before_and_after_the_first_use():
    """An agent reports its bounds from its start."""
    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM([]), max_concurrent_sessions=3))
        unused = runtime.statistics()
        await (await agent.create_session("ada")).aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert runtime.statistics() == unused
        assert unused[0].concurrency == 3


async def test_the_name_of_an_unused_agent_is_taken():
    """No second agent and no actor gets the name, until the agent is stopped."""
    async with open_runtime() as runtime:
        await runtime.start(BareAgent("a", llm=ScriptedLLM([])))
        with pytest.raises(ConfigurationError, match="'a' runs here already"):
            await runtime.start(BareAgent("a", llm=ScriptedLLM([])))
        runtime.stop("a")
        await trio.testing.wait_all_tasks_blocked()
        again = await runtime.start(BareAgent("a", llm=ScriptedLLM(["again"])))
        assert (await again.run("hi")).text == "again"


@pytest.mark.parametrize("is_used", [False, True], ids=["unused", "used"])
async def test_start_and_stop_are_one_event_each(is_used):
    """Observers receive the start event at the start, and not again at the first use."""
    async with open_runtime() as runtime, runtime.events() as events:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
        if is_used:
            await agent.run("hi")
        runtime.stop("a")
        await trio.testing.wait_all_tasks_blocked()
        names = [type(event).__name__ for event in events._backlog.events]
        assert [name for name in names if name.startswith("Actor")] == ["ActorStarted", "ActorStopped"]
        with pytest.raises(NotRunning):
            await agent.create_session("ada")


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["normal", "cancelled"])
async def test_the_end_of_the_runtime_ends_unused_agents(is_cancelled):
    """The agent can be started again, in another runtime."""
    agent = BareAgent("a", llm=ScriptedLLM(["hi"]))
    with trio.CancelScope() as scope:
        async with open_runtime() as runtime:
            await runtime.start(agent)
            if is_cancelled:
                scope.cancel()
                await trio.lowlevel.checkpoint()
    with pytest.raises(NotRunning):
        await agent.create_session("ada")
    async with open_runtime() as runtime:
        await runtime.start(agent)
        assert (await agent.run("hi")).text == "hi"


async def test_the_first_user_leaves_no_context_variables():
    """The task of the agent has the context variables of the start: it serves other users later."""
    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))

        async def use_first():
            _user.set("ada")
            await agent.run("hi")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(use_first)
        (task,) = [each for each in all_tasks() if each.name == "actor a"]
        assert task.context.get(_user) is None


async def test_an_agent_is_first_used_while_the_runtime_closes(autojump_clock):
    """A turn that still runs may call an agent that was not used before, and gets its answer."""
    helper = BareAgent("helper", llm=ScriptedLLM(["forty-two"]))
    boss = BareAgent(
        "boss", llm=ScriptedLLM([ToolCall("helper", {"task": "count"}), "it is 42"]), tools=[helper.as_tool()]
    )
    answers = []
    async with open_runtime() as runtime:
        await runtime.start(boss)
        session = await boss.create_session("ada")
        session.on_conversation(lambda reply: answers.append(reply.text))
        await session.chat("how many?")
    assert answers == ["it is 42"]


async def test_the_first_use_comes_from_another_thread():
    """Other threads must use a portal, from the first call on."""
    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))

        def use():
            return trio.run(agent.create_session, "ada")

        with pytest.raises(OutsideTrio):
            await trio.to_thread.run_sync(use)
        assert (await agent.run("hi")).text == "hi"


class RejectingCore(AgentCore):
    """A core whose constructor rejects the agent."""

    def __init__(self, **parts):
        raise ConfigurationError("this core needs a ledger")


class RejectedAgent(BareAgent):
    core_type = RejectingCore


def boss(**options):
    return BareAgent("boss", llm=ScriptedLLM([]), **options)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        pytest.param(lambda: PoolAgent("writer", pool="p"), "cluster=", id="pool"),
        pytest.param(
            lambda: boss(tools=[PoolAgent("writer", pool="p").as_tool()]), "cluster=", id="pool of a tool"
        ),
        pytest.param(
            lambda: boss(tools=[handoff(to=PoolAgent("writer", pool="p"))]),
            "cluster=",
            id="pool of a handoff",
        ),
        pytest.param(
            lambda: RouterAgent("boss", llm=ScriptedLLM([]), routes={"WRITE": PoolAgent("writer", pool="p")}),
            "cluster=",
            id="pool of a route",
        ),
        pytest.param(lambda: RejectedAgent("boss", llm=ScriptedLLM([])), "needs a ledger", id="core"),
        pytest.param(
            lambda: boss(memory=SummarizingMemory(llm="no-such-model")), "no-such-model", id="memory"
        ),
    ],
)
async def test_a_configuration_error_is_raised_by_the_start(make, text, no_keys):
    """An agent that cannot run in the runtime is rejected before its first use. No agent is started, and the names stay free."""
    async with open_runtime() as runtime:
        with pytest.raises(ConfigurationError, match=text):
            await runtime.start(make())
        assert (runtime.count, len(runtime.agents)) == (0, 0)
        assert (await (await runtime.start(boss())).create_session("ada")).agent_name == "boss"


async def test_a_missing_key_is_raised_by_the_start(no_keys):
    """The key was removed between the construction and the start."""
    no_keys.setenv("OPENAI_API_KEY", "test")
    agent = BareAgent("a", llm="openai:gpt-4.1-mini")
    async with agent:
        pass
    no_keys.delenv("OPENAI_API_KEY")
    async with open_runtime() as runtime:
        with pytest.raises(MissingKey):
            await runtime.start(agent)
        assert runtime.count == 0
