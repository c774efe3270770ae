"""A journal in PostgreSQL that lost its connection: it reconnects to the same journal and to no other."""

import time

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

import psycopg
import trio
import trio.testing

from actgent.errors import JournalFailed
from actgent.journal.group_commit import base_journal_with_group_commit as group
from actgent.journal.postgres import sql_statements
from actgent.journal.postgres.journal import PostgresJournal
from actgent.journal.postgres.partitioned_journal import PartitionedJournal
from actgent.journal.record_types import SessionCreatedRecord
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import Sender


def make(kind, url, node):
    """Make a journal of the given kind."""
    return kind(url) if kind is PostgresJournal else kind(url, node=node)


async def test_reconnect_waits_for_a_server_that_keeps_the_lost_connection(
    postgres_url, make_writer, monkeypatch
):
    """The wait equals that for an absent server, because a suspended server process ends later."""
    own_again, end_backend, tries = PartitionedJournal._reacquire_ownership, sql_statements.END_BACKEND, []

    def count(self, connection):
        tries.append(connection)
        if len(tries) > 2:
            monkeypatch.setattr(sql_statements, "END_BACKEND", end_backend)
        own_again(self, connection)

    monkeypatch.setattr(PartitionedJournal, "_reacquire_ownership", count)
    still_there = "SELECT false WHERE (%s::int, %s::int, %s::timestamptz) IS NOT NULL"
    async with PartitionedJournal(postgres_url, node="n").running() as journal:
        await journal.acquire()
        ((taken),) = await journal.acquire_partitions([journal.partition_of("s")])
        writer = make_writer(journal, taken.epoch)
        await writer.open()
        monkeypatch.setattr(sql_statements, "END_BACKEND", still_there)
        journal._drop()
        await writer.turn()
        assert len(tries) == 3
        assert await writer.load() == writer.confirmed


@pytest.mark.parametrize("kind", [PostgresJournal, PartitionedJournal])
@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_reconnected_owner_does_not_write_to_a_replaced_journal(
    postgres_url, make_writer, kind, is_replaced
):
    """It creates no missing journal either, because its records would lack all earlier ones. After a restore it continues."""
    server, _, schema = postgres_url.partition("?schema=")
    journal = make(kind, postgres_url, "n")
    async with journal.running():
        epoch = await journal.acquire()
        if kind is PartitionedJournal:
            ((taken),) = await journal.acquire_partitions([journal.partition_of("s")])
            epoch = taken.epoch
        writer = make_writer(journal, epoch)
        await writer.open()
        with psycopg.connect(server, autocommit=True) as other:
            other.execute(f"ALTER SCHEMA {schema} RENAME TO {schema}_away")
            journal._drop()
            if is_replaced:
                async with make(kind, postgres_url, "o").running() as new:
                    await new.acquire()
            with pytest.raises(JournalFailed, match="was removed or replaced"):
                await writer.turn()
            there = "SELECT count(*) FROM pg_namespace WHERE nspname = %s"
            assert other.execute(there, [schema]).fetchone() == (int(is_replaced),)
            other.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
            other.execute(f"ALTER SCHEMA {schema}_away RENAME TO {schema}")
        journal._drop()
        await writer.turn()
        assert await writer.load() == writer.confirmed


@pytest.mark.parametrize("kind", [PostgresJournal, PartitionedJournal])
async def test_connection_lost_during_a_reconnect_is_retried(postgres_url, kind, monkeypatch):
    """The journal was not replaced, and the error does not claim so."""
    begin_epoch = kind._begin_epoch

    def lose_before(self, connection):
        monkeypatch.undo()
        self._drop()
        return begin_epoch(self, connection)

    async with make(kind, postgres_url, "n").running() as journal:
        for number in range(2):
            monkeypatch.setattr(kind, "_begin_epoch", lose_before)
            with pytest.raises(JournalFailed, match="database failed"):
                await journal.acquire()
            assert abs(await journal.acquire()) == number + 1


@pytest.mark.parametrize("kind", [PostgresJournal, PartitionedJournal])
async def test_a_transaction_that_the_server_ended_is_repeated(postgres_url, kind):
    """The server ends it while the network delays the next statement. Nothing of it was written, so callers get no error."""
    pids = []

    def write(connection):
        pids.append(connection.info.backend_pid)
        if len(pids) == 1:
            connection.execute("SET idle_in_transaction_session_timeout = 50")
            time.sleep(0.5)
        return connection.execute("SELECT 1").fetchone()

    async with make(kind, postgres_url, "n").running() as journal:
        await journal.acquire()
        assert await journal._run(write) == (1,)
        assert await journal._ask("SELECT 1") == [(1,)]
    assert len(set(pids)) == 2


