"""Assignment of partitions to nodes: all nodes compute the same assignment from the same list of nodes."""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence


def fit_nodes(agents: Mapping[str, Collection[str]]) -> list[str]:
    """Return the names of the nodes that may own partitions, sorted.

    A node may not own partitions if another node hosts all of its agents and more. So during a rolling upgrade that adds or
    removes an agent, partitions stay at the nodes that host all agents.

    Args:
        agents: Names of the agents that each live node hosts, by node name.
    """
    sets = {name: frozenset(hosted) for name, hosted in agents.items()}
    return sorted(name for name, ours in sets.items() if not any(ours < other for other in sets.values()))


def assign_partitions(count: int, nodes: Collection[str]) -> Sequence[str]:
    """Return the name of the owner of each partition, by partition number; empty if there are no nodes.

    Each partition prefers nodes in an order computed from its number (rendezvous hashing), so few partitions move when a node
    joins or leaves. No node owns more than `count / nodes` partitions, rounded up.
    """
    known = sorted(set(nodes))
    share = -(-count // max(1, len(known)))
    owned = Counter[str]()
    owners = []
    for partition in range(count if known else 0):
        order = sorted(known, key=lambda node: _weight(node, partition))
        owner = next(each for each in order if owned[each] < share)
        owned[owner] += 1
        owners.append(owner)
    return owners


def _weight(node: str, partition: int) -> bytes:
    return hashlib.blake2b(f"{partition}/{node}".encode(), digest_size=8).digest()
