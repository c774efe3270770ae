"""Endpoints of sessions: create, list, get, interrupt, close and erase."""

from collections.abc import Mapping
from typing import Any, cast

from starlette.responses import Response

from actgent.agents.session import Session, session_of_context
from actgent.errors import AddressBlocked, NotRunning, SessionClosed, SessionExists, did_you_mean_or_list
from actgent.errors.text_escaping import quoted
from actgent.journal.journal_interface import SessionSummary
from actgent.journal.session_tags_and_metadata import MAX_VALUE_CHARS, new_annotations
from actgent.limits_and_schedules.id_and_number_validation import MAX_ID_CHARS, check_id
from actgent.limits_and_schedules.limits import Limits
from actgent.messages import Sender
from actgent.runtime.sessions.session_tree_close import close_below
from actgent.web import json_response_types
from actgent.web.problem_documents import Problem, missing
from actgent.web.webhooks.outbox import session_keys
from actgent.web.webhooks.webhook import EVENTS, MAX_URL_CHARS, check_events, check_url

from .common_request_schemas import (
    AFTER,
    AGENT,
    ANNOTATION_FILTERS,
    LIMIT,
    LOCATION,
    ON_BUSY,
    SESSION_LIMITS,
    SESSION_METADATA,
    STATE,
    TAGS,
    TEXT,
    check_client_id,
)
from .endpoints import IDEMPOTENCY_KEY, JSON, Endpoint, Forwarding, HTTPCall
from .idempotency import creator_id, first_record, id_of_key, was_created_by
from .json_serializers import of_head, of_session

_LIST = {
    "agent": AGENT,
    "owner": TEXT,
    "status": STATE,
    "parent": {"type": "string", "description": "Its children alone: the id of a session."},
    "q": {"type": "string", "description": "How the id or the owner begins."},
    **ANNOTATION_FILTERS,
    "after": AFTER,
    "limit": LIMIT,
}
_ONE = {"agent": AGENT}
NEW_SESSION = {
    "type": "object",
    "properties": {
        "agent": {"type": "string", "minLength": 1},
        "owner": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_ID_CHARS,
            "description": "Owner of the session; requires the scope admin.",
        },
        "on_busy": ON_BUSY,
        "limits": SESSION_LIMITS,
        "mode": {"type": "string", "minLength": 1},
        "tags": TAGS,
        "metadata": SESSION_METADATA,
        "notify": {
            "type": "object",
            "description": "Webhook for events of the session, if the server permits webhooks of sessions.",
            "properties": {
                "url": {"type": "string", "pattern": "^https?://", "maxLength": MAX_URL_CHARS},
                "events": {"type": "array", "items": {"type": "string", "enum": list(EVENTS)}, "minItems": 1},
            },
            "required": ["url"],
            "additionalProperties": False,
        },
    },
    "required": ["agent"],
    "additionalProperties": False,
}


async def list_sessions(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.SessionSummaryDocument]]:
    """List the sessions that the caller may access, the last changed first."""
    page = await call.gateway.access.page(call.caller, call.query, call.gateway.limits.page)
    return JSON({"items": [of_head(head) for head in page.items], "next": page.following})


async def put_session(call: HTTPCall) -> JSON[json_response_types.CreatedSession]:
    """Create a session with the id in the path. If a request with the same body is repeated, nothing changes.

    A retry with the same `Idempotency-Key` gets the response of the first request. A different key or body is an error.
    """
    session_id = check_client_id("the id of a session", call.path["id"])
    head, is_new = await _create_once(call, session_id, call.idempotency_key)
    return JSON(_created_session_document(call, head), status_code=201 if is_new else 200)


async def post_session(call: HTTPCall) -> JSON[json_response_types.CreatedSession]:
    """Create a session with an id that the server chooses."""
    key = call.idempotency_key
    session_id = id_of_key(call, key) if key else call.gateway.access.journal.new_session_id()
    head, _ = await _create_once(call, session_id, key)
    return JSON(
        _created_session_document(call, head),
        status_code=201,
        headers={"location": f"/v1/sessions/{head.session_id}"},
    )


