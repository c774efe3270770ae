"""Toolsets: named groups of tools with a life of their own, and tools that reach outside."""

from .deferred import Deferred
from .toolset import StaticToolset, Toolset, open_toolset

__all__ = ["Deferred", "StaticToolset", "Toolset", "open_toolset"]
