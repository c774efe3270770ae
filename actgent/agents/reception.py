"""How messages come into a running agent: durable first, then in the inbox, or straight into their turn."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import trio

from actgent.errors import SessionClosed
from actgent.events import MessageAccepted
from actgent.journal.records import Record, TurnOptions
from actgent.messages import Message, Priority

from .context import SessionContext
from .double_texting import check_busy
from .suspensions import URGENT_CAME
from .turn import Asked, is_inside
from .waiters import TurnWaiter
from .waiting import running_session, would_wait_for_itself

if TYPE_CHECKING:
    from .running import RunningAgent


class Reception:
    """Takes in the messages of one agent."""

    def __init__(self, host: "RunningAgent") -> None:
        self._host = host
        self._inbox = host.inbox
        self._sessions = host.sessions

    async def accept(
        self,
        context: SessionContext,
        message: Message,
        *,
        once: bool = False,
        waiter: TurnWaiter | None = None,
        is_granted: bool = False,
    ) -> None:
        """Take a message in, waiting for room; on return it is in the inbox.

        `once` drops a message whose id the session has seen; `waiter` is told what comes of it. One that `is_granted`
        gets in whatever the bounds: the session asked for it.
        """
        self._host.check_open(context)
        if once and context.has_accepted(message.id):
            await trio.lowlevel.checkpoint()
            return
        check_busy(context, message)
        if once:
            context.remember_accepted(message.id)
        self._expect(context)
        if waiter is not None:
            context.wait_for(message.id, waiter)
        if waiter is not None or context.parent is not None:
            _note_asker(context, message, waiter)
        starts = False
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            if context.log is not None:
                await self._write(context, message, None if waiter is None else waiter.options.told)
            if is_granted:
                self._inbox.restore(message, now=trio.current_time())
            elif not (starts := self._host.try_claim(message)):
                await self._put(context, message)
        except BaseException:
            self._refuse(context, message)
            raise
        self._announce(context, message, starts=starts)
        if context.log is None:  # with a journal it has paused long enough
            await trio.lowlevel.cancel_shielded_checkpoint()

    async def release(self, context: SessionContext, message: Message) -> None:
        """Take a session's first message in. Where there is room nothing pauses, and never after it is in."""
        self._host.check_open(context)
        self._expect(context)
        if context.parent is not None:
            _note_asker(context, message, None)
        try:
            if context.log is not None:
                await self._write(context, message)
            if not (starts := self._host.try_claim(message)):
                await self._put(context, message, is_arriving=True)
        except BaseException:
            self._refuse(context, message)
            raise
        self._announce(context, message, starts=starts)

    def _expect(self, context: SessionContext) -> None:
        """A message is on its way in."""
        context.pending += 1
        self._sessions.stir(context)
        if context.suspension is not None:  # it may have slept meanwhile
            self._inbox.park(context.id)

    async def _put(self, context: SessionContext, message: Message, *, is_arriving: bool = False) -> None:
        """Put a message into the inbox, without a pause where there is room."""
        first = message.on_busy == "interrupt"
        if not self._inbox.try_put(message, now=trio.current_time(), first=first):
            context.is_arriving = is_arriving
            if is_inside(context.turn) or would_wait_for_itself(context):
                self._inbox.put_nowait(message)  # raises: it would wait for itself
            await self._inbox.put(message, first=first)

    async def admit(self, context: SessionContext, message: Message, *others: Record) -> None:
        """Take in a message that a date brought, which waits for room by coming again; `others` go in the same step.

        Raises:
            InboxFull: there is no room. Nothing was written.
            JournalError: it is not taken in, and may be written or not: it has to come again, with the same id.
        """
        self._host.check_open(context)
        self._inbox.check_room(message)
        self._expect(context)
        try:
            if context.log is not None:
                await context.log.accept(message, *others)
        except BaseException:
            context.settle()
            self._host.forget_if_over(context)
            self._sessions.rest(context)
            raise
        if context.closed:
            context.is_written = message.id
            self._refuse(context, message)
            raise SessionClosed(context.id)
        self._inbox.restore(message, now=trio.current_time())  # its place was granted above
        self._announce(context, message)
        if context.log is None:
            await trio.lowlevel.cancel_shielded_checkpoint()

    async def _write(
        self, context: SessionContext, message: Message, options: TurnOptions | None = None
    ) -> None:
        """Make an accepted message durable before it is in the inbox."""
        context.is_written = message.id
        await context.log.accept(message, asked=context.asked(message.id), options=options)
        self._host.check_open(context)  # it may have been closed meanwhile

    def _refuse(self, context: SessionContext, message: Message) -> None:
        """The message did not get in after all."""
        if context.log is not None and context.is_written == message.id:
            context.log.end(message.id, failed="refused")
        context.forget_message(message.id)
        self._host.forget_if_over(context)
        self._sessions.rest(context)

    def _announce(self, context: SessionContext, message: Message, *, starts: bool = False) -> None:
        """A message is in: whoever it concerns hears of it, and its turn starts as soon as it may, or now."""
        if self._host.events.watched:
            self._publish(message)
        if starts:
            self._host.start(context, message)
            return
        turn = context.turn
        if message.priority is Priority.URGENT and turn and turn.message.priority is not Priority.URGENT:
            turn.interrupt(URGENT_CAME)
        elif message.on_busy == "interrupt" and turn:
            self._host.stop_if_outdated(turn)
        elif context.suspension is not None:
            self._host.suspensions.take_up_if_outdated(context)
        self._host.pump()

    def _publish(self, message: Message) -> None:
        self._host.events.publish(
            MessageAccepted(
                agent=self._host.name,
                session_id=message.session_id,
                message_id=message.id,
                priority=message.priority,
            )
        )


def _note_asker(context: SessionContext, message: Message, waiter: TurnWaiter | None) -> None:
    """What a message's turn is paid from: limits of its own, and the budget of the turn that asks for it.

    That is one that waits for the answer, or speaks to a session below its own.
    """
    limits = None if waiter is None else waiter.options.limits
    asker = running_session()
    budget = None if asker is None or asker.turn is None else asker.turn.budget
    if waiter is None and not any(above is asker for above in _above(context)):
        budget = None
    if limits is not None or budget is not None:
        bounds = None if limits is None else limits.shared
        context.ask(message.id, Asked(bounds, () if budget is None else budget.accounts))


def _above(context: SessionContext) -> Iterator[SessionContext]:
    """The sessions of which this one is a child."""
    while context.parent is not None:
        context = context.parent
        yield context
