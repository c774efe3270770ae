"""Passes of the event loop and jobs of the storage thread per step, with a single writer."""

import contextlib
import math
import threading
from collections import Counter

import attrs
import pytest
import trio

from actgent.errors import Fenced, JournalFull, JournalSlow, SessionExists
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import SessionCreatedRecord, StateChangeRecord
from actgent.journal.sqlite import SQLiteJournal
from actgent.messages import Sender
from actgent.support.storage_thread import StorageThread

STEPS = 20


class Rounds(trio.abc.Instrument):
    """An instrument that counts the steps of tasks."""

    def __init__(self):
        self.steps = Counter()

    def before_task_step(self, task):
        self.steps[task.name] += 1


@pytest.fixture
def jobs(monkeypatch):
    """Return the jobs of the storage thread."""
    found, begin = [], StorageThread._begin
    monkeypatch.setattr(StorageThread, "_begin", lambda self, job: found.append(job.args) or begin(self, job))
    return found


async def test_single_step_takes_one_pass_of_the_event_loop(tmp_path, make_writer):
    """The caller of the step is resumed at its end, and the writer task is not involved."""
    async with open_journal(f"sqlite:///{tmp_path}/journal.db") as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.open()
        rounds = Rounds()
        trio.lowlevel.add_instrument(rounds)
        for number in range(STEPS):
            await writer.commit(StateChangeRecord(changes={"n": number}))
        trio.lowlevel.remove_instrument(rounds)
        assert rounds.steps["journal writer"] == 0
        assert rounds.steps[trio.lowlevel.current_task().name] == STEPS
        assert await writer.load() == writer.confirmed


@pytest.fixture
def slow_disk(monkeypatch):
    """Hold back all jobs of the storage until they are released."""
    let = threading.Event()
    work = SQLiteJournal._work
    monkeypatch.setattr(SQLiteJournal, "_work", lambda *args: let.wait(10) and work(*args))
    yield let
    let.set()


@pytest.mark.parametrize("how", ["cancelled", "impatient"])
async def test_a_cancelled_leader_leaves_its_step_to_the_writer(tmp_path, make_writer, slow_disk, how):
    """Steps that other callers queued meanwhile are written too, in order, and each caller is resumed."""
    slow_disk.set()
    async with open_journal(f"sqlite:///{tmp_path}/journal.db") as journal:
        writer = make_writer(journal, await journal.acquire())
        other = make_writer(journal, writer.epoch, "other")
        await writer.open()
        slow_disk.clear()
        step = attrs.evolve(
            writer.entry(StateChangeRecord(changes={"n": 1})),
            timeout_seconds=0.1 if how == "impatient" else None,
        )
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(math.inf if how == "impatient" else 0.1) as limit:
                with pytest.raises(JournalSlow) if how == "impatient" else contextlib.nullcontext():
                    nursery.start_soon(other.open)
                    await journal.commit(step, epoch=writer.epoch)
            assert limit.cancelled_caught is (how == "cancelled")
            assert not other.confirmed
            slow_disk.set()
        await writer.commit(StateChangeRecord(changes={"n": 2}))
        assert await writer.load() == (*writer.confirmed[:1], *step.records, *writer.confirmed[1:])
        assert await other.load() == other.confirmed
        assert len(other.confirmed) == 1


async def test_a_new_session_is_written_by_one_job(tmp_path, make_writer, jobs):
    """The check for an existing session is part of the same job, also for a child with its parent."""
    async with open_journal(f"sqlite:///{tmp_path}/journal.db") as journal:
        epoch = await journal.acquire()
        jobs.clear()
        await make_writer(journal, epoch, "parent").open()
        child = make_writer(journal, epoch, "child")
        await child.commit(SessionCreatedRecord(owner=Sender("ada"), parent_id="parent", created_at=2.0))
        assert len(jobs) == 2
        head = await journal.head("a", "child")
        assert head.root.session_id == "parent"


async def test_second_creation_of_a_stored_session_is_rejected(tmp_path, make_writer):
    """The session exists in the storage and is unknown to this process: nothing is overwritten, and concurrent new sessions are written."""
    url = f"sqlite:///{tmp_path}/journal.db"
    async with open_journal(url) as journal:
        before = make_writer(journal, await journal.acquire())
        await before.open()
        await before.turn()
    async with open_journal(url) as journal:
        after = make_writer(journal, await journal.acquire())
        other = make_writer(journal, after.epoch, "other")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.open, 3.0)
            with pytest.raises(SessionExists):
                await after.open(2.0)
        await after.turn("again")
        assert await after.load() == before.confirmed + after.confirmed
        assert await other.load() == other.confirmed
        assert journal.statistics.batches == 3


@pytest.mark.parametrize("error", [JournalFull("no room"), Fenced("no room")], ids=["full", "fenced"])
async def test_callers_of_a_started_group_get_its_error(tmp_path, make_writer, monkeypatch, error):
    """Later steps are written if the journal still works."""

    def fail(*_):
        raise error

    async with open_journal(f"sqlite:///{tmp_path}/journal.db") as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.open()
        with monkeypatch.context() as broken:
            broken.setattr(SQLiteJournal, "_work", fail)
            with pytest.raises(type(error), match="no room"):
                await journal.commit(writer.entry(StateChangeRecord(changes={"n": 1})), epoch=writer.epoch)
        await writer.commit(StateChangeRecord(changes={"n": 2}))
        assert await writer.load() == writer.confirmed
