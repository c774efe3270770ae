"""The way from a node to sessions that other nodes own: requests over HTTP to the owner of a session's partition.

A request is tried once here; who sent it tries again, with the same ids. When the owner of a partition changes, the requests
to the former one end as lost connections, because it may hang without closing them.
"""

import socket
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

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
from actgent.errors import JournalError
from actgent.messages import new_secret
from actgent.web.server.relay import HANDED_ON, NoOwner, RelayedAnswer

from .directory import Owner, PoolDirectory
from .pending import PendingMessages
from .relay_http import EPOCH, MalformedMessage, MessageReader, decode_answer, encode_request
from .relay_server import MISDIRECTED

ANSWER_SECONDS = 15.0
"""Seconds for which an answer is awaited, in addition to those that the node was asked to wait."""
CONNECT_SECONDS = 2.0
LOCATE_SECONDS = 1.0
"""Seconds for which a request waits for an owner, before its sender tries again."""
ROOM_SECONDS = 5.0
"""Seconds for which a node waits for room in an inbox; then the request is sent again, as long as its caller waits."""
SILENCE_SECONDS = 45.0
"""Seconds without a byte after which a stream counts as lost; nodes send one every 15 s."""
LATE_SECONDS = 2.0
"""Seconds for which a former owner that lives may still answer a request with an effect."""
UNREACHABLE_SECONDS = 1.0
"""Seconds for which a node that refused a connection is not tried again, unless the owner changes."""
MAX_IDLE_CONNECTIONS = 64
"""Idle connections to one node, at most."""
MAX_IDLE_SECONDS = 60.0
_FIRST_ERROR = 400


@attrs.define(eq=False)
class _Connection:
    """A connection to a node."""

    address: str
    stream: trio.SocketStream
    reader: MessageReader
    idle_since: float = 0.0

    def is_usable(self) -> bool:
        """Return True if an idle connection has not ended."""
        if trio.current_time() - self.idle_since > MAX_IDLE_SECONDS:
            return False
        return not self.stream.socket.is_readable()

    def close(self) -> None:
        self.stream.socket.close()


