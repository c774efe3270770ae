"""A block in which actors live."""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager

import trio

from actgent.errors import ActorFailed
from actgent.errors.printable import counted
from actgent.events import EventStream

from .actor import Actor, start, waiting_actor
from .cell import GRACE, Body, Cell, Siblings, Surroundings
from .dead_letters import DEAD_LETTERS, DeadLetter
from .lines import LineOf
from .ref import ActorRef, Address
from .supervision import Supervision

__all__ = ["DEAD_LETTERS", "ActorSystem", "open_system"]


class ActorSystem:
    """Running actors by name, and what they could not deal with."""

    def __init__(self, nursery: trio.Nursery, around: Surroundings) -> None:
        self._nursery = nursery
        self._around = around
        self._siblings = Siblings(around.policy, around)

    def __repr__(self) -> str:
        busy = sum(1 for _ in self._around.busy())
        return (
            f"<ActorSystem: {counted(self.count, 'actor')}, {busy:,} busy, "
            f"{counted(len(self._around.dead_letters), 'dead letter')}>"
        )

    @property
    def count(self) -> int:
        """The number of actors that run, children too."""
        return len(self._around.running)

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

        Cancelled, it starts nothing.

        Args:
            factory: The class, or a function that makes an object of it.
            name: Its address; None makes one up.
            children: How it supervises the actors that it starts; None is the system's supervision.
            grace: Seconds to end what is in its inbox when the system is left; None is the system's.
            concurrency: How many messages it takes side by side, and one more that is URGENT; 1 is one after the other.
            line_of: A function of the payload that returns its line, a text, e.g. a user's name: messages of one line are
                taken one after the other. None lets each be a line of its own.

        Raises:
            ConfigurationError: the name is taken, or another argument is wrong.
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

    def host(self, body: Body, *, grace: float) -> Cell:
        """Start an actor that dispatches its messages itself, e.g. many lines of its inbox side by side.

        Raises:
            ConfigurationError: its name is taken.
        """
        self._around.name_for(body.name, body.name)
        return self._siblings.start(body, self._nursery, grace=grace)

    def body(self, name: str) -> Body | None:
        """The body of the running actor of this name, or None."""
        cell = self._around.running.get(name)
        return None if cell is None else cell.body

    def bodies(self) -> Iterator[Body]:
        """The bodies of all running actors, in the order of their start."""
        return (cell.body for cell in tuple(self._around.running.values()))

    def address(self, name: str) -> Address | None:
        """The address of the running actor of this name, however it dispatches; None if there is none."""
        cell = self._around.running.get(name)
        return None if cell is None else cell.body.ref

    def find(self, name: str) -> ActorRef | None:
        """The running actor of this name, or None."""
        ref = self.address(name)
        return ref if isinstance(ref, ActorRef) else None

    def stop(self, name: str) -> None:
        """End an actor where it is, with its children; nothing happens if none of this name runs."""
        cell = self._around.running.get(name)
        if cell is not None:
            cell.stop()

    async def wait_idle(self) -> None:
        """Wait until all actors have dealt with everything in their inboxes."""
        await self._around.wait_idle()

    async def drain(self) -> None:
        """Let the actors end what they have accepted, each within its grace; then stop them."""
        await self._around.drain()

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The newest messages that no actor dealt with, oldest first."""
        return tuple(self._around.dead_letters)

    async def send_again(self, letter: DeadLetter) -> None:
        """Send a dead letter to the actor that has its name now; once it is in the inbox, it leaves the list.

        Nobody waits for an answer to it. If it fails or is cancelled, the letter stays in the list.

        Raises:
            DeadLetterGone: it was sent already, another task is sending it, or it fell out of the list.
            ActorFailed: no actor of this name runs.
            InboxFull: there was no room in time.
        """
        with self._around.dead_letters.leaving(letter):
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
    """Open a block in which actors live, and outside of which none does.

    Left normally, it gives the actors `grace` seconds to deal with what is in their inboxes, and what
    comes of that; left with an exception, none. Then they stop where they are, and what still waits
    is a dead letter. `capacity` bounds each actor's inbox.

    Raises:
        ExceptionGroup: Of `ActorFailed`, if an actor failed too often and `Supervision(escalate=True)` is set.
    """
    around = Surroundings(
        policy=supervision or Supervision(),
        capacity=capacity,
        grace=grace,
        events=events or EventStream(),
        find_waiter=waiting_actor,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(around.timer.run, name="timer")
        system = ActorSystem(nursery, around)
        yield system
        await system.drain()
        nursery.cancel_scope.cancel()
