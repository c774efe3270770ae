"""A block in which agents run: one event stream, one supervision, one account of threads."""

import typing
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio

from actgent.actors.actor import Actor
from actgent.actors.cell import GRACE, SystemContext
from actgent.actors.dead_letters import DeadLetter
from actgent.actors.event_loop import check_loop
from actgent.actors.gc_tuning import tuned_gc
from actgent.actors.message_groups import LineOf
from actgent.actors.ref import ActorRef, Address
from actgent.actors.supervision import Supervision
from actgent.actors.system import ActorSystem
from actgent.approvals import Approval
from actgent.control.arguments import at_least_one
from actgent.control.clock import Clock
from actgent.control.quotas import Quotas
from actgent.errors import (
    ConfigurationError,
    Fenced,
    JournalError,
    JournalFailed,
    SessionNotFound,
    ThreadsLeft,
    UsageError,
    WouldDeadlock,
    meant,
)
from actgent.errors.printable import counted
from actgent.events import EventReader, EventStream, MessageFailed
from actgent.journal.base import Backup, Journal, SessionSummary, one_of
from actgent.journal.listing import Cursor, SessionKey, State
from actgent.journal.membership import LEAVING_GRACE, Membership, hosted, open_membership
from actgent.journal.opening import open_journal
from actgent.journal.records import Record
from actgent.journal.wrapped import Redact, RedactedJournal, RelaxedJournal, check_redact
from actgent.messages import Sender
from actgent.sessions.accounts import Accounts
from actgent.sessions.context import SessionContext, host_of
from actgent.sessions.owner_accounts import OwnerAccounts
from actgent.sessions.propagation import Propagation, propagation_of
from actgent.sessions.restore import Rebuilt, rebuild
from actgent.sessions.turn import is_inside
from actgent.support.hints import async_block
from actgent.support.leads import OF_RUNTIMES, for_runtimes
from actgent.support.logs import logger_of
from actgent.support.tracing import Tracing, check_tracing
from actgent.tools.threads import ALL_THREADS, Threads
from actgent.toolsets.host import ToolsetHost
from actgent.turns.watchdog import Watch, open_watch

from .actor import AgentActor
from .approval_decisions import list_approvals
from .delegation.giving import Delegation
from .directory import Directory
from .insight import Insight, fork_session, need_journal, records_up_to, share_limits
from .retention import Retention, Sweeper
from .sessions.feedback import Ratings
from .sessions.leaving import IsLeft
from .sessions.lists import filter_of, page_of
from .sessions.moving import Moving
from .slots import find_waiter

Durability = typing.Literal["full", "relaxed"]
SAID = 10
"""The number of agents one line of the log names."""
THREAD_GRACE = 5.0
"""Seconds that leaving a runtime waits for threads that nobody waits for any more."""

_log = logger_of(__name__)


class Startable(typing.Protocol):
    """An agent, as far as a runtime is concerned."""

    name: str

    def __actgent_start__(self, host: "Host") -> "Sequence[Startable]": ...
    async def open_toolsets(self, runtime: "Runtime") -> None: ...
    async def __actgent_recover__(self) -> None: ...


A = TypeVar("A", bound=Startable)


