"""An agent while its block is open: its inbox, its sessions, and the tasks that carry their turns."""

import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import trio

from actgent.actors.inbox import PriorityInbox
from actgent.actors.supervision import Supervision, supervise
from actgent.actors.timer import Timer
from actgent.actors.workers import Workers
from actgent.control.clock import Clock
from actgent.errors import (
    ActorFailed,
    Interrupted,
    NotRunning,
    SessionClosed,
    Stopped,
    WouldDeadlock,
)
from actgent.events import EventStream, SessionEnded, SessionOpened
from actgent.journal.base import Journal
from actgent.messages import Message, Priority

from .alarms import Alarms
from .context import SessionContext
from .core import AgentCore
from .double_texting import is_collected
from .edges import TurnEdges
from .log import SessionLog
from .reception import Reception
from .schedule import Schedule, plan, set_schedule
from .sessions import SessionTable
from .suspensions import NEWER_CAME, Suspensions
from .tasks import TaskDeadline, Tasks, reports_due
from .turn import Turn, is_inside, running_turn
from .waiting import slot_lent, would_wait_for_itself

AGES = 1e9
"""Seconds by which messages from before a restart are older than all others."""
CLEANUP = 1.0
"""Seconds to close connections when the agent stops."""


class RunningAgent:
    """The actor. A message that may go out starts its turn at once, in a task of its own; an idle session has none."""

    def __init__(
        self,
        name: str,
        *,
        core: AgentCore,
        edges: TurnEdges,
        inbox: PriorityInbox[Message],
        events: EventStream,
        on_stop: Callable[[], Awaitable[None]],
        timer: Timer,
        clock: Clock,
        tasks: Tasks,
        journal: Journal | None = None,
        epoch: int = 0,
    ) -> None:
        self.name = name
        self.core = core
        self.edges = edges
        self.inbox = inbox
        self.events = events
        self.sessions = SessionTable(name, can_sleep=journal is not None, on_sleep=inbox.forget_parked)
        self.suspensions = Suspensions(
            edges=edges, inbox=inbox, sessions=self.sessions, go_on=self._resume_turn
        )
        self.reception = Reception(self)
        self.clock = clock
        self.alarms = Alarms(self, inbox=inbox, timer=timer, clock=clock)
        self.tasks = tasks
        self._timer = timer
        self.journal = journal
        self._epoch = epoch
        self.ready = trio.Event()
        self._on_stop = on_stop
        self._accepts = True
        self._draining = False
        self._nursery: trio.Nursery | None = None
        self._turns: Workers[SessionContext, Turn] | None = None
        self._scope = trio.CancelScope()
        self._held_up: list[tuple[SessionContext, Turn]] = []
        """Turns that are to go on, or to end, as soon as the agent works again."""
        self.openers: dict[str, trio.lowlevel.Task] = {}
        """Who calls the handlers of a session that comes back, before what waits in it goes on."""
        self.has_failed = False
        """Whether something in it raised that nobody caught, so that all else is cut, and it starts again."""
        self._is_cut_off = False
        """Whether it was cancelled, by a failure of its own or from outside of it."""

    # --- life ----------------------------------------------------------------------------

    async def live(self, supervision: Supervision) -> None:
        """Serve until stopped; whatever was accepted and not answered ends as a Failure then."""
        with self._scope:
            try:
                await supervise(self._serve, name=self.name, policy=supervision, events=self.events)
            finally:
                self._accepts = self._draining = False
                await self._fail_rest()  # noqa: ASYNC102 - last_words() shields, with a time limit
                with trio.move_on_after(CLEANUP, shield=True):
                    await self._on_stop()

    def begin_drain(self) -> None:
        """Take no more messages but from turns that still run."""
        self.alarms.end()
        self._accepts = False
        self._draining = True

    def stop(self) -> None:
        """End where it is."""
        self._scope.cancel()

    @property
    def is_stopping(self) -> bool:
        """Whether nothing of it goes on in this process; known a checkpoint after the cancellation that ends it."""
        return self._scope.cancel_called or (self._is_cut_off and not self.has_failed)

    async def _serve(self) -> None:
        self.edges.begin()
        self.has_failed = self._is_cut_off = False
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._turns = Workers(
                    nursery,
                    timer=self._timer,
                    run=self._run_turn,
                    finish=self._finish_turn,
                    abandon=self._abandon_turn,
                )
                if self._accepts:
                    self.alarms.begin(nursery)
                self.ready.set()
                self.pump()
                try:
                    await trio.sleep_forever()
                finally:
                    self._is_cut_off = True
        finally:
            self.alarms.end()
            self._nursery = self._turns = None

    def pump(self) -> None:
        """Start the turns of all messages that may go out."""
        if self._turns is None or self.has_failed or self._is_cut_off:
            return
        while self._held_up:
            self._turns.start_soon(*self._held_up.pop(0))
        while (message := self.inbox.poll()) is not None:
            context = self.sessions[message.session_id]
            joined = () if message.on_busy == "queue" else self._collect(message)
            turn = self.edges.begin_turn(context, joined[-1] if joined else message, joined[:-1])
            self.stop_if_outdated(turn)
            self._turns.start_soon(context, turn)

    def try_claim(self, message: Message) -> bool:
        """Claim the session of a message whose turn may `start` at once."""
        is_up = self._turns is not None and not (self.has_failed or self._is_cut_off)
        return is_up and self.inbox.try_claim(message)

    def start(self, context: SessionContext, message: Message) -> None:
        """Start the turn of a message whose session was just claimed."""
        assert self._turns is not None  # noqa: S101 - try_claim() saw to it
        self._turns.start_soon(context, self.edges.begin_turn(context, message))

    def _resume_turn(self, context: SessionContext, turn: Turn) -> None:
        """Have a turn go on as soon as the agent works."""
        self._held_up.append((context, turn))
        self.pump()

    def _collect(self, message: Message) -> tuple[Message, ...]:
        """A message that is just claimed, and those behind it that are to be answered together with it."""
        if not is_collected(message):
            return ()
        return (message, *self.inbox.take_along(message.session_id, is_collected))

    def stop_if_outdated(self, turn: Turn) -> None:
        """Stop a turn whose session was told something since that is to go before it."""
        is_urgent = turn.message.priority is Priority.URGENT
        if not is_urgent and self.inbox.has_first(turn.message.session_id):
            turn.interrupt(NEWER_CAME)

    async def _run_turn(self, scope: trio.CancelScope, context: SessionContext, turn: Turn) -> None:
        """The turn of a claimed session."""
        turn.host = self
        if context.is_arriving:  # its sender was just woken, and may attach handlers first
            context.is_arriving = False
            await trio.lowlevel.cancel_shielded_checkpoint()
        self.edges.enter(turn, scope)
        await self.core.run_turn(context, turn)

    async def _abandon_turn(self, context: SessionContext, turn: Turn) -> None:
        """The agent stops or fails, in the middle of the turn or after it."""
        if context.turn is not turn:
            return
        if self.has_failed:
            turn.cut(ActorFailed(self.name, "it failed, and starts again without this turn"))
            self._held_up.append((context, turn))
            return
        await self.edges.say_stopped(context, turn)
        self._let_go(context)

    async def _finish_turn(self, context: SessionContext, turn: Turn) -> None:
        """The turn's end; an URGENT message that came meanwhile keeps the session."""
        if turn.waiting is not None and turn.error is None:
            self.suspensions.suspend(context, turn)
            self.pump()
            return
        if context.task is not None and turn.message.id == context.task.message_id:
            await self._report(context, turn.stop or turn.error, blame=turn.blame)
        urgent = None
        try:
            if (error := turn.stop or turn.error) is not None:
                await self.edges.fail_turn(context, turn, error)
            else:
                self.edges.end_turn(context, turn)
            urgent = None if self.has_failed else self.inbox.next_urgent(context.id)
        except Exception:
            self.has_failed = True
            raise
        finally:
            if urgent is None:
                self._let_go(context)
        if urgent is not None and self._turns is not None:
            self._turns.start_soon(context, self.edges.begin_turn(context, urgent))
        self.pump()

    async def _report(
        self, context: SessionContext, error: Exception | None, *, blame: str = "internal"
    ) -> None:
        """Tell the session that delegated a task what came of it, before the task is over."""
        context.drop_due(TaskDeadline.id)
        if context.task.reports:
            await self.tasks.report(context, error, blame)

    def _let_go(self, context: SessionContext) -> None:
        self.inbox.release(context.id)
        if context.children:
            self._drop_unclaimed(context)
        self.forget_if_over(context)
        self.sessions.rest(context)

    def _drop_unclaimed(self, context: SessionContext) -> None:
        """End what an earlier process asked of others, and this one did not ask for again."""
        for child in list((context.children or {}).values()):
            if child.task is not None and child.task.is_unclaimed and not child.task.reports:
                child.closed = True
                child.session._agent.suspensions.take_up_if_outdated(child)  # noqa: SLF001 - it may be another agent's
                if child.turn is not None:
                    child.turn.interrupt("nobody waits for the answer any more")

    async def _stop_suspended(self) -> None:
        """Without a journal nobody will bring them back."""
        for context, turn in self._held_up:
            await self.edges.say_stopped(context, turn)
            self._let_go(context)
        for context in [each for each in self.sessions.values() if each.suspension is not None]:
            if context.log is None and context.suspension is not None:
                self.inbox.unpark(context.id)
                turn = self.edges.continue_turn(context, context.suspension)
                await self.edges.say_stopped(context, turn)
                self._let_go(context)
            elif self.inbox.is_parked(context.id):
                self.inbox.unpark(context.id)

    # --- the rest ----------------------------------------------------------------------------

    async def _fail_rest(self) -> None:
        """End what was accepted and has not begun; senders without room too, who come in as others are taken out."""
        with trio.CancelScope(shield=True):
            await self._stop_suspended()
            while len(self.inbox):
                async with trio.open_nursery() as nursery:
                    for session_id in self.inbox.sessions():
                        waiting = self.inbox.withdraw(session_id)
                        context, error = self.sessions[session_id], Stopped(self.name)
                        nursery.start_soon(self._end_at_last, context, waiting, error)

    async def _end_at_last(self, context: SessionContext, messages: list[Message], error: Exception) -> None:
        for message in messages:
            with self.edges.last_words():  # one each: when time is over, sync handlers are still told
                await self.edges.fail_unstarted(context, message, error)

    # --- sessions ------------------------------------------------------------------------

    def open(self, context: SessionContext) -> None:
        """Enter a new session.

        Raises:
            NotRunning: the agent takes no more.
            SessionClosed: its parent was closed.
            ConfigurationError: its id is taken.
        """
        self._check_accepts()
        if context.parent is not None and context.parent.closed:
            raise SessionClosed(context.parent.id)
        self.sessions.add(context)
        context.alarms = self.alarms
        if context.parent is not None:
            context.parent.add_child(context)
        if self.events.watched:
            parent_id = context.parent.id if context.parent is not None else None
            self.events.publish(
                SessionOpened(
                    agent=self.name, session_id=context.id, owner=context.owner.name, parent_id=parent_id
                )
            )

    def new_log(self, session_id: str, *, due: float = 0.0) -> SessionLog | None:
        """A session's end of the journal, where there is one, which has its earliest date at `due`."""
        if self.journal is None:
            return None
        return SessionLog(session_id, self.name, self.journal, self._epoch, due=due)

    def go_on(self, context: SessionContext, messages: Sequence[Message]) -> None:
        """Take what was accepted before a restart, for which the session is claimed; a turn that had begun goes on first."""
        context.pending += len(messages)
        if messages:
            self.sessions.stir(context)
        waiting = list(messages)
        if context.resume is not None and context.approvals is not None and context.approvals.is_suspended:
            context.pending += len(context.resume.joined)
            self.suspensions.lay_down(context, waiting.pop(0))
        elif context.resume is not None:
            context.pending += len(context.resume.joined)
            self._held_up.append((context, self.edges.begin_turn(context, waiting.pop(0))))
        for place, message in enumerate(waiting):
            self.inbox.restore(message, now=place - AGES, first=message.on_busy == "interrupt")
        if messages and context.turn is None and context.suspension is None:
            self.inbox.release(context.id)
        self.suspensions.take_up_if_outdated(context)
        self.sessions.rest(context)
        turn = context.turn
        is_exposed = turn is not None and turn.message.priority is not Priority.URGENT
        if turn is not None and is_exposed and (newer := self.suspensions.newer(turn.message)):
            turn.interrupt(newer)
        self.pump()

    def drop(self, context: SessionContext, *, is_claimed: bool) -> None:
        """Let a session leave memory whose handlers could not be attached: the journal has it, and all that waits in it."""
        self.inbox.withdraw(context.id)
        if is_claimed:
            self.inbox.release(context.id)
        self.sessions.remove(context)
        if context.parent is not None:
            context.parent.remove_child(context)

    async def end(self, context: SessionContext, error: Exception) -> None:
        """End all that runs or waits in a session with an error, and close it and its children."""
        await self._stop(context, error, drop=error)
        await self.close(context)

    async def close(self, context: SessionContext) -> None:
        """Close a session and its children, all at once."""
        async with trio.open_nursery() as nursery:
            for child in list((context.children or {}).values()):
                nursery.start_soon(child.session.aclose)
            if not context.closed:
                context.closed = True
                reason = Interrupted("the session was closed")
                await self._stop(context, reason, drop=SessionClosed(context.id))
        self.forget_if_over(context)

    @contextmanager
    def kept(self, context: SessionContext) -> Iterator[None]:
        """A session that is awake stays so, and is not forgotten, in the block."""
        context.pending += 1
        self.sessions.stir(context)
        try:
            yield
        finally:
            context.settle()
            self.forget_if_over(context)
            self.sessions.rest(context)

    def let_go(self, context: SessionContext) -> None:
        """Forget a session as soon as nothing is queued or running in it."""
        context.transient = True
        self.forget_if_over(context)

    def forget_if_over(self, context: SessionContext) -> None:
        """Forget a session that was closed or let go, once nothing is on its way in, queued or running."""
        is_over = context.closed or (context.transient and not reports_due(context))
        if is_over and not context.pending:
            self.forget(context)

    def forget(self, context: SessionContext) -> None:
        """Forget a session that is over, and let go of its children."""
        context.closed = True
        if not self.sessions.remove(context):
            return
        context.alarms = None
        self.alarms.set(context.id, 0)
        if context.log is not None:
            context.log.note_closed()
            context.log.flush_soon()
        for child in list((context.children or {}).values()):
            child.session._agent.let_go(child)  # noqa: SLF001 - it may be another agent's
        if context.parent is not None:
            context.parent.remove_child(context)
            if context.parent.transient:  # it may have stayed for this one's result alone
                context.parent.session._agent.let_go(context.parent)  # noqa: SLF001
        if self.events.watched:
            self.events.publish(SessionEnded(agent=self.name, session_id=context.id))

    # --- what it takes -----------------------------------------------------------------------

    def check_open(self, context: SessionContext) -> None:
        if context.closed:
            raise SessionClosed(context.id)
        self._check_accepts()

    def _check_accepts(self) -> None:
        """While the block is left, only turns that still run may have something to say, in any session."""
        if not self._accepts and not (self._draining and running_turn.get() is not None):
            raise NotRunning(self.name)

    async def schedule(
        self, context: SessionContext, description: str, *, key: str | None, **times: Any
    ) -> Schedule:
        """Set a schedule in a session; see `Session.schedule`."""
        self.check_open(context)
        return await set_schedule(context, plan(description, now=self.clock.now(), key=key, **times))

    # --- stopping and waiting ------------------------------------------------------------

    async def interrupt(self, context: SessionContext, reason: str, *, drop_queued: bool) -> None:
        """Stop a session's turn, and with `drop_queued` end what waits for its turn."""
        error = Interrupted(reason)
        await self._stop(context, error, drop=error if drop_queued else None)

    async def _stop(self, context: SessionContext, error: Exception, *, drop: Exception | None) -> None:
        """End the turn with an error, and what is queued with the error `drop`; a cancelled caller changes nothing of that.

        Waits until all this has happened, unless the turn is where we are called from, or waits for that.
        """
        self.suspensions.take_up(context, error)
        turn = context.turn
        inside = is_inside(turn) or would_wait_for_itself(context)
        ended = _stopped(turn, error)
        if drop is not None and (messages := self._withdraw(context)):
            after, ended = ended, trio.Event()
            end_queued = functools.partial(
                self._end_queued, context, messages, drop, after=after, ended=ended
            )
            if self._nursery is None:  # the agent is about to restart
                await end_queued()
            else:
                self._nursery.start_soon(end_queued)
        if ended is None or inside:
            await trio.lowlevel.checkpoint()
        else:
            await ended.wait()

    def _withdraw(self, context: SessionContext) -> list[Message]:
        """Take out what is queued, and what comes in by that from senders without room."""
        messages: list[Message] = []
        while waiting := self.inbox.withdraw(context.id):
            messages += waiting
        return messages

    async def _end_queued(
        self,
        context: SessionContext,
        messages: list[Message],
        error: Exception,
        *,
        after: trio.Event | None,
        ended: trio.Event,
    ) -> None:
        """End messages that never had their turn, after the one that runs."""
        try:
            if after is not None:
                await after.wait()
            while messages:
                if context.task is not None and messages[0].id == context.task.message_id:
                    await self._report(context, error)
                await self.edges.fail_unstarted(context, messages.pop(0), error)
        except trio.Cancelled:
            reports = context.task is not None and context.task.reports and not context.closed
            last_error = Stopped(self.name) if reports else error  # the next start has to report
            with trio.CancelScope(shield=True):
                await self._end_at_last(context, messages, last_error)
            raise
        finally:
            ended.set()
            self.forget_if_over(context)

    async def wait_idle(self, context: SessionContext) -> None:
        """Wait until a session has nothing queued or running."""
        self.check_not_inside(context, "wait_idle()")
        with slot_lent(context):
            await context.wait_idle()

    def check_not_inside(self, context: SessionContext, what: str) -> None:
        """Refuse to wait for a session where it waits for us.

        Raises:
            WouldDeadlock: we are in its turn, or in a handler that it is opened with.
        """
        if is_inside(context.turn) or self.openers.get(context.id) is trio.lowlevel.current_task():
            raise WouldDeadlock(what, context.id)

    def lend_slot(self, turn: Turn) -> bool:
        """Let another session run in the place of a turn that waits; False where the turn is over."""
        if not self._is_out(turn):
            return False
        turn.waits += 1
        self.inbox.lend(turn.message.session_id)
        self.pump()
        return True

    def reclaim_slot(self, turn: Turn) -> None:
        """Take the place again, once nothing of the turn waits any more."""
        turn.waits -= 1
        if not turn.waits and self._is_out(turn):
            self.inbox.reclaim(turn.message.session_id)

    def _is_out(self, turn: Turn) -> bool:
        context = self.sessions.get(turn.message.session_id)
        return context is not None and context.turn is turn


def _stopped(turn: Turn | None, error: Exception) -> trio.Event | None:
    """Stop a turn, and return what tells its end."""
    if turn is None:
        return None
    turn.stop_with(error)
    if turn.ended is None:
        turn.ended = trio.Event()
    return turn.ended
