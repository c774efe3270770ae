"""Sessions that are requested at the same time are read together."""

import outcome
import pytest
import trio
import trio.testing

from actgent.errors import JournalDamaged, JournalFailed
from actgent.journal.group_commit.read_batching import GROUP_READS, GROUP_RECORDS, ReadBatcher, Stored
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import StateChangeRecord

SESSIONS = 200


# --- over all journals -------------------------------------------------------------------


@pytest.fixture
async def counted(journal, monkeypatch):
    """Yield the journal and the calls of its storage by name, with the number of sessions of each call."""
    calls = {"_read_some": [], "_read_heads": []}
    for name, sizes in calls.items():
        whole = getattr(type(journal), name)

        async def count(session_ids, whole=whole, sizes=sizes):
            found = await whole(journal, session_ids)
            sizes.append(len(found))
            return found

        monkeypatch.setattr(journal, name, count)
    return calls


async def load_all(journal, session_ids):
    """Return the records of the sessions, all requested at once."""
    found = {}

    async def load(session_id):
        found[session_id] = await journal.load(session_id)

    async with trio.open_nursery() as nursery:
        for session_id in session_ids:
            nursery.start_soon(load, session_id)
    return found


async def test_many_sessions_are_read_in_few_calls(journal, make_writer, counted):
    """Each request gets its own records in order; a missing session has none."""
    epoch = await journal.acquire()
    writers = [make_writer(journal, epoch, f"s{number}") for number in range(SESSIONS)]
    for writer in writers:
        writer.enqueue_write(StateChangeRecord(changes={"id": writer.session_id}))
        writer.enqueue_write(StateChangeRecord(changes={"again": writer.session_id}))
    await journal.unfinished("a")
    found = await load_all(journal, [*(writer.session_id for writer in writers), "nobody"])
    assert found == {writer.session_id: writer.confirmed for writer in writers} | {"nobody": ()}
    assert len(counted["_read_some"]) <= 2 + SESSIONS // GROUP_READS


async def test_long_sessions_are_read_one_by_one(journal, make_writer, counted):
    """Writers need not wait until all of them are read."""
    epoch = await journal.acquire()
    writers = [make_writer(journal, epoch, f"s{number}") for number in range(4)]
    for writer in writers:
        await writer.commit(*[StateChangeRecord(changes={"n": number}) for number in range(GROUP_RECORDS)])
    found = await load_all(journal, [writer.session_id for writer in writers])
    assert found == {writer.session_id: writer.confirmed for writer in writers}
    assert counted["_read_some"] == [1] * 4


async def test_write_after_a_load_reads_no_head(lasting_url, make_writer):
    """Its head is cached from the load."""
    async with open_journal(lasting_url) as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.turn()
    async with open_journal(lasting_url) as journal:
        writer.journal, writer.epoch = journal, await journal.acquire()
        assert await writer.load() == writer.confirmed
        journal._read_heads = None  # nobody asks for it
        await writer.turn("more", "yes")
        assert await writer.load() == writer.confirmed


# --- who reads for whom ------------------------------------------------------------------


class Storage:
    """A storage with all sessions but the damaged ones, which reads when it is released."""

    def __init__(self, *bad, is_vague=False):
        self.bad, self.is_vague = bad, is_vague
        self.groups = []
        self.may_read = trio.Event()
        self.may_read.set()

    async def read_some(self, session_ids):
        self.groups.append(list(session_ids))
        await self.may_read.wait()
        if self.is_vague and any(each in self.bad for each in session_ids):
            raise JournalDamaged("somewhere")
        return [outcome.capture(self._read, session_id) for session_id in session_ids]

    def _read(self, session_id):
        if session_id in self.bad:
            raise JournalDamaged("here", session_id=session_id)
        return Stored(None, (session_id,))


async def read_all(readings, by, session_ids):
    """Return the result or the error class of each request."""
    got = {}

    async def read(session_id):
        try:
            got[session_id] = (await readings.read(session_id, by)).records
        except (JournalDamaged, JournalFailed) as error:
            got[session_id] = type(error)

    async with trio.open_nursery() as nursery:
        for session_id in session_ids:
            nursery.start_soon(read, session_id)
    return got


@pytest.mark.parametrize("is_vague", [False, True])
async def test_a_damaged_session_fails_only_its_own_read(is_vague):
    """This holds even if the storage cannot say which session is damaged."""
    storage = Storage("b", "d", is_vague=is_vague)
    got = await read_all(ReadBatcher(trio.Lock()), storage.read_some, "abcde")
    assert got == {"a": ("a",), "b": JournalDamaged, "c": ("c",), "d": JournalDamaged, "e": ("e",)}


async def test_failing_storage_fails_each_request():
    """Each request is retried alone, and no caller is left waiting."""

    async def fail(session_ids):
        await trio.lowlevel.checkpoint()
        raise JournalFailed("no disk")

    assert await read_all(ReadBatcher(trio.Lock()), fail, "abc") == dict.fromkeys("abc", JournalFailed)


@pytest.mark.parametrize("cancelled", range(4))
async def test_a_cancelled_read_blocks_no_other_read(cancelled, autojump_clock):
    """The cancelled task blocks neither the reading task, nor tasks it reads for, nor later tasks."""
    storage = Storage()
    storage.may_read = trio.Event()
    readings = ReadBatcher(trio.Lock())
    scopes, got = [trio.CancelScope() for _ in range(4)], []

    async def read(number):
        with scopes[number]:
            got.append((await readings.read(number, storage.read_some)).records)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(read, number)
            await trio.sleep(1 if number < 2 else 0)
        scopes[cancelled].cancel()
        await trio.sleep(1)
        storage.may_read.set()
    assert sorted(got) == [(number,) for number in range(4) if number != cancelled]
    assert readings._waiting == []


async def test_requests_during_a_read_form_the_next_batch():
    """The first of the waiting tasks reads for all."""
    storage = Storage()
    storage.may_read = trio.Event()
    readings = ReadBatcher(trio.Lock())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(readings.read, "first", storage.read_some)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(5):
            nursery.start_soon(readings.read, f"later {number}", storage.read_some)
        await trio.testing.wait_all_tasks_blocked()
        storage.may_read.set()
    assert [len(group) for group in storage.groups] == [1, 5]


async def test_requests_of_one_kind_are_read_together():
    """Requests of another kind may arrive in between; those are read next."""
    heads, pages = Storage(), Storage()
    heads.may_read = trio.Event()
    readings = ReadBatcher(trio.Lock())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(readings.read, "first", heads.read_some)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(4):
            nursery.start_soon(readings.read, number, (heads, pages)[number % 2].read_some)
        await trio.testing.wait_all_tasks_blocked()
        heads.may_read.set()
    groups = [[set(group) for group in storage.groups] for storage in (heads, pages)]
    assert groups == [[{"first"}, {0, 2}], [{1, 3}]]
