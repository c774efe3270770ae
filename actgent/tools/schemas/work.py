"""How much work a JSON Schema makes: a validator tries each branch again for every way that leads to it.

A `$ref` to a definition with three branches, each a `$ref` to the next one, is a kilobyte that takes hours. So the ways are
counted before anything is compiled or checked: those inside of a value's own place (`anyOf`, `$ref` ...), from each schema that a
value can begin at, and those that lead from there to its members.

Two more things are counted as if they were schemas. `unevaluatedProperties` marks what the branches beside it have looked at, and
tries them again for that. And the library builds these marks for each way anew, when it compiles (`build_work`).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import attrs

from .references import SchemaReferences

_IN_PLACE = frozenset(("not", "if", "then", "else"))
_IN_PLACE_LISTS = frozenset(("anyOf", "oneOf", "allOf"))
_IN_PLACE_MAPS = frozenset(("dependentSchemas", "dependencies"))
_MARKING = ("unevaluatedItems", "unevaluatedProperties")
_OBJECTS = frozenset(("additionalProperties", "propertyNames", "unevaluatedProperties"))
_ARRAYS = frozenset(("items", "additionalItems", "contains", "unevaluatedItems"))
_ARRAY_LISTS = frozenset(("prefixItems", "items"))
MAX_WORK = 2_000_000
"""Schemas that may be tried for one value, 0.5 s."""
_MOST = 10**12
_MAX_WALKED = 20_000
"""Steps along ways that come back to where they were, 20 ms."""
_LONGEST_CHAIN = 100
"""References from one to the next that are followed."""
_MAX_LINKS = 300_000
"""That are looked at for all of a schema, 0.2 s."""
_MAX_PLACES = 300_000
"""Places of a value that are looked at, 0.3 s."""
MAX_HEIGHT = 100
_ANY: Mapping[str, Any] = {}


class TooMuchWork(Exception):
    """There are more ways than can be counted."""


class Kind(Enum):
    """What is done with a schema."""

    TRIED = "tried"
    MARKED = "marked"
    BUILT = "built"
    BUILT_MARKS = "built marks"


@attrs.frozen
class Inner:
    """A schema right inside of another one."""

    schema: Mapping[str, Any]
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
        if isinstance(value, Mapping) and key in _IN_PLACE | _OBJECTS | _ARRAYS:
            yield Inner(value, key)
        elif isinstance(value, list | tuple) and key in _IN_PLACE_LISTS | _ARRAY_LISTS:
            yield from (Inner(each, key) for each in value if isinstance(each, Mapping))
        elif isinstance(value, Mapping) and key in (*_IN_PLACE_MAPS, "properties"):
            yield from (Inner(each, key, name) for name, each in value.items() if isinstance(each, Mapping))
        elif isinstance(value, Mapping) and key == "patternProperties":
            # Also what is only True has its pattern tried for each name.
            yield from (Inner(each if isinstance(each, Mapping) else _ANY, key) for each in value.values())


def _weight(schema: Mapping[str, Any]) -> int:
    """What a schema checks by itself."""
    required, dependent = schema.get("required"), schema.get("dependentRequired", schema.get("dependencies"))
    lists = [required, *(dependent.values() if isinstance(dependent, Mapping) else ())]
    named = schema.get("properties")
    return (
        1
        + sum(len(each) for each in lists if isinstance(each, list | tuple))
        + (len(named) // 4 if isinstance(named, Mapping) else 0)
    )


Node = tuple[Kind, int]
"""Something done with the schema of a number."""


@attrs.define(eq=False)
class _Graph:
    """The schemas of a document, and what leads to what."""

    _references: SchemaReferences
    _numbers: dict[int, int] = attrs.field(factory=dict)
    schemas: list[Mapping[str, Any]] = attrs.field(factory=list)
    _own: dict[Node, Sequence[Node]] = attrs.field(factory=dict)
    _links: int = 0

    def number(self, schema: Mapping[str, Any]) -> int:
        number = self._numbers.setdefault(id(schema), len(self.schemas))
        if number == len(self.schemas):
            self.schemas.append(schema)
        return number

    def meant(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """What stands behind a schema that is nothing but a reference: all that refer to it share its count."""
        for _ in range(_LONGEST_CHAIN):  # references may go round
            if schema.keys() != {"$ref"} or len(found := list(self.targets(schema))) != 1:
                break
            schema = found[0]
        return schema

    def own(self, node: Node) -> Sequence[Node]:
        """What is done along with it, for the same value."""
        if node not in self._own:
            self._own[node] = list(_DONE_ALONG[node[0]](self, self.schemas[node[1]]))
        self._links += len(self._own[node]) + 1
        if self._links > _MAX_LINKS:
            raise TooMuchWork
        return self._own[node]

    def tried(self, schema: Mapping[str, Any]) -> Iterator[Node]:
        yield from ((Kind.TRIED, self.number(each.schema)) for each in _inner(schema) if each.is_own)
        yield from ((Kind.TRIED, self.number(each)) for each in self.targets(schema))
        yield from [(Kind.MARKED, self.number(schema))] * _marks(schema)

    def marked(self, schema: Mapping[str, Any]) -> Iterator[Node]:
        for number in (self.number(each.schema) for each in _inner(schema) if each.is_own):
            yield from ((Kind.TRIED, number), (Kind.MARKED, number))
        yield from ((Kind.MARKED, self.number(each)) for each in self.targets(schema))

    def built(self, schema: Mapping[str, Any]) -> Iterator[Node]:
        yield from ((Kind.BUILT, self.number(each.schema)) for each in _inner(schema))
        yield from [(Kind.BUILT_MARKS, self.number(schema))] * _marks(schema)

    def built_marks(self, schema: Mapping[str, Any]) -> Iterator[Node]:
        for each in _inner(schema):
            if each.key != "properties":
                yield Kind.BUILT, self.number(each.schema)
            if each.is_own:
                yield Kind.BUILT_MARKS, self.number(each.schema)
        yield from ((Kind.BUILT_MARKS, self.number(each)) for each in self.targets(schema))

    def targets(self, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Where its references lead; one to itself says nothing."""
        return (each for each in self._references.of(schema) if each is not schema)

    def below(self, node: Node) -> Iterator[Inner]:
        """The schemas for members of the value."""
        inside = (each for each in _inner(self.schemas[node[1]]) if not each.is_own)
        return inside if node[0] is Kind.TRIED else (each for each in inside if each.key in _MARKING)


