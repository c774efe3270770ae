"""Storages that do not answer for some time: callers wait no longer than their deadlines, and nothing is lost or done twice."""

import contextlib
import itertools

import pytest
import trio
import trio.testing

from actgent import BareAgent, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.errors import Fenced, JournalFailed, JournalSlow
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import StateChangeRecord


class FrozenJournal(MemoryJournal):
    """A journal that writes nothing while its gate is closed."""

    def __init__(self):
        super().__init__()
        self.gate = trio.Event()
        self.gate.set()

    async def _write(self, rows, heads, epoch):
        await self.gate.wait()
        await super()._write(rows, heads, epoch)


def clerk(asked, **options):
    """Return an agent that records its messages."""

    def answer(chat):
        asked.append(chat.messages[-1].parts[0].text)
        return "ok"

    return BareAgent("clerk", llm=ScriptedLLM(answer, keep=0), **options)


async def seconds_of(fn, *args, **options):
    """Return the duration of a call and its error."""
    started = trio.current_time()
    try:
        await fn(*args, **options)
    except JournalFailed as error:
        return trio.current_time() - started, error
    return trio.current_time() - started, None


@pytest.mark.parametrize("again", [True, False])
async def test_chat_waits_for_the_journal_until_its_deadline(autojump_clock, again):
    """The message is then rejected and never runs; the same id may be sent again and is answered once."""
    requests = []
    async with FrozenJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk(requests))
        session = await agent.create_session("ada", session_id="s")
        journal.gate = trio.Event()
        took, error = await seconds_of(session.chat, "hi", enqueue_timeout=5, message_id="m")
        assert 5 <= took <= 5.2
        assert isinstance(error, JournalSlow)
        await trio.sleep(1)
        if again:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: session.chat("hi", message_id="m"))
                await trio.sleep(1)
                journal.gate.set()
        journal.gate.set()
        await session.wait_idle()
    assert requests == ["hi"] * again
    async with journal.running(), open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk(requests))
        session = await agent.open_session("s")
        await session.wait_idle()
        assert [message.text for message in session.history] == ["hi", "ok"] * again
    assert requests == ["hi"] * again


async def test_chat_waits_no_longer_than_its_deadline_for_room_and_the_journal_together(autojump_clock):
    """After the message got room in the inbox, its write has the rest of the time."""
    async with FrozenJournal().running() as journal, open_runtime(journal=journal) as runtime:
        llm = ScriptedLLM(["first", "second"], delay=4)
        agent = await runtime.start(BareAgent("clerk", llm=llm, inbox_capacity=1))
        session = await agent.create_session("ada")

        @session.on_conversation
        def freeze(reply):
            if reply.text == "first":
                journal.gate = trio.Event()

        for text in ("runs", "is queued"):
            await session.chat(text)
        took, error = await seconds_of(session.chat, "waits for room", enqueue_timeout=5)
        assert 5 <= took <= 5.2
        assert isinstance(error, JournalSlow)
        journal.gate.set()
        await session.wait_idle()


async def test_a_cancelled_caller_does_not_wait_for_the_journal(autojump_clock):
    """The write may have begun or be queued after another one. None of the messages runs."""
    requests = []
    async with FrozenJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk(requests))
        sessions = [await agent.create_session("ada") for _ in range(3)]
        journal.gate = trio.Event()
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for session in sessions:
                nursery.start_soon(session.chat, "hi")
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert trio.current_time() == started
        journal.gate.set()
        for session in sessions:
            await session.wait_idle()
    assert requests == []


async def test_journal_retries_a_failed_step_without_a_caller(autojump_clock, make_writer):
    """The journal retries as soon as the storage works, without further messages in the session."""

    class Full(MemoryJournal):
        is_full = False

        async def _write(self, rows, heads, epoch):
            if self.is_full:
                raise JournalFailed("no")
            await super()._write(rows, heads, epoch)

    async with Full().running() as journal:
        writer = make_writer(journal, await journal.acquire())
        journal.is_full = True
        writer.enqueue_write(StateChangeRecord(changes={"n": 1}))
        await trio.sleep(5)
        journal.is_full = False
        await trio.sleep(2)
        assert [summary.records for summary in journal._stored_heads.values()] == [1]


# --- PostgreSQL ----------------------------------------------------------------------------------


@tool
async def count(word: str) -> str:
    """Count a word."""
    COUNTED.append(word)
    return "counted"


COUNTED = []
SAID = []


