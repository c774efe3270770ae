"""Subscriptions to sessions: records and observations as gapless streams that resume from a cursor."""

from .observation_reader import (
    ObservationFilter,
    ObservationReader,
    list_observations,
    list_recent,
    observe,
    observe_recent,
)
from .session_follower import SessionFollower, follow_session, page_ranges_before, read_past

__all__ = [
    "ObservationFilter",
    "ObservationReader",
    "SessionFollower",
    "follow_session",
    "list_observations",
    "list_recent",
    "observe",
    "observe_recent",
    "page_ranges_before",
    "read_past",
]
