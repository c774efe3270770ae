"""What every journal promises."""

import contextlib
import os
import sys
import textwrap
import time

import attrs
import pytest
import trio

from actgent.errors import ConfigurationError, Fenced, JournalFailed, NotSerializable, UsageError
from actgent.journal.group_commit.step_queue import GROUP_STEPS
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import (
    AgentMessageRecord,
    CallsStartedRecord,
    DeliveryRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    NextTimerRecord,
    ResumptionRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    StateChangeRecord,
    SuspensionRecord,
)
from actgent.journal.wrappers import AsyncCommitJournal
from actgent.messages import File, Priority, Sender

# --- order and content -------------------------------------------------------------------


async def test_committed_records_are_loaded(writer):
    """In order, equal, across several steps."""
    await writer.open()
    await writer.turn()
    await writer.turn("more", "yes")
    assert await writer.load() == writer.confirmed


async def test_an_unknown_session_has_no_records(writer):
    """It is no error."""
    assert await writer.load() == ()


async def test_enqueued_steps_are_written_before_the_next_commit(writer):
    """All steps are written in the order of the calls."""
    for number in range(20):
        writer.enqueue_write(StateChangeRecord(changes={"n": number}))
    await writer.commit(SessionClosedRecord())
    assert await writer.load() == writer.confirmed


async def test_load_includes_enqueued_steps(writer):
    """Loading waits for the queued steps of the session."""
    writer.enqueue_write(StateChangeRecord(changes={"n": 1}))
    assert await writer.load() == writer.confirmed


async def test_enqueued_steps_are_written_soon(writer):
    """Within about 50 ms, without a further call."""
    await writer.open()
    before = writer.journal.statistics.steps
    writer.enqueue_write(StateChangeRecord(changes={"n": 1}))
    await trio.sleep(0.5)
    assert writer.journal.statistics.steps == before + 1
    assert await writer.load() == writer.confirmed


async def test_closing_the_journal_writes_queued_steps(lasting_url, make_writer):
    """Also steps without a waiting caller."""
    async with open_journal(lasting_url) as journal:
        writer = make_writer(journal, await journal.acquire())
        writer.enqueue_write(StateChangeRecord(changes={"n": 1}))
    async with open_journal(lasting_url) as journal:
        await journal.acquire()
        assert await journal.load("s") == writer.confirmed


async def test_an_entry_without_records_waits_for_the_earlier_ones(writer):
    """And leaves nothing behind of its own."""
    writer.enqueue_write(SessionClosedRecord())
    await writer.commit()
    assert writer.journal.statistics.steps == 1
    assert await writer.load() == (SessionClosedRecord(),)


async def test_large_records_are_restored(writer):
    """A file of 20 MB in a message."""
    message = writer.message("look")
    part = File(media_type="application/pdf", data=bytes(range(256)) * 80_000)
    await writer.commit(AgentMessageRecord(message=message), StateChangeRecord(changes={"file": part.data}))
    assert await writer.load() == writer.confirmed


@pytest.mark.parametrize("name", ["", "Ünïcode 会议", "a'b\"c;--", "x" * 5000, "a/b\\c\n"])
async def test_any_text_names_a_session(journal, make_writer, name):
    """Whatever a program calls them."""
    writer = make_writer(journal, await journal.acquire(), name or "''", agent=name)
    await writer.turn()
    assert await writer.load() == writer.confirmed
    assert [summary.agent for summary in await journal.sessions(name)] == [name]


async def test_unserializable_values_are_rejected_at_once(writer):
    """The error names the value, and the session continues."""
    with pytest.raises(NotSerializable, match=r"changes\.when"):
        writer.enqueue_write(StateChangeRecord(changes={"when": object()}))
    with pytest.raises(NotSerializable, match=r"changes\.when"):
        await writer.commit(StateChangeRecord(changes={"when": {1, 2}}))
    with pytest.raises(NotSerializable, match="session_id"):
        writer.journal.enqueue_write(
            Entry(session_id="a\0b", agent="a", records=(SessionClosedRecord(),)), epoch=writer.epoch
        )
    await writer.commit(SessionClosedRecord())
    assert await writer.load() == (SessionClosedRecord(),)


# --- many sessions -----------------------------------------------------------------------


