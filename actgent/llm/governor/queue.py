"""Who is next among the calls that wait: priority, ageing, a turn for every owner, and among an owner's for every session.

Theory. A session waits with one call at a time, its first; the others stand behind it. The place of that call is a
static key, the time since which it is the session's first plus its level times `age_step`, as in the inbox: HIGH
goes before NORMAL within a step of time, an older call of a lower level overtakes, and nothing starves. URGENT is
minus infinity. When a session's call is admitted, its next one becomes first *now*, and so goes behind all sessions of the
owner that wait already: that is round robin (Nagle, RFC 970), and a session with a hundred calls delays one with a single
call by at most one of its own. Owners take turns in the same way, see `actgent/support/rotation.py`, over all models together; who
names none is an owner for each session.

Turns are fair in calls; to be fair in tokens, too, a session or owner whose call was dear has its next turn so much later as
the others' fair shares take (a start tag as in start-time fair queueing, Goyal et al. 1996), but never later than `age_step`.
"""

import heapq
import itertools
import math
from collections import Counter
from typing import Literal

import attrs

from actgent.messages import Priority
from actgent.support.rotation import Rotation, Ticket, Turns

from .rate_limits import NO_COST, Cost

AGE_STEP = 30.0
"""Seconds of waiting that are worth a level, as in the inbox."""

State = Literal["new", "waiting", "running", "over"]


@attrs.define(eq=False, kw_only=True)
class Call:
    """One attempt of a model call, from its asking to its end."""

    session: str
    """Empty for a call of its own, which shares its turn with nobody."""
    priority: Priority
    cost: Cost
    """What is reserved for it."""
    arrived: float
    owner: str = ""
    """For whom; empty is the session."""
    state: State = "new"
    started: float = -math.inf
    key: float = math.inf
    """Its place, while it is the first of its session."""
    total: Cost = NO_COST
    """What its lane had taken when it was admitted, itself included."""
    counted: Cost = NO_COST
    """Of it, what the provider had counted for sure by then."""
    settled: Cost = NO_COST
    """What its lane had taken when the call itself had been counted for sure."""
    task: object = None
    """The task that waits for it; nothing here looks at it."""

    @property
    def line(self) -> object:
        """The key of the queue in which the call stands."""
        return self.session or self

    @property
    def party(self) -> object:
        """The key of the party that takes turns with others."""
        return self.owner or self.line


_Entry = tuple[float, int, Call]
"""Key, serial number, call: what is sorted."""


@attrs.define(eq=False)
class _Line:
    """The calls of one session that wait; exists only while there are any."""

    turn: float
    """Not first before this time."""
    calls: list[_Entry] = attrs.field(factory=list)
    gone: int = 0
    """Of `calls`, those that do not wait any more."""
    place: Ticket[Call] | None = None
    """That of its first among all."""

    def first(self) -> Call | None:
        while self.calls and self.calls[0][2].state != "waiting":
            heapq.heappop(self.calls)
            self.gone -= 1
        return self.calls[0][2] if self.calls else None

    def leave(self) -> None:
        self.gone += 1
        if self.gone * 2 > len(self.calls):
            self.calls = [entry for entry in self.calls if entry[2].state == "waiting"]
            heapq.heapify(self.calls)
            self.gone = 0


class CallQueue:
    """The calls that wait, of all owners. Several of them may share `turns`."""

    def __init__(self, age_step: float = AGE_STEP, turns: Turns | None = None) -> None:
        self._age_step = age_step
        self._delays = (-math.inf, 0.0, age_step, 2 * age_step)
        self._lines: dict[object, _Line] = {}
        self._heads: Rotation[Call] = Rotation(len(Priority), turns)
        """The first call of each line."""
        self._serial = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def entries(self) -> int:
        """The kept entries, valid or not: bounded by what waits."""
        return self._heads.entries + sum(len(line.calls) for line in self._lines.values())

    def by_priority(self) -> dict[str, int]:
        """Count the calls that wait, by the names of their priorities; those without any are left out."""
        waiting = (
            call for line in self._lines.values() for _, _, call in line.calls if call.state == "waiting"
        )
        return dict(Counter(call.priority.name.lower() for call in waiting))

    def since(self, session: str) -> float | None:
        """When the call that is next in a session came; None where none waits."""
        line = self._lines.get(session)
        first = None if line is None else line.first()
        return None if first is None else first.arrived

    def add(self, call: Call) -> None:
        call.state = "waiting"
        self._count += 1
        line = self._lines.setdefault(call.line, _Line(-math.inf))
        before = line.first()
        heapq.heappush(line.calls, (call.arrived + self._delays[call.priority], next(self._serial), call))
        if line.first() is not before:
            self._list(line)

    def first(self) -> tuple[float, Call] | None:
        """The call that is next, and where it stands among those of other models."""
        place = self._heads.first()
        return None if place is None else (place.owner.turn + self._delays[place.level], place.item)

    def admit(self, call: Call, now: float, *, seconds: float) -> None:
        """Take out the call that is next; `seconds` is what it takes of all that the provider grants."""
        line = self._lines[call.line]
        if line.place is not None and line.place.item is call:
            self._heads.take(line.place, now + self._share(seconds, len(self._heads.owners)))
        self._remove(call, "running", now + self._share(seconds, len(self._lines)))

    def _share(self, seconds: float, sharers: int) -> float:
        """Return how long it takes until each of `n` has had as much."""
        return min(self._age_step, seconds * sharers)

    def withdraw(self, call: Call) -> None:
        """Take out a call that waits no more."""
        self._remove(call, "over", -math.inf)

    def _remove(self, call: Call, state: State, turn: float) -> None:
        line = self._lines[call.line]
        was_first = line.first() is call
        call.state = state
        self._count -= 1
        line.leave()
        line.turn = max(line.turn, turn)
        if was_first:
            self._list(line)
        if line.first() is None:
            del self._lines[call.line]

    def _list(self, line: _Line) -> None:
        """Let a line stand for its first call, where it has one."""
        before, line.place = line.place, None
        if (call := line.first()) is not None:
            call.key = max(call.arrived, line.turn) + self._delays[call.priority]
            line.place = self._heads.add(
                call,
                owner=call.party,
                level=call.priority,
                key=call.key,
                serial=next(self._serial),
                turn=call.arrived,
            )
        if before is not None:  # after that, so that its owner keeps its place
            self._heads.remove(before)
