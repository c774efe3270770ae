"""actgent.tools.outputs.result_text: results and exceptions of tools as text."""

import array
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import ipaddress
import json
import pathlib
import re
import types
import uuid
import zoneinfo

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given, strategies as st

from actgent.errors import ToolError, ToolTimeout
from actgent.tools.outputs.result_text import describe, to_text, truncate


class Colour(enum.Enum):
    RED = "red"


class Word(enum.StrEnum):
    HI = "hi"


@attrs.frozen
class Point:
    x: int
    day: dt.date


@dataclasses.dataclass
class Box:
    items: list[object]


class Model(pydantic.BaseModel):
    x: int
    day: dt.date


class Note(msgspec.Struct):
    text: str


class Array:
    def tolist(self):
        return [1, 2]


DAY = dt.date(2026, 11, 22)

WRITTEN = [
    ("text", "text"),
    ("", ""),
    ('{"a"', '{"a"'),
    ("{{ 7 * 7 }} <b>[red]", "{{ 7 * 7 }} <b>[red]"),
    (Word.HI, "hi"),
    (5, "5"),
    (2.5, "2.5"),
    (True, "true"),
    (None, "null"),
    ("ä", "ä"),
    (["ä", 1], '["ä", 1]'),
    ((1, 2), "[1, 2]"),
    ({"a": {1, 3, 2}}, '{"a": [1, 2, 3]}'),
    ({1: "a"}, '{"1": "a"}'),
    (collections.deque([1]), "[1]"),
    ({"a": 1}.keys(), '["a"]'),
    (range(3), "[0, 1, 2]"),
    (DAY, '"2026-11-22"'),
    (dt.datetime(2026, 11, 22, tzinfo=dt.UTC), '"2026-11-22T00:00:00+00:00"'),
    (dt.time(10), '"10:00:00"'),
    (decimal.Decimal("1.10"), '"1.10"'),
    (uuid.UUID(int=0), '"00000000-0000-0000-0000-000000000000"'),
    (pathlib.PurePosixPath("a/b"), '"a/b"'),
    (Colour.RED, '"red"'),
    (Point(1, DAY), '{"x": 1, "day": "2026-11-22"}'),
    ([Box([Point(1, DAY)])], '[{"items": [{"x": 1, "day": "2026-11-22"}]}]'),
    (Model(x=1, day=DAY), '{"x": 1, "day": "2026-11-22"}'),
    (Note("a"), '{"text": "a"}'),
    (Array(), "[1, 2]"),
    (collections.ChainMap({"a": 1}), '{"a": 1}'),
    ("\ud800", "?"),
    (["\ud800"], '["?"]'),
    (dt.timedelta(minutes=5), '"PT300S"'),
    (dt.timedelta(days=-1, microseconds=1), '"-PT86399.999999S"'),
    ([Box([dt.timedelta(seconds=1.5)])], '[{"items": ["PT1.5S"]}]'),
    (dt.UTC, '"UTC"'),
    (zoneinfo.ZoneInfo("Europe/Berlin"), '"Europe/Berlin"'),
    (fractions.Fraction(1, 3), '"1/3"'),
    (1 + 2j, '"(1+2j)"'),
    (ipaddress.ip_address("127.0.0.1"), '"127.0.0.1"'),
    (ipaddress.ip_network("10.0.0.0/8"), '"10.0.0.0/8"'),
    (b"x", "x"),
    ([bytearray(b"\xff\x00")], '["/wA="]'),
    (memoryview("ä".encode()), "ä"),
    (float("nan"), '"NaN"'),
    ({"a": [float("inf")]}, '{"a": ["Infinity"]}'),
    (ValueError("bad"), "ValueError: bad"),
    ([KeyError("k")], "[\"KeyError: 'k'\"]"),
    (types.SimpleNamespace(a=DAY), '{"a": "2026-11-22"}'),
    (re.compile("a+"), '"a+"'),
    (re.search("(?P<x>a)b", "cab"), '{"match": "ab", "span": [1, 3], "groups": {"x": "a"}}'),
    (array.array("i", [1, 2]), "[1, 2]"),
    ({(1, 2): 3}, '{"[1, 2]": 3}'),
    (
        {DAY: {Colour.RED: [{uuid.UUID(int=0): 1}]}},
        '{"2026-11-22": {"red": [{"00000000-0000-0000-0000-000000000000": 1}]}}',
    ),
    ({1: {None: {True: {DAY: 2}}}}, '{"1": {"null": {"true": {"2026-11-22": 2}}}}'),
]


@pytest.mark.parametrize(("value", "text"), WRITTEN)
def test_value_becomes_text(value, text):
    """Text is unchanged. Other values are written as JSON."""
    assert to_text(value) == text
    assert type(to_text(value)) is str


class Hostile:
    def __init__(self):
        self.me = self

    def __repr__(self):
        raise RuntimeError("no repr")

    __str__ = __repr__

    def model_dump(self):
        raise LookupError("no dump")


cycle: list[object] = []
cycle.append(cycle)
box_cycle = Box([])
box_cycle.items.append(box_cycle)
deep: list[object] = []
for _ in range(100_000):
    deep = [deep]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (cycle, "Circular"),
        (box_cycle, "Circular"),
        (deep, "Recursion"),
        (object(), "object is not a JSON value"),
        ((n for n in range(3)), "generator is not a JSON value"),
        (int, "type is not a JSON value"),
        (Box, "type is not a JSON value"),
        (Hostile(), "LookupError: no dump"),
        ([10**5000], "integer string conversion"),
        (len, "builtin_function_or_method is not a JSON value"),
    ],
)
def test_unserializable_value_is_a_tool_error(value, reason):
    """A value that cannot be written is a ToolError with a clear message, whatever its methods do."""
    with pytest.raises(ToolError, match="the result cannot be converted to JSON") as caught:
        to_text(value)
    assert reason in str(caught.value)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_written_json_values_can_be_read(value):
    """Written JSON values can be read again."""
    assert json.loads(to_text([value])) == [value]


@given(st.text(max_size=300), st.integers(0, 200))
def test_text_is_bounded(text, limit):
    """No text is longer than the limit. A shorter text is unchanged."""
    short = truncate(text, limit)
    assert len(short) <= limit
    assert short == text or limit < 100 or f"{len(text)} characters" in short


def test_notice_names_the_full_size():
    """The notice is at the end."""
    text = truncate("x" * 100_000, 60_000)
    assert len(text) == 60_000
    assert text.endswith("[truncated: the text has 100000 characters; request less at a time]")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("no such city"), "no such city"),
        (ToolError(), "ToolError"),
        (ToolTimeout("x", 5), "tool 'x' did not finish within 5 s"),
        (ValueError("bad"), "ValueError: bad"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
        (ValueError("\ud800"), "ValueError: ?"),
        (ExceptionGroup("g", [ValueError("a"), ExceptionGroup("h", [ToolError("b")])]), "ValueError: a; b"),
        (ExceptionGroup("g", [ValueError("a"), ValueError("a")]), "ValueError: a"),
    ],
)
def test_error_text_is_the_message_or_includes_the_class(error, text):
    """A ToolError is its message, other errors include their class, and groups are flattened."""
    assert describe(error) == text


def test_unprintable_error_is_named_by_its_class():
    """An exception that cannot be converted to text is named by its class."""

    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert describe(Mute()) == "Mute (its text is not readable)"
