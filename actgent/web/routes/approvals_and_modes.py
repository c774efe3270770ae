"""Endpoints of approvals of tool calls, of lifted sources, and of the modes of sessions."""

from typing import Any

from starlette.responses import Response

from actgent.agents.session import Session, context_of, session_of_context
from actgent.approvals import Approve, Decision, Edit, Reject, Respond, session_of
from actgent.errors import ApprovalAlreadyDecided, ConfigurationError, NotRunning, SessionClosed
from actgent.messages import Sender
from actgent.runtime.untrusted_source_removal import MAX_REASON_CHARS
from actgent.tools.outputs.result_text import to_text
from actgent.web import json_response_types
from actgent.web.access_control import encode_cursor, parse_cursor
from actgent.web.problem_documents import Problem, missing

from .common_request_schemas import AFTER, AGENT, DECISIONS, LIMIT
from .endpoints import JSON, Endpoint, Forwarding, HTTPCall
from .json_serializers import mode_of, of_approval, of_caller_call

_DECISION = {
    "type": "object",
    "properties": {
        "approve": {
            "type": "object",
            "additionalProperties": True,
            "description": "Values of the form; empty if the approval has no form.",
        },
        "reject": {"type": "string", "description": "Reason, which the model receives."},
        "edit": {
            "type": "object",
            "additionalProperties": True,
            "description": "New arguments of the tool call.",
        },
        "respond": {
            **json_response_types.ANY_JSON,
            "description": "Result of the tool call; the tool does not run.",
        },
        "reason": {"type": "string", "maxLength": 2000, "description": "Reason for approve or edit."},
    },
    "oneOf": [{"required": [word]} for word in DECISIONS],
    "additionalProperties": False,
}
_RESULT = {
    "type": "object",
    "properties": {
        "respond": {**json_response_types.ANY_JSON, "description": "Result of the call."},
        "reject": {"type": "string", "maxLength": 2000, "description": "Reason, which the model receives."},
    },
    "oneOf": [{"required": ["respond"]}, {"required": ["reject"]}],
    "additionalProperties": False,
}
_LIFT = {
    "type": "object",
    "properties": {
        "source": {
            "type": "string",
            "minLength": 1,
            "description": "Name of the source, as in `sources` of the session.",
        },
        "reason": {
            "type": "string",
            "maxLength": MAX_REASON_CHARS,
            "description": "Reason, for the journal.",
        },
    },
    "required": ["source"],
    "additionalProperties": False,
}
_MODE = {
    "type": "object",
    "properties": {
        "mode": {"type": "string", "minLength": 1},
        "reason": {"type": "string", "maxLength": 500},
        "force": {
            "type": "boolean",
            "description": "Switch without checking the mode's rules; requires the scope admin.",
        },
    },
    "required": ["mode"],
    "additionalProperties": False,
}


async def get_approvals(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.ApprovalDocument]]:
    """List the open approvals of all sessions that the caller may access, the oldest first."""
    limit = min(call.query.get("limit", 100), call.gateway.limits.page)
    at, approval_id = parse_cursor(call.query["after"], float, str) if "after" in call.query else (0.0, "")
    found = await call.gateway.approvals.page(
        call.caller, agent=call.query.get("agent"), after=(at, approval_id), limit=limit
    )
    following = encode_cursor((found[-1].created_at, found[-1].id)) if len(found) == limit else None
    return JSON({"items": [of_approval(each) for each in found], "next": following})


async def list_of_session(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.ApprovalDocument]]:
    """List the open approvals of a session and its child sessions."""
    head = await call.head()
    try:
        found = () if head.closed else (await call.gateway.access.readable(head)).approvals
    except (NotRunning, SessionClosed):
        found = ()
    return JSON({"items": [of_approval(each) for each in found], "next": None})


async def post_decision(call: HTTPCall) -> Response:
    """Decide an open approval: approve, edit, reject or respond."""
    approval_id = call.path["id"]
    session = await _session_of(call, approval_id)
    await _decide(session, approval_id, _decision_of(call.body), by=call.caller.owner)
    return Response(status_code=204)


async def _decide(session: Session, approval_id: str, decision: Decision, *, by: str) -> None:
    try:
        await session.answer(approval_id, decision, by=Sender(by))
    except ApprovalAlreadyDecided as decided:
        known: dict[str, Any] = {}
        if decided.decision is not None:
            known["as_asked"] = _is_same(decided.decision, decision)
        raise Problem("already-decided", str(decided), approval_id=approval_id, **known) from decided


async def get_calls(call: HTTPCall) -> JSON[json_response_types.PageDocument[json_response_types.CallerCall]]:
    """List the open tool calls of a session that the API client must execute itself, the oldest first."""
    head = await call.head()
    try:
        found = () if head.closed else (await call.gateway.access.readable(head)).caller_calls
    except (NotRunning, SessionClosed):
        found = ()
    return JSON({"items": [of_caller_call(each) for each in found], "next": None})


