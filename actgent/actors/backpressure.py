"""Backpressure of an inbox: the tasks that wait for room, and the order in which they are admitted.

A bound is a maximum number of messages or bytes. A sender that finds no room waits in the queue of the bound that is reached.
The bound of the session is checked first, then the bound of the whole inbox. A sender that waits for the inbox already counts
against the bound of its session. The bounds of the inbox also count bytes. If a large message is at the head of a queue, the
senders after it wait until the large message has room. Senders are admitted in the order in which the inbox dispatches
messages: by owner, priority level and key. The task that frees a slot admits the next sender first and then wakes the sender's
task. So no wake-up is lost, and no later sender overtakes.
"""

import enum
import typing
from typing import Generic, TypeVar

import attrs
import trio

from actgent.messages import Priority
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.fair_queue import FairQueue, QueueEntry


class InboxItem(typing.Protocol):
    """Interface of a message, with the attributes that an inbox reads."""

    @property
    def session_id(self) -> str: ...
    @property
    def priority(self) -> Priority: ...
    @property
    def deadline(self) -> float | None: ...


M = TypeVar("M", bound=InboxItem)
InboxEntry = tuple[float, int, M, float, int]
"""Entry of a session's queue: sort position, serial number, message, key, bytes of the message. The first two are the sort
order. An entry can be reserved before its message is enqueued."""

Bound = tuple[str | None, bool] | None
"""A bound that can be reached: (session id, whether it is the URGENT bound), `URGENT_BYTES`, or None for the whole inbox."""
URGENT_BYTES = (None, True)
"""Bound of the total bytes of all URGENT messages of an inbox."""
INBOX_BOUNDS = (None, URGENT_BYTES)
"""The bounds of a whole inbox. A sender that waits for one of them keeps a slot of its session."""


class Unbounded(enum.Enum):
    """Type of the constant `UNBOUNDED`, an inbox bound without limit."""

    UNBOUNDED = enum.auto()


UNBOUNDED = Unbounded.UNBOUNDED
"""Result of `reached_bound` that means that the inbox has room."""
LEVELS = len(Priority)
"""Number of message priority levels."""


@attrs.define(eq=False, repr=False)
class WaitingSender(FieldRepr, Generic[M]):
    """A task that waits for room for its message."""

    entry: InboxEntry[M]
    task: trio.lowlevel.Task
    reserves: bool = False
    """True if the sender only reserves space in the inbox now, and enqueues its message later."""
    bound: Bound = None
    """Limit that is reached, so that the sender waits: the limit of one session, or the limit of all bytes.
    None for the limit on messages in the whole inbox.
    """
    ticket: "QueueEntry[WaitingSender[M]] | None" = None
    """Position of the sender in the queue of senders that wait for the same limit; None while the sender is not queued."""


class BoundedInbox(typing.Protocol[M]):
    """The operations of an inbox that `WaitingSenders` uses."""

    def reached_bound(self, message: M) -> Bound | Unbounded:
        """Return the bound that keeps a message out, or `UNBOUNDED` if there is room."""

    def admit(self, sender: WaitingSender[M]) -> None:
        """Enqueue the message of a sender, or reserve its entry."""

    def enter(
        self, rotation: FairQueue[WaitingSender[M]], sender: WaitingSender[M]
    ) -> QueueEntry[WaitingSender[M]]:
        """Add a sender to the queue of the bound for which the sender waits.

        Owners take turns in `rotation`, this queue.
        """

    def leave(self, sender: WaitingSender[M]) -> None:
        """Undo the changes that `enter` made to the counts, when a sender leaves."""

    def is_blocked(self, sender: WaitingSender[M]) -> bool:
        """Return True if the bound that a sender waits for is still reached."""

    def forget(self, sender: WaitingSender[M]) -> None:
        """Remove the session queue of a sender that gave up, if the queue is empty."""

    def next_turn(self) -> int:
        """Return the next serial number, with which owners take turns: the owner with the lowest number is admitted next."""


class WaitingSenders(Generic[M]):
    """The senders that wait for room in one inbox."""

    def __init__(self, inbox: BoundedInbox[M]) -> None:
        self.queues: dict[Bound, FairQueue[WaitingSender[M]]] = {}
        """Waiting senders by the bound that they wait for. Empty queues are removed."""
        self._inbox = inbox

    def __len__(self) -> int:
        return sum(len(queue) for queue in self.queues.values())

    @trio.lowlevel.enable_ki_protection  # an interrupt in between would wake a task that does not wait
    async def wait(self, sender: WaitingSender[M], seconds: float) -> bool:
        """Wait until a sender is admitted; return False if there is no room for `seconds`.

        A cancelled wait removes the sender, and its message is not enqueued.
        """
        with trio.move_on_after(seconds):
            self._queue(sender)
            await trio.lowlevel.wait_task_rescheduled(lambda _: self._fail_full(sender))
            return True
        return False

    @trio.lowlevel.enable_ki_protection
    def open(self, bound: Bound) -> None:
        """Admit waiting senders in order, because the capacity `bound` has free space, until it is full again.

        If an admitted sender also needs another capacity that is full, the sender moves to the queue of this other capacity.
        """
        while (queue := self.queues.get(bound)) is not None:
            ticket = queue.first()
            if ticket is None or self._inbox.is_blocked(ticket.item):
                return
            queue.take(ticket, self._inbox.next_turn())
            self._unqueue(ticket.item)
            self._queue(ticket.item)

    def _queue(self, sender: WaitingSender[M]) -> None:
        """Add a sender to the queue of the capacity that it lacks, or admit it if there is room."""
        bound = self._inbox.reached_bound(sender.entry[2])
        if bound is UNBOUNDED:
            self._inbox.admit(sender)
            trio.lowlevel.reschedule(sender.task)
            return
        sender.bound = bound
        queue = self.queues.get(bound)
        if queue is None:
            queue = self.queues[bound] = FairQueue(LEVELS)
        sender.ticket = self._inbox.enter(queue, sender)

    def _unqueue(self, sender: WaitingSender[M]) -> None:
        queue = self.queues[sender.bound]
        if sender.ticket is not None:
            queue.remove(sender.ticket)
        if not queue:
            del self.queues[sender.bound]
        self._inbox.leave(sender)

    def _fail_full(self, sender: WaitingSender[M]) -> trio.lowlevel.Abort:
        self._unqueue(sender)
        if sender.bound in INBOX_BOUNDS:
            self.open((sender.entry[2].session_id, sender.bound is not None))
            self._inbox.forget(sender)
        return trio.lowlevel.Abort.SUCCEEDED
