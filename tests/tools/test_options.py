"""actgent.tools.tool_option_checks: options of a tool are validated when it is created."""

import math
from typing import ClassVar

import pytest

from actgent import Anthropic, OpenAI, OpenAIResponses
from actgent.errors import ConfigurationError
from actgent.llm.model_interface import ModelRequest
from actgent.messages import ChatMessage, Text, ToolSpec
from actgent.tools import FunctionTool, Tool, ToolHooks, ToolRegistry


async def watch(call):
    """Watch, in the wrong colour."""


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "a\n", "x" * 65, None])
def test_invalid_tool_name_is_rejected(name):
    """A name that providers reject is a ConfigurationError."""
    with pytest.raises(ConfigurationError, match="its name must have 1 to 64"):
        FunctionTool(name, "Text.", lambda: 1)


@pytest.mark.parametrize("name", ["a", "get_weather", "math.area-2", "x" * 64])
def test_valid_tool_name_is_accepted(name):
    """Letters, digits, _, . and - are valid."""
    assert FunctionTool(name, "Text.", lambda: 1).name == name


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"timeout": 0}, "timeout="),
        ({"timeout": math.inf}, "timeout="),
        ({"timeout": math.nan}, "timeout="),
        ({"retries": -1}, "retries="),
        ({"retries": 1}, "requires retry_on="),
        ({"retry_on": ["x"]}, "exception classes"),
        ({"retry_on": KeyboardInterrupt}, "exception classes"),
        ({"retry_delay": -1}, "retry_delay="),
        ({"cache": -1}, "cache="),
        ({"cache": 1}, "effect="),
        ({"effect": "none"}, "pure, idempotent, once"),
        ({"hooks": [print]}, "ToolHooks"),
        ({"hooks": ToolHooks(on_start=watch)}, "sync"),
        ({"parameters": {}}, "JSON Schema of an object"),
        ({"parameters": {"type": "array"}}, "JSON Schema of an object"),
        ({"parameters": []}, "JSON Schema of an object"),
    ],
)
def test_invalid_tool_option_is_rejected(options, reason):
    """The error of an invalid option names the tool and the remedy."""
    with pytest.raises(ConfigurationError, match=f"'look'.*{reason}"):
        FunctionTool("look", "Look.", lambda: 1, **options)


@pytest.mark.parametrize("description", ["", None])
def test_a_tool_without_a_description(description):
    """Published definitions can lack a description. The field is omitted in each provider's format."""
    look = FunctionTool("look", description, lambda: 1, parameters={"type": "object"})
    assert ToolRegistry([look]).specs == (ToolSpec("look", "", {"type": "object"}),)
    chat = ModelRequest(messages=[ChatMessage("user", (Text("hi"),))], tools=[look.spec])
    for client in (OpenAI, OpenAIResponses, Anthropic):
        (definition,) = client("m", api_key="k", base_url="http://127.0.0.1:9").encode(chat)["tools"]
        assert "description" not in {*definition, *definition.get("function", ())}


def test_custom_tool_without_a_description():
    """A class can omit the description. A description that is not text is rejected."""

    class Look(Tool):
        name = "look"
        parameters: ClassVar = {"type": "object"}

        async def execute(self, arguments, context):
            return 1

    assert ToolRegistry([Look()]).specs[0].description == ""
    Look.description = 5
    with pytest.raises(ConfigurationError, match="description="):
        ToolRegistry([Look()])
