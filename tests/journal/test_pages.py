"""Session lists page by page, and their counts, in every journal."""

import random

import pytest
import trio

from actgent.errors import JournalFailed
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import (
    MessageAcceptedRecord,
    MessageEndRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    StateChangeRecord,
    SuspensionRecord,
)
from actgent.journal.session_list_queries import Cursor, SessionFilter
from actgent.messages import Message, Sender, Text

SESSIONS = 10_000


def opened(owner, parent=None):
    agent, session_id = parent or ("", None)
    return SessionCreatedRecord(owner=Sender(owner), created_at=1.0, parent_id=session_id, parent_agent=agent)


class Keeper:
    """Writes sessions, and knows the expected list of the journal."""

    def __init__(self, journal, epoch):
        self.journal, self.epoch = journal, epoch

    async def begin(self, session_id, agent="a", owner="ada", parent=None):
        await self.write(session_id, agent, opened(owner, parent))

    async def write(self, session_id, agent, *records):
        entry = Entry(session_id=session_id, agent=agent, records=records)
        await self.journal.commit(entry, epoch=self.epoch)

    async def ids(self, limit=100, after=None, **expected):
        page = await self.journal.page(SessionFilter(**expected), after=after, limit=limit)
        return [each.session_id for each in page]

    async def walk(self, limit, **expected):
        """Return all matching ids, read in pages of `limit`."""
        found, after = [], None
        while page := await self.journal.page(SessionFilter(**expected), after=after, limit=limit):
            assert len(page) <= limit
            found += [each.session_id for each in page]
            after = page[-1].cursor
        return found


def message(session_id):
    return Message(session_id=session_id, sender=Sender("ada"), parts=(Text("hi"),))


@pytest.fixture
async def keeper(journal):
    return Keeper(journal, await journal.acquire())


async def test_the_name_of_an_owner_may_be_of_any_length(keeper):
    """A long name removes no other session from lists, and differs from a name with the same beginning."""
    begin = "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz", k=50_000))
    owners = {
        "short": "ada",
        "long": begin + "1",
        "twin": begin + "2",
        "cut": begin[:256],
        "less": begin[:255],
    }
    for name, owner in owners.items():
        await keeper.begin(name, owner=owner)
    assert set(await keeper.ids()) == owners.keys()
    for name, owner in owners.items():
        assert await keeper.ids(owner=owner) == [name]
    assert set(await keeper.ids(prefix=begin[:200])) == owners.keys() - {"short"}
    assert set(await keeper.ids(prefix=begin[:300])) == {"long", "twin"}
    (head,) = await keeper.journal.page(SessionFilter(owner=owners["twin"]))
    assert head.owner == owners["twin"]


@pytest.mark.parametrize("name", ["s\0", "\ud800"], ids=["nul", "surrogate"])
async def test_unstorable_names_match_no_session(keeper, name):
    """Queries with such a name return nothing, and concurrent queries are not affected."""
    journal = keeper.journal
    for number in range(20):
        await keeper.begin(f"s{number}")
    read = {}

    async def load(session_id):
        read[session_id] = len((await journal.load_tail(session_id, agent="a")).records)

    with trio.fail_after(10):
        assert await journal.head("a", name) is None
        assert await journal.head(name, "s1") is None
        assert await journal.agents_with_session(name) == []
        assert await journal.load(name, agent="a") == await journal.load(name) == ()
        assert await journal.children("a", name) == await journal.suspended("a", after=name) == []
        assert (
            await keeper.ids(owner=name)
            == await keeper.ids(agent=name)
            == await keeper.ids(prefix=name)
            == []
        )
        await journal.delete(name)
        await keeper.ids(after=Cursor(1.0, "a", name))
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(load, f"s{number}")
                nursery.start_soon(load, f"{name}{number}")
    assert {each for each, count in read.items() if count} == {f"s{number}" for number in range(20)}


