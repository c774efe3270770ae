"""Lifecycle of turns: begin, suspend, resume and end, with the journal records and notifications of each step."""

import math
import time
import typing
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context
from functools import partial

import attrs
import trio

from actgent.actors.deadline_timer import Timer
from actgent.errors import DepsMissing, Fenced, JournalError, SessionClosed, SessionMoved, Stopped, kind_of
from actgent.errors.restored_errors import plain_fields, restored_failure
from actgent.errors.safe_error_texts import observer_error_text
from actgent.journal.record_types import (
    NOT_KEPT,
    FailureRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    ResumptionRecord,
)
from actgent.limits_and_schedules.budget import Account, Budget
from actgent.limits_and_schedules.limits import Limits
from actgent.messages import Message, is_open_failure
from actgent.sessions.budget_accounts import BudgetAccounts
from actgent.sessions.busy_session_and_duplicate_messages import (
    add_joined_futures,
    end_waits_as_moved,
    finish_listeners,
    remember_outcome,
)
from actgent.sessions.context_variable_propagation import run_with
from actgent.sessions.pending.approval_ledger import ApprovalLedger
from actgent.sessions.pending.task_reports import outcome_of
from actgent.sessions.pending.turn_checkpoint import TurnCheckpoint
from actgent.sessions.pending.turn_future import CallOptions, Outcome, TurnFuture
from actgent.sessions.pending.turn_options import restored_options
from actgent.sessions.session_context import (
    QueuedMessage,
    SessionContext,
    Suspension,
    Turn,
    checkpoint_of,
    host_of,
)
from actgent.sessions.session_record_writer import SessionLog
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.fast_attrs_constructors import fast_constructor
from actgent.tools.tool_registry import ToolRegistry

from .outcome_dispatcher import Dispatcher, failure_for
from .turn_event_publisher import Observer

SHUTDOWN_HANDLER_SECONDS = 1.0
"""Maximum seconds for all handlers together that run while their agent stops."""
_make_turn = fast_constructor(Turn)
_NOTHING = Context()
"""Empty context that replaces the context variables of ended turns."""


class DepsMissingCheck(typing.Protocol):
    """Function that returns the error of a session whose tools lack deps; None if the session needs no deps or has them.

    `was_given` is True if the session or its run had deps before a restart. The journal does not store deps.
    """

    def __call__(self, context: SessionContext, *, was_given: bool) -> DepsMissing | None: ...


