"""Wraps a memory to show at most N earlier messages of the conversation."""

from collections.abc import Iterable, Sequence

import attrs

from actgent.memory.base import Memory, ModelView
from actgent.memory.short_term import left_out_notice, missing_from
from actgent.messages import ChatMessage, Message, ToolCall


@attrs.frozen
class LimitedMemory(Memory):
    """A memory whose sessions may show only the newest N messages of the conversation from before the current turn."""

    inner: Memory

    def open_view(self) -> "LimitedView":
        return LimitedView(self.inner.open_view())


@attrs.define(eq=False)
class LimitedView(ModelView):
    """The view of one session. The current turn is always shown whole, so its prefix stays while it runs.

    The limit counts the user's messages and the final answers. Plans, calls and results between two counted messages are shown
    with them. If messages are left out, the last notice of each source, such as that of the mode, is still shown.
    """

    _inner: ModelView
    limit: int | None = None
    """Maximum number of user messages and final answers from before the turn; None shows all that the memory shows."""
    _turn: int = 0
    """How many messages of the inner view belong to the turn that runs."""
    _notices: list[tuple[str, ChatMessage]] = attrs.field(factory=list)
    """All of them, with their sources."""
    _requests: list[ChatMessage] = attrs.field(factory=list)
    """The messages that began a turn. The answer before each one is final."""

    def add(self, message: Message, *, answered: bool = False) -> None:
        before = len(self._inner.messages()) if self.limit is not None else 0
        self._inner.add(message, answered=answered)
        begins = message.correlation_id is None and not message.is_note
        if message.is_note:
            self._notices.append((message.sender.name, self._inner.messages()[-1]))
        elif begins:
            self._requests.extend(self._inner.messages()[-1:])
        if self.limit is not None:
            added = len(self._inner.messages()) - before
            self._turn = max(added, 0) + (0 if begins else self._turn)

    def check_room(self, tail: str = "") -> None:
        self._inner.check_room(tail)

    def shrink(self, share: float) -> bool:
        before = len(self._inner.messages())
        is_cut = self._inner.shrink(share)
        self._turn = max(0, self._turn - max(0, before - len(self._inner.messages()) - self._older(before)))
        return is_cut

    def _older(self, shown: int) -> int:
        """Return how many of the messages of the inner view are from before the turn."""
        return max(0, shown - self._turn)

    def messages(self) -> Sequence[ChatMessage]:
        shown = self._inner.messages()
        if self.limit is None or (start := self._start(shown, self.limit)) == 0:
            return shown
        notices = missing_from(shown[start:], self._notices_in(shown[: len(shown) - self._turn]))
        return (left_out_notice(start - len(notices)), *notices, *shown[start:])

    def _start(self, shown: Sequence[ChatMessage], limit: int) -> int:
        """Return the place of the first message to show if `limit` messages of the conversation from before the turn are shown."""
        requests = set(map(id, self._requests))
        start = turn = self._older(len(shown))
        for place in reversed(range(start)):
            is_final = shown[place].role == "assistant" and (
                place + 1 == turn or id(shown[place + 1]) in requests
            )
            if is_final or id(shown[place]) in requests:
                if limit == 0:
                    break
                limit -= 1
            start = place
        while start < len(shown) and not _stands_alone(shown, start):
            start += 1
        return start

    def _notices_in(self, shown: Sequence[ChatMessage]) -> Iterable[ChatMessage]:
        """The last notice of each source among these."""
        ids = set(map(id, shown))
        return {source: notice for source, notice in self._notices if id(notice) in ids}.values()


def _stands_alone(chat: Sequence[ChatMessage], place: int) -> bool:
    """Return True if what is before a message can be left out: it is a user's, and no call waits for it."""
    called = place > 0 and any(isinstance(part, ToolCall) for part in chat[place - 1].parts)
    return chat[place].role == "user" and not called
