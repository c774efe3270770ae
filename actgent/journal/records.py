"""What a session's life is made of: append-only records, numbered 1, 2, 3 ... in each session."""

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
    Usage,
)
from actgent.support.quick_init import maker, quick_init
from actgent.support.wire import Wire

NOTHING: Mapping[str, str] = MappingProxyType({})
NO_LIMITS: Mapping[str, float] = MappingProxyType({})
NOT_KEPT = "journal"
"""What a message failed with that may be sent again under its id: its turn could not be written."""
REFUSED = "refused"
"""How a message ended that never got in."""


@attrs.frozen(kw_only=True)
class AccountKey:
    """Whose budget it is: a session's, or that of one of its turns."""

    session_id: str
    turn: str = ""
    """The outside message that began the turn; empty is the session itself."""
    agent: str = ""
    tree: bool = False
    """True: of the turn with all that it leads to, as every turn has it that leads to anything."""


def message_id_of(session_id: str) -> str:
    """The id of the message that a session was opened for as a task, which follows from its own."""
    return f"{session_id}/task"


@attrs.frozen(kw_only=True)
class TurnOptions:
    """How one turn alone talks to the model, where its sender said so."""

    temperature: float | None = None
    max_tokens: int | None = None
    system: str | None = None
    """The system prompt, instead of the session's."""
    tail: str = ""
    """Said at the end of the prompt."""
    output: str | None = None
    """The form of the answer, as JSON text."""
    output_name: str = ""
    deps: bool = False
    """True: its tools were given deps of its own, which are not written."""
    model: str | None = None
    """The role of the model that all its calls ask; None is what the protocol asks for."""


@quick_init
@attrs.frozen(kw_only=True)
class Fitting:
    """How a request was cut to fit into the context window of its model."""

    tokens: int
    """What it would have taken, as it was estimated then."""
    room: int
    """What there was beside the answer; of a request that its provider found too long, what was tried instead."""
    shares: tuple[float, ...] = ()
    """The part of what was shown that stayed, each time that the view left out what is old."""
    shortened: int = 0
    """Characters to which long results were shortened; 0: they were not."""


@attrs.frozen(kw_only=True)
class Opened:
    """The session begins."""

    owner: Sender
    parent_id: str | None = None
    created_at: float
    """Unix time in seconds."""
    on_busy: OnBusy | None = None
    """What messages do while the session works; None is the agent's rule."""
    limits: Mapping[str, float] = NO_LIMITS
    """Of the session as a whole."""
    within: tuple[AccountKey, ...] = ()
    """Further budgets that all its turns draw on: those of the sessions above it."""
    transient: bool = False
    """True: it ends with its last message."""
    parent_agent: str = ""
    """Whose session the parent is."""
    reports: bool = False
    """True: what its first message comes to is told to the parent as a message."""
    system: str | None = None
    """Its system prompt; None is the agent's."""
    deadline: float = 0.0
    """Unix time in seconds at which the task ends that it was opened for, done or not; 0 is never."""
    agent: str = ""
    """Whose session it is; empty in sessions from before an id was unique for its agent only."""
    task: str = ""
    """What the parent calls the task that it was opened for, where it said so."""
    deps: bool = False
    """True: it was given deps of its own, which are not written."""
    notify: tuple[str, ...] = ()
    """The address that is told of what happens in it, and of which events; see `actgent.web.webhooks`."""
    is_described: bool = False
    """True: its first message is what it was opened with."""
    asker: str = ""
    """Who asked for it from outside: the session of another pool that it works for (pool, agent and id, with `/` between them), or
    `made/` and a hash of the key that a client made it under."""


@quick_init
@attrs.frozen(kw_only=True)
class Accepted:
    """A message waits in the inbox."""

    message: Message
    limits: Mapping[str, float] = NO_LIMITS
    """Of its turn, where its sender set them."""
    within: tuple[AccountKey, ...] = ()
    """The budgets of the turn that asks; its answer is paid from them, too."""
    depth: int = 0
    """How many turns led to it, one from the other."""
    deepest: int = 0
    """How deep it may lead on by the limits of those; 0 where there are none."""
    options: TurnOptions | None = None
    baggage: Mapping[str, Any] = NOTHING
    """The values of its sender's context variables that the program registered, by their names."""


