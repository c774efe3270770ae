"""Proxies of handlers, which run a handler where it was registered: on an asyncio event loop, or in threads of the portal.

The turn waits for a handler, and the handler has the turn's context variables. An async handler of synchronous code has
no event loop, so it runs on trio.
"""

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

import outcome
import trio

from actgent.agents.session import Session
from actgent.errors import PortalClosed
from actgent.sessions.session_handlers import Handler, name_of, takes_session
from actgent.tools.worker_threads import Threads

CANCEL_GRACE_SECONDS = 1.0
"""Time in seconds that a cancelled handler on an asyncio loop gets to end."""


_current_handler: "ContextVar[object]" = ContextVar("actgent_portal_handler", default=None)
"""Handler on an asyncio loop in which the current code runs: its task, or its `LoopCall` if the handler is sync."""


def blocks_turn() -> bool:
    """Return True if a turn may wait for the current asyncio task, so that the task's calls belong to the turn.

    Return False for a task that a handler has started without awaiting the task, which runs independently of the turn.
    """
    return _current_handler.get() in {None, asyncio.current_task()}


class HandlerContext(ABC):
    """Interface for running handlers on an event loop or in threads."""

    @abstractmethod
    async def run(self, handler: Handler, *args: object) -> Any:
        """Call a handler in this context (a thread or an event loop), and return its result.

        Must be called in a trio task.
        """


class ThreadContext(HandlerContext):
    """Runs handlers in threads. Handlers of one session run one after the other, handlers of different sessions concurrently."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    async def run(self, handler: Handler, *args: object) -> Any:
        return await self._threads.run_sync(handler, *args, name=name_of(handler))


class LoopContext(HandlerContext):
    """Runs handlers on an asyncio event loop: sync handlers in its thread, async handlers as tasks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def run(self, handler: Handler, *args: object) -> Any:
        call = LoopCall(self._loop, partial(handler, *args))
        return await call.run()


class LoopCall:
    """Call from trio of a function that runs on an asyncio event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fn: Callable[[], Any]) -> None:
        self._loop = loop
        self._fn = fn
        self._token = trio.lowlevel.current_trio_token()
        self._ended = trio.Event()
        self._context = copy_context()
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False
        self._outcome: outcome.Outcome[Any] | None = None

    async def run(self) -> Any:
        """Call the function on the event loop, wait, and return the function's result.

        This must be called in a trio task. Cancelling the trio task cancels the function, which then has
        `CANCEL_GRACE_SECONDS` to end.

        Raises:
            PortalClosed: The event loop is closed.
        """
        self._post(self._begin)
        try:
            await self._ended.wait()
        except trio.Cancelled:
            self._post(self._cancel)
            with trio.move_on_after(CANCEL_GRACE_SECONDS, shield=True):
                await self._ended.wait()
            raise
        assert self._outcome is not None  # noqa: S101 - the call has ended
        return self._outcome.unwrap()

    def _post(self, fn: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(fn, context=self._context)
        except RuntimeError:
            raise PortalClosed(
                "the asyncio event loop of this handler is closed: remove the handler before its event loop is closed"
            ) from None

    # --- on the loop -----------------------------------------------------------------------

    def _begin(self) -> None:
        if self._is_cancelled:
            return
        _current_handler.set(self)
        try:
            result = self._fn()
        except BaseException as error:  # noqa: ASYNC103, BLE001 - raised in the turn that called the handler
            self._end(outcome.Error(error))
            return  # noqa: ASYNC104 - no task is cancelled here
        if not inspect.isawaitable(result):
            self._end(outcome.Value(result))
            return
        work = result if isinstance(result, Coroutine) else _await(result)
        self._task = self._loop.create_task(work, context=self._context)
        _current_handler.set(self._task)
        self._task.add_done_callback(self._store_result)

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()
        elif self._outcome is None:
            self._end(outcome.Value(None))

    def _store_result(self, task: "asyncio.Task[Any]") -> None:
        self._end(outcome.capture(task.result))

    def _end(self, result: outcome.Outcome[Any]) -> None:
        self._outcome = result
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._ended.set)


async def _await(result: Any) -> Any:
    return await result


class HandlerProxy:
    """Handler on trio that calls a handler of another thread or event loop.

    The proxy equals this handler, so that `remove_handler` finds the proxy.
    """

    def __init__(self, handler_context: HandlerContext, handler: Handler) -> None:
        self.handler_context = handler_context
        self.handler = handler
        self.__qualname__ = name_of(handler)

    def __eq__(self, other: object) -> bool:
        return other is self or other == self.handler

    def __hash__(self) -> int:
        return hash(self.handler)

    async def __call__(self, payload: object) -> Any:
        return await self.handler_context.run(self.handler, payload)


class SessionHandlerProxy(HandlerProxy):
    """Proxy of a handler with two parameters: the delivery and the session."""

    def __init__(
        self,
        handler_context: HandlerContext,
        handler: Handler,
        wrap_session: Callable[[Session[Any]], object],
    ) -> None:
        super().__init__(handler_context, handler)
        self._wrap_session = wrap_session

    async def __call__(self, payload: object, session: Session[Any]) -> Any:  # type: ignore[override] # the handler kind fixes the arguments
        return await self.handler_context.run(self.handler, payload, self._wrap_session(session))


class SessionHookProxy(SessionHandlerProxy):
    """Proxy of a hook whose only parameter is a session."""

    async def __call__(self, session: Session[Any]) -> Any:  # type: ignore[override] # the handler kind fixes the arguments
        return await self.handler_context.run(self.handler, self._wrap_session(session))


def make_handler_proxy(
    handler_context: HandlerContext, handler: Handler, wrap_session: Callable[[Session[Any]], object]
) -> Handler:
    """Wrap a handler for registration on trio, so that the handler is called in `handler_context`.

    Args:
        handler_context: Runs the handler on an event loop or in threads.
        handler: Handler to wrap.
        wrap_session: Returns the session proxy that the handler receives.

    Raises:
        ConfigurationError: The handler is a generator function.
        TypeError: The handler is not callable.
    """
    wants_session = takes_session(handler)
    if isinstance(handler_context, ThreadContext) and inspect.iscoroutinefunction(handler):
        return handler
    return (
        SessionHandlerProxy(handler_context, handler, wrap_session)
        if wants_session
        else HandlerProxy(handler_context, handler)
    )
