"""Journals of each kind, and small entries for them."""

import contextlib
import os
import urllib.parse

import pytest
import trio

from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import (
    AgentMessageRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    SessionCreatedRecord,
)
from actgent.messages import Message, Sender, Text


@pytest.fixture
async def journal(url):
    """Yield an open journal of each kind that is not acquired yet."""
    async with open_journal(url) as opened:
        yield opened


class Writer:
    """The steps of one session, and the confirmed ones among them."""

    def __init__(self, journal, epoch, session_id="s", agent="a"):
        self.journal, self.epoch = journal, epoch
        self.session_id, self.agent = session_id, agent
        self.confirmed = ()

    def entry(self, *records):
        return Entry(session_id=self.session_id, agent=self.agent, records=records)

    def message(self, text, kind="user"):
        return Message(session_id=self.session_id, sender=Sender("ada", kind), parts=(Text(text),))

    async def open(self, created_at=1.0):
        return await self.commit(SessionCreatedRecord(owner=Sender("ada"), created_at=created_at))

    async def commit(self, *records):
        await self.journal.commit(self.entry(*records), epoch=self.epoch)
        self.confirmed += records

    def enqueue_write(self, *records):
        self.journal.enqueue_write(self.entry(*records), epoch=self.epoch)
        self.confirmed += records

    async def turn(self, text="hi", answer="hello"):
        """Return the records of a plain turn."""
        message = self.message(text)
        await self.commit(MessageAcceptedRecord(message=message))
        self.enqueue_write(MessageAppendedRecord(message_id=message.id))
        record = AgentMessageRecord(message=self.message(answer, "assistant"))
        await self.commit(record, MessageEndRecord(message_id=message.id))

    async def load(self):
        return await self.journal.load(self.session_id)


@pytest.fixture
def make_writer():
    """Return a function `make_writer(journal, epoch, session_id)` that makes a `Writer` of one session."""
    return Writer


@pytest.fixture
async def writer(journal):
    """Return a writer of session `s` in an acquired journal."""
    return Writer(journal, await journal.acquire())


@pytest.fixture
def times():
    """Return a function `times(20, 300)` that returns a number of repetitions: the second number if ACTGENT_SOAK is set."""
    return lambda short, long: long if os.environ.get("ACTGENT_SOAK") else short


_NO_ENCRYPTION = {80877103, 80877104}
"""Codes of the packets that ask for it, before the one that begins a session."""


def _error(**fields):
    """Return an error message in the format of a PostgreSQL server."""
    body = b"".join(key.encode() + value.encode() + b"\0" for key, value in fields.items()) + b"\0"
    return b"E" + (4 + len(body)).to_bytes(4, "big") + body


_STARTING = _error(S="FATAL", V="FATAL", C="57P03", M="das Datenbanksystem startet")


class Link:
    """A proxy in front of a server that can break connections during a commit."""

    def __init__(self, host, port):
        self._server = (host, port)
        self.cuts = False
        """Whether it breaks once the server has confirmed a commit, and lets nobody through then."""
        self.is_down = False
        self.flows = trio.Event()
        """Nothing goes through while this is not set, and nobody hears of it, as of a server that stands still."""
        self.flows.set()
        self.stops = False
        """Whether nothing flows any more once a group of steps was sent, as from a process that stops there."""
        self.is_starting = False
        """Whether everybody hears that the server starts, in its language, as from one that recovers after a crash."""
        self.refused = 0
        """How often somebody heard that."""
        self._scopes = set()
        self.cuts_made = 0

    def cut(self):
        """Break all connections."""
        self.cuts_made += sum(not scope.cancel_called for scope in self._scopes)
        for scope in self._scopes:
            scope.cancel()

    async def carry(self, client):
        if self.is_down:
            await client.aclose()
            return
        if self.is_starting:
            await self._refuse(client)
            return
        server = await trio.open_tcp_stream(*self._server)
        async with client, server, trio.open_nursery() as nursery:
            self._scopes.add(nursery.cancel_scope)
            self._is_committing = False
            nursery.start_soon(self._pump, client, server, nursery.cancel_scope, True)
            nursery.start_soon(self._pump, server, client, nursery.cancel_scope, False)

    async def start_up(self, *, task_status=trio.TASK_STATUS_IGNORED):
        """Answer as a starting server until several clients received that answer."""
        self.is_starting, self.refused = True, 0
        task_status.started()
        while self.refused < 6:  # noqa: ASYNC110 - it is counted by what is asked
            await trio.sleep(0.01)
        self.is_starting = False

    async def _refuse(self, client):
        async with client:
            with contextlib.suppress(trio.BrokenResourceError):
                while int.from_bytes((await client.receive_some())[4:8], "big") in _NO_ENCRYPTION:
                    await client.send_all(b"N")
                await client.send_all(_STARTING)
                self.refused += 1

    async def _pump(self, source, target, scope, is_client):
        try:
            while data := await source.receive_some():
                await self.flows.wait()
                is_group = is_client and b"INSERT INTO steps" in data
                if is_group and self.stops:
                    self.flows = trio.Event()
                elif is_group and self.cuts:
                    self._is_committing = True
                elif not is_client and self.cuts and self._is_committing:
                    self.cuts, self.is_down = False, True
                    break
                await target.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()


@pytest.fixture
async def link(postgres_url, nursery):
    """Yield a `Link` to the server, and the address of an empty journal behind it."""
    parts = urllib.parse.urlsplit(postgres_url)
    link = Link(parts.hostname, parts.port)
    listeners = await nursery.start(trio.serve_tcp, link.carry, 0)
    port = listeners[0].socket.getsockname()[1]
    return link, postgres_url.replace(f":{parts.port}/", f":{port}/")