@attrs.define(eq=False)
class _Exchange:
    """One request to a node and its answer."""

    connection: _Connection
    asked: Owner
    """The owner of the session's partition to which the request went."""
    status: int = 0
    headers: dict[str, str] = attrs.field(factory=dict)
    is_over: bool = False
    """True once the whole answer was read, so that the connection may carry the next request."""
    is_read: bool = True
    """False: the request has an effect, so that its answer says whether that is there."""
    has_moved: bool = False
    """True once the partition has another owner."""
    _scope: trio.CancelScope | None = None
    _late_until: float = 0.0
    """Until when an answer may come although the partition has another owner."""

    def move(self, *, is_alive: bool) -> None:
        """End the exchange: the partition has another owner. One with an effect has some time left if the former owner lives."""
        if not self.has_moved:
            late = LATE_SECONDS if is_alive and not self.is_read else 0.0
            self.has_moved, self._late_until = True, trio.current_time() + late
        if not is_alive:
            self._late_until = 0.0
        if self._scope is not None:
            self._scope.deadline = min(self._scope.deadline, self._late_until)

    async def send(self, request: bytes, seconds: float) -> None:
        """Send a request and read the head of its answer.

        Raises:
            ConnectionLost: There is none within so many seconds.
        """
        with self._waiting(seconds):
            await self.connection.stream.send_all(request)
            head = await self.connection.reader.read_head()
            if head is None:
                raise trio.BrokenResourceError("the node closed it")
            self.status, self.headers = decode_answer(head)

    async def read_all(self) -> bytes:
        """Return the body of the answer."""
        async with aclosing(self.pieces()) as pieces:
            return b"".join([piece async for piece in pieces])

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body piece by piece.

        Raises:
            ConnectionLost: The connection ends before the body does, or is silent for too long.
        """
        reader = self.connection.reader
        if (length := self.headers.get("content-length")) is not None:
            with self._waiting(SILENCE_SECONDS):
                data = await reader.read_body(int(length))
            self.is_over = True
            yield data
            return
        while True:
            with self._waiting(SILENCE_SECONDS):
                data = await reader.read_chunk()
            if not data:
                self.is_over = True
                return
            yield data

    @contextmanager
    def _waiting(self, seconds: float) -> Iterator[None]:
        """Wait for the node in the block, not longer than so many seconds, nor than it is the owner.

        Raises:
            ConnectionLost: The node may have done what it was asked.
        """
        until = trio.current_time() + seconds
        with trio.move_on_at(min(until, self._late_until) if self.has_moved else until) as self._scope:
            try:
                yield
            except (trio.BrokenResourceError, trio.ClosedResourceError, MalformedMessage) as error:
                raise ConnectionLost(
                    f"the connection to the node was lost: {str(error) or type(error).__name__}",
                    was_sent=True,
                    is_broken=not self.status and isinstance(error, trio.BrokenResourceError),
                ) from error
        if self._scope.cancelled_caught:
            reason = (
                "the session has moved to another node"
                if self.has_moved
                else f"nothing came for {seconds:g} s"
            )
            raise ConnectionLost(reason, was_sent=True)


class NodeTransport(Transport):
    """The nodes of one pool; requests go to the owners of sessions."""

    def __init__(
        self,
        directory: PoolDirectory,
        *,
        key: bytes,
        now: Callable[[], float],
        owner: str = "user",
        pending: PendingMessages | None = None,
    ) -> None:
        """Make a way that has no connection yet; `run` keeps it.

        Args:
            directory: Nodes and owners of the pool.
            key: Cluster key.
            now: Unix time in seconds by the clock of the database.
            owner: Owner for whom requests are sent that name none.
            pending: Stores messages for sessions without an owner; None: they wait until there is one.
        """
        self._directory, self._key, self._now, self._owner = directory, key, now, owner
        self._pending = pending
        self._idle: dict[str, list[_Connection]] = {}
        self._open: set[_Exchange] = set()
        """Requests under way."""
        self._is_closed = False
        self._unreachable: dict[str, float] = {}
        """Until when a node is not tried, by its name."""

    def __repr__(self) -> str:
        return f"<NodeTransport of {self._directory.name}>"

    async def run(self) -> None:
        """End requests to nodes that are no longer the owners of their sessions, until cancelled."""
        try:
            while True:
                for exchange in list(self._open):
                    self._check_owner(exchange)
                await self._directory.wait_changed()
        finally:
            self._close()

    def _check_owner(self, exchange: _Exchange) -> None:
        """End an exchange whose partition has another owner."""
        asked = exchange.asked
        if asked.partition >= 0:
            owner = self._directory.owner_of_partition(asked.partition)
            if owner.epoch != asked.epoch or _name_of(owner) != _name_of(asked):
                exchange.move(is_alive=asked.node is not None and asked.node.name in self._directory.nodes)

    # --- requests of this process --------------------------------------------------------

    async def call(self, request: RemoteRequest) -> Any:
        request, over = _adapt(request), trio.current_time() + _deadline_of(request)
        if request.operation == "interrupt":
            named = await self._name_turn(request)
            if named is None:
                return None
            request = named
        while True:
            try:
                return await self._call(_shorten(request, over - trio.current_time()))
            except Refused as problem:
                if problem.kind != "inbox-full" or trio.current_time() >= over:
                    raise
            await trio.lowlevel.checkpoint()

    async def _name_turn(self, request: RemoteRequest) -> RemoteRequest | None:
        """Return the request with the message whose turn it stops; None if no turn runs.

        An interrupt that names no message would, when it is sent again, stop the next turn.
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
        async with self._ask(request, to_http(request), ANSWER_SECONDS + request.wait) as exchange:
            data = await exchange.read_all()
        return read_answer(request, exchange.status, data)

    @asynccontextmanager
    async def events(self, request: RemoteRequest) -> AsyncGenerator[Events | None, None]:
        async with self._ask(request, to_http(request, accept=STREAM), ANSWER_SECONDS) as exchange:
            if exchange.status >= _FIRST_ERROR:
                raise refused(exchange.status, await exchange.read_all())
            if exchange.status == NO_CONTENT:
                yield None
                return
            async with aclosing(exchange.pieces()) as pieces, aclosing(_events(pieces)) as events:
                yield events

    @asynccontextmanager
    async def download(self, request: RemoteRequest) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
        async with self._ask(request, to_http(request, accept="*/*"), ANSWER_SECONDS) as exchange:
            if exchange.status >= _FIRST_ERROR:
                raise refused(exchange.status, await exchange.read_all())
            async with aclosing(exchange.pieces()) as pieces:
                yield pieces

    @asynccontextmanager
    async def _ask(
        self, request: RemoteRequest, form: HTTPForm, seconds: float
    ) -> AsyncGenerator[_Exchange, None]:
        owner = request.owner or self._owner
        async with self._exchange(
            form, session_id=_session_of(request), owner=owner, scopes=("admin",), seconds=seconds
        ) as exchange:
            yield exchange

    # --- requests of others --------------------------------------------------------------

    @asynccontextmanager
    async def relay(
        self, form: HTTPForm, *, session_id: str, owner: str, scopes: tuple[str, ...], seconds: float
    ) -> AsyncGenerator[RelayedAnswer, None]:
        """Send once what a gateway was asked; see `actgent.web.server.relay`.

        Raises:
            NoOwner: No live node owns the session.
            ConnectionLost: There is no answer, or no more of it, also while it is read.
        """
        seconds += ANSWER_SECONDS
        async with self._exchange(
            form, session_id=session_id, owner=owner, scopes=scopes, seconds=seconds
        ) as exchange:
            headers = {name: value for name, value in exchange.headers.items() if name in HANDED_ON}
            async with aclosing(exchange.pieces()) as pieces:
                yield RelayedAnswer(status=exchange.status, headers=headers, pieces=pieces)

    async def store(
        self, form: HTTPForm, *, session_id: str, message_id: str, owner: str, scopes: tuple[str, ...]
    ) -> bool:
        """Store a message for the next owner of its session; see `Way`."""
        known = self._directory.owner_of(session_id)
        if self._pending is None or known.node is not None:
            return False
        return await self._pending.store(
            known, form, session_id=session_id, message_id=message_id, caller=owner, scopes=scopes
        )

    async def exchange(
        self, form: HTTPForm, *, session_id: str, owner: str, seconds: float, scopes: tuple[str, ...] = ()
    ) -> tuple[int, bytes]:
        """Send a request to the owner of a session, which may wait so many seconds; return its status and body.

        Raises:
            NoOwner, ConnectionLost: See `relay`.
        """
        seconds += ANSWER_SECONDS
        async with self._exchange(
            form, session_id=session_id, owner=owner, scopes=scopes, seconds=seconds
        ) as exchange:
            return exchange.status, await exchange.read_all()

    # --- one exchange --------------------------------------------------------------------

    @asynccontextmanager
    async def _exchange(
        self, form: HTTPForm, *, session_id: str, owner: str, scopes: tuple[str, ...], seconds: float
    ) -> AsyncGenerator[_Exchange, None]:
        """Send a request and read the head of its answer, to the node that owns the session, or to any without one."""
        to = await self._locate(session_id)
        exchange = _Exchange(await self._connect(to), to, is_read=form.verb == "GET")
        self._open.add(exchange)
        try:
            request = encode_request(
                form,
                session_id=session_id,
                owner=owner,
                scopes=scopes,
                epoch=to.epoch,
                key=self._key,
                now=self._now(),
            )
            await exchange.send(request, seconds)
            if exchange.status == MISDIRECTED and EPOCH in exchange.headers:
                await exchange.read_all()
                await self._wait_moved(to)
                raise ConnectionLost("the session has moved to another node", was_sent=False)
            yield exchange
        finally:
            self._open.discard(exchange)
            self._release(exchange)

    async def _locate(self, session_id: str) -> Owner:
        """Return the owner of a session, as soon as there is one that may be reached.

        Raises:
            NoOwner: There is none for `LOCATE_SECONDS`.
        """
        directory = self._directory
        if not session_id:
            return self._any_node()
        with trio.move_on_after(LOCATE_SECONDS):
            while True:
                owner = directory.owner_of(session_id)
                if owner.node is not None and self._may_try(owner.node.name, session_id):
                    return owner
                with trio.move_on_after(UNREACHABLE_SECONDS):
                    await directory.wait_changed()
        raise NoOwner

    def _any_node(self) -> Owner:
        nodes = self._directory.nodes
        staying = [each for each in nodes.values() if not each.is_leaving]
        found = nodes.get(self._directory.name) or (staying[0] if staying else None)
        if found is None:
            raise NoOwner
        return Owner(partition=-1, epoch=0, node=found)

    async def _wait_moved(self, asked: Owner) -> None:
        """Wait until a partition has another owner than the node that answered 421, but not for long."""
        await self._refresh()
        with trio.move_on_after(UNREACHABLE_SECONDS):
            while self._directory.owner_of_partition(asked.partition) == asked:
                await self._directory.wait_changed()

    def _may_try(self, name: str, session_id: str) -> bool:
        if name == self._directory.name and not self._directory.is_ours(session_id):
            return False
        return self._unreachable.get(name, 0.0) <= trio.current_time()

    async def _connect(self, to: Owner) -> _Connection:
        """Return an idle connection to a node, or a new one.

        Raises:
            ConnectionLost: The node cannot be reached; nothing was sent.
        """
        assert to.node is not None  # noqa: S101 - see `_locate`
        address = to.node.address
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        parts = urlsplit(address)
        try:
            with trio.fail_after(CONNECT_SECONDS):
                stream = await trio.open_tcp_stream(parts.hostname or "", parts.port or 80)
        except (OSError, trio.TooSlowError) as error:
            self._unreachable[to.node.name] = trio.current_time() + UNREACHABLE_SECONDS
            await self._refresh()
            raise ConnectionLost(
                f"the node at {address} cannot be reached: {error}", was_sent=False
            ) from error
        self._unreachable.pop(to.node.name, None)
        with suppress(OSError):
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return _Connection(address, stream, MessageReader(stream))

    async def _refresh(self) -> None:
        """Read the owners again; a database that does not answer says so elsewhere."""
        with suppress(JournalError):
            await self._directory.refresh()

    def _release(self, exchange: _Exchange) -> None:
        """Keep the connection of an exchange that is over; close any other one, which ends its answer at the node."""
        connection = exchange.connection
        idle = self._idle.setdefault(connection.address, [])
        if exchange.is_over and not self._is_closed and len(idle) < MAX_IDLE_CONNECTIONS:
            connection.idle_since = trio.current_time()
            idle.append(connection)
        else:
            connection.close()

    def _close(self) -> None:
        """Close the idle connections, and those that become idle from now on."""
        self._is_closed = True
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def aclose(self) -> None:
        self._close()
        await trio.lowlevel.checkpoint()


