"""`RecordReplayer`: applies journal records to a session one after another, to restore the session.

If the journal had failed during a turn, earlier versions recorded the end of the turn without the results of its tool calls.
Providers reject such a conversation. Each restore of the session adds the same missing results, and does not change the journal.
"""

from collections.abc import Iterable, Sequence
from contextvars import Context

import attrs

from actgent.errors import JournalDamaged
from actgent.journal.record_types import (
    NOT_KEPT,
    REFUSED,
    ActionFailureRecord,
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    CallFinishedRecord,
    CallsStartedRecord,
    CancellationRecord,
    DeliveryRecord,
    DownstreamUsageRecord,
    FailureRecord,
    GuardDecisionRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    NextTimerRecord,
    OutcomeRecord,
    Record,
    ResumptionRecord,
    ScheduleFiredRecord,
    ScheduleRecord,
    ScheduleRemovedRecord,
    SessionAnnotatedRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    SourceLiftRecord,
    StateChangeRecord,
    StateRollbackRecord,
    SuspensionRecord,
    SystemPromptRecord,
    UsageRecord,
)
from actgent.journal.session_tags_and_metadata import SessionAnnotations
from actgent.limits_and_schedules.budget import NOTHING, Amounts
from actgent.messages import Message, Sender, ToolCall
from actgent.sessions.pending.schedules import restore_schedule
from actgent.sessions.pending.turn_checkpoint import TurnCheckpoint
from actgent.sessions.session_context import QueuedMessage, SessionContext, can_resume
from actgent.state.session_state import StateRecord
from actgent.support.attrs_class_repr import FieldRepr
from actgent.tools.tool_execution import Batch
from actgent.tools.tool_registry import ToolRegistry

TOOLS = Sender("tools", "tool")


def close_calls(answer: Message, calls: Iterable[ToolCall], turn: TurnCheckpoint) -> Message:
    """Return the message with the results of the open tool calls of a model answer, after the end of their turn.

    The result of a call is the recorded result, or else an error that says if the call may have run.
    """
    batch = Batch(tuple(calls), ToolRegistry())
    for place, call in enumerate(batch.calls):
        if call.id in turn.finished or call.id in turn.started:
            batch.set_result(place, turn.finished.get(call.id))
    return Message(
        id=f"{answer.id}/results",
        session_id=answer.session_id,
        sender=TOOLS,
        parts=batch.results(),
        priority=answer.priority,
        correlation_id=answer.correlation_id,
        causation_id=answer.causation_id,
        created_at=answer.created_at,
    )


@attrs.frozen(repr=False)
class RestoredSession(FieldRepr):
    """Facts about a restored session that its `SessionContext` does not store."""

    opened: SessionCreatedRecord
    """First record of the session, which created it."""
    owner: Sender
    """Owner of the session."""
    parent_id: str | None
    """Id of the parent session; None if there is none."""
    waiting: tuple[Message, ...]
    """Accepted messages that have not ended, in the order of their turns. The turn of the first message may have started."""
    is_closed: bool
    """True if the session was closed."""
    due: float
    """Unix time in seconds of the next timer; see `SessionLog.due`."""
    spent: Amounts
    """Usage that counts for the limits of the whole session."""
    bounded: tuple[MessageAcceptedRecord, ...]
    """Acceptance records of the waiting messages that have their own limits or budget accounts."""


def is_unused(records: Sequence[Record]) -> bool:
    """Return True if records show that the creation of their session failed, so that its id can be used again."""
    return any(isinstance(record, SessionClosedRecord) and record.unused for record in reversed(records))


def creation_record_of(records: Sequence[Record]) -> SessionCreatedRecord | None:
    """Return the record that created the session, which names the session's owner; None if the record is missing."""
    return next((record for record in records if isinstance(record, SessionCreatedRecord)), None)


