"""Load of PostgreSQL: updates without index writes, and queries that read few of many rows."""

import contextlib

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.errors import JournalVersion
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import (
    MessageAcceptedRecord,
    MessageEndRecord,
    NextTimerRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    SuspensionRecord,
)
from actgent.journal.session_list_queries import Cursor, SessionFilter, SessionKey
from actgent.messages import Message, Sender, Text

psycopg = pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from actgent.journal.postgres import schema as schemas, sql_statements  # noqa: E402 - of the extra
from actgent.journal.postgres.session_list_pages import session_page_query  # noqa: E402

SESSIONS = 20_000
HOT_SHARE = 0.4
OLD_VERSION = 13
"""Schema version of the commit 70242817."""
NEWER_COLUMNS = ("annotations",)
"""Columns of sessions that later versions have added."""


@pytest.fixture
def database(postgres_url):
    """Yield an autocommit connection to the schema of the journal."""
    address, name = postgres_url.split("?schema=")
    with contextlib.closing(psycopg.connect(address, autocommit=True)) as connection:
        connection.execute(f"SET search_path TO {name}")
        yield connection


def message(session_id):
    return Message(session_id=session_id, sender=Sender("ada"), parts=(Text("hello"),))


class Sessions:
    """Sessions of one agent in an open journal."""

    def __init__(self, journal, epoch):
        self.journal, self.epoch = journal, epoch

    async def write(self, session_id, *records):
        entry = Entry(session_id=session_id, agent="a", records=records)
        await self.journal.commit(entry, epoch=self.epoch)

    async def begin(self, session_id):
        await self.write(session_id, SessionCreatedRecord(owner=Sender("ada"), created_at=1.0))

    async def accept(self, session_id):
        accepted = message(session_id)
        await self.write(session_id, MessageAcceptedRecord(message=accepted))
        return accepted.id


@pytest.fixture
async def sessions(postgres_url):
    async with open_journal(postgres_url) as journal:
        yield Sessions(journal, await journal.acquire())


def age(database):
    """Make all sessions appear as last changed two hours ago. Return the number of updated rows."""
    return database.execute("UPDATE sessions SET updated_at = updated_at - 7200").rowcount


def is_active(database, session_id):
    return database.execute("SELECT active FROM sessions WHERE session_id = %s", [session_id]).fetchone()[0]


# --- updates -----------------------------------------------------------------------------


async def _updates(database, expected):
    """Return the updates of sessions and how many of them were HOT, once the server has counted `expected` of them."""
    sql = (
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = current_schema() "
        "AND relname = 'sessions'"
    )
    with trio.fail_after(60):
        while (found := database.execute(sql).fetchone())[0] < expected:  # noqa: ASYNC110 - counted by the server
            await trio.sleep(0.1)
    return found


async def test_most_updates_of_messages_are_hot(postgres_url, database):
    """Each message may arrive in a separate minute.

    The first update of a message writes indexes, and the last does not.
    """
    agent = BareAgent("clerk", llm=ScriptedLLM(["done"], repeat=True))
    moved = 0
    async with open_runtime(journal=postgres_url) as runtime:
        await runtime.start(agent)
        session = await agent.ensure_session("ada", "s1")
        for _ in range(30):
            await session.chat("hello")
            await session.wait_idle()
            moved += database.execute("UPDATE sessions SET updated_at = updated_at - 60").rowcount
    updates, hot = await _updates(database, 60 + moved)
    assert updates - moved >= 60
    assert hot / (updates - moved) >= HOT_SHARE


async def test_updates_within_a_minute_are_hot(postgres_url, database):
    """Messages in the same minute write no index."""
    agent = BareAgent("clerk", llm=ScriptedLLM(["done"], repeat=True))
    async with open_runtime(journal=postgres_url) as runtime:
        await runtime.start(agent)
        session = await agent.ensure_session("ada", "s1")
        for _ in range(30):
            await session.chat("hello")
            await session.wait_idle()
    updates, hot = await _updates(database, 60)
    assert hot / updates >= 0.9


# --- the flag `active` ---------------------------------------------------------------------


async def test_flag_marks_sessions_that_may_be_unfinished(sessions, database):
    """The flag stays for some time after the message, so the end of a message writes no index. Clearing it later is cheap."""
    await sessions.begin("s")
    assert not is_active(database, "s")
    first = await sessions.accept("s")
    assert is_active(database, "s")
    assert await sessions.journal.unfinished("a") == ["s"]
    await sessions.write("s", MessageEndRecord(message_id=first))
    assert await sessions.journal.unfinished("a") == []
    second = await sessions.accept("s")
    assert await sessions.journal.unfinished("a") == ["s"]
    age(database)
    await sessions.write(
        "s", MessageEndRecord(message_id=second)
    )  # in another minute: the update writes indexes anyway
    assert not is_active(database, "s")


