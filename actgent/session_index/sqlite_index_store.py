"""Session index in a SQLite file, with the words in FTS5."""

from collections.abc import Mapping, Sequence

import apsw

from actgent.errors import JournalError, JournalFailed, JournalFull
from actgent.journal.session_tags_and_metadata import Condition, sqlite_condition
from actgent.support.sql_connection_interface import Row
from actgent.support.sqlite_connection import DIALECT, SQLiteConnection
from actgent.support.word_normalization import separate_words

from .index_store import HIT_COLUMNS, SCAN_MESSAGES, TABLES, VERSION, IndexStore, WordQuery
from .record_indexing import IndexedText
from .search_and_trend_queries import SearchFilter

CACHE_KIB = 32_768
"""Maximum size of the page cache of a connection in KiB."""
_MESSAGES = """
    CREATE TABLE messages (
        id INTEGER PRIMARY KEY, session INTEGER NOT NULL, record INTEGER NOT NULL, message_id TEXT NOT NULL,
        role TEXT NOT NULL, text TEXT NOT NULL
    );
    CREATE INDEX messages_by_session ON messages (session);
    CREATE VIRTUAL TABLE words USING fts5(
        text, scope, content='', columnsize=0, prefix='2 3 4', tokenize="unicode61 remove_diacritics 2"
    );
    INSERT INTO words (words, rank) VALUES ('secure-delete', 1);
"""
_ADD_WORDS = "INSERT INTO words (rowid, text, scope) VALUES (?, ?, ?)"
_REMOVE_WORDS = "INSERT INTO words (words, rowid, text, scope) VALUES ('delete', ?, ?, ?)"


class SQLiteIndexStore(SQLiteConnection, IndexStore):
    """Connection to the SQLite file of a session index, or to an index in memory if the path is empty.

    Raises:
        JournalFailed: The file cannot be opened.
    """

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        super().__init__()
        self._is_read_only = read_only
        self._open(path, read_only=read_only)

    @staticmethod
    def _to_error(error: apsw.Error) -> JournalError:
        if isinstance(error, apsw.FullError):
            return JournalFull("the disk of the session index is full: free space")
        if isinstance(error, apsw.CorruptError | apsw.NotADBError):
            return JournalFailed(
                f"the session index is damaged, or not a SQLite file: delete it, and it is built again ({error})"
            )
        return JournalFailed(f"the session index cannot be read or written: {error}")

    def _prepare(self) -> None:
        self._db.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        version = self._db.execute("PRAGMA user_version").get
        if self._is_read_only:
            if version != VERSION:
                raise JournalFailed(
                    "the session index has another version: start the agents of the journal once with index=True"
                )
            return
        self._enable_log("synchronous=NORMAL", "secure_delete=ON")
        if version != VERSION:
            self.create_tables()

    def create_tables(self) -> None:
        with self.transaction():
            names = self.run(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'words_%'"
            )
            for (name,) in names:
                if not name.startswith("sqlite_"):
                    self._db.execute(f"DROP TABLE {name}")
            self._db.execute(TABLES.format(**DIALECT) + _MESSAGES)
            self._db.execute(f"PRAGMA user_version={VERSION}")

    def add_messages(self, rows: Sequence[tuple[int, int, IndexedText, str]]) -> None:
        words, last = [], -1
        for wanted, session, text, scope in rows:
            last = self._insert(max(wanted, last + 1), session, text)
            words.append((last, separate_words(text.text), scope))
        self.run_many(_ADD_WORDS, words)

    def _insert(self, number: int, session: int, text: IndexedText) -> int:
        """Insert a message under the first free id from `number`, and return the id."""
        sql = "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING id"
        while not self.run(sql, (number, session, text.record, text.message_id, text.role, text.text)):
            number += 1
        return number

    def remove_messages(self, session: int, scope_of: Mapping[str, str]) -> None:
        rows = self.run("SELECT id, role, text FROM messages WHERE session = ? ORDER BY id", (session,))
        self.run_many(
            _REMOVE_WORDS, [(number, separate_words(text), scope_of[role]) for number, role, text in rows]
        )
        self.run("DELETE FROM messages WHERE session = ?", (session,))

    def finish_erasure(self) -> None:
        """Merge the write-ahead log into the index file, so that no file contains the erased texts."""
        self._truncate_log()  # if a reader blocks it, the next erasure or the close truncates the log

    def annotation_condition(self, filters: SearchFilter) -> Condition | None:
        return sqlite_condition("s.annotations", filters.tags, filters.metadata)

    def find_hits(self, query: WordQuery, limit: int) -> list[Row]:
        conditions = "".join(f" AND {each}" for each in query.conditions)
        sql = (
            f"SELECT {HIT_COLUMNS} FROM words CROSS JOIN messages AS m ON m.id = words.rowid "  # noqa: S608 - names of our own
            "CROSS JOIN indexed_sessions AS s ON s.number = m.session "
            f"WHERE words MATCH ? AND words.rowid >= ? AND words.rowid < ?{conditions} "
            "ORDER BY words.rowid DESC LIMIT ?"
        )
        values = [value for given in query.conditions.values() for value in given]
        return self.run(sql, [_match(query), query.first, query.before, *values, limit])

    def scan_end(self, query: WordQuery) -> int | None:
        rows = self.run(
            "SELECT rowid FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ? ORDER BY rowid DESC "
            "LIMIT 1 OFFSET ?",
            [_match(query), query.first, query.before, SCAN_MESSAGES - 1],
        )
        return rows[0][0] if rows else None


def _match(query: WordQuery) -> str:
    """Convert a query to the syntax of SQLite's full-text index (FTS5). Words contain no quotes."""
    needed = [_phrase(each.words, is_prefix=each.is_prefix) for each in query.terms if not each.is_excluded]
    excluded = [_phrase(each.words, is_prefix=each.is_prefix) for each in query.terms if each.is_excluded]
    parts = [f"text : ({' AND '.join(needed)})"] if needed else ["scope : (ruser OR rassistant)"]
    parts += [f'scope : "{name}"' for name in query.names]
    if query.sessions:
        parts.append(f"scope : ({' OR '.join(f's{number}' for number in query.sessions)})")
    text = " AND ".join(f"({part})" for part in parts)
    return text if not excluded else f"({text}) NOT (text : ({' OR '.join(excluded)}))"


def _phrase(words: Sequence[str], *, is_prefix: bool) -> str:
    return f'"{" ".join(words)}"{" *" if is_prefix else ""}'
