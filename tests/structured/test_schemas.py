"""Schemas of instructions: JSON Schema or template, and their validation."""

import pytest

from actgent.errors import ConfigurationError
from actgent.protocols.protocol_interface import ClassificationType, Instruction, types_from
from actgent.structured_output import answer_type_schemas
from actgent.structured_output.answer_type_schemas import is_json_schema, schema_check

AGENT = {"name": "<its name>", "caps": ["<one>"], "home": {"city": "<where>"}, "kind": "any", "extra": {}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string"}}},
        {"type": ["string", "null"]},
        {"type": "string"},
        {"properties": {"a": {}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {}}},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"enum": ["a", "b"]},
        {"title": "x", "description": "<what it is>", "type": "object"},
        {"type": "object", "x-note": 1},
    ],
)
def test_json_schema_is_recognized_by_its_keywords(schema):
    """A schema is JSON Schema if it has only keywords of JSON Schema, at least one of them decisive."""
    assert is_json_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        AGENT,
        {"messageType": "greeting", "content": "string"},
        {"type": "<what kind>", "title": "<a title>"},
        {"type": "object", "city": "<where>"},
        {"title": "<a title>", "description": "<some words>"},
        {"properties": "<a list of them>"},
        {"enum": ["<a choice>"]},
        {"items": ["<an item>"]},
    ],
)
def test_other_schemas_are_templates(schema):
    """Any other schema is a template that shows the answer."""
    assert not is_json_schema(schema)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"name": "n", "caps": ["c"], "home": {"city": "x"}, "kind": None, "extra": 0, "more": 1}, None),
        ({"name": 0, "caps": [False], "home": {"city": ""}, "kind": 1, "extra": None}, None),
        (
            {"name": None, "caps": ["c"], "home": {"city": "x"}, "kind": 1, "extra": 1},
            "/name: must not be null",
        ),
        (
            {"name": "n", "caps": [], "home": {"city": "x"}, "kind": 1, "extra": 1},
            "/caps: must be a list of at least",
        ),
        (
            {"name": "n", "caps": ["c", None], "home": {"city": "x"}, "kind": 1, "extra": 1},
            "/caps/1: must not be null",
        ),
        ({"name": "n", "caps": ["c"], "home": {}, "kind": 1, "extra": 1}, "/home: 'city' is missing"),
        (
            {"name": "n", "caps": ["c"], "home": 1, "kind": 1, "extra": 1},
            "/home: must be an object with city",
        ),
        ({"name": "n", "caps": ["c"], "home": {"city": "x"}, "extra": 1}, "/: 'kind' is missing"),
        ({"name": "n", "caps": ["c"], "home": {"city": "x"}, "kind": 1}, "/: 'extra' is missing"),
        ("words", "/: must be an object"),
        (None, "/: must be an object"),
    ],
)
def test_template_accepts_values_by_its_rules(value, reason):
    """A placeholder accepts any value except null, a list needs one item, and objects are checked recursively. Other values must exist."""
    found = schema_check(AGENT)(value)
    assert found is None if reason is None else found.startswith(reason)


def test_json_schema_reasons_have_a_path():
    """The model gets the path and the reason."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer"}}},
        "required": ["b"],
    }
    reason = schema_check(schema)({"a": [1, "x"]})
    assert '/: "b" is a required property' in reason
    assert '/a/1: "x" is not of type "integer"' in reason


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/x.json", "file:///etc/hostname", "other.json"])
def test_external_references_are_not_fetched(address):
    """A reference to another document is an error of the developer. No request is sent."""
    with pytest.raises(ConfigurationError, match="not usable"):
        schema_check({"$ref": address})


def test_unusable_schemas_are_rejected():
    """An invalid JSON Schema is rejected when the instruction is created."""
    with pytest.raises(ConfigurationError, match="instruction 'a'"):
        types_from([Instruction("a", schema={"type": "object", "required": "x"})])
    with pytest.raises(ConfigurationError, match="must be an object"):
        types_from([Instruction("a", schema=["x"])])


def test_instruction_types_keep_their_fields():
    """Order, names, descriptions and tools are kept. A missing schema is an empty schema."""
    schema = {"content": "<words>"}
    assert types_from([Instruction("a", "first"), Instruction("b", schema=schema, tool="t")]) == (
        ClassificationType(name="a", description="first"),
        ClassificationType(name="b", schema=schema, tool="t"),
    )


@pytest.mark.parametrize("names", [("a", "a"), ("",), (" ",)])
def test_instruction_names_are_required_and_unique(names):
    """An instruction is identified by its name."""
    with pytest.raises(ConfigurationError, match=r"unique name|two instructions are named"):
        types_from([Instruction(name) for name in names])


def test_checks_are_compiled_once_and_bounded():
    """Equal schemas have the same compiled check, and the cache evicts old checks."""
    schema = {"type": "string"}
    check = schema_check(schema)
    assert schema_check(schema) is check
    kept = [{"type": "string", "maxLength": length} for length in range(1_030)]
    for each in kept:
        schema_check(each)
    assert len(answer_type_schemas._checks) <= 1_024
    assert schema_check(schema) is not check
