"""Client of remote agents for synchronous code."""

from types import TracebackType
from typing import Any, Self

from actgent.client.agent_server_client import DEFAULT_RETRY_TIMEOUT_SECONDS, Client, connect
from actgent.client.remote_agent import RemoteAgent
from actgent.client.remote_session import RemoteSession
from actgent.messages import Content, Delivery, Priority, PriorityName

from .portal_streams import PortalStream
from .sync_portal import (
    Portal,
    Proxy,
    SessionProxy,
    SyncMethod,
    SyncProperty,
    SyncSessionMethod,
    SyncStreamMethod,
)
from .trio_context_managers import HeldBlock


class PortalRemoteSession(SessionProxy):
    """A `RemoteSession` for synchronous code: same methods and arguments, but calls block.

    Handlers run as those of a `PortalSession`, in threads of the portal.
    """

    inner: RemoteSession
    """The `RemoteSession` on trio. Use it only in trio's thread, for example in a function passed to `portal.call`."""

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
    lift = SyncMethod(RemoteSession.lift)
    set_mode = SyncMethod(RemoteSession.set_mode)
    mode = SyncMethod(RemoteSession.mode)
    status = SyncMethod(RemoteSession.status)
    usage = SyncMethod(RemoteSession.usage)
    state = SyncMethod(RemoteSession.state)
    close = SyncMethod(RemoteSession.aclose)
    observe = SyncStreamMethod(RemoteSession.observe)
    cursor = SyncProperty[int | None](RemoteSession.cursor)


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
    create_session = SyncSessionMethod(RemoteAgent.create_session, PortalRemoteSession)
    open_session = SyncSessionMethod(RemoteAgent.open_session, PortalRemoteSession)
    ensure_session = SyncSessionMethod(RemoteAgent.ensure_session, PortalRemoteSession)

    def run(self, content: Content, *, session: PortalRemoteSession | None = None, **options: Any) -> Any:
        """Send a message, wait for the reply, and return it. Ctrl-C stops the turn.

        Arguments and errors are those of `RemoteAgent.run`.
        """
        return self.wait(self.inner.run, content, session=_trio_session(session), **options)

    def stream(
        self,
        content: Content,
        *,
        session: PortalRemoteSession | None = None,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        timeout: float | None = None,
    ) -> PortalStream[Delivery]:
        """Send a message and stream the deliveries of its turn: `with agent.stream("...") as deliveries`.

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

    def follow(self, session: PortalRemoteSession) -> PortalStream[Delivery]:
        """Stream the deliveries of a suspended turn after it resumes. Arguments and errors are those of `RemoteAgent.follow`."""
        return self.portal.read(self.inner.follow(session.inner))


def _trio_session(session: PortalRemoteSession | None) -> RemoteSession | None:
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
    toolset_status = SyncMethod(Client.toolset_status)
    dead_letters = SyncMethod(Client.dead_letters)
    send_again = SyncMethod(Client.send_again)
    datasets = SyncMethod(Client.datasets)
    dataset_cases = SyncMethod(Client.dataset_cases)
    add_dataset_case = SyncMethod(Client.add_dataset_case)
    replace_dataset_case = SyncMethod(Client.replace_dataset_case)
    remove_dataset_case = SyncMethod(Client.remove_dataset_case)
    evaluations = SyncMethod(Client.evaluations)
    evaluation = SyncMethod(Client.evaluation)

    def agent(self, name: str) -> PortalRemoteAgent:
        """Return the proxy of the remote agent with this name, without asking the server whether the agent exists."""
        return PortalRemoteAgent(self.portal, self.inner.agent(name))
