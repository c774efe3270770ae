"""Record classes of a session's journal. A session's records are append-only and numbered from 1.

Field names and tags are stored on disk, so they must stay readable in later versions.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

from actgent.approvals import Approval, Approve, Decision, Edit, Expire, Reject, Respond, Withdraw
from actgent.messages import (
    MEDIA_TAGS,
    NO_USAGE,
    PART_TAGS,
    Medium,
    Message,
    OnBusy,
    Part,
    Priority,
    Sender,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.fast_attrs_constructors import STORED_AS, fast_constructor, fast_init
from actgent.support.tagged_codec import TaggedCodec

NOTHING: Mapping[str, str] = MappingProxyType({})
"""Empty mapping that is the default of record fields with named values."""
NO_LIMITS: Mapping[str, float] = MappingProxyType({})
"""Empty mapping that is the default of record fields with limits."""
NOT_KEPT = "journal"
"""Failure kind of a message whose turn could not be written to the journal.

The sender may send the message again with the same id.
"""
REFUSED = "refused"
"""Failure kind of a message that the agent rejected before the message entered the inbox."""


@attrs.frozen(kw_only=True, repr=False)
class AccountKey(FieldRepr):
    """Key of a budget account: of a session, of one turn, or of a turn and all turns that this turn causes."""

    session_id: str
    """Id of the session that the account belongs to."""
    turn: str = ""
    """Id of the message that the turn answers; empty for the account of a whole session."""
    agent: str = ""
    """Name of the agent of the session that the account belongs to; empty in records of earlier versions."""
    tree: bool = False
    """True if the account also counts the usage of turns in other sessions that this turn causes."""


def task_message_id(session_id: str) -> str:
    """Return the id of the message with the task of a delegated session. The id is derived from the session id."""
    return f"{session_id}/task"


@attrs.frozen(kw_only=True, repr=False)
class TurnOptions(FieldRepr):
    """Model options of a single turn, set by the sender of the turn's message."""

    temperature: float | None = None
    """Sampling temperature of the model; None uses the default of the agent."""
    max_tokens: int | None = None
    """Maximum tokens of one answer; None uses the default of the agent."""
    system: str | None = None
    """System prompt of the turn; None uses the system prompt of the session."""
    tail: str = ""
    """Text appended to the prompt of each model call of the turn."""
    output: str | None = None
    """JSON schema of the required answer, as JSON text; None uses the output of the agent."""
    output_name: str = ""
    """Name of the JSON schema in `output`, which model requests contain; empty without a schema."""
    deps: bool = False
    """True if the sender passed a dependency object (`deps`) for the tools of the turn. The object is never stored."""
    model: str | None = None
    """Role of the model (as in `Agent(models=...)`) for all calls of the turn; if None, the protocol chooses."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the sender of the message runs itself; see `actgent.tools.tools_run_by_caller`."""


@fast_init
@attrs.frozen(kw_only=True, repr=False)
class Fitting(FieldRepr):
    """Cuts that fitted a model request into the context window of its model."""

    tokens: int
    """Estimated tokens of the request before it was shortened."""
    room: int
    """Target size of the request in tokens, without the answer. First it is the free part of the context window.
    If the provider rejected the request as too long, it is the smaller size that was tried next.
    """
    shares: tuple[float, ...] = ()
    """Fraction (0 to 1) of the messages that remained, one value for each time that old messages were dropped."""
    shortened: int = 0
    """Maximum length of a tool result after shortening, in characters; 0 if no result was shortened."""


REDACTED: Mapping[str, bool] = {"redacted": True}
"""Metadata of a field: `redact=` of a runtime changes the strings in it before the record is written."""


