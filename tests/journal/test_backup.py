"""Copies of a journal during writes."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.cli.main import main
from actgent.errors import ConfigurationError, JournalDamaged, JournalError, JournalFailed, JournalFull
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import StateChangeRecord
from actgent.journal.sqlite import back_up, backup as backups, find_problems, recover_file

WRITING = """
    import sys, trio
    from actgent.journal.journal_interface import Entry
    from actgent.journal.journal_url import open_journal
    from actgent.journal.record_types import StateChangeRecord, SessionCreatedRecord
    from actgent.messages import Sender

    async def main():
        async with open_journal(f"sqlite:///{sys.argv[1]}") as journal:
            epoch = await journal.acquire()
            for number in range(8):
                opened = SessionCreatedRecord(owner=Sender("ada"), created_at=1.0)
                await journal.commit(Entry(session_id=f"s{number}", agent="a", records=(opened,)), epoch=epoch)
            async def write(number):
                for step in range(1, 100_000):
                    changed = StateChangeRecord(changes={"n": step, "text": "x" * 3000})
                    await journal.commit(Entry(session_id=f"s{number}", agent="a", records=(changed,)), epoch=epoch)
                    if not number:
                        print(step, flush=True)
                    await trio.sleep(float(sys.argv[2]))
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(write, number)

    trio.run(main)
