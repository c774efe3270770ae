"""Access control of sessions: a caller may access the sessions of its owner and their child sessions; an admin all sessions.

A child session has the owner of the root of its tree. Requests for another owner's session get the same error as requests for
an unknown session, after the same journal reads, so that neither text nor timing shows whether the session exists.
"""

import base64
import binascii
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import attrs
import orjson

from actgent.actors.inbox import InboxStatistics
from actgent.agents.session import Session, session_of_context
from actgent.approvals import Approval
from actgent.errors import ConfigurationError, NotRunning
from actgent.journal.journal_interface import Journal, SessionSummary
from actgent.journal.session_list_queries import Cursor, SessionFilter, SessionKey, is_internal
from actgent.journal.session_tags_and_metadata import check_session_metadata, check_tags
from actgent.messages import Priority, message_bytes
from actgent.runtime.approval_decisions import approvals_of
from actgent.runtime.introspection import AgentStatistics
from actgent.runtime.runtime import Runtime
from actgent.runtime.sessions.session_opener import SessionOpener

from .access_tokens import Caller
from .problem_documents import Problem, missing

_SUSPENDED = SessionFilter(state="suspended")


@attrs.frozen(kw_only=True)
class ListPage:
    """One page of a list of sessions, with the cursor of the next page."""

    items: Sequence[Any]
    following: str | None
    """Cursor of the next page; None on the last page."""


