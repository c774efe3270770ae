"""Memory store in a SQLite file, with vectors in the extension sqlite-vec."""

import contextlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import apsw

from actgent.errors import ConfigurationError, MemoriesFailed
from actgent.support.sqlite_connection import DIALECT, SQLiteConnection

from .memory_store import TABLES, UPGRADE, MemoryStore
from .memory_store_operations import Erase, ForgetMemories, Operation, Transaction
from .memory_visibility_by_owner import Scope
from .recall_ranking import check_dimensions
from .word_index import TABLE

VERSION = 2
"""Version of the file format."""
APPLICATION = 0x41474D31
"""SQLite application id of memory files."""
FLOAT_BYTES = 4
"""Size of one component of a vector in bytes."""
CACHE_KIB = 16_384
"""Maximum size of the page cache of a connection in KiB. SQLite's default holds fewer than 1,000 vectors."""

_TERMS = TABLE.format(**DIALECT)
_VECTORS = """
    CREATE TABLE vectors (
        number INTEGER PRIMARY KEY, owner TEXT NOT NULL, is_shared INTEGER NOT NULL, signs BLOB NOT NULL, vector BLOB NOT NULL
    );
    CREATE INDEX vectors_by_owner ON vectors (owner, number, signs);
    CREATE INDEX vectors_by_shared ON vectors (number, signs) WHERE is_shared = 1;
"""
_DROP_VERSION_1 = """
    DROP TABLE vocabulary;
    DROP TABLE words;
    CREATE INDEX vectors_by_shared ON vectors (number, signs) WHERE is_shared = 1;
"""


_DISTANCE = "vec_distance_hamming(vec_bit(v.signs), vec_quantize_binary(?1))"
_NEAREST_OWN = f"SELECT v.number FROM vectors AS v INDEXED BY vectors_by_owner WHERE v.owner = ?2 ORDER BY {_DISTANCE} LIMIT ?3"  # noqa: S608
_NEAREST = (
    f"SELECT v.number AS number, {_DISTANCE} AS distance FROM vectors AS v INDEXED BY vectors_by_owner WHERE v.owner = ?2 UNION ALL "  # noqa: S608
    f"SELECT v.number, {_DISTANCE} FROM vectors AS v INDEXED BY vectors_by_shared WHERE v.is_shared = 1 AND v.owner <> ?2 "
    "ORDER BY distance, number LIMIT ?3"
)
"""SQL query for the memory numbers whose sign vectors are nearest, of the owner and with shared memories. Each part
reads signs in an index. The index lists the numbers of an owner in order, so equal distances keep that order
without a second sort key.
"""


