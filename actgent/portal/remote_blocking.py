"""A client of agents in another process, for synchronous code."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, Unpack

from actgent.client.agent import RemoteAgent
from actgent.client.connecting import PATIENCE, Client, connect
from actgent.client.session import RemoteSession
from actgent.control.limits import Limits
from actgent.messages import Delivery, OnBusy, Priority, PriorityName, Sender
from actgent.sessions.following import Observed, ObservedType
from actgent.sessions.handlers import Handler
from actgent.sessions.incoming import Content

from .attaching import AttachesHandlers, HandlerOptions
from .blocking import Portal, Proxy, Waiting
from .handlers import crossing
from .held import HeldBlock
from .streams import PortalStream


class PortalRemoteSession(AttachesHandlers, Proxy):
    """A `RemoteSession` for synchronous code: its methods take the same arguments, and wait.

    Handlers are called in threads of the portal's, as those of a `PortalSession`.
    """

    def __init__(self, portal: Portal, session: RemoteSession) -> None:
        super().__init__(portal)
        self.inner: RemoteSession = session
        """The session on trio, for `portal.call`."""
        self.id, self.agent_name, self.owner = session.id, session.agent_name, session.owner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.owner.name!r}>"

    chat = Waiting(RemoteSession.chat)
    interrupt = Waiting(RemoteSession.interrupt)
    schedule = Waiting(RemoteSession.schedule)
    unschedule = Waiting(RemoteSession.unschedule)
    schedules = Waiting(RemoteSession.schedules)
    wait_idle = Waiting(RemoteSession.wait_idle)
    delegate = Waiting(RemoteSession.delegate)
    cancel_task = Waiting(RemoteSession.cancel_task)
    messages = Waiting(RemoteSession.messages)
    history = Waiting(RemoteSession.history)
    observations = Waiting(RemoteSession.observations)
    answer = Waiting(RemoteSession.answer)
    approvals = Waiting(RemoteSession.approvals)
    set_mode = Waiting(RemoteSession.set_mode)
    mode = Waiting(RemoteSession.mode)
    status = Waiting(RemoteSession.status)
    usage = Waiting(RemoteSession.usage)
    state = Waiting(RemoteSession.state)
    close = Waiting(RemoteSession.aclose)

    @property
    def cursor(self) -> int | None:
        """The number of the last record that its handlers have heard; see `RemoteSession.cursor`."""
        return self._look(lambda: self.inner.cursor)

    def _attach(self, method: Callable[..., Any], handler: Handler) -> None:
        self.wait(getattr(self.inner, method.__name__), self._crossing(handler))

    def _crossing(self, handler: Handler) -> Handler:
        return crossing(self._portal.world, handler, lambda _: self)

    def remove_handler(self, handler: Handler) -> None:
        """Call a handler no more, of whatever kinds and however often it was attached."""
        self.wait(self.inner.remove_handler, handler)

    @contextmanager
    def listening(self, **handlers: Unpack[HandlerOptions]) -> Iterator[Self]:
        """Have handlers called as long as the block lasts; they are given by name: `on_token=`, `on_conversation=`, ..."""
        given = {name: self._crossing(handler) for name, handler in handlers.items() if callable(handler)}
        block = self.inner.listening(**given)
        self.wait(block.__enter__)
        try:
            yield self
        finally:
            self.wait(block.__exit__, None, None, None)

    def observe(
        self,
        *,
        types: Collection[ObservedType] | None = None,
        turn: str | None = None,
        after: int | None = None,
    ) -> PortalStream[Observed]:
        """Read observations, as `RemoteSession.observe` does: `with session.observe() as observations`."""
        return self._portal.read(self.inner.observe(types=types, turn=turn, after=after))


class PortalRemoteAgent(Proxy):
    """A `RemoteAgent` for synchronous code: its methods take the same arguments, and wait."""

    def __init__(self, portal: Portal, agent: RemoteAgent) -> None:
        super().__init__(portal)
        self.inner: RemoteAgent = agent
        """The agent on trio, for `portal.call`."""
        self.name = agent.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    answer = Waiting(RemoteAgent.answer)
    resume = Waiting(RemoteAgent.resume)
    approvals = Waiting(RemoteAgent.approvals)
    receive = Waiting(RemoteAgent.receive)

    def run(self, content: Content, *, session: PortalRemoteSession | None = None, **options: Any) -> Any:
        """Say something and wait for the answer, as `RemoteAgent.run` does. Ctrl-C stops the turn."""
        return self.wait(self.inner.run, content, session=_inner(session), **options)

    def stream(
        self,
        content: Content,
        *,
        session: PortalRemoteSession | None = None,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        timeout: float | None = None,
    ) -> PortalStream[Delivery]:
        """Say something and read what comes of it, as `RemoteAgent.stream` does: `with agent.stream("...") as deliveries`."""
        return self._portal.read(
            self.inner.stream(
                content, session=_inner(session), priority=priority, message_id=message_id, timeout=timeout
            )
        )

    def follow(self, session: PortalRemoteSession) -> PortalStream[Delivery]:
        """Read what comes of a suspended turn when it goes on, as `RemoteAgent.follow` does."""
        return self._portal.read(self.inner.follow(session.inner))

    def create_session(
        self,
        owner: Sender | str | None = None,
        description: Content = "",
        *,
        session_id: str | None = None,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
    ) -> PortalRemoteSession:
        """Open a conversation, as `RemoteAgent.create_session` does."""
        given = {"session_id": session_id, "on_busy": on_busy, "limits": limits}
        return PortalRemoteSession(
            self._portal, self.wait(self.inner.create_session, owner, description, **given)
        )

    def open_session(
        self, session_id: str, *, owner: Sender | str | None = None, after: int | None = None
    ) -> PortalRemoteSession:
        """The session of this agent that has this id, as `RemoteAgent.open_session` finds it."""
        found = self.wait(self.inner.open_session, session_id, owner=owner, after=after)
        return PortalRemoteSession(self._portal, found)

    def ensure_session(
        self,
        owner: Sender | str | None,
        session_id: str,
        *,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        after: int | None = None,
    ) -> PortalRemoteSession:
        """This agent's session of this id, created if there is none."""
        given = {"on_busy": on_busy, "limits": limits, "after": after}
        return PortalRemoteSession(
            self._portal, self.wait(self.inner.ensure_session, owner, session_id, **given)
        )


