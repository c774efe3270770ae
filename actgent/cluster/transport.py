"""The way of a client to a cluster: requests into the queue of a session's partition, answers out of a queue of its own.

What is read from an owner is asked for again when a partition has another one, by the cursor of who reads; what was to
have an effect is delivered to the next owner by the broker, if nobody has acknowledged it. So is what was read while an owner
went, and is asked for again: a node may die of that, too, and the third one refuses it.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

import attrs
import trio

from actgent.approvals import session_of
from actgent.client.http.forms import NO_CONTENT, STREAM, HTTPForm, read_answer, refused, to_http
from actgent.client.http.sse import StreamDecoder
from actgent.client.transport import (
    ConnectionLost,
    Events,
    Refused,
    RemoteRequest,
    StreamEvent,
    Transport,
)
from actgent.errors import ActgentError, BrokerLost, WireError
from actgent.journal.postgres import layout as layouts, partition_of_slot, slot_of
from actgent.messages import new_secret
from actgent.support.logs import Each, logger_of
from actgent.web.server.relay import RelayedAnswer

from .amqp import ChannelClosed, Connection, Consumer, ConsumerCancelled, NotConfirmed, Unroutable
from .link import BrokerLink
from .queues import beacon_exchange, client_queue, owner_exchange, partition_queue, shared_queue
from .wire import (
    CONTROL,
    DEATHS,
    FIRST_FORM,
    USER,
    AnswerPiece,
    Dropped,
    Greeting,
    Layout,
    Message,
    OwnerChanged,
    WireRequest,
    decode_message,
    encode_message,
    properties,
)

ANSWER = 15.0
"""Seconds for which an answer may be awaited, besides those that a node was asked to wait."""
CONNECTED = 5.0
"""Seconds for which a request waits for a connection, before its caller tries again."""
ROOM = 5.0
"""Seconds for which a node waits for room in an inbox; then it is asked again, as long as its caller waits."""
SILENCE = 45.0
"""Seconds without a sign of life after which a stream counts as cut; nodes give one every 15 s."""
UNANSWERED = 1000
"""Reads whose node went before it answered, of which a client knows at most."""
COUNTED = 60.0
"""Seconds for which the answer to a read may be awaited of which a node may have died: some more may."""
PREFETCH = 1000
MAX_PIECES = 1000
MAX_BYTES = 4_000_000
"""What waits for one reader at most; then its stream ends, and it comes back with its cursor."""
_FIRST_ERROR = 400
_MOVED = "the session has moved to another node"
_log = logger_of(__name__)


class NoQueue(ConnectionLost):
    """No node of the pool was ever there."""


@attrs.define(eq=False)
class _Conversation:
    """A request, and what came of it."""

    id: str
    partition: int | None
    """None: any node may answer."""
    is_read: bool
    """True: it can be asked for again, whatever became of it."""
    pieces: trio.MemorySendChannel[AnswerPiece]
    layout: Layout | None = None
    """How the pool was laid out when the partition was found."""
    read: tuple[str, str, str] | None = None
    """What is read of one session, if that is answered at once: its path and query, and for whom."""
    is_counted: bool = False
    """True: a node has gone before it answered the same. The broker gives it to the next owner, where it is counted."""
    is_asked: bool = False
    """True once the request may be at a node."""
    waiting: int = 0
    """Bytes that nobody has taken."""
    expected: int = 0
    is_over: bool = False
    """True once the last piece was taken."""
    lost: str = ""
    """Why nothing more comes."""

    def take(self, piece: AnswerPiece) -> bool:
        """Keep a piece for the reader; False if nothing more is wanted."""
        if piece.number != self.expected:
            self.lose("a piece of the answer is missing")
        elif not piece.status:
            self.lose(_MOVED)
        else:
            self.expected += 1
            self.is_over = piece.is_last
            self.waiting += len(piece.data)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                try:
                    self.pieces.send_nowait(piece)
                except trio.WouldBlock:
                    self.waiting = MAX_BYTES + 1
            if self.waiting > MAX_BYTES:
                self.lose("the reader is too slow for its stream")
        return not self.lost

    @property
    def ends_with_its_owner(self) -> bool:
        """True if it is to be asked again when its partition has another owner."""
        return self.is_read and not (self.is_counted and not self.expected)

    def lose(self, why: str) -> None:
        self.lost = self.lost or why
        self.pieces.close()


class BrokerTransport(Transport):
    """Agents in a cluster, by way of its brokers; `open_broker_transport` opens it."""

    def __init__(self, link: BrokerLink, *, name: str, pool: str, owner: str) -> None:
        self._link = link
        self._name, self._pool, self._owner = name, pool, owner
        self._inbox = ""
        """The queue of our own."""
        self._known: dict[str, _Conversation] = {}
        self._layout: Layout | None = None
        self._nursery: trio.Nursery | None = None
        self._unanswered: dict[tuple[str, str, str], None] = {}
        """What was read while its node went, before anything of an answer came: it may have gone of that."""

    def __repr__(self) -> str:
        return f"<BrokerTransport {self._link.address}>"

    # --- its connection ------------------------------------------------------------------

    async def build(self, connection: Connection, nursery: trio.Nursery) -> None:
        """Set up a queue for answers on a new connection; whatever waited for one on the old one is asked for again."""
        self._nursery = nursery
        self._lose_all("the connection to the broker was lost")
        channel = await connection.open_channel(prefetch=PREFETCH)
        form = client_queue(self._name)
        declared = await channel.declare_queue(
            form.name, exclusive=form.exclusive, auto_delete=form.auto_delete
        )
        name, exchange = declared.queue or form.name, owner_exchange(self._pool)
        for each in (exchange, beacon_exchange(self._pool)):
            await channel.declare_exchange(each, "fanout")
        await channel.bind(name, exchange)
        self._inbox = name
        nursery.start_soon(self._hear, await channel.consume(name))

    async def _hear(self, consumer: Consumer) -> None:
        with suppress(BrokerLost, ChannelClosed, ConsumerCancelled):
            async with consumer:
                async for delivery in consumer:
                    delivery.acknowledge()
                    try:
                        self._take(decode_message(delivery.body, delivery.properties))
                    except WireError as error:
                        _log.warning("a message from the cluster cannot be read: %s", Each(str(error)))
        self._lose_all("the connection to the broker was lost")

    def _take(self, message: Message) -> None:
        if isinstance(message, AnswerPiece):
            known = self._known.get(message.id)
            if known is not None and not known.take(message):
                self._drop(known)
        elif isinstance(message, Layout):
            self._layout = message
            if (known := self._known.get(message.id)) is not None:
                known.take(AnswerPiece(id=message.id, number=0, status=200, is_last=True))
        elif isinstance(message, OwnerChanged):
            for known in list(self._known.values()):
                if known.ends_with_its_owner and known.partition == message.partition:
                    known.lose(_MOVED)

    def _lose_all(self, why: str) -> None:
        for known in list(self._known.values()):
            known.lose(why)

    # --- requests ------------------------------------------------------------------------

    async def call(self, request: RemoteRequest) -> Any:
        request, over = _of_cluster(request), trio.current_time() + _room_of(request)
        if request.operation == "interrupt":
            named = await self._naming_turn(request)
            if named is None:
                return None
            request = named
        while True:
            try:
                return await self._call(_within(request, over - trio.current_time()))
            except Refused as refused:
                refused.pool = self._pool
                if refused.kind != "inbox-full" or trio.current_time() >= over:
                    raise
            await trio.lowlevel.checkpoint()

    async def _naming_turn(self, request: RemoteRequest) -> RemoteRequest | None:
        """The same request with the message whose turn it is to stop; None where nothing runs, and so nothing is to be stopped.

        Delivered again, one that names none stops whatever runs by then.
        """
        body = request.body or {}
        if body.get("message_id") is not None or body.get("drop_queued"):
            return request
        try:
            known = await self._call(attrs.evolve(request, operation="get_session", body=None))
        except ConnectionLost as lost:
            lost.was_sent = False  # nothing was stopped so far
            raise
        if "turn" not in known:  # it is closed, or its agent does not run: its owner says so
            return request
        turn = known["turn"]
        return turn and attrs.evolve(request, body={**body, "message_id": turn["message_id"]})

    async def _call(self, request: RemoteRequest) -> Any:
        with self._conversation() as (known, pieces):
            await self._ask(known, to_http(request), request)
            piece = await self._next(known, pieces, ANSWER + request.wait)
            data = bytearray(piece.data)
            while not piece.is_last:
                piece = await self._next(known, pieces, ANSWER)
                data += piece.data
        return read_answer(request, piece.status, bytes(data), is_repeated=piece.is_repeated)

    @asynccontextmanager
    async def events(self, request: RemoteRequest) -> AsyncGenerator[Events | None, None]:
        with self._conversation() as (known, pieces):
            await self._ask(known, to_http(request, accept=STREAM), request)
            first = await self._next(known, pieces, ANSWER)
            if first.status >= _FIRST_ERROR:
                raise refused(first.status, first.data)
            yield None if first.status == NO_CONTENT else self._events(known, pieces, first)

    @asynccontextmanager
    async def relay(
        self, form: HTTPForm, *, session_id: str, owner: str, scopes: tuple[str, ...], seconds: float
    ) -> AsyncGenerator[RelayedAnswer, None]:
        """Ask once as somebody has asked us over HTTP; see `actgent.web.server.relay`.

        Raises:
            ConnectionLost: there is no answer, or no more of it, also while it is read.
        """
        with self._conversation() as (known, pieces):
            await self._send_form(known, form, session_id, owner, scopes, seconds=ANSWER + seconds)
            first = await self._next(known, pieces, ANSWER + seconds)
            yield RelayedAnswer(
                status=first.status,
                headers=first.headers,
                is_repeated=first.is_repeated,
                pieces=self._data(known, pieces, first),
            )

    @asynccontextmanager
    async def download(self, request: RemoteRequest) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
        with self._conversation() as (known, pieces):
            await self._ask(known, to_http(request, accept="*/*"), request)
            first = await self._next(known, pieces, ANSWER)
            if first.status >= _FIRST_ERROR:
                raise refused(first.status, first.data)
            yield self._data(known, pieces, first)

    async def exchange(self, session_id: str, asked: WireRequest, *, seconds: float) -> tuple[int, bytes]:
        """Send a request to the owner of a session, which may wait so many seconds; returns its answer, of one piece.

        Raises:
            ConnectionLost: there is none; `NoQueue` where nobody was ever there.
        """
        with self._conversation() as (known, pieces):
            known.is_read = False
            known.layout = layout = await self._find_layout()
            known.partition = partition_of_slot(slot_of(session_id), layout.partitions)
            await self._send(known, attrs.evolve(asked, id=known.id), USER, seconds=ANSWER + seconds)
            piece = await self._next(known, pieces, ANSWER + seconds)
        return piece.status, piece.data

    async def _data(
        self, known: _Conversation, pieces: trio.MemoryReceiveChannel[AnswerPiece], piece: AnswerPiece
    ) -> AsyncGenerator[bytes, None]:
        yield piece.data
        while not piece.is_last:
            piece = await self._next(known, pieces, SILENCE)
            yield piece.data

    async def _events(
        self, known: _Conversation, pieces: trio.MemoryReceiveChannel[AnswerPiece], piece: AnswerPiece
    ) -> AsyncGenerator[StreamEvent | None, None]:
        decoder = StreamDecoder()
        while True:
            yield None
            for event in decoder.feed(piece.data):
                yield event
            if piece.is_last:
                return
            piece = await self._next(known, pieces, SILENCE)

    async def _next(
        self, known: _Conversation, pieces: trio.MemoryReceiveChannel[AnswerPiece], seconds: float
    ) -> AnswerPiece:
        if not known.ends_with_its_owner and known.is_read:
            seconds = COUNTED
        with trio.move_on_after(seconds), suppress(trio.EndOfChannel):
            piece = await pieces.receive()
            known.waiting -= len(piece.data)
            return piece
        if not known.lost:
            self._layout = None  # perhaps nobody serves that queue any more
        raise ConnectionLost(known.lost or f"nothing came for {seconds:g} s", was_sent=True)

    @contextmanager
    def _conversation(self) -> Iterator[tuple[_Conversation, trio.MemoryReceiveChannel[AnswerPiece]]]:
        """A request, as long as somebody waits for what comes of it."""
        send, receive = trio.open_memory_channel[AnswerPiece](MAX_PIECES)
        known = _Conversation(new_secret(), None, is_read=True, pieces=send)
        self._known[known.id] = known
        try:
            yield known, receive
        finally:
            del self._known[known.id]
            receive.close()
            self._note_end(known)
            if known.is_asked and (known.is_read or known.expected) and not known.is_over:
                self._drop(known)

    def _note_end(self, known: _Conversation) -> None:
        if known.expected and known.read is not None:
            self._unanswered.pop(known.read, None)
        elif known.lost == _MOVED and known.read is not None:
            self._unanswered[known.read] = None
            if len(self._unanswered) > UNANSWERED:
                del self._unanswered[next(iter(self._unanswered))]

    def _note_asked(self, known: _Conversation, message: Message, seconds: float) -> bool:
        """Return True for what is to be counted, as a node may have died of it."""
        if isinstance(message, WireRequest) and message.verb == "GET" and known.partition is not None:
            known.read = (message.path, message.query, message.owner) if seconds <= ANSWER else None
        known.is_counted = known.read in self._unanswered
        return known.is_counted

    async def _ask(self, known: _Conversation, form: HTTPForm, request: RemoteRequest) -> None:
        owner, seconds = request.owner or self._owner, ANSWER + request.wait
        await self._send_form(known, form, _place_of(request), owner, ("admin",), seconds=seconds)

    async def _send_form(
        self,
        known: _Conversation,
        form: HTTPForm,
        session_id: str,
        owner: str,
        scopes: tuple[str, ...],
        *,
        seconds: float,
    ) -> None:
        known.is_read = form.verb == "GET"
        asked = WireRequest(
            id=known.id,
            verb=form.verb,
            path=form.path,
            query=form.query,
            headers=form.headers,
            body=form.body or b"",
            owner=owner,
            scopes=scopes,
        )
        if session_id:
            known.layout = layout = await self._find_layout()
            known.partition = partition_of_slot(slot_of(session_id), layout.partitions)
        await self._send(known, asked, USER, seconds=seconds)

    async def _find_layout(self) -> Layout:
        while self._layout is None:  # it may be forgotten again in between
            with self._conversation() as (known, pieces):
                await self._send(known, Greeting(id=known.id), USER, seconds=ANSWER)
                await self._next(known, pieces, CONNECTED)
        return self._layout

    async def _send(self, known: _Conversation, message: Message, priority: int, *, seconds: float) -> None:
        """Send a request into the queue of its partition, or that of all nodes.

        Raises:
            ConnectionLost: it may not have arrived.
        """
        with trio.move_on_after(CONNECTED) as limit:
            await self._link.wait_up()
        if limit.cancelled_caught:
            raise ConnectionLost("there is no connection to the broker", was_sent=False)
        is_counted = self._note_asked(known, message, seconds)
        about = properties(
            form=self._form_of(known),
            message_id=known.id,
            reply_to=self._inbox,
            priority=priority,
            expiration=str(int(1000 * (COUNTED if is_counted else seconds))),
            headers={DEATHS: 1} if is_counted else None,
        )
        known.lost, known.is_asked = "", True
        try:
            await self._link.publish(self._queue_of(known), encode_message(message), about)
        except Unroutable:
            self._layout = None  # the pool may have other queues by now
            if known.partition is None:
                _log.warning(
                    "no node of pool %s has run yet, and it is waited for: is pool= right?", self._pool
                )
            raise NoQueue(
                "the cluster has no queue for this: no node of this pool has run yet; start one, or look at pool=",
                was_sent=False,
            ) from None
        except NotConfirmed as error:
            raise ConnectionLost(str(error), was_sent=False) from None
        except (BrokerLost, ChannelClosed) as error:
            raise ConnectionLost(str(error), was_sent=True) from None

    def _form_of(self, known: _Conversation) -> int:
        """Greetings are of the first form: how the cluster writes is not known yet."""
        return FIRST_FORM if known.layout is None else min(known.layout.form, layouts.READS)

    def _queue_of(self, known: _Conversation) -> str:
        if known.partition is None or known.layout is None:
            return shared_queue(self._pool).name
        return partition_queue(self._pool, known.layout.generation, known.partition, (3,)).name

    def _drop(self, known: _Conversation) -> None:
        """Tell the owner that nobody reads, or all nodes where any of them may have it; a stream would go on for good."""
        if self._nursery is not None and self._link.is_up:
            is_shared = known.partition is None
            where = ("", beacon_exchange(self._pool)) if is_shared else (self._queue_of(known), "")
            self._nursery.start_soon(self._tell_dropped, where, self._form_of(known), known.id)

    async def _tell_dropped(self, where: tuple[str, str], form: int, asked_id: str) -> None:
        key, exchange = where
        about = properties(form=form, reply_to=self._inbox, priority=CONTROL, expiration="5000")
        with suppress(BrokerLost, ChannelClosed, Unroutable, NotConfirmed):
            await self._link.publish(key, encode_message(Dropped(id=asked_id)), about, exchange=exchange)

    async def aclose(self) -> None:
        self._lose_all("the client was closed")

    def lost(self, reason: str, *, was_sent: bool) -> ActgentError:
        return BrokerLost(str(self._link.address), reason)


def _of_cluster(request: RemoteRequest) -> RemoteRequest:
    """The same request, as nodes take it.

    Who makes a session says its id, by which its node is found. Who says something waits for the outcome by further
    requests, or a message would wait unacknowledged for the end of its turn.
    """
    if request.operation == "post_session":
        return attrs.evolve(request, operation="put_session", session_id=request.key or new_secret(), key="")
    return attrs.evolve(request, wait=0) if request.operation == "say" else request


def _place_of(request: RemoteRequest) -> str:
    """The session whose owner answers a request; empty where any node does."""
    if request.operation == "post_decision":
        return session_of(request.part)
    if request.operation == "post_fork":  # it writes the copy alone
        return str((request.body or {}).get("session_id") or request.session_id)
    return request.session_id


def _room_of(request: RemoteRequest) -> float:
    """Seconds for which whoever says something waits for room in an inbox."""
    return float((request.body or {}).get("deadline", 0)) if request.operation == "say" else 0.0


def _within(request: RemoteRequest, seconds: float) -> RemoteRequest:
    """The same request, whose answer comes soon: a node that has gone says nothing, either."""
    if _room_of(request) <= ROOM:
        return request
    return attrs.evolve(request, body={**(request.body or {}), "deadline": min(max(seconds, 1.0), ROOM)})


@asynccontextmanager
async def open_broker_transport(
    link: BrokerLink, *, name: str, pool: str, owner: str
) -> AsyncGenerator[BrokerTransport, None]:
    """An `async with` block with a transport over a link that nothing else uses.

    Raises:
        BrokerLost: no broker answers.
        ConfigurationError: the broker lets nobody in.
    """
    transport, raised = BrokerTransport(link, name=name, pool=pool, owner=owner), None
    async with trio.open_nursery() as nursery:
        try:
            await nursery.start(link.run, partial(transport.build, nursery=nursery))
            yield transport
        except BaseException as error:  # noqa: ASYNC103, BLE001 - raised again below, not wrapped into a group
            raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised
