"""Keys of sessions, and filters, cursors and SQL queries for lists of sessions."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import attrs
from attrs.converters import optional

from actgent.support.attrs_class_repr import FieldRepr

from .session_tags_and_metadata import NO_SESSION_METADATA, sqlite_condition

State = Literal["idle", "working", "suspended", "closed"]
STATES: tuple[State, ...] = ("idle", "working", "suspended", "closed")
NO_COUNTS: dict[State, int] = dict.fromkeys(STATES, 0)


def state_of(is_closed: bool, is_suspended: bool, is_unfinished: bool) -> State:  # noqa: FBT001 - three facts
    """Return the state of a session. Closed takes precedence over suspended, suspended over working."""
    if is_closed:
        return "closed"
    if is_suspended:
        return "suspended"
    return "working" if is_unfinished else "idle"


def is_storable(text: str) -> bool:
    """Return True if SQLite and PostgreSQL can store the text: it has no NUL character and no lone surrogate."""
    return "\0" not in text and (text.isascii() or text.encode("utf-8", "replace").decode() == text)


UNUSED_NAME = "\nnobody\n"
"""Name that no agent, owner or session can have."""


def to_searchable(name: str) -> str:
    """Return a name unchanged for use in a query.

    If a database cannot store the name, return `UNUSED_NAME` instead, so that the query finds nothing.
    """
    return name if is_storable(name) else UNUSED_NAME


_LONGEST = 100
"""Maximum number of characters of agent name and id for a readable `scope`. Longer keys are hashed."""


class SessionKey(NamedTuple):
    """Key of a session: its agent and its id, which is unique for the agent."""

    agent: str
    session_id: str

    def searchable(self) -> "SessionKey":
        """Return the key for use in a query. Names that a database cannot store are replaced by `UNUSED_NAME`."""
        return SessionKey(to_searchable(self.agent), to_searchable(self.session_id))

    @property
    def scope(self) -> str:
        """Unique text for the session: `@agent/id`, or a digest if this text is ambiguous or longer than 102 characters.

        It is the prefix of ids that the session assigns: ids of its child sessions and idempotency keys of its tools.
        """
        agent, session_id = self
        is_plain = "/" not in agent and "/" not in session_id and not agent.startswith("~")
        if is_plain and len(agent) + len(session_id) <= _LONGEST:
            return f"@{agent}/{session_id}"
        known = f"{len(agent)}/{agent}/{session_id}".encode("utf-8", "surrogatepass")
        return f"@~{hashlib.blake2b(known, digest_size=16).hexdigest()}"


QUOTA_AGENT = "quotas\n"
"""Reserved agent name of quota accounts. It contains a newline, which names of real agents cannot contain."""
WEBHOOK_AGENT = "webhooks\n"
"""Reserved agent name of the sessions in which gateways record the progress of webhooks."""


def is_internal(session: Any) -> bool:
    """Return True if a session, given by its key or summary, is a quota account or the progress of a webhook.

    Such a session has no conversation.
    """
    return session.agent in (QUOTA_AGENT, WEBHOOK_AGENT)


class Cursor(NamedTuple):
    """Position of a session in lists by last change. Pages continue after it."""

    updated_at: float
    agent: str
    session_id: str

    def searchable(self) -> "Cursor":
        """Return the cursor for use in a query. Names that a database cannot store are replaced by `UNUSED_NAME`."""
        return Cursor(self.updated_at, to_searchable(self.agent), to_searchable(self.session_id))


@attrs.frozen(kw_only=True, repr=False)
class SessionFilter(FieldRepr):
    """Filter of session lists. A session must match all given fields. The newest change comes first."""

    agent: str | None = attrs.field(default=None, converter=optional(to_searchable))
    """Name of the session's agent; None matches all agents."""
    owner: str | None = attrs.field(default=None, converter=optional(to_searchable))
    """Name of the session's owner; None matches all owners."""
    state: State | None = None
    """Current state of the session; None matches all states."""
    parent: SessionKey | None = None
    """Key of the parent session: only its direct child sessions match. None matches all sessions."""
    root: SessionKey | None = None
    """Key of a root session: only its descendants match, at any depth. None matches all sessions."""
    roots: bool = False
    """True if only sessions without a parent session match."""
    prefix: str = attrs.field(default="", converter=to_searchable)
    """Prefix of the session's id or of its owner's name; empty matches all sessions."""
    changed_before: float | None = None
    """Unix time in seconds: only sessions with an earlier last change match. None matches all."""
    tags: tuple[str, ...] = ()
    """Only sessions with all these tags match."""
    metadata: Mapping[str, str] = NO_SESSION_METADATA
    """Only sessions with all these metadata values match."""
    oldest_first: bool = False
    """True if the result begins with the session whose last change is oldest."""

    def takes(self, session: Any) -> bool:
        """Return True if a `SessionSummary` matches all conditions of the filter."""
        given = (self.agent, self.owner, self.state, self.parent)
        known = (session.agent, session.owner, session.state, session.parent)
        is_below = self.root is None or (session.parent_id is not None and session.root == self.root)
        begins = session.session_id.startswith(self.prefix) or session.owner.startswith(self.prefix)
        is_old = self.changed_before is None or session.updated_at < self.changed_before
        is_top = not self.roots or session.parent_id is None
        fits = all(condition in (None, value) for condition, value in zip(given, known, strict=True))
        is_annotated = session.annotations.includes(self.tags, self.metadata)
        return fits and is_below and begins and is_old and is_top and is_annotated


