"""What observers may see: frozen event classes and the bounded stream that carries them.

Events tell what happened, never steer, and carry no contents: ids, counts and durations only.
Without a reader an event is not even built.
"""

import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import attrs
import trio

from actgent.errors import ConfigurationError
from actgent.messages import Priority, ToolStatus, Usage
from actgent.support.serializable import Serializable
from actgent.support.tracing import Tracing


@attrs.frozen(kw_only=True)
class Observation(Serializable):
    """Something that happened."""

    at: float = attrs.field(factory=time.time)
    """Unix time in seconds."""


@attrs.frozen(kw_only=True)
class ActorStarted(Observation):
    """An actor is at work under its name."""

    actor: str
    """Its name."""


@attrs.frozen(kw_only=True)
class ActorRestarted(Observation):
    """An actor failed and begins again with a new object."""

    actor: str
    """Its name."""
    error: str
    """The class of the exception."""
    delay: float
    """Seconds until it runs again."""


@attrs.frozen(kw_only=True)
class ActorStopped(Observation):
    """An actor has ended; its name is free."""

    actor: str
    """Its name."""


@attrs.frozen(kw_only=True)
class DeadLettered(Observation):
    """A message was given up."""

    actor: str
    """The name of the actor or agent that it was sent to."""
    reason: str
    """Why nobody deals with it, in words."""


@attrs.frozen(kw_only=True)
class ToolsetConnected(Observation):
    """A toolset published its tools, for the first time, again after it was lost, or because they changed."""

    toolset: str
    """Its name."""
    tools: int
    """The number of tools that it has."""


@attrs.frozen(kw_only=True)
class ToolsetLost(Observation):
    """A toolset could not be connected, or its connection ended; its tools fail until it is back."""

    toolset: str
    """Its name."""
    error: str
    """The class of the exception; `silent` where it did not answer in time."""
    delay: float
    """Seconds until it is tried again."""


@attrs.frozen(kw_only=True)
class PartitionsTaken(Observation):
    """A node of a cluster serves partitions that another one had, or nobody."""

    node: str
    """The name of the node that has them now."""
    before: str
    """The name of the one that had them; empty: nobody had."""
    partitions: int
    """How many they are."""
    reason: str
    """`new`, `given_back`, or `died`, also where that node was only cut off."""
    seconds: float
    """From when the broker handed them over until their requests are answered, at most."""


@attrs.frozen(kw_only=True)
class SessionObservation(Observation):
    """Something that happened in a session."""

    agent: str
    """The name of the session's agent."""
    session_id: str
    """The id of the session, unique within its agent."""
    turn: str = ""
    """The id of the outside message whose turn it belongs to; empty where it belongs to none."""


@attrs.frozen(kw_only=True)
class SessionOpened(SessionObservation):
    """A session takes messages."""

    owner: str
    """The name of its owner."""
    parent_id: str | None = None
    """The session that it is a child of; None for one that stands below no other."""
    parent_agent: str | None = None
    """Whose session the parent is: an id alone is that of one session for each agent."""


@attrs.frozen(kw_only=True)
class SessionEnded(SessionObservation):
    """The session was closed."""


@attrs.frozen(kw_only=True)
class MessageAccepted(SessionObservation):
    """The inbox took a message."""

    message_id: str
    """The message."""
    priority: Priority
    """The level at which it waits."""


@attrs.frozen(kw_only=True)
class MessageRefused(SessionObservation):
    """A message did not get in; its sender has the error."""

    message_id: str
    """The message."""
    error: str
    """Its class."""


@attrs.frozen(kw_only=True)
class TurnStarted(SessionObservation):
    """A turn begins, or goes on after a restart."""

    queued: float
    """Seconds since its message was made."""
    again: bool = False
    """True: it goes on with what it had done when its process ended."""


@attrs.frozen(kw_only=True)
class TurnSuspended(SessionObservation):
    """A turn waits for something outside, and holds no task until then."""

    ids: tuple[str, ...]
    """What it waits for: approvals."""


@attrs.frozen(kw_only=True)
class TurnResumed(SessionObservation):
    """A turn that was suspended goes on."""


@attrs.frozen(kw_only=True)
class ScheduleFired(SessionObservation):
    """The time of a schedule has come."""

    schedule_id: str
    """The schedule, as `session.schedule` returned it."""
    message_id: str
    """What it says; empty where it was passed over, as what it had said before still waits."""


@attrs.frozen(kw_only=True)
class ModeChanged(SessionObservation):
    """The mode of a session is another one, as its model is about to be told."""

    previous: str
    """The name of the mode until now."""
    current: str
    """The name of the mode from now on."""
    by: str
    """Who wanted it: `user`, `agent`, `admin` or `system`."""


