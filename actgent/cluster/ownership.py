"""What a node does with each partition: decided here, without I/O; whoever owns this carries it out.

RabbitMQ hands a partition's token to one consumer at a time, and says so by the first delivery. That is only a trigger: whose
the partition is, the epoch in the database says. What is unfinished there has to be taken up once in each epoch, and never
while turns of an epoch before still run here.
"""

import enum
from collections.abc import Sequence
from typing import Literal

import attrs

from .placement import Placement

MOVING = 8
"""A node lets go of one in so many of its partitions at a time, and of one at least."""
LOOKS = 2
"""Looks in a row at which another node is to have a partition, until its owner lets it go."""
Verb = Literal["subscribe", "take", "recover", "serve", "evict", "drain", "give_back", "close_channel"]


class PartitionState(enum.Enum):
    """Where a partition is, for this node."""

    AWAY = "away"
    """It is not waited for."""
    STANDBY = "standby"
    """It is waited for at the broker."""
    TAKING = "taking"
    """The broker has handed it over; the database is asked for the epoch, as soon as turns that were cut have ended."""
    OWNED = "owned"
    """Its sessions live here."""
    LEAVING = "leaving"
    """Its turns may end, and it is given back; then another node gets it."""
    DOUBTFUL = "doubtful"
    """Its sessions live here, and the broker is lost: who else may have it is not known."""


@attrs.frozen
class Do:
    """Something to be done about a partition."""

    verb: Verb
    partition: int
    epoch: int = 0
    """For what is done to sessions: in which they live."""
    was_clean: bool = True
    """For `recover`, and the first `serve` in an epoch: False: its last owner died with it, or was cut off."""


@attrs.define
class _Partition:
    state: PartitionState = PartitionState.AWAY
    has_sessions: bool = False
    """True: sessions of it live here, in the epoch that was taken last."""
    cut_epoch: int = 0
    """Turns of this epoch were cut, and have not ended yet; 0: there are none."""
    epoch: int = 0
    """That was taken last."""
    lost_epoch: int = 0
    """The last one that is known to be another node's past."""
    was_clean: bool | None = None
    """Of the epoch that was taken last; None: what is unfinished in it was taken up, or there was none."""
    is_counted: bool = False
    """True: what was unfinished is counted, so that requests may be dealt with."""
    left_clean: bool = True
    """Until requests are dealt with for the first time in the epoch: whether its last owner left it clean."""
    misplaced: int = 0
    """Looks in a row at which another one is to have it."""


