"""How many tokens a prompt takes, before its provider has counted them.

Three bytes a token, which is one for a Chinese character: of recorded exchanges with OpenAI that is one and a half
times the truth with tools, and about the truth for short plain text. Providers add words of their own that nobody sees
(Anthropic some hundred tokens where there are tools): only an answer's usage tells them.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from actgent.messages import Part, Text, Thinking, ToolCall, ToolResult, ToolSpec

from .base import Chat

BYTES_A_TOKEN = 3
MEDIA_BYTES = 6000
"""What a picture, a document or an opaque block is counted as."""
MESSAGE_BYTES = 12
"""What a message takes besides its words."""


@attrs.define(eq=False)
class PromptEstimator:
    """Estimates prompts; remembers what the tools that it saw last take, which seldom change."""

    _tools: Sequence[ToolSpec] | None = None
    _tools_bytes: int = 0

    def tokens(self, chat: Chat) -> int:
        """About how many tokens the prompt of a chat takes."""
        if chat.tools is not self._tools:
            self._tools, self._tools_bytes = chat.tools, sum(_size(repr(spec)) for spec in chat.tools)
        size = _size(chat.system) + self._tools_bytes
        if chat.response_format is not None:
            size += _size(repr(chat.response_format.schema))
        for message in chat.messages:
            size += MESSAGE_BYTES + _parts_size(message.parts)
        return size // BYTES_A_TOKEN + 1


def _parts_size(parts: Iterable[Part]) -> int:
    return sum(map(_part_size, parts))


def _part_size(part: Part) -> int:
    match part:
        case Text() | Thinking():
            return _size(part.text)
        case ToolResult():
            return MESSAGE_BYTES + _size(part.text) + MEDIA_BYTES * len(part.media)
        case ToolCall():
            return MESSAGE_BYTES + len(part.name) + _size(_as_text(part.arguments))
        case _:
            return MEDIA_BYTES


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else str(arguments)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
