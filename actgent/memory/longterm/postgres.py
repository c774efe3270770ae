"""Memories in a schema of PostgreSQL: words by its full text search, vectors by the extension pgvector.

Each memory's text vector has its owner as a word of its own, so that the index finds the memories of one owner and no others.
Of a question's words those are looked for first that the statistics of the table do not know as common. Needs the extra
`postgres`.
"""

import contextlib
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import psycopg.sql

from actgent.errors import ConfigurationError, MemoriesFailed
from actgent.support.postgres_address import connection_failure, split_schema

from .operations import Operation, Search
from .ranking import check_dimensions, telling
from .scope import owner_key, owner_word
from .store import TABLES, MemoryStore, Row
from .unit import MemoryUnit
from .words import spaced

VERSION = 1
SHARED = "@shared"
"""The word of memories that everybody is shown; no word of a text begins so."""
CONNECT = 10
"""Seconds for a connection."""
STATEMENT = 30_000
"""Milliseconds for a statement."""
LOOKED = 60.0
"""Seconds for which the statistics of words are taken to hold."""
LEAST_ANALYZED = 1_000
"""Memories that are written before the server makes its statistics for us, and again when there are twice as many."""
FLOAT = 4
"""Bytes of a number of a vector."""

_INDEXES = """
    ALTER TABLE memories ADD COLUMN words tsvector;
    CREATE INDEX by_words ON memories USING gin (words) WITH (fastupdate = off) WHERE words IS NOT NULL;
    CREATE TABLE versions (version integer NOT NULL);
    CREATE TABLE vectors (number bigint PRIMARY KEY, owner text NOT NULL, is_shared integer NOT NULL, vector {vector});
    CREATE INDEX vectors_by_owner ON vectors (owner);
"""
_OPTIONS = f"-c statement_timeout={STATEMENT} -c client_min_messages=warning"
_COMMON = (
    "SELECT unnest(most_common_elems::text::text[]), unnest(most_common_elem_freqs[:array_length(most_common_elems::text::text[], 1)]) "
    "FROM pg_stats WHERE schemaname = current_schema() AND tablename = 'memories' AND attname = 'words'"
)


