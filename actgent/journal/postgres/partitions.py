"""Which partition a session is of: what all processes of a cluster have to agree on, for ever."""

import hashlib
from collections.abc import Iterable
from functools import lru_cache

import attrs

from actgent.errors import ConfigurationError, Fenced

SLOTS = 4096
"""How many slots there are. A session's slot stands in the database, so that this number never changes."""


@lru_cache(maxsize=10_000)
def slot_of(session_id: str) -> int:
    """The slot of a session: that of its tree, whose root's id is the text before the first `/` of its own."""
    root = session_id.partition("/")[0]
    return (
        int.from_bytes(hashlib.blake2b(root.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        % SLOTS
    )


def partition_of_slot(slot: int, partitions: int) -> int:
    """The partition of a slot: equal runs of slots that follow each other, so that doubling the partitions halves each."""
    return slot * partitions // SLOTS


def slots_of(partitions: Iterable[int], count: int) -> list[int]:
    """The slots of some of so many partitions."""
    width = SLOTS // count
    return [slot for each in partitions for slot in range(each * width, (each + 1) * width)]


def check_partitions(count: int) -> int:
    """The number of partitions, if there can be so many.

    Raises:
        ConfigurationError: it is no power of two, or more than there are slots.
    """
    if count not in {1 << power for power in range(SLOTS.bit_length())}:
        raise ConfigurationError(f"there are 1, 2, 4, 8 ... or {SLOTS} partitions, not {count}")
    return count


class PartitionsLost(Fenced):
    """Other processes own these partitions by now, or nobody does; what was about to be written to them is not."""

    def __init__(self, partitions: Iterable[int] = ()) -> None:
        self.partitions = tuple(sorted(partitions))
        super().__init__(self.partitions)

    def __str__(self) -> str:
        names = ", ".join(map(str, self.partitions))
        return f"this process does not own the partitions {names} of the journal: nothing was written to them"


@attrs.frozen(kw_only=True)
class Taken:
    """A partition that this process owns from now on."""

    partition: int
    """Its number."""
    epoch: int
    """What its writes name."""
    before: str = ""
    """Who had it; empty: nobody had."""
    was_clean: bool = True
    """True: that one gave it back, and left nothing in the middle because of its end."""
    is_kept: bool = False
    """True: this process had it, and nobody had it in between, so that all that runs may go on."""
