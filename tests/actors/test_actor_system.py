import logging
import time

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actgent.actors import Actor, ActorContext, ActorRef, ActorSystem, DeadLetter, Supervision, open_system
from actgent.actors.inbox import BATCH_MESSAGES, BATCH_SECONDS
from actgent.errors import ActgentError, ActorFailed, ConfigurationError, DeadlineExceeded, InboxFull
from actgent.events import ActorRestarted, ActorStarted, ActorStopped, DeadLettered, EventStream
from actgent.messages import Priority


class Worker(Actor):
    """Does what it is told: calls a function, sleeps, raises an exception, or says a value back."""

    def __init__(self, log: list[object] | None = None) -> None:
        self.log = [] if log is None else log

    async def receive(self, payload: object) -> object:
        self.log.append(payload)
        match payload:
            case Exception():
                raise payload
            case float():
                await trio.sleep(payload)
        return await payload() if callable(payload) else payload


async def asked(ref: ActorRef, payload: object, outcomes: list[object], **options: float) -> None:
    """Ask, and note the answer or the error."""
    try:
        outcomes.append(await ref.ask(payload, **options))
    except ActgentError as error:
        outcomes.append(error)


# --- tell and ask ------------------------------------------------------------------------


async def test_ask_returns_the_result_of_receive(autojump_clock):
    """An ask is answered with the return value; a tell of the same has none."""
    async with open_system() as system:
        ref = await system.spawn(Worker)
        assert await ref.ask("hello") == "hello"
        assert await ref.tell("hello") is None


async def test_series_of_tell_calls_yields_to_other_tasks(autojump_clock):
    """Both sender and actor yield to other tasks at least after every 16th message."""
    steps = handled = 0
    longest = before = 0

    class Counting(Actor):
        async def receive(self, payload: int) -> None:
            nonlocal handled
            handled += 1

    async def other() -> None:
        nonlocal steps, longest, before
        while True:
            steps += 1
            longest, before = max(longest, handled - before), handled
            await trio.lowlevel.checkpoint()

    async with open_system() as system, trio.open_nursery() as nursery:
        ref = await system.spawn(Counting)
        nursery.start_soon(other)
        for number in range(320):
            await ref.tell(number)
        assert 320 / BATCH_MESSAGES - 2 <= steps < 320
        await ref.ask(0)
        assert handled == 321
        assert longest <= 2 * BATCH_MESSAGES  # trio runs the ready tasks in random order
        nursery.cancel_scope.cancel()


async def test_slow_messages_alternate_with_other_tasks():
    """An actor that computes for more than a millisecond per message yields after each of them."""
    handled = longest = before = 0

    class Slow(Actor):
        async def receive(self, payload: int) -> None:
            nonlocal handled
            handled += 1
            end = time.perf_counter() + 2 * BATCH_SECONDS
            while time.perf_counter() < end:
                pass

    async def other() -> None:
        nonlocal longest, before
        while True:
            longest, before = max(longest, handled - before), handled
            await trio.lowlevel.checkpoint()

    async with open_system() as system, trio.open_nursery() as nursery:
        ref = await system.spawn(Slow)
        nursery.start_soon(other)
        for number in range(32):
            ref.tell_nowait(number)
        await ref.ask(0)
        assert longest <= 2  # trio runs the ready tasks in random order
        nursery.cancel_scope.cancel()


async def test_messages_run_by_priority_one_at_a_time(autojump_clock):
    """While the actor works, what waits is ordered by level."""
    log: list[object] = []
    async with open_system() as system:
        ref = await system.spawn(lambda: Worker(log))
        await ref.tell(1.0)
        await wait_all_tasks_blocked()
        for level in reversed(Priority):
            ref.tell_nowait(level.name, priority=level)
    assert log == [1.0, "URGENT", "HIGH", "NORMAL", "LOW"]


async def test_ask_ends_at_its_deadline(autojump_clock):
    """No answer within the deadline is DeadlineExceeded; the actor goes on and answers others."""
    async with open_system() as system:
        ref = await system.spawn(Worker, name="slow")
        with pytest.raises(DeadlineExceeded, match="actor 'slow' did not answer within 2 s"):
            await ref.ask(5.0, deadline=2)
        assert trio.current_time() == 2
        assert await ref.ask("still there") == "still there"
        assert trio.current_time() == 5


