"""What a caller may reach: sessions of its own, with all below them, and for an admin those of everybody.

Whose a session is says its root: a child's owner is that of the session at the top of its tree. What is another owner's
is answered like what is not there, after the same questions to the journal.
"""

import base64
import binascii
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import attrs
import orjson

from actgent.actors.inbox import InboxStatistics
from actgent.agents.session import Session, face_of
from actgent.approvals import Approval
from actgent.errors import ConfigurationError, NotRunning
from actgent.journal.base import Journal, SessionSummary
from actgent.journal.listing import Cursor, SessionFilter, SessionKey
from actgent.messages import Priority, message_bytes
from actgent.runtime.approval_decisions import approvals_of
from actgent.runtime.insight import AgentStatistics
from actgent.runtime.runtime import Runtime
from actgent.runtime.sessions.opener import SessionOpener
from actgent.sessions.owner_accounts import is_holder

from .problems import Problem, missing
from .tokens import Caller

_SUSPENDED = SessionFilter(state="suspended")


@attrs.frozen(kw_only=True)
class ListPage:
    """Some of a list, and where the next of it begin."""

    items: Sequence[Any]
    following: str | None
    """None at the end."""


@attrs.frozen
class Reach:
    """The sessions of a runtime, as callers see them."""

    runtime: Runtime
    journal: Journal

    async def head(self, caller: Caller, session_id: str, agent: str | None = None) -> SessionSummary:
        """The session of this id, of this agent if one is given.

        Raises:
            Problem: there is none, or it is another owner's, or several agents have one of this id.
        """
        named = await self._named(session_id, agent)
        heads = [head for head in named if await self.sees(caller, head)]
        if not heads:
            raise missing()
        if len(heads) > 1:
            agents = sorted(head.agent for head in heads)
            raise Problem("ambiguous", "say which agent's session you mean, by ?agent=", agents=agents)
        return heads[0]

    async def _named(self, session_id: str, agent: str | None) -> list[SessionSummary]:
        """Return what there is of an id; what is not there is asked for, too, so that it takes as long."""
        wanted = [agent] if agent is not None else await self.journal.agents_of(session_id) or [""]
        journal = self.journal
        found = [
            journal.head_now(each, session_id) or await journal.head(each, session_id) for each in wanted
        ]
        return [head for head in found if head is not None and not is_holder(head)]

    async def sees(self, caller: Caller, head: SessionSummary) -> bool:
        """Return True if a session is the caller's: its root's owner is."""
        if head.parent_id is None:
            return caller.is_admin or head.owner == caller.owner
        root = await self.journal.head(*head.root)
        return caller.is_admin or (root is not None and root.owner == caller.owner)

    async def session(self, caller: Caller, session_id: str, agent: str | None = None) -> Session:
        """The same session, opened.

        Raises:
            Problem: see `head`.
            SessionClosed: it was closed.
            NotRunning: its agent does not run.
        """
        return await self.opened(await self.head(caller, session_id, agent))

    async def opened(self, head: SessionSummary) -> Session:
        """The session of a head that the caller reaches; raises as `session`, but no `Problem`."""
        opener = self.opener(head.agent)
        return face_of(opener.find_loaded(head.session_id) or await opener.find(head.session_id))

    async def readable(self, head: SessionSummary) -> Session:
        """Return a session for reading. A session with an open turn that is not in memory is not loaded, so that its turn does not start.

        Raises:
            SessionClosed: The session was closed.
            NotRunning: Its agent does not run.
        """
        opener = self.opener(head.agent)
        loaded = opener.find_loaded(head.session_id)
        if loaded is None and head.state in ("working", "suspended"):
            loaded = await opener.read_only(head.session_id)
        return face_of(loaded or await opener.find(head.session_id))

    def statistics(self, caller: Caller) -> list[AgentStatistics]:
        """How each agent is, by name. The figures are those of the caller's own sessions, and of all owners for the scope `metrics`."""
        found = self.runtime.statistics()
        if caller.allows("metrics") and caller.owner == caller.token.owner:
            return list(found)
        return [self._own_statistics(each, caller.owner) for each in found]

    def _own_statistics(self, known: AgentStatistics, owner: str) -> AgentStatistics:
        contexts = self.runtime.agents.opener(known.agent).running.sessions.values()
        own = [each for each in contexts if each.works_for == owner]
        waiting = [message for each in own for message in each.mail.waiting]
        urgent = sum(message.priority is Priority.URGENT for message in waiting)
        inbox = InboxStatistics(
            waiting=len(waiting) - urgent,
            urgent=urgent,
            bytes=sum(map(message_bytes, waiting)),
            claimed=sum(each.turn is not None for each in own),
            senders=0,
            sessions=sum(each.mail.pending > 0 for each in own),
        )
        suspended = sum(each.suspension is not None for each in own)
        return attrs.evolve(known, inbox=inbox, sessions=len(own), suspended=suspended)

    def opener(self, agent: str) -> SessionOpener:
        """Return what opens the sessions of an agent.

        Raises:
            NotRunning: it does not run.
        """
        return self.runtime.agents.opener(agent)

    def known_opener(self, agent: str) -> SessionOpener:
        """The same for a name that a client gives.

        Raises:
            Problem: there is no such agent.
        """
        try:
            return self.runtime.agents.opener(agent)
        except NotRunning:
            hosted = sorted(self.runtime.agents)
            raise Problem(
                "not-found", "no agent of this name runs here", agent=agent, agents=hosted
            ) from None

    async def page(self, caller: Caller, query: Mapping[str, Any], most: int) -> ListPage:
        """The sessions that a query asks for, the newest change first.

        Raises:
            Problem: the caller may not ask for that, or the cursor is none.
        """
        wanted = await self._filter(caller, query)
        limit, after = min(query.get("limit", 100), most), to_cursor(query.get("after"))
        found: list[SessionSummary] = []
        while len(found) < limit:
            rows = await self.journal.page(wanted, after=after, limit=limit - len(found))
            if not rows:
                break
            found += [row for row in rows if not is_holder(row)]
            after = rows[-1].cursor
        following = from_cursor(found[-1].cursor) if len(found) == limit else None
        return ListPage(items=found, following=following)

    async def _filter(self, caller: Caller, query: Mapping[str, Any]) -> SessionFilter:
        owner = query.get("owner") if caller.is_admin else caller.owner
        if not caller.is_admin and query.get("owner", owner) != owner:
            raise Problem(
                "forbidden", "owner= takes the scope admin: a token lists the sessions of its owner"
            )
        agent, parent = query.get("agent"), query.get("parent")
        state, prefix = query.get("state"), query.get("q", "")
        if parent is not None:
            above = await self.head(caller, parent, agent)
            return SessionFilter(parent=above.key, state=state, prefix=prefix)
        return SessionFilter(agent=agent, owner=owner, state=state, prefix=prefix, roots=not caller.is_admin)


