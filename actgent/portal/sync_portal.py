"""Portal for synchronous code: agents and sessions whose methods run on trio and block until they are done."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, cast, overload

import trio

from actgent.agents.agent import Agent
from actgent.agents.keyword_argument_types import FormT, MessageOptions, SessionOptions
from actgent.agents.session import Session
from actgent.approvals import Approval
from actgent.errors import PortalClosed
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
from actgent.support.common_mistake_hints import hints_for_portal_agents, hints_for_portal_sessions
from actgent.tools.tool_interface import DepsT

from .handler_proxies import SessionHookProxy, ThreadContext, make_handler_proxy
from .handler_registration import AttachesHooks, HandlerOptions, SessionAndHandlerOptions
from .portal_streams import PortalStream
from .trio_context_managers import HeldBlock, entered_on_trio
from .trio_thread import TrioThread

P = ParamSpec("P")
T = TypeVar("T")


class SyncMethod(Generic[P, T]):
    """Descriptor of a proxy class for an async method of the trio object. A call blocks until trio has run the method."""

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, proxy: None, owner: type) -> Callable[..., Awaitable[T]]: ...
    @overload
    def __get__(self, proxy: "Proxy | Portal", owner: type) -> Callable[P, T]: ...
    def __get__(self, proxy: "Proxy | Portal | None", owner: type) -> Callable[..., Any]:
        return self._method if proxy is None else partial(proxy.wait, self._method, proxy.inner)


class SyncSessionMethod(Generic[P, T]):
    """Descriptor of a proxy class for an async method that returns a session. A call blocks and returns the session's proxy.

    Args:
        method: Method of the trio object.
        proxy_class: Class of the session's proxy.
    """

    def __init__(
        self, method: Callable[Concatenate[Any, P], Awaitable[Any]], proxy_class: Callable[["Portal", Any], T]
    ) -> None:
        self._method = method
        self._proxy_class = proxy_class
        self.__doc__ = method.__doc__

    def __get__(self, proxy: "Proxy | None", owner: type) -> Callable[P, T]:
        if proxy is None:
            return self._method  # type: ignore[return-value] # only help() reads it

        def call(*args: P.args, **options: P.kwargs) -> T:
            return self._proxy_class(proxy.portal, proxy.wait(self._method, proxy.inner, *args, **options))

        return call


class SyncStreamMethod(Generic[P, T]):
    """Descriptor of a proxy class for a method that opens a trio channel. A call returns a stream for `with` and `for`."""

    def __init__(
        self, method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[trio.abc.ReceiveChannel[T]]]
    ) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, proxy: "Proxy | None", owner: type) -> Callable[P, PortalStream[T]]:
        if proxy is None:
            return self._method  # type: ignore[return-value] # only help() reads it

        def call(*args: P.args, **options: P.kwargs) -> PortalStream[T]:
            return proxy.portal.read(entered_on_trio(partial(self._method, proxy.inner, *args, **options)))

        return call


class SyncProperty(property, Generic[T]):
    """Descriptor of a proxy class for a property of the trio object, which is read in trio's thread.

    Args:
        source: Property of the trio object's class.
    """

    def __init__(self, source: Any) -> None:
        super().__init__(lambda proxy: proxy.wait(source.__get__, proxy.inner))
        self.__doc__ = source.__doc__

    def __get__(self, proxy: Any, owner: type | None = None) -> T:  # type: ignore[override] # a class has the property itself
        value: T = super().__get__(proxy, owner)
        return value


class Proxy:
    """Base class of synchronous proxies. A proxy represents an object that can be used only in trio's thread."""

    inner: Any
    """The represented object. Use it only in trio's thread, for example in a function passed to `portal.call`."""

    def __init__(self, portal: "Portal") -> None:
        self.portal = portal

    def wait(self, fn: Callable[..., Any], *args: object, **options: object) -> Any:
        """Call a function in trio's thread and return its result."""
        return self.portal.call(fn, *args, **options)


