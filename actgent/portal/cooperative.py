"""The portal of asyncio: agents and sessions whose methods are awaited there and run on trio."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

import trio

from actgent.agents.agent import Agent
from actgent.agents.options import FormT, MessageOptions
from actgent.agents.session import Session
from actgent.approvals import Approval
from actgent.control.limits import Limits
from actgent.control.schedule import Schedule
from actgent.errors import PortalClosed, UsageError
from actgent.events import Observation
from actgent.journal.base import SessionSummary
from actgent.messages import (
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
from actgent.modes.changes import ModeChange
from actgent.protocols.prompt_layers import Prompt
from actgent.runtime.runtime import Runtime
from actgent.sessions.context import Status
from actgent.sessions.following import Follow, Observed, ObservedType
from actgent.sessions.handlers import Handler, check_called
from actgent.sessions.history import Former
from actgent.sessions.incoming import Content
from actgent.support.leads import for_asyncio_agents, for_asyncio_sessions
from actgent.tools.base import DepsT

from .attaching import AttachesHandlers, AttachesHooks, HandlerOptions
from .blocking import create_listening, nothing, unwrapped
from .handlers import CrossingForSession, LoopWorld, crossing, is_awaited
from .held import HeldBlock, made_on_trio
from .streams import AsyncPortalStream
from .thread import TrioThread

P = ParamSpec("P")
T = TypeVar("T")


class Awaiting(Generic[P, T]):
    """An async method of what a proxy stands for, as a method of the proxy to await in asyncio; arguments are the same."""

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
    """Something that lives on trio, for code on asyncio."""

    inner: Any
    """What it stands for, for code on trio."""

    def __init__(self, portal: "AsyncPortal") -> None:
        self._portal = portal

    async def wait(self, fn: Callable[..., Any], *args: object, **options: object) -> Any:
        """Have a function called on trio, and wait for what it returns."""
        return await self._portal.call(fn, *args, **options)

    async def _look(self, fn: Callable[[], T]) -> T:
        return await self._portal.call(fn)


@for_asyncio_sessions
class AsyncPortalSession(AttachesHandlers, AsyncProxy, Generic[DataT_co]):
    """A `Session` for asyncio: its methods take the same arguments, and are awaited; attributes are asked for as methods.

    Handlers are called on the loop that attaches them: sync ones in its thread, async ones as tasks of it.
    """

    def __init__(self, portal: "AsyncPortal", session: Session[DataT_co]) -> None:
        super().__init__(portal)
        self.inner: Session[DataT_co] = session
        """The session on trio, for `portal.call`."""
        self.id: str = session.id
        self.agent_name: str = session.agent_name
        self.owner: Sender = session.owner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.owner.name!r}>"

    chat = Awaiting(Session.chat)
    interrupt = Awaiting(Session.interrupt)
    schedule = Awaiting(Session.schedule)
    unschedule = Awaiting(Session.unschedule)
    wait_idle = Awaiting(Session.wait_idle)
    delegate = Awaiting(Session.delegate)
    cancel_task = Awaiting(Session.cancel_task)
    messages = Awaiting(Session.messages)
    observations = Awaiting(Session.observations)
    links = Awaiting(Session.links)
    answer = Awaiting(Session.answer)
    set_mode = Awaiting(Session.set_mode)
    hand_back = Awaiting(Session.hand_back)
    deliver = Awaiting(Session.deliver)
    aclose = Awaiting(Session.aclose)

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
        """Make the message that `chat` would send, for `AsyncPortalAgent.receive`; see `Session.create_message`."""
        making = partial(self.inner.create_message, content, sender, priority=priority)
        making = partial(making, message_id=message_id, on_busy=on_busy, metadata=metadata)
        return await self._look(making)

    def follow(self, *, after: int | None = 0) -> AsyncPortalStream[Follow]:
        """Read the session's records and what grows, as `Session.follow` does: `async with session.follow() as items`."""
        return self._portal.read(made_on_trio(partial(self.inner.follow, after=after)))

    def observe(
        self,
        *,
        types: Collection[ObservedType] | None = None,
        turn: str | None = None,
        after: int | None = None,
    ) -> AsyncPortalStream[Observed]:
        """Read observations, as `Session.observe` does: `async with session.observe() as observed`."""
        return self._portal.read(
            made_on_trio(partial(self.inner.observe, types=types, turn=turn, after=after))
        )

    def _attach(self, method: Callable[..., Any], handler: Handler) -> None:
        self._portal.send(method, self.inner, self._portal.crossing(handler))

    def remove_handler(self, handler: Handler) -> None:
        """Call a handler no more, of whatever kinds and however often it was attached."""
        self._portal.send(self.inner.remove_handler, handler)

    @asynccontextmanager
    async def listening(self, **handlers: Unpack[HandlerOptions]) -> AsyncGenerator[Self, None]:
        """Have handlers called as long as the block lasts; they are given by name: `on_token=`, `on_conversation=`, ..."""
        block = self.inner.listening(**self._portal.crossings(handlers))
        await self.wait(block.__enter__)
        try:
            yield self
        finally:
            with suppress(PortalClosed):
                self._portal.send(block.__exit__, None, None, None)

    async def history(self) -> tuple[Message, ...]:
        """Everything that happened, oldest first."""
        return await self._look(lambda: self.inner.history)

    async def state(self) -> Mapping[str, Any]:
        """The session's state at this moment, a copy; `dispatch` changes it."""
        return await self._look(lambda: self.inner.state.snapshot)

    async def dispatch(self, action: Any, *args: Any, once: str = "") -> None:
        """Run an action on the state, as `Session.state.dispatch` does."""
        await self.wait(lambda: self.inner.state.dispatch(action, *args, once=once))

    async def status(self) -> Status:
        """Tell whether it is idle, working, suspended or closed."""
        return await self._look(lambda: self.inner.status)

    async def description(self) -> str:
        """What it was opened with."""
        return await self._look(lambda: self.inner.description)

    async def is_durable(self) -> bool:
        """Tell whether a journal holds the session, so that it survives its process."""
        return await self._look(lambda: self.inner.is_durable)

    async def on_busy(self) -> OnBusy:
        """The rule for messages while the session works."""
        return await self._look(lambda: self.inner.on_busy)

    async def parent(self) -> "AsyncPortalSession[Any] | None":
        """The session that it works for, if there is one."""
        parent = await self._look(lambda: self.inner.parent)
        return None if parent is None else AsyncPortalSession(self._portal, parent)

    async def children(self) -> "tuple[AsyncPortalSession[Any], ...]":
        """The open sessions that were created with this one as parent."""
        children = await self._look(lambda: self.inner.children)
        return tuple(AsyncPortalSession(self._portal, child) for child in children)

    async def usage(self) -> Usage:
        """The usage of the session's model calls."""
        return await self._look(lambda: self.inner.usage)

    async def approvals(self) -> tuple[Approval, ...]:
        """The tool calls that wait for a person, oldest first."""
        return await self._look(lambda: self.inner.approvals)

    async def schedules(self) -> tuple[Schedule, ...]:
        """The session's schedules, the next first."""
        return await self._look(lambda: self.inner.schedules)

    async def handed_to(self) -> str:
        """The name of the agent that it was handed over to; empty where its own one answers."""
        return await self._look(lambda: self.inner.handed_to)

    async def mode(self) -> str:
        """The mode that it is in."""
        return await self._look(lambda: self.inner.mode)

    async def mode_changes(self) -> tuple[ModeChange, ...]:
        """The last 100 changes of its mode, oldest first."""
        return await self._look(lambda: self.inner.mode_changes)


