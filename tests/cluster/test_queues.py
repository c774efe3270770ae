"""The forms of queues: what all nodes and clients of a cluster agree on."""

import pytest

from actgent.cluster import queues
from actgent.errors import ConfigurationError


def test_a_partition_is_a_classic_queue_with_priorities_before_version_4():
    """And a quorum queue from then on, which knows no such argument."""
    old = queues.partition_queue("default", 2, 63, (3, 13, 7))
    new = queues.partition_queue("default", 2, 63, (4, 0))
    assert old.name == new.name == "actgent.default.g2.63"
    assert old.durable
    assert new.durable
    assert old.arguments == {
        "x-single-active-consumer": True,
        "x-queue-type": "classic",
        "x-max-priority": 4,
    }
    assert new.arguments == {"x-single-active-consumer": True, "x-queue-type": "quorum"}


def test_clients_have_queues_of_their_own():
    """Each connection has another one, which ends with it; the client's name stands in it."""
    named, unnamed = queues.client_queue("gateway-1"), queues.client_queue()
    assert named.name.startswith("actgent.client.gateway-1.")
    assert named.name != queues.client_queue("gateway-1").name
    assert [(each.exclusive, each.auto_delete, each.durable) for each in (named, unnamed)] == [
        (True, True, False)
    ] * 2
    assert unnamed.name == ""


def test_other_names():
    """As the rights of a broker's users are written for them."""
    assert queues.beacon_exchange("default") == "actgent.default.nodes"
    assert queues.owner_exchange("default") == "actgent.default.owners"
    assert queues.shared_queue("default").name == "actgent.default.any"
    assert queues.dead_queue().name == "actgent.dead"


@pytest.mark.parametrize("name", ["", "a.b", "a b", "#", "ä", "a" * 65, "a\n"])
def test_names_that_mean_something_to_a_broker_are_refused(name):
    """A dot would give a client the queue of another one."""
    for call in (queues.partition_queue, queues.client_queue):
        if name or call is queues.partition_queue:
            with pytest.raises(ConfigurationError, match="is no name of a"):
                call(name, *[1, 1, (3,)] if call is queues.partition_queue else [])
