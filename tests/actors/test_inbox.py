import itertools
import math
import sys

import attrs
import pytest
import trio
from hypothesis import given, settings, strategies as st
from trio.testing import wait_all_tasks_blocked

from actgent.actors import PriorityInbox
from actgent.errors import ConfigurationError, InboxFull, UsageError
from actgent.messages import Message, Priority, Sender, to_parts

URGENT, HIGH, NORMAL, LOW = Priority


@attrs.frozen
class Note:
    """A message with the attributes that an inbox needs."""

    text: str
    session_id: str = "s"
    priority: Priority = NORMAL
    deadline: float | None = None


def drain(inbox: PriorityInbox[Note]) -> list[str]:
    """Return the texts of all messages in the order of the inbox; each turn ends immediately."""
    texts = []
    while (note := inbox.poll()) is not None:
        texts.append(note.text)
        inbox.release(note.session_id)
    return texts


# --- order -------------------------------------------------------------------------------


def test_higher_levels_run_first():
    """Messages that arrive within 30 s run strictly by level: URGENT, HIGH, NORMAL, LOW."""
    inbox = PriorityInbox[Note]()
    for now, level in enumerate((LOW, NORMAL, HIGH, URGENT)):
        inbox.put_nowait(Note(level.name, level.name, level), now=now)
    assert drain(inbox) == ["URGENT", "HIGH", "NORMAL", "LOW"]


