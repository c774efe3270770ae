"""Encoding of objects to bytes and decoding of bytes to objects."""

import contextlib
import enum
import math
import typing
from datetime import UTC, datetime, timedelta, timezone

import attrs
import msgpack
import pytest
from hypothesis import given, strategies as st

from actgent.approvals import Approval, Approve, Edit, Expire, Reject, Respond, Withdraw
from actgent.errors import NotSerializable, WireError
from actgent.journal.record_types import (
    PART_TAGS,
    RECORD_TAGS,
    WIRE,
    AgentMessageRecord,
    CallFinishedRecord,
    CallsStartedRecord,
    DeliveryRecord,
    FailureRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    Record,
    SessionClosedRecord,
    SessionCreatedRecord,
    StateChangeRecord,
)
from actgent.messages import (
    File,
    Image,
    Message,
    Opaque,
    Priority,
    Sender,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)
from actgent.support.tagged_codec import Packers, TaggedCodec

text = st.text(st.characters(), max_size=20)
names = text.filter(str.strip)
moments = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-3, minutes=-30))])).map(
    lambda moment: moment.replace(fold=0)  # means nothing where the offset is fixed
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | text
    | st.binary(max_size=20)
    | moments
)
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(text | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)
objects = st.dictionaries(text, plain, max_size=3)
results = st.builds(
    ToolResult,
    id=text,
    call_id=text,
    tool_name=text,
    status=st.sampled_from(["success", "error", "cancelled", "outcome_unknown"]),
    content=text,
    error=st.none() | text,
    native=st.booleans(),
)
parts = st.one_of(
    st.builds(Text, text),
    st.builds(Image, media_type=text, data=st.binary()),
    st.builds(File, media_type=text, url=text, name=text),
    st.builds(Thinking, text, text, objects),
    st.builds(Opaque, text, objects),
    st.builds(ToolCall, text, objects | text, text, st.none() | text, st.booleans(), st.booleans()),
    results,
)
seconds = st.floats(allow_nan=False, allow_infinity=False)
messages = st.builds(
    Message,
    id=text,
    session_id=text,
    sender=st.builds(Sender, names, st.sampled_from(["user", "assistant", "agent", "tool", "system"])),
    parts=st.lists(parts, max_size=4).map(tuple),
    priority=st.sampled_from(Priority),
    deadline=st.none() | seconds,
    correlation_id=st.none() | text,
    created_at=seconds,
    stage=st.none() | text,
    cut=st.booleans(),
)
usages = st.builds(Usage, input_tokens=st.integers(0, 10**9), cost=st.none() | seconds)
ids = st.lists(text, max_size=3).map(tuple)
approvals = st.builds(
    Approval,
    id=text,
    session_id=text,
    agent=text,
    call_id=text,
    tool_name=text,
    arguments=objects,
    question=text,
    form=st.none() | objects,
    again=st.booleans(),
    created_at=seconds,
    deadline=seconds,
)
decisions = (
    st.builds(Approve, text)
    | st.builds(Reject, text)
    | st.builds(Edit, objects, text)
    | st.builds(Respond, plain)
    | st.builds(Expire)
    | st.builds(Withdraw)
)
fields = {
    "message": messages,
    "approval": approvals,
    "decision": decisions,
    "result": results,
    "changes": objects,
    "usage": usages,
    "call_ids": ids,
    "ids": ids,
    "failed": st.none() | text,
    "owner": st.builds(Sender, names),
    "parent_id": st.none() | text,
    "created_at": seconds,
    "at": seconds,
    "message_id": text,
    "stop": text,
    "calls": st.integers(0, 30),
    "score": st.floats(0, 1),
}
records = st.one_of(
    st.builds(cls, **{name: fields[name] for name in cls.__annotations__ if name in fields})
    for cls in RECORD_TAGS.values()
)


@given(st.lists(records, max_size=3))
def test_records_survive_a_round_trip(several):
    """The test covers all records with all fields, and compares the types."""
    assert WIRE.decode(WIRE.encode(several, Record), Record) == tuple(several)


@given(plain)
def test_plain_data_keeps_its_types(value):
    """Tuples, bools, bytes and datetimes with an offset keep their types."""
    (back,) = WIRE.decode(WIRE.encode([StateChangeRecord(changes={"k": value})], Record), Record)
    assert repr(back.changes["k"]) == repr(value)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_decode_or_raise_a_typed_error(data):
    """Decoding raises no other exception."""
    with contextlib.suppress(WireError):
        assert all(type(record) in RECORD_TAGS.values() for record in WIRE.decode(data, Record))


