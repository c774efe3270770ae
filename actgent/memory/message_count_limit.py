"""Memory wrapper that shows at most N earlier messages of the conversation."""

from collections.abc import Iterable, Sequence

import attrs

from actgent.memory.memory_interface import Memory, ModelView
from actgent.memory.short_term_memory import left_out_notice, missing_from, to_chat
from actgent.messages import ChatMessage, Message, ToolCall


@attrs.frozen
class LimitedMemory(Memory):
    """A memory whose sessions may show only the newest N messages of the conversation from before the current turn."""

    inner: Memory

    def open_view(self) -> "LimitedView":
        return LimitedView(self.inner.open_view())


@attrs.define(eq=False)
class LimitedView(ModelView):
    """View of one session. The current turn is always shown completely, so its prefix stays the same while it runs.

    The limit counts user messages and final answers. Plans, calls and results between two counted messages are shown with them. If
    messages are omitted, the last notice of each source, such as that of the mode, is still shown.
    """

    _inner: ModelView
    limit: int | None = None
    """Maximum number of user messages and final answers before the current turn; None shows all messages of the inner memory."""
    _turn: list[tuple[int, bool]] = attrs.field(factory=list)
    """Messages of the current turn.
    Each has two values: the number of shown messages that it became, and True if it is an answer.
    """
    _parts: list[int] = attrs.field(factory=list)
    """Two message counts per earlier turn, one after the other: messages before the turn's final answer, and messages from the final answer on."""
    _turn_message: ChatMessage | None = None
    """The message that began the current turn."""
    _notices: list[tuple[str, ChatMessage]] = attrs.field(factory=list)
    """All system notices of the session, each with the name of its source."""

    def add(self, message: Message, *, answered: bool = False) -> None:
        self._inner.add(message, answered=answered)
        if message.is_note:
            self._notices.append((message.sender.name, self._inner.messages()[-1]))
        elif message.correlation_id is None:
            self._end_turn()
        if not self._turn and (shown := self._inner.messages()):
            self._turn_message = shown[-1]
        is_answer = message.sender.kind == "assistant" and message.correlation_id is not None
        self._turn.append((len(to_chat(message, answered=answered)), is_answer))

    def _end_turn(self) -> None:
        """Count the current turn as an earlier turn.

        If the turn has no answer, do nothing, because its message is still to be answered.
        """
        answers = [index for index, (_, is_answer) in enumerate(self._turn) if is_answer]
        if answers:
            sizes = [size for size, _ in self._turn]
            self._parts += [sum(sizes[: answers[-1]]), sum(sizes[answers[-1] :])]
            self._turn = []

    def check_room(self, tail: str = "") -> None:
        self._inner.check_room(tail)

    def shrink(self, share: float) -> bool:
        return self._inner.shrink(share)

    def messages(self) -> Sequence[ChatMessage]:
        shown = self._inner.messages()
        if self.limit is None:
            return shown
        turn = self._find_turn(shown)
        start = max(0, turn - sum(self._parts[max(0, len(self._parts) - self.limit) :]))
        while start < turn and not _starts_without_history(shown, start):
            start += 1
        if start == 0:
            return shown
        notices = missing_from(shown[start:], self._notices_in(shown[:turn]))
        return (left_out_notice(start - len(notices)), *notices, *shown[start:])

    def _find_turn(self, shown: Sequence[ChatMessage]) -> int:
        """Return the index of the first message of the current turn. It stays even if later messages are omitted."""
        if self._turn_message is not None:
            for index, message in enumerate(shown):
                if message.parts is self._turn_message.parts:
                    return index
        return max(0, len(shown) - sum(size for size, _ in self._turn))

    def _notices_in(self, shown: Sequence[ChatMessage]) -> Iterable[ChatMessage]:
        """Return the notices among the messages: only the last notice of each source."""
        ids = set(map(id, shown))
        return {source: notice for source, notice in self._notices if id(notice) in ids}.values()


def _starts_without_history(chat: Sequence[ChatMessage], index: int) -> bool:
    """Return True if the message at index `index` is from a user, so that a request may omit all messages before it.

    Return False for results of tool calls, which also have the role user in some protocols.
    """
    called = index > 0 and any(isinstance(part, ToolCall) for part in chat[index - 1].parts)
    return chat[index].role == "user" and not called
