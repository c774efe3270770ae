"""The timer service fires the timers of sessions when they are due."""

import logging
import random

import attrs
import pytest
import trio

from actgent import BareAgent, InboxFull, Message, ScriptedLLM, Sender, Text, open_runtime
from actgent.limits_and_schedules import durable_timer
from actgent.limits_and_schedules.durable_timer import DurableTimer
from actgent.runtime import timer_service


@attrs.frozen(eq=False)
class Bell(DurableTimer):
    """A timer that raises its errors first and is dropped after a successful firing. Records the firing times."""

    rung: list = attrs.field(factory=list)
    errors: list = attrs.field(factory=list)


async def ring(context, bell):
    """Fire a `Bell`."""
    await trio.lowlevel.checkpoint()
    bell.rung.append(trio.current_time())
    if bell.errors:
        raise bell.errors.pop()
    context.drop_timer(bell.id)


def handle(agent, kind, handler):
    """Register a timer handler for a kind of timer at an agent."""
    service = agent.__actgent_use__().running.timer_service
    make = service._make_handlers
    service._make_handlers = lambda: {**make(), kind: handler}


@pytest.fixture
async def session():
    """Yield a session of a running agent, at time 0 of an autojump clock."""
    async with BareAgent("a", llm=ScriptedLLM(["hi"], repeat=True)) as agent:
        handle(agent, Bell, ring)
        yield await agent.create_session("ada")


def bell(session, seconds, **options):
    """Set and return a `Bell` that is due at `seconds` of trio's clock."""
    clock = session._agent.clock
    made = Bell(f"bell {seconds}", clock.now() + seconds - trio.current_time(), **options)
    session._context.set_timer(made)
    return made


async def test_each_timer_fires_once_at_its_time(session, autojump_clock):
    """Timers fire once in time, in any order of their creation. Dropped timers do not fire."""
    bells = [bell(session, seconds) for seconds in (50, 3600 * 24 * 30, 10, 20)]
    session._context.drop_timer("bell 20")
    await trio.sleep(3600 * 24 * 31)
    assert [[round(time) for time in each.rung] for each in bells] == [[50], [3600 * 24 * 30], [10], []]
    assert len(session._agent.timer_service.index) == 0


async def test_close_timers_fire_together(session, autojump_clock):
    """Timers that follow closely fire together, so that they share a journal commit. A lone timer fires in time."""
    bells = [bell(session, seconds) for seconds in (10, 10.01, 10.02, 10.04, 11, 11.5)]
    await trio.sleep(20)
    together = 10 + timer_service.COALESCE_SECONDS
    rung = [each.rung[0] for each in bells]
    assert rung == pytest.approx(
        [10, together, together, together, 11, 11.5], abs=2 * durable_timer.TIMER_TOLERANCE_SECONDS
    )


async def test_timer_can_be_set_again(session, autojump_clock):
    """A timer that is set again fires at the last time only."""
    for seconds in (100, 10, 300):
        moved = Bell("moved", session._agent.clock.now() + seconds)
        session._context.set_timer(moved)
    await trio.sleep(1000)
    assert [round(time) for time in moved.rung] == [300]


async def test_failed_timer_is_retried_without_delaying_others(session, autojump_clock, caplog):
    """A timer is retried after 1 second if the inbox was full, and after 30 seconds for other errors."""
    full = bell(session, 10, errors=[InboxFull("x", 1)])
    broken = bell(session, 20, errors=[OSError("disk"), RuntimeError("bug")])
    good = bell(session, 20.0005)
    with caplog.at_level(logging.ERROR):
        await trio.sleep(200)
    assert [round(time) for time in full.rung] == [10, 11]
    assert [round(time) for time in broken.rung] == [20, 50, 80]
    assert [round(time) for time in good.rung] == [20]
    assert "bell 20 of session" in caplog.text


async def test_closing_a_session_removes_its_timers(session, autojump_clock):
    closed = bell(session, 10)
    await session.aclose()
    assert len(session._agent.timer_service.index) == 0
    await trio.sleep(100)
    assert closed.rung == []