@pytest.mark.parametrize("level", list(Priority))
@pytest.mark.parametrize("sessions", [1, 3, 50])
def test_level_is_first_in_first_out(level, sessions):
    """Messages of one level run in order of arrival, across sessions and within one, also at equal times."""
    inbox = PriorityInbox[Note]()
    texts = [str(i) for i in range(50)]
    for i, text in enumerate(texts):
        inbox.put_nowait(Note(text, f"s{i % sessions}", level), now=i // 10)
    assert drain(inbox) == texts


@pytest.mark.parametrize(("age", "first"), [(29.9, "young"), (30.0, "old"), (30.1, "old")])
@pytest.mark.parametrize(("old", "young"), [(NORMAL, HIGH), (LOW, NORMAL)])
@pytest.mark.parametrize("same_session", [True, False])
def test_a_level_is_worth_thirty_seconds(age, first, old, young, same_session):
    """A message that is 30 s older precedes one of the next higher level; a message that is less than 30 s older does not."""
    inbox = PriorityInbox[Note]()
    inbox.put_nowait(Note("old", "a", old), now=0)
    inbox.put_nowait(Note("young", "a" if same_session else "b", young), now=age)
    assert drain(inbox)[0] == first


def test_low_messages_do_not_starve():
    """A LOW message runs after 60 s although a HIGH message arrives every second."""
    inbox = PriorityInbox[Note](age_step=30)
    inbox.put_nowait(Note("low", "a", LOW), now=0)
    for now in range(100):
        inbox.put_nowait(Note("high", "b", HIGH), now=now)
        note = inbox.get_nowait()
        inbox.release(note.session_id)
        if note.text == "low":
            break
    assert now == 60


def test_urgent_precedes_aged_messages():
    """No message of another level precedes an URGENT message, at any age."""
    inbox = PriorityInbox[Note]()
    inbox.put_nowait(Note("old", "a", HIGH), now=0)
    inbox.put_nowait(Note("urgent", "b", URGENT), now=1e9)
    assert drain(inbox) == ["urgent", "old"]


@pytest.mark.parametrize("text", ["", "soon", "URGENTLY", "0", "2", "hìgh"])
def test_unknown_priority_text_is_normal(text):
    """A text that names no level becomes NORMAL."""
    inbox = PriorityInbox[Message]()
    for name in ("low", text, " High "):
        message = Message(
            id=name, session_id=name, sender=Sender("u"), parts=to_parts(name), priority=Priority(name)
        )
        inbox.put_nowait(message, now=0)
    assert [inbox.get_nowait().id for _ in range(3)] == [" High ", text, "low"]


# --- one message of a session at a time --------------------------------------------------


def test_session_has_one_claimed_message_at_a_time():
    """Only `release` makes the next message of the same session available; other sessions are not affected."""
    inbox = PriorityInbox[Note]()
    for text, session in (("1", "a"), ("2", "a"), ("3", "b")):
        inbox.put_nowait(Note(text, session), now=0)
    assert [inbox.get_nowait().text, inbox.get_nowait().text] == ["1", "3"]
    with pytest.raises(trio.WouldBlock):
        inbox.get_nowait()
    inbox.release("a")
    assert inbox.get_nowait().text == "2"


def test_urgent_message_of_a_claimed_session_waits_or_is_requested():
    """`poll` returns no URGENT message of a claimed session; `next_urgent` returns it."""
    inbox = PriorityInbox[Note]()
    inbox.put_nowait(Note("slow"), now=0)
    inbox.get_nowait()
    inbox.put_nowait(Note("stop", priority=URGENT), now=1)
    assert inbox.poll() is None
    assert inbox.next_urgent("s").text == "stop"
    assert inbox.next_urgent("s") is None


@pytest.mark.parametrize("waiting", [True, False])
@pytest.mark.parametrize("verb", ["next_urgent", "release"])
def test_turn_methods_require_a_claimed_session(verb, waiting):
    """The methods of a turn raise for a session that is not claimed, and change nothing."""
    inbox = PriorityInbox[Note]()
    if waiting:
        inbox.put_nowait(Note("a"), now=0)
    with pytest.raises(UsageError, match="no message of session 's' is claimed"):
        getattr(inbox, verb)("s")
    assert inbox.statistics().claimed == 0
    assert drain(inbox) == ["a"] * waiting


# --- bounds ------------------------------------------------------------------------------


def test_concurrency_limits_claimed_sessions_except_urgent():
    """At concurrency two a third session is claimed only for an URGENT message; its release frees no slot of the others."""
    inbox = PriorityInbox[Note](concurrency=2)
    for session in "abc":
        inbox.put_nowait(Note(session, session), now=0)
    assert [inbox.poll().text, inbox.poll().text, inbox.poll()] == ["a", "b", None]
    inbox.put_nowait(Note("urgent", "u", URGENT), now=9)
    assert inbox.poll().text == "urgent"
    assert inbox.statistics().claimed == 3
    inbox.release("u")
    assert inbox.poll() is None
    inbox.release("a")
    assert inbox.poll().text == "c"


def test_exceeded_bound_is_named_in_the_error():
    """The inbox, a session and its URGENT messages have a bound each; the error names the exceeded bound."""
    inbox = PriorityInbox[Note]("ada", capacity=3, session_capacity=2, urgent_capacity=1)
    for _ in range(2):
        inbox.put_nowait(Note("x", "a"), now=0)
    with pytest.raises(InboxFull, match=r"inbox of session a is full \(2 messages\)"):
        inbox.put_nowait(Note("x", "a"), now=0)
    inbox.put_nowait(Note("x", "b"), now=0)
    with pytest.raises(InboxFull, match=r"inbox of ada is full \(3 messages\)"):
        inbox.put_nowait(Note("x", "c"), now=0)
    inbox.put_nowait(Note("x", "a", URGENT), now=0)
    with pytest.raises(InboxFull, match=r"session a \(URGENT\) is full \(1 message\)"):
        inbox.put_nowait(Note("x", "a", URGENT), now=0)
    assert not inbox.try_put(Note("x", "c"), now=0)
    assert inbox.try_put(Note("x", "b", URGENT), now=0)
    assert len(inbox) == 5


@pytest.mark.parametrize("bound", ["capacity", "session_capacity", "urgent_capacity", "concurrency"])
def test_bound_of_zero_is_rejected(bound):
    """A bound of zero raises an error when the inbox is created."""
    with pytest.raises(ConfigurationError, match="at least 1"):
        PriorityInbox(**{bound: 0})


@pytest.mark.parametrize("age_step", [-1, math.nan])
def test_negative_age_step_is_rejected(age_step):
    """A negative age step raises an error when the inbox is created."""
    with pytest.raises(ConfigurationError, match="age_step"):
        PriorityInbox(age_step=age_step)


def test_statistics_match_the_queued_messages():
    """Queued and URGENT messages, claimed sessions and sessions are counted separately; all counts are zero at the end."""
    inbox = PriorityInbox[Note]()
    for note in (Note("1", "a"), Note("2", "a"), Note("3", "b"), Note("4", "b", URGENT)):
        inbox.put_nowait(note, now=0)
    assert inbox.get_nowait().text == "4"
    assert attrs.asdict(inbox.statistics()) == {
        "waiting": 3,
        "bytes": 0,
        "urgent": 0,
        "claimed": 1,
        "senders": 0,
        "sessions": 2,
    }
    assert sorted(inbox.sessions()) == ["a", "b"]
    inbox.release("b")
    drain(inbox)
    assert set(attrs.astuple(inbox.statistics())) == {0}


def test_withdraw_returns_queued_messages_and_keeps_the_turn():
    """`withdraw` returns the queued messages of a session by priority; other sessions and the claimed turn stay."""
    inbox = PriorityInbox[Note]()
    inbox.put_nowait(Note("turn", "a"), now=0)
    inbox.get_nowait()
    for note in (Note("low", "a", LOW), Note("high", "a", HIGH), Note("urgent", "a", URGENT), Note("b", "b")):
        inbox.put_nowait(note, now=1)
    assert [note.text for note in inbox.withdraw("a")] == ["urgent", "high", "low"]
    assert inbox.withdraw("a") == inbox.withdraw("nobody") == []
    inbox.release("a")
    assert drain(inbox) == ["b"]
    assert inbox.statistics().sessions == 0


# --- cost --------------------------------------------------------------------------------


class CountedTime(float):
    """A time that counts its comparisons."""

    compared = 0

    def __add__(self, other: float) -> "CountedTime":
        return CountedTime(float(self) + other)

    def __lt__(self, other: float) -> bool:
        CountedTime.compared += 1
        return float(self) < float(other)

    def __eq__(self, other: object) -> bool:
        CountedTime.compared += 1
        return float(self) == other

    __hash__ = float.__hash__


@pytest.mark.parametrize("sessions", [1, 100, 10_000])
def test_ten_thousand_messages_take_n_log_n_comparisons(sessions):
    """Enqueuing and taking a message takes a few comparisons for each doubling of the queue, and no scan."""
    count = 10_000
    inbox = PriorityInbox[Note](capacity=count, session_capacity=count)
    CountedTime.compared = 0
    for i in range(count):
        level = (HIGH, NORMAL, LOW)[i * 7 % 3]
        inbox.put_nowait(Note("", f"s{i % sessions}", level), now=CountedTime(i * 7919 % count))
    assert len(drain(inbox)) == count
    assert CountedTime.compared < 10 * count * math.log2(count)


def test_stale_heap_entries_do_not_accumulate():
    """A session that is enqueued and withdrawn many times, or that keeps a LOW message below HIGH ones, leaves no stale entries."""
    inbox = PriorityInbox[Note](concurrency=1)
    inbox.put_nowait(Note("busy", "busy"), now=0)
    inbox.get_nowait()
    for _ in range(5000):
        inbox.put_nowait(Note("x", "a"), now=0)
        inbox.withdraw("a")
    inbox.release("busy")
    inbox.put_nowait(Note("low", "b", LOW), now=0)
    for _ in range(5000):
        inbox.put_nowait(Note("high", "b", HIGH), now=1)
        assert inbox.get_nowait().text == "high"
        inbox.release("b")
    assert inbox._ready.entries < 100
    assert drain(inbox) == ["low"]


# --- waiting -----------------------------------------------------------------------------


async def test_get_waits_for_a_message(nursery):
    """A waiting `get` returns as soon as a message is enqueued."""
    inbox = PriorityInbox[Note]()
    got = []

    async def take() -> None:
        got.append((await inbox.get()).text)

    nursery.start_soon(take)
    await wait_all_tasks_blocked()
    await inbox.put(Note("a"))
    await wait_all_tasks_blocked()
    assert got == ["a"]


async def test_release_wakes_waiting_tasks_of_other_sessions(nursery):
    """At full concurrency the release of one session lets a waiting `get` return a message of another session."""
    inbox = PriorityInbox[Note](concurrency=1)
    inbox.put_nowait(Note("1", "a"), now=0)
    inbox.get_nowait()
    got = []

    async def take() -> None:
        got.append((await inbox.get()).text)

    inbox.put_nowait(Note("2", "b"), now=0)
    nursery.start_soon(take)
    await wait_all_tasks_blocked()
    assert got == []
    inbox.release("a")
    await wait_all_tasks_blocked()
    assert got == ["2"]


async def test_many_consumers_lose_no_wake_up(nursery):
    """Ten consumers take 500 messages of 50 sessions at concurrency 3; each message is taken exactly once."""
    inbox = PriorityInbox[Note](capacity=20, session_capacity=2, concurrency=3)
    done: list[str] = []

    async def take() -> None:
        while True:
            note = await inbox.get()
            await trio.lowlevel.checkpoint()
            done.append(note.text)
            inbox.release(note.session_id)

    async def send(session: int) -> None:
        for i in range(10):
            await inbox.put(Note(f"{session}/{i}", str(session), list(Priority)[(session + i) % 4]))

    for _ in range(10):
        nursery.start_soon(take)
    async with trio.open_nursery() as senders:
        for session in range(50):
            senders.start_soon(send, session)
    await inbox.wait_idle()
    assert sorted(done) == sorted(f"{session}/{i}" for session in range(50) for i in range(10))
    nursery.cancel_scope.cancel()


async def test_cancelled_get_keeps_the_message():
    """A cancelled `get` takes no message; the next `get` returns it."""
    inbox = PriorityInbox[Note]()
    with trio.move_on_after(0):
        await inbox.get()
    inbox.put_nowait(Note("a"), now=0)
    with trio.CancelScope() as scope:
        scope.cancel()
        await inbox.get()
    assert scope.cancelled_caught
    assert (await inbox.get()).text == "a"


@pytest.mark.parametrize(("deadline", "waited"), [(None, 30), (5.0, 5), (0.0, 0)])
async def test_put_waits_until_the_message_deadline(autojump_clock, deadline, waited):
    """Without room `put` raises InboxFull at the deadline of the message, by default after 30 s."""
    inbox = PriorityInbox[Note]("ada", capacity=1)
    await inbox.put(Note("a"))
    with pytest.raises(InboxFull, match="ada"):
        await inbox.put(Note("b", "t", deadline=deadline))
    assert trio.current_time() == waited
    assert drain(inbox) == ["a"]
    assert set(attrs.astuple(inbox.statistics())) == {0}


async def test_put_rejects_a_negative_deadline():
    """A negative deadline raises an error and leaves no waiting sender."""
    inbox = PriorityInbox[Note](capacity=1)
    await inbox.put(Note("a"))
    with pytest.raises(ValueError, match="non-negative"):
        await inbox.put(Note("b", "t", deadline=-1))
    assert inbox.statistics().senders == 0


@pytest.mark.parametrize("full", ["inbox", "session", "urgent"])
async def test_cancelled_put_enqueues_nothing(full, nursery):
    """A cancelled waiting sender leaves no message, place or session."""
    bounds = {"capacity": 1} if full == "inbox" else {"session_capacity": 1, "urgent_capacity": 1}
    inbox = PriorityInbox[Note](**bounds)
    level = URGENT if full == "urgent" else NORMAL
    await inbox.put(Note("a", priority=level))
    before = inbox.statistics()
    with trio.CancelScope() as scope:
        nursery.start_soon(inbox.put, Note("c", priority=level))
        await wait_all_tasks_blocked()
        scope.cancel()
        await inbox.put(Note("b", priority=level))
    assert inbox.statistics() == attrs.evolve(before, senders=1)
    assert drain(inbox) == ["a", "c"]
    assert inbox.sessions() == []


async def test_cancelled_put_with_room_uses_no_place():
    """`put` in a cancelled scope raises before it enqueues the message."""
    inbox = PriorityInbox[Note]()
    with trio.CancelScope() as scope:
        scope.cancel()
        await inbox.put(Note("a"))
    assert scope.cancelled_caught
    assert len(inbox) == 0


async def test_senders_are_admitted_in_arrival_order(nursery):
    """A free place goes to the sender that waited longest, and to one sender only."""
    inbox = PriorityInbox[Note](capacity=1, session_capacity=1)
    inbox.put_nowait(Note("0", "x"), now=trio.current_time())
    for i in range(1, 6):
        nursery.start_soon(inbox.put, Note(str(i), f"s{i % 2}"))
        await wait_all_tasks_blocked()
    taken = []
    for _ in range(6):
        note = inbox.get_nowait()
        assert not inbox.try_put(Note("late", "late"), now=0) or note.text == "5"
        taken.append(note.text)
        inbox.release(note.session_id)
    assert taken == ["0", "1", "2", "3", "4", "5"]


async def test_full_session_does_not_block_other_sessions(nursery):
    """Senders of a full session wait apart, so senders of other sessions are admitted before them."""
    inbox = PriorityInbox[Note](capacity=3, session_capacity=1)
    await inbox.put(Note("a1", "a"))
    for i in range(5):
        nursery.start_soon(inbox.put, Note(f"a{i + 2}", "a"))
    await wait_all_tasks_blocked()
    await inbox.put(Note("b1", "b"))
    assert inbox.statistics().waiting == 2
    assert inbox.statistics().senders == 5
    nursery.cancel_scope.cancel()


async def test_cancelled_sender_does_not_block_its_session(nursery):
    """The place in a session of a sender that waits for room in the inbox is freed when the sender is cancelled."""
    inbox = PriorityInbox[Note](capacity=1, session_capacity=1)
    await inbox.put(Note("full", "x"))
    scope = trio.CancelScope()

    async def cancelled() -> None:
        with scope:
            await inbox.put(Note("b1", "b"))

    nursery.start_soon(cancelled)
    await wait_all_tasks_blocked()
    nursery.start_soon(inbox.put, Note("b2", "b"))
    await wait_all_tasks_blocked()
    scope.cancel()
    await wait_all_tasks_blocked()
    assert drain(inbox) == ["full", "b2"]


async def test_full_inbox_accepts_urgent_messages():
    """The bound of the inbox does not apply to URGENT messages."""
    inbox = PriorityInbox[Note](capacity=1)
    await inbox.put(Note("a"))
    with trio.fail_after(60):
        await inbox.put(Note("urgent", priority=URGENT))
    assert drain(inbox) == ["urgent", "a"]


async def test_wait_idle_waits_for_claimed_sessions(nursery):
    """The inbox is idle if it has no queued message and no claimed session."""
    inbox = PriorityInbox[Note]()
    await inbox.wait_idle()
    inbox.put_nowait(Note("a"), now=0)
    idle = trio.Event()

    async def wait() -> None:
        await inbox.wait_idle()
        idle.set()

    nursery.start_soon(wait)
    inbox.get_nowait()
    await wait_all_tasks_blocked()
    assert not idle.is_set()
    inbox.release("s")
    await wait_all_tasks_blocked()
    assert idle.is_set()


@attrs.define
class Crowd:
    """Senders of one inbox, and the outcome of each message."""

    inbox: PriorityInbox[Note]
    nursery: trio.Nursery
    scopes: list[trio.CancelScope] = attrs.field(factory=list)
    ended: list[str] = attrs.field(factory=list)

    def put(self, session: str, level: Priority) -> None:
        note = Note(str(len(self.scopes)), session, level)
        self.scopes.append(trio.CancelScope())
        self.nursery.start_soon(self._put, note, self.scopes[-1])

    async def _put(self, note: Note, scope: trio.CancelScope) -> None:
        with scope:
            await self.inbox.put(note)
        if scope.cancelled_caught:
            self.ended.append(note.text)

    def cancel(self, sender: int) -> None:
        for scope in self.scopes[sender : sender + 1]:
            scope.cancel()

    def take(self) -> None:
        note = self.inbox.poll()
        if note is not None:
            self.ended.append(note.text)
            self.inbox.release(note.session_id)

    def withdraw(self, session: str) -> None:
        self.ended.extend(note.text for note in self.inbox.withdraw(session))

    def check(self) -> None:
        """Check that no sender waits although there is room, and that each sender at the inbox bound has a place in its session."""
        for gate, queue in self.inbox._senders.queues.items():
            if gate is None:
                assert self.inbox.statistics().waiting == self.inbox.capacity
            else:
                assert {self.inbox.reached_bound(sender.entry[2]) for sender in queue} == {gate}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), st.sampled_from(Priority)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("take")),
        st.tuples(st.just("withdraw"), st.sampled_from("abc")),
    ),
    max_size=50,
)


