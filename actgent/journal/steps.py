"""What journals store: steps as rows, and a head for each session.

A session's head says how many records it has and which accepted messages have not ended, so
that neither numbering nor recovery reads the session. Each row and head carries a checksum that
also covers where it belongs: a row of another journal, session or number is no good row.
"""

import hashlib
import operator
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import msgpack  # type: ignore[import-untyped]

from actgent.errors import JournalDamaged, JournalVersion, NotSerializable
from actgent.messages import Priority
from actgent.wire import SCHEMA_VERSION

from .base import Entry, SessionSummary
from .records import WIRE, Accepted, Closed, Due, Ended, Opened, Record, Resumed, Suspended
from .references import resolve

_DIGEST = 8
"""Bytes that stand for a message id in a head."""


@attrs.define
class Step:
    """An entry as bytes, with what its records do to the head."""

    session_id: str
    agent: str
    count: int
    body: bytes
    marks: Sequence[Record] = ()
    """The records that change the head."""


@attrs.define
class Row:
    """A step in its place: `first` is the number of its first record."""

    session_id: str
    first: int
    count: int
    body: bytes
    checksum: int


@attrs.define
class Head:
    """What is known of a session without reading it; see `SessionSummary`."""

    session_id: str
    agent: str
    owner: str = ""
    parent_id: str | None = None
    created_at: float = 0.0
    updated_at: float = 0.0
    records: int = 0
    pending: bytes = b""
    """A digest for each accepted message that has not ended, in order."""
    closed: bool = False
    due: float = 0.0
    suspended: bool = False

    @property
    def summary(self) -> SessionSummary:
        return SessionSummary(
            session_id=self.session_id,
            agent=self.agent,
            owner=self.owner,
            parent_id=self.parent_id,
            created_at=self.created_at,
            updated_at=self.updated_at,
            records=self.records,
            unfinished=len(self.pending) // _DIGEST,
            closed=self.closed,
            due=self.due,
            suspended=self.suspended,
        )


def encode_entry(entry: Entry) -> Step:
    """An entry as bytes, which begin with the version of their form.

    Raises:
        NotSerializable: it holds what is no plain data.
    """
    records = entry.records
    _check_text("session_id", entry.session_id)
    _check_text("agent", entry.agent)
    body = bytes([SCHEMA_VERSION]) + WIRE.encode(records, Record) if records else b""
    marks = [record for record in records if type(record) in _MARKS]
    return Step(entry.session_id, entry.agent, len(records), body, marks)


def join_steps(steps: Sequence[Step]) -> Step:
    """Steps of one session that are written together, as one."""
    if len(steps) == 1:
        return steps[0]
    count = sum(step.count for step in steps)
    items = [step.body[1 + len(_array_header(step.count)) :] for step in steps]
    body = b"".join([bytes([SCHEMA_VERSION]), _array_header(count), *items])
    marks = [mark for step in steps for mark in step.marks]
    return Step(steps[0].session_id, steps[0].agent, count, body, marks)


def _array_header(count: int) -> bytes:
    packed: bytes = msgpack.Packer().pack_array_header(count)
    return packed


def decode_rows(rows: Iterable[Row], *, head: Head, identity: bytes) -> tuple[Record, ...]:
    """All records of a session, from its rows in order.

    Raises:
        JournalDamaged: a row is missing, altered or too many.
        JournalVersion, WireError: a newer actgent wrote it.
    """
    records: list[Record] = []
    for row in rows:
        place = len(records) + 1
        if row.first != place or not is_good(row, identity):
            reason = "its checksum is wrong" if row.first == place else "a record is missing or twice there"
            raise JournalDamaged(reason, session_id=head.session_id, record=place)
        records += _decode(row.body)
    if len(records) != head.records:
        raise JournalDamaged(
            f"there are {len(records)} records of {head.records}",
            session_id=head.session_id,
            record=min(len(records), head.records) + 1,
        )
    try:
        return tuple(resolve(records))
    except LookupError as error:
        raise JournalDamaged(f"the result of call {error} is missing", session_id=head.session_id) from error


def read_records(row: Row) -> tuple[Record, ...]:
    """The records of a row as they are stored, results referred to and all.

    Raises:
        JournalVersion, WireError: a newer actgent wrote it.
    """
    return _decode(row.body)


def read_step(row: Row, agent: str) -> Step:
    """The step that a row was made from.

    Raises:
        JournalVersion, WireError: a newer actgent wrote it.
    """
    marks = [record for record in read_records(row) if type(record) in _MARKS]
    return Step(row.session_id, agent, row.count, row.body, marks)


