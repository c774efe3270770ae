"""Memories and questions of the MEMORY workload, and its floor: a plain index in SQLite.

The words of the memories follow Zipf's law, as words of texts do. The questions are about 500 facts, 10 about each of 50 people.
A question shares the name with its fact and almost no other word. The embedding is made for the test: it knows which words of
these questions are synonyms. The result shows that words and vectors are ranked together, not the quality of a real embedding.
"""

import hashlib
import itertools
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw
import trio
from measure import Figures, expect

RECALLS = 300
SYLLABLES = (
    "dok",
    "mel",
    "tir",
    "san",
    "pol",
    "ver",
    "gat",
    "lim",
    "rus",
    "nek",
    "fam",
    "zor",
    "tup",
    "wex",
    "cab",
    "hin",
)
NAMES = tuple(
    a + b
    for a in ("Ana", "Bel", "Cor", "Dag", "Eli")
    for b in ("ria", "mor", "sten", "vik", "lo", "nas", "tan", "rik", "zel", "pho")
)
RELATIONS = (
    ("{} drives an old {} to work", "car", "which vehicle does {} commute in"),
    ("{} lives in {}", "city", "where is the home of {}"),
    ("{} is allergic to {}", "food", "what must {} never eat"),
    ("{} plays the {} in a band", "instrument", "which music does {} make"),
    ("{} is married to {}", "spouse", "who is the partner of {}"),
    ("{} was born in {}", "year", "how old is {}"),
    ("{} works as a {}", "job", "what is the profession of {}"),
    ("{} reads {} before going to bed", "book", "what literature does {} enjoy at night"),
    ("{} keeps a {} as a pet", "animal", "which creature does {} own"),
    ("{} pays {} for the flat each month", "rent", "how much is the rent of {}"),
)
ALIKE = (
    "drives car vehicle commute work",
    "lives home where",
    "allergic never eat",
    "plays band music instrument",
    "married partner spouse",
    "born old age year",
    "works profession job",
    "reads literature bed night book",
    "keeps pet creature animal",
    "pays flat month rent much",
)
SENSE = {word: group.split()[0] for group in ALIKE for word in group.split()}


def sentences(seed: int) -> Callable[[int], str]:
    """Return texts with the given number of words. The n-th most frequent word is n times as rare as the first."""
    rng = random.Random(seed)
    words = [a + b + c for a in SYLLABLES for b in "aeiou" for c in SYLLABLES]
    weights = list(itertools.accumulate(1 / index for index in range(1, len(words) + 1)))
    return lambda count: " ".join(rng.choices(words, cum_weights=weights, k=count))


def facts() -> Iterator[tuple[str, str]]:
    """Return 500 facts, each with a paraphrased question."""
    rng = random.Random(7)
    for name, (fact, kind, question) in itertools.product(NAMES, RELATIONS):
        yield fact.format(name, f"{kind}{rng.randrange(1000)}"), question.format(name)


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Return vectors of 128 numbers: the sum of the vectors of the words. Synonyms share a vector."""
    return [_direction(text.lower().split()) for text in texts]


def _direction(text: Sequence[str]) -> list[float]:
    total = [1e-6] * 128
    for word in text:
        digest = hashlib.shake_128(SENSE.get(word, word).encode()).digest(128)
        weight = 1.0 if word in SENSE or word.capitalize() in NAMES else 0.2
        total = [each + weight * (byte - 127.5) for each, byte in zip(total, digest, strict=True)]
    size = math.hypot(*total)
    return [each / size for each in total]


def times(took: list[float]) -> Figures:
    took.sort()
    return {"recall_ms": statistics.median(took) * 1e3, "recall_p99_ms": took[int(len(took) * 0.99)] * 1e3}


async def plain_index(size: int) -> Figures:
    """The floor: an index of SQLite over all words of a question, ranked as the memory ranks, in one transaction."""
    await trio.lowlevel.checkpoint()
    with tempfile.TemporaryDirectory() as folder:
        return _index(Path(folder, "index.db"), size)


def _index(path: Path, size: int) -> Figures:
    said, db = sentences(1), apsw.Connection(str(path))
    db.execute("CREATE VIRTUAL TABLE texts USING fts5 (text, tokenize = 'porter unicode61')")
    started = time.perf_counter()
    with db:
        db.executemany("INSERT INTO texts VALUES (?)", ((said(14),) for _ in range(size)))
    written, took = time.perf_counter() - started, []
    for _ in range(RECALLS):
        question = said(6)
        started = time.perf_counter()
        found = _find(db, question, 10)
        took.append(time.perf_counter() - started)
        expect(seen=len(found), wanted=10, what="memories of a recall")
    db.execute("DELETE FROM texts")
    known = list(facts())
    db.executemany("INSERT INTO texts VALUES (?)", ((fact,) for fact, _ in known))
    found = [(fact, _find(db, question, 5)) for fact, question in known]
    first, five = sum(some[:1] == [fact] for fact, some in found), sum(fact in some for fact, some in found)
    quality = {"found_first": 100 * first / len(known), "found_in_5": 100 * five / len(known)}
    return {"remember_us": written / size * 1e6, **times(took), **quality}


def _find(db: apsw.Connection, question: str, limit: int) -> list[str]:
    asked = " OR ".join(f'"{word}"' for word in question.split())
    rows = db.execute("SELECT text FROM texts WHERE texts MATCH ? ORDER BY rank LIMIT ?", (asked, limit))
    return [str(text) for (text,) in rows]
