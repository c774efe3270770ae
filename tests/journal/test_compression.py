"""Compressed bodies of journal rows, and rows of former versions, which are read unchanged."""

import os
import sqlite3
import zlib
from contextlib import closing

import pytest

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.errors import JournalVersion
from actgent.journal.group_commit import row_format
from actgent.journal.group_commit.row_format import COMPRESSED, SHORTEST_BYTES, compress, decompress

CRC = 3007475635
LONG = ["one, please " * 100, "two, please " * 100]
STORED = "d1c3127aab4b0c920db0052130af0200"


def bodies(path):
    with closing(sqlite3.connect(path)) as db:
        return [body for (body,) in db.execute("SELECT body FROM steps ORDER BY series, first")]


async def converse(path, *texts):
    """Send messages in a session and return the texts of its history."""
    model = ScriptedLLM([f"You said: {each}" for each in texts])
    async with open_runtime(journal=f"sqlite:///{path}") as runtime:
        agent = await runtime.start(BareAgent("a", llm=model))
        session = await agent.ensure_session("ada", "talk")
        for each in texts:
            await agent.run(each, session=session)
        return [message.text for message in session.history]


@pytest.mark.parametrize("size", [20, 60, 300, 5_000])
def test_bodies_are_restored_after_compression(size):
    """Text shrinks, and a body that would not become shorter is stored unchanged."""
    text = b"\x01" + b"\xaasession_id\xa4talk\xaacreated_at" * size
    noise = b"\x01" + os.urandom(size)
    assert len(compress(text)) < len(text)
    assert compress(text)[0] == COMPRESSED
    assert decompress(compress(text)) == text
    assert decompress(compress(noise)) == noise
    assert len(compress(noise)) <= len(noise)


def test_short_body_is_not_compressed():
    """The few bytes saved are not worth the CPU."""
    short = b"\x01\xaasession_id\xa4talk\xaacreated_at"
    assert len(short) < SHORTEST_BYTES
    assert compress(short) == short == decompress(short)


def test_compression_dictionary_never_changes():
    """Bytes that are stored on disk need the dictionary that compressed them."""
    assert zlib.crc32(row_format._NAMES) == CRC
    stored = bytes.fromhex(STORED)
    assert (
        decompress(stored)
        == b"\x01\x92\x92\xa9delivered\x81\xa3ids\x91\xabt0c0/result\x92\xa5spent\x82\xa4turn\xa2m0"
    )


async def test_rows_of_a_journal_are_compressed(tmp_path):
    """Long texts take less than half of the bytes of their records, and another process reads them."""
    path = tmp_path / "j.db"
    before = await converse(path, *LONG)
    stored = bodies(path)
    assert {body[0] for body in stored} == {COMPRESSED, 1}
    assert 2 * sum(map(len, stored)) < sum(len(decompress(body)) for body in stored)
    assert (await converse(path))[: len(before)] == before


async def test_rows_without_compression_are_read_and_continued(tmp_path, monkeypatch):
    """A journal of a former version has plain bodies; new rows follow them."""
    path = tmp_path / "j.db"
    with monkeypatch.context() as patch:
        patch.setattr(row_format, "compress", lambda body: body)
        before = await converse(path, "one", "two")
    assert {body[0] for body in bodies(path)} == {1}
    assert await converse(path, LONG[0]) == [*before, LONG[0], f"You said: {LONG[0]}"]
    assert {body[0] for body in bodies(path)} == {1, COMPRESSED}


def test_version_without_compression_rejects_a_compressed_body():
    """The first byte of a compressed body is above every version of plain bodies."""
    with pytest.raises(JournalVersion):
        row_format._decode(compress(b"\x01" + b"a" * SHORTEST_BYTES))