async def test_flags_of_sessions_at_rest_are_cleared(sessions, database):
    """Flags of unfinished sessions stay at any age; the next message sets a cleared flag."""
    for session_id in ("resting", "unfinished", "suspended"):
        await sessions.begin(session_id)
        accepted = await sessions.accept(session_id)
        if session_id == "resting":
            await sessions.write(session_id, MessageEndRecord(message_id=accepted))
        if session_id == "suspended":
            await sessions.write(session_id, SuspensionRecord(message_id=accepted, ids=("w",)))
    await sessions.begin("recent")
    await sessions.write("recent", MessageEndRecord(message_id=await sessions.accept("recent")))
    age(database)
    await sessions.write("recent", MessageEndRecord(message_id=await sessions.accept("recent")))
    database.execute("UPDATE sessions SET active = true")
    latest = database.execute("SELECT max(updated_at) FROM sessions").fetchone()[0]
    database.execute(sql_statements.CLEAR_ACTIVE, [latest])
    active = database.execute("SELECT session_id FROM sessions WHERE active ORDER BY 1").fetchall()
    assert active == [("recent",), ("suspended",), ("unfinished",)]
    assert await sessions.journal.unfinished("a") == ["unfinished"]
    await sessions.accept("resting")
    assert sorted(await sessions.journal.unfinished("a")) == ["resting", "unfinished"]


async def test_a_new_process_clears_flags_with_its_first_write(postgres_url, database):
    """Idle sessions of the former process lose their flags."""
    async with open_journal(postgres_url) as journal:
        before = Sessions(journal, await journal.acquire())
        for session_id in ("old", "other"):
            await before.begin(session_id)
            await before.write(session_id, MessageEndRecord(message_id=await before.accept(session_id)))
        assert is_active(database, "old")
    age(database)
    async with open_journal(postgres_url) as journal:
        after = Sessions(journal, await journal.acquire())
        await after.begin("new")
    assert not is_active(database, "old")


# --- queries -------------------------------------------------------------------------------


def explain(database, sql, values, options=""):
    """Return the lines of the plan of a query."""
    return [line for (line,) in database.execute(f"EXPLAIN {options} {sql}", values).fetchall()]


def fill(database):
    """Insert sessions of 100 owners, one each second: each 100th is closed, each 50th a child, each 1,000th unfinished or due."""
    columns = ", ".join(sql_statements.HEAD_TYPES)
    database.execute(
        f"INSERT INTO sessions ({columns}, slot, active) "
        "SELECT 's' || n, 'clerk', 'owner ' || n % 100, "
        "CASE WHEN n % 50 = 5 THEN 's' || (n - n % 1000 + 1) END, n, n, 1, "
        "CASE WHEN n % 1000 = 1 THEN '\\x01'::bytea ELSE ''::bytea END, n % 100 = 0, "
        "CASE WHEN n % 1000 = 2 THEN n ELSE 0 END, n % 1000 = 3, CASE WHEN n % 50 = 5 THEN 'clerk' END, 'clerk', "
        "CASE WHEN n % 50 = 5 THEN 's' || (n - n % 1000 + 1) ELSE 's' || n END, 's' || n, NULL, 0, n % 4096, "
        f"n % 1000 = 1 FROM generate_series(1, {SESSIONS}) AS n"
    )
    database.execute("ANALYZE sessions")


SOME_SLOTS = list(range(64))
LISTS = [
    ("all", SessionFilter(), "by_minute"),
    ("oldest", SessionFilter(oldest_first=True, changed_before=9000.0), "by_minute"),
    ("owner", SessionFilter(owner="owner 7"), "by_owner_and_minute"),
    ("owner of agent", SessionFilter(owner="owner 7", agent="clerk"), "by_owner_and_minute"),
    ("closed", SessionFilter(state="closed"), "closed"),
    ("working", SessionFilter(state="working"), "active"),
    ("suspended", SessionFilter(state="suspended"), "suspended"),
    ("idle", SessionFilter(state="idle", roots=True), "by_minute"),
    ("children", SessionFilter(parent=SessionKey("clerk", "s1")), "children"),
    ("tree", SessionFilter(root=SessionKey("clerk", "s1")), "trees"),
]
"""Lists, and an index by which each may be read."""
QUERIES = [
    ("unfinished", sql_statements.SELECT_UNFINISHED, [["clerk"]], "active"),
    ("unfinished of partitions", sql_statements.SELECT_UNFINISHED_HERE, [["clerk"], SOME_SLOTS], "active"),
    ("waiting", sql_statements.COUNT_WAITING, [], "active"),
    ("due", sql_statements.SELECT_DUE, [["clerk"]], "due"),
    ("due of partitions", sql_statements.SELECT_DUE_HERE, [["clerk"], SOME_SLOTS], "due"),
    ("suspended", sql_statements.SELECT_SUSPENDED, ["clerk", "", 100], "suspended"),
    ("to erase", sql_statements.SELECT_TO_ERASE, [10], "erasable"),
    ("resting", sql_statements.CLEAR_ACTIVE, [9000.0], "active"),
]


