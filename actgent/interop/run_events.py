"""Typed events of one run, the turn of one message, read from the session's records and its partial answers.

All interoperability protocols encode these events. A run ends with `RunEnded`, or with `RunSuspended` if its turn
waits for approval decisions; the run that follows the decisions begins with the record that resumes the turn.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

import attrs
import trio

from actgent.agents.session import Session, services_of
from actgent.approvals import Approval, Decision
from actgent.errors import Fenced
from actgent.journal.record_types import (
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    CallFinishedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    OutcomeRecord,
    Record,
    ResumptionRecord,
    SessionClosedRecord,
    SuspensionRecord,
)
from actgent.messages import NO_USAGE, CallProgress, Medium, ToolCall, ToolResult, Usage
from actgent.runtime.subscriptions.session_follower import SessionFollower
from actgent.sessions.subscriptions import FollowedItem, FollowedRecord, PartialText


@attrs.frozen(kw_only=True)
class RunStarted:
    """The turn has started, or has resumed after a suspension that did not end the run."""

    message_id: str
    at: float = 0.0
    """Unix time in seconds at which the record was written; 0 if unknown."""


@attrs.frozen(kw_only=True)
class TextDelta:
    """The model has produced new text of an answer."""

    reply_id: str
    text: str


@attrs.frozen(kw_only=True)
class TextDiscarded:
    """The text of an answer that was emitted so far is discarded: the model call is repeated, or the answer was replaced."""

    reply_id: str


@attrs.frozen(kw_only=True)
class AnswerDone:
    """The model has answered."""

    reply_id: str
    text: str
    """Complete text of the answer for the user; empty if the answer has only tool calls."""
    calls: Sequence[ToolCall]
    stop: str
    """Reason why the model stopped."""
    usage: Usage
    media: Sequence[Medium] = ()
    """Images and files in the answer."""


@attrs.frozen(kw_only=True)
class RunToolProgressed:
    """A tool call has reported progress."""

    progress: CallProgress


@attrs.frozen(kw_only=True)
class RunToolDone:
    """A tool call has a result."""

    result: ToolResult


@attrs.frozen(kw_only=True)
class RunCallerAsked:
    """A call of a client's tool waits for its result. With isolation, the arguments have the values, not references to them."""

    approval: Approval


@attrs.frozen(kw_only=True)
class RunApprovalAsked:
    """A tool call needs an approval."""

    approval: Approval


@attrs.frozen(kw_only=True)
class RunApprovalDecided:
    """An approver has decided an approval."""

    approval: Approval
    decision: Decision


@attrs.frozen(kw_only=True)
class RunSuspended:
    """The turn waits for approval decisions and for results of client-executed tool calls. It resumes after all of them."""

    approvals: Sequence[Approval]
    at: float = attrs.field(default=0.0, eq=False)
    """Unix time in seconds at which the record was written; 0 if unknown."""

    @property
    def caller_calls(self) -> Sequence[Approval]:
        """Client-executed tool calls for whose results the turn waits."""
        return [each for each in self.approvals if each.for_caller]

    @property
    def user_approvals(self) -> Sequence[Approval]:
        """Approvals that a user must decide, without client-executed tool calls."""
        return [each for each in self.approvals if not each.for_caller]


@attrs.frozen(kw_only=True)
class RunEnded:
    """The message of the run has ended: it was answered or failed."""

    failed: str | None
    """Kind of the failure, as in `Failure.kind`; None if the message was answered."""
    reason: str
    """Description of the failure by actgent; empty for an answer, and for exceptions that user code raised."""
    stop: str
    """Reason why the model stopped its last answer."""
    usage: Usage
    """Token usage and cost of all model calls of the run."""
    data: str | None = None
    """Structured data of the last answer as JSON text; None without data."""
    answer_type: str = ""
    """Name of the last answer's response type (instruction); empty if it has none."""
    is_event: bool = False
    """True if the last answer is an application event without a reply, whose text only encodes the data."""
    at: float = 0.0
    """Unix time in seconds at which the record was written; 0 if unknown."""


