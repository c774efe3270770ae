"""A thread that runs trio and holds one async context manager (the block) open. Other threads call functions in this thread.

A normal exit lets the block finish accepted work, and pending calls get their results. Calls that remain are then
cancelled and raise `PortalClosed`. An exit with an exception, or the end of the program, stops the block at once. The
thread is a daemon, so that it never keeps the interpreter alive.

anyio's blocking portal is not used. On Ctrl-C it does not cancel the call, and after a fork it waits forever. The end of the
interpreter does not stop it.
"""

import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context, ContextVar, copy_context
from inspect import iscoroutine
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import outcome
import trio

from actgent.actors.event_loop_check import call_from_outside
from actgent.errors import PortalClosed, UsageError
from actgent.errors.text_escaping import counted, shown
from actgent.sessions.session_context import running_turn
from actgent.support.safe_logging import logger_of
from actgent.support.user_code_calls import convert_user_error
from actgent.tools.pausable_time_limits import time_limits

T = TypeVar("T")


class PortalCall(Generic[T]):
    """Call of a sync or async function in trio's thread, with the result for the calling thread.

    States; all but the first change in trio's thread:

        created --begin--> running --> ended     `outcome` is set, then the completion callback is called once
           +-----cancel or reject----> ended     the function was not called
    """

    __slots__ = ("_fn", "_notify", "_scope", "context", "outcome")

    def __init__(self, fn: Callable[[], Any], context: Context, notify: Callable[[], object]) -> None:
        """Create a call.

        Args:
            fn: Function to call without arguments.
            context: Context variables of the caller, with which the function is called.
            notify: Function that is called once, in any thread, when the call has ended.
        """
        self._fn = fn
        self._notify = notify
        self._scope: trio.CancelScope | None = None
        self.context = context
        self.outcome: outcome.Outcome[T] | None = None

    def begin(self, closed: Callable[[], Exception]) -> None:
        """Call the function in trio's thread, and run a returned coroutine in a trio system task.

        If the call was already cancelled, do nothing. The caller's context variables make the function part of the caller's
        turn.

        Args:
            closed: Returns the exception for the caller if the portal closes during the call.
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
        """Cancel the call. A call that has not started ends with an error; a call that has ended is not changed."""
        if self._scope is not None:
            self._scope.cancel()
        elif self.outcome is None:
            self.reject(RuntimeError("the call was cancelled before it started"))

    def reject(self, error: Exception) -> None:
        """End a call that has not started with an error, without calling the function."""
        if self.outcome is None:
            self._end(outcome.Error(error))

    def _end(self, result: outcome.Outcome[T]) -> None:
        self.outcome = result
        self._notify()

    def result(self) -> T:
        """Return the function's result, or raise its exception with the traceback of trio's thread."""
        assert self.outcome is not None  # noqa: S101 - only called after the end of the call
        return self.outcome.unwrap()


EXIT_GRACE_SECONDS = 10.0
"""Seconds for which the interpreter's exit waits for open portals."""
_log = logger_of(__name__)
_current_thread: "ContextVar[TrioThread[Any] | None]" = ContextVar("actgent_portal", default=None)
"""The portal thread that the current code belongs to: its turns, and their handlers and tools in any thread."""


