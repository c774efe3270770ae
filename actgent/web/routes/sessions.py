"""Sessions over HTTP: made, listed, looked at, interrupted, closed and erased."""

from typing import Any

from starlette.responses import Response

from actgent.agents.session import Session, face_of
from actgent.control.arguments import check_id
from actgent.control.limits import Limits
from actgent.errors import AddressRefused, NotRunning, SessionClosed, SessionExists
from actgent.journal.base import SessionSummary
from actgent.messages import Sender
from actgent.runtime.sessions.closing import close_below
from actgent.web.problems import Problem, missing
from actgent.web.webhooks.outbox import session_keys
from actgent.web.webhooks.webhook import EVENTS, MAX_URL, check_events, check_url

from .endpoints import JSON, Endpoint, HTTPCall
from .repeating import asker_of, check_asker, first_record, id_of_key, key_of
from .schemas import AFTER, AGENT, IDEMPOTENCY, LIMIT, ON_BUSY, SESSION_LIMITS, STATE, TEXT, check_client_id
from .views import of_head, of_session

_LIST = {
    "agent": AGENT,
    "owner": TEXT,
    "state": STATE,
    "parent": {"type": "string", "description": "Its children alone: the id of a session."},
    "q": {"type": "string", "description": "How the id or the owner begins."},
    "after": AFTER,
    "limit": LIMIT,
}
_ONE = {"agent": AGENT}
NEW_SESSION = {
    "type": "object",
    "properties": {
        "agent": {"type": "string", "minLength": 1},
        "owner": {"type": "string", "minLength": 1, "description": "Takes the scope admin."},
        "on_busy": ON_BUSY,
        "limits": SESSION_LIMITS,
        "mode": {"type": "string", "minLength": 1},
        "notify": {
            "type": "object",
            "description": "Who is told of what happens in it, where the server does that.",
            "properties": {
                "url": {"type": "string", "pattern": "^https?://", "maxLength": MAX_URL},
                "events": {"type": "array", "items": {"enum": list(EVENTS)}, "minItems": 1},
            },
            "required": ["url"],
            "additionalProperties": False,
        },
    },
    "required": ["agent"],
    "additionalProperties": False,
}


async def list_sessions(call: HTTPCall) -> Response:
    """List sessions, the newest change first."""
    page = await call.gateway.reach.page(call.caller, call.query, call.gateway.limits.page)
    return JSON({"items": [of_head(head) for head in page.items], "next": page.following})


async def put_session(call: HTTPCall) -> Response:
    """Make a session; the same body again changes nothing. With a key it is made once, and only its maker hears so again."""
    session_id = check_client_id("the id of a session", call.path["id"])
    head, is_new = await _make(call, session_id, key_of(call))
    return JSON(_made(call, head), status_code=201 if is_new else 200)


async def post_session(call: HTTPCall) -> Response:
    """Make a session with an id of ours."""
    key = key_of(call)
    session_id = id_of_key(call, key) if key else call.gateway.reach.journal.new_session_id()
    head, _ = await _make(call, session_id, key)
    return JSON(_made(call, head), status_code=201, headers={"location": f"/v1/sessions/{head.session_id}"})


async def _make(call: HTTPCall, session_id: str, key: str) -> tuple[SessionSummary, bool]:
    """Make a session, or find that it was made just so before; whether it is the key's, or new."""
    async with call.gateway.keys.held(call.caller.owner, key):
        return await _make_alone(call, session_id, asker_of(call, key))


async def _make_alone(call: HTTPCall, session_id: str, asker: str) -> tuple[SessionSummary, bool]:
    body, reach = call.body, call.gateway.reach
    owner, opener = _owner_of(call), reach.known_opener(call.body["agent"])
    limits = Limits(**body["limits"]) if "limits" in body else None
    _check_mode(opener, body.get("mode"))
    await _check_receiver(call)
    if asker:
        await _check_other_agents(call, session_id, asker)
    try:
        context = await opener.create(
            Sender(owner),
            session_id=session_id,
            on_busy=body.get("on_busy"),
            limits=limits,
            notify=_notify_of(call),
            asker=asker,
        )
    except SessionExists:
        return await _same(call, session_id, owner, asker=asker), bool(asker)
    await _settle_mode(face_of(context), body.get("mode"))
    return await reach.head(call.caller, session_id, body["agent"]), True


async def _check_other_agents(call: HTTPCall, session_id: str, asker: str) -> None:
    """Refuse a key under which a session of another agent was made.

    Raises:
        Problem: There is one.
    """
    journal = call.gateway.reach.journal
    for agent in await journal.agents_of(session_id):
        head = await journal.head(agent, session_id)
        opened = None if head is None or agent == call.body["agent"] else await first_record(call, head)
        if opened is not None:
            check_asker(opened.asker, asker)


def _notify_of(call: HTTPCall) -> tuple[str, ...]:
    """The address that the client wants to be told at, and of which events.

    Raises:
        Problem: this server tells no addresses of clients.
        ConfigurationError: it is no such address.
    """
    wanted = call.body.get("notify")
    if wanted is None:
        return ()
    if call.gateway.session_webhook is None:
        raise Problem("invalid", "this server tells no addresses of sessions: see --notify-sessions")
    return (check_url(wanted["url"]), *check_events(wanted.get("events", EVENTS)))


async def _check_receiver(call: HTTPCall) -> None:
    """Refuse the address of a receiver that notifications could not be sent to.

    Raises:
        Problem: It is not public, and the server does not open it to clients.
    """
    notify, webhook = _notify_of(call), call.gateway.session_webhook
    if notify and webhook is not None:
        try:
            await webhook.check_reachable(notify[0])
        except AddressRefused as refused:
            raise Problem("invalid", f"notify: {refused}") from refused


