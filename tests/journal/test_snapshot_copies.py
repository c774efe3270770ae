"""Check, backup, salvage, export and migration of journals with snapshots: no record is lost."""

import base64
import json
import zlib
from pathlib import Path

import apsw
import pytest

from actgent import BareAgent, ScriptedLLM, ShortTermMemory, open_runtime
from actgent.errors import JournalDamaged
from actgent.journal.journal_interface import SessionTail, Snapshot
from actgent.journal.journal_url import open_journal
from actgent.journal.session_export_and_fork import (
    load_sessions,
    read_sessions,
    save_sessions,
    write_sessions,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.journal.sqlite import back_up, find_problems, recover_file
from actgent.sessions.restore.snapshotter import SnapshotBuilder

KEY = SessionKey("clerk", "s")
TURNS = 6


def clerk():
    """Return an agent whose answers state the number of each question."""
    return BareAgent("clerk", llm=ScriptedLLM(lambda chat: f"answer {len(chat.messages)}", keep=0))


async def talk(url, turns=TURNS):
    """Run the questions from a start to an end and return all texts of the session; its agent is stopped afterwards."""
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk())
        session = await agent.ensure_session("ada", "s")
        for number in range(turns):
            await session.chat(f"question {number}")
            await session.wait_idle()
        return [(message.sender.kind, message.text) for message in session.history]


async def make_snapshot(url, *, tail=True):
    """Store a snapshot of the session, of its first turn or of all turns. Return the loaded snapshot and all records."""
    async with open_journal(url) as journal:
        epoch = await journal.acquire()
        records = await journal.load("s", agent="clerk")
        maker = SnapshotBuilder(journal, KEY, ShortTermMemory())
        assert await maker.make(slack=len(records) - 3 if tail else 0, epoch=epoch)
        return await journal.load_tail("s", agent="clerk"), records


async def load(url):
    """Return the same of an existing journal."""
    async with open_journal(url) as journal:
        await journal.acquire()
        return await journal.load_tail("s", agent="clerk"), await journal.load("s", agent="clerk")


@pytest.fixture
async def path(tmp_path):
    """Return a file with a session, a snapshot of it, and later records."""
    path = tmp_path / "journal.db"
    await talk(f"sqlite:///{path}")
    tail, _ = await make_snapshot(f"sqlite:///{path}")
    assert tail.snapshot is not None
    assert tail.records
    return path


async def test_check_of_a_file_with_a_snapshot_finds_and_changes_nothing(path):
    before = path.read_bytes()
    assert find_problems(path) == []
    assert path.read_bytes() == before


@pytest.mark.parametrize("way", ["outside", "inside"])
async def test_a_backup_has_the_snapshot(path, tmp_path, way):
    """The snapshot is valid in the copy, and the session resumes from it."""
    copy = tmp_path / "copy.db"
    if way == "outside":
        back_up(path, copy)
    else:
        async with open_journal(f"sqlite:///{path}") as journal:
            await journal.acquire()
            await journal.backup(copy)
    assert find_problems(copy) == []
    assert await load(f"sqlite:///{copy}") == await load(f"sqlite:///{path}")
    assert await talk(f"sqlite:///{copy}", 1) == await talk(f"sqlite:///{path}", 1)


async def test_diverging_copies_do_not_share_snapshots(path, tmp_path):
    """A later snapshot of one copy is invalid in the file of the other."""
    copy = tmp_path / "copy.db"
    back_up(path, copy)
    await talk(f"sqlite:///{path}", 2)
    await talk(f"sqlite:///{copy}", 3)
    await make_snapshot(f"sqlite:///{path}", tail=False)
    (tmp_path / "copy.db-lock").unlink()
    db = apsw.Connection(str(copy))
    db.execute("ATTACH ? AS other", (str(path),))
    db.execute("INSERT OR REPLACE INTO snapshots SELECT * FROM other.snapshots")
    db.close()
    tail, records = await load(f"sqlite:///{copy}")
    assert tail == SessionTail(records=records)


async def test_salvage_copies_records_without_snapshots(path, tmp_path):
    """All records are copied, also those that the snapshot covers; the new file gets a new snapshot."""
    _, records = await load(f"sqlite:///{path}")
    saved = tmp_path / "saved.db"
    salvaged = recover_file(path, saved)
    assert (salvaged.losses, salvaged.records) == ((), len(records))
    assert find_problems(saved) == []
    assert await load(f"sqlite:///{saved}") == (SessionTail(records=records), records)
    tail, found = await make_snapshot(f"sqlite:///{saved}")
    assert found == records
    assert tail.snapshot is not None
    assert await talk(f"sqlite:///{saved}", 1) == await talk(f"sqlite:///{path}", 1)