@settings(max_examples=150)
@given(steps=STEPS)
async def test_sender_does_not_wait_if_there_is_room(steps):
    """After random puts, takes, withdrawals and cancellations, senders wait only without room, and each message ends exactly once."""
    inbox = PriorityInbox[Note](capacity=4, session_capacity=2, urgent_capacity=1)
    async with trio.open_nursery() as nursery:
        crowd = Crowd(inbox, nursery)
        for verb, *arguments in steps:
            getattr(crowd, verb)(*arguments)
            await wait_all_tasks_blocked()
            crowd.check()
        while inbox.sessions():
            crowd.take()
    assert sorted(crowd.ended) == sorted(str(i) for i in range(len(crowd.scopes)))
    assert inbox._senders.queues == {}
    assert set(attrs.astuple(inbox.statistics())) == {0}


def test_lent_slot_serves_another_session():
    """The lent slot of a waiting turn lets another session be claimed; taking the slot back may exceed the limit."""
    inbox = PriorityInbox("inbox", concurrency=1)
    for session_id in ("a", "b", "c"):
        inbox.put_nowait(Note("hi", session_id), now=0)
    assert inbox.poll().session_id == "a"
    assert inbox.poll() is None
    inbox.lend("a")
    inbox.lend("a")
    assert inbox.poll().session_id == "b"
    inbox.reclaim("a")
    assert inbox.statistics().claimed == 2
    inbox.release("a")
    assert inbox.poll() is None
    inbox.lend("b")
    inbox.release("b")
    assert inbox.poll().session_id == "c"
    assert inbox.statistics().claimed == 1


