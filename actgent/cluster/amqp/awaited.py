"""Something that the broker will say, and who waits for it."""

from collections.abc import Callable
from typing import Generic, TypeVar

import attrs
import trio

T = TypeVar("T")
MakeError = Callable[[], Exception]
"""Makes an error for each task that hears of a failure, so that they do not share a traceback."""


@attrs.define(eq=False)
class Awaited(Generic[T]):
    """One answer. Who waits may be cancelled: the answer is nobody's then."""

    _said: trio.Event = attrs.field(init=False, factory=trio.Event)
    _values: list[T] = attrs.field(init=False, factory=list)
    _error: MakeError | None = attrs.field(init=False, default=None)

    def fulfil(self, value: T) -> None:
        """Say what it is; only the first word counts."""
        if not self._said.is_set():
            self._values.append(value)
            self._said.set()

    def fail(self, error: MakeError) -> None:
        """Say that it will not come."""
        if not self._said.is_set():
            self._error = error
            self._said.set()

    async def wait(self) -> T:
        """Wait for it; raises its error."""
        await self._said.wait()
        if self._error is not None:
            raise self._error()
        return self._values[0]
