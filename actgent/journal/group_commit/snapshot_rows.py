"""Snapshots of sessions as rows of the storage."""

import zlib

import attrs

from actgent.errors import ConfigurationError, JournalKeyError
from actgent.journal.encryption import Keys, is_sealed, open_sealed
from actgent.journal.journal_interface import Snapshot

from .row_format import Head


@attrs.define
class SnapshotRow:
    """A stored snapshot, bound to the row that holds its last covered record."""

    series: str
    records: int
    last: int
    """Checksum of the journal row that contains the last record that the snapshot covers."""
    version: int
    body: bytes
    checksum: int


SNAPSHOT_FIELDS = tuple(field.name for field in attrs.fields(SnapshotRow))


def place_snapshot(
    snapshot: Snapshot, series: str, last: int, *, identity: bytes, keys: Keys | None
) -> SnapshotRow:
    """Encode a snapshot of the session named `series` as a row. With `keys`, the row is encrypted.

    `last` is the checksum of the row that contains the last covered record.
    """
    body = snapshot.body
    if keys is not None:
        body = keys.seal(body, _place_of_snapshot(series, snapshot.records, identity))
    row = SnapshotRow(series, snapshot.records, last, snapshot.version, body, 0)
    row.checksum = _checksum_snapshot(row, identity)
    return row


def read_snapshot(row: SnapshotRow, *, head: Head, last: int | None, identity: bytes) -> Snapshot | None:
    """Decode a snapshot row. Return None if the row is damaged, cannot be decrypted, or does not belong to the session `head`.

    `last` is the checksum of the journal row with the last covered record; None if that row is missing.
    """
    if type(row.body) is not bytes or not row.body or row.checksum != _checksum_snapshot(row, identity):
        return None
    if row.series != head.series or row.records > head.records or row.last != last:
        return None
    try:
        body = row.body
        if is_sealed(body):
            body = open_sealed(body, _place_of_snapshot(row.series, row.records, identity))
    except (ConfigurationError, JournalKeyError):  # reading the records raises the precise key error
        return None
    return Snapshot(records=row.records, version=row.version, body=body)


def _place_of_snapshot(series: str, records: int, identity: bytes) -> bytes:
    return identity + f"{series}\0snapshot\0{records}".encode()


def _checksum_snapshot(row: SnapshotRow, identity: bytes) -> int:
    place = f"{row.series}\0snapshot\0{row.records}\0{row.last}\0{row.version}".encode("utf-8", "replace")
    return zlib.crc32(row.body, zlib.crc32(place, zlib.crc32(identity)))
