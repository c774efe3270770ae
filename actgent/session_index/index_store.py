"""Storage of a session index: the part that SQLite and PostgreSQL share. All methods block the calling thread."""

import abc
import datetime as dt
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

import attrs

from actgent.journal.record_feed_readers import WrittenBatch
from actgent.journal.session_list_queries import SessionKey
from actgent.journal.session_tags_and_metadata import Condition, encode_annotations
from actgent.support.sql_connection_interface import Row, SQLConnection

from .record_indexing import (
    DAY_SECONDS,
    FIGURES,
    IndexedText,
    IndexProgress,
    SessionFacts,
    SumKey,
    Tally,
    seconds_of,
)
from .search_and_trend_queries import (
    Group,
    SearchFilter,
    SearchHit,
    SearchPage,
    Term,
    Trend,
    Trends,
    cut_snippet,
    duration_percentile,
    parse_query,
)

VERSION = 3
"""Version of the tables. An index of another version is built again."""
MAX_WORD_CHARS = 100
"""Length to which an indexed word is cut, in characters."""
MAX_NAMED_SESSIONS = 200
"""Maximum number of matching sessions whose numbers are added to a query of the word index."""
MAX_SCANNED_MESSAGES = 60_000
"""Maximum number of messages that match the words of a query and are checked for the session conditions of one page."""
SCAN_MESSAGES = 10_000
"""Number of messages that are checked in one statement."""
MAX_TRENDS = 100
"""Maximum number of agents, models or owners in one result. The number of days is not limited."""
MICROSECONDS = 1_000_000
_LAST_ID = 1 << 62

TABLES = """
    CREATE TABLE journals (identity TEXT NOT NULL);
    CREATE TABLE indexed_sessions (
        number {serial}, agent TEXT {binary} NOT NULL, session_id TEXT {binary} NOT NULL, owner TEXT {binary} NOT NULL,
        created_at {real} NOT NULL, updated_at {real} NOT NULL, state TEXT NOT NULL, records {integer} NOT NULL,
        progress TEXT NOT NULL, cost {real} NOT NULL, seconds {real} NOT NULL, turns {integer} NOT NULL,
        errors {integer} NOT NULL, annotations TEXT, UNIQUE (agent, session_id)
    );
    CREATE TABLE daily (
        level INTEGER NOT NULL, owner TEXT {binary} NOT NULL, day INTEGER NOT NULL, agent TEXT {binary} NOT NULL,
        model TEXT {binary} NOT NULL,
        turns {integer} NOT NULL, errors {integer} NOT NULL, model_calls {integer} NOT NULL,
        input_tokens {integer} NOT NULL, output_tokens {integer} NOT NULL, cached_tokens {integer} NOT NULL,
        cost {real} NOT NULL, tool_calls {integer} NOT NULL, tool_failures {integer} NOT NULL,
        PRIMARY KEY (level, owner, day, agent, model)
    ){without_rowid};
    CREATE TABLE durations (
        level INTEGER NOT NULL, owner TEXT {binary} NOT NULL, day INTEGER NOT NULL, agent TEXT {binary} NOT NULL,
        model TEXT {binary} NOT NULL, bucket INTEGER NOT NULL, turns {integer} NOT NULL,
        PRIMARY KEY (level, owner, day, agent, model, bucket)
    ){without_rowid};
"""
_PUT_SESSION = (
    "INSERT INTO indexed_sessions (agent, session_id, owner, created_at, updated_at, state, records, progress, cost, "
    "seconds, turns, errors, annotations) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (agent, session_id) DO UPDATE SET annotations = excluded.annotations, "
    "updated_at = excluded.updated_at, state = excluded.state, records = excluded.records, progress = excluded.progress, "
    "cost = excluded.cost, seconds = excluded.seconds, turns = excluded.turns, errors = excluded.errors RETURNING number"
)
_PLACE = "level, owner, day, agent, model"
_ADD_FIGURES = (
    f"INSERT INTO daily ({_PLACE}, {', '.join(FIGURES)}) VALUES ({', '.join('?' * (5 + len(FIGURES)))}) "  # noqa: S608
    f"ON CONFLICT ({_PLACE}) DO UPDATE SET "
    f"{', '.join(f'{name} = daily.{name} + excluded.{name}' for name in FIGURES)}"
)
_ADD_DURATIONS = (
    f"INSERT INTO durations ({_PLACE}, bucket, turns) VALUES (?, ?, ?, ?, ?, ?, ?) "  # noqa: S608
    f"ON CONFLICT ({_PLACE}, bucket) DO UPDATE SET turns = durations.turns + excluded.turns"
)
ALL_OWNERS, EACH_OWNER, WHOLE_OWNER = 0, 1, 2
"""Levels of the statistics sums: all owners together by day, agent and model; each owner by day, agent and model; each owner by day."""
HIT_COLUMNS = "m.id, m.record, m.message_id, m.role, m.text, s.agent, s.session_id, s.owner, s.cost, s.seconds, s.turns, s.errors"


