"""The newest records of a session without a journal, kept in memory for observations."""

import time
from typing import ClassVar, Protocol

from actgent.journal.record_types import Record
from actgent.messages import Event, Message, Reply, Route

MAX_RECORDS = 1000
"""Number of newest records that a session keeps in memory."""

Entry = Message | Reply | Event | Route | str | tuple[float, Record]
"""An entry of `RecentRecords`, from which a record is created when the entry is read.

A `Message` was appended to the conversation. A `Reply`, `Event` or `Route` was delivered to handlers. A text is the id of a
message whose turn ended with an answer. A tuple is any other record with its Unix time in seconds. Records are created only when
they are read, because most sessions are never observed.
"""


class Wakeable(Protocol):
    """Interface of a reader that waits for new records."""

    def wake(self) -> None: ...


class RecentRecords(list[Entry]):
    """Newest records and messages of a session without a journal, numbered from 1. At least `MAX_RECORDS` are kept.

    `SessionConversation.note` appends the entries of a turn. Every session without a journal has such a list. It is a
    single object because separate objects for entries, readers and appending cost 4 % of a turn.
    """

    __slots__ = ("dropped", "is_closed", "readers")
    TRIM_AT: ClassVar = MAX_RECORDS + 250
    """Number of entries above which all but the newest `MAX_RECORDS` are dropped. Fewer drops move the list in memory less often."""

    def __init__(self) -> None:
        self.dropped = 0
        """Number of the newest entry that was dropped; 0 if no entry was dropped."""
        self.is_closed = False
        """True if the session has ended, so that no entry will be added."""
        self.readers: tuple[Wakeable, ...] = ()
        """Readers to wake after each entry."""

    @property
    def last(self) -> int:
        """Number of the newest entry; 0 if there are no entries."""
        return self.dropped + len(self)

    def add_record(self, record: Record) -> None:
        """Append a journal record with the current time, and wake the readers."""
        self.append((time.time(), record))
        self.note_growth()

    def note_growth(self) -> None:
        """Wake the readers, because entries were appended. If there are too many entries, remove the oldest entries."""
        self.wake()
        if len(self) > self.TRIM_AT:
            count = len(self) - MAX_RECORDS
            del self[:count]
            self.dropped += count

    def add_reader(self, reader: Wakeable) -> None:
        """Register a reader that is woken at each new entry."""
        self.readers = (*self.readers, reader)

    def remove_reader(self, reader: Wakeable) -> None:
        """Unregister a reader."""
        self.readers = tuple([each for each in self.readers if each is not reader])

    def close(self) -> None:
        """Declare that no further entries follow, and wake the readers. They end after the last entry."""
        self.is_closed = True
        self.wake()

    def wake(self) -> None:
        """Wake all registered readers, so that they check for new entries."""
        for reader in self.readers:
            reader.wake()
