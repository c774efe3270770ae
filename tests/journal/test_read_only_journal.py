"""A journal that is read while another process owns and writes it."""

import contextlib
import os
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
import trio

from actgent.errors import ConfigurationError, JournalDamaged, JournalFailed, JournalVersion, UsageError
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import (
    MessageAcceptedRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    StateChangeRecord,
    SuspensionRecord,
)
from actgent.journal.session_list_queries import SessionFilter, SessionKey
from actgent.journal.sqlite import SQLiteReader, read_only_journal, sql_statements
from actgent.messages import Message, Sender, Text

OWNER = """
import sys
import trio
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import StateChangeRecord, SessionCreatedRecord
from actgent.messages import Sender

URL, SESSIONS, SIZE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

async def main():
    async with open_journal(URL) as journal:
        epoch = await journal.acquire()

        async def write(number, *records):
            await journal.commit(Entry(session_id=f"s{number}", agent="a", records=records), epoch=epoch)

        for number in range(SESSIONS):
            if await journal.head("a", f"s{number}") is None:
                await write(number, SessionCreatedRecord(owner=Sender("ada"), created_at=1.0))
        print("ready", flush=True)
        step = 0
        for line in sys.stdin if not SIZE else iter(lambda: "", None):
            step += 1
            await write(step % SESSIONS, StateChangeRecord(changes={"step": step, "text": "x" * SIZE}))
            if not SIZE:
                print(step, flush=True)

trio.run(main)
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    """Return the address of a journal that one process may own and another may read."""
    return (
        f"sqlite:///{tmp_path}/journal.db"
        if request.param == "sqlite"
        else request.getfixturevalue("postgres_url")
    )


@pytest.fixture
def owned(process_server):
    """A process that owns a journal for a `with` block. Without a size it writes a step for each input line."""

    @contextlib.contextmanager
    def start(url, sessions=3, size=0):
        command = [sys.executable, "-c", OWNER, url, str(sessions), str(size)]
        with process_server.popen(command, stdin=-1, stdout=-1) as owner:
            try:
                assert owner.stdout.readline() == b"ready\n"
                yield owner
            finally:
                owner.kill()

    return start


def write_step(owner):
    owner.stdin.write(b"\n")
    return int(owner.stdout.readline())


async def test_each_read_sees_the_confirmed_records(url, owned):
    """The owner writes meanwhile; no read is cached."""
    with owned(url) as owner:
        async with open_journal(url, read_only=True) as journal:
            assert [each.records for each in await journal.sessions()] == [1, 1, 1]
            for _ in range(10):
                step = await trio.to_thread.run_sync(write_step, owner)
                (*_, newest) = await journal.load(f"s{step % 3}")
                assert newest.changes["step"] == step
                (first,) = await journal.page(limit=1)
                assert first.session_id == f"s{step % 3}"
                assert first == await journal.head("a", first.session_id)
            assert await journal.counts() == {"idle": 3, "working": 0, "suspended": 0, "closed": 0}


async def test_reads_during_fast_writes_are_consistent(url, owned, times):
    """The log restarts several times; reads have no gap and never go back in time."""
    with owned(url, sessions=2, size=2_000):
        async with open_journal(url, read_only=True) as journal:
            seen, number = {0: 0, 1: 0}, 0
            with trio.fail_after(60):
                while number < times(20, 500) or not all(
                    seen.values()
                ):  # each look reads all that was written so far
                    records = await journal.load(f"s{number % 2}")
                    steps = [each.changes["step"] for each in records[1:]]
                    assert steps == list(range(2 - number % 2, 2 * len(steps) + 1, 2))[: len(steps)]
                    assert len(steps) >= seen[number % 2]
                    seen[number % 2] = len(steps)
                    summaries = await journal.sessions()
                    assert abs(summaries[0].records - summaries[1].records) <= 1
                    number += 1


async def test_long_read_is_consistent(tmp_path, owned):
    """The owner's log grows beyond its bound, and restarts as soon as no reader is active."""
    url, log = f"sqlite:///{tmp_path}/journal.db", tmp_path / "journal.db-wal"
    with owned(url, sessions=2) as owner:
        async with open_journal(url, read_only=True) as journal:
            heads = []

            def look(found):
                heads.append(found.list_heads(None))
                for _ in range(400):  # each of several pages
                    write_step(owner)
                assert found.list_heads(None) == heads[-1]
                return heads[-1]

            assert await journal._run(look) == heads[-1]
            assert len(heads) <= 2  # the first may come too soon after a change of the file itself
            assert log.stat().st_size > 1.2 * 4096 * sql_statements.LOG_PAGES
            started = log.read_bytes()[:32]
            for _ in range(sql_statements.LOG_STEP):
                await trio.to_thread.run_sync(write_step, owner)
            assert log.read_bytes()[:32] != started
            records = sum(each.records for each in await journal.sessions())
            assert records == await trio.to_thread.run_sync(write_step, owner) + 1