@for_asyncio_agents
class AsyncPortalAgent(AttachesHooks, AsyncProxy, Generic[DataT_co, DepsT]):
    """An `Agent` for asyncio: its methods take the same arguments, and are awaited."""

    def __init__(self, portal: "AsyncPortal", agent: Agent[DataT_co, DepsT]) -> None:
        super().__init__(portal)
        self.inner: Agent[DataT_co, DepsT] = agent
        """The agent on trio, for `portal.call`."""
        self.name = agent.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    receive = Awaiting(Agent.receive)
    answer = Awaiting(Agent.answer)
    resume = Awaiting(Agent.resume)
    approvals = Awaiting(Agent.approvals)

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
        """Say something and wait for the answer, as `Agent.run` does. Cancelled, it stops the turn."""
        return await self.wait(self.inner.run, content, session=unwrapped(session), **options)  # type: ignore[no-any-return]

    def stream(
        self,
        content: Content,
        *,
        session: AsyncPortalSession[Any] | None = None,
        output: object = None,
        **options: Unpack[MessageOptions[DepsT]],
    ) -> AsyncPortalStream[Delivery]:
        """Say something and read what comes of it, as `Agent.stream` does: `async with agent.stream("...") as events`."""
        block = self.inner.stream(content, session=unwrapped(session), output=output, **options)
        return self._portal.read(block)

    def follow(self, session: AsyncPortalSession[Any]) -> AsyncPortalStream[Delivery]:
        """Read what comes of a suspended turn when it goes on, as `Agent.follow` does."""
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
        history: Iterable[Former] = (),
        **handlers: Unpack[HandlerOptions],
    ) -> AsyncPortalSession[DataT_co]:
        """Open a conversation, as `Agent.create_session` does; handlers that are given here get the answer to the description, too."""
        creating = partial(
            self.inner.create_session,
            owner,
            description,
            session_id=session_id,
            parent=unwrapped(parent),
            prompt=prompt,
            on_busy=on_busy,
            limits=limits,
            deps=deps,
            history=history,
        )
        session = await self.wait(create_listening, creating, self._portal.crossings(handlers))
        return AsyncPortalSession(self._portal, session)

    async def open_session(
        self, session_id: str, *, owner: Sender | str | None = None, deps: DepsT | None = None
    ) -> AsyncPortalSession[DataT_co]:
        """The session of this agent that has this id, as `Agent.open_session` finds it."""
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
        history: Iterable[Former] = (),
    ) -> AsyncPortalSession[DataT_co]:
        """This agent's session of this id, created if there is none."""
        ensuring = partial(
            self.inner.ensure_session,
            owner,
            session_id,
            parent=unwrapped(parent),
            prompt=prompt,
            on_busy=on_busy,
            limits=limits,
            deps=deps,
            history=history,
        )
        session = await self.wait(ensuring)
        return AsyncPortalSession(self._portal, session)

    def _hook(self, method: Callable[..., Any], hook: Handler, **options: Any) -> None:
        self._portal.send(method, self.inner, self._portal.hook(method, hook, **options), **options)

    def remove_hook(self, fn: Handler) -> None:
        """Call a function of `on_session`, `on_query`, `on_message` or `guard` no more, however often it was given."""
        self._portal.send(self.inner.remove_hook, fn)


