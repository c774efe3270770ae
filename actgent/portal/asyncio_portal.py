"""Portal for asyncio: agents and sessions whose methods run on trio and are awaited."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

import trio

from actgent.agents.agent import Agent
from actgent.agents.keyword_argument_types import FormT, MessageOptions, SessionOptions
from actgent.agents.session import Session
from actgent.approvals import Approval
from actgent.errors import PortalClosed, UsageError
from actgent.events import Observation
from actgent.information_flow_labels import Label
from actgent.limits_and_schedules.schedule import Schedule
from actgent.messages import (
    Content,
    DataT_co,
    Delivery,
    Message,
    OnBusy,
    Priority,
    PriorityName,
    Reply,
    Sender,
    Usage,
)
from actgent.modes.mode_changes import ModeChange
from actgent.runtime.runtime import Runtime
from actgent.sessions.session_context import Status
from actgent.sessions.session_handlers import H, Handler, HandlerKind, HandlerMethods, check_called
from actgent.support.common_mistake_hints import hints_for_asyncio_agents, hints_for_asyncio_sessions
from actgent.tools.tool_interface import DepsT

from .handler_proxies import LoopContext, SessionHookProxy, blocks_turn, make_handler_proxy
from .handler_registration import AttachesHooks, HandlerOptions, SessionAndHandlerOptions
from .portal_streams import AsyncPortalStream
from .sync_portal import create_with_handlers, ignore, split_handlers, unwrap, wrap_all
from .trio_context_managers import HeldBlock, entered_on_trio
from .trio_thread import TrioThread

P = ParamSpec("P")
T = TypeVar("T")


class AsyncioMethod(Generic[P, T]):
    """Descriptor of a proxy class for an async method of the trio object. A call is awaited in asyncio while trio runs the method."""

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, proxy: None, owner: type) -> Callable[..., Awaitable[T]]: ...
    @overload
    def __get__(
        self, proxy: "AsyncProxy | AsyncPortal", owner: type
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, proxy: "AsyncProxy | AsyncPortal | None", owner: type) -> Callable[..., Any]:
        return self._method if proxy is None else partial(proxy.wait, self._method, proxy.inner)


class AsyncioSessionMethod(Generic[P, T]):
    """Descriptor of a proxy class for an async method that returns a session. A call is awaited and returns the session's proxy.

    Args:
        method: Method of the trio object.
        proxy_class: Class of the session's proxy.
    """

    def __init__(
        self,
        method: Callable[Concatenate[Any, P], Awaitable[Any]],
        proxy_class: Callable[["AsyncPortal", Any], T],
    ) -> None:
        self._method = method
        self._proxy_class = proxy_class
        self.__doc__ = method.__doc__

    def __get__(self, proxy: "AsyncProxy | None", owner: type) -> Callable[P, Coroutine[Any, Any, T]]:
        if proxy is None:
            return self._method  # type: ignore[return-value] # only help() reads it

        async def call(*args: P.args, **options: P.kwargs) -> T:
            return self._proxy_class(
                proxy.portal, await proxy.wait(self._method, proxy.inner, *args, **options)
            )

        return call


class AsyncioStreamMethod(Generic[P, T]):
    """Descriptor of a proxy class for a method that opens a trio channel. A call returns a stream for `async with` and `async for`."""

    def __init__(
        self, method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[trio.abc.ReceiveChannel[T]]]
    ) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, proxy: "AsyncProxy | None", owner: type) -> Callable[P, AsyncPortalStream[T]]:
        if proxy is None:
            return self._method  # type: ignore[return-value] # only help() reads it

        def call(*args: P.args, **options: P.kwargs) -> AsyncPortalStream[T]:
            return proxy.portal.read(entered_on_trio(partial(self._method, proxy.inner, *args, **options)))

        return call


class AsyncioProperty(Generic[T]):
    """Descriptor of a proxy class that makes a property of the trio object an async method.

    Args:
        source: Property of the trio object's class.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self.__doc__ = source.__doc__

    def __get__(self, proxy: "AsyncProxy | None", owner: type) -> Callable[[], Coroutine[Any, Any, T]]:
        if proxy is None:
            return self._source.fget  # type: ignore[no-any-return] # only help() reads it
        return partial(proxy.wait, self._source.__get__, proxy.inner)


