"""Observation events of a runtime, and the bounded stream that delivers them to readers.

Events are immutable. They contain ids, counts and durations, and no contents of messages. Reading events does not
influence the runtime. An event is created only if a reader is open.
"""

import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Self

import attrs
import trio

from actgent.errors import ConfigurationError
from actgent.messages import Priority, ToolStatus, Usage
from actgent.support.dict_serialization import Serializable
from actgent.support.tracing_interface import Tracing


@attrs.frozen(kw_only=True, repr=False)
class Observation(Serializable):
    """Base class of all events."""

    at: float = attrs.field(factory=time.time)
    """Unix time of the event in seconds."""


@attrs.frozen(kw_only=True, repr=False)
class ActorStarted(Observation):
    """Event: an actor started under its name."""

    actor: str
    """Name of the actor."""


@attrs.frozen(kw_only=True, repr=False)
class ActorRestarted(Observation):
    """Event: an actor failed and is restarted with a new object."""

    actor: str
    """Name of the actor."""
    error: str
    """Class name of the exception with which the actor failed."""
    delay: float
    """Seconds until the restart of the actor."""


@attrs.frozen(kw_only=True, repr=False)
class ActorStopped(Observation):
    """Event: an actor stopped; its name can be used again."""

    actor: str
    """Name of the actor."""


@attrs.frozen(kw_only=True, repr=False)
class DeadLettered(Observation):
    """Event: a message could not be delivered or processed and became a dead letter."""

    actor: str
    """Name of the actor or agent that was the recipient."""
    reason: str
    """Text that says why the message was not delivered or processed."""


@attrs.frozen(kw_only=True, repr=False)
class ToolsetConnected(Observation):
    """Event: a toolset published its tools: after it connected, after it reconnected, or because its tools changed."""

    toolset: str
    """Name of the toolset."""
    tools: int
    """Number of tools that the toolset published."""


@attrs.frozen(kw_only=True, repr=False)
class ToolsetLost(Observation):
    """Event: a toolset could not connect, or its connection ended. Calls of its tools fail until it reconnects."""

    toolset: str
    """Name of the toolset."""
    error: str
    """Class name of the exception that ended the connection; `silent` if the toolset did not respond in time."""
    delay: float
    """Seconds until the next connection attempt."""


@attrs.frozen(kw_only=True, repr=False)
class PartitionsTaken(Observation):
    """Event: a cluster node acquired partitions and now serves their sessions."""

    node: str
    """Name of the node that acquired the partitions."""
    before: str
    """Name of the previous owner; empty if there was none."""
    partitions: int
    """Number of acquired partitions."""
    reason: str
    """Reason: `new` (no previous owner), `given_back` (released by its owner), or `died` (the owner died or was cut off)."""
    seconds: float
    """Seconds from the first attempt to acquire a partition until requests for it were answered; the maximum over the
    partitions.
    """


@attrs.frozen(kw_only=True, repr=False)
class SessionObservation(Observation):
    """Base class of events of one session."""

    agent: str
    """Name of the session's agent."""
    session_id: str
    """Id of the session, unique for its agent."""
    turn: str = ""
    """Id of the turn that the event belongs to, which is the id of the answered message; empty if it belongs to no turn."""


@attrs.frozen(kw_only=True, repr=False)
class SessionOpened(SessionObservation):
    """Event: a session was created or loaded and accepts messages."""

    owner: str
    """Name of the session's owner."""
    parent_id: str | None = None
    """Id of the parent session; None for a session without a parent."""
    parent_agent: str | None = None
    """Name of the parent session's agent; None for a session without a parent."""


@attrs.frozen(kw_only=True, repr=False)
class SessionEnded(SessionObservation):
    """Event: a session was closed."""


@attrs.frozen(kw_only=True, repr=False)
class MessageAccepted(SessionObservation):
    """Event: a message was accepted into the inbox."""

    message_id: str
    """Id of the message."""
    priority: Priority
    """Priority of the message."""


@attrs.frozen(kw_only=True, repr=False)
class MessageRefused(SessionObservation):
    """Event: a message was rejected; its sender received the error."""

    message_id: str
    """Id of the message."""
    error: str
    """Class name of the error that the sender received."""


