"""Messages over HTTP: said, waited for, and asked after."""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any
from urllib.parse import quote

import trio
from starlette.responses import Response

from actgent.agents.session import Session, context_of, services_of
from actgent.errors import FeedLagged, GuardRefused, HandlerFailed
from actgent.journal.base import Journal, SessionSummary
from actgent.journal.feed import Erased, FeedReader, Written
from actgent.journal.records import Record
from actgent.messages import File, Image, Part, Text, new_id, to_parts
from actgent.runtime.sessions.feedback import MAX_TEXT, read_ratings
from actgent.sessions.incoming import message_to
from actgent.web.problems import Problem, missing
from actgent.web.streaming.happenings import MessageStory, find_message

from .endpoints import JSON, Endpoint, HTTPCall
from .repeating import key_for
from .schemas import AGENT, ID, IDEMPOTENCY, LIMIT, METADATA, ON_BUSY, PLACE, PRIORITY
from .views import of_rating, of_said

MAX_WAIT = 300
"""Seconds that `Prefer: wait=` waits at most."""
MAX_PARTS = 100
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")
PATIENCE = 10
"""Seconds that the journal has to write a message, where its sender does not wait for room."""
_MEDIA = {
    "media_type": {"type": "string", "pattern": "^[a-z0-9.+-]+/[a-z0-9.+-]+$"},
    "data": {"type": "string", "description": "Base64."},
    "url": {
        "type": "string",
        "pattern": "^https?://",
        "description": "Given to the model, never fetched here.",
    },
}


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
                    _part("image", ["media_type"], **_MEDIA),
                    _part("file", ["media_type"], name={"type": "string", "maxLength": 200}, **_MEDIA),
                ]
            },
        },
    ]
}
_SAID = {
    "type": "object",
    "properties": {
        "content": CONTENT,
        "message_id": ID,
        "priority": PRIORITY,
        "on_busy": ON_BUSY,
        "metadata": METADATA,
        "deadline": {
            "type": "number",
            "minimum": 1,
            "maximum": 60,
            "description": "Seconds to wait for room in the inbox; without it a full one answers 429 at once.",
        },
        "unless_suspended": {
            "type": "boolean",
            "description": "Refuse the message (409) where the session waits for people, instead of queuing it behind that.",
        },
    },
    "required": ["content"],
    "additionalProperties": False,
}


_ROLES = {
    "type": "string",
    "pattern": "^(user|assistant|agent|tool|system)(,(user|assistant|agent|tool|system))*$",
    "description": "Of these senders alone: user, assistant, agent, tool, system.",
}
_RATING = {
    "type": "object",
    "properties": {
        "score": {"type": "number", "minimum": 0, "maximum": 1, "description": "0 is bad, 1 is good."},
        "comment": {"type": "string", "maxLength": MAX_TEXT},
        "expected": {"type": "string", "maxLength": MAX_TEXT, "description": "What would have been right."},
    },
    "required": ["score"],
    "additionalProperties": False,
}


def to_content(content: str | list[Mapping[str, Any]]) -> str | list[Part]:
    """What a client says, as parts.

    Raises:
        Problem: a part makes no sense.
    """
    return content if isinstance(content, str) else [_to_part(part) for part in content]


def _to_part(part: Mapping[str, Any]) -> Part:
    if part["type"] == "text":
        return Text(part["text"])
    if ("data" in part) == ("url" in part):
        raise Problem("invalid", f"a part of the type {part['type']} has either data (base64) or url")
    try:
        data = base64.b64decode(part["data"], validate=True) if "data" in part else None
    except (binascii.Error, ValueError):
        raise Problem("invalid", "data is base64 (RFC 4648)") from None
    if part["type"] == "image":
        return Image(media_type=part["media_type"], data=data, url=part.get("url"))
    return File(media_type=part["media_type"], data=data, url=part.get("url"), name=part.get("name", "file"))


