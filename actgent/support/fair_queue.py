"""A fair queue: owners take turns within each priority level.

An *owner* is the user or tenant to whom an entry belongs. The entries of one owner are ordered by key, independently of other
owners. Only the owner's first entry competes with other owners, and the level of this entry is the owner's level. In each
level the owner served least recently is next. This is round robin (Nagle, RFC 970): an owner with a hundred messages delays
another owner by one turn. A new owner is placed after all queued owners. A returning owner keeps its last turn, like the
finish tag of start-time fair queueing (Goyal et al. 1996). So an owner that sends one message at a time gets the same share as
an owner that sends all messages at once.

The next entry of each level is compared by key, and the smallest is served. Nothing starves, because neither the turn
nor the key of a queued entry changes.

A single owner has no competitors, so it is not placed in a level until a second owner arrives.

All operations take O(log n). Stale heap entries are skipped when they reach the top, and removed when they outnumber
the valid ones.
"""

import heapq
import itertools
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

import attrs

from .attrs_class_repr import FieldRepr
from .fast_attrs_constructors import fast_constructor

T = TypeVar("T")
MAX_REMEMBERED_OWNERS = 1000
"""Maximum number of owners whose last turn is remembered, including owners without entries."""


@attrs.define(eq=False, repr=False)
class Turns(FieldRepr):
    """The last turn of each recent owner: the value of the caller's clock or counter when the owner was last served."""

    _last: dict[Hashable, float] = attrs.field(factory=dict)

    def last_turn(self, owner: Hashable) -> float | None:
        """Return the turn that was last recorded for an owner. None if the owner is unknown or forgotten."""
        return self._last.get(owner)

    def record(self, owner: Hashable, turn: float) -> None:
        """Store that an owner was served, and at which place (`turn`) of the service order. Lower numbers are served first.

        If more than `MAX_REMEMBERED_OWNERS` owners are stored, remove the owner that was served longest ago.
        """
        self._last.pop(owner, None)
        self._last[owner] = turn
        if len(self._last) > MAX_REMEMBERED_OWNERS:
            del self._last[next(iter(self._last))]


@attrs.define(eq=False, repr=False)
class QueueEntry(FieldRepr, Generic[T]):
    """An entry of the queue: an item of an owner, with its priority level and sort key."""

    item: T
    """The queued item."""
    level: int
    """Priority level of the item, from 0."""
    key: float
    """Sort key among the entries of one owner; entries with smaller keys are served first."""
    serial: int
    """Insertion number; breaks ties between equal keys (first in, first out)."""
    owner: "_Owner[T]" = attrs.field(repr=False)
    waits: bool = True
    """True while the entry is queued."""


_Entry = tuple[float, int, int, QueueEntry[T]]


@attrs.define(eq=False, repr=False)
class _Owner(FieldRepr, Generic[T]):
    name: Hashable
    turn: float
    """Round in which the owner was last served or was added. Owners with smaller numbers are served first."""
    waiting: list[_Entry[T]] = attrs.field(factory=list)
    removed: int = 0
    """Number of removed entries of the owner that are still in the heap `waiting`."""
    place: "_Place[T] | None" = attrs.field(default=None, repr=False)


_Place = tuple[float, int, int, _Owner[T]]
"""Entry of an owner in the heap of a level: turn, serial number, level, owner."""


_make_owner, _make_ticket = fast_constructor(_Owner), fast_constructor(QueueEntry)


