"""Trio in a thread of its own: one block is open in it, and other threads have functions called beside that block.

Left normally, the block ends what it has accepted; calls that wait then still get their results. What is left after that
is cancelled, and its callers get `PortalClosed`. Left with an exception, or where the program ends without having closed
it, the block stops at once. The thread is a daemon: whatever happens, it keeps no interpreter alive.
"""

import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import ContextVar, copy_context
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import trio

from actgent.actors.event_loop import call_from_outside
from actgent.errors import PortalClosed, UsageError
from actgent.errors.printable import counted, shown
from actgent.sessions.turn import running_turn
from actgent.support.logs import logger_of
from actgent.tools.time_limits import time_limits

from .call import PortalCall

T = TypeVar("T")
EXIT_GRACE = 10.0
"""Seconds that the end of the interpreter waits for a portal that was not closed."""
_log = logger_of(__name__)
_inside: "ContextVar[TrioThread[Any] | None]" = ContextVar("actgent_portal", default=None)
"""The thread on whose behalf code runs: its turns, and the handlers and tools that they call anywhere."""


class TrioThread(Generic[T]):
    """A thread that runs trio, and in it a block; `opened` and `ended` tell when."""

    def __init__(self, block: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._block = block
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name="actgent portal", daemon=True
        )
        self._calls: trio.Nursery | None = None
        """While calls are taken; of the blocks that others hold open."""
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        """Of the block."""
        self._leave = trio.Event()
        self._is_aborted = False
        self._error: BaseException | None = None
        """The block's own."""
        self.opened: Future[T] = _pending()
        self.ended: Future[None] = _pending()
        """With the error that the block ended with, if there was one."""

    def start(self) -> None:
        """Start the thread; `opened` has the block's value, or why there is none.

        Raises:
            UsageError: it was opened before.
        """
        if trio.lowlevel.in_trio_run():
            raise UsageError(
                "trio runs here, where agents need no portal: use `async with open_runtime() as runtime` instead"
            )
        if self._thread.ident is not None:
            raise UsageError("this portal was opened before: make another one with open_portal()")
        _open_threads.add(self)
        self._thread.start()

    # --- in the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        self._enter()
        try:
            trio.run(self._live)
        except BaseException as error:  # noqa: ASYNC103, BLE001 - for whoever closes it
            self._error = error
        _open_threads.discard(self)
        if not self.opened.done():
            self.opened.set_exception(self._error or self._closed())
        if self._error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(self._error)

    async def _live(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        if self._is_aborted:
            self._scope.cancel()
        async with trio.open_nursery() as calls:
            try:
                with self._scope:
                    await self._hold(calls)
            except BaseException as error:  # noqa: ASYNC103, BLE001 - for whoever closes it, not wrapped into a group
                self._error = error
            self._calls = None
            calls.cancel_scope.cancel()

    async def _hold(self, calls: trio.Nursery) -> None:
        async with self._block() as value:
            self._calls = calls
            self.opened.set_result(value)
            await self._leave.wait()

    def _begin(self, call: PortalCall[Any]) -> None:
        if self._calls is None:
            call.refuse(self._closed())
            return
        if call.context.get(_inside) is not self:
            call.context.run(self._enter)
        call.begin(self._closed)

    def _enter(self) -> None:
        """Run on behalf of this thread: turns and limits of another trio's are nothing that it may touch."""
        _inside.set(self)
        call_from_outside.set(self.wait)
        running_turn.set(None)
        time_limits.set(())

    def _closed(self) -> PortalClosed:
        if self._error is not None:
            return PortalClosed(f"the portal ended with {type(self._error).__name__} ({shown(self._error)})")
        return PortalClosed("the portal was closed")

    async def hold(self, fn: Callable[..., Awaitable[object]]) -> Any:
        """Start a task that ends with the portal, in trio's thread, and return what it reports."""
        if self._calls is None:
            raise self._closed()
        return await self._calls.start(fn)

    # --- from other threads ------------------------------------------------------------------

    def send(
        self, fn: Callable[[], Any], tell: Callable[[], object], *, is_awaited: bool = True
    ) -> PortalCall[Any]:
        """Have a function called in trio's thread, with the caller's context variables; does not wait.

        `is_awaited` tells whether a turn that the variables name waits for the caller.

        Raises:
            PortalClosed: it takes no calls.
        """
        call: PortalCall[Any] = PortalCall(fn, copy_context(), tell)
        if not is_awaited:
            call.context.run(self._enter)
        self._post(self._begin, call)
        return call

    def cancel(self, call: PortalCall[Any]) -> bool:
        """Stop a call; it ends all the same, and tells so. False: trio runs no more, and neither does the call."""
        try:
            self._post(PortalCall.cancel, call)
        except PortalClosed:
            return False
        return True

    def _post(self, fn: Callable[[PortalCall[Any]], object], call: PortalCall[Any]) -> None:
        if not self.is_ours:
            raise PortalClosed("the portal belongs to the process that this one was forked from")
        if self._token is None:
            raise self._closed()
        try:
            self._token.run_sync_soon(fn, call)
        except trio.RunFinishedError:
            raise self._closed() from None

    def wait(self, fn: Callable[[], Any]) -> Any:
        """Have a function called in trio's thread, and wait for its result. Ctrl-C stops the call; a second one, the wait.

        Raises:
            PortalClosed: it takes no calls, or was closed meanwhile.
            UsageError: a trio runs in this thread, which would stand still meanwhile.
        """
        if trio.lowlevel.in_trio_run():
            raise UsageError(
                "trio runs in this thread, and would stand still for the call: await the agent or session itself, "
                "e.g. `await agent.run(...)`"
            )
        ended = threading.Lock()
        ended.acquire()
        call: PortalCall[Any] = PortalCall(fn, copy_context(), ended.release)
        try:  # Ctrl-C may come as soon as the other thread has the call, before this one goes on
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
        """Let the block end what it has accepted, or with `abort` stop where it is; `ended` tells when it has.

        Raises:
            UsageError: called from a tool or handler of an agent that runs in it.
        """
        if not self.is_ours or self.ended.done():
            return
        if _inside.get() is self:
            raise UsageError(
                "a portal cannot be closed from a tool or handler of its own agents, which it waits for: close it outside"
            )
        self._is_aborted |= abort
        with suppress(trio.RunFinishedError):
            if self._token is not None:
                self._token.run_sync_soon(self._end)

    def _end(self) -> None:
        self._leave.set()
        if self._is_aborted:
            self._scope.cancel()

    @property
    def is_ours(self) -> bool:
        """False in a process that was forked from the one that opened it: no thread runs there."""
        return os.getpid() == self._pid

    def join(self) -> None:
        """Wait for the thread, which has `ended`."""
        self._thread.join()


def _pending() -> "Future[Any]":
    """A future that whoever waits for it cannot cancel."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


_open_threads: "WeakSet[TrioThread[Any]]" = WeakSet()


@atexit.register
def _close_all() -> None:
    """Stop what the program has left open, without waiting for answers."""
    left = [thread for thread in _open_threads if thread.is_ours]
    for thread in left:
        thread.close(abort=True)
    if left:
        _log.warning(
            "%s open when the program ended, with agents that are stopped: use `with open_portal()`",
            counted(len(left), "portal was", "portals were"),
        )
        wait([thread.ended for thread in left], timeout=EXIT_GRACE)
