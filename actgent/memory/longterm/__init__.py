"""Long-term memories of owners, found by words, by vectors, and by importance and last use."""

from .memories import Memories
from .records import EVERYTHING, LONGEST_TEXT, Association, MemoryFilter, MemoryMatch, MemoryRecord
from .scope import Scope

__all__ = [
    "EVERYTHING",
    "LONGEST_TEXT",
    "Association",
    "Memories",
    "MemoryFilter",
    "MemoryMatch",
    "MemoryRecord",
    "Scope",
]
