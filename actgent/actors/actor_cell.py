"""`Cell`: the supervised run of one actor, with start, restart, escalation and stop.

A cell runs a *body* repeatedly until the actor is stopped; each run is one *incarnation*. The body dispatches the
messages: the body of a plain actor handles one message at a time, or several concurrently. The body of an agent schedules the
sessions of its inbox. The cell is the same for both.

    event                              incarnation   next
    the body returns, as it has no     ends          the task of the cell ends; `wake` starts the next one
    work
    the body raises                    ends          a pause and a restart; after too many failures the end, or ActorFailed
    a sibling raises (`one_for_all`)   is cancelled  the same pause and a restart
    stop(), or the parent ends         is cancelled  the end: waiting callers get an error, and the name becomes free

Exceptions that a body raises while it is cancelled are only logged. So a stop never becomes a restart, and the restart of the
siblings never causes a second one.
"""

import contextvars
import itertools
import logging
import math
import typing
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs
import trio

from actgent.errors import ActorFailed, ConfigurationError
from actgent.errors.text_escaping import counted
from actgent.events import ActorRestarted, ActorStarted, ActorStopped, DeadLettered, EventStream
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.safe_logging import logger_of
from actgent.support.user_code_calls import convert_user_error

from .actor_ref import Address
from .dead_letters import DeadLetter, DeadLetters
from .deadline_timer import Timer
from .inbox import PriorityInbox
from .supervision import Restarts, Supervision, root_cause
from .wait_graph import WaitNode

_log = logger_of(__name__)

GRACE = 10.0
"""Default seconds for an actor to process queued messages when its system block ends."""


class Body(typing.Protocol):
    """Interface of the message loop of an actor or agent, which a cell runs and restarts."""

    @property
    def name(self) -> str: ...
    @property
    def ref(self) -> Address: ...
    @property
    def inbox(self) -> PriorityInbox[Any]: ...
    def run_in(self, cell: "Cell") -> None:
        """Set the cell that runs this body. The cell calls it once, before the first incarnation."""

    async def live(self) -> None:
        """Process messages of the inbox until cancelled; raise after a failure.

        Return if there is no work. Then the task of the actor ends, and the body calls `Cell.wake` for the next work.
        """

    def prepare_restart(self) -> None:
        """Prepare for the cancellation of this incarnation. A restart follows."""

    def drain(self) -> None:
        """Prepare for the end, since the system block is ending."""

    def retire(self) -> None:
        """End the task of the actor if it has no work, since all actors of the system are idle and the block is ending."""

    async def finish(self, reason: str) -> None:
        """Answer all waiting callers. The cell calls it once, after the last incarnation; it shields itself from cancellation."""


@attrs.define(eq=False, kw_only=True, repr=False)
class SystemContext(FieldRepr):
    """Objects that all actors of a system share: timer, events, dead letters, and the table of actors."""

    policy: Supervision
    capacity: int = 1000
    grace: float = GRACE
    events: EventStream
    timer: Timer = attrs.field(factory=Timer)
    find_waiter: Callable[[], WaitNode | None]
    """Function that returns the node, in the graph of waits, of the actor or session for which the calling task works."""
    dead_letters: DeadLetters = attrs.field(factory=DeadLetters)
    running: "dict[str, Cell | UnusedCell]" = attrs.field(factory=dict)
    serial: "itertools.count[int]" = attrs.field(factory=lambda: itertools.count(1))

    def dead_letter(self, letter: DeadLetter, *, caller_knows: bool = False) -> None:
        """Keep a dead letter and publish an event. Log a warning, unless `caller_knows`: the sender has received an error."""
        self.dead_letters.add(letter)
        level = logging.DEBUG if caller_knows else logging.WARNING
        _log.log(level, "a message to actor %s is a dead letter: %s", letter.actor, letter.reason)
        if self.events.active:
            self.events.publish(DeadLettered(actor=letter.actor, reason=letter.reason))

    def name_for(self, stem: str, name: str | None) -> str:
        """Return `name`, or a generated name that begins with `stem` if `name` is None.

        Raises:
            ConfigurationError: The name is taken.
        """
        if name is None:
            name = next(name for serial in self.serial if (name := f"{stem}-{serial}") not in self.running)
        if name in self.running:
            raise ConfigurationError(f"an actor named {name!r} is running already: choose another name")
        return name

    def enter(self, cell: "Cell | UnusedCell") -> None:
        """Register a started cell under its name, and publish an event if the name is new.

        The cell of an unused actor replaces the actor's `UnusedCell`.
        """
        is_new = cell.name not in self.running
        self.running[cell.name] = cell
        if is_new and self.events.watched:
            self.events.publish(ActorStarted(actor=cell.name))

    def leave(self, cell: "Cell | UnusedCell") -> None:
        """Remove an ended cell, which frees its name."""
        del self.running[cell.name]
        if self.events.watched:
            self.events.publish(ActorStopped(actor=cell.name))

    def cells(self) -> "Iterator[Cell]":
        """Iterate over the cells of actors that were used, in start order."""
        return (cell for cell in tuple(self.running.values()) if isinstance(cell, Cell))

    def unused(self) -> "Iterator[UnusedCell]":
        """Iterate over the cells of unused actors, in start order."""
        return (cell for cell in tuple(self.running.values()) if isinstance(cell, UnusedCell))

    def busy(self) -> "Iterator[Cell]":
        """Iterate over the cells with queued or running messages."""
        return (cell for cell in self.cells() if not cell.is_idle)

    async def wait_idle(self) -> None:
        """Wait until the inboxes of all actors are empty and no message is being processed."""
        await trio.lowlevel.checkpoint()
        while busy := [*self.busy()]:
            for cell in busy:
                await cell.wait_idle()

    async def drain(self) -> None:
        """Let each actor process accepted messages, and messages caused by them, within its grace time. Then stop all actors."""
        cells = [*self.running.values()]
        for cell in cells:
            cell.drain()
        if next(self.busy(), None) is None:  # the usual case; the caller has checkpoints after this one
            return
        begun = trio.current_time()
        for grace in sorted({cell.grace for cell in cells}):
            with trio.move_on_at(begun + grace):
                await self.wait_idle()
                return
            for cell in cells:
                if cell.grace <= grace:
                    cell.stop()


class UnusedActor(typing.Protocol):
    """Interface of an actor that is built only at its first use."""

    name: str

    @property
    def ref(self) -> Address: ...
    def __actgent_build__(self) -> Body:
        """Build the body. Its cell starts right after the call."""

    async def __actgent_finish__(self) -> None:
        """Release the resources of an actor that ends unused; it shields itself from cancellation."""


@attrs.define(eq=False, repr=False)
class UnusedCell(FieldRepr):
    """Placeholder of an actor that was started and not used yet. The placeholder has a name in the system, but no task or inbox.

    The first use replaces the placeholder by a `Cell`. The cell runs with the context variables of the task that started the
    actor, not with those of the task that uses it first.
    """

    actor: UnusedActor
    grace: float
    _siblings: "Siblings" = attrs.field(repr=False)
    _nursery: trio.Nursery = attrs.field(repr=False)
    _context: contextvars.Context = attrs.field(factory=contextvars.copy_context, init=False, repr=False)
    is_draining: bool = attrs.field(default=False, init=False)
    """True if the system block is ending."""

    @property
    def name(self) -> str:
        """Name of the actor in its system."""
        return self.actor.name

    def start(self) -> "Cell":
        """Build the actor and run it in a task. Call this once."""
        return self._context.run(self._start)

    def _start(self) -> "Cell":
        cell = self._siblings.start(self.actor.__actgent_build__(), self._nursery, grace=self.grace)
        if self.is_draining:
            cell.drain()
        return cell

    def stop(self) -> None:
        """Start the actor and cancel it immediately, so that it ends with the same steps as a used actor."""
        self.start().stop()

    def drain(self) -> None:
        """Note that the system block is ending. If the actor is used later, it has only its grace time to process messages."""
        self.is_draining = True

    async def finish(self) -> None:
        """End the actor without building or starting it, which frees its name."""
        try:
            await self.actor.__actgent_finish__()
        finally:
            self._siblings.context.leave(self)


