"""What a node does with each partition: a state machine without I/O; `node.py` carries it out.

    AWAY ─take─► TAKING ─taken─► OWNED ─misplaced, leave─► LEAVING ─turns_ended, given_back─► AWAY
                    │ not_taken     │ lost                    │ lost
                    ▼               ▼                         ▼
                  AWAY            AWAY (its turns are evicted; it is not taken again before they ended)

Sessions of a partition are recovered once in each epoch, and never while turns of an epoch before still run here.
"""

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import attrs

from actgent.journal.postgres import PartitionOwner

MOVING = 8
"""A node gives up one in so many of its partitions at a time to other nodes, and at least one."""
MISPLACED = 1.0
"""Seconds for which another node is to own a partition before its owner gives it up."""
Verb = Literal["take", "recover", "serve", "evict", "drain", "give_back"]


class PartitionState(enum.Enum):
    """The state of a partition, for this node."""

    AWAY = "away"
    """The node does not own it."""
    TAKING = "taking"
    """The database is asked for a new epoch."""
    OWNED = "owned"
    """The node owns it; requests are served once its sessions are recovered."""
    LEAVING = "leaving"
    """Its turns may end; then another node gets it."""


@attrs.frozen
class Do:
    """Something to be done about a partition."""

    verb: Verb
    partition: int
    epoch: int = 0
    """Epoch in which the sessions live; for `take`, the last epoch that was seen."""


@attrs.define
class _Partition:
    state: PartitionState = PartitionState.AWAY
    epoch: int = 0
    """Epoch that this node took last."""
    is_recovered: bool = False
    """True: the deaths of this epoch are counted, so its requests are served."""
    cut_epoch: int = 0
    """Epoch of which evicted turns still run; 0: none do."""
    misplaced_since: float | None = None


class Ownership:
    """The partitions of one node. Each call reports an event, and returns what is to be done, in this order."""

    def __init__(self, node: str, count: int) -> None:
        self.node = node
        self.is_leaving = False
        self._partitions = [_Partition() for _ in range(count)]

    def state(self, partition: int) -> PartitionState:
        """Return the state of a partition."""
        return self._partitions[partition].state

    def serving(self) -> list[int]:
        """Return the partitions whose requests this node answers."""
        return [
            number
            for number, known in enumerate(self._partitions)
            if known.state is PartitionState.OWNED and known.is_recovered
        ]

    def owns(self, partition: int, epoch: int) -> bool:
        """Return True if the node still owns the partition in this epoch."""
        known = self._partitions[partition]
        return known.epoch == epoch and known.state in (PartitionState.OWNED, PartitionState.LEAVING)

    @property
    def has_left(self) -> bool:
        """True if this node has nothing more to hand over."""
        return all(each.state is PartitionState.AWAY for each in self._partitions)

    # --- what the database says --------------------------------------------------------------

    def look(
        self,
        places: Sequence[str],
        owners: Mapping[int, PartitionOwner],
        live: Collection[str],
        now: float,
    ) -> list[Do]:
        """Compare who is to own each partition with who owns it.

        Args:
            places: name of the node that is to own each partition; empty where no node is to own any.
            owners: owners in the database.
            live: names of all nodes that are not dead, including those that leave.
            now: monotonic time in seconds.
        """
        todo: list[Do] = []
        going: list[int] = []
        for number, known in enumerate(self._partitions):
            is_meant = bool(places) and places[number] == self.node and not self.is_leaving
            if known.state is PartitionState.AWAY and is_meant and not known.cut_epoch:
                owner = owners.get(number)
                if (
                    owner is None
                    or owner.is_given_back
                    or owner.owner in ("", self.node)
                    or owner.owner not in live
                ):
                    known.state = PartitionState.TAKING
                    todo.append(Do("take", number, 0 if owner is None else owner.epoch))
            elif known.state is PartitionState.OWNED and known.is_recovered:
                if is_meant or not (places or self.is_leaving):
                    known.misplaced_since = None
                    continue
                known.misplaced_since = now if known.misplaced_since is None else known.misplaced_since
                if self.is_leaving or now - known.misplaced_since >= MISPLACED:
                    going.append(number)
        return [*todo, *map(self._leave, going[: self._room()])]

    def _room(self) -> int:
        """Return how many partitions may begin to leave now."""
        states = [each.state for each in self._partitions]
        if self.is_leaving:
            return len(states)
        leaving = states.count(PartitionState.LEAVING)
        return max(0, max(1, (states.count(PartitionState.OWNED) + leaving) // MOVING) - leaving)

    def taken(self, partition: int, epoch: int) -> list[Do]:
        """The database gave the partition to this node."""
        known = self._partitions[partition]
        if known.state is not PartitionState.TAKING:
            return []
        known.state, known.epoch, known.is_recovered = PartitionState.OWNED, epoch, False
        known.misplaced_since = None
        return [Do("recover", partition, epoch)]

    def not_taken(self, partition: int) -> list[Do]:
        """Another node was first, or the database did not answer."""
        known = self._partitions[partition]
        if known.state is PartitionState.TAKING:
            known.state = PartitionState.AWAY
        return []

    def lost(self, partition: int, epoch: int) -> list[Do]:
        """Another node ended this epoch of ours: nothing of it may go on here."""
        if not self.owns(partition, epoch):
            return []
        known = self._partitions[partition]
        known.state, known.cut_epoch = PartitionState.AWAY, epoch
        return [Do("evict", partition, epoch)]

    def given_back(self, partition: int, epoch: int) -> list[Do]:
        """The database has a drained partition as free, so another node can take it."""
        known = self._partitions[partition]
        if known.state is PartitionState.LEAVING and epoch == known.epoch:
            known.state = PartitionState.AWAY
        return []

    # --- what the agents say -----------------------------------------------------------------

    def recovered(self, partition: int, epoch: int) -> list[Do]:
        """Deaths of the epoch are counted, so that requests may be served."""
        known = self._partitions[partition]
        if not self.owns(partition, epoch) or known.state is not PartitionState.OWNED:
            return []
        known.is_recovered = True
        return [self._leave(partition)] if self.is_leaving else [Do("serve", partition, epoch)]

    def turns_ended(self, partition: int, epoch: int) -> list[Do]:
        """No turn of this epoch runs here any more: it was evicted, or drained."""
        known = self._partitions[partition]
        if epoch == known.cut_epoch:
            known.cut_epoch = 0
            return []
        is_drained = known.state is PartitionState.LEAVING and epoch == known.epoch
        return [Do("give_back", partition, epoch)] if is_drained else []

    # --- what the operator says --------------------------------------------------------------

    def leave_all(self) -> list[Do]:
        """Hand everything over: what is recovered at once, the rest as soon as it is."""
        self.is_leaving = True
        return [self._leave(each) for each in self.serving()]

    def _leave(self, partition: int) -> Do:
        known = self._partitions[partition]
        known.state, known.misplaced_since = PartitionState.LEAVING, None
        return Do("drain", partition, known.epoch)
