"""What can be asked of a runtime at work: its agents, provider limits, schedules and budgets, and sessions as they were."""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager

import attrs
import trio

from actgent.actors.inbox import InboxStatistics
from actgent.control.arguments import at_least_one, check_id
from actgent.control.budget import Account
from actgent.control.schedule import Schedule
from actgent.errors import ConfigurationError, Fenced, SessionNotFound
from actgent.journal.base import Journal, SessionSummary
from actgent.journal.listing import SessionKey
from actgent.journal.membership import ClusterStatistics, Membership
from actgent.journal.records import Record
from actgent.journal.transfer import ExportedSession, forked, write_sessions
from actgent.llm.doors import Door, DoorStatistics, Lender
from actgent.sessions.context import SessionContext
from actgent.sessions.following import Observed, ObservedType
from actgent.sessions.waiting.schedules import schedules, schedules_in

from .actor import AgentActor
from .directory import Directory
from .following import (
    ObservationReader,
    SessionFollower,
    Wanted,
    follow_session,
    list_observations,
    list_recent,
    observe,
    observe_recent,
)
from .sessions.elsewhere import Elsewhere
from .sessions.table import SessionTable


@attrs.frozen(kw_only=True)
class AgentStatistics:
    """How an agent is just now."""

    agent: str
    """Its name."""
    inbox: InboxStatistics
    """What waits for it, and what is out."""
    capacity: int
    """Messages that its inbox takes."""
    session_capacity: int
    """Of these, those of one session."""
    concurrency: int
    """Sessions that it works on side by side."""
    sessions: int
    """In memory."""
    suspended: int
    """Of these, those that wait for people."""
    restarts: int
    """Lives that ended by a failure, as far as they still count against it."""
    state: str
    """`starting`, `running`, `failed` (about to restart), `draining` or `stopped`."""


@attrs.frozen(kw_only=True)
class SetSchedule:
    """A schedule, and whose it is."""

    agent: str
    """The name of the session's agent."""
    session_id: str
    """The session whose schedule it is."""
    schedule: Schedule
    """What is said, and when next."""

    @property
    def place(self) -> tuple[float, str, str, str]:
        """By which they are listed: the next first."""
        return (self.schedule.at, self.agent, self.session_id, self.schedule.id)


@attrs.frozen(kw_only=True)
class OpenBudget:
    """What a session in memory, or its turn, may still take."""

    agent: str
    """The name of the session's agent."""
    session_id: str
    """The session whose budget it is."""
    owner: str
    """The name of its owner."""
    turn: str
    """The outside message of the turn; empty for the session as a whole."""
    limits: Mapping[str, float]
    """By name: `model_calls`, `tool_calls`, `tokens`, `cost` (US dollars), `seconds`."""
    spent: Mapping[str, float]
    """What was taken, by the same names."""
    reserved: Mapping[str, float]
    """Set apart for calls under way."""
    left: Mapping[str, float]
    """What may still be taken, by the same names: the limit without what is spent and reserved."""

    @property
    def place(self) -> tuple[str, str, str]:
        """By which they are listed."""
        return (self.agent, self.session_id, self.turn)


