"""Schemas of tools and answers on the wire: the subset that each provider accepts, and the parsed answers."""

import copy
import dataclasses
import enum
import json
import logging
from collections.abc import Iterator
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import jsonschema_rs
import pydantic
import pytest

from actgent import BareAgent, tool
from actgent.llm.http.provider_schemas import (
    ANTHROPIC_STYLE,
    GEMINI_STYLE,
    OPENAI_STYLE,
    UnsupportedSchema,
    answer_schema,
    tool_schema,
    unwrap_answer,
)
from actgent.llm.model_interface import ChatMessage, ModelRequest, ResponseFormat
from actgent.messages import Text, ToolSpec
from actgent.structured_output.output_type import output_of

STYLES = (OPENAI_STYLE, ANTHROPIC_STYLE, GEMINI_STYLE)
HELLO = (ChatMessage("user", (Text("Hello."),)),)
T = TypeVar("T")


class Mood(enum.Enum):
    CALM = "calm"
    ANGRY = "angry"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Node:
    name: str
    children: list["Node"]


@dataclasses.dataclass
class Point:
    x: int
    y: int


@dataclasses.dataclass
class Named:
    name: str


class Item(pydantic.BaseModel):
    sku: str


class Page(pydantic.BaseModel, Generic[T]):
    items: list[T]
    next: "Page[T] | None" = None


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int = pydantic.Field(description="How many are left.")


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


class Pet(pydantic.BaseModel):
    pet: Cat | Dog = pydantic.Field(discriminator="kind")
    best: Cat = pydantic.Field(description="The best one.")


class Pair(NamedTuple):
    name: str
    count: int


# --- rules of providers ------------------------------------------------------------------------------


def parts(schema: Any) -> Iterator[Any]:
    """Yield all subschemas of a schema, itself first."""
    yield schema
    for key in ("properties", "$defs", "patternProperties"):
        for each in (schema.get(key) or {}).values():
            yield from parts(each)
    for key in ("anyOf", "allOf", "oneOf", "prefixItems"):
        for each in schema.get(key) or ():
            yield from parts(each)
    for key in ("items", "additionalProperties", "not"):
        if isinstance(schema.get(key), dict):
            yield from parts(schema[key])


def refused(schema: dict[str, Any], style: Any) -> list[str]:
    """Return the errors of a provider for the parameters of a function or an output schema."""
    texts = []
    if schema.get("type") != "object" or {"anyOf", "oneOf", "allOf", "enum", "not"} & set(schema):
        texts.append("the root is not a plain object")
    for each in parts(schema):
        if not isinstance(each, dict):
            texts.append(f"{each!r} is no schema")
            continue
        kinds = each["type"] if isinstance(each.get("type"), list) else [each.get("type")]
        if "array" in kinds and not isinstance(each.get("items"), dict):
            texts.append("array schema missing items")
        if "oneOf" in each or "prefixItems" in each:
            texts.append("oneOf or prefixItems")
        if "$ref" in each:
            name = each["$ref"].removeprefix("#/$defs/")
            if (
                set(each) != {"$ref"}
                or name not in schema.get("$defs", {})
                or not name.replace("_", "").replace("-", "").isalnum()
            ):
                texts.append(f"$ref {each}")
        if style is GEMINI_STYLE and (
            {"$ref", "$defs", "const", "additionalProperties"} & set(each)
            or isinstance(each.get("type"), list)
            or not all(isinstance(word, str) for word in each.get("enum", ()))
        ):
            texts.append(f"Gemini: {each}")
    jsonschema_rs.Draft202012Validator(schema)
    return texts  # fmt: skip


def strict_refused(schema: dict[str, Any]) -> list[str]:
    """Return OpenAI's errors for a schema with `strict`."""
    allowed = set(
        "type properties required additionalProperties items enum const anyOf $ref $defs title description "
        "pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minItems maxItems".split()
    )
    said = refused(schema, OPENAI_STYLE)
    for each in parts(schema):
        if set(each) - allowed:
            said.append(f"{set(each) - allowed} is not permitted")
        if each.get("type") == "object" and (
            each.get("additionalProperties") is not False
            or set(each.get("required", ())) != set(each.get("properties", ()))
        ):
            said.append(f"open object {each}")
        if not {"type", "anyOf", "$ref"} & set(each):
            said.append(f"no type: {each}")
    return said  # fmt: skip


# --- answers ----------------------------------------------------------------------------------------------