make_accepted = maker(Accepted)


@quick_init
@attrs.frozen(kw_only=True)
class Appended:
    """An accepted message enters the conversation; its content stands in its `Accepted`."""

    message_id: str
    joins: bool = False
    """True: it is answered together with the one appended before it, by the same turn."""
    limits: Mapping[str, float] = NO_LIMITS
    """Of the turn that it begins."""
    again: bool = False
    """True: it stands in the conversation, and its turn, for which the journal failed, goes on."""
    at: float = 0.0
    """Unix time in seconds at which the turn began; 0 in records of earlier versions."""


make_appended = maker(Appended)


@quick_init
@attrs.frozen(kw_only=True)
class Said:
    """A message of the agent's own enters the conversation: an answer, tool results, a note."""

    message: Message
    stop: str = ""
    """Why the model stopped, where it is an answer."""
    usage: Usage = NO_USAGE
    model: str = ""
    calls: int = 0
    """Model calls of the turn so far."""
    repairs: int = 0
    """Rounds in which the model was asked again for a readable answer."""
    prompt: str = ""
    """Eight hexadecimal digits that stand for the system prompt and the tools that an answer was asked with."""
    results: tuple[str, ...] = ()
    """In storage only: calls whose results, written as `Finished` before, are all that the message holds."""
    last_call: ToolCall | None = None
    """With results of calls that stood in text, which no record holds: the last of the calls."""
    identical: int = 0
    """How often in a row `last_call` was asked for."""
    called: tuple[ToolCall, ...] = ()
    """All of them, where `last_call` is the last of several."""
    redacted: bool = False
    """True: the words are not those that were said, see `redact=`."""
    seconds: float = 0.0
    """How long the model call took that it answers, with all attempts; 0 where it is no answer, or not known."""
    waited: float = 0.0
    """Seconds of these in which the call waited for the provider's limits."""
    fitting: Fitting | None = None
    """Where the request that it answers was cut to fit."""

    def with_text_calls(self) -> Message:
        """Return the message. If it holds results of calls that a model wrote as text, it has these calls too."""
        if self.last_call is None:
            return self.message
        ids = {result.call_id for result in self.message.tool_results}
        calls = tuple(call for call in self.called or (self.last_call,) if call.id in ids)
        return attrs.evolve(self.message, text_calls=calls)


make_said = maker(Said)


@attrs.frozen(kw_only=True)
class Started:
    """Tool calls may run from now on, so their effects may exist."""

    call_ids: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Finished:
    """A tool call has its result."""

    result: ToolResult


@quick_init
@attrs.frozen(kw_only=True)
class Spent:
    """Something was taken from a budget of this session, by itself or by another that works for it.

    A model call is written with its estimate before it begins, and then by how much it took more, or less, than that.
    """

    turn: str = ""
    """The outside message whose turn's budget it was; empty is the session's."""
    of: str = ""
    """The answer whose tool calls these are, so that they are not counted again."""
    model_calls: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    """US dollars."""
    seconds: float = 0.0


@quick_init
@attrs.frozen(kw_only=True)
class Led:
    """Calls of a turn of this session that led to others, or of what it led to, in any session."""

    turn: str
    """The outside message of the turn."""
    of: str = ""
    """The answer whose tool calls these are, so that they are not counted again."""
    model_calls: int = 0
    tool_calls: int = 0
    limits: Mapping[str, float] = NO_LIMITS
    """Of all of it, where it begins."""


@quick_init
@attrs.frozen(kw_only=True)
class Changed:
    """The state changed: these keys have these values now, or what their reducers make of them."""

    changes: Mapping[str, Any]
    reduced: Mapping[str, str] = NOTHING
    """The names of the reducers, for keys that have one of `actgent.state.reducers`."""
    action: str = ""
    """The name of the action."""
    once: str = ""
    """Under which it is not to be done again."""
    patches: Mapping[str, Any] = NOTHING
    """In storage only: for keys of large values how they differ from the value before, see `actgent.support.patches`."""


@attrs.frozen(kw_only=True)
class ActionFailed:
    """An action raised, and changed nothing."""

    action: str
    error: str


