"""Schedules with a delay, a date or a cron expression fire once at each due time, also across restarts."""

import time
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    JournalFailed,
    JournalFull,
    Priority,
    Reject,
    ScriptedLLM,
    SessionClosed,
    ToolCall,
    TooManySchedules,
    UsageError,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_wrappers import WrappedJournal
from actgent.journal.session_export_and_fork import read_sessions, write_sessions
from actgent.limits_and_schedules import clock as clock_module
from actgent.runtime.sessions import session_table
from actgent.sessions.pending.schedules import MAX_SCHEDULES
from actgent.testing import CrashingJournal

TASK = "Running scheduled task: "


def make_agent(heard=None, **options):
    """Return an agent that records the time and the text of each message in `heard`."""
    heard = [] if heard is None else heard

    def answer(chat):
        heard.append((round(trio.current_time()), chat.messages[-1].parts[0].text))
        return "done"

    agent = BareAgent("a", llm=ScriptedLLM(answer, keep=0), **options)
    agent.heard = heard
    return agent


def asked(agent):
    """Return the recorded (time, text) pairs without the marks of system messages."""
    return [(at, text.removeprefix("<system>\n").removesuffix("\n</system>")) for at, text in agent.heard]


@pytest.fixture
def at_wall_time(monkeypatch):
    """Return `at_wall_time(seconds)`, which sets the Unix time for runtimes that are opened later."""

    def set_time(seconds):
        monkeypatch.setattr(clock_module, "time", SimpleNamespace(time=lambda: seconds))

    set_time(time.time())
    return set_time


async def test_a_cron_schedule_skips_runs_while_its_message_is_suspended(
    autojump_clock, at_wall_time, journal_or_none
):
    """While a cron message is suspended no further one is queued, also after a restart. The next follows the turn."""
    times = []

    @tool(approval=True)
    async def look() -> str:
        """Look."""
        return "seen"

    def agent():
        def answer(chat):
            times.append(trio.current_time())
            return "done" if chat.messages[-1].role == "tool" else ToolCall("look", {})

        return BareAgent("a", llm=ScriptedLLM(answer, keep=0), tools=[look])

    async def due_later(session):
        await trio.sleep(600)
        assert (session.status, len(times), len(session.history)) == ("suspended", 1, 2)
        assert session._agent.inbox.waiting(session.id) == []

    async with open_runtime(journal=journal_or_none) as runtime:
        a = await runtime.start(agent())
        session = await a.create_session("ada", session_id="s")
        await session.schedule("look", cron="* * * * *")
        await trio.sleep(61)
        await due_later(session)
        if journal_or_none is None:
            await decided(session, times)
    if journal_or_none is not None:
        at_wall_time(session.clock.now())
        async with open_runtime(journal=journal_or_none) as runtime:
            a = await runtime.start(agent())
            session = await a.open_session("s")
            await due_later(session)
            await decided(session, times)


async def decided(session, asked):
    """Reject the approval and check that the cron schedule fires once at its next time."""
    await session.answer(session.approvals[0], Reject("no"))
    await session.wait_idle()
    await trio.sleep(61)
    assert [message.text for message in session.history].count(TASK + "look") == 2
    assert len(asked) == 3


class SlowJournal(WrappedJournal):
    """A journal whose commits take one second while `is_slow` is set."""

    is_slow = False

    async def commit(self, entry, *, epoch, durable=True):
        if self.is_slow:
            await trio.sleep(1)
        await self.inner.commit(entry, epoch=epoch, durable=durable)


async def test_cancelled_removal_holds_after_a_restart(autojump_clock):
    """A cancelled `unschedule()` removes the schedule, in this process and after a restart."""
    async with MemoryJournal().running() as inner:
        journal = SlowJournal(inner)
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(make_agent())
            session = await agent.create_session("ada", session_id="s")
            schedule = await session.schedule("look", after=3600)
            journal.is_slow = True
            with trio.move_on_after(0.5) as scope:
                await session.unschedule(schedule.id)
            assert scope.cancelled_caught
            assert session.schedules == ()
            journal.is_slow = False
            await session.chat("hello")
            await session.wait_idle()
        async with open_runtime(journal=inner) as runtime:
            agent = await runtime.start(make_agent())
            assert (await agent.open_session("s")).schedules == ()


