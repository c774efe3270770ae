"""Session index in a PostgreSQL schema, with the words in a column of the type tsvector."""

from collections.abc import Mapping, Sequence

import psycopg

from actgent.errors import JournalFailed
from actgent.journal.record_feed_readers import WrittenBatch
from actgent.journal.session_list_queries import SessionKey
from actgent.journal.session_tags_and_metadata import Condition, postgres_condition
from actgent.support.postgres_address import connection_failure
from actgent.support.postgres_connection import DIALECT, PostgresConnection
from actgent.support.sql_connection_interface import Row
from actgent.support.word_normalization import separate_words

from .index_store import HIT_COLUMNS, SCAN_MESSAGES, TABLES, VERSION, IndexStore, WordQuery
from .record_indexing import IndexedText, SessionFacts
from .search_and_trend_queries import SearchFilter

WINDOW = 20_000
"""Number of newest messages that a search reads before it uses the index of words."""
ANALYZE_ROWS = 10_000
"""Number of added messages after which `ANALYZE` runs. It runs again each time the number has doubled."""
_MESSAGES = """
    CREATE TABLE messages (
        id bigint PRIMARY KEY, session bigint NOT NULL, record bigint NOT NULL, message_id text NOT NULL,
        role text NOT NULL, text text NOT NULL, words tsvector NOT NULL
    );
    CREATE INDEX messages_by_session ON messages (session);
    CREATE INDEX messages_by_word ON messages USING gin (words) WITH (fastupdate = off);
    CREATE TABLE versions (version integer NOT NULL);
"""
_TABLE_NAMES = ("journals", "indexed_sessions", "daily", "durations", "messages", "versions")
_INSERT = (
    "INSERT INTO messages SELECT * FROM "
    "unnest(?::bigint[], ?::bigint[], ?::bigint[], ?::text[], ?::text[], ?::text[], ?::tsvector[]) "
    "ON CONFLICT DO NOTHING RETURNING id"
)


