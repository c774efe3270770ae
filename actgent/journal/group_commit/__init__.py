"""Group commit: write the steps of many sessions in one transaction, for all storages."""

from .grouped_journal import ALL_SESSIONS, CLOSE_TIMEOUT_SECONDS, GroupedJournal
from .read_batching import GROUP_RECORDS, Found, PageRequest, ReadBatcher, Stored, read_each
from .record_references import resolve
from .row_format import (
    CHANGING,
    HEAD_FIELDS,
    Head,
    JournalStep,
    Page,
    Row,
    begin_head,
    checksum_head,
    decode_page,
    decode_rows,
    decode_step,
    find_parent,
    head_values,
    is_good,
    is_good_head,
    name_series,
    place_step,
    read_key,
    unsealed,
)
from .snapshot_rows import SNAPSHOT_FIELDS, SnapshotRow, place_snapshot, read_snapshot
from .step_queue import QueuedStep
from .storage_interface import HeadFound

__all__ = [
    "ALL_SESSIONS",
    "CHANGING",
    "CLOSE_TIMEOUT_SECONDS",
    "GROUP_RECORDS",
    "HEAD_FIELDS",
    "SNAPSHOT_FIELDS",
    "Found",
    "GroupedJournal",
    "Head",
    "HeadFound",
    "JournalStep",
    "Page",
    "PageRequest",
    "QueuedStep",
    "ReadBatcher",
    "Row",
    "SnapshotRow",
    "Stored",
    "begin_head",
    "checksum_head",
    "decode_page",
    "decode_rows",
    "decode_step",
    "find_parent",
    "head_values",
    "is_good",
    "is_good_head",
    "name_series",
    "place_snapshot",
    "place_step",
    "read_each",
    "read_key",
    "read_snapshot",
    "resolve",
    "unsealed",
]
