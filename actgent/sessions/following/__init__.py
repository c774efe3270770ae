"""What those get who follow a session: its records, what grows, and observations of both."""

from .observations import ObservationView, Observed, ObservedType, growing_thoughts, thoughts_id
from .records import Follow, Followed, Growing, LiveText, TurnNames, Waker, turn_at_end

__all__ = [
    "Follow",
    "Followed",
    "Growing",
    "LiveText",
    "ObservationView",
    "Observed",
    "ObservedType",
    "TurnNames",
    "Waker",
    "growing_thoughts",
    "thoughts_id",
    "turn_at_end",
]
