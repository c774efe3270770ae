"""Rewriting of JSON Schemas to the subset that each provider accepts.

A provider rejects a whole request for one unsupported schema. One pass rewrites a schema: it merges or wraps the root, adds
`items`, turns tuples into lists, and inlines or renames references. The original schema is unchanged, and arguments and
answers are validated with it. A schema that cannot be rewritten raises `UnsupportedSchema`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import attrs

from actgent.messages import ToolSpec
from actgent.support.safe_logging import logger_of

T = TypeVar("T")
ANSWER_PROPERTY = "response"
"""Property of the object that wraps an answer."""
MAX_LEVELS = 60
"""Maximum depth of a schema. Recursive references end before it."""
_MAX_CACHED = 2_048
"""Maximum number of schemas whose rewritten form is cached."""
_MAX_NODES = 20_000
"""Maximum number of subschemas after references are inlined."""
_COMBINATORS = ("anyOf", "oneOf", "allOf")
"""Keywords with a list of subschemas."""
_SUBSCHEMA_KEYS = ("not", "if", "then", "else", "contains", "propertyNames", "unevaluatedItems")
"""Keywords with one subschema."""
_SUBSCHEMA_MAPS = ("properties", "patternProperties", "dependentSchemas")
"""Keywords with an object of subschemas."""
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
) | {"additionalProperties", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_log = logger_of(__name__)


class UnsupportedSchema(ValueError):
    """Error: a schema cannot be rewritten to the subset of JSON Schema of a provider. The text is the reason."""


@attrs.frozen
class SchemaStyle:
    """The subset of JSON Schema that a provider accepts."""

    name: str
    """Name of the provider, for logs."""
    has_strict: bool = False
    """True if the provider can enforce schemas of an even smaller subset (`strict`)."""
    needs_properties: bool = True
    """True if the provider rejects an object without `properties`."""
    inlines: bool = False
    """True if the provider does not support references, so that their targets are inlined."""
    strings_only: bool = False
    """True if the provider only accepts enums of strings, and one type per schema."""
    dropped: frozenset[str] = frozenset()
    """Keywords that the provider rejects, which are removed."""
    property_names: re.Pattern[str] | None = None
    """Pattern of the accepted parameter names; None accepts all."""


OPENAI_STYLE = SchemaStyle("OpenAI", has_strict=True)
GEMINI_STYLE = SchemaStyle("Gemini", inlines=True, strings_only=True, dropped=_UNSUPPORTED_GEMINI)
ANTHROPIC_STYLE = SchemaStyle("Anthropic", needs_properties=False, property_names=_PROPERTY)

STYLES: Mapping[str, SchemaStyle] = {
    "openai": OPENAI_STYLE,
    "gemini": GEMINI_STYLE,
    "anthropic": ANTHROPIC_STYLE,
}
"""Schema styles by the name that the table of providers uses."""


@attrs.frozen
class AnswerSchema:
    """The schema of an answer in the form that a provider accepts."""

    schema: Mapping[str, Any]
    """The rewritten JSON Schema."""
    strict: bool
    """True if the provider can enforce the schema."""
    is_wrapped: bool
    """True if the answer is wrapped as the property `response` of an object, since the root must be an object."""


# --- tools and answers ----------------------------------------------------------------------------


def supported_tools(
    tools: Sequence[ToolSpec], style: SchemaStyle
) -> Iterator[tuple[ToolSpec, Mapping[str, Any]]]:
    """Yield the tools whose parameters the provider supports, with the rewritten schemas.

    Other tools are left out, and each is logged once.
    """
    for tool in tools:
        made = _cached(_tools, tool.parameters, style, partial(_tool_or_reason, tool, style))
        if not isinstance(made, str):
            yield tool, made


def _tool_or_reason(tool: ToolSpec, style: SchemaStyle) -> Mapping[str, Any] | str:
    try:
        return tool_schema(tool.parameters, style)
    except UnsupportedSchema as error:
        _log.warning(
            "the tool %r is not offered to the model: %s does not support its parameters: %s",
            tool.name,
            style.name,
            error,
        )
        return str(error)


def tool_schema(parameters: Mapping[str, Any], style: SchemaStyle) -> Mapping[str, Any]:
    """Rewrite the schema of a tool's parameters for a provider, with a plain object at the root.

    Raises:
        UnsupportedSchema: The root is not an object, a reference has no target, or the schema is too deep.
    """
    rewriter = _Rewriter(parameters, style)
    root = rewriter.resolve(parameters)
    if "object" not in _types(root):
        raise UnsupportedSchema(f"the root must be an object, not {_type_name(root)}")
    made = rewriter.with_definitions({**_merge_branches(root, rewriter), "type": "object"})
    if style.needs_properties:
        made.setdefault("properties", {})
    for name in made.get("properties", ()):
        if style.property_names is not None and not style.property_names.fullmatch(name):
            raise UnsupportedSchema(
                f"the parameter {name[:80]!r} must contain only letters, digits, _, . and -"
            )
    return made


def answer_schema(schema: Mapping[str, Any], style: SchemaStyle) -> AnswerSchema:
    """Rewrite the schema of an answer for a provider, with a plain object at the root.

    A schema of another type is wrapped in an object.

    Raises:
        UnsupportedSchema: A reference has no target, or the schema is too deep.
    """
    return _cached(_answers, schema, style, partial(_make_answer_schema, schema, style))


def _make_answer_schema(schema: Mapping[str, Any], style: SchemaStyle) -> AnswerSchema:
    rewriter = _Rewriter(schema, style)
    root = rewriter.resolve(schema)
    is_wrapped = _types(root) != {"object"} or any(
        key in root for key in (*_COMBINATORS, "enum", "const", "not")
    )
    if is_wrapped:
        inner = {key: value for key, value in root.items() if key not in _DEFINITIONS}
        root = {
            "type": "object",
            "properties": {ANSWER_PROPERTY: inner},
            "required": [ANSWER_PROPERTY],
            "additionalProperties": False,
        }
    made = rewriter.with_definitions(root)
    if style.has_strict:
        try:
            dropped = attrs.evolve(style, dropped=_UNSUPPORTED_STRICT)
            strict = _Rewriter(schema, dropped, strict=True).with_definitions(root)
        except UnsupportedSchema:
            strict = {}
        if strict and _is_strict(strict):
            return AnswerSchema(strict, strict=True, is_wrapped=is_wrapped)
    return AnswerSchema(made, strict=False, is_wrapped=is_wrapped)


def unwrap_answer(text: str) -> str | None:
    """Return the JSON text of VALUE in the answer text `{"response": VALUE}`; None if the text has another form."""
    if (opening := _OPENING.match(text)) is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return text[opening.end() : text.rindex("}")].strip() if len(value) == 1 else None


_OPENING = re.compile(rf'\s*\{{\s*"{ANSWER_PROPERTY}"\s*:')
_tools: dict[tuple[int, str], tuple[object, Mapping[str, Any] | str]] = {}
_answers: dict[tuple[int, str], tuple[object, AnswerSchema]] = {}


def _cached(
    cache: dict[tuple[int, str], tuple[object, T]], schema: object, style: SchemaStyle, make: Callable[[], T]
) -> T:
    """Return the result of `make()`, which is cached in `cache` by schema object and style.

    The schema must not be changed in place.
    """
    key = id(schema), style.name
    found = cache.get(key)
    if found is None:
        if len(cache) >= _MAX_CACHED:
            del cache[next(iter(cache))]
        # The entry holds a reference to the schema, so that its id is not reused.
        found = cache[key] = schema, make()
    return found[1]


# --- rewriting ------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Rewriter:
    """Rewrites one schema and its definitions for a provider."""

    _root: Mapping[str, Any]
    _style: SchemaStyle
    _strict: bool = attrs.field(default=False, kw_only=True)
    _names: dict[str, str] = attrs.field(factory=dict)
    """Name in the rewritten `$defs` of each referenced definition, by its reference."""
    _nodes: int = 0

    def with_definitions(self, root: Mapping[str, Any]) -> dict[str, Any]:
        """Rewrite a root schema, and add `$defs` with all rewritten schemas to which the root schema refers."""
        made = self.rewrite({key: value for key, value in root.items() if key not in _DEFINITIONS}, ())
        definitions: dict[str, Any] = {}
        while left := [pointer for pointer, name in self._names.items() if name not in definitions]:
            for pointer in left:
                definitions[self._names[pointer]] = {}
                definitions[self._names[pointer]] = self.rewrite(self._target(pointer), ())
        return {**made, "$defs": definitions} if definitions else made

    def resolve(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Follow the reference at the root of a schema, and return its target merged with the keywords next to the reference."""
        for _ in range(MAX_LEVELS):
            if not isinstance(reference := schema.get("$ref"), str):
                return schema
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            target = self._target(reference)
            properties = {**(target.get("properties") or {}), **(rest.get("properties") or {})}
            schema = {**target, **rest, **({"properties": properties} if properties else {})}
        raise UnsupportedSchema("the references in the schema must not form a cycle")

    def rewrite(self, schema: object, trail: tuple[str, ...], level: int = 0) -> dict[str, Any]:
        """Rewrite a subschema for the provider.

        `trail` has the references that are being inlined, to find cycles. `level` is the nesting depth.
        """
        self._nodes += 1
        if level > MAX_LEVELS or self._nodes > _MAX_NODES:
            raise UnsupportedSchema("the schema is nested too deeply, or has too many subschemas")
        if isinstance(schema, bool):
            return {} if schema else {"not": {}}
        if not isinstance(schema, Mapping):
            raise UnsupportedSchema(f"a schema must be an object, not {type(schema).__name__}")
        if isinstance(reference := schema.get("$ref"), str):
            return self._reference(schema, reference, trail, level)
        if self._strict and "allOf" in schema:
            schema = _merge_all_of(schema, self)
        made: dict[str, Any] = {}
        for key, value in sorted(schema.items(), key=lambda item: item[0] in _DRAFT_4):
            if key not in self._style.dropped and key not in _DEFINITIONS:
                self._keyword(made, key, value, trail, level + 1)
        if "array" in _types(schema) or "prefixItems" in schema:
            self._array(made, schema, trail, level + 1)
        if self._style.strings_only:
            _use_single_type(made)
        else:
            _add_type(made)
        return made

    def _keyword(
        self, made: dict[str, Any], key: str, value: Any, trail: tuple[str, ...], level: int
    ) -> None:
        if key in _COMBINATORS and isinstance(value, list | tuple):
            key = "anyOf" if key == "oneOf" else key
            made[key] = [*made.get(key, ()), *(self.rewrite(each, trail, level) for each in value)]
        elif key in _SUBSCHEMA_MAPS and isinstance(value, Mapping):
            made[key] = {name: self.rewrite(each, trail, level) for name, each in value.items()}
        elif key in _SUBSCHEMA_KEYS or (key == "additionalProperties" and not isinstance(value, bool)):
            made[key] = self.rewrite(value, trail, level)
        elif (key == "format" and self._strict and value not in _FORMATS) or key == "$schema":
            pass
        elif key in _DRAFT_4 and isinstance(value, bool):
            if (
                value and _DRAFT_4[key] in made
            ):  # in draft 4, a boolean makes the bound of the other keyword exclusive
                made[key] = made.pop(_DRAFT_4[key])
        elif key not in ("items", "prefixItems", "additionalItems"):
            made[key] = value

    def _array(
        self, made: dict[str, Any], schema: Mapping[str, Any], trail: tuple[str, ...], level: int
    ) -> None:
        """Set the `items` of the rewritten array schema `made`. Providers accept only one schema for all items."""
        items = schema.get("items", True)
        positions = schema.get("prefixItems", items if isinstance(items, list | tuple) else ())
        if not positions:
            made["items"] = self.rewrite(items, trail, level) if items is not False else {}
            return
        rest = schema.get("additionalItems", False) if isinstance(items, list | tuple) else items
        kinds: list[dict[str, Any]] = []
        for each in (*positions, *([rest] if isinstance(rest, Mapping) else ())):
            if (kind := self.rewrite(each, trail, level)) not in kinds:
                kinds.append(kind)
        made["items"] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        if rest is False:
            made.setdefault("maxItems", len(positions))
        if len(kinds) > 1:
            _append_description(
                made,
                f"Items in this order: {', '.join(_type_name(self._resolve_any(each)) for each in positions)}.",
            )

    def _resolve_any(self, schema: Any) -> Mapping[str, Any]:
        return self.resolve(schema) if isinstance(schema, Mapping) else {}

    def _reference(
        self, schema: Mapping[str, Any], reference: str, trail: tuple[str, ...], level: int
    ) -> dict[str, Any]:
        siblings = {key: value for key, value in schema.items() if key not in ("$ref", *_DEFINITIONS)}
        target = self._target(reference)
        local = _LOCAL.fullmatch(reference)
        if reference in trail:
            # A recursive reference: stays a reference if the provider supports them, else becomes any object.
            if local and not self._style.inlines:
                return {"$ref": self._named_reference(reference, local[1])}
            return {"type": "object"} if "object" in _types(target) or "properties" in target else {}
        if local and not siblings and not self._style.inlines:
            return {"$ref": self._named_reference(reference, local[1])}
        return self.rewrite({**target, **siblings}, (*trail, reference), level + 1)

    def _named_reference(self, reference: str, name: str) -> str:
        if reference not in self._names:
            plain = _FOREIGN.sub("_", _decode_pointer(name)).strip("_") or "definition"
            taken, free, number = set(self._names.values()), plain, 2
            while free in taken:
                free, number = f"{plain}_{number}", number + 1
            self._names[reference] = free
        return f"#/$defs/{self._names[reference]}"

    def _target(self, reference: str) -> Mapping[str, Any]:
        if not reference.startswith("#"):
            raise UnsupportedSchema(f"the reference {reference[:100]!r} points outside of the schema")
        found: Any = self._root
        for step in reference.split("/")[1:]:
            name = _decode_pointer(step)
            if isinstance(found, Mapping):
                found = found.get(name)
            elif isinstance(found, list | tuple) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                found = None
        if isinstance(found, bool):
            return {}
        if not isinstance(found, Mapping) or (reference != "#" and "/" not in reference):
            raise UnsupportedSchema(f"the reference {reference[:100]!r} has no target")
        return found


