"""Partitions, the units that processes of a cluster own, and the mapping of sessions to them.

All processes of a cluster must compute the same mapping, also in later releases.
"""

import hashlib
from collections.abc import Iterable
from functools import lru_cache

import attrs

from actgent.errors import ConfigurationError, Fenced

SLOTS = 4096
"""Number of slots. The database stores the slot of each session, so this number never changes."""


@lru_cache(maxsize=10_000)
def slot_of(session_id: str) -> int:
    """Return the slot of a session, a hash value of its id. The slot determines the partition of the session.

    The slot depends on the root id (the text before the first `/`), so all sessions of a tree share a slot.
    """
    root = session_id.partition("/")[0]
    return (
        int.from_bytes(hashlib.blake2b(root.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        % SLOTS
    )


def partition_of_slot(slot: int, partitions: int) -> int:
    """Return the partition of a slot. Partitions are equal ranges of slots, so doubling their number halves each."""
    return slot * partitions // SLOTS


def slots_of(partitions: Iterable[int], count: int) -> list[int]:
    """Return all slots of these partitions. `count` is the total number of partitions."""
    width = SLOTS // count
    return [slot for each in partitions for slot in range(each * width, (each + 1) * width)]


def check_partitions(count: int) -> int:
    """Validate a number of partitions and return it.

    Raises:
        ConfigurationError: The number is not a power of two from 1 to the number of slots.
    """
    if count not in {1 << power for power in range(SLOTS.bit_length())}:
        raise ConfigurationError(
            f"the number of partitions must be a power of two up to {SLOTS}, not {count}"
        )
    return count


class PartitionsLost(Fenced):
    """Raised if this process does not own these partitions any more. The batch was not written."""

    def __init__(self, partitions: Iterable[int] = ()) -> None:
        self.partitions = tuple(sorted(partitions))
        super().__init__(self.partitions)

    def __str__(self) -> str:
        names = ", ".join(map(str, self.partitions))
        return (
            f"this process does not own the partitions {names} of the journal: the records were not written"
        )


@attrs.frozen(kw_only=True)
class AcquiredPartition:
    """A partition that this process owns now."""

    partition: int
    """Number of the acquired partition."""
    epoch: int
    """New ownership epoch, which all writes to the partition must name."""
    before: str = ""
    """Name of the previous owner; empty if there was none."""
    was_clean: bool = True
    """True if the previous owner released the partition without unfinished work."""
    is_kept: bool = False
    """True if this process owned the partition before without interruption, so that running turns may continue."""