@attrs.frozen(kw_only=True)
class RolledBack:
    """The state is again what it was after so many changes, and later ones count on from there."""

    number: int


@quick_init
@attrs.frozen(kw_only=True)
class Told:
    """An outcome of an answer, written before handlers get it, where it is not just the answer's text."""

    id: str
    """Of the outcome; a `Delivered` names it when handlers had it."""
    kind: str
    """`reply`, `event` or `route`."""
    name: str = ""
    """Of the event; the action of a route; what type of message a reply is, if its protocol has types."""
    text: str | None = None
    """Of a reply."""
    data: str | None = None
    """Structured data as JSON text; None is that there is none."""
    answer: str = ""
    """In storage only: the answer whose text holds what the two places say."""
    text_at: tuple[int, ...] = ()
    """In storage only: from which character of it, and behind which."""
    data_at: tuple[int, ...] = ()
    """In storage only: the same of the data."""
    is_quoted: bool = False
    """In storage only: whether the text stands there as in a string of JSON."""
    reasoning: str | None = None
    """What the model said about a reply, as JSON text; None is that it said nothing."""


@attrs.frozen(kw_only=True)
class Delivered:
    """Handlers got these outcomes."""

    ids: tuple[str, ...]


make_delivered = maker(Delivered)


@quick_init
@attrs.frozen(kw_only=True)
class Guarded:
    """The guards have decided over what a turn answers, or over one of its answers."""

    message_id: str
    """The outside message of the turn."""
    answer: str = ""
    """The id of the answer; empty is what the turn answers."""
    guard: str = ""
    """The name of the function that refused."""
    refused: str | None = None
    """Why; None is that it may be said."""
    text: str | None = None
    """What is said instead of the answer's own text; None is that."""


@attrs.frozen(kw_only=True)
class Answered:
    """What a message came to, for the session that asked for it."""

    message_id: str
    text: str
    failed: str | None = None
    """The kind of the failure that `text` is about; None is an answer."""
    shortfall: str = ""
    """What the answer is where it is less than what was asked, e.g. `partial`; see `Protocol.shortfall`."""
    is_json: bool = False
    """True if `text` is a value of the answer as JSON, and no text."""
    origin: str = ""
    """As in `Message`: the sources from outside whose text it may repeat."""


@attrs.frozen(kw_only=True)
class Failed:
    """The outcome of a message is a failure. Written before handlers and callers get the failure; `Ended` follows when they had it."""

    message_id: str
    kind: str
    """As in `Failure.kind`."""
    error: str = ""
    """The class of the error."""
    words: str = ""
    """Actgent's description of the error; empty for errors of foreign code."""
    fields: Mapping[str, Any] = NOTHING
    """Attributes of the error that are plain data, such as the name of a limit; none for errors of foreign code."""


@quick_init
@attrs.frozen(kw_only=True)
class Ended:
    """An accepted message was dealt with."""

    message_id: str
    failed: str | None = None
    """The kind of the failure that it ended with; None is an answer."""
    error: str = ""
    """The class of the error."""
    words: str = ""
    """What actgent says of it; of errors of foreign code nothing."""


make_ended = maker(Ended)


@attrs.frozen(kw_only=True)
class Unwanted:
    """A message that nobody has sent so far is to be stopped when it comes."""

    message_id: str
    reason: str = ""


@attrs.frozen(kw_only=True)
class Rated:
    """A reader has judged what came of a message."""

    message_id: str
    """The outside message."""
    score: float
    """From 0, which is bad, to 1."""
    comment: str = ""
    expected: str | None = None
    """What would have been right."""
    by: str = ""
    """Who judges; a later word of the same reader replaces this one."""
    at: float
    """Unix time in seconds."""


@attrs.frozen(kw_only=True)
class Due:
    """From now on the earliest thing of the session that has a date is due then: whoever lists it wakes the session."""

    at: float
    """Unix time in seconds; 0 is that there is none."""


@attrs.frozen(kw_only=True)
class PersonAsked:
    """A tool call waits for a person. It has not started, or ended by asking."""

    approval: Approval


