"""Eviction of an agent's sessions that move to another process, with their running turns and waiting callers.

The eviction of a session is complete when its turn has ended in this process and no message is being accepted. Until then, a
task that opens the session again waits. This happens if the process has acquired the session again.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs
import trio

from actgent.errors import Fenced, NotRunning, SessionMoved
from actgent.journal.journal_interface import Journal
from actgent.limits_and_schedules.durable_timer import DueIndex
from actgent.runtime.turn_runner import TurnRunner
from actgent.sessions.session_context import SessionContext, Suspension, host_of, is_inside, running_turn
from actgent.sessions.session_record_writer import SessionLog
from actgent.support.attrs_class_repr import FieldRepr

SessionPredicate = Callable[[str], bool]
"""Function that selects sessions by id: it returns True for the selected ones."""


@attrs.define(eq=False, repr=False)
class SessionEviction(FieldRepr):
    """Evicts sessions of one agent from this process when another process becomes their owner."""

    runner: TurnRunner
    journal: Journal | None
    timers: DueIndex
    drains: Sequence[SessionPredicate]
    """Predicates that return True for the ids of sessions about to leave this process. No new work starts in them."""
    on_evicted: Callable[[SessionContext], Awaitable[object]] | None = None
    """Notifies the handlers of an evicted session; None notifies no handlers."""
    _ends: dict[str, trio.Event] = attrs.field(factory=dict)
    """Events by session id, set when the eviction of the session is complete."""
    _scopes: dict[str, list[trio.CancelScope]] = attrs.field(factory=dict)
    """Cancel scopes of open `cancelled_on_eviction` blocks, by session id."""

    # --- ownership --------------------------------------------------------------------------

    def rejects_new_work(self, session_id: str) -> bool:
        """Return True if new work in a session must be rejected, because the session is about to move to another process.

        Return False if the caller is a running turn, because running turns must be able to finish.
        """
        return any(is_leaving(session_id) for is_leaving in self.drains) and not is_inside(running_turn.get())

    def check_stays(self, session_id: str) -> None:
        """Raise if a session rejects new work, because it is about to move to another process.

        Raises:
            SessionMoved: The session is about to move to another process.
        """
        if self.rejects_new_work(session_id):
            raise SessionMoved(self.runner.name, session_id)

    def check_decided_here(self, context: SessionContext) -> None:
        """Raise if an approval of a session may not be decided in this process, because the session is about to move.

        A decision is still accepted if a running turn of a parent session waits for it.

        Raises:
            SessionMoved: The session is about to move to another process.
        """
        above = context.parent
        while above is not None and (above.turn is None or waits_only_for_approvals(above)):
            above = above.parent
        if above is None:
            self.check_stays(context.id)

    def epoch_of(self, session_id: str) -> int:
        """Return the ownership epoch (fencing number) with which this process can write a session.

        Call this method before reading the session from the journal, and `check_epoch` after that.

        Raises:
            SessionMoved: Another process owns the session, or the session is about to move.
        """
        if self.drains:
            self.check_stays(session_id)
        try:
            return 0 if self.journal is None else self.journal.epoch_of(session_id)
        except Fenced as error:
            raise SessionMoved(self.runner.name, session_id) from error

    def check_epoch(self, session_id: str, epoch: int) -> None:
        """Raise if the ownership epoch of a session differs from `epoch`, which `epoch_of` returned before the session was read.

        Raises:
            SessionMoved: Another process has owned the session in between.
            NotRunning: The journal was closed in between.
        """
        if self.epoch_of(session_id) != epoch:
            if self.journal is not None and not self.journal.is_shared:
                raise NotRunning(self.runner.name)
            raise SessionMoved(self.runner.name, session_id)

    # --- leaving -----------------------------------------------------------------------------

    def begin(self, context: SessionContext) -> None:
        """Start the eviction of a session that another process owns: stop its turn, its waits, its timers and its writes.

        When its last pending message has ended, `SessionLifecycle.unload_if_finished` calls `end`.
        """
        context.has_moved = context.closed = True
        if context.log is not None:
            context.log.abandon()
        context.due_index = None
        self.timers.set(context.id, 0)
        self._ends[context.id] = trio.Event()
        for scope in self._scopes.get(context.id, ()):
            scope.cancel()
        self.drop_queued_messages(context)
        if context.suspension is not None:
            self._leave_suspended(context, context.suspension)
        elif context.turn is not None:
            self.runner.cancel_moved_turn(context.turn)

    def drop_queued_messages(self, context: SessionContext) -> None:
        """Remove a session's queued messages from the inbox, because the next owner processes them from the journal.

        Waiting callers receive `SessionMoved`.
        """
        while waiting := self.runner.inbox.withdraw(context.id):
            context.is_forwarded = True
            for message in waiting:
                self.runner.turn_lifecycle.end_moved_message(context, message)

    def _leave_suspended(self, context: SessionContext, suspension: Suspension) -> None:
        """End the suspended turn of a session in this process. The next owner restores the turn from the journal."""
        self.runner.inbox.unpark(context.id)
        context.suspension, turn = None, suspension.turn
        if turn is not None:
            turn.listeners += suspension.joined_futures
            self.runner.end_moved_turn(turn)
        else:
            self.runner.turn_lifecycle.end_moved_message(
                context, suspension.message, suspension.joined_futures
            )
            context.finish_messages(suspension.messages - 1)
            self.runner.inbox.release(context.id)

    def evict_tree(self, log: SessionLog) -> None:
        """Evict all sessions in the tree of a session. `log` is the session's journal writer, which found that it has a new owner."""
        context = self.runner.sessions.find_any(log.session_id)
        if context is None or context.log is not log:
            return
        self.runner.sessions.reload_any(log.session_id)  # an unloaded session leaves like the others
        while context.parent is not None:
            context = context.parent
        for each in context.family():
            host_of(each).evict(each)

    def end(self, context: SessionContext) -> None:
        """Complete the eviction of a session, and wake the tasks that wait for the end of the eviction."""
        if self.runner.sessions.remove(context):
            if context.parent is not None:
                context.parent.remove_child(context)
                context.parent.release_public_session()
            if (ended := self._ends.pop(context.id, None)) is not None:
                ended.set()
            is_notified = self.on_evicted is not None and self._notify_handlers(self.on_evicted, context)
            if not is_notified:
                context.release_public_session()

    def _notify_handlers(
        self, notify: Callable[[SessionContext], Awaitable[object]], context: SessionContext
    ) -> bool:
        """Start a task that calls `notify` if the program has attached handlers to the session. Return False if it has not.

        Handlers that `Agent.on_session` attached are ignored, because the new owner attaches them again.
        """
        outside = context.handlers.from_program()
        if outside is None:
            return False
        context.handlers = outside
        context.pins += 1  # keeps the handle for the handlers

        async def tell_all() -> None:
            try:
                await notify(context)
            finally:
                context.pins -= 1
            context.release_public_session()

        is_notified = bool(self.runner.start_soon(tell_all))
        context.pins -= not is_notified
        return is_notified

    # --- waiting -----------------------------------------------------------------------------

    def find(self, session_id: str) -> trio.Event | None:
        """Return the event that is set at the end of a session's eviction; None if the session is not being evicted."""
        return self._ends.get(session_id)

    @contextmanager
    def cancelled_on_eviction(self, session_id: str) -> Iterator[None]:
        """Return a block that is cancelled when the session is evicted.

        Raises:
            SessionMoved: The session was evicted during the block.
        """
        with trio.CancelScope() as scope:
            scopes = self._scopes.setdefault(session_id, [])
            scopes.append(scope)
            try:
                yield
            finally:
                scopes.remove(scope)
                if not scopes:
                    self._scopes.pop(session_id, None)
        if scope.cancelled_caught:
            raise SessionMoved(self.runner.name, session_id)


def waits_only_for_approvals(context: SessionContext) -> bool:
    """Return True if a session has a turn that cannot continue before an approval is decided.

    Either the turn is suspended, or all its running tool calls wait for child sessions to which the same applies. The calls
    must be repeatable: another process that acquires the session runs them again, and they find their child sessions by id.
    """
    turn = context.turn
    if turn is None or turn.batch is None:
        return turn is None and context.suspension is not None
    asked = [each for each in (context.children or {}).values() if _is_awaited(each)]
    is_waiting = turn.lent_slots == len(asked) >= turn.batch.count_unfinished() > 0
    return is_waiting and turn.batch.can_rerun() and all(map(waits_only_for_approvals, asked))


def _is_awaited(child: SessionContext) -> bool:
    """Return True if a tool call of the parent session waits for the outcome of the child session's task."""
    task = child.task
    if task is None or task.reports or task.is_unclaimed:
        return False
    return not (task.is_answered or task.future.done.is_set())