def _decode(body: bytes) -> tuple[Record, ...]:
    if body[0] > SCHEMA_VERSION:
        raise JournalVersion(body[0], SCHEMA_VERSION)
    return WIRE.decode(body[1:], Record)


def _check_text(name: str, text: str) -> None:
    """Raise for what databases do not take as text."""
    if "\0" in text or (not text.isascii() and text != _clean(text)):
        raise NotSerializable(name, "it holds NUL or half of a surrogate pair")


def _clean(text: str) -> str:
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


# --- heads -------------------------------------------------------------------------------


def place_step(step: Step, head: Head | None, *, now: float, identity: bytes) -> tuple[Row, Head]:
    """The row that a step becomes behind what is there, and the head that follows."""
    before = head or Head(step.session_id, step.agent, created_at=now)
    first = before.records + 1
    checksum = checksum_row(step.session_id, first, step.count, body=step.body, identity=identity)
    changes = dict(zip(HEAD_FIELDS, _fields(before), strict=True))  # attrs.evolve takes twice as long
    changes["records"] += step.count
    changes["updated_at"] = now
    for record in step.marks:
        _MARKS[type(record)](changes, record)
    return Row(step.session_id, first, step.count, step.body, checksum), Head(**changes)


def _open(changes: dict[str, Any], record: Opened) -> None:
    changes["owner"] = _clean(record.owner.name)
    changes["parent_id"] = record.parent_id and _clean(record.parent_id)
    changes["created_at"] = float(record.created_at)


def _accept(changes: dict[str, Any], record: Accepted) -> None:
    changes["pending"] += _digest(record.message.id)
    if (
        record.message.priority is Priority.URGENT or record.message.on_busy == "interrupt"
    ):  # it does not wait for what the turn waits for
        changes["suspended"] = False


def _end(changes: dict[str, Any], record: Ended) -> None:
    digest, pending = _digest(record.message_id), changes["pending"]
    each = [pending[at : at + _DIGEST] for at in range(0, len(pending), _DIGEST)]
    changes["pending"] = b"".join(other for other in each if other != digest)


def _close(changes: dict[str, Any], _: Closed) -> None:
    changes["closed"] = True


def _set_due(changes: dict[str, Any], record: Due) -> None:
    changes["due"] = float(record.at)


def _suspend(changes: dict[str, Any], _: Suspended) -> None:
    changes["suspended"] = True


def _resume(changes: dict[str, Any], _: Resumed) -> None:
    changes["suspended"] = False


_MARKS: dict[type, Callable[[dict[str, Any], Any], None]] = {
    Opened: _open,
    Accepted: _accept,
    Ended: _end,
    Due: _set_due,
    Suspended: _suspend,
    Resumed: _resume,
    Closed: _close,
}


def _digest(message_id: str) -> bytes:
    return hashlib.blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=_DIGEST).digest()


# --- checksums ---------------------------------------------------------------------------


def checksum_row(session_id: str, first: int, count: int, *, body: bytes, identity: bytes) -> int:
    """The CRC-32 of a row, of its place, and of the journal that it is in."""
    return zlib.crc32(body, zlib.crc32(f"{session_id}\0{first}\0{count}".encode(), zlib.crc32(identity)))


def is_good(row: Row, identity: bytes) -> bool:
    """Whether a row is what was written, where it was written; its values may be of any type."""
    if type(row.body) is not bytes:
        return False
    checksum = checksum_row(row.session_id, row.first, row.count, body=row.body, identity=identity)
    return row.checksum == checksum


def checksum_head(head: Head, identity: bytes) -> int:
    """The CRC-32 of a head and of the journal that it is in.

    Fields that version 1 did not have count where they say something, so its checksums are still right.
    """
    fields = _fields(head)
    if not (head.due or head.suspended):
        fields = fields[:_FIELDS_OF_VERSION_1]
    return zlib.crc32(msgpack.packb(fields), zlib.crc32(identity))


def head_values(head: Head, identity: bytes) -> tuple[Any, ...]:
    """The columns of a head, its checksum last."""
    return (*_fields(head), checksum_head(head, identity))


HEAD_FIELDS = tuple(field.name for field in attrs.fields(Head))
_fields = operator.attrgetter(*HEAD_FIELDS)
_FIELDS_OF_VERSION_1 = HEAD_FIELDS.index("closed") + 1
