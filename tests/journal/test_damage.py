"""A journal file with damage: the error names the damage, and altered data is never used."""

import contextlib
import random
import shutil
import sqlite3
from pathlib import Path

import apsw
import pytest

from actgent.errors import JournalDamaged, JournalVersion
from actgent.journal.group_commit import row_format
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import (
    AgentMessageRecord,
    MessageAcceptedRecord,
    NextTimerRecord,
    SuspensionRecord,
)
from actgent.journal.session_export_and_fork import read_sessions, write_sessions
from actgent.journal.sqlite import find_problems, recover_file
from actgent.messages import Message, Sender, Text

SESSIONS = 12
LOG = "-wal"


@pytest.fixture(autouse=True)
def _plain_rows(monkeypatch):
    """Turn off compression, so that damage hits the rows and their texts are found in the file."""
    monkeypatch.setattr(row_format, "compress", lambda body: body)


@pytest.fixture
async def image(tmp_path, make_writer):
    """Return a file with its log as kill -9 leaves them, and the records of each session."""
    path, copy = tmp_path / "live.db", tmp_path / "image.db"
    async with open_journal(f"sqlite:///{path}") as journal:
        epoch = await journal.acquire()
        writers = [make_writer(journal, epoch, f"session {number}") for number in range(SESSIONS)]
        for _ in range(12):  # so that most of the file is theirs
            for writer in writers:
                await writer.turn("question " * 20, "answer " * 40)
        # so that the file has most of it, and the log the rest
        await journal._run(lambda file: file._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE))
        for writer in writers:
            await writer.turn("last", "word")
        copy_image(path, copy)
    return copy, {writer.session_id: writer.confirmed for writer in writers}


def copy_image(source: Path, target: Path) -> None:
    for suffix in ("", LOG, "-lock"):
        shutil.copy(f"{source}{suffix}", f"{target}{suffix}")


def change_log(path, kind, foreign):
    log = Path(f"{path}{LOG}")
    if kind == "missing":
        log.unlink()
    else:
        log.write_bytes(b"" if kind == "empty" else foreign.read_bytes())


