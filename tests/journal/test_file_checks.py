"""Missing, removed or unwritable files: the error names a remedy, and nothing is destroyed."""

import contextlib
import errno
import os
import shutil
import signal
import sys
import textwrap
from pathlib import Path

import pytest
import trio

from actgent.errors import ActgentError, ConfigurationError, JournalDamaged, JournalFailed, JournalFull
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import StateChangeRecord
from actgent.journal.session_list_queries import SessionKey

KILLED = textwrap.dedent("""
    import os, signal, sys, trio
    from actgent.journal.journal_interface import Entry
    from actgent.journal.journal_url import open_journal
    from actgent.journal.record_types import StateChangeRecord
    async def main(url):
        async with open_journal(url) as journal:
            epoch = await journal.acquire()
            for number in range(50):
                record = StateChangeRecord(changes={"n": number})
                await journal.commit(Entry(session_id="s", agent="a", records=(record,)), epoch=epoch)
            os.kill(os.getpid(), signal.SIGKILL)
    trio.run(main, sys.argv[1])
""")


@pytest.fixture
def killed(tmp_path, process_server):
    """Return the path of a journal whose process was killed. Its log has steps that its file lacks."""
    path = tmp_path / "a.db"
    done = process_server.run([sys.executable, "-c", KILLED, f"sqlite:///{path}"])
    assert done.returncode == -signal.SIGKILL
    return path


async def numbers_in(path):
    async with open_journal(f"sqlite:///{path}") as journal:
        await journal.acquire()
        return [record.changes["n"] for record in await journal.load("s", agent="a")]


@pytest.mark.parametrize(
    ("beside", "is_there"),
    [("-wal -lock", True), ("-wal -lock", False), ("-wal", True), ("-wal", False), ("-lock", True)],
)
async def test_a_missing_file_with_a_log_is_an_error(killed, is_there, beside):
    """The file is missing or empty. The error names the files, nothing is changed, and a restored file is intact."""
    saved = killed.with_name("saved")
    shutil.copy(killed, saved)
    for suffix in {"-wal", "-lock"} - set(beside.split()):
        _rename(f"{killed}{suffix}", f"{saved}{suffix}")
    killed.unlink()
    if is_there:
        killed.touch()
    before = {each.name: each.stat().st_size for each in killed.parent.iterdir()}
    for _ in range(2):
        with pytest.raises(
            JournalDamaged, match=r"put the file back.*or start a new journal by moving"
        ) as caught:
            await numbers_in(killed)
        assert all(f"a.db{suffix}" in str(caught.value) for suffix in beside.split())
    after = {each.name: each.stat().st_size for each in killed.parent.iterdir()}
    assert {name: after[name] for name in before if "lock" not in name} == {
        name: size for name, size in before.items() if "lock" not in name
    }
    saved.replace(killed)
    for suffix in {"-wal", "-lock"} - set(beside.split()):
        _rename(f"{saved}{suffix}", f"{killed}{suffix}")
    assert await numbers_in(killed) == list(range(50))


async def test_journal_without_its_files_is_recreated_with_a_warning(killed, caplog):
    """Only the lock file shows that there were commits. The warning names the file and the remedy, once."""
    killed.unlink()
    _remove(killed.with_name(f"{killed.name}-wal"))
    assert await numbers_in(killed) == []
    (warning,) = caplog.messages
    assert "a.db is missing, so a new one is created. The lock file a.db-lock counts 50 commits" in warning
    assert "Put the file back" in warning
    assert await numbers_in(killed) == []
    assert caplog.messages == [warning]


async def test_remedy_of_the_error_allows_a_new_start(killed):
    killed.unlink()
    for suffix in ("-wal", "-lock"):
        _rename(f"{killed}{suffix}", f"{killed}{suffix}.old")
    assert await numbers_in(killed) == []


def _rename(old, new):
    Path(old).replace(new)


def _remove(path):
    path.unlink()


def _move(path):
    path.rename(path.with_name("moved.db"))


def _replace(path):
    shutil.copy(path, path.with_name("other.db"))
    path.with_name("other.db").replace(path)


def _remove_log(path):
    path.with_name(f"{path.name}-wal").unlink()


def _replace_log(path):
    log = path.with_name(f"{path.name}-wal")
    shutil.copy(log, path.with_name("other"))
    path.with_name("other").replace(log)


def _remove_folder(path):
    shutil.rmtree(path.parent)


def _cut(path):
    os.truncate(path, 0)


def _empty_log(path):
    os.truncate(path.with_name(f"{path.name}-wal"), 0)