class TrioThread(Generic[T]):
    """Thread that runs trio and holds one async context manager (the block) open.

    Args:
        block: Returns the async context manager to hold open.
    """

    def __init__(self, block: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._block = block
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name="actgent portal", daemon=True
        )
        self._calls: trio.Nursery | None = None
        """Nursery of blocks that other threads hold open; None while the portal accepts no calls."""
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        """Cancel scope of the block."""
        self._exit_requested = trio.Event()
        self._is_aborted = False
        self._error: BaseException | None = None
        """Error that ended the block; None without one."""
        self.opened: Future[T] = _pending()
        self.ended: Future[None] = _pending()
        """Done when trio has ended; has the error that ended the block, if any."""

    def start(self) -> None:
        """Start the thread. The future `opened` gets the value that the block yields, or its error.

        Raises:
            UsageError: trio runs in this thread, or the portal was opened before.
        """
        if trio.lowlevel.in_trio_run():
            raise UsageError(
                "trio runs in this thread, so agents need no portal: use `async with open_runtime() as runtime`"
            )
        if self._thread.ident is not None:
            raise UsageError("this portal was already opened: create another one with open_portal()")
        _open_threads.add(self)
        self._thread.start()

    # --- in the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        self._enter()
        try:
            trio.run(self._run_block)
        except BaseException as error:  # noqa: ASYNC103, BLE001 - raised to the closing thread
            self._error = error
        _open_threads.discard(self)
        if not self.opened.done():
            self.opened.set_exception(self._error or self._closed())
        if self._error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(self._error)

    async def _run_block(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        if self._is_aborted:
            self._scope.cancel()
        async with trio.open_nursery() as calls:
            try:
                with self._scope:
                    await self._hold(calls)
            except BaseException as error:  # noqa: ASYNC103, BLE001 - raised to the closing thread, not wrapped in a group
                self._error = error
            self._calls = None
            calls.cancel_scope.cancel()

    async def _hold(self, calls: trio.Nursery) -> None:
        async with self._block() as value:
            self._calls = calls
            self.opened.set_result(value)
            await self._exit_requested.wait()

    def _begin(self, call: PortalCall[Any]) -> None:
        if self._calls is None:
            call.reject(self._closed())
            return
        if call.context.get(_current_thread) is not self:
            call.context.run(self._enter)
        call.begin(self._closed)

    def _enter(self) -> None:
        """Set the context variables for calls from other threads: no turn is running, and no tool timeout applies."""
        _current_thread.set(self)
        call_from_outside.set(self.wait)
        running_turn.set(None)
        time_limits.set(())

    def _closed(self) -> PortalClosed:
        if self._error is not None:
            return PortalClosed(f"the portal ended with {type(self._error).__name__} ({shown(self._error)})")
        return PortalClosed("the portal was closed")

    async def hold(self, fn: Callable[..., Awaitable[object]]) -> Any:
        """Start a background task in trio's thread that ends with the portal. Return the value that it reports as started.

        Raises:
            PortalClosed: The portal is closed.
        """
        if self._calls is None:
            raise self._closed()
        return await self._calls.start(fn)

    # --- from other threads ------------------------------------------------------------------

    def send(
        self, fn: Callable[[], Any], notify: Callable[[], object], *, blocks_turn: bool = True
    ) -> PortalCall[Any]:
        """Call a function in trio's thread with the caller's context variables, without waiting. Return the pending call.

        Args:
            fn: Function to call without arguments.
            notify: Function that is called when the call has ended.
            blocks_turn: False if no turn waits for the caller, although the caller's context variables belong to a turn.

        Raises:
            PortalClosed: The portal is closed.
        """
        call: PortalCall[Any] = PortalCall(fn, copy_context(), notify)
        if not blocks_turn:
            call.context.run(self._enter)
        self._post(self._begin, call)
        return call

    def cancel(self, call: PortalCall[Any]) -> bool:
        """Cancel a call. Its `notify` is called when the call has ended. Return False if trio has already ended, which ended the call."""
        try:
            self._post(PortalCall.cancel, call)
        except PortalClosed:
            return False
        return True

    def _post(self, fn: Callable[[PortalCall[Any]], object], call: PortalCall[Any]) -> None:
        if not self.is_own_process:
            raise PortalClosed("the portal belongs to the parent process: open a new portal after the fork")
        if self._token is None:
            raise self._closed()
        try:
            self._token.run_sync_soon(fn, call)
        except trio.RunFinishedError:
            raise self._closed() from None

    def wait(self, fn: Callable[[], Any]) -> Any:
        """Call a function in trio's thread, block until it has ended, and return its result.

        Ctrl-C cancels the call; a second Ctrl-C stops waiting.

        Raises:
            PortalClosed: The portal is closed, or closes during the call.
            UsageError: trio runs in this thread, which the call would block.
        """
        if trio.lowlevel.in_trio_run():
            raise UsageError(
                "trio runs in this thread, and the call would block it: await the agent or session itself, "
                "e.g. `await agent.run(...)`"
            )
        ended = threading.Lock()
        ended.acquire()
        call: PortalCall[Any] = PortalCall(fn, copy_context(), ended.release)
        try:  # Ctrl-C may arrive between posting the call and waiting for it
            self._post(self._begin, call)
            ended.acquire()
        except PortalClosed:
            raise
        except BaseException:
            if self.cancel(call) and call.outcome is None:
                ended.acquire()
            raise
        return call.result()

    def close(self, *, abort: bool = False) -> None:
        """Request the end of the block without waiting. `ended` is set when the block and the thread's work have ended.

        Args:
            abort: True to stop at once; False to finish accepted work.

        Raises:
            UsageError: Called from a tool or handler of an agent in this portal.
        """
        if not self.is_own_process or self.ended.done():
            return
        if _current_thread.get() is self:
            raise UsageError(
                "a portal cannot be closed from a tool or handler of its agents, because closing waits for them: close it after they return"
            )
        self._is_aborted |= abort
        with suppress(trio.RunFinishedError):
            if self._token is not None:
                self._token.run_sync_soon(self._end)

    def _end(self) -> None:
        self._exit_requested.set()
        if self._is_aborted:
            self._scope.cancel()

    @property
    def is_own_process(self) -> bool:
        """True in the process that started the thread; False in a forked child process, which has no portal thread."""
        return os.getpid() == self._pid

    def join(self) -> None:
        """Wait until the thread ends, after `ended` was set."""
        self._thread.join()


def _pending() -> "Future[Any]":
    """Return a future that waiting code cannot cancel."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


_open_threads: "WeakSet[TrioThread[Any]]" = WeakSet()
"""Portals that are open. `_close_all` stops those that are still open when the program ends."""


@atexit.register
def _close_all() -> None:
    """Stop all open portals when the interpreter exits, without finishing accepted work, and log a warning.

    Wait at most `EXIT_GRACE_SECONDS` seconds for the threads of the portals.
    """
    left = [thread for thread in _open_threads if thread.is_own_process]
    for thread in left:
        thread.close(abort=True)
    if left:
        _log.warning(
            "%s still open at the end of the program; its agents were stopped: use `with open_portal()`",
            counted(len(left), "portal was", "portals were"),
        )
        wait([thread.ended for thread in left], timeout=EXIT_GRACE_SECONDS)
