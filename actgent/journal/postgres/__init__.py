"""A journal in a schema of PostgreSQL: its tables, statements and connections. Needs the extra `postgres`."""

from .journal import PostgresJournal
from .reader import PostgresReader

__all__ = ["PostgresJournal", "PostgresReader"]
