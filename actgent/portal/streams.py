"""What comes of a message, or happens in a session, read in synchronous code and in asyncio."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import trio

from actgent.errors import PortalClosed
from actgent.support.leads import for_asyncio_streams, for_portal_streams

from .held import ChannelReading, HeldBlock
from .thread import TrioThread

T = TypeVar("T")


class _Stream(Generic[T]):
    """A channel of trio's, for code that does not run there; `call` and `send` are those of its portal."""

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
        self._reading = ChannelReading[T]()

    @property
    def cursor(self) -> int | None:
        """The number of the record that was read last, to go on `after` it; None of other streams than a session's."""
        return self._reading.cursor

    def _abandon(self) -> None:
        with suppress(PortalClosed):
            self._send(self._block.abandon)


@for_portal_streams
class PortalStream(_Stream[T]):
    """What comes of a message, for `with` and `for`: `with agent.stream("...") as events: for event in events: ...`.

    A slow reader slows the model's stream down. Leaving the block early stops the turn; that of `session.follow()` and
    `session.observe()`, the reading alone.
    """

    def __enter__(self) -> Self:
        try:
            self._call(self._reading.open, self._block)
        except BaseException:
            self._abandon()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(PortalClosed):  # then it is left already
            self._call(self._block.leave, error)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if not self._reading.items and not self._call(self._reading.fill):
            raise StopIteration
        return self._reading.take()


@for_asyncio_streams
class AsyncPortalStream(_Stream[T]):
    """What comes of a message, for `async with` and `async for`.

    A slow reader slows the model's stream down. Leaving the block early stops the turn; that of `session.follow()` and
    `session.observe()`, the reading alone.
    """

    async def __aenter__(self) -> Self:
        try:
            await self._call(self._reading.open, self._block)
        except BaseException:
            self._abandon()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(PortalClosed):  # then it is left already
            await self._call(self._block.leave, error)  # noqa: ASYNC102 - of asyncio; it ends with its portal

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if not self._reading.items and not await self._call(self._reading.fill):
            raise StopAsyncIteration
        return self._reading.take()