async def test_ask_waits_thirty_seconds_by_default(autojump_clock):
    """There is no ask without a deadline."""
    async with open_system() as system:
        ref = await system.spawn(Worker)
        with pytest.raises(DeadlineExceeded):
            await ref.ask(100.0)
        assert trio.current_time() == 30


async def test_ask_deadline_includes_the_wait_for_room(autojump_clock):
    """An ask that finds the inbox full has one deadline in all, and leaves no message after it."""
    log: list[object] = []
    async with open_system(capacity=1) as system:
        ref = await system.spawn(lambda: Worker(log))
        await ref.tell(10.0)
        await wait_all_tasks_blocked()
        await ref.tell("waits")
        with pytest.raises(DeadlineExceeded):
            await ref.ask("no room", deadline=3)
        assert trio.current_time() == 3
    assert log == [10.0, "waits"]


async def test_cancelled_ask_discards_the_answer(autojump_clock):
    """The asked actor goes on as if nothing had happened."""
    async with open_system() as system:
        ref = await system.spawn(Worker)
        with trio.move_on_after(1):
            await ref.ask(2.0)
        assert await ref.ask("next") == "next"


async def test_the_inbox_is_bounded(autojump_clock):
    """A full inbox raises at once without waiting, and at the deadline with it."""
    async with open_system(capacity=2) as system:
        ref = await system.spawn(Worker, name="busy")
        await ref.tell(100.0)
        await wait_all_tasks_blocked()
        for _ in range(2):
            ref.tell_nowait("x")
        with pytest.raises(InboxFull):
            ref.tell_nowait("x")
        with pytest.raises(InboxFull):
            await ref.tell("x", deadline=7)
        assert trio.current_time() == 7
        ref.stop()


# --- supervision -------------------------------------------------------------------------


async def test_failed_actor_restarts_as_new_object_with_doubling_delay(autojump_clock):
    """Each failure makes a new object after 0.1, 0.2, 0.4 ... s; what waited is dealt with by it."""
    born: list[float] = []

    def factory() -> Worker:
        born.append(trio.current_time())
        return Worker()

    async with open_system(supervision=Supervision(deliveries=1)) as system:
        ref = await system.spawn(factory)
        for _ in range(3):
            await ref.tell(ValueError())
        assert await ref.ask("fine") == "fine"
    assert born == pytest.approx([0, 0.1, 0.3, 0.7])


async def test_restart_delay_has_an_upper_bound(autojump_clock):
    """However often an actor fails, it comes back within `max_backoff`."""
    policy = Supervision(max_restarts=5000, within=1e9, backoff=1, max_backoff=2, deliveries=1)
    async with open_system(supervision=policy, capacity=1500) as system:
        ref = await system.spawn(Worker)
        for _ in range(1100):
            await ref.tell(ValueError())
        assert await ref.ask("fine", deadline=1e4) == "fine"
        assert trio.current_time() == pytest.approx(1 + 1099 * 2)


async def test_repeatedly_failing_message_is_a_dead_letter(autojump_clock, caplog):
    """After three deliveries it is put aside, its asker has the cause, the next message is served."""
    log: list[object] = []
    error = ValueError("contents of a message")
    async with open_system() as system:
        ref = await system.spawn(lambda: Worker(log), name="worker")
        with pytest.raises(ActorFailed, match="it failed 3 times, last with ValueError") as failure:
            await ref.ask(error)
        assert failure.value.__cause__ is error
        assert await ref.ask("next") == "next"
        assert system.dead_letters == (
            DeadLetter("worker", error, "it failed 3 times, last with ValueError", error),
        )
    assert log == [error] * 3 + ["next"]
    assert "contents" not in "".join(record.getMessage() for record in caplog.records)


async def test_message_that_succeeds_on_retry_is_answered(autojump_clock):
    """A failure that passes costs the asker time only."""
    tries: list[float] = []

    async def flaky() -> str:
        tries.append(trio.current_time())
        if len(tries) < 3:
            raise OSError("later")
        return "done"

    async with open_system() as system:
        ref = await system.spawn(Worker)
        assert await ref.ask(flaky) == "done"
        assert system.dead_letters == ()
    assert tries == pytest.approx([0, 0.1, 0.3])