@attrs.define(eq=False, kw_only=True, repr=False)
class TurnLifecycle(FieldRepr):
    """Begins, suspends, resumes and ends the turns of one agent."""

    agent: str
    limits: Limits
    options: CallOptions
    """Call options of turns whose message has no options."""
    dispatcher: Dispatcher
    observer: Observer
    timer: Timer
    accounts: BudgetAccounts
    close_calls: Callable[[Turn], object]
    """Function that appends results for the open tool calls of a failed turn."""
    deliver_remaining: Callable[[Turn], Awaitable[object]]
    """Async function for a failed turn: it delivers the recorded results and messages that handlers have not received yet."""
    tools: ToolRegistry
    deps_missing: DepsMissingCheck
    _shutdown_deadline: float | None = None
    """Time until which handlers may run while the agent stops, in seconds of `trio.current_time()`; None before the first one."""

    def begin(self) -> None:
        """Reset the time limit of handlers that run while the agent stops. Called at each start of the agent."""
        self._shutdown_deadline = None

    # --- begin ---------------------------------------------------------------------------

    def begin_turn(
        self, context: SessionContext, acceptance: QueuedMessage, joined: tuple[Message, ...] = ()
    ) -> Turn:
        """Create the turn that answers a message, and mark the session as busy. After this call, the turn can be interrupted.

        The turn also answers the messages `joined`. It runs with the context variables of the sender of its first message.
        """
        tree, message_options = context.tree, acceptance.options
        future = acceptance.future if tree is None else context.future_of(acceptance)
        options = self.options if future is None else future.options
        if future is None and message_options is not None:
            options = restored_options(self.options, message_options)
        limits = options.limits or self.limits
        turn = context.turn = _make_turn(
            context,
            acceptance.message,
            options,
            time.monotonic(),
            acceptance.variables,
            () if future is None else (future,),
            joined,
            limits,
            len(context.conversation.messages),
        )
        if context.unwritten_turn is not None:
            self._continue_unrecorded_turn(turn, context.unwritten_turn)
        if context.checkpoint is not None:
            self._resume_checkpoint(turn, context.checkpoint)
        if (
            limits.is_shared
            or acceptance.funding
            or (tree is not None and tree.accounts)
            or turn.joined
            or turn.checkpoint is not None
            or self.accounts.owners is not None
        ):
            earlier = [context.take_message(each).funding for each in turn.joined]
            self.accounts.begin(turn, self.agent, fundings=[*earlier, acceptance.funding])
        was_given = options.journal_form is not None and options.journal_form.deps
        if options.deps is None and (was_given or self.tools.deps_tool):
            self._stop_without_deps(turn, was_given=was_given)
        if context.closed or acceptance.failed is not None:
            _end_at_once(turn, acceptance.failed)
        if acceptance.joined_futures:
            add_joined_futures(turn, acceptance.joined_futures)
        if future is not None:
            _join(future, turn)
        if self.observer.stream.active:
            self.observer.begin_turn(turn)
        return turn

    def _stop_without_deps(self, turn: Turn, *, was_given: bool) -> None:
        """Stop a turn with `DepsMissing`, if a tool of the turn needs deps and no deps are set.

        `was_given` is True if the session or its run had deps before a restart.
        """
        context = turn.session
        missing = self.deps_missing(context, was_given=was_given)
        if missing is not None:
            turn.stop_with(missing)

    def _continue_unrecorded_turn(self, turn: Turn, unwritten_turn: TurnCheckpoint) -> None:
        """Resume an earlier turn whose outcome the journal failed to record, at its checkpoint `unwritten_turn`.

        If `turn` answers another message than that earlier turn, drop the checkpoint.
        """
        context = turn.session
        context.unwritten_turn = None
        if unwritten_turn.message_id == turn.message.id and not turn.joined and context.log is not None:
            context.checkpoint = unwritten_turn
            context.log.add(
                MessageAppendedRecord(message_id=turn.message.id, is_repeated=True, at=time.time())
            )

    def _resume_checkpoint(self, turn: Turn, resume: TurnCheckpoint) -> None:
        """Restore the joined messages and the counters of a turn from its checkpoint `resume` after a restart."""
        context = turn.session
        turn.checkpoint, context.checkpoint = resume, None
        turn.joined, turn.progress = resume.joined, resume.progress

    # --- suspending ---------------------------------------------------------------------

    def suspend_turn(self, turn: Turn) -> None:
        """Suspend a turn whose task has finished, and store its state in `context.suspension`."""
        context = turn.session
        context.turn = None
        turn.suspend()
        self.observer.suspend(turn)
        if turn.budget is not None:
            self._stop_clock(turn, turn.budget)
        context.suspension = Suspension(turn.message, turn, messages=1 + len(turn.joined))
        self.observer.suspend_turn(turn)

    def continue_turn(self, context: SessionContext, suspension: Suspension) -> Turn:
        """Make a suspended turn the running turn of its session again, and return the turn. After this call, it can be interrupted."""
        context.suspension = None
        turn = suspension.turn
        if turn is None:
            turn = self.begin_turn(context, context.take_message(suspension.message))
        context.turn = turn
        turn.resume()
        for guest in suspension.joined_futures:
            turn.add_listener(guest)
        self.observer.resume_turn(turn)
        return turn

    # --- end -----------------------------------------------------------------------------

    async def record_failure(self, turn: Turn, error: Exception) -> Exception:
        """Record the failure of a turn durably. Return the error with which `fail_turn` must notify handlers and callers.

        The returned error is `error`, or the journal's error if the failure cannot be written. In the second case, the outcome of
        the turn is not final. If this call is cancelled, the turn has not ended and has notified no caller.
        """
        context = turn.session
        turn.cover()
        turn.error = error
        broken = None
        try:
            self.close_calls(turn)
        except Exception as raised:  # noqa: BLE001 - e.g. of a user-defined memory: the agent restarts, and this turn ends
            broken = raised
        log = context.log
        if log is not None and not turn.is_recorded:
            error = turn.error = await self._write_failure(turn, error, log)
        if broken is not None:
            await self.fail_turn(turn, error)
            raise broken
        return error

    async def _write_failure(self, turn: Turn, error: Exception, log: SessionLog) -> Exception:
        context = turn.session
        kind = kind_of(error, turn.blame)
        messages = (*turn.joined, turn.message)
        is_heard = (
            turn.listeners or context.task is not None or context.handlers.any_of("exception", "tool_result")
        )
        if not (is_heard or any(context.has_accepted(message.id) for message in messages)):
            turn.is_recorded = (
                True  # without listeners, the failure is recorded together with the end of the turn
            )
            return error
        try:
            if not is_open_failure(
                kind, error
            ):  # an open failure is recorded later, in one step with the results of its calls
                for message in messages:
                    log.add(failed_record(message.id, kind, error))
            await log.flush()
        except SessionClosed:
            pass  # the session was erased, so a later start has nothing to repeat
        except (JournalError, Fenced) as lost:
            return _chain_errors(lost, error) if not is_open_failure(kind, error) else error
        turn.is_recorded = True
        return error

    async def fail_turn(self, turn: Turn, error: Exception) -> None:
        """Notify handlers and callers of the failure of a turn, and end the turn. Call `record_failure` first.

        Tool results are delivered only if they are recorded, or if the session has no journal.
        """
        context = turn.session
        try:
            if not context.has_moved:
                are_recorded = context.log is None or turn.is_recorded
                await self._notify_failure(turn, error, with_results=are_recorded)
        finally:
            if context.has_moved:
                self.end_moved_turn(turn)
            else:
                self.end_turn(turn)

    async def _notify_failure(self, turn: Turn, error: Exception, *, with_results: bool) -> None:
        """Notify the handlers and callers of all messages of a turn. With `with_results`, first deliver the remaining results."""
        context = turn.session
        try:
            if with_results:
                await self.deliver_remaining(turn)
        finally:  # also after a cancellation or the shutdown timeout: sync handlers can still run
            blame = turn.blame
            for message in turn.joined:
                failure = failure_for(message.id, error, blame)
                remember_outcome(context, message.id, Outcome(failure=failure))
                await self.dispatcher.fail(context, failure)  # noqa: ASYNC102
            failure = turn.failure = failure_for(turn.message.id, error, blame)
            remember_outcome(context, turn.message.id, Outcome(failure=failure))
            await self.dispatcher.fail(context, failure, listeners=turn.listeners)  # noqa: ASYNC102 - the callers shield

    async def stop_turn(self, turn: Turn) -> None:
        """End a turn in this process with the error `Stopped`, and notify its handlers and callers.

        With a journal, the next start of the agent resumes the turn and delivers the results of its calls.
        """
        context = turn.session
        turn.error = error = Stopped(self.agent)
        if turn.budget is not None:
            self._stop_clock(turn, turn.budget)
        is_final = context.log is None
        stop_recording_for_next_start(context)
        try:
            self.close_calls(turn)
        finally:
            try:
                if turn.has_stream_listener() or context.handlers.any_of("exception", "tool_result"):
                    with self.shutdown_scope():
                        await self._notify_failure(turn, error, with_results=is_final)  # noqa: ASYNC102
                else:  # a shielded scope is expensive if thousands of turns stop
                    await self._notify_failure(turn, error, with_results=is_final)  # noqa: ASYNC102
            finally:
                self.end_turn(turn)

    def shutdown_scope(self) -> trio.CancelScope:
        """Return a shielded cancel scope for handlers that run while the agent stops.

        All scopes together have the time limit `SHUTDOWN_HANDLER_SECONDS`.
        """
        if self._shutdown_deadline is None:
            self._shutdown_deadline = trio.current_time() + SHUTDOWN_HANDLER_SECONDS
        return trio.CancelScope(deadline=self._shutdown_deadline, shield=True)

    async def record_unstarted(
        self, context: SessionContext, messages: Sequence[Message], error: Exception
    ) -> Exception:
        """Record the failure of messages without a turn durably. Return the error with which `end_unstarted` must be called.

        This is `error`, or the journal's error if the failures cannot be written.
        """
        if context.resumes_at_next_start or (context.log is not None and host_of(context).has_stopped):
            return Stopped(self.agent)
        log, kind = context.log, kind_of(error)
        if log is None or context.has_moved or is_open_failure(kind, error):
            return error
        found = filter(None, (context.find_message(message.id) for message in messages))
        acceptances = [each for each in found if each.failed is None and self._has_receiver(context, each)]
        records = [failed_record(each.message.id, kind, error) for each in acceptances]
        if records:
            try:
                await log.write(*records)
            except SessionClosed:
                return error  # the session was erased
            except (JournalError, Fenced) as lost:
                return _chain_errors(lost, error)
            for acceptance, record in zip(acceptances, records, strict=True):
                acceptance.failed = record
        return error

    def _has_receiver(self, context: SessionContext, acceptance: QueuedMessage) -> bool:
        """Return True if a handler or caller can receive the outcome of a message, also a caller that sends the message again."""
        has_caller = context.future_of(acceptance) is not None or acceptance.joined_futures
        return bool(
            has_caller or context.handlers.any_of("exception") or context.has_accepted(acceptance.message.id)
        )

    async def end_unstarted(self, context: SessionContext, message: Message, error: Exception) -> None:
        """Notify handlers and callers that a message failed without a turn, and end the message. Call `record_unstarted` first.

        If another process owns the session, callers receive `SessionMoved` instead, because that process answers the message.
        """
        if context.has_moved:
            self.end_moved_message(context, message)
            return
        acceptance = context.take_message(message)
        future = context.future_of(acceptance)
        listeners = acceptance.joined_futures if future is None else (future, *acceptance.joined_futures)
        blame = "internal" if acceptance.failed is None else acceptance.failed.kind
        failure = failure_for(message.id, error, blame)
        remember_outcome(context, message.id, Outcome(failure=failure))
        try:
            is_delivered = self.dispatcher.fail(context, failure, listeners=listeners)
            await run_with(acceptance.variables, is_delivered)
        finally:
            if isinstance(error, Stopped) or (context.log is not None and host_of(context).has_stopped):
                stop_recording_for_next_start(context)
            context.finish_messages()
            self.observer.fail(context, message, error)
            if context.log is not None:
                self._write_end(context, context.log, message, error=error, blame=blame)
            else:
                _note_failure(context, [message], error)
            if context.has_moved:  # it may have moved while the handlers ran
                end_waits_as_moved(listeners, message.id, SessionMoved(context.agent, context.id))  # type: ignore[unreachable]
            for listener in listeners:
                listener.finish()

    # --- leave to another process ----------------------------------------------------------

    def end_moved_turn(self, turn: Turn) -> None:
        """End a turn in this process without a record, because another process continues the turn. Callers receive `SessionMoved`."""
        context = turn.session
        context.turn = turn.pending_approvals = None
        if turn.budget is not None:
            self._stop_clock(turn, turn.budget)
        turn.error = error = SessionMoved(context.agent, context.id)
        end_waits_as_moved(turn.listeners, turn.message.id, error)
        turn.end()
        context.finish_messages(1 + len(turn.joined))
        self.observer.end_turn(turn)

    def end_moved_message(
        self, context: SessionContext, message: Message, joined_futures: Sequence[TurnFuture] = ()
    ) -> None:
        """End a message without a turn in this process, because another process answers it. Callers receive `SessionMoved`."""
        acceptance = context.take_message(message)
        future = context.future_of(acceptance)
        listeners = [] if future is None else [future]
        context.finish_messages()
        error = SessionMoved(context.agent, context.id)
        end_waits_as_moved((*listeners, *acceptance.joined_futures, *joined_futures), message.id, error)

    def end_turn(self, turn: Turn) -> None:
        """End a turn: record its end, and notify its callers. The session is then free for its next message."""
        context = turn.session
        context.turn = turn.pending_approvals = None
        turn.variables = (
            _NOTHING  # breaks the reference cycle with the turn, which only the garbage collector would free
        )
        if turn.budget is not None:
            self._stop_clock(turn, turn.budget)
        if turn.listeners:
            finish_listeners(turn)
        turn.end()
        context.finish_messages(1 + len(turn.joined))
        if context.approvals is not None:
            _close_approvals(context, context.approvals)
        if context.log is not None:
            context.has_journal_readers_only |= turn.has_journal_readers_only
            self._write_end(
                context,
                context.log,
                *turn.joined,
                turn.message,
                error=turn.error,
                blame=turn.blame,
                is_urgent=turn.has_journal_readers_only,
            )
            if turn.error is not None and kind_of(turn.error) == NOT_KEPT:
                context.unwritten_turn = checkpoint_of(
                    turn, context.conversation.messages, state_number=context.state_number
                )
        elif turn.error is None:
            for joined in turn.joined:
                context.conversation.note(joined.id)
            context.conversation.note(turn.message.id)
        else:
            _note_failure(context, (*turn.joined, turn.message), turn.error, turn.blame)
        observer = self.observer
        if turn.error is not None or observer.stream.active or observer.spans is not None:
            observer.end_turn(turn)

    def _write_end(
        self,
        context: SessionContext,
        log: SessionLog,
        *messages: Message,
        error: Exception | None,
        blame: str = "internal",
        is_urgent: bool = False,
    ) -> None:
        """Record the end of the messages that a turn answered. If the session closes with them, also record the close.

        A session with open child sessions is closed later, after these sessions.

        `blame` is the failure kind of errors whose class does not determine the kind. `is_urgent` starts the write at once.
        """
        task = None if context.tree is None else context.tree.task
        if task is not None and task.message_id == messages[-1].id:
            said = context.conversation
            log.add(outcome_of(task, error, blame, origin=said.origin, via=said.via))
        failed = None if error is None else kind_of(error, blame)
        if failed == NOT_KEPT:  # the journal has no outcome, so the message may be sent again
            for message in messages:
                context.release_accepted_id(message.id)
        elif context.cancellations is not None:
            for message in messages:
                context.drop_cancellation(message.id)
        closes = (
            context.is_transient and context.should_close and not (context.reports_due or context.children)
        )
        ids = [message.id for message in messages]
        if error is None:
            log.record_end(*ids, failed=None, closes=closes, is_urgent=is_urgent)
            return
        log.record_end(
            *ids,
            failed=failed,
            error=type(error).__name__,
            error_text=observer_error_text(error),
            closes=closes,
            is_urgent=is_urgent,
        )

    # --- the seconds that it may take ------------------------------------------------------

    def start_clock(self, turn: Turn, budget: Budget) -> None:
        """Start to charge the run time of a turn to its budget. The turn is stopped when the budget has no seconds left."""
        now = trio.current_time()
        time_limit_at, account = budget.start_clock(now)
        if account is None:
            return
        if time_limit_at <= now:
            turn.stop_with(account.reached("seconds"))
        else:
            turn.time_limit_at = time_limit_at
            turn.timer = self.timer.call_at(time_limit_at, partial(self._run_out, turn, budget, account))

    def _run_out(self, turn: Turn, budget: Budget, account: Account) -> None:
        """Stop a turn with `LimitReached`, because an account of its budget has no seconds left."""
        budget.tick(trio.current_time())
        turn.stop_with(account.reached("seconds"))

    def _stop_clock(self, turn: Turn, budget: Budget) -> None:
        if turn.timer is not None:
            turn.timer.cancel()
            turn.time_limit_at = math.inf
        budget.stop_clock(trio.current_time())


