"""Ready tools: arithmetic, the time, pages, databases that are only read, and the files of one folder."""

from .calculator import calculator
from .clock import current_time
from .files import file_tools
from .page import page_tool
from .sql import sql_tool

__all__ = ["calculator", "current_time", "file_tools", "page_tool", "sql_tool"]
