"""Long-term memories of owners, found by words, by vectors, and by importance and last use."""

from .memories import Memories
from .records import EVERYTHING, MAX_TEXT_CHARACTERS, Association, MemoryFilter, MemoryMatch, MemoryRecord
from .scope import Scope

__all__ = [
    "EVERYTHING",
    "MAX_TEXT_CHARACTERS",
    "Association",
    "Memories",
    "MemoryFilter",
    "MemoryMatch",
    "MemoryRecord",
    "Scope",
]
