"""`ShortTermMemory`: a memory that shows the conversation within a token limit."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import attrs

from actgent.errors import text_escaping
from actgent.errors.text_escaping import counted
from actgent.messages import (
    ChatMessage,
    Message,
    Part,
    Role,
    Text,
    Thinking,
    ToolResult,
    count_characters,
    make_chat_message,
    text_size,
)
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.common_mistake_hints import hints_for_memories
from actgent.support.fast_attrs_constructors import fast_constructor
from actgent.support.number_field_validators import whole_number
from actgent.support.untrusted_text_delimiters import fence

from .context_size_estimate import (
    CHARACTERS_PER_TOKEN,
    estimate_part_tokens,
    overflow_error,
    placeholder_message,
)
from .conversation_trimming import (
    TEXT_RESULTS,
    Measure,
    TrimResult,
    deep_trim_size,
    is_round_start,
    shorten_answer,
    trim_conversation,
)
from .history_slice import HistorySlice
from .memory_interface import Memory, ModelView
from .memory_view_serialization import (
    chat_from_plain,
    chat_to_plain,
    pack,
    parts_from_plain,
    parts_to_plain,
    unpack,
)
from .system_tag_escaping import neutralize, neutralize_parts, neutralize_result

_CONVERSATION = "earlier messages"
"""Origin that is named for a summary of messages without an origin."""
_MAX_COPIED_MESSAGES = 200
"""Maximum number of messages for which a copy is cheaper than a `HistorySlice`."""
_OWN = ("assistant", "agent")
"""Kinds of senders whose messages get the role `assistant`, unless the model has to answer them."""
_MAX_NOTICE_CHARACTERS = 100
"""Maximum length of the notice about omitted messages, in characters."""
OPENING = ChatMessage("user", (Text("(The conversation begins with your own message.)"),))
"""Text of a message that is inserted before a conversation that starts with the assistant, since many models reject
such conversations.
"""
SUMMARY = "summary"
"""Sender of notices with summaries. Their `causation_id` is the number of messages that the summary covers."""


def left_out_notice(count: int) -> ChatMessage:
    """Return the notice that replaces `count` omitted messages."""
    return ChatMessage(
        "user", (Text(f"({counted(count, 'earlier message is', 'earlier messages are')} not shown.)"),)
    )


def missing_from(chat: Sequence[ChatMessage], notices: Iterable[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Return the messages in `notices` that `chat` does not contain, compared by identity."""
    shown = set(map(id, chat))
    return tuple(notice for notice in notices if id(notice) not in shown)


def to_chat(message: Message, *, answered: bool) -> list[ChatMessage]:
    """Convert a message of the session to messages for the model. Return no message if it has no content for the model.

    `answered` is True for the message that the model is to answer. It always gets the role user or tool, since a trailing
    assistant message would be a prefill.
    """
    kind, parts = message.sender.kind, message.parts
    role: Role = "user"
    if kind == "tool" and (results := message.tool_results):
        return _results_to_chat(results)
    if kind == "system":
        parts = _mark_system_parts(message)
    elif kind in _OWN and not answered:
        role, parts = "assistant", _repeatable_parts(message)
    else:
        parts = neutralize_parts(parts)
    return [make_chat_message(role, parts)] if parts else []


def _mark_system_parts(message: Message) -> tuple[Part, ...]:
    """Return the parts of a system message, with its text inside `<system>` delimiters.

    A summary repeats text of users and tools, so it is fenced as data with its origin, and not delimited as a system
    text.
    """
    if not message.text:
        return neutralize_parts(message.parts)
    if message.sender.name == SUMMARY:
        heading, _, words = neutralize(message.text).partition("\n")
        return (Text(f"{heading}\n{fence(words, message.origin or _CONVERSATION)}"),)
    others = tuple(part for part in message.parts if not isinstance(part, Text))
    return (Text(f"<system>\n{neutralize(message.text)}\n</system>"), *others)


def _repeatable_parts(message: Message) -> tuple[Part, ...]:
    """Return the parts of an answer that later requests may contain; empty if no such part has content.

    An interrupted answer keeps only its texts, since its thinking has no signature. Providers reject thinking without content
    after it.
    """
    parts = message.parts
    if len(parts) == 1 and not message.cut:
        return parts if _has_content(parts[0]) else ()
    if message.cut:
        parts = tuple(part for part in parts if isinstance(part, Text))
    content = tuple(part for part in parts if not isinstance(part, Text) or part.text)
    return content if any(map(_has_content, content)) else ()


def _has_content(part: Part) -> bool:
    return bool(part.text.strip()) if isinstance(part, Text) else not isinstance(part, Thinking)