@attrs.frozen(kw_only=True)
class WordQuery:
    """A search in the form that the word index takes."""

    terms: Sequence[Term]
    names: Sequence[str]
    """Indexed terms for agent, owner and role that a message must have."""
    sessions: Sequence[int] = ()
    """Numbers of the sessions of which one must match; empty if all sessions match."""
    first: int = 0
    """Smallest message id in the index that can match."""
    before: int = _LAST_ID
    """Message id before which all matches must be."""
    conditions: Mapping[str, Sequence[Any]] = attrs.field(factory=dict)
    """SQL conditions on the session of a message (table alias `s`), each with its values."""


class IndexStore(SQLConnection):
    """Base class of the connections to a session index. One thread uses a connection."""

    def __init__(self) -> None:
        import apsw  # noqa: PLC0415 - only indexes need it

        # SQLite's tokenizer, also for PostgreSQL, so that words are the same everywhere.
        self._tokenize_as = apsw.FTS5_TOKENIZE_DOCUMENT
        self._tokenizer = apsw.Connection(":memory:").fts5_tokenizer("unicode61", ["remove_diacritics", "2"])

    # --- the database ------------------------------------------------------------------------

    @abc.abstractmethod
    def create_tables(self) -> None:
        """Create empty tables. Existing tables of the index are removed first."""

    def bind_to_journal(self, identity: bytes) -> None:
        """Assign the index to the journal with this identity. If it was the index of another journal, empty it first."""
        name = identity.hex()
        found = self.run("SELECT identity FROM journals")
        if found and found != [(name,)]:
            self.create_tables()
        if found != [(name,)]:
            self.run("INSERT INTO journals VALUES (?)", (name,))

    @abc.abstractmethod
    def add_messages(self, rows: Sequence[tuple[int, int, IndexedText, str]]) -> None:
        """Add messages to the word index, from rows of wanted id, session number, text and scope words.

        If an id is in use, the next free id is used.
        """

    @abc.abstractmethod
    def remove_messages(self, session: int, scope_of: Mapping[str, str]) -> None:
        """Remove the messages of the session with the number `session`. `scope_of` has the scope words by role."""

    @abc.abstractmethod
    def find_hits(self, query: WordQuery, limit: int) -> list[Row]:
        """Return at most `limit` messages that match the query, newest first, with the columns of `HIT_COLUMNS`."""

    @abc.abstractmethod
    def scan_end(self, query: WordQuery) -> int | None:
        """Return the id of the match number `SCAN_MESSAGES` before `query.before`, newest first; None if there are fewer matches.

        Conditions on sessions are not checked.
        """

    @abc.abstractmethod
    def annotation_condition(self, filters: SearchFilter) -> Condition | None:
        """Return the SQL condition for the tags and metadata in a filter; None if the filter has neither."""

    def finish_erasure(self) -> None:
        """Remove erased texts from the files of the database, after the transaction of an erasure."""

    def tokenize(self, text: str) -> list[str]:
        """Return the words of a text, in the form that `word_normalization.separate_words` gives them."""
        found = self._tokenizer(text.encode(), self._tokenize_as, None, include_offsets=False)
        return [word[:MAX_WORD_CHARS] for together in found for word in cast(tuple[str, ...], together)]

    # --- writing -----------------------------------------------------------------------------

    def add(self, additions: Sequence[tuple[SessionFacts, Sequence[WrittenBatch]]]) -> list[SessionKey]:
        """Index batches (groups of records) of sessions in one transaction.

        Return the sessions whose batches do not directly follow their indexed records; these batches are not added.
        """
        gaps: list[SessionKey] = []
        tallies: list[Tally] = []
        with self.transaction():
            for facts, batches in additions:
                progress = self._progress_of(facts)
                new = _batches_after(progress.records, batches)
                if new and new[0].first > progress.records + 1:
                    gaps.append(SessionKey(facts.agent, facts.session_id))
                else:
                    tally = Tally(facts, progress)
                    tally.add(new)
                    tallies.append(tally)
            self._write(tallies)
        return gaps

    def _progress_of(self, facts: SessionFacts) -> IndexProgress:
        """Return the number of indexed records of a session and the facts from them. A new session is added to the index.

        If the index has an erased session with the same id, remove it first.
        """
        found = self.run(
            "SELECT created_at, progress FROM indexed_sessions WHERE agent = ? AND session_id = ?",
            (facts.agent, facts.session_id),
        )
        if not found:
            return IndexProgress()
        created_at, progress = found[0]
        if created_at != facts.created_at:
            self._remove(SessionKey(facts.agent, facts.session_id))
            return IndexProgress()
        return IndexProgress(**json.loads(progress))

    def _write(self, tallies: Sequence[Tally]) -> None:
        messages: list[tuple[int, int, IndexedText, str]] = []
        sums: dict[tuple[Any, ...], Counter[str]] = {}
        durations: Counter[tuple[Any, ...]] = Counter()
        for tally in tallies:
            number, facts = self._put_session(tally), tally.facts
            scopes = scope_words(facts.agent, facts.owner, number)
            messages += [
                (int(each.at * MICROSECONDS), number, each, scopes[each.role]) for each in tally.texts
            ]
            for key, added in tally.sums.items():
                for level in _keys_by_level(key):
                    sums.setdefault(level, Counter()).update(added)
            for (key, bucket), turns in tally.durations.items():
                for level in _keys_by_level(key):
                    durations[*level, bucket] += turns
        messages.sort(key=lambda each: each[0])
        self.add_messages(messages)
        self.run_many(
            _ADD_FIGURES, [(*key, *(added[name] for name in FIGURES)) for key, added in sums.items()]
        )
        self.run_many(_ADD_DURATIONS, [(*key, turns) for key, turns in durations.items()])

    def _put_session(self, tally: Tally) -> int:
        facts, progress = tally.facts, tally.progress
        figures = progress.figures
        values = (
            *(facts.agent, facts.session_id, facts.owner, facts.created_at, facts.updated_at, facts.state),
            *(progress.records, json.dumps(attrs.asdict(progress))),
            *(float(figures.get(name, 0.0)) for name in ("cost", "seconds")),
            *(int(figures.get(name, 0)) for name in ("turns", "errors")),
            encode_annotations(facts.annotations.tags, facts.annotations.metadata),
        )
        number: int = self.run(_PUT_SESSION, values)[0][0]
        return number

    def erase(self, keys: Sequence[SessionKey]) -> None:
        """Remove sessions and their messages from the index. The statistics by day still contain the amounts of the sessions."""
        with self.transaction():
            found = [key for key in keys if self._remove(key)]
        if found:
            self.finish_erasure()

    def _remove(self, key: SessionKey) -> bool:
        found = self.run(
            "SELECT number, agent, owner FROM indexed_sessions WHERE agent = ? AND session_id = ?",
            key.searchable(),
        )
        for number, agent, owner in found:
            self.remove_messages(number, scope_words(agent, owner, number))
            self.run("DELETE FROM indexed_sessions WHERE number = ?", (number,))
        return bool(found)

    def records_of(self, key: SessionKey) -> int:
        """Return the number of indexed records of a session."""
        rows = self.run(
            "SELECT records FROM indexed_sessions WHERE agent = ? AND session_id = ?", key.searchable()
        )
        return rows[0][0] if rows else 0

    def known_sessions(self) -> dict[SessionKey, tuple[int, float, str]]:
        """Return, for each indexed session, its number of indexed records, its creation time and its state."""
        rows = self.run("SELECT agent, session_id, records, created_at, state FROM indexed_sessions")
        return {SessionKey(agent, session_id): tuple(rest) for agent, session_id, *rest in rows}

    # --- search ------------------------------------------------------------------------------

    def search(self, text: str, filters: SearchFilter, before: int | None, limit: int) -> SearchPage:
        """Return the newest messages that match a query and a filter.

        Raises:
            ConfigurationError: The query has text but no word, or too many words.
        """
        terms = parse_query(text, self.tokenize)
        query = _word_query(terms, filters, before, self.annotation_condition(filters))
        if not filters.is_satisfiable:
            return SearchPage(hits=())
        if filters.has_session_conditions:
            numbers = self._matching_sessions(query, filters)
            if not numbers:
                return SearchPage(hits=())
            if len(numbers) > MAX_NAMED_SESSIONS:
                return self._scan(query, limit)
            query = attrs.evolve(query, sessions=numbers, conditions={})
        rows = self.find_hits(query, limit)
        return self._to_page(rows, terms, rows[-1][0] if len(rows) == limit else None)

    def _matching_sessions(self, query: WordQuery, filters: SearchFilter) -> list[int]:
        conditions = dict(query.conditions)
        for name in ("agent", "owner"):
            if (value := getattr(filters, name)) is not None:
                conditions[f"s.{name} = ?"] = (value,)
        sql = f"SELECT s.number FROM indexed_sessions AS s WHERE {' AND '.join(conditions)} LIMIT ?"  # noqa: S608 - conditions of `_conditions`
        values = [value for given in conditions.values() for value in given]
        return [number for (number,) in self.run(sql, [*values, MAX_NAMED_SESSIONS + 1])]

    def _scan(self, query: WordQuery, limit: int) -> SearchPage:
        """Return the messages that match a query and whose sessions meet the query's conditions.

        At most `MAX_SCANNED_MESSAGES` messages that match the words are checked, newest first.
        """
        found: list[Row] = []
        end: int | None = query.before
        for _ in range(MAX_SCANNED_MESSAGES // SCAN_MESSAGES):
            end = self.scan_end(query)
            part = attrs.evolve(query, first=query.first if end is None else end)
            found += self.find_hits(part, limit - len(found))
            if len(found) == limit:
                end = found[-1][0]
            if end is None or len(found) == limit:
                break
            query = attrs.evolve(query, before=end)
        return self._to_page(found, query.terms, end)

    def _to_page(self, rows: Sequence[Row], terms: Sequence[Term], following: int | None) -> SearchPage:
        hits = tuple(self._to_hit(row, terms) for row in rows)
        return SearchPage(hits=hits, following=None if following is None else str(following))

    def _to_hit(self, row: Row, terms: Sequence[Term]) -> SearchHit:
        number, record, message_id, role, text, agent, session_id, owner, cost, seconds, turns, errors = row
        snippet, marks = cut_snippet(text, terms, self.tokenize)
        return SearchHit(
            agent=agent,
            session_id=session_id,
            owner=owner,
            message_id=message_id,
            record=record,
            role=role,
            at=number / MICROSECONDS,
            snippet=snippet,
            marks=marks,
            cost=cost,
            seconds=seconds,
            turns=turns,
            errors=errors,
        )

    # --- statistics --------------------------------------------------------------------------

    def trends(self, group: Group, conditions: Mapping[str, object]) -> Trends:
        """Return the statistics of each group. `conditions` has values by SQL condition on the tables `daily` and `durations`."""
        names = {each.partition(" ")[0] for each in conditions}
        level = EACH_OWNER if "owner" in names else ALL_OWNERS
        by_level = level
        if group == "owner":
            by_level = EACH_OWNER if names & {"agent", "model"} else WHOLE_OWNER
        sums = ", ".join(f"sum({name})" for name in FIGURES)
        order = "1" if group == "day" else "sum(cost) DESC, sum(turns) DESC, 1"
        limit = "" if group == "day" else f" LIMIT {MAX_TRENDS}"
        where, values = _where(by_level, conditions)
        rows = self.run(
            f"SELECT {group}, {sums} FROM daily{where} GROUP BY {group} ORDER BY {order}{limit}",  # noqa: S608 - names of our own
            values,
        )
        by_group = self._durations(group, by_level, conditions, [row[0] for row in rows])
        where, values = _where(level, conditions)
        (total,) = self.run(f"SELECT {sums} FROM daily{where}", values)  # noqa: S608
        whole = self.run(f"SELECT bucket, sum(turns) FROM durations{where} GROUP BY bucket", values)  # noqa: S608
        return Trends(
            items=tuple(_to_trend(_name_of(group, row[0]), row[1:], by_group[row[0]]) for row in rows),
            total=_to_trend("", total, {bucket: int(turns) for bucket, turns in whole}),
        )

    def _durations(
        self, group: Group, level: int, conditions: Mapping[str, object], found: Sequence[Any]
    ) -> dict[Any, dict[int, int]]:
        """Return, by group and by bucket of the duration, the number of turns. `found` has the names of the groups."""
        counts: dict[Any, dict[int, int]] = {name: {} for name in found}
        if not found:
            return counts
        where, values = _where(level, conditions)
        if group != "day":  # an owner's rows are found by the primary key
            where += f" AND {group} IN ({', '.join('?' * len(found))})"
            values += found
        for name, bucket, turns in self.run(
            f"SELECT {group}, bucket, sum(turns) FROM durations{where} GROUP BY {group}, bucket",  # noqa: S608
            values,
        ):
            counts[name][bucket] = int(turns)
        return counts


def _keys_by_level(key: SumKey) -> tuple[tuple[Any, ...], ...]:
    """Return the keys of the statistics sums to which the amounts of `key` are added, one for each level of the sums."""
    day, agent, owner, model = key
    return (
        (ALL_OWNERS, "", day, agent, model),
        (EACH_OWNER, owner, day, agent, model),
        (WHOLE_OWNER, owner, day, "", ""),
    )


def _where(level: int, conditions: Mapping[str, object]) -> tuple[str, list[object]]:
    """Build the SQL condition for the statistics sums of one level. Return its text and its values."""
    return f" WHERE {' AND '.join(['level = ?', *conditions])}", [level, *conditions.values()]


def _to_trend(name: str, sums: Sequence[Any], durations: Mapping[int, int]) -> Trend:
    figures = {
        key: float(value or 0) if key == "cost" else int(value or 0)
        for key, value in zip(FIGURES, sums, strict=True)
    }
    p50, p95, p99 = (duration_percentile(durations, share, seconds_of) for share in (0.5, 0.95, 0.99))
    return Trend(name=name, **figures, p50=p50, p95=p95, p99=p99)  # type: ignore[arg-type]


def _name_of(group: Group, value: Any) -> str:
    if group != "day":
        return str(value)
    return dt.datetime.fromtimestamp(int(value) * DAY_SECONDS, dt.UTC).date().isoformat()


def _batches_after(records: int, batches: Sequence[WrittenBatch]) -> list[WrittenBatch]:
    """Return the batches (groups of records) that have records after number `records`, without their earlier records."""
    found: list[WrittenBatch] = []
    for batch in batches:
        if batch.first > records:
            found.append(batch)
        elif batch.last > records:
            cut = records - batch.first + 1
            found.append(
                WrittenBatch(
                    session_id=batch.session_id,
                    agent=batch.agent,
                    first=records + 1,
                    count=batch.count - cut,
                    at=batch.at,
                    records=batch.records[cut:],
                )
            )
    return found


def scope_words(agent: str, owner: str, number: int) -> dict[str, str]:
    """Return the scope words of a session's messages, by role.

    Scope words are indexed terms for agent, owner, role and session, separated by spaces. `number` is the number of the session in
    the index.
    """
    names = f"{name_word('a', agent)} {name_word('o', owner)} s{number}"
    return {role: f"{names} r{role}" for role in ("user", "assistant")}


def name_word(kind: str, name: str) -> str:
    """Return the scope word by which the word index finds the messages of an agent or owner.

    The word consists of the letter `kind` and a digest of the name, so that no tokenizer splits it.
    """
    return kind + hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=12).hexdigest()


