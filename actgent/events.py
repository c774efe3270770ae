"""What observers may see: frozen event classes and the bounded stream that carries them.

Events tell what happened, never steer, and carry no contents: ids, counts and durations only.
Without a reader an event is not even built.
"""

import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import trio

from actgent.errors import ConfigurationError
from actgent.messages import Priority, ToolStatus, Usage


@attrs.frozen(kw_only=True)
class Observation:
    """Something that happened."""

    at: float = attrs.field(factory=time.time)
    """Unix time in seconds."""


@attrs.frozen(kw_only=True)
class ActorStarted(Observation):
    """An actor is at work under its name."""

    actor: str


@attrs.frozen(kw_only=True)
class ActorRestarted(Observation):
    """An actor failed and begins again with a new object."""

    actor: str
    error: str
    """The class of the exception."""
    delay: float
    """Seconds until it runs again."""


@attrs.frozen(kw_only=True)
class ActorStopped(Observation):
    """An actor has ended; its name is free."""

    actor: str


@attrs.frozen(kw_only=True)
class DeadLettered(Observation):
    """A message was given up."""

    actor: str
    reason: str


@attrs.frozen(kw_only=True)
class SessionObservation(Observation):
    """Something that happened in a session."""

    agent: str
    session_id: str


@attrs.frozen(kw_only=True)
class SessionOpened(SessionObservation):
    """A session takes messages."""

    owner: str
    parent_id: str | None = None
    parent_agent: str | None = None
    """Whose session the parent is: an id alone is that of one session for each agent."""


@attrs.frozen(kw_only=True)
class SessionEnded(SessionObservation):
    """The session was closed."""


@attrs.frozen(kw_only=True)
class MessageAccepted(SessionObservation):
    """The inbox took a message."""

    message_id: str
    priority: Priority


@attrs.frozen(kw_only=True)
class PassStarted(SessionObservation):
    """A message left the inbox, or followed up in its turn, and is processed."""

    message_id: str
    stage: str | None = None


@attrs.frozen(kw_only=True)
class ModelAnswered(SessionObservation):
    """A model call ended with an answer."""

    message_id: str
    model: str
    seconds: float
    usage: Usage
    stop: str


@attrs.frozen(kw_only=True)
class ToolFinished(SessionObservation):
    """A tool call has its result."""

    call_id: str
    tool_name: str
    status: ToolStatus


@attrs.frozen(kw_only=True)
class ApprovalAsked(SessionObservation):
    """A tool call waits for a person."""

    approval_id: str
    call_id: str
    tool_name: str


@attrs.frozen(kw_only=True)
class ApprovalDecided(SessionObservation):
    """A person, or the clock, decided over a call."""

    approval_id: str
    call_id: str
    tool_name: str
    decision: str
    """`approved`, `rejected`, `edited`, `responded` or `expired`."""


@attrs.frozen(kw_only=True)
class TurnEnded(SessionObservation):
    """An outside message was dealt with."""

    message_id: str
    """The outside message that began the turn."""
    seconds: float
    calls: int
    """Model calls that the turn took."""
    failed: str | None = None
    """The kind of its failure."""


@attrs.frozen(kw_only=True)
class LimitMet(SessionObservation):
    """A turn ended because a limit was used up: its own, its session's, or that of the turn that asked for it."""

    limit: str
    """A name of `Limits`."""
    value: float
    owner_agent: str
    owner_session_id: str
    """Whose limit it was."""


class EventReader(trio.abc.ReceiveChannel[Observation]):
    """One reader's end of a stream. A slow reader loses the oldest events; `lost` counts them."""

    def __init__(self, capacity: int) -> None:
        self.lost = 0
        self._events: deque[Observation] = deque(maxlen=capacity)
        self._parked = trio.lowlevel.ParkingLot()
        self._ended = False
        self._closed = False

    async def receive(self) -> Observation:
        """The next event.

        Raises:
            trio.EndOfChannel: the stream has ended and all was read.
            trio.ClosedResourceError: the reader was closed.
        """
        await trio.lowlevel.checkpoint()
        while not self._events:
            self._check_open()
            await self._parked.park()
        return self._events.popleft()

    def receive_nowait(self) -> Observation:
        """The next event, if there is one.

        Raises:
            trio.WouldBlock: there is none yet.
            trio.EndOfChannel: the stream has ended and all was read.
            trio.ClosedResourceError: the reader was closed.
        """
        if not self._events:
            self._check_open()
            raise trio.WouldBlock
        return self._events.popleft()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        if self._ended:
            raise trio.EndOfChannel

    async def aclose(self) -> None:
        self._close()
        await trio.lowlevel.checkpoint()

    def _close(self) -> None:
        self._closed = True
        self._events.clear()
        self._end()

    def _take(self, event: Observation) -> None:
        if self._ended:
            return
        if len(self._events) == self._events.maxlen:
            self.lost += 1
        self._events.append(event)
        self._parked.unpark()

    def _end(self) -> None:
        self._ended = True
        self._parked.unpark_all()


class EventStream:
    """Carries the events of one runtime to any number of readers."""

    def __init__(self) -> None:
        self.watched = False
        """Whether anyone reads; ask before an event is built."""
        self._readers: list[EventReader] = []
        self._ended = False

    def publish(self, event: Observation) -> None:
        for reader in self._readers:
            reader._take(event)  # noqa: SLF001 - the stream and its readers are one thing

    @asynccontextmanager
    async def read(self, capacity: int = 1000) -> AsyncGenerator[EventReader, None]:
        """Open a reader that keeps at most `capacity` events.

        Raises:
            ConfigurationError: `capacity` is less than 1.
        """
        if capacity < 1:
            raise ConfigurationError(f"an event reader's capacity is at least 1 event, not {capacity}")
        reader = EventReader(capacity)
        if self._ended:
            reader._end()  # noqa: SLF001
        self._readers.append(reader)
        self.watched = True
        try:
            yield reader
        finally:
            self._readers.remove(reader)
            self.watched = bool(self._readers)
            reader._close()  # noqa: SLF001

    def end(self) -> None:
        """No further event will come: readers get what is left, then `trio.EndOfChannel`."""
        self._ended = True
        for reader in self._readers:
            reader._end()  # noqa: SLF001