class AsyncPortal:
    """A runtime on trio in a thread of its own, for asyncio; see `open_portal`. It serves any number of loops."""

    def __init__(self, thread: TrioThread[Runtime], runtime: Runtime) -> None:
        self.thread = thread
        self.runtime = runtime
        """For code on trio, e.g. `await portal.call(portal.runtime.spawn, Till)`."""

    async def start(self, agent: Agent[DataT_co, DepsT]) -> AsyncPortalAgent[DataT_co, DepsT]:
        """Start an agent, as `Runtime.start` does; returns it in the form of this portal."""
        await self.call(self.runtime.start, agent)
        return AsyncPortalAgent(self, agent)

    @asynccontextmanager
    async def starting(self) -> AsyncGenerator[None, None]:
        """A block in which several agents are started, as `Runtime.starting` is."""
        held = HeldBlock(self.thread, self.runtime.starting())
        await self.call(held.enter)
        try:
            yield
        except BaseException as error:
            await self.call(held.leave, error)  # noqa: ASYNC102 - of asyncio; it ends with its portal
            raise
        await self.call(held.leave, None)

    async def ready(self) -> None:
        """All agents are started, see `Runtime.ready`."""
        await self.call(self.runtime.ready)

    @overload
    async def call(self, fn: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T: ...
    @overload
    async def call(self, fn: Callable[P, T], *args: P.args, **options: P.kwargs) -> T: ...
    async def call(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Have a function, sync or async, called in trio's thread, and wait for what it returns or raises.

        It has the caller's context variables. Cancelled, it is cancelled there, and has ended when this raises; where it
        had ended in the same moment, its result is dropped.

        Raises:
            PortalClosed: the portal was closed, before or meanwhile.
            UsageError: no asyncio loop runs here.
        """
        loop, ended = running_loop(), asyncio.Event()
        call = self.thread.send(
            partial(fn, *args, **options) if args or options else fn,
            partial(_tell, loop, ended),
            is_awaited=is_awaited(),
        )
        try:
            await ended.wait()
        except asyncio.CancelledError:
            self.thread.cancel(call)
            await ended.wait()  # noqa: ASYNC102 - of asyncio; a second cancellation ends it
            raise
        return call.result()

    def send(self, fn: Callable[..., Any], *args: Any, **options: Any) -> None:
        """Have a sync function called in trio's thread before what is called after this, without waiting for it."""
        self.thread.send(partial(fn, *args, **options), nothing)

    def read(self, block: AbstractAsyncContextManager[trio.abc.ReceiveChannel[T]]) -> AsyncPortalStream[T]:
        """Read a channel of trio's by `async with` and `async for`; `block` is an `async with` block that gives it."""
        return AsyncPortalStream(self.thread, self.call, self.send, block)

    def events(self, capacity: int = 1000) -> AsyncPortalStream[Observation]:
        """Read everything that happens from now on, as `Runtime.events` does."""
        return self.read(self.runtime.events(capacity))

    async def approvals(
        self, *, owner: Sender | str | None = None, after: Approval | None = None, limit: int = 100
    ) -> tuple[Approval, ...]:
        """List the approvals of all agents, page by page, as `Runtime.approvals` does."""
        return await self.call(self.runtime.approvals, owner=owner, after=after, limit=limit)

    async def sessions(
        self,
        *,
        owner: Sender | str | None = None,
        agent: str | None = None,
        state: Status | None = None,
        after: SessionSummary | None = None,
        limit: int = 100,
    ) -> tuple[SessionSummary, ...]:
        """List sessions by their last change, page by page, as `Runtime.sessions` does."""
        listing = partial(self.runtime.sessions, owner=owner, agent=agent, state=state, after=after)
        return await self.call(listing, limit=limit)

    async def delete_session(self, session_id: str, *, agent: str | None = None) -> None:
        """Close a session and its children, and erase all that the journal has of them; see `Runtime.delete_session`."""
        await self.call(self.runtime.delete_session, session_id, agent=agent)

    async def aclose(self) -> None:
        """Let the agents end what they have accepted, then stop them and the thread. A second call waits for the first.

        Calls that wait get their results until then, and `PortalClosed` after it. Cancelled, it stops the agents at once.

        Raises:
            UsageError: called from a tool or handler of one of its agents.
            Exception: what the runtime ended with, e.g. `ActorFailed` in a group, or `ThreadsLeft`.
        """
        await end_soon(self.thread, abort=False)

    # --- for its agents and sessions -----------------------------------------------------------

    def crossing(self, handler: Handler) -> Handler:
        """Make a handler of the running loop into one that a session can call."""
        return crossing(LoopWorld(running_loop()), handler, self._face)

    def crossings(self, handlers: HandlerOptions) -> dict[str, Any]:
        """The same for handlers by their names."""
        return {name: self.crossing(handler) for name, handler in handlers.items() if callable(handler)}

    def hook(self, method: Callable[..., Any], hook: Handler, **options: object) -> Handler:
        """Make a hook of the running loop into one that an agent can call."""
        if method is Agent.on_session:
            check_called("on_session()", hook, is_alone=True)
            return CrossingForSession(LoopWorld(running_loop()), hook, self._face)
        if options.get("on") == "input":
            return hook
        return self.crossing(hook)

    def _face(self, session: Session[Any]) -> AsyncPortalSession[Any]:
        return AsyncPortalSession(self, session)


def running_loop() -> asyncio.AbstractEventLoop:
    """The loop of asyncio that runs here.

    Raises:
        UsageError: none does.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "an AsyncPortal is for asyncio, and no asyncio loop runs here: in trio await the agent itself, in synchronous "
            "code take `with open_portal() as portal`"
        ) from None


def _tell(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop was closed: nobody waits
        loop.call_soon_threadsafe(ended.set)


async def end_soon(thread: TrioThread[Any], *, abort: bool) -> None:
    """End the thread of a portal, and wait for it; cancelled, have it stop at once, and wait all the same."""
    thread.close(abort=abort)
    if not thread.is_ours:
        return
    ended = asyncio.wrap_future(thread.ended)
    try:
        await asyncio.wait([ended])
    except asyncio.CancelledError:
        thread.close(abort=True)
        await asyncio.wait([ended])  # noqa: ASYNC102 - of asyncio; a second cancellation ends it
        raise
    thread.join()
    await ended
