"""A2A 1.0 over HTTP: JSON-RPC at `/a2a/{agent}`, HTTP+JSON at `/a2a/{agent}/v1`, and the agent cards.

The context is the session, and a task is the run of one message: a repeated `messageId` gives the same task.
"""

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from email.utils import formatdate
from functools import partial
from typing import Any
from urllib.parse import quote

import attrs
import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope as ASGIScope, Send

from actgent import __version__
from actgent.interop.run_events import RunEvent
from actgent.interop.runs_of_protocol_requests import RunStream, to_sse
from actgent.runtime.agent_directory import AgentCard
from actgent.web.access_tokens import Scope
from actgent.web.gateway_context import GatewayContext
from actgent.web.problem_documents import Problem, missing
from actgent.web.routes.endpoints import (
    ANY_NODE,
    JSON,
    Endpoint,
    Forwarding,
    HTTPCall,
    sends_always,
    streams_always,
)

from .errors import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    A2AError,
    envelope_response,
    invalid,
    rest_response,
    rpc_response,
    to_problem,
)
from .json_conversion import Wire, text_param, to_camel_case
from .operations import (
    TaskStream,
    find_task,
    get_task,
    list_task_page,
    send_message,
    session_of_message,
    session_of_task,
    stop_task,
    stream_message,
    subscribe,
)
from .push_notification_configs import PushConfig
from .push_notification_outbox import read_config, to_wire
from .settings import A2ASettings

Params = Mapping[str, Any]


async def create_config(settings: A2ASettings, call: HTTPCall, agent: str, params: Params) -> Wire:
    """Store a push notification configuration of a task, and return it. A configuration with the same id is replaced."""
    outbox = await settings.push.require(call.gateway)
    head, task = await find_task(call, agent, text_param(params, "taskId"))
    config = await read_config(outbox.webhook, params, head, task.message_id)
    await outbox.configs.add(config)
    return to_wire(config)


async def get_config(settings: A2ASettings, call: HTTPCall, agent: str, params: Params) -> Wire:
    """Return a push notification configuration of a task."""
    config_id = text_param(params, "id")
    for config in await _configs(settings, call, agent, params):
        if config.id == config_id:
            return to_wire(config)
    raise A2AError("TASK_NOT_FOUND", "the task has no push notification configuration with this id")


async def list_configs(settings: A2ASettings, call: HTTPCall, agent: str, params: Params) -> Wire:
    """Return all push notification configurations of a task, on one page."""
    configs = [to_wire(each) for each in await _configs(settings, call, agent, params)]
    return {"configs": configs, "nextPageToken": ""}


async def delete_config(settings: A2ASettings, call: HTTPCall, agent: str, params: Params) -> Wire:
    """Remove a push notification configuration of a task; an unknown configuration is ignored."""
    config_id = text_param(params, "id")
    outbox = await settings.push.require(call.gateway)
    configs = await _configs(settings, call, agent, params)
    await outbox.configs.remove([each for each in configs if each.id == config_id])
    return {}


async def _configs(
    settings: A2ASettings, call: HTTPCall, agent: str, params: Params
) -> tuple[PushConfig, ...]:
    outbox = await settings.push.require(call.gateway)
    head, task = await find_task(call, agent, text_param(params, "taskId"))
    return tuple(outbox.configs.of_task(head.key, task.message_id, head.created_at))


Operation = Callable[[HTTPCall, str, Params], Awaitable[Wire | TaskStream]]
FindSession = Callable[[HTTPCall, str, Params], str]
"""Returns the id of the session of a request; empty if any node of a cluster can answer it."""
Wrap = Callable[[Wire], Wire]
HEADERS = {
    "A2A-Version": "Version of the protocol.",
    "A2A-Extensions": "URIs of extensions, separated by commas.",
}
VERSION_QUERY = {"A2A-Version": {"type": "string", "maxLength": 20}}


