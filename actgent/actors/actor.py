"""`Actor`, the base class of actors without a model, and `ActorContext`, which runs one."""

import math
from collections.abc import Callable
from contextvars import ContextVar
from operator import attrgetter
from typing import Any

import trio

from actgent.errors import ActorFailed
from actgent.errors.text_escaping import counted
from actgent.support.safe_logging import logger_of
from actgent.support.user_code_calls import convert_user_error

from .actor_cell import Cell, Siblings
from .actor_ref import ActorRef, Envelope
from .dead_letters import DeadLetter
from .inbox import DEFAULT_BYTES, PriorityInbox
from .message_groups import LineOf, MessageGroups
from .supervision import Supervision
from .wait_graph import WaitNode

__all__ = ["Actor", "ActorContext", "DeadLetter"]
_log = logger_of(__name__)

STOP_GRACE_SECONDS = 1.0
"""Seconds after which `Actor.stopped` is cancelled."""


running_actor: "ContextVar[ActorContext | None]" = ContextVar("running_actor", default=None)
"""Actor whose task started the current task, directly or through other tasks; None outside of actors."""
running_group: "ContextVar[tuple[ActorContext, str] | None]" = ContextVar("running_group", default=None)
"""Actor and message group that the current task processes. Only set for actors with `concurrency=` above 1."""


def calling_actor() -> "ActorContext | None":
    """Return the actor that the calling task works for; None outside of actors.

    Tasks in a nursery that was opened outside the actor do not work for the actor.
    """
    actor = running_actor.get()
    if actor is None or actor.task is None:
        return None
    task = top = trio.lowlevel.current_task()
    while (nursery := task.parent_nursery) is not None:
        if task is actor.task:
            return actor
        top, task = task, nursery.parent_task
    # Code that a thread calls through `trio.from_thread` runs in a system task with the context of the thread.
    return actor if top.context.get(running_actor) is actor else None


def waiting_actor() -> WaitNode | None:
    """Return the node of the calling task in the graph of waiting actors, for deadlock detection; None outside of actors.

    The node is that of the actor, or of the message group whose message the task processes.
    """
    actor = calling_actor()
    return None if actor is None else actor.wait_node()


