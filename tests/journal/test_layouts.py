"""Format and number of partitions of a pool: which process may acquire partitions after a change."""

from contextlib import asynccontextmanager

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

import psycopg

from actgent.errors import ConfigurationError, Fenced, JournalVersion
from actgent.journal.postgres.cluster_pool_layout import (
    begin_repartitioning,
    end_repartitioning,
    raise_record_format,
    read_layout,
)
from actgent.journal.postgres.partitioned_journal import PartitionedJournal
from actgent.journal.postgres.schema import MIGRATIONS
from actgent.journal.postgres.session_partitioning import PartitionsLost, partition_of_slot, slot_of


@asynccontextmanager
async def open_node(url, name, *, reads=1, partitions=8):
    """Open a journal of a process whose release reads formats up to the given one."""
    journal = PartitionedJournal(url, node=name, partitions=partitions)
    journal.reads = reads
    async with journal.running():
        await journal.acquire()
        yield journal


def in_partition(number, count=8):
    """Return a session id in the given partition."""
    return next(
        f"s{each}" for each in range(10_000) if partition_of_slot(slot_of(f"s{each}"), count) == number
    )


def ask(url, sql):
    address, _, schema = url.partition("?schema=")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"SET search_path TO {schema}")
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []


# --- forms -----------------------------------------------------------------------------------------


async def test_a_process_acquires_nothing_if_the_pool_writes_a_newer_format(postgres_url, make_writer):
    """It keeps writing its partitions; lost and released ones go to newer nodes, and the error gives the reason."""
    async with open_node(postgres_url, "old") as old, open_node(postgres_url, "new", reads=2) as new:
        await old.acquire_partitions([0, 1])
        await raise_record_format(postgres_url, "default", 2)
        writer = make_writer(old, old.owned[0], in_partition(0))
        await writer.turn()
        for again in ([2], [0]):
            with pytest.raises(Fenced, match="restart it"):
                await old.acquire_partitions(again)
        await writer.turn()
        await old.detect_lost()
        assert (old.latest.writes, old.layout.writes) == (2, 1)
        assert [each.partition for each in await new.acquire_partitions(range(8))] == list(range(8))
        with pytest.raises(PartitionsLost):
            await writer.turn()


async def test_a_process_that_cannot_read_the_format_is_rejected(postgres_url):
    """A new pool writes the format of its first process; the error asks to upgrade an older release."""
    async with open_node(postgres_url, "new", reads=2) as new:
        assert (await read_layout(postgres_url, "default")).writes == 2
        with pytest.raises(ConfigurationError, match=r"writes record format 2.*formats up to 1: use a newer"):
            async with open_node(postgres_url, "old"):
                pass
        assert len(await new.acquire_partitions([0])) == 1


async def test_newer_schema_is_accepted_while_the_pool_writes_the_old_format(postgres_url, make_writer):
    """A process that reconnects is accepted too. When the pool writes a newer format, the process is rejected."""
    async with open_node(postgres_url, "old") as old:
        await old.acquire_partitions([0])
        writer = make_writer(old, old.owned[0], in_partition(0))
        ask(postgres_url, f"UPDATE meta SET version = {len(MIGRATIONS) + 1}")
        old._drop()
        await writer.turn()
        async with open_node(postgres_url, "beside") as beside:
            assert len(await beside.acquire_partitions([1])) == 1
        await raise_record_format(postgres_url, "default", 2)
        with pytest.raises(JournalVersion):
            async with open_node(postgres_url, "late"):
                pass


# --- partitions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(8, 32), (8, 2)])
async def test_changed_partition_count_ends_all_ownership(postgres_url, make_writer, before, after):
    """A process that hung writes no further step. Sessions keep their ids and continue in their new partitions."""
    ids = [in_partition(number, before) for number in (0, before - 1)]
    async with open_node(postgres_url, "hung", partitions=before) as hung:
        await hung.acquire_partitions(range(before))
        hung_writers = [
            make_writer(hung, hung.owned[number], each)
            for number, each in zip((0, before - 1), ids, strict=True)
        ]
        for writer in hung_writers:
            await writer.turn()
        await hung.acquire_partitions([0])
        await hung.give_back(range(1, before))
        old, new = await begin_repartitioning(postgres_url, "default", after)
        assert (old.partitions, new.partitions, new.generation) == (before, after, 2)
        with pytest.raises(ConfigurationError, match=f"repartition --partitions {after}"):
            async with open_node(postgres_url, "early"):
                pass
        with pytest.raises(PartitionsLost):
            await hung_writers[0].turn()
        with pytest.raises(Fenced, match="restart it"):
            await hung.acquire_partitions([1])
        again = await begin_repartitioning(postgres_url, "default", after)
        assert [each.generation for each in again] == [1, 2]
        with pytest.raises(ConfigurationError, match="is being changed to"):
            await begin_repartitioning(postgres_url, "default", 2 * after)
        await end_repartitioning(postgres_url, "default", new.generation)
        async with open_node(postgres_url, "next") as later:
            assert later.count == after
            taken = await later.acquire_partitions(range(after))
            unclean = {each.partition for each in taken if not each.was_clean}
            assert unclean == set(range(max(1, after // before)))
            for writer in hung_writers:
                await make_writer(later, later.epoch_of(writer.session_id), writer.session_id).turn()
        with pytest.raises(PartitionsLost):
            await hung_writers[1].turn()


async def test_epochs_are_never_reused(postgres_url):
    """This also holds if the number of partitions was lower in between."""
    seen = set()
    for count in (2, 8, 16, 1):
        async with open_node(postgres_url, f"before {count}") as node:
            for _ in range(2):
                for each in await node.acquire_partitions(range(node.count)):
                    assert each.is_kept or (each.partition, each.epoch) not in seen
                    seen.add((each.partition, each.epoch))
        _, new = await begin_repartitioning(postgres_url, "default", count)
        await end_repartitioning(postgres_url, "default", new.generation)


async def test_setting_the_current_partition_count_changes_nothing(postgres_url):
    """The number of a pool that never ran cannot be changed."""
    with pytest.raises(ConfigurationError):
        await begin_repartitioning(postgres_url, "default", 8)
    async with open_node(postgres_url, "a") as a:
        await a.acquire_partitions([0])
        before, after = await begin_repartitioning(postgres_url, "default", 8)
        assert before == after
        with pytest.raises(ConfigurationError, match=r"the pool 'other'.*start a node"):
            await begin_repartitioning(postgres_url, "other", 8)
        for count in (0, 3):
            with pytest.raises(ConfigurationError, match="power of two"):
                await begin_repartitioning(postgres_url, "default", count)
        assert (await a.acquire_partitions([0]))[0].is_kept
