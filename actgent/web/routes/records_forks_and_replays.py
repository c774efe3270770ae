"""Endpoints of records, past states, forks, replays with the current code, and exported sessions."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import attrs
import trio
from starlette.responses import Response

from actgent.agents.session_replay import ShownRequest, compare_session, show_next_request
from actgent.errors import SessionExists
from actgent.journal.journal_interface import SessionSummary
from actgent.journal.record_types import DECISION_TAGS, RECORD_TAGS
from actgent.journal.session_export_and_fork import SessionExport
from actgent.messages import PART_TAGS
from actgent.runtime.introspection import fork_session
from actgent.web import json_response_types
from actgent.web.problem_documents import Problem, missing
from actgent.web.streaming.sse import StreamedFile, run_until_disconnect

from .common_request_schemas import AGENT, ID, LIMIT, LOCATION, NUMBER
from .endpoints import JSON, READS_JOURNAL, Endpoint, HTTPCall
from .idempotency import creator_id, first_record, fork_id, was_created_by
from .json_serializers import as_document, of_head, of_message, of_parts, of_usage, to_date
from .messages import CONTENT, to_content

T = TypeVar("T")
_ONE = {"agent": AGENT}
_TAGS = {cls: tag for tags in (RECORD_TAGS, PART_TAGS, DECISION_TAGS) for tag, cls in tags.items()}


def as_plain_json(value: Any) -> Any:
    """Convert a journal record, or a value in a record, to JSON types.

    Objects get the field `type` with the tag that the journal stores for their class.
    """
    if attrs.has(type(value)):
        tag = _TAGS.get(type(value))
        fields = {
            field.name: as_plain_json(getattr(value, field.name)) for field in attrs.fields(type(value))
        }
        return fields if tag is None else {"type": tag, **fields}
    if isinstance(value, Mapping):
        return {str(name): as_plain_json(each) for name, each in value.items()}
    return [as_plain_json(each) for each in value] if isinstance(value, list | tuple) else value


async def get_records(call: HTTPCall) -> JSON[json_response_types.RecordPage]:
    """List the journal records of a session."""
    head, after = await call.head(), call.query.get("after", 0)
    limit = min(call.query.get("limit", 100), call.gateway.limits.page)
    steps = await call.gateway.access.journal.read_batches(
        head.session_id, agent=head.agent, after=min(after, head.records), limit=limit
    )
    items: list[json_response_types.JournalRecord] = [
        {"number": number, "at": to_date(step.at or 0.0), "record": as_plain_json(record)}
        for step in steps
        for number, record in enumerate(step.records, step.first)
    ]
    last = steps[-1].last if steps else after
    return JSON({"items": items, "next": last if last < head.records else None})


async def _number_of(call: HTTPCall) -> int:
    """Return the record number that is in the path of the request.

    Raises:
        Problem: The session has no record of this number.
    """
    head, text = await call.head(), call.path["n"]
    if not (text.isascii() and text.isdigit() and len(text) < 16 and 1 <= int(text) <= head.records):  # noqa: PLR2004 - below 2**53
        raise missing()
    return int(text)


async def get_past(call: HTTPCall) -> JSON[json_response_types.PastSessionDocument]:
    """Return history, queued messages, state and digest of a session as it was after a record."""
    head, number = await call.head(), await _number_of(call)
    found = await call.gateway.access.runtime.rebuild(head.session_id, agent=head.agent, to=number)
    return JSON(
        {
            "number": found.step,
            "history": [of_message(message, shows_exception_texts=True) for message in found.history],
            "waiting": [of_message(message) for message in found.waiting],
            "state": as_plain_json(found.state),
            "usage": of_usage(found.usage),
            "digest": found.digest,
        }
    )


async def get_state(call: HTTPCall) -> JSON[json_response_types.SessionState]:
    """Return the state of a session: the current state, or the state after the record `at`."""
    head = await call.head()
    number = call.query.get("at", head.records)
    if not 1 <= number <= head.records:
        raise Problem("invalid", f"at= must be a record number from 1 to {head.records}")
    found = await call.gateway.access.runtime.rebuild(head.session_id, agent=head.agent, to=number)
    return JSON({"number": found.step, "state": as_plain_json(found.state)})


async def post_compare(call: HTTPCall) -> JSON[json_response_types.Comparison]:
    """Replay a session with the current code of its agent and the recorded model answers. Return the first difference."""
    head = await call.head()
    number = int(call.body.get("at", head.records))
    if not 1 <= number <= head.records:
        raise Problem("invalid", f"the query field 'at' must be a record number from 1 to {head.records}")
    comparing = partial(
        compare_session, call.gateway.access.runtime, head.session_id, agent=head.agent, to=number
    )
    found = await _run_replay(call, comparing)
    return JSON({"number": number, "difference": None if found is None else as_document(found)})


async def get_request(call: HTTPCall) -> JSON[json_response_types.NextRequest]:
    """Return the model request for the first answer at or after a record, as the agent's current code builds it."""
    head, number = await call.head(), await _number_of(call)
    asking = partial(
        show_next_request, call.gateway.access.runtime, head.session_id, agent=head.agent, at=number
    )
    found = await _run_replay(call, asking)
    return JSON({"number": number, "request": None if found is None else _of_request(found)})


