"""Client of remote agents for asyncio."""

from types import TracebackType
from typing import Any, Self

from actgent.client.agent_server_client import DEFAULT_RETRY_TIMEOUT_SECONDS, Client, connect
from actgent.client.remote_agent import RemoteAgent
from actgent.client.remote_session import RemoteSession
from actgent.messages import Content, Delivery, Priority, PriorityName

from .asyncio_portal import (
    AsyncioMethod,
    AsyncioProperty,
    AsyncioSessionMethod,
    AsyncioStreamMethod,
    AsyncPortal,
    AsyncProxy,
    AsyncSessionProxy,
)
from .portal_streams import AsyncPortalStream
from .trio_context_managers import HeldBlock


class AsyncPortalRemoteSession(AsyncSessionProxy):
    """A `RemoteSession` for asyncio: same methods and arguments, but calls are awaited.

    Handlers run as those of an `AsyncPortalSession`, on the event loop that registers them.
    """

    inner: RemoteSession
    """The `RemoteSession` on trio. Use it only in trio's thread, for example in a function passed to `portal.call`."""

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
    lift = AsyncioMethod(RemoteSession.lift)
    set_mode = AsyncioMethod(RemoteSession.set_mode)
    mode = AsyncioMethod(RemoteSession.mode)
    status = AsyncioMethod(RemoteSession.status)
    usage = AsyncioMethod(RemoteSession.usage)
    state = AsyncioMethod(RemoteSession.state)
    aclose = AsyncioMethod(RemoteSession.aclose)
    observe = AsyncioStreamMethod(RemoteSession.observe)
    cursor = AsyncioProperty[int | None](RemoteSession.cursor)


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
    create_session = AsyncioSessionMethod(RemoteAgent.create_session, AsyncPortalRemoteSession)
    open_session = AsyncioSessionMethod(RemoteAgent.open_session, AsyncPortalRemoteSession)
    ensure_session = AsyncioSessionMethod(RemoteAgent.ensure_session, AsyncPortalRemoteSession)

    async def run(
        self, content: Content, *, session: AsyncPortalRemoteSession | None = None, **options: Any
    ) -> Any:
        """Send a message, wait for the reply, and return it.

        Arguments and errors are those of `RemoteAgent.run`. Cancelling the caller stops the turn.
        """
        return await self.wait(self.inner.run, content, session=_trio_session(session), **options)

    def stream(
        self,
        content: Content,
        *,
        session: AsyncPortalRemoteSession | None = None,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        timeout: float | None = None,
    ) -> AsyncPortalStream[Delivery]:
        """Send a message and stream the deliveries of its turn: `async with agent.stream("...") as deliveries`.

        Arguments and errors are those of `RemoteAgent.stream`.
        """
        return self.portal.read(
            self.inner.stream(
                content,
                session=_trio_session(session),
                priority=priority,
                message_id=message_id,
                timeout=timeout,
            )
        )

    def follow(self, session: AsyncPortalRemoteSession) -> AsyncPortalStream[Delivery]:
        """Stream the deliveries of a suspended turn after it resumes. Arguments and errors are those of `RemoteAgent.follow`."""
        return self.portal.read(self.inner.follow(session.inner))


def _trio_session(session: AsyncPortalRemoteSession | None) -> RemoteSession | None:
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
    toolset_status = AsyncioMethod(Client.toolset_status)
    dead_letters = AsyncioMethod(Client.dead_letters)
    send_again = AsyncioMethod(Client.send_again)
    datasets = AsyncioMethod(Client.datasets)
    dataset_cases = AsyncioMethod(Client.dataset_cases)
    add_dataset_case = AsyncioMethod(Client.add_dataset_case)
    replace_dataset_case = AsyncioMethod(Client.replace_dataset_case)
    remove_dataset_case = AsyncioMethod(Client.remove_dataset_case)
    evaluations = AsyncioMethod(Client.evaluations)
    evaluation = AsyncioMethod(Client.evaluation)

    def agent(self, name: str) -> AsyncPortalRemoteAgent:
        """Return the proxy of the remote agent with this name, without asking the server whether the agent exists."""
        return AsyncPortalRemoteAgent(self.portal, self.inner.agent(name))
