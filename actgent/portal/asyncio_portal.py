"""Portal for asyncio: agents and sessions whose methods run on trio and are awaited."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

import trio

from actgent.agents.agent import Agent
from actgent.agents.keyword_argument_types import FormT, MessageOptions
from actgent.agents.session import Session
from actgent.approvals import Approval
from actgent.errors import PortalClosed, UsageError
from actgent.events import Observation
from actgent.information_flow_labels import Label
from actgent.journal.journal_interface import SessionSummary
from actgent.limits_and_schedules.limits import Limits
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
from actgent.protocols.prompt_layers import Prompt
from actgent.runtime.runtime import Runtime
from actgent.sessions.imported_history import ImportedMessage
from actgent.sessions.session_context import Status
from actgent.sessions.session_handlers import Handler, check_called
from actgent.sessions.subscriptions import FollowedItem, Observed, ObservedType
from actgent.support.misuse_hints import hints_for_asyncio_agents, hints_for_asyncio_sessions
from actgent.tools.tool_interface import DepsT

from .handler_proxies import LoopContext, SessionHookProxy, blocks_turn, make_handler_proxy
from .handler_registration import AttachesHandlers, AttachesHooks, HandlerOptions
from .portal_streams import AsyncPortalStream
from .sync_portal import create_with_handlers, ignore, unwrap
from .trio_context_managers import HeldBlock, entered_on_trio
from .trio_thread import TrioThread

P = ParamSpec("P")
T = TypeVar("T")


class AsyncioMethod(Generic[P, T]):
    """Descriptor that exposes an async method of a trio object on its proxy: the call is awaited in asyncio until trio has run the method."""

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, proxy: None, owner: type) -> Callable[..., Awaitable[T]]: ...
    @overload
    def __get__(self, proxy: "AsyncProxy", owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, proxy: "AsyncProxy | None", owner: type) -> Callable[..., Any]:
        return self._method if proxy is None else partial(proxy.wait, self._method, proxy.inner)


class AsyncProxy:
    """Base of portal objects: represents an object that is used in trio's thread."""

    inner: Any
    """Proxied object. Use it only in trio's thread, e.g. inside `portal.call`."""

    def __init__(self, portal: "AsyncPortal") -> None:
        self._portal = portal

    async def wait(self, fn: Callable[..., Any], *args: object, **options: object) -> Any:
        """Call a function in trio's thread and return its result."""
        return await self._portal.call(fn, *args, **options)

    async def _read(self, fn: Callable[[], T]) -> T:
        """Read an attribute in trio's thread."""
        return await self._portal.call(fn)