def _close_approvals(context: SessionContext, ledger: ApprovalLedger) -> None:
    """Record that the ended turn of a session is no longer suspended, and withdraw the open approvals of its guards."""
    if ledger.is_suspended:
        context.record_approval(ResumptionRecord())
    if ledger.withdraw_guard_approvals():
        context.update_approval_timer()


def _note_failure(
    context: SessionContext, messages: Iterable[Message], error: Exception, blame: str = "internal"
) -> None:
    """Add records of failed messages to the recent records of a session without a journal, from which observers read."""
    recent = context.conversation.recent
    if recent is None:
        return
    for message in messages:
        ended = MessageEndRecord(
            message_id=message.id,
            failed=kind_of(error, blame),
            error=type(error).__name__,
            error_text=observer_error_text(error),
        )
        recent.add_record(ended)


def _join(future: TurnFuture, turn: Turn) -> None:
    """Attach a caller's future to a turn. If the caller no longer waits, stop the turn."""
    future.turn = turn
    if future.abandoned:
        future.abandon()


def failed_record(message_id: str, kind: str, error: Exception) -> FailureRecord:
    """Build the journal record of the failure of a message."""
    error_text = observer_error_text(error)
    fields = plain_fields(error) if error_text else {}
    return FailureRecord(
        message_id=message_id, kind=kind, error=type(error).__name__, error_text=error_text, fields=fields
    )


def _chain_errors(lost: Exception, error: Exception) -> Exception:
    """Return the journal error `lost` with `error` as its cause.

    `error` is the failure that could not be stored because of the journal error.
    """
    lost.__cause__ = error
    return lost


def _end_at_once(turn: Turn, failed: FailureRecord | None) -> None:
    """Mark a new turn so that it ends immediately without a model call.

    `failed` is the failure with which the turn ended before a restart; its handlers may not have received it. If `failed` is
    None, the turn ends with the error of a closed session.
    """
    context = turn.session
    if failed is None:
        turn.stop_with(context.refusal)
        return
    turn.is_recorded = True
    turn.blame = failed.kind
    turn.mark_failed(restored_failure(failed.error, failed.error_text, failed.kind, failed.fields))
    last = context.conversation.last_message
    if turn.checkpoint is not None and last is not None:
        turn.results.extend(last.tool_results)


def stop_recording_for_next_start(context: SessionContext) -> None:
    """Record nothing more for a session whose agent stops. The next start of the agent resumes the session from its last record."""
    if context.log is not None:
        context.log.flush_soon()
        context.log = None
        context.resumes_at_next_start = True
