"""actgent.tools.schemas.argument_validation: validation of arguments, and untrusted schemas."""

import copy
import json
import re
import types
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from actgent.errors import ConfigurationError, InvalidArguments
from actgent.tools.schemas.argument_validation import ArgumentsValidator

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
        "free": {},
        "code": {"type": "string", "pattern": "^(a+)+$"},
    },
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"tag": {"type": "string"}},
}
VALIDATOR = ArgumentsValidator("x", SCHEMA)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"a": "five"}, '/a: "five" is not of type "integer"'),
        ({"a": "1.9"}, '/a: "1.9" is not of type "integer"'),
        ({"a": 1.9}, "/a: 1.9 is not"),
        ({"a": True}, "/a: true is not"),
        ({"a": float("nan")}, "/a: "),
        ({"a": 1, "tags": ["x", 5]}, "/tags/1: 5 is not"),
        ({}, '"a" is a required property'),
        ({"a": 1, "b": 2}, "'b' was unexpected"),
        ({"a": "5", "tags": [1, 2, 3, 4, 5]}, "; and 1 more"),
        ({1: 2}, "Dict key must be str"),
        ("{bad", "must be a JSON object"),
        ("{}", "must be a JSON object"),
        (["a"], "must be a JSON object"),
        (None, "must be a JSON object"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, reason):
    """Invalid arguments are rejected with the tool's name and the path."""
    with pytest.raises(InvalidArguments) as caught:
        VALIDATOR.validate(arguments)
    assert str(caught.value).startswith('Invalid arguments for tool "x": ')
    assert reason in str(caught.value)


COERCED = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "deep": {"$ref": "#/$defs/Deep"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "text": {"type": "string"},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "any": {},
        "level": {"enum": [1, 2]},
        "mixed": {"enum": [1, "2"]},
        "flags": {"type": "array", "items": {"type": "boolean"}},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
        "table": {"type": "object", "additionalProperties": {"type": "number"}},
    },
    "$defs": {
        "Deep": {
            "type": "object",
            "properties": {"on": {"type": ["boolean", "null"]}, "next": {"$ref": "#/$defs/Deep"}},
        }
    },
}


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({"count": "3"}, {"count": 3}),
        ({"count": " -3 "}, {"count": -3}),
        ({"ratio": "1.5"}, {"ratio": 1.5}),
        ({"ratio": "2"}, {"ratio": 2}),
        ({"ratio": "1e3"}, {"ratio": 1000.0}),
        ({"deep": {"on": "true", "next": {"on": "False"}}}, {"deep": {"on": True, "next": {"on": False}}}),
        ({"deep": {"on": "null"}}, {"deep": {"on": None}}),
        ({"maybe": "4"}, {"maybe": 4}),
        ({"level": "2"}, {"level": 2}),
        ({"flags": ["true", False]}, {"flags": [True, False]}),
        ({"pair": ["1", "1"]}, {"pair": [1, "1"]}),
        ({"table": {"a": "1"}}, {"table": {"a": 1}}),
        (
            {"count": "3", "text": "3", "either": "3", "any": "3", "mixed": "2"},
            {"count": 3, "text": "3", "either": "3", "any": "3", "mixed": "2"},
        ),
    ],
)
def test_quoted_values_are_converted_unless_text_is_permitted(sent, read):
    """Numbers and booleans in quotes, as small models write them, are converted. If the schema permits text, the value stays text."""
    before = copy.deepcopy(sent)
    found = ArgumentsValidator("x", COERCED).validate(sent)
    assert json.dumps(found) == json.dumps(read)
    assert sent == before


@pytest.mark.parametrize(
    "sent",
    [
        {"count": "3.0"},
        {"count": "1_000"},
        {"count": "0x10"},
        {"count": "٣"},
        {"count": "007"},
        {"count": ""},
        {"count": "99999999999999999999999"},
        {"count": True},
        {"ratio": "nan"},
        {"ratio": "1,5"},
        {"flags": ["yes"]},
        {"flags": [1]},
        {"level": "3"},
        {"text": 3},
        {"flags": "true"},
        {"flags": "[true]"},
        {"deep": "{}"},
    ],
)
def test_other_values_are_not_coerced(sent):
    """An ambiguous or lossy conversion is rejected, so that the model corrects the value."""
    with pytest.raises(InvalidArguments):
        ArgumentsValidator("x", COERCED).validate(sent)


