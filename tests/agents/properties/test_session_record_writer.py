"""`SessionLog` against a model: several writers, and writes that are slow, fail or are cancelled.

Added records occur once and in order. An acknowledged record is in the journal, a rejected one is not, and a cancelled one may
be. A failure repeats with its seed.
"""

import os
import random
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from actgent import Sender
from actgent.errors import JournalFailed, JournalFull, JournalSlow, NotSerializable, SessionExists
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import (
    NextTimerRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    StateChangeRecord,
)
from actgent.sessions.session_record_writer import SessionLog

SEEDS = 2000 if os.environ.get("ACTGENT_SOAK") else 60
STEPS = 12
"""Number of operations of each writer."""


class UnsteadyJournal(MemoryJournal):
    """A journal whose writes are slow, fail, or succeed and then report a failure."""

    def __init__(self, chance):
        super().__init__()
        self.chance = chance
        self.is_steady = False

    async def _write(self, *args):
        kind = (
            "steady" if self.is_steady else self.chance.choice(("steady", "steady", "full", "lost", "unsure"))
        )
        if not self.is_steady:
            await trio.sleep(self.chance.choice((0, 0.01, 0.2)))
        if kind == "full":
            raise JournalFull("memory")
        if kind == "lost":
            raise JournalFailed("the connection broke")
        await super()._write(*args)
        if kind == "unsure":
            raise JournalFailed("the connection broke behind the commit")


@attrs.define(eq=False)
class Model:
    """A log, and the expected result of each record in order."""

    log: SessionLog
    chance: random.Random
    fates: dict[int, str] = attrs.field(factory=dict)
    early: set[int] = attrs.field(factory=set)
    """Numbers of writes that wait for the creation of the session; later records can precede them."""

    def next(self, fate):
        number = len(self.fates)
        self.fates[number] = fate
        return number, StateChangeRecord(changes={"n": number})

    async def act(self):
        what = self.chance.choice(
            ("add", "add", "soon", "flush", "flush", "write", "write", "change", "date")
        )
        if what == "add":
            self.log.add(self.next("there")[1])
        elif what == "soon":
            self.log.flush_soon()
        elif what == "change":
            self.log.record_state_change(self.next("there")[1])
        elif what == "date":
            self.log.set_timer(self.chance.randrange(1, 1000))
        elif what == "flush":
            await self.flush()
        else:
            await self.write()

    async def flush(self):
        with trio.move_on_after(self.chance.choice((0, 0.1, 100))):
            with suppress(JournalFull, JournalFailed):
                await self.log.flush()

    async def write(self):
        number, record = self.next("perhaps")
        if self.log._opened is not None:
            self.early.add(number)
        with trio.move_on_after(self.chance.choice((0, 0.1, 100))):
            try:
                await self.log.write(record, timeout_seconds=self.chance.choice((None, 0.1)))
            except JournalSlow:
                pass
            except (JournalFull, JournalFailed):
                self.fates[number] = "refused"
            else:
                self.fates[number] = "there"

    async def live(self):
        for _ in range(STEPS):
            await self.act()
            await trio.sleep(self.chance.choice((0, 0, 0.05, 0.3)))

    def check(self, records):
        assert [isinstance(record, SessionCreatedRecord) for record in records] == [True] + [False] * (
            len(records) - 1
        )
        there = [record.changes["n"] for record in records if isinstance(record, StateChangeRecord)]
        assert len(there) == len(set(there))
        in_order = [number for number in there if number not in self.early]
        assert in_order == sorted(in_order)
        for number, fate in self.fates.items():
            assert fate == "perhaps" or (number in there) is (fate == "there"), (number, fate, there)
        dates = [record.at for record in records if isinstance(record, NextTimerRecord)]
        assert (dates or [0])[-1] == self.log.due


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_log_keeps_its_order_despite_journal_failures(seed, autojump_clock, monkeypatch):
    """Three concurrent writers use a journal whose writes are slow, fail or have an unknown outcome."""
    chance = random.Random(seed)
    monkeypatch.setattr(trio._core._run, "_r", random.Random(seed))
    journal = UnsteadyJournal(chance)
    async with journal.running():
        log = SessionLog("s", "clerk", journal, await journal.acquire())
        log.add(SessionCreatedRecord(owner=Sender("ada", "user"), created_at=1.0))
        model = Model(log, chance)
        with trio.fail_after(10_000):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(model.live)
        journal.is_steady = True
        await log.flush()
        model.check(await journal.load("s", agent="clerk"))


