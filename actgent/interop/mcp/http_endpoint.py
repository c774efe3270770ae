"""MCP over HTTP at `/mcp` of a gateway. The gateway checks host, origin, token and size, then forwards to the SDK's transport.

In a cluster the transport has no MCP sessions, so that each node answers each request, and a call of an agent is relayed to
the node that owns its session. Without MCP sessions, clients of MCP 2025-11-25 cannot be asked during a call.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import attrs
import trio
from starlette.responses import Response
from starlette.types import Message, Receive, Scope as ASGIScope, Send

from actgent.approvals import session_of
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import new_id
from actgent.support.strict_json import encode_json
from actgent.web.gateway_context import GatewayContext
from actgent.web.problem_documents import Problem
from actgent.web.routes.endpoints import JSON, Endpoint, Forwarding, HTTPCall, streams_always
from actgent.web.streaming.sse import Streamed

from .agent_call import MESSAGE_ID, agent_tool_name, session_of_call
from .catalog import MCPCatalog

CALL = "actgent.call"
"""Key of the gateway's call in the ASGI scope of the SDK's transport."""
_MAX_BYTES = 1 << 40
"""Size limit of the SDK's transport, which is never reached: the gateway has checked the body."""

Handle = Callable[[ASGIScope, Receive, Send], Any]


@attrs.define(eq=False)
class _Transports:
    """MCP transports of the SDK, one for each gateway. A transport starts with the first request, because that takes half a second."""

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
    """Run the SDK's MCP transport until the gateway closes. `task_status` gets the function that handles requests."""
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager  # noqa: PLC0415 - see `_Transports`
    from mcp.server.transport_security import TransportSecuritySettings  # noqa: PLC0415

    from .agent_server import make_mcp_server  # noqa: PLC0415

    runtime = gateway.access.runtime
    relay = None if runtime.remote_sessions is None else runtime.remote_sessions.relay
    server = make_mcp_server(
        runtime,
        owner_of=lambda context: _call_of(context).caller.owner,
        may_decide=lambda context: _call_of(context).caller.allows("approve"),
        on_message=_note_message,
        catalog=catalog,
        state_key=None if relay is None else relay.derive_key(b"actgent mcp request state"),
    )
    manager = StreamableHTTPSessionManager(
        app=server,
        stateless=relay is not None,
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        max_request_body_size=_MAX_BYTES,
    )
    async with manager.run():
        task_status.started(manager.handle_request)
        await gateway.closing.wait()


def _call_of(context: Any) -> HTTPCall:
    """Return the gateway's HTTP call that contains an MCP request."""
    call: HTTPCall = context.request.scope[CALL]
    return call


def _note_message(context: Any, key: SessionKey) -> None:
    """Count a message against the limit of unfinished messages of the caller's token."""
    call = _call_of(context)
    call.gateway.messages.count(call.caller.token.digest, key)


class _Forwarded(Streamed):
    """HTTP response that the SDK's transport sends."""

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
        known = {
            **scope,
            "path": call.address,
            "query_string": call.search.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in call.headers.items()],
            CALL: call,
            "user": AuthenticatedUser(token),
        }
        body = [
            {"type": "http.request", "body": encode_json(call.body) if scope["method"] == "POST" else b""}
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
    """Answer an HTTP request to `/mcp` with the SDK's transport.

    Raises:
        Fenced: The request needs a new session, and this node of a cluster owns no sessions.
    """
    if call.body.get("method") == "tools/call":
        journal = call.gateway.access.journal
        if _agent_params(call) is not None:
            journal.new_session_id()
        await call.gateway.messages.check(call.caller.token.digest, journal)
    return _Forwarded(call, await _transports.of(call.gateway, catalog))


def _agent_params(call: HTTPCall) -> Mapping[str, Any] | None:
    """Return the parameters of an MCP request that calls an agent; None for other requests."""
    params = call.body.get("params")
    if call.body.get("method") != "tools/call" or not isinstance(params, dict):
        return None
    name, agents = params.get("name"), call.gateway.access.runtime.agents
    return params if any(agent_tool_name(each) == name for each in agents) else None


def _session_of(call: HTTPCall) -> str:
    """Return the id of the session in which a request calls an agent; empty for other requests, and for a new session."""
    if (params := _agent_params(call)) is None:
        return ""
    named = _member(params, "arguments", "session_id") or next(
        map(session_of, _object(params, "inputResponses")), ""
    )
    message_id = _member(params, "_meta", MESSAGE_ID)
    return named or (message_id and session_of_call(call.caller.owner, message_id))


def _object(params: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = params.get(name)
    return found if isinstance(found, dict) else {}


def _member(params: Mapping[str, Any], name: str, member: str) -> str:
    """Return the text `member` in the object `name` of the parameters; empty if it is missing."""
    found = _object(params, name).get(member)
    return found if isinstance(found, str) else ""


def _with_message_id(call: HTTPCall) -> HTTPCall:
    """Return a call of an agent in an existing session with a message id, so that a retry does not send the message again."""
    params = _agent_params(call)
    if params is None or not _member(params, "arguments", "session_id") or _object(params, "inputResponses"):
        return call
    meta = {MESSAGE_ID: new_id(), **_object(params, "_meta")}
    return attrs.evolve(call, body={**call.body, "params": {**params, "_meta": meta}})


def to_rpc_error(problem: Problem, request_id: str) -> Response:
    """Convert a problem to a JSON-RPC error without an id, for a request that the gateway rejects before the transport."""
    code = _PARSE_ERROR if problem.kind == "malformed-request" else _INVALID_REQUEST
    error = {
        "code": code,
        "message": problem.detail or problem.title,
        "data": {"kind": problem.kind, "request": request_id},
    }
    status = 400 if problem.kind == "invalid" else problem.status
    return JSON({"jsonrpc": "2.0", "id": None, "error": error}, status_code=status, headers=problem.headers)


_PARSE_ERROR, _INVALID_REQUEST = -32700, -32600
"""Error codes of JSON-RPC 2.0, section 5.1."""


def _calls_tool(call: HTTPCall) -> bool:
    """Return True if a request to the MCP endpoint is a tool call. Tool calls can take long, so their responses are streams."""
    return call.body.get("method") == "tools/call"


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
        to_error=to_rpc_error,
        statuses=statuses,
        streams=True,
        is_stream=streams_always if verb == "GET" else _calls_tool,
        headers={
            "MCP-Protocol-Version": "Revision of the protocol.",
            "Mcp-Method": "Method of the request.",
            "Mcp-Name": "Name of the called tool.",
        },
        forwarding=Forwarding(
            session_of=_session_of,
            awaits_run=True,
            add_ids=_with_message_id,
            sends_message=lambda call: _agent_params(call) is not None,
        ),
    )


@attrs.frozen
class MCPProtocol:
    """MCP server at `/mcp` of a gateway, with a tool for each agent, for MCP 2026-07-28 and 2025-11-25. Needs the extra `mcp`."""

    catalog: MCPCatalog | None = attrs.field(default=None, kw_only=True)
    """Tools, prompts and resources to offer in addition to the agents; None offers only agents."""
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
