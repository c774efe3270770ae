"""Built-in tools: calculator, clock, web pages, read-only SQL, files, sandboxed commands and Python, long results."""

from actgent.tools.outputs.oversized_results import ReadResult

from .calculator import calculator
from .clock import current_time
from .file_access import file_tools
from .python_code import python_tool
from .shell_tool import process_tool
from .sql import MAX_ROWS, sql_tool
from .web_page import page_tool

__all__ = [
    "MAX_ROWS",
    "calculator",
    "current_time",
    "file_tools",
    "page_tool",
    "process_tool",
    "python_tool",
    "read_result",
    "sql_tool",
]

read_result = ReadResult()
"""Tool that reads long results in pieces. Agents with tools have it automatically; pass it to choose its position."""
