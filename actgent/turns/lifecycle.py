"""How a turn begins, waits for people, goes on and ends, whatever its passes do in between."""

import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context
from functools import partial

import attrs
import trio

from actgent.actors.timer import Timer
from actgent.control.budget import Account, Budget
from actgent.control.limits import Limits
from actgent.errors import Fenced, JournalError, SessionClosed, SessionMoved, Stopped, kind_of
from actgent.errors.restored import plain_fields, restored_failure
from actgent.errors.wording import own_words
from actgent.journal.records import NOT_KEPT, Appended, Ended, Failed, Resumed
from actgent.messages import Message, is_open_failure
from actgent.sessions.accounts import Accounts
from actgent.sessions.context import SessionContext
from actgent.sessions.incoming import add_guests, keep_outcome_of, settle_listeners, tell_moved
from actgent.sessions.mail import Acceptance
from actgent.sessions.propagation import run_with
from actgent.sessions.recent_records import RecentRecords
from actgent.sessions.session_log import SessionLog
from actgent.sessions.turn import Suspension, Turn, checkpoint_of, running_turn
from actgent.sessions.waiting.task_reports import outcome_of
from actgent.sessions.waiting.turn_checkpoint import TurnCheckpoint
from actgent.sessions.waiting.turn_future import CallOptions, Outcome, TurnFuture
from actgent.sessions.waiting.turn_options import restored_options
from actgent.support.quick_init import maker
from actgent.tools.time_limits import time_limits

from .dispatcher import Dispatcher, failure_for
from .observer import Observer

LAST_WORDS = 1.0
"""Seconds that all handlers together have to hear that their agent stops."""
_make_turn = maker(Turn)
_NOTHING = Context()
"""The variables of turns that are over."""