def flip(path, dice):
    data = bytearray(path.read_bytes())
    place = dice.randrange(len(data))
    data[place] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def zero(path, dice):
    data = bytearray(path.read_bytes())
    page = dice.randrange(len(data) // 4096)
    data[page * 4096 : (page + 1) * 4096] = bytes(4096)
    path.write_bytes(data)


def truncate(path, dice):
    data = path.read_bytes()
    path.write_bytes(data[: dice.randrange(len(data))])


@pytest.fixture
def judge(make_writer):
    """Return a function of an image and the confirmed records that returns how many sessions are intact and resume.

    An error names each damaged session or the file.
    """

    async def decide(path, confirmed):
        async with open_journal(f"sqlite:///{path}") as journal:
            try:
                epoch = await journal.acquire()
            except JournalDamaged:
                return 0
            whole = [each for each in confirmed if await _is_intact(journal, each, confirmed[each])]
            for session_id in whole:
                writer = make_writer(journal, epoch, session_id)
                await writer.turn()
                assert await writer.load() == confirmed[session_id] + writer.confirmed
            return len(whole)

    return decide


async def _is_intact(journal, session_id, confirmed):
    try:
        loaded = await journal.load(session_id)
    except JournalDamaged as damage:
        if damage.session_id != session_id:
            raise
        return False
    assert loaded == confirmed
    return True


@pytest.mark.parametrize("place", ["file", "log"])
@pytest.mark.parametrize("harm", [flip, zero, truncate])
async def test_damage_is_named_and_other_sessions_run(judge, image, times, harm, place):
    """Bits are flipped, pages zeroed and files truncated in 48 images, or 300 with the soak switch.

    A check finds the damage if a session is rejected. A log without its end rejects all sessions, because nothing shows
    which of them lost confirmed steps.
    """
    path, confirmed = image
    harmed = path.with_name("harmed.db")
    refused = []
    for seed in range(times(8, 50)):
        for old in path.parent.glob("harmed.db*"):
            old.unlink()
        copy_image(path, harmed)
        harm(Path(f"{harmed}{LOG if place == 'log' else ''}"), random.Random(seed))
        problems = find_problems(harmed)
        refused.append(SESSIONS - await judge(harmed, confirmed))
        assert problems or not refused[-1], (harm, place, seed)
    if place == "log":
        assert set(refused) == {SESSIONS}
    else:
        assert sum(map(bool, refused)) >= len(refused) / 3
        assert harm is truncate or any(0 < count < SESSIONS for count in refused)


async def test_flipped_bit_damages_only_its_session(judge, image):
    path, confirmed = image
    data = path.read_bytes()
    place = data.index(b"question question")
    path.write_bytes(data[:place] + b"Q" + data[place + 1 :])
    assert await judge(path, confirmed) == SESSIONS - 1
    (problem,) = find_problems(path)
    assert (problem.session_id in confirmed, problem.record is not None) == (True, True)


@pytest.mark.parametrize("kind", ["missing", "empty", "foreign"])
async def test_missing_empty_or_foreign_log_is_rejected(image, tmp_path, make_writer, kind):
    path, _ = image
    async with open_journal(f"sqlite:///{tmp_path}/other.db") as journal:
        await make_writer(journal, await journal.acquire(), "session 1").turn("foreign")
        change_log(path, kind, tmp_path / "other.db-wal")
    with pytest.raises(JournalDamaged, match=r"write-ahead log|malformed"):
        async with open_journal(f"sqlite:///{path}") as journal:
            await journal.acquire()


async def test_torn_first_page_is_restored_from_the_log(judge, tmp_path, make_writer):
    """A power cut during a checkpoint may tear any page of the file; only a foreign log loses data."""
    live, path, other = tmp_path / "live.db", tmp_path / "torn.db", tmp_path / "other.db"
    async with open_journal(f"sqlite:///{live}") as journal:
        writer = make_writer(journal, await journal.acquire())
        for _ in range(20):
            await writer.turn("question " * 20)
        copy_image(live, path)
    path.write_bytes(random.Random(1).randbytes(4096) + path.read_bytes()[4096:])
    copy_image(path, other)
    assert recover_file(path, tmp_path / "saved.db").losses == ()
    assert await judge(tmp_path / "saved.db", {"s": writer.confirmed}) == 1
    assert await judge(path, {"s": writer.confirmed}) == 1
    async with open_journal(f"sqlite:///{live}-2") as journal:
        writer = make_writer(journal, await journal.acquire())
        for _ in range(20):
            await writer.turn("foreign " * 20)
        change_log(other, "foreign", Path(f"{live}-2{LOG}"))
    with pytest.raises(JournalDamaged, match="belongs to another journal"):
        async with open_journal(f"sqlite:///{other}") as journal:
            await journal.acquire()


async def test_reading_with_another_program_after_a_crash_is_no_damage(judge, image):
    """SQLite's shell copies the log into the file and removes it. Without the lock file the error names both cases."""
    path, confirmed = image
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM steps").fetchone()[0] > SESSIONS
    assert not path.with_name(f"{path.name}{LOG}").exists()
    without = path.with_name("without.db")
    shutil.copy(path, without)
    assert find_problems(path) == []
    assert await judge(path, confirmed) == SESSIONS
    assert await judge(without, confirmed) == 0
    with pytest.raises(
        JournalDamaged,
        match=r"another SQLite program has copied the -wal file .* nothing is lost: recover the journal",
    ):
        async with open_journal(f"sqlite:///{without}") as journal:
            await journal.acquire()
    assert recover_file(without, path.with_name("saved.db")).losses == ()


async def test_newer_schema_is_rejected_without_a_change(image):
    """The error names both versions."""
    path, _ = image
    db = apsw.Connection(str(path))
    db.execute("PRAGMA user_version=99")
    db.close()
    before = path.read_bytes()
    with pytest.raises(JournalVersion, match=r"version 99.*versions up to \d"):
        async with open_journal(f"sqlite:///{path}") as journal:
            await journal.acquire()
    assert path.read_bytes() == before


async def test_check_of_a_good_file_finds_and_changes_nothing(image):
    path, _ = image
    before = path.read_bytes()
    assert find_problems(path) == []
    assert path.read_bytes() == before


async def test_copies_have_schedules_and_suspensions(tmp_path, make_writer):
    """Schedules and suspensions are derived from the records, so copies of the records have them."""
    url = f"sqlite:///{tmp_path}/a.db"
    async with open_journal(url) as journal:
        writer = make_writer(journal, await journal.acquire())
        message = writer.message("hi")
        waits = SuspensionRecord(message_id=message.id, ids=("w",))
        await writer.commit(MessageAcceptedRecord(message=message), NextTimerRecord(at=5.5), waits)
        exported = await read_sessions(journal)
    recover_file(tmp_path / "a.db", tmp_path / "b.db")
    for url in (f"sqlite:///{tmp_path}/b.db", "memory:"):
        async with open_journal(url) as journal:
            await journal.acquire()
            if url == "memory:":
                await write_sessions(journal, exported)
            assert await journal.due("a") == [("s", 5.5)]
            assert [summary.suspended for summary in await journal.sessions()] == [True]
            assert await journal.unfinished("a") == []


@pytest.mark.parametrize("harm", [flip, zero, truncate])
async def test_recovery_copies_undamaged_records(image, tmp_path, times, harm):
    """Each session is copied up to its first damaged record into a new file."""
    path, confirmed = image
    for seed in range(times(4, 30)):
        harmed, saved = tmp_path / f"harmed{seed}.db", tmp_path / f"saved{seed}.db"
        copy_image(path, harmed)
        harm(harmed, random.Random(seed))
        salvaged = recover_file(harmed, saved)
        assert find_problems(saved) == []
        async with open_journal(f"sqlite:///{saved}") as journal:
            await journal.acquire()
            for session_id, records in confirmed.items():
                loaded = await journal.load(session_id)
                assert loaded == records[: len(loaded)]
                assert loaded == records or session_id in salvaged.losses or not loaded


@pytest.fixture
async def saved_file(tmp_path, make_writer):
    """Return a file without a log: two sessions of `clerk`, of which `b` was written last."""
    path = tmp_path / "good.db"
    async with open_journal(f"sqlite:///{path}") as journal:
        epoch = await journal.acquire()
        for name in "ab":
            writer = make_writer(journal, epoch, name, "clerk")
            for number in range(60):
                await writer.turn(f"question {number} of {name} " * 3)
            message = Message(
                session_id=name, sender=Sender("clerk", "assistant"), parts=(Text(f"last of {name}"),)
            )
            await writer.commit(AgentMessageRecord(message=message, stop="end"))
    return path


async def _agents(path):
    async with open_journal(f"sqlite:///{path}") as journal:
        await journal.acquire()
        return {each.session_id: (each.agent, each.records) for each in await journal.sessions()}


async def test_a_session_that_lost_its_last_records_is_named(saved_file, tmp_path):
    """The head of the session has the number of its records."""
    whole = await _agents(saved_file)
    db = apsw.Connection(str(saved_file))
    db.execute("DELETE FROM steps WHERE rowid = (SELECT max(rowid) FROM steps)")
    db.close()
    salvaged = recover_file(saved_file, tmp_path / "new.db")
    assert salvaged.losses == ("b",)
    assert await _agents(tmp_path / "new.db") == {"a": whole["a"], "b": ("clerk", whole["b"][1] - 1)}


async def test_a_session_without_a_head_keeps_its_agent(saved_file, tmp_path):
    """An answer in the session names its agent; the check reports the session, because more records may be lost."""
    whole = await _agents(saved_file)
    db = apsw.Connection(str(saved_file))
    db.execute("DELETE FROM sessions WHERE session_id = 'a'")
    db.close()
    salvaged = recover_file(saved_file, tmp_path / "new.db")
    assert salvaged.losses == ("a",)
    assert await _agents(tmp_path / "new.db") == whole


async def test_a_destroyed_last_page_loses_only_its_rows(saved_file, tmp_path):
    """Rows of earlier pages are read."""
    whole = await _agents(saved_file)
    data = bytearray(saved_file.read_bytes())
    page = data.index(b"last of b") // 4096 * 4096
    data[page : page + 4096] = bytes(4096)
    saved_file.write_bytes(data)
    salvaged = recover_file(saved_file, tmp_path / "new.db")
    assert salvaged.losses == ("b",)
    found = await _agents(tmp_path / "new.db")
    assert found["a"] == whole["a"]
    assert 50 < found["b"][1] < whole["b"][1]
