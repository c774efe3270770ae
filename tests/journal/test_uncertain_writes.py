"""Storages that fail during a write: no caller waits forever, and a retried step is stored once."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import trio
import trio.testing

from actgent.errors import JournalDamaged, JournalFailed, JournalFull
from actgent.journal.group_commit.row_format import encode_entry
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import (
    MessageAcceptedRecord,
    NextTimerRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    StateChangeRecord,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import Sender

KEY = SessionKey("a", "s")


class BrittleJournal(MemoryJournal):
    """A journal that fails as its fields say."""

    error = None
    """What its next writes raise."""
    after = None
    """What its next write raises when it is done; nothing can be read from then on."""
    is_gone = False
    erases = True
    damaged = None
    """The session whose head is not what was written."""
    gate = None
    """An event that writes wait for."""

    async def _write(self, rows, heads, epoch):
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        await super()._write(rows, heads, epoch)
        if self.after is not None:
            self.is_gone = True
            raise self.after

    async def _erase(self, key, epoch):
        if self.erases:
            await super()._erase(key, epoch)
        if self.error is not None:
            raise JournalFailed("perhaps erased")

    async def _read_heads(self, session_ids):
        if self.is_gone:
            raise JournalFailed("gone")
        if self.damaged in session_ids:
            raise JournalDamaged("its head", session_id=self.damaged.session_id)
        return await super()._read_heads(session_ids)


def changed(number):
    return StateChangeRecord(changes={"n": number})


async def numbers(writer):
    return [record.changes["n"] for record in await writer.load()]


@pytest.mark.parametrize("place", ["with the others", "behind another"])
async def test_waiting_callers_get_an_unexpected_error(make_writer, autojump_clock, place):
    """A bug in a storage ends the block, and a shielded task that waits for its step is resumed."""
    received = []

    async def commit(writer, number):
        with trio.CancelScope(shield=True):
            try:
                await writer.commit(changed(number))
            except JournalFailed as error:
                received.append(str(error))

    with trio.fail_after(5), pytest.raises((ExceptionGroup, ZeroDivisionError)):  # noqa: PT012 - the block fails
        async with BrittleJournal().running() as journal, trio.open_nursery() as nursery:
            epoch = await journal.acquire()
            journal.gate = trio.Event()
            writers = [make_writer(journal, epoch, f"s{number}") for number in range(3)]
            for number, writer in enumerate(writers):
                nursery.start_soon(commit, writer, number)
                if place == "behind another":  # the first one is written by itself
                    await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()
            if place == "behind another":
                journal.gate.set()
                journal.gate = trio.Event()
                await trio.sleep(0.01)
            journal.error = ZeroDivisionError()
            journal.gate.set()
    assert len(received) == (3 if place == "with the others" else 2)
    assert "ZeroDivisionError" in received[0]


async def test_a_cancelled_wait_leaves_no_step(make_writer, autojump_clock):
    """A step without records only waits, and is not retained if its group fails."""
    async with BrittleJournal().running() as journal, trio.open_nursery() as nursery:
        writer = make_writer(journal, await journal.acquire())
        journal.gate, journal.error = trio.Event(), JournalFull("no space")
        for name in ("goes first", "goes with it"):
            nursery.start_soon(_refused, make_writer(journal, writer.epoch, name))
            await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.5):
            await writer.commit()
        journal.gate.set()
        await trio.sleep(1)
        journal.error = None
        assert await numbers(writer) == []
        await writer.commit(changed(1))
        assert await numbers(writer) == [1]
        assert [summary.records for summary in await journal.sessions()] == [1]


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_cancelled_step_that_cannot_be_written_is_kept(make_writer, autojump_clock, is_first):
    """The cancelled caller returns at once. No caller would retry the step, and later steps follow it."""
    async with BrittleJournal().running() as journal, trio.open_nursery() as nursery:
        epoch = await journal.acquire()
        writer, other = make_writer(journal, epoch), make_writer(journal, epoch, "other")
        journal.gate, journal.error = trio.Event(), JournalFull("no space")
        if not is_first:
            nursery.start_soon(_refused, other)
            await trio.testing.wait_all_tasks_blocked()
        started = trio.current_time()
        with trio.move_on_after(0.5) as scope:
            await writer.commit(changed(1))
        assert scope.cancelled_caught
        assert trio.current_time() - started == 0.5
        journal.gate.set()
        await trio.sleep(0.5)
        journal.error = None
        await writer.commit(changed(2))
        assert await numbers(writer) == [1, 2]


async def _refused(writer):
    with pytest.raises(JournalFull):
        await writer.commit(changed(0))


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_retried_step_is_stored_once(make_writer, autojump_clock, is_new):
    """The first write may have succeeded with an unknown outcome."""
    async with BrittleJournal().running() as journal:
        writer = make_writer(journal, await journal.acquire())
        if not is_new:
            await writer.commit(changed(0))
        journal.after = JournalFailed("lost")
        for _ in range(2):
            with pytest.raises(JournalFailed):
                await writer.commit(changed(1))
        journal.after, journal.is_gone = None, False
        await writer.commit(changed(1), changed(2))
        assert await numbers(writer) == [0, 1, 2][is_new:]


@pytest.mark.parametrize("is_new", [True, False])
async def test_every_storage_rolls_back_an_uncertain_step(journal, writer, is_new):
    """The step is stored or missing, of a new or an existing session."""
    for is_there in (True, False):
        if not is_new:
            await writer.commit(changed(0))
        before = journal._heads.by_key.get(("a", "s"))
        if is_there:
            await writer.commit(changed(1))
        journal._heads.uncertain[SessionKey("a", "s")] = before
        await writer.commit(changed(2))
        assert await numbers(writer) == [0, 2][is_new:]
        assert [summary.records for summary in await journal.sessions()] == [2 - is_new]
        await journal.delete("s")


async def test_failed_steps_are_not_read(make_writer, autojump_clock):
    """The caller got an error, and may retry the step later."""
    async with BrittleJournal().running() as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.commit(changed(0))
        journal.after = JournalFailed("lost")
        with pytest.raises(JournalFailed):
            await writer.commit(changed(1))
        journal.after, journal.is_gone = None, False
        assert await numbers(writer) == [0]
        await writer.commit(changed(1))
        assert await numbers(writer) == [0, 1]


async def test_acquiring_again_keeps_failed_and_uncertain_steps(journal, writer, make_writer):
    """No other process has written in between: uncertain steps are rolled back, and kept steps are stored once."""
    await writer.commit(changed(0))
    before = journal._heads.by_key[KEY]
    await writer.commit(changed(1))
    journal._heads.uncertain[KEY] = before
    journal._queue.failed[KEY] = [encode_entry(writer.entry(changed(1)))]
    again = make_writer(journal, await journal.acquire())
    assert await numbers(again) == [0, 1]
    await again.commit(changed(2))
    assert await numbers(again) == [0, 1, 2]


async def test_a_returning_owner_appends_after_the_other_owners_records(postgres_url, make_writer):
    """Kept steps belong to an ended epoch, and uncertain steps may be replaced by the other owner."""
    async with open_journal(postgres_url) as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.commit(changed(0))
        journal._heads.uncertain[KEY] = journal._heads.by_key[KEY]
        journal._queue.failed[KEY] = [encode_entry(writer.entry(changed(1)))]
        journal._connection.close()
        async with open_journal(postgres_url) as other:
            await make_writer(other, await other.acquire()).commit(changed(2))
        again = make_writer(journal, await journal.acquire())
        assert await numbers(again) == [0, 2]
        await again.commit(changed(3))
        assert await numbers(again) == [0, 2, 3]


LISTS = {
    "sessions": lambda journal: journal.sessions(),
    "page": lambda journal: journal.page(),
    "agents_with_session": lambda journal: journal.agents_with_session("s"),
    "children": lambda journal: journal.children("a", "above"),
    "unfinished": lambda journal: journal.unfinished("a"),
    "waiting": lambda journal: journal.waiting(),
    "due": lambda journal: journal.due("a"),
    "to_erase": lambda journal: journal.to_erase(),
}


@pytest.mark.parametrize("name", LISTS)
async def test_failed_steps_are_not_listed(make_writer, autojump_clock, name):
    """A read rolls the step back first, so each listed session exists."""
    async with BrittleJournal().running() as journal:
        writer = make_writer(journal, await journal.acquire())
        journal.after = JournalFailed("lost")
        opened = SessionCreatedRecord(
            owner=Sender("ada"), created_at=1.0, parent_id="above", parent_agent="a"
        )
        ended = (
            (NextTimerRecord(at=5.0),)
            if name == "due"
            else (SessionClosedRecord(erase=True),)
            if name == "to_erase"
            else ()
        )
        with pytest.raises(JournalFailed):
            await writer.commit(opened, MessageAcceptedRecord(message=writer.message("hi")), *ended)
        journal.after, journal.is_gone = None, False
        assert await journal._read_heads([KEY])
        assert not await LISTS[name](journal)
        assert (await journal.counts())["working"] == 0


async def test_steps_that_become_uncertain_during_a_page_are_not_on_it(make_writer, monkeypatch):
    """Other tasks write while the page applies the last changes."""
    async with BrittleJournal().running() as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.open()

        async def list_changed(after, limit):
            journal._heads.uncertain[KEY] = None
            return []

        monkeypatch.setattr(journal, "list_changed", list_changed)
        assert await journal.page() == []


@pytest.mark.parametrize("is_erased", [True, False])
async def test_erasing_a_session_drops_only_its_failed_steps(make_writer, autojump_clock, is_erased):
    """This holds if the outcome of the erasure is unknown.

    The session continues unchanged, or does not begin without its first record.
    """
    async with BrittleJournal().running() as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.commit(changed(0))
        journal.error = JournalFull("no space")
        writer.enqueue_write(changed(1))
        await trio.sleep(0.1)
        journal.erases = is_erased
        assert sum((await journal.counts()).values()) == 1
        with pytest.raises(JournalFailed):
            await journal.delete("s", agent="a")
        journal.error = None
        assert await numbers(writer) == ([] if is_erased else [0, 1])
        assert len(await journal.sessions()) == (not is_erased)
        assert sum((await journal.counts()).values()) == (not is_erased)


async def test_damaged_session_with_kept_steps_fails_alone(make_writer, autojump_clock):
    """Another session was perhaps erased, so the storage is queried for existing sessions first."""
    async with BrittleJournal().running() as journal:
        epoch = await journal.acquire()
        writer, other = make_writer(journal, epoch), make_writer(journal, epoch, "other")
        for each in (writer, other):
            await each.commit(changed(0))
        journal.error = JournalFull("no space")
        writer.enqueue_write(changed(1))
        await trio.sleep(0.1)
        journal.erases = False
        with pytest.raises(JournalFailed):
            await journal.delete("other", agent="a")
        journal.error, journal.damaged = None, KEY
        with pytest.raises(JournalDamaged):
            await writer.commit(changed(2))
        await other.commit(changed(1))
        assert await numbers(other) == [0, 1]
        journal.damaged = None
        await writer.commit()
        assert await numbers(writer) == [0, 1]


# --- processes -------------------------------------------------------------------------------

FORK = textwrap.dedent("""
    import os, sys, time, trio
    from actgent.journal.journal_url import open_journal
    async def main(url):
        async with open_journal(url) as journal:
            await journal.acquire()
            child = os.fork()
            if not child:
                time.sleep(60)
                os._exit(0)
            print(child, flush=True)
            await trio.sleep(60)
    trio.run(main, sys.argv[1])
