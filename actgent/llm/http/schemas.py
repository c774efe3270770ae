"""JSON Schemas in the subset that each provider accepts.

A provider refuses a whole request for one schema that it cannot read. One pass rewrites a schema for the wire: it folds
or wraps the root, adds `items`, turns tuples into lists, inlines and renames references. The program's own schema stays
as it is, and arguments and answers are checked against that one. What cannot be rewritten raises `Inexpressible`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import attrs

from actgent.messages import ToolSpec
from actgent.support.logs import logger_of

T = TypeVar("T")
ANSWER = "response"
"""The member of a wrapped answer."""
MAX_LEVELS = 60
"""Levels of a schema that are rewritten; references that lead into themselves end before."""
_MAX_KEPT = 2_048
_MAX_NODES = 20_000
"""Schemas in one schema after its references are inlined."""
_LISTS = ("anyOf", "oneOf", "allOf")
_ONE = ("not", "if", "then", "else", "contains", "propertyNames", "unevaluatedItems")
_MANY = ("properties", "patternProperties", "dependentSchemas")
_DEFINITIONS = ("$defs", "definitions")
_LOCAL = re.compile(r"#/(?:\$defs|definitions)/([^/]+)")
_FOREIGN = re.compile(r"[^A-Za-z0-9_.-]+")
_PROPERTY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_UNSUPPORTED_STRICT = frozenset(
    "default examples not if then else patternProperties dependentSchemas dependentRequired propertyNames contains "
    "minContains maxContains uniqueItems minProperties maxProperties minLength maxLength unevaluatedProperties "
    "unevaluatedItems discriminator $schema $id $comment readOnly writeOnly deprecated contentEncoding "
    "contentMediaType contentSchema".split()
)
_DRAFT_4 = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid".split())
_UNSUPPORTED_GEMINI = (
    _UNSUPPORTED_STRICT - {"default", "minLength", "maxLength", "minProperties", "maxProperties"}
) | {
    "additionalProperties",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
}
_log = logger_of(__name__)


class Inexpressible(ValueError):
    """A schema cannot be said in the subset of a provider; the text says why."""


@attrs.frozen
class SchemaStyle:
    """The subset of JSON Schema that a provider accepts."""

    name: str
    has_strict: bool = False
    """True: it enforces schemas of a subset; see `AnswerForm.strict`."""
    needs_properties: bool = True
    """True: it refuses an object that does not list its properties."""
    inlines: bool = False
    """True: it knows no references."""
    strings_only: bool = False
    """True: it takes an enum of texts alone, and one type for each schema."""
    dropped: frozenset[str] = frozenset()
    """Keywords that it refuses."""
    property_names: re.Pattern[str] | None = None
    """Names of parameters that it takes; None: all."""


OPENAI_STYLE = SchemaStyle("OpenAI", has_strict=True)
GEMINI_STYLE = SchemaStyle("Gemini", inlines=True, strings_only=True, dropped=_UNSUPPORTED_GEMINI)
ANTHROPIC_STYLE = SchemaStyle("Anthropic", needs_properties=False, property_names=_PROPERTY)

STYLES: Mapping[str, SchemaStyle] = {
    "openai": OPENAI_STYLE,
    "gemini": GEMINI_STYLE,
    "anthropic": ANTHROPIC_STYLE,
}
"""The subsets by the names that the table of providers has for them."""


@attrs.frozen
class AnswerForm:
    """The form of an answer as a provider accepts it."""

    schema: Mapping[str, Any]
    strict: bool
    """True: the provider can enforce the schema."""
    is_wrapped: bool
    """True: the answer is the member `response` of an object, since the root may be nothing else."""


# --- the two uses ---------------------------------------------------------------------------------


def offered_tools(
    tools: Sequence[ToolSpec], style: SchemaStyle
) -> Iterator[tuple[ToolSpec, Mapping[str, Any]]]:
    """Yield the tools that a provider can be offered, with their parameters; the others are logged once and left out."""
    for tool in tools:
        made = _kept(_tools, tool.parameters, style, partial(_tool_or_reason, tool, style))
        if not isinstance(made, str):
            yield tool, made


def _tool_or_reason(tool: ToolSpec, style: SchemaStyle) -> Mapping[str, Any] | str:
    try:
        return tool_schema(tool.parameters, style)
    except Inexpressible as error:
        _log.warning(
            "the tool %r is not offered to the model: %s cannot take its parameters: %s",
            tool.name,
            style.name,
            error,
        )
        return str(error)


def tool_schema(parameters: Mapping[str, Any], style: SchemaStyle) -> Mapping[str, Any]:
    """Return the parameters of a tool with a plain object at the root.

    Raises:
        Inexpressible: The root is no object, a reference leads nowhere, or the schema is too deep.
    """
    rewriter = _Rewriter(parameters, style)
    root = rewriter.resolved(parameters)
    if "object" not in _types(root):
        raise Inexpressible(f"the root is {_named(root)} and not an object")
    made = rewriter.finish({**_folded(root, rewriter), "type": "object"})
    if style.needs_properties:
        made.setdefault("properties", {})
    for name in made.get("properties", ()):
        if style.property_names is not None and not style.property_names.fullmatch(name):
            raise Inexpressible(
                f"the parameter {name[:80]!r} has characters other than letters, digits, _, . and -"
            )
    return made


def provider_form(schema: Mapping[str, Any], style: SchemaStyle) -> AnswerForm:
    """Return the form of an answer with a plain object at the root.

    Raises:
        Inexpressible: A reference leads nowhere, or the schema is too deep.
    """
    return _kept(_forms, schema, style, partial(_make_form, schema, style))


def _make_form(schema: Mapping[str, Any], style: SchemaStyle) -> AnswerForm:
    rewriter = _Rewriter(schema, style)
    root = rewriter.resolved(schema)
    is_wrapped = _types(root) != {"object"} or any(key in root for key in (*_LISTS, "enum", "const", "not"))
    if is_wrapped:
        inner = {key: value for key, value in root.items() if key not in _DEFINITIONS}
        root = {
            "type": "object",
            "properties": {ANSWER: inner},
            "required": [ANSWER],
            "additionalProperties": False,
        }
    made = rewriter.finish(root)
    if style.has_strict:
        try:
            strict = _Rewriter(schema, attrs.evolve(style, dropped=_UNSUPPORTED_STRICT), strict=True).finish(
                root
            )
        except Inexpressible:
            strict = {}
        if strict and _is_strict(strict):
            return AnswerForm(strict, strict=True, is_wrapped=is_wrapped)
    return AnswerForm(made, strict=False, is_wrapped=is_wrapped)


def unwrap_answer(text: str) -> str | None:
    """Return the JSON text of the member of a wrapped answer; None if the text is something else."""
    if (opening := _OPENING.match(text)) is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return text[opening.end() : text.rindex("}")].strip() if len(value) == 1 else None


_OPENING = re.compile(rf'\s*\{{\s*"{ANSWER}"\s*:')
_tools: dict[tuple[int, str], tuple[object, Mapping[str, Any] | str]] = {}
_forms: dict[tuple[int, str], tuple[object, AnswerForm]] = {}


def _kept(
    known: dict[tuple[int, str], tuple[object, T]], schema: object, style: SchemaStyle, make: Callable[[], T]
) -> T:
    """Return what was made of a schema before: each request has the same ones. Schemas are not changed in place."""
    key = id(schema), style.name
    found = known.get(key)
    if found is None:
        if len(known) >= _MAX_KEPT:
            del known[next(iter(known))]
        # The entry holds the schema, so that its id names no other one.
        found = known[key] = schema, make()
    return found[1]


# --- one schema -----------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Rewriter:
    """Rewrites the parts of one schema."""

    _root: Mapping[str, Any]
    _style: SchemaStyle
    _strict: bool = attrs.field(default=False, kw_only=True)
    _names: dict[str, str] = attrs.field(factory=dict)
    """Definitions that are referred to, by their pointers, with their names on the wire."""
    _nodes: int = 0

    def finish(self, root: Mapping[str, Any]) -> dict[str, Any]:
        """Return a schema with the definitions that it refers to."""
        made = self.rewrite({key: value for key, value in root.items() if key not in _DEFINITIONS}, ())
        definitions: dict[str, Any] = {}
        while left := [pointer for pointer, name in self._names.items() if name not in definitions]:
            for pointer in left:
                definitions[self._names[pointer]] = {}
                definitions[self._names[pointer]] = self.rewrite(self._target(pointer), ())
        return {**made, "$defs": definitions} if definitions else made

    def resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a schema whose root is no reference."""
        for _ in range(MAX_LEVELS):
            if not isinstance(reference := schema.get("$ref"), str):
                return schema
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            target = self._target(reference)
            properties = {**(target.get("properties") or {}), **(rest.get("properties") or {})}
            schema = {**target, **rest, **({"properties": properties} if properties else {})}
        raise Inexpressible("its references lead to themselves")

    def rewrite(self, schema: object, trail: tuple[str, ...], level: int = 0) -> dict[str, Any]:
        """Rewrite a subschema in the style of the provider. `trail` has the references that are being inlined."""
        self._nodes += 1
        if level > MAX_LEVELS or self._nodes > _MAX_NODES:
            raise Inexpressible("it is nested too deep, or too large")
        if isinstance(schema, bool):
            return {} if schema else {"not": {}}
        if not isinstance(schema, Mapping):
            raise Inexpressible(f"{type(schema).__name__} stands where a schema should")
        if isinstance(reference := schema.get("$ref"), str):
            return self._reference(schema, reference, trail, level)
        if self._strict and "allOf" in schema:
            schema = _merged(schema, self)
        made: dict[str, Any] = {}
        for key, value in sorted(schema.items(), key=lambda item: item[0] in _DRAFT_4):
            if key not in self._style.dropped and key not in _DEFINITIONS:
                self._keyword(made, key, value, trail, level + 1)
        if "array" in _types(schema) or "prefixItems" in schema:
            self._array(made, schema, trail, level + 1)
        if self._style.strings_only:
            _one_type(made)
        else:
            _typed(made)
        return made

    def _keyword(
        self, made: dict[str, Any], key: str, value: Any, trail: tuple[str, ...], level: int
    ) -> None:
        if key in _LISTS and isinstance(value, list | tuple):
            key = "anyOf" if key == "oneOf" else key
            made[key] = [*made.get(key, ()), *(self.rewrite(each, trail, level) for each in value)]
        elif key in _MANY and isinstance(value, Mapping):
            made[key] = {name: self.rewrite(each, trail, level) for name, each in value.items()}
        elif key in _ONE or (key == "additionalProperties" and not isinstance(value, bool)):
            made[key] = self.rewrite(value, trail, level)
        elif (key == "format" and self._strict and value not in _FORMATS) or key == "$schema":
            pass
        elif key in _DRAFT_4 and isinstance(value, bool):
            if (
                value and _DRAFT_4[key] in made
            ):  # in draft 4 it says of the other keyword that it is exclusive
                made[key] = made.pop(_DRAFT_4[key])
        elif key not in ("items", "prefixItems", "additionalItems"):
            made[key] = value

    def _array(
        self, made: dict[str, Any], schema: Mapping[str, Any], trail: tuple[str, ...], level: int
    ) -> None:
        """Say of what an array is: providers want one schema for its items."""
        items = schema.get("items", True)
        places = schema.get("prefixItems", items if isinstance(items, list | tuple) else ())
        if not places:
            made["items"] = self.rewrite(items, trail, level) if items is not False else {}
            return
        rest = schema.get("additionalItems", False) if isinstance(items, list | tuple) else items
        kinds: list[dict[str, Any]] = []
        for each in (*places, *([rest] if isinstance(rest, Mapping) else ())):
            if (kind := self.rewrite(each, trail, level)) not in kinds:
                kinds.append(kind)
        made["items"] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        if rest is False:
            made.setdefault("maxItems", len(places))
        if len(kinds) > 1:
            _describe(made, f"Items in this order: {', '.join(_named(self._seen(each)) for each in places)}.")

    def _seen(self, schema: Any) -> Mapping[str, Any]:
        return self.resolved(schema) if isinstance(schema, Mapping) else {}

    def _reference(
        self, schema: Mapping[str, Any], reference: str, trail: tuple[str, ...], level: int
    ) -> dict[str, Any]:
        siblings = {key: value for key, value in schema.items() if key not in ("$ref", *_DEFINITIONS)}
        target = self._target(reference)
        local = _LOCAL.fullmatch(reference)
        if reference in trail:
            # It leads into itself: a reference where the provider knows them, else any object.
            if local and not self._style.inlines:
                return {"$ref": self._named_reference(reference, local[1])}
            return {"type": "object"} if "object" in _types(target) or "properties" in target else {}
        if local and not siblings and not self._style.inlines:
            return {"$ref": self._named_reference(reference, local[1])}
        return self.rewrite({**target, **siblings}, (*trail, reference), level + 1)

    def _named_reference(self, reference: str, name: str) -> str:
        if reference not in self._names:
            plain = _FOREIGN.sub("_", _unescaped(name)).strip("_") or "definition"
            taken, free, number = set(self._names.values()), plain, 2
            while free in taken:
                free, number = f"{plain}_{number}", number + 1
            self._names[reference] = free
        return f"#/$defs/{self._names[reference]}"

    def _target(self, reference: str) -> Mapping[str, Any]:
        if not reference.startswith("#"):
            raise Inexpressible(f"the reference {reference[:100]!r} leads out of the schema")
        found: Any = self._root
        for step in reference.split("/")[1:]:
            name = _unescaped(step)
            if isinstance(found, Mapping):
                found = found.get(name)
            elif isinstance(found, list | tuple) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                found = None
        if isinstance(found, bool):
            return {}
        if not isinstance(found, Mapping) or (reference != "#" and "/" not in reference):
            raise Inexpressible(f"the reference {reference[:100]!r} leads nowhere")
        return found