async def _extended_card(settings: A2ASettings, call: HTTPCall, agent: str, _params: Params) -> Wire:
    card = call.gateway.access.runtime.agents[agent]
    return make_card(
        card, settings, base_url_of(call, settings.base_url), is_extended=True, has_push=has_push(call)
    )


def _no_session_id(_call: HTTPCall, _agent: str, _params: Params) -> str:
    return ""


def _session_of_task_id(_call: HTTPCall, _agent: str, params: Params) -> str:
    return session_of_task(params.get("id"))


@attrs.frozen
class _Method:
    """Method of the JSON-RPC binding of A2A: its operation, scope and session."""

    operation: Operation
    scope: Scope
    session_of: FindSession = _no_session_id


def _methods(settings: A2ASettings) -> Mapping[str, _Method]:
    """Return the methods of A2A's JSON-RPC binding, by method name."""
    in_message = partial(session_of_message, settings)
    return {
        "SendMessage": _Method(partial(send_message, settings), "chat", in_message),
        "SendStreamingMessage": _Method(partial(stream_message, settings), "chat", in_message),
        "GetTask": _Method(get_task, "read", _session_of_task_id),
        "ListTasks": _Method(list_task_page, "read"),
        "CancelTask": _Method(stop_task, "chat", _session_of_task_id),
        "SubscribeToTask": _Method(subscribe, "read", _session_of_task_id),
        "CreateTaskPushNotificationConfig": _Method(partial(create_config, settings), "chat"),
        "GetTaskPushNotificationConfig": _Method(partial(get_config, settings), "read"),
        "ListTaskPushNotificationConfigs": _Method(partial(list_configs, settings), "read"),
        "DeleteTaskPushNotificationConfig": _Method(partial(delete_config, settings), "chat"),
        "GetExtendedAgentCard": _Method(partial(_extended_card, settings), "read"),
    }


def _unchanged(value: Wire) -> Wire:
    return value


class _TaskEvents(RunStream):
    """HTTP response that streams the updates of a task. An error before the first event becomes the response."""

    def __init__(self, stream: TaskStream, wrap: Wrap, to_error: Callable[[Problem], Response]) -> None:
        def encode(event: RunEvent) -> bytes:
            return b"".join(to_sse(wrap(each)) for each in stream.encode(event))

        super().__init__(stream.run, encode, first=lambda: to_sse(wrap({"task": stream.first})))
        self._to_error = to_error

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except Exception as error:
            if scope["actgent.answer"].has_begun:
                raise
            await self._to_error(to_problem(error))(scope, receive, send)


def _check_version(call: HTTPCall) -> None:
    """Check the A2A version that a client uses. Clients of version 0.3 send no version.

    Raises:
        A2AError: The version is not 1.0.
    """
    given = call.header("a2a-version") or call.query.get("A2A-Version")
    if not given:
        text = f"the header A2A-Version is missing, which means version 0.3: send A2A-Version: {VERSION}"
        raise A2AError("VERSION_NOT_SUPPORTED", text)
    if given.split(".")[:2] != VERSION.split("."):
        text = f"A2A-Version {given:.20} is not supported: send A2A-Version: {VERSION}"
        raise A2AError("VERSION_NOT_SUPPORTED", text)


def _check_call(call: HTTPCall, scope: Scope) -> str:
    """Check the caller's scope and the A2A version of a request. Return the name of the agent in the path."""
    if not call.caller.allows(scope):
        raise Problem("forbidden", f"the request requires the scope `{scope}`: use a token with this scope")
    _check_version(call)
    return call.path["agent"]


def session_of_rpc(methods: Mapping[str, _Method], call: HTTPCall) -> str:
    """Return the id of the session that a JSON-RPC request concerns; empty if any node of a cluster can answer it."""
    name, params = call.body.get("method"), call.body.get("params")
    method = methods.get(name) if isinstance(name, str) else None
    if method is None or not isinstance(params, dict):
        return ""
    return method.session_of(call, call.path["agent"], to_camel_case(params))


