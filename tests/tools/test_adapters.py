"""Tools without the base class, and the formatting of their output."""

import json
import threading
from typing import ClassVar

import pytest
import trio
import trio.lowlevel

from actgent import (
    BareAgent,
    ConfigurationError,
    EnvelopedTool,
    FunctionTool,
    GoalAgent,
    InvalidArguments,
    InvalidToolSchema,
    PlanAgent,
    ScriptedLLM,
    SimpleAgent,
    StaticToolset,
    StepsAgent,
    Tool,
    ToolCall,
    ToolContext,
    ToolRegistry,
    tool,
)
from actgent.tools.tool_registry import to_tool

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class Weather:
    """The custom tool of acton's documentation, without its base class."""

    name = "weather"
    description = "Tells the weather."

    def __init__(self):
        self.threads = set()

    def execute(self, parameters):
        self.threads.add(threading.get_ident())
        return f"Sunny in {parameters['city']}"

    def get_schema(self):
        return SCHEMA


class AsyncWeather(Weather):
    """An async tool with further options."""

    effect = "pure"
    timeout = 0.05

    async def execute(self, parameters):
        await trio.sleep(0 if parameters["city"] == "Turin" else 60)
        return {"city": parameters["city"]}


async def results(tools, *calls):
    """Run the calls in an agent, and return their results."""
    received = []
    async with BareAgent("a", llm=ScriptedLLM([list(calls), "Done."]), tools=tools) as agent:
        session = await agent.create_session("ada")
        session.on_tool_result(received.append)
        await agent.run("Go.", session=session)
    return received


async def test_object_with_four_members_is_a_tool():
    """The members are name, description, schema and call. A sync call runs in a thread."""
    weather = Weather()
    (good, bad) = await results(
        [weather], ToolCall("weather", {"city": "Turin"}), ToolCall("weather", {"town": "Turin"})
    )
    assert good.content == "Sunny in Turin"
    assert "city" in bad.error
    assert threading.get_ident() not in weather.threads
    assert to_tool(weather).spec.parameters == SCHEMA
    assert to_tool(weather).spec.description == "Tells the weather."


async def test_optional_members_of_a_protocol_tool_are_used():
    """Optional members are an async `execute`, options, and results that are not text."""
    quick, slow = await results(
        [AsyncWeather()], ToolCall("weather", {"city": "Turin"}), ToolCall("weather", {"city": "Oslo"})
    )
    assert json.loads(quick.content) == {"city": "Turin"}
    assert "0.05 s" in slow.error
    assert to_tool(AsyncWeather()).effect == "pure"


async def test_protocol_tool_is_accepted_everywhere():
    """Registries, toolsets, goal agents and envelopes accept the tool."""
    registry = ToolRegistry([Weather()])
    assert registry.get("weather").name == "weather"
    assert (await results([StaticToolset("places", [Weather()])], ToolCall("weather", {"city": "Bern"})))[
        0
    ].content == "Sunny in Bern"
    assert EnvelopedTool(to_tool(Weather())).name == "weather"
    assert "weather" in GoalAgent("g", llm=ScriptedLLM([]), tools=[Weather()]).tools


class MyTool(Tool):
    """Looks a city up."""

    def execute(self, parameters: dict) -> str:
        return f"{parameters['city']} in {threading.current_thread() is threading.main_thread()}"

    def get_schema(self) -> dict:
        return SCHEMA


class MyAsyncTool(MyTool):
    """Looks a city up, slowly."""

    async def execute(self, parameters: dict) -> str:
        await trio.lowlevel.checkpoint()
        return f"async {parameters['city']}"


class Named(Tool):
    def __init__(self):
        super().__init__("named", "Says so.")

    def execute(self, parameters):
        return parameters["city"]

    def get_schema(self):
        return SCHEMA


def agents_with(made, *script):
    """Return one agent of each kind with the same tool."""
    kinds = (BareAgent, SimpleAgent, StepsAgent, PlanAgent, GoalAgent)
    return [kind("a", llm=ScriptedLLM([*script]), tools=[made]) for kind in kinds]


@pytest.mark.parametrize(
    ("made", "name", "description", "answer"),
    [
        (MyTool(), "MyTool", "Looks a city up.", "Oslo in False"),
        (MyAsyncTool(), "MyAsyncTool", "Looks a city up, slowly.", "async Oslo"),
        (Named(), "named", "Says so.", "Oslo"),
        (EnvelopedTool(MyTool()), "MyTool", "Looks a city up.", '{"success": true, "result": "Oslo in False"}'),
    ],
    ids=["sync", "async", "constructor", "in an envelope"],
)  # fmt: skip
async def test_a_tool_class_with_execute_of_parameters_and_get_schema(made, name, description, answer):
    """A class with the document's two methods is a complete tool in every kind of agent."""
    assert (made.name, made.description, made.parameters) == (name, description, SCHEMA)
    for agent in agents_with(made, [ToolCall(name, {"city": "Oslo"}), ToolCall(name, {"town": "Oslo"})]):
        received = []
        async with agent:
            session = await agent.create_session("ada")
            session.on_tool_result(received.append)
            session.on_exception(lambda _: None)  # the script ends after the calls
            await session.chat("Go.")
            await session.wait_idle()
        assert received[0].content == answer, type(agent).__name__
        assert "city" in received[1].error
    toolset = StaticToolset("places", [made]).prefixed("my_")
    (prefixed,) = await results([toolset], ToolCall(f"my_{name}", {"city": "Oslo"}))
    assert prefixed.content == answer