RunEvent = (
    RunStarted
    | TextDelta
    | TextDiscarded
    | AnswerDone
    | RunToolProgressed
    | RunToolDone
    | RunCallerAsked
    | RunApprovalAsked
    | RunApprovalDecided
    | RunSuspended
    | RunEnded
)

MOVED = "moved"
"""Failure kind of a run that another process continues."""


@attrs.define
class RunReader:
    """Reader that converts the records and partial answers of a session to the events of one run."""

    message_id: str
    """Id of the message whose run is read. If empty, the run that follows the next approval decision is read."""
    open_approvals: Callable[[], Sequence[Approval]]
    """Returns the open approvals and client-executed calls of the session, and the open approvals of its child sessions."""
    visible_text: Callable[[str], str] = str
    """Returns the part of a complete answer that the user may read; see `visible_text_filter`."""
    is_over: bool = False
    """True after the run has ended with `RunEnded` or `RunSuspended`."""
    is_suspended: bool = False
    """True after the run has ended with `RunSuspended`."""
    is_whole: bool = False
    """False if a suspension always ends the run. True if a suspension does not end the run when the turn has resumed after it.
    """
    continues_after_suspension: bool = False
    """True if no suspension ends the run. `RunStarted` follows `RunSuspended` when the turn resumes."""
    _turn: str = ""
    """Id of the message that started the turn in which the run's message is answered."""
    _reply_id: str = ""
    """Reply id of the answer whose text was emitted last."""
    _text: str = ""
    """Text of the answer with the id `_reply_id` that was emitted so far."""
    _answer_text: str = ""
    """Text of the model's last answer that was emitted; empty if a reply has replaced it."""
    _stop: str = ""
    _media: Sequence[Medium] = ()
    """Images and files of the model's last answer."""
    _outcome: OutcomeRecord | None = None
    """Record of the last answer's reply, or of its event if it has no reply; None if the answer's text is the reply."""
    _at: float = 0.0
    """Unix time in seconds at which the current record was written."""
    _usage: Usage = NO_USAGE
    _results: set[str] = attrs.field(factory=set)
    """Ids of the tool calls whose results were emitted."""
    _asked: dict[str, Approval] = attrs.field(factory=dict)

    def read(self, item: FollowedItem) -> list[RunEvent]:
        """Convert an item from the session's record stream to events of the run.

        Items of other turns, and items after the end of the run, give no events.
        """
        if self.is_over:
            return []
        if isinstance(item, PartialText):
            return self._grow(item) if item.turn in (self.message_id, self._turn) else []
        if isinstance(item, FollowedRecord):
            self._at = item.at or 0.0
            return self._read_record(item.record, item.turn)
        return [RunToolProgressed(progress=item)] if self._turn else []

    def end(self, failed: str | None, reason: str) -> list[RunEvent]:
        """End the run and return its last event. `failed` is the kind of a failure, or None for an answer."""
        self.is_over = True
        outcome = self._outcome if failed is None else None
        return [
            RunEnded(
                failed=failed,
                reason=reason,
                stop=self._stop,
                usage=self._usage,
                data=None if outcome is None else outcome.data,
                answer_type="" if outcome is None else outcome.name,
                is_event=outcome is not None and outcome.kind == "event",
                at=self._at,
            )
        ]

    def _grow(self, item: PartialText) -> list[RunEvent]:
        events: list[RunEvent] = []
        if self._text and (item.reply_id != self._reply_id or item.begin < len(self._text)):
            events.append(TextDiscarded(reply_id=self._reply_id))
            self._text = ""
        self._reply_id = item.reply_id
        self._text += item.text
        if item.text:
            events.append(TextDelta(reply_id=item.reply_id, text=item.text))
        return events

    def _read_record(self, record: Record, turn: str) -> list[RunEvent]:
        if isinstance(record, SessionClosedRecord):
            return self.end("stopped", "the session was closed")
        if isinstance(record, MessageEndRecord) and record.message_id == self.message_id:
            return self.end(record.failed, record.error_text)
        if isinstance(record, MessageAppendedRecord):
            return self._begin(record, turn)
        if isinstance(record, ApprovalDecisionRecord) and not self.message_id:
            self.message_id = self._turn = turn
        return self._read_own(record) if self._turn and turn == self._turn else []

    def _read_own(self, record: Record) -> list[RunEvent]:
        """Convert a record that belongs to the run's turn to events."""
        match record:
            case AgentMessageRecord():
                return self._say(record)
            case OutcomeRecord():
                return self._emit_changed_reply(record)
            case CallFinishedRecord():
                return self._finish([record.result])
            case ApprovalRequestRecord() | ApprovalDecisionRecord():
                return self._read_approval(record)
            case SuspensionRecord() | ResumptionRecord():
                return self.suspend() if isinstance(record, SuspensionRecord) else self._resume()
        return []

    def _read_approval(self, record: ApprovalRequestRecord | ApprovalDecisionRecord) -> list[RunEvent]:
        if isinstance(record, ApprovalRequestRecord):
            self._asked[record.approval.id] = record.approval
            asked = RunCallerAsked if record.approval.for_caller else RunApprovalAsked
            return [asked(approval=record.approval)]
        approval = self._asked.pop(record.approval_id, None)
        if approval is None or approval.for_caller or not record.by:
            return []
        return [RunApprovalDecided(approval=approval, decision=record.decision)]

    def _resume(self) -> list[RunEvent]:
        if not (self.is_suspended and self.continues_after_suspension):
            return []
        self.is_suspended = False
        return [RunStarted(message_id=self.message_id, at=self._at)]

    def _begin(self, record: MessageAppendedRecord, turn: str) -> list[RunEvent]:
        if record.message_id != self.message_id or self._turn:
            return []
        self._turn = turn
        return [RunStarted(message_id=self.message_id, at=self._at)]

    def _say(self, record: AgentMessageRecord) -> list[RunEvent]:
        message = record.message
        if message.sender.kind not in ("assistant", "agent"):
            return self._finish(message.tool_results)
        self._usage += record.usage
        self._stop = record.stop
        self._outcome = None
        self._media = tuple(part for part in message.parts if isinstance(part, Medium))
        text = self.visible_text(message.text)
        return [
            *self._complete(message.id, text),
            AnswerDone(
                reply_id=message.id,
                text=text,
                calls=message.tool_calls,
                stop=record.stop,
                usage=record.usage,
                media=self._media,
            ),
        ]

    def _complete(self, reply_id: str, text: str) -> list[RunEvent]:
        """Return an event for the part of a complete answer's text that was not emitted yet.

        A fast answer may be complete before any partial text was emitted.
        """
        events: list[RunEvent] = []
        shown = self._text if reply_id == self._reply_id else ""
        if self._text and (reply_id != self._reply_id or not text.startswith(shown)):
            events.append(TextDiscarded(reply_id=self._reply_id))
            shown = ""
        if rest := text[len(shown) :]:
            events.append(TextDelta(reply_id=reply_id, text=rest))
        self._reply_id, self._text, self._answer_text = reply_id, "", text
        return events

    def _emit_changed_reply(self, record: OutcomeRecord) -> list[RunEvent]:
        """Return the events for a reply whose text differs from the model's answer, for example because a guard replaced it."""
        said, self._answer_text = self._answer_text, ""
        if record.kind == "reply" or (record.kind == "event" and self._outcome is None):
            self._outcome = record
        if record.kind != "reply" or not record.text or record.text == said:
            return []
        events: list[RunEvent] = [TextDiscarded(reply_id=self._reply_id)] if said else []
        done = AnswerDone(
            reply_id=record.id, text=record.text, calls=(), stop=self._stop, usage=NO_USAGE, media=self._media
        )
        return [*events, TextDelta(reply_id=record.id, text=record.text), done]

    def _finish(self, results: Sequence[ToolResult]) -> list[RunEvent]:
        new = [each for each in results if each.call_id not in self._results]
        self._results.update(each.call_id for each in new)
        return [RunToolDone(result=each) for each in new]

    def suspend(self) -> list[RunEvent]:
        """Return the events for a suspension of the turn, which ends the run. If the turn waits for a task, return no events."""
        approvals = tuple(self._asked.values()) or tuple(self.open_approvals())
        if self.is_whole:
            waiting = {each.id for each in self.open_approvals()}
            approvals = tuple(each for each in approvals if each.id in waiting)
        if not approvals:
            return []
        self.is_suspended, self.is_over = True, not self.continues_after_suspension
        return [RunSuspended(approvals=approvals, at=self._at)]


