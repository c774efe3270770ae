"""`Batches`: a queue whose items are processed in batches."""

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Batches(Generic[T]):
    """A queue whose items are processed in batches."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[T](math.inf)

    def put(self, item: T) -> None:
        """Add an item to the next batch without waiting. The number of items is unbounded."""
        self._send.send_nowait(item)

    async def run(
        self, process: Callable[[Sequence[T]], Awaitable[None]], *, window_seconds: float = 0.0
    ) -> None:
        """Process batches until cancelled. A batch collects the items that arrive within `window_seconds` of its first item."""
        async for first in self._receive:
            await trio.sleep(window_seconds)
            waiting = self._receive.statistics().current_buffer_used
            await process([first, *(self._receive.receive_nowait() for _ in range(waiting))])
