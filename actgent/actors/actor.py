"""An actor: state with one owner, an inbox, and a method that takes one message at a time."""

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import trio

from actgent.errors import ActorFailed
from actgent.errors.printable import counted
from actgent.support.foreign import failure_of
from actgent.support.logs import logger_of

from .cell import Cell, Siblings
from .dead_letters import DeadLetter
from .inbox import DEFAULT_BYTES, PriorityInbox
from .lines import LineOf, MessageLines
from .ref import ActorRef, Envelope, payload_bytes
from .supervision import Supervision
from .wait_graph import WaitNode

__all__ = ["Actor", "ActorContext", "DeadLetter"]
_log = logger_of(__name__)

STOP_GRACE = 1.0
"""Seconds that `Actor.stopped` has."""


running_actor: "ContextVar[ActorContext | None]" = ContextVar("running_actor", default=None)
"""The actor that a task was started by, or by one that was ..."""
running_line: "ContextVar[tuple[ActorContext, str] | None]" = ContextVar("running_line", default=None)
"""The line of such an actor that the task works on, where it takes several side by side."""


def calling_actor() -> "ActorContext | None":
    """The actor whose life the calling task is part of; a task in a nursery from elsewhere is part of none."""
    actor = running_actor.get()
    if actor is None or actor.task is None:
        return None
    task = top = trio.lowlevel.current_task()
    while (nursery := task.parent_nursery) is not None:
        if task is actor.task:
            return actor
        top, task = task, nursery.parent_task
    # What a thread does by `trio.from_thread` runs in a task of trio's own, with the thread's context.
    return actor if top.context.get(running_actor) is actor else None


def waiting_actor() -> WaitNode | None:
    """The node of the actor that the calling task is part of, or of the line that it works on, in the graph of waits."""
    actor = calling_actor()
    return None if actor is None else actor.wait_node()


