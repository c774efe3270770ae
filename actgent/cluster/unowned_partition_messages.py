"""Pending messages: stored while no node owned the partition of their session, and delivered by the next owner.

The sender was acknowledged when the message was stored. The next owner delivers each message to its session before any other
request of that session begins, in the order in which they were stored. A message is deleted after its session has accepted it.
If the node dies before that, the message is redelivered, and its id makes that a duplicate. After `MAX_BROKEN_CONNECTIONS` deaths during
deliveries of a message, the message is dead-lettered.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

import attrs
import orjson
import trio

from actgent.client.http.http_request import HTTPRequest, parse_problem
from actgent.client.request_sender import MAX_BROKEN_CONNECTIONS
from actgent.errors import JournalError
from actgent.journal.postgres.partitioned_journal import PartitionedJournal
from actgent.journal.postgres.unowned_partition_messages import PendingMessage, PendingMessageTable
from actgent.journal.session_list_queries import SessionKey
from actgent.support.safe_logging import LogVariable, logger_of
from actgent.web.server.relayed_request_handler import RelayApplication, has_moved
from actgent.web.server.request_relay import RelayedRequest

from .node_and_partition_cache import Owner

Wait = Callable[[str], Awaitable[None]]
"""Function that waits until the quarantine does not hold a session back."""
RETRY_SECONDS = 0.5
"""Seconds between delivery attempts of a message that its session cannot accept now."""
MAX_DELIVERIES = 16
"""Maximum number of concurrent deliveries."""
COUNTING_SECONDS = 1.0
"""Seconds within which an interrupted delivery is uncounted when the node stops."""
ROOM_SECONDS = 30
"""Seconds for which a delivery waits for room in a full inbox."""
_FIRST_ERROR = 400
_log = logger_of(__name__)


def encode_pending(request: RelayedRequest) -> bytes:
    """Encode a request as JSON, for the table of pending messages."""
    http_request = request.http_request
    return orjson.dumps(
        {
            "verb": http_request.verb,
            "path": http_request.path,
            "query": http_request.query,
            "headers": dict(http_request.headers),
            "body": (http_request.body or b"").decode("utf-8"),
            "owner": request.owner,
            "scopes": list(request.scopes),
        }
    )


def decode_pending(data: bytes, session_id: str) -> RelayedRequest:
    """Decode a request to a session from the bytes that `encode_pending` returned."""
    known = orjson.loads(data)
    owner, scopes, body = known.pop("owner"), tuple(known.pop("scopes")), known.pop("body").encode("utf-8")
    http_request = HTTPRequest(**known, body=body)
    return RelayedRequest(http_request=http_request, session_id=session_id, owner=owner, scopes=scopes)


class PendingMessages:
    """Storage and delivery of a pool's pending messages, at one node."""

    def __init__(self, journal: PartitionedJournal, table: PendingMessageTable) -> None:
        self._journal, self._table = journal, table
        self._delivering: dict[str, trio.Event] = {}
        """Events of the sessions with pending messages; set after the last delivery, by session id."""
        self._limiter = trio.CapacityLimiter(MAX_DELIVERIES)
        self._application: RelayApplication
        self._nursery: trio.Nursery
        self._wait_released: Wait

    def begin(self, application: RelayApplication, nursery: trio.Nursery, wait_released: Wait) -> None:
        """Set the application that delivers messages. Call this method before `deliver`.

        Args:
            application: Receives the requests.
            nursery: Runs the deliveries.
            wait_released: Waits until a session is not quarantined.
        """
        self._application, self._nursery, self._wait_released = application, nursery, wait_released

    async def store(self, owner: Owner, request: RelayedRequest, message_id: str) -> bool:
        """Store a message for the next owner of its session. Return False if the owner has changed since `owner` was read.

        Args:
            owner: Owner of the partition as this node knows it.
            request: Request with which the message was sent.
            message_id: Id of the message.

        Raises:
            JournalFailed: The database does not answer; the message may be stored or not.
        """
        return await self._table.store(
            owner.partition,
            owner.epoch,
            session_id=request.session_id,
            message_id=message_id,
            request=encode_pending(request),
        )

    # --- delivery ------------------------------------------------------------------------

    async def deliver(self, partitions: Collection[int]) -> None:
        """Start to deliver the pending messages of partitions. Newer requests of the same sessions wait in `wait` until the messages are delivered.

        After this method returns, the partitions may be served.

        Raises:
            JournalFailed: The database does not answer.
        """
        after = 0
        while messages := await self._table.select(partitions, self._journal.count, after=after):
            after = messages[-1].number
            for session_id in dict.fromkeys(each.session_id for each in messages):
                if session_id not in self._delivering:
                    self._delivering[session_id] = trio.Event()
                    self._nursery.start_soon(self._deliver_all, session_id)

    async def wait(self, session_id: str) -> None:
        """Wait until the pending messages of a session are delivered.

        So newer requests do not overtake them.
        """
        while (delivered := self._delivering.get(session_id)) is not None:
            await delivered.wait()

    async def _deliver_all(self, session_id: str) -> None:
        """Deliver the pending messages of one session in order.

        Stop when this node loses the session's partition.
        """
        try:
            await self._wait_released(session_id)
            while self._journal.owns(session_id):
                try:
                    partition = self._journal.partition_of(session_id)
                    messages = await self._table.select([partition], self._journal.count)
                    mine = [each for each in messages if each.session_id == session_id]
                    if not mine:
                        return
                    async with self._limiter:
                        if await self._deliver_once(mine[0]):
                            await self._table.delete(mine[:1])
                            continue
                except JournalError as error:
                    _log.warning("pending messages are not delivered yet: %s", LogVariable(str(error)))
                await trio.sleep(RETRY_SECONDS)
        finally:
            self._delivering.pop(session_id).set()

    async def _deliver_once(self, message: PendingMessage) -> bool:
        """Deliver a message, or dead-letter a message that has crashed too many nodes.

        Return False if the message must be retried.

        Raises:
            JournalFailed: The database does not answer.
        """
        if message.deliveries >= MAX_BROKEN_CONNECTIONS:
            await self._dead_letter(message, f"{message.deliveries} nodes died while they delivered it")
            return True
        await self._table.count_delivery(message, 1)
        is_over = False
        try:
            is_over = await self._deliver(message)
        finally:
            if not is_over:  # this process is alive, so the delivery does not count as a death
                with trio.CancelScope(shield=True, deadline=trio.current_time() + COUNTING_SECONDS):
                    await self._table.count_delivery(message, -1)
        return is_over

    async def _deliver(self, message: PendingMessage) -> bool:
        """Deliver a message to its session, or dead-letter a rejected message. Return False if the message must be retried."""
        request, response = decode_pending(message.request, message.session_id), _RelayResponse()
        stored = request.http_request
        body = orjson.loads(stored.body or b"{}") | {
            "message_id": message.message_id,
            "deadline": ROOM_SECONDS,
        }
        headers = {name: value for name, value in stored.headers.items() if name != "prefer"}
        changed = attrs.evolve(stored, headers=headers, body=orjson.dumps(body))
        with suppress(trio.BrokenResourceError):
            await self._application.answer(
                attrs.evolve(request, http_request=changed), response, trio.Event()
            )
        if response.status < _FIRST_ERROR:
            return True
        problem = parse_problem(response.status, response.data)
        if has_moved(response.status, response.data) or problem.is_temporary or problem.kind == "inbox-full":
            return False
        await self._dead_letter(message, f"{problem.kind}: {problem.detail}")
        return True

    async def _dead_letter(self, message: PendingMessage, reason: str) -> None:
        """Move a pending message to the dead letters, and log the reason.

        An operator can retry it.

        Raises:
            JournalFailed: The database does not answer.
        """
        query = decode_pending(message.request, message.session_id).http_request.query
        _log.error(
            "session %s: message %s was acknowledged without an owner and is refused now: %s",
            LogVariable(message.session_id),
            LogVariable(message.message_id),
            LogVariable(reason),
        )
        agent = dict(parse_qsl(query)).get("agent", "")
        key = SessionKey(agent, message.session_id)
        await self._journal.suspects.dead_letter(key, message.message_id, reason, request=message.request)


@attrs.define(eq=False)
class _RelayResponse:
    """Stores the status and body of the answer to a delivery; a `SendChunk`."""

    status: int = 503
    data: bytes = b"{}"

    async def __call__(self, status: int, data: bytes, is_last: bool, headers: Mapping[str, Any]) -> None:  # noqa: FBT001 - as `SendChunk`
        await trio.lowlevel.checkpoint()
        self.status, self.data = status, data
