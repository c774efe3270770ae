"""Channels that a client reads from, filled by a task beside the reader's block."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

import trio

from actgent.errors import ActgentError

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class PutItem(Protocol[T_contra]):
    """Takes what is for a reader, and the cursor to go on from once it was received, where that is known."""

    def __call__(self, item: T_contra, cursor: int | None = None) -> Awaitable[None]: ...


CAPACITY = 100
"""Things that wait for a reader; behind them the stream of the server waits, and then ends, to be taken up by its cursor."""


class RemoteReader(trio.abc.ReceiveChannel[T], Generic[T]):
    """One reader's end."""

    def __init__(self, channel: trio.MemoryReceiveChannel[tuple[T, int | None]]) -> None:
        self._channel = channel
        self.cursor: int | None = None
        """The number of the last record of which all was received, to go on `after` it; None of what has no numbers."""
        self.error: ActgentError | None = None
        """Why no more comes, where that is no end."""

    async def receive(self) -> T:
        """The next thing.

        Raises:
            trio.EndOfChannel: there is no more.
            ActgentError: there is more, and it cannot be had.
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
        """Read no more."""
        await self._channel.aclose()


@asynccontextmanager
async def reading(fill: Callable[[PutItem[T]], Awaitable[None]]) -> AsyncGenerator[RemoteReader[T], None]:
    """A channel that `fill` puts things into, until it returns or the block is left."""
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
                pass  # nobody reads any more

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
