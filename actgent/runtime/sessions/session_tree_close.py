"""Closing of session trees, including sessions that are only in the journal after a restart or a migration."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import attrs
import trio

from actgent.errors import (
    ActgentError,
    Fenced,
    JournalError,
    JournalFailed,
    JournalFull,
    NotRunning,
    SessionClosed,
    SessionMoved,
    SessionNotFound,
)
from actgent.journal.journal_interface import Journal
from actgent.journal.session_list_queries import SessionKey
from actgent.sessions.session_context import SessionContext, host_of
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.safe_logging import LogVariable, logger_of

from .session_lifecycle import write_end
from .session_opener import SessionOpener

RETRY_SECONDS = 1.0
"""Seconds between attempts after a journal error."""
CLOSE_TIMEOUT_SECONDS = 1.0
"""Maximum seconds for closing child sessions while the agent stops."""
_log = logger_of(__name__)


async def close_tree(
    context: SessionContext, journal: Journal | None, opener_of: Callable[[str], SessionOpener]
) -> None:
    """Close a session and all its descendants durably. Sessions in memory are closed immediately, before the first wait.

    `opener_of` returns the session opener of an agent by name, which loads descendants that are only in the journal. The close of
    the session itself is recorded last. So after a crash the session is still open, and can be closed again. If the journal fails or
    the caller is cancelled, closing continues in the background.

    Raises:
        JournalError: The sessions are closed in memory, but the journal could not record it.
        NotRunning: The agent has stopped, and the session stays open in the journal.
        SessionMoved: Another process owns the sessions.
    """
    if context.is_silent and journal is not None and not host_of(context).is_stopping:
        # The erasure of the session may have failed.
        if (head := await journal.head(*context.key)) is not None:
            await close_below(context.key, journal, opener_of)
            if not head.closed:
                await _close_stored(context.key, journal, opener_of)
        return
    closing = _Closing(context, journal, opener_of)
    with ExitStack() as keeping:
        keeping.enter_context(host_of(context).kept(context))
        try:
            await closing.close_below()
        except (SessionMoved, Fenced):
            raise
        except JournalError as error:
            if not closing.continue_in_background(keeping.pop_all()):
                raise NotRunning(context.agent) from error
            raise
        except BaseException:
            closing.continue_in_background(keeping.pop_all())
            raise
    await _write_end(context, journal, opener_of)


@contextmanager
def closing_in_background(
    context: SessionContext, journal: Journal | None, opener_of: Callable[[str], SessionOpener]
) -> Iterator[None]:
    """Return a block in which the caller closes a session and its descendants in memory, without records. They stay in memory.

    If the block fails or is cancelled, a background task closes these sessions durably, descendants first.
    """
    closing = _Closing(context, journal, opener_of)
    with ExitStack() as keeping:
        # A kept session does not record its close. Otherwise a crash could leave a closed parent with open children, which no
        # later call would close.
        for each in context.family():
            keeping.enter_context(host_of(each).kept(each))
        try:
            yield
        except BaseException as error:
            if not isinstance(error, SessionMoved):
                closing.continue_in_background(keeping.pop_all())
            raise


@attrs.define(eq=False, repr=False)
class _Closing(FieldRepr):
    """Close of a session tree in progress. The session stays in memory until its descendants are closed and its close is recorded."""

    _context: SessionContext
    _journal: Journal | None
    _opener_of: Callable[[str], SessionOpener]
    _below: Sequence[SessionContext] = attrs.field(init=False)
    """Descendants of the session that are in memory, deepest first."""

    def __attrs_post_init__(self) -> None:
        self._below = self._context.family()[:0:-1]

    async def close_below(self) -> None:
        """Close the session in memory, and its descendants durably. Raise the same errors as `close_tree`."""
        await self._close_loaded()
        if self._stored is not None:
            await close_below(self._context.key, self._stored, self._opener_of)

    @property
    def _stored(self) -> Journal | None:
        """Journal that may contain descendants of the session; None if all descendants are in memory."""
        log = self._context.log
        are_left = any(self._has_agent_stopped(each) for each in self._below)
        if log is None or not (log.creation is None or log.has_withdrawn_child or are_left):
            return None
        return self._journal

    def _has_agent_stopped(self, below: SessionContext) -> bool:
        """Return True if the agent of the descendant session `below` is another agent, and has stopped since the session was loaded."""
        return below.host is not self._context.host and host_of(below).has_ended

    async def _close_loaded(self) -> None:
        """Close the session and its descendants in memory, and record the closes of the descendants."""
        await host_of(self._context).close(self._context)
        for each in self._below:
            if not self._has_agent_stopped(each):
                await _write_end(each, self._journal, self._opener_of)

    async def _close_before_stop(self, otherwise: ExitStack) -> None:
        """Close the sessions in memory within a time limit, because the agent stops.

        `otherwise` has the callback that unloads the session without a record of its close. It is removed if all descendants are
        closed.
        """
        with trio.move_on_after(CLOSE_TIMEOUT_SECONDS, shield=True), suppress(ActgentError):
            await self._close_loaded()
            if self._stored is None or not await _has_open_descendants(self._context.key, self._stored):
                otherwise.pop_all()

    def continue_in_background(self, keeping: ExitStack) -> bool:
        """Continue closing in a background task after the caller was cancelled or the journal failed.

        If the agent is stopping, unload the session instead and return False. The session then stays open in the journal. `keeping`
        keeps the session in memory and is closed at the end.
        """
        with suppress(NotRunning):
            if self._opener_of(self._context.agent).running.runner.start_soon(self._close_at_last, keeping):
                return True
        with keeping:
            self._unload_open()  # its agent is stopping
        return False

    async def _close_at_last(self, keeping: ExitStack) -> None:
        """Close the tree in the background. If that fails, unload the session, which stays open in the journal."""
        with keeping, ExitStack() as otherwise:
            otherwise.callback(self._unload_open)
            try:
                await self._close_with_retries()
            except ActgentError as error:
                _log.warning(
                    "the closed session %s stays open: %s",
                    LogVariable(self._context.id),
                    LogVariable(str(error)),
                )
                return
            except BaseException:
                await self._close_before_stop(otherwise)  # noqa: ASYNC102 - it shields itself, with a time limit
                raise
            otherwise.pop_all()

    async def _close_with_retries(self) -> None:
        """Close the descendants, and retry while the journal fails."""
        while True:
            with suppress(JournalFull, JournalFailed):
                return await self.close_below()
            await trio.sleep(RETRY_SECONDS)

    def _unload_open(self) -> None:
        """Unload the session without recording its close. It stays open in the journal, so that a later owner can close it."""
        if not self._context.has_moved:
            host_of(self._context).discard(self._context)


async def _write_end(
    context: SessionContext, journal: Journal | None, opener_of: Callable[[str], SessionOpener]
) -> None:
    """Record the close of a session durably. Its descendants must have been recorded before. Raise the errors of `write_end`.

    If the session is being restored, first wait until its messages from before the restart have ended. Otherwise the journal would
    contain the records of these messages after the close. Do not wait if the calling task itself is restoring a session of the agent.
    """
    if not _is_restoring(context) or journal is None:
        await write_end(context)
        return
    opener = opener_of(context.agent)
    await opener.wait_opened(context.id)
    if _is_restoring(context) or opener.running.sessions.get(context.id) is context:
        await write_end(context)
    else:  # it has ended, or it could not be restored
        await _close_stored(context.key, journal, opener_of)


def _is_restoring(context: SessionContext) -> bool:
    """Return True if a task calls the `on_session` functions of a loaded session, before its messages from before a restart."""
    return context.opening_task is not None


async def close_below(key: SessionKey, journal: Journal, opener_of: Callable[[str], SessionOpener]) -> None:
    """Close durably all descendants of a closed session that are open in the journal. Raise the same errors as `close_tree`."""
    waiting = [key]
    while waiting:
        below = await journal.children_of(waiting)
        waiting = [head.key for head in below]
        for head in below:
            if not head.closed:
                await _close_stored(head.key, journal, opener_of)


async def _has_open_descendants(key: SessionKey, journal: Journal) -> bool:
    """Return True if the journal has an open descendant of a session."""
    waiting, found = [key], False
    while waiting and not found:
        below = await journal.children_of(waiting)
        waiting, found = [head.key for head in below], not all(head.closed for head in below)
    return found


async def _close_stored(key: SessionKey, journal: Journal, opener_of: Callable[[str], SessionOpener]) -> None:
    """Load a session that is open in the journal, and close it durably. Callers that wait for the session are notified.

    If the session cannot be loaded, log the error and leave the session open.

    Raises:
        Fenced, JournalFull, JournalFailed: The close could not be recorded.
    """
    try:
        context = await opener_of(key.agent).find(key.session_id)
    except (Fenced, JournalFull, JournalFailed):
        raise
    except (SessionClosed, SessionNotFound):
        await journal.head(*key)  # the read waits until a concurrent close is written
        return
    except ActgentError as error:
        _log.warning(
            "session %s stays open, although its child sessions are closed: %s",
            LogVariable(key.session_id),
            LogVariable(str(error)),
        )
        return
    except Exception:  # noqa: BLE001 - e.g. of a user's `on_session`; the other sessions must be closed anyway
        _log.exception(
            "session %s stays open, although its child sessions are closed", LogVariable(key.session_id)
        )
        return
    for closed in await host_of(context).close(context):
        await write_end(closed)
