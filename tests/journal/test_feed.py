"""The feed of a journal: what is on the disk is told once, with its numbers, and nothing else is."""

from contextlib import suppress

import pytest
import trio
import trio.testing

from actgent.errors import ConfigurationError, FeedLagged, Fenced, JournalFailed, UsageError
from actgent.journal.base import Entry
from actgent.journal.feed import Erased
from actgent.journal.grouped.references import refer
from actgent.journal.listing import SessionKey
from actgent.journal.memory import MemoryJournal
from actgent.journal.opening import open_journal
from actgent.journal.records import Accepted, Appended, Changed, Ended, Finished, Said, Started
from actgent.journal.wrapped import RedactedJournal, RelaxedJournal
from actgent.messages import NO_METADATA, Message, Sender, Text, ToolResult


def changed(number):
    return Changed(changes={"n": number})


def numbered(steps):
    """`(number, record)` of all records that were told."""
    return [(step.first + place, record) for step in steps for place, record in enumerate(step.records)]


async def told(reader, count):
    """The first steps that hold so many records."""
    steps = []
    with trio.fail_after(60):
        while sum(step.count for step in steps) < count:
            steps.append(await reader.receive())
    return steps


# --- over all journals -------------------------------------------------------------------


async def test_the_feed_tells_what_the_journal_has_with_its_numbers(journal, make_writer):
    """Of all sessions together and of one alone, also what nobody waited for."""
    epoch = await journal.acquire()
    one, other = (make_writer(journal, epoch, name) for name in ("s", "t"))
    async with journal.feed() as everything, journal.feed(SessionKey("a", "t")) as alone:
        await one.open()
        await one.turn()
        await other.turn("x", "y")
        one.write_soon(changed(1), changed(2))
        await one.commit()
        steps = await told(everything, 11)
        of_other = await told(alone, 4)
    of_one = [step for step in steps if step.session_id == "s"]
    assert numbered(of_one) == list(enumerate(await one.load(), 1))
    assert numbered(of_other) == list(enumerate(await other.load(), 1))
    assert {step.agent for step in steps} == {"a"}
    summary = await journal.head("a", "s")
    assert of_one[-1].last == summary.records
    assert of_one[-1].at == summary.updated_at


async def test_the_steps_that_are_read_are_those_that_were_told(journal, make_writer):
    """With their times; a page that begins in the middle of one has the rest of it."""
    writer = make_writer(journal, await journal.acquire())
    result = ToolResult(call_id="c1", tool_name="f", status="success", content="42")
    said = Said(message=Message(session_id="s", sender=Sender("a", "agent"), parts=(result,)))
    async with journal.feed() as reader:
        await writer.turn()
        await writer.commit(Finished(result=result), changed(1))
        await writer.commit(refer(said), changed(2), changed(3))
        steps = tuple(await told(reader, 9))
    assert await journal.read_steps("s", agent="a") == await journal.read_steps("s") == steps
    (last,) = await journal.read_steps("s", agent="a", after=7)
    assert (last.first, last.count, last.records) == (8, 2, (changed(2), changed(3)))
    assert last.at == steps[-1].at
    assert [step.last for step in await journal.read_steps("s", agent="a", after=4, limit=1)] == [6]
    assert await journal.read_steps("s", agent="a", after=9) == await journal.read_steps("nobody") == ()


async def test_who_reads_the_journal_behind_the_opening_of_the_feed_misses_nothing(journal, make_writer):
    """Ten readers come while two writers write; each has every number once, whatever it saw twice."""
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


async def test_results_that_an_earlier_step_has_are_told_with_what_refers_to_them(journal, make_writer):
    """The journal stores them once; a reader gets what `read` gives."""
    writer = make_writer(journal, await journal.acquire())
    result = ToolResult(call_id="c1", tool_name="f", status="success", content="42")
    said = Said(message=Message(session_id="s", sender=Sender("a", "agent"), parts=(result,)))
    await writer.commit(Started(call_ids=("c1",)), Finished(result=result))
    async with journal.feed() as reader:
        await writer.commit(refer(said))
        (step,) = await told(reader, 1)
    assert step.records == await journal.read("s", agent="a", after=2) == (said,)


async def test_a_slow_reader_is_told_once_and_finds_the_rest_in_the_journal(journal, make_writer):
    """It costs the writer nothing, and others hear all."""
    writer = make_writer(journal, await journal.acquire())
    async with journal.feed(capacity=5) as slow, journal.feed() as fast:
        for number in range(13):
            await writer.commit(changed(number))
        with pytest.raises(FeedLagged, match="8 steps") as caught:
            await slow.receive()
        rest = await told(slow, 5)
        everything = await told(fast, 13)
    assert caught.value.lost == 8
    assert numbered(rest) == [(number + 1, changed(number)) for number in range(8, 13)]
    assert len(numbered(everything)) == 13
    assert await journal.read("s", agent="a", limit=10) == tuple(changed(number) for number in range(10))


async def test_a_reader_of_numbers_alone_gets_no_records(journal, make_writer):
    """For lists, which read what they show."""
    writer = make_writer(journal, await journal.acquire())
    async with journal.feed(records=False) as reader:
        await writer.commit(changed(1), changed(2))
        (step,) = await told(reader, 2)
    assert (step.first, step.last, step.records) == (1, 2, ())


