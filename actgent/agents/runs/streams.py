"""Reading along with a turn: of what is said, or of one that waits for people."""

import math
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import trio

from actgent.errors import DeadlineExceeded, UsageError
from actgent.runtime.approval_decisions import follow
from actgent.runtime.sessions.opener import SessionOpener
from actgent.runtime.slots import slot_lent
from actgent.sessions.context import SessionContext, host_of
from actgent.sessions.waiting.turn_future import TurnFuture
from actgent.sessions.waiting.turn_reader import TurnReader

from .answers import address, send
from .question import Question

STREAM_CAPACITY = 100
"""The number of deliveries of a stream that may wait for their reader before the next token does."""


@asynccontextmanager
async def read_along(
    opener: SessionOpener, said: Question, future: TurnFuture, reader: TurnReader[Any]
) -> AsyncGenerator[None, None]:
    """Say something; leaving the block ends the reading, and the turn if it still runs. See `Agent.stream`.

    Raises:
        DeadlineExceeded: there was no room in the inbox within the question's timeout.
    """
    running = opener.running
    asked = address(opener, said.session)
    timeout = math.inf if said.timeout is None else said.timeout
    over, error = trio.current_time() + timeout, DeadlineExceeded(f"agent {running.name!r}", timeout)
    future.wait_until(over)  # before it is sent: its turn may begin at once
    with slot_lent(asked):
        with trio.CancelScope(deadline=over) as limit:
            await send(opener, said, asked, future)
        if limit.cancelled_caught:
            raise error
        with _expiring(opener, future, over, error):
            async with _reading(asked, future, reader):
                yield
    if not reader.is_heeded:
        running.core.dispatcher.reports.stream_ended(asked, future)


@asynccontextmanager
async def read_suspended(
    context: SessionContext, future: TurnFuture, reader: TurnReader[Any]
) -> AsyncGenerator[None, None]:
    """Read what comes of a suspended turn when it goes on; see `Agent.follow`.

    Raises:
        NotSuspended: no turn of the session waits for a person.
    """
    with slot_lent(context), follow(context, future):
        async with _reading(context, future, reader):
            yield


@contextmanager
def _expiring(opener: SessionOpener, future: TurnFuture, over: float, error: Exception) -> Iterator[None]:
    """End what someone waits for at a time of trio's clock, unless the block has been left by then."""
    if over == math.inf:
        yield
        return
    handle = opener.running.runner.turn_lifecycle.timer.call_at(over, partial(future.expire, error))
    try:
        yield
    finally:
        handle.cancel()


@asynccontextmanager
async def _reading(
    context: SessionContext, future: TurnFuture, reader: TurnReader[Any]
) -> AsyncGenerator[None, None]:
    """Read along; leaving the block stops the turn, if it still runs and nobody else waits for it.

    Not where a decision comes too late (a `UsageError`): then somebody else's counts, and goes on with the turn.
    """
    try:
        yield
    except (trio.Cancelled, BaseExceptionGroup):
        await future.leave(host_of(context))  # noqa: ASYNC102 - one shielded checkpoint
        raise
    except UsageError:
        if not future.is_guest:
            future.abandon()
        raise
    except BaseException:
        future.abandon()
        raise
    finally:
        reader.close()
    future.abandon()
