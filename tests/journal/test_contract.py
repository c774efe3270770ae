"""The contract that every kind of journal fulfils."""

import contextlib
import os
import sys
import textwrap
import time

import attrs
import pytest
import trio

from actgent.errors import ConfigurationError, Fenced, JournalFailed, NotSerializable, UsageError
from actgent.journal.group_commit.pending_write_queue import GROUP_BATCHES
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.journal_wrappers import AsyncCommitJournal
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
from actgent.messages import File, Priority, Sender

# --- order and content -------------------------------------------------------------------


async def test_committed_records_are_loaded(writer):
    """The loaded records of several steps equal the committed ones, in their order."""
    await writer.open()
    await writer.turn()
    await writer.turn("more", "yes")
    assert await writer.load() == writer.confirmed


async def test_an_unknown_session_has_no_records(writer):
    """Loading an unknown session raises no error."""
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
    """Enqueued steps are written within about 50 ms, without a further call."""
    await writer.open()
    before = writer.journal.statistics.batches
    writer.enqueue_write(StateChangeRecord(changes={"n": 1}))
    await trio.sleep(0.5)
    assert writer.journal.statistics.batches == before + 1
    assert await writer.load() == writer.confirmed


async def test_closing_the_journal_writes_queued_steps(lasting_url, make_writer):
    """This includes steps without a waiting caller."""
    async with open_journal(lasting_url) as journal:
        writer = make_writer(journal, await journal.acquire())
        writer.enqueue_write(StateChangeRecord(changes={"n": 1}))
    async with open_journal(lasting_url) as journal:
        await journal.acquire()
        assert await journal.load("s") == writer.confirmed


async def test_entry_without_records_waits_for_earlier_entries(writer):
    """The entry itself writes nothing."""
    writer.enqueue_write(SessionClosedRecord())
    await writer.commit()
    assert writer.journal.statistics.batches == 1
    assert await writer.load() == (SessionClosedRecord(),)


async def test_large_records_are_restored(writer):
    """A message contains a file of 20 MB."""
    message = writer.message("look")
    part = File(media_type="application/pdf", data=bytes(range(256)) * 80_000)
    await writer.commit(AgentMessageRecord(message=message), StateChangeRecord(changes={"file": part.data}))
    assert await writer.load() == writer.confirmed


@pytest.mark.parametrize("name", ["", "Ünïcode 会议", "a'b\"c;--", "x" * 5000, "a/b\\c\n"])
async def test_any_text_is_a_valid_session_id(journal, make_writer, name):
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
    """A hundred concurrent sessions each keep their own records in their own order."""
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
    """At least ten turns are written by one commit."""
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


async def test_sessions_with_an_accepted_message_are_listed_until_it_ends(journal, make_writer):
    """The list contains the unfinished sessions of one agent, the oldest first."""
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
    """A start would load them in vain.

    Resumed sessions are listed again, and the session summary shows the suspension.
    """
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
    """Pages contain suspended sessions of one agent, in the order of their ids, without resumed and closed sessions."""
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
    """An urgent message does not wait for the suspended turn, so the next start has to load the session."""
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


async def test_due_sessions_are_listed_from_their_heads(journal, make_writer):
    """The list contains sessions of one agent, the earliest first.

    Closed sessions and sessions without a date are not listed.
    """
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
    """They are part of the stored head and its checksum, and exist after a restart."""
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
    """The summary has the owner, the parent, times and counts. No records are read."""
    await writer.commit(SessionCreatedRecord(owner=Sender("ada"), parent_id="p", created_at=5))
    await writer.commit(MessageAcceptedRecord(message=writer.message("hi")))
    (summary,) = await writer.journal.sessions()
    assert (summary.session_id, summary.agent, summary.owner, summary.parent_id) == ("s", "a", "ada", "p")
    assert (summary.created_at, summary.records, summary.unfinished, summary.closed) == (5, 2, 1, False)
    await writer.commit(SessionClosedRecord())
    assert [summary.closed for summary in await writer.journal.sessions("a")] == [True]
    assert await writer.journal.sessions("b") == []


async def test_deleting_a_session_removes_its_queued_steps(journal, make_writer):
    """Other sessions are unchanged, and the id of the deleted one can be used again."""
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


