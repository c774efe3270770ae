"""Client of remote agents for asyncio."""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self, Unpack

from actgent.client.agent_server_client import DEFAULT_RETRY_TIMEOUT_SECONDS, Client, connect
from actgent.client.remote_agent import RemoteAgent
from actgent.client.remote_session import RemoteSession
from actgent.errors import PortalClosed
from actgent.limits_and_schedules.limits import Limits
from actgent.messages import Content, Delivery, OnBusy, Priority, PriorityName, Sender
from actgent.sessions.session_handlers import Handler
from actgent.sessions.subscriptions import Observed, ObservedType

from .asyncio_portal import AsyncioMethod, AsyncPortal, AsyncProxy, running_loop
from .handler_proxies import LoopContext, make_handler_proxy
from .handler_registration import AttachesHandlers, HandlerOptions
from .portal_streams import AsyncPortalStream
from .trio_context_managers import HeldBlock


class AsyncPortalRemoteSession(AttachesHandlers, AsyncProxy):
    """A `RemoteSession` for asyncio: same methods and arguments, but calls are awaited.

    Handlers run as those of an `AsyncPortalSession`, on the event loop that registers them.
    """

    def __init__(self, portal: AsyncPortal, session: RemoteSession) -> None:
        super().__init__(portal)
        self.inner: RemoteSession = session
        """The session on trio, for `portal.call`."""
        self.id, self.agent_name, self.owner = session.id, session.agent_name, session.owner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.owner.name!r}>"

    chat = AsyncioMethod(RemoteSession.chat)
    interrupt = AsyncioMethod(RemoteSession.interrupt)
    schedule = AsyncioMethod(RemoteSession.schedule)
    unschedule = AsyncioMethod(RemoteSession.unschedule)
    schedules = AsyncioMethod(RemoteSession.schedules)
    wait_idle = AsyncioMethod(RemoteSession.wait_idle)
    delegate = AsyncioMethod(RemoteSession.delegate)
    cancel_task = AsyncioMethod(RemoteSession.cancel_task)
    messages = AsyncioMethod(RemoteSession.messages)
    history = AsyncioMethod(RemoteSession.history)
    observations = AsyncioMethod(RemoteSession.observations)
    answer = AsyncioMethod(RemoteSession.answer)
    approvals = AsyncioMethod(RemoteSession.approvals)
    annotate = AsyncioMethod(RemoteSession.annotate)
    tags = AsyncioMethod(RemoteSession.tags)
    metadata = AsyncioMethod(RemoteSession.metadata)
    set_mode = AsyncioMethod(RemoteSession.set_mode)
    mode = AsyncioMethod(RemoteSession.mode)
    status = AsyncioMethod(RemoteSession.status)
    usage = AsyncioMethod(RemoteSession.usage)
    state = AsyncioMethod(RemoteSession.state)
    aclose = AsyncioMethod(RemoteSession.aclose)

    async def cursor(self) -> int | None:
        """Return the number of the last record that the session's handlers have received; None before the first."""
        return await self._read(lambda: self.inner.cursor)

    def _attach(self, method: Callable[..., Any], handler: Handler) -> None:
        self._portal.send(getattr(self.inner, method.__name__), self._handler_proxy(handler))

    def _handler_proxy(self, handler: Handler) -> Handler:
        return make_handler_proxy(LoopContext(running_loop()), handler, lambda _: self)

    def remove_handler(self, handler: Handler) -> None:
        """Remove all registrations of a handler."""
        self._portal.send(self.inner.remove_handler, handler)

    @asynccontextmanager
    async def listening(self, **handlers: Unpack[HandlerOptions]) -> AsyncGenerator[Self, None]:
        """Register handlers for the duration of a block, by name: `on_token=`, `on_conversation=`, ..."""
        options = {
            name: self._handler_proxy(handler) for name, handler in handlers.items() if callable(handler)
        }
        block = self.inner.listening(**options)
        await self.wait(block.__enter__)
        try:
            yield self
        finally:
            with suppress(PortalClosed):
                self._portal.send(block.__exit__, None, None, None)

    def observe(
        self,
        *,
        types: Collection[ObservedType] | None = None,
        turn: str | None = None,
        after: int | None = None,
    ) -> AsyncPortalStream[Observed]:
        """Read observations: `async with session.observe() as observations`.

        Arguments and errors are those of `RemoteSession.observe`.
        """
        return self._portal.read(self.inner.observe(types=types, turn=turn, after=after))