OUTPUTS = [
    (list[int], "[1, 2]", [1, 2], True),
    (int, "3", 3, True),
    (Mood, '"calm"', Mood.CALM, True),
    (Level, "2", Level.HIGH, True),
    (int | str, '"x"', "x", True),
    (bool, "true", True, True),
    (float, "1.5", 1.5, True),
    (str | None, "null", None, True),
    (Literal["a", "b"], '"b"', "b", True),
    (list, '[1, "a"]', [1, "a"], False),
    (tuple[int, str], '[1, "a"]', (1, "a"), True),
    (Pair, '["a", 1]', Pair("a", 1), True),
    (dict[str, int], '{"a": 1}', {"a": 1}, False),
    (list[dict[str, int]], '[{"a": 1}]', [{"a": 1}], False),
    (Point, '{"x": 1, "y": 2}', Point(1, 2), True),
    (Point | Named, '{"name": "a"}', Named("a"), True),
    (list[Point], '[{"x": 1, "y": 2}]', [Point(1, 2)], True),
    (Node, '{"name": "a", "children": []}', Node("a", []), True),
    (Page[Item], '{"items": [{"sku": "a"}], "next": null}', Page[Item](items=[Item(sku="a")]), False),
    (Pet, '{"pet": {"kind": "dog"}, "best": {"kind": "cat", "lives": 9}}', Pet(pet=Dog(kind="dog"), best=Cat(kind="cat", lives=9)), False),
]  # fmt: skip


@pytest.mark.parametrize(("output", "text", "value", "strict"), OUTPUTS)
async def test_every_output_has_a_valid_schema(  # noqa: PLR0917
    connect, said, dialect, output, text, value, strict
):
    """A non-object output is wrapped in an object and unwrapped in the answer.

    An unwrapped answer is accepted.
    """
    form = output_of(output).response_format
    for style in STYLES:
        made = answer_schema(form.schema, style)
        assert not refused(made.schema, style)
        if style is OPENAI_STYLE:
            assert made.strict is strict
            assert not made.strict or not strict_refused(made.schema)
    made = answer_schema(form.schema, OPENAI_STYLE)
    wrapped = f' {{ "response" : {text} }} ' if made.is_wrapped else text
    for reply in (wrapped, text):
        model, wire = connect(dialect, said(dialect, reply), said(dialect, reply, stream=True))
        async with BareAgent("reader", llm=model, output=output) as reader:
            session = await reader.create_session("ada")
            shown = []
            assert (await reader.run("Say it.", session=session)).data == value
            session.on_token(lambda token, shown=shown: shown.append(token.text))
            assert (await reader.run("Say it.", session=session)).data == value
        assert "".join(shown).strip() == text.strip()
        assert {"response_format", "text", "output_config"} & set(wire.bodies[0]) or dialect == "anthropic"


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ('{"response": [1]}', "[1]"),
        ('\n{ "response" :{"a": "}"} }\n', '{"a": "}"}'),
        ('{"response": 12345678901234567890}', "12345678901234567890"),
        ('{"response": 1, "more": 2}', None),
        ('{"other": 1}', None),
        ('{"response": ', None),
        ("[1]", None),
        ("", None),
    ],
)
def test_only_a_wrapped_answer_is_unwrapped(text, inner):
    """The text inside the wrapper is returned as written. Any other answer is unchanged."""
    assert unwrap_answer(text) == inner


