"""Endpoints of schedules, and of tasks that a session delegates to other agents."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from starlette.responses import Response

from actgent.agents.session import Session, context_of, has_fired, has_task_result, schedule_in
from actgent.journal.record_types import MessageAcceptedRecord
from actgent.messages import Message, to_parts
from actgent.runtime.delegation.task_delegation import child_ids
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.sessions.session_context import SessionContext
from actgent.web import json_response_types
from actgent.web.problem_documents import Problem, missing

from .common_request_schemas import AGENT, ID, METADATA, PRIORITY, SECONDS
from .endpoints import JSON, Endpoint, Forwarding, HTTPCall
from .idempotency import key_reused, request_digest
from .json_serializers import of_schedule
from .messages import CONTENT, to_content

_ONE = {"agent": AGENT}
FIRST_RECORDS = 10
"""Number of first records of a task's session that are searched for the task's message."""
_SCHEDULE = {
    "type": "object",
    "properties": {
        "input": {"type": "string", "minLength": 1},
        "after": SECONDS,
        "at": {
            "type": "string",
            "format": "date-time",
            "description": "RFC 3339 time; without an offset it is a time in `zone`.",
        },
        "cron": {"type": "string"},
        "zone": {"type": "string"},
        "key": ID,
        "priority": PRIORITY,
        "metadata": METADATA,
    },
    "required": ["input"],
    "oneOf": [{"required": [name]} for name in ("after", "at", "cron")],
    "additionalProperties": False,
}
_TASK = {
    "type": "object",
    "properties": {
        "agent": {"type": "string", "minLength": 1},
        "input": CONTENT,
        "task_id": ID,
        "deadline": SECONDS,
        "metadata": METADATA,
    },
    "required": ["agent", "input"],
    "additionalProperties": False,
}


async def list_schedules(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.ScheduleDocument]]:
    """List the schedules of a session, ordered by due time."""
    session = await call.readable_session()
    return JSON({"items": [of_schedule(each) for each in session.schedules], "next": None})


async def schedule(call: HTTPCall) -> JSON[json_response_types.ScheduleDocument]:
    """Create a schedule that sends a message to a session. A repeated `key` or `Idempotency-Key` creates no second schedule."""
    body, session = call.body, await call.session()
    digest = request_digest(call) if call.idempotency_key else ""
    made = await schedule_in(
        session,
        body["input"],
        after=body.get("after"),
        at=_date_of(body.get("at")),
        cron=body.get("cron"),
        zone=body.get("zone"),
        key=call.chosen_id("key"),
        priority=body.get("priority", "normal"),
        metadata=body.get("metadata"),
        request=digest,
    )
    if digest and made.request != digest:
        raise key_reused()
    return JSON(of_schedule(made), status_code=201)


def _date_of(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise Problem(
            "invalid", "the field at must be a date and time of RFC 3339, such as 2027-01-31T12:00:00Z"
        ) from None


async def unschedule(call: HTTPCall) -> Response:
    """Delete a schedule of a session."""
    session = await call.session()
    if not await session.unschedule(call.path["s"]):
        raise _not_open_error(session, has_ended=await has_fired(session, call.path["s"]))
    return Response(status_code=204)


async def list_tasks(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.TaskDocument]]:
    """List the tasks that a session has delegated to other agents."""
    context = context_of(await call.readable_session())
    below = (context.children or {}).values()
    found = [_of_task(child) for child in below if child.task is not None and child.task.reports]
    return JSON({"items": found, "next": None})


def _of_task(child: Any) -> json_response_types.TaskDocument:
    return {
        "id": child.task.name or child.id,
        "agent": child.agent,
        "session_id": child.id,
        "status": child.status,
    }


async def delegate(call: HTTPCall) -> JSON[json_response_types.DelegatedTask]:
    """Delegate a task of a session to another agent. The result is sent to the session as a message."""
    body, session = call.body, await call.session()
    call.gateway.access.known_opener(body["agent"])
    given = {name: body[name] for name in ("deadline", "metadata") if name in body}
    named, key = call.chosen_id("task_id"), call.idempotency_key
    async with call.gateway.keys.held(call.caller.owner, key):
        if key:
            await _check_same_task(call, context_of(session), key)
        task_id = await session.delegate(body["agent"], to_content(body["input"]), task_id=named, **given)
    return JSON({"id": task_id, "agent": body["agent"]}, status_code=202)


async def _check_same_task(call: HTTPCall, caller_session: SessionContext, key: str) -> None:
    """Check that a session has not used an idempotency key for a different task, of any agent.

    Raises:
        Problem: The key was used for a different task.
    """
    access, body = call.gateway.access, call.body
    for session_id in child_ids(access.runtime.agents.opener(caller_session.agent), caller_session, key):
        for agent in await access.journal.agents_with_session(session_id):
            head = await access.journal.head(agent, session_id)
            if head is None or head.parent != caller_session.key:
                continue
            records = await access.journal.read(session_id, agent=agent, limit=FIRST_RECORDS)
            first = next((each.message for each in records if isinstance(each, MessageAcceptedRecord)), None)
            if (
                agent != body["agent"]
                or first is None
                or not _is_same_task(first, body, access.runtime.agents.opener(agent))
            ):
                raise key_reused()


def _is_same_task(first_message: Message, body: Mapping[str, Any], opener: SessionOpener) -> bool:
    """Return True if the first message of a task has the same content and metadata as this request body.

    If the agent has input guards, only the metadata is compared, because guards can change the content.
    """
    content = to_content(body["input"])
    has_content = first_message.parts == to_parts(content) or bool(opener.running.core.guards.inputs)
    return has_content and dict(first_message.metadata) == body.get("metadata", {})


async def cancel_task(call: HTTPCall) -> Response:
    """Cancel a task that a session has delegated."""
    session = await call.session()
    if not await session.cancel_task(call.path["t"]):
        raise _not_open_error(session, has_ended=await has_task_result(session, call.path["t"]))
    return Response(status_code=204)


def _not_open_error(session: Session, *, has_ended: bool) -> Exception:
    """Return the error for a request that deletes a schedule or task that is not open.

    `has_ended` is True if the schedule has fired or the task has completed, and False if the id is unknown.
    """
    context = context_of(session)
    if context.has_moved:
        return context.refusal
    return missing(as_asked=False) if has_ended else missing()


ENDPOINTS = (
    Endpoint(verb="GET", path="/sessions/{id}/schedules", answer=list_schedules, scope="read", query=_ONE),
    Endpoint(
        verb="POST",
        path="/sessions/{id}/schedules",
        answer=schedule,
        scope="chat",
        query=_ONE,
        id_field="key",
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
        forwarding=Forwarding(repeated_status=404),
    ),
    Endpoint(verb="GET", path="/sessions/{id}/tasks", answer=list_tasks, scope="read", query=_ONE),
    Endpoint(
        verb="POST",
        path="/sessions/{id}/tasks",
        answer=delegate,
        scope="chat",
        query=_ONE,
        id_field="task_id",
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
        forwarding=Forwarding(repeated_status=404),
    ),
)
