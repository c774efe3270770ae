"""Addresses of databases in PostgreSQL that name a schema."""

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

import psycopg

from actgent.support.postgres_address import split_schema


@pytest.mark.parametrize(
    ("query", "said"),
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
def test_what_an_address_says_is_read_as_libpq_reads_it(query, said):
    """Spaces, signs and all; only the schema is ours."""
    address, schema = split_schema(f"postgres://ada@h/d?{query}&schema=a%20b", default="x", owner="it")
    read = psycopg.conninfo.conninfo_to_dict(address)
    assert read == psycopg.conninfo.conninfo_to_dict(f"postgres://ada@h/d?{query}")
    assert read == {"user": "ada", "host": "h", "dbname": "d", **said}
    assert schema == "a b"
    assert split_schema(address, default="x", owner="it") == (address, "x")
