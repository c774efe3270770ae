"""A client of agents in another process, for asyncio."""

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self, Unpack

from actgent.client.agent import RemoteAgent
from actgent.client.connecting import PATIENCE, Client, connect
from actgent.client.session import RemoteSession
from actgent.control.limits import Limits
from actgent.errors import PortalClosed
from actgent.messages import Delivery, OnBusy, Priority, PriorityName, Sender
from actgent.sessions.following import Observed, ObservedType
from actgent.sessions.handlers import Handler
from actgent.sessions.incoming import Content

from .attaching import AttachesHandlers, HandlerOptions
from .cooperative import AsyncPortal, AsyncProxy, Awaiting, running_loop
from .handlers import LoopWorld, crossing
from .held import HeldBlock
from .streams import AsyncPortalStream


class AsyncPortalRemoteSession(AttachesHandlers, AsyncProxy):
    """A `RemoteSession` for asyncio: its methods take the same arguments, and are awaited.

    Handlers are called on the loop that attaches them, as those of an `AsyncPortalSession`.
    """

    def __init__(self, portal: AsyncPortal, session: RemoteSession) -> None:
        super().__init__(portal)
        self.inner: RemoteSession = session
        """The session on trio, for `portal.call`."""
        self.id, self.agent_name, self.owner = session.id, session.agent_name, session.owner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.owner.name!r}>"

    chat = Awaiting(RemoteSession.chat)
    interrupt = Awaiting(RemoteSession.interrupt)
    schedule = Awaiting(RemoteSession.schedule)
    unschedule = Awaiting(RemoteSession.unschedule)
    schedules = Awaiting(RemoteSession.schedules)
    wait_idle = Awaiting(RemoteSession.wait_idle)
    delegate = Awaiting(RemoteSession.delegate)
    cancel_task = Awaiting(RemoteSession.cancel_task)
    messages = Awaiting(RemoteSession.messages)
    history = Awaiting(RemoteSession.history)
    observations = Awaiting(RemoteSession.observations)
    answer = Awaiting(RemoteSession.answer)
    approvals = Awaiting(RemoteSession.approvals)
    set_mode = Awaiting(RemoteSession.set_mode)
    mode = Awaiting(RemoteSession.mode)
    status = Awaiting(RemoteSession.status)
    usage = Awaiting(RemoteSession.usage)
    state = Awaiting(RemoteSession.state)
    aclose = Awaiting(RemoteSession.aclose)

    async def cursor(self) -> int | None:
        """The number of the last record that its handlers have heard; see `RemoteSession.cursor`."""
        return await self._look(lambda: self.inner.cursor)

    def _attach(self, method: Callable[..., Any], handler: Handler) -> None:
        self._portal.send(getattr(self.inner, method.__name__), self._crossing(handler))

    def _crossing(self, handler: Handler) -> Handler:
        return crossing(LoopWorld(running_loop()), handler, lambda _: self)

    def remove_handler(self, handler: Handler) -> None:
        """Call a handler no more, of whatever kinds and however often it was attached."""
        self._portal.send(self.inner.remove_handler, handler)

    @asynccontextmanager
    async def listening(self, **handlers: Unpack[HandlerOptions]) -> AsyncGenerator[Self, None]:
        """Have handlers called as long as the block lasts; they are given by name: `on_token=`, `on_conversation=`, ..."""
        given = {name: self._crossing(handler) for name, handler in handlers.items() if callable(handler)}
        block = self.inner.listening(**given)
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
        """Read observations, as `RemoteSession.observe` does: `async with session.observe() as observations`."""
        return self._portal.read(self.inner.observe(types=types, turn=turn, after=after))