async def test_sessions_do_not_mix(journal, make_writer):
    """A hundred at once, each with its own records in its own order."""
    epoch = await journal.acquire()
    writers = [make_writer(journal, epoch, f"s{number}") for number in range(100)]

    async def live(writer):
        await writer.open()
        for number in range(3):
            await writer.turn(f"{writer.session_id} {number}")

    async with trio.open_nursery() as nursery:
        for writer in writers:
            nursery.start_soon(live, writer)
    for writer in writers:
        assert await writer.load() == writer.confirmed


async def test_a_hundred_sessions_share_their_commits(journal, make_writer):
    """At least ten turns go into one commit."""
    epoch = await journal.acquire()
    turns = 5

    async def live(writer):
        for _ in range(turns):
            await writer.turn()

    before = journal.statistics.commits
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(live, make_writer(journal, epoch, f"s{number}"))
    assert 100 * turns / (journal.statistics.commits - before) >= 10


async def test_unfinished_sessions_are_those_with_an_accepted_message_that_has_not_ended(
    journal, make_writer
):
    """Of one agent, the oldest first."""
    epoch = await journal.acquire()
    for number, agent in enumerate(["a", "a", "b", "a"]):
        writer = make_writer(journal, epoch, f"s{number}", agent)
        await writer.open(created_at=100.0 - number)
        first, second = writer.message("1"), writer.message("2")
        await writer.commit(MessageAcceptedRecord(message=first), MessageAcceptedRecord(message=second))
        await writer.commit(
            MessageEndRecord(message_id=first.id),
            MessageEndRecord(message_id=first.id),
            MessageEndRecord(message_id="unknown"),
        )
        if number == 1:
            await writer.commit(MessageEndRecord(message_id=second.id))
    assert await journal.unfinished("a") == ["s3", "s0"]
    assert await journal.unfinished("b") == ["s2"]
    assert await journal.unfinished("c") == []
    assert await journal.waiting() == {"a": 2, "b": 1}


async def test_suspended_sessions_are_not_listed_as_unfinished(journal, make_writer):
    """A start would open them for nothing; once resumed they are listed again, and a summary tells."""
    writer = make_writer(journal, await journal.acquire())
    message = writer.message("1")
    await writer.commit(
        MessageAcceptedRecord(message=message), SuspensionRecord(message_id=message.id, ids=("w1", "w2"))
    )
    assert await journal.unfinished("a") == []
    assert await journal.waiting() == {}
    assert [(s.suspended, s.unfinished) for s in await journal.sessions()] == [(True, 1)]
    await writer.commit(ResumptionRecord(ids=("w2",)))
    assert await journal.unfinished("a") == ["s"]
    assert [summary.suspended for summary in await journal.sessions()] == [False]
    assert await writer.load() == writer.confirmed


async def test_suspended_sessions_are_listed_page_by_page(journal, make_writer):
    """Of one agent, in the order of their ids; neither those that go on, nor those that are closed."""
    epoch = await journal.acquire()
    for number in range(8):
        writer = make_writer(journal, epoch, f"s{number}", "b" if number == 3 else "a")
        await writer.open()
        await writer.commit(
            MessageAcceptedRecord(message=writer.message("1")), SuspensionRecord(message_id="1", ids=("w",))
        )
    await make_writer(journal, epoch, "s2").commit(ResumptionRecord(ids=("w",)))
    await make_writer(journal, epoch, "s4").commit(SessionClosedRecord())
    assert await journal.suspended("a", limit=3) == ["s0", "s1", "s5"]
    assert await journal.suspended("a", after="s5") == ["s6", "s7"]
    assert await journal.suspended("a", after="s7") == []
    assert await journal.suspended("b") == ["s3"]


async def test_an_urgent_message_ends_a_suspension(journal, make_writer):
    """It does not wait for what the turn waits for, so the next start has to see it."""
    writer = make_writer(journal, await journal.acquire())
    await writer.commit(
        MessageAcceptedRecord(message=writer.message("1")),
        SuspensionRecord(message_id="1", ids=("w",)),
        MessageAcceptedRecord(message=writer.message("2")),
    )
    assert await journal.unfinished("a") == []
    urgent = attrs.evolve(writer.message("3"), priority=Priority.URGENT)
    await writer.commit(MessageAcceptedRecord(message=urgent))
    assert await journal.unfinished("a") == ["s"]