"""


@pytest.fixture
def write(tmp_path, process_server):
    """Return a function `write(pause)` that starts a process that writes a journal, and the path of the journal."""
    started = []

    def start(pause):
        path = tmp_path / "live.db"
        started.append(
            process_server.popen(
                [sys.executable, "-c", textwrap.dedent(WRITING), path, pause], stdout=subprocess.PIPE
            )
        )
        return started[-1], path

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def clear(path, *suffixes):
    for suffix in suffixes:
        Path(f"{path}{suffix}").unlink(missing_ok=True)


async def numbers_in(path):
    """Return the changes of each session in a journal file."""
    async with open_journal(f"sqlite:///{path}") as journal:
        await journal.acquire()
        records = [await journal.load(each.session_id) for each in await journal.sessions()]
    return [[record.changes["n"] for record in each[1:]] for each in records]


async def test_file_that_another_process_writes_is_copied_completely(tmp_path, write):
    """The copy is one file with all steps confirmed before it began, and each session has no gap."""
    process, path = write(0.005)
    for number in range(3):
        for _ in range(40):
            confirmed = int(process.stdout.readline())
        copy = tmp_path / f"copy{number}.db"
        made = back_up(path, copy)
        assert (made.sessions, made.size) == (8, copy.stat().st_size)
        assert sorted(each.name for each in tmp_path.glob("copy*")) == [
            f"copy{n}.db" for n in range(number + 1)
        ]
        found = await numbers_in(copy)
        assert all(numbers == [*range(1, len(numbers) + 1)] for numbers in found)
        assert len(found[0]) >= confirmed
        clear(copy, "-lock")
    assert process.poll() is None


async def test_a_backup_is_repeated_if_the_log_restarts(tmp_path, write, monkeypatch):
    """If the log keeps restarting, the backup fails and leaves no file.

    The error names the owner process as the one that can copy.
    """
    process, path = write(0)
    process.stdout.readline()
    monkeypatch.setattr(backups, "TRIES", 2)
    rounds = iter(range(100))
    monkeypatch.setattr(backups, "_round_of", lambda _: (next(rounds),))
    texts = []
    with pytest.raises(JournalFailed, match=r"runtime\.backup"):
        back_up(path, tmp_path / "copy.db", say=texts.append)
    assert len(texts) == 2
    assert list(tmp_path.glob("copy*")) == []


def agent_of():
    return BareAgent("clerk", llm=ScriptedLLM(["yes"], repeat=True))


@pytest.mark.parametrize("durability", ["full", "relaxed"])
async def test_a_running_runtime_copies_its_journal(tmp_path, durability, monkeypatch):
    """Turns continue during the copy; a process that opens the copy resumes at the state of the copy."""
    monkeypatch.setattr(backups, "PAGES", 2)
    path, copy = tmp_path / "agents.db", tmp_path / "copy.db"
    async with open_runtime(journal=f"sqlite:///{path}", durability=durability) as runtime:
        agent = await runtime.start(agent_of())
        sessions = [await agent.create_session("ada", session_id=f"s{number}") for number in range(10)]
        for session in sessions:
            await agent.run("before", session=session)
        made = []

        async def copying():
            made.append(await runtime.backup(copy))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(copying)
            while not made:
                for session in sessions:
                    await agent.run("meanwhile " * 100, session=session)
                    await trio.lowlevel.checkpoint()
        assert made[0].sessions == 10
    assert find_problems(copy) == []
    async with open_runtime(journal=f"sqlite:///{copy}") as runtime:
        agent = await runtime.start(agent_of())
        for number in range(10):
            session = await agent.open_session(f"s{number}")
            texts = [message.text for message in session.history]
            assert texts[:2] == ["before", "yes"]
            assert str(await agent.run("after", session=session)) == "yes"


async def test_backups_of_damaged_journals_are_rejected(tmp_path):
    """An existing target is rejected too, and nothing is changed."""
    path, copy = tmp_path / "agents.db", tmp_path / "copy.db"
    async with open_runtime(journal=f"sqlite:///{path}") as runtime:
        agent = await runtime.start(agent_of())
        for number in range(20):
            session = await agent.create_session("ada", session_id=f"s{number}")
            await agent.run("hello " * 100, session=session)
    back_up(path, copy)
    before = copy.read_bytes()
    with pytest.raises(ConfigurationError, match="exists"):
        back_up(path, copy)
    assert copy.read_bytes() == before
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE steps SET body = zeroblob(length(body)) WHERE rowid = 17")
    with pytest.raises(JournalError):
        back_up(path, tmp_path / "other.db")
    assert list(tmp_path.glob("other*")) == []
    (tmp_path / "text.txt").write_text("no journal")
    with pytest.raises(ConfigurationError):
        back_up(tmp_path / "text.txt", tmp_path / "other.db")


@contextlib.asynccontextmanager
async def journal_with_sessions(path):
    """Yield an open journal with three sessions."""
    async with open_journal(f"sqlite:///{path}") as journal:
        epoch = await journal.acquire()
        for number in range(3):
            entry = Entry(session_id=f"s{number}", agent="a", records=(StateChangeRecord(changes={"n": 1}),))
            await journal.commit(entry, epoch=epoch)
        yield journal


async def test_second_copy_to_the_same_path_is_rejected(tmp_path):
    """Two copies run concurrently, from inside or outside of the process.

    The second changes neither the draft nor the target of the first.
    """
    path, copy, other = tmp_path / "agents.db", tmp_path / "copy.db", tmp_path / "other.db"
    made, refused = [], []

    async def copying():
        try:
            made.append(await journal.backup(copy))
        except ConfigurationError as error:
            refused.append(str(error))

    async with journal_with_sessions(path) as journal, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(copying)

    def copy_in_between(_):
        with pytest.raises(ConfigurationError, match="another process is writing"):
            back_up(path, other)

    made.append(back_up(path, other, say=copy_in_between))
    assert [each.sessions for each in made] == [3, 3]
    assert all("another process is writing" in text for text in refused)
    assert len(refused) == 2
    assert sorted(each.name for each in tmp_path.glob("*.db*")) == [
        "agents.db",
        "agents.db-lock",
        "copy.db",
        "other.db",
    ]


async def test_only_one_of_many_processes_copies_to_a_path(tmp_path, process_server):
    """One process makes the copy.

    The others report why they did not, and no other file is left, also if a process was killed.
    """
    path, copy = tmp_path / "agents.db", tmp_path / "copy.db"
    async with journal_with_sessions(path):
        pass
    for suffix in ("part", "part-wal", "part-lock"):
        await trio.Path(f"{copy}.{suffix}").write_text("of one that was killed")
    program = "import sys; from actgent.cli.main import main; main(['journal', 'backup', *sys.argv[1:]])"
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [process_server.popen([sys.executable, "-c", program, path, copy], **streams) for _ in range(4)]
    received = [await trio.to_thread.run_sync(each.communicate) for each in started]
    assert sorted(each.returncode for each in started) == [0, 2, 2, 2], received
    assert sum("3 sessions" in out for out, _ in received) == 1
    assert sum("another process is writing" in err or "exists" in err for _, err in received) == 3
    assert sorted(each.name for each in tmp_path.glob("copy*")) == ["copy.db"]
    assert len(await numbers_in(copy)) == 3


async def test_copy_cancelled_at_its_start_opens_no_file(tmp_path, monkeypatch):
    """The copy ends before the call returns: no file is opened or made after its end."""
    begin, started, goes_on = backups.PageCopy.__init__, threading.Event(), threading.Event()

    def begin_slowly(self, source, draft):
        started.set()
        goes_on.wait()
        begin(self, source, draft)

    monkeypatch.setattr(backups.PageCopy, "__init__", begin_slowly)
    async with journal_with_sessions(tmp_path / "agents.db") as journal:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.backup, tmp_path / "copy.db")
            await trio.to_thread.run_sync(started.wait)
            nursery.cancel_scope.cancel()
            nursery.start_soon(_set_after_cancelled_tasks, goes_on)
        await journal.load("s0")  # behind whatever its thread was given
        assert list(tmp_path.glob("copy*")) == []
        assert not any("copy.db" in each for each in opened_files())


async def _set_after_cancelled_tasks(event):
    """Set the event after all cancelled tasks have run."""
    with trio.CancelScope(shield=True):
        await trio.testing.wait_all_tasks_blocked()
    event.set()


def opened_files():
    return [str(each.resolve()) for each in Path("/proc/self/fd").iterdir()]


async def mark_untrusted(path, copy):
    back_up(path, copy)


async def from_inside(path, copy):
    async with open_journal(f"sqlite:///{path}") as journal:
        await journal.acquire()
        await journal.backup(copy)


async def salvaged(path, copy):
    recover_file(path, copy)


@pytest.mark.parametrize("make", [mark_untrusted, from_inside, salvaged])
async def test_copy_to_a_full_disk_is_removed(tmp_path, monkeypatch, make):
    """The error names the copy. No file remains, and no open file that occupies its space."""
    path, copy = tmp_path / "agents.db", tmp_path / "copy.db"
    async with open_runtime(journal=f"sqlite:///{path}") as runtime:
        session = await (await runtime.start(agent_of())).create_session("ada")
        await session.chat("hello " * 20_000)
    connect, copy_file = apsw.Connection, shutil.copyfile

    def connect_to_little(name, *args, **options):
        db = connect(name, *args, **options)
        if Path(name).name.startswith("copy.db"):
            db.execute("PRAGMA max_page_count=12")
        return db

    def copy_a_part(source, target, **options):
        copy_file(source, target, **options)
        if Path(target).name.startswith("copy.db"):
            os.truncate(target, 5000)
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(apsw, "Connection", connect_to_little)
    monkeypatch.setattr(shutil, "copyfile", copy_a_part)
    with pytest.raises(JournalFull, match=r"the disk of .*copy\.db is full: .* was removed"):
        await make(path, copy)
    assert list(tmp_path.glob("copy*")) == []
    assert not any("copy.db" in each for each in opened_files())


async def test_a_process_does_not_copy_its_own_file_from_outside(tmp_path):
    """An outside copy would drop the file locks of SQLite; the error names the method that copies, also for journals without a file."""
    path = tmp_path / "agents.db"
    async with open_runtime(journal=f"sqlite:///{path}") as runtime:
        with pytest.raises(ConfigurationError, match=r"runtime\.backup"):
            back_up(path, tmp_path / "copy.db")
        await runtime.backup(tmp_path / "copy.db")
    async with open_runtime(journal="memory:") as runtime:
        with pytest.raises(ConfigurationError, match="pg_dump"):
            await runtime.backup(tmp_path / "other.db")
    async with open_runtime() as runtime:
        with pytest.raises(ConfigurationError, match="journal="):
            await runtime.backup(tmp_path / "other.db")


async def test_backup_in_place_of_a_newer_file_is_rejected(tmp_path):
    """With the newer log or note next to it, the backup is rejected. The documentation lists the files to remove."""
    path, copy = tmp_path / "agents.db", tmp_path / "copy.db"
    async with open_runtime(journal=f"sqlite:///{path}") as runtime:
        agent = await runtime.start(agent_of())
        session = await agent.create_session("ada", session_id="s")
        await agent.run("first", session=session)
        await runtime.backup(copy)
        await agent.run("second", session=session)
    shutil.copy(copy, path)
    with pytest.raises(JournalDamaged, match="older copy"):
        async with open_runtime(journal=f"sqlite:///{path}"):
            pass
    clear(path, "-wal", "-lock")
    async with open_runtime(journal=f"sqlite:///{path}") as runtime:
        agent = await runtime.start(agent_of())
        session = await agent.open_session("s")
        assert [message.text for message in session.history] == ["first", "yes"]


def test_the_command_copies_a_file(tmp_path, capsys, write):
    """The command copies a file that another process uses; an existing target is a usage error."""
    process, path = write(0.01)
    process.stdout.readline()
    for code in (0, 2):
        with pytest.raises(SystemExit) as ended:
            main(["journal", "backup", str(path), str(tmp_path / "copy.db")])
        assert ended.value.code == code
    out, err = capsys.readouterr()
    assert "copy verified" in out
    assert "exists" in err