def _of_request(shown: ShownRequest) -> json_response_types.ModelRequestDocument:
    chat = shown.chat
    return {
        "answer": shown.step,
        "system": chat.system,
        "messages": [
            {"role": each.role, "parts": of_parts(each.parts, shows_exception_texts=True)}
            for each in chat.messages
        ],
        "tools": [
            {"name": each.name, "description": each.description, "parameters": dict(each.parameters)}
            for each in chat.tools
        ],
        "settings": {
            "temperature": chat.temperature,
            "max_tokens": chat.max_tokens,
            "response_format": None
            if chat.response_format is None
            else {"name": chat.response_format.name, "schema": dict(chat.response_format.schema)},
        },
        "tokens": shown.estimate,
        "of_messages": shown.messages,
        "memory": shown.memory,
        "is_same_prompt": shown.is_same_prompt,
    }


async def _run_replay(call: HTTPCall, work: Callable[[], Awaitable[T]]) -> T | None:
    """Run the replay `work` with a concurrency limit and a timeout, and return its result.

    If the client disconnects, the replay is cancelled and the result is None.

    Raises:
        Problem: Too many replays are running, or the replay exceeded `GatewayLimits.compare_seconds`.
    """
    limits = call.gateway.limits
    try:
        call.gateway.replay_limiter.acquire_on_behalf_of_nowait(call)
    except trio.WouldBlock:
        raise Problem(
            "too-many-requests", "the maximum number of comparisons is running: retry the request later"
        ) from None
    try:
        with trio.move_on_after(limits.compare_seconds) as limit:
            return await run_until_disconnect(call.receive, work)
    finally:
        call.gateway.replay_limiter.release_on_behalf_of(call)
    if limit.cancelled_caught:
        raise Problem(
            "unavailable",
            f"the comparison took longer than {limits.compare_seconds:g} s: to compare fewer records, set the field 'at'",
        )
    return None


