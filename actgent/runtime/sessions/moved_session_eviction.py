"""Eviction of an agent's sessions that move to another process, with their running turns and waiting callers.

A session has left when its turn has ended here and no message is being accepted. Until then its id is taken: a task that
opens the session again, because this process owns it again, waits.
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
"""Function of a session id; returns True if the session leaves this process."""


@attrs.define(eq=False, repr=False)
class SessionEviction(FieldRepr):
    """Sessions of one agent that are being evicted from this process, or are about to be."""

    runner: TurnRunner
    journal: Journal | None
    timers: DueIndex
    drains: Sequence[SessionPredicate]
    """Predicates that return True for the ids of sessions about to leave this process. No new work starts in them."""
    on_left: Callable[[SessionContext], Awaitable[object]] | None = None
    """Function that notifies the handlers of a session that it has left this process; None notifies no handlers."""
    _ends: dict[str, trio.Event] = attrs.field(factory=dict)
    """Events by session id, set when the eviction of the session is complete."""
    _scopes: dict[str, list[trio.CancelScope]] = attrs.field(factory=dict)
    """Cancel scopes of waits that end when a session is evicted, by session id."""

    # --- ownership --------------------------------------------------------------------------

    def is_held(self, session_id: str) -> bool:
        """Return True if new work in a session must be rejected, because the session is about to move to another process.

        Return False if the caller is a running turn, because running turns must be able to finish.
        """
        return any(is_leaving(session_id) for is_leaving in self.drains) and not is_inside(running_turn.get())

    def check_stays(self, session_id: str) -> None:
        """Raise if a session is about to move to another process, so that no new work may start in it here.

        Raises:
            SessionMoved: The session is about to leave.
        """
        if self.is_held(session_id):
            raise SessionMoved(self.runner.name, session_id)

    def check_decided_here(self, context: SessionContext) -> None:
        """Raise if an approval may not be decided in this process.

        A session that is about to leave accepts a decision only if a running turn of a parent session waits for it.

        Raises:
            SessionMoved: The session is about to leave.
        """
        above = context.parent
        while above is not None and (above.turn is None or is_stalled(above)):
            above = above.parent
        if above is None:
            self.check_stays(context.id)

    def epoch_of(self, session_id: str) -> int:
        """Return the ownership epoch (fencing number) that this process needs to write a session.

        Call it before reading the session.

        Raises:
            SessionMoved: Another process owns the session, or is about to.
        """
        if self.drains:
            self.check_stays(session_id)
        try:
            return 0 if self.journal is None else self.journal.epoch_of(session_id)
        except Fenced as error:
            raise SessionMoved(self.runner.name, session_id) from error

    def check_epoch(self, session_id: str, epoch: int) -> None:
        """Raise if the epoch of a session has changed since it was read.

        Raises:
            SessionMoved: Another process has owned the session in between.
            NotRunning: The journal was closed in between. It has no other owner.
        """
        if self.epoch_of(session_id) != epoch:
            if self.journal is not None and not self.journal.is_shared:
                raise NotRunning(self.runner.name)
            raise SessionMoved(self.runner.name, session_id)

    # --- leaving -----------------------------------------------------------------------------

    def begin(self, context: SessionContext) -> None:
        """Start the eviction of a session that another process owns: stop its turn, its waits, its timers and its writes.

        `unload_if_finished` completes the eviction when no work is pending.
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
        """Evict the whole tree of a session, because a write of its log found that another process owns the session."""
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
            is_notified = self.on_left is not None and self._notify_handlers(self.on_left, context)
            if not is_notified:
                context.release_public_session()

    def _notify_handlers(
        self, notify: Callable[[SessionContext], Awaitable[object]], context: SessionContext
    ) -> bool:
        """Start to call `notify` if the program attached handlers to the session. Return False if it did not.

        Handlers that `Agent.on_session` attached do not count, because the new owner attaches them again.
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
        """Return the event that is set when the eviction of a session is complete; None if no eviction is in progress."""
        return self._ends.get(session_id)

    @contextmanager
    def cancelled_on_eviction(self, session_id: str) -> Iterator[None]:
        """Return a block that is cancelled when the session is evicted.

        Raises:
            SessionMoved: The session left.
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


def is_stalled(context: SessionContext) -> bool:
    """Return True if a session can only continue after an approval is decided. Such a session may move to another process.

    The approval is that of the session, or of the child sessions for which all its running calls wait. Such
    calls can run again in another process, where they find their child sessions by id.
    """
    turn = context.turn
    if turn is None or turn.batch is None:
        return turn is None and context.suspension is not None
    asked = [each for each in (context.children or {}).values() if _is_awaited(each)]
    is_waiting = turn.lent_slots == len(asked) >= turn.batch.count_unfinished() > 0
    return is_waiting and turn.batch.can_rerun() and all(map(is_stalled, asked))


def _is_awaited(child: SessionContext) -> bool:
    """Return True if a call waits for the outcome of the task of a child session."""
    task = child.task
    if task is None or task.reports or task.is_unclaimed:
        return False
    return not (task.is_answered or task.future.done.is_set())
