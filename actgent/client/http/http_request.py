"""Conversion of a `RemoteRequest` to an HTTP request, and of an HTTP response to JSON or a `Refused` error."""

import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import attrs
import orjson

from actgent.client.transport_interface import ConnectionLost, Operation, Refused, RemoteRequest
from actgent.errors import RemoteError
from actgent.errors.text_escaping import shown
from actgent.messages import traceparent
from actgent.runtime.waits_between_sessions import sources_of_caller
from actgent.support.tracing_interface import active_trace
from actgent.support.untrusted_text_delimiters import join_origins

PATHS: Mapping[Operation, tuple[str, str]] = {
    "add_dataset_case": ("POST", "/datasets/{dataset}/cases"),
    "answer_call": ("POST", "/sessions/{session}/calls/{part}"),
    "cancel_task": ("DELETE", "/sessions/{session}/tasks/{part}"),
    "annotate": ("PATCH", "/sessions/{session}"),
    "close": ("POST", "/sessions/{session}/close"),
    "delegate": ("POST", "/sessions/{session}/tasks"),
    "erase": ("DELETE", "/sessions/{session}"),
    "erase_memories": ("DELETE", "/agents/{agent}/memories"),
    "find_messages": ("GET", "/search"),
    "forget_memory": ("DELETE", "/agents/{agent}/memories/{part}"),
    "get_agent": ("GET", "/agents/{part}"),
    "get_approvals": ("GET", "/approvals"),
    "get_calls": ("GET", "/sessions/{session}/calls"),
    "get_cluster": ("GET", "/cluster"),
    "get_dataset_cases": ("GET", "/datasets/{dataset}/cases"),
    "get_dead_letters": ("GET", "/dead-letters"),
    "get_evaluation": ("GET", "/datasets/{dataset}/evaluations/{part}"),
    "get_events": ("GET", "/sessions/{session}/events"),
    "get_export": ("GET", "/sessions/{session}/export"),
    "get_feedback": ("GET", "/sessions/{session}/messages/{part}/feedback"),
    "get_run": ("GET", "/sessions/{session}/runs/{part}"),
    "get_memory": ("GET", "/agents/{agent}/memories/{part}"),
    "get_messages": ("GET", "/sessions/{session}/messages"),
    "get_observations": ("GET", "/sessions/{session}/observations"),
    "get_past": ("GET", "/sessions/{session}/at/{part}"),
    "get_session": ("GET", "/sessions/{session}"),
    "get_state": ("GET", "/sessions/{session}/state"),
    "get_trends": ("GET", "/trends"),
    "give_feedback": ("POST", "/sessions/{session}/messages/{part}/feedback"),
    "interrupt": ("POST", "/sessions/{session}/interrupt"),
    "list_agents": ("GET", "/agents"),
    "list_all_schedules": ("GET", "/schedules"),
    "list_datasets": ("GET", "/datasets"),
    "list_evaluations": ("GET", "/datasets/{dataset}/evaluations"),
    "get_memories": ("GET", "/agents/{agent}/memories"),
    "get_memory_owners": ("GET", "/agents/{agent}/memory-owners"),
    "list_of_session": ("GET", "/sessions/{session}/approvals"),
    "list_schedules": ("GET", "/sessions/{session}/schedules"),
    "list_sessions": ("GET", "/sessions"),
    "list_toolsets": ("GET", "/toolsets"),
    "post_compare": ("POST", "/sessions/{session}/compare"),
    "post_decision": ("POST", "/approvals/{part}/decision"),
    "post_fork": ("POST", "/sessions/{session}/fork"),
    "post_lift": ("POST", "/sessions/{session}/lifts"),
    "post_session": ("POST", "/sessions"),
    "put_mode": ("PUT", "/sessions/{session}/mode"),
    "put_session": ("PUT", "/sessions/{session}"),
    "remove_dataset_case": ("DELETE", "/datasets/{dataset}/cases/{part}"),
    "replace_dataset_case": ("PUT", "/datasets/{dataset}/cases/{part}"),
    "say": ("POST", "/sessions/{session}/messages"),
    "schedule": ("POST", "/sessions/{session}/schedules"),
    "send_dead_letter": ("POST", "/dead-letters/{part}/redelivery"),
    "unschedule": ("DELETE", "/sessions/{session}/schedules/{part}"),
    "update_memory": ("PATCH", "/agents/{agent}/memories/{part}"),
}
"""HTTP verb and path below `/v1` of each operation, as in the gateway's OpenAPI document."""
EVENT_STREAM_TYPE = "text/event-stream"
JSON_TYPE = "application/json"
REPEATED_HEADER = "actgent-repeated"
"""Answer header: the gateway sent the request to a node more than once, and an earlier try may have had its effect."""
EVENTS_HEADER = "actgent-events"
"""Request header of an event stream: names of the events to send at once. Older servers ignore it and send all events."""
EVENTS_ALONG_HEADER = "actgent-events-along"
"""Request header of an event stream: names of the other events to send, together with the next one of `EVENTS_HEADER`.

Without this header, all other events are sent.
"""
RETRY_TIMEOUT_HEADER = "actgent-retry-timeout"
"""Request header: seconds for which the client waits until a node accepts the request."""
BREAKS_HEADER = "actgent-counts-breaks"
"""Request header: number of connections that broke during this request. If it is present, the gateway reports a
further break at once.
"""
SOURCES_HEADER = "actgent-sources"
"""Request header: untrusted sources of the request, separated by commas and percent-encoded. A server adds them to its messages."""
NO_CONTENT = 204
OPERATIONS_WITHOUT_ANSWER: frozenset[Operation] = frozenset(
    {
        "answer_call",
        "cancel_task",
        "close",
        "erase",
        "forget_memory",
        "give_feedback",
        "interrupt",
        "post_decision",
        "post_lift",
        "remove_dataset_case",
        "unschedule",
    }
)
"""Operations whose successful response has the status 204 and no body. All other operations return a JSON object."""
_NO_HEADERS: Mapping[str, str] = {}
_AGENT_IN_REQUEST = ("put_session", "post_session", "list_sessions", "get_approvals")
"""Operations whose body or query already names the agent, so `to_http` adds no `agent` parameter."""
_SAFE_IN_SOURCES = ",: "
_CREATED, _FIRST_REDIRECT, _FIRST_ERROR = 201, 300, 400
_LOST_STATUSES = (408, 502, 504, 520, 521, 522, 523, 524)
"""HTTP statuses of proxies that lost the connection to the server. The request may have had its effect."""
_KINDS_BY_STATUS = {
    401: "unauthorized",
    403: "forbidden",
    413: "body-too-large",
    429: "too-many-requests",
    503: "unavailable",
    **dict.fromkeys(_LOST_STATUSES, "unavailable"),
}
"""Problem kinds by HTTP status, for error answers of proxies, which contain no problem document."""
_NOT_A_GATEWAY = "check that the address is that of an actgent gateway"


