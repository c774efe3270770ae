"""Introspection of a running runtime: agents, rate limits, schedules, budgets, and past sessions."""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager

import attrs
import trio

from actgent.actors.inbox import InboxStatistics
from actgent.errors import ConfigurationError, Fenced, SessionNotFound
from actgent.journal.cluster_interface import ClusterStatistics, ClusterStatus, Membership
from actgent.journal.journal_interface import Journal, SessionSummary
from actgent.journal.record_types import Record
from actgent.journal.session_list_queries import SessionKey
from actgent.limits_and_schedules.budget import Account
from actgent.limits_and_schedules.id_and_number_validation import at_least_one, check_id
from actgent.limits_and_schedules.schedule import Schedule
from actgent.llm.model_interface import LLM
from actgent.llm.rate_limiter_statistics import LimitLeaser, RateLimiterProtocol, RateLimiterStatistics
from actgent.session_index import Group, IndexQueries, SearchFilter, SearchPage, Trends
from actgent.sessions.pending.schedules import schedules, schedules_in
from actgent.sessions.session_context import SessionContext
from actgent.sessions.subscriptions import Observed, ObservedType
from actgent.support.attrs_class_repr import FieldRepr
from actgent.toolsets.toolset_manager import ToolsetManager, ToolsetStatus

from .agent_actor import AgentActor
from .agent_directory import Directory, StartedAgent
from .sessions.remote_session_interface import RemoteSessions
from .sessions.session_table import SessionTable
from .subscriptions.observation_reader import (
    ObservationFilter,
    ObservationReader,
    list_observations,
    list_recent,
    observe,
    observe_recent,
)
from .subscriptions.session_follower import SessionFollower, follow_session
from .waits_between_sessions import add_unknown_session_source, sources_of_caller


@attrs.frozen(kw_only=True, repr=False)
class AgentStatistics(FieldRepr):
    """Statistics of one agent."""

    agent: str
    """Name of the agent."""
    inbox: InboxStatistics
    """Numbers of queued and running messages."""
    capacity: int
    """Maximum number of messages in the inbox."""
    session_capacity: int
    """Maximum number of messages of one session in the inbox."""
    concurrency: int
    """Maximum number of sessions that are processed at the same time."""
    sessions: int
    """Number of the agent's sessions in memory."""
    suspended: int
    """Number of sessions in memory that wait for approvals."""
    restarts: int
    """Number of recent restarts after failures that supervision counts."""
    state: str
    """State of the agent: `starting`, `running`, `failed` (about to restart), `draining` or `stopped`."""


@attrs.frozen(kw_only=True, repr=False)
class SetSchedule(FieldRepr):
    """A schedule together with the session to which it sends its messages."""

    agent: str
    """Name of the session's agent."""
    session_id: str
    """Id of the session to which the schedule sends its messages."""
    schedule: Schedule
    """The schedule, including the time at which it fires next."""

    @property
    def sort_key(self) -> tuple[float, str, str, str]:
        """Sort key of a schedule in pages: time at which it fires next, agent, session id, schedule id."""
        return (self.schedule.at, self.agent, self.session_id, self.schedule.id)


@attrs.frozen(kw_only=True, repr=False)
class OpenBudget(FieldRepr):
    """Budget of a session in memory, or of a session's running turn."""

    agent: str
    """Name of the session's agent."""
    session_id: str
    """Id of the session that has the budget."""
    owner: str
    """Name of the session's owner."""
    turn: str
    """Message id of the turn; empty for the budget of the session."""
    limits: Mapping[str, float]
    """Limits by name: `model_calls`, `tool_calls`, `tokens`, `cost` (US dollars), `seconds`."""
    spent: Mapping[str, float]
    """Amounts spent so far, by the names of the limits."""
    reserved: Mapping[str, float]
    """Amounts reserved for running calls, by the names of the limits."""
    left: Mapping[str, float]
    """Remaining amounts by the names of the limits: limit minus spent and reserved."""

    @property
    def sort_key(self) -> tuple[str, str, str]:
        """Sort key of a budget in pages: agent, session id, message id of the turn."""
        return (self.agent, self.session_id, self.turn)


EVERYTHING = SearchFilter()


