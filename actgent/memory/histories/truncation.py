"""A function for `memory=` that keeps to a number of tokens, and cuts what is too long by itself at its beginning."""

from collections.abc import Callable, Sequence

import attrs

from actgent.memory.room import CHARACTERS_A_TOKEN, count_characters, length
from actgent.messages import Message, Part, Text, ToolResult

CUT = "..."
"""What a text begins with whose beginning is not shown."""


@attrs.frozen(kw_only=True)
class Truncation:
    """Keeps the newest messages that fit into `max_tokens`, but `keep` at least; where these are too long, it cuts their texts.

    What is cut loses its beginning, for which `...` stands: the end of a long text is what the next words refer to. The record
    stays whole. Calls of tools and media are not cut. Its numbers are those of acton's SimpleAgentMemory.
    """

    max_tokens: int = attrs.field(default=8_000, validator=attrs.validators.ge(1))
    """The most that is shown of texts, by the rule of `room.py`: four ASCII characters are a token."""
    keep: int = attrs.field(default=2, validator=attrs.validators.ge(1))
    """How many of the newest messages are shown however long they are."""

    def __call__(self, history: Sequence[Message]) -> list[Message]:
        budget = self.max_tokens * CHARACTERS_A_TOKEN
        sizes = [count_characters(message.parts) for message in history]
        start, left = len(history), budget
        while start > 0 and (sizes[start - 1] <= left or len(history) - start < self.keep):
            start -= 1
            left -= sizes[start]
        kept = list(history[start:])
        return kept if left >= 0 else _cut_to(kept, sizes[start:], budget)


def _cut_to(messages: Sequence[Message], sizes: Sequence[int], budget: int) -> list[Message]:
    """The messages with their longest texts cut, so that all together take so many characters."""
    share = _share(sizes, budget)
    return [
        message if size <= share else attrs.evolve(message, parts=_shortened(message.parts, share))
        for message, size in zip(messages, sizes, strict=True)
    ]


def _share(sizes: Sequence[int], budget: int) -> int:
    """The most that each may take; what shorter ones leave is for longer ones."""
    left = budget
    ordered = sorted(sizes)
    for place, size in enumerate(ordered):
        share = left // (len(ordered) - place)
        if size > share:
            return share
        left -= size
    return budget


def _shortened(parts: Sequence[Part], room: int) -> tuple[Part, ...]:
    """The parts with the ends of their texts, the last one's first."""
    fixed = sum(count_characters([part]) for part in parts if not isinstance(part, Text | ToolResult))
    left, kept = max(0, room - fixed), list[Part]()
    for part in reversed(parts):
        if isinstance(part, Text):
            kept.append(attrs.evolve(part, text=end_of(part.text, left)))
        elif isinstance(part, ToolResult) and part.error is None:
            kept.append(attrs.evolve(part, content=end_of(part.content, left)))
        else:
            kept.append(part)
        left = max(0, left - count_characters([kept[-1]]))
    return tuple(reversed(kept))


def end_of(text: str, room: int, *, measure: Callable[[str], int] = length) -> str:
    """The end of a text that takes at most `room` characters with the `...` before it; all of it where it fits."""
    if measure(text) <= room:
        return text
    count = max(0, room - len(CUT))
    while True:
        cut = CUT + text[len(text) - count :]
        if not count or measure(cut) <= room:
            return cut
        count = min(count - 1, count * room // measure(cut))
