"""Long sessions get snapshots during their turns, and are restored from them exactly."""

import functools

import attrs
import pytest
import trio

from actgent import BareAgent, Memory, ModelView, ScriptedLLM, ShortTermMemory, ToolCall, open_runtime, tool
from actgent.errors import ConfigurationError, JournalFailed, SessionNotFound
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry, Snapshot
from actgent.journal.journal_url import open_journal
from actgent.journal.session_list_queries import SessionKey
from actgent.sessions import session_record_writer
from actgent.sessions.conversation import RecordedMessages
from actgent.sessions.restore import session_loader, snapshotter
from actgent.sessions.restore.snapshotter import SnapshotBuilder

TURNS = 40


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Snapshots after few records."""
    monkeypatch.setattr(session_record_writer, "SNAPSHOT_RECORDS", 50)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/agents.db"


def clerk(memory=None, said=None):
    """Return an agent that answers with the number of messages in its request."""

    def answer(chat):
        if said is not None:
            said.append([(each.role, each.parts) for each in chat.messages])
        return f"seen {len(chat.messages)}"

    return BareAgent("clerk", llm=ScriptedLLM(answer, keep=0), memory=memory or ShortTermMemory())


async def talk(session, count, first=0):
    for number in range(first, first + count):
        await session.chat(f"hello {number}")
        await session.wait_idle()


async def snapshot_of(journal, session_id="s"):
    """Return the snapshot of the session as soon as it exists."""
    with trio.fail_after(60):
        while (found := await journal.find_snapshot(session_id, agent="clerk")) is None:
            await trio.lowlevel.checkpoint()
    return found


async def live(url, turns=TURNS, memory=None):
    """A session with so many turns; returns its history."""
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk(memory))
        session = await agent.create_session("ada", session_id="s")
        await talk(session, turns)
        if memory is None:
            await snapshot_of(runtime.journal)
        return session.history


def held(session):
    """The messages of a session as they are kept in memory."""
    return session._context.conversation.messages


async def test_a_long_session_is_restored_from_its_snapshot(url):
    """Its model receives the same requests as after a restore from all records, and the history is complete."""
    history = await live(url)
    shown = []
    for drops in (False, True):
        texts = []
        async with open_runtime(journal=url) as runtime:
            if drops:
                await runtime.journal.drop_snapshots("s", agent="clerk", epoch=runtime.journal.epoch_of("s"))
            agent = await runtime.start(clerk(said=texts))
            session = await agent.open_session("s")
            assert isinstance(held(session), RecordedMessages) is not drops
            assert len(held(session)) == len(history) + 2 * drops
            await session.chat("and now?", message_id="now" if drops else None)
            await session.wait_idle()
            assert session.history[: len(history)] == history
            assert held(session)[3] == history[3]
            shown.append(texts[0][: 2 * TURNS + 1])
    assert shown[0] == shown[1]


async def test_a_snapshot_follows_the_one_before(url):
    """Each later snapshot covers more records, and leaves fewer than the number that triggers the next."""
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", session_id="s")
        covered = []
        for lot in range(4):
            await talk(session, 20, 20 * lot)
            with trio.fail_after(60):
                while (await snapshot_of(runtime.journal)).records in covered:
                    await trio.lowlevel.checkpoint()
            covered.append((await snapshot_of(runtime.journal)).records)
            head = await runtime.journal.head("clerk", "s")
            assert head.records - covered[-1] < 120
    assert covered == sorted(covered)


async def test_old_session_gets_its_snapshot_when_it_is_opened(url, monkeypatch):
    """No message is needed in the session."""
    with monkeypatch.context() as patched:
        patched.setattr(session_record_writer, "SNAPSHOT_RECORDS", 10_000)
        await live(url, memory=ShortTermMemory())
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk())
        assert await runtime.journal.find_snapshot("s", agent="clerk") is None
        await agent.open_session("s")
        await snapshot_of(runtime.journal)


@attrs.frozen
class Shouting(Memory):
    """A memory of a developer's, which knows nothing of snapshots."""

    def open_view(self):
        return ShoutingView(ShortTermMemory().open_view())


@attrs.define
class ShoutingView(ModelView):
    inner: ModelView

    def add(self, message, *, answered=False):
        self.inner.add(message, answered=answered)

    def messages(self):
        return self.inner.messages()


class Quiet(ShortTermMemory):
    """A memory that inherits from ours, and may do more."""


