"""Schemas from strangers: checked, told and refused in bounded time and memory, by tools and by answers alike."""

import gc
import json
import time
import tracemalloc

import jsonschema_rs
import pytest
from hypothesis import given, strategies as st

from actgent import FunctionTool
from actgent.errors import ConfigurationError, InvalidArguments
from actgent.structured.output import form_output
from actgent.structured.schemas import schema_check
from actgent.tools.schemas.checking import compile_schema


def object_with(schema, defs=None):
    return {"type": "object", "$defs": defs or {}, "properties": {"a": schema}, "required": ["a"]}


def nested(word, depth, *, same=False):
    """A definition with three branches, each a reference to the next one."""
    defs = {"d0": {"type": "string", "maxLength": 1}}
    for level in range(1, depth + 1):
        branches = [{"$ref": f"#/$defs/d{level - 1}"} | ({} if same else {"title": str(n)}) for n in range(3)]
        defs[f"d{level}"] = {word: branches}
    return object_with({"$ref": f"#/$defs/d{depth}"}, defs)


def by_tool(schema, value):
    """What the model is told of arguments."""
    tool = FunctionTool("t", "d", lambda **_: "", parameters=schema, thread=False)
    try:
        tool.argument_validator.validate(value)
    except InvalidArguments as error:
        return str(error)
    return None


def by_answer(schema, value):
    """What the model is told of an answer."""
    return schema_check(schema)(value)


def bounded(work):
    """What a function returns, if it takes no second and no 50 MB; its ConfigurationError as text."""
    gc.disable()  # it would look at all that the tests before have left, which nobody asks about here
    tracemalloc.start()
    begin = time.process_time()
    try:
        return work()
    except ConfigurationError as error:
        return f"refused: {error}"
    finally:
        seconds, (_, peak) = time.process_time() - begin, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        gc.enable()
        assert seconds < 1
        assert peak < 50_000_000


@pytest.mark.parametrize("told_by", [by_tool, by_answer])
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("depth", [5, 8, 10, 11, 12, 13, 15, 20, 100])
@pytest.mark.parametrize("word", ["anyOf", "oneOf", "allOf"])
def test_branches_in_branches(told_by, same, depth, word):
    """A kilobyte of schema and one bad value come to a short reason, or the schema is refused at once."""
    reason = bounded(lambda: told_by(nested(word, depth, same=same), {"a": "too long"}))
    assert reason
    assert len(reason) < 2_000
    if depth <= 12 and word != "oneOf":
        assert "/a: " in reason


NODE = {
    "anyOf": [
        {"properties": {"c": {"$ref": "#/$defs/n"}}, "required": ["c"], "title": str(n)} for n in range(3)
    ]
}
JSON_VALUE = {
    "anyOf": [
        {"type": ["string", "number", "null"]},
        {"type": "array", "items": {"$ref": "#/$defs/n"}},
        {"type": "object", "additionalProperties": {"$ref": "#/$defs/n"}},
    ]
}


def chain(depth):
    value = {"c": 1}
    for _ in range(depth):
        value = {"c": value}
    return value


@pytest.mark.parametrize("told_by", [by_tool, by_answer])
@pytest.mark.parametrize("depth", [5, 15, 30, 90])
def test_branches_that_come_back_in_each_level(told_by, depth):
    """What grows with the value's depth is counted before it is tried."""
    schema = object_with({"$ref": "#/$defs/n"}, {"n": NODE})
    reason = bounded(lambda: told_by(schema, {"a": chain(depth)}))
    assert reason is None or "too deep to be checked" in reason
    assert (reason is None) == (depth == 5)


@pytest.mark.parametrize("told_by", [by_tool, by_answer])
@pytest.mark.parametrize("depth", [5, 40, 90])
@pytest.mark.parametrize("word", ["$ref", "$dynamicRef"])
def test_branches_that_come_back_to_the_root(told_by, depth, word):
    """A schema that is its own member's, by five ways: they count though the root is what is asked for."""
    itself = {word: "#" if word == "$ref" else "#root"}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$dynamicAnchor": "root",
        "type": "object",
        "properties": {"c": {"anyOf": [itself | {"title": str(n)} for n in range(5)]}},
        "additionalProperties": itself,
    }
    reason = bounded(lambda: told_by(schema, chain(depth)))
    assert reason
    assert len(reason) < 2_500
    assert depth == 5 or "too deep to be checked" in reason