async def _create_once(call: HTTPCall, session_id: str, key: str) -> tuple[SessionSummary, bool]:
    """Create a session, or find the existing session with the same id and options.

    Requests with the same idempotency key run one at a time. Return the session's summary, and True if this request created
    the session, now or in an earlier try with the same key.
    """
    async with call.gateway.keys.held(call.caller.owner, key):
        return await _create_or_find(call, session_id, creator_id(call, key))


async def _create_or_find(call: HTTPCall, session_id: str, creator: str) -> tuple[SessionSummary, bool]:
    """Create a session, or find the existing session with this id. The caller holds the lock of the idempotency key.

    Return the session's summary, and True if the request that `creator` identifies has created it; see `creator_id`.
    """
    body, access = call.body, call.gateway.access
    owner, opener = _owner_of(call), access.known_opener(call.body["agent"])
    limits = _limits_of(body) if "limits" in body else None
    annotations = new_annotations(body.get("tags", ()), body.get("metadata"))
    _check_mode(opener, body.get("mode"))
    await _check_webhook_url(call)
    if creator:
        await _check_other_agents(call, session_id, creator)
    try:
        context = await opener.create(
            Sender(owner),
            session_id=session_id,
            on_busy=body.get("on_busy"),
            limits=limits,
            notify=_notify_of(call),
            asker=creator,
            annotations=annotations,
        )
    except SessionExists:
        return await _find_matching_session(call, session_id, owner, creator=creator), bool(creator)
    await _set_initial_mode(session_of_context(context), body.get("mode"))
    return await access.head(call.caller, session_id, body["agent"]), True


async def _check_other_agents(call: HTTPCall, session_id: str, creator: str) -> None:
    """Raise if this idempotency key has already created a session of another agent.

    Raises:
        Problem: The key was sent before with a different body.
    """
    journal = call.gateway.access.journal
    for agent in await journal.agents_with_session(session_id):
        head = await journal.head(agent, session_id)
        opened = None if head is None or agent == call.body["agent"] else await first_record(call, head)
        if opened is not None:
            was_created_by(opened.asker, creator)


def _notify_of(call: HTTPCall) -> tuple[str, ...]:
    """Return the webhook URL in the request, followed by the names of the events to send; empty without the field `notify`.

    Raises:
        Problem: The server does not send notifications to URLs that clients set.
        ConfigurationError: The URL or an event name is invalid.
    """
    wanted = call.body.get("notify")
    if wanted is None:
        return ()
    if call.gateway.session_webhook is None:
        raise Problem(
            "invalid",
            "the field notify is not supported by this server: start it with the option --notify-sessions",
        )
    return (check_url(wanted["url"]), *check_events(wanted.get("events", EVENTS)))


async def _check_webhook_url(call: HTTPCall) -> None:
    """Check that the server may send notifications to the webhook URL in the request.

    Raises:
        Problem: The URL's address is not public, and the server does not allow it.
    """
    notify, webhook = _notify_of(call), call.gateway.session_webhook
    if notify and webhook is not None:
        try:
            await webhook.check_reachable(notify[0])
        except AddressBlocked as refused:
            raise Problem("invalid", f"notify: {refused}") from refused


def _created_session_document(call: HTTPCall, head: SessionSummary) -> json_response_types.CreatedSession:
    """Return the JSON of a created session, with the webhook's signing secret if the request has `notify`."""
    notify, webhook = _notify_of(call), call.gateway.session_webhook
    if not notify or webhook is None:
        return cast("json_response_types.CreatedSession", of_head(head))
    secret = session_keys(webhook, head.key, notify[0]).newest
    return {**of_head(head), "notify": {"url": notify[0], "events": notify[1:], "secret": secret}}


