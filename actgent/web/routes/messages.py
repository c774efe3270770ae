"""Endpoints of messages: send a message, wait for its outcome, read its status, list messages, and give feedback."""

import base64
import binascii
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any
from urllib.parse import quote

import trio
from starlette.responses import Response

from actgent.agents.session import Session, context_of, services_of
from actgent.errors import FeedLagged, GuardrailTripped, HandlerFailed
from actgent.journal.journal_interface import Journal, SessionSummary
from actgent.journal.record_feed_readers import Erased, FeedReader, WrittenBatch
from actgent.journal.record_types import Record
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import File, Image, Message, Part, Text, to_parts
from actgent.runtime.sessions.answer_ratings import MAX_TEXT, read_ratings
from actgent.tools.tools_run_by_caller import MAX_TOOLS, to_spec
from actgent.web import json_response_types
from actgent.web.problem_documents import Problem, missing
from actgent.web.streaming import session_event_types
from actgent.web.streaming.session_events import MessageProgress, find_message, find_messages_before
from actgent.web.streaming.sse import StreamedEvents

from .common_request_schemas import (
    AFTER,
    AGENT,
    ID,
    LIMIT,
    LOCATION,
    METADATA,
    ON_BUSY,
    PLACE,
    PRIORITY,
    list_pattern,
)
from .endpoints import JSON, READS_JOURNAL, Endpoint, Forwarding, HTTPCall, is_stream_requested, sends_always
from .events import STREAM_HEADERS, record_number_after, streamed_session
from .json_serializers import message_to_json, of_rating

MAX_WAIT_SECONDS = 300
"""Maximum of the header `Prefer: wait=`, in seconds."""
MAX_PARTS = 100
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")
ENQUEUE_TIMEOUT_SECONDS = 10
"""Timeout in seconds for accepting a message into the inbox, if the request has no `deadline`."""
_MEDIA = {
    "media_type": {"type": "string", "pattern": "^[a-z0-9.+-]+/[a-z0-9.+-]+$"},
    "data": {"type": "string", "contentEncoding": "base64", "description": "Base64 (RFC 4648)."},
    "url": {
        "type": "string",
        "pattern": "^https?://",
        "description": "Given to the model, never fetched here.",
    },
}

_ONE_SOURCE = {"oneOf": [{"required": ["data"]}, {"required": ["url"]}]}


def _part(kind: str, required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"type": {"const": kind}, **properties},
        "required": ["type", *required],
        "additionalProperties": False,
    }


CONTENT: Mapping[str, Any] = {
    "oneOf": [
        {"type": "string", "minLength": 1},
        {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_PARTS,
            "items": {
                "oneOf": [
                    _part("text", ["text"], text={"type": "string"}),
                    {**_part("image", ["media_type"], **_MEDIA), **_ONE_SOURCE},
                    {
                        **_part("file", ["media_type"], name={"type": "string", "maxLength": 200}, **_MEDIA),
                        **_ONE_SOURCE,
                    },
                ]
            },
        },
    ]
}
TOOLS: Mapping[str, Any] = {
    "type": "array",
    "maxItems": MAX_TOOLS,
    "description": "Tools that the client runs itself, for this turn. A call suspends the turn: see `waits_for` of the message.",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,64}$"},
            "description": {"type": "string", "maxLength": 4000},
            "parameters": {
                "type": "object",
                "additionalProperties": True,
                "description": "JSON Schema of the arguments.",
            },
        },
        "required": ["name"],
        "additionalProperties": False,
    },
}
_MESSAGE = {
    "type": "object",
    "properties": {
        "input": CONTENT,
        "message_id": ID,
        "priority": PRIORITY,
        "on_busy": ON_BUSY,
        "metadata": METADATA,
        "stream": {
            "type": "boolean",
            "description": "Answer with the events of the run as server-sent events, until it ends or waits for an approval.",
        },
        "tools": TOOLS,
        "deadline": {
            "type": "number",
            "minimum": 1,
            "maximum": 60,
            "description": "Seconds to wait for room in the inbox. Without it, a full inbox answers 429 at once.",
        },
        "unless_suspended": {
            "type": "boolean",
            "description": "Reject the message (409) if the session waits for an approval, instead of queuing it.",
        },
    },
    "required": ["input"],
    "additionalProperties": False,
}


_PREFER = {"Prefer": "`wait=30` waits up to 30 seconds for the outcome."}
_ROLES = {
    "type": "string",
    "pattern": list_pattern(("user", "assistant", "agent", "tool", "system")),
    "description": "Only messages of these senders: user, assistant, agent, tool, system.",
}
_RATING = {
    "type": "object",
    "properties": {
        "score": {"type": "number", "minimum": 0, "maximum": 1, "description": "0 is bad, 1 is good."},
        "comment": {"type": "string", "maxLength": MAX_TEXT},
        "expected": {"type": "string", "maxLength": MAX_TEXT, "description": "The correct answer."},
    },
    "required": ["score"],
    "additionalProperties": False,
}


