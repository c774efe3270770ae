"""How messages come into a running agent: a place in the inbox first, then durable, then in, or straight into their turn."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from contextvars import Context, copy_context

import attrs
import trio

from actgent.actors.inbox import DEFAULT_WAIT, Place
from actgent.control.budget import Funding
from actgent.errors import ActgentError, Fenced, JournalError, SessionBusy, SessionMoved, Suspended
from actgent.events import MessageAccepted
from actgent.journal.records import NOTHING, Record
from actgent.messages import Message, Priority, is_id_of_process
from actgent.sessions.context import SessionContext
from actgent.sessions.incoming import check_busy, join, tell_moved
from actgent.sessions.mail import Acceptance
from actgent.sessions.propagation import Propagation
from actgent.sessions.session_log import SessionLog
from actgent.sessions.turn import is_inside
from actgent.sessions.waiting.turn_future import TurnFuture
from actgent.support import span_names as names
from actgent.support.logs import logger_of
from actgent.support.tracing import Tracing
from actgent.turns.guards import Guards

from .sessions.lifecycle import SessionLifecycle, stop_if_unwanted
from .slots import running_session, would_wait_for_itself
from .turn_runner import URGENT_CAME

_RING_LEVELS = 3
"""The level of agents that ask agents at which a ring of agents is searched: a asks b, b asks a, a asks b."""
_log = logger_of(__name__)


class Intake:
    """Takes in the messages of one agent.

    A message is written only when it has its place in the inbox, so that what is refused for want of room was never
    written. From the write on nothing waits: it is in, or the journal has it as refused, too.
    """

    def __init__(self, lifecycle: SessionLifecycle, propagation: Propagation, guards: Guards) -> None:
        self._guards = guards
        self._lifecycle = lifecycle
        self._propagation = propagation
        self._drains = lifecycle.leaving.drains
        self._runner = lifecycle.runner
        self._inbox = lifecycle.inbox
        self._sessions = lifecycle.sessions
        self._tracing = lifecycle.events.tracing

    async def accept(
        self,
        context: SessionContext,
        message: Message,
        *,
        once: bool = False,
        future: TurnFuture | None = None,
        is_granted: bool = False,
        funding: Funding | None = None,
    ) -> None:
        """Take a message in, waiting for room; on return it is in the inbox. Cancelled, it is not, and never runs.

        `once` drops a message whose id the session has seen; one that is still on its way is waited for, and replaced if
        it does not get in. `future` is told what comes of it. One that `is_granted` gets in whatever the bounds: the
        session asked for it. `funding` is what its turn draws on, where that is not the turn that sends it.
        """
        message = self._admitted(context, message, is_guarded=not is_granted)
        if once:
            message = await self._wait_for_first(context, message)
            if context.mail.has_accepted(message.id):
                if future is not None:
                    join(context, message.id, future)
                await trio.lowlevel.checkpoint()
                return
        self._check_busy(context, message)
        if future is not None:
            _check_not_suspended(context, message, future)
        await trio.lowlevel.checkpoint_if_cancelled()
        acceptance = Acceptance(message, copy_context(), future, funding)
        if funding is None and (future is not None or context.parent is not None):
            acceptance.funding = self._funding_for(context, future)
        if is_granted or context.log is not None or not self._runner.try_claim(message):
            await self._take_in(context, acceptance, is_granted=is_granted)
        else:
            self._start_at_once(context, acceptance)
        if future is not None and context.suspension is not None:
            self._stand_behind(context, future)
        if once and not (future is not None and future.is_sent_away):
            context.mail.remember_accepted(message.id)
        if context.log is None:  # with a journal it has paused long enough
            await trio.lowlevel.cancel_shielded_checkpoint()

    async def accept_first(self, context: SessionContext, message: Message) -> None:
        """Take a session's first message in. Without a journal nothing pauses if there is room, and never after it is in."""
        message = self._admitted(context, message)
        context.conversation.describe(message)
        acceptance = Acceptance(message, copy_context())
        if context.parent is not None:
            acceptance.funding = self._funding_for(context, None)
        if context.log is not None or not self._runner.try_claim(message):
            await self._take_in(context, acceptance)
        else:
            self._start_at_once(context, acceptance)

    async def accept_due(
        self,
        context: SessionContext,
        message: Message,
        *others: Record,
        variables: Context | None = None,
        funding: Funding | None = None,
    ) -> None:
        """Take in a message that a date brought, which waits for room by coming again; `others` go in the same step.

        Its turn runs with these context variables; None is those of the caller. `funding` is what it draws on.

        Raises:
            InboxFull: there is no room. Nothing was written.
            JournalError: it is not taken in, and may be written or not: it has to come again, with the same id.
        """
        message = self._admitted(context, message, is_guarded=False)
        acceptance = Acceptance(message, copy_context() if variables is None else variables, funding=funding)
        self._inbox.check_room(message)
        place = acceptance.place = self._inbox.reserve_beyond(message)
        self._expect(context, acceptance)
        try:
            if context.log is not None:
                baggage = self._propagation.take_what_fits(acceptance.variables)
                await context.log.accept(message, *others, funding=funding, baggage=baggage)
            _check_not_closed(context, acceptance)
        except BaseException as error:
            self._runner.turn_lifecycle.observer.refuse(context, message, error)
            self._refuse(context, acceptance)
            raise
        self._let_in(context, acceptance, place)
        if context.log is None:
            await trio.lowlevel.cancel_shielded_checkpoint()

    def _admitted(self, context: SessionContext, message: Message, *, is_guarded: bool = True) -> Message:
        """A message that may come in now, as guards leave it; with telemetry in the trace of whatever sends it.

        Raises:
            GuardRefused, HandlerFailed: a guard of inputs refuses it, or failed.
            MessageTooLarge: The message has more bytes than the agent takes.
            SessionClosed, NotRunning: nothing can be said to the session any more.
        """
        if context.closed:
            raise context.refusal
        self._lifecycle.check_accepts()
        if self._drains:
            self._lifecycle.leaving.check_stays(context.id)
        if is_guarded:
            self._inbox.check_size(message)
        if is_guarded and self._guards.inputs:
            message = self._guards.admit(context, message)
        return message if self._tracing is None else _traced(message, self._lifecycle.name, self._tracing)

    def _check_busy(self, context: SessionContext, message: Message) -> None:
        if message.on_busy != "reject":
            return
        try:
            check_busy(context, message)
        except SessionBusy as error:
            self._runner.turn_lifecycle.observer.refuse(context, message, error)
            raise

    # --- a place, the journal, the inbox ---------------------------------------------------

    async def _take_in(
        self, context: SessionContext, acceptance: Acceptance, *, is_granted: bool = False
    ) -> None:
        """Reserve a place for a message, write it and let it in. Refused or cancelled, nothing is left of it."""
        self._expect(context, acceptance)
        try:
            place = await self._reserve(context, acceptance, is_granted=is_granted)
            if context.log is not None:
                await self._write(context, acceptance, context.log, is_granted=is_granted)
        except BaseException as error:
            self._runner.turn_lifecycle.observer.refuse(context, acceptance.message, error)
            self._refuse(context, acceptance)
            raise
        self._let_in(context, acceptance, place)

    def _start_at_once(self, context: SessionContext, acceptance: Acceptance) -> None:
        """The session of a message that needs no place and no write was claimed for it."""
        context.mail.pending += 1
        self._sessions.mark_active(context)
        if self._lifecycle.events.watched:
            self._publish(acceptance.message)
        self._runner.start(context, acceptance)
        if context.mail.unwanted is not None:
            stop_if_unwanted(self._lifecycle, context, acceptance.message.id)

    def _expect(self, context: SessionContext, acceptance: Acceptance) -> None:
        """A message is on its way in."""
        context.mail.expect(acceptance)
        self._sessions.mark_active(context)
        if context.suspension is not None:  # it may have slept meanwhile
            self._inbox.park(context.id)

    async def _reserve(
        self, context: SessionContext, acceptance: Acceptance, *, is_granted: bool
    ) -> Place[Message]:
        """Wait for a place in the inbox, without a pause if there is room."""
        message, inbox = acceptance.message, self._inbox
        first = message.on_busy == "interrupt"
        if is_granted:
            acceptance.place = place = inbox.reserve_beyond(message, first=first)
        elif (found := inbox.try_reserve(message, first=first)) is not None:
            acceptance.place = place = found
        elif self._would_wait_for_itself(context):
            raise inbox.refusal(message)
        else:
            with self._lifecycle.leaving.cut(context.id):
                acceptance.place = await inbox.reserve(message, first=first)
            place = acceptance.place
            self._lifecycle.check_reachable(context)
        return place

    async def _write(
        self, context: SessionContext, acceptance: Acceptance, log: SessionLog, *, is_granted: bool
    ) -> None:
        """Make a message durable; if nothing can take it any more, that is durable, too, before the sender hears of it."""
        future, propagation = acceptance.future, self._propagation
        take = propagation.take_what_fits if is_granted else propagation.take
        baggage = take(acceptance.variables) if propagation.variables else NOTHING
        options = None if future is None else future.options.journal_form
        acceptance.log = log
        await log.accept(acceptance.message, funding=acceptance.funding, options=options, baggage=baggage)
        try:
            self._lifecycle.check_reachable(context)
        except ActgentError:
            self._note_refused(context, acceptance, log)
            acceptance.log = None
            await log.flush()
            raise

    def _let_in(self, context: SessionContext, acceptance: Acceptance, place: Place[Message]) -> None:
        """A message is in, and its turn starts as soon as it may."""
        acceptance.is_in = True
        acceptance.mark_done()
        if self._drains and self._is_sent_on(context, acceptance.message):
            self._inbox.fill(place)
            self._lifecycle.leaving.send_on(
                context
            )  # behind what came before it, which is on its way already
            return
        if self._runner.try_claim_place(place):
            self._start(context, context.mail.take(acceptance.message))
        else:
            self._inbox.fill(place)
            self._announce(context, acceptance.message)
        if context.mail.unwanted is not None:
            stop_if_unwanted(self._lifecycle, context, acceptance.message.id)

    def _is_sent_on(self, context: SessionContext, message: Message) -> bool:
        """True if a message is for the next owner of its session; what is to be stopped is stopped here."""
        is_unwanted = message.id in (context.mail.unwanted or ())
        return context.parent is None and not is_unwanted and self._lifecycle.leaving.is_held(context.id)

    def _start(self, context: SessionContext, acceptance: Acceptance) -> None:
        """The session of a message is claimed for it: its turn starts at once."""
        if self._lifecycle.events.watched:
            self._publish(acceptance.message)
        self._runner.start(context, acceptance)

    def _refuse(self, context: SessionContext, acceptance: Acceptance) -> None:
        """The message did not get in after all."""
        if acceptance.place is not None:
            self._inbox.give_back(acceptance.place)
        if (log := acceptance.log) is not None:
            self._note_refused(context, acceptance, log)
            log.flush_soon()
        context.mail.refuse(acceptance)
        self._lifecycle.forget_if_over(context)
        self._sessions.mark_idle(context)

    def _note_refused(self, context: SessionContext, acceptance: Acceptance, log: SessionLog) -> None:
        """Note that a message in the journal was refused, and that a turn it would have ended waits on."""
        log.note_refused(acceptance.message.id)
        message = acceptance.message
        goes_first = message.priority is Priority.URGENT or message.on_busy == "interrupt"
        if goes_first and context.log is log:
            self._runner.note_again(context)

    def _announce(self, context: SessionContext, message: Message) -> None:
        """A message waits in the inbox: whoever it concerns hears of it."""
        if self._lifecycle.events.watched:
            self._publish(message)
        turn = context.turn
        if message.priority is Priority.URGENT and turn and turn.message.priority is not Priority.URGENT:
            self._runner.turn_lifecycle.observer.interrupt(turn, message)
            turn.interrupt(URGENT_CAME)
        elif message.on_busy == "interrupt" and turn:
            self._runner.turn_lifecycle.observer.interrupt(turn, message)
            self._runner.stop_if_superseded(turn)
        elif context.suspension is not None:
            self._runner.resume_if_superseded(context)
        self._runner.pump()

    # --- repetitions -----------------------------------------------------------------------

    async def _wait_for_first(self, context: SessionContext, message: Message) -> Message:
        """Wait until nobody brings a message of this id in any more; returns the message, with the time that is left for it.

        Raises:
            InboxFull: the first one waited for room as long as this one may.
            SessionClosed, NotRunning: nothing can take it any more.
        """
        while (first := context.mail.find(message.id)) is not None and not first.is_in:
            message = await self._wait_settled(context, message, first)
            self._lifecycle.check_reachable(context)
        # Ids that callers choose are remembered from the start; one that we chose is searched when it comes again.
        if is_id_of_process(message.id) and _was_sent(context, message.id):
            context.mail.remember_accepted(message.id)
        return message

    async def _wait_settled(self, context: SessionContext, message: Message, first: Acceptance) -> Message:
        if first.place is None and self._would_wait_for_itself(context):
            raise self._inbox.refusal(message)
        deadline = DEFAULT_WAIT if message.deadline is None else message.deadline
        with self._lifecycle.kept(context):
            with trio.move_on_after(deadline) as limit:
                await first.wait_settled()
            if limit.cancelled_caught and first.place is None:
                raise self._inbox.refusal(message)
            if limit.cancelled_caught:  # it has its room, and only has to be written
                await first.wait_settled()
        return attrs.evolve(message, deadline=max(0.0, limit.deadline - trio.current_time()))

    def _funding_for(self, context: SessionContext, future: TurnFuture | None) -> Funding | None:
        """Find what pays for a message's turn: limits of its own, and the budget of the turn that asks for it.

        That is one that waits for the answer, or speaks to a session below its own.

        Raises:
            LimitReached: that turn is as deep as may be.
        """
        limits = None if future is None else future.options.limits
        asker = running_session()
        if future is None and not any(above is asker for above in _above(context)):
            asker = None
        if asker is None or asker.turn is None:
            return None if limits is None else Funding(limits.shared)
        funding = self._runner.turn_lifecycle.accounts.lead(asker, asker.turn, asker.agent)
        if (
            funding.depth == _RING_LEVELS
        ):  # one level only: an ordinary question costs no walk, and the log gets one line
            _warn_of_ring(asker, context.agent)
        return funding if limits is None else attrs.evolve(funding, limits=limits.shared)

    def _would_wait_for_itself(self, context: SessionContext) -> bool:
        return is_inside(context.turn) or would_wait_for_itself(context)

    # --- those that do not wait for people ---------------------------------------------------

    def _stand_behind(self, context: SessionContext, future: TurnFuture) -> None:
        """A caller's message is in, behind a turn that waits for people, perhaps since it came."""
        if future.is_patient:
            future.hold()
        else:
            self.send_away(context)

    def send_away(self, context: SessionContext) -> None:
        """Refuse what came in behind a turn that waits for people by now, of callers that do not wait for those.

        They hear of it as soon as the journal has it, so that no next start runs what they were told is refused.
        """
        if (error := _suspended(context)) is None:
            return
        known = tuple((context.mail.acceptances or {}).values())
        told = [each for acceptance in known for each in self._send_impatient(context, acceptance, error)]
        if told and (context.log is None or not self._runner.start_soon(_tell_written, context, told)):
            _tell(context, told)

    def _send_impatient(
        self, context: SessionContext, acceptance: Acceptance, error: Suspended
    ) -> "list[_SentAway]":
        """Refuse one message if who said it does not wait for people; returns those who are to hear of it."""
        future, message_id = acceptance.future, acceptance.message.id
        impatient = [guest for guest in acceptance.guests if not guest.is_patient]
        told = [_SentAway(guest, message_id, error, is_refused=False) for guest in impatient]
        acceptance.guests = tuple(guest for guest in acceptance.guests if guest.is_patient)
        is_waiting = acceptance.is_in and acceptance.ending is None
        if future is None or not is_waiting or future.is_patient:
            return told
        context.mail.forget_accepted(message_id)
        if acceptance.place is not None:
            self._inbox.take_out(acceptance.place)
        acceptance.place = None
        self._refuse(context, acceptance)
        future.is_sent_away = True
        sent = [_SentAway(each, message_id, error, is_refused=True) for each in (future, *acceptance.guests)]
        return [*told, *sent]

    def _publish(self, message: Message) -> None:
        self._lifecycle.events.publish(
            MessageAccepted(
                agent=self._lifecycle.name,
                session_id=message.session_id,
                turn=message.id,
                message_id=message.id,
                priority=message.priority,
            )
        )