class _Answer(dict[str, Any]):
    """JSON object of a response. A missing member is an error that names the likely cause."""

    def __missing__(self, key: str) -> Any:
        raise RemoteError(f"the response has no member {key!r}: {_NOT_A_GATEWAY}")


@attrs.frozen(kw_only=True)
class HTTPRequest:
    """HTTP request to a gateway, without the gateway's address and the access token."""

    verb: str
    path: str
    """URL path below `/v1`, with percent-encoded segments."""
    query: str
    """Encoded query string without `?`."""
    headers: Mapping[str, str]
    body: bytes | None
    """Bytes of the request body; None for requests without a body (GET and DELETE)."""


def _current_traceparent() -> str | None:
    """Return the W3C `traceparent` of the current task, to send with requests; None without a trace.

    The current span of OpenTelemetry takes precedence, also outside of agents.
    """
    active = active_trace.get()
    current = _current_span() if active is None else active.tracing.current()
    return current or traceparent.get()


def _current_span() -> str | None:
    """Return the `traceparent` of OpenTelemetry's current span; None if the program does not use OpenTelemetry."""
    if (api := sys.modules.get("opentelemetry.trace")) is None:
        return None
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def to_http(request: RemoteRequest, *, accept: str = JSON_TYPE) -> HTTPRequest:
    """Convert a `RemoteRequest` to an HTTP request; `accept` is the media type of the response."""
    verb, path = PATHS[request.operation]
    query = dict(request.query)
    if request.agent and request.operation not in _AGENT_IN_REQUEST and "{session}" in path:
        query["agent"] = request.agent
    headers = {"accept": accept, BREAKS_HEADER: str(request.broken_connections)}
    if (
        accept != JSON_TYPE
    ):  # proxies delay a compressed stream, and the end of a truncated one is not detected
        headers["accept-encoding"] = "identity"
    if request.is_long_poll:
        headers["prefer"] = f"wait={request.wait:.0f}"
    if request.key:
        headers["idempotency-key"] = request.key
    if request.immediate_events:
        headers[EVENTS_HEADER] = ",".join(sorted(request.immediate_events))
        headers[EVENTS_ALONG_HEADER] = ",".join(sorted(request.delayed_events))
    if (parent := _current_traceparent()) is not None:
        headers["traceparent"] = parent
    body = None if verb in ("GET", "DELETE") else orjson.dumps(dict(request.body or {}))
    if body is not None:
        headers["content-type"] = JSON_TYPE
        if sources := join_origins(request.sources, sources_of_caller()):
            headers[SOURCES_HEADER] = quote(sources, safe=_SAFE_IN_SOURCES)
    segments = {
        "agent": request.agent,
        "dataset": request.dataset,
        "session": request.session_id,
        "part": request.part,
    }
    full_path = path.format_map({name: quote(value, safe="") for name, value in segments.items()})
    return HTTPRequest(verb=verb, path=full_path, query=urlencode(query), headers=headers, body=body)