@pytest.mark.parametrize("memory", [Shouting(), Quiet()])
async def test_a_memory_that_cannot_be_saved_is_made_from_all_records(url, memory):
    """No snapshot is stored for it, and a snapshot of another memory is not used."""
    history = await live(url)
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk(memory))
        session = await agent.open_session("s")
        assert held(session) == list(history)
        await talk(session, TURNS, TURNS)
    later = session.history
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk(memory))
        session = await agent.open_session("s")
        assert held(session) == list(later)


async def test_memory_with_other_settings_ignores_the_snapshot(url):
    """The memory with other settings is built from all records."""
    history = await live(url)
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk(ShortTermMemory(max_tokens=100)))
        assert held(await agent.open_session("s")) == list(history)


@pytest.mark.parametrize("lookback", [None, 33])
async def test_protocol_that_reads_further_back_gets_all_messages(url, lookback):
    """This includes a protocol that does not declare how far it reads back."""
    history = await live(url)
    async with open_runtime(journal=url) as runtime:
        agent = clerk()
        agent.protocol.lookback = lookback
        session = await (await runtime.start(agent)).open_session("s")
        assert held(session) == list(history)


async def test_unknown_snapshot_format_is_ignored(url):
    """Snapshots of an older or newer version and invalid bytes are ignored."""
    history = await live(url)
    for version, body in (
        (99, b"of a newer one"),
        (session_loader.decode_snapshot.__globals__["VERSION"], b"?"),
    ):
        async with open_runtime(journal=url) as runtime:
            head = await runtime.journal.head("clerk", "s")
            other = Snapshot(records=head.records, version=version, body=body)
            await runtime.journal.keep_snapshot(
                "s", other, agent="clerk", epoch=runtime.journal.epoch_of("s")
            )
            agent = await runtime.start(clerk())
            assert (await agent.open_session("s")).history == history


class NoRoom(MemoryJournal):
    """Takes no snapshots."""

    tried = 0

    async def _keep_snapshot(self, key, snapshot, epoch):
        self.tried += 1
        raise JournalFailed("no room for that")


async def test_a_failed_snapshot_does_not_disturb_the_session(caplog):
    """A warning is logged, and the next snapshot is made when it is due."""
    async with NoRoom().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", session_id="s")
        await talk(session, 3 * TURNS)
        assert len(session.history) == 6 * TURNS
        assert 1 < journal.tried < 12
    assert "the snapshot of session" in caplog.text


class Slow(MemoryJournal):
    """A journal whose reads never end."""

    async def read(self, session_id, **options):
        await trio.sleep_forever()


async def test_exit_does_not_wait_for_snapshots():
    """A snapshot in progress is abandoned, and no turn has waited for it."""
    async with Slow().running() as journal:
        with trio.fail_after(60):
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(clerk())
                await talk(await agent.create_session("ada", session_id="s"), TURNS)


async def test_a_deleted_session_loses_its_snapshot(url):
    """A new session with the same id starts empty."""
    await live(url)
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk())
        await runtime.delete_session("s", agent="clerk")
        session = await agent.create_session("ada", session_id="s")
        await talk(session, 1)
    async with open_runtime(journal=url) as runtime:
        session = await (await runtime.start(clerk())).open_session("s")
        assert [message.text for message in session.history] == ["hello 0", "seen 1"]


async def test_a_snapshot_contains_no_redacted_text(url, tmp_path):
    """The snapshot is made from the stored records."""

    def redact(text):
        return text.replace("hello", "*****")

    async with open_runtime(journal=url, redact=redact) as runtime:
        session = await (await runtime.start(clerk())).create_session("ada", session_id="s")
        await talk(session, TURNS)
        await snapshot_of(runtime.journal)
    async with open_journal(url) as journal:
        await journal.acquire()
        tail = await journal.load_tail("s", agent="clerk")
    taken = session_loader.decode_snapshot(tail.snapshot)
    assert b"*****" in taken.view
    assert b"hello" not in taken.view
    assert "hello" not in repr(taken)


# --- messages in pages -------------------------------------------------------------------


