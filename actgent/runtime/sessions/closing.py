"""Trees of sessions that are closed, with what only the journal has of them since a restart or a move."""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial

import trio

from actgent.errors import ActgentError, Fenced, JournalError, NotRunning, SessionClosed, SessionNotFound
from actgent.journal.base import Journal
from actgent.journal.listing import SessionKey
from actgent.sessions.context import SessionContext, host_of
from actgent.support.logs import Each, logger_of

from .lifecycle import write_end
from .opener import SessionOpener

_log = logger_of(__name__)
_LEFT_OPEN = "what is below the closed session %s may stay open: %s"


async def close_tree(
    context: SessionContext, journal: Journal | None, opener_of: Callable[[str], SessionOpener]
) -> None:
    """Close a session and all below it; no next start goes on with any of them. What is in memory is closed at the call.

    Its own end is written behind those of all below it: who dies before that leaves it open, to be closed again.

    Raises:
        JournalError: they are closed, and the journal does not know.
        SessionMoved: another process goes on with them.
    """
    host, log = host_of(context), context.log
    close_stored: Callable[[], Awaitable[None]] | None = None
    if journal is not None and log is not None and log.has_come_back:  # else all below it is in memory
        close_stored = partial(close_below, context.key, journal, opener_of)
    with host.kept(context):
        try:
            closed = await host.close(context)
            if close_stored is not None:
                await close_stored()
        except trio.Cancelled:
            if close_stored is not None:
                _go_on(context, opener_of, close_stored)
            raise
    for each in closed:
        await write_end(each)


def _go_on(
    context: SessionContext,
    opener_of: Callable[[str], SessionOpener],
    close_stored: Callable[[], Awaitable[None]],
) -> None:
    """Close what is below without the caller, who was cancelled: the session is closed all the same."""

    async def close() -> None:
        with keeping:
            try:
                await close_stored()
            except ActgentError as error:
                _log.warning(_LEFT_OPEN, Each(context.id), Each(str(error)))

    keeping = ExitStack()
    keeping.enter_context(host_of(context).kept(context))
    with suppress(NotRunning):
        if opener_of(context.agent).running.runner.start_soon(close):
            return
    keeping.close()  # its agent ends


async def close_below(key: SessionKey, journal: Journal, opener_of: Callable[[str], SessionOpener]) -> None:
    """Close all below a session that is closed, as far as the journal knows that it is open; raises as `close_tree`."""
    waiting = [key]
    while waiting:
        below = await journal.children_of(waiting)
        waiting = [head.key for head in below]
        for head in below:
            if not head.closed:
                await _close_stored(head.key, opener_of)


async def _close(context: SessionContext) -> None:
    for closed in await host_of(context).close(context):
        await write_end(closed)


async def _close_stored(key: SessionKey, opener_of: Callable[[str], SessionOpener]) -> None:
    """Close a session that the journal has, by its agent: who waits for something in it hears of the end."""
    try:
        context = await opener_of(key.agent).find(key.session_id)
    except (Fenced, JournalError):
        raise
    except (SessionClosed, SessionNotFound):
        return
    except ActgentError as error:
        _log.warning(
            "session %s stays open, above which all is closed: %s", Each(key.session_id), Each(str(error))
        )
        return
    await _close(context)
