"""Sessions that come to this process and leave it while it runs, because several processes own a journal together.

What another process has taken leaves by `evict`; what it is to have leaves by `drain`; what this one has taken goes on by
`take_up`. A session is named by its id alone, since all sessions of an id, and of its tree, have one owner.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import trio

from actgent.errors import Fenced, JournalError, SessionNotFound
from actgent.journal.base import Journal
from actgent.journal.listing import SessionKey
from actgent.runtime.actor import AgentActor
from actgent.runtime.directory import Directory
from actgent.runtime.retention import Sweeper
from actgent.sessions.accounts import Accounts
from actgent.sessions.context import SessionContext, host_of
from actgent.sessions.session_log import SessionLog
from actgent.sessions.turn import Turn
from actgent.support.logs import Each, logger_of

from .elsewhere import Elsewhere
from .leaving import IsLeft, is_stalled
from .recovering import SIDE_BY_SIDE, Choose, take_up

GRACE = 2.0
"""Seconds that running turns have to end where their sessions are about to leave."""
LOOK = 0.05
"""Seconds between two looks at whether a turn that runs waits for people by now, itself or by what it has asked."""
_log = logger_of(__name__)


class Moving:
    """How the sessions of a runtime come and leave."""

    elsewhere: Elsewhere | None = None
    """The way to sessions of other processes; None where there are none."""
    journal: Journal | None
    agents: Directory
    accounts: Accounts
    drains: list[IsLeft]
    _sweeper: Sweeper | None

    async def delete_where_it_lives(
        self, key: SessionKey, delete: Callable[[SessionKey], Awaitable[None]]
    ) -> None:
        """Delete a session here, or have the process do it that has it."""
        try:
            await delete(key)
        except Fenced:
            if self.elsewhere is None:
                raise
            with suppress(SessionNotFound):
                await self.elsewhere.delete_session(key.session_id, agent=key.agent)

    async def evict(self, is_left: IsLeft) -> int:
        """Let go of sessions that another process owns by now; returns, when all turns have ended, how many had to be waited for.

        `is_left` tells it of a session's id; what belongs to a session leaves with it. All of it happens at the call, before
        anything else runs: turns are stopped wherever they are (model call, tool, handler, a write to the journal, waiting
        for people or for their turn), dates are forgotten, nothing more is written, and no handler hears of it. Who waits
        here for what comes of a message (`run`, `stream`, `chat`, `wait_idle`, a session's other methods) gets `SessionMoved`;
        in a stream that is the error of its last delivery, a Failure of the kind `moved`. Cancelled, it only waits no longer.

        A session is opened again here when it has left, and belongs here: until then whoever opens it waits. Where a turn
        finds out by a write that its session was taken, its tree leaves by itself.
        """
        opening = [each for opener in self.agents.openers for each in opener.openings(is_left)]
        stopped = self._leave(is_left)
        for turn in stopped:
            await _wait_ended(turn)
        for each in opening:
            await each.wait()
        await trio.lowlevel.checkpoint()
        return len(stopped)

    def _leave(self, is_left: IsLeft) -> list[Turn]:
        """Let sessions go; returns the turns that still have to end for that, also of those that were let go before."""
        actors = [opener.running for opener in self.agents.openers]
        for actor in actors:
            actor.timer_service.index.forget(is_left)
            for context in _sessions_of(actor, is_left):
                for each in reversed(context.family()):
                    host_of(each).leave(each)
            actor.core.observer.leave(is_left)
        self.accounts.leave(is_left)
        if self._sweeper is not None:
            self._sweeper.leave(is_left)
        leaving = [each for actor in actors for each in actor.sessions.values() if each.has_moved]
        return [each.turn for each in leaving if each.turn is not None]

    @asynccontextmanager
    async def drain(self, is_leaving: IsLeft, *, grace: float = GRACE) -> AsyncGenerator[None, None]:
        """A block in which sessions are not here any more: let another process have them in it, e.g. by `journal.give_back`.

        Before it, nothing new is taken for them (`SessionMoved`), running turns have `grace` seconds to end, and all that
        they did is written; then they leave as by `evict`. So has what is just closing sessions. A turn that waits for people
        is not waited for, nor is one that waits for nothing but those: what it has asked is found again. Messages that wait for
        their turn stay accepted in the journal, for whoever goes on with it. Behind the block a session that is still owned is
        opened again when it is asked for.
        """
        over = trio.current_time() + grace
        with trio.move_on_at(over):
            await self._let_close(is_leaving)
        self.drains.append(is_leaving)
        try:
            with trio.move_on_at(over):
                await self._let_end(is_leaving)
                await self._write(is_leaving)
                await self._let_end(is_leaving)  # what a person was just deciding goes on
            await self._write(is_leaving)
            await self.evict(is_leaving)
            yield
        finally:
            self.drains.remove(is_leaving)

    async def _let_close(self, is_leaving: IsLeft) -> None:
        """Wait for sessions that are just being closed, while what is below them is still found here: nobody else would go on with that."""
        actors = [opener.running for opener in self.agents.openers]
        found = [(actor.sessions, each) for actor in actors for each in _sessions_of(actor, is_leaving)]
        for sessions, context in found:
            while context.closed and not context.has_moved and sessions.find_any(context.id) is context:  # noqa: ASYNC110 - nobody tells
                await trio.sleep(LOOK)

    async def _let_end(self, is_leaving: IsLeft) -> None:
        """Wait for the turns that run, but for those that wait for people."""
        while running := self._hold_back(is_leaving):
            for context, turn in running:
                while context.turn is turn and not is_stalled(context):
                    with trio.move_on_after(LOOK):
                        await _wait_ended(turn)
        await trio.lowlevel.checkpoint()

    def _hold_back(self, is_leaving: IsLeft) -> list[tuple[SessionContext, Turn]]:
        """Let no turn of sessions above all begin, and return those that run."""
        running = []
        for opener in self.agents.openers:
            for context in _sessions_of(opener.running, is_leaving):
                if context.parent is None:  # what is said to the others is of turns that run
                    opener.running.lifecycle.leaving.send_on(context)
                if context.turn is not None and not is_stalled(context):
                    running.append((context, context.turn))
        return running

    async def _write(self, is_leaving: IsLeft) -> None:
        """Have all that was noted written."""
        async with trio.open_nursery() as nursery:
            for opener in self.agents.openers:
                for context in _sessions_of(opener.running, is_leaving):
                    if context.log is not None and (context.turn is None or is_stalled(context)):
                        nursery.start_soon(_flush, context.log)

    async def take_up(
        self,
        is_taken: IsLeft = lambda _: True,
        *,
        choose: Choose | None = None,
        side_by_side: int = SIDE_BY_SIDE,
    ) -> int:
        """Go on with what the journal has of sessions that this process owns by now, as at a start; returns how many were opened.

        Those with something unfinished are opened, oldest first, some side by side, and their dates are watched; the others
        when somebody asks for them. Sessions in memory are left as they are. Call it after `PartitionedJournal.take`.

        `choose` gets all that would be opened before any is, and returns what may be: so crashes are counted first.

        Raises:
            JournalError: the journal could not be read; call it again.
        """
        return await take_up(self.agents.openers, is_taken, choose, side_by_side)


def _sessions_of(actor: AgentActor, is_wanted: IsLeft) -> Iterator[SessionContext]:
    for session_id in actor.sessions.known_ids():
        if is_wanted(session_id) and (context := actor.sessions.reload_any(session_id)) is not None:
            yield context


async def _wait_ended(turn: Turn) -> None:
    if turn.control.state != "over":
        if turn.control.ended is None:
            turn.control.ended = trio.Event()
        await turn.control.ended.wait()


async def _flush(log: SessionLog) -> None:
    try:
        await log.flush()
    except (Fenced, JournalError) as error:
        _log.warning(
            "agent %s: session %s leaves with something unwritten: %r", log.agent, Each(log.session_id), error
        )