class ActorContext:
    """State of one running actor: its address, its children, and the messages that it processes."""

    def __init__(
        self,
        groups: MessageGroups,
        factory: "Callable[[], Actor]",
        siblings: Siblings,
        *,
        children: Supervision | None,
    ) -> None:
        context = siblings.context
        self.name = name = groups.name
        self.inbox = PriorityInbox[Envelope](
            name,
            capacity=context.capacity,
            session_capacity=context.capacity,
            message_bytes=DEFAULT_BYTES,
            size_of=attrgetter("size"),
            concurrency=groups.concurrency,
            urgent_concurrency=1,
        )
        self._groups = groups
        self._factory = factory
        self._context = context
        self._policy = siblings.policy
        self._children_policy = children or siblings.policy
        self._children: Siblings | None = None
        self._nursery: trio.Nursery | None = None
        self._taken: dict[str, Envelope] = {}
        """Messages that are being processed, by group. After a restart they are processed first."""
        self._cell: Cell | None = None
        self.task: trio.lowlevel.Task | None = None
        """The task of the current incarnation."""
        self.ref = ActorRef(
            name,
            self.inbox,
            context.timer,
            groups,
            stop=self.stop,
            dead_letter=context.dead_letter,
            find_waiter=context.find_waiter,
        )

    def __repr__(self) -> str:
        state = "gone" if self.ref.is_gone else f"{len(self.inbox)} waiting"
        return f"<ActorContext of {self.name!r}, {state}>"

    async def spawn(
        self,
        factory: "Callable[[], Actor]",
        *,
        name: str | None = None,
        children: Supervision | None = None,
        concurrency: int = 1,
        line_of: LineOf | None = None,
    ) -> ActorRef:
        """Start a child actor, which ends with this actor.

        A child that fails too often stops. With `Supervision(escalate=True)` this actor then fails as well.

        `children` is the supervision of the child's own children; None is the supervision of the child itself. The other
        arguments are those of `ActorSystem.spawn`.

        Raises:
            ActorFailed: This actor is not running.
            ConfigurationError: The name is taken.
        """
        await trio.lowlevel.checkpoint()
        if self._nursery is None or self._children is None or self.ref.is_gone:
            raise ActorFailed(self.name, "it is not running, so it cannot start child actors")
        return start(
            factory,
            name,
            self._nursery,
            self._children,
            children=children,
            concurrency=concurrency,
            line_of=line_of,
        )

    def wait_node(self) -> WaitNode:
        """Return the wait-graph node of the actor, or of the message group that the calling task processes."""
        entry = running_group.get()
        if entry is None or entry[0] is not self:
            return self._groups.actor_node
        return self._groups.node(entry[1], self.inbox)

    def run_in(self, cell: Cell) -> None:
        """Set the `Cell` that starts, restarts and stops this actor."""
        self._cell = cell

    def stop(self) -> None:
        """Cancel the actor and its children."""
        if self._cell is not None:
            self._cell.stop()

    # --- for the cell ------------------------------------------------------------------------

    def prepare_restart(self) -> None:
        """Do nothing. A cancelled message is processed again after the restart."""

    def drain(self) -> None:
        """Do nothing. The actor keeps processing messages, because other actors may still send some."""

    def retire(self) -> None:
        """Do nothing. The cancellation of its task ends the actor."""

    async def finish(self, reason: str) -> None:
        """Turn unprocessed messages into dead letters after the actor's end, and fail their callers.

        Running messages, queued messages and messages of senders that wait for room are included.
        """
        self.ref.close(reason)
        self.task = None
        for envelope in tuple(self._taken.values()):
            self._dead_letter(envelope, reason)
            del self._taken[envelope.session_id]
            self.inbox.release(envelope.session_id)
        while left := [each for group in self.inbox.sessions() for each in self.inbox.withdraw(group)]:
            for envelope in left:
                self._dead_letter(envelope, reason)

    def _dead_letter(self, envelope: Envelope, reason: str, *, error: Exception | None = None) -> None:
        """Keep a message as a dead letter and send the failure to its waiting caller."""
        failure = ActorFailed(self.name, reason)
        failure.__cause__ = error
        envelope.fail(failure)
        self._context.dead_letter(
            DeadLetter(self.name, envelope.payload, reason, error, priority=envelope.priority)
        )

    async def live(self) -> None:
        """Run the actor until its next failure: make a new actor object and process messages with it."""
        self.task = trio.lowlevel.current_task()
        running_actor.set(self)
        actor = self._factory()
        self._children = Siblings(self._children_policy, self._context)
        async with trio.open_nursery() as self._nursery:
            try:
                await actor.started(self)
                await (self._serve_concurrently if self._groups.are_concurrent else self._serve)(actor)
            finally:
                await self._call_stopped_hook(actor)  # noqa: ASYNC102 - it shields itself, for STOP_GRACE_SECONDS

    async def _call_stopped_hook(self, actor: "Actor") -> None:
        with trio.move_on_after(STOP_GRACE_SECONDS, shield=True) as scope:
            try:
                await actor.stopped()
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - the actor has ended, so the error is only logged
                convert_user_error(raised, "actor", self.name)
                _log.exception("actor %s raised in stopped()", self.name)
        if scope.cancelled_caught:
            _log.warning("actor %s did not return from stopped() within %g s", self.name, STOP_GRACE_SECONDS)

    async def _serve(self, actor: "Actor") -> None:
        """Process the messages of the inbox one after the other, until a failure."""
        while True:
            envelope = next(iter(self._taken.values()), None)
            if envelope is None:
                envelope = await self.inbox.get()
            else:
                await self.inbox.yield_in_series()
            await self._process(actor, envelope)

    async def _serve_concurrently(self, actor: "Actor") -> None:
        """Process up to `concurrency` messages concurrently, until a failure.

        The first failure cancels the processing of the other messages. These messages are processed again after the restart.
        """
        async with trio.open_nursery() as nursery:
            for envelope in tuple(self._taken.values()):
                nursery.start_soon(self._process_group, actor, envelope)
            while True:
                envelope = await self.inbox.get()
                self._taken[envelope.session_id] = (
                    envelope  # set it now: a cancellation may come before the task begins
                )
                nursery.start_soon(self._process_group, actor, envelope)

    async def _process_group(self, actor: "Actor", envelope: Envelope) -> None:
        running_group.set((self, envelope.session_id))
        try:
            await self._process(actor, envelope)
        except Exception as error:
            if not _is_cancelled():
                raise
            _log.error(
                "actor %s raised while it was cancelled by the failure of another message",
                self.name,
                exc_info=error,
            )
        finally:
            self._groups.forget(envelope.session_id)

    async def _process(self, actor: "Actor", envelope: Envelope) -> None:
        self._taken[envelope.session_id] = envelope
        try:
            answer = await actor.receive(envelope.payload)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            error = convert_user_error(raised, "actor", self.name)
        else:
            self._done(envelope)
            envelope.answer(answer)
            return
        if not (
            self._groups.are_concurrent and _is_cancelled()
        ):  # another message failed first and is counted
            self._count_failure(envelope, error)
        raise error

    def _done(self, envelope: Envelope) -> None:
        """Remove a processed message and release its message group, so that the group's next message can run.

        An actor that handles one message at a time claims its next message in the same step.
        """
        group = envelope.session_id
        del self._taken[group]
        if self._groups.are_concurrent:
            self.inbox.release(group)
        elif (following := self.inbox.release_and_claim(group)) is not None:
            self._taken[group] = following

    def _count_failure(self, envelope: Envelope, error: Exception) -> None:
        """Count a failed attempt to process a message. At the limit `Supervision.deliveries`, make it a dead letter.

        So one bad message cannot fail its actor forever.
        """
        envelope.failures += 1
        if envelope.failures >= self._policy.deliveries:
            self._done(envelope)
            reason = f"it failed {counted(envelope.failures, 'time')}, last with {type(error).__name__}"
            self._dead_letter(envelope, reason, error=error)