class Insight:
    """What a runtime tells of its agents."""

    journal: Journal | None
    membership: Membership | None
    _askers = 0
    """Blocks in which people are asked in another way than by handlers."""

    def _agents(self) -> Iterator[AgentActor]:
        raise NotImplementedError

    def statistics(self) -> tuple[AgentStatistics, ...]:
        """Return how each agent is just now: what waits in its inbox, its bounds, its sessions in memory; by name."""
        return tuple(_statistics_of(running) for running in self._by_name())

    def governors(self) -> tuple[DoorStatistics, ...]:
        """Return what the models of the agents pass before their providers: windows, who waits, limits and pauses, model by model."""
        return _doors_of(self._by_name())

    def cluster(self) -> ClusterStatistics | None:
        """Return how this process is as a node of a cluster: partitions, takeovers, fenced writes, delays; None without a broker."""
        return None if self.membership is None else self.membership.statistics()

    async def schedules(
        self, *, after: SetSchedule | None = None, limit: int = 100
    ) -> tuple[SetSchedule, ...]:
        """List at most `limit` schedules of the agents here, the next first, also of sessions that are not in memory.

        Pass the last one as `after` for the next page; an empty page is the end.

        Raises:
            ConfigurationError: the limit is below 1.
            JournalError: the journal cannot be read.
        """
        return await _schedule_page(self._by_name(), self.journal, after, limit)

    def budgets(self, *, after: OpenBudget | None = None, limit: int = 100) -> tuple[OpenBudget, ...]:
        """List at most `limit` budgets of the sessions in memory and of their turns, by agent and session.

        Raises:
            ConfigurationError: the limit is below 1.
        """
        return _budget_page(self._by_name(), after, limit)

    def follow(
        self, session_id: str, *, agent: str, after: int | None = 0
    ) -> AbstractAsyncContextManager[SessionFollower]:
        """Follow a session without loading it, also one whose agent does not run; see `Session.follow`.

        What grows comes while its agent runs here.

        Raises:
            ConfigurationError, CursorUnknown, SessionNotFound, JournalError: see `Session.follow`.
        """
        key = SessionKey(agent, session_id)
        return follow_session(self.journal, self._table_of(agent), key, after=after)

    def observe(
        self,
        session_id: str,
        *,
        agent: str,
        types: Collection[ObservedType] | None = None,
        turn: str | None = None,
        after: int | None = None,
    ) -> AbstractAsyncContextManager[ObservationReader]:
        """Observe a session without loading it, also one whose agent does not run; see `Session.observe`.

        Raises:
            ConfigurationError, CursorUnknown, SessionNotFound, JournalError: see `Session.follow`.
        """
        key, wanted, table = (
            SessionKey(agent, session_id),
            Wanted(types=types, turn=turn),
            self._table_of(agent),
        )
        context = None if table is None else table.get(session_id)
        if context is None or table is None or (recent := context.conversation.open_recent()) is None:
            return observe(self.journal, table, key, after=after, wanted=wanted)
        return observe_recent(context, recent, table, after=after, wanted=wanted)

    async def observations(
        self,
        session_id: str,
        *,
        agent: str,
        types: Collection[ObservedType] | None = None,
        turn: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> tuple[Observed, ...]:
        """The first observations of a session behind the record `after`; see `Session.observations`.

        Raises:
            ConfigurationError, SessionNotFound, JournalError: see `Session.observations`.
        """
        key, wanted, table = (
            SessionKey(agent, session_id),
            Wanted(types=types, turn=turn),
            self._table_of(agent),
        )
        context = None if table is None else table.get(session_id)
        if context is not None and (recent := context.conversation.open_recent()) is not None:
            await trio.lowlevel.checkpoint()
            return list_recent(recent, after=after, limit=limit, wanted=wanted)
        return await list_observations(
            need_journal(self.journal), key, after=after, limit=limit, wanted=wanted
        )

    def _table_of(self, agent: str) -> SessionTable | None:
        """The sessions of an agent in memory, if it runs here."""
        return next((each.sessions for each in self._agents() if each.name == agent), None)

    @contextmanager
    def asking_elsewhere(self) -> Iterator[None]:
        """A block in which people are asked in another way than by handlers, so that the log need not say that nobody was."""
        self._askers += 1
        try:
            yield
        finally:
            self._askers -= 1

    def asks_elsewhere(self) -> bool:
        """Tell whether such a block is open."""
        return self._askers > 0

    def _by_name(self) -> list[AgentActor]:
        return sorted(self._agents(), key=lambda each: each.name)


def _statistics_of(running: AgentActor) -> AgentStatistics:
    """Return how an agent is."""
    inbox, contexts = running.inbox, running.sessions.values()
    return AgentStatistics(
        agent=running.name,
        inbox=inbox.statistics(),
        capacity=inbox.capacity,
        session_capacity=inbox.session_capacity,
        concurrency=inbox.concurrency,
        sessions=len(running.sessions),
        suspended=sum(context.suspension is not None for context in contexts),
        restarts=running.restarts,
        state=running.state,
    )


def _doors_of(agents: Iterable[AgentActor]) -> tuple[DoorStatistics, ...]:
    """The provider limits that agents meet, each once, by name."""
    found = sorted(_doors(agents).items(), key=lambda each: each[1])
    return tuple(governor.describe(door) for governor, door in found)


def _doors(agents: Iterable[AgentActor]) -> dict[Door, str]:
    found: dict[Door, str] = {}
    for running in agents:
        for llm in running.core.models.models.values():
            for door, governor in llm.doors().items():
                found.setdefault(governor, door)
    return found


def share_limits(agents: Iterable[AgentActor], lender: Lender) -> None:
    """Share with other processes what was declared of the provider limits that agents meet."""
    for governor, door in _doors(agents).items():
        governor.share(lender, door)


# --- schedules ---------------------------------------------------------------------------


async def _schedule_page(
    agents: Sequence[AgentActor], journal: Journal | None, after: SetSchedule | None, limit: int
) -> tuple[SetSchedule, ...]:
    """A page of the schedules of agents, the next first.

    A session's earliest date is in an index; sessions that are not in memory are read from their records, those of the page
    alone. What changes meanwhile may be listed twice, or not.
    """
    at_least_one("limit", limit)
    behind = (0.0, "", "", "") if after is None else after.place
    found: list[SetSchedule] = []
    for due, running, session_id in await _due(agents, journal):
        if len(found) >= limit and due > heapq.nsmallest(limit, found, key=_place)[-1].schedule.at:
            break  # no session behind has an earlier one
        found += [each for each in await _schedules(running, session_id, journal) if each.place > behind]
    await trio.lowlevel.checkpoint()
    return tuple(heapq.nsmallest(limit, found, key=_place))


def _place(found: SetSchedule) -> tuple[float, str, str, str]:
    return found.place


async def _due(agents: Sequence[AgentActor], journal: Journal | None) -> list[tuple[float, AgentActor, str]]:
    """Sessions in which something has a date, by the earliest."""
    dates: dict[tuple[str, str], tuple[float, AgentActor, str]] = {}
    for running in agents:
        for session_id, at in [] if journal is None else await journal.due(running.name):
            dates[running.name, session_id] = (at, running, session_id)
        for context in running.sessions.values():
            if set_ones := schedules(context):
                dates[running.name, context.id] = (set_ones[0].at, running, context.id)
    return sorted(dates.values(), key=lambda each: (each[0], each[1].name, each[2]))


async def _schedules(running: AgentActor, session_id: str, journal: Journal | None) -> list[SetSchedule]:
    context = running.sessions.get(session_id)
    if context is not None:
        found: Iterable[Schedule] = schedules(context)
    else:
        found = () if journal is None else schedules_in(await journal.load(session_id, agent=running.name))
    return [SetSchedule(agent=running.name, session_id=session_id, schedule=each) for each in found]


# --- budgets -----------------------------------------------------------------------------


def _budget_page(
    agents: Sequence[AgentActor], after: OpenBudget | None, limit: int
) -> tuple[OpenBudget, ...]:
    """A page of what is bounded in the sessions that are in memory, by agent and session."""
    at_least_one("limit", limit)
    contexts = [context for running in agents for context in running.sessions.values()]
    behind = ("", "", "") if after is None else after.place
    found = (
        each for context in contexts for each in _budgets(context) if after is None or each.place > behind
    )
    return tuple(heapq.nsmallest(limit, found, key=lambda each: each.place))


def _budgets(context: SessionContext) -> Iterator[OpenBudget]:
    turn = context.turn or (None if context.suspension is None else context.suspension.turn)
    own = () if turn is None or turn.budget is None else (turn.budget.own,)
    for account in (*own, *context.accounts):
        if account.limits and (account.key.agent or context.agent, account.key.session_id) == context.key:
            yield _open_budget(context, account)


def _open_budget(context: SessionContext, account: Account) -> OpenBudget:
    return OpenBudget(
        agent=context.agent,
        session_id=context.id,
        owner=context.owner.name,
        turn=account.key.turn,
        limits=dict(account.limits),
        spent=account.spent.used,
        reserved=account.reserved.used,
        left=account.left,
    )


# --- sessions as they were ----------------------------------------------------------------


async def fork_session(
    journal: Journal,
    key: SessionKey,
    to: int | None,
    session_id: str | None,
    *,
    elsewhere: Elsewhere | None,
    agents: Directory,
    asker: str = "",
) -> SessionSummary:
    """Write a session's copy, or have the process do it that has the new id; see `Runtime.fork`. `asker` is that of `Opened`."""
    check_id("session_id", session_id)
    whole = ExportedSession(key.session_id, key.agent, await records_up_to(journal, key, to))
    try:
        begun = forked(whole, session_id or journal.new_session_id(), key.agent, asker=asker)
        async with agents.making(begun.agent, begun.session_id):
            await write_sessions(journal, [begun])
    except Fenced:
        original = await journal.head(*key)
        if elsewhere is None or original is None:
            raise
        return await elsewhere.fork_session(original, to=to or len(whole.records), session_id=session_id)
    head = await journal.head(begun.agent, begun.session_id)
    assert head is not None  # noqa: S101 - it was just written
    return head


async def records_up_to(journal: Journal, key: SessionKey, to: int | None) -> tuple[Record, ...]:
    """The records of a session up to a number, or all.

    Raises:
        SessionNotFound: there is no such session.
        ConfigurationError: there is no such record.
    """
    records = await journal.load(key.session_id, agent=key.agent)
    if not records:
        raise SessionNotFound(key.agent, key.session_id)
    if to is not None and not 1 <= to <= len(records):
        raise ConfigurationError(f"unknown step {to}: the session's records are 1 to {len(records)}")
    return records[:to]


def need_journal(journal: Journal | None) -> Journal:
    """The journal of a runtime.

    Raises:
        ConfigurationError: it has none.
    """
    if journal is None:
        raise ConfigurationError("this runtime has no journal: pass journal= to open_runtime()")
    return journal
