"""Which node has which partition: all nodes come to the same answer from the same list, and ask nobody."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import attrs


@attrs.frozen
class Placement:
    """Who is to have a partition."""

    owner: str
    standby: str
    """Who takes it when the owner is gone; empty where there is nobody else."""


def assign_partitions(count: int, nodes: Iterable[str]) -> Sequence[Placement]:
    """The places of so many partitions, by their numbers; none where there are no nodes.

    Each partition prefers nodes in an order of its own (rendezvous hashing), so that few move when a node comes or goes; no
    node has more than its share.
    """
    known = sorted(set(nodes))
    if not known:
        return ()
    share = -(-count // len(known))
    owned, backed = Counter[str](), Counter[str]()
    places = []
    for partition in range(count):
        order = sorted(known, key=lambda node: _weight(node, partition))
        owner = next(each for each in order if owned[each] < share)
        others = [each for each in order if each != owner]
        standby = min(others, key=lambda each: backed[each] >= share, default="")
        owned[owner] += 1
        backed[standby] += 1
        places.append(Placement(owner, standby))
    return places


def _weight(node: str, partition: int) -> bytes:
    return hashlib.blake2b(f"{partition}/{node}".encode(), digest_size=8).digest()
