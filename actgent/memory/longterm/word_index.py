"""Word index of memories, identical in all databases: one row per word of each memory.

One statement ranks memories by BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and
Beyond", 2009). All databases store the same terms, made by the same tokenizer, so all rank alike.

A term is stored as a hash of its scope and itself. The scope is an owner, or the common scope of shared memories. A hash
collision is harmless: the statement that loads a memory checks its owner.
"""

import functools
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import apsw

from actgent.support.word_normalization import separate_words

from .recall_ranking import sort_by_score

K1, B = 0.9, 0.4
"""Parameters of BM25: saturation of repeated words, and weight of the text length. The values suit short passages."""
MAX_READ_ROWS = 8_000
"""Maximum number of index rows that a search reads, unless its rarest word alone has more."""
COMMON_SHARE = 1 / 2
"""Fraction of the memories above which a term is common.

The fraction 1/3 takes 7 % less CPU time. But then a search by words alone finds the answers to LoCoMo's open questions at the
first place more often than a search with vectors.
"""
MAX_SUMMED_ROWS = 1_000
"""Maximum number of index rows whose scores Python adds. SQLite sorts the rows first, which takes longer for few rows."""
MAX_KNOWN_SIZES = 1_000
"""Maximum number of owners whose number of memories is cached."""
MAX_KNOWN_TERMS = 50_000
"""Maximum number of terms whose number of memories is cached."""
BATCH_ROWS = 500
"""Maximum number of rows in one statement."""
MAX_TERM_CHARS = 100
"""Length to which a term is cut, in characters."""
SHARED = ""
"""Scope name of shared memories; no owner has this key."""
EVERY_MEMORY = ""
"""Term that is indexed for every memory. Its rows give the number and the sizes of the memories in a scope."""

TABLE = """
    CREATE TABLE terms (
        key {integer} NOT NULL, number {integer} NOT NULL, times INTEGER NOT NULL, size INTEGER NOT NULL,
        PRIMARY KEY (key, number)
    ){without_rowid};
"""
"""SQL of the index table. `times` is the count of the term in the memory, `size` the count of all its terms."""

Run = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]


