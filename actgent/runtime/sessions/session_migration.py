"""Migration of sessions between the processes that share a journal.

`drain` prepares sessions to move, `evict` unloads sessions that another process owns, and `resume_acquired` resumes sessions
that this process has acquired. Sessions are selected by id without the agent: one process owns the sessions of all agents with
an id, and their child sessions.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import trio

from actgent.errors import Fenced, JournalError, SessionNotFound
from actgent.journal.journal_interface import Journal
from actgent.journal.session_list_queries import SessionKey
from actgent.runtime.agent_actor import AgentActor
from actgent.runtime.agent_directory import Directory
from actgent.runtime.session_erasure import RetentionJob
from actgent.sessions.budget_accounts import BudgetAccounts
from actgent.sessions.session_context import SessionContext, Turn, host_of
from actgent.sessions.session_record_writer import SessionLog
from actgent.support.safe_logging import LogVariable, logger_of

from .moved_session_eviction import SessionPredicate, waits_only_for_approvals
from .remote_session_interface import RemoteSessions
from .session_recovery import MAX_CONCURRENT_OPENS, ChooseSessions, resume_acquired

DRAIN_GRACE_SECONDS = 2.0
"""Default maximum seconds that `drain` waits for running turns before it stops them."""
POLL_INTERVAL_SECONDS = 0.05
"""Seconds between two checks whether a running turn waits only for approvals."""
_log = logger_of(__name__)


class SessionMigration:
    """Mixin of the runtime that migrates sessions between processes."""

    remote_sessions: RemoteSessions | None = None
    """Access to sessions in other processes; None without a cluster."""
    journal: Journal | None
    agents: Directory
    accounts: BudgetAccounts
    drains: list[SessionPredicate]
    _sweeper: RetentionJob | None

    async def delete_at_owner(self, key: SessionKey, delete: Callable[[SessionKey], Awaitable[None]]) -> None:
        """Delete a session with `delete`. If another process owns the session, delete the session there."""
        try:
            await delete(key)
        except Fenced:
            if self.remote_sessions is None:
                raise
            with suppress(SessionNotFound):
                await self.remote_sessions.delete_session(key.session_id, agent=key.agent)

    async def evict(self, has_moved: SessionPredicate) -> int:
        """Unload the sessions that other processes own now, wait until their turns have ended, and return the number of these turns.

        `has_moved` selects the sessions by id; their descendants are also unloaded. Before any other task runs, the call stops the
        turns of these sessions and removes their timers. After that, no record is written and no handler is notified. Callers that
        wait in a method of such a session (`run`, `stream`, `chat`, `wait_idle` ...) get `SessionMoved`. In a stream, `SessionMoved`
        is the error of the last delivery, a `Failure` of the kind `moved`. If this call is cancelled, only its wait ends.

        Tasks that open such a session wait until it is unloaded. If the write of a turn finds that another process has acquired the
        session, the tree of the session is unloaded without this call.
        """
        opening = [each for opener in self.agents.openers for each in opener.pending_open_events(has_moved)]
        stopped = self._leave(has_moved)
        for turn in stopped:
            await _wait_ended(turn)
        for each in opening:
            await each.wait()
        await trio.lowlevel.checkpoint()
        return len(stopped)

    def _leave(self, has_moved: SessionPredicate) -> list[Turn]:
        """Start to evict the sessions that `has_moved` selects by id, and drop their timers, budgets and tracing spans.

        Return the running turns of all sessions that are being evicted, including those of earlier calls.
        """
        actors = [opener.running for opener in self.agents.openers]
        for actor in actors:
            actor.timer_service.index.forget(has_moved)
            for context in _sessions_of(actor, has_moved):
                for each in reversed(context.family()):
                    host_of(each).evict(each)
            actor.core.observer.drop_moved(has_moved)
        self.accounts.drop_moved(has_moved)
        if self._sweeper is not None:
            self._sweeper.drop_moved(has_moved)
        leaving = [each for actor in actors for each in actor.sessions.values() if each.has_moved]
        return [each.turn for each in leaving if each.turn is not None]

    def list_running(self) -> list[str]:
        """Return the ids of the sessions with a running turn in this process."""
        actors = [opener.running for opener in self.agents.openers]
        return [each.id for actor in actors for each in actor.sessions.values() if each.turn is not None]

    @asynccontextmanager
    async def drain(
        self, is_leaving: SessionPredicate, *, grace: float = DRAIN_GRACE_SECONDS
    ) -> AsyncGenerator[None, None]:
        """Return a block in which the sessions selected by `is_leaving` are not in memory, so that another process can acquire them.

        Before the block, the sessions reject new work with `SessionMoved`. Running turns and closes in progress have `grace`
        seconds to end. Turns that only wait for approvals, directly or through their calls, are stopped without this wait. Then
        the records of the sessions are written, and the sessions are evicted as by `evict`. Queued messages stay in the journal
        for the next owner. After the block, sessions that this process still owns can be opened again.
        """
        over = trio.current_time() + grace
        with trio.move_on_at(over):
            await self._wait_closes(is_leaving)
        self.drains.append(is_leaving)
        try:
            with trio.move_on_at(over):
                await self._wait_turns(is_leaving)
                await self._write(is_leaving)
                await self._wait_turns(is_leaving)  # turns that an approval resumed during the write
            await self._write(is_leaving)
            await self.evict(is_leaving)
            yield
        finally:
            self.drains.remove(is_leaving)

    async def _wait_closes(self, is_leaving: SessionPredicate) -> None:
        """Wait until the closes of leaving sessions have ended, because the next owner would not continue these closes."""
        actors = [opener.running for opener in self.agents.openers]
        found = [(actor.sessions, each) for actor in actors for each in _sessions_of(actor, is_leaving)]
        for sessions, context in found:
            while context.closed and not context.has_moved and sessions.find_any(context.id) is context:  # noqa: ASYNC110 - no event signals the end of a close
                await trio.sleep(POLL_INTERVAL_SECONDS)

    async def _wait_turns(self, is_leaving: SessionPredicate) -> None:
        """Wait until the running turns of leaving sessions have ended, except turns that only wait for approvals."""
        while running := self._withdraw_queued(is_leaving):
            for turn in running:
                while turn.session.turn is turn and not waits_only_for_approvals(turn.session):
                    with trio.move_on_after(POLL_INTERVAL_SECONDS):
                        await _wait_ended(turn)
        await trio.lowlevel.checkpoint()

    def _withdraw_queued(self, is_leaving: SessionPredicate) -> list[Turn]:
        """Remove the queued messages of leaving root sessions from the inbox.

        Return the running turns of all leaving sessions, except turns that only wait for approvals.
        """
        running = []
        for opener in self.agents.openers:
            for context in _sessions_of(opener.running, is_leaving):
                if context.parent is None:  # messages to child sessions belong to running turns
                    opener.running.lifecycle.eviction.drop_queued_messages(context)
                if context.turn is not None and not waits_only_for_approvals(context):
                    running.append(context.turn)
        return running

    async def _write(self, is_leaving: SessionPredicate) -> None:
        """Write the pending records of leaving sessions that have no running turn, or whose turn waits for an approval."""
        async with trio.open_nursery() as nursery:
            for opener in self.agents.openers:
                for context in _sessions_of(opener.running, is_leaving):
                    if context.log is not None and (
                        context.turn is None or waits_only_for_approvals(context)
                    ):
                        nursery.start_soon(_flush, context.log)

    async def resume_acquired(
        self,
        is_acquired: SessionPredicate = lambda _: True,
        *,
        choose: ChooseSessions | None = None,
        max_concurrent_opens: int = MAX_CONCURRENT_OPENS,
    ) -> int:
        """Resume the sessions that this process has acquired from another process. Return the number of opened sessions.

        Sessions with unfinished work are opened, oldest first. The timers of all acquired sessions are watched. Sessions in memory
        are not changed. Call this method after `PartitionedJournal.take`.

        Args:
            is_acquired: Selects the acquired sessions by id.
            choose: Function that gets the keys of all sessions to open, and returns those that may be opened, e.g. to
                count crashes first; None opens all.
            max_concurrent_opens: Maximum number of sessions that are opened at the same time.

        Raises:
            JournalError: The journal could not be read; repeat the call.
        """
        return await resume_acquired(self.agents.openers, is_acquired, choose, max_concurrent_opens)


def _sessions_of(actor: AgentActor, is_wanted: SessionPredicate) -> Iterator[SessionContext]:
    for session_id in actor.sessions.known_ids():
        if is_wanted(session_id) and (context := actor.sessions.reload_any(session_id)) is not None:
            yield context


async def _wait_ended(turn: Turn) -> None:
    if turn.state != "over":
        if turn.ended is None:
            turn.ended = trio.Event()
        await turn.ended.wait()


async def _flush(log: SessionLog) -> None:
    try:
        await log.flush()
    except (Fenced, JournalError) as error:
        _log.warning(
            "agent %s: session %s leaves with something unwritten: %r",
            log.agent,
            LogVariable(log.session_id),
            error,
        )
