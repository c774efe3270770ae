"""Publisher of a journal's feed: sends written batches to the readers in this process, in the order of the writes.

A batch is published once its transaction is known to be on the disk, with its final record numbers. A rolled back batch
is never published. A reader that opens the feed first and then reads the journal misses nothing, and recognizes
duplicates by their numbers. Without readers nothing is created.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import attrs

from actgent.errors import ActgentError, ConfigurationError
from actgent.journal.record_feed_readers import Backlog, Erased, FeedReader, WrittenBatch
from actgent.journal.record_types import (
    AgentMessageRecord,
    CallsStartedRecord,
    DeliveryRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    Record,
    StateChangeRecord,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import Message, Text

from .record_reference_resolver import refers, resolve
from .row_format import Page, Row, read_records, unseal

ReadBatch = Callable[[SessionKey, int, int], Awaitable[tuple[Record, ...]]]
"""Function that reads a number of records of a session after a record number."""


@attrs.define(eq=False)
class _Stored:
    """A stored row that waits for feed readers. The first reader that needs its records decodes it for all readers."""

    key: SessionKey
    row: Row
    original_records: Sequence[Record]
    identity: bytes
    read: ReadBatch
    size: int
    _records: tuple[Record, ...] | None = None

    async def decode(self, *, with_records: bool) -> WrittenBatch:
        """Decode the row to a batch for a feed reader. Without `with_records`, the batch has no records.

        If the records refer to records of earlier batches, read those from the journal first.
        """
        if with_records and not self._decode_records():  # the records refer to an earlier batch
            self._records = await self.read(self.key, self.row.first - 1, self.row.count)
        return self._make_feed_item(with_records=with_records)

    def decode_now(self, *, with_records: bool) -> WrittenBatch | None:
        """Decode the row to a batch without waiting. Return None if the records must be read from the journal."""
        if with_records and not self._decode_records():
            return None
        return self._make_feed_item(with_records=with_records)

    def _make_feed_item(self, *, with_records: bool) -> WrittenBatch:
        row = self.row
        return WrittenBatch(
            session_id=self.key.session_id,
            agent=self.key.agent,
            first=row.first,
            count=row.count,
            at=row.at,
            records=(self._records or ()) if with_records else (),
        )

    def _decode_records(self) -> bool:
        """Decode the records of the row, unless an earlier call has decoded them.

        Return False if the records refer to an earlier batch, which must be read from the journal.
        """
        if self._records is None:
            try:
                self._records = self._decode()
            except LookupError:
                return False
        return True

    def _decode(self) -> tuple[Record, ...]:
        if self.original_records and are_immutable(self.original_records):
            return tuple(self.original_records)
        records = self._with_original_values(read_records(unseal(self.row, self.identity)))
        return tuple(resolve(records)) if any(map(refers, records)) else records

    def _with_original_values(self, records: tuple[Record, ...]) -> tuple[Record, ...]:
        """Return decoded records in which each state change has whole values instead of differences to earlier values.

        The values come from `original_records`. All readers get the same objects, and must not change them.
        """
        if len(self.original_records) != len(records):
            return records
        return tuple(
            [
                attrs.evolve(record, changes={**record.changes, **original.changes}, patches={})
                if type(record) is StateChangeRecord
                and type(original) is StateChangeRecord
                and record.patches
                else record
                for record, original in zip(records, self.original_records, strict=True)
            ]
        )


def are_immutable(records: Iterable[Record]) -> bool:
    """Return True if the records contain only immutable values, so that readers can share them without decoding.

    Most turns contain only texts and numbers. The check runs for each batch that has a reader.
    """
    for record in records:
        if type(record) is AgentMessageRecord:
            is_fixed = not (record.results or record.called) and record.last_call is None
            is_fixed = is_fixed and _is_text(record.message)
        elif type(record) is MessageAcceptedRecord:
            is_fixed = not (record.limits or record.baggage) and _is_text(record.message)
        elif type(record) is MessageAppendedRecord:
            is_fixed = not record.limits
        else:
            is_fixed = type(record) in _FIXED
        if not is_fixed:
            return False
    return True


def _is_text(message: Message) -> bool:
    if message.metadata:
        return False
    for part in message.parts:  # noqa: SIM110 - a generator costs two calls for each part
        if type(part) is not Text:
            return False
    return True


_FIXED = frozenset([DeliveryRecord, MessageEndRecord, CallsStartedRecord])


def written_batches(key: SessionKey, page: Page) -> tuple[WrittenBatch, ...]:
    """Convert the batches of a page to feed items, with the number and time of each batch."""
    return tuple(
        WrittenBatch(
            session_id=key.session_id,
            agent=key.agent,
            first=first,
            count=len(records),
            at=row.at,
            records=records,
        )
        for row, first, records in page.batches
    )


class FeedPublisher:
    """Publisher of one journal's feed to the readers in this process, each with a backlog of unread items."""

    def __init__(self, read: ReadBatch) -> None:
        self._read = read
        self.is_read = False
        """True if the feed has readers. Callers check it before they publish."""
        self._backlogs: dict[SessionKey | None, Backlog] = {}
        """Backlogs by session; the key None is the backlog of all sessions."""
        self._has_ended = False

    @asynccontextmanager
    async def open(
        self, session: SessionKey | None, *, capacity: int, with_records: bool
    ) -> AsyncGenerator[FeedReader, None]:
        """Async context manager: give the block a reader of the new records of one session; None means all sessions."""
        if capacity < 1:
            raise ConfigurationError(f"the capacity of a feed reader must be at least 1, not {capacity}")
        backlog = self._backlogs.setdefault(session, Backlog())
        backlog.has_ended = self._has_ended
        backlog.capacity = max(backlog.capacity, capacity)
        reader = FeedReader(backlog, capacity, with_records=with_records)
        backlog.readers.append(reader)
        self.is_read = True
        try:
            yield reader
        finally:
            backlog.readers.remove(reader)
            if not backlog.readers and self._backlogs.get(session) is backlog:
                del self._backlogs[session]
            self.is_read = bool(self._backlogs)
            reader.close()

    def publish(
        self,
        rows: Sequence[Row],
        keys: Iterable[SessionKey],
        original_records: Iterable[Sequence[Record]],
        identity: bytes,
    ) -> None:
        """Publish written rows, one per session, in the order of the writes.

        `original_records` has the records of each row as the writers passed them.
        """
        everything = self._backlogs.get(None)
        for row, key, records in zip(rows, keys, original_records, strict=True):
            of_one = self._backlogs.get(key)
            if everything is not None or of_one is not None:
                stored = _Stored(key, row, records, identity, self._read, len(row.body))
                for backlog in filter(None, (everything, of_one)):
                    backlog.put(stored)

    def publish_erased(self, keys: Iterable[SessionKey]) -> None:
        """Publish to the feed readers that the sessions `keys` were erased. Do nothing without readers."""
        for key in keys if self.is_read else ():
            for backlog in filter(None, (self._backlogs.get(None), self._backlogs.get(key))):
                backlog.put(Erased(session_id=key.session_id, agent=key.agent))

    def fence_readers(self, is_lost: Callable[[str], bool], error: ActgentError) -> None:
        """End with `error` the readers of single sessions that another process owns now. `is_lost` selects the session ids.

        Readers of all sessions continue.
        """
        for key in [each for each in self._backlogs if each is not None and is_lost(each.session_id)]:
            self._backlogs.pop(key).finish(error)
        self.is_read = bool(self._backlogs)

    def close(self) -> None:
        """End all readers after their last item, because the journal closes."""
        self._has_ended = True
        for backlog in self._backlogs.values():
            backlog.finish()
