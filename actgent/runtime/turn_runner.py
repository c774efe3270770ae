"""Which message of an agent runs now: turns are claimed, started, run, suspended, resumed and finished, each in a task of its own."""

import functools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import attrs
import trio

from actgent.actors.cell import Cell
from actgent.actors.dead_letters import DeadLetter
from actgent.actors.inbox import Place, PriorityInbox
from actgent.actors.timer import Timer
from actgent.actors.workers import Workers
from actgent.errors import ActorFailed, Interrupted, SessionMoved
from actgent.journal.records import Resumed, SuspendedRecord
from actgent.messages import Failure, Message, Priority
from actgent.sessions.context import SessionContext, host_of
from actgent.sessions.incoming import is_collected
from actgent.sessions.mail import Acceptance
from actgent.sessions.propagation import run_with
from actgent.sessions.turn import Suspension, Turn
from actgent.sessions.waiting.tasks import TASK_TIMER
from actgent.sessions.waiting.turn_future import TurnFuture
from actgent.support.logs import Each, logger_of
from actgent.turns.core import AgentCore
from actgent.turns.lifecycle import TurnLifecycle

from .sessions.table import SessionTable
from .slots import running_session

_log = logger_of(__name__)
URGENT_CAME = "an urgent message came"
NEWER_CAME = "a newer message came"
SPEAKING = 4
"""Rounds of the loop in which who was just answered says the next thing."""


@attrs.frozen
class Suspend:
    """The turn waits for people."""


@attrs.frozen
class FailWith:
    """The turn ends with an error."""

    error: Exception


@attrs.frozen
class End:
    """The turn ends as it was meant to."""


_SUSPEND, _END = Suspend(), End()


def next_step(turn: Turn) -> Suspend | FailWith | End:
    """Decide what becomes of a turn whose passes are over."""
    control = turn.control
    if control.error is None and turn.pending_approvals is not None:
        return _SUSPEND
    error = control.error if control.stop is None else control.stop
    return _END if error is None else FailWith(error)


