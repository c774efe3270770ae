"""Trees of sessions that are closed, with what only the journal has of them since a restart or a move."""

from collections.abc import Callable

from actgent.errors import ActgentError, Fenced, JournalError, SessionClosed, SessionNotFound
from actgent.journal.base import Journal
from actgent.journal.listing import SessionKey
from actgent.sessions.context import SessionContext, host_of
from actgent.support.logs import Each, logger_of

from .lifecycle import write_end
from .opener import SessionOpener

_log = logger_of(__name__)


async def close_tree(
    context: SessionContext, journal: Journal | None, opener_of: Callable[[str], SessionOpener]
) -> None:
    """Close a session and all below it; no next start goes on with any of them. What is in memory is closed at the call.

    Raises:
        JournalError: they are closed, and the journal does not know.
        SessionMoved: another process goes on with them.
    """
    log = context.log
    await _close(context)
    if journal is None or log is None or not log.has_come_back:
        return  # all below it is in memory
    await close_below(context.key, journal, opener_of)


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