async def test_cancelled_removal_is_written_without_a_message(autojump_clock):
    """A cancelled removal is written without a further message in the session."""
    async with MemoryJournal().running() as inner:
        journal = SlowJournal(inner)
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(make_agent())
            session = await agent.create_session("ada", session_id="s")
            schedule = await session.schedule("look", after=3600)
            journal.is_slow = True
            with trio.move_on_after(0.5):
                await session.unschedule(schedule.id)
        async with open_runtime(journal=inner) as runtime:
            agent = await runtime.start(make_agent())
            assert (await agent.open_session("s")).schedules == ()


class UnsureJournal(WrappedJournal):
    """A journal that writes a commit and then raises `JournalFailed` while `is_unsure` is set."""

    is_unsure = False

    async def commit(self, entry, *, epoch, durable=True):
        await self.inner.commit(entry, epoch=epoch, durable=durable)
        if self.is_unsure:
            raise JournalFailed("no answer")


async def test_failed_removal_has_no_effect(autojump_clock):
    """If `unschedule()` raises, the schedule remains, in this process and after a restart."""
    async with MemoryJournal().running() as inner:
        journal = UnsureJournal(inner)
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(make_agent())
            session = await agent.create_session("ada", session_id="s")
            schedule = await session.schedule("look", after=3600)
            journal.is_unsure = True
            with pytest.raises(JournalFailed):
                await session.unschedule(schedule.id)
            assert session.schedules == (schedule,)
        async with open_runtime(journal=inner) as runtime:
            agent = await runtime.start(make_agent())
            assert (await agent.open_session("s")).schedules == (schedule,)


@pytest.mark.parametrize("after", [0, 0.1, 0.7])
async def test_a_cancelled_schedule_does_not_fire(autojump_clock, after):
    """A cancelled `schedule()` sets nothing, even if its time is over. A second call with the same key fires once."""
    async with MemoryJournal().running() as inner:
        journal = SlowJournal(inner)
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(make_agent())
            session = await agent.create_session("ada", session_id="s")
            journal.is_slow = True
            with trio.move_on_after(0.9) as scope:
                await session.schedule("look", after=after, key="k")
            assert scope.cancelled_caught
            await trio.sleep(5)
            assert (asked(agent), session.schedules) == ([], ())
            await session.schedule("look", after=after, key="k")
            await trio.sleep(5)
            await session.schedule("look", after=after, key="k")
            await trio.sleep(5)
            assert [text for _, text in asked(agent)] == [TASK + "look"]


@pytest.fixture(params=[False, True], ids=["no journal", "journal"])
async def journal_or_none(request):
    """Yield None or an open in-memory journal."""
    if not request.param:
        yield None
        return
    async with MemoryJournal().running() as opened:
        yield opened


# --- times of firing ---------------------------------------------------------------------


async def test_delay_date_and_cron_schedule_fire_at_their_times(autojump_clock, at_wall_time):
    """Case 16 of the specification: each fires with its description, a cron expression repeatedly."""
    at_wall_time(datetime(2026, 11, 20, 8, 30, tzinfo=UTC).timestamp())
    async with make_agent() as agent:
        session = await agent.create_session("ada")
        await session.schedule("water the plants", after=60)
        await session.schedule(
            "call home", at=datetime.fromisoformat("2026-11-20T09:45"), zone="Europe/Berlin"
        )
        every = await session.schedule("stretch", cron="*/30 9 * * *")
        assert [s.description for s in session.schedules] == ["water the plants", "call home", "stretch"]
        assert every.due == datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
        await trio.sleep(86_400)
        assert [s.description for s in session.schedules] == ["stretch"]
        message = session.history[0]
    assert asked(agent) == [
        (60, TASK + "water the plants"),
        (900, TASK + "call home"),
        (1800, TASK + "stretch"),
        (3600, TASK + "stretch"),
    ]
    assert (message.sender.kind, message.text) == ("system", TASK + "water the plants")


