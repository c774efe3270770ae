"""Types of the JSON documents in the gateway's answers and events. The OpenAPI document is generated from them.

Handlers return `JSON[documents.Session]` and the like, so a type checker compares the fields that they write with the document
that clients read. A class becomes a component of the same name. The suffix `Document` distinguishes a class from another class of
the package; the component has no suffix.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NotRequired, TypedDict, TypeVar, get_args

import attrs

from actgent.actors.inbox import InboxStatistics
from actgent.agents.session_replay import Difference
from actgent.journal.session_list_queries import State
from actgent.limits_and_schedules.limits import Limits
from actgent.llm.model_interface import StopReason
from actgent.messages import OnBusy, SenderKind, ToolStatus
from actgent.sessions.subscriptions import ObservedType
from actgent.toolsets.toolset_manager import ConnectionState
from actgent.web.access_tokens import Scope
from actgent.web.problem_documents import TITLES

T = TypeVar("T")


@attrs.frozen(eq=False)
class Named:
    """Annotation of a type: the name of its component in the OpenAPI document, and keywords to add to its schema."""

    name: str
    keywords: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class Keywords:
    """Annotation of a type: JSON Schema keywords to add to its schema, such as bounds and examples."""

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
    """An error (RFC 9457). The fields from `retry_after` on belong to some types."""

    type: Annotated[str, Keywords({"enum": [f"/errors/{kind}" for kind in TITLES]})]
    """Type of the problem."""
    title: str
    """Meaning of the type."""
    status: Annotated[int, Keywords({"minimum": 400, "maximum": 599})]
    """HTTP status."""
    detail: str
    """Explanation of this occurrence; may be empty."""
    instance: str
    """Id of the request."""
    retry_after: NotRequired[Amount]
    """Seconds after which the request can be sent again."""
    limit: NotRequired[JSONValue]
    """Limit that was exceeded: a number, or its name."""
    value: NotRequired[Amount]
    """Value of the limit that `limit` names."""
    reasons: NotRequired[Sequence[str]]
    """Reasons why the server is not ready."""
    webhook_ids: NotRequired[Sequence[str]]
    """Ids of notifications that do not exist."""
    approval_id: NotRequired[str]
    """Id of the decided approval."""
    as_asked: NotRequired[bool]
    """True if the object already is in the requested state by an equal request; false by another request."""
    waits_for: NotRequired[Sequence["PendingApproval"]]
    """Approvals for which the session waits."""
    agent: NotRequired[str]
    """Name of the agent that does not run."""
    agents: NotRequired[Sequence[str]]
    """Names of the agents to choose from."""
    moved: NotRequired[Literal[True]]
    """Another node of the cluster serves the session."""
    may_be_done: NotRequired[Literal[True]]
    """The request may have had its effect."""
    broken: NotRequired[Literal[True]]
    """The connection to a node of the cluster broke."""
    replaced_by: NotRequired[str]
    """Id of the memory that replaces the one of the request."""
    held: NotRequired[Literal[True]]
    """A node of the cluster holds the session back after crashes."""


class PageDocument(TypedDict, Generic[T]):
    """One page of a list."""

    items: Sequence[T]
    """The items of the page."""
    next: str | None
    """Value of `after` for the next page; null on the last page."""


# --- sessions ------------------------------------------------------------------------------


class SessionAddress(TypedDict):
    """Agent and id of a session."""

    agent: AgentName
    id: SessionID


class ChildSession(SessionAddress):
    """A session that works for another session."""

    status: State
    """Status of the child session."""


class SessionSummaryDocument(TypedDict):
    """The fields of a session that are known without opening it."""

    id: SessionID
    agent: AgentName
    owner: Owner
    status: SessionStatus
    """Status of the session; `waiting`, only in the answer about one session: a turn is unfinished, but not active in this process."""
    parent: SessionAddress | None
    """Session that this session works for; null for a session of a client."""
    created_at: Date | None
    """Time at which the session was created."""
    updated_at: Date | None
    """Time of the last record."""
    records: Count
    """Number of records, which is the number of the last record."""
    unfinished: Count
    """Number of messages without an outcome."""
    tags: Annotated[Sequence[str], Keywords({"examples": [["billing"]]})]
    """Tags of the session, sorted."""
    metadata: Annotated[Mapping[str, str], Keywords({"examples": [{"ticket": "4711"}]})]
    """Metadata of the session, by key."""


class SessionWebhook(TypedDict):
    """Webhook of one session."""

    url: str
    """URL that receives the notifications."""
    events: Sequence[str]
    """Names of the events that are sent."""
    secret: str
    """Secret with which the receiver verifies signatures. It is sent only in the answer that creates the session."""


class CreatedSession(SessionSummaryDocument):
    """A session that a request has created."""

    notify: NotRequired[SessionWebhook]


class OwnUsage(TypedDict):
    """Tokens and cost of a session's own model calls."""

    input_tokens: Count
    """Prompt tokens, cached or not."""
    output_tokens: Count
    """Answer tokens, reasoning included."""
    cached_tokens: Count
    """Input tokens that were read from the provider's prompt cache."""
    cache_write_tokens: Count
    """Input tokens that were written to the provider's prompt cache."""
    reasoning_tokens: Count
    """Output tokens that were used for reasoning."""
    cost: Cost


