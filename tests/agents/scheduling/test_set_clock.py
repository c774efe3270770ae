"""Changes of the machine's clock: delays keep their length, and dates follow the clock."""

import gc
import math
import time
from datetime import UTC, datetime

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.approvals import ApprovalRequest
from actgent.limits_and_schedules.clock import Clock
from actgent.runtime import runtime as runtime_module, timer_service
from actgent.runtime.sessions import session_table

SHORT = 0.3
"""Seconds on an autojump clock, so that a busy machine causes no delay."""


class Wall:
    """The machine's clock: trio's clock plus the offset `ahead`."""

    def __init__(self, clock):
        self.ahead = 0.0
        self._clock = clock
        self._begun = time.time() - clock.current_time()

    def __call__(self):
        return self._begun + self._clock.current_time() + self.ahead


class SystemClock(Clock):
    """A clock that treats the test's clock as the system clock, which can be set."""

    def __init__(self):
        super().__init__()
        self._is_system = self.may_be_set = True

    def _elapsed(self):
        return trio.current_time()


@pytest.fixture
def wall(monkeypatch, autojump_clock):
    """Return a `Wall`. An assignment to `wall.ahead` sets the machine's clock, which is checked every 0.05 s."""
    wall = Wall(autojump_clock)
    monkeypatch.setattr(time, "time", wall)
    monkeypatch.setattr(runtime_module, "Clock", SystemClock)
    monkeypatch.setattr(timer_service, "CLOCK_CHECK_SECONDS", 0.05)
    return wall


JUMPS = [-3600, 3600]


@pytest.fixture(params=[None, "sqlite"])
def journal(request, tmp_path):
    """Return None or the address of a journal file."""
    return f"sqlite:///{tmp_path}/a.db" if request.param else None


def clerk(**options):
    return BareAgent("clerk", llm=ScriptedLLM(["ok"], repeat=True), **options)


async def heard_within(session, seconds):
    """Return the replies of the next `seconds` seconds."""
    received = []
    session.on_conversation(lambda reply: received.append(reply.text))
    await trio.sleep(seconds)
    return received


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_delay_ignores_clock_adjustments(autojump_clock, wall, journal, jump):
    """Setting the clock back or forward by an hour does not change a running delay."""
    async with open_runtime(journal=journal) as runtime:
        session = await (await runtime.start(clerk())).create_session("ada")
        await session.schedule("look", after=2 * SHORT)
        wall.ahead += jump
        assert await heard_within(session, SHORT) == []
        assert await heard_within(session, 3 * SHORT) == ["ok"]


@pytest.mark.parametrize("jump", JUMPS)
async def test_delay_set_after_a_clock_change_has_its_length(autojump_clock, wall, journal, jump):
    async with open_runtime(journal=journal) as runtime:
        session = await (await runtime.start(clerk())).create_session("ada")
        await session.schedule("far away", after=10_000)
        wall.ahead += jump
        await trio.sleep(SHORT)
        await session.schedule("look", after=SHORT)
        assert await heard_within(session, 3 * SHORT) == ["ok"]


async def test_a_date_follows_the_clock_forward(autojump_clock, wall, journal):
    """If the clock is set past a date, the schedule fires at the next check."""
    async with open_runtime(journal=journal) as runtime:
        session = await (await runtime.start(clerk())).create_session("ada")
        await session.schedule("look", at=datetime.fromtimestamp(wall() + 3600, UTC))
        assert await heard_within(session, SHORT) == []
        wall.ahead += 3600
        assert await heard_within(session, 2 * SHORT) == ["ok"]


async def test_a_date_follows_the_clock_back(autojump_clock, wall, journal):
    """If the clock is set back, a date waits until the clock reaches it."""
    async with open_runtime(journal=journal) as runtime:
        session = await (await runtime.start(clerk())).create_session("ada")
        await session.schedule("look", at=datetime.fromtimestamp(wall() + SHORT, UTC))
        wall.ahead -= 3600
        assert await heard_within(session, 3 * SHORT) == []
        wall.ahead += 3600
        assert await heard_within(session, 2 * SHORT) == ["ok"]


