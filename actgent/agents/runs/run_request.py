"""`RunRequest`: a message whose sender waits for the outcome."""

from collections.abc import Mapping
from typing import Any

import attrs

from actgent.agents.session import Session
from actgent.errors import ConfigurationError
from actgent.limits_and_schedules.argument_checks import check_id, check_seconds
from actgent.messages import Content, Priority, Sender
from actgent.support.field_repr import FieldRepr


def _parse_priority(priority: Priority | str) -> Priority:
    return Priority.named(priority)


@attrs.frozen(repr=False)
class RunRequest(FieldRepr):
    """Message and arguments of one call of `run` or `stream`.

    Raises:
        ConfigurationError: The priority or the timeout is invalid, or `message_id` is passed without a session.
    """

    content: Content
    """Text or list of parts of the message to send."""
    session: Session | None = None
    """Session that the message is sent to; None creates a new session."""
    sender: Sender | str | None = None
    """Sender of the message; None is the owner of the session."""
    priority: Priority = attrs.field(default=Priority.NORMAL, converter=_parse_priority)
    """Priority of the message in the inbox."""
    message_id: str | None = None
    """Id of the message; None creates a random id."""
    timeout: float | None = None
    """Maximum seconds until the answer; None is no limit."""
    metadata: Mapping[str, Any] | None = None
    """Metadata of the message for programs; None sends none."""

    def __attrs_post_init__(self) -> None:
        check_id("message_id", self.message_id)
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        if self.message_id is not None and self.session is None:
            raise ConfigurationError(
                "message_id= needs session=: a new session has no earlier message that it could repeat"
            )