def _traced(message: Message, agent: str, tracing: Tracing) -> Message:
    """The message in the trace of the work that sends it; where there is none, it begins one by a span of its own."""
    current = tracing.current() or message.traceparent
    if current is None:
        span = tracing.begin(
            f"{names.SEND} {agent}",
            {names.AGENT: agent, names.CONVERSATION: message.session_id, names.MESSAGE: message.id},
            kind="producer",
            parent="",
        )
        span.end()
        current = span.traceparent
    return message if current == message.traceparent else attrs.evolve(message, traceparent=current)


def _suspended(context: SessionContext) -> Suspended | None:
    """Name the approvals for which the suspended turn of a session waits; None where it goes on by itself."""
    if context.suspension is None or not (ledger := context.ledger()).undecided:
        return None
    return ledger.suspended()


def _check_not_suspended(context: SessionContext, message: Message, future: TurnFuture) -> None:
    """Refuse a caller that would wait for people, unless it wants to, or its message ends the turn that does.

    Raises:
        Suspended: it would.
    """
    if context.suspension is None or future.is_patient or message.priority is Priority.URGENT:
        return
    is_outdated = context.suspension.message.priority is not Priority.URGENT
    if not (message.on_busy == "interrupt" and is_outdated) and (error := _suspended(context)):
        raise error


