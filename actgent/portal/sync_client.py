"""Client of remote agents for synchronous code."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, Unpack

from actgent.client.agent_server_client import DEFAULT_RETRY_TIMEOUT_SECONDS, Client, connect
from actgent.client.remote_agent import RemoteAgent
from actgent.client.remote_session import RemoteSession
from actgent.limits_and_schedules.limits import Limits
from actgent.messages import Content, Delivery, OnBusy, Priority, PriorityName, Sender
from actgent.sessions.session_handlers import Handler
from actgent.sessions.subscriptions import Observed, ObservedType

from .handler_proxies import make_handler_proxy
from .handler_registration import AttachesHandlers, HandlerOptions
from .portal_streams import PortalStream
from .sync_portal import Portal, Proxy, SyncMethod
from .trio_context_managers import HeldBlock


class PortalRemoteSession(AttachesHandlers, Proxy):
    """A `RemoteSession` for synchronous code: same methods and arguments, but calls block.

    Handlers run as those of a `PortalSession`, in threads of the portal.
    """

    def __init__(self, portal: Portal, session: RemoteSession) -> None:
        super().__init__(portal)
        self.inner: RemoteSession = session
        """The session on trio, for `portal.call`."""
        self.id, self.agent_name, self.owner = session.id, session.agent_name, session.owner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.owner.name!r}>"

    chat = SyncMethod(RemoteSession.chat)
    interrupt = SyncMethod(RemoteSession.interrupt)
    schedule = SyncMethod(RemoteSession.schedule)
    unschedule = SyncMethod(RemoteSession.unschedule)
    schedules = SyncMethod(RemoteSession.schedules)
    wait_idle = SyncMethod(RemoteSession.wait_idle)
    delegate = SyncMethod(RemoteSession.delegate)
    cancel_task = SyncMethod(RemoteSession.cancel_task)
    messages = SyncMethod(RemoteSession.messages)
    history = SyncMethod(RemoteSession.history)
    observations = SyncMethod(RemoteSession.observations)
    answer = SyncMethod(RemoteSession.answer)
    approvals = SyncMethod(RemoteSession.approvals)
    annotate = SyncMethod(RemoteSession.annotate)
    tags = SyncMethod(RemoteSession.tags)
    metadata = SyncMethod(RemoteSession.metadata)
    set_mode = SyncMethod(RemoteSession.set_mode)
    mode = SyncMethod(RemoteSession.mode)
    status = SyncMethod(RemoteSession.status)
    usage = SyncMethod(RemoteSession.usage)
    state = SyncMethod(RemoteSession.state)
    close = SyncMethod(RemoteSession.aclose)

    @property
    def cursor(self) -> int | None:
        """The number of the last record that the session's handlers have received; None before the first."""
        return self._read(lambda: self.inner.cursor)

    def _attach(self, method: Callable[..., Any], handler: Handler) -> None:
        self.wait(getattr(self.inner, method.__name__), self._handler_proxy(handler))

    def _handler_proxy(self, handler: Handler) -> Handler:
        return make_handler_proxy(self._portal.handler_context, handler, lambda _: self)

    def remove_handler(self, handler: Handler) -> None:
        """Remove all registrations of a handler."""
        self.wait(self.inner.remove_handler, handler)

    @contextmanager
    def listening(self, **handlers: Unpack[HandlerOptions]) -> Iterator[Self]:
        """Register handlers for the duration of a block, by name: `on_token=`, `on_conversation=`, ..."""
        options = {
            name: self._handler_proxy(handler) for name, handler in handlers.items() if callable(handler)
        }
        block = self.inner.listening(**options)
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
        """Read observations: `with session.observe() as observations`.

        Arguments and errors are those of `RemoteSession.observe`.
        """
        return self._portal.read(self.inner.observe(types=types, turn=turn, after=after))


