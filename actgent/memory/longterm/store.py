"""A store of memories in a SQL database. All of this is sync, and runs in the thread of its connection.

What databases do alike is written here once; how they index words and vectors is their own.
"""

import abc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs

from actgent.errors import ConfigurationError, MemoriesFull, MemoryNotFound, MemoryReplaced
from actgent.messages import Sender

from .operations import (
    Associate,
    Embed,
    Erase,
    ForgetThese,
    Operation,
    Put,
    Replace,
    Search,
    SetMark,
    Together,
    Use,
)
from .ranking import DAY, LEAST_IMPORTANCE
from .scope import Scope, owner_key, owner_of_key
from .unit import EVERYTHING, Association, MemoryFilter, MemoryUnit, clean, normal_form, written_value

Row = tuple[Any, ...]
_PLAIN = (
    *(
        "id",
        "text",
        "kind",
        "agent",
        "session_id",
        "message_id",
        "importance",
        "created_at",
        "last_used",
        "uses",
    ),
    *("valid_from", "valid_until", "replaces", "replaced_by"),
)
"""Fields of a memory that stand in columns as they are."""
_COLUMNS = ("number", *_PLAIN, "owner", "is_shared", "is_kept", "metadata")
_SELECT = f"SELECT {', '.join(f'm.{name}' for name in _COLUMNS)} FROM memories AS m"  # noqa: S608 - names of our own
_STORED = (*_COLUMNS[1:], "said")
_CURRENT = "m.replaced_by IS NULL"
_VALID = "(m.valid_from IS NULL OR m.valid_from <= ?) AND (m.valid_until IS NULL OR m.valid_until > ?)"
_COUNT = f"SELECT count(*) FROM memories AS m WHERE m.owner = ? AND {_CURRENT}"  # noqa: S608
MANY = 500
"""Values of one statement."""
SLACK = 50
"""Of a capacity of so many, one more is evicted than has to be, so that not each memory evicts another."""

TABLES = """
    CREATE TABLE memories (
        number {serial}, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, kind TEXT NOT NULL, owner TEXT NOT NULL,
        is_shared INTEGER NOT NULL, agent TEXT NOT NULL, session_id TEXT NOT NULL, message_id TEXT NOT NULL,
        importance {real} NOT NULL, is_kept INTEGER NOT NULL, created_at {real} NOT NULL, last_used {real} NOT NULL,
        uses INTEGER NOT NULL, valid_from {real}, valid_until {real}, metadata TEXT NOT NULL, replaces TEXT,
        replaced_by TEXT, said TEXT NOT NULL
    );
    CREATE INDEX by_owner ON memories (owner, number) WHERE replaced_by IS NULL;
    CREATE INDEX by_shared ON memories (number) WHERE is_shared = 1 AND replaced_by IS NULL;
    CREATE INDEX by_session ON memories (session_id, owner);
    CREATE TABLE details (
        number {integer} NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (number, name)
    );
    CREATE TABLE links (
        source {integer} NOT NULL, target {integer} NOT NULL, relation TEXT NOT NULL,
        PRIMARY KEY (source, target, relation)
    );
    CREATE INDEX by_target ON links (target);
    CREATE TABLE acts (owner TEXT NOT NULL, name TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (owner, name));
    CREATE TABLE marks (owner TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (owner, name));
"""
"""What all databases have; columns never change their meaning."""


@attrs.frozen
class Found:
    """A row as a memory."""

    number: int
    memory: MemoryUnit