async def test_most_recently_changed_session_is_listed_first(keeper):
    """A session that changes moves to the front of the next page that is read."""
    for number in range(5):
        await keeper.begin(f"s{number}")
    assert await keeper.ids() == ["s4", "s3", "s2", "s1", "s0"]
    await keeper.write("s1", "a", StateChangeRecord(changes={"n": 1}))
    assert await keeper.ids() == ["s1", "s4", "s3", "s2", "s0"]
    assert await keeper.ids(oldest_first=True) == ["s0", "s2", "s3", "s4", "s1"]
    keeper.journal.enqueue_write(
        Entry(session_id="s0", agent="a", records=(StateChangeRecord(changes={"n": 1}),)), epoch=keeper.epoch
    )
    assert await keeper.ids(limit=2) == ["s0", "s1"]


@pytest.mark.parametrize("oldest_first", [True, False])
async def test_pages_contain_each_session_once(keeper, oldest_first):
    """This includes sessions that were written in one step at the same time."""
    for number in range(23):
        entry = Entry(session_id=f"s{number:02}", agent="ab"[number % 2], records=(opened("ada"),))
        keeper.journal.enqueue_write(entry, epoch=keeper.epoch)
    whole = await keeper.ids(oldest_first=oldest_first)
    assert sorted(whole) == [f"s{number:02}" for number in range(23)]
    for limit in (1, 5, 23):
        assert await keeper.walk(limit, oldest_first=oldest_first) == whole


async def test_filters_can_be_combined(keeper):
    """The filters are agent, owner, state, parent, root, id prefix and time."""
    for number in range(6):
        await keeper.begin(f"s{number}", "ab"[number % 2], f"owner {number % 3}")
    await keeper.begin("child", "b", "agent a", parent=("a", "s0"))
    await keeper.begin("grandchild", "a", "agent b", parent=("b", "child"))
    assert await keeper.ids(agent="b") == ["child", "s5", "s3", "s1"]
    assert await keeper.ids(owner="owner 0") == ["s3", "s0"]
    assert await keeper.ids(owner="owner 0", agent="a") == ["s0"]
    assert await keeper.ids(parent=("a", "s0")) == ["child"]
    assert await keeper.ids(root=("a", "s0")) == ["grandchild", "child"]
    assert await keeper.ids(roots=True, agent="b") == ["s5", "s3", "s1"]
    assert await keeper.ids(prefix="grand") == ["grandchild"]
    assert await keeper.ids(prefix="agent") == ["grandchild", "child"]
    assert await keeper.ids(prefix="s", state="closed") == []
    (middle,) = await keeper.journal.page(SessionFilter(prefix="s3"))
    assert await keeper.ids(changed_before=middle.updated_at, oldest_first=True) == ["s0", "s1", "s2"]
    assert await keeper.ids(owner="nobody") == []


async def test_states_are_listed_and_counted(keeper):
    """The current state counts, within each agent and over all agents."""
    journal = keeper.journal
    for session_id in ("idle", "working", "suspended", "closed"):
        await keeper.begin(session_id)
    await keeper.begin("other", "b")
    assert await journal.counts() == {"idle": 5, "working": 0, "suspended": 0, "closed": 0}
    said = {session_id: message(session_id) for session_id in ("working", "suspended")}
    for session_id, each in said.items():
        await keeper.write(session_id, "a", MessageAcceptedRecord(message=each))
    await keeper.write("suspended", "a", SuspensionRecord(message_id=said["suspended"].id, ids=("w",)))
    await keeper.write("closed", "a", SessionClosedRecord())
    for state in ("working", "suspended", "closed"):
        (summary,) = await journal.page(SessionFilter(state=state))
        assert (summary.session_id, summary.state) == (state, state)
    assert await keeper.ids(state="idle", agent="a") == ["idle"]
    assert await journal.counts("a") == {"idle": 1, "working": 1, "suspended": 1, "closed": 1}
    assert await journal.counts("b") == {"idle": 1, "working": 0, "suspended": 0, "closed": 0}
    assert (await journal.counts())["idle"] == 2
    await keeper.write("working", "a", MessageEndRecord(message_id=said["working"].id))
    await journal.delete("closed")
    assert await journal.counts("a") == {"idle": 2, "working": 0, "suspended": 1, "closed": 0}
    assert await journal.counts("nobody") == {"idle": 0, "working": 0, "suspended": 0, "closed": 0}


