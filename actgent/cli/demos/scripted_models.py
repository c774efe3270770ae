"""Scripted models that need no API key: the loopback provider of the demo, and the offline model of an agent folder."""

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence

from actgent.agents.agent import Agent
from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import quoted
from actgent.llm.model_interface import LLM, ChatMessage, ModelRequest
from actgent.llm.scripted_model import ScriptedLLM
from actgent.messages import Text, ToolCall
from actgent.protocols.protocol_interface import Protocol
from actgent.testing.provider import Scripted, Slow
from actgent.testing.provider_apis import ProviderRequest
from actgent.tools.function_tool import tool
from actgent.tools.tool_interface import Tool

CHUNK_CHARS = 4
"""Characters in one stream event of a slow answer."""
CHUNK_DELAY_SECONDS = 0.02
"""Delay in seconds before each stream event of a slow answer."""

_PRODUCT = re.compile(r"(\d{1,9})\s*[*x×]\s*(\d{1,9})")
_DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")
_WELCOME = (
    "I am a script, not a model, so I know little: I multiply (try 17 * 23) "
    "and compute the weekday of a date (try 1969-07-20). Both are tools."
)
_REPORT = " ".join(f"Chapter {number} is about the weather on day {number}." for number in range(1, 200))


@tool(thread=False, effect="pure")
def multiply(a: int, b: int) -> str:
    """Multiply two integers."""
    return f"{a} * {b} = {a * b}"


@tool(thread=False, effect="pure")
def weekday(date: str) -> str:
    """Compute the weekday of a date.

    Args:
        date: YYYY-MM-DD.
    """
    return f"{date} is a {dt.date.fromisoformat(date):%A}"


TOOLS: tuple[Tool, ...] = (multiply, weekday)


def scripted_answer(request: ProviderRequest) -> Scripted:
    """Return the scripted answer to a model request: tool calls for products and dates in the text, else a fixed reply."""
    if request.tool_results:
        return f"{', and '.join(result.content for result in request.tool_results)}."
    return list(_tool_calls(request)) or _reply_text(request.text)


def answer_with_delay(request: ProviderRequest) -> Scripted:
    """Return the scripted answer to a model request, streamed at about the speed of a real model."""
    return Slow(scripted_answer(request), gap=CHUNK_DELAY_SECONDS)


def _tool_calls(request: ProviderRequest) -> Iterator[ToolCall]:
    """Yield a tool call for each product and each date in a model request, if the request offers the tool."""
    offered = {spec.name for spec in request.chat.tools}
    for found in _PRODUCT.finditer(request.text) if "multiply" in offered else ():
        yield ToolCall("multiply", {"a": int(found[1]), "b": int(found[2])})
    for found in _DATE.finditer(request.text) if "weekday" in offered else ():
        yield ToolCall("weekday", {"date": found[0]})


def _reply_text(text: str) -> str:
    if "long report" in text:
        return _REPORT
    if "fire" in text:
        return "Leave by the stairs, now. I am calling the fire brigade."
    if "note" in text:
        return f"Filed: {text}"
    return _WELCOME


# --- offline model of an agent folder ----------------------------------------------------

_OFFLINE_NOTE = (
    "I am a script in the place of a model, so that this agent can be tried without a key: its prompt, forms and "
    "tools are loaded, and your message has come to me"
)


def _message_text(message: ChatMessage) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, Text))


def _next_line_number(text: str, script: Sequence[str]) -> int:
    """Return the index of the script line that follows an assistant message; 0 after the last line and for other texts."""
    for number, line in enumerate(script, 1):
        head, note, _ = line.partition(_OFFLINE_NOTE)
        if text.startswith(head + note):
            return number % len(script)
    return 0


def _next_line(protocol: Protocol, chat: ModelRequest) -> str:
    """Return the next line of the script as answer to a model request. It quotes the message that started the turn."""
    script = protocol.script(_OFFLINE_NOTE)
    turn_start, line_number = 0, 0
    for number, message in enumerate(chat.messages, 1):
        if message.role == "assistant":
            line_number = _next_line_number(_message_text(message), script)
            turn_start = turn_start if line_number else number
    question = next((_message_text(each) for each in chat.messages[turn_start:] if each.role == "user"), "")
    return protocol.script(f"{_OFFLINE_NOTE}: {quoted(question)}" if question else f"{_OFFLINE_NOTE}.")[
        line_number
    ]


def offline_model() -> tuple[LLM, Callable[[Agent], None]]:
    """Return a scripted model, and a function to call with the agent after the agent was built."""
    protocols: list[Protocol] = []

    def answer_in_form(chat: ModelRequest) -> str:
        return _next_line(protocols[0], chat)

    def set_agent(agent: Agent) -> None:
        if agent.protocol.name == "goal" and list(agent.tools):
            raise ConfigurationError(
                "this agent works towards a goal with tools, and the offline script cannot choose their arguments: name a model, or "
                "test the agent with ScriptedLLM"
            )
        protocols[:] = [agent.protocol]

    return ScriptedLLM(
        answer_in_form, chunk=CHUNK_CHARS, chunk_delay=CHUNK_DELAY_SECONDS, name="offline"
    ), set_agent