class Siblings:
    """The cells of one parent's child actors. When one fails, the supervision policy of the parent is applied."""

    def __init__(self, policy: Supervision, context: SystemContext) -> None:
        self.policy = policy
        self.context = context
        self._cells: dict[Cell, None] = {}
        self._restarts = Restarts(policy)
        """Restart count that all siblings share with `one_for_all`."""

    def start(self, body: Body, nursery: trio.Nursery, *, grace: float | None = None) -> "Cell":
        """Start an actor as a task of `nursery`, in which an escalated failure is raised.

        `grace` is the time in seconds to finish messages when the system block ends; None uses the default.
        """
        cell = Cell(body, self, nursery, grace=self.context.grace if grace is None else grace)
        body.run_in(cell)
        cell.wake()
        self._cells[cell] = None
        self.context.enter(cell)
        return cell

    def remove(self, cell: "Cell") -> None:
        """Remove an ended cell from the siblings."""
        self._cells.pop(cell, None)

    def restart(self, failed: "Cell", error: Exception) -> None:
        """Schedule the restart of a failed cell after the pause of its policy; with `one_for_all`, restart its siblings too.

        Raises:
            ActorFailed: The cell, or the group, failed too often. `Cell.run` then stops the cell or fails its parent.
        """
        policy, is_group = self.policy, self.policy.strategy == "one_for_all"
        now = trio.current_time()
        delay = (self._restarts if is_group else failed.restarts).next_delay(now)
        if delay is None:
            failed_cells = "it and its siblings" if is_group and len(self._cells) > 1 else "it"
            failures = counted(policy.max_restarts + 1, "time")
            reason = (
                f"{failed_cells} failed {failures} in {policy.within:g} s, last with {type(error).__name__}"
            )
            if is_group and not policy.escalate:
                for cell in self._cells:
                    if cell is not failed:
                        cell.stop()
            raise ActorFailed(failed.name, reason) from error
        _log.warning("actor %s failed and restarts in %.3g s", failed.name, delay, exc_info=error)
        for cell in self._cells if is_group else (failed,):
            cell.restart_at(now + delay)
            if self.context.events.active:
                self.context.events.publish(
                    ActorRestarted(actor=cell.name, error=type(error).__name__, delay=delay)
                )


