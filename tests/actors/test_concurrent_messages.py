"""Actors that process several messages concurrently: groups, slots, failures, circular waits and the end."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actgent import BareAgent, ScriptedLLM, ToolCall, ToolResult, open_runtime, tool
from actgent.actors import Actor, ActorContext, Supervision, open_system
from actgent.errors import ActorFailed, ConfigurationError, DeadlockDetected
from actgent.messages import Priority


class Desk(Actor):
    """An actor that records the begin and end of each message. It sleeps for a number and calls a callable."""

    def __init__(self, log: list[object] | None = None) -> None:
        self.log = [] if log is None else log
        self.at_work = self.most = 0

    async def receive(self, payload: object) -> object:
        name, work = payload if isinstance(payload, tuple) else ("", payload)
        self.log.append(f"{name} begins")
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        try:
            if callable(work):
                return await work()
            if isinstance(work, Exception):
                raise work
            await trio.sleep(work)
        finally:
            self.at_work -= 1
        self.log.append(f"{name} ends")
        return self.most


def name_of(payload: tuple[str, object]) -> str:
    return payload[0]


# --- places and lines ------------------------------------------------------------------------


async def test_concurrency_limits_parallel_messages(autojump_clock):
    """Eight messages of one second at a concurrency of four take two seconds."""
    async with open_system() as system:
        ref = await system.spawn(Desk, concurrency=4)
        for _ in range(7):
            await ref.tell(1)
        assert await ref.ask(1) == 4
        assert trio.current_time() == 2


async def test_messages_of_one_group_run_sequentially(autojump_clock):
    """Messages of one group run one at a time; messages of other groups run concurrently."""
    log: list[object] = []
    async with open_system() as system:
        ref = await system.spawn(lambda: Desk(log), concurrency=10, line_of=name_of)
        for name in ("ada", "ada", "bob"):
            await ref.tell((name, 1))
        await ref.wait_idle()
        assert trio.current_time() == 2
    assert [entry for entry in log if entry.startswith("ada")] == ["ada begins", "ada ends"] * 2


async def test_group_orders_messages_by_priority(autojump_clock):
    """Queued messages of one group run by priority."""
    log: list[object] = []
    async with open_system() as system:
        ref = await system.spawn(lambda: Desk(log), concurrency=2, line_of=lambda _: "one")
        await ref.tell(("first", 1))
        await wait_all_tasks_blocked()
        for level in reversed(Priority):
            ref.tell_nowait((level.name, 0), priority=level)
    started = [entry.split()[0] for entry in log if entry.endswith("begins")]
    assert started == ["first", "URGENT", "HIGH", "NORMAL", "LOW"]


async def test_urgent_message_runs_in_an_additional_slot(autojump_clock):
    """One URGENT message runs although all slots are taken; a second URGENT message waits."""
    async with open_system() as system:
        ref = await system.spawn(Desk, concurrency=2)
        for _ in range(2):
            await ref.tell(10)
        await ref.ask(1, priority=Priority.URGENT)
        assert trio.current_time() == 1


async def test_actor_is_sequential_by_default(autojump_clock):
    """Without `concurrency` an actor runs one message at a time, also if it has `line_of`."""
    async with open_system() as system:
        ref = await system.spawn(Desk, line_of=name_of)
        await ref.tell(("ada", 1))
        assert await ref.ask(("bob", 1)) == 1
        assert trio.current_time() == 2


async def test_child_actor_runs_messages_concurrently(autojump_clock):
    """`spawn` of a child accepts `concurrency`, as `spawn` of the system does."""

    class Chief(Actor):
        async def started(self, context: ActorContext) -> None:
            self.desk = await context.spawn(Desk, concurrency=3)

        async def receive(self, payload: object) -> object:
            for _ in range(2):
                await self.desk.tell(1)
            return await self.desk.ask(1)

    async with open_system() as system:
        assert await (await system.spawn(Chief)).ask("go") == 3
        assert trio.current_time() == 1


# --- failures --------------------------------------------------------------------------------


async def test_failure_retries_concurrent_messages(autojump_clock):
    """One object processes all concurrent messages; after its failure a new object receives the interrupted messages again."""
    log: list[object] = []
    both = ["slow begins", "slower begins"]
    boom = RuntimeError("boom")
    async with open_system(supervision=Supervision(deliveries=1)) as system:
        ref = await system.spawn(lambda: Desk(log), concurrency=3)
        await ref.tell(("slow", 5))
        await ref.tell(("slower", 6))
        await wait_all_tasks_blocked()
        with pytest.raises(ActorFailed, match="it failed 1 time, last with RuntimeError") as failed:
            await ref.ask(("bad", boom))
        assert failed.value.__cause__ is boom
        await ref.wait_idle()
        assert [letter.payload for letter in system.dead_letters] == [("bad", boom)]
    assert [sorted(log[:2]), log[2], sorted(log[3:5])] == [both, "bad begins", both]
    assert log[5:] == ["slow ends", "slower ends"]


async def test_simultaneous_failures_count_once(autojump_clock, caplog):
    """A second failure at the same time is logged, and its message is delivered again."""
    asked: list[object] = []
    gate, started = trio.Event(), []

    async def flaw() -> str:
        started.append(trio.current_time())
        await gate.wait()
        if len(started) == 2:
            raise RuntimeError("boom")
        return "done"

    async with open_system(supervision=Supervision(deliveries=1)) as system:
        ref = await system.spawn(Desk, concurrency=2)
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(note, ref, ("", flaw), asked)
            await wait_all_tasks_blocked()
            gate.set()
        assert sorted(asked) == ["done", "it failed 1 time, last with RuntimeError"]
        assert len(started) == 3
    assert "raised while it was cancelled by the failure of another message" in caplog.text


async def test_failing_cleanup_is_not_a_second_failure(autojump_clock, caplog):
    """An error in the clean-up of a cancelled message is logged, and its message is delivered again."""
    asked: list[object] = []
    began = trio.Event()

    async def rude() -> str:
        if began.is_set():
            return "done"
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("rude")

    async with open_system(supervision=Supervision(deliveries=1)) as system:
        ref = await system.spawn(Desk, concurrency=2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, ref, ("", rude), asked)
            await began.wait()
            await ref.tell(("bad", RuntimeError("boom")))
        assert asked == ["done"]
        assert [letter.payload[0] for letter in system.dead_letters] == ["bad"]
    assert "its clean-up failed: ValueError" in caplog.text


async def note(ref, payload, asked, **options):
    try:
        asked.append(await ref.ask(payload, **options))
    except ActorFailed as error:
        asked.append(error.reason)


async def test_waiting_senders_get_an_error_when_the_actor_stops(autojump_clock):
    """Running and queued messages of all groups become dead letters."""
    asked: list[object] = []
    async with open_system() as system:
        ref = await system.spawn(Desk, concurrency=2, line_of=name_of)
        async with trio.open_nursery() as nursery:
            for name in ("ada", "bob", "ada", "cy"):
                nursery.start_soon(note, ref, (name, 100), asked)
            await wait_all_tasks_blocked()
            ref.stop()
        assert asked == ["it was stopped"] * 4
        assert sorted(letter.payload[0] for letter in system.dead_letters) == ["ada", "ada", "bob", "cy"]


async def test_system_exit_ends_messages_of_all_groups(autojump_clock):
    """The exit of the system ends the messages of all groups within the grace period."""
    log: list[object] = []
    async with open_system(grace=5) as system:
        ref = await system.spawn(lambda: Desk(log), concurrency=2, line_of=name_of)
        for name in ("ada", "bob", "ada", "cy"):
            await ref.tell((name, 1))
    assert sum(entry.endswith("ends") for entry in log) == 4


# --- waits -----------------------------------------------------------------------------------


async def test_waiting_message_lends_its_slot(autojump_clock):
    """Two actors with all slots taken ask each other and get answers; afterwards all slots are free."""
    async with open_system() as system:
        ping = await system.spawn(Desk, name="ping", concurrency=2)
        pong = await system.spawn(Desk, name="pong", concurrency=2)

        async def deep(rest: int) -> object:
            if not rest:
                return "deep"
            return await (ping if rest % 2 else pong).ask(("", lambda: deep(rest - 1)))

        asked: list[object] = []
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(lambda: note(ping, ("", lambda: deep(6)), asked))
        assert asked == ["deep"] * 3
        for _ in range(2):
            await ping.tell(1)
        started = trio.current_time()
        await ping.ask(1)
        assert trio.current_time() - started == 2
        assert not ping._groups._nodes
        assert not pong._groups._nodes


async def test_parallel_asks_lend_the_slot_until_the_last_answer(autojump_clock):
    """A message takes its slot back when its last `ask` is answered."""
    async with open_system() as system:
        slow = await system.spawn(Desk, name="slow", concurrency=10)
        ref = await system.spawn(Desk, name="desk", concurrency=2)

        async def ask_both() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(slow.ask, 1)
                nursery.start_soon(slow.ask, 3)
            await trio.sleep(10)

        for _ in range(2):
            await ref.tell(("", ask_both))
        await trio.sleep(0.5)
        assert await ref.ask(1) == 3
        assert trio.current_time() == 1.5
        await trio.sleep(4)  # both work themselves now
        await ref.ask(0)
        assert trio.current_time() == 13


async def test_group_that_waits_for_itself_is_rejected(autojump_clock):
    """An `ask` to the caller's group raises an error, since its message could never begin; an `ask` to another group is answered."""
    async with open_system() as system:
        ref = await system.spawn(Desk, name="desk", concurrency=3, line_of=name_of)
        other = await system.spawn(Desk, name="other", concurrency=3)

        async def through(name: str) -> object:
            return await other.ask(("", lambda: circle_or(ref.ask((name, 0)))))

        found = await ref.ask(("ada", lambda: through("ada")))
        assert isinstance(found, DeadlockDetected)
        assert "other/0 -> desk/ada -> other/0;" in str(found)
        assert await ref.ask(("ada", lambda: through("bob"))) == 2


