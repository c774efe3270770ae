"""Trees of sessions that are closed, with what only the journal has of them since a restart or a move."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import attrs
import trio

from actgent.errors import (
    ActgentError,
    Fenced,
    JournalFailed,
    JournalFull,
    NotRunning,
    SessionClosed,
    SessionMoved,
    SessionNotFound,
)
from actgent.journal.base import Journal
from actgent.journal.listing import SessionKey
from actgent.sessions.context import SessionContext, host_of
from actgent.support.logs import Each, logger_of

from .lifecycle import write_end
from .opener import SessionOpener

RETRY = 1.0
"""Seconds after which a journal that failed is asked again."""
AT_LAST = 1.0
"""Seconds in which what is below is closed while the agent ends."""
_log = logger_of(__name__)


async def close_tree(
    context: SessionContext, journal: Journal | None, opener_of: Callable[[str], SessionOpener]
) -> None:
    """Close a session and all below it; no next start goes on with any of them. What is in memory is closed at the call.

    Its own end is written behind those of all below it: who dies before that leaves it open, to be closed again. Where the
    journal fails, or the caller is cancelled, that goes on by itself.

    Raises:
        JournalError: they are closed, and the journal does not know.
        SessionMoved: another process goes on with them.
    """
    if context.is_silent and journal is not None and not host_of(context).is_stopping:
        await _close_unerased(context.key, journal, opener_of)
        return
    closing = _Closing(context, journal, opener_of)
    with ExitStack() as keeping:
        keeping.enter_context(host_of(context).kept(context))
        try:
            await closing.close_below()
        except BaseException as error:
            if not isinstance(error, SessionMoved | Fenced):
                closing.go_on(keeping.pop_all())
            raise
    await write_end(context)


@attrs.define(eq=False)
class _Closing:
    """A session that is closed, kept in memory until all below it is: its end is written then."""

    _context: SessionContext
    _journal: Journal | None
    _opener_of: Callable[[str], SessionOpener]
    _below: Sequence[SessionContext] = attrs.field(init=False)
    """What is in memory below it."""

    def __attrs_post_init__(self) -> None:
        self._below = self._context.family()[:0:-1]

    async def close_below(self) -> None:
        """Close the session in memory, and all below it durably; raises as `close_tree`."""
        await self._close_loaded()
        if self._stored is not None:
            await close_below(self._context.key, self._stored, self._opener_of)

    @property
    def _stored(self) -> Journal | None:
        """The journal, where it may have more below the session than is in memory."""
        log = self._context.log
        are_left = any(self._is_left(each) for each in self._below)
        return self._journal if log is not None and (log.creation is None or are_left) else None

    def _is_left(self, below: SessionContext) -> bool:
        """Return True if a session is of another agent that has ended, which may have been started again."""
        return below.host is not self._context.host and host_of(below).has_ended

    async def _close_loaded(self) -> None:
        await host_of(self._context).close(self._context)
        for each in self._below:
            if not self._is_left(each):
                await write_end(each)

    async def _close_shortly(self, otherwise: ExitStack) -> None:
        """Close what is in memory as its agent ends; the others may have ended, who know of what is not."""
        with trio.move_on_after(AT_LAST, shield=True), suppress(ActgentError):
            await self._close_loaded()
            if self._stored is None or not await _open_below(self._context.key, self._stored):
                otherwise.pop_all()

    def go_on(self, keeping: ExitStack) -> None:
        """Close what is below without the caller."""
        with suppress(NotRunning):
            if self._opener_of(self._context.agent).running.runner.start_soon(self._close_at_last, keeping):
                return
        with keeping:
            self._leave_open()  # its agent ends

    async def _close_at_last(self, keeping: ExitStack) -> None:
        with keeping, ExitStack() as otherwise:
            otherwise.callback(self._leave_open)
            try:
                await self._close_patiently()
            except ActgentError as error:
                _log.warning("the closed session %s stays open: %s", Each(self._context.id), Each(str(error)))
                return
            except BaseException:
                await self._close_shortly(otherwise)  # noqa: ASYNC102 - it shields itself, with a time limit
                raise
            otherwise.pop_all()

    async def _close_patiently(self) -> None:
        """Close what is below, again where the journal fails."""
        while True:
            with suppress(JournalFull, JournalFailed):
                return await self.close_below()
            await trio.sleep(RETRY)

    def _leave_open(self) -> None:
        """Forget the session without its end: the journal has it open, and whoever opens it may close all of it again."""
        if not self._context.has_moved:
            host_of(self._context).discard(self._context)


async def close_below(key: SessionKey, journal: Journal, opener_of: Callable[[str], SessionOpener]) -> None:
    """Close all below a session that is closed, as far as the journal knows that it is open; raises as `close_tree`."""
    waiting = [key]
    while waiting:
        below = await journal.children_of(waiting)
        waiting = [head.key for head in below]
        for head in below:
            if not head.closed:
                await _close_stored(head.key, journal, opener_of)


async def _close_unerased(
    key: SessionKey, journal: Journal, opener_of: Callable[[str], SessionOpener]
) -> None:
    """Close a session that was to be erased, and all below it, as far as the journal has them still: perhaps it failed at that."""
    if (head := await journal.head(*key)) is not None:
        await close_below(key, journal, opener_of)
        if not head.closed:
            await _close_stored(key, journal, opener_of)


async def _open_below(key: SessionKey, journal: Journal) -> bool:
    waiting, found = [key], False
    while waiting and not found:
        below = await journal.children_of(waiting)
        waiting, found = [head.key for head in below], not all(head.closed for head in below)
    return found


async def _close_stored(key: SessionKey, journal: Journal, opener_of: Callable[[str], SessionOpener]) -> None:
    """Close a session that the journal has, by its agent, durably: who waits for something in it hears of the end."""
    try:
        context = await opener_of(key.agent).find(key.session_id)
    except (Fenced, JournalFull, JournalFailed):
        raise
    except (SessionClosed, SessionNotFound):
        await journal.head(*key)  # perhaps somebody else has just closed it: that is written first
        return
    except ActgentError as error:
        _log.warning(
            "session %s stays open, above which all is closed: %s", Each(key.session_id), Each(str(error))
        )
        return
    except Exception:  # noqa: BLE001 - perhaps of a developer's `on_session`; the others are closed all the same
        _log.exception("session %s stays open, above which all is closed", Each(key.session_id))
        return
    for closed in await host_of(context).close(context):
        await write_end(closed)
