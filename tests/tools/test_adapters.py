"""Tools without the base class, and what is made of their output."""

import json
import threading
from typing import ClassVar

import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    EnvelopedTool,
    FunctionTool,
    GoalAgent,
    ScriptedLLM,
    StaticToolset,
    Tool,
    ToolCall,
    ToolContext,
    ToolRegistry,
    tool,
)
from actgent.tools.registry import to_tool

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class Weather:
    """The custom tool of acton's page, without its base class."""

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
    """One that waits, and says more of itself."""

    effect = "pure"
    timeout = 0.05

    async def execute(self, parameters):
        await trio.sleep(0 if parameters["city"] == "Turin" else 60)
        return {"city": parameters["city"]}


async def results(tools, *calls):
    """What the calls come to, by an agent."""
    heard = []
    async with BareAgent("a", llm=ScriptedLLM([list(calls), "Done."]), tools=tools) as agent:
        session = await agent.create_session("ada")
        session.on_tool_result(heard.append)
        await agent.run("Go.", session=session)
    return heard


async def test_four_members_make_a_tool():
    """The name, the description, the schema and the call; sync ones run in a thread."""
    weather = Weather()
    (good, bad) = await results(
        [weather], ToolCall("weather", {"city": "Turin"}), ToolCall("weather", {"town": "Turin"})
    )
    assert good.content == "Sunny in Turin"
    assert "city" in bad.error
    assert threading.get_ident() not in weather.threads
    assert to_tool(weather).spec.parameters == SCHEMA
    assert to_tool(weather).spec.description == "Tells the weather."


async def test_what_it_says_besides_counts():
    """An async `execute`, options, results that are no text."""
    quick, slow = await results(
        [AsyncWeather()], ToolCall("weather", {"city": "Turin"}), ToolCall("weather", {"city": "Oslo"})
    )
    assert json.loads(quick.content) == {"city": "Turin"}
    assert "0.05 s" in slow.error
    assert to_tool(AsyncWeather()).effect == "pure"


async def test_it_is_a_tool_wherever_one_is():
    """In registries, toolsets and goal agents, and wrapped."""
    registry = ToolRegistry([Weather()])
    assert registry.get("weather").name == "weather"
    assert (await results([StaticToolset("places", [Weather()])], ToolCall("weather", {"city": "Bern"})))[
        0
    ].content == "Sunny in Bern"
    assert EnvelopedTool(to_tool(Weather())).name == "weather"
    assert "weather" in GoalAgent("g", llm=ScriptedLLM([]), tools=[Weather()]).tools


@pytest.mark.parametrize("wrong", [Weather, object(), "weather", {"name": "weather"}])
def test_what_is_no_tool_is_refused(wrong):
    """A class is none, nor what lacks a member."""
    with pytest.raises(ConfigurationError, match="is not a tool"):
        ToolRegistry([wrong])


def test_a_broken_schema_or_name_is_named():
    """As for any other tool."""

    class Odd(Weather):
        name = "two words"

    with pytest.raises(ConfigurationError, match="a name is"):
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
    """The same without the base class."""

    def process_output(self, text):
        return text.upper()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Shouting(), "HELLO"),
        (ShapedShouting(), "SUNNY IN TURIN"),
        (FunctionTool("shout", "Shout.", lambda: {"a": 1}, process_output=lambda text: text[1:]), '"a": 1}'),
        (tool(name="words", process_output=str.title)(lambda: "two words"), "Two Words"),
        (EnvelopedTool(Shouting()), '{"success": true, "result": "HELLO"}'),
    ],
    ids=["method", "four members", "function", "decorator", "in an envelope"],
)
async def test_what_the_model_reads_is_what_is_made_of_it(made, said):
    """The text that the call returned passes the function once."""
    name = to_tool(made).name
    arguments = {"city": "Turin"} if name == "weather" else {}
    (result,) = await results([made], ToolCall(name, arguments))
    assert result.content == said


async def test_an_error_does_not_pass_and_a_broken_function_is_one():
    """What raised is told as it is; what the function raises is the call's error."""

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


async def test_the_cache_keeps_what_was_made():
    """A repeated result is not made anew."""
    made = []

    def make(text):
        made.append(text)
        return f"{text}!"

    counted = FunctionTool("x", "X.", lambda: "x", process_output=make, effect="pure", cache=5)
    both = [*(await results([counted], ToolCall("x", {}))), *(await results([counted], ToolCall("x", {})))]
    assert [each.content for each in both] == ["x!", "x!"]
    assert made == ["x"]


def test_a_function_that_waits_is_refused():
    """It would hold up the results of others."""

    async def later(text):
        return text

    with pytest.raises(ConfigurationError, match="process_output= is a sync function"):
        ToolRegistry([FunctionTool("x", "X.", lambda: "x", process_output=later)])
