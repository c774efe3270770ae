"""`open_system`: an `async with` block that runs actors."""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager

import trio

from actgent.errors import ActorFailed
from actgent.errors.text_escaping import counted
from actgent.events import EventStream

from .actor import Actor, start, waiting_actor
from .actor_cell import GRACE, Body, Cell, Siblings, SystemContext, UnusedActor, UnusedCell
from .actor_ref import ActorRef, Address
from .dead_letters import DEAD_LETTERS, DeadLetter
from .message_groups import LineOf
from .supervision import Supervision

__all__ = ["DEAD_LETTERS", "ActorSystem", "open_system"]


class ActorSystem:
    """A running system of actors: start, find and stop actors by name, and read the dead letters."""

    def __init__(self, nursery: trio.Nursery, context: SystemContext) -> None:
        self._nursery = nursery
        self._context = context
        self._siblings = Siblings(context.policy, context)

    def __repr__(self) -> str:
        busy = sum(1 for _ in self._context.busy())
        return (
            f"<ActorSystem: {counted(self.count, 'actor')}, {busy:,} busy, "
            f"{counted(len(self._context.dead_letters), 'dead letter')}>"
        )

    @property
    def count(self) -> int:
        """Number of running actors, child actors included."""
        return len(self._context.running)

    async def spawn(
        self,
        factory: Callable[[], Actor],
        *,
        name: str | None = None,
        children: Supervision | None = None,
        grace: float | None = None,
        concurrency: int = 1,
        line_of: LineOf | None = None,
    ) -> ActorRef:
        """Start an actor under the system's supervision; `factory` makes a new object at each restart.

        A cancelled call starts no actor.

        Args:
            factory: Actor class, or a function that returns a new actor object.
            name: Address of the actor; None generates one.
            children: Supervision of the actor's children; None uses the system's supervision.
            grace: Seconds to finish queued messages when the system block ends; None uses the system's value.
            concurrency: Maximum number of messages that run concurrently, plus one URGENT message. 1 runs them in order.
            line_of: Function that returns the message group of a payload, a text such as a user name. Messages of one group
                run in order. None runs all messages independently.

        Raises:
            ConfigurationError: The name is taken, or another argument is invalid.
        """
        await trio.lowlevel.checkpoint()
        return start(
            factory,
            name,
            self._nursery,
            self._siblings,
            children=children,
            grace=grace,
            concurrency=concurrency,
            line_of=line_of,
        )

    def host(self, body: Body, *, grace: float) -> None:
        """Start an actor with its own message loop `body`, such as an agent with many concurrent sessions.

        `grace` is the time in seconds to finish messages when the system block ends.

        Raises:
            ConfigurationError: The name of the body is taken.
        """
        self._context.name_for(body.name, body.name)
        self._siblings.start(body, self._nursery, grace=grace)

    def host_unused(self, actor: UnusedActor, *, grace: float) -> None:
        """Register an actor under its name without building it. The first `use` builds and starts the actor.

        Raises:
            ConfigurationError: The name of the actor is taken.
        """
        self._context.name_for(actor.name, actor.name)
        self._context.enter(UnusedCell(actor, grace, self._siblings, self._nursery))

    def use(self, name: str) -> None:
        """Build and start an unused actor; other names are ignored."""
        cell = self._context.running.get(name)
        if isinstance(cell, UnusedCell):
            cell.start()

    def has(self, name: str) -> bool:
        """Return True if the name belongs to an actor of the system, including actors that are registered but not built yet."""
        return name in self._context.running

    def body(self, name: str) -> Body | None:
        """Return the body of the running actor with this name; None if there is none, or if it is not used yet."""
        cell = self._context.running.get(name)
        return cell.body if isinstance(cell, Cell) else None

    def bodies(self) -> Iterator[Body]:
        """Iterate over the bodies of the running actors that are in use, in start order."""
        return (cell.body for cell in self._context.cells())

    def address(self, name: str) -> Address | None:
        """Return the address of the running actor or agent with this name, or None."""
        cell = self._context.running.get(name)
        if cell is None:
            return None
        return cell.actor.ref if isinstance(cell, UnusedCell) else cell.body.ref

    def find(self, name: str) -> ActorRef | None:
        """Return the reference of the running actor with this name, or None. Agents are not included."""
        ref = self.address(name)
        return ref if isinstance(ref, ActorRef) else None

    def stop(self, name: str) -> None:
        """Cancel an actor and its children. An unknown name is ignored."""
        cell = self._context.running.get(name)
        if cell is not None:
            cell.stop()

    async def wait_idle(self) -> None:
        """Wait until the inboxes of all actors are empty and no message is being processed."""
        await self._context.wait_idle()

    async def drain(self) -> None:
        """Let each actor process its accepted messages for at most its grace period, then stop all actors."""
        await self._context.drain()

    def retire_idle(self) -> None:
        """End the tasks of actors without work, before the nursery of the system is cancelled."""
        for cell in self._context.cells():
            cell.body.retire()

    async def finish_unused(self) -> None:
        """End the actors without a task, after the nursery of the system was cancelled. Cancellation ends the others.

        Actors that were never used end concurrently, shielded from cancellation. Idle actors get a task, which is cancelled.
        """
        for cell in self._context.cells():
            cell.end_without_work()
        if unused := [*self._context.unused()]:
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    for unused_cell in unused:
                        nursery.start_soon(unused_cell.finish)

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The newest dead letters: undeliverable or repeatedly failed messages, oldest first."""
        return tuple(self._context.dead_letters)

    async def send_again(self, letter: DeadLetter) -> None:
        """Send a dead letter to the actor that has the letter's name now, and remove the letter from the list.

        The letter is removed once the inbox has accepted the message. A failed or cancelled call keeps the letter. The answer
        of the actor is discarded.

        Raises:
            DeadLetterGone: The letter was sent before, another task is sending it, or newer letters replaced it.
            ActorFailed: No actor with this name is running.
            InboxFull: The inbox stayed full until the timeout.
        """
        with self._context.dead_letters.resend(letter):
            ref = self.address(letter.actor)
            if ref is None:
                raise ActorFailed(letter.actor, "no actor of this name is running")
            await ref.send_again(letter)


@asynccontextmanager
async def open_system(
    *,
    supervision: Supervision | None = None,
    capacity: int = 1000,
    grace: float = GRACE,
    events: EventStream | None = None,
) -> AsyncGenerator[ActorSystem, None]:
    """Open an `async with` block that runs actors. No actor outlives the block.

    A normal exit gives the actors `grace` seconds to process queued messages and the messages that follow from them. An exit
    with an exception gives them no time. Then all actors are cancelled, and the messages that are left become dead letters.
    `capacity` is the maximum number of queued messages per actor.

    Raises:
        ExceptionGroup: Contains `ActorFailed` if an actor failed too often and `Supervision(escalate=True)` is set.
    """
    context = SystemContext(
        policy=supervision or Supervision(),
        capacity=capacity,
        grace=grace,
        events=events or EventStream(),
        find_waiter=waiting_actor,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(context.timer.run, name="timer")
        system = ActorSystem(nursery, context)
        yield system
        await system.drain()
        nursery.cancel_scope.cancel()
