"""A partition that is to be another node's, whose database does not answer when it is given back."""

import attrs
import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from actgent.cluster.amqp import parse_broker
from actgent.cluster.link import BrokerLink
from actgent.cluster.node import Node
from actgent.cluster.ownership import Do, Ownership, PartitionState
from actgent.cluster.placement import Placement
from actgent.errors import JournalFailed


@attrs.define(slots=False)
class Journal:
    """A journal whose database is away some times; `meanwhile` is the epoch that is ours when it is there again."""

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


class Requests:
    """Those of a partition."""

    def close(self):
        pass


def leaving_node(journal):
    """A node that is to give its partition back, in epoch 1."""
    node = Node(
        "one", pool="p", journal=journal, link=BrokerLink(parse_broker("amqp://127.0.0.1"), name="one")
    )
    node.ownership = mine = Ownership("one", 1)
    node._requests = {0: Requests()}
    mine.look([Placement("one", "")])
    mine.delivered(0)
    mine.taken(0, 1, was_clean=True)
    mine.leave_all()
    assert mine.turns_ended(0, 1) == [Do("give_back", 0, 1)]
    return node


async def test_a_partition_is_given_back_when_the_database_answers(autojump_clock):
    """However long that takes: nobody else can have it before."""
    journal = Journal(fails=5)
    node = leaving_node(journal)
    await node._give_back(Do("give_back", 0, 1))
    assert journal.given == [(0, 1)]
    assert node.ownership.state(0) is PartitionState.AWAY


async def test_what_was_taken_again_meanwhile_is_not_given_back(autojump_clock):
    """Its sessions live here, in the next epoch of ours."""
    journal = Journal(fails=1, meanwhile=3)
    node = leaving_node(journal)
    await node._give_back(Do("give_back", 0, 1))
    assert journal.given == []
    assert journal.owned == {0: 3}


class Counting:
    """A quarantine that counts when it is told to."""

    def __init__(self):
        self.begun, self.goes_on = trio.Event(), trio.Event()

    async def count(self, numbers, agents, *, have_died):
        self.begun.set()
        await self.goes_on.wait()


class Runtime:
    """Notes of which partitions something is taken up."""

    agents, stream = (), None

    def __init__(self):
        self.asked = []

    async def take_up(self, is_taken, *, choose):
        await trio.lowlevel.checkpoint()
        self.asked.append([each for each in range(2) if is_taken(each)])


async def test_a_node_that_ends_while_it_counts_takes_up_nothing_that_the_next_one_is_to_count(
    autojump_clock,
):
    """What has not to be counted goes on until it has left, as far as its drain lets it."""
    journal, runtime, counting = Journal(fails=0, count=2), Runtime(), Counting()
    journal.partition_of = lambda number: number
    node = Node(
        "one", pool="p", journal=journal, link=BrokerLink(parse_broker("amqp://127.0.0.1"), name="one")
    )
    node.ownership = mine = Ownership("one", 2)
    node._runtime, node._quarantine, node._requests = runtime, counting, {0: Requests(), 1: Requests()}
    mine.look([Placement("one", "")] * 2)
    todo = []
    for number, was_clean in enumerate((False, True)):
        mine.delivered(number)
        todo += mine.taken(number, 1, was_clean=was_clean)
    async with trio.open_nursery() as node.nursery:
        node.nursery.start_soon(node._recover, todo)
        await counting.begun.wait()
        assert mine.leave_all() == [Do("close_channel", 0), Do("drain", 1, 1)]
        counting.goes_on.set()
    assert runtime.asked == [[1]]