@attrs.frozen
class AccessFilter:
    """Finds and lists the sessions of a runtime that a caller may access."""

    runtime: Runtime
    journal: Journal

    async def head(self, caller: Caller, session_id: str, agent: str | None = None) -> SessionSummary:
        """Return the summary of a session, if the caller may access the session.

        `agent` is the name of the session's agent. None is allowed if only one agent has a session with this id.

        Raises:
            Problem: The session does not exist, belongs to another owner, or several agents have a session with this id.
        """
        journal = self.journal
        # An unknown id costs the same journal read as a known id, so the time reveals nothing.
        agents = [agent] if agent is not None else await journal.agents_with_session(session_id) or [""]
        heads = []
        for name in agents:
            head = journal.cached_head(name, session_id) or await journal.head(name, session_id)
            if head is not None and not is_internal(head) and await self.may_access(caller, head):
                heads.append(head)
        if not heads:
            raise missing()
        if len(heads) > 1:
            agents = sorted(head.agent for head in heads)
            raise Problem(
                "ambiguous", "several agents have a session with this id: add ?agent=NAME", agents=agents
            )
        return heads[0]

    async def may_access(self, caller: Caller, head: SessionSummary) -> bool:
        """Return True if the caller may access a session: its root session has the caller's owner, or the caller is an admin."""
        if head.parent_id is None:
            return caller.is_admin or head.owner == caller.owner
        root = await self.journal.head(*head.root)
        return caller.is_admin or (root is not None and root.owner == caller.owner)

    async def session(self, caller: Caller, session_id: str, agent: str | None = None) -> Session:
        """Open a session, if the caller may access it.

        `agent` is the name of the session's agent. None is allowed if only one agent has a session with this id.

        Raises:
            Problem: The session does not exist, belongs to another owner, or several agents have a session with this id.
            SessionClosed: The session was closed.
            NotRunning: The agent of the session is not running.
        """
        return await self.open_session(await self.head(caller, session_id, agent))

    async def open_session(self, head: SessionSummary) -> Session:
        """Open the session that a summary describes, without an access check.

        Raises:
            SessionClosed: The session was closed.
            NotRunning: The agent of the session is not running.
        """
        opener = self.runtime.agents.opener(head.agent)
        return session_of_context(opener.find_loaded(head.session_id) or await opener.find(head.session_id))

    async def readable(self, head: SessionSummary) -> Session:
        """Return a session for reading only.

        An unfinished turn is not resumed: if the session with the turn is not in memory, it is read from the journal.

        Raises:
            SessionClosed: The session was closed.
            NotRunning: The agent of the session is not running.
        """
        opener = self.runtime.agents.opener(head.agent)
        loaded = opener.find_loaded(head.session_id)
        if loaded is None and head.state in ("working", "suspended"):
            loaded = await opener.read_only(head.session_id)
        return session_of_context(loaded or await opener.find(head.session_id))

    def statistics(self, caller: Caller) -> list[AgentStatistics]:
        """Return statistics of each running agent.

        If the caller lacks the scope `metrics`, or acts for another owner, only sessions of the caller's owner count.
        """
        found = self.runtime.statistics()
        if caller.allows("metrics") and caller.owner == caller.token.owner:
            return list(found)
        return [self._own_statistics(each, caller.owner) for each in found]

    def _own_statistics(self, known: AgentStatistics, owner: str) -> AgentStatistics:
        contexts = self.runtime.agents.opener(known.agent).running.sessions.values()
        own = [each for each in contexts if each.quota_owner == owner]
        waiting = [message for each in own for message in each.waiting_messages]
        urgent = sum(message.priority is Priority.URGENT for message in waiting)
        inbox = InboxStatistics(
            waiting=len(waiting) - urgent,
            urgent=urgent,
            bytes=sum(map(message_bytes, waiting)),
            claimed=sum(each.turn is not None for each in own),
            senders=0,
            sessions=sum(each.pending > 0 for each in own),
        )
        suspended = sum(each.suspension is not None for each in own)
        return attrs.evolve(known, inbox=inbox, sessions=len(own), suspended=suspended)

    def known_opener(self, agent: str) -> SessionOpener:
        """Return the object that opens the sessions of the agent `agent`, whose name comes from a client.

        Raises:
            Problem: No agent of this name is running.
        """
        try:
            return self.runtime.agents.opener(agent)
        except NotRunning:
            hosted = sorted(self.runtime.agents)
            raise Problem(
                "not-found", "no agent with this name runs on this server", agent=agent, agents=hosted
            ) from None

    async def page(self, caller: Caller, query: Mapping[str, Any], max_size: int) -> ListPage:
        """Return a page of the sessions that match a query, the last changed first. `max_size` is the maximum page size.

        Raises:
            Problem: The query names another owner without the scope `admin`, or its cursor is invalid.
        """
        wanted = await self._filter(caller, query)
        limit, after = min(query.get("limit", 100), max_size), parse_session_cursor(query.get("after"))
        found: list[SessionSummary] = []
        while len(found) < limit:
            rows = await self.journal.page(wanted, after=after, limit=limit - len(found))
            if not rows:
                break
            found += [row for row in rows if not is_internal(row)]
            after = rows[-1].cursor
        following = encode_cursor(found[-1].cursor) if len(found) == limit else None
        return ListPage(items=found, following=following)

    async def _filter(self, caller: Caller, query: Mapping[str, Any]) -> SessionFilter:
        owner = owner_in(caller, query)
        agent, parent = query.get("agent"), query.get("parent")
        tags, metadata = annotations_in(query)
        wanted = SessionFilter(
            state=query.get("status"), prefix=query.get("q", ""), tags=tags, metadata=metadata
        )
        if parent is not None:
            above = await self.head(caller, parent, agent)
            return attrs.evolve(wanted, parent=above.key)
        return attrs.evolve(wanted, agent=agent, owner=owner, roots=not caller.is_admin)


def owner_in(caller: Caller, query: Mapping[str, Any]) -> str | None:
    """Return the owner to whose sessions a list query is restricted.

    None means the sessions of all owners: the caller is an admin, and the query has no parameter `owner`.

    Raises:
        Problem: The query names another owner without the scope `admin`.
    """
    if caller.is_admin:
        return query.get("owner")
    if query.get("owner", caller.owner) != caller.owner:
        raise Problem(
            "forbidden",
            "owner= requires the scope admin: without it, a token lists only the sessions of its owner",
        )
    return caller.owner


