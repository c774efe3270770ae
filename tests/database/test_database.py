"""Databases of agents: migrations, changes that run once, and read-only queries."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    Database,
    DatabaseFailed,
    NotSerializable,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    database_tool,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.testing import CrashingJournal

LIVING = Path(__file__).with_name("living.py")
TASKS = "CREATE TABLE tasks (id INTEGER PRIMARY KEY, text TEXT NOT NULL);"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    """Return the URL of a database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/data.db"
    return request.getfixturevalue("postgres_url")


def marked(url, sql):
    """Return the statement with the placeholders of its database."""
    return sql.replace("?", "%s") if url.startswith("postgres") else sql


INSERT = "INSERT INTO tasks VALUES (?, ?)"


# --- queries and changes ----------------------------------------------------------------------------


async def test_database_changes_are_durable(url):
    """Rows have column names and are found by a second opening of the database."""
    async with Database(url, migrations=[TASKS]) as database:
        assert await database.execute(marked(url, INSERT), (1, "tea")) == 1
        assert await database.query("SELECT * FROM tasks") == [{"id": 1, "text": "tea"}]
        assert await database.query("SELECT * FROM tasks WHERE id = 2") == []
    async with Database(url, migrations=[TASKS]) as database:
        assert await database.query("SELECT text FROM tasks") == [{"text": "tea"}]


async def test_values_by_name(url):
    """Named parameters work in the notation of each database."""
    sign = "%(id)s" if url.startswith("postgres") else ":id"
    async with Database(url, migrations=[TASKS]) as database:
        await database.execute(f"INSERT INTO tasks VALUES ({sign}, 'tea')", {"id": 7})
        assert await database.query(f"SELECT id FROM tasks WHERE id = {sign}", {"id": 7}) == [{"id": 7}]


async def test_a_change_is_all_or_nothing(url):
    """An exception in the function undoes all of its statements. A query cannot change data."""

    def two(db, *, fails):
        db.execute(marked(url, INSERT), (1, "tea"))
        if fails:
            raise LookupError("no")
        return db.query("SELECT count(*) AS n FROM tasks")[0]["n"]

    async with Database(url, migrations=[TASKS]) as database:
        with pytest.raises(LookupError):
            await database.change(partial(two, fails=True))
        assert await database.query("SELECT * FROM tasks") == []
        assert await database.change(partial(two, fails=False)) == 1
        for wrong in ("DELETE FROM tasks RETURNING id", "DROP TABLE tasks"):
            with pytest.raises(DatabaseFailed):
                await database.query(wrong)
        assert await database.query("SELECT id FROM tasks") == [{"id": 1}]


async def test_a_key_is_used_once(url):
    """Later calls with a key return the first result.

    A different change with the key is rejected. A failed change may be retried.
    """
    insert = marked(url, INSERT)
    async with Database(url, migrations=[TASKS]) as database:
        assert [await database.execute(insert, (1, "tea"), key="k") for _ in range(3)] == [1, 1, 1]
        with pytest.raises(DatabaseFailed, match="already used for another change"):
            await database.execute(insert, (2, "milk"), key="k")
        with pytest.raises(DatabaseFailed):
            await database.execute(insert, (1, "again"), key="other")
        assert await database.execute(insert, (2, "milk"), key="other") == 1
        with pytest.raises(NotSerializable):
            await database.change(lambda db: db.execute(insert, (3, "x")) and object(), key="third")
        assert [row["id"] for row in await database.query("SELECT id FROM tasks ORDER BY id")] == [1, 2]


async def test_many_at_once_lose_nothing(url):
    """Concurrent changes run in sequence, also those of two connections."""
    step = marked(url, "UPDATE tasks SET id = id + 1 WHERE text = ?")
    async with Database(url, migrations=[TASKS]) as one, Database(url, migrations=[TASKS]) as other:
        await one.execute(marked(url, INSERT), (0, "tea"))
        async with trio.open_nursery() as nursery:
            for database in (one, other) * 10:
                nursery.start_soon(database.execute, step, ("tea",))
        assert await other.query("SELECT id FROM tasks") == [{"id": 20}]


async def test_a_statement_that_ends_the_transaction_is_refused(url):
    """A COMMIT inside a change raises DatabaseFailed. The next change works."""

    def ends(db):
        db.execute(marked(url, INSERT), (1, "tea"))
        db.execute("COMMIT")

    async with Database(url, migrations=[TASKS]) as database:
        with pytest.raises(DatabaseFailed):
            await database.change(ends)
        await database.execute(marked(url, INSERT), (2, "milk"))


# --- migrations ------------------------------------------------------------------------------