@attrs.define(eq=False, kw_only=True)
class TurnLifecycle:
    """Opens and closes the turns of one agent."""

    agent: str
    limits: Limits
    options: CallOptions
    """Options of turns that were started with none of their own."""
    dispatcher: Dispatcher
    observer: Observer
    timer: Timer
    accounts: Accounts
    close_calls: Callable[[SessionContext, Turn], object]
    """Called when a turn fails: closes open tool calls in the conversation."""
    deliver_rest: Callable[[SessionContext, Turn], Awaitable[object]]
    """Called when a failed turn is recorded: hands out the results and messages that handlers did not get yet."""
    deps_missing: Callable[[SessionContext, CallOptions], Exception | None]
    """Tells the error of a turn whose tools would find no deps."""
    _silence: float | None = None
    """Deadline for the shutdown handlers (`trio.current_time()`)."""

    def begin(self) -> None:
        """Be ready for turns, at the start and after each restart."""
        self._silence = None

    # --- begin ---------------------------------------------------------------------------

    def begin_turn(
        self, context: SessionContext, acceptance: Acceptance, joined: tuple[Message, ...] = ()
    ) -> Turn:
        """Claim a session for an outside message; from now on it can be interrupted. `joined` are answered with it.

        It runs with the context variables of the message's sender, whoever sent those that are joined.
        """
        future, told = context.future_of(acceptance), acceptance.options
        options = self.options if future is None else future.options
        if future is None and told is not None:
            options = restored_options(self.options, told)
        limits = options.limits or self.limits
        turn = context.turn = _make_turn(
            acceptance.message,
            options,
            time.monotonic(),
            acceptance.variables,
            listeners=() if future is None else (future,),
            limits=limits,
            reported=len(context.conversation.messages),
            joined=joined,
        )
        if context.mail.unkept is not None:
            self._go_on(context, turn, context.mail.unkept)
        if context.checkpoint is not None:
            self._resume_checkpoint(context, turn, context.checkpoint)
        if (
            limits.is_shared
            or acceptance.funding
            or context.accounts
            or turn.joined
            or turn.checkpoint is not None
            or self.accounts.owners is not None
        ):
            earlier = [context.mail.take(each).funding for each in turn.joined]
            self.accounts.begin(context, turn, self.agent, fundings=[*earlier, acceptance.funding])
        if (missing := self.deps_missing(context, options)) is not None:
            turn.stop_with(missing)
        if context.closed or acceptance.failed is not None:
            _end_at_once(context, turn, acceptance.failed)
        if acceptance.guests:
            add_guests(turn, acceptance.guests)
        if future is not None:
            _join(future, turn)
        if self.observer.stream.active:
            self.observer.begin_turn(context, turn)
        return turn

    def _go_on(self, context: SessionContext, turn: Turn, unkept: TurnCheckpoint) -> None:
        """The message of a turn for which the journal failed was sent again: it goes on where it was."""
        context.mail.unkept = None
        if unkept.message_id == turn.message.id and not turn.joined and context.log is not None:
            context.checkpoint = unkept
            context.log.add(Appended(message_id=turn.message.id, again=True, at=time.time()))

    def _resume_checkpoint(self, context: SessionContext, turn: Turn, resume: TurnCheckpoint) -> None:
        """Go on with the counts that the turn had before the restart."""
        turn.checkpoint, context.checkpoint = resume, None
        turn.joined, turn.progress = resume.joined, resume.progress

    def enter(self, turn: Turn, scope: trio.CancelScope) -> None:
        """The turn runs from now on in the calling task, within reach of an interruption through `scope`."""
        turn.control.task = trio.lowlevel.current_task()
        turn.control.scope = scope
        running_turn.set(turn)
        if time_limits.get():  # to set a variable costs more than to read it
            time_limits.set(())
        if turn.budget is not None:
            self._start_clock(turn, turn.budget)
        if self.observer.spans is not None:
            self.observer.begin_activation(turn)

    # --- wait for people -----------------------------------------------------------------

    def suspend_turn(self, context: SessionContext, turn: Turn) -> None:
        """The turn's task ends, and what it needs to go on stays."""
        context.turn = None
        turn.control.suspend()
        self.observer.suspend(turn)
        if turn.budget is not None:
            self._stop_clock(turn, turn.budget)
        context.suspension = Suspension(turn.message, turn, messages=1 + len(turn.joined))
        self.observer.suspend_turn(context, turn)

    def continue_turn(self, context: SessionContext, suspension: Suspension) -> Turn:
        """The turn is to go on; from now on it can be interrupted."""
        context.suspension = None
        turn = suspension.turn
        if turn is None:
            turn = self.begin_turn(context, context.mail.take(suspension.message))
        context.turn = turn
        turn.control.resume()
        for guest in suspension.guests:
            turn.add_listener(guest)
        self.observer.resume_turn(context, turn)
        return turn

    # --- end -----------------------------------------------------------------------------

    async def record_failure(self, context: SessionContext, turn: Turn, error: Exception) -> Exception:
        """Write that a turn failed, before anybody is notified. Return the error to notify.

        That is the error itself, or the journal's if the failure cannot be written: then nothing about the turn is final.
        Cancelled, nobody was notified, and the turn has not ended.
        """
        turn.control.cover()
        turn.control.error = error
        broken = None
        try:
            self.close_calls(context, turn)
        except Exception as raised:  # noqa: BLE001 - of a memory, for one: the agent restarts, and this turn ends
            broken = raised
        log = context.log
        if log is not None and not turn.control.is_recorded:
            error = turn.control.error = await self._write_failure(context, turn, error, log)
        if broken is not None:
            await self.fail_turn(context, turn, error)
            raise broken
        return error

    async def _write_failure(
        self, context: SessionContext, turn: Turn, error: Exception, log: SessionLog
    ) -> Exception:
        kind = kind_of(error, turn.control.blame)
        messages = (*turn.joined, turn.message)
        is_heard = (
            turn.listeners or context.task is not None or context.handlers.any_of("exception", "tool_result")
        )
        if not (is_heard or any(context.mail.has_accepted(message.id) for message in messages)):
            turn.control.is_recorded = True  # there is nobody to notify before the end of the turn is written
            return error
        try:
            if not is_open_failure(kind, error):  # in one step with the results that close its calls
                log.add(*(failed_record(message.id, kind, error) for message in messages))
            await log.flush()
        except SessionClosed:
            pass  # it is erased, and there is nothing that a later start could do otherwise
        except (JournalError, Fenced) as lost:
            return _chained(lost, error) if not is_open_failure(kind, error) else error
        turn.control.is_recorded = True
        return error

    async def fail_turn(self, context: SessionContext, turn: Turn, error: Exception) -> None:
        """Notify the handlers and callers of a turn that its failure is recorded, and end the turn.

        Results that may not be in the journal are not handed out.
        """
        try:
            if not context.has_moved:
                is_told = context.log is None or turn.control.is_recorded
                await self._notify_failure(context, turn, error, with_results=is_told)
        finally:
            if context.has_moved:
                self.leave_turn(context, turn)
            else:
                self.end_turn(context, turn)

    async def _notify_failure(
        self, context: SessionContext, turn: Turn, error: Exception, *, with_results: bool
    ) -> None:
        try:
            if with_results:
                await self.deliver_rest(context, turn)
        finally:  # also in a crash, or when the deadline for shutdown handlers has passed: sync handlers can still be told
            blame = turn.control.blame
            for message in turn.joined:
                failure = failure_for(message.id, error, blame)
                keep_outcome_of(context, message.id, Outcome(failure=failure))
                await self.dispatcher.fail(context, failure)  # noqa: ASYNC102
            failure = turn.control.failure = failure_for(turn.message.id, error, blame)
            keep_outcome_of(context, turn.message.id, Outcome(failure=failure))
            await self.dispatcher.fail(context, failure, listeners=turn.listeners)  # noqa: ASYNC102 - the callers shield

    async def say_stopped(self, context: SessionContext, turn: Turn) -> None:
        """Notify the handlers and callers of a turn that its agent stops, and end the turn here.

        With a journal the next start resumes the turn, and hands out the results of its calls.
        """
        turn.control.error = error = Stopped(self.agent)
        if turn.budget is not None:
            self._stop_clock(turn, turn.budget)
        is_over = context.log is None
        _leave_to_next_start(context)
        try:
            self.close_calls(context, turn)
        finally:
            try:
                if turn.is_heard() or context.handlers.any_of("exception", "tool_result"):
                    with self.last_words():
                        await self._notify_failure(context, turn, error, with_results=is_over)  # noqa: ASYNC102
                else:  # a shield is dear where thousands stop
                    await self._notify_failure(context, turn, error, with_results=is_over)  # noqa: ASYNC102
            finally:
                self.end_turn(context, turn)

    def last_words(self) -> trio.CancelScope:
        """A shield for handlers that have to hear that their agent stops: one second for all of them together."""
        if self._silence is None:
            self._silence = trio.current_time() + LAST_WORDS
        return trio.CancelScope(deadline=self._silence, shield=True)

    async def record_unstarted(
        self, context: SessionContext, messages: Sequence[Message], error: Exception
    ) -> Exception:
        """Write that messages failed whose turns did not begin, before anybody is notified.

        Return the error to notify: this one, or the journal's if the failures cannot be written.
        """
        if context.mail.is_left:
            return Stopped(self.agent)
        log, kind = context.log, kind_of(error)
        if log is None or context.has_moved or is_open_failure(kind, error):
            return error
        found = filter(None, (context.mail.find(message.id) for message in messages))
        acceptances = [each for each in found if each.failed is None and self._is_heard(context, each)]
        records = [failed_record(each.message.id, kind, error) for each in acceptances]
        if records:
            try:
                await log.write(*records)
            except SessionClosed:
                return error  # it is erased
            except (JournalError, Fenced) as lost:
                return _chained(lost, error)
            for acceptance, record in zip(acceptances, records, strict=True):
                acceptance.failed = record
        return error

    def _is_heard(self, context: SessionContext, acceptance: Acceptance) -> bool:
        """Return True if a handler or caller is notified, now or later, how a message ended."""
        has_caller = context.future_of(acceptance) is not None or acceptance.guests
        return bool(
            has_caller
            or context.handlers.any_of("exception")
            or context.mail.has_accepted(acceptance.message.id)
        )

    async def end_unstarted(self, context: SessionContext, message: Message, error: Exception) -> None:
        """Notify the handlers and callers of a message that it failed without a turn, after `record_unstarted`, and end it.

        If another process owns the session by then, that process answers the message, and the callers are notified of that.
        """
        if context.has_moved:
            self.leave_unstarted(context, message)
            return
        acceptance = context.mail.take(message)
        future = context.future_of(acceptance)
        listeners = acceptance.guests if future is None else (future, *acceptance.guests)
        blame = "internal" if acceptance.failed is None else acceptance.failed.kind
        failure = failure_for(message.id, error, blame)
        keep_outcome_of(context, message.id, Outcome(failure=failure))
        try:
            told = self.dispatcher.fail(context, failure, listeners=listeners)
            await run_with(acceptance.variables, told)
        finally:
            if isinstance(error, Stopped):
                _leave_to_next_start(context)
            context.mail.mark_done()
            self.observer.fail(context, message, error)
            if context.log is not None:
                self._write_end(context, context.log, message, error=error, blame=blame)
            elif (recent := context.conversation.recent) is not None:
                _note_failure(recent, [message], error)
            if context.mail.has_moved:
                tell_moved(listeners, message.id, SessionMoved(context.agent, context.id))
            for listener in listeners:
                listener.finish()

    # --- leave to another process ----------------------------------------------------------

    def leave_turn(self, context: SessionContext, turn: Turn) -> None:
        """Another process goes on with a turn: who waits for it here hears of that, and nobody of anything else."""
        context.turn = turn.pending_approvals = None
        if turn.budget is not None:
            self._stop_clock(turn, turn.budget)
        turn.control.error = error = SessionMoved(context.agent, context.id)
        tell_moved(turn.listeners, turn.message.id, error)
        turn.control.end()
        context.mail.mark_done(1 + len(turn.joined))
        self.observer.end_turn(context, turn)

    def leave_unstarted(
        self, context: SessionContext, message: Message, guests: Sequence[TurnFuture] = ()
    ) -> None:
        """The same for a message that has not had its turn."""
        acceptance = context.mail.take(message)
        future = context.future_of(acceptance)
        listeners = [] if future is None else [future]
        context.mail.mark_done()
        error = SessionMoved(context.agent, context.id)
        tell_moved((*listeners, *acceptance.guests, *guests), message.id, error)

    def end_turn(self, context: SessionContext, turn: Turn) -> None:
        """The turn is over, and its session free for the next one."""
        context.turn = turn.pending_approvals = None
        turn.variables = (
            _NOTHING  # they know the turn: without this only the garbage collector would end both
        )
        if turn.budget is not None:
            self._stop_clock(turn, turn.budget)
        if turn.listeners:
            settle_listeners(context, turn)
        turn.control.end()
        context.mail.mark_done(1 + len(turn.joined))
        if context.approvals is not None:
            if context.approvals.is_suspended:
                context.record_approval(Resumed())
            if context.approvals.close_guarded():
                context.watch_deadline()
        if context.log is not None:
            context.mail.is_only_read |= turn.answer.is_only_read
            self._write_end(
                context,
                context.log,
                *turn.joined,
                turn.message,
                error=turn.control.error,
                blame=turn.control.blame,
                is_awaited=turn.answer.is_only_read,
            )
            if turn.control.error is not None and kind_of(turn.control.error) == NOT_KEPT:
                context.mail.unkept = checkpoint_of(
                    turn, context.conversation.messages, state_number=context.state_number
                )
        elif (recent := context.conversation.recent) is not None:
            answered = (*turn.joined, turn.message)
            if turn.control.error is None:
                recent.end_turn(answered)
            else:
                _note_failure(recent, answered, turn.control.error, turn.control.blame)
        self.observer.end_turn(context, turn)

    def _write_end(
        self,
        context: SessionContext,
        log: SessionLog,
        *messages: Message,
        error: Exception | None,
        blame: str = "internal",
        is_awaited: bool = False,
    ) -> None:
        """Messages were dealt with; a session that ends with them is closed in the same step."""
        if context.task is not None and context.task.message_id == messages[-1].id:
            log.add(outcome_of(context.task, error, blame, origin=context.conversation.origin))
        failed = None if error is None else kind_of(error, blame)
        if failed == NOT_KEPT:  # nothing was promised: who sends it again is answered
            for message in messages:
                context.mail.forget_accepted(message.id)
        closes = context.mail.is_spent and not context.reports_due
        ids = [message.id for message in messages]
        if error is None:
            log.end(*ids, failed=None, closes=closes, is_awaited=is_awaited)
            return
        log.end(
            *ids,
            failed=failed,
            error=type(error).__name__,
            words=own_words(error),
            closes=closes,
            is_awaited=is_awaited,
        )

    # --- the seconds that it may take ------------------------------------------------------

    def _start_clock(self, turn: Turn, budget: Budget) -> None:
        now = trio.current_time()
        over, account = budget.start_clock(now)
        if account is None:
            return
        if over <= now:
            turn.stop_with(account.reached("seconds"))
        else:
            turn.control.over = over
            turn.control.timer = self.timer.call_at(over, partial(self._run_out, turn, budget, account))

    def _run_out(self, turn: Turn, budget: Budget, account: Account) -> None:
        budget.tick(trio.current_time())
        turn.stop_with(account.reached("seconds"))

    def _stop_clock(self, turn: Turn, budget: Budget) -> None:
        if turn.control.timer is not None:
            turn.control.timer.cancel()
            turn.control.over = math.inf
        budget.stop_clock(trio.current_time())


