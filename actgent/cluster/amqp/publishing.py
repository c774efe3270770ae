"""What was published, and what the broker said to it."""

import functools
import itertools

import attrs

from actgent.errors.printable import quoted, shown

from .awaited import Awaited, MakeError
from .content import Content
from .failures import NotConfirmed, Unroutable


@attrs.define(eq=False)
class Confirms:
    """The messages of one channel that the broker has not confirmed yet, by their numbers."""

    waiting: dict[int, Awaited[None]] = attrs.field(init=False, factory=dict)
    """In the order in which they were sent."""
    _last: int = attrs.field(init=False, default=0)

    @property
    def next_number(self) -> int:
        """The number of the message that is sent next."""
        return self._last + 1

    def expect(self) -> Awaited[None]:
        """The next message was sent; returns what will be said of it."""
        self._last += 1
        awaited = self.waiting[self._last] = Awaited[None]()
        return awaited

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
        awaited = self.waiting.get(int(number)) if number.isascii() and number.isdigit() else None
        if awaited is not None:
            words = f"no queue takes a message to {quoted(content.method.routing_key)}: {shown(why)}"
            awaited.fail(functools.partial(Unroutable, words))

    def fail(self, error: MakeError) -> None:
        """Nothing more will be said."""
        for awaited in self.waiting.values():
            awaited.fail(error)
        self.waiting.clear()
