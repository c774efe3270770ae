"""The portal of synchronous code: agents and sessions whose methods wait for what those on trio return."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

import trio

from actgent.agents.agent import Agent
from actgent.agents.options import FormT, MessageOptions
from actgent.agents.session import Session
from actgent.approvals import Approval
from actgent.control.limits import Limits
from actgent.control.schedule import Schedule
from actgent.errors import PortalClosed
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
from actgent.support.leads import for_portal_agents, for_portal_sessions
from actgent.tools.base import DepsT

from .attaching import AttachesHandlers, AttachesHooks, HandlerOptions
from .handlers import CrossingForSession, ThreadWorld, crossing
from .held import HeldBlock, made_on_trio
from .streams import PortalStream
from .thread import TrioThread

P = ParamSpec("P")
T = TypeVar("T")


class Waiting(Generic[P, T]):
    """An async method of what a proxy stands for, as a method of the proxy that waits; arguments are the same."""

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, proxy: None, owner: type) -> Callable[..., Awaitable[T]]: ...
    @overload
    def __get__(self, proxy: "Proxy", owner: type) -> Callable[P, T]: ...
    def __get__(self, proxy: "Proxy | None", owner: type) -> Callable[..., Any]:
        return self._method if proxy is None else partial(proxy.wait, self._method, proxy.inner)


class Proxy:
    """Something that lives on trio, for code that does not."""

    inner: Any
    """What it stands for, for code on trio."""

    def __init__(self, portal: "Portal") -> None:
        self._portal = portal

    def wait(self, fn: Callable[..., Any], *args: object, **options: object) -> Any:
        """Have a function called on trio, and wait for what it returns."""
        return self._portal.call(fn, *args, **options)

    def _look(self, fn: Callable[[], T]) -> T:
        return self._portal.call(fn)


@for_portal_sessions
class PortalSession(AttachesHandlers, Proxy, Generic[DataT_co]):
    """A `Session` for synchronous code: its methods take the same arguments, and wait.

    Handlers are called in threads of the portal's: those of a session one after the other, those of different sessions
    side by side. An async handler runs on trio, and gets what trio's would. Attributes are asked for at each look.
    """

    def __init__(self, portal: "Portal", session: Session[DataT_co]) -> None:
        super().__init__(portal)
        self.inner: Session[DataT_co] = session
        """The session on trio, for `portal.call`."""
        self.id: str = session.id
        self.agent_name: str = session.agent_name
        self.owner: Sender = session.owner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.owner.name!r}>"

    chat = Waiting(Session.chat)
    interrupt = Waiting(Session.interrupt)
    schedule = Waiting(Session.schedule)
    unschedule = Waiting(Session.unschedule)
    wait_idle = Waiting(Session.wait_idle)
    delegate = Waiting(Session.delegate)
    cancel_task = Waiting(Session.cancel_task)
    messages = Waiting(Session.messages)
    observations = Waiting(Session.observations)
    links = Waiting(Session.links)
    answer = Waiting(Session.answer)
    set_mode = Waiting(Session.set_mode)
    hand_back = Waiting(Session.hand_back)
    deliver = Waiting(Session.deliver)
    close = Waiting(Session.aclose)

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
        """Make the message that `chat` would send, for `PortalAgent.receive`; see `Session.create_message`."""
        making = partial(self.inner.create_message, content, sender, priority=priority)
        making = partial(making, message_id=message_id, on_busy=on_busy, metadata=metadata)
        return self._look(making)

    def follow(self, *, after: int | None = 0) -> PortalStream[Follow]:
        """Read the session's records and what grows, as `Session.follow` does: `with session.follow() as items`."""
        return self._portal.read(made_on_trio(partial(self.inner.follow, after=after)))

    def observe(
        self,
        *,
        types: Collection[ObservedType] | None = None,
        turn: str | None = None,
        after: int | None = None,
    ) -> PortalStream[Observed]:
        """Read observations, as `Session.observe` does: `with session.observe() as observed`."""
        return self._portal.read(
            made_on_trio(partial(self.inner.observe, types=types, turn=turn, after=after))
        )

    def _attach(self, method: Callable[..., Any], handler: Handler) -> None:
        self.wait(method, self.inner, self._portal.crossing(handler))

    def remove_handler(self, handler: Handler) -> None:
        """Call a handler no more, of whatever kinds and however often it was attached."""
        self.wait(self.inner.remove_handler, handler)

    @contextmanager
    def listening(self, **handlers: Unpack[HandlerOptions]) -> Iterator[Self]:
        """Have handlers called as long as the block lasts; they are given by name: `on_token=`, `on_conversation=`, ..."""
        block = self.inner.listening(**self._portal.crossings(handlers))
        self.wait(block.__enter__)
        try:
            yield self
        finally:
            self.wait(block.__exit__, None, None, None)

    @property
    def history(self) -> tuple[Message, ...]:
        """Everything that happened, oldest first."""
        return self._look(lambda: self.inner.history)

    @property
    def state(self) -> Mapping[str, Any]:
        """The session's state at this moment, a copy; `dispatch` changes it."""
        return self._look(lambda: self.inner.state.snapshot)

    def dispatch(self, action: Any, *args: Any, once: str = "") -> None:
        """Run an action on the state, as `Session.state.dispatch` does."""
        self.wait(lambda: self.inner.state.dispatch(action, *args, once=once))

    @property
    def status(self) -> Status:
        return self._look(lambda: self.inner.status)

    @property
    def description(self) -> str:
        """What it was opened with."""
        return self._look(lambda: self.inner.description)

    @property
    def is_durable(self) -> bool:
        """True if a journal holds the session, so that it survives its process."""
        return self._look(lambda: self.inner.is_durable)

    @property
    def on_busy(self) -> OnBusy:
        """The rule for messages while the session works."""
        return self._look(lambda: self.inner.on_busy)

    @property
    def parent(self) -> "PortalSession[Any] | None":
        """The session that it works for, if there is one."""
        parent = self._look(lambda: self.inner.parent)
        return None if parent is None else PortalSession(self._portal, parent)

    @property
    def children(self) -> "tuple[PortalSession[Any], ...]":
        """The open sessions that were created with this one as parent."""
        return tuple(PortalSession(self._portal, child) for child in self._look(lambda: self.inner.children))

    @property
    def usage(self) -> Usage:
        """The usage of the session's model calls."""
        return self._look(lambda: self.inner.usage)

    @property
    def approvals(self) -> tuple[Approval, ...]:
        """The tool calls that wait for a person, oldest first."""
        return self._look(lambda: self.inner.approvals)

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """The session's schedules, the next first."""
        return self._look(lambda: self.inner.schedules)

    @property
    def handed_to(self) -> str:
        """The name of the agent that it was handed over to; empty where its own one answers."""
        return self._look(lambda: self.inner.handed_to)

    @property
    def mode(self) -> str:
        """The mode that it is in."""
        return self._look(lambda: self.inner.mode)

    @property
    def mode_changes(self) -> tuple[ModeChange, ...]:
        """The last 100 changes of its mode, oldest first."""
        return self._look(lambda: self.inner.mode_changes)