def visible_text_filter(session: Session) -> Callable[[str], str]:
    """Return a function that selects the part of a complete answer that the user may read.

    The protocol of the session's agent may put the text for the user into JSON.
    """
    protocol = services_of(session).running.runner.turn_lifecycle.options.protocol
    return lambda text: protocol.partial(text) or ""


async def read_run(
    follower: SessionFollower, reader: RunReader, *, alive_seconds: float
) -> AsyncGenerator[Sequence[RunEvent], None]:
    """Read a session and yield the events of a run in groups, until the run ends or is suspended.

    An empty group means that no event occurred for `alive_seconds`.
    """
    while not reader.is_over:
        events: list[RunEvent] = []
        has_moved_on = True
        try:
            await trio.lowlevel.checkpoint()  # lets the model continue, so that more text is sent together
            if not _read_available(follower, reader, events):
                with trio.move_on_after(alive_seconds) as limit:
                    await follower.wait_for_news()
                has_moved_on = not limit.cancelled_caught
        except trio.EndOfChannel:
            events += reader.end("stopped", "the session was closed")
        except Fenced:
            events += reader.end(MOVED, "another process continues the session: send the same request again")
        if events or not has_moved_on:
            yield events


def _read_available(follower: SessionFollower, reader: RunReader, events: list[RunEvent]) -> bool:
    """Append the events of all items that the follower has now to `events`. Return False if it has no item."""
    has_item = False
    while not reader.is_over and (item := follower.receive_now()) is not None:
        has_item = True
        events += reader.read(item)
    return has_item


