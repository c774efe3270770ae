"""What journals store: steps as rows, and a head for each session.

A session's head says how many records it has and which accepted messages have not ended, so
that neither numbering nor recovery reads the session. A session is named by its agent and its id;
its rows stand in a series, a short name of its own that the head holds. Each row and head carries a
checksum that also covers where it belongs: a row of another journal, series or number is no good row.

Before version 4 a session's series was its id, which was unique in the journal, and its head said less;
both are as good as they were, and such a head says the rest from its next step on.
"""

import functools
import hashlib
import operator
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import msgpack  # type: ignore[import-untyped]

from actgent.errors import (
    JournalDamaged,
    JournalVersion,
    NotSerializable,
)
from actgent.journal.base import Creation, Entry, SessionSummary
from actgent.journal.encryption import Keys, is_sealed, open_sealed
from actgent.journal.listing import SessionKey, State, is_storable, state_of
from actgent.journal.records import (
    WIRE,
    Accepted,
    Closed,
    Due,
    Ended,
    Opened,
    Record,
    Resumed,
    Said,
    SuspendedRecord,
)
from actgent.journal.state_patches import stored_records
from actgent.messages import Priority
from actgent.support.quick_init import maker
from actgent.support.wire import SCHEMA_VERSION, Packers

from .references import resolve

TO_ERASE = -1.0
"""What a head has for its earliest date where the session is to leave the journal."""
_VERSION = bytes([SCHEMA_VERSION])
"""How the body of a step begins."""
_DIGEST = 8
"""Bytes that stand for a message id in a head."""


@attrs.define
class JournalStep:
    """An entry as bytes, with what its records do to the head."""

    key: SessionKey
    count: int
    body: bytes
    marks: Sequence[Record] = ()
    """The records that change the head."""
    given: Sequence[Record] = ()
    """All records as they were given, which may have changed since; empty where only the bytes are known."""
    creation: Creation | None = None
    """Of the session that it is of, if that is new."""
    follows: bool = False
    """As in `Entry`."""

    @property
    def begins(self) -> bool:
        """True if a session begins with it, if nothing of that is there."""
        return _opened_in(self) is not None

    @property
    def is_refused(self) -> bool:
        """True if another session has the id of the new one that it is of."""
        return self.creation is not None and self.creation.is_refused


@attrs.define
class Row:
    """A step in its place: `first` is the number of its first record."""

    series: str
    first: int
    count: int
    body: bytes
    checksum: int
    at: float | None = None
    """When it was written: Unix time in seconds; None in rows from before version 7."""


@attrs.define
class Page:
    """Some records of a session, and the rows that hold them."""

    records: tuple[Record, ...] = ()
    rows: Sequence[Row] = ()
    after: int = 0
    """The number of the record before the first."""

    @property
    def steps(self) -> Iterator[tuple[Row, int, tuple[Record, ...]]]:
        """Each row with the number of its first record that is here, and its records."""
        for row in self.rows:
            first = max(row.first, self.after + 1)
            begin = first - self.after - 1
            yield row, first, self.records[begin : row.first + row.count - self.after - 1]


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
    parent_agent: str | None = None
    root_agent: str = ""
    root_id: str = ""
    series: str = ""
    """Under which its rows stand."""

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.agent, self.session_id)

    @property
    def state(self) -> State:
        return state_of(self.closed, self.suspended, bool(self.pending))

    def is_kept(self, unchanged_since: float) -> bool:
        """Return True if something in it is still to come, or it changed at or after this Unix time."""
        is_due = self.due > 0 and not self.closed
        return bool(self.pending) or self.suspended or is_due or self.updated_at >= unchanged_since

    @property
    def summary(self) -> SessionSummary:
        return SessionSummary(
            session_id=self.session_id,
            agent=self.agent,
            owner=self.owner,
            parent_id=self.parent_id,
            parent_agent=self.parent_agent,
            created_at=self.created_at,
            updated_at=self.updated_at,
            records=self.records,
            unfinished=len(self.pending) // _DIGEST,
            closed=self.closed,
            due=self.due,
            suspended=self.suspended,
            root_agent=self.root_agent,
            root_id=self.root_id,
        )