@attrs.frozen
class _SentAway:
    """Someone who waited behind a turn that waits for people, and does not wait for those."""

    future: TurnFuture
    message_id: str
    error: Suspended
    is_refused: bool
    """True: what they wait for was taken out of the inbox again."""

    def tell(self, context: SessionContext) -> None:
        """Let them go, with the reason; if another process goes on with the session, that is it."""
        if context.has_moved:
            tell_moved((self.future,), self.message_id, SessionMoved(context.agent, context.id))
        elif self.is_refused:
            self.future.send_away(self.message_id, self.error)
        else:
            self.future.suspend(self.error)


async def _tell_written(context: SessionContext, told: Iterable[_SentAway]) -> None:
    """Tell callers that they are refused when the journal has it, or cannot have it."""
    try:
        if context.log is not None:
            with suppress(JournalError, Fenced):
                await context.log.flush()
    finally:
        _tell(context, told)


def _tell(context: SessionContext, told: Iterable[_SentAway]) -> None:
    for each in told:
        each.tell(context)


def _check_not_closed(context: SessionContext, acceptance: Acceptance) -> None:
    if context.closed:
        acceptance.log = context.log  # which has it: it does not come again
        raise context.refusal


def _above(context: SessionContext) -> Iterator[SessionContext]:
    """The sessions of which this one is a child."""
    while context.parent is not None:
        context = context.parent
        yield context


def _was_sent(context: SessionContext, message_id: str) -> bool:
    """Return True if a message of this id waits, has its turn, or is in the session's history."""
    turn = context.turn
    return (
        context.mail.find(message_id) is not None
        or (turn is not None and turn.message.id == message_id)
        or any(message.id == message_id for message in context.conversation.messages)
    )


def _warn_of_ring(asker: SessionContext, agent: str) -> None:
    """Log a warning if an agent that is asked waits for an answer itself, in a session above the asking one."""
    names, session = [asker.agent], asker.parent
    while session is not None:
        names.insert(0, session.agent)
        session = session.parent
    if agent in names:
        ring = " -> ".join([*names[names.index(agent) :], agent])
        _log.warning(
            "agents ask each other in a ring, and each of them waits for the next: %s. Give one of them no tool for the "
            "other, or a lower limits=Limits(depth=...)",
            ring,
        )
