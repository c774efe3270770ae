"""Journals in a schema of PostgreSQL: tables, statements and connections. Needs the extra `postgres`."""

from . import pool_layout
from .cluster_tables import (
    ClusterTables,
    DeadMessage,
    drop_dead,
    mark_leaving,
    note_retried,
    read_cluster_key,
    read_cluster_tables,
    read_dead,
    read_request,
)
from .journal import PostgresJournal
from .node_table import NodeRow, NodeTable, PartitionOwner, SeenNode
from .ownership_partitions import PartitionsLost, Taken, partition_of_slot, slot_of, slots_of
from .partitioned_journal import PartitionedJournal
from .read_only_journal import PostgresReader
from .session_crash_counts import SUSPECT_CRASHES, Suspect
from .unowned_partition_messages import PendingMessage, PendingMessageTable

__all__ = [
    "SUSPECT_CRASHES",
    "ClusterTables",
    "DeadMessage",
    "NodeRow",
    "NodeTable",
    "PartitionOwner",
    "PartitionedJournal",
    "PartitionsLost",
    "PendingMessage",
    "PendingMessageTable",
    "PostgresJournal",
    "PostgresReader",
    "SeenNode",
    "Suspect",
    "Taken",
    "drop_dead",
    "mark_leaving",
    "note_retried",
    "partition_of_slot",
    "pool_layout",
    "read_cluster_key",
    "read_cluster_tables",
    "read_dead",
    "read_request",
    "slot_of",
    "slots_of",
]
