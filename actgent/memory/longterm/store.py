"""A store of memories in a SQL database. All of this is sync, and runs in the thread of its connection.

This module has the code that is equal for all databases. Only the indexes of vectors differ.
"""

import abc
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
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
from .ranking import DAY, LEAST_IMPORTANCE, SHARES, UNITS, in_order, own_scores, spread, worth
from .scope import Scope, owner_key, owner_of_key
from .unit import (
    EVERYTHING,
    Association,
    MemoryFilter,
    MemoryUnit,
    Recalled,
    Source,
    clean,
    normal_form,
    written_value,
)
from .word_index import WordIndex

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
_STORED = (*_COLUMNS[1:], "said", "position")
_CURRENT = "m.replaced_by IS NULL"
_VALID = "(m.valid_from IS NULL OR m.valid_from <= ?) AND (m.valid_until IS NULL OR m.valid_until > ?)"
_COUNT = f"SELECT count(*) FROM memories AS m WHERE m.owner = ? AND {_CURRENT}"  # noqa: S608
MANY = 500
"""Values of one statement."""
POOL = 100
"""How many memories words and vectors each find at first; more if too few of them may be returned."""
MORE = 10
"""How many times as many are found then."""
GIVERS = 20
"""How many of the best memories give a part of their score to their neighbours."""
LOADED = 10
"""How many memories are loaded at least at a time, to be returned."""
SLACK = 50
"""Of a capacity of so many, one more is evicted than has to be, so that not each memory evicts another."""

TABLES = """
    CREATE TABLE memories (
        number {serial}, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, kind TEXT NOT NULL, owner TEXT NOT NULL,
        is_shared INTEGER NOT NULL, agent TEXT NOT NULL, session_id TEXT NOT NULL, message_id TEXT NOT NULL,
        importance {real} NOT NULL, is_kept INTEGER NOT NULL, created_at {real} NOT NULL, last_used {real} NOT NULL,
        uses INTEGER NOT NULL, valid_from {real}, valid_until {real}, metadata TEXT NOT NULL, replaces TEXT,
        replaced_by TEXT, said TEXT NOT NULL, position {integer} NOT NULL
    );
    CREATE INDEX by_owner ON memories (owner, number) WHERE replaced_by IS NULL;
    CREATE INDEX by_shared ON memories (number) WHERE is_shared = 1 AND replaced_by IS NULL;
    CREATE INDEX by_session ON memories (session_id, owner, position) WHERE replaced_by IS NULL;
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
"""Schema of all databases. Columns never change their meaning. `position` is the index of a memory in its session."""
UPGRADE = """
    ALTER TABLE memories ADD COLUMN position {integer} NOT NULL DEFAULT 0;
    UPDATE memories SET position = p.place
        FROM (SELECT number, row_number() OVER (PARTITION BY owner, session_id ORDER BY number) AS place FROM memories) AS p
        WHERE p.number = memories.number;
    DROP INDEX by_session;
    CREATE INDEX by_session ON memories (session_id, owner, position) WHERE replaced_by IS NULL;
