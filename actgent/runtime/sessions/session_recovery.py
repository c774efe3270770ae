"""Resuming of sessions from the journal: sessions with unfinished work, and sessions with timers."""

import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

import attrs
import trio

from actgent.errors import (
    DepsMissing,
    JournalDamaged,
    JournalError,
    SessionClosed,
    SessionMoved,
    SessionNotFound,
    WireError,
)
from actgent.journal.journal_interface import Journal
from actgent.journal.session_list_queries import SessionKey
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.plain_nursery import plain_nursery
from actgent.support.safe_logging import LogVariable, logger_of

from .moved_session_eviction import SessionPredicate
from .session_opener import SessionOpener

ChooseSessions = Callable[[Sequence[SessionKey]], Awaitable[Iterable[SessionKey]]]
"""Function that gets the keys of all unfinished sessions before any is opened, and returns those that may be opened."""
MAX_CONCURRENT_OPENS = 16
"""Maximum number of sessions that are opened concurrently after a takeover."""
_log = logger_of(__name__)


async def recover(opener: SessionOpener) -> None:
    """Open the sessions of an agent that have unfinished work in the journal, and load the timers of all its sessions."""
    running = opener.running
    await running.wait_ready()
    if running.journal is None:
        return
    for session_id in await running.journal.unfinished(running.name):
        await opener.wait_opened(session_id)
        if session_id not in running.sessions:
            await _resume_session(opener, session_id)
    running.timer_service.load(await running.journal.due(running.name))


async def _resume_session(opener: SessionOpener, session_id: str) -> None:
    """Open a session so that its unfinished work resumes. If the session cannot be opened, log the error and return."""
    try:
        with opener.marked_as_opening(session_id):
            await opener.reopen(session_id)
    except (JournalDamaged, WireError, DepsMissing) as error:
        _log.error("agent %s skips a session: %s", opener.running.name, error)
    except (SessionClosed, SessionNotFound, SessionMoved):
        pass  # the session has ended since it was listed, or another process owns it


# --- in a process that runs already --------------------------------------------------------


async def resume_acquired(
    openers: Sequence[SessionOpener],
    is_acquired: SessionPredicate,
    choose: ChooseSessions | None,
    max_concurrent_opens: int,
) -> int:
    """Resume the sessions that this process has acquired. Return the number of opened sessions.

    Args:
        openers: Session openers of all agents.
        is_acquired: Selects the acquired sessions by id.
        choose: Function that gets the keys of the sessions to open and returns those that may be opened; None opens all.
        max_concurrent_opens: Maximum number of sessions that are opened concurrently.
    """
    by_agent = {opener.running.name: opener for opener in openers if opener.running.journal is not None}
    found: dict[str, list[SessionKey]] = {name: [] for name in by_agent}
    errors: list[JournalError] = []

    async def find(name: str) -> None:
        try:
            found[name] = await _list_unfinished_sessions(by_agent[name], is_acquired)
        except JournalError as error:
            errors.append(error)

    async with plain_nursery() as nursery:  # concurrent reads, which the journal batches
        for name in by_agent:
            nursery.start_soon(find, name)
    if errors:
        raise errors[0]
    keys = [key for keys in itertools.zip_longest(*found.values()) for key in keys if key is not None]
    if choose is not None:
        keys = list(await choose(keys))
    taking = _OpeningPool(deque((by_agent[key.agent], key.session_id) for key in keys))
    async with trio.open_nursery() as nursery:
        for _ in range(min(max_concurrent_opens, len(keys))):
            nursery.start_soon(taking.work)
    if taking.error is not None:
        raise taking.error
    await trio.lowlevel.checkpoint()
    return taking.opened


async def _list_unfinished_sessions(opener: SessionOpener, is_acquired: SessionPredicate) -> list[SessionKey]:
    """Return the keys of an agent's sessions with unfinished work that are not in memory, oldest first.

    Only sessions whose ids `is_acquired` accepts are returned. Their timers are loaded into the timer index.
    """
    running = opener.running
    await running.wait_ready()
    journal: Journal | None = running.journal
    assert journal is not None  # noqa: S101 - the caller has checked it
    running.timer_service.load([each for each in await journal.due(running.name) if is_acquired(each[0])])
    unfinished = await journal.unfinished(running.name)
    return [
        SessionKey(running.name, each)
        for each in unfinished
        if is_acquired(each) and not _is_loaded(opener, each)
    ]


def _is_loaded(opener: SessionOpener, session_id: str) -> bool:
    """Return True if a session is in memory and is not being evicted."""
    context = opener.running.sessions.get(session_id)
    return context is not None and not context.has_moved


@attrs.define(eq=False, repr=False)
class _OpeningPool(FieldRepr):
    """Worker pool that opens the acquired sessions, with limited concurrency."""

    waiting: deque[tuple[SessionOpener, str]]
    opened: int = 0
    error: JournalError | None = None
    """Journal error that stopped the workers; None if there was none."""

    async def work(self) -> None:
        """Open sessions of the queue `waiting` until it is empty or the journal has failed."""
        while self.waiting and self.error is None:
            opener, session_id = self.waiting.popleft()
            try:
                is_open = await _open_once(opener, session_id)
            except JournalError as error:
                self.error = error
            except Exception:  # noqa: BLE001 - e.g. of a user's `on_session`; the other sessions are still opened
                name = opener.running.name
                _log.exception("agent %s: session %s cannot be opened", name, LogVariable(session_id))
            else:
                self.opened += is_open


async def _open_once(opener: SessionOpener, session_id: str) -> bool:
    """Open a session so that its unfinished work resumes. Return False if it was in memory already, or could not be opened."""
    await opener.wait_opened(session_id)
    sessions = opener.running.sessions
    if session_id in sessions:
        return False
    await _resume_session(opener, session_id)
    return session_id in sessions
