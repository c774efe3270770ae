"""Endpoints of events and observations of a session, as a stream or a page, and of changes in all sessions."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, get_args

from starlette.responses import Response

from actgent.client.http.http_request import EVENTS_ALONG_HEADER, EVENTS_HEADER
from actgent.errors.text_escaping import counted
from actgent.journal.session_list_queries import SessionKey
from actgent.sessions.subscriptions import ObservedType
from actgent.web import json_response_types
from actgent.web.problem_documents import Problem
from actgent.web.streaming import session_event_types
from actgent.web.streaming.change_feed import WATCHED, ChangeStream
from actgent.web.streaming.event_broadcast import SessionEventStream
from actgent.web.streaming.observation_stream import ObservationStream, of_observed
from actgent.web.streaming.session_events import encoder_at
from actgent.web.streaming.sse import StreamedEvents

from .common_request_schemas import AGENT, LIMIT, NUMBER, list_pattern
from .endpoints import JSON, Endpoint, HTTPCall

WHOLE = {
    "type": "string",
    "enum": ["true", "false"],
    "description": "On a page: send tool results in full instead of truncated.",
}

STREAM_HEADERS: Mapping[str, str] = {
    "Last-Event-ID": "Id of the last event that the client received.",
    "Actgent-Events": "Comma-separated names of the events to send without delay; `failed` selects `ended` events of "
    "failed messages. Other events are sent together with the next of these. `token`, `growing` and `progress` are "
    "sent only if listed. Without the header, all events are sent without delay.",
    "Actgent-Events-Along": "Comma-separated names of the other events to send, together with the next event of "
    "`Actgent-Events`. Without the header, all other events are sent.",
}
"""Request headers of a stream of a session's events, with their descriptions."""


async def get_events(
    call: HTTPCall,
) -> JSON[session_event_types.EventPage] | StreamedEvents[session_event_types.SessionStreamEvent] | Response:
    """Stream the events of a session after the record number `after` or `Last-Event-ID`. `Accept: application/json` returns a page."""
    head = await call.head()
    after = record_number_after(call)
    if "application/json" in call.header("accept"):
        return await _page(call, after)
    if head.closed and after >= head.records:
        return Response(status_code=204)  # stops the reconnections of a browser's EventSource
    return streamed_session(call, head.key, after)


def streamed_session(
    call: HTTPCall, key: SessionKey, after: int, wait_over: Callable[[], Awaitable[int]] | None = None
) -> StreamedEvents[session_event_types.SessionStreamEvent]:
    """Return a stream of the session events after record number `after` that the request's headers select.

    `wait_over` waits until the stream should end, and returns the number of the last record to send. None streams until
    the session is closed.
    """
    reading = SessionEventStream(
        journal=call.gateway.access.journal,
        broadcasts=call.gateway.broadcasts,
        key=key,
        after=after,
        immediate=_requested_event_names(call),
        delayed=_names_in(call.header(EVENTS_ALONG_HEADER)) if EVENTS_ALONG_HEADER in call.headers else None,
        shows_exception_texts=call.shows_exception_texts,
        wait_over=wait_over,
    )
    return StreamedEvents(reading.run, call.gateway.streams)


async def watch(call: HTTPCall) -> StreamedEvents[json_response_types.ChangeEvent]:
    """Stream changes in all sessions that the caller may access.

    The events are `head` (session summary), `agent`, `approval`, `decision` and `error`, and `resync` after a gap.
    """
    gateway, kinds = call.gateway, call.query.get("watch", "heads").split(",")
    if not set(kinds) <= set(WATCHED):
        raise Problem("invalid", f"watch= must be a comma-separated list of {', '.join(WATCHED)}")
    watching = ChangeStream(
        access=gateway.access, caller=call.caller, kinds=frozenset(kinds), closing=gateway.closing
    )
    return StreamedEvents(watching.run, gateway.streams)


async def get_observations(
    call: HTTPCall,
) -> (
    JSON[json_response_types.ObservationPage]
    | StreamedEvents[json_response_types.ObservationEvent]
    | Response
):
    """Stream the observations of a session: intents, plans, thoughts, tool calls, answers and errors.

    `Accept: application/json` returns a page instead.
    """
    head, after, runtime = await call.head(), record_number_after(call), call.gateway.access.runtime
    types, turn = _types_of(call), call.query.get("turn")
    if after > head.records:
        raise Problem(
            "conflict",
            f"the session has {counted(head.records, 'record')}: `after` must be a record number up to this number, or 0",
        )
    if "application/json" not in call.header("accept"):
        if head.closed and after >= head.records:
            return Response(status_code=204)
        observing = ObservationStream(
            runtime=runtime,
            key=head.key,
            after=after,
            types=types,
            turn=turn,
            closing=call.gateway.closing,
            shows_exception_texts=call.shows_exception_texts,
        )
        return StreamedEvents(observing.run, call.gateway.streams)
    limit = min(call.query.get("limit", 100), call.gateway.limits.page)
    found = await runtime.observations(
        head.session_id, agent=head.agent, types=types, turn=turn, after=after, limit=limit
    )
    following = found[-1].number if len(found) == limit else None
    return JSON(
        {
            "items": [of_observed(each, shows_exception_texts=call.shows_exception_texts) for each in found],
            "next": following,
        }
    )


