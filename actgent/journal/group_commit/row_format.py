"""Storage format of journals: a row for each batch, and a summary for each session.

A session summary holds the number of records and digests of its unfinished messages, so numbering and recovery
need no read of the session. A session is identified by its agent and id. Its rows are in a series, a short name that
the session summary holds. The checksum of a row or session summary also covers its position: a row that was moved to another journal,
series or number is invalid.

Before version 4 the series of a session was its id, and session summaries had fewer fields. Both stay valid; such a summary gets all
fields with its next batch.
"""

import functools
import hashlib
import operator
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import msgpack  # type: ignore[import-untyped]

from actgent.errors import JournalDamaged, JournalVersion, NotSerializable
from actgent.journal.encryption import Keys, is_sealed, open_sealed
from actgent.journal.journal_interface import Creation, Entry, SessionSummary
from actgent.journal.record_types import (
    WIRE,
    AgentMessageRecord,
    MessageAcceptedRecord,
    MessageEndRecord,
    NextTimerRecord,
    Record,
    ResumptionRecord,
    SessionAnnotatedRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    StateChangeRecord,
    SuspensionRecord,
)
from actgent.journal.session_list_queries import SessionKey, State, is_storable, state_of
from actgent.journal.session_tags_and_metadata import NO_ANNOTATIONS, decode_annotations, encode_annotations
from actgent.messages import Priority
from actgent.support.fast_attrs_constructors import fast_constructor
from actgent.support.tagged_codec import SCHEMA_VERSION, Packers

from .record_reference_resolver import resolve

TO_ERASE = -1.0
"""Value of `Head.due` of a session that must be erased."""
_VERSION = bytes([SCHEMA_VERSION])
"""First byte of a batch's body: the schema version."""
_DIGEST = 8
"""Size in bytes of the digest of a message id in a session summary."""


@attrs.define
class EncodedBatch:
    """An encoded `Entry`, together with those of its records that change the summary of the session."""

    key: SessionKey
    count: int
    body: bytes
    head_records: Sequence[Record] = ()
    """Those records of the batch that change the stored summary of the session."""
    original_records: Sequence[Record] = ()
    """Records as the writer passed them, which may have been modified since; empty if only the bytes are
    known.
    """
    creation: Creation | None = None
    """Creation of the session, if the session is new."""
    follows: bool = False
    """True if the session has earlier batches; see `Entry.follows`."""

    @property
    def begins(self) -> bool:
        """True if the batch contains the first record of a session."""
        return _creation_record(self) is not None

    @property
    def is_refused(self) -> bool:
        """True if the batch belongs to a new session whose id another session already has."""
        return self.creation is not None and self.creation.is_refused


@attrs.define
class Row:
    """A stored batch. `first` is the number of its first record."""

    series: str
    first: int
    count: int
    body: bytes
    checksum: int
    at: float | None = None
    """Time of the write: Unix time in seconds; None in rows before version 7."""


@attrs.define
class Page:
    """A page of a session's records, and the rows that hold them."""

    records: tuple[Record, ...] = ()
    rows: Sequence[Row] = ()
    after: int = 0
    """Number of the record before the first record of the page."""

    @property
    def batches(self) -> Iterator[tuple[Row, int, tuple[Record, ...]]]:
        """Rows of the page. Each row comes with the number of its first record on the page and its records on the page."""
        for row in self.rows:
            first = max(row.first, self.after + 1)
            begin = first - self.after - 1
            yield row, first, self.records[begin : row.first + row.count - self.after - 1]


@attrs.define
class Head:
    """Metadata of a session that is known without reading its records; see `SessionSummary`."""

    session_id: str
    agent: str
    owner: str = ""
    parent_id: str | None = None
    created_at: float = 0.0
    updated_at: float = 0.0
    records: int = 0
    pending: bytes = b""
    """Digests of the messages that the session has accepted and not completed, in order."""
    closed: bool = False
    due: float = 0.0
    suspended: bool = False
    parent_agent: str | None = None
    root_agent: str = ""
    root_id: str = ""
    series: str = ""
    """Name that identifies all stored rows of this session. A session with the id of an erased session gets a new name."""
    annotations: str | None = None
    """Tags and metadata in the form of `encode_annotations`; None if the session has none."""

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.agent, self.session_id)

    @property
    def state(self) -> State:
        return state_of(self.closed, self.suspended, bool(self.pending))

    def is_retained(self, unchanged_since: float) -> bool:
        """Return True if retention must not erase the session.

        It has pending work, or changed at or after the Unix time `unchanged_since`.
        """
        is_due = self.due > 0 and not self.closed
        return bool(self.pending) or self.suspended or is_due or self.updated_at >= unchanged_since

    @property
    def summary(self) -> SessionSummary:
        noted = self.annotations
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
            annotations=NO_ANNOTATIONS if noted is None else decode_annotations(noted, self.session_id),
        )


