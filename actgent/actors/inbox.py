"""The priority inbox: who is next, decided without a task of its own.

Theory. Each session has a *line* of waiting messages, a heap by key. The key of a message is
static: its arrival time plus its level times `age_step`, so an older message of a lower level
overtakes a younger one of a higher level in time and nothing starves, without ever touching a
queued message again. URGENT is minus infinity. Messages that are put `first` go in their session before all others but
URGENT; among the sessions they count as what they are.

A line is *listed* by its first message, as long as nothing of its session is out. Taking a message claims its line;
follow-ups of the claimed turn go into a place of their own, and `release` lists the line again. The listings of one
owner go by key, whatever others do; those of several take turns inside a level, see `actgent/support/rotation.py`. Who an owner is
says `owner_of(session_id)`; where nothing is said, all sessions have the same one. Only where places are contended does
any of this happen: `try_claim` goes round it.

At most `concurrency` sessions are out side by side, and URGENT messages bring at most `urgent_concurrency` more. Their turns
take no place from other owners, for whom there are `concurrency` places beside them. URGENT goes first; but where others
had to wait for it, or found all places taken by it, the inbox is *flooded*: then at most two URGENT turns begin until
another one does, as long as others wait, or are out and all places are taken. So whoever marks everything URGENT leaves at
least a fifth of the turns to others who want them, a third if those always wait. It is over when nothing URGENT is left. A
session whose URGENT messages never end gives its place back between two of them where others need it.

A place can be reserved before its message is put, e.g. while a journal writes that: it counts as taken, and keeps the
message's turn in the line.

Each session with anything waiting or out has a line, which is in one of four states; the fifth is to have none:

    state     its turn                       a place  claim  lend  reclaim  park    unpark  release
    WAITING   has not begun                  no       OUT    -     -        PARKED  OUT     -
    OUT       runs                           yes      OUT    LENT  OUT      PARKED  OUT     WAITING
    LENT      waits for another turn         no       OUT    LENT  OUT      PARKED  OUT     WAITING
    PARKED    waits for something outside    no       OUT    -     -        PARKED  OUT     WAITING
    held      the same, and no mail waits: a name in a set, no line

"A place" is one of the `concurrency` ones. Only a WAITING line is listed; `-` changes nothing, or is refused with
`UsageError` because nothing is out. Mail of a held session makes a PARKED line, and a PARKED line that loses its mail goes.
PARKED lines keep nobody waiting for the inbox to be idle.

A sender that finds no room waits at a gate, see `actgent/actors/gate.py`.
"""

import enum
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

import attrs
import outcome
import trio

from actgent.errors import ConfigurationError, InboxFull, MessageTooLarge, UsageError
from actgent.errors.printable import shown
from actgent.messages import Priority
from actgent.support.quick_init import maker
from actgent.support.rotation import Rotation, Ticket

from .gate import LEVELS, NO_BOUND, URGENT_BYTES, Bound, Gates, M, Mail, NoBound, Place, WaitingSender

__all__ = ["DEFAULT_WAIT", "InboxStatistics", "Mail", "Place", "PriorityInbox"]

T = TypeVar("T")
_FIRST = -1e300
"""The place of messages that go before all but URGENT."""
_URGENT = Priority.URGENT
"""The member itself: to read it from its class takes as long as all else in a comparison."""
_OTHERS = _URGENT + 1
"""The first level that is not URGENT."""
_URGENT_RUN = 2
"""URGENT turns in a flooded inbox between two others."""
DEFAULT_WAIT = 30.0
"""Seconds that `put` waits where the message has no deadline of its own."""
DEFAULT_BYTES = 100_000_000
"""Bytes of all messages that wait in one inbox."""
DEFAULT_MESSAGE_BYTES = 25_000_000
"""Bytes of one message."""


class _State(enum.Enum):
    """The state of a line; see the table."""

    WAITING = enum.auto()
    OUT = enum.auto()
    LENT = enum.auto()
    PARKED = enum.auto()


_WAITING, _OUT, _LENT, _PARKED = _State


