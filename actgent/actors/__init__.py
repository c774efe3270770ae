"""The kernel: actors with priority inboxes under supervision. It knows no LLM."""

from .actor import Actor, ActorContext, DeadLetter
from .inbox import InboxStatistics, PriorityInbox
from .ref import ActorRef
from .supervision import Supervision
from .system import ActorSystem, open_system

__all__ = [
    "Actor",
    "ActorContext",
    "ActorRef",
    "ActorSystem",
    "DeadLetter",
    "InboxStatistics",
    "PriorityInbox",
    "Supervision",
    "open_system",
]
