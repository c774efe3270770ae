"""The feed of a journal: durable steps are published once, with their record numbers, and nothing else is."""

import random
import string
from contextlib import suppress

import pytest
import trio
import trio.testing

from actgent.errors import ConfigurationError, FeedLagged, Fenced, JournalFailed, UsageError
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.journal_wrappers import AsyncCommitJournal, RedactedJournal
from actgent.journal.record_feed_readers import Erased
from actgent.journal.record_types import (
    AgentMessageRecord,
    CallFinishedRecord,
    CallsStartedRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    StateChangeRecord,
    reference_results,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import NO_METADATA, Message, Sender, Text, ToolResult


def changed(number):
    return StateChangeRecord(changes={"n": number})


def numbered(steps):
    """Return `(number, record)` of all published records."""
    return [(step.first + index, record) for step in steps for index, record in enumerate(step.records)]


async def first_steps(reader, count):
    """Return the first published steps that hold the given number of records."""
    steps = []
    with trio.fail_after(60):
        while sum(step.count for step in steps) < count:
            steps.append(await reader.receive())
    return steps


# --- over all journals -------------------------------------------------------------------


async def test_the_feed_delivers_steps_with_record_numbers(journal, make_writer):
    """The feed covers all sessions or one session, including steps without a waiting caller."""
    epoch = await journal.acquire()
    one, other = (make_writer(journal, epoch, name) for name in ("s", "t"))
    async with journal.feed() as everything, journal.feed(SessionKey("a", "t")) as alone:
        await one.open()
        await one.turn()
        await other.turn("x", "y")
        one.enqueue_write(changed(1), changed(2))
        await one.commit()
        steps = await first_steps(everything, 11)
        of_other = await first_steps(alone, 4)
    of_one = [step for step in steps if step.session_id == "s"]
    assert numbered(of_one) == list(enumerate(await one.load(), 1))
    assert numbered(of_other) == list(enumerate(await other.load(), 1))
    assert {step.agent for step in steps} == {"a"}
    summary = await journal.head("a", "s")
    assert of_one[-1].last == summary.records
    assert of_one[-1].at == summary.updated_at


async def test_read_steps_equals_the_feed(journal, make_writer):
    """Steps have their times. A page that starts in the middle of a step contains the rest of the step."""
    writer = make_writer(journal, await journal.acquire())
    result = ToolResult(call_id="c1", tool_name="f", status="success", content="42")
    record = AgentMessageRecord(message=Message(session_id="s", sender=Sender("a", "agent"), parts=(result,)))
    async with journal.feed() as reader:
        await writer.turn()
        await writer.commit(CallFinishedRecord(result=result), changed(1))
        await writer.commit(reference_results(record), changed(2), changed(3))
        steps = tuple(await first_steps(reader, 9))
    assert await journal.read_batches("s", agent="a") == await journal.read_batches("s") == steps
    (last,) = await journal.read_batches("s", agent="a", after=7)
    assert (last.first, last.count, last.records) == (8, 2, (changed(2), changed(3)))
    assert last.at == steps[-1].at
    assert [step.last for step in await journal.read_batches("s", agent="a", after=4, limit=1)] == [6]
    assert await journal.read_batches("s", agent="a", after=9) == await journal.read_batches("nobody") == ()


async def test_opening_the_feed_before_reading_the_journal_misses_no_step(journal, make_writer):
    """Ten readers join while two writers write; each has every number once after duplicates are dropped."""
    epoch = await journal.acquire()
    writers = [make_writer(journal, epoch, name) for name in ("s", "t")]
    seen = []

    async def write(writer):
        for number in range(60):
            await writer.commit(changed(number))

    async def follow(reader_number):
        await trio.sleep(0.003 * reader_number)
        known = []
        async with journal.feed(SessionKey("a", "s")) as reader:
            known += enumerate(await journal.read("s", agent="a"), 1)
            while len(known) < 60:
                step = await reader.receive()
                known += [each for each in numbered([step]) if each[0] > len(known)]
        seen.append(known)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for writer in writers:
                nursery.start_soon(write, writer)
            for reader_number in range(10):
                nursery.start_soon(follow, reader_number)
    assert seen == [[(number + 1, changed(number)) for number in range(60)]] * 10


async def test_the_feed_resolves_references_to_earlier_steps(journal, make_writer):
    """The journal stores results once; a reader gets the same records as `read`."""
    writer = make_writer(journal, await journal.acquire())
    result = ToolResult(call_id="c1", tool_name="f", status="success", content="42")
    record = AgentMessageRecord(message=Message(session_id="s", sender=Sender("a", "agent"), parts=(result,)))
    await writer.commit(CallsStartedRecord(call_ids=("c1",)), CallFinishedRecord(result=result))
    async with journal.feed() as reader:
        await writer.commit(reference_results(record))
        (step,) = await first_steps(reader, 1)
    assert step.records == await journal.read("s", agent="a", after=2) == (record,)


async def test_a_slow_reader_gets_one_lag_error(journal, make_writer):
    """The writer and other readers are not affected, and the journal has the dropped steps."""
    writer = make_writer(journal, await journal.acquire())
    async with journal.feed(capacity=5) as slow, journal.feed() as fast:
        for number in range(13):
            await writer.commit(changed(number))
        with pytest.raises(FeedLagged, match="8 batches of records") as caught:
            await slow.receive()
        rest = await first_steps(slow, 5)
        everything = await first_steps(fast, 13)
    assert caught.value.lost == 8
    assert numbered(rest) == [(number + 1, changed(number)) for number in range(8, 13)]
    assert len(numbered(everything)) == 13
    assert await journal.read("s", agent="a", limit=10) == tuple(changed(number) for number in range(10))


async def test_a_reader_of_numbers_alone_gets_no_records(journal, make_writer):
    """Session lists use such readers, because they read what they show."""
    writer = make_writer(journal, await journal.acquire())
    async with journal.feed(records=False) as reader:
        await writer.commit(changed(1), changed(2))
        (step,) = await first_steps(reader, 2)
    assert (step.first, step.last, step.records) == (1, 2, ())


async def test_feed_reports_erased_sessions(journal, make_writer):
    """Sessions are erased directly or with their tree. A session created again starts with record 1."""
    epoch = await journal.acquire()
    writer = make_writer(journal, epoch)
    await writer.open()
    async with journal.feed(SessionKey("a", "s")) as reader:
        await journal.delete("s", agent="a")
        await writer.open()
        await journal.erase_trees([SessionKey("a", "s")])
        with trio.fail_after(60):
            received = [await reader.receive() for _ in range(3)]
    assert [received[0], received[2]] == [Erased(session_id="s", agent="a")] * 2
    assert received[1].first == 1


async def test_readers_end_with_the_journal(url, make_writer):
    """Readers receive all written steps, and then end."""
    steps, is_open = [], trio.Event()

    async def read(journal):
        async with journal.feed() as reader:
            is_open.set()
            steps.extend([step async for step in reader])

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, open_journal(url) as journal:
            nursery.start_soon(read, journal)
            await is_open.wait()
            writer = make_writer(journal, await journal.acquire())
            writer.enqueue_write(changed(1))
    assert numbered(steps) == [(1, changed(1))]


async def test_a_former_owner_publishes_no_steps(lasting_url, make_writer, monkeypatch):
    """Its steps are rejected by the storage, and the numbers continue with the new owner."""
    async with open_journal(lasting_url) as journal:
        first = make_writer(journal, await journal.acquire())
        async with journal.feed() as reader:
            await first.commit(changed(1))
            epoch = await journal.acquire()
            with pytest.raises(Fenced):
                await first.commit(changed(2))
            second = make_writer(journal, epoch)
            await second.commit(changed(3))
            steps = await first_steps(reader, 2)
    assert numbered(steps) == [(1, changed(1)), (2, changed(3))]


async def test_steps_without_readers_create_no_feed_items(journal, make_writer, monkeypatch):
    """The feed forgets a reader that left."""
    writer = make_writer(journal, await journal.acquire())
    async with journal.feed(), journal.feed(SessionKey("a", "s")):
        pass
    monkeypatch.delattr(type(journal._feed), "publish")
    await writer.commit(changed(1))
    assert await writer.load() == (changed(1),)


# --- what is not told --------------------------------------------------------------------


class Brittle(MemoryJournal):
    """A journal whose next write fails, before anything is written or after everything is."""

    before = after = None
    is_blind = False

    async def _write(self, rows, heads, epoch):
        before, self.before = self.before, None
        if before is not None:
            raise before
        await super()._write(rows, heads, epoch)
        after, self.after = self.after, None
        if after is not None:
            raise after

    async def _read_heads(self, keys):
        if self.is_blind:
            raise JournalFailed("gone")
        return await super()._read_heads(keys)


@pytest.fixture
async def brittle():
    async with Brittle().running() as journal:
        yield journal


async def test_failed_steps_are_not_published(brittle, make_writer):
    """The step that is written instead has the same number."""
    writer = make_writer(brittle, await brittle.acquire())
    async with brittle.feed() as reader:
        brittle.before = JournalFailed("no")
        with pytest.raises(JournalFailed):
            await writer.commit(changed(1))
        await writer.commit(changed(2))
        steps = await first_steps(reader, 1)
    assert numbered(steps) == [(1, changed(2))]


async def test_a_step_with_lost_confirmation_is_published_once(brittle, make_writer):
    """A check of the storage shows that the step exists."""
    writer = make_writer(brittle, await brittle.acquire())
    async with brittle.feed() as reader:
        brittle.after = JournalFailed("the connection broke behind the commit")
        await writer.commit(changed(1))
        await writer.commit(changed(2))
        steps = await first_steps(reader, 2)
    assert numbered(steps) == [(1, changed(1)), (2, changed(2))]


async def test_an_uncertain_step_is_published_after_the_rewrite(brittle, make_writer):
    """The step is rolled back first, so its numbers are published once."""
    writer = make_writer(brittle, await brittle.acquire())
    async with brittle.feed() as reader:
        await writer.commit(changed(0))
        brittle.after, brittle.is_blind = JournalFailed("gone"), True
        with pytest.raises(JournalFailed):
            await writer.commit(changed(1))
        brittle.is_blind = False
        await writer.commit(changed(2))
        steps = await first_steps(reader, 2)
    assert numbered(steps) == [(1, changed(0)), (2, changed(2))]
    assert await brittle.load("s") == (changed(0), changed(2))


async def test_a_relaxed_step_is_published_when_durable(make_writer):
    """A relaxed step is published when it is on disk, not when it is confirmed."""
    async with Brittle().running() as inner:
        gate, whole = trio.Event(), inner._write

        async def write(rows, heads, epoch):
            await gate.wait()
            await whole(rows, heads, epoch)

        inner._write = write
        journal = AsyncCommitJournal(inner)
        writer = make_writer(journal, await journal.acquire())
        async with journal.feed() as reader:
            await writer.commit(changed(1))
            with trio.move_on_after(0.2) as waiting:
                await reader.receive()
            gate.set()
            steps = await first_steps(reader, 1)
    assert waiting.cancelled_caught
    assert numbered(steps) == [(1, changed(1))]


async def test_feed_readers_get_redacted_records(make_writer):
    """The feed publishes records as they are stored in the journal."""
    async with MemoryJournal().running() as inner:
        journal = RedactedJournal(inner, lambda text: text.replace("4111", "****"))
        writer = make_writer(journal, await journal.acquire())
        async with journal.feed() as reader:
            await writer.commit(AgentMessageRecord(message=writer.message("pay with 4111")))
            (step,) = await first_steps(reader, 1)
    assert step.records[0].message.parts == (Text("pay with ****"),)


# --- readers -----------------------------------------------------------------------------


async def test_a_cancelled_reader_loses_nothing(brittle, make_writer):
    """A step that a cancelled `receive` was about to return is returned by the next one."""
    writer = make_writer(brittle, await brittle.acquire())
    result = ToolResult(call_id="c1", tool_name="f", status="success", content="42")
    record = AgentMessageRecord(message=Message(session_id="s", sender=Sender("a", "agent"), parts=(result,)))
    await writer.commit(CallFinishedRecord(result=result))
    async with brittle.feed() as reader:
        await writer.commit(reference_results(record))
        with trio.CancelScope() as scope:
            scope.cancel()
            await reader.receive()
        async with brittle._storage:  # so that the result cannot be read
            with trio.move_on_after(0.1) as waiting:
                await reader.receive()
        (step,) = await first_steps(reader, 1)
    assert waiting.cancelled_caught
    assert step.records == (record,)


def incompressible(size):
    """Return a text of random characters, because rows of the journal are compressed."""
    return "".join(random.Random(size).choices(string.ascii_letters + string.digits, k=size))


async def test_the_backlog_of_a_reader_is_bounded_in_bytes(brittle, make_writer, monkeypatch):
    """A thousand steps may be large. A step that is larger than the bound is published nevertheless."""
    monkeypatch.setattr("actgent.journal.record_feed_readers.FEED_BYTES", 1000)
    writer = make_writer(brittle, await brittle.acquire())
    async with brittle.feed() as reader:
        for _ in range(3):
            await writer.commit(StateChangeRecord(changes={"text": incompressible(800)}))
        with pytest.raises(FeedLagged, match="2 batches of records"):
            await reader.receive()
        await first_steps(reader, 1)
        await writer.commit(StateChangeRecord(changes={"text": incompressible(6000)}))
        assert (await first_steps(reader, 1))[0].first == 4


async def test_a_closed_reader_receives_nothing(brittle):
    """A capacity below 1 is rejected."""
    async with brittle.feed() as reader:
        pass
    with pytest.raises(trio.ClosedResourceError):
        await reader.receive()
    with pytest.raises(ConfigurationError, match="at least 1, not 0"):
        async with brittle.feed(capacity=0):
            pass


async def test_read_only_journal_has_no_feed(tmp_path, make_writer):
    """Another process writes the journal."""
    url = f"sqlite:///{tmp_path}/journal.db"
    async with open_journal(url) as journal:
        await journal.acquire()
        await journal.commit(Entry(session_id="s", agent="a", records=(changed(1),)), epoch=1)
    async with open_journal(url, read_only=True) as journal:
        with pytest.raises(UsageError, match="read-only journal cannot publish new records"):
            journal.feed()
        assert await journal.read("s") == (changed(1),)


# --- what is woken, and with what --------------------------------------------------------


def accepted(text, metadata):
    message = Message(session_id="s", sender=Sender("ada", "user"), parts=(Text(text),), metadata=metadata)
    return MessageAcceptedRecord(message=message)


async def test_the_feed_delivers_values_as_they_were_written(journal, make_writer):
    """A late reader gets the written values too. Immutable values are published without a copy."""
    writer = make_writer(journal, await journal.acquire())
    changes, metadata = {"list": [1]}, {"list": [1]}
    started, ended = MessageAppendedRecord(message_id="m"), MessageEndRecord(message_id="m")
    async with journal.feed(SessionKey("a", "s")) as reader:
        await writer.open()
        await writer.commit(StateChangeRecord(changes=changes))
        await writer.commit(accepted("one", metadata))
        await writer.commit(accepted("two", NO_METADATA), started, ended)
        changes["list"].append(2)
        metadata["list"].append(2)
        records = [record for _, record in numbered(await first_steps(reader, 6))][1:]
    assert records == list(await writer.load())[1:]
    assert records[0].changes == records[1].message.metadata == {"list": [1]}
    assert records[2].message.text == "two"
    assert records[3:] == [started, ended]


async def test_a_reader_is_woken_by_matching_steps(journal, make_writer):
    """Only matching steps wake the reader, which then also reads earlier steps. The number of queued steps is bounded."""
    writer, woken = make_writer(journal, await journal.acquire()), []

    async def watch():
        while True:
            await reader.wait()
            woken.append([record for step in taken() for record in step.records])

    def taken():
        steps = []
        with suppress(trio.WouldBlock):
            while True:
                steps.append(reader.receive_nowait())
        return steps

    async with journal.feed(SessionKey("a", "s")) as reader, trio.open_nursery() as nursery:
        await writer.open()
        reader.woken_by = lambda records: any(type(each) is MessageEndRecord for each in records)
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        assert [len(each) for each in woken] == [1]  # what was there when it began to wait
        await writer.commit(changed(1))
        await writer.commit(changed(2))
        await trio.testing.wait_all_tasks_blocked()
        assert len(woken) == 1
        await writer.commit(MessageEndRecord(message_id="m"))
        await trio.testing.wait_all_tasks_blocked()
        assert woken[1:] == [[changed(1), changed(2), MessageEndRecord(message_id="m")]]
        for number in range(200):
            await writer.commit(changed(number))
        await trio.testing.wait_all_tasks_blocked()
        assert sum(map(len, woken[2:])) > 100
        nursery.cancel_scope.cancel()
    with pytest.raises(trio.ClosedResourceError):
        reader.receive_nowait()


async def test_cached_head_equals_head(journal, make_writer):
    """It is None for a missing session and for a session with an unwritten step."""
    writer = make_writer(journal, await journal.acquire())
    assert journal.cached_head("a", "s") is None
    await writer.open()
    await writer.turn()
    assert journal.cached_head("a", "s") == await journal.head("a", "s")
    writer.enqueue_write(changed(1))
    assert journal.cached_head("a", "s") is None
    assert (await journal.head("a", "s")).records == journal.cached_head("a", "s").records
    assert journal.cached_head("b", "s") is None
