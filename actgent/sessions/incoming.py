"""What is said to a session from outside, as a message."""

from collections.abc import Sequence

from actgent.errors import ConfigurationError
from actgent.messages import (
    Message,
    OnBusy,
    Part,
    Priority,
    Sender,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    new_id,
    to_parts,
    traceparent,
    valid_traceparent,
)

from .context import SessionContext
from .double_texting import check_rule

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
        return (Text(content),)
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
    return Message(
        id=message_id or new_id(),
        session_id=context.id,
        sender=sender,
        parts=sayable_parts(content),
        priority=priority if type(priority) is Priority else Priority.named(priority),
        deadline=deadline,
        on_busy=context.mail.on_busy if on_busy is None else check_rule(on_busy),
        traceparent=None if trace is None else valid_traceparent(trace),
    )


def question_to(
    context: SessionContext,
    content: Content,
    sender: Sender | str | None = None,
    priority: Priority | str = Priority.NORMAL,
    message_id: str | None = None,
) -> Message:
    """Make a message that somebody waits for: its turn is its own, so it is not collected with others."""
    rule = context.mail.on_busy
    on_busy: OnBusy = "queue" if rule == "collect" else rule
    return message_to(context, content, sender, priority, message_id=message_id, on_busy=on_busy)
