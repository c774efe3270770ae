"""Tools for models: schedules, long-term memory and database queries."""

from .extract import with_extract
from .long_term_memory import long_term_memory_parts
from .open_database import with_database

__all__ = ["long_term_memory_parts", "with_database", "with_extract"]
