"""`Runtime` and `open_runtime`: a block in which agents run, with shared events, supervision, journal and threads."""

import typing
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio

from actgent.actors.actor import Actor
from actgent.actors.actor_cell import GRACE, SystemContext, UnusedActor
from actgent.actors.actor_ref import ActorRef, Address
from actgent.actors.actor_system import ActorSystem
from actgent.actors.dead_letters import DeadLetter
from actgent.actors.event_loop_check import call_from_outside, check_loop
from actgent.actors.gc_tuning import tuned_gc
from actgent.actors.message_groups import LineOf
from actgent.actors.supervision import Supervision
from actgent.approvals import Approval
from actgent.errors import (
    ConfigurationError,
    Fenced,
    JournalError,
    JournalFailed,
    SessionNotFound,
    ThreadsStillRunning,
    UsageError,
    WouldDeadlock,
    did_you_mean,
)
from actgent.errors.text_escaping import counted
from actgent.events import EventReader, EventStream, MessageFailed
from actgent.information_flow_labels import Policy
from actgent.journal.cluster_interface import (
    LEAVE_GRACE_SECONDS,
    Membership,
    open_membership,
    register_hosted_agents,
)
from actgent.journal.journal_interface import Backup, Journal, SessionSummary, only_session_key
from actgent.journal.journal_wrappers import AsyncCommitJournal, Redact, RedactedJournal, check_redact
from actgent.journal.record_types import Record
from actgent.journal.session_list_queries import Cursor, SessionKey, State
from actgent.limits_and_schedules.clock import Clock
from actgent.limits_and_schedules.id_and_number_validation import at_least_one, check_known_id
from actgent.limits_and_schedules.quotas import Quotas
from actgent.messages import Sender
from actgent.session_index import IndexQueries
from actgent.sessions.budget_accounts import BudgetAccounts
from actgent.sessions.context_variable_propagation import Propagation, propagation_of
from actgent.sessions.quota_accounts import QuotaAccounts
from actgent.sessions.restore.session_loader import RebuiltSession, rebuild
from actgent.sessions.session_context import SessionContext, host_of, is_inside
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.common_mistake_hints import OF_RUNTIMES, hints_for_runtimes
from actgent.support.safe_logging import logger_of
from actgent.support.tracing_interface import Tracing, check_tracing
from actgent.support.unknown_name_hints import async_block
from actgent.tools.worker_threads import RUNTIME_THREADS, Threads
from actgent.toolsets.toolset_manager import ToolsetManager
from actgent.turns.event_loop_watchdog import Watch, open_watch

from .agent_actor import AgentActor
from .agent_directory import Directory
from .approval_decisions import list_approvals
from .delegation.task_delegation import Delegation
from .introspection import Introspection, fork_session, need_journal, records_up_to, share_limits
from .session_erasure import Retention, RetentionJob
from .sessions.answer_ratings import Ratings
from .sessions.moved_session_eviction import SessionPredicate
from .sessions.session_listing import filter_of, page_of
from .sessions.session_migration import SessionMigration
from .sessions.session_tree_close import closing_in_background
from .sessions.tag_and_metadata_changes import Annotations
from .waits_between_sessions import add_unknown_session_source, find_waiter

Durability = typing.Literal["full", "relaxed"]
_DURABILITIES: tuple[str, ...] = typing.get_args(Durability)
MAX_NAMED_AGENTS = 10
"""Maximum number of agent names in one log line."""
THREAD_GRACE_SECONDS = 5.0
"""Default seconds to wait for abandoned tool threads when the runtime closes."""

_RESTARTS, _KEEP_ALL = Supervision(), Retention()
"""Default options of a runtime. They are constants, because an agent that serves one request opens its own runtime."""
_log = logger_of(__name__)


class Startable(typing.Protocol):
    """Interface of an agent that a runtime can start."""

    name: str

    def __actgent_start__(self, host: "Host") -> "Sequence[Startable]": ...
    async def open_toolsets(self, runtime: "Runtime") -> None: ...
    async def __actgent_recover__(self) -> None: ...


A = TypeVar("A", bound=Startable)


