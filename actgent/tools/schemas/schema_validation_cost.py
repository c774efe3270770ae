"""Upper bound of the cost of a JSON Schema: the number of subschemas that a validator applies to a value.

A validator applies a branch again for every path that leads to it. A `$ref` to a definition with three branches, each a
`$ref` to the next definition, takes a kilobyte and runs for hours. So paths are counted before a schema is compiled or a
value is validated. Counted are the paths within one value (`anyOf`, `$ref`) from each schema at which the validation of a value can
start, and the paths from there to the members of the value.

Two operations are counted like subschemas. `unevaluatedProperties` marks the properties that adjacent branches evaluated,
and applies these branches again. And the library compiles these marks separately for each path (`compile_cost`).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import attrs

from .schema_references import SchemaReferences

_IN_PLACE = frozenset(("not", "if", "then", "else"))
_IN_PLACE_LISTS = frozenset(("anyOf", "oneOf", "allOf"))
_IN_PLACE_MAPS = frozenset(("dependentSchemas", "dependencies"))
_MARKING = ("unevaluatedItems", "unevaluatedProperties")
_OBJECTS = frozenset(("additionalProperties", "propertyNames", "unevaluatedProperties"))
_ARRAYS = frozenset(("items", "additionalItems", "contains", "unevaluatedItems"))
_ARRAY_LISTS = frozenset(("prefixItems", "items"))
MAX_COST = 2_000_000
"""Maximum number of subschemas that are applied to one value, about 0.5 s."""
_COST_CAP = 10**12
"""Upper limit of all cost counters. Larger costs are not distinguished."""
_MAX_WALK_STEPS = 20_000
"""Maximum number of steps along cyclic paths, about 20 ms."""
_MAX_REFERENCE_CHAIN = 100
"""Maximum number of consecutive references to follow."""
_MAX_LINKS = 300_000
"""Maximum number of links examined per schema, 0.2 s."""
_MAX_VISITS = 300_000
"""Maximum number of (member, subschema) pairs examined per value, 0.3 s."""
MAX_DEPTH = 100
"""Maximum nesting of values, in levels, for which cost is bounded in advance."""
_ANY: Mapping[str, Any] = {}


class SchemaTooCostly(Exception):
    """Error: a schema is too costly to compile or to validate with, because it has too many paths to its subschemas."""


class SchemaOperation(Enum):
    """Operation of the validation library on a schema, whose repetitions are counted."""

    VALIDATE = "validate"
    MARK = "mark"
    COMPILE = "compile"
    COMPILE_MARKS = "compile marks"


@attrs.frozen
class Subschema:
    """A schema directly inside another schema."""

    schema: Mapping[str, Any]
    """The schema inside the other schema."""
    key: str
    """Keyword of the outer schema that contains this schema."""
    name: str = ""
    """Name of the property under `properties`; empty for other keywords."""

    @property
    def applies_in_place(self) -> bool:
        """True if the keyword (`allOf`, `not`, ...) validates the same value, not a property or an item."""
        return self.key in _IN_PLACE or self.key in _IN_PLACE_LISTS or self.key in _IN_PLACE_MAPS


def _subschemas(schema: Mapping[str, Any]) -> Iterator[Subschema]:
    """Yield the subschemas directly inside a schema."""
    for key, value in schema.items():
        if isinstance(value, Mapping) and key in _IN_PLACE | _OBJECTS | _ARRAYS:
            yield Subschema(value, key)
        elif isinstance(value, list | tuple) and key in _IN_PLACE_LISTS | _ARRAY_LISTS:
            yield from (Subschema(each, key) for each in value if isinstance(each, Mapping))
        elif isinstance(value, Mapping) and key in (*_IN_PLACE_MAPS, "properties"):
            yield from (
                Subschema(each, key, name) for name, each in value.items() if isinstance(each, Mapping)
            )
        elif isinstance(value, Mapping) and key == "patternProperties":
            # A schema `true` counts too: its pattern is matched against each name.
            yield from (
                Subschema(each if isinstance(each, Mapping) else _ANY, key) for each in value.values()
            )


def _own_cost(schema: Mapping[str, Any]) -> int:
    """Return the validation cost of the keywords of a schema, without the cost of its subschemas."""
    required, dependent = schema.get("required"), schema.get("dependentRequired", schema.get("dependencies"))
    lists = [required, *(dependent.values() if isinstance(dependent, Mapping) else ())]
    named = schema.get("properties")
    return (
        1
        + sum(len(each) for each in lists if isinstance(each, list | tuple))
        + (len(named) // 4 if isinstance(named, Mapping) else 0)
    )


Node = tuple[SchemaOperation, int]
"""Pair of an operation and the number of the schema to which it applies."""


@attrs.define(eq=False)
class _Graph:
    """Graph of the operations on the schemas of a document. An edge leads to an operation that another operation triggers."""

    _references: SchemaReferences
    _numbers: dict[int, int] = attrs.field(factory=dict)
    """Number of each schema, by the `id()` of the schema."""
    schemas: list[Mapping[str, Any]] = attrs.field(factory=list)
    """Schemas of the document; the index is the schema's number."""
    _successor_cache: dict[Node, Sequence[Node]] = attrs.field(factory=dict)
    _links: int = 0
    """Number of edges examined so far, which is limited."""

    def number(self, schema: Mapping[str, Any]) -> int:
        """Return the number of a schema, which identifies it in nodes of the graph.

        A new schema gets the next number.
        """
        number = self._numbers.setdefault(id(schema), len(self.schemas))
        if number == len(self.schemas):
            self.schemas.append(schema)
        return number

    def follow_references(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Follow a schema that is only a reference to its target, also through several references.

        Return other schemas unchanged.
        """
        for _ in range(_MAX_REFERENCE_CHAIN):  # references may be cyclic
            if schema.keys() != {"$ref"} or len(found := list(self.targets(schema))) != 1:
                break
            schema = found[0]
        return schema

    def successors(self, node: Node) -> Sequence[Node]:
        """Return the operations that the operation `node` triggers for the same value. The result is cached.

        Raises:
            SchemaTooCostly: More than `_MAX_LINKS` edges were examined.
        """
        if node not in self._successor_cache:
            self._successor_cache[node] = list(_SUCCESSORS[node[0]](self, self.schemas[node[1]]))
        self._links += len(self._successor_cache[node]) + 1
        if self._links > _MAX_LINKS:
            raise SchemaTooCostly
        return self._successor_cache[node]

    def validation_steps(self, schema: Mapping[str, Any]) -> Iterator[Node]:
        """Yield the operations that the validation of a schema triggers."""
        yield from (
            (SchemaOperation.VALIDATE, self.number(each.schema))
            for each in _subschemas(schema)
            if each.applies_in_place
        )
        yield from ((SchemaOperation.VALIDATE, self.number(each)) for each in self.targets(schema))
        yield from [(SchemaOperation.MARK, self.number(schema))] * _count_marking_keywords(schema)

    def marking_steps(self, schema: Mapping[str, Any]) -> Iterator[Node]:
        """Yield the operations that the marking of evaluated members by a schema triggers.

        Keywords such as `unevaluatedItems` need these marks.
        """
        for number in (self.number(each.schema) for each in _subschemas(schema) if each.applies_in_place):
            yield from ((SchemaOperation.VALIDATE, number), (SchemaOperation.MARK, number))
        yield from ((SchemaOperation.MARK, self.number(each)) for each in self.targets(schema))

    def compile_steps(self, schema: Mapping[str, Any]) -> Iterator[Node]:
        """Yield the operations that the compilation of a schema triggers."""
        yield from ((SchemaOperation.COMPILE, self.number(each.schema)) for each in _subschemas(schema))
        yield from [(SchemaOperation.COMPILE_MARKS, self.number(schema))] * _count_marking_keywords(schema)

    def mark_compile_steps(self, schema: Mapping[str, Any]) -> Iterator[Node]:
        """Yield the operations that the compilation of a schema's marking code triggers.

        Marks record which members of a value a schema has evaluated.
        """
        for each in _subschemas(schema):
            if each.key != "properties":
                yield SchemaOperation.COMPILE, self.number(each.schema)
            if each.applies_in_place:
                yield SchemaOperation.COMPILE_MARKS, self.number(each.schema)
        yield from ((SchemaOperation.COMPILE_MARKS, self.number(each)) for each in self.targets(schema))

    def targets(self, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the schemas to which the references of a schema resolve, except the schema itself."""
        return (each for each in self._references.targets(schema) if each is not schema)

    def members(self, node: Node) -> Iterator[Subschema]:
        """Yield the subschemas that the operation `node` applies to members of the value."""
        inside = (each for each in _subschemas(self.schemas[node[1]]) if not each.applies_in_place)
        return (
            inside
            if node[0] is SchemaOperation.VALIDATE
            else (each for each in inside if each.key in _MARKING)
        )


_SUCCESSORS: dict[SchemaOperation, Callable[[_Graph, Mapping[str, Any]], Iterator[Node]]] = {
    SchemaOperation.VALIDATE: _Graph.validation_steps,
    SchemaOperation.MARK: _Graph.marking_steps,
    SchemaOperation.COMPILE: _Graph.compile_steps,
    SchemaOperation.COMPILE_MARKS: _Graph.mark_compile_steps,
}
"""Method of each operation that yields the operations it triggers."""


def _count_marking_keywords(schema: Mapping[str, Any]) -> int:
    return sum(key in schema for key in _MARKING)


# --- counting paths -------------------------------------------------------------------------------------


def _count_paths(start: Node, successors: Callable[[Node], Sequence[Node]]) -> Mapping[Node, int]:
    """Return, for each node that can be reached from `start`, the number of paths to this node.

    Raises:
        SchemaTooCostly: The graph is cyclic and has too many paths.
    """
    order = _topological_order(start, successors)
    if order is None:
        return _count_cyclic_paths(start, successors)
    paths: defaultdict[Node, int] = defaultdict(int, {start: 1})
    for node in reversed(order):
        for inner in successors(node):
            paths[inner] = min(paths[inner] + paths[node], _COST_CAP)
    return paths


def _topological_order(start: Node, successors: Callable[[Node], Sequence[Node]]) -> list[Node] | None:
    """Return all nodes that can be reached from `start`, each after its successors; None if the graph is cyclic."""
    order: list[Node] = []
    is_finished: dict[Node, bool] = {}
    stack = [(start, False)]
    while stack:
        node, is_expanded = stack.pop()
        if is_expanded:
            is_finished[node] = True
            order.append(node)
        elif node not in is_finished:
            is_finished[node] = False
            stack.append((node, True))
            stack += [(inner, False) for inner in successors(node)]
        elif not is_finished[node]:
            return None
    return order


def _count_cyclic_paths(start: Node, successors: Callable[[Node], Sequence[Node]]) -> Mapping[Node, int]:
    """Return the number of paths to each reachable node of a cyclic graph. A path ends where it would repeat a node.

    Raises:
        SchemaTooCostly: There are too many paths, or a cycle of marks, which never ends.
    """
    paths: Counter[Node] = Counter({start: 1})
    path = {start: iter(successors(start))}
    for _ in range(_MAX_WALK_STEPS):
        if not path:
            return paths
        last = next(reversed(path))
        inner = next(path[last], None)
        if inner is None:
            del path[last]
        elif inner[0] not in (SchemaOperation.VALIDATE, SchemaOperation.COMPILE):
            raise SchemaTooCostly
        elif inner not in path:
            paths[inner] += 1
            path[inner] = iter(successors(inner))
    raise SchemaTooCostly


# --- checking a value ----------------------------------------------------------------------------------

PathCounts = Mapping[int, int]
"""Number of paths to each schema that applies to a value, by schema number."""


@attrs.define(eq=False)
class _StartSchema:
    """Costs of a schema at which the validation of a value starts, with all schemas that apply to the same value."""

    cost: int = 0
    """Validation cost of a value without its members, as a number of applied subschemas."""
    named: defaultdict[str, Counter[int]] = attrs.field(factory=lambda: defaultdict(Counter))
    """By property name: for each start schema that applies to the property, the number of paths that lead to it."""
    objects: Counter[int] = attrs.field(factory=Counter)
    """For each start schema that applies to all members of an object, the number of paths that lead to it."""
    arrays: Counter[int] = attrs.field(factory=Counter)
    """For each start schema that applies to all items of an array, the number of paths that lead to it."""

    def add(self, inner: Subschema, number: int, paths: int) -> None:
        """Add `paths` to the count of paths that lead to the subschema `inner`, which applies to members of the value.

        `number` is the number of the subschema.
        """
        if inner.key == "properties":
            self.named[inner.name][number] += paths
        elif inner.key in _OBJECTS or inner.key == "patternProperties":
            self.objects[number] += paths
        else:
            self.arrays[number] += paths

    @property
    def members(self) -> Iterator[Counter[int]]:
        """Path counts of the subschemas for members: one counter by schema number for each property, objects and arrays."""
        return iter((*self.named.values(), self.objects, self.arrays))


@attrs.define(eq=False)
class SchemaCost:
    """Cost of validating values against one schema: an upper bound of applied subschemas and of errors."""

    _root: int
    """Number of the root schema."""
    _entries: Mapping[int, _StartSchema]
    """Costs of each start schema, by schema number."""
    is_circular: bool
    """True if a schema refers to itself for the same value."""
    _rows: list[dict[int, int]] = attrs.field(factory=list)
    """Cached cost by number of the start schema: one dict for each depth of the value."""

    @property
    def is_bounded(self) -> bool:
        """True if the schema lists all members that a value may have, so that large values do not take longer to validate."""
        return not any(entry.objects or entry.arrays for entry in self._entries.values())

    def at_depth(self, depth: int) -> int:
        """Return the cost of validating a value of `depth` levels, with one member for each member schema."""
        while len(self._rows) <= depth:
            lower = self._rows[-1] if self._rows else {}
            row = {number: self._cost_with_members(entry, lower) for number, entry in self._entries.items()}
            self._rows.append(row)
            if row == lower or row[self._root] == _COST_CAP:
                self._rows += [row] * (MAX_DEPTH + 1 - len(self._rows))
        return self._rows[depth][self._root]

    def _cost_with_members(self, entry: _StartSchema, lower: Mapping[int, int]) -> int:
        """Return the cost of validating a value and its members, if validation starts at the schema `entry`.

        `lower` has the cost of each schema that applies to members, by schema number.
        """
        if not lower:
            return min(entry.cost, _COST_CAP)
        members = (paths * lower[number] for members in entry.members for number, paths in members.items())
        return min(entry.cost + sum(members), _COST_CAP)

    def for_value(self, value: Any, limit: int) -> int:
        """Return the cost of validating a value against the schema.

        Counting stops above `limit`, so a larger result is only a lower bound.
        """
        total = visits = 0
        stack: list[tuple[Any, PathCounts]] = [(value, {self._root: 1})]
        while stack and total <= limit:
            each, path_counts = stack.pop()
            total += self._cost_of(path_counts)
            visits += len(path_counts)
            if isinstance(each, list):
                items = self._sum_counts(path_counts, lambda entry: entry.arrays)
                deeper = [(item, items) for item in each if isinstance(item, dict | list)] if items else []
                total += (len(each) - len(deeper)) * self._cost_of(items)
                stack += deeper
            elif isinstance(each, dict):
                stack += self._members(each, path_counts)
            if visits > _MAX_VISITS:
                return limit + 1
        return total

    def _cost_of(self, path_counts: PathCounts) -> int:
        """Return the cost of validating a value without its members against the start schemas in `path_counts`."""
        return sum([self._entries[number].cost * paths for number, paths in path_counts.items()])

    def _sum_counts(
        self, path_counts: PathCounts, members: Callable[[_StartSchema], Counter[int]]
    ) -> dict[int, int]:
        """Count the paths to each schema for a member of the value, by schema number.

        `path_counts` has the paths to the schemas for the value itself. `members` returns the counter of one such schema
        for the member.
        """
        summed: dict[int, int] = {}
        for number, paths in path_counts.items():
            for inner, more in members(self._entries[number]).items():
                summed[inner] = summed.get(inner, 0) + paths * more
        return summed

    def _members(self, value: Mapping[str, Any], path_counts: PathCounts) -> Iterator[tuple[Any, PathCounts]]:
        """Yield each member of an object value with the path counts of the schemas that apply to it."""
        for_all = self._sum_counts(path_counts, lambda entry: entry.objects)
        named = {name for number in path_counts for name in self._entries[number].named if name in value}
        for name in named:
            own = self._sum_counts(path_counts, lambda entry, name=name: entry.named.get(name, _NO_COUNTS))  # type: ignore[misc]
            for number, paths in for_all.items():
                own[number] = own.get(number, 0) + paths
            yield value[name], own
        if for_all:
            yield from ((member, for_all) for name, member in value.items() if name not in named)


_NO_COUNTS: Counter[int] = Counter()


def measure_cost(schema: Mapping[str, Any]) -> SchemaCost:
    """Measure the cost of validating values against a schema.

    Raises:
        SchemaTooCostly: The cost exceeds `MAX_COST` for any value, or cannot be counted.
    """
    graph = _Graph(SchemaReferences(schema))
    entries: dict[int, _StartSchema] = {}
    pending = [graph.number(schema)]
    while pending:
        number = pending.pop()
        if number not in entries:
            entries[number] = entry = _make_start(graph, number)
            if entry.cost > MAX_COST:
                raise SchemaTooCostly
            pending += {inner for members in entry.members for inner in members}
    is_circular = any(
        _topological_order((SchemaOperation.VALIDATE, number), graph.successors) is None for number in entries
    )
    return SchemaCost(0, entries, is_circular)


def _make_start(graph: _Graph, number: int) -> _StartSchema:
    """Compute the `_StartSchema` of a schema: the summed cost of all schemas for the same value, and those for its members.

    `number` is the number of the schema in the graph.
    """
    entry = _StartSchema()
    for node, paths in _count_paths((SchemaOperation.VALIDATE, number), graph.successors).items():
        entry.cost = min(entry.cost + paths * _own_cost(graph.schemas[node[1]]), _COST_CAP)
        for inner in graph.members(node):
            entry.add(inner, graph.number(graph.follow_references(inner.schema)), paths)
    return entry


# --- compiling ----------------------------------------------------------------------------------


def compile_cost(schema: Mapping[str, Any]) -> int:
    """Return the number of schemas and marks that the library compiles repeatedly, in addition to each schema once.

    Raises:
        SchemaTooCostly: The cost cannot be counted.
    """
    graph = _Graph(SchemaReferences(schema))
    pending, total = [graph.number(schema)], 0
    is_built = {0}
    while pending:
        for (kind, number), paths in _count_paths(
            (SchemaOperation.COMPILE, pending.pop()), graph.successors
        ).items():
            total += paths if kind is SchemaOperation.COMPILE_MARKS else paths - 1
            targets = {graph.number(target) for target in graph.targets(graph.schemas[number])}
            pending += targets - is_built
            is_built |= targets
    return total
