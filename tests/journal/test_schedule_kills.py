"""kill -9 around the due times of schedules: each fires once, whatever is lost and repeated."""

import random
import signal
import subprocess
import sys
import textwrap

import trio

from actgent import BareAgent, ScriptedLLM, Sender, open_runtime
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import NextTimerRecord, ScheduleRecord, SessionCreatedRecord

SESSIONS, EACH = 5, 6
LIFE = textwrap.dedent(
    """
    import sys
    import trio
    from actgent import BareAgent, ScriptedLLM, open_runtime

    async def main(url, sessions, each):
        async with open_runtime(journal=url) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["done"], repeat=True)))
            for number in range(sessions):
                session = await agent.ensure_session("ada", f"s{number}")
                for place in range(each):
                    await session.schedule(f"{number} {place}", after=0.15 * place + 0.02 * number, key=f"k{place}")
            print("set", flush=True)
            await trio.sleep(60)

    trio.run(main, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    """
)


def live_and_die(process_server, url, seconds):
    """Run one process and kill it the given number of seconds after all schedules are set."""
    command = [sys.executable, "-c", LIFE, url, str(SESSIONS), str(EACH)]
    with process_server.popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "set\n"
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)


async def test_kills_around_firing_lose_and_repeat_nothing(tmp_path, times, process_server):
    """Over all processes each of 30 schedules causes one message with one answer, and nothing stays unfinished."""
    dice = random.Random(6)
    for run in range(times(2, 20)):
        url = f"sqlite:///{tmp_path}/{run}.db"
        for _ in range(4):
            await trio.to_thread.run_sync(live_and_die, process_server, url, dice.uniform(0.0, 0.4))
        async with open_runtime(journal=url) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["done"], repeat=True)))
            with trio.fail_after(60):
                for number in range(SESSIONS):
                    session = await agent.open_session(f"s{number}")
                    while session.schedules or session.status != "idle":  # noqa: ASYNC110 - no event says both
                        await trio.sleep(0.05)
                    texts = [message.text for message in session.history]
                    fired = sorted(
                        text.removeprefix("Running scheduled task: ") for text in texts if text != "done"
                    )
                    assert fired == [f"{number} {index}" for index in range(EACH)]
                    assert texts.count("done") == EACH
            assert await runtime.journal.unfinished("a") == []
            assert await runtime.journal.due("a") == []


CROWD = 1000
CROWDED_LIFE = textwrap.dedent(
    """
    import sys
    import trio
    from actgent import BareAgent, ScriptedLLM, open_runtime

    async def main(url, calls):
        async def answer(chat):
            nonlocal calls
            calls -= 1
            if not calls:
                print("so many", flush=True)
            if calls <= 0:
                await trio.sleep_forever()  # or all might be done before the kill comes
            return "done"

        async with open_runtime(journal=url) as runtime:
            await runtime.start(BareAgent("a", llm=ScriptedLLM(answer, keep=0)))
            await trio.sleep(60)

    trio.run(main, sys.argv[1], int(sys.argv[2]))
    """
)


def live_until(process_server, url, calls):
    """Run one process and kill it at the given number of model calls."""
    command = [sys.executable, "-c", CROWDED_LIFE, url, str(calls)]
    with process_server.popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "so many\n"
        process.send_signal(signal.SIGKILL)


async def test_kills_with_many_due_sessions_lose_and_repeat_nothing(tmp_path, times, process_server):
    """A thousand evicted sessions are due at the same time: over all processes each fires once and answers once."""
    dice = random.Random(7)
    for run in range(times(1, 10)):
        url = f"sqlite:///{tmp_path}/{run}.db"
        ids = [f"s{number}" for number in range(CROWD)]
        async with open_journal(url) as journal:
            epoch = await journal.acquire()
            for session_id in ids:
                opened = SessionCreatedRecord(owner=Sender("ada"), created_at=1.0)
                scheduled = ScheduleRecord(schedule_id="x", description=session_id, at=2.0)
                records = (opened, scheduled, NextTimerRecord(at=2.0))
                journal.enqueue_write(Entry(session_id=session_id, agent="a", records=records), epoch=epoch)
        for _ in range(3):
            await trio.to_thread.run_sync(live_until, process_server, url, dice.randint(1, CROWD // 4))
        async with open_runtime(journal=url) as runtime:
            assert 0 < len(await runtime.journal.due("a")) < CROWD
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["done"], repeat=True)))
            with trio.fail_after(300):
                while await runtime.journal.due("a") or await runtime.journal.unfinished("a"):  # noqa: ASYNC110 - the journal tells nobody
                    await trio.sleep(0.05)
            for session_id in ids:
                session = await agent.open_session(session_id)
                texts = [message.text for message in session.history]
                assert texts == [f"Running scheduled task: {session_id}", "done"]
