"""State machine of a node's partitions, without I/O. `cluster_node.py` executes its commands.

    UNOWNED ─acquire─► ACQUIRING ─acquired─► OWNED ─misplaced, leave─► DRAINING ─turns ended, returned─► UNOWNED
                       │ not acquired        │ lost                    │ lost
                       ▼                     ▼                         ▼
                    UNOWNED               UNOWNED (its turns are evicted; it is acquired again only after they ended)

A partition is recovered once per epoch. It is not acquired again while turns of an earlier epoch still run at this node.
"""

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import attrs

from actgent.journal.postgres.node_table import PartitionOwner

MOVING_DIVISOR = 8
"""Divisor of the partitions that a node moves to other nodes at the same time: 1/8, but at least one partition."""
MISPLACED_SECONDS = 1.0
"""Seconds for which a partition has to be assigned to another node before its owner starts to drain it."""
MISPLACED_BUSY_SECONDS = 60.0
"""As `MISPLACED_SECONDS`, while turns of the partition run. A turn that does not end in time repeats its model call
at the next owner.
"""
CommandKind = Literal["acquire", "recover", "evict", "drain"]


class PartitionState(enum.Enum):
    """State of a partition at this node."""

    UNOWNED = "unowned"
    """The node does not own the partition."""
    ACQUIRING = "acquiring"
    """The node is acquiring the partition: it has requested a new epoch from the database."""
    OWNED = "owned"
    """The node owns the partition. It serves requests once the partition is recovered."""
    DRAINING = "draining"
    """The node is draining the partition: running turns may finish, then it is given back."""


@attrs.frozen
class PartitionCommand:
    """A command for one partition, to be executed by the node."""

    verb: CommandKind
    partition: int
    epoch: int = 0
    """Ownership epoch to which the command applies; for `acquire`, the last epoch that was read."""


@attrs.define
class _Partition:
    """State of one partition at this node, and the epochs that it refers to."""

    state: PartitionState = PartitionState.UNOWNED
    epoch: int = 0
    """Epoch in which this node last acquired the partition; 0 if it never did."""
    is_recovered: bool = False
    """True once the deaths of the previous owner are counted. Then requests are served."""
    lost_epoch: int = 0
    """Ownership epoch that this node has lost and whose turns it is still stopping; 0 if there is none."""
    misplaced_since: float | None = None
    """Monotonic time in seconds since which the partition is assigned to another node; None if it is not."""


