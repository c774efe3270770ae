"""`TurnReader`: the receive channel for the deliveries of a turn, and `TurnStream`, the future that fills it."""

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import trio

from actgent.errors import Suspended as SuspendedError
from actgent.messages import CallProgress
from actgent.support.common_mistake_hints import hints_for_readers

from .turn_future import CallOptions, TurnFuture

T = TypeVar("T")


@hints_for_readers
class TurnReader(trio.abc.ReceiveChannel[T], Generic[T]):
    """Receive channel with an unbounded buffer, whose writer can wait for room.

    Writers of tokens wait for room, so a slow reader slows down the model. Deliveries that end a turn are added without a wait, so a
    reader cannot block the end of a turn.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()
        self._ended = False
        self._closed = False
        self.is_heeded = False
        """True if the reader shows failures and pending approvals to the user itself; see `mark_reported`."""

    async def receive(self) -> T:
        """Return the next delivery.

        Raises:
            trio.EndOfChannel: The turn has ended, and all deliveries were received.
            trio.ClosedResourceError: The reader was closed.
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

    def receive_ready(self, maximum: int) -> list[T]:
        """Return up to `maximum` available deliveries without waiting, oldest first."""
        ready = [self._items.popleft() for _ in range(min(maximum, len(self._items)))]
        self._writers.unpark_all()
        return ready

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close the channel, and discard unread deliveries."""
        self._closed = True
        self._items.clear()
        self._readers.unpark_all()
        self._writers.unpark_all()

    def put(self, item: T) -> None:
        """Add a delivery without waiting for room. A closed channel ignores it."""
        if not self._closed:
            self._items.append(item)
            self._readers.unpark()

    def put_latest(self, item: T, is_older: Callable[[T], bool]) -> None:
        """Add a delivery. If `is_older` returns True for an unread delivery, replace that delivery by the new one."""
        for place, waiting in enumerate(self._items):
            if is_older(waiting):
                self._items[place] = item
                return
        self.put(item)

    async def wait_capacity(self) -> None:
        """Wait until fewer than `capacity` deliveries are unread."""
        while len(self._items) >= self._capacity:
            await self._writers.park()

    def end(self) -> None:
        """Mark the end of the deliveries: after the buffered ones, `receive` raises `trio.EndOfChannel`."""
        self._ended = True
        self._readers.unpark_all()


def mark_reported(deliveries: trio.abc.ReceiveChannel[Any]) -> None:
    """Mark a stream whose reader shows failures and approvals to users, so that actgent logs no warnings about them."""
    if isinstance(deliveries, TurnReader):
        deliveries.is_heeded = True


class TurnStream(TurnFuture):
    """Future of a caller that receives all deliveries of a turn through a `TurnReader`."""

    def __init__(self, options: CallOptions, *, reader: TurnReader[Any]) -> None:
        super().__init__(options)
        self._reader = reader

    @property
    def wants_stream(self) -> bool:
        return True

    def receive_delivery(self, delivery: object) -> None:
        if isinstance(delivery, CallProgress):
            call = delivery.id
            self._reader.put_latest(delivery, lambda each: isinstance(each, CallProgress) and each.id == call)
        else:
            self._reader.put(delivery)

    async def wait_capacity(self) -> None:
        await self._reader.wait_capacity()

    def withdraw(self, message_id: str, error: SuspendedError) -> None:
        super().withdraw(message_id, error)
        self._reader.put(self.failure)

    def finish(self) -> None:
        super().finish()
        self._reader.end()
