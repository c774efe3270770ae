"""A journal in a schema of PostgreSQL: its tables, statements and connections. Needs the extra `postgres`."""

from . import layout
from .cluster_tables import (
    ClusterTables,
    DeadMessage,
    drop_dead,
    note_retried,
    read_cluster_tables,
    read_dead,
    read_request,
)
from .journal import PostgresJournal
from .partitioned import PartitionedJournal
from .partitions import PartitionsLost, Taken, partition_of_slot, slot_of, slots_of
from .reader import PostgresReader
from .suspects import Suspect

__all__ = [
    "ClusterTables",
    "DeadMessage",
    "PartitionedJournal",
    "PartitionsLost",
    "PostgresJournal",
    "PostgresReader",
    "Suspect",
    "Taken",
    "drop_dead",
    "layout",
    "note_retried",
    "partition_of_slot",
    "read_cluster_tables",
    "read_dead",
    "read_request",
    "slot_of",
    "slots_of",
]
