"""Databases that are only read: the database refuses the rest."""

import os
import sqlite3
import time
import uuid
from contextlib import closing, suppress
from pathlib import Path

import pytest

from actgent.errors import ConfigurationError, ToolError
from actgent.toolsets.ready import sql_tool

POSTGRES = os.environ.get("ACTGENT_TEST_POSTGRES", "postgres://postgres@127.0.0.1:5432/postgres")


@pytest.fixture
def database(tmp_path):
    """A database with products and many numbers."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table products (name text, price real)")
        connection.execute("create index names on products (name)")
        connection.executemany("insert into products values (?, ?)", [("pen", 10), ("lamp", 20)])
        connection.execute("create table numbers (n integer)")
        connection.executemany("insert into numbers values (?)", [(n,) for n in range(1500)])
    return path


def test_parameters_and_rows(database):
    """Values go beside the statement; at most 1000 rows come back."""
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
def test_sqlite_refuses_what_is_no_question(database, statement):
    """With a reason, and the database is as it was."""
    before = database.read_bytes()
    ask = sql_tool(f"sqlite:///{database}")
    with pytest.raises(ToolError):
        ask(statement)
    assert database.read_bytes() == before
    assert [each.name for each in database.parent.iterdir()] == ["shop.db"]


def test_insert_says_what_is_allowed(database):
    """In the words that models know."""
    with pytest.raises(ToolError, match="Only SELECT queries are allowed"):
        sql_tool(f"sqlite:///{database}")("insert into products values ('x', 1)")


def test_a_statement_that_takes_too_long_is_stopped(database):
    """By the database itself."""
    ask = sql_tool(f"sqlite:///{database}", timeout=0.2)
    endless = "with recursive c(x) as (select 1 union all select x + 1 from c) select count(*) from c"
    with pytest.raises(ToolError, match="longer than"):
        ask(endless)


def test_large_values_are_bounded(database):
    """Rows end where their values are too long together."""
    found = sql_tool(f"sqlite:///{database}")("select hex(zeroblob(400000)) from numbers")
    assert found["more"]
    assert len(found["rows"]) == 1


def test_a_database_that_there_is_not(tmp_path):
    """None is made."""
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
def test_no_function_takes_longer_than_its_statement_may(database, expression):
    """SQLite cannot be stopped within a function; these took from ten seconds to minutes, of which the time limit knew nothing."""
    begun = time.process_time()
    with suppress(ToolError):
        sql_tool(f"sqlite:///{database}", timeout=0.5)(f"select length({expression})")
    assert time.process_time() - begun < 5


def test_functions_say_what_those_of_sqlite_say(database):
    """For texts, numbers, bytes, nothing, and what is not there."""
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
            f"instr({value}, {wanted})"
            for value in values
            for wanted in ("'a'", "''", "1", "null", "x'62'", "'€'")
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
    """A table of PostgreSQL with two rows."""
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


def test_postgres_answers(table):
    """With parameters, and at most so many rows."""
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
def test_postgres_refuses_what_is_no_question(table, statement):
    """The table has its rows afterwards."""
    with pytest.raises(ToolError):
        sql_tool(POSTGRES)(statement.format(t=table))
    assert not Path("/tmp/ready_harm").exists()


def test_nothing_that_a_function_writes_in_postgres_stays(table, caplog, monkeypatch):
    """Large objects are made in READ ONLY transactions too, before version 16; and who asks as a superuser is warned."""
    monkeypatch.setattr("actgent.support.logs._filter._kinds", {})  # it tells the same a few times only
    ask = sql_tool(POSTGRES)
    ((version,),) = ask("select current_setting('server_version_num')::int")["rows"]
    if version >= 160_000:
        with pytest.raises(ToolError, match="read-only"):
            ask("select lo_create(0)")
    else:
        made = ask("select lo_create(0)")["rows"][0][0]
        assert (
            ask("select oid from pg_largeobject_metadata where oid = %(made)s", {"made": made})["rows"] == []
        )
    is_superuser = ask("select current_setting('is_superuser')")["rows"] == [["on"]]
    assert ("as the superuser" in caplog.text) is is_superuser


def test_postgres_stops_what_takes_too_long(table):
    """By its own clock."""
    with pytest.raises(ToolError, match="longer than"):
        sql_tool(POSTGRES, timeout=0.2)("select pg_sleep(5)")
