"""Streams of deliveries and observations, for synchronous code and asyncio."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import trio

from actgent.errors import PortalClosed
from actgent.support.common_mistake_hints import hints_for_asyncio_streams, hints_for_portal_streams

from .trio_context_managers import ChannelBuffer, HeldBlock
from .trio_thread import TrioThread

T = TypeVar("T")


class _Stream(Generic[T]):
    """Stream that reads a trio channel from another thread.

    Args:
        thread: Trio thread of the portal.
        call: Method `call` of the portal.
        send: Method `send` of the portal.
        block: Async context manager on trio that yields the channel.
    """

    def __init__(
        self,
        thread: TrioThread[Any],
        call: Callable[..., Any],
        send: Callable[..., object],
        block: AbstractAsyncContextManager[trio.abc.ReceiveChannel[T]],
    ) -> None:
        self._call = call
        self._send = send
        self._block = HeldBlock(thread, block)
        self._buffer = ChannelBuffer[T]()

    @property
    def cursor(self) -> int | None:
        """Number of the last journal record that was read; pass it as `after` to continue. None for streams without records."""
        return self._buffer.cursor

    def _abandon(self) -> None:
        with suppress(PortalClosed):
            self._send(self._block.abandon)


@hints_for_portal_streams
class PortalStream(_Stream[T]):
    """Stream of deliveries or observations: `with agent.stream("...") as deliveries:`.

    A slow reader slows down the model's stream. Exiting a stream of `agent.stream` early stops the turn; exiting
    `session.follow()` or `session.observe()` only stops reading.
    """

    def __enter__(self) -> Self:
        try:
            self._call(self._buffer.open, self._block)
        except BaseException:
            self._abandon()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(PortalClosed):  # the portal has already exited the block
            self._call(self._block.exit, error)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if not self._buffer.items and not self._call(self._buffer.fill):
            raise StopIteration
        return self._buffer.pop()


@hints_for_asyncio_streams
class AsyncPortalStream(_Stream[T]):
    """Stream of deliveries or observations: `async with agent.stream("...") as deliveries:`.

    A slow reader slows down the model's stream. Exiting a stream of `agent.stream` early stops the turn; exiting
    `session.follow()` or `session.observe()` only stops reading.
    """

    async def __aenter__(self) -> Self:
        try:
            await self._call(self._buffer.open, self._block)
        except BaseException:
            self._abandon()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(PortalClosed):  # the portal has already exited the block
            await self._call(self._block.exit, error)  # noqa: ASYNC102 - a wait in asyncio, which ends when the portal stops

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if not self._buffer.items and not await self._call(self._buffer.fill):
            raise StopAsyncIteration
        return self._buffer.pop()