@pytest.mark.parametrize("told_by", [by_tool, by_answer])
def test_ordinary_recursion_is_checked_to_any_depth(told_by):
    """Trees and JSON values, whose members take one way each."""
    deep = 1
    for _ in range(40):
        deep = [deep, {"k": 1, "l": [None]}]
    schema = object_with({"$ref": "#/$defs/n"}, {"n": JSON_VALUE})
    assert bounded(lambda: told_by(schema, {"a": deep})) is None
    assert bounded(lambda: told_by(schema, {"a": [deep, True]}))
    tree = {"type": "object", "properties": {side: {"$ref": "#/$defs/n"} for side in ("left", "right")}}
    value = {}
    for _ in range(60):
        value = {"left": value, "right": {}}
    assert bounded(lambda: told_by(object_with({"$ref": "#/$defs/n"}, {"n": tree}), {"a": value})) is None


@pytest.mark.parametrize("told_by", [by_tool, by_answer])
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (object_with({"type": "array", "items": {"type": "string"}}), {"a": list(range(100_000))}),
        (object_with({"anyOf": [{"type": "integer"}] * 50}), {"a": "x" * 1_000_000}),
        (
            object_with({"type": "array", "uniqueItems": True}),
            {"a": [{"i": n} for n in range(10_000)] + [{"i": 0}]},
        ),
        (object_with({"required": [f"k{n}" for n in range(5_000)]}), {"a": {}}),
        (object_with({"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}), {"a": "a" * 60}),
        ({"type": "object", "additionalProperties": False}, {f"k{n}" * 9: n for n in range(5_000)}),
        (object_with({"$ref": "#/properties/a"}), {"a": 1}),
    ],
)
def test_floods_of_errors(told_by, schema, value):
    """Long values, many errors, patterns that backtrack: the reason is short and quick."""
    reason = bounded(lambda: told_by(schema, value))
    assert reason is None or len(reason) < 2_500


@pytest.mark.parametrize("depth", [250, 10_000])
@pytest.mark.parametrize("word", ["properties", "items", "anyOf"])
def test_a_schema_too_deep_is_refused(word, depth):
    """With a clear error, and not by the interpreter's."""
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {
            "type": "object",
            word: {"a": schema} if word == "properties" else [schema] if word == "anyOf" else schema,
        }
    for make in (
        lambda: FunctionTool("t", "d", lambda **_: "", parameters=schema),
        lambda: form_output("o", schema),
        lambda: schema_check({"field": schema}),
    ):
        with pytest.raises(ConfigurationError, match="deeper than 200"):
            make()


SCHEMAS = st.recursive(
    st.sampled_from([{"type": "string"}, {"type": "integer"}, {"type": "null"}, {"enum": [1, "a"]}, {"minimum": 3}]),
    lambda inner: st.one_of(
        st.builds(lambda word, each: {word: each}, st.sampled_from(["anyOf", "oneOf", "allOf"]), st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda each: {"not": each}, inner),
        st.builds(lambda each: {"properties": {"a": each}, "required": ["a"]}, inner),
        st.builds(lambda each: {"items": each}, inner),
    ),
    max_leaves=8,
)  # fmt: skip
VALUES = st.recursive(
    st.sampled_from([None, 1, 5, "a", "b", True]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)


@given(SCHEMAS, VALUES)
def test_it_says_the_same_as_the_library(schema, value):
    """Whatever is simplified: what fits fits, and what does not has a reason."""
    fits = jsonschema_rs.validator_for(schema).is_valid(value)
    reason = compile_schema(schema, owner="a test").reason(value)
    assert (reason is None) == fits
    assert json.dumps(schema)


def test_references_into_branches_are_kept():
    """A branch that is referred to by its number stands where it stood."""
    schema = object_with({"anyOf": [{"type": "string"}, {"type": "string"}, {"type": "null"}]})
    schema["properties"]["b"] = {"$ref": "#/properties/a/anyOf/2"}
    assert by_tool(schema, {"a": "x", "b": None}) is None
    assert "/b: " in by_tool(schema, {"a": "x", "b": 1})
    assert by_tool(schema, {"a": "x" * 10_000, "b": 1}).endswith("it does not fit the schema")