async def test_too_many_failures_escalate_and_raise(autojump_clock):
    """More restarts than allowed raise ActorFailed out of the block; who waits is answered first."""
    outcomes: list[object] = []
    with pytest.RaisesGroup(pytest.RaisesExc(ActorFailed, match="it failed 3 times in 60 s")) as raised:
        async with (
            open_system(supervision=Supervision(max_restarts=2, escalate=True)) as system,
            trio.open_nursery() as nursery,
        ):
            ref = await system.spawn(Worker, name="worker")
            nursery.start_soon(asked, ref, ValueError("bad"), outcomes)
            await wait_all_tasks_blocked()
            nursery.start_soon(asked, ref, "behind it", outcomes)
            await trio.sleep_forever()
    assert isinstance(raised.value.exceptions[0].__cause__, ValueError)
    assert [type(outcome) for outcome in outcomes] == [ActorFailed, ActorFailed]


async def test_actor_that_fails_too_often_stops_alone(autojump_clock, caplog):
    """By default its queue becomes dead letters, senders that wait get `ActorFailed`, and its siblings keep running."""
    outcomes: list[object] = []
    async with open_system() as system, trio.open_nursery() as nursery:
        ref = await system.spawn(Worker, name="worker")
        other = await system.spawn(Worker, name="other")
        for n in range(2):
            await ref.tell(ValueError(f"poison {n}"))
        await ref.tell("behind them")
        nursery.start_soon(asked, ref, "asked", outcomes)
        await trio.sleep(60)
        assert system.find("worker") is None
        assert await other.ask("alive") == "alive"
        letters = [(letter.actor, letter.reason) for letter in system.dead_letters]
        with pytest.raises(ActorFailed, match="it failed 6 times in 60 s, last with ValueError"):
            await ref.tell("later")
        again = await system.spawn(Worker, name="worker")
        assert await again.ask("back") == "back"
    assert [type(outcome) for outcome in outcomes] == [ActorFailed]
    assert [actor for actor, _ in letters] == ["worker"] * 4
    assert [letter.payload for letter in system.dead_letters[2:4]] == ["behind them", "asked"]
    assert "actor worker is stopped: it failed 6 times in 60 s" in caplog.text


async def test_child_that_fails_too_often_stops_alone(autojump_clock):
    """Its parent keeps its state, and may start another child of that name."""

    class Broken(Actor):
        async def started(self, context: ActorContext) -> None:
            raise OSError("never starts")

    class Nesting(Actor):
        async def started(self, context: ActorContext) -> None:
            self.context, self.count = context, 0
            await context.spawn(Broken, name="inner")

        async def receive(self, payload: object) -> object:
            self.count += 1
            return self.count if payload == "count" else await self.context.spawn(Worker, name="inner")

    async with open_system() as system:
        outer = await system.spawn(Nesting, name="outer")
        assert await outer.ask("count") == 1
        await trio.sleep(60)
        assert system.find("inner") is None
        assert await outer.ask("count") == 2
        assert await (await outer.ask("spawn")).ask("x") == "x"


async def test_one_for_all_siblings_stop_together(autojump_clock):
    """Actors that are of no use without each other stop with the one that failed too often; others keep running."""

    class Team(Actor):
        async def started(self, context: ActorContext) -> None:
            self.pair = [await context.spawn(Worker, name=name) for name in ("one", "two")]

        async def receive(self, payload: object) -> object:
            return self.pair

    policy = Supervision(strategy="one_for_all", max_restarts=1, deliveries=9)
    async with open_system() as system:
        team = await system.spawn(Team, name="team", children=policy)
        first, _ = await team.ask("pair")
        await first.tell(ValueError())
        await trio.sleep(60)
        assert [system.find(name) for name in ("one", "two")] == [None, None]
        assert await team.ask("pair")


async def test_failures_outside_the_window_are_ignored(autojump_clock):
    """An actor that fails rarely lives on for ever."""
    policy = Supervision(max_restarts=1, within=60, deliveries=1)
    async with open_system(supervision=policy) as system:
        ref = await system.spawn(Worker)
        for _ in range(10):
            await ref.tell(ValueError())
            await trio.sleep(61)
        assert await ref.ask("alive") == "alive"


