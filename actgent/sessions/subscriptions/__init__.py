"""Subscriptions to a session: records, partial answers, observations, and message search."""

from .in_memory_record_reader import RecentHistory
from .message_search import MessageFilter, MessageTrace, find_links, read_matching
from .observations import ObservationView, Observed, ObservedType, growing_thoughts, thoughts_id
from .records_for_subscribers import (
    FollowedItem,
    FollowedRecord,
    LiveText,
    PartialText,
    TurnAssigner,
    WakeableReader,
    turn_at_end,
)

__all__ = [
    "FollowedItem",
    "FollowedRecord",
    "LiveText",
    "MessageFilter",
    "MessageTrace",
    "ObservationView",
    "Observed",
    "ObservedType",
    "PartialText",
    "RecentHistory",
    "TurnAssigner",
    "WakeableReader",
    "find_links",
    "growing_thoughts",
    "read_matching",
    "thoughts_id",
    "turn_at_end",
]
