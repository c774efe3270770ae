"""`SessionLifecycle`: opening, resuming, interrupting, closing and unloading the sessions of an agent."""

import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import trio

from actgent.actors.dead_letters import DeadLetter
from actgent.actors.inbox import PriorityInbox
from actgent.errors import Interrupted, JournalError, JournalSlow, NotRunning, SessionClosed, Stopped
from actgent.errors.restored_errors import restored_failure
from actgent.events import EventStream, SessionEnded, SessionOpened
from actgent.journal.journal_interface import Journal
from actgent.journal.record_types import CancellationRecord
from actgent.journal.session_list_queries import SessionKey
from actgent.limits_and_schedules.durable_timer import DueIndex
from actgent.memory.memory_interface import Memory
from actgent.messages import Message, Priority
from actgent.runtime.turn_runner import TurnRunner
from actgent.runtime.waits_between_sessions import would_wait_for_itself
from actgent.sessions.context_variable_propagation import run_with
from actgent.sessions.restore.snapshotter import SessionSnapshotter
from actgent.sessions.session_context import (
    MessageEnding,
    SessionContext,
    SessionHost,
    Turn,
    host_of,
    is_inside,
)
from actgent.sessions.session_record_writer import SessionLog
from actgent.turns.turn_lifecycle import SHUTDOWN_HANDLER_SECONDS, TurnLifecycle

from .moved_session_eviction import SessionEviction, SessionPredicate

RESTORED_AGE_SECONDS = 1e9
"""Age in seconds that restored messages get in the inbox, so that they run before all new messages."""
CLOSED_REASON = "the session was closed"
"""Reason of the `Interrupted` error that ends the turn of a closed session."""


