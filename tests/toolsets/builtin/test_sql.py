"""Read-only databases: the database itself rejects writes."""

import os
import sqlite3
import subprocess
import sys
import time
import uuid
from contextlib import closing, suppress
from pathlib import Path

import pytest

from actgent.errors import ConfigurationError, ToolError
from actgent.toolsets.builtin import sql_tool

POSTGRES = os.environ.get("ACTGENT_TEST_POSTGRES", "postgres://postgres@127.0.0.1:5432/postgres")


@pytest.fixture
def database(tmp_path):
    """Return a database with products and many numbers."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table products (name text, price real)")
        connection.execute("create index names on products (name)")
        connection.executemany("insert into products values (?, ?)", [("pen", 10), ("lamp", 20)])
        connection.execute("create table numbers (n integer)")
        connection.executemany("insert into numbers values (?)", [(n,) for n in range(1500)])
    return path


def test_query_has_parameters_and_bounded_rows(database):
    """Values are passed as parameters. At most 1000 rows are returned."""
    ask = sql_tool(f"sqlite:///{database}")
    found = ask("select name from products where price < :maxPrice", {"maxPrice": 15})
    assert found == {"columns": ["name"], "rows": [["pen"]], "more": False}
    many = ask("select n from numbers order by n")
    assert (len(many["rows"]), many["more"]) == (1000, True)
    assert ask("select * from products where price > 99")["rows"] == []
    assert ask(
        "with recursive c(x) as (select 1 union all select x + 1 from c where x < 3) select sum(x) from c"
    )["rows"] == [[6]]
    assert ask("select x'00ff', null, 1e999, 'a' || char(0)")["rows"] == [["[2 bytes]", None, "inf", "a\x00"]]


HARM = [
    "insert into products values ('x', 1)",
    "update products set price = 0",
    "delete from products",
    "drop table products",
    "create table x (a)",
    "create temp table x as select * from products",
    "pragma query_only = 0",
    "pragma writable_schema = 1",
    "attach database '/tmp/other.db' as other",
    "vacuum into '/tmp/copy.db'",
    "begin exclusive",
    "select load_extension('/tmp/x.so')",
    "select readfile('/etc/passwd')",
    "select 1; delete from products",
    "select 1; select 2",
    "select * from nothing",
    "with x as (select 1) insert into products select 1, 2",
    "analyze",
    "reindex",
    "explain insert into products values (1, 2); delete from products",
    "select zeroblob(900000000)",
    "\x00",
    "select :missing",
]


@pytest.mark.parametrize("statement", HARM)
def test_sqlite_rejects_statements_that_are_not_queries(database, statement):
    """A statement other than a query fails with a reason and changes nothing."""
    before = database.read_bytes()
    ask = sql_tool(f"sqlite:///{database}")
    with pytest.raises(ToolError):
        ask(statement)
    assert database.read_bytes() == before
    assert [each.name for each in database.parent.iterdir()] == ["shop.db"]


def test_error_of_an_insert_names_the_allowed_queries(database):
    with pytest.raises(ToolError, match="Only SELECT queries are allowed"):
        sql_tool(f"sqlite:///{database}")("insert into products values ('x', 1)")


def test_slow_sqlite_statement_is_interrupted(database):
    ask = sql_tool(f"sqlite:///{database}", timeout=0.2)
    endless = "with recursive c(x) as (select 1 union all select x + 1 from c) select count(*) from c"
    with pytest.raises(ToolError, match="longer than"):
        ask(endless)


def test_large_values_are_bounded(database):
    """The rows end when their total size reaches the limit."""
    found = sql_tool(f"sqlite:///{database}")("select hex(zeroblob(400000)) from numbers")
    assert found["more"]
    assert len(found["rows"]) == 1


def test_missing_database_is_an_error(tmp_path):
    """A missing database is an error and no file is created."""
    with pytest.raises(ToolError):
        sql_tool(f"sqlite:///{tmp_path}/none.db")("select 1")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError):
        sql_tool("mysql://x")


@pytest.mark.parametrize(
    "expression",
    [
        "instr(hex(zeroblob(400000)), hex(zeroblob(250000)) || '1')",
        "replace(hex(zeroblob(400000)), hex(zeroblob(200000)) || '1', '')",
        "trim(replace(hex(zeroblob(400000)), '0', 'b'), replace(hex(zeroblob(50000)), '0', 'a') || 'b')",
        "rtrim(replace(hex(zeroblob(400000)), '0', 'b'), replace(hex(zeroblob(50000)), '0', 'a') || 'b')",
        "hex(zeroblob(400000)) glob '*[' || substr(hex(zeroblob(25000)), 1, 49000) || ']1'",
    ],
)
def test_slow_functions_are_bounded(database, expression):
    """SQLite cannot interrupt a function: without limits, these took ten seconds to minutes."""
    started = time.process_time()
    with suppress(ToolError):
        sql_tool(f"sqlite:///{database}", timeout=0.5)(f"select length({expression})")
    assert time.process_time() - started < 5


def test_replaced_functions_equal_those_of_sqlite(database):
    """Replaced functions return the results of SQLite's own for texts, numbers, bytes and NULL."""
    values = [
        "'  a b  '",
        "'xxaxx'",
        "''",
        "12.5",
        "10",
        "-3",
        "null",
        "x'6162'",
        "'ä€'",
        "'a' || char(8364) || 'a'",
    ]
    calls = [
        *(f"{name}({value})" for name in ("trim", "ltrim", "rtrim") for value in values),
        *(
            f"{name}({value}, {signs})"
            for name in ("trim", "ltrim", "rtrim")
            for value in values
            for signs in ("'xa '", "''", "1", "null")
        ),
        *(
            f"instr({value}, {expected})"
            for value in values
            for expected in ("'a'", "''", "1", "null", "x'62'", "'€'")
        ),
        *(
            f"replace({value}, {old}, {new})"
            for value in values
            for old in ("'a'", "''", "1", "null")
            for new in ("'--'", "''", "7", "null")
        ),
    ]
    ask = sql_tool(f"sqlite:///{database}")
    with closing(sqlite3.connect(":memory:")) as connection:
        for call in calls:
            assert ask(f"select {call}")["rows"] == [list(connection.execute(f"select {call}").fetchone())], (
                call
            )
    with pytest.raises(ToolError, match="too big"):
        ask("select replace(hex(zeroblob(400000)), '0', 'xxx')")
    with pytest.raises(ToolError, match="wrong number of arguments"):
        ask("select trim(1, 2, 3)")