@for_runtimes
class Runtime(Insight, Ratings, Moving):
    """The agents that run in one block, and what they share."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        events: EventStream,
        watch: Watch,
        threads: Threads,
        supervision: Supervision,
        journal: Journal | None,
        propagation: Propagation,
        retention: Retention,
        quotas: Quotas | None = None,
        is_redacted: bool = False,
        membership: Membership | None = None,
    ) -> None:
        self.stream = events
        self.membership = membership
        """Its place in a cluster; None: it has none."""
        self.watch = watch
        self.is_redacted = is_redacted
        """True if texts are taken out of what is written, so that the log has none of errors either."""
        self.threads = threads
        self.journal = journal
        self.propagation = propagation
        self.drains: list[IsLeft] = []
        """Which sessions are about to leave this process."""
        around = SystemContext(policy=supervision, events=events, find_waiter=find_waiter)
        self._system = ActorSystem(nursery, around)
        self.timer = around.timer
        self.toolsets = ToolsetHost(nursery, events)
        self.bury = around.bury
        """Keeps a message that nobody will deal with."""
        self.clock = Clock()
        owners = None if quotas is None else OwnerAccounts(quotas, journal, self.clock.now)
        self.accounts = Accounts(journal, owners)
        self.agents = Directory()
        """The agents that run here, by name and by what they can do."""
        self.delegation = Delegation(self.agents, journal, propagation)
        self._sweeper: Sweeper | None = None
        if journal is not None:
            self._sweeper = Sweeper(journal, self.agents, self.accounts, self.clock, retention)
            nursery.start_soon(self._sweeper.run, name="retention")
        self._nursery = nursery
        self._left = False
        self._unrecovered: list[Startable] = []

    # --- starting agents ---------------------------------------------------------------------

    async def start(self, agent: A) -> A:
        """Start an agent, and those that it routes to or has as tools; they run until the block is left.

        With a journal their sessions go on at once, or at the end of a `starting` block. A turn from the journal that
        calls an agent which does not run waits for its start: until `ready`, or 10 s after the last start.

        Raises:
            ConfigurationError: an agent of this name runs here or in another pool of this database, or this agent runs elsewhere.
            ToolsetUnavailable: a required toolset could not be connected; none of the agents was started.
            UsageError: the runtime's block is being left, or was.
        """
        _check_startable(agent)
        is_first = not self.agents.starting.has_begun
        self._check_open()
        started = agent.__actgent_start__(Host(self, self._system))
        if self.membership is not None:
            share_limits(self._agents(), self.membership.lender)
        await self._equip(started)
        self.agents.starting.note_start()
        if is_first and self.journal is not None:
            self._nursery.start_soon(self._watch_start, name="start of agents")
        if self.agents.starting.blocks:
            self._unrecovered += started
        else:
            await _recover(started)
        await trio.lowlevel.checkpoint()
        return agent

    async def _equip(self, agents: "Sequence[Startable]") -> None:
        """Connect the toolsets of agents, which serve from then on; if that or `hosted` fails, they stop."""
        try:
            await hosted(self.membership, [agent.name for agent in agents])
            for agent in agents:
                await agent.open_toolsets(self)
        except BaseException:
            for agent in agents:
                self.stop(agent.name)
            raise

    @asynccontextmanager
    async def starting(self) -> AsyncGenerator[None, None]:
        """A block in which several agents are started; their sessions in the journal go on at its end, as by `ready`.

        After an exception they do not: call `ready` to go on all the same.
        """
        self.agents.starting.blocks += 1
        try:
            yield
        finally:
            self.agents.starting.blocks -= 1
        if not self.agents.starting.blocks:
            await self.ready()

    async def ready(self) -> None:
        """All agents are started: what waits for further ones goes on without them, and the log names those that are missed.

        Sessions in the journal whose agent does not run stay there, and go on when it is started.
        """
        unrecovered, self._unrecovered = self._unrecovered, []
        await _recover(unrecovered)
        self.agents.starting.end()
        await self._tell_waiting()
        await trio.lowlevel.checkpoint()

    async def _watch_start(self) -> None:
        """Tell whose sessions wait where the program never says that all agents are there."""
        await self.agents.starting.wait_over()
        await self._tell_waiting()

    async def _tell_waiting(self) -> None:
        """Name the agents in the log, once, that do not run and whose sessions the journal has in the middle of something."""
        if self.agents.starting.has_told or self.journal is None:
            return
        self.agents.starting.has_told = True
        try:
            waiting = await self.journal.waiting()
        except (Fenced, JournalError) as error:
            _log.warning("nobody knows which sessions wait for agents that are not started: %s", error)
            return
        missing = sorted(name for name in waiting if name not in self.agents)
        if missing:
            names = ", ".join(f"{name!r} ({waiting[name]})" for name in missing[:SAID])
            more = f" and {len(missing) - SAID} more" if len(missing) > SAID else ""
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
        """Start a plain actor beside the agents, under the same supervision; cancelled, it starts nothing.

        Args:
            factory: The class, or a function that makes an object of it; a restart makes a new one.
            name: Its address, which no agent and no other actor here has; None makes one up.
            children: How it supervises the actors that it starts; None is as the runtime supervises it.
            grace: Seconds to end what is in its inbox when the runtime's block is left.
            concurrency: How many messages it takes side by side, and one more that is URGENT; 1 is one after the other.
            line_of: A function of the payload that returns its line, a text, e.g. a user's name: messages of one line are
                taken one after the other. None lets each be a line of its own.

        Raises:
            ConfigurationError: the name is taken, or another argument is wrong.
            UsageError: the runtime's block is being left, or was.
        """
        self._check_open()
        return await self._system.spawn(
            factory, name=name, children=children, grace=grace, concurrency=concurrency, line_of=line_of
        )

    def find(self, name: str) -> Address | None:
        """The address of the agent or actor of this name, for `tell` and `ask`; None if none runs here."""
        return self._system.address(name)

    def stop(self, name: str) -> None:
        """End an agent or actor where it is; nothing happens if none of this name runs.

        Turns of an agent that still run end as `Failure(kind="stopped")`. It can be started again.
        """
        self._system.stop(name)

    @property
    def count(self) -> int:
        """The number of agents and actors that run here, children too."""
        return self._system.count

    def __repr__(self) -> str:
        agents = sum(1 for _ in self._agents())
        letters = len(self.dead_letters)
        others = counted(self.count - agents, "actor")
        return f"<Runtime: {counted(agents, 'agent')}, {others}, {counted(letters, 'dead letter')}>"

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The newest 1,000 messages that no agent and no actor dealt with, oldest first."""
        return self._system.dead_letters

    @property
    def failures(self) -> tuple[MessageFailed, ...]:
        """The newest 1,000 messages that ended as failures here, oldest first; not those that somebody stopped."""
        return tuple(self.stream.failures)

    async def send_again(self, letter: DeadLetter) -> None:
        """Send a dead letter to the agent or actor that has its name now; once it is accepted, it leaves the list.

        If that fails or is cancelled, the letter stays in the list.

        Raises:
            DeadLetterGone: it was sent already, another task is sending it, or it fell out of the list.
            ActorFailed: no agent and no actor of this name runs.
            InboxFull: the inbox was still full at its deadline.
        """
        await self._system.send_again(letter)

    # --- what happens in it ------------------------------------------------------------------

    def events(self, capacity: int = 1000) -> AbstractAsyncContextManager[EventReader]:
        """An `async with` block with a receive channel of everything that happens from now on.

        It keeps at most `capacity` events: a slow reader loses the oldest, and `lost` counts them.
        """
        return self.stream.read(capacity)

    async def approvals(
        self, *, owner: Sender | str | None = None, after: Approval | None = None, limit: int = 100
    ) -> tuple[Approval, ...]:
        """List the open approvals of all agents here. `agent.answer` decides them.

        Args:
            owner: Only approvals of this owner's sessions; None lists those of all owners. A service that shows approvals to
                its users has to pass it, because approvals have the arguments of the calls.
            after: The last approval of the page before.
            limit: The most sessions of a page. An empty page is the end.
        """
        for running in self._by_name():
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
        after: SessionSummary | Cursor | None = None,
        limit: int = 100,
    ) -> tuple[SessionSummary, ...]:
        """List at most `limit` sessions that fit, by their last change, the newest first.

        Pass the last one as `after` for the next page; an empty page is the end. With a journal all that it has are listed,
        also those of agents that do not run, without loading any; without one, the open sessions in memory.

        Raises:
            ConfigurationError: there is no such state, or the limit is below 1.
            JournalError: the journal cannot be read.
        """
        wanted = filter_of(owner, agent, state)
        contexts = (context for running in self._agents() for context in running.sessions.values())
        return tuple(await page_of(self.journal, contexts, wanted, after=after, limit=limit))

    # --- sessions as they were ----------------------------------------------------------------

    async def rebuild(self, session_id: str, *, agent: str | None = None, to: int | None = None) -> Rebuilt:
        """Make a session again as it was after its record `to`, or after the last, without model and tools.

        Raises:
            ConfigurationError: there is no journal or no such record, or several agents have a session of this id.
            SessionNotFound: the journal has no such session.
            JournalError: it cannot be read.
        """
        _, records = await self.read_session(session_id, agent=agent)
        return await rebuild(records, to=to, session_id=session_id)

    async def read_session(
        self, session_id: str, *, agent: str | None = None, to: int | None = None
    ) -> tuple[SessionKey, tuple[Record, ...]]:
        """The records of a session up to the number `to`, or all, and whose it is.

        Raises:
            ConfigurationError, SessionNotFound, JournalError: see `rebuild`.
        """
        journal = need_journal(self.journal)
        key = await self._need_key(session_id, agent)
        return key, await records_up_to(journal, key, to)

    async def fork(
        self,
        session_id: str,
        *,
        agent: str | None = None,
        to: int | None = None,
        new_id: str | None = None,
    ) -> SessionSummary:
        """Write a copy of a session, as it was after its record `to`.

        The copy has no schedules, and draws on the budget of its original. A turn that is open at the record waits in the
        copy until `agent.open_session` opens the copy, and goes on then.

        Raises:
            ConfigurationError: there is no journal or no such record, several agents have a session of this id, or the new
                id is none.
            SessionExists: there is a session of the new id; nothing was written.
            SessionNotFound: the journal has no such session.
            JournalError: it cannot be read, or the copy not be written.
            BrokerLost: in a cluster, the node of the new id did not answer; the copy may be written.
        """
        journal = need_journal(self.journal)
        key = await self._need_key(session_id, agent)
        return await fork_session(journal, key, to, new_id, elsewhere=self.elsewhere, agents=self.agents)

    async def _need_key(self, session_id: str, agent: str | None) -> SessionKey:
        key = await self._key_of(session_id, agent)
        if key is None:
            raise SessionNotFound(agent or "", session_id)
        return key

    async def backup(self, path: Path | str) -> Backup:
        """Copy the journal to a new file, which is read from end to end; meanwhile the agents go on.

        All that was confirmed before the call is in it, and what is confirmed meanwhile may be. A journal in PostgreSQL is
        copied by pg_dump.

        Raises:
            ConfigurationError: there is no journal, or no file; or there is a file at the path.
            JournalDamaged: the journal is not what was written; nothing stands at the path.
            JournalFailed: it cannot be read, or the copy not be written.
        """
        return await need_journal(self.journal).backup(Path(path))

    async def delete_session(self, session_id: str, *, agent: str | None = None) -> None:
        """Close a session and its children where they are open, and erase all that the journal has of them.

        Nothing brings them back. Nothing happens where there is no such session. Where several agents have one of this
        id, `agent` says whose it is.

        Raises:
            ConfigurationError: several agents have a session of this id, and none of them is given.
            WouldDeadlock: called from one of its own handlers or tools.
            JournalError: they could not be erased; calling it again goes on.
        """
        if (key := await self._key_of(session_id, agent)) is not None:
            await self.delete_where_it_lives(key, self._delete)

    async def _delete(self, key: SessionKey) -> None:
        await _close_session(self._system.body(key.agent), key)
        if (journal := self.journal) is None:
            return
        erased: dict[SessionKey, None] = {}
        left = [key, *await _find_below(journal, [key], [key])]
        while left:
            for each in reversed(left):  # or a crash would leave them without root
                await self._erase(journal, each)
            erased |= dict.fromkeys(left)
            left = await _find_below(journal, [*erased], erased)  # what somebody has made meanwhile

    async def _erase(self, journal: Journal, key: SessionKey) -> None:
        """Close a session, again where somebody opens it meanwhile, and erase it while nobody can."""
        is_gone = False
        while not is_gone:
            await _close_session(self._system.body(key.agent), key)
            async with self.agents.erasing(key) as is_gone:
                if is_gone:
                    self.accounts.forget(key)
                    await journal.delete(key.session_id, agent=key.agent)

    async def _key_of(self, session_id: str, agent: str | None) -> SessionKey | None:
        if agent is not None:
            return SessionKey(agent, session_id)
        names = [running.name for running in self._agents()]
        agents = {name for name in names if self._find_session(SessionKey(name, session_id)) is not None}
        if self.journal is not None:
            agents.update(await self.journal.agents_of(session_id))
        return one_of([*agents], session_id)

    def _find_session(self, key: SessionKey) -> SessionContext | None:
        """A session in memory, or an unloaded one that someone holds."""
        running = self._system.body(key.agent)
        return running.sessions.find_any(key.session_id) if isinstance(running, AgentActor) else None

    def _check_open(self) -> None:
        """Refuse to start anything once the block is being left.

        Raises:
            UsageError: it is.
        """
        if self._left:
            raise UsageError("the block of this runtime is being left, or was: open another one")

    def _agents(self) -> Iterator[AgentActor]:
        """The agents that run here, without plain actors."""
        return (body for body in self._system.bodies() if isinstance(body, AgentActor))

    async def _complete(self) -> None:
        """Let agents and actors end what they have accepted, and what they ask of each other for that; then erase."""
        self._left = True
        await self._system.drain()
        if self._sweeper is not None:
            await self._sweeper.finish()

    def note_ended(self, key: SessionKey) -> None:
        """A session is over that is to leave the journal."""
        if self._sweeper is not None:
            self._sweeper.note(key)