class SessionLifecycle:
    """Opens, interrupts, closes and unloads the sessions of one agent."""

    def __init__(
        self,
        runner: TurnRunner,
        *,
        events: EventStream,
        timers: DueIndex,
        journal: Journal | None,
        memory: Memory,
        drains: Sequence[SessionPredicate],
        on_ended: Callable[[SessionKey], object],
    ) -> None:
        """Args: `on_ended` gets each ended session that must be erased; `drains` select the sessions about to move by id."""
        self.name = runner.name
        self.runner = runner
        self.sessions = runner.sessions
        self.inbox = runner.inbox
        self.events = events
        self.journal = journal
        self.eviction = SessionEviction(runner, journal, timers, drains)
        self.resumed = 0
        """Number of resumed sessions, except sessions that only wait for approvals."""
        self.has_stopped = False
        """True after the agent has stopped completely. Its open sessions in the journal resume at its next start."""
        self._turn_lifecycle = runner.turn_lifecycle
        self._timers = timers
        self._keeper = (
            None if journal is None else SessionSnapshotter(journal, self.name, memory, runner.start_soon)
        )
        self._on_ended = on_ended

    @property
    def is_stopping(self) -> bool:
        """True if the agent is stopping: its turns end, and no new turn starts."""
        return self.runner.is_stopping

    @property
    def has_ended(self) -> bool:
        """True if the agent was stopped and no longer runs."""
        return self.is_stopping and not self.runner.is_running

    @property
    def is_durable(self) -> bool:
        """True if the sessions are in a journal and survive the process."""
        return self.journal is not None

    def dead_letter(self, letter: DeadLetter) -> None:
        """Add a message that cannot be processed to the dead letters."""
        self.runner.dead_letter(letter)

    def check_open(self, context: SessionContext) -> None:
        """Raise if the session is closed, or if the agent does not run. A stopping agent still accepts messages from its own handlers and tools."""
        if context.closed:
            raise context.refusal
        self.runner.check_accepts()

    # --- opening and resuming ----------------------------------------------------------------

    def open(self, context: SessionContext) -> None:
        """Add a new session to the agent's sessions in memory.

        Raises:
            NotRunning: The agent accepts no more sessions, or the parent's agent has stopped.
            SessionClosed: The parent was closed.
            SessionMoved: Another process owns the parent.
            SessionExists: The id is taken.
        """
        self.runner.check_accepts()
        parent = None if context.tree is None else context.tree.parent
        if parent is not None and parent.closed:
            raise parent.refusal
        if parent is not None and host_of(parent).has_stopped:  # its next start would not find the child
            raise NotRunning(parent.agent)
        self.sessions.add(context)
        context.due_index = self._timers
        if parent is not None:
            parent.add_child(context)
        if self.events.watched:
            above = context.parent_key
            self.events.publish(
                SessionOpened(
                    agent=self.name,
                    session_id=context.id,
                    owner=context.owner.name,
                    parent_id=None if above is None else above.session_id,
                    parent_agent=None if above is None else above.agent,
                )
            )

    def new_log(
        self, session_id: str, epoch: int, *, due: float = 0.0, records_since_snapshot: int = 0
    ) -> SessionLog | None:
        """Create the journal writer of a session; None without a journal.

        Args:
            session_id: Id of the session.
            epoch: Ownership epoch (fencing number) under which the session was read.
            due: Unix time in seconds of the session's earliest timer in the journal; 0 for no timer.
            records_since_snapshot: Number of the session's records since its last snapshot.
        """
        if self.journal is None or self._keeper is None:
            return None
        log = SessionLog(
            session_id, self.name, self.journal, epoch, records_since_snapshot=records_since_snapshot, due=due
        )
        log.on_snapshot_due = self._keeper.snapshot_in_background
        log.on_fenced = self.eviction.evict_tree if self.journal.is_shared else None
        return log

    def evict(self, context: SessionContext) -> None:
        """Start the eviction of a session that another process owns: stop its turn, its writes and its events."""
        if not context.has_moved:
            self.eviction.begin(context)
            self.unload_if_finished(context)

    def resume_restored(self, context: SessionContext, messages: Sequence[Message]) -> None:
        """Resume a restored session: first its unfinished turn, then `messages`, which were accepted before the restart.

        A suspended turn stays suspended. Messages that failed or were cancelled before the restart end without a turn. The
        caller must have claimed (reserved) the session in the inbox.

        Raises:
            SessionMoved: Another process owns the session now.
        """
        _check_not_moved(context)
        context.pending += len(messages)
        waiting, checkpoint, approvals = list(messages), context.checkpoint, context.approvals
        is_suspended = checkpoint is not None and approvals is not None and approvals.is_suspended
        self.resumed += bool(messages) and not is_suspended
        if checkpoint is not None and is_suspended:
            context.pending += len(checkpoint.joined)
            self.runner.restore(context, waiting.pop(0))
        elif checkpoint is not None:
            context.pending += len(checkpoint.joined)
            acceptance = context.take_message(waiting.pop(0))
            self.runner.queue_resume(self._turn_lifecycle.begin_turn(context, acceptance))
        _requeue(self.inbox, context, waiting)
        if context.log is not None:
            context.log.request_snapshot()
        if messages and context.turn is None and context.suspension is None:
            self.inbox.release(context.id)
        self.runner.resume_if_superseded(context)
        self.sessions.mark_idle(context)
        turn = context.turn
        is_exposed = turn is not None and turn.message.priority is not Priority.URGENT
        if turn is not None and is_exposed and (newer := self.runner.superseded_by(turn.message)):
            turn.interrupt(newer)
        for message in messages:
            _end_failed(self, context, message.id)
        if context.cancellations is not None:
            for message in messages:
                stop_if_requested(self, context, message.id)
        self.runner.pump()

    def drop(self, context: SessionContext, *, is_claimed: bool) -> None:
        """Unload a restored session whose `on_session` functions failed. The session and its messages stay in the journal.

        `is_claimed` is True if the session is claimed (reserved) in the inbox. It is then released.
        """
        self.inbox.withdraw(context.id)
        if is_claimed:
            self.inbox.release(context.id)
        self.sessions.remove(context)
        if context.parent is not None:
            context.parent.remove_child(context)

    # --- keeping and unloading ---------------------------------------------------------------

    @contextmanager
    def kept(self, context: SessionContext) -> Iterator[SessionContext]:
        """Return a block during which a session stays in memory."""
        self.pin(context)
        try:
            yield context
        finally:
            self.unpin(context)

    def pin(self, context: SessionContext) -> None:
        """Keep a session in memory until `unpin` is called. Each call of `pin` needs its own call of `unpin`."""
        context.pins += 1

    def unpin(self, context: SessionContext) -> None:
        """Undo one call of `pin`. Unload the session if it is finished."""
        context.pins -= 1
        self.unload_if_finished(context)
        self.sessions.mark_idle(context)

    def unload_when_idle(self, context: SessionContext) -> None:
        """Unload a session as soon as no work is queued or running in it. If the session is idle now, unload it at once."""
        context.is_transient = True
        self.unload_if_finished(context)

    def unload_if_finished(self, context: SessionContext) -> None:
        """Unload a session that is closed, released or moved, if no message is being accepted, queued or running."""
        if not (context.closed or context.is_transient):
            return
        if context.has_moved:
            if not context.pending:
                self.eviction.end(context)
            return
        if context.children and not context.closed and _is_over(context):
            _release_sessions(self, [*reversed(context.children.values())])  # they are closed first
        if _is_finished(context):
            self.note_closed(context)
            self.discard(context)

    def note_closed(self, context: SessionContext) -> None:
        """Record that a session is closed, without waiting for the write.

        Do nothing if the session's queued messages were left to its next owner. The next owner ends them and closes the session.
        """
        if context.is_forwarded or self.has_stopped:
            return
        if context.log is not None and self.sessions.get(context.id) is context:
            context.log.note_closed()
            context.log.flush_soon()

    def erase(self, context: SessionContext) -> None:
        """Unload a session that was erased from the journal."""
        context.closed = True
        self.sessions.forget_unloaded(context.id)
        self.discard(context)

    def discard(self, context: SessionContext) -> None:
        """Unload a session without recording its close. Also unload the finished sessions that it kept in memory."""
        _release_sessions(self, self.remove(context))

    def remove(self, context: SessionContext) -> list[SessionContext]:
        """Remove a session from memory, together with its timers and its `Session` object, and publish its end.

        Return the sessions that may be unloaded next: its children, and its parent if that was created for one request.
        """
        if context.has_moved:
            self.eviction.end(context)
            return []
        context.closed = True
        if not self.sessions.remove(context):
            return []
        if context.conversation.recent is not None:
            context.conversation.recent.close()
        if context.log is not None and context.log.is_temporary:
            self._on_ended(SessionKey(self.name, context.id))
        context.due_index = None
        self._timers.set(context.id, 0)
        if self.events.watched:
            self.events.publish(SessionEnded(agent=self.name, session_id=context.id))
        around = [*reversed((context.children or {}).values())]
        context.release_public_session()
        if context.parent is not None:
            context.parent.remove_child(context)
            context.parent.release_public_session()
            if context.parent.is_transient:  # it may have stayed for this session's result
                around.insert(0, context.parent)
        return around

    # --- interrupting, ending and closing ----------------------------------------------------

    async def interrupt(self, context: SessionContext, reason: str, *, drop_queued: bool) -> None:
        """Stop the running turn of a session. With `drop_queued`, also end its queued messages. `reason` is the text of the error.

        Raises:
            JournalError: The end of a message could not be recorded.
            SessionMoved: Another process owns the session.
        """
        error = Interrupted(reason)
        lost = await self._stop(context, error, drop=error if drop_queued else None)
        _check_not_moved(context)
        if drop_queued:
            self.eviction.check_stays(
                context.id
            )  # queued messages belong to the next owner, and are stopped there
        if lost is not None:
            raise lost

    async def interrupt_message(self, context: SessionContext, message_id: str, reason: str) -> None:
        """Stop the turn that answers a message, or end the queued message. `reason` is the text of the error.

        A message that has not arrived yet ends when it arrives. A message that has ended is ignored.

        Raises:
            NotRunning: The agent has stopped; the next start answers the message.
            JournalError: The end of the message could not be recorded.
            SessionMoved: Another process owns the session.
        """
        error, acceptance = Interrupted(reason), context.find_message(message_id)
        lost = None
        if message_id in context.answered_ids:
            lost = await self._stop(context, error, drop=None)
        elif acceptance is not None and acceptance.ending is not None:  # another caller stopped it
            await acceptance.ending.recorded.wait()
            lost = _journal_error([acceptance.ending.error])
        elif acceptance is None or acceptance.inbox_entry is None or not acceptance.is_accepted:
            self.eviction.check_stays(context.id)  # as above
            if context.cancel_on_arrival(message_id, reason) and context.log is not None:
                context.log.add(CancellationRecord(message_id=message_id, reason=reason))
            await trio.lowlevel.checkpoint()
        elif self.has_ended:  # `end_remaining` has removed the message from the inbox
            raise NotRunning(self.name)
        else:
            self.inbox.remove(acceptance.inbox_entry)
            ending = MessageEnding()
            end_it = self.prepare_failure(context, [acceptance.message], error, ending)
            if not self.runner.start_soon(end_it):  # the agent is about to restart
                await end_it()
            await ending.ended.wait()
            lost = _journal_error([ending.error])
            if isinstance(ending.error, Stopped):  # the next start of the agent answers the message
                raise NotRunning(self.name)
        _check_not_moved(context)
        if lost is not None:
            raise lost

    def prepare_failure(
        self,
        context: SessionContext,
        messages: list[Message],
        error: Exception,
        ending: MessageEnding,
        *,
        after: trio.Event | None = None,
    ) -> Callable[[], Awaitable[None]]:
        """Return a function that records `error` as the failure of messages, and then notifies their handlers and callers.

        The caller has removed the messages from the inbox. Handlers and callers are notified after the event `after` is set.
        `ending` is stored in each message, so that other tasks can wait for its end.
        """
        for message in messages:
            if (acceptance := context.find_message(message.id)) is not None:
                acceptance.ending = ending
        return functools.partial(self._end_queued, context, messages, error, ending, after=after)

    async def end(self, context: SessionContext, error: Exception) -> None:
        """End a session's turn and queued messages with `error`, and close the session with its descendants in memory."""
        await self._stop(context, error, drop=error)
        await self.close(context)

    async def close(self, context: SessionContext) -> list[SessionContext]:
        """Close a session and all its descendants in memory.

        Return these sessions, including those that another task is closing.
        """
        with ExitStack() as kept:
            family = [kept.enter_context(host_of(each).kept(each)) for each in _with_descendants(context)]
            for each in family:
                each.closed = True
            async with trio.open_nursery() as nursery:
                for each in reversed(family):
                    nursery.start_soon(host_of(each).stop_closed, each)
        _check_not_moved(context)
        return family

    def resume_if_superseded(self, context: SessionContext) -> None:
        """Resume a session's suspended turn so that it ends, if the session is closed or a newer message takes precedence."""
        self.runner.resume_if_superseded(context)

    async def stop_closed(self, context: SessionContext) -> None:
        """End the turn and the queued messages of a closed session."""
        reason = Interrupted(CLOSED_REASON)
        await self._stop(context, reason, drop=SessionClosed(context.id))

    async def _stop(
        self, context: SessionContext, error: Exception, *, drop: Exception | None
    ) -> JournalError | None:
        """Stop the turn of a session with `error`. If `drop` is not None, end the queued messages with this exception.

        Wait until the turn and the messages have ended, unless the caller is inside the turn or the turn waits for the caller.
        If the caller is cancelled during the wait, they end nevertheless. Return the journal's error if the end of a message
        could not be recorded; None otherwise.
        """
        self.runner.resume(context, error)
        turn = context.turn
        inside = is_inside(turn) or would_wait_for_itself(context)
        ended = _stop_turn(turn, error)
        endings = [] if drop is None else _pending_endings(context)
        own = MessageEnding()
        if drop is not None and (messages := _withdraw(self.inbox, context.id)):
            after, ended = ended, own.ended
            end_queued = self.prepare_failure(context, messages, drop, own, after=after)
            if not self.runner.start_soon(end_queued):  # the agent is about to restart
                await end_queued()
        for each in endings:
            await each.recorded.wait()
        errors = [each.error for each in endings]
        if ended is None or inside:
            await trio.lowlevel.checkpoint()
        else:
            await ended.wait()
            errors += [own.error, None if turn is None else turn.error]
        return _journal_error(errors)

    async def _end_queued(
        self,
        context: SessionContext,
        messages: list[Message],
        error: Exception,
        ending: MessageEnding,
        *,
        after: trio.Event | None,
    ) -> None:
        """Record queued messages as failed with `error`. After the event `after` is set, notify their handlers and callers."""
        try:
            error = ending.error = await self._turn_lifecycle.record_unstarted(context, messages, error)
            ending.recorded.set()
            if after is not None:
                await after.wait()
            while messages:
                if context.task is not None and messages[0].id == context.task.message_id:
                    acceptance = context.find_message(messages[0].id)
                    assert acceptance is not None  # noqa: S101 - it has not ended
                    await run_with(acceptance.variables, self.runner.report_task(context, error))
                await self._turn_lifecycle.end_unstarted(context, messages.pop(0), error)
        except trio.Cancelled:
            reports = context.task is not None and context.task.reports and not context.closed
            last_error = Stopped(self.name) if reports else error  # the next start has to report
            with trio.CancelScope(shield=True):
                ending.error = await _end_within_timeout(self._turn_lifecycle, context, messages, last_error)
            raise
        finally:
            ending.recorded.set()
            ending.ended.set()
            self.unload_if_finished(context)

    async def end_remaining(self) -> None:
        """End all accepted messages without a turn, and all sends that wait for room in the inbox, because the agent stops."""
        inbox = self.inbox
        if not (inbox.sessions() or self.runner.has_suspended):
            return  # the usual case; a cancel scope takes 10 us
        with trio.CancelScope(shield=True):
            await self.runner.stop_suspended()
            while left := [(each, inbox.withdraw(each)) for each in inbox.sessions() if inbox.waiting(each)]:
                async with trio.open_nursery() as nursery:
                    for session_id, waiting in left:
                        context, error = self.sessions[session_id], Stopped(self.name)
                        self.runner.dead_letter_all(context, waiting)
                        nursery.start_soon(_end_within_timeout, self._turn_lifecycle, context, waiting, error)


