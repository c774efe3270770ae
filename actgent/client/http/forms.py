"""Requests as HTTP has them, and answers read back: what every transport to a gateway's endpoints shares."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import attrs
import orjson

from actgent.client.transport import ConnectionLost, Operation, Refused, RemoteRequest

PATHS: Mapping[Operation, tuple[str, str]] = {
    "cancel_task": ("DELETE", "/sessions/{session}/tasks/{part}"),
    "close": ("POST", "/sessions/{session}/close"),
    "delegate": ("POST", "/sessions/{session}/tasks"),
    "erase": ("DELETE", "/sessions/{session}"),
    "get_agent": ("GET", "/agents/{part}"),
    "get_approvals": ("GET", "/approvals"),
    "get_events": ("GET", "/sessions/{session}/events"),
    "get_export": ("GET", "/sessions/{session}/export"),
    "get_feedback": ("GET", "/sessions/{session}/messages/{part}/feedback"),
    "get_message": ("GET", "/sessions/{session}/messages/{part}"),
    "get_messages": ("GET", "/sessions/{session}/messages"),
    "get_observations": ("GET", "/sessions/{session}/observations"),
    "get_past": ("GET", "/sessions/{session}/at/{part}"),
    "get_session": ("GET", "/sessions/{session}"),
    "get_state": ("GET", "/sessions/{session}/state"),
    "give_feedback": ("POST", "/sessions/{session}/messages/{part}/feedback"),
    "interrupt": ("POST", "/sessions/{session}/interrupt"),
    "list_agents": ("GET", "/agents"),
    "list_all_schedules": ("GET", "/schedules"),
    "list_of_session": ("GET", "/sessions/{session}/approvals"),
    "list_schedules": ("GET", "/sessions/{session}/schedules"),
    "list_sessions": ("GET", "/sessions"),
    "post_compare": ("POST", "/sessions/{session}/compare"),
    "post_decision": ("POST", "/approvals/{part}/decision"),
    "post_fork": ("POST", "/sessions/{session}/fork"),
    "post_session": ("POST", "/sessions"),
    "put_mode": ("PUT", "/sessions/{session}/mode"),
    "put_session": ("PUT", "/sessions/{session}"),
    "say": ("POST", "/sessions/{session}/messages"),
    "schedule": ("POST", "/sessions/{session}/schedules"),
    "unschedule": ("DELETE", "/sessions/{session}/schedules/{part}"),
}
"""Verb and path of each operation, as in the gateway's description."""
STREAM = "text/event-stream"
REPEATED = "actgent-repeated"
"""The header of an answer of a gateway whose request may have had its effect before, at a process that has gone."""
WANTED = "actgent-events"
"""The header of a request for events that says which of them are waited for; releases that do not know it tell all at once."""
ALONG = "actgent-events-along"
"""The header beside that which says which others are told along with those, as far as a server knows it: without it, all."""
NO_CONTENT = 204
_MADE = ("put_session", "post_session", "list_sessions", "get_approvals")
"""Operations whose body or query says the agent, if any."""
_CREATED, _FIRST_ERROR = 201, 400
_KINDS = {502: "unavailable", 503: "unavailable", 504: "unavailable", 429: "too-many-requests"}
"""What errors of proxies are, which say nothing of ours."""


@attrs.frozen(kw_only=True)
class HTTPForm:
    """A request as HTTP has it, below `/v1` and without a token."""

    verb: str
    path: str
    """Each of its segments quoted."""
    query: str
    headers: Mapping[str, str]
    body: bytes | None
    """None: it has none, not even an empty one."""


def to_http(request: RemoteRequest, *, accept: str = "application/json") -> HTTPForm:
    """Write a request as HTTP has it."""
    verb, path = PATHS[request.operation]
    query = dict(request.query)
    if request.agent and request.operation not in _MADE and "{session}" in path:
        query["agent"] = request.agent
    headers = {"accept": accept}
    if request.wait:
        headers["prefer"] = f"wait={request.wait:.0f}"
    if request.key:
        headers["idempotency-key"] = request.key
    if request.wanted:
        headers[WANTED] = ",".join(sorted(request.wanted))
        headers[ALONG] = ",".join(sorted(request.along))
    body = None if verb in ("GET", "DELETE") else orjson.dumps(dict(request.body or {}))
    if body is not None:
        headers["content-type"] = "application/json"
    place = path.format(session=quote(request.session_id, safe=""), part=quote(request.part, safe=""))
    return HTTPForm(verb=verb, path=place, query=urlencode(query), headers=headers, body=body)


def read_answer(request: RemoteRequest, status: int, data: bytes, *, is_repeated: bool = False) -> Any:
    """Return an answer as decoded JSON, None if it has no body.

    Raises:
        Refused: it is an error.
        ConnectionLost: it is no JSON.
    """
    if status >= _FIRST_ERROR:
        problem = refused(status, data)
        problem.is_repeated = is_repeated
        raise problem
    found: Any = _decoded(data) if data else None
    if request.operation == "put_session":
        found["is_new"], found["is_repeated"] = status == _CREATED, is_repeated
    return found


def refused(status: int, data: bytes) -> Refused:
    """Return the problem (RFC 9457) that an answer is, or what its status says."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("type"), str):
        return Refused(_KINDS.get(status, "other"), f"HTTP status {status}", status=status, fields={})
    kind, detail = document["type"].rpartition("/")[2], document.get("detail") or document.get("title", "")
    return Refused(kind, str(detail), status=status, fields=document)


def _decoded(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise ConnectionLost("the answer is no JSON: perhaps this is no gateway", was_sent=True) from None