# --- said ----------------------------------------------------------------------------------


async def say(call: HTTPCall) -> Response:
    """Say something to a session."""
    gateway, body = call.gateway, call.body
    message_id, content = key_for(call, "message_id"), to_content(body["content"])
    head = await call.head()
    session = await gateway.reach.opened(head)
    is_known = message_id is not None and context_of(session).mail.has_accepted(message_id)
    if message_id is not None and is_known:
        story = await _same(call, head, session, message_id, content)
    else:
        await gateway.messages.check(call.caller.token.digest, gateway.reach.journal)
        if body.get("unless_suspended"):
            _check_not_suspended(session)
        if "deadline" not in body:
            context = context_of(session)
            asked = message_to(context, content, priority=body.get("priority", "normal"))
            gateway.reach.opener(head.agent).running.inbox.check_room(asked)
        story = MessageStory(message_id or new_id(), number=head.records + 1)
    seconds = wait_of(call)
    async with gateway.reach.journal.feed(head.key) if seconds else nullcontext() as reader:
        if not is_known:  # or a guard of inputs would look at it again
            await session.chat(
                content,
                priority=body.get("priority", "normal"),
                message_id=story.message_id,
                on_busy=body.get("on_busy"),
                metadata=body.get("metadata"),
                enqueue_timeout=body.get("deadline", PATIENCE),
            )
        gateway.messages.note(call.caller.token.digest, head.key)
        if reader is not None:
            story = await _wait(gateway.reach.journal, head, story, reader, seconds)
    return _accepted(call, head, story)


def _check_not_suspended(session: Session) -> None:
    """Refuse what would wait behind a turn that waits for people.

    Raises:
        Suspended: there is one.
    """
    context = context_of(session)
    if context.suspension is not None and context.ledger().undecided:
        raise context.ledger().suspended()


def _document(call: HTTPCall, head: SessionSummary, story: MessageStory) -> dict[str, Any]:
    if not story.is_over and _is_working(call, head, story):
        story.status = "working"
    return story.document(head.key)


def _accepted(call: HTTPCall, head: SessionSummary, story: MessageStory) -> Response:
    place = f"/v1/sessions/{_segment(head.session_id)}/messages/{_segment(story.message_id)}"
    return JSON(
        _document(call, head, story), status_code=200 if story.is_over else 202, headers={"location": place}
    )


def _segment(text: str) -> str:
    """A text as a segment of a path; most ids are one as they are."""
    return text if _PLAIN.fullmatch(text) else quote(text, safe="")


def wait_of(call: HTTPCall) -> float:
    """Seconds that a client waits for the outcome, from `Prefer: wait=30` (RFC 7240)."""
    for part in call.header("prefer").split(","):
        name, _, value = part.partition("=")
        if name.strip().lower() == "wait" and value.strip().isascii() and value.strip().isdigit():
            return min(float(value.strip()[:6]), MAX_WAIT)
    return 0


async def _same(
    call: HTTPCall, head: SessionSummary, session: Session, message_id: str, content: str | list[Part]
) -> MessageStory:
    """What is known of a message that was said before under this id.

    Raises:
        Problem: then it had other words, or another priority, rule or metadata.
    """
    journal, body = call.gateway.reach.journal, call.body
    story = await find_message(journal, head.key, message_id, head.records)
    if story is None or story.accepted is None:
        return MessageStory(message_id, number=head.records + 1)
    said = story.accepted.message
    is_same = said.parts == to_parts(content) or said.parts == _as_guarded(session, content)
    others = {
        "priority": said.priority.name.lower(),
        "on_busy": said.on_busy,
        "metadata": dict(said.metadata),
    }
    if not is_same or any(body[name] != known for name, known in others.items() if name in body):
        raise Problem("key-reused", "another message was said under this id: take a new id for new words")
    return story