def stop_if_requested(lifecycle: SessionLifecycle, context: SessionContext, message_id: str) -> None:
    """End an accepted message as interrupted, if a caller requested the stop of its id before the message arrived.

    The stop request stays in force until the end of the message is recorded. So it also stops a message that is sent again with
    the same id after the process died.
    """
    reason, acceptance = context.cancellation_reason(message_id), context.find_message(message_id)
    if reason is None:
        return
    error = Interrupted(reason)
    if message_id in context.answered_ids:
        lifecycle.runner.resume(context, error)
        _stop_turn(context.turn, error)
    elif acceptance is not None and acceptance.inbox_entry is not None and acceptance.ending is None:
        if not lifecycle.runner.is_running:
            return  # the agent is about to restart
        lifecycle.inbox.remove(acceptance.inbox_entry)
        lifecycle.runner.start_soon(
            lifecycle.prepare_failure(context, [acceptance.message], error, MessageEnding())
        )
    if context.log is None:  # every end is final
        context.drop_cancellation(message_id)


def _end_failed(lifecycle: SessionLifecycle, context: SessionContext, message_id: str) -> None:
    """End a queued message whose failure was recorded before a restart. Its handlers may not have received the failure."""
    acceptance = context.find_message(message_id)
    if acceptance is None or acceptance.failed is None or acceptance.inbox_entry is None:
        return
    failed = acceptance.failed
    error = restored_failure(failed.error, failed.error_text, failed.kind, failed.fields)
    lifecycle.inbox.remove(acceptance.inbox_entry)
    lifecycle.runner.start_soon(
        lifecycle.prepare_failure(context, [acceptance.message], error, MessageEnding())
    )


