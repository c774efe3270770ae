"""The newest records of a session without a journal: the source of its observations."""

import time
from typing import Protocol

from actgent.journal.records import Record
from actgent.messages import Event, Message, Reply, Route

MAX_RECORDS = 1000
"""Records of one session that stay in memory."""
_SLACK = 250
"""Records that are dropped at once, so that the list is moved rarely."""

Entry = Message | Reply | Event | Route | str | tuple[float, Record]
"""A message that entered the conversation; an outcome that handlers got; the id of a message whose turn ended with an answer; any
other record with its Unix time in seconds.

Entries are turned into records when they are read: most sessions are never observed, and a turn pays for a list entry alone.
"""


class Wakeable(Protocol):
    """A reader that waits for new records."""

    def wake(self) -> None: ...


class RecentRecords:
    """The newest entries of a session without a journal, numbered from 1. At least the newest `MAX_RECORDS` are kept."""

    __slots__ = ("dropped", "entries", "is_closed", "readers")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.dropped = 0
        """The number of the newest entry that was dropped; 0 if all entries are there."""
        self.readers: list[Wakeable] | None = None
        self.is_closed = False
        """True if the session is over: no entry will be added."""

    @property
    def last(self) -> int:
        """The number of the newest entry; 0 if there are no entries."""
        return self.dropped + len(self.entries)

    def add(self, entry: Entry) -> None:
        """Append an entry, drop entries older than the newest `MAX_RECORDS` from time to time, and wake the readers."""
        entries = self.entries
        entries.append(entry)
        if len(entries) > MAX_RECORDS + _SLACK:
            del entries[:_SLACK]
            self.dropped += _SLACK
        if self.readers is not None:
            self._wake()

    def add_record(self, record: Record) -> None:
        """Add a record with the current time."""
        self.add((time.time(), record))

    def close(self) -> None:
        """Close the list: readers end after the last entry."""
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        for reader in self.readers or ():
            reader.wake()
