"""Memory store in a PostgreSQL schema, with vectors in the extension pgvector. Needs the extra `postgres`."""

import contextlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import psycopg.sql

from actgent.errors import ConfigurationError, MemoriesFailed
from actgent.support.postgres_address import connection_failure, split_schema

from .operations import Operation, Put, Replace, Transaction
from .ranking import check_dimensions
from .scope import Scope
from .store import TABLES, UPGRADE, MemoryStore, Row
from .word_index import TABLE

VERSION = 2
"""Version of the schema."""
CONNECT_SECONDS = 10
"""Maximum seconds for connecting."""
STATEMENT_MS = 30_000
"""Maximum milliseconds of a statement."""
MIN_ANALYZED_MEMORIES = 1_000
"""Number of written memories after which `ANALYZE` runs for the first time. It runs again each time the number has doubled."""
FLOAT_BYTES = 4
"""Size of one component of a vector in bytes."""

_TERMS = TABLE.format(integer="bigint") + ";"
_VECTORS = """
    CREATE TABLE versions (version integer NOT NULL);
    CREATE TABLE vectors (number bigint PRIMARY KEY, owner text NOT NULL, is_shared integer NOT NULL, vector {vector});
    CREATE INDEX vectors_by_owner ON vectors (owner);
"""
_DROP_VERSION_1 = """
    DROP INDEX by_words;
    ALTER TABLE memories DROP COLUMN words;
"""
_OPTIONS = f"-c statement_timeout={STATEMENT_MS} -c client_min_messages=warning"


class PostgresStore(MemoryStore):
    """Connection to a schema with memories, which other processes may use concurrently.

    Raises:
        ConfigurationError: Vectors are requested, and the server does not have pgvector.
        MemoriesFailed: The server does not answer.
    """

    def __init__(
        self, url: str, *, has_vectors: bool, capacity: int | None = None, half_life: float | None = None
    ) -> None:
        super().__init__(capacity=capacity, half_life=half_life)
        self._address, self._schema = split_schema(url, default="actgent_memories", owner="the memories")
        self._has_vectors = has_vectors
        self._analyzed = self._indexed = 0
        """Numbers of written memories: all until now, and those at the time of the last `ANALYZE`."""
        self._is_writing = False
        self._db: psycopg.Connection[Any] = self._connect()

    def _connect(self) -> "psycopg.Connection[Any]":
        try:
            db = psycopg.connect(
                self._address, autocommit=True, connect_timeout=CONNECT_SECONDS, options=_OPTIONS
            )
        except psycopg.Error as error:
            raise _to_memories_failed(error) from error
        self._db = db
        try:
            with db.transaction():
                self._prepare(db)
        except psycopg.Error as error:
            db.close()
            raise _to_memories_failed(error) from error
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
        if found[0] < VERSION:
            db.execute((UPGRADE.format(integer="bigint") + _DROP_VERSION_1 + _TERMS).encode())
            self.index_all()
            db.execute("UPDATE versions SET version = %s", (VERSION,))

    def _create(self, db: "psycopg.Connection[Any]", vector: str) -> None:
        tables = TABLES.format(
            serial="bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
            integer="bigint",
            real="double precision",
        )
        db.execute(tables.encode())
        db.execute((_TERMS + _VECTORS.format(vector=vector)).encode())
        db.execute("INSERT INTO versions VALUES (%s)", (VERSION,))

    def _widen(self, db: "psycopg.Connection[Any]") -> None:
        """Change the column of vectors to pgvector's type if the schema was created without vectors."""
        found = db.execute("SELECT pg_typeof(vector)::text FROM vectors LIMIT 1").fetchone()
        column = "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = 'vectors'::regclass AND attname = 'vector'"
        if found is None and db.execute(column.encode()).fetchone() == ("real[]",):
            db.execute("ALTER TABLE vectors ALTER COLUMN vector TYPE vector USING NULL")

    def _vector_type(self, db: "psycopg.Connection[Any]") -> str:
        """Return the column type of vectors: that of pgvector, or a placeholder type if vectors are not requested.

        Raises:
            ConfigurationError: The server does not have pgvector.
        """
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
            raise _to_memories_failed(error) from error

    def run_many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Execute a statement once for each row of values, pipelined."""
        try:
            with self._db.cursor() as cursor:
                cursor.executemany(sql.replace("?", "%s").encode(), rows)
        except psycopg.Error as error:
            raise _to_memories_failed(error) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        if self._db.closed:
            self._db = self._connect()
        self._is_writing = True
        try:
            with self._db.transaction():
                yield
        except psycopg.Error as error:
            raise _to_memories_failed(error) from error
        finally:
            self._is_writing = False

    def attempt(self) -> AbstractContextManager[object]:
        return self._db.transaction()

    def apply(self, operations: Sequence[Operation]) -> list[object]:
        results = super().apply(operations)
        self._indexed += sum(map(_count_written, operations))
        if self._indexed > max(MIN_ANALYZED_MEMORIES, self._analyzed):
            self._analyzed, self._indexed = self._analyzed + self._indexed, 0
            with contextlib.suppress(MemoriesFailed):  # the data is committed; only searches become slower
                self.run("ANALYZE memories, terms")
        return results

    # --- vectors -------------------------------------------------------------------------

    def embed(self, vectors: Mapping[int, bytes]) -> None:
        for number, vector in vectors.items():
            self.run(
                "INSERT INTO vectors SELECT number, owner, is_shared, ?::vector FROM memories WHERE number = ? "
                "AND replaced_by IS NULL ON CONFLICT (number) DO UPDATE SET vector = excluded.vector",
                (_to_pgvector(vector), number),
            )

    def cosines(self, scope: Scope, vector: bytes, *, limit: int, numbers: Iterable[int]) -> dict[int, float]:
        whose = "(v.owner = ? OR v.is_shared = 1)" if scope.with_shared else "v.owner = ?"
        rows = self.run(
            f"SELECT vector_dims(v.vector) FROM vectors AS v WHERE {whose} LIMIT 1",  # noqa: S608
            (scope.key,),
        )
        if not rows:
            return {}
        check_dimensions(rows[0][0], len(vector) // FLOAT_BYTES)
        asked = _to_pgvector(vector)
        cosine = "SELECT v.number, 1 - (v.vector <=> ?::vector) FROM vectors AS v"
        rows = self.run(
            f"({cosine} WHERE {whose} ORDER BY v.vector <=> ?::vector, v.number LIMIT ?) "
            f"UNION {cosine} WHERE v.number = ANY(?)",
            (asked, scope.key, asked, limit, asked, list(numbers)),
        )
        return dict(rows)


def _count_written(todo: Operation) -> int:
    if isinstance(todo, Transaction):
        return sum(map(_count_written, todo.operations))
    return isinstance(todo, Put | Replace)


def _to_pgvector(vector: bytes) -> str:
    """Encode a vector as the text format of pgvector."""
    floats = array("f")
    floats.frombytes(vector)
    return f"[{','.join(map(repr, floats))}]"


def _to_memories_failed(error: psycopg.Error) -> MemoriesFailed:
    return MemoriesFailed(
        f"the database of the memories failed: {connection_failure(error) or str(error).strip()}"
    )
