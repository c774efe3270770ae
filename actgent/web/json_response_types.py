"""Types of the JSON documents in the gateway's answers and events. The OpenAPI document is generated from them.

The return type of an endpoint is `JSON[...]` with one of these types. So a type checker compares the fields that the endpoint
writes with the document that clients read. A class becomes a component of the OpenAPI document with the same name. The suffix `Document` distinguishes a class from another class of
the package; the component has no suffix.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NotRequired, TypedDict, TypeVar

import attrs

from actgent.actors.inbox import InboxStatistics
from actgent.agents.session_replay import Difference
from actgent.journal.session_list_queries import State
from actgent.limits_and_schedules.limits import SHARED, Limits
from actgent.llm.model_interface import StopReason
from actgent.messages import OnBusy, SenderKind, ToolStatus
from actgent.sessions.subscriptions import ObservedType
from actgent.toolsets.toolset_manager import ConnectionState
from actgent.web.access_tokens import Scope
from actgent.web.problem_documents import TITLES

T = TypeVar("T")


@attrs.frozen(eq=False)
class Named:
    """Annotation of a type that names its component in the OpenAPI document and adds JSON Schema keywords to it."""

    name: str
    keywords: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class Keywords:
    """Annotation of a type with JSON Schema keywords, such as bounds and examples, to add to its schema."""

    keywords: Mapping[str, Any]


ANY_JSON: Mapping[str, Any] = {
    "type": ["object", "array", "string", "number", "boolean", "null"],
    "additionalProperties": True,
}
"""JSON Schema of any JSON value. It names the types, so that client generators distinguish it from a missing schema."""
JSONValue = Annotated[
    Any, Named("JSONValue", {"description": "Any JSON value.", **ANY_JSON, "examples": [7]})
]
JSONObject = Annotated[
    dict[str, JSONValue],
    Named("JSONObject", {"description": "A JSON object with any fields.", "examples": [{}]}),
]
SessionID = Annotated[str, Keywords({"description": "Id of the session.", "examples": ["order-17"]})]
AgentName = Annotated[str, Keywords({"description": "Name of the agent.", "examples": ["support"]})]
Owner = Annotated[str, Keywords({"description": "Name of the session's owner.", "examples": ["ada"]})]
MessageID = Annotated[str, Keywords({"description": "Id of the message.", "examples": ["0197c2d6a1f4"]})]
ApprovalID = Annotated[
    str, Keywords({"description": "Id of the approval.", "examples": ["9f2c41d0.order-17"]})
]
MemoryID = Annotated[str, Keywords({"description": "Id of the memory.", "examples": ["m0f3c9a52d1b7e864"]})]
ToolName = Annotated[str, Keywords({"description": "Name of the tool.", "examples": ["refund"]})]
Date = Annotated[
    str,
    Keywords(
        {
            "description": "Time (RFC 3339, UTC).",
            "format": "date-time",
            "examples": ["2027-01-31T12:00:00.000Z"],
        }
    ),
]
Count = Annotated[int, Keywords({"minimum": 0})]
RecordNumber = Annotated[
    int, Keywords({"minimum": 0, "description": "Number of a record of the session.", "examples": [12]})
]
Amount = Annotated[float, Keywords({"minimum": 0})]
Cost = Annotated[
    float | None,
    Keywords(
        {"minimum": 0, "description": "Cost in US dollars; null if a price is unknown.", "examples": [0.0021]}
    ),
]
SessionStatus = Literal["idle", "working", "suspended", "closed", "waiting"]
MessageState = Literal["waiting", "working", "suspended", "answered", "failed"]
AnswerStop = StopReason | Literal[""]


class Problem(TypedDict):
    """Error response of the gateway (RFC 9457). The fields from `retry_after` on are only in problems of some types."""

    type: Annotated[str, Keywords({"enum": [f"/errors/{kind}" for kind in TITLES]})]
    """Kind of the error, such as `/errors/not-found`."""
    title: str
    """Short explanation of `type`, the same for each problem of the type."""
    status: Annotated[int, Keywords({"minimum": 400, "maximum": 599})]
    """HTTP status of the response."""
    detail: str
    """Explanation of this error for humans; may be empty."""
    instance: str
    """Id of the failed request, as in its `X-Request-Id` header."""
    retry_after: NotRequired[Amount]
    """Seconds after which the client can retry the request."""
    limit: NotRequired[JSONValue]
    """Limit that the request exceeded: its value, or its name."""
    value: NotRequired[Amount]
    """Value of the limit, if `limit` is its name."""
    reasons: NotRequired[Sequence[str]]
    """Reasons why the server is not ready."""
    webhook_ids: NotRequired[Sequence[str]]
    """Requested ids for which the webhook has no failed notification."""
    approval_id: NotRequired[str]
    """Id of the approval that was already decided."""
    as_asked: NotRequired[bool]
    """True if an earlier, equal request has already made this change; false if a different request has changed the object."""
    waits_for: NotRequired[Sequence["PendingApproval"]]
    """Open approvals for which the suspended session waits."""
    agent: NotRequired[str]
    """Name of the requested agent, which does not run on the server."""
    agents: NotRequired[Sequence[str]]
    """Names of the agents from which the client can choose with `agent`."""
    moved: NotRequired[Literal[True]]
    """True if another node of the cluster owns the session now."""
    may_be_done: NotRequired[Literal[True]]
    """True if the request may have taken effect although it failed."""
    broken: NotRequired[Literal[True]]
    """True if the connection to the cluster node that served the request broke."""
    replaced_by: NotRequired[str]
    """Id of the newer memory that replaces the requested one."""
    is_quarantined: NotRequired[Literal[True]]
    """True if the cluster does not run the session, because several nodes crashed while they ran it."""


class PageDocument(TypedDict, Generic[T]):
    """One page of a list, with the cursor of the next page."""

    items: Sequence[T]
    """Items on this page, in the order of the list."""
    next: str | None
    """Value of the query parameter `after` that requests the next page; null on the last page."""


# --- sessions ------------------------------------------------------------------------------


class SessionAddress(TypedDict):
    """Agent and id of a session."""

    agent: AgentName
    id: SessionID


class ChildSession(SessionAddress):
    """A session that processes a task or agent call of its parent session."""

    status: State
    """Status of the child session."""


class SessionSummaryDocument(TypedDict):
    """The fields of a session that are known without opening it."""

    id: SessionID
    agent: AgentName
    owner: Owner
    status: SessionStatus
    """Status of the session. `waiting`, only in the response for one session: it has an unfinished turn that is not active now."""
    parent: SessionAddress | None
    """Parent session, which delegated work to this session; null if a client created the session."""
    created_at: Date | None
    """Time at which the session was created."""
    updated_at: Date | None
    """Time of the last journal record of the session."""
    records: Count
    """Number of journal records of the session, which is also the number of its last record."""
    unfinished: Count
    """Number of messages that were neither answered nor failed yet."""
    tags: Annotated[Sequence[str], Keywords({"examples": [["billing"]]})]
    """Tags of the session, sorted."""
    metadata: Annotated[Mapping[str, str], Keywords({"examples": [{"ticket": "4711"}]})]
    """Metadata that clients have set on the session, by key."""


class SessionWebhook(TypedDict):
    """Webhook that a client has set for one session."""

    url: str
    """URL that receives the notifications."""
    events: Sequence[str]
    """Names of the events for which the webhook gets notifications."""
    secret: str
    """Secret with which the receiver verifies signatures. Only the response that creates the session contains it."""


class CreatedSession(SessionSummaryDocument):
    """A session that a request has created."""

    notify: NotRequired[SessionWebhook]


class OwnUsage(TypedDict):
    """Tokens and cost of a session's model calls, without those of its child sessions."""

    input_tokens: Count
    """Number of prompt tokens, including those from the provider's prompt cache."""
    output_tokens: Count
    """Number of answer tokens, including those of reasoning."""
    cached_tokens: Count
    """Number of input tokens that the provider read from its prompt cache."""
    cache_write_tokens: Count
    """Number of input tokens that the provider wrote to its prompt cache."""
    reasoning_tokens: Count
    """Number of output tokens that the model used for reasoning."""
    cost: Cost