@hints_for_runtimes
class Runtime(Introspection, Ratings, Annotations, SessionMigration):
    """Agents that run in one `open_runtime` block, and their shared services."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        events: EventStream,
        watch: Watch,
        threads: Threads,
        supervision: Supervision,
        journal: Journal | None,
        index: IndexQueries | None,
        propagation: Propagation,
        retention: Retention,
        quotas: Quotas | None = None,
        policy: Policy | None = None,
        is_redacted: bool = False,
        membership: Membership | None = None,
    ) -> None:
        self.stream = events
        self.membership = membership
        """Membership of this process in a cluster; None without a cluster."""
        self.policy = policy
        """Policy of agents that have no other; None if calls of these agents are not checked."""
        self.watch = watch
        self.is_redacted = is_redacted
        """True if the journal redacts texts. Then log records contain no error texts either."""
        self.threads = threads
        self.journal = journal
        self.index = index
        """Search index of the journal; None without `index=True`."""
        self.propagation = propagation
        self.drains: list[SessionPredicate] = []
        """Filters of session ids: sessions that are about to leave this process."""
        around = SystemContext(policy=supervision, events=events, find_waiter=find_waiter)
        self._system = ActorSystem(nursery, around)
        self.timer = around.timer
        self.clock = Clock()
        self.toolsets = ToolsetManager(nursery, events, self.clock.now)
        self.dead_letter = around.dead_letter
        """Function that adds a message to the dead letters."""
        owners = None if quotas is None else QuotaAccounts(quotas, journal, self.clock.now)
        self.accounts = BudgetAccounts(journal, owners)
        self.agents = Directory()
        """Agents that run in this runtime, by name and capability."""
        self.delegation = Delegation(self.agents, journal, propagation)
        self._sweeper: RetentionJob | None = None
        if journal is not None:
            self._sweeper = RetentionJob(journal, self.agents, self.accounts, self.clock, retention)
            nursery.start_soon(self._sweeper.run, name="retention")
        self.call_from_outside = call_from_outside.get()
        """Function that runs a callable in the runtime's thread, for calls from other threads; None without a portal."""
        if self.index is not None:
            nursery.start_soon(self.index.run, name="session index")
        self._nursery = nursery
        self._host = Host(self, self._system)
        self._left = False
        self._unrecovered: list[Startable] = []

    # --- starting agents ---------------------------------------------------------------------

    async def start(self, agent: A) -> A:
        """Start an agent, the agents to which it routes, and its agent tools. They run until the runtime's block exits.

        With a journal, the agents' unfinished sessions resume at once, or at the end of a `starting` block. A resumed turn that
        calls an agent which is not running waits for its start, until `ready` is called or 10 s after the last start.

        Raises:
            ConfigurationError: An agent with this name runs here or in another pool of this database, or this agent runs in
                another runtime.
            ToolsetUnavailable: A required toolset could not be connected; none of the agents was started.
            UsageError: The runtime's block is closing or closed.
        """
        _check_startable(agent)
        is_first = not self.agents.start_phase.has_begun
        self._check_open()
        started = agent.__actgent_start__(self._host)
        if self.membership is not None:
            share_limits(self.agents.models, self.membership.lender)
        await self._connect_agents(started)
        self.agents.start_phase.note_start()
        if is_first and self.journal is not None:
            self._nursery.start_soon(self._watch_start, name="start of agents")
        if self.agents.start_phase.blocks:
            self._unrecovered += started
        else:
            await _recover(started)
        await trio.lowlevel.checkpoint()
        return agent

    async def _connect_agents(self, agents: "Sequence[Startable]") -> None:
        """Announce agents to the cluster, and connect their toolsets. If one of these steps fails, stop the agents."""
        try:
            await register_hosted_agents(self.membership, [agent.name for agent in agents])
            for agent in agents:
                await agent.open_toolsets(self)
        except BaseException:
            for agent in agents:
                self.stop(agent.name)
            raise

    @asynccontextmanager
    async def starting(self) -> AsyncGenerator[None, None]:
        """Return a block in which the program starts several agents.

        When the block exits, the agents' sessions in the journal resume.

        If the block exits with an exception, the sessions do not resume before `ready` is called.
        """
        self.agents.start_phase.blocks += 1
        try:
            yield
        finally:
            self.agents.start_phase.blocks -= 1
        if not self.agents.start_phase.blocks:
            await self.ready()

    async def ready(self) -> None:
        """Declare that all agents are started.

        Resumed turns that wait for an agent which is not running fail, and a log warning names the missing agents.

        Sessions of an agent that is not running stay in the journal, and resume when the agent is started.
        """
        unrecovered, self._unrecovered = self._unrecovered, []
        await _recover(unrecovered)
        self.agents.start_phase.end()
        await self._log_missing_agents()
        await trio.lowlevel.checkpoint()

    async def _watch_start(self) -> None:
        """Wait until the start phase has ended. Then log the agents that have unfinished sessions and are not running."""
        await self.agents.start_phase.wait_ended()
        await self._log_missing_agents()

    async def _log_missing_agents(self) -> None:
        """Log a warning with the agents that are not running but have unfinished sessions in the journal, at most once."""
        if self.agents.start_phase.has_logged or self.journal is None:
            return
        self.agents.start_phase.has_logged = True
        try:
            waiting = await self.journal.waiting()
        except (Fenced, JournalError) as error:
            _log.warning("sessions that wait for agents that are not started cannot be listed: %s", error)
            return
        missing = sorted(name for name in waiting if name not in self.agents)
        if missing:
            names = ", ".join(f"{name!r} ({waiting[name]})" for name in missing[:MAX_NAMED_AGENTS])
            more = f" and {len(missing) - MAX_NAMED_AGENTS} more" if len(missing) > MAX_NAMED_AGENTS else ""
            _log.warning(
                "unfinished sessions in the journal wait for agents that are not started: %s%s", names, more
            )

    # --- plain actors ------------------------------------------------------------------------

    async def spawn(
        self,
        factory: Callable[[], Actor],
        *,
        name: str | None = None,
        children: Supervision | None = None,
        grace: float = GRACE,
        concurrency: int = 1,
        line_of: LineOf | None = None,
    ) -> ActorRef:
        """Start a plain actor under the runtime's supervision. If cancelled, no actor is started.

        Args:
            factory: Actor class, or a function that returns a new actor; called again for each restart.
            name: Address, unique among the agents and actors of the runtime; None generates one.
            children: Supervision of the actors that this actor starts; None uses that of the runtime.
            grace: Maximum seconds for the actor to process its queued messages when the runtime closes.
            concurrency: Maximum number of messages processed at the same time, plus one URGENT message; 1 is sequential.
            line_of: Function that returns the group of a payload, such as a user's name; messages of one group are
                processed in order. None: all messages run concurrently.

        Raises:
            ConfigurationError: The name is taken, or another argument is invalid.
            UsageError: The runtime's block is closing or closed.
        """
        self._check_open()
        if isinstance(factory, type) and hasattr(factory, "__actgent_start__"):
            text = f"a runtime spawns actors, not the agent class {factory.__name__}"
            raise ConfigurationError(f"{text}: write await runtime.start({factory.__name__}(...))")
        given: object = factory
        if not callable(given):
            kind = type(given).__name__
            raise ConfigurationError(
                f"a runtime spawns an actor class, because a restart creates a new object, not an object of {kind}: write "
                f"await runtime.spawn({kind}), or pass a function that returns a new {kind}"
            )
        return await self._system.spawn(
            factory, name=name, children=children, grace=grace, concurrency=concurrency, line_of=line_of
        )

    def find(self, name: str) -> Address | None:
        """Return the address of an agent or actor, with the methods `tell` and `ask`.

        Return None if no such actor runs in this process.
        """
        return self._system.address(name)

    def stop(self, name: str) -> None:
        """Stop an agent or actor at once; unknown names are ignored.

        Running turns of an agent end as `Failure(kind="stopped")`. The agent can be started again.
        """
        self._system.stop(name)

    @property
    def count(self) -> int:
        """Number of running agents and actors, including child actors."""
        return self._system.count

    def __repr__(self) -> str:
        agents = len(self.agents)
        letters = len(self._system.dead_letters)
        others = counted(self.count - agents, "actor")
        return f"<Runtime: {counted(agents, 'agent')}, {others}, {counted(letters, 'dead letter')}>"

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Newest 1,000 messages that no agent or actor processed, oldest first."""
        add_unknown_session_source()
        return self._system.dead_letters

    @property
    def failures(self) -> tuple[MessageFailed, ...]:
        """Newest 1,000 messages that failed in this runtime, oldest first. Messages that a caller stopped are omitted."""
        add_unknown_session_source()
        return tuple(self.stream.failures)

    async def send_again(self, letter: DeadLetter) -> None:
        """Redeliver a dead letter to the agent or actor that it names, and remove it from the list of dead letters.

        If the redelivery fails or is cancelled, the letter stays in the list.

        Raises:
            DeadLetterGone: The letter was redelivered already, another task is redelivering it, or it was dropped from the
                list.
            ActorFailed: No agent or actor with this name is running.
            InboxFull: The inbox was still full at the deadline.
        """
        await self._system.send_again(letter)

    # --- what happens in it ------------------------------------------------------------------

    def events(self, capacity: int = 1000) -> AbstractAsyncContextManager[EventReader]:
        """Return an `async with` block that yields a receive channel of all future events of the runtime.

        The channel buffers at most `capacity` events. If the reader is slow, the oldest events are dropped and counted in
        `lost`.
        """
        add_unknown_session_source()
        return self.stream.read(capacity)

    async def approvals(
        self, *, owner: Sender | str | None = None, after: Approval | None = None, limit: int = 100
    ) -> tuple[Approval, ...]:
        """List the open approvals of all agents in this process. `agent.answer` decides them.

        Args:
            owner: Return only approvals of this owner's sessions; None returns those of all owners. Services that show
                approvals to their users must pass it, because approvals contain the arguments of the calls.
            after: Last approval of the previous page; None starts at the first page.
            limit: Maximum number of sessions per page. An empty page is the end.
        """
        add_unknown_session_source()
        for running in self._agents_by_name():
            if after is None or running.name >= after.agent:
                behind = after.session_id if after is not None and running.name == after.agent else ""
                if found := await list_approvals(running, owner=owner, after=behind, limit=limit):
                    return found
        await trio.lowlevel.checkpoint()
        return ()

    async def sessions(
        self,
        *,
        owner: Sender | str | None = None,
        agent: str | None = None,
        state: State | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
        after: SessionSummary | Cursor | None = None,
        limit: int = 100,
    ) -> tuple[SessionSummary, ...]:
        """Return at most `limit` matching sessions, sorted by their last change, newest first.

        A session matches if it has all `tags` and all values of `metadata`. Pass the last summary as `after` for the next
        page; an empty page is the end. With a journal, all its sessions are listed without loading them, also those of agents
        that are not running. Without a journal, the open sessions in memory are listed.

        Raises:
            ConfigurationError: The state is unknown, the limit is below 1, or a tag or the metadata is invalid.
            JournalError: The journal cannot be read.
        """
        wanted = filter_of(owner, agent, state, tags, metadata)
        contexts = (context for running in self._agents() for context in running.sessions.values())
        return tuple(await page_of(self.journal, contexts, wanted, after=after, limit=limit))

    # --- sessions as they were ----------------------------------------------------------------

    async def rebuild(
        self, session_id: str, *, agent: str | None = None, to: int | None = None
    ) -> RebuiltSession:
        """Rebuild a session as it was after its record number `to` (None: its last record), without calling models or tools.

        Raises:
            ConfigurationError: The runtime has no journal, the record does not exist, or several agents have a session with
                this id.
            SessionNotFound: The journal has no such session.
            JournalError: The journal cannot be read.
        """
        _, records = await self.read_session(session_id, agent=agent)
        return await rebuild(records, to=to, session_id=session_id)

    async def read_session(
        self, session_id: str, *, agent: str | None = None, to: int | None = None
    ) -> tuple[SessionKey, tuple[Record, ...]]:
        """Return the key of a session, and its records up to record number `to`; None returns all records.

        Raises:
            ConfigurationError: The runtime has no journal, the record does not exist, or several agents have a session with
                this id.
            SessionNotFound: The journal has no such session.
            JournalError: The journal cannot be read.
        """
        add_unknown_session_source()
        journal = need_journal(self.journal)
        key = await self._need_key(session_id, agent)
        return key, await records_up_to(journal, key, to)

    async def fork(
        self, session_id: str, *, agent: str | None = None, to: int | None = None, new_id: str | None = None
    ) -> SessionSummary:
        """Copy a session as it was after its record number `to` into a new session of the journal.

        The copy has no schedules, and uses the budget of the original. A turn that is open at the record resumes when
        `agent.open_session` opens the copy.

        Raises:
            ConfigurationError: The runtime has no journal, the record does not exist, several agents have a session with this
                id, or the new id is invalid.
            SessionExists: A session with the new id exists; no copy was written.
            SessionNotFound: The journal has no such session.
            JournalError: The journal cannot be read or written.
            ServerUnreachable: In a cluster, the node that owns the new id did not answer; the copy may be written or not.
        """
        journal = need_journal(self.journal)
        key = await self._need_key(session_id, agent)
        return await fork_session(
            journal, key, to, new_id, remote_sessions=self.remote_sessions, agents=self.agents
        )

    async def _need_key(self, session_id: str, agent: str | None) -> SessionKey:
        key = await self._key_of(session_id, agent)
        if key is None:
            raise SessionNotFound(agent or "", session_id)
        return key

    async def backup(self, path: Path | str) -> Backup:
        """Copy the journal to a new file and verify the copy, while the agents continue.

        The copy has all records that were confirmed before the call, and may have later ones. A PostgreSQL journal is copied by
        pg_dump.

        Raises:
            ConfigurationError: The runtime has no journal or no file, or the path exists.
            JournalDamaged: The journal is damaged; no file was written.
            JournalFailed: The journal cannot be read, or the copy cannot be written.
        """
        return await need_journal(self.journal).backup(Path(path))

    async def delete_session(self, session_id: str, *, agent: str | None = None) -> None:
        """Close a session and its children, and erase all their records from the journal. Erased sessions cannot be restored.

        An unknown session is ignored. `agent` is required if several agents have a session with this id.

        Raises:
            ConfigurationError: The id is not a text, or several agents have a session with this id and `agent`
                is missing.
            WouldDeadlock: The call is made by a handler or tool of the session.
            JournalError: The records could not be erased; repeat the call.
        """
        if (key := await self._key_of(session_id, agent)) is not None:
            await self.delete_at_owner(key, self._delete)

    async def _delete(self, key: SessionKey) -> None:
        await self._close_before_erasure(key)
        if (journal := self.journal) is None:
            return
        left = [key]
        while left:
            if below := await self._erase(journal, left[-1]):
                left += below
            else:
                left.pop()

    async def _erase(self, journal: Journal, key: SessionKey) -> list[SessionKey]:
        """Close a session, and erase it if it has no children. If it has children, return them and erase nothing.

        So children are erased before their parent. After a crash, the next erasure finds the remaining children by their parent.
        The caller prevents other tasks from opening the session.
        """
        while True:
            await self._close_before_erasure(key)
            async with self.agents.erasing_session(key) as is_gone:
                if not is_gone:
                    continue
                below = [each.key for each in await journal.children_of([key])]
                if not below:
                    self.accounts.forget(key)
                    await journal.delete(key.session_id, agent=key.agent)
                return below

    async def _close_before_erasure(self, key: SessionKey) -> None:
        """Close a session and its descendants in memory, and drop their unwritten records.

        Raises:
            WouldDeadlock: The caller is a handler or tool of one of these sessions.
        """
        running = self._system.body(key.agent)
        if not isinstance(running, AgentActor):
            return
        context = running.sessions.reload_any(key.session_id)
        if context is None:
            running.core.observer.drop_moved(key.session_id.__eq__)
            return
        if any(is_inside(each.turn) for each in context.family()):
            raise WouldDeadlock("delete_session()", key.session_id)
        with closing_in_background(context, self.journal, self.agents.opener):
            for each in await host_of(context).close(context):
                if each.log is not None:
                    each.log.close()
                each.log = None  # records written after its end would be lost

    async def _key_of(self, session_id: str, agent: str | None) -> SessionKey | None:
        check_known_id("session_id", session_id)
        if agent is not None:
            return SessionKey(agent, session_id)
        names = [running.name for running in self._agents()]  # an unused agent has no session in memory
        agents = {name for name in names if self._find_session(SessionKey(name, session_id)) is not None}
        if self.journal is not None:
            agents.update(await self.journal.agents_with_session(session_id))
        return only_session_key([*agents], session_id)

    def _find_session(self, key: SessionKey) -> SessionContext | None:
        """Return the context of a session in memory, or of an unloaded session whose `Session` object the program holds.

        Return None for other sessions.
        """
        running = self._system.body(key.agent)
        return running.sessions.find_any(key.session_id) if isinstance(running, AgentActor) else None

    def _check_open(self) -> None:
        """Raise if the runtime's block is closing or closed.

        Raises:
            UsageError: The block is closing or closed.
        """
        if self._left:
            raise UsageError(
                "this runtime is closed or closing, because its open_runtime() block has ended: open a new runtime"
            )

    def _agents(self) -> Iterator[AgentActor]:
        """Return the running agents, without plain actors."""
        return (body for body in self._system.bodies() if isinstance(body, AgentActor))

    async def _complete(self) -> None:
        """Reject new starts, let agents and actors finish accepted messages within their grace, and erase ended sessions."""
        self._left = True
        await self._system.drain()
        if self._sweeper is not None:
            await self._sweeper.finish()

    def note_ended(self, key: SessionKey) -> None:
        """Schedule the erasure of a session that was created for one request and has ended."""
        if self._sweeper is not None:
            self._sweeper.schedule(key)


@attrs.frozen(repr=False)
class Host(FieldRepr):
    """Interface of a runtime to the agents that it starts: name checks, and running their actors."""

    runtime: Runtime
    _system: ActorSystem
    loop: trio.lowlevel.TrioToken = attrs.field(factory=trio.lowlevel.current_trio_token)
    """Event loop of the runtime."""

    def check_names(self, names: Sequence[str]) -> None:
        """Raise if one of the names of new agents is taken. Call this method before the first of these agents is started.

        Raises:
            ConfigurationError: An agent or actor with one of the names is running.
        """
        for index, name in enumerate(names):
            if self._system.has(name) or name in names[:index]:
                raise ConfigurationError(
                    f"an agent or actor named {name!r} runs here already: choose another name"
                )

    def run(self, running: AgentActor, *, grace: float) -> None:
        """Start the actor of an agent. When the runtime's block exits, the agent has `grace` seconds to finish its work."""
        self._system.host(running, grace=grace)

    def run_at_first_use(self, agent: UnusedActor, *, grace: float) -> None:
        """Register an agent whose actor `use` builds and starts. `grace` has the meaning as in `run`."""
        self._system.host_unused(agent, grace=grace)

    def use(self, name: str) -> None:
        """Build and start the actor of the agent `name`, which `run_at_first_use` has registered."""
        self._system.use(name)