class PostgresIndexStore(PostgresConnection, IndexStore):
    """Connection to a session index in a PostgreSQL schema.

    Raises:
        JournalFailed: The server does not answer.
    """

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        super().__init__()
        self._is_read_only = read_only
        self._added, self._analyze_at = 0, ANALYZE_ROWS
        self._open(url, kind="index", owner="the session index", options="-c jit=off")

    @staticmethod
    def _to_error(error: psycopg.Error) -> JournalFailed:
        return JournalFailed(
            f"the database of the session index failed: {connection_failure(error) or str(error).strip()}"
        )

    def _prepare(self) -> None:
        if not self._is_read_only:
            self._create_schema()
        exists = self.run("SELECT to_regclass('versions')") != [(None,)]
        if exists and self.run("SELECT version FROM versions") == [(VERSION,)]:
            return
        if self._is_read_only:
            raise JournalFailed(
                "the session index does not exist or has another version: start the agents of the journal once with index=True"
            )
        self.create_tables()

    def create_tables(self) -> None:
        self.script(f"DROP TABLE IF EXISTS {', '.join(_TABLE_NAMES)}")
        self.script(TABLES.format(**DIALECT) + _MESSAGES)
        self.run("INSERT INTO versions VALUES (?)", (VERSION,))

    def add(self, batch: Sequence[tuple[SessionFacts, Sequence[WrittenBatch]]]) -> list[SessionKey]:
        gaps = super().add(batch)
        if self._added >= self._analyze_at:
            self._added, self._analyze_at = 0, 2 * self._analyze_at
            self.run("ANALYZE messages")
        return gaps

    def add_messages(self, rows: Sequence[tuple[int, int, IndexedText, str]]) -> None:
        self._added += len(rows)
        waiting = list[tuple[int, int, IndexedText, str]]()
        last = -1
        for wanted, *rest in rows:
            last = max(wanted, last + 1)
            waiting.append((last, *rest))  # type: ignore[arg-type]
        while waiting:
            columns = [
                (
                    number,
                    session,
                    text.record,
                    text.message_id,
                    text.role,
                    text.text,
                    self._vector(text.text, scope),
                )
                for number, session, text, scope in waiting
            ]
            inserted = {
                number for (number,) in self.run(_INSERT, [list(each) for each in zip(*columns, strict=True)])
            }
            taken = [each for each in waiting if each[0] not in inserted]
            waiting = [(number + 1, *rest) for number, *rest in taken]  # type: ignore[misc]

    def _vector(self, text: str, scope: str) -> str:
        """Return the words of a text and the scope words as a literal of PostgreSQL's type tsvector.

        The words need no escaping, because they contain no quotes or backslashes.
        """
        places: dict[str, list[str]] = {}
        for place, word in enumerate(self.tokenize(separate_words(text)), 1):
            places.setdefault(f"w{word}", []).append(str(place))
        words = [f"'{word}':{','.join(at[:256])}" for word, at in places.items()]
        return " ".join([*words, *(f"'{word}'" for word in scope.split())])

    def remove_messages(self, session: int, scope_of: Mapping[str, str]) -> None:
        self.run("DELETE FROM messages WHERE session = ?", (session,))

    def annotation_condition(self, filters: SearchFilter) -> Condition | None:
        found = postgres_condition("s.annotations", filters.tags, filters.metadata)
        return None if found is None else (found[0].replace("%s", "?"), found[1])

    def find_hits(self, query: WordQuery, limit: int) -> list[Row]:
        """Return the newest `limit` messages that match a query.

        First the newest messages are searched. If fewer than `limit` of them match, the word index is searched.
        """
        begin = self._window_begin(query) if _match(query) else query.first
        rows = self._select(query, max(begin, query.first), limit, by_word=False)
        if len(rows) == limit or begin <= query.first:
            return rows
        return self._select(query, query.first, limit, by_word=True)

    def _window_begin(self, query: WordQuery) -> int:
        """Return the id of the first message in the window of newest messages; 0 if the window has all messages."""
        rows = self.run(
            "SELECT id FROM messages WHERE id < ? ORDER BY id DESC LIMIT 1 OFFSET ?", (query.before, WINDOW)
        )
        return rows[0][0] if rows else 0

    def _select(self, query: WordQuery, first: int, limit: int, *, by_word: bool) -> list[Row]:
        conditions = "".join(f" AND {each}" for each in query.conditions)
        values = [value for given in query.conditions.values() for value in given]
        matched, match_values = _match_condition(query)
        source = "messages"
        if by_word:  # the planner would read the messages in order of their ids instead
            source = f"(SELECT * FROM messages WHERE {matched}id >= ? AND id < ? OFFSET 0)"  # noqa: S608 - as below
        sql = (
            f"SELECT {HIT_COLUMNS} FROM {source} AS m JOIN indexed_sessions AS s ON s.number = m.session "  # noqa: S608 - names of our own
            f"WHERE {matched}m.id >= ? AND m.id < ?{conditions} ORDER BY m.id DESC LIMIT ?"
        )
        given = [*match_values, first, query.before]
        return self.run(sql, [*(given if by_word else []), *given, *values, limit])

    def scan_end(self, query: WordQuery) -> int | None:
        matched, match_values = _match_condition(query)
        rows = self.run(
            f"SELECT id FROM messages WHERE {matched}id >= ? AND id < ? ORDER BY id DESC LIMIT 1 OFFSET ?",  # noqa: S608 - names of our own
            [*match_values, query.first, query.before, SCAN_MESSAGES - 1],
        )
        return rows[0][0] if rows else None


def _match_condition(query: WordQuery) -> tuple[str, list[str]]:
    """Return the SQL condition for the words of a query, with ` AND ` at its end, and its values.

    The condition is empty if all messages match.
    """
    match = _match(query)
    return ("words @@ ?::tsquery AND ", [match]) if match else ("", [])


def _match(query: WordQuery) -> str:
    """Convert a query to the syntax of PostgreSQL's type tsquery; empty if all messages match. Words contain no quotes."""
    parts = [f"'{name}'" for name in query.names]
    for term in query.terms:
        words = [f"'w{word}'" for word in term.words]
        if term.is_prefix:
            words[-1] += ":*"
        phrase = f"({' <-> '.join(words)})"
        parts.append(f"!{phrase}" if term.is_excluded else phrase)
    if query.sessions:
        parts.append(f"({' | '.join(f's{number}' for number in query.sessions)})")
    return " & ".join(parts)