class ActorContext:
    """One running actor's place: its address, its children, and the messages that it has taken."""

    def __init__(
        self,
        lines: MessageLines,
        factory: "Callable[[], Actor]",
        siblings: Siblings,
        *,
        children: Supervision | None,
    ) -> None:
        around = siblings.around
        self.name = name = lines.name
        self.inbox = PriorityInbox[Envelope](
            name,
            capacity=around.capacity,
            session_capacity=around.capacity,
            message_bytes=DEFAULT_BYTES,
            size_of=payload_bytes,
            concurrency=lines.concurrency,
            urgent_concurrency=1,
        )
        self._lines = lines
        self._factory = factory
        self._around = around
        self._policy = siblings.policy
        self._children_policy = children or siblings.policy
        self._children: Siblings | None = None
        self._nursery: trio.Nursery | None = None
        self._taken: dict[str, Envelope] = {}
        """The messages that it works on, by their lines; those of a life that was cut are the first of the next one."""
        self._cell: Cell | None = None
        self.task: trio.lowlevel.Task | None = None
        """The task that runs this life."""
        self.ref = ActorRef(
            name,
            self.inbox,
            around.timer,
            lines,
            stop=self.stop,
            bury=around.bury,
            find_waiter=around.find_waiter,
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
            raise ActorFailed(self.name, "it is not running, so it can have no children")
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
        """The actor in the graph of waits, or the line that the calling task works on."""
        entry = running_line.get()
        if entry is None or entry[0] is not self:
            return self._lines.own
        return self._lines.node(entry[1], self.inbox)

    def run_in(self, cell: Cell) -> None:
        """Note the cell that runs this actor."""
        self._cell = cell

    def stop(self) -> None:
        """End the actor and its children where they are."""
        if self._cell is not None:
            self._cell.stop()

    # --- for the cell ------------------------------------------------------------------------

    def cut(self) -> None:
        """Nothing to prepare: a message that is cut is tried again."""

    def drain(self) -> None:
        """Go on taking messages: whoever still works may have something to say."""

    async def finish(self, reason: str) -> None:
        """Answer everyone who still waits, senders without room too: they come in as others are taken out."""
        self.ref.close(reason)
        self.task = None
        for envelope in tuple(self._taken.values()):
            self._bury(envelope, reason)
            self._done(envelope)
        while left := [each for line in self.inbox.sessions() for each in self.inbox.withdraw(line)]:
            for envelope in left:
                self._bury(envelope, reason)

    def _bury(self, envelope: Envelope, reason: str, *, error: Exception | None = None) -> None:
        """Give a message up, and tell who waits for it."""
        failure = ActorFailed(self.name, reason)
        failure.__cause__ = error
        envelope.fail(failure)
        self._around.bury(DeadLetter(self.name, envelope.payload, reason, error, priority=envelope.priority))

    async def live(self) -> None:
        """Live once: from a fresh object to its failure."""
        self.task = trio.lowlevel.current_task()
        running_actor.set(self)
        actor = self._factory()
        self._children = Siblings(self._children_policy, self._around)
        async with trio.open_nursery() as self._nursery:
            try:
                await actor.started(self)
                await (self._serve_side_by_side if self._lines.are_side_by_side else self._serve)(actor)
            finally:
                await self._say_stopped(actor)  # noqa: ASYNC102 - it shields itself, for STOP_GRACE

    async def _say_stopped(self, actor: "Actor") -> None:
        with trio.move_on_after(STOP_GRACE, shield=True) as scope:
            try:
                await actor.stopped()
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - it is over: nobody could mend it
                failure_of(raised, "actor", self.name)
                _log.exception("actor %s raised in stopped()", self.name)
        if scope.cancelled_caught:
            _log.warning("actor %s did not return from stopped() within %g s", self.name, STOP_GRACE)

    async def _serve(self, actor: "Actor") -> None:
        """Take one message at a time."""
        for envelope in tuple(self._taken.values()):
            await self._deal_with(actor, envelope)
        while True:
            await self._deal_with(actor, await self.inbox.get())

    async def _serve_side_by_side(self, actor: "Actor") -> None:
        """Take as many messages as there are places; the first that fails cuts the others, which are tried again."""
        async with trio.open_nursery() as nursery:
            for envelope in tuple(self._taken.values()):
                nursery.start_soon(self._work_on_line, actor, envelope)
            while True:
                envelope = await self.inbox.get()
                self._taken[envelope.session_id] = envelope  # now, as it may be cut before its task begins
                nursery.start_soon(self._work_on_line, actor, envelope)

    async def _work_on_line(self, actor: "Actor", envelope: Envelope) -> None:
        running_line.set((self, envelope.session_id))
        try:
            await self._deal_with(actor, envelope)
        except Exception as error:
            if not _is_cut():
                raise
            _log.error("actor %s raised while a message beside it failed", self.name, exc_info=error)
        finally:
            self._lines.forget(envelope.session_id)

    async def _deal_with(self, actor: "Actor", envelope: Envelope) -> None:
        self._taken[envelope.session_id] = envelope
        try:
            answer = await actor.receive(envelope.payload)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            error = failure_of(raised, "actor", self.name)
        else:
            self._done(envelope)
            envelope.answer(answer)
            return
        if not (self._lines.are_side_by_side and _is_cut()):  # one beside it failed first, and counts
            self._count_failure(envelope, error)
        raise error

    def _done(self, envelope: Envelope) -> None:
        del self._taken[envelope.session_id]
        self.inbox.release(envelope.session_id)

    def _count_failure(self, envelope: Envelope, error: Exception) -> None:
        """Put a message aside that keeps failing, so that it does not take its actor along for ever."""
        envelope.failures += 1
        if envelope.failures >= self._policy.deliveries:
            self._done(envelope)
            reason = f"it failed {counted(envelope.failures, 'time')}, last with {type(error).__name__}"
            self._bury(envelope, reason, error=error)


def _is_cut() -> bool:
    """Return True if the calling task is cancelled: another failure has ended this life already."""
    return trio.current_effective_deadline() == -math.inf


class Actor:
    """Subclass it and write `receive`. One object lives from start to failure; a restart makes a new one.

    Agents and actors run beside each other: docs/control.md, "Actors without a model, beside agents".
    """

    async def started(self, context: ActorContext) -> None:
        """Called before the first message of this object; `context` spawns children."""

    async def receive(self, payload: Any) -> object:
        """Deal with one message; what it returns answers an `ask`.

        What it raises restarts the actor, and the message is tried again a bounded number of times. Of an actor with
        `concurrency=` it runs for several messages side by side; the others are cancelled then, and begun again.
        """
        raise NotImplementedError

    async def stopped(self) -> None:
        """Called after the last message of this object, also after a failure; has one second.

        What it raises is only logged.
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
    """Start an actor as a task of `nursery`, where its final failure comes out."""
    name = siblings.around.name_for(getattr(factory, "__name__", "actor"), name)
    context = ActorContext(MessageLines(name, concurrency, line_of), factory, siblings, children=children)
    context.run_in(siblings.start(context, nursery, grace=grace))
    return context.ref