async def test_many_due_timers_fire_a_few_at_a_time(autojump_clock):
    """A thousand timers of one moment all fire, at most `WORKERS` at a time."""
    running, maximum = set(), 0

    async def ring_slowly(context, bell):
        nonlocal maximum
        running.add(bell)
        maximum = max(maximum, len(running))
        await ring(context, bell)
        await trio.sleep(0.01)
        running.discard(bell)

    async with BareAgent("a", llm=ScriptedLLM(["hi"], repeat=True)) as agent:
        handle(agent, Bell, ring_slowly)
        bells = []
        for _ in range(1000):
            session = await agent.create_session("ada")
            bells.append(Bell("b", session._agent.clock.now() + 10))
            session._context.set_timer(bells[-1])
        await trio.sleep(60)
        assert [len(each.rung) for each in bells] == [1] * 1000
        assert maximum == timer_service.WORKERS


async def test_schedules_use_at_most_half_of_an_inbox(autojump_clock):
    """400 schedules fill at most half of the inbox, so that messages of users are accepted. The agent stays busy."""

    async def answer(chat):
        await trio.sleep(dice.uniform(0, 2))
        if "hello" not in chat.messages[-1].parts[0].text:
            ended.append(trio.current_time())
        return "done"

    async def call(context, bell):
        """Fire a `Bell` and send a message to its session after half a second."""
        await ring(context, bell)
        await trio.sleep(0.5)
        message = Message(session_id=context.id, sender=Sender("bell", "system"), parts=(Text("now"),))
        try:
            await agent._opener.admission.accept_due(context, message)
        except InboxFull:
            turned_away.append(context.id)
            raise

    ended, turned_away, dice = [], [], random.Random(6)
    async with BareAgent(
        "a", llm=ScriptedLLM(answer, keep=0), inbox_capacity=50, max_concurrent_sessions=20
    ) as agent:
        handle(agent, Bell, call)
        callers = []
        for _ in range(400):
            session = await agent.create_session("ada")
            callers.append(Bell("b", session._agent.clock.now() + 10))
            session._context.set_timer(callers[-1])
        ada = await agent.create_session("ada")
        for _ in range(30):
            await trio.sleep(1)
            assert agent._opener.running.inbox.statistics().waiting <= 25
            await ada.chat("hello", enqueue_timeout=0)
        await trio.sleep(300)
    assert [len(each.rung) for each in callers] == [1] * 400
    assert turned_away == []
    assert ended[-1] < 10 + 400 / 20 + 3


async def test_clock_change_is_detected(session, autojump_clock, monkeypatch):
    """After the clock is set forward, due timers fire within `CLOCK_CHECK_SECONDS`."""
    clock = session._agent.clock
    monkeypatch.setattr(clock, "may_be_set", True)
    late = bell(session, 3600)
    await trio.sleep(5)
    monkeypatch.setattr(clock, "_opened_at", clock._opened_at + 3600)
    await trio.sleep(timer_service.CLOCK_CHECK_SECONDS + 1)
    assert len(late.rung) == 1


async def test_changed_timers_keep_few_stale_entries(session, autojump_clock):
    """A timer that is set ten thousand times keeps a bounded number of stale entries."""
    index = session._agent.timer_service.index
    for number in range(10_000):
        session._context.set_timer(Bell("same", session._agent.clock.now() + 1000 - number * 1e-3))
    assert len(index._heap) <= 2 * durable_timer.MIN_COMPACT_ENTRIES
    assert len(index) == 1
    await trio.lowlevel.checkpoint()


async def test_drain_does_not_wait_for_timers(autojump_clock):
    """A runtime closes without waiting for its timers, and they do not fire later."""
    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
        handle(agent, Bell, ring)
        session = await agent.create_session("ada")
        never = bell(session, 100)
    assert trio.current_time() < 1
    await trio.sleep(1000)
    assert never.rung == []
