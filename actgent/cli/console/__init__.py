"""Interactive conversation in a terminal: line editor, slash commands, attachments, approvals and output views."""

from .attachments import attachment
from .conversation import TerminalConversation
from .conversation_output import DeliveryView, JsonView, TextView, arguments_of
from .message_exchange import OWNER, answer
from .slash_commands import QUIT

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
