"""Admission of messages to a running agent: reserve an inbox entry, record the message, then queue it or start its turn."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from contextvars import Context, copy_context

import attrs
import trio

from actgent.actors.inbox import DEFAULT_WAIT_SECONDS, InboxEntry
from actgent.errors import (
    ActgentError,
    Fenced,
    JournalError,
    JournalSlow,
    NotRunning,
    SessionBusy,
    SessionMoved,
    Suspended,
)
from actgent.errors.text_escaping import quoted, shown
from actgent.events import MessageAccepted
from actgent.information_flow_labels import source_name
from actgent.journal.record_types import NOTHING, Record, TurnOptions
from actgent.limits_and_schedules.budget import Funding
from actgent.messages import Message, Priority, is_id_of_process
from actgent.sessions.busy_session_and_duplicate_messages import check_busy, end_waits_as_moved, join
from actgent.sessions.context_variable_propagation import Propagation
from actgent.sessions.conversation import RecordedMessages
from actgent.sessions.pending.turn_future import TurnFuture
from actgent.sessions.session_context import QueuedMessage, SessionContext, is_inside, running_turn
from actgent.sessions.session_record_writer import SessionLog
from actgent.support import span_names as names
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.safe_logging import logger_of
from actgent.support.tracing_interface import Tracing
from actgent.support.untrusted_text_delimiters import join_origins
from actgent.tools.untrusted_sources_of_call import sources_of_request, sources_of_text
from actgent.turns.message_and_answer_guards import Guards

from .sessions.session_lifecycle import SessionLifecycle, stop_if_requested
from .turn_runner import URGENT_CAME
from .waits_between_sessions import running_session, sources_of_caller, would_wait_for_itself

_RING_LEVELS = 3
"""Depth of nested agent calls from which call cycles are logged: a calls b, b calls a, a calls b."""
_log = logger_of(__name__)


class MessageAdmission:
    """Admission of messages to one agent.

    A message is recorded only after it has an entry in the inbox. So a message that is rejected because the inbox is full
    is never recorded. After the record is written, the message is accepted immediately, or its rejection is also recorded.
    """

    def __init__(
        self,
        lifecycle: SessionLifecycle,
        propagation: Propagation,
        guards: Guards,
        *,
        labels_senders: bool = False,
    ) -> None:
        self._guards = guards
        self._labels_senders = labels_senders
        self._lifecycle = lifecycle
        self._propagation = propagation
        self._drains = lifecycle.eviction.drains
        self._runner = lifecycle.runner
        self._inbox = lifecycle.inbox
        self._sessions = lifecycle.sessions
        self._tracing = lifecycle.events.tracing
        """True if messages that no turn sends need neither a trace nor the source of their sender."""

    async def accept(
        self,
        context: SessionContext,
        message: Message,
        *,
        once: bool = False,
        future: TurnFuture | None = None,
        is_granted: bool = False,
        funding: Funding | None = None,
        options: TurnOptions | None = None,
    ) -> None:
        """Accept a message into the inbox; wait while the inbox is full. If the call is cancelled, no turn answers the message.

        Args:
            context: Session of the message.
            message: Message to accept.
            once: True ignores a message whose id the session has accepted before. If another task is sending a message
                with that id, wait for its acceptance first.
            future: Receives the outcome; None if no caller waits.
            is_granted: True accepts the message above the inbox limits and without guards, because the session
                requested it, for example as the result of a task.
            funding: Budget of the turn; None uses the budget of the sending turn.
            options: Options of the message's turn if `future` is None; None uses those of the agent.
        """
        message = self._admit_granted(context, message) if is_granted else self._admit(context, message)
        if once:
            message = await self._wait_for_first(context, message)
            if context.has_accepted(message.id):
                await _join_earlier(context, message, future, is_granted=is_granted)
                return
        if message.on_busy == "reject":
            self._check_busy(context, message)
        if future is not None:
            _check_not_suspended(context, message, future)
        await trio.lowlevel.checkpoint_if_cancelled()
        acceptance = QueuedMessage(message, copy_context(), future, funding)
        acceptance.options = options
        if funding is None and (future is not None or context.tree is not None):
            acceptance.funding = self._funding_for(context, future)
        if is_granted or context.log is not None or not self._runner.try_claim(message):
            await self._reserve_and_record(context, acceptance, is_granted=is_granted)
        else:
            self._start_at_once(context, acceptance)
        if future is not None and context.suspension is not None:
            self._handle_suspended_session(context, future)
        if once and not (future is not None and future.is_withdrawn):
            context.add_accepted_id(message.id)
        if context.log is None:  # journal writes already give other tasks time to run
            await self._inbox.yield_to_turns()

    async def accept_first(self, context: SessionContext, message: Message) -> None:
        """Accept the first message of a session. The beginning of its text becomes the description of the session.

        Without a journal, this call has a checkpoint only if the inbox is full.
        """
        message = self._admit(context, message)
        context.conversation.describe(message)
        acceptance = QueuedMessage(message, copy_context())
        if context.parent is not None:
            acceptance.funding = self._funding_for(context, None)
        if context.log is not None or not self._runner.try_claim(message):
            await self._reserve_and_record(context, acceptance)
        else:
            self._start_at_once(context, acceptance)

    async def accept_due(
        self,
        context: SessionContext,
        message: Message,
        *others: Record,
        variables: Context | None = None,
        funding: Funding | None = None,
    ) -> None:
        """Accept the message of a timer, and record the message and `others` in one write.

        If the inbox is full, raise instead of waiting, because the timer retries.

        Args:
            context: Session of the message.
            message: Message to accept.
            others: Journal records that are written together with the message.
            variables: Context variables of the turn; None copies those of the caller.
            funding: Budget of the turn; None if there is none.

        Raises:
            InboxFull: The inbox is full. Nothing was recorded.
            JournalError: The message was not accepted, and may be recorded or not: retry with the same id.
        """
        self._check_open(context)
        if self._tracing is not None:
            message = _add_trace_context(message, self._lifecycle.name, self._tracing)
        acceptance = QueuedMessage(
            message, copy_context() if variables is None else variables, funding=funding
        )
        self._inbox.check_room(message)
        entry = acceptance.inbox_entry = self._inbox.reserve_over_capacity(message)
        self._add_pending_message(context, acceptance)
        try:
            if context.log is not None:
                baggage = self._propagation.capture_storable(acceptance.variables)
                await context.log.accept(message, *others, funding=funding, baggage=baggage)
            _check_not_closed(context)
        except BaseException as error:
            if context.closed:  # no later firing ends the message
                acceptance.log = context.log
            self._runner.turn_lifecycle.observer.refuse(context, message, error)
            self._release_rejected(context, acceptance)
            raise
        self._enqueue(context, acceptance, entry)
        if context.log is None:
            await trio.lowlevel.cancel_shielded_checkpoint()

    def _check_open(self, context: SessionContext) -> None:
        """Raise if a session accepts no new message from the calling task.

        Raises:
            SessionClosed, NotRunning: The session is closed, or the agent accepts no messages of this task.
            SessionMoved: The session moves to another process.
        """
        if context.closed:
            raise context.refusal
        self._runner.check_accepts()
        if self._drains:
            self._lifecycle.eviction.check_stays(context.id)

    def _check_reachable(self, context: SessionContext) -> None:
        """Raise if the agent can no longer process an admitted message, because the session was closed or the agent is stopping.

        Raises:
            SessionClosed, NotRunning: The session is closed, or the agent is stopping.
        """
        if context.closed:
            raise context.refusal
        if self._runner.is_stopping:
            raise NotRunning(self._runner.name)

    def _admit(self, context: SessionContext, message: Message) -> Message:
        """Check a message with the input guards. Return it with the trace context and the untrusted sources of the sending task.

        Raises:
            GuardrailTripped, HandlerFailed: An input guard rejected the message, or failed.
            MessageTooLarge: The message is larger than the agent's limit.
            SessionClosed, NotRunning: The session is closed, or the agent accepts no messages.
        """
        self._check_open(context)
        self._inbox.check_size(message)
        if self._guards.inputs:
            message = self._guards.check_input(context, message)
        if (
            self._tracing is None
            and running_turn.get() is None
            and not sources_of_request.get()
            and not sources_of_text.get()
        ):  # the usual case
            sender = message.sender
            if not self._labels_senders or (sender.kind == "user" and sender.name == context.owner.name):
                return message
        return self._mark(context, message)

    def _admit_granted(self, context: SessionContext, message: Message) -> Message:
        """Return a message with the trace context and the untrusted sources of the sending task, without input guards.

        The session has requested this message itself, for example as the result of a task.

        Raises:
            SessionClosed, NotRunning: The session is closed, or the agent accepts no messages.
        """
        self._check_open(context)
        return self._mark(context, message)

    def _mark(self, context: SessionContext, message: Message) -> Message:
        """Return a message with the trace context and the untrusted sources of the sending task."""
        if self._tracing is not None:
            message = _add_trace_context(message, self._lifecycle.name, self._tracing)
        return self._add_sender_sources(context, message)

    def _add_sender_sources(self, context: SessionContext, message: Message) -> Message:
        """Return a message with the untrusted sources of the sending task.

        These are the sources of the session whose turn sends the message. Under a policy, a sender other than the owner
        of the session is an untrusted source itself.
        """
        sources = sources_of_caller()
        if self._labels_senders and running_session() is None:
            sources = join_origins(sources, self._source_of_sender(context, message))
        if not sources:
            return message
        return attrs.evolve(message, via=join_origins(message.via, sources))

    def _source_of_sender(self, context: SessionContext, message: Message) -> str:
        """Return the name under which a message's sender is an untrusted source; empty if the sender is trusted.

        The owner of the session, a turn and the runtime are trusted senders.
        """
        sender = message.sender
        if message.correlation_id is not None or sender.kind == "system":
            return ""
        if sender.kind == "user" and sender.name in (context.owner.name, context.quota_owner):
            return ""
        return source_name(sender.kind, sender.name)

    def _check_busy(self, context: SessionContext, message: Message) -> None:
        """Raise if the session is busy, for a message with the rule `reject`. Also publish the event of the rejection."""
        try:
            check_busy(context, message)
        except SessionBusy as error:
            self._runner.turn_lifecycle.observer.refuse(context, message, error)
            raise

    # --- inbox entry, journal, inbox -------------------------------------------------------

    async def _reserve_and_record(
        self, context: SessionContext, acceptance: QueuedMessage, *, is_granted: bool = False
    ) -> None:
        """Reserve an inbox entry for a message, record the message in the journal, and queue the message.

        If a step fails, undo the earlier ones. With `is_granted`, the inbox limits do not apply.
        """
        self._add_pending_message(context, acceptance)
        try:
            entry = await self._reserve(context, acceptance, is_granted=is_granted)
            if context.log is not None:
                await self._write(context, acceptance, context.log, is_granted=is_granted)
        except BaseException as error:
            self._runner.turn_lifecycle.observer.refuse(context, acceptance.message, error)
            self._release_rejected(context, acceptance)
            raise
        self._enqueue(context, acceptance, entry)

    def _start_at_once(self, context: SessionContext, acceptance: QueuedMessage) -> None:
        """Start the turn of a message at once, without an inbox entry or a record. The caller has claimed (reserved) the session."""
        context.pending += 1
        if self._lifecycle.events.watched:
            self._publish(acceptance.message)
        self._runner.start(context, acceptance)
        if context.cancellations is not None:
            stop_if_requested(self._lifecycle, context, acceptance.message.id)

    def _add_pending_message(self, context: SessionContext, acceptance: QueuedMessage) -> None:
        """Add a message that is being sent to the session's pending messages.

        If the session's turn is suspended, make the inbox hold the messages of the session until the turn has ended.
        """
        context.add_message(acceptance)
        if context.suspension is not None:  # another message may have unparked the suspended session
            self._inbox.park(context.id)

    async def _reserve(
        self, context: SessionContext, acceptance: QueuedMessage, *, is_granted: bool
    ) -> InboxEntry[Message]:
        """Reserve an inbox entry for a message, and wait while the inbox is full. The wait has no checkpoint if there is room.

        The wait is subtracted from the message's deadline. With `is_granted`, the inbox limits do not apply.
        """
        message, inbox = acceptance.message, self._inbox
        first = message.on_busy == "interrupt"
        if is_granted:
            acceptance.inbox_entry = entry = inbox.reserve_over_capacity(message, first=first)
        elif (found := inbox.try_reserve(message, first=first)) is not None:
            acceptance.inbox_entry = entry = found
        elif self._would_wait_for_itself(context):
            raise inbox.full_error(message)
        else:
            began_at = trio.current_time()
            with self._lifecycle.eviction.cancelled_on_eviction(context.id):
                acceptance.inbox_entry = await inbox.reserve(message, first=first)
            entry = acceptance.inbox_entry
            self._check_reachable(context)
            if message.deadline is not None:  # the write has only the rest of it
                deadline = max(0.0, message.deadline - (trio.current_time() - began_at))
                acceptance.message = attrs.evolve(message, deadline=deadline)
        return entry

    async def _write(
        self, context: SessionContext, acceptance: QueuedMessage, log: SessionLog, *, is_granted: bool
    ) -> None:
        """Record a message durably. If the session or agent can no longer accept it after the write, record the rejection and raise.

        Raises:
            JournalSlow: The writes take longer than the deadline of the message. The rejection is written later.
            JournalError: The message or its rejection could not be written.
            SessionClosed, NotRunning: The session or agent no longer accepts messages.
        """
        future, propagation = acceptance.future, self._propagation
        capture = propagation.capture_storable if is_granted else propagation.capture
        baggage = capture(acceptance.variables) if propagation.variables else NOTHING
        options = acceptance.options if future is None else future.options.journal_form
        acceptance.log = log
        began_at = trio.current_time()
        await log.accept(acceptance.message, funding=acceptance.funding, options=options, baggage=baggage)
        try:
            self._check_reachable(context)
        except ActgentError:
            self._record_rejection(context, acceptance, log)
            acceptance.log = None
            await _flush_until_deadline(log, acceptance.message, began_at)
            raise

    def _enqueue(
        self, context: SessionContext, acceptance: QueuedMessage, entry: InboxEntry[Message]
    ) -> None:
        """Put an accepted message into its reserved inbox entry. If its session is free, start the turn of the message at once."""
        acceptance.is_accepted = True
        acceptance.mark_done()
        if self._drains and self._belongs_to_next_owner(context, acceptance.message):
            self._inbox.enqueue_reserved(entry)
            self._lifecycle.eviction.drop_queued_messages(
                context
            )  # after the earlier messages, which are already being forwarded
            return
        if self._runner.try_claim_reserved(entry):
            self._start(context, context.take_message(acceptance.message))
        else:
            self._inbox.enqueue_reserved(entry)
            self._announce(context, acceptance.message)
        if context.cancellations is not None:
            stop_if_requested(self._lifecycle, context, acceptance.message.id)

    def _belongs_to_next_owner(self, context: SessionContext, message: Message) -> bool:
        """Return True if the session of an accepted message is about to move, so that another process must run the message.

        Return False for messages to child sessions and for messages that a caller has stopped: this process ends them.
        """
        is_unwanted = message.id in (context.cancellations or ())
        return (
            context.parent is None
            and not is_unwanted
            and self._lifecycle.eviction.rejects_new_work(context.id)
        )

    def _start(self, context: SessionContext, acceptance: QueuedMessage) -> None:
        """Start the turn of a message. The caller has claimed (reserved) its session in the inbox."""
        if self._lifecycle.events.watched:
            self._publish(acceptance.message)
        self._runner.start(context, acceptance)

    def _release_rejected(self, context: SessionContext, acceptance: QueuedMessage) -> None:
        """Remove a rejected message from the inbox and the session.

        If the journal may contain the message, also record the rejection. Unload the session if it has no more work.
        """
        if acceptance.inbox_entry is not None:
            self._inbox.cancel_reservation(acceptance.inbox_entry)
        try:
            if (log := acceptance.log) is not None:
                self._record_rejection(context, acceptance, log)
                log.flush_soon()
        finally:  # a journal that has stopped raises, and callers of `wait_idle` must not wait for this message
            context.remove_rejected(acceptance)
            self._lifecycle.unload_if_finished(context)
            self._sessions.mark_idle(context)

    def _record_rejection(self, context: SessionContext, acceptance: QueuedMessage, log: SessionLog) -> None:
        """Add a record that ends a rejected message to the session's unwritten records.

        If the accepted message has ended a suspended turn in the journal, also add a record that the turn is suspended.
        """
        log.record_rejection(acceptance.message.id)
        message = acceptance.message
        goes_first = message.priority is Priority.URGENT or message.on_busy == "interrupt"
        if goes_first and context.log is log:
            self._runner.record_suspended_again(context)

    def _announce(self, context: SessionContext, message: Message) -> None:
        """Publish the event that a message was queued, and start all turns that may run.

        Before the start, an URGENT message or a message with the rule `interrupt` interrupts the running turn of its session,
        or ends the suspended turn.
        """
        if self._lifecycle.events.watched:
            self._publish(message)
        turn = context.turn
        if message.priority is Priority.URGENT and turn and turn.message.priority is not Priority.URGENT:
            self._runner.turn_lifecycle.observer.interrupt(turn, message)
            turn.interrupt(URGENT_CAME)
        elif message.on_busy == "interrupt" and turn:
            self._runner.turn_lifecycle.observer.interrupt(turn, message)
            self._runner.stop_if_superseded(turn)
        elif context.suspension is not None:
            self._runner.resume_if_superseded(context)
        self._runner.pump()

    # --- repetitions -----------------------------------------------------------------------

    async def _wait_for_first(self, context: SessionContext, message: Message) -> Message:
        """Wait until no other task is sending a message with the id of `message`. Return `message` with its remaining deadline.

        Raises:
            InboxFull: The inbox had no room for the other message until the deadline of this message.
            SessionClosed, NotRunning: The session or agent no longer accepts messages.
        """
        while (first := context.find_message(message.id)) is not None and not first.is_accepted:
            message = await self._wait_settled(context, message, first)
            self._check_reachable(context)
        # Ids chosen by callers are remembered from the start; an id of this process is searched when it is
        # repeated.
        if is_id_of_process(message.id) and _was_sent(context, message.id):
            context.add_accepted_id(message.id)
        return message

    async def _wait_settled(self, context: SessionContext, message: Message, first: QueuedMessage) -> Message:
        """Wait until the sending of `first`, which has the id of `message`, has ended. Return `message` with its remaining deadline."""
        if first.inbox_entry is None and self._would_wait_for_itself(context):
            raise self._inbox.full_error(message)
        deadline = DEFAULT_WAIT_SECONDS if message.deadline is None else message.deadline
        with self._lifecycle.kept(context):
            with trio.move_on_after(deadline) as limit:
                await first.wait_settled()
            if limit.cancelled_caught and first.inbox_entry is None:
                raise self._inbox.full_error(message)
            if limit.cancelled_caught:  # the message has room in the inbox; only its record is not written
                await first.wait_settled()
        return attrs.evolve(message, deadline=max(0.0, limit.deadline - trio.current_time()))

    def _funding_for(self, context: SessionContext, future: TurnFuture | None) -> Funding | None:
        """Return the budget of a message's turn: the limits in the options of `future`, and the budget of the calling turn.

        The calling turn pays only if it waits for the answer, or if it sends to one of its descendant sessions.

        Raises:
            LimitReached: The calling turn has reached the maximum depth of nested agent calls.
        """
        limits = None if future is None else future.options.limits
        caller = running_session()
        if future is None and not any(above is caller for above in _parents_of(context)):
            caller = None
        if caller is None or caller.turn is None:
            return None if limits is None else Funding(limits.shared)
        funding = self._runner.turn_lifecycle.accounts.fund_awaited_turn(caller.turn, caller.agent)
        if (
            funding.depth == _RING_LEVELS
        ):  # one level only: ordinary calls cost no search, and a cycle is logged once
            _warn_of_call_cycle(caller, context.agent)
        return funding if limits is None else attrs.evolve(funding, limits=limits.shared)

    def _would_wait_for_itself(self, context: SessionContext) -> bool:
        """Return True if the calling task would wait for its own turn by waiting for a turn of this session."""
        return is_inside(context.turn) or would_wait_for_itself(context)

    # --- callers that do not wait for approvals -----------------------------------------------

    def _handle_suspended_session(self, context: SessionContext, future: TurnFuture) -> None:
        """Handle a message to a session whose turn is suspended. `future` is that of its caller.

        If the caller accepts to wait for approvals, pause its time limits. Otherwise withdraw the message.
        """
        if future.waits_for_approvals:
            future.hold()
        else:
            self.withdraw_during_suspension(context)

    def withdraw_during_suspension(self, context: SessionContext) -> None:
        """Withdraw the queued messages of a suspended session whose callers do not accept to wait for approvals.

        These callers receive `Suspended`, after the withdrawal is recorded in the journal.
        """
        if (error := _suspended_error(context)) is None:
            return
        known = tuple((context.acceptances or {}).values())
        withdrawn = [
            each
            for acceptance in known
            for each in self._withdraw_message_during_suspension(context, acceptance, error)
        ]
        if withdrawn and (
            context.log is None or not self._runner.start_soon(_notify_after_write, context, withdrawn)
        ):
            _notify_callers(context, withdrawn)

    def _withdraw_message_during_suspension(
        self, context: SessionContext, acceptance: QueuedMessage, error: Suspended
    ) -> "list[_WithdrawnCaller]":
        """Withdraw a queued message if its sender does not accept to wait for approvals. Return the callers that get `error`.

        Callers that joined the message later and do not accept to wait are also returned; the message then stays queued.
        """
        future, message_id = acceptance.future, acceptance.message.id
        impatient = [guest for guest in acceptance.joined_futures if not guest.waits_for_approvals]
        withdrawn = [_WithdrawnCaller(guest, message_id, error, is_refused=False) for guest in impatient]
        acceptance.joined_futures = tuple(
            guest for guest in acceptance.joined_futures if guest.waits_for_approvals
        )
        is_waiting = acceptance.is_accepted and acceptance.ending is None
        if future is None or not is_waiting or future.waits_for_approvals:
            return withdrawn
        context.release_accepted_id(message_id)
        if acceptance.inbox_entry is not None:
            self._inbox.remove(acceptance.inbox_entry)
        acceptance.inbox_entry = None
        self._release_rejected(context, acceptance)
        future.is_withdrawn = True
        sent = [
            _WithdrawnCaller(each, message_id, error, is_refused=True)
            for each in (future, *acceptance.joined_futures)
        ]
        return [*withdrawn, *sent]

    def _publish(self, message: Message) -> None:
        """Publish the event that the agent has accepted a message."""
        self._lifecycle.events.publish(
            MessageAccepted(
                agent=self._lifecycle.name,
                session_id=message.session_id,
                turn=message.id,
                message_id=message.id,
                priority=message.priority,
            )
        )


def _add_trace_context(message: Message, agent: str, tracing: Tracing) -> Message:
    """Return a message with the current trace context.

    If no trace is active, record a short span for the sending of the message as the start of a new trace.
    """
    current = tracing.current() or message.traceparent
    if current is None:
        span = tracing.begin(
            f"{names.SEND} {agent}",
            {names.AGENT: agent, names.CONVERSATION: message.session_id, names.MESSAGE: message.id},
            kind="producer",
            parent="",
        )
        span.end()
        current = span.traceparent
    return message if current == message.traceparent else attrs.evolve(message, traceparent=current)


async def _flush_until_deadline(log: SessionLog, message: Message, began_at: float) -> None:
    """Write the unwritten records of a session to the journal. The deadline of `message` limits the wait, from `began_at` on.

    Raises:
        JournalSlow: The write takes longer than the deadline. The journal completes it later.
        JournalError: The records could not be written.
    """
    if message.deadline is None:
        await log.flush()
        return
    with trio.move_on_at(began_at + message.deadline) as limit:
        await log.flush()
    if limit.cancelled_caught:
        raise JournalSlow(message.deadline)


def _warn_of_other_content(context: SessionContext, message: Message) -> None:
    """Log a warning if a message has the id of an earlier message but other content, which is ignored."""
    queued, messages = context.find_message(message.id), context.conversation.messages
    if queued is not None:
        messages = [queued.message]
    elif isinstance(messages, RecordedMessages):
        messages = messages[
            messages.missing :
        ]  # older messages are in the journal, and reading them would block
    if any(each.id == message.id and each.parts != message.parts for each in messages):
        _log.warning(
            "session %s: a message repeats message_id=%s with another content, and is dropped: use a new message_id for each "
            "message",
            shown(context.id),
            quoted(message.id),
        )


async def _join_earlier(
    context: SessionContext, message: Message, future: TurnFuture | None, *, is_granted: bool
) -> None:
    """Let `future` receive the outcome of the earlier message that has the same id as `message`.

    If the contents of the two messages differ, log a warning. With `is_granted`, the message is the result of a tool or task, which may
    have another text when it is repeated; then log nothing.
    """
    if not is_granted:  # the repeated result of a tool or task may have another text
        _warn_of_other_content(context, message)
    if future is not None:
        join(context, message.id, future)
    await trio.lowlevel.checkpoint()


def _suspended_error(context: SessionContext) -> Suspended | None:
    """Return a `Suspended` error with the approvals for which a session's turn waits; None if the turn waits for no decision."""
    if context.suspension is None or not (ledger := context.ledger()).undecided:
        return None
    return ledger.suspended()


