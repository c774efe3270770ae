"""Figures of a node: the time since another node died, from successive views of the pool."""

import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from actgent.cluster.operations.node_metrics import NodeMetrics
from actgent.journal.postgres import NodeRow, PartitionOwner


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
async def test_a_missing_node_is_a_death_unless_it_gave_its_partitions_back(
    autojump_clock, gone, before, after, is_death
):
    """The node itself acquires nothing. A view without a missing node changes nothing."""
    figures = NodeMetrics()
    figures.note_pool([row("a"), gone, row("c")], before)
    await trio.sleep(10)
    figures.note_pool([row("a"), gone, row("c")], before)
    assert trio.current_time() - figures.calm_since == 10
    figures.note_pool([row("a"), row("c")], after)
    assert trio.current_time() - figures.calm_since == (0 if is_death else 10)
    await trio.sleep(5)
    figures.note_pool([row("a"), row("c")], after)
    assert trio.current_time() - figures.calm_since == (5 if is_death else 15)
