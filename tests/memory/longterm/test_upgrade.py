"""Memories that an earlier version wrote are found after the upgrade.

`version_1.json` contains a store of version 1, as the commit 70242817 wrote it: the SQLite file, compressed and in
base64, and the statements that create the same schema in PostgreSQL.
"""

import base64
import json
import sqlite3
import zlib
from pathlib import Path

import pytest

from actgent import ConfigurationError, LongTermMemory, Sender

STORED = json.loads(Path(__file__).with_name("version_1.json").read_text(encoding="utf-8"))


@pytest.fixture(params=["sqlite", "postgres"])
def old_url(request, tmp_path):
    """Return the URL of a store of version 1."""
    if request.param == "sqlite":
        path = tmp_path / "memories.db"
        path.write_bytes(zlib.decompress(base64.b64decode("".join(STORED["sqlite"]))))
        return f"sqlite:///{path}"
    address = request.getfixturevalue("postgres_url")
    import psycopg

    server, _, schema = address.partition("?schema=")
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {schema}")
        db.execute(f"SET search_path TO {schema}")
        for statement in STORED["postgres"]:
            db.execute(statement)
    return address


async def texts(memories, query, owner="ada"):
    return [each.memory.text for each in await memories.recall(query, owner=owner)]


async def test_memories_of_version_1_are_recalled(old_url):
    """Recall works by words, by neighbours, for shared memories and without spaces, also when reopened."""
    for _ in range(2):
        async with LongTermMemory(old_url) as memories:
            assert await texts(memories, "bicycles") == [
                "Which bicycle did you buy?",
                "The red one from Utrecht",
            ]
            assert await texts(memories, "Where does Ada live?") == ["Ada lives in Paris"]
            assert await texts(memories, "London") == await texts(memories, "Zanzibar") == []
            assert await texts(memories, "office") == ["Office hours end at six"]
            assert await texts(memories, "绿茶") == ["我喜欢绿茶"]
            assert await texts(memories, "bicycle", owner="bob") == []


async def test_upgraded_store_accepts_changes(old_url):
    """History, links, marks and keys are unchanged. Updates, new memories and an erasure take effect."""
    async with LongTermMemory(old_url) as memories:
        asked, *_ = await memories.page(owner="ada")
        (link,) = await memories.associations(asked.id, owner="ada")
        history = await memories.history(link.id, owner="ada")
        assert [each.text for each in history] == ["Ada lives in London", "Ada lives in Paris"]
        assert await memories.marks(Sender("ada")) == {"read": "5"}
        assert await memories.remember("again", owner="ada", key="k1") == asked
        await memories.remember("It was cheap", owner="ada", session_id="s1")
        await memories.update(asked.id, "Which tandem did you buy?", owner="ada")
        assert await texts(memories, "bicycle") == []
        assert await texts(memories, "tandem") == [
            "Which tandem did you buy?",
            "The red one from Utrecht",
            "It was cheap",
        ]
        await memories.erase("ada")
        assert await texts(memories, "tandem") == []


async def test_vectors_are_made_for_an_upgraded_store(tmp_path, embed_words):
    """`reindex` finds the memories without vectors."""
    pytest.importorskip("sqlite_vec", reason="the extra `vector` is not installed")
    path = tmp_path / "memories.db"
    path.write_bytes(zlib.decompress(base64.b64decode("".join(STORED["sqlite"]))))
    async with LongTermMemory(f"sqlite:///{path}", embed=embed_words) as memories:
        assert await memories.reindex() == 6
        assert (await texts(memories, "crimson from Utrecht"))[0] == "The red one from Utrecht"


async def test_newer_store_is_rejected(tmp_path):
    """A store of an unknown version is rejected and not changed."""
    path = tmp_path / "memories.db"
    async with LongTermMemory(f"sqlite:///{path}") as memories:
        await memories.remember("tea", owner="ada")
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=3")
    with pytest.raises(ConfigurationError, match="newer actgent"):
        async with LongTermMemory(f"sqlite:///{path}"):
            pass
