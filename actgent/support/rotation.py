"""Who is next among owners: a turn for each of them, inside a level of priority.

Theory. What waits for one owner has an order of its own, by key, whatever others do: only its first counts outside. An
owner stands in the level of that one. In each level the owner whose last turn is the longest ago is next: that is round
robin (Nagle, RFC 970), and one with a hundred messages delays another by one turn. A new owner stands behind all that are
there; one that comes back stands at its last turn, as by the finish tag of start-time fair queueing (Goyal et al. 1996),
so that who says one thing after the other gets as much as who says all at once.

Of the levels, the one goes first whose next has the smallest key. So levels are as strict as for one owner among those
whose turn it is, and nothing starves: neither a place in the round nor a key ever moves.

An owner that is alone takes turns with nobody, so it stands in no round until a second one comes.

All of it takes O(log n); what is not true any more is skipped when it surfaces, and thrown away when it is more than the rest.
"""

import heapq
import itertools
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

import attrs

from .quick_init import maker

T = TypeVar("T")
REMEMBERED = 1000
"""Owners whose last turns are known, also while nothing of theirs waits."""


@attrs.define(eq=False)
class Turns:
    """When owners had their last turns, by a clock or count of the caller; the newest of them."""

    _last: dict[Hashable, float] = attrs.field(factory=dict)

    def of(self, owner: Hashable) -> float | None:
        return self._last.get(owner)

    def had(self, owner: Hashable, turn: float) -> None:
        """An owner has had a turn."""
        self._last.pop(owner, None)
        self._last[owner] = turn
        if len(self._last) > REMEMBERED:
            del self._last[next(iter(self._last))]


@attrs.define(eq=False)
class Ticket(Generic[T]):
    """Something that waits."""

    item: T
    level: int
    key: float
    serial: int
    """What comes first of equal keys."""
    owner: "_Owner[T]" = attrs.field(repr=False)
    waits: bool = True


_Entry = tuple[float, int, int, Ticket[T]]


@attrs.define(eq=False)
class _Owner(Generic[T]):
    name: Hashable
    turn: float
    """Where it stands in the round."""
    waiting: list[_Entry[T]] = attrs.field(factory=list)
    gone: int = 0
    """Of `waiting`, those that wait no more."""
    place: "_Place[T] | None" = attrs.field(default=None, repr=False)


_Place = tuple[float, int, int, _Owner[T]]
"""Turn, serial number, level, owner: where one stands."""


_make_owner, _make_ticket = maker(_Owner), maker(Ticket)


class Rotation(Generic[T]):
    """What waits, of all owners, by level from 0 to `levels` - 1. Several of them may share `turns`."""

    def __init__(self, levels: int, turns: Turns | None = None) -> None:
        self.owners: dict[Hashable, _Owner[T]] = {}
        """Those for whom something waits."""
        self._turns = Turns() if turns is None else turns
        self._levels: list[list[_Place[T]]] = [[] for _ in range(levels)]
        self._placed = [0] * levels
        """How many owners stand in each."""
        self._serial = itertools.count()
        self._count = 0
        self._lone: _Owner[T] | None = None
        """The only owner, if it stands in no level."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        """Iterate over all that waits, in no order."""
        entries = (entry for owner in self.owners.values() for entry in owner.waiting)
        return (entry[3].item for entry in entries if entry[3].waits)

    @property
    def entries(self) -> int:
        """The kept entries, valid or not: bounded by what waits."""
        return sum(map(len, self._levels)) + sum(len(owner.waiting) for owner in self.owners.values())

    def add(self, item: T, *, owner: Hashable, level: int, key: float, serial: int, turn: float) -> Ticket[T]:
        """Have something wait for an owner, who stands at `turn` if it is new."""
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
        """Add an owner; one that was alone takes turns with it from now on."""
        owner: _Owner[T] = _make_owner(name, turn)
        if not self.owners:
            self._lone = owner
        elif self._lone is not None:
            lone, self._lone = self._lone, None
            self._place(lone)
        self.owners[name] = owner
        return owner

    def first(self, start: int = 0) -> Ticket[T] | None:
        """Return the next one in the levels from `start` on."""
        if self._lone is not None:
            ticket = self._lone.waiting[0][3]
            return ticket if ticket.level >= start else None
        best = None
        for level in range(start, len(self._levels)):
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
            elif (turn := self._turns.of(owner.name)) is not None and turn > place[0]:
                self._place(owner)  # it had a turn elsewhere
            else:
                return owner
        return None

    def waits_other(self, owner: Hashable, start: int = 0) -> bool:
        """Return True if anything of another owner is in the levels from `start` on."""
        if (lone := self._lone) is not None:
            return lone.name != owner and lone.waiting[0][3].level >= start
        own = self.owners.get(owner)
        is_there = own is not None and own.place is not None and own.place[2] >= start
        return sum(self._placed[start:]) > is_there

    def take(self, ticket: Ticket[T], turn: float) -> None:
        """Take out what is next: its owner has a turn."""
        self._turns.had(ticket.owner.name, turn)
        self.remove(ticket)

    def charge(self, owner: Hashable, turn: float) -> None:
        """An owner has a turn without having waited here."""
        self._turns.had(owner, turn)

    def remove(self, ticket: Ticket[T]) -> None:
        """Take out what waits no more."""
        if not ticket.waits:
            return
        owner, ticket.waits = ticket.owner, False
        self._count -= 1
        if owner.waiting[0][3] is ticket:
            heapq.heappop(owner.waiting)
            while owner.gone and not owner.waiting[0][3].waits:
                heapq.heappop(owner.waiting)
                owner.gone -= 1
        else:
            owner.gone += 1
            if owner.gone * 2 > len(owner.waiting):
                owner.waiting = [entry for entry in owner.waiting if entry[3].waits]
                heapq.heapify(owner.waiting)
                owner.gone = 0
        if owner is not self._lone:
            self._place(owner)
        elif not owner.waiting:
            del self.owners[owner.name]
            self._lone = None

    def _place(self, owner: _Owner[T]) -> None:
        """List an owner in the level of its first, where there is one."""
        turn, place = self._turns.of(owner.name), owner.place
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
