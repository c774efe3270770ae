"""How much work a JSON Schema makes: a validator tries each branch again for every way that leads to it.

A `$ref` to a definition with three branches, each a `$ref` to the next one, is a kilobyte that takes hours. So the branches are
counted before anything is checked: those of a value's own place (`anyOf`, `$ref` ...), and those of its members for each
level of the value.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

_IN_PLACE = frozenset(("not", "if", "then", "else"))
_IN_PLACE_LISTS = frozenset(("anyOf", "oneOf", "allOf"))
_IN_PLACE_MAPS = frozenset(("dependentSchemas", "dependencies"))
_BELOW = frozenset(
    (
        "items",
        "additionalItems",
        "contains",
        "additionalProperties",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
    )
)
_BELOW_LISTS = frozenset(("prefixItems", "items"))
_BELOW_MAPS = frozenset(("properties", "patternProperties"))
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_MOST = 10**12
MAX_HEIGHT = 100


@attrs.frozen
class Inner:
    """A schema right inside of another one."""

    schema: Any
    key: str
    """The word under which it stands."""
    name: str = ""
    """Under `properties` the member that it is for."""

    @property
    def is_own(self) -> bool:
        """Return True if it is tried for the value itself, and not for a member."""
        return self.key in _IN_PLACE or self.key in _IN_PLACE_LISTS or self.key in _IN_PLACE_MAPS


def _inner(schema: Mapping[str, Any]) -> Iterator[Inner]:
    for key, value in schema.items():
        if (key in _IN_PLACE or key in _BELOW) and isinstance(value, Mapping):
            yield Inner(value, key)
        elif (key in _IN_PLACE_LISTS or key in _BELOW_LISTS) and isinstance(value, list | tuple):
            yield from (Inner(each, key) for each in value if isinstance(each, Mapping))
        elif (key in _IN_PLACE_MAPS or key in _BELOW_MAPS) and isinstance(value, Mapping):
            yield from (Inner(each, key, name) for name, each in value.items() if isinstance(each, Mapping))


Edge = tuple[str, str, int]
"""From a schema to one of its members': word, name and number."""


@attrs.define(eq=False)
class SchemaWork:
    """The work of one schema: an upper bound of the schemas that are tried, and of the errors that are found."""

    _root: int
    """The place of the whole schema among them."""
    _weights: Sequence[int]
    """Of each schema: what it checks by itself."""
    _own: Sequence[Sequence[int]]
    """For each schema those of the same place, all of which stand before it."""
    _below: Sequence[Sequence[Edge]]
    _rows: list[list[int]] = attrs.field(factory=list)

    @property
    def size(self) -> int:
        """Different schemas in it."""
        return len(self._own)

    def at(self, height: int) -> int:
        """For any value of so many levels, each as wide as what the schema names."""
        height = min(height, MAX_HEIGHT)
        while len(self._rows) <= height:
            lower = self._rows[-1] if self._rows else [0] * self.size
            row = self._row([sum([lower[each] for _, _, each in below]) for below in self._below])
            self._rows.append(row)
            if row == lower:
                self._rows += [row] * (MAX_HEIGHT + 1 - len(self._rows))
        return self._rows[height][self._root]

    def of(self, value: Any) -> int:
        """For this value."""
        order = _members_first(value)
        rows: dict[int, list[int]] = {}
        for each in order:
            rows[id(each)] = self._row([_below_of(each, below, rows) for below in self._below])
        return rows[id(value)][self._root]

    def _row(self, below: Sequence[int]) -> list[int]:
        row: list[int] = []
        for weight, own, members in zip(self._weights, self._own, below, strict=True):
            row.append(min(weight + sum([row[each] for each in own]) + members, _MOST))
        return row


def _members_first(value: Any) -> list[Any]:
    order, stack = [], [value]
    while stack:
        order.append(each := stack.pop())
        stack += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
    return order[::-1]


def _below_of(value: Any, edges: Sequence[Edge], rows: Mapping[int, Sequence[int]]) -> int:
    """The work for the members of a value."""
    if isinstance(value, dict):
        named = [
            rows[id(value[name])][place]
            for key, name, place in edges
            if key == "properties" and name in value
        ]
        every = [
            place
            for key, _, place in edges
            if key != "properties" and "tems" not in key and key != "contains"
        ]
        return sum(named) + sum([rows[id(member)][place] for member in value.values() for place in every])
    if isinstance(value, list):
        every = [place for key, _, place in edges if "tems" in key or key == "contains"]
        return sum([rows[id(member)][place] for member in value for place in every])
    return 0


def work_of(schema: Mapping[str, Any]) -> SchemaWork:
    """The work of a schema whose references are all inside of it."""
    targets = _targets(schema)
    order = _ordered(schema, targets)
    number = {id(each): place for place, each in enumerate(order)}
    own: list[list[int]] = []
    below: list[list[Edge]] = []
    for place, each in enumerate(order):
        inside = _places(each, targets)
        # What leads back to the same place says nothing, and is not followed.
        own.append([n for one in inside if one.is_own and (n := number[id(one.schema)]) < place])
        below.append([(one.key, one.name, number[id(one.schema)]) for one in inside if not one.is_own])
    return SchemaWork(number[id(schema)], [_weight(each) for each in order], own, below)


def _weight(schema: Mapping[str, Any]) -> int:
    required = schema.get("required")
    return 1 + (len(required) if isinstance(required, list | tuple) else 0)


def _places(schema: Mapping[str, Any], targets: Mapping[str, Any]) -> list[Inner]:
    places = list(_inner(schema))
    if any(key.startswith("unevaluated") for key in schema):
        places += [place for place in places if place.is_own]  # which are tried once more
    found = [targets.get(schema[key]) for key in _REFS if isinstance(schema.get(key), str)]
    return [*places, *(Inner(each, "allOf") for each in found if each is not None)]


def _ordered(schema: Any, targets: Mapping[str, Any]) -> list[Any]:
    """All schemas that can be reached, those of the same place before the one that has them."""
    order: list[Any] = []
    seen: set[int] = set()
    later = [schema]
    while later:
        root = later.pop(0)
        stack = [] if id(root) in seen else [(root, False)]
        while stack:
            each, is_done = stack.pop()
            if is_done:
                order.append(each)
            elif id(each) not in seen:
                seen.add(id(each))
                stack.append((each, True))
                places = _places(each, targets)
                stack += [(one.schema, False) for one in places if one.is_own]
                later += [one.schema for one in places if not one.is_own]
    return order


def _targets(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Map references of a schema to itself to their targets: pointers (RFC 6901), anchors and ids."""
    targets: dict[str, Any] = {}
    wanted: set[str] = set()
    stack: list[Any] = [schema]
    while stack:
        each = stack.pop()
        if isinstance(each, Mapping):
            stack += each.values()
            wanted.update(each[key] for key in _REFS if isinstance(each.get(key), str))
            anchors = (each.get(key) for key in ("$anchor", "$dynamicAnchor"))
            targets.update({f"#{anchor}": each for anchor in anchors if isinstance(anchor, str)})
            if isinstance(each.get("$id"), str):
                targets[each["$id"]] = each
        elif isinstance(each, list | tuple):
            stack += each
    bases = {"": schema, **{name: each for name, each in targets.items() if not name.startswith("#")}}
    for reference in wanted - targets.keys():
        base, _, pointer = reference.partition("#")
        found = _pointed(bases.get(base, schema), pointer)
        if found is not None:
            targets[reference] = found
    return targets


def _pointed(value: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        name = step.replace("%25", "%").replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list | tuple) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value if isinstance(value, Mapping) else None
