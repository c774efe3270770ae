"""Validation of tool-call arguments against the tool's JSON Schema."""

import json
import re
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

import attrs

from actgent.errors import ConfigurationError, InvalidArguments, InvalidToolSchema, ParseError
from actgent.support.strict_json import loads

from .schema_references import SchemaReferences
from .schema_validation import CompiledSchema, compile_schema


def _require_object_schema(name: str, parameters: Any) -> Mapping[str, Any]:
    """Check that `parameters` of the tool `name` is a schema of an object, and return it.

    Raises:
        InvalidToolSchema: The parameters are not a schema of type object.
    """
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        raise InvalidToolSchema(
            f'the parameters of tool {name!r} must be a JSON Schema of an object: {{"type": "object", "properties": ...}}',
            tool_name=name,
        )
    return parameters


_OPEN_KEYWORDS = frozenset(
    "additionalProperties unevaluatedProperties patternProperties propertyNames "
    "allOf anyOf oneOf if dependentSchemas $ref $dynamicRef".split()
)
"""Schema keywords that may allow arguments in addition to `properties`."""


def _forbid_unknown_arguments(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a parameter schema that rejects unknown arguments, unless the schema explicitly allows them.

    Models invent arguments, and a tool that ignores them would silently do something else. JSON Schema
    accepts unknown arguments by default, and published tools rarely forbid them.
    """
    is_open = not parameters.get("properties") or not _OPEN_KEYWORDS.isdisjoint(parameters)
    return parameters if is_open else {**parameters, "additionalProperties": False}


_SCALARS = (str, int, float, bool, NoneType)
"""Types of most values, checked first because `isinstance` with an abstract class is slow."""


def _copy_value(value: Any) -> Any:
    """Return a deep copy of a JSON value."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        return {key: _copy_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copy_value(item) for item in value]
    return value


def _parse_failure(arguments: object) -> str:
    """Return the reason why an argument text is not valid JSON, in parentheses.

    Return an empty text if it is valid JSON or not a text.
    """
    try:
        loads(arguments if isinstance(arguments, str) else "{}")
    except ParseError as error:
        return f" ({error.reason})"
    return ""


@attrs.frozen(init=False)
class ArgumentsValidator:
    """Validator of one tool's arguments."""

    _tool: str
    _schema: CompiledSchema
    _parameters: Mapping[str, Any] = attrs.field(repr=False)

    def __init__(self, tool: str, parameters: Mapping[str, Any]) -> None:
        """Compile the parameter schema of the tool with the name `tool`.

        Raises:
            InvalidToolSchema: The schema is invalid or too costly.
        """
        parameters = _forbid_unknown_arguments(_require_object_schema(tool, parameters))
        try:
            checked = compile_schema(parameters, owner=f"tool {tool!r}")
        except ConfigurationError as error:
            raise InvalidToolSchema(str(error), tool_name=tool) from error.__cause__
        self.__attrs_init__(tool, checked, parameters)

    def validate(self, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
        """Return a validated copy of the arguments, which the tool may modify.

        Text is converted to a number, a boolean or null if the schema accepts no text there.

        Raises:
            InvalidArguments: The arguments are not a JSON object or do not match the schema; the text contains the location.
        """
        if not isinstance(arguments, Mapping):
            raise InvalidArguments(
                f'Invalid arguments for tool "{self._tool}": the arguments must be a JSON object{_parse_failure(arguments)}'
            )
        try:
            copy = dict(arguments)
            for key, value in arguments.items():
                if type(value) not in _SCALARS:
                    copy[key] = _copy_value(value)
            reason = self._schema.reason(copy)
            if reason is not None:
                # Small models send numbers and booleans as text.
                read = coerce(copy, self._parameters)
                if read != copy and self._schema.reason(read) is None:
                    return dict(read)
        except (ValueError, RecursionError) as error:
            reason = str(error)
        if reason is None:
            return copy
        raise InvalidArguments(f'Invalid arguments for tool "{self._tool}": {reason}')


# --- argument coercion -----------------------------------------------------------------------

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": True, "false": False, "True": True, "False": False}
_BRANCHES = ("anyOf", "oneOf", "allOf")
_MAX_LEVELS = 40
_MAX_VALUES = 50
"""Maximum number of `enum` values whose types are examined."""
_MAX_SCHEMAS = 2_000
"""Maximum number of schemas examined per call, about 2 ms."""
_JSON_TYPES: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
    list: "array",
    dict: "object",
}


class _TooManySchemas(Exception):
    """The schema has too many nested schemas to convert texts in a value."""


def coerce(value: Any, schema: Mapping[str, Any]) -> Any:
    """Convert texts in a JSON value to numbers, booleans or null where the schema accepts no text. Return the converted value."""
    try:
        return _Coercion(SchemaReferences(schema)).coerce(value, schema, 0)
    except _TooManySchemas:
        return value


@attrs.define(eq=False)
class _Coercion:
    """Conversion of the texts in one JSON value to the types that its schema accepts."""

    _references: SchemaReferences
    _schema_count: int = 0
    """Number of schemas examined so far, which is limited."""

    def coerce(self, value: Any, schema: Any, level: int) -> Any:
        """Convert texts inside of a value to the types that the schema accepts at their positions.

        Other values are returned unchanged. `level` is the nesting depth.
        """
        if not isinstance(schema, Mapping) or level > _MAX_LEVELS:
            return value
        schemas = list(self._alternatives(schema, 0))
        if isinstance(value, str):
            return _parse_text(value, _types(schemas))
        if isinstance(value, dict):
            return {
                name: self._coerce_member(item, [_property(each, name) for each in schemas], level)
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [
                self._coerce_member(item, [_item(each, index) for each in schemas], level)
                for index, item in enumerate(value)
            ]
        return value

    def _coerce_member(self, value: Any, schemas: list[Any], level: int) -> Any:
        """Convert the texts in a member of an object or an item of an array.

        `schemas` are the member's schemas in the alternatives of its parent. If they differ, the member is unchanged.
        """
        candidates = [each for each in schemas if isinstance(each, Mapping)]
        if not candidates or not all(_is_equal_schema(each, candidates[0]) for each in candidates[1:]):
            return value
        return self.coerce(value, candidates[0], level + 1)

    def _alternatives(self, schema: Mapping[str, Any], level: int) -> Iterator[Mapping[str, Any]]:
        """Yield a schema and all schemas that apply to the same value by references and branches. `level` is the nesting depth."""
        self._schema_count += 1
        if self._schema_count > _MAX_SCHEMAS or level > _MAX_LEVELS:
            raise _TooManySchemas
        yield schema
        others = [each for key in _BRANCHES for each in schema.get(key) or ()]
        if "$ref" in schema:
            others += self._references.targets(schema)
        for each in others:
            if isinstance(each, Mapping):
                yield from self._alternatives(each, level + 1)


def _is_equal_schema(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if two schemas are the same object, or are equal and contain no nested schemas."""
    if one is other:
        return True
    is_flat = not any(isinstance(value, Mapping | list | tuple) for value in one.values())
    return is_flat and one == other


def _property(schema: Mapping[str, Any], name: str) -> Any:
    """Return the schema of a property of an object schema. For an unlisted property, return that of additional properties.

    Return None if the schema has neither.
    """
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return schema.get("additionalProperties")


def _item(schema: Mapping[str, Any], index: int) -> Any:
    """Return the schema of the array item at `index`; None if the array schema does not define this item."""
    items, prefix = schema.get("items"), schema.get("prefixItems")
    if isinstance(prefix, list | tuple) and index < len(prefix):
        return prefix[index]
    return items


def _types(schemas: list[Mapping[str, Any]]) -> set[str]:
    """Return the JSON types that alternative schemas accept together.

    The types contain "string" if a schema does not restrict the type.
    """
    found: set[str] = set()
    for schema in schemas:
        kinds = schema.get("type")
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(values, list | tuple) and len(values) > _MAX_VALUES:
            found.add("string")  # examining each value for each item would be slow
        elif isinstance(values, list | tuple):
            found |= {_JSON_TYPES.get(type(each), "string") for each in values}
        elif isinstance(kinds, str):
            found.add(kinds)
        elif isinstance(kinds, list | tuple):
            found |= set(kinds)
        elif not any(key in schema for key in (*_BRANCHES, "$ref")):
            found.add("object" if "properties" in schema else "string")
    return found


def _parse_text(text: str, types: set[str]) -> Any:
    """Convert a text to a value of one of the JSON types `types`.

    Return the text unchanged if they contain "string" or the text is not a value of these types.
    """
    if "string" in types:
        return text
    word = text.strip()
    if "boolean" in types and word in _BOOLEANS:
        return _BOOLEANS[word]
    is_wanted = (
        ("integer" in types and _INTEGER.fullmatch(word))
        or ("number" in types and _NUMBER.fullmatch(word))
        or ("null" in types and word == "null")
    )
    return _parse_json(word, text) if is_wanted else text


def _parse_json(word: str, otherwise: str) -> Any:
    """Parse a JSON text and return its value. If the text is not JSON, return `otherwise`."""
    try:
        return loads(word)
    except (ParseError, json.JSONDecodeError):
        return otherwise
