"""A running actor's place in its system: a name, a supervised life, an end.

Theory. A cell runs a *body*, life after life, until it is stopped. The body knows how its messages are dispatched: a plain
actor takes one at a time, or several side by side; an agent serves many lines of its inbox by turns. The cell knows
nothing of that; it starts, restarts, escalates, stops and counts, and is the same for both.

    event                          life         then
    the body raises                ends         a pause, and the next life; after too many the end, or ActorFailed, to the parent
    a sibling raises, one for all  is cut       the same pause, and the next life
    stop(), or the parent ends     is cut       the end: who still waits is answered, the name is free

What a body raises while it is cut is logged and counts for nothing: a stop is never turned into a restart, nor the
restart of its siblings into a second one.
"""

import itertools
import logging
import math
import typing
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import trio

from actgent.errors import ActorFailed, ConfigurationError
from actgent.errors.printable import counted
from actgent.events import ActorRestarted, ActorStarted, ActorStopped, DeadLettered, EventStream
from actgent.support.foreign import failure_of
from actgent.support.logs import logger_of

from .dead_letters import DeadLetter, DeadLetters
from .inbox import PriorityInbox
from .ref import Address
from .supervision import Restarts, Supervision, root_cause
from .timer import Timer
from .wait_graph import WaitNode

_log = logger_of(__name__)

GRACE = 10.0
"""Seconds that an actor has to end what is in its inbox, when its system is left."""


class Body(typing.Protocol):
    """What a cell runs."""

    @property
    def name(self) -> str: ...
    @property
    def ref(self) -> Address: ...
    @property
    def inbox(self) -> PriorityInbox[Any]: ...
    async def live(self) -> None:
        """Serve the inbox until cancelled; raise if something failed."""

    def cut(self) -> None:
        """Prepare for a cancelled life that another one follows."""

    def drain(self) -> None:
        """Prepare for the end: the system is being left."""

    async def finish(self, reason: str) -> None:
        """Answer everyone who still waits; called once, after the last life, and shields itself."""


@attrs.define(eq=False, kw_only=True)
class Surroundings:
    """What all actors of a system share."""

    policy: Supervision
    capacity: int = 1000
    grace: float = GRACE
    events: EventStream
    timer: Timer = attrs.field(factory=Timer)
    find_waiter: Callable[[], WaitNode | None]
    """Tells which actor or session the calling task works for."""
    dead_letters: DeadLetters = attrs.field(factory=DeadLetters)
    running: "dict[str, Cell]" = attrs.field(factory=dict)
    serial: "itertools.count[int]" = attrs.field(factory=lambda: itertools.count(1))

    def bury(self, letter: DeadLetter, *, is_told: bool = False) -> None:
        """Keep a message that nobody will deal with; the log warns of it unless its sender was told."""
        self.dead_letters.add(letter)
        level = logging.DEBUG if is_told else logging.WARNING
        _log.log(level, "a message to actor %s is a dead letter: %s", letter.actor, letter.reason)
        if self.events.active:
            self.events.publish(DeadLettered(actor=letter.actor, reason=letter.reason))

    def name_for(self, stem: str, name: str | None) -> str:
        """The wished name, or a new one after the stem.

        Raises:
            ConfigurationError: the name is taken.
        """
        if name is None:
            name = next(name for serial in self.serial if (name := f"{stem}-{serial}") not in self.running)
        if name in self.running:
            raise ConfigurationError(f"an actor named {name!r} is running already: choose another name")
        return name

    def enter(self, cell: "Cell") -> None:
        """List a cell that has started."""
        self.running[cell.name] = cell
        if self.events.watched:
            self.events.publish(ActorStarted(actor=cell.name))

    def leave(self, cell: "Cell") -> None:
        """Free the name of a cell that has ended."""
        del self.running[cell.name]
        if self.events.watched:
            self.events.publish(ActorStopped(actor=cell.name))

    def busy(self) -> "Iterator[Cell]":
        """The cells that have something in their inbox or work on it."""
        return (cell for cell in tuple(self.running.values()) if not cell.is_idle)

    async def wait_idle(self) -> None:
        """Wait until all actors have dealt with everything in their inboxes."""
        await trio.lowlevel.checkpoint()
        while busy := [*self.busy()]:
            for cell in busy:
                await cell.wait_idle()

    async def drain(self) -> None:
        """Let the actors end what they have accepted, and what comes of that, each within its grace; then stop them."""
        cells = [*self.running.values()]
        for cell in cells:
            cell.drain()
        begun = trio.current_time()
        for grace in sorted({cell.grace for cell in cells}):
            with trio.move_on_at(begun + grace):
                await self.wait_idle()
                return
            for cell in cells:
                if cell.grace <= grace:
                    cell.stop()