@pytest.mark.parametrize("behind", [False, True])
async def test_damage_below_a_snapshot_is_reported_and_salvaged(path, tmp_path, behind):
    """A check names the session for damage before or after the snapshot.

    Salvage keeps the records before the damage.
    """
    tail, records = await load(f"sqlite:///{path}")
    covered = tail.snapshot.records
    (tmp_path / "journal.db-lock").unlink()
    db = apsw.Connection(str(path))
    where = "first > ?" if behind else "first + count <= ?"
    number, first = db.execute(
        f"SELECT rowid, first FROM steps WHERE {where} ORDER BY first DESC", (covered,)
    ).fetchone()
    db.execute("UPDATE steps SET body = zeroblob(length(body)) WHERE rowid = ?", (number,))
    db.close()
    (problem,) = find_problems(path)
    assert isinstance(problem, JournalDamaged)
    assert "'s'" in str(problem)
    with pytest.raises(JournalDamaged):
        back_up(path, tmp_path / "copy.db")
    salvaged = recover_file(path, tmp_path / "saved.db")
    assert salvaged.losses == ("s",)
    found = await load(f"sqlite:///{tmp_path}/saved.db")
    assert found == (SessionTail(records=records[: first - 1]), records[: first - 1])


async def test_unreadable_snapshot_table_loses_no_records(path, tmp_path):
    """A page of the table is destroyed: sessions open from their records, a check names the file, and salvage copies all records."""
    _, records = await load(f"sqlite:///{path}")
    (tmp_path / "journal.db-lock").unlink()
    db = apsw.Connection(str(path))
    page = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'snapshots'").get
    size = db.execute("PRAGMA page_size").get
    db.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    assert find_problems(path)
    assert await load(f"sqlite:///{path}") == (SessionTail(records=records), records)
    assert recover_file(path, tmp_path / "saved.db").losses == ()
    assert (await load(f"sqlite:///{tmp_path}/saved.db"))[1] == records


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def other_url(request, tmp_path):
    """Return the address of an empty journal for an import."""
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/other.db"
    return request.getfixturevalue("postgres_url")


async def test_an_export_has_all_records_and_no_snapshot(path, tmp_path, other_url):
    """The import works in each kind of journal, which can then store a new snapshot."""
    async with open_journal(f"sqlite:///{path}", read_only=True) as journal:
        records = await journal.load("s", agent="clerk")
        save_sessions(tmp_path / "x", await read_sessions(journal))
    async with open_journal(other_url) as journal:
        epoch = await journal.acquire()
        await write_sessions(journal, load_sessions(tmp_path / "x"))
        assert await journal.load_tail("s", agent="clerk") == SessionTail(records=records)
        assert await SnapshotBuilder(journal, KEY, ShortTermMemory()).make(slack=4, epoch=epoch)
        tail = await journal.load_tail("s", agent="clerk")
        assert tail.snapshot is not None
        assert tail.records == records[tail.snapshot.records :]


async def test_import_after_an_erasure_loads_all_records(path, tmp_path):
    """The snapshot was erased too, so the imported session loads all its records."""
    url = f"sqlite:///{path}"
    async with open_journal(url) as journal:
        await journal.acquire()
        exported = await read_sessions(journal)
        await journal.delete("s", agent="clerk")
        await write_sessions(journal, exported)
    assert await load(url) == (SessionTail(records=exported[0].records), exported[0].records)
    assert find_problems(path) == []


# --- migration ----------------------------------------------------------------------------


def columns(psycopg, url):
    """Return the columns and indexes of a journal's tables."""
    address, schema = url.split("?schema=")
    with psycopg.connect(address) as db:
        found = db.execute(
            "SELECT table_name, column_name, data_type, is_nullable, collation_name FROM information_schema.columns "
            "WHERE table_schema = %s",
            [schema],
        ).fetchall()
        indexes = db.execute(
            "SELECT tablename, indexname, replace(indexdef, schemaname, '') FROM pg_indexes WHERE schemaname = %s",
            [schema],
        ).fetchall()
    return set(found), set(indexes)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_migrated_journal_of_version_5_stores_snapshots(kind, tmp_path, request):
    """Snapshots of its old records are durable; all records exist, and its tables equal those of a new journal."""
    stored = json.loads(Path(__file__).with_name("version_5.json").read_text())[kind]
    if kind == "sqlite":
        for suffix, lines in stored.items():
            (tmp_path / f"old.db{suffix}").write_bytes(zlib.decompress(base64.b64decode("".join(lines))))
        url = f"sqlite:///{tmp_path}/old.db"
    else:
        url = request.getfixturevalue("postgres_url")
        psycopg = pytest.importorskip("psycopg")
        address, schema = url.split("?schema=")
        async with open_journal(url) as journal:
            await journal.acquire()
        fresh = columns(psycopg, url)
        with psycopg.connect(address) as db:
            db.execute(f"DROP SCHEMA {schema} CASCADE")
            db.execute("\n".join(stored).replace("{schema}", schema))
    made = {}
    async with open_journal(url) as journal:
        epoch = await journal.acquire()
        for each in await journal.sessions():
            records = await journal.load(each.session_id, agent=each.agent)
            assert await journal.load_tail(each.session_id, agent=each.agent) == SessionTail(records=records)
            snapshot = Snapshot(records=len(records) - 1, version=1, body=b"made")
            if snapshot.records:
                assert await journal.keep_snapshot(each.session_id, snapshot, agent=each.agent, epoch=epoch)
                made[each.agent, each.session_id] = SessionTail(records=records[-1:], snapshot=snapshot)
    assert len(made) == 5  # the sixth has one record
    async with open_journal(url) as journal:
        await journal.acquire()
        for (agent, session_id), expected in made.items():
            assert await journal.load_tail(session_id, agent=agent) == expected
    if kind == "postgres":
        assert columns(psycopg, url) == fresh