@pytest.mark.parametrize("call", ["load", "look"])
async def test_callers_that_wait_for_a_server_get_an_error_when_the_journal_closes(link, call, monkeypatch):
    """Callers get an error of the journal instead of an error of its internal pipe."""
    link, url = link
    monkeypatch.setattr(group, "CLOSE_TIMEOUT_SECONDS", 0.1)
    journal, received = PartitionedJournal(url, node="n"), []

    async def call_it():
        try:
            await (journal.load("s") if call == "load" else journal.detect_lost())
        except JournalFailed as error:
            received.append(str(error))

    async with trio.open_nursery() as nursery, journal.running():
        await journal.acquire()
        await journal.detect_lost()
        link.flows = trio.Event()
        nursery.start_soon(call_it)
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert received == ["the journal was closed during the call"]
    link.flows.set()


async def test_erasure_with_a_lost_connection_is_complete(postgres_url, make_writer, monkeypatch):
    """The next attempt finds no session of the tree; one of its ids is then created again."""
    delete_trees, lost = PostgresJournal._delete_trees, []

    def lose_behind(self, connection, *args):
        gone = delete_trees(self, connection, *args)
        if not lost:
            lost.append(connection)
            connection.execute("COMMIT")
            self._drop()
        return gone

    async with PostgresJournal(postgres_url).running() as journal:
        epoch = await journal.acquire()
        top, below = (make_writer(journal, epoch, name) for name in ("top", "below"))
        await top.open()
        await below.commit(SessionCreatedRecord(owner=Sender("ada"), created_at=1.0, parent_id="top"))
        monkeypatch.setattr(PostgresJournal, "_delete_trees", lose_behind)
        assert await journal.erase_trees([SessionKey("a", "top")]) == [SessionKey("a", "top")]
        assert len(lost) == 1
        assert await journal.head("a", "below") is None
        assert await journal.sessions() == []
        again = make_writer(journal, epoch, "below")
        await again.turn()
        assert await again.load() == again.confirmed


def copy_schema(database, source, target):
    """Replace the tables as a restored backup does: equal rows in new tables, with generated columns computed again."""
    database.execute(f"CREATE SCHEMA {target}")
    for (table,) in database.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [source]):
        database.execute(f"CREATE TABLE {target}.{table} (LIKE {source}.{table} INCLUDING ALL)")
        names = database.execute(
            "SELECT string_agg(quote_ident(column_name), ', ') FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s AND is_generated = 'NEVER'",
            [source, table],
        ).fetchone()[0]
        database.execute(
            f"INSERT INTO {target}.{table} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM {source}.{table}"
        )


@pytest.mark.parametrize("is_copy", [True, False], ids=["an earlier copy", "another journal"])
@pytest.mark.parametrize("is_connected", [True, False])
async def test_an_owner_whose_schema_is_replaced_writes_nothing(
    postgres_url, make_writer, is_copy, is_connected
):
    """Epoch and connection may be unchanged, but its steps would follow wrong records. After a restore it continues."""
    server, _, schema = postgres_url.partition("?schema=")
    away, new = f"{schema}_away", f"{schema}_new"
    async with PostgresJournal(postgres_url).running() as journal:
        writer = make_writer(journal, await journal.acquire())
        await writer.open()
        with psycopg.connect(server, autocommit=True) as other:
            try:
                if is_copy:
                    copy_schema(other, schema, new)
                else:
                    async with PostgresJournal(f"{server}?schema={new}").running() as second:
                        assert await second.acquire() == writer.epoch
                await writer.turn()
                other.execute(f"ALTER SCHEMA {schema} RENAME TO {away}")
                other.execute(f"ALTER SCHEMA {new} RENAME TO {schema}")
                before = other.execute(f"SELECT count(*) FROM {schema}.steps").fetchone()
                if not is_connected:
                    journal._drop()
                with pytest.raises(JournalFailed, match="was removed or replaced"):
                    await writer.turn()
                if is_copy:
                    with pytest.raises(JournalFailed, match="was removed or replaced"):
                        await journal.erase_trees([SessionKey("a", "s")])
                assert other.execute(f"SELECT count(*) FROM {schema}.steps").fetchone() == before
                other.execute(f"ALTER SCHEMA {schema} RENAME TO {new}")
                other.execute(f"ALTER SCHEMA {away} RENAME TO {schema}")
                await writer.turn()
                assert await writer.load() == writer.confirmed
            finally:
                for each in (away, new):
                    other.execute(f"DROP SCHEMA IF EXISTS {each} CASCADE")
