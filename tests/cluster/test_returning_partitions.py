"""Partitions are acquired and returned while the database does not answer or deaths are counted."""

import types
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from actgent.cluster.cluster_node import Node
from actgent.cluster.partition_ownership import PartitionCommand, PartitionState
from actgent.errors import JournalFailed
from actgent.journal.postgres.session_partitioning import AcquiredPartition


@attrs.define(slots=False)
class Journal:
    """A journal whose first `fails` writes fail.

    `meanwhile` is the epoch that this node owns after a failure.
    """

    fails: int
    node: str = "one"
    meanwhile: int = 1
    count: int = 1
    owned: dict = attrs.field(factory=lambda: {0: 1})
    given: list = attrs.field(factory=list)

    async def give_back(self, partitions):
        await trio.lowlevel.checkpoint()
        if self.fails:
            self.fails -= 1
            self.owned = {0: self.meanwhile}
            raise JournalFailed("the database is away")
        self.given += [(each, self.owned.pop(each)) for each in partitions]


def make_node(journal):
    """Return a node that is not a member of its pool."""
    journal.nodes = None
    return Node("one", pool="p", journal=journal, address="http://127.0.0.1:1")


def leaving_node(journal):
    """Return a node that must return its partition in epoch 1."""
    node = make_node(journal)
    mine = node.ownership
    mine.compare_owners(["one"], {}, {"one"}, 0.0)
    mine.note_acquired(0, 1)
    mine.note_recovered(0, 1)
    assert mine.drain_all() == [PartitionCommand("drain", 0, 1)]
    assert mine.note_turns_ended(0, 1)
    return node


async def test_partition_is_released_when_the_database_answers(autojump_clock):
    """The node retries for any time, because no other node can acquire the partition before."""
    journal = Journal(fails=5)
    node = leaving_node(journal)
    await node._give_back({0: 1})
    assert journal.given == [(0, 1)]
    assert node.ownership.state(0) is PartitionState.UNOWNED


async def test_reacquired_partition_is_not_released(autojump_clock):
    """The sessions of the partition are active in this process, in a later epoch."""
    journal = Journal(fails=1, meanwhile=3)
    node = leaving_node(journal)
    await node._give_back({0: 1})
    assert journal.given == []
    assert journal.owned == {0: 3}


class Counting:
    """A quarantine whose `count_deaths` waits for the event `may_continue`."""

    def __init__(self):
        self.begun, self.may_continue, self.dead = trio.Event(), trio.Event(), []

    async def count_deaths(self, taken, agents, *, dead):
        self.dead.append(([each.partition for each in taken], sorted(dead)))
        self.begun.set()
        await self.may_continue.wait()

    choose = None


class Runtime:
    """A runtime that records the resumed sessions and drains immediately."""

    agents, stream = (), types.SimpleNamespace(tracing=None, publish=lambda _: None)

    def __init__(self):
        self.asked = []

    async def resume_acquired(self, is_taken, *, choose):
        await trio.lowlevel.checkpoint()
        self.asked.append([each for each in range(2) if is_taken(each)])

    def list_running(self):
        return []

    @asynccontextmanager
    async def drain(self, is_leaving, *, grace):
        await trio.lowlevel.checkpoint()
        yield


async def deliver(partitions):
    """Deliver nothing."""
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("is_leaving", [False, True])
async def test_deaths_are_counted_before_a_partition_is_served_or_released(autojump_clock, is_leaving):
    """The next owner cannot learn of these deaths later. A node that leaves opens no session."""
    journal, runtime, counting = Journal(fails=0, count=2), Runtime(), Counting()
    journal.partition_of, journal.owned = lambda number: number, {0: 1, 1: 1}
    node = make_node(journal)
    node._runtime, node.quarantine = runtime, counting
    node._deliver = deliver
    todo = []
    node.ownership.compare_owners(["one"] * 2, {}, {"one"}, 0.0)
    for number, was_clean in enumerate((False, True)):
        node._taken[number] = AcquiredPartition(partition=number, epoch=1, before="dead", was_clean=was_clean)
        todo += node.ownership.note_acquired(number, 1)
    async with trio.open_nursery() as node.nursery:
        node.nursery.start_soon(node._recover, todo)
        await counting.begun.wait()
        if is_leaving:
            node._execute(node.ownership.drain_all())
        assert (node.serving, journal.given, runtime.asked) == ((), [], [])
        counting.may_continue.set()
    assert counting.dead == [([0, 1], ["dead"])]
    if is_leaving:
        assert sorted(journal.given) == [(0, 1), (1, 1)]
        assert runtime.asked == [[]]
    else:
        assert node.serving == (0, 1)
        assert runtime.asked == [[0, 1]]