def _name_of(owner: Owner) -> str:
    """Return the name of an owner; empty without one. Its row may change while it is the owner, as it does when it leaves."""
    return "" if owner.node is None else owner.node.name


async def _events(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[StreamEvent | None, None]:
    decoder = StreamDecoder()
    async for piece in pieces:
        yield None
        for event in decoder.feed(piece):
            yield event


def _adapt(request: RemoteRequest) -> RemoteRequest:
    """Return the request as nodes take it.

    A new session gets its id here, because the id says which node creates it. The outcome of a message is awaited by further
    requests, so that the first one ends soon.
    """
    if request.operation == "post_session":
        return attrs.evolve(request, operation="put_session", session_id=request.key or new_secret(), key="")
    return attrs.evolve(request, wait=0) if request.operation == "say" else request


def _session_of(request: RemoteRequest) -> str:
    """Return the id of the session whose owner answers a request; empty if any node does."""
    if request.operation == "post_decision":
        return session_of(request.part)
    if request.operation == "post_fork":  # it writes the copy alone
        return str((request.body or {}).get("session_id") or request.session_id)
    return request.session_id


def _deadline_of(request: RemoteRequest) -> float:
    """Return the seconds for which a message waits for room in an inbox."""
    return float((request.body or {}).get("deadline", 0)) if request.operation == "say" else 0.0


def _shorten(request: RemoteRequest, seconds: float) -> RemoteRequest:
    """Return the request with a deadline that is answered soon."""
    if _deadline_of(request) <= ROOM_SECONDS:
        return request
    deadline = min(max(seconds, 1.0), ROOM_SECONDS)
    return attrs.evolve(request, body={**(request.body or {}), "deadline": deadline})
