"""A model for those who have no key: a script behind a real socket, and the tools that it knows to use."""

import datetime as dt
import re
from collections.abc import Iterator

from actgent.messages import ToolCall
from actgent.testing.dialects import ProviderRequest
from actgent.testing.provider import Scripted, Slow
from actgent.tools.base import Tool
from actgent.tools.function import tool

CHUNK = 4
"""Characters in one event of a stream that somebody reads."""
GAP = 0.02
"""Seconds before each of them."""

_PRODUCT = re.compile(r"(\d{1,9})\s*[*x×]\s*(\d{1,9})")
_DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")
_WELCOME = (
    "I am a script, not a model, so I know little: I multiply (try 17 * 23) "
    "and tell the weekday of a date (try 1969-07-20). Both are tools."
)
_REPORT = " ".join(f"Chapter {number} is about the weather on day {number}." for number in range(1, 200))


@tool(thread=False, effect="pure")
def multiply(a: int, b: int) -> str:
    """Multiply two integers."""
    return f"{a} * {b} = {a * b}"


@tool(thread=False, effect="pure")
def weekday(date: str) -> str:
    """Tell the weekday of a date.

    Args:
        date: YYYY-MM-DD.
    """
    return f"{date} is a {dt.date.fromisoformat(date):%A}"


TOOLS: tuple[Tool, ...] = (multiply, weekday)


def answer(request: ProviderRequest) -> Scripted:
    """Return the script's answer at once."""
    if request.tool_results:
        return f"{', and '.join(result.content for result in request.tool_results)}."
    return list(_calls(request)) or _words(request.text)


def answer_slowly(request: ProviderRequest) -> Scripted:
    """The same at the pace of a model."""
    return Slow(answer(request), gap=GAP)


def _calls(request: ProviderRequest) -> Iterator[ToolCall]:
    offered = {spec.name for spec in request.chat.tools}
    for found in _PRODUCT.finditer(request.text) if "multiply" in offered else ():
        yield ToolCall("multiply", {"a": int(found[1]), "b": int(found[2])})
    for found in _DATE.finditer(request.text) if "weekday" in offered else ():
        yield ToolCall("weekday", {"date": found[0]})


def _words(text: str) -> str:
    if "long report" in text:
        return _REPORT
    if "fire" in text:
        return "Leave by the stairs, now. I am calling the fire brigade."
    if "note" in text:
        return f"Filed: {text}"
    return _WELCOME
