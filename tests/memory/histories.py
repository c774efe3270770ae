"""Histories of a user and an assistant, for tests of history processors."""

from actgent import Text
from actgent.messages import Message, Sender

USER, AGENT, TOOLS = Sender("ada"), Sender("a", "assistant"), Sender("tools", "tool")


def said(*texts):
    """Return messages with these texts, alternately of the user and of the assistant."""
    return [
        Message(session_id="s", sender=AGENT if n % 2 else USER, parts=(Text(t),))
        for n, t in enumerate(texts)
    ]
