"""What lasts beyond a conversation: memories of owners, found again by their words, by what they mean, and by their worth."""

from .memories import Memories
from .scope import Scope
from .unit import EVERYTHING, LONGEST_TEXT, Association, MemoryFilter, MemoryUnit, Recalled

__all__ = [
    "EVERYTHING",
    "LONGEST_TEXT",
    "Association",
    "Memories",
    "MemoryFilter",
    "MemoryUnit",
    "Recalled",
    "Scope",
]