def _note_failure(
    recent: RecentRecords, messages: Iterable[Message], error: Exception, blame: str = "internal"
) -> None:
    """Note in memory that messages ended with an error; see `TurnLifecycle._write_end`."""
    for message in messages:
        ended = Ended(
            message_id=message.id,
            failed=kind_of(error, blame),
            error=type(error).__name__,
            words=own_words(error),
        )
        recent.add_record(ended)


def _join(future: TurnFuture, turn: Turn) -> None:
    """Who waits for the turn knows it, or has left already."""
    future.turn = turn
    if future.abandoned:
        future.abandon()


def failed_record(message_id: str, kind: str, error: Exception) -> Failed:
    """Make the record of a failure that is about to be notified."""
    words = own_words(error)
    fields = plain_fields(error) if words else {}
    return Failed(message_id=message_id, kind=kind, error=type(error).__name__, words=words, fields=fields)


def _chained(lost: Exception, error: Exception) -> Exception:
    """Return the error of a journal that could not take a failure, with the failure's error as its cause."""
    lost.__cause__ = error
    return lost


def _end_at_once(context: SessionContext, turn: Turn, failed: Failed | None) -> None:
    """End a turn that begins in a session that is closing, or that failed before a restart.

    The failure is then the one in the journal: its handlers may not have it yet.
    """
    if failed is None:
        turn.stop_with(context.refusal)
        return
    turn.control.is_recorded = True
    turn.control.blame = failed.kind
    turn.control.cut(restored_failure(failed.error, failed.words, failed.kind, failed.fields))
    last = context.conversation.last_message
    if turn.checkpoint is not None and last is not None:
        turn.results.extend(last.tool_results)


def _leave_to_next_start(context: SessionContext) -> None:
    """Write nothing further of a session whose agent stops, not even that it is over: the next start goes on from here."""
    if context.log is not None:
        context.log.flush_soon()
        context.log = None
        context.mail.is_left = True
