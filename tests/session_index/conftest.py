"""Addresses of journals that can have an index."""

import pytest


@pytest.fixture
def postgres_url(postgres_url):
    """The address of a PostgreSQL journal, whose index is erased too."""
    import psycopg

    yield postgres_url
    server, _, schema = postgres_url.partition("?schema=")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema[:20]}_index CASCADE")