def test_tags_never_change():
    """Stored journals contain the tags."""
    assert sorted(PART_TAGS) == ["call", "file", "image", "opaque", "result", "text", "thinking"]
    first = {
        "accepted": MessageAcceptedRecord,
        "appended": MessageAppendedRecord,
        "changed": StateChangeRecord,
        "closed": SessionClosedRecord,
        "delivered": DeliveryRecord,
        "ended": MessageEndRecord,
        "finished": CallFinishedRecord,
        "opened": SessionCreatedRecord,
        "said": AgentMessageRecord,
        "started": CallsStartedRecord,
    }
    assert {tag: RECORD_TAGS[tag] for tag in first} == first


def test_encoded_form_never_changes():
    """The encoding has a tag and the fields whose values differ from the default."""
    record = AgentMessageRecord(
        message=Message(id="m", session_id="s", sender=Sender("a"), parts=(Text("x"),), created_at=1.5)
    )
    fields = {"id": "m", "session_id": "s", "sender": {"name": "a"}, "parts": [["text", {"text": "x"}]]}
    expected = [["said", {"message": {**fields, "created_at": 1.5}}]]
    assert msgpack.unpackb(WIRE.encode([record], Record)) == expected


def test_nan_survives_a_round_trip():
    """Infinity also survives."""
    (back,) = WIRE.decode(
        WIRE.encode([StateChangeRecord(changes={"k": [math.nan, math.inf]})], Record), Record
    )
    assert math.isnan(back.changes["k"][0])
    assert back.changes["k"][1] == math.inf


@pytest.mark.parametrize(
    "value",
    [{1}, object(), Priority.LOW, datetime(2026, 1, 1), 1j, print, Text("x"), range(3)],  # noqa: DTZ001
)
def test_non_plain_data_is_named_in_the_error(value):
    """The error has the path of the value and its type. No value is converted."""
    with pytest.raises(NotSerializable, match=r"changes\.outer\.inner .* type "):
        WIRE.encode([StateChangeRecord(changes={"fine": 1, "outer": {"inner": [value]}})], Record)


def test_too_deep_data_is_rejected():
    """The encoder raises NotSerializable."""
    value = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(NotSerializable):
        WIRE.encode([StateChangeRecord(changes={"k": value})], Record)


def test_class_without_a_tag_is_rejected():
    """The error names the class."""
    with pytest.raises(NotSerializable, match="Sender"):
        WIRE.encode([Sender("a")], Record)


@pytest.mark.parametrize(
    "plain",
    [
        [["newer", {}]],
        [["ended", {"message_id": "x", "newer": 1}]],
        [["ended", {"message_id": 5}]],
        [["ended", {"message_id": b"x"}]],
        [["ended", {"message_id": "x", "failed": True}]],
        [["ended", {}]],
        [["said", {"message": {}, "calls": True}]],
        [["changed", {"changes": []}]],
        [["changed", {"changes": msgpack.ExtType(99, b"")}]],
        [["started", {"call_ids": "ab"}]],
        [["started", {"call_ids": [1]}]],
        [["closed"]],
        ["closed"],
        5,
        {},
        "text",
    ],
)
def test_unknown_versions_are_rejected(plain):
    """Cases: unknown tags, fields and types, missing fields, and wrong types. No value is converted."""
    with pytest.raises(WireError):
        WIRE.decode(msgpack.packb(plain), Record)


def test_default_fields_are_not_encoded():
    """A record with default values has few bytes."""
    assert len(WIRE.encode([SessionClosedRecord()], Record)) <= 10
    assert len(WIRE.encode([MessageEndRecord(message_id="m")], Record)) <= 25


def test_too_deep_bytes_raise_our_error():
    """Nested tuples, which are encoded from the inside out, raise NotSerializable as nested lists do."""
    for make in (lambda inner: (inner,), lambda inner: [inner]):
        value = 1
        for _ in range(5000):
            value = make(value)
        with pytest.raises(NotSerializable, match=r"too deep|too large"):
            WIRE.encode([StateChangeRecord(changes={"deep": value})], Record)


def test_wrong_field_type_is_named_by_its_class():
    """An unknown field is named in the error. A known field must have its declared type."""
    fields = {"owner": {"name": "ada", "kind": "user"}, "created_at": 1}
    assert WIRE.decode(_packed("opened", fields), Record) == (
        SessionCreatedRecord(owner=Sender("ada"), created_at=1),
    )
    for wrong, text in (
        ({"rank": 1}, "'rank' of SessionCreatedRecord"),
        ({"transient": 1}, "must be bool, not int"),
        ({"owner": []}, "not what this version"),
    ):
        with pytest.raises(WireError, match=text):
            WIRE.decode(_packed("opened", fields | wrong), Record)


def _packed(tag, fields):
    return msgpack.packb([[tag, fields]])


