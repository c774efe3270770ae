"""Messages that arrive while their session is busy, and repeated message ids.

The busy rule decides about messages that arrive while their session is busy:

    queue      the message waits until the earlier messages are answered
    collect    the message waits, and one turn answers all collected messages; the history has all of them
    interrupt  the message stops the running turn and is answered next; queued messages keep their order
    reject     the message is not accepted: `SessionBusy`

If several messages interrupt, only the last one is answered. These rules do not apply to URGENT messages, and a turn that
answers an URGENT message is not interrupted.

A caller may repeat a message under its id, with `run(message_id=)`, to wait for its outcome:

    sending       the repetition waits until the first message is accepted, or takes its place (see `MessageAdmission`)
    queued        the caller receives the whole turn
    running       the caller receives the rest of the turn
    suspended     the caller gets `Suspended`, unless it waits for approvals
    ended         the caller gets the same reply or error

The repeating caller is an additional listener of the turn. If it stops waiting, the turn is not stopped.
"""

from collections.abc import Iterable

from actgent.errors import DuplicateMessage, NotRunning, SessionBusy, SessionMoved, Stopped
from actgent.messages import Message, Priority, Reply, message_failure

from .pending.turn_future import Outcome, TurnFuture, reply_of_event
from .session_context import SessionContext, Suspension, Turn


def check_busy(context: SessionContext, message: Message) -> None:
    """Raise `SessionBusy` if a message has the rule `reject` and its session is busy.

    Raises:
        SessionBusy: The session is busy.
    """
    if message.on_busy == "reject" and context.pending and message.priority is not Priority.URGENT:
        raise SessionBusy(context.id)


def is_collected(message: Message) -> bool:
    """Return True if one turn may answer a message together with other queued messages.

    Such a message has the rule `collect` and is not URGENT.
    """
    return message.on_busy == "collect" and message.priority is not Priority.URGENT


MAX_REMEMBERED_OUTCOMES = 100
"""Maximum number of outcomes that a session keeps in memory for repeated messages."""


def remember_outcome(context: SessionContext, message_id: str, outcome: Outcome) -> None:
    """Store the outcome of a message for callers that send a message with the same id again.

    If there are too many stored outcomes, remove the oldest. A failure after which the turn may still continue is not stored.
    """
    is_open = outcome.failure is not None and outcome.failure.may_continue
    if is_open or not context.has_accepted(message_id):
        return
    if context.outcomes is None:
        context.outcomes = {}
    context.outcomes[message_id] = outcome
    if len(context.outcomes) > MAX_REMEMBERED_OUTCOMES:
        del context.outcomes[next(iter(context.outcomes))]


def remember_turn_outcome(turn: Turn, outcome: Outcome) -> None:
    """Store the outcome of a turn for each message that the turn answered. See `remember_outcome`."""
    context = turn.session
    for message in (*turn.joined, turn.message):
        remember_outcome(context, message.id, outcome)


def finish_listeners(turn: Turn) -> None:
    """Wake all callers that wait for a turn, after its last delivery.

    A caller that joined after the last delivery receives the outcome now. If the turn has not failed, store its outcome for callers
    that send a message with the same id again.
    """
    outcome = Outcome(turn.reply or reply_of_event(turn.event), turn.failure)
    if outcome.failure is None:
        remember_turn_outcome(turn, outcome)
    for listener in turn.listeners:
        if listener.is_joined and not listener.has_outcome:
            _finish_future(listener, outcome)
        else:
            listener.finish()
    turn.listeners = ()  # breaks a reference cycle, which only the garbage collector would free


def add_joined_futures(turn: Turn, joined_futures: Iterable[TurnFuture]) -> None:
    """Add the futures of callers that repeated a queued message as listeners of its turn. Skip callers that no longer wait."""
    for guest in joined_futures:
        if not guest.abandoned:
            turn.add_listener(guest)


def join(context: SessionContext, message_id: str, future: TurnFuture) -> None:
    """Let `future`, of a caller that repeats a message id, receive the outcome of the accepted message with this id.

    If the message has ended, set its stored outcome at once. If its turn is suspended and the caller does not wait for approvals,
    end the future with `Suspended`.

    Raises:
        DuplicateMessage: The message has ended, and its outcome is no longer stored.
    """
    future.is_joined = True
    known = context.outcomes.get(message_id) if context.outcomes else None
    turn, suspension = context.turn, context.suspension
    if known is not None:
        _finish_future(future, known)
    elif turn is not None and any(each.id == message_id for each in (*turn.joined, turn.message)):
        turn.add_listener(future)
    elif suspension is not None and not future.waits_for_approvals and context.ledger().undecided:
        future.suspend(context.ledger().suspended())
    elif suspension is not None and suspension.message.id == message_id:
        suspension.add_joined_future(future)
    elif (acceptance := context.find_message(message_id)) is not None:
        acceptance.joined_futures = (*acceptance.joined_futures, future)
    else:
        raise DuplicateMessage(message_id, context.id)


def end_waits_as_moved(listeners: Iterable[TurnFuture], message_id: str, error: SessionMoved) -> None:
    """Raise `error` in the callers that wait for the message `message_id`, because another process owns its session."""
    _end_waits(listeners, message_id, "moved", error)


def end_waits_as_stopped(context: SessionContext, suspension: Suspension) -> None:
    """Raise an error in the callers that wait for a suspended turn, because the agent of the turn stops.

    The next start of the agent resumes the turn, but cannot notify these callers. Callers that joined the suspended turn get
    `NotRunning`. Turns that gave the session a task get `Stopped`, and repeat the task after the next start.
    """
    waiting = suspension.joined_futures if suspension.turn is None else suspension.turn.listeners
    task, message_id = context.task, suspension.message.id
    if task is not None and task.message_id == message_id and task.future not in waiting:
        waiting = (*waiting, task.future)
    joined = [each for each in waiting if each.joined_suspended_turn]
    _end_waits(joined, message_id, "stopped", NotRunning(context.agent))
    others = [each for each in waiting if not each.joined_suspended_turn]
    _end_waits(others, message_id, "stopped", Stopped(context.agent))


def _end_waits(
    listeners: Iterable[TurnFuture], message_id: str, kind: str, error: NotRunning | SessionMoved | Stopped
) -> None:
    """Raise `error` in the callers that wait for the message `message_id`. `kind` is the failure kind."""
    for listener in listeners:
        listener.detach()
        _finish_future(listener, Outcome(failure=message_failure(message_id, kind, error)))


def _finish_future(future: TurnFuture, known: Outcome) -> None:
    """Set the outcome of a future, and wake its caller."""
    if known.failure is not None:
        future.failure = known.failure
    else:
        future.reply = known.reply or Reply(text="")
    future.receive_delivery(future.failure or future.reply)
    future.finish()
