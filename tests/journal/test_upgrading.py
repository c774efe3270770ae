"""A journal that version 3 left with unfinished work is resumed with all its contents.

`version_3.json` holds the rows, and the export, of a process of that version that was killed. In it are, of agents that
share one journal: `lead` with a conversation `talk`, sessions `below` (of `helper`) and `deeper` under it, a closed
`over`, and `d`, which gave `helper` a task `t` and has a schedule; `boss` with `s`, in which it waits for `helper` as
its tool; and `clerk` with `asks`, in which a call that runs once waits for an approver.
"""

import json
from pathlib import Path

import apsw
import pytest
import trio

from actgent import Approve, BareAgent, Limits, ScriptedLLM, ToolCall, ToolContext, open_runtime, tool
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_url import open_journal
from actgent.journal.postgres import schema as postgres_schema
from actgent.journal.session_export_and_fork import load_sessions, write_sessions
from actgent.journal.session_list_queries import SessionFilter
from actgent.journal.sqlite import find_problems, recover_file, schema as sqlite_schema

HEAD = "session_id, agent, owner, parent_id, created_at, updated_at, records, pending, closed, checksum, due, suspended"
ROW = "session_id, first, count, body, checksum"


@pytest.fixture(scope="module")
def stored():
    """Return the contents of the journal of version 3."""
    return json.loads(Path(__file__).with_name("version_3.json").read_text())


def values(row):
    return [bytes.fromhex(each["hex"]) if isinstance(each, dict) else each for each in row]


def write_sqlite(path, stored):
    """Write the file with the schema of that version."""
    database = apsw.Connection(str(path))
    database.execute("PRAGMA journal_mode=WAL")
    for script in sqlite_schema.MIGRATIONS[:3]:
        database.execute(script)
    database.execute(f"PRAGMA application_id={stored['identity']}; PRAGMA user_version=3")
    meta = [("identity", stored["identity"]), ("epoch", 1), ("open", 0), ("commits", 19)]
    database.executemany("INSERT INTO meta VALUES (?, ?)", meta)
    for head in stored["sessions"]:
        database.execute(f"INSERT INTO sessions ({HEAD}) VALUES ({', '.join('?' * 12)})", values(head))
    for row in stored["steps"]:
        database.execute(f"INSERT INTO steps ({ROW}) VALUES (?, ?, ?, ?, ?)", values(row))
    database.close()
    return f"sqlite:///{path}"


def write_postgres(url, stored):
    psycopg = pytest.importorskip("psycopg")
    address, schema = url.split("?schema=")
    with psycopg.connect(address) as database:
        database.execute(f"CREATE SCHEMA {schema}; SET search_path TO {schema}")
        database.execute("CREATE TABLE meta (version integer, epoch bigint, identity bytea, owner text)")
        database.execute("INSERT INTO meta VALUES (3, 1, %s, '')", [stored["identity"].to_bytes(4, "big")])
        for script in postgres_schema.MIGRATIONS[:3]:
            database.execute(script)
        for head in stored["sessions"]:
            *fields, due, suspended = values(head)
            fields[8] = bool(fields[8])
            places = ", ".join(["%s"] * 12)
            database.execute(
                f"INSERT INTO sessions ({HEAD}) VALUES ({places})", [*fields, due, bool(suspended)]
            )
        for row in stored["steps"]:
            database.execute(f"INSERT INTO steps ({ROW}) VALUES (%s, %s, %s, %s, %s)", values(row))
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def old_url(request, tmp_path, stored):
    """Return the address of that journal."""
    if request.param == "sqlite":
        return write_sqlite(tmp_path / "old.db", stored)
    return write_postgres(request.getfixturevalue("postgres_url"), stored)


