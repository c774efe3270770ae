"""What those get who follow a session: its records, what grows, and observations of both."""

from .finding import MessageFilter, MessageLinks, find_links, read_matching
from .observations import ObservationView, Observed, ObservedType, growing_thoughts, thoughts_id
from .recent import RecentHistory
from .records import Follow, Followed, Growing, LiveText, TurnNames, Waker, turn_at_end

__all__ = [
    "Follow",
    "Followed",
    "Growing",
    "LiveText",
    "MessageFilter",
    "MessageLinks",
    "ObservationView",
    "Observed",
    "ObservedType",
    "RecentHistory",
    "TurnNames",
    "Waker",
    "find_links",
    "growing_thoughts",
    "read_matching",
    "thoughts_id",
    "turn_at_end",
]