def _decode_pointer(step: str) -> str:
    """Decode a segment of a JSON pointer in a URI fragment (RFC 6901, section 6)."""
    return (
        re.sub("%([0-9A-Fa-f]{2})", lambda code: chr(int(code[1], 16)), step)
        .replace("~1", "/")
        .replace("~0", "~")
    )


def _types(schema: Mapping[str, Any]) -> set[str]:
    """Return the JSON types that a schema names or that its keywords imply; empty if the types are unknown."""
    given = schema.get("type")
    if isinstance(given, str):
        return {given}
    if isinstance(given, list | tuple):
        return set(given)
    if "properties" in schema or "required" in schema:
        return {"object"}
    if "items" in schema or "prefixItems" in schema:
        return {"array"}
    branches = [each for key in _COMBINATORS for each in schema.get(key, ()) if isinstance(each, Mapping)]
    return set().union(*map(_types, branches)) if branches else set()


def _type_name(schema: Mapping[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(map(repr, values[:4])) if isinstance(values, list | tuple) else "a value"
    return str(schema.get("title") or " or ".join(sorted(_types(schema))) or "any value")


def _append_description(made: dict[str, Any], text: str) -> None:
    made["description"] = f"{made['description']} {text}" if made.get("description") else text


def _merge_branches(root: Mapping[str, Any], rewriter: _Rewriter) -> dict[str, Any]:
    """Merge the branches of `anyOf`, `oneOf` and `allOf` at the root into one object schema with all properties.

    A property is required if each branch requires it; for `allOf`, if one branch requires it.
    """
    made = {
        key: value
        for key, value in root.items()
        if key not in (*_COMBINATORS, "enum", "const", "not", "if", "then", "else")
    }
    properties = dict(root.get("properties") or {})
    required = dict.fromkeys(root.get("required") or ())
    is_open = False
    for key in _COMBINATORS:
        branches = [
            _merge_branches(rewriter.resolve(each), rewriter)
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


def _merge_all_of(schema: Mapping[str, Any], rewriter: _Rewriter) -> Mapping[str, Any]:
    """Merge the members of a schema's `allOf` into the schema.

    Raises:
        UnsupportedSchema: Two members have different values for a keyword.
    """
    made = {key: value for key, value in schema.items() if key != "allOf"}
    for each in schema["allOf"]:
        for key, value in (rewriter.resolve(each) if isinstance(each, Mapping) else {}).items():
            if key == "properties":
                made[key] = {**made.get(key, {}), **value}
            elif key == "required":
                made[key] = list(dict.fromkeys([*made.get(key, ()), *value]))
            elif made.setdefault(key, value) != value and key not in ("title", "description", "default"):
                raise UnsupportedSchema(f"the members of allOf have different values of {key}")
    return made


def _add_type(made: dict[str, Any]) -> None:
    """Add a type to a rewritten enum or constant without a type, because some providers require it."""
    values = made.get("enum", [made["const"]] if "const" in made else None)
    if "type" not in made and isinstance(values, list | tuple):
        kinds = list(dict.fromkeys(map(_json_type, values)))
        made["type"] = kinds[0] if len(kinds) == 1 else kinds


def _use_single_type(made: dict[str, Any]) -> None:
    """Rewrite a schema for a provider that accepts only one type and enums of strings.

    Type lists become `anyOf`, constants become enums, and enums with other values become a description.
    """
    if "const" in made:
        made["enum"] = [made.pop("const")]
    values = made.get("enum")
    if isinstance(values, list | tuple) and not all(isinstance(each, str) for each in values):
        del made["enum"]
        _append_description(made, f"One of: {', '.join(json.dumps(each) for each in values)}.")
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
    """Return True if OpenAI can enforce a schema: closed objects, all properties required, and a type in each subschema."""
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