def _limits_of(body: Mapping[str, Any]) -> Limits:
    """Return the session limits in a request body. A JSON number such as 24.0 is accepted as the integer 24."""
    kinds = SESSION_LIMITS["properties"]
    return Limits(
        **{
            name: int(value) if kinds[name]["type"] == "integer" else value
            for name, value in body["limits"].items()
        }
    )


def _owner_of(call: HTTPCall) -> str:
    """Return the owner for the session to create. Raise `Problem` if the caller may not choose this owner."""
    owner: str = call.body.get("owner", call.caller.owner)
    check_id("owner", owner)
    if owner != call.caller.owner and not call.caller.is_admin:
        raise Problem(
            "forbidden",
            "the field owner requires the scope `admin`: without it, a session belongs to the owner of the token",
        )
    return owner


def _check_mode(opener: Any, mode: str | None) -> None:
    """Raise `Problem` if the agent has no mode with this name. None selects the default mode and is always accepted."""
    modes = opener.running.core.modes
    if mode is None:
        return
    if modes is None:
        raise Problem("invalid", "the agent has no modes: leave out the field mode")
    if mode not in modes:
        remedy = did_you_mean_or_list(mode, [each.name for each in modes])
        raise Problem("invalid", f"the agent has no mode with the name {quoted(mode, 40)}: {remedy}")


async def _find_matching_session(
    call: HTTPCall, session_id: str, owner: str, *, creator: str
) -> SessionSummary:
    """Return the summary of an existing session that was created with the same options for the same owner.

    If `creator` is not empty, the session must also have been created by the request that it identifies.

    Raises:
        Problem: The session was created with other options or by another request, or the caller may not access it.
    """
    access, body = call.gateway.access, call.body
    head: SessionSummary | None = await access.journal.head(body["agent"], session_id)
    if head is None or not await access.may_access(call.caller, head):
        raise missing()
    taken = Problem(
        "session-exists",
        "a session with this id exists and was created with other options or by another request",
    )
    opened = await first_record(call, head)
    annotations = new_annotations(body.get("tags", ()), body.get("metadata"))
    is_known = bool(creator) and opened is not None and was_created_by(opened.asker, creator)
    if head.owner != owner:
        raise taken
    bounds = dict(_limits_of(body).shared) if "limits" in body else {}
    if opened is None or opened.on_busy != body.get("on_busy") or dict(opened.limits) != bounds:
        raise taken
    # Earlier versions did not record the request of a POST with an idempotency key.
    is_unrecorded = not opened.asker and creator.startswith(f"made/{session_id}/")
    has_others = opened.tags != annotations.tags or dict(opened.metadata) != dict(annotations.metadata)
    if has_others and not (is_known or access.runtime.is_redacted):  # a redacted journal has other texts
        raise taken
    if opened.notify != _notify_of(call) or (creator and not is_known and not is_unrecorded):
        raise taken
    if "mode" in body and not head.closed:
        await _set_initial_mode(await access.session(call.caller, session_id, body["agent"]), body["mode"])
    return head


async def _set_initial_mode(session: Session, mode: str | None) -> None:
    """Set the mode that the creation request selects, if the mode of the session was never changed."""
    if mode is not None and not session.mode_changes and session.mode != mode:
        await session.set_mode(mode, reason="requested when the session was created")


