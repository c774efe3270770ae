"""Which node owns which partition."""

from collections import Counter

import hypothesis
import pytest
from hypothesis import strategies

from actgent.cluster.cluster_node import assign_partitions, find_eligible_nodes

NAMES = strategies.sets(strategies.text(min_size=1, max_size=8), min_size=1, max_size=9)


@hypothesis.given(nodes=NAMES)
def test_nodes_have_equal_shares_of_partitions(nodes):
    """No node exceeds the rounded-up share, in any order of names."""
    places = assign_partitions(64, nodes)
    assert places == assign_partitions(64, sorted(nodes, reverse=True))
    assert max(Counter(places).values()) <= -(-64 // len(nodes))
    assert set(places) <= nodes


def test_few_partitions_move_when_a_node_leaves():
    """Only the partitions of the leaving node move, and a few more for equal shares."""
    before = assign_partitions(256, ["a", "b", "c", "d"])
    after = assign_partitions(256, ["a", "b", "c"])
    moved = [number for number in range(256) if before[number] not in ("d", after[number])]
    assert len(moved) < 256 // 4


def test_partitions_are_unassigned_without_nodes():
    assert assign_partitions(8, []) == []


@pytest.mark.parametrize(
    ("agents", "fit"),
    [
        ({"a": ["x"], "b": ["x"]}, ["a", "b"]),
        ({"a": ["x"], "b": ["x", "y"]}, ["b"]),
        ({"a": ["x", "z"], "b": ["x", "y"]}, ["a", "b"]),
        ({"a": [], "b": ["x"], "c": ["x"]}, ["b", "c"]),
        ({}, []),
    ],
    ids=["same", "added", "renamed", "empty", "none"],
)
def test_nodes_without_all_agents_own_no_partition(agents, fit):
    """A session of a new agent stays at a node that hosts the agent during a rolling upgrade."""
    assert find_eligible_nodes(agents) == fit
