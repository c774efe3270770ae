"""Memories in a file of SQLite, with vectors by the extension sqlite-vec."""

import contextlib
import importlib.util
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import apsw

from actgent.errors import ConfigurationError, MemoriesFailed

from .operations import Erase, ForgetThese, Operation, Together
from .ranking import check_dimensions
from .scope import Scope
from .store import TABLES, UPGRADE, MemoryStore, Row
from .word_index import TABLE

VERSION = 2
APPLICATION = 0x41474D31
"""What tells our files from those of other programs."""
FLOAT = 4
"""Bytes of a number of a vector."""
NEAR_POOL = 10
"""How many times as many candidates are taken by signs of vectors as are wanted by their angles."""
BUSY, SHORTLY = 10_000, 500
"""Milliseconds to wait for another process that writes, or that reads what is to be taken out of the log."""

_TERMS = TABLE.format(integer="INTEGER") + " WITHOUT ROWID;"
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


class SQLiteStore(MemoryStore):
    """One connection to a file, which other processes may use as well; an empty path is a store in memory.

    Raises:
        ConfigurationError: it is the file of another program, or vectors are wanted and the extra is not installed.
        MemoriesFailed: the file cannot be opened.
    """

    def __init__(
        self, path: str, *, has_vectors: bool, capacity: int | None = None, half_life: float | None = None
    ) -> None:
        super().__init__(capacity=capacity, half_life=half_life)
        self._has_remains = False
        """True: what was removed stands in the log."""
        if path:
            _check_file(Path(path))
        try:
            self._db = apsw.Connection(path or ":memory:")
        except apsw.Error as error:
            raise _ours(error) from error
        try:
            self._prepare(has_vectors=has_vectors)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, *, has_vectors: bool) -> None:
        self._db.set_busy_timeout(BUSY)
        self._check_kind()
        self._begin_log()
        for setting in ("synchronous=FULL", "secure_delete=ON"):
            self.run(f"PRAGMA {setting}")
        if has_vectors:
            _load_vectors(self._db)
        with self.transaction():
            version = self.run("PRAGMA user_version")[0][0]
            if version > VERSION:
                raise ConfigurationError(
                    f"a newer actgent wrote these memories (version {version}, this one knows {VERSION}): install that one"
                )
            if not version:
                self._db.execute(
                    TABLES.format(serial="INTEGER PRIMARY KEY AUTOINCREMENT", integer="INTEGER", real="REAL")
                )
                self._db.execute(_TERMS + _VECTORS)
            elif version == 1:
                self._db.execute(UPGRADE.format(integer="INTEGER") + _DROP_VERSION_1 + _TERMS)
                self.index_all()
            if version != VERSION:
                self._db.execute(f"PRAGMA application_id={APPLICATION}; PRAGMA user_version={VERSION}")

    def _check_kind(self) -> None:
        """Refuse what is not ours before anything of it is changed. Ours has its tables and its mark at once."""
        if Path(
            self._db.filename_wal
        ).is_file():  # not to be put into the file, if that is a journal whose process died
            self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        has_tables = self.run("SELECT count(*) FROM sqlite_schema")[0][0]
        if has_tables and self.run("PRAGMA application_id")[0][0] != APPLICATION:
            raise ConfigurationError(
                "the file is a journal, or a SQLite database of another program: name another file"
            )
        self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)

    def _begin_log(self) -> None:
        """Write to a log first. SQLite does not wait where another process is about to begin it, too: so we do."""
        until = time.monotonic() + BUSY / 1000
        while True:
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
            except apsw.Error as error:
                if not isinstance(error, apsw.BusyError) or time.monotonic() > until:
                    raise _ours(error) from error
                time.sleep(0.01)
            else:
                return

    def close(self) -> None:
        self._db.close()

    # --- the database --------------------------------------------------------------------

    def run(self, sql: str, values: Iterable[object] = ()) -> list[Row]:
        bound: tuple[Any, ...] = tuple(values)
        try:
            return self._db.execute(sql, bound).fetchall()
        except apsw.Error as error:
            raise _ours(error) from error

    def run_many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Without a result of each."""
        try:
            self._db.executemany(sql, cast(Sequence[tuple[Any, ...]], rows))
        except apsw.Error as error:
            raise _ours(error) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def attempt(self) -> apsw.Connection:  # its block is a savepoint
        return self._db

    def apply(self, operations: Sequence[Operation]) -> list[object]:
        results = super().apply(operations)
        self._has_remains |= any(map(_removes, operations))
        if self._has_remains:
            self._empty_log()
        return results

    def _empty_log(self) -> None:
        """Take what was removed out of the file's log (-wal), too; while somebody reads there, the next write does that."""
        self._db.set_busy_timeout(SHORTLY)
        with contextlib.suppress(
            MemoriesFailed
        ):  # what was written stands: it is tried again with the next write
            is_busy, *_ = self.run("PRAGMA wal_checkpoint(TRUNCATE)")[0]
            self._has_remains = bool(is_busy)
        self._db.set_busy_timeout(BUSY)

    # --- vectors -------------------------------------------------------------------------

    def embed(self, vectors: Mapping[int, bytes]) -> None:
        for number, vector in vectors.items():
            self.run(
                "INSERT OR REPLACE INTO vectors SELECT number, owner, is_shared, vec_quantize_binary(?), ? "
                "FROM memories WHERE number = ? AND replaced_by IS NULL",
                (_padded(vector), vector, number),
            )

    def cosines(self, scope: Scope, vector: bytes, *, limit: int, numbers: Iterable[int]) -> dict[int, float]:
        whose = "(v.owner = ? OR v.is_shared = 1)" if scope.with_shared else "v.owner = ?"
        sizes = self.run(
            f"SELECT length(v.vector) FROM vectors AS v WHERE {whose} LIMIT 1",  # noqa: S608
            (scope.key,),
        )
        if not sizes:
            return {}
        check_dimensions(sizes[0][0] // FLOAT, len(vector) // FLOAT)
        cosine = "SELECT v.number, 1 - vec_distance_cosine(v.vector, ?) AS cosine FROM vectors AS v"
        nearest = (
            f"SELECT v.number FROM vectors AS v WHERE {whose} "  # noqa: S608
            "ORDER BY vec_distance_hamming(vec_bit(v.signs), vec_quantize_binary(?)) LIMIT ?"
        )
        rows = self.run(
            f"SELECT * FROM ({cosine} WHERE v.number IN ({nearest}) ORDER BY cosine DESC LIMIT ?) "  # noqa: S608
            f"UNION {cosine} WHERE v.number IN (SELECT value FROM json_each(?))",
            (vector, scope.key, _padded(vector), limit * NEAR_POOL, limit, vector, json.dumps(list(numbers))),
        )
        return dict(rows)


def _padded(vector: bytes) -> bytes:
    """Append zeros until the number of dimensions is a multiple of 8, which sqlite-vec needs for the signs of a vector."""
    return vector + bytes(-len(vector) % (8 * FLOAT))


def _removes(todo: Operation) -> bool:
    if isinstance(todo, Together):
        return any(map(_removes, todo.operations))
    return isinstance(todo, Erase | ForgetThese)


def _check_file(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"{path} is not a file: name a file for the memories")
    if not path.parent.is_dir():
        raise ConfigurationError(f"there is no folder {path.parent} for the file of the memories: make it")


def _load_vectors(db: apsw.Connection) -> None:
    if importlib.util.find_spec("sqlite_vec") is None:
        raise ConfigurationError(
            "memories with embed= in SQLite need the extra: pip install 'actgent[vector]'"
        )
    import sqlite_vec  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra

    db.enable_load_extension(True)  # noqa: FBT003 - the library's own
    try:
        db.load_extension(sqlite_vec.loadable_path())
    finally:
        db.enable_load_extension(False)  # noqa: FBT003


def _ours(error: apsw.Error) -> MemoriesFailed:
    """SQLite's errors as ours."""
    if isinstance(error, apsw.FullError):
        return MemoriesFailed(f"there is no space for the memories: free some ({error})")
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return MemoriesFailed(f"the file of the memories is damaged, or none: {error}")
    return MemoriesFailed(f"the file of the memories cannot be read or written: {error}")