async def answer_call(call: HTTPCall) -> Response:
    """Set the result of a tool call that the API client executes itself, or reject the call."""
    approval_id, session = call.path["call"], await call.session()
    decision = _decision_of(call.body)
    asked = context_of(session).ledger().open.get(approval_id)
    # Without the scope approve nothing else is decided here, nor an approval of a child session.
    if session_of(approval_id) != session.id or (asked is not None and not asked.for_caller):
        raise missing()
    await _decide(session, approval_id, decision, by=call.caller.owner)
    return Response(status_code=204)


def _is_same(recorded: object, requested: Decision) -> bool:
    """Return True if the recorded decision of an approval equals the requested decision.

    In that case the request is a retry and no conflict.
    """
    match recorded, requested:
        case Approve(), Approve():
            return (recorded.reason, dict(recorded.content or {})) == (
                requested.reason,
                dict(requested.content or {}),
            )
        case Edit(), Edit():  # the earlier decision also contains default values
            return (recorded.reason, dict(recorded.arguments)) == (
                requested.reason,
                {**recorded.arguments, **requested.arguments},
            )
        case Respond(), Respond():
            return bool(recorded.content == to_text(requested.content))
    return bool(recorded == requested)


async def _session_of(call: HTTPCall, approval_id: str) -> Session:
    """Return the session that has requested an approval, whether the approval is open or decided.

    Raise `Problem` if the caller may not access such a session.
    """
    access, session_id = call.gateway.access, session_of(approval_id)
    candidates: list[Session] = []
    for agent in await access.journal.agents_with_session(session_id) or [""]:
        head = await access.journal.head(agent, session_id)
        if head is not None and await access.may_access(call.caller, head):
            candidates.append(session_of_context(await access.runtime.agents.opener(agent).find(session_id)))
    asked = [each for each in candidates if any(known.id == approval_id for known in each.approvals)]
    if not candidates:
        raise missing()
    return (asked or candidates)[0]


def _decision_of(body: Any) -> Decision:
    reason = body.get("reason", "")
    if "approve" in body:
        return Approve(reason, content=body["approve"] or None)
    if "edit" in body:
        return Edit(body["edit"], reason)
    if reason:
        raise Problem(
            "invalid",
            "`reason` is allowed only with `approve` and `edit`: write the reason of a rejection as the value of `reject`",
        )
    return Reject(body["reject"]) if "reject" in body else Respond(body["respond"])


async def post_lift(call: HTTPCall) -> Response:
    """Remove an untrusted source from the label of a session, as the owner of the token."""
    session = await call.session()
    source = call.body["source"]
    try:
        await session.lift(source, by=Sender(call.caller.owner), reason=call.body.get("reason", ""))
    except ConfigurationError as error:
        if source in session.label.sources:
            raise
        raise Problem("source-unknown", str(error)) from error
    return Response(status_code=204)


async def put_mode(call: HTTPCall) -> JSON[json_response_types.SessionMode]:
    """Set the current mode of a session."""
    body, force = call.body, call.body.get("force", False)
    if force and not call.caller.is_admin:
        raise Problem(
            "forbidden", "the field `force` requires the scope `admin`: use a token with this scope"
        )
    session = await call.session()
    if mode_of(session) is None:
        raise Problem("invalid", "the mode cannot be set, because the agent of this session has no modes")
    await session.set_mode(
        body["mode"], by="admin" if force else "user", reason=body.get("reason", ""), force=force
    )
    return JSON({"mode": session.mode})


ENDPOINTS = (
    Endpoint(
        verb="GET",
        path="/approvals",
        answer=get_approvals,
        scope="read",
        query={"agent": AGENT, "after": AFTER, "limit": LIMIT},
    ),
    Endpoint(
        verb="GET",
        path="/sessions/{id}/approvals",
        answer=list_of_session,
        scope="read",
        query={"agent": AGENT},
    ),
    Endpoint(
        verb="POST",
        path="/approvals/{id}/decision",
        answer=post_decision,
        scope="approve",
        body=_DECISION,
        statuses=(204,),
        forwarding=Forwarding(
            session_of=lambda call: session_of(call.path["id"]),
            served_while_draining=True,
            repeated_status=409,
        ),
    ),
    Endpoint(verb="GET", path="/sessions/{id}/calls", answer=get_calls, scope="read", query={"agent": AGENT}),
    Endpoint(
        verb="POST",
        path="/sessions/{id}/calls/{call}",
        answer=answer_call,
        scope="chat",
        query={"agent": AGENT},
        body=_RESULT,
        statuses=(204,),
    ),
    Endpoint(
        verb="POST",
        path="/sessions/{id}/lifts",
        answer=post_lift,
        scope="approve",
        query={"agent": AGENT},
        body=_LIFT,
        statuses=(204,),
    ),
    Endpoint(
        verb="PUT",
        path="/sessions/{id}/mode",
        answer=put_mode,
        scope="chat",
        query={"agent": AGENT},
        body=_MODE,
    ),
)