def _word_query(
    terms: Sequence[Term], filters: SearchFilter, before: int | None, annotated: Condition | None
) -> WordQuery:
    names = []
    if filters.agent is not None:
        names.append(name_word("a", filters.agent))
    if filters.owner is not None:
        names.append(name_word("o", filters.owner))
    if filters.role is not None:
        names.append(f"r{filters.role}")
    last = _LAST_ID if filters.until is None else _id_at(filters.until)
    return WordQuery(
        terms=terms,
        names=names,
        first=0 if filters.since is None else _id_at(filters.since),
        before=last if before is None else min(before, last),
        conditions={**_conditions(filters), **({} if annotated is None else {annotated[0]: annotated[1]})},
    )


def _id_at(seconds: float) -> int:
    return int(min(max(seconds, 0.0), 1e12) * MICROSECONDS)


def _conditions(filters: SearchFilter) -> dict[str, Sequence[Any]]:
    """Return the SQL conditions of a filter on the session of a message (table alias `s`), each with its values."""
    found: dict[str, Sequence[Any]] = {}
    if filters.state is not None:
        found["s.state = ?"] = (filters.state,)
    for name in ("cost", "seconds"):
        if (least := getattr(filters, f"min_{name}")) is not None:
            found[f"s.{name} >= ?"] = (float(least),)
        if (most := getattr(filters, f"max_{name}")) is not None:
            found[f"s.{name} <= ?"] = (float(most),)
    if filters.has_errors is not None:
        found["s.errors > 0" if filters.has_errors else "s.errors = 0"] = ()
    return found
