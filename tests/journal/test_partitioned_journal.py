"""A journal whose partitions are owned by several processes: the process that acquired a partition last is its only writer."""

import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import hypothesis
import pytest
import trio
import trio.testing
from hypothesis import strategies

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

import psycopg

from actgent.errors import ConfigurationError, Fenced, JournalFailed
from actgent.journal.journal_interface import Entry, Snapshot
from actgent.journal.journal_url import open_journal
from actgent.journal.postgres import cluster_pool_layout
from actgent.journal.postgres.cluster_tables_reader import read_cluster_tables, read_dead
from actgent.journal.postgres.partitioned_journal import PartitionedJournal
from actgent.journal.postgres.session_crash_counts import Suspect
from actgent.journal.postgres.session_partitioning import (
    SLOTS,
    PartitionsLost,
    partition_of_slot,
    slot_of,
    slots_of,
)
from actgent.journal.record_types import (
    MessageAcceptedRecord,
    NextTimerRecord,
    SessionClosedRecord,
    StateChangeRecord,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import Message, Sender, Text

LIVES = Path(__file__).with_name("partition_lives.py")


# --- slots -----------------------------------------------------------------------------------------


def test_the_slot_of_a_session_never_changes():
    """Databases store the slot, so all releases must compute the same one."""
    assert [slot_of(each) for each in ("", "s", "ada", "ä", "s/call/clerk")] == [692, 3806, 1319, 57, 3806]


@hypothesis.given(session_id=strategies.text(max_size=20), below=strategies.text(max_size=20))
def test_tree_is_stored_in_one_partition(session_id, below):
    """The part of an id after the first `/` does not change the slot."""
    assert slot_of(f"{session_id}/{below}") == slot_of(session_id)
    assert 0 <= slot_of(session_id) < SLOTS


@pytest.mark.parametrize("count", [1, 2, 64, 1024, SLOTS])
def test_partitions_are_equal_runs_of_slots(count):
    """Doubling the number of partitions halves each of them."""
    for partition in {0, count // 2, count - 1}:
        slots = slots_of([partition], count)
        assert len(slots) == SLOTS // count
        assert {partition_of_slot(slot, count) for slot in slots} == {partition}
        if count < SLOTS:
            assert slots == slots_of([2 * partition, 2 * partition + 1], 2 * count)


# --- two processes ---------------------------------------------------------------------------------


@asynccontextmanager
async def open_node(url, name, *, take=(), partitions=8, **options):
    """Open a journal as one of several processes."""
    async with PartitionedJournal(url, node=name, partitions=partitions, **options).running() as journal:
        await journal.acquire()
        await journal.acquire_partitions(take)
        yield journal


def in_partition(number, count=8, *, nth=0):
    """Return a session id in the given partition."""
    found = (each for each in range(10_000) if partition_of_slot(slot_of(f"s{each}"), count) == number)
    return [f"s{next(found)}" for _ in range(nth + 1)][nth]


@pytest.fixture
def writer_in(make_writer):
    """Return a function `writer_in(journal, partition)` that makes a writer of a session there in the current epoch."""

    def make(journal, number, *, nth=0):
        session_id = in_partition(number, nth=nth)
        return make_writer(journal, journal.epoch_of(session_id), session_id)

    return make


async def wait_for(server, sql, *values):
    """Poll until the server has such a row."""
    while server.execute(sql, values).fetchone() is None:  # noqa: ASYNC110 - it tells nobody
        await trio.sleep(0.01)


def writer_pid(journal):
    """Return the server process of the writing connection of a journal; None if the connection is lost."""
    with suppress(psycopg.Error):  # it is closed
        return journal._connection.info.backend_pid or None


LOCKED = "SELECT 1 FROM pg_locks WHERE pid = %s"


def message_for(session_id):
    return Message(session_id=session_id, sender=Sender("ada"), parts=(Text("hi"),))


async def test_processes_write_to_their_own_partitions(postgres_url, writer_in, make_writer):
    """Processes write concurrently, and read all partitions."""
    async with open_node(postgres_url, "a", take=[0, 1]) as a, open_node(postgres_url, "b", take=[2]) as b:
        writers = [writer_in(a, 0), writer_in(a, 1), writer_in(b, 2)]
        async with trio.open_nursery() as nursery:
            for writer in writers:
                nursery.start_soon(writer.turn)
        for journal in (a, b):
            for writer in writers:
                assert await journal.load(writer.session_id, agent="a") == writer.confirmed
        with pytest.raises(PartitionsLost, match="does not own the partitions 2 of"):
            a.epoch_of(in_partition(2))
        with pytest.raises(Fenced):
            await make_writer(a, b.epoch_of(in_partition(2)), in_partition(2)).commit(SessionClosedRecord())
        assert await b.load(in_partition(2), agent="a") == writers[2].confirmed


async def test_acquiring_a_partition_fences_the_former_owner(postgres_url, writer_in):
    """The next write of the former owner fails and is not stored; its other partitions keep working."""
    received = []
    async with (
        open_node(postgres_url, "a", take=[0, 1], on_lost=received.append) as a,
        open_node(postgres_url, "b") as b,
    ):
        lost, kept = writer_in(a, 0), writer_in(a, 1)
        await lost.turn()
        await kept.turn()
        (taken,) = await b.acquire_partitions([0])
        assert (taken.before, taken.was_clean, taken.is_kept) == ("a", False, False)
        failed = []

        async def commit(writer):
            try:
                await writer.commit(StateChangeRecord(changes={"n": 1}))
            except PartitionsLost as error:
                failed.append(error.partitions)

        async with a._storage, trio.open_nursery() as nursery:  # they go into one group
            nursery.start_soon(commit, lost)
            nursery.start_soon(commit, kept)
            await trio.testing.wait_all_tasks_blocked()
            a._storage.release()
            await trio.lowlevel.checkpoint()
            await a._storage.acquire()
        assert failed == [(0,)]
        assert received == [{0: lost.epoch}]
        assert sorted(a.owned) == [1]
        assert await a.load(kept.session_id, agent="a") == kept.confirmed
        assert await b.load(lost.session_id, agent="a") == lost.confirmed


async def test_reacquired_partition_continues_after_the_other_owner(postgres_url, writer_in):
    """The returning owner reads the heads of its sessions again."""
    async with open_node(postgres_url, "a", take=[0]) as a, open_node(postgres_url, "b") as b:
        first = writer_in(a, 0)
        await first.turn()
        await b.acquire_partitions([0])
        second = writer_in(b, 0)
        await second.turn()
        await a.acquire_partitions([0])
        third = writer_in(a, 0)
        await third.turn()
        assert await a.load(first.session_id, agent="a") == (
            first.confirmed + second.confirmed + third.confirmed
        )
        with pytest.raises(PartitionsLost):
            await first.commit(SessionClosedRecord())  # of an epoch that is over


async def test_acquiring_an_owned_partition_keeps_the_epoch(postgres_url, writer_in):
    """Running work continues in the same epoch, as after a reconnect."""
    async with open_node(postgres_url, "a", take=[0, 1]) as a, open_node(postgres_url, "b") as b:
        writer = writer_in(a, 0)
        await writer.turn()
        await b.acquire_partitions([1])
        kept, new = await a.acquire_partitions([0, 1])
        assert (kept.is_kept, new.is_kept) == (True, False)
        await writer.turn()
        assert await a.load(writer.session_id, agent="a") == writer.confirmed


async def test_a_released_partition_is_clean(postgres_url, writer_in):
    """Queued steps are written before the release; later steps are rejected."""
    async with open_node(postgres_url, "a", take=[0]) as a, open_node(postgres_url, "b") as b:
        writer = writer_in(a, 0)
        await writer.open()
        writer.enqueue_write(StateChangeRecord(changes={"n": 1}))
        await a.give_back([0, 5])
        with pytest.raises(PartitionsLost):
            writer.enqueue_write(StateChangeRecord(changes={"n": 2}))
        (taken,) = await b.acquire_partitions([0])
        assert (taken.before, taken.was_clean) == ("a", True)
        assert await b.load(writer.session_id, agent="a") == writer.confirmed[:2]


class Interrupted(PartitionedJournal):
    """A journal in which a callback runs while queued steps are written."""

    meanwhile = None

    async def _flush(self, key):
        if self.meanwhile is not None:
            fn, self.meanwhile = self.meanwhile, None
            await fn()
        await super()._flush(key)


async def test_release_skips_a_partition_acquired_again(postgres_url):
    """A new ownership began in between, and its sessions are active."""
    async with (
        Interrupted(postgres_url, node="a").running() as a,
        open_node(postgres_url, "b") as b,
        open_node(postgres_url, "c") as c,
    ):
        await a.acquire()
        await a.acquire_partitions([0])

        async def lose_and_take():
            await b.acquire_partitions([0])
            await a.detect_lost()
            await a.acquire_partitions([0])

        a.meanwhile = lose_and_take
        await a.give_back([0])
        assert a.owned == {0: 3}
        (taken,) = await c.acquire_partitions([0])
        assert (taken.before, taken.was_clean) == ("a", False)


async def test_a_partition_that_could_not_be_released_is_still_owned(postgres_url, monkeypatch):
    """The next release succeeds, and the partition is clean for the next owner."""
    async with open_node(postgres_url, "a", take=[0]) as a, open_node(postgres_url, "b") as b:
        give_back = a._table.give_back

        async def fail(_):
            monkeypatch.setattr(a._table, "give_back", give_back)
            await trio.lowlevel.checkpoint()
            raise JournalFailed("the database is away")

        monkeypatch.setattr(a._table, "give_back", fail)
        with pytest.raises(JournalFailed):
            await a.give_back([0])
        assert a.owned == {0: 1}
        await a.give_back([0])
        assert a.owned == {}
        (taken,) = await b.acquire_partitions([0])
        assert taken.was_clean


async def test_look_detects_lost_partitions(postgres_url):
    """The check needs no write."""
    received = []
    async with (
        open_node(postgres_url, "a", take=[0, 1, 2], on_lost=received.append) as a,
        open_node(postgres_url, "b", take=[1]),
    ):
        assert await a.detect_lost() == [1]
        assert await a.detect_lost() == []
        assert received == [{1: 1}]
        assert sorted(a.owned) == [0, 2]


@pytest.mark.parametrize("is_new", [True, False], ids=["made anew", "put back"])
@pytest.mark.parametrize("is_looked_at", [True, False], ids=["look", "write"])
async def test_equal_epoch_has_one_owner(postgres_url, writer_in, is_new, is_looked_at):
    """After the schema is recreated, or a stale replica takes over, the earlier owner of an equal epoch loses it."""
    server, _, schema = postgres_url.partition("?schema=")
    received = []
    async with open_node(postgres_url, "a", take=[0], on_lost=received.append) as a:
        writer = writer_in(a, 0)
        await writer.turn()
        with psycopg.connect(server, autocommit=True) as other:
            other.execute(f"DROP SCHEMA {schema} CASCADE" if is_new else f"DELETE FROM {schema}.partitions")
        async with open_node(postgres_url, "b", take=[0]) as b:
            assert b.owned == a.owned == {0: 1}
            if is_looked_at:
                assert await a.detect_lost() == [0]
            with pytest.raises(PartitionsLost):
                await writer.turn()
            assert (received, a.owned) == ([{0: 1}], {})
            assert len(await b.sessions()) == (0 if is_new else 1)
            if is_new:
                with pytest.raises(Fenced, match="cannot acquire partitions of the pool"):
                    await a.acquire_partitions([0])
            assert await b.detect_lost() == []


@pytest.mark.parametrize("has_written", [True, False])
async def test_a_step_is_not_written_under_a_later_epoch(postgres_url, writer_in, monkeypatch, has_written):
    """The partition is lost and acquired again while the head of the session is read; the other process may have written there."""
    received = []
    async with (
        open_node(postgres_url, "a", take=[0], on_lost=received.append) as a,
        open_node(postgres_url, "b") as b,
    ):
        writer = writer_in(a, 0)
        await writer.open()
        read_parents = a._read_parents

        async def lose_meanwhile(*args):
            await read_parents(*args)
            monkeypatch.undo()
            await b.acquire_partitions([0])
            if has_written:
                await writer_in(b, 0).commit(StateChangeRecord(changes={"of": "b"}))
            assert await a.detect_lost() == [0]
            await a.acquire_partitions([0])

        monkeypatch.setattr(a, "_read_parents", lose_meanwhile)
        a._heads.by_key.clear()
        with pytest.raises(PartitionsLost):
            await writer.commit(StateChangeRecord(changes={"of": "a"}))
        assert (received, a.owned, a.fenced) == ([{0: 1}], {0: 3}, 1)
        again = writer_in(a, 0)
        before = await again.load()
        assert len(before) == 1 + has_written
        await again.commit(StateChangeRecord(changes={"of": "a"}))
        assert await again.load() == (*before, *again.confirmed)


async def test_missing_pool_is_reported(postgres_url):
    """A node reports the missing pool at each look, and keeps running."""
    server, _, schema = postgres_url.partition("?schema=")
    async with open_node(postgres_url, "a", take=[0]) as a:
        with psycopg.connect(server, autocommit=True) as other:
            other.execute(f"DELETE FROM {schema}.cluster")
        with pytest.raises(JournalFailed, match="the pool 'default' was removed"):
            await a.detect_lost()


async def test_work_lists_contain_owned_sessions_only(postgres_url, writer_in):
    """Unfinished messages, timers and erasures cover owned sessions; pages and counts cover all sessions."""
    async with open_node(postgres_url, "a", take=[0]) as a, open_node(postgres_url, "b", take=[1]) as b:
        for writer in (writer_in(a, 0), writer_in(b, 1)):
            await writer.open()
            await writer.commit(
                MessageAcceptedRecord(message=message_for(writer.session_id)), NextTimerRecord(at=5.0)
            )
        mine, other = in_partition(0), in_partition(1)
        assert (await a.unfinished("a"), await b.unfinished("a")) == ([mine], [other])
        assert (await a.due("a"), await b.due("a")) == ([(mine, 5.0)], [(other, 5.0)])
        for journal in (a, b):
            assert {each.session_id for each in await journal.page()} == {mine, other}
            assert (await journal.counts())["working"] == 2
            assert {each.session_id for each in await journal.sessions("a")} == {mine, other}
        await b.acquire_partitions([0])
        assert sorted(await b.unfinished("a")) == sorted([mine, other])


async def test_uncertain_steps_of_a_lost_partition_are_not_rolled_back(postgres_url, writer_in):
    """A list raises no error for them, and rolls nothing back that the new owner has written."""
    async with open_node(postgres_url, "n", take=[1]) as here, open_node(postgres_url, "o") as there:
        ours = writer_in(here, 1)
        await ours.open()
        key = SessionKey(ours.agent, ours.session_id)
        here._heads.uncertain[key] = None
        await there.acquire_partitions([1])
        theirs = writer_in(there, 1)
        await theirs.commit(StateChangeRecord(changes={"n": 1}))
        assert [each.records for each in await here.sessions()] == [2]
        assert not here.owned
        assert not here._heads.uncertain


async def test_failed_steps_of_a_lost_partition_are_dropped(postgres_url, writer_in, monkeypatch):
    """The new owner continues without them."""
    async with open_node(postgres_url, "n", take=[1]) as journal:
        writer = writer_in(journal, 1)
        failed = trio.Event()

        async def lose(rows, heads, epoch):
            journal._lose([1])
            failed.set()
            raise JournalFailed("the server is away")

        monkeypatch.setattr(journal, "_write", lose)
        writer.enqueue_write(StateChangeRecord(changes={"n": 1}))
        await failed.wait()
        await journal.sessions()
        assert not journal._queue.failed


async def test_heads_of_sessions_that_are_not_owned_are_never_cached(postgres_url, writer_in):
    """The owners of these sessions may have written meanwhile."""
    async with open_node(postgres_url, "a", take=[0]) as a, open_node(postgres_url, "b") as b:
        writer = writer_in(a, 0)
        await writer.open()
        for count in (1, 2, 3):
            assert (await b.head("a", writer.session_id)).records == count
            assert len(await b.load(writer.session_id, agent="a")) == count
            await writer.commit(StateChangeRecord(changes={"n": count}))


async def test_remote_session_is_read_consistently(postgres_url, writer_in):
    """A step that its owner writes during the read is visible completely or not at all."""
    async with open_node(postgres_url, "a", take=[0]) as a, open_node(postgres_url, "b") as b:
        writer, is_over = writer_in(a, 0), trio.Event()
        await writer.open()
        seen = []

        async def write():
            for number in range(200):
                await writer.commit(
                    StateChangeRecord(changes={"n": number}), StateChangeRecord(changes={"m": number})
                )
            is_over.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            while not is_over.is_set():
                seen.append(len(await b.load(writer.session_id, agent="a")))
                seen.append(len((await b.load_tail(writer.session_id, agent="a")).records))
                seen.append(len(await b.read(writer.session_id, agent="a")))
        assert seen == sorted(seen)
        assert all(each % 2 == 1 for each in seen)
        assert len({*seen}) > 10


async def test_snapshots_and_erasing_are_fenced_as_well(postgres_url, writer_in):
    """They use other statements than steps."""
    async with open_node(postgres_url, "a", take=[0]) as a, open_node(postgres_url, "b") as b:
        writer = writer_in(a, 0)
        await writer.turn()
        session_id, old = writer.session_id, writer.epoch
        snapshot = Snapshot(records=2, version=1, body=b"x")
        assert await a.keep_snapshot(session_id, snapshot, agent="a", epoch=old)
        await b.acquire_partitions([0])
        for _ in range(2):  # it does not know at first
            for call in (
                lambda: a.keep_snapshot(session_id, snapshot, agent="a", epoch=old),
                lambda: a.drop_snapshots(session_id, agent="a", epoch=old),
                lambda: a.delete(session_id, agent="a"),
            ):
                with pytest.raises(PartitionsLost):
                    await call()
            await a.detect_lost()
        assert await b.find_snapshot(session_id, agent="a") == snapshot
        await b.delete(session_id, agent="a")
        assert await b.load(session_id, agent="a") == ()


async def test_a_write_delayed_by_a_takeover_is_fenced(postgres_url, writer_in):
    """The epoch is checked again after the takeover; the other partition of the group is written."""
    server, _, schema = postgres_url.partition("?schema=")
    async with open_node(postgres_url, "a", take=[0]) as a, trio.open_nursery() as nursery:
        writer = writer_in(a, 0)
        await writer.open()
        refused = []

        async def commit():
            with pytest.raises(PartitionsLost):
                await writer.commit(StateChangeRecord(changes={"n": 1}))
            refused.append(True)

        with trio.fail_after(30), psycopg.connect(server) as taker:
            taker.execute(f"UPDATE {schema}.partitions SET epoch = epoch + 1, owner = 'b' WHERE p = 0")
            nursery.start_soon(commit)
            pid = a._connection.info.backend_pid
            await wait_for(taker, f"{LOCKED} AND NOT granted", pid)
            taker.commit()
            while not refused:  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert taker.execute(f"SELECT count(*) FROM {schema}.steps").fetchone() == (1,)


async def test_write_with_a_lost_connection_is_stored_once(link, postgres_url, writer_in):
    """The server may still execute the write, so its process is ended before the outcome is read."""
    link, url = link
    server, _, schema = postgres_url.partition("?schema=")
    async with open_node(url, "a", take=[0, 1]) as a, trio.open_nursery() as nursery:
        writer, other = writer_in(a, 0), writer_in(a, 1)
        await writer.open()
        await other.open()
        with trio.fail_after(60), psycopg.connect(server) as blocker:
            blocker.execute(
                f"SELECT 1 FROM {schema}.sessions WHERE session_id = %s FOR UPDATE", [writer.session_id]
            )
            nursery.start_soon(writer.commit, StateChangeRecord(changes={"n": 1}))
            pid = a._connection.info.backend_pid
            await wait_for(blocker, f"{LOCKED} AND NOT granted", pid)
            link.cut()
            while (new := writer_pid(a)) in (None, pid):  # noqa: ASYNC110
                await trio.sleep(0.01)
            await wait_for(blocker, f"{LOCKED} AND NOT granted", new)
            blocker.commit()
            while len(writer.confirmed) < 2:  # noqa: ASYNC110
                await trio.sleep(0.01)
        await other.turn()
        for each in (writer, other):
            assert await a.load(each.session_id, agent="a") == each.confirmed


async def test_owner_of_all_and_owners_of_partitions_exclude_each_other(postgres_url, writer_in, make_writer):
    """Each finds the records of the other, and no cached head of a former ownership is used."""
    async with open_node(postgres_url, "a", take=[0]) as a:
        writer = writer_in(a, 0)
        await writer.turn()
        async with open_journal(postgres_url) as alone:
            with pytest.raises(Fenced, match="the cluster that a is of"):
                await alone.acquire()
    async with open_journal(postgres_url) as alone:
        owner = make_writer(alone, await alone.acquire(), writer.session_id)
        await owner.turn()
        await make_writer(alone, owner.epoch, in_partition(0, nth=1)).open()
        with pytest.raises(Fenced, match="no cluster can share it: stop that process first"):
            async with open_node(postgres_url, "a"):
                pass
    async with open_node(postgres_url, "a") as a:
        (taken,) = await a.acquire_partitions([0])
        assert taken.epoch > writer.epoch + 1
        again = writer_in(a, 0)
        await again.turn()
        assert (
            await a.load(writer.session_id, agent="a") == writer.confirmed + owner.confirmed + again.confirmed
        )
        await writer_in(a, 0, nth=1).commit(
            MessageAcceptedRecord(message=message_for(in_partition(0, nth=1)))
        )
        assert await a.unfinished("a") == [in_partition(0, nth=1)]  # its slot was filled in


async def test_all_processes_have_the_same_partition_count(postgres_url):
    """Only a new pool accepts another number; a number that is no power of two is rejected."""
    async with (
        open_node(postgres_url, "a", partitions=8),
        open_node(postgres_url, "b", partitions=16) as b,
        open_node(postgres_url, "c", partitions=16, pool="other") as c,
    ):
        assert (b.count, c.count) == (8, 16)
    for count in (0, 3, 2 * SLOTS):
        with pytest.raises(ConfigurationError, match="power of two"):
            PartitionedJournal(postgres_url, node="a", partitions=count)


# --- processes that die or hang --------------------------------------------------------------------


class Life:
    """A process that writes to all partitions."""

    def __init__(self, url, name):
        command = [sys.executable, str(LIVES), url, name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.wrote = {}
        self.lost = set()

    async def read(self, *, until):
        """Read the output of the process until a condition holds."""
        with trio.fail_after(60):
            while not until():
                words = (await trio.to_thread.run_sync(self.process.stdout.readline)).split()
                assert words, "it has ended"
                self.note(words)

    def read_rest(self):
        """Read the remaining output of an ended process, without a line that the kill cut off."""
        for line in self.process.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                self.note(line.split())
        self.process.wait()

    def note(self, text):
        if text[0] == "wrote":
            self.wrote[text[1]] = int(text[2])
        elif text[0] == "lost":
            self.lost.add(text[1])

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def start_life():
    lives = []

    def start(url, name):
        lives.append(Life(url, name))
        return lives[-1]

    yield start
    for life in lives:
        life.end()


async def test_another_process_takes_over_from_a_killed_one(postgres_url, start_life):
    """All confirmed records exist, and unfinished sessions are on the work list."""
    life = start_life(postgres_url, "a")
    await life.read(until=lambda: len(life.wrote) == 12 and min(life.wrote.values()) > 4)
    os.kill(life.process.pid, signal.SIGKILL)
    life.read_rest()
    async with open_node(postgres_url, "b") as b:
        taken = await b.acquire_partitions(range(8))
        assert {(each.before, each.was_clean) for each in taken} == {("a", False)}
        assert sorted(await b.unfinished("a")) == sorted(life.wrote)
        for session_id, count in life.wrote.items():
            records = await b.load(session_id, agent="a")
            assert len(records) in (count, count + 1)
            assert [each.changes["n"] for each in records[2:]] == list(range(2, len(records)))


async def test_resumed_process_writes_nothing(postgres_url, start_life):
    """A suspended process holds no lock; after it continues, it learns that its partitions have a new owner."""
    life = start_life(postgres_url, "a")
    await life.read(until=lambda: len(life.wrote) == 12 and min(life.wrote.values()) > 4)
    os.kill(life.process.pid, signal.SIGSTOP)
    async with open_node(postgres_url, "b") as b:
        await b.acquire_partitions(range(8))
        before = {}
        for session_id in life.wrote:
            writer = Entry(session_id=session_id, agent="a", records=(SessionClosedRecord(),))
            await b.commit(writer, epoch=b.epoch_of(session_id))
            before[session_id] = await b.load(session_id, agent="a")
        os.kill(life.process.pid, signal.SIGCONT)
        await life.read(until=lambda: len(life.lost) == 12)
        for session_id, records in before.items():
            assert await b.load(session_id, agent="a") == records
            assert isinstance(records[-1], SessionClosedRecord)
            assert len(records) - 1 >= life.wrote[session_id]


async def test_tables_of_an_older_release_are_reported(postgres_url):
    """Nodes of an older release run during an upgrade, and operators query them."""
    async with open_node(postgres_url, "a"):
        assert await read_dead(postgres_url) == ()
    server, _, schema = postgres_url.partition("?schema=")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {schema}.dead DROP COLUMN request")
    with pytest.raises(ConfigurationError, match="older release: start a node of this release first"):
        await read_dead(postgres_url)


async def test_ownership_queries_are_retried_while_the_server_starts(link, nursery):
    """This holds for a joining node, for a node that reconnects, and for queries of the agents' hosts."""
    link, url = link
    await nursery.start(link.start_up)
    journal = PartitionedJournal(url, node="n1", partitions=4, on_lost=print)
    with trio.fail_after(60):
        async with journal.running():
            await journal.acquire()
            for ask in (lambda: journal.hosts.claim(["clerk"]), lambda: journal.acquire_partitions([1])):
                await nursery.start(link.start_up)
                link.cut()
                await ask()
            assert list(journal.owned) == [1]


async def test_commands_wait_for_a_starting_server(link, nursery):
    """Commands and nodes wait concurrently."""
    link, url = link
    async with open_node(url, "a"):
        pass
    asks = (
        read_dead(url),
        read_cluster_tables(url, "default"),
        cluster_pool_layout.read_layout(url, "default"),
    )
    with trio.fail_after(60):
        for asked in asks:
            await nursery.start(link.start_up)
            await asked
            assert not link.is_starting


async def test_a_death_is_counted_once(link, postgres_url, writer_in):
    """The connection is lost after the statement that counts the death; the next death is counted separately."""
    link, url = link
    server, _, schema = postgres_url.partition("?schema=")
    async with open_node(postgres_url, "a", take=[0]) as a, open_node(url, "b") as b:
        writer = writer_in(a, 0)
        await writer.open()
        await writer.commit(MessageAcceptedRecord(message=message_for(writer.session_id)))
        suspects, left = [], partial(b.suspects.count_deaths, [0], b.count, ["a"], died=[0], dead=["a"])
        opened = [SessionKey("a", writer.session_id)]
        with (
            trio.fail_after(60),
            psycopg.connect(server) as blocker,
            psycopg.connect(server, autocommit=True) as watch,
        ):
            for _ in range(2):
                await a.acquire_partitions([0])
                await b.acquire_partitions([0])
                for _ in range(2):
                    assert await left() == []
                await b.suspects.mark_open(opened)
            await a.acquire_partitions([0])
            await b.acquire_partitions([0])
            blocker.execute(f"SELECT 1 FROM {schema}.suspects FOR UPDATE")

            async def count():
                suspects.extend(await left())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(count)
                first = await blocked_by(watch, blocker.info.backend_pid)
                link.cut()
                await blocked_by(watch, first)
                blocker.commit()
        assert [(each.crashes, each.alone) for each in suspects] == [(3, 0)]


async def begin_message(writer):
    """Begin a message in a session. Return the key of the session."""
    await writer.open()
    await writer.commit(MessageAcceptedRecord(message=message_for(writer.session_id)))
    return SessionKey(writer.agent, writer.session_id)


async def die(a, b, *opened, dead=("a",)):
    """Let the first node own a partition, open sessions and die together with the nodes in `dead`. Return the counts of the second node by session key."""
    await a.acquire_partitions([0])
    await a.suspects.mark_open(opened)
    await b.acquire_partitions([0])
    found = await b.suspects.count_deaths([0], 8, ["a"], died=[0], dead=dead)
    return {each.key: (each.crashes, each.alone) for each in found}


async def test_only_sessions_that_were_opened_again_are_counted(postgres_url, writer_in):
    """A session that waited for another one did not kill its process."""
    async with open_node(postgres_url, "a", take=[0]) as a, open_node(postgres_url, "b") as b:
        keys = [await begin_message(writer_in(a, 0, nth=number)) for number in range(2)]
        assert await die(a, b, *keys) == {}
        assert await die(a, b, *keys) == {}
        assert await die(a, b, keys[0]) == {keys[0]: (3, 0), keys[1]: (2, 0)}
        assert await die(a, b) == {keys[0]: (3, 0), keys[1]: (2, 0)}
        assert await die(a, b, *keys) == {keys[0]: (4, 0), keys[1]: (3, 0)}


async def test_death_with_a_single_suspect_counts_for_that_session(postgres_url, writer_in):
    """The node may have other open sessions."""
    async with open_node(postgres_url, "a", take=[0]) as a, open_node(postgres_url, "b") as b:
        keys = [await begin_message(writer_in(a, 0, nth=number)) for number in range(2)]
        for _ in range(2):
            await die(a, b, *keys)
        assert await die(a, b, *keys) == {keys[0]: (3, 0), keys[1]: (3, 0)}
        for alone in (1, 2):
            await a.acquire_partitions([0])
            await a.suspects.mark_watched(keys[0], is_alone=True)
            assert await die(a, b, keys[1]) == {keys[0]: (3 + alone, alone), keys[1]: (3, 0)}
        await b.suspects.note_survived(keys[0])
        assert await die(a, b, keys[0]) == {keys[0]: (6, 0), keys[1]: (3, 0)}


@pytest.mark.parametrize(
    ("deaths", "must_be_dead_lettered"),
    [
        ("xx", True),
        ("xs", False),
        ("ss", False),
        ("sx", False),
        ("sxx", True),
        ("sss", False),
        ("ssss", True),
    ],
)
async def test_deaths_of_several_nodes_need_more_evidence(
    postgres_url, writer_in, deaths, must_be_dead_lettered
):
    """A message is dead-lettered after two deaths of its node alone, or after four if other nodes died as well (`s`)."""
    async with open_node(postgres_url, "a", take=[0]) as a, open_node(postgres_url, "b") as b:
        key = await begin_message(writer_in(a, 0))
        for _ in range(3):
            await die(a, b, key)
        for death in deaths:
            await a.acquire_partitions([0])
            await a.suspects.mark_watched(key, is_alone=True)
            await die(a, b, dead=["a", "c"] if death == "s" else ["a"])
        (found,) = await b.suspects.count_deaths([0], 8, ["a"])
        assert (found.alone, found.shared) == (len(deaths), deaths.count("s"))
        assert found.must_be_dead_lettered == must_be_dead_lettered
        await b.suspects.note_survived(key)
        (found,) = await b.suspects.count_deaths([0], 8, ["a"])
        assert (found.alone, found.shared) == (0, 0)


async def test_death_counts_for_watched_and_new_sessions(postgres_url, writer_in):
    """A suspect that survived is not counted again. A new session may be the cause."""
    async with open_node(postgres_url, "a", take=[0]) as a, open_node(postgres_url, "b") as b:
        keys = [await begin_message(writer_in(a, 0, nth=number)) for number in range(3)]
        for _ in range(3):
            await die(a, b, *keys)
        await a.acquire_partitions([0])
        new = await begin_message(writer_in(a, 0, nth=3))
        for key in keys[:2]:
            await a.suspects.mark_watched(key, is_alone=False)
        counted = {keys[0]: (4, 0), keys[1]: (4, 0), keys[2]: (3, 0), new: (1, 0)}
        assert await die(a, b, keys[2]) == counted


async def test_dead_lettered_message_lowers_the_counts_of_other_suspects(postgres_url, writer_in):
    """The other suspects return to three deaths, and keep that count at the next death."""
    async with open_node(postgres_url, "a", take=[0]) as a, open_node(postgres_url, "b") as b:
        keys = [await begin_message(writer_in(a, 0, nth=number)) for number in range(2)]
        for _ in range(5):
            await die(a, b, *keys)
        for alone in (1, 2):
            await a.acquire_partitions([0])
            await a.suspects.mark_watched(keys[0], is_alone=True)
            counted = await die(a, b)
            assert counted == {keys[0]: (5 + alone, alone), keys[1]: (5 if alone == 1 else 3, 0)}
        assert await die(a, b) == {keys[0]: (7, 2), keys[1]: (3, 0)}


async def test_the_sessions_near_the_limit_are_named_with_their_records(postgres_url, writer_in):
    """Only for these sessions the journal checks whether they completed a model call since the first death."""
    async with open_node(postgres_url, "a", take=[0]) as a, open_node(postgres_url, "b") as b:
        keys = [await begin_message(writer_in(a, 0, nth=number)) for number in range(2)]
        await die(a, b, *keys)
        await die(a, b, *keys)
        await a.acquire_partitions([0])
        await a.suspects.mark_open(keys[:1])
        assert await b.suspects.list_near_suspects([0], 8, ["a"]) == {keys[0]: 2}
        await b.suspects.clear_all(keys[:1])
        assert await b.suspects.list_near_suspects([0], 8, ["a"]) == {}


async def test_a_late_count_does_not_change_the_counts_of_the_next_owner(postgres_url, writer_in):
    """A former owner changes neither marks nor counts of the partition."""
    async with open_node(postgres_url, "a", take=[0]) as a, open_node(postgres_url, "b") as b:
        key = await begin_message(writer_in(a, 0))
        for _ in range(2):
            await die(a, b, key)
        assert await die(a, b, key) == {key: (3, 0)}
        await b.suspects.mark_watched(key, is_alone=True)
        await a.suspects.note_survived(key)
        await a.suspects.clear(key)
        assert await a.suspects.count_deaths([0], 8, ["a"], died=[0], dead=["a"]) == [
            Suspect(key=key, crashes=3, alone=0)
        ]
        assert await die(b, a) == {key: (4, 1)}


async def test_messages_for_former_owners_are_stored_in_few_statements(postgres_url, monkeypatch):
    """Messages are stored in order for each session. None is stored for a partition acquired since."""
    async with open_node(postgres_url, "a", take=range(4)) as a, open_node(postgres_url, "b", take=[0]) as b:
        ids = {part: in_partition(part) for part in range(4)}
        table, select, statements, stored = a.pending_messages, a._table.select, [], {}

        async def count(sql, values):
            statements.append(sql)
            return await select(sql, values)

        monkeypatch.setattr(a._table, "select", count)

        async def store(part, number):
            stored[part, number] = await table.store(
                part, 1, session_id=ids[part], message_id=f"m{part}-{number}", request=b"%d" % number
            )

        async with trio.open_nursery() as nursery:
            for number in range(5):
                for part in range(4):
                    nursery.start_soon(store, part, number)
        await store(1, 0)
        assert len(statements) <= 3
        assert stored == {(part, number): part > 0 for part in range(4) for number in range(5)}
        found = await b.pending_messages.select(range(4), b.count)
        kept = sorted((each.session_id, each.message_id, each.request) for each in found)
        assert kept == sorted((ids[part], f"m{part}-{n}", b"%d" % n) for part in (1, 2, 3) for n in range(5))


async def blocked_by(server, pid):
    """Return the server process that waits for another one."""
    sql = "SELECT pid FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
    while (row := server.execute(sql, [pid]).fetchone()) is None:  # noqa: ASYNC110
        await trio.sleep(0.01)
    return row[0]