class FairQueue(Generic[T]):
    """A fair queue of all owners, with levels from 0 to `levels` - 1. Several queues may share `turns`."""

    def __init__(self, levels: int, turns: Turns | None = None) -> None:
        self.owners: dict[Hashable, _Owner[T]] = {}
        """Owners that have queued entries, by name."""
        self._turns = Turns() if turns is None else turns
        self._levels: list[list[_Place[T]]] | tuple[()] = ()
        """Heaps of the placed owners, by level; made for the second owner, because most queues have one and they take 400 bytes."""
        self._placed = [0] * levels
        """Number of placed owners in each level."""
        self._serial = itertools.count()
        self._count = 0
        self._lone: _Owner[T] | None = None
        """Owner that is alone and therefore not placed in a level; None if there are several owners or none."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        """Iterate over all queued items, in arbitrary order."""
        entries = (entry for owner in self.owners.values() for entry in owner.waiting)
        return (entry[3].item for entry in entries if entry[3].waits)

    @property
    def entries(self) -> int:
        """Number of heap entries, including entries of items that have already left the queue.

        The result is proportional to the number of queued items.
        """
        return sum(map(len, self._levels)) + sum(len(owner.waiting) for owner in self.owners.values())

    def add(
        self, item: T, *, owner: Hashable, level: int, key: float, serial: int, turn: float
    ) -> QueueEntry[T]:
        """Queue an item of an owner.

        A new owner is placed at `turn`. Items with smaller `key`, then `serial`, come first within their
        owner.
        """
        found = self.owners.get(owner)
        if found is None:
            found = self._enter(owner, turn)
        ticket = _make_ticket(item, level, key, serial, found)
        heapq.heappush(found.waiting, (key, serial, next(self._serial), ticket))
        self._count += 1
        if found is not self._lone and found.waiting[0][3] is ticket:
            self._place(found)
        return ticket

    def _enter(self, name: Hashable, turn: float) -> _Owner[T]:
        """Add an owner to the queue. The owner, named `name`, counts as last served in round `turn`.

        A single owner is in no priority level. When a second owner is added, the first owner is placed in its level.
        """
        owner: _Owner[T] = _make_owner(name, turn)
        if not self.owners:
            self._lone = owner
        elif self._lone is not None:
            lone, self._lone = self._lone, None
            self._place(lone)
        self.owners[name] = owner
        return owner

    def first(self, start: int = 0) -> QueueEntry[T] | None:
        """Return the entry that is served next, from the priority levels `start` and higher, without removing it.

        Return None if these levels are empty.
        """
        if self._lone is not None:
            ticket = self._lone.waiting[0][3]
            return ticket if ticket.level >= start else None
        best = None
        for level in range(start, len(self._placed)):
            if self._placed[level] and (owner := self._next_owner(level)) is not None:
                ticket = owner.waiting[0][3]
                if best is None or (ticket.key, ticket.serial) < (best.key, best.serial):
                    best = ticket
        return best

    def _next_owner(self, level: int) -> _Owner[T] | None:
        places = self._levels[level]
        while places:
            place = places[0]
            owner = place[3]
            if owner.place is not place:
                heapq.heappop(places)
            elif (turn := self._turns.last_turn(owner.name)) is not None and turn > place[0]:
                self._place(owner)  # it was served in another queue with the same turns
            else:
                return owner
        return None

    def waits_other(self, owner: Hashable, start: int = 0) -> bool:
        """Return True if an owner other than `owner` has entries in the priority levels from `start` on."""
        if (lone := self._lone) is not None:
            return lone.name != owner and lone.waiting[0][3].level >= start
        own = self.owners.get(owner)
        is_there = own is not None and own.place is not None and own.place[2] >= start
        return sum(self._placed[start:]) > is_there

    def take(self, ticket: QueueEntry[T], turn: float) -> None:
        """Remove an entry that is served now, and record `turn` as the round in which its owner was last served."""
        self._turns.record(ticket.owner.name, turn)
        self.remove(ticket)

    def charge(self, owner: Hashable, turn: float) -> None:
        """Record a turn of an owner that was served without queueing.

        The queued items of this owner come later.
        """
        self._turns.record(owner, turn)

    def remove(self, ticket: QueueEntry[T]) -> None:
        """Remove an entry without serving it. Ignored if it was already removed."""
        if not ticket.waits:
            return
        owner, ticket.waits = ticket.owner, False
        self._count -= 1
        if owner.waiting[0][3] is ticket:
            heapq.heappop(owner.waiting)
            while owner.removed and not owner.waiting[0][3].waits:
                heapq.heappop(owner.waiting)
                owner.removed -= 1
        else:
            owner.removed += 1
            if owner.removed * 2 > len(owner.waiting):
                owner.waiting = [entry for entry in owner.waiting if entry[3].waits]
                heapq.heapify(owner.waiting)
                owner.removed = 0
        if owner is not self._lone:
            self._place(owner)
        elif not owner.waiting:
            del self.owners[owner.name]
            self._lone = None

    def _place(self, owner: _Owner[T]) -> None:
        """Place an owner in the priority level of its first entry, or remove the owner if it has no entries."""
        turn, place = self._turns.last_turn(owner.name), owner.place
        if turn is not None:
            owner.turn = turn
        if not owner.waiting:
            del self.owners[owner.name]
            self._unplace(owner)
        elif place is None or (place[0], place[2]) != (owner.turn, owner.waiting[0][3].level):
            self._unplace(owner)
            level = owner.waiting[0][3].level
            owner.place = (owner.turn, next(self._serial), level, owner)
            self._placed[level] += 1
            if not self._levels:
                self._levels = [[] for _ in self._placed]
            heapq.heappush(self._levels[level], owner.place)
        if not self.owners:
            for places in self._levels:
                places.clear()
        elif sum(map(len, self._levels)) > 2 * len(self.owners):
            self._drop_stale_places()

    def _unplace(self, owner: _Owner[T]) -> None:
        if owner.place is not None:
            self._placed[owner.place[2]] -= 1
            owner.place = None

    def _drop_stale_places(self) -> None:
        for places in self._levels:
            places[:] = [place for place in places if place[3].place is place]
            heapq.heapify(places)