def _results_to_chat(results: Sequence[ToolResult]) -> list[ChatMessage]:
    """Convert tool results to messages: a tool message for native results, a user message for results of text calls."""
    results = tuple(map(neutralize_result, results))
    if len(results) == 1 and results[0].native:  # the usual case
        return [make_chat_message("tool", results)]
    native = tuple([result for result in results if result.native])
    chat = [ChatMessage("tool", native)] if native else []
    if len(native) < len(results):
        shown = [result for result in results if not result.native]
        lines = "\n\n".join(map(_result_text, shown))
        chat.append(ChatMessage("user", (Text(f"{TEXT_RESULTS}\n\n{lines}"),)))
    return chat


def _result_text(result: ToolResult) -> str:
    """Return a tool result as text. Name and id are sanitized, since the model wrote them and could imitate a result."""
    return f"[{text_escaping.shown(result.tool_name)}] (ID: {text_escaping.shown(result.call_id)})\n{_outcome(result)}"


def _outcome(result: ToolResult) -> str:
    return result.text if result.error is not None else f"Success: {result.text}"


@hints_for_memories
@attrs.frozen(repr=False)
class ShortTermMemory(FieldRepr, Memory):
    """Memory that shows the complete conversation until it exceeds `max_tokens`, and then cuts it to half of that at once.

    Few large cuts keep the prompt's prefix, and with it the provider's cache, unchanged in between. A cut first shortens older tool
    results to 1,000 characters, and then omits the oldest messages, and the oldest calls with their results. The message that
    began the running turn, the user's latest message, and the last notice of each source, such as that of the mode, are always
    shown. The last five results of the running turn stay complete as long as they fit.

    A message, or an answer's calls with their results, that does not fit alone ends its turn with `ContextOverflow`. A notice
    replaces it when the next message is added.
    """

    max_tokens: int = attrs.field(default=180_000, validator=whole_number(1))
    """Maximum tokens of the conversation and the protocol's text at its end, estimated by the rule of `context_size_estimate.py`.
    System prompt, tools and answer are not included."""

    def open_view(self) -> "ShortTermView":
        budget = self.max_tokens * CHARACTERS_PER_TOKEN
        return _make_view(budget, budget)

    def restore_view(self, saved: bytes) -> "ShortTermView | None":
        if type(self) is not ShortTermMemory:  # views of subclasses may have more state
            return None
        form, budget, *fields = unpack(saved)
        is_ours = form == _FORM and budget == self.max_tokens * CHARACTERS_PER_TOKEN
        return ShortTermView.restored(budget, fields) if is_ours else None


_FORM = "short term 2"
"""Version of the format of saved views. Change it whenever `add` produces other messages, so that old snapshots are
rejected.
"""


