"""Snapshots in the journal: stored with the records, never newer than the records, and validated before use."""

import base64
import os

import apsw
import attrs
import pytest

from actgent.errors import Fenced, UsageError
from actgent.journal.encryption import VARIABLE
from actgent.journal.journal_interface import SessionTail, Snapshot
from actgent.journal.journal_url import open_journal
from actgent.journal.journal_wrappers import AsyncCommitJournal
from actgent.journal.record_types import (
    AgentMessageRecord,
    CallFinishedRecord,
    SessionClosedRecord,
    StateChangeRecord,
    reference_results,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import ToolResult

KEY = SessionKey("a", "s")


def snapshot(records, body=b"what opening makes of them"):
    return Snapshot(records=records, version=1, body=body)


async def keep(writer, made):
    return await writer.journal.keep_snapshot("s", made, agent="a", epoch=writer.epoch)


async def load_tail(writer):
    return await writer.journal.load_tail("s", agent="a")


# --- over all journals -------------------------------------------------------------------


async def test_session_without_a_snapshot_is_loaded_completely(writer):
    """Its tail has all records, and a missing session has none."""
    await writer.open()
    await writer.turn()
    assert await load_tail(writer) == SessionTail(records=writer.confirmed)
    assert await writer.journal.load_tail("nobody", agent="a") == SessionTail()
    assert await writer.journal.find_snapshot("s", agent="a") is None


async def test_session_is_loaded_from_its_snapshot(writer):
    """The snapshot may cover any record within a step. All records still exist."""
    await writer.open()
    for _ in range(3):
        await writer.turn()
    total = len(writer.confirmed)
    for records in range(1, total + 1):
        made = snapshot(records, bytes([records]))
        assert await keep(writer, made)
        assert await load_tail(writer) == SessionTail(records=writer.confirmed[records:], snapshot=made)
        assert await writer.journal.find_snapshot("s", agent="a") == made
    assert await writer.load() == writer.confirmed
    await writer.turn()
    assert (await load_tail(writer)).records == writer.confirmed[total:]


async def test_a_snapshot_ahead_of_the_records_is_rejected(writer):
    """The journal does not have the covered records."""
    await writer.open()
    assert not await keep(writer, snapshot(2))
    assert not await writer.journal.keep_snapshot("nobody", snapshot(1), agent="a", epoch=writer.epoch)
    assert (await load_tail(writer)).snapshot is None


async def test_erasing_a_session_removes_its_snapshot(writer):
    """`delete` and `erase_trees` remove it; a new session with the same id has none."""
    for erase in ("delete", "erase_trees"):
        writer.confirmed = ()
        await writer.open()
        await writer.commit(SessionClosedRecord())
        assert await keep(writer, snapshot(2))
        if erase == "delete":
            await writer.journal.delete("s", agent="a")
        else:
            assert await writer.journal.erase_trees([KEY]) == [KEY]
        assert await load_tail(writer) == SessionTail()
    writer.confirmed = ()
    await writer.open()
    await writer.commit(StateChangeRecord(changes={"n": 1}))
    assert await load_tail(writer) == SessionTail(records=writer.confirmed)


async def test_snapshots_can_be_dropped(writer):
    """Dropping them changes nothing else."""
    await writer.open()
    await keep(writer, snapshot(1))
    await writer.journal.drop_snapshots("s", agent="a", epoch=writer.epoch)
    assert await load_tail(writer) == SessionTail(records=writer.confirmed)


async def test_rolled_back_session_drops_newer_snapshots(writer):
    """A rolled-back step may be written again with other records."""
    await writer.open()
    await writer.commit(StateChangeRecord(changes={"n": 1}))
    head = (await writer.journal._read_heads([KEY]))[KEY]
    before = attrs.evolve(head, records=1)
    await keep(writer, snapshot(1))
    await writer.journal._roll_back(KEY, before, writer.epoch)
    assert (await load_tail(writer)).snapshot == snapshot(1)
    writer.journal._heads.by_key.clear()
    await writer.commit(StateChangeRecord(changes={"n": 2}))
    await keep(writer, snapshot(2))
    await writer.journal._roll_back(KEY, before, writer.epoch)
    assert (await load_tail(writer)).snapshot is None


async def test_snapshot_is_invalid_if_the_last_row_differs(writer):
    await writer.open()
    await writer.commit(StateChangeRecord(changes={"n": 1}))
    await keep(writer, snapshot(2))
    journal = writer.journal
    head = (await journal._read_heads([KEY]))[KEY]
    known = await journal.find_snapshot("s", agent="a")
    await journal._roll_back(KEY, attrs.evolve(head, records=1), writer.epoch)
    journal._heads.by_key.clear()
    await writer.commit(StateChangeRecord(changes={"n": 2}))
    assert known == snapshot(2)
    assert await journal.find_snapshot("s", agent="a") is None


async def test_former_owner_stores_no_snapshot(journal, make_writer):
    """The epoch of the former owner has ended."""
    writer = make_writer(journal, await journal.acquire())
    await writer.open()
    await journal.acquire()
    with pytest.raises((Fenced, UsageError)):
        await keep(writer, snapshot(1))


async def test_wrapped_journals_forward_snapshots(writer):
    """Wrapped journals pass snapshots and pages in both directions."""
    outer = AsyncCommitJournal(writer.journal)
    await writer.open()
    assert await outer.keep_snapshot("s", snapshot(1), agent="a", epoch=writer.epoch)
    assert await outer.load_tail("s", agent="a") == SessionTail(snapshot=snapshot(1))
    assert await outer.find_snapshot("s", agent="a") == snapshot(1)
    assert await outer.read("s", agent="a") == outer.read_blocking("s", agent="a") == writer.confirmed
    await outer.drop_snapshots("s", agent="a", epoch=writer.epoch)
    assert await outer.find_snapshot("s", agent="a") is None


# --- pages -------------------------------------------------------------------------------


async def test_records_are_read_in_pages(writer):
    """From any record, in whole steps at the end; each record is read once."""
    await writer.open()
    for number in range(20):
        writer.enqueue_write(StateChangeRecord(changes={"n": number}))
        if number % 3:
            await writer.turn()
    for limit in (1, 7, 1000):
        found = ()
        while page := await writer.journal.read("s", agent="a", after=len(found), limit=limit):
            assert page == writer.journal.read_blocking("s", agent="a", after=len(found), limit=limit)
            assert len(page) >= min(limit, len(writer.confirmed) - len(found))
            found += page
        assert found == writer.confirmed
    assert await writer.journal.read("nobody", agent="a") == ()
    assert await writer.journal.read("nobody") == ()


async def test_a_page_has_results_that_were_written_before_it(writer):
    """A result is stored once, in the record of the end of its call."""
    result = ToolResult(call_id="1", tool_name="add", content="42")
    await writer.open()
    await writer.commit(CallFinishedRecord(result=result))
    for number in range(30):
        await writer.commit(StateChangeRecord(changes={"n": number}))
    record = AgentMessageRecord(message=attrs.evolve(writer.message("", "tool"), parts=(result,)))
    await writer.commit(reference_results(record))
    before = len(writer.confirmed) - 1
    assert await writer.journal.read("s", agent="a", after=before, limit=3) == (record,)
    assert writer.journal.read_blocking("s", agent="a", after=before, limit=3) == (record,)


# --- storages that outlive their process ---------------------------------------------------


async def test_snapshot_exists_after_a_restart(lasting_url, make_writer):
    """A snapshot is as durable as the records."""
    async with open_journal(lasting_url) as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.open()
        await writer.turn()
        await keep(writer, snapshot(3))
    async with open_journal(lasting_url) as journal:
        await journal.acquire()
        found = await journal.load_tail("s", agent="a")
    assert found == SessionTail(records=writer.confirmed[3:], snapshot=snapshot(3))
    async with open_journal(lasting_url, read_only=True) as looked_at:
        assert await looked_at.load_tail("s", agent="a") == found
        assert (await looked_at.read("s", agent="a", after=2, limit=1))[:1] == writer.confirmed[2:3]
        with pytest.raises(UsageError):
            await looked_at.keep_snapshot("s", snapshot(1), agent="a", epoch=1)


async def test_a_snapshot_is_encrypted_as_records_are(lasting_url, make_writer, monkeypatch, tmp_path):
    """It is bound to its position, and is invalid without its key."""
    pytest.importorskip("cryptography")
    monkeypatch.setenv(VARIABLE, f"one:{base64.b64encode(os.urandom(32)).decode()}")
    async with open_journal(lasting_url) as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.open()
        await keep(writer, snapshot(1, b"a word that nobody reads"))
        assert (await load_tail(writer)).snapshot.body == b"a word that nobody reads"
        monkeypatch.setenv(VARIABLE, f"two:{base64.b64encode(os.urandom(32)).decode()}")
        assert await journal.find_snapshot("s", agent="a") is None
    for file in tmp_path.iterdir():
        assert b"a word that nobody reads" not in file.read_bytes()


@pytest.fixture
async def damaged(tmp_path, make_writer):
    """Return a function that makes a journal with a snapshot, alters the snapshot, and returns the loaded records."""

    async def make(sql, *values):
        path = tmp_path / "journal.db"
        path.unlink(missing_ok=True)
        async with open_journal(f"sqlite:///{path}") as journal:
            writer = make_writer(journal, await journal.acquire())
            await writer.open()
            await writer.turn()
            await keep(writer, snapshot(4, b"body"))
        (tmp_path / "journal.db-lock").unlink()
        db = apsw.Connection(str(path))
        db.execute(sql, values)
        db.close()
        async with open_journal(f"sqlite:///{path}") as journal:
            await journal.acquire()
            found = await journal.load_tail("s", agent="a")
            return found, writer.confirmed

    return make


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE snapshots SET records = records - 1",
        "UPDATE snapshots SET records = 1000",
        "UPDATE snapshots SET last = last + 1",
        "UPDATE snapshots SET version = version + 1",
        "UPDATE snapshots SET checksum = checksum + 1",
        "UPDATE snapshots SET body = x''",
        "DELETE FROM snapshots",
        *(f"UPDATE snapshots SET body = x'{b'body'[:n].hex()}ff{b'body'[n + 1 :].hex()}'" for n in range(4)),
    ],
)
async def test_altered_snapshot_is_ignored(damaged, sql):
    """After a change of any part the session is loaded from its records."""
    found, confirmed = await damaged(sql)
    assert found == SessionTail(records=confirmed)