async def circle_or(asked):
    """Return the answer, or the error of a circular wait. A raised error would restart the actor."""
    try:
        return await asked
    except DeadlockDetected as error:
        return error


async def test_concurrent_actors_and_agents_ask_each_other(autojump_clock):
    """A tool of an agent asks an actor that asks the agent, with one slot each."""
    async with open_runtime() as runtime:

        @tool
        async def look_up() -> str:
            """Look something up."""
            return str(await runtime.find("desk").ask(("tool", 1)))

        def answer(chat):
            last = chat.messages[-1].parts[-1]
            return f"found {last.content}" if isinstance(last, ToolResult) else [ToolCall("look_up", {})]

        clerk = await runtime.start(
            BareAgent("clerk", llm=ScriptedLLM(answer), tools=[look_up], max_concurrent_sessions=1)
        )
        desk = await runtime.spawn(Desk, name="desk", concurrency=2)
        asked: list[object] = []
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(lambda: note(desk, ("", lambda: clerk.ref.ask("go")), asked))
        assert len(asked) == 4
        assert all(str(reply).startswith("found ") for reply in asked)


# --- mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"concurrency": 0}, "actor 'desk': concurrency=0 must be at least 1"),
        ({"concurrency": "2"}, "actor 'desk': concurrency='2' must be at least 1"),
        ({"concurrency": 2, "line_of": "name"}, "line_of= must be a function of the payload, not 'name'"),
    ],
)
async def test_spawn_rejects_invalid_arguments(options, expected):
    """`spawn` with an invalid argument starts no actor and reserves no name."""
    async with open_system() as system:
        with pytest.raises(ConfigurationError, match=expected):
            await system.spawn(Desk, name="desk", **options)
        assert system.count == 0


async def test_group_that_is_not_text_is_rejected():
    """A message whose group is not a string is rejected before it is enqueued."""
    async with open_system() as system:
        ref = await system.spawn(Desk, name="desk", concurrency=2, line_of=lambda payload: payload)
        with pytest.raises(
            ConfigurationError,
            match="actor 'desk': line_of= must return a string, the name of the message's group, not 5",
        ):
            await ref.tell(5)
        assert ref.is_idle