async def _recover(agents: Sequence[Startable]) -> None:
    for agent in agents:
        await agent.__actgent_recover__()


def _check_startable(agent: object) -> None:
    if isinstance(agent, type):
        raise ConfigurationError(
            f"start() takes an agent, not the class {agent.__name__}: write {agent.__name__}(...)"
        )
    if not hasattr(agent, "__actgent_start__"):
        raise ConfigurationError(
            f"start() takes an agent, not {agent!r:.200}: pass an agent, or start a plain actor with spawn()"
        )


def _check_durability(durability: Durability, *, has_journal: bool) -> None:
    """Raise if `durability` is unknown or needs a journal.

    Raises:
        ConfigurationError: The durability is unknown, or the runtime has no journal.
    """
    if durability not in _DURABILITIES:
        hint = did_you_mean(durability, _DURABILITIES)
        raise ConfigurationError(
            f"durability= must be 'full' or 'relaxed', not {durability!r:.200} {hint}".rstrip()
        )
    if durability != "full" and not has_journal:
        raise ConfigurationError("durability= requires a journal: pass journal=, or omit durability=")


def _open_journal(
    journal: str | Journal | None, durability: Durability, redact: Redact | None
) -> AbstractAsyncContextManager[Journal | None]:
    """Return a block that owns the journal in this process, and yields it; None without a journal.

    A journal given as an address is opened first. The journal is wrapped for `redact` and for relaxed durability if requested.
    """
    return nullcontext() if journal is None else _owned(journal, durability, redact)


