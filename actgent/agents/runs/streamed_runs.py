"""Runs that stream the deliveries of a turn to a reader: of a new message, or of a suspended turn."""

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
    """Return a block in which a message is sent, and `reader` receives the deliveries of its turn. An early exit stops the turn.

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
    """Return a block in which `reader` receives the deliveries of a suspended turn after it resumes. An early exit stops the turn.

    Raises:
        NotSuspended: No turn of the session waits for an approval.
    """
    with releasing_slot(context), follow(context, future):
        async with _closing_reader(context, future, reader):
            yield


@contextmanager
def _expiring(opener: SessionOpener, future: TurnFuture, deadline: float, error: Exception) -> Iterator[None]:
    """Return a block that ends the wait of `future` with `error` if it is still running at `deadline`.

    `deadline` is in seconds of trio's clock; infinity is no limit.
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
    """Return a block that closes the reader of a turn's deliveries on exit.

    An early exit stops the turn, unless another caller waits for the turn. After a `UsageError`, e.g. because an approval was already
    decided, the turn is not stopped.
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
