"""Reading sessions together: whoever asks first reads for all who ask meanwhile.

A hop into the storage's thread costs more than a short session, and a crowd of sessions that wake at one moment asks
for all of them at once. The first that waits is the one that reads; it then wakes the others of its group, and the
first behind them, who reads next.
"""

from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile

import attrs
import outcome
import trio

from actgent.errors import JournalDamaged
from actgent.journal.base import Snapshot
from actgent.journal.listing import SessionKey
from actgent.journal.records import Record

from .steps import Head

GROUP_READS = 64
"""Sessions that are read at once, at most."""
GROUP_RECORDS = 1000
"""Records after which no further session is read with the others: those that write have to wait as long."""


@attrs.frozen
class Stored:
    """A session as it stands in the storage; without a head there is none."""

    head: Head | None = None
    records: tuple[Record, ...] = ()
    """All of them, or those behind the snapshot."""
    snapshot: Snapshot | None = None


Found = outcome.Outcome[Stored]
"""A session, or why it cannot be read."""
ReadSome = Callable[[Sequence[SessionKey]], Awaitable[Sequence[Found]]]
"""Reads as many of these sessions as come to `GROUP_RECORDS`, in their order and at least the first."""


def read_each(keys: Sequence[SessionKey], read: Callable[[SessionKey], Stored]) -> list[Found]:
    """A `ReadSome` of a storage that reads one after the other."""
    found: list[Found] = []
    left = GROUP_RECORDS
    for key in keys:
        found.append(outcome.capture(read, key))
        left -= len(found[-1].value.records) if isinstance(found[-1], outcome.Value) else 0
        if left <= 0:
            break
    return found


@attrs.define(eq=False)
class _Reading:
    """Someone who waits for a session."""

    key: SessionKey
    by: ReadSome
    found: Found | None = None
    woken: trio.Event = attrs.field(factory=trio.Event)
    """It was found by another, or is the first by now."""


class Readings:
    """Those who wait for sessions; each is read while the storage is locked."""

    def __init__(self, storage: trio.Semaphore, read_some: ReadSome) -> None:
        self._storage = storage
        self._read_some = read_some
        self._waiting: list[_Reading] = []

    async def read(self, key: SessionKey, by: ReadSome | None = None) -> Stored:
        """One session, read with others that are waited for and are read in the same way.

        Raises:
            JournalDamaged, WireError: it cannot be read.
            JournalFailed: the storage failed for whoever read.
        """
        reading = _Reading(key, by or self._read_some)
        self._waiting.append(reading)
        try:
            if self._waiting[0] is not reading:
                await reading.woken.wait()
            if reading.found is None:
                async with self._storage:
                    await self._read_group()
        finally:
            if reading.found is None:  # it failed, or was cancelled
                self._waiting.remove(reading)
            if self._waiting:
                self._waiting[0].woken.set()
        assert reading.found is not None  # noqa: S101 - it read, or was woken because another did
        return reading.found.unwrap()

    async def _read_group(self) -> None:
        """Read for the first ones that wait."""
        by = self._waiting[0].by
        group = list(takewhile(lambda reading: reading.by == by, self._waiting[:GROUP_READS]))
        for reading, found in zip(group, await self._read_together(group), strict=False):
            reading.found = found
            reading.woken.set()
        self._waiting = [reading for reading in self._waiting if reading.found is None]

    async def _read_together(self, group: Sequence[_Reading]) -> Sequence[Found]:
        try:
            return await group[0].by([reading.key for reading in group])
        except JournalDamaged:  # of which one is not known: each tries for itself
            if len(group) == 1:
                raise
            return await group[0].by([group[0].key])