def annotations_in(query: Mapping[str, Any]) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the tags and metadata that sessions must have, from the query parameters `tags` and `metadata`.

    Raises:
        Problem: `metadata` is not a JSON object.
        ConfigurationError: A tag, key or value is invalid.
    """
    tags = query["tags"].split(",") if query.get("tags") else ()
    try:
        metadata = orjson.loads(query["metadata"]) if query.get("metadata") else None
    except orjson.JSONDecodeError:
        raise Problem("invalid", 'metadata= must be a JSON object, such as {"ticket":"4711"}') from None
    return check_tags("tags", tags), check_session_metadata(metadata)


MAX_SUSPENDED_SEARCHED = 10_000
"""Maximum number of suspended sessions that are searched for approvals, the last changed sessions first."""


class ApprovalList:
    """Lists open approvals, the oldest first. The approvals of a session are cached until the session has new records."""

    def __init__(self, access: AccessFilter) -> None:
        self.access = access
        self._known: dict[SessionKey, tuple[int, Sequence[Approval]]] = {}

    async def page(
        self, caller: Caller, *, agent: str | None, after: tuple[float, str], limit: int
    ) -> list[Approval]:
        """Return at most `limit` open approvals that the caller may access, the oldest first.

        Args:
            caller: Authenticated caller.
            agent: Name of the agent; None for all agents.
            after: Creation time (Unix seconds) and id of the last approval of the previous page.
            limit: Maximum number of approvals to return.
        """
        known: dict[SessionKey, tuple[int, Sequence[Approval]]] = {}
        async for head in self._suspended_sessions():
            seen = self._known.get(head.key)
            if seen is None or seen[0] != head.records:
                running = self.access.runtime.agents.opener(head.agent).running
                seen = head.records, await approvals_of(running, head.session_id)
            known[head.key] = seen
        self._known = known
        waiting = [
            each for _, approvals in known.values() for each in approvals if agent in (None, each.agent)
        ]
        waiting.sort(key=lambda each: (each.created_at, each.id))
        found: list[Approval] = []
        for each in waiting:
            if (each.created_at, each.id) > after and await self._may_access(caller, each):
                found.append(each)
                if len(found) == limit:
                    break
        return found

    async def _suspended_sessions(self) -> AsyncIterator[SessionSummary]:
        """Yield summaries of suspended sessions of the agents in this process, the last changed first.

        At most `MAX_SUSPENDED_SEARCHED` sessions are read.
        """
        journal, agents = self.access.journal, self.access.runtime.agents
        after, left = None, MAX_SUSPENDED_SEARCHED
        while left and (rows := await journal.page(_SUSPENDED, after=after, limit=min(left, 500))):
            for row in rows:
                if row.agent in agents and not is_internal(row):
                    yield row
            after, left = rows[-1].cursor, left - len(rows)

    async def _may_access(self, caller: Caller, approval: Approval) -> bool:
        head = await self.access.journal.head(approval.agent, approval.session_id)
        return head is not None and await self.access.may_access(caller, head)


# --- cursors -----------------------------------------------------------------------------


def encode_cursor(parts: Sequence[Any]) -> str:
    """Encode the sort key of a list item as an opaque cursor. A client sends the cursor to get the items after this item."""
    return base64.urlsafe_b64encode(orjson.dumps(list(parts))).decode("ascii").rstrip("=")


def parse_cursor(text: str, *kinds: type) -> list[Any]:
    """Decode a cursor of `encode_cursor` to the sort key of a list item. The values must have the types `kinds`.

    Raises:
        Problem: The cursor was not made by `encode_cursor` or has values of other types.
    """
    try:
        given = orjson.loads(base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)))
    except (ValueError, UnicodeEncodeError, binascii.Error):
        given = None
    parts: list[Any] = given if isinstance(given, list) else []
    has_zero = any(isinstance(part, str) and "\x00" in part for part in parts)
    if has_zero or [type(part) for part in parts] != list(kinds):
        raise Problem("invalid", "after= must be the `next` value of an earlier page")
    return parts


def parse_session_cursor(text: str | None) -> Cursor | None:
    """Decode the cursor of a session list. None, the request for the first page, gives None.

    Raises:
        Problem: The cursor is invalid.
    """
    return None if text is None else Cursor(*parse_cursor(text, float, str, str))


def require_journal(runtime: Runtime) -> Journal:
    """Return the journal of a runtime. Every gateway needs a journal, because record numbers are the cursors of clients.

    Raises:
        ConfigurationError: The runtime has no journal.
    """
    if runtime.journal is None:
        raise ConfigurationError(
            "a gateway needs a journal, because clients resume event streams by its record numbers: "
            'open_runtime(journal="memory:") keeps one in memory'
        )
    return runtime.journal