class Introspection:
    """Queries of a runtime's agents, schedules, budgets, rate limits and sessions."""

    journal: Journal | None
    index: IndexQueries | None
    membership: Membership | None
    toolsets: ToolsetManager
    agents: Directory
    _open_approval_displays = 0
    """Number of open blocks of `showing_approvals`."""

    def _agents(self) -> Iterator[AgentActor]:
        raise NotImplementedError

    def statistics(self) -> tuple[AgentStatistics, ...]:
        """Return the statistics of each agent by name: inbox, limits, sessions in memory."""
        used = [_statistics_of(running) for running in self._agents()]
        unused = [_statistics_of_unused(agent) for agent in self.agents.unused]
        return tuple(sorted([*used, *unused], key=lambda each: each.agent))

    def rate_limiters(self) -> tuple[RateLimiterStatistics, ...]:
        """Return the statistics of the rate limiters of all models: concurrency windows, waiting calls, limits and pauses."""
        found = sorted(_rate_limiters(self.agents.models).items(), key=lambda each: each[1])
        return tuple(rate_limiter.describe(name) for rate_limiter, name in found)

    def cluster(self) -> ClusterStatistics | None:
        """Return the statistics of this cluster node: partitions, takeovers, fenced writes, delays; None without a cluster."""
        return None if self.membership is None else self.membership.statistics()

    def toolset_status(self) -> tuple[ToolsetStatus, ...]:
        """Return the status of each toolset with a connection, such as MCP servers: state, tools, last error, reconnections."""
        return self.toolsets.describe()

    async def cluster_status(self) -> ClusterStatus | None:
        """Return the nodes and partitions of this node's cluster, and the agents without a node; None without a cluster.

        Raises:
            JournalFailed: The database cannot be read.
        """
        return None if self.membership is None else await self.membership.read_status()

    async def schedules(
        self, *, after: SetSchedule | None = None, limit: int = 100
    ) -> tuple[SetSchedule, ...]:
        """Return at most `limit` schedules of the agents in this process, sorted by the time at which they fire next.

        Schedules of sessions that are only in the journal are included.

        Pass the last schedule as `after` for the next page; an empty page is the end.

        Raises:
            ConfigurationError: The limit is below 1.
            JournalError: The journal cannot be read.
        """
        add_unknown_session_source()
        return await _schedule_page(self._agents_by_name(), self.journal, after, limit)

    def budgets(self, *, after: OpenBudget | None = None, limit: int = 100) -> tuple[OpenBudget, ...]:
        """Return at most `limit` budgets of sessions in memory and of their turns, sorted by agent and session.

        Pass the last budget as `after` for the next page; an empty page is the end.

        Raises:
            ConfigurationError: The limit is below 1.
        """
        return _budget_page(self._agents_by_name(), after, limit)

    async def search(
        self, query: str, filters: SearchFilter = EVERYTHING, *, after: str | None = None, limit: int = 20
    ) -> SearchPage:
        """Return the newest messages that contain all words of a query, without loading sessions.

        The query may have phrases in quotes, prefixes with `*` and excluded words with `-`. Services that search for their
        users must set `owner` in the filter.

        Args:
            query: Words to search for; an empty text matches all messages.
            filters: Conditions that the found messages and their sessions must meet.
            after: `following` of the previous page; None returns the first page.
            limit: Maximum number of hits.

        Raises:
            ConfigurationError: The runtime has no index, the query has text but no word, the cursor is invalid, or the limit is
                below 1.
            JournalError: The index cannot be read.
        """
        add_unknown_session_source()
        return await need_index(self.index).search(query, filters, after=after, limit=limit)

    async def trends(
        self,
        by: Group = "day",
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        owner: str | None = None,
        model: str | None = None,
    ) -> Trends:
        """Return cost, tokens, turns, durations, errors and tool failures by day, agent, model or owner.

        The amounts survive restarts, and include those of erased sessions.

        Args:
            by: Dimension by which the amounts are grouped.
            since: Unix time in seconds; only the days from this time on count, in UTC.
            until: Unix time in seconds; only the days up to this time count.
            agent: Name of an agent; None counts all agents.
            owner: Name of an owner; None counts all owners. Child sessions count for the owner of their root.
            model: Name of a model; None counts all models.

        Raises:
            ConfigurationError: The runtime has no index, or `by` is unknown.
            JournalError: The index cannot be read.
        """
        index = need_index(self.index)
        return await index.trends(by, since=since, until=until, agent=agent, owner=owner, model=model)

    def follow(
        self, session_id: str, *, agent: str, after: int | None = 0
    ) -> AbstractAsyncContextManager[SessionFollower]:
        """Follow the records of a session without loading the session. The agent of the session need not be running.

        Partial answers are received only while the agent runs in this process. `after` is the record number after which the
        reader starts; None starts at the newest record.

        Raises:
            ConfigurationError: The runtime has no journal.
            InvalidCursor: `after` is larger than the number of the last record.
            SessionNotFound: The journal has no such session.
            JournalError: The journal cannot be read.
        """
        add_unknown_session_source()
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
        """Observe a session without loading the session. The agent of the session need not be running.

        Args:
            session_id: Id of the session.
            agent: Name of the session's agent.
            types: Observation types to receive; None receives all types.
            turn: Message id of the turn to observe; None observes all turns.
            after: Record number after which observations start; None starts at the newest record.

        Raises:
            ConfigurationError: An observation type is unknown.
            InvalidCursor: `after` is larger than the number of the last record.
            SessionNotFound: The journal has no such session.
            JournalError: The journal cannot be read.
        """
        add_unknown_session_source()
        key, observation_filter = SessionKey(agent, session_id), ObservationFilter(types=types, turn=turn)
        table = self._table_of(agent)
        context = None if table is None else table.get(session_id)
        if context is None or table is None or (recent := context.conversation.recent) is None:
            return observe(self.journal, table, key, after=after, observation_filter=observation_filter)
        return observe_recent(context, recent, table, after=after, observation_filter=observation_filter)

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
        """Return at most `limit` observations of a session after the record `after`, oldest first.

        Raises:
            ConfigurationError: An observation type is unknown, or the limit is below 1.
            SessionNotFound: The journal has no such session.
            JournalError: The journal cannot be read.
        """
        add_unknown_session_source()
        key, observation_filter = SessionKey(agent, session_id), ObservationFilter(types=types, turn=turn)
        table = self._table_of(agent)
        context = None if table is None else table.get(session_id)
        if context is not None and (recent := context.conversation.recent) is not None:
            await trio.lowlevel.checkpoint()
            return list_recent(recent, after=after, limit=limit, observation_filter=observation_filter)
        return await list_observations(
            need_journal(self.journal), key, after=after, limit=limit, observation_filter=observation_filter
        )

    def _table_of(self, agent: str) -> SessionTable | None:
        """Return the table of an agent's sessions in memory; None if the agent is not running in this process."""
        return next((each.sessions for each in self._agents() if each.name == agent), None)

    @contextmanager
    def showing_approvals(self) -> Iterator[None]:
        """Return a block in which the program shows approvals to users, so that approvals without handlers cause no log warnings."""
        self._open_approval_displays += 1
        try:
            yield
        finally:
            self._open_approval_displays -= 1

    def shows_approvals(self) -> bool:
        """Return True if a block of `showing_approvals` is open."""
        return self._open_approval_displays > 0

    def _agents_by_name(self) -> list[AgentActor]:
        return sorted(self._agents(), key=lambda each: each.name)


