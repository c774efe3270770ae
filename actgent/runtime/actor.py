"""An agent while its block is open: its inbox, its sessions, and the tasks that carry their turns."""

import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import trio

from actgent.actors.actor import calling_actor
from actgent.actors.cell import Cell
from actgent.actors.dead_letters import DeadLetter
from actgent.actors.inbox import Place, PriorityInbox
from actgent.actors.ref import Address
from actgent.actors.timer import Timer
from actgent.actors.workers import Workers
from actgent.control.clock import Clock
from actgent.control.schedule import Schedule, parse_schedule
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
from actgent.journal.listing import SessionKey
from actgent.messages import Message, Priority
from actgent.printable import counted, shown
from actgent.sessions.context import SessionContext, host_of
from actgent.sessions.incoming import is_collected
from actgent.sessions.mail import Acceptance
from actgent.sessions.propagation import Propagation, run_with
from actgent.sessions.schedules import set_schedule
from actgent.sessions.session_log import SessionLog
from actgent.sessions.tasks import TASK_TIMER
from actgent.sessions.turn import Turn, is_inside, running_turn
from actgent.turns.core import AgentCore
from actgent.turns.lifecycle import TurnEdges

from .session_table import SessionTable
from .slots import running_session, slot_lent, would_wait_for_itself
from .timer_service import TimerService
from .turn_runner import NEWER_CAME, Suspensions

