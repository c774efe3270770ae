"""The graph of waiting sessions: exactly the edges that would close a cycle are rejected."""

import random
from contextlib import ExitStack
from itertools import pairwise

import pytest

from actgent.actors.wait_graph import WaitNode, find_cycle, waiting


def nodes(count):
    return [WaitNode(f"a/s{number}") for number in range(count)]


def names(way):
    return [node.name.removeprefix("a/s") for node in way.path]


@pytest.mark.parametrize("length", range(2, 9))
def test_cycle_is_reported_by_its_last_edge(length):
    """The error lists the sessions in order, from the one that would wait back to it.

    The search takes at most as many steps as the cycle has edges.
    """
    ring = nodes(length)
    with ExitStack() as edges:
        for waiter, target in pairwise(ring):
            assert find_cycle(waiter, target).path == ()
            edges.enter_context(waiting(waiter, target))
        way = find_cycle(ring[-1], ring[0])
        assert names(way) == [str(length - 1), *map(str, range(length))]
        assert way.steps <= 2 * length
    assert all(node.is_alone for node in ring)


def test_session_that_waits_for_itself_is_a_cycle():
    """The graph needs no edge for this."""
    (node,) = nodes(1)
    assert find_cycle(node, node).path == (node, node)


def test_parallel_waits_count_one_by_one():
    """Two tools wait for the same session: the edge stays until the second has its answer."""
    one, other = nodes(2)
    with waiting(one, other):
        with waiting(one, other):
            pass
        assert find_cycle(other, one).path
    assert not find_cycle(other, one).path


def test_cycle_search_is_fast_with_many_waiters():
    """The parent has 10,000 tasks. A task that asks the parent, and one that asks another session, are both checked quickly."""
    lead, stranger, *workers = nodes(10_002)
    with ExitStack() as edges:
        for worker in workers:
            edges.enter_context(waiting(lead, worker))
        back = find_cycle(workers[-1], lead)
        assert (back.path, back.steps) == ((workers[-1], lead, workers[-1]), 2)
        assert find_cycle(workers[0], stranger).steps == 0
        assert find_cycle(stranger, lead).steps == 0


def test_ten_thousand_acyclic_graphs_have_no_cycle():
    """Edges along a hidden order never close a cycle in any sequence; an edge against an existing path does."""
    chance = random.Random(6)
    closed = 0
    for _ in range(10_000):
        order = nodes(chance.randint(2, 12))
        pairs = [(a, b) for index, a in enumerate(order) for b in order[index + 1 :]]
        chosen = chance.sample(pairs, chance.randint(1, min(len(pairs), 20)))
        with ExitStack() as edges:
            for waiter, target in chosen:
                way = find_cycle(waiter, target)
                assert way.path == ()
                edges.enter_context(waiting(waiter, target))
            waiter, target = chance.choice(chosen)
            path = find_cycle(target, waiter).path
            assert path[0] is path[-1] is target
            assert all(b in a.waits_for for a, b in pairwise(path[1:]))
            closed += 1
        assert all(node.is_alone for node in order)
    assert closed == 10_000


def test_cycle_detection_equals_a_full_search():
    """The results are compared with a depth-first search, with edges removed in between."""
    chance = random.Random(7)

    def reaches(start, goal):
        seen, unseen = {start}, [start]
        while unseen:
            for node in unseen.pop().waits_for:
                if node not in seen:
                    seen.add(node)
                    unseen.append(node)
        return goal in seen

    refused = 0
    for _ in range(300):
        crowd, held = nodes(10), []
        for _ in range(60):
            if held and chance.random() < 0.3:
                held.pop(chance.randrange(len(held))).close()
                continue
            waiter, target = chance.sample(crowd, 2)
            found = bool(find_cycle(waiter, target).path)
            assert found == reaches(target, waiter)
            refused += found
            if not found:
                edge = ExitStack()
                edge.enter_context(waiting(waiter, target))
                held.append(edge)
    assert refused > 500
