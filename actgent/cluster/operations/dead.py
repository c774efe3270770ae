"""Messages and requests that were given up: a person may have them said or sent again, or drop them."""

import hashlib

import trio

from actgent.client.calls import Pauses
from actgent.client.connecting import PATIENCE
from actgent.client.http.forms import refused
from actgent.client.problems import error_of
from actgent.client.transport import ConnectionLost, RemoteRequest
from actgent.cluster.amqp import parse_broker
from actgent.cluster.link import BrokerLink
from actgent.cluster.opening import open_broker_client
from actgent.cluster.transport import open_broker_transport
from actgent.cluster.wire import ASK, CANCEL, WireRequest, decode_message, properties
from actgent.errors import ActgentError, ConfigurationError, nearest
from actgent.errors.printable import quoted
from actgent.journal.opening import open_journal
from actgent.journal.postgres import DeadMessage, drop_dead, note_retried, read_dead, read_request
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


async def retry_dead(
    journal: str, broker: str, pool: str, message_id: str, *, session_id: str | None = None
) -> str:
    """Say a message again that was given up, to its session; returns its new id when it was accepted.

    The new id is the same each time, so whoever repeats this, or does it beside somebody else, says it once. Of a request
    nothing was accepted: it is sent as it was, and what it says keeps its id.

    Raises:
        ConfigurationError: there is none of this id, or several, or no person said it.
        BrokerLost: no node has answered.
        ActgentError: as `RemoteSession.chat`, or as the request raises.
    """
    dead = await find_dead(journal, message_id, session_id=session_id)
    if dead.is_request:
        await _send_again(broker, pool, dead, await _read_request(journal, dead))
        await note_retried(journal, dead, dead.message_id)
        return dead.message_id
    message = await _read(journal, dead)
    async with open_broker_client(
        broker, name="", owner=message.sender.name, pool=pool, patience=PATIENCE
    ) as client:
        session = await client.agent(dead.agent).open_session(dead.session_id)
        again = await session.chat(
            message.parts, priority=message.priority, metadata=message.metadata, message_id=_next_id(dead)
        )
    await note_retried(journal, dead, again)
    return again


async def drop_message(journal: str, message_id: str, *, session_id: str | None = None) -> None:
    """Forget that a message was given up; its session keeps it.

    Raises:
        ConfigurationError: there is none of this id, or several.
        JournalFailed: the database cannot be written.
    """
    await drop_dead(journal, await find_dead(journal, message_id, session_id=session_id))


async def _read_request(journal: str, dead: DeadMessage) -> WireRequest:
    body = await read_request(journal, dead)
    asked = None if body is None else decode_message(body, properties())
    if not isinstance(asked, WireRequest):
        raise ConfigurationError(f"the request {quoted(dead.message_id)} was dropped meanwhile")
    if asked.verb in (ASK, CANCEL):
        raise ConfigurationError(
            f"the request {quoted(dead.message_id)} is of another pool, which has been told that it failed: "
            "only what a person has asked can be asked again"
        )
    return asked


async def _send_again(broker: str, pool: str, dead: DeadMessage, asked: WireRequest) -> None:
    link = BrokerLink(parse_broker(broker), name="actgent cluster")
    pauses, until = Pauses(), trio.current_time() + PATIENCE
    async with open_broker_transport(link, name="", pool=pool, owner=asked.owner) as transport:
        while True:
            try:
                status, data = await transport.exchange(dead.session_id, asked, seconds=0.0)
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
