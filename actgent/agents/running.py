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
from actgent.events import EventStream, MessageAccepted, SessionEnded, SessionOpened
from actgent.journal.base import Journal
from actgent.journal.records import Record, Resumed, TurnOptions
from actgent.messages import Message, Priority

from .alarms import Alarms
from .context import SessionContext
from .core import AgentCore
from .double_texting import check_busy, is_collected
from .edges import TurnEdges
from .log import SessionLog
from .schedule import Schedule, plan, set_schedule
from .sessions import SessionTable
from .tasks import TaskDeadline, Tasks, reports_due
from .turn import Asked, Suspension, Turn, is_inside, running_turn
from .waiters import TurnWaiter
from .waiting import running_session, slot_lent, would_wait_for_itself

URGENT_CAME = "an urgent message came"
NEWER_CAME = "a newer message came"
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
        self.has_failed = False
        """Whether something in it raised that nobody caught, so that all else is cut, and it starts again."""

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
        return self._scope.cancel_called

    async def _serve(self) -> None:
        self.edges.begin()
        self.has_failed = False
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
                self._pump()
                await trio.sleep_forever()
        finally:
            self.alarms.end()
            self._nursery = self._turns = None

    def _pump(self) -> None:
        """Start the turns of all messages that may go out."""
        if self._turns is None or self.has_failed:
            return
        while self._held_up:
            self._turns.start_soon(*self._held_up.pop(0))
        while (message := self.inbox.poll()) is not None:
            context = self.sessions[message.session_id]
            joined = () if message.on_busy == "queue" else self._collect(message)
            turn = self.edges.begin_turn(context, joined[-1] if joined else message, joined[:-1])
            self._stop_if_outdated(turn)
            self._turns.start_soon(context, turn)

    def _collect(self, message: Message) -> tuple[Message, ...]:
        """A message that is just claimed, and those behind it that are to be answered together with it."""
        if not is_collected(message):
            return ()
        return (message, *self.inbox.take_along(message.session_id, is_collected))

    def _stop_if_outdated(self, turn: Turn) -> None:
        """Stop a turn whose session was told something since that is to go before it."""
        is_urgent = turn.message.priority is Priority.URGENT
        if not is_urgent and self.inbox.has_first(turn.message.session_id):
            turn.interrupt(NEWER_CAME)

    def _newer(self, message: Message) -> str:
        """Why nobody is to be waited for any more in a turn that answers `message`; empty where nothing came."""
        if self.inbox.has_urgent(message.session_id):
            return URGENT_CAME
        is_urgent = message.priority is Priority.URGENT
        return NEWER_CAME if not is_urgent and self.inbox.has_first(message.session_id) else ""

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
            self._suspend(context, turn)
            return
        if context.task is not None and turn.message.id == context.task.message_id:
            await self._report(context, turn.stop or turn.error, blame=turn.blame)
        urgent = None
        try:
            await self.edges.finish_turn(context, turn)
            urgent = None if self.has_failed else self.inbox.next_urgent(context.id)
        except Exception:
            self.has_failed = True
            raise
        finally:
            if urgent is None:
                self._let_go(context)
        if urgent is not None and self._turns is not None:
            self._turns.start_soon(context, self.edges.begin_turn(context, urgent))
        self._pump()

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
        self._forget_if_over(context)
        self.sessions.rest(context)

    def _drop_unclaimed(self, context: SessionContext) -> None:
        """End what an earlier process asked of others, and this one did not ask for again."""
        for child in list((context.children or {}).values()):
            if child.task is not None and child.task.is_unclaimed and not child.task.reports:
                child.closed = True
                if child.turn is not None:
                    child.turn.interrupt("nobody waits for the answer any more")

    # --- people ------------------------------------------------------------------------------

    def _suspend(self, context: SessionContext, turn: Turn) -> None:
        """A turn waits for people: it holds neither task nor slot, and its session's mail waits."""
        self.edges.suspend_turn(context, turn)
        self.inbox.park(context.id)
        ledger = context.ledger()
        if newer := self._newer(turn.message):
            turn.interrupt(newer)
        if turn.stop is not None or not ledger.waits:
            self.take_up(context)
        else:
            turn.on_stop = functools.partial(self.take_up, context)
            if turn.waiter is not None and turn.waiter.is_patient:
                turn.waiter.hold()
            elif turn.waiter is not None:
                turn.waiter.suspend(tuple(ledger.open))
                turn.waiter = None
            context.tell_idle()
            self.sessions.rest(context)
        self._pump()

    def take_up(self, context: SessionContext, error: Exception | None = None) -> None:
        """A suspended turn goes on: nobody is waited for any more, or it is to end with an error."""
        suspension = context.suspension
        if suspension is None:
            return
        self.sessions.stir(context)
        self.inbox.unpark(context.id)
        turn = self.edges.continue_turn(context, suspension)
        if turn.waiter is not None:
            turn.waiter.release()
        if error is not None:
            turn.stop_with(error)
        ledger = context.ledger()
        if ledger.is_suspended:
            context.note(Resumed())
        self._held_up.append((context, turn))
        self._pump()

    @contextmanager
    def kept(self, context: SessionContext) -> Iterator[None]:
        """A session that is awake stays so, and is not forgotten, in the block."""
        context.pending += 1
        self.sessions.stir(context)
        try:
            yield
        finally:
            context.settle()
            self._forget_if_over(context)
            self.sessions.rest(context)

    def _lay_down(self, context: SessionContext, message: Message) -> None:
        """Keep a turn that waited for people before a restart."""
        joined = () if context.resume is None else context.resume.joined
        context.suspension = Suspension(message, messages=1 + len(joined))
        self.inbox.park(context.id)

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
                        nursery.start_soon(self._say_stopped, self.sessions[session_id], waiting)

    async def _say_stopped(self, context: SessionContext, messages: list[Message]) -> None:
        for message in messages:
            with self.edges.last_words():  # one each: when time is over, sync handlers are still told
                await self.edges.fail_unstarted(context, message, Stopped(self.name))

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
        """Take what was accepted before a restart; a turn that had begun goes on first."""
        context.pending += len(messages)
        if messages:
            self.sessions.stir(context)
        waiting = list(messages)
        if context.resume is not None and context.approvals is not None and context.approvals.is_suspended:
            context.pending += len(context.resume.joined)
            self._lay_down(context, waiting.pop(0))
        elif context.resume is not None:
            self.inbox.claim(context.id)
            context.pending += len(context.resume.joined)
            self._held_up.append((context, self.edges.begin_turn(context, waiting.pop(0))))
        for place, message in enumerate(waiting):
            self.inbox.restore(message, now=place - AGES, first=message.on_busy == "interrupt")
        if context.suspension is not None and (newer := self._newer(context.suspension.message)):
            self.take_up(context, Interrupted(newer))
        self.sessions.rest(context)
        turn = context.turn
        is_exposed = turn is not None and turn.message.priority is not Priority.URGENT
        if turn is not None and is_exposed and (newer := self._newer(turn.message)):
            turn.interrupt(newer)
        self._pump()

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
        self._forget_if_over(context)

    def let_go(self, context: SessionContext) -> None:
        """Forget a session as soon as nothing is queued or running in it."""
        context.transient = True
        self._forget_if_over(context)

    def _forget_if_over(self, context: SessionContext) -> None:
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

    # --- messages ------------------------------------------------------------------------

    async def accept(
        self,
        context: SessionContext,
        message: Message,
        *,
        once: bool = False,
        waiter: TurnWaiter | None = None,
        is_granted: bool = False,
    ) -> None:
        """Take a message in, waiting for room; on return it is in the inbox.

        `once` drops a message whose id the session has seen; `waiter` is told what comes of it. One that `is_granted`
        gets in whatever the bounds: the session asked for it.
        """
        self.check_open(context)
        if once and context.has_accepted(message.id):
            await trio.lowlevel.checkpoint()
            return
        check_busy(context, message)
        if once:
            context.remember_accepted(message.id)
        self._expect(context)
        if waiter is not None:
            context.wait_for(message.id, waiter)
        if waiter is not None or context.parent is not None:
            _note_asker(context, message, waiter)
        starts = False
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            if context.log is not None:
                await self._write(context, message, None if waiter is None else waiter.options.told)
            if is_granted:
                self.inbox.restore(message, now=trio.current_time())
            elif not (starts := self._turns is not None and self.inbox.try_claim(message)):
                await self._put(context, message)
        except BaseException:
            self._refuse(context, message)
            raise
        self._announce(context, message, starts=starts)
        if context.log is None:  # with a journal it has paused long enough
            await trio.lowlevel.cancel_shielded_checkpoint()

    async def release(self, context: SessionContext, message: Message) -> None:
        """Take a session's first message in. Where there is room nothing pauses, and never after it is in."""
        self.check_open(context)
        self._expect(context)
        if context.parent is not None:
            _note_asker(context, message, None)
        try:
            if context.log is not None:
                await self._write(context, message)
            if not (starts := self._turns is not None and self.inbox.try_claim(message)):
                await self._put(context, message, is_arriving=True)
        except BaseException:
            self._refuse(context, message)
            raise
        self._announce(context, message, starts=starts)

    def _expect(self, context: SessionContext) -> None:
        """A message is on its way in."""
        context.pending += 1
        self.sessions.stir(context)
        if context.suspension is not None:  # it may have slept meanwhile
            self.inbox.park(context.id)

    async def _put(self, context: SessionContext, message: Message, *, is_arriving: bool = False) -> None:
        """Put a message into the inbox, without a pause where there is room."""
        first = message.on_busy == "interrupt"
        if not self.inbox.try_put(message, now=trio.current_time(), first=first):
            context.is_arriving = is_arriving
            if is_inside(context.turn) or would_wait_for_itself(context):
                self.inbox.put_nowait(message)  # raises: it would wait for itself
            await self.inbox.put(message, first=first)

    async def schedule(
        self, context: SessionContext, description: str, *, key: str | None, **times: Any
    ) -> Schedule:
        """Set a schedule in a session; see `Session.schedule`."""
        self.check_open(context)
        return await set_schedule(context, plan(description, now=self.clock.now(), key=key, **times))

    async def admit(self, context: SessionContext, message: Message, *others: Record) -> None:
        """Take in a message that a date brought, which waits for room by coming again; `others` go in the same step.

        Raises:
            InboxFull: there is no room. Nothing was written.
            JournalError: it is not taken in, and may be written or not: it has to come again, with the same id.
        """
        self.check_open(context)
        self.inbox.check_room(message)
        self._expect(context)
        try:
            if context.log is not None:
                await context.log.accept(message, *others)
        except BaseException:
            context.settle()
            self._forget_if_over(context)
            self.sessions.rest(context)
            raise
        if context.closed:
            context.is_written = message.id
            self._refuse(context, message)
            raise SessionClosed(context.id)
        self.inbox.restore(message, now=trio.current_time())  # its place was granted above
        self._announce(context, message)
        if context.log is None:
            await trio.lowlevel.cancel_shielded_checkpoint()

    async def _write(
        self, context: SessionContext, message: Message, options: TurnOptions | None = None
    ) -> None:
        """Make an accepted message durable before it is in the inbox."""
        context.is_written = message.id
        await context.log.accept(message, asked=context.asked(message.id), options=options)
        self.check_open(context)  # it may have been closed meanwhile

    def _refuse(self, context: SessionContext, message: Message) -> None:
        """The message did not get in after all."""
        if context.log is not None and context.is_written == message.id:
            context.log.end(message.id, failed="refused")
        context.forget_message(message.id)
        self._forget_if_over(context)
        self.sessions.rest(context)

    def _announce(self, context: SessionContext, message: Message, *, starts: bool = False) -> None:
        """A message is in: whoever it concerns hears of it, and its turn starts as soon as it may."""
        turn = context.turn
        if message.priority is Priority.URGENT and turn and turn.message.priority is not Priority.URGENT:
            turn.interrupt(URGENT_CAME)
        elif message.on_busy == "interrupt" and turn:
            self._stop_if_outdated(turn)
        elif context.suspension is not None and (newer := self._newer(context.suspension.message)):
            self.take_up(context, Interrupted(newer))
        if self.events.watched:
            self.events.publish(
                MessageAccepted(
                    agent=self.name, session_id=context.id, message_id=message.id, priority=message.priority
                )
            )
        if starts and self._turns is not None:
            self._turns.start_soon(context, self.edges.begin_turn(context, message))
        else:
            self._pump()

    def check_open(self, context: SessionContext) -> None:
        if context.closed:
            raise SessionClosed(context.id)
        self._check_accepts()

    def _check_accepts(self) -> None:
        """While the block is left, only turns that still run may have something to say, in any session."""
        if not self._accepts and not (self._draining and running_turn.get() is not None):
            raise NotRunning(self.name)

    # --- stopping and waiting ------------------------------------------------------------

    async def interrupt(self, context: SessionContext, reason: str, *, drop_queued: bool) -> None:
        """Stop a session's turn, and with `drop_queued` end what waits for its turn."""
        error = Interrupted(reason)
        await self._stop(context, error, drop=error if drop_queued else None)

    async def _stop(self, context: SessionContext, error: Exception, *, drop: Exception | None) -> None:
        """End the turn with an error, and what is queued with the error `drop`; a cancelled caller changes nothing of that.

        Waits until all this has happened, unless the turn is where we are called from, or waits for that.
        """
        self.take_up(context, error)
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
            with trio.CancelScope(shield=True):
                await self._say_stopped(context, messages)
            raise
        finally:
            ended.set()
            self._forget_if_over(context)

    async def wait_idle(self, context: SessionContext) -> None:
        """Wait until a session has nothing queued or running."""
        if is_inside(context.turn):
            raise WouldDeadlock("wait_idle()", context.id)
        with slot_lent(context):
            await context.wait_idle()

    def lend_slot(self, turn: Turn) -> bool:
        """Let another session run in the place of a turn that waits; False where the turn is over."""
        if not self._is_out(turn):
            return False
        turn.waits += 1
        self.inbox.lend(turn.message.session_id)
        self._pump()
        return True

    def reclaim_slot(self, turn: Turn) -> None:
        """Take the place again, once nothing of the turn waits any more."""
        turn.waits -= 1
        if not turn.waits and self._is_out(turn):
            self.inbox.reclaim(turn.message.session_id)

    def _is_out(self, turn: Turn) -> bool:
        context = self.sessions.get(turn.message.session_id)
        return context is not None and context.turn is turn


def _note_asker(context: SessionContext, message: Message, waiter: TurnWaiter | None) -> None:
    """What a message's turn is paid from: limits of its own, and the budget of the turn that asks for it.

    That is one that waits for the answer, or speaks to a session below its own.
    """
    limits = None if waiter is None else waiter.options.limits
    asker = running_session()
    budget = None if asker is None or asker.turn is None else asker.turn.budget
    if waiter is None and not any(above is asker for above in _above(context)):
        budget = None
    if limits is not None or budget is not None:
        bounds = None if limits is None else limits.shared
        context.ask(message.id, Asked(bounds, () if budget is None else budget.accounts))


def _above(context: SessionContext) -> Iterator[SessionContext]:
    """The sessions of which this one is a child."""
    while context.parent is not None:
        context = context.parent
        yield context


def _stopped(turn: Turn | None, error: Exception) -> trio.Event | None:
    """Stop a turn, and return what tells its end."""
    if turn is None:
        return None
    turn.stop_with(error)
    if turn.ended is None:
        turn.ended = trio.Event()
    return turn.ended
