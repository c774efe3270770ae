"""Functions `(state, args)` as tools of a goal: contents of the state, and their arguments for the model."""

import json
from dataclasses import dataclass
from typing import TypedDict

import attrs
import pydantic
import pytest

from actgent import BareAgent, ConfigurationError, GoalAgent, ScriptedLLM, ToolCall, discover, run_agent
from actgent.protocols.goal.goal_decision_parsing import CustomAction


def act(action, **params):
    return json.dumps({"action": action, "params": params, "reasoning": "because"})


def use(name, **args):
    return act("execute", tool=name, args=args)


ACHIEVED = act("evaluate", achieved=True, answer="done")


def look(state, args):
    """Look something up."""
    return ("found", {"n": args.get("n", 1)})


class Seen:
    """A tool that records its state argument."""

    def __init__(self):
        self.states = []

    def tool(self, name="show"):
        def show(state, args):
            self.states.append(state)

        show.__name__ = name
        return show


@pytest.mark.parametrize("native", [False, True])
async def test_tools_receive_the_goal_and_its_results(native):
    """The state has `goal`, `results` and `used_tools`, as the seed's initial state, and no field of the loop."""
    seen = Seen()

    def call(name, **args):
        return ToolCall(name, args) if native else use(name, **args)

    def broken(state, args):
        raise RuntimeError("no")

    llm = ScriptedLLM([call("show"), call("look", n=7), call("broken"), call("show", now=True), ACHIEVED])
    await run_agent("find n", llm, tools=[look, seen.tool(), broken])
    first, second = seen.states
    assert first == {"goal": "find n", "results": [], "used_tools": []}
    assert second["goal"] == "find n"
    assert second["used_tools"] == ["show", "look"]
    assert second["results"][-1] == {"tool": "look", "result": {"found": {"n": 7}}}
    assert second["found"] == {"n": 7}
    assert [key for key in second if key.startswith("_")] == []


async def test_results_written_by_a_tool_take_precedence():
    """`results` in the state belongs to the tool, as in the seed. Reading it does not change the store."""
    seen = Seen()

    def keep(state, args):
        return ("results", [*state["results"], "mine"])

    def spoil(state, args):
        state["results"].append("spoilt")
        state["used_tools"].clear()

    llm = ScriptedLLM([use("keep"), use("spoil"), use("show"), ACHIEVED])
    result = await run_agent("keep", llm, tools=[keep, spoil, seen.tool()])
    assert seen.states[0]["results"] == ["mine"]
    assert seen.states[0]["used_tools"] == ["keep", "spoil"]
    assert result.raw_data == {"results": ["mine"]}


async def test_each_goal_of_a_session_has_separate_results():
    """The second goal begins without results, and keeps the written state."""
    seen = Seen()
    llm = ScriptedLLM([use("look"), ACHIEVED, use("show"), ACHIEVED])
    async with GoalAgent("worker", llm=llm, tools=[look, seen.tool()]) as agent:
        session = await agent.create_session("ada")
        await agent.run("one", session=session)
        await agent.run("two", session=session)
    assert seen.states == [{"goal": "two", "results": [], "used_tools": [], "found": {"n": 1}}]


async def test_custom_actions_receive_the_goal_and_its_results():
    seen = []

    def note(state, params):
        seen.append(state)
        return ("note", len(state["results"]))

    llm = ScriptedLLM([use("look"), act("note"), ACHIEVED])
    async with GoalAgent(
        "worker", llm=llm, tools=[look], actions=[CustomAction("note", "note it", note)]
    ) as agent:
        await agent.run("find n")
    assert seen[0]["results"] == [{"tool": "look", "result": {"found": {"n": 1}}}]


async def test_tools_from_files_receive_the_goal_state(tmp_path):
    """Files named `NAME.tools.py` are found among other tool files, and their functions get the state of the goal."""
    for name in ("tagent.tools.py", "shop.tools.py", "tools.py"):
        function = name.partition(".")[0]
        (tmp_path / name).write_text(
            f"def {function}(state, args):\n    return ('{function}', state['goal'])\n", encoding="utf-8"
        )
    found = discover(tmp_path)
    assert [tool.name for tool in found.tools] == ["tagent", "shop"]
    llm = ScriptedLLM([use("shop"), ACHIEVED])
    result = await run_agent("buy", llm, tools=found.tools)
    assert result.raw_data == {"shop": "buy"}
    assert found.tools[1].defaults is None  # the one that was given may serve others


async def test_the_result_of_discover_is_accepted_as_tools(tmp_path):
    """`tools=discover(folder)` gives an agent the discovered tools."""
    (tmp_path / "tagent.tools.py").write_text("def n(state, args):\n    return ('n', 5)\n", encoding="utf-8")
    result = await run_agent("find n", ScriptedLLM([use("n"), ACHIEVED]), tools=discover(tmp_path))
    assert result.raw_data == {"n": 5}
    assert "n" in BareAgent("any", llm=ScriptedLLM([]), tools=discover(tmp_path)).tools


