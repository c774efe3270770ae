"""What was written, told to readers in this process as soon as it is on the disk, and in the order in which it came there.

A step is told where its group is known to be written: with the numbers that its records have got there, never before,
and never where it was taken back. So a reader that opens the feed first, and reads the journal behind a number of its own
then, misses nothing; what comes twice has a number that it has seen. Where nobody reads nothing is made.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import attrs

from actgent.errors import ActgentError, ConfigurationError
from actgent.journal.feed import Backlog, Erased, FeedReader, Written
from actgent.journal.listing import SessionKey
from actgent.journal.records import (
    Accepted,
    Appended,
    Changed,
    Delivered,
    Ended,
    Record,
    Said,
    Started,
)
from actgent.messages import Message, Text

from .paging import Pages
from .references import refers, resolve
from .steps import Page, Row, read_records, unsealed

ReadStep = Callable[[SessionKey, int, int], Awaitable[tuple[Record, ...]]]
"""Reads so many records of a session behind a number from the storage."""


@attrs.define(eq=False)
class _Stored:
    """A row as it waits for readers, decoded once for all of them, by the first that wants its records."""

    key: SessionKey
    row: Row
    given: Sequence[Record]
    identity: bytes
    read: ReadStep
    size: int
    _records: tuple[Record, ...] | None = None

    async def told(self, *, with_records: bool) -> Written:
        """The step."""
        if with_records and not self._know_records():  # an earlier step has some of what they hold
            self._records = await self.read(self.key, self.row.first - 1, self.row.count)
        return self._written(with_records=with_records)

    def told_now(self, *, with_records: bool) -> Written | None:
        """The step; None where something has to be read for it."""
        if with_records and not self._know_records():
            return None
        return self._written(with_records=with_records)

    def _written(self, *, with_records: bool) -> Written:
        row = self.row
        return Written(
            session_id=self.key.session_id,
            agent=self.key.agent,
            first=row.first,
            count=row.count,
            at=row.at,
            records=(self._records or ()) if with_records else (),
        )

    def _know_records(self) -> bool:
        """Decode the records, unless that was done; False where an earlier step has some of what they hold."""
        if self._records is None:
            try:
                self._records = self._decode()
            except LookupError:
                return False
        return True

    def _decode(self) -> tuple[Record, ...]:
        if self.given and are_fixed(self.given):
            return tuple(self.given)
        records = self._with_given_values(read_records(unsealed(self.row, self.identity)))
        return tuple(resolve(records)) if any(map(refers, records)) else records

    def _with_given_values(self, records: tuple[Record, ...]) -> tuple[Record, ...]:
        """Return records whose state changes have whole values. The values must not be changed.

        So a difference costs its readers no look into the journal.
        """
        if len(self.given) != len(records):
            return records
        return tuple(
            [
                attrs.evolve(record, changes={**record.changes, **given.changes}, patches={})
                if type(record) is Changed and type(given) is Changed and record.patches
                else record
                for record, given in zip(records, self.given, strict=True)
            ]
        )


def are_fixed(records: Iterable[Record]) -> bool:
    """Return True if nothing in records can have changed since they were written, so that they need not be decoded again.

    Those of most turns hold nothing but texts and numbers; this is asked of each step that somebody reads.
    """
    for record in records:
        if type(record) is Said:
            is_fixed = not (record.results or record.called) and record.last_call is None
            is_fixed = is_fixed and _is_text(record.message)
        elif type(record) is Accepted:
            is_fixed = not (record.limits or record.baggage) and _is_text(record.message)
        elif type(record) is Appended:
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


_FIXED = frozenset([Delivered, Ended, Started])


def written_steps(key: SessionKey, page: Page) -> tuple[Written, ...]:
    """A page as readers get it, step by step."""
    return tuple(
        Written(
            session_id=key.session_id,
            agent=key.agent,
            first=first,
            count=len(records),
            at=row.at,
            records=records,
        )
        for row, first, records in page.steps
    )


class Feed:
    """The readers of one journal."""

    def __init__(self, read: ReadStep) -> None:
        self._read = read
        self.is_read = False
        """True while anybody reads; ask before anything is told."""
        self._backlogs: dict[SessionKey | None, Backlog] = {}
        """By the session that is read; None is all of them."""
        self._has_ended = False

    @asynccontextmanager
    async def open(
        self, session: SessionKey | None, *, capacity: int, with_records: bool
    ) -> AsyncGenerator[FeedReader, None]:
        """A reader of one session, or of all; see `Journal.feed`."""
        if capacity < 1:
            raise ConfigurationError(f"a reader of the feed has room for at least 1 step, not {capacity}")
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

    def tell(
        self,
        rows: Sequence[Row],
        keys: Iterable[SessionKey],
        given: Iterable[Sequence[Record]],
        identity: bytes,
    ) -> None:
        """Rows are written, one of each of these sessions, in their order, of these records."""
        everything = self._backlogs.get(None)
        for row, key, records in zip(rows, keys, given, strict=True):
            of_one = self._backlogs.get(key)
            if everything is not None or of_one is not None:
                stored = _Stored(key, row, records, identity, self._read, len(row.body))
                for backlog in filter(None, (everything, of_one)):
                    backlog.put(stored)

    def tell_erased(self, keys: Iterable[SessionKey]) -> None:
        """Sessions are erased."""
        for key in keys if self.is_read else ():
            for backlog in filter(None, (self._backlogs.get(None), self._backlogs.get(key))):
                backlog.put(Erased(session_id=key.session_id, agent=key.agent))

    def lose(self, is_lost: Callable[[str], bool], error: ActgentError) -> None:
        """Have readers of single sessions hear that another process writes them; those of all sessions hear nothing."""
        for key in [each for each in self._backlogs if each is not None and is_lost(each.session_id)]:
            self._backlogs.pop(key).finish(error)
        self.is_read = bool(self._backlogs)

    def end(self) -> None:
        """The journal's block is left."""
        self._has_ended = True
        for backlog in self._backlogs.values():
            backlog.finish()


@attrs.frozen
class Onlookers:
    """Who hears of what a journal has written: its lists of sessions, and the readers of its feed."""

    pages: Pages
    feed: Feed