def to_content(content: str | list[Mapping[str, Any]]) -> str | list[Part]:
    """Convert the message content in a request body to message parts. A text is returned unchanged.

    Raises:
        Problem: The base64 of a part is invalid.
    """
    return content if isinstance(content, str) else [_to_part(part) for part in content]


def _to_part(part: Mapping[str, Any]) -> Part:
    if part["type"] == "text":
        return Text(part["text"])
    try:
        data = base64.b64decode(part["data"], validate=True) if "data" in part else None
    except (binascii.Error, ValueError):
        raise Problem("invalid", "the field data must be base64 (RFC 4648)") from None
    if part["type"] == "image":
        return Image(media_type=part["media_type"], data=data, url=part.get("url"))
    return File(media_type=part["media_type"], data=data, url=part.get("url"), name=part.get("name", "file"))


# --- sending -------------------------------------------------------------------------------


async def say(
    call: HTTPCall,
) -> JSON[json_response_types.RunDocument] | StreamedEvents[session_event_types.SessionStreamEvent]:
    """Send a message to a session.

    With `stream` the response is the stream of the session's events from the message on. It ends when the run has ended or waits
    for an approval. After a lost connection, repeat the request with the same key and `Last-Event-ID`. If no node serves the
    session at the moment, the response is a 202 without events.
    """
    gateway, body = call.gateway, call.body
    message_id, content = call.chosen_id("message_id"), to_content(body["input"])
    head = await call.head()
    key, session = head.key, await gateway.access.open_session(head)
    progress: MessageProgress | None = None
    if message_id is not None and context_of(session).has_accepted(message_id):
        progress = await _find_duplicate(call, head, session, message_id, content)
    else:
        await gateway.messages.check(call.caller.token.digest, gateway.access.journal)
        if body.get("unless_suspended"):
            _check_not_suspended(session)
        if "deadline" not in body:
            context = context_of(session)
            asked = context.new_message(content, priority=body.get("priority", "normal"))
            services_of(session).running.inbox.check_room(asked)
    is_streamed = body.get("stream", False)
    seconds = 0 if is_streamed else wait_of(call)
    async with gateway.access.journal.feed(key) if seconds else nullcontext() as reader:
        if progress is None:  # for a duplicate, input guards would run a second time
            accepted_id = await session.chat(
                content,
                priority=body.get("priority", "normal"),
                message_id=message_id,
                on_busy=body.get("on_busy"),
                metadata=body.get("metadata"),
                tools=body.get("tools"),
                enqueue_timeout=body.get("deadline", ENQUEUE_TIMEOUT_SECONDS),
            )
            progress = MessageProgress(accepted_id, number=head.records + 1)
        gateway.messages.count(call.caller.token.digest, key)
        if reader is not None:
            progress = await _wait(gateway.access.journal, key, progress, reader, seconds)
    if is_streamed:
        return _stream_of_run(call, head, progress)
    return _accepted_row(call, head, progress)


def _stream_of_run(
    call: HTTPCall, head: SessionSummary, progress: MessageProgress
) -> StreamedEvents[session_event_types.SessionStreamEvent]:
    """Return a stream of the events of a run: after `Last-Event-ID` if the client sends it, otherwise from the message on."""
    journal = call.gateway.access.journal

    async def wait_settled() -> int:
        async with journal.feed(head.key) as reader:
            return (await _wait(journal, head.key, progress, reader, math.inf)).last

    after = record_number_after(call) or progress.cursor
    return streamed_session(call, head.key, after, wait_settled)


def _check_not_suspended(session: Session) -> None:
    """Check that the session does not wait for an approval.

    Raises:
        Suspended: The turn of the session waits for an approval.
    """
    context = context_of(session)
    if context.suspension is not None and context.ledger().undecided:
        raise context.ledger().suspended()


def _document(
    call: HTTPCall, head: SessionSummary, progress: MessageProgress
) -> json_response_types.RunDocument:
    if not progress.is_over and _is_working(call, head, progress):
        progress.status = "working"
    return progress.document(head.key)


def _accepted_row(
    call: HTTPCall, head: SessionSummary, progress: MessageProgress
) -> JSON[json_response_types.RunDocument]:
    location = f"/v1/sessions/{_segment(head.session_id)}/runs/{_segment(progress.message_id)}"
    return JSON(
        _document(call, head, progress),
        status_code=200 if progress.is_over else 202,
        headers={"location": location},
    )


def accepted(call: HTTPCall, head: SessionSummary, message_id: str) -> JSON[json_response_types.RunDocument]:
    """Return the 202 response for a message that is stored until a node owns its session."""
    return _accepted_row(call, head, MessageProgress(message_id, number=head.records + 1))