class Ownership:
    """The partitions of one node: each call says what happened, and returns what is to be done, in this order."""

    def __init__(self, node: str, count: int) -> None:
        self.node = node
        self._is_connected = True
        """True: there is a broker to wait at."""
        self._partitions = [_Partition() for _ in range(count)]

    def state(self, partition: int) -> PartitionState:
        """Where a partition is."""
        return self._partitions[partition].state

    def serves(self, partition: int) -> bool:
        """True if requests for the partition are dealt with here."""
        known = self._partitions[partition]
        return known.state is PartitionState.OWNED and known.has_sessions

    def has_sessions(self, partition: int, epoch: int) -> bool:
        """True if sessions of the partition live here in this epoch, or are to."""
        known = self._partitions[partition]
        return known.has_sessions and known.epoch == epoch

    # --- what the others say ---------------------------------------------------------------

    def look(self, places: Sequence[Placement]) -> list[Do]:
        """Who is to have what, as far as this node knows; called again and again."""
        todo = [each for number, place in enumerate(places) for each in self._wait_for(number, place)]
        return [*todo, *self._move(places)]

    def _wait_for(self, number: int, place: Placement) -> list[Do]:
        known = self._partitions[number]
        is_meant = self.node in (place.owner, place.standby)
        if is_meant and known.state is PartitionState.AWAY and self._is_connected:
            known.state = PartitionState.STANDBY
            return [Do("subscribe", number)]
        if not is_meant and known.state is PartitionState.STANDBY:
            known.state = PartitionState.AWAY
            return [Do("close_channel", number)]
        return []

    def _move(self, places: Sequence[Placement]) -> list[Do]:
        """Let go of what another one is to have, some at a time."""
        going = []
        for number, place in enumerate(places):
            known = self._partitions[number]
            is_misplaced = self._may_be_clean(number) and place.owner != self.node
            known.misplaced = known.misplaced + 1 if is_misplaced else 0
            if known.misplaced >= LOOKS:
                going.append(number)
        held = [each.state for each in self._partitions]
        at_once = max(1, (held.count(PartitionState.OWNED) + held.count(PartitionState.LEAVING)) // MOVING)
        return [
            self._leave(number) for number in going[: max(0, at_once - held.count(PartitionState.LEAVING))]
        ]

    def leave_all(self) -> list[Do]:
        """The node is to end: let everything go."""
        todo = []
        for number, known in enumerate(self._partitions):
            if self._may_be_clean(number):
                todo.append(self._leave(number))
            elif known.state in (
                PartitionState.STANDBY,
                PartitionState.TAKING,
                PartitionState.OWNED,
            ):  # not clean, where it was not taken up, or nobody knows yet whose death it counts
                known.has_sessions = known.has_sessions and known.is_counted
                todo += self._give_up(number)
        return todo

    def _may_be_clean(self, number: int) -> bool:
        """True for one that is served, and whose next owner has no death to count before that one's own."""
        known = self._partitions[number]
        return self.serves(number) and (known.is_counted or known.left_clean)

    def _leave(self, number: int) -> Do:
        known = self._partitions[number]
        known.state, known.misplaced = PartitionState.LEAVING, 0
        return Do("drain", number, known.epoch)

    def _give_up(self, number: int) -> list[Do]:
        self._partitions[number].state = PartitionState.AWAY
        return [Do("close_channel", number)]

    # --- what the broker says ----------------------------------------------------------------

    def delivered(self, partition: int) -> list[Do]:
        """The first message of a channel came: the broker has handed the partition over."""
        known = self._partitions[partition]
        if known.state is not PartitionState.STANDBY:
            return []
        known.state = PartitionState.TAKING
        return [] if known.cut_epoch else [Do("take", partition)]

    def connection_lost(self) -> list[Do]:
        """All channels are gone, without a word. Turns go on: they may still be ours."""
        self._is_connected = False
        for known in self._partitions:
            if known.state in (PartitionState.STANDBY, PartitionState.TAKING):
                known.state = PartitionState.DOUBTFUL if known.has_sessions else PartitionState.AWAY
            elif known.state is PartitionState.OWNED:
                known.state = PartitionState.DOUBTFUL
        return []

    def connected(self) -> list[Do]:
        """There is a connection again: what may still be ours is waited for first."""
        self._is_connected = True
        todo = []
        for number, known in enumerate(self._partitions):
            if known.state is PartitionState.DOUBTFUL:
                known.state = PartitionState.STANDBY
                todo.append(Do("subscribe", number))
        return todo

    # --- what the database says --------------------------------------------------------------

    def taken(self, partition: int, epoch: int, *, was_clean: bool) -> list[Do]:
        """The epoch is a new one of ours: what is unfinished is taken up, once turns of the one before have ended."""
        known = self._partitions[partition]
        todo = self._cut(partition)
        if epoch <= known.lost_epoch:  # somebody has told of its end before
            return [*todo, *self.not_taken(partition)]
        known.epoch, known.was_clean = epoch, was_clean
        if known.state is PartitionState.TAKING:
            known.state = PartitionState.OWNED
        return [*todo, *self._take_up(partition)]

    def kept(self, partition: int) -> list[Do]:
        """The epoch is still ours: nobody had it in between, and all that runs goes on; requests are dealt with behind what is counted."""
        known = self._partitions[partition]
        if known.state is PartitionState.TAKING:
            known.state = PartitionState.OWNED
        return [*self._take_up(partition), *self._serve(partition)]

    def counted(self, partition: int, epoch: int) -> list[Do]:
        """What was unfinished in an epoch is counted, however long that took: what may kill its process is known."""
        known = self._partitions[partition]
        if epoch != known.epoch or not known.has_sessions:
            return []
        known.is_counted = True
        return self._serve(partition)

    def not_taken(self, partition: int) -> list[Do]:
        """The database did not answer: another node is to try, or this one again."""
        return self._give_up(partition) if self.state(partition) is PartitionState.TAKING else []

    def fenced(self, partition: int, epoch: int) -> list[Do]:
        """Another node has ended this epoch of ours: nothing of the partition is ours, unless we have taken it again since."""
        known = self._partitions[partition]
        if epoch < known.epoch:
            return []
        if epoch > known.epoch:  # the word that it is ours comes behind
            known.lost_epoch = max(known.lost_epoch, epoch)
        known.was_clean = None
        todo = self._cut(partition)
        if known.state in (PartitionState.OWNED, PartitionState.LEAVING):
            return [*todo, *self._give_up(partition)]
        if known.state is PartitionState.DOUBTFUL:
            known.state = PartitionState.AWAY
        return todo

    # --- what the agents say -----------------------------------------------------------------

    def turns_ended(self, partition: int, epoch: int) -> list[Do]:
        """Nothing runs any more in a partition that was drained, or whose sessions were evicted, of this epoch."""
        known = self._partitions[partition]
        if epoch == known.cut_epoch:
            known.cut_epoch = 0
            return (
                [Do("take", partition)] if known.state is PartitionState.TAKING else self._take_up(partition)
            )
        if known.state is not PartitionState.LEAVING or epoch != known.epoch:
            return []
        known.has_sessions = False
        return [Do("give_back", partition, epoch)]

    def given_back(self, partition: int, epoch: int) -> list[Do]:
        """The database has a partition that was drained as nobody's: now it goes to the next node, and may be waited for again."""
        known = self._partitions[partition]
        is_leaving = known.state is PartitionState.LEAVING and epoch == known.epoch
        return self._give_up(partition) if is_leaving else []

    def _cut(self, partition: int) -> list[Do]:
        known = self._partitions[partition]
        if not known.has_sessions:
            return []
        known.has_sessions, known.cut_epoch, known.was_clean = False, known.epoch, None
        return [Do("evict", partition, known.epoch)]

    def _take_up(self, partition: int) -> list[Do]:
        """Take up what is unfinished, where that was not done in this epoch and nothing else runs."""
        known = self._partitions[partition]
        if known.state is not PartitionState.OWNED or known.cut_epoch or known.was_clean is None:
            return []
        was_clean, known.was_clean, known.has_sessions = known.was_clean, None, True
        known.is_counted, known.left_clean = False, was_clean
        return [Do("recover", partition, known.epoch, was_clean)]

    def _serve(self, partition: int) -> list[Do]:
        known = self._partitions[partition]
        if not (self.serves(partition) and known.is_counted):
            return []
        left_clean, known.left_clean = known.left_clean, True
        return [Do("serve", partition, known.epoch, left_clean)]
