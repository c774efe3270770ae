"""actgent.tools.options: what a tool says of itself is checked at once."""

import math

import pytest

from actgent.errors import ConfigurationError
from actgent.tools import FunctionTool, ToolHooks


async def watch(call):
    """Watch, in the wrong colour."""


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "a\n", "x" * 65, None])
def test_bad_name(name):
    """A name that providers refuse is refused here."""
    with pytest.raises(ConfigurationError, match="a name is 1 to 64"):
        FunctionTool(name, "Text.", lambda: 1)


@pytest.mark.parametrize("name", ["a", "get_weather", "math.area-2", "x" * 64])
def test_good_name(name):
    """Letters, digits, _, . and - make a name."""
    assert FunctionTool(name, "Text.", lambda: 1).name == name


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"timeout": 0}, "timeout="),
        ({"timeout": math.inf}, "timeout="),
        ({"timeout": math.nan}, "timeout="),
        ({"retries": -1}, "retries="),
        ({"retries": 1}, "needs retry_on="),
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
def test_bad_option(options, reason):
    """An option that makes no sense names the tool and the remedy."""
    with pytest.raises(ConfigurationError, match=f"'look'.*{reason}"):
        FunctionTool("look", "Look.", lambda: 1, **options)


def test_empty_description():
    """A model cannot choose a tool that nothing is said of."""
    with pytest.raises(ConfigurationError, match="description is empty"):
        FunctionTool("look", "  ", lambda: 1)
