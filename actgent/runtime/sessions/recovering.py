"""Sessions of the journal that go on by themselves: those with something unfinished, and those in which something has a date."""

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
from actgent.journal.base import Journal
from actgent.journal.listing import SessionKey
from actgent.support.logs import Each, logger_of

from .leaving import IsLeft
from .opener import SessionOpener

Choose = Callable[[Sequence[SessionKey]], Awaitable[Iterable[SessionKey]]]
"""Gets sessions with something unfinished before any of them is opened, and returns those that may be."""
SIDE_BY_SIDE = 16
"""How many sessions are opened at a time where a process takes over what others had."""
_log = logger_of(__name__)


async def recover(opener: SessionOpener) -> None:
    """See `Agent.recover`."""
    running = opener.running
    await running.ready.wait()
    if running.journal is None:
        return
    for session_id in await running.journal.unfinished(running.name):
        await opener.wait_opened(session_id)
        if session_id not in running.sessions:
            await _go_on(opener, session_id)
    running.timer_service.load(await running.journal.due(running.name))


async def _go_on(opener: SessionOpener, session_id: str) -> None:
    """Open a session, so that what waits in it goes on; one that cannot be is left out."""
    try:
        with opener.opens(session_id):
            await opener.reopen(session_id)
    except (JournalDamaged, WireError, DepsMissing) as error:
        _log.error("agent %s leaves a session out: %s", opener.running.name, error)
    except (SessionClosed, SessionNotFound, SessionMoved):
        pass  # another agent that started earlier opened it, and it has ended since it was listed; or another process has it


# --- in a process that runs already --------------------------------------------------------


async def take_up(
    openers: Sequence[SessionOpener], is_taken: IsLeft, choose: Choose | None, side_by_side: int
) -> int:
    """See `Runtime.take_up`."""
    by_agent = {opener.running.name: opener for opener in openers if opener.running.journal is not None}
    found = [await _unfinished(opener, is_taken) for opener in by_agent.values()]
    keys = [key for keys in itertools.zip_longest(*found) for key in keys if key is not None]
    if choose is not None:
        keys = list(await choose(keys))
    taking = _Taking(deque((by_agent[key.agent], key.session_id) for key in keys))
    async with trio.open_nursery() as nursery:
        for _ in range(min(side_by_side, len(keys))):
            nursery.start_soon(taking.work)
    if taking.error is not None:
        raise taking.error
    await trio.lowlevel.checkpoint()
    return taking.opened


async def _unfinished(opener: SessionOpener, is_taken: IsLeft) -> list[SessionKey]:
    """The sessions of an agent that are to be opened, oldest first; the dates of others are watched from now on."""
    running = opener.running
    await running.ready.wait()
    journal: Journal | None = running.journal
    assert journal is not None  # noqa: S101 - the caller saw to it
    running.timer_service.load([each for each in await journal.due(running.name) if is_taken(each[0])])
    unfinished = await journal.unfinished(running.name)
    return [
        SessionKey(running.name, each) for each in unfinished if is_taken(each) and not _lives(opener, each)
    ]


def _lives(opener: SessionOpener, session_id: str) -> bool:
    """Return True if a session is in memory, and does not leave it just now."""
    context = opener.running.sessions.get(session_id)
    return context is not None and not context.has_moved


@attrs.define(eq=False)
class _Taking:
    """Sessions that are opened some at a time."""

    waiting: deque[tuple[SessionOpener, str]]
    opened: int = 0
    error: JournalError | None = None
    """Of the journal, which ends it."""

    async def work(self) -> None:
        while self.waiting and self.error is None:
            opener, session_id = self.waiting.popleft()
            try:
                is_open = await _open_once(opener, session_id)
            except JournalError as error:
                self.error = error
            except Exception:  # noqa: BLE001 - perhaps of a developer's `on_session`; other sessions go on all the same
                name = opener.running.name
                _log.exception("agent %s: session %s cannot be opened", name, Each(session_id))
            else:
                self.opened += is_open


async def _open_once(opener: SessionOpener, session_id: str) -> bool:
    """Open a session that is not in memory; False where it is, or cannot be opened."""
    await opener.wait_opened(session_id)
    sessions = opener.running.sessions
    if session_id in sessions:
        return False
    await _go_on(opener, session_id)
    return session_id in sessions
