"""What people decide, over HTTP: approvals of tool calls, and the modes of sessions."""

from typing import Any

from starlette.responses import Response

from actgent.agents.session import Session, face_of
from actgent.approvals import Approve, Decision, Edit, Reject, Respond, session_of
from actgent.errors import AlreadyDecided, NotRunning, SessionClosed
from actgent.messages import Sender
from actgent.tools.outputs.results import to_text
from actgent.web.problems import Problem, missing
from actgent.web.reach import from_cursor, to_parts_of

from .endpoints import JSON, Endpoint, HTTPCall
from .schemas import AFTER, AGENT, DECISIONS, LIMIT
from .views import mode_of, of_approval

_DECISION = {
    "type": "object",
    "properties": {
        "approve": {
            "type": "object",
            "description": "What the form asked for; empty where it asked for nothing.",
        },
        "reject": {"type": "string", "description": "Why, for the model."},
        "edit": {"type": "object", "description": "The arguments to run it with instead."},
        "respond": {"description": "The result, without a run."},
        "reason": {"type": "string", "maxLength": 2000, "description": "With approve or edit."},
    },
    "oneOf": [{"required": [word]} for word in DECISIONS],
    "additionalProperties": False,
}
_MODE = {
    "type": "object",
    "properties": {
        "mode": {"type": "string", "minLength": 1},
        "reason": {"type": "string", "maxLength": 500},
        "force": {"type": "boolean", "description": "Before all rules; takes the scope admin."},
    },
    "required": ["mode"],
    "additionalProperties": False,
}


async def get_approvals(call: HTTPCall) -> Response:
    """Tool calls that wait for people, the oldest first."""
    limit = min(call.query.get("limit", 100), call.gateway.limits.page)
    at, approval_id = to_parts_of(call.query["after"], float, str) if "after" in call.query else (0.0, "")
    found = await call.gateway.approvals.page(
        call.caller, agent=call.query.get("agent"), after=(at, approval_id), limit=limit
    )
    following = from_cursor((found[-1].created_at, found[-1].id)) if len(found) == limit else None
    return JSON({"items": [of_approval(each) for each in found], "next": following})


async def list_of_session(call: HTTPCall) -> Response:
    """Those of one session, and of those that work for it."""
    head = await call.head()
    try:
        found = () if head.closed else (await call.gateway.reach.readable(head)).approvals
    except (NotRunning, SessionClosed):
        found = ()
    return JSON({"items": [of_approval(each) for each in found], "next": None})


async def post_decision(call: HTTPCall) -> Response:
    """Decide over a tool call that waits."""
    approval_id = call.path["id"]
    session = await _holding(call, approval_id)
    decision = _decision_of(call.body)
    try:
        await session.answer(approval_id, decision, by=Sender(call.caller.owner))
    except AlreadyDecided as decided:
        known: dict[str, Any] = {}
        if decided.decision is not None:
            known["as_asked"] = _is_same(decided.decision, decision)
        raise Problem("already-decided", str(decided), approval_id=approval_id, **known) from decided
    return Response(status_code=204)


def _is_same(made: object, asked: Decision) -> bool:
    """Return True if what was decided is what somebody asks for, perhaps for the second time."""
    match made, asked:
        case Approve(), Approve():
            return (made.reason, dict(made.content or {})) == (asked.reason, dict(asked.content or {}))
        case Edit(), Edit():  # what was left out has its default there
            return (made.reason, dict(made.arguments)) == (
                asked.reason,
                {**made.arguments, **asked.arguments},
            )
        case Respond(), Respond():
            return bool(made.content == to_text(asked.content))
    return bool(made == asked)


async def _holding(call: HTTPCall, approval_id: str) -> Session:
    """The session in which an approval waits, or has waited."""
    reach, session_id = call.gateway.reach, session_of(approval_id)
    candidates: list[Session] = []
    for agent in await reach.journal.agents_of(session_id) or [""]:
        head = await reach.journal.head(agent, session_id)
        if head is not None and await reach.sees(call.caller, head):
            candidates.append(face_of(await reach.opener(agent).find(session_id)))
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
        raise Problem("invalid", "reason goes with approve and edit; reject is itself the reason")
    return Reject(body["reject"]) if "reject" in body else Respond(body["respond"])


async def put_mode(call: HTTPCall) -> Response:
    """Switch the mode of a session."""
    body, force = call.body, call.body.get("force", False)
    if force and not call.caller.is_admin:
        raise Problem("forbidden", "force takes the scope admin")
    session = await call.session()
    if mode_of(session) is None:
        raise Problem("invalid", "the agent of this session has no modes")
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