async def test_removed_schedule_never_fires(autojump_clock):
    """A second removal returns False."""
    async with make_agent() as agent:
        session = await agent.create_session("ada")
        kept = await session.schedule("kept", after=10)
        gone = await session.schedule("gone", after=20)
        assert await session.unschedule(gone.id)
        assert not await session.unschedule(gone.id)
        await trio.sleep(100)
        assert not await session.unschedule(kept.id)
    assert asked(agent) == [(10, TASK + "kept")]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({}, "exactly one"),
        ({"after": 1, "cron": "* * * * *"}, "exactly one"),
        ({"after": -1}, "after="),
        ({"after": float("nan")}, "after="),
        ({"after": 1e300}, "before the year 10000"),
        ({"after": "60"}, "after="),
        ({"at": "2027-01-01"}, "at="),
        ({"at": datetime.fromisoformat("2027-01-01")}, "no time zone"),
        ({"at": datetime(2020, 1, 1, tzinfo=UTC)}, "is in the past"),
        ({"cron": "* * *"}, "five fields"),
        ({"cron": "* * * * *", "zone": "Moon"}, "time zone"),
    ],
)
async def test_invalid_times_are_rejected(times, expected):
    """The error names the argument, and no schedule is set."""
    async with make_agent() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match=expected):
            await session.schedule("x", **times)
        with pytest.raises(ConfigurationError, match="description"):
            await session.schedule(" ", after=1)
        assert session.schedules == ()


async def test_a_date_in_the_recent_past_fires_immediately(autojump_clock):
    """A date two seconds ago is accepted. A date with a UTC offset needs no zone."""
    async with make_agent() as agent:
        session = await agent.create_session("ada")
        moment = datetime.fromtimestamp(session.clock.now(), timezone(timedelta(hours=5))) - timedelta(
            seconds=2
        )
        await session.schedule("now", at=moment)
        await trio.sleep(1)
    assert asked(agent) == [(0, TASK + "now")]


async def test_schedules_are_bounded(autojump_clock):
    """A session with `MAX_SCHEDULES` schedules rejects more until one has fired."""
    async with make_agent() as agent:
        session = await agent.create_session("ada")
        for number in range(MAX_SCHEDULES):
            await session.schedule(f"{number}", after=10 + number * 100)
        with pytest.raises(TooManySchedules, match="100"):
            await session.schedule("one more", after=10)
        await trio.sleep(20)
        await session.schedule("one more", after=10)


async def test_closed_and_ending_sessions_reject_schedules(autojump_clock):
    """A session that ends after its reply is such a session."""
    async with make_agent() as agent:
        session = await agent.create_session("ada")
        await session.schedule("never", after=10)
        await session.aclose()
        with pytest.raises(SessionClosed):
            await session.schedule("x", after=1)
        await trio.sleep(100)
        passing = await agent.create_session("bob")
        passing._agent.lifecycle.unload_when_idle(passing._context)
        with pytest.raises((UsageError, SessionClosed)):
            await passing.schedule("x", after=1)
    assert asked(agent) == []


# --- full inboxes -----------------------------------------------------------------------


async def test_due_schedule_waits_for_a_full_inbox(autojump_clock):
    """If the session inbox is full, a due schedule waits for a free slot."""

    async def slow(chat):
        await trio.sleep(30)
        return "done"

    received_texts = []
    async with BareAgent("a", llm=ScriptedLLM(slow, keep=0), session_inbox_capacity=1) as agent:
        session = await agent.create_session("ada")
        session.on_conversation(lambda _: received_texts.append(round(trio.current_time())))
        for number in range(3):
            await session.schedule(f"{number}", after=10 + number)
        await trio.sleep(200)
        texts = [message.text for message in session.history if message.sender.kind == "system"]
    assert texts == [f"{TASK}{number}" for number in range(3)]
    assert received_texts == [40, 70, 100]