async def pages_of(session, limit):
    """All messages, page by page from the end."""
    found, before = [], None
    while before != 0:
        page = await session.messages(limit=limit, before=before)
        assert len(page) == len(page.messages) <= limit
        assert page.total == len(held(session))
        found[:0] = page
        before = page.first
    return found


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
async def test_messages_are_read_in_pages(kind, url, request, monkeypatch):
    """Recent messages come from memory and older ones from the journal; each message is read once, and none is retained."""
    monkeypatch.setattr(snapshotter, "MARK_MESSAGES", 6)
    url = {"memory": "memory:", "sqlite": url}.get(kind) or request.getfixturevalue("postgres_url")
    async with open_journal(url) as journal:
        async with open_runtime(journal=journal) as runtime:
            session = await (await runtime.start(clerk())).create_session("ada", session_id="s")
            await talk(session, TURNS)
            await snapshot_of(journal)
            history = session.history
            assert await pages_of(session, 7) == list(history)
        async with open_runtime(journal=journal) as runtime:
            session = await (await runtime.start(clerk())).open_session("s")
            missing = held(session).missing
            assert missing > 0
            for limit in (1, 7, 1000):
                assert await pages_of(session, limit) == list(history)
            for after in (-1, 0, 5, missing - 2, missing, len(history) - 1, 9999):
                page = await session.messages(limit=10, after=after)
                assert page.messages == history[after + 1 : after + 11]
                assert page.first == min(after + 1, len(history))
            assert held(session).missing == missing
            assert session.history == history


async def test_page_needs_a_size_and_one_position(url):
    """Invalid arguments raise an error."""
    async with open_runtime(journal=url) as runtime:
        session = await (await runtime.start(clerk())).create_session("ada")
        assert (await session.messages()).messages == ()
        with pytest.raises(ConfigurationError, match="limit"):
            await session.messages(limit=0)
        with pytest.raises(ConfigurationError, match="both"):
            await session.messages(before=3, after=3)


async def test_reading_older_messages_of_an_erased_session_raises(url):
    """A caller with a reference to the session gets an error."""
    await live(url)
    async with open_runtime(journal=url) as runtime:
        session = await (await runtime.start(clerk())).open_session("s")
        conversation = session._context.conversation
        await runtime.journal.delete("s", agent="clerk")
        with pytest.raises(SessionNotFound):
            await conversation.read(limit=5, before=5)
        with pytest.raises(SessionNotFound):
            assert conversation.history


async def test_older_messages_need_their_journal(url):
    """After the block of the journal a read raises an error that says so."""
    await live(url)
    async with open_runtime(journal=url) as runtime:
        session = await (await runtime.start(clerk())).open_session("s")
    with pytest.raises(JournalFailed, match="not open"):
        assert session._context.conversation.history


async def test_tool_calls_are_whole_in_pages(url, monkeypatch):
    """Calls without a result get one when the session is rebuilt; ids are unique."""
    monkeypatch.setattr(snapshotter, "MARK_MESSAGES", 4)

    @tool
    async def look(what: str) -> str:
        """Look."""
        return f"seen {what}"

    def answer(chat):
        if chat.messages[-1].role == "tool":
            return "done"
        return [ToolCall("look", {"what": "it"}, "the same"), ToolCall("look", {"what": "that"})]

    def make():
        return BareAgent("clerk", llm=ScriptedLLM(answer, keep=0), tools=[look])

    async with open_runtime(journal=url) as runtime:
        session = await (await runtime.start(make())).create_session("ada", session_id="s")
        await talk(session, 30)
        await snapshot_of(runtime.journal)
        history = session.history
    async with open_runtime(journal=url) as runtime:
        session = await (await runtime.start(make())).open_session("s")
        assert isinstance(held(session), RecordedMessages)
        assert await pages_of(session, 9) == list(history)
        await talk(session, 5)
        calls = [call.id for message in session.history for call in message.tool_calls]
        assert len(set(calls)) == len(calls) == 70


class Renewing(MemoryJournal):
    """Erases the session that is being read, and begins another one under its id."""

    async def read(self, session_id, *, agent, after=0, limit=1000):
        page = await super().read(session_id, agent=agent, after=after, limit=limit)
        if after + len(page) >= (await self.head(agent, session_id)).records:
            records = [attrs.evolve(each, created_at=5.0) if not at else each for at, each in enumerate(page)]
            await self.delete(session_id, agent=agent)
            entry = Entry(session_id=session_id, agent=agent, records=tuple(records))
            await self.commit(entry, epoch=self._epoch)
        return page


async def test_snapshot_is_not_stored_for_a_recreated_session():
    """The other session began under the same id, and may be equal otherwise."""
    async with Renewing().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            session = await (await runtime.start(clerk())).create_session("ada", session_id="s")
            await talk(session, 5)
        epoch = await journal.acquire()
        maker = SnapshotBuilder(journal, SessionKey("clerk", "s"), ShortTermMemory())
        assert not await maker.make(slack=3, epoch=epoch)
        assert await journal.find_snapshot("s", agent="clerk") is None
        plain = SnapshotBuilder(journal, SessionKey("clerk", "s"), ShortTermMemory())
        journal.read = functools.partial(MemoryJournal.read, journal)
        assert await plain.make(slack=3, epoch=epoch)