def _requeue(inbox: PriorityInbox[Message], context: SessionContext, waiting: Sequence[Message]) -> None:
    """Put messages from before a restart back into the inbox, in their original order."""
    for number, message in enumerate(waiting):
        entry = inbox.restore(
            message, now=number - RESTORED_AGE_SECONDS, first=message.on_busy == "interrupt"
        )
        if (acceptance := context.find_message(message.id)) is not None:
            acceptance.inbox_entry = entry


def _pending_endings(context: SessionContext) -> list[MessageEnding]:
    """Return the endings of messages that other tasks have begun and not completed."""
    acceptances = (context.acceptances or {}).values()
    return [each.ending for each in acceptances if each.ending is not None]


def _journal_error(errors: Iterable[Exception | None]) -> JournalError | None:
    """Return the first journal error in `errors`; None if `errors` contains no journal error."""
    return next((error for error in errors if isinstance(error, JournalError)), None)


async def write_end(context: SessionContext) -> None:
    """Wait until a closed session has no work, and record its close durably. Its descendants must have been recorded before.

    If a turn or an `on_session` function of the session makes this call, or if a turn waits for the caller, record no close now. The
    close is then recorded after the end of the session's messages. Raise the same errors as `write_pending`.
    """
    is_own, host = is_inside(context.turn) or would_wait_for_itself(context), host_of(context)
    is_restoring = context.opening_task is not None and context.acceptances
    if context.closed and (log := context.log) is not None and not (is_own or is_restoring):
        await context.wait_idle()  # another task may be closing it and still end queued messages ...
        host.note_closed(context)  # ... and keeps it in memory
        if host.has_stopped and not log.is_closed:
            raise NotRunning(context.agent)
    await write_pending(context)


