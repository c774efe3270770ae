"""The index of words, which is the same in every database: one row for each word of each memory.

One statement ranks memories by BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and
Beyond", 2009). Both databases hold the same terms, made by the same tokenizer, so both rank alike.

A term is stored as a hash of its scope and itself. The scope is the owner, or one that all share. A hash only narrows
a search down: the statement that loads a memory checks its owner.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import apsw

from .words import spaced

K1, B = 0.9, 0.4
"""How fast repetitions of a word saturate, and how much the length of a text counts; values for short passages."""
RANKED = 8_000
"""Rows that one search reads at most, unless its rarest word alone has more."""
ROWS = 500
"""Rows of one statement."""
LONGEST_TERM = 100
"""Characters of a term that count."""
SHARED = ""
"""The scope of memories that all owners see; no owner has this key."""
EVERY_MEMORY = ""
"""The term that every memory has. Its rows count the memories of a scope, and their sizes."""

TABLE = """
    CREATE TABLE terms (
        key {integer} NOT NULL, number {integer} NOT NULL, times INTEGER NOT NULL, size INTEGER NOT NULL,
        PRIMARY KEY (key, number)
    )"""
"""`times`: how often the memory has the term. `size`: how many terms it has in all."""

Run = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]


class WordIndex:
    """Finds memories by their words.

    Args:
        run: Runs a statement of SQL whose values are written as `?`, and returns its rows.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        # SQLite's tokenizer, also for other databases: the stems are the same everywhere.
        self._tokenize = apsw.Connection(":memory:").fts5_tokenizer(
            "porter", ["unicode61", "remove_diacritics", "2"]
        )

    def add(self, number: int, owner: str, text: str, *, is_shared: bool) -> None:
        """Index a memory. `owner` is the key of its owner."""
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
        """Return the scores by BM25 of an owner's and of shared memories that have some of the words, best first.

        Also return True if these are all such memories, and False if a higher limit would find others.
        """
        scopes = (owner, SHARED)
        terms = dict.fromkeys(self._terms(" ".join(words)))
        keys = {_key(scope, term): term for term in terms for scope in scopes}
        counts = self._counts(keys)
        if not counts:
            return {}, True
        total, size = self._sizes([_key(scope, EVERY_MEMORY) for scope in scopes])
        most = max(total, *counts.values())  # counts of two scopes may be above the bound of one
        rarest, is_all = _rarest(counts, most, enough=limit // 2)
        weights = {term: math.log(1 + (most - count + 0.5) / (count + 0.5)) for term, count in rarest.items()}
        asked = [(key, weights[term]) for key, term in keys.items() if term in weights]
        rows = self._run(
            f"SELECT t.number, sum(q.column2 * t.times / (t.times + ? + ? * t.size)) AS score "  # noqa: S608
            f"FROM (VALUES {', '.join(['(?, ?)'] * len(asked))}) AS q CROSS JOIN terms AS t "
            "WHERE t.key = q.column1 GROUP BY t.number ORDER BY score DESC, t.number DESC LIMIT ?",
            [K1 * (1 - B), K1 * B * total / size, *(value for pair in asked for value in pair), limit],
        )
        return dict(cast(list[tuple[int, float]], rows)), is_all and len(rows) < limit

    def _counts(self, keys: dict[int, str]) -> dict[str, int]:
        """Return how many memories have each term, counted up to a bound; terms that none has are left out."""
        if not keys:
            return {}
        rows = self._run(
            "SELECT q.column1, (SELECT count(*) FROM (SELECT 1 FROM terms AS t WHERE t.key = q.column1 LIMIT ?) AS counted) "  # noqa: S608
            f"FROM (VALUES {', '.join(['(?)'] * len(keys))}) AS q",
            [RANKED + 1, *keys],
        )
        counts: Counter[str] = Counter()
        for key, count in rows:
            if count:
                counts[keys[key]] += count
        return counts

    def _sizes(self, keys: Sequence[int]) -> tuple[int, int]:
        """Return how many memories there are, and how many terms they have, counted up to a bound."""
        rows = self._run(
            "SELECT count(*), sum(size) FROM (SELECT t.size FROM terms AS t WHERE t.key IN (?, ?) LIMIT ?) AS counted",
            [*keys, RANKED + 1],
        )
        total, size = rows[0]
        return int(total), max(1, int(size or 0))

    def _terms(self, text: str) -> list[str]:
        """Return the stems of the words of a text, in order."""
        found = self._tokenize(
            spaced(text).encode(), apsw.FTS5_TOKENIZE_DOCUMENT, None, include_offsets=False
        )
        return [term[:LONGEST_TERM] for together in found for term in cast(tuple[str, ...], together)]


def _rarest(counts: Mapping[str, int], total: int, *, enough: int) -> tuple[dict[str, int], bool]:
    """Return the terms to rank by with their counts, rarest first, and True unless terms are left out for `enough`.

    A term that more than half of the memories have says little about one of them, and takes the longest to rank by. It
    is left out if rarer terms have `enough` rows. A query never reads more than `RANKED` rows.
    """
    rarest: dict[str, int] = {}
    read = 0
    for term, count in sorted(counts.items(), key=lambda each: each[1]):
        if read >= enough and 2 * count > total:
            return rarest, False
        read += count
        if rarest and read > RANKED:
            break
        rarest[term] = count
    return rarest, True


def _key(scope: str, term: str) -> int:
    """Return the stored form of a term in a scope: 64 bits, signed."""
    digest = hashlib.blake2b(f"{scope}\0{term}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _pieces(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[at : at + ROWS] for at in range(0, len(values), ROWS))