async def test_due_schedules_wait_for_a_full_agent_inbox(autojump_clock):
    """With a full agent inbox the due schedules of 60 sessions wait, and all fire."""

    async def slow(chat):
        await trio.sleep(1)
        return "done"

    done = []
    agent = BareAgent("a", llm=ScriptedLLM(slow, keep=0), inbox_capacity=5, max_concurrent_sessions=2)
    agent.on_session(lambda session: session.on_conversation(done.append) and None)
    async with agent:
        for _ in range(60):
            session = await agent.create_session("ada")
            await session.schedule("x", after=10)
        await trio.sleep(100)
    assert len(done) == 60


async def test_cron_schedule_skips_times_while_its_message_waits(autojump_clock, at_wall_time):
    """A cron schedule skips times at which its previous message is unfinished."""
    at_wall_time(datetime(2026, 11, 20, 8, 0, tzinfo=UTC).timestamp())

    async def slow(chat):
        agent.heard.append((round(trio.current_time()), ""))
        await trio.sleep(100)
        return "done"

    async with BareAgent("a", llm=ScriptedLLM(slow, keep=0)) as agent:
        agent.heard = []
        session = await agent.create_session("ada")
        await session.schedule("look", cron="* * * * *")
        await trio.sleep(590)
    assert [at for at, _ in agent.heard] == [60, 180, 300, 420, 540]


# --- over restarts -----------------------------------------------------------------------


async def test_overdue_schedule_fires_once_at_the_start(autojump_clock, at_wall_time):
    """A cron schedule that missed several times fires once and continues. Later schedules wait for their time."""
    begin = datetime(2026, 11, 20, 8, 0, tzinfo=UTC).timestamp()
    at_wall_time(begin)
    received = []
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(make_agent(received))
            session = await agent.create_session("ada", session_id="s")
            await session.schedule("missed", after=600)
            await session.schedule("later", after=7200)
            await session.schedule("line", cron="*/10 * * * *")
            await session.unschedule((await session.schedule("gone", after=600)).id)
        at_wall_time(begin + 3605)
        started = round(trio.current_time())
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(make_agent(received))
            await trio.sleep(1200)
            session = await agent.open_session("s")
            assert [s.description for s in session.schedules] == ["line", "later"]
            await trio.sleep(3000)
        fired = [message for message in session.history if message.sender.kind == "system"]
    found = [(at - started, text) for at, text in asked(agent)]
    assert found[:2] in (
        [(0, TASK + "line"), (0, TASK + "missed")],
        [(0, TASK + "missed"), (0, TASK + "line")],
    )
    assert found[2:4] == [(595, TASK + "line"), (1195, TASK + "line")]
    assert found.count((3595, TASK + "later")) == 1
    assert len({message.id for message in fired}) == len(fired) == len(found)


