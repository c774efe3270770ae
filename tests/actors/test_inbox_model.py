"""The inbox compared with a model that scans one list, for one owner and for several owners in turn."""

import itertools
import typing

import attrs
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actgent.actors import PriorityInbox
from actgent.errors import InboxFull
from actgent.messages import Priority

CAPACITY, SESSION_CAPACITY, URGENT_CAPACITY, CONCURRENCY, AGE_STEP_SECONDS = 8, 4, 2, 2, 30.0
URGENT = Priority.URGENT
URGENT_RUN = 2


@attrs.frozen
class Note:
    serial: int
    session_id: str
    priority: Priority
    deadline: float | None = None


@attrs.define
class NaiveInbox:
    owners: dict[str, str]
    urgent_concurrency: int
    waiting: list[tuple[float, Note]] = attrs.field(factory=list)
    claimed: set[str] = attrs.field(factory=set)
    parked: set[str] = attrs.field(factory=set)
    urgent: set[str] = attrs.field(factory=set)
    """Sessions that an URGENT message is out of."""
    run: int = 0
    flooded: bool = False
    turns: dict[str, int] = attrs.field(factory=dict)
    """When each owner had its last turn."""
    places: dict[str, int] = attrs.field(factory=dict)
    """Where new ones stand, while anything of theirs may go out."""
    clock: int = 0

    def of(self, session: str | None, *, urgent: bool) -> list[Note]:
        return [
            note
            for _, note in self.waiting
            if (note.priority is URGENT) is urgent and session in (None, note.session_id)
        ]

    def has_room(self, note: Note) -> bool:
        if note.priority is URGENT:
            return len(self.of(note.session_id, urgent=True)) < URGENT_CAPACITY
        in_session = len(self.of(note.session_id, urgent=False))
        return in_session < SESSION_CAPACITY and len(self.of(None, urgent=False)) < CAPACITY

    def rank(self, item: tuple[float, Note]) -> tuple[bool, float, int]:
        arrival, note = item
        urgent = note.priority is URGENT
        return (not urgent, 0 if urgent else arrival + note.priority * AGE_STEP_SECONDS, note.serial)

    def ranked(self) -> list[Note]:
        return [note for _, note in sorted(self.waiting, key=self.rank)]

    def heads(self) -> dict[str, Note]:
        """Return the first message of each owner among sessions that are not claimed."""
        free = [note for note in self.ranked() if note.session_id not in {*self.claimed, *self.parked}]
        return {self.owners[note.session_id]: note for note in reversed(free)}

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def look(self) -> None:
        """Add new owners to the round."""
        heads = self.heads()
        self.places = {owner: place for owner, place in self.places.items() if owner in heads}
        for owner in heads:
            if owner not in self.places:
                self.places[owner] = self.tick()

    def best(self, heads: dict[str, Note]) -> Note | None:
        """Return the next message: in each level one owner has its turn, and the first message by rank among these is next."""
        chosen = {}
        for owner, note in heads.items():
            turn = self.turns.get(owner, self.places[owner])
            if note.priority not in chosen or turn < chosen[note.priority][0]:
                chosen[note.priority] = (turn, note)
        turn_of = {note.serial for _, note in chosen.values()}
        return next((note for note in self.ranked() if note.serial in turn_of), None)

    def others(self, heads: dict[str, Note]) -> dict[str, Note]:
        return {owner: note for owner, note in heads.items() if note.priority is not URGENT}

    def is_throttled(self, out: set[str]) -> bool:
        is_out = len(out) >= CONCURRENCY and bool(out - self.urgent)
        return self.flooded and self.run >= URGENT_RUN and (is_out or bool(self.others(self.heads())))

    def next(self) -> Note | None:
        heads, out = self.heads(), set(self.claimed)
        if len(out) >= CONCURRENCY + self.urgent_concurrency:
            return None
        note = self.best(heads)
        if note is not None and note.priority is URGENT:
            if not self.is_throttled(out):
                return note
            note = self.best(self.others(heads))
        if note is None:
            return None
        owner = self.owners[note.session_id]
        is_alone = heads.keys() == {owner} and {self.owners[each] for each in self.urgent} <= {owner}
        return note if len(out if is_alone else out - self.urgent) < CONCURRENCY else None

    def begin(self, note: Note) -> None:
        owner, out = self.owners[note.session_id], len(self.claimed)
        self.remove([note])
        self.turns[owner] = self.tick()
        self.claimed.add(note.session_id)
        if note.priority is URGENT:
            self.urgent.add(note.session_id)
            self.run += 1
            self.flooded |= bool(self.others(self.heads()).keys() - {owner})
        else:
            self.run = 0
            self.flooded |= out >= CONCURRENCY

    def end(self, session: str) -> None:
        self.claimed.remove(session)
        if session in self.urgent:
            self.urgent.remove(session)
            if not self.urgent and not self.of(None, urgent=True):
                self.flooded = False

    def gives_way(self, session: str) -> bool:
        out = set(self.claimed)
        if len(out) >= CONCURRENCY + self.urgent_concurrency and self.heads().keys() - {self.owners[session]}:
            return True
        return self.is_throttled(out - {session})

    def remove(self, gone: list[Note]) -> None:
        self.waiting = [item for item in self.waiting if item[1] not in gone]


