"""A block in which actors live."""

from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import trio

from actgent.events import EventStream

from .actor import Actor, DeadLetter, Surroundings, start
from .ref import ActorRef
from .supervision import Supervision

DEAD_LETTERS = 1000
"""How many dead letters are kept, the newest."""


class ActorSystem:
    """Running actors by name, and what they could not deal with."""

    def __init__(self, nursery: trio.Nursery, around: Surroundings) -> None:
        self._nursery = nursery
        self._around = around

    async def spawn(self, factory: Callable[[], Actor], *, name: str | None = None) -> ActorRef:
        """Start an actor under the system's supervision; `factory` makes a new object at each restart.

        Raises:
            ConfigurationError: the name is taken.
        """
        await trio.lowlevel.checkpoint()
        return start(factory, name, nursery=self._nursery, around=self._around)

    def find(self, name: str) -> ActorRef | None:
        """The running actor of this name, or None."""
        return self._around.running.get(name)

    async def wait_idle(self) -> None:
        """Wait until all actors have dealt with everything in their inboxes."""
        await trio.lowlevel.checkpoint()
        while busy := [ref for ref in self._around.running.values() if not ref.is_idle]:
            for ref in busy:
                await ref.wait_idle()

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The newest messages that no actor dealt with, oldest first."""
        return tuple(self._around.dead_letters)


@asynccontextmanager
async def open_system(
    *,
    supervision: Supervision | None = None,
    capacity: int = 1000,
    grace: float = 10.0,
    events: EventStream | None = None,
) -> AsyncGenerator[ActorSystem, None]:
    """Open a block in which actors live, and outside of which none does.

    Left normally, it gives the actors `grace` seconds to deal with what is in their inboxes, and what
    comes of that; left with an exception, none. Then they stop where they are, and what still waits
    is a dead letter. `capacity` bounds each actor's inbox.

    Raises:
        ExceptionGroup: of `ActorFailed`, where an actor failed too often.
    """
    around = Surroundings(
        policy=supervision or Supervision(),
        capacity=capacity,
        events=events or EventStream(),
        dead_letters=deque(maxlen=DEAD_LETTERS),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(around.timer.run, name="timer")
        system = ActorSystem(nursery, around)
        yield system
        with trio.move_on_after(grace):
            await system.wait_idle()
        nursery.cancel_scope.cancel()