class Parent(Actor):
    """Starts a worker as its child, and asks it what it is asked."""

    def __init__(self, born: list[str]) -> None:
        self.born = born

    async def started(self, context: ActorContext) -> None:
        self.born.append(context.ref.name)
        self.child = await context.spawn(Worker, name="child")

    async def receive(self, payload: object) -> object:
        if payload == "child":
            return self.child
        return await self.child.ask(payload)


async def test_escalated_child_failure_restarts_parent_and_siblings(autojump_clock):
    """A child that fails too often ends; its parent begins again with new children under the same names."""
    born: list[str] = []
    policy = Supervision(max_restarts=2, within=1.0, deliveries=3, escalate=True)
    async with open_system(supervision=policy) as system:
        parent = await system.spawn(lambda: Parent(born), name="parent")
        first = await parent.ask("child")
        await first.tell(ValueError("kills the child"))
        assert await parent.ask("again") == "again"
        second = await parent.ask("child")
        assert second is not first
        assert system.find("child") is second
        with pytest.raises(ActorFailed, match=r"'child'.*it failed 3 times"):
            await first.tell("to the old address")
    assert born == ["parent", "parent"]


async def test_failures_escalate_until_the_root_raises(autojump_clock):
    """When the parent's restarts do not help either, the failure leaves the block with its whole cause."""
    policy = Supervision(max_restarts=1, deliveries=99, escalate=True)

    class Broken(Actor):
        async def started(self, context: ActorContext) -> None:
            raise OSError("never starts")

    class Nesting(Actor):
        async def started(self, context: ActorContext) -> None:
            await context.spawn(Broken, name="inner")

    with pytest.RaisesGroup(pytest.RaisesExc(ActorFailed, match=r"'outer'.*it failed 2 times")) as raised:
        async with open_system(supervision=policy) as system:
            await system.spawn(Nesting, name="outer")
            await trio.sleep_forever()
    inner = raised.value.exceptions[0].__cause__
    assert isinstance(inner, ActorFailed)
    assert inner.actor == "inner"
    assert isinstance(inner.__cause__, OSError)


async def test_message_interrupted_by_a_child_failure_is_retried(autojump_clock):
    """The parent's own message is not lost when a child's failure takes the parent down."""
    born: list[str] = []
    outcomes: list[object] = []
    policy = Supervision(max_restarts=1, within=5.0, deliveries=9, escalate=True)
    async with open_system(supervision=policy) as system, trio.open_nursery() as nursery:
        parent = await system.spawn(lambda: Parent(born))
        child = await parent.ask("child")
        await child.tell(ValueError())
        nursery.start_soon(asked, parent, "through the child", outcomes)
    assert outcomes == ["through the child"]
    assert len(born) == 2


# --- the end -----------------------------------------------------------------------------


async def test_normal_exit_processes_queued_messages(autojump_clock):
    """All that is in the inboxes is done first, and what that leads to as well."""
    log: list[object] = []
    async with open_system() as system:
        last = await system.spawn(lambda: Worker(log))
        first = await system.spawn(Worker)

        async def forward() -> None:
            await trio.sleep(1)
            await last.tell("forwarded")

        for _ in range(3):
            await first.tell(forward)
    assert log == ["forwarded"] * 3
    assert trio.current_time() == 3
    assert system.dead_letters == ()


@pytest.mark.parametrize(("options", "waited"), [({}, 10), ({"grace": 2}, 2), ({"grace": 0}, 0)])
async def test_normal_exit_waits_at_most_the_grace(autojump_clock, options, waited):
    """After the grace the actors stop where they are; what is left is a dead letter and its askers are answered."""
    outcomes: list[object] = []
    async with trio.open_nursery() as nursery:
        async with open_system(**options) as system:
            ref = await system.spawn(Worker, name="slow")
            nursery.start_soon(asked, ref, 100.0, outcomes)
            await wait_all_tasks_blocked()
            nursery.start_soon(asked, ref, "behind it", outcomes)
            await wait_all_tasks_blocked()
        assert trio.current_time() == waited
    assert [type(outcome) for outcome in outcomes] == [ActorFailed, ActorFailed]
    assert [(letter.payload, letter.reason) for letter in system.dead_letters] == [
        (100.0, "it was stopped"),
        ("behind it", "it was stopped"),
    ]


