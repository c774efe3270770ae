"""Endpoints of schedules, budgets and errors in all sessions that the caller may access, and of provider limits."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import attrs

from actgent.events import MessageFailed, ToolFailed
from actgent.journal.session_list_queries import SessionKey
from actgent.limits_and_schedules.schedule import Schedule
from actgent.llm.rate_limiter_statistics import RateLimiterStatistics
from actgent.runtime.introspection import OpenBudget, SetSchedule
from actgent.web import json_response_types
from actgent.web.access_control import encode_cursor, parse_cursor

from .common_request_schemas import AFTER, LIMIT
from .endpoints import JSON, Endpoint, HTTPCall
from .json_serializers import as_document, hidden_error_text, of_schedule, to_date
from .records_forks_and_replays import as_plain_json

MAX_NAMES = 20
"""Maximum number of agents, tools and sessions listed for each kind of error, the newest first."""
_LIST = {"after": AFTER, "limit": LIMIT}
Found = TypeVar("Found", SetSchedule, OpenBudget)


async def _visible_page(
    call: HTTPCall, after: Found | None, page: Callable[[Found | None, int], Awaitable[Sequence[Found]]]
) -> tuple[list[Found], bool]:
    """Return a page of the items whose sessions the caller may access, and True if more items may follow.

    Args:
        call: List request with the maximum number of items.
        after: Last item of the previous page; None for the first page.
        page: Reads up to a number of items after an item, of all sessions.
    """
    access, limit = call.gateway.access, min(call.query.get("limit", 100), call.gateway.limits.page)
    found: list[Found] = []
    while rows := await page(after, limit):
        for row in rows:
            head = await access.journal.head(row.agent, row.session_id)
            if head is not None and await access.may_access(call.caller, head):
                found.append(row)
            if len(found) == limit:
                return found, True
        after = rows[-1]
    return found, False


async def list_all_schedules(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.SessionSchedule]]:
    """List the schedules of all sessions that the caller may access, ordered by due time."""
    after = None
    if "after" in call.query:
        at, agent, session_id, schedule_id = parse_cursor(call.query["after"], float, str, str, str)
        schedule = Schedule(id=schedule_id, description="", at=at)
        after = SetSchedule(agent=agent, session_id=session_id, schedule=schedule)
    runtime = call.gateway.access.runtime
    found, is_more = await _visible_page(
        call, after, lambda place, limit: runtime.schedules(after=place, limit=limit)
    )
    items: list[json_response_types.SessionSchedule] = [
        {"agent": each.agent, "session_id": each.session_id, **of_schedule(each.schedule)} for each in found
    ]
    return JSON({"items": items, "next": encode_cursor(found[-1].sort_key) if is_more else None})


async def list_budgets(call: HTTPCall) -> JSON[json_response_types.PageDocument[OpenBudget]]:
    """List the remaining budgets of sessions in memory and of their running turns."""
    after = None
    if "after" in call.query:
        agent, session_id, turn = parse_cursor(call.query["after"], str, str, str)
        known: dict[str, Any] = {name: {} for name in ("limits", "spent", "reserved", "left")}
        after = OpenBudget(agent=agent, session_id=session_id, owner="", turn=turn, **known)
    runtime = call.gateway.access.runtime

    async def page(place: OpenBudget | None, limit: int) -> Sequence[OpenBudget]:
        return runtime.budgets(after=place, limit=limit)

    found, is_more = await _visible_page(call, after, page)
    items = [as_plain_json(each) for each in found]
    return JSON({"items": items, "next": encode_cursor(found[-1].sort_key) if is_more else None})


async def list_rate_limiters(call: HTTPCall) -> JSON[json_response_types.PageDocument[RateLimiterStatistics]]:
    """List the rate limiters of model providers: concurrency limits, waiting calls, provider limits and pauses."""
    found = call.gateway.access.runtime.rate_limiters()
    return JSON({"items": [as_document(each) for each in found], "next": None})


async def list_errors(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.ErrorGroup]]:
    """List errors grouped by kind and exception class, the newest first, including errors from before a restart.

    Only admins get groups of dead letters.
    """
    runtime, totals = call.gateway.access.runtime, call.gateway.metrics.journal_totals
    await call.gateway.metrics.wait_past()
    stream = runtime.stream
    messages = totals.failures | {
        (each.agent, each.session_id, each.message_id): each for each in stream.failures
    }
    calls = totals.tool_failures | {
        (each.agent, each.session_id, each.call_id): each for each in stream.tool_failures
    }
    groups: dict[tuple[str, str], _ErrorGroup] = {}
    for failed in await _visible_failures(call, [*messages.values(), *calls.values()]):
        key = SessionKey(failed.agent, failed.session_id)
        if isinstance(failed, ToolFailed):
            words = hidden_error_text(failed.raised) if failed.raised else failed.error_text
            group = _group_of(groups, "tool", failed.raised or "ToolError", failed.at)
            group.add(
                failed.at,
                words,
                failed.agent,
                key,
                cause=failed.error_text if failed.raised else "",
                tool=failed.tool_name,
            )
        else:
            group = _group_of(groups, failed.kind, failed.error, failed.at)
            group.add(failed.at, failed.error_text, failed.agent, key, cause=failed.cause)
    for letter in runtime.dead_letters if call.caller.is_admin else ():
        error = "" if letter.error is None else type(letter.error).__name__
        _group_of(groups, "dead letter", error, letter.at).add(letter.at, letter.reason, letter.actor)
    newest_first = sorted(groups.values(), key=lambda group: group.last_at, reverse=True)
    items = [group.document(shows_exception_texts=call.shows_exception_texts) for group in newest_first]
    return JSON({"items": items, "next": None})


async def _visible_failures(
    call: HTTPCall, failures: Sequence[MessageFailed | ToolFailed]
) -> list[MessageFailed | ToolFailed]:
    """Return the failures in existing sessions that the caller may access, the oldest first.

    `failures` may be in any order.
    """
    access = call.gateway.access
    seen: dict[tuple[str, str], bool] = {}
    for agent, session_id in {(each.agent, each.session_id) for each in failures}:
        head = await access.journal.head(agent, session_id)
        seen[agent, session_id] = head is not None and await access.may_access(call.caller, head)
    found = [each for each in failures if seen[each.agent, each.session_id]]
    return sorted(found, key=lambda each: each.at)


def _group_of(
    groups: "dict[tuple[str, str], _ErrorGroup]", kind: str, error: str, at: float
) -> "_ErrorGroup":
    """Return the group of a failure kind and exception class. A missing group is created, with `at` as time of its first error."""
    return groups.setdefault((kind, error), _ErrorGroup(kind, error, first_at=at))


@attrs.define
class _ErrorGroup:
    """Group of the errors of one failure kind and exception class."""

    kind: str
    error: str
    """Name of the exception class of the errors."""
    first_at: float
    last_at: float = 0.0
    count: int = 0
    message: str = ""
    """Message of the newest error."""
    cause: str = ""
    """Message of the exception that caused the newest error; empty if it has no cause."""
    agents: dict[str, None] = attrs.field(factory=dict)
    tools: dict[str, None] = attrs.field(factory=dict)
    sessions: dict[SessionKey, None] = attrs.field(factory=dict)

    def add(
        self,
        at: float,
        message: str,
        agent: str,
        session: SessionKey | None = None,
        *,
        cause: str = "",
        tool: str = "",
    ) -> None:
        """Add an error to the group, as its newest error.

        `at` is the Unix time of the error in seconds, `message` its message, and `cause` the message of its cause.
        """
        self.count, self.last_at, self.message, self.cause = self.count + 1, at, message, cause
        self.agents.pop(agent, None)
        self.agents[agent] = None
        if tool:
            self.tools.pop(tool, None)
            self.tools[tool] = None
        if session is not None:
            self.sessions.pop(session, None)
            self.sessions[session] = None

    def document(self, *, shows_exception_texts: bool) -> json_response_types.ErrorGroup:
        """Return the group as JSON. `shows_exception_texts=True` includes `cause`, which may be a message of user code's exception."""
        document: json_response_types.ErrorGroup = {
            "kind": self.kind,
            "error": self.error,
            "text": self.message,
            "count": self.count,
            "first_at": to_date(self.first_at),
            "last_at": to_date(self.last_at),
            "agents": list(self.agents)[: -MAX_NAMES - 1 : -1],
            "tools": list(self.tools)[: -MAX_NAMES - 1 : -1],
            "sessions": [
                {"agent": key.agent, "id": key.session_id}
                for key in list(self.sessions)[: -MAX_NAMES - 1 : -1]
            ],
        }
        if shows_exception_texts:
            document["cause"] = self.cause
        return document


ENDPOINTS = (
    Endpoint(verb="GET", path="/errors", answer=list_errors, scope="read"),
    Endpoint(verb="GET", path="/schedules", answer=list_all_schedules, scope="read", query=_LIST),
    Endpoint(verb="GET", path="/budgets", answer=list_budgets, scope="read", query=_LIST),
    Endpoint(verb="GET", path="/rate-limiters", answer=list_rate_limiters, scope="read"),
)
