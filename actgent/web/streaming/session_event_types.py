"""Names, JSON types and data of the events of a session.

A new event needs its type, a member of the union `SessionEvent`, and a row of the table `EVENT_ROWS`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, TypedDict, get_args

from actgent.approvals import decision_name
from actgent.journal.record_types import (
    ActionFailureRecord,
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    CallFinishedRecord,
    CallsStartedRecord,
    DeliveryRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    OutcomeRecord,
    RatingRecord,
    Record,
    ResumptionRecord,
    ScheduleFiredRecord,
    ScheduleRecord,
    ScheduleRemovedRecord,
    SessionClosedRecord,
    SourceLiftRecord,
    StateChangeRecord,
    StateRollbackRecord,
    SuspensionRecord,
)
from actgent.web.json_response_types import (
    Amount,
    AnswerStop,
    ApprovalDocument,
    ApprovalID,
    CallerCall,
    Count,
    D,
    Date,
    E,
    ErrorDescription,
    FailureKind,
    Feedback,
    JSONObject,
    JSONValue,
    Keywords,
    LabelFields,
    MessageDocument,
    MessageID,
    Named,
    Nothing,
    RecordNumber,
    Resync,
    StreamEventDocument,
    ToolCallDocument,
    ToolName,
    ToolResultDocument,
    UsageDocument,
)
from actgent.web.routes.json_serializers import (
    of_approval,
    of_call,
    of_caller_call,
    of_label,
    of_rating,
    of_usage,
    to_date,
)

Data = Mapping[str, Any]
"""Fields of an event; the members of `SessionEvent` have the type of each."""


class EventFields(TypedDict):
    """Fields of each event that was made from a journal record."""

    turn: str | None
    """Id of the message that started the turn to which the event belongs; null between turns."""
    at: Date | None
    """Time at which the journal record was written."""


class MessageAcceptedDocument(EventFields, MessageDocument):
    """Event: the session accepted a message."""


class AnswerReceived(EventFields, LabelFields):
    """Event: the model has answered."""

    message_id: MessageID
    text: str
    """Text of the model's answer."""
    calls: Sequence[ToolCallDocument]
    """Tool calls that the answer requests."""
    stop: AnswerStop
    """Reason why the model stopped."""
    model: str
    """Name of the model that answered."""
    usage: UsageDocument
    seconds: Amount
    """Duration of the model call in seconds, retries included; 0 if unknown."""
    waited: Amount
    """Part of `seconds` during which the call waited for the provider's rate limit."""
    failures: Count
    """Number of failed attempts of the model call before the answer."""
    repairs: Count
    """Number of consecutive model answers of the turn that could not be parsed and were requested again."""
    cut: bool
    """True if the answer is incomplete because its generation was interrupted."""


class ResultReceived(EventFields, ToolResultDocument):
    """Event: a tool call has its result."""


class ReplySent(EventFields, LabelFields):
    """Event: the agent's reply was delivered."""

    id: str
    """Id of the reply."""
    text: str | None
    """Text of the reply."""
    data: JSONValue
    """Structured data of the reply; null if it has only text."""
    message_type: str | None
    """Reply type, as defined by the agent's protocol; null if the protocol has no reply types."""
    reasoning: JSONValue
    """Explanation that the agent's protocol makes the model write with its reply; null without one."""


class ApplicationEvent(EventFields, LabelFields):
    """Event that the agent's protocol defines and the model emitted."""

    id: str
    """Id of the event."""
    name: str
    """Name of the event."""
    data: JSONValue
    """JSON data of the event; null without data."""


class RouteTaken(EventFields, LabelFields):
    """Event: the turn ended by routing its message to another agent."""

    id: str
    """Id of the event."""
    action: str
    """Name of the agent or action to which the message was routed."""
    data: JSONValue
    """JSON data that was sent with the message to the target; null without data."""


class TurnStartedDocument(EventFields):
    """Event: a turn started, or a message joined the running turn."""

    phase: Literal["started"]
    message_id: MessageID
    joins: bool
    """True if the message joined a running turn; false if it started a turn."""


