"""How much of the earlier conversation a session shows: a limit round any memory."""

from collections.abc import Sequence

import attrs

from actgent.memory.base import Memory, ModelView
from actgent.messages import ChatMessage, Message, Text, ToolCall


@attrs.frozen
class LimitedMemory(Memory):
    """A memory whose sessions may show only some messages from before the turn that runs."""

    inner: Memory

    def open_view(self) -> "LimitedView":
        return LimitedView(self.inner.open_view())


@attrs.define(eq=False)
class LimitedView(ModelView):
    """The view of one session. The turn that runs is always shown whole, so its prefix stays while it runs."""

    _inner: ModelView
    limit: int | None = None
    """Messages from before the turn; None shows all that the memory shows."""
    _turn: int = 0
    """How many messages of the inner view belong to the turn that runs."""

    def add(self, message: Message, *, answered: bool = False) -> None:
        before = len(self._inner.messages()) if self.limit is not None else 0
        self._inner.add(message, answered=answered)
        if self.limit is not None:
            added = len(self._inner.messages()) - before
            self._turn = max(added, 0) + (0 if message.correlation_id is None else self._turn)

    def messages(self) -> Sequence[ChatMessage]:
        shown = self._inner.messages()
        if self.limit is None or self._turn + self.limit >= len(shown):
            return shown
        start = len(shown) - self._turn - self.limit
        while start < len(shown) and not _stands_alone(shown, start):
            start += 1
        return (_note(start), *shown[start:])


def _stands_alone(chat: Sequence[ChatMessage], place: int) -> bool:
    """Whether what is before a message can be left out: it is a user's, and no call waits for it."""
    called = place > 0 and any(isinstance(part, ToolCall) for part in chat[place - 1].parts)
    return chat[place].role == "user" and not called


def _note(count: int) -> ChatMessage:
    return ChatMessage("user", (Text(f"({count} earlier messages are not shown.)"),))