@pytest.mark.parametrize("jump", JUMPS)
async def test_delay_of_an_evicted_session_fires_after_a_clock_change(
    autojump_clock, wall, tmp_path, jump, monkeypatch
):
    """After a clock change an evicted session is loaded at most to check its timer, and fires after the delay."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 1)
    async with open_runtime(journal=f"sqlite:///{tmp_path}/a.db") as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", session_id="ada")
        await session.schedule("look", after=3 * SHORT)
        del session
        for _ in range(5):
            await agent.create_session("bob", "Hello.")
        received = []

        @agent.on_session
        def attach(session):
            if session.id == "ada":
                session.on_conversation(received.append)

        await trio.sleep(0.1)
        gc.collect()
        assert "ada" not in agent._opener.running.sessions
        wall.ahead += jump
        await trio.sleep(SHORT)
        assert received == []
        await trio.sleep(4 * SHORT)
        assert [str(each) for each in received] == ["ok"]


@tool(approval=ApprovalRequest("May I?", timeout=2 * SHORT))
async def pay() -> str:
    """Pay."""
    return "paid"


@pytest.mark.parametrize("jump", JUMPS)
async def test_the_deadline_of_an_approval_is_a_delay(autojump_clock, wall, journal, jump):
    """An approval expires after its timeout, whatever time the clock is set to."""
    llm = ScriptedLLM([ToolCall("pay", {}), "as you like"])
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=llm, tools=[pay]))
        session = await agent.create_session("ada")
        await session.chat("Pay.")
        await session.wait_idle()
        wall.ahead += jump
        assert await heard_within(session, SHORT) == []
        assert await heard_within(session, 3 * SHORT) == ["as you like"]


@pytest.mark.parametrize("jump", JUMPS)
async def test_the_deadline_of_a_task_is_a_delay(autojump_clock, wall, journal, jump):
    """A delegated task ends after its deadline, whatever time the clock is set to."""

    async def forever(chat):
        await trio.sleep(math.inf)

    async with open_runtime(journal=journal) as runtime:
        await runtime.start(BareAgent("worker", llm=ScriptedLLM(forever, keep=0), grace=0))
        session = await (await runtime.start(clerk())).create_session("ada")
        await session.delegate("worker", "work", deadline=2 * SHORT)
        wall.ahead += jump
        assert await heard_within(session, SHORT) == []
        assert await heard_within(session, 3 * SHORT) == ["ok"]


async def test_a_clock_adjustment_is_reported_once(monkeypatch):
    """An adjustment is reported once. A drift of 0.2 seconds is not reported."""
    wall = Wall(trio.lowlevel.current_clock())
    monkeypatch.setattr(time, "time", wall)
    clock = Clock()
    steady = clock.steady()
    wall.ahead += 0.2
    assert clock.take_adjustment() == 0
    wall.ahead -= 3600
    assert clock.take_adjustment() == pytest.approx(-3600, abs=1)
    assert clock.take_adjustment() == 0
    assert clock.steady() - steady < 5
    assert clock.now() == pytest.approx(wall(), abs=1)
    assert clock.steady_of(wall()) == pytest.approx(clock.steady(), abs=1)


async def test_a_corrected_clock_is_right_for_dates_and_delays(wall, autojump_clock):
    """A clock corrected by a cluster database stays right for dates and delays, also if the machine's clock is set later."""
    clock = SystemClock()
    right = clock.now()
    for wrong in (3600, -3600):
        wall.ahead = wrong
        clock.correct(-wrong)
        assert [clock.now(), clock.steady()] == pytest.approx([right, right], abs=0.001)
        assert clock.take_adjustment() == 0.0
    wall.ahead = 0.0
    clock.correct(0.0)
    assert [clock.now(), clock.steady()] == pytest.approx([right, right], abs=0.001)
    await trio.sleep(5)
    assert [clock.now(), clock.steady()] == pytest.approx([right + 5, right + 5], abs=0.001)