@hints_for_asyncio_sessions
class AsyncPortalSession(AttachesHandlers, AsyncProxy, Generic[DataT_co]):
    """A `Session` for asyncio: same methods and arguments, but calls are awaited; properties are async methods.

    Handlers run on the event loop that registers them: sync handlers in its thread, async handlers as tasks.
    """

    def __init__(self, portal: "AsyncPortal", session: Session[DataT_co]) -> None:
        super().__init__(portal)
        self.inner: Session[DataT_co] = session
        """The session; use it only in trio's thread, e.g. inside `portal.call`."""
        self.id: str = session.id
        self.agent_name: str = session.agent_name
        self.owner: Sender = session.owner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.owner.name!r}>"

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
    set_mode = AsyncioMethod(Session.set_mode)
    hand_back = AsyncioMethod(Session.hand_back)
    inject = AsyncioMethod(Session.inject)
    aclose = AsyncioMethod(Session.aclose)

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
        return await self._read(create)

    def follow(self, *, after: int | None = 0) -> AsyncPortalStream[FollowedItem]:
        """Read the session's records and partial answers: `async with session.follow() as items`.

        Arguments and errors are those of `Session.follow`.
        """
        return self._portal.read(entered_on_trio(partial(self.inner.follow, after=after)))

    def observe(
        self,
        *,
        types: Collection[ObservedType] | None = None,
        turn: str | None = None,
        after: int | None = None,
    ) -> AsyncPortalStream[Observed]:
        """Read observations: `async with session.observe() as observations`.

        Arguments and errors are those of `Session.observe`.
        """
        return self._portal.read(
            entered_on_trio(partial(self.inner.observe, types=types, turn=turn, after=after))
        )

    def _attach(self, method: Callable[..., Any], handler: Handler) -> None:
        self._portal.send(method, self.inner, self._portal.make_handler_proxy(handler))

    def remove_handler(self, handler: Handler) -> None:
        """Remove all registrations of a handler."""
        self._portal.send(self.inner.remove_handler, handler)

    @asynccontextmanager
    async def listening(self, **handlers: Unpack[HandlerOptions]) -> AsyncGenerator[Self, None]:
        """Register handlers for the duration of a block, by name: `on_token=`, `on_conversation=`, ..."""
        block = self.inner.listening(**self._portal.handler_proxies(handlers))
        await self.wait(block.__enter__)
        try:
            yield self
        finally:
            with suppress(PortalClosed):
                self._portal.send(block.__exit__, None, None, None)

    async def history(self) -> tuple[Message, ...]:
        """Return all messages of the session, oldest first."""
        return await self._read(lambda: self.inner.history)

    async def state(self) -> Mapping[str, Any]:
        """Return a copy of the session's current state; change the state with `dispatch`."""
        return await self._read(lambda: self.inner.state.snapshot)

    async def dispatch(self, action: Any, *args: Any, once: str = "") -> None:
        """Run an action on the session's state; see `Session.state.dispatch`."""
        await self.wait(lambda: self.inner.state.dispatch(action, *args, once=once))

    async def status(self) -> Status:
        """Return the session's status: idle, working, suspended or closed."""
        return await self._read(lambda: self.inner.status)

    async def description(self) -> str:
        """Return the description that the session was created with."""
        return await self._read(lambda: self.inner.description)

    async def tags(self) -> tuple[str, ...]:
        """Return the tags of the session, sorted; `annotate` changes them."""
        return await self._read(lambda: self.inner.tags)

    async def metadata(self) -> Mapping[str, str]:
        """Return the metadata of the session; `annotate` changes it."""
        return await self._read(lambda: self.inner.metadata)

    async def is_durable(self) -> bool:
        """Return True if a journal stores the session, so that it can be resumed in another process."""
        return await self._read(lambda: self.inner.is_durable)

    async def on_busy(self) -> OnBusy:
        """Return the rule for messages that arrive while the session works."""
        return await self._read(lambda: self.inner.on_busy)

    async def parent(self) -> "AsyncPortalSession[Any] | None":
        """Return the parent session; None for a root session."""
        parent = await self._read(lambda: self.inner.parent)
        return None if parent is None else AsyncPortalSession(self._portal, parent)

    async def children(self) -> "tuple[AsyncPortalSession[Any], ...]":
        """Return the open child sessions."""
        children = await self._read(lambda: self.inner.children)
        return tuple(AsyncPortalSession(self._portal, child) for child in children)

    async def usage(self) -> Usage:
        """Return token usage and cost of the session's model calls."""
        return await self._read(lambda: self.inner.usage)

    async def approvals(self) -> tuple[Approval, ...]:
        """Return tool calls that wait for a decision, oldest first."""
        return await self._read(lambda: self.inner.approvals)

    async def caller_calls(self) -> tuple[Approval, ...]:
        """Return open calls of the caller's own tools, oldest first; see `Session.chat(tools=...)`."""
        return await self._read(lambda: self.inner.caller_calls)

    async def schedules(self) -> tuple[Schedule, ...]:
        """Return the session's schedules, next one first."""
        return await self._read(lambda: self.inner.schedules)

    async def handoff_agent(self) -> str:
        """Return the name of the agent that the session was handed off to; empty without a handoff."""
        return await self._read(lambda: self.inner.handoff_agent)

    async def label(self) -> Label:
        """Return the label of the next request to the model: the untrusted sources on which the conversation depends."""
        return await self._read(lambda: self.inner.label)

    async def mode(self) -> str:
        """Return the session's current mode."""
        return await self._read(lambda: self.inner.mode)

    async def mode_changes(self) -> tuple[ModeChange, ...]:
        """Return the last 100 mode changes, oldest first."""
        return await self._read(lambda: self.inner.mode_changes)


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

    async def system_prompt(self) -> str:
        """Return the agent's system prompt, as in `Agent.system_prompt`."""
        return await self._read(lambda: self.inner.system_prompt)

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
        """Send a message and return the reply.

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
        """Send a message and read its deliveries: `async with agent.stream("...") as deliveries`.

        Arguments and errors are those of `Agent.stream`.
        """
        block = self.inner.stream(content, session=unwrap(session), output=output, **options)
        return self._portal.read(block)

    def follow(self, session: AsyncPortalSession[Any]) -> AsyncPortalStream[Delivery]:
        """Read the deliveries of a suspended turn after it resumes. Arguments and errors are those of `Agent.follow`."""
        return self._portal.read(self.inner.follow(session.inner))

    async def create_session(
        self,
        owner: Sender | str,
        description: Content = "",
        *,
        session_id: str | None = None,
        parent: AsyncPortalSession[Any] | None = None,
        prompt: Prompt | None = None,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        deps: DepsT | None = None,
        history: Iterable[ImportedMessage] = (),
        tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
        **handlers: Unpack[HandlerOptions],
    ) -> AsyncPortalSession[DataT_co]:
        """Create a session. Arguments and errors are those of `Agent.create_session`.

        Handlers passed by name also receive the deliveries of `description`.
        """
        create = partial(
            self.inner.create_session,
            owner,
            description,
            session_id=session_id,
            parent=unwrap(parent),
            prompt=prompt,
            on_busy=on_busy,
            limits=limits,
            deps=deps,
            history=history,
            tags=tags,
            metadata=metadata,
        )
        session = await self.wait(create_with_handlers, create, self._portal.handler_proxies(handlers))
        return AsyncPortalSession(self._portal, session)

    async def open_session(
        self, session_id: str, *, owner: Sender | str | None = None, deps: DepsT | None = None
    ) -> AsyncPortalSession[DataT_co]:
        """Return this agent's session with the given id. Arguments and errors are those of `Agent.open_session`."""
        return AsyncPortalSession(
            self._portal, await self.wait(self.inner.open_session, session_id, owner=owner, deps=deps)
        )

    async def ensure_session(
        self,
        owner: Sender | str,
        session_id: str,
        *,
        parent: AsyncPortalSession[Any] | None = None,
        prompt: Prompt | None = None,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        deps: DepsT | None = None,
        history: Iterable[ImportedMessage] = (),
        tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncPortalSession[DataT_co]:
        """Return this agent's session with the given id, or create it.

        Arguments and errors are those of `Agent.ensure_session`.
        """
        ensure = partial(
            self.inner.ensure_session,
            owner,
            session_id,
            parent=unwrap(parent),
            prompt=prompt,
            on_busy=on_busy,
            limits=limits,
            deps=deps,
            history=history,
            tags=tags,
            metadata=metadata,
        )
        session = await self.wait(ensure)
        return AsyncPortalSession(self._portal, session)

    def _hook(self, method: Callable[..., Any], hook: Handler, **options: Any) -> None:
        self._portal.send(method, self.inner, self._portal.hook(method, hook, **options), **options)

    def remove_hook(self, fn: Handler) -> None:
        """Remove all registrations of a function given to `on_session`, `on_query`, `on_message` or `guard`."""
        self._portal.send(self.inner.remove_hook, fn)


class AsyncPortal:
    """A runtime on trio in a background thread, for asyncio; opened by `open_portal`. Several event loops can use it."""

    def __init__(self, thread: TrioThread[Runtime], runtime: Runtime) -> None:
        self.thread = thread
        self.runtime = runtime
        """The runtime; use it only in trio's thread, e.g. `await portal.call(portal.runtime.spawn, Till)`."""

    async def start(self, agent: Agent[DataT_co, DepsT]) -> AsyncPortalAgent[DataT_co, DepsT]:
        """Start an agent in the portal's runtime, and return its proxy. Arguments and errors are those of `Runtime.start`."""
        await self.call(self.runtime.start, agent)
        return AsyncPortalAgent(self, agent)

    @asynccontextmanager
    async def starting(self) -> AsyncGenerator[None, None]:
        """Return a context manager in which several agents are started.

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

    async def ready(self) -> None:
        """Report that all agents have been started. Arguments and errors are those of `Runtime.ready`."""
        await self.call(self.runtime.ready)

    @overload
    async def call(self, fn: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T: ...
    @overload
    async def call(self, fn: Callable[P, T], *args: P.args, **options: P.kwargs) -> T: ...
    async def call(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a sync or async function in trio's thread, and return its result.

        The function has the caller's context variables. Cancelling the caller cancels the function and waits until it
        ends; if it has just ended, its result is dropped.

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

    def send(self, fn: Callable[..., Any], *args: Any, **options: Any) -> None:
        """Call a sync function in trio's thread without waiting for its result. Calls run in the order of sending.

        Exceptions of the function are ignored.

        Raises:
            PortalClosed: The portal accepts no calls.
        """
        self.thread.send(partial(fn, *args, **options), ignore)

    def read(self, block: AbstractAsyncContextManager[trio.abc.ReceiveChannel[T]]) -> AsyncPortalStream[T]:
        """Read a trio channel with `async with` and `async for`.

        Args:
            block: Async context manager that yields the channel.
        """
        return AsyncPortalStream(self.thread, self.call, self.send, block)

    def events(self, capacity: int = 1000) -> AsyncPortalStream[Observation]:
        """Read all observations of the runtime from now on. Arguments and errors are those of `Runtime.events`."""
        return self.read(self.runtime.events(capacity))

    async def approvals(
        self, *, owner: Sender | str | None = None, after: Approval | None = None, limit: int = 100
    ) -> tuple[Approval, ...]:
        """Return a page of the pending approvals of all agents. Arguments and errors are those of `Runtime.approvals`."""
        return await self.call(self.runtime.approvals, owner=owner, after=after, limit=limit)

    async def sessions(
        self,
        *,
        owner: Sender | str | None = None,
        agent: str | None = None,
        state: Status | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
        after: SessionSummary | None = None,
        limit: int = 100,
    ) -> tuple[SessionSummary, ...]:
        """Return a page of session summaries, latest change first. Arguments and errors are those of `Runtime.sessions`."""
        listing = partial(
            self.runtime.sessions, owner=owner, agent=agent, state=state, tags=tags, metadata=metadata
        )
        return await self.call(listing, after=after, limit=limit)

    async def delete_session(self, session_id: str, *, agent: str | None = None) -> None:
        """Close a session and its child sessions, and erase their records.

        Arguments and errors are those of `Runtime.delete_session`.
        """
        await self.call(self.runtime.delete_session, session_id, agent=agent)

    async def aclose(self) -> None:
        """Finish accepted messages, then stop the agents and the thread. A second call waits for the first.

        Pending calls still get their results; calls that are pending after that raise `PortalClosed`. Cancelling the
        caller stops the agents at once.

        Raises:
            UsageError: Called from a tool or handler of one of the portal's agents.
            Exception: The error that ended the runtime, e.g. `ActorFailed`, or `ThreadsStillRunning`.
        """
        await end_async(self.thread, abort=False)

    # --- used by agents and sessions of the portal ----------------------------------------------

    def make_handler_proxy(self, handler: Handler) -> Handler:
        """Wrap a handler for trio, so that it is called on the running event loop."""
        return make_handler_proxy(LoopContext(running_loop()), handler, self._wrap_session)

    def handler_proxies(self, handlers: HandlerOptions) -> dict[str, Any]:
        """Return functions, by handler name, that trio can call and that run the given handlers on the event loop."""
        return {
            name: self.make_handler_proxy(handler) for name, handler in handlers.items() if callable(handler)
        }

    def hook(self, method: Callable[..., Any], hook: Handler, **options: object) -> Handler:
        """Wrap a hook of an asyncio program, so that agents on trio call it in the asyncio event loop of the caller.

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
    """Return the running asyncio event loop.

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
    """Close the portal's thread and wait for its end. Cancelling the caller stops the agents at once."""
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