class AsyncPortalRemoteAgent(AsyncProxy):
    """A `RemoteAgent` for asyncio: its methods take the same arguments, and are awaited."""

    def __init__(self, portal: AsyncPortal, agent: RemoteAgent) -> None:
        super().__init__(portal)
        self.inner: RemoteAgent = agent
        """The agent on trio, for `portal.call`."""
        self.name = agent.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    answer = Awaiting(RemoteAgent.answer)
    resume = Awaiting(RemoteAgent.resume)
    approvals = Awaiting(RemoteAgent.approvals)
    receive = Awaiting(RemoteAgent.receive)

    async def run(
        self, content: Content, *, session: AsyncPortalRemoteSession | None = None, **options: Any
    ) -> Any:
        """Say something and wait for the answer, as `RemoteAgent.run` does. Cancelled, it stops the turn."""
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
        """Say something and read what comes of it, as `RemoteAgent.stream` does: `async with agent.stream("...") as deliveries`."""
        return self._portal.read(
            self.inner.stream(
                content, session=_inner(session), priority=priority, message_id=message_id, timeout=timeout
            )
        )

    def follow(self, session: AsyncPortalRemoteSession) -> AsyncPortalStream[Delivery]:
        """Read what comes of a suspended turn when it goes on, as `RemoteAgent.follow` does."""
        return self._portal.read(self.inner.follow(session.inner))

    async def create_session(
        self,
        owner: Sender | str | None = None,
        description: Content = "",
        *,
        session_id: str | None = None,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
    ) -> AsyncPortalRemoteSession:
        """Open a conversation, as `RemoteAgent.create_session` does."""
        given = {"session_id": session_id, "on_busy": on_busy, "limits": limits}
        return AsyncPortalRemoteSession(
            self._portal, await self.wait(self.inner.create_session, owner, description, **given)
        )

    async def open_session(
        self, session_id: str, *, owner: Sender | str | None = None, after: int | None = None
    ) -> AsyncPortalRemoteSession:
        """The session of this agent that has this id, as `RemoteAgent.open_session` finds it."""
        found = await self.wait(self.inner.open_session, session_id, owner=owner, after=after)
        return AsyncPortalRemoteSession(self._portal, found)

    async def ensure_session(
        self,
        owner: Sender | str | None,
        session_id: str,
        *,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        after: int | None = None,
    ) -> AsyncPortalRemoteSession:
        """This agent's session of this id, created if there is none."""
        given = {"on_busy": on_busy, "limits": limits, "after": after}
        return AsyncPortalRemoteSession(
            self._portal, await self.wait(self.inner.ensure_session, owner, session_id, **given)
        )


def _inner(session: AsyncPortalRemoteSession | None) -> RemoteSession | None:
    return None if session is None else session.inner


class AsyncPortalClient(AsyncProxy):
    """A client of a gateway for asyncio: `async with AsyncPortalClient(portal, url, token=...) as client`.

    The arguments behind the portal are those of `connect`.
    """

    inner: Client

    def __init__(
        self,
        portal: AsyncPortal,
        url: str,
        *,
        token: str,
        owner: str | None = None,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(portal)
        self._block = HeldBlock(portal.thread, connect(url, token=token, owner=owner, patience=patience))

    async def __aenter__(self) -> Self:
        self.inner = await self.wait(self._block.enter)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.wait(self._block.leave, error)  # noqa: ASYNC102 - of asyncio; it ends with its portal

    agents = Awaiting(Client.agents)
    sessions = Awaiting(Client.sessions)
    approvals = Awaiting(Client.approvals)
    delete_session = Awaiting(Client.delete_session)
    rebuild = Awaiting(Client.rebuild)
    fork = Awaiting(Client.fork)
    compare = Awaiting(Client.compare)
    rate = Awaiting(Client.rate)
    ratings = Awaiting(Client.ratings)
    export_session = Awaiting(Client.export_session)
    schedules = Awaiting(Client.schedules)

    def agent(self, name: str) -> AsyncPortalRemoteAgent:
        """The agent of this name; whether it runs is seen by what it is asked."""
        return AsyncPortalRemoteAgent(self._portal, self.inner.agent(name))