async def test_schedule_loads_an_evicted_session(autojump_clock, monkeypatch):
    """Schedules of evicted sessions fire in time, before and after a restart."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 3)
    received = []
    async with MemoryJournal().running() as journal:
        for life in range(2):
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(make_agent(received))
                if not life:
                    for number in range(50):
                        session = await agent.create_session("ada", session_id=f"s{number}")
                        await session.schedule(f"{number} early", after=100 + number)
                        await session.schedule(f"{number} late", after=1000 + number)
                session = None
                assert len(agent._opener.running.sessions) <= 3
                await trio.sleep(500 if not life else 2000)
                assert len(agent._opener.running.timer_service.index) == (0 if life else 50)
    assert sorted(text for _, text in asked(agent)) == sorted(
        f"{TASK}{number} {when}" for number in range(50) for when in ("early", "late")
    )


async def test_a_schedule_travels_with_its_session(autojump_clock):
    """Case 20 of the specification: an exported schedule fires in the runtime that imports it."""
    received = []
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(make_agent(received))
        session = await agent.create_session("ada", session_id="s")
        await session.schedule("travels", after=100)
        exported = await read_sessions(journal)
    async with MemoryJournal().running() as journal:
        await journal.acquire()
        await write_sessions(journal, exported)
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(make_agent(received))
            await trio.sleep(200)
    assert [text for _, text in asked(agent)] == [TASK + "travels"]


async def live(journal, heard, effects):
    """Run one process that sets schedules with keys and waits past their times. Append the fired messages to `effects`."""
    async with open_runtime(journal=journal) as runtime:
        agent = make_agent(heard)
        await runtime.start(agent)
        session = await agent.ensure_session("ada", "s")
        await session.schedule("first", after=60, key="first")
        await session.schedule("second", after=120, key="second")
        await session.schedule("line", cron="*/5 * * * *", key="line")
        await trio.sleep(400)
        await session.wait_idle()
        for schedule in session.schedules:
            await session.unschedule(schedule.id)
        effects.append([message for message in session.history if message.sender.kind == "system"])


@pytest.mark.parametrize("late", [False, True])
async def test_a_crash_at_every_write_fires_each_exactly_once(autojump_clock, at_wall_time, late):
    """A process that crashes at any write and restarts at once or late fires each schedule once."""
    begin = datetime(2026, 11, 20, 8, 1, tzinfo=UTC).timestamp()
    writes = 1
    while True:
        at_wall_time(begin)
        received, effects = [], []
        async with MemoryJournal().running() as inner:
            journal = CrashingJournal(inner, writes)
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(kill_when_dead, journal, scope)
                    await live(journal, received, effects)
                    nursery.cancel_scope.cancel()
            died = journal.is_dead
            if died:
                at_wall_time(begin + (1000 if late else 0))
                effects.clear()
                await live(inner, received, effects)
            (fired,) = effects
            ids = [message.id for message in fired]
            assert len(set(ids)) == len(ids)
            texts = [message.text.removeprefix(TASK) for message in fired]
            assert (texts.count("first"), texts.count("second")) == (1, 1), writes
            assert 1 <= texts.count("line") <= 3
            assert not await inner.unfinished("a")
        if not died:
            break
        writes += 1
    assert writes > 10


async def kill_when_dead(journal, scope):
    """Cancel the scope after the journal crashed."""
    await journal.died.wait()
    scope.cancel()


@pytest.mark.parametrize("priority", ["urgent", "high", "normal", "low"])
async def test_a_schedule_has_its_priority_after_a_restart(priority, tmp_path):
    """A restored schedule has its `Priority` and can be removed, and its session stays usable."""
    address = f"sqlite:///{tmp_path}/j.db"
    async with open_runtime(journal=address) as runtime:
        agent = await runtime.start(make_agent())
        session = await agent.create_session("ada", session_id="s")
        await session.schedule("later", after=3600, priority=priority)
    async with open_runtime(journal=address) as runtime:
        agent = await runtime.start(make_agent())
        session = await agent.open_session("s")
        (schedule,) = session.schedules
        assert schedule.priority is Priority.named(priority)
        await session.unschedule(schedule.id)
        assert not session.schedules
        await session.chat("Go on.")
        await session.wait_idle()
        assert session.history[-1].text == "done"


class FullAfterOne(MemoryJournal):
    """Journal that stores one write slowly while `is_filling` is True, and rejects each later one."""

    is_filling = False
    writes = 0

    async def _write(self, rows, heads, epoch):
        if self.is_filling:
            self.writes += 1
            if self.writes > 1:
                raise JournalFull("the disk is full")
            await trio.sleep(1)
        await super()._write(rows, heads, epoch)


async def test_removal_is_reported_although_a_later_record_fails(autojump_clock):
    """The removal is in the journal. A record of another call that cannot be written does not change that."""
    journal, results = FullAfterOne(), []
    async with journal.running(), open_runtime(journal=journal) as runtime:
        agent = await runtime.start(make_agent())
        session = await agent.create_session("ada", session_id="s0")
        schedule = await session.schedule("later", after=1000)
        journal.is_filling = True

        async def remove():
            results.append(await session.unschedule(schedule.id))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(remove)
            await trio.sleep(0.5)
            with pytest.raises(JournalFull):
                await session.interrupt(message_id="a message that has not arrived")
        journal.is_filling = False
        assert results == [True]
        assert session.schedules == ()
