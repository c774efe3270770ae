"""Leaving the block of a journal: it ends whatever the storage does and however often Ctrl-C is pressed."""

import logging
import sys
import textwrap
import threading
from contextlib import suppress

import pytest
import trio
import trio.testing

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.errors import Fenced, JournalFailed
from actgent.journal.group_commit.base_journal_with_group_commit import CLOSE_TIMEOUT_SECONDS
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import StateChangeRecord
from actgent.journal.sqlite.sql_statements import SqliteFile


class StubbornJournal(MemoryJournal):
    """A journal that takes some seconds to write and to release, and may raise."""

    writing = 0.0
    leaving = 0.0
    error = None

    async def _write(self, rows, heads, epoch):
        await trio.sleep(self.writing)
        await super()._write(rows, heads, epoch)

    async def _release(self):
        await trio.sleep(self.leaving)
        if self.error is not None:
            raise self.error


def changed(number):
    return StateChangeRecord(changes={"n": number})


async def test_exception_at_the_end_of_the_close_is_raised(autojump_clock):
    """The block raises the exception, and the writer tasks have ended."""

    class Clinging(MemoryJournal):
        def _release_now(self):
            raise OSError("it clings")

    with trio.fail_after(100), pytest.RaisesGroup(pytest.RaisesExc(OSError, match="clings")):
        async with Clinging().running() as journal:
            await journal.acquire()


async def test_exception_during_the_close_is_raised(autojump_clock):
    """The block raises an exception of the close and ends."""
    journal = StubbornJournal()
    journal.error = OSError("the disk is gone")
    with trio.fail_after(60), pytest.raises(OSError, match="the disk is gone"):
        async with journal.running():
            await journal.acquire()


async def test_the_error_of_the_block_comes_first(autojump_clock):
    """An error of the close does not replace the error of the block."""
    journal = StubbornJournal()
    journal.error = OSError("the disk is gone")
    with trio.fail_after(60), pytest.raises(KeyError):  # noqa: PT012 - the block fails
        async with journal.running():
            await journal.acquire()
            raise KeyError


@pytest.mark.parametrize("what", ["writing", "leaving"])
async def test_an_unresponsive_storage_does_not_block_the_close(autojump_clock, caplog, make_writer, what):
    """After the timeout the log names the sessions with unwritten steps."""
    journal = StubbornJournal()
    started = trio.current_time()
    with trio.fail_after(60):
        async with journal.running():
            writer = make_writer(journal, await journal.acquire(), "adas")
            setattr(journal, what, 1e6)
            writer.enqueue_write(changed(1))
    assert trio.current_time() - started <= CLOSE_TIMEOUT_SECONDS + 1
    log_lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert any("1 batch of 1 session unwritten" in each and "adas" in each for each in log_lines) is (
        what == "writing"
    )


@pytest.mark.parametrize("steps", range(8))
async def test_a_step_that_is_accepted_during_the_close_is_written(make_writer, steps):
    """The close either rejects or writes a step that another task enqueues some steps of the event loop later."""
    journal, accepted = MemoryJournal(), []

    async def enqueue(writer):
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        with suppress(JournalFailed):
            writer.enqueue_write(changed(1))
            accepted.append(1)

    async with trio.open_nursery() as callers, journal.running():
        writer = make_writer(journal, await journal.acquire(), "adas")
        await writer.commit(changed(0))
        callers.start_soon(enqueue, writer)
    assert sum(len(rows) for rows in journal._stored_rows.values()) == 1 + len(accepted)


async def test_write_with_unknown_outcome_is_logged(autojump_clock, caplog, make_writer):
    """The log names the write, also if its waiting task was cancelled."""
    journal = StubbornJournal()
    async with journal.running():
        writer = make_writer(journal, await journal.acquire(), "bobs")
        journal.writing = 1e6
        with trio.move_on_after(1):
            await writer.commit(changed(1))
    assert "bobs" in caplog.text


async def test_a_waiter_returns_if_a_message_was_not_stored_before_the_close(autojump_clock):
    """`wait_idle()` returns after the runtime has closed while the write of a message hung."""
    journal, returned = StubbornJournal(), []
    agent = BareAgent("helper", llm=ScriptedLLM([]))

    async def send(session):
        with pytest.raises(JournalFailed):
            await session.chat("hello")

    async def wait(session):
        await session.wait_idle()
        returned.append(session.id)

    with trio.fail_after(100):
        async with (
            trio.open_nursery() as callers,
            journal.running(),
            open_runtime(journal=journal) as runtime,
        ):
            await runtime.start(agent)
            session = await agent.create_session("ada", session_id="s1")
            journal.writing = 1e6
            callers.start_soon(send, session)
            await trio.testing.wait_all_tasks_blocked()
            callers.start_soon(wait, session)
            await trio.testing.wait_all_tasks_blocked()
            assert not returned
    assert returned == ["s1"]


