"""Interactive conversation in a terminal: line editor, slash commands, attachments, approvals and output views."""

from .attachments import attachment
from .commands import QUIT
from .conversation import TerminalConversation
from .exchange import OWNER, answer
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
