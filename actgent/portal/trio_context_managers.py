"""Async context managers and channels of trio that other threads use."""

from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, TypeVar

import trio

from actgent.client.remote_stream_reader import RemoteReader
from actgent.errors import UserCodeExit
from actgent.runtime.subscriptions.observation_reader import ObservationReader
from actgent.runtime.subscriptions.session_follower import SessionFollower
from actgent.sessions.pending.turn_output_stream import TurnReader

from .trio_thread import TrioThread

T = TypeVar("T")
MAX_BATCH = 100
"""Maximum number of deliveries fetched in one call. The reader's thread may buffer this many in addition to the
channel.
"""


class HeldBlock(Generic[T]):
    """Async context manager (block) that a trio task holds open until another thread exits it."""

    def __init__(self, thread: TrioThread[Any], block: AbstractAsyncContextManager[T]) -> None:
        self._thread = thread
        self._block = block
        self._leave_requested = trio.Event()
        self._ended = trio.Event()
        self._reason: BaseException | None = None
        self._error: BaseException | None = None

    async def enter(self) -> T:
        """Enter the context manager in trio's thread, and return the value that it yields."""
        value: T = await self._thread.hold(self._hold)
        return value

    async def exit(self, reason: BaseException | None) -> None:
        """Exit the context manager in trio's thread.

        Args:
            reason: Exception that ended the body of the caller's block; None if it ended without an exception.

        Raises:
            BaseException: Exiting the context manager raised an exception that is not `reason`.
        """
        if isinstance(reason, trio.Cancelled):  # Cancelled of another trio run cannot be raised here
            reason = UserCodeExit(type(reason).__name__)
        self._reason = reason
        self._leave_requested.set()
        await self._ended.wait()
        if self._error is not None and self._error is not reason:
            raise self._error

    def abandon(self) -> None:
        """Exit the context manager in trio's thread, because the calling thread was interrupted while entering it."""
        self._leave_requested.set()

    async def _hold(self, task_status: trio.TaskStatus[T]) -> None:
        is_entered = False
        try:
            async with self._block as value:
                is_entered = True
                task_status.started(value)
                await self._leave_requested.wait()
                if self._reason is not None:
                    raise self._reason  # noqa: TRY301 - as if the body of the block raised it
        except trio.Cancelled:
            raise
        except BaseException as error:  # noqa: ASYNC103 - raised by `exit`
            if not is_entered:
                raise
            self._error = error
        finally:
            self._ended.set()


class ChannelBuffer(Generic[T]):
    """Buffer with items of a trio channel for a reader in another thread.

    Items are fetched in batches, so that a slow reader does not need one call for each item. A full channel blocks its
    writer, such as the model's stream.
    """

    def __init__(self) -> None:
        self.items: deque[T] = deque()
        self.cursor: int | None = None
        """Number of the last record that was read; None for channels without records."""
        self._next_cursor: int | None = None
        """Record number of the item in `items`. A channel with records buffers at most one item."""
        self._channel: trio.abc.ReceiveChannel[T] | None = None

    async def open(self, block: HeldBlock[trio.abc.ReceiveChannel[T]]) -> None:
        """Enter, in trio's thread, the block that yields the channel."""
        self._channel = await block.enter()
        self.cursor = self._update_next_cursor()

    async def fill(self) -> bool:
        """Wait in trio's thread for the next item of the channel, and fetch all available items into the buffer.

        Return False at the end of the channel. If the call is cancelled, no fetched item is lost.
        """
        if self._channel is None:
            raise TypeError(
                "the stream must be entered before it is read: `with agent.stream(...) as events`, in asyncio `async with`"
            )
        try:
            self.items.append(await self._channel.receive())
        except trio.EndOfChannel:
            return False
        self._update_next_cursor()
        if isinstance(self._channel, TurnReader):
            self.items.extend(self._channel.receive_ready(MAX_BATCH - 1))
        return True

    def _update_next_cursor(self) -> int | None:
        if isinstance(self._channel, SessionFollower | ObservationReader | RemoteReader):
            self._next_cursor = self._channel.cursor
        return self._next_cursor

    def pop(self) -> T:
        """Remove and return the oldest buffered item."""
        item = self.items.popleft()
        self.cursor = self._next_cursor
        return item


@asynccontextmanager
async def entered_on_trio(make: Callable[[], AbstractAsyncContextManager[T]]) -> AsyncGenerator[T, None]:
    """Open an `async with` block that calls `make` and enters the context manager that `make` returns.

    So `make` is called in trio's thread, which some factories require.
    """
    async with make() as value:
        yield value