async def answer_rpc(methods: Mapping[str, _Method], call: HTTPCall) -> Response:
    """Answer a JSON-RPC request. Errors of its operation become JSON-RPC error responses."""
    call.gateway.access.known_opener(call.path["agent"])
    body = call.body
    rpc_id = body.get("id")
    if not isinstance(rpc_id, str | int | None) or isinstance(rpc_id, bool):
        raise Problem("invalid", "the id of a JSON-RPC request must be a string or a whole number")

    def wrap(result: Wire) -> Wire:
        return {"jsonrpc": "2.0", "id": rpc_id, "result": result}

    to_error = partial(rpc_response, rpc_id=rpc_id)
    try:
        method, params = _read_rpc(methods, body)
        result = await method.operation(call, _check_call(call, method.scope), params)
    except Exception as error:  # noqa: BLE001 - `to_problem` raises what has no JSON-RPC error
        return to_error(to_problem(error))
    return _TaskEvents(result, wrap, to_error) if isinstance(result, TaskStream) else JSON(wrap(result))


def _read_rpc(methods: Mapping[str, _Method], body: Mapping[str, Any]) -> tuple[_Method, Params]:
    """Validate the body of a JSON-RPC request, and return its method and parameters."""
    method, params = body.get("method"), body.get("params")
    if body.get("jsonrpc") != "2.0" or not isinstance(method, str):
        raise Problem(
            "invalid",
            'a JSON-RPC request must have the members jsonrpc: "2.0" and method',
            code=INVALID_REQUEST,
        )
    if method not in methods:
        raise Problem("invalid", f"unknown method {method:.100}", code=METHOD_NOT_FOUND)
    if params is not None and not isinstance(params, dict):
        raise invalid("params", "must be an object")
    return methods[method], to_camel_case(params or {})


_PATH_NAMES = {"id": "id", "task": "taskId", "config": "id"}
"""Name of the request parameter that each variable segment of a path sets."""


def _rest_params(call: HTTPCall) -> Params:
    """Return the parameters of a request of the HTTP+JSON binding, from path, query and body."""
    named = {_PATH_NAMES[name]: value for name, value in call.path.items() if name in _PATH_NAMES}
    params = {**to_camel_case(call.body), **call.query, **named}
    if "includeArtifacts" in params:
        params["includeArtifacts"] = params["includeArtifacts"] in ("true", True)
    return params


def session_of_rest(find: FindSession, call: HTTPCall) -> str:
    """Return the id of the session that a request of the HTTP+JSON binding concerns. `find` reads it from the parameters."""
    return find(call, call.path["agent"], _rest_params(call))


async def answer_rest(operation: Operation, call: HTTPCall) -> Response:
    """Answer a request of the HTTP+JSON binding: run `operation` with the parameters from path, query and body."""
    call.gateway.access.known_opener(call.path["agent"])
    _check_version(call)
    result = await operation(call, call.path["agent"], _rest_params(call))
    if isinstance(result, TaskStream):
        return _TaskEvents(result, _unchanged, partial(rest_response, _request_id=""))
    return JSON(result)


async def answer_card(settings: A2ASettings, call: HTTPCall) -> Response:
    """Return the public card of an agent."""
    return public_card(call, settings, call.path.get("agent"))


_TEXT = {"type": "string"}
_COUNT = {"type": "integer"}
_LIST_QUERY = {
    "contextId": _TEXT,
    "status": _TEXT,
    "pageSize": _COUNT,
    "pageToken": {"type": "string", "maxLength": 2000},
    "historyLength": _COUNT,
    "statusTimestampAfter": _TEXT,
    "includeArtifacts": {"enum": ["true", "false"]},
}