HOLDER = """
import sys
from pathlib import Path
from actgent.journal.sqlite.lock_file import holding_reader_lock

with holding_reader_lock(Path(sys.argv[1])):
    print("looking", flush=True)
    sys.stdin.readline()
"""


async def test_a_permanent_reader_does_not_let_the_log_grow_without_bound(
    tmp_path, process_server, monkeypatch
):
    """The log restarts at its bound, and interrupted reads are repeated."""
    monkeypatch.setattr(sql_statements, "LOG_PAGES", 50)
    monkeypatch.setattr(sql_statements, "MOST_LOG_PAGES", 200)
    monkeypatch.setattr(sql_statements, "LOG_STEP", 10)
    path, rounds = tmp_path / "journal.db", set()
    async with open_journal(f"sqlite:///{path}") as journal:
        epoch = await journal.acquire()

        async def write(*records):
            await journal.commit(Entry(session_id="s", agent="a", records=records), epoch=epoch)

        await write(SessionCreatedRecord(owner=Sender("ada"), created_at=1.0))
        command = [sys.executable, "-c", HOLDER, str(path)]
        with process_server.popen(command, stdin=-1, stdout=-1) as holder:
            assert holder.stdout.readline() == b"looking\n"
            for number in range(200):
                await write(StateChangeRecord(changes={"n": number}))
                rounds.add(path.with_name("journal.db-wal").read_bytes()[:32])
            holder.stdin.close()
        assert 2 < len(rounds) < 10
        size = path.with_name("journal.db-wal").stat().st_size
        assert 200 * 4096 < size < 300 * 4096
        assert len(await journal.load("s")) == 201


async def test_reader_does_not_disturb_the_owner(url, owned):
    """The owner writes while a reader is open, and the next owner starts while one is open."""
    with owned(url) as owner:
        async with open_journal(url, read_only=True) as journal:
            await journal.sessions()
            assert write_step(owner) == 1
            owner.kill()
            owner.wait()
            with owned(url) as next_owner:
                assert write_step(next_owner) == 1
            assert len(await journal.load("s1")) > 1


async def test_write_methods_are_rejected(url, owned):
    """The error names the method, before anything is sent."""
    with owned(url):
        async with open_journal(url, read_only=True) as journal:
            entry = Entry(session_id="s", agent="a", records=())
            for write in (
                journal.acquire,
                lambda: journal.commit(entry, epoch=1),
                lambda: journal.erase_trees([SessionKey("a", "s0")]),
                lambda: journal.delete("s0"),
                lambda: journal.backup(Path("x")),
            ):
                with pytest.raises(UsageError, match="read-only"):
                    await write()
            with pytest.raises(UsageError, match="read-only"):
                journal.enqueue_write(entry, epoch=1)
    with pytest.raises(UsageError, match="is not open: use it inside"):
        await journal.sessions()


async def test_lists_are_those_of_the_owner(url):
    """Each list of a journal is equal with and without owning it."""
    async with open_journal(url) as journal:
        epoch = await journal.acquire()

        async def write(session_id, agent, *records):
            await journal.commit(Entry(session_id=session_id, agent=agent, records=records), epoch=epoch)

        message = Message(session_id="s1", sender=Sender("ada"), parts=(Text("hi"),))
        await write(
            "s1",
            "a",
            SessionCreatedRecord(owner=Sender("ada"), created_at=1.0),
            MessageAcceptedRecord(message=message),
        )
        below = SessionCreatedRecord(owner=Sender("ada"), created_at=2.0, parent_id="s1", parent_agent="a")
        await write("s2", "b", below, SuspensionRecord(message_id="m", ids=("i",)))
        await write(
            "s3",
            "a",
            SessionCreatedRecord(owner=Sender("bob"), created_at=3.0),
            SessionClosedRecord(erase=True),
        )
        expected = await lists(journal)
    async with open_journal(url, read_only=True) as journal:
        assert await lists(journal) == expected
        assert await journal.load("nobody") == ()


