"""Time that a tool call has, and that stands still where the call waits for people or for its turn."""

from contextvars import ContextVar

import attrs
import trio


@attrs.define(eq=False)
class TimeLimit:
    """The deadline of a cancel scope, which stands still as long as anybody holds it."""

    _scope: trio.CancelScope
    _holds: int = attrs.field(default=0, init=False)
    _left: float = attrs.field(default=0.0, init=False)

    @property
    def deadline(self) -> float:
        """By trio's clock; infinite while it is held."""
        return self._scope.deadline

    def hold(self) -> None:
        """Have no time pass until `release`."""
        self._holds += 1
        if self._holds == 1:
            self._left = self._scope.deadline - trio.current_time()
            self._scope.deadline = float("inf")

    def release(self) -> None:
        """Let it pass again, unless somebody else holds it."""
        self._holds -= 1
        if not self._holds:
            self._scope.deadline = trio.current_time() + self._left


time_limits: ContextVar[tuple[TimeLimit, ...]] = ContextVar("time_limits", default=())
"""The time limits of the tool call that a task, or a thread that it waits for, runs, and of asks in it."""