@attrs.frozen(kw_only=True, repr=False)
class SessionCreatedRecord(FieldRepr):
    """Record: a session was created. It is the first record of each session."""

    owner: Sender
    """Owner of the session: a user or an agent."""
    parent_id: str | None = None
    """Id of the parent session; None if the session has no parent."""
    created_at: float
    """Unix time in seconds at which the session was created."""
    on_busy: OnBusy | None = None
    """Handling of messages that arrive during a turn; None uses the rule of the agent."""
    limits: Mapping[str, float] = NO_LIMITS
    """Usage limits of the whole session, by field name of `Limits`."""
    within: tuple[AccountKey, ...] = ()
    """Budget accounts of the parent sessions. All turns of this session draw on these accounts too."""
    transient: bool = False
    """True if the session closes after its last pending message."""
    parent_agent: str = ""
    """Name of the agent of the parent session; empty without a parent."""
    reports: bool = False
    """True if the outcome of the session's first message is sent to the parent session."""
    system: str | None = None
    """System prompt of the session; None uses the system prompt of the agent."""
    deadline: float = 0.0
    """Unix time in seconds at which the session's task is stopped if it is unfinished; 0 means no deadline."""
    agent: str = ""
    """Name of the agent of the session; empty in journals before schema version 4."""
    task: str = ""
    """Name of the task, given by the parent session; empty if the task has no name."""
    deps: bool = False
    """True if the session was created with a dependency object (`deps`) for its tools. The object is never stored."""
    notify: tuple[str, ...] = ()
    """Webhook URL, followed by the names of the events that are sent to it; empty without a webhook."""
    is_described: bool = False
    """True if the first message of the session is its task description."""
    asker: str = ""
    """Requester outside of this process. `POOL/AGENT/ID` names a session of another cluster pool.
    `made/` and a hash stand for a client's idempotency key. Empty if this process created the session for itself.
    """
    tags: tuple[str, ...] = attrs.field(default=(), metadata=REDACTED)
    """Tags with which the session was created."""
    metadata: Mapping[str, str] = attrs.field(default=NOTHING, metadata=REDACTED)
    """Metadata with which the session was created."""
    via: str = ""
    """Untrusted sources (stored label) of the turn that wrote the session's system prompt; empty if trusted."""


@fast_init
@attrs.frozen(kw_only=True, repr=False)
class MessageAcceptedRecord(FieldRepr):
    """Record: the session accepted a message into its inbox."""

    message: Message
    """The accepted message with its whole content."""
    limits: Mapping[str, float] = NO_LIMITS
    """Usage limits of the message's turn, set by the sender."""
    within: tuple[AccountKey, ...] = ()
    """Budget accounts of the turn that sent the message. The message's turn draws on these accounts too."""
    depth: int = 0
    """Number of turns in the chain of requests that led to this message; 0 if a program or user sent it."""
    deepest: int = 0
    """Maximum `depth` that the limits of the turns in the chain allow; 0 means unlimited."""
    options: TurnOptions | None = None
    """Model options of the message's turn; None uses the options of the agent."""
    baggage: Mapping[str, Any] = NOTHING
    """Values of the sender's registered context variables, by variable name."""


make_message_accepted_record = fast_constructor(MessageAcceptedRecord)


@fast_init
@attrs.frozen(kw_only=True, repr=False)
class MessageAppendedRecord(FieldRepr):
    """Record: an accepted message entered the conversation. `MessageAcceptedRecord` has the content of the message."""

    message_id: str
    """Id of the accepted message that entered the conversation."""
    joins: bool = False
    """True if one turn answers this message together with the previously appended message."""
    limits: Mapping[str, float] = NO_LIMITS
    """Usage limits of the turn that begins with this message."""
    is_repeated: bool = attrs.field(default=False, metadata={STORED_AS: "again"})
    """True if this record repeats an earlier one, because the turn of the message resumes after a failure of the journal."""
    at: float = 0.0
    """Unix time in seconds at which the turn of the message started; 0 in records of earlier versions."""


make_message_appended_record = fast_constructor(MessageAppendedRecord)