def test_packer_is_reused_with_one_user_at_a_time():
    """A reused packer returns the bytes of a new packer: in a nested call, after a long value, and after a failure."""

    def extend(value):
        if isinstance(value, set):
            return packers.pack(sorted(value))
        raise TypeError("a value of another kind")

    packers = Packers(default=extend)
    short = [1, "a", {"b": [2.5, None]}]
    for value in (short, [short, {3, 1, 2}, short], ["x" * 1_000_000, {1}], short):
        assert packers.pack(value) == msgpack.packb(value, default=extend)
    with pytest.raises(TypeError, match="another kind"):
        packers.pack([short, {1}, object()])
    assert packers.pack(short) == msgpack.packb(short)


class Colour(enum.IntEnum):
    RED = 0
    BLUE = 3


@attrs.frozen
class Painted:
    colour: Colour = Colour.RED
    second: Colour | None = None
    others: tuple[Colour, ...] = ()


def test_integer_enum_is_decoded_as_enum():
    """A member of an `IntEnum` is decoded as this member: as a field, in an optional field and in a tuple."""
    wire = TaggedCodec({Painted: {"painted": Painted}})
    painted = Painted(Colour.BLUE, Colour.BLUE, (Colour.BLUE, Colour.RED))
    (read,) = wire.decode(wire.encode([painted], Painted), Painted)
    assert read == painted
    assert {type(each) for each in (read.colour, read.second, *read.others)} == {Colour}


def test_unknown_enum_member_is_rejected():
    """A number without an enum member is a `WireError` that names the enum."""
    wire = TaggedCodec({Painted: {"painted": Painted}})
    with pytest.raises(WireError, match="7 is not a Colour"):
        wire.decode(msgpack.packb([["painted", {"colour": 7}]]), Painted)


def enums_in(kind, seen):
    """Yield the enum classes in a type, and the classes on the path to them."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        yield kind
    elif isinstance(kind, type) and attrs.has(kind) and kind not in seen:
        seen.add(kind)
        for field in attrs.fields(attrs.resolve_types(kind)):
            yield from enums_in(field.type, seen)
    for inner in typing.get_args(kind):
        yield from enums_in(inner, seen)


@pytest.mark.parametrize("cls", RECORD_TAGS.values(), ids=lambda cls: cls.__name__)
def test_record_enums_are_decoded_as_members(cls):
    """Each enum field of a record is decoded as a member, never as a number or text."""
    for field in attrs.fields(attrs.resolve_types(cls)):
        if isinstance(field.type, type) and issubclass(field.type, enum.Enum):
            required = {
                each.name: made_up(each.type) for each in attrs.fields(cls) if each.default is attrs.NOTHING
            }
            for member in field.type:
                record = cls(**required, **{field.name: member})
                (read,) = WIRE.decode(WIRE.encode([record], Record), Record)
                assert type(getattr(read, field.name)) is field.type
                assert read == record


def made_up(kind):
    """Return a value for a required field."""
    return {str: "x", float: 1.0, int: 1, bool: True}[kind]


def test_the_enums_in_records_are_known():
    """The test lists the enums in records, so that a new enum gets a test."""
    found = set()
    for cls in RECORD_TAGS.values():
        found.update(enums_in(cls, set()))
    assert found == {Priority}


def nested_tuples(levels):
    """Return the bytes of nested tuples, as an attacker could write them: 6 bytes for each level."""
    value = b"\xc0"
    for _ in range(levels):
        value = b"\xc9" + (len(value) + 1).to_bytes(4, "big") + b"\x02" + b"\x91" + value
    return b"\x91" + value


@pytest.mark.parametrize("levels", [65, 200, 1000, 20_000])
def test_nested_extensions_are_rejected(levels):
    """Each level takes 50 KB of the C stack. A few hundred levels once ended the interpreter with SIGSEGV."""
    with pytest.raises(WireError, match="64 nested tuples"):
        WIRE.decode(nested_tuples(levels), Record)


def test_unreadable_tuples_are_not_encoded():
    """Encoding and decoding have the same depth limit."""
    value = ()
    for _ in range(63):
        value = (value,)
    (back,) = WIRE.decode(WIRE.encode([StateChangeRecord(changes={"k": value})], Record), Record)
    assert back.changes["k"] == value
    with pytest.raises(NotSerializable, match="64 nested tuples"):
        WIRE.encode([StateChangeRecord(changes={"k": (value,)})], Record)


@pytest.mark.parametrize(
    ("record", "stored"),
    [
        (MessageEndRecord(message_id="m", failed="model", error="ModelError", error_text="no"), b"words"),
        (FailureRecord(message_id="m", kind="model", error="ModelError", error_text="no"), b"words"),
        (MessageAppendedRecord(message_id="m", is_repeated=True), b"again"),
    ],
)
def test_renamed_fields_keep_their_stored_names(record, stored):
    """The name of a field in the journal stays the same if its attribute is renamed, so that old journals can be read."""
    data = WIRE.encode([record], Record)
    assert stored in data
    assert WIRE.decode(data, Record) == (record,)