@for_portal_agents
class PortalAgent(AttachesHooks, Proxy, Generic[DataT_co, DepsT]):
    """An `Agent` for synchronous code: its methods take the same arguments, and wait."""

    def __init__(self, portal: "Portal", agent: Agent[DataT_co, DepsT]) -> None:
        super().__init__(portal)
        self.inner: Agent[DataT_co, DepsT] = agent
        """The agent on trio, for `portal.call`."""
        self.name = agent.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    receive = Waiting(Agent.receive)
    answer = Waiting(Agent.answer)
    resume = Waiting(Agent.resume)
    approvals = Waiting(Agent.approvals)

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
        """Say something and wait for the answer, as `Agent.run` does. Ctrl-C stops the turn."""
        return self.wait(self.inner.run, content, session=unwrapped(session), **options)  # type: ignore[no-any-return]

    def stream(
        self,
        content: Content,
        *,
        session: PortalSession[Any] | None = None,
        output: object = None,
        **options: Unpack[MessageOptions[DepsT]],
    ) -> PortalStream[Delivery]:
        """Say something and read what comes of it, as `Agent.stream` does: `with agent.stream("...") as events`."""
        block = self.inner.stream(content, session=unwrapped(session), output=output, **options)
        return self._portal.read(block)

    def follow(self, session: PortalSession[Any]) -> PortalStream[Delivery]:
        """Read what comes of a suspended turn when it goes on, as `Agent.follow` does."""
        return self._portal.read(self.inner.follow(session.inner))

    def create_session(
        self,
        owner: Sender | str,
        description: Content = "",
        *,
        session_id: str | None = None,
        parent: PortalSession[Any] | None = None,
        prompt: Prompt | None = None,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        deps: DepsT | None = None,
        history: Iterable[Former] = (),
        **handlers: Unpack[HandlerOptions],
    ) -> PortalSession[DataT_co]:
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
        session = self.wait(create_listening, creating, self._portal.crossings(handlers))
        return PortalSession(self._portal, session)

    def open_session(
        self, session_id: str, *, owner: Sender | str | None = None, deps: DepsT | None = None
    ) -> PortalSession[DataT_co]:
        """The session of this agent that has this id, as `Agent.open_session` finds it."""
        return PortalSession(
            self._portal, self.wait(self.inner.open_session, session_id, owner=owner, deps=deps)
        )

    def ensure_session(
        self,
        owner: Sender | str,
        session_id: str,
        *,
        parent: PortalSession[Any] | None = None,
        prompt: Prompt | None = None,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        deps: DepsT | None = None,
        history: Iterable[Former] = (),
    ) -> PortalSession[DataT_co]:
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
        session = self.wait(ensuring)
        return PortalSession(self._portal, session)

    def _hook(self, method: Callable[..., Any], hook: Handler, **options: Any) -> None:
        self.wait(method, self.inner, self._portal.hook(method, hook, **options), **options)

    def remove_hook(self, fn: Handler) -> None:
        """Call a function of `on_session`, `on_query`, `on_message` or `guard` no more, however often it was given."""
        self.wait(self.inner.remove_hook, fn)