@fast_init
@attrs.frozen(kw_only=True, repr=False)
class AgentMessageRecord(FieldRepr):
    """Record: a message of the agent entered the conversation: an answer of the model, tool results or a notice."""

    message: Message
    """The message that the conversation contains."""
    stop: str = ""
    """Stop reason of the model; empty if the message is not an answer."""
    usage: Usage = NO_USAGE
    """Tokens and cost of the model call; zero if the message is not an answer."""
    model: str = ""
    """Name of the model that answered; empty if the message is not an answer."""
    calls: int = 0
    """Number of model calls that the turn has made so far."""
    repairs: int = 0
    """Number of consecutive answers of the turn that could not be parsed and were requested again."""
    prompt: str = ""
    """Fingerprint (eight hexadecimal digits) of the request's system prompt and tools."""
    results: tuple[str, ...] = ()
    """Used in storage only: ids of the tool calls whose results the message contains.

    The results are in earlier `CallFinishedRecord` objects.
    """
    last_call: ToolCall | None = None
    """Last tool call that the model wrote as text, if the message contains results of such calls.
    The call is stored only here.
    """
    identical: int = 0
    """Number of consecutive calls that were identical to `last_call`."""
    called: tuple[ToolCall, ...] = ()
    """All tool calls that the model wrote as text; empty if there was at most one, which is in `last_call`."""
    redacted: bool = False
    """True if the `redact=` function changed the text of the message."""
    seconds: float = 0.0
    """Duration of the model call in seconds, retries included; 0 if unknown or if the message is not an answer."""
    waited: float = 0.0
    """Seconds of `seconds` that the call waited for rate limits."""
    failures: int = 0
    """Number of failed attempts of the model call before the answer."""
    fitting: Fitting | None = None
    """How the request was shortened to fit into the context window; None if the request was sent in full."""

    def with_text_calls(self) -> Message:
        """Return the message of the record. In a message with tool results, set `text_calls` to the answered calls.

        Only calls that the model wrote as text, instead of native tool calls, are set.
        """
        if self.last_call is None:
            return self.message
        ids = {result.call_id for result in self.message.tool_results}
        calls = tuple(call for call in self.called or (self.last_call,) if call.id in ids)
        return attrs.evolve(self.message, text_calls=calls)


make_agent_message_record = fast_constructor(AgentMessageRecord)


def reference_results(record: AgentMessageRecord) -> AgentMessageRecord:
    """Return a copy of a record whose tool results are replaced by references to earlier `CallFinishedRecord` records.

    So each tool result is stored once.
    """
    ids = tuple(result.call_id for result in record.message.tool_results)
    return attrs.evolve(record, message=attrs.evolve(record.message, parts=()), results=ids)


@attrs.frozen(kw_only=True, repr=False)
class CallsStartedRecord(FieldRepr):
    """Record: tool calls are about to run. After a crash, a call with this record and without a result may have had effects."""

    call_ids: tuple[str, ...]
    """Ids of the tool calls that are about to run."""


@attrs.frozen(kw_only=True, repr=False)
class CallFinishedRecord(FieldRepr):
    """Record: a tool call ended with a result."""

    result: ToolResult
    """Result of the tool call, successful or not."""


@fast_init
@attrs.frozen(kw_only=True, repr=False)
class UsageRecord(FieldRepr):
    """Record: usage that one budget account of this session has to count.

    A model call writes an estimate before the request. After the answer it writes the difference to the real usage,
    which may be negative. The usage may come from another session that works for this one.
    """

    turn: str = ""
    """Id of the message whose turn is charged; empty if the usage is charged to the whole session."""
    of: str = ""
    """Id of the model answer that requested the tool calls in `tool_calls`. The calls of an answer are counted only once.
    Empty if no tool calls are counted.
    """
    model_calls: int = 0
    """Number of model calls to count."""
    tool_calls: int = 0
    """Number of tool calls to count."""
    tokens: int = 0
    """Number of prompt and answer tokens to count."""
    cost: float = 0.0
    """Cost to count, in US dollars."""
    seconds: float = 0.0
    """Working time to count, in seconds."""


@fast_init
@attrs.frozen(kw_only=True, repr=False)
class DownstreamUsageRecord(FieldRepr):
    """Record: model and tool calls in other turns, of any session, that a turn of this session caused directly or indirectly."""

    turn: str
    """Id of the message of this session whose turn caused the counted model and tool calls."""
    of: str = ""
    """Id of the model answer that requested the tool calls in `tool_calls`. The calls of an answer are counted only once.
    Empty if no tool calls are counted.
    """
    model_calls: int = 0
    """Number of model calls to count."""
    tool_calls: int = 0
    """Number of tool calls to count."""
    limits: Mapping[str, float] = NO_LIMITS
    """Limits for all caused turns together. Only the first record of a turn has them."""