class TurnRunner:
    """Runs the turns of one agent. A message that may go out starts its turn at once; an idle session has no task."""

    def __init__(
        self,
        name: str,
        *,
        core: AgentCore,
        turn_lifecycle: TurnLifecycle,
        inbox: PriorityInbox[Message],
        sessions: SessionTable,
        timer: Timer,
        wait_started: Callable[[str, SessionContext | None], Awaitable[None]],
        on_task_done: Callable[[SessionContext, Exception | None, str], Awaitable[None]],
    ) -> None:
        """Args: `on_task_done` gets the error with which a delegated task ended, or None, and whose fault that is."""
        self.name = name
        self.turn_lifecycle = turn_lifecycle
        self.inbox = inbox
        self.sessions = sessions
        self.has_failed = False
        """True if something in the agent raised that nobody caught, so that all else is cut, and it starts again."""
        self._core = core
        self._timer = timer
        self._wait_started = wait_started
        self._on_task_done = on_task_done
        self._on_released: Callable[[SessionContext], object] = _ignore
        self._on_suspended: Callable[[SessionContext], object] = _ignore
        self._cell: Cell | None = None
        self._nursery: trio.Nursery | None = None
        self._workers: Workers[SessionContext, Turn] | None = None
        self._held_up: list[tuple[SessionContext, Turn]] = []
        """Turns to resume or fail once the agent has restarted."""
        self._settling = 0
        """Turns that have just ended, and give their places away in a moment."""
        self._is_cut_off = False
        """True if the agent was cancelled, by a failure of its own or from outside of it."""

    def connect(
        self,
        *,
        on_released: Callable[[SessionContext], object],
        on_suspended: Callable[[SessionContext], object],
    ) -> None:
        """Name what hears of sessions that a turn leaves: with its end, and while it waits for people."""
        self._on_released, self._on_suspended = on_released, on_suspended

    # --- life ----------------------------------------------------------------------------

    def run_in(self, cell: Cell) -> None:
        """Note the cell that runs the agent."""
        self._cell = cell

    def begin(self, nursery: trio.Nursery) -> None:
        """Run turns in a nursery, until it is cancelled."""
        self.turn_lifecycle.begin()
        self.has_failed = self._is_cut_off = False
        self._nursery = nursery
        self._workers = Workers(
            nursery,
            timer=self._timer,
            run=self._run_turn,
            finish=self._finish_turn,
            abandon=self._abandon_turn,
        )

    def cut_off(self) -> None:
        """Start no more turns: the nursery is cancelled."""
        self._is_cut_off = True

    def end(self) -> None:
        """Forget the nursery, which is over."""
        self._nursery = self._workers = None

    @property
    def is_running(self) -> bool:
        """True if there is a nursery for turns."""
        return self._nursery is not None

    @property
    def is_stopping(self) -> bool:
        """True if nothing of it goes on in this process; known a checkpoint after the cancellation that ends it."""
        is_stopped = self._cell is not None and self._cell.is_stopping
        return is_stopped or (self._is_cut_off and not self.has_failed)

    async def wait_started(self, name: str) -> None:
        """Let the session whose turn calls an agent that does not run wait for it, if it came from the journal."""
        await self._wait_started(name, running_session())

    def bury(self, letter: DeadLetter) -> None:
        """Keep a message that nobody will deal with."""
        if self._cell is not None:
            self._cell.bury(letter, is_told=True)

    def start_soon(self, fn: Callable[..., Awaitable[object]], *args: object) -> bool:
        """Run something beside the turns, as long as the agent works; False if it does not."""
        if self._nursery is not None:
            with suppress(RuntimeError):  # the nursery is just over, and forgotten in a moment
                self._nursery.start_soon(fn, *args)
                return True
        return False

    # --- claim and start -----------------------------------------------------------------

    def pump(self) -> None:
        """Start the turns of all messages that may go out."""
        if not self._settling:
            self._pump()

    def _pump(self) -> None:
        if self._workers is None or self.has_failed or self._is_cut_off:
            return
        while self._held_up:
            context, turn = self._held_up.pop(0)
            self._workers.start_with(turn.variables.copy(), context, turn)  # it may be just leaving them
        while (message := self.inbox.poll()) is not None:
            context = self.sessions[message.session_id]
            joined = () if message.on_busy == "queue" else self._collect(message)
            acceptance = context.mail.take(joined[-1] if joined else message)
            turn = self.turn_lifecycle.begin_turn(context, acceptance, joined[:-1])
            self.stop_if_superseded(turn)
            self._workers.start_with(turn.variables, context, turn)

    def try_claim(self, message: Message) -> bool:
        """Claim the session of a message whose turn may `start` at once."""
        is_up = self._workers is not None and not (self.has_failed or self._is_cut_off)
        return is_up and self.inbox.try_claim(message)

    def try_claim_place(self, place: Place[Message]) -> bool:
        """The same for a message that has a place in the inbox."""
        is_up = self._workers is not None and not (self.has_failed or self._is_cut_off)
        return is_up and self.inbox.claim_place(place)

    def start(self, context: SessionContext, acceptance: Acceptance) -> None:
        """Start the turn of a message whose session was just claimed."""
        assert self._workers is not None  # noqa: S101 - try_claim() saw to it
        turn = self.turn_lifecycle.begin_turn(context, acceptance)
        self._workers.start_with(acceptance.variables, context, turn)

    def _collect(self, message: Message) -> tuple[Message, ...]:
        """A message that is just claimed, and those behind it that are to be answered together with it."""
        if not is_collected(message):
            return ()
        return (message, *self.inbox.take_along(message.session_id, is_collected))

    def stop_if_superseded(self, turn: Turn) -> None:
        """Stop a turn whose session was told something since that is to go before it."""
        is_urgent = turn.message.priority is Priority.URGENT
        if not is_urgent and self.inbox.has_first(turn.message.session_id):
            turn.interrupt(NEWER_CAME)

    def hold_up(self, context: SessionContext, turn: Turn) -> None:
        """Keep a turn that is to go on with the next `pump()` of an agent that works."""
        self._held_up.append((context, turn))

    # --- run and finish ------------------------------------------------------------------

    def _run_turn(self, scope: trio.CancelScope, context: SessionContext, turn: Turn) -> Awaitable[None]:
        """The turn of a claimed session."""
        turn.host = self
        self.turn_lifecycle.enter(turn, scope)
        return self._core.run_turn(context, turn)

    @trio.lowlevel.enable_ki_protection  # cut there, the session would be free without the end of its turn
    async def _finish_turn(self, context: SessionContext, turn: Turn) -> None:
        """The turn's end; an URGENT message that came meanwhile keeps the session."""
        if (step := next_step(turn)) is _SUSPEND:
            self._suspend(context, turn)
            self.pump()
            return
        error = step.error if isinstance(step, FailWith) else None
        urgent = None
        try:
            if error is not None and not context.has_moved:
                with trio.CancelScope() as turn.control.scope:  # for `leave`
                    error = await self.turn_lifecycle.record_failure(context, turn, error)
            if context.task is not None and turn.message.id == context.task.message_id:
                with trio.CancelScope() as turn.control.scope:  # for `leave`
                    await self.report_task(context, error, blame=turn.control.blame)
            if error is None and not context.mail.has_moved:
                self.turn_lifecycle.end_turn(context, turn)
            else:
                await self._end_otherwise(context, turn, error)
            urgent = None if self.has_failed else self.inbox.next_urgent(context.id)
        except Exception:
            self.has_failed = True
            raise
        finally:
            if (
                urgent is None and context.turn is not turn
            ):  # cut before its failure was written, it has not ended
                self._release(context)
        if urgent is not None and self._workers is not None:
            self.start(context, context.mail.take(urgent))
        if self.inbox.owners and urgent is None and self.inbox.is_wanted_by_others(context.id):
            await self._settle()
            self._pump()
        elif not self._settling:
            self._pump()

    async def _end_otherwise(self, context: SessionContext, turn: Turn, error: Exception | None) -> None:
        if context.has_moved or error is None:
            self.turn_lifecycle.leave_turn(context, turn)
        else:
            with trio.CancelScope() as turn.control.scope:  # for `leave`
                await self.turn_lifecycle.fail_turn(context, turn, error)

    async def _settle(self) -> None:
        """Let who was just answered go on speaking before the place is given away, or it would be his who always waits."""
        self._settling += 1
        try:
            for _ in range(SPEAKING):
                await trio.lowlevel.cancel_shielded_checkpoint()
        finally:
            self._settling -= 1

    async def report_task(
        self, context: SessionContext, error: Exception | None, *, blame: str = "internal"
    ) -> None:
        """Tell the session that delegated a task what came of it, before the task is over."""
        context.drop_timer(TASK_TIMER)
        if context.task is not None and context.task.reports and not context.has_moved:
            await self._on_task_done(context, error, blame)

    def _release(self, context: SessionContext) -> None:
        """A turn is over, and nothing keeps its session."""
        self.inbox.release(context.id)
        if context.children:
            self._drop_unclaimed(context)
        self._on_released(context)
        self.sessions.mark_idle(context)

    def _drop_unclaimed(self, context: SessionContext) -> None:
        """End what an earlier process asked of others, and this one did not ask for again."""
        for child in context.children.take_unclaimed() if context.children else ():
            child.closed = True
            host_of(child).resume_if_superseded(child)
            if child.turn is not None:
                child.turn.interrupt("the caller is gone")

    async def _abandon_turn(self, context: SessionContext, turn: Turn) -> None:
        """The agent stops or fails, in the middle of the turn or after it."""
        if context.turn is not turn:
            return
        if context.has_moved:
            self.end_left(context, turn)
            return
        if self.has_failed:
            turn.control.cut(ActorFailed(self.name, "it failed, and starts again without this turn"))
            self._core.observer.cut(turn)
            self._held_up.append((context, turn))
            return
        self.cut_off()  # from here on the journal hears nothing of the session, so that nothing more is taken
        await self._say_stopped(context, turn)

    def leave_turn(self, context: SessionContext, turn: Turn) -> None:
        """Stop a turn wherever it is, with which another process goes on."""
        if any(each is turn for _, each in self._held_up):
            self._held_up = [each for each in self._held_up if each[1] is not turn]
            self.end_left(context, turn)
            return
        turn.control.cut(SessionMoved(self.name, context.id))
        if turn.control.scope is not None:
            turn.control.scope.cancel()

    def end_left(self, context: SessionContext, turn: Turn) -> None:
        """The end here of a turn that another process goes on with."""
        self.turn_lifecycle.leave_turn(context, turn)
        self._release(context)
        self.pump()

    async def tell_moved(self, context: SessionContext) -> None:
        """Tell the handlers that a session still has that they hear no more, or the log where none hears of that."""
        moved = SessionMoved(self.name, context.id)
        failure = Failure(id=f"{context.id}/moved", kind="moved", error=moved, message_id="")
        if not context.handlers.any_of("exception"):
            _log.warning("%s; handlers that were attached to it here hear no more", Each(str(moved)))
        await self._core.dispatcher.dispatch(context, failure)

    async def _say_stopped(self, context: SessionContext, turn: Turn) -> None:
        """End a turn in its middle because the agent stops."""
        self.bury_all(context, (*turn.joined, turn.message))
        await self.turn_lifecycle.say_stopped(context, turn)
        self._release(context)

    async def stop_suspended(self) -> None:
        """Without a journal nobody will bring them back."""
        for context, turn in self._held_up:
            await run_with(turn.variables, self._say_stopped(context, turn))
        for context in [each for each in self.sessions.values() if each.suspension is not None]:
            if context.log is None and context.suspension is not None:
                self.inbox.unpark(context.id)
                turn = self.turn_lifecycle.continue_turn(context, context.suspension)
                await run_with(turn.variables, self._say_stopped(context, turn))
            elif self.inbox.is_parked(context.id):
                self.inbox.unpark(context.id)

    def bury_all(self, context: SessionContext, messages: Sequence[Message]) -> None:
        """Keep messages that nobody will answer: no journal has them for the next start, and no turn asked for them."""
        if context.log is not None or context.parent is not None:
            return
        owner = None if context.mail.is_transient else context.owner
        for message in messages:
            letter = DeadLetter(self.name, message, "it was stopped", priority=message.priority, owner=owner)
            self.bury(letter)

    # --- wait for people -----------------------------------------------------------------

    def send_away(self, context: SessionContext) -> None:
        """Refuse what came in behind a turn that waits for people, of callers that do not wait for those."""
        self._on_suspended(context)

    def _suspend(self, context: SessionContext, turn: Turn) -> None:
        """A turn waits for people: it holds neither task nor slot, and its session's mail waits."""
        self.turn_lifecycle.suspend_turn(context, turn)
        self.inbox.park(context.id)
        ledger = context.ledger()
        if newer := self.superseded_by(turn.message):
            turn.interrupt(newer)
        if turn.control.stop is not None or not ledger.has_open:
            self.resume(context)
        else:
            turn.control.on_stop = functools.partial(self.resume, context)
            for listener in turn.listeners:
                if listener.is_patient:
                    listener.hold()
                else:
                    turn.remove_listener(listener)
                    listener.suspend(ledger.suspended())
            self._on_suspended(context)
            for future in _queued(context):
                future.hold()
            context.mail.tell_idle()
            self.sessions.mark_idle(context)

    def resume(self, context: SessionContext, error: Exception | None = None) -> None:
        """A suspended turn goes on: nobody is waited for any more, or it is to end with an error."""
        suspension = context.suspension
        if suspension is None:
            return
        self.sessions.mark_active(context)
        self.inbox.unpark(context.id)
        turn = self.turn_lifecycle.continue_turn(context, suspension)
        for listener in (*turn.listeners, *_queued(context)):
            listener.release()
        if error is not None:
            turn.stop_with(error)
        ledger = context.ledger()
        if ledger.is_suspended:
            context.record_approval(Resumed())
        self.hold_up(context, turn)
        self.pump()

    def restore(self, context: SessionContext, message: Message) -> None:
        """Keep a turn that waited for people before a restart."""
        joined = () if context.checkpoint is None else context.checkpoint.joined
        context.suspension = Suspension(message, messages=1 + len(joined))
        self.inbox.park(context.id)
        if context.task is not None and context.task.message_id == message.id:
            context.task.future.hold()

    def resume_if_superseded(self, context: SessionContext) -> None:
        """End a suspended turn whose answer nobody wants, or whose session was told something that does not wait for people."""
        if context.suspension is None:
            return
        reason = "the caller is gone" if context.closed else ""
        if reason := reason or self.superseded_by(context.suspension.message):
            self.resume(context, Interrupted(reason))
        elif context.log is not None and self.inbox.has_first(context.id):
            self.note_again(context)  # an URGENT turn waits on
            context.log.flush_soon()

    def note_again(self, context: SessionContext) -> None:
        """A turn waits on although a message was written that counts as its end in the journal's index."""
        ids, log = tuple(each.id for each in context.ledger().undecided), context.log
        if log is not None and context.suspension is not None and ids:  # else the last one is just decided
            log.add(SuspendedRecord(message_id=context.suspension.message.id, ids=ids))

    def superseded_by(self, message: Message) -> str:
        """Return why a suspended turn that answers `message` has to end early, or an empty string."""
        if self.inbox.has_urgent(message.session_id):
            return URGENT_CAME
        is_urgent = message.priority is Priority.URGENT
        return NEWER_CAME if not is_urgent and self.inbox.has_first(message.session_id) else ""

    # --- slots -----------------------------------------------------------------------------

    def lend_slot(self, turn: Turn) -> bool:
        """Let another session run in the place of a turn that waits; False where the turn is over."""
        if not self._is_out(turn):
            return False
        turn.lent_slots += 1
        self.inbox.lend(turn.message.session_id)
        self.pump()
        return True

    def reclaim_slot(self, turn: Turn) -> None:
        """Re-acquire the concurrency slot once nothing in the turn is waiting."""
        turn.lent_slots -= 1
        if not turn.lent_slots and self._is_out(turn):
            self.inbox.reclaim(turn.message.session_id)

    def _is_out(self, turn: Turn) -> bool:
        context = self.sessions.get(turn.message.session_id)
        return context is not None and context.turn is turn


def _queued(context: SessionContext) -> list[TurnFuture]:
    """List the callers that wait for approvals, too, and whose messages are queued behind the session's turn."""
    futures = [each.future for each in (context.mail.acceptances or {}).values() if each.is_in]
    return [each for each in futures if each is not None and each.is_patient and not each.abandoned]


def _ignore(_: SessionContext) -> None:
    """Nobody is connected yet."""