_DONE_ALONG: dict[Kind, Callable[[_Graph, Mapping[str, Any]], Iterator[Node]]] = {
    Kind.TRIED: _Graph.tried,
    Kind.MARKED: _Graph.marked,
    Kind.BUILT: _Graph.built,
    Kind.BUILT_MARKS: _Graph.built_marks,
}


def _marks(schema: Mapping[str, Any]) -> int:
    return sum(key in schema for key in _MARKING)


# --- ways --------------------------------------------------------------------------------------


def _ways(start: Node, own: Callable[[Node], Sequence[Node]]) -> Mapping[Node, int]:
    """How many ways lead from a node to each of those that are done along with it."""
    order = _order(start, own)
    if order is None:
        return _walked(start, own)
    ways: defaultdict[Node, int] = defaultdict(int, {start: 1})
    for node in reversed(order):
        for inner in own(node):
            ways[inner] = min(ways[inner] + ways[node], _MOST)
    return ways


def _order(start: Node, own: Callable[[Node], Sequence[Node]]) -> list[Node] | None:
    """All nodes that can be reached, each behind those that it leads to; None if one leads back to itself."""
    order: list[Node] = []
    is_over: dict[Node, bool] = {}
    stack = [(start, False)]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            is_over[node] = True
            order.append(node)
        elif node not in is_over:
            is_over[node] = False
            stack.append((node, True))
            stack += [(inner, False) for inner in own(node)]
        elif not is_over[node]:
            return None
    return order


def _walked(start: Node, own: Callable[[Node], Sequence[Node]]) -> Mapping[Node, int]:
    """The same where nodes lead back to themselves: each way ends at what it has passed, but for marks, which end nowhere."""
    ways: Counter[Node] = Counter({start: 1})
    path = {start: iter(own(start))}
    for _ in range(_MAX_WALKED):
        if not path:
            return ways
        last = next(reversed(path))
        inner = next(path[last], None)
        if inner is None:
            del path[last]
        elif inner[0] not in (Kind.TRIED, Kind.BUILT):
            raise TooMuchWork
        elif inner not in path:
            ways[inner] += 1
            path[inner] = iter(own(inner))
    raise TooMuchWork


# --- checking ----------------------------------------------------------------------------------

Handed = Mapping[int, int]
"""Schemas that are tried for a value, each with the number of ways that lead to it."""


@attrs.define(eq=False)
class _Entry:
    """A schema that a value, or a member of one, can begin at, with all that is done along with it."""

    weight: int = 0
    named: defaultdict[str, Counter[int]] = attrs.field(factory=lambda: defaultdict(Counter))
    """By the name of a member: where it begins."""
    objects: Counter[int] = attrs.field(factory=Counter)
    """Where each member of an object begins."""
    arrays: Counter[int] = attrs.field(factory=Counter)
    """Where each item of an array begins."""

    def add(self, inner: Inner, number: int, ways: int) -> None:
        """Note a schema for members."""
        if inner.key == "properties":
            self.named[inner.name][number] += ways
        elif inner.key in _OBJECTS or inner.key == "patternProperties":
            self.objects[number] += ways
        else:
            self.arrays[number] += ways

    @property
    def below(self) -> Iterator[Counter[int]]:
        """All that members begin at."""
        return iter((*self.named.values(), self.objects, self.arrays))


