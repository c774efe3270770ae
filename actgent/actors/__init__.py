"""The kernel: actors with priority inboxes under supervision. It knows no LLM."""

from .actor import Actor, ActorContext
from .dead_letters import DeadLetter
from .inbox import InboxStatistics, PriorityInbox
from .ref import ActorRef, Address
from .supervision import Strategy, Supervision
from .system import ActorSystem, open_system

__all__ = [
    "Actor",
    "ActorContext",
    "ActorRef",
    "ActorSystem",
    "Address",
    "DeadLetter",
    "InboxStatistics",
    "PriorityInbox",
    "Strategy",
    "Supervision",
    "open_system",
]