@attrs.frozen(kw_only=True, repr=False)
class TurnStarted(SessionObservation):
    """Event: a turn started, or resumed after a restart of the process."""

    queue_seconds: float
    """Seconds since the creation of the turn's message."""
    is_resumed: bool = False
    """True if the turn resumes work that an earlier process began."""


@attrs.frozen(kw_only=True, repr=False)
class TurnSuspended(SessionObservation):
    """Event: a turn was suspended until approvals arrive. It has no running task until then."""

    ids: tuple[str, ...]
    """Ids of the approvals that the turn waits for."""


@attrs.frozen(kw_only=True, repr=False)
class TurnResumed(SessionObservation):
    """Event: a suspended turn resumed."""


@attrs.frozen(kw_only=True, repr=False)
class ScheduleFired(SessionObservation):
    """Event: a schedule fired."""

    schedule_id: str
    """Id of the schedule, as returned by `session.schedule`."""
    message_id: str
    """Id of the sent message; empty if no message was sent because the previous one is still queued."""


@attrs.frozen(kw_only=True, repr=False)
class ModeChanged(SessionObservation):
    """Event: the mode of a session changed; the model is notified with its next request."""

    previous: str
    """Name of the previous mode."""
    current: str
    """Name of the new mode."""
    by: str
    """Initiator of the change: `user`, `agent`, `admin` or `system`."""


@attrs.frozen(kw_only=True, repr=False)
class ModelStarted(SessionObservation):
    """Event: a model call started. It may wait for rate limits and may take several attempts."""

    message_id: str
    """Id of the message that the call answers: the turn's message or tool results."""
    model: str
    """Name of the model for the first attempt."""


@attrs.frozen(kw_only=True, repr=False)
class AdmissionWaited(SessionObservation):
    """Event: an attempt at a model call waited for rate limits."""

    model: str
    """Name of the model."""
    seconds: float
    """Seconds that the attempt waited for rate limits."""


@attrs.frozen(kw_only=True, repr=False)
class ModelFailed(SessionObservation):
    """Event: an attempt at a model call failed."""

    model: str
    """Name of the model."""
    error: str
    """Class name of the error with which the attempt failed."""
    retry_seconds: float | None = None
    """Seconds until the next attempt with this model; None if this call makes no further attempt with it."""


@attrs.frozen(kw_only=True, repr=False)
class PassStarted(SessionObservation):
    """Event: the protocol started to process a message: the turn's message, or tool results within the turn."""

    message_id: str
    """Id of the message."""
    stage: str | None = None
    """Stage of the protocol; None for the first message of the turn."""


@attrs.frozen(kw_only=True, repr=False)
class ModelAnswered(SessionObservation):
    """Event: a model call ended with an answer."""

    message_id: str
    """Id of the message that the call answers."""
    model: str
    """Name of the model that answered."""
    seconds: float
    """Duration of the call in seconds, including waits and failed attempts."""
    usage: Usage
    """Tokens and cost of the call."""
    stop: str
    """Stop reason of the model; see `ModelResponse.stop`."""
    first_chunk: float | None = None
    """Seconds from the start of the call to the first piece of this answer; None if the answer was not streamed."""


@attrs.frozen(kw_only=True, repr=False)
class ToolStarted(SessionObservation):
    """Event: a tool call started."""

    call_id: str
    """Id of the call."""
    tool_name: str
    """Name of the tool."""


@attrs.frozen(kw_only=True, repr=False)
class ToolProgressed(SessionObservation):
    """Event: a tool reported the progress of a call."""

    call_id: str
    """Id of the call."""
    tool_name: str
    """Name of the tool."""
    done: float | None
    """Finished amount in a unit that the tool chooses; None if the report is only a text."""
    total: float | None
    """Total amount in the same unit; None if unknown."""


@attrs.frozen(kw_only=True, repr=False)
class ToolFinished(SessionObservation):
    """Event: a tool call ended with a result."""

    call_id: str
    """Id of the call."""
    tool_name: str
    """Name of the tool."""
    status: ToolStatus
    """Status of the tool result, such as `success` or `error`."""