@attrs.define(eq=False, repr=False)
class ShortTermView(FieldRepr, ModelView):
    """Messages of one session that the model gets, within the token limit."""

    _budget: int
    """Maximum size of the shown messages in characters."""
    _room: int
    """Maximum size of the shown messages in characters, without the notice about omitted messages."""
    _chat: list[ChatMessage] = attrs.field(factory=list)
    """Shown messages after the last cut. Only appended to, since model calls hold a `HistorySlice` of it. Other changes copy it."""
    _characters: int = 0
    _is_too_long: bool = False
    """True if the last message, or the last answer with its results, is longer than the limit."""
    _left_out: int = 0
    _notices: dict[str, ChatMessage] | None = None
    """Last system notice of each source, by the name of the source; None if there are no notices."""
    _asked: tuple[ChatMessage, ...] = ()
    """Latest message of the user, and the messages that are answered together with it."""
    _cause: tuple[ChatMessage, ...] = ()
    """Message that began the running turn, if its sender is not a user."""
    _tasks: tuple[ChatMessage, ...] = ()
    """Messages of `_asked` and `_cause` that are no longer in `_chat`. They are shown before the messages of `_chat`."""
    _kept_notices: tuple[ChatMessage, ...] = ()
    """System notices that are no longer in `_chat`. They are shown before the messages of `_chat`."""
    _unanswered_own_parts: tuple[Part, ...] | None = None
    """Parts of the newest message if the agent itself wrote it and the model has not answered it yet; else None.
    The model first reads such a message as a user message, and after its answer as an assistant message.
    """

    def save(self) -> bytes | None:
        return pack(self._state_to_save()) if type(self) is ShortTermView else None

    def _state_to_save(self) -> tuple[object, ...]:
        """Return the state of the view as plain data, for `save`."""
        shown = [*self._tasks, *self._kept_notices, *self._chat]
        notices = self._notices or {}
        places = {id(message): index for index, message in enumerate(shown)}
        gone = [
            message
            for message in (*notices.values(), *self._asked, *self._cause)
            if id(message) not in places
        ]
        places |= {id(message): len(shown) + number for number, message in enumerate(gone)}
        return (
            *(_FORM, self._budget, self._room, self._characters, self._is_too_long, self._left_out),
            None if self._unanswered_own_parts is None else parts_to_plain(self._unanswered_own_parts),
            *(chat_to_plain([*shown, *gone]), len(self._tasks), len(self._kept_notices), len(self._chat)),
            [[source, places[id(notice)]] for source, notice in notices.items()],
            *([places[id(message)] for message in each] for each in (self._asked, self._cause)),
        )

    @classmethod
    def restored(cls, budget: int, fields: Sequence[Any]) -> Self:
        """Create a view from the fields that `save` stored. `budget` is the maximum size in characters.

        Messages that occur several times become the same object again.
        """
        room, characters, is_too_long, left_out, settles, plain, tasks, kept, chat, *places = fields
        notices, asked, cause = places
        message = chat_from_plain(plain)
        view = cls(budget, room, message[tasks + kept : tasks + kept + chat], characters)
        view._is_too_long, view._left_out = is_too_long, left_out
        view._tasks, view._kept_notices = tuple(message[:tasks]), tuple(message[tasks : tasks + kept])
        view._notices = {source: message[index] for source, index in notices} or None
        view._asked = tuple([message[index] for index in asked])
        view._cause = tuple([message[index] for index in cause])
        view._unanswered_own_parts = None if settles is None else parts_from_plain(settles)
        return view

    def add(self, message: Message, *, answered: bool = False) -> None:
        if self._unanswered_own_parts is not None:
            self._mark_answered(self._unanswered_own_parts)
        kind = message.sender.kind
        for each in to_chat(message, answered=answered):
            size = count_characters(each.parts)
            if size * 2 > self._budget and each.role == "assistant":
                each = shorten_answer(each)  # noqa: PLW2901 - from here on the shown form of the message
                size = count_characters(each.parts)
            self._chat.append(each)
            if self._is_too_long:
                self._leave_out_last()
            self._characters += size
            if kind == "user":
                is_joined = len(self._chat) > 1 and self._asked and self._chat[-2] is self._asked[-1]
                self._asked = (*self._asked, each) if is_joined else (each,)
                self._cause = ()
            elif answered and message.causation_id is None:
                self._cause = (each,)
            if answered:
                self._unanswered_own_parts = message.parts if kind in _OWN else None
            elif kind == "system" and message.is_note:
                self._notices = {**(self._notices or {}), message.sender.name: each}
        if self._characters > self._room:
            self._make_room(self._room)

    def _mark_answered(self, parts: tuple[Part, ...]) -> None:
        """Show the newest message, which the agent itself wrote, as a message of the assistant from now on. `parts` replaces its parts.

        The model read the message as a user message once, and has answered it.
        """
        answer, last = ChatMessage("assistant", parts), self._chat[-1]
        self._chat = [*self._chat[:-1], answer]
        if self._cause and self._cause[-1] is last:
            self._cause = (answer,)
        self._unanswered_own_parts = None

    def _leave_out_last(self) -> None:
        """Replace the last round (a message, or an answer with the results of its calls), which is too long for a request, by a notice.

        Do nothing as long as the newest message still belongs to that round.
        """
        if self._begins_round(len(self._chat) - 1):
            start = self._round_start(len(self._chat) - 1)
            gone = self._chat[start:-1]
            size = _size(gone)
            notice = placeholder_message(gone, size, self._budget)
            self._chat = [*self._chat[:start], notice, self._chat[-1]]
            self._asked = tuple([notice if message in gone else message for message in self._asked])
            self._cause = tuple([notice if message in gone else message for message in self._cause])
            self._characters += count_characters(notice.parts) - size
            self._is_too_long = False

    def _round_start(self, end: int) -> int:
        """Return the index at which the round that ends at `end` begins.

        A round is a message, or an answer with its results.
        """
        return next((index for index in reversed(range(end)) if self._begins_round(index)), 0)

    def check_room(self, tail: str = "") -> None:
        room = self._room - text_size(tail) if tail else self._room
        if self._characters > room:
            self._make_room(room)
            if self._characters > self._room - text_size(tail):
                last = self._chat[self._round_start(len(self._chat)) :]
                shown = set(map(id, last))
                front = [message for message in self._pinned() if id(message) not in shown]
                raise overflow_error((*front, *last), tail, self._budget)

    def shrink(self, share: float) -> bool:
        size = sum(estimate_part_tokens(message.parts) for message in self._shown_messages())
        if self._shorten(size * share, estimate_part_tokens):
            return True
        pinned = set(map(id, (*self._asked[-1:], *self._cause, *(self._notices or {}).values())))
        wanted = deep_trim_size(self._shown_messages(), share, estimate_part_tokens, pinned=pinned)
        return self._shorten(wanted, estimate_part_tokens, is_deep=True)

    def messages(self) -> Sequence[ChatMessage]:
        chat = self._chat
        if self._left_out:
            return HistorySlice(chat, front=self._front())
        if len(chat) > _MAX_COPIED_MESSAGES:
            return HistorySlice(chat, front=(OPENING,) if chat[0].role == "assistant" else ())
        return (OPENING, *chat) if chat and chat[0].role == "assistant" else tuple(chat)

    def _front(self) -> tuple[ChatMessage, ...]:
        """Return the messages before a cut conversation: the notice about omitted messages, tasks and pinned notices."""
        tasks, kept = self._tasks, self._kept_notices
        notice = left_out_notice(self._left_out - len(tasks) - len(kept))
        if tasks and tasks[0].role == "user":
            return (*tasks, notice, *kept)
        return (notice, *kept, *tasks)

    def _shown_messages(self) -> Sequence[ChatMessage]:
        """Return the messages that the model receives, without the notice about omitted messages."""
        return (*self._tasks, *self._kept_notices, *self._chat)

    def _pinned(self) -> tuple[ChatMessage, ...]:
        """Return the messages that a cut never omits."""
        return (*self._asked, *self._cause, *(self._notices or {}).values())

    def _make_room(self, room: int) -> None:
        """Shorten and omit old messages until the conversation has at most `room` characters.

        A last round that is longer than `room` is not counted, so that it displaces no other messages.
        """
        last = _size(self._chat[self._round_start(len(self._chat)) :])
        self._is_too_long = last > self._budget
        too_long = last if last > room else 0
        if self._characters - too_long > room:
            self._shorten(max(0, room) // 2 + too_long, _count)
            if self._characters - too_long > room:
                wanted = room - _MAX_NOTICE_CHARACTERS + too_long
                self._shorten(wanted, _count, is_deep=True, is_last_fixed=too_long > 0)

    def _shorten(
        self, target: float, measure: Measure, *, is_deep: bool = False, is_last_fixed: bool = True
    ) -> bool:
        """Cut the conversation to about the size `target`, in the unit of `measure`. Return False if nothing can be cut.

        `is_deep` also shortens the newest results; `is_last_fixed` keeps those of the last round whole.
        """
        asked = self._asked[-1:] if is_deep else self._asked
        pinned = set(map(id, (*asked, *self._cause, *(self._notices or {}).values())))
        front = [message for message in (*self._tasks, *self._kept_notices) if id(message) in pinned]
        found = trim_conversation(
            self._chat,
            target - sum(measure(message.parts) for message in front),
            measure,
            pinned=pinned,
            task=set(map(id, (*self._asked, *self._cause))),
            is_deep=is_deep,
            is_last_fixed=is_last_fixed,
        )
        if found is None and len(front) == len(self._tasks) + len(self._kept_notices):
            return False
        if found is None:  # release messages that were pinned for an earlier task, and trim again
            self._keep_pinned()
            return True
        if is_deep:
            self._asked = asked
        self._apply_trim(found)
        return True

    def _apply_trim(self, found: TrimResult) -> None:
        """Replace the conversation by the result of a trim."""
        self._chat = found.chat  # a new list: earlier requests still refer to the old one
        self._left_out += found.left_out
        if found.left_out:
            self._room = self._budget - _MAX_NOTICE_CHARACTERS
        self._keep_pinned()

    def _cut(self, count: int) -> None:
        """Omit the `count` oldest messages from later requests."""
        if count:
            self._apply_trim(TrimResult(self._chat[count:], count, {}))

    def _keep_pinned(self) -> None:
        """After a cut, keep the messages that must stay: the tasks of the turn and the last notice of each source."""
        self._tasks = missing_from(self._chat, (*self._asked, *self._cause))
        self._kept_notices = missing_from(self._chat, (self._notices or {}).values())
        self._characters = _size(self._shown_messages())

    def _begins_round(self, index: int) -> bool:
        return is_round_start(self._chat, index)


def _count(parts: Sequence[Part]) -> float:
    return count_characters(parts)


_make_view = fast_constructor(ShortTermView)


def _size(messages: Iterable[ChatMessage]) -> int:
    return sum(count_characters(message.parts) for message in messages)