FORMS = [
    {"$ref": "#/$defs/A", "$defs": {"A": {"type": "array", "items": {"$ref": "#/$defs/B"}}, "B": {"type": "integer"}}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/A", "description": "Mine."}}, "required": ["a"], "additionalProperties": False, "$defs": {"A": {"type": "string", "description": "Theirs."}}},
    {"type": "object", "properties": {"a": {"allOf": [{"$ref": "#/$defs/A"}], "default": {}}}, "$defs": {"A": {"type": "object", "properties": {}, "additionalProperties": False}}},
    {"type": "object", "properties": {"a": {"oneOf": [{"type": "string"}, {"const": 5}]}}, "required": ["a"], "additionalProperties": False},
    {"type": "object", "properties": {"a": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False}}, "required": ["a"], "additionalProperties": False},
    {"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}}},
    {"type": "object", "properties": {"a": {"type": ["array", "null"]}, "b": True}},
    {"type": "object", "properties": {"tree": {"$ref": "#/$defs/Tree[int]"}}, "$defs": {"Tree[int]": {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree[int]"}, "right": {"anyOf": [{"$ref": "#/$defs/Tree[int]"}, {"type": "null"}]}}}}},
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}}},
    {"type": "object", "properties": {"self": {"$ref": "#"}}},
    {"type": "object", "properties": {"a": {"$ref": "#/definitions/A%20b"}}, "definitions": {"A b": {"type": "string"}}},
    {"enum": [1, "a", None]},
    {"anyOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {"type": "null"}]},
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_schemas_of_other_libraries_are_rewritten(form):
    """Schemas of pydantic, zod and authors are rewritten. A strict schema is one that OpenAI enforces."""
    before = json.dumps(form)
    for style in STYLES:
        made = answer_schema(form, style)
        assert not refused(made.schema, style)
        assert not made.strict or not strict_refused(made.schema)
    assert json.dumps(form) == before


def test_description_next_to_a_reference_is_kept():
    """A description next to a reference is more specific than the definition's description."""
    made = answer_schema(FORMS[1], OPENAI_STYLE)
    assert made.strict
    assert made.schema["properties"]["a"] == {"type": "string", "description": "Mine."}


# --- tools --------------------------------------------------------------------------------------------------


def tools_of_types():
    @tool
    async def all_kinds(  # noqa: PLR0917
        numbers: list,
        names: tuple = (),
        pair: tuple[int, str] = (1, "a"),
        either: int | list | None = None,
        tree: Node | None = None,
        level: Level = Level.LOW,
        page: Page[Item] | None = None,
        pet: Pet | None = None,
        anything: Any = None,
        table: dict[str, list] | None = None,
        group: set[int] | None = None,
    ) -> str:
        """Take all kinds of values."""

    return all_kinds


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_parameters_of_every_kind_are_accepted(style):
    """Providers accept the schemas of all supported annotations."""
    schema = tool_schema(tools_of_types().parameters, style)
    assert not refused(schema, style)
    assert set(schema["properties"]) == {
        "numbers", "names", "pair", "either", "tree", "level", "page", "pet", "anything", "table", "group",
    }  # fmt: skip


ROOTS = [
    ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}}, {"a", "b"}, set()),
    ({"oneOf": [{"properties": {"a": {"type": "string"}, "k": {"const": 1}}, "required": ["a", "k"]}, {"properties": {"b": {}, "k": {"const": 2}}, "required": ["b", "k"]}]}, {"a", "b", "k"}, {"k"}),
    ({"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": {}}, "required": ["b"]}], "$defs": {"A": {"properties": {"a": {"$ref": "#/$defs/S"}}, "required": ["a"]}, "S": {"type": "string"}}}, {"a", "b"}, {"a", "b"}),
    ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"a": {}}, "required": ["a"]}}}, {"a"}, {"a"}),
    ({"type": ["object", "null"], "properties": {"a": {"type": "array"}}}, {"a"}, set()),
    ({"properties": {"a": {}}, "required": ["a"], "not": {"required": ["b"]}}, {"a"}, {"a"}),
    ({}, set(), set()),
    ({"properties": {}, "$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {}}}}}, {"a"}, set()),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"a": {"exclusiveMinimum": True, "minimum": 0}}}, {"a"}, set()),
]  # fmt: skip


@pytest.mark.parametrize(("root", "names", "required"), ROOTS)
@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_the_root_of_parameters_is_folded_into_an_object(root, names, required, style):
    """The object has the properties of all branches. A property is required if all branches require it."""
    schema = tool_schema({"type": "object", **root}, style)
    assert not refused({"properties": {}, **schema}, style)
    assert set(schema.get("properties", ())) == names
    assert set(schema.get("required", ())) == required


BAD = [
    {"type": "array", "items": {"type": "string"}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}},
    {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema.json"}}},
    {"type": "object", "properties": {"a": []}},
    {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
]


@pytest.mark.parametrize("parameters", BAD)
async def test_unusable_tool_is_omitted_and_logged(connect, said, dialect, parameters, caplog):
    """A request omits an invalid tool of a foreign server and logs its name once."""
    for style in STYLES:
        with pytest.raises(UnsupportedSchema):
            tool_schema(parameters, style)
    parameters = copy.deepcopy(parameters)  # a copy, because each object is logged once
    specs = ToolSpec(f"bad {dialect}", "Bad.", parameters), ToolSpec("good", "Good.", {"type": "object"})
    model, wire = connect(dialect, said(dialect))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await model.complete(ModelRequest(messages=HELLO, tools=specs))
    names = [each.get("function", each)["name"] for each in wire.bodies[0]["tools"]]
    assert names == ["good"]
    assert caplog.text.count(f"'bad {dialect}' is not offered") == 1
    await model.complete(ModelRequest(messages=HELLO, tools=specs[:1]))
    assert "tools" not in wire.bodies[-1]


async def test_invalid_parameter_names_are_omitted_for_anthropic(connect, said, caplog):
    """Anthropic rejects a request with such a parameter name. OpenAI accepts it."""
    odd = ToolSpec("query", "Query.", {"type": "object", "properties": {"$filter": {"type": "string"}}})
    model, wire = connect("anthropic", said("anthropic"))
    await model.complete(ModelRequest(messages=HELLO, tools=(odd,)))
    assert "tools" not in wire.bodies[0]
    assert "'$filter'" in caplog.text
    model, wire = connect("openai", said("openai"))
    await model.complete(ModelRequest(messages=HELLO, tools=(odd,)))
    assert wire.bodies[0]["tools"]


async def test_unusable_schema_is_only_in_the_prompt(connect, said, dialect):
    """The answer is still validated by the schema."""
    form = ResponseFormat("f", {"type": "object", "properties": {"a": {"$ref": "#/$defs/no"}}})
    model, wire = connect(dialect, said(dialect))
    await model.complete(ModelRequest(messages=HELLO, response_format=form))
    assert not {"response_format", "text", "output_config"} & set(wire.bodies[0])


def test_a_schema_is_rewritten_once():
    """Each request uses the same rewritten schemas."""
    parameters = {"type": "object", "properties": {"a": {"type": "array"}}}
    form = {"type": "array"}
    assert answer_schema(form, OPENAI_STYLE) is answer_schema(form, OPENAI_STYLE)
    assert tool_schema(parameters, OPENAI_STYLE) == tool_schema(parameters, OPENAI_STYLE)
