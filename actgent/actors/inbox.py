"""`PriorityInbox`: the order in which an agent or actor processes its messages.

Each session has a *queue* of waiting messages, a heap sorted by key. The key of a message is its arrival time plus
`age_step` times its level. The key never changes, so an older message of a low level overtakes a younger one of a high level,
and no message starves. URGENT has the key minus infinity. A message enqueued with `first=True` is the next one of its session
after URGENT ones; between sessions it keeps its normal key.

A session is *ready* if it has messages and no message of it is claimed. `FairQueue` holds the ready sessions, each with the
key of its first message; see `actgent/support/fair_queue.py`. Ready sessions of one owner are sorted by key. Different owners
alternate within a level. `owner_of(session_id)` returns the owner; by default all sessions have the same owner. Taking a
message *claims* its session, and `release` makes the session ready again. `try_claim` skips all of this if no other message waits.

At most `concurrency` sessions are claimed at a time, plus at most `urgent_concurrency` with URGENT messages. URGENT turns use
no slot of other owners, which keep `concurrency` slots. URGENT messages go first. If other messages had to wait for URGENT
turns, or URGENT turns filled all slots, the inbox is *flooded*. Then at most two URGENT turns start between two other turns,
while other messages wait, or run with all slots in use. So an owner that marks every message URGENT leaves at least a fifth of
the turns to others, and a third if the others always have messages. The flooded state ends when no URGENT message is left. A
session with an endless series of URGENT messages releases its slot between two of them if others need it.

An entry of the queue can be reserved before its message is enqueued, for example while the journal writes the message. A
reserved entry counts as taken and keeps the position of the message.

A session with waiting or claimed messages has a queue object in one of four states:

    state    meaning                        slot  claim    lend  reclaim  park    unpark   release
    WAITING  no turn runs                   no    CLAIMED  -     -        PARKED  CLAIMED  -
    CLAIMED  a turn runs                    yes   CLAIMED  LENT  CLAIMED  PARKED  CLAIMED  WAITING
    LENT     the turn waits for another     no    CLAIMED  LENT  CLAIMED  PARKED  CLAIMED  WAITING
    PARKED   the turn waits for an outside  no    CLAIMED  -     -        PARKED  CLAIMED  WAITING
             event

"Slot" is one of the `concurrency` slots. Only a WAITING session is ready. A `-` has no effect, or raises `UsageError` because
no message of the session is claimed. A parked session without messages has no queue object, only its id in a set. PARKED
sessions do not count for `wait_idle`.

Senders that find no room wait in `WaitingSenders`, see `actgent/actors/backpressure.py`.
"""

import enum
import functools
import heapq
import itertools
import math
from collections.abc import Callable, Collection, Hashable
from typing import Generic, NamedTuple, TypeVar

import attrs
import outcome
import trio

from actgent.errors import ConfigurationError, InboxFull, MessageTooLarge, UsageError
from actgent.errors.text_escaping import shown
from actgent.messages import Priority
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.fair_queue import FairQueue, QueueEntry
from actgent.support.fast_attrs_constructors import fast_constructor

from .backpressure import (
    LEVELS,
    UNBOUNDED,
    URGENT_BYTES,
    Bound,
    InboxEntry,
    InboxItem,
    M,
    Unbounded,
    WaitingSender,
    WaitingSenders,
)

__all__ = ["DEFAULT_WAIT_SECONDS", "InboxEntry", "InboxItem", "InboxStatistics", "PriorityInbox"]

T = TypeVar("T")
_FIRST = -1e300
"""Sort position of messages that precede all others except URGENT messages."""
_URGENT = Priority.URGENT
"""The enum member as a global: reading it from its class takes as long as the rest of a comparison."""
_FIRST_NORMAL_LEVEL = _URGENT + 1
"""Highest priority level below URGENT, as a number."""
_MAX_URGENT_RUN = 2
"""Maximum number of consecutive URGENT turns in a flooded inbox."""
BATCH_MESSAGES = 16
"""Maximum number of messages that `put` or `get` handles between two checkpoints."""
BATCH_SECONDS = 0.001
"""Time after the last checkpoint from which the next message has a checkpoint, so that slow handlers still alternate."""
DEFAULT_WAIT_SECONDS = 30.0
"""Default seconds that `put` waits for room if the message has no deadline."""
DEFAULT_BYTES = 100_000_000
"""Default maximum of the bytes of all waiting messages of an inbox."""
DEFAULT_MESSAGE_BYTES = 25_000_000
"""Default maximum of the bytes of one message."""


@functools.cache  # inboxes share it, because a tuple with its numbers takes 120 bytes
def _delays_of(age_step: float) -> tuple[float, ...]:
    """Return the seconds that are added to the arrival time of a message for its order, by priority level."""
    return (-math.inf, 0.0, age_step, 2 * age_step)


class _State(enum.Enum):
    """State of a session queue; see the table in the module docstring."""

    WAITING = enum.auto()
    CLAIMED = enum.auto()
    LENT = enum.auto()
    PARKED = enum.auto()


_WAITING, _CLAIMED, _LENT, _PARKED = _State