class Cell:
    """Supervised run of one actor: start, restart after failures, escalation and stop. Without work it needs no task."""

    def __init__(self, body: Body, siblings: Siblings, nursery: trio.Nursery, *, grace: float) -> None:
        self.body = body
        self.grace = grace
        self.restarts = Restarts(siblings.policy)
        self._siblings = siblings
        self._nursery = nursery
        self._context = contextvars.copy_context()
        """Context variables of the start, in which each task of the actor runs."""
        self._has_task = False
        self._has_work = False
        """True if `wake` was called since the current incarnation began."""
        self._scope: trio.CancelScope | None = None
        """Scope that `stop` cancels: of the incarnation, or of the pause before the next one."""
        self.is_stopping = False
        """True after `stop`. Each message checks this flag, since the check of a cancel scope reads the clock."""
        self._ends_without_work = False
        """True after `end_without_work`."""
        self._incarnation: trio.CancelScope | None = None
        self._restart_at = -math.inf

    def __repr__(self) -> str:
        state = "stopping" if self.is_stopping else "idle" if self.is_idle else "busy"
        return f"<Cell {self.name!r}, {state}>"

    @property
    def name(self) -> str:
        """Name of the actor in its system."""
        return self.body.name

    @property
    def is_idle(self) -> bool:
        """True if the inbox is empty and no message is being processed."""
        return not self.body.inbox.sessions()

    async def wait_idle(self) -> None:
        """Wait until the inbox is empty and no message is being processed, or the actor has ended."""
        await self.body.inbox.wait_idle()

    def wake(self) -> None:
        """Start the task of the actor for new work. If it has a task that is about to end for lack of work, the task continues."""
        self._has_work = True
        if not self._has_task:
            self._has_task = True
            self._context.run(partial(self._nursery.start_soon, self.run, name=f"actor {self.name}"))

    def stop(self) -> None:
        """Cancel the actor, also during the pause before a restart. An actor without a task gets one, which ends at once."""
        self.is_stopping = True
        self.wake()
        if self._scope is not None:
            self._scope.cancel()

    def end_without_work(self) -> None:
        """End the actor, after the nursery was cancelled. An actor without a task gets one, which is cancelled."""
        self._ends_without_work = True
        if not self._has_task:
            self.wake()

    def dead_letter(self, letter: DeadLetter, *, caller_knows: bool = False) -> None:
        """Store a message of this actor as a dead letter; `caller_knows` is True if the message's caller already knows the failure."""
        self._siblings.context.dead_letter(letter, caller_knows=caller_knows)

    def drain(self) -> None:
        """Notify the message loop of the actor that the block of the actor system is ending."""
        self.body.drain()

    def restart_at(self, time: float) -> None:
        """Cancel the running actor object, and start a new one not before `time`, in seconds of trio's clock.

        Nothing is restarted if the actor is stopping or has no task.
        """
        self._restart_at = max(self._restart_at, time)
        if not self.is_stopping and self._incarnation is not None:
            self.body.prepare_restart()
            self._incarnation.cancel()

    async def run(self) -> None:
        """Run the actor until it has no work, is stopped or has failed too often: the task that `wake` starts.

        Raises:
            ActorFailed: The actor failed too often, and its supervision escalates.
        """
        reason, is_over = "it was stopped", True
        try:
            is_over = await self._run_incarnations()
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
            self._scope = self._incarnation = None
            if is_over:
                await self._finish(reason)  # noqa: ASYNC102 - the body shields what must not be cancelled
            else:
                self._has_task = False

    async def _finish(self, reason: str) -> None:
        try:
            await self.body.finish(reason)
        finally:
            self._siblings.remove(self)
            self._siblings.context.leave(self)

    async def _run_incarnations(self) -> bool:
        """Run and restart the actor. Return True after it was stopped, and False if it has no work."""
        while True:
            if await self._run_incarnation():
                if not self.is_stopping:
                    await self._pause()
                if self.is_stopping:
                    return True
            elif not self._has_work:
                return self.is_stopping or self._ends_without_work

    async def _pause(self) -> None:
        """Wait until the actor may be restarted, or until it is stopped."""
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope() as self._scope:
            while trio.current_time() < self._restart_at:  # noqa: ASYNC110 - a sibling may postpone it during the sleep
                await trio.sleep_until(self._restart_at)

    async def _run_incarnation(self) -> bool:
        """Run one actor object until it fails or stops. Return False if its message loop returned because it had no more work."""
        self._has_work = False
        with trio.CancelScope() as scope:
            self._scope = self._incarnation = scope
            if self.is_stopping:  # the body still begins, so that it ends the work that it has accepted
                scope.cancel()
            try:
                await self.body.live()
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - the supervisor handles all failures of user code
                self._fail(root_cause(convert_user_error(raised, "actor", self.name)))
            else:
                return scope.cancel_called and not self.is_stopping
        return True

    def _fail(self, error: Exception) -> None:
        """Schedule the restart after a failure. If the actor is being cancelled, only log the failure.

        Raises:
            ActorFailed: The actor failed too often.
        """
        if trio.current_effective_deadline() == -math.inf:
            _log.error("actor %s raised while it was stopped", self.name, exc_info=error)
        else:
            self._siblings.restart(self, error)
