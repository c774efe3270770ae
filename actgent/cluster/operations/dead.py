"""Messages and requests that were given up: a person may have them said or sent again, or drop them."""

import hashlib
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from actgent.client.calls import Pauses
from actgent.client.connecting import PATIENCE, open_client
from actgent.client.http.forms import refused
from actgent.client.problems import error_of
from actgent.client.transport import ConnectionLost, RemoteRequest
from actgent.cluster.following import follow_pool
from actgent.cluster.pending import decode_pending
from actgent.cluster.relay_client import NodeTransport
from actgent.errors import ActgentError, ConfigurationError, nearest
from actgent.errors.printable import quoted
from actgent.journal.opening import open_journal
from actgent.journal.postgres import (
    DeadMessage,
    drop_dead,
    note_retried,
    read_cluster_key,
    read_dead,
    read_request,
)
from actgent.journal.records import Accepted
from actgent.messages import Message

_FIRST_ERROR = 400


async def find_dead(journal: str, message_id: str, *, session_id: str | None = None) -> DeadMessage:
    """The message of this id that was given up, in whichever session it was said or in this one.

    Raises:
        ConfigurationError: there is none, or there are several.
        JournalFailed: the database cannot be read.
    """
    dead = await read_dead(journal)
    found = [each for each in dead if each.message_id == message_id and session_id in {None, each.session_id}]
    if len(found) == 1:
        return found[0]
    if found:
        sessions = ", ".join(quoted(each.session_id) for each in found)
        raise ConfigurationError(
            f"several messages {quoted(message_id)} were given up: say with --session which, of {sessions}"
        )
    place = "" if session_id is None else f" in the session {quoted(session_id)}"
    known = [each.message_id for each in dead]
    hint = nearest(message_id, known) if known else "no message was"
    raise ConfigurationError(f"no message {quoted(message_id)} was given up{place}: {hint}")


async def retry_dead(journal: str, pool: str, message_id: str, *, session_id: str | None = None) -> str:
    """Send a message again that was given up, to its session; return its new id when it was accepted.

    The new id is the same each time, so it is sent once, however often and by however many this is called. Of a request nothing
    was accepted: it is sent as it was, and its message keeps its id.

    Raises:
        ConfigurationError: No message has this id, or several have, or no person sent it.
        ServerUnreachable: No node has answered.
        ActgentError: As `RemoteSession.chat`, or as the request raises.
    """
    dead = await find_dead(journal, message_id, session_id=session_id)
    if dead.is_request:
        await _send_again(journal, pool, dead)
        await note_retried(journal, dead, dead.message_id)
        return dead.message_id
    message = await _read(journal, dead)
    async with (
        _open_transport(journal, pool, owner=message.sender.name) as transport,
        open_client(transport) as client,
    ):
        session = await client.agent(dead.agent).open_session(dead.session_id)
        again = await session.chat(
            message.parts, priority=message.priority, metadata=message.metadata, message_id=_next_id(dead)
        )
    await note_retried(journal, dead, again)
    return again


@asynccontextmanager
async def _open_transport(journal: str, pool: str, *, owner: str) -> AsyncGenerator[NodeTransport, None]:
    """An `async with` block with a way to the nodes of a pool, for a process that is not one of them."""
    async with follow_pool(journal, pool) as directory, trio.open_nursery() as nursery:
        key = await read_cluster_key(journal)
        transport = NodeTransport(directory, key=key, now=time.time, owner=owner)
        nursery.start_soon(transport.run)
        yield transport
        nursery.cancel_scope.cancel()


async def drop_message(journal: str, message_id: str, *, session_id: str | None = None) -> None:
    """Forget that a message was given up; its session keeps it.

    Raises:
        ConfigurationError: there is none of this id, or several.
        JournalFailed: the database cannot be written.
    """
    await drop_dead(journal, await find_dead(journal, message_id, session_id=session_id))


async def _send_again(journal: str, pool: str, dead: DeadMessage) -> None:
    request = await read_request(journal, dead)
    if request is None:
        raise ConfigurationError(f"the request {quoted(dead.message_id)} was dropped in the meantime")
    known = decode_pending(request)
    pauses, until = Pauses(), trio.current_time() + PATIENCE
    async with _open_transport(journal, pool, owner=known.caller) as transport:
        while True:
            try:
                status, data = await transport.exchange(
                    known.form,
                    session_id=dead.session_id,
                    owner=known.caller,
                    scopes=known.scopes,
                    seconds=0.0,
                )
            except ConnectionLost as lost:
                error: ActgentError = transport.lost(str(lost), was_sent=lost.was_sent)
            else:
                if status < _FIRST_ERROR:
                    return
                problem = refused(status, data)
                error = error_of(
                    problem, RemoteRequest(operation="say", agent=dead.agent, session_id=dead.session_id)
                )
                if not problem.is_passing:
                    raise error
            if trio.current_time() > until:
                raise error
            await trio.sleep(pauses.next())


def _next_id(dead: DeadMessage) -> str:
    what = f"{dead.agent}\0{dead.session_id}\0{dead.message_id}"
    return hashlib.blake2b(what.encode(), digest_size=16).hexdigest()


async def _read(journal: str, dead: DeadMessage) -> Message:
    async with open_journal(journal, read_only=True) as opened:
        for record in await opened.load(dead.session_id, agent=dead.agent):
            if isinstance(record, Accepted) and record.message.id == dead.message_id:
                return _said_by_a_person(record.message)
    raise ConfigurationError(
        f"the session of the message {quoted(dead.message_id)} is not there any more: it can only be dropped"
    )


def _said_by_a_person(message: Message) -> Message:
    if message.sender.kind != "user":
        raise ConfigurationError(
            f"the message {quoted(message.id)} is of the {message.sender.kind} {quoted(message.sender.name)}, "
            "which has been told that it failed: only what a person has said can be said again"
        )
    return message