class UsageDocument(OwnUsage):
    """Tokens and cost of model calls."""

    total: OwnUsage
    """Usage that includes the sessions that worked for this one."""


class BudgetDocument(TypedDict, total=False):
    """Remaining amounts of a budget. An unlimited amount is missing."""

    model_calls: float
    tool_calls: float
    tokens: float
    cost: float
    """US dollars."""
    seconds: float
    tree_model_calls: float
    """Model calls of the whole tree of sessions."""
    tree_tool_calls: float
    """Tool calls of the whole tree of sessions."""


class SinkLabels(TypedDict):
    """Untrusted sources and permitted readers of the arguments of a tool call."""

    labels: NotRequired[Mapping[str, Sequence[str]]]
    """Names of the untrusted sources, by checked argument; missing if the call violates no policy."""
    readers: NotRequired[Mapping[str, Sequence[str]]]
    """Names of the owners that may read the data of the call, by checked argument; missing if all owners may."""


class LabelFields(TypedDict):
    """Text with its untrusted sources and permitted readers."""

    sources: NotRequired[Sequence[str]]
    """Names of the untrusted sources on which the text depends; missing if it depends on none."""
    readers: NotRequired[Sequence[str]]
    """Names of the owners that may read the text; missing if all owners may."""


class ApprovalDocument(SinkLabels):
    """A tool call that waits for a decision."""

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
    """Question for the approver; empty if the question is only whether the tool may run."""
    form: JSONObject | None
    """JSON Schema of the content that the approver fills in; null if a yes or no is enough."""
    risk: str | None
    """Risk rating: `low`, `medium`, `high` or `critical`; null if not rated."""
    again: bool
    """True if an approved call runs; false if the decision itself becomes the result of the call."""
    created_at: Date | None
    """Time of the request."""
    deadline: Date | None
    """Time at which the approval expires; null if it never expires."""


class CallerCall(SinkLabels):
    """A call of a tool of the caller, which waits for its result."""

    id: ApprovalID
    call_id: str
    """Id of the tool call."""
    tool: ToolName
    arguments: JSONObject
    """Arguments of the tool call."""
    deadline: Date | None
    """Time at which the call expires; null if it never expires."""


class ScheduleDocument(TypedDict):
    """A message that is sent to a session at a time."""

    id: str
    """Id of the schedule, unique in its session."""
    input: str
    """Text of the message."""
    due: Date | None
    """Next time."""
    cron: str | None
    """Cron expression; null for a schedule that fires once."""
    zone: Annotated[str, Keywords({"examples": ["Europe/Berlin"]})]
    """IANA time zone of the cron expression."""
    priority: str
    """Priority of the message."""
    metadata: JSONObject
    """Metadata of the message."""


class SessionSchedule(ScheduleDocument):
    """A schedule with its session."""

    agent: AgentName
    session_id: SessionID


class TurnDocument(TypedDict):
    """A turn of a session."""

    message_id: MessageID


class SessionDocument(SessionSummaryDocument):
    """A session. The fields from `description` on are missing if it is closed, or if its agent does not run."""

    children: Sequence[ChildSession]
    """Sessions that work for this one."""
    description: NotRequired[str]
    """Description of the session; empty if it has none."""
    sources: NotRequired[Sequence[str]]
    """Untrusted sources that have influenced the conversation."""
    readers: NotRequired[Sequence[str]]
    """Names of the owners that may read the conversation; missing if all owners may."""
    mode: NotRequired[str | None]
    """Mode of the session; null if its agent has no modes."""
    on_busy: NotRequired[str | None]
    """Handling of messages that arrive while a turn runs; null for the agent's default."""
    usage: NotRequired[UsageDocument]
    budget: NotRequired[BudgetDocument | None]
    """Remaining budget; null if the session has no limits."""
    approvals: NotRequired[Sequence[ApprovalDocument]]
    """Open approvals of the session and its child sessions."""
    schedules: NotRequired[Sequence[ScheduleDocument]]
    """Schedules, ordered by time."""
    turn: NotRequired[TurnDocument | None]
    """The open turn; null if there is none."""
    waiting: NotRequired[Sequence["MessageDocument"]]
    """Queued messages, at most 100."""


class SessionMode(TypedDict):
    """Mode of a session."""

    mode: Annotated[str, Keywords({"examples": ["plan"]})]
    """Name of the mode."""


class TaskDocument(TypedDict):
    """A task that a session has delegated to another agent."""

    id: str
    """Id of the task."""
    agent: AgentName
    session_id: SessionID
    status: str
    """Status of the session that works on the task."""


