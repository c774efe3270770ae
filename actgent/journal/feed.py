"""One reader's end of what was written; who tells it is in `telling`."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import attrs
import trio

from actgent.errors import ActgentError, FeedLagged
from actgent.support.quick_init import quick_init

from .listing import SessionKey
from .records import Record

FEED_BYTES = 16_000_000
"""Bytes of records that wait for one reader, at most."""


@quick_init
@attrs.frozen(kw_only=True)
class Written:
    """A step that is in the journal: its records, which have the numbers from `first` on."""

    session_id: str
    """The session that has them."""
    agent: str
    """The name of its agent."""
    first: int
    """The number of its first record in the session, which begin with 1."""
    count: int
    """How many records the step has."""
    at: float | None
    """When it was written: Unix time in seconds; None where that is not known, as an earlier actgent wrote it."""
    records: tuple[Record, ...] = ()
    """As `Journal.read` gives them; empty for a reader that wants none."""

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.agent, self.session_id)

    @property
    def last(self) -> int:
        """The number of its last record: the session's cursor, once it was read."""
        return self.first + self.count - 1


@attrs.frozen(kw_only=True)
class Erased:
    """A session has left the journal; one of the same id begins with number 1 again."""

    session_id: str
    """The session that is gone."""
    agent: str
    """The name of its agent."""
    size: ClassVar[int] = 0
    """Bytes that it takes of what may wait for a reader."""

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.agent, self.session_id)


class UnreadStep(Protocol):
    """A step that waits for a reader."""

    @property
    def size(self) -> int:
        """Bytes that it has."""

    @property
    def given(self) -> Sequence[Record]:
        """Its records, as far as they are known without reading it; for who only wants to know their kinds."""

    async def told(self, *, with_records: bool) -> Written: ...
    def told_now(self, *, with_records: bool) -> Written | None: ...


class Backlog:
    """What was told of one session, or of all, and is not read yet: one list for all readers of it."""

    def __init__(self) -> None:
        self.readers: list[FeedReader] = []
        self.has_ended = False
        self.error: ActgentError | None = None
        """Why nothing comes any more, where that is no end."""
        self.capacity = 0
        """Steps that it keeps: as many as any reader wanted."""
        self.begin = self.end = 0
        """The place of the first that is there still, and how much was ever put."""
        self._items: deque[UnreadStep | Erased] = deque()
        self._size = 0

    def at(self, place: int) -> UnreadStep | Erased:
        """Return what was put at a place, from 0."""
        return self._items[place - self.begin]

    def put(self, item: UnreadStep | Erased) -> None:
        """Keep something for all readers; where there is no room for it the oldest goes, read or not."""
        self._items.append(item)
        self.end += 1
        self._size += item.size
        if self.end % _READ == 0:
            self._drop_read()
        while len(self._items) > self.capacity or (self._size > FEED_BYTES and len(self._items) > 1):
            self._drop()
        for reader in self.readers:
            reader.hear_of(item)

    def _drop_read(self) -> None:
        read = min((reader.place for reader in self.readers), default=self.end)
        while self.begin < read:
            self._drop()

    def _drop(self) -> None:
        self._size -= self._items.popleft().size
        self.begin += 1

    def finish(self, error: ActgentError | None = None) -> None:
        """Nothing comes any more; readers hear the error, if there is one, behind what was put."""
        self.has_ended, self.error = True, error
        for reader in self.readers:
            reader.wake()


_READ = 32
"""Steps after which those go that all have read: to look at each reader with each step would cost more."""


_MUCH = 64
"""Steps that wait for a reader which is woken by some only, until it is woken anyway."""


class FeedReader(trio.abc.ReceiveChannel[Written | Erased]):
    """One reader's end of a feed. A reader that falls behind is told so, and goes on with the oldest that is there."""

    def __init__(self, backlog: Backlog, capacity: int, *, with_records: bool) -> None:
        self.capacity = capacity
        """Steps that may wait for it."""
        self.place = backlog.end
        """Up to which it has read."""
        self.woken_by: Callable[[Sequence[Record]], bool] | None = None
        """Tells by records as they were given whether they are to end a `wait`; None: all do. What waits is read all the same."""
        self._backlog = backlog
        self._with_records = with_records
        self._is_closed = False
        self._parked = trio.lowlevel.ParkingLot()

    async def receive(self) -> Written | Erased:
        """The next step, or the end of a session.

        Raises:
            FeedLagged: steps were lost, since more waited than there is room for; the journal has them.
            JournalError: a result that an earlier step has cannot be read for this one.
            Fenced: another process writes the session by now, and tells what comes; all was read that was written here.
            trio.EndOfChannel: the journal's block is being left, and all was read.
            trio.ClosedResourceError: the reader was closed.
        """
        await trio.lowlevel.checkpoint()
        while self.place == self._backlog.end or self._is_closed:
            self._check_open()
            await self._parked.park()
        self._check_place()
        item = self._backlog.at(self.place)
        told = item if isinstance(item, Erased) else await item.told(with_records=self._with_records)
        self.place += 1  # after that: nothing is lost to a cancellation
        return told

    def receive_nowait(self) -> Written | Erased:
        """The same, if it is there.

        Raises:
            trio.WouldBlock: it is not, or has to be read: `receive` waits for that.
        """
        if self.place == self._backlog.end or self._is_closed:
            self._check_open()
            raise trio.WouldBlock
        if self.place < self._backlog.begin or self._backlog.end - self.place > self.capacity:
            self._check_place()
        item = self._backlog.at(self.place)
        told = item if isinstance(item, Erased) else item.told_now(with_records=self._with_records)
        if told is None:
            raise trio.WouldBlock
        self.place += 1
        return told

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
        """True if `receive` has something to return or to raise."""
        return self.place < self._backlog.end or self._backlog.has_ended or self._is_closed

    async def wait(self) -> None:
        """Wait for news, or until `wake` is called; perhaps shorter."""
        if self.has_news:
            await trio.lowlevel.checkpoint()
        else:
            await self._parked.park()

    def hear_of(self, item: UnreadStep | Erased) -> None:
        """Something was just put: have those go on that wait for it."""
        if self._parked and self._is_woken_by(item):
            self._parked.unpark_all()

    def _is_woken_by(self, item: UnreadStep | Erased) -> bool:
        if self.woken_by is None or isinstance(item, Erased) or self._backlog.end - self.place >= _MUCH:
            return True
        given = item.given
        return not given or self.woken_by(given)

    def wake(self) -> None:
        """Have those go on that `wait`."""
        self._parked.unpark_all()

    def close(self) -> None:
        """Read no more; what comes is not kept."""
        self._is_closed = True
        self._parked.unpark_all()

    async def aclose(self) -> None:
        """The same, as channels have it."""
        self.close()
        await trio.lowlevel.checkpoint()