class InboxMachine(RuleBasedStateMachine):
    owners: typing.ClassVar[dict[str, str]] = dict.fromkeys("abcdef", "")
    urgent_concurrency = 16

    def __init__(self) -> None:
        super().__init__()
        self.inbox = PriorityInbox[Note](
            capacity=CAPACITY,
            session_capacity=SESSION_CAPACITY,
            urgent_capacity=URGENT_CAPACITY,
            concurrency=CONCURRENCY,
            urgent_concurrency=self.urgent_concurrency,
            age_step=AGE_STEP_SECONDS,
            owner_of=self.owners.__getitem__,
        )
        self.model = NaiveInbox(self.owners, self.urgent_concurrency)
        self.now = 0.0
        self.serials = itertools.count()

    def claimed(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.model.claimed)))

    @rule(seconds=st.sampled_from([0.0, 1.0, 15.0, 29.0, 30.0, 31.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(session=st.sampled_from("abcdef"), level=st.sampled_from(Priority), as_try=st.booleans())
    def put(self, session: str, level: Priority, as_try: bool) -> None:
        note = Note(next(self.serials), session, level)
        room = self.model.has_room(note)
        if as_try:
            assert self.inbox.try_put(note, now=self.now) is room
        elif room:
            self.inbox.put_nowait(note, now=self.now)
        else:
            with pytest.raises(InboxFull):
                self.inbox.put_nowait(note, now=self.now)
        if room:
            self.model.waiting.append((self.now, note))

    @rule()
    def take(self) -> None:
        expected = self.model.next()
        assert self.inbox.poll() == expected
        if expected is not None:
            self.model.begin(expected)

    @precondition(lambda self: self.model.claimed)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        session = self.claimed(data)
        self.inbox.release(session)
        self.model.end(session)

    @precondition(lambda self: self.model.claimed)
    @rule(data=st.data())
    def take_urgent(self, data: st.DataObject) -> None:
        session = self.claimed(data)
        gives_way = self.model.gives_way(session)
        expected = None if gives_way else next(iter(self.model.of(session, urgent=True)), None)
        assert self.inbox.next_urgent(session) == expected
        if expected is not None:
            self.model.begin(expected)

    @precondition(lambda self: self.model.claimed)
    @rule(data=st.data(), lent=st.booleans())
    def park(self, data: st.DataObject, lent: bool) -> None:
        session = self.claimed(data)
        if lent:
            self.inbox.lend(session)
        self.inbox.park(session)
        self.model.end(session)
        self.model.parked.add(session)

    @precondition(lambda self: self.model.parked)
    @rule(data=st.data())
    def unpark(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.model.parked)))
        self.inbox.unpark(session)
        self.model.parked.remove(session)
        self.model.claimed.add(session)

    @precondition(lambda self: self.model.parked)
    @rule(data=st.data())
    def leave_memory_and_come_back(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.model.parked)))
        if not any(note.session_id == session for _, note in self.model.waiting):
            self.inbox.forget_parked(session)
            self.inbox.park(session)

    @rule(session=st.sampled_from("abcdef"))
    def withdraw(self, session: str) -> None:
        expected = [note for note in self.model.ranked() if note.session_id == session]
        assert self.inbox.withdraw(session) == expected
        self.model.remove(expected)

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data())
    def take_out(self, data: st.DataObject) -> None:
        _, note = data.draw(st.sampled_from(self.model.waiting))
        waiting = self.inbox._queues[note.session_id].waiting
        self.inbox.remove(next(place for place in waiting if place[2] == note))
        self.model.remove([note])

    @invariant()
    def owners_stand_in_line(self) -> None:
        self.model.look()

    @invariant()
    def counts_agree(self) -> None:
        waiting = {note.session_id for _, note in self.model.waiting}
        statistics = self.inbox.statistics()
        assert statistics.waiting == len(self.model.of(None, urgent=False))
        assert statistics.urgent == len(self.model.of(None, urgent=True))
        assert statistics.claimed == len(self.model.claimed)
        assert len(self.inbox) == len(self.model.waiting)
        assert set(self.inbox.sessions()) == (waiting - self.model.parked) | set(self.model.claimed)


InboxMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=80)
TestInboxMachine = InboxMachine.TestCase


class OwnersMachine(InboxMachine):
    """Three owners with one, two and three sessions."""

    owners: typing.ClassVar[dict[str, str]] = dict(zip("abcdef", "xyyzzz", strict=True))
    urgent_concurrency = 1


OwnersMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=80)
TestOwnersMachine = OwnersMachine.TestCase
