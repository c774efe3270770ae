"""Base class of memory stores in SQL databases. All methods are synchronous, and run in the thread of their connection.

This module has the code that all databases share. Only connections and vector indexes differ.
"""

import abc
import itertools
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs

from actgent.errors import ConfigurationError, MemoriesFull, MemoryNotFound, MemoryReplaced
from actgent.messages import Sender
from actgent.support.fast_attrs_constructors import fast_constructor
from actgent.support.sql_connection_interface import Row, SQLConnection

from .memory_records import (
    EVERYTHING,
    Association,
    MemoryFilter,
    MemoryMatch,
    MemoryRecord,
    Source,
    encode_metadata_value,
    normalize_text,
    sanitize_text,
)
from .memory_store_operations import (
    Associate,
    Embed,
    Erase,
    ForgetMemories,
    Operation,
    Put,
    Replace,
    Search,
    SetMark,
    Transaction,
    Use,
)
from .memory_visibility_by_owner import Scope, owner_key, owner_of_key
from .months_in_questions import Period
from .recall_ranking import (
    DAY_SECONDS,
    MIN_IMPORTANCE,
    SHARES,
    UNITS,
    add_neighbour_scores,
    combine_scores,
    decayed_importance,
    raise_dated_scores,
    sort_by_score,
)
from .word_index import WordIndex

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
"""Fields of a memory that are stored as database columns without conversion."""
_COLUMNS = ("number", *_PLAIN, "owner", "is_shared", "is_kept", "metadata", "said")
_SELECT = f"SELECT {', '.join(f'm.{name}' for name in _COLUMNS)} FROM memories AS m"  # noqa: S608 - names of our own
_STORED = (*_COLUMNS[1:], "position")
_CURRENT = "m.replaced_by IS NULL"
_VALID = "(m.valid_from IS NULL OR m.valid_from <= ?) AND (m.valid_until IS NULL OR m.valid_until > ?)"
_COUNT = f"SELECT count(*) FROM memories AS m WHERE m.owner = ? AND {_CURRENT}"  # noqa: S608
BATCH_VALUES = 500
"""Maximum number of values in one statement."""
FIRST_CANDIDATES = 100
"""Initial maximum of candidates by words and by vectors. It grows if filters leave too few results."""
COMPARED_WORD_HITS = 50
"""Number of best candidates by words whose vectors are compared too. More are slower and do not improve recall (LoCoMo)."""
CANDIDATE_GROWTH = 10
"""Factor by which the maximum of candidates grows."""
SPREADING_MEMORIES = 10
"""Number of best memories that add a part of their score to their neighbours."""
SESSION_MEMORIES = 30
"""Number of best memories that add a part of their score to the other memories of their session."""
MIN_LOADED = 10
"""Minimum number of memories that are loaded with one statement."""
EVICTION_SHARE = 50
"""An eviction removes 1/50 of the capacity in addition, so that not every new memory causes an eviction."""

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
"""Migration from version 1, in which each database had a different word index."""


_make_memory = fast_constructor(MemoryRecord)


@attrs.frozen
class Found:
    """A memory with its primary key, as read from the table of memories."""

    number: int
    """Primary key of the memory."""
    memory: MemoryRecord
    """The memory that was read."""
    normal_text: str
    """Text of the memory in the normalized form that the word index uses."""


@attrs.frozen
class Candidates:
    """Memories that a search found, before they are loaded."""

    scores: Mapping[int, int]
    """Scores of the found memories by memory number, as multiples of the smallest score unit (see `UNITS`)."""
    words: Container[int] = ()
    """Numbers of the memories that share words with the query."""
    vectors: Container[int] = ()
    """Numbers of the memories whose vectors were compared."""
    is_all: bool = True
    """False if the maximum number of candidates was reached, so that a higher maximum would find more."""

    def to_match(self, found: Found, source: Source) -> MemoryMatch:
        """Convert a loaded memory to a search result with its score and the reasons for the match.

        The reasons are `words`, `vectors` or both. If neither found the memory, the reason is `source`.
        """
        number = found.number
        by_words, by_vectors = number in self.words, number in self.vectors
        found_by: tuple[Source, ...] = (source,)
        if by_words or by_vectors:
            found_by = (
                ("words", "vectors") if by_words and by_vectors else ("words",) if by_words else ("vectors",)
            )
        return MemoryMatch(found.memory, self.scores[number] / UNITS, found_by)


