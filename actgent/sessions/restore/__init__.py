"""Restoring of sessions from their journal records, and snapshots that speed it up."""

from .record_replayer import TOOLS, RecordReplayer, RestoredSession, close_calls, is_unused, owner_of
from .session_loader import (
    LoadedSession,
    RebuiltSession,
    digest_of,
    load_session,
    rebuild,
    restore,
    restore_loaded,
)
from .snapshotter import SessionSnapshotter

__all__ = [
    "TOOLS",
    "LoadedSession",
    "RebuiltSession",
    "RecordReplayer",
    "RestoredSession",
    "SessionSnapshotter",
    "close_calls",
    "digest_of",
    "is_unused",
    "load_session",
    "owner_of",
    "rebuild",
    "restore",
    "restore_loaded",
]
