"""What a conversation at the terminal needs: a line to type in, commands, attachments, and how answers are shown."""

from .answering import OWNER, answer
from .attachments import attachment
from .commands import QUIT
from .conversation import TerminalConversation
from .views import DeliveryView, JsonView, TextView, arguments_of

__all__ = [
    "OWNER",
    "QUIT",
    "DeliveryView",
    "JsonView",
    "TerminalConversation",
    "TextView",
    "answer",
    "arguments_of",
    "attachment",
]
