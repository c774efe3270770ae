"""A function call in trio's thread, and its result for the calling thread.

States; all but the first change in trio's thread:

    created --begin--> running --> ended     `outcome` is set, then the completion callback is called once
       +-----cancel or refuse----> ended     the function was not called
"""

from collections.abc import Callable, Coroutine
from contextvars import Context
from inspect import iscoroutine
from typing import Any, Generic, TypeVar

import outcome
import trio

from actgent.support.user_code_calls import convert_user_error

T = TypeVar("T")


class PortalCall(Generic[T]):
    """A call of a sync or async function in trio's thread."""

    __slots__ = ("_fn", "_notify", "_scope", "context", "outcome")

    def __init__(self, fn: Callable[[], Any], context: Context, notify: Callable[[], object]) -> None:
        """Create a call.

        Args:
            fn: Function to call without arguments.
            context: Context variables of the caller.
            notify: Called once, in any thread, when the call has ended.
        """
        self._fn = fn
        self._notify = notify
        self._scope: trio.CancelScope | None = None
        self.context = context
        self.outcome: outcome.Outcome[T] | None = None

    def begin(self, closed: Callable[[], Exception]) -> None:
        """Call the function in trio's thread, and run a returned coroutine in a system task, which has no parent task.

        Does nothing if the call was cancelled before. The caller's context variables make it part of the
        caller's turn.

        Args:
            closed: Returns the error for the caller if the portal closes during the call.
        """
        if self.outcome is not None:
            return
        try:
            result = self.context.run(self._fn)
        except BaseException as error:  # noqa: ASYNC103, BLE001 - raised to the caller in its own thread
            self._end(outcome.Error(error))
            return  # noqa: ASYNC104 - no task of trio is cancelled here
        if iscoroutine(result):
            self._scope = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._finish, result, closed, context=self.context)
        else:
            self._end(outcome.Value(result))

    async def _finish(self, work: Coroutine[Any, Any, T], closed: Callable[[], Exception]) -> None:
        assert self._scope is not None  # noqa: S101 - begin() created it
        result: outcome.Outcome[T] | None = None
        try:
            with self._scope:
                result = outcome.Value(await work)
        except trio.Cancelled as error:  # noqa: ASYNC103 - re-raised below if it belongs to this scope
            result = outcome.Error(
                convert_user_error(error, "call", "of a portal")
            )  # re-raises a cancellation of this scope
        except BaseException as error:  # noqa: ASYNC103, BLE001 - raised to the caller in its own thread
            result = outcome.Error(error)
        finally:
            self._end(result or outcome.Error(closed()))

    def cancel(self) -> None:
        """Cancel the call. A call that has not started ends with an error; an ended call is unaffected."""
        if self._scope is not None:
            self._scope.cancel()
        elif self.outcome is None:
            self.refuse(RuntimeError("the call was cancelled before it started"))

    def refuse(self, error: Exception) -> None:
        """End the call with an error, without calling the function."""
        if self.outcome is None:
            self._end(outcome.Error(error))

    def _end(self, result: outcome.Outcome[T]) -> None:
        self.outcome = result
        self._notify()

    def result(self) -> T:
        """Return the function's result, or raise its exception with the traceback of trio's thread."""
        assert self.outcome is not None  # noqa: S101 - only called after the end of the call
        return self.outcome.unwrap()
