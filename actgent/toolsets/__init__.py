"""Toolsets: named groups of tools with a life of their own, and tools that reach outside."""

from .deferred import Deferred
from .discovery import Discovery, discover
from .toolset import StaticToolset, Toolset, open_toolset

__all__ = ["Deferred", "Discovery", "StaticToolset", "Toolset", "discover", "open_toolset"]