@attrs.frozen(kw_only=True)
class ModelStarted(SessionObservation):
    """A model call begins: its provider's limits may let it wait, and it may take several attempts."""

    message_id: str
    """The message that the call answers: the turn's, or tool results."""
    model: str
    """The name of the model that is asked first."""


@attrs.frozen(kw_only=True)
class AdmissionWaited(SessionObservation):
    """An attempt at a model call has waited for the provider's limits."""

    model: str
    """The name of the model."""
    seconds: float
    """Seconds that the attempt waited."""


@attrs.frozen(kw_only=True)
class ModelFailed(SessionObservation):
    """An attempt at a model call has failed."""

    model: str
    """The name of the model."""
    error: str
    """The class of the error."""
    again: float | None = None
    """Seconds to the next attempt; None: this model is not asked again in this call."""


@attrs.frozen(kw_only=True)
class PassStarted(SessionObservation):
    """A message left the inbox, or followed up in its turn, and is processed."""

    message_id: str
    """The message that is processed: the turn's, or tool results."""
    stage: str | None = None
    """The protocol's stage that it goes on with; None at the turn's first message."""


@attrs.frozen(kw_only=True)
class ModelAnswered(SessionObservation):
    """A model call ended with an answer."""

    message_id: str
    """The message that the call answers."""
    model: str
    """The name of the model that answered."""
    seconds: float
    """Seconds since the call began, with waiting and failed attempts."""
    usage: Usage
    """Tokens and cost of the call."""
    stop: str
    """Why the model ended, as `Answer.stop`."""
    first_chunk: float | None = None
    """Seconds from the begin of the call to the first piece of this answer; None where nobody read along, or it came whole."""


@attrs.frozen(kw_only=True)
class ToolStarted(SessionObservation):
    """A tool call runs."""

    call_id: str
    """The call; its result has the same id."""
    tool_name: str
    """The tool's name."""


@attrs.frozen(kw_only=True)
class ToolProgressed(SessionObservation):
    """A tool call has come further."""

    call_id: str
    """The call."""
    tool_name: str
    """The tool's name."""
    done: float | None
    """How much is done, in the tool's own measure; None where it says only words."""
    total: float | None
    """How much there is in all; None where that is not known."""


@attrs.frozen(kw_only=True)
class ToolFinished(SessionObservation):
    """A tool call has its result."""

    call_id: str
    """The call."""
    tool_name: str
    """The tool's name."""
    status: ToolStatus
    """As `ToolResult.status`."""


@attrs.frozen(kw_only=True)
class ApprovalAsked(SessionObservation):
    """A tool call waits for a person."""

    approval_id: str
    """The approval, as `session.answer` takes it."""
    call_id: str
    """The call that waits."""
    tool_name: str
    """The tool's name."""


@attrs.frozen(kw_only=True)
class ApprovalDecided(SessionObservation):
    """A person, or the clock, decided over a call."""

    approval_id: str
    """The approval."""
    call_id: str
    """The call that waited."""
    tool_name: str
    """The tool's name."""
    decision: str
    """`approved`, `rejected`, `edited`, `responded` or `expired`."""


@attrs.frozen(kw_only=True)
class TurnEnded(SessionObservation):
    """An outside message was dealt with."""

    message_id: str
    """The outside message that began the turn."""
    seconds: float
    """Seconds since the turn began, in this process."""
    calls: int
    """Model calls that the turn took."""
    tool_calls: int = 0
    """Tool calls that it made."""
    failed: str | None = None
    """The kind of its failure."""


@attrs.frozen(kw_only=True)
class LimitMet(SessionObservation):
    """A turn ended because a limit was used up: its own, its session's, or that of the turn that asked for it."""

    limit: str
    """A name of `Limits`."""
    value: float
    """The limit's value, in its own unit."""
    owner_agent: str
    """The agent of the session whose limit it was."""
    owner_session_id: str
    """Whose limit it was."""


@attrs.frozen(kw_only=True)
class MessageFailed(SessionObservation):
    """A message that ended as a failure: not read as an event, but kept for `Runtime.failures`, since it has words."""

    message_id: str
    """The message."""
    kind: str
    """As in `Failure.kind`."""
    error: str
    """The class of the error."""
    words: str
    """What actgent says of it; empty for errors of foreign code, and where the runtime redacts texts."""
    cause: str = ""
    """Class and words of the foreign exception that it comes from; empty where the runtime redacts texts."""


@attrs.frozen(kw_only=True)
class ToolFailed(SessionObservation):
    """A tool call that failed: not read as an event, but kept, as `MessageFailed` is."""

    call_id: str
    """The call."""
    tool_name: str
    """The tool's name."""
    raised: str
    """Class of the foreign exception whose words these are; empty for a `ToolError`, or an error of actgent."""
    words: str
    """`ToolResult.error`; empty where the runtime redacts texts."""


