"""What an agent can do: tools, their registry, and the execution of calls."""

from .base import Effect, Tool, ToolContext, ToolHooks
from .execution import Batch
from .function import FunctionTool, tool
from .registry import ToolRegistry
from .schemas import CompiledType, compile_type, schema_of
from .threads import Threads

__all__ = [
    "Batch",
    "CompiledType",
    "Effect",
    "FunctionTool",
    "Threads",
    "Tool",
    "ToolContext",
    "ToolHooks",
    "ToolRegistry",
    "compile_type",
    "schema_of",
    "tool",
]