_LOOK_BACK = 100
"""Records that are read before a page at first, if its records refer to earlier ones."""
_make_head, _make_row, _make_step = maker(Head), maker(Row), maker(JournalStep)


def encode_entry(entry: Entry) -> JournalStep:
    """An entry as bytes, which begin with the version of their form.

    Raises:
        NotSerializable: it holds what is no plain data.
    """
    records = entry.records
    key = SessionKey(entry.agent, entry.session_id)
    if "\0" in (names := key.agent + key.session_id) or not names.isascii():
        _check_text("session_id", key.session_id)
        _check_text("agent", key.agent)
    body = _VERSION + WIRE.encode(stored_records(records), Record) if records else b""
    marks, creation = [record for record in records if type(record) in _MARKING], entry.creation
    if creation is None and marks and type(marks[0]) is Opened:
        creation = Creation()
    return _make_step(key, len(records), body, marks, records, creation, entry.follows)


def join_steps(steps: Sequence[JournalStep]) -> JournalStep:
    """Steps of one session that are written together, as one."""
    if len(steps) == 1:
        return steps[0]
    count, marks, items, given = 0, list[Record](), [], list[Record]()
    for step in steps:
        count += step.count
        marks += step.marks
        given += step.given
        items.append(step.body[1 + len(_array_header(step.count)) :])
    body = b"".join([_VERSION, _array_header(count), *items])
    return JournalStep(steps[0].key, count, body, marks, given if len(given) == count else ())


@functools.lru_cache(maxsize=64)
def _array_header(count: int) -> bytes:
    packed: bytes = msgpack.Packer().pack_array_header(count)
    return packed


def decode_rows(rows: Sequence[Row], *, head: Head, identity: bytes, after: int = 0) -> tuple[Record, ...]:
    """All records of a session behind the number `after`, from its rows in order, the first of which holds the next one.

    Nothing before may be referred to: `after` is 0, or covered by a snapshot. Differences of the state to values in the
    snapshot stay differences.

    Raises:
        JournalDamaged: a row is missing, altered or too many.
        JournalVersion, WireError: a newer actgent wrote it.
    """
    first = _first(rows, after)
    records = _decode_row_after_row(rows, first, head, identity)
    if first + len(records) - 1 != head.records:
        raise JournalDamaged(
            f"its records are {first + len(records) - 1} of {head.records}",
            session_id=head.session_id,
            record=min(first + len(records) - 1, head.records) + 1,
        )
    try:
        return tuple(resolve(records[after + 1 - first :], is_partial=after > 0))
    except LookupError as error:
        raise JournalDamaged(
            f"the result of call, or the answer, {error} is missing", session_id=head.session_id
        ) from error


def decode_page(
    rows: Sequence[Row],
    *,
    head: Head,
    identity: bytes,
    after: int,
    earlier: Callable[[int, int], Sequence[Row]],
) -> Page:
    """Return some records after the record number `after`.

    `earlier(first, count)` returns the rows with so many records before the record `first`, which others may refer to.

    Raises:
        JournalDamaged: a row is missing or altered.
        JournalVersion, WireError: a newer actgent wrote it.
    """
    page, count = Page(rows=rows, after=after), _LOOK_BACK
    while True:
        first = _first(rows, after)
        records = _decode_row_after_row(rows, first, head, identity)
        missing = after + 1 - first
        try:
            page.records = tuple(resolve(records)[missing:])
        except LookupError as error:
            before = earlier(first, count) if first > 1 else ()
            count *= 2  # all are decoded again
            if not before:
                words = f"the result of call, or the answer, {error} is missing"
                raise JournalDamaged(words, session_id=head.session_id) from error
            rows = [*before, *rows]
        else:
            return page


def _first(rows: Sequence[Row], after: int) -> int:
    """The number of the first of these records, which is the one behind `after` or stands in a row with it."""
    return rows[0].first if rows and after and rows[0].first <= after + 1 else after + 1