async def test_exit_with_exception_stops_immediately(autojump_clock):
    """An exception in the block cuts the actors without any grace and comes out."""
    with pytest.RaisesGroup(KeyError):
        async with open_system() as system:
            ref = await system.spawn(Worker)
            await ref.tell(100.0)
            await ref.tell("waits")
            raise KeyError
    assert trio.current_time() == 0
    assert [letter.payload for letter in system.dead_letters] == [100.0, "waits"]


async def test_no_actor_outlives_its_block(autojump_clock):
    """After the block no actor is found, no task is left, and an address says so."""
    before = trio.lowlevel.current_statistics().tasks_living
    async with open_system() as system:
        refs = [await system.spawn(lambda: Parent([]), name="parent")]
        await refs[0].ask("x")
        refs.append(system.find("child"))
    assert trio.lowlevel.current_statistics().tasks_living == before
    for ref in refs:
        assert system.find(ref.name) is None
        with pytest.raises(ActorFailed, match="it was stopped"):
            await ref.ask("anyone?")
        with pytest.raises(ActorFailed):
            ref.tell_nowait("anyone?")


async def test_closed_system_rejects_spawn(autojump_clock):
    """Spawning after the block is an error and leaves no name behind."""
    async with open_system() as system:
        pass
    with pytest.raises(RuntimeError):
        await system.spawn(Worker, name="late")
    assert system.find("late") is None


async def test_stop_fails_askers_and_waiting_senders(autojump_clock):
    """A stopped actor leaves nobody waiting: not who works with it, not who queues, not who had no room yet."""
    outcomes: list[object] = []
    async with open_system(capacity=1) as system, trio.open_nursery() as nursery:
        ref = await system.spawn(Worker, name="worker")
        nursery.start_soon(asked, ref, 100.0, outcomes)
        await wait_all_tasks_blocked()
        for i in range(5):
            nursery.start_soon(asked, ref, i, outcomes)
        await wait_all_tasks_blocked()
        ref.stop()
    assert trio.current_time() == 0
    assert [type(outcome) for outcome in outcomes] == [ActorFailed] * 6
    assert sorted(letter.payload for letter in system.dead_letters) == [0, 1, 2, 3, 4, 100.0]


async def test_exit_does_not_wait_for_a_stopped_actor(autojump_clock):
    """A busy actor that is stopped during the grace is waited for no longer."""
    async with trio.open_nursery() as nursery:
        async with open_system() as system:
            ref = await system.spawn(Worker)
            await ref.tell(100.0)

            async def cancel_on_arrival() -> None:
                await trio.sleep(1)
                ref.stop()

            nursery.start_soon(cancel_on_arrival)
        assert trio.current_time() == 1


async def test_cancelled_spawn_starts_no_actor(autojump_clock):
    """Who is cancelled while it spawns has no actor that it does not know of."""
    async with open_system() as system:
        with trio.CancelScope() as scope:
            scope.cancel()
            await system.spawn(Worker, name="worker")
        assert scope.cancelled_caught
        assert system.find("worker") is None


async def test_stop_ends_children_and_frees_names(autojump_clock):
    """Only the stopped actor and what it started end; their names can be used again."""
    async with open_system() as system:
        parent = await system.spawn(lambda: Parent([]), name="parent")
        other = await system.spawn(Worker)
        await parent.ask("x")
        parent.stop()
        await wait_all_tasks_blocked()
        assert system.find("parent") is system.find("child") is None
        assert await other.ask("there?") == "there?"
        parent = await system.spawn(lambda: Parent([]), name="parent")
        assert await parent.ask("back") == "back"


async def test_error_during_stop_does_not_affect_others(autojump_clock):
    """What comes out of a stopped actor's clean-up is logged, not escalated."""

    class Clumsy(Parent):
        async def receive(self, payload: object) -> object:
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("in clean-up")

    async with open_system() as system:
        clumsy = await system.spawn(lambda: Clumsy([]), name="clumsy")
        other = await system.spawn(Worker)
        await clumsy.tell("x")
        await wait_all_tasks_blocked()
        clumsy.stop()
        await trio.sleep(1)
        assert system.find("clumsy") is None
        assert await other.ask("there?") == "there?"