@pytest.mark.parametrize("tools", [5, look, "look"])
def test_single_tool_is_rejected_with_the_expected_type(tools):
    """A goal agent rejects a single tool, and the error names the expected type."""
    with pytest.raises(ConfigurationError, match=r"tools= takes a list of tools: tools=\["):
        GoalAgent("worker", llm=ScriptedLLM([]), tools=tools)


# --- arguments -------------------------------------------------------------------------------


def listed(state, args):
    """Search the shop.

    Args:
        state: What was found so far.
        args: What to look for.
        query (str): What it is called.
        limit (int, optional): How many at most.
        tags (list[str]): Any of these. Defaults to all.
        odd: Whatever.
    """
    return ("args", dict(args))


def nested(state, args):
    """Search the shop.

    Args:
        state: What was found so far.
        args: What to look for:
            query (str): What it is called.
            limit (int, optional): How many at most.
    """
    return ("args", dict(args))


class Search(TypedDict):
    query: str


@dataclass
class Plain:
    query: str
    limit: int = 3


@attrs.frozen
class Frozen:
    query: str
    limit: int = 3


class Model(pydantic.BaseModel):
    query: str
    limit: int = 3


def by_dict(state, args: Search):
    """Search."""
    return ("args", {"query": args["query"], "limit": 3})


def by_dataclass(state, args: Plain):
    """Search."""
    return ("args", {"query": args.query, "limit": args.limit})


def by_attrs(state, args: Frozen):
    """Search."""
    return ("args", {"query": args.query, "limit": args.limit})


def by_model(state, args: Model):
    """Search."""
    return ("args", {"query": args.query, "limit": args.limit})


def spec_of(llm, name):
    return next(spec for spec in llm.chats[0].tools if spec.name == name)


async def test_a_docstring_describes_the_arguments():
    """The model receives names, types and texts, in the prompt and as the schema.

    Without the section it receives none.
    """
    llm = ScriptedLLM([use("listed", query="tea"), use("look"), ACHIEVED])
    result = await run_agent("search", llm, tools=[listed, look])
    schema = spec_of(llm, "listed").parameters
    assert schema["properties"] == {
        "query": {"type": "string", "description": "What it is called."},
        "limit": {"type": "integer", "description": "How many at most."},
        "tags": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Any of these. Defaults to all.",
        },
        "odd": {"description": "Whatever."},
    }
    assert schema["required"] == ["query", "odd"]
    assert "- listed(query, limit, tags, odd): Search the shop.\n" in llm.chats[0].system
    assert "- look(): Look something up.\n" in llm.chats[0].system
    assert spec_of(llm, "look").parameters == {"type": "object"}
    assert "odd" in result.tool_results[0].text  # it is missing


async def test_docstring_section_args_is_read():
    """The docstring format of the earlier system is read too; unlisted arguments are accepted."""
    llm = ScriptedLLM([use("nested", query="tea", more=1), use("nested", query=7), ACHIEVED])
    result = await run_agent("search", llm, tools=[nested])
    assert list(spec_of(llm, "nested").parameters["properties"]) == ["query", "limit"]
    assert spec_of(llm, "nested").parameters["required"] == ["query"]
    assert result.raw_data == {"args": {"query": "tea", "more": 1}}
    assert result.tool_results[1].status == "error"


@pytest.mark.parametrize("function", [by_dict, by_dataclass, by_attrs, by_model])
async def test_type_of_args_defines_the_arguments(function):
    """A type defines the arguments, and the function gets a value of it; an invalid value never reaches it."""
    name = function.__name__
    llm = ScriptedLLM([use(name, query="tea"), use(name, query=7), ACHIEVED])
    result = await run_agent("search", llm, tools=[function])
    assert spec_of(llm, name).parameters["properties"]["query"]["type"] == "string"
    assert result.raw_data == {"args": {"query": "tea", "limit": 3}}
    assert [each.status for each in result.tool_results] == ["success", "error"]
    assert "query" in result.tool_results[1].text


def test_a_type_without_a_schema_is_rejected():
    """A type that has no schema is rejected when the agent is created."""

    def wrong(state, args: "Missing"):  # noqa: F821
        """Search."""

    def odd(state, args: Seen):
        """Search."""

    with pytest.raises(ConfigurationError, match="the type of args in wrong cannot be resolved"):
        GoalAgent("worker", llm=ScriptedLLM([]), tools=[wrong])
    with pytest.raises(ConfigurationError, match="no JSON Schema"):
        GoalAgent("worker", llm=ScriptedLLM([]), tools=[odd])


class Offer(pydantic.BaseModel):
    item: str
    price: float = pydantic.Field(gt=0)


async def test_output_may_be_a_pydantic_model():
    """The output of a goal and of `run(output=)` is an object of the model, validated by its own rules."""
    llm = ScriptedLLM(
        [use("look"), ACHIEVED, '{"item": "tea", "price": -1}', '{"item": "tea", "price": 2.5}']
    )
    result = await run_agent("buy", llm, tools=[look], output=Offer)
    assert (result.status, result.data) == ("completed_with_formatting", Offer(item="tea", price=2.5))
    assert "greater than 0" in llm.chats[-1].messages[-2].parts[0].text
