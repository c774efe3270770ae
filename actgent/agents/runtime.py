"""A block in which agents run: one event stream, one supervision, one account of threads."""

import typing
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TypeVar

import trio

from actgent.actors.supervision import Supervision
from actgent.actors.timer import Timer
from actgent.approvals import Approval
from actgent.control.clock import Clock
from actgent.errors import ConfigurationError, ThreadsLeft, UsageError, WouldDeadlock
from actgent.events import ActorStarted, ActorStopped, EventReader, EventStream
from actgent.journal.base import Journal, SessionSummary
from actgent.journal.opening import open_journal
from actgent.journal.relaxed import RelaxedJournal
from actgent.tools.threads import Threads

from .answering import list_approvals
from .collector import calm_collector
from .directory import Directory
from .ledger import Ledger
from .running import RunningAgent
from .tasks import Tasks
from .turn import is_inside
from .watchdog import Watch, open_watch

Durability = typing.Literal["full", "relaxed"]
THREAD_GRACE = 5.0
"""Seconds that leaving a runtime waits for threads that nobody waits for any more."""


class Startable(typing.Protocol):
    """An agent, as far as a runtime is concerned."""

    def start_in(self, runtime: "Runtime") -> "Sequence[Startable]": ...
    async def recover(self) -> None: ...


A = TypeVar("A", bound=Startable)