class MemoryStore(SQLConnection):
    """The memories of all owners in one database.

    Args:
        capacity: Maximum number of current memories per owner; None has no maximum.
        half_life: Days without use after which the importance of a memory halves; None disables the decay.
    """

    has_cheap_reads = False
    """True if reading rows is cheap, because the database runs in this process. Then Python adds the scores of words."""

    def __init__(self, *, capacity: int | None, half_life: float | None) -> None:
        self.capacity = capacity
        self.half_life = half_life
        self.words = WordIndex(self.run, self.data_version, has_cheap_reads=self.has_cheap_reads)
        self.evicted = 0
        """Number of evicted memories since the store was opened."""
        self._handlers: dict[type, Callable[[Any], object]] = {
            Put: self._put,
            Replace: self._replace,
            ForgetMemories: self._forget,
            Associate: self._associate,
            SetMark: self._mark,
            Use: self._use,
            Embed: self._embed,
            Erase: self._erase,
            Transaction: lambda todo: [self._handlers[type(each)](each) for each in todo.operations],
        }

    # --- implemented by each database -----------------------------------------------------

    def data_version(self) -> object:
        """Return a value that changes with each change of the database, also by other processes.

        Return None if the database has no such value.
        """
        return None

    @abc.abstractmethod
    def attempt(self) -> AbstractContextManager[object]:
        """Context manager of a savepoint. Its changes are rolled back if the block raises."""

    @abc.abstractmethod
    def embed(self, vectors: Mapping[int, bytes]) -> None:
        """Store the vectors of memories. The keys are memory numbers."""

    @abc.abstractmethod
    def cosines(self, scope: Scope, vector: bytes, *, limit: int, numbers: Iterable[int]) -> dict[int, float]:
        """Return the similarity (cosine) of memories to a vector, by memory number.

        The result has the `limit` most similar memories in a scope, and the memories `numbers`.
        """

    def without_vector(self, limit: int) -> list[tuple[int, str]]:
        """Return at most `limit` current memories without a vector, oldest first, each as its number and text."""
        rows = self.run(
            "SELECT number, text FROM memories WHERE replaced_by IS NULL "
            "AND number NOT IN (SELECT number FROM vectors) ORDER BY number LIMIT ?",
            (limit,),
        )
        return [(number, text) for number, text in rows]

    # --- writing -------------------------------------------------------------------------

    def apply(self, operations: Sequence[Operation]) -> list[object]:
        """Execute operations in one transaction. Return the result or the exception of each.

        A failed operation changes nothing.
        """
        with self.transaction():
            return [self._attempt(each) for each in operations]

    def _attempt(self, todo: Operation) -> object:
        try:
            with self.attempt():
                return self._handlers[type(todo)](todo)
        except (ConfigurationError, MemoryNotFound, MemoryReplaced, MemoriesFull) as error:
            return error

    def _put(self, todo: Put) -> MemoryRecord:
        owner = owner_key(todo.memory.owner)
        found = self._done_before(owner, todo.key, todo.memory)
        if found is None and todo.is_unique:
            found = self._find_equal_memory(owner, todo.memory)
            if found is not None:
                self._note_act(owner, todo.key, found.id)
        if found is not None:
            return found
        self._make_room(todo.memory.owner)
        self._note_act(owner, todo.key, todo.memory.id)
        self._insert(todo.memory, todo.vector)
        return todo.memory

    def _done_before(self, owner: str, key: str, new: MemoryRecord) -> MemoryRecord | None:
        """Return the memory that an earlier operation with the same idempotency key has stored; None if the key is unused.

        If that memory was forgotten since, return a copy of the memory `new` with the id of the forgotten memory.
        """
        rows = self.run("SELECT id FROM acts WHERE owner = ? AND name = ?", (owner, key)) if key else []
        if not rows:
            return None
        found = self._read("m.id = ? AND m.owner = ?", (rows[0][0], owner))
        return found[0].memory if found else attrs.evolve(new, id=rows[0][0])

    def _find_equal_memory(self, owner: str, memory: MemoryRecord) -> MemoryRecord | None:
        condition = f"m.owner = ? AND m.said = ? AND m.kind = ? AND {_CURRENT}"
        found = self._read(condition, (owner, normalize_text(memory.text), memory.kind))
        return found[0].memory if found else None

    def _note_act(self, owner: str, key: str, memory_id: str) -> None:
        if key:
            self.run("INSERT INTO acts VALUES (?, ?, ?)", (owner, key, memory_id))

    def _insert(self, memory: MemoryRecord, vector: bytes | None, *, position: int | None = None) -> int:
        owner, text = owner_key(memory.owner), normalize_text(memory.text)
        if position is None:
            position = self._next_position(owner, memory.session_id, text)
        values = [getattr(memory, name) for name in _PLAIN]
        values += [owner, int(memory.is_shared), int(memory.is_kept)]
        values += [json.dumps(dict(memory.metadata)), text, position]
        rows = self.run(
            f"INSERT INTO memories ({', '.join(_STORED)}) VALUES ({_placeholders(values)}) RETURNING number",  # noqa: S608
            values,
        )
        number = int(rows[0][0])
        self.words.add(number, owner, memory.text, is_shared=memory.is_shared)
        for name, value in memory.metadata.items():
            self.run("INSERT INTO details VALUES (?, ?, ?)", (number, name, encode_metadata_value(value)))
        if vector is not None:
            self.embed({number: vector})
        return number

    def _next_position(self, owner: str, session_id: str, text: str) -> int:
        """Return the position of a new memory among the memories of its session; 0 without a session.

        A repetition of the last text gets the position of that memory.
        """
        if not session_id:
            return 0
        rows = self.run(
            "SELECT position, said FROM memories WHERE session_id = ? AND owner = ? AND replaced_by IS NULL "
            "ORDER BY position DESC LIMIT 1",
            (session_id, owner),
        )
        return int(rows[0][0]) + (rows[0][1] != text) if rows else 1

    def _unindex(self, numbers: Sequence[int]) -> None:
        """Remove the memories with these numbers from the word index and the vector index."""
        places = _placeholders(numbers)
        rows = self.run(
            f"SELECT number, owner, text, is_shared FROM memories WHERE number IN ({places}) AND replaced_by IS NULL",  # noqa: S608
            numbers,
        )
        for number, owner, text, is_shared in rows:
            self.words.remove(number, owner, text, is_shared=bool(is_shared))
        self.run(f"DELETE FROM vectors WHERE number IN ({places})", numbers)  # noqa: S608

    def index_all(self) -> None:
        """Add all current memories to an empty word index."""
        after = 0
        while rows := self.run(
            "SELECT number, owner, text, is_shared FROM memories WHERE replaced_by IS NULL AND number > ? "
            "ORDER BY number LIMIT ?",
            (after, BATCH_VALUES),
        ):
            for number, owner, text, is_shared in rows:
                self.words.add(number, owner, text, is_shared=bool(is_shared))
            after = rows[-1][0]

    def _make_room(self, owner: Sender) -> None:
        """Delete the least important memories of an owner who has reached the capacity, so that one more fits.

        Memories with `is_kept` are never evicted.

        Raises:
            MemoriesFull: All memories of the owner have `is_kept`.
        """
        if self.capacity is None:
            return
        key = owner_key(owner)
        count: int = self.run(_COUNT, (key,))[0][0]
        if count < self.capacity:
            return
        many = count - self.capacity + 1 + self.capacity // EVICTION_SHARE
        # The logarithm of `decayed_importance`, without the term that is the same for all memories.
        faded = "0" if self.half_life is None else f"m.last_used / {self.half_life * DAY_SECONDS!r}"
        weight = f"CASE WHEN m.importance > {MIN_IMPORTANCE} THEN m.importance ELSE {MIN_IMPORTANCE} END"
        rows = self.run(
            f"SELECT m.id FROM memories AS m WHERE m.owner = ? AND {_CURRENT} AND m.is_kept = 0 "  # noqa: S608
            f"ORDER BY {self.logarithm} ({weight}) / {self.logarithm} (2.0) + {faded}, m.number LIMIT ?",
            (key, many),
        )
        if count - len(rows) >= self.capacity:
            raise MemoriesFull(owner.name, self.capacity)
        self.evicted += self._forget(
            ForgetMemories(scope=Scope(owner, with_shared=False), ids=[each for (each,) in rows])
        )

    logarithm = "ln"

    def _replace(self, todo: Replace) -> MemoryRecord:
        owner = todo.scope.key
        old = self._load_one(todo.scope, todo.old)
        done = self._done_before(owner, todo.key, old.memory)
        if done is not None:
            return done
        if old.memory.replaced_by is not None:
            raise MemoryReplaced(old.memory.id, old.memory.replaced_by)
        fresh: dict[str, Any] = {"id": todo.new_id, "created_at": todo.now, "last_used": todo.now, "uses": 0}
        memory = attrs.evolve(old.memory, **fresh, replaces=old.memory.id, **todo.changes)
        self._unindex([old.number])
        rows = self.run(
            "UPDATE memories SET replaced_by = ? WHERE number = ? RETURNING position", (memory.id, old.number)
        )
        self._note_act(owner, todo.key, memory.id)
        is_same_session = memory.session_id == old.memory.session_id
        number = self._insert(memory, todo.vector, position=rows[0][0] if is_same_session else None)
        for column, other in (("source", "target"), ("target", "source")):
            self.run(
                f"INSERT INTO links ({column}, {other}, relation) SELECT ?, {other}, relation FROM links WHERE {column} = ?",  # noqa: S608
                (number, old.number),
            )
        return memory

    def _forget(self, todo: ForgetMemories) -> int:
        if todo.ids:
            found = [
                self._load_one(todo.scope, each) for each in dict.fromkeys(todo.ids) if self._has(todo, each)
            ]
        else:
            condition, values = _condition(todo.scope, todo.filters)
            found = self._read(condition, values)
        self._remove([each.number for first in found for each in self._chain(first)])
        return len(found)

    def _has(self, todo: ForgetMemories, memory_id: str) -> bool:
        condition, values = todo.scope.condition
        return bool(
            self.run(
                f"SELECT 1 FROM memories AS m WHERE m.id = ? AND {condition}",  # noqa: S608
                (memory_id, *values),
            )
        )

    def _remove(self, numbers: Iterable[int]) -> None:
        for some in _pieces(list(dict.fromkeys(numbers))):
            places = _placeholders(some)
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
        source = self._load_one(todo.scope, todo.source).number
        target = self._load_one(todo.scope, todo.target).number
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

    def search(self, search: Search) -> list[tuple[int, MemoryMatch]]:
        """Return the best memories with their numbers, at most `search.limit`, best first.

        A search without words returns the memories with the highest importance after decay.
        """
        if not search.words:
            return self._load_best(search, self._candidates_by_worth(search), "worth")
        pool = max(FIRST_CANDIDATES, search.limit)
        while True:
            candidates = self._candidates(search, pool)
            best = self._load_best(search, candidates, "session")
            if candidates.is_all or len(best) == search.limit:
                return best
            pool *= CANDIDATE_GROWTH

    def _candidates_by_worth(self, search: Search) -> Candidates:
        condition, values = _condition(search.scope, search.filters, at=search.at)
        rows = self.run(
            f"SELECT m.number FROM memories AS m WHERE {condition} "  # noqa: S608
            "ORDER BY m.importance DESC, m.last_used DESC, m.number DESC LIMIT ?",
            (*values, max(FIRST_CANDIDATES, search.limit)),
        )
        return Candidates({number: 0 for (number,) in rows})

    def _candidates(self, search: Search, pool: int) -> Candidates:
        """Return at most `pool` candidates by words and at most `pool` by vectors, with their scores, before filtering."""
        words, is_all = self.words.scores(search.scope.key, search.words, pool)
        cosines: dict[int, float] = {}
        if search.vector is not None:
            by_words = itertools.islice(words, COMPARED_WORD_HITS)
            cosines = self.cosines(search.scope, search.vector, limit=pool, numbers=by_words)
        scores = combine_scores(words, cosines)
        if search.periods:
            scores = raise_dated_scores(scores, self._memories_created_in(search.periods, list(scores)))
        best = sort_by_score(scores)[:SESSION_MEMORIES]
        totals = add_neighbour_scores(
            scores, self._neighbours(best[:SPREADING_MEMORIES]), self._sessions(best)
        )
        return Candidates(totals, words, cosines, is_all=is_all and len(cosines) < pool)

    def _memories_created_in(self, periods: Sequence[Period], numbers: Sequence[int]) -> set[int]:
        """Return the memories, by number, that were created in one of the periods."""
        during = " OR ".join(["created_at >= ? AND created_at < ?"] * len(periods))
        times = [time for period in periods for time in period]
        return {
            number
            for some in _pieces(numbers)
            for (number,) in self.run(
                f"SELECT number FROM memories WHERE number IN ({_placeholders(some)}) AND ({during})",  # noqa: S608
                [*some, *times],
            )
        }

    def _neighbours(self, numbers: Sequence[int]) -> list[Row]:
        """Find the memories next to the given memories in the same session.

        Each row has the number of the given memory, the number of the found memory, and the distance between them.
        """
        if not numbers:
            return []
        return self.run(
            "SELECT c.number, n.number, abs(n.position - c.position) FROM memories AS c JOIN memories AS n "  # noqa: S608
            "ON n.session_id = c.session_id AND n.owner = c.owner AND n.replaced_by IS NULL "
            f"AND n.position BETWEEN c.position - {len(SHARES)} AND c.position + {len(SHARES)} "
            f"WHERE c.number IN ({_placeholders(numbers)}) AND c.session_id <> '' AND n.position <> c.position",
            numbers,
        )

    def _sessions(self, numbers: Sequence[int]) -> dict[int, tuple[str, str]]:
        """Return the owner and session id of memories, by memory number. Memories without a session are omitted."""
        if not numbers:
            return {}
        rows = self.run(
            f"SELECT number, owner, session_id FROM memories WHERE number IN ({_placeholders(numbers)}) AND session_id <> ''",  # noqa: S608
            numbers,
        )
        return {number: (owner, session) for number, owner, session in rows}

    def _load_best(
        self, search: Search, candidates: Candidates, source: Source
    ) -> list[tuple[int, MemoryMatch]]:
        """Load the best candidates that pass the filters, with their numbers.

        Of memories with equal text, only one is returned.

        `source` is the reason of a match that neither words nor vectors found.
        """
        condition, values = _condition(search.scope, search.filters, at=search.at)
        scores, numbers = candidates.scores, sort_by_score(candidates.scores)
        best: list[tuple[int, MemoryMatch]] = []
        texts: set[str] = set()
        start = 0
        while start < len(numbers) and len(best) < search.limit:
            end = start + max(MIN_LOADED, search.limit - len(best))
            while end < len(numbers) and scores[numbers[end]] == scores[numbers[end - 1]]:
                end += 1
            for found in self._load_by_score(scores, numbers[start:end], condition, values):
                if found.normal_text not in texts and len(best) < search.limit:
                    texts.add(found.normal_text)
                    best.append((found.number, candidates.to_match(found, source)))
            start = end
        return best

    def _load_by_score(
        self, scores: Mapping[int, int], numbers: Sequence[int], condition: str, values: Sequence[object]
    ) -> list[Found]:
        """Load the memories in `numbers` that match an SQL condition, best score first.

        Of equal scores, the memory with the highest importance after decay comes first.
        """
        found = [
            each
            for some in _pieces(numbers)
            for each in self._read(f"m.number IN ({_placeholders(some)}) AND {condition}", [*some, *values])
        ]
        if len({scores[each.number] for each in found}) == len(found):  # no ties
            return sorted(found, key=lambda each: -scores[each.number])
        newest = max((each.memory.last_used for each in found), default=0.0)

        def rank(each: Found) -> tuple[int, float, int]:
            memory = each.memory
            value = decayed_importance(
                memory.importance, memory.last_used, newest=newest, half_life=self.half_life
            )
            return -scores[each.number], -value, -each.number

        return sorted(found, key=rank)

    def page(self, scope: Scope, filters: MemoryFilter, *, after: int, limit: int) -> list[Found]:
        """Return current memories with a number above `after`, in the order of creation."""
        condition, values = _condition(scope, filters)
        return self._read(f"{condition} AND m.number > ? ORDER BY m.number LIMIT ?", (*values, after, limit))

    def newest(self, scope: Scope, filters: MemoryFilter, *, before: int | None, limit: int) -> list[Found]:
        """Return current memories with a number below `before`, newest first. None begins with the newest."""
        condition, values = _condition(scope, filters)
        if before is not None:
            condition, values = f"{condition} AND m.number < ?", [*values, before]
        return self._read(f"{condition} ORDER BY m.number DESC LIMIT ?", (*values, limit))

    def number_of(self, scope: Scope, memory_id: str) -> int:
        """Return the internal number of a memory, by which indexes and pages refer to it.

        Raises:
            MemoryNotFound: The scope contains no memory with this id.
        """
        return self._load_one(scope, memory_id).number

    def get(self, scope: Scope, memory_id: str) -> MemoryRecord:
        """Return the memory with this id in `scope`. The memory may be current or replaced.

        Raises:
            MemoryNotFound: The scope contains no memory with this id.
        """
        return self._load_one(scope, memory_id).memory

    def history(self, scope: Scope, memory_id: str) -> list[MemoryRecord]:
        """Return a memory with its predecessors and successors, oldest first. Versions outside of the scope are omitted.

        Raises:
            MemoryNotFound: The scope contains no memory with this id.
        """
        chain = self._chain(self._load_one(scope, memory_id))
        return [each.memory for each in chain if scope.allows(each.memory)]

    def associations(self, scope: Scope, memory_id: str) -> list[Association]:
        """Return the links between a memory and current memories of the scope, in both directions.

        Raises:
            MemoryNotFound: The scope contains no memory with this id.
        """
        number = self._load_one(scope, memory_id).number
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
        """Return at most `limit` memories of an owner with a number above `after`, replaced ones included."""
        return self._read(
            "m.owner = ? AND m.number > ? ORDER BY m.number LIMIT ?", (owner_key(owner), after, limit)
        )

    def marks(self, owner: Sender, prefix: str = "") -> dict[str, str]:
        """Return the named values of an owner whose names start with `prefix`."""
        rows = self.run("SELECT name, value FROM marks WHERE owner = ?", (owner_key(owner),))
        return {name: value for name, value in rows if name.startswith(prefix)}

    def owners(self, after: str = "", limit: int | None = None) -> list[tuple[Sender, int]]:
        """Return the owners that have current memories, each with the number of these memories, ordered by owner key.

        Args:
            after: Key of the owner after which the result begins; empty begins with the first owner.
            limit: Maximum number of owners; None has no maximum.
        """
        many = "" if limit is None else f" LIMIT {limit:d}"
        rows = self.run(
            "SELECT owner, count(*) FROM memories AS m WHERE m.replaced_by IS NULL AND m.owner > ? "  # noqa: S608 - a number
            f"GROUP BY owner ORDER BY owner{many}",
            (after,),
        )
        return [(owner_of_key(key), count) for key, count in rows]

    def _load_one(self, scope: Scope, memory_id: str) -> Found:
        condition, values = scope.condition
        found = self._read(f"m.id = ? AND {condition}", (memory_id, *values))
        if not found:
            raise MemoryNotFound(memory_id)
        return found[0]

    def _chain(self, one: Found) -> list[Found]:
        """Return a memory with its predecessors and successors, oldest first. All versions have the same owner."""
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
    number, *plain, owner, is_shared, is_kept, metadata, said = row
    memory = _make_memory(
        **dict(zip(_PLAIN, plain, strict=True)),
        owner=owner_of_key(owner),
        is_shared=bool(is_shared),
        is_kept=bool(is_kept),
        metadata=json.loads(metadata) if metadata != "{}" else {},
    )
    return Found(number, memory, said)


