"""Short-term memory: the conversation itself, within the model's context budget."""

from collections.abc import Iterable, Sequence

import attrs

from actgent.messages import (
    ChatMessage,
    Message,
    Part,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)

from .base import Memory, ModelView

CHARACTERS_A_TOKEN = 4
"""A rough estimate that holds for English text; only the budget depends on it."""
MEDIA_CHARACTERS = 4000
"""What a picture, document or opaque block is counted as."""
_OWN = ("assistant", "agent")
"""Kinds of senders whose words are the assistant's, unless they are to be answered."""
_OPENING = ChatMessage("user", (Text("(The conversation begins with your own message.)"),))
"""Goes before it: many models take no conversation that the assistant begins."""
_TOLD = "Tool results:"
"""What results of calls that stood in text begin with."""


def count_characters(parts: Sequence[Part]) -> int:
    """How much room some parts take, about."""
    characters = 0
    for part in parts:
        if isinstance(part, (Text, Thinking, ToolResult)):
            characters += len(part.text)
        elif isinstance(part, ToolCall):
            characters += len(part.name) + len(str(part.arguments))
        else:
            characters += MEDIA_CHARACTERS
    return characters


def left_out_note(count: int) -> ChatMessage:
    """What stands where so many messages are left out."""
    return ChatMessage("user", (Text(f"({count} earlier messages are not shown.)"),))


def missing_from(chat: Sequence[ChatMessage], notes: Iterable[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Those of some notes that a part of their conversation does not show."""
    shown = set(map(id, chat))
    return tuple(note for note in notes if id(note) not in shown)


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
    return [ChatMessage(role, parts)] if parts else []


def _marked(message: Message) -> tuple[Part, ...]:
    """The parts of a system message, its words in a block that tells them from the user's."""
    if not message.text:
        return message.parts
    others = tuple(part for part in message.parts if not isinstance(part, Text))
    return (Text(f"<system>\n{message.text}\n</system>"), *others)


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
    native = tuple([result for result in results if result.native])
    chat = [ChatMessage("tool", native)] if native else []
    if len(native) < len(results):
        told = [result for result in results if not result.native]
        lines = "\n\n".join(f"[{r.tool_name}] (ID: {r.call_id})\n{_outcome(r)}" for r in told)
        chat.append(ChatMessage("user", (Text(f"{_TOLD}\n\n{lines}"),)))
    return chat


def _outcome(result: ToolResult) -> str:
    return result.text if result.error is not None else f"Success: {result.content}"


@attrs.frozen
class ShortTermMemory(Memory):
    """Shows the whole conversation, until it is over `max_tokens`: then its older half is left out at once.

    Leaving out much and seldom keeps the prompt's prefix, and with it the provider's cache, as it is between two cuts.
    The last note of each source, such as that of the mode, stays in front of what is shown: it still holds.
    """

    max_tokens: int = attrs.field(default=180_000, validator=attrs.validators.ge(1))
    """The context budget, estimated; system prompt, tools and answer come on top."""

    def open_view(self) -> "ShortTermView":
        return ShortTermView(self.max_tokens * CHARACTERS_A_TOKEN)


@attrs.define(eq=False)
class ShortTermView(ModelView):
    """The conversation of one session, cut at the front where it got too long."""

    _budget: int
    """In characters."""
    _chat: list[ChatMessage] = attrs.field(factory=list)
    _characters: int = 0
    _left_out: int = 0
    _notes: dict[str, ChatMessage] | None = None
    """The last of each source."""
    _kept: tuple[ChatMessage, ...] = ()
    """Those of them that were said before the cut."""
    _settles: bool = False
    """Whether the newest message goes as user only as long as it is the one to be answered."""

    def add(self, message: Message, *, answered: bool = False) -> None:
        if self._settles:
            self._chat[-1] = ChatMessage("assistant", self._chat[-1].parts)
            self._settles = False
        for said in to_chat(message, answered=answered):
            self._chat.append(said)
            self._characters += count_characters(said.parts)
            if answered:
                self._settles = message.sender.kind in _OWN
            elif message.is_note:
                self._notes = {**(self._notes or {}), message.sender.name: said}
        if self._characters > self._budget:
            self._leave_out()

    def messages(self) -> Sequence[ChatMessage]:
        if self._left_out:
            return (left_out_note(self._left_out - len(self._kept)), *self._kept, *self._chat)
        if self._chat and self._chat[0].role == "assistant":
            return (_OPENING, *self._chat)
        return tuple(self._chat)

    def _leave_out(self) -> None:
        """Forget the oldest messages until half of the budget is free, but never one of an answer and its results."""
        gone = 0
        for place in range(1, len(self._chat)):
            self._characters -= count_characters(self._chat[place - 1].parts)
            if self._begins(place):
                gone = place
                if self._characters <= self._budget // 2:
                    break
        del self._chat[:gone]
        self._left_out += gone
        self._kept = missing_from(self._chat, (self._notes or {}).values())
        self._characters = sum(count_characters(message.parts) for message in (*self._kept, *self._chat))

    def _begins(self, place: int) -> bool:
        """Whether a message stands by itself, so that what is before it can be left out."""
        message = self._chat[place]
        if message.role == "tool" or any(isinstance(part, ToolCall) for part in self._chat[place - 1].parts):
            return False
        return not (isinstance(text := message.parts[0], Text) and text.text.startswith(_TOLD))
