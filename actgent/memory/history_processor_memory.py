"""`ManagedMemory`: a memory that shows the messages which a function of the history returns."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.messages import ChatMessage, Message, ToolResult, count_characters, text_size
from actgent.support.number_field_validators import whole_number

from .context_size_estimate import CHARACTERS_PER_TOKEN, estimate_part_tokens, overflow_error
from .conversation_trimming import Measure, deep_trim_size, trim_conversation
from .history_slice import HistorySlice
from .memory_interface import ManageHistory, Memory, ModelView
from .short_term_memory import OPENING, left_out_notice, missing_from, to_chat


@attrs.frozen
class ManagedMemory(Memory):
    """Memory that shows the model the messages which a function of the program returns when a turn begins.

    Messages of the running turn are appended to them, so that the prompt's prefix stays unchanged. The message to be answered and the
    last notice of each source are always shown. A call without its results is omitted, and so are results without their call. The
    record is not changed.
    """

    manage: ManageHistory
    """Function that receives a copy of the history and returns the messages to show."""
    max_tokens: int = attrs.field(default=180_000, validator=whole_number(1))
    """Maximum shown tokens, estimated as in `ShortTermMemory.max_tokens`. A longer conversation is cut as in that
    class, until the next turn begins.
    """

    def open_view(self) -> "ManagedView":
        return ManagedView(self.manage, self.max_tokens * CHARACTERS_PER_TOKEN)


@attrs.define(eq=False)
class ManagedView(ModelView):
    """Messages of one session that the model gets, as selected by a function of the program."""

    _manage: ManageHistory
    _budget: int
    _record: list[Message] = attrs.field(factory=list)
    _chat: list[ChatMessage] = attrs.field(factory=list)
    """Shown messages. During a turn, the list is only appended to; the next turn replaces it."""
    _is_due: bool = False
    """True if a new turn has begun, and the function was not yet called for this turn."""
    _turn_start: int = 0
    """Index in `_chat` after the message that began the turn.
    Later messages exist if the session was opened in the middle of a turn.
    """
    _pinned: tuple[ChatMessage, ...] = ()
    """Messages that are never omitted: the messages that the turn answers, and the last system notice of each source."""
    _front: tuple[ChatMessage, ...] = ()
    """Pinned messages that are shown before the kept messages, because older messages around them were omitted."""

    def add(self, message: Message, *, answered: bool = False) -> None:
        self._record.append(message)
        if answered and message.correlation_id is None:
            self._is_due, self._turn_start = True, len(self._record)
        if not self._is_due:
            self._chat.extend(to_chat(message, answered=answered))

    def check_room(self, tail: str = "") -> None:
        if self._size() + text_size(tail) > self._budget:
            half, whole = self._budget // 2, self._budget - text_size(tail)
            if not self._cut(half, count_characters) or self._size() > whole:
                self._cut(whole, count_characters, is_deep=True)
            if self._size() > whole:
                raise overflow_error(self.messages(), tail, self._budget)

    def shrink(self, share: float) -> bool:
        """Cut the shown messages to about the fraction `share` of their tokens. Return False if nothing can be cut.

        The cut lasts until the next turn, which calls the program's function again.
        """
        size = sum(estimate_part_tokens(message.parts) for message in self.messages())
        if self._cut(size * share, estimate_part_tokens):
            return True
        pinned = set(map(id, self._pinned))
        target = deep_trim_size(self.messages(), share, estimate_part_tokens, pinned=pinned)
        return self._cut(target, estimate_part_tokens, is_deep=True)

    def messages(self) -> Sequence[ChatMessage]:
        if self._is_due:
            self._chat, self._is_due = self._call_manage(), False
        chat = self._chat
        begins_alone = bool(chat) and chat[0].role == "assistant" and not self._front
        return HistorySlice(chat, front=(OPENING,) if begins_alone else self._front)

    def _size(self) -> int:
        return sum(count_characters(message.parts) for message in self.messages())

    def _cut(self, target: float, measure: Measure, *, is_deep: bool = False) -> bool:
        """Cut the shown messages to about the size `target`, in the unit of `measure`; return False if nothing can be cut.

        `is_deep` also shortens the newest results.
        """
        pinned = set(map(id, self._pinned))
        front = sum(measure(message.parts) for message in self._front)
        found = trim_conversation(
            self._chat, target - front, measure, pinned=pinned, task=pinned, is_deep=is_deep
        )
        if found is None:
            return False
        if found.left_out:
            gone = missing_from(found.chat, self._pinned)
            notice = left_out_notice(found.left_out - len(gone))
            self._front = (notice, *gone) if gone and gone[0].role == "assistant" else (*gone, notice)
        self._chat = found.chat
        return True

    def _call_manage(self) -> list[ChatMessage]:
        """Call the program's function with the history before the running turn, and return the messages to show.

        The last notices and the messages to be answered are always shown, also if the function omits them.
        Calls without results, and results without calls, are omitted. The messages of the turn follow.

        Raises:
            ConfigurationError: The function returned an object that is not a message.
        """
        record = tuple(self._record[: self._turn_start])
        kept: list[Any] = list(self._manage(list(record)))
        if wrong := next((each for each in kept if not isinstance(each, Message)), None):
            raise ConfigurationError(
                f"memory= must return messages of the history, but it returned {wrong!r:.100}"
            )
        ids = {each.id for each in kept}
        kept = [*(note for note in _last_notices(record) if note.id not in ids), *kept]
        given = {each.id: each for each in kept}
        asked = [given.get(each.id, each) for each in _unanswered_messages(record)]
        kept = [*(each for each in kept if each.id not in {chat.id for chat in asked}), *asked]
        newest = record[-1].id
        shown, pinned = list[ChatMessage](), list[ChatMessage]()
        ids = {each.id for each in (*asked, *_last_notices(record))}
        for each in complete_groups(kept):
            chat = to_chat(each, answered=each.id == newest)
            shown += chat
            if each.id in ids:
                pinned += chat
        self._pinned, self._front = tuple(pinned), ()
        since = (chat for each in self._record[self._turn_start :] for chat in to_chat(each, answered=False))
        return [*shown, *since]


def _unanswered_messages(record: Sequence[Message]) -> Sequence[Message]:
    """Return the messages of `record` after the model's last answer, which the model has not answered yet."""
    index = len(record) - 1
    while index > 0 and record[index - 1].sender.kind == "user" and record[index].sender.kind == "user":
        index -= 1
    return record[index:]


def _last_notices(record: Sequence[Message]) -> Iterable[Message]:
    """Return the last system notice of each sender, such as the mode or the tools. Earlier notices are outdated."""
    return {each.sender.name: each for each in record if each.is_note}.values()


def complete_groups(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages, but omit answers whose tool calls lack results, and results whose calls are missing."""
    index = 0
    while index < len(messages):
        end = _group_end(messages, index)
        yield from messages[index:end]
        index = max(end, index + 1)


def _group_end(messages: Sequence[Message], index: int) -> int:
    """Return the index after the message at `index` and, if it has tool calls, after the results of these calls.

    Return `index` itself if the message must be omitted: its calls lack results, or it has results without
    their call.
    """
    message = messages[index]
    if any(result.native for result in message.tool_results):
        return index
    open_calls = set() if message.cut else {call.id for call in message.tool_calls}
    end = index + 1
    while open_calls and end < len(messages) and _answers(messages[end], open_calls):
        open_calls -= {result.call_id for result in messages[end].tool_results}
        end += 1
    return index if open_calls else end


def _answers(message: Message, calls: set[str]) -> bool:
    results: Sequence[ToolResult] = message.tool_results
    return bool(results) and all(result.call_id in calls for result in results)
