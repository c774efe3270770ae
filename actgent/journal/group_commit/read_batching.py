"""Batching of concurrent reads: the first waiting task reads for all tasks that wait.

A call into the storage's thread costs more than reading a short session, and many sessions may wake at one moment.
The first waiting task reads for its group. Then it wakes the group, and the next waiting task, which reads next.
"""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, TypeVar

import attrs
import outcome
import trio

from actgent.errors import JournalDamaged
from actgent.journal.journal_interface import Snapshot
from actgent.journal.record_types import Record
from actgent.journal.session_list_queries import SessionKey

from .row_format import Head

GROUP_READS = 64
"""Maximum number of requests that one read answers."""
GROUP_RECORDS = 1000
"""Number of records after which a read of several sessions stops, because writers wait for the read."""


@attrs.frozen
class Stored:
    """Stored data of a session: its summary, records and snapshot."""

    head: Head | None = None
    """Summary of the session; None if the session does not exist."""
    records: tuple[Record, ...] = ()
    """Records after the snapshot; all records if there is no snapshot."""
    snapshot: Snapshot | None = None


Found = outcome.Outcome[Stored]
"""Read session, or the error of reading it."""
ReadSome = Callable[[Sequence[SessionKey]], Awaitable[Sequence[Found]]]
"""Function that reads sessions in the given order: at least the first, then more until it has read `GROUP_RECORDS`
records.
"""
Request = TypeVar("Request", bound=Hashable)
T = TypeVar("T")
ReadTogether = Callable[[Sequence[Request]], Awaitable[Sequence[outcome.Outcome[T]]]]
"""Function that answers requests in the given order: at least the first, then more up to its own limit."""


@attrs.frozen
class PageRequest:
    """Request for a page of a session's records."""

    key: SessionKey
    after: int
    """Number of the record before the first record to return."""
    limit: int
    """Maximum number of records to return."""


def read_each(keys: Sequence[SessionKey], read: Callable[[SessionKey], Stored]) -> list[Found]:
    """Read sessions one by one, until `GROUP_RECORDS` records were read in total.

    Fewer results than keys may be returned. An implementation of `ReadSome`.
    """
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
    """A read request, and the task that waits for its answer."""

    request: Any
    by: ReadTogether[Any, Any]
    found: outcome.Outcome[Any] | None = None
    woken: trio.Event = attrs.field(factory=trio.Event)
    """Set when another task has read the answer, or when this task has to read next."""


class ReadBatcher:
    """Queue of read requests to one storage.

    Requests of one kind are answered together while the storage is locked.
    """

    def __init__(self, storage: trio.Semaphore) -> None:
        self._storage = storage
        self._waiting: list[_Reading] = []

    async def read(self, request: Request, by: ReadTogether[Request, T]) -> T:
        """Return the answer to a read request.

        All waiting requests with the same function `by` are read together by one call of `by`.

        Raises:
            JournalDamaged, WireError: The answer cannot be read.
            JournalFailed: The storage failed for the task that read.
        """
        reading = _Reading(request, by)
        self._waiting.append(reading)
        try:
            if self._waiting[0] is not reading:
                await reading.woken.wait()
            if reading.found is None:
                async with self._storage:
                    await self._read_group()
        finally:
            if reading.found is None:  # this task failed or was cancelled
                self._waiting.remove(reading)
            if self._waiting:
                self._waiting[0].woken.set()
        assert reading.found is not None  # noqa: S101 - set by this task or by the one that woke it
        answer: T = reading.found.unwrap()
        return answer

    async def _read_group(self) -> None:
        """Read the answers to the first waiting request, and to other requests with the same function `by`.

        At most `GROUP_READS` requests are answered.
        """
        by = self._waiting[0].by
        group = [reading for reading in self._waiting if reading.by == by][:GROUP_READS]
        for reading, found in zip(group, await self._read_together(group), strict=False):
            reading.found = found
            reading.woken.set()
        self._waiting = [reading for reading in self._waiting if reading.found is None]

    async def _read_together(self, group: Sequence[_Reading]) -> Sequence[outcome.Outcome[Any]]:
        try:
            return await group[0].by([reading.request for reading in group])
        except JournalDamaged:  # of which one is not known: each tries for itself
            if len(group) == 1:
                raise
            return await group[0].by([group[0].request])
