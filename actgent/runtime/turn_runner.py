"""Turns that wait for people: they hold neither task nor place, and their sessions' mail waits with them."""

import functools
from collections.abc import Callable

from actgent.actors.inbox import PriorityInbox
from actgent.errors import Interrupted
from actgent.journal.records import Resumed, SuspendedRecord
from actgent.messages import Message, Priority
from actgent.sessions.context import SessionContext
from actgent.sessions.turn import Suspension, Turn
from actgent.sessions.turn_future import TurnWaiter
from actgent.turns.lifecycle import TurnEdges

from .session_table import SessionTable

URGENT_CAME = "an urgent message came"
NEWER_CAME = "a newer message came"


class Suspensions:
    """Lays the turns of one agent down, and has them taken up again."""

    def __init__(
        self,
        *,
        edges: TurnEdges,
        inbox: PriorityInbox[Message],
        sessions: SessionTable,
        go_on: Callable[[SessionContext, Turn], object],
    ) -> None:
        self.send_away: Callable[[SessionContext], object] = lambda _: None
        """Refuses what came in behind a turn that waits for people by now."""
        self._edges = edges
        self._inbox = inbox
        self._sessions = sessions
        self._go_on = go_on

    def suspend(self, context: SessionContext, turn: Turn) -> None:
        """A turn waits for people: it holds neither task nor slot, and its session's mail waits."""
        self._edges.suspend_turn(context, turn)
        self._inbox.park(context.id)
        ledger = context.ledger()
        if newer := self.newer(turn.message):
            turn.interrupt(newer)
        if turn.control.stop is not None or not ledger.has_open:
            self.take_up(context)
        else:
            turn.control.wake = functools.partial(self.take_up, context)
            for listener in turn.listeners:
                if listener.is_patient:
                    listener.hold()
                else:
                    turn.remove_listener(listener)
                    listener.suspend(tuple(ledger.open))
            self.send_away(context)
            for waiter in _queued(context):
                waiter.hold()
            context.mail.tell_idle()
            self._sessions.rest(context)

    def take_up(self, context: SessionContext, error: Exception | None = None) -> None:
        """A suspended turn goes on: nobody is waited for any more, or it is to end with an error."""
        suspension = context.suspension
        if suspension is None:
            return
        self._sessions.stir(context)
        self._inbox.unpark(context.id)
        turn = self._edges.continue_turn(context, suspension)
        for listener in (*turn.listeners, *_queued(context)):
            listener.release()
        if error is not None:
            turn.stop_with(error)
        ledger = context.ledger()
        if ledger.is_suspended:
            context.record_approval(Resumed())
        self._go_on(context, turn)

    def lay_down(self, context: SessionContext, message: Message) -> None:
        """Keep a turn that waited for people before a restart."""
        joined = () if context.resume is None else context.resume.joined
        context.suspension = Suspension(message, messages=1 + len(joined))
        self._inbox.park(context.id)
        if context.task is not None and context.task.message_id == message.id:
            context.task.waiter.hold()

    def take_up_if_outdated(self, context: SessionContext) -> None:
        """End a suspended turn whose answer nobody wants, or whose session was told something that does not wait for people."""
        if context.suspension is None:
            return
        reason = "nobody waits for the answer any more" if context.closed else ""
        if reason := reason or self.newer(context.suspension.message):
            self.take_up(context, Interrupted(reason))
        elif context.log is not None and self._inbox.has_first(context.id):
            self.note_again(context)  # an URGENT turn waits on
            context.log.flush_soon()

    def note_again(self, context: SessionContext) -> None:
        """A turn waits on although a message was written that counts as its end in the journal's index."""
        ids, log = tuple(context.ledger().open), context.log
        if (
            log is not None and context.suspension is not None and ids
        ):  # or somebody is just deciding over the last one
            log.note(SuspendedRecord(message_id=context.suspension.message.id, ids=ids))

    def newer(self, message: Message) -> str:
        """Why nobody is to be waited for any more in a turn that answers `message`; empty where nothing came."""
        if self._inbox.has_urgent(message.session_id):
            return URGENT_CAME
        is_urgent = message.priority is Priority.URGENT
        return NEWER_CAME if not is_urgent and self._inbox.has_first(message.session_id) else ""


def _queued(context: SessionContext) -> list[TurnWaiter]:
    """List the callers that wait for approvals, too, and whose messages are queued behind the session's turn."""
    waiters = [each.waiter for each in (context.mail.acceptances or {}).values() if each.is_in]
    return [each for each in waiters if each is not None and each.is_patient and not each.abandoned]
