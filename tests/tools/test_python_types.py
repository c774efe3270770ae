"""actgent.tools.schemas.python_types: conversion of types to JSON Schema, and of JSON to types."""

import dataclasses
import datetime as dt
import enum
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import attrs
import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, strategies as st

from actgent.errors import ConfigurationError
from actgent.tools.schemas import compile_type, schema_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@attrs.define
class Point:
    """A place on a map.

    Attributes:
        x: Metres to the east.
    """

    x: int
    y: int = attrs.field(default=0, validator=attrs.validators.ge(0))


@attrs.frozen
class Node:
    name: str = attrs.field(converter=str.strip)
    children: list["Node"] = attrs.field(factory=list)


@dataclasses.dataclass
class Line:
    start: Point
    end: Point | None = None
    tags: list[str] = dataclasses.field(default_factory=list)


class Trip(TypedDict):
    route: list[Line]
    note: NotRequired[str]


class Pair(NamedTuple):
    left: int
    right: str


def cents(amount: str) -> int:
    """Read an amount such as 1.50."""
    return round(float(amount) * 100)


@attrs.define
class Bill:
    _owner: str
    amount: int = attrs.field(converter=cents)
    total: int = attrs.field(init=False, default=0)


VALUES = [
    (int, 5, 5),
    (float, 1, 1.0),
    (float, 1.5, 1.5),
    (int, 1.0, 1),
    (int, 10**40, 10**40),
    (bool, True, True),
    (str, "5", "5"),
    (int | str, "5", "5"),
    (int | None, None, None),
    (list[list[int]], [[1], []], [[1], []]),
    (dict[str, list[int]], {"a": [1]}, {"a": [1]}),
    (dict[int, str], {"1": "a"}, {1: "a"}),
    (tuple[int, str], [1, "a"], (1, "a")),
    (set[str], ["a", "b"], {"a", "b"}),
    (Literal["a", 1], 1, 1),
    (Colour, "red", Colour.RED),
    (dt.date, "2026-11-22", dt.date(2026, 11, 22)),
    (dt.datetime, "2026-11-22T10:00:00Z", dt.datetime(2026, 11, 22, 10, tzinfo=dt.UTC)),
    (uuid.UUID, str(uuid.UUID(int=1)), uuid.UUID(int=1)),
    (Decimal, "1.10", Decimal("1.10")),
    (Path, "a/b", Path("a/b")),
    (Pair, [1, "a"], Pair(1, "a")),
    (Any, {"free": [1]}, {"free": [1]}),
    (object, [1], [1]),
    (Literal[True], True, True),
    (bytes, "YQ==", b"a"),
    (Point, {"x": 1}, Point(1, 0)),
    (list[Point], [{"x": 1, "y": 2}], [Point(1, 2)]),
    (Point | None, {"x": 1}, Point(1)),
    (Line, {"start": {"x": 1}}, Line(Point(1), None, [])),
    (Node, {"name": " a ", "children": [{"name": "b "}]}, Node("a", [Node("b")])),
    (Trip, {"route": [{"start": {"x": 1}}]}, {"route": [Line(Point(1))]}),
    (Bill, {"owner": "ada", "amount": "1.50"}, Bill("ada", "1.50")),
    (Annotated[int, msgspec.Meta(ge=0, le=9)], 9, 9),
]


@pytest.mark.parametrize(("annotation", "value", "expected"), VALUES)
def test_json_becomes_the_type(annotation, value, expected):
    """A JSON value that fits the type's schema is converted to it."""
    compiled = compile_type(annotation)
    assert jsonschema_rs.validator_for(compiled.schema).is_valid(value)
    converted = compiled.convert(value)
    assert converted == expected
    assert type(converted) is type(expected)


REFUSED = [
    (int, "5"),
    (int, 1.9),
    (int, True),
    (float, "1"),
    (float, True),
    (bool, 1),
    (bool, "true"),
    (str, 5),
    (str, None),
    (int | None, "5"),
    (list[int], [1, "2"]),
    (dict[str, int], {"a": "1"}),
    (Literal["a"], "b"),
    (Literal[True], 1),
    (Literal[1], True),
    (Colour, "green"),
    (Annotated[int, msgspec.Meta(ge=0)], -1),
    (Point, {"x": "1"}),
    (Point, {"x": 1, "z": 2}),
    (Point, {}),
    (Line, {"start": {"x": True}}),
    (Path, 5),
]


