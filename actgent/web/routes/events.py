"""The events of a session over HTTP: as a stream that goes on, or as a page."""

from starlette.responses import Response

from actgent.web.problems import Problem
from actgent.web.streaming.happenings import teller_at
from actgent.web.streaming.streams import StreamedEvents
from actgent.web.streaming.tails import SessionReading
from actgent.web.streaming.watching import WATCHED, Watching

from .endpoints import JSON, Endpoint, HTTPCall
from .schemas import AGENT, LIMIT, NUMBER

_LAST = 2**53


async def get_events(call: HTTPCall) -> Response:
    """What happens in a session: behind `after`, or `Last-Event-ID`, and on; with `Accept: application/json` a page."""
    head = await call.head()
    after = _after_of(call)
    if "application/json" in call.header("accept"):
        return await _page(call, after)
    if head.closed and after >= head.records:
        return Response(status_code=204)  # by which a browser's EventSource comes back no more
    reach = call.gateway.reach
    reading = SessionReading(journal=reach.journal, tails=call.gateway.tails, key=head.key, after=after)
    return StreamedEvents(reading.run)


async def watch(call: HTTPCall) -> Response:
    """What changes in all sessions: a stream of `head`, `agent`, `approval`, `decision` and `error`, and `resync` after a gap."""
    gateway, kinds = call.gateway, call.query.get("watch", "heads").split(",")
    if not set(kinds) <= set(WATCHED):
        raise Problem("invalid", f"watch= is some of {', '.join(WATCHED)}, with commas between them")
    watching = Watching(
        reach=gateway.reach, caller=call.caller, kinds=frozenset(kinds), closing=gateway.closing
    )
    return StreamedEvents(watching.run)


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
    teller = await teller_at(reach.journal, head.key, after)
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
        query={"agent": AGENT, "after": NUMBER, "limit": LIMIT},
        statuses=(200, 204),
        headers={"Last-Event-ID": "The number of the last event that was seen."},
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