async def write_pending(context: SessionContext) -> None:
    """Write the unwritten records of a session durably, without a record of its close. Do nothing inside a turn of the session.

    Raises:
        JournalError: A record could not be written. The next write of the session retries it.
        SessionMoved: Another process owns the session.
        NotRunning: The agent is stopping; its next start resumes the session.
    """
    if is_inside(context.turn):
        return
    if context.log is not None:
        await context.log.flush()
    elif host_of(context).is_durable and host_of(context).is_stopping:
        raise NotRunning(context.agent)


def _withdraw(inbox: PriorityInbox[Message], session_id: str) -> list[Message]:
    """Remove the queued messages of a session from the inbox and return them, including messages still waiting for room."""
    messages: list[Message] = []
    while waiting := inbox.withdraw(session_id):
        messages += waiting
    return messages


async def _end_within_timeout(
    lifecycle: TurnLifecycle, context: SessionContext, messages: list[Message], error: Exception
) -> Exception:
    """Record messages as failed within a time limit, and notify their handlers and callers.

    Return the error of the messages: `error`, or the journal's error if the failures could not be recorded.
    """
    reported: Exception = JournalSlow(SHUTDOWN_HANDLER_SECONDS)
    with lifecycle.shutdown_scope():
        reported = await lifecycle.record_unstarted(context, messages, error)
    for message in messages:
        with lifecycle.shutdown_scope():  # one limit each, so that late sync handlers are notified
            await lifecycle.end_unstarted(context, message, reported)
    return reported