@attrs.frozen(kw_only=True, repr=False)
class ApprovalAsked(SessionObservation):
    """Event: a tool call waits for an approval."""

    approval_id: str
    """Id of the approval, for `session.answer`."""
    call_id: str
    """Id of the waiting call."""
    tool_name: str
    """Name of the tool."""


@attrs.frozen(kw_only=True, repr=False)
class ApprovalDecided(SessionObservation):
    """Event: an approval was decided by an approver, or expired."""

    approval_id: str
    """Id of the approval."""
    call_id: str
    """Id of the call."""
    tool_name: str
    """Name of the tool."""
    decision: str
    """Decision: `approved`, `rejected`, `edited`, `responded` or `expired`."""


@attrs.frozen(kw_only=True, repr=False)
class SourceLifted(SessionObservation):
    """Event: a person removed an untrusted source from the label of the session."""

    source: str
    """Name of the removed source."""
    by: str
    """Name of the person."""


@attrs.frozen(kw_only=True, repr=False)
class TurnEnded(SessionObservation):
    """Event: a turn ended, with an answer or a failure."""

    message_id: str
    """Id of the message that started the turn."""
    seconds: float
    """Duration of the turn in this process in seconds."""
    calls: int
    """Number of model calls of the turn."""
    tool_calls: int = 0
    """Number of tool calls of the turn."""
    failed: str | None = None
    """Kind of the failure that ended the turn; None if the turn was answered."""


@attrs.frozen(kw_only=True, repr=False)
class LimitMet(SessionObservation):
    """Event: a turn ended because it reached a usage limit of the turn, of its session, or of the turn that requested it."""

    limit: str
    """Name of the limit in `Limits`."""
    value: float
    """Value of the limit, in the unit of that field of `Limits`."""
    owner_agent: str
    """Name of the agent whose session has the limit."""
    owner_session_id: str
    """Id of the session that has the limit."""


@attrs.frozen(kw_only=True, repr=False)
class MessageFailed(SessionObservation):
    """A message ended with a failure.

    `Runtime.failures` keeps these objects; event readers do not receive them, as they contain error texts.
    """

    message_id: str
    """Id of the message that failed."""
    kind: str
    """Kind of the failure; see `Failure.kind`."""
    error: str
    """Class name of the exception that caused the failure."""
    error_text: str
    """Text of the error, if actgent wrote it; empty for exceptions of user code, and if the runtime redacts texts."""
    cause: str = ""
    """Class and text of the third-party exception that caused the failure; empty if there was none or the runtime
    redacts texts.
    """


@attrs.frozen(kw_only=True, repr=False)
class ToolFailed(SessionObservation):
    """A tool call failed. Kept like `MessageFailed`, and not delivered to event readers."""

    call_id: str
    """Id of the call."""
    tool_name: str
    """Name of the tool."""
    raised: str
    """Class name of the exception that the tool's code raised and whose message is `error_text`.
    Empty if actgent or a `ToolError` wrote the text.
    """
    error_text: str
    """Error text of the tool call (`ToolResult.error`); empty if the runtime redacts texts."""


FAILURES = 1000
"""Number of newest failures of each kind that a runtime keeps."""


class _Backlog:
    """Buffer with the unread events of one reader. The stream appends events, and the reader removes them."""

    def __init__(self, capacity: int) -> None:
        self.events: deque[Observation] = deque(maxlen=capacity)
        self.lost = 0
        self.parked = trio.lowlevel.ParkingLot()
        self.has_ended = False
        self.is_closed = False

    def put(self, event: Observation) -> None:
        """Append an event to the buffer. If the buffer is full, drop the oldest event and count it as lost."""
        if self.has_ended:
            return
        if len(self.events) == self.events.maxlen:
            self.lost += 1
        self.events.append(event)
        self.parked.unpark()

    def end(self) -> None:
        """Reject further events. The reader can still read the events in the buffer."""
        self.has_ended = True
        self.parked.unpark_all()

    def close(self) -> None:
        """Drop all events in the buffer, and reject further events."""
        self.is_closed = True
        self.events.clear()
        self.end()

    def check_open(self) -> None:
        """Check that the reader can read: raise if it was closed, or if the stream has ended and all events were read.

        Raises:
            trio.ClosedResourceError: The reader was closed.
            trio.EndOfChannel: The stream has ended, and all events were read.
        """
        if self.is_closed:
            raise trio.ClosedResourceError
        if self.has_ended:
            raise trio.EndOfChannel