@attrs.define
class DeferredCalls:
    """Calls of tools that the agent does not have. A call is stored here until the client may run the tool.

    Before that time, an approver may reject the call. With isolation, the arguments of a stored call may be references, such as
    `@r3`, in place of untrusted values.
    """

    session: Session
    _calls: dict[str, ToolCall] = attrs.field(factory=dict)

    def ready(self, calls: Iterable[ToolCall]) -> list[ToolCall]:
        """Return the calls of the agent's tools, and store the other calls."""
        registry = services_of(self.session).running.core.calling.registry
        self._calls |= {each.id: each for each in calls if registry.get(each.name) is None}
        return [each for each in calls if each.id not in self._calls]

    def get(self, call_id: str) -> ToolCall | None:
        """Return a stored call; None if the call was sent or belongs to another run."""
        return self._calls.get(call_id)

    def take(self, call_id: str) -> ToolCall | None:
        """Remove and return a stored call; None if the call was sent or belongs to another run."""
        return self._calls.pop(call_id, None)

    def take_asked(self, approval: Approval) -> ToolCall:
        """Return the tool call that the client may run now, with the values of its arguments. Remove the stored call."""
        self._calls.pop(approval.call_id, None)
        return ToolCall(approval.tool_name, approval.arguments, id=approval.call_id)


def tool_error_text(status: str, error: str | None, raised: str, *, shows_exception_texts: bool) -> str:
    """Return the description of a failed tool call for a client.

    Args:
        status: Status of the tool result.
        error: Error text of the tool result; None without a text.
        raised: Class name of the exception that user code raised; empty if the error is from actgent.
        shows_exception_texts: False to hide the error text if user code raised the exception.
    """
    if raised and not shows_exception_texts:
        return f"the tool raised {raised}"
    return error or status
