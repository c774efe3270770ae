"""MCP over HTTP at `/mcp` of a gateway. The gateway checks host, origin, token and size; the SDK's transport does the rest."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import attrs
import orjson
import trio
from starlette.responses import Response
from starlette.types import Message, Receive, Scope as ASGIScope, Send

from actgent.journal.session_list_queries import SessionKey
from actgent.web.gateway_context import GatewayContext
from actgent.web.routes.endpoints import Endpoint, HTTPCall

from .catalog import MCPCatalog

CALL = "actgent.call"
"""Key of the gateway's call in the ASGI scope of the SDK's transport."""
_MAX_BYTES = 1 << 40
"""Size limit of the SDK's transport, which is never reached: the gateway has checked the body."""

Handle = Callable[[ASGIScope, Receive, Send], Any]


@attrs.define(eq=False)
class _Transports:
    """The SDK's transports, one for each gateway. A transport starts with the first request, since the SDK takes half a second."""

    _started: WeakKeyDictionary[GatewayContext, Handle] = attrs.field(factory=WeakKeyDictionary)
    _lock: trio.Lock = attrs.field(factory=trio.Lock)

    async def of(self, gateway: GatewayContext, catalog: MCPCatalog | None) -> Handle:
        """Return the function that handles ASGI requests of a gateway with the SDK's transport.

        The first call starts the transport; later calls ignore `catalog`.
        """
        async with self._lock:
            if (found := self._started.get(gateway)) is None:
                found = self._started[gateway] = await gateway.nursery.start(_run_transport, gateway, catalog)
        return found


async def _run_transport(
    gateway: GatewayContext,
    catalog: MCPCatalog | None,
    *,
    task_status: trio.TaskStatus[Handle] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the SDK's transport until the gateway closes."""
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager  # noqa: PLC0415 - see `_Transports`
    from mcp.server.transport_security import TransportSecuritySettings  # noqa: PLC0415

    from .server import make_mcp_server  # noqa: PLC0415

    server = make_mcp_server(
        gateway.access.runtime,
        owner_of=lambda context: _call_of(context).caller.owner,
        may_decide=lambda context: _call_of(context).caller.allows("approve"),
        on_message=_note_message,
        catalog=catalog,
    )
    manager = StreamableHTTPSessionManager(
        app=server,
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        max_request_body_size=_MAX_BYTES,
    )
    async with manager.run():
        task_status.started(manager.handle_request)
        await gateway.closing.wait()


def _call_of(context: Any) -> HTTPCall:
    """Return the gateway's request in which an MCP request arrived."""
    call: HTTPCall = context.request.scope[CALL]
    return call


def _note_message(context: Any, key: SessionKey) -> None:
    """Count a message for the limit of unfinished messages of the caller's token."""
    call = _call_of(context)
    call.gateway.messages.count(call.caller.token.digest, key)


class _Forwarded(Response):
    """A response that the SDK's transport sends."""

    def __init__(self, call: HTTPCall, handle: Handle) -> None:
        super().__init__()
        self._call, self._handle = call, handle

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser  # noqa: PLC0415 - see `_Transports`
        from mcp.server.auth.provider import AccessToken  # noqa: PLC0415

        call = self._call
        token = AccessToken(
            token="", client_id=call.caller.token.digest, subject=call.caller.owner, scopes=[]
        )
        known = {**scope, CALL: call, "user": AuthenticatedUser(token)}
        body = [
            {"type": "http.request", "body": orjson.dumps(call.body) if scope["method"] == "POST" else b""}
        ]

        async def receive_again() -> Message:
            return body.pop() if body else await call.receive()

        is_begun, is_ended = False, False

        async def send_noted(message: Message) -> None:
            nonlocal is_begun, is_ended
            is_begun = True
            is_ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_closing, call.gateway, nursery.cancel_scope)
            await self._handle(known, receive_again, send_noted)
            nursery.cancel_scope.cancel()
        if not is_begun:  # the gateway closes
            await Response(status_code=503)(scope, receive, send)
        elif not is_ended:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _cancel_when_closing(gateway: GatewayContext, scope: trio.CancelScope) -> None:
    await gateway.closing.wait()
    scope.cancel()


_transports = _Transports()


async def answer_mcp(call: HTTPCall, *, catalog: MCPCatalog | None = None) -> Response:
    """Forward a request to the MCP transport."""
    if call.body.get("method") == "tools/call":
        await call.gateway.messages.check(call.caller.token.digest, call.gateway.access.journal)
    return _Forwarded(call, await _transports.of(call.gateway, catalog))


def _endpoint(
    verb: str, body: Mapping[str, Any] | None, statuses: Sequence[int], catalog: MCPCatalog | None
) -> Endpoint:
    return Endpoint(
        prefix="",
        verb=verb,
        path="/mcp",
        answer=partial(answer_mcp, catalog=catalog),
        scope="chat",
        body=body,
        has_parts=True,
        statuses=statuses,
        streams=True,
    )


@attrs.frozen
class MCPProtocol:
    """MCP server at `/mcp`, with a tool for each agent, for the revisions 2026-07-28 and 2025-11-25. Needs the extra `mcp`."""

    catalog: MCPCatalog | None = attrs.field(default=None, kw_only=True)
    """Tools, prompts and resources in addition to the agents; None offers agents only."""
    name: str = attrs.field(default="mcp", init=False)
    title: str = attrs.field(default="MCP hosts", init=False)
    address: str = attrs.field(default="/mcp", init=False)
    background: None = attrs.field(default=None, init=False)

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            _endpoint("POST", {"type": "object"}, (200, 202), self.catalog),
            _endpoint("GET", None, (200,), self.catalog),
            _endpoint("DELETE", None, (200,), self.catalog),
        )