async def test_erased_session_is_not_listed(keeper):
    """A session created again with its id is listed as the new one only."""
    for session_id in "ab":
        await keeper.begin(session_id, parent=("a", "root"))
    assert await keeper.ids() == ["b", "a"]
    await keeper.journal.delete("b")
    assert await keeper.ids() == ["a"]
    assert [each.session_id for each in await keeper.journal.children("a", "root")] == ["a"]
    await keeper.begin("b", owner="bob")
    assert await keeper.ids(owner="bob") == ["b"]
    assert await keeper.ids(owner="ada") == ["a"]


async def test_lists_are_unchanged_after_reopening(lasting_url):
    """This includes changes after the last page of the former block."""
    async with open_journal(lasting_url) as journal:
        keeper = Keeper(journal, await journal.acquire())
        for session_id in "abc":
            await keeper.begin(session_id)
        assert await keeper.ids() == ["c", "b", "a"]
        await keeper.write("a", "a", SessionClosedRecord())
        await keeper.begin("d")
    async with open_journal(lasting_url) as journal:
        keeper = Keeper(journal, await journal.acquire())
        assert await keeper.ids() == ["d", "a", "c", "b"]
        assert await keeper.ids(state="closed") == ["a"]
        assert await journal.counts() == {"idle": 3, "working": 0, "suspended": 0, "closed": 1}


async def test_head_counts_queued_steps(keeper):
    """The head is None for a missing session."""
    assert await keeper.journal.head("a", "s") is None
    entry = Entry(session_id="s", agent="a", records=(opened("ada", ("b", "p")), SessionClosedRecord()))
    keeper.journal.enqueue_write(entry, epoch=keeper.epoch)
    head = await keeper.journal.head("a", "s")
    assert (head.owner, head.parent, head.state, head.records) == ("ada", ("b", "p"), "closed", 2)
    assert await keeper.journal.head("b", "s") is None


async def test_lists_are_right_while_sessions_change(keeper):
    """After random steps, erasures and reads the pages equal those of a plain list."""
    dice = random.Random(7)
    open_messages = {}
    for _ in range(150):
        agent, session_id = dice.choice("ab"), f"s{dice.randrange(8)}"
        key = (agent, session_id)
        match dice.choice(["begin", "say", "end", "suspend", "close", "delete", "look", "look"]):
            case "begin":
                await keeper.write(session_id, agent, StateChangeRecord(changes={"n": 1}))
            case "say":
                open_messages[key] = message(session_id)
                await keeper.write(session_id, agent, MessageAcceptedRecord(message=open_messages[key]))
            case "end" if key in open_messages:
                await keeper.write(session_id, agent, MessageEndRecord(message_id=open_messages.pop(key).id))
            case "suspend":
                await keeper.write(session_id, agent, SuspensionRecord(message_id="m", ids=("w",)))
            case "close":
                await keeper.write(session_id, agent, SessionClosedRecord())
            case "delete":
                await keeper.journal.delete(session_id, agent=agent)
                open_messages.pop(key, None)
            case "look":
                await _compare(keeper)
    await _compare(keeper)


async def _compare(keeper):
    journal = keeper.journal
    known = sorted(await journal.sessions(), key=lambda each: each.cursor, reverse=True)
    assert await journal.page() == known
    for state, number in (await journal.counts("a")).items():
        fits = [each for each in known if each.agent == "a" and each.state == state]
        assert number == len(fits)
        assert await journal.page(SessionFilter(agent="a", state=state)) == fits


# --- what it costs -----------------------------------------------------------------------


@pytest.fixture
async def full(keeper, monkeypatch):
    """Yield a journal of 10,000 sessions that was paged once; rows that are read afterwards are counted."""
    journal = keeper.journal
    for number in range(SESSIONS):
        parent = ("a", "s0") if number in range(1, 4) else None
        state = (SessionClosedRecord(),) if number % 1000 == 999 else ()
        entry = Entry(
            session_id=f"s{number}",
            agent="ab"[number % 2],
            records=(opened(f"owner {number % 500}", parent), *state),
        )
        journal.enqueue_write(entry, epoch=keeper.epoch)
    await journal.page(limit=1)
    await journal.counts()

    async def never(*_):
        raise AssertionError("all heads were read")

    monkeypatch.setattr(journal, "_list_heads", never)
    return keeper