@attrs.define(eq=False)
class _Line(Generic[M]):
    """What waits for one session. It exists only while something waits or is out."""

    session_id: str
    state: _State = _WAITING
    waiting: list[Place[M]] = attrs.field(factory=list)
    urgent: int = 0
    """URGENT messages that wait, or have a place reserved."""
    places: int = 0
    """Other messages that wait or have a place reserved, here or with their sender at the inbox's gate."""
    followups: deque[M] | None = None
    is_urgent: bool = False
    """True if the message that is out is URGENT."""
    owner: str | None = None
    """Once it was asked for."""
    listing: "Ticket[_Line[M]] | None" = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, and nothing is out that others wait for."""
        return not (self.places or self.urgent or self.state is _OUT or self.state is _LENT)


_make_line = maker(_Line)


@attrs.define(eq=False)
class _Urgency:
    """The URGENT turns, and what others have to bear of them."""

    waiting: int = 0
    """URGENT messages that wait, or have a place reserved."""
    bytes: int = 0
    """Bytes of these messages."""
    out: int = 0
    """Lines that an URGENT message is out of, without those that are lent."""
    out_of: dict[str, int] = attrs.field(factory=dict)
    """The same by owners."""
    run: int = 0
    """URGENT turns since the last other one."""
    is_flooded: bool = False
    """True if others had to wait for URGENT turns."""


@attrs.frozen(kw_only=True)
class InboxStatistics:
    """A snapshot of an inbox, for people and tests."""

    waiting: int
    """Messages that wait, URGENT ones and follow-ups not counted."""
    urgent: int
    claimed: int
    """Sessions with a message out."""
    bytes: int
    """Bytes of the messages that wait, URGENT ones included."""
    senders: int
    """Tasks that wait for room."""
    sessions: int
    """Sessions with anything waiting or out."""


class PriorityInbox(Generic[M]):
    """A bounded inbox that hands out one message of a session at a time.

    `capacity` bounds the waiting messages, `session_capacity` those of one session,
    `urgent_capacity` the URGENT ones of one session, which count for nothing else. `capacity_bytes` bounds the bytes of the
    waiting messages, and once more those of the URGENT ones; `message_bytes` bounds one message. `size_of` returns the bytes
    of a message; without it none has any. At most
    `concurrency` sessions are out side by side, and `urgent_concurrency` more by URGENT messages. `owner_of` tells by its
    id for whom a session works; owners take turns.
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
                f"inbox {name!r}: its bounds are at least 1, and its age_step at least 0"
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
        self._delays = (-math.inf, 0.0, age_step, 2 * age_step)
        self._serial = itertools.count()
        """Counts arrivals, and the turns that owners had to wait for."""
        self._lines: dict[str, _Line[M]] = {}
        self._held: set[str] = set()
        """Sessions that are parked; without mail they have no line."""
        self._parked = 0
        """Lines of theirs."""
        self._ready: Rotation[_Line[M]] = Rotation(LEVELS)
        self._waiting = 0
        self._reserved = 0
        """How many of the waiting are places without their message."""
        self._bytes = 0
        """Bytes of the waiting messages and reserved places that are not URGENT."""
        self._claimed = 0
        """Lines that are out, without those that are lent."""
        self._urgency = _Urgency()
        self._getters: dict[trio.lowlevel.Task, None] = {}
        """Tasks that wait for a message."""
        self._idlers = trio.lowlevel.ParkingLot()
        self._gates: Gates[M] = Gates(self)

    def __len__(self) -> int:
        """The messages that wait, without the places that are reserved."""
        return self._waiting + self._urgency.waiting - self._reserved

    @property
    def owners(self) -> Collection[Hashable]:
        """The owners for whom something waits that may go out."""
        return self._ready.owners

    def __repr__(self) -> str:
        waiting = f"{self._waiting:,} of {self.capacity:,} waiting"
        return f"<PriorityInbox {shown(self.name)}, {waiting}, {self._urgency.waiting:,} urgent, {self._claimed:,} claimed>"

    def statistics(self) -> InboxStatistics:
        return InboxStatistics(
            waiting=self._waiting,
            urgent=self._urgency.waiting,
            claimed=self._claimed,
            bytes=self._bytes + self._urgency.bytes,
            senders=len(self._gates),
            sessions=len(self._lines),
        )

    # --- in ------------------------------------------------------------------------------

    def put_nowait(self, message: M, now: float | None = None, *, first: bool = False) -> None:
        """Take a message that arrived at `now`, in seconds of the clock that all senders use.

        None is `trio.current_time()`, which `put` uses, too. `first` lets it go before all but URGENT ones.

        Raises:
            InboxFull: a bound is reached.
        """
        if not self.try_put(message, now=trio.current_time() if now is None else now, first=first):
            raise self.refusal(message)

    def waiting(self, session_id: str) -> list[M]:
        """The messages of a session that wait, in no order."""
        line = self._lines.get(session_id)
        return [] if line is None else [entry[2] for entry in line.waiting]

    def is_full(self, message: M) -> bool:
        """True if a message would have to wait for room."""
        return self.reached(message) is not NO_BOUND

    def check_room(self, message: M) -> None:
        """See that a message could be put now.

        Raises:
            InboxFull: a bound is reached.
        """
        if self.is_full(message):
            raise self.refusal(message)

    def check_size(self, message: M) -> None:
        """Refuse a message that is too large for this inbox, whatever waits in it.

        Raises:
            MessageTooLarge: The message has more than `message_bytes` bytes.
        """
        size = 0 if self._size_of is None else self._size_of(message)
        if size > self.message_bytes:
            raise MessageTooLarge(self.name, size, self.message_bytes)

    def refusal(self, message: M) -> InboxFull:
        """The error for a sender whose message found no room."""
        bound = self.reached(message)
        return self._full((message.session_id, False) if bound is NO_BOUND else bound)

    def try_put(self, message: M, *, now: float, first: bool = False) -> bool:
        """Take a message if there is room; straight to a task that waits for one, if nothing goes before it."""
        if self._getters and self.try_claim(message):
            self._wake_getter(message)
            return True
        if self.reached(message) is not NO_BOUND:
            return False
        self._insert(self._stamp(message, now, first=first))
        return True

    def try_claim(self, message: M) -> bool:
        """Claim the session of a message that could go out as soon as it was put; False where something goes before it.

        The same as `try_put` and then `poll`, without the way through the queue.
        """
        session_id = message.session_id
        if (
            self._ready.owners
            or self._gates.queues
            or session_id in self._lines
            or session_id in self._held
            or self._claimed >= self.concurrency
            or self._waiting >= self.capacity
        ):
            return False
        is_urgent = message.priority == _URGENT
        self._lines[session_id] = _make_line(session_id, _OUT, is_urgent=is_urgent)
        self._claimed += 1
        if is_urgent:
            self._count_urgent(self._lines[session_id], 1)
        return True

    def try_reserve(self, message: M, *, first: bool = False) -> Place[M] | None:
        """Reserve a place for a message that is to be put later, if there is room."""
        if self.reached(message) is not NO_BOUND:
            return None
        return self.reserve_beyond(message, first=first)

    def reserve_beyond(self, message: M, *, first: bool = False) -> Place[M]:
        """The same for a message that has room whatever the bounds."""
        place = self._stamp(message, trio.current_time(), first=first)
        self._count(place)
        self._reserved += 1
        return place

    async def reserve(self, message: M, *, first: bool = False) -> Place[M]:
        """The same, waiting for room until the message's deadline. Cancelled, it leaves nothing behind.

        Raises:
            InboxFull: there was no room until the deadline.
        """
        place = self.try_reserve(message, first=first)
        if place is None:
            return await self._put_when_room(message, first=first, reserves=True)
        return place

    def fill(self, place: Place[M]) -> None:
        """Put the message for which a place was reserved."""
        self._reserved -= 1
        self._push(self._lines[place[2].session_id], place)

    def claim_place(self, place: Place[M]) -> bool:
        """Have a message go out straight from its place, as by `fill` and then `poll`; False if something goes before it."""
        line = self._lines[place[2].session_id]
        if (
            self._ready.owners
            or line.waiting
            or line.state is not _WAITING
            or self._claimed >= self.concurrency
        ):
            return False
        self._reserved -= 1
        self._claimed += 1
        line.state = _OUT
        if place[2].priority == _URGENT:
            line.is_urgent = True
            self._count_urgent(line, 1)
        self._free(line, place[2])
        return True

    def give_back(self, place: Place[M]) -> None:
        """The message of a reserved place does not come."""
        line = self._lines[place[2].session_id]
        self._reserved -= 1
        self._free(line, place[2])
        self._forget_if_empty(line)

    def take_out(self, place: Place[M]) -> None:
        """The message of a place that was filled is not to go out any more."""
        line = self._lines[place[2].session_id]
        line.waiting.remove(place)
        heapq.heapify(line.waiting)
        if line.listing is not None and line.waiting:
            self._list(line)
        else:
            self._unlist(line)
        self._free(line, place[2])
        self._forget_if_empty(line)

    async def put(self, message: M, *, first: bool = False) -> None:
        """Take a message, waiting for room until its deadline. Cancelled, it leaves nothing behind.

        Raises:
            InboxFull: there was no room until the deadline.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.try_put(message, now=trio.current_time(), first=first):
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            await self._put_when_room(message, first=first)

    def restore(self, message: M, *, now: float, first: bool = False) -> Place[M]:
        """Enqueue without checking bounds: the slot was granted earlier, for example before a restart. Returns the place."""
        place = self._stamp(message, now, first=first)
        self._insert(place)
        return place

    def claim(self, session_id: str) -> None:
        """A turn of this session goes on that began before a restart; its first message is not here any more."""
        self._go_out(self._line(session_id))

    def _go_out(self, line: _Line[M]) -> None:
        """Let the turn of a line run, whatever the places."""
        self._unlist(line)
        if line.state is _PARKED:
            self._parked -= 1
            self._held.discard(line.session_id)
        if line.state is not _OUT:
            line.state = _OUT
            self._count_place(line, 1)

    def put_followup(self, message: M) -> None:
        """Take a message of the turn that is out: it goes before all other mail of its session, except URGENT.

        Its place was reserved when the session was claimed, so it is never refused.

        Raises:
            UsageError: nothing of the session is out.
        """
        line = self._claimed_line(message.session_id)
        if line.followups is None:
            line.followups = deque()
        line.followups.append(message)

    def reached(self, message: M) -> "Bound | NoBound":
        """The bound that keeps a message out."""
        line = self._lines.get(message.session_id)
        if message.priority == _URGENT:
            if line is not None and line.urgent >= self.urgent_capacity:
                return (message.session_id, True)
            if self._urgency.bytes and self._lacks_bytes(message, self._urgency.bytes):
                return URGENT_BYTES
        elif line is not None and line.places >= self.session_capacity:
            return (message.session_id, False)
        elif self._waiting >= self.capacity or (self._bytes and self._lacks_bytes(message, self._bytes)):
            return None
        return NO_BOUND

    def _lacks_bytes(self, message: M, waiting: int) -> bool:
        """True if a message has no room beside so many waiting bytes; a message alone always has room."""
        if not waiting or self._size_of is None:
            return False
        return waiting + self._size_of(message) > self.capacity_bytes

    def keeps_out(self, sender: WaitingSender[M]) -> bool:
        """True if there is still no room at the gate where a sender waits."""
        message, gate = sender.place[2], sender.gate
        if gate is None:
            return self._waiting >= self.capacity or self._lacks_bytes(message, self._bytes)
        if gate == URGENT_BYTES:
            return self._lacks_bytes(message, self._urgency.bytes)
        line = self._lines.get(message.session_id)
        if line is None:
            return False
        return line.urgent >= self.urgent_capacity if gate[1] else line.places >= self.session_capacity

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

    def _stamp(self, message: M, now: float, *, first: bool) -> Place[M]:
        key = now + self._delays[message.priority]
        place = _FIRST if first and message.priority != _URGENT else key
        return (place, next(self._serial), message, key)

    def _insert(self, entry: Place[M]) -> None:
        self._push(self._count(entry), entry)

    def _count(self, entry: Place[M]) -> _Line[M]:
        """Take a place in the line of its session."""
        line = self._line(entry[2].session_id)
        if entry[0] == -math.inf:
            line.urgent += 1
            self._urgency.waiting += 1
            if self._size_of is not None:
                self._urgency.bytes += self._size_of(entry[2])
        else:
            line.places += 1
            self._waiting += 1
            if self._size_of is not None:
                self._bytes += self._size_of(entry[2])
        return line

    def _push(self, line: _Line[M], entry: Place[M]) -> None:
        heapq.heappush(line.waiting, entry)
        if line.waiting[0] is entry and line.state is _WAITING:
            self._list(line)

    def _line(self, session_id: str) -> _Line[M]:
        line = self._lines.get(session_id)
        if line is None:
            line = self._lines[session_id] = _make_line(session_id)
            if session_id in self._held:
                self._hold(line)
        return line

    def _hold(self, line: _Line[M]) -> None:
        self._unlist(line)
        line.state = _PARKED
        line.is_urgent = False
        line.followups = None
        self._parked += 1

    def _list(self, line: _Line[M]) -> None:
        """Let a line stand for its first message among those that may go out."""
        before = line.listing
        line.listing = self._add(self._ready, line, line.waiting[0], line)
        if before is not None:  # after that, so that its owner keeps its place
            self._ready.remove(before)
        if self._getters:
            self._wake_getter(None)

    def _add(self, queue: Rotation[T], item: T, place: Place[M], line: _Line[M]) -> Ticket[T]:
        """Have something wait in a queue of owners, by the key of a message."""
        _, serial, message, key = place
        owner, turn = self._owner(line), next(self._serial)
        return queue.add(item, owner=owner, level=message.priority, key=key, serial=serial, turn=turn)

    def _unlist(self, line: _Line[M]) -> None:
        if line.listing is not None:
            self._ready.remove(line.listing)
            line.listing = None

    def _owner(self, line: _Line[M]) -> str:
        if line.owner is None:
            line.owner = self.owner_of(line.session_id)
        return line.owner

    # --- waiting for room ----------------------------------------------------------------

    async def _put_when_room(self, message: M, *, first: bool, reserves: bool = False) -> Place[M]:
        place = self._stamp(message, trio.current_time(), first=first)
        sender = WaitingSender(place, trio.lowlevel.current_task(), reserves)
        if not await self._gates.wait(sender, DEFAULT_WAIT if message.deadline is None else message.deadline):
            raise self._full(sender.gate)
        return place

    def admit(self, sender: WaitingSender[M]) -> None:
        """Take the message of a sender that waited, or its place."""
        line = self._count(sender.place)
        if sender.reserves:
            self._reserved += 1
        else:
            self._push(line, sender.place)

    def enter(self, queue: Rotation[WaitingSender[M]], sender: WaitingSender[M]) -> Ticket[WaitingSender[M]]:
        """Have a sender wait at a gate; at the inbox's it keeps a place of its session."""
        line = self._line(sender.place[2].session_id)
        if sender.gate is None:
            line.places += 1
        elif sender.gate == URGENT_BYTES:
            line.urgent += 1
        return self._add(queue, sender, sender.place, line)

    def leave(self, sender: WaitingSender[M]) -> None:
        """Give the place back that a sender kept at the inbox's gate."""
        if sender.gate is None:
            self._lines[sender.place[2].session_id].places -= 1
        elif sender.gate == URGENT_BYTES:
            self._lines[sender.place[2].session_id].urgent -= 1

    def forget(self, sender: WaitingSender[M]) -> None:
        """Drop the line of a sender that gave up, if it was the only one in it."""
        self._forget_if_empty(self._lines[sender.place[2].session_id])

    def next_turn(self) -> int:
        """A number for the turn that an owner has now."""
        return next(self._serial)

    # --- out -----------------------------------------------------------------------------

    def get_nowait(self) -> M:
        """Hand out the next message and claim its session until `release`.

        Raises:
            trio.WouldBlock: nothing may go out.
        """
        message = self.poll()
        if message is None:
            raise trio.WouldBlock
        return message

    def poll(self) -> M | None:
        """`get_nowait`, or None where nothing may go out."""
        listing = self._next() if self._ready.owners else None
        if listing is None:
            return None
        line = listing.item
        self._ready.take(listing, next(self._serial))
        line.listing = None
        line.state = _OUT
        line.is_urgent = listing.level == _URGENT
        self._begin(line)
        self._claimed += 1
        if line.is_urgent:
            self._count_urgent(line, 1)
        return self._pop(line)

    def _next(self) -> "Ticket[_Line[M]] | None":
        """Return the key whose turn it is, if there is a place for it."""
        if self._claimed >= self.concurrency + self.urgent_concurrency:
            return None
        listing = self._ready.first()
        if listing is not None and listing.level == _URGENT:
            if not self._is_throttled(self._claimed, self._others):
                return listing
            listing = self._ready.first(_OTHERS)
        if listing is None:
            return None
        if not self._urgency.out:  # then all that is out counts
            return listing if self._claimed < self.concurrency else None
        is_alone = self._is_alone(self._owner(listing.item))
        return listing if (self._claimed if is_alone else self._others) < self.concurrency else None

    @property
    def _others(self) -> int:
        """Count the messages out that are not URGENT."""
        return self._claimed - self._urgency.out

    def _is_alone(self, owner: str) -> bool:
        """Return True if all that waits, or all that is URGENT, belongs to this owner."""
        is_own = self._urgency.out_of.get(owner, 0) == self._urgency.out
        return is_own and not self._ready.waits_other(owner)

    def _is_throttled(self, claimed: int, others: int) -> bool:
        """Return True if it is the turn of messages that are not URGENT, given how many are out."""
        if not self._urgency.is_flooded or self._urgency.run < _URGENT_RUN:
            return False
        is_full = claimed >= self.concurrency
        return (is_full and others > 0) or self._ready.first(_OTHERS) is not None

    def _begin(self, line: _Line[M]) -> None:
        """A turn that was waited for begins."""
        urgency = self._urgency
        if not line.is_urgent:
            urgency.run = 0
            urgency.is_flooded = urgency.is_flooded or self._claimed >= self.concurrency
            return
        urgency.run += 1
        urgency.is_flooded = urgency.is_flooded or self._ready.waits_other(self._owner(line), _OTHERS)

    def _count_place(self, line: _Line[M], change: int) -> None:
        self._claimed += change
        if line.is_urgent:
            self._count_urgent(line, change)

    def _count_urgent(self, line: _Line[M], change: int) -> None:
        urgency, owner = self._urgency, self._owner(line)
        urgency.out += change
        urgency.out_of[owner] = urgency.out_of.get(owner, 0) + change
        if not urgency.out_of[owner]:
            del urgency.out_of[owner]
        if not (urgency.out or urgency.waiting):
            urgency.is_flooded = False

    async def get(self) -> M:
        """Wait for the next message and claim its session until `release`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        message = self.poll()
        if message is not None:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return message
        while message is None:
            message = await self._wait_message()
            if message is None:
                message = self.poll()
        return message

    @trio.lowlevel.enable_ki_protection  # or a task would be woken that does not wait
    async def _wait_message(self) -> M | None:
        """Wait until something may go out; returns it if it was handed over at once."""
        task = trio.lowlevel.current_task()

        def leave(_: object) -> trio.lowlevel.Abort:
            del self._getters[task]
            return trio.lowlevel.Abort.SUCCEEDED

        self._getters[task] = None
        message: M | None = await trio.lowlevel.wait_task_rescheduled(leave)
        return message

    @trio.lowlevel.enable_ki_protection
    def _wake_getter(self, message: M | None) -> None:
        """Wake the task that has waited for a message for the longest time; None lets it look for one."""
        task = next(iter(self._getters))
        del self._getters[task]
        trio.lowlevel.reschedule(task, outcome.Value(message))

    def next_followup(self, session_id: str) -> M | None:
        """The next follow-up of the turn that is out.

        Raises:
            UsageError: nothing of the session is out.
        """
        line = self._lines.get(session_id)
        if line is None or line.state is _WAITING:
            raise self._not_out(session_id)
        return line.followups.popleft() if line.followups else None

    def next_urgent(self, session_id: str) -> M | None:
        """The next URGENT message of a session whose turn is out; what that turn still had to follow up is dropped.

        None also where the session has to give its place back first, for others.

        Raises:
            UsageError: nothing of the session is out.
        """
        line = self._lines.get(session_id)
        if line is None or line.state is _WAITING:
            raise self._not_out(session_id)
        if not line.waiting or not self._is_urgent(line) or self._gives_way(line):
            return None
        line.followups = None
        if not line.is_urgent:
            line.is_urgent = True
            if line.state is _OUT:
                self._count_urgent(line, 1)
        self._ready.charge(self._owner(line), next(self._serial))
        self._begin(line)
        return self._pop(line)

    def _gives_way(self, line: _Line[M]) -> bool:
        """Return True if others wait for a place that only a session ending its turn can free, or it is their turn."""
        if not self._ready.owners and not self._urgency.is_flooded:
            return False
        is_crowded = self._claimed >= self.concurrency + self.urgent_concurrency
        if is_crowded and self._ready.waits_other(self._owner(line)):
            return True
        is_out = line.state is _OUT
        return self._is_throttled(self._claimed - is_out, self._others - (is_out and not line.is_urgent))

    def has_first(self, session_id: str) -> bool:
        """Return True if a message that was put `first` is the next of its session."""
        line = self._lines.get(session_id)
        return line is not None and bool(line.waiting) and line.waiting[0][0] == _FIRST

    def take_along(self, session_id: str, wanted: Callable[[M], bool]) -> list[M]:
        """Take out what goes next in a session whose turn is out, as long as it is `wanted`; the turn answers for it, too.

        Raises:
            UsageError: nothing of the session is out.
        """
        line, taken = self._claimed_line(session_id), []
        while line.waiting and wanted(line.waiting[0][2]):
            taken.append(self._pop(line))
        return taken

    def release(self, session_id: str) -> None:
        """The turn of a session has ended: its next message may go out, follow-ups left are dropped.

        Raises:
            UsageError: nothing of the session is out.
        """
        line = self._lines.get(session_id)
        if line is None or line.state is _WAITING:
            raise self._not_out(session_id)
        if line.state is _OUT:
            self._claimed -= 1
            if line.is_urgent:
                self._count_urgent(line, -1)
        elif line.state is _PARKED:
            self._parked -= 1
            self._held.discard(session_id)
        if not (line.waiting or line.places or line.urgent):  # the usual end
            del self._lines[session_id]
            if len(self._lines) == self._parked:
                self._tell_if_idle()
        else:
            line.state = _WAITING
            line.is_urgent = False
            line.followups = None
            if line.waiting:
                self._list(line)
                return
        if self._getters:
            self._look_again()

    def _look_again(self) -> None:
        """A place is free: wake a task that may find something to take now."""
        if self._getters and self._ready:
            self._wake_getter(None)

    def lend(self, session_id: str) -> None:
        """The turn that is out waits for something else: another session may go out in its place.

        Raises:
            UsageError: nothing of the session is out.
        """
        line = self._claimed_line(session_id)
        if line.state is _OUT:
            line.state = _LENT
            self._count_place(line, -1)
            self._look_again()

    def reclaim(self, session_id: str) -> None:
        """The turn goes on, even if by that one more than `concurrency` is out.

        Raises:
            UsageError: nothing of the session is out.
        """
        line = self._claimed_line(session_id)
        if line.state is _LENT:
            line.state = _OUT
            self._count_place(line, 1)

    def park(self, session_id: str) -> None:
        """The session's turn waits for something outside, and holds no place: its mail waits until `unpark`.

        Nobody who waits for the inbox to be idle waits for that.
        """
        self._held.add(session_id)
        line = self._lines.get(session_id)
        if line is None or line.state is _PARKED:
            return
        if line.state is _OUT:
            self._count_place(line, -1)
        self._hold(line)
        self._forget_if_empty(line)
        self._tell_if_idle()
        self._look_again()

    def unpark(self, session_id: str) -> None:
        """The turn goes on: its session is out, even if by that one more than `concurrency` is."""
        self._held.discard(session_id)
        self._go_out(self._line(session_id))

    def is_wanted_by_others(self, session_id: str) -> bool:
        """Return True if messages of other owners wait."""
        return self._ready.waits_other(self.owner_of(session_id))

    def forget_parked(self, session_id: str) -> None:
        """A parked session without mail leaves memory: `park` it again when it comes back."""
        self._held.discard(session_id)

    def is_parked(self, session_id: str) -> bool:
        """Return True if messages of a parked session wait."""
        line = self._lines.get(session_id)
        return line is not None and line.state is _PARKED

    def has_urgent(self, session_id: str) -> bool:
        """Return True if an URGENT message of a session waits."""
        line = self._lines.get(session_id)
        return line is not None and self._is_urgent(line)

    def _is_urgent(self, line: _Line[M]) -> bool:
        return bool(line.waiting) and line.waiting[0][0] == -math.inf

    def withdraw(self, session_id: str) -> list[M]:
        """Take all waiting messages of a session out again, in the order they would have gone.

        Senders that wait for room come in afterwards, as after any message that left.
        """
        line = self._lines.get(session_id)
        if line is None:
            return []
        self._unlist(line)
        messages = [entry[2] for entry in sorted(line.waiting)]
        line.waiting.clear()
        for message in messages:
            self._free(line, message)
        self._forget_if_empty(line)
        return messages

    def _claimed_line(self, session_id: str) -> _Line[M]:
        line = self._lines.get(session_id)
        if line is None or line.state is _WAITING:
            raise self._not_out(session_id)
        return line

    def _not_out(self, session_id: str) -> UsageError:
        return UsageError(f"inbox {self.name!r}: nothing of session {session_id!r} is out, get() comes first")

    def _forget_if_empty(self, line: _Line[M]) -> None:
        if line.is_empty:
            del self._lines[line.session_id]
            if line.state is _PARKED:
                self._parked -= 1
            self._tell_if_idle()

    def _tell_if_idle(self) -> None:
        if len(self._lines) == self._parked and self._idlers:
            self._idlers.unpark_all()

    async def wait_idle(self) -> None:
        """Wait until nothing waits and nothing is out, but for parked sessions."""
        await trio.lowlevel.checkpoint()
        while len(self._lines) > self._parked:
            await self._idlers.park()

    def sessions(self) -> list[str]:
        """The sessions with anything waiting or out, but for parked ones."""
        return [session_id for session_id, line in self._lines.items() if line.state is not _PARKED]

    def _pop(self, line: _Line[M]) -> M:
        message = heapq.heappop(line.waiting)[2]
        self._free(line, message)
        return message

    def _free(self, line: _Line[M], message: M) -> None:
        """Give the place of a message that left to whoever waits for it."""
        urgent = message.priority == _URGENT
        if urgent:
            line.urgent -= 1
            self._urgency.waiting -= 1
            if self._size_of is not None:
                self._urgency.bytes -= self._size_of(message)
        else:
            line.places -= 1
            self._waiting -= 1
            if self._size_of is not None:
                self._bytes -= self._size_of(message)
        if self._gates.queues:
            self._gates.open(URGENT_BYTES if urgent else None)
            self._gates.open((line.session_id, urgent))