def _is_cancelled() -> bool:
    """Return True if the calling task is cancelled. This happens if another task of the actor failed before it."""
    return trio.current_effective_deadline() == -math.inf


class Actor:
    """Base class of actors without a model: override `receive`. A restart after a failure makes a new object.

    Agents and actors can run in one system: see docs/control.md.
    """

    async def started(self, context: ActorContext) -> None:
        """Initialise this object. The system calls it before the first message. `context.spawn` starts child actors."""

    async def receive(self, payload: Any) -> object:
        """Process one message. The returned value is the answer to an `ask`.

        An exception restarts the actor and the message is tried again, at most `Supervision.deliveries` times. With
        `concurrency=` above 1, several calls run concurrently; a failure of one cancels the others, which are tried again.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define the method `async def receive(self, payload)`"
        )

    async def stopped(self) -> None:
        """Release resources of this object. The system calls it after the last message, also after a failure.

        The call is cancelled after one second. Its exceptions are only logged.
        """


def start(
    factory: Callable[[], Actor],
    name: str | None,
    nursery: trio.Nursery,
    siblings: Siblings,
    *,
    children: Supervision | None,
    grace: float | None = None,
    concurrency: int = 1,
    line_of: LineOf | None = None,
) -> ActorRef:
    """Start an actor as a task of `nursery` and return its address. An escalated failure is raised in the nursery.

    `siblings` are the actors that restart together with it. The other arguments are those of
    `ActorSystem.spawn`.
    """
    name = siblings.context.name_for(getattr(factory, "__name__", "actor"), name)
    context = ActorContext(MessageGroups(name, concurrency, line_of), factory, siblings, children=children)
    siblings.start(context, nursery, grace=grace)
    return context.ref