def _as_guarded(session: Session, content: str | list[Part]) -> tuple[Part, ...] | None:
    """What guards of inputs make of what is said, as the journal has that; None where they refuse it."""
    context, guards = context_of(session), services_of(session).running.core.guards
    with suppress(GuardRefused, HandlerFailed):
        return guards.admit(context, message_to(context, content)).parts
    return None


async def _wait(
    journal: Journal, head: SessionSummary, story: MessageStory, reader: FeedReader, seconds: float
) -> MessageStory:
    """Wait until a message has ended or waits for people, or as long as its sender waits."""
    read = partial(journal.read, head.session_id, agent=head.agent)
    number = head.records  # of the last record that the story knows
    with trio.move_on_after(seconds):
        number = _take(story, number + 1, await read(after=number))  # what came before the feed was open
        while not story.is_settled:
            step = await _next(reader)
            if isinstance(step, Erased):
                break
            is_next = step is not None and step.first == number + 1
            records = step.records if step is not None and is_next else await read(after=number)
            number = _take(story, number + 1, records)
    return story


async def _next(reader: FeedReader) -> Written | Erased | None:
    """The next step; None where some were missed."""
    try:
        return await reader.receive()
    except FeedLagged:
        return None


def _take(story: MessageStory, first: int, records: Sequence[Record]) -> int:
    for number, record in enumerate(records, first):
        story.take(number, record)
    return first + len(records) - 1


def _is_working(call: HTTPCall, head: SessionSummary, story: MessageStory) -> bool:
    """Return True if the turn of a message runs now: that it has begun is written with what comes of it."""
    agents = call.gateway.reach.runtime.agents
    context = (
        agents.opener(head.agent).running.sessions.get(head.session_id) if head.agent in agents else None
    )
    turn = None if context is None or context.suspension is not None else context.turn
    return turn is not None and any(each.id == story.message_id for each in (*turn.joined, turn.message))


async def get_message(call: HTTPCall) -> Response:
    """What a message came to; with `Prefer: wait=30` as soon as that is known."""
    journal, head, seconds = call.gateway.reach.journal, await call.head(), wait_of(call)
    async with journal.feed(head.key) if seconds else nullcontext() as reader:
        story = await find_message(journal, head.key, call.path["m"], head.records)
        if story is None:
            raise missing()
        if reader is not None:
            story = await _wait(journal, head, story, reader, seconds)
    return JSON(_document(call, head, story))


async def get_feedback(call: HTTPCall) -> Response:
    """What readers think of the answer to a message."""
    head = await call.head()
    found = await read_ratings(call.gateway.reach.journal, head.key, call.path["m"])
    return JSON({"items": [of_rating(found[by]) for by in sorted(found)], "next": None})


async def give_feedback(call: HTTPCall) -> Response:
    """Judge the answer to a message; a later word of the same owner replaces the one before."""
    head = await call.head()
    runtime, body = call.gateway.reach.runtime, call.body
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


async def get_messages(call: HTTPCall) -> Response:
    """What was said in a session: the newest messages, those before a place, or those behind one."""
    query, session = call.query, await call.readable_session()
    limit = min(query.get("limit", 100), call.gateway.limits.page)
    named: Any = query.get("roles")
    roles = None if named is None else named.split(",")
    page = await session.messages(
        limit=limit, before=query.get("before"), after=query.get("after"), roles=roles
    )
    return JSON(
        {
            "items": [of_said(each, shows_foreign=call.shows_foreign) for each in page],
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
        body=_SAID,
        has_parts=True,
        statuses=(202, 200),
        headers={**IDEMPOTENCY, "Prefer": "`wait=30` waits so many seconds for the outcome."},
    ),
    Endpoint(
        verb="GET",
        path="/sessions/{id}/messages/{m}",
        answer=get_message,
        scope="read",
        query={"agent": AGENT},
        headers={"Prefer": "`wait=30` waits so many seconds for the outcome."},
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