class SessionProxy(HandlerMethods, Proxy):
    """Base class of synchronous proxies of sessions. Handlers run in threads of the portal."""

    def __init__(self, portal: "Portal", session: Any) -> None:
        super().__init__(portal)
        self.inner = session
        self.id: str = session.id
        self.agent_name: str = session.agent_name
        self.owner: Sender = session.owner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.owner.name!r}>"

    def _on(self, kind: HandlerKind, handler: H) -> H:
        self.wait(getattr(self.inner, f"on_{kind}"), self._handler_proxy(handler))
        return handler

    def _handler_proxy(self, handler: Handler) -> Handler:
        return make_handler_proxy(self.portal.handler_context, handler, lambda _: self)

    def remove_handler(self, handler: Handler) -> None:
        """Detach a handler from all kinds of deliveries for which it is registered."""
        self.wait(self.inner.remove_handler, handler)

    @contextmanager
    def listening(self, **handlers: Unpack[HandlerOptions]) -> Iterator[Self]:
        """Register handlers by name (`on_token=`, `on_conversation=`, ...) for the duration of the `with` block."""
        block = self.inner.listening(**wrap_all(handlers, self._handler_proxy))
        self.wait(block.__enter__)
        try:
            yield self
        finally:
            self.wait(block.__exit__, None, None, None)