@pytest.mark.parametrize(("annotation", "value"), REFUSED)
def test_values_are_not_guessed(annotation, value):
    """The schema and the conversion reject a value of another JSON type."""
    compiled = compile_type(annotation)
    assert not jsonschema_rs.validator_for(compiled.schema).is_valid(value)
    with pytest.raises(ValueError):
        compiled.convert(value)


def test_rejection_names_the_location():
    """The error contains the path."""
    with pytest.raises(ValueError, match=r"^/route/\S+/start/x: Expected `int`, got `str`"):
        compile_type(Trip).convert({"route": [{"start": {"x": "1"}}]})


def test_validators_of_attrs_classes_run():
    """The validators of the class check rules that the schema cannot express."""
    with pytest.raises(ValueError, match=r"Point: 'y' must be >= 0"):
        compile_type(list[Point]).convert([{"x": 1, "y": -1}])


def test_class_exceptions_reject_the_value():
    """An exception of a converter rejects the value and does not crash the caller."""
    table = attrs.make_class("Table", {"key": attrs.field(type=str, converter={"a": 1}.__getitem__)})
    assert compile_type(table).convert({"key": "a"}).key == 1
    with pytest.raises(ValueError, match="Table: b"):
        compile_type(table).convert({"key": "b"})


def test_invalid_date_is_rejected():
    """The format is checked when the value is read."""
    with pytest.raises(ValueError, match="Invalid RFC3339"):
        compile_type(dict[str, dt.date]).convert({"a": "22.11.2026"})


def test_attrs_class_has_docstring_and_defaults():
    """The schema has the texts of the class and its attributes, and the defaults."""
    assert schema_of(Point) == {
        "title": "Point",
        "description": "A place on a map.",
        "type": "object",
        "properties": {
            "x": {"description": "Metres to the east.", "type": "integer"},
            "y": {"default": 0, "type": "integer"},
        },
        "required": ["x"],
        "additionalProperties": False,
    }


def test_recursive_class_keeps_local_references():
    """A recursive class refers to its own definition, and the root is still an object."""
    schema = schema_of(Node)
    assert schema["type"] == "object"
    assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert set(schema["$defs"]) == {"Node"}


def test_classes_with_equal_names_are_distinguished():
    """Two classes with the same name have two definitions."""

    def make(kind):
        return attrs.make_class("Item", {"value": attrs.field(type=kind)})

    both = attrs.make_class("Both", {"a": attrs.field(type=make(int)), "b": attrs.field(type=make(str))})
    assert set(schema_of(both)["$defs"]) == {"Item", "Item2"}
    assert compile_type(both).convert({"a": {"value": 1}, "b": {"value": "x"}}).b.value == "x"


def test_schema_is_deterministic():
    """The same type has the same schema bytes in each process, for any hash seed."""
    code = f"import json, runpy, actgent.tools.schemas; print(json.dumps(actgent.tools.schemas.schema_of(runpy.run_path({__file__!r})['Trip'])))"
    output = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert output == {json.dumps(schema_of(Trip)) + "\n"}


def test_unserialisable_default_is_left_out():
    """A sentinel default makes the field optional, and the schema omits the default."""
    holder = attrs.make_class("Holder", {"value": attrs.field(type=int, default=object())})
    assert schema_of(holder)["properties"] == {"value": {"type": "integer"}}
    assert schema_of(holder)["required"] == []


class Plain:
    """A class without a JSON Schema."""

    def __init__(self, a):
        self.a = a


@pytest.mark.parametrize(
    "annotation", [Callable[[int], int], type, Plain, Plain | int, list[Plain], "Missing"]
)
def test_type_without_a_schema_is_rejected(annotation):
    """A type that JSON cannot represent is a ConfigurationError that names the usable types."""
    with pytest.raises(ConfigurationError, match=r"has no JSON Schema.*dataclasses, attrs.*pydantic"):
        compile_type(annotation)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_conversion_agrees_with_the_schema(value):
    """For each JSON value, a converted value matches the schema, and a mismatch raises ValueError."""
    compiled = compile_type(int | list[int] | None)
    fits = jsonschema_rs.validator_for(compiled.schema).is_valid(value)
    try:
        compiled.convert(value)
    except ValueError:
        assert not fits
    else:
        assert fits