def _unescaped(step: str) -> str:
    """A step of a JSON pointer in a URI fragment (RFC 6901, section 6)."""
    return (
        re.sub("%([0-9A-Fa-f]{2})", lambda code: chr(int(code[1], 16)), step)
        .replace("~1", "/")
        .replace("~0", "~")
    )


def _types(schema: Mapping[str, Any]) -> set[str]:
    """Return the types of a value that a schema names, or implies by its keywords."""
    given = schema.get("type")
    if isinstance(given, str):
        return {given}
    if isinstance(given, list | tuple):
        return set(given)
    if "properties" in schema or "required" in schema:
        return {"object"}
    if "items" in schema or "prefixItems" in schema:
        return {"array"}
    branches = [each for key in _LISTS for each in schema.get(key, ()) if isinstance(each, Mapping)]
    return set().union(*map(_types, branches)) if branches else set()


def _named(schema: Mapping[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(map(repr, values[:4])) if isinstance(values, list | tuple) else "a value"
    return str(schema.get("title") or " or ".join(sorted(_types(schema))) or "any value")


def _describe(made: dict[str, Any], text: str) -> None:
    made["description"] = f"{made['description']} {text}" if made.get("description") else text


def _folded(root: Mapping[str, Any], rewriter: _Rewriter) -> dict[str, Any]:
    """Merge the branches of root combinators into one object schema with all properties.

    A property is required if each branch requires it; of `allOf`, if one branch requires it.
    """
    made = {
        key: value
        for key, value in root.items()
        if key not in (*_LISTS, "enum", "const", "not", "if", "then", "else")
    }
    properties = dict(root.get("properties") or {})
    required = dict.fromkeys(root.get("required") or ())
    is_open = False
    for key in _LISTS:
        branches = [
            _folded(rewriter.resolved(each), rewriter)
            for each in root.get(key, ())
            if isinstance(each, Mapping)
        ]
        for branch in branches:
            is_open |= branch.get("additionalProperties") is not False
            for name, each in branch.get("properties", {}).items():
                known = properties.get(name)
                properties[name] = each if known is None else known if known == each else _either(known, each)
        demands = [set(branch.get("required") or ()) for branch in branches]
        if demands:
            shared = set().union(*demands) if key == "allOf" else set.intersection(*demands)
            required |= dict.fromkeys(sorted(shared))
    if properties:
        made["properties"] = properties
    if names := [name for name in required if name in properties or not properties]:
        made["required"] = names
    else:
        made.pop("required", None)
    return made


def _either(one: Any, other: Any) -> dict[str, Any]:
    known = one["anyOf"] if isinstance(one, Mapping) and set(one) == {"anyOf"} else [one]
    return {"anyOf": known if other in known else [*known, other]}


def _merged(schema: Mapping[str, Any], rewriter: _Rewriter) -> Mapping[str, Any]:
    """Return a schema with the members of its `allOf` merged.

    Raises:
        Inexpressible: Two of them say different things with one keyword.
    """
    made = {key: value for key, value in schema.items() if key != "allOf"}
    for each in schema["allOf"]:
        for key, value in (rewriter.resolved(each) if isinstance(each, Mapping) else {}).items():
            if key == "properties":
                made[key] = {**made.get(key, {}), **value}
            elif key == "required":
                made[key] = list(dict.fromkeys([*made.get(key, ()), *value]))
            elif made.setdefault(key, value) != value and key not in ("title", "description", "default"):
                raise Inexpressible(f"allOf says {key} twice")
    return made


def _typed(made: dict[str, Any]) -> None:
    """Name the type of an enum or a constant, which some providers insist on."""
    values = made.get("enum", [made["const"]] if "const" in made else None)
    if "type" not in made and isinstance(values, list | tuple):
        kinds = list(dict.fromkeys(map(_json_type, values)))
        made["type"] = kinds[0] if len(kinds) == 1 else kinds


def _one_type(made: dict[str, Any]) -> None:
    """Say several types as alternatives, constants as enums, and values that are no text in the description."""
    if "const" in made:
        made["enum"] = [made.pop("const")]
    values = made.get("enum")
    if isinstance(values, list | tuple) and not all(isinstance(each, str) for each in values):
        del made["enum"]
        _describe(made, f"One of: {', '.join(json.dumps(each) for each in values)}.")
        made.setdefault("type", _json_type(next((each for each in values if each is not None), None)))
    elif values:
        made.setdefault("type", "string")
    kinds = made.get("type")
    if isinstance(kinds, list | tuple):
        others = [kind for kind in kinds if kind != "null"]
        rest = {key: made.pop(key) for key in list(made) if key not in ("title", "description", "default")}
        made["anyOf"] = [{**rest, "type": kind} for kind in others]
        if len(others) < len(kinds):
            made["anyOf"].append({"type": "null"})


def _json_type(value: object) -> str:
    names = {
        bool: "boolean",
        int: "integer",
        float: "number",
        type(None): "null",
        list: "array",
        dict: "object",
    }
    return names.get(type(value), "string")


def _is_strict(schema: object) -> bool:
    """True for a schema in the form that OpenAI enforces: closed objects, all properties required, a type everywhere."""
    if not isinstance(schema, Mapping):
        return False
    if "$ref" in schema:
        return True
    if not any(key in schema for key in ("type", "anyOf", "enum", "const")):
        return False
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties") or {}
        if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != set(
            properties
        ):
            return False
    inner = [
        *(schema.get("properties") or {}).values(),
        *(schema.get("$defs") or {}).values(),
        *(schema.get("anyOf") or ()),
        *([schema["items"]] if "items" in schema else ()),
    ]
    return all(map(_is_strict, inner))
