"""One function on its way to trio's thread, and its result on the way back.

Its states, all but the first changed in trio's thread:

    made ──begin──► running ──► ended      `outcome` is there, and whoever waits is told, once
      └────cancel or refuse────► ended     it never began
"""

from collections.abc import Callable, Coroutine
from contextvars import Context
from inspect import iscoroutine
from typing import Any, Generic, TypeVar

import outcome
import trio

from actgent.support.foreign import failure_of

T = TypeVar("T")


class PortalCall(Generic[T]):
    """A call of a function, sync or async, that another thread waits for."""

    __slots__ = ("_fn", "_scope", "_tell", "context", "outcome")

    def __init__(self, fn: Callable[[], Any], context: Context, tell: Callable[[], object]) -> None:
        """Args: `context` has the caller's variables; `tell` is called once, in any thread, when it has ended."""
        self._fn = fn
        self._tell = tell
        self._scope: trio.CancelScope | None = None
        self.context = context
        self.outcome: outcome.Outcome[T] | None = None

    def begin(self, closed: Callable[[], Exception]) -> None:
        """Call the function, and finish what it returns in a task; `closed` makes the error if that is cancelled with all.

        The task is no child of another: with the caller's context variables it is in the turn that the caller is in.
        """
        if self.outcome is not None:
            return
        try:
            result = self.context.run(self._fn)
        except BaseException as error:  # noqa: ASYNC103, BLE001 - the caller's, in its own thread
            self._end(outcome.Error(error))
            return  # noqa: ASYNC104 - no task of trio is cancelled here
        if iscoroutine(result):
            self._scope = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._finish, result, closed, context=self.context)
        else:
            self._end(outcome.Value(result))

    async def _finish(self, work: Coroutine[Any, Any, T], closed: Callable[[], Exception]) -> None:
        assert self._scope is not None  # noqa: S101 - begin() made it
        result: outcome.Outcome[T] | None = None
        try:
            with self._scope:
                result = outcome.Value(await work)
        except trio.Cancelled as error:  # noqa: ASYNC103 - it is raised again where it is ours
            result = outcome.Error(
                failure_of(error, "call", "of a portal")
            )  # raises it where we are cancelled
        except BaseException as error:  # noqa: ASYNC103, BLE001 - the caller's, in its own thread
            result = outcome.Error(error)
        finally:
            self._end(result or outcome.Error(closed()))

    def cancel(self) -> None:
        """Stop it where it is; nothing happens if it has ended."""
        if self._scope is not None:
            self._scope.cancel()
        elif self.outcome is None:
            self.refuse(RuntimeError("cancelled before it began"))

    def refuse(self, error: Exception) -> None:
        """End it without having begun."""
        if self.outcome is None:
            self._end(outcome.Error(error))

    def _end(self, result: outcome.Outcome[T]) -> None:
        self.outcome = result
        self._tell()

    def result(self) -> T:
        """Return what the function returned, or raise what it raised, with the traceback of trio's thread."""
        assert self.outcome is not None  # noqa: S101 - asked once it has ended
        return self.outcome.unwrap()
