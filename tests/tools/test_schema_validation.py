"""Untrusted schemas are compiled, checked and rejected in bounded time and memory, for tools and for answers."""

import gc
import json
import random
import time
import tracemalloc
from pathlib import Path

import jsonschema_rs
import pytest
from hypothesis import given, strategies as st

from actgent import FunctionTool
from actgent.errors import ConfigurationError, InvalidArguments
from actgent.structured_output.answer_type_schemas import schema_check
from actgent.structured_output.output_type import output_of_schema
from actgent.tools.schemas.schema_validation import compile_schema


def object_with(schema, defs=None):
    return {"type": "object", "$defs": defs or {}, "properties": {"a": schema}, "required": ["a"]}


def nested(word, depth, *, same=False):
    """Return a schema whose definitions each have three branches that refer to the next definition."""
    defs = {"d0": {"type": "string", "maxLength": 1}}
    for level in range(1, depth + 1):
        branches = [{"$ref": f"#/$defs/d{level - 1}"} | ({} if same else {"title": str(n)}) for n in range(3)]
        defs[f"d{level}"] = {word: branches}
    return object_with({"$ref": f"#/$defs/d{depth}"}, defs)


def by_tool(schema, value):
    """Return the error of invalid arguments, or None."""
    tool = FunctionTool("t", "d", lambda **_: "", parameters=schema, thread=False)
    try:
        tool.argument_validator.validate(value)
    except InvalidArguments as error:
        return str(error)
    return None


def by_answer(schema, value):
    """Return the error of an invalid answer, or None."""
    return schema_check(schema)(value)


def bounded(work):
    """Run a function within one second and 50 MB, and return its result. A ConfigurationError is returned as text."""
    gc.disable()  # a collection of the garbage of earlier tests would count as time of `work`
    before = resident_peak(reset=True)
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
        assert resident_peak() - before < 100_000_000  # with the memory of the library


