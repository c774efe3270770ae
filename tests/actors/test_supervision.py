"""Supervision strategies of siblings, and events that coincide with a restart."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actgent.actors import Actor, ActorContext, Supervision, open_system
from actgent.errors import ActorFailed, ConfigurationError
from actgent.events import ActorRestarted, EventStream

TOGETHER = Supervision(strategy="one_for_all", deliveries=1)


class Worker(Actor):
    """An actor that records each start, executes a callable, and may fail in its clean-up."""

    def __init__(self, born: list[float], *, falls: bool = False) -> None:
        born.append(trio.current_time())
        self.falls = falls

    async def receive(self, payload: object) -> object:
        if isinstance(payload, Exception):
            raise payload
        if isinstance(payload, float):
            try:
                await trio.sleep(payload)
            except trio.Cancelled:
                if self.falls:
                    raise OSError("in the clean-up") from None
                raise
        return payload


async def spawn_pair(system, **options):
    """Spawn two workers and return them with the times of their starts."""
    births: tuple[list[float], list[float]] = ([], [])
    refs = [await system.spawn(lambda b=b: Worker(b, **options)) for b in births]
    return (*refs, *births)


async def test_one_for_one_restarts_only_the_failed_actor(autojump_clock):
    """By default the sibling of a failed actor keeps its object."""
    async with open_system(supervision=Supervision(deliveries=1)) as system:
        first, second, born, others = await spawn_pair(system)
        await first.tell(ValueError())
        assert await first.ask("x") == await second.ask("x") == "x"
    assert born == pytest.approx([0, 0.1])
    assert others == [0]


async def test_one_for_all_restarts_siblings_simultaneously(autojump_clock):
    """All siblings become new objects after one delay; the interrupted message of a sibling is delivered again."""
    stream = EventStream()
    async with stream.read() as reader, open_system(supervision=TOGETHER, events=stream) as system:
        first, second, born, others = await spawn_pair(system)
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                assert await second.ask(1.0) == 1.0

            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            await first.tell(ValueError())
        assert await first.ask("x") == "x"
        assert [letter.actor for letter in system.dead_letters] == [first.name]
        restarts = [reader.receive_nowait() for _ in range(len(reader._backlog.events))]
    assert born == others == pytest.approx([0, 0.1])
    received = [(each.actor, each.error) for each in restarts if isinstance(each, ActorRestarted)]
    assert received == [(first.name, "ValueError"), (second.name, "ValueError")]


async def test_one_for_all_shares_one_restart_count(autojump_clock):
    """Failures of two siblings count against one restart limit."""
    policy = Supervision(strategy="one_for_all", max_restarts=3, deliveries=1, escalate=True)
    match = r"it and its siblings failed 4 times in 60 s"
    with pytest.RaisesGroup(pytest.RaisesExc(ActorFailed, match=match)):
        async with open_system(supervision=policy) as system:
            first, second, *_ = await spawn_pair(system)
            for ref in (first, second, first, second):
                await ref.tell(ValueError())
                await trio.sleep(1)
            await trio.sleep_forever()


async def test_failure_during_sibling_restart_is_not_counted(autojump_clock, caplog):
    """A child that fails in the clean-up of its cancelled message restarts once, together with all; the log names it."""
    policy = Supervision(strategy="one_for_all", max_restarts=1, deliveries=1)
    async with open_system(supervision=policy) as system:
        first, second, born, others = await spawn_pair(system, falls=True)
        await second.tell(5.0)
        await wait_all_tasks_blocked()
        await first.tell(ValueError())
        await trio.sleep(1)
        second.stop()
    assert born == others == pytest.approx([0, 0.1])
    assert "was cancelled, and its clean-up failed: OSError" in caplog.text


async def test_simultaneous_sibling_failures_restart_once(autojump_clock):
    """Two failures at the same time cause one restart of all siblings, and one restart is counted."""
    policy = Supervision(strategy="one_for_all", max_restarts=1, deliveries=1)
    for _ in range(20):  # trio shuffles which is dealt with first, and whether the other is cut by then
        async with open_system(supervision=policy) as system:
            first, second, born, others = await spawn_pair(system)
            first.tell_nowait(ValueError())
            second.tell_nowait(ValueError())
            await trio.sleep(5)
            assert len(born) == len(others) == 2


async def test_pending_restart_waits_for_the_later_time(autojump_clock):
    """A further failure during the delay moves the restart of all siblings, so they restart together."""
    async with open_system(
        supervision=Supervision(strategy="one_for_all", backoff=1, deliveries=1)
    ) as system:
        first, _, born, others = await spawn_pair(system)
        await first.tell(ValueError())
        await trio.sleep(0.5)
        third_born: list[float] = []
        third = await system.spawn(lambda: Worker(third_born))
        await third.tell(ValueError())
        await trio.sleep(10)
    assert born == others == pytest.approx([0, 2.5])
    assert third_born == pytest.approx([0.5, 2.5])


async def test_stop_during_restart_delay_ends_the_actor(autojump_clock):
    """A stop during the delay prevents the restart, frees the name immediately and fails queued `ask` calls."""
    async with open_system(supervision=Supervision(backoff=10, deliveries=9)) as system:
        ref, other, born, others = await spawn_pair(system)
        await ref.tell(ValueError())
        await trio.sleep(1)
        system.stop(ref.name)
        await wait_all_tasks_blocked()
        assert system.find(ref.name) is None
        assert [letter.reason for letter in system.dead_letters] == ["it was stopped"]
        assert await other.ask("x") == "x"
        await trio.sleep(20)
    assert born == others == [0]


async def test_stopped_sibling_is_not_restarted(autojump_clock):
    """An actor that is stopped in the step in which its sibling fails ends; the other siblings restart."""
    async with open_system(supervision=TOGETHER) as system:
        first, second, born, others = await spawn_pair(system)
        await second.tell(100.0)
        await wait_all_tasks_blocked()
        first.tell_nowait(ValueError())
        second.stop()
        await trio.sleep(1)
        assert system.find(second.name) is None
        assert system.count == 1
    assert len(born) == 2
    assert len(others) == 1


async def test_failure_during_stop_restarts_no_sibling(autojump_clock):
    """An error in the clean-up of a stopped actor restarts no sibling."""
    async with open_system(supervision=TOGETHER) as system:
        first, second, born, others = await spawn_pair(system, falls=True)
        await first.tell(5.0)
        await wait_all_tasks_blocked()
        first.stop()
        await trio.sleep(1)
        assert system.find(first.name) is None
        assert await second.ask("x") == "x"
    assert born == others == [0]


class Team(Actor):
    """An actor that spawns two children and returns their references."""

    def __init__(self, births: tuple[list[float], list[float]]) -> None:
        self.births = births

    async def started(self, context: ActorContext) -> None:
        self.children = [await context.spawn(lambda b=b: Worker(b)) for b in self.births]

    async def receive(self, payload: object) -> object:
        return self.children


async def test_children_use_the_supervision_of_their_parent(autojump_clock):
    """`children=` applies to children only: the sibling of the parent is not restarted."""
    births: tuple[list[float], list[float]] = ([], [])
    async with open_system() as system:
        team = await system.spawn(lambda: Team(births), children=TOGETHER)
        first, _ = await team.ask("children")
        await first.tell(ValueError())
        await trio.sleep(1)
        assert (await team.ask("children"))[0] is first
    assert births[0] == births[1] == pytest.approx([0, 0.1])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"strategy": "one_for_al"},
            r"'one_for_al' is not a supervision strategy: did you mean 'one_for_all'",
        ),
        ({"max_restarts": -1}, r"max_restarts= must be at least 0, got -1"),
        ({"deliveries": 0}, r"deliveries= must be at least 1, got 0"),
        ({"escalate": "no"}, r"escalate= must be True or False, not 'no'"),
        ({"backoff": float("nan")}, r"backoff= must be at least 0, got nan"),
    ],
)
def test_invalid_supervision_is_rejected(options, match):
    """The error names the argument, its value and the allowed values."""
    with pytest.raises(ConfigurationError, match=match):
        Supervision(**options)