async def test_migrations_are_applied_once_and_in_order(url, tmp_path):
    """Migrations are texts, a file or a folder. A second opening applies only new ones."""
    folder = tmp_path / "steps"
    folder.mkdir()
    (folder / "2.sql").write_text("INSERT INTO tasks VALUES (2, 'b');")
    (folder / "1.sql").write_text("INSERT INTO tasks VALUES (1, 'a');")
    (tmp_path / "last.sql").write_text(
        "INSERT INTO tasks VALUES (3, 'c'); INSERT INTO tasks VALUES (4, 'd');"
    )
    for steps in ([TASKS, folder], [TASKS, folder], [TASKS, folder, tmp_path / "last.sql"]):
        async with Database(url, migrations=steps) as database:
            rows = [row["text"] for row in await database.query("SELECT text FROM tasks ORDER BY id")]
    assert rows == ["a", "b", "c", "d"]


async def test_a_migration_that_changed_is_named(url):
    """The error names a changed or missing migration. Applied migrations stay."""
    more = "CREATE TABLE more (id INTEGER);"
    async with Database(url, migrations=[TASKS, more]):
        pass
    with pytest.raises(ConfigurationError, match="'migration 1' differs from the applied migration"):
        async with Database(url, migrations=[TASKS.replace("NOT NULL", ""), more]):
            pass
    with pytest.raises(ConfigurationError, match="'migration 2' is missing"):
        async with Database(url, migrations=[TASKS]):
            pass
    async with Database(url, migrations=[f"  {TASKS}\r\n", more]):  # line ends are ignored
        pass


async def test_migrations_hold_all_or_none(url):
    """If one migration fails, all migrations of that opening are rolled back."""
    with pytest.raises(DatabaseFailed):
        async with Database(url, migrations=[TASKS, "CREATE TABLE wrong (;"]):
            pass
    async with Database(url, migrations=[TASKS]) as database:
        assert await database.query("SELECT * FROM tasks") == []


async def test_two_that_open_it_at_once_apply_each_step_once(url):
    """Concurrent openings wait for each other."""

    async def open_it():
        async with Database(url, migrations=[TASKS, "INSERT INTO tasks VALUES (1, 'a');"]):
            pass

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(open_it)
    async with Database(url, migrations=[TASKS, "INSERT INTO tasks VALUES (1, 'a');"]) as database:
        assert len(await database.query("SELECT * FROM tasks")) == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"url": "data.db"}, "sqlite:///FILE"),
        ({"url": "mysql://x/y"}, "sqlite:///FILE"),
        ({"migrations": TASKS}, "a list of SQL strings"),
        ({"migrations": [" "]}, "is empty"),
        ({"migrations": [5]}, "not 5"),
        ({"migrations": [Path("/nowhere/at/all.sql")]}, "cannot be read"),
    ],
)
def test_invalid_database_is_rejected(options, expected):
    """The constructor raises the error."""
    with pytest.raises(ConfigurationError, match=expected):
        Database(**options)


# --- agents with a database -------------------------------------------------------------------------


def calls(*expected):
    """Return a model that makes one call per answer, then returns the last result."""
    left = list(expected)

    def answer(chat):
        return ToolCall(*left.pop(0)) if left else chat.messages[-1].parts[-1].text

    return answer


@tool(effect="idempotent")
async def add_task(text: str, context: ToolContext) -> int:
    """Add a task."""
    await context.database.execute("INSERT INTO tasks (text) VALUES (?)", (text,))
    rows = await context.database.query("SELECT count(*) AS n FROM tasks")
    return rows[0]["n"]


async def test_tools_find_it_and_the_program_too():
    """Tools and the program use the agent's database. Without a journal it is deleted with the agent."""
    agent = BareAgent(
        "a",
        llm=ScriptedLLM(calls(("add_task", {"text": "tea"}))),
        tools=[add_task],
        database=Database(migrations=[TASKS]),
    )
    async with agent:
        assert str(await agent.run("Add tea.")) == "1"
        assert await agent.database.query("SELECT text FROM tasks") == [{"text": "tea"}]
        file = trio.Path(agent.database.address.removeprefix("sqlite:///"))
        assert await file.is_file()
    assert not await file.exists()
    with pytest.raises(DatabaseFailed, match="is not open"):
        await agent.database.query("SELECT 1")


async def test_database_file_is_next_to_the_journal(tmp_path):
    """Each agent has its own file, which the next run reopens."""
    for expected in ("1", "2"):
        async with open_runtime(journal=f"sqlite:///{tmp_path}/agents.db") as runtime:
            llm = ScriptedLLM(calls(("add_task", {"text": "tea"})))
            agent = await runtime.start(
                BareAgent("A b", llm=llm, tools=[add_task], database=Database(migrations=[TASKS]))
            )
            assert str(await agent.run("Add tea.")) == expected
    assert len(list(tmp_path.glob("agents._b_*.data.db"))) == 1


async def test_a_journal_is_no_database(tmp_path):
    """A database URL that names a journal file is rejected."""
    journal = f"sqlite:///{tmp_path}/agents.db"
    async with open_runtime(journal=journal):
        pass
    with pytest.raises(ConfigurationError, match=r"agents\.db is the file of a journal"):
        async with Database(journal):
            pass


