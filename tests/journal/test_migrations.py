"""Journals of earlier schema versions are migrated with all their records."""

import zlib

import apsw
import msgpack
import pytest

from actgent.journal.group_commit.row_format import encode_entry
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import (
    MessageAcceptedRecord,
    MessageEndRecord,
    NextTimerRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    SuspensionRecord,
)
from actgent.messages import Message, Sender, Text

# What version 1 made, in each kind of database: written down here, since nothing else does it any more.
SQLITE = """
    CREATE TABLE meta (key TEXT NOT NULL PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID, STRICT;
    CREATE TABLE sessions (
        session_id TEXT NOT NULL PRIMARY KEY, agent TEXT NOT NULL, owner TEXT NOT NULL, parent_id TEXT,
        created_at REAL NOT NULL, updated_at REAL NOT NULL, records INTEGER NOT NULL,
        pending BLOB NOT NULL, closed INTEGER NOT NULL, checksum INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX unfinished ON sessions (agent, created_at, session_id) WHERE length(pending) > 0;
    CREATE TABLE steps (
        session_id TEXT NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL,
        body BLOB NOT NULL, checksum INTEGER NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX places ON steps (session_id, first);
    INSERT INTO meta VALUES ('identity', 77), ('epoch', 3), ('open', 0), ('commits', 2);
    PRAGMA application_id=77;
    PRAGMA user_version=1;
"""
POSTGRES = """
    CREATE TABLE meta (version integer NOT NULL, epoch bigint NOT NULL, identity bytea NOT NULL, owner text NOT NULL);
    INSERT INTO meta VALUES (1, 3, '\\x0000004d', '');
    CREATE TABLE sessions (
        session_id text PRIMARY KEY, agent text NOT NULL, owner text NOT NULL, parent_id text,
        created_at double precision NOT NULL, updated_at double precision NOT NULL,
        records bigint NOT NULL, pending bytea NOT NULL, closed boolean NOT NULL, checksum bigint NOT NULL
    );
    CREATE INDEX unfinished ON sessions (agent, created_at, session_id) WHERE length(pending) > 0;
    CREATE TABLE steps (
        session_id text, first bigint, count integer NOT NULL, body bytea NOT NULL, checksum bigint NOT NULL,
        PRIMARY KEY (session_id, first)
    );
"""
IDENTITY = (77).to_bytes(4, "big")


def records_of(session_id):
    """Return the records of a session with an unfinished message."""
    message = Message(
        session_id=session_id,
        sender=Sender("ada"),
        parts=(Text("hi"),),
        id=f"{session_id} hi",
        created_at=1.0,
    )
    return (SessionCreatedRecord(owner=Sender("ada"), created_at=1.0), MessageAcceptedRecord(message=message))


def rows_of(session_id, *, closed):
    """Return a head and a step as version 1 wrote them."""
    records = (*records_of(session_id), *([SessionClosedRecord()] if closed else []))
    body = encode_entry(Entry(session_id=session_id, agent="a", records=records)).body
    place = f"{session_id}\0{1}\0{len(records)}".encode()
    step = (session_id, 1, len(records), body, zlib.crc32(body, zlib.crc32(place, zlib.crc32(IDENTITY))))
    head = (session_id, "a", "ada", None, 1.0, 2.0, len(records), b"12345678", closed)
    return (*head, zlib.crc32(msgpack.packb(head), zlib.crc32(IDENTITY))), step


def old_sqlite(path):
    db = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(SQLITE)
    for closed in (False, True):
        head, step = rows_of(f"closed {closed}", closed=closed)
        db.execute(f"INSERT INTO sessions VALUES ({', '.join('?' * 10)})", head)
        db.execute("INSERT INTO steps VALUES (?, ?, ?, ?, ?)", step)
    db.close()
    return f"sqlite:///{path}"


def old_postgres(url):
    psycopg = pytest.importorskip("psycopg")
    address, schema = url.split("?schema=")
    with psycopg.connect(address) as db:
        db.execute(f"CREATE SCHEMA {schema}; SET search_path TO {schema}; {POSTGRES}")
        for closed in (False, True):
            head, step = rows_of(f"closed {closed}", closed=closed)
            db.execute(f"INSERT INTO sessions VALUES ({', '.join(['%s'] * 10)})", head)
            db.execute("INSERT INTO steps VALUES (%s, %s, %s, %s, %s)", step)
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def old_url(request, tmp_path):
    """Return the address of a journal of version 1."""
    if request.param == "sqlite":
        return old_sqlite(tmp_path / "old.db")
    return old_postgres(request.getfixturevalue("postgres_url"))


async def test_a_journal_of_version_1_is_migrated(old_url):
    """Its sessions can be read, listed and written, and their timers are found."""
    open_id = "closed False"
    expected = records_of(open_id)
    added = (NextTimerRecord(at=5.0), SuspensionRecord(message_id="hi", ids=("w",)))
    async with open_journal(old_url) as journal:
        epoch = await journal.acquire()
        assert epoch == 4
        assert await journal.load(open_id) == expected
        assert await journal.load("closed True") == (*records_of("closed True"), SessionClosedRecord())
        assert await journal.unfinished("a") == [open_id, "closed True"]
        assert await journal.due("a") == []
        assert {(s.closed, s.due, s.suspended) for s in await journal.sessions()} == {
            (False, 0.0, False),
            (True, 0.0, False),
        }
        await journal.commit(Entry(session_id=open_id, agent="a", records=added), epoch=epoch)
    async with open_journal(old_url) as journal:
        epoch = await journal.acquire()
        assert await journal.load(open_id) == (*expected, *added)
        assert await journal.unfinished("a") == ["closed True"]
        assert await journal.due("a") == [(open_id, 5.0)]
        ended = MessageEndRecord(message_id=f"{open_id} hi")
        await journal.commit(Entry(session_id=open_id, agent="a", records=(ended,)), epoch=epoch)
        assert await journal.load(open_id) == (*expected, *added, ended)