def _cut_log(path):
    log = path.with_name(f"{path.name}-wal")
    os.truncate(log, log.stat().st_size // 2)


@contextlib.asynccontextmanager
async def _three_open(path, make_writer):
    """Open a journal in a file with writers of three sessions."""
    async with open_journal(f"sqlite:///{path}") as journal:
        epoch = await journal.acquire()
        writers = [make_writer(journal, epoch, f"s{number}") for number in range(3)]
        for writer in writers:
            await writer.open()
        yield journal, writers


@pytest.mark.parametrize(
    "harm", [_remove, _move, _replace, _remove_log, _replace_log, _remove_folder, _cut, _empty_log, _cut_log]
)
async def test_commits_fail_after_the_file_was_removed(tmp_path, make_writer, harm):
    """Each further commit of any session fails with the reason. A new file at the path is not changed."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "a.db"
    async with _three_open(path, make_writer) as (_, writers):
        harm(path)
        for number in range(9):
            with pytest.raises(
                JournalFailed, match="removed, replaced or truncated while the journal was open"
            ):
                await writers[number % 3].commit(StateChangeRecord(changes={"n": number}))
        left = {each.name: each.read_bytes() for each in tmp_path.rglob("a.db*") if "lock" not in each.name}
    assert {
        each.name: each.read_bytes() for each in tmp_path.rglob("a.db*") if "lock" not in each.name
    } == left


async def test_a_truncated_log_is_detected_before_an_erasure(tmp_path, make_writer):
    """The first write after the truncation may be an erasure, which would make the log long again."""
    path = tmp_path / "a.db"
    async with _three_open(path, make_writer) as (journal, writers):
        _empty_log(path)
        lost = pytest.raises(JournalFailed, match="removed, replaced or truncated while the journal was open")
        with lost:
            await journal.erase_trees([SessionKey("a", "s0")])
        with lost:
            await writers[1].commit(StateChangeRecord(changes={"n": 1}))


async def test_a_restored_file_is_used_again(tmp_path, make_writer):
    """The file is moved away and back: failed steps are missing, later ones exist."""
    path = tmp_path / "a.db"
    async with open_journal(f"sqlite:///{path}") as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.open()
        path.rename(tmp_path / "b.db")
        with pytest.raises(JournalFailed):
            await writer.commit(StateChangeRecord(changes={"n": 1}))
        (tmp_path / "b.db").rename(path)
        await writer.commit(StateChangeRecord(changes={"n": 2}))
        assert await writer.load() == writer.confirmed
    async with open_journal(f"sqlite:///{path}") as journal:
        await journal.acquire()
        assert await journal.load("s", agent="a") == writer.confirmed


async def test_change_of_the_working_directory_keeps_the_file(tmp_path, monkeypatch, make_writer):
    monkeypatch.chdir(tmp_path)
    async with open_journal("sqlite:///a.db") as journal:
        writer = make_writer(journal, await journal.acquire())
        monkeypatch.chdir("/")
        await writer.turn()
        assert await writer.load() == writer.confirmed


# --- places where nothing can begin ---------------------------------------------------------------

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
READ_ONLY = OSError(errno.EROFS, os.strerror(errno.EROFS))
FORBIDDEN = PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@pytest.mark.parametrize("call", ["open", "pwrite", "stat"])
@pytest.mark.parametrize(
    "refusal",
    [
        (FULL, JournalFull, "free space"),
        (READ_ONLY, JournalFailed, "or move the journal"),
        (FORBIDDEN, JournalFailed, "or move the journal"),
    ],
)
async def test_disk_error_at_the_start_is_named(tmp_path, monkeypatch, call, refusal):
    """The disk is full, read-only or forbidden at each system call.

    The error is typed and has a remedy, and a later start succeeds.
    """
    url = f"sqlite:///{tmp_path}/a.db"
    error, expected, text = refusal
    async with open_journal(url) as journal:
        await journal.acquire()

    def fail(*_, **__):
        raise error

    async with open_journal(url) as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(expected, match=text):
                await journal.acquire()
        await journal.acquire()


async def test_a_full_file_system_is_named_at_the_start(tmp_path):
    """A real file system is used if this user may create one."""
    mounted = await trio.run_process(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=False, capture_stderr=True
    )
    if mounted.returncode:
        pytest.skip("this user may mount nothing")
    try:
        filling = tmp_path / "filling"
        with filling.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(512))
        for _ in range(2):
            with pytest.raises(JournalFull):
                await numbers_in(tmp_path / "a.db")
    finally:
        await trio.run_process(["umount", str(tmp_path)])


@pytest.mark.parametrize("place", ["missing/a.db", "file/a.db", "folder"])
async def test_wrong_path_raises_an_error(tmp_path, place):
    """A missing folder, a file in place of a folder, and a folder in place of a file raise an error."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(
        (ConfigurationError, JournalFailed), match=r"create it|pass the path of a file"
    ) as caught:
        await numbers_in(tmp_path / place)
    assert isinstance(caught.value, ActgentError)