def _make_rest_endpoint(
    verb: str,
    path: str,
    operation: Operation,
    *,
    scope: Scope = "read",
    query: Mapping[str, Any] | None = None,
    streams: bool = False,
    session_of: FindSession = _no_session_id,
) -> Endpoint:
    return Endpoint(
        prefix="",
        verb=verb,
        path=f"/a2a/{{agent}}/v1{path}",
        answer=partial(answer_rest, operation),
        scope=scope,
        query={"tenant": _TEXT, **VERSION_QUERY, **(query or {})},
        headers=HEADERS,
        body={"type": "object"} if verb == "POST" else None,
        has_parts=verb == "POST",
        ignores_body=operation is subscribe,
        media_type="text/event-stream" if streams else "application/json",
        streams=streams,
        is_stream=streams_always if streams else None,
        to_error=rest_response,
        forwarding=Forwarding(
            session_of=partial(session_of_rest, session_of),
            awaits_run=session_of is not _no_session_id,
            sends_message=sends_always if path.startswith("/message:") else None,
        ),
    )


def _sends_message(call: HTTPCall) -> bool:
    """Return True if a JSON-RPC request sends a message."""
    return call.body.get("method") in ("SendMessage", "SendStreamingMessage")


def _is_stream(call: HTTPCall) -> bool:
    """Return True if the response to a JSON-RPC request is a stream."""
    return call.body.get("method") in ("SendStreamingMessage", "SubscribeToTask")


def _rpc(path: str, methods: Mapping[str, _Method]) -> Endpoint:
    return Endpoint(
        prefix="",
        verb="POST",
        path=path,
        answer=partial(answer_rpc, methods),
        scope="read",
        query=VERSION_QUERY,
        headers=HEADERS,
        body={"type": "object"},
        has_parts=True,
        streams=True,
        is_stream=_is_stream,
        to_error=envelope_response,
        forwarding=Forwarding(
            session_of=partial(session_of_rpc, methods), awaits_run=True, sends_message=_sends_message
        ),
    )


def _card(path: str, settings: A2ASettings) -> Endpoint:
    answer = partial(answer_card, settings)
    return Endpoint(prefix="", verb="GET", path=path, answer=answer, scope=None, forwarding=ANY_NODE)


@attrs.frozen
class A2AProtocol(A2ASettings):
    """The protocol A2A 1.0 at `/a2a/{agent}` of a gateway, over JSON-RPC and HTTP+JSON.

    Args:
        base_url: Public URL of the gateway for the agent cards, such as `https://agents.example.com`. If empty, the cards have
            the scheme and host of the client's request, which are wrong behind a proxy that terminates TLS.
        input_modes: Media types of parts that the agents accept, such as `text/plain`, `image/*` or `*/*`. Other types are rejected.
        output_modes: Media types of the agents' answers. A client that accepts none of them is rejected.
        message_types: Names of response types (instructions) whose answers `SendMessage` returns as a message instead of a task.
    """

    name: str = attrs.field(default="a2a", init=False)
    title: str = attrs.field(default="A2A clients", init=False)
    address: str = attrs.field(default="/a2a/AGENT", init=False)

    @property
    def background(self) -> Callable[[GatewayContext], Awaitable[object]]:
        return self.push.of

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        methods, push = _methods(self), "/tasks/{task}/pushNotificationConfigs"
        send, stream = partial(send_message, self), partial(stream_message, self)
        in_message = partial(session_of_message, self)
        return (
            _rpc("/a2a/{agent}", methods),
            _rpc("/a2a/{agent}/", methods),
            _card("/a2a/{agent}/.well-known/agent-card.json", self),
            _card("/.well-known/agent-card.json", self),
            _make_rest_endpoint("POST", "/message:send", send, scope="chat", session_of=in_message),
            _make_rest_endpoint(
                "POST", "/message:stream", stream, scope="chat", streams=True, session_of=in_message
            ),
            _make_rest_endpoint(
                "POST", "/tasks/{id}:cancel", stop_task, scope="chat", session_of=_session_of_task_id
            ),
            _make_rest_endpoint(
                "POST", "/tasks/{id}:subscribe", subscribe, streams=True, session_of=_session_of_task_id
            ),
            _make_rest_endpoint(
                "GET", "/tasks/{id}:subscribe", subscribe, streams=True, session_of=_session_of_task_id
            ),
            _make_rest_endpoint("POST", push, partial(create_config, self), scope="chat"),
            _make_rest_endpoint(
                "GET", push, partial(list_configs, self), query={"pageSize": _COUNT, "pageToken": _TEXT}
            ),
            _make_rest_endpoint("GET", f"{push}/{{config}}", partial(get_config, self)),
            _make_rest_endpoint("DELETE", f"{push}/{{config}}", partial(delete_config, self), scope="chat"),
            _make_rest_endpoint(
                "GET",
                "/tasks/{id}",
                get_task,
                query={"historyLength": _COUNT},
                session_of=_session_of_task_id,
            ),
            _make_rest_endpoint("GET", "/tasks", list_task_page, query=_LIST_QUERY),
            _make_rest_endpoint("GET", "/extendedAgentCard", partial(_extended_card, self)),
        )


