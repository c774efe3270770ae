"""Forms: conversion of fields to JSON Schema and back, and validation by JSON Schema."""

import base64

import pytest

from actgent import ConfigurationError
from actgent.forms import KINDS, Field, fields_of, form_misfit, to_form
from actgent.tools.schemas.schema_validation import compile_schema

ALL = [
    Field("sure", "boolean", default=False),
    Field("name", maximum=20),
    Field("room", "select", options=["single", "double"], label="Which room?"),
    Field("extras", "multiselect", options=["tea", "view"], required=False),
    Field("nights", "number", minimum=1, maximum=30),
    Field("from", "date"),
    Field("at", "datetime"),
    Field("passport", "file", maximum=100),
    Field("agreed", "confirm", help="You pay at once."),
    Field("colour", "custom", schema={"type": "string", "pattern": "^#[0-9a-f]{6}$"}),
]
GOOD = {
    "sure": True,
    "name": "Ada",
    "room": "double",
    "extras": ["tea"],
    "nights": 2,
    "from": "2027-01-31",
    "at": "2027-01-31T09:30:00Z",
    "passport": {"name": "p.pdf", "media_type": "application/pdf", "data": base64.b64encode(b"x").decode()},
    "agreed": True,
    "colour": "#00ff00",
}


def reason(content, form=None):
    form = form or to_form(ALL)
    return compile_schema(form, owner="the test").reason(content) or form_misfit(form, content)


def test_each_field_kind_survives_json_schema():
    """JSON Schema preserves the kinds, labels, options and defaults."""
    asked = fields_of(to_form(ALL))
    assert [each.kind for each in asked] == list(KINDS[:1]) + [field.kind for field in ALL[1:]]
    assert {each.kind for each in asked} == set(KINDS)
    assert [(each.name, each.is_required) for each in asked if not each.is_required] == [("extras", False)]
    room = asked[2]
    assert (room.label, room.options, asked[0].default, asked[8].help) == (
        "Which room?",
        ("single", "double"),
        False,
        "You pay at once.",
    )


def test_valid_form_content_is_accepted():
    """An answer with all members is valid, and one without the optional members too."""
    assert reason(GOOD) is None
    assert reason({name: value for name, value in GOOD.items() if name != "extras"}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sure", "yes"),
        ("name", ""),
        ("name", "x" * 21),
        ("room", "suite"),
        ("extras", ["tea", "tea"]),
        ("extras", ["beer"]),
        ("nights", "2"),
        ("nights", 31),
        ("from", "2027-02-30"),
        ("from", "tomorrow"),
        ("from", "20270131"),
        ("from", "2027-W05-7"),
        ("at", "2027-W05-7T09:30Z"),
        ("at", "2027-01-31X09:30:00Z"),
        ("at", "2027-01-31"),
        ("at", "2027-01-31T09:30:00"),
        ("passport", {"name": "p"}),
        ("passport", {"name": "p", "data": "§"}),
        ("passport", {"name": "p", "data": "A" * 200}),
        ("agreed", False),
        ("colour", "green"),
        ("other", 1),
    ],
)
def test_invalid_form_content_is_rejected(name, value):
    """Each member is checked by its kind, and the reason names the member."""
    said = reason({**GOOD, name: value})
    assert said is not None
    assert name in said


def test_foreign_forms_have_fields_by_json_type():
    """A schema from another source, such as an MCP server, has fields by JSON type. Unsupported fields are JSON fields."""
    form = {
        "type": "object",
        "properties": {
            "a": {"type": "boolean"},
            "b": {"type": "integer"},
            "c": {"type": "string", "enum": ["x", "y"]},
            "d": {"type": "array", "items": {"enum": ["x"]}},
            "e": {"type": "string", "format": "date-time"},
            "f": {"type": "string"},
            "g": {"type": "object"},
        },
        "required": ["f"],
    }
    kinds = ["boolean", "number", "select", "multiselect", "datetime", "text", "custom"]
    assert [each.kind for each in fields_of(form)] == kinds
    assert [each.is_whole for each in fields_of(form)][:2] == [False, True]
    assert fields_of(None) == fields_of({"type": "string"}) == ()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Field("x", "colour"), "kind= must be a known kind, not 'colour'"),
        (lambda: Field(""), "not empty"),
        (lambda: Field("x", "select"), "must have at least one value"),
        (lambda: Field("x", "text", options=["a"]), "select and multiselect"),
        (lambda: Field("x", "custom"), "is required for the kind custom"),
        (lambda: to_form([Field("x"), Field("x")]), "two fields with the name"),
        (lambda: to_form(["x"]), "or Field objects of actgent.forms"),
        (lambda: to_form([]), "or Field objects of actgent.forms"),
        (lambda: to_form(True), "or Field objects of actgent.forms"),
        (lambda: to_form(object()), "or Field objects of actgent.forms"),
    ],
)
def test_inconsistent_fields_are_rejected(make, expected):
    """The error names the field."""
    with pytest.raises(ConfigurationError, match=expected):
        make()