class DelegatedTask(TypedDict):
    """A task that was accepted."""

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
    """Media type."""
    url: str | None
    """URL of the medium; null if its bytes were sent."""
    bytes: NotRequired[Count]
    """Size in bytes; missing for a URL."""
    media_id: NotRequired[str | None]
    """Id with which `GET /v1/sessions/{id}/media/{media_id}` downloads the bytes; null if it cannot be downloaded."""


class ImagePart(_MediumFields):
    """A picture."""

    type: Literal["image"]


class FilePart(_MediumFields):
    """A file."""

    type: Literal["file"]
    name: str
    """Name of the file."""


class ToolCallDocument(TypedDict):
    """A tool call of the model."""

    id: str
    """Id of the call."""
    name: ToolName
    arguments: JSONValue
    """Arguments of the call; a text if the model wrote invalid JSON."""


class CallPart(ToolCallDocument):
    """A tool call in a message."""

    type: Literal["call"]


class ToolResultDocument(LabelFields):
    """Result of a tool call."""

    id: str
    """Id of the result."""
    call_id: str
    """Id of the tool call."""
    tool: ToolName
    status: ToolStatus
    """Status of the call. `outcome_unknown`: the call may or may not have taken effect."""
    content: str
    """Value that the tool returned: a text unchanged, other values as JSON."""
    truncated: bool
    """True if `content` or `error` is only the beginning of a longer text."""
    error: str | None
    """Error text; null if the call succeeded."""
    origin: str | None
    """Name of the toolset or tool that fetched untrusted external text; null for trusted text."""
    media: Sequence["ImagePart | FilePart"]
    """Pictures and files that the tool returned."""


class ResultPart(ToolResultDocument):
    """A tool result in a message."""

    type: Literal["result"]


Part = Annotated[
    TextPart | ImagePart | FilePart | CallPart | ResultPart,
    Named("Part", {"description": "A part of a message.", "discriminator": {"propertyName": "type"}}),
]


class SenderDocument(TypedDict):
    """Sender of a message."""

    name: Annotated[str, Keywords({"examples": ["ada"]})]
    """Name of the sender."""
    kind: SenderKind
    """Kind of the sender."""


class MessageDocument(LabelFields):
    """A message of a session."""

    message_id: MessageID
    sender: SenderDocument
    text: str
    """Text parts of the message, joined."""
    parts: Sequence[Part]
    """Parts of the message, without thinking and provider-specific blocks."""
    metadata: JSONObject
    """Metadata for programs, which models never see."""
    priority: str
    """Priority of the message: `urgent`, `high`, `normal` or `low`."""
    on_busy: OnBusy
    """Handling of the message if its session runs a turn."""


class HistoryMessage(MessageDocument):
    """A message of the history of a session."""

    turn: str | None
    """Id of the message whose turn the message belongs to."""
    at: Date | None
    """Time of the message."""


class MessagePageDocument(TypedDict):
    """Messages of a session."""

    items: Sequence[HistoryMessage]
    """The messages, oldest first."""
    first: int | None
    """Index of the first message of the page; null for an empty page."""
    last: int | None
    """Index of the last message of the page; null for an empty page."""
    total: Count
    """Number of messages of the session."""


