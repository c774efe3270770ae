"""How everything is, over HTTP: schedules, budgets and errors of all sessions that the caller reaches, and provider limits."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import attrs
from starlette.responses import Response

from actgent.control.schedule import Schedule
from actgent.events import MessageFailed
from actgent.journal.listing import SessionKey
from actgent.runtime.insight import OpenBudget, SetSchedule
from actgent.web.reach import from_cursor, to_parts_of

from .endpoints import JSON, Endpoint, HTTPCall
from .past import as_plain_json
from .schemas import AFTER, LIMIT
from .views import of_schedule, to_date

SHOWN = 20
"""Agents and sessions that are named of each kind of error, the newest."""
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


async def list_errors(call: HTTPCall) -> Response:
    """What went wrong since the runtime began, by kind and class, the newest first; dead letters for admins alone."""
    runtime = call.gateway.reach.runtime
    groups: dict[tuple[str, str], _ErrorGroup] = {}
    for failure in await _visible_failures(call):
        group = _group_of(groups, failure.kind, failure.error, failure.at)
        key = SessionKey(failure.agent, failure.session_id)
        group.add(failure.at, failure.words, failure.agent, key, cause=failure.cause)
    for letter in runtime.dead_letters if call.caller.is_admin else ():
        error = "" if letter.error is None else type(letter.error).__name__
        _group_of(groups, "dead letter", error, letter.at).add(letter.at, letter.reason, letter.actor)
    newest_first = sorted(groups.values(), key=lambda group: group.last_at, reverse=True)
    return JSON(
        {"items": [group.document(shows_foreign=call.shows_foreign) for group in newest_first], "next": None}
    )


async def _visible_failures(call: HTTPCall) -> list[MessageFailed]:
    """What failed in sessions that the caller reaches, and that are there still."""
    reach, failures = call.gateway.reach, call.gateway.reach.runtime.failures
    seen: dict[tuple[str, str], bool] = {}
    for agent, session_id in {(each.agent, each.session_id) for each in failures}:
        head = await reach.journal.head(agent, session_id)
        seen[agent, session_id] = head is not None and await reach.sees(call.caller, head)
    return [each for each in failures if seen[each.agent, each.session_id]]


def _group_of(
    groups: "dict[tuple[str, str], _ErrorGroup]", kind: str, error: str, at: float
) -> "_ErrorGroup":
    """The group of a kind and class, which begins now if there was none."""
    return groups.setdefault((kind, error), _ErrorGroup(kind, error, first_at=at))


@attrs.define
class _ErrorGroup:
    """What went wrong in the same way."""

    kind: str
    error: str
    """The class of the exception."""
    first_at: float
    last_at: float = 0.0
    count: int = 0
    words: str = ""
    """Of the newest."""
    cause: str = ""
    """Of the newest."""
    agents: dict[str, None] = attrs.field(factory=dict)
    sessions: dict[SessionKey, None] = attrs.field(factory=dict)

    def add(
        self, at: float, words: str, agent: str, session: SessionKey | None = None, *, cause: str = ""
    ) -> None:
        """Count one more, which is the newest."""
        self.count, self.last_at, self.words, self.cause = self.count + 1, at, words, cause
        self.agents.pop(agent, None)
        self.agents[agent] = None
        if session is not None:
            self.sessions.pop(session, None)
            self.sessions[session] = None

    def document(self, *, shows_foreign: bool) -> dict[str, Any]:
        """The group for a client; `cause` only where its scope shows the words of exceptions that are not ours."""
        return {
            **({"cause": self.cause} if shows_foreign else {}),
            "kind": self.kind,
            "error": self.error,
            "words": self.words,
            "count": self.count,
            "first_at": to_date(self.first_at),
            "last_at": to_date(self.last_at),
            "agents": list(self.agents)[: -SHOWN - 1 : -1],
            "sessions": [
                {"agent": key.agent, "id": key.session_id} for key in list(self.sessions)[: -SHOWN - 1 : -1]
            ],
        }


ENDPOINTS = (
    Endpoint(verb="GET", path="/errors", answer=list_errors, scope="read"),
    Endpoint(verb="GET", path="/schedules", answer=list_all_schedules, scope="read", query=_LIST),
    Endpoint(verb="GET", path="/budgets", answer=list_budgets, scope="read", query=_LIST),
    Endpoint(verb="GET", path="/governors", answer=list_governors, scope="read"),
)