class Runtime:
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
        epoch: int,
    ) -> None:
        self.stream = events
        self.watch = watch
        self.threads = threads
        self.journal = journal
        self.epoch = epoch
        self.timer = Timer()
        self.clock = Clock()
        self.ledger = Ledger(journal, epoch)
        self.agents = Directory()
        """The agents that run here, by name and by what they can do."""
        self.tasks = Tasks(self.agents, journal, epoch)
        self._nursery = nursery
        self._supervision = supervision
        self._agents: dict[str, tuple[RunningAgent, float]] = {}
        self._left = False

    async def start(self, agent: A) -> A:
        """Start an agent, and those that it routes to or has as tools; they run until the block is left.

        Raises:
            ConfigurationError: an agent of this name runs here, or this agent runs elsewhere; none of them was started.
            UsageError: the runtime's block is being left, or was.
        """
        if not hasattr(agent, "start_in"):
            raise ConfigurationError(f"a runtime starts agents, not {agent!r}")
        for started in agent.start_in(self):
            await started.recover()
        await trio.lowlevel.checkpoint()
        return agent

    def events(self, capacity: int = 1000) -> AbstractAsyncContextManager[EventReader]:
        """An `async with` block with a receive channel of everything that happens from now on.

        It keeps at most `capacity` events: a slow reader loses the oldest, and `lost` counts them.
        """
        return self.stream.read(capacity)

    async def approvals(self, *, after: Approval | None = None, limit: int = 100) -> tuple[Approval, ...]:
        """What waits for people in sessions of all agents here, of at most `limit` sessions, page by page.

        Pass the last approval for the next page; an empty page is the end. `agent.answer` decides.
        """
        for running in sorted((running for running, _ in self._agents.values()), key=lambda each: each.name):
            if after is None or running.name >= after.agent:
                behind = after.session_id if after is not None and running.name == after.agent else ""
                if found := await list_approvals(running, after=behind, limit=limit):
                    return found
        await trio.lowlevel.checkpoint()
        return ()

    async def delete_session(self, session_id: str) -> None:
        """Close a session and its children where they are open, and erase all that the journal has of them.

        Nothing brings them back. Nothing happens where there is no such session.

        Raises:
            WouldDeadlock: called from one of its own handlers or tools.
            JournalError: they could not be erased.
        """
        await self._close_session(session_id)
        if self.journal is None:
            return
        for each in _with_descendants(session_id, await self.journal.sessions()):
            await self._close_session(each)
            self.ledger.forget(each)
            await self.journal.delete(each)

    async def _close_session(self, session_id: str) -> None:
        for running, _ in list(self._agents.values()):
            context = running.sessions.get(session_id)
            session = running.sessions.find_asleep(session_id) if context is None else context.session
            if session is None:
                continue
            context = session._context  # noqa: SLF001 - which wakes it
            if is_inside(context.turn):
                raise WouldDeadlock("delete_session()", session_id)
            await session.aclose()
            if context.log is not None:
                context.log.close()
            context.log = None  # what it still has to say is not to be found behind its end

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse agents before the first of them is started.

        Raises:
            ConfigurationError: one of the names is taken.
            UsageError: it is too late.
        """
        if self._left:
            raise UsageError("the block of this runtime is being left, or was: open another one")
        for index, name in enumerate(names):
            if name in self._agents or name in names[:index]:
                raise ConfigurationError(f"an agent named {name!r} runs here already: choose another name")

    def host(self, running: RunningAgent, *, grace: float) -> None:
        """Run an agent until the block is left, and then for `grace` seconds more while it has work."""
        self._agents[running.name] = (running, grace)
        self._nursery.start_soon(self._live, running, name=f"agent {running.name}")
        if self.stream.watched:
            self.stream.publish(ActorStarted(actor=running.name))

    async def _live(self, running: RunningAgent) -> None:
        try:
            await running.live(self._supervision)
        finally:
            del self._agents[running.name]
            self.agents.remove(running.name)
            if self.stream.watched:
                self.stream.publish(ActorStopped(actor=running.name))

    async def _drain(self) -> None:
        """Let the agents end what they have accepted, and what they ask of each other for that, each within its grace."""
        self._left = True
        agents = list(self._agents.values())
        for running, _ in agents:
            running.begin_drain()
        begun = trio.current_time()
        for grace in sorted({grace for _, grace in agents}):
            with trio.move_on_at(begun + grace):
                await self._wait_idle()
                return
            for running, its_grace in agents:
                if its_grace <= grace:
                    running.stop()

    async def _wait_idle(self) -> None:
        while busy := [running for running, _ in self._agents.values() if running.inbox.sessions()]:
            for running in busy:
                await running.inbox.wait_idle()


def _with_descendants(session_id: str, known: Sequence[SessionSummary]) -> list[str]:
    """A session, the sessions that have it as parent, theirs ..."""
    found = [session_id]
    for parent in found:
        found += [
            each.session_id for each in known if each.parent_id == parent and each.session_id not in found
        ]
    return found


@contextmanager
def _ending(events: EventStream) -> Iterator[EventStream]:
    """Let readers know when no further event will come, whatever ends the block."""
    try:
        yield events
    finally:
        events.end()


@asynccontextmanager
async def _owned(
    journal: str | Journal | None, durability: Durability
) -> AsyncGenerator[tuple[Journal | None, int], None]:
    """The journal, opened where it is an address, and the epoch in which this process owns it."""
    if durability not in typing.get_args(Durability):
        raise ConfigurationError(f"durability= is 'full' or 'relaxed', not {durability!r}")
    if journal is None:
        yield None, 0
    elif isinstance(journal, Journal):
        epoch = await journal.acquire()
        yield (RelaxedJournal(journal) if durability == "relaxed" else journal), epoch
    else:
        async with open_journal(journal) as opened, _owned(opened, durability) as owned:
            yield owned


@asynccontextmanager
async def open_runtime(
    *,
    journal: str | Journal | None = None,
    durability: Durability = "full",
    supervision: Supervision | None = None,
    thread_grace: float = THREAD_GRACE,
) -> AsyncGenerator[Runtime, None]:
    """Open a block in which agents run, and outside of which nothing of them is left.

    With a journal (`sqlite:///agents.db`, `postgres://HOST/DATABASE`, or one that is open already) what sessions
    accepted survives the process: starting their agent goes on where it was. With `durability="relaxed"` nobody waits
    for the disk: a crash loses what was accepted and answered in the last 50 ms or so, but no tool runs twice by that.

    Leaving it lets each agent end what it has accepted, for its `grace`; an exception stops them at once.
    What is not answered by then ends as `Failure(kind="stopped")`.

    Raises:
        ConfigurationError: the journal's address or the durability is none that there is.
        Fenced: another process owns the journal.
        JournalError: it cannot be opened.
        ActorFailed: in an ExceptionGroup, where an agent failed too often.
        ThreadsLeft: sync tools still ran in threads `thread_grace` seconds later.
    """
    threads = Threads()
    error: BaseException | None = None
    with calm_collector(), open_watch() as watch, _ending(EventStream()) as events:
        async with _owned(journal, durability) as (opened, epoch), trio.open_nursery() as nursery:
            runtime = Runtime(
                nursery,
                events=events,
                watch=watch,
                threads=threads,
                supervision=supervision or Supervision(),
                journal=opened,
                epoch=epoch,
            )
            nursery.start_soon(runtime.timer.run, name="timer")
            try:
                yield runtime
                await runtime._drain()  # noqa: SLF001 - the block and its runtime are one thing
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - raised again below, not wrapped into a group
                error = raised
            runtime._left = True  # noqa: SLF001
            nursery.cancel_scope.cancel()
    try:
        with trio.CancelScope(shield=True):
            await threads.wait_left(thread_grace)
    except ThreadsLeft as left:
        if error is None or isinstance(error, trio.Cancelled):
            raise
        error.add_note(str(left))  # the block's own exception comes first
    if error is not None:
        raise error
