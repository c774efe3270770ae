"""The acceptance of a message: all that is known of it, from when it is sent until its turn begins or it ends without one.

    on its way   it waits for a place in the inbox, then the journal writes it; refused or cancelled, nothing of it is left
    in           it waits for its turn; whoever repeats its id is told that it is accepted

A session has each of its acceptances in one table, by the ids of the messages, and takes it out once: as the turn begins,
as the message ends without one, or as it is refused.
"""

from collections.abc import Mapping
from contextvars import Context
from typing import Any

import trio

from actgent.actors.inbox import Place
from actgent.control.budget import Asked
from actgent.journal.records import NOTHING, TurnOptions
from actgent.messages import Message

from .session_log import SessionLog
from .turn_future import TurnWaiter


class Acceptance:
    """A message that was sent and has not had its turn."""

    # Not made by attrs: a turn that starts at once needs none of the defaults, and setting them costs it half a percent.

    baggage: Mapping[str, Any] = NOTHING
    """What the journal has of its variables, if it came from there."""
    options: TurnOptions | None = None
    """Of its turn, if it came before a restart."""
    place: Place[Message] | None = None
    """Its place in the inbox, as soon as it has one."""
    log: SessionLog | None = None
    """The session's end of the journal that may have it."""
    is_in: bool = False
    """Whether it is accepted."""
    settled: trio.Event | None = None
    """Made by a caller that repeats its id, and waits until it is in or refused."""
    guests: tuple[TurnWaiter, ...] = ()
    """Callers that repeated its id, and wait for the same."""

    def __init__(
        self,
        message: Message,
        variables: Context,
        waiter: TurnWaiter | None = None,
        asked: Asked | None = None,
    ) -> None:
        self.message = message
        self.variables = variables
        """The context variables of its sender, in which its turn runs."""
        self.waiter = waiter
        """The caller that waits for what comes of it."""
        self.asked = asked

    def __repr__(self) -> str:
        return f"<Acceptance of {self.message.id!r}, {'in' if self.is_in else 'on its way'}>"

    async def wait_settled(self) -> None:
        """Wait until it is in, or refused."""
        if self.settled is None:
            self.settled = trio.Event()
        await self.settled.wait()

    def settle(self) -> None:
        """It is in, or refused."""
        if self.settled is not None:
            self.settled.set()
