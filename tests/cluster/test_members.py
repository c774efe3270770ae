"""Which nodes have died, as another one finds out: those that say nothing more, and have not said that they leave."""

from actgent.cluster.members import AFTERWARDS, EVERY, GONE, LET_GO, NEW, Members
from actgent.cluster.wire import Beacon


def make_members():
    """Of a node that is not new, and has just heard of `other`."""
    members = Members()
    members.begin(-NEW)
    members.begin(1.0)
    members.hear(Beacon(node="other"), 1.0)
    return members


def test_a_node_that_says_nothing_more_has_died():
    """That is known once it has been silent for long; what was given back long after that is not of its death."""
    members = make_members()
    assert members.has_died(1.2, 1.2) is None
    assert members.has_died(1.2, 1.0 + GONE - 0.1) is None
    assert members.has_died(1.2, 1.0 + GONE) is True
    assert members.has_died(1.0 + LET_GO + 0.1, 20.0) is False


def test_a_node_that_speaks_again_has_not_died():
    """It had lost its broker; what it had said before may come a little late."""
    members = make_members()
    members.hear(Beacon(node="other"), 1.2 + AFTERWARDS / 2)
    assert members.has_died(1.2, 1.5) is None
    members.hear(Beacon(node="other"), 1.2 + EVERY)
    assert members.has_died(1.2, 1.8) is False


def test_a_node_that_leaves_has_not_died():
    """It has said so, and is silent then; also where it has not given everything back."""
    members = make_members()
    members.hear(Beacon(node="other", is_leaving=True), 1.1)
    members.forget("other")
    assert members.has_died(1.2, 1.3) is False
    assert members.has_died(1.2, 30.0) is False


def test_what_others_said_before_a_connection_was_lost_says_nothing():
    """They may have lost theirs, too, as when a broker starts anew."""
    members = make_members()
    members.begin(30.0)
    assert members.has_died(30.1, 30.1) is False


def test_who_was_silent_as_the_broker_was_has_not_died():
    """Nobody was heard then; that was found out before the connection was known to be lost."""
    members = make_members()
    assert members.has_died(1.2, 1.0 + GONE) is True
    members.begin(1.0 + GONE + 1)
    members.hear(Beacon(node="other"), 1.0 + GONE + 2)
    assert members.has_died(1.0 + GONE + 1.1, 1.0 + GONE + 2) is False


def test_a_new_node_finds_out_that_another_one_has_died():
    """It has never heard of it, and has its partitions, which were not given back."""
    members = Members()
    members.begin(0.0)
    assert members.has_died(0.1, 1.0) is None
    members.forget("other")
    assert members.has_died(0.1, 1.5) is None
    assert members.has_died(0.1, GONE) is True
    lonely = Members()
    lonely.begin(0.0)
    assert lonely.has_died(0.1, NEW) is False