def _segment(text: str) -> str:
    """Percent-encode a text as one path segment."""
    return text if _PLAIN.fullmatch(text) else quote(text, safe="")


def wait_of(call: HTTPCall) -> float:
    """Return for how many seconds the client wants to wait for the outcome, at most `MAX_WAIT_SECONDS`; 0 for no wait.

    The request header is `Prefer: wait=30` (RFC 7240).
    """
    for part in call.header("prefer").split(","):
        name, _, value = part.partition("=")
        if name.strip().lower() == "wait" and value.strip().isascii() and value.strip().isdigit():
            return min(float(value.strip()[:6]), MAX_WAIT_SECONDS)
    return 0


async def _find_duplicate(
    call: HTTPCall, head: SessionSummary, session: Session, message_id: str, content: str | list[Part]
) -> MessageProgress:
    """Return the progress of a message that was sent before with this id.

    Raises:
        Problem: The earlier message has a different content, priority, `on_busy`, metadata or tools.
    """
    journal, body = call.gateway.access.journal, call.body
    progress = await find_message(journal, head.key, message_id, head.records)
    if progress is None or progress.accepted is None:
        return MessageProgress(message_id, number=head.records + 1)
    message = progress.accepted.message
    is_same = has_content(session, message, content)
    others: dict[str, Any] = {
        "priority": message.priority.name.lower(),
        "on_busy": message.on_busy,
        "metadata": dict(message.metadata),
    }
    if "tools" in body:
        options = progress.accepted.options
        others["tools"] = () if options is None else options.tools
        body = {**body, "tools": tuple(map(to_spec, body["tools"]))}
    if not is_same or any(body[name] != known for name, known in others.items() if name in body):
        raise Problem(
            "key-reused",
            "this message id was sent before with a different message: use a new id for each message",
        )
    return progress


def has_content(session: Session, message: Message, content: str | list[Part]) -> bool:
    """Return True if a stored message equals `content`, either unchanged or after the input guards have changed it."""
    return message.parts == to_parts(content) or message.parts == _apply_input_guards(session, content)


def _apply_input_guards(session: Session, content: str | list[Part]) -> tuple[Part, ...] | None:
    """Return the parts of a message's content after the input guards; None if a guard rejects the content."""
    context, guards = context_of(session), services_of(session).running.core.guards
    with suppress(GuardrailTripped, HandlerFailed):
        return guards.check_input(context, context.new_message(content)).parts
    return None


async def _wait(
    journal: Journal, key: SessionKey, progress: MessageProgress, reader: FeedReader, seconds: float
) -> MessageProgress:
    """Read new records until a message has ended or waits for an approval, at most `seconds`. Return its progress."""
    read = partial(journal.read, key.session_id, agent=key.agent)
    number = progress.last or progress.cursor  # number of the last record in the progress
    with trio.move_on_after(seconds):
        if (
            not reader.has_news
        ):  # otherwise the first step shows if records were written before the feed was open
            number = _apply(progress, number + 1, await read(after=number))
        while not progress.is_settled:
            step = await _next_feed_item(reader)
            if isinstance(step, Erased):
                break
            is_next = step is not None and step.first == number + 1
            records = step.records if step is not None and is_next else await read(after=number)
            number = _apply(progress, number + 1, records)
    return progress


async def _next_feed_item(reader: FeedReader) -> WrittenBatch | Erased | None:
    """Wait for the next records or erasure in the journal feed.

    Return None if the reader was too slow and the feed has dropped entries.
    """
    try:
        return await reader.receive()
    except FeedLagged:
        return None


def _apply(progress: MessageProgress, first: int, records: Sequence[Record]) -> int:
    for number, record in enumerate(records, first):
        progress.apply(number, record)
    return first + len(records) - 1


def _is_working(call: HTTPCall, head: SessionSummary, progress: MessageProgress) -> bool:
    """Return True if the turn that processes a message runs in this process.

    The journal has no record of the turn before its first model call.
    """
    agents = call.gateway.access.runtime.agents
    context = (
        agents.opener(head.agent).running.sessions.get(head.session_id) if head.agent in agents else None
    )
    turn = None if context is None or context.suspension is not None else context.turn
    return turn is not None and any(each.id == progress.message_id for each in (*turn.joined, turn.message))


async def get_run(call: HTTPCall) -> JSON[json_response_types.RunDocument]:
    """Return a run: the status and outcome of a message's processing. The header `Prefer: wait=30` waits for the outcome."""
    journal, head, seconds = call.gateway.access.journal, await call.head(), wait_of(call)
    async with journal.feed(head.key) if seconds else nullcontext() as reader:
        progress = await find_message(journal, head.key, call.path["m"], head.records)
        if progress is None:
            raise missing()
        if reader is not None:
            progress = await _wait(journal, head.key, progress, reader, seconds)
    return JSON(_document(call, head, progress))


