"""Delivery of messages that were stored while no node owned the partition of their session.

The sender has had its acknowledgement by then. The next owner gives each message to its session before any other request of
that session begins, in the order in which they were stored. A message is deleted after its session has accepted it; if the
node dies in between, the message id makes the second delivery a repetition. A message during whose deliveries `MAX_BREAKS`
nodes died is given up.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

import attrs
import orjson
import trio

from actgent.client.calls import MAX_BREAKS
from actgent.client.http.forms import HTTPForm, refused
from actgent.errors import JournalError
from actgent.journal.listing import SessionKey
from actgent.journal.postgres import PartitionedJournal, PendingMessage, PendingMessageTable
from actgent.support.logs import Each, logger_of
from actgent.web.server.wired import WiredApplication, WiredRequest, has_moved

from .directory import Owner

Wait = Callable[[str], Awaitable[None]]
"""Waits until a session may be opened."""
RETRY_SECONDS = 0.5
"""Seconds between two deliveries of a message that its session cannot accept at the moment."""
MAX_DELIVERIES = 16
"""Sessions whose messages are delivered at the same time."""
COUNTING_SECONDS = 1.0
"""Seconds for which the end of a delivery is noted while the node ends."""
ROOM_SECONDS = 30
"""Seconds for which a delivery waits for room in an inbox."""
_FIRST_ERROR = 400
_log = logger_of(__name__)


@attrs.frozen(kw_only=True)
class PendingRequest:
    """A request as it is stored."""

    form: HTTPForm
    caller: str
    """Owner for whom it was sent."""
    scopes: tuple[str, ...]
    """What its sender may do."""


def encode_pending(request: PendingRequest) -> bytes:
    """Return a request as JSON."""
    form = request.form
    return orjson.dumps(
        {
            "verb": form.verb,
            "path": form.path,
            "query": form.query,
            "headers": dict(form.headers),
            "body": (form.body or b"").decode("utf-8"),
            "owner": request.caller,
            "scopes": list(request.scopes),
        }
    )


def decode_pending(data: bytes) -> PendingRequest:
    """Return the request that `encode_pending` wrote."""
    known = orjson.loads(data)
    form = HTTPForm(
        verb=known["verb"],
        path=known["path"],
        query=known["query"],
        headers=known["headers"],
        body=known["body"].encode("utf-8"),
    )
    return PendingRequest(form=form, caller=known["owner"], scopes=tuple(known["scopes"]))


class PendingMessages:
    """The pending messages of one node's pool."""

    def __init__(self, journal: PartitionedJournal, table: PendingMessageTable) -> None:
        self._journal, self._table = journal, table
        self._delivering: dict[str, trio.Event] = {}
        """Sessions with messages under way, with what is set after the last one."""
        self._limiter = trio.CapacityLimiter(MAX_DELIVERIES)
        self._application: WiredApplication
        self._nursery: trio.Nursery
        self._wait_released: Wait

    def begin(self, application: WiredApplication, nursery: trio.Nursery, wait_released: Wait) -> None:
        """Deliver from now on: to an application, by tasks of a nursery, as soon as a session may be opened."""
        self._application, self._nursery, self._wait_released = application, nursery, wait_released

    async def store(
        self,
        owner: Owner,
        form: HTTPForm,
        *,
        session_id: str,
        message_id: str,
        caller: str,
        scopes: Sequence[str],
    ) -> bool:
        """Store a message for the next owner; return False if there has been another owner since.

        Args:
            owner: Owner of the partition as its sender knows it.
            form: The request with which the message was sent.
            session_id: Its session.
            message_id: Id of the message.
            caller: Owner for whom the message was sent.
            scopes: What the sender may do.

        Raises:
            JournalFailed: The database does not answer; the message may be stored or not.
        """
        request = encode_pending(PendingRequest(form=form, caller=caller, scopes=tuple(scopes)))
        return await self._table.store(
            owner.partition, owner.epoch, session_id=session_id, message_id=message_id, request=request
        )

    # --- delivery ------------------------------------------------------------------------

    async def deliver(self, partitions: Collection[int]) -> None:
        """Hold back the sessions of partitions that have pending messages, and begin to deliver those.

        On return other requests of the partitions may be served: those of a session that is held back wait in `wait`.

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
        """Wait until the pending messages of a session are delivered."""
        while (delivered := self._delivering.get(session_id)) is not None:
            await delivered.wait()

    async def _deliver_all(self, session_id: str) -> None:
        """Deliver the messages of one session, as long as its partition is ours."""
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
                    _log.warning("pending messages are not delivered yet: %s", Each(str(error)))
                await trio.sleep(RETRY_SECONDS)
        finally:
            self._delivering.pop(session_id).set()

    async def _deliver_once(self, message: PendingMessage) -> bool:
        """Deliver a message unless nodes have died of it; return False if it is to be delivered again later.

        Raises:
            JournalFailed: The database does not answer.
        """
        if message.deliveries >= MAX_BREAKS:
            await self._give_up(message, f"{message.deliveries} nodes died while they delivered it")
            return True
        await self._table.count_delivery(message, 1)
        is_over = False
        try:
            is_over = await self._deliver(message)
        finally:
            if not is_over:  # this process lives, so it is no death
                with trio.CancelScope(shield=True, deadline=trio.current_time() + COUNTING_SECONDS):
                    await self._table.count_delivery(message, -1)
        return is_over

    async def _deliver(self, message: PendingMessage) -> bool:
        """Give a message to its session; return False if it is to be delivered again later."""
        known, telling = decode_pending(message.request), _Telling()
        body = {**orjson.loads(known.form.body or b"{}"), "message_id": message.message_id}
        request = WiredRequest(
            verb=known.form.verb,
            path=known.form.path,
            query=known.form.query,
            headers={name: value for name, value in known.form.headers.items() if name != "prefer"},
            body=orjson.dumps({**body, "deadline": ROOM_SECONDS}),
            owner=known.caller,
            scopes=known.scopes,
        )
        with suppress(trio.BrokenResourceError):
            await self._application.answer(request, telling, trio.Event())
        if telling.status < _FIRST_ERROR:
            return True
        problem = refused(telling.status, telling.data)
        if has_moved(telling.status, telling.data) or problem.is_passing or problem.kind == "inbox-full":
            return False
        await self._give_up(message, f"{problem.kind}: {problem.detail}")
        return True

    async def _give_up(self, message: PendingMessage, words: str) -> None:
        """Put a message on the list of dead messages.

        Raises:
            JournalFailed: The database does not answer.
        """
        known = decode_pending(message.request)
        _log.error(
            "session %s: message %s was acknowledged without an owner and is refused now: %s",
            Each(message.session_id),
            Each(message.message_id),
            Each(words),
        )
        agent = dict(parse_qsl(known.form.query)).get("agent", "")
        key = SessionKey(agent, message.session_id)
        await self._journal.suspects.bury(key, message.message_id, words, request=message.request)


@attrs.define(eq=False)
class _Telling:
    """Keeps the answer to a delivery; see `Tell`."""

    status: int = 503
    data: bytes = b"{}"

    async def __call__(self, status: int, data: bytes, is_last: bool, headers: Mapping[str, Any]) -> None:  # noqa: FBT001 - as `Tell`
        await trio.lowlevel.checkpoint()
        self.status, self.data = status, data

    def now(self, data: bytes) -> bool:
        """Send no piece without waiting."""
        return False