async def test_no_query_reads_all_sessions(sessions, database):
    """Lists, also after a cursor, and the queries of recovery, timers and retention use an index."""
    fill(database)
    asked = [(name, sql, values, index) for name, sql, values, index in QUERIES]
    for name, query, index in LISTS:
        for after in (None, Cursor(9000.5, "clerk", "s9000")):
            sql, values = session_page_query(["session_id"], query, after, 50)
            asked.append((f"{name} {after is not None}", sql, values, index))
    for name, sql, values, index in asked:
        plan = "\n".join(explain(database, sql, values))
        assert "Seq Scan" not in plan, (name, plan)
        assert f"{index} on sessions" in plan or f"Scan on {index}" in plan or f"{index}_slot" in plan, (
            name,
            plan,
        )


async def test_lists_read_few_rows(sessions, database):
    """Pages of all sessions and of an owner sort little more than the sessions of one minute."""
    fill(database)
    for query in (SessionFilter(), SessionFilter(owner="owner 7"), SessionFilter(oldest_first=True)):
        sql, values = session_page_query(["session_id"], query, Cursor(9000.5, "clerk", "s9000"), 50)
        lines = explain(database, sql, values, "(ANALYZE, TIMING OFF)")
        read = [float(line.split("(actual rows=")[1].split()[0]) for line in lines if "Scan" in line]
        assert max(read) <= 250, lines


async def test_lists_are_exact_within_and_across_minutes(sessions, database):
    """The order follows the exact time, page by page, for each filter, in both directions."""
    fill(database)
    journal = sessions.journal
    for query in (
        SessionFilter(owner="owner 7"),
        SessionFilter(owner="owner 0", state="closed"),
        SessionFilter(owner="owner 7", oldest_first=True),
        SessionFilter(state="suspended", changed_before=15_003.5),
    ):
        walked, after = [], None
        while page := await journal.page(query, after=after, limit=17):
            walked += page
            after = page[-1].cursor
        ids = [each.session_id for each in walked]
        assert len(ids) == len(set(ids)) >= 15
        times = [each.updated_at for each in walked]
        assert times == sorted(times, reverse=not query.oldest_first)
        assert all(query.takes(each) for each in walked)


# --- migration -----------------------------------------------------------------------------


def move_to_version(database, url, version):
    """Copy the journal of the schema `current` into the schema of `url`, as the schema version `version` had it."""
    name = url.split("?schema=")[1]
    database.execute(f"CREATE SCHEMA {name}")
    database.execute(f"SET search_path TO {name}")
    database.execute("CREATE TABLE meta (version integer, epoch bigint, identity bytea, owner text)")
    database.execute(f"INSERT INTO meta SELECT {version}, epoch, identity, owner FROM {name}_current.meta")
    for script in schemas.MIGRATIONS[:version]:
        database.execute(script)
    for table, columns in (
        (
            "sessions",
            ", ".join(each for each in (*sql_statements.HEAD_TYPES, "slot") if each not in NEWER_COLUMNS),
        ),
        ("steps", ", ".join(sql_statements.ROW_TYPES)),
    ):
        database.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {name}_current.{table}")
    database.execute("INSERT INTO listing SELECT session_id, agent, owner, 'idle', updated_at FROM sessions")


async def test_an_older_journal_keeps_its_sessions(postgres_url, database):
    """Unfinished, due, suspended and closed sessions of schema version 13 are found by recovery, timers and lists."""
    name = postgres_url.split("?schema=")[1]
    try:
        async with open_journal(f"{postgres_url}_current") as journal:
            old = Sessions(journal, await journal.acquire())
            for session_id in ("idle", "unfinished", "suspended", "closed", "due"):
                await old.begin(session_id)
            await old.accept("unfinished")
            asked = await old.accept("suspended")
            await old.write("suspended", SuspensionRecord(message_id=asked, ids=("w",)))
            await old.write("closed", SessionClosedRecord())
            await old.write("due", NextTimerRecord(at=5.0))
            records = {
                session_id: await journal.load(session_id, agent="a")
                for session_id in ("idle", "unfinished", "suspended", "closed", "due")
            }
        move_to_version(database, postgres_url, OLD_VERSION)
    finally:
        database.execute(f"DROP SCHEMA {name}_current CASCADE")
    with pytest.raises(JournalVersion):
        async with open_journal(postgres_url, read_only=True) as reader:
            await reader.page()
    async with open_journal(postgres_url) as journal:
        new = Sessions(journal, await journal.acquire())
        assert await journal.unfinished("a") == ["unfinished"]
        assert await journal.due("a") == [("due", 5.0)]
        assert await journal.suspended("a") == ["suspended"]
        listed = [each.session_id for each in await journal.page()]
        assert listed == ["due", "closed", "suspended", "unfinished", "idle"]
        assert [each.session_id for each in await journal.page(SessionFilter(owner="ada", state="idle"))] == [
            "due",
            "idle",
        ]
        assert {each: await journal.load(each, agent="a") for each in records} == records
        active = database.execute("SELECT session_id FROM sessions WHERE active ORDER BY 1").fetchall()
        assert active == [("suspended",), ("unfinished",)]
        await new.accept("idle")
        assert await journal.unfinished("a") == ["idle", "unfinished"]
        await journal.delete("closed", agent="a")
