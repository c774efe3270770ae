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
    """An actor that calls a function, sleeps, raises an exception or returns the payload."""

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
    """Ask an actor, and append the answer or the error to a list."""
    try:
        outcomes.append(await ref.ask(payload, **options))
    except ActgentError as error:
        outcomes.append(error)


# --- tell and ask ------------------------------------------------------------------------


async def test_ask_returns_the_result_of_receive(autojump_clock):
    """`ask` returns the return value of `receive`; `tell` returns None."""
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
    """Messages that queue while the actor works run by priority."""
    log: list[object] = []
    async with open_system() as system:
        ref = await system.spawn(lambda: Worker(log))
        await ref.tell(1.0)
        await wait_all_tasks_blocked()
        for level in reversed(Priority):
            ref.tell_nowait(level.name, priority=level)
    assert log == [1.0, "URGENT", "HIGH", "NORMAL", "LOW"]


async def test_ask_ends_at_its_deadline(autojump_clock):
    """`ask` raises DeadlineExceeded at its deadline; the actor keeps answering other callers."""
    async with open_system() as system:
        ref = await system.spawn(Worker, name="slow")
        with pytest.raises(DeadlineExceeded, match="actor 'slow' did not answer within 2 s"):
            await ref.ask(5.0, deadline=2)
        assert trio.current_time() == 2
        assert await ref.ask("still there") == "still there"
        assert trio.current_time() == 5


async def test_ask_waits_thirty_seconds_by_default(autojump_clock):
    """An `ask` without a deadline waits 30 seconds."""
    async with open_system() as system:
        ref = await system.spawn(Worker)
        with pytest.raises(DeadlineExceeded):
            await ref.ask(100.0)
        assert trio.current_time() == 30


async def test_ask_deadline_includes_the_wait_for_room(autojump_clock):
    """One deadline covers the wait for room and the wait for the answer; a late `ask` leaves no message in the inbox."""
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
    """The actor finishes the message of a cancelled `ask` and processes the next message."""
    async with open_system() as system:
        ref = await system.spawn(Worker)
        with trio.move_on_after(1):
            await ref.ask(2.0)
        assert await ref.ask("next") == "next"


async def test_the_inbox_is_bounded(autojump_clock):
    """Without a wait a full inbox raises InboxFull immediately; with a deadline it raises at the deadline."""
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
    """Each failure creates a new object after 0.1, 0.2, 0.4 ... s; the new object processes the queued messages."""
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
    """The restart delay never exceeds `max_backoff`."""
    policy = Supervision(max_restarts=5000, within=1e9, backoff=1, max_backoff=2, deliveries=1)
    async with open_system(supervision=policy, capacity=1500) as system:
        ref = await system.spawn(Worker)
        for _ in range(1100):
            await ref.tell(ValueError())
        assert await ref.ask("fine", deadline=1e4) == "fine"
        assert trio.current_time() == pytest.approx(1 + 1099 * 2)


async def test_repeatedly_failing_message_is_a_dead_letter(autojump_clock, caplog):
    """After three failed deliveries the message becomes a dead letter, `ask` raises the cause, and the next message runs."""
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
    """A message that succeeds on its second delivery is answered."""
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
    """More restarts than allowed raise ActorFailed from the block; pending `ask` calls fail first."""
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
    """By default its queued messages become dead letters, waiting senders get ActorFailed, and its siblings keep running."""
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
    """The parent keeps its state and may spawn another child with the same name."""

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
    """Under one-for-all supervision the siblings of an actor that fails too often stop with it; other actors keep running."""

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
    """An actor whose failures are farther apart than the window is always restarted."""
    policy = Supervision(max_restarts=1, within=60, deliveries=1)
    async with open_system(supervision=policy) as system:
        ref = await system.spawn(Worker)
        for _ in range(10):
            await ref.tell(ValueError())
            await trio.sleep(61)
        assert await ref.ask("alive") == "alive"