class WordIndex:
    """Index that finds memories by their words.

    Args:
        run: Executes a SQL statement with `?` placeholders, and returns its rows.
        data_version: Returns a value that changes with each change of the database; None if the database has no such value.
        has_cheap_reads: True if reading rows is cheap (a database in this process), so that Python adds the scores of words.
    """

    def __init__(self, run: Run, data_version: Callable[[], object], *, has_cheap_reads: bool) -> None:
        self._run = run
        self._sums_rows = has_cheap_reads
        self._data_version = data_version
        self._known_scopes: dict[str, tuple[Sequence[str], int, int]] = {}
        """Cached results of `_scopes` by owner, valid for the database version `_known_version`."""
        self._known_counts: dict[int, int] = {}
        """Number of memories by term, in the same version. Most words of a question are common, and counting is a third of a search."""
        self._known_version: object = None
        # SQLite's tokenizer, also for other databases: the stems are the same everywhere.
        self._tokenize = apsw.Connection(":memory:").fts5_tokenizer(
            "porter", ["unicode61", "remove_diacritics", "2"]
        )

    def add(self, number: int, owner: str, text: str, *, is_shared: bool) -> None:
        """Add the text of the memory `number` to the index. `owner` is the key of the memory's owner.

        With `is_shared`, other owners find the memory as well.
        """
        terms = self._terms(text)
        counts = {EVERY_MEMORY: 1, **Counter(terms)}
        scope = SHARED if is_shared else owner
        rows = [(_key(scope, term), number, times, len(terms)) for term, times in counts.items()]
        for some in _pieces(rows):
            values = ", ".join(["(?, ?, ?, ?)"] * len(some))
            self._run(f"INSERT INTO terms VALUES {values}", [value for row in some for value in row])  # noqa: S608

    def remove(self, number: int, owner: str, text: str, *, is_shared: bool) -> None:
        """Remove a memory from the index. The arguments must equal those of `add`."""
        scope = SHARED if is_shared else owner
        keys = [_key(scope, term) for term in {EVERY_MEMORY, *self._terms(text)}]
        for some in _pieces(keys):
            self._run(
                f"DELETE FROM terms WHERE key IN ({', '.join('?' * len(some))}) AND number = ?",  # noqa: S608
                [*some, number],
            )

    def scores(self, owner: str, words: Sequence[str], limit: int) -> tuple[dict[int, float], bool]:
        """Return the BM25 scores, by memory number, of memories that the owner may read and that contain some of the words.

        Visible are the owner's memories and shared memories. The second result is True if these are all such memories,
        and False if a higher `limit` would find more.
        """
        terms = dict.fromkeys(self._terms(" ".join(words)))
        scopes, total, size = self._scopes(owner)
        keys = {_key(scope, term): term for term in terms for scope in scopes}
        counts = self._counts(keys)
        if not counts:
            return {}, True
        most = max(
            total, *counts.values()
        )  # concurrent changes: a count may exceed the total that was read before
        rarest, is_all = _rarest(counts, most, enough=limit // 2)
        weights = {term: math.log(1 + (most - count + 0.5) / (count + 0.5)) for term, count in rarest.items()}
        asked = [(key, weights[term]) for key, term in keys.items() if term in weights]
        part = "q.column2 * t.times / (t.times + ? + ? * t.size)"
        listed = ", ".join(["(?, ?)"] * len(asked))
        source = f"FROM (VALUES {listed}) AS q CROSS JOIN terms AS t WHERE t.key = q.column1"
        values = [K1 * (1 - B), K1 * B * total / size, *itertools.chain.from_iterable(asked)]
        if self._sums_rows and sum(rarest.values()) <= MAX_SUMMED_ROWS:
            best = _largest_sums(self._run(f"SELECT t.number, {part} {source}", values), limit)
        else:
            rows = self._run(
                f"SELECT t.number, sum({part}) AS score {source} "
                "GROUP BY t.number ORDER BY score DESC, t.number DESC LIMIT ?",
                [*values, limit],
            )
            best = dict(cast(list[tuple[int, float]], rows))
        return best, is_all and len(best) < limit

    def has_shared(self, owner: str) -> bool:
        """Return False if the last call of `scores` for this owner found no shared memories of other owners.

        Without such a call, return True. If the result is False, a search can skip shared memories.
        """
        known = self._known_scopes.get(owner)
        return known is None or SHARED in known[0]

    def _counts(self, keys: dict[int, str]) -> dict[str, int]:
        """Return the number of memories with each term, counted up to a maximum. Terms without memories are omitted."""
        if not keys:
            return {}
        known = self._known_counts
        unknown = [key for key in keys if key not in known]
        if unknown:
            rows = self._run(
                "SELECT q.column1, (SELECT count(*) FROM (SELECT 1 FROM terms AS t WHERE t.key = q.column1 LIMIT ?) AS counted) "  # noqa: S608
                f"FROM (VALUES {', '.join(['(?)'] * len(unknown))}) AS q",
                [MAX_READ_ROWS + 1, *unknown],
            )
            known.update(rows)
        counts: dict[str, int] = {}
        for key, term in keys.items():
            if known[key]:
                counts[term] = counts.get(term, 0) + known[key]
        return counts

    def _scopes(self, owner: str) -> tuple[Sequence[str], int, int]:
        """Return the non-empty scopes in which an owner can search, and the number of memories and of terms in these scopes.

        The scopes are that of the owner and that of shared memories. Both numbers are counted up to a maximum, and cached
        until a change. Most programs share no memories; searches are then limited to the owner's terms.
        """
        version = self._data_version()
        if version is None or version != self._known_version or self._is_full():
            self._known_scopes, self._known_counts, self._known_version = {}, {}, version
        if owner not in self._known_scopes:
            self._known_scopes[owner] = self._read_scopes(owner)
        return self._known_scopes[owner]

    def _is_full(self) -> bool:
        return len(self._known_scopes) >= MAX_KNOWN_SIZES or len(self._known_counts) >= MAX_KNOWN_TERMS

    def _read_scopes(self, owner: str) -> tuple[Sequence[str], int, int]:
        keys = [_key(scope, EVERY_MEMORY) for scope in (owner, SHARED)]
        rows = self._run(
            "SELECT count(*), sum(size), max(CASE WHEN key = ? THEN 1 ELSE 0 END) "
            "FROM (SELECT t.key, t.size FROM terms AS t WHERE t.key IN (?, ?) LIMIT ?) AS counted",
            [keys[1], *keys, MAX_READ_ROWS + 1],
        )
        total, size, shared = rows[0]
        return (
            ((owner, SHARED) if shared or total > MAX_READ_ROWS else (owner,)),
            int(total),
            max(1, int(size or 0)),
        )

    def _terms(self, text: str) -> list[str]:
        """Return the index terms of a text: the stems of its words, in order and with repetitions."""
        found = self._tokenize(
            separate_words(text).encode(), apsw.FTS5_TOKENIZE_DOCUMENT, None, include_offsets=False
        )
        return [term[:MAX_TERM_CHARS] for together in found for term in cast(tuple[str, ...], together)]


def _rarest(counts: Mapping[str, int], total: int, *, enough: int) -> tuple[dict[str, int], bool]:
    """Select the rarest terms of a query, which rank the memories. Return these terms with their counts.

    The second result is False if common terms were omitted.

    A term that many memories have distinguishes little and takes longest to read. It is omitted if more than
    a `COMMON_SHARE` of the memories have it and rarer terms have `enough` rows. The terms of a query have at most `MAX_READ_ROWS` rows, but at
    least one term is kept.
    """
    rarest: dict[str, int] = {}
    read = 0
    for term, count in sorted(counts.items(), key=lambda each: each[1]):
        if read >= enough and count > COMMON_SHARE * total:
            return rarest, False
        read += count
        if rarest and read > MAX_READ_ROWS:
            break
        rarest[term] = count
    return rarest, True


def _largest_sums(rows: Iterable[tuple[int, float]], limit: int) -> dict[int, float]:
    """Add the values of each memory number, and return the `limit` largest sums by number, largest first.

    Of equal sums, the highest number comes first.
    """
    sums: dict[int, float] = {}
    value_of = sums.get
    for number, value in rows:
        sums[number] = value_of(number, 0.0) + value
    if len(sums) > limit:  # sorting numbers by sum takes three times as long as sorting sums
        smallest = sorted(sums.values(), reverse=True)[limit - 1]
        sums = {number: value for number, value in sums.items() if value >= smallest}
    return {number: sums[number] for number in sort_by_score(sums)[:limit]}


@functools.lru_cache(10_000)
def _key(scope: str, term: str) -> int:
    """Return the signed 64-bit hash of a scope and a term."""
    digest = hashlib.blake2b(f"{scope}\0{term}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _pieces(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[at : at + BATCH_ROWS] for at in range(0, len(values), BATCH_ROWS))
