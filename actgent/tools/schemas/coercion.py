"""Numbers, booleans and null that a model sent as text, read as what the schema asks for.

Small models write `"3"` for an integer and `"true"` for a boolean. Such a text is converted only if its place takes no
text, and only if it is the JSON of a value that the place takes: nothing is guessed, rounded or cut.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from actgent.errors import ParseError
from actgent.support.strict_json import loads

from .references import SchemaReferences

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "True": True, "False": False}
_BRANCHES = ("anyOf", "oneOf", "allOf")
_MAX_LEVELS = 40
_MAX_VALUES = 50
"""Values of an enum whose types are looked at."""
_MAX_STEPS = 2_000
"""Schemas that are looked at for one call, about 2 ms."""
_NAMES: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
    list: "array",
    dict: "object",
}


class _TooMuchWork(Exception):
    """The schema or the value is too large to be searched for texts to convert."""


def coerced(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a value in which texts are converted where the schema takes no text; equal to `value` if none is."""
    try:
        return _Coercion(SchemaReferences(schema)).coerced(value, schema, 0)
    except _TooMuchWork:
        return value


@attrs.define(eq=False)
class _Coercion:
    """One walk through a value and the schemas of its members."""

    _references: SchemaReferences
    _steps: int = 0

    def coerced(self, value: Any, schema: Any, level: int) -> Any:
        if not isinstance(schema, Mapping) or level > _MAX_LEVELS:
            return value
        schemas = list(self._alternatives(schema, 0))
        if isinstance(value, str):
            return _read(value, _types(schemas))
        if isinstance(value, dict):
            return {
                name: self._member(item, [_property(each, name) for each in schemas], level)
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [
                self._member(item, [_item(each, place) for each in schemas], level)
                for place, item in enumerate(value)
            ]
        return value

    def _member(self, value: Any, schemas: list[Any], level: int) -> Any:
        """Convert a member; alternatives of its parent that say different things of the member convert nothing."""
        given = [each for each in schemas if isinstance(each, Mapping)]
        if not given or not all(_is_same(each, given[0]) for each in given[1:]):
            return value
        return self.coerced(value, given[0], level + 1)

    def _alternatives(self, schema: Mapping[str, Any], level: int) -> Iterator[Mapping[str, Any]]:
        """Yield a schema and those that its references and branches apply to the same value."""
        self._steps += 1
        if self._steps > _MAX_STEPS or level > _MAX_LEVELS:
            raise _TooMuchWork
        yield schema
        others = [each for key in _BRANCHES for each in schema.get(key) or ()]
        if "$ref" in schema:
            others += self._references.of(schema)
        for each in others:
            if isinstance(each, Mapping):
                yield from self._alternatives(each, level + 1)


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True for one schema, and for two flat ones that say the same."""
    if one is other:
        return True
    is_flat = not any(isinstance(value, Mapping | list | tuple) for value in one.values())
    return is_flat and one == other


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


def _types(schemas: list[Mapping[str, Any]]) -> set[str]:
    """Return the types that a value may have; `string` also where a branch does not say."""
    found: set[str] = set()
    for schema in schemas:
        kinds = schema.get("type")
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(values, list | tuple) and len(values) > _MAX_VALUES:
            found.add("string")  # to look at each for each item of a value would be dear
        elif isinstance(values, list | tuple):
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
