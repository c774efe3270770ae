"""Sessions followed: their records and observations as streams without a gap, that can be resumed."""

from .follower import SessionFollower, follow_session
from .observing import ObservationReader, Wanted, list_observations, list_recent, observe, observe_recent

__all__ = [
    "ObservationReader",
    "SessionFollower",
    "Wanted",
    "follow_session",
    "list_observations",
    "list_recent",
    "observe",
    "observe_recent",
]