def _inner(session: PortalRemoteSession | None) -> RemoteSession | None:
    return None if session is None else session.inner


class PortalClient(Proxy):
    """A client of a gateway for synchronous code: `with PortalClient(portal, url, token=...) as client`.

    The arguments behind the portal are those of `connect`.
    """

    inner: Client

    def __init__(
        self, portal: Portal, url: str, *, token: str, owner: str | None = None, patience: float = PATIENCE
    ) -> None:
        super().__init__(portal)
        self._block = HeldBlock(portal.thread, connect(url, token=token, owner=owner, patience=patience))

    def __enter__(self) -> Self:
        self.inner = self.wait(self._block.enter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wait(self._block.leave, error)

    agents = Waiting(Client.agents)
    sessions = Waiting(Client.sessions)
    approvals = Waiting(Client.approvals)
    delete_session = Waiting(Client.delete_session)
    rebuild = Waiting(Client.rebuild)
    fork = Waiting(Client.fork)
    compare = Waiting(Client.compare)
    rate = Waiting(Client.rate)
    ratings = Waiting(Client.ratings)
    export_session = Waiting(Client.export_session)
    schedules = Waiting(Client.schedules)

    def agent(self, name: str) -> PortalRemoteAgent:
        """The agent of this name; whether it runs is seen by what it is asked."""
        return PortalRemoteAgent(self._portal, self.inner.agent(name))