@asynccontextmanager
async def _owned(
    journal: str | Journal, durability: Durability, redact: Redact | None
) -> AsyncGenerator[Journal, None]:
    if isinstance(journal, Journal):
        await _acquire(journal)
        if redact is not None:
            journal = RedactedJournal(journal, redact)
        yield (AsyncCommitJournal(journal) if durability == "relaxed" else journal)
    else:
        from actgent.journal.journal_url import open_journal  # noqa: PLC0415 - loads 13 modules of group commit

        async with open_journal(journal) as opened, _owned(opened, durability, redact) as owned:
            yield owned


def _open_index(
    journal: Journal | None, *, has_index: bool
) -> AbstractAsyncContextManager[tuple[Journal | None, IndexQueries | None]]:
    """Return a block that yields the journal and its index; the index is None if `has_index` is False.

    Raises:
        ConfigurationError: `has_index` is True, and the runtime has no journal.
    """
    if not has_index:
        return nullcontext((journal, None))
    if journal is None:
        raise ConfigurationError("index=True requires a journal: pass journal=, or omit index=")
    return _indexed(journal)


@asynccontextmanager
async def _indexed(journal: Journal) -> AsyncGenerator[tuple[Journal, IndexQueries], None]:
    from actgent.session_index.session_index import IndexedJournal, open_index  # noqa: PLC0415 - loads 8 modules

    async with open_index(journal) as index:
        yield IndexedJournal(journal, index), index


