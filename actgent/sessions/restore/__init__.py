"""Sessions made again from their journal, and the snapshots that make that quick."""

from .keeper import SnapshotKeeper
from .reader import TOOLS, Restored, close_calls, is_unused, owner_of
from .restoring import LoadedSession, Rebuilt, digest_of, load_session, rebuild, restore, restore_loaded

__all__ = [
    "TOOLS",
    "LoadedSession",
    "Rebuilt",
    "Restored",
    "SnapshotKeeper",
    "close_calls",
    "digest_of",
    "is_unused",
    "load_session",
    "owner_of",
    "rebuild",
    "restore",
    "restore_loaded",
]
