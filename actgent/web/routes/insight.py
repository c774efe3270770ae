"""How everything is, over HTTP: schedules and budgets of all sessions that the caller reaches, and provider limits."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import attrs
from starlette.responses import Response

from actgent.control.schedule import Schedule
from actgent.runtime.insight import OpenBudget, SetSchedule
from actgent.web.reach import from_cursor, to_parts_of

from .endpoints import JSON, Endpoint, HTTPCall
from .past import as_plain_json
from .schemas import AFTER, LIMIT
from .views import of_schedule

_LIST = {"after": AFTER, "limit": LIMIT}
Found = TypeVar("Found", SetSchedule, OpenBudget)


async def _visible(
    call: HTTPCall, after: Found | None, page: Callable[[Found | None, int], Awaitable[Sequence[Found]]]
) -> tuple[list[Found], bool]:
    """What the caller reaches of a list behind a place, and whether more may follow."""
    reach, limit = call.gateway.reach, min(call.query.get("limit", 100), call.gateway.limits.page)
    found: list[Found] = []
    while rows := await page(after, limit):
        for row in rows:
            head = await reach.journal.head(row.agent, row.session_id)
            if head is not None and await reach.sees(call.caller, head):
                found.append(row)
            if len(found) == limit:
                return found, True
        after = rows[-1]
    return found, False


async def list_all_schedules(call: HTTPCall) -> Response:
    """Schedules of all sessions, the next first."""
    after = None
    if "after" in call.query:
        at, agent, session_id, schedule_id = to_parts_of(call.query["after"], float, str, str, str)
        schedule = Schedule(id=schedule_id, description="", at=at)
        after = SetSchedule(agent=agent, session_id=session_id, schedule=schedule)
    runtime = call.gateway.reach.runtime
    found, is_more = await _visible(
        call, after, lambda place, limit: runtime.schedules(after=place, limit=limit)
    )
    items = [
        {"agent": each.agent, "session_id": each.session_id, **of_schedule(each.schedule)} for each in found
    ]
    return JSON({"items": items, "next": from_cursor(found[-1].place) if is_more else None})


async def list_budgets(call: HTTPCall) -> Response:
    """What sessions in memory, and their turns, may still take."""
    after = None
    if "after" in call.query:
        agent, session_id, turn = to_parts_of(call.query["after"], str, str, str)
        known: dict[str, Any] = {name: {} for name in ("limits", "spent", "reserved", "left")}
        after = OpenBudget(agent=agent, session_id=session_id, owner="", turn=turn, **known)
    runtime = call.gateway.reach.runtime

    async def page(place: OpenBudget | None, limit: int) -> Sequence[OpenBudget]:
        return runtime.budgets(after=place, limit=limit)

    found, is_more = await _visible(call, after, page)
    items = [as_plain_json(each) for each in found]
    return JSON({"items": items, "next": from_cursor(found[-1].place) if is_more else None})


async def list_governors(call: HTTPCall) -> Response:
    """What models pass before their providers: windows, who waits, limits and pauses."""
    return JSON(
        {"items": [attrs.asdict(door) for door in call.gateway.reach.runtime.governors()], "next": None}
    )


ENDPOINTS = (
    Endpoint(verb="GET", path="/schedules", answer=list_all_schedules, scope="read", query=_LIST),
    Endpoint(verb="GET", path="/budgets", answer=list_budgets, scope="read", query=_LIST),
    Endpoint(verb="GET", path="/governors", answer=list_governors, scope="read"),
)