class UsageDocument(OwnUsage):
    """Tokens and cost of model calls."""

    total: OwnUsage
    """Usage of the session and its child sessions together."""


BudgetDocument = Annotated[
    dict[str, float],
    Named(
        "Budget",
        {
            "description": "Remaining amount of each limit of a budget. Unlimited amounts are missing.",
            "properties": {
                field.name: {
                    "type": "number",
                    "description": f"Remaining amount of the limit `{field.name}`.",
                }
                for field in attrs.fields(Limits)
                if field.name in SHARED or field.name.startswith("tree_")
            },
        },
    ),
]


class SinkLabels(TypedDict):
    """Untrusted sources and permitted readers of the tool call arguments that a data-flow policy checks."""

    labels: NotRequired[Mapping[str, Sequence[str]]]
    """Names of the untrusted sources of each checked argument, by argument name; missing if the call violates no policy."""
    readers: NotRequired[Mapping[str, Sequence[str]]]
    """Names of the owners that may read the value of each checked argument, by argument name; missing if all owners may."""


class LabelFields(TypedDict):
    """Fields of a text: the untrusted sources on which it depends, and the owners that may read it."""

    sources: NotRequired[Sequence[str]]
    """Names of the untrusted sources on which the text depends; missing if it depends on none."""
    readers: NotRequired[Sequence[str]]
    """Names of the owners that may read the text; missing if all owners may."""


class ApprovalDocument(SinkLabels):
    """A tool call that waits for the decision of an approver."""

    id: ApprovalID
    session_id: SessionID
    agent: AgentName
    owner: Owner
    call_id: str
    """Id of the tool call."""
    tool: ToolName
    arguments: JSONObject
    """Arguments of the tool call."""
    question: str
    """Question for the approver; empty if the only question is whether the tool may run."""
    form: JSONObject | None
    """JSON Schema of the content that the approver fills in; null if a yes or no is enough."""
    risk: str | None
    """Risk rating: `low`, `medium`, `high` or `critical`; null if not rated."""
    again: bool
    """True if the tool runs after approval; false if the decision itself becomes the result of the call."""
    created_at: Date | None
    """Time at which the approval was requested."""
    deadline: Date | None
    """Time at which the approval expires; null if it never expires."""


class CallerCall(TypedDict):
    """A tool call that the API client executes itself. The turn waits for the result from the client."""

    id: ApprovalID
    call_id: str
    """Id of the tool call."""
    tool: ToolName
    arguments: JSONObject
    """Arguments of the tool call."""
    deadline: Date | None
    """Time at which the call expires without a result; null if it never expires."""


class ScheduleDocument(TypedDict):
    """A schedule that sends a message to its session once or repeatedly."""

    id: str
    """Id of the schedule, unique in its session."""
    input: str
    """Text of the message that the schedule sends."""
    due: Date | None
    """Time at which the schedule fires next; null if that time is unknown."""
    cron: str | None
    """Cron expression; null for a schedule that fires once."""
    zone: Annotated[str, Keywords({"examples": ["Europe/Berlin"]})]
    """IANA time zone of the cron expression."""
    priority: str
    """Priority of the message: `urgent`, `high`, `normal` or `low`."""
    metadata: JSONObject
    """Metadata of the message, for programs."""