async def test_the_feed_tells_of_erased_sessions(journal, make_writer):
    """By hand or with their tree; one that is made again begins with 1."""
    epoch = await journal.acquire()
    writer = make_writer(journal, epoch)
    await writer.open()
    async with journal.feed(SessionKey("a", "s")) as reader:
        await journal.delete("s", agent="a")
        await writer.open()
        await journal.erase_trees([SessionKey("a", "s")])
        with trio.fail_after(60):
            heard = [await reader.receive() for _ in range(3)]
    assert [heard[0], heard[2]] == [Erased(session_id="s", agent="a")] * 2
    assert heard[1].first == 1


async def test_readers_end_with_the_journal(url, make_writer):
    """What was written is read, and then it is over."""
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
            writer.write_soon(changed(1))
    assert numbered(steps) == [(1, changed(1))]


async def test_who_does_not_own_the_journal_any_more_tells_nothing(lasting_url, make_writer, monkeypatch):
    """Its steps are refused where they are written, and the numbers go on with the new owner."""
    async with open_journal(lasting_url) as journal:
        first = make_writer(journal, await journal.acquire())
        async with journal.feed() as reader:
            await first.commit(changed(1))
            epoch = await journal.acquire()
            with pytest.raises(Fenced):
                await first.commit(changed(2))
            second = make_writer(journal, epoch)
            await second.commit(changed(3))
            steps = await told(reader, 2)
    assert numbered(steps) == [(1, changed(1)), (2, changed(3))]


async def test_nothing_is_made_of_a_step_that_nobody_reads(journal, make_writer, monkeypatch):
    """A reader that has left is forgotten."""
    writer = make_writer(journal, await journal.acquire())
    async with journal.feed(), journal.feed(SessionKey("a", "s")):
        pass
    monkeypatch.delattr(type(journal._onlookers.feed), "tell")
    await writer.commit(changed(1))
    assert await writer.load() == (changed(1),)


# --- what is not told --------------------------------------------------------------------


class Brittle(MemoryJournal):
    """Its next write fails, before anything is written or when all is."""

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


async def test_a_step_that_failed_is_never_told(brittle, make_writer):
    """And the one that is written in its place has its number."""
    writer = make_writer(brittle, await brittle.acquire())
    async with brittle.feed() as reader:
        brittle.before = JournalFailed("no")
        with pytest.raises(JournalFailed):
            await writer.commit(changed(1))
        await writer.commit(changed(2))
        steps = await told(reader, 1)
    assert numbered(steps) == [(1, changed(2))]


async def test_a_step_whose_confirmation_was_lost_is_told_once(brittle, make_writer):
    """It is there, as a look at the storage shows."""
    writer = make_writer(brittle, await brittle.acquire())
    async with brittle.feed() as reader:
        brittle.after = JournalFailed("the connection broke behind the commit")
        await writer.commit(changed(1))
        await writer.commit(changed(2))
        steps = await told(reader, 2)
    assert numbered(steps) == [(1, changed(1)), (2, changed(2))]


async def test_a_step_in_doubt_is_told_when_it_was_written_again(brittle, make_writer):
    """Nobody knows whether it is there, so it is taken back first; its numbers are told once."""
    writer = make_writer(brittle, await brittle.acquire())
    async with brittle.feed() as reader:
        await writer.commit(changed(0))
        brittle.after, brittle.is_blind = JournalFailed("gone"), True
        with pytest.raises(JournalFailed):
            await writer.commit(changed(1))
        brittle.is_blind = False
        await writer.commit(changed(2))
        steps = await told(reader, 2)
    assert numbered(steps) == [(1, changed(0)), (2, changed(2))]
    assert await brittle.load("s") == (changed(0), changed(2))


async def test_a_relaxed_step_is_told_when_it_is_on_the_disk(make_writer):
    """Not when it is confirmed."""
    async with Brittle().running() as inner:
        gate, whole = trio.Event(), inner._write

        async def write(rows, heads, epoch):
            await gate.wait()
            await whole(rows, heads, epoch)

        inner._write = write
        journal = RelaxedJournal(inner)
        writer = make_writer(journal, await journal.acquire())
        async with journal.feed() as reader:
            await writer.commit(changed(1))
            with trio.move_on_after(0.2) as waiting:
                await reader.receive()
            gate.set()
            steps = await told(reader, 1)
    assert waiting.cancelled_caught
    assert numbered(steps) == [(1, changed(1))]


async def test_readers_get_what_was_redacted(make_writer):
    """As it stands in the journal."""
    async with MemoryJournal().running() as inner:
        journal = RedactedJournal(inner, lambda text: text.replace("4111", "****"))
        writer = make_writer(journal, await journal.acquire())
        async with journal.feed() as reader:
            await writer.commit(Said(message=writer.message("pay with 4111")))
            (step,) = await told(reader, 1)
    assert step.records[0].message.parts == (Text("pay with ****"),)


# --- readers -----------------------------------------------------------------------------


