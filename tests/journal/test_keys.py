"""The key of a session in a journal: its agent and its id."""

import pytest

from actgent.errors import ConfigurationError, JournalDamaged
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.journal_wrappers import AsyncCommitJournal, WrappedJournal
from actgent.journal.record_types import SessionCreatedRecord, StateChangeRecord
from actgent.journal.session_list_queries import SessionFilter, SessionKey
from actgent.messages import Sender


def opened(owner="ada", parent=None):
    """Return the first record of a session, below a parent if one is given."""
    agent, session_id = parent or ("", None)
    return SessionCreatedRecord(owner=Sender(owner), created_at=1.0, parent_id=session_id, parent_agent=agent)


@pytest.fixture
def two(journal, make_writer):
    """Return a function that makes two writers of sessions with one id, of the agents `a` and `b`."""

    async def make():
        epoch = await journal.acquire()
        return [make_writer(journal, epoch, "s", agent) for agent in "ab"]

    return make


async def test_sessions_of_two_agents_with_one_id_do_not_mix(journal, two):
    """Their concurrent steps, heads and pending work stay separate."""
    a, b = await two()
    for writer in (a, b):
        await writer.commit(opened(f"owner of {writer.agent}"))
    for number in range(5):
        a.enqueue_write(StateChangeRecord(changes={"a": number}))
        b.enqueue_write(StateChangeRecord(changes={"b": number}))
    await a.turn("to a", "from a")
    for writer in (a, b):
        assert await journal.load("s", agent=writer.agent) == writer.confirmed
        head = await journal.head(writer.agent, "s")
        assert (head.owner, head.records) == (f"owner of {writer.agent}", len(writer.confirmed))
    assert await journal.agents_with_session("s") == ["a", "b"]


async def test_an_id_without_agent_is_accepted_if_unique(journal, two):
    """If several agents have the id, the error names all of them."""
    a, b = await two()
    await a.commit(opened())
    assert await journal.load("s") == a.confirmed
    await b.commit(opened())
    for call in (journal.load, journal.delete):
        with pytest.raises(ConfigurationError, match=r"'a', 'b'.*'s'"):
            await call("s")
    await journal.delete("s", agent="a")
    assert await journal.load("s", agent="a") == ()
    assert await journal.load("s") == b.confirmed
    assert await journal.head("a", "s") is None


async def test_steps_follow_earlier_steps_after_reopening(lasting_url, make_writer):
    """New steps of each session follow the earlier steps of that session."""
    confirmed = {}
    for _ in range(3):
        async with open_journal(lasting_url) as journal:
            epoch = await journal.acquire()
            for agent in "ab":
                writer = make_writer(journal, epoch, "s", agent)
                await writer.turn(f"to {agent}")
                confirmed[agent] = confirmed.get(agent, ()) + writer.confirmed
                assert await journal.load("s", agent=agent) == confirmed[agent]


async def test_recreated_session_has_no_data_of_the_erased_one(journal, two):
    """The session has neither the rows nor the list position of the erased session."""
    a, b = await two()
    await a.turn()
    await b.turn()
    await journal.delete("s", agent="a")
    await a.commit(opened())
    assert await journal.load("s", agent="a") == (opened(),)
    assert await journal.load("s", agent="b") == b.confirmed


async def test_row_of_another_agents_session_is_rejected(tmp_path, make_writer):
    """Both sessions have the same id, and both rows the same number and length."""
    apsw = pytest.importorskip("apsw")
    path = tmp_path / "a.db"
    async with open_journal(f"sqlite:///{path}") as journal:
        epoch = await journal.acquire()
        for agent in "ab":
            entry = Entry(session_id="s", agent=agent, records=(StateChangeRecord(changes={"n": agent}),))
            await journal.commit(entry, epoch=epoch)
    database = apsw.Connection(str(path))
    series = [each for (each,) in database.execute("SELECT series FROM sessions ORDER BY agent")]
    database.execute("UPDATE steps SET series = 'other' WHERE series = ?", (series[0],))
    database.execute("UPDATE steps SET series = ? WHERE series = ?", (series[0], series[1]))
    database.execute("UPDATE steps SET series = ? WHERE series = 'other'", (series[1],))
    database.close()
    async with open_journal(f"sqlite:///{path}") as journal:
        await journal.acquire()
        for agent in "ab":
            with pytest.raises(JournalDamaged, match="checksum"):
                await journal.load("s", agent=agent)


async def test_head_names_the_root_of_its_tree(journal, make_writer):
    """The parent may belong to another agent with the same id, and may be written in the same step or earlier."""
    epoch = await journal.acquire()
    root, child, grandchild = (make_writer(journal, epoch, "s", agent) for agent in "abc")
    journal.enqueue_write(root.entry(opened()), epoch=epoch)
    await child.commit(opened(parent=("a", "s")))
    await grandchild.commit(opened(parent=("b", "s")))
    orphan = make_writer(journal, epoch, "orphan")
    await orphan.commit(opened(parent=("a", "gone")))
    for agent, parent in (("a", None), ("b", ("a", "s")), ("c", ("b", "s"))):
        head = await journal.head(agent, "s")
        assert (head.root, head.parent) == (SessionKey("a", "s"), parent)
    assert (await journal.head("a", "orphan")).root == ("a", "orphan")
    assert [each.key for each in await journal.children("a", "s")] == [("b", "s")]
    assert [each.key for each in await journal.children("b", "s")] == [("c", "s")]
    assert await journal.children("c", "s") == []
    below = await journal.children_of([SessionKey(agent, "s") for agent in "abc"] + [SessionKey("a", "gone")])
    assert {each.key for each in below} == {("b", "s"), ("c", "s"), ("a", "orphan")}
    assert await journal.children_of([]) == []


async def test_wrapper_forwards_unchanged_methods():
    """A method that the wrapper does not change returns the result of the inner journal."""
    async with MemoryJournal().running() as inner:
        journal = AsyncCommitJournal(WrappedJournal(inner))
        epoch = await journal.acquire()
        for agent in "ab":
            entry = Entry(
                session_id="s",
                agent=agent,
                records=(opened(parent=("p", "p")), StateChangeRecord(changes={})),
            )
            await journal.commit(entry, epoch=epoch)
        assert await journal.agents_with_session("s") == ["a", "b"]
        assert len(await journal.load("s", agent="a")) == 2
        assert (await journal.head("a", "s")).records == 2
        assert [each.key for each in await journal.children("p", "p")] == [("a", "s"), ("b", "s")]
        assert [each.key for each in await journal.page(SessionFilter(agent="b"), limit=5)] == [("b", "s")]
        assert (await journal.counts("a"))["idle"] == 1
        await journal.delete("s", agent="a")
        assert [each.key for each in await journal.sessions()] == [("b", "s")]