class RecordReplayer:
    """Replayer that applies the records of a session, in order, to the session's context."""

    def __init__(self, context: SessionContext) -> None:
        self.context = self._context = context
        self._waiting: dict[str, MessageAcceptedRecord] = {}
        self._turn: TurnCheckpoint | None = None
        self._unkept: TurnCheckpoint | None = None
        """Checkpoint of the last turn, if the journal failed during that turn; else None."""
        self._asking: Message | None = None
        """Model answer whose tool calls have no results yet; None if there is none."""
        self._is_closed = self._is_described = False
        self.due = 0.0
        self.number = 0
        """Number of the record that was read last."""
        self.spent = NOTHING
        self.failed: dict[str, FailureRecord] = {}
        """Recorded failures of messages that have not ended, by their ids."""
        self._bounded: dict[str, MessageAcceptedRecord] = {}

    @property
    def is_between_turns(self) -> bool:
        """True if the session is open and no turn is unfinished after the records that were read."""
        goes_on = self._turn is not None or self._unkept is not None or self._asking is not None
        return not (goes_on or self._is_closed)

    @property
    def accepted(self) -> tuple[MessageAcceptedRecord, ...]:
        """Records of the accepted messages that have not ended."""
        return tuple(self._waiting.values())

    def read(self, record: Record) -> None:
        """Apply the next record to the session's context.

        Raises:
            JournalDamaged: An earlier record that this record refers to is missing.
        """
        self.number += 1
        match record:
            case MessageAcceptedRecord():
                self._accept(record)
            case MessageAppendedRecord():
                self._begin_turn(record)
            case AgentMessageRecord():
                self._append_agent_message(record)
            case StateChangeRecord() | ActionFailureRecord() | StateRollbackRecord():
                self._restore_state(record)
            case MessageEndRecord(message_id=message_id, failed=failed):
                self._end(message_id, failed)
            case FailureRecord():
                self._fail(record)
            case UsageRecord() | DownstreamUsageRecord():
                self._add_usage(record)
            case (
                CallsStartedRecord()
                | CallFinishedRecord()
                | OutcomeRecord()
                | DeliveryRecord()
                | GuardDecisionRecord()
            ) if self._turn is not None:
                self._turn.apply(record)
            case ApprovalRequestRecord() | ApprovalDecisionRecord() | SuspensionRecord() | ResumptionRecord():
                self._read_approval(record)
            case _:
                self._read_outside_turn(record)

    def _read_outside_turn(self, record: Record) -> None:
        """Apply a record that does not belong to a turn, such as the record of a schedule or of a changed tag."""
        match record:
            case SystemPromptRecord(system=system, via=via):
                self._context.conversation.system = system
                self._context.conversation.add_via(via)
            case SourceLiftRecord(source=source):
                self._context.conversation.remove_source(source)
            case NextTimerRecord(at=at):
                self.due = at
            case SessionCreatedRecord(is_described=is_described):
                self._is_described = is_described
                self._annotate(record)
                self._context.conversation.add_via(record.via)
            case SessionAnnotatedRecord():
                self._annotate(record)
            case ScheduleRecord() | ScheduleFiredRecord() | ScheduleRemovedRecord():
                restore_schedule(self._context, record)
            case CancellationRecord(message_id=message_id, reason=reason):
                self._context.cancel_on_arrival(message_id, reason)
            case SessionClosedRecord():
                self._is_closed = True

    def _begin_turn(self, record: MessageAppendedRecord) -> None:
        """Begin the turn of an appended message. If the record marks a repeated start (`is_repeated`), continue the turn that has already begun."""
        unkept, self._unkept = self._unkept, None
        if record.is_repeated:
            self._turn = unkept or TurnCheckpoint(record.message_id)
            return
        joined = self._joined_messages() if record.joins else ()
        self._turn = TurnCheckpoint(record.message_id, joined, limits=record.limits)
        self._context.conversation.append(self._find_accepted(record.message_id), answered=True)

    def _restore_state(self, record: StateRecord) -> None:
        self._context.state.restore(record)
        if type(record) is StateChangeRecord:
            self._context.conversation.add_via(record.via)

    def _annotate(self, record: SessionCreatedRecord | SessionAnnotatedRecord) -> None:
        if record.tags or record.metadata or self._context.annotations:
            self._context.annotations = SessionAnnotations(tags=record.tags, metadata=record.metadata)

    def _read_approval(
        self, record: ApprovalRequestRecord | ApprovalDecisionRecord | SuspensionRecord | ResumptionRecord
    ) -> None:
        self._context.ledger().apply(record)
        if isinstance(record, ApprovalRequestRecord) and self._turn is not None:
            self._turn.apply(record)

    def _joined_messages(self) -> tuple[Message, ...]:
        """Return the messages that the current turn answers in addition to its main message."""
        if self._turn is None:
            return ()
        return (*self._turn.joined, self._find_accepted(self._turn.message_id))

    def _find_accepted(self, message_id: str) -> Message:
        """Return the accepted message with this id."""
        if (accepted := self._waiting.get(message_id)) is None:
            reason = f"the turn of message {message_id!r} starts without a record of the message"
            raise JournalDamaged(reason, session_id=self._context.id, record=self.number)
        return accepted.message

    def _accept(self, record: MessageAcceptedRecord) -> None:
        """Add an accepted message to the waiting messages."""
        message = record.message
        self._waiting[message.id] = record
        if self._is_described:
            self._context.conversation.describe(message)
            self._is_described = False
        self._context.add_accepted_id(message.id)
        if record.limits or record.within or record.depth:
            self._bounded[message.id] = record
        acceptance = QueuedMessage(message, Context())
        acceptance.options, acceptance.baggage, acceptance.is_accepted = record.options, record.baggage, True
        self._context.restore_message(acceptance)

    def _end(self, message_id: str, failed: str | None) -> None:
        """End a waiting message and, if it is open, its turn. `failed` is the failure kind; None if the message was answered."""
        self.failed.pop(message_id, None)
        if self._waiting.pop(message_id, None) is not None:
            may_return = failed in (REFUSED, NOT_KEPT)
            self._context.forget_message(message_id, is_refused=may_return)
            if not may_return:
                self._context.drop_cancellation(message_id)
        self._bounded.pop(message_id, None)
        if self._turn is not None and self._turn.message_id == message_id:
            self._close_calls(self._turn)
            if self._context.approvals is not None:
                self._context.approvals.withdraw_guard_approvals()
            goes_on = failed == NOT_KEPT and can_resume(self._context.conversation.messages, message_id)
            self._unkept = self._turn if goes_on else None
            self._turn = None

    def _fail(self, record: FailureRecord) -> None:
        """Store the recorded failure of a message that has not ended yet, because its handlers may not have received the failure."""
        acceptance = self._context.find_message(record.message_id)
        if acceptance is not None:
            acceptance.failed = record
            self.failed[record.message_id] = record

    def _close_calls(self, turn: TurnCheckpoint) -> None:
        """Append results for those tool calls of an ended turn that have no results."""
        if self._asking is not None:
            results = close_calls(self._asking, self._asking.tool_calls, turn)
            self._asking = None
            turn.stop = ""
            self._append_message(results)

    def _add_usage(self, record: UsageRecord | DownstreamUsageRecord) -> None:
        """Add the amounts of a usage record to the session or to the open turn."""
        if isinstance(record, UsageRecord) and not record.turn:
            self.spent += Amounts.of(record)
        elif self._turn is not None and self._turn.message_id == record.turn:
            self._turn.apply_usage(record)

    def _append_agent_message(self, record: AgentMessageRecord) -> None:
        """Append a model answer, tool results or a notice to the conversation, and update the open turn."""
        message = record.message if record.last_call is None else record.with_text_calls()
        if not message.is_note:
            self._asking = message if message.tool_calls and not message.cut else None
        if record.fitting is not None:  # later requests are cut in the same way
            for share in record.fitting.shares:
                self._context.conversation.current_view().shrink(share)
        if record.stop:
            self._context.conversation.last_answer = record
        self._append_message(message)
        self._context.conversation.usage += record.usage
        if self._turn is not None:
            self._turn.apply_message(record, state_number=self._context.state_number)

    def _append_message(self, message: Message) -> None:
        """Append a message of the agent to the conversation."""
        self._context.conversation.append(message)
        # Calls written as text are known only by their results; the calls of an unfinished answer are parsed again.
        self._context.conversation.reserve_call_ids(call.id for call in message.tool_calls)
        self._context.conversation.reserve_call_ids(result.call_id for result in message.tool_results)
        if self._context.approvals is not None:
            self._context.approvals.close(result.call_id for result in message.tool_results)

    def result(self, opened: SessionCreatedRecord) -> RestoredSession:
        """Finish the restore after the last record, and return the facts that the context does not store.

        `opened` is the record that created the session. An unfinished turn becomes the checkpoint of the context, and its
        message is the first of the waiting messages.
        """
        if self._context.approvals is not None:
            self._context.update_approval_timer()
        turn, self._context.unwritten_turn = self._turn, self._unkept
        order = [accepted.message for accepted in self._waiting.values()]
        if turn is not None and turn.message_id in self._waiting:
            first = self._waiting[turn.message_id].message
            begun = {first.id, *(message.id for message in turn.joined)}
            order = [first, *(message for message in order if message.id not in begun)]
            self._context.checkpoint = turn
        return RestoredSession(
            opened,
            opened.owner,
            opened.parent_id,
            tuple(order),
            is_closed=self._is_closed,
            due=self.due,
            spent=self.spent,
            bounded=tuple(self._bounded.values()),
        )
