"""Addresses of PostgreSQL databases with a schema."""

import traceback

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

import psycopg

from actgent import ConfigurationError, DatabaseFailed, JournalFailed, open_runtime
from actgent.database.postgres import PostgresDataConnection
from actgent.support.postgres_address import split_schema


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("password=a%20b", {"password": "a b"}),
        ("password=a+b", {"password": "a+b"}),
        ("password=a%2Bb%26c%25", {"password": "a+b&c%"}),
        (
            "sslcert=/my%20keys/c.pem&options=-c%20geqo%3Doff",
            {"sslcert": "/my keys/c.pem", "options": "-c geqo=off"},
        ),
    ],
)
def test_addresses_are_parsed_like_libpq_does(query, answer):
    """Spaces and special characters are parsed as libpq does. Only the option for the schema is an addition."""
    address, schema = split_schema(f"postgres://ada@h/d?{query}&schema=a%20b", default="x", owner="it")
    read = psycopg.conninfo.conninfo_to_dict(address)
    assert read == psycopg.conninfo.conninfo_to_dict(f"postgres://ada@h/d?{query}")
    assert read == {"user": "ada", "host": "h", "dbname": "d", **answer}
    assert schema == "a b"
    assert split_schema(address, default="x", owner="it") == (address, "x")


@pytest.mark.parametrize("address", ["postgres:///d?host=%2Frun%2Fnone", "postgresql:///d"])
def test_an_address_without_a_host_keeps_its_slashes(address):
    """For libpq, such an address names the socket of the server."""
    assert split_schema(address, default="x", owner="it") == (address, "x")


def test_an_address_names_several_servers_with_their_ports():
    """For libpq, the servers are alternatives."""
    address = "postgres://u:p@h:1,[::1]:2,i/d?target_session_attrs=read-write"
    assert split_schema(f"{address}&schema=s", default="x", owner="it") == (address, "s")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgres://", "must have the form postgres://HOST/DATABASE"),
        ("postgres://u:p@h:1,i:99999/d", "a port that is not a number up to 65535"),
        ("postgres://u:p@h:99999/d", "a port that is not a number up to 65535"),
        ("postgres://u:se/cret@h/d", "In a password, write / as %2F"),
    ],
)
def test_an_address_that_cannot_be_read(address, expected):
    """The error names the remedy and contains no part of the password."""
    with pytest.raises(ConfigurationError) as caught:
        split_schema(address, default="x", owner="the journal")
    assert expected in str(caught.value)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (
            "postgres@127.0.0.1:1/x",
            "at 127.0.0.1:1 (database 'x', user 'postgres') cannot be used: Connection refused. Start the server",
        ),
        ("postgres@127.0.0.1/none_there", "(database 'none_there', user 'postgres') cannot be used"),
        ("none_there@127.0.0.1/postgres", "user 'none_there') cannot be used"),
        ("postgres@127.0.0.1/postgres?sslmode=require", "Correct sslmode= in the address"),
        ("postgres@none.invalid/x", "'none.invalid'"),
        ("/x?host=/none_there", "at /none_there:5432 (database 'x'"),
    ],
)
async def test_a_server_that_cannot_be_reached(postgres_url, place, expected):
    """The errors of journal and database name server, database, user and remedy in one line, with a short traceback."""
    with pytest.raises(JournalFailed) as caught:
        async with open_runtime(journal=f"postgres://{place}"):
            pass
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    assert len([line for line in lines if line.lstrip().startswith("File")]) <= 8
    with pytest.raises(DatabaseFailed) as caught_by_database:
        PostgresDataConnection(f"postgres://{place}")
    for text in (str(caught.value), str(caught_by_database.value)):
        assert expected in text
        assert "\n" not in text
