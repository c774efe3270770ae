"""Handlers that are called in the world that attached them: on an asyncio loop, or in threads.

The turn waits for them as it waits for its own; they see its context variables. An async handler of a synchronous program
belongs to no loop of its own: it runs on trio.
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
from actgent.sessions.handlers import Handler, name_of, takes_session
from actgent.tools.threads import Threads

CANCEL_GRACE = 1.0
"""Seconds that a cancelled handler on an asyncio loop has for its end."""


_served: "ContextVar[object]" = ContextVar("actgent_portal_handler", default=None)
"""The handler on an asyncio loop from which code runs: its task, or its call where it is sync."""


def is_awaited() -> bool:
    """Return True unless this asyncio task was started by a handler that does not have to wait for it."""
    return _served.get() in {None, asyncio.current_task()}


class World(ABC):
    """Where handlers are called."""

    @abstractmethod
    async def run(self, handler: Handler, *args: object) -> Any:
        """Call a handler there, and wait for what it returns, in a task of trio's."""


class ThreadWorld(World):
    """Threads of the portal's: handlers of one session one after the other, those of others beside them."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    async def run(self, handler: Handler, *args: object) -> Any:
        return await self._threads.run_sync(handler, *args, name=name_of(handler))


class LoopWorld(World):
    """An asyncio loop: sync handlers are called in its thread, async ones are tasks of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def run(self, handler: Handler, *args: object) -> Any:
        call = LoopCall(self._loop, partial(handler, *args))
        return await call.run()


class LoopCall:
    """One function on its way from trio to an asyncio loop, and its result on the way back."""

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
        """Call it, in a task of trio's; cancelled, it is cancelled there, and has a second for its end.

        Raises:
            PortalClosed: the loop is closed.
        """
        self._post(self._begin)
        try:
            await self._ended.wait()
        except trio.Cancelled:
            self._post(self._cancel)
            with trio.move_on_after(CANCEL_GRACE, shield=True):
                await self._ended.wait()
            raise
        assert self._outcome is not None  # noqa: S101 - it has ended
        return self._outcome.unwrap()

    def _post(self, fn: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(fn, context=self._context)
        except RuntimeError:
            raise PortalClosed("the asyncio loop on which this handler is called has ended") from None

    # --- on the loop -----------------------------------------------------------------------

    def _begin(self) -> None:
        if self._is_cancelled:
            return
        _served.set(self)
        try:
            result = self._fn()
        except BaseException as error:  # noqa: ASYNC103, BLE001 - the turn's, as any handler's
            self._end(outcome.Error(error))
            return  # noqa: ASYNC104 - no task is cancelled here
        if not inspect.isawaitable(result):
            self._end(outcome.Value(result))
            return
        work = result if isinstance(result, Coroutine) else _await(result)
        self._task = self._loop.create_task(work, context=self._context)
        _served.set(self._task)
        self._task.add_done_callback(self._take)

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()
        elif self._outcome is None:
            self._end(outcome.Value(None))

    def _take(self, task: "asyncio.Task[Any]") -> None:
        self._end(outcome.capture(task.result))

    def _end(self, result: outcome.Outcome[Any]) -> None:
        self._outcome = result
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._ended.set)


async def _await(result: Any) -> Any:
    return await result


class Crossing:
    """A handler of another world, as a session has it: equal to it, so that it can be removed by it."""

    def __init__(self, world: World, handler: Handler) -> None:
        self.world = world
        self.handler = handler
        self.__qualname__ = name_of(handler)

    def __eq__(self, other: object) -> bool:
        return other is self or other == self.handler

    def __hash__(self) -> int:
        return hash(self.handler)

    async def __call__(self, payload: object) -> Any:
        return await self.world.run(self.handler, payload)


class CrossingWithSession(Crossing):
    """The same for one that takes the session, too, in the form of its world."""

    def __init__(self, world: World, handler: Handler, face: Callable[[Session[Any]], object]) -> None:
        super().__init__(world, handler)
        self._face = face

    async def __call__(self, payload: object, session: Session[Any]) -> Any:  # type: ignore[override] # as its kind says
        return await self.world.run(self.handler, payload, self._face(session))


class CrossingForSession(Crossing):
    """The same for a function that is called with a session alone."""

    def __init__(self, world: World, handler: Handler, face: Callable[[Session[Any]], object]) -> None:
        super().__init__(world, handler)
        self._face = face

    async def __call__(self, session: Session[Any]) -> Any:  # type: ignore[override] # as its kind says
        return await self.world.run(self.handler, self._face(session))


def crossing(world: World, handler: Handler, face: Callable[[Session[Any]], object]) -> Handler:
    """Make a handler of one world into one that a session can call.

    Raises:
        ConfigurationError: it is a generator function, which nothing would run.
        TypeError: it cannot be called.
    """
    wants_session = takes_session(handler)
    if isinstance(world, ThreadWorld) and inspect.iscoroutinefunction(handler):
        return handler
    return CrossingWithSession(world, handler, face) if wants_session else Crossing(world, handler)
