"""Long-term memories of owners, found by words, by vectors, and by importance and last use."""

from .long_term_memory import LongTermMemory
from .memory_labels import label_of_memory, metadata_of, readers_of
from .memory_records import (
    EVERYTHING,
    MAX_TEXT_CHARACTERS,
    Association,
    MemoryFilter,
    MemoryMatch,
    MemoryOwnerPage,
    MemoryPage,
    MemoryRecord,
)
from .owner_visibility import Scope

__all__ = [
    "EVERYTHING",
    "MAX_TEXT_CHARACTERS",
    "Association",
    "LongTermMemory",
    "MemoryFilter",
    "MemoryMatch",
    "MemoryOwnerPage",
    "MemoryPage",
    "MemoryRecord",
    "Scope",
    "label_of_memory",
    "metadata_of",
    "readers_of",
]