WANTED = [
    ({}, 50),
    ({"oldest_first": True}, 50),
    ({"agent": "b"}, 50),
    ({"owner": "owner 7"}, 20),
    ({"owner": "owner 7", "agent": "b"}, 20),
    ({"state": "closed"}, 10),
    ({"state": "closed", "roots": True, "oldest_first": True}, 10),
    ({"parent": ("a", "s0")}, 3),
    ({"root": ("a", "s0")}, 3),
    ({"prefix": "s123"}, 11),
    ({"prefix": "owner 77"}, 20),
]


async def test_pages_of_many_sessions_build_no_full_list(full):
    """Pages are correct, also far from the first one."""
    for query, count in WANTED:
        first = await full.ids(50, **query)
        assert len(first) == count, query
        walked = await full.walk(2500, **query)
        assert len(walked) == len(set(walked))
        assert walked[:count] == first
    head = await full.journal.head("b", "s7777")
    assert (head.owner, head.records) == ("owner 277", 1)
    assert (await full.journal.counts())["closed"] == 10
    assert await full.journal.agents_with_session("s8") == ["a"]
    await full.journal.delete("s8", agent="a")


PLANS = [
    SessionFilter(),
    SessionFilter(oldest_first=True),
    SessionFilter(agent="a"),
    SessionFilter(owner="ada"),
    SessionFilter(state="closed", roots=True, oldest_first=True, changed_before=5.0),
    SessionFilter(parent=("a", "s")),
    SessionFilter(root=("a", "s")),
    SessionFilter(prefix="x"),
]


@pytest.mark.parametrize("expected", PLANS)
@pytest.mark.parametrize("is_first", [True, False])
async def test_sqlite_pages_use_an_index(tmp_path, expected, is_first):
    """Each page uses an index from its beginning, and sorts only a few rows."""
    apsw = pytest.importorskip("apsw")
    from actgent.journal.session_list_queries import Cursor, page_query

    async with open_journal(f"sqlite:///{tmp_path}/a.db") as journal:
        await journal.acquire()
    database = apsw.Connection(f"{tmp_path}/a.db")
    after = None if is_first else Cursor(1.0, "a", "s")
    sql, values = page_query(["session_id"], expected, after, 50)
    plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    scans = [line for line in plan if line.startswith("SCAN")]
    assert scans in ([], ["SCAN listing USING COVERING INDEX by_change"])
    sorts = any("ORDER BY" in line for line in plan)
    assert sorts == (expected.parent is not None or expected.root is not None or bool(expected.prefix))
    database.close()


# --- trouble -----------------------------------------------------------------------------


class Failing(MemoryJournal):
    """A storage that fails while its flag is set."""

    fails = False

    async def update_list_order(self, keys):
        if self.fails:
            raise JournalFailed("no disk")
        self.order.extend(keys)
        await trio.lowlevel.checkpoint()

    def __init__(self):
        super().__init__()
        self.order = []

    async def list_changed(self, after, limit):
        await trio.lowlevel.checkpoint()
        return sorted(key for key in self._stored_heads if key not in self.order and key > after)[:limit]


async def test_next_page_includes_sessions_of_a_failed_page():
    """The next page contains the sessions of the failed one."""
    async with Failing().running() as journal:
        keeper = Keeper(journal, await journal.acquire())
        await keeper.begin("a")
        await keeper.ids()
        await keeper.begin("b")
        journal.fails = True
        with pytest.raises(JournalFailed):
            await keeper.ids()
        journal.fails = False
        assert await keeper.ids() == ["b", "a"]
        assert journal.order == [("a", "a"), ("a", "b")]


async def test_concurrent_pages_are_up_to_date(keeper):
    """The second page waits until the first has applied the changes."""
    for number in range(30):
        await keeper.begin(f"s{number}")
    found = []

    async def look():
        found.append(await keeper.ids())

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(look)
    assert {len(each) for each in found} == {30}
