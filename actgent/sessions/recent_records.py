"""The newest records of a session without a journal: the source of its observations."""

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from actgent.journal.records import Record
from actgent.messages import Event, Message, Reply, Route

MAX_RECORDS = 1000
"""Records of one session that stay in memory."""
_SLACK = 250
"""Records above the bound that stay until they are dropped together, so that the list is moved rarely."""

Entry = Message | Reply | Event | Route | str | tuple[float, Record]
"""A message that entered the conversation; an outcome that handlers got; the id of a message whose turn ended with an answer; any
other record with its Unix time in seconds.

Entries are turned into records when they are read: most sessions are never observed, and a turn pays for a list entry alone.
"""


class Wakeable(Protocol):
    """A reader that waits for new records."""

    def wake(self) -> None: ...


class RecentRecords:
    """The newest entries of a session without a journal, numbered from 1. At least the newest `MAX_RECORDS` are kept.

    Older entries are dropped from time to time, when a turn ends or a record is added.
    """

    __slots__ = ("_readers", "add", "dropped", "entries", "is_closed")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.add: Callable[[Entry], None] = self.entries.append
        """Append an entry and wake the readers. While there are no readers, it is the method of the list, which costs least."""
        self.dropped = 0
        """The number of the newest entry that was dropped; 0 if all entries are there."""
        self._readers: list[Wakeable] = []
        self.is_closed = False
        """True if the session is over: no entry will be added."""

    @property
    def last(self) -> int:
        """The number of the newest entry; 0 if there are no entries."""
        return self.dropped + len(self.entries)

    def add_record(self, record: Record) -> None:
        """Add a record with the current time."""
        self.add((time.time(), record))
        if len(self.entries) > MAX_RECORDS + _SLACK:
            self._drop_oldest()

    def end_turn(self, messages: Iterable[Message]) -> None:
        """Add the end of a turn that has answered these messages."""
        for message in messages:
            self.add(message.id)
        if len(self.entries) > MAX_RECORDS + _SLACK:
            self._drop_oldest()

    def add_reader(self, reader: Wakeable) -> None:
        """Wake a reader with each entry from now on."""
        self._readers = [*self._readers, reader]
        self.add = self._add_and_wake

    def remove_reader(self, reader: Wakeable) -> None:
        """Wake a reader no more."""
        self._readers = [each for each in self._readers if each is not reader]
        if not self._readers:
            self.add = self.entries.append

    def close(self) -> None:
        """Close the list: readers end after the last entry."""
        self.is_closed = True
        self._wake()

    def _add_and_wake(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._wake()

    def _drop_oldest(self) -> None:
        count = len(self.entries) - MAX_RECORDS
        del self.entries[:count]
        self.dropped += count

    def _wake(self) -> None:
        for reader in self._readers:
            reader.wake()