@fast_init
@attrs.frozen(kw_only=True, repr=False)
class StateChangeRecord(FieldRepr):
    """Record: the state of the session changed."""

    changes: Mapping[str, Any]
    """New values by key of the state. For a key in `reduced`, it is the value that the reducer combines with the old value."""
    reduced: Mapping[str, str] = NOTHING
    """Names of the built-in reducers (see `actgent.state.reducers`) that combine old and new values, by state key."""
    action: str = ""
    """Name of the action that made the change; empty for a change without a named action."""
    once: str = ""
    """Idempotency key: a second change with this key is ignored. Empty if the change has no key."""
    patches: Mapping[str, Any] = NOTHING
    """Used in storage only: differences to the previous values, for keys with large values (see `actgent.support.structural_diff`)."""
    via: str = ""
    """Untrusted sources (stored label) of the turn of another session that made the change; empty for a trusted change."""


@attrs.frozen(kw_only=True, repr=False)
class ActionFailureRecord(FieldRepr):
    """Record: an action on the session's state raised an exception. The state did not change."""

    action: str
    """Name of the action that failed."""
    error: str = attrs.field(metadata=REDACTED)
    """Class name and text of the exception that the action raised."""


@attrs.frozen(kw_only=True, repr=False)
class StateRollbackRecord(FieldRepr):
    """Record: the state of the session was reset to an earlier version."""

    number: int
    """Number of the restored version of the state. The next change gets the number after it."""


@fast_init
@attrs.frozen(kw_only=True, repr=False)
class OutcomeRecord(FieldRepr):
    """Record: an outcome of an answer (reply, event or route), written before handlers receive the outcome.

    A reply that equals the text of the answer has no such record.
    """

    id: str
    """Id of the outcome. A `DeliveryRecord` with this id follows after handlers have received the outcome."""
    kind: str
    """Kind of the outcome: `reply`, `event` or `route`."""
    name: str = ""
    """Name of the event, target of the route, or message type of the reply; empty if the reply has no type."""
    text: str | None = None
    """Text of a reply; None for events and routes."""
    data: str | None = None
    """Structured data of the outcome as JSON text; None without data."""
    answer: str = ""
    """Used in storage only: id of the answer from whose text `text` and `data` are copied when the record is read."""
    text_at: tuple[int, ...] = ()
    """Used in storage only: start and end index (characters) of `text` in the text of the answer."""
    data_at: tuple[int, ...] = ()
    """Used in storage only: start and end index (characters) of `data` in the text of the answer."""
    is_quoted: bool = False
    """Used in storage only: True if `text` is the content of a JSON string in the answer."""
    reasoning: str | None = None
    """Reasoning that the model gave for a reply, as JSON text; None without reasoning."""
    via: str = ""
    """Untrusted sources (stored label) of the outcome, if they differ from the sources of the answer; else empty.

    They differ, for example, if the reply contains a value that the model did not see.
    """


@attrs.frozen(kw_only=True, repr=False)
class DeliveryRecord(FieldRepr):
    """Record: handlers have received these outcomes, so they are not delivered again after a restart."""

    ids: tuple[str, ...]
    """Ids of the outcomes that handlers have received."""


make_delivery_record = fast_constructor(DeliveryRecord)


@fast_init
@attrs.frozen(kw_only=True, repr=False)
class GuardDecisionRecord(FieldRepr):
    """Record: an output guard accepted, changed or rejected the outcome of a turn, or one answer of the turn."""

    message_id: str
    """Id of the message that the turn answers."""
    answer: str = ""
    """Id of the checked answer; empty if the guard checked the outcome of the turn."""
    guard: str = ""
    """Name of the guard function that rejected; empty if no guard rejected."""
    refused: str | None = attrs.field(default=None, metadata=REDACTED)
    """Reason of the rejection; None if the guards accepted the outcome or answer."""
    text: str | None = attrs.field(default=None, metadata=REDACTED)
    """Text with which the guards replaced the answer; None if the text stays."""