class SessionSchedule(ScheduleDocument):
    """A schedule with agent and id of its session."""

    agent: AgentName
    session_id: SessionID


class TurnDocument(TypedDict):
    """A turn of a session."""

    message_id: MessageID


class SessionDocument(SessionSummaryDocument):
    """A session. The fields from `description` on are missing if the session is closed, or if its agent does not run."""

    children: Sequence[ChildSession]
    """Child sessions, which work for this session."""
    description: NotRequired[str]
    """Description of the session; empty if it has none."""
    sources: NotRequired[Sequence[str]]
    """Names of the untrusted sources that have influenced the conversation."""
    readers: NotRequired[Sequence[str]]
    """Names of the owners that may read the conversation; missing if all owners may."""
    withheld: NotRequired["LabelFields"]
    """Label of text that only records and approvals contain: results that isolation withholds, and approvals of child sessions."""
    shown: NotRequired["LabelFields"]
    """Label of the values of withheld results that the model has read, within the budget of its policy (`Policy(bits=)`)."""
    mode: NotRequired[str | None]
    """Name of the session's current mode; null if its agent has no modes."""
    on_busy: NotRequired[str | None]
    """Handling of messages that arrive while a turn of the session runs; null for the agent's default."""
    usage: NotRequired[UsageDocument]
    budget: NotRequired[BudgetDocument | None]
    """Remaining budget of the session; null if the session has no limits."""
    approvals: NotRequired[Sequence[ApprovalDocument]]
    """Open approvals of the session and its child sessions."""
    schedules: NotRequired[Sequence[ScheduleDocument]]
    """Schedules of the session, ordered by the time at which they fire next."""
    turn: NotRequired[TurnDocument | None]
    """The unfinished turn of the session; null if no turn is unfinished."""
    waiting: NotRequired[Sequence["MessageDocument"]]
    """The first queued messages of the session, at most 100."""


class SessionMode(TypedDict):
    """Mode of a session."""

    mode: Annotated[str, Keywords({"examples": ["plan"]})]
    """Name of the session's current mode."""


class TaskDocument(TypedDict):
    """A task that a session has delegated to another agent."""

    id: str
    """Id of the task."""
    agent: AgentName
    session_id: SessionID
    status: str
    """Status of the child session that works on the task."""


class DelegatedTask(TypedDict):
    """A delegated task that the gateway has accepted."""

    id: str
    """Id of the task."""
    agent: AgentName


# --- messages ------------------------------------------------------------------------------


class TextPart(TypedDict):
    """Text in a message."""

    type: Literal["text"]
    text: str


class _MediumFields(TypedDict):
    media_type: Annotated[str, Keywords({"examples": ["image/png"]})]
    """Media type of the picture or file, such as `image/png`."""
    url: str | None
    """URL of the picture or file; null if the message contained its bytes."""
    bytes: NotRequired[Count]
    """Size of the picture or file in bytes; missing if it has a `url`."""
    media_id: NotRequired[str | None]
    """Id with which `GET /v1/sessions/{id}/media/{media_id}` downloads the bytes; null if they cannot be downloaded."""


class ImagePart(_MediumFields):
    """A picture in a message or tool result."""

    type: Literal["image"]


class FilePart(_MediumFields):
    """A file in a message or tool result."""

    type: Literal["file"]
    name: str
    """Name of the file."""


class ToolCallDocument(TypedDict):
    """A tool call that the model requested."""

    id: str
    """Id of the tool call."""
    name: ToolName
    arguments: JSONValue
    """Arguments of the tool call; a text if the model wrote invalid JSON."""


class CallPart(ToolCallDocument):
    """A tool call in a message."""

    type: Literal["call"]


class ToolResultDocument(LabelFields):
    """Result of a tool call."""

    id: str
    """Id of the tool result."""
    call_id: str
    """Id of the tool call with this result."""
    tool: ToolName
    status: ToolStatus
    """Status of the tool call. `outcome_unknown`: the call may or may not have taken effect."""
    content: str
    """Value that the tool returned: a text unchanged, other values as JSON."""
    truncated: bool
    """True if `content` or `error` is only the beginning of a longer text."""
    error: str | None
    """Error text of the tool call; null if the call succeeded."""
    origin: str | None
    """Name of the toolset or tool from which the content comes, if it is untrusted external text; null for trusted text."""
    media: Sequence[ImagePart | FilePart]
    """Pictures and files that the tool returned."""
    started_at: Date | None
    """Time at which the tool started; null if it did not run to its end."""
    ended_at: Date | None
    """Time at which the tool ended; null if it did not run to its end."""


class ResultPart(ToolResultDocument):
    """A tool result in a message."""

    type: Literal["result"]


Part = Annotated[
    TextPart | ImagePart | FilePart | CallPart | ResultPart,
    Named("Part", {"description": "A part of a message.", "discriminator": {"propertyName": "type"}}),
]


class SenderDocument(TypedDict):
    """Sender of a message: a user, agent or tool."""

    name: Annotated[str, Keywords({"examples": ["ada"]})]
    """Name of the sender."""
    kind: SenderKind
    """Kind of the sender, such as `user` or `agent`."""


class MessageDocument(LabelFields):
    """A message of a session."""

    message_id: MessageID
    sender: SenderDocument
    text: str
    """Text of the message: its text parts, joined."""
    parts: Sequence[Part]
    """Parts of the message, without thinking and provider-specific blocks."""
    metadata: JSONObject
    """Metadata of the message for programs; models never see it."""
    priority: str
    """Priority of the message: `urgent`, `high`, `normal` or `low`."""
    on_busy: OnBusy
    """Handling of the message if a turn of its session was running when it arrived."""


