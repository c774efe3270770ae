"""Short-term memory: the conversation itself, within the model's context budget."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import attrs

from actgent.errors import printable
from actgent.errors.printable import counted
from actgent.messages import (
    ChatMessage,
    Message,
    Part,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    make_chat_message,
)
from actgent.support.outside_text import fence
from actgent.support.quick_init import maker

from .base import Memory, ModelView
from .marks import unmarked, unmarked_parts, unmarked_result
from .room import CHARACTERS_A_TOKEN, count_characters, instead_of, length, overflow
from .saved_view import pack, plain_chat, plain_parts, read_chat, read_parts, unpack
from .shortened import shortened
from .shown import Shown

_CONVERSATION = "earlier messages"
"""The origin of a summary of messages without an origin of their own."""
_SHORT = 200
"""Messages up to which a copy costs less than a `Shown`."""
_OWN = ("assistant", "agent")
"""Kinds of senders whose words are the assistant's, unless they are to be answered."""
_FRONT = 100
"""Characters of the notice that stands where messages are left out, at most."""
OPENING = ChatMessage("user", (Text("(The conversation begins with your own message.)"),))
"""Goes before it: many models take no conversation that the assistant begins."""
SUMMARY = "summary"
"""Who signs the notices that hold summaries; their mark is the number of messages of the record that they cover."""
_TOLD = "Tool results:"
"""What results of calls that stood in text begin with."""


def left_out_notice(count: int) -> ChatMessage:
    """Return the notice that stands in the place of `n` messages that are left out."""
    return ChatMessage(
        "user", (Text(f"({counted(count, 'earlier message is', 'earlier messages are')} not shown.)"),)
    )


