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
    ToolResult,
    make_chat_message,
)
from actgent.support.outside_text import fence
from actgent.support.quick_init import maker

from .base import Memory, ModelView
from .cutting import DEEP_SHARE, TEXT_RESULTS, Cut, Measure, begins, cut_conversation
from .marks import unmarked, unmarked_parts, unmarked_result
from .room import (
    CHARACTERS_A_TOKEN,
    count_characters,
    estimate_part_tokens,
    instead_of,
    length,
    overflow,
)
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
        chat.append(ChatMessage("user", (Text(f"{TEXT_RESULTS}\n\n{lines}"),)))
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
    """Shows the whole conversation, until it is over `max_tokens`: then it is cut to half of that at once.

    Cutting much and seldom keeps the prompt's prefix, and with it the provider's cache, as it is between two cuts. A cut shortens
    older tool results first, to 1,000 characters, and then leaves out the oldest messages, and the oldest calls with their
    results. The message that began the running turn, the user's latest message, and the last notice of each source, such as that
    of the mode, are always shown. The last five results of the running turn stay whole as long as they fit.

    A message, or an answer's calls with their results, that does not fit by itself ends its turn with `ContextOverflow`. With the
    next message a notice takes its place.
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


_FORM = "short term 2"
"""Of what a view saves; to be changed with whatever makes `add` show something else."""


@attrs.define(eq=False)
class ShortTermView(ModelView):
    """The conversation of one session, cut where it got too long."""

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
    _asked: tuple[ChatMessage, ...] = ()
    """The user's latest message, with those that are answered together with it."""
    _cause: tuple[ChatMessage, ...] = ()
    """The message that began the running turn, if somebody else than the user sent it."""
    _tasks: tuple[ChatMessage, ...] = ()
    """Messages of `_asked` and `_cause` from before the cut, which are shown in front."""
    _kept: tuple[ChatMessage, ...] = ()
    """Notices from before the cut, which are shown in front."""
    _settles: tuple[Part, ...] | None = None
    """The newest message's parts, where it goes as user only as long as it is the one to be answered."""

    def save(self) -> bytes | None:
        return pack(self._saved()) if type(self) is ShortTermView else None

    def _saved(self) -> tuple[object, ...]:
        """All that it holds, as plain data."""
        shown = [*self._tasks, *self._kept, *self._chat]
        notices = self._notices or {}
        places = {id(said): place for place, said in enumerate(shown)}
        gone = [said for said in (*notices.values(), *self._asked, *self._cause) if id(said) not in places]
        places |= {id(said): len(shown) + number for number, said in enumerate(gone)}
        return (
            *(_FORM, self._budget, self._room, self._characters, self._is_too_long, self._left_out),
            None if self._settles is None else plain_parts(self._settles),
            *(plain_chat([*shown, *gone]), len(self._tasks), len(self._kept), len(self._chat)),
            [[source, places[id(notice)]] for source, notice in notices.items()],
            *([places[id(said)] for said in each] for each in (self._asked, self._cause)),
        )

    @classmethod
    def restored(cls, budget: int, fields: Sequence[Any]) -> Self:
        """A view with what `save` wrote; a notice is the same object wherever it stands."""
        room, characters, is_too_long, left_out, settles, plain, tasks, kept, chat, *places = fields
        notices, asked, cause = places
        said = read_chat(plain)
        view = cls(budget, room, said[tasks + kept : tasks + kept + chat], characters)
        view._is_too_long, view._left_out = is_too_long, left_out
        view._tasks, view._kept = tuple(said[:tasks]), tuple(said[tasks : tasks + kept])
        view._notices = {source: said[place] for source, place in notices} or None
        view._asked = tuple([said[place] for place in asked])
        view._cause = tuple([said[place] for place in cause])
        view._settles = None if settles is None else read_parts(settles)
        return view

    def add(self, message: Message, *, answered: bool = False) -> None:
        if self._settles is not None:
            self._settle(self._settles)
        kind = message.sender.kind
        for said in to_chat(message, answered=answered):
            size = count_characters(said.parts)
            if size * 2 > self._budget and said.role == "assistant":
                said = shortened(said)  # noqa: PLW2901 - what is shown of it
                size = count_characters(said.parts)
            self._chat.append(said)
            if self._is_too_long:
                self._leave_out_last()
            self._characters += size
            if kind == "user":
                is_joined = len(self._chat) > 1 and self._asked and self._chat[-2] is self._asked[-1]
                self._asked = (*self._asked, said) if is_joined else (said,)
                self._cause = ()
            elif answered and message.causation_id is None:
                self._cause = (said,)
            if answered:
                self._settles = message.parts if kind in _OWN else None
            elif message.is_note:
                self._notices = {**(self._notices or {}), message.sender.name: said}
        if self._characters > self._room:
            self._make_room(self._room)

    def _settle(self, parts: tuple[Part, ...]) -> None:
        """Have what was to be answered stand as the assistant's own words, now that more has come."""
        said, last = ChatMessage("assistant", parts), self._chat[-1]
        self._chat = [*self._chat[:-1], said]
        if self._cause and self._cause[-1] is last:
            self._cause = (said,)
        self._settles = None

    def _leave_out_last(self) -> None:
        """Put a notice in the place of what was too long, if the message that has just come does not belong to it."""
        if self._begins(len(self._chat) - 1):
            start = self._last(len(self._chat) - 1)
            gone = self._chat[start:-1]
            size = _size(gone)
            told = instead_of(gone, size, self._budget)
            self._chat = [*self._chat[:start], told, self._chat[-1]]
            self._asked = tuple([told if said in gone else said for said in self._asked])
            self._cause = tuple([told if said in gone else said for said in self._cause])
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
                last = self._chat[self._last(len(self._chat)) :]
                shown = set(map(id, last))
                front = [said for said in self._pinned() if id(said) not in shown]
                raise overflow((*front, *last), tail, self._budget)

    def shrink(self, share: float) -> bool:
        size = sum(estimate_part_tokens(said.parts) for said in self._shown())
        if self._shorten(size * share, estimate_part_tokens):
            return True
        return self._shorten(size * max(share, DEEP_SHARE), estimate_part_tokens, is_deep=True)

    def messages(self) -> Sequence[ChatMessage]:
        chat = self._chat
        if self._left_out:
            return Shown(chat, front=self._front())
        if len(chat) > _SHORT:
            return Shown(chat, front=(OPENING,) if chat[0].role == "assistant" else ())
        return (OPENING, *chat) if chat and chat[0].role == "assistant" else tuple(chat)

    def _front(self) -> tuple[ChatMessage, ...]:
        """Return the messages that precede a cut conversation."""
        tasks, kept = self._tasks, self._kept
        told = left_out_notice(self._left_out - len(tasks) - len(kept))
        if tasks and tasks[0].role == "user":
            return (*tasks, told, *kept)
        return (told, *kept, *tasks)

    def _shown(self) -> Sequence[ChatMessage]:
        """Return all messages that are shown, without the notice that there was more."""
        return (*self._tasks, *self._kept, *self._chat)

    def _pinned(self) -> tuple[ChatMessage, ...]:
        """Return the messages that a cut never omits."""
        return (*self._asked, *self._cause, *(self._notices or {}).values())

    def _make_room(self, room: int) -> None:
        """Leave out what is old; what is too long by itself is not what the others have to make room for."""
        last = _size(self._chat[self._last(len(self._chat)) :])
        self._is_too_long = last > self._budget
        too_long = last if last > room else 0
        if self._characters - too_long > room:
            self._shorten(max(0, room) // 2 + too_long, _count)
            if self._characters - too_long > room:
                wanted = room - _FRONT + too_long
                self._shorten(wanted, _count, is_deep=True, is_last_fixed=too_long > 0)

    def _shorten(
        self, wanted: float, measure: Measure, *, is_deep: bool = False, is_last_fixed: bool = True
    ) -> bool:
        """Cut the conversation to about `wanted`, in the unit of `measure`; return False if nothing can be cut."""
        asked = self._asked[-1:] if is_deep else self._asked
        pinned = set(map(id, (*asked, *self._cause, *(self._notices or {}).values())))
        front = [said for said in (*self._tasks, *self._kept) if id(said) in pinned]
        found = cut_conversation(
            self._chat,
            wanted - sum(measure(said.parts) for said in front),
            measure,
            pinned=pinned,
            task=set(map(id, (*self._asked, *self._cause))),
            is_deep=is_deep,
            is_last_fixed=is_last_fixed,
        )
        if found is None and len(front) == len(self._tasks) + len(self._kept):
            return False
        if found is None:  # messages kept for an earlier task may go, since a newer message is answered now
            self._keep_pinned()
            return True
        if is_deep:
            self._asked = asked
        self._take_over(found)
        return True

    def _take_over(self, found: Cut) -> None:
        """Show the conversation as a cut left it."""
        self._chat = found.chat  # the list that models received before stays unchanged
        self._left_out += found.left_out
        if found.left_out:
            self._room = self._budget - _FRONT
        self._keep_pinned()

    def _cut(self, gone: int) -> None:
        """Leave out so many of the oldest messages."""
        if gone:
            self._take_over(Cut(self._chat[gone:], gone, {}))

    def _keep_pinned(self) -> None:
        """Put pinned messages that the cut omitted before the kept ones."""
        self._tasks = missing_from(self._chat, (*self._asked, *self._cause))
        self._kept = missing_from(self._chat, (self._notices or {}).values())
        self._characters = _size(self._shown())

    def _begins(self, place: int) -> bool:
        return begins(self._chat, place)


def _count(parts: Sequence[Part]) -> float:
    return count_characters(parts)


_make_view = maker(ShortTermView)


def _size(messages: Iterable[ChatMessage]) -> int:
    return sum(count_characters(message.parts) for message in messages)