async def test_sessions_that_are_due_are_listed_without_reading_them(journal, make_writer):
    """Of one agent, the earliest first; neither those that have no date any more, nor those that are closed."""
    epoch = await journal.acquire()
    for number, due in enumerate([30.5, 10.0, 20.0, 40.0, 5.0]):
        writer = make_writer(journal, epoch, f"s{number}", "b" if number == 3 else "a")
        await writer.open()
        await writer.commit(NextTimerRecord(at=99.0), NextTimerRecord(at=due))
    await make_writer(journal, epoch, "s2").commit(NextTimerRecord(at=0))
    await make_writer(journal, epoch, "s4").commit(SessionClosedRecord())
    await make_writer(journal, epoch, "s1").turn()
    assert await journal.due("a") == [("s1", 10.0), ("s0", 30.5)]
    assert await journal.due("b") == [("s3", 40.0)]
    assert await journal.due("c") == []
    assert [summary.due for summary in await journal.sessions("b")] == [40.0]


async def test_dates_and_suspensions_are_durable(lasting_url, make_writer):
    """It stands in what is stored, under its checksum, and goes on from there."""
    async with open_journal(lasting_url) as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.commit(
            MessageAcceptedRecord(message=writer.message("hi")),
            NextTimerRecord(at=7.25),
            SuspensionRecord(message_id="m", ids=("w",)),
        )
    async with open_journal(lasting_url) as journal:
        writer.journal, writer.epoch = journal, await journal.acquire()
        assert await journal.due("a") == [("s", 7.25)]
        assert await journal.unfinished("a") == []
        await writer.commit(ResumptionRecord(ids=("w",)), NextTimerRecord(at=0))
        assert (await journal.due("a"), await journal.unfinished("a")) == ([], ["s"])


async def test_head_returns_the_summary_of_a_session(writer):
    """Owner, parent, times and counts, without reading records."""
    await writer.commit(SessionCreatedRecord(owner=Sender("ada"), parent_id="p", created_at=5))
    await writer.commit(MessageAcceptedRecord(message=writer.message("hi")))
    (summary,) = await writer.journal.sessions()
    assert (summary.session_id, summary.agent, summary.owner, summary.parent_id) == ("s", "a", "ada", "p")
    assert (summary.created_at, summary.records, summary.unfinished, summary.closed) == (5, 2, 1, False)
    await writer.commit(SessionClosedRecord())
    assert [summary.closed for summary in await writer.journal.sessions("a")] == [True]
    assert await writer.journal.sessions("b") == []


async def test_a_deleted_session_is_gone(journal, make_writer):
    """With all that was queued for it; others stay, and its id can be used again."""
    epoch = await journal.acquire()
    gone, stays = make_writer(journal, epoch, "gone"), make_writer(journal, epoch, "stays")
    await gone.turn()
    await stays.turn()
    gone.enqueue_write(SessionClosedRecord())
    await journal.delete("gone")
    await journal.delete("never there")
    assert await gone.load() == ()
    assert await stays.load() == stays.confirmed
    await gone.commit(DeliveryRecord(ids=("1",)))
    assert await gone.load() == (DeliveryRecord(ids=("1",)),)


# --- owners ------------------------------------------------------------------------------


async def test_the_epoch_of_any_session_is_that_of_the_journal(journal, make_writer):
    """One process owns all of it: who asks for the epoch of a session writes under it."""
    first = await journal.acquire()
    assert journal.epoch_of("s") == journal.epoch_of("another") == first
    second = await journal.acquire()
    assert journal.epoch_of("s") == second > first
    await make_writer(journal, journal.epoch_of("s")).turn()


async def test_a_former_epoch_writes_nothing(journal, make_writer):
    """Neither at once nor soon; the new one goes on with the same numbers."""
    old = make_writer(journal, await journal.acquire())
    await old.turn()
    new = make_writer(journal, await journal.acquire())
    assert new.epoch > old.epoch
    with pytest.raises(Fenced, match="no longer owns"):
        await old.commit(SessionClosedRecord())
    with pytest.raises(Fenced, match="no longer owns"):
        old.enqueue_write(SessionClosedRecord())
    await new.turn()
    assert await new.load() == old.confirmed + new.confirmed


