"""Built-in tools: calculator, clock, web pages, read-only SQL, files, sandboxed commands and Python, long results."""

from actgent.tools.outputs.oversized_results import ReadResult

from .calculator import calculator
from .current_time_tool import current_time
from .folder_file_tools import file_tools
from .python_sandbox_tool import python_tool
from .shell_tool import process_tool
from .sql_query_tool import MAX_ROWS, sql_tool
from .web_page_tool import page_tool

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
