"""Tools, the tool registry, and the execution of tool calls."""

from .base import Effect, Tool, ToolContext, ToolHooks
from .execution import Batch
from .function import FunctionTool, tool
from .registry import ToolRegistry
from .threads import Threads

__all__ = [
    "Batch",
    "Effect",
    "FunctionTool",
    "Threads",
    "Tool",
    "ToolContext",
    "ToolHooks",
    "ToolRegistry",
    "tool",
]