class EventReader(trio.abc.ReceiveChannel[Observation]):
    """Receive channel of a reader of an `EventStream`.

    If the reader is too slow, the oldest events are dropped; `lost` counts them.
    """

    def __init__(self, backlog: _Backlog) -> None:
        self._backlog = backlog

    @property
    def lost(self) -> int:
        """Number of events that were dropped because the reader was too slow."""
        return self._backlog.lost

    async def receive(self) -> Observation:
        """Return the next event; wait until there is one.

        Raises:
            trio.EndOfChannel: The stream has ended, and all events were read.
            trio.ClosedResourceError: The reader was closed.
        """
        await trio.lowlevel.checkpoint()
        backlog = self._backlog
        while not backlog.events:
            backlog.check_open()
            await backlog.parked.park()
        return backlog.events.popleft()

    def receive_nowait(self) -> Observation:
        """Return the next event without waiting.

        Raises:
            trio.WouldBlock: No event is available.
            trio.EndOfChannel: The stream has ended, and all events were read.
            trio.ClosedResourceError: The reader was closed.
        """
        backlog = self._backlog
        if not backlog.events:
            backlog.check_open()
            raise trio.WouldBlock
        return backlog.events.popleft()

    async def aclose(self) -> None:
        """Close the reader. Unread and later events are dropped."""
        self._backlog.close()
        await trio.lowlevel.checkpoint()


class EventStream:
    """Delivers the events of one runtime to any number of readers."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        self.watched = False
        """True while a reader exists. Check it before building an event."""
        self.active = False
        """True while a reader or counter exists. Check it before building an event that is counted."""
        self.tracing = tracing
        """Creates trace spans of events; None without telemetry."""
        self.failures: deque[MessageFailed] = deque(maxlen=FAILURES)
        """The newest messages that ended as failures, oldest first."""
        self.tool_failures: deque[ToolFailed] = deque(maxlen=FAILURES)
        """The newest tool calls that failed, oldest first."""
        self._backlogs: list[_Backlog] = []
        self._counters: list[Callable[[Observation], object]] = []
        self._ended = False

    def publish(self, event: Observation) -> None:
        """Deliver an event to all open readers, and to the functions registered with `counting`."""
        for backlog in self._backlogs:
            backlog.put(event)
        for count in self._counters:
            count(event)

    @contextmanager
    def counting(self, count: Callable[[Observation], object]) -> Iterator[None]:
        """Call `count` with each published event while the `with` block runs.

        Events that are not counted are still created only if a reader is open.
        """
        self._counters.append(count)
        self.active = True
        try:
            yield
        finally:
            self._counters.remove(count)
            self.active = bool(self._backlogs or self._counters)

    def keep_failure(self, failure: MessageFailed) -> None:
        """Store a failure for `Runtime.failures`. Readers receive the `TurnEnded` event instead."""
        self.failures.append(failure)

    @asynccontextmanager
    async def read(self, capacity: int = 1000) -> AsyncGenerator[EventReader, None]:
        """Open a reader that buffers at most `capacity` unread events.

        Raises:
            ConfigurationError: `capacity` is less than 1.
        """
        if capacity < 1:
            raise ConfigurationError(f"an event reader's capacity must be at least 1 event, not {capacity}")
        backlog = _Backlog(capacity)
        if self._ended:
            backlog.end()
        self._backlogs.append(backlog)
        self.watched = self.active = True
        try:
            yield EventReader(backlog)
        finally:
            self._backlogs.remove(backlog)
            self.watched = bool(self._backlogs)
            self.active = bool(self._backlogs or self._counters)
            backlog.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the stream: readers receive the remaining events and then `trio.EndOfChannel`."""
        self._ended = True
        for backlog in self._backlogs:
            backlog.end()