@attrs.define(eq=False, repr=False)
class _SessionQueue(FieldRepr, Generic[M]):
    """The waiting messages of one session. It exists only while messages wait or are claimed."""

    session_id: str
    state: _State = _WAITING
    waiting: list[InboxEntry[M]] = attrs.field(factory=list)
    urgent: int = 0
    """Number of waiting URGENT messages. It includes messages that have a reserved place and are not enqueued yet."""
    non_urgent: int = 0
    """Number of waiting messages with other priorities.
    It includes messages that have a reserved place, and messages that wait because the inbox is full.
    """
    is_urgent: bool = False
    """True if the message that the session is processing is URGENT."""
    owner: str | None = None
    """Cached owner of the session; None until it is needed."""
    listing: "QueueEntry[_SessionQueue[M]] | None" = None

    @property
    def is_empty(self) -> bool:
        """True if no message waits and no turn runs. A parked turn does not count."""
        return not (self.non_urgent or self.urgent or self.state is _CLAIMED or self.state is _LENT)


_make_queue = fast_constructor(_SessionQueue)


@attrs.define(eq=False, repr=False)
class _Urgency(FieldRepr):
    """Counters of URGENT messages and turns."""

    waiting: int = 0
    """Number of waiting URGENT messages. It includes messages that have a reserved place and are not enqueued yet."""
    bytes: int = 0
    """Bytes of the queued URGENT messages."""
    running: int = 0
    """Number of sessions that process an URGENT message.
    It excludes sessions that wait for another agent and have lent their concurrency slot.
    """
    running_by_owner: dict[str, int] = attrs.field(factory=dict)
    """Number of sessions that process an URGENT message, by owner."""
    consecutive_turns: int = 0
    """Number of consecutive URGENT turns up to now."""
    is_flooded: bool = False
    """True if other messages had to wait because of URGENT turns."""


class _Batch:
    """Counter that decides after which messages a task yields to other tasks. A checkpoint takes half of the time of a one-way message."""

    __slots__ = ("count", "since")

    def __init__(self) -> None:
        self.count = 0
        """Number of messages since the last checkpoint."""
        self.since = -math.inf
        """Time of the last checkpoint, by trio's clock."""

    def is_full(self, now: float) -> bool:
        """Count a message. Return True if the task must yield now."""
        self.count += 1
        if self.count < BATCH_MESSAGES and now - self.since < BATCH_SECONDS:
            return False
        self.count, self.since = 0, now
        return True


@attrs.frozen(kw_only=True, repr=False)
class InboxStatistics(FieldRepr):
    """Counters of an inbox at one moment."""

    waiting: int
    """Number of waiting messages, URGENT messages excluded."""
    urgent: int
    """Number of waiting URGENT messages."""
    claimed: int
    """Number of sessions whose message is being processed (claimed)."""
    bytes: int
    """Bytes of the waiting messages, URGENT messages included."""
    senders: int
    """Number of sending tasks that wait for room in the inbox."""
    sessions: int
    """Number of sessions with messages that wait or are being processed."""


class InboxBounds(NamedTuple):
    """Capacities of an inbox, with the meaning of the parameters of `PriorityInbox`."""

    concurrency: int
    urgent_concurrency: int
    capacity: int
    session_capacity: int
    urgent_capacity: int
    capacity_bytes: int
    message_bytes: int