class HistoryMessage(MessageDocument):
    """A message in the conversation history of a session."""

    turn: str | None
    """Id of the message that started the turn in which this message was added; null outside of turns."""
    at: Date | None
    """Time at which the message was added; null if unknown."""


class MessagePageDocument(TypedDict):
    """One page of the conversation history of a session."""

    items: Sequence[HistoryMessage]
    """Messages on this page, oldest first."""
    first: int | None
    """Index of the first message of the page; null for an empty page."""
    last: int | None
    """Index of the last message of the page; null for an empty page."""
    total: Count
    """Number of messages in the whole history of the session."""


ErrorDescription = TypedDict(
    "ErrorDescription",
    {
        "class": Annotated[
            str, Keywords({"description": "Name of the exception class.", "examples": ["LimitReached"]})
        ],
        "text": Annotated[
            str, Keywords({"description": "Text of the error; empty for exceptions of user code."})
        ],
    },
)
FailureKind = Annotated[
    str | None,
    Keywords(
        {
            "description": "Kind of the failure, such as `limit`; null if the message was answered.",
            "examples": [None],
        }
    ),
]


class MessageOutcome(LabelFields):
    """Outcome of a message: the last reply to it, or its failure."""

    id: str | None
    """Id of the last reply; null if there was no reply."""
    text: str | None
    """Text of the last reply; null if there was no text."""
    data: JSONValue
    """Structured data of the last reply; null without data."""
    message_type: str | None
    """Reply type, as defined by the agent's protocol; null if the protocol has no reply types."""
    reasoning: JSONValue
    """Explanation that the agent's protocol makes the model write with its reply; null without one."""
    usage: UsageDocument
    failed: FailureKind
    error: ErrorDescription | None
    """Error of a failed message; null if the message was answered."""


class PendingApproval(TypedDict):
    """An open approval for which a suspended turn waits."""

    id: ApprovalID
    tool: str
    """Name of the tool whose call needs the approval; empty if unknown."""


class PendingCallerCall(CallerCall):
    """A tool call that the API client must execute itself, and for whose result a suspended turn waits."""

    for_caller: Literal[True]


class RunDocument(TypedDict):
    """A run: the processing of one message. Its id is the id of the message."""

    message_id: MessageID
    session_id: SessionID
    agent: AgentName
    created_at: Date | None
    """Time at which the message was sent; null in the answer to a new message."""
    status: MessageState
    """Status of the run. `answered` and `failed` runs have ended."""
    cursor: RecordNumber
    """Record number to pass as `after` to read the events of the run."""
    waits_for: Sequence[PendingApproval | PendingCallerCall]
    """Approvals and client-executed tool calls for which the run waits; empty unless `status` is `suspended`."""
    outcome: MessageOutcome | None
    """Outcome of the message; null until the run has ended."""


class Feedback(TypedDict):
    """A user's rating of the answer to a message."""

    message_id: MessageID
    score: Annotated[float, Keywords({"minimum": 0, "maximum": 1, "examples": [1]})]
    """Score of the answer from 0 (bad) to 1 (good)."""
    comment: str
    """Comment of the rater on the answer; may be empty."""
    expected: str | None
    """Answer that the rater would have expected; null if the rater gave none."""
    by: Annotated[str, Keywords({"examples": ["ada"]})]
    """Name of the rater."""
    at: Date | None
    """Time of the rating."""


# --- agents and operation ------------------------------------------------------------------


class ToolDocument(TypedDict):
    """A tool of an agent."""

    name: ToolName
    description: str
    """Description of the tool, which the model reads."""
    parameters: JSONObject
    """JSON Schema of the tool's arguments."""


class AgentLink(TypedDict):
    """An agent that another agent calls as a tool, hands conversations over to, routes to, or runs as a step."""

    agent: AgentName
    kind: Literal["tool", "handoff", "route", "step"]
    """Kind of use: called as a tool, handoff target, route target, or pipeline step."""
    name: str
    """Name of the tool, action or pipeline step that leads to the other agent."""


class AgentDocument(TypedDict):
    """A running agent."""

    name: AgentName
    role: str
    """Role of the agent in its profile, such as `clerk`."""
    goal: str
    """Goal of the agent in its profile."""
    capabilities: str
    """Abilities of the agent in its profile."""
    modes: Sequence[str] | None
    """Names of the agent's modes; null if it has no modes."""
    models: Mapping[str, str]
    """Names of the agent's models (`provider:model`) by role; `default` is the model of `llm=`."""
    tools: Sequence[ToolDocument]
    """Tools that the agent can call."""
    links: Sequence[AgentLink]
    """Other agents that this agent calls, hands conversations over to, routes to, or runs as steps."""
    limits: Limits
    inbox: InboxStatistics
    sessions: Count
    """Number of sessions of the agent in memory."""
    has_long_term_memory: bool
    """True if the agent has a long-term memory, which `/agents/{a}/memories` lists."""