@pytest.fixture
def table():
    """Return a PostgreSQL table with two rows."""
    psycopg = pytest.importorskip("psycopg")
    try:
        connection = psycopg.connect(POSTGRES, connect_timeout=3, autocommit=True)
    except psycopg.OperationalError:
        pytest.skip("there is no PostgreSQL")
    name = f"ready_{uuid.uuid4().hex}"
    with connection:
        connection.execute(f"create table {name} (a int)")
        connection.execute(f"insert into {name} values (1), (2)")
        yield name
        assert connection.execute(f"select count(*) from {name}").fetchone() == (2,)
        connection.execute(f"drop table {name}")


def test_postgres_query_has_parameters_and_bounded_rows(table):
    """A query has parameters and a maximum number of rows."""
    ask = sql_tool(POSTGRES, max_rows=10)
    assert ask(f"select a from {table} where a > %(least)s", {"least": 1})["rows"] == [[2]]
    many = ask("select generate_series(1, 100)")
    assert (len(many["rows"]), many["more"]) == (10, True)


@pytest.mark.parametrize(
    "statement",
    [
        "delete from {t}",
        "with d as (delete from {t} returning a) select * from d",
        "drop table {t}",
        "select 1; delete from {t}",
        "select 1; commit; delete from {t}",
        "commit; delete from {t}",
        "copy (select 1) to program 'touch /tmp/ready_harm'",
        "copy {t} from program 'echo 3'",
        "set transaction read write",
        "select a into temp x from {t}",
        "select * from {t} for update",
        "select set_config('transaction_read_only', 'off', false), a from {t}",
        "do $$ begin delete from {t}; end $$",
        "select nextval('nothing')",
        "\x00",
    ],
)
def test_postgres_rejects_statements_that_are_not_queries(table, statement):
    """A rejected statement leaves the rows of the table unchanged."""
    with pytest.raises(ToolError):
        sql_tool(POSTGRES)(statement.format(t=table))
    assert not Path("/tmp/ready_harm").exists()


