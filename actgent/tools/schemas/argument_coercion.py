"""Conversion of arguments that a model sent as text to numbers, booleans or null.

Small models send `"3"` for an integer and `"true"` for a boolean. A text is converted only if the schema does not
accept text at
that position, and the text is exactly the JSON of an accepted type. Nothing is guessed, rounded or truncated.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from actgent.errors import ParseError
from actgent.support.strict_json import loads

from .schema_references import SchemaReferences

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
    """The schema or the value is too large to search for text to convert."""


def coerce(value: Any, schema: Mapping[str, Any]) -> Any:
    """Convert text values to numbers, booleans or null if the schema accepts no text there; return the converted value."""
    try:
        return _Coercion(SchemaReferences(schema)).coerce(value, schema, 0)
    except _TooManySchemas:
        return value


@attrs.define(eq=False)
class _Coercion:
    """One traversal of a value together with its schema."""

    _references: SchemaReferences
    _schema_count: int = 0
    """Number of schemas examined so far."""

    def coerce(self, value: Any, schema: Any, level: int) -> Any:
        """Convert texts in a value to the types that the schema accepts there.

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
        """Convert a member of a value.

        It stays unchanged if the alternatives of its parent have different schemas for it.
        """
        candidates = [each for each in schemas if isinstance(each, Mapping)]
        if not candidates or not all(_is_equal_schema(each, candidates[0]) for each in candidates[1:]):
            return value
        return self.coerce(value, candidates[0], level + 1)

    def _alternatives(self, schema: Mapping[str, Any], level: int) -> Iterator[Mapping[str, Any]]:
        """Yield a schema and all schemas that its references and branches apply to the same value."""
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
    """Return the schema of an object's property, else that of additional properties.

    None if the schema has neither.
    """
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return schema.get("additionalProperties")


def _item(schema: Mapping[str, Any], index: int) -> Any:
    """Return the schema of an array's item; None if the schema does not define the item."""
    items, prefix = schema.get("items"), schema.get("prefixItems")
    if isinstance(prefix, list | tuple) and index < len(prefix):
        return prefix[index]
    return items


def _types(schemas: list[Mapping[str, Any]]) -> set[str]:
    """Return the JSON types that the schemas accept; includes "string" if a schema does not restrict the type."""
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
    """Convert a text to one of the accepted types.

    The text is returned unchanged if text is accepted or no type fits.
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
    """Return a parsed JSON text, or `otherwise` if it is not JSON."""
    try:
        return loads(word)
    except (ParseError, json.JSONDecodeError):
        return otherwise
