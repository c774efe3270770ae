"""Two concurrent creations of a session with one id: the journal accepts one, and writes no step of the other."""

from functools import partial

import attrs
import pytest
import trio

from actgent.errors import JournalFull, SessionExists
from actgent.journal.journal_interface import Creation, Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.journal_wrappers import AsyncCommitJournal
from actgent.journal.record_types import SessionClosedRecord, SessionCreatedRecord, StateChangeRecord
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import Sender


def first(name):
    """Return the first record of a session of this owner."""
    return SessionCreatedRecord(owner=Sender(name), created_at=1.0)


def step(*records, creation=None):
    return Entry(session_id="s", agent="a", records=records, creation=creation)


async def refusals(*calls):
    """Make calls concurrently. Return the indexes of the calls that raised because the session exists."""
    refused = []

    async def make(number, call):
        try:
            await call()
        except SessionExists:
            refused.append(number)

    async with trio.open_nursery() as nursery:
        for number, call in enumerate(calls):
            nursery.start_soon(make, number, call)
    return refused


@pytest.mark.parametrize("wrap", [lambda journal: journal, AsyncCommitJournal])
async def test_one_of_two_concurrent_creations_succeeds(journal, wrap):
    """Exactly one creation succeeds, also with relaxed durability."""
    journal = wrap(journal)
    commit = partial(journal.commit, epoch=await journal.acquire())
    names = ["ada", "bob", "eve"]
    refused = await refusals(*(partial(commit, step(first(name))) for name in names))
    (winner,) = {*range(len(names))} - {*refused}
    assert await journal.load("s") == (first(names[winner]),)
    assert await refusals(partial(commit, step(first("joe")))) == [0]
    await commit(step(SessionClosedRecord()))
    assert await journal.load("s") == (first(names[winner]), SessionClosedRecord())


async def test_creation_detects_a_session_that_was_not_read_yet(lasting_url):
    """The id is checked when the first step is written."""
    async with open_journal(lasting_url) as journal:
        await journal.commit(step(first("ada")), epoch=await journal.acquire())
    async with open_journal(lasting_url) as journal:
        epoch = await journal.acquire()
        for _ in range(2):
            with pytest.raises(SessionExists, match="agent 'a' already has a session 's'"):
                await journal.commit(step(first("bob"), StateChangeRecord(changes={"n": 1})), epoch=epoch)
        assert await journal.load("s") == (first("ada"),)


@pytest.mark.parametrize("is_stored", [True, False])
async def test_rejected_creation_writes_no_step(journal, is_stored):
    """No queued step of the rejected session is written, before or after its error; the existing session continues."""
    epoch, creation = await journal.acquire(), Creation()
    journal.enqueue_write(step(first("ada")), epoch=epoch)
    if is_stored:
        await journal.commit(step(), epoch=epoch)
    journal.enqueue_write(step(first("bob"), creation=creation), epoch=epoch)
    journal.enqueue_write(step(StateChangeRecord(changes={"n": 1}), creation=creation), epoch=epoch)
    with pytest.raises(SessionExists):
        await journal.commit(step(creation=creation), epoch=epoch)
    journal.enqueue_write(step(SessionClosedRecord(unused=True), creation=creation), epoch=epoch)
    await journal.commit(step(StateChangeRecord(changes={"n": 2})), epoch=epoch)
    assert await journal.load("s") == (first("ada"), StateChangeRecord(changes={"n": 2}))


@pytest.mark.parametrize("is_retried", [True, False])
async def test_creation_waits_for_disk_space(journal, monkeypatch, is_retried):
    """A creation without a waiting caller is written when the disk has space.

    A creation that is not kept frees its id.
    """
    epoch, write = await journal.acquire(), journal._write

    async def fail(*_):
        raise JournalFull("no space")

    monkeypatch.setattr(journal, "_write", fail)
    monkeypatch.setattr(journal, "_may_start", False)
    with pytest.raises(JournalFull):
        await journal.commit(attrs.evolve(step(first("ada")), is_retried=is_retried), epoch=epoch)
    monkeypatch.setattr(journal, "_write", write)
    assert await refusals(partial(journal.commit, step(first("bob")), epoch=epoch)) == [0] * is_retried
    assert await journal.load("s") == (first("ada" if is_retried else "bob"),)


@pytest.mark.parametrize("erase", ["delete", "erase_trees"])
async def test_erasing_a_session_drops_its_failed_steps(journal, monkeypatch, erase):
    """A kept step would make a session without its first record."""
    epoch, write, key = await journal.acquire(), journal._write, SessionKey("a", "s")

    async def fail(*_):
        raise JournalFull("no space")

    await journal.commit(step(first("ada")), epoch=epoch)
    monkeypatch.setattr(journal, "_write", fail)
    monkeypatch.setattr(journal, "_may_start", False)
    with pytest.raises(JournalFull):
        await journal.commit(
            attrs.evolve(step(StateChangeRecord(changes={"n": 1})), is_retried=True), epoch=epoch
        )
    monkeypatch.setattr(journal, "_write", write)
    if erase == "delete":
        await journal.delete("s", agent="a")
    else:
        assert await journal.erase_trees([key]) == [key]
    await journal.commit(step(first("bob")), epoch=epoch)
    assert await journal.load("s") == (first("bob"),)


async def test_owner_of_partitions_rejects_a_second_creation(postgres_url):
    """The owner of a partition rejects it as the owner of a whole journal does."""
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    from actgent.journal.postgres.partitioned_journal import PartitionedJournal

    async with PartitionedJournal(postgres_url, node="a", partitions=4).running() as journal:
        await journal.acquire()
        await journal.acquire_partitions(range(4))
        commit = partial(journal.commit, epoch=journal.epoch_of("s"))
        assert len(await refusals(*(partial(commit, step(first(name))) for name in ("ada", "bob")))) == 1
        assert len(await journal.load("s")) == 1