async def test_a_model_asks_and_changes_nothing(url):
    """The database tool reads tables, and the database rejects a DELETE."""
    database = Database(url, migrations=[TASKS, "INSERT INTO tasks VALUES (1, 'tea');"])
    llm = ScriptedLLM(
        [
            [
                ToolCall("query_database", {"sql": "SELECT text FROM tasks"}),
                ToolCall("query_database", {"sql": "DELETE FROM tasks"}),
            ],
            "Tea.",
        ]
    )
    results = []
    async with BareAgent("a", llm=llm, tools=[database_tool(database)], database=database) as agent:
        session = await agent.create_session("ada")
        session.on_tool_result(results.append)
        await agent.run("What is to do?", session=session)
        assert await database.query("SELECT text FROM tasks") == [{"text": "tea"}]
    assert '[["tea"]]' in results[0].content
    assert results[1].error


async def test_an_agent_without_one_says_so():
    """A tool that uses the database gets an error that names `database=`."""
    results = []
    async with BareAgent("a", llm=ScriptedLLM(calls(("add_task", {"text": "x"}))), tools=[add_task]) as agent:
        session = await agent.create_session("ada")
        session.on_tool_result(results.append)
        await agent.run("Go.", session=session)
    assert "Agent(database=...)" in results[0].error
    with pytest.raises(ConfigurationError, match="database= must be a Database"):
        BareAgent("a", llm=ScriptedLLM([]), database="data.db")


async def test_a_tool_that_is_tried_again_makes_its_changes_once():
    """The changes of the first attempt stay and are not repeated by a retry."""
    tries = []

    @tool(effect="idempotent", retries=2, retry_on=ConnectionError, retry_delay=0)
    async def shaky(context: ToolContext) -> str:
        """Write, and fail twice."""
        await context.database.execute("INSERT INTO tasks (text) VALUES (?)", ("tea",))
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("away")
        return "done"

    database = Database(migrations=[TASKS])
    async with BareAgent(
        "a", llm=ScriptedLLM(calls(("shaky", {}))), tools=[shaky], database=database
    ) as agent:
        assert str(await agent.run("Go.")) == "done"
        assert len(await database.query("SELECT * FROM tasks")) == 1
    assert len(tries) == 3


# --- crashes ---------------------------------------------------------------------------------


def _go_on(chat):
    """Return "done" if the call has a result, otherwise make the call."""
    done = [part for each in chat.messages for part in each.parts if type(part).__name__ == "ToolResult"]
    return "done" if done else ToolCall("add_task", {"text": "tea"})


class LosingJournal(CrashingJournal):
    """A journal that loses its n-th write, as if the process died before the write."""

    async def commit(self, entry, *, epoch, durable=True):
        self._count()
        await self._block_if_dead()
        await self.inner.commit(entry, epoch=epoch, durable=durable)

    def enqueue_write(self, entry, *, epoch):
        self._count()
        if not self.is_dead:
            self.inner.enqueue_write(entry, epoch=epoch)


@pytest.mark.parametrize("kind", [CrashingJournal, LosingJournal])
async def test_a_crash_at_any_write_changes_once(tmp_path, kind):
    """After a crash at any write, the repeated call finds its earlier change."""
    writes, has_died = 0, True
    while has_died:
        writes += 1
        url, inner = f"sqlite:///{tmp_path}/{writes}.db", MemoryJournal()
        dying = kind(inner, writes)
        async with inner.running():
            async with trio.open_nursery() as nursery:

                async def live(journal=dying, url=url):
                    await _live(journal, url)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(live)
                await dying.died.wait()
                nursery.cancel_scope.cancel()
            has_died = dying.is_dead
            await _live(inner, url)
        async with Database(url, migrations=[TASKS]) as database:
            assert await database.query("SELECT text FROM tasks") == [{"text": "tea"}]
    assert writes > 4


async def _live(journal, url):
    async with open_runtime(journal=journal) as runtime:
        agent = BareAgent(
            "a", llm=ScriptedLLM(_go_on), tools=[add_task], database=Database(url, migrations=[TASKS])
        )
        await runtime.start(agent)
        session = await agent.ensure_session("ada", "s")
        await session.chat("Add tea.", message_id="m")
        await session.wait_idle()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_kill_9_between_a_change_and_the_step_of_the_journal(kind, request, tmp_path, process_server):
    """After three kills between the row and the call's result there is one row with the first result."""
    journal = (
        f"sqlite:///{tmp_path}/agents.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    )
    command = [sys.executable, str(LIVING), journal]
    for _ in range(3):
        with process_server.popen([*command, "wait"], stdout=subprocess.PIPE) as life:
            assert life.stdout.readline() == b"written\n"
            os.kill(life.pid, signal.SIGKILL)
    done = process_server.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.splitlines() == ["written", "So: 1 tasks", "task tea"]
    if kind == "postgres":
        _drop_data(journal)


def _drop_data(journal):
    import psycopg

    address, _, schema = journal.partition("?schema=")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema[:20]}_clerk" CASCADE')
