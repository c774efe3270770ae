"""The gates of a full inbox: who waits for room, and who of them comes in next.

A sender that finds no room waits at two gates, first its session's, then the inbox's, with its session's place kept. The
gates of the inbox count bytes, too: a large message at the head of a gate waits for its room, and others wait after it. A
gate admits in the order in which the inbox hands out: by owner, level and key. Whoever frees a place takes the next one in
at once and only then wakes its task: no wake-up is lost, and nobody slips in between.
"""

import enum
import typing
from typing import Generic, TypeVar

import attrs
import trio

from actgent.messages import Priority
from actgent.support.rotation import Rotation, Ticket


class Mail(typing.Protocol):
    """What an inbox has to know of a message."""

    @property
    def session_id(self) -> str: ...
    @property
    def priority(self) -> Priority: ...
    @property
    def deadline(self) -> float | None: ...


M = TypeVar("M", bound=Mail)
Place = tuple[float, int, M, float]
"""Place in its line, serial number, message, key: the first two are what is sorted. It may be reserved before its message
is put."""

Bound = tuple[str | None, bool] | None
"""A bound that can be reached: of a session and whether for URGENT, `URGENT_BYTES`, or None for the whole inbox."""
URGENT_BYTES = (None, True)
"""The bound of the bytes of all URGENT messages of an inbox."""
OF_INBOX = (None, URGENT_BYTES)
"""The bounds of a whole inbox: a sender that waits there keeps a place of its session."""


class NoBound(enum.Enum):
    """The type of `NO_BOUND`: there is room."""

    NO_BOUND = enum.auto()


NO_BOUND = NoBound.NO_BOUND
LEVELS = len(Priority)


@attrs.define(eq=False)
class WaitingSender(Generic[M]):
    """A task that waits for room for its message."""

    place: Place[M]
    task: trio.lowlevel.Task
    reserves: bool = False
    """True: it wants a place, and puts the message itself."""
    gate: Bound = None
    ticket: "Ticket[WaitingSender[M]] | None" = None
    """Its place at the gate."""


class GatedInbox(typing.Protocol[M]):
    """An inbox, as far as its gates are concerned."""

    def reached(self, message: M) -> Bound | NoBound:
        """The bound that keeps a message out."""

    def admit(self, sender: WaitingSender[M]) -> None:
        """Take the message of a sender, or its place."""

    def enter(self, queue: Rotation[WaitingSender[M]], sender: WaitingSender[M]) -> Ticket[WaitingSender[M]]:
        """Have a sender wait in the queue of its gate."""

    def leave(self, sender: WaitingSender[M]) -> None:
        """Undo `enter`."""

    def keeps_out(self, sender: WaitingSender[M]) -> bool:
        """True if there is still no room at the gate where a sender waits."""

    def forget(self, sender: WaitingSender[M]) -> None:
        """Drop what a sender that gave up leaves."""

    def next_turn(self) -> int:
        """A number for the turn that an owner has now."""


class Gates(Generic[M]):
    """The senders that wait for room in one inbox."""

    def __init__(self, room: GatedInbox[M]) -> None:
        self.queues: dict[Bound, Rotation[WaitingSender[M]]] = {}
        """By the bound that keeps them out; none is empty."""
        self._room = room

    def __len__(self) -> int:
        return sum(len(queue) for queue in self.queues.values())

    @trio.lowlevel.enable_ki_protection  # or a task would be woken that does not wait
    async def wait(self, sender: WaitingSender[M], seconds: float) -> bool:
        """Wait until a sender is let in; False if there was no room in time. Cancelled, it leaves nothing behind."""
        with trio.move_on_after(seconds):
            self._queue(sender)
            await trio.lowlevel.wait_task_rescheduled(lambda _: self._give_up(sender))
            return True
        return False

    @trio.lowlevel.enable_ki_protection
    def open(self, gate: Bound) -> None:
        """Let senders pass this gate in their order, as many as there is room for. A large message may free room for several."""
        while (queue := self.queues.get(gate)) is not None:
            ticket = queue.first()
            if ticket is None or self._room.keeps_out(ticket.item):
                return
            queue.take(ticket, self._room.next_turn())
            self._unqueue(ticket.item)
            self._queue(ticket.item)

    def _queue(self, sender: WaitingSender[M]) -> None:
        """Let a sender wait at the gate that keeps it out, or in if none does."""
        gate = self._room.reached(sender.place[2])
        if gate is NO_BOUND:
            self._room.admit(sender)
            trio.lowlevel.reschedule(sender.task)
            return
        sender.gate = gate
        queue = self.queues.get(gate)
        if queue is None:
            queue = self.queues[gate] = Rotation(LEVELS)
        sender.ticket = self._room.enter(queue, sender)

    def _unqueue(self, sender: WaitingSender[M]) -> None:
        queue = self.queues[sender.gate]
        if sender.ticket is not None:
            queue.remove(sender.ticket)
        if not queue:
            del self.queues[sender.gate]
        self._room.leave(sender)

    def _give_up(self, sender: WaitingSender[M]) -> trio.lowlevel.Abort:
        self._unqueue(sender)
        if sender.gate in OF_INBOX:
            self.open((sender.place[2].session_id, sender.gate is not None))
            self._room.forget(sender)
        return trio.lowlevel.Abort.SUCCEEDED