def _decode_row_after_row(rows: Iterable[Row], first: int, head: Head, identity: bytes) -> list[Record]:
    """The records of rows that follow each other."""
    records: list[Record] = []
    for row in rows:
        place = first + len(records)
        if row.first != place or not is_good(row, identity):
            reason = "its checksum is wrong" if row.first == place else "a record is missing or twice there"
            raise JournalDamaged(reason, session_id=head.session_id, record=place)
        records += _decode(unsealed(row, identity).body)
    return records


def unsealed(row: Row, identity: bytes) -> Row:
    """A row with its body as it was before it was encrypted, if it was.

    Raises:
        JournalKeyError: the keys of the environment do not open it.
    """
    if not is_sealed(row.body):
        return row
    return attrs.evolve(row, body=open_sealed(row.body, _place(row.series, row.first, row.count, identity)))


def read_records(row: Row) -> tuple[Record, ...]:
    """The records of a row as they are stored, results referred to and all.

    Raises:
        JournalVersion, WireError: a newer actgent wrote it.
    """
    return _decode(row.body)


def decode_step(row: Row, key: SessionKey) -> JournalStep:
    """The step that a row of this session was made from.

    Raises:
        JournalVersion, WireError: a newer actgent wrote it.
    """
    marks = [record for record in read_records(row) if type(record) in _MARKING]
    return JournalStep(key, row.count, row.body, marks)


def read_key(rows: Iterable[Row]) -> SessionKey:
    """Find the session of these rows by their content; what nothing tells is empty, and its series at best.

    Raises:
        JournalVersion, WireError: a newer actgent wrote it.
    """
    agent = session_id = series = ""
    for row in rows:
        series = row.series
        for record in read_records(row):
            if isinstance(record, Opened):
                agent = agent or record.agent
            elif isinstance(record, Accepted | Said):
                session_id = session_id or record.message.session_id
                agent = agent or (
                    record.message.sender.name if isinstance(record, Said) and record.stop else ""
                )
        if agent and session_id:
            break
    return SessionKey(agent, session_id or series)


def _decode(body: bytes) -> tuple[Record, ...]:
    if body[0] > SCHEMA_VERSION:
        raise JournalVersion(body[0], SCHEMA_VERSION)
    return WIRE.decode(body[1:], Record)


def _check_text(name: str, text: str) -> None:
    """Raise for what databases do not take as text."""
    if not is_storable(text):
        raise NotSerializable(name, "it holds NUL or half of a surrogate pair")


def _clean(text: str) -> str:
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


# --- heads -------------------------------------------------------------------------------


def name_series(epoch: int, number: int) -> str:
    """The series of the n-th session that begins in an epoch: short, as each row repeats it.

    Its first character tells it from the series of former versions, which are ids of sessions.
    """
    return f"\x1f{epoch:x}.{number:x}"


def find_parent(step: JournalStep) -> SessionKey | None:
    """The session below which the one of this first step stands."""
    opened = _opened_in(step)
    if opened is None or opened.parent_id is None:
        return None
    return SessionKey(_clean(opened.parent_agent or step.key.agent), _clean(opened.parent_id))


def _opened_in(step: JournalStep) -> Opened | None:
    return next((mark for mark in step.marks if isinstance(mark, Opened)), None)


def begin_head(step: JournalStep, series: str, parent: Head | None, *, now: float) -> Head:
    """The head of a session before its first step, which decides what never changes."""
    opened, above = _opened_in(step), find_parent(step)
    root = step.key if parent is None else SessionKey(parent.root_agent, parent.root_id)
    return Head(
        step.key.session_id,
        step.key.agent,
        owner="" if opened is None else _clean(opened.owner.name),
        parent_id=None if above is None else above.session_id,
        parent_agent=None if above is None else above.agent,
        created_at=now if opened is None else float(opened.created_at),
        root_agent=root.agent,
        root_id=root.session_id,
        series=series,
    )


def place_step(
    step: JournalStep,
    before: Head,
    *,
    now: float,
    at: float | None,
    identity: bytes,
    keys: Keys | None = None,
) -> tuple[Row, Head]:
    """The row that a step of this time becomes behind what is there, encrypted if there are keys, and the head that follows."""
    first, body = before.records + 1, step.body
    if keys is not None:
        body = keys.seal(body, _place(before.series, first, step.count, identity))
    checksum = checksum_row(before.series, first, step.count, body=body, identity=identity, at=at)
    head = _make_head(*_fields(before))  # attrs.evolve takes four times as long
    head.records += step.count
    head.updated_at = now
    for record in step.marks:
        if (change := _MARKS.get(type(record))) is not None:
            change(head, record)
    return _make_row(before.series, first, step.count, body, checksum, at), head