class TurnSuspendedDocument(EventFields):
    """Event: a turn was suspended until approvals are decided or client-executed tool calls have results."""

    phase: Literal["suspended"]
    waits_for: Sequence[str]
    """Ids of the approvals and client-executed tool calls for which the turn waits."""


class TurnResumedDocument(EventFields):
    """Event: a suspended turn resumed."""

    phase: Literal["resumed"]
    came: Sequence[str]
    """Ids for which the turn waited and that have arrived: decided approvals, and client-executed tool calls with results."""


class CallsStarted(EventFields):
    """Event: tool calls started."""

    call_ids: Sequence[str]
    """Ids of the tool calls."""


class CallRequested(EventFields, CallerCall):
    """Event: the model called a tool that the API client must execute."""


class ApprovalRequested(EventFields, ApprovalDocument):
    """Event: a tool call requested an approval."""


class ApprovalDecidedDocument(EventFields):
    """Event: an approval was decided."""

    id: ApprovalID
    word: str
    """Kind of the decision: `approved`, `rejected`, `edited`, `responded`, `expired` or `withdrawn`."""
    by: Annotated[str, Keywords({"examples": ["ada"]})]
    """Name of the approver; empty if the approval expired or was withdrawn."""


class SourceLiftedDocument(EventFields):
    """Event: a person removed an untrusted source from the label of the session."""

    source: str
    """Name of the removed source."""
    by: Annotated[str, Keywords({"examples": ["ada"]})]
    """Name of the person."""
    reason: str
    """Reason of the person; empty without a reason."""


class StateChanged(EventFields):
    """Event: values of the session state changed."""

    changes: JSONObject
    """New values of the changed keys."""
    action: str
    """Name of the action that changed the state; empty for a change without an action."""


class StateReset(EventFields):
    """Event: the session state was reset to an earlier version."""

    rolled_back_to: Count
    """Number of the state version to which the state was reset."""


class ActionFailed(EventFields):
    """Event: an action on the session state failed. The state did not change."""

    action: str
    """Name of the failed action."""
    failed: Literal[True]


class ScheduleSet(EventFields):
    """Event: a schedule was created for the session."""

    action: Literal["set"]
    id: str
    """Id of the schedule."""
    input: str
    """Text of the message that the schedule sends."""
    due: Date | None
    """Time at which the schedule fires next; null if that time is unknown."""
    cron: str | None
    """Cron expression; null for a schedule that fires once."""


class ScheduleFiredDocument(EventFields):
    """Event: a schedule fired."""

    action: Literal["fired"]
    id: str
    """Id of the schedule."""
    message_id: str | None
    """Id of the message that the schedule sent; null if it sent no message."""
    following: Date | None
    """Time at which the schedule fires again; null if it does not fire again."""


class ScheduleRemoved(EventFields):
    """Event: a schedule was removed."""

    action: Literal["removed"]
    id: str
    """Id of the schedule."""


class MessageEnded(EventFields):
    """Event: a message was answered, or failed."""

    message_id: MessageID
    failed: FailureKind
    error: ErrorDescription | None
    """Error of the failed message; null if the message was answered."""


class FeedbackGiven(EventFields, Feedback):
    """Event: a user rated the answer to a message."""


class SessionClosedDocument(EventFields):
    """Event: the session was closed."""


class PartialAnswerDocument(TypedDict):
    """Event: new text of an unfinished model answer. A stream sends it only if the header `Actgent-Events` lists it."""

    turn: MessageID
    reply_id: MessageID
    attempt: Count
    """Number of the model's attempt to answer. A new attempt discards the text of earlier attempts."""
    begin: Count
    """Index in the answer, in characters, at which `text` begins; it replaces all text after this index."""
    text: str
    """New text of the answer from index `begin` on."""


class CallProgressDocument(TypedDict):
    """Event: progress of a running tool call. A stream sends it only if the header `Actgent-Events` lists it."""

    call_id: str
    """Id of the tool call."""
    tool: ToolName
    done: float | None
    """Amount of work done, in the unit of `total`; null if the tool does not report it."""
    total: float | None
    """Total amount of work of the call; null if unknown."""
    text: str
    """Description of the tool's current activity; may be empty."""