@attrs.frozen(kw_only=True, repr=False)
class TaskOutcomeRecord(FieldRepr):
    """Record: the outcome of a message, for the parent session that sent the message as a task."""

    message_id: str
    """Id of the message that contains the task."""
    text: str = attrs.field(metadata=REDACTED)
    """Answer, or text of the error, for the model of the parent session."""
    failed: str | None = None
    """Failure kind (see `Failure.kind`); None if the task was answered."""
    shortfall: str = ""
    """Kind of an incomplete answer, such as `partial`; empty if the answer is complete."""
    is_json: bool = False
    """True if `text` is JSON; False if it is plain text."""
    origin: str = ""
    """External sources, comma-separated, whose untrusted text the answer may repeat; empty if none."""
    via: str = ""
    """Untrusted sources, comma-separated, that influenced the answer without being repeated in it; empty if none."""


@attrs.frozen(kw_only=True, repr=False)
class FailureRecord(FieldRepr):
    """Record: a message failed.

    Written before handlers and callers receive the failure; `MessageEndRecord` follows afterwards.
    """

    message_id: str
    """Id of the failed message."""
    kind: str
    """Kind of the failure; `Failure.kind` lists the values."""
    error: str = ""
    """Class name of the exception that made the message fail."""
    error_text: str = attrs.field(default="", metadata={**REDACTED, STORED_AS: "words"})
    """Text of the exception; empty for exceptions of user code."""
    fields: Mapping[str, Any] = attrs.field(default=NOTHING, metadata=REDACTED)
    """Attributes of the exception that are plain data, such as the name of a limit; empty for exceptions of user code."""


@fast_init
@attrs.frozen(kw_only=True, repr=False)
class MessageEndRecord(FieldRepr):
    """Record: the processing of an accepted message ended, with an answer or a failure."""

    message_id: str
    """Id of the message whose processing ended."""
    failed: str | None = None
    """Kind of the failure; None if the message was answered."""
    error: str = ""
    """Class name of the exception; empty if the message was answered."""
    error_text: str = attrs.field(default="", metadata={**REDACTED, STORED_AS: "words"})
    """Text of the exception; empty if the message was answered, and for exceptions of user code."""


make_message_end_record = fast_constructor(MessageEndRecord)


@attrs.frozen(kw_only=True, repr=False)
class CancellationRecord(FieldRepr):
    """Record: a message was cancelled before it arrived. The session ends the message when it arrives."""

    message_id: str
    """Id of the cancelled message."""
    reason: str = attrs.field(default="", metadata=REDACTED)
    """Reason of the cancellation, as text."""


@attrs.frozen(kw_only=True, repr=False)
class RatingRecord(FieldRepr):
    """Record: a user rated the outcome of a message."""

    message_id: str
    """Id of the message whose outcome was rated."""
    score: float
    """Score from 0 (bad) to 1 (good)."""
    comment: str = attrs.field(default="", metadata=REDACTED)
    """Comment of the rater; empty without a comment."""
    expected: str | None = attrs.field(default=None, metadata=REDACTED)
    """Answer that the rater expected; None if not given."""
    by: str = ""
    """Name of the rater; empty if unknown. A later rating of this rater replaces the earlier one."""
    at: float
    """Unix time in seconds at which the user rated the outcome."""


@attrs.frozen(kw_only=True, repr=False)
class SessionAnnotatedRecord(FieldRepr):
    """Record: the tags or the metadata of the session changed. The record has all tags and metadata, also unchanged values."""

    tags: tuple[str, ...] = attrs.field(default=(), metadata=REDACTED)
    """All tags of the session after the change."""
    metadata: Mapping[str, str] = attrs.field(default=NOTHING, metadata=REDACTED)
    """All metadata of the session after the change."""


@attrs.frozen(kw_only=True, repr=False)
class NextTimerRecord(FieldRepr):
    """Record: time of the session's next timer (a schedule or a deadline), at which the runtime loads the session."""

    at: float
    """Unix time in seconds of the next timer; 0 if no timer is set."""