async def post_fork(call: HTTPCall) -> JSON[json_response_types.SessionSummaryDocument]:
    """Copy a session as it was after a record to a new session. An unfinished turn resumes in the copy, before `message`."""
    head, body, access = await call.head(), call.body, call.gateway.access
    key = call.idempotency_key
    number = int(body.get("at", head.records))
    wanted = body.get("session_id") or (fork_id(call, key) if key else None)
    if not 1 <= number <= head.records:
        raise Problem("invalid", f"the query field 'at' must be a record number from 1 to {head.records}")
    if head.parent_id is not None and head.owner != call.caller.owner:
        raise Problem("conflict", "a child session cannot be forked: fork its parent session")
    made = await _write_fork(call, head, number, wanted, creator=creator_id(call, key))
    is_open = made.unfinished and access.journal.owns(
        made.session_id
    )  # sessions of other partitions are started by their owners
    if is_open or "input" in body:
        session = await access.session(call.caller, made.session_id, made.agent)
        if "input" in body:
            message_id = f"{made.session_id}/{key}" if key else None
            await session.chat(to_content(body["input"]), message_id=message_id)
        made = await access.head(call.caller, made.session_id, made.agent)
    return JSON(of_head(made), status_code=201, headers={"location": f"/v1/sessions/{made.session_id}"})


async def _write_fork(
    call: HTTPCall, head: SessionSummary, number: int, new_id: str | None, *, creator: str
) -> SessionSummary:
    """Write a copy of a session up to record `number`, and return the summary of the copy.

    If an earlier try of the same request has written the copy, its summary is returned.

    Args:
        call: Fork request.
        head: Summary of the session to copy.
        number: Number of the last record to copy.
        new_id: Id of the copy; None creates an id.
        creator: Text that identifies the request, from `creator_id`.
    """
    access = call.gateway.access
    runtime = access.runtime
    try:
        return await fork_session(
            access.journal,
            head.key,
            number,
            new_id,
            remote_sessions=runtime.remote_sessions,
            agents=runtime.agents,
            asker=creator,
        )
    except SessionExists:
        known = await access.head(
            call.caller, str(new_id), head.agent
        )  # sessions of other owners count as not found
        opened = await first_record(call, known)
        if creator and opened is not None and was_created_by(opened.asker, creator):
            return known
        raise


async def get_export(call: HTTPCall) -> Response:
    """Download a session in the format of `actgent journal export`."""
    export = await SessionExport.measure(call.gateway.access.journal, await call.head())
    return StreamedFile(export.write, export.size)


ENDPOINTS = (
    Endpoint(
        verb="GET",
        path="/sessions/{id}/records",
        answer=get_records,
        forwarding=READS_JOURNAL,
        scope="journal",
        query={**_ONE, "after": NUMBER, "limit": LIMIT},
    ),
    Endpoint(
        verb="GET",
        path="/sessions/{id}/at/{n}",
        answer=get_past,
        forwarding=READS_JOURNAL,
        scope="journal",
        query=_ONE,
    ),
    Endpoint(
        verb="GET",
        path="/sessions/{id}/at/{n}/request",
        answer=get_request,
        forwarding=READS_JOURNAL,
        scope="journal",
        query=_ONE,
    ),
    Endpoint(
        verb="GET",
        path="/sessions/{id}/state",
        answer=get_state,
        forwarding=READS_JOURNAL,
        scope="read",
        query={**_ONE, "at": NUMBER},
    ),
    Endpoint(
        verb="POST",
        path="/sessions/{id}/compare",
        answer=post_compare,
        forwarding=READS_JOURNAL,
        scope="journal",
        query=_ONE,
        body={
            "type": "object",
            "properties": {
                "at": {"type": "integer", "minimum": 1, "description": "Up to this record; all without it."}
            },
            "additionalProperties": False,
        },
    ),
    Endpoint(
        verb="POST",
        path="/sessions/{id}/fork",
        answer=post_fork,
        scope="chat",
        query=_ONE,
        answer_headers=LOCATION,
        id_field="session_id",
        has_parts=True,
        body={
            "type": "object",
            "properties": {"at": {"type": "integer", "minimum": 1}, "session_id": ID, "input": CONTENT},
            "additionalProperties": False,
        },
        statuses=(201,),
    ),
    Endpoint(
        verb="GET",
        path="/sessions/{id}/export",
        answer=get_export,
        forwarding=READS_JOURNAL,
        scope="journal",
        query=_ONE,
        media_type="application/octet-stream",
    ),
)