def _check_not_suspended(context: SessionContext, message: Message, future: TurnFuture) -> None:
    """Raise `Suspended` if a message would wait for approvals, and the caller of `future` does not accept to wait for them.

    Raises:
        Suspended: The caller would wait for approvals.
    """
    if context.suspension is None or future.waits_for_approvals or message.priority is Priority.URGENT:
        return
    is_outdated = context.suspension.message.priority is not Priority.URGENT
    if not (message.on_busy == "interrupt" and is_outdated) and (error := _suspended_error(context)):
        raise error


@attrs.frozen(repr=False)
class _WithdrawnCaller(FieldRepr):
    """Caller that no longer waits for its message, because it does not accept to wait for approvals."""

    future: TurnFuture
    message_id: str
    error: Suspended
    is_refused: bool
    """True if the message was removed from the inbox; False if the message stays queued and only this caller stops waiting."""

    def raise_in_caller(self, context: SessionContext) -> None:
        """Raise the error in the waiting caller; raise `SessionMoved` instead if another process owns the session."""
        if context.has_moved:
            end_waits_as_moved((self.future,), self.message_id, SessionMoved(context.agent, context.id))
        elif self.is_refused:
            self.future.withdraw(self.message_id, self.error)
        else:
            self.future.suspend(self.error)


