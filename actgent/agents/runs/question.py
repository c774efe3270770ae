"""What is said to an agent by someone who waits for what comes of it."""

from collections.abc import Mapping
from typing import Any

import attrs

from actgent.agents.session import Session
from actgent.control.arguments import check_id, check_seconds
from actgent.errors import ConfigurationError
from actgent.messages import Priority, Sender
from actgent.sessions.incoming import Content


def _named(priority: Priority | str) -> Priority:
    return Priority.named(priority)


@attrs.frozen
class Question:
    """A message of `run` or `stream`.

    Raises:
        ConfigurationError: there is no such priority, the timeout is none, or the id of a message is given where nobody
            could know it.
    """

    content: Content
    session: Session | None = None
    """None is a fresh one."""
    sender: Sender | str | None = None
    priority: Priority = attrs.field(default=Priority.NORMAL, converter=_named)
    message_id: str | None = None
    timeout: float | None = None
    """Seconds within which it is answered; None is without end."""
    metadata: Mapping[str, Any] | None = None

    def __attrs_post_init__(self) -> None:
        check_id("message_id", self.message_id)
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        if self.message_id is not None and self.session is None:
            raise ConfigurationError(
                "message_id= needs session=: a fresh session knows of no message before it"
            )