def resident_peak(*, reset=False):
    """Return the peak resident memory of this process in bytes. `reset` restarts the measurement."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    peak = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    return 1024 * int(peak.split()[1])


@pytest.mark.parametrize("told_by", [by_tool, by_answer])
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("depth", [5, 8, 10, 11, 12, 13, 15, 20, 100])
@pytest.mark.parametrize("word", ["anyOf", "oneOf", "allOf"])
def test_nested_branches_are_bounded(told_by, same, depth, word):
    """For a kilobyte of schema and one invalid value the reason is short, or the schema is rejected at once."""
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
def test_branches_that_recur_at_each_level_are_counted(told_by, depth):
    """Work that grows with the depth of the value is counted before the validation."""
    schema = object_with({"$ref": "#/$defs/n"}, {"n": NODE})
    reason = bounded(lambda: told_by(schema, {"a": chain(depth)}))
    assert reason is None or "too large or too deep" in reason
    assert (reason is None) == (depth == 5)


@pytest.mark.parametrize("told_by", [by_tool, by_answer])
@pytest.mark.parametrize("depth", [5, 40, 90])
@pytest.mark.parametrize("word", ["$ref", "$dynamicRef"])
def test_branches_that_refer_to_the_root_are_counted(told_by, depth, word):
    """Five branches that refer to the root are counted like branches that refer to a definition."""
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
    assert depth == 5 or "too large or too deep" in reason


@pytest.mark.parametrize("told_by", [by_tool, by_answer])
def test_ordinary_recursion_is_checked_to_any_depth(told_by):
    """Trees and JSON values have one possible branch per member, so deep values are validated."""
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
def test_many_errors_have_a_short_reason(told_by, schema, value):
    """For long values, many errors and backtracking patterns, the reason is short and fast."""
    reason = bounded(lambda: told_by(schema, value))
    assert reason is None or len(reason) < 2_500


@pytest.mark.parametrize("depth", [250, 10_000])
@pytest.mark.parametrize("word", ["properties", "items", "anyOf"])
def test_too_deep_schema_is_rejected(word, depth):
    """The error is a ConfigurationError and not a RecursionError of the interpreter."""
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {
            "type": "object",
            word: {"a": schema} if word == "properties" else [schema] if word == "anyOf" else schema,
        }
    for make in (
        lambda: FunctionTool("t", "d", lambda **_: "", parameters=schema),
        lambda: output_of_schema("o", schema),
        lambda: schema_check({"field": schema}),
    ):
        with pytest.raises(ConfigurationError, match="200 levels"):
            make()


OWN = ["anyOf", "oneOf", "allOf", "not", "if", "then", "else", "dependentSchemas", "$ref", "$dynamicRef"]
BELOW = [
    "properties",
    "patternProperties",
    "additionalProperties",
    "items",
    "prefixItems",
    "contains",
    "propertyNames",
]
MARKS = ["unevaluatedProperties", "unevaluatedItems"]
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
MAPS = ("dependentSchemas", "properties", "patternProperties")


def leading(some, text, breadth, target):
    """Return a schema with the keywords, each of which refers to `target` `breadth` times."""

    def reference(name):
        return {"$ref": target} | ({"title": str(name)} if some.random() < 0.7 else {})

    schema = {}
    for word in text:
        if word in LISTS:
            schema[word] = [reference(name) for name in range(breadth)]
        elif word in MAPS:
            schema[word] = {name: reference(name) for name in "abc"[:breadth]}
        elif word.startswith("$"):
            schema[word] = target
        else:
            schema[word] = False if word in MARKS and some.random() < 0.4 else reference(word)
    return schema


def hostile(some):
    """Return a small random schema whose definitions refer to each other by random keywords, sometimes in cycles."""
    depth, breadth, is_circular = (
        some.choice([3, 6, 9, 12, 15, 25, 60]),
        some.randint(1, 4),
        some.random() < 0.4,
    )
    words = some.sample(OWN + BELOW + MARKS + MARKS, some.randint(1, 3))
    defs = {f"d{depth}": some.choice([{"type": "string"}, {"required": ["z"]}, {"maxItems": 1}])}
    for level in range(depth):
        back = is_circular and some.random() < 0.3
        target = f"#/$defs/d{some.randrange(depth) if back else level + 1}"
        defs[f"d{level}"] = leading(some, words, breadth, target)
    schema = {"type": "object", "$defs": defs}
    at = some.choice(["properties", "additionalProperties", "$ref"])
    first = {"$ref": "#/$defs/d0"}
    return schema | (first if at == "$ref" else {at: {"a": first} if at == "properties" else first})


def hostile_values(some):
    """Return deep and wide values."""
    deep = wide = 1
    for _ in range(some.choice([3, 10, 40, 90])):
        deep = {"a": deep} if some.random() < 0.8 else [deep]
    for _ in range(some.choice([2, 5, 7])):
        wide = {"a": wide, "b": wide, "c": [wide]}
    return [{}, {"a": deep}, {"a": wide}, {"a": ["x"] * 2_000}, {f"k{n}": {"a": n} for n in range(3_000)}]


@pytest.mark.parametrize("seed", range(40))
def test_random_untrusted_schemas_are_bounded(seed):
    """For any keywords between the definitions, a value is validated or the schema is rejected in bounded time."""
    some = random.Random(seed)
    schema = hostile(some)
    for value in hostile_values(some):
        reason = bounded(lambda value=value: by_tool(schema, value))
        assert reason is None or len(reason) < 3_000


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize(
    ("word", "breadth"), [("anyOf", 3), ("allOf", 4), ("oneOf", 2), ("$ref", 1), ("dependentSchemas", 3)]
)
@pytest.mark.parametrize("depth", [5, 10, 12, 60])
def test_evaluated_property_marks_are_counted(mark, word, breadth, depth):
    """When the library compiles a schema, it builds these marks for each path to a definition."""
    defs = {f"d{depth}": {"type": "object"}}
    for level in range(depth):
        target = f"#/$defs/d{level + 1}"
        defs[f"d{level}"] = leading(random.Random(0), [word], breadth, target) | {mark: False}
    schema = {"type": "object", "$defs": defs, "properties": {"a": {"$ref": "#/$defs/d0"}}}
    reason = bounded(lambda: by_tool(schema, {"a": {"b": 1}}))
    assert depth > 5 or not (reason or "").startswith("refused") or breadth > 2


def other_names(spelling, depth=20):
    """Return nested branches with a rare spelling of the references."""
    names = {
        "percent": lambda n: ({}, f"#/%24defs/%64{n}"),
        "id": lambda n: ({"$id": f"d{n}"}, f"http://x.example/d{n}"),
        "anchor": lambda n: ({"$anchor": f"d{n}"}, f"#d{n}"),
        "inner": lambda n: ({}, f"#/$defs/d{n}"),
        "draft-04": lambda n: ({"id": f"d{n}"}, f"d{n}"),
    }[spelling]
    defs = {f"d{depth}": names(depth)[0] | {"type": "string"}}
    for level in range(depth):
        branches = [{"allOf": [{"$ref": names(level + 1)[1]}], "title": str(n)} for n in range(3)]
        defs[f"d{level}"] = names(level)[0] | {"anyOf": branches}
    if spelling == "inner":
        return {"properties": {"a": {"$id": "http://x.example/y", "$defs": defs, "$ref": "#/$defs/d0"}}}
    draft = {"$schema": "http://json-schema.org/draft-04/schema#"} if spelling == "draft-04" else {}
    named = {"id" if draft else "$id": "http://x.example/z"}
    return draft | named | {"$defs": defs, "properties": {"a": {"$ref": names(0)[1]}}}


@pytest.mark.parametrize(
    ("told_by", "spelling"),
    [
        *(
            (told_by, each)
            for told_by in (by_tool, by_answer)
            for each in ("percent", "id", "anchor", "inner")
        ),
        (by_tool, "draft-04"),  # the keyword `id` makes an answer schema a template
    ],
)
def test_references_are_followed_in_each_spelling(told_by, spelling):
    """A branch counts for each spelling of its reference."""
    small = bounded(lambda: told_by({"type": "object"} | other_names(spelling, 2), {"a": 1}))
    assert "/a: " in small
    assert "too many nested branches" in bounded(
        lambda: told_by({"type": "object"} | other_names(spelling), {"a": 1})
    )


WORDS = [f"word number {n}" for n in range(20_000)]


@pytest.mark.parametrize("told_by", [by_tool, by_answer])
@pytest.mark.parametrize(
    ("each", "value"),
    [
        ({"enum": WORDS}, "z"),
        ({"not": {"enum": WORDS}}, WORDS[0]),
        ({"oneOf": [{"enum": WORDS}, {"enum": WORDS[1:]}]}, "z"),
        ({"const": "x" * 100_000}, "z"),
        ({"dependentRequired": {"a": WORDS[:3_000]}}, {"a": 1}),
        ({"not": {"properties": {"a": {"const": WORDS}}}}, {"b": 1}),
        ({"allOf": [{"enum": WORDS}] * 2}, "z"),
    ],
)
def test_long_lists_of_words_are_not_copied_into_each_error(told_by, each, value):
    """The library copies the whole list into each error. 300 errors with 20,000 words took half a gigabyte."""
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": each}}}
    assert "/a/0: " in bounded(lambda: told_by(schema, {"a": [value] * 300}))


@pytest.mark.parametrize("told_by", [by_tool, by_answer])
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (
            {"properties": {f"a{n}": {"pattern": f"(x{{1,900}}y){{1,{n + 50}}}"} for n in range(100)}},
            {"a1": "x" * 100},
        ),
        (
            {"patternProperties": {f"^(a*)*\\1b{n}$": {} for n in range(100)}},
            {"a" * 40 + f"!{n}": 1 for n in range(100)},
        ),
        (
            {"patternProperties": {f"^(a*)*\\1b{n}$": True for n in range(100)}},
            {"a" * 40 + f"!{n}": 1 for n in range(100)},
        ),
        ({"additionalProperties": {"items": {"pattern": "^(?=(a*)*\\1b)"}}}, {"a": ["a" * 40 + "!"] * 5_000}),
        (
            {"properties": {f"a{n}": {"pattern": "^(a*)*\\1b"} for n in range(300)}},
            {f"a{n}": "a" * 40 for n in range(300)},
        ),
    ],
)
def test_many_patterns_are_matched_quickly(told_by, schema, value):
    """A hundred large patterns, and patterns with a million backtracking steps in many texts, are bounded."""
    reason = bounded(lambda: told_by({"type": "object"} | schema, value))
    assert reason is None or len(reason) < 2_500


@pytest.mark.parametrize("told_by", [by_tool, by_answer])
def test_lookaround_patterns_match_many_texts(told_by):
    """Patterns with few backtracking steps are matched for any number of texts."""
    schema = {
        "type": "object",
        "properties": {"a": {"items": {"pattern": "^(?=.*[0-9])(?!.*(.)\\1\\1)[a-z0-9]{4,}$"}}},
    }
    good = [f"w{n}x{n + 1}" for n in range(10, 100)]
    assert bounded(lambda: told_by(schema, {"a": good})) is None
    assert "/a/90: " in bounded(lambda: told_by(schema, {"a": [*good, "words"]}))


@pytest.mark.parametrize("told_by", [by_tool, by_answer])
def test_large_values_are_checked_against_ordinary_schemas(told_by):
    """The work grows linearly with the length of a table, so a long table is not rejected."""
    row = {
        "type": "object",
        "properties": {name: {"type": ["integer", "null"]} for name in "abcde"},
        "required": list("abcde"),
    }
    table = {"a": [dict.fromkeys("abcde", n) for n in range(40_000)]}
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": row}}}
    assert schema_check(schema)(table) is None
    table["a"][-1]["e"] = "x"
    assert "/a/39999/e: " in told_by(schema, table)


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
def test_validation_agrees_with_the_library(schema, value):
    """After the schema is simplified, the result equals that of the library. Each invalid value has a reason."""
    fits = jsonschema_rs.validator_for(schema).is_valid(value)
    reason = compile_schema(schema, owner="a test").reason(value)
    assert (reason is None) == fits
    assert json.dumps(schema)


def test_references_into_branches_are_kept():
    """A branch that is referred to by its index keeps its position."""
    schema = object_with({"anyOf": [{"type": "string"}, {"type": "string"}, {"type": "null"}]})
    schema["properties"]["b"] = {"$ref": "#/properties/a/anyOf/2"}
    assert by_tool(schema, {"a": "x", "b": None}) is None
    assert "/b: " in by_tool(schema, {"a": "x", "b": 1})
    assert by_tool(schema, {"a": "x" * 10_000, "b": 1}).endswith("the value does not match the schema")


def test_schema_with_many_node_kinds_is_accepted():
    """Each kind refers to all kinds in several members, like a syntax tree. The schema is valid and not rejected."""
    kinds = [f"N{number}" for number in range(60)]
    node = {"$ref": "#/$defs/Node"}
    members = {f"p{number}": dict(node) for number in range(8)}
    definitions = {
        kind: {"type": "object", "properties": {"type": {"const": kind}, **members}, "required": ["type"]}
        for kind in kinds
    }
    definitions["Node"] = {"anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in kinds]}
    schema = {"type": "object", "properties": {"node": dict(node)}, "$defs": definitions}
    assert bounded(lambda: by_tool(schema, {"node": {"type": "N1", "p0": {"type": "N59"}}})) is None
    assert "refused" not in (bounded(lambda: by_tool(schema, {"node": {"type": "no"}})) or "")


ONE_OF = {"type": "object", "oneOf": [{"required": ["yes"]}, {"required": ["no"]}]}
PART = {
    "oneOf": [
        {"properties": {"type": {"const": "text"}, "text": {"type": "string"}}, "required": ["type", "text"]},
        {"properties": {"type": {"const": "image"}}, "required": ["type", "url"]},
    ]
}
SAID = {"oneOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": PART}]}


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        (ONE_OF, {}, "exactly one of yes, no must be present, not none"),
        (ONE_OF, {"yes": 1, "no": 1}, "exactly one of yes, no must be present, not yes and no"),
        (ONE_OF, 5, '5 is not of type "object"; exactly one of yes, no must be present, not none'),
        ({"anyOf": ONE_OF["oneOf"]}, {}, "at least one of yes, no must be present, not none"),
        (SAID, "", '"" is shorter than 1 character'),
        (SAID, 5, '5 is not of type "string"; or 5 is not of type "array"'),
        (SAID, [{"type": "image"}], '/0: "url" is a required property'),
        (SAID, [{"type": "x"}], '/0: /0/type: "text" was expected; or /0/type: "image" was expected'),
        (
            {"oneOf": [{"minimum": 1}, {"minimum": 2}]},
            3,
            "3 is valid under more than one of the schemas listed",
        ),
        ({"anyOf": [True, False], "oneOf": [False]}, 3, "False schema does not allow 3"),
        pytest.param({"enum": ["a", 2, None, "ä"]}, "x", '"x" is not one of "a", 2, null, "ä"', id="choices"),
    ],
)
def test_branch_requirements_are_in_the_error(schema, value, text):
    """The error lists the branches that the value can match. A choice of members is one sentence."""
    assert compile_schema(schema, owner="a test").reason(value).startswith(text)


def test_reason_remains_in_the_error_for_a_long_value():
    """The middle of a long value is omitted, and the reason at the end of the text is complete."""
    schema = object_with({"type": "array", "maxItems": 32, "items": {"type": "string"}})
    reason = by_tool(schema, {"a": [f"tag number {number}" for number in range(80)]})
    assert '/a: ["tag number 0"' in reason
    assert reason.endswith("has more than 32 items")
    assert len(reason) < 400