AGES = 1e9
"""Seconds by which messages from before a restart are older than all others."""
SPEAKING = 4
"""Rounds of the loop in which who was just answered says the next thing."""
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
        ref: Address,
        events: EventStream,
        on_stop: Callable[[], Awaitable[None]],
        timer: Timer,
        clock: Clock,
        timer_service: TimerService,
        held_by: Callable[[object], SessionContext],
        wait_started: Callable[[str, SessionContext | None], Awaitable[None]],
        on_task_done: Callable[[SessionContext, Exception | None, str], Awaitable[None]],
        on_left: Callable[[str], object],
        journal: Journal | None = None,
        epoch: int = 0,
        propagation: Propagation | None = None,
        on_ended: Callable[[SessionKey], object] = lambda _: None,
    ) -> None:
        """Args: `on_ended` hears of sessions that are to leave the journal, `on_left` that the agent is gone."""
        self.name = name
        self._on_ended = on_ended
        self.core = core
        self.edges = edges
        self.inbox = inbox
        self.ref = ref
        self.events = events
        self.sessions = SessionTable(
            name, can_sleep=journal is not None, on_sleep=inbox.forget_parked, held_by=held_by
        )
        inbox.owner_of = self.sessions.works_for
        self.propagation = propagation or Propagation()
        self.suspensions = Suspensions(
            edges=edges,
            inbox=inbox,
            sessions=self.sessions,
            go_on=self._resume_turn,
        )
        self.clock = clock
        self.timer_service = timer_service
        self._wait_started = wait_started
        self._on_task_done = on_task_done
        self._on_left = on_left
        self._timer = timer
        self.journal = journal
        self._epoch = epoch
        self.ready = trio.Event()
        self._on_stop = on_stop
        self._accepts = True
        self._draining = False
        self._nursery: trio.Nursery | None = None
        self._turns: Workers[SessionContext, Turn] | None = None
        self._cell: Cell | None = None
        self._held_up: list[tuple[SessionContext, Turn]] = []
        """Turns that are to go on, or to end, as soon as the agent works again."""
        self.openers: dict[str, trio.lowlevel.Task] = {}
        """Who calls the handlers of a session that comes back, before what waits in it goes on."""
        self.has_failed = False
        """Whether something in it raised that nobody caught, so that all else is cut, and it starts again."""
        self._settling = 0
        """Turns that have just ended, and give their places away in a moment."""
        self._is_cut_off = False
        """Whether it was cancelled, by a failure of its own or from outside of it."""

    def __repr__(self) -> str:
        inbox = self.inbox.statistics()
        return (
            f"<{type(self).__name__} {shown(self.name)} {self._state}, {counted(len(self.sessions), 'session')}, "
            f"{inbox.claimed:,} working, {counted(inbox.waiting + inbox.urgent, 'message')} queued>"
        )

    @property
    def _state(self) -> str:
        if self.has_failed:
            return "failed"
        if self._draining:
            return "draining"
        if self._turns is None:
            return "starting" if self._accepts else "stopped"
        return "running"

    # --- life ----------------------------------------------------------------------------

    def run_in(self, cell: Cell) -> None:
        """Note the cell that runs this agent."""
        self._cell = cell

    def cut(self) -> None:
        """Prepare for a restart: turns that are cut by it are failed by the next life, and not as stopped ones."""
        self.has_failed = True

    def drain(self) -> None:
        """Take no more messages but from turns that still run."""
        self.timer_service.end()
        self._accepts = False
        self._draining = True

    async def finish(self, reason: str) -> None:
        """End whatever was accepted and not answered as a Failure, and close what the agent has open."""
        self._accepts = self._draining = False
        try:
            await self._fail_rest()  # last_words() shields, with a time limit
            with trio.move_on_after(CLEANUP, shield=True):
                await self._on_stop()
        finally:
            self._on_left(self.name)

    def stop(self) -> None:
        """End where it is."""
        if self._cell is not None:
            self._cell.stop()

    @property
    def is_durable(self) -> bool:
        """True if a journal has its sessions, so that they survive the process."""
        return self.journal is not None

    async def wait_started(self, name: str) -> None:
        """Let the session whose turn calls an agent that does not run wait for it, if it came from the journal."""
        await self._wait_started(name, running_session())

    @property
    def is_stopping(self) -> bool:
        """True if nothing of it goes on in this process; known a checkpoint after the cancellation that ends it."""
        is_stopped = self._cell is not None and self._cell.is_stopping
        return is_stopped or (self._is_cut_off and not self.has_failed)

    async def live(self) -> None:
        """Serve until cancelled."""
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
                    self.timer_service.begin(nursery)
                self.ready.set()
                self.pump()
                try:
                    await trio.sleep_forever()
                finally:
                    self._is_cut_off = True
        finally:
            self.timer_service.end()
            self._nursery = self._turns = None

    def pump(self) -> None:
        """Start the turns of all messages that may go out."""
        if not self._settling:
            self._pump()

    def _pump(self) -> None:
        if self._turns is None or self.has_failed or self._is_cut_off:
            return
        while self._held_up:
            context, turn = self._held_up.pop(0)
            self._turns.start_with(turn.variables.copy(), context, turn)  # it may be just leaving them
        while (message := self.inbox.poll()) is not None:
            context = self.sessions[message.session_id]
            joined = () if message.on_busy == "queue" else self._collect(message)
            acceptance = context.mail.take(joined[-1] if joined else message)
            turn = self.edges.begin_turn(context, acceptance, joined[:-1])
            self.stop_if_outdated(turn)
            self._turns.start_with(turn.variables, context, turn)

    def try_claim(self, message: Message) -> bool:
        """Claim the session of a message whose turn may `start` at once."""
        is_up = self._turns is not None and not (self.has_failed or self._is_cut_off)
        return is_up and self.inbox.try_claim(message)

    def try_claim_place(self, place: Place[Message]) -> bool:
        """The same for a message that has a place in the inbox."""
        is_up = self._turns is not None and not (self.has_failed or self._is_cut_off)
        return is_up and self.inbox.claim_place(place)

    def start_soon(self, fn: Callable[..., Awaitable[object]], *args: object) -> bool:
        """Run something beside the turns, as long as the agent works; False if it does not."""
        if self._nursery is not None:
            self._nursery.start_soon(fn, *args)
        return self._nursery is not None

    def start(self, context: SessionContext, acceptance: Acceptance) -> None:
        """Start the turn of a message whose session was just claimed."""
        assert self._turns is not None  # noqa: S101 - try_claim() saw to it
        self._turns.start_with(acceptance.variables, context, self.edges.begin_turn(context, acceptance))

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
        self.edges.enter(turn, scope)
        await self.core.run_turn(context, turn)

    async def _abandon_turn(self, context: SessionContext, turn: Turn) -> None:
        """The agent stops or fails, in the middle of the turn or after it."""
        if context.turn is not turn:
            return
        if self.has_failed:
            turn.control.cut(ActorFailed(self.name, "it failed, and starts again without this turn"))
            self._held_up.append((context, turn))
            return
        await self._say_stopped(context, turn)

    async def _finish_turn(self, context: SessionContext, turn: Turn) -> None:
        """The turn's end; an URGENT message that came meanwhile keeps the session."""
        if turn.pending_approvals is not None and turn.control.error is None:
            self.suspensions.suspend(context, turn)
            self.pump()
            return
        if context.task is not None and turn.message.id == context.task.message_id:
            await self._report(context, turn.control.stop or turn.control.error, blame=turn.control.blame)
        urgent = None
        try:
            if (error := turn.control.stop or turn.control.error) is not None:
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
            self.start(context, context.mail.take(urgent))
        if self.inbox.owners and urgent is None and self.inbox.is_wanted_by_others(context.id):
            await self._settle()
            self._pump()
        else:
            self.pump()

    async def _settle(self) -> None:
        """Let who was just answered go on speaking before the place is given away, or it would be his who always waits."""
        self._settling += 1
        try:
            for _ in range(SPEAKING):
                await trio.lowlevel.cancel_shielded_checkpoint()
        finally:
            self._settling -= 1

    async def _report(
        self, context: SessionContext, error: Exception | None, *, blame: str = "internal"
    ) -> None:
        """Tell the session that delegated a task what came of it, before the task is over."""
        context.drop_timer(TASK_TIMER)
        if context.task is not None and context.task.reports:
            await self._on_task_done(context, error, blame)

    def _let_go(self, context: SessionContext) -> None:
        self.inbox.release(context.id)
        if context.children:
            self._drop_unclaimed(context)
        self.forget_if_over(context)
        self.sessions.rest(context)

    def _drop_unclaimed(self, context: SessionContext) -> None:
        """End what an earlier process asked of others, and this one did not ask for again."""
        for child in context.children.take_unclaimed() if context.children else ():
            child.closed = True
            host_of(child).take_up_if_outdated(child)
            if child.turn is not None:
                child.turn.interrupt("nobody waits for the answer any more")

    async def _stop_suspended(self) -> None:
        """Without a journal nobody will bring them back."""
        for context, turn in self._held_up:
            await run_with(turn.variables, self._say_stopped(context, turn))
        for context in [each for each in self.sessions.values() if each.suspension is not None]:
            if context.log is None and context.suspension is not None:
                self.inbox.unpark(context.id)
                turn = self.edges.continue_turn(context, context.suspension)
                await run_with(turn.variables, self._say_stopped(context, turn))
            elif self.inbox.is_parked(context.id):
                self.inbox.unpark(context.id)

    async def _say_stopped(self, context: SessionContext, turn: Turn) -> None:
        """End a turn in its middle because the agent stops."""
        self._bury(context, (*turn.joined, turn.message))
        await self.edges.say_stopped(context, turn)
        self._let_go(context)

    def _bury(self, context: SessionContext, messages: Sequence[Message]) -> None:
        """Keep messages that nobody will answer: no journal has them for the next start, and no turn asked for them."""
        if context.log is not None or context.parent is not None:
            return
        owner = None if context.transient else context.owner
        for message in messages:
            letter = DeadLetter(self.name, message, "it was stopped", priority=message.priority, owner=owner)
            self.bury(letter)

    def bury(self, letter: DeadLetter) -> None:
        """Keep a message that nobody will deal with."""
        if self._cell is not None:
            self._cell.bury(letter, is_told=True)

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
                        self._bury(context, waiting)
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
        context.due_index = self.timer_service.index
        if context.parent is not None:
            context.parent.add_child(context)
        if self.events.watched:
            parent = context.parent_key
            self.events.publish(
                SessionOpened(
                    agent=self.name,
                    session_id=context.id,
                    owner=context.owner.name,
                    parent_id=None if parent is None else parent.session_id,
                    parent_agent=None if parent is None else parent.agent,
                )
            )

    def new_log(self, session_id: str, *, due: float = 0.0) -> SessionLog | None:
        """A session's end of the journal, where there is one, which has its earliest date at `due`."""
        if self.journal is None:
            return None
        return SessionLog(session_id, self.name, self.journal, self._epoch, due=due)

    def go_on(self, context: SessionContext, messages: Sequence[Message]) -> None:
        """Take what was accepted before a restart, for which the session is claimed; a turn that had begun goes on first."""
        context.mail.pending += len(messages)
        if messages:
            self.sessions.stir(context)
        waiting = list(messages)
        if context.resume is not None and context.approvals is not None and context.approvals.is_suspended:
            context.mail.pending += len(context.resume.joined)
            self.suspensions.lay_down(context, waiting.pop(0))
        elif context.resume is not None:
            context.mail.pending += len(context.resume.joined)
            self._held_up.append((context, self.edges.begin_turn(context, context.mail.take(waiting.pop(0)))))
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
        """Close a session and all below it, at once."""
        with ExitStack() as kept:
            family = [kept.enter_context(host_of(each).kept(each)) for each in context.family()]
            open_ones = [each for each in family if not each.closed]
            for each in open_ones:
                each.closed = True
            async with trio.open_nursery() as nursery:
                for each in reversed(open_ones):
                    nursery.start_soon(host_of(each).stop_for_good, each)

    def take_up_if_outdated(self, context: SessionContext) -> None:
        """End a suspended turn whose answer nobody wants any more."""
        self.suspensions.take_up_if_outdated(context)

    async def stop_for_good(self, context: SessionContext) -> None:
        """End what runs or waits in a session that was closed."""
        reason = Interrupted("the session was closed")
        await self._stop(context, reason, drop=SessionClosed(context.id))

    @contextmanager
    def kept(self, context: SessionContext) -> Iterator[SessionContext]:
        """A session that is awake stays so, and is not forgotten, in the block."""
        self.pin(context)
        try:
            yield context
        finally:
            self.unpin(context)

    def pin(self, context: SessionContext) -> None:
        """Keep a session that is awake so, until it is unpinned as often."""
        context.mail.pins += 1
        self.sessions.stir(context)

    def unpin(self, context: SessionContext) -> None:
        context.mail.pins -= 1
        self.forget_if_over(context)
        self.sessions.rest(context)

    def let_go(self, context: SessionContext) -> None:
        """Forget a session as soon as nothing is queued or running in it."""
        context.transient = True
        self.forget_if_over(context)

    def forget_if_over(self, context: SessionContext) -> None:
        """Forget a session that was closed or let go, once nothing is on its way in, queued or running."""
        if _is_over(context):
            self.note_closed(context)
            self.discard(context)

    def note_closed(self, context: SessionContext) -> None:
        """Have the journal know that a session is over."""
        if context.log is not None and self.sessions.get(context.id) is context:
            context.log.note_closed()
            context.log.flush_soon()

    def erase(self, context: SessionContext) -> None:
        """Forget a session that the journal has no more."""
        context.closed = True
        self.sessions.forget_asleep(context.id)
        self.discard(context)

    def discard(self, context: SessionContext) -> None:
        """Forget a session, whatever the journal has of it, and let go of its children, and those of theirs that are over."""
        let_go = self.remove(context)
        while let_go:
            other = let_go.pop()
            other.transient = True
            if _is_over(other):
                host_of(other).note_closed(other)
                let_go += host_of(other).remove(other)

    def remove(self, context: SessionContext) -> list[SessionContext]:
        """Let a session leave memory; returns those that may have stayed for it alone."""
        context.closed = True
        if not self.sessions.remove(context):
            return []
        if context.log is not None and context.log.is_temporary:
            self._on_ended(SessionKey(self.name, context.id))
        context.due_index = None
        self.timer_service.index.set(context.id, 0)
        if self.events.watched:
            self.events.publish(SessionEnded(agent=self.name, session_id=context.id))
        around = [*reversed((context.children or {}).values())]
        if context.parent is not None:
            context.parent.remove_child(context)
            if context.parent.transient:  # it may have stayed for this one's result alone
                around.insert(0, context.parent)
        return around

    # --- what it takes -----------------------------------------------------------------------

    def check_open(self, context: SessionContext) -> None:
        if context.closed:
            raise SessionClosed(context.id)
        self._check_accepts()

    def check_reachable(self, context: SessionContext) -> None:
        """Refuse a message that has been on its way since the agent took messages, if nothing can end it any more."""
        if context.closed:
            raise SessionClosed(context.id)
        if not (self._accepts or self._draining):
            raise NotRunning(self.name)

    def _check_accepts(self) -> None:
        """While the block is left, only turns and actors that still run may have something to say, in any session."""
        if not self._accepts and not (self._draining and (is_inside(running_turn.get()) or calling_actor())):
            raise NotRunning(self.name)

    async def schedule(
        self, context: SessionContext, description: str, *, key: str | None, **times: Any
    ) -> Schedule:
        """Set a schedule in a session; see `Session.schedule`."""
        self.check_open(context)
        with self.kept(context):
            now, steady = self.clock.now(), self.clock.steady()
            schedule = parse_schedule(description, now=now, steady=steady, key=key, **times)
            return await set_schedule(context, schedule, self.propagation.take)

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
                    acceptance = context.mail.find(messages[0].id)
                    assert acceptance is not None  # noqa: S101 - it has not ended
                    await run_with(acceptance.variables, self._report(context, error))
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
        turn.lent_slots += 1
        self.inbox.lend(turn.message.session_id)
        self.pump()
        return True

    def reclaim_slot(self, turn: Turn) -> None:
        """Take the place again, once nothing of the turn waits any more."""
        turn.lent_slots -= 1
        if not turn.lent_slots and self._is_out(turn):
            self.inbox.reclaim(turn.message.session_id)

    def _is_out(self, turn: Turn) -> bool:
        context = self.sessions.get(turn.message.session_id)
        return context is not None and context.turn is turn


def _is_over(context: SessionContext) -> bool:
    """Return True if a session was closed or let go, and nothing is on its way in, queued or running."""
    is_over = context.closed or (context.transient and not context.reports_due)
    return is_over and not context.mail.pending and not context.mail.pins


def _stopped(turn: Turn | None, error: Exception) -> trio.Event | None:
    """Stop a turn, and return what tells its end."""
    if turn is None:
        return None
    turn.stop_with(error)
    if turn.control.ended is None:
        turn.control.ended = trio.Event()
    return turn.control.ended