async def list_runs(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.RunDocument]]:
    """List the runs of a session, the newest first."""
    journal, head = call.gateway.access.journal, await call.head()
    limit, last = min(call.query.get("limit", 100), call.gateway.limits.page), head.records
    if (after := call.query.get("after")) is not None:
        if not (after.isascii() and after.isdigit() and len(after) < 16):  # noqa: PLR2004 - below 2**53
            raise Problem("invalid", "after= must be the `next` value of an earlier page")
        last = min(last, int(after) - 1)
    found = await find_messages_before(journal, head.key, last, limit, head.records)
    following = str(found[-1].number) if len(found) == limit else None
    return JSON({"items": [_document(call, head, each) for each in found], "next": following})


async def cancel_run(call: HTTPCall) -> Response:
    """Cancel a run: interrupt its turn, or remove its message from the queue. Respond after the turn has ended.

    A run that has ended is not changed.
    """
    head = await call.head()
    if await find_message(call.gateway.access.journal, head.key, call.path["m"], head.records) is None:
        raise missing()
    session = await call.session()
    await session.interrupt(call.body.get("reason", "interrupted"), message_id=call.path["m"])
    return Response(status_code=204)


async def get_feedback(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.Feedback]]:
    """List the feedback on the answer to a message."""
    head = await call.head()
    found = await read_ratings(call.gateway.access.journal, head.key, call.path["m"])
    return JSON({"items": [of_rating(found[by]) for by in sorted(found)], "next": None})


async def give_feedback(call: HTTPCall) -> Response:
    """Store the caller's feedback on the answer to a message. It replaces the caller's earlier feedback on this answer."""
    head = await call.head()
    runtime, body = call.gateway.access.runtime, call.body
    await runtime.rate(
        head.session_id,
        call.path["m"],
        agent=head.agent,
        score=body["score"],
        comment=body.get("comment", ""),
        expected=body.get("expected"),
        by=call.caller.owner,
    )
    return Response(status_code=204)


async def get_messages(call: HTTPCall) -> JSON[json_response_types.MessagePageDocument]:
    """List messages in the history of a session: the newest, or those before or after an index."""
    query, session = call.query, await call.readable_session()
    limit = min(query.get("limit", 100), call.gateway.limits.page)
    named: Any = query.get("roles")
    roles = None if named is None else named.split(",")
    page = await session.messages(
        limit=limit, before=query.get("before"), after=query.get("after"), roles=roles
    )
    return JSON(
        {
            "items": [
                message_to_json(each, shows_exception_texts=call.shows_exception_texts) for each in page
            ],
            "first": page.first,
            "last": page.last,
            "total": page.total,
        }
    )


ENDPOINTS = (
    Endpoint(
        verb="POST",
        path="/sessions/{id}/messages",
        answer=say,
        scope="chat",
        query={"agent": AGENT},
        body=_MESSAGE,
        has_parts=True,
        statuses=(202, 200),
        headers={**_PREFER, **STREAM_HEADERS},
        answer_headers=LOCATION,
        id_field="message_id",
        streams=True,
        is_stream=is_stream_requested,
        forwarding=Forwarding(sends_message=sends_always),
    ),
    Endpoint(
        verb="GET",
        path="/sessions/{id}/runs",
        answer=list_runs,
        scope="read",
        query={"agent": AGENT, "after": AFTER, "limit": LIMIT},
    ),
    Endpoint(
        verb="GET",
        path="/sessions/{id}/runs/{m}",
        answer=get_run,
        scope="read",
        query={"agent": AGENT},
        headers=_PREFER,
    ),
    Endpoint(
        verb="POST",
        path="/sessions/{id}/runs/{m}/cancel",
        answer=cancel_run,
        scope="chat",
        query={"agent": AGENT},
        body={
            "type": "object",
            "properties": {"reason": {"type": "string", "maxLength": 500}},
            "additionalProperties": False,
        },
        statuses=(204,),
        forwarding=Forwarding(served_while_draining=True),
    ),
    Endpoint(
        verb="GET",
        path="/sessions/{id}/messages",
        answer=get_messages,
        scope="read",
        query={"agent": AGENT, "before": PLACE, "after": PLACE, "limit": LIMIT, "roles": _ROLES},
    ),
    Endpoint(
        verb="GET",
        path="/sessions/{id}/messages/{m}/feedback",
        answer=get_feedback,
        scope="read",
        query={"agent": AGENT},
        forwarding=READS_JOURNAL,
    ),
    Endpoint(
        verb="POST",
        path="/sessions/{id}/messages/{m}/feedback",
        answer=give_feedback,
        scope="chat",
        query={"agent": AGENT},
        body=_RATING,
        statuses=(204,),
    ),
)
