"""Sessions of one agent that leave this process, and what waits for them or runs in their name meanwhile.

A session has left when its turn has ended here and nothing of it is on its way in. Until then its id is taken: whoever
wants to open it again, because it has come back, waits for that.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs
import trio

from actgent.control.durable_timer import DueIndex
from actgent.errors import ConfigurationError, Fenced, SessionMoved
from actgent.journal.base import Journal
from actgent.runtime.turn_runner import TurnRunner
from actgent.sessions.context import SessionContext, host_of
from actgent.sessions.session_log import SessionLog
from actgent.sessions.turn import Suspension, is_inside, running_turn

IsLeft = Callable[[str], bool]
"""Tells by its id whether a session leaves."""


def check_sendable(given: Mapping[str, object], moved: Fenced) -> None:
    """Refuse what stays in its process, where it was given for a session of another one.

    Raises:
        ConfigurationError: something was; the text names it.
    """
    if names := [name for name, value in given.items() if not _is_nothing(value)]:
        raise ConfigurationError(
            f"{', '.join(names)}: this cannot be sent to the node where the session lives; leave it out, or "
            "take a session that lives here, as create_session() without session_id= makes them"
        ) from moved


def _is_nothing(value: object) -> bool:
    return value is None or (isinstance(value, tuple | list) and not value)


@attrs.define(eq=False)
class Leaving:
    """Which sessions of an agent leave, or are about to."""

    runner: TurnRunner
    journal: Journal | None
    timers: DueIndex
    drains: Sequence[IsLeft]
    """Which sessions are about to leave, so that nothing new begins in them."""
    on_left: Callable[[SessionContext], Awaitable[object]] | None = None
    """Tells a session's handlers that it has left; None where nobody is told."""
    _ends: dict[str, trio.Event] = attrs.field(factory=dict)
    """By ids of sessions that have something left to end here."""
    _scopes: dict[str, list[trio.CancelScope]] = attrs.field(factory=dict)
    """By ids of sessions for which something waits that their end cuts."""

    # --- whose they are ----------------------------------------------------------------------

    def is_held(self, session_id: str) -> bool:
        """True if nothing begins in a session that is about to leave; what turns that still run begin is theirs."""
        return any(is_left(session_id) for is_left in self.drains) and not is_inside(running_turn.get())

    def check_stays(self, session_id: str) -> None:
        """Refuse what would begin in a session that is about to leave.

        Raises:
            SessionMoved: it is about to leave.
        """
        if self.is_held(session_id):
            raise SessionMoved(self.runner.name, session_id)

    def check_decided_here(self, context: SessionContext) -> None:
        """Refuse what a person decides in a session that is about to leave, unless a turn is waited for that may wait for it.

        Raises:
            SessionMoved: it is about to leave.
        """
        above = context.parent
        while above is not None and (above.turn is None or is_stalled(above)):
            above = above.parent
        if above is None:
            self.check_stays(context.id)

    def epoch_of(self, session_id: str) -> int:
        """The epoch under which a session is read and written; asked before it is read.

        Raises:
            SessionMoved: it is another process's, or is about to be.
        """
        if self.drains:
            self.check_stays(session_id)
        try:
            return 0 if self.journal is None else self.journal.epoch_of(session_id)
        except Fenced as error:
            raise SessionMoved(self.runner.name, session_id) from error

    def check_epoch(self, session_id: str, epoch: int) -> None:
        """Refuse to go on with what was read of a session before another process may have written to it.

        Raises:
            SessionMoved: it was another process's meanwhile.
        """
        if self.epoch_of(session_id) != epoch:
            raise SessionMoved(self.runner.name, session_id)

    # --- how they leave ----------------------------------------------------------------------

    def begin(self, context: SessionContext) -> None:
        """Let a session go: whatever runs or waits in it is stopped, and nothing more is written or told.

        It has left when its host `forget_if_over`s it with nothing pending.
        """
        context.mail.has_moved = context.closed = True
        if context.log is not None:
            context.log.leave()
        context.due_index = None
        self.timers.set(context.id, 0)
        self.runner.sessions.mark_active(context)
        self._ends[context.id] = trio.Event()
        for scope in self._scopes.get(context.id, ()):
            scope.cancel()
        self.send_on(context)
        if context.suspension is not None:
            self._leave_suspended(context, context.suspension)
        elif context.turn is not None:
            self.runner.leave_turn(context, context.turn)

    def send_on(self, context: SessionContext) -> None:
        """Take out what waits in a session for its turn, which the journal has for another process."""
        while waiting := self.runner.inbox.withdraw(context.id):
            context.mail.is_sent_on = True
            for message in waiting:
                self.runner.turn_lifecycle.leave_unstarted(context, message)

    def _leave_suspended(self, context: SessionContext, suspension: Suspension) -> None:
        self.runner.inbox.unpark(context.id)
        context.suspension, turn = None, suspension.turn
        if turn is not None:
            turn.listeners += suspension.guests
            self.runner.end_left(context, turn)
        else:
            self.runner.turn_lifecycle.leave_unstarted(context, suspension.message, suspension.guests)
            context.mail.mark_done(suspension.messages - 1)
            self.runner.inbox.release(context.id)

    def leave_tree(self, log: SessionLog) -> None:
        """Another process was found to own a session, and so all of its tree."""
        context = self.runner.sessions.find_any(log.session_id)
        if context is None or context.log is not log:
            return
        self.runner.sessions.reload_any(log.session_id)  # what was unloaded leaves as the others do
        while context.parent is not None:
            context = context.parent
        for each in context.family():
            host_of(each).leave(each)

    def end(self, context: SessionContext) -> None:
        """Forget a session that has left."""
        if self.runner.sessions.remove(context):
            if context.parent is not None:
                context.parent.remove_child(context)
                context.parent.let_face_go()
            if (ended := self._ends.pop(context.id, None)) is not None:
                ended.set()
            is_told = self.on_left is not None and self._tell(self.on_left, context)
            if not is_told:
                context.let_face_go()

    def _tell(self, tell: Callable[[SessionContext], Awaitable[object]], context: SessionContext) -> bool:
        """Have the handlers of programs told, and no others: `Agent.on_session` has attached those where the session is.

        Returns False where there are none.
        """
        outside = context.handlers.outside()
        if outside is None:
            return False
        context.handlers = outside
        context.mail.pins += 1  # its user's end stays for those that are told

        async def tell_all() -> None:
            try:
                await tell(context)
            finally:
                context.mail.pins -= 1
            context.let_face_go()

        is_told = bool(self.runner.start_soon(tell_all))
        context.mail.pins -= not is_told
        return is_told

    # --- who waits ---------------------------------------------------------------------------

    def find(self, session_id: str) -> trio.Event | None:
        """What is set when a session has left; None where it does not leave, or has left."""
        return self._ends.get(session_id)

    @contextmanager
    def cut(self, session_id: str) -> Iterator[None]:
        """A block that ends when the session leaves.

        Raises:
            SessionMoved: it left.
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
    """Return True if nothing goes on in a session before people decide: its turn waits for them, or all its calls for such ones below.

    Those calls find again what they have asked, wherever they run again.
    """
    turn = context.turn
    if turn is None or turn.batch is None:
        return turn is None and context.suspension is not None
    asked = [each for each in (context.children or {}).values() if _is_awaited(each)]
    is_waiting = turn.lent_slots == len(asked) >= turn.batch.count_left() > 0
    return is_waiting and turn.batch.may_run_again() and all(map(is_stalled, asked))


def _is_awaited(child: SessionContext) -> bool:
    """Return True if a call waits for what a session comes to."""
    task = child.task
    if task is None or task.reports or task.is_unclaimed:
        return False
    return not (task.is_answered or task.future.done.is_set())