def _types_of(call: HTTPCall) -> list[ObservedType] | None:
    """Return the observation types in the query parameter `types`; None if the parameter is missing, which selects all types.

    Raises:
        Problem: A type is unknown.
    """
    if "types" not in call.query:
        return None
    wanted = set(call.query["types"].split(","))
    found: list[ObservedType] = [each for each in get_args(ObservedType) if each in wanted]
    if len(found) < len(wanted):
        known = ", ".join(get_args(ObservedType))
        raise Problem("invalid", f"types= must be a comma-separated list of {known}")
    return found


def _requested_event_names(call: HTTPCall) -> frozenset[str] | None:
    """Return the event names in the header `Actgent-Events`; None if the header is missing, which selects all events.

    Raises:
        Problem: The header has no known event name, so that the stream would be empty.
    """
    names = _names_in(call.header(EVENTS_HEADER))
    if names and names.isdisjoint(session_event_types.STREAM_EVENT_NAMES):
        raise Problem(
            "invalid",
            f"the header {EVENTS_HEADER} must list at least one of the event names {', '.join(sorted(session_event_types.STREAM_EVENT_NAMES))}",
        )
    return names or None


def _names_in(header: str) -> frozenset[str]:
    return frozenset(filter(None, map(str.strip, header.split(","))))


def record_number_after(call: HTTPCall) -> int:
    """Return the record number after which the client wants to read: `Last-Event-ID` if present, else `after`."""
    text = call.header("last-event-id")
    if not text:
        return int(call.query.get("after", 0))
    if not (text.isascii() and text.isdigit() and len(text) < 16):  # noqa: PLR2004 - below 2**53
        raise Problem("invalid", "the header last-event-id must be the id of an event of this session")
    return int(text)


async def _page(call: HTTPCall, after: int) -> JSON[session_event_types.EventPage]:
    """Return the events of the records after number `after` as a JSON page.

    `cursor` of the page is the number of the last record that was read.
    """
    access, head = call.gateway.access, await call.head()
    limit = min(call.query.get("limit", 100), call.gateway.limits.page)
    after = min(after, head.records)
    steps = await access.journal.read_batches(head.session_id, agent=head.agent, after=after, limit=limit)
    encoder = await encoder_at(
        access.journal, head.key, after, shows_exception_texts=call.shows_exception_texts
    )
    encoder.is_whole = call.query.get("whole") == "true"
    events = [each for step in steps for each in encoder.encode_all(step.first, step.records, step.at or 0.0)]
    cursor = steps[-1].last if steps else after
    items: list[Any] = [{"id": each.number, "event": each.name, "data": each.data} for each in events]
    return JSON({"items": items, "cursor": cursor, "next": cursor if cursor < head.records else None})


ENDPOINTS = (
    Endpoint(
        verb="GET",
        path="/sessions/{id}/events",
        answer=get_events,
        scope="read",
        query={"agent": AGENT, "after": NUMBER, "limit": LIMIT, "whole": WHOLE},
        statuses=(200, 204),
        headers=STREAM_HEADERS,
        streams=True,
    ),
    Endpoint(
        verb="GET",
        path="/sessions/{id}/observations",
        answer=get_observations,
        scope="read",
        query={
            "agent": AGENT,
            "types": {
                "type": "string",
                "pattern": list_pattern(get_args(ObservedType)),
                "description": f"Comma-separated types, of {', '.join(get_args(ObservedType))}; all if missing.",
            },
            "turn": {"type": "string", "description": "Id of a message: only observations of its turn."},
            "after": NUMBER,
            "limit": LIMIT,
        },
        statuses=(200, 204),
        headers={"Last-Event-ID": "Id of the last observation that the client received."},
        streams=True,
    ),
    Endpoint(
        verb="GET",
        path="/events",
        answer=watch,
        scope="read",
        query={
            "watch": {
                "type": "string",
                "pattern": list_pattern(WATCHED),
                "description": f"Comma-separated kinds, of {', '.join(WATCHED)}; `heads` if missing.",
            }
        },
        streams=True,
    ),
)
