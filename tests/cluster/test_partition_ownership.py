"""Ownership of partitions, with a simulated database and nodes in one thread, in every order of events.

Checked in each step: sessions are recovered at most once in an epoch, and never while turns of an earlier
epoch run in the same node. Checked at the end, without further failures: each partition is served by its
assigned node and by no other.
"""

import hypothesis
import pytest
from hypothesis import strategies

from actgent.cluster.cluster_node import assign_partitions
from actgent.cluster.partition_ownership import (
    MISPLACED_BUSY_SECONDS,
    MISPLACED_SECONDS,
    Ownership,
    PartitionCommand,
    PartitionState,
)
from actgent.journal.postgres.node_table import PartitionOwner

COUNT = 8


class Node:
    """A node and its queued commands."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.ownership = Ownership(name, COUNT)
        self.is_alive = True
        self.running = {}
        """Epochs whose turns run in this node, by partition."""
        self.recovered, self.todo = set(), []

    def note(self, todo):
        self.todo += todo

    def compare_owners(self):
        world = self.world
        for number, epochs in self.running.items():
            for epoch in list(epochs):
                row = world.owners[number]
                if (row.owner, row.epoch) != (self.name, epoch):
                    self.note(self.ownership.note_lost(number, epoch))
        places = assign_partitions(COUNT, world.staying())
        self.note(self.ownership.compare_owners(places, dict(world.owners), world.listed, world.now))

    def do_one(self, number):
        do = self.todo.pop(number % len(self.todo))
        getattr(self, do.verb)(do)

    # --- commands ----------------------------------------------------------------------

    def acquire(self, do):
        world = self.world
        row = world.owners.get(do.partition)
        if (0 if row is None else row.epoch) != do.epoch:
            self.ownership.note_not_acquired(do.partition)
            return
        epoch = do.epoch + 1
        world.owners[do.partition] = PartitionOwner(owner=self.name, epoch=epoch, is_given_back=False)
        self.note(self.ownership.note_acquired(do.partition, epoch))

    def recover(self, do):
        assert (do.partition, do.epoch) not in self.recovered, "recovered twice"
        assert not self.running.get(do.partition), "turns of an earlier epoch still run"
        self.recovered.add((do.partition, do.epoch))
        if self.ownership.owns(do.partition, do.epoch):
            self.running.setdefault(do.partition, set()).add(do.epoch)
        self.note(self.ownership.note_recovered(do.partition, do.epoch))

    def evict(self, do):
        self.running.get(do.partition, set()).discard(do.epoch)
        if self.ownership.note_turns_ended(do.partition, do.epoch):
            self.todo.append(PartitionCommand("give_back", do.partition, do.epoch))

    drain = evict

    def give_back(self, do):
        row = self.world.owners[do.partition]
        if (row.owner, row.epoch) == (self.name, do.epoch):
            self.world.owners[do.partition] = PartitionOwner(
                owner=self.name, epoch=do.epoch, is_given_back=True
            )
        self.ownership.note_returned(do.partition, do.epoch)


class World:
    """A database, its clock, and nodes."""

    def __init__(self):
        self.now, self.owners, self.listed, self.nodes = 0.0, {}, set(), []

    def staying(self):
        return {
            each.name for each in self.nodes if each.name in self.listed and not each.ownership.is_leaving
        }

    def start(self):
        node = Node(self, f"n{len(self.nodes)}")
        self.nodes.append(node)
        self.listed.add(node.name)
        return node

    def alive(self):
        return [each for each in self.nodes if each.is_alive]

    def step(self, what, number):
        """Apply an event to one of the live nodes."""
        alive = self.alive()
        node = alive[number % len(alive)]
        match what:
            case "start" if len(self.nodes) < 5:
                self.start()
            case "look":
                node.compare_owners()
            case "do" if node.todo:
                node.do_one(number)
            case "kill" if len(alive) > 1:
                node.is_alive = False
                self.listed.discard(node.name)
            case "leave" if len(self.staying()) > 1 and node.name in self.staying():
                node.note(node.ownership.drain_all())
            case "forget":
                self.listed.discard(node.name)
            case "wait":
                self.now += MISPLACED_SECONDS / 2

    def settle(self):
        """Run all live nodes until nothing changes."""
        for _ in range(200):
            self.now += MISPLACED_SECONDS
            for node in self.alive():
                self.listed.add(node.name)
                node.compare_owners()
                while node.todo:
                    node.do_one(0)
            if all(
                row.owner == index and number in node_of(self, index).ownership.serving()
                for number, index in enumerate(assign_partitions(COUNT, self.staying()))
                for row in [self.owners.get(number, PartitionOwner(owner="", epoch=0, is_given_back=True))]
            ):
                return


def node_of(world, name):
    return next(each for each in world.nodes if each.name == name)


STEPS = strategies.lists(
    strategies.tuples(
        strategies.sampled_from(
            ["start", "look", "look", "do", "do", "do", "kill", "leave", "forget", "wait"]
        ),
        strategies.integers(0, 40),
    ),
    max_size=120,
)


@hypothesis.given(steps=STEPS)
@hypothesis.settings(max_examples=150, deadline=None)
def test_each_partition_has_one_owner_in_every_order_of_events(steps):
    """`forget`: a node hangs until others count it as dead, and then resumes."""
    world = World()
    world.start()
    for what, number in steps:
        world.step(what, number)
    if not [each for each in world.alive() if not each.ownership.is_leaving]:
        world.start()
    world.settle()
    for number, index in enumerate(assign_partitions(COUNT, world.staying())):
        serving = [each.name for each in world.alive() if number in each.ownership.serving()]
        assert serving == [index]
        assert world.owners[number].owner == index
    for node in world.alive():
        assert not node.ownership.is_leaving or node.ownership.has_left


def make(*, epoch=1):
    """Return the ownership of one partition that is served in an epoch."""
    ownership = Ownership("a", 1)
    assert ownership.compare_owners(["a"], {}, {"a"}, 0.0) == [PartitionCommand("acquire", 0, 0)]
    assert ownership.note_acquired(0, epoch) == [PartitionCommand("recover", 0, epoch)]
    assert ownership.note_recovered(0, epoch) == []
    assert ownership.serving() == [0]
    return ownership


def owned_by(name, epoch, *, given_back=False):
    return {0: PartitionOwner(owner=name, epoch=epoch, is_given_back=given_back)}


def test_partition_of_a_live_node_is_not_acquired():
    """A node does not acquire it even if it is assigned the partition. The live owner returns it first."""
    ownership = Ownership("a", 1)
    assert ownership.compare_owners(["a"], owned_by("b", 3), {"a", "b"}, 0.0) == []
    assert ownership.compare_owners(["a"], owned_by("b", 3, given_back=True), {"a", "b"}, 0.0) == [
        PartitionCommand("acquire", 0, 3)
    ]


def test_partition_of_a_dead_node_is_acquired():
    """The node acquires it in the next epoch."""
    assert Ownership("a", 1).compare_owners(["a"], owned_by("b", 3), {"a"}, 0.0) == [
        PartitionCommand("acquire", 0, 3)
    ]


def test_a_misplaced_partition_moves_after_a_while():
    """A short change of the view moves no partition."""
    ownership = make()
    assert ownership.compare_owners(["b"], owned_by("a", 1), {"a", "b"}, 10.0) == []
    assert ownership.compare_owners(["a"], owned_by("a", 1), {"a", "b"}, 10.5) == []
    assert ownership.compare_owners(["b"], owned_by("a", 1), {"a", "b"}, 11.0) == []
    assert ownership.compare_owners(["b"], owned_by("a", 1), {"a", "b"}, 12.0) == [
        PartitionCommand("drain", 0, 1)
    ]
    assert ownership.note_turns_ended(0, 1)
    ownership.note_returned(0, 1)
    assert ownership.has_left


def test_a_misplaced_partition_with_running_turns_moves_later():
    """The turns may end before the move, and then no model call is repeated."""
    ownership, busy = make(), [0]
    views = ["b"], owned_by("a", 1), {"a", "b"}
    assert ownership.compare_owners(*views, 0.0, lambda: busy) == []
    assert ownership.compare_owners(*views, MISPLACED_BUSY_SECONDS - 1, lambda: busy) == []
    assert ownership.compare_owners(*views, MISPLACED_BUSY_SECONDS, lambda: busy) == [
        PartitionCommand("drain", 0, 1)
    ]
    ownership = make()
    assert ownership.compare_owners(*views, 0.0, lambda: busy) == []
    assert ownership.compare_owners(*views, 5.0, lambda: busy) == []
    assert ownership.compare_owners(*views, 6.0, list) == [PartitionCommand("drain", 0, 1)]


def test_evicted_partition_is_acquired_again_after_its_turns_ended():
    """Turns of two epochs never run concurrently in one process."""
    ownership = make()
    assert ownership.note_lost(0, 1) == [PartitionCommand("evict", 0, 1)]
    assert ownership.compare_owners(["a"], owned_by("b", 2), {"a"}, 0.0) == []
    assert not ownership.note_turns_ended(0, 1)
    assert ownership.compare_owners(["a"], owned_by("b", 2), {"a"}, 0.0) == [
        PartitionCommand("acquire", 0, 2)
    ]


def test_a_node_that_leaves_waits_for_the_count_of_deaths():
    """An earlier return of the partition would lose the death of its previous owner."""
    ownership = Ownership("a", 1)
    ownership.compare_owners(["a"], {}, {"a"}, 0.0)
    ownership.note_acquired(0, 1)
    assert ownership.drain_all() == []
    assert not ownership.has_left
    assert ownership.note_recovered(0, 1) == [PartitionCommand("drain", 0, 1)]


@pytest.mark.parametrize("is_first", [True, False])
def test_second_of_two_acquirers_is_rejected(is_first):
    """The node reads the owners again if the database rejects its acquisition."""
    ownership = Ownership("a", 1)
    ownership.compare_owners(["a"], {}, {"a"}, 0.0)
    if is_first:
        ownership.note_acquired(0, 1)
        assert ownership.state(0) is PartitionState.OWNED
    else:
        ownership.note_not_acquired(0)
        assert ownership.state(0) is PartitionState.UNOWNED
