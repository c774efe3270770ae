"""A model for those who have no key: a script behind a real socket, and the tools that it knows to use."""

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence

from actgent.agents.agent import Agent
from actgent.errors import ConfigurationError
from actgent.errors.printable import quoted
from actgent.llm.base import LLM, Chat, ChatMessage
from actgent.llm.scripted import ScriptedLLM
from actgent.messages import Text, ToolCall
from actgent.protocols.base import Protocol
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
    "tools are loaded, and what you said has come to me"
)


def _words_of(message: ChatMessage) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, Text))


def _line_behind(said: str, script: Sequence[str]) -> int:
    """Return which line comes next; the script begins anew behind its last. What was quoted in a line does not matter."""
    for number, line in enumerate(script, 1):
        head, stands_in, _ = line.partition(_STAND_IN)
        if said.startswith(head + stands_in):
            return number % len(script)
    return 0


def _next(protocol: Protocol, chat: Chat) -> str:
    """Return the next line of the script, which quotes what its turn began with."""
    script = protocol.script(_STAND_IN)
    begun, place = 0, 0
    for number, message in enumerate(chat.messages, 1):
        if message.role == "assistant":
            place = _line_behind(_words_of(message), script)
            begun = begun if place else number
    heard = next((_words_of(each) for each in chat.messages[begun:] if each.role == "user"), "")
    return protocol.script(f"{_STAND_IN}: {quoted(heard)}" if heard else f"{_STAND_IN}.")[place]


def stand_in() -> tuple[LLM, Callable[[Agent], None]]:
    """A model for an agent that is not made yet, and the function that is told which one it is then."""
    protocols: list[Protocol] = []

    def answer_in_form(chat: Chat) -> str:
        return _next(protocols[0], chat)

    def fit(agent: Agent) -> None:
        if agent.protocol.name == "goal" and list(agent.tools):
            raise ConfigurationError(
                "this agent works towards a goal by its tools, whose arguments no script can choose: name a model, or "
                "test it with a script of your own (ScriptedLLM)"
            )
        protocols[:] = [agent.protocol]

    return ScriptedLLM(answer_in_form, chunk=CHUNK, chunk_delay=GAP, name="offline"), fit
