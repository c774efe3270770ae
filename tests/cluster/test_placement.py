"""Who is to have which partition: the same answer everywhere, in equal shares, with few moves."""

import hypothesis
import pytest
from hypothesis import strategies

from actgent.cluster.placement import assign_partitions

NODES = strategies.lists(strategies.text(min_size=1, max_size=8), min_size=1, max_size=12, unique=True)


@hypothesis.given(nodes=NODES, count=strategies.sampled_from([1, 8, 64]), random=strategies.randoms())
def test_each_partition_has_an_owner_and_another_standby(nodes, count, random):
    """No node has more than its share, and the order in which they are known does not matter."""
    places = assign_partitions(count, nodes)
    share = -(-count // len(nodes))
    assert len(places) == count
    for node in nodes:
        assert sum(place.owner == node for place in places) <= share
        assert sum(place.standby == node for place in places) <= max(share, 1) * 2
    for place in places:
        assert place.owner in nodes
        assert place.standby != place.owner
        assert (place.standby in nodes) == (len(nodes) > 1)
    again = list(nodes)
    random.shuffle(again)
    assert assign_partitions(count, [*again, again[0]]) == places


def test_nobody_has_anything_without_nodes():
    """There is nobody to ask."""
    assert assign_partitions(8, []) == ()


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_few_partitions_move_where_a_node_comes_or_goes(count):
    """Its share, and about as many again for the shares to be equal."""
    nodes = [f"node-{number}" for number in range(count)]
    before, after = assign_partitions(64, nodes), assign_partitions(64, [*nodes, "another"])
    moved = sum(one.owner != other.owner for one, other in zip(before, after, strict=True))
    assert moved <= 2 * -(-64 // (count + 1)) + 2