class EventDocument(TypedDict, Generic[E, D]):
    """An event on a page of events."""

    id: RecordNumber
    event: E
    data: D


SessionEvent = Annotated[
    EventDocument[Literal["message"], MessageAcceptedDocument]
    | EventDocument[Literal["turn"], TurnStartedDocument | TurnSuspendedDocument | TurnResumedDocument]
    | EventDocument[Literal["answer"], AnswerReceived]
    | EventDocument[Literal["tools"], CallsStarted]
    | EventDocument[Literal["result"], ResultReceived]
    | EventDocument[Literal["reply"], ReplySent]
    | EventDocument[Literal["event"], ApplicationEvent]
    | EventDocument[Literal["route"], RouteTaken]
    | EventDocument[Literal["call"], CallRequested]
    | EventDocument[Literal["approval"], ApprovalRequested]
    | EventDocument[Literal["decision"], ApprovalDecidedDocument]
    | EventDocument[Literal["lift"], SourceLiftedDocument]
    | EventDocument[Literal["state"], StateChanged | StateReset | ActionFailed]
    | EventDocument[Literal["schedule"], ScheduleSet | ScheduleFiredDocument | ScheduleRemoved]
    | EventDocument[Literal["ended"], MessageEnded]
    | EventDocument[Literal["feedback"], FeedbackGiven]
    | EventDocument[Literal["closed"], SessionClosedDocument],
    Named(
        "SessionEvent", {"description": "An event of a session.", "discriminator": {"propertyName": "event"}}
    ),
]
LiveEvent = Annotated[
    StreamEventDocument[Literal["token"], PartialAnswerDocument]
    | StreamEventDocument[Literal["growing"], PartialAnswerDocument]
    | StreamEventDocument[Literal["progress"], CallProgressDocument]
    | StreamEventDocument[Literal["resync"], Resync]
    | StreamEventDocument[Literal["lagged"], Nothing]
    | StreamEventDocument[Literal["bye"], Nothing],
    Named(
        "LiveEvent",
        {
            "description": "An event of a stream that belongs to no record, so it has no id.",
            "discriminator": {"propertyName": "event"},
        },
    ),
]


SessionStreamEvent = Annotated[
    SessionEvent | LiveEvent,
    Named("SessionStreamEvent", {"description": "An event of the stream of a session."}),
]
STREAM_EVENT_NAMES = frozenset(
    get_args(get_args(document)[0])[0]
    for events in (SessionEvent, LiveEvent)
    for document in get_args(get_args(events)[0])
) | {"failed"}
"""Names that a stream of a session selects; `failed` selects the ends of failed messages."""


class EventPage(TypedDict):
    """One page of the events of a session."""

    items: Sequence[SessionEvent]
    cursor: RecordNumber
    next: int | None
    """Value of the query parameter `after` for the next page; null if the session has no more records."""


# --- conversion of records ------------------------------------------------------------------


def answer_event(record: AgentMessageRecord) -> tuple[str, Data]:
    """Return name and data of the event for a model answer."""
    message = record.message
    data = {
        "message_id": message.id,
        "text": message.text,
        "calls": [of_call(call) for call in message.tool_calls],
        "stop": record.stop,
        "model": record.model,
        "usage": of_usage(record.usage),
        "seconds": record.seconds,
        "waited": record.waited,
        "failures": record.failures,
        "repairs": record.repairs,
        "cut": message.cut,
        **of_label(message.label),
    }
    return "answer", data


def outcome_event(record: OutcomeRecord) -> tuple[str, Data]:
    """Return name and data of the event for a turn's outcome: a reply, an application event or a route to another agent."""
    data = None if record.data is None else json.loads(record.data)
    if record.kind == "reply":
        return "reply", {
            "id": record.id,
            "text": record.text,
            "data": data,
            "message_type": record.name or None,
            "reasoning": None if record.reasoning is None else json.loads(record.reasoning),
        }
    name_field = "name" if record.kind == "event" else "action"
    return record.kind, {"id": record.id, name_field: record.name, "data": data}