FAILURES = 1000
"""How many failures of each kind are kept, the newest."""


class _Backlog:
    """The events that a reader has not read yet: the stream puts them in, the reader takes them out."""

    def __init__(self, capacity: int) -> None:
        self.events: deque[Observation] = deque(maxlen=capacity)
        self.lost = 0
        self.parked = trio.lowlevel.ParkingLot()
        self.has_ended = False
        self.is_closed = False

    def put(self, event: Observation) -> None:
        """Add an event; the oldest one is lost if there is no room."""
        if self.has_ended:
            return
        if len(self.events) == self.events.maxlen:
            self.lost += 1
        self.events.append(event)
        self.parked.unpark()

    def end(self) -> None:
        """Take no further event; those that are there can be read."""
        self.has_ended = True
        self.parked.unpark_all()

    def close(self) -> None:
        """Drop all events, and take no further one."""
        self.is_closed = True
        self.events.clear()
        self.end()

    def check_open(self) -> None:
        """Refuse to read on.

        Raises:
            trio.ClosedResourceError: the reader was closed.
            trio.EndOfChannel: the stream has ended.
        """
        if self.is_closed:
            raise trio.ClosedResourceError
        if self.has_ended:
            raise trio.EndOfChannel


class EventReader(trio.abc.ReceiveChannel[Observation]):
    """One reader's end of a stream. A slow reader loses the oldest events; `lost` counts them."""

    def __init__(self, backlog: _Backlog) -> None:
        self._backlog = backlog

    @property
    def lost(self) -> int:
        """The number of events that came while there was no room."""
        return self._backlog.lost

    async def receive(self) -> Observation:
        """The next event.

        Raises:
            trio.EndOfChannel: the stream has ended and all was read.
            trio.ClosedResourceError: the reader was closed.
        """
        await trio.lowlevel.checkpoint()
        backlog = self._backlog
        while not backlog.events:
            backlog.check_open()
            await backlog.parked.park()
        return backlog.events.popleft()

    def receive_nowait(self) -> Observation:
        """The next event, if there is one.

        Raises:
            trio.WouldBlock: there is none yet.
            trio.EndOfChannel: the stream has ended and all was read.
            trio.ClosedResourceError: the reader was closed.
        """
        backlog = self._backlog
        if not backlog.events:
            backlog.check_open()
            raise trio.WouldBlock
        return backlog.events.popleft()

    async def aclose(self) -> None:
        """Stop reading; later events are not kept."""
        self._backlog.close()
        await trio.lowlevel.checkpoint()


class EventStream:
    """Carries the events of one runtime to any number of readers."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        self.watched = False
        """True while anyone reads; ask before an event is built."""
        self.active = False
        """True while anyone reads or counts; ask before an event is built that is counted."""
        self.tracing = tracing
        """Makes spans of what happens; None without telemetry."""
        self.failures: deque[MessageFailed] = deque(maxlen=FAILURES)
        """The newest messages that ended as failures, oldest first."""
        self.tool_failures: deque[ToolFailed] = deque(maxlen=FAILURES)
        """The newest tool calls that failed, oldest first."""
        self._backlogs: list[_Backlog] = []
        self._counters: list[Callable[[Observation], object]] = []
        self._ended = False

    def publish(self, event: Observation) -> None:
        """Give an event to all readers and counters."""
        for backlog in self._backlogs:
            backlog.put(event)
        for count in self._counters:
            count(event)

    @contextmanager
    def counting(self, count: Callable[[Observation], object]) -> Iterator[None]:
        """Call `count` with each event that is counted, for the block. Turns run as if nobody read the events."""
        self._counters.append(count)
        self.active = True
        try:
            yield
        finally:
            self._counters.remove(count)
            self.active = bool(self._backlogs or self._counters)

    def keep_failure(self, failure: MessageFailed) -> None:
        """Keep a failure for those who look later; readers hear of it by `TurnEnded`."""
        self.failures.append(failure)

    @asynccontextmanager
    async def read(self, capacity: int = 1000) -> AsyncGenerator[EventReader, None]:
        """Open a reader that keeps at most `capacity` events.

        Raises:
            ConfigurationError: `capacity` is less than 1.
        """
        if capacity < 1:
            raise ConfigurationError(f"an event reader's capacity is at least 1 event, not {capacity}")
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

    def end(self) -> None:
        """No further event will come: readers get what is left, then `trio.EndOfChannel`."""
        self._ended = True
        for backlog in self._backlogs:
            backlog.end()