ALL = SessionFilter()
_LAST = "\U0010ffff"
"""Greatest Unicode character. Appended to a prefix, it is an upper bound of all texts with the prefix."""
_ORDER = ("listing.changed_at", "listing.agent", "listing.session_id")
UNFINISHED_SQL = "length(pending) > 0 OR suspended OR (due > 0 AND NOT closed)"
"""SQL condition of sessions that have pending work; see `Head.is_retained`."""
STATE_SQL = (
    "CASE WHEN closed THEN 'closed' WHEN suspended THEN 'suspended' "
    "WHEN length(pending) > 0 THEN 'working' ELSE 'idle' END"
)
_LISTED = f"SELECT session_id, agent, owner, {STATE_SQL} AS state, updated_at AS changed_at FROM sessions"  # noqa: S608


def page_query(
    columns: Iterable[str], session_filter: SessionFilter, after: Cursor | None, limit: int
) -> tuple[str, list[Any]]:
    """Build the SQL query for a page of sessions.

    Return the SQL text with `?` placeholders, and the values for the placeholders.

    The page begins after the position `after`; None begins with the first session.
    """
    way, sign = ("ASC", ">") if session_filter.oldest_first else ("DESC", "<")
    conditions = _conditions(session_filter)
    if after is not None:
        conditions[f"({', '.join(_ORDER)}) {sign} (?, ?, ?)"] = tuple(after)
    names = ", ".join(f"sessions.{name}" for name in columns)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    order = ", ".join(f"{name} {way}" for name in _ORDER)
    sql = (
        f"SELECT {names} FROM listing JOIN sessions USING (session_id, agent){where} ORDER BY {order} LIMIT ?"  # noqa: S608 - names of our own
    )
    return sql, [*(value for values in conditions.values() for value in values), limit]


def unlisted_page_query(
    columns: Iterable[str], session_filter: SessionFilter, after: Cursor | None, limit: int
) -> tuple[str, list[Any]]:
    """Build the SQL query for a page of sessions like `page_query`, but from the table `sessions`.

    Read-only connections use it, because they cannot update the table `listing`.
    """
    sql, values = page_query(columns, session_filter, after, limit)
    return f"WITH listing AS ({_LISTED}) {sql}", values


def _conditions(session_filter: SessionFilter) -> dict[str, tuple[Any, ...]]:
    conditions: dict[str, tuple[Any, ...]] = {}
    for name in ("agent", "owner", "state"):
        if (value := getattr(session_filter, name)) is not None:
            conditions[f"listing.{name} = ?"] = (value,)
    if session_filter.parent is not None:
        conditions["parent_agent = ? AND parent_id = ?"] = session_filter.parent
    if session_filter.root is not None:
        conditions["parent_id IS NOT NULL AND root_agent = ? AND root_id = ?"] = session_filter.root
    if session_filter.roots:
        conditions["parent_id IS NULL"] = ()
    if session_filter.prefix:
        begins = "listing.{0} BETWEEN ? AND ?".format
        ends = (session_filter.prefix, session_filter.prefix + _LAST)
        conditions[f"({begins('session_id')} OR {begins('owner')})"] = ends * 2
    if session_filter.changed_before is not None:
        conditions["listing.changed_at < ?"] = (session_filter.changed_before,)
    if (
        annotated := sqlite_condition("sessions.annotations", session_filter.tags, session_filter.metadata)
    ) is not None:
        conditions[annotated[0]] = annotated[1]
    return conditions
