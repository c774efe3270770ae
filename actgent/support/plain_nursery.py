"""`plain_nursery`: a nursery that raises an error of its block without an exception group."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def plain_nursery() -> AsyncGenerator[trio.Nursery, None]:
    """Open a nursery that raises an error of its block unwrapped; only errors of its tasks are raised in a group."""
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