async def _acquire(journal: Journal) -> None:
    """Acquire ownership of a journal. Errors are raised without the frames of the storage driver."""
    try:
        await journal.acquire()
    except (JournalFailed, ConfigurationError) as error:
        raise error.with_traceback(None) from None


def _check_kinds(**arguments: tuple[object, type]) -> None:
    """Raise if an argument is neither None nor an instance of its class.

    Raises:
        ConfigurationError: An argument is of another class; the text names the argument.
    """
    for name, (value, kind) in arguments.items():
        if not isinstance(value, kind | None):
            raise ConfigurationError(f"{name}= must be {kind.__name__}(...), not {value!r:.200}")


def _check_policy(policy: Policy | None) -> None:
    """Raise if a policy for all agents isolates untrusted text. Isolation adds a tool, so this policy is set per agent.

    Raises:
        ConfigurationError: The policy isolates untrusted text.
    """
    if policy is not None and policy.untrusted == "isolate":
        raise ConfigurationError(
            'open_runtime(policy=) takes a policy with untrusted="show": isolation adds the tool extract to an agent, so pass '
            'Policy(untrusted="isolate") to each agent'
        )


def _check_quotas(quotas: Quotas | None, journal: str | Journal | None, *, is_cluster: bool) -> None:
    """Raise if quotas are combined with a journal that several processes share. Quotas are counted by one process.

    Raises:
        ConfigurationError: Several processes own the journal.
    """
    if quotas is not None and (is_cluster or (isinstance(journal, Journal) and journal.is_shared)):
        raise ConfigurationError(
            "quotas= cannot be combined with cluster=, because one process must count the amounts: omit one of the two; "
            "limits= of sessions and runs also apply in a cluster"
        )