# --- agent card ------------------------------------------------------------------------------

VERSION = "1.0"
CARD_SECONDS = 300
"""Seconds for which clients may cache an agent card."""
_STARTED = formatdate(time.time(), usegmt=True)


def make_card(
    card: AgentCard, settings: A2ASettings, base_url: str, *, is_extended: bool, has_push: bool
) -> dict[str, Any]:
    """Return the A2A agent card of an agent.

    Only the extended card, for authenticated clients, has the agent's goal and capabilities. `has_push` is True if the gateway
    can send push notifications.
    """
    url = f"{base_url}/a2a/{quote(card.name, safe='')}"
    about = ". ".join(each for each in (card.role, card.goal, card.capabilities) if each)
    description = (about if is_extended else "") or f"The agent {card.name}"
    return {
        "name": card.name,
        "description": description,
        "version": __version__,
        "supportedInterfaces": [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": VERSION},
            {"url": f"{url}/v1", "protocolBinding": "HTTP+JSON", "protocolVersion": VERSION},
        ],
        "capabilities": {"streaming": True, "pushNotifications": has_push, "extendedAgentCard": True},
        "securitySchemes": {
            "token": {"httpAuthSecurityScheme": {"scheme": "Bearer", "description": "A token of the gateway"}}
        },
        "securityRequirements": [{"schemes": {"token": {"list": []}}}],
        "defaultInputModes": list(settings.input_modes),
        "defaultOutputModes": list(settings.output_modes),
        "skills": [{"id": "chat", "name": "Chat", "description": description, "tags": ["chat"]}],
    }


def public_card(call: HTTPCall, settings: A2ASettings, agent: str | None) -> Response:
    """Return the public A2A card of an agent. None selects the only agent of the gateway.

    Raises:
        Problem: The agent is unknown, or the gateway has several agents.
    """
    agents: Mapping[str, AgentCard] = call.gateway.access.runtime.agents
    if agent is None and len(agents) == 1:
        agent = next(iter(agents))
    if agent is None or agent not in agents:
        raise missing()
    body = orjson.dumps(
        make_card(
            agents[agent],
            settings,
            base_url_of(call, settings.base_url),
            is_extended=False,
            has_push=has_push(call),
        )
    )
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"cache-control": f"public, max-age={CARD_SECONDS}", "etag": tag, "last-modified": _STARTED}
    if call.header("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def has_push(call: HTTPCall) -> bool:
    """Return True if the gateway can send push notifications to URLs that clients set."""
    return call.gateway.session_webhook is not None


def base_url_of(call: HTTPCall, base_url: str) -> str:
    """Return the base URL of the gateway: `base_url` if it is not empty, else scheme and host of the client's request.

    The gateway has checked that this host is allowed.
    """
    return base_url.rstrip("/") or f"{call.scheme}://{call.header('host')}"