class MemoryDocument(TypedDict):
    """One version of a long-term memory of an owner."""

    id: MemoryID
    text: str
    """Text of the memory."""
    kind: Annotated[str, Keywords({"examples": ["fact"]})]
    """Kind of the memory: `fact`, `episode`, `procedure`, or any other word."""
    owner: Annotated[str, Keywords({"examples": ["ada"]})]
    """Name of the owner of the memory."""
    owner_kind: SenderKind
    """Kind of the memory's owner. A user and an agent of the same name are different owners."""
    sources: Sequence[str]
    """Untrusted sources on which the text depends, such as `web`; empty if it is trusted."""
    readers: Sequence[str] | None
    """Names of the owners that may read the text; null allows all owners."""
    importance: Annotated[float, Keywords({"minimum": 0, "maximum": 1})]
    """Importance from 0 to 1, used for ranking and eviction."""
    is_kept: bool
    """True if the memory is protected from eviction."""
    is_shared: bool
    """True if sessions of all owners can recall the memory."""
    agent: str
    """Name of the agent that stored the memory; empty if a program stored it."""
    session_id: str
    """Id of the session that the memory comes from; empty if unknown."""
    message_id: str
    """Id of the message that the memory comes from; empty if unknown."""
    created_at: Date | None
    """Time at which this version was stored; null if the clock was far off."""
    last_used_at: Date | None
    """Time at which the memory was last recalled; its creation time if it was never recalled."""
    uses: Count
    """Number of times that the memory was recalled."""
    valid_from: Date | None
    """Time from which the memory is valid; null sets no start."""
    valid_until: Date | None
    """Time from which the memory is no longer valid; null sets no end."""
    metadata: JSONObject
    """Metadata of the memory for programs, by name."""
    replaces: str | None
    """Id of the memory that this one replaces; null if it is the first version."""
    replaced_by: str | None
    """Id of the memory that replaces this one; null if it is current."""


class MemoryLink(TypedDict):
    """A link between two memories, as seen from one of them."""

    id: MemoryID
    relation: Annotated[str, Keywords({"examples": ["related_to"]})]
    """Name of the relation between the two memories, such as `related_to`."""
    is_from_here: bool
    """True if the link points from this memory to the other memory; false for the opposite direction."""


class MemoryVersions(TypedDict):
    """All versions of a long-term memory, and its links to other memories."""

    versions: Sequence[MemoryDocument]
    """Versions of the memory, the oldest first."""
    links: Sequence[MemoryLink]
    """Links between this memory and other current memories."""


class MemoryOwner(TypedDict):
    """An owner of long-term memories."""

    owner: Annotated[str, Keywords({"examples": ["ada"]})]
    """Name of the owner."""
    owner_kind: SenderKind
    memories: Count
    """Number of the owner's memories, without replaced versions."""


class Erasure(TypedDict):
    """Numbers of memories and sessions of an owner that a request erased."""

    memories: Count
    """Number of erased memories; replaced versions count too."""
    sessions: Count
    """Number of erased root sessions; their child sessions are also erased but not counted."""


class AgentStatisticsDocument(TypedDict):
    """Queue lengths, limits and counts of an agent, for the sessions that the caller may access."""

    agent: AgentName
    inbox: InboxStatistics
    capacity: Count
    """Maximum number of messages in the agent's inbox."""
    session_capacity: Count
    """Maximum number of messages of one session in the agent's inbox."""
    concurrency: Count
    """Maximum number of sessions that the agent processes concurrently."""
    sessions: Count
    """Number of sessions of the agent in memory."""
    suspended: Count
    """Number of sessions in memory that wait for approvals."""
    restarts: Count
    """Number of times that the agent was restarted after a failure."""
    state: str
    """State of the agent: `starting`, `running`, `failed` (about to restart), `draining` or `stopped`."""


class AgentTotals(AgentStatisticsDocument):
    """Statistics of an agent. If the request has `totals`, they also count the turns before a restart of the server."""

    turns: NotRequired[Count]
    """Number of turns of the agent that have ended."""
    spent_usd: NotRequired[Amount]
    """Cost of the agent's model calls in US dollars."""


class Statistics(TypedDict):
    """Statistics of the agents and, for admins, of the server."""

    agents: dict[str, AgentTotals]
    """Statistics of each agent, by agent name."""
    sessions: NotRequired[dict[State, Count]]
    """Number of sessions in the journal by state; only for admins."""
    dead_letters: NotRequired[Count]
    """Number of dead letters; only for admins."""
    node: NotRequired[str]
    """Name of the cluster node that sent the response; only for admins, and only in a cluster."""


class Liveness(TypedDict):
    """Answer of the liveness probe."""

    status: Literal["live"]
    calm_seconds: NotRequired[Amount]
    """Seconds since the server started, or since it last noticed the death of a node; only in a cluster."""


class Readiness(TypedDict):
    """Answer of the readiness probe."""

    status: Literal["ready"]


class LateDelivery(TypedDict):
    """A webhook notification whose delivery failed and is retried."""

    agent: AgentName
    session_id: SessionID
    attempts: Count
    """Number of failed delivery attempts so far."""


class FailedDelivery(TypedDict):
    """A webhook notification that could not be delivered and is not retried any more."""

    webhook_id: str
    """Id of the notification, its `webhook-id` header."""
    event: Annotated[str, Keywords({"examples": ["reply"]})]
    """Name of the event that the notification reports."""
    agent: AgentName
    session_id: SessionID
    number: RecordNumber
    reason: str
    """Reason why the last delivery attempt failed."""
    at: Date | None
    """Time of the event that the notification reports."""


class WebhookDocument(TypedDict):
    """A webhook with the state of its deliveries."""

    id: str
    """Id of the webhook."""
    url: str | None
    """URL of the receiver without its query; null if the webhook sends to the URL that each session has set."""
    events: Sequence[str]
    """Names of the events for which the webhook sends notifications."""

    sent: Count
    """Number of notifications that were delivered since the gateway opened."""
    waiting: Count
    """Number of sessions with notifications that were not delivered yet."""
    late: Sequence[LateDelivery]
    """Deliveries that failed and are retried, at most one for each session."""
    failed: Sequence[FailedDelivery]
    """Notifications that could not be delivered and are not retried any more."""


class NodeDocument(TypedDict):
    """A live node of a cluster."""

    name: str
    address: Annotated[str, Keywords({"examples": ["http://10.0.0.7:8301"]})]
    """URL at which other nodes reach the node."""
    agents: Sequence[AgentName]
    """Names of the agents that the node hosts."""
    release: Annotated[str, Keywords({"examples": ["0.1.0"]})]
    """Version of actgent that runs on the node."""
    reads: Count
    """Newest journal record format that the node can read."""
    is_leaving: bool
    """True if the node is shutting down and transferring its partitions to other nodes."""
    partitions: Count
    """Number of partitions that the node owns."""