@attrs.define(eq=False)
class SchemaWork:
    """The work of one schema: an upper bound of the schemas that are tried, and of the errors that are found."""

    _root: int
    _entries: Mapping[int, _Entry]
    is_circular: bool
    """Whether a schema in it leads back to itself for one and the same value."""
    _rows: list[dict[int, int]] = attrs.field(factory=list)

    @property
    def is_closed(self) -> bool:
        """Return True if no value makes more work than one of as many members as the schema names."""
        return not any(entry.objects or entry.arrays for entry in self._entries.values())

    def at(self, height: int) -> int:
        """For any value of so many levels, each with one member for each schema that the schema has for them."""
        while len(self._rows) <= height:
            lower = self._rows[-1] if self._rows else {}
            row = {number: self._upon(entry, lower) for number, entry in self._entries.items()}
            self._rows.append(row)
            if row == lower or row[self._root] == _MOST:
                self._rows += [row] * (MAX_HEIGHT + 1 - len(self._rows))
        return self._rows[height][self._root]

    def _upon(self, entry: _Entry, lower: Mapping[int, int]) -> int:
        if not lower:
            return min(entry.weight, _MOST)
        members = (ways * lower[number] for below in entry.below for number, ways in below.items())
        return min(entry.weight + sum(members), _MOST)

    def of(self, value: Any, most: int) -> int:
        """For this value; what is more than `most` is not told apart."""
        total = places = 0
        stack: list[tuple[Any, Handed]] = [(value, {self._root: 1})]
        while stack and total <= most:
            each, handed = stack.pop()
            total += self._tried(handed)
            places += len(handed)
            if isinstance(each, list):
                items = self._sum(handed, lambda entry: entry.arrays)
                deeper = [(item, items) for item in each if isinstance(item, dict | list)] if items else []
                total += (len(each) - len(deeper)) * self._tried(items)
                stack += deeper
            elif isinstance(each, dict):
                stack += self._members(each, handed)
            if places > _MAX_PLACES:
                return most + 1
        return total

    def _tried(self, handed: Handed) -> int:
        return sum([self._entries[number].weight * ways for number, ways in handed.items()])

    def _sum(self, handed: Handed, below: Callable[[_Entry], Counter[int]]) -> dict[int, int]:
        summed: dict[int, int] = {}
        for number, ways in handed.items():
            for inner, more in below(self._entries[number]).items():
                summed[inner] = summed.get(inner, 0) + ways * more
        return summed

    def _members(self, value: Mapping[str, Any], handed: Handed) -> Iterator[tuple[Any, Handed]]:
        every = self._sum(handed, lambda entry: entry.objects)
        named = {name for number in handed for name in self._entries[number].named if name in value}
        for name in named:
            own = self._sum(handed, lambda entry, name=name: entry.named.get(name, _NOTHING))  # type: ignore[misc]
            for number, ways in every.items():
                own[number] = own.get(number, 0) + ways
            yield value[name], own
        if every:
            yield from ((member, every) for name, member in value.items() if name not in named)


_NOTHING: Counter[int] = Counter()


def work_of(schema: Mapping[str, Any]) -> SchemaWork:
    """The work of checking a value.

    Raises:
        TooMuchWork: it cannot be counted, or one of the schemas in it makes more than `MAX_WORK` for any value.
    """
    graph = _Graph(SchemaReferences(schema))
    entries: dict[int, _Entry] = {}
    later = [graph.number(schema)]
    while later:
        number = later.pop()
        if number not in entries:
            entries[number] = entry = _entry(graph, number)
            if entry.weight > MAX_WORK:
                raise TooMuchWork
            later += {inner for below in entry.below for inner in below}
    is_circular = any(_order((Kind.TRIED, number), graph.own) is None for number in entries)
    return SchemaWork(0, entries, is_circular)


def _entry(graph: _Graph, number: int) -> _Entry:
    entry = _Entry()
    for node, ways in _ways((Kind.TRIED, number), graph.own).items():
        entry.weight = min(entry.weight + ways * _weight(graph.schemas[node[1]]), _MOST)
        for inner in graph.below(node):
            entry.add(inner, graph.number(graph.meant(inner.schema)), ways)
    return entry


# --- building ----------------------------------------------------------------------------------


def build_work(schema: Mapping[str, Any]) -> int:
    """Count what the library builds beyond the schemas themselves, when it compiles one.

    Raises:
        TooMuchWork: it cannot be counted.
    """
    graph = _Graph(SchemaReferences(schema))
    later, total = [graph.number(schema)], 0
    is_built = {0}
    while later:
        for (kind, number), ways in _ways((Kind.BUILT, later.pop()), graph.own).items():
            total += ways if kind is Kind.BUILT_MARKS else ways - 1
            targets = {graph.number(target) for target in graph.targets(graph.schemas[number])}
            later += targets - is_built
            is_built |= targets
    return total