async def test_epochs_grow_from_block_to_block(lasting_url, make_writer):
    """And a session goes on where it was."""
    confirmed, epochs = (), []
    for _ in range(3):
        async with open_journal(lasting_url) as journal:
            writer = make_writer(journal, await journal.acquire())
            await writer.turn()
            confirmed += writer.confirmed
            epochs.append(writer.epoch)
            assert await writer.load() == confirmed
    assert epochs == sorted(set(epochs))


async def test_two_journals_never_own_the_same(lasting_url):
    """The second is refused within a second, names the process of the first with a remedy, and can have it later."""
    async with open_journal(lasting_url) as first, open_journal(lasting_url) as second:
        await first.acquire()
        with (
            trio.fail_after(1),
            pytest.raises(Fenced, match=r"process \d+ on .+ is running: .* start all agents in one"),
        ):
            await second.acquire()
        await first.commit(Entry(session_id="s", agent="a", records=(SessionClosedRecord(),)), epoch=1)
    async with open_journal(lasting_url) as third:
        await third.acquire()


async def test_another_process_never_owns_the_same(lasting_url):
    """It is refused with a typed error that names this one."""
    code = """
        import sys, trio
        from actgent import Fenced
        from actgent.journal.journal_url import open_journal
        async def main():
            async with open_journal(sys.argv[1]) as journal:
                try:
                    await journal.acquire()
                except Fenced as error:
                    print(error)
        trio.run(main)
    """
    async with open_journal(lasting_url) as journal:
        await journal.acquire()
        command = [sys.executable, "-c", textwrap.dedent(code), lasting_url]
        done = await trio.run_process(command, capture_stdout=True)
    assert f"process {os.getpid()} on" in done.stdout.decode()
    assert done.stdout.decode().endswith("which is running: stop it first\n")


async def test_an_owner_reconnects_or_is_fenced(postgres_url, make_writer):
    """A broken connection causes at most one error; another owner in between ends the epoch."""
    async with open_journal(postgres_url) as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.turn()
        journal._connection.close()
        await writer.turn()
        assert await writer.load() == writer.confirmed
        journal._connection.close()
        async with open_journal(postgres_url) as other:
            await _acquire_at_last(other)
            with pytest.raises(Fenced, match="is running"):
                await writer.commit(SessionClosedRecord())
        with pytest.raises(Fenced, match="no longer owns"):
            await writer.commit(SessionClosedRecord())
        again = make_writer(journal, await journal.acquire())
        await again.turn()
        assert await again.load() == writer.confirmed + again.confirmed


async def _acquire_at_last(journal):
    """A server with much to do finds out about a lost connection later than an owner waits for that."""
    with trio.fail_after(30):
        while True:
            with contextlib.suppress(Fenced):
                return await journal.acquire()


async def test_closing_releases_the_lock_at_once(postgres_url, monkeypatch):
    """The lock does not last until the server has found out about the end of the connection."""
    monkeypatch.setattr("actgent.journal.group_commit.grouped_journal.ACQUIRE_TIMEOUT_SECONDS", 0.0)
    for _ in range(20):
        async with open_journal(postgres_url) as journal:
            await journal.acquire()


async def test_a_journal_is_acquired_before_it_is_used(url):
    """And not used after its block."""
    entry = Entry(session_id="s", agent="a", records=(SessionClosedRecord(),))
    async with open_journal(url) as journal:
        with pytest.raises(UsageError, match="acquire"):
            await journal.commit(entry, epoch=1)
        with pytest.raises(UsageError, match="acquire"):
            await journal.load("s")
        epoch = await journal.acquire()
    with pytest.raises(JournalFailed, match="block"):
        await journal.commit(entry, epoch=epoch)
    with pytest.raises(UsageError, match="block"):
        await journal.acquire()


@pytest.mark.parametrize(
    "address",
    ["", "sqlite:", "sqlite://", "sqlite:///", "agents.db", "mysql://h/d", "postgres://[", "postgres://h:x/"],
)
def test_an_invalid_url_is_rejected_at_the_call(address):
    """The error lists the valid forms."""
    with pytest.raises(ConfigurationError):
        open_journal(address)