class PartitionDocument(TypedDict):
    """A partition of a cluster: a subset of the session ids, whose sessions are owned by one node."""

    partition: Count
    """Number of the partition."""
    owner: str
    """Name of the node that last acquired ownership of the partition; empty if no node ever did."""
    epoch: Count
    """Ownership epoch of the partition; it increases each time a node acquires the partition."""
    since: Date | None
    """Time at which a node last acquired the partition; null if no node ever did."""
    is_served: bool
    """True if the owner is alive and has not released the partition."""
    pending: Count
    """Number of messages that are stored until a node owns the partition."""
    unfinished: Count
    """Number of sessions of the partition with an unfinished turn or queued messages."""
    lag: Amount
    """Longest time in seconds since the last record of an unfinished session; 0 without such sessions."""


class ClusterDocument(TypedDict):
    """Status of a cluster, as `actgent cluster status` prints it."""

    is_whole: bool
    """True if a node is alive, every partition is served, and live nodes host the agents of all open sessions."""
    generation: Count
    """Generation of the partitioning: 1, plus 1 for each change of the number of partitions."""
    record_format: Count
    """Journal record format that all nodes write."""
    nodes: Sequence[NodeDocument]
    partitions: Sequence[PartitionDocument]
    unhosted: dict[str, Count]
    """Number of open sessions of each agent that no live node hosts, by agent name."""
    suspects: Count
    """Number of sessions that were unfinished when their node died and have not finished since."""
    dead: Count
    """Number of dead-lettered messages and requests."""


class ToolsetDocument(TypedDict):
    """A toolset with a connection, such as an MCP server."""

    name: Annotated[str, Keywords({"examples": ["github"]})]
    agents: Sequence[AgentName]
    """Names of the agents with tools of the toolset."""
    state: ConnectionState
    """State of the connection to the server. `failed`: the configuration is wrong, and no reconnection is attempted."""
    kind: Annotated[str, Keywords({"examples": ["mcp"]})]
    """Kind of the toolset's server: `mcp`; empty for other toolsets."""
    address: Annotated[str, Keywords({"examples": ["https://mcp.example.com"]})]
    """Server of the toolset: program name, or scheme, host and port of its URL; empty if unknown."""
    protocol: Annotated[str, Keywords({"examples": ["2026-07-28"]})]
    """MCP protocol revision of the open connection; empty without a connection."""
    server: str
    """Name and version that the server reports; empty if it is not connected."""
    tools: Sequence[ToolDocument]
    """Tools that the server published last."""
    reconnects: Count
    """Number of times that the toolset has reconnected to its server."""
    error: Annotated[str, Keywords({"examples": ["ConnectError"]})]
    """Class name of the last connection error, or `silent` if the server did not respond in time; empty without an error."""
    error_text: str
    """Message of the last error, with secrets removed; empty if the toolset does not declare which values are secret."""
    failed_at: Date | None
    """Time of the last connection error; null without an error."""


class ClusterAnswer(TypedDict):
    """Response with the status of the server's cluster."""

    cluster: ClusterDocument | None
    """Status of the cluster; null if the server is not a cluster node."""


class DeadLetterDocument(TypedDict):
    """A message that no agent or actor processed."""

    id: str
    """Id of the dead letter."""
    actor: str
    """Name of the agent or actor to which the message was sent."""
    session_id: SessionID | None
    """Id of the session to which the message was sent; null for a value that was sent to an actor."""
    owner: str | None
    """Name of the session's owner; null if the session was made for this message only, or is unknown."""
    text: str
    """Text of the message, or the sent value as text."""
    reason: str
    """Reason why the message was not processed."""
    error: Annotated[str, Keywords({"examples": ["NotRunning"]})]
    """Class name of the exception that processing raised; empty if processing was not attempted."""
    at: Date | None
    """Time at which the message became a dead letter."""


class ErrorGroup(TypedDict):
    """Group of the errors of one failure kind and exception class, such as all tool errors with `TimeoutError`."""

    cause: NotRequired[str]
    """Message of the exception that caused the newest error; only for callers with the scope `journal`, empty without a cause."""
    kind: Annotated[str, Keywords({"examples": ["limit"]})]
    """Kind of failed messages, such as `limit`; `tool` for failed tool calls; `dead letter` for dead letters."""
    error: str
    """Exception class name of the errors in the group."""
    text: str
    """Message of the newest error in the group."""
    count: Count
    """Number of errors in the group."""
    first_at: Date | None
    """Time of the first error in the group."""
    last_at: Date | None
    """Time of the newest error in the group."""
    agents: Sequence[str]
    """Names of the agents with these errors, the latest first."""
    tools: Sequence[str]
    """Names of the tools with these errors, the latest first."""
    sessions: Sequence[SessionAddress]
    """Sessions with these errors, the latest first."""


class LoginToken(TypedDict):
    """Token of a browser login."""

    token: str
    """The new access token."""
    owner: Owner
    expires_at: Date | None
    """Time at which the token expires."""


class Identity(TypedDict):
    """Identity of the caller."""

    name: Annotated[str, Keywords({"examples": ["ada-laptop"]})]
    """Name of the token."""
    owner: Owner
    scopes: Sequence[Scope]
    """Scopes of the token."""
    expires_at: Date | None
    """Time at which the token expires; null if it does not expire."""


