"""What a model is shown of a conversation, without a copy of it.

A conversation grows at its end only, and each model call is shown all of it. A tuple a call would cost as much as the
conversation is long, so a call gets the list itself and how much of it counts: what is said later stands behind that.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import overload

from actgent.messages import ChatMessage


class Shown(Sequence[ChatMessage]):
    """Some messages, the first ones of a list whose beginning nobody changes, and some more; read like a tuple."""

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
    def __getitem__(self, place: int) -> ChatMessage: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[ChatMessage, ...]: ...
    def __getitem__(self, place: int | slice) -> ChatMessage | tuple[ChatMessage, ...]:
        if isinstance(place, slice):
            return tuple([self._at(each) for each in range(len(self))[place]])
        return self._at(range(len(self))[place])

    def _at(self, place: int) -> ChatMessage:
        if place < self._start:
            return self._front[place]
        place -= self._start
        return self._list[place] if place < self._count else self._end[place - self._count]

    def __iter__(self) -> Iterator[ChatMessage]:
        return chain(self._front, islice(self._list, self._count), self._end)

    def __add__(self, others: Sequence[ChatMessage]) -> "Shown":
        """The same with some messages behind it."""
        end = (*self._end, *others)
        return Shown(self._list, front=self._front, end=end, count=self._count)

    def behind(self, others: Sequence[ChatMessage]) -> "Shown":
        """Return the same with some messages before it."""
        return Shown(self._list, front=(*others, *self._front), end=self._end, count=self._count)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shown | tuple | list):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))


def followed_by(messages: Sequence[ChatMessage], *others: ChatMessage) -> Sequence[ChatMessage]:
    """Messages, and some more behind them."""
    return messages + others if isinstance(messages, Shown) else (*messages, *others)


def preceded_by(messages: Sequence[ChatMessage], *others: ChatMessage) -> Sequence[ChatMessage]:
    """Return messages with some more before them."""
    return messages.behind(others) if isinstance(messages, Shown) else (*others, *messages)
