"""Tasks of trio: what comes one by one and is dealt with together, and nurseries that say errors as they are."""

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
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


@asynccontextmanager
async def plain_nursery() -> AsyncGenerator[trio.Nursery, None]:
    """A nursery whose block raises its own error as itself; only what tasks of it raise comes in a group, as ever."""
    raised: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except Exception as error:
                raised = error
                raise
    except ExceptionGroup as group:
        if raised is None or group.exceptions != (raised,):
            raise
    if raised is not None:
        raise raised
