"""What is said to a session from outside, as a message.

Double texting: what happens to a message sent while its session is busy.

    queue      waits its turn
    collect    waits, and is answered in one turn with the others that came so; each stands in the record, the last is answered
    interrupt  stops what runs, and goes next; what waited keeps its order
    reject     does not get in: `SessionBusy`

A message that interrupts outdates those that interrupted before it, whether they have begun by then or not: what came
last is answered, and how fast the others came makes no difference. An URGENT message does what URGENT means, and a turn
that answers one is not interrupted.

Who says a message again under its id, and waits for what comes of it, as `run(message_id=)` does.

    on its way    the repetition waits until it is in, or takes its place (see `Intake`)
    queued        it hears of the turn when it begins
    running       it hears the rest of the turn
    suspended     it is told so, unless it waits for people, too
    ended         it gets the same reply, or the same error

It is a further listener: a repetition that leaves stops nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from actgent.errors import (
    AlreadyAnswered,
    ConfigurationError,
    SessionBusy,
    SessionMoved,
    meant,
)
from actgent.messages import (
    NO_METADATA,
    Message,
    OnBusy,
    Part,
    Priority,
    Reply,
    Sender,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    checked_metadata,
    make_message,
    make_text,
    message_failure,
    new_id,
    to_parts,
    traceparent,
    valid_traceparent,
)

from .context import SessionContext
from .turn import Turn
from .waiting.turn_future import Outcome, TurnFuture

RULES: tuple[OnBusy, ...] = get_args(OnBusy)


def check_rule(rule: object) -> OnBusy:
    """A rule by its name.

    Raises:
        ConfigurationError: there is none of this name.
    """
    for known in RULES:
        if rule == known:
            return known
    raise ConfigurationError(
        f"on_busy= takes {', '.join(RULES)}, not {rule!r:.200} {meant(rule, RULES)}".rstrip()
    )


def check_busy(context: SessionContext, message: Message) -> None:
    """Refuse a message that is not to get into a session that works.

    Raises:
        SessionBusy: it works.
    """
    if message.on_busy == "reject" and context.mail.pending and message.priority is not Priority.URGENT:
        raise SessionBusy(context.id)


def is_collected(message: Message) -> bool:
    """Return True if a message is answered together with neighbours that are collected, too."""
    return message.on_busy == "collect" and message.priority is not Priority.URGENT


Content = str | Part | Sequence[str | Part]
_NOT_SAID = (ToolCall, ToolResult, Thinking)
"""Parts that only come from models and tools; elsewhere they would make a transcript that no provider takes."""


def sayable_parts(content: Content) -> tuple[Part, ...]:
    """The parts of what someone may say to a model.

    Raises:
        TypeError: neither text nor such parts.
        ConfigurationError: there is nothing in it.
    """
    if type(content) is str and content and not content.isspace():  # the usual case, in a third of the time
        return (make_text(content),)
    parts = to_parts(content)
    for part in parts:
        if isinstance(part, _NOT_SAID):
            raise TypeError(f"content is text or parts (Text, Image, File), not {type(part).__name__}")
    if not any(not isinstance(part, Text) or part.text.strip() for part in parts):
        raise ConfigurationError("the message is empty: no model answers one without text or other parts")
    return parts


def message_to(
    context: SessionContext,
    content: Content,
    sender: Sender | str | None = None,
    priority: Priority | str = Priority.NORMAL,
    *,
    message_id: str | None = None,
    deadline: float | None = None,
    on_busy: OnBusy | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Message:
    """Make a message to a session; without a sender its owner says it, as a user.

    Raises:
        ConfigurationError: the message is empty, or one of these is none that there is.
    """
    if sender is None:
        owner = context.owner
        sender = owner if owner.kind == "user" else Sender(owner.name)
    elif isinstance(sender, str):
        sender = Sender.named(sender)
    elif not isinstance(sender, Sender):
        raise ConfigurationError(f"sender= takes a name or a Sender, not {sender!r}")
    trace = traceparent.get()
    return make_message(
        id=message_id or new_id(),
        session_id=context.id,
        sender=sender,
        parts=sayable_parts(content),
        priority=priority if type(priority) is Priority else Priority.named(priority),
        deadline=deadline,
        on_busy=context.mail.on_busy if on_busy is None else check_rule(on_busy),
        traceparent=None if trace is None else valid_traceparent(trace),
        metadata=NO_METADATA if metadata is None else checked_metadata(metadata),
    )


def question_to(
    context: SessionContext,
    content: Content,
    sender: Sender | str | None = None,
    priority: Priority | str = Priority.NORMAL,
    message_id: str | None = None,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Message:
    """Make a message that somebody waits for: its turn is its own, so it is not collected with others."""
    rule = context.mail.on_busy
    on_busy: OnBusy = "queue" if rule == "collect" else rule
    return message_to(
        context, content, sender, priority, message_id=message_id, on_busy=on_busy, metadata=metadata
    )


MAX_REMEMBERED_OUTCOMES = 100
"""The newest outcomes, which a session remembers to answer repeated messages; none survives a restart."""


def keep_outcome_of(context: SessionContext, message_id: str, outcome: Outcome) -> None:
    """Keep the outcome of a message whose id may be sent again."""
    is_open = outcome.failure is not None and outcome.failure.may_continue
    if is_open or not context.mail.has_accepted(message_id):
        return
    if context.mail.outcomes is None:
        context.mail.outcomes = {}
    context.mail.outcomes[message_id] = outcome
    if len(context.mail.outcomes) > MAX_REMEMBERED_OUTCOMES:
        del context.mail.outcomes[next(iter(context.mail.outcomes))]


def keep_outcome(context: SessionContext, turn: Turn, outcome: Outcome) -> None:
    """Keep what a turn came to for all messages that it answered."""
    for message in (*turn.joined, turn.message):
        keep_outcome_of(context, message.id, outcome)


def settle_listeners(context: SessionContext, turn: Turn) -> None:
    """A turn has ended: let its listeners go, those with what it came to who came too late to hear of that."""
    told = next((each for each in turn.listeners if each.has_heard), None)
    failure = turn.control.failure
    outcome = Outcome(None if told is None else told.answer(), failure)
    if told is not None and failure is None:
        keep_outcome(context, turn, outcome)
    for listener in turn.listeners:
        if listener.is_joined and not listener.has_heard:
            _tell(listener, outcome)
        else:
            listener.finish()
    turn.listeners = ()  # they know the turn: without this only the garbage collector would end both


def add_guests(turn: Turn, guests: Iterable[TurnFuture]) -> None:
    """Let those hear of a turn who repeated its message while that was queued, and have not left."""
    for guest in guests:
        if not guest.abandoned:
            turn.add_listener(guest)


def join(context: SessionContext, message_id: str, future: TurnFuture) -> None:
    """Let someone hear what comes of a message that was accepted before.

    Raises:
        AlreadyAnswered: it has ended, and what it came to is not known any more.
        Suspended: its turn, or one before it, waits for people, and this one does not.
    """
    future.is_joined = True
    known = context.mail.outcomes.get(message_id) if context.mail.outcomes else None
    turn, suspension = context.turn, context.suspension
    if known is not None:
        _tell(future, known)
    elif turn is not None and any(each.id == message_id for each in (*turn.joined, turn.message)):
        turn.add_listener(future)
    elif suspension is not None and not future.is_patient and context.ledger().undecided:
        future.suspend(context.ledger().suspended())
    elif suspension is not None and suspension.message.id == message_id:
        suspension.add_guest(future)
    elif (acceptance := context.mail.find(message_id)) is not None:
        acceptance.guests = (*acceptance.guests, future)
    else:
        raise AlreadyAnswered(message_id, context.id)


def tell_moved(listeners: Iterable[TurnFuture], message_id: str, error: SessionMoved) -> None:
    """Tell those who wait for what comes of a message that another process goes on with it."""
    for listener in listeners:
        listener.let_go()
        _tell(listener, Outcome(failure=message_failure(message_id, "moved", error)))


def _tell(future: TurnFuture, known: Outcome) -> None:
    if known.failure is not None:
        future.failure = known.failure
    else:
        future.reply = known.reply or Reply(text="")
    future.hear(future.failure or future.reply)
    future.finish()
