"""Pages of sessions in PostgreSQL, ordered by the last change without an index on that time.

An index on `updated_at` would change with every batch and would make each update of a session write to all indexes. So
the indexes have the minute of the last change, `updated_minute`, which changes at most once a minute. A page reads
the index by minutes and sorts the sessions of each minute by their exact time.
"""

from collections.abc import Iterable
from typing import Any

from actgent.journal.session_list_queries import Cursor, SessionFilter
from actgent.journal.session_tags_and_metadata import postgres_condition

SECONDS = 60
"""Length in seconds of the time unit of the column `updated_minute`."""
_LAST = "\U0010ffff"
"""Text that sorts after every character of an id."""
_ORDER = ("updated_at", "agent", "session_id")
_STATES = {
    "closed": "closed",
    "suspended": "suspended AND NOT closed",
    "working": "active AND length(pending) > 0 AND NOT suspended AND NOT closed",
    "idle": "length(pending) = 0 AND NOT suspended AND NOT closed",
}
"""SQL condition for each state of `state_of`, worded so that partial indexes can be used."""
MINUTE_OF = f"floor({{0}} / {SECONDS})"
"""SQL expression that returns the minute of a time."""
OWNER_LENGTH = 256
"""Number of characters of an owner's name in indexes, whose entries are limited to 2,700 bytes."""
OWNER_KEY = f"left(owner, {OWNER_LENGTH})"
"""SQL expression of the owner's name as it is stored in indexes."""


def session_page_query(
    columns: Iterable[str], session_filter: SessionFilter, after: Cursor | None, limit: int
) -> tuple[str, list[Any]]:
    """Return the SQL of a session page, with `%s` placeholders, and the values for them.

    Args:
        columns: Names of the columns to read.
        session_filter: Conditions that the sessions must meet, and their order.
        after: Position after which the page begins; None begins with the first session.
        limit: Maximum number of sessions.
    """
    conditions = _conditions(session_filter)
    direction, sign = ("ASC", ">") if session_filter.oldest_first else ("DESC", "<")
    if after is not None:
        conditions.append((f"updated_minute {sign}= {MINUTE_OF.format('%s')}", (after.updated_at,)))
        conditions.append((f"({', '.join(_ORDER)}) {sign} (%s, %s, %s)", tuple(after)))
    where = f" WHERE {' AND '.join(text for text, _ in conditions)}" if conditions else ""
    order = ", ".join(f"{name} {direction}" for name in ("updated_minute", *_ORDER))
    sql = f"SELECT {', '.join(columns)} FROM sessions{where} ORDER BY {order} LIMIT %s"  # noqa: S608 - names of our own
    return sql, [*(value for _, values in conditions for value in values), limit]


def _conditions(session_filter: SessionFilter) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the SQL conditions of a filter, each with its values."""
    found: list[tuple[str, tuple[Any, ...]]] = []
    if session_filter.agent is not None:
        found.append(("agent = %s", (session_filter.agent,)))
    if session_filter.owner is not None:
        found.append(
            (f"{OWNER_KEY} = %s AND owner = %s", (session_filter.owner[:OWNER_LENGTH], session_filter.owner))
        )
    if session_filter.state is not None:
        found.append((_STATES[session_filter.state], ()))
    if session_filter.parent is not None:
        found.append(("parent_agent = %s AND parent_id = %s", tuple(session_filter.parent)))
    if session_filter.root is not None:
        found.append(
            ("parent_id IS NOT NULL AND root_agent = %s AND root_id = %s", tuple(session_filter.root))
        )
    if session_filter.roots:
        found.append(("parent_id IS NULL", ()))
    if session_filter.prefix:
        ends = (session_filter.prefix, session_filter.prefix + _LAST)
        owner = OWNER_KEY if len(session_filter.prefix) < OWNER_LENGTH else "owner"
        found.append((f"(session_id BETWEEN %s AND %s OR {owner} BETWEEN %s AND %s)", ends * 2))
    if session_filter.changed_before is not None:
        minute = f"updated_minute <= {MINUTE_OF.format('%s')}"
        found.append(
            (f"{minute} AND updated_at < %s", (session_filter.changed_before, session_filter.changed_before))
        )
    if (
        annotated := postgres_condition("annotations", session_filter.tags, session_filter.metadata)
    ) is not None:
        found.append(annotated)
    return found