def _statistics_of(running: AgentActor) -> AgentStatistics:
    """Return the statistics of a running agent: its inbox, limits and sessions in memory."""
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


def _statistics_of_unused(agent: StartedAgent) -> AgentStatistics:
    """Return the statistics of an agent that was not used since its start, which has no sessions and no messages."""
    bounds = agent.inbox_bounds
    return AgentStatistics(
        agent=agent.name,
        inbox=InboxStatistics(waiting=0, urgent=0, claimed=0, bytes=0, senders=0, sessions=0),
        capacity=bounds.capacity,
        session_capacity=bounds.session_capacity,
        concurrency=bounds.concurrency,
        sessions=0,
        suspended=0,
        restarts=0,
        state="running",
    )


def _rate_limiters(models: Iterable[LLM]) -> dict[RateLimiterProtocol, str]:
    """Return the names of the rate limiters of model clients. Clients that share a rate limiter add it once."""
    found: dict[RateLimiterProtocol, str] = {}
    for llm in models:
        for name, rate_limiter in llm.rate_limiters().items():
            found.setdefault(rate_limiter, name)
    return found


def share_limits(models: Iterable[LLM], leaser: LimitLeaser) -> None:
    """Connect the rate limiters of model clients to `leaser`, which divides the limits of the program between its processes."""
    for rate_limiter, name in _rate_limiters(models).items():
        rate_limiter.share(leaser, name)


# --- schedules ---------------------------------------------------------------------------


