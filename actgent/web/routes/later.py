"""What is to be done later or by others, over HTTP: schedules, and tasks for other agents."""

from datetime import datetime
from typing import Any

from starlette.responses import Response

from actgent.agents.session import Session, context_of, has_fired, was_task_told
from actgent.web.problems import Problem, missing

from .chat import CONTENT, to_content
from .endpoints import JSON, Endpoint, HTTPCall
from .schemas import AGENT, ID, METADATA, PRIORITY, SECONDS
from .views import of_schedule

_ONE = {"agent": AGENT}
_SCHEDULE = {
    "type": "object",
    "properties": {
        "description": {"type": "string", "minLength": 1},
        "after": SECONDS,
        "at": {
            "type": "string",
            "format": "date-time",
            "description": "RFC 3339; without a zone it is read in `zone`.",
        },
        "cron": {"type": "string"},
        "zone": {"type": "string"},
        "key": ID,
        "priority": PRIORITY,
        "metadata": METADATA,
    },
    "required": ["description"],
    "oneOf": [{"required": [name]} for name in ("after", "at", "cron")],
    "additionalProperties": False,
}
_TASK = {
    "type": "object",
    "properties": {
        "agent": {"type": "string", "minLength": 1},
        "task": CONTENT,
        "task_id": ID,
        "deadline": SECONDS,
        "metadata": METADATA,
    },
    "required": ["agent", "task"],
    "additionalProperties": False,
}


async def list_schedules(call: HTTPCall) -> Response:
    """The schedules of a session, the next first."""
    session = await call.readable_session()
    return JSON({"items": [of_schedule(each) for each in session.schedules], "next": None})


async def schedule(call: HTTPCall) -> Response:
    """Have a session told something at a time; the same `key` again sets nothing."""
    body, session = call.body, await call.session()
    made = await session.schedule(
        body["description"],
        after=body.get("after"),
        at=_date_of(body.get("at")),
        cron=body.get("cron"),
        zone=body.get("zone"),
        key=body.get("key"),
        priority=body.get("priority", "normal"),
        metadata=body.get("metadata"),
    )
    return JSON(of_schedule(made), status_code=201)


def _date_of(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise Problem("invalid", "at is a date of RFC 3339, such as 2027-01-31T12:00:00Z") from None


async def unschedule(call: HTTPCall) -> Response:
    """Remove a schedule."""
    session = await call.session()
    if not await session.unschedule(call.path["s"]):
        raise _gone(session, is_otherwise=await has_fired(session, call.path["s"]))
    return Response(status_code=204)


async def list_tasks(call: HTTPCall) -> Response:
    """Tasks that others do for a session."""
    context = context_of(await call.readable_session())
    below = (context.children or {}).values()
    found = [_of_task(child) for child in below if child.task is not None and child.task.reports]
    return JSON({"items": found, "next": None})


def _of_task(child: Any) -> dict[str, Any]:
    return {
        "id": child.task.name or child.id,
        "agent": child.agent,
        "session_id": child.id,
        "state": child.status,
    }


async def delegate(call: HTTPCall) -> Response:
    """Give a task to another agent; what it comes to is a message into this session."""
    body, session = call.body, await call.session()
    call.gateway.reach.known_opener(body["agent"])
    given = {name: body[name] for name in ("task_id", "deadline", "metadata") if name in body}
    task_id = await session.delegate(body["agent"], to_content(body["task"]), **given)
    return JSON({"id": task_id, "agent": body["agent"]}, status_code=202)


async def cancel_task(call: HTTPCall) -> Response:
    """Stop a task."""
    session = await call.session()
    if not await session.cancel_task(call.path["t"]):
        raise _gone(session, is_otherwise=was_task_told(session, call.path["t"]))
    return Response(status_code=204)


def _gone(session: Session, *, is_otherwise: bool) -> Exception:
    """What is to be removed is not there; `is_otherwise`: it has had its effect, so nobody removed it, no earlier try either."""
    context = context_of(session)
    if context.has_moved:
        return context.refusal
    return missing(as_asked=False) if is_otherwise else missing()


ENDPOINTS = (
    Endpoint(
        verb="GET",
        path="/sessions/{id}/schedules",
        answer=list_schedules,
        scope="read",
        query=_ONE,
    ),
    Endpoint(
        verb="POST",
        path="/sessions/{id}/schedules",
        answer=schedule,
        scope="chat",
        query=_ONE,
        body=_SCHEDULE,
        statuses=(201,),
    ),
    Endpoint(
        verb="DELETE",
        path="/sessions/{id}/schedules/{s}",
        answer=unschedule,
        scope="chat",
        query=_ONE,
        statuses=(204,),
    ),
    Endpoint(
        verb="GET",
        path="/sessions/{id}/tasks",
        answer=list_tasks,
        scope="read",
        query=_ONE,
    ),
    Endpoint(
        verb="POST",
        path="/sessions/{id}/tasks",
        answer=delegate,
        scope="chat",
        query=_ONE,
        body=_TASK,
        has_parts=True,
        statuses=(202,),
    ),
    Endpoint(
        verb="DELETE",
        path="/sessions/{id}/tasks/{t}",
        answer=cancel_task,
        scope="chat",
        query=_ONE,
        statuses=(204,),
    ),
)
