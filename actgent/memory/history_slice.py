"""`HistorySlice`: the messages of one request, without a copy of the conversation.

A conversation is only appended to, and each model call receives all of it. A tuple per call would cost time proportional to
the conversation. So a call receives the list itself and its length at that time; messages added later are outside the slice.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import overload

from actgent.messages import ChatMessage


class HistorySlice(Sequence[ChatMessage]):
    """Immutable sequence of messages: a front, the first `count` messages of a list that only grows, and an end."""

    __slots__ = ("_count", "_end", "_front", "_list", "_start")

    def __init__(
        self,
        messages: list[ChatMessage],
        *,
        front: tuple[ChatMessage, ...] = (),
        end: tuple[ChatMessage, ...] = (),
        count: int | None = None,
    ) -> None:
        self._front = front
        self._start = len(front)
        self._list = messages
        self._count = len(messages) if count is None else count
        self._end = end

    def __len__(self) -> int:
        return self._start + self._count + len(self._end)

    @overload
    def __getitem__(self, index: int) -> ChatMessage: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ChatMessage, ...]: ...
    def __getitem__(self, index: int | slice) -> ChatMessage | tuple[ChatMessage, ...]:
        if isinstance(index, slice):
            return tuple([self._message_at(each) for each in range(len(self))[index]])
        return self._message_at(range(len(self))[index])

    def _message_at(self, index: int) -> ChatMessage:
        if index < self._start:
            return self._front[index]
        index -= self._start
        return self._list[index] if index < self._count else self._end[index - self._count]

    def __iter__(self) -> Iterator[ChatMessage]:
        return chain(self._front, islice(self._list, self._count), self._end)

    def __add__(self, others: Sequence[ChatMessage]) -> "HistorySlice":
        """Return a slice with the messages `others` appended to this one."""
        end = (*self._end, *others)
        return HistorySlice(self._list, front=self._front, end=end, count=self._count)

    def with_front(self, others: Sequence[ChatMessage]) -> "HistorySlice":
        """Return a new slice that has the messages `others` before the messages of this slice."""
        return HistorySlice(self._list, front=(*others, *self._front), end=self._end, count=self._count)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HistorySlice | tuple | list):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))


def followed_by(messages: Sequence[ChatMessage], *others: ChatMessage) -> Sequence[ChatMessage]:
    """Return `messages` followed by `others`, without a copy if possible."""
    return messages + others if isinstance(messages, HistorySlice) else (*messages, *others)


def preceded_by(messages: Sequence[ChatMessage], *others: ChatMessage) -> Sequence[ChatMessage]:
    """Return `others` followed by `messages`, without a copy if possible."""
    return messages.with_front(others) if isinstance(messages, HistorySlice) else (*others, *messages)
