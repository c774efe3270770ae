"""Writes that hang while an agent stops, restarts, or closes a session. The journal stays readable, and callers keep their limits."""

import math

import pytest
import trio
import trio.testing

from actgent import BareAgent, JournalFailed, NotRunning, ScriptedLLM, open_runtime
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.testing.session_history_consistency import find_contradictions, is_sound, message_marks


class SlowJournal(MemoryJournal):
    """Journal whose next writes wait until `release` permits them."""

    def __init__(self):
        super().__init__()
        self.permits = math.inf
        self._released = trio.Condition()

    async def release(self, count=math.inf):
        """Permit this number of writes."""
        async with self._released:
            self.permits = count
            self._released.notify_all()

    async def _write(self, rows, heads, epoch):
        async with self._released:
            while self.permits < 1:
                await self._released.wait()
            self.permits -= 1
        await super()._write(rows, heads, epoch)


@pytest.fixture
async def journal():
    async with SlowJournal().running() as opened:
        yield opened


def clerk(asked):
    """Return an agent that records its messages."""

    def answer(chat):
        asked.append(chat.messages[-1].parts[0].text)
        return "ok"

    return BareAgent("clerk", llm=ScriptedLLM(answer, keep=0))


async def check_records(journal, session_id):
    """Check that each accepted message of a session has ended once."""
    records = await journal.load(session_id, agent="clerk")
    assert [*find_contradictions(records)] == []
    marks = message_marks(records)
    assert all(is_sound(found) for found in marks.values()), marks
    return marks


async def test_chat_keeps_its_deadline_while_the_agent_stops(autojump_clock, journal):
    """The message was written after the stop. The write of its rejection has the rest of the time."""
    asked, found = [], []
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk(asked))
        session = await agent.create_session("ada", session_id="s")
        journal.permits = 0

        async def send():
            started = trio.current_time()
            with pytest.raises(JournalFailed):
                await session.chat("hi", enqueue_timeout=5)
            found.append(trio.current_time() - started)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            runtime.stop("clerk")
            await trio.sleep(1)
            await journal.release(1)
            await trio.sleep(6)
            await journal.release()
    assert found == [pytest.approx(5, abs=0.2)]
    assert asked == []
    assert await check_records(journal, "s")


@pytest.mark.parametrize("attempt", range(4))
async def test_a_restart_loads_the_rejection_of_a_message(autojump_clock, journal, attempt):
    """An agent restarts while a message is written to its session. The message is rejected, and the new agent does not answer it.

    The order of the tasks that the write wakes is random, so the test has several attempts.
    """
    asked = []
    async with open_runtime(journal=journal) as runtime:
        session = await (await runtime.start(clerk(asked))).create_session("ada", session_id="s")
        journal.permits = 0
        async with trio.open_nursery() as nursery:

            async def send():
                with pytest.raises(NotRunning):
                    await session.chat("hi", message_id="m", enqueue_timeout=60)

            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            runtime.stop("clerk")
            await trio.sleep(20)
            new = clerk(asked)
            nursery.start_soon(runtime.start, new)
            await trio.sleep(5)
            nursery.start_soon(new.open_session, "s")
            await trio.sleep(15)
            await journal.release(1)
            await trio.sleep(1)
            await journal.release()
        await trio.sleep(1)
        again = await new.open_session("s")
        await again.wait_idle()
        assert asked == []
        await again.chat("bye")
        await again.wait_idle()
    assert asked == ["bye"]
    await check_records(journal, "s")


async def test_a_schedule_that_fires_during_a_close_ends(autojump_clock, journal):
    """The message of the schedule was written, and the agent stops before the close is complete. The message is rejected."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk([]))
        session = await agent.create_session("ada", session_id="s")
        await session.schedule("wake up", after=1)
        journal.permits = 0
        await trio.sleep(2)
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(1):
                await session.aclose()
            runtime.stop("clerk")
            await journal.release()
            nursery.cancel_scope.cancel()
    async with open_runtime(journal=journal) as runtime:
        await runtime.start(clerk([]))
        await trio.sleep(60)
    assert await check_records(journal, "s")


async def test_unschedule_of_a_stopped_agent_is_refused(autojump_clock, journal):
    """The agent has started again and fires the schedule, so a removal by the earlier session object would be wrong."""
    asked = []
    async with open_runtime(journal=journal) as runtime:
        session = await (await runtime.start(clerk(asked))).create_session("ada", session_id="s")
        schedule = await session.schedule("wake up", after=10)
        runtime.stop("clerk")
        await trio.sleep(1)
        agent = await runtime.start(clerk(asked))
        await agent.open_session("s")
        with pytest.raises(NotRunning):
            await session.unschedule(schedule.id)
        await trio.sleep(20)
    assert ["wake up" in each for each in asked] == [True]