async def _schedule_page(
    agents: Sequence[AgentActor], journal: Journal | None, after: SetSchedule | None, limit: int
) -> tuple[SetSchedule, ...]:
    """Return at most `limit` schedules of the agents after the schedule `after`, earliest first.

    The journal indexes the earliest time of each session, so only sessions that can be on the page are loaded. Schedules
    that change during the call may be listed twice or be missing.
    """
    at_least_one("limit", limit)
    behind = (0.0, "", "", "") if after is None else after.sort_key
    found: list[SetSchedule] = []
    for due, running, session_id in await _sessions_with_timer(agents, journal):
        if len(found) >= limit and due > heapq.nsmallest(limit, found, key=_sort_key)[-1].schedule.at:
            break  # sessions are sorted by time
        found += [each for each in await _schedules(running, session_id, journal) if each.sort_key > behind]
    await trio.lowlevel.checkpoint()
    return tuple(heapq.nsmallest(limit, found, key=_sort_key))


def _sort_key(found: SetSchedule) -> tuple[float, str, str, str]:
    return found.sort_key


async def _sessions_with_timer(
    agents: Sequence[AgentActor], journal: Journal | None
) -> list[tuple[float, AgentActor, str]]:
    """Return the time of the next timer, the agent and the session id of each session with a timer, earliest first.

    The time of a session in memory is used instead of its time in the journal, which may be older.
    """
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
    """Return at most `limit` budgets of sessions in memory after the budget `after`, sorted by agent and session."""
    at_least_one("limit", limit)
    contexts = [context for running in agents for context in running.sessions.values()]
    behind = ("", "", "") if after is None else after.sort_key
    found = (
        each for context in contexts for each in _budgets(context) if after is None or each.sort_key > behind
    )
    return tuple(heapq.nsmallest(limit, found, key=lambda each: each.sort_key))


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
    remote_sessions: RemoteSessions | None,
    agents: Directory,
    asker: str = "",
) -> SessionSummary:
    """Write a copy of a session up to a record to the journal, and return its summary.

    In a cluster, the process that owns the new session id writes the copy.

    If a turn makes the copy, the copy gets the untrusted sources of the turn, which may have chosen the last record.

    Args:
        journal: Journal of the runtime.
        key: Agent and id of the original session.
        to: Number of the last copied record; None copies all records.
        session_id: Id of the copy; None generates one.
        remote_sessions: Access to other processes; None without a cluster.
        agents: Running agents.
        asker: Text that identifies the request for the copy, stored in the first record; empty for none.
    """
    from actgent.journal.session_export_and_fork import ExportedSession, build_fork, write_sessions  # noqa: PLC0415 - few programs fork sessions

    check_id("session_id", session_id)
    whole = ExportedSession(key.session_id, key.agent, await records_up_to(journal, key, to))
    try:
        begun = build_fork(
            whole, session_id or journal.new_session_id(), key.agent, asker=asker, via=sources_of_caller()
        )
        async with agents.creating_session(begun.agent, begun.session_id):
            await write_sessions(journal, [begun])
    except Fenced:
        original = await journal.head(*key)
        if remote_sessions is None or original is None:
            raise
        return await remote_sessions.fork_session(
            original, to=to or len(whole.records), session_id=session_id
        )
    head = await journal.head(begun.agent, begun.session_id)
    assert head is not None  # noqa: S101 - written above
    return head


async def records_up_to(journal: Journal, key: SessionKey, to: int | None) -> tuple[Record, ...]:
    """Return the records of a session up to record number `to`; None returns all records.

    Raises:
        SessionNotFound: The session does not exist.
        ConfigurationError: The session has no record with that number.
    """
    records = await journal.load(key.session_id, agent=key.agent)
    if not records:
        raise SessionNotFound(key.agent, key.session_id)
    if to is not None and not 1 <= to <= len(records):
        raise ConfigurationError(
            f"the session has no record {to}: its records are numbered 1 to {len(records)}"
        )
    return records[:to]


def need_index(index: IndexQueries | None) -> IndexQueries:
    """Return `index`, or raise if the runtime was opened without an index.

    Raises:
        ConfigurationError: The runtime has no index.
    """
    if index is None:
        raise ConfigurationError(
            "this runtime has no index: pass index=True to open_runtime(), or --index to serve"
        )
    return index


def need_journal(journal: Journal | None) -> Journal:
    """Return `journal`, or raise if the runtime was opened without a journal.

    Raises:
        ConfigurationError: The runtime has no journal.
    """
    if journal is None:
        raise ConfigurationError("this runtime has no journal: pass journal= to open_runtime()")
    return journal