async def test_sessions_have_the_epoch_of_the_journal(journal, make_writer):
    """One process owns all sessions, so it writes each of them in the same epoch."""
    first = await journal.acquire()
    assert journal.epoch_of("s") == journal.epoch_of("another") == first
    second = await journal.acquire()
    assert journal.epoch_of("s") == second > first
    await make_writer(journal, journal.epoch_of("s")).turn()


async def test_steps_of_a_former_epoch_are_rejected(journal, make_writer):
    """Committed and enqueued steps are rejected. The new epoch continues with the next record number."""
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


async def test_each_open_of_a_journal_has_a_higher_epoch(lasting_url, make_writer):
    """A session continues after its last record."""
    confirmed, epochs = (), []
    for _ in range(3):
        async with open_journal(lasting_url) as journal:
            writer = make_writer(journal, await journal.acquire())
            await writer.turn()
            confirmed += writer.confirmed
            epochs.append(writer.epoch)
            assert await writer.load() == confirmed
    assert epochs == sorted(set(epochs))


async def test_second_owner_of_a_journal_is_rejected(lasting_url):
    """The error comes within a second and names the process of the owner with a remedy.

    The second journal acquires it after the first has closed.
    """
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


async def test_owner_in_another_process_is_rejected(lasting_url):
    """The other process gets a typed error that names this process."""
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
            await _acquire_with_retries(other)
            with pytest.raises(Fenced, match="is running"):
                await writer.commit(SessionClosedRecord())
        with pytest.raises(Fenced, match="no longer owns"):
            await writer.commit(SessionClosedRecord())
        again = make_writer(journal, await journal.acquire())
        await again.turn()
        assert await again.load() == writer.confirmed + again.confirmed


async def _acquire_with_retries(journal):
    """Acquire the journal, with retries. A busy server detects a lost connection later than an owner waits for it."""
    with trio.fail_after(30):
        while True:
            with contextlib.suppress(Fenced):
                return await journal.acquire()


async def test_closing_releases_the_lock_at_once(postgres_url, monkeypatch):
    """The lock does not last until the server has found out about the end of the connection."""
    monkeypatch.setattr(
        "actgent.journal.group_commit.base_journal_with_group_commit.ACQUIRE_TIMEOUT_SECONDS", 0.0
    )
    for _ in range(20):
        async with open_journal(postgres_url) as journal:
            await journal.acquire()


async def test_journal_cannot_be_used_outside_of_its_block(url):
    """The journal raises an error before it is acquired and after its block."""
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


async def test_missing_folder_raises_an_error_with_a_remedy(tmp_path):
    with pytest.raises(
        JournalFailed, match=r"cannot write a lock file into the folder of the journal a.db .*: create it"
    ):
        async with open_journal(f"sqlite:///{tmp_path}/missing/a.db") as journal:
            await journal.acquire()


# --- cancellation ------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(12))
async def test_cancelled_commit_is_stored_completely_or_not_at_all(writer, steps):
    """The commit is cancelled after each number of scheduler steps. The journal remains usable."""
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
    """The next call returns its result."""
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


async def test_non_durable_step_is_written_soon(journal, make_writer, mock_clock):
    """The step is confirmed at once, and is written within 50 ms, after the steps that were queued before."""
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
    """When the queue has reached its bound, a non-durable step is written before it is confirmed."""
    writer = make_writer(journal, await journal.acquire())
    for number in range(GROUP_BATCHES):
        await _confirm(writer, StateChangeRecord(changes={"n": number}))
    assert journal.statistics.commits == 0
    await _confirm(writer, SessionClosedRecord())
    assert journal.statistics.commits > 0
    assert await writer.load() == writer.confirmed


async def test_relaxed_journal_writes_a_tool_call_before_it_starts(journal, make_writer, mock_clock):
    """A relaxed journal writes records that may have effects, with all earlier records, before the commit returns."""
    writer = make_writer(AsyncCommitJournal(journal), await journal.acquire())
    await writer.commit(StateChangeRecord(changes={"n": 1}))
    assert journal.statistics.commits == 0
    await writer.commit(CallsStartedRecord(call_ids=("call",)))
    assert journal.statistics.commits == 1
    assert await writer.load() == writer.confirmed


async def _confirm(writer, record):
    await writer.journal.commit(writer.entry(record), epoch=writer.epoch, durable=False)
    writer.confirmed += (record,)
