"""`TurnCheckpoint`: the recorded progress of a turn, from which an interrupted or suspended turn resumes."""

from collections.abc import Iterable, Mapping

import attrs

from actgent.journal.record_types import (
    NO_LIMITS,
    AgentMessageRecord,
    ApprovalRequestRecord,
    CallFinishedRecord,
    CallsStartedRecord,
    DeliveryRecord,
    DownstreamUsageRecord,
    GuardDecisionRecord,
    OutcomeRecord,
    UsageRecord,
)
from actgent.limits_and_schedules.budget import NOTHING, Amounts
from actgent.limits_and_schedules.tool_call_loop_detection import is_same
from actgent.messages import NO_USAGE, Message, ToolCall, ToolResult, Usage
from actgent.support.attrs_class_repr import FieldRepr


@attrs.define(eq=False, repr=False)
class TurnProgress(FieldRepr):
    """Counters of a turn. A checkpoint contains the counters, so that a resumed turn continues counting."""

    calls: int = 0
    """Number of model calls so far."""
    tool_calls: int = 0
    """Number of finished tool calls so far."""
    repairs: int = 0
    """Number of consecutive model answers that could not be parsed."""
    usage: Usage = NO_USAGE
    """Tokens and cost of the turn so far."""
    last_call: ToolCall | None = None
    """Last finished tool call; None before the first."""
    identical: int = 0
    """Number of consecutive tool calls that are identical to `last_call`, including that call."""
    called: list[ToolCall] | None = None
    """Recent finished tool calls in order, to detect repeated cycles of calls; None if there are none."""
    counted: str = ""
    """Id of the last model answer whose tool calls are included in `tool_calls`."""

    def count_calls(self, calls: Iterable[ToolCall]) -> None:
        """Add finished tool calls to the counters, including the length of the current series of identical calls."""
        for call in calls:
            self.tool_calls += 1
            self.identical = self.identical + 1 if is_same(call, self.last_call) else 1
            self.last_call = call
            self.remember((call,))

    def remember(self, calls: Iterable[ToolCall]) -> None:
        """Append tool calls to the recent calls, in which loop detection searches for repeated cycles."""
        if self.called is None:
            self.called = []
        self.called.extend(calls)


@attrs.define(eq=False, repr=False)
class TurnCheckpoint(FieldRepr):
    """Progress of an unfinished turn, read from its records."""

    message_id: str
    """Id of the message that the turn answers."""
    joined: tuple[Message, ...] = ()
    """Earlier messages that the turn answers together with the message `message_id`."""
    progress: TurnProgress = attrs.field(factory=TurnProgress)
    """Counters of the turn."""
    stop: str = ""
    """Stop reason of the model answer with which the turn continues; empty if the turn continues with a model call."""
    state_number: int = 0
    """Number of state changes of the session at the last message of the turn."""
    delivered: set[str] = attrs.field(factory=set)
    """Ids of the outcomes, such as replies, that handlers have received."""
    recorded_outcomes: set[str] = attrs.field(factory=set)
    """Ids of the outcomes, such as replies, that are in the journal."""
    started: set[str] = attrs.field(factory=set)
    """Ids of those tool calls of the last answer that were started and may have run."""
    finished: dict[str, ToolResult] = attrs.field(factory=dict)
    """Recorded results of the last answer's tool calls, by call id."""
    limits: Mapping[str, float] = NO_LIMITS
    """Usage limits of the turn, by name of the amount."""
    spent: Amounts = NOTHING
    """Recorded usage of the turn, which counts against its limits."""
    tree_limits: Mapping[str, float] = NO_LIMITS
    """Usage limits for the turn and all turns that it causes; empty if the turn caused no other turn."""
    tree_spent: Amounts = NOTHING
    """Recorded usage of the turn and all turns that it caused."""
    charged: set[str] = attrs.field(factory=set)
    """Ids of the model answers whose tool calls are counted in the recorded usage."""
    guarded: dict[str, GuardDecisionRecord] = attrs.field(factory=dict)
    """Decisions of the guards by the id of the checked answer. The empty id has the decision about the messages of the turn."""
    is_redacted: bool = False
    """True if the text of the turn's last message was redacted in the journal."""
    _last_calls: tuple[ToolCall, ...] = ()
    """Tool calls of the last answer."""

    def apply_message(self, record: AgentMessageRecord, *, state_number: int) -> None:
        """Update the checkpoint from the record of a model answer or of tool results in this turn.

        `state_number` is the number of state changes of the session at this record. A record of tool results contains the
        results of all calls of the answer, so the separate results in `finished` are dropped.
        """
        progress = self.progress
        self.state_number = state_number
        self.stop, self.is_redacted = record.stop, record.redacted
        progress.calls, progress.repairs = record.calls, record.repairs
        progress.usage += record.usage
        if record.stop:
            self._last_calls = record.message.tool_calls
        if record.message.tool_results:  # all calls of the answer have results
            self.started.clear()
            self.finished.clear()
            progress.count_calls(self._last_calls)
            if record.last_call is not None:
                progress.last_call, progress.identical = record.last_call, record.identical
                progress.remember(record.called or (record.last_call,))

    def apply_usage(self, record: UsageRecord | DownstreamUsageRecord) -> None:
        """Add the amounts of a usage record to `spent`, or to `tree_spent` if the record is about the turns that the turn causes."""
        if record.of:
            self.charged.add(record.of)
        if isinstance(record, DownstreamUsageRecord):
            self.tree_spent += Amounts.of(record)
            self.tree_limits = record.limits or self.tree_limits
        else:
            self.spent += Amounts.of(record)

    @property
    def unfinished_calls(self) -> set[str]:
        """Ids of the tool calls that may have run and have no recorded result."""
        return self.started - self.finished.keys()

    def apply(
        self,
        record: CallsStartedRecord
        | CallFinishedRecord
        | OutcomeRecord
        | DeliveryRecord
        | GuardDecisionRecord
        | ApprovalRequestRecord,
    ) -> None:
        """Update the checkpoint from a record about started or finished calls, outcomes, deliveries, guard decisions or approvals."""
        match record:
            case ApprovalRequestRecord(
                approval=approval
            ):  # the call did not start, or ended with an approval request
                self.started.discard(approval.call_id)
            case CallsStartedRecord(call_ids=call_ids):
                self.started.update(call_ids)
            case CallFinishedRecord(result=result):
                self.finished[result.call_id] = result
            case OutcomeRecord(id=outcome):
                self.recorded_outcomes.add(outcome)
            case DeliveryRecord(ids=ids):
                self.delivered.update(ids)
            case GuardDecisionRecord(answer=answer):
                self.guarded[answer] = record
