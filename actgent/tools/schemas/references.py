"""Where the references of a JSON Schema lead, as its `$id`s have them read: pointers (RFC 6901), anchors and names of resources.

What cannot be told without the values (`$dynamicRef`, two resources of one name) leads to all that it may be, so that nothing is missed.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urljoin

import attrs

_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_PUBLISHED = ("http://json-schema.org/", "https://json-schema.org/")
_DIGITS = re.compile("[0-9]{1,9}")
_PUBLISHED_WEIGHT = 50
_META: dict[str, Any] = {"required": [""] * _PUBLISHED_WEIGHT}
"""Stands for a schema of schemas, which is the same for each member of a value."""
_META |= {"additionalProperties": _META, "items": _META}


@attrs.define(eq=False)
class SchemaReferences:
    """The targets of the references of one schema document."""

    _root: Mapping[str, Any]
    _bases: dict[int, str] = attrs.field(factory=dict)
    """By the id of a schema with a reference: what the reference is relative to."""
    _resources: defaultdict[str, list[Any]] = attrs.field(factory=lambda: defaultdict(list))
    _anchors: defaultdict[str, list[Any]] = attrs.field(factory=lambda: defaultdict(list))
    _dynamic: defaultdict[str, list[Any]] = attrs.field(factory=lambda: defaultdict(list))

    def __attrs_post_init__(self) -> None:
        self._resources[""].append(self._root)
        stack: list[tuple[Any, str]] = [(self._root, "")]
        while stack:
            each, base = stack.pop()
            if isinstance(each, Mapping):
                base = self._read(each, base)
                stack += ((value, base) for value in each.values())
            elif isinstance(each, list | tuple):
                stack += [(value, base) for value in each if type(value) is not str]  # words of an enum

    def _read(self, schema: Mapping[str, Any], base: str) -> str:
        named = schema.get("$id", schema.get("id"))
        if isinstance(named, str):
            base = _joined(base, named).removesuffix("#")
            self._resources[base.partition("#")[0]].append(schema)
            self._anchors[base].append(schema)  # an anchor, as the early drafts write it
        for anchor in (schema[key] for key in _ANCHORS if isinstance(schema.get(key), str)):
            self._anchors[f"{base}#{anchor}"].append(schema)
            self._dynamic[anchor].append(schema)
        if schema.get("$recursiveAnchor") is True:
            self._dynamic[""].append(schema)
        if any(key in schema for key in _REFS):
            self._bases[id(schema)] = base
        return base

    def of(self, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """The schemas that stand for the references of this one."""
        for key in _REFS:
            reference = schema.get(key)
            if isinstance(reference, str):
                found = self._found(_joined(self._bases[id(schema)], reference))
                yield from (each for each in found if isinstance(each, Mapping))
                if key != "$ref":
                    yield from self._dynamic[reference.partition("#")[2]]

    def _found(self, uri: str) -> list[Any]:
        base, _, fragment = uri.partition("#")
        if base.startswith(_PUBLISHED) and base not in self._resources:
            return [_META]
        if fragment and not fragment.startswith("/"):
            return self._anchors[f"{base}#{unquote(fragment)}"]
        return [_pointed(each, unquote(fragment)) for each in self._resources[base]]


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base.partition("#")[0] + reference
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _pointed(value: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list | tuple) and _DIGITS.fullmatch(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value
