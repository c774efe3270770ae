"""What a queue delivers, and how each delivery is settled."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

import attrs
import trio
from pamqp import commands

from .awaited import MakeError
from .content import Content

Settle = Callable[["Delivery", bool], None]
"""Tells the broker that a delivery was dealt with (True), or is to be delivered again."""


@attrs.define(eq=False)
class Delivery:
    """A message of a queue. It is another consumer's once its channel or connection is lost before it is acknowledged."""

    content: Content
    tag: int
    """Its number on its channel."""
    redelivered: bool
    """True: it may have been delivered before."""
    _settle: Settle
    is_settled: bool = attrs.field(init=False, default=False)

    @property
    def body(self) -> bytes:
        return self.content.body

    @property
    def properties(self) -> commands.Basic.Properties:
        return self.content.properties

    def acknowledge(self) -> None:
        """It was dealt with. Nothing happens where it was settled already, or its channel is gone."""
        self._settle(self, True)  # noqa: FBT003 - private

    def requeue(self) -> None:
        """Have it delivered again, as the first of its queue; nothing happens as above."""
        self._settle(self, False)  # noqa: FBT003 - private


class Consumer:
    """The deliveries of one queue, as an async iterator or told to `take`, for as long as its block is open."""

    def __init__(
        self,
        tag: str,
        leave: Callable[["Consumer"], None],
        take: Callable[[Delivery], object] | None = None,
    ) -> None:
        self.tag = tag
        self.held = 0
        """Its deliveries that are not settled."""
        self._leave = leave
        self._take = take
        self._waiting: deque[Delivery] = deque()
        self._came = trio.Event()
        self._error: MakeError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        """Wait for the next delivery.

        Raises:
            ConsumerCancelled: the broker took the queue away.
            ChannelClosed, BrokerLost: as they say; what was not acknowledged is delivered again, here or elsewhere.
        """
        if self._waiting:
            await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._error is not None:
                raise self._error()
            if self._came.is_set():
                self._came = trio.Event()
            await self._came.wait()
        return self._waiting.popleft()

    async def wait_end(self) -> None:
        """Wait until no more comes, where deliveries are told; always raises, as `__anext__` does."""
        await anext(self)

    def cancel(self) -> None:
        """Take no more; what was not taken out goes back into the queue."""
        self._leave(self)

    def take_back(self) -> list[Delivery]:
        """What was delivered and not taken out."""
        left = list(self._waiting)
        self._waiting.clear()
        return left

    def deliver(self, delivery: Delivery) -> None:
        """A message came."""
        if self._take is not None:
            self._take(delivery)
            return
        self._waiting.append(delivery)
        self._came.set()

    def end(self, error: MakeError) -> None:
        """No more will come."""
        self._error = self._error or error
        self._came.set()
