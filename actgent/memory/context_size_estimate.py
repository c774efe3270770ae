"""Estimated tokens of messages in a model's context, and the error if they do not fit.

The rule: a token has four characters as counted by `count_characters` of `messages.py`. The rule holds for prose. Numbers, code
and encoded data may take up to twice as many tokens.
"""

from collections.abc import Iterable, Sequence

from actgent.errors import ContextOverflow
from actgent.errors.text_escaping import counted
from actgent.messages import (
    MEDIA_CHARACTERS,
    ChatMessage,
    File,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    count_characters,
    text_size,
)
from actgent.support.token_estimate import estimate_tokens

CHARACTERS_PER_TOKEN = 4
_MAX_LISTED_PARTS = 5
"""Maximum number of parts that an error lists."""


def estimate_part_tokens(parts: Sequence[Part]) -> float:
    """Return the estimated tokens of message parts. More precise than `count_characters` for numbers and code."""
    found = 0.0
    for part in parts:
        if isinstance(part, (Text, ToolResult)):
            found += estimate_tokens(part.text)
            if isinstance(part, ToolResult):
                found += len(part.media) * MEDIA_CHARACTERS / CHARACTERS_PER_TOKEN
        elif isinstance(part, ToolCall):
            found += estimate_tokens(part.name) + estimate_tokens(str(part.arguments))
        elif not isinstance(part, Thinking):
            found += MEDIA_CHARACTERS / CHARACTERS_PER_TOKEN
    return found


def to_tokens(characters: int) -> int:
    """Convert a size in characters to tokens, rounded up."""
    return -(-characters // CHARACTERS_PER_TOKEN)


def overflow_error(messages: Sequence[ChatMessage], tail: str, budget: int) -> ContextOverflow:
    """Build the error for a request with more than `budget` characters. Its text lists the largest parts of the request.

    `tail` is the text that the request adds after the messages.
    """
    others = [("the instructions of this stage", to_tokens(text_size(tail)))] if tail else []
    parts = largest_parts(messages, others)
    message_size = sum(count_characters(message.parts) for message in messages)
    wanted, allowed = to_tokens(message_size + text_size(tail)), to_tokens(budget)
    text = (
        f"the request would take about {wanted:,} tokens, and the context budget is {allowed:,}; the largest parts are: "
        f"{', '.join(f'{words} ({size:,})' for words, size in parts)}. Send less, let tools return less "
        "(Limits(result_characters=...)), or raise ShortTermMemory(max_tokens=...)"
    )
    return ContextOverflow(text, parts=parts, tokens=wanted, budget=allowed)


def largest_parts(
    messages: Sequence[ChatMessage], others: Iterable[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Return the five largest parts of a request, each as a description and its number of tokens.

    `others` are parts of the request that are not messages.
    """
    found = [*others]
    found += [
        (_describe_part(message, part), to_tokens(count_characters([part])))
        for message, part in _parts(messages)
    ]
    return sorted(found, key=lambda each: -each[1])[:_MAX_LISTED_PARTS]


def _parts(messages: Iterable[ChatMessage]) -> Iterable[tuple[ChatMessage, Part]]:
    return ((message, part) for message in messages for part in message.parts)


def _describe_part(message: ChatMessage, part: Part) -> str:
    """Return a short description of a message part for an error, such as its role and kind or its tool name."""
    if isinstance(part, ToolResult):
        return f"result of {part.tool_name[:100]!r} (call {part.call_id[:100]!r})"
    if isinstance(part, ToolCall):
        return f"call of {part.name[:100]!r}"
    if isinstance(part, File):
        return f"file {part.name[:100]!r}"
    kind = "text" if isinstance(part, Text) else type(part).__name__.lower()
    return f"{kind} of the {message.role}"


def placeholder_message(messages: Sequence[ChatMessage], size: int, budget: int) -> ChatMessage:
    """Return the notice that the model reads in place of messages that are too long. `size` is their size in characters."""
    calls = sum(isinstance(part, ToolCall) for _, part in _parts(messages))
    what = f"{counted(calls, 'tool call')} with all results" if calls else "A message"
    text = f"({what}, about {to_tokens(size):,} tokens, cannot be shown: at most {to_tokens(budget):,} fit.)"
    return ChatMessage("user", (Text(text),))