async def test_unserializable_record_is_rejected_between_writes():
    """The caller that added the record gets the error. Records of other callers are written when the log resumes."""
    async with open_journal("memory:") as journal:
        log = SessionLog("s", "clerk", journal, await journal.acquire())
        await log.write(SessionCreatedRecord(owner=Sender("ada", "user"), created_at=1.0))
        log.pause()
        log.record_state_change(StateChangeRecord(changes={"n": 1}))
        with pytest.raises(NotSerializable, match=r"changes\.n"):
            log.record_state_change(StateChangeRecord(changes={"n": object()}))
        log.record_state_change(StateChangeRecord(changes={"n": 2}))
        log.unpause()
        await log.flush()
        kept = await journal.load("s", agent="clerk")
    assert [record.changes["n"] for record in kept if isinstance(record, StateChangeRecord)] == [1, 2]


class GatedJournal(MemoryJournal):
    """A journal whose writes wait for the event `gate`."""

    def __init__(self):
        super().__init__()
        self.gate = trio.Event()

    async def _write(self, *args):
        await self.gate.wait()
        await super()._write(*args)


@asynccontextmanager
async def opening():
    """Yield a gated journal and a log whose first step is being written."""
    journal = GatedJournal()
    async with journal.running():
        log = SessionLog("s", "clerk", journal, await journal.acquire())
        log.add(SessionCreatedRecord(owner=Sender("ada", "user"), created_at=1.0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.write, StateChangeRecord(changes={"n": 0}))
            await trio.testing.wait_all_tasks_blocked()
            yield journal, log


async def numbers_of(journal):
    kept = await journal.load("s", agent="clerk")
    return [record.changes["n"] for record in kept if isinstance(record, StateChangeRecord)]


async def test_unserializable_record_is_rejected_while_the_session_opens():
    """The record is also rejected while the step that creates the session is being written."""
    async with opening() as (journal, log):
        with pytest.raises(NotSerializable):
            log.record_state_change(StateChangeRecord(changes={"n": {1, 2}}))
        log.record_state_change(StateChangeRecord(changes={"n": 1}))
        journal.gate.set()
        await log.flush()
        assert await numbers_of(journal) == [0, 1]


async def test_timeout_of_write_includes_the_opening_of_the_session(autojump_clock):
    """The timeout of a write counts the time for which it waits for the creation of the session."""
    async with opening() as (journal, log):
        started = trio.current_time()
        with pytest.raises(JournalSlow, match="within 3 s"):
            await log.write(StateChangeRecord(changes={"n": 1}), timeout_seconds=3)
        assert trio.current_time() - started == pytest.approx(3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(log.write, StateChangeRecord(changes={"n": 2}), timeout_seconds=60))
            await trio.sleep(20)
            journal.gate.set()
        assert await numbers_of(journal) == [0, 2]


@pytest.mark.parametrize("is_another_one_there", [True, False])
async def test_failed_session_with_a_used_id_erases_no_other_session(is_another_one_there):
    """A temporary session whose id is in use fails, and its `withdraw()` does not close the existing session."""
    opened = SessionCreatedRecord(owner=Sender("ada", "user"), created_at=1.0)
    async with open_journal("memory:") as journal:
        epoch = await journal.acquire()
        if is_another_one_there:
            await SessionLog("s", "clerk", journal, epoch).write(opened)
        log = SessionLog("s", "clerk", journal, epoch, is_temporary=True)
        log.record_creation(opened)
        with pytest.raises(SessionExists) if is_another_one_there else nullcontext():
            await log.flush()
        assert log.withdraw() is not is_another_one_there
        assert log.is_temporary is not is_another_one_there
        closed = [isinstance(each, SessionClosedRecord) for each in await journal.load("s", agent="clerk")]
    assert closed == ([False] if is_another_one_there else [False, True])


async def test_paused_log_writes_nothing():
    """A paused log writes nothing. Its records are written when the log resumes."""
    async with open_journal("memory:") as journal:
        log = SessionLog("s", "clerk", journal, await journal.acquire())
        await log.write(SessionCreatedRecord(owner=Sender("ada", "user"), created_at=1.0))
        log.pause()
        log.add(StateChangeRecord(changes={"n": 1}))
        log.flush_soon()
        assert await numbers_of(journal) == []
        log.unpause()
        assert await numbers_of(journal) == [1]
