"""Messages from outside to a session: construction, busy rules, and repeated message ids.

The busy rule decides about messages that arrive while their session is busy:

    queue      waits for its turn
    collect    waits, and is answered in one turn with other collected messages; all are in the history, the last is answered
    interrupt  stops the running turn and is next; queued messages keep their order
    reject     is not accepted: `SessionBusy`

An interrupting message replaces earlier interrupting messages, started or not: the last one is answered. An URGENT message
keeps its own rules, and a turn that answers one is not interrupted.

A caller may repeat a message under its id, with `run(message_id=)`, to wait for its outcome:

    sending       the repetition waits until the first one is accepted, or replaces it (see `MessageAdmission`)
    queued        it receives the turn when it starts
    running       it receives the rest of the turn
    suspended     it gets `Suspended`, unless it also waits for approvals
    ended         it gets the same reply or error

A repetition is an additional listener; if it leaves, nothing is stopped.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from actgent.errors import (
    ConfigurationError,
    DuplicateMessage,
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

from .pending.turn_future import Outcome, TurnFuture
from .session_context import SessionContext, Turn

RULES: tuple[OnBusy, ...] = get_args(OnBusy)


def check_rule(rule: object) -> OnBusy:
    """Return the `on_busy` rule of the argument, which may be any value equal to a known rule.

    Raises:
        ConfigurationError: The rule is unknown.
    """
    for known in RULES:
        if rule == known:
            return known
    raise ConfigurationError(
        f"on_busy= takes {', '.join(RULES)}, not {rule!r:.200} {meant(rule, RULES)}".rstrip()
    )


def check_busy(context: SessionContext, message: Message) -> None:
    """Raise if a message has the rule `reject` and its session is busy.

    Raises:
        SessionBusy: The session is busy.
    """
    if message.on_busy == "reject" and context.pending and message.priority is not Priority.URGENT:
        raise SessionBusy(context.id)


def is_collected(message: Message) -> bool:
    """Return True if one turn may answer this message together with other queued messages.

    The message has the rule `collect` and is not URGENT.
    """
    return message.on_busy == "collect" and message.priority is not Priority.URGENT


Content = str | Part | Sequence[str | Part]
"""Content of a message: a text, a part, or a sequence of texts and parts."""
_NOT_SAID = (ToolCall, ToolResult, Thinking)
"""Part classes that only models and tools create. Providers reject them in other messages."""


def message_parts(content: Content) -> tuple[Part, ...]:
    """Return the content of a user's message as parts.

    Raises:
        TypeError: The content is neither text nor parts that a user may send.
        ConfigurationError: The content is empty.
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
    via: str = "",
) -> Message:
    """Create a message to a session. The default sender is the owner of the session, as a user.

    `deadline` is the maximum time in seconds to wait for room in the inbox. `via` has the untrusted sources
    of the sender.

    Raises:
        ConfigurationError: The content is empty, or an argument is invalid.
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
        parts=message_parts(content),
        priority=priority if type(priority) is Priority else Priority.named(priority),
        deadline=deadline,
        on_busy=context.on_busy if on_busy is None else check_rule(on_busy),
        traceparent=None if trace is None else valid_traceparent(trace),
        metadata=NO_METADATA if metadata is None else checked_metadata(metadata),
        via=via,
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
    """Create a message whose sender waits for the outcome.

    It is never answered together with others: the session's rule `collect` becomes `queue` for this message.
    """
    rule = context.on_busy
    on_busy: OnBusy = "queue" if rule == "collect" else rule
    return message_to(
        context, content, sender, priority, message_id=message_id, on_busy=on_busy, metadata=metadata
    )


MAX_REMEMBERED_OUTCOMES = 100
"""Maximum number of outcomes that a session keeps in memory for repeated messages."""


def remember_outcome(context: SessionContext, message_id: str, outcome: Outcome) -> None:
    """Keep the outcome of an accepted message for callers that send it again under its id; the oldest one is dropped.

    A failure after which the turn may still continue is not kept.
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
    """Keep the outcome of a turn for each message that the turn answered."""
    context = turn.session
    for message in (*turn.joined, turn.message):
        remember_outcome(context, message.id, outcome)


def finish_listeners(turn: Turn) -> None:
    """Wake all callers that wait for a turn, after its last delivery.

    A caller that joined too late for the last delivery receives the outcome of another caller. The outcome of a turn without
    a failure is kept, so that a repeated message with the same id gets it again.
    """
    receiver = next((each for each in turn.listeners if each.has_outcome), None)
    failure = turn.failure
    outcome = Outcome(None if receiver is None else receiver.answer(), failure)
    if receiver is not None and failure is None:
        remember_turn_outcome(turn, outcome)
    for listener in turn.listeners:
        if listener.is_joined and not listener.has_outcome:
            _finish_future(listener, outcome)
        else:
            listener.finish()
    turn.listeners = ()  # breaks a reference cycle, which only the garbage collector would free


def add_joined_futures(turn: Turn, joined_futures: Iterable[TurnFuture]) -> None:
    """Add the futures of callers that repeated a queued message, and still wait, as listeners of the message's turn."""
    for guest in joined_futures:
        if not guest.abandoned:
            turn.add_listener(guest)


def join(context: SessionContext, message_id: str, future: TurnFuture) -> None:
    """Let a caller that repeats a message id wait for the outcome of the accepted message, or give it the stored outcome.

    If the session is suspended and the caller does not wait for approvals, its wait ends with `Suspended`;
    this call does not raise it.

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
    elif suspension is not None and not future.is_patient and context.ledger().undecided:
        future.suspend(context.ledger().suspended())
    elif suspension is not None and suspension.message.id == message_id:
        suspension.add_joined_future(future)
    elif (acceptance := context.find_message(message_id)) is not None:
        acceptance.joined_futures = (*acceptance.joined_futures, future)
    else:
        raise DuplicateMessage(message_id, context.id)


def end_waits_as_moved(listeners: Iterable[TurnFuture], message_id: str, error: SessionMoved) -> None:
    """End the waits of these callers with `error`, because another process owns the session of their message."""
    for listener in listeners:
        listener.detach()
        _finish_future(listener, Outcome(failure=message_failure(message_id, "moved", error)))


def _finish_future(future: TurnFuture, known: Outcome) -> None:
    if known.failure is not None:
        future.failure = known.failure
    else:
        future.reply = known.reply or Reply(text="")
    future.receive_delivery(future.failure or future.reply)
    future.finish()