async def lists(journal):
    return [
        await journal.sessions(),
        await journal.sessions("a"),
        await journal.unfinished("a"),
        await journal.waiting(),
        await journal.due("a"),
        await journal.suspended("b"),
        await journal.to_erase(),
        await journal.agents_with_session("s2"),
        await journal.head("b", "s2"),
        await journal.head("b", "s1"),
        await journal.children("a", "s1"),
        await journal.page(SessionFilter(owner="ada", oldest_first=True)),
        await journal.page(limit=1),
        await journal.counts(),
        await journal.counts("a"),
        await journal.load("s1"),
    ]


async def test_wrong_address_creates_no_journal(url, tmp_path):
    with pytest.raises(ConfigurationError, match=r"no such file|no journal"):
        async with open_journal(url, read_only=True):
            pass
    with pytest.raises(ConfigurationError, match="memory"):
        open_journal("memory:", read_only=True)
    assert list(tmp_path.iterdir()) == []


# --- the file of SQLite ------------------------------------------------------------------------


@pytest.fixture
async def path(tmp_path):
    """Return a file with one session and without an owner."""
    path = tmp_path / "journal.db"
    async with open_journal(f"sqlite:///{path}") as journal:
        epoch = await journal.acquire()
        records = (
            SessionCreatedRecord(owner=Sender("ada"), created_at=1.0),
            StateChangeRecord(changes={"n": 1}),
        )
        await journal.commit(Entry(session_id="s", agent="a", records=records), epoch=epoch)
    return path


async def test_reading_writes_and_creates_no_file(path):
    """No file is created in a folder without write permission or next to the journal file."""
    path.with_name("journal.db-lock").unlink()
    before = {each.name: (each.read_bytes(), each.stat().st_mtime_ns) for each in path.parent.iterdir()}
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        async with open_journal(f"sqlite:///{path}", read_only=True) as journal:
            assert len(await journal.load("s")) == 2
    finally:
        path.parent.chmod(0o700)
    assert before == {
        each.name: (each.read_bytes(), each.stat().st_mtime_ns) for each in path.parent.iterdir()
    }


async def test_a_file_whose_owner_died_is_read_with_its_log(tmp_path, owned):
    """After kill -9 the confirmed records are only in the log, which is not changed."""
    url = f"sqlite:///{tmp_path}/journal.db"
    with owned(url) as owner:
        assert write_step(owner) == 1
    log = (tmp_path / "journal.db-wal").read_bytes()
    async with open_journal(url, read_only=True) as journal:
        assert len(await journal.load("s1")) == 2
    assert (tmp_path / "journal.db-wal").read_bytes() == log
    log_path = tmp_path / "journal.db-wal"
    log_path.write_bytes(b"")
    with pytest.raises(JournalDamaged, match="log") as raised:
        async with open_journal(url, read_only=True):
            pass
    assert "recover" in raised.value.__notes__[0]


async def test_owner_process_cannot_open_a_read_only_journal(path):
    """A second open file would drop the locks of the process when it is closed."""
    async with open_journal(f"sqlite:///{path}") as journal:
        await journal.acquire()
        with pytest.raises(ConfigurationError, match="this process"):
            async with open_journal(f"sqlite:///{path}", read_only=True):
                pass


async def test_reader_does_not_migrate_another_version(path):
    """The error of an older version says how to read it; nothing is changed."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 2")
    with pytest.raises(JournalVersion, match="start its agents once"):
        async with open_journal(f"sqlite:///{path}", read_only=True):
            pass
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)


async def test_reader_reports_damage_as_the_owner_does(path):
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE steps SET body = x'00'")
        database.commit()
    async with open_journal(f"sqlite:///{path}", read_only=True) as journal:
        assert len(await journal.sessions()) == 1
        with pytest.raises(JournalDamaged, match="'s'"):
            await journal.load("s")


async def test_a_read_fails_if_the_file_keeps_changing(path, monkeypatch):
    """Pages of different times are never mixed."""
    journal = SQLiteReader(path)
    async with journal.running():
        monkeypatch.setattr(read_only_journal, "PAUSE", 0.0)
        looks = []

        def look(file):
            looks.append(file.list_heads(None))
            copy = path.with_name("copy")
            shutil.copyfile(path, copy)
            copy.replace(path)
            os.utime(path, (1, len(looks)))

        with pytest.raises(JournalFailed, match="too fast"):
            await journal._run(look)
        assert len(looks) == read_only_journal.TRIES
        assert len(await journal.sessions()) == 1