def test_long_reason_is_cut():
    """The error does not repeat a long argument in full."""
    with pytest.raises(InvalidArguments) as caught:
        VALIDATOR.validate({"a": "x" * 10_000})
    assert len(str(caught.value)) < 500


def test_many_errors_are_not_searched_for():
    """The validator stops at the first error, because a search for all errors blocked the event loop for seconds."""
    with pytest.raises(InvalidArguments) as caught:
        VALIDATOR.validate({"a": 1, "tags": [5] * 100_000})
    assert str(caught.value) == 'Invalid arguments for tool "x": /tags/0: 5 is not of type "string"'


def test_arguments_are_copied():
    """A tool that changes its arguments does not change the recorded call."""
    given = types.MappingProxyType({"a": 1, "free": {"deep": [1]}})
    copy = VALIDATOR.validate(given)
    copy["free"]["deep"].append(2)
    assert given["free"] == {"deep": [1]}


def test_too_deep_arguments_are_an_error_result():
    """Arguments deeper than the interpreter's recursion limit are an error result and not a crash."""
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidArguments):
        VALIDATOR.validate({"a": 1, "free": deep})


def test_backtracking_pattern_is_bounded():
    """A backtracking pattern does not block the event loop."""
    with pytest.raises(InvalidArguments):
        VALIDATOR.validate({"a": 1, "code": "a" * 5_000 + "b"})


@pytest.mark.parametrize(
    "reference", ["http://localhost:9/x.json", "https://example.org/x", "other.json", "#/nowhere"]
)
def test_reference_to_another_document_is_rejected(reference):
    """A schema never fetches a document. The tool is rejected when it is created."""
    with pytest.raises(ConfigurationError, match="tool 'x' is not usable"):
        ArgumentsValidator("x", {"type": "object", "properties": {"a": {"$ref": reference}}})


def test_reference_to_a_file_is_rejected(tmp_path: Path):
    """An existing file with a schema is not read."""
    file = tmp_path / "schema.json"
    file.write_text('{"type": "integer"}', encoding="utf-8")
    with pytest.raises(ConfigurationError, match="references to other documents"):
        ArgumentsValidator("x", {"type": "object", "properties": {"a": {"$ref": file.as_uri()}}})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "dict"}}},
        {"type": "object", "$schema": "http://example.org/mine"},
        {"type": "object", "default": object()},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
    ],
)
def test_invalid_json_schema_is_rejected(schema):
    """An invalid JSON Schema is rejected when the tool is created."""
    with pytest.raises(ConfigurationError, match="JSON Schema of tool 'x'"):
        ArgumentsValidator("x", schema)


@given(
    st.dictionaries(
        st.text() | st.sampled_from(list(SCHEMA["properties"])), st.none() | st.integers() | st.text()
    )
)
@example({"a": str(2**64 - 1)})
@example({"a": str(2**64)})
def test_validate_returns_an_object_or_a_reason(arguments):
    """An object is returned, with the text of a 64-bit integer as a number, or rejected with a reason."""
    expected = dict(arguments)
    number = arguments.get("a")
    is_integer = isinstance(number, str) and re.fullmatch(r"\s*-?(0|[1-9][0-9]*)\s*", number)
    if is_integer and -(2**63) <= int(number) < 2**64:
        expected["a"] = int(number)
    fits = isinstance(expected.get("a"), int) and arguments.keys() <= {"a", "free"}
    try:
        assert VALIDATOR.validate(arguments) == expected
    except InvalidArguments:
        assert not fits
    else:
        assert fits or "code" in arguments


@pytest.mark.parametrize(
    ("more", "passes"),
    [
        ({}, False),
        ({"additionalProperties": True}, True),
        ({"patternProperties": {"^b": {}}}, True),
        ({"allOf": [{"properties": {"b": {}}}]}, True),
        ({"properties": {}}, True),
    ],
)
def test_arguments_outside_of_the_schema_are_rejected(more, passes):
    """A schema without a rule for further arguments rejects them. An explicit rule has priority."""
    validator = ArgumentsValidator("x", {"type": "object", "properties": {"a": {}}, **more})
    if passes:
        assert validator.validate({"b": 1}) == {"b": 1}
    else:
        with pytest.raises(InvalidArguments, match="'b' was unexpected"):
            validator.validate({"b": 1})
