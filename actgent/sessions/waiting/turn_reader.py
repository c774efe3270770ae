"""The reader's end of a turn that someone reads along."""

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import trio

from actgent.errors import Suspended as SuspendedError
from actgent.messages import CallProgress
from actgent.support.leads import for_readers

from .turn_future import CallOptions, TurnFuture

T = TypeVar("T")


@for_readers
class TurnReader(trio.abc.ReceiveChannel[T], Generic[T]):
    """A receive channel whose writer waits for room only where it wants to.

    Tokens do, so a slow reader slows the model down; what ends a turn does not, so nothing that
    stops a turn ever waits for a reader.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()
        self._ended = False
        self._closed = False
        self.is_heeded = False
        """True if what reads it tells people itself of failures and of calls that wait for them; see `heed`."""

    async def receive(self) -> T:
        """The next delivery.

        Raises:
            trio.EndOfChannel: the turn has ended and all was read.
            trio.ClosedResourceError: the reader was closed.
        """
        await trio.lowlevel.checkpoint()
        while not self._items:
            if self._closed:
                raise trio.ClosedResourceError
            if self._ended:
                raise trio.EndOfChannel
            await self._readers.park()
        self._writers.unpark()
        return self._items.popleft()

    def receive_ready(self, most: int) -> list[T]:
        """The deliveries that are there, oldest first, without waiting."""
        ready = [self._items.popleft() for _ in range(min(most, len(self._items)))]
        self._writers.unpark_all()
        return ready

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Read no more."""
        self._closed = True
        self._items.clear()
        self._readers.unpark_all()
        self._writers.unpark_all()

    def put(self, item: T) -> None:
        """Deliver something, room or not; a reader that left misses it."""
        if not self._closed:
            self._items.append(item)
            self._readers.unpark()

    def put_latest(self, item: T, is_older: Callable[[T], bool]) -> None:
        """Deliver something in place of an older one that was not read yet, if there is one."""
        for place, waiting in enumerate(self._items):
            if is_older(waiting):
                self._items[place] = item
                return
        self.put(item)

    async def wait_room(self) -> None:
        """Wait while the reader is `capacity` deliveries behind."""
        while len(self._items) >= self._capacity:
            await self._writers.park()

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._readers.unpark_all()


def heed(deliveries: trio.abc.ReceiveChannel[Any]) -> None:
    """Say that a stream's reader tells of failures and of calls that wait for people, so that the log need not."""
    if isinstance(deliveries, TurnReader):
        deliveries.is_heeded = True


class TurnStream(TurnFuture):
    """Someone who reads along."""

    def __init__(self, options: CallOptions, *, reader: TurnReader[Any]) -> None:
        super().__init__(options)
        self._reader = reader

    @property
    def hears(self) -> bool:
        return True

    def hear(self, delivery: object) -> None:
        if isinstance(delivery, CallProgress):
            call = delivery.id
            self._reader.put_latest(delivery, lambda each: isinstance(each, CallProgress) and each.id == call)
        else:
            self._reader.put(delivery)

    async def wait_room(self) -> None:
        await self._reader.wait_room()

    def send_away(self, message_id: str, error: SuspendedError) -> None:
        super().send_away(message_id, error)
        self._reader.put(self.failure)

    def finish(self) -> None:
        super().finish()
        self._reader.end()