class Crew:
    """The agents in the upgraded program, and a record of their calls."""

    def __init__(self):
        self.paid = []
        self.heard = trio.Event()

    def agents(self):
        @tool(effect="once", approval=True)
        async def pay(order: str, context: ToolContext) -> str:
            """Pay."""
            self.paid.append((order, context.idempotency_key))
            return "paid"

        helper = BareAgent("helper", llm=ScriptedLLM(lambda chat: f"did {_asked(chat)}"))
        lead = BareAgent("lead", llm=ScriptedLLM(["heard"], repeat=True))
        lead.on_session(lambda session: session.on_conversation(lambda _: self.heard.set()))
        boss = BareAgent(
            "boss",
            llm=ScriptedLLM(lambda chat: _result(chat) or ToolCall("helper", {"task": "dig"}, "c1")),
            tools=[helper.as_tool()],
        )
        clerk = BareAgent(
            "clerk",
            llm=ScriptedLLM(lambda chat: _result(chat) or ToolCall("pay", {"order": "7"}, "c1")),
            tools=[pay],
            limits=Limits(approval_timeout=2e9),
        )
        return {agent.name: agent for agent in (helper, lead, boss, clerk)}


def _asked(chat):
    return chat.messages[-1].parts[0].text


def _result(chat):
    last = chat.messages[-1]
    return f"it says {last.parts[0].text}" if last.role == "tool" else None


async def test_an_upgraded_journal_lists_its_sessions(old_url):
    """Owner, tree and order are unchanged, also when the journal is opened again."""
    for _ in range(2):
        async with open_journal(old_url) as journal:
            await journal.acquire()
            known = {each.session_id: each for each in await journal.sessions()}
            roots = {name: each.root for name, each in known.items()}
            assert roots == {
                "talk": ("lead", "talk"),
                "below": ("lead", "talk"),
                "deeper": ("lead", "talk"),
                "over": ("lead", "over"),
                "asks": ("clerk", "asks"),
                "s": ("boss", "s"),
                "d": ("lead", "d"),
                "s/c1/helper": ("boss", "s"),
                "t": ("lead", "d"),
            }
            parents = {name: each.parent for name, each in known.items() if each.parent is not None}
            assert parents == {
                "below": ("lead", "talk"),
                "deeper": ("helper", "below"),
                "s/c1/helper": ("boss", "s"),
                "t": ("lead", "d"),
            }
            states = {name: each.state for name, each in known.items() if each.state != "idle"}
            assert states == {
                "over": "closed",
                "asks": "suspended",
                "s": "working",
                "t": "working",
                "s/c1/helper": "working",
            }
            newest = sorted(known.values(), key=lambda each: each.cursor, reverse=True)
            assert await journal.page() == newest
            below = await journal.page(SessionFilter(root=("lead", "talk")))
            assert {each.session_id for each in below} == {"below", "deeper"}
            assert await journal.counts() == {"idle": 4, "working": 3, "suspended": 1, "closed": 1}
            for name, each in known.items():
                assert len(await journal.load(name, agent=each.agent)) == each.records


async def test_unfinished_turns_resume_after_the_upgrade(old_url):
    """A turn that waits for an agent, a task, and an approval each resume once, with their old ids."""
    crew = Crew()
    async with open_runtime(journal=old_url) as runtime:
        agents = crew.agents()
        with trio.fail_after(30):
            async with runtime.starting():
                for name in ("helper", "boss", "lead", "clerk"):
                    await runtime.start(agents[name])
            session = await agents["boss"].open_session("s")
            await session.wait_idle()
            assert session.history[-1].text == "it says did dig"
            await crew.heard.wait()
            lead = await agents["lead"].open_session("d")
            await lead.wait_idle()
            assert [message.text for message in lead.history] == [
                "Task t was done by agent 'helper':\ndid a hole",
                "heard",
            ]
            assert await lead.delegate("helper", "a hole", task_id="t") == "t"
            assert [each.description for each in lead.schedules] == ["wake up"]
            assert lead.children == ()
            (approval,) = await agents["clerk"].approvals()
            reply = await agents["clerk"].resume({approval.id: Approve()})
            assert reply.text == "it says paid"
        assert crew.paid == [("7", "asks/c1")]
        helpers = await runtime.journal.sessions("helper")
        assert sorted(each.session_id for each in helpers) == ["below", "s/c1/helper", "t"]


