"""Tools, the tool registry, and the execution of tool calls."""

from .base import Effect, Tool, ToolContext, ToolHooks
from .function_tool import FunctionTool, tool
from .registry import ToolRegistry
from .tool_execution import Batch
from .worker_threads import Threads

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