@attrs.frozen
class Host:
    """What a runtime gives to agents that are started in it."""

    runtime: Runtime
    _system: ActorSystem

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse agents before the first of them is started.

        Raises:
            ConfigurationError: one of the names is taken.
        """
        for index, name in enumerate(names):
            if self._system.body(name) is not None or name in names[:index]:
                raise ConfigurationError(
                    f"an agent or actor named {name!r} runs here already: choose another name"
                )

    def run(self, running: AgentActor, *, grace: float) -> None:
        """Run an agent until the block is left, and then for `grace` seconds more while it has work."""
        running.run_in(self._system.host(running, grace=grace))
        self.runtime.agents.trees.add(running.sessions)


async def _recover(agents: Sequence[Startable]) -> None:
    for agent in agents:
        await agent.__actgent_recover__()


async def _close_session(running: object, key: SessionKey) -> None:
    """Close a session that is to be erased, if its agent runs here and has it in memory."""
    if not isinstance(running, AgentActor):
        return
    context = running.sessions.reload_any(key.session_id)
    if context is None:
        running.core.observer.leave(key.session_id.__eq__)
        return
    if any(is_inside(each.turn) for each in context.family()):
        raise WouldDeadlock("delete_session()", key.session_id)
    for each in await host_of(context).close(context):
        if each.log is not None:
            each.log.close()
        each.log = None  # what it still has to say is not to be found behind its end


async def _find_below(
    journal: Journal, keys: Sequence[SessionKey], known: Collection[SessionKey]
) -> list[SessionKey]:
    """The sessions that have these as parent, theirs ..., without those that are known."""
    found: dict[SessionKey, None] = {}
    waiting = keys
    while waiting:
        below = [child.key for child in await journal.children_of(waiting)]
        waiting = [child for child in below if child not in known and child not in found]
        found |= dict.fromkeys(waiting)
    return [*found]


def _check_startable(agent: object) -> None:
    if isinstance(agent, type) or not hasattr(agent, "__actgent_start__"):
        raise ConfigurationError(
            f"a runtime starts agents, not {agent!r:.200}; actors without a model are spawned"
        )


@contextmanager
def _ending(events: EventStream) -> Iterator[EventStream]:
    """Let readers know when no further event will come, whatever ends the block."""
    try:
        yield events
    finally:
        events.end()


@asynccontextmanager
async def _owned(
    journal: str | Journal | None, durability: Durability, redact: Redact | None
) -> AsyncGenerator[Journal | None, None]:
    """The journal, opened where it is an address, and owned by this process."""
    if durability not in typing.get_args(Durability):
        hint = meant(durability, typing.get_args(Durability))
        raise ConfigurationError(
            f"durability= is 'full' or 'relaxed', not {durability!r:.200} {hint}".rstrip()
        )
    check_redact(redact)
    if journal is None:
        yield None
    elif isinstance(journal, Journal):
        await _acquire(journal)
        if redact is not None:
            journal = RedactedJournal(journal, redact)
        yield (RelaxedJournal(journal) if durability == "relaxed" else journal)
    else:
        async with open_journal(journal) as opened, _owned(opened, durability, redact) as owned:
            yield owned


async def _acquire(journal: Journal) -> None:
    """Acquire a journal. An error has no frames of the storage, 60 lines that say nothing about a wrong address."""
    try:
        await journal.acquire()
    except (JournalFailed, ConfigurationError) as error:
        raise error.with_traceback(None) from None


def _check_kinds(**given: tuple[object, type]) -> None:
    """Refuse arguments of another class than theirs.

    Raises:
        ConfigurationError: the text names it.
    """
    for name, (value, kind) in given.items():
        if not isinstance(value, kind | None):
            raise ConfigurationError(f"{name}= takes {kind.__name__}(...), not {value!r:.200}")


def _check_quotas(quotas: Quotas | None, journal: str | Journal | None, *, is_cluster: bool) -> None:
    """Refuse quotas that nobody could count.

    Raises:
        ConfigurationError: several processes own the journal.
    """
    if quotas is not None and (is_cluster or (isinstance(journal, Journal) and journal.is_shared)):
        raise ConfigurationError(
            "quotas= are counted in one process: leave them out, or broker=; limits= of sessions and runs hold in a cluster, too"
        )


@async_block(OF_RUNTIMES)
async def open_runtime(
    *,
    journal: str | Journal | None = None,
    durability: Durability = "full",
    redact: Redact | None = None,
    context: Iterable[ContextVar[Any]] = (),
    retention: Retention | None = None,
    quotas: Quotas | None = None,
    supervision: Supervision | None = None,
    threads: int = ALL_THREADS,
    thread_grace: float = THREAD_GRACE,
    telemetry: Tracing | None = None,
    broker: str | None = None,
    pool: str = "default",
    node: str | None = None,
) -> AsyncGenerator[Runtime, None]:
    """Open a block in which agents run, and outside of which nothing of them is left.

    With a journal (`sqlite:///agents.db`, `postgres://HOST/DATABASE`, or one that is open already) what sessions
    accepted survives the process: starting their agent goes on where it was. With `durability="relaxed"` nobody waits
    for the disk: a crash loses what was accepted and answered in the last 50 ms or so, but no tool runs twice by that.
    `redact` is called with each text, before it is written, and returns what the journal may have of it; see docs/durability.md.

    `context` are the context variables that the journal keeps with each message, if their values are plain data: a turn
    that goes on after a restart has them as its sender had, and `traceparent`. All others end with the process.
    Sessions of `run` and `tell` without a session leave the journal when they have ended. `retention` has others leave it,
    too, when they are old.

    `quotas` bound what the sessions of each owner take together in a day or a month, also over restarts.
    `threads` is how many sync tools of all agents run at a time.
    `telemetry` makes spans and metrics of what happens: `Telemetry()`, of the extra `otel`.

    With a broker (`amqps://USER:PASSWORD@HOST/VHOST`) and a journal in PostgreSQL this process is one of several with the
    same agents, and each session lives in one of them at a time; see docs/guides/cluster.md. `pool` names those that host
    the same agents, `node` begins the name of this one. It takes part once its agents are started.

    Leaving it lets each agent end what it has accepted, for its `grace`; an exception stops them at once.
    What is not answered by then ends as `Failure(kind="stopped")`.

    Raises:
        OutsideTrio: asyncio runs this code, or nothing does.
        ConfigurationError: the journal's address or the durability is none that there is, or `redact` is no function; or
            the broker lets nobody in, or goes with no such journal.
        BrokerLost: the broker cannot be reached.
        Fenced: another process owns the journal.
        JournalError: it cannot be opened.
        ActorFailed: In an ExceptionGroup, if an agent or actor failed too often and `Supervision(escalate=True)` is set.
        ThreadsLeft: sync tools still ran in threads `thread_grace` seconds later.
    """
    check_loop("open_runtime()")
    propagation = propagation_of(context)
    check_tracing(telemetry)
    _check_kinds(
        retention=(retention, Retention), quotas=(quotas, Quotas), supervision=(supervision, Supervision)
    )
    _check_quotas(quotas, journal, is_cluster=broker is not None)
    tool_threads = Threads(at_least_one("threads", threads))
    error: BaseException | None = None
    with tuned_gc(), open_watch() as watch, _ending(EventStream(telemetry)) as events:
        async with (
            open_membership(journal, broker, pool=pool, node=node) as membership,
            _owned(journal if membership is None else membership.journal, durability, redact) as opened,
            trio.open_nursery() as nursery,
        ):
            runtime = Runtime(
                nursery,
                events=events,
                watch=watch,
                threads=tool_threads,
                # A node without one of its agents would keep sessions that it cannot serve, so it leaves the cluster.
                supervision=supervision or Supervision(escalate=membership is not None),
                journal=opened,
                propagation=propagation,
                retention=retention or Retention(),
                quotas=quotas,
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
                    await membership.leave(LEAVING_GRACE)
                await runtime._complete()  # noqa: SLF001 - the block and its runtime are one thing
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - raised again below, not wrapped into a group
                error = raised
            runtime._left = True  # noqa: SLF001
            nursery.cancel_scope.cancel()
    try:
        with trio.CancelScope(shield=True):
            await tool_threads.wait_left(thread_grace)
    except ThreadsLeft as left:
        if error is None or isinstance(error, trio.Cancelled):
            raise
        error.add_note(str(left))  # the block's own exception comes first
    if error is not None:
        raise error
