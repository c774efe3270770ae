"""Endpoints of the session index: full-text search over messages, and statistics by day, agent, model or owner."""

from typing import cast

import attrs

from actgent.session_index import SearchFilter, SearchHit, Trends
from actgent.session_index.search_and_trend_queries import MAX_QUERY_CHARS
from actgent.session_index.session_index import GROUPS
from actgent.web import json_response_types
from actgent.web.access_control import annotations_in, owner_in

from .common_request_schemas import AFTER, AMOUNT, ANNOTATION_FILTERS, DATE, LIMIT, STATE, TEXT, date_in
from .endpoints import JSON, Endpoint, HTTPCall
from .json_serializers import as_document, to_date

DEFAULT_HITS = 20
"""Number of hits on a page if the request names no limit."""
_NAMED = ("agent", "role", "min_cost", "max_cost", "min_seconds", "max_seconds")
"""Query parameters that are fields of `SearchFilter`."""
_SEARCH = {
    "q": {
        "type": "string",
        "maxLength": MAX_QUERY_CHARS,
        "description": 'Words that a message must contain. "Quotes" hold a phrase, * ends a prefix, - excludes a word. Without words, all messages match.',
    },
    "agent": TEXT,
    "owner": TEXT,
    "role": {"type": "string", "enum": ["user", "assistant"]},
    "status": STATE,
    "since": DATE,
    "until": DATE,
    "min_cost": {**AMOUNT, "description": "Cost of the session in US dollars."},
    "max_cost": {**AMOUNT, "description": "Cost of the session in US dollars."},
    "min_seconds": {**AMOUNT, "description": "Duration of all turns of the session."},
    "max_seconds": {**AMOUNT, "description": "Duration of all turns of the session."},
    "has_errors": {"type": "string", "enum": ["true", "false"]},
    **ANNOTATION_FILTERS,
    "after": AFTER,
    "limit": LIMIT,
}
_TRENDS = {
    "by": {"type": "string", "enum": list(GROUPS)},
    "agent": TEXT,
    "owner": TEXT,
    "model": TEXT,
    "since": DATE,
    "until": DATE,
}


async def find_messages(call: HTTPCall) -> JSON[json_response_types.FoundPage]:
    """Find messages that contain the searched words and match the filters, the newest first. The server needs the option `--index`."""
    query, gateway = call.query, call.gateway
    has_errors = query.get("has_errors")
    tags, metadata = annotations_in(query)
    filters = SearchFilter(
        owner=owner_in(call.caller, query),
        since=date_in(query, "since"),
        until=date_in(query, "until"),
        has_errors=None if has_errors is None else has_errors == "true",
        state=query.get("status"),
        tags=tags,
        metadata=metadata,
        **{name: query[name] for name in _NAMED if name in query},
    )
    limit = min(query.get("limit", DEFAULT_HITS), gateway.limits.page)
    page = await gateway.access.runtime.search(
        query.get("q", ""), filters, after=query.get("after"), limit=limit
    )
    items = [_of_hit(hit) for hit in page.hits if await _may_access(call, hit)]
    return JSON({"items": items, "next": page.following, "is_complete": page.is_complete})


async def _may_access(call: HTTPCall, hit: SearchHit) -> bool:
    """Return True if the session of a search hit still exists and the caller may access the session.

    The index may contain messages of erased sessions.
    """
    access = call.gateway.access
    head = access.journal.cached_head(hit.agent, hit.session_id) or await access.journal.head(
        hit.agent, hit.session_id
    )
    return head is not None and await access.may_access(call.caller, head)


def _of_hit(hit: SearchHit) -> json_response_types.FoundMessage:
    return cast("json_response_types.FoundMessage", {**attrs.asdict(hit), "at": to_date(hit.at)})


async def get_trends(call: HTTPCall) -> JSON[Trends]:
    """Get cost, tokens, turns, durations, errors and tool failures by day, agent, model or owner.

    Without the scope `admin`, only the sessions of the caller's owner count. The server needs the option `--index`.
    """
    query = call.query
    found = await call.gateway.access.runtime.trends(
        query.get("by", "day"),
        since=date_in(query, "since"),
        until=date_in(query, "until"),
        owner=owner_in(call.caller, query),
        agent=query.get("agent"),
        model=query.get("model"),
    )
    return JSON(as_document(found))


ENDPOINTS = (
    Endpoint(verb="GET", path="/search", answer=find_messages, scope="read", query=_SEARCH),
    Endpoint(verb="GET", path="/trends", answer=get_trends, scope="read", query=_TRENDS),
)