class FoundMessage(TypedDict):
    """A message that matches a search, with statistics of its session."""

    agent: AgentName
    session_id: SessionID
    owner: Owner
    message_id: MessageID
    record: Count
    """Number of the journal record that has the message."""
    role: Literal["user", "assistant"]
    """`assistant` for an answer, `user` for all other messages."""
    at: Date | None
    """Time of the message."""
    snippet: str
    """Part of the message text that contains the first match."""
    marks: Sequence[Sequence[Count]]
    """Pairs of start and end index, in characters, of the matches in `snippet`."""
    cost: Amount
    """Cost of the session in US dollars."""
    seconds: Amount
    """Duration of all turns of the session together, in seconds."""
    turns: Count
    """Number of turns of the session."""
    errors: Count
    """Number of failed turns of the session."""


class FoundPage(TypedDict):
    """Messages that match a search, the newest first."""

    items: Sequence[FoundMessage]
    next: str | None
    """Value of `after` for the next page; null on the last page."""
    is_complete: bool
    """False while the index is being built, so that older messages may be missing."""


# --- datasets of evaluations ---------------------------------------------------------------


DatasetName = Annotated[str, Keywords({"description": "Name of the dataset.", "examples": ["support"]})]
EvaluationID = Annotated[
    str, Keywords({"description": "Id of the evaluation.", "examples": ["20261127T090000.000000Z-1a2b"]})
]


class VariantFigures(TypedDict):
    """Metrics of one variant (agent, model or prompt) in an evaluation, over all runs of all cases."""

    name: str
    """Name of the variant, such as the model's name."""
    trials: Count
    """Number of runs over all cases."""
    passed: Count
    """Number of runs that passed all checks."""
    errors: Count
    """Number of runs that failed without an answer."""
    score: Amount
    """Mean score of all runs of the variant, from 0 to 1."""
    cost: Amount | None
    """Cost of all runs in US dollars; null if a model's price is unknown."""
    p50: Amount
    """Median duration of the variant's runs in seconds."""
    p95: Amount
    """95th percentile of the duration of the variant's runs in seconds."""


class EvaluationSummary(TypedDict):
    """One evaluation of a dataset, with the metrics of its variants."""

    id: EvaluationID
    at: Date | None
    """Time at which the evaluation ended."""
    variants: Sequence[VariantFigures]
    """Metrics of each variant in the evaluation."""


class DatasetDocument(TypedDict):
    """A dataset: a file of cases, with the history of its evaluations."""

    name: DatasetName
    cases: Count
    """Number of cases in the dataset."""
    changed_at: Date | None
    """Time at which the dataset's file was last changed."""
    evaluations: Count
    """Number of stored evaluations of the dataset."""
    last: EvaluationSummary | None
    """The latest evaluation of the dataset; null if it was never evaluated."""


class DatasetPage(TypedDict):
    """Page with all datasets of the server, ordered by name."""

    items: Sequence[DatasetDocument]
    next: str | None
    """Always null: the page has all datasets."""
    is_enabled: bool
    """False if the server was started without datasets."""


class DatasetCase(TypedDict):
    """One evaluation case of a dataset."""

    name: str
    """Name of the case, or the beginning of its input."""
    version: str
    """Digest of the case, which changes with each edit. An edit names the version that it replaces."""
    case: JSONObject
    """The case as `actgent eval` reads it: input, expected answer and checks."""


class CaseFigures(TypedDict):
    """Metrics of the runs of one evaluation case with one variant."""

    trials: Count
    """Number of runs of the case."""
    passed: Count
    """Number of runs of the case that passed all checks."""
    score: Amount
    """Mean score of the runs of the case, from 0 to 1."""


class EvaluatedRun(TypedDict):
    """One run of a case in an evaluation."""

    passed: bool
    """True if the run passed all checks."""
    text: str
    """Text of the agent's last answer."""
    error: str
    """Text of the error that prevented an answer; empty if the run has an answer."""
    failures: Sequence[str]
    """Descriptions of the failed checks, with the reasons."""
    calls: Sequence[str]
    """Names of the tools that the agent called, in order."""
    seconds: Amount
    """Duration of the run in seconds."""


class EvaluatedCase(TypedDict):
    """Result of one evaluation case with one variant."""

    name: str
    """Name of the case."""
    variant: str
    """Name of the tested variant of the agent, for example of a model."""
    input: Sequence[str]
    """Messages that the case sends to the agent, in order."""
    expected: JSONValue
    """Expected answer of the case; null if any answer may pass."""
    figures: CaseFigures
    before: CaseFigures | None
    """Metrics of this case and variant in the previous evaluation; null if it did not contain them."""
    runs: Sequence[EvaluatedRun]
    """The runs of the case with this variant."""


class Evaluation(TypedDict):
    """Results of an evaluation of a dataset, compared with the previous evaluation."""

    summary: EvaluationSummary
    before: EvaluationSummary | None
    """The previous evaluation of the dataset; null for the first one."""
    items: Sequence[EvaluatedCase]
    """One result for each case and variant."""
    removed: Sequence[str]
    """Names of the cases that only the previous evaluation has."""


# --- records and replays -------------------------------------------------------------------


class JournalRecord(TypedDict):
    """A journal record of a session, with its number and time."""

    number: RecordNumber
    at: Date | None
    """Time at which the record was written."""
    record: Annotated[
        dict[str, Any],
        Named(
            "RecordFields",
            {
                "description": "Fields of the record in the journal's format. `type` is the tag of the record.",
                "properties": {"type": {"type": "string", "examples": ["accepted"]}},
                "required": ["type"],
                "additionalProperties": True,
            },
        ),
    ]


class RecordPage(TypedDict):
    """One page of the journal records of a session."""

    items: Sequence[JournalRecord]
    next: int | None
    """Value of `after` for the next page; null on the last page."""


class SessionState(TypedDict):
    """State of a session as it was after a journal record."""

    number: RecordNumber
    state: JSONObject
    """Values of the session state, by key."""


