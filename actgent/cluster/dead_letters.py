"""Dead letters of a cluster: an operator can retry or drop dead-lettered messages and requests."""

import hashlib
import time

import trio

from actgent.client.agent_server_client import DEFAULT_RETRY_TIMEOUT_SECONDS, open_client
from actgent.client.error_conversion import error_of
from actgent.client.http.http_request import parse_problem
from actgent.client.request_sender import RetryBackoff
from actgent.client.transport_interface import ConnectionLost, RemoteRequest
from actgent.cluster.relay_client import open_pool_transport
from actgent.cluster.unowned_partition_messages import decode_pending
from actgent.errors import ActgentError, ConfigurationError, did_you_mean_or_list
from actgent.errors.text_escaping import quoted
from actgent.journal.journal_url import open_journal
from actgent.journal.postgres.cluster_tables_reader import (
    DeadMessage,
    delete_dead_letter,
    note_retried,
    read_cluster_key,
    read_dead,
    read_request,
)
from actgent.journal.record_types import MessageAcceptedRecord
from actgent.messages import Message

_FIRST_ERROR = 400


async def find_dead_letter(journal: str, message_id: str, *, session_id: str | None = None) -> DeadMessage:
    """Return the dead-lettered message with this id; `session_id` restricts the search to one session.

    Raises:
        ConfigurationError: No dead-lettered message has this id, or several have.
        JournalFailed: The database cannot be read.
    """
    dead = await read_dead(journal)
    found = [each for each in dead if each.message_id == message_id and session_id in {None, each.session_id}]
    if len(found) == 1:
        return found[0]
    if found:
        sessions = ", ".join(quoted(each.session_id) for each in found)
        raise ConfigurationError(
            f"several sessions have a dead-lettered message {quoted(message_id)}: pass --session, one of {sessions}"
        )
    place = "" if session_id is None else f" in the session {quoted(session_id)}"
    known = [each.message_id for each in dead]
    hint = did_you_mean_or_list(message_id, known) if known else "the cluster has no dead-lettered message"
    raise ConfigurationError(f"message {quoted(message_id)} is not dead-lettered{place}: {hint}")


async def resend_dead_letter(
    journal: str, pool: str, message_id: str, *, session_id: str | None = None
) -> str:
    """Send a dead-lettered message to its session again. After the session has accepted it, return the id of the sent message.

    The new id is derived from the old one, so repeated and concurrent calls send the message only once. A request that no node
    accepted is sent unchanged, with its old id.

    Raises:
        ConfigurationError: No message or several have this id, or the sender is not a user.
        ServerUnreachable: No node answered in time.
        ActgentError: The session rejected the message, as in `RemoteSession.chat`.
    """
    dead = await find_dead_letter(journal, message_id, session_id=session_id)
    if dead.is_request:
        await _send_again(journal, pool, dead)
        await note_retried(journal, dead, dead.message_id)
        return dead.message_id
    message = await _read(journal, dead)
    async with (
        open_pool_transport(
            journal, pool, key=await read_cluster_key(journal), now=time.time, owner=message.sender.name
        ) as transport,
        open_client(transport) as client,
    ):
        session = await client.agent(dead.agent).open_session(dead.session_id)
        again = await session.chat(
            message.parts,
            priority=message.priority,
            metadata=message.metadata,
            message_id=_derive_redelivery_id(dead),
        )
    await note_retried(journal, dead, again)
    return again


async def drop_message(journal: str, message_id: str, *, session_id: str | None = None) -> None:
    """Remove a message from the dead letters. The session's history keeps it.

    Raises:
        ConfigurationError: No dead-lettered message has this id, or several have.
        JournalFailed: The database cannot be written.
    """
    await delete_dead_letter(journal, await find_dead_letter(journal, message_id, session_id=session_id))


async def _send_again(journal: str, pool: str, dead: DeadMessage) -> None:
    """Send a dead-lettered request to its session again, unchanged.

    Retry until the default retry timeout is over.
    """
    request = await read_request(journal, dead)
    if request is None:
        raise ConfigurationError(
            f"the request {quoted(dead.message_id)} cannot be sent again: another command has dropped it in the meantime"
        )
    known = decode_pending(request, dead.session_id)
    backoff, until = RetryBackoff(), trio.current_time() + DEFAULT_RETRY_TIMEOUT_SECONDS
    key = await read_cluster_key(journal)
    async with open_pool_transport(journal, pool, key=key, now=time.time, owner=known.owner) as transport:
        while True:
            try:
                status, data = await transport.exchange(known, seconds=0.0)
            except ConnectionLost as lost:
                error: ActgentError = transport.lost(str(lost), was_sent=lost.was_sent)
            else:
                if status < _FIRST_ERROR:
                    return
                problem = parse_problem(status, data)
                error = error_of(
                    problem, RemoteRequest(operation="say", agent=dead.agent, session_id=dead.session_id)
                )
                if not problem.is_temporary:
                    raise error
            if trio.current_time() > until:
                raise error
            await trio.sleep(backoff.next_pause())


def _derive_redelivery_id(dead: DeadMessage) -> str:
    """Derive the id of the redelivered message from the id of the dead-lettered one.

    Repeated calls give the same id.
    """
    what = f"{dead.agent}\0{dead.session_id}\0{dead.message_id}"
    return hashlib.blake2b(what.encode(), digest_size=16).hexdigest()


async def _read(journal: str, dead: DeadMessage) -> Message:
    """Read the text of a dead-lettered message from the journal of its session.

    Only messages of users are returned.
    """
    async with open_journal(journal, read_only=True) as opened:
        for record in await opened.load(dead.session_id, agent=dead.agent):
            if isinstance(record, MessageAcceptedRecord) and record.message.id == dead.message_id:
                return _require_user_message(record.message)
    raise ConfigurationError(
        f"the session of the message {quoted(dead.message_id)} does not exist any more: the message can only be dropped"
    )


def _require_user_message(message: Message) -> Message:
    """Return the message if a user has sent it. Raise `ConfigurationError` for a message of another sender.

    Other senders have received the failure.
    """
    if message.sender.kind != "user":
        raise ConfigurationError(
            f"the message {quoted(message.id)} was sent by the {message.sender.kind} {quoted(message.sender.name)}, "
            "which got the failure: only messages of users can be sent again"
        )
    return message