# --- the states of a line ----------------------------------------------------------------

TABLE = {
    "waiting": {"claim": "out", "park": "parked", "unpark": "out"},
    "out": {
        "claim": "out",
        "lend": "lent",
        "reclaim": "out",
        "park": "parked",
        "unpark": "out",
        "release": "waiting",
    },
    "lent": {
        "claim": "out",
        "lend": "lent",
        "reclaim": "out",
        "park": "parked",
        "unpark": "out",
        "release": "waiting",
    },
    "parked": {
        "claim": "out",
        "lend": "parked",
        "reclaim": "parked",
        "park": "parked",
        "unpark": "out",
        "release": "waiting",
    },
}
"""The state table of `actgent/actors/inbox.py`. A missing transition raises an error or is never requested."""
WAYS = {"waiting": [], "out": ["claim"], "lent": ["claim", "lend"], "parked": ["park"]}


def state_of(inbox: PriorityInbox[Note]) -> str:
    """Return the state of the session `a` with one message, derived from public counters and its waiting senders."""
    if inbox.is_parked("a"):
        return "parked"
    if inbox.statistics().claimed:
        return "out"
    try:
        inbox.take_next_messages("a", lambda _: False)
    except UsageError:
        return "waiting"
    return "lent"


@pytest.mark.parametrize(("state", "event"), [(s, e) for s, events in TABLE.items() for e in events])
def test_session_queue_follows_the_state_table(state, event):
    """After any sequence of operations the queued message is available, and no slot stays taken."""
    inbox = PriorityInbox[Note](concurrency=1)
    inbox.put_nowait(Note("x", "a"), now=0)
    for step in [*WAYS[state], event]:
        getattr(inbox, step)("a")
    assert state_of(inbox) == TABLE[state][event]
    if state_of(inbox) != "waiting":
        inbox.unpark("a") if state_of(inbox) == "parked" else inbox.reclaim("a")
        inbox.release("a")
    assert inbox.get_nowait().text == "x"
    inbox.release("a")
    assert set(attrs.astuple(inbox.statistics())) == {0}