class AsyncProxy:
    """Base class of asyncio proxies. A proxy represents an object that can be used only in trio's thread."""

    inner: Any
    """The represented object. Use it only in trio's thread, for example in a function passed to `portal.call`."""

    def __init__(self, portal: "AsyncPortal") -> None:
        self.portal = portal

    async def wait(self, fn: Callable[..., Any], *args: object, **options: object) -> Any:
        """Call a function in trio's thread and return its result."""
        return await self.portal.call(fn, *args, **options)


class AsyncSessionProxy(HandlerMethods, AsyncProxy):
    """Base class of asyncio proxies of sessions. Handlers run on the event loop that registers them."""

    def __init__(self, portal: "AsyncPortal", session: Any) -> None:
        super().__init__(portal)
        self.inner = session
        self.id: str = session.id
        self.agent_name: str = session.agent_name
        self.owner: Sender = session.owner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.owner.name!r}>"

    def _on(self, kind: HandlerKind, handler: H) -> H:
        self.portal.send(getattr(self.inner, f"on_{kind}"), self._handler_proxy(handler))
        return handler

    def _handler_proxy(self, handler: Handler) -> Handler:
        return make_handler_proxy(LoopContext(running_loop()), handler, lambda _: self)

    def remove_handler(self, handler: Handler) -> None:
        """Detach a handler from all kinds of deliveries for which it is registered."""
        self.portal.send(self.inner.remove_handler, handler)

    @asynccontextmanager
    async def listening(self, **handlers: Unpack[HandlerOptions]) -> AsyncGenerator[Self, None]:
        """Register handlers by name (`on_token=`, `on_conversation=`, ...) for the duration of the `async with` block."""
        block = self.inner.listening(**wrap_all(handlers, self._handler_proxy))
        await self.wait(block.__enter__)
        try:
            yield self
        finally:
            with suppress(PortalClosed):
                self.portal.send(block.__exit__, None, None, None)


