"""Conversion of searches and statistics to query parameters, and of JSON responses to values."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from actgent.session_index import Group, SearchFilter, SearchHit, SearchPage, Trend, Trends

from .json_conversion import to_seconds
from .request_bodies import annotation_query

_PLAIN = ("agent", "owner", "role", "min_cost", "max_cost", "min_seconds", "max_seconds")
"""Fields of a filter that are query parameters of the same name and value."""


def search_query(query: str, search_filter: SearchFilter, after: str | None, limit: int) -> dict[str, Any]:
    """Return the query parameters of a request that searches messages."""
    given = {
        "q": query,
        **{name: getattr(search_filter, name) for name in _PLAIN},
        "status": search_filter.state,
        "since": format_date(search_filter.since),
        "until": format_date(search_filter.until),
        "has_errors": None if search_filter.has_errors is None else str(search_filter.has_errors).lower(),
        "after": after,
        "limit": limit,
        **annotation_query(search_filter.tags, search_filter.metadata),
    }
    return {name: value for name, value in given.items() if value is not None}


def to_search_page(page: Mapping[str, Any]) -> SearchPage:
    """Convert the JSON of found messages to a `SearchPage`."""
    return SearchPage(
        hits=tuple(map(_to_hit, page["items"])), following=page["next"], is_complete=page["is_complete"]
    )


def _to_hit(item: Mapping[str, Any]) -> SearchHit:
    marks = tuple((start, stop) for start, stop in item["marks"])
    return SearchHit(**{**item, "at": to_seconds(item["at"]), "marks": marks})


def trends_query(
    by: Group, *, since: float | None, until: float | None, **names: str | None
) -> dict[str, Any]:
    """Return the query parameters of a request for statistics. Values of None are left out."""
    given = {"by": by, "since": format_date(since), "until": format_date(until), **names}
    return {name: value for name, value in given.items() if value is not None}


def to_trends(data: Mapping[str, Any]) -> Trends:
    """Convert the JSON of statistics to `Trends`."""
    return Trends(
        items=tuple(map(_to_trend, data["items"])),
        total=_to_trend(data["total"]),
        is_complete=data["is_complete"],
    )


def _to_trend(item: Mapping[str, Any]) -> Trend:
    known = {field.name for field in attrs.fields(Trend)}
    return Trend(**{name: value for name, value in item.items() if name in known})


def format_date(seconds: float | None) -> str | None:
    """Convert a Unix time in seconds to an RFC 3339 date; None stays None."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
