"""Actors with priority inboxes under supervision. This layer does not depend on language models."""

from .actor import Actor, ActorContext
from .actor_ref import ActorRef, Address
from .actor_system import ActorSystem, open_system
from .dead_letters import DeadLetter
from .inbox import InboxStatistics, PriorityInbox
from .supervision import Strategy, Supervision

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