@hints_for_asyncio_sessions
class AsyncPortalSession(AsyncSessionProxy, Generic[DataT_co]):
    """A `Session` for asyncio: same methods and arguments, but calls are awaited; properties are async methods.

    Handlers run on the event loop that registers them: sync handlers in its thread, async handlers as tasks.
    """

    inner: Session[DataT_co]
    """The `Session` on trio. Use it only in trio's thread, for example in a function passed to `portal.call`."""

    chat = AsyncioMethod(Session.chat)
    interrupt = AsyncioMethod(Session.interrupt)
    schedule = AsyncioMethod(Session.schedule)
    unschedule = AsyncioMethod(Session.unschedule)
    wait_idle = AsyncioMethod(Session.wait_idle)
    delegate = AsyncioMethod(Session.delegate)
    cancel_task = AsyncioMethod(Session.cancel_task)
    messages = AsyncioMethod(Session.messages)
    observations = AsyncioMethod(Session.observations)
    message_trace = AsyncioMethod(Session.message_trace)
    answer = AsyncioMethod(Session.answer)
    annotate = AsyncioMethod(Session.annotate)
    lift = AsyncioMethod(Session.lift)
    set_mode = AsyncioMethod(Session.set_mode)
    hand_back = AsyncioMethod(Session.hand_back)
    inject = AsyncioMethod(Session.inject)
    aclose = AsyncioMethod(Session.aclose)
    follow = AsyncioStreamMethod(Session.follow)
    observe = AsyncioStreamMethod(Session.observe)
    history = AsyncioProperty[tuple[Message, ...]](Session.history)
    status = AsyncioProperty[Status](Session.status)
    description = AsyncioProperty[str](Session.description)
    tags = AsyncioProperty[tuple[str, ...]](Session.tags)
    metadata = AsyncioProperty[Mapping[str, str]](Session.metadata)
    is_durable = AsyncioProperty[bool](Session.is_durable)
    on_busy = AsyncioProperty[OnBusy](Session.on_busy)
    usage = AsyncioProperty[Usage](Session.usage)
    approvals = AsyncioProperty[tuple[Approval, ...]](Session.approvals)
    caller_calls = AsyncioProperty[tuple[Approval, ...]](Session.caller_calls)
    schedules = AsyncioProperty[tuple[Schedule, ...]](Session.schedules)
    handoff_agent = AsyncioProperty[str](Session.handoff_agent)
    label = AsyncioProperty[Label](Session.label)
    mode = AsyncioProperty[str](Session.mode)
    mode_changes = AsyncioProperty[tuple[ModeChange, ...]](Session.mode_changes)

    async def create_message(
        self,
        content: Content,
        sender: Sender | str | None = None,
        *,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        on_busy: OnBusy | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Message:
        """Return the message that `chat` would send, without sending it; pass it to `AsyncPortalAgent.receive`."""
        create = partial(self.inner.create_message, content, sender, priority=priority)
        create = partial(create, message_id=message_id, on_busy=on_busy, metadata=metadata)
        return await self.wait(create)  # type: ignore[no-any-return]

    def _handler_proxy(self, handler: Handler) -> Handler:
        return self.portal.make_handler_proxy(handler)

    async def state(self) -> Mapping[str, Any]:
        """Return a copy of the session's current state. To change the state, use `dispatch`."""
        return await self.wait(lambda: self.inner.state.snapshot)  # type: ignore[no-any-return]

    async def dispatch(self, action: Any, *args: Any, once: str = "") -> None:
        """Run an action that changes the session's state; see `Session.state.dispatch`."""
        await self.wait(lambda: self.inner.state.dispatch(action, *args, once=once))

    async def parent(self) -> "AsyncPortalSession[Any] | None":
        """Return the parent of this session; None for a root session."""
        parent = await self.wait(lambda: self.inner.parent)
        return None if parent is None else AsyncPortalSession(self.portal, parent)

    async def children(self) -> "tuple[AsyncPortalSession[Any], ...]":
        """Return the open child sessions of this session."""
        children = await self.wait(lambda: self.inner.children)
        return tuple(AsyncPortalSession(self.portal, child) for child in children)


@hints_for_asyncio_agents
class AsyncPortalAgent(AttachesHooks, AsyncProxy, Generic[DataT_co, DepsT]):
    """An `Agent` for asyncio: same methods and arguments, but calls are awaited."""

    def __init__(self, portal: "AsyncPortal", agent: Agent[DataT_co, DepsT]) -> None:
        super().__init__(portal)
        self.inner: Agent[DataT_co, DepsT] = agent
        """The agent; use it only in trio's thread, e.g. inside `portal.call`."""
        self.name = agent.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    receive = AsyncioMethod(Agent.receive)
    answer = AsyncioMethod(Agent.answer)
    resume = AsyncioMethod(Agent.resume)
    approvals = AsyncioMethod(Agent.approvals)
    open_session = AsyncioSessionMethod(Agent.open_session, AsyncPortalSession[DataT_co])
    system_prompt = AsyncioProperty[str](Agent.system_prompt)

    @overload
    async def run(
        self,
        content: Content,
        *,
        session: AsyncPortalSession[Any] | None = None,
        output: type[FormT],
        **options: Unpack[MessageOptions[DepsT]],
    ) -> Reply[FormT]: ...
    @overload
    async def run(
        self,
        content: Content,
        *,
        session: AsyncPortalSession[Any] | None = None,
        output: None = None,
        **options: Unpack[MessageOptions[DepsT]],
    ) -> Reply[DataT_co]: ...
    @overload
    async def run(
        self,
        content: Content,
        *,
        session: AsyncPortalSession[Any] | None = None,
        output: object,
        **options: Unpack[MessageOptions[DepsT]],
    ) -> Reply: ...
    async def run(
        self, content: Content, *, session: AsyncPortalSession[Any] | None = None, **options: Any
    ) -> Reply:
        """Send a message, wait for the reply, and return it.

        Arguments and errors are those of `Agent.run`. Cancelling the caller stops the turn.
        """
        return await self.wait(self.inner.run, content, session=unwrap(session), **options)  # type: ignore[no-any-return]

    def stream(
        self,
        content: Content,
        *,
        session: AsyncPortalSession[Any] | None = None,
        output: object = None,
        **options: Unpack[MessageOptions[DepsT]],
    ) -> AsyncPortalStream[Delivery]:
        """Send a message and stream the deliveries of its turn: `async with agent.stream("...") as deliveries`.

        Arguments and errors are those of `Agent.stream`.
        """
        block = self.inner.stream(content, session=unwrap(session), output=output, **options)
        return self.portal.read(block)

    def follow(self, session: AsyncPortalSession[Any]) -> AsyncPortalStream[Delivery]:
        """Stream the deliveries of a suspended turn after it resumes. Arguments and errors are those of `Agent.follow`."""
        return self.portal.read(self.inner.follow(session.inner))

    async def create_session(
        self,
        owner: Sender | str,
        description: Content = "",
        *,
        session_id: str | None = None,
        parent: AsyncPortalSession[Any] | None = None,
        **options: Unpack[SessionAndHandlerOptions[DepsT]],
    ) -> AsyncPortalSession[DataT_co]:
        """Create a session of this agent. Arguments and errors are those of `Agent.create_session`.

        Handlers passed by name also receive the deliveries of `description`.
        """
        others, handlers = split_handlers(options)
        create = partial(
            self.inner.create_session,
            owner,
            description,
            session_id=session_id,
            parent=unwrap(parent),
            **others,
        )
        session = await self.wait(create_with_handlers, create, self.portal.handler_proxies(handlers))
        return AsyncPortalSession(self.portal, session)

    async def ensure_session(
        self,
        owner: Sender | str,
        session_id: str,
        *,
        parent: AsyncPortalSession[Any] | None = None,
        **options: Unpack[SessionOptions[DepsT]],
    ) -> AsyncPortalSession[DataT_co]:
        """Return this agent's session with the given id, or create it.

        Arguments and errors are those of `Agent.ensure_session`.
        """
        ensure = partial(self.inner.ensure_session, owner, session_id, parent=unwrap(parent), **options)
        return AsyncPortalSession(self.portal, await self.wait(ensure))

    def _hook(self, method: Callable[..., Any], hook: Handler, **options: Any) -> None:
        self.portal.send(method, self.inner, self.portal.hook(method, hook, **options), **options)

    def remove_hook(self, fn: Handler) -> None:
        """Remove all registrations of a function that was passed to `on_session`, `on_query`, `on_message` or `guard`."""
        self.portal.send(self.inner.remove_hook, fn)


class AsyncPortal:
    """A runtime on trio in a background thread, for asyncio; opened by `open_portal`. Several event loops can use it."""

    def __init__(self, thread: TrioThread[Runtime], runtime: Runtime) -> None:
        self.thread = thread
        self.runtime = runtime
        """The runtime; use it only in trio's thread, e.g. `await portal.call(portal.runtime.spawn, Till)`."""
        self.inner = runtime

    async def start(self, agent: Agent[DataT_co, DepsT]) -> AsyncPortalAgent[DataT_co, DepsT]:
        """Start an agent in the portal's runtime, and return its proxy. Arguments and errors are those of `Runtime.start`."""
        await self.call(self.runtime.start, agent)
        return AsyncPortalAgent(self, agent)

    @asynccontextmanager
    async def starting(self) -> AsyncGenerator[None, None]:
        """Open an `async with` block in which several agents are started together.

        Arguments and errors are those of `Runtime.starting`.
        """
        held = HeldBlock(self.thread, self.runtime.starting())
        await self.call(held.enter)
        try:
            yield
        except BaseException as error:
            await self.call(held.exit, error)  # noqa: ASYNC102 - a wait in asyncio, which ends when the portal stops
            raise
        await self.call(held.exit, None)

    ready = AsyncioMethod(Runtime.ready)
    approvals = AsyncioMethod(Runtime.approvals)
    sessions = AsyncioMethod(Runtime.sessions)
    delete_session = AsyncioMethod(Runtime.delete_session)

    @overload
    async def call(self, fn: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T: ...
    @overload
    async def call(self, fn: Callable[P, T], *args: P.args, **options: P.kwargs) -> T: ...
    async def call(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a sync or async function in trio's thread, and return its result.

        The function has the caller's context variables. Cancelling the caller cancels the function and waits until the
        function ends; a result that it has just returned is dropped.

        Raises:
            PortalClosed: The portal is closed, or closes before the function has ended.
            UsageError: No asyncio event loop is running.
        """
        loop, ended = running_loop(), asyncio.Event()
        call = self.thread.send(
            partial(fn, *args, **options) if args or options else fn,
            partial(_notify, loop, ended),
            blocks_turn=blocks_turn(),
        )
        try:
            await ended.wait()
        except asyncio.CancelledError:
            self.thread.cancel(call)
            await ended.wait()  # noqa: ASYNC102 - a wait in asyncio, which a second cancellation ends
            raise
        return call.result()

    wait = call

    def send(self, fn: Callable[..., Any], *args: Any, **options: Any) -> None:
        """Call a sync function in trio's thread without waiting for its result. Calls run in the order of sending.

        Exceptions of the function are ignored.

        Raises:
            PortalClosed: The portal is closed.
        """
        self.thread.send(partial(fn, *args, **options), ignore)

    def read(self, block: AbstractAsyncContextManager[trio.abc.ReceiveChannel[T]]) -> AsyncPortalStream[T]:
        """Return a stream that reads a trio channel with `async with` and `async for`.

        Args:
            block: Async context manager on trio that yields the channel.
        """
        return AsyncPortalStream(self.thread, self.call, self.send, block)

    def events(self, capacity: int = 1000) -> AsyncPortalStream[Observation]:
        """Stream all observations of the runtime from now on. Arguments and errors are those of `Runtime.events`."""
        return self.read(self.runtime.events(capacity))

    async def aclose(self) -> None:
        """Finish accepted messages, then stop the agents and the thread. A second call waits for the first.

        Pending calls get their results while the agents finish. Calls that are still pending after that raise `PortalClosed`.
        Cancelling the caller stops the agents at once.

        Raises:
            UsageError: Called from a tool or handler of one of the portal's agents.
            Exception: The error that ended the runtime, e.g. `ActorFailed`, or `ThreadsStillRunning`.
        """
        await end_async(self.thread, abort=False)

    # --- used by agents and sessions of the portal ----------------------------------------------

    def make_handler_proxy(self, handler: Handler) -> Handler:
        """Wrap a handler for registration on trio, so that the handler is called on the running event loop."""
        return make_handler_proxy(LoopContext(running_loop()), handler, self._wrap_session)

    def handler_proxies(self, handlers: HandlerOptions) -> dict[str, Any]:
        """Wrap handlers for registration on trio, by handler name, so that they are called on the running event loop."""
        return wrap_all(handlers, self.make_handler_proxy)

    def hook(self, method: Callable[..., Any], hook: Handler, **options: object) -> Handler:
        """Wrap a hook for registration with an agent's method on trio, so that the hook is called on the running event loop.

        A hook of `on_session` receives an asyncio session. An `on="input"` hook is returned unchanged.
        """
        if method is Agent.on_session:
            check_called("on_session()", hook, is_alone=True)
            return SessionHookProxy(LoopContext(running_loop()), hook, self._wrap_session)
        if options.get("on") == "input":
            return hook
        return self.make_handler_proxy(hook)

    def _wrap_session(self, session: Session[Any]) -> AsyncPortalSession[Any]:
        return AsyncPortalSession(self, session)


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the asyncio event loop that runs in this thread.

    Raises:
        UsageError: No event loop is running in this thread.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "an AsyncPortal needs a running asyncio event loop: in trio await the agent itself, in synchronous code use "
            "`with open_portal() as portal`"
        ) from None


def _notify(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed, so no task waits
        loop.call_soon_threadsafe(ended.set)


async def end_async(thread: TrioThread[Any], *, abort: bool) -> None:
    """Close the portal's thread and wait until it ends. `abort=True`, or cancelling the caller, stops the agents at once."""
    thread.close(abort=abort)
    if not thread.is_own_process:
        return
    ended = asyncio.wrap_future(thread.ended)
    try:
        await asyncio.wait([ended])
    except asyncio.CancelledError:
        thread.close(abort=True)
        await asyncio.wait([ended])  # noqa: ASYNC102 - a wait in asyncio, which a second cancellation ends
        raise
    thread.join()
    await ended
