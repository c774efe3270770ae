"""Memory store in a PostgreSQL schema, with vectors in the extension pgvector. Needs the extra `postgres`."""

import contextlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

import psycopg

from actgent.errors import ConfigurationError, MemoriesFailed
from actgent.support.postgres_address import connection_failure
from actgent.support.postgres_connection import DIALECT, PostgresConnection

from .memory_store import TABLES, UPGRADE, MemoryStore
from .memory_store_operations import Operation, Put, Replace, Transaction
from .memory_visibility_by_owner import Scope
from .recall_ranking import check_dimensions
from .word_index import TABLE

VERSION = 2
"""Version of the schema."""
MIN_ANALYZED_MEMORIES = 1_000
"""Number of written memories after which `ANALYZE` runs for the first time. It runs again each time the number has doubled."""
FLOAT_BYTES = 4
"""Size of one component of a vector in bytes."""

_TERMS = TABLE.format(**DIALECT)
_VECTORS = """
    CREATE TABLE versions (version integer NOT NULL);
    CREATE TABLE vectors (number bigint PRIMARY KEY, owner text NOT NULL, is_shared integer NOT NULL, vector {vector});
    CREATE INDEX vectors_by_owner ON vectors (owner);
"""
_DROP_VERSION_1 = """
    DROP INDEX by_words;
    ALTER TABLE memories DROP COLUMN words;
"""


class PostgresStore(PostgresConnection, MemoryStore):
    """Connection to a schema with memories, which other processes may use concurrently.

    Raises:
        ConfigurationError: Vectors are requested, and the server does not have pgvector.
        MemoriesFailed: The server does not answer.
    """

    def __init__(
        self, url: str, *, has_vectors: bool, capacity: int | None = None, half_life: float | None = None
    ) -> None:
        super().__init__(capacity=capacity, half_life=half_life)
        self._has_vectors = has_vectors
        self._analyzed = self._indexed = 0
        """Numbers of written memories: all until now, and those at the time of the last `ANALYZE`."""
        self._open(url, kind="memories", owner="the memories")

    @staticmethod
    def _to_error(error: psycopg.Error) -> MemoriesFailed:
        return MemoriesFailed(
            f"the database of the memories failed: {connection_failure(error) or str(error).strip()}"
        )

    def _prepare(self) -> None:
        self._create_schema()
        is_new = self.run("SELECT to_regclass('versions')") == [(None,)]
        self.run("SELECT set_config('search_path', current_setting('search_path') || ', public', false)")
        vector = self._vector_type()
        if is_new:
            self.script(TABLES.format(**DIALECT) + _TERMS + _VECTORS.format(vector=vector))
            self.run("INSERT INTO versions VALUES (?)", (VERSION,))
        elif self._has_vectors:
            self._widen()
        found = self.run("SELECT version FROM versions")
        if not found or found[0][0] > VERSION:
            raise ConfigurationError("a newer release of actgent wrote these memories: install that release")
        if found[0][0] < VERSION:
            self.script(UPGRADE.format(**DIALECT) + _DROP_VERSION_1 + _TERMS)
            self.index_all()
            self.run("UPDATE versions SET version = ?", (VERSION,))

    def _widen(self) -> None:
        """Change the column of vectors to pgvector's type if the schema was created without vectors."""
        found = self.run("SELECT pg_typeof(vector)::text FROM vectors LIMIT 1")
        column = "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = 'vectors'::regclass AND attname = 'vector'"
        if not found and self.run(column) == [("real[]",)]:
            self.run("ALTER TABLE vectors ALTER COLUMN vector TYPE vector USING NULL")

    def _vector_type(self) -> str:
        """Return the column type of vectors: that of pgvector, or a placeholder type if vectors are not requested.

        Raises:
            ConfigurationError: The server does not have pgvector.
        """
        if not self._has_vectors:
            return "real[]"
        if not self.run("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
            raise ConfigurationError(
                "memories with embed= in PostgreSQL require the extension pgvector, which this server does not have: install it "
                "there, leave embed= out, or keep the memories in SQLite"
            )
        self.run("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
        return "vector"

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
