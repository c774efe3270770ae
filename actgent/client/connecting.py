"""A client: agents and sessions behind a server."""

import importlib
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from actgent.actors.event_loop import check_loop
from actgent.approvals import Approval
from actgent.control.arguments import check_seconds
from actgent.errors import ConfigurationError
from actgent.journal.base import SessionSummary
from actgent.journal.membership import check_cluster_extra
from actgent.runtime.directory import AgentCard
from actgent.sessions.context import Status
from actgent.support.hints import async_block

from .agent import RemoteAgent
from .calls import Calls
from .hearing import ServerLink
from .http.transport import HTTPTransport
from .insight import RemoteInsight, to_summary
from .reading import to_approval
from .transport import RemoteRequest, Transport

PATIENCE = 30.0
"""Seconds for which a request is tried."""


class Client(RemoteInsight):
    """A server of agents; `connect` opens it."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link

    def __actgent_link__(self) -> ServerLink:
        """What its sessions work with; for gateways and nodes alone."""
        return self._link

    def __repr__(self) -> str:
        return f"<Client of {self._link.calls.transport!r}>"

    def agent(self, name: str) -> RemoteAgent:
        """The agent of this name; whether it runs is seen by what it is asked."""
        return RemoteAgent(self._link, name)

    async def agents(self) -> tuple[AgentCard, ...]:
        """Return what the agents that run there say of themselves."""
        page = await self._link.calls.call(RemoteRequest(operation="list_agents"))
        fields = ("name", "role", "goal", "capabilities")
        return tuple(AgentCard(**{name: each[name] for name in fields}) for each in page["items"])

    async def sessions(
        self,
        *,
        owner: str | None = None,
        agent: str | None = None,
        state: Status | None = None,
        prefix: str = "",
        limit: int = 100,
    ) -> tuple[SessionSummary, ...]:
        """The sessions that the token reaches and that fit, by their last change, the newest first, at most `limit`.

        Another owner than the token's takes the scope admin; `prefix` is how their ids begin.
        """
        given = {"owner": owner, "agent": agent, "state": state, "q": prefix or None}
        query: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        found: list[SessionSummary] = []
        after: str | None = ""
        while after is not None and len(found) < limit:
            place = {"after": after} if after else {}
            request = RemoteRequest(
                operation="list_sessions", query={**query, **place, "limit": min(500, limit - len(found))}
            )
            page = await self._link.calls.call(request)
            found += [to_summary(each) for each in page["items"]]
            after = page["next"]
        return tuple(found)

    async def approvals(self, *, limit: int = 100) -> tuple[Approval, ...]:
        """The tool calls that wait for people in all sessions that the token reaches, at most `limit`."""
        page = await self._link.calls.call(RemoteRequest(operation="get_approvals", query={"limit": limit}))
        return tuple(to_approval(each) for each in page["items"])

    async def delete_session(self, session_id: str, *, agent: str | None = None) -> None:
        """Close a session and its children, and erase all that the server has of them; takes the scope admin.

        Raises:
            SessionNotFound: there is none.
        """
        request = RemoteRequest(operation="erase", agent=agent or "", session_id=session_id)
        await self._link.calls.call(request, done_by=("not-found",))


@async_block()
async def open_client(transport: Transport, *, patience: float = PATIENCE) -> AsyncGenerator[Client, None]:
    """An `async with` block with a `Client` over a transport, which is closed with it; see `connect`.

    Raises:
        ConfigurationError: the patience is no number of seconds.
        OutsideTrio: asyncio runs this code, or nothing does.
    """
    check_loop("connect()")
    check_seconds("patience", patience)
    raised: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield Client(ServerLink(Calls(transport, patience), nursery))
        except BaseException as error:  # noqa: ASYNC103, BLE001 - raised again below, not wrapped into a group
            raised = error
        nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
        await transport.aclose()
    if raised is not None:
        raise raised


def connect(
    url: str,
    *,
    token: str | None = None,
    owner: str | None = None,
    patience: float = PATIENCE,
    name: str = "",
    pool: str = "default",
) -> AbstractAsyncContextManager[Client]:
    """An `async with` block with a `Client` of the gateway at an address: `connect("http://127.0.0.1:8300", token=...)`.

    The address of a broker leads to the nodes of a cluster: `connect("amqps://USER:PASSWORD@HOST/VHOST", name="web-1")`.

    A connection that is lost is no matter: requests are repeated where that is safe, and streams are taken up where they
    were. Leaving the block closes no session.

    Args:
        url: Where the gateway is, without `/v1`; or the address of a broker.
        token: As `actgent token new` shows it; a broker knows its users by themselves.
        owner: For whom the client acts: at a gateway with a token that has the scope `impersonate:`.
        patience: Seconds for which a request is tried while the server cannot be reached, or is full.
        name: Stands in the name of the client's queue at a broker, for its rights.
        pool: Whose nodes are asked, in a cluster.

    Raises:
        ConfigurationError: the address or the token is none; or the broker lets nobody in.
        BrokerLost: the broker cannot be reached.
        OutsideTrio: asyncio runs this code, or nothing does; there take `portal.connect`.
    """
    if str(url).startswith(("amqp://", "amqps://")):
        if token is not None:
            raise ConfigurationError("token= is for gateways: a broker knows its users by name and password")
        check_cluster_extra()
        opening = importlib.import_module("actgent.cluster.opening")
        opened: AbstractAsyncContextManager[Client] = opening.open_broker_client(
            url, name=name, owner=owner or "user", pool=pool, patience=patience
        )
        return opened
    return open_client(HTTPTransport(url, token=token, owner=owner), patience=patience)