class PostgresStore(MemoryStore):
    """One connection to a schema, which other processes may use as well.

    Raises:
        ConfigurationError: vectors are wanted, and the server has no pgvector.
        MemoriesFailed: the server does not answer.
    """

    def __init__(
        self, url: str, *, has_vectors: bool, capacity: int | None = None, half_life: float | None = None
    ) -> None:
        super().__init__(capacity=capacity, half_life=half_life)
        self._address, self._schema = split_schema(url, default="actgent_memories", owner="the memories")
        self._has_vectors = has_vectors
        self._common: dict[str, float] = {}
        """Shares of memories that have a word, of common ones."""
        self._rows = 0.0
        self._looked_at = -LOOKED
        self._analyzed = self._indexed = 0
        """How many memories were written before the server made its statistics for us, and since."""
        self._is_writing = False
        self._db: psycopg.Connection[Any] = self._connect()

    def _connect(self) -> "psycopg.Connection[Any]":
        try:
            db = psycopg.connect(self._address, autocommit=True, connect_timeout=CONNECT, options=_OPTIONS)
        except psycopg.Error as error:
            raise _ours(error) from error
        try:
            with db.transaction():
                self._prepare(db)
        except psycopg.Error as error:
            db.close()
            raise _ours(error) from error
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: "psycopg.Connection[Any]") -> None:
        db.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"actgent memories {self._schema}",))
        schema = psycopg.sql.Identifier(self._schema)
        db.execute(psycopg.sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
        db.execute(psycopg.sql.SQL("SET search_path TO {}, public").format(schema))
        vector = self._vector_type(db)
        exists = db.execute("SELECT to_regclass('versions')").fetchone()
        if exists == (None,):
            self._create(db, vector)
        elif self._has_vectors:
            self._widen(db)
        found = db.execute("SELECT version FROM versions").fetchone()
        if found is None or found[0] > VERSION:
            raise ConfigurationError("a newer actgent wrote these memories: install that one")

    def _create(self, db: "psycopg.Connection[Any]", vector: str) -> None:
        tables = TABLES.format(
            serial="bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
            integer="bigint",
            real="double precision",
        )
        db.execute(tables.encode())
        db.execute(_INDEXES.format(vector=vector).encode())
        db.execute("INSERT INTO versions VALUES (%s)", (VERSION,))

    def _widen(self, db: "psycopg.Connection[Any]") -> None:
        """Give vectors their type where there were none so far."""
        found = db.execute("SELECT pg_typeof(vector)::text FROM vectors LIMIT 1").fetchone()
        column = "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = 'vectors'::regclass AND attname = 'vector'"
        if found is None and db.execute(column.encode()).fetchone() == ("real[]",):
            db.execute("ALTER TABLE vectors ALTER COLUMN vector TYPE vector USING NULL")

    def _vector_type(self, db: "psycopg.Connection[Any]") -> str:
        """The type of vectors: pgvector's; without it a stand-in that stays empty."""
        if not self._has_vectors:
            return "real[]"
        if db.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone() is None:
            raise ConfigurationError(
                "memories with embed= in PostgreSQL need the extension pgvector, which this server does not have: install it "
                "there, leave embed= out, or keep the memories in SQLite"
            )
        db.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
        return "vector"

    def close(self) -> None:
        self._db.close()

    # --- the database --------------------------------------------------------------------

    def run(self, sql: str, values: Iterable[object] = ()) -> list[Row]:
        if self._db.closed and not self._is_writing:
            self._db = self._connect()
        try:
            cursor = self._db.execute(sql.replace("?", "%s").encode(), list(values))
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise _ours(error) from error

    def run_many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Without waiting for the answer to each: they are sent together."""
        try:
            with self._db.cursor() as cursor:
                cursor.executemany(sql.replace("?", "%s").encode(), rows)
        except psycopg.Error as error:
            raise _ours(error) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        if self._db.closed:
            self._db = self._connect()
        self._is_writing = True
        try:
            with self._db.transaction():
                yield
        except psycopg.Error as error:
            raise _ours(error) from error
        finally:
            self._is_writing = False

    def attempt(self) -> AbstractContextManager[object]:
        return self._db.transaction()

    def apply(self, operations: Sequence[Operation]) -> list[object]:
        results = super().apply(operations)
        if self._indexed > max(LEAST_ANALYZED, self._analyzed):
            self._analyzed, self._indexed = self._analyzed + self._indexed, 0
            with contextlib.suppress(MemoriesFailed):  # what was written stays; searches take longer
                self.run("ANALYZE memories")
        return results

    # --- words ---------------------------------------------------------------------------

    def insert(self, names: Sequence[str], values: Sequence[object], memory: MemoryUnit) -> int:
        whose = [owner_word(owner_key(memory.owner), "@"), *([SHARED] if memory.is_shared else [])]
        rows = self.run(
            f"INSERT INTO memories ({', '.join(names)}, words) VALUES ({', '.join('?' * len(names))}, "  # noqa: S608
            "to_tsvector('english', ?) || array_to_tsvector(?::text[])) RETURNING number",
            (*values, spaced(memory.text), whose),
        )
        self._indexed += 1
        return int(rows[0][0])

    def unindex(self, numbers: Sequence[int]) -> None:
        self.run("UPDATE memories SET words = NULL WHERE number = ANY(?)", (list(numbers),))
        self.run("DELETE FROM vectors WHERE number = ANY(?)", (list(numbers),))

    def find_words(self, search: Search, condition: str, values: Sequence[object]) -> list[int]:
        whose = [owner_word(search.scope.key, "@"), *([SHARED] if search.scope.with_shared else [])]
        asked = self._telling(search.words, whose)
        if not asked:
            return []
        query, scope = (" | ".join(f"'{lexeme}'" for lexeme in some) for some in (asked, whose))
        rows = self.run(
            "SELECT m.number FROM memories AS m "  # noqa: S608 - conditions of our own
            f"WHERE m.words @@ (?::tsquery && ?::tsquery) AND {condition} "
            "ORDER BY ts_rank(m.words, ?::tsquery, 1) DESC, m.number DESC LIMIT ?",
            (query, scope, *values, query, search.pool),
        )
        return [number for (number,) in rows]

    def _telling(self, words: Sequence[str], whose: Sequence[str]) -> list[str]:
        """The lexemes of the words that tell memories of these owners from one another."""
        rows = self.run(
            "SELECT DISTINCT unnest(tsvector_to_array(to_tsvector('english', word))) FROM unnest(?::text[]) AS word",
            (list(words),),
        )
        self._look()
        least = min(self._common.values(), default=0.0)
        counts = {
            lexeme: self._common.get(lexeme, least) * self._rows
            for (lexeme,) in rows
            if "'" not in lexeme and "\\" not in lexeme
        }
        share = min(1.0, sum(self._common.get(each, least) for each in whose)) if self._common else 1.0
        return telling(counts, share=share)

    def _look(self) -> None:
        """Learn from the server which words are common, once in a while."""
        now = time.monotonic()
        if now - self._looked_at < LOOKED:
            return
        self._looked_at = now
        self._common = dict(self.run(_COMMON))
        self._rows = max(
            0.0, self.run("SELECT reltuples FROM pg_class WHERE oid = 'memories'::regclass")[0][0]
        )

    # --- vectors -------------------------------------------------------------------------

    def embed(self, vectors: Mapping[int, bytes]) -> None:
        for number, vector in vectors.items():
            self.run(
                "INSERT INTO vectors SELECT number, owner, is_shared, ?::vector FROM memories WHERE number = ? "
                "AND replaced_by IS NULL ON CONFLICT (number) DO UPDATE SET vector = excluded.vector",
                (_shown(vector), number),
            )

    def find_near(self, search: Search, condition: str, values: Sequence[object]) -> list[int]:
        whose = "(v.owner = ? OR v.is_shared = 1)" if search.scope.with_shared else "v.owner = ?"
        rows = self.run(
            f"SELECT vector_dims(v.vector) FROM vectors AS v WHERE {whose} LIMIT 1",  # noqa: S608
            (search.scope.key,),
        )
        if not rows:
            return []
        vector = search.vector or b""
        check_dimensions(rows[0][0], len(vector) // FLOAT)
        rows = self.run(
            "SELECT m.number FROM vectors AS v JOIN memories AS m ON m.number = v.number "  # noqa: S608
            f"WHERE {whose} AND {condition} ORDER BY v.vector <=> ?::vector, m.number LIMIT ?",
            (search.scope.key, *values, _shown(vector), search.pool),
        )
        return [number for (number,) in rows]


def _shown(vector: bytes) -> str:
    """A vector as pgvector reads it."""
    floats = array("f")
    floats.frombytes(vector)
    return f"[{','.join(map(repr, floats))}]"


def _ours(error: psycopg.Error) -> MemoriesFailed:
    return MemoriesFailed(
        f"the database of the memories failed: {connection_failure(error) or str(error).strip()}"
    )