def _with_descendants(context: SessionContext) -> list[SessionContext]:
    """Return a session and its descendants, except the sessions of agents that have ended."""
    return [each for each in context.family() if each.host is context.host or not host_of(each).has_ended]


def _release_sessions(host: SessionHost, around: list[SessionContext]) -> None:
    """Unload those of the sessions `around` that are finished, and mark the others to be unloaded when they have no work.

    `around` has the relatives of a removed session. The relatives of each unloaded session are handled in the same way. A session
    of another agent that is stopping stays open, because that agent resumes it at its next start.
    """
    while around:
        other = around.pop()
        its_host = host_of(other)
        if (
            its_host is not host and its_host.is_stopping
        ):  # the agent resumes the session when it starts again
            continue
        other.is_transient = True
        if _is_finished(other):
            its_host.note_closed(other)
            around += its_host.remove(other)


def _is_finished(context: SessionContext) -> bool:
    """Return True if a session may be unloaded: it was closed, or it has served its only request and has no open child session.

    Child sessions of stopped agents stay open for the next start.
    """
    children = (context.children or {}).values()
    return _is_over(context) and (context.closed or all(host_of(each).is_stopping for each in children))


def _is_over(context: SessionContext) -> bool:
    """Return True if a session was closed or has served its only request, and has no pending work."""
    is_over = context.closed or (context.should_close and not context.reports_due)
    return is_over and not context.pending and not context.pins


def _check_not_moved(context: SessionContext) -> None:
    if context.has_moved:
        raise context.refusal


def _stop_turn(turn: Turn | None, error: Exception) -> trio.Event | None:
    """Stop a turn with an error. Return the event that is set at the end of the turn; None without a turn."""
    if turn is None:
        return None
    turn.stop_with(error)
    if turn.ended is None:
        turn.ended = trio.Event()
    return turn.ended