async def test_turns_survive_lost_connections(link):
    """The connection is cut repeatedly during turns with tools; each tool runs once."""
    link, url = link
    COUNTED.clear()
    SAID.clear()
    failures = []

    def answer(chat):
        last = chat.messages[-1]
        return "done" if last.role == "tool" else [ToolCall("count", {"word": last.parts[0].text})]

    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(answer, keep=0), tools=[count]))
        sessions = [await agent.create_session("ada") for _ in range(5)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cut_often, link, went_on := trio.lowlevel.ParkingLot())
            async with trio.open_nursery() as talking:
                for index, session in enumerate(sessions):
                    session.on_exception(failures.append)
                    talking.start_soon(_talk, session, index, link, went_on)
            nursery.cancel_scope.cancel()
        assert failures == []
        assert sorted(COUNTED) == sorted(SAID)
        assert sum(len(session.history) for session in sessions) == 4 * len(SAID)


async def _talk(session, place, link, went_on):
    """Send one message after the other until five cuts have happened."""
    for number in itertools.count():
        cuts = link.cuts_made
        await session.chat(f"{place}/{number}")
        await session.wait_idle()
        SAID.append(f"{place}/{number}")
        if link.cuts_made == cuts:  # all of it through a whole connection
            went_on.unpark_all()
        if number > 5 and link.cuts_made > 4:
            return


async def _cut_often(link, went_on):
    """Cut the connection at any operation. A server that accepts slowly gets the time that it needs."""
    while True:
        await trio.sleep(0.1)
        link.cut()
        await went_on.park()


async def test_commit_with_an_interrupted_response_is_stored_once(link, make_writer):
    """The server has the commit and was unreachable for a moment: no caller gets an error."""
    link, url = link
    async with open_journal(url) as journal, trio.open_nursery() as nursery:
        writer = make_writer(journal, await journal.acquire())
        await writer.commit(StateChangeRecord(changes={"n": 0}))
        link.cuts = True
        nursery.start_soon(_let_through, link)
        await writer.commit(StateChangeRecord(changes={"n": 1}))
        assert await writer.load() == writer.confirmed


async def _let_through(link):
    while not link.is_down:  # noqa: ASYNC110 - it is cut by the data that it carries
        await trio.sleep(0.01)
    await trio.sleep(0.5)
    link.is_down = False


async def test_an_unresponsive_server_blocks_no_caller(link, monkeypatch):
    """A chat fails in time, a cancelled chat returns at once, and work continues on a new connection."""
    link, url = link
    monkeypatch.setattr("actgent.journal.postgres.journal.WRITE_TIMEOUT_SECONDS", 2.0)
    requests = []
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk(requests))
        session = await agent.create_session("ada")
        link.flows = trio.Event()
        took, error = await seconds_of(session.chat, "one", enqueue_timeout=1)
        assert 1 <= took < 2
        assert isinstance(error, JournalSlow)
        started = trio.current_time()
        with trio.move_on_after(0.2):
            await session.chat("two")
        assert trio.current_time() - started < 1
        await trio.sleep(2)  # the connection is dropped
        link.flows.set()
        await session.chat("three")
        await session.wait_idle()
    assert requests == ["three"]


async def test_a_process_that_stops_in_the_middle_of_a_commit_leaves_no_transaction(
    link, postgres_url, make_writer
):
    """A group is one statement: the server has all of it, and no client waits for the stopped one."""
    psycopg = pytest.importorskip("psycopg")
    link, url = link
    server, _, schema = postgres_url.partition("?schema=")
    async with open_journal(url) as journal, trio.open_nursery() as nursery:
        writer = make_writer(journal, await journal.acquire())
        await writer.open()
        link.stops = True
        nursery.start_soon(writer.commit, StateChangeRecord(changes={"n": 1}))
        with trio.fail_after(60), psycopg.connect(server, autocommit=True) as other:
            while other.execute(f"SELECT count(*) FROM {schema}.steps").fetchone() != (2,):  # noqa: ASYNC110
                await trio.sleep(0.01)
            state = "SELECT state FROM pg_stat_activity WHERE pid = %s"
            pid = journal._connection.info.backend_pid
            while other.execute(state, [pid]).fetchone() != ("idle",):  # noqa: ASYNC110
                await trio.sleep(0.01)
        link.flows.set()
    assert len(writer.confirmed) == 2


async def test_permanently_rejected_statements_are_not_retried(postgres_url):
    """A retry would delay the steps of all other sessions."""
    psycopg = pytest.importorskip("psycopg")

    def write(_):
        raise psycopg.errors.ProgramLimitExceeded("index row requires 34416 bytes, maximum size is 8191")

    async with open_journal(postgres_url) as journal:
        await journal.acquire()
        with trio.fail_after(5), pytest.raises(JournalFailed, match="maximum size"):
            await journal._run(write)