""")


async def test_a_fork_does_not_hold_the_journal_of_its_dead_parent(tmp_path):
    """Worker processes may outlive their parent."""
    url = f"sqlite:///{tmp_path}/a.db"
    command = [sys.executable, "-c", FORK, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:  # noqa: ASYNC220 - starts at once
        child = int(await trio.to_thread.run_sync(parent.stdout.readline))
        parent.kill()
        parent.wait()
        try:
            async with open_journal(url) as journal:
                await journal.acquire()
        finally:
            os.kill(child, signal.SIGKILL)


# --- PostgreSQL ------------------------------------------------------------------------------


async def test_commit_with_a_lost_response_is_stored_once(link, make_writer, monkeypatch):
    """The server committed and was then unreachable: a retry does not store the step twice."""
    monkeypatch.setattr("actgent.journal.postgres.connections.RECONNECT_SECONDS", 1.0)
    link, url = link
    async with open_journal(url) as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.commit(changed(0))
        link.cuts = True
        with pytest.raises(JournalFailed):
            await writer.commit(changed(1))
        assert link.is_down
        with pytest.raises(JournalFailed):
            await writer.commit(changed(1))
        link.is_down = False
        await writer.commit(changed(1), changed(2))
        assert await numbers(writer) == [0, 1, 2]


async def test_lock_of_a_lost_connection_is_not_reported_as_another_owner(
    postgres_url, make_writer, monkeypatch
):
    """The error says that no other process owns the journal. The next attempt succeeds after the server noticed."""
    monkeypatch.setattr("actgent.journal.postgres.connections.RECONNECT_SECONDS", 1.0)
    async with open_journal(postgres_url) as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.commit(changed(0))
        psycopg = pytest.importorskip("psycopg")
        with psycopg.connect(postgres_url.partition("?")[0], autocommit=True) as old:
            journal._connection.close()
            old.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [f"actgent {journal._schema}"])
            with pytest.raises(JournalFailed, match="connection to the journal was lost"):
                await writer.commit(changed(1))
        await writer.commit(changed(1))
        assert await numbers(writer) == [0, 1]


async def test_tools_that_block_all_threads_do_not_hold_up_the_journal(postgres_url, make_writer):
    """The journal has its own threads."""
    limiter, release = trio.to_thread.current_default_thread_limiter(), threading.Event()
    async with open_journal(postgres_url) as journal, trio.open_nursery() as nursery:
        writer = make_writer(journal, await journal.acquire())
        for _ in range(int(limiter.total_tokens)):
            nursery.start_soon(trio.to_thread.run_sync, release.wait)
        await trio.sleep(0.1)
        try:
            with trio.fail_after(60):
                await writer.commit(changed(0))
        finally:
            release.set()
        assert await numbers(writer) == [0]


async def test_server_detects_a_lost_client_within_a_minute(postgres_url):
    """The lock of a machine without power is released within a minute instead of the system's two hours."""
    async with open_journal(postgres_url) as journal:
        await journal.acquire()
        settings = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
        idle, interval, count = [
            int(journal._connection.execute(f"SHOW {name}").fetchone()[0]) for name in settings
        ]
        assert 0 < idle + interval * count <= 60