async def _notify_after_write(context: SessionContext, withdrawn: Iterable[_WithdrawnCaller]) -> None:
    """Raise `Suspended` in the callers of withdrawn messages, after the withdrawal is written. Journal errors are ignored."""
    try:
        if context.log is not None:
            with suppress(JournalError, Fenced):
                await context.log.flush()
    finally:
        _notify_callers(context, withdrawn)


def _notify_callers(context: SessionContext, withdrawn: Iterable[_WithdrawnCaller]) -> None:
    """Raise `Suspended` in the callers of withdrawn messages."""
    for each in withdrawn:
        each.raise_in_caller(context)


def _check_not_closed(context: SessionContext) -> None:
    if context.closed:
        raise context.refusal


def _parents_of(context: SessionContext) -> Iterator[SessionContext]:
    """Yield the parent sessions of a session, nearest first."""
    while context.parent is not None:
        context = context.parent
        yield context


def _was_sent(context: SessionContext, message_id: str) -> bool:
    """Return True if a message with this id was sent to the session before: it is queued, running, or in the history."""
    turn = context.turn
    return (
        context.find_message(message_id) is not None
        or (turn is not None and turn.message.id == message_id)
        or any(message.id == message_id for message in context.conversation.messages)
    )


def _warn_of_call_cycle(caller: SessionContext, agent: str) -> None:
    """Log a warning if agents call each other in a cycle: a parent session of `caller` belongs to the called agent `agent`."""
    names, session = [caller.agent], caller.parent
    while session is not None:
        names.insert(0, session.agent)
        session = session.parent
    if agent in names:
        ring = " -> ".join([*names[names.index(agent) :], agent])
        _log.warning(
            "agents ask each other in a ring, and each of them waits for the next: %s. Give one of them no tool for the "
            "other, or a lower limits=Limits(depth=...)",
            ring,
        )
