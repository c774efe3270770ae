"""A conversation whose older part is shown as a summary, which a model writes beside the session."""

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.messages import ChatMessage, Message, Part, Text, ToolCall, ToolResult

from .base import Memory
from .cutting import Cut, begins
from .marks import unmarked
from .room import CHARACTERS_A_TOKEN
from .saved_view import pack, unpack
from .short_term import SUMMARY, ShortTermView, to_chat

MOST_READ = 400_000
"""Characters of a conversation that are summarized at once."""
_FORM = "summarizing 3"
_LONGEST = 4_000
"""Characters of one part that are summarized."""
_LEAST = 4
"""Messages that are worth a summary."""
_GONE = -1


def _at_least_one(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if not (type(value) is int and value >= 1):
        raise ConfigurationError(f"Summarizing({attribute.name}=...) takes a number from 1, not {value!r}")


@attrs.frozen(kw_only=True)
class Summarizing(Memory):
    """Shows the last messages as they were said, and a summary of those before.

    If the shown messages take more than `trigger` tokens, a model writes a summary while turns continue. The next request begins with
    it, also in the middle of a turn; the message that began the turn stays. The record keeps the summary as a notice, so it
    is written once and restored after a restart. The next summary covers the last summary and all later messages. Until one
    exists, and if its model fails, older messages are shown as long as they fit into `max_tokens`.
    """

    summarizes = True
    llm: Any = None
    """The model that writes summaries: what `Agent(llm=...)` takes, but settings; None: the agent's own."""
    keep: int = attrs.field(default=10, validator=_at_least_one)
    """How many of the last messages are always shown as they were said, at least."""
    trigger: int = attrs.field(default=8_000, validator=_at_least_one)
    """The tokens from which on a summary is made, estimated as in `ShortTermMemory.max_tokens`."""
    max_tokens: int = attrs.field(default=180_000, validator=_at_least_one)
    """The most that is shown, as in `ShortTermMemory`."""

    def open_view(self) -> "SummarizingView":
        budget = self.max_tokens * CHARACTERS_A_TOKEN
        return SummarizingView(budget, budget, keep=self.keep, trigger=self.trigger * CHARACTERS_A_TOKEN)

    def restore_view(self, saved: bytes) -> "SummarizingView | None":
        if type(self) is not Summarizing:  # its views may hold more
            return None
        form, *fields = unpack(saved)
        if form != _FORM:
            return None
        keep, trigger, count, ends, (_, budget, *shown) = fields
        empty = self.open_view()
        if (keep, trigger, budget) != (empty.keep, empty.trigger, self.max_tokens * CHARACTERS_A_TOKEN):
            return None
        view = SummarizingView.restored(budget, shown)
        view.go_on(keep, trigger, count, ends)
        return view


@attrs.frozen
class Material:
    """What a summary is to be made of."""

    covers: int
    """The number of messages of the record that it covers then."""
    text: str


@attrs.define(eq=False)
class SummarizingView(ShortTermView):
    """The view of one session."""

    keep: int = attrs.field(default=1, kw_only=True)
    trigger: int = attrs.field(default=0, kw_only=True)
    """In characters."""
    is_making: bool = attrs.field(default=False, kw_only=True)
    """True while a model writes a summary."""
    ready: tuple[int, str] | None = attrs.field(default=None, kw_only=True)
    """A summary that is to be shown from the next request on, and how many messages it covers."""
    tried: int = attrs.field(default=0, kw_only=True)
    """Characters that were shown when a summary failed: the next is tried when these are a quarter more."""
    _count: int = attrs.field(default=0, kw_only=True)
    """The number of messages of the record."""
    _ends: list[tuple[int, ChatMessage]] = attrs.field(factory=list, kw_only=True)
    """How many messages of the record end with which message that is shown."""

    def add(self, message: Message, *, answered: bool = False) -> None:
        self._count += 1
        if not answered and message.is_note and message.sender.name == SUMMARY:
            self._take_summary(message)
            return
        super().add(message, answered=answered)
        if self._chat and (not self._ends or self._ends[-1][1] is not self._chat[-1]):
            self._ends.append((self._count, self._chat[-1]))

    def material(self) -> Material | None:
        """Return what the next summary is to be made of; None where none is due."""
        if self._characters <= max(self.trigger, self.tried * 5 // 4):
            return None
        size, end = 0, 0
        for place in range(1, max(0, len(self._chat) - self.keep) + 1):
            size += sum(len(line) for line in _lines(self._chat[place - 1]))
            if size > MOST_READ and end:
                break
            if place < len(self._chat) and begins(self._chat, place):
                end = place
        covers = [number for number, place in self._numbered() if place < end]
        if end < _LEAST or not covers:
            return None
        end = max(place for number, place in self._numbered() if number == covers[-1]) + 1
        read = (*self._kept, *self._chat[:end])
        last = (self._notices or {}).get(SUMMARY)  # whole: what it has is shown nowhere else any more
        lines = (line for said in read for line in _lines(said, MOST_READ if said is last else _LONGEST))
        return Material(covers[-1], "\n\n".join(lines))

    def save(self) -> bytes | None:
        if type(self) is not SummarizingView:
            return None
        places = {id(said): place for place, said in enumerate(self._chat)}
        ends = [[number, places.get(id(said), _GONE)] for number, said in self._ends]
        return pack((_FORM, self.keep, self.trigger, self._count, ends, self._saved()))

    def go_on(self, keep: int, trigger: int, count: int, ends: Sequence[tuple[int, int]]) -> None:
        """Take over what was saved."""
        self.keep, self.trigger, self._count = keep, trigger, count
        self._ends = [(number, self._chat[place]) for number, place in ends if place != _GONE]

    def _take_summary(self, message: Message) -> None:
        """Show a summary in the place of what it covers."""
        covers = int(message.causation_id or 0)
        places = [place for number, place in self._numbered() if number <= covers]
        cut = max(places, default=-1) + 1
        while cut and (cut >= len(self._chat) or not begins(self._chat, cut)):
            cut -= 1
        self._notices = {**(self._notices or {}), SUMMARY: to_chat(message, answered=False)[0]}
        self._left_out += 1  # the summary itself, whose place is in front
        self._cut(cut)
        self._ends = [each for each in self._ends if each[0] > covers]
        self.ready, self.tried = None, 0

    def _settle(self, parts: tuple[Part, ...]) -> None:
        last = self._chat[-1]
        super()._settle(parts)
        if self._ends and self._ends[-1][1] is last:
            self._ends[-1] = self._ends[-1][0], self._chat[-1]

    def _take_over(self, found: Cut) -> None:
        super()._take_over(found)
        kept = set(map(id, self._chat))
        ends = ((number, found.replaced.get(id(said), said)) for number, said in self._ends)
        self._ends = [each for each in ends if id(each[1]) in kept]

    def _numbered(self) -> list[tuple[int, int]]:
        """Numbers of messages of the record, and where they end in what is shown."""
        places = {id(said): place for place, said in enumerate(self._chat)}
        return [(number, places[id(said)]) for number, said in self._ends if id(said) in places]


def _lines(said: ChatMessage, longest: int = _LONGEST) -> Iterator[str]:
    """A message in words, for the one who summarizes; `longest` is what of a text is read."""
    for part in said.parts:
        if isinstance(part, Text):
            yield f"{said.role}: {_short(part.text, longest)}"
        elif isinstance(part, ToolCall):
            yield f"{said.role} calls {part.name}: {_short(str(part.arguments))}"
        elif isinstance(part, ToolResult):
            yield f"result of {part.tool_name}: {_short(part.text)}"


def _short(text: str, longest: int = _LONGEST) -> str:
    if len(text) > longest:
        text = f"{text[:longest]}... ({len(text):,} characters in all)"
    return unmarked(text)