def test_postgres_rolls_back_writes_of_functions(table, caplog, monkeypatch):
    """Before version 16, `lo_create` also writes in READ ONLY transactions.

    A superuser is named in the log.
    """
    psycopg = pytest.importorskip("psycopg")
    monkeypatch.setattr("actgent.support.safe_logging._filter._groups", {})  # repeated records are suppressed
    ask = sql_tool(POSTGRES)
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        connection.execute(f"create function f_{table}() returns oid language sql as 'select lo_create(0)'")
        try:
            with suppress(
                ToolError
            ):  # "cannot execute lo_create() in a read-only transaction" from version 16 on
                made = ask(f"select f_{table}()")["rows"][0][0]
                assert ask(f"select oid from pg_largeobject_metadata where oid = {made}")["rows"] == []
        finally:
            connection.execute(f"drop function f_{table}")
    is_superuser = ask("select current_setting('is_superuser')")["rows"] == [["on"]]
    assert ("as the superuser" in caplog.text) is is_superuser


def test_postgres_ends_slow_statements(table):
    """The server's statement timeout ends the statement."""
    with pytest.raises(ToolError, match="longer than"):
        sql_tool(POSTGRES, timeout=0.2)("select pg_sleep(5)")


def test_a_statement_that_ignores_the_server_timeout_ends_at_the_deadline(table):
    """A function that catches every cancellation blocks the server only briefly and never this process."""
    psycopg = pytest.importorskip("psycopg")
    body = "begin loop begin perform pg_sleep(1); exception when query_canceled then null; end; end loop; end"
    name = f"f_{table}"
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        connection.execute(f"create function {name}() returns int language plpgsql as $${body}$$")
        try:
            started = time.monotonic()
            with pytest.raises(ToolError, match="longer than"):
                sql_tool(POSTGRES, timeout=0.3)(f"select {name}()")
            assert time.monotonic() - started < 5
            running = "select count(*) from pg_stat_activity where query like %s and pid <> pg_backend_pid()"
            ends = time.monotonic() + 20
            while connection.execute(running, [f"%{name}()%limit%"]).fetchone() != (0,):
                assert time.monotonic() < ends, "the server still runs the statement"
        finally:
            connection.execute(f"drop function {name}")


@pytest.mark.parametrize(
    "statement",
    [
        "select set_config('statement_timeout', '0', false)",
        "select pg_catalog . set_config /* a /* nested */ comment */ -- (\n ('work_mem', '1GB', false)",
        "select \"set_config\"('work_mem', '1GB', false)",
        "select U&\"\\0073et_config\"('work_mem', '1GB', false)",
        "select $$'$$, set_config('work_mem', '1GB', false)",
        "select E'\\'', set_config('work_mem', '1GB', false)",
        "select * from (select 1) a, lateral (select set_config('work_mem', '1GB', false)) b",
        "select query_to_xml('select set_config(''work_mem'', ''1GB'', false)', true, true, '')",
        "select * from ts_stat('select set_config(''work_mem'', ''1GB'', false)::tsvector')",
        "select pg_advisory_lock(1)",
        "select lo_create(0)",
        "select pg_reload_conf()",
        "select pg_read_file('/etc/passwd')",
        "select pg_notify('channel', 'text')",
        "select pg_logical_emit_message(false, 'a', 'b')",
    ],
)
def test_postgres_rejects_functions_with_outside_effects(table, statement):
    """Such functions are rejected for any spelling, and inside text that another function runs."""
    with pytest.raises(ToolError, match="not allowed"):
        sql_tool(POSTGRES)(statement)


