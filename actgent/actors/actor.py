"""An actor: state with one owner, an inbox, and a method that takes one message at a time."""

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs
import trio

from actgent.errors import ActorFailed, ConfigurationError
from actgent.events import ActorStarted, ActorStopped, DeadLettered, EventStream
from actgent.foreign import failure_of
from actgent.logs import logger_of

from .inbox import PriorityInbox
from .ref import ActorRef, Envelope
from .supervision import Supervision, supervise
from .timer import Timer

_log = logger_of(__name__)

STOP_GRACE = 1.0
"""Seconds that `Actor.stopped` has."""


@attrs.frozen
class DeadLetter:
    """A message that no actor will deal with, and why."""

    actor: str
    payload: Any
    reason: str
    error: Exception | None = None
    """What it failed with, the last time."""


@attrs.define(eq=False, kw_only=True)
class Surroundings:
    """What all actors of a system share."""

    policy: Supervision
    capacity: int
    events: EventStream
    timer: Timer = attrs.field(factory=Timer)
    dead_letters: deque[DeadLetter]
    running: dict[str, ActorRef] = attrs.field(factory=dict)
    serial: "itertools.count[int]" = attrs.field(factory=lambda: itertools.count(1))

    def bury(self, actor: str, envelope: Envelope, reason: str, *, error: Exception | None = None) -> None:
        """Keep a message that nobody will deal with, and tell who waits for it."""
        failure = ActorFailed(actor, reason)
        failure.__cause__ = error
        envelope.fail(failure)
        self.dead_letters.append(DeadLetter(actor, envelope.payload, reason, error))
        _log.warning("a message to actor %s is a dead letter: %s", actor, reason)
        if self.events.watched:
            self.events.publish(DeadLettered(actor=actor, reason=reason))

    def name_for(self, factory: "Callable[[], Actor]", name: str | None) -> str:
        """The wished name, or a new one after the factory's."""
        if name is None:
            stem = getattr(factory, "__name__", "actor")
            name = next(name for serial in self.serial if (name := f"{stem}-{serial}") not in self.running)
        if name in self.running:
            raise ConfigurationError(f"an actor named {name!r} is running already: choose another name")
        return name

    def enter(self, ref: ActorRef) -> None:
        self.running[ref.name] = ref
        if self.events.watched:
            self.events.publish(ActorStarted(actor=ref.name))

    def leave(self, ref: ActorRef) -> None:
        del self.running[ref.name]
        if self.events.watched:
            self.events.publish(ActorStopped(actor=ref.name))


class ActorContext:
    """One running actor's place: its address, its children, its life under supervision."""

    def __init__(self, name: str, factory: "Callable[[], Actor]", around: Surroundings) -> None:
        self._factory = factory
        self._around = around
        self._inbox = PriorityInbox[Envelope](
            name, capacity=around.capacity, session_capacity=around.capacity, concurrency=1
        )
        self._nursery: trio.Nursery | None = None
        self._current: Envelope | None = None
        self.ref = ActorRef(name, self._inbox, around.timer)

    async def spawn(self, factory: "Callable[[], Actor]", *, name: str | None = None) -> ActorRef:
        """Start a child. It ends with this actor; when it fails too often, this actor fails."""
        await trio.lowlevel.checkpoint()
        if self._nursery is None or self.ref._gone is not None:  # noqa: SLF001
            raise ActorFailed(self.ref.name, "it is not running, so it can have no children")
        return start(factory, name, nursery=self._nursery, around=self._around)

    async def run(self) -> None:
        """Live, under supervision, until stopped."""
        scope = self.ref._scope  # noqa: SLF001 - an actor and its address are one thing
        try:
            with scope:
                await self._live_on()
        except Exception:
            if not scope.cancel_called:
                raise
            _log.exception("actor %s raised while it was stopped", self.ref.name)

    async def _live_on(self) -> None:
        reason = "it was stopped"
        try:
            await supervise(
                self._live, name=self.ref.name, policy=self._around.policy, events=self._around.events
            )
        except ActorFailed as error:
            reason = error.reason
            raise
        finally:
            self._end(reason)

    def _end(self, reason: str) -> None:
        """Answer everyone who still waits, senders without room too: they come in as others are taken out."""
        self.ref._gone = reason  # noqa: SLF001
        if self._current is not None:
            self._around.bury(self.ref.name, self._current, reason)
            self._done()
        while left := self._inbox.withdraw(""):
            for envelope in left:
                self._around.bury(self.ref.name, envelope, reason)
        self._around.leave(self.ref)

    async def _live(self) -> None:
        """One life: from a fresh object to its failure."""
        actor = self._factory()
        async with trio.open_nursery() as self._nursery:
            try:
                await actor.started(self)
                await self._serve(actor)
            finally:
                await self._say_stopped(actor)  # noqa: ASYNC102 - it shields itself, for STOP_GRACE

    async def _say_stopped(self, actor: "Actor") -> None:
        with trio.move_on_after(STOP_GRACE, shield=True) as scope:
            try:
                await actor.stopped()
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - it is over: nobody could mend it
                failure_of(raised, "actor", self.ref.name)
                _log.exception("actor %s raised in stopped()", self.ref.name)
        if scope.cancelled_caught:
            _log.warning("actor %s did not return from stopped() within %g s", self.ref.name, STOP_GRACE)

    async def _serve(self, actor: "Actor") -> None:
        while True:
            envelope = self._current or await self._inbox.get()
            self._current = envelope
            try:
                answer = await actor.receive(envelope.payload)
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
                error = failure_of(raised, "actor", self.ref.name)
            else:
                self._done()
                envelope.answer(answer)
                continue
            self._count_failure(envelope, error)
            raise error

    def _done(self) -> None:
        self._current = None
        self._inbox.release("")

    def _count_failure(self, envelope: Envelope, error: Exception) -> None:
        """Put a message aside that keeps failing, so that it does not take its actor along for ever."""
        envelope.failures += 1
        if envelope.failures >= self._around.policy.deliveries:
            self._done()
            reason = f"it failed {envelope.failures} times, last with {type(error).__name__}"
            self._around.bury(self.ref.name, envelope, reason, error=error)


class Actor:
    """Subclass it and write `receive`. One object lives from start to failure; a restart makes a new one."""

    async def started(self, context: ActorContext) -> None:
        """Called before the first message of this object; `context` spawns children."""

    async def receive(self, payload: Any) -> object:
        """Deal with one message; what it returns answers an `ask`.

        What it raises restarts the actor, and the message is tried again a bounded number of times.
        """
        raise NotImplementedError

    async def stopped(self) -> None:
        """Called after the last message of this object, also after a failure; has one second.

        What it raises is only logged.
        """


def start(
    factory: Callable[[], Actor], name: str | None, *, nursery: trio.Nursery, around: Surroundings
) -> ActorRef:
    """Start an actor as a task of `nursery`, where its final failure comes out."""
    context = ActorContext(around.name_for(factory, name), factory, around)
    nursery.start_soon(context.run, name=f"actor {context.ref.name}")
    around.enter(context.ref)
    return context.ref