MOST_SUSPENDED = 10_000
"""Sessions whose approvals are listed; of more, those that changed last."""


class ApprovalList:
    """All approvals that wait, the oldest first. What is known of a session holds until it has further records."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._known: dict[SessionKey, tuple[int, Sequence[Approval]]] = {}

    async def page(
        self, caller: Caller, *, agent: str | None, after: tuple[float, str], limit: int
    ) -> list[Approval]:
        """At most `limit` of those that the caller reaches, behind the time and id of one."""
        known: dict[SessionKey, tuple[int, Sequence[Approval]]] = {}
        async for head in self._suspended():
            seen = self._known.get(head.key)
            if seen is None or seen[0] != head.records:
                running = self._reach.runtime.agents.opener(head.agent).running
                seen = head.records, await approvals_of(running, head.session_id)
            known[head.key] = seen
        self._known = known
        waiting = [
            each for _, approvals in known.values() for each in approvals if agent in (None, each.agent)
        ]
        waiting.sort(key=lambda each: (each.created_at, each.id))
        found: list[Approval] = []
        for each in waiting:
            if (each.created_at, each.id) > after and await self._sees(caller, each):
                found.append(each)
                if len(found) == limit:
                    break
        return found

    async def _suspended(self) -> AsyncIterator[SessionSummary]:
        """The sessions of agents here that wait for something."""
        journal, agents = self._reach.journal, self._reach.runtime.agents
        after, left = None, MOST_SUSPENDED
        while left and (rows := await journal.page(_SUSPENDED, after=after, limit=min(left, 500))):
            for row in rows:
                if row.agent in agents and not is_holder(row):
                    yield row
            after, left = rows[-1].cursor, left - len(rows)

    async def _sees(self, caller: Caller, approval: Approval) -> bool:
        head = await self._reach.journal.head(approval.agent, approval.session_id)
        return head is not None and await self._reach.sees(caller, head)


# --- cursors -----------------------------------------------------------------------------


def from_cursor(parts: Sequence[Any]) -> str:
    """A place in a list, as clients send it back."""
    return base64.urlsafe_b64encode(orjson.dumps(list(parts))).decode("ascii").rstrip("=")


def to_parts_of(text: str, *kinds: type) -> list[Any]:
    """The same back, for a cursor of these types.

    Raises:
        Problem: it is none that we gave.
    """
    try:
        given = orjson.loads(base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)))
    except (ValueError, UnicodeEncodeError, binascii.Error):
        given = None
    parts: list[Any] = given if isinstance(given, list) else []
    has_zero = any(isinstance(part, str) and "\x00" in part for part in parts)
    if has_zero or [type(part) for part in parts] != list(kinds):
        raise Problem("invalid", "after= is the `next` of a page that was read before")
    return parts


def to_cursor(text: str | None) -> Cursor | None:
    """A place among sessions.

    Raises:
        Problem: it is none that we gave.
    """
    return None if text is None else Cursor(*to_parts_of(text, float, str, str))


def journal_of(runtime: Runtime) -> Journal:
    """The journal of a runtime, which a gateway needs: its numbers are the cursors of clients.

    Raises:
        ConfigurationError: it has none.
    """
    if runtime.journal is None:
        raise ConfigurationError(
            "a gateway needs a journal, whose record numbers its clients go on from: "
            'open_runtime(journal="memory:") keeps one in memory'
        )
    return runtime.journal
