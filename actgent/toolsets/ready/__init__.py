"""Ready tools: arithmetic, the time, pages, databases that are only read, the files of one folder, long results."""

from actgent.tools.kept import ReadResult

from .calculator import calculator
from .clock import current_time
from .files import file_tools
from .page import page_tool
from .sql import sql_tool

__all__ = ["calculator", "current_time", "file_tools", "page_tool", "read_result", "sql_tool"]

read_result = ReadResult()
"""Has results kept that are longer than `Limits(result_characters=...)`, and reads them in pieces."""