INTERRUPTED = textwrap.dedent("""
    import os, signal, sys, threading, time, trio
    from actgent import BareAgent, ScriptedLLM, open_runtime
    from actgent.journal.sqlite.sql_statements import SqliteFile
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
    how, url = sys.argv[1:]
    end, pressed = SqliteFile.end, threading.Event()
    def slow(self):
        threading.Thread(target=press, daemon=True).start()
        pressed.wait()
        time.sleep(0.5 if how == "slow" else 200)
        end(self)
    SqliteFile.end = slow
    def press():
        for _ in range(2 if how == "hangs" else 1):
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
        pressed.set()
    async def main():
        async with open_runtime(journal=url) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True)))
            print((await agent.run("hi")).text, flush=True)
    try:
        trio.run(main)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
""")


@pytest.mark.parametrize("how", ["slow", "hangs"])
async def test_ctrl_c_while_it_closes_ends_the_process(tmp_path, how, process_server):
    """The first Ctrl-C lets a slow write finish; the second abandons a write that hangs. The lock is released then."""
    url = f"sqlite:///{tmp_path}/a.db"
    run = [sys.executable, "-c", INTERRUPTED, how, url]
    ended = await trio.to_thread.run_sync(
        lambda: process_server.run(run, capture_output=True, text=True, timeout=300)
    )
    assert ended.stdout.split() == ["ok", "interrupted"], ended.stderr
    async with open_journal(url) as journal:
        await journal.acquire()
        assert len(await journal.sessions()) <= 1


async def test_the_lock_is_free_when_a_hanging_write_ends(tmp_path, monkeypatch, make_writer):
    """The lock is held until an abandoned write ends, because it may still change the file."""
    goes_on, write = threading.Event(), SqliteFile.write

    def hanging(self, *args):
        goes_on.wait(60)
        write(self, *args)

    monkeypatch.setattr(SqliteFile, "write", hanging)
    monkeypatch.setattr(
        "actgent.journal.group_commit.base_journal_with_group_commit.CLOSE_TIMEOUT_SECONDS", 0.2
    )
    url = f"sqlite:///{tmp_path}/a.db"
    async with open_journal(url) as journal:
        writer = make_writer(journal, await journal.acquire())
        writer.enqueue_write(changed(1))
    monkeypatch.undo()
    async with open_journal(url) as journal:
        with pytest.raises(Fenced, match="is owned by process"):
            await journal.acquire()
        goes_on.set()
        await journal.acquire()
        assert await journal.load("s") == writer.confirmed


async def test_a_cancelled_opening_leaves_the_journal_free(tmp_path):
    """A cancelled open releases the journal, also during the read of its file."""
    url = f"sqlite:///{tmp_path}/a.db"
    for steps in range(6):
        with trio.CancelScope() as scope:
            async with open_journal(url) as journal, trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_after, steps, scope)
                await journal.acquire()
    async with open_journal(url) as journal:
        await journal.acquire()


async def _cancel_after(steps, scope):
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_memory_journal_can_be_opened_again(autojump_clock):
    """New sessions are not mixed with sessions of the first block."""
    journal = MemoryJournal()
    for session_id in ("first", "second"):
        async with journal.running(), open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
            session = await agent.create_session("ada", "Hello.", session_id=session_id)
            await session.wait_idle()
    async with journal.running():
        epochs = [await journal.acquire() for _ in range(2)]
        for session_id in ("first", "second"):
            records = await journal.load(session_id, agent="a")
            assert [type(each).__name__ for each in records].count("SessionCreatedRecord") == 1
    assert epochs == [3, 4]


async def test_session_that_is_created_while_the_runtime_stops_raises_the_error_of_the_journal(
    autojump_clock,
):
    """A caller outside of the block receives JournalFailed, because the write of the new session was stopped."""
    journal = StubbornJournal()
    errors = []

    async def create(agent):
        try:
            await agent.create_session("ada", session_id="s1")
        except Exception as error:  # noqa: BLE001 - the kind of the error is the subject
            errors.append(error)

    async with trio.open_nursery() as outside, journal.running(), open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM([])))
        journal.writing = CLOSE_TIMEOUT_SECONDS * 10
        outside.start_soon(create, agent)
        await trio.sleep(0.1)
    assert [type(error) for error in errors] == [JournalFailed]