class PastSessionDocument(SessionState):
    """A session as it was after a journal record."""

    history: Sequence[MessageDocument]
    """Messages of the conversation at that time."""
    waiting: Sequence[MessageDocument]
    """Messages that were queued at that time."""
    usage: UsageDocument
    digest: str
    """Hash of `history` and `state`, with which clients can compare two sessions."""


class Comparison(TypedDict):
    """Result of replaying a session with the current code of its agent."""

    number: RecordNumber
    difference: Difference | None
    """First difference between the recorded session and the replay; null if both are equal."""


class RequestMessage(TypedDict):
    """A message of a model request."""

    role: str
    """Role of the message in the model request, such as `user`."""
    parts: Sequence[Part]


class RequestTool(TypedDict):
    """A tool of a model request."""

    name: ToolName
    description: str
    """Description of the tool, which the model reads."""
    parameters: JSONObject
    """JSON Schema of the tool's arguments."""


class RequestFormat(TypedDict):
    """Required format of a model's answer, as a named JSON Schema."""

    name: str
    """Name of the JSON Schema in the model request."""
    schema: JSONObject
    """JSON Schema that the text of the answer must match."""


class RequestSettings(TypedDict):
    """Settings of a model request. Null in a field uses the default of the model."""

    temperature: float | None
    max_tokens: int | None
    """Maximum number of tokens in the answer; null uses the default of the model."""
    response_format: RequestFormat | None
    """Required format of the answer; null for any text."""


class ModelRequestDocument(TypedDict):
    """A model request as the current code of the agent would send it."""

    answer: RecordNumber
    system: str
    """System prompt of the request."""
    messages: Sequence[RequestMessage]
    tools: Sequence[RequestTool]
    settings: RequestSettings
    tokens: Count
    """Estimated number of input tokens of the request."""
    of_messages: Count
    """Number of messages in the conversation at the time of the request; the request may contain fewer."""
    memory: str
    """Name of the conversation memory that selected the messages for the request."""
    is_same_prompt: bool
    """True if system prompt and tools equal those of the recorded request; false if they have changed since."""


class NextRequest(TypedDict):
    """Model request that belongs to the first model answer at or after a journal record."""

    number: RecordNumber
    request: ModelRequestDocument | None
    """The model request; null if no model answer follows."""


# --- events --------------------------------------------------------------------------------


class Resync(TypedDict):
    """Event: events were lost, or an older backup of the journal was restored. The client must read the sessions again."""

    records: NotRequired[Count]
    """Number of journal records of the session; only in a stream of one session."""


class Nothing(TypedDict):
    """Data of an event without fields."""


E = TypeVar("E")
D = TypeVar("D")


class StreamEventDocument(TypedDict, Generic[E, D]):
    """An event of a stream: the fields `event` and `data` of the server-sent event."""

    event: E
    data: D


class ObservationDocument(TypedDict):
    """An observation of a turn (plan, thought, tool call, answer, error) to display to users."""

    id: str
    """Id of the observation."""
    type: ObservedType
    title: str
    """Short description of the observation, for display in a list."""
    number: RecordNumber
    at: Date | None
    """Time at which the journal record of the observation was written."""
    turn: str
    """Id of the message that started the turn to which the observation belongs."""
    parent: str
    """Id of the parent observation: the tool call of a tool result, otherwise the turn."""
    content: JSONValue
    """Text or data of the observation."""
    metadata: JSONObject
    """Further data of the observation, by name."""
    is_whole: bool
    """False for a partial observation, which the next observation with the same id replaces."""


class ObservationPage(TypedDict):
    """One page of the observations of a session."""

    items: Sequence[ObservationDocument]
    next: int | None
    """Value of `after` for the next page; null on the last page."""


ObservationEvent = Annotated[
    StreamEventDocument[Literal["observation"], ObservationDocument]
    | StreamEventDocument[Literal["end"], Nothing]
    | StreamEventDocument[Literal["lagged"], Nothing]
    | StreamEventDocument[Literal["bye"], Nothing],
    Named(
        "ObservationEvent",
        {"description": "An event of a stream of observations.", "discriminator": {"propertyName": "event"}},
    ),
]


class _ChangeFields(TypedDict):
    agent: AgentName
    session_id: SessionID
    at: Date | None
    """Time at which the journal record of the change was written."""


class ChangedApproval(_ChangeFields, ApprovalDocument):
    """Event of the change stream: an approval was requested in a session."""


class ChangedDecision(_ChangeFields):
    """Event of the change stream: an approval was decided in a session."""

    id: ApprovalID
    word: str
    """Kind of the decision: `approved`, `rejected`, `edited`, `responded`, `expired` or `withdrawn`."""
    by: Annotated[str, Keywords({"examples": ["ada"]})]
    """Name of the approver; empty if the approval expired or was withdrawn."""


class ChangedMessage(_ChangeFields):
    """Event of the change stream: a message of a session failed."""

    message_id: MessageID
    failed: FailureKind
    error: ErrorDescription | None
    """Error with which the message failed; null if the error is not known."""


ChangeEvent = Annotated[
    StreamEventDocument[Literal["head"], SessionSummaryDocument]
    | StreamEventDocument[Literal["agent"], AgentStatisticsDocument]
    | StreamEventDocument[Literal["approval"], ChangedApproval]
    | StreamEventDocument[Literal["decision"], ChangedDecision]
    | StreamEventDocument[Literal["error"], ChangedMessage]
    | StreamEventDocument[Literal["resync"], Resync]
    | StreamEventDocument[Literal["bye"], Nothing],
    Named(
        "ChangeEvent",
        {
            "description": "A change in a session that the caller may access.",
            "discriminator": {"propertyName": "event"},
        },
    ),
]
