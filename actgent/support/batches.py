"""Things that come one by one and are dealt with together."""

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Batches(Generic[T]):
    """What waits to be dealt with."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[T](math.inf)

    def put(self, item: T) -> None:
        """Have something dealt with soon."""
        self._send.send_nowait(item)

    async def run(self, deal: Callable[[Sequence[T]], Awaitable[None]], *, together: float = 0.0) -> None:
        """Deal with all that comes within so many seconds, again and again."""
        async for first in self._receive:
            await trio.sleep(together)
            waiting = self._receive.statistics().current_buffer_used
            await deal([first, *(self._receive.receive_nowait() for _ in range(waiting))])