_LOOK_BACK = 100
"""Number of earlier records to read first if a page refers to earlier records."""
_make_head, _make_row, _make_batch = (
    fast_constructor(Head),
    fast_constructor(Row),
    fast_constructor(EncodedBatch),
)


def encode_entry(entry: Entry) -> EncodedBatch:
    """Encode the records that are written together (an entry) for the storage.

    The bytes begin with the schema version.

    Raises:
        NotSerializable: The entry contains a value that is not plain data.
    """
    records = entry.records
    key = SessionKey(entry.agent, entry.session_id)
    if "\0" in (names := key.agent + key.session_id) or not names.isascii():
        _check_text("session_id", key.session_id)
        _check_text("agent", key.agent)
    body = _VERSION + WIRE.encode(stored_records(records), Record) if records else b""
    head_records, creation = [record for record in records if type(record) in _MARKING], entry.creation
    if creation is None and head_records and type(head_records[0]) is SessionCreatedRecord:
        creation = Creation()
    return _make_batch(key, len(records), body, head_records, records, creation, entry.follows)


def stored_records(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records in the form in which they are stored.

    If a state change contains a difference for a key, the whole value of the key is omitted.
    """
    for record in records:
        if type(record) is StateChangeRecord and record.patches:
            return [_without_values(each) if type(each) is StateChangeRecord else each for each in records]
    return records


def _without_values(changed: StateChangeRecord) -> StateChangeRecord:
    left = {key: value for key, value in changed.changes.items() if key not in changed.patches}
    return attrs.evolve(changed, changes=left)


def join_batches(batches: Sequence[EncodedBatch]) -> EncodedBatch:
    """Join several batches of one session into one batch, so that they are stored in one row."""
    if len(batches) == 1:
        return batches[0]
    count, head_records, items, original_records = 0, list[Record](), [], list[Record]()
    for batch in batches:
        count += batch.count
        head_records += batch.head_records
        original_records += batch.original_records
        items.append(batch.body[1 + len(_array_header(batch.count)) :])
    body = b"".join([_VERSION, _array_header(count), *items])
    return EncodedBatch(
        batches[0].key, count, body, head_records, original_records if len(original_records) == count else ()
    )


@functools.lru_cache(maxsize=64)
def _array_header(count: int) -> bytes:
    packed: bytes = msgpack.Packer().pack_array_header(count)
    return packed


def decode_rows(rows: Sequence[Row], *, head: Head, identity: bytes, after: int = 0) -> tuple[Record, ...]:
    """Decode the rows of a session, and return the records with a number above `after`.

    `after` is 0, or the last record that a snapshot covers. Records may refer only to each other. State differences to values
    in the snapshot stay differences.

    Raises:
        JournalDamaged: A row is missing, altered or duplicated.
        JournalVersion, WireError: A newer actgent wrote a row.
    """
    first = _first_record_number(rows, after)
    records = _decode_row_after_row(rows, first, head, identity)
    if first + len(records) - 1 != head.records:
        raise JournalDamaged(
            f"only {first + len(records) - 1} of its {head.records} records are readable",
            session_id=head.session_id,
            record=min(first + len(records) - 1, head.records) + 1,
        )
    try:
        return tuple(resolve(records[after + 1 - first :], is_partial=after > 0))
    except LookupError as error:
        raise JournalDamaged(
            f"a record refers to the tool call, answer or state key {error}, which is missing",
            session_id=head.session_id,
        ) from error


def decode_page(
    rows: Sequence[Row],
    *,
    head: Head,
    identity: bytes,
    after: int,
    earlier: Callable[[int, int], Sequence[Row]],
) -> Page:
    """Decode a page of a session's records: those of `rows` after record number `after`.

    `earlier(first, count)` returns the rows with up to `count` records before record `first`, which later records may
    refer to.

    Raises:
        JournalDamaged: A row is missing or altered.
        JournalVersion, WireError: A newer actgent wrote a row.
    """
    page, count = Page(rows=rows, after=after), _LOOK_BACK
    while True:
        first = _first_record_number(rows, after)
        records = _decode_row_after_row(rows, first, head, identity)
        missing = after + 1 - first
        try:
            page.records = tuple(resolve(records)[missing:])
        except LookupError as error:
            before = earlier(first, count) if first > 1 else ()
            count *= 2  # all rows are decoded again
            if not before:
                words = f"a record refers to the tool call, answer or state key {error}, which is missing"
                raise JournalDamaged(words, session_id=head.session_id) from error
            rows = [*before, *rows]
        else:
            return page


def _first_record_number(rows: Sequence[Row], after: int) -> int:
    """Return the number of the first record in the rows of a page that begins after record `after`.

    It is at most `after` if record `after + 1` is inside a row.
    """
    return rows[0].first if rows and after and rows[0].first <= after + 1 else after + 1


def _decode_row_after_row(rows: Iterable[Row], first: int, head: Head, identity: bytes) -> list[Record]:
    """Decode consecutive rows. Raise `JournalDamaged` at a gap or a wrong checksum."""
    records: list[Record] = []
    for row in rows:
        place = first + len(records)
        if row.first != place or not is_good(row, identity):
            reason = "its checksum is wrong" if row.first == place else "a record is missing or duplicated"
            raise JournalDamaged(reason, session_id=head.session_id, record=place)
        records += _decode(unseal(row, identity).body)
    return records


def unseal(row: Row, identity: bytes) -> Row:
    """Return a row with its body decrypted and decompressed. `identity` is the identity of the journal.

    Raises:
        JournalKeyError: The keys of the environment do not decrypt the body.
    """
    if not is_sealed(row.body):
        body = decompress(row.body)
        return row if body is row.body else attrs.evolve(row, body=body)
    return attrs.evolve(row, body=open_sealed(row.body, _place(row.series, row.first, row.count, identity)))


def read_records(row: Row) -> tuple[Record, ...]:
    """Decode the records of a row.

    References to earlier records are not replaced.

    Raises:
        JournalVersion, WireError: A newer actgent wrote the row.
    """
    return _decode(row.body)


def decode_batch(row: Row, key: SessionKey) -> EncodedBatch:
    """Decode the batch (group of records) in a row, so that the batch can be written to another file.

    Raises:
        JournalVersion, WireError: A newer actgent wrote the row.
    """
    head_records = [record for record in read_records(row) if type(record) in _MARKING]
    return EncodedBatch(key, row.count, row.body, head_records)


def read_key(rows: Iterable[Row]) -> SessionKey:
    """Return the session key (agent and id) that the records of a session's rows contain.

    The agent is empty if no record names it. The id is the series name if no record names an id.

    Raises:
        JournalVersion, WireError: A newer actgent wrote a row.
    """
    agent = session_id = series = ""
    for row in rows:
        series = row.series
        for record in read_records(row):
            if isinstance(record, SessionCreatedRecord):
                agent = agent or record.agent
            elif isinstance(record, MessageAcceptedRecord | AgentMessageRecord):
                session_id = session_id or record.message.session_id
                agent = agent or (
                    record.message.sender.name
                    if isinstance(record, AgentMessageRecord) and record.stop
                    else ""
                )
        if agent and session_id:
            break
    return SessionKey(agent, session_id or series)


def _decode(body: bytes) -> tuple[Record, ...]:
    if body[0] > SCHEMA_VERSION:
        raise JournalVersion(body[0], SCHEMA_VERSION)
    return WIRE.decode(body[1:], Record)


def _check_text(name: str, text: str) -> None:
    """Raise `NotSerializable` if databases cannot store the text. `name` is its name in the error."""
    if not is_storable(text):
        raise NotSerializable(name, "the text has a NUL character or a lone surrogate")


def _clean(text: str) -> str:
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


# --- session summaries -------------------------------------------------------------------------------


def name_series(epoch: int, number: int) -> str:
    """Return a new series name: the name under which all rows of a session are stored.

    It is built from the epoch and the number of the session among those created in the epoch. The name is short, because each
    row repeats it. Its first character distinguishes it from names of earlier versions, which are session ids.
    """
    return f"\x1f{epoch:x}.{number:x}"


def find_parent(batch: EncodedBatch) -> SessionKey | None:
    """Return the key of the parent session that the first batch of a session names; None if the session has no parent."""
    opened = _creation_record(batch)
    if opened is None or opened.parent_id is None:
        return None
    return SessionKey(_clean(opened.parent_agent or batch.key.agent), _clean(opened.parent_id))


def _creation_record(batch: EncodedBatch) -> SessionCreatedRecord | None:
    for mark in batch.head_records:
        if isinstance(mark, SessionCreatedRecord):
            return mark
    return None


def begin_head(batch: EncodedBatch, series: str, parent: Head | None, *, now: float) -> Head:
    """Build the summary of a new session before its first batch, with the fields that never change."""
    opened, above = _creation_record(batch), find_parent(batch)
    root = batch.key if parent is None else SessionKey(parent.root_agent, parent.root_id)
    return Head(
        batch.key.session_id,
        batch.key.agent,
        owner="" if opened is None else _clean(opened.owner.name),
        parent_id=None if above is None else above.session_id,
        parent_agent=None if above is None else above.agent,
        created_at=now if opened is None else float(opened.created_at),
        root_agent=root.agent,
        root_id=root.session_id,
        series=series,
        annotations=encode_annotations(opened.tags, opened.metadata)
        if opened is not None and (opened.tags or opened.metadata)
        else None,
    )


def place_batch(
    batch: EncodedBatch,
    before: Head,
    *,
    now: float,
    at: float | None,
    identity: bytes,
    keys: Keys | None = None,
) -> tuple[Row, Head]:
    """Build the row that stores a batch after the existing rows of its session. Return the row and the new session summary.

    The body is encrypted if there are keys, otherwise compressed. Both together would leak content by the
    length.
    """
    first = before.records + 1
    if keys is None:
        body = compress(batch.body)
    else:
        body = keys.seal(batch.body, _place(before.series, first, batch.count, identity))
    checksum = checksum_row(before.series, first, batch.count, body=body, identity=identity, at=at)
    head = _make_head(*_fields(before))  # attrs.evolve takes four times as long
    head.records += batch.count
    head.updated_at = now
    for record in batch.head_records:
        if (change := _MARKS.get(type(record))) is not None:
            change(head, record)
    return _make_row(before.series, first, batch.count, body, checksum, at), head


def _accept(head: Head, record: MessageAcceptedRecord) -> None:
    head.pending += _digest(record.message.id)
    if (
        record.message.priority is Priority.URGENT or record.message.on_busy == "interrupt"
    ):  # an urgent or interrupting message ends the suspension
        head.suspended = False


def _mark_closed(head: Head, record: MessageEndRecord) -> None:
    digest, pending = _digest(record.message_id), head.pending
    others = [
        other for at in range(0, len(pending), _DIGEST) if (other := pending[at : at + _DIGEST]) != digest
    ]
    head.pending = b"".join(others)


def _close(head: Head, record: SessionClosedRecord) -> None:
    head.closed = True
    if record.erase:
        head.due = TO_ERASE


def _set_due(head: Head, record: NextTimerRecord) -> None:
    head.due = float(record.at)


def _suspend(head: Head, _: SuspensionRecord) -> None:
    head.suspended = True


def _resume(head: Head, _: ResumptionRecord) -> None:
    head.suspended = False


def _annotate(head: Head, record: SessionAnnotatedRecord) -> None:
    head.annotations = encode_annotations(record.tags, record.metadata)


_MARKS: dict[type, Callable[[Head, Any], None]] = {
    MessageAcceptedRecord: _accept,
    MessageEndRecord: _mark_closed,
    NextTimerRecord: _set_due,
    SuspensionRecord: _suspend,
    ResumptionRecord: _resume,
    SessionClosedRecord: _close,
    SessionAnnotatedRecord: _annotate,
}
_MARKING = {SessionCreatedRecord, *_MARKS}


def _digest(message_id: str) -> bytes:
    return hashlib.blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=_DIGEST).digest()


# --- checksums ---------------------------------------------------------------------------


def checksum_row(
    series: str, first: int, count: int, *, body: bytes, identity: bytes, at: float | None = None
) -> int:
    """Return the CRC-32 of a row's body, its position, its time if it has one, and the identity of the journal."""
    place = f"{series}\0{first}\0{count}" if at is None else f"{series}\0{first}\0{count}\0{at!r}"
    return zlib.crc32(body, zlib.crc32(place.encode(), zlib.crc32(identity)))


def _place(series: str, first: int, count: int, identity: bytes) -> bytes:
    """Return bytes that identify the position of a row. An encrypted body can be decrypted only at this position.

    The position consists of the journal's identity, the series, the number of the first record, and the record count.
    """
    return identity + f"{series}\0{first}\0{count}".encode()


def is_good(row: Row, identity: bytes) -> bool:
    """Return True if the checksum of a row matches its content and position.

    Damaged rows with values of other types return False.
    """
    if type(row.body) is not bytes:
        return False
    checksum = checksum_row(row.series, row.first, row.count, body=row.body, identity=identity, at=row.at)
    return row.checksum == checksum


def checksum_head(head: Head, identity: bytes) -> int:
    """Return the CRC-32 of a session summary and the identity of the journal."""
    return _checksum(_fields(head), identity)


def is_good_head(head: Head, checksum: object, identity: bytes) -> bool:
    """Return True if `checksum` matches the content of a session summary and the identity of the journal.

    Session summaries of earlier versions have fewer fields and are also accepted.
    """
    if checksum == checksum_head(head, identity):
        return True
    if head.series != head.session_id:
        return False
    has_date = head.due or head.suspended
    fields = _fields(head)[: _FIELDS_OF_VERSION_3 if has_date else _FIELDS_OF_VERSION_1]
    return checksum == _checksum(fields, identity)


def _checksum(fields: tuple[Any, ...], identity: bytes) -> int:
    if fields[-1] is None:  # missing annotations: session summaries of earlier versions have no such field
        fields = fields[:-1]
    return zlib.crc32(_pack_fields(fields), zlib.crc32(identity))


def head_values(head: Head, identity: bytes) -> tuple[Any, ...]:
    """Return the database column values of a session summary, with its checksum last."""
    return (*_fields(head), checksum_head(head, identity))


HEAD_FIELDS = tuple(field.name for field in attrs.fields(Head))
_fields = operator.attrgetter(*HEAD_FIELDS)
_pack_fields = Packers().pack
_FIELDS_OF_VERSION_1 = HEAD_FIELDS.index("closed") + 1
_FIELDS_OF_VERSION_3 = HEAD_FIELDS.index("suspended") + 1
CHANGING = ("updated_at", "records", "pending", "closed", "due", "suspended", "annotations")
"""Names of the fields of the session summary that change with later batches."""


# --- batch compression ------------------------------------------------------------------------

COMPRESSED = 0xD1
"""First byte of a compressed body. It is above every version of uncompressed bodies, so an older actgent rejects it."""
_LEVEL, _WINDOW_BITS, _MEMORY_LEVEL = 1, 12, 4
"""Parameters of zlib. The default window of 32 KB costs 14 us more per batch than a window of 4 KB."""
_NAMES = (
    b"\x92\xa6opened\x83\xa5owner\x81\xa4name\xaacreated_at\xcbA\xda\xa5agent\xb0parent_id\xacparent_agent"
    b"\x92\xa6closed\x92\xa3due\x92\xa7changed\x92\xa8answered\x92\xa5fired\x92\xa5rated\x92\xa9suspended\x92\xa7resumed"
    b"\xa8priority\xa8metadata\xa7channel\xa7subject\xa6status\xa5error\xa5media\xa6native\xa8thinking\xa9signature"
    b"\xa7fitting\xa6shares\xa9shortened\xa4room\xa6tokens\xacinput_tokens\xadoutput_tokens\xb0cached_tokens"
    b"\xb0reasoning_tokens\xa5usage\xa4cost\xa6reason\xa4kind\xa4user\xa6system\xa5agent\xa6answer\xa5value\xa4data"
    b'{"status": "success", "message": "", "result": {"error": "", "id": ", "name": ": true, ": false, ": null, "'
    b"\x01\x91\x92\xa8accepted\x81\xa7message\x85\xa2id\xa2m0\xaasession_id\xa6sender\x81\xa4name\xa3ada"
    b"\xa5parts\x91\x92\xa4text\x81\xa4text\xda\x01\xaacreated_at\xcbA\xda"
    b"\x01\x92\x92\xa8appended\x83\xaamessage_id\xa6limits\x81\xabmodel_calls\xa2at\xcbA\xda"
    b"\x92\xa5spent\x82\xa4turn\xabmodel_calls\x01"
    b"\x01\x94\x92\xa9delivered\x81\xa3ids\x91\xb5\x92\xa5spent\x82\xa4turn\xa7seconds\xcb?"
    b"\x92\xa5ended\x81\xaamessage_id\x92\xa8accepted\x81\xa7message\x85\xa2id"
    b"\x01\x92\x92\xa5spent\x82\xa4turn\xa7seconds\xcb?\x92\xa4said\x86\xa7message\x87\xa2id\xb5"
    b"\xaasession_id\xa6sender\x82\xa4name\xa4kind\xa9assistant\xa5parts\x91\x92\xa4text\x81\xa4text"
    b"\xaacreated_at\xcbA\xda\xaecorrelation_id\xaccausation_id\xb5\xa4stop\xa3end\xa5model\xa5calls\x03\xa6prompt\xa8"
    b"\xa7seconds\xcb?"
    b"\x01\x91\x92\xa4said\x82\xa7message\x87\xa2id\xb5\xaasession_id\xa6sender\x82\xa4name\xa5tools\xa4kind\xa4tool"
    b"\xa5parts\x91\x92\xa6result\x84\xa7call_id\xa9tool_name\xa2id/result\xa7content\xda"
    b"\xaacreated_at\xcbA\xda\xaecorrelation_id\xaccausation_id\xb5\xa5calls\x01"
    b"\x01\x92\x92\xa9delivered\x81\xa3ids\x91/result\x92\xa5spent\x82\xa4turn\xabmodel_calls\x01"
    b"\x01\x94\x92\xa5spent\x82\xa4turn\xa7seconds\xcb?\x92\xa4said\x86\xa7message\x87\xa2id\xb5"
    b"\xaasession_id\xa6sender\x82\xa4name\xa4kind\xa9assistant\xa5parts\x91\x92\xa4call\x83\xa4name\xa9arguments\x83"
    b"\xa2id\xaacreated_at\xcbA\xda\xaecorrelation_id\xaccausation_id\xb5\xa4stop\xaatool_calls\xa5model\xa5calls\x02"
    b"\xa6prompt\xa8\xa7seconds\xcb?\x92\xa5spent\x84\xa4turn\xa2of\xb5\xaatool_calls\x01\xa7seconds\xcb?"
    b"\x92\xa7started\x81\xa8call_ids\x91"
)
"""Dictionary of the compression. It must never change, since journals on disk need it. Another dictionary needs
another first byte.
"""
_BYTE = bytes([COMPRESSED])
_new = zlib.compressobj(_LEVEL, zlib.DEFLATED, -_WINDOW_BITS, _MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY, _NAMES)
SHORTEST_BYTES = 400
"""Length in bytes from which a body is compressed. A fifth of BFCL's bodies are that long and account for two thirds
of the savings.
"""


def compress(body: bytes) -> bytes:
    """Compress a record body.

    Return the body unchanged if it is short, or if compression does not make it shorter.
    """
    if len(body) < SHORTEST_BYTES:
        return body
    compressor = _new.copy()  # a new one takes twice as long
    made = b"".join((_BYTE, compressor.compress(body), compressor.flush()))
    return made if len(made) < len(body) else body


def decompress(body: bytes) -> bytes:
    """Decompress a body that `compress` returned. An uncompressed body is returned unchanged."""
    if body[0] != COMPRESSED:
        return body
    return zlib.decompressobj(-_WINDOW_BITS, _NAMES).decompress(body[1:])