async def test_a_cancelled_reader_loses_nothing(brittle, make_writer):
    """What it was about to get is the next that it gets."""
    writer = make_writer(brittle, await brittle.acquire())
    result = ToolResult(call_id="c1", tool_name="f", status="success", content="42")
    said = Said(message=Message(session_id="s", sender=Sender("a", "agent"), parts=(result,)))
    await writer.commit(Finished(result=result))
    async with brittle.feed() as reader:
        await writer.commit(refer(said))
        with trio.CancelScope() as scope:
            scope.cancel()
            await reader.receive()
        async with brittle._storage:  # so that the result cannot be read
            with trio.move_on_after(0.1) as waiting:
                await reader.receive()
        (step,) = await told(reader, 1)
    assert waiting.cancelled_caught
    assert step.records == (said,)


async def test_what_waits_for_a_reader_is_bounded_in_bytes(brittle, make_writer, monkeypatch):
    """A thousand steps may be large ones; one that is larger than the bound is told all the same."""
    monkeypatch.setattr("actgent.journal.feed.FEED_BYTES", 1000)
    writer = make_writer(brittle, await brittle.acquire())
    async with brittle.feed() as reader:
        for _ in range(3):
            await writer.commit(Changed(changes={"text": "x" * 600}))
        with pytest.raises(FeedLagged, match="2 steps"):
            await reader.receive()
        await told(reader, 1)
        await writer.commit(Changed(changes={"text": "x" * 6000}))
        assert (await told(reader, 1))[0].first == 4


async def test_a_closed_reader_hears_nothing(brittle):
    """And one without room is none."""
    async with brittle.feed() as reader:
        pass
    with pytest.raises(trio.ClosedResourceError):
        await reader.receive()
    with pytest.raises(ConfigurationError, match="at least 1 step, not 0"):
        async with brittle.feed(capacity=0):
            pass


async def test_a_journal_that_is_looked_at_tells_nothing(tmp_path, make_writer):
    """Another process writes it."""
    url = f"sqlite:///{tmp_path}/journal.db"
    async with open_journal(url) as journal:
        await journal.acquire()
        await journal.commit(Entry(session_id="s", agent="a", records=(changed(1),)), epoch=1)
    async with open_journal(url, read_only=True) as journal:
        with pytest.raises(UsageError, match="only looked at"):
            journal.feed()
        assert await journal.read("s") == (changed(1),)


# --- what is woken, and with what --------------------------------------------------------


def accepted(text, metadata):
    message = Message(session_id="s", sender=Sender("ada", "user"), parts=(Text(text),), metadata=metadata)
    return Accepted(message=message)


async def test_what_changes_after_it_was_written_is_told_as_it_was_written(journal, make_writer):
    """Also by a reader that comes to it late; what holds nothing that could change is told as it was given."""
    writer = make_writer(journal, await journal.acquire())
    changes, metadata = {"list": [1]}, {"list": [1]}
    begun, ended = Appended(message_id="m"), Ended(message_id="m")
    async with journal.feed(SessionKey("a", "s")) as reader:
        await writer.open()
        await writer.commit(Changed(changes=changes))
        await writer.commit(accepted("one", metadata))
        await writer.commit(accepted("two", NO_METADATA), begun, ended)
        changes["list"].append(2)
        metadata["list"].append(2)
        records = [record for _, record in numbered(await told(reader, 6))][1:]
    assert records == list(await writer.load())[1:]
    assert records[0].changes == records[1].message.metadata == {"list": [1]}
    assert records[2].message.text == "two"
    assert records[3:] == [begun, ended]


async def test_a_reader_is_woken_by_what_it_waits_for(journal, make_writer):
    """And by nothing else; then it reads what came before, too. What waits is not let grow for ever."""
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
        reader.woken_by = lambda records: any(type(each) is Ended for each in records)
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        assert [len(each) for each in woken] == [1]  # what was there when it began to wait
        await writer.commit(changed(1))
        await writer.commit(changed(2))
        await trio.testing.wait_all_tasks_blocked()
        assert len(woken) == 1
        await writer.commit(Ended(message_id="m"))
        await trio.testing.wait_all_tasks_blocked()
        assert woken[1:] == [[changed(1), changed(2), Ended(message_id="m")]]
        for number in range(200):
            await writer.commit(changed(number))
        await trio.testing.wait_all_tasks_blocked()
        assert sum(map(len, woken[2:])) > 100
        nursery.cancel_scope.cancel()
    with pytest.raises(trio.ClosedResourceError):
        reader.receive_nowait()


async def test_what_is_known_of_a_session_at_once_is_what_is_known_of_it(journal, make_writer):
    """Or nothing is: of one that is not there, and of one with a step that is not written."""
    writer = make_writer(journal, await journal.acquire())
    assert journal.head_now("a", "s") is None
    await writer.open()
    await writer.turn()
    assert journal.head_now("a", "s") == await journal.head("a", "s")
    writer.write_soon(changed(1))
    assert journal.head_now("a", "s") is None
    assert (await journal.head("a", "s")).records == journal.head_now("a", "s").records
    assert journal.head_now("b", "s") is None
