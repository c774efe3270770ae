"""`Truncation`: a `memory=` function that keeps the newest messages within a token limit."""

from collections.abc import Sequence

import attrs

from actgent.memory.context_size_estimate import CHARACTERS_PER_TOKEN
from actgent.messages import Message, Part, Text, ToolResult, count_characters, text_size
from actgent.support.number_field_validators import whole_number
from actgent.support.unknown_name_hints import lists_arguments

CUT = "..."
"""Text at the start of a truncated text."""


@lists_arguments
@attrs.frozen(kw_only=True)
class Truncation:
    """History processor that keeps the newest messages that fit into `max_tokens`, but at least `keep` messages. If those do not fit, their texts are cut.

    A cut text loses its beginning, since later messages refer to the end of a long text, and starts with `...`. The journal keeps
    the complete messages. Tool calls and media are not cut. The defaults are those of acton's SimpleAgentMemory.
    """

    max_tokens: int = attrs.field(default=8_000, validator=whole_number(1))
    """Maximum tokens of the shown messages, by the rule of `context_size_estimate.py`: four ASCII characters per token."""
    keep: int = attrs.field(default=2, validator=whole_number(1))
    """Minimum number of newest messages that are shown."""

    def __call__(self, history: Sequence[Message]) -> list[Message]:
        budget = self.max_tokens * CHARACTERS_PER_TOKEN
        sizes = [count_characters(message.parts) for message in history]
        start, left = len(history), budget
        while start > 0 and (sizes[start - 1] <= left or len(history) - start < self.keep):
            start -= 1
            left -= sizes[start]
        kept = list(history[start:])
        return kept if left >= 0 else _cut_to(kept, sizes[start:], budget)


def _cut_to(messages: Sequence[Message], sizes: Sequence[int], budget: int) -> list[Message]:
    """Cut the longest texts so that all messages together have at most `budget` characters. `sizes` are the present lengths."""
    share = _share(sizes, budget)
    return [
        message if size <= share else attrs.evolve(message, parts=_shorten_parts(message.parts, share))
        for message, size in zip(messages, sizes, strict=True)
    ]


def _share(sizes: Sequence[int], budget: int) -> int:
    """Return the maximum length of one message with which all messages together have at most `budget` characters.

    Room that shorter messages leave unused is divided among the longer ones.
    """
    left = budget
    ordered = sorted(sizes)
    for place, size in enumerate(ordered):
        share = left // (len(ordered) - place)
        if size > share:
            return share
        left -= size
    return budget


def _shorten_parts(parts: Sequence[Part], room: int) -> tuple[Part, ...]:
    """Cut the beginnings of texts until the parts have at most `room` characters. Later parts are kept before earlier ones."""
    fixed = sum(count_characters([part]) for part in parts if not isinstance(part, Text | ToolResult))
    left, kept = max(0, room - fixed), list[Part]()
    for part in reversed(parts):
        if isinstance(part, Text):
            kept.append(attrs.evolve(part, text=keep_end(part.text, left)))
        elif isinstance(part, ToolResult) and part.error is None:
            kept.append(attrs.evolve(part, content=keep_end(part.content, left)))
        else:
            kept.append(part)
        left = max(0, left - count_characters([kept[-1]]))
    return tuple(reversed(kept))


def keep_end(text: str, room: int) -> str:
    """Cut the start of a text so that it has at most `room` characters with a leading `...`. Keep a text that fits."""
    if text_size(text) <= room:
        return text
    count = max(0, room - len(CUT))
    while True:
        cut = CUT + text[len(text) - count :]
        if not count or text_size(cut) <= room:
            return cut
        count = min(count - 1, count * room // text_size(cut))
