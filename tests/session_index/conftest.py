"""Addresses of journals that can have an index."""

import pytest


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request, tmp_path):
    """The address of an empty journal of each kind."""
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/journal.db"
    return request.getfixturevalue("postgres_journal_url")


@pytest.fixture
def lasting_url(url):
    """The same, but a journal that outlives its block."""
    if url == "memory:":
        pytest.skip("a journal in memory ends with its block")
    return url


@pytest.fixture
def postgres_journal_url(postgres_url):
    """The address of a PostgreSQL journal, whose index is erased too."""
    import psycopg

    yield postgres_url
    server, _, schema = postgres_url.partition("?schema=")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema[:20]}_index CASCADE")
