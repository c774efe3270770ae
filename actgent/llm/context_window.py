"""How much of a model's context window a request takes, before it is sent.

The provider has counted the request before it: what was sent then, and what it answered. Only what is new is estimated, at
the rate at which the last new words became tokens. Before the first answer, and for another model, all is an estimate.
"""

from collections.abc import Sequence
from typing import TypeGuard

import attrs

from actgent.errors import BadRequest
from actgent.messages import ChatMessage, Part, Text, Thinking, ToolCall, ToolResult, ToolSpec

from .base import LLM, Answer, Chat

CHARACTERS_A_TOKEN = 4
"""Of ASCII text; of other text a token is three bytes, which is a Chinese character."""
MESSAGE_TOKENS = 4
"""What a message takes besides its words; a call and a result take as much."""
MEDIA_TOKENS = 1_500
"""What a picture, a document or an opaque block is counted as."""
ANSWER_TOKENS = 4_096
"""What is kept free for an answer whose length nobody says, or an eighth of a window that is small."""
SURE, UNSURE = 1.01, 1.15
"""By how much tokens that were counted, and those that are estimated, may be more than we think."""
_RATES = 0.5, 2.5
"""Between these a provider's count is believed to be of what was sent."""
_TELLING = 200
"""Tokens from which on what is new tells a rate."""
_TOO_LONG_CODES = ("context_length_exceeded", "request_too_large", "string_above_max_length")
_TOO_LONG_WORDS = (
    "prompt is too long",
    "maximum context length",
    "context window",
    "context length",
    "input is too long",
)
_STATUS_TOO_LARGE = 413


def is_too_long(error: Exception) -> TypeGuard[BadRequest]:
    """Return True if a provider refused a request because it does not fit into the model's context."""
    if not isinstance(error, BadRequest):
        return False
    text = str(error).casefold()
    known = error.code in _TOO_LONG_CODES or error.status == _STATUS_TOO_LARGE
    return known or any(words in text for words in _TOO_LONG_WORDS)


def answer_room(llm: LLM, chat: Chat, window: int) -> int:
    """Return the tokens that are kept free for the answer."""
    return chat.max_tokens or llm.max_tokens or min(ANSWER_TOKENS, window // 8)


@attrs.frozen
class Counted:
    """A request that its provider has counted, and the answer that it gave."""

    model: str
    estimate: float
    """Tokens of the request, as we had estimated them."""
    counted: int
    """Tokens of the request, as the provider says."""
    answer_estimate: float
    answer: int
    """Tokens of the answer that go back with the next request: all but its reasoning."""

    rate: float = 1.0
    """Tokens of the provider's for one of ours, as far as two requests have told it."""


def note(llm: LLM, chat: Chat, answer: Answer, before: Counted | None = None) -> Counted | None:
    """Return what an answer's usage says of a request, given the last one that was counted; None where it says nothing."""
    usage = answer.usage
    if not usage.input_tokens:
        return None
    said = sum(map(_part, answer.parts)) + MESSAGE_TOKENS
    kept = max(0, usage.output_tokens - usage.reasoning_tokens)
    size = estimate(chat)
    rate = 1.0 if before is None or before.model != llm.name else _rate(before, size, usage.input_tokens)
    return Counted(llm.name, size, usage.input_tokens, said, kept, rate)


def _rate(before: Counted, size: float, counted: int) -> float:
    """The rate at which what was new since the last request became tokens; as before where that was little."""
    new = size - before.estimate - before.answer_estimate
    if new < _TELLING:
        return before.rate
    lowest, highest = _RATES
    return min(max((counted - before.counted - before.answer) / new, lowest), highest)


def expected_tokens(llm: LLM, chat: Chat, before: Counted | None) -> int:
    """About how many tokens a request takes, given the last one of its conversation that was counted."""
    known, new = _known_and_new(llm, chat, before)
    return int(known + new)


def at_most(llm: LLM, chat: Chat, before: Counted | None) -> int:
    """The same, and as much more as the estimate of what was not counted may be wrong by."""
    known, new = _known_and_new(llm, chat, before)
    return int(known * SURE + new * UNSURE)


def _known_and_new(llm: LLM, chat: Chat, before: Counted | None) -> tuple[float, float]:
    """Tokens of a request that the provider has counted, and those that are estimated."""
    size = estimate(chat)
    if before is None or before.model != llm.name:
        return 0.0, size
    new = size - before.estimate - before.answer_estimate
    if new >= 0:
        return before.counted + before.answer, new * before.rate
    return 0.0, max(before.counted + (size - before.estimate) * before.rate, size)  # it was cut since


def estimate(chat: Chat) -> float:
    """Tokens of a request by the rule of thumb."""
    size = words(chat.system) + tool_tokens(chat.tools) + conversation(chat.messages)
    if chat.response_format is not None:
        size += words(repr(chat.response_format.schema))
    return size


def conversation(messages: Sequence[ChatMessage]) -> float:
    """Tokens of what was said."""
    return sum([MESSAGE_TOKENS + sum(map(_part, message.parts)) for message in messages])


def tool_tokens(tools: Sequence[ToolSpec]) -> float:
    """Tokens of the descriptions of tools."""
    return sum([words(tool.name) + words(tool.description) + words(str(tool.parameters)) for tool in tools])


def words(text: str) -> float:
    """Tokens of a text."""
    if text.isascii():
        return len(text) / CHARACTERS_A_TOKEN
    return len(text.encode("utf-8", "surrogatepass")) / 3


def _part(part: Part) -> float:
    match part:
        case Text() | Thinking():
            return words(part.text)
        case ToolResult():
            return MESSAGE_TOKENS + words(part.text) + MEDIA_TOKENS * len(part.media)
        case ToolCall():
            return MESSAGE_TOKENS + words(part.name) + words(str(part.arguments))
        case _:
            return MEDIA_TOKENS
