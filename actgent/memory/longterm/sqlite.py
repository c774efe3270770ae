"""Memories in a file of SQLite: words by its index FTS5, vectors by the extension sqlite-vec.

The index has the owner as a word of its own, so that a search reads the memories of one owner and no others. A search looks
for the rarest of its words first, and for no more than are found in so many memories together: to rank by a word that is
everywhere costs the most and tells the least.
"""

import contextlib
import importlib.util
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import apsw

from actgent.errors import ConfigurationError, MemoriesFailed

from .operations import Erase, ForgetThese, Operation, Search, Together
from .ranking import check_dimensions, telling
from .scope import owner_key, owner_word
from .store import TABLES, MemoryStore, Row
from .unit import MemoryUnit
from .words import spaced

VERSION = 1
APPLICATION = 0x41474D31
"""What tells our files from those of other programs."""
SHARED = "shared"
"""The word of memories that everybody is shown, beside their owner's; it stands in a column of its own."""
KNOWN_WORDS = 10_000
FLOAT = 4
"""Bytes of a number of a vector."""
NEAR_POOL = 10
"""How many times as many candidates are taken by signs of vectors as are wanted by their angles."""
BUSY, SHORTLY = 10_000, 500
"""Milliseconds to wait for another process that writes, or that reads what is to be taken out of the log."""

_INDEXES = """
    CREATE VIRTUAL TABLE words USING fts5 (
        scope, text, tokenize = "porter unicode61 remove_diacritics 2", prefix = ''
    );
    INSERT INTO words (words, rank) VALUES ('secure-delete', 1);
    INSERT INTO words (words, rank) VALUES ('rank', 'bm25(0.0, 1.0)');
    CREATE VIRTUAL TABLE vocabulary USING fts5vocab (words, 'row');
    CREATE TABLE vectors (
        number INTEGER PRIMARY KEY, owner TEXT NOT NULL, is_shared INTEGER NOT NULL, signs BLOB NOT NULL, vector BLOB NOT NULL
    );
    CREATE INDEX vectors_by_owner ON vectors (owner, number, signs);
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
        self._frequencies: OrderedDict[str, int] = OrderedDict()
        self._has_remains = False
        """True: what was removed stands in the log."""
        self._counted_at = 0
        """How many memories there were when words were counted first."""
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
        self._stems = self._db.fts5_tokenizer("porter", ["unicode61", "remove_diacritics", "2"])

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
                self._db.execute(_INDEXES)
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

    # --- words ---------------------------------------------------------------------------

    def insert(self, names: Sequence[str], values: Sequence[object], memory: MemoryUnit) -> int:
        row = self.run(
            f"INSERT INTO memories ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) RETURNING number",  # noqa: S608
            values,
        )
        number = int(row[0][0])
        scope = owner_word(owner_key(memory.owner), "o")
        if memory.is_shared:
            scope += f" {SHARED}"
        self.run(
            "INSERT INTO words (rowid, scope, text) VALUES (?, ?, ?)", (number, scope, spaced(memory.text))
        )
        return number

    def unindex(self, numbers: Sequence[int]) -> None:
        places = ", ".join("?" * len(numbers))
        self.run(f"DELETE FROM words WHERE rowid IN ({places})", numbers)  # noqa: S608
        self.run(f"DELETE FROM vectors WHERE number IN ({places})", numbers)  # noqa: S608

    def find_words(self, search: Search, condition: str, values: Sequence[object]) -> list[int]:
        whose = [owner_word(search.scope.key, "o"), *([SHARED] if search.scope.with_shared else [])]
        words = self._telling(search.words, whose)
        if not words:
            return []
        asked, scope = (" OR ".join(f'"{word}"' for word in some) for some in (words, whose))
        rows = self.run(
            "SELECT m.number FROM words JOIN memories AS m ON m.number = words.rowid "  # noqa: S608
            f"WHERE words MATCH ? AND {condition} ORDER BY words.rank LIMIT ?",
            (f"{{scope}} : ({scope}) AND {{text}} : ({asked})", *values, search.pool),
        )
        return [number for (number,) in rows]

    def _telling(self, words: Sequence[str], whose: Sequence[str]) -> list[str]:
        """The words that tell memories of these owners from one another."""
        counts = {word: count for word in words if (count := self._frequency(word))}
        owned = sum(self._frequency(each) for each in whose)
        return telling(counts, share=min(1.0, owned / max(1, self._counted_at)))

    def _frequency(self, word: str) -> int:
        """In how many memories a word is, of all owners; remembered until there are twice as many."""
        count = self.run("SELECT max(rowid) FROM memories")[0][0] or 0
        if count > 2 * self._counted_at:
            self._frequencies.clear()
            self._counted_at = count
        known = self._frequencies.get(word)
        if not known:
            found = self._stems(word.encode(), apsw.FTS5_TOKENIZE_QUERY, None, include_offsets=False)
            stems = [str(stem) for together in found for stem in cast(tuple[str, ...], together)]
            known = min((self._count(stem) for stem in stems), default=0)
            self._frequencies[word] = known
            if len(self._frequencies) > KNOWN_WORDS:
                self._frequencies.popitem(last=False)
        return known

    def _count(self, stem: str) -> int:
        rows = self.run("SELECT doc FROM vocabulary WHERE term = ?", (stem,))
        return int(rows[0][0]) if rows else 0

    # --- vectors -------------------------------------------------------------------------

    def embed(self, vectors: Mapping[int, bytes]) -> None:
        for number, vector in vectors.items():
            self.run(
                "INSERT OR REPLACE INTO vectors SELECT number, owner, is_shared, vec_quantize_binary(?), ? "
                "FROM memories WHERE number = ? AND replaced_by IS NULL",
                (_padded(vector), vector, number),
            )

    def find_near(self, search: Search, condition: str, values: Sequence[object]) -> list[int]:
        whose = "v.owner = ?" if not search.scope.with_shared else "(v.owner = ? OR v.is_shared = 1)"
        sizes = self.run(
            f"SELECT length(v.vector) FROM vectors AS v WHERE {whose} LIMIT 1",  # noqa: S608
            (search.scope.key,),
        )
        if not sizes:
            return []
        check_dimensions(sizes[0][0] // FLOAT, len(search.vector or b"") // FLOAT)
        rows = self.run(
            "SELECT number FROM vectors WHERE number IN (SELECT v.number FROM vectors AS v JOIN memories AS m "  # noqa: S608
            f"ON m.number = v.number WHERE {whose} AND {condition} "
            "ORDER BY vec_distance_hamming(vec_bit(v.signs), vec_quantize_binary(?)) LIMIT ?) "
            "ORDER BY vec_distance_cosine(vector, ?) LIMIT ?",
            (
                *(search.scope.key, *values, _padded(search.vector or b"")),
                *(search.pool * NEAR_POOL, search.vector, search.pool),
            ),
        )
        return [number for (number,) in rows]


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
