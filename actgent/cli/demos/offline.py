"""A model for those who have no key: a script behind a real socket, and the tools that it knows to use."""

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence

from actgent.agents.agent import Agent
from actgent.errors import ConfigurationError
from actgent.llm.base import LLM, Chat
from actgent.llm.scripted import ScriptedLLM
from actgent.messages import Text, ToolCall
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


def script_answer(request: ProviderRequest) -> Scripted:
    """Return the script's answer at once."""
    if request.tool_results:
        return f"{', and '.join(result.content for result in request.tool_results)}."
    return list(_calls(request)) or _words(request.text)


def answer_slowly(request: ProviderRequest) -> Scripted:
    """The same at the pace of a model."""
    return Slow(script_answer(request), gap=GAP)


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


# --- in the place of a folder's model --------------------------------------------------------

_STAND_IN = (
    "I am a script in the place of a model, so that this agent can be tried without a key: its prompt, forms and "
    "tools are loaded, and what you said has come to me."
)


def _said(chat: Chat) -> list[str]:
    """The texts of the model so far."""
    answers = [message.parts for message in chat.messages if message.role == "assistant"]
    return ["".join(part.text for part in parts if isinstance(part, Text)) for parts in answers]


def _next(script: Sequence[str], chat: Chat) -> str:
    """Return the line behind the one that was said last; the script begins anew behind its last."""
    said = _said(chat)
    place = script.index(said[-1]) + 1 if said and said[-1] in script else 0
    return script[place % len(script)]


def stand_in() -> tuple[LLM, Callable[[Agent], None]]:
    """A model for an agent that is not made yet, and the function that is told which one it is then."""
    script: list[str] = [_STAND_IN]

    def answer_in_form(chat: Chat) -> str:
        return _next(script, chat)

    def fit(agent: Agent) -> None:
        if agent.protocol.name == "goal" and list(agent.tools):
            raise ConfigurationError(
                "this agent works towards a goal by its tools, whose arguments no script can choose: name a model, or "
                "test it with a script of your own (ScriptedLLM)"
            )
        script[:] = agent.protocol.script(_STAND_IN)

    return ScriptedLLM(answer_in_form, chunk=CHUNK, chunk_delay=GAP, name="offline"), fit