@attrs.frozen(kw_only=True, repr=False)
class ApprovalRequestRecord(FieldRepr):
    """Record: a tool call waits for an approval. The call has not run yet, or its tool raised `ApprovalRequired`."""

    approval: Approval
    """The requested approval, with the tool call and its arguments."""


@attrs.frozen(kw_only=True, repr=False)
class ApprovalDecisionRecord(FieldRepr):
    """Record: an approver decided an approval, or the approval expired."""

    approval_id: str
    """Id of the decided approval."""
    decision: Decision
    """Decision of the approver, or `Expire` if the approval expired."""
    by: str = ""
    """Name of the approver; empty if unknown."""
    at: float
    """Unix time in seconds at which the approval was decided."""


@attrs.frozen(kw_only=True, repr=False)
class SuspensionRecord(FieldRepr):
    """Record: a turn was suspended until approvals or answers of other sessions arrive. A suspended turn has no running task."""

    message_id: str
    """Id of the message that the turn answers."""
    ids: tuple[str, ...]
    """Ids of the approvals or answers that the turn waits for."""


@attrs.frozen(kw_only=True, repr=False)
class ResumptionRecord(FieldRepr):
    """Record: a suspended turn resumed."""

    ids: tuple[str, ...] = ()
    """Ids of the approvals or answers that arrived and let the turn resume."""


@attrs.frozen(kw_only=True, repr=False)
class SystemPromptRecord(FieldRepr):
    """Record: the system prompt of the session was replaced."""

    system: str
    """The new system prompt of the session."""
    via: str = ""
    """Untrusted sources (stored label) of the turn that wrote the prompt; empty if trusted."""


@attrs.frozen(kw_only=True, repr=False)
class SourceLiftRecord(FieldRepr):
    """Record: a person declared the text that the session has received from one source so far as trusted.

    The record removes the source from the label of the session. Later text from the source adds the source again.
    """

    source: str
    """Name of the removed source; `*` removes all sources of a label that had too many sources to name them."""
    by: str
    """Name of the person that declared the text as trusted."""
    reason: str = attrs.field(default="", metadata=REDACTED)
    """Reason of the person; empty without a reason."""
    at: float
    """Unix time in seconds of the declaration."""


@attrs.frozen(kw_only=True, repr=False)
class ScheduleRecord(FieldRepr):
    """Record: a schedule was set. The session receives a message at a later time, once or repeatedly."""

    schedule_id: str
    """Id of the schedule, unique in the session."""
    description: str = attrs.field(metadata=REDACTED)
    """Text of the message that the schedule sends."""
    at: float
    """Unix time in seconds at which the schedule fires first."""
    cron: str = ""
    """Cron expression of a repeating schedule; empty for a schedule that fires once."""
    zone: str = "UTC"
    """IANA time zone of the cron expression."""
    baggage: Mapping[str, Any] = attrs.field(default=NOTHING, metadata=REDACTED)
    """Values of the registered context variables of the code that set the schedule, by variable name."""
    traceparent: str | None = None
    """W3C Trace Context of the code that set the schedule; None without a trace."""
    priority: Priority = Priority.NORMAL
    """Priority of the message that the schedule sends."""
    delay: bool = False
    """True if the schedule was set as a delay (`after=` seconds); False if it was set as a date."""
    within: tuple[AccountKey, ...] = ()
    """Budget accounts of the turn that set the schedule. The first turn of the schedule draws on these accounts too."""
    depth: int = 0
    """Number of turns in the chain of requests that led to the schedule."""
    deepest: int = 0
    """Maximum `depth` that the limits of the turns in the chain allow; 0 means unlimited."""
    metadata: Mapping[str, Any] = attrs.field(default=NOTHING, metadata=REDACTED)
    """Metadata of the message that the schedule sends, for programs."""
    request: str = ""
    """Digest of the client request that set the schedule under an idempotency key; empty otherwise."""
    via: str = ""
    """Untrusted sources of another session whose turn set this schedule; empty if there was none."""


@attrs.frozen(kw_only=True, repr=False)
class ScheduleFiredRecord(FieldRepr):
    """Record: a schedule fired."""

    schedule_id: str
    """Id of the schedule that fired."""
    at: float
    """Unix time in seconds at which the schedule was due."""
    following: float = 0.0
    """Unix time in seconds at which the schedule fires next; 0 if it does not fire again."""
    message_id: str = ""
    """Id of the sent message; empty if no message was sent because the previous one was still queued."""