class Siblings:
    """The cells of one parent, and what the failure of one of them does to the others."""

    def __init__(self, policy: Supervision, around: Surroundings) -> None:
        self.policy = policy
        self.around = around
        self._cells: dict[Cell, None] = {}
        self._restarts = Restarts(policy)
        """Of all of them together, where they restart together."""

    def start(self, body: Body, nursery: trio.Nursery, *, grace: float | None = None) -> "Cell":
        """Start an actor as a task of `nursery`, where its final failure comes out."""
        cell = Cell(body, self, grace=self.around.grace if grace is None else grace)
        nursery.start_soon(cell.run, name=f"actor {cell.name}")
        self._cells[cell] = None
        self.around.enter(cell)
        return cell

    def remove(self, cell: "Cell") -> None:
        """Forget a cell that has ended."""
        self._cells.pop(cell, None)

    def restart(self, failed: "Cell", error: Exception) -> None:
        """Schedule the next life of a cell that failed, and of its siblings if they restart together.

        Raises:
            ActorFailed: The cell, or the group, failed too often. The cell stops, or its parent fails: see `Cell.run`.
        """
        policy, is_group = self.policy, self.policy.strategy == "one_for_all"
        now = trio.current_time()
        delay = (self._restarts if is_group else failed.restarts).next_delay(now)
        if delay is None:
            who = "it and its siblings" if is_group and len(self._cells) > 1 else "it"
            failures = counted(policy.max_restarts + 1, "time")
            reason = f"{who} failed {failures} in {policy.within:g} s, last with {type(error).__name__}"
            if is_group and not policy.escalate:
                for cell in self._cells:
                    if cell is not failed:
                        cell.stop()
            raise ActorFailed(failed.name, reason) from error
        _log.warning("actor %s failed and restarts in %.3g s", failed.name, delay, exc_info=error)
        for cell in self._cells if is_group else (failed,):
            cell.restart_at(now + delay)
            if self.around.events.active:
                self.around.events.publish(
                    ActorRestarted(actor=cell.name, error=type(error).__name__, delay=delay)
                )


class Cell:
    """One running actor."""

    def __init__(self, body: Body, siblings: Siblings, *, grace: float) -> None:
        self.body = body
        self.grace = grace
        self.restarts = Restarts(siblings.policy)
        self._siblings = siblings
        self._scope = trio.CancelScope()
        self.is_stopping = False
        """True if `stop` was called: each message asks, and its scope would look at the clock."""
        self._life = trio.CancelScope()
        self._restart_at = -math.inf

    def __repr__(self) -> str:
        state = "stopping" if self.is_stopping else "idle" if self.is_idle else "busy"
        return f"<Cell {self.name!r}, {state}>"

    @property
    def name(self) -> str:
        """The actor's name in its system."""
        return self.body.name

    @property
    def is_idle(self) -> bool:
        """True if nothing waits for the actor and it works on nothing."""
        return not self.body.inbox.sessions()

    async def wait_idle(self) -> None:
        """Wait until the actor has dealt with everything in its inbox, or is gone."""
        await self.body.inbox.wait_idle()

    def stop(self) -> None:
        """End the actor where it is, also in the pause before a restart."""
        self.is_stopping = True
        self._scope.cancel()

    def bury(self, letter: DeadLetter, *, is_told: bool = False) -> None:
        """Keep a message that the actor will not deal with."""
        self._siblings.around.bury(letter, is_told=is_told)

    def drain(self) -> None:
        """Tell the body that the system is being left."""
        self.body.drain()

    def restart_at(self, time: float) -> None:
        """Have the next life begin at a time of trio's clock; a life that still runs is cut."""
        self._restart_at = max(self._restart_at, time)
        if not self.is_stopping:
            self.body.cut()
            self._life.cancel()

    async def run(self) -> None:
        """Run the actor until it is stopped or has failed too often.

        Raises:
            ActorFailed: The actor failed too often, and its supervision escalates.
        """
        reason = "it was stopped"
        try:
            with self._scope:
                await self._live_on()
        except ActorFailed as error:
            reason = error.reason
            if self._siblings.policy.escalate:
                raise
            _log.error(
                "actor %s is stopped: %s; its queued messages are dead letters, other actors keep running",
                self.name,
                reason,
                exc_info=error.__cause__,
            )
        finally:
            await self._finish(reason)  # noqa: ASYNC102 - the body shields what must not be cancelled

    async def _finish(self, reason: str) -> None:
        try:
            await self.body.finish(reason)
        finally:
            self._siblings.remove(self)
            self._siblings.around.leave(self)

    async def _live_on(self) -> None:
        while await self._live_once():
            await trio.lowlevel.checkpoint_if_cancelled()
            while trio.current_time() < self._restart_at:  # noqa: ASYNC110 - a sibling may move it meanwhile
                await trio.sleep_until(self._restart_at)

    async def _live_once(self) -> bool:
        """Run one life; False if the body ended by itself."""
        with trio.CancelScope() as self._life:
            try:
                await self.body.live()
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - the supervisor's edge: this is what it is for
                self._fail(root_cause(failure_of(raised, "actor", self.name)))
            else:
                return self._life.cancel_called
        return True

    def _fail(self, error: Exception) -> None:
        """Schedule the restart after a failure; one in the clean-up of a life that was cut is only logged."""
        if trio.current_effective_deadline() == -math.inf:
            _log.error("actor %s raised while it was stopped", self.name, exc_info=error)
        else:
            self._siblings.restart(self, error)
