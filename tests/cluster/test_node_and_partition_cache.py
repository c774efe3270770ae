"""Deaths of nodes that a directory sees in successive views of its pool."""

import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from actgent.cluster.node_and_partition_cache import PoolDirectory
from actgent.cluster.relay_client import DEATH_SECONDS, NodeTransport
from actgent.journal.postgres.node_table import NodeRow, PartitionOwner

START = 1000.0
"""Seconds that pass before the first view, so that no death is older."""


def row(name, *, is_leaving=False):
    return NodeRow(
        name=name,
        address="http://127.0.0.1:9",
        agents=("clerk",),
        release="1",
        reads=1,
        is_leaving=is_leaving,
    )


def owned(name, epoch=1, *, is_given_back=False):
    return {0: PartitionOwner(owner=name, epoch=epoch, is_given_back=is_given_back)}


async def make_directory():
    """Return a directory without a view, which was created `START` seconds ago."""
    directory = PoolDirectory("a", 1, trio.lowlevel.checkpoint)
    await trio.sleep(START)
    return directory


def calm_seconds(directory):
    return trio.current_time() - directory.calm_since


@pytest.mark.parametrize(
    ("gone", "before", "after", "is_death"),
    [
        (row("b"), owned("b"), owned("b"), True),
        (row("b"), owned("b"), owned("c", 2), True),
        (row("b"), owned("a"), owned("a"), True),
        (row("b", is_leaving=True), owned("b"), owned("b"), True),
        (row("b", is_leaving=True), owned("b"), owned("c", 2), True),
        (row("b", is_leaving=True), owned("b"), owned("b", is_given_back=True), False),
        (row("b", is_leaving=True), owned("b", is_given_back=True), owned("c", 2), False),
        (row("b", is_leaving=True), owned("a"), owned("a"), False),
    ],
)
async def test_missing_node_is_a_death_unless_it_released_its_partitions(
    autojump_clock, gone, before, after, is_death
):
    """The node itself acquires nothing. A view without a missing node changes nothing."""
    directory = await make_directory()
    directory.update([row("a"), gone, row("c")], before)
    await trio.sleep(10)
    directory.update([row("a"), gone, row("c")], before)
    assert calm_seconds(directory) == START + 10
    assert not directory.is_dead("b")
    directory.update([row("a"), row("c")], after)
    assert calm_seconds(directory) == (0 if is_death else START + 10)
    await trio.sleep(5)
    directory.update([row("a"), row("c")], after)
    assert calm_seconds(directory) == (5 if is_death else START + 15)
    assert directory.is_dead("b") == is_death


async def test_a_first_view_shows_a_death_by_partitions_without_a_live_owner(autojump_clock):
    """The owner of the partitions is not live and has not returned them."""
    directory = await make_directory()
    directory.update([row("a")], owned("b"))
    assert calm_seconds(directory) == 0
    assert directory.is_dead("b")


async def test_returned_node_may_die_again(autojump_clock):
    """The node hung for longer than the timeout of its heartbeat."""
    directory = await make_directory()
    for _ in range(2):
        directory.update([row("a"), row("b")], owned("b"))
        await trio.sleep(10)
        assert not directory.is_dead("b")
        directory.update([row("a")], owned("b"))
        assert calm_seconds(directory) == 0
        assert directory.is_dead("b")


@pytest.mark.parametrize("is_death", [True, False])
@pytest.mark.parametrize("is_seen", [True, False])
async def test_a_broken_connection_is_a_death_only_if_its_node_died(autojump_clock, is_death, is_seen):
    """The death may be detected before or after the query. A node that left as planned did not die."""
    directory = await make_directory()
    transport = NodeTransport(directory, key=b"key", now=trio.current_time)
    directory.update([row("a"), row("b", is_leaving=not is_death)], owned("a"))

    async def see_the_end(*, task_status=trio.TASK_STATUS_IGNORED):
        task_status.started()
        await trio.sleep(0 if is_seen else DEATH_SECONDS / 2)
        directory.update([row("a")], owned("a"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(see_the_end)
        await trio.sleep(DEATH_SECONDS / 10)
        assert await transport.has_died("b") == is_death
    assert not await transport.has_died("a")
