"""Journals of each kind, and small entries to write into them."""

import itertools
import os

import pytest

from actgent.journal.base import Entry
from actgent.journal.opening import open_journal
from actgent.journal.records import Accepted, Appended, Ended, Opened, Said
from actgent.messages import Message, Sender, Text

SERVER = "postgres://postgres@127.0.0.1:5432/test"
_schemas = itertools.count()


@pytest.fixture
def postgres_url():
    """An address of a schema of its own, which is dropped afterwards; skips where no server answers."""
    psycopg = pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    try:
        connection = psycopg.connect(SERVER, autocommit=True, connect_timeout=3)
    except psycopg.OperationalError as error:
        pytest.skip(f"no PostgreSQL server at 127.0.0.1:5432: {error}")
    schema = f"actgent_test_{os.getpid()}_{next(_schemas)}"
    yield f"{SERVER}?schema={schema}"
    connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    connection.close()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request, tmp_path):
    """The address of an empty journal of each kind."""
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/journal.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def lasting_url(url):
    """The same, where another block finds what one has written."""
    if url == "memory:":
        pytest.skip("a journal in memory ends with its block")
    return url


@pytest.fixture
async def journal(url):
    """An open journal of each kind, not acquired yet."""
    async with open_journal(url) as opened:
        yield opened


class Writer:
    """One session's steps, and what has been confirmed of them."""

    def __init__(self, journal, epoch, session_id="s", agent="a"):
        self.journal, self.epoch = journal, epoch
        self.session_id, self.agent = session_id, agent
        self.confirmed = ()

    def entry(self, *records):
        return Entry(session_id=self.session_id, agent=self.agent, records=records)

    def message(self, text, kind="user"):
        return Message(session_id=self.session_id, sender=Sender("ada", kind), parts=(Text(text),))

    async def open(self, created_at=1.0):
        return await self.commit(Opened(owner=Sender("ada"), created_at=created_at))

    async def commit(self, *records):
        await self.journal.commit(self.entry(*records), epoch=self.epoch)
        self.confirmed += records

    def write_soon(self, *records):
        self.journal.write_soon(self.entry(*records), epoch=self.epoch)
        self.confirmed += records

    async def turn(self, text="hi", answer="hello"):
        """What a plain turn writes."""
        message = self.message(text)
        await self.commit(Accepted(message=message))
        self.write_soon(Appended(message_id=message.id))
        said = Said(message=self.message(answer, "assistant"))
        await self.commit(said, Ended(message_id=message.id))

    async def load(self):
        return await self.journal.load(self.session_id)


@pytest.fixture
def make_writer():
    """`make_writer(journal, epoch, session_id)`: a `Writer` of one session."""
    return Writer


@pytest.fixture
async def writer(journal):
    """A writer of session `s` in a journal that is acquired."""
    return Writer(journal, await journal.acquire())


@pytest.fixture
def times():
    """`times(20, 300)`: how often to try; the second where ACTGENT_SOAK is set."""
    return lambda short, long: long if os.environ.get("ACTGENT_SOAK") else short
