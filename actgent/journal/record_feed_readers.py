"""Readers of a journal's feed, and the backlog of items that wait for them.

`group_commit.record_feed_publisher` publishes the items.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import attrs
import trio

from actgent.errors import ActgentError, FeedLagged
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.fast_attrs_constructors import fast_init

from .record_types import Record
from .session_list_queries import SessionKey

FEED_BYTES = 16_000_000
"""Maximum number of bytes of records that one backlog keeps for its readers."""


@fast_init
@attrs.frozen(kw_only=True, repr=False)
class WrittenBatch(FieldRepr):
    """A batch that is in the journal. Its records are numbered from `first`."""

    session_id: str
    """Id of the session to which the records belong."""
    agent: str
    """Name of the agent of the session."""
    first: int
    """Number of the first record that the write added to the session; the first record of a session is 1."""
    count: int
    """Number of records that the write added."""
    at: float | None
    """Time of the write: Unix time in seconds; None if an earlier actgent wrote the batch."""
    records: tuple[Record, ...] = ()
    """The written records, as `Journal.read` returns them.
    Empty for a subscriber that asked only for the numbers of the records.
    """

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.agent, self.session_id)

    @property
    def last(self) -> int:
        """Number of the last record of the batch. A reader that has processed the batch has this cursor."""
        return self.first + self.count - 1


@attrs.frozen(kw_only=True, repr=False)
class Erased(FieldRepr):
    """A session was erased. A new session with the same id starts with record 1."""

    session_id: str
    """Id of the erased session."""
    agent: str
    """Name of the agent of the erased session."""
    size: ClassVar[int] = 0
    """Size of this item in the backlog in bytes: 0."""

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.agent, self.session_id)


class UnreadBatch(Protocol):
    """A batch in the backlog, decoded on demand."""

    @property
    def size(self) -> int:
        """Size of the encoded batch in bytes."""

    @property
    def original_records(self) -> Sequence[Record]:
        """Records as the writer passed them; empty if only the encoded bytes are known.

        Use them only to check record types.
        """

    async def decode(self, *, with_records: bool) -> WrittenBatch: ...
    def decode_now(self, *, with_records: bool) -> WrittenBatch | None: ...


class Backlog:
    """Feed items of one session or of all sessions that at least one reader has not read. All readers share the list."""

    def __init__(self) -> None:
        self.readers: list[FeedReader] = []
        self.has_ended = False
        self.error: ActgentError | None = None
        """Error that readers get after the last item; None at a regular end."""
        self.capacity = 0
        """Maximum number of items: the largest capacity of the readers."""
        self.begin = self.end = 0
        """Position of the oldest item in the list, counted from the first item ever put."""
        self._items: deque[UnreadBatch | Erased] = deque()
        self._size = 0

    def at(self, index: int) -> UnreadBatch | Erased:
        """Return the item at an index. The index counts from the first item that was ever added, including dropped items."""
        return self._items[index - self.begin]

    def put(self, item: UnreadBatch | Erased) -> None:
        """Append an item to the backlog, and wake the waiting readers.

        If the backlog is full, drop the oldest item, even if a reader has not read it.
        """
        self._items.append(item)
        self.end += 1
        self._size += item.size
        if self.end % _READ == 0:
            self._drop_read()
        while len(self._items) > self.capacity or (self._size > FEED_BYTES and len(self._items) > 1):
            self._drop()
        for reader in self.readers:
            reader.notify(item)

    def _drop_read(self) -> None:
        read = min((reader.place for reader in self.readers), default=self.end)
        while self.begin < read:
            self._drop()

    def _drop(self) -> None:
        self._size -= self._items.popleft().size
        self.begin += 1

    def finish(self, error: ActgentError | None = None) -> None:
        """Mark the backlog of a record feed as ended.

        Readers still receive the remaining items. Then their iteration ends, or raises `error` if it is given.
        """
        self.has_ended, self.error = True, error
        for reader in self.readers:
            reader.wake()


_READ = 32
"""Number of batches between two removals of items that all readers have read. Checking the readers at each batch costs
more.
"""


_MUCH = 64
"""Number of waiting batches above which any new batch wakes a reader, even if its `woken_by` filter rejects the batch."""


class FeedReader(trio.abc.ReceiveChannel[WrittenBatch | Erased]):
    """Receive channel of one reader of a feed.

    A reader that is too slow gets `FeedLagged` and continues with the oldest item.
    """

    def __init__(self, backlog: Backlog, capacity: int, *, with_records: bool) -> None:
        self.capacity = capacity
        """Maximum number of batches that wait for this reader. If there are more, the oldest are lost."""
        self.place = backlog.end
        """Position of the next item to read."""
        self.woken_by: Callable[[Sequence[Record]], bool] | None = None
        """Predicate on the records of a new batch: True ends a `wait`.

        None: every batch ends it. The filter does not drop items.
        """
        self._backlog = backlog
        self._with_records = with_records
        self._is_closed = False
        self._parked = trio.lowlevel.ParkingLot()

    async def receive(self) -> WrittenBatch | Erased:
        """Return the next batch, or the erasure of a session. Wait if there is none.

        Raises:
            FeedLagged: More batches waited than `capacity`, and the oldest were dropped. The journal has them.
            JournalError: A result that the batch refers to cannot be read from the journal.
            Fenced: Another process writes the session now. All batches that were written here have been read.
            trio.EndOfChannel: The journal is closing, and all batches have been read.
            trio.ClosedResourceError: The reader was closed.
        """
        await trio.lowlevel.checkpoint()
        while self.place == self._backlog.end or self._is_closed:
            self._check_open()
            await self._parked.park()
        self._check_place()
        item = self._backlog.at(self.place)
        decoded = item if isinstance(item, Erased) else await item.decode(with_records=self._with_records)
        self.place += 1  # only now, so that a cancelled call loses no item
        return decoded

    def receive_nowait(self) -> WrittenBatch | Erased:
        """Return the next batch or erasure if it is available without waiting.

        Raises:
            trio.WouldBlock: No item is available, or the item needs a read from the journal: call `receive`.
        """
        if self.place == self._backlog.end or self._is_closed:
            self._check_open()
            raise trio.WouldBlock
        if self.place < self._backlog.begin or self._backlog.end - self.place > self.capacity:
            self._check_place()
        item = self._backlog.at(self.place)
        decoded = item if isinstance(item, Erased) else item.decode_now(with_records=self._with_records)
        if decoded is None:
            raise trio.WouldBlock
        self.place += 1
        return decoded

    def _check_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError
        if self._backlog.error is not None:
            raise self._backlog.error
        if self._backlog.has_ended:
            raise trio.EndOfChannel

    def _check_place(self) -> None:
        backlog = self._backlog
        first = max(backlog.begin, backlog.end - self.capacity)
        if self.place < first:
            lost, self.place = first - self.place, first
            raise FeedLagged(lost)

    @property
    def has_news(self) -> bool:
        """True if `receive` would return an item or raise an error without waiting."""
        return self.place < self._backlog.end or self._backlog.has_ended or self._is_closed

    async def wait(self) -> None:
        """Wait until an item or an error is available, or `wake` is called.

        The call may return without news: check `has_news`.
        """
        if self.has_news:
            await trio.lowlevel.checkpoint()
        else:
            await self._parked.park()

    def notify(self, item: UnreadBatch | Erased) -> None:
        """Wake the tasks that wait for this reader if the new item passes the reader's `woken_by` filter."""
        if self._parked and self._is_woken_by(item):
            self._parked.unpark_all()

    def _is_woken_by(self, item: UnreadBatch | Erased) -> bool:
        if self.woken_by is None or isinstance(item, Erased) or self._backlog.end - self.place >= _MUCH:
            return True
        original_records = item.original_records
        return not original_records or self.woken_by(original_records)

    def wake(self) -> None:
        """Wake all tasks that are blocked in `wait`, even without a new item."""
        self._parked.unpark_all()

    def close(self) -> None:
        """Close the reader. Tasks that wait in `receive` get `trio.ClosedResourceError`."""
        self._is_closed = True
        self._parked.unpark_all()

    async def aclose(self) -> None:
        """Close the reader, as `trio.abc.AsyncResource` requires."""
        self.close()
        await trio.lowlevel.checkpoint()
