"""The events of a session over HTTP: as a stream that goes on, or as a page."""

from typing import get_args

from starlette.responses import Response

from actgent.client.http.forms import ALONG, WANTED
from actgent.errors.printable import counted
from actgent.sessions.following import ObservedType
from actgent.web.problems import Problem
from actgent.web.streaming.happenings import teller_at
from actgent.web.streaming.observing import Observing, of_observed
from actgent.web.streaming.streams import StreamedEvents
from actgent.web.streaming.tails import SessionReading
from actgent.web.streaming.watching import WATCHED, Watching

from .endpoints import JSON, Endpoint, HTTPCall
from .schemas import AGENT, LIMIT, NUMBER

WHOLE = {
    "type": "string",
    "enum": ["true", "false"],
    "description": "Of a page: results of tools as they are, however long.",
}


async def get_events(call: HTTPCall) -> Response:
    """What happens in a session: behind `after`, or `Last-Event-ID`, and on; with `Accept: application/json` a page."""
    head = await call.head()
    after = _after_of(call)
    if "application/json" in call.header("accept"):
        return await _page(call, after)
    if head.closed and after >= head.records:
        return Response(status_code=204)  # by which a browser's EventSource comes back no more
    reach = call.gateway.reach
    reading = SessionReading(
        journal=reach.journal,
        tails=call.gateway.tails,
        key=head.key,
        after=after,
        wanted=_wanted_of(call),
        along=_names_in(call.header(ALONG)) if ALONG in call.headers else None,
        shows_foreign=call.shows_foreign,
    )
    return StreamedEvents(reading.run, call.gateway.streams)


async def watch(call: HTTPCall) -> Response:
    """What changes in all sessions: a stream of `head`, `agent`, `approval`, `decision` and `error`, and `resync` after a gap."""
    gateway, kinds = call.gateway, call.query.get("watch", "heads").split(",")
    if not set(kinds) <= set(WATCHED):
        raise Problem("invalid", f"watch= is some of {', '.join(WATCHED)}, with commas between them")
    watching = Watching(
        reach=gateway.reach, caller=call.caller, kinds=frozenset(kinds), closing=gateway.closing
    )
    return StreamedEvents(watching.run, gateway.streams)


async def get_observations(call: HTTPCall) -> Response:
    """Intent, plan, thoughts, tools, answers and errors of a session: a stream, or with `Accept: application/json` a page."""
    head, after, runtime = await call.head(), _after_of(call), call.gateway.reach.runtime
    types, turn = _types_of(call), call.query.get("turn")
    if after > head.records:
        raise Problem(
            "conflict", f"the session has {counted(head.records, 'record')}: go on from there, or from 0"
        )
    if "application/json" not in call.header("accept"):
        if head.closed and after >= head.records:
            return Response(status_code=204)
        observing = Observing(
            runtime=runtime,
            key=head.key,
            after=after,
            types=types,
            turn=turn,
            closing=call.gateway.closing,
            shows_foreign=call.shows_foreign,
        )
        return StreamedEvents(observing.run, call.gateway.streams)
    limit = min(call.query.get("limit", 100), call.gateway.limits.page)
    found = await runtime.observations(
        head.session_id, agent=head.agent, types=types, turn=turn, after=after, limit=limit
    )
    following = found[-1].number if len(found) == limit else None
    return JSON(
        {"items": [of_observed(each, shows_foreign=call.shows_foreign) for each in found], "next": following}
    )


def _types_of(call: HTTPCall) -> list[ObservedType] | None:
    """The types that are wanted; None is all.

    Raises:
        Problem: one of them is none.
    """
    if "types" not in call.query:
        return None
    wanted = set(call.query["types"].split(","))
    found: list[ObservedType] = [each for each in get_args(ObservedType) if each in wanted]
    if len(found) < len(wanted):
        known = ", ".join(get_args(ObservedType))
        raise Problem("invalid", f"types= is some of {known}, with commas between them")
    return found


def _wanted_of(call: HTTPCall) -> frozenset[str] | None:
    """The names of the events that a client waits for; None is all."""
    return _names_in(call.header(WANTED)) or None


def _names_in(header: str) -> frozenset[str]:
    return frozenset(filter(None, map(str.strip, header.split(","))))


def _after_of(call: HTTPCall) -> int:
    """The number of the last record that the client has seen; a stream that is taken up again knows it better."""
    text = call.header("last-event-id")
    if not text:
        return int(call.query.get("after", 0))
    if not (text.isascii() and text.isdigit() and len(text) < 16):  # noqa: PLR2004 - below 2**53
        raise Problem("invalid", "last-event-id: is the id of an event of this session")
    return int(text)


async def _page(call: HTTPCall, after: int) -> Response:
    """Events of the next records; `cursor` is the number of the last record that was looked at."""
    reach, head = call.gateway.reach, await call.head()
    limit = min(call.query.get("limit", 100), call.gateway.limits.page)
    after = min(after, head.records)
    steps = await reach.journal.read_steps(head.session_id, agent=head.agent, after=after, limit=limit)
    teller = await teller_at(reach.journal, head.key, after, shows_foreign=call.shows_foreign)
    teller.is_whole = call.query.get("whole") == "true"
    told = [each for step in steps for each in teller.tell_all(step.first, step.records, step.at or 0.0)]
    cursor = steps[-1].last if steps else after
    items = [{"id": each.number, "event": each.name, "data": each.data} for each in told]
    return JSON({"items": items, "cursor": cursor, "next": cursor if cursor < head.records else None})


ENDPOINTS = (
    Endpoint(
        verb="GET",
        path="/sessions/{id}/events",
        answer=get_events,
        scope="read",
        query={"agent": AGENT, "after": NUMBER, "limit": LIMIT, "whole": WHOLE},
        statuses=(200, 204),
        headers={
            "Last-Event-ID": "The number of the last event that was seen.",
            "Actgent-Events": "Names of the events that are waited for, with commas; failed are those of ended that tell a "
            "failure. Others come along with the next of these, and what grows (token, growing, progress) only where it is "
            "one of them. Without, all are told at once.",
        },
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
                "description": f"Of {', '.join(get_args(ObservedType))}, with commas; all without.",
            },
            "turn": {"type": "string", "description": "Only those of this message's turn."},
            "after": NUMBER,
            "limit": LIMIT,
        },
        statuses=(200, 204),
        headers={"Last-Event-ID": "The number of the last observation that was seen."},
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
                "description": f"Of {', '.join(WATCHED)}, with commas; `heads` without.",
            }
        },
        streams=True,
    ),
)