def missing_from(chat: Sequence[ChatMessage], notices: Iterable[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Return those of some notices that a part of their conversation does not show."""
    shown = set(map(id, chat))
    return tuple(notice for notice in notices if id(notice) not in shown)


def to_chat(message: Message, *, answered: bool) -> list[ChatMessage]:
    """A message of the record as a model sees it; nothing where it has nothing to show.

    `answered` is True for the message that the model is to answer: it always goes as user or
    tool, because a trailing assistant message would be a prefill.
    """
    kind, parts = message.sender.kind, message.parts
    role: Role = "user"
    if kind == "tool" and (results := message.tool_results):
        return _results_to_chat(results)
    if kind == "system":
        parts = _marked(message)
    elif kind in _OWN and not answered:
        role, parts = "assistant", _sayable(message)
    else:
        parts = unmarked_parts(parts)
    return [make_chat_message(role, parts)] if parts else []


def _marked(message: Message) -> tuple[Part, ...]:
    """The parts of a system message, its words in a block that tells them from the user's; nobody else's has its marks.

    A summary repeats words of others, so it is no word of the system: it is data, with its origin.
    """
    if not message.text:
        return unmarked_parts(message.parts)
    if message.sender.name == SUMMARY:
        heading, _, words = unmarked(message.text).partition("\n")
        return (Text(f"{heading}\n{fence(words, message.origin or _CONVERSATION)}"),)
    others = tuple(part for part in message.parts if not isinstance(part, Text))
    return (Text(f"<system>\n{unmarked(message.text)}\n</system>"), *others)


def _sayable(message: Message) -> tuple[Part, ...]:
    """An answer's parts without empty text, or nothing where it said nothing.

    Of a cut one only the text, since its thinking has no signature. Providers take no thoughts without what followed.
    """
    parts = message.parts
    if len(parts) == 1 and not message.cut:
        return parts if _says_something(parts[0]) else ()
    if message.cut:
        parts = tuple(part for part in parts if isinstance(part, Text))
    said = tuple(part for part in parts if not isinstance(part, Text) or part.text)
    return said if any(map(_says_something, said)) else ()


def _says_something(part: Part) -> bool:
    return bool(part.text.strip()) if isinstance(part, Text) else not isinstance(part, Thinking)


def _results_to_chat(results: Sequence[ToolResult]) -> list[ChatMessage]:
    """Results of native calls as they are; those of calls that stood in text as text."""
    results = tuple(map(unmarked_result, results))
    if len(results) == 1 and results[0].native:  # the usual case
        return [make_chat_message("tool", results)]
    native = tuple([result for result in results if result.native])
    chat = [ChatMessage("tool", native)] if native else []
    if len(native) < len(results):
        told = [result for result in results if not result.native]
        lines = "\n\n".join(map(_told, told))
        chat.append(ChatMessage("user", (Text(f"{_TOLD}\n\n{lines}"),)))
    return chat


def _told(result: ToolResult) -> str:
    """A result as text; its call's name and id are the model's own words, which may hold what looks like another result."""
    return (
        f"[{printable.shown(result.tool_name)}] (ID: {printable.shown(result.call_id)})\n{_outcome(result)}"
    )


def _outcome(result: ToolResult) -> str:
    return result.text if result.error is not None else f"Success: {result.text}"


@attrs.frozen
class ShortTermMemory(Memory):
    """Shows the whole conversation, until it is over `max_tokens`: then its older half is left out at once.

    Leaving out much and seldom keeps the prompt's prefix, and with it the provider's cache, as it is between two cuts.
    The last notice of each source, such as that of the mode, stays in front of what is shown: it still holds.

    What does not fit even by itself, a message or an answer's calls with their results, ends its turn with `ContextOverflow`;
    with the next message a notice stands in its place.
    """

    max_tokens: int = attrs.field(default=180_000, validator=attrs.validators.ge(1))
    """The most that is sent of a conversation, with what a protocol says at its end, estimated by the rule of `room.py`;
    system prompt, tools and answer come on top."""

    def open_view(self) -> "ShortTermView":
        budget = self.max_tokens * CHARACTERS_A_TOKEN
        return _make_view(budget, budget)

    def restore_view(self, saved: bytes) -> "ShortTermView | None":
        if type(self) is not ShortTermMemory:  # its views may hold more
            return None
        form, budget, *fields = unpack(saved)
        is_ours = form == _FORM and budget == self.max_tokens * CHARACTERS_A_TOKEN
        return ShortTermView.restored(budget, fields) if is_ours else None


_FORM = "short term 1"
"""Of what a view saves; to be changed with whatever makes `add` show something else."""


@attrs.define(eq=False)
class ShortTermView(ModelView):
    """The conversation of one session, cut at the front where it got too long."""

    _budget: int
    """In characters."""
    _room: int
    """The same without what tells that there was more."""
    _chat: list[ChatMessage] = attrs.field(factory=list)
    """Only grows, as calls are shown it by `Shown`; whoever changes what stands in it makes another list."""
    _characters: int = 0
    _is_too_long: bool = False
    """True if what stands at the end and cannot be taken apart takes more than there is."""
    _left_out: int = 0
    _notices: dict[str, ChatMessage] | None = None
    """The last of each source."""
    _kept: tuple[ChatMessage, ...] = ()
    """Those of them that were said before the cut."""
    _settles: tuple[Part, ...] | None = None
    """The newest message's parts, where it goes as user only as long as it is the one to be answered."""

    def save(self) -> bytes | None:
        return pack(self._saved()) if type(self) is ShortTermView else None

    def _saved(self) -> tuple[object, ...]:
        """All that it holds, as plain data."""
        shown = [*self._kept, *self._chat]
        notices = self._notices or {}
        places = {id(said): place for place, said in enumerate(shown)} if notices else {}
        gone = [notice for notice in notices.values() if id(notice) not in places]
        places |= {id(notice): len(shown) + number for number, notice in enumerate(gone)}
        return (
            *(_FORM, self._budget, self._room, self._characters, self._is_too_long, self._left_out),
            None if self._settles is None else plain_parts(self._settles),
            *(plain_chat([*shown, *gone]), len(self._kept), len(self._chat)),
            [[source, places[id(notice)]] for source, notice in notices.items()],
        )

    @classmethod
    def restored(cls, budget: int, fields: Sequence[Any]) -> Self:
        """A view with what `save` wrote; a notice is the same object wherever it stands."""
        room, characters, is_too_long, left_out, settles, plain, kept, chat, notices = fields
        said = read_chat(plain)
        view = cls(budget, room, said[kept : kept + chat], characters)
        view._is_too_long, view._left_out = is_too_long, left_out
        view._kept = tuple(said[:kept])
        view._notices = {source: said[place] for source, place in notices} or None
        view._settles = None if settles is None else read_parts(settles)
        return view

    def add(self, message: Message, *, answered: bool = False) -> None:
        if self._settles is not None:
            self._settle(self._settles)
        for said in to_chat(message, answered=answered):
            size = count_characters(said.parts)
            if size * 2 > self._budget and said.role == "assistant":
                said = shortened(said)  # noqa: PLW2901 - what is shown of it
                size = count_characters(said.parts)
            self._chat.append(said)
            if self._is_too_long:
                self._leave_out_last()
            self._characters += size
            if answered:
                self._settles = message.parts if message.sender.kind in _OWN else None
            elif message.is_note:
                self._notices = {**(self._notices or {}), message.sender.name: said}
        if self._characters > self._room:
            self._make_room(self._room)

    def _settle(self, parts: tuple[Part, ...]) -> None:
        """Have what was to be answered stand as the assistant's own words, now that more has come."""
        self._chat = [*self._chat[:-1], ChatMessage("assistant", parts)]
        self._settles = None

    def _leave_out_last(self) -> None:
        """Put a notice in the place of what was too long, if the message that has just come does not belong to it."""
        if self._begins(len(self._chat) - 1):
            start = self._last(len(self._chat) - 1)
            gone = self._chat[start:-1]
            size = _size(gone)
            told = instead_of(gone, size, self._budget)
            self._chat = [*self._chat[:start], told, self._chat[-1]]
            self._characters += count_characters(told.parts) - size
            self._is_too_long = False

    def _last(self, end: int) -> int:
        """Where what cannot be taken apart begins that ends there: a message, or an answer with its results."""
        return next((place for place in reversed(range(end)) if self._begins(place)), 0)

    def check_room(self, tail: str = "") -> None:
        room = self._room - length(tail) if tail else self._room
        if self._characters > room:
            self._make_room(room)
            if self._characters > self._room - length(tail):
                raise overflow((*self._kept, *self._chat[self._last(len(self._chat)) :]), tail, self._budget)

    def shrink(self, share: float) -> bool:
        before = self._left_out
        self._leave_out(int(self._characters * share))
        return self._left_out > before

    def messages(self) -> Sequence[ChatMessage]:
        chat = self._chat
        if self._left_out:
            return Shown(chat, front=(left_out_notice(self._left_out - len(self._kept)), *self._kept))
        if len(chat) > _SHORT:
            return Shown(chat, front=(OPENING,) if chat[0].role == "assistant" else ())
        return (OPENING, *chat) if chat and chat[0].role == "assistant" else tuple(chat)

    def _make_room(self, room: int) -> None:
        """Leave out what is old; what is too long by itself is not what the others have to make room for."""
        last = _size(self._chat[self._last(len(self._chat)) :])
        self._is_too_long = last > self._budget
        too_long = last if last > room else 0
        if self._characters - too_long > room:
            self._leave_out(max(0, room) // 2 + too_long)

    def _leave_out(self, wanted: int) -> None:
        """Forget the oldest messages until it is `wanted` characters long, but never one of an answer and its results."""
        gone = 0
        for place in range(1, len(self._chat)):
            self._characters -= count_characters(self._chat[place - 1].parts)
            if self._begins(place):
                gone = place
                if self._characters <= wanted:
                    break
        self._cut(gone)

    def _cut(self, gone: int) -> None:
        """Leave out so many of the oldest messages."""
        self._chat = self._chat[gone:]  # what models were shown before stays as it was
        self._left_out += gone
        if gone:
            self._room = self._budget - _FRONT
        self._kept = missing_from(self._chat, (self._notices or {}).values())
        self._characters = sum(count_characters(message.parts) for message in (*self._kept, *self._chat))

    def _begins(self, place: int) -> bool:
        return begins(self._chat, place)


_make_view = maker(ShortTermView)


def begins(chat: Sequence[ChatMessage], place: int) -> bool:
    """Return True for a message that stands by itself, so that all before it can be left out."""
    message = chat[place]
    if not place:
        return True
    if message.role == "tool" or any(isinstance(part, ToolCall) for part in chat[place - 1].parts):
        return False
    return not (isinstance(text := message.parts[0], Text) and text.text.startswith(_TOLD))


def _size(messages: Iterable[ChatMessage]) -> int:
    return sum(count_characters(message.parts) for message in messages)