async def test_a_commit_delayed_by_a_new_owner_is_fenced(postgres_url, make_writer):
    """The epoch is checked again after the new owner's transaction."""
    psycopg = pytest.importorskip("psycopg")
    server, _, schema = postgres_url.partition("?schema=")
    refused = []

    async def commit(writer):
        with pytest.raises(Fenced) as error:
            await writer.commit(StateChangeRecord(changes={"n": 1}))
        refused.append(str(error.value))

    async with open_journal(postgres_url) as journal, trio.open_nursery() as nursery:
        writer = make_writer(journal, await journal.acquire())
        await writer.open()
        with trio.fail_after(60), psycopg.connect(server) as taker:
            taker.execute(f"UPDATE {schema}.meta SET epoch = epoch + 1, owner = 'another one'")
            nursery.start_soon(commit, writer)
            waiting = "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted"
            pid = journal._connection.info.backend_pid
            while taker.execute(waiting, [pid]).fetchone() != (1,):  # noqa: ASYNC110
                await trio.sleep(0.01)
            taker.commit()
            while not refused:  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert taker.execute(f"SELECT count(*) FROM {schema}.steps").fetchone() == (1,)
        assert "another one owns it" in refused[0]


class Clock:
    """A virtual clock for the waits of a journal for its server."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.mark.parametrize(("seconds", "waits_for_approvals"), [(29.5, True), (30.5, False)])
async def test_a_server_outage_of_half_a_minute_raises_no_error(
    link, make_writer, monkeypatch, seconds, waits_for_approvals
):
    """A step of that time is stored once; after a longer outage it raises an error."""
    link, url = link
    clock = Clock()
    async with open_journal(url) as journal, trio.open_nursery() as nursery:
        writer = make_writer(journal, await journal.acquire())
        await writer.commit(StateChangeRecord(changes={"n": 0}))
        monkeypatch.setattr("actgent.journal.postgres.connections.time", clock)
        link.is_down = True
        link.cut()

        async def come_back():
            await trio.sleep(0.5)
            clock.now = seconds
            await trio.sleep(0.5)
            link.is_down = False

        nursery.start_soon(come_back)
        if waits_for_approvals:
            await writer.commit(StateChangeRecord(changes={"n": 1}))
        else:
            with pytest.raises(JournalFailed):
                await writer.commit(StateChangeRecord(changes={"n": 1}))
            await trio.sleep(1)
        monkeypatch.undo()
        assert await writer.load() == writer.confirmed


async def test_journal_leaves_a_server_that_became_a_standby(postgres_url, make_writer):
    """A read-only connection is replaced, and the step is stored once."""

    def demote(connection):
        connection.execute("SET default_transaction_read_only = on")

    async with open_journal(postgres_url) as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.commit(StateChangeRecord(changes={"n": 0}))
        await journal._thread.run(journal._connected, demote)
        await writer.commit(StateChangeRecord(changes={"n": 1}))
        assert await writer.load() == writer.confirmed


async def test_acquiring_waits_for_a_starting_server(link, nursery):
    """The wait equals that for a short outage, also for a reader."""
    link, url = link
    for is_reader in (False, True):
        await nursery.start(link.start_up)
        opening = open_journal(url, read_only=True) if is_reader else open_runtime(journal=url)
        with trio.fail_after(60):
            async with opening:
                assert not link.is_starting


@pytest.mark.parametrize(("seconds", "waits_for_approvals"), [(29.5, True), (30.5, False)])
async def test_a_server_that_starts_for_longer_than_half_a_minute_is_an_error(
    link, monkeypatch, nursery, seconds, waits_for_approvals
):
    """The error has the server's message."""
    link, url = link
    clock = Clock()
    monkeypatch.setattr("actgent.journal.postgres.connections.time", clock)
    link.is_starting = True

    async def let_in():
        while not link.refused:  # noqa: ASYNC110 - as above
            await trio.sleep(0.01)
        clock.now = seconds
        if waits_for_approvals:
            link.is_starting = False

    nursery.start_soon(let_in)
    with trio.fail_after(60), contextlib.ExitStack() as stack:
        if not waits_for_approvals:
            stack.enter_context(pytest.raises(JournalFailed, match="das Datenbanksystem startet"))
        async with open_runtime(journal=url):
            assert not link.is_starting
