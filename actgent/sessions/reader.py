"""The reader's end of a turn that someone reads along."""

from collections import deque
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


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

    async def wait_room(self) -> None:
        """Wait while the reader is `capacity` deliveries behind."""
        while len(self._items) >= self._capacity:
            await self._writers.park()

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._readers.unpark_all()
