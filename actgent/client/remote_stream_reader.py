"""`RemoteReader`: receive channel of a client's stream, filled by a background task."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

import trio

from actgent.errors import ActgentError

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class PutItem(Protocol[T_contra]):
    """Function that puts an item into a reader's channel. `cursor` is the number of the item's record; None without a record."""

    def __call__(self, item: T_contra, cursor: int | None = None) -> Awaitable[None]: ...


CAPACITY = 100
"""Number of items buffered for a slow reader. If the buffer is full, the client stops reading from the server until it has room."""


class RemoteReader(trio.abc.ReceiveChannel[T], Generic[T]):
    """Receive channel with the items of a stream from the server. Read it with `async for`."""

    def __init__(self, channel: trio.MemoryReceiveChannel[tuple[T, int | None]]) -> None:
        self._channel = channel
        self.cursor: int | None = None
        """Number of the last record that was received completely; pass it as `after` to resume. None before the first record."""
        self.error: ActgentError | None = None
        """Error that ended the stream; None if the stream is open or ended normally."""

    async def receive(self) -> T:
        """Wait for the next item of the stream and return it.

        Raises:
            trio.EndOfChannel: The stream ended normally.
            ActgentError: The stream failed; raised after all buffered items were received.
        """
        try:
            item, cursor = await self._channel.receive()
        except trio.EndOfChannel:
            if self.error is not None:
                raise self.error from None
            raise
        self.cursor = self.cursor if cursor is None else cursor
        return item

    async def aclose(self) -> None:
        """Close the channel, and stop the background task and the stream."""
        await self._channel.aclose()


@asynccontextmanager
async def open_reader(fill: Callable[[PutItem[T]], Awaitable[None]]) -> AsyncGenerator[RemoteReader[T], None]:
    """Open an `async with` block with a `RemoteReader`, which `fill` fills in a background task.

    The reader ends when `fill` returns. Leaving the block cancels `fill`.
    """
    send, receive = trio.open_memory_channel[tuple[T, int | None]](CAPACITY)
    reader, raised = RemoteReader(receive), None

    async def put(item: T, cursor: int | None = None) -> None:
        await send.send((item, cursor))

    async def run() -> None:
        with send:
            try:
                await fill(put)
            except ActgentError as error:
                reader.error = error
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the reader has closed the channel

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        try:
            yield reader
        except BaseException as error:  # noqa: ASYNC103, BLE001 - raised again below, not wrapped into a group
            raised = error
        receive.close()
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised
