"""Tools for models: schedules, long-term memory and database queries."""

from .database_connection_toolset import with_database
from .long_term_memory_setup import long_term_memory_parts
from .untrusted_text_extraction_tool import with_extract

__all__ = ["long_term_memory_parts", "with_database", "with_extract"]