class PortalRemoteAgent(Proxy):
    """A `RemoteAgent` for synchronous code: same methods and arguments, but calls block."""

    def __init__(self, portal: Portal, agent: RemoteAgent) -> None:
        super().__init__(portal)
        self.inner: RemoteAgent = agent
        """The agent on trio, for `portal.call`."""
        self.name = agent.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    answer = SyncMethod(RemoteAgent.answer)
    resume = SyncMethod(RemoteAgent.resume)
    approvals = SyncMethod(RemoteAgent.approvals)
    receive = SyncMethod(RemoteAgent.receive)

    def run(self, content: Content, *, session: PortalRemoteSession | None = None, **options: Any) -> Any:
        """Send a message and return the reply. Arguments and errors are those of `RemoteAgent.run`. Ctrl-C stops the turn."""
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
        """Send a message and read its deliveries: `with agent.stream("...") as deliveries`.

        Arguments and errors are those of `RemoteAgent.stream`.
        """
        return self._portal.read(
            self.inner.stream(
                content, session=_inner(session), priority=priority, message_id=message_id, timeout=timeout
            )
        )

    def follow(self, session: PortalRemoteSession) -> PortalStream[Delivery]:
        """Read the deliveries of a suspended turn after it resumes. Arguments and errors are those of `RemoteAgent.follow`."""
        return self._portal.read(self.inner.follow(session.inner))

    def create_session(
        self,
        owner: Sender | str | None = None,
        description: Content = "",
        *,
        session_id: str | None = None,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> PortalRemoteSession:
        """Create a session. Arguments and errors are those of `RemoteAgent.create_session`."""
        options = {
            "session_id": session_id,
            "on_busy": on_busy,
            "limits": limits,
            "tags": tags,
            "metadata": metadata,
        }
        return PortalRemoteSession(
            self._portal, self.wait(self.inner.create_session, owner, description, **options)
        )

    def open_session(
        self, session_id: str, *, owner: Sender | str | None = None, after: int | None = None
    ) -> PortalRemoteSession:
        """Return this agent's session with the given id. Arguments and errors are those of `RemoteAgent.open_session`."""
        found = self.wait(self.inner.open_session, session_id, owner=owner, after=after)
        return PortalRemoteSession(self._portal, found)

    def ensure_session(
        self,
        owner: Sender | str | None,
        session_id: str,
        *,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
        after: int | None = None,
    ) -> PortalRemoteSession:
        """Return this agent's session with the given id, or create it.

        Arguments and errors are those of `RemoteAgent.ensure_session`.
        """
        options = {"on_busy": on_busy, "limits": limits, "tags": tags, "metadata": metadata, "after": after}
        return PortalRemoteSession(
            self._portal, self.wait(self.inner.ensure_session, owner, session_id, **options)
        )


def _inner(session: PortalRemoteSession | None) -> RemoteSession | None:
    return None if session is None else session.inner


class PortalClient(Proxy):
    """Client of a gateway for synchronous code: `with PortalClient(portal, url, token=...) as client`.

    The arguments after `portal` are those of `connect`.
    """

    inner: Client

    def __init__(
        self,
        portal: Portal,
        url: str,
        *,
        token: str,
        owner: str | None = None,
        retry_timeout: float = DEFAULT_RETRY_TIMEOUT_SECONDS,
    ) -> None:
        super().__init__(portal)
        self._block = HeldBlock(
            portal.thread, connect(url, token=token, owner=owner, retry_timeout=retry_timeout)
        )

    def __enter__(self) -> Self:
        self.inner = self.wait(self._block.enter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wait(self._block.exit, error)

    agents = SyncMethod(Client.agents)
    sessions = SyncMethod(Client.sessions)
    approvals = SyncMethod(Client.approvals)
    delete_session = SyncMethod(Client.delete_session)
    rebuild = SyncMethod(Client.rebuild)
    fork = SyncMethod(Client.fork)
    compare = SyncMethod(Client.compare)
    annotate = SyncMethod(Client.annotate)
    rate = SyncMethod(Client.rate)
    ratings = SyncMethod(Client.ratings)
    export_session = SyncMethod(Client.export_session)
    schedules = SyncMethod(Client.schedules)
    search = SyncMethod(Client.search)
    trends = SyncMethod(Client.trends)
    cluster_status = SyncMethod(Client.cluster_status)
    dead_letters = SyncMethod(Client.dead_letters)
    send_again = SyncMethod(Client.send_again)

    def agent(self, name: str) -> PortalRemoteAgent:
        """Return the remote agent with this name. The server is not asked whether the agent exists."""
        return PortalRemoteAgent(self._portal, self.inner.agent(name))
