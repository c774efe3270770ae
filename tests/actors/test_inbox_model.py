"""The inbox against a naive model: one list, scanned for each question."""

import itertools

import attrs
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actgent.actors import PriorityInbox
from actgent.errors import InboxFull
from actgent.messages import Priority

CAPACITY, SESSION_CAPACITY, URGENT_CAPACITY, CONCURRENCY, AGE_STEP = 8, 4, 2, 2, 30.0
URGENT = Priority.URGENT


@attrs.frozen
class Note:
    serial: int
    session_id: str
    priority: Priority
    deadline: float | None = None


@attrs.define
class NaiveInbox:
    waiting: list[tuple[float, Note]] = attrs.field(factory=list)
    followups: dict[str, list[Note]] = attrs.field(factory=dict)
    parked: set[str] = attrs.field(factory=set)

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

    def ranked(self) -> list[Note]:
        def rank(item: tuple[float, Note]) -> tuple[bool, float, int]:
            arrival, note = item
            urgent = note.priority is URGENT
            return (not urgent, 0 if urgent else arrival + note.priority * AGE_STEP, note.serial)

        return [note for _, note in sorted(self.waiting, key=rank)]

    def next(self) -> Note | None:
        for note in self.ranked():
            crowded = len(self.followups) >= CONCURRENCY and note.priority is not URGENT
            is_held = note.session_id in self.followups or note.session_id in self.parked
            if not is_held and not crowded:
                return note
        return None

    def remove(self, gone: list[Note]) -> None:
        self.waiting = [item for item in self.waiting if item[1] not in gone]


class InboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.inbox = PriorityInbox[Note](
            capacity=CAPACITY,
            session_capacity=SESSION_CAPACITY,
            urgent_capacity=URGENT_CAPACITY,
            concurrency=CONCURRENCY,
            age_step=AGE_STEP,
        )
        self.model = NaiveInbox()
        self.now = 0.0
        self.serials = itertools.count()

    def claimed(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.model.followups)))

    @rule(seconds=st.sampled_from([0.0, 1.0, 15.0, 29.0, 30.0, 31.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(session=st.sampled_from("abcd"), level=st.sampled_from(Priority), as_try=st.booleans())
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
            self.model.remove([expected])
            self.model.followups[expected.session_id] = []

    @precondition(lambda self: self.model.followups)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        session = self.claimed(data)
        self.inbox.release(session)
        del self.model.followups[session]

    @precondition(lambda self: self.model.followups)
    @rule(data=st.data())
    def follow_up(self, data: st.DataObject) -> None:
        note = Note(next(self.serials), self.claimed(data), Priority.NORMAL)
        self.inbox.put_followup(note)
        self.model.followups[note.session_id].append(note)

    @precondition(lambda self: self.model.followups)
    @rule(data=st.data())
    def take_followup(self, data: st.DataObject) -> None:
        session = self.claimed(data)
        followups = self.model.followups[session]
        assert self.inbox.next_followup(session) == (followups.pop(0) if followups else None)

    @precondition(lambda self: self.model.followups)
    @rule(data=st.data())
    def take_urgent(self, data: st.DataObject) -> None:
        session = self.claimed(data)
        expected = next(iter(self.model.of(session, urgent=True)), None)
        assert self.inbox.next_urgent(session) == expected
        if expected is not None:
            self.model.remove([expected])
            self.model.followups[session].clear()

    @precondition(lambda self: self.model.followups)
    @rule(data=st.data(), lent=st.booleans())
    def park(self, data: st.DataObject, lent: bool) -> None:
        session = self.claimed(data)
        if lent:
            self.inbox.lend(session)
        self.inbox.park(session)
        del self.model.followups[session]
        self.model.parked.add(session)

    @precondition(lambda self: self.model.parked)
    @rule(data=st.data())
    def unpark(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.model.parked)))
        self.inbox.unpark(session)
        self.model.parked.remove(session)
        self.model.followups[session] = []

    @precondition(lambda self: self.model.parked)
    @rule(data=st.data())
    def leave_memory_and_come_back(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.model.parked)))
        if not any(note.session_id == session for _, note in self.model.waiting):
            self.inbox.forget_parked(session)
            self.inbox.park(session)

    @rule(session=st.sampled_from("abcd"))
    def withdraw(self, session: str) -> None:
        expected = [note for note in self.model.ranked() if note.session_id == session]
        assert self.inbox.withdraw(session) == expected
        self.model.remove(expected)

    @invariant()
    def counts_agree(self) -> None:
        waiting = {note.session_id for _, note in self.model.waiting}
        statistics = self.inbox.statistics()
        assert statistics.waiting == len(self.model.of(None, urgent=False))
        assert statistics.urgent == len(self.model.of(None, urgent=True))
        assert statistics.claimed == len(self.model.followups)
        assert len(self.inbox) == len(self.model.waiting)
        assert set(self.inbox.sessions()) == (waiting - self.model.parked) | set(self.model.followups)


InboxMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=80)
TestInboxMachine = InboxMachine.TestCase