async def test_new_sessions_with_old_ids_are_separate(old_url):
    """With another agent and equal task names, no record of the old sessions is used."""
    crew = Crew()
    async with open_runtime(journal=old_url) as runtime:
        agents = crew.agents()
        with trio.fail_after(30):
            async with runtime.starting():
                for name in ("helper", "boss", "lead", "clerk"):
                    await runtime.start(agents[name])
            notified = trio.Event()
            agents["clerk"].on_message(lambda _: notified.set())
            mine = await agents["clerk"].create_session("bob", session_id="d")
            assert await mine.delegate("helper", "a wall", task_id="t") == "t"
            await crew.heard.wait()
            await notified.wait()
            assert mine.history[0].text == "Task t was done by agent 'helper':\ndid a wall"
            lead = await agents["lead"].open_session("d")
            assert "did a hole" in lead.history[0].text


async def test_old_exports_are_imported(stored, tmp_path):
    """Parents are found, roots are known, and unfinished work resumes."""
    (tmp_path / "old.sessions").write_bytes(bytes.fromhex(stored["exported"]))
    async with MemoryJournal().running() as journal:
        await journal.acquire()
        await write_sessions(journal, load_sessions(tmp_path / "old.sessions"))
        assert (await journal.head("lead", "deeper")).root == ("lead", "talk")
        assert (await journal.head("helper", "t")).parent == ("lead", "d")
        crew = Crew()
        agents = crew.agents()
        async with open_runtime(journal=journal) as runtime:
            async with runtime.starting():
                for name in ("helper", "boss", "lead"):
                    await runtime.start(agents[name])
            with trio.fail_after(30):
                session = await agents["boss"].open_session("s")
                await session.wait_idle()
                assert session.history[-1].text == "it says did dig"


async def test_a_damaged_file_is_checked_and_salvaged_as_it_is(stored, tmp_path):
    """Intact sessions are copied with their agents and trees, although the file was never migrated."""
    write_sqlite(tmp_path / "old.db", stored)
    database = apsw.Connection(str(tmp_path / "old.db"))
    database.execute("UPDATE steps SET body = x'00' WHERE session_id = 'over'")
    database.close()
    (problem,) = find_problems(tmp_path / "old.db")
    assert problem.session_id == "over"
    saved = recover_file(tmp_path / "old.db", tmp_path / "new.db")
    assert (saved.sessions, saved.losses) == (8, ("over",))
    async with open_journal(f"sqlite:///{tmp_path}/new.db") as journal:
        await journal.acquire()
        assert (await journal.head("lead", "deeper")).root == ("lead", "talk")
        assert len(await journal.load("asks", agent="clerk")) == 8


async def test_a_tree_with_a_gap_or_a_circle_migrates(tmp_path, stored):
    """Orphans and sessions that name themselves as parent become roots; no session is lost."""
    url = write_sqlite(tmp_path / "old.db", stored)
    database = apsw.Connection(str(tmp_path / "old.db"))
    database.execute("DELETE FROM sessions WHERE session_id = 'below'")
    database.execute("DELETE FROM steps WHERE session_id = 'below'")
    database.execute("UPDATE sessions SET parent_id = 'over' WHERE session_id = 'over'")
    database.close()
    async with open_journal(url) as journal:
        await journal.acquire()
        known = {each.session_id: each.root for each in await journal.sessions()}
        assert (known["deeper"], known["over"], len(known)) == (("lead", "deeper"), ("lead", "over"), 8)


async def test_interrupted_migration_changes_nothing(tmp_path, stored, monkeypatch):
    """The next start runs the whole migration."""
    url = write_sqlite(tmp_path / "old.db", stored)
    whole = sqlite_schema.MIGRATIONS
    broken = (*whole[:3], f"{whole[3]}; CREATE TABLE sessions (x)")
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_schema, "MIGRATIONS", broken)
        with pytest.raises(Exception, match="already exists"):
            async with open_journal(url) as journal:
                await journal.acquire()
    async with open_journal(url) as journal:
        await journal.acquire()
        assert len(await journal.sessions()) == 9