class MemoryStore(abc.ABC):
    """The memories of all owners in one database.

    Args:
        capacity: How many memories an owner may have that count now; None: any number.
        half_life: Days without use in which a memory's worth halves; None: it does not fade.
    """

    def __init__(self, *, capacity: int | None, half_life: float | None) -> None:
        self.capacity = capacity
        self.half_life = half_life
        self.evicted = 0
        """Memories that made room for others since it was opened."""
        self._does: dict[type, Callable[[Any], object]] = {
            Put: self._put,
            Replace: self._replace,
            ForgetThese: self._forget,
            Associate: self._associate,
            SetMark: self._mark,
            Use: self._use,
            Embed: self._embed,
            Erase: self._erase,
            Together: lambda todo: [self._does[type(each)](each) for each in todo.operations],
        }

    # --- what a database does in its own way ---------------------------------------------

    @abc.abstractmethod
    def run(self, sql: str, values: Iterable[object] = ()) -> list[Row]:
        """Run a statement whose values stand as `?`."""

    def run_many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement that returns nothing with each of some rows of values, in their order."""
        for row in rows:
            self.run(sql, row)

    @abc.abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """A block that is written whole, and durable at its end."""

    @abc.abstractmethod
    def attempt(self) -> AbstractContextManager[object]:
        """A block in a transaction of which nothing is left where it raises."""

    @abc.abstractmethod
    def insert(self, names: Sequence[str], values: Sequence[object], memory: MemoryUnit) -> int:
        """Write the row of a memory, and let it be found by its words; returns its number."""

    @abc.abstractmethod
    def embed(self, vectors: Mapping[int, bytes]) -> None:
        """Let memories be found by what they mean."""

    @abc.abstractmethod
    def unindex(self, numbers: Sequence[int]) -> None:
        """Let memories be found no more; nothing of their words and vectors stays."""

    @abc.abstractmethod
    def find_words(self, search: Search, condition: str, values: Sequence[object]) -> list[int]:
        """The numbers of memories with some of the words, best first, of which a condition is true."""

    @abc.abstractmethod
    def find_near(self, search: Search, condition: str, values: Sequence[object]) -> list[int]:
        """The numbers of memories whose vectors are near, nearest first."""

    def without_vector(self, limit: int) -> list[tuple[int, str]]:
        """Memories that count now and have no vector: their numbers and texts."""
        rows = self.run(
            "SELECT number, text FROM memories WHERE replaced_by IS NULL "
            "AND number NOT IN (SELECT number FROM vectors) ORDER BY number LIMIT ?",
            (limit,),
        )
        return [(number, text) for number, text in rows]

    @abc.abstractmethod
    def close(self) -> None:
        """Leave the database."""

    # --- writing -------------------------------------------------------------------------

    def apply(self, operations: Sequence[Operation]) -> list[object]:
        """Do all of them in one transaction; the result of each, or what it raised, which undoes nothing of the others."""
        with self.transaction():
            return [self._attempt(each) for each in operations]

    def _attempt(self, todo: Operation) -> object:
        try:
            with self.attempt():
                return self._does[type(todo)](todo)
        except (ConfigurationError, MemoryNotFound, MemoryReplaced, MemoriesFull) as error:
            return error

    def _put(self, todo: Put) -> MemoryUnit:
        owner = owner_key(todo.unit.owner)
        found = self._done_before(owner, todo.key, todo.unit)
        if found is None and todo.is_unique:
            found = self._same(owner, todo.unit)
            if found is not None:
                self._note_act(owner, todo.key, found.id)
        if found is not None:
            return found
        self._make_room(todo.unit)
        self._note_act(owner, todo.key, todo.unit.id)
        self._insert(todo.unit, todo.vector)
        return todo.unit

    def _done_before(self, owner: str, key: str, unit: MemoryUnit) -> MemoryUnit | None:
        """Return what came of an act when it was done before; as it was to be, where it has been forgotten since."""
        rows = self.run("SELECT id FROM acts WHERE owner = ? AND name = ?", (owner, key)) if key else []
        if not rows:
            return None
        found = self._read("m.id = ? AND m.owner = ?", (rows[0][0], owner))
        return found[0].memory if found else attrs.evolve(unit, id=rows[0][0])

    def _same(self, owner: str, unit: MemoryUnit) -> MemoryUnit | None:
        condition = f"m.owner = ? AND m.said = ? AND m.kind = ? AND {_CURRENT}"
        found = self._read(condition, (owner, normal_form(unit.text), unit.kind))
        return found[0].memory if found else None

    def _note_act(self, owner: str, key: str, memory_id: str) -> None:
        if key:
            self.run("INSERT INTO acts VALUES (?, ?, ?)", (owner, key, memory_id))

    def _insert(self, unit: MemoryUnit, vector: bytes | None) -> int:
        values = [getattr(unit, name) for name in _PLAIN]
        values += [owner_key(unit.owner), int(unit.is_shared), int(unit.is_kept)]
        values += [json.dumps(dict(unit.metadata)), normal_form(unit.text)]
        number = self.insert(_STORED, values, unit)
        for name, value in unit.metadata.items():
            self.run("INSERT INTO details VALUES (?, ?, ?)", (number, name, written_value(value)))
        if vector is not None:
            self.embed({number: vector})
        return number

    def _make_room(self, unit: MemoryUnit) -> None:
        """Evict what is least worth keeping, where an owner has as many memories as may be."""
        if self.capacity is None:
            return
        owner = owner_key(unit.owner)
        count: int = self.run(_COUNT, (owner,))[0][0]
        if count < self.capacity:
            return
        many = count - self.capacity + 1 + self.capacity // SLACK
        # The logarithm of the worth, but for a term that all share: `ranking.worth`.
        faded = "0" if self.half_life is None else f"m.last_used / {self.half_life * DAY!r}"
        weight = f"CASE WHEN m.importance > {LEAST_IMPORTANCE} THEN m.importance ELSE {LEAST_IMPORTANCE} END"
        rows = self.run(
            f"SELECT m.id FROM memories AS m WHERE m.owner = ? AND {_CURRENT} AND m.is_kept = 0 "  # noqa: S608
            f"ORDER BY {self.logarithm} ({weight}) / {self.logarithm} (2.0) + {faded}, m.number LIMIT ?",
            (owner, many),
        )
        if count - len(rows) >= self.capacity:
            raise MemoriesFull(unit.owner.name, self.capacity)
        self.evicted += self._forget(
            ForgetThese(scope=Scope(unit.owner, with_shared=False), ids=[each for (each,) in rows])
        )

    logarithm = "ln"

    def _replace(self, todo: Replace) -> MemoryUnit:
        owner = todo.scope.key
        old = self._one(todo.scope, todo.old)
        done = self._done_before(owner, todo.key, old.memory)
        if done is not None:
            return done
        if old.memory.replaced_by is not None:
            raise MemoryReplaced(old.memory.id, old.memory.replaced_by)
        fresh: dict[str, Any] = {"id": todo.new_id, "created_at": todo.now, "last_used": todo.now, "uses": 0}
        unit = attrs.evolve(old.memory, **fresh, replaces=old.memory.id, **todo.changes)
        self.run("UPDATE memories SET replaced_by = ? WHERE number = ?", (unit.id, old.number))
        self.unindex([old.number])
        self._note_act(owner, todo.key, unit.id)
        number = self._insert(unit, todo.vector)
        for column, other in (("source", "target"), ("target", "source")):
            self.run(
                f"INSERT INTO links ({column}, {other}, relation) SELECT ?, {other}, relation FROM links WHERE {column} = ?",  # noqa: S608
                (number, old.number),
            )
        return unit

    def _forget(self, todo: ForgetThese) -> int:
        if todo.ids:
            found = [self._one(todo.scope, each) for each in dict.fromkeys(todo.ids) if self._has(todo, each)]
        else:
            condition, values = _condition(todo.scope, todo.wanted)
            found = self._read(condition, values)
        self._remove([each.number for first in found for each in self._chain(first)])
        return len(found)

    def _has(self, todo: ForgetThese, memory_id: str) -> bool:
        condition, values = todo.scope.condition
        return bool(
            self.run(
                f"SELECT 1 FROM memories AS m WHERE m.id = ? AND {condition}",  # noqa: S608
                (memory_id, *values),
            )
        )

    def _remove(self, numbers: Iterable[int]) -> None:
        for some in _pieces(list(dict.fromkeys(numbers))):
            places = _places(some)
            self.unindex(some)
            self.run(f"DELETE FROM details WHERE number IN ({places})", some)  # noqa: S608
            self.run(f"DELETE FROM links WHERE source IN ({places}) OR target IN ({places})", [*some, *some])  # noqa: S608
            self.run(f"DELETE FROM memories WHERE number IN ({places})", some)  # noqa: S608

    def _erase(self, todo: Erase) -> int:
        owner = owner_key(todo.owner)
        numbers = [number for (number,) in self.run("SELECT number FROM memories WHERE owner = ?", (owner,))]
        self._remove(numbers)
        for table in ("acts", "marks"):
            self.run(f"DELETE FROM {table} WHERE owner = ?", (owner,))  # noqa: S608
        return len(numbers)

    def _associate(self, todo: Associate) -> bool:
        source = self._one(todo.scope, todo.source).number
        target = self._one(todo.scope, todo.target).number
        link = (source, target, todo.relation)
        there = self.run("SELECT 1 FROM links WHERE source = ? AND target = ? AND relation = ?", link)
        if bool(there) is not todo.is_removed:
            return False
        if todo.is_removed:
            self.run("DELETE FROM links WHERE source = ? AND target = ? AND relation = ?", link)
        else:
            self.run("INSERT INTO links (source, target, relation) VALUES (?, ?, ?)", link)
        return True

    def _mark(self, todo: SetMark) -> str:
        place = (owner_key(todo.owner), todo.name)
        rows = self.run("SELECT value FROM marks WHERE owner = ? AND name = ?", place)
        if rows and todo.once:
            return str(rows[0][0])
        if rows:
            self.run("UPDATE marks SET value = ? WHERE owner = ? AND name = ?", (todo.value, *place))
        else:
            self.run("INSERT INTO marks VALUES (?, ?, ?)", (*place, todo.value))
        return todo.value

    def _embed(self, todo: Embed) -> None:
        if todo.is_anew:
            self.run("DELETE FROM vectors")
        self.embed(todo.vectors)

    def _use(self, todo: Use) -> None:
        self.run_many(
            "UPDATE memories SET last_used = ?, uses = uses + ? WHERE number = ?",
            [(last, times, number) for number, (times, last) in sorted(todo.uses.items())],
        )

    # --- reading -------------------------------------------------------------------------

    def search(self, search: Search) -> tuple[dict[str, list[int]], list[Found]]:
        """The ranked lists of each way of searching, and all that is in them."""
        condition, values = _condition(search.scope, search.wanted, at=search.at)
        lists = {}
        if search.words:
            lists["words"] = self.find_words(search, condition, values)
        if search.vector is not None:
            lists["vectors"] = self.find_near(search, condition, values)
        if not lists:
            rows = self.run(
                f"SELECT m.number FROM memories AS m WHERE {condition} "  # noqa: S608
                "ORDER BY m.importance DESC, m.last_used DESC, m.number DESC LIMIT ?",
                (*values, search.pool),
            )
            lists["worth"] = [number for (number,) in rows]
        return lists, self.of_numbers(search.scope, [each for ranked in lists.values() for each in ranked])

    def of_numbers(self, scope: Scope, numbers: Iterable[int]) -> list[Found]:
        """Memories by their numbers, in no order."""
        condition, values = scope.condition
        return [
            each
            for some in _pieces(list(dict.fromkeys(numbers)))
            for each in self._read(f"m.number IN ({_places(some)}) AND {condition}", [*some, *values])
        ]

    def page(self, scope: Scope, wanted: MemoryFilter, *, after: int, limit: int) -> list[Found]:
        """Memories that count now, in the order in which they were made, behind a number."""
        condition, values = _condition(scope, wanted)
        return self._read(f"{condition} AND m.number > ? ORDER BY m.number LIMIT ?", (*values, after, limit))

    def number_of(self, scope: Scope, memory_id: str) -> int:
        """The number of a memory."""
        return self._one(scope, memory_id).number

    def get(self, scope: Scope, memory_id: str) -> MemoryUnit:
        """One memory, of now or of history."""
        return self._one(scope, memory_id).memory

    def history(self, scope: Scope, memory_id: str) -> list[MemoryUnit]:
        """A memory with those before it and behind it, the oldest first; those that were not shared are their owner's alone."""
        chain = self._chain(self._one(scope, memory_id))
        return [each.memory for each in chain if scope.allows(each.memory)]

    def associations(self, scope: Scope, memory_id: str) -> list[Association]:
        """Its links to memories that count now and may be seen, from either end."""
        number = self._one(scope, memory_id).number
        condition, values = scope.condition
        rows = [
            (*row, is_from_here)
            for here, there, is_from_here in (("source", "target", True), ("target", "source", False))
            for row in self.run(
                f"SELECT m.id, l.relation FROM links AS l JOIN memories AS m ON m.number = l.{there} "  # noqa: S608
                f"WHERE l.{here} = ? AND {condition} AND {_CURRENT} ORDER BY m.number, l.relation",
                (number, *values),
            )
        ]
        return [Association(*row) for row in rows]

    def all_of(self, owner: Sender, *, after: int, limit: int) -> list[Found]:
        """All that an owner has, history too."""
        return self._read(
            "m.owner = ? AND m.number > ? ORDER BY m.number LIMIT ?", (owner_key(owner), after, limit)
        )

    def marks(self, owner: Sender, prefix: str = "") -> dict[str, str]:
        """Return what is noted for an owner under names that begin with a text."""
        rows = self.run("SELECT name, value FROM marks WHERE owner = ?", (owner_key(owner),))
        return {name: value for name, value in rows if name.startswith(prefix)}

    def owners(self) -> list[tuple[Sender, int]]:
        """All owners, and how many memories each has that count now."""
        rows = self.run(
            "SELECT owner, count(*) FROM memories AS m WHERE m.replaced_by IS NULL GROUP BY owner ORDER BY owner"
        )
        return [(owner_of_key(key), count) for key, count in rows]

    def _one(self, scope: Scope, memory_id: str) -> Found:
        condition, values = scope.condition
        found = self._read(f"m.id = ? AND {condition}", (memory_id, *values))
        if not found:
            raise MemoryNotFound(memory_id)
        return found[0]

    def _chain(self, one: Found) -> list[Found]:
        """A memory with its history, the oldest first; all of it is the same owner's."""
        chain = [one]
        while (before := chain[0].memory.replaces) is not None and (found := self._of_id(before)):
            chain.insert(0, found)
        while (behind := chain[-1].memory.replaced_by) is not None and (found := self._of_id(behind)):
            chain.append(found)
        return chain

    def _of_id(self, memory_id: str) -> Found | None:
        found = self._read("m.id = ?", (memory_id,))
        return found[0] if found else None

    def _read(self, condition: str, values: Iterable[object]) -> list[Found]:
        return [_found(row) for row in self.run(f"{_SELECT} WHERE {condition}", values)]


