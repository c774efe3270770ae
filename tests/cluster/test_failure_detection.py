"""Dead nodes in the view of another node, with a clock of the test."""

import time

import attrs
import pytest

from actgent.cluster.failure_detection import (
    MAX_REGULAR_HEARTBEAT_SECONDS,
    SETTLE_SECONDS,
    DeathJudge,
    NodeMembership,
)
from actgent.journal.postgres.node_liveness_locks import NODE_TIMEOUT_SECONDS
from actgent.journal.postgres.node_table import NodeRow, SeenNode


def seen(name, *, age=0.1, is_unlocked=False):
    row = NodeRow(name=name, address="http://127.0.0.1:1", agents=("a",), release="1", reads=1)
    return SeenNode(row=row, age=age, is_unlocked=is_unlocked)


def make():
    """Return a failure detector whose heartbeats are regular."""
    judge = DeathJudge()
    judge.note_connected(0.0, is_first=True, is_server_new=False)
    judge.note_beat(0.0)
    return judge


def test_killed_node_is_dead_at_the_second_poll():
    """At the first poll the node may still be reconnecting."""
    judge = make()
    nodes = [seen("a"), seen("b", is_unlocked=True), seen("c")]
    assert judge.judge(nodes, 0.1, "a") == frozenset()
    assert judge.is_in_doubt
    assert judge.judge(nodes, 0.13, "a") == {"b"}
    assert judge.judge([seen("a"), seen("c")], 0.2, "a") == frozenset()
    assert not judge.is_in_doubt


def test_reconnected_node_is_not_dead():
    """The node has a new connection at the second poll."""
    judge = make()
    judge.judge([seen("b", is_unlocked=True)], 0.1, "a")
    assert judge.judge([seen("b")], 0.13, "a") == frozenset()


def test_hanging_node_is_dead_when_its_lease_expires():
    """The connection of the hanging node still holds its lock."""
    judge = make()
    assert judge.judge([seen("b", age=NODE_TIMEOUT_SECONDS - 0.1)], 1.0, "a") == frozenset()
    judge.judge([seen("b", age=NODE_TIMEOUT_SECONDS + 0.1)], 1.2, "a")
    assert judge.judge([seen("b", age=NODE_TIMEOUT_SECONDS + 0.2)], 1.3, "a") == {"b"}


def test_no_node_removes_itself():
    """The row of the node itself is as old as its last heartbeat."""
    judge = make()
    judge.judge([seen("a", age=NODE_TIMEOUT_SECONDS + 1)], 1.0, "a")
    assert judge.judge([seen("a", age=NODE_TIMEOUT_SECONDS + 1)], 1.1, "a") == frozenset()


def test_node_that_lost_the_database_waits_for_other_nodes():
    """A database restart breaks all connections at once."""
    judge = make()
    judge.note_connected(10.0, is_first=False, is_server_new=True)
    nodes = [seen("b", is_unlocked=True)]
    judge.judge(nodes, 10.0, "a")
    assert judge.judge(nodes, 10.0 + SETTLE_SECONDS - 0.1, "a") == frozenset()
    assert judge.judge(nodes, 10.0 + SETTLE_SECONDS, "a") == {"b"}


def test_a_new_node_waits_only_if_the_server_is_new():
    """If all nodes of a cluster were killed, the first new node acquires the partitions without a wait."""
    judge = DeathJudge()
    judge.note_connected(0.0, is_first=True, is_server_new=True)
    assert judge.may_judge_from == SETTLE_SECONDS
    assert make().may_judge_from < 0


def test_node_that_hung_waits_before_it_counts_others_as_dead():
    """All nodes may have hung, for example because of a locked table.

    The other nodes then send heartbeats now.
    """
    judge = make()
    judge.note_beat(MAX_REGULAR_HEARTBEAT_SECONDS + 1.0)
    nodes = [seen("b", age=NODE_TIMEOUT_SECONDS + 1)]
    judge.judge(nodes, 3.1, "a")
    assert judge.judge(nodes, 3.2, "a") == frozenset()
    judge.note_beat(4.0)
    judge.note_beat(5.0)
    assert judge.judge(nodes, MAX_REGULAR_HEARTBEAT_SECONDS + 1.0 + SETTLE_SECONDS, "a") == {"b"}


class Table:
    """The nodes of a database whose clock is some seconds ahead."""

    def __init__(self, ahead):
        self.ahead, self.connections, self.is_server_new = ahead, 1, False
        self.beats = []

    async def beat(self, row):
        self.beats.append(row)

    async def nodes(self):
        return [SeenNode(row=self.beats[-1], age=0.0, is_unlocked=False)], time.time() + self.ahead

    async def layout_and_partitions(self):
        return None, {}

    def take_payloads(self):
        return ["pending 3", "ownership", "pending 3", "pending x"]


@pytest.mark.parametrize(("ahead", "corrected"), [(3600.0, True), (2.4, False)])
async def test_a_slow_answer_of_the_database_shows_only_a_large_difference(monkeypatch, ahead, corrected):
    """Otherwise a node with slow first responses would sign requests with a wrong time, which other nodes reject."""
    wall = [1000.0]
    monkeypatch.setattr("actgent.cluster.failure_detection.time.time", lambda: wall[0])

    class SlowTable(Table):
        async def nodes(self):
            wall[0] += 5.0
            return [SeenNode(row=self.beats[-1], age=0.0, is_unlocked=False)], wall[0] + self.ahead

    corrections = []
    membership = NodeMembership(
        SlowTable(ahead), lambda: seen("a").row, lambda _: None, lambda _: None, corrections.append
    )
    await membership._poll()
    assert len(corrections) == corrected
    assert abs(membership.now() - wall[0] - ahead * corrected) < 5


@pytest.mark.parametrize(("ahead", "corrected"), [(3600.0, True), (-10.0, True), (1.5, False)])
async def test_a_wrong_clock_is_corrected_by_the_database(ahead, corrected, caplog):
    """The clock is corrected once. A small difference is ignored."""
    table, corrections = Table(ahead), []
    membership = NodeMembership(
        table, lambda: seen("a").row, lambda _: None, lambda _: None, corrections.append
    )
    for _ in range(3):
        await membership._poll()
    assert len(corrections) == corrected
    assert abs(membership.now() - time.time() - ahead * corrected) < 0.5
    assert caplog.text.count("the clock of this machine") == corrected
    table.ahead = 0.0
    await membership._poll()
    assert corrections[1:] == [0.0] * corrected


async def test_poll_reports_the_pool_and_pending_payloads():
    """The node reports each partition once, and ignores payloads of an unknown kind."""
    views, pending = [], []
    table = Table(0.0)
    membership = NodeMembership(table, lambda: seen("a").row, views.append, pending.append)
    await membership._poll()
    assert [each.name for each in views[0].nodes] == ["a"]
    assert pending == [3]
    assert len(table.beats) == 1


async def test_a_changed_row_is_written_at_once():
    """Other nodes read a new agent before the next heartbeat."""
    agents = [("a",), ("a",), ("a", "b")]
    table = Table(0.0)
    membership = NodeMembership(
        table, lambda: attrs.evolve(seen("a").row, agents=agents.pop(0)), lambda _: None, lambda _: None
    )
    for _ in range(3):
        await membership._poll()
    assert [each.agents for each in table.beats] == [("a",), ("a", "b")]
