"""Double texting: what a message does whose session is busy.

    queue      waits its turn
    collect    waits, and is answered in one turn with the others that came so; each stands in the record, the last is answered
    interrupt  stops what runs, and goes next; what waited keeps its order
    reject     does not get in: `SessionBusy`

A message that interrupts outdates those that interrupted before it, whether they have begun by then or not: what came
last is answered, and how fast the others came makes no difference. An URGENT message does what URGENT means, and a turn
that answers one is not interrupted.
"""

from typing import get_args

from actgent.errors import ConfigurationError, SessionBusy
from actgent.messages import Message, OnBusy, Priority

from .context import SessionContext

RULES: tuple[OnBusy, ...] = get_args(OnBusy)


def check_rule(rule: object) -> OnBusy:
    """A rule by its name.

    Raises:
        ConfigurationError: there is none of this name.
    """
    for known in RULES:
        if rule == known:
            return known
    raise ConfigurationError(f"on_busy= takes {', '.join(RULES)}, not {rule!r}")


def check_busy(context: SessionContext, message: Message) -> None:
    """Refuse a message that is not to get into a session that works.

    Raises:
        SessionBusy: it works.
    """
    if message.on_busy == "reject" and context.mail.pending and message.priority is not Priority.URGENT:
        raise SessionBusy(context.id)


def is_collected(message: Message) -> bool:
    """Whether a message is answered together with its neighbours that are, too."""
    return message.on_busy == "collect" and message.priority is not Priority.URGENT
