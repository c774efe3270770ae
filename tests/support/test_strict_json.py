"""The strict rule for JSON: the same text is checked, used, stored and returned."""

import json
from datetime import UTC, datetime
from enum import Enum

import pytest
from hypothesis import given, strategies as st

from actgent.errors import ParseError
from actgent.support.strict_json import MAX_DEPTH, check_depth, encode_json, load_document, loads


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"n": NaN}', "NaN"),
        ('{"n": Infinity}', "Infinity"),
        ('{"n": 1, "n": 2}', "same key twice"),
        ('{"a": {"n": 1, "\\u006e": 1}}', "same key twice"),
        ("9E9999", "too large"),
        ("1e-9999", "too small"),
        ("18446744073709551616", "64 bits"),
        ('"\\ud800"', "surrogate"),
        ("[" * 101 + "]" * 101, "deeper than 100"),
        ('{"a":' * 100_000, "deeper than 100"),
        ('{"a": 1} x', "invalid JSON"),
    ],
)
def test_unstorable_json_is_rejected(text, reason):
    """The error has the reason."""
    with pytest.raises(ParseError, match=reason):
        loads(text)


def test_storable_json_is_accepted():
    """Cases: zero in all spellings, surrogate pairs, maximum depth and maximum size."""
    assert loads("[0.0, -0.0, 0e5, 1e-300]") == [0.0, 0.0, 0.0, 1e-300]
    assert str(loads("-0.0")) == "-0.0"
    assert loads('"\\ud83d\\ude00"') == "😀"
    assert loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert len(loads(json.dumps([[]] * 1_000))) == 1_000


@given(st.integers(0, 300))
def test_depth_is_counted_without_recursion(depth):
    """A Python value has the same depth as its JSON text."""
    value = []
    for _ in range(depth):
        value = [value, 1]
    if depth < MAX_DEPTH:
        check_depth(value)
    else:
        with pytest.raises(ParseError):
            check_depth(value)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, b"[" * 100_000, "[" * 101 + "]" * 101, '{"a":' * 101 + "1" + "}" * 101]
)
def test_deeply_nested_untrusted_document_is_rejected(text):
    """The error is the same as for any invalid JSON text, never a RecursionError."""
    with pytest.raises(ValueError, match="nested deeper than 100 levels"):
        load_document(text)
    assert load_document("[" * 100 + "]" * 100)
    assert load_document('{"a": 1, "a": NaN}')


# --- encoding ---------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


class Silent:
    def __repr__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2**64, 2**64),
        (-(2**70), -(2**70)),
        ("\ud800", "\ufffd"),
        ("a\ud83d\ude00\udc00b", "a😀\ufffdb"),
        ({"\ud800": 1, 2: 3, None: 4, (1, 2): 5}, {"\ufffd": 1, "2": 3, "null": 4, "[1, 2]": 5}),
        (float("nan"), None),
        (Colour.RED, "red"),
        (datetime(2030, 1, 2, tzinfo=UTC), "2030-01-02T00:00:00+00:00"),
        (range(3), "range(0, 3)"),
        (Silent(), "<Silent>"),
    ],
)
def test_each_value_has_an_encoding(value, expected):
    """Each value is encoded alone and with an integer that needs the slow encoder."""
    for given_value, expected_value in ((value, expected), ([value, 2**70], [expected, 2**70])):
        assert json.loads(encode_json(given_value)) == expected_value


def test_endless_values_are_cut():
    """Cases: a value that contains itself twice, a deep value, and an integer of 10,000 digits."""
    value = {"n": 1}
    value["a"] = value["b"] = value
    assert json.loads(encode_json(value)) == {"n": 1, "a": "<dict>", "b": "<dict>"}
    deep = []
    for _ in range(5000):
        deep = [deep]
    assert json.loads(encode_json(deep))
    assert json.loads(encode_json(10**10_000)) == "<int>"


def test_default_converts_other_types():
    assert json.loads(encode_json({"found": {2**70}}, sorted)) == {"found": [2**70]}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    )
)
def test_encoded_values_are_decoded_again(value):
    assert json.loads(encode_json(value)) == value