def parse_response(
    request: RemoteRequest,
    status: int,
    data: bytes,
    *,
    is_repeated: bool = False,
    headers: Mapping[str, str] = _NO_HEADERS,
) -> Any:
    """Return the body of an HTTP response as a decoded JSON object; None for an operation of `OPERATIONS_WITHOUT_ANSWER`.

    The JSON of `put_session` gets the additional fields `is_new` and `is_repeated`. See `Operation` for their meaning.

    Raises:
        Refused: The status is 300 or more.
        ConnectionLost: The body is not a JSON object, or it is missing.
    """
    if status >= _FIRST_REDIRECT:
        problem = parse_problem(status, data, headers)
        problem.is_repeated = is_repeated
        raise problem
    if status == NO_CONTENT and request.operation in OPERATIONS_WITHOUT_ANSWER:
        return None
    found = _Answer(decode_object(data, f"the response is not a JSON object: {_NOT_A_GATEWAY}"))
    if request.operation == "put_session":
        found["is_new"], found["is_repeated"] = status == _CREATED, is_repeated
    return found


def parse_problem(status: int, data: bytes, headers: Mapping[str, str] = _NO_HEADERS) -> Refused:
    """Convert an HTTP error response to a `Refused` error, from its problem document (RFC 9457) or else from its status.

    The response of a proxy has no problem document. Its `Retry-After` is used if it is a number of seconds.
    """
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("type"), str):
        return _proxy_problem(status, headers)
    kind, detail = document["type"].rpartition("/")[2], document.get("detail") or document.get("title", "")
    return Refused(kind, str(detail), status=status, fields=document)


def _proxy_problem(status: int, headers: Mapping[str, str]) -> Refused:
    """Return the error for a response that is not from an actgent server."""
    detail = f"HTTP status {status} without a problem document, as from a proxy"
    if status < _FIRST_ERROR:
        location = shown(headers.get("location", "another address")[:200])
        detail = f"the server redirects to {location}: pass the address of the gateway itself"
    fields: dict[str, Any] = {"may_be_done": True} if status in _LOST_STATUSES else {}
    if (wait := headers.get("retry-after", "")).isdecimal():
        fields["retry_after"] = int(wait[:9])
    return Refused(_KINDS_BY_STATUS.get(status, "other"), detail, status=status, fields=fields)


def decode_object(data: bytes, problem: str) -> dict[str, Any]:
    """Decode a JSON object that a server has sent.

    Raises:
        ConnectionLost: The data is anything else, for example because another server has answered. `problem` is the text.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ConnectionLost(problem, was_sent=True)
    return value