def _found(row: Row) -> Found:
    fields = dict(zip(_COLUMNS, row, strict=True))
    return Found(
        fields.pop("number"),
        MemoryUnit(
            **{name: fields[name] for name in _PLAIN},
            owner=owner_of_key(fields["owner"]),
            is_shared=bool(fields["is_shared"]),
            is_kept=bool(fields["is_kept"]),
            metadata=json.loads(fields["metadata"]),
        ),
    )


def _condition(scope: Scope, wanted: MemoryFilter, *, at: float | None = None) -> tuple[str, list[object]]:
    """Return what is true of the memories that may be seen, count now and are wanted."""
    clause, values = scope.condition
    clauses = [clause, _CURRENT]
    if at is not None:
        clauses.append(_VALID)
        values += [at, at]
    for clause, more in _wanted(wanted) if wanted is not EVERYTHING else ():
        clauses.append(clause)
        values += more
    return " AND ".join(clauses), values


def _wanted(wanted: MemoryFilter) -> Iterator[tuple[str, list[object]]]:
    lists = (("m.kind", wanted.kinds), ("m.agent", wanted.agents), ("m.session_id", wanted.sessions))
    for column, allowed in lists:
        if allowed:
            yield f"{column} IN ({_places(allowed)})", [clean(each) for each in allowed]
    if wanted.since is not None:
        yield "m.created_at >= ?", [wanted.since]
    if wanted.until is not None:
        yield "m.created_at < ?", [wanted.until]
    if wanted.is_kept is not None:
        yield "m.is_kept = ?", [int(wanted.is_kept)]
    for name, value in wanted.metadata.items():
        yield (
            "EXISTS (SELECT 1 FROM details AS d WHERE d.number = m.number AND d.name = ? AND d.value = ?)",
            [clean(name), written_value(value)],
        )


def _places(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _pieces(values: Sequence[int]) -> Iterator[Sequence[int]]:
    return (values[at : at + MANY] for at in range(0, len(values), MANY))