def _made(call: HTTPCall, head: SessionSummary) -> dict[str, Any]:
    """A session, and what its receiver knows the server by."""
    notify, webhook = _notify_of(call), call.gateway.session_webhook
    if not notify or webhook is None:
        return of_head(head)
    secret = session_keys(webhook, head.key, notify[0]).newest
    return {**of_head(head), "notify": {"url": notify[0], "events": notify[1:], "secret": secret}}


def _owner_of(call: HTTPCall) -> str:
    owner: str = call.body.get("owner", call.caller.owner)
    check_id("owner", owner)
    if owner != call.caller.owner and not call.caller.is_admin:
        raise Problem("forbidden", "owner takes the scope admin: a session belongs to the owner of the token")
    return owner


def _check_mode(opener: Any, mode: str | None) -> None:
    modes = opener.running.core.modes
    if mode is not None and (modes is None or mode not in modes):
        raise Problem("invalid", "the agent has no mode of this name")


async def _same(call: HTTPCall, session_id: str, owner: str, *, asker: str) -> SessionSummary:
    """The session of this id, if it was made with the same words for the same owner, and by the asker if one is named.

    Raises:
        Problem: it was not.
    """
    reach, body = call.gateway.reach, call.body
    head: SessionSummary | None = await reach.journal.head(body["agent"], session_id)
    if head is None or not await reach.sees(call.caller, head):
        raise missing()
    taken = Problem("session-exists", "there is a session of this id that was made otherwise")
    opened = await first_record(call, head)
    is_known = bool(asker) and opened is not None and check_asker(opened.asker, asker)
    if head.owner != owner:
        raise taken
    bounds = dict(Limits(**body["limits"]).shared) if "limits" in body else {}
    if opened is None or opened.on_busy != body.get("on_busy") or dict(opened.limits) != bounds:
        raise taken
    # A POST under a key, which made the session's id from the key, did not record its request in earlier journals.
    is_unrecorded = not opened.asker and asker.startswith(f"made/{session_id}/")
    if opened.notify != _notify_of(call) or (asker and not is_known and not is_unrecorded):
        raise taken
    if "mode" in body and not head.closed:
        await _settle_mode(await reach.session(call.caller, session_id, body["agent"]), body["mode"])
    return head


async def _settle_mode(session: Session, mode: str | None) -> None:
    """Put a session into the mode that it was asked for with, unless it was switched since."""
    if mode is not None and not session.mode_changes and session.mode != mode:
        await session.set_mode(mode, reason="asked for with the session")


async def get_session(call: HTTPCall) -> Response:
    """Everything that is known of a session now."""
    reach = call.gateway.reach
    head = await call.head()
    tag = f'"{head.records}"'
    if call.header("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    children = await reach.journal.children(head.agent, head.session_id)
    try:
        session = None if head.closed else await reach.readable(head)
    except (NotRunning, SessionClosed):
        session = None
    return JSON(of_session(head, session, children), headers={"etag": tag})


async def interrupt(call: HTTPCall) -> Response:
    """Stop what runs; returns when the turn has ended."""
    session = await call.session()
    reason, drops = call.body.get("reason", "interrupted"), call.body.get("drop_queued", False)
    await session.interrupt(reason, drop_queued=drops, message_id=call.body.get("message_id"))
    return Response(status_code=204)


async def close(call: HTTPCall) -> Response:
    """Close a session and its children; of one that is closed, what was left open below it as its process was stopped."""
    head, reach = await call.head(), call.gateway.reach
    if head.closed:
        await close_below(head.key, reach.journal, reach.opener)
    else:
        try:
            session = await call.session()
        except SessionClosed:  # the journal does not know yet
            raise Problem(
                "unavailable", "the session is just being closed: ask again, to know that it is"
            ) from None
        await session.aclose()
    return Response(status_code=204)


async def erase(call: HTTPCall) -> Response:
    """Erase a session with its children."""
    head = await call.head()
    await call.gateway.reach.runtime.delete_session(head.session_id, agent=head.agent)
    return Response(status_code=204)


ENDPOINTS = (
    Endpoint(
        verb="GET",
        path="/sessions",
        answer=list_sessions,
        scope="read",
        query=_LIST,
    ),
    Endpoint(
        verb="POST",
        path="/sessions",
        answer=post_session,
        scope="chat",
        body=NEW_SESSION,
        statuses=(201,),
        headers=IDEMPOTENCY,
    ),
    Endpoint(
        verb="PUT",
        path="/sessions/{id}",
        answer=put_session,
        scope="chat",
        body=NEW_SESSION,
        statuses=(201, 200),
        headers={
            "Idempotency-Key": "The same key again is the same request, answered as the first one; with another body it is a 422, and another key is a 409."
        },
    ),
    Endpoint(
        verb="GET",
        path="/sessions/{id}",
        answer=get_session,
        scope="read",
        query=_ONE,
        statuses=(200, 304),
        headers={"If-None-Match": "The ETag of before: 304 where nothing was written since."},
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
                    "description": "Only this message, whether it runs or waits; nothing where it has ended.",
                },
            },
            "additionalProperties": False,
        },
        statuses=(204,),
    ),
    Endpoint(
        verb="POST",
        path="/sessions/{id}/close",
        answer=close,
        scope="chat",
        query=_ONE,
        statuses=(204,),
    ),
    Endpoint(
        verb="DELETE",
        path="/sessions/{id}",
        answer=erase,
        scope="admin",
        query=_ONE,
        statuses=(204,),
    ),
)
