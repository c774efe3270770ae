"""What was published, and what the broker said to it."""

import functools
import itertools
from typing import Protocol

import attrs

from actgent.errors.printable import quoted, shown

from .awaited import Awaited, MakeError
from .content import Content
from .failures import NotConfirmed, Unroutable


class Hearer(Protocol):
    """Hears what the broker says to a message, once."""

    def fulfil(self, value: None, /) -> object:
        """A queue has it."""

    def fail(self, error: MakeError, /) -> object:
        """No queue has it, or nobody knows."""


@attrs.define(eq=False)
class Confirms:
    """The messages of one channel that the broker has not confirmed yet, by their numbers."""

    waiting: dict[int, Hearer] = attrs.field(init=False, factory=dict)
    """In the order in which they were sent."""
    _last: int = attrs.field(init=False, default=0)

    @property
    def next_number(self) -> int:
        """The number of the message that is sent next."""
        return self._last + 1

    def expect(self) -> Awaited[None]:
        """The next message was sent; returns what will be said of it."""
        awaited = Awaited[None]()
        self.expect_for(awaited)
        return awaited

    def expect_for(self, hearer: Hearer) -> None:
        """The next message was sent, and this is who hears what is said of it."""
        self._last += 1
        self.waiting[self._last] = hearer

    def settle(self, tag: int, *, multiple: bool, is_taken: bool) -> None:
        """The broker has taken a message, or not; with `multiple` all up to it."""
        for each in self._up_to(tag) if multiple else [tag]:
            awaited = self.waiting.pop(each, None)
            if awaited is None:
                continue
            if is_taken:
                awaited.fulfil(None)
            else:
                awaited.fail(functools.partial(NotConfirmed, "the broker did not take the message"))

    def _up_to(self, tag: int) -> list[int]:
        return list(itertools.takewhile(lambda each: each <= tag, self.waiting))

    def note_return(self, content: Content, why: str) -> None:
        """A message comes back that no queue takes: its sender hears of it, and then it is confirmed."""
        number = content.properties.correlation_id or ""
        awaited = self.waiting.pop(int(number), None) if number.isascii() and number.isdigit() else None
        if awaited is not None:
            words = f"no queue takes a message to {quoted(content.method.routing_key)}: {shown(why)}"
            awaited.fail(functools.partial(Unroutable, words))

    def fail(self, error: MakeError) -> None:
        """Nothing more will be said."""
        for awaited in self.waiting.values():
            awaited.fail(error)
        self.waiting.clear()