class Ownership:
    """The partitions of one node. `compare_owners` and the event methods return the commands to execute, in order."""

    def __init__(self, node: str, count: int) -> None:
        self.node = node
        self.is_leaving = False
        self._partitions = [_Partition() for _ in range(count)]

    def state(self, partition: int) -> PartitionState:
        """Return the state that the partition with this number has on this node."""
        return self._partitions[partition].state

    def serving(self) -> list[int]:
        """Return the numbers of the partitions that this node serves. It owns these partitions and has recovered them."""
        return [
            number
            for number, known in enumerate(self._partitions)
            if known.state is PartitionState.OWNED and known.is_recovered
        ]

    def owns(self, partition: int, epoch: int) -> bool:
        """Return True if the node still owns the partition in this epoch."""
        known = self._partitions[partition]
        return known.epoch == epoch and known.state in (PartitionState.OWNED, PartitionState.DRAINING)

    @property
    def has_left(self) -> bool:
        """Return True if this node owns no partition and is acquiring none."""
        return all(each.state is PartitionState.UNOWNED for each in self._partitions)

    # --- events of the database --------------------------------------------------------------

    def compare_owners(
        self,
        assigned: Sequence[str],
        owners: Mapping[int, PartitionOwner],
        live: Collection[str],
        now: float,
        list_busy: Callable[[], Collection[int]] = tuple,
    ) -> list[PartitionCommand]:
        """Compare the assigned owners of the partitions with the current owners.

        Return commands to acquire and drain partitions.

        Args:
            assigned: Name of the node to which each partition is assigned, by partition number; empty without nodes.
            owners: Current owners in the database.
            live: Names of all live nodes, including those that leave.
            now: Monotonic time in seconds.
            list_busy: Returns the partitions with running turns. Called only if a partition is assigned to another
                node.
        """
        todo: list[PartitionCommand] = []
        going: list[int] = []
        busy: Collection[int] | None = None
        for number, known in enumerate(self._partitions):
            is_meant = bool(assigned) and assigned[number] == self.node and not self.is_leaving
            if known.state is PartitionState.UNOWNED and is_meant and not known.lost_epoch:
                owner = owners.get(number)
                if (
                    owner is None
                    or owner.is_given_back
                    or owner.owner in ("", self.node)
                    or owner.owner not in live
                ):
                    known.state = PartitionState.ACQUIRING
                    todo.append(PartitionCommand("acquire", number, 0 if owner is None else owner.epoch))
            elif known.state is PartitionState.OWNED and known.is_recovered:
                if is_meant or not (assigned or self.is_leaving):
                    known.misplaced_since = None
                    continue
                known.misplaced_since = now if known.misplaced_since is None else known.misplaced_since
                seconds = now - known.misplaced_since
                if seconds >= MISPLACED_SECONDS and busy is None:
                    busy = list_busy()
                if self.is_leaving or seconds >= (
                    MISPLACED_BUSY_SECONDS if number in (busy or ()) else MISPLACED_SECONDS
                ):
                    going.append(number)
        return [*todo, *map(self._start_drain, going[: self._drain_capacity()])]

    def _drain_capacity(self) -> int:
        """Return the number of further partitions that this node may start to drain (release) now."""
        states = [each.state for each in self._partitions]
        if self.is_leaving:
            return len(states)
        leaving = states.count(PartitionState.DRAINING)
        return max(0, max(1, (states.count(PartitionState.OWNED) + leaving) // MOVING_DIVISOR) - leaving)

    def note_acquired(self, partition: int, epoch: int) -> list[PartitionCommand]:
        """Record that this node acquired a partition in this epoch, and return the command to recover it.

        A partition that is no longer being acquired is ignored.
        """
        known = self._partitions[partition]
        if known.state is not PartitionState.ACQUIRING:
            return []
        known.state, known.epoch, known.is_recovered = PartitionState.OWNED, epoch, False
        known.misplaced_since = None
        return [PartitionCommand("recover", partition, epoch)]

    def note_not_acquired(self, partition: int) -> None:
        """Record that this node failed to acquire a partition: another node was first, or the database did not answer."""
        known = self._partitions[partition]
        if known.state is PartitionState.ACQUIRING:
            known.state = PartitionState.UNOWNED

    def note_lost(self, partition: int, epoch: int) -> list[PartitionCommand]:
        """Record that this node lost a partition to another node.

        Return the command to evict the sessions of the partition. Return no command if this node did not own the
        partition in this epoch.
        """
        if not self.owns(partition, epoch):
            return []
        known = self._partitions[partition]
        known.state, known.lost_epoch = PartitionState.UNOWNED, epoch
        return [PartitionCommand("evict", partition, epoch)]

    def note_returned(self, partition: int, epoch: int) -> None:
        """Record that the database lists a drained partition as free. Ignore the call if `epoch` is not the current epoch."""
        known = self._partitions[partition]
        if known.state is PartitionState.DRAINING and epoch == known.epoch:
            known.state = PartitionState.UNOWNED

    # --- events of the runtime ---------------------------------------------------------------

    def note_recovered(self, partition: int, epoch: int) -> list[PartitionCommand]:
        """Record that this node has recovered a partition, and serves its sessions from now on.

        Recovering counts the deaths of processes and delivers pending messages. Return the command to drain the
        partition if this node is leaving the pool.
        """
        known = self._partitions[partition]
        if not self.owns(partition, epoch) or known.state is not PartitionState.OWNED:
            return []
        known.is_recovered = True
        return [self._start_drain(partition)] if self.is_leaving else []

    def note_turns_ended(self, partition: int, epoch: int) -> bool:
        """Record that no turn of a partition and epoch runs on this node any more, after an eviction or a drain.

        Return True if the partition is drained now, so that the caller must release it in the database.
        """
        known = self._partitions[partition]
        if epoch == known.lost_epoch:
            known.lost_epoch = 0
            return False
        return known.state is PartitionState.DRAINING and epoch == known.epoch

    # --- commands of the operator ------------------------------------------------------------

    def drain_all(self) -> list[PartitionCommand]:
        """Start to drain (finish and release) all recovered partitions. Return the commands that the node must execute.

        The other partitions are drained after their recovery.
        """
        self.is_leaving = True
        return [self._start_drain(each) for each in self.serving()]

    def _start_drain(self, partition: int) -> PartitionCommand:
        """Start to drain a partition. Return the command for it."""
        known = self._partitions[partition]
        known.state, known.misplaced_since = PartitionState.DRAINING, None
        return PartitionCommand("drain", partition, known.epoch)