class AsyncPortalRemoteAgent(AsyncProxy):
    """A `RemoteAgent` for asyncio: same methods and arguments, but calls are awaited."""

    def __init__(self, portal: AsyncPortal, agent: RemoteAgent) -> None:
        super().__init__(portal)
        self.inner: RemoteAgent = agent
        """The agent on trio, for `portal.call`."""
        self.name = agent.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    answer = AsyncioMethod(RemoteAgent.answer)
    resume = AsyncioMethod(RemoteAgent.resume)
    approvals = AsyncioMethod(RemoteAgent.approvals)
    receive = AsyncioMethod(RemoteAgent.receive)

    async def run(
        self, content: Content, *, session: AsyncPortalRemoteSession | None = None, **options: Any
    ) -> Any:
        """Send a message and return the reply.

        Arguments and errors are those of `RemoteAgent.run`. Cancelling the caller stops the turn.
        """
        return await self.wait(self.inner.run, content, session=_inner(session), **options)

    def stream(
        self,
        content: Content,
        *,
        session: AsyncPortalRemoteSession | None = None,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        timeout: float | None = None,
    ) -> AsyncPortalStream[Delivery]:
        """Send a message and read its deliveries: `async with agent.stream("...") as deliveries`.

        Arguments and errors are those of `RemoteAgent.stream`.
        """
        return self._portal.read(
            self.inner.stream(
                content, session=_inner(session), priority=priority, message_id=message_id, timeout=timeout
            )
        )

    def follow(self, session: AsyncPortalRemoteSession) -> AsyncPortalStream[Delivery]:
        """Read the deliveries of a suspended turn after it resumes. Arguments and errors are those of `RemoteAgent.follow`."""
        return self._portal.read(self.inner.follow(session.inner))

    async def create_session(
        self,
        owner: Sender | str | None = None,
        description: Content = "",
        *,
        session_id: str | None = None,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncPortalRemoteSession:
        """Create a session. Arguments and errors are those of `RemoteAgent.create_session`."""
        options = {
            "session_id": session_id,
            "on_busy": on_busy,
            "limits": limits,
            "tags": tags,
            "metadata": metadata,
        }
        return AsyncPortalRemoteSession(
            self._portal, await self.wait(self.inner.create_session, owner, description, **options)
        )

    async def open_session(
        self, session_id: str, *, owner: Sender | str | None = None, after: int | None = None
    ) -> AsyncPortalRemoteSession:
        """Return this agent's session with the given id. Arguments and errors are those of `RemoteAgent.open_session`."""
        found = await self.wait(self.inner.open_session, session_id, owner=owner, after=after)
        return AsyncPortalRemoteSession(self._portal, found)

    async def ensure_session(
        self,
        owner: Sender | str | None,
        session_id: str,
        *,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
        after: int | None = None,
    ) -> AsyncPortalRemoteSession:
        """Return this agent's session with the given id, or create it.

        Arguments and errors are those of `RemoteAgent.ensure_session`.
        """
        options = {"on_busy": on_busy, "limits": limits, "tags": tags, "metadata": metadata, "after": after}
        return AsyncPortalRemoteSession(
            self._portal, await self.wait(self.inner.ensure_session, owner, session_id, **options)
        )


def _inner(session: AsyncPortalRemoteSession | None) -> RemoteSession | None:
    return None if session is None else session.inner


class AsyncPortalClient(AsyncProxy):
    """Client of a gateway for asyncio: `async with AsyncPortalClient(portal, url, token=...) as client`.

    The arguments after `portal` are those of `connect`.
    """

    inner: Client

    def __init__(
        self,
        portal: AsyncPortal,
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

    async def __aenter__(self) -> Self:
        self.inner = await self.wait(self._block.enter)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.wait(self._block.exit, error)  # noqa: ASYNC102 - a wait in asyncio, which ends when the portal stops

    agents = AsyncioMethod(Client.agents)
    sessions = AsyncioMethod(Client.sessions)
    approvals = AsyncioMethod(Client.approvals)
    delete_session = AsyncioMethod(Client.delete_session)
    rebuild = AsyncioMethod(Client.rebuild)
    fork = AsyncioMethod(Client.fork)
    compare = AsyncioMethod(Client.compare)
    annotate = AsyncioMethod(Client.annotate)
    rate = AsyncioMethod(Client.rate)
    ratings = AsyncioMethod(Client.ratings)
    export_session = AsyncioMethod(Client.export_session)
    schedules = AsyncioMethod(Client.schedules)
    search = AsyncioMethod(Client.search)
    trends = AsyncioMethod(Client.trends)
    cluster_status = AsyncioMethod(Client.cluster_status)
    dead_letters = AsyncioMethod(Client.dead_letters)
    send_again = AsyncioMethod(Client.send_again)

    def agent(self, name: str) -> AsyncPortalRemoteAgent:
        """Return the remote agent with this name. The server is not asked whether the agent exists."""
        return AsyncPortalRemoteAgent(self._portal, self.inner.agent(name))
