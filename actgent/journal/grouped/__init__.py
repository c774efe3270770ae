"""Journals that write the steps of many sessions together: the queue, the numbers, pages and readers."""

from .group import EVERYONE, LEAVING, GroupedJournal
from .heads import KnownHeads
from .reading import GROUP_RECORDS, Found, Stored, read_each
from .references import refer, resolve
from .snapshots import SNAPSHOT_FIELDS, SnapshotRow, place_snapshot, read_snapshot
from .step_queue import QueuedStep
from .steps import (
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
from .storage import HeadFound

__all__ = [
    "CHANGING",
    "EVERYONE",
    "GROUP_RECORDS",
    "HEAD_FIELDS",
    "LEAVING",
    "SNAPSHOT_FIELDS",
    "Found",
    "GroupedJournal",
    "Head",
    "HeadFound",
    "JournalStep",
    "KnownHeads",
    "Page",
    "QueuedStep",
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
    "refer",
    "resolve",
    "unsealed",
]