@pytest.mark.parametrize(
    ("seconds", "word"), [(0.0, "raised in stopped()"), (9.0, "did not return from stopped()")]
)
async def test_stopped_hook_has_one_second_and_may_raise(autojump_clock, caplog, seconds, word):
    """`stopped` cannot hold the end up, nor turn it into a failure; the log tells."""

    class Lingering(Worker):
        async def stopped(self) -> None:
            await trio.sleep(seconds)
            raise OSError("no thanks")

    async with open_system() as system:
        await (await system.spawn(Lingering)).ask("x")
    assert trio.current_time() == min(seconds, 1)
    assert word in caplog.text


async def test_started_and_stopped_run_for_each_incarnation(autojump_clock):
    """Each object is told when it begins and when it ends, after a failure too."""
    lives: list[str] = []

    class Diary(Worker):
        async def started(self, context: ActorContext) -> None:
            lives.append("started")

        async def stopped(self) -> None:
            lives.append("stopped")

    async with open_system(supervision=Supervision(deliveries=1)) as system:
        ref = await system.spawn(Diary)
        await ref.tell(ValueError())
        await ref.ask("x")
    assert lives == ["started", "stopped"] * 2


# --- names, events, dead letters ---------------------------------------------------------


async def test_names_are_unique_and_generated_if_omitted(autojump_clock):
    """A taken name is the caller's error; made-up names pass by the taken ones."""
    async with open_system() as system:
        await system.spawn(Worker, name="Worker-1")
        made_up = [(await system.spawn(Worker)).name for _ in range(3)]
        assert len({*made_up, "Worker-1"}) == 4
        with pytest.raises(ConfigurationError, match="an actor named 'Worker-1' is running already"):
            await system.spawn(Worker, name="Worker-1")
        assert await system.find("Worker-1").ask("unhurt") == "unhurt"


async def test_event_stream_reports_actor_events(autojump_clock):
    """Start, restart, dead letter and end are events, by class name and without contents."""
    stream = EventStream()
    async with stream.read() as reader:
        async with open_system(events=stream, supervision=Supervision(deliveries=1)) as system:
            ref = await system.spawn(Worker, name="worker")
            await ref.tell(ValueError("secret"))
            await ref.ask("x")
        stream.end()
        seen = [attrs.evolve(event, at=0) async for event in reader]
    assert seen == [
        ActorStarted(at=0, actor="worker"),
        DeadLettered(at=0, actor="worker", reason="it failed 1 time, last with ValueError"),
        ActorRestarted(at=0, actor="worker", error="ValueError", delay=0.1),
        ActorStopped(at=0, actor="worker"),
    ]


async def test_dead_letters_are_bounded(autojump_clock, caplog):
    """The newest thousand are kept."""
    caplog.set_level(logging.CRITICAL)
    async with open_system(capacity=2000, grace=0) as system:
        ref = await system.spawn(Worker)
        for i in range(1500):
            ref.tell_nowait(i)
    assert [letter.payload for letter in system.dead_letters] == list(range(500, 1500))


async def test_spawn_in_an_ended_actor_is_an_error(autojump_clock):
    """A context that outlived its actor starts nothing."""
    contexts: list[ActorContext] = []

    class Leaky(Worker):
        async def started(self, context: ActorContext) -> None:
            contexts.append(context)

    async with open_system() as system:
        await (await system.spawn(Leaky, name="leaky")).ask("x")
    with pytest.raises(ActorFailed, match="'leaky'"):
        await contexts[0].spawn(Worker)


async def test_thousand_actors_form_a_ring(autojump_clock):
    """Messages pass through many actors, and all are gone afterwards."""
    async with open_system() as system:
        refs = [await system.spawn(Worker) for _ in range(1000)]

        def hop(i: int) -> object:
            return (lambda: refs[i].ask(hop(i + 1))) if i < 1000 else "round"

        assert await refs[0].ask(hop(1)) == "round"
    assert isinstance(system, ActorSystem)
    assert system.find(refs[0].name) is None
