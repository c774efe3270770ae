"""Blocks of trio's, and the channels that they give, as other threads hold and read them."""

from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, TypeVar

import trio

from actgent.client.channels import RemoteReader
from actgent.errors import ForeignExit
from actgent.runtime.following import ObservationReader, SessionFollower
from actgent.sessions.waiting.turn_reader import TurnReader

from .thread import TrioThread

T = TypeVar("T")
BATCH = 100
"""Most deliveries that go over in one call; so many may wait in the reader's world, besides those in the channel."""


class HeldBlock(Generic[T]):
    """A block that a task in trio's thread holds open until it is left elsewhere."""

    def __init__(self, thread: TrioThread[Any], block: AbstractAsyncContextManager[T]) -> None:
        self._thread = thread
        self._block = block
        self._left = trio.Event()
        self._ended = trio.Event()
        self._reason: BaseException | None = None
        self._error: BaseException | None = None

    async def enter(self) -> T:
        """Enter it, in trio's thread."""
        value: T = await self._thread.hold(self._hold)
        return value

    async def leave(self, reason: BaseException | None) -> None:
        """Leave it, with the exception that its body was left with; in trio's thread.

        Raises:
            BaseException: what its end raises beside that.
        """
        if isinstance(reason, trio.Cancelled):  # of a trio elsewhere, where this thread works for it
            reason = ForeignExit(type(reason).__name__)
        self._reason = reason
        self._left.set()
        await self._ended.wait()
        if self._error is not None and self._error is not reason:
            raise self._error

    def abandon(self) -> None:
        """Leave it where whoever entered it was stopped while waiting for that; in trio's thread."""
        self._left.set()

    async def _hold(self, task_status: trio.TaskStatus[T]) -> None:
        is_entered = False
        try:
            async with self._block as value:
                is_entered = True
                task_status.started(value)
                await self._left.wait()
                if self._reason is not None:
                    raise self._reason  # noqa: TRY301 - as if its body stood here
        except trio.Cancelled:
            raise
        except BaseException as error:  # noqa: ASYNC103 - for whoever leaves it
            if not is_entered:
                raise
            self._error = error
        finally:
            self._ended.set()


class ChannelReading(Generic[T]):
    """What was received from a channel in trio's thread, for one reader elsewhere.

    Whole batches go over: a reader that keeps up gets each delivery at once, and one that is slow does not pay a call for
    each. When the channel is full behind it, its writer waits, e.g. the model.
    """

    def __init__(self) -> None:
        self.items: deque[T] = deque()
        self.cursor: int | None = None
        """The number of the record that was taken last, of channels that have one."""
        self._ahead: int | None = None
        """The same for what is in `items`: of such channels one thing at most."""
        self._channel: trio.abc.ReceiveChannel[T] | None = None

    async def open(self, block: HeldBlock[trio.abc.ReceiveChannel[T]]) -> None:
        """Enter the block that has the channel, in trio's thread."""
        self._channel = await block.enter()
        self.cursor = self._look_ahead()

    async def fill(self) -> bool:
        """Wait for the next delivery, in trio's thread, and take those behind it, too; False at the end.

        Cancelled, it has taken nothing, or all that it took is in `items`.
        """
        if self._channel is None:
            raise TypeError(
                "a stream is entered before it is read: `with agent.stream(...) as events`, in asyncio `async with`"
            )
        try:
            self.items.append(await self._channel.receive())
        except trio.EndOfChannel:
            return False
        self._look_ahead()
        if isinstance(self._channel, TurnReader):
            self.items.extend(self._channel.receive_ready(BATCH - 1))
        return True

    def _look_ahead(self) -> int | None:
        if isinstance(self._channel, SessionFollower | ObservationReader | RemoteReader):
            self._ahead = self._channel.cursor
        return self._ahead

    def take(self) -> T:
        """The oldest of those that are there."""
        item = self.items.popleft()
        self.cursor = self._ahead
        return item


@asynccontextmanager
async def made_on_trio(make: Callable[[], AbstractAsyncContextManager[T]]) -> AsyncGenerator[T, None]:
    """A block that is made where it is entered, in trio's thread, since making it asks for that."""
    async with make() as value:
        yield value