ErrorDescription = TypedDict(
    "ErrorDescription",
    {
        "class": Annotated[
            str, Keywords({"description": "Name of the exception class.", "examples": ["LimitReached"]})
        ],
        "words": Annotated[
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
    """Outcome of a message: its last reply, or its failure."""

    id: str | None
    """Id of the reply; null without a reply."""
    text: str | None
    """Text of the reply."""
    data: JSONValue
    """Structured data of the reply; null without data."""
    message_type: str | None
    """Type of the reply in its protocol; null without a type."""
    reasoning: JSONValue
    """Reasoning that the protocol requires of the model; null without it."""
    usage: UsageDocument
    failed: FailureKind
    error: ErrorDescription | None
    """Error of a failed message; null if the message was answered."""


class PendingApproval(TypedDict):
    """An approval for which a turn waits."""

    id: ApprovalID
    tool: str
    """Name of the tool; empty if unknown."""


class PendingCallerCall(CallerCall):
    """A call of a tool of the caller for which a turn waits."""

    for_caller: Literal[True]


class RunDocument(TypedDict):
    """A run: the processing of one message. It has the id of the message."""

    message_id: MessageID
    session_id: SessionID
    agent: AgentName
    created_at: Date | None
    """Time at which the message was sent; null in the answer to a new message."""
    status: MessageState
    """Status of the run. It has ended if it is `answered` or `failed`."""
    cursor: RecordNumber
    """Cursor from which the events of the run follow."""
    waits_for: Sequence[PendingApproval | PendingCallerCall]
    """Approvals and calls for which the turn waits; empty unless the status is `suspended`."""
    outcome: MessageOutcome | None
    """Outcome of the message; null until it has ended."""


class Feedback(TypedDict):
    """A rating of an answer."""

    message_id: MessageID
    score: Annotated[float, Keywords({"minimum": 0, "maximum": 1, "examples": [1]})]
    """Score from 0 (bad) to 1 (good)."""
    comment: str
    """Comment; empty without a comment."""
    expected: str | None
    """Answer that the rater expected; null if not given."""
    by: Annotated[str, Keywords({"examples": ["ada"]})]
    """Name of the rater."""
    at: Date | None
    """Time of the rating."""


# --- agents and operation ------------------------------------------------------------------


class ToolDocument(TypedDict):
    """A tool of an agent."""

    name: ToolName
    description: str
    """Description for the model."""
    parameters: JSONObject
    """JSON Schema of the arguments."""


class AgentLink(TypedDict):
    """An agent that another agent calls as a tool, hands conversations over to, routes to, or runs as a step."""

    agent: AgentName
    kind: Literal["tool", "handoff", "route", "step"]
    """Kind of the link."""
    name: str
    """Name of the tool, action or step."""


class AgentDocument(TypedDict):
    """A running agent."""

    name: AgentName
    role: str
    """Role of the agent, from its profile."""
    goal: str
    """Goal of the agent, from its profile."""
    capabilities: str
    """Abilities of the agent, from its profile."""
    modes: Sequence[str] | None
    """Names of its modes; null if it has none."""
    tools: Sequence[ToolDocument]
    """Tools of the agent."""
    links: Sequence[AgentLink]
    """Other agents with which it works."""
    limits: Limits
    inbox: InboxStatistics
    sessions: Count
    """Number of sessions in memory."""
    has_long_term_memory: bool
    """True if the agent has a long-term memory, which `/agents/{a}/memories` lists."""


class MemoryDocument(TypedDict):
    """A long-term memory of an owner."""

    id: MemoryID
    text: str
    """Content of the memory."""
    kind: Annotated[str, Keywords({"examples": ["fact"]})]
    """`fact`, `episode`, `procedure`, or any other word."""
    owner: Annotated[str, Keywords({"examples": ["ada"]})]
    """Name of the owner."""
    owner_kind: SenderKind
    """Kind of the owner. A user and an agent of the same name are different owners."""
    sources: Sequence[str]
    """Untrusted sources on which the text depends, such as `web`; empty if it is trusted."""
    readers: Sequence[str] | None
    """Names of the owners that may read the text; null allows all owners."""
    importance: Annotated[float, Keywords({"minimum": 0, "maximum": 1})]
    """Importance for ranking and eviction."""
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
    """Time of creation; null if the clock was far off."""
    last_used_at: Date | None
    """Time of the last recall, or of creation."""
    uses: Count
    """Number of recalls."""
    valid_from: Date | None
    """Time from which the memory is valid; null has no start."""
    valid_until: Date | None
    """Time from which the memory is no longer valid; null has no end."""
    metadata: JSONObject
    """Values for programs, by name."""
    replaces: str | None
    """Id of the memory that this one replaces; null if it is the first version."""
    replaced_by: str | None
    """Id of the memory that replaces this one; null if it is current."""


class MemoryLink(TypedDict):
    """A link between two memories, as seen from one of them."""

    id: MemoryID
    relation: Annotated[str, Keywords({"examples": ["related_to"]})]
    """Meaning of the link."""
    is_from_here: bool
    """True if the link leads from this memory to the other memory."""


class MemoryVersions(TypedDict):
    """All versions of a long-term memory, and its links."""

    versions: Sequence[MemoryDocument]
    """Versions of the memory, the first one first."""
    links: Sequence[MemoryLink]
    """Links to other current memories."""


class MemoryOwner(TypedDict):
    """An owner of long-term memories."""

    owner: Annotated[str, Keywords({"examples": ["ada"]})]
    """Name of the owner."""
    owner_kind: SenderKind
    memories: Count
    """Number of current memories."""


class Erasure(TypedDict):
    """Numbers of erased objects of an owner."""

    memories: Count
    """Number of erased memories, with their earlier versions."""
    sessions: Count
    """Number of erased sessions without a parent session. Their child sessions are erased too."""


class AgentStatisticsDocument(TypedDict):
    """Statistics of an agent, for the sessions that the caller may access."""

    agent: AgentName
    inbox: InboxStatistics
    capacity: Count
    """Maximum number of messages in the inbox."""
    session_capacity: Count
    """Maximum number of messages of one session in the inbox."""
    concurrency: Count
    """Maximum number of sessions that are processed at the same time."""
    sessions: Count
    """Number of sessions in memory."""
    suspended: Count
    """Number of sessions in memory that wait for approvals."""
    restarts: Count
    """Number of restarts after failures."""
    state: str
    """`starting`, `running`, `failed` (about to restart), `draining` or `stopped`."""


class AgentTotals(AgentStatisticsDocument):
    """Statistics of an agent, with totals that include turns before a restart if the request has asked for them."""

    turns: NotRequired[Count]
    """Number of ended turns."""
    spent_usd: NotRequired[Amount]
    """Cost in US dollars."""


class Statistics(TypedDict):
    """Statistics of the agents."""

    agents: dict[str, AgentTotals]
    """Statistics by name of the agent."""
    sessions: NotRequired[dict[State, Count]]
    """Number of sessions by state, for admins."""
    dead_letters: NotRequired[Count]
    """Number of dead letters, for admins."""
    node: NotRequired[str]
    """Name of the cluster node that answers, for admins; only of a cluster node."""


class Liveness(TypedDict):
    """Answer of the liveness probe."""

    status: Literal["live"]
    calm_seconds: NotRequired[Amount]
    """Seconds for which no node of the cluster has died; only of a cluster node."""


class Readiness(TypedDict):
    """Answer of the readiness probe."""

    status: Literal["ready"]


class LateDelivery(TypedDict):
    """A delivery that is retried."""

    agent: AgentName
    session_id: SessionID
    attempts: Count
    """Number of failed attempts."""


class FailedDelivery(TypedDict):
    """A notification that could not be delivered."""

    webhook_id: str
    """Id of the notification."""
    event: Annotated[str, Keywords({"examples": ["reply"]})]
    """Name of the event."""
    agent: AgentName
    session_id: SessionID
    number: RecordNumber
    reason: str
    """Reason of the last failure."""
    at: Date | None
    """Time of the event."""


class WebhookDocument(TypedDict):
    """A webhook with its deliveries."""

    id: str
    """Id of the webhook."""
    url: str | None
    """URL without its query; null for the webhook that sends to the URLs of sessions."""
    events: Sequence[str]
    """Names of the events that are sent."""

    sent: Count
    """Number of delivered notifications."""
    waiting: Count
    """Number of sessions with notifications to send."""
    late: Sequence[LateDelivery]
    """Sessions whose delivery is retried."""
    failed: Sequence[FailedDelivery]
    """Notifications that could not be delivered."""


class NodeDocument(TypedDict):
    """A live node of a cluster."""

    name: str
    address: Annotated[str, Keywords({"examples": ["http://10.0.0.7:8301"]})]
    """URL at which other nodes reach the node."""
    agents: Sequence[AgentName]
    """Names of the agents that the node hosts."""
    release: Annotated[str, Keywords({"examples": ["0.1.0"]})]
    """Version of actgent."""
    reads: Count
    """Newest record format that the node reads."""
    is_leaving: bool
    """True if the node is transferring its partitions to other nodes."""
    partitions: Count
    """Number of partitions that the node owns."""


class PartitionDocument(TypedDict):
    """A partition of a cluster: the sessions with some of the ids."""

    partition: Count
    """Number of the partition."""
    owner: str
    """Name of the node that last acquired the partition; empty if no node ever did."""
    epoch: Count
    """Ownership epoch; it grows with each change of the owner."""
    since: Date | None
    """Time of the last acquisition."""
    is_served: bool
    """True if the owner is alive and has not released the partition."""
    pending: Count
    """Number of messages that wait for an owner."""
    unfinished: Count
    """Number of sessions with an unfinished turn or queued messages."""
    lag: Amount
    """Maximum seconds since the last record of an unfinished session; 0 if there are none."""


class ClusterDocument(TypedDict):
    """Status of a cluster, as `actgent cluster status` prints it."""

    is_whole: bool
    """True if a node is alive, every partition is served, and a live node hosts the agent of every open session."""
    generation: Count
    """Number of changes of the number of partitions, plus 1."""
    record_format: Count
    """Record format that all nodes write."""
    nodes: Sequence[NodeDocument]
    partitions: Sequence[PartitionDocument]
    unhosted: dict[str, Count]
    """Number of open sessions by agent, for the agents that no live node hosts."""
    suspects: Count
    """Number of sessions that were unfinished when their node died and have not finished since."""
    dead: Count
    """Number of dead-lettered messages and requests."""


class ToolsetDocument(TypedDict):
    """A toolset with a connection, such as an MCP server."""

    name: Annotated[str, Keywords({"examples": ["github"]})]
    agents: Sequence[AgentName]
    """Names of the agents that use the toolset."""
    state: ConnectionState
    """State of the connection. `failed`: the configuration is wrong, and the toolset is not connected again."""
    kind: Annotated[str, Keywords({"examples": ["mcp"]})]
    """Kind of the server: `mcp`; empty for other toolsets."""
    address: Annotated[str, Keywords({"examples": ["https://mcp.example.com"]})]
    """Name of the program, or scheme, host and port of the URL; empty if unknown."""
    protocol: Annotated[str, Keywords({"examples": ["2026-07-28"]})]
    """Protocol revision of the open connection; empty if there is none."""
    server: str
    """Name and version that the server reports; empty if it is not connected."""
    tools: Sequence[ToolDocument]
    """Tools that the server published last."""
    reconnects: Count
    """Number of connections after the first."""
    error: Annotated[str, Keywords({"examples": ["ConnectError"]})]
    """Class of the last error; `silent` if the server did not respond in time; empty if there was no error."""
    error_text: str
    """Message of the last error, without the secrets of the connection; empty if the toolset does not name its secrets."""
    failed_at: Date | None
    """Time of the last error."""


class ClusterAnswer(TypedDict):
    """The cluster of the server."""

    cluster: ClusterDocument | None
    """Null if the server is not in a cluster."""


class DeadLetterDocument(TypedDict):
    """A message that no agent or actor processed."""

    id: str
    """Id of the letter."""
    actor: str
    """Name of the addressed agent or actor."""
    session_id: SessionID | None
    """Id of the session; null for a value that was sent to an actor."""
    owner: str | None
    """Name of the session's owner; null if the session ends with the message, or is unknown."""
    text: str
    """Text of the message, or the sent value as text."""
    reason: str
    """Reason why the message was not processed."""
    error: Annotated[str, Keywords({"examples": ["NotRunning"]})]
    """Name of the exception class; empty if there was no attempt."""
    at: Date | None
    """Time of the failure."""


class ErrorGroup(TypedDict):
    """Errors of one kind and class."""

    cause: NotRequired[str]
    """Cause of the newest error, for callers with the scope `journal`; empty if it has none."""
    kind: Annotated[str, Keywords({"examples": ["limit"]})]
    """Kind of the failure, `tool`, or `dead letter`."""
    error: str
    """Name of the exception class."""
    words: str
    """Text of the newest error."""
    count: Count
    """Number of errors."""
    first_at: Date | None
    """Time of the first error."""
    last_at: Date | None
    """Time of the newest error."""
    agents: Sequence[str]
    """Names of the agents, the newest first."""
    tools: Sequence[str]
    """Names of the tools, the newest first."""
    sessions: Sequence[SessionAddress]
    """Sessions, the newest first."""


class LoginToken(TypedDict):
    """Token of a browser login."""

    token: str
    """The token."""
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
    """A message that matches a search, with figures of its session."""

    agent: AgentName
    session_id: SessionID
    owner: Owner
    message_id: MessageID
    role: Literal["user", "assistant"]
    """`assistant` for an answer, `user` for all other messages."""
    at: Date | None
    """Time of the message."""
    snippet: str
    """Part of the text with the first match."""
    marks: Sequence[Sequence[Count]]
    """Start and end index of each match in `snippet`, in characters."""
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
    """Metrics of one agent, model or prompt in an evaluation."""

    name: str
    """Name of the variant."""
    trials: Count
    """Number of runs of cases."""
    passed: Count
    """Number of runs that passed all checks."""
    errors: Count
    """Number of runs without an answer."""
    score: Amount
    """Mean score of the runs, from 0 to 1."""
    cost: Amount | None
    """Cost in US dollars; null if a price is unknown."""
    p50: Amount
    """Median duration of a run in seconds."""
    p95: Amount
    """95th percentile of the duration of a run in seconds."""


class EvaluationSummary(TypedDict):
    """One evaluation of a dataset."""

    id: EvaluationID
    at: Date | None
    """Time of its end."""
    variants: Sequence[VariantFigures]
    """Metrics by variant."""


class DatasetDocument(TypedDict):
    """A dataset: a file of cases, with the history of its evaluations."""

    name: DatasetName
    cases: Count
    """Number of cases."""
    changed_at: Date | None
    """Time of the last change of the file."""
    evaluations: Count
    """Number of stored evaluations."""
    last: EvaluationSummary | None
    """The latest evaluation; null if there is none."""


class DatasetPage(TypedDict):
    """Datasets of the server, by name."""

    items: Sequence[DatasetDocument]
    next: str | None
    """Always null: the page has all datasets."""
    is_enabled: bool
    """False if the server was started without datasets."""


class DatasetCase(TypedDict):
    """A case of a dataset."""

    name: str
    """Name of the case, or the beginning of its input."""
    case: JSONObject
    """The case as `actgent eval` reads it: input, expected answer and checks."""


class CaseFigures(TypedDict):
    """Figures of the runs of one case with one variant."""

    trials: Count
    """Number of runs."""
    passed: Count
    """Number of runs that passed all checks."""
    score: Amount
    """Mean score of the runs, from 0 to 1."""


class EvaluatedRun(TypedDict):
    """One run of a case in an evaluation."""

    passed: bool
    """True if the run passed all checks."""
    text: str
    """Text of the last answer."""
    error: str
    """Error that prevented an answer; empty if there is an answer."""
    failures: Sequence[str]
    """Failed checks with their reasons."""
    calls: Sequence[str]
    """Names of the called tools, in order."""
    seconds: Amount
    """Duration in seconds."""


class EvaluatedCase(TypedDict):
    """Result of one case with one variant."""

    name: str
    """Name of the case."""
    variant: str
    """Name of the variant."""
    input: Sequence[str]
    """Messages of the case."""
    expected: JSONValue
    """Expected answer; null if any answer may pass."""
    figures: CaseFigures
    before: CaseFigures | None
    """Figures in the evaluation before; null if the case or the variant was not in it."""
    runs: Sequence[EvaluatedRun]
    """The runs of the case."""


class Evaluation(TypedDict):
    """An evaluation of a dataset, compared with the evaluation before."""

    summary: EvaluationSummary
    before: EvaluationSummary | None
    """The evaluation before; null for the first one."""
    items: Sequence[EvaluatedCase]
    """Results by case and variant."""
    removed: Sequence[str]
    """Names of cases that only the evaluation before has."""


# --- records and replays -------------------------------------------------------------------


class JournalRecord(TypedDict):
    """A record of a session, with its number and time."""

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
    """Records of a session."""

    items: Sequence[JournalRecord]
    next: int | None
    """Value of `after` for the next page; null on the last page."""


class SessionState(TypedDict):
    """State of a session after a record."""

    number: RecordNumber
    state: JSONObject
    """Values of the state, by key."""


class PastSessionDocument(SessionState):
    """A session as it was after a record."""

    history: Sequence[MessageDocument]
    """Messages of the conversation."""
    waiting: Sequence[MessageDocument]
    """Messages that were queued."""
    usage: UsageDocument
    digest: str
    """Digest of history and state."""


class Comparison(TypedDict):
    """Result of a replay with the current code of the agent."""

    number: RecordNumber
    difference: Difference | None
    """First difference; null if there is none."""


class RequestMessage(TypedDict):
    """A message of a model request."""

    role: str
    """Role of the message."""
    parts: Sequence[Part]


class RequestTool(TypedDict):
    """A tool of a model request."""

    name: ToolName
    description: str
    """Description for the model."""
    parameters: JSONObject
    """JSON Schema of the arguments."""


class RequestFormat(TypedDict):
    """JSON Schema that the text of an answer must match."""

    name: str
    """Name of the schema."""
    schema: JSONObject
    """The schema."""


class RequestSettings(TypedDict):
    """Settings of a model request. Null uses the default of the model."""

    temperature: float | None
    max_tokens: int | None
    """Maximum number of answer tokens."""
    response_format: RequestFormat | None
    """Required format of the answer; null for any text."""


class ModelRequestDocument(TypedDict):
    """A model request, built by the current code of the agent."""

    answer: RecordNumber
    system: str
    """System prompt."""
    messages: Sequence[RequestMessage]
    tools: Sequence[RequestTool]
    settings: RequestSettings
    tokens: Count
    """Estimated number of tokens."""
    of_messages: Count
    """Number of messages of the conversation at that time."""
    memory: str
    """Memory that selected the messages."""
    is_same_prompt: bool
    """False if the system prompt or the tools have changed since."""


class NextRequest(TypedDict):
    """Model request for the next answer at or after a record."""

    number: RecordNumber
    request: ModelRequestDocument | None
    """The request; null if no answer follows."""


# --- events --------------------------------------------------------------------------------


class EventFields(TypedDict):
    """Fields of every event that was made from a record."""

    turn: str | None
    """Id of the message whose turn the event belongs to; null between turns."""
    at: Date | None
    """Time of the record."""


class MessageAcceptedDocument(EventFields, MessageDocument):
    """A message was accepted."""


class AnswerReceived(EventFields, LabelFields):
    """The model has answered."""

    message_id: MessageID
    text: str
    """Text of the answer."""
    calls: Sequence[ToolCallDocument]
    """Tool calls of the answer."""
    stop: AnswerStop
    """Reason why the model stopped."""
    model: str
    """Name of the model."""
    usage: UsageDocument
    seconds: Amount
    """Duration of the model call in seconds, retries included; 0 if unknown."""
    waited: Amount
    """Part of `seconds` that waited for the rate limit of the provider."""
    repairs: Count
    """Number of answers of the turn that could not be read and were requested again."""
    cut: bool
    """True if the answer was cut off."""


class ResultReceived(EventFields, ToolResultDocument):
    """A tool call has its result."""


class ReplySent(EventFields, LabelFields):
    """A reply was delivered."""

    id: str
    """Id of the reply."""
    text: str | None
    """Text of the reply."""
    data: JSONValue
    """Structured data of the reply; null without data."""
    message_type: str | None
    """Type of the reply in its protocol; null without a type."""
    reasoning: JSONValue
    """Reasoning that the protocol requires of the model; null without it."""


class ApplicationEvent(EventFields, LabelFields):
    """An event of the agent's protocol."""

    id: str
    """Id of the event."""
    name: str
    """Name of the event."""
    data: JSONValue
    """Data of the event; null without data."""


class RouteTaken(EventFields, LabelFields):
    """The turn was routed to another agent."""

    id: str
    """Id of the route."""
    action: str
    """Target of the route."""
    data: JSONValue
    """Data of the route; null without data."""


class TurnStartedDocument(EventFields):
    """A turn started, or a message joined the turn."""

    phase: Literal["started"]
    message_id: MessageID
    joins: bool
    """True if the message joined a running turn."""


class TurnSuspendedDocument(EventFields):
    """A turn was suspended."""

    phase: Literal["suspended"]
    waits_for: Sequence[str]
    """Ids of the approvals and calls for which the turn waits."""


class TurnResumedDocument(EventFields):
    """A suspended turn resumed."""

    phase: Literal["resumed"]
    came: Sequence[str]
    """Ids of the approvals and calls that were decided."""


class CallsStarted(EventFields):
    """Tool calls started."""

    call_ids: Sequence[str]
    """Ids of the calls."""


class CallRequested(EventFields, CallerCall):
    """A tool of the caller was called."""


class ApprovalRequested(EventFields, ApprovalDocument):
    """An approval was requested."""


class ApprovalDecidedDocument(EventFields):
    """An approval was decided."""

    id: ApprovalID
    word: str
    """`approved`, `rejected`, `edited`, `responded`, `expired` or `withdrawn`."""
    by: Annotated[str, Keywords({"examples": ["ada"]})]
    """Name of the approver; empty if none decided."""


class StateChanged(EventFields):
    """The state of the session changed."""

    changes: JSONObject
    """New values by key."""
    action: str
    """Name of the action; empty for a change without one."""


class StateReset(EventFields):
    """The state of the session was reset to an earlier version."""

    rolled_back_to: Count
    """Number of the version."""


class ActionFailed(EventFields):
    """An action on the state failed. The state did not change."""

    action: str
    """Name of the action."""
    failed: Literal[True]


class ScheduleSet(EventFields):
    """A schedule was set."""

    action: Literal["set"]
    id: str
    """Id of the schedule."""
    input: str
    """Text of the message."""
    due: Date | None
    """Next time."""
    cron: str | None
    """Cron expression; null for a schedule that fires once."""


class ScheduleFiredDocument(EventFields):
    """A schedule fired."""

    action: Literal["fired"]
    id: str
    """Id of the schedule."""
    message_id: str | None
    """Id of the message that it sent; null if it sent none."""
    following: Date | None
    """Next time; null if it does not fire again."""


class ScheduleRemoved(EventFields):
    """A schedule was removed."""

    action: Literal["removed"]
    id: str
    """Id of the schedule."""


class MessageEnded(EventFields):
    """A message was answered, or failed."""

    message_id: MessageID
    failed: FailureKind
    error: ErrorDescription | None
    """Error of a failed message; null if it was answered."""


class FeedbackGiven(EventFields, Feedback):
    """An answer was rated."""


class SessionClosedDocument(EventFields):
    """The session was closed."""


class PartialAnswerDocument(TypedDict):
    """New text of an unfinished answer. A stream sends it only if `Actgent-Events` lists it."""

    turn: MessageID
    reply_id: MessageID
    attempt: Count
    """Number of the attempt. A new attempt discards the text of earlier attempts."""
    begin: Count
    """Length of the text that was sent before, in characters; the text after it is replaced."""
    text: str
    """The new text."""


class CallProgressDocument(TypedDict):
    """Progress of a running tool call. A stream sends it only if `Actgent-Events` lists it."""

    call_id: str
    """Id of the tool call."""
    tool: ToolName
    done: float | None
    """Finished amount; null if not reported."""
    total: float | None
    """Total amount; null if unknown."""
    text: str
    """Current activity."""


class Resync(TypedDict):
    """Events were lost, or an older backup of the journal was restored. Read the sessions again."""

    records: NotRequired[Count]
    """Number of records of the session; only in a stream of one session."""


class Nothing(TypedDict):
    """Data of an event without fields."""


E = TypeVar("E")
D = TypeVar("D")


class EventDocument(TypedDict, Generic[E, D]):
    """An event on a page of events."""

    id: RecordNumber
    event: E
    data: D


class StreamEventDocument(TypedDict, Generic[E, D]):
    """An event of a stream: the fields `event` and `data` of the server-sent event."""

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
    """Events of a session."""

    items: Sequence[SessionEvent]
    cursor: RecordNumber
    next: int | None
    """Value of `after` for the next page; null if there are no more records."""


class ObservationDocument(TypedDict):
    """An observation of a turn, for display to users."""

    id: str
    """Id of the observation."""
    type: ObservedType
    title: str
    """Short description for a list."""
    number: RecordNumber
    at: Date | None
    """Time of the record."""
    turn: str
    """Id of the message whose turn it belongs to."""
    parent: str
    """Id of the parent: of a tool call for its result, otherwise of the turn."""
    content: JSONValue
    """Text or data of the observation."""
    metadata: JSONObject
    """Further data by name."""
    is_whole: bool
    """False for a partial observation, which the next one with the same id replaces."""


class ObservationPage(TypedDict):
    """Observations of a session."""

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
    """Time of the record."""


class ChangedApproval(_ChangeFields, ApprovalDocument):
    """An approval was requested in a session."""


class ChangedDecision(_ChangeFields):
    """An approval was decided in a session."""

    id: ApprovalID
    word: str
    """`approved`, `rejected`, `edited`, `responded`, `expired` or `withdrawn`."""
    by: Annotated[str, Keywords({"examples": ["ada"]})]
    """Name of the approver; empty if none decided."""


class ChangedMessage(_ChangeFields):
    """A message of a session failed."""

    message_id: MessageID
    failed: FailureKind
    error: ErrorDescription | None
    """The error."""


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