def of_message_end(record: MessageEndRecord) -> Data:
    """Return the data of the event for the end of a message."""
    error = {"class": record.error, "text": record.error_text} if record.error else None
    return {"message_id": record.message_id, "failed": record.failed, "error": error}


def _decision_data(record: ApprovalDecisionRecord) -> Data:
    return {"id": record.approval_id, "word": decision_name(record.decision), "by": record.by}


def _schedule_data(record: ScheduleRecord) -> Data:
    data = {"input": record.description, "due": to_date(record.at), "cron": record.cron or None}
    return {"action": "set", "id": record.schedule_id, **data}


def _fired_data(record: ScheduleFiredRecord) -> Data:
    data = {"message_id": record.message_id or None, "following": to_date(record.following)}
    return {"action": "fired", "id": record.schedule_id, **data}


EVENT_ROWS: Mapping[type, tuple[str, Callable[[Any], Data]]] = {
    MessageAppendedRecord: (
        "turn",
        lambda record: {"phase": "started", "message_id": record.message_id, "joins": record.joins},
    ),
    SuspensionRecord: ("turn", lambda record: {"phase": "suspended", "waits_for": list(record.ids)}),
    ResumptionRecord: ("turn", lambda record: {"phase": "resumed", "came": list(record.ids)}),
    CallsStartedRecord: ("tools", lambda record: {"call_ids": list(record.call_ids)}),
    ApprovalDecisionRecord: ("decision", _decision_data),
    SourceLiftRecord: (
        "lift",
        lambda record: {"source": record.source, "by": record.by, "reason": record.reason},
    ),
    StateChangeRecord: ("state", lambda record: {"changes": dict(record.changes), "action": record.action}),
    StateRollbackRecord: ("state", lambda record: {"rolled_back_to": record.number}),
    ActionFailureRecord: ("state", lambda record: {"action": record.action, "failed": True}),
    ScheduleRecord: ("schedule", _schedule_data),
    ScheduleFiredRecord: ("schedule", _fired_data),
    ScheduleRemovedRecord: ("schedule", lambda record: {"action": "removed", "id": record.schedule_id}),
    MessageEndRecord: ("ended", of_message_end),
    RatingRecord: ("feedback", of_rating),
    SessionClosedRecord: ("closed", lambda _: {}),
}
"""Name and data of the event of a record class that needs no earlier record."""
_ONLY_ENDED, _FAILED = ("ended",), ("ended", "failed")
_ANSWER, _RESULT = ("answer",), ("result",)
_APPROVAL, _CALL = ("approval",), ("call",)
_NAMES: Mapping[type, tuple[str, ...]] = {
    **{kind: (name,) for kind, (name, _) in EVENT_ROWS.items() if kind is not MessageEndRecord},
    MessageAcceptedRecord: ("message",),
    DeliveryRecord: ("reply",),
    CallFinishedRecord: ("result",),
}
"""Name of the event of a record class, for the classes whose records all become events of one name."""


def event_names(record: Record) -> tuple[str, ...]:
    """Return the names of the events to which a record may be converted.

    The end of a failed message has the names `ended` and `failed`.
    """
    kind = type(record)  # called for each record of each session that is read, so it avoids function calls
    if kind in _NAMES:
        return _NAMES[kind]
    if type(record) is AgentMessageRecord:
        return _ANSWER if record.message.sender.kind == "assistant" else _RESULT
    if type(record) is MessageEndRecord:
        return _ONLY_ENDED if record.failed is None else _FAILED
    if type(record) is ApprovalRequestRecord:
        return _CALL if record.approval.for_caller else _APPROVAL
    return (record.kind,) if type(record) is OutcomeRecord else ()


def to_event(record: Record) -> tuple[str, Data]:
    """Return the name and the data of the event for a record that does not depend on earlier records.

    Such records are approval requests, approval decisions and ends of messages.

    Raises:
        KeyError: Records of this type need an `EventEncoder`.
    """
    if type(record) is ApprovalRequestRecord:
        approval = record.approval
        return (
            ("call", of_caller_call(approval)) if approval.for_caller else ("approval", of_approval(approval))
        )
    name, make_data = EVENT_ROWS[type(record)]
    return name, make_data(record)