@attrs.frozen(kw_only=True)
class Decided:
    """A person, or the clock, decided over a call that waited."""

    approval_id: str
    decision: Decision
    by: str = ""
    """Whoever it was; empty where nobody said."""
    at: float
    """Unix time in seconds."""


@attrs.frozen(kw_only=True)
class SuspendedRecord:
    """A turn waits for something outside, and holds no task until then."""

    message_id: str
    """The outside message of the turn."""
    ids: tuple[str, ...]
    """What it waits for."""


@attrs.frozen(kw_only=True)
class Resumed:
    """A suspended turn waits no more."""

    ids: tuple[str, ...] = ()
    """What came, of all that it waited for."""


@attrs.frozen(kw_only=True)
class Prompted:
    """The session has another system prompt from now on."""

    system: str


@attrs.frozen(kw_only=True)
class Scheduled:
    """The session is to be told something at a time."""

    schedule_id: str
    description: str
    at: float
    """Unix time in seconds of the first time."""
    cron: str = ""
    """The cron line, where it fires again and again."""
    zone: str = "UTC"
    baggage: Mapping[str, Any] = NOTHING
    """As in `Accepted`, of whoever set it."""
    traceparent: str | None = None
    priority: Priority = Priority.NORMAL
    delay: bool = False
    """True: it was set with seconds, and not with a date."""
    within: tuple[AccountKey, ...] = ()
    """The budgets of the turn that set it, which its first turn draws on, too."""
    depth: int = 0
    """As in `Accepted`."""
    deepest: int = 0
    metadata: Mapping[str, Any] = NOTHING
    """Of the message that it sends."""
    request: str = ""
    """As in `Schedule`."""


@attrs.frozen(kw_only=True)
class Fired:
    """A schedule's time has come."""

    schedule_id: str
    at: float
    """Unix time in seconds for which it was set."""
    following: float = 0.0
    """Its next time; 0 is that it is over."""
    message_id: str = ""
    """What it said; empty where it was passed over, since what it had said before was still waiting."""


@attrs.frozen(kw_only=True)
class Unscheduled:
    """A schedule was removed."""

    schedule_id: str
    withdrawn: bool = False
    """True: whoever set it was not told that it is set, so it may be set again."""


@attrs.frozen(kw_only=True)
class Closed:
    """The session ends and takes no more messages."""

    unused: bool = False
    """True: nobody ever got it, so its id is free."""
    erase: bool = False
    """True: it was opened for one question, and leaves the journal, with all below it."""


Record = (
    Opened
    | Accepted
    | Appended
    | Said
    | Started
    | Finished
    | Spent
    | Led
    | Changed
    | ActionFailed
    | RolledBack
    | Told
    | Delivered
    | Guarded
    | Answered
    | Failed
    | Ended
    | Unwanted
    | Rated
    | Due
    | PersonAsked
    | Decided
    | SuspendedRecord
    | Resumed
    | Prompted
    | Scheduled
    | Fired
    | Unscheduled
    | Closed
)

# Tags are for ever: a new class gets a new one, and none is given twice.
DECISION_TAGS: Mapping[str, type] = {
    "approve": Approve,
    "reject": Reject,
    "edit": Edit,
    "respond": Respond,
    "expire": Expire,
    "withdraw": Withdraw,
}
RECORD_TAGS: Mapping[str, type] = {
    "opened": Opened,
    "accepted": Accepted,
    "appended": Appended,
    "said": Said,
    "started": Started,
    "finished": Finished,
    "changed": Changed,
    "action_failed": ActionFailed,
    "rolled_back": RolledBack,
    "delivered": Delivered,
    "answered": Answered,
    "ended": Ended,
    "due": Due,
    "asked": PersonAsked,
    "decided": Decided,
    "suspended": SuspendedRecord,
    "resumed": Resumed,
    "prompted": Prompted,
    "scheduled": Scheduled,
    "fired": Fired,
    "unscheduled": Unscheduled,
    "closed": Closed,
    "spent": Spent,
    "led": Led,
    "guarded": Guarded,
    "told": Told,
    "rated": Rated,
    "unwanted": Unwanted,
    "failed": Failed,
}

WIRE = Wire({Medium: MEDIA_TAGS, Part: PART_TAGS, Decision: DECISION_TAGS, Record: RECORD_TAGS})
