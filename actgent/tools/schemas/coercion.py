"""Numbers, booleans and null that a model sent as text, read as what the schema asks for.

Small models write `"3"` for an integer and `"true"` for a boolean. Such a text is converted only if its place takes no
text, and only if it is the JSON of a value that the place takes: nothing is guessed, rounded or cut.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from actgent.errors import ParseError
from actgent.support.strict_json import loads

from .references import SchemaReferences

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "True": True, "False": False}
_BRANCHES = ("anyOf", "oneOf", "allOf")
_MAX_LEVELS = 40
_NAMES: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
    list: "array",
    dict: "object",
}


def coerced(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a value in which texts are converted where the schema takes no text; equal to `value` if none is."""
    return _coerced(value, schema, SchemaReferences(schema), 0)


def _coerced(value: Any, schema: Any, references: SchemaReferences, level: int) -> Any:
    if not isinstance(schema, Mapping) or level > _MAX_LEVELS:
        return value
    schemas = list(_alternatives(schema, references, 0))
    if isinstance(value, str):
        read = _read(value, _types(schemas))
        return value if read is value else _coerced(read, schema, references, level + 1)
    if isinstance(value, dict):
        return {
            name: _member(item, [_property(each, name) for each in schemas], references, level)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [
            _member(item, [_item(each, place) for each in schemas], references, level)
            for place, item in enumerate(value)
        ]
    return value


def _member(value: Any, schemas: list[Any], references: SchemaReferences, level: int) -> Any:
    """Convert a member of an object or array; alternatives of its parent that say different things convert nothing."""
    given = [each for each in schemas if isinstance(each, Mapping)]
    if not given or any(each != given[0] for each in given[1:]):
        return value
    return _coerced(value, given[0], references, level + 1)


def _property(schema: Mapping[str, Any], name: str) -> Any:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return schema.get("additionalProperties")


def _item(schema: Mapping[str, Any], place: int) -> Any:
    items, places = schema.get("items"), schema.get("prefixItems")
    if isinstance(places, list | tuple) and place < len(places):
        return places[place]
    return items


def _alternatives(
    schema: Mapping[str, Any], references: SchemaReferences, level: int
) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and those that its references and branches apply to the same value."""
    yield schema
    if level > _MAX_LEVELS:
        return
    others = [each for key in _BRANCHES for each in schema.get(key) or ()]
    if "$ref" in schema:
        others += references.of(schema)
    for each in others:
        if isinstance(each, Mapping):
            yield from _alternatives(each, references, level + 1)


def _types(schemas: list[Mapping[str, Any]]) -> set[str]:
    """Return the types that a value may have; `string` also where a branch does not say."""
    found: set[str] = set()
    for schema in schemas:
        kinds = schema.get("type")
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(values, list | tuple):
            found |= {_NAMES.get(type(each), "string") for each in values}
        elif isinstance(kinds, str):
            found.add(kinds)
        elif isinstance(kinds, list | tuple):
            found |= set(kinds)
        elif not any(key in schema for key in (*_BRANCHES, "$ref")):
            found.add("object" if "properties" in schema else "string")
    return found


def _read(text: str, types: set[str]) -> Any:
    """Return the one value that a text can mean for these types, or the text itself."""
    if "string" in types:
        return text
    word = text.strip()
    if "boolean" in types and word in _WORDS:
        return _WORDS[word]
    is_wanted = (
        ("integer" in types and _INTEGER.fullmatch(word))
        or ("number" in types and _NUMBER.fullmatch(word))
        or ("null" in types and word == "null")
    )
    return _loaded(word, text) if is_wanted else text


def _loaded(word: str, otherwise: str) -> Any:
    try:
        return loads(word)
    except (ParseError, json.JSONDecodeError):
        return otherwise
