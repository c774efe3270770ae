"""Estimates of prompt tokens for budgets, before a provider has counted the prompt.

The rule is three bytes per token, so a Chinese character is one token. Recorded exchanges with OpenAI took two thirds of this
estimate with tools, and about all of it for short plain text. Providers add hidden text (Anthropic some hundred tokens if
there are tools), which only the usage of an answer reports.
"""

from collections.abc import Sequence
from typing import Any

import attrs

from actgent.messages import Part, Text, Thinking, ToolCall, ToolResult, ToolSpec
from actgent.support.attrs_class_repr import FieldRepr

from .model_interface import ModelRequest

BYTES_PER_TOKEN = 3
MEDIA_BYTES = 6000
"""Estimated bytes of an image, a document or an opaque block."""
MESSAGE_BYTES = 12
"""Estimated bytes of a message, tool call or tool result in addition to its text."""


@attrs.define(eq=False, repr=False)
class PromptEstimator(FieldRepr):
    """Estimator of prompt tokens from the size in bytes. It caches the size of the last tool list, which rarely changes."""

    _tools: Sequence[ToolSpec] | None = None
    _tools_bytes: int = 0

    def tokens(self, chat: ModelRequest) -> int:
        """Estimate the tokens of a chat's prompt from its size in bytes. The sizes of tools are cached."""
        if chat.tools is not self._tools:
            self._tools, self._tools_bytes = chat.tools, sum(_size(repr(spec)) for spec in chat.tools)
        size = _size(chat.system) + self._tools_bytes
        if chat.response_format is not None:
            size += _size(repr(chat.response_format.schema))
        for message in chat.messages:
            size += MESSAGE_BYTES + sum(map(_part_size, message.parts))
        return size // BYTES_PER_TOKEN + 1


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
