"""Large intermediate results of a goal: the state stays small, and moved values are read by reference."""

import json

import pytest

from actgent import GoalAgent, ScriptedLLM, open_runtime, run_agent
from actgent.protocols.goal.goal_decision_parsing import CustomAction
from actgent.state.reducers import append
from actgent.tools.outputs.oversized_state_values import is_offloaded


def act(action, **params):
    return json.dumps({"action": action, "params": params, "reasoning": "because"})


def use(name, **args):
    return act("execute", tool=name, args=args)


ACHIEVED = act("evaluate", achieved=True, answer="done")


def read(state, args):
    """Read pages."""
    return (args.get("key", "pages"), [args.get("text", "x") * args["size"]])


def measure(state, args):
    """Measure a read value."""
    every = {key: len(value[0]) for key, value in state.items() if key == "pages"}
    assert dict(state)["pages"] == {**state}["pages"] == json.loads(json.dumps(state))["pages"]
    return ("lengths", [state["pages"][0][:3], len(state.get("pages")[0]), len(state.values()), every])


def size_of(state):
    return sum(len(json.dumps(state[key])) for key in state if not key.startswith("_"))


async def test_large_values_are_moved():
    """The state has a reference, tools get the whole value, and the result has it, too."""
    llm = ScriptedLLM([use("read", size=300_000), use("measure"), ACHIEVED])
    async with GoalAgent("worker", llm=llm, tools=[read, measure], state_characters=10_000) as agent:
        session = await agent.create_session("ada")
        await agent.run("read", session=session)
        pages = session.state["pages"]
        assert is_offloaded(pages)
        assert (pages["characters"], len(pages["beginning"])) == (300_004, 200)
        assert size_of(session.state) < 1_000
        assert session.state["lengths"][:2] == ["xxx", 300_000]
        assert session.state["lengths"][3] == {"pages": 300_000}
    result = await run_agent("read", ScriptedLLM([use("read", size=300_000), ACHIEVED]), tools=[read])
    assert result.raw_data == {"pages": ["x" * 300_000]}


async def test_read_result_returns_moved_values():
    """`read_result` continues and searches by the reference."""
    script = [use("read", size=30_000, text="needle "), None, ACHIEVED]
    found = []

    def answer(chat):
        step = script[len(llm.chats) - 1]
        return step or use("read_result", id=found[0], search="needle", start=200_000)

    llm = ScriptedLLM(answer)
    async with GoalAgent("worker", llm=llm, tools=[read], state_characters=1_000) as agent:
        session = await agent.create_session("ada")
        session.state.subscribe(
            lambda state: (
                found.append(state["pages"]["moved_to_result"])
                if "pages" in state and is_offloaded(state["pages"])
                else None
            )
        )
        await agent.run("read", session=session)
        results = [result for message in session.history for result in message.tool_results]
    assert (results[1].tool_name, results[1].status) == ("read_result", "success")
    assert "[at 200" in results[1].content
    assert "needle" in results[1].content


async def test_largest_values_are_moved_first():
    """The bound covers all values together. Small values stay in the state."""
    sizes = {"a": 4_000, "b": 3_000, "c": 2_000, "d": 500}
    script = [use("read", key=key, size=size) for key, size in sizes.items()]
    async with GoalAgent(
        "worker", llm=ScriptedLLM([*script, ACHIEVED]), tools=[read], state_characters=6_000
    ) as agent:
        session = await agent.create_session("ada")
        await agent.run("read", session=session)
        assert [key for key in sizes if is_offloaded(session.state[key])] == ["a"]
        assert size_of(session.state) <= 6_000
    small = await run_agent("read", ScriptedLLM([*script, ACHIEVED]), tools=[read])
    assert {key: len(value[0]) for key, value in small.raw_data.items()} == sizes


async def test_values_with_a_reducer_are_not_moved():
    """A reducer would append the reference to the list."""

    def add(state, args):
        return ("log", "x" * 5_000)

    llm = ScriptedLLM([use("add"), use("add", n=2), ACHIEVED])
    async with GoalAgent(
        "worker", llm=llm, tools=[add], reducers={"log": append}, state_characters=1_000
    ) as agent:
        session = await agent.create_session("ada")
        await agent.run("add", session=session)
        assert session.state["log"] == ["x" * 5_000] * 2


async def test_custom_actions_get_whole_values():
    """Custom actions are functions of the state, as tools are."""
    seen = []

    def look(state, params):
        seen.append(len(state["pages"][0]))
        return ("seen", True)

    llm = ScriptedLLM([use("read", size=20_000), act("look"), ACHIEVED])
    async with GoalAgent(
        "worker", llm=llm, tools=[read], actions=[CustomAction("look", "look", look)], state_characters=1_000
    ) as agent:
        await agent.run("read")
    assert seen == [20_000]


@pytest.mark.parametrize("size", [50_000])
async def test_moved_values_are_read_after_a_restart(size, tmp_path):
    """The journal has the moved values."""
    path = f"sqlite:///{tmp_path}/state.db"
    for script in ([use("read", size=size), ACHIEVED], [use("measure"), ACHIEVED]):
        agent = GoalAgent("worker", llm=ScriptedLLM(script), tools=[read, measure], state_characters=1_000)
        async with open_runtime(journal=path) as runtime:
            await runtime.start(agent)
            session = await agent.ensure_session("ada", "s")
            await agent.run("read", session=session)
            assert is_offloaded(session.state["pages"])
            lengths = session.state.get("lengths")
    assert lengths[1] == size
