"""`SummarizingMemory`: a memory that shows a model-written summary in place of older messages."""

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.messages import ChatMessage, Message, Part, Text, ToolCall, ToolResult
from actgent.support.common_mistake_hints import hints_for_memories

from .context_size_estimate import CHARACTERS_PER_TOKEN
from .conversation_trimming import TrimResult, is_round_start
from .memory_interface import Memory
from .memory_view_serialization import pack, unpack
from .short_term_memory import SUMMARY, ShortTermView, to_chat
from .system_tag_escaping import neutralize

MAX_COVERED_CHARACTERS = 400_000
"""Maximum characters of a conversation that one summary covers."""
_FORM = "summarizing 3"
_MAX_PART_CHARACTERS = 4_000
"""Maximum characters of one message part that a summary request contains."""
_MIN_COVERED_MESSAGES = 4
"""Minimum number of messages that a summary covers."""
_GONE = -1


def _check_at_least_one(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if not (type(value) is int and value >= 1):
        raise ConfigurationError(
            f"SummarizingMemory({attribute.name}=...) must be a whole number of at least 1, not {value!r}"
        )


@hints_for_memories
@attrs.frozen(kw_only=True)
class SummarizingMemory(Memory):
    """Memory that shows the last messages verbatim, and a summary of the messages before them.

    If the shown messages take more than `trigger` tokens, a model writes a summary while turns continue. The next request starts
    with the summary, even in the middle of a turn; the message that began the turn stays. The journal stores the summary as a
    notice, so it is written once and restored after a restart. The next summary covers the last summary and all later messages.
    Until a summary exists, and if its model fails, older messages are shown as far as they fit into `max_tokens`.
    """

    summarizes = True
    llm: Any = None
    """Model that writes the summaries: an LLM or a model name, as in `Agent(llm=...)`; None uses the agent's model."""
    keep: int = attrs.field(default=10, validator=_check_at_least_one)
    """Minimum number of newest messages that are shown verbatim."""
    trigger: int = attrs.field(default=8_000, validator=_check_at_least_one)
    """Shown tokens above which a summary is written, estimated as in `ShortTermMemory.max_tokens`."""
    max_tokens: int = attrs.field(default=180_000, validator=_check_at_least_one)
    """Maximum shown tokens, estimated as in `ShortTermMemory.max_tokens`."""

    def open_view(self) -> "SummarizingView":
        budget = self.max_tokens * CHARACTERS_PER_TOKEN
        return SummarizingView(budget, budget, keep=self.keep, trigger=self.trigger * CHARACTERS_PER_TOKEN)

    def restore_view(self, saved: bytes) -> "SummarizingView | None":
        if type(self) is not SummarizingMemory:  # views of subclasses may have more state
            return None
        form, *fields = unpack(saved)
        if form != _FORM:
            return None
        keep, trigger, count, ends, (_, budget, *shown) = fields
        empty = self.open_view()
        if (keep, trigger, budget) != (empty.keep, empty.trigger, self.max_tokens * CHARACTERS_PER_TOKEN):
            return None
        view = SummarizingView.restored(budget, shown)
        view.restore_summary_state(keep, trigger, count, ends)
        return view


@attrs.frozen
class SummaryInput:
    """Input of a summary request."""

    covers: int
    """Number of messages of the record that the summary will cover, from the first."""
    text: str
    """Text of the messages to summarize."""


@attrs.define(eq=False)
class SummarizingView(ShortTermView):
    """Messages of one session that the model gets: a summary, and the messages after it."""

    keep: int = attrs.field(default=1, kw_only=True)
    trigger: int = attrs.field(default=0, kw_only=True)
    """Size of the shown messages in characters above which a summary is written."""
    is_summarizing: bool = attrs.field(default=False, kw_only=True)
    """True while a model is writing a summary."""
    ready: tuple[int, str] | None = attrs.field(default=None, kw_only=True)
    """Finished summary for the next request: the number of covered messages and the text. None if no summary waits."""
    failed_size: int = attrs.field(default=0, kw_only=True)
    """Characters of the input whose summary failed last; 0 after a success. A retry needs 25 % more shown characters."""
    _count: int = attrs.field(default=0, kw_only=True)
    """Number of messages of the session so far."""
    _ends: list[tuple[int, ChatMessage]] = attrs.field(factory=list, kw_only=True)
    """Possible ends of a summary.
    Each is a pair: the number of session messages so far, and the last shown message that represents them.
    """

    def add(self, message: Message, *, answered: bool = False) -> None:
        self._count += 1
        if not answered and message.is_note and message.sender.name == SUMMARY:
            self._apply_summary(message)
            return
        super().add(message, answered=answered)
        if self._chat and (not self._ends or self._ends[-1][1] is not self._chat[-1]):
            self._ends.append((self._count, self._chat[-1]))

    def summary_input(self) -> SummaryInput | None:
        """Return the text of the messages that the next summary will replace; None if the conversation is too short to summarize.

        The text also has the last summary, and messages that a cut has kept.
        """
        if self._characters <= max(self.trigger, self.failed_size * 5 // 4):
            return None
        size, end = 0, 0
        for place in range(1, max(0, len(self._chat) - self.keep) + 1):
            size += sum(len(line) for line in _lines(self._chat[place - 1]))
            if size > MAX_COVERED_CHARACTERS and end:
                break
            if place < len(self._chat) and is_round_start(self._chat, place):
                end = place
        covers = [number for number, place in self._shown_indexes() if place < end]
        if end < _MIN_COVERED_MESSAGES or not covers:
            return None
        end = max(place for number, place in self._shown_indexes() if number == covers[-1]) + 1
        # A message of `_tasks` leaves the view when the next turn begins, and its words with it if only the last summary has them.
        read = (*self._tasks, *self._kept_notices, *self._chat[:end])
        last = (self._notices or {}).get(SUMMARY)  # not shortened, since no other message has its content
        lines = (
            line
            for message in read
            for line in _lines(message, MAX_COVERED_CHARACTERS if message is last else _MAX_PART_CHARACTERS)
        )
        return SummaryInput(covers[-1], "\n\n".join(lines))

    def save(self) -> bytes | None:
        if type(self) is not SummarizingView:
            return None
        places = {id(message): place for place, message in enumerate(self._chat)}
        ends = [[number, places.get(id(message), _GONE)] for number, message in self._ends]
        return pack((_FORM, self.keep, self.trigger, self._count, ends, self._state_to_save()))

    def restore_summary_state(
        self, keep: int, trigger: int, count: int, ends: Sequence[tuple[int, int]]
    ) -> None:
        """Restore the state of this view from values that `save` stored.

        `ends` has pairs: number of messages of the session, and index of the last shown message that they produced.
        """
        self.keep, self.trigger, self._count = keep, trigger, count
        self._ends = [(number, self._chat[place]) for number, place in ends if place != _GONE]

    def _apply_summary(self, message: Message) -> None:
        """Omit the messages that a summary covers from later requests, and show the summary in place of them."""
        covers = int(message.causation_id or 0)
        places = [place for number, place in self._shown_indexes() if number <= covers]
        cut = max(places, default=-1) + 1
        while cut and (cut >= len(self._chat) or not is_round_start(self._chat, cut)):
            cut -= 1
        self._notices = {**(self._notices or {}), SUMMARY: to_chat(message, answered=False)[0]}
        self._left_out += 1  # the summary message itself
        self._cut(cut)
        self._ends = [each for each in self._ends if each[0] > covers]
        self.ready, self.failed_size = None, 0

    def _mark_answered(self, parts: tuple[Part, ...]) -> None:
        last = self._chat[-1]
        super()._mark_answered(parts)
        if self._ends and self._ends[-1][1] is last:
            self._ends[-1] = self._ends[-1][0], self._chat[-1]

    def _apply_trim(self, found: TrimResult) -> None:
        super()._apply_trim(found)
        kept = set(map(id, self._chat))
        ends = ((number, found.replaced.get(id(message), message)) for number, message in self._ends)
        self._ends = [each for each in ends if id(each[1]) in kept]

    def _shown_indexes(self) -> list[tuple[int, int]]:
        """Return pairs of message number in the record and index in the shown messages, for messages that are shown.

        The index is that of the last shown message that the record's message produced.
        """
        places = {id(message): place for place, message in enumerate(self._chat)}
        return [(number, places[id(message)]) for number, message in self._ends if id(message) in places]


def _lines(message: ChatMessage, longest: int = _MAX_PART_CHARACTERS) -> Iterator[str]:
    """Yield the parts of a message as text for a summary request. Each text is cut at `longest` characters."""
    for part in message.parts:
        if isinstance(part, Text):
            yield f"{message.role}: {_shorten(part.text, longest)}"
        elif isinstance(part, ToolCall):
            yield f"{message.role} calls {part.name}: {_shorten(str(part.arguments))}"
        elif isinstance(part, ToolResult):
            yield f"result of {part.tool_name}: {_shorten(part.text)}"


def _shorten(text: str, longest: int = _MAX_PART_CHARACTERS) -> str:
    if len(text) > longest:
        text = f"{text[:longest]}... ({len(text):,} characters in all)"
    return neutralize(text)
