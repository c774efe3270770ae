"""Runs whose deliveries are streamed to a reader: of a new message, and of a suspended turn."""

import math
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import trio

from actgent.errors import DeadlineExceeded, UsageError
from actgent.runtime.approval_decisions import follow
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.runtime.waits_between_sessions import add_sources_of_session, releasing_slot
from actgent.sessions.pending.turn_future import TurnFuture
from actgent.sessions.pending.turn_output_stream import TurnReader
from actgent.sessions.session_context import SessionContext, host_of

from .await_reply import send, target_session
from .run_request import RunRequest

STREAM_CAPACITY = 100
"""Maximum number of unread deliveries of a stream. At this number, the next token waits for the reader."""


@asynccontextmanager
async def open_stream(
    opener: SessionOpener, request: RunRequest, future: TurnFuture, reader: TurnReader[Any]
) -> AsyncGenerator[None, None]:
    """Send a message and fill `reader` with the deliveries of its turn. Leaving the block stops the turn.

    Raises:
        DeadlineExceeded: The inbox had no room within the timeout of the request.
    """
    running = opener.running
    target = target_session(opener, request.session)
    timeout = math.inf if request.timeout is None else request.timeout
    deadline, error = trio.current_time() + timeout, DeadlineExceeded(f"agent {running.name!r}", timeout)
    future.wait_until(deadline)  # before sending, since the turn may start immediately
    with releasing_slot(target):
        with trio.CancelScope(deadline=deadline) as limit:
            await send(opener, request, target, future)
        if limit.cancelled_caught:
            raise error
        with _expiring(opener, future, deadline, error):
            async with _closing_reader(target, future, reader):
                yield
    if not reader.is_heeded:
        running.core.dispatcher.failure_logger.warn_unanswered_stream(target, future)


@asynccontextmanager
async def open_resumed_stream(
    context: SessionContext, future: TurnFuture, reader: TurnReader[Any]
) -> AsyncGenerator[None, None]:
    """Fill `reader` with the deliveries of a suspended turn after it resumes. Leaving the block stops the turn.

    Raises:
        NotSuspended: No turn of the session waits for an approval.
    """
    with releasing_slot(context), follow(context, future):
        async with _closing_reader(context, future, reader):
            yield


@contextmanager
def _expiring(opener: SessionOpener, future: TurnFuture, deadline: float, error: Exception) -> Iterator[None]:
    """Fail the future of a turn with `error` if the block is still running at `deadline`, in seconds of trio's clock.

    Infinity sets no time limit.
    """
    if deadline == math.inf:
        yield
        return
    handle = opener.running.runner.turn_lifecycle.timer.call_at(deadline, partial(future.expire, error))
    try:
        yield
    finally:
        handle.cancel()


@asynccontextmanager
async def _closing_reader(
    context: SessionContext, future: TurnFuture, reader: TurnReader[Any]
) -> AsyncGenerator[None, None]:
    """Close the reader of a turn's deliveries when the block exits.

    An early exit stops the turn, unless another caller waits for it.

    If the block fails with a `UsageError`, e.g. because an approval was already decided, the turn continues for other callers.
    """
    try:
        yield
    except (trio.Cancelled, BaseExceptionGroup):
        await future.leave(host_of(context))  # noqa: ASYNC102 - one shielded checkpoint
        raise
    except UsageError:
        if not future.joined_suspended_turn:
            future.abandon()
        raise
    except BaseException:
        future.abandon()
        raise
    finally:
        reader.close()
        add_sources_of_session(context)
    future.abandon()
