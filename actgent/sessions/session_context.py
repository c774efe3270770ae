"""`SessionContext`, the internal data of one session, with its `QueuedMessage`s and its `Turn`.

A turn consists of all model calls and tool calls from one outside message to its outcome.

A `QueuedMessage` exists from the call that sends a message until the message's turn starts, or until the message
ends without a turn. Its states:

    sending   waits for room in the inbox, then for the journal. If the message is rejected or cancelled, it is removed.
    accepted  waits for its turn. A caller that sends a message with the same id receives the outcome of this message.

Each session has one table of queued messages by message id. An entry is removed when the turn starts, when the message
ends without a turn, or when the message is rejected.
"""

import functools
import itertools
import math
import typing
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import Context, ContextVar
from types import MappingProxyType
from typing import Any, Literal

import attrs
import trio

from actgent.actors.dead_letters import DeadLetter
from actgent.actors.deadline_timer import TimerHandle
from actgent.actors.inbox import InboxEntry
from actgent.actors.wait_graph import WaitNode
from actgent.errors import (
    ConfigurationError,
    Fenced,
    Interrupted,
    JournalError,
    NotRunning,
    SessionClosed,
    SessionMoved,
    WouldDeadlock,
)
from actgent.errors.text_escaping import counted, shown
from actgent.journal.record_types import (
    NOTHING,
    ActionFailureRecord,
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    FailureRecord,
    Fitting,
    ResumptionRecord,
    StateChangeRecord,
    SuspensionRecord,
    SystemPromptRecord,
    TurnOptions,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.journal.session_state_patches import StatePatcher
from actgent.journal.session_tags_and_metadata import NO_ANNOTATIONS, SessionAnnotations
from actgent.limits_and_schedules.budget import Account, Budget, Funding
from actgent.limits_and_schedules.durable_timer import (
    DueIndex,
    DurableTimer,
    SessionTimers,
    first_steady_time,
    first_time,
)
from actgent.limits_and_schedules.limits import DEFAULT_LIMITS, Limits
from actgent.messages import (
    NO_METADATA,
    Content,
    Event,
    Failure,
    Message,
    OnBusy,
    Priority,
    Reply,
    Sender,
    ToolResult,
    check_busy_rule,
    checked_metadata,
    make_message,
    message_parts,
    new_id,
    traceparent,
    valid_traceparent,
)
from actgent.protocols.partial_answers import PartialAnswer
from actgent.state.reducers import Reducer
from actgent.state.session_state import SHOWN, WITHHELD, StateCheck, StateRecord, Store
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.fast_attrs_constructors import fast_constructor
from actgent.support.untrusted_text_delimiters import join_origins
from actgent.tools.tool_execution import Batch
from actgent.tools.untrusted_sources_of_call import running_call, sources_of_text, sources_outside_of_turns

from .conversation import SessionConversation
from .parent_and_child_sessions import Children, SessionTree
from .pending.approval_ledger import APPROVAL_TIMER, ApprovalDeadline, ApprovalLedger, PendingCalls
from .pending.delegated_tasks import Task
from .pending.turn_checkpoint import TurnCheckpoint, TurnProgress
from .pending.turn_future import CallOptions, Outcome, TurnFuture
from .session_handlers import Handlers
from .session_record_writer import SessionLog

_NO_STATE: Mapping[str, Any] = MappingProxyType({})
Status = Literal["idle", "working", "suspended", "closed"]
"""Status of a session. `suspended`: the session's turn waits only for approvals."""
_NO_TIMERS: Mapping[str, DurableTimer] = MappingProxyType({})
ACCEPTED_IDS = 10_000
"""Maximum number of accepted message ids that a session remembers, to detect repetitions."""
UNWANTED_IDS = 100
"""Maximum number of cancellations that a session remembers for messages that have not arrived."""


@attrs.define(eq=False, repr=False)
class MessageEnding(FieldRepr):
    """Ending of queued messages that never get a turn, e.g. because the session was closed."""

    recorded: trio.Event = attrs.field(factory=trio.Event)
    """Event that is set after the failure of the messages was written to the journal, or could not be written."""
    ended: trio.Event = attrs.field(factory=trio.Event)
    """Event that is set after handlers and callers of the messages have received the failure."""
    error: Exception | None = None
    """Exception with which the messages fail, or the journal's error if the failure could not be written.

    None before `recorded` is set.
    """


class QueuedMessage:
    """A sent message whose turn has not started."""

    # Not made by attrs: a turn that starts at once needs none of the defaults, and setting them costs it half a percent.

    baggage: Mapping[str, Any] = NOTHING
    """Values of the sender's context variables, by name, as loaded from the journal.

    Empty if the message was sent in this process, because then `variables` has all values.
    """
    options: TurnOptions | None = None
    """Stored model options of the message's turn, if the message was loaded from the journal; None without options."""
    inbox_entry: InboxEntry[Message] | None = None
    """Entry of the message in the agent's inbox, reserved or occupied; None before the reservation."""
    log: SessionLog | None = None
    """Log of the session, if the message was or may be recorded; None before the record and without a journal."""
    is_accepted: bool = False
    """True if the inbox and the journal have accepted the message."""
    settled: trio.Event | None = None
    """Event that is set when the message is accepted or rejected; None if no caller waits for that."""
    joined_futures: tuple[TurnFuture, ...] = ()
    """Futures of callers that sent a message with the same id."""
    ending: MessageEnding | None = None
    """Ending of the message without a turn, while its failure is being recorded and delivered; None for other messages."""
    failed: FailureRecord | None = None
    """Failure of the message that was recorded before a restart; None if there is none. Handlers may not have received the failure."""

    def __init__(
        self,
        message: Message,
        variables: Context,
        future: TurnFuture | None = None,
        funding: Funding | None = None,
    ) -> None:
        self.message = message
        self.variables = variables
        """Context variables of the sender, in which the turn runs."""
        self.future = future
        """Future of the caller that waits for the outcome; None if no caller waits."""
        self.funding = funding
        """Budget sources of the message's turn; None if the sender passed none."""

    def __repr__(self) -> str:
        return f"<QueuedMessage of {self.message.id!r}, {'in' if self.is_accepted else 'on its way'}>"

    async def wait_settled(self) -> None:
        """Wait until this message is accepted or rejected."""
        if self.settled is None:
            self.settled = trio.Event()
        await self.settled.wait()

    def mark_done(self) -> None:
        """Wake the tasks in `wait_settled`, because the message is accepted or rejected."""
        if self.settled is not None:
            self.settled.set()


class TurnHost(typing.Protocol):
    """Interface of a running agent, as a turn uses it."""

    @property
    def has_failed(self) -> bool: ...
    @property
    def sessions(self) -> Mapping[str, object]: ...
    def lend_slot(self, turn: "Turn") -> bool: ...
    def reclaim_slot(self, turn: "Turn") -> None: ...
    async def wait_started(self, name: str) -> None: ...


# A turn is in one of five states, which seven events change. A state ignores events without a transition:
# an ending turn, for example, cannot become exposed.
#
#   running    executes a step that always completes: handlers, records, journal writes
#   exposed    a model call, tools or another agent run, which may be cancelled at any moment
#   suspended  waits for an approver; holds neither a task nor a slot
#   ending     has a request to stop (by a user, a timeout or a failure of the agent): it ends at its next step
#   over       the handlers have received its last outcome
TurnState = Literal["running", "exposed", "suspended", "ending", "over"]
"""States of a turn. `exposed` means that the turn runs, and that an interruption may cancel its task immediately."""
TRANSITIONS: Mapping[str, Mapping[TurnState, TurnState]] = {
    "expose": {"running": "exposed"},
    "cover": {"exposed": "running"},
    "suspend": {"running": "suspended", "exposed": "suspended"},
    "resume": {"suspended": "running"},
    "stop": {"running": "ending", "exposed": "ending", "suspended": "ending"},
    "revoke": {"ending": "running"},
    "end": {"running": "over", "exposed": "over", "suspended": "over", "ending": "over"},
}
"""Allowed state changes of a turn, by event: from the current state to the next one."""


@attrs.define(eq=False, repr=False)
class Turn:
    """One turn of a session: all model calls and tool calls from one outside message to its outcome."""

    session: "SessionContext"
    """Session of the turn."""
    message: Message
    """Message that the turn answers, from a user, another agent or a schedule."""
    options: CallOptions
    """Model options of the turn."""
    started: float
    """Start of the turn, as monotonic time in seconds."""
    variables: Context
    """Context variables of the sender of `message`."""
    listeners: tuple[TurnFuture, ...] = ()
    """Futures of callers that wait for the outcome of the turn."""
    joined: tuple[Message, ...] = ()
    """Earlier messages that this turn answers together with `message`."""
    limits: Limits = DEFAULT_LIMITS
    """Maximum model calls, tool calls, tokens, cost and working time of the turn."""
    reported: int = 0
    """Number of messages of the history, counted from the oldest, that `on_message` functions have received."""
    host: TurnHost | None = None
    """The running agent of the session."""
    checkpoint: TurnCheckpoint | None = None
    """Progress of the turn before a restart; None for a new turn."""
    lent_slots: int = 0
    """Number of tools and handlers of the turn that wait for other turns.

    While this number is above 0, the turn has released its concurrency slot to other sessions.
    """
    batch: Batch | None = None
    """Tool calls that the turn is running; None if there are none."""
    budget: Budget | None = None
    """Budget accounts to which the turn is charged; None if no shared limit applies."""
    depth: int = 0
    """Depth of nested agent calls: number of turns that led to this turn by calls between agents; 0 for a user's message."""
    deepest: int = 0
    """Maximum depth of nested agent calls, by the limits of the turns that led to this turn; 0 means unlimited."""
    next_messages: list[Message] = attrs.field(factory=list)
    """Messages that the turn processes next: its own message, then tool results and requests to continue."""
    results: list[ToolResult] = attrs.field(factory=list)
    """Tool results that no handler has received yet."""
    pending_approvals: PendingCalls | None = None
    """Tool calls that wait for approvals, after all other calls of the same answer are done; None if there are none."""
    progress: TurnProgress = attrs.field(factory=fast_constructor(TurnProgress))
    """Counters of the turn, such as model calls and tool calls so far."""
    state: TurnState = "running"
    """State of the turn; see `TRANSITIONS`."""
    task: trio.lowlevel.Task | None = None
    """trio task that runs the turn; None if no task runs it."""
    scope: trio.CancelScope | None = None
    """Cancel scope of the turn's task; None if no task runs the turn."""
    stop: Exception | None = None
    """Error with which the turn must end, set by `stop_with`; None if the turn was not stopped."""
    on_stop: Callable[[], object] | None = None
    """Function that ends a suspended turn after `stop_with`; None if the turn is not suspended."""
    timer: TimerHandle | None = None
    """Timer that stops the turn at its time limit; None without a limit."""
    time_limit_at: float = math.inf
    """End of the turn's time limit in seconds of trio's clock; infinite without a limit."""
    is_cut: bool = False
    """True if the agent failed during the turn. After the restart of the agent, the turn ends without further work."""
    ended: trio.Event | None = None
    """Event that is set at the end of the turn; None if no task waits for the end."""
    error: Exception | None = None
    """Exception that ended the turn; None if the turn has not failed."""
    reply: Reply | None = None
    """Last delivered reply of the turn; None before the first one."""
    event: Event | None = None
    """Last delivered event of the turn; None before the first one."""
    failure: Failure | None = None
    """Failure that callers receive; None if the turn has not failed."""
    is_recorded: bool = False
    """True if the failure is in the journal as the outcome of the turn's messages."""
    blame: str = "internal"
    """Failure kind for exceptions whose class does not determine the kind."""
    answer_id: str = ""
    """Id of the message in the history that holds the turn's current answer."""
    answer_metadata: Mapping[str, Any] = NO_METADATA
    """Metadata of the current answer: the stage of the protocol, if the protocol has stages."""
    is_paused: bool = False
    """True if the provider paused the last answer. The next request continues that answer."""
    token_failed: str = ""
    """Id of the answer whose token handler failed. The failure is reported once per answer."""
    asked_at: float = 0.0
    """Monotonic time in seconds at which the last model call started."""
    first_at: float | None = None
    """Monotonic time in seconds at which the first piece of the answer arrived; None before that, or without streaming."""
    growth: PartialAnswer | None = None
    """Received part of the streamed answer, which is recorded if the turn is interrupted; None if no answer is being received."""
    gate: trio.Event | None = None
    """Event that is set when the running message guards have accepted the turn's messages; None if no guard runs.

    Before that, no part of an answer is delivered or recorded.
    """
    has_journal_readers_only: bool = False
    """True if no handler or caller in this process receives the answer, so that only readers of the journal can see it."""
    aside: str = ""
    """Text for the next model call only, added by `on_query` functions. It is not added to the history."""
    fitting: Fitting | None = None
    """Shortening of the last model request for the context window; None if the request was sent in full."""
    late_sources: str = ""
    """Untrusted sources that tasks of the turn's tools and handlers have read after the end of the turn."""

    def __repr__(self) -> str:
        name = shown(f"{self.message.id} in {self.message.session_id}")
        return f"<Turn of {name}, {self._state}, {counted(self.progress.calls, 'model call')}>"

    @property
    def _state(self) -> str:
        if self.error is not None:
            return "ending"
        if self.task is None and self.state == "running":
            return "queued"
        return "running" if self.state == "exposed" else self.state

    def expose(self) -> None:
        """Let interruptions and timeouts cancel the turn's task immediately, until `cover` is called.

        Raises:
            Interrupted, ModelTimeout, ...: The turn was stopped before this call.
        """
        if self.stop is not None:
            raise self.stop
        if self.state == "running":
            self.state = "exposed"

    def cover(self) -> None:
        """Protect the turn's task from interruptions and timeouts until `expose` is called, for example during a write."""
        if self.state == "exposed":
            self.state = "running"

    def suspend(self) -> None:
        """Suspend the turn: no task runs it until `resume`."""
        self.task = self.scope = None
        self._move("suspend")

    def resume(self) -> None:
        """Mark a suspended turn as running again."""
        self.on_stop = None
        self._move("resume")

    def stop_with(self, error: Exception) -> None:
        """Stop the turn with an error. If `cover` protects the current step, the turn stops after this step."""
        if self.stop is None:
            self.stop = error
        was_exposed = self.state == "exposed"
        self._move("stop")
        if was_exposed and self.scope is not None:
            self.scope.cancel()
        elif self.on_stop is not None:
            self.on_stop()

    @property
    def must_suspend(self) -> bool:
        """True if the turn waits for approvals and has not failed."""
        return self.error is None and self.pending_approvals is not None

    @property
    def end_error(self) -> Exception | None:
        """Error with which the turn ends; None if it succeeds. A request to stop precedes the error of the turn itself."""
        return self.error if self.stop is None else self.stop

    def revoke_stop(self) -> None:
        """Discard the request of `stop_with`, because the work of the turn was done when the request arrived."""
        if self.stop is not None:
            self.stop = None
            self._move("revoke")

    def mark_failed(self, error: Exception) -> None:
        """Mark a turn whose task ended unexpectedly. Its next task only ends the turn, without further work.

        The turn ends with `error`, unless it was stopped before.
        """
        self.is_cut = True
        self.cover()
        self.stop_with(error)

    def end(self) -> None:
        """Mark the turn as ended, and wake the tasks that wait for its end."""
        self.state = "over"
        if self.ended is not None:
            self.ended.set()

    def _move(self, event: str) -> None:
        self.state = TRANSITIONS[event].get(self.state, self.state)

    def store_results_in_checkpoint(self, results: Iterable[ToolResult], asking: Iterable[str]) -> None:
        """Store the results of finished tool calls in the checkpoint while other calls of the answer wait for approvals.

        Args:
            results: Results of the finished calls.
            asking: Ids of the calls that wait for an approval. The checkpoint marks them as not started.
        """
        if self.checkpoint is None:
            self.checkpoint = TurnCheckpoint(self.message.id)
        self.checkpoint.finished.update({result.call_id: result for result in results})
        self.checkpoint.started.difference_update(asking)

    def has_stream_listener(self) -> bool:
        """Return True if a listener receives stream events (tokens, tool progress), not only the outcome."""
        return any(listener.wants_stream for listener in self.listeners)

    def deadline(self) -> float:
        """Return the latest deadline of the callers that wait for the outcome, in seconds of trio's clock."""
        waits = max((listener.deadline() for listener in self.listeners), default=math.inf)
        return min(self.time_limit_at, waits)

    def add_listener(self, listener: TurnFuture) -> None:
        """Add the future of a caller that waits for the outcome."""
        self.listeners = (*self.listeners, listener)
        listener.turn = self

    def remove_listener(self, listener: TurnFuture) -> None:
        """Remove the future of a caller without stopping the turn, even if no other caller waits."""
        self.listeners = tuple(each for each in self.listeners if each is not listener)
        listener.detach()

    def leave(self, listener: TurnFuture) -> None:
        """Remove a caller that stops waiting for the turn. If no other caller waits for the outcome, stop the turn.

        A caller that repeated the id of an earlier message never stops the turn. A caller that joined a suspended turn does not stop
        the turn during the suspension.
        """
        if listener not in self.listeners:
            return
        self.remove_listener(listener)
        is_suspended = self.on_stop is not None
        if listener.is_joined:
            return
        if not self.listeners and not (listener.joined_suspended_turn and is_suspended):
            self.interrupt("the caller is gone")

    def interrupt(self, reason: str) -> None:
        """Stop the turn with the error `Interrupted`."""
        self.stop_with(Interrupted(reason))

    @property
    def is_ending(self) -> bool:
        """True if the turn will not resume, because it was stopped or its agent has failed."""
        return self.stop is not None or (self.host is not None and self.host.has_failed)

    def check(self) -> None:
        """Raise the error with which the turn was stopped. Do nothing if it was not stopped.

        Raises:
            Interrupted: The turn was interrupted.
            ModelTimeout: The time limit of the turn is over.
        """
        if self.stop is not None:
            raise self.stop


@attrs.define(eq=False, repr=False)
class Suspension(FieldRepr):
    """A suspended turn, which waits for approvals and has no task."""

    message: Message
    """Message that the suspended turn answers."""
    turn: Turn | None = None
    """The turn; None if the turn was suspended by an earlier process and resumes from `SessionContext.checkpoint`."""
    joined_futures: tuple[TurnFuture, ...] = ()
    """Futures of callers that joined while `turn` was None."""
    messages: int = 1
    """Number of messages that the turn answers."""

    def add_joined_future(self, future: TurnFuture) -> None:
        """Add the future of a caller that waits for the outcome of the suspended turn."""
        future.joined_suspended_turn = True
        if self.turn is None:
            self.joined_futures = (*self.joined_futures, future)
        else:
            self.turn.add_listener(future)

    def remove_joined_future(self, future: TurnFuture) -> None:
        """Remove the future of a caller that stopped waiting for the suspended turn."""
        self.joined_futures = tuple(each for each in self.joined_futures if each is not future)
        if future.turn is not None:
            future.turn.remove_listener(future)


running_turn: ContextVar[Turn | None] = ContextVar("running_turn", default=None)
"""Turn to which the current task or worker thread belongs; None outside of turns."""


class SessionHost(typing.Protocol):
    """Interface of a running agent, as its sessions and other agents use it."""

    @property
    def is_stopping(self) -> bool: ...
    @property
    def has_ended(self) -> bool: ...
    @property
    def has_stopped(self) -> bool: ...
    @property
    def is_durable(self) -> bool: ...
    def kept(self, context: "SessionContext") -> "AbstractContextManager[SessionContext]": ...
    def note_closed(self, context: "SessionContext") -> None: ...
    def remove(self, context: "SessionContext") -> "list[SessionContext]": ...
    def discard(self, context: "SessionContext") -> None: ...
    def resume_if_superseded(self, context: "SessionContext") -> None: ...
    def dead_letter(self, letter: DeadLetter) -> None: ...
    async def close(self, context: "SessionContext") -> "list[SessionContext]": ...
    async def stop_closed(self, context: "SessionContext") -> None: ...
    def evict(self, context: "SessionContext") -> None: ...


@attrs.define(eq=False)
class SessionContext:
    """Internal data of one session in memory. An idle session has no task, cancel scope, channel or lock."""

    id: str
    """Id of the session, unique for its agent."""
    owner: Sender
    """Owner of the session."""
    conversation: SessionConversation
    """Messages of the session, with their usage and memory view."""
    agent: str = ""
    """Name of the agent."""
    host: SessionHost | None = None
    """The running agent of the session; None if the session is only read."""
    on_busy: OnBusy = "queue"
    """Default rule for messages that arrive while the session is busy."""
    reducers: Mapping[str, Reducer] | None = None
    """Functions that combine the old and the new value of a state key, by key; None without such functions."""
    state_check: StateCheck | None = None
    """Function that can reject a state change; None accepts all changes."""
    tree: "SessionTree[SessionContext] | None" = None
    """Relations to other sessions; None until `open_tree` creates them."""
    is_former: bool = False
    """True for a session of an old journal format, in which session ids were unique across agents.

    Ids that are derived from such a session have the old form.
    """
    handlers: Handlers = attrs.field(factory=Handlers)
    """Handlers of the session."""
    public_session: object = None
    """The public `Session` object, which handlers and tools receive; None if the session was unloaded from memory.

    After the end of the session, the object is referenced only weakly; see `release_public_session`.
    """
    turn: Turn | None = None
    """The running turn; None between turns."""
    closed: bool = False
    """True if the session accepts no more messages."""
    log: SessionLog | None = None
    """Log that writes the session's records; None without a journal."""
    checkpoint: TurnCheckpoint | None = None
    """Checkpoint of an unfinished turn from before a restart, which has to be resumed; None if there is none."""
    approvals: ApprovalLedger | None = None
    """Approvals of the session; None before the first one."""
    suspension: Suspension | None = None
    """The suspended turn; None if no turn waits for approvals."""
    is_transient: bool = False
    """True if the session serves a single request, and closes after its last pending message."""
    has_moved: bool = False
    """True if another process owns the session or acquires it."""
    resumes_at_next_start: bool = False
    """True if the agent is stopping and its next start resumes the session. Outcomes in this process are then not final."""
    is_forwarded: bool = False
    """True if queued messages are left to the next owner of the session, so that this process must not close the session."""
    pending: int = 0
    """Number of messages to the session that are being sent, queued or processed."""
    pins: int = 0
    """Number of open blocks and `pin` calls that keep the session in memory."""
    acceptances: dict[str, QueuedMessage] | None = None
    """Queued messages by message id; None if there are none."""
    outcomes: dict[str, Outcome] | None = None
    """Outcomes of ended messages that callers may send again, by message id; None if there are none."""
    unwritten_turn: TurnCheckpoint | None = None
    """Checkpoint of the last turn, if the journal failed to record the outcome. If the message is sent again, the turn resumes."""
    has_journal_readers_only: bool = False
    """True if no handler or caller in this process received the last answer, so that only readers of the journal can see it."""
    cancellations: dict[str, str] | None = None
    """Reasons for cancelling messages that have not arrived yet, by message id; None if there are none."""
    opening_task: trio.lowlevel.Task | None = None
    """Task that calls the `on_session` functions for the loaded session, before its queued messages; None otherwise."""
    due_index: DueIndex | None = None
    """Index of the agent's sessions by the time of their next timer; None if the session was removed from memory."""
    _accepted: dict[str, None] | None = None
    _idle: trio.lowlevel.ParkingLot | None = None
    """Tasks in `wait_idle`; None if no task waits."""
    _timers: SessionTimers | None = None
    _state: Store | None = None
    seen_state: Mapping[str, Any] = _NO_STATE
    """Read-only session state: the state store, or an empty mapping if the session has no store yet."""
    annotations: SessionAnnotations = NO_ANNOTATIONS
    """Tags and metadata of the session."""

    def __repr__(self) -> str:
        name = shown(f"{self.agent}/{self.id}")
        return f"<SessionContext {name} {self.status}, {counted(len(self.conversation.messages), 'message')}>"

    @property
    def status(self) -> Status:
        """Current status of the session: `idle`, `working`, `suspended` or `closed`."""
        if self.closed:
            return "closed"
        if self.suspension is not None:
            return "suspended"
        return "working" if self.pending else "idle"

    @property
    def refusal(self) -> SessionClosed | SessionMoved:
        """Error for calls on this closed session: `SessionMoved` if another process owns the session, else `SessionClosed`."""
        return SessionMoved(self.agent, self.id) if self.has_moved else SessionClosed(self.id)

    @property
    def answered_ids(self) -> tuple[str, ...]:
        """Ids of the messages that the running or suspended turn answers. The first id is also the id of the turn."""
        turn = self.turn
        if turn is None:
            return () if self.suspension is None else (self.suspension.message.id,)
        return (turn.message.id, *(each.id for each in turn.joined))

    @property
    def open_turn_id(self) -> str | None:
        """Id of the unfinished turn: of the running or suspended turn, or of the turn to resume. None if there is none."""
        if answered := self.answered_ids:
            return answered[0]
        if self.checkpoint is not None:
            return self.checkpoint.message_id
        return None if self.host is not None else next((each.id for each in self.waiting_messages), None)

    @property
    def key(self) -> SessionKey:
        """Agent name and id of the session."""
        return SessionKey(self.agent, self.id)

    @property
    def scope(self) -> str:
        """Prefix of all ids that are derived from this session, such as message ids. No other session has this prefix."""
        return self.id if self.is_former else self.key.scope

    @property
    def description(self) -> str:
        """Beginning of the session's first message; empty if the session was created without a message."""
        return self.conversation.description

    @property
    def state(self) -> Store:
        """State store of the session, created at the first access."""
        if self._state is None:
            self._state = self.seen_state = Store(
                reducers=self.reducers, check=self.state_check, write=_writer_for(self)
            )
        return self._state

    @property
    def state_values(self) -> Mapping[str, Any]:
        """Values of the session's state, including internal values that programs cannot read.

        The caller must not change the mapping.
        """
        return _NO_STATE if self._state is None else self._state.shared_values

    @property
    def withheld_sources(self) -> str:
        """Untrusted sources of the withheld tool results, which isolation hides from the model; empty if there are none."""
        kept = (value["sources"] for key, value in self.state_values.items() if key.startswith(WITHHELD))
        return functools.reduce(join_origins, kept, "")

    @property
    def shown_sources(self) -> str:
        """Untrusted sources of the values of withheld results that the model has read under `Policy(bits=)`; empty if there are none."""
        sources: str = self.state_values.get(SHOWN, {}).get("ever", "")
        return sources

    @property
    def has_state(self) -> bool:
        """True if the state store was created, because the state was used or loaded."""
        return self._state is not None

    @property
    def state_number(self) -> int:
        """Number of changes of the session's state so far."""
        return 0 if self._state is None else self._state.number

    def state_at(self, number: int) -> Mapping[str, Any]:
        """Return the session's state as it was after the first `number` changes.

        If that state was rolled back or is no longer stored, return the current state.
        """
        if self._state is None or number not in self._state.known:
            return self.seen_state
        return self._state.replay(number)

    def ledger(self) -> ApprovalLedger:
        """Return the approval ledger of the session: its open requests and decisions. The first call creates the ledger."""
        if self.approvals is None:
            self.approvals = ApprovalLedger()
        return self.approvals

    def record_approval(
        self, record: ApprovalRequestRecord | ApprovalDecisionRecord | SuspensionRecord | ResumptionRecord
    ) -> None:
        """Apply an approval record to the session's ledger, and add it to the session's log."""
        self.ledger().apply(record)
        if type(record) is ApprovalRequestRecord:
            self.mark_approvals_open()
        self.update_approval_timer()
        if self.log is not None:
            self.log.add(record)
        elif (recent := self.conversation.recent) is not None:
            recent.add_record(record)

    def update_approval_timer(self) -> None:
        """Set the timer for the next approval that expires; cancel it if no approval is open."""
        at = math.inf if self.approvals is None else self.approvals.deadline
        if at == math.inf:
            self.drop_timer(APPROVAL_TIMER)
        elif (timer := self.timers.get(APPROVAL_TIMER)) is None or timer.at != at:
            self.set_timer(ApprovalDeadline(at))

    def is_from_user(self, message: Message) -> bool:
        """Return True if a user sent the message, and not an agent that owns the session.

        An agent that owns a session sends messages with the sender kind `user`. For these, return False.
        """
        is_owners = message.sender.name == self.owner.name
        return message.sender.kind == "user" and not (is_owners and self.owner.kind == "agent")

    @property
    def is_silent(self) -> bool:
        """True if the session is closed and its log has stopped writing, because the session is being erased."""
        return self.closed and self.log is None

    @property
    def is_quiescent(self) -> bool:
        """True if the session has no work, no timers and no unwritten records."""
        has_work = self.is_busy or self.pending or self.turn is not None or self.timers or self.closed
        return not has_work and (self.log is None or self.log.is_idle)

    @property
    def is_busy(self) -> bool:
        """True if the session has pending messages besides those of a suspended turn, or must stay in memory."""
        suspended = 0 if self.suspension is None else self.suspension.messages
        return bool(self.pins) or self.pending > suspended

    # --- ids that were given by callers ---------------------------------------------------

    def has_accepted(self, message_id: str) -> bool:
        """Return True if the session has accepted a message with this id, so that a new message with this id is a repetition.

        Only the newest ids are remembered.
        """
        return self._accepted is not None and message_id in self._accepted

    @property
    def accepted_ids(self) -> tuple[str, ...]:
        """Remembered ids of accepted messages, oldest first."""
        return tuple(self._accepted or ())

    def restore_accepted_ids(self, ids: Iterable[str]) -> None:
        """Set the remembered ids of accepted messages, after the session was loaded."""
        self._accepted = dict.fromkeys(ids) or None

    def add_accepted_id(self, message_id: str) -> None:
        """Store the id of an accepted message, so that a second message with the same id counts as a repetition."""
        if self._accepted is None:
            self._accepted = {}
        self._accepted[message_id] = None
        if len(self._accepted) > ACCEPTED_IDS:
            del self._accepted[next(iter(self._accepted))]

    def release_accepted_id(self, message_id: str) -> None:
        """Remove an id from the accepted ids, e.g. after a failed write, so that a message with this id can be accepted again."""
        if self._accepted is not None:
            self._accepted.pop(message_id, None)

    # --- messages that were stopped before they were in -----------------------------------

    def cancel_on_arrival(self, message_id: str, reason: str) -> bool:
        """Note that the message with this id must be cancelled when it arrives or starts. Return True if the cancellation is new.

        Return False if the message has ended or was cancelled before. If there are too many noted cancellations, the oldest is
        dropped.
        """
        has_ended = self.has_accepted(message_id) and self.find_message(message_id) is None
        if has_ended or message_id in (self.cancellations or ()):
            return False
        if self.cancellations is None:
            self.cancellations = {}
        self.cancellations[message_id] = reason
        if len(self.cancellations) > UNWANTED_IDS:
            del self.cancellations[next(iter(self.cancellations))]
        return True

    def cancellation_reason(self, message_id: str) -> str | None:
        """Return the noted reason for cancelling a message; None if the message was not cancelled."""
        return None if self.cancellations is None else self.cancellations.get(message_id)

    def drop_cancellation(self, message_id: str) -> None:
        """Remove the noted cancellation of a message that has ended."""
        if self.cancellations is not None:
            self.cancellations.pop(message_id, None)
            self.cancellations = self.cancellations or None

    # --- messages -------------------------------------------------------------------------

    def add_message(self, acceptance: QueuedMessage) -> None:
        """Add a message that is being sent to the table of queued messages, and count it as pending."""
        self.pending += 1
        self.restore_message(acceptance)

    def restore_message(self, acceptance: QueuedMessage) -> None:
        """Add a message from the journal to the table of queued messages, without counting it as pending."""
        if self.acceptances is None:
            self.acceptances = {}
        self.acceptances[acceptance.message.id] = acceptance

    def forget_message(self, message_id: str, *, is_refused: bool) -> None:
        """Remove a message from the table of queued messages, because a record shows its end.

        If it was rejected (`is_refused`), a message with its id can be accepted again.
        """
        if self.acceptances is not None:
            self.acceptances.pop(message_id, None)
            self.acceptances = self.acceptances or None
        if is_refused:
            self.release_accepted_id(message_id)

    def find_message(self, message_id: str) -> QueuedMessage | None:
        """Return the queued message with this id; None if no message with this id is queued."""
        return None if self.acceptances is None else self.acceptances.get(message_id)

    @property
    def waiting_messages(self) -> Iterator[Message]:
        """Accepted messages whose turn has not started, in the order in which they were sent."""
        return (each.message for each in (self.acceptances or {}).values() if each.is_accepted)

    def remove_rejected(self, acceptance: QueuedMessage) -> None:
        """Remove a rejected message from the queued and pending messages, and wake the tasks that wait for its acceptance."""
        self.take_message(acceptance.message)
        self.finish_messages()
        acceptance.mark_done()

    def take_message(self, message: Message) -> QueuedMessage:
        """Remove a message from the table of queued messages, and return it, because its turn starts or it ends without a turn."""
        assert self.acceptances is not None  # noqa: S101 - each message in the inbox has an acceptance
        acceptance = self.acceptances.pop(message.id)
        if not self.acceptances:
            self.acceptances = None
        return acceptance

    @property
    def should_close(self) -> bool:
        """True if the session must be closed, because it was created for one request and has no pending message.

        A session whose queued messages are left to its next owner stays open.
        """
        return self.is_transient and not (self.pending or self.is_forwarded)

    def finish_messages(self, count: int = 1) -> None:
        """Subtract `count` ended messages from the number of pending messages. At zero, wake the tasks in `wait_idle`."""
        self.pending -= count
        if not self.pending and self._idle is not None:
            self._idle.unpark_all()

    # --- the conversation ----------------------------------------------------------------

    def new_message(
        self,
        content: Content,
        sender: Sender | str | None = None,
        priority: Priority | str = Priority.NORMAL,
        *,
        message_id: str | None = None,
        deadline: float | None = None,
        on_busy: OnBusy | None = None,
        metadata: Mapping[str, Any] | None = None,
        via: str = "",
    ) -> Message:
        """Create a message to this session without sending the message.

        If `sender` is None, the sender is the owner of the session.

        `deadline` is the maximum time in seconds to wait for room in the inbox. `via` names the untrusted sources of the
        sender.

        Raises:
            ConfigurationError: The content is empty, or an argument is invalid.
        """
        if sender is None:
            owner = self.owner
            sender = owner if owner.kind == "user" else Sender(owner.name)
        elif isinstance(sender, str):
            sender = Sender.named(sender)
        elif not isinstance(sender, Sender):
            raise ConfigurationError(f"sender= must be a name or a Sender, not {sender!r}")
        trace = traceparent.get()
        return make_message(
            id=message_id or new_id(),
            session_id=self.id,
            sender=sender,
            parts=message_parts(content),
            priority=priority if type(priority) is Priority else Priority.named(priority),
            deadline=deadline,
            on_busy=self.on_busy if on_busy is None else check_busy_rule(on_busy),
            traceparent=None if trace is None else valid_traceparent(trace),
            metadata=NO_METADATA if metadata is None else checked_metadata(metadata),
            via=via,
        )

    def append_unanswered(self, message: Message) -> None:
        """Append a message that no turn answers to the history, e.g. a notice. Record the message without waiting for the write."""
        self.conversation.append(message)
        if self.log is not None:
            self.log.add(AgentMessageRecord(message=message))
            self.log.flush_soon()

    def set_system(self, prompt: str) -> None:
        """Replace the system prompt of the session. The next model call uses the new prompt."""
        turn = running_turn.get()
        via = "" if turn is not None and turn is self.turn else _sources_of_other_turn(turn)
        self.conversation.system = prompt
        self.conversation.add_via(via)
        if self.log is not None:
            self.log.add(SystemPromptRecord(system=prompt, via=via))
            self.log.flush_soon()

    def future_of(self, acceptance: QueuedMessage) -> TurnFuture | None:
        """Return the future that receives the outcome of a queued message: that of the task or of the caller; None if there is none."""
        task = None if self.tree is None else self.tree.task
        if task is not None and acceptance.message.id == task.message_id:
            return task.future
        return acceptance.future

    # --- timers --------------------------------------------------------------------------

    @property
    def timers(self) -> Mapping[str, DurableTimer]:
        """Timers of the session that have not fired, by timer id: schedules, task deadlines and approval deadlines."""
        return _NO_TIMERS if self._timers is None else self._timers.due

    @property
    def schedules(self) -> SessionTimers:
        """Timers and schedules of the session, created at the first access."""
        if self._timers is None:
            self._timers = SessionTimers()
        return self._timers

    @property
    def has_timers(self) -> bool:
        """True if the session ever had a timer or a schedule."""
        return self._timers is not None

    def set_timer(self, timer: DurableTimer) -> None:
        """Set a timer, replacing the timer with the same id. The time is written with the session's next records."""
        self.schedules.due[timer.id] = timer
        self.report_next_timer()

    def drop_timer(self, timer_id: str) -> None:
        """Cancel the timer with this id. An unknown id is ignored. The next records of the session contain the change."""
        if self._timers is not None and self._timers.due.pop(timer_id, None) is not None:
            self.report_next_timer()

    def report_next_timer(self) -> None:
        """Store the time of the session's next timer in the session's log and in the agent's index of timers."""
        if self.log is not None:
            self.log.set_timer(first_time(self.timers))
        if self.due_index is not None:
            self.due_index.set(self.id, first_steady_time(self.timers, self.due_index.clock))

    # --- the tree ------------------------------------------------------------------------

    def open_tree(self) -> "SessionTree[SessionContext]":
        """Return the session's relations to other sessions, created at the first call."""
        if self.tree is None:
            self.tree = SessionTree()
        return self.tree

    @property
    def parent(self) -> "SessionContext | None":
        """Parent session if it is in memory; None otherwise."""
        return None if self.tree is None else self.tree.parent

    @property
    def parent_key(self) -> SessionKey | None:
        """Key of the parent session, in memory or not; None without a parent."""
        return None if self.tree is None else self.tree.parent_key

    @property
    def children(self) -> "Children[SessionContext] | None":
        """Open child sessions; None if the session never had any."""
        return None if self.tree is None else self.tree.children

    @property
    def task(self) -> Task | None:
        """Task that the session executes for its parent session; None if the session executes no task."""
        return None if self.tree is None else self.tree.task

    @property
    def accounts(self) -> tuple[Account, ...]:
        """Budget accounts that limit the session: those of its own limits and of its parents' limits."""
        return () if self.tree is None else self.tree.accounts

    @property
    def wait_node(self) -> WaitNode | None:
        """Node of the session in the wait graph (sessions that wait for each other); None if the session is not in the graph."""
        return None if self.tree is None else self.tree.wait_node

    @property
    def root_owner(self) -> Sender:
        """Owner of the topmost parent session, also while that session is not in memory. Without a parent, the session's owner."""
        context = self
        while context.parent is not None:
            context = context.parent
        return (context.tree and context.tree.root_owner) or context.owner

    @property
    def quota_owner(self) -> str:
        """Name of the owner whose quota the session uses: the owner of the topmost parent session."""
        return self.owner.name if self.tree is None else self.root_owner.name

    def add_child(self, child: "SessionContext") -> None:
        """Add a new child session to the children of this session."""
        tree = self.open_tree()
        if tree.children is None:
            tree.children = Children()
        tree.children.add(child)
        if child.may_have_approvals:
            child.mark_approvals_open()

    def family(self) -> "list[SessionContext]":
        """Return this session and all open descendants, parents before children."""
        family = [self]
        for each in family:
            family += (each.children or {}).values()
        return family

    @property
    def reports_due(self) -> int:
        """Number of delegated tasks whose outcome this session has not received yet."""
        return len(self.children.reporting) if self.children else 0

    def remove_child(self, child: "SessionContext") -> None:
        """Remove a child session from the children of this session; an unknown child is ignored."""
        if self.children is not None:
            self.children.drop(child)

    def release_public_session(self) -> None:
        """Replace the reference to the public `Session` by a weak reference, if this session and all its children have ended.

        With a strong reference, both objects would stay in memory until the garbage collector runs.
        """
        has_ended = self.closed and self.due_index is None and not (self.pending or self.pins)
        weak_handle = getattr(self.public_session, "__actgent_weak_handle__", None)
        if has_ended and not self.children and weak_handle is not None:
            self.public_session = weak_handle()

    @property
    def may_have_approvals(self) -> bool:
        """True if this session has an open approval, or if one of its descendants may have an open approval."""
        waits = self.approvals is not None and self.approvals.has_open
        return waits or bool(self.children and self.children.asking)

    def mark_approvals_open(self) -> None:
        """Mark this session as having open approvals, so that searches that start at a parent session visit it."""
        child, parent = self, self.parent
        while (
            parent is not None
            and parent.children is not None
            and parent.children.mark_may_have_approvals(child)
        ):
            child, parent = parent, parent.parent

    # --- idleness ------------------------------------------------------------------------

    @property
    def _is_deciding(self) -> bool:
        """True if the decisions of all open approvals are being written, so that the turn will resume soon."""
        return self.approvals is not None and self.approvals.is_deciding

    def wake_idle_waiters(self) -> None:
        """Wake the tasks in `wait_idle`, so that they check again if the session is idle."""
        if self._idle is not None:
            self._idle.unpark_all()

    def check_not_inside(self, call: str) -> None:
        """Raise `WouldDeadlock` if the calling task belongs to a turn of this session, because the call would never return.

        `call` is the name of the public method for the error.

        Raises:
            WouldDeadlock: The caller is inside a turn of the session, or in one of its `on_session` functions.
        """
        is_opening = self.opening_task is not None and self.opening_task is trio.lowlevel.current_task()
        if is_opening or (self.turn is not None and is_inside(self.turn)):
            raise WouldDeadlock(call, self.id)

    async def wait_idle(self) -> None:
        """Wait until no message is pending, or until the turn is suspended and no decision about it is being written.

        Raises:
            SessionMoved: Another process owns the session.
        """
        if not self.pending or (self.suspension is not None and not self._is_deciding):
            await trio.lowlevel.checkpoint()
        while self.pending and (self.suspension is None or self._is_deciding):
            if self._idle is None:
                self._idle = trio.lowlevel.ParkingLot()
            await self._idle.park()
        self._idle = None  # frees its memory; another task that waits keeps the lot
        if self.log is not None and self.has_journal_readers_only:
            with suppress(
                JournalError, Fenced
            ):  # the records stay queued, or another process owns the session
                await self.log.flush()
        if self.has_moved or self.is_forwarded:
            raise SessionMoved(self.agent, self.id)


def _rejects_record(context: SessionContext, record: StateRecord) -> bool:
    """Return True if a session with a journal must record nothing more, because its agent has stopped.

    The next start of the agent loads the session again, without later changes of this object.

    Raises:
        NotRunning: The agent has stopped, and the record is a change of the state.
    """
    is_outdated = context.log is not None and context.host is not None and context.host.has_stopped
    if is_outdated and type(record) is StateChangeRecord:
        raise NotRunning(context.agent)
    return is_outdated


def _writer_for(context: SessionContext) -> Callable[[StateRecord], None]:
    """Return the function with which the state store of a session records its changes.

    The function has only a weak reference to the session.
    """
    reference, patcher = weakref.ref(context), StatePatcher()

    def write(record: StateRecord) -> None:
        found = reference()
        if found is None or _rejects_record(found, record):
            return
        running = running_call.get()
        if running is not None and running.owner is found and type(record) is StateChangeRecord:
            running.note_stored(record.changes)
        if type(record) is StateChangeRecord and (via := _sources_of_writer(found, record)):
            record = attrs.evolve(record, via=via)
        if found.log is not None:
            if type(record) is StateChangeRecord:
                record = patcher.patch(record, found.state.shared_values)
            found.log.record_state_change(record)
            if not isinstance(record, ActionFailureRecord):
                patcher.note(record)
        elif (recent := found.conversation.recent) is not None:
            recent.add_record(record)

    return write


def _sources_of_writer(context: SessionContext, record: StateChangeRecord) -> str:
    """Return the untrusted sources that the record of a state change must contain, because no earlier record contains them.

    In the running turn of this session, these are the sources of other sessions' answers and of running tool calls. For other
    callers, return the sources of the calling turn or request, and also add them to the label of this session.
    """
    turn = running_turn.get()
    if turn is None or turn is not context.turn:
        sources = _sources_of_other_turn(turn)
        context.conversation.add_via(sources)
        return sources
    batch = turn.batch
    if (
        batch is not None
        and batch.isolation is not None
        and all(key.startswith("_") for key in record.changes)
    ):
        return ""  # the hidden results themselves
    sources, context.conversation.unrecorded = context.conversation.unrecorded, ""
    return sources if batch is None else join_origins(sources, batch.running_sources())


def _sources_of_other_turn(turn: Turn | None) -> str:
    """Return the untrusted sources of `turn`, which belongs to another session or has ended.

    If `turn` is None, return the sources of the current request.
    """
    return sources_outside_of_turns() if turn is None else sources_of_turn(turn)


def sources_of_turn(turn: Turn) -> str:
    """Return the untrusted sources of all texts that the current task of a turn may have read.

    A task that a tool or handler of the turn has started belongs to the turn, even after the end of the turn.
    """
    running, given = running_call.get(), join_origins(sources_of_text.get(), turn.late_sources)
    if running is not None and running.owner is turn.session:
        given = join_origins(given, running.sources)
    if turn.batch is not None:
        given = join_origins(given, turn.batch.unrecorded_sources())
    return join_origins(turn.session.conversation.sources, given)


def host_of(context: SessionContext) -> SessionHost:
    """Return the running agent of a session.

    Raises:
        NotRunning: The session was loaded only for reading, without its agent.
    """
    if context.host is None:
        raise NotRunning(context.agent)
    return context.host


def can_resume(messages: Sequence[Message], message_id: str) -> bool:
    """Return True if the failed turn of message `message_id` can resume after the last message of its session.

    Return False, so that the turn starts again, if that message is truncated or if all tool calls of the turn were cancelled.
    """
    if not messages or messages[-1].cut or not messages[-1].tool_results:
        return bool(messages) and not messages[-1].cut
    its = itertools.takewhile(lambda message: message.id != message_id, reversed(messages))
    return any(result.status != "cancelled" for message in its for result in message.tool_results)


def checkpoint_of(turn: Turn, messages: Sequence[Message], *, state_number: int) -> TurnCheckpoint | None:
    """Return the checkpoint from which a failed turn resumes; None if the turn has to start again."""
    if not can_resume(messages, turn.message.id):
        return None
    last = messages[-1]
    is_answer = last.sender.kind == "assistant" and last.causation_id is not None
    return TurnCheckpoint(
        turn.message.id,
        progress=attrs.evolve(turn.progress, called=None, counted=""),
        stop="end" if is_answer else "",
        state_number=state_number,
        delivered={result.id for result in last.tool_results} - {result.id for result in turn.results},
    )


def is_inside(turn: Turn | None) -> bool:
    """Return True if the calling task belongs to `turn`, so that a wait for the turn would never end.

    Tools and handlers of the turn belong to it.
    """
    if turn is None:
        return False
    try:
        task = top = trio.lowlevel.current_task()
    except RuntimeError:  # the worker thread of a tool has the context of its turn
        return running_turn.get() is turn
    while (nursery := task.parent_nursery) is not None:
        if task is turn.task:
            return True
        top, task = task, nursery.parent_task
    # Code that a thread calls through `trio.from_thread` runs in a system task with the context of the thread.
    return top.context.get(running_turn) is turn
