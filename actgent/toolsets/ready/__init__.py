"""Ready tools: arithmetic, the time, pages, databases that are only read, files, commands and Python in a sandbox, long results."""

from actgent.tools.outputs.kept import ReadResult

from .calculator import calculator
from .clock import current_time
from .files import file_tools
from .page import page_tool
from .process import process_tool
from .python_code import python_tool
from .sql import MAX_ROWS, sql_tool

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
"""Reads long results in pieces. Agents with tools have it behind them by themselves; one that is given stands where it was put."""
