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

    _is_said: bool = attrs.field(init=False, default=False)
    _value: T = attrs.field(init=False)
    _error: MakeError | None = attrs.field(init=False, default=None)
    _heard: trio.Event | None = attrs.field(init=False, default=None)
    """There once somebody waits."""

    def fulfil(self, value: T) -> None:
        """Say what it is; only the first word counts."""
        if not self._is_said:
            self._value = value
            self._say()

    def fail(self, error: MakeError) -> None:
        """Say that it will not come."""
        if not self._is_said:
            self._error = error
            self._say()

    def _say(self) -> None:
        self._is_said = True
        if self._heard is not None:
            self._heard.set()

    async def wait(self) -> T:
        """Wait for it; raises its error."""
        if self._is_said:
            await trio.lowlevel.checkpoint()
        else:
            if self._heard is None:
                self._heard = trio.Event()
            await self._heard.wait()
        if self._error is not None:
            raise self._error()
        return self._value
