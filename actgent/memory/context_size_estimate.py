"""Estimated size of messages in a model's context, and the error if they do not fit.

The rule: four characters per token for ASCII text, three bytes per token for other text, so a Chinese character is one token. It
holds for prose; numbers, code and encoded data may take up to twice as much. An image counts as 1,000 tokens, a text file as
its text, and any other document as one token per 25 bytes, at least 1,000.
"""

from collections.abc import Iterable, Sequence

from actgent.errors import ContextOverflow
from actgent.errors.text_escaping import counted
from actgent.messages import ChatMessage, File, Part, Text, Thinking, ToolCall, ToolResult
from actgent.support.token_estimate import estimate_tokens

CHARACTERS_PER_TOKEN = 4
MEDIA_CHARACTERS = 4000
"""Minimum size of an image, document or opaque block, in characters."""
_DOCUMENT_BYTES = 6
"""Bytes of a document that count as one character, about 25 per token."""
_MAX_LISTED_PARTS = 5
"""Maximum number of parts that an error lists."""


def count_characters(parts: Sequence[Part]) -> int:
    """Return the size of message parts in characters, of which four are a token."""
    if len(parts) == 1 and type(part := parts[0]) is Text and part.text.isascii():  # the usual case
        return len(part.text)
    characters = 0
    for part in parts:
        if isinstance(part, (Text, Thinking, ToolResult)):
            text = part.text
            characters += len(text) if text.isascii() else length(text)
        elif isinstance(part, ToolCall):
            characters += length(part.name) + length(str(part.arguments))
        else:
            characters += _media(part)
    return characters


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


def length(text: str) -> int:
    """Return the size of a text in characters. Text that is not ASCII counts four characters for three bytes of UTF-8."""
    return len(text) if text.isascii() else (len(text.encode("utf-8", "surrogatepass")) * 4 + 2) // 3


def _media(part: Part) -> int:
    data = part.data if isinstance(part, File) else None
    if not data:
        return MEDIA_CHARACTERS
    is_text = isinstance(part, File) and part.media_type.startswith(("text/", "application/json"))
    return max(MEDIA_CHARACTERS, len(data) * 4 // 3 if is_text else len(data) // _DOCUMENT_BYTES)


def tokens(characters: int) -> int:
    """Return the number of tokens of a size in characters, rounded up."""
    return -(-characters // CHARACTERS_PER_TOKEN)


def overflow(messages: Sequence[ChatMessage], tail: str, budget: int) -> ContextOverflow:
    """Build the error for a request with more than `budget` characters. Its text lists the largest parts of the request.

    `tail` is the protocol's text at the end of the request.
    """
    others = [("the instructions of this stage", tokens(length(tail)))] if tail else []
    parts = largest(messages, others)
    message_size = sum(count_characters(message.parts) for message in messages)
    wanted, allowed = tokens(message_size + length(tail)), tokens(budget)
    text = (
        f"the request would take about {wanted:,} tokens, and the context budget is {allowed:,}; the largest parts are: "
        f"{', '.join(f'{words} ({size:,})' for words, size in parts)}. Send less, let tools return less "
        "(Limits(result_characters=...)), or raise ShortTermMemory(max_tokens=...)"
    )
    return ContextOverflow(text, parts=parts, tokens=wanted, budget=allowed)


def largest(messages: Sequence[ChatMessage], others: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the five largest parts of a request, each as a description and its number of tokens.

    `others` are parts of the request that are not messages.
    """
    found = [*others]
    found += [
        (_describe_part(message, part), tokens(count_characters([part])))
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
    text = f"({what}, about {tokens(size):,} tokens, cannot be shown: at most {tokens(budget):,} fit.)"
    return ChatMessage("user", (Text(text),))
