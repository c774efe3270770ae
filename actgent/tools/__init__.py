"""Tools, the tool registry, and the execution of tool calls."""

from .function_tool import FunctionTool, tool
from .tool_execution import Batch
from .tool_interface import Effect, Tool, ToolContext, ToolHooks
from .tool_registry import ToolRegistry
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
