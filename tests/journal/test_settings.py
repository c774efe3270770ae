"""A journal in a database whose owner changed the default settings of sessions."""

import os

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

import psycopg
import trio

from actgent.errors import JournalDamaged
from actgent.journal.journal_url import open_journal
from actgent.journal.postgres.partitioned_journal import PartitionedJournal


@pytest.fixture
def database_with(postgres_url):
    """Return a function `database_with(setting)` that makes a database with that setting and returns its address."""
    server = postgres_url.partition("?")[0]
    name = f"actgent_test_{os.getpid()}_set"

    def make(setting, encoding="UTF8"):
        connection.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
        )
        connection.execute(f"ALTER DATABASE {name} SET {setting}")
        return f"{server.rpartition('/')[0]}/{name}"

    with psycopg.connect(server, autocommit=True) as connection:
        yield make
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.mark.parametrize(
    "setting",
    [
        "extra_float_digits = 0",
        "DateStyle = 'German'",
        "default_transaction_isolation = 'serializable'",
        "bytea_output = 'escape'",
    ],
)
async def test_settings_of_the_database_are_overridden(database_with, make_writer, setting):
    """Numbers are read as they were written, for a single owner and for several."""
    url = database_with(setting)
    async with open_journal(url) as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.open(created_at=1795666803.1179166)
        await writer.turn()
    async with PartitionedJournal(url, node="n").running() as journal:
        await journal.acquire()
        ((taken),) = await journal.acquire_partitions([journal.partition_of("s")])
        writer.journal, writer.epoch = journal, taken.epoch
        assert await writer.load() == writer.confirmed
        await writer.turn()
        found = await journal._run(journal._select, "SHOW default_transaction_isolation")
        assert found == [("read committed",)]
    async with open_journal(url, read_only=True) as journal:
        assert await journal.load("s") == writer.confirmed


async def test_characters_missing_in_the_database_encoding_fail_only_their_session(
    database_with, make_writer
):
    """Message texts are stored as bytes, so only names in text columns fail."""
    url = database_with("work_mem = '4MB'", encoding="LATIN1")
    async with open_journal(url) as journal, trio.open_nursery() as nursery:
        epoch = await journal.acquire()
        beside = make_writer(journal, epoch)
        nursery.start_soon(beside.open)
        with pytest.raises(JournalDamaged, match="create a database with ENCODING 'UTF8'"):
            await make_writer(journal, epoch, "Łódź").open()
        await beside.turn("więcej")
        assert await beside.load() == beside.confirmed
