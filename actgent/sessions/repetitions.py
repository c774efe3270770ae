"""Who says a message again under its id, and waits for what comes of it, as `run(message_id=)` does.

    on its way    the repetition waits until it is in, or takes its place (see `Reception`)
    queued        it hears of the turn when it begins
    running       it hears the rest of the turn
    suspended     it is told so, unless it waits for people, too
    ended         it gets the same reply, or the same error

It is a further listener: a repetition that leaves stops nothing.
"""

from collections.abc import Iterable

from actgent.errors import AlreadyAnswered, Stopped
from actgent.messages import Failure, Reply

from .context import SessionContext
from .failures import kind_of
from .turn import Turn
from .turn_future import Outcome, TurnWaiter

KNOWN = 100
"""Outcomes that a session keeps for repetitions, the newest; none is kept over a restart."""


def keep_outcome_of(context: SessionContext, message_id: str, outcome: Outcome) -> None:
    """Keep what a message came to, if it may be repeated."""
    if not context.mail.has_accepted(message_id) or isinstance(outcome.error, Stopped):
        return
    if context.mail.outcomes is None:
        context.mail.outcomes = {}
    context.mail.outcomes[message_id] = outcome
    if len(context.mail.outcomes) > KNOWN:
        del context.mail.outcomes[next(iter(context.mail.outcomes))]


def keep_outcome(context: SessionContext, turn: Turn, outcome: Outcome) -> None:
    """Keep what a turn came to for all messages that it answered."""
    for message in (*turn.joined, turn.message):
        keep_outcome_of(context, message.id, outcome)


def settle_listeners(context: SessionContext, turn: Turn) -> None:
    """A turn has ended: let its listeners go, those with what it came to who came too late to hear of that."""
    told = next((each for each in turn.listeners if each.has_heard), None)
    outcome = Outcome(None if told is None else told.answer(), turn.control.error)
    if told is not None and turn.control.error is None:
        keep_outcome(context, turn, outcome)
    for listener in turn.listeners:
        if listener.is_joined and not listener.has_heard:
            _tell(listener, turn.message.id, outcome)
        else:
            listener.finish()


def add_guests(turn: Turn, guests: Iterable[TurnWaiter]) -> None:
    """Let those hear of a turn who repeated its message while that was queued, and have not left."""
    for guest in guests:
        if not guest.abandoned:
            turn.add_listener(guest)


def join(context: SessionContext, message_id: str, waiter: TurnWaiter) -> None:
    """Let someone hear what comes of a message that was accepted before.

    Raises:
        AlreadyAnswered: it has ended, and what it came to is not known any more.
        Suspended: its turn, or one before it, waits for people, and this one does not.
    """
    waiter.is_joined = True
    known = context.mail.outcomes.get(message_id) if context.mail.outcomes else None
    turn, suspension = context.turn, context.suspension
    if known is not None:
        _tell(waiter, message_id, known)
    elif turn is not None and any(each.id == message_id for each in (*turn.joined, turn.message)):
        turn.add_listener(waiter)
    elif suspension is not None and not waiter.is_patient and context.ledger().open:
        waiter.suspend(tuple(context.ledger().open))
    elif suspension is not None and suspension.message.id == message_id:
        suspension.add_guest(waiter)
    elif (acceptance := context.mail.find(message_id)) is not None:
        acceptance.guests = (*acceptance.guests, waiter)
    else:
        raise AlreadyAnswered(message_id, context.id)


def _tell(waiter: TurnWaiter, message_id: str, known: Outcome) -> None:
    if known.error is not None:
        kind = kind_of(known.error)
        waiter.failure = Failure(
            id=f"{message_id}/failure", kind=kind, error=known.error, message_id=message_id
        )
    else:
        waiter.reply = known.reply or Reply(text="")
    waiter.hear(waiter.failure or waiter.reply)
    waiter.finish()