def _accept(head: Head, record: Accepted) -> None:
    head.pending += _digest(record.message.id)
    if (
        record.message.priority is Priority.URGENT or record.message.on_busy == "interrupt"
    ):  # it does not wait for what the turn waits for
        head.suspended = False


def _end(head: Head, record: Ended) -> None:
    digest, pending = _digest(record.message_id), head.pending
    each = [pending[at : at + _DIGEST] for at in range(0, len(pending), _DIGEST)]
    head.pending = b"".join(other for other in each if other != digest)


def _close(head: Head, record: Closed) -> None:
    head.closed = True
    if record.erase:
        head.due = TO_ERASE


def _set_due(head: Head, record: Due) -> None:
    head.due = float(record.at)


def _suspend(head: Head, _: SuspendedRecord) -> None:
    head.suspended = True


def _resume(head: Head, _: Resumed) -> None:
    head.suspended = False


_MARKS: dict[type, Callable[[Head, Any], None]] = {
    Accepted: _accept,
    Ended: _end,
    Due: _set_due,
    SuspendedRecord: _suspend,
    Resumed: _resume,
    Closed: _close,
}
_MARKING = {Opened, *_MARKS}


def _digest(message_id: str) -> bytes:
    return hashlib.blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=_DIGEST).digest()


# --- checksums ---------------------------------------------------------------------------


def checksum_row(
    series: str, first: int, count: int, *, body: bytes, identity: bytes, at: float | None = None
) -> int:
    """The CRC-32 of a row, of its place, of its time if it has one, and of the journal that it is in."""
    place = f"{series}\0{first}\0{count}" if at is None else f"{series}\0{first}\0{count}\0{at!r}"
    return zlib.crc32(body, zlib.crc32(place.encode(), zlib.crc32(identity)))


def _place(series: str, first: int, count: int, identity: bytes) -> bytes:
    """Return the place that an encrypted row is bound to."""
    return identity + f"{series}\0{first}\0{count}".encode()


def is_good(row: Row, identity: bytes) -> bool:
    """Return True if a row is what was written, where it was written; its values may be of any type."""
    if type(row.body) is not bytes:
        return False
    checksum = checksum_row(row.series, row.first, row.count, body=row.body, identity=identity, at=row.at)
    return row.checksum == checksum


def checksum_head(head: Head, identity: bytes) -> int:
    """The CRC-32 of a head and of the journal that it is in."""
    return _checksum(_fields(head), identity)


def is_good_head(head: Head, checksum: object, identity: bytes) -> bool:
    """Return True if a head is what was written, perhaps by a former version, whose heads had fewer fields."""
    if checksum == checksum_head(head, identity):
        return True
    if head.series != head.session_id:
        return False
    has_date = head.due or head.suspended
    fields = _fields(head)[: _FIELDS_OF_VERSION_3 if has_date else _FIELDS_OF_VERSION_1]
    return checksum == _checksum(fields, identity)


def _checksum(fields: tuple[Any, ...], identity: bytes) -> int:
    return zlib.crc32(_pack_fields(fields), zlib.crc32(identity))


def head_values(head: Head, identity: bytes) -> tuple[Any, ...]:
    """The columns of a head, its checksum last."""
    return (*_fields(head), checksum_head(head, identity))


HEAD_FIELDS = tuple(field.name for field in attrs.fields(Head))
_fields = operator.attrgetter(*HEAD_FIELDS)
_pack_fields = Packers().pack
_FIELDS_OF_VERSION_1 = HEAD_FIELDS.index("closed") + 1
_FIELDS_OF_VERSION_3 = HEAD_FIELDS.index("suspended") + 1
CHANGING = ("updated_at", "records", "pending", "closed", "due", "suspended")
"""Fields that steps after the first change."""