@pytest.mark.parametrize("event", ["lend", "reclaim", "release"])
def test_unclaimed_session_cannot_be_lent_or_released(event):
    """`lend` and `release` of an unclaimed session raise, and the session stays queued."""
    inbox = PriorityInbox[Note]()
    inbox.put_nowait(Note("x", "a"), now=0)
    with pytest.raises(UsageError):
        getattr(inbox, event)("a")
    assert inbox.get_nowait().text == "x"


async def test_message_goes_directly_to_a_waiting_consumer(nursery):
    """A message for a waiting consumer uses no place in the queue; a consumer that is cancelled at that moment receives it nevertheless."""
    inbox = PriorityInbox[Note](capacity=1)
    got: list[str] = []

    async def get() -> None:
        got.append((await inbox.get()).text)

    nursery.start_soon(get)
    await wait_all_tasks_blocked()
    inbox.put_nowait(Note("x", "a"), now=0)
    assert inbox.statistics().waiting == 0
    nursery.cancel_scope.cancel()
    await trio.lowlevel.cancel_shielded_checkpoint()
    with trio.CancelScope(shield=True):
        await wait_all_tasks_blocked()
    assert got == ["x"]


# --- cost -----------------------------------------------------------------------


@pytest.mark.parametrize("sessions", [1, 20])
def test_single_owner_skips_round_robin(sessions):
    """A message of a single owner takes 700 bytecodes in the inbox, a third less than with several owners."""

    def steps(owners):
        inbox, count = PriorityInbox[Note](owner_of=lambda session: int(session) % owners), itertools.count()

        def trace(frame, event, _):
            frame.f_trace_opcodes = True
            if event == "opcode":
                next(count)
            return trace

        def pass_through():
            for number, note in enumerate(notes):
                inbox.put_nowait(note, now=float(number))
                if number >= 50:
                    inbox.release(inbox.poll().session_id)

        notes = [Note("", str(number % sessions)) for number in range(500)]
        before = sys.gettrace()
        sys.settrace(trace)
        pass_through()
        sys.settrace(before)
        return next(count) / len(notes)

    alone = steps(1)
    assert alone < 700
    if sessions > 1:
        assert alone < 0.8 * steps(2)


def test_single_owner_alternates_with_a_new_owner():
    """A new owner is next after an owner that already had turns; then both alternate."""
    inbox = PriorityInbox[Note](owner_of=lambda session: session[0])
    for number in range(6):
        inbox.put_nowait(Note(f"a{number}", f"a{number}"), now=float(number))
    assert [inbox.poll().text for _ in range(2)] == ["a0", "a1"]
    inbox.put_nowait(Note("low", "b9", LOW), now=7.0)
    for number in range(3):
        inbox.put_nowait(Note(f"b{number}", f"b{number}"), now=8.0 + number)
    texts = drain(inbox)
    assert [text[0] for text in texts[:6]] in (["b", "a"] * 3, ["a", "b"] * 3)
    assert texts[-1] == "low"
    assert not inbox.owners