class SQLiteStore(SQLiteConnection, MemoryStore):
    """Connection to a memory file, which other processes may use concurrently. An empty path is a store in memory.

    Raises:
        ConfigurationError: The file belongs to another program, or vectors are requested and the extra is not installed.
        MemoriesFailed: The file cannot be opened.
    """

    has_cheap_reads = True

    def __init__(
        self, path: str, *, has_vectors: bool, capacity: int | None = None, half_life: float | None = None
    ) -> None:
        super().__init__(capacity=capacity, half_life=half_life)
        self._has_vectors = has_vectors
        self._has_remains = False
        """True if the write-ahead log still contains deleted data."""
        if path:
            _check_file(Path(path))
        self._open(path)

    @staticmethod
    def _to_error(error: apsw.Error) -> MemoriesFailed:
        if isinstance(error, apsw.FullError):
            return MemoriesFailed(f"the disk of the memory file is full: free space ({error})")
        if isinstance(error, apsw.CorruptError | apsw.NotADBError):
            return MemoriesFailed(f"the memory file is damaged, or not a SQLite file: {error}")
        return MemoriesFailed(f"the memory file cannot be read or written: {error}")

    def _prepare(self) -> None:
        self._check_kind()
        self._enable_log("synchronous=FULL", "secure_delete=ON", f"cache_size=-{CACHE_KIB}")
        if self._has_vectors:
            _load_vectors(self._db)
        with self.transaction():
            version = self.run("PRAGMA user_version")[0][0]
            if version > VERSION:
                raise ConfigurationError(
                    f"a newer actgent wrote these memories (version {version}, this one supports {VERSION}): upgrade actgent"
                )
            if not version:
                self.script(TABLES.format(**DIALECT) + _TERMS + _VECTORS)
            elif version == 1:
                self.script(UPGRADE.format(**DIALECT) + _DROP_VERSION_1 + _TERMS)
                self.index_all()
            if version != VERSION:
                self.script(f"PRAGMA application_id={APPLICATION}; PRAGMA user_version={VERSION}")

    def _check_kind(self) -> None:
        """Check that the opened SQLite file is empty or a memory file. The file is not changed.

        Raises:
            ConfigurationError: The file is a journal or a database of another program.
        """
        if Path(
            self._db.filename_wal
        ).is_file():  # the file may be the journal of a crashed process: do not create tables in it
            self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        has_tables = self.run("SELECT count(*) FROM sqlite_schema")[0][0]
        if has_tables and self.run("PRAGMA application_id")[0][0] != APPLICATION:
            raise ConfigurationError(
                f"{Path(self._db.filename).name} is a journal, or a SQLite database of another program: use another file "
                "for the memories"
            )
        self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)

    def data_version(self) -> object:
        return *self.run("PRAGMA data_version"), self._db.total_changes()

    def attempt(self) -> apsw.Connection:  # its block is a savepoint
        return self._db

    def apply(self, operations: Sequence[Operation]) -> list[object]:
        results = super().apply(operations)
        self._has_remains |= any(map(_removes, operations))
        if self._has_remains:
            with contextlib.suppress(
                MemoriesFailed
            ):  # the data is committed; the next write truncates the log again
                self._has_remains = not self._truncate_log()
        return results

    # --- vectors -------------------------------------------------------------------------

    def embed(self, vectors: Mapping[int, bytes]) -> None:
        for number, vector in vectors.items():
            self.run(
                "INSERT OR REPLACE INTO vectors SELECT number, owner, is_shared, vec_quantize_binary(?), ? "
                "FROM memories WHERE number = ? AND replaced_by IS NULL",
                (_pad_vector(vector), vector, number),
            )

    def cosines(self, scope: Scope, vector: bytes, *, limit: int, numbers: Iterable[int]) -> dict[int, float]:
        nearest = _NEAREST if scope.with_shared and self.words.has_shared(scope.key) else _NEAREST_OWN
        try:
            compared = {row[0] for row in self.run(nearest, (_pad_vector(vector), scope.key, limit))}
            compared.update(numbers)
            return dict(
                self.run(
                    "SELECT v.number, 1 - vec_distance_cosine(v.vector, ?) FROM json_each(?) AS c "
                    "JOIN vectors AS v ON v.number = c.value",
                    (vector, str(sorted(compared))),
                )
            )
        except MemoriesFailed:
            self._check_dimensions(scope, len(vector) // FLOAT_BYTES)
            raise

    def _check_dimensions(self, scope: Scope, query_dimensions: int) -> None:
        """Raise if a query vector has another length than the vectors of a scope.

        Called after sqlite-vec has failed.

        Raises:
            ConfigurationError: The lengths differ.
        """
        whose = "(v.owner = ? OR v.is_shared = 1)" if scope.with_shared else "v.owner = ?"
        stored = self.run(
            f"SELECT length(v.vector) FROM vectors AS v WHERE {whose} AND length(v.vector) <> ? LIMIT 1",  # noqa: S608
            (scope.key, query_dimensions * FLOAT_BYTES),
        )
        for (size,) in stored:
            check_dimensions(size // FLOAT_BYTES, query_dimensions)


def _pad_vector(vector: bytes) -> bytes:
    """Append zeros to a vector until its number of dimensions is a multiple of 8.

    sqlite-vec requires that to compress a vector to the signs of its dimensions, one bit each.
    """
    return vector + bytes(-len(vector) % (8 * FLOAT_BYTES))


def _removes(todo: Operation) -> bool:
    if isinstance(todo, Transaction):
        return any(map(_removes, todo.operations))
    return isinstance(todo, Erase | ForgetMemories)


def _check_file(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"{path} is not a file: pass the path of a memory file")
    if not path.parent.is_dir():
        raise ConfigurationError(f"the folder {path.parent} of the memory file does not exist: create it")


def _load_vectors(db: apsw.Connection) -> None:
    if importlib.util.find_spec("sqlite_vec") is None:
        raise ConfigurationError(
            "memories with embed= in SQLite require an extra package: pip install 'actgent[vector]'"
        )
    import sqlite_vec  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra

    db.enable_load_extension(True)  # noqa: FBT003 - loads only the extension of sqlite-vec
    try:
        db.load_extension(sqlite_vec.loadable_path())
    finally:
        db.enable_load_extension(False)  # noqa: FBT003