def _condition(scope: Scope, filters: MemoryFilter, *, at: float | None = None) -> tuple[str, list[object]]:
    """Build the SQL condition for current memories of a scope that pass a filter and are valid at the time `at`.

    Return its text and its values. None as `at` also matches memories that are not valid now.
    """
    clause, values = scope.condition
    clauses = [clause, _CURRENT]
    if at is not None:
        clauses.append(_VALID)
        values += [at, at]
    for clause, more in _filter_conditions(filters) if filters is not EVERYTHING else ():
        clauses.append(clause)
        values += more
    return " AND ".join(clauses), values


def _filter_conditions(filters: MemoryFilter) -> Iterator[tuple[str, list[object]]]:
    lists = (("m.kind", filters.kinds), ("m.agent", filters.agents), ("m.session_id", filters.sessions))
    for column, allowed in lists:
        if allowed:
            yield f"{column} IN ({_placeholders(allowed)})", [sanitize_text(each) for each in allowed]
    if filters.since is not None:
        yield "m.created_at >= ?", [filters.since]
    if filters.until is not None:
        yield "m.created_at < ?", [filters.until]
    if filters.is_kept is not None:
        yield "m.is_kept = ?", [int(filters.is_kept)]
    for name, value in filters.metadata.items():
        yield (
            "EXISTS (SELECT 1 FROM details AS d WHERE d.number = m.number AND d.name = ? AND d.value = ?)",
            [sanitize_text(name), encode_metadata_value(value)],
        )


def _placeholders(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _pieces(values: Sequence[int]) -> Iterator[Sequence[int]]:
    return (values[at : at + BATCH_VALUES] for at in range(0, len(values), BATCH_VALUES))
