"""What names a session in a journal, and how sessions are listed page by page."""

import hashlib
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import attrs
from attrs.converters import optional

State = Literal["idle", "working", "suspended", "closed"]
STATES: tuple[State, ...] = ("idle", "working", "suspended", "closed")
NO_COUNTS: dict[State, int] = dict.fromkeys(STATES, 0)


def state_of(is_closed: bool, is_suspended: bool, is_unfinished: bool) -> State:  # noqa: FBT001 - three facts
    """The state of a session, in one word."""
    if is_closed:
        return "closed"
    if is_suspended:
        return "suspended"
    return "working" if is_unfinished else "idle"


def is_storable(text: str) -> bool:
    """Return True if databases keep a text as it is: it has no NUL, and no half of a surrogate pair."""
    return "\0" not in text and (text.isascii() or text.encode("utf-8", "replace").decode() == text)


NOBODY = "\nnobody\n"
"""No agent, owner or session has this name."""


def to_findable(name: str) -> str:
    """A name as databases can look for it: one that they cannot hold is that of nobody."""
    return name if is_storable(name) else NOBODY


_LONGEST = 100
"""Characters of an agent's name and an id together that stand in a scope as they are."""


class SessionKey(NamedTuple):
    """What names a session: an id is unique for its agent."""

    agent: str
    session_id: str

    def findable(self) -> "SessionKey":
        """The same as databases can look for it."""
        return SessionKey(to_findable(self.agent), to_findable(self.session_id))

    @property
    def scope(self) -> str:
        """A text of at most 102 characters that is one session's alone: readable, or a digest where that would be ambiguous.

        With it begin the ids that a session gives to others: to sessions that it opens, and to what its tools do outside.
        """
        agent, session_id = self
        is_plain = "/" not in agent and "/" not in session_id and not agent.startswith("~")
        if is_plain and len(agent) + len(session_id) <= _LONGEST:
            return f"@{agent}/{session_id}"
        known = f"{len(agent)}/{agent}/{session_id}".encode("utf-8", "surrogatepass")
        return f"@~{hashlib.blake2b(known, digest_size=16).hexdigest()}"


class Cursor(NamedTuple):
    """Where a session stands among others that are listed by their last change; goes on behind it."""

    updated_at: float
    agent: str
    session_id: str

    def findable(self) -> "Cursor":
        """The same as databases can look for it."""
        return Cursor(self.updated_at, to_findable(self.agent), to_findable(self.session_id))


@attrs.frozen(kw_only=True)
class SessionFilter:
    """Which sessions are listed: all that fit what is given. They come by their last change, the newest first."""

    agent: str | None = attrs.field(default=None, converter=optional(to_findable))
    """The name of their agent; None: of all, as in the fields below."""
    owner: str | None = attrs.field(default=None, converter=optional(to_findable))
    """A name."""
    state: State | None = None
    """What they do just now."""
    parent: SessionKey | None = None
    """Its children alone."""
    root: SessionKey | None = None
    """What stands below it alone, at any depth."""
    roots: bool = False
    """Only those that stand below no other."""
    prefix: str = attrs.field(default="", converter=to_findable)
    """How the id or the owner begins."""
    changed_before: float | None = None
    """Unix time in seconds."""
    oldest_first: bool = False
    """True: those that changed longest ago come first."""

    def takes(self, session: Any) -> bool:
        """Return True if a `SessionSummary` fits."""
        given = (self.agent, self.owner, self.state, self.parent)
        known = (session.agent, session.owner, session.state, session.parent)
        is_below = self.root is None or (session.parent_id is not None and session.root == self.root)
        begins = session.session_id.startswith(self.prefix) or session.owner.startswith(self.prefix)
        is_old = self.changed_before is None or session.updated_at < self.changed_before
        is_top = not self.roots or session.parent_id is None
        fits = all(wanted in (None, value) for wanted, value in zip(given, known, strict=True))
        return fits and is_below and begins and is_old and is_top


ALL = SessionFilter()
_LAST = "\U0010ffff"
"""Behind every character of an id."""
_ORDER = ("listing.changed_at", "listing.agent", "listing.session_id")
KEPT_SQL = "length(pending) > 0 OR suspended OR (due > 0 AND NOT closed)"
"""True if something in a session is still to come; see `Head.is_kept`."""
STATE_SQL = (
    "CASE WHEN closed THEN 'closed' WHEN suspended THEN 'suspended' "
    "WHEN length(pending) > 0 THEN 'working' ELSE 'idle' END"
)
_LISTED = f"SELECT session_id, agent, owner, {STATE_SQL} AS state, updated_at AS changed_at FROM sessions"  # noqa: S608


def page_query(
    columns: Iterable[str], wanted: SessionFilter, after: Cursor | None, limit: int
) -> tuple[str, list[Any]]:
    """The SQL of a page, with `?` for its values, and these."""
    way, sign = ("ASC", ">") if wanted.oldest_first else ("DESC", "<")
    conditions = _conditions(wanted)
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
    columns: Iterable[str], wanted: SessionFilter, after: Cursor | None, limit: int
) -> tuple[str, list[Any]]:
    """The same from the sessions themselves, for readers that may not bring `listing` up to date."""
    sql, values = page_query(columns, wanted, after, limit)
    return f"WITH listing AS ({_LISTED}) {sql}", values


def _conditions(wanted: SessionFilter) -> dict[str, tuple[Any, ...]]:
    conditions: dict[str, tuple[Any, ...]] = {}
    for name in ("agent", "owner", "state"):
        if (value := getattr(wanted, name)) is not None:
            conditions[f"listing.{name} = ?"] = (value,)
    if wanted.parent is not None:
        conditions["parent_agent = ? AND parent_id = ?"] = wanted.parent
    if wanted.root is not None:
        conditions["parent_id IS NOT NULL AND root_agent = ? AND root_id = ?"] = wanted.root
    if wanted.roots:
        conditions["parent_id IS NULL"] = ()
    if wanted.prefix:
        begins = "listing.{0} BETWEEN ? AND ?".format
        ends = (wanted.prefix, wanted.prefix + _LAST)
        conditions[f"({begins('session_id')} OR {begins('owner')})"] = ends * 2
    if wanted.changed_before is not None:
        conditions["listing.changed_at < ?"] = (wanted.changed_before,)
    return conditions