class Parent(Actor):
    """An actor that spawns a worker as its child and forwards each payload to it."""

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
    """A child that fails too often ends; its parent restarts with new children under the same names."""
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
    """If restarts of the parent do not help, the block raises the failure with its chain of causes."""
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
    """A message that the parent processes while a child fails is delivered again."""
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
    """A normal exit processes all queued messages, and the messages that these send."""
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
    """After the grace period actors are cancelled, queued messages become dead letters, and pending `ask` calls fail."""
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
    """An exception in the block cancels the actors without a grace period and is raised."""
    with pytest.RaisesGroup(KeyError):
        async with open_system() as system:
            ref = await system.spawn(Worker)
            await ref.tell(100.0)
            await ref.tell("waits")
            raise KeyError
    assert trio.current_time() == 0
    assert [letter.payload for letter in system.dead_letters] == [100.0, "waits"]


async def test_no_actor_outlives_its_block(autojump_clock):
    """After the block no actor is registered, no task runs, and a send to an old reference raises."""
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
    """`spawn` after the block raises an error and reserves no name."""
    async with open_system() as system:
        pass
    with pytest.raises(RuntimeError):
        await system.spawn(Worker, name="late")
    assert system.find("late") is None


async def test_stop_fails_askers_and_waiting_senders(autojump_clock):
    """Stopping an actor fails the running `ask`, the queued `ask` calls, and the senders that wait for room."""
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
    """The exit stops waiting for a busy actor as soon as that actor is stopped."""
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
    """A cancelled `spawn` leaves no running actor."""
    async with open_system() as system:
        with trio.CancelScope() as scope:
            scope.cancel()
            await system.spawn(Worker, name="worker")
        assert scope.cancelled_caught
        assert system.find("worker") is None


async def test_stop_ends_children_and_frees_names(autojump_clock):
    """Stopping an actor ends the actor and its children, and frees their names."""
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
    """An error in the clean-up of a stopped actor is logged and not escalated."""

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
    """The `stopped` hook neither delays the end beyond one second nor turns it into a failure; the log has the error."""

    class Lingering(Worker):
        async def stopped(self) -> None:
            await trio.sleep(seconds)
            raise OSError("no thanks")

    async with open_system() as system:
        await (await system.spawn(Lingering)).ask("x")
    assert trio.current_time() == min(seconds, 1)
    assert word in caplog.text


async def test_started_and_stopped_run_for_each_incarnation(autojump_clock):
    """`started` and `stopped` run for each new object, also after a failure."""
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
    """A name in use is an error; generated names differ from all names in use."""
    async with open_system() as system:
        await system.spawn(Worker, name="Worker-1")
        made_up = [(await system.spawn(Worker)).name for _ in range(3)]
        assert len({*made_up, "Worker-1"}) == 4
        with pytest.raises(ConfigurationError, match="an actor named 'Worker-1' is running already"):
            await system.spawn(Worker, name="Worker-1")
        assert await system.find("Worker-1").ask("unhurt") == "unhurt"


async def test_event_stream_reports_actor_events(autojump_clock):
    """Start, restart, dead letter and end are published as events with class names and without payloads."""
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
    """The list holds the newest 1,000 dead letters."""
    caplog.set_level(logging.CRITICAL)
    async with open_system(capacity=2000, grace=0) as system:
        ref = await system.spawn(Worker)
        for i in range(1500):
            ref.tell_nowait(i)
    assert [letter.payload for letter in system.dead_letters] == list(range(500, 1500))


async def test_spawn_in_an_ended_actor_is_an_error(autojump_clock):
    """`spawn` through the context of an ended actor raises an error."""
    contexts: list[ActorContext] = []

    class Leaky(Worker):
        async def started(self, context: ActorContext) -> None:
            contexts.append(context)

    async with open_system() as system:
        await (await system.spawn(Leaky, name="leaky")).ask("x")
    with pytest.raises(ActorFailed, match="'leaky'"):
        await contexts[0].spawn(Worker)


async def test_thousand_actors_form_a_ring(autojump_clock):
    """A message passes 1,000 actors; all actors end with the block."""
    async with open_system() as system:
        refs = [await system.spawn(Worker) for _ in range(1000)]

        def hop(i: int) -> object:
            return (lambda: refs[i].ask(hop(i + 1))) if i < 1000 else "round"

        assert await refs[0].ask(hop(1)) == "round"
    assert isinstance(system, ActorSystem)
    assert system.find(refs[0].name) is None
