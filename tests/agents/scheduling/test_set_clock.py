"""A machine's clock that somebody sets: delays take as long as was said, dates follow the clock."""

import gc
import math
import time
from datetime import UTC, datetime

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.approvals import Ask
from actgent.control.clock import Clock
from actgent.control.durable_timer import TIMER_TOLERANCE_SECONDS
from actgent.runtime import session_table, timer_service

REAL = time.time
SHORT = 0.3
"""Seconds of real time: what is tested here is the system's own clock."""
PATIENCE = 60
"""Seconds after which something does not come, on however busy a machine; the clock is set by an hour."""


class Wall:
    """The clock on the wall."""

    def __init__(self):
        self.ahead = 0.0
        self.stands = None

    def __call__(self):
        return (self.stands or REAL()) + self.ahead


@pytest.fixture
def wall(monkeypatch):
    """`wall.ahead = seconds` sets the machine's clock; it is looked at often."""
    wall = Wall()
    monkeypatch.setattr(time, "time", wall)
    monkeypatch.setattr(timer_service, "CLOCK_CHECK_SECONDS", 0.05)
    return wall


JUMPS = [-3600, 3600]


@pytest.fixture(params=[None, "sqlite"])
def journal(request, tmp_path):
    """No journal, and one in a file."""
    return f"sqlite:///{tmp_path}/a.db" if request.param else None


def clerk(**options):
    return BareAgent("clerk", llm=ScriptedLLM(["ok"], repeat=True), **options)


class Ear:
    """Hears the one reply of a session, from before it is asked for."""

    def __init__(self, session):
        self.heard, self.came = [], trio.Event()
        self._begun = trio.current_time()
        session.on_conversation(self.hear)

    def hear(self, reply):
        self.heard.append((reply.text, trio.current_time() - self._begun + TIMER_TOLERANCE_SECONDS))
        self.came.set()

    async def seconds_until(self, text, session):
        """How long the reply took, of which no second comes."""
        with trio.fail_after(PATIENCE):
            await self.came.wait()
            await session.wait_idle()
        ((said, seconds),) = self.heard
        assert said == text
        return seconds


async def heard_within(session, seconds):
    """The replies that come in so many seconds."""
    heard = []
    session.on_conversation(lambda reply: heard.append(reply.text))
    await trio.sleep(seconds)
    return heard


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_delay_takes_as_long_as_was_said(wall, journal, jump):
    """Set back or forward after it was set, by an hour: neither later nor at once."""
    async with open_runtime(journal=journal) as runtime:
        session = await (await runtime.start(clerk())).create_session("ada")
        ear = Ear(session)
        await session.schedule("look", after=2 * SHORT)
        wall.ahead += jump
        assert await ear.seconds_until("ok", session) >= 2 * SHORT


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_delay_that_is_set_after_the_jump(wall, journal, jump):
    """The next delay is as long as any."""
    async with open_runtime(journal=journal) as runtime:
        session = await (await runtime.start(clerk())).create_session("ada")
        await session.schedule("far away", after=10_000)
        wall.ahead += jump
        await trio.sleep(SHORT)
        ear = Ear(session)
        await session.schedule("look", after=SHORT)
        assert await ear.seconds_until("ok", session) >= SHORT


async def test_a_date_follows_the_clock_forward(wall, journal):
    """What is due by then comes soon."""
    async with open_runtime(journal=journal) as runtime:
        session = await (await runtime.start(clerk())).create_session("ada")
        await session.schedule("look", at=datetime.fromtimestamp(wall() + 3600, UTC))
        assert await heard_within(session, SHORT) == []
        ear = Ear(session)
        wall.ahead += 3600
        await ear.seconds_until("ok", session)


async def test_a_date_follows_the_clock_back(wall, journal):
    """It waits until the clock says so again, without being looked at all the time."""
    async with open_runtime(journal=journal) as runtime:
        session = await (await runtime.start(clerk())).create_session("ada")
        wall.stands = wall()  # however long the next step takes, it is set back before the date
        await session.schedule("look", at=datetime.fromtimestamp(wall() + SHORT, UTC))
        wall.stands, wall.ahead = None, -3600
        assert await heard_within(session, 3 * SHORT) == []
        ear = Ear(session)
        wall.ahead += 3600
        await ear.seconds_until("ok", session)


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_delay_of_a_session_that_sleeps(wall, tmp_path, jump, monkeypatch):
    """Only the earliest time of it is in memory: it is looked at, and waits on where it is not due."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 1)
    async with open_runtime(journal=f"sqlite:///{tmp_path}/a.db") as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", session_id="ada")
        ear = Ear(session)
        await session.schedule("look", after=10 * SHORT)
        del session
        for _ in range(5):
            await agent.create_session("bob", "Hello.")

        @agent.on_session
        def attach(session):
            if session.id == "ada":
                session.on_conversation(ear.hear)

        await trio.sleep(0.1)
        gc.collect()
        assert "ada" not in agent._opener.running.sessions
        wall.ahead += jump
        with trio.fail_after(PATIENCE):
            await ear.came.wait()
        assert await ear.seconds_until("ok", await agent.open_session("ada")) >= 10 * SHORT


@tool(approval=Ask("May I?", timeout=2 * SHORT))
async def pay() -> str:
    """Pay."""
    return "paid"


@pytest.mark.parametrize("jump", JUMPS)
async def test_the_deadline_of_an_approval_is_a_delay(wall, journal, jump):
    """What nobody decides expires as late as was said."""
    llm = ScriptedLLM([ToolCall("pay", {}), "as you like"])
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=llm, tools=[pay]))
        session = await agent.create_session("ada")
        ear = Ear(session)
        await session.chat("Pay.")
        await session.wait_idle()
        wall.ahead += jump
        assert await ear.seconds_until("as you like", session) >= 2 * SHORT


@pytest.mark.parametrize("jump", JUMPS)
async def test_the_deadline_of_a_task_is_a_delay(wall, journal, jump):
    """A task ends as late as was said."""

    async def forever(chat):
        await trio.sleep(math.inf)

    async with open_runtime(journal=journal) as runtime:
        await runtime.start(BareAgent("worker", llm=ScriptedLLM(forever, keep=0), grace=0))
        session = await (await runtime.start(clerk())).create_session("ada")
        ear = Ear(session)
        await session.delegate("worker", "work", deadline=2 * SHORT)
        wall.ahead += jump
        assert await ear.seconds_until("ok", session) >= 2 * SHORT


async def test_a_jump_is_told_once(wall):
    """By how much the clock was set since the last look; two clocks that differ a little are none."""
    clock = Clock()
    steady = clock.steady()
    wall.ahead += 0.2
    assert clock.look() == 0
    wall.ahead -= 3600
    assert clock.look() == pytest.approx(-3600, abs=1)
    assert clock.look() == 0
    assert clock.steady() - steady < 5
    assert clock.now() == pytest.approx(wall(), abs=1)
    assert clock.steady_of(wall()) == pytest.approx(clock.steady(), abs=1)
