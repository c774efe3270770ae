"""A journal in a schema of PostgreSQL: its tables, statements and connections. Needs the extra `postgres`."""

from .journal import PostgresJournal
from .partitioned import PartitionedJournal
from .partitions import PartitionsLost, Taken
from .reader import PostgresReader

__all__ = ["PartitionedJournal", "PartitionsLost", "PostgresJournal", "PostgresReader", "Taken"]