"""
"""From version 1, which had another index of words in each database."""


@attrs.frozen
class Found:
    """A row as a memory."""

    number: int
    memory: MemoryUnit


@attrs.frozen
class Candidates:
    """Memories that were found, before they are loaded."""

    scores: Mapping[int, int]
    """By number, in `UNITS` of a score."""
    words: Container[int] = ()
    """Numbers of those that share words with the question."""
    vectors: Container[int] = ()
    """Numbers of those whose vectors were compared."""
    is_all: bool = True
    """True if a larger pool would find no others."""

    def recalled(self, found: Found, source: Source) -> Recalled:
        """Return a loaded one with its score. `source` is how it was found if neither by words nor by its vector."""
        ways: list[tuple[Source, Container[int]]] = [("words", self.words), ("vectors", self.vectors)]
        found_by = tuple(name for name, numbers in ways if found.number in numbers)
        return Recalled(found.memory, self.scores[found.number] / UNITS, found_by or (source,))


class MemoryStore(abc.ABC):
    """The memories of all owners in one database.

    Args:
        capacity: How many memories an owner may have that count now; None: any number.
        half_life: Days without use in which a memory's worth halves; None: it does not fade.
    """

    def __init__(self, *, capacity: int | None, half_life: float | None) -> None:
        self.capacity = capacity
        self.half_life = half_life
        self.words = WordIndex(self.run)
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
    def embed(self, vectors: Mapping[int, bytes]) -> None:
        """Let memories be found by what they mean."""

    @abc.abstractmethod
    def cosines(self, scope: Scope, vector: bytes, *, limit: int, numbers: Iterable[int]) -> dict[int, float]:
        """Return the cosines of the nearest vectors of a scope, at most `limit`, and those of some memories by number."""

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

    def _insert(self, unit: MemoryUnit, vector: bytes | None, *, position: int | None = None) -> int:
        owner, said = owner_key(unit.owner), normal_form(unit.text)
        if position is None:
            position = self._next_position(owner, unit.session_id, said)
        values = [getattr(unit, name) for name in _PLAIN]
        values += [owner, int(unit.is_shared), int(unit.is_kept)]
        values += [json.dumps(dict(unit.metadata)), said, position]
        rows = self.run(
            f"INSERT INTO memories ({', '.join(_STORED)}) VALUES ({_places(values)}) RETURNING number",  # noqa: S608
            values,
        )
        number = int(rows[0][0])
        self.words.add(number, owner, unit.text, is_shared=unit.is_shared)
        for name, value in unit.metadata.items():
            self.run("INSERT INTO details VALUES (?, ?, ?)", (number, name, written_value(value)))
        if vector is not None:
            self.embed({number: vector})
        return number

    def _next_position(self, owner: str, session_id: str, said: str) -> int:
        """Return the position of a new memory in its session. A repetition of the last one has the same position."""
        if not session_id:
            return 0
        rows = self.run(
            "SELECT position, said FROM memories WHERE session_id = ? AND owner = ? AND replaced_by IS NULL "
            "ORDER BY position DESC LIMIT 1",
            (session_id, owner),
        )
        return int(rows[0][0]) + (rows[0][1] != said) if rows else 1

    def _unindex(self, numbers: Sequence[int]) -> None:
        """Remove memories from the indexes of words and vectors."""
        places = _places(numbers)
        rows = self.run(
            f"SELECT number, owner, text, is_shared FROM memories WHERE number IN ({places}) AND replaced_by IS NULL",  # noqa: S608
            numbers,
        )
        for number, owner, text, is_shared in rows:
            self.words.remove(number, owner, text, is_shared=bool(is_shared))
        self.run(f"DELETE FROM vectors WHERE number IN ({places})", numbers)  # noqa: S608

    def index_all(self) -> None:
        """Add all memories that count now to an empty index of words."""
        after = 0
        while rows := self.run(
            "SELECT number, owner, text, is_shared FROM memories WHERE replaced_by IS NULL AND number > ? "
            "ORDER BY number LIMIT ?",
            (after, MANY),
        ):
            for number, owner, text, is_shared in rows:
                self.words.add(number, owner, text, is_shared=bool(is_shared))
            after = rows[-1][0]

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
        self._unindex([old.number])
        rows = self.run(
            "UPDATE memories SET replaced_by = ? WHERE number = ? RETURNING position", (unit.id, old.number)
        )
        self._note_act(owner, todo.key, unit.id)
        is_same_session = unit.session_id == old.memory.session_id
        number = self._insert(unit, todo.vector, position=rows[0][0] if is_same_session else None)
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
            self._unindex(some)
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

    def search(self, search: Search) -> list[tuple[int, Recalled]]:
        """Return the best memories with their numbers, at most `search.limit`, best first."""
        if not search.words:
            return self._best(search, self._by_worth(search), "worth")
        pool = max(POOL, search.limit)
        while True:
            candidates = self._candidates(search, pool)
            best = self._best(search, candidates, "session")
            if candidates.is_all or len(best) == search.limit:
                return best
            pool *= MORE

    def _by_worth(self, search: Search) -> Candidates:
        condition, values = _condition(search.scope, search.wanted, at=search.at)
        rows = self.run(
            f"SELECT m.number FROM memories AS m WHERE {condition} "  # noqa: S608
            "ORDER BY m.importance DESC, m.last_used DESC, m.number DESC LIMIT ?",
            (*values, max(POOL, search.limit)),
        )
        return Candidates({number: 0 for (number,) in rows})

    def _candidates(self, search: Search, pool: int) -> Candidates:
        """Return candidate memories with their scores, before filters are applied."""
        words, is_all = self.words.scores(search.scope.key, search.words, pool)
        cosines: dict[int, float] = {}
        if search.vector is not None:
            cosines = self.cosines(search.scope, search.vector, limit=pool, numbers=words)
        scores = own_scores(words, cosines)
        totals = spread(scores, self._neighbours(in_order(scores)[:GIVERS]))
        return Candidates(totals, words, cosines, is_all=is_all and len(cosines) < pool)

    def _neighbours(self, numbers: Sequence[int]) -> list[Row]:
        """Return memories of these numbers, those near them in their sessions, and their distances."""
        if not numbers:
            return []
        return self.run(
            "SELECT c.number, n.number, abs(n.position - c.position) FROM memories AS c JOIN memories AS n "  # noqa: S608
            "ON n.session_id = c.session_id AND n.owner = c.owner AND n.replaced_by IS NULL "
            f"AND n.position BETWEEN c.position - {len(SHARES)} AND c.position + {len(SHARES)} "
            f"WHERE c.number IN ({_places(numbers)}) AND c.session_id <> '' AND n.position <> c.position",
            numbers,
        )

    def _best(self, search: Search, candidates: Candidates, source: Source) -> list[tuple[int, Recalled]]:
        """Load the best candidates that may be returned. Equal texts are returned once."""
        condition, values = _condition(search.scope, search.wanted, at=search.at)
        scores, numbers = candidates.scores, in_order(candidates.scores)
        best: list[tuple[int, Recalled]] = []
        texts: set[str] = set()
        start = 0
        while start < len(numbers) and len(best) < search.limit:
            end = start + max(LOADED, search.limit - len(best))
            while end < len(numbers) and scores[numbers[end]] == scores[numbers[end - 1]]:
                end += 1
            for found in self._by_rank(scores, numbers[start:end], condition, values):
                text = normal_form(found.memory.text)
                if text not in texts and len(best) < search.limit:
                    texts.add(text)
                    best.append((found.number, candidates.recalled(found, source)))
            start = end
        return best

    def _by_rank(
        self, scores: Mapping[int, int], numbers: Sequence[int], condition: str, values: Sequence[object]
    ) -> list[Found]:
        """Load the memories of which a condition is true: best first, and of equal scores the worthiest first."""
        found = [
            each
            for some in _pieces(numbers)
            for each in self._read(f"m.number IN ({_places(some)}) AND {condition}", [*some, *values])
        ]
        newest = max((each.memory.last_used for each in found), default=0.0)

        def rank(each: Found) -> tuple[int, float, int]:
            memory = each.memory
            value = worth(memory.importance, memory.last_used, newest=newest, half_life=self.half_life)
            return -scores[each.number], -value, -each.number

        return sorted(found, key=rank)

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
            metadata=json.loads(fields["metadata"]) if fields["metadata"] != "{}" else {},
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