async def get_session(call: HTTPCall) -> JSON[json_response_types.SessionDocument] | Response:
    """Get a session with its current status, budget, approvals, schedules, turn and queued messages."""
    access = call.gateway.access
    head = await call.head()
    tag = f'"{head.records}"'
    if call.header("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    children = await access.journal.children(head.agent, head.session_id)
    try:
        session = None if head.closed else await access.readable(head)
    except (NotRunning, SessionClosed):
        session = None
    return JSON(of_session(head, session, children), headers={"etag": tag})


async def annotate(call: HTTPCall) -> JSON[json_response_types.SessionSummaryDocument]:
    """Change the tags and metadata of a session, which may be closed.

    Tags and metadata keys that the request does not name stay unchanged. In `metadata`, null removes a key.
    """
    head, access = await call.head(), call.gateway.access
    await access.runtime.annotate(head.session_id, agent=head.agent, **call.body)
    return JSON(of_head(await access.head(call.caller, head.session_id, head.agent)))


async def interrupt(call: HTTPCall) -> Response:
    """Interrupt the running turn of a session. The response is sent after the turn has ended."""
    session = await call.session()
    reason, drops = call.body.get("reason", "interrupted"), call.body.get("drop_queued", False)
    await session.interrupt(reason, drop_queued=drops, message_id=call.body.get("message_id"))
    return Response(status_code=204)


async def close(call: HTTPCall) -> Response:
    """Close a session and its child sessions. If the session is already closed, close its open child sessions."""
    head, access = await call.head(), call.gateway.access
    if head.closed:
        await close_below(head.key, access.journal, access.runtime.agents.opener)
    else:
        try:
            session = await call.session()
        except SessionClosed:  # the close is not recorded yet
            raise Problem("unavailable", "the session is being closed: retry the request") from None
        await session.aclose()
    return Response(status_code=204)


async def erase(call: HTTPCall) -> Response:
    """Erase a session and its child sessions with all their records from the journal."""
    head = await call.head()
    await call.gateway.access.runtime.delete_session(head.session_id, agent=head.agent)
    return Response(status_code=204)


ENDPOINTS = (
    Endpoint(verb="GET", path="/sessions", answer=list_sessions, scope="read", query=_LIST),
    Endpoint(
        verb="POST",
        path="/sessions",
        answer=post_session,
        scope="chat",
        body=NEW_SESSION,
        statuses=(201,),
        answer_headers=LOCATION,
        id_field="",
    ),
    Endpoint(
        verb="PUT",
        path="/sessions/{id}",
        answer=put_session,
        scope="chat",
        body=NEW_SESSION,
        statuses=(201, 200),
        headers={
            IDEMPOTENCY_KEY: "The same key again is the same request, answered as the first one; with another body it is a 422, and another key is a 409."
        },
    ),
    Endpoint(
        verb="GET",
        path="/sessions/{id}",
        answer=get_session,
        scope="read",
        query=_ONE,
        statuses=(200, 304),
        headers={"If-None-Match": "`ETag` of an earlier answer: 304 if no record was written since."},
        answer_headers={"ETag": "Version of the session."},
        forwarding=Forwarding(served_while_draining=True),
    ),
    Endpoint(
        verb="PATCH",
        path="/sessions/{id}",
        answer=annotate,
        scope="chat",
        query=_ONE,
        body={
            "type": "object",
            "properties": {
                "add_tags": TAGS,
                "remove_tags": {**TAGS, "description": "Tags to remove. Missing tags are ignored."},
                "metadata": {
                    **SESSION_METADATA,
                    "additionalProperties": {"type": ["string", "null"], "maxLength": MAX_VALUE_CHARS},
                    "description": "New values by key; null removes a key.",
                },
            },
            "additionalProperties": False,
        },
        forwarding=Forwarding(served_while_draining=True),
    ),
    Endpoint(
        verb="POST",
        path="/sessions/{id}/interrupt",
        answer=interrupt,
        scope="chat",
        query=_ONE,
        body={
            "type": "object",
            "properties": {
                "reason": {"type": "string", "maxLength": 500},
                "drop_queued": {"type": "boolean"},
                "message_id": {
                    "type": "string",
                    "description": "Id of one running or queued message to interrupt; a finished message is ignored.",
                },
            },
            "additionalProperties": False,
        },
        statuses=(204,),
        forwarding=Forwarding(served_while_draining=True),
    ),
    Endpoint(
        verb="POST",
        path="/sessions/{id}/close",
        answer=close,
        scope="chat",
        query=_ONE,
        statuses=(204,),
        forwarding=Forwarding(served_while_draining=True),
    ),
    Endpoint(
        verb="DELETE",
        path="/sessions/{id}",
        answer=erase,
        scope="admin",
        query=_ONE,
        statuses=(204,),
        forwarding=Forwarding(repeated_status=404),
    ),
)