def test_postgres_allows_harmless_functions_and_words_in_strings(table):
    """Function names in strings and comments are not calls."""
    ask = sql_tool(POSTGRES)
    found = ask(
        "select 'set_config(''a'')', $x$set_config()$x$, E'\\'lo_create(', random() < 2, pg_sleep(0), 5 % 3 -- set_config("
    )
    assert found["rows"] == [["set_config('a')", "set_config()", "'lo_create(", True, "", 2]]


@pytest.mark.parametrize(
    "statement",
    [
        "select repeat('x', 20000000) from generate_series(1, 3)",
        "select array[repeat('x', 20000000)]",
        "select row(repeat('x', 20000000))",
        "select json_build_object('a', repeat('x', 20000000))",
        "select convert_to(repeat('x', 20000000), 'utf8')",
        "select repeat('x', 20000000), repeat('y', 20000000) from generate_series(1, 50)",
        f"select {', '.join(['a'] * 50)} from repeat('x', 2000000) a",
    ],
)
def test_a_large_value_of_postgres_is_cut_by_the_server(table, statement):
    """Libpq allocates outside of Python, so the test measures the memory of a separate process."""
    code = (
        "import resource, sys; from actgent.toolsets.builtin import sql_tool; ask = sql_tool(sys.argv[1], timeout=60)\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; ask('select 1'); before = peak()\n"
        "ask(sys.argv[2]); print(peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, POSTGRES, statement], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 20_000  # kilobytes


def test_text_that_escapes_the_row_limit_is_rejected(table):
    """A text that is not one complete statement is rejected, so it cannot escape the row limit."""
    with pytest.raises(ToolError, match="Only one SELECT"):
        sql_tool(POSTGRES)("select 1) as t(c1) union all select repeat('x', 1000000) from (select 'a'")


def test_postgres_values_become_json(table):
    """Numbers and booleans stay, bytes become their size, and other types use PostgreSQL's text form."""
    found = sql_tool(POSTGRES)(
        "select 1, 2.5::float8, 'inf'::float8, 2.50, true, null, '\\x00ff'::bytea, date '2026-01-02', array[1, 2], '{\"a\": 1}'::json"
    )
    assert found["rows"] == [
        [1, 2.5, "inf", "2.50", True, None, "[2 bytes]", "2026-01-02", "{1,2}", '{"a": 1}']
    ]


# --- memory and files of SQLite ---------------------------------------------------------------------------

MANY = "with recursive c(x) as (select 1 union all select x + 1 from c limit 300)"


@pytest.mark.parametrize(
    "statement",
    [
        f"{MANY} select count(*) from (select distinct zeroblob(900000) || x b from c)",
        f"{MANY} select length(b) from (select zeroblob(900000) || (x * 7919 % 1000) b from c order by b) limit 1",
        f"{MANY} select count(*) from (select zeroblob(900000) || x b from c union select x from c)",
        f"{MANY} select sum(length(b)) over (order by b) from (select zeroblob(900000) || x b from c)",
    ],
)
def test_temporary_files_of_sqlite_are_bounded(database, statement):
    """Sorting 270 MB fails at 100 MB, and a smaller statement runs afterwards."""
    ask = sql_tool(f"sqlite:///{database}", timeout=60)
    with pytest.raises(ToolError, match="100,000,000 bytes of temporary files"):
        ask(statement)
    assert ask(statement.replace("limit 300", "limit 30"))["rows"]


def test_a_wide_row_of_sqlite_is_bounded(database):
    """SQLite builds complete rows: 200 values of a megabyte would need 200 MB."""
    ask = sql_tool(f"sqlite:///{database}")
    with pytest.raises(ToolError, match="too big"):
        ask(f"select {', '.join(['zeroblob(900000)'] * 200)}")
    with pytest.raises(ToolError, match="too many arguments"):
        ask(f"select max({', '.join(['zeroblob(900000)'] * 60)})")


def test_wal_database_is_read_during_writes(database):
    """The statement sees committed data."""
    with closing(sqlite3.connect(database)) as writer, writer:
        writer.execute("pragma journal_mode = wal")
        writer.execute("insert into products values ('new', 1)")
        writer.commit()
        assert sql_tool(f"sqlite:///{database}")("select count(*) from products")["rows"] == [[3]]