@async_block(OF_RUNTIMES)
async def open_runtime(
    *,
    journal: str | Journal | None = None,
    durability: Durability = "full",
    redact: Redact | None = None,
    context: Iterable[ContextVar[Any]] = (),
    retention: Retention | None = None,
    index: bool = False,
    quotas: Quotas | None = None,
    supervision: Supervision | None = None,
    policy: Policy | None = None,
    max_threads: int = RUNTIME_THREADS,
    thread_grace: float = THREAD_GRACE_SECONDS,
    telemetry: Tracing | None = None,
    cluster: str | None = None,
    advertise: str | None = None,
    node: str | None = None,
) -> AsyncGenerator[Runtime, None]:
    """Open a block in which agents run. When it exits, all agents, actors and their threads have ended.

    With a journal (`sqlite:///agents.db`, `postgres://HOST/DATABASE`, or an open `Journal`), accepted messages survive
    the process, and starting their agent resumes the sessions. On a normal exit each agent may finish its accepted
    messages within its `grace`; an exception stops all agents at once. Unfinished turns end as `Failure(kind="stopped")`.

    Args:
        journal: Address of a journal, or an open one; None keeps sessions in memory only.
        durability: "relaxed" does not wait for the disk. A crash then loses about the last 50 ms of accepted messages and
            answers. No tool runs twice because of this loss.
        redact: Function that gets each text before it is recorded, and returns the text to record; see
            docs/durability.md.
        context: Context variables that the journal stores with each message; their values must be plain data. Resumed
            turns have these variables and the `traceparent` of their sender, and no others.
        retention: Maximum age of sessions in the journal. Sessions of `run` and `tell` without a session are always
            erased after they end.
        index: True keeps an index next to the journal, for `runtime.search` and `runtime.trends`. It is filled in the
            background, and sessions are erased from it with the journal. It needs a journal that is neither encrypted nor
            shared by a cluster.
        quotas: Limits for all sessions of an owner per day or month, also across restarts.
        supervision: Restarts of agents and actors after failures; None uses the defaults.
        policy: Checks of tool calls of all agents without a policy; see docs/guides/prompt-injection.md. None checks nothing.
        max_threads: Maximum number of sync tools of all agents that run at the same time.
        thread_grace: Seconds to wait for abandoned tool threads when the block exits.
        telemetry: Tracing and metrics, such as `Telemetry()` of the extra `otel`; None for none.
        cluster: Name of a cluster with a PostgreSQL journal. Each session is owned by one node at a time, and all nodes
            with this name run the same agents; see docs/guides/cluster.md. None runs a single process.
        advertise: URL of this node for other nodes, `http://HOST:PORT`; the runtime listens at that port. None listens at
            a free port of 127.0.0.1, for nodes on the same machine.
        node: Prefix of this node's name. The node owns sessions after its agents are started.

    Raises:
        OutsideTrio: The code runs under asyncio, or without an event loop.
        ConfigurationError: The journal's address, the durability, `redact` or another argument is invalid, the cluster
            has no PostgreSQL journal, or the port of `advertise` is taken.
        Fenced: Another process owns the journal.
        JournalError: The journal cannot be opened.
        ActorFailed: In an ExceptionGroup, if an agent or actor failed too often and `Supervision(escalate=True)` is set.
        ThreadsStillRunning: Sync tools were still running in threads after `thread_grace` seconds.
    """
    check_loop("open_runtime()")
    propagation = propagation_of(context)
    check_tracing(telemetry)
    _check_kinds(
        retention=(retention, Retention),
        quotas=(quotas, Quotas),
        supervision=(supervision, Supervision),
        policy=(policy, Policy),
    )
    _check_policy(policy)
    _check_quotas(quotas, journal, is_cluster=cluster is not None)
    _check_durability(durability, has_journal=journal is not None)
    check_redact(redact)
    tool_threads = Threads(at_least_one("max_threads", max_threads))
    error: BaseException | None = None
    with tuned_gc(), open_watch() as watch, EventStream(telemetry) as events:
        async with (
            open_membership(journal, cluster, advertise=advertise, node=node) as membership,
            _open_journal(journal if membership is None else membership.journal, durability, redact) as owned,
            _open_index(owned, has_index=index) as (opened, queries),
            trio.open_nursery() as nursery,
        ):
            runtime = Runtime(
                nursery,
                events=events,
                watch=watch,
                threads=tool_threads,
                # A node without one of its agents would keep sessions that it cannot serve, so it leaves the cluster.
                supervision=supervision or (_RESTARTS if membership is None else Supervision(escalate=True)),
                journal=opened,
                index=queries,
                propagation=propagation,
                retention=retention or _KEEP_ALL,
                quotas=quotas,
                policy=policy,
                is_redacted=redact is not None,
                membership=membership,
            )
            if runtime.accounts.owners is not None:
                await runtime.accounts.owners.load()
            nursery.start_soon(runtime.timer.run, name="timer")
            try:
                if membership is not None:
                    await nursery.start(membership.serve, runtime, name="cluster")
                yield runtime
                if membership is not None:
                    await membership.leave(LEAVE_GRACE_SECONDS)
                await runtime._complete()  # noqa: SLF001 - both belong to this module
                runtime._system.retire_idle()  # noqa: SLF001
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - raised again below, not wrapped into a group
                error = raised
            runtime._left = True  # noqa: SLF001
            nursery.cancel_scope.cancel()
            await runtime._system.finish_unused()  # noqa: SLF001
    try:
        await tool_threads.wait_abandoned(thread_grace)
    except ThreadsStillRunning as left:
        if error is None or isinstance(error, trio.Cancelled):
            raise
        error.add_note(str(left))  # the block's own exception comes first
    if error is not None:
        raise error