@hints_for_portal_sessions
class PortalSession(SessionProxy, Generic[DataT_co]):
    """A `Session` for synchronous code: same methods and arguments, but calls block.

    Handlers run in threads of the portal: those of one session one after the other, those of different sessions
    concurrently. An async handler runs on trio and receives trio objects. Properties are read from trio at each access.
    """

    inner: Session[DataT_co]
    """The `Session` on trio. Use it only in trio's thread, for example in a function passed to `portal.call`."""

    chat = SyncMethod(Session.chat)
    interrupt = SyncMethod(Session.interrupt)
    schedule = SyncMethod(Session.schedule)
    unschedule = SyncMethod(Session.unschedule)
    wait_idle = SyncMethod(Session.wait_idle)
    delegate = SyncMethod(Session.delegate)
    cancel_task = SyncMethod(Session.cancel_task)
    messages = SyncMethod(Session.messages)
    observations = SyncMethod(Session.observations)
    message_trace = SyncMethod(Session.message_trace)
    answer = SyncMethod(Session.answer)
    annotate = SyncMethod(Session.annotate)
    lift = SyncMethod(Session.lift)
    set_mode = SyncMethod(Session.set_mode)
    hand_back = SyncMethod(Session.hand_back)
    inject = SyncMethod(Session.inject)
    close = SyncMethod(Session.aclose)
    follow = SyncStreamMethod(Session.follow)
    observe = SyncStreamMethod(Session.observe)
    history = SyncProperty[tuple[Message, ...]](Session.history)
    status = SyncProperty[Status](Session.status)
    description = SyncProperty[str](Session.description)
    tags = SyncProperty[tuple[str, ...]](Session.tags)
    metadata = SyncProperty[Mapping[str, str]](Session.metadata)
    is_durable = SyncProperty[bool](Session.is_durable)
    on_busy = SyncProperty[OnBusy](Session.on_busy)
    usage = SyncProperty[Usage](Session.usage)
    approvals = SyncProperty[tuple[Approval, ...]](Session.approvals)
    caller_calls = SyncProperty[tuple[Approval, ...]](Session.caller_calls)
    schedules = SyncProperty[tuple[Schedule, ...]](Session.schedules)
    handoff_agent = SyncProperty[str](Session.handoff_agent)
    label = SyncProperty[Label](Session.label)
    mode = SyncProperty[str](Session.mode)
    mode_changes = SyncProperty[tuple[ModeChange, ...]](Session.mode_changes)

    def create_message(
        self,
        content: Content,
        sender: Sender | str | None = None,
        *,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        on_busy: OnBusy | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Message:
        """Return the message that `chat` would send, without sending it; pass it to `PortalAgent.receive`."""
        create = partial(self.inner.create_message, content, sender, priority=priority)
        create = partial(create, message_id=message_id, on_busy=on_busy, metadata=metadata)
        return self.wait(create)  # type: ignore[no-any-return]

    def _handler_proxy(self, handler: Handler) -> Handler:
        return self.portal.make_handler_proxy(handler)

    @property
    def state(self) -> Mapping[str, Any]:
        """Copy of the session's current state. To change the state, use `dispatch`."""
        return self.wait(lambda: self.inner.state.snapshot)  # type: ignore[no-any-return]

    def dispatch(self, action: Any, *args: Any, once: str = "") -> None:
        """Run an action that changes the session's state; see `Session.state.dispatch`."""
        self.wait(lambda: self.inner.state.dispatch(action, *args, once=once))

    @property
    def parent(self) -> "PortalSession[Any] | None":
        """Parent of this session; None for a root session."""
        parent = self.wait(lambda: self.inner.parent)
        return None if parent is None else PortalSession(self.portal, parent)

    @property
    def children(self) -> "tuple[PortalSession[Any], ...]":
        """Open child sessions of this session."""
        return tuple(PortalSession(self.portal, child) for child in self.wait(lambda: self.inner.children))


@hints_for_portal_agents
class PortalAgent(AttachesHooks, Proxy, Generic[DataT_co, DepsT]):
    """An `Agent` for synchronous code: same methods and arguments, but calls block."""

    def __init__(self, portal: "Portal", agent: Agent[DataT_co, DepsT]) -> None:
        super().__init__(portal)
        self.inner: Agent[DataT_co, DepsT] = agent
        """The agent; use it only in trio's thread, e.g. inside `portal.call`."""
        self.name = agent.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    receive = SyncMethod(Agent.receive)
    answer = SyncMethod(Agent.answer)
    resume = SyncMethod(Agent.resume)
    approvals = SyncMethod(Agent.approvals)
    open_session = SyncSessionMethod(Agent.open_session, PortalSession[DataT_co])
    system_prompt = SyncProperty[str](Agent.system_prompt)

    @overload
    def run(
        self,
        content: Content,
        *,
        session: PortalSession[Any] | None = None,
        output: type[FormT],
        **options: Unpack[MessageOptions[DepsT]],
    ) -> Reply[FormT]: ...
    @overload
    def run(
        self,
        content: Content,
        *,
        session: PortalSession[Any] | None = None,
        output: None = None,
        **options: Unpack[MessageOptions[DepsT]],
    ) -> Reply[DataT_co]: ...
    @overload
    def run(
        self,
        content: Content,
        *,
        session: PortalSession[Any] | None = None,
        output: object,
        **options: Unpack[MessageOptions[DepsT]],
    ) -> Reply: ...
    def run(self, content: Content, *, session: PortalSession[Any] | None = None, **options: Any) -> Reply:
        """Send a message, wait for the reply, and return it. Arguments and errors are those of `Agent.run`. Ctrl-C stops the turn."""
        return self.wait(self.inner.run, content, session=unwrap(session), **options)  # type: ignore[no-any-return]

    def stream(
        self,
        content: Content,
        *,
        session: PortalSession[Any] | None = None,
        output: object = None,
        **options: Unpack[MessageOptions[DepsT]],
    ) -> PortalStream[Delivery]:
        """Send a message and stream the deliveries of its turn: `with agent.stream("...") as deliveries`.

        Arguments and errors are those of `Agent.stream`.
        """
        block = self.inner.stream(content, session=unwrap(session), output=output, **options)
        return self.portal.read(block)

    def follow(self, session: PortalSession[Any]) -> PortalStream[Delivery]:
        """Stream the deliveries of a suspended turn after it resumes. Arguments and errors are those of `Agent.follow`."""
        return self.portal.read(self.inner.follow(session.inner))

    def create_session(
        self,
        owner: Sender | str,
        description: Content = "",
        *,
        session_id: str | None = None,
        parent: PortalSession[Any] | None = None,
        **options: Unpack[SessionAndHandlerOptions[DepsT]],
    ) -> PortalSession[DataT_co]:
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
        session = self.wait(create_with_handlers, create, self.portal.handler_proxies(handlers))
        return PortalSession(self.portal, session)

    def ensure_session(
        self,
        owner: Sender | str,
        session_id: str,
        *,
        parent: PortalSession[Any] | None = None,
        **options: Unpack[SessionOptions[DepsT]],
    ) -> PortalSession[DataT_co]:
        """Return this agent's session with the given id, or create it.

        Arguments and errors are those of `Agent.ensure_session`.
        """
        ensure = partial(self.inner.ensure_session, owner, session_id, parent=unwrap(parent), **options)
        return PortalSession(self.portal, self.wait(ensure))

    def _hook(self, method: Callable[..., Any], hook: Handler, **options: Any) -> None:
        self.wait(method, self.inner, self.portal.hook(method, hook, **options), **options)

    def remove_hook(self, fn: Handler) -> None:
        """Remove all registrations of a function that was passed to `on_session`, `on_query`, `on_message` or `guard`."""
        self.wait(self.inner.remove_hook, fn)


class Portal:
    """A runtime on trio in a background thread, for synchronous code; opened by `open_portal`."""

    def __init__(self, thread: TrioThread[Runtime]) -> None:
        self.thread = thread
        self.runtime: Runtime = thread.opened.result()
        """The runtime; use it only in trio's thread, e.g. `portal.call(portal.runtime.spawn, Till)`."""
        self.inner = self.runtime
        self.handler_context = ThreadContext(self.runtime.threads)

    def start(self, agent: Agent[DataT_co, DepsT]) -> PortalAgent[DataT_co, DepsT]:
        """Start an agent in the portal's runtime, and return its proxy. Arguments and errors are those of `Runtime.start`."""
        self.call(self.runtime.start, agent)
        return PortalAgent(self, agent)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Open a `with` block in which several agents are started together.

        Arguments and errors are those of `Runtime.starting`.
        """
        held = HeldBlock(self.thread, self.runtime.starting())
        self.call(held.enter)
        try:
            yield
        except BaseException as error:
            self.call(held.exit, error)
            raise
        self.call(held.exit, None)

    ready = SyncMethod(Runtime.ready)
    approvals = SyncMethod(Runtime.approvals)
    sessions = SyncMethod(Runtime.sessions)
    delete_session = SyncMethod(Runtime.delete_session)

    @overload
    def call(self, fn: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T: ...
    @overload
    def call(self, fn: Callable[P, T], *args: P.args, **options: P.kwargs) -> T: ...
    def call(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a sync or async function in trio's thread, and return its result.

        The function has the caller's context variables. Ctrl-C cancels the function and waits until it ends; a second
        Ctrl-C stops waiting.

        Raises:
            PortalClosed: The portal is closed, or closes before the function has ended.
            UsageError: The caller's thread runs trio, which the call would block.
        """
        return self.thread.wait(partial(fn, *args, **options) if args or options else fn)

    wait = call

    def send(self, fn: Callable[..., Any], *args: Any) -> None:
        """Call a sync function in trio's thread without waiting for its result. Calls run in the order of sending.

        Exceptions of the function are ignored. If the portal is closed, nothing is called.
        """
        with suppress(PortalClosed):
            self.thread.send(partial(fn, *args), ignore)

    def read(self, block: AbstractAsyncContextManager[trio.abc.ReceiveChannel[T]]) -> PortalStream[T]:
        """Return a stream that reads a trio channel with `with` and `for`.

        Args:
            block: Async context manager on trio that yields the channel.
        """
        return PortalStream(self.thread, self.call, self.send, block)

    def events(self, capacity: int = 1000) -> PortalStream[Observation]:
        """Stream all observations of the runtime from now on. Arguments and errors are those of `Runtime.events`."""
        return self.read(self.runtime.events(capacity))

    def close(self) -> None:
        """Finish accepted messages, then stop the agents and the thread. A second call waits for the first.

        Pending calls get their results while the agents finish. Calls that are still pending after that raise `PortalClosed`.
        Ctrl-C stops the agents at once.

        Raises:
            UsageError: Called from a tool or handler of one of the portal's agents.
            Exception: The error that ended the runtime, e.g. `ActorFailed`, or `ThreadsStillRunning`.
        """
        self._end(abort=False)

    def abort(self) -> None:
        """Close the portal at once, without finishing accepted messages."""
        self._end(abort=True)

    def _end(self, *, abort: bool) -> None:
        end(self.thread, abort=abort)

    # --- used by agents and sessions of the portal ----------------------------------------------

    def make_handler_proxy(self, handler: Handler) -> Handler:
        """Wrap a handler for registration on trio, so that the handler is called in a thread of the portal."""
        return make_handler_proxy(self.handler_context, handler, self._wrap_session)

    def handler_proxies(self, handlers: HandlerOptions) -> dict[str, Any]:
        """Wrap handlers for registration on trio, by handler name, so that they are called in threads of the portal."""
        return wrap_all(handlers, self.make_handler_proxy)

    def hook(self, method: Callable[..., Any], hook: Handler, **options: object) -> Handler:
        """Wrap a hook for registration with an agent's method on trio, so that the hook is called in a thread of the portal.

        A hook of `on_session` receives a synchronous session. An `on="input"` hook is returned unchanged.

        Args:
            method: Method of the agent that registers the hook.
            hook: Function to register.
            options: Options of the registration.
        """
        if method is Agent.on_session:
            check_called("on_session()", hook, is_alone=True)
            return SessionHookProxy(self.handler_context, hook, self._wrap_session)
        if options.get("on") == "input":
            return hook
        return self.make_handler_proxy(hook)

    def _wrap_session(self, session: Session[Any]) -> PortalSession[Any]:
        return PortalSession(self, session)


def ignore() -> None:
    """Do nothing. Completion callback of calls for whose end no thread waits."""


def wrap_all(handlers: HandlerOptions, wrap: Callable[[Handler], Handler]) -> dict[str, Any]:
    """Wrap each handler with `wrap`, by the name of the method that registers it. Handlers of None are left out."""
    return {name: wrap(handler) for name, handler in handlers.items() if callable(handler)}


def split_handlers(options: Mapping[str, Any]) -> tuple[dict[str, Any], HandlerOptions]:
    """Split options into the arguments of `Agent.create_session` and the handlers."""
    handlers = {name: value for name, value in options.items() if name in HandlerOptions.__annotations__}
    return {name: value for name, value in options.items() if name not in handlers}, cast(
        HandlerOptions, handlers
    )


def unwrap(session: Any) -> Any:
    """Return the trio session of a session proxy. Other values are returned unchanged, so that `Agent` raises the error."""
    return getattr(session, "inner", session)


async def create_with_handlers(
    create: Callable[[], Awaitable[Session[DataT_co]]], handlers: Mapping[str, Handler]
) -> Session[DataT_co]:
    """Call `create` to create a session, and register handlers before the session processes its first message."""
    session = await create()
    for name, handler in handlers.items():
        getattr(session, name)(handler)
    return session


def end(thread: TrioThread[Any], *, abort: bool) -> None:
    """Close the portal's thread and wait until it ends. `abort=True` or Ctrl-C stops the agents at once.

    A second Ctrl-C stops waiting.
    """
    thread.close(abort=abort)
    if not thread.is_own_process:
        return
    try:
        thread.ended.exception()
    except BaseException:
        thread.close(abort=True)
        thread.ended.exception()
        raise
    thread.join()
    thread.ended.result()
