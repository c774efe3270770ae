"""Resolution of references within a JSON Schema document: pointers (RFC 6901), anchors and `$id`s.

The target of a `$dynamicRef`, or of a name that two resources have, depends on the value. Such a reference resolves to all
candidates, so that the measured cost is an upper bound.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urljoin

import attrs

_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_METASCHEMA_PREFIXES = ("http://json-schema.org/", "https://json-schema.org/")
"""URIs of the published metaschemas."""
_DIGITS = re.compile("[0-9]{1,9}")
_METASCHEMA_COST = 50
"""Cost of validating one member against a metaschema."""
_METASCHEMA: dict[str, Any] = {"required": [""] * _METASCHEMA_COST}
"""Schema that represents a published metaschema. Validation costs the same for each member."""
_METASCHEMA |= {"additionalProperties": _METASCHEMA, "items": _METASCHEMA}


@attrs.define(eq=False)
class SchemaReferences:
    """Index of the schemas in one schema document to which references can point."""

    _root: Mapping[str, Any]
    _bases: dict[int, str] = attrs.field(factory=dict)
    """Base URI of each schema with a reference, by the `id()` of the schema."""
    _resources: defaultdict[str, list[Any]] = attrs.field(factory=lambda: defaultdict(list))
    """Schemas with an `$id` by their URI."""
    _anchors: defaultdict[str, list[Any]] = attrs.field(factory=lambda: defaultdict(list))
    """Schemas with an `$anchor` by URI and anchor."""
    _dynamic: defaultdict[str, list[Any]] = attrs.field(factory=lambda: defaultdict(list))
    """Schemas by the name of their dynamic anchor."""

    def __attrs_post_init__(self) -> None:
        self._resources[""].append(self._root)
        stack: list[tuple[Any, str]] = [(self._root, "")]
        while stack:
            each, base = stack.pop()
            if isinstance(each, Mapping):
                base = self._index(each, base)
                stack += ((value, base) for value in each.values())
            elif isinstance(each, list | tuple):
                stack += [
                    (value, base) for value in each if type(value) is not str
                ]  # skips the texts of an enum

    def _index(self, schema: Mapping[str, Any], base: str) -> str:
        """Index the id and the anchors of a schema. Return the base URI for the schemas inside of it."""
        named = schema.get("$id", schema.get("id"))
        if isinstance(named, str):
            base = _resolve_uri(base, named).removesuffix("#")
            self._resources[base.partition("#")[0]].append(schema)
            self._anchors[base].append(schema)  # early drafts write an anchor as an `id`
        for anchor in (schema[key] for key in _ANCHORS if isinstance(schema.get(key), str)):
            self._anchors[f"{base}#{anchor}"].append(schema)
            self._dynamic[anchor].append(schema)
        if schema.get("$recursiveAnchor") is True:
            self._dynamic[""].append(schema)
        if any(key in schema for key in _REFS):
            self._bases[id(schema)] = base
        return base

    def targets(self, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the schemas to which the references of a schema resolve.

        References without a target are ignored.
        """
        for key in _REFS:
            reference = schema.get(key)
            if isinstance(reference, str):
                found = self._lookup(_resolve_uri(self._bases[id(schema)], reference))
                yield from (each for each in found if isinstance(each, Mapping))
                if key != "$ref":
                    yield from self._dynamic[reference.partition("#")[2]]

    def _lookup(self, uri: str) -> list[Any]:
        """Return the schemas of the document to which an absolute URI points; several if the target is ambiguous."""
        base, _, fragment = uri.partition("#")
        if base.startswith(_METASCHEMA_PREFIXES) and base not in self._resources:
            return [_METASCHEMA]
        if fragment and not fragment.startswith("/"):
            return self._anchors[f"{base}#{unquote(fragment)}"]
        return [_follow_pointer(each, unquote(fragment)) for each in self._resources[base]]


def _resolve_uri(base: str, reference: str) -> str:
    """Resolve a reference against the URI `base`, and return the absolute URI."""
    if reference.startswith("#"):
        return base.partition("#")[0] + reference
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _follow_pointer(value: Any, pointer: str) -> Any:
    """Return the value at a JSON pointer; None if the pointer has no target."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list | tuple) and _DIGITS.fullmatch(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value
