"""Time limits of tool calls that pause while the call waits for an approval or for a free slot."""

from contextvars import ContextVar

import attrs
import trio

from actgent.support.attrs_class_repr import FieldRepr


@attrs.define(eq=False, repr=False)
class TimeLimit(FieldRepr):
    """Time limit of a cancel scope that can be paused. Pauses nest."""

    _scope: trio.CancelScope
    _holds: int = attrs.field(default=0, init=False)
    _left: float = attrs.field(default=0.0, init=False)

    @property
    def deadline(self) -> float:
        """Time at which the time limit expires, in seconds of trio's clock; infinite while the limit is paused."""
        return self._scope.deadline

    def hold(self) -> None:
        """Pause the time limit until `release` has been called as often as `hold`."""
        self._holds += 1
        if self._holds == 1:
            self._left = self._scope.deadline - trio.current_time()
            self._scope.deadline = float("inf")

    def release(self) -> None:
        """End one pause. When the last pause ends, the time that was left at the first `hold` continues to run."""
        self._holds -= 1
        if not self._holds:
            self._scope.deadline = trio.current_time() + self._left


time_limits: ContextVar[tuple[TimeLimit, ...]] = ContextVar("time_limits", default=())
"""Time limits of the current tool call and of the calls that contain it. Worker threads inherit them."""