class Portal:
    """A runtime on trio in a thread of its own, for synchronous code; see `open_portal`."""

    def __init__(self, thread: TrioThread[Runtime]) -> None:
        self.thread = thread
        self.runtime: Runtime = thread.opened.result()
        """For code on trio, e.g. `portal.call(portal.runtime.spawn, Till)`."""
        self.world = ThreadWorld(self.runtime.threads)

    def start(self, agent: Agent[DataT_co, DepsT]) -> PortalAgent[DataT_co, DepsT]:
        """Start an agent, as `Runtime.start` does; returns it in the form of this portal."""
        self.call(self.runtime.start, agent)
        return PortalAgent(self, agent)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """A block in which several agents are started, as `Runtime.starting` is."""
        held = HeldBlock(self.thread, self.runtime.starting())
        self.call(held.enter)
        try:
            yield
        except BaseException as error:
            self.call(held.leave, error)
            raise
        self.call(held.leave, None)

    def ready(self) -> None:
        """All agents are started, see `Runtime.ready`."""
        self.call(self.runtime.ready)

    @overload
    def call(self, fn: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T: ...
    @overload
    def call(self, fn: Callable[P, T], *args: P.args, **options: P.kwargs) -> T: ...
    def call(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Have a function, sync or async, called in trio's thread, and wait for what it returns or raises.

        It has the caller's context variables. Ctrl-C cancels it, and waits for its end; a second one does not.

        Raises:
            PortalClosed: the portal was closed, before or meanwhile.
            UsageError: trio runs in the caller's thread, which would stand still.
        """
        return self.thread.wait(partial(fn, *args, **options) if args or options else fn)

    def send(self, fn: Callable[..., Any], *args: Any) -> None:
        """Have a sync function called in trio's thread, without waiting for it; nothing happens once it is closed."""
        with suppress(PortalClosed):
            self.thread.send(partial(fn, *args), nothing)

    def read(self, block: AbstractAsyncContextManager[trio.abc.ReceiveChannel[T]]) -> PortalStream[T]:
        """Read a channel of trio's by `with` and `for`; `block` is an `async with` block that gives it."""
        return PortalStream(self.thread, self.call, self.send, block)

    def events(self, capacity: int = 1000) -> PortalStream[Observation]:
        """Read everything that happens from now on, as `Runtime.events` does."""
        return self.read(self.runtime.events(capacity))

    def approvals(
        self, *, owner: Sender | str | None = None, after: Approval | None = None, limit: int = 100
    ) -> tuple[Approval, ...]:
        """List the approvals of all agents, page by page, as `Runtime.approvals` does."""
        return self.call(self.runtime.approvals, owner=owner, after=after, limit=limit)

    def sessions(
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
        return self.call(listing, limit=limit)

    def delete_session(self, session_id: str, *, agent: str | None = None) -> None:
        """Close a session and its children, and erase all that the journal has of them; see `Runtime.delete_session`."""
        self.call(self.runtime.delete_session, session_id, agent=agent)

    def close(self) -> None:
        """Let the agents end what they have accepted, then stop them and the thread. A second call waits for the first.

        Calls that wait get their results until then, and `PortalClosed` after it. Ctrl-C stops the agents at once.

        Raises:
            UsageError: called from a tool or handler of one of its agents.
            Exception: what the runtime ended with, e.g. `ActorFailed` in a group, or `ThreadsLeft`.
        """
        self._end(abort=False)

    def abort(self) -> None:
        """Close it without waiting for answers, as a runtime's block is left with an exception."""
        self._end(abort=True)

    def _end(self, *, abort: bool) -> None:
        end(self.thread, abort=abort)

    # --- for its agents and sessions -----------------------------------------------------------

    def crossing(self, handler: Handler) -> Handler:
        """Make a handler of this world into one that a session can call."""
        return crossing(self.world, handler, self._face)

    def crossings(self, handlers: HandlerOptions) -> dict[str, Any]:
        """The same for handlers by their names."""
        return {name: self.crossing(handler) for name, handler in handlers.items() if callable(handler)}

    def hook(self, method: Callable[..., Any], hook: Handler, **options: object) -> Handler:
        """Make a hook of this world into one that an agent can call."""
        if method is Agent.on_session:
            check_called("on_session()", hook, is_alone=True)
            return CrossingForSession(self.world, hook, self._face)
        if options.get("on") == "input":
            return hook
        return self.crossing(hook)

    def _face(self, session: Session[Any]) -> PortalSession[Any]:
        return PortalSession(self, session)


def nothing() -> None:
    """Tell nobody that a call has ended."""


def unwrapped(session: Any) -> Any:
    """The session on trio that a proxy stands for; anything else as it is, for `Agent` to refuse."""
    return getattr(session, "inner", session)


async def create_listening(
    creating: Callable[[], Awaitable[Session[DataT_co]]], handlers: Mapping[str, Handler]
) -> Session[DataT_co]:
    """Create a session and attach handlers without a pause, so that they are notified of its first message, too."""
    session = await creating()
    for name, handler in handlers.items():
        getattr(session, name)(handler)
    return session


def end(thread: TrioThread[Any], *, abort: bool) -> None:
    """End the thread of a portal, and wait for it; Ctrl-C has it stop at once, a second one leaves it alone."""
    thread.close(abort=abort)
    if not thread.is_ours:
        return
    try:
        thread.ended.exception()
    except BaseException:
        thread.close(abort=True)
        thread.ended.exception()
        raise
    thread.join()
    thread.ended.result()