async def test_protocol_tool_can_be_called_directly():
    """`execute` is unchanged, and `run` validates the arguments."""
    assert MyTool().execute({"city": "Oslo"}) == "Oslo in True"
    assert await MyAsyncTool().execute({"city": "Oslo"}) == "async Oslo"
    assert await MyTool().run({"city": "Oslo"}) == "Oslo in False"
    with pytest.raises(InvalidArguments):
        await MyTool().run({"town": "Oslo"})


async def test_an_object_without_a_name_has_that_of_its_class():
    """The name of the class is used, as for subclasses of Tool."""

    class Look:
        """Looks around."""

        def execute(self, parameters):
            return "seen"

        def get_schema(self):
            return {"type": "object", "properties": {}}

    (result,) = await results([Look()], ToolCall("Look", {}))
    assert result.content == "seen"
    assert to_tool(Look()).description == "Looks around."


def broken_schema():
    raise KeyError("city")


@pytest.mark.parametrize(
    "schema",
    [lambda: None, lambda: {"type": "string"}, lambda: {"type": "object", "properties": 3}, broken_schema],
    ids=["none", "no object", "no schema", "raises"],
)
@pytest.mark.parametrize("bases", [(Tool,), ()], ids=["Tool", "object"])
def test_invalid_tool_schema_has_a_separate_error(bases, schema):
    """The error names the tool, and has another class than other configuration errors."""
    members = {"execute": lambda self, parameters: "x", "get_schema": lambda self: schema()}  # noqa: ARG005
    made = type("Odd", bases, members)()
    with pytest.raises(InvalidToolSchema, match="Odd") as caught:
        BareAgent("a", llm=ScriptedLLM([]), tools=[made])
    assert caught.value.tool_name == "Odd"


def test_function_with_a_type_without_a_schema_has_the_same_error():
    """The type of the parameter has no JSON Schema."""
    with pytest.raises(InvalidToolSchema) as caught:

        @tool
        def find(lock: threading.Lock) -> str:
            """Find."""

    assert caught.value.tool_name == "find"
    with pytest.raises(InvalidToolSchema):
        FunctionTool("find", "Find.", print, parameters={"type": "object", "properties": 3})


@pytest.mark.parametrize("wrong", [Weather, object(), "weather", {"name": "weather"}])
def test_non_tool_is_rejected(wrong):
    """A class, and an object without a required member, are rejected."""
    with pytest.raises(ConfigurationError, match="is not a tool"):
        ToolRegistry([wrong])


def test_invalid_schema_or_name_is_reported():
    """The error is the same as for any other tool."""

    class Odd(Weather):
        name = "two words"

    with pytest.raises(ConfigurationError, match="name must have"):
        ToolRegistry([Odd()])


# --- process_output --------------------------------------------------------------------------


class Shouting(Tool):
    """A tool with the hook as a method."""

    name = "shout"
    parameters: ClassVar = {"type": "object", "properties": {}}

    async def execute(self, arguments, context: ToolContext):
        return "hello"

    def process_output(self, text):
        return text.upper()


class ShapedShouting(Weather):
    """A tool with the hook, without the base class."""

    def process_output(self, text):
        return text.upper()


@pytest.mark.parametrize(
    ("made", "answer"),
    [
        (Shouting(), "HELLO"),
        (ShapedShouting(), "SUNNY IN TURIN"),
        (FunctionTool("shout", "Shout.", lambda: {"a": 1}, process_output=lambda text: text[1:]), '"a": 1}'),
        (tool(name="words", process_output=str.title)(lambda: "two words"), "Two Words"),
        (EnvelopedTool(Shouting()), '{"success": true, "result": "HELLO"}'),
    ],
    ids=["method", "four members", "function", "decorator", "in an envelope"],
)
async def test_formatted_result_is_read_by_the_model(made, answer):
    """The function formats the returned text once."""
    name = to_tool(made).name
    arguments = {"city": "Turin"} if name == "weather" else {}
    (result,) = await results([made], ToolCall(name, arguments))
    assert result.content == answer


async def test_formatter_skips_errors_and_its_own_errors_fail_the_call():
    """An error of the tool is not formatted. An error of the function is the error of the call."""

    def fails() -> str:
        """Fail."""
        raise ValueError("no paper")

    def breaks(text):
        raise LookupError("no ink")

    raised, broken = await results(
        [
            FunctionTool("fails", "Fail.", fails, process_output=str.upper),
            FunctionTool("works", "Work.", lambda: "x", process_output=breaks),
        ],
        ToolCall("fails", {}),
        ToolCall("works", {}),
    )
    assert raised.error == "ValueError: no paper"
    assert broken.error == "LookupError: no ink"


async def test_cached_result_is_not_formatted_again():
    """A cached result is returned without another call of the function."""
    made = []

    def make(text):
        made.append(text)
        return f"{text}!"

    counted = FunctionTool("x", "X.", lambda: "x", process_output=make, effect="pure", cache=5)
    both = [*(await results([counted], ToolCall("x", {}))), *(await results([counted], ToolCall("x", {})))]
    assert [each.content for each in both] == ["x!", "x!"]
    assert made == ["x"]


def test_async_formatter_is_rejected():
    """An async function would delay the results of other calls."""

    async def later(text):
        return text

    with pytest.raises(ConfigurationError, match="process_output= must be a sync function"):
        ToolRegistry([FunctionTool("x", "X.", lambda: "x", process_output=later)])