@attrs.frozen(kw_only=True, repr=False)
class ScheduleRemovedRecord(FieldRepr):
    """Record: a schedule was removed."""

    schedule_id: str
    """Id of the removed schedule."""
    withdrawn: bool = False
    """True if the schedule was removed because its caller never received a confirmation.
    The caller may set the same schedule again.
    """


@attrs.frozen(kw_only=True, repr=False)
class SessionClosedRecord(FieldRepr):
    """Record: the session was closed and accepts no more messages."""

    unused: bool = False
    """True if no caller ever received the session's id, so the id may be used again."""
    erase: bool = False
    """True if the session served a single request. The journal then erases the session and its child sessions."""


Record = (
    SessionCreatedRecord
    | MessageAcceptedRecord
    | MessageAppendedRecord
    | AgentMessageRecord
    | CallsStartedRecord
    | CallFinishedRecord
    | UsageRecord
    | DownstreamUsageRecord
    | StateChangeRecord
    | ActionFailureRecord
    | StateRollbackRecord
    | OutcomeRecord
    | DeliveryRecord
    | GuardDecisionRecord
    | TaskOutcomeRecord
    | FailureRecord
    | MessageEndRecord
    | CancellationRecord
    | RatingRecord
    | SessionAnnotatedRecord
    | NextTimerRecord
    | ApprovalRequestRecord
    | ApprovalDecisionRecord
    | SuspensionRecord
    | ResumptionRecord
    | SystemPromptRecord
    | SourceLiftRecord
    | ScheduleRecord
    | ScheduleFiredRecord
    | ScheduleRemovedRecord
    | SessionClosedRecord
)
"""Union of all record classes."""

# Tags are for ever: a new class gets a new one, and none is given twice.
DECISION_TAGS: Mapping[str, type] = {
    "approve": Approve,
    "reject": Reject,
    "edit": Edit,
    "respond": Respond,
    "expire": Expire,
    "withdraw": Withdraw,
}
"""Class of each kind of decision, by its tag in the journal."""
RECORD_TAGS: Mapping[str, type] = {
    "opened": SessionCreatedRecord,
    "accepted": MessageAcceptedRecord,
    "appended": MessageAppendedRecord,
    "said": AgentMessageRecord,
    "started": CallsStartedRecord,
    "finished": CallFinishedRecord,
    "changed": StateChangeRecord,
    "action_failed": ActionFailureRecord,
    "rolled_back": StateRollbackRecord,
    "delivered": DeliveryRecord,
    "answered": TaskOutcomeRecord,
    "ended": MessageEndRecord,
    "due": NextTimerRecord,
    "asked": ApprovalRequestRecord,
    "decided": ApprovalDecisionRecord,
    "suspended": SuspensionRecord,
    "resumed": ResumptionRecord,
    "prompted": SystemPromptRecord,
    "lifted": SourceLiftRecord,
    "scheduled": ScheduleRecord,
    "fired": ScheduleFiredRecord,
    "unscheduled": ScheduleRemovedRecord,
    "closed": SessionClosedRecord,
    "spent": UsageRecord,
    "led": DownstreamUsageRecord,
    "guarded": GuardDecisionRecord,
    "told": OutcomeRecord,
    "rated": RatingRecord,
    "annotated": SessionAnnotatedRecord,
    "unwanted": CancellationRecord,
    "failed": FailureRecord,
}
"""Record class by its tag in the journal. A tag must never change its meaning."""
RECORDS_VERSION = 0
"""Version of the tags and fields of all records. Increase it with each change of them.

A release rejects a journal with a higher version as a whole. Without the version, the release would fail at the sessions with newer
records. `tests/journal/test_record_format.py` checks the version.
"""

WIRE = TaggedCodec({Medium: MEDIA_TAGS, Part: PART_TAGS, Decision: DECISION_TAGS, Record: RECORD_TAGS})
"""Codec that encodes and decodes records."""