class PriorityInbox(Generic[M]):
    """A bounded inbox that dispatches one message of a session at a time.

    Args:
        name: Name in error messages.
        capacity: Maximum number of waiting messages, URGENT messages excluded.
        session_capacity: Maximum number of waiting messages of one session, URGENT messages excluded.
        urgent_capacity: Maximum number of waiting URGENT messages of one session.
        capacity_bytes: Maximum bytes of waiting messages; the same maximum applies separately to URGENT messages.
        message_bytes: Maximum bytes of one message.
        size_of: Returns the bytes of a message. None disables the byte bounds.
        concurrency: Maximum number of sessions that are claimed at a time.
        urgent_concurrency: Number of additional sessions that URGENT messages may claim.
        age_step: Seconds of arrival time that one priority level is worth.
        owner_of: Returns the owner of a session id. Different owners alternate.

    Raises:
        ConfigurationError: A bound is below 1, or `age_step` is negative.
    """

    def __init__(
        self,
        name: str = "inbox",
        *,
        capacity: int = 1000,
        session_capacity: int = 100,
        urgent_capacity: int = 64,
        capacity_bytes: int = DEFAULT_BYTES,
        message_bytes: int = DEFAULT_MESSAGE_BYTES,
        size_of: Callable[[M], int] | None = None,
        concurrency: int = 100,
        urgent_concurrency: int = 16,
        age_step: float = 30.0,
        owner_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        bounds = (
            capacity,
            session_capacity,
            urgent_capacity,
            capacity_bytes,
            message_bytes,
            concurrency,
            urgent_concurrency,
        )
        if min(bounds) < 1 or not age_step >= 0:
            raise ConfigurationError(
                f"inbox {name!r}: each capacity and concurrency must be at least 1, and age_step= must be at least 0"
            )
        self.name = name
        self.capacity = capacity
        self.session_capacity = session_capacity
        self.urgent_capacity = urgent_capacity
        self.capacity_bytes = capacity_bytes
        self.message_bytes = min(message_bytes, capacity_bytes)
        self._size_of = size_of
        self.concurrency = concurrency
        self.urgent_concurrency = urgent_concurrency
        self.owner_of = owner_of
        self._delays = _delays_of(age_step)
        self._serial = itertools.count()
        """Serial numbers of arrivals and of owners' turns."""
        self._queues: dict[str, _SessionQueue[M]] = {}
        self._held: dict[str, None] = {}  # empty, it takes a third of the bytes of a set
        """Ids of parked sessions, including those without waiting messages."""
        self._parked = 0
        """Number of queues in the state PARKED."""
        self._ready: FairQueue[_SessionQueue[M]] = FairQueue(LEVELS)
        self.owners: Collection[Hashable] = self._ready.owners
        """Owners with a ready session."""
        self._waiting = 0
        self._reserved = 0
        """Number of reserved entries among the waiting messages."""
        self._bytes = 0
        """Bytes of waiting messages and reserved entries, URGENT ones excluded."""
        self._claimed = 0
        """Number of claimed sessions, lent ones excluded."""
        self._urgency = _Urgency()
        self._getters: dict[trio.lowlevel.Task, None] = {}
        """Tasks that wait for a message in `get`, in arrival order."""
        self._idlers: trio.lowlevel.ParkingLot | None = None
        """Tasks in `wait_idle`; made for the first one, because it takes 250 bytes."""
        self._senders: WaitingSenders[M] = WaitingSenders(self)
        self._put_batch, self._get_batch = _Batch(), _Batch()

    def __len__(self) -> int:
        """Return the number of waiting messages, reserved entries excluded."""
        return self._waiting + self._urgency.waiting - self._reserved

    def __repr__(self) -> str:
        waiting = f"{self._waiting:,} of {self.capacity:,} waiting"
        return f"<PriorityInbox {shown(self.name)}, {waiting}, {self._urgency.waiting:,} urgent, {self._claimed:,} claimed>"

    def statistics(self) -> InboxStatistics:
        """Return the current counters of the inbox, such as waiting messages and claimed sessions, for monitoring."""
        return InboxStatistics(
            waiting=self._waiting,
            urgent=self._urgency.waiting,
            claimed=self._claimed,
            bytes=self._bytes + self._urgency.bytes,
            senders=len(self._senders),
            sessions=len(self._queues),
        )

    # --- in ------------------------------------------------------------------------------

    def put_nowait(self, message: M, now: float | None = None, *, first: bool = False) -> None:
        """Enqueue a message without waiting.

        `now` is the arrival time in seconds; None uses `trio.current_time()`, as `put` does. `first=True` puts the message
        before all other messages of its session except URGENT ones.

        Raises:
            InboxFull: A bound is reached.
        """
        if not self.try_put(message, now=trio.current_time() if now is None else now, first=first):
            raise self.full_error(message)

    def waiting(self, session_id: str) -> list[M]:
        """Return the waiting messages of a session, unordered."""
        queue = self._queues.get(session_id)
        return [] if queue is None else [entry[2] for entry in queue.waiting]

    def is_full(self, message: M) -> bool:
        """Return True if the inbox has no room for a message now."""
        return self.reached_bound(message) is not UNBOUNDED

    def check_room(self, message: M) -> None:
        """Check that the inbox has room for a message now.

        Raises:
            InboxFull: A bound is reached.
        """
        if self.is_full(message):
            raise self.full_error(message)

    def check_size(self, message: M) -> None:
        """Check that a message is not too large for this inbox when the inbox is empty.

        Raises:
            MessageTooLarge: The message has more than `message_bytes` bytes.
        """
        size = 0 if self._size_of is None else self._size_of(message)
        if size > self.message_bytes:
            raise MessageTooLarge(self.name, size, self.message_bytes)

    def full_error(self, message: M) -> InboxFull:
        """Return the `InboxFull` error for a message that finds no room. The error names the capacity that is used up."""
        bound = self.reached_bound(message)
        return self._full((message.session_id, False) if bound is UNBOUNDED else bound)

    def try_put(self, message: M, *, now: float, first: bool = False) -> bool:
        """Enqueue a message if there is room, without waiting; return False if there is none.

        If a task waits in `get` and no other message precedes, that task receives the message directly. `now`
        is the arrival time in seconds of trio's clock; `first=True` is explained at `put_nowait`.
        """
        if self._getters and self.try_claim(message):
            self._wake_getter(message)
            return True
        if self.reached_bound(message) is not UNBOUNDED:
            return False
        entry = self._make_entry(message, now, first=first)
        self._push(self._count(entry), entry)
        return True

    def try_claim(self, message: M) -> bool:
        """Claim the session of a message, so that its turn can start at once without the queue.

        Return False if the message must be enqueued: its session or other messages are queued, or no slot is
        free.
        """
        session_id = message.session_id
        if (
            self._ready.owners
            or self._senders.queues
            or session_id in self._queues
            or session_id in self._held
            or self._claimed >= self.concurrency
            or self._waiting >= self.capacity
        ):
            return False
        queue = self._queues[session_id] = _make_queue(session_id, _CLAIMED)
        self._claimed += 1
        if message.priority == _URGENT:
            queue.is_urgent = True
            self._change_urgent(queue, 1)
        return True

    def try_reserve(self, message: M, *, first: bool = False) -> InboxEntry[M] | None:
        """Reserve an entry for a message that `enqueue_reserved` enqueues later; return None if there is no room."""
        if self.reached_bound(message) is not UNBOUNDED:
            return None
        return self.reserve_over_capacity(message, first=first)

    def reserve_over_capacity(self, message: M, *, first: bool = False) -> InboxEntry[M]:
        """Reserve an entry for a message even if the inbox is full, for messages that must not be rejected."""
        entry = self._make_entry(message, trio.current_time(), first=first)
        self._count(entry)
        self._reserved += 1
        return entry

    async def reserve(self, message: M, *, first: bool = False) -> InboxEntry[M]:
        """Reserve an entry, waiting for room until the deadline of the message. A cancelled call reserves nothing.

        Raises:
            InboxFull: The inbox stayed full until the deadline.
        """
        entry = self.try_reserve(message, first=first)
        if entry is None:
            return await self._put_when_room(message, first=first, reserves=True)
        return entry

    def enqueue_reserved(self, entry: InboxEntry[M]) -> None:
        """Enqueue the message for which `entry` was reserved."""
        self._reserved -= 1
        self._push(self._queues[entry[2].session_id], entry)

    def claim_reserved(self, entry: InboxEntry[M]) -> bool:
        """Claim the session of a message that has a reserved entry, so that its turn can start without the queue.

        Return False if another message comes first.
        """
        queue = self._queues[entry[2].session_id]
        if (
            self._ready.owners
            or queue.waiting
            or queue.state is not _WAITING
            or self._claimed >= self.concurrency
        ):
            return False
        self._reserved -= 1
        self._claimed += 1
        queue.state = _CLAIMED
        if entry[2].priority == _URGENT:
            queue.is_urgent = True
            self._change_urgent(queue, 1)
        self._free(queue, entry)
        return True

    def cancel_reservation(self, entry: InboxEntry[M]) -> None:
        """Cancel the reservation of an entry, so that other messages can use its place in the inbox."""
        queue = self._queues[entry[2].session_id]
        self._reserved -= 1
        self._free(queue, entry)
        self._forget_if_empty(queue)

    def remove(self, entry: InboxEntry[M]) -> None:
        """Remove the waiting message that was enqueued as `entry`."""
        queue = self._queues[entry[2].session_id]
        queue.waiting.remove(entry)
        heapq.heapify(queue.waiting)
        if queue.listing is not None and queue.waiting:
            self._list(queue)
        else:
            self._unlist(queue)
        self._free(queue, entry)
        self._forget_if_empty(queue)

    async def put(self, message: M, *, first: bool = False) -> None:
        """Enqueue a message, waiting for room until the deadline of the message. A cancelled call enqueues nothing.

        In a series of messages, other tasks run after each 16th message, or a millisecond after they last ran.

        Raises:
            InboxFull: The inbox stayed full until the deadline.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        now = trio.current_time()
        if not self.try_put(message, now=now, first=first):
            await self._put_when_room(message, first=first)
        elif self._put_batch.is_full(now):
            await trio.lowlevel.cancel_shielded_checkpoint()

    async def yield_to_turns(self) -> None:
        """Run other tasks, such as turns, at each 16th call of this method, and if they have not run for a millisecond.

        The caller has sent a message or created a session. A checkpoint in each call would take a quarter of the time of a turn.
        """
        if self._put_batch.is_full(trio.current_time()):
            await trio.lowlevel.cancel_shielded_checkpoint()

    def restore(self, message: M, *, now: float, first: bool = False) -> InboxEntry[M]:
        """Enqueue a message after a restart without checking capacities, because the message had a place before the restart.

        Return the entry. Messages are ordered by their arrival time `now`. `first=True` puts the message before all other
        messages of its session except URGENT ones.
        """
        entry = self._make_entry(message, now, first=first)
        self._push(self._count(entry), entry)
        return entry

    def claim(self, session_id: str) -> None:
        """Claim a session without taking a message, to resume a turn that began before a restart."""
        self._claim_queue(self._queue_of(session_id))

    def _claim_queue(self, queue: _SessionQueue[M]) -> None:
        """Set a session queue to CLAIMED, even if all slots are in use."""
        self._unlist(queue)
        if queue.state is _PARKED:
            self._parked -= 1
            self._held.pop(queue.session_id, None)
        if queue.state is not _CLAIMED:
            queue.state = _CLAIMED
            self._change_claimed(queue, 1)

    def reached_bound(self, message: M) -> "Bound | Unbounded":
        """Return the full capacity because of which a message cannot be enqueued; `UNBOUNDED` if the message can be enqueued."""
        queue = self._queues.get(message.session_id)
        if message.priority == _URGENT:
            if queue is not None and queue.urgent >= self.urgent_capacity:
                return (message.session_id, True)
            if self._urgency.bytes and self._lacks_bytes(message, self._urgency.bytes):
                return URGENT_BYTES
        elif queue is not None and queue.non_urgent >= self.session_capacity:
            return (message.session_id, False)
        elif self._waiting >= self.capacity or (self._bytes and self._lacks_bytes(message, self._bytes)):
            return None
        return UNBOUNDED

    def _lacks_bytes(self, message: M, waiting: int) -> bool:
        """Return True if a message exceeds the byte bound together with `waiting` bytes. A single message always has room."""
        if not waiting or self._size_of is None:
            return False
        return waiting + self._size_of(message) > self.capacity_bytes

    def is_blocked(self, sender: WaitingSender[M]) -> bool:
        """Return True if the capacity that a waiting sender needs is still used up."""
        message, bound = sender.entry[2], sender.bound
        if bound is None:
            return self._waiting >= self.capacity or self._lacks_bytes(message, self._bytes)
        if bound == URGENT_BYTES:
            return self._lacks_bytes(message, self._urgency.bytes)
        queue = self._queues.get(message.session_id)
        if queue is None:
            return False
        return queue.urgent >= self.urgent_capacity if bound[1] else queue.non_urgent >= self.session_capacity

    def _full(self, bound: Bound) -> InboxFull:
        if bound is None and self._waiting >= self.capacity:
            return InboxFull(self.name, self.capacity)
        if bound is None:
            return InboxFull(self.name, self.capacity_bytes, "byte")
        session_id, urgent = bound
        if session_id is None:
            return InboxFull(f"{self.name} (URGENT)", self.capacity_bytes, "byte")
        if urgent:
            return InboxFull(f"session {session_id} (URGENT)", self.urgent_capacity)
        return InboxFull(f"session {session_id}", self.session_capacity)

    def _make_entry(self, message: M, now: float, *, first: bool) -> InboxEntry[M]:
        key = now + self._delays[message.priority]
        position = _FIRST if first and message.priority != _URGENT else key
        return (
            position,
            next(self._serial),
            message,
            key,
            0 if self._size_of is None else self._size_of(message),
        )

    def _count(self, entry: InboxEntry[M]) -> _SessionQueue[M]:
        """Add an entry to the counters of the inbox and of its session, and return the queue of the session.

        URGENT messages have separate counters.
        """
        queue = self._queue_of(entry[2].session_id)
        if entry[0] == -math.inf:
            queue.urgent += 1
            self._urgency.waiting += 1
            self._urgency.bytes += entry[4]
        else:
            queue.non_urgent += 1
            self._waiting += 1
            self._bytes += entry[4]
        return queue

    def _push(self, queue: _SessionQueue[M], entry: InboxEntry[M]) -> None:
        heapq.heappush(queue.waiting, entry)
        if queue.waiting[0] is entry and queue.state is _WAITING:
            self._list(queue)

    def _queue_of(self, session_id: str) -> _SessionQueue[M]:
        queue = self._queues.get(session_id)
        if queue is None:
            queue = self._queues[session_id] = _make_queue(session_id)
            if session_id in self._held:
                self._hold(queue)
        return queue

    def _hold(self, queue: _SessionQueue[M]) -> None:
        self._unlist(queue)
        queue.state = _PARKED
        queue.is_urgent = False
        self._parked += 1

    def _list(self, queue: _SessionQueue[M]) -> None:
        """Add a session to the sessions that can be dispatched, sorted by its first message, and wake a task that waits in `get`.

        An earlier entry of the session is replaced. The position of its owner in the round robin does not change.
        """
        before = queue.listing
        queue.listing = self._add(self._ready, queue, queue.waiting[0], queue)
        if before is not None:  # remove it afterwards, so that its owner keeps its turn
            self._ready.remove(before)
        if self._getters:
            self._wake_getter(None)

    def _add(
        self, rotation: FairQueue[T], item: T, entry: InboxEntry[M], queue: _SessionQueue[M]
    ) -> QueueEntry[T]:
        """Add an item to a queue in which owners take turns; the item gets the priority and order of the message in `entry`."""
        _, serial, message, key, _ = entry
        owner, turn = self._owner(queue), next(self._serial)
        return rotation.add(item, owner=owner, level=message.priority, key=key, serial=serial, turn=turn)

    def _unlist(self, queue: _SessionQueue[M]) -> None:
        if queue.listing is not None:
            self._ready.remove(queue.listing)
            queue.listing = None

    def _owner(self, queue: _SessionQueue[M]) -> str:
        if queue.owner is None:
            queue.owner = self.owner_of(queue.session_id)
        return queue.owner

    # --- waiting for room ----------------------------------------------------------------

    async def _put_when_room(self, message: M, *, first: bool, reserves: bool = False) -> InboxEntry[M]:
        entry = self._make_entry(message, trio.current_time(), first=first)
        sender = WaitingSender(entry, trio.lowlevel.current_task(), reserves)
        if not await self._senders.wait(
            sender, DEFAULT_WAIT_SECONDS if message.deadline is None else message.deadline
        ):
            raise self._full(sender.bound)
        return entry

    def admit(self, sender: WaitingSender[M]) -> None:
        """Enqueue the message of a sender that waited, or reserve its entry."""
        queue = self._count(sender.entry)
        if sender.reserves:
            self._reserved += 1
        else:
            self._push(queue, sender.entry)

    def enter(
        self, rotation: FairQueue[WaitingSender[M]], sender: WaitingSender[M]
    ) -> QueueEntry[WaitingSender[M]]:
        """Add a sender to the queue of its bound, in which owners take turns (`rotation`).

        A sender that waits for the whole inbox already counts against the capacity of its session.
        """
        queue = self._queue_of(sender.entry[2].session_id)
        if sender.bound is None:
            queue.non_urgent += 1
        elif sender.bound == URGENT_BYTES:
            queue.urgent += 1
        return self._add(rotation, sender, sender.entry, queue)

    def leave(self, sender: WaitingSender[M]) -> None:
        """Remove a sender that stops waiting, and release the capacity that it took in `enter`."""
        if sender.bound is None:
            self._queues[sender.entry[2].session_id].non_urgent -= 1
        elif sender.bound == URGENT_BYTES:
            self._queues[sender.entry[2].session_id].urgent -= 1

    def forget(self, sender: WaitingSender[M]) -> None:
        """Drop the session queue of a sender that gave up, if the queue is empty."""
        self._forget_if_empty(self._queues[sender.entry[2].session_id])

    def next_turn(self) -> int:
        """Return the next serial number. The owner with the lowest number is served next."""
        return next(self._serial)

    # --- out -----------------------------------------------------------------------------

    def get_nowait(self) -> M:
        """Return the next message and claim its session until `release`.

        Raises:
            trio.WouldBlock: No message can be dispatched now.
        """
        message = self.poll()
        if message is None:
            raise trio.WouldBlock
        return message

    def poll(self) -> M | None:
        """Return the next message and claim its session until `release`; None if no message can be dispatched now."""
        listing = self._next_session() if self._ready.owners else None
        if listing is None:
            return None
        queue = listing.item
        self._ready.take(listing, next(self._serial))
        queue.listing = None
        queue.state = _CLAIMED
        queue.is_urgent = listing.level == _URGENT
        self._begin(queue)
        self._claimed += 1
        if queue.is_urgent:
            self._change_urgent(queue, 1)
        return self._pop(queue)

    def _next_session(self) -> "QueueEntry[_SessionQueue[M]] | None":
        """Return the queue entry of the session to dispatch next; None if no session is ready or no slot is free.

        URGENT messages may use extra slots. Messages below URGENT precede them if URGENT turns took too many
        slots.
        """
        if self._claimed >= self.concurrency + self.urgent_concurrency:
            return None
        listing = self._ready.first()
        if listing is not None and listing.level == _URGENT:
            if not self._is_throttled(self._claimed, self._claimed_normal):
                return listing
            listing = self._ready.first(_FIRST_NORMAL_LEVEL)
        if listing is None:
            return None
        if not self._urgency.running:  # without URGENT turns all claimed sessions count
            return listing if self._claimed < self.concurrency else None
        is_alone = self._is_alone(self._owner(listing.item))
        return listing if (self._claimed if is_alone else self._claimed_normal) < self.concurrency else None

    @property
    def _claimed_normal(self) -> int:
        """Number of claimed sessions without an URGENT message."""
        return self._claimed - self._urgency.running

    def _is_alone(self, owner: str) -> bool:
        """Return True if no other owner competes for a slot: all ready sessions and all URGENT turns belong to this owner."""
        is_own = self._urgency.running_by_owner.get(owner, 0) == self._urgency.running
        return is_own and not self._ready.waits_other(owner)

    def _is_throttled(self, claimed: int, others: int) -> bool:
        """Return True if URGENT messages must wait because a series of URGENT turns has kept other messages waiting.

        `claimed` is the number of claimed sessions, `others` the number of those whose turn is not URGENT.
        """
        if not self._urgency.is_flooded or self._urgency.consecutive_turns < _MAX_URGENT_RUN:
            return False
        is_full = claimed >= self.concurrency
        return (is_full and others > 0) or self._ready.first(_FIRST_NORMAL_LEVEL) is not None

    def _begin(self, queue: _SessionQueue[M]) -> None:
        """Update the length of the current series of URGENT turns, because a turn of this session begins.

        A turn without an URGENT message ends the series.
        """
        urgency = self._urgency
        if not queue.is_urgent:
            urgency.consecutive_turns = 0
            urgency.is_flooded = urgency.is_flooded or self._claimed >= self.concurrency
            return
        urgency.consecutive_turns += 1
        urgency.is_flooded = urgency.is_flooded or self._ready.waits_other(
            self._owner(queue), _FIRST_NORMAL_LEVEL
        )

    def _change_claimed(self, queue: _SessionQueue[M], change: int) -> None:
        self._claimed += change
        if queue.is_urgent:
            self._change_urgent(queue, change)

    def _change_urgent(self, queue: _SessionQueue[M], change: int) -> None:
        urgency, owner = self._urgency, self._owner(queue)
        urgency.running += change
        urgency.running_by_owner[owner] = urgency.running_by_owner.get(owner, 0) + change
        if not urgency.running_by_owner[owner]:
            del urgency.running_by_owner[owner]
        if not (urgency.running or urgency.waiting):
            urgency.is_flooded = False

    async def get(self) -> M:
        """Wait for the next message, claim its session until `release`, and return the message.

        If a message is available, yield to other tasks only after each 16th message, or after a millisecond without a yield.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        message = self.poll()
        if message is not None:
            if self._get_batch.is_full(trio.current_time()):
                await trio.lowlevel.cancel_shielded_checkpoint()
            return message
        while message is None:
            message = await self._wait_message()
            if message is None:
                message = self.poll()
        return message

    async def yield_in_series(self) -> None:
        """Let other tasks run if many messages are processed in a row: at each 16th message, or a millisecond after they last ran."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._get_batch.is_full(trio.current_time()):
            await trio.lowlevel.checkpoint()

    @trio.lowlevel.enable_ki_protection  # an interrupt in between would wake a task that does not wait
    async def _wait_message(self) -> M | None:
        """Wait until a message can be dispatched. Return the message if `try_put` passed it directly, else None."""
        task = trio.lowlevel.current_task()

        def leave(_: object) -> trio.lowlevel.Abort:
            del self._getters[task]
            return trio.lowlevel.Abort.SUCCEEDED

        self._getters[task] = None
        message: M | None = await trio.lowlevel.wait_task_rescheduled(leave)
        return message

    @trio.lowlevel.enable_ki_protection
    def _wake_getter(self, message: M | None) -> None:
        """Wake the task that has waited longest in `get`, and pass it a message. With None the task polls the inbox."""
        task = next(iter(self._getters))
        del self._getters[task]
        trio.lowlevel.reschedule(task, outcome.Value(message))

    def next_urgent(self, session_id: str) -> M | None:
        """Return the next URGENT message of a claimed session, whose turn has ended.

        Return None if there is no such message, or if the session must release its slot to other sessions first.

        Raises:
            UsageError: No message of the session is claimed.
        """
        queue = self._queues.get(session_id)
        if queue is None or queue.state is _WAITING:
            raise self._not_claimed_error(session_id)
        if not queue.waiting or not self._is_urgent(queue) or self._must_release(queue):
            return None
        if not queue.is_urgent:
            queue.is_urgent = True
            if queue.state is _CLAIMED:
                self._change_urgent(queue, 1)
        self._ready.charge(self._owner(queue), next(self._serial))
        self._begin(queue)
        return self._pop(queue)

    def _must_release(self, queue: _SessionQueue[M]) -> bool:
        """Return True if the session must release its slot: other owners need it, or messages below URGENT are next."""
        if not self._ready.owners and not self._urgency.is_flooded:
            return False
        is_crowded = self._claimed >= self.concurrency + self.urgent_concurrency
        if is_crowded and self._ready.waits_other(self._owner(queue)):
            return True
        is_out = queue.state is _CLAIMED
        return self._is_throttled(
            self._claimed - is_out, self._claimed_normal - (is_out and not queue.is_urgent)
        )

    def has_first(self, session_id: str) -> bool:
        """Return True if the next message of the session was enqueued with `first=True`."""
        queue = self._queues.get(session_id)
        return queue is not None and bool(queue.waiting) and queue.waiting[0][0] == _FIRST

    def take_next_messages(self, session_id: str, accepts: Callable[[M], bool]) -> list[M]:
        """Remove and return the next messages of a claimed session, up to the first one for which `accepts` returns False.

        The running turn answers them together with its own message.

        Raises:
            UsageError: No message of the session is claimed.
        """
        queue, taken = self._claimed_queue(session_id), []
        while queue.waiting and accepts(queue.waiting[0][2]):
            taken.append(self._pop(queue))
        return taken

    def release(self, session_id: str) -> None:
        """End the turn of a session, which makes its next message ready.

        Raises:
            UsageError: No message of the session is claimed.
        """
        queue = self._queues.get(session_id)
        if queue is None or queue.state is _WAITING:
            raise self._not_claimed_error(session_id)
        if queue.state is _CLAIMED:
            self._claimed -= 1
            if queue.is_urgent:
                self._change_urgent(queue, -1)
        elif queue.state is _PARKED:
            self._parked -= 1
            self._held.pop(session_id, None)
        if not (queue.waiting or queue.non_urgent or queue.urgent):  # the common case
            del self._queues[session_id]
            if len(self._queues) == self._parked and self._idlers:
                self._idlers.unpark_all()
        else:
            queue.state = _WAITING
            queue.is_urgent = False
            if queue.waiting:
                self._list(queue)
                return
        if self._getters:
            self._wake_for_free_slot()

    def release_and_claim(self, session_id: str) -> M | None:
        """End the turn of a session and claim its next message in one step, which is faster than `release` and `poll`.

        Return None after a plain `release`: if the session has no message, another session is ready, or a
        turn is URGENT.

        Raises:
            UsageError: No message of the session is claimed.
        """
        queue = self._queues.get(session_id)
        if (
            queue is None
            or not queue.waiting
            or queue.state is not _CLAIMED
            or queue.is_urgent
            or self._ready.owners
            or self._is_urgent(queue)
            or self._claimed > self.concurrency
        ):
            self.release(session_id)
            return None
        self._ready.charge(self._owner(queue), next(self._serial))
        self._claimed -= 1
        self._begin(queue)
        self._claimed += 1
        return self._pop(queue)

    def _wake_for_free_slot(self) -> None:
        """Wake a task of `get` after a slot became free, if a session is ready."""
        if self._getters and self._ready:
            self._wake_getter(None)

    def lend(self, session_id: str) -> None:
        """Release the slot of a claimed session while its turn waits for another turn.

        Raises:
            UsageError: No message of the session is claimed.
        """
        queue = self._claimed_queue(session_id)
        if queue.state is _CLAIMED:
            queue.state = _LENT
            self._change_claimed(queue, -1)
            self._wake_for_free_slot()

    def reclaim(self, session_id: str) -> None:
        """Take a slot again for a lent session, even if more than `concurrency` sessions are then claimed.

        Raises:
            UsageError: No message of the session is claimed.
        """
        queue = self._claimed_queue(session_id)
        if queue.state is _LENT:
            queue.state = _CLAIMED
            self._change_claimed(queue, 1)

    def park(self, session_id: str) -> None:
        """Release the slot of a session whose turn waits for an outside event. Its messages wait until `unpark`.

        Parked sessions do not count for `wait_idle`.
        """
        self._held[session_id] = None
        queue = self._queues.get(session_id)
        if queue is None or queue.state is _PARKED:
            return
        if queue.state is _CLAIMED:
            self._change_claimed(queue, -1)
        self._hold(queue)
        self._forget_if_empty(queue)
        self._wake_if_idle()
        self._wake_for_free_slot()

    def unpark(self, session_id: str) -> None:
        """Claim a parked session again, even if more than `concurrency` sessions are then claimed."""
        self._held.pop(session_id, None)
        self._claim_queue(self._queue_of(session_id))

    def is_wanted_by_others(self, session_id: str) -> bool:
        """Return True if another owner than the session's owner has a message that is ready to be dispatched."""
        return self._ready.waits_other(self.owner_of(session_id))

    def forget_parked(self, session_id: str) -> None:
        """Forget a parked session that is evicted from memory. Call `park` again after the session was loaded."""
        self._held.pop(session_id, None)

    def is_parked(self, session_id: str) -> bool:
        """Return True if the session is parked with messages that wait for `unpark`.

        The result is False for a parked session without messages.
        """
        queue = self._queues.get(session_id)
        return queue is not None and queue.state is _PARKED

    def has_urgent(self, session_id: str) -> bool:
        """Return True if the session has a waiting URGENT message."""
        queue = self._queues.get(session_id)
        return queue is not None and self._is_urgent(queue)

    def _is_urgent(self, queue: _SessionQueue[M]) -> bool:
        return bool(queue.waiting) and queue.waiting[0][0] == -math.inf

    def withdraw(self, session_id: str) -> list[M]:
        """Remove and return all waiting messages of a session, in dispatch order.

        Senders that wait for room are admitted afterwards.
        """
        queue = self._queues.get(session_id)
        if queue is None:
            return []
        self._unlist(queue)
        entries = sorted(queue.waiting)
        queue.waiting.clear()
        for entry in entries:
            self._free(queue, entry)
        self._forget_if_empty(queue)
        return [entry[2] for entry in entries]

    def _claimed_queue(self, session_id: str) -> _SessionQueue[M]:
        queue = self._queues.get(session_id)
        if queue is None or queue.state is _WAITING:
            raise self._not_claimed_error(session_id)
        return queue

    def _not_claimed_error(self, session_id: str) -> UsageError:
        return UsageError(
            f"inbox {self.name!r}: no message of session {session_id!r} is claimed: call get() first"
        )

    def _forget_if_empty(self, queue: _SessionQueue[M]) -> None:
        if queue.is_empty:
            del self._queues[queue.session_id]
            if queue.state is _PARKED:
                self._parked -= 1
            self._wake_if_idle()

    def _wake_if_idle(self) -> None:
        if len(self._queues) == self._parked and self._idlers:
            self._idlers.unpark_all()

    async def wait_idle(self) -> None:
        """Wait until no message waits and no turn runs. Parked sessions are ignored."""
        await trio.lowlevel.checkpoint()
        while len(self._queues) > self._parked:
            if self._idlers is None:
                self._idlers = trio.lowlevel.ParkingLot()
            await self._idlers.park()

    def sessions(self) -> list[str]:
        """Return the ids of sessions with waiting or claimed messages. Parked sessions are excluded."""
        return [session_id for session_id, queue in self._queues.items() if queue.state is not _PARKED]

    def _pop(self, queue: _SessionQueue[M]) -> M:
        entry = heapq.heappop(queue.waiting)
        self._free(queue, entry)
        return entry[2]

    def _free(self, queue: _SessionQueue[M], entry: InboxEntry[M]) -> None:
        """Release the capacity and bytes of a removed message, and admit waiting senders."""
        urgent = entry[2].priority == _URGENT
        if urgent:
            queue.urgent -= 1
            self._urgency.waiting -= 1
            self._urgency.bytes -= entry[4]
        else:
            queue.non_urgent -= 1
            self._waiting -= 1
            self._bytes -= entry[4]
        if self._senders.queues:
            self._senders.open(URGENT_BYTES if urgent else None)
            self._senders.open((queue.session_id, urgent))