@pytest.mark.parametrize("name", [".", "folder", "notes.txt", "empty/"])
async def test_other_files_are_not_changed(tmp_path, monkeypatch, name):
    """A folder or a file of another kind is rejected, and no file is created next to it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("Milk is out.", encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(
        ConfigurationError, match=r"no such file|not a file|not the file of a journal|is not a journal URL"
    ):
        async with open_journal(f"sqlite:///{name}") as journal:
            await journal.acquire()
    assert sorted(tmp_path.iterdir()) == before


async def test_a_folder_that_is_not_there_is_named(tmp_path):
    """With what to do about it."""
    with pytest.raises(
        JournalFailed, match=r"cannot write a lock file into the folder of the journal a.db .*: create it"
    ):
        async with open_journal(f"sqlite:///{tmp_path}/missing/a.db") as journal:
            await journal.acquire()


# --- cancellation ------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(12))
async def test_a_cancelled_commit_is_there_whole_or_not_at_all(writer, steps):
    """Cancelled after each number of steps of the scheduler; the journal works on."""
    await writer.open()
    message = writer.message("hi")
    pair = (MessageAcceptedRecord(message=message), MessageAppendedRecord(message_id=message.id))
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_after, steps, scope)
            await writer.commit(*pair)
    loaded = await writer.load()
    assert loaded[1:] in ((), pair)
    await writer.commit(SessionClosedRecord())
    assert (await writer.load())[-1] == SessionClosedRecord()


@pytest.mark.parametrize("steps", range(8))
async def test_a_cancelled_load_leaves_the_journal_usable(writer, steps):
    """The next call is answered."""
    await writer.turn()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_after, steps, scope)
            await writer.load()
            scope.cancel()
    await writer.turn()
    assert await writer.load() == writer.confirmed


@pytest.mark.parametrize("steps", range(10))
async def test_a_cancelled_block_releases_everything(lasting_url, make_writer, steps):
    """No lock, transaction or task remains, and confirmed records exist."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery, open_journal(lasting_url) as journal:
            writer = make_writer(journal, await journal.acquire())
            nursery.start_soon(_cancel_after, steps, scope)
            while True:
                await writer.commit(SessionClosedRecord())
    async with open_journal(lasting_url) as journal:
        await journal.acquire()
        loaded = await journal.load("s")
    assert len(writer.confirmed) <= len(loaded) <= len(writer.confirmed) + 1


async def _cancel_after(steps, scope):
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_a_step_that_need_not_be_durable_is_written_soon(journal, make_writer, mock_clock):
    """It is confirmed at once, and there within 50 ms, behind what was queued before."""
    writer = make_writer(journal, await journal.acquire())
    await writer.turn()
    commits = journal.statistics.commits
    for number in range(5):
        await _confirm(writer, StateChangeRecord(changes={"n": number}))
    assert journal.statistics.commits == commits
    mock_clock.jump(0.05)
    until = time.monotonic() + 20
    while journal.statistics.commits == commits and time.monotonic() < until:
        await trio.lowlevel.checkpoint()
    assert journal.statistics.commits == commits + 1
    assert await writer.load() == writer.confirmed


async def test_a_non_durable_step_waits_if_the_queue_is_full(journal, make_writer, mock_clock):
    """From the bound on, such a step is written before it is confirmed."""
    writer = make_writer(journal, await journal.acquire())
    for number in range(GROUP_STEPS):
        await _confirm(writer, StateChangeRecord(changes={"n": number}))
    assert journal.statistics.commits == 0
    await _confirm(writer, SessionClosedRecord())
    assert journal.statistics.commits > 0
    assert await writer.load() == writer.confirmed


async def test_relaxed_a_tool_call_is_durable_before_it_starts(journal, make_writer, mock_clock):
    """A journal in relaxed durability writes what may have an effect, and all before it, before it goes on."""
    writer = make_writer(AsyncCommitJournal(journal), await journal.acquire())
    await writer.commit(StateChangeRecord(changes={"n": 1}))
    assert journal.statistics.commits == 0
    await writer.commit(CallsStartedRecord(call_ids=("call",)))
    assert journal.statistics.commits == 1
    assert await writer.load() == writer.confirmed


async def _confirm(writer, record):
    await writer.journal.commit(writer.entry(record), epoch=writer.epoch, durable=False)
    writer.confirmed += (record,)
