"""Client side of the node protocol: sends requests over HTTP to the node that owns a session's partition.

A request is sent once; its sender retries it with the same ids. When the owner of a partition changes, requests to the former
owner end with `ConnectionLost`, because that node may hang without closing its connections.
"""

import socket
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import attrs
import trio

from actgent.approvals import session_of
from actgent.client.http.http_request import (
    EVENT_STREAM_TYPE,
    NO_CONTENT,
    HTTPRequest,
    parse_problem,
    parse_response,
    to_http,
)
from actgent.client.http.sse import decode_events
from actgent.client.transport_interface import ConnectionLost, Events, Refused, RemoteRequest, Transport
from actgent.errors import JournalError
from actgent.journal.postgres.cluster_pool_layout import read_layout
from actgent.journal.postgres.node_table import NodeTable
from actgent.messages import new_secret
from actgent.support.postgres_address import split_schema
from actgent.support.safe_logging import LogVariable, logger_of
from actgent.web.server.request_relay import NodeConnectionBroken, NoOwner, RelayedAnswer, RelayedRequest

from .node_and_partition_cache import Owner, PoolDirectory
from .relay_http_encoding import EPOCH_HEADER, MalformedMessage, MessageReader, decode_answer, encode_request
from .relay_server import MISDIRECTED
from .unowned_partition_messages import PendingMessages

ANSWER_SECONDS = 15.0
"""Seconds for which an answer is awaited, in addition to the seconds that the request makes the node wait."""
CONNECT_SECONDS = 2.0
LOCATE_SECONDS = 1.0
"""Seconds for which a request waits for a reachable owner before `NoOwner` is raised."""
ROOM_SECONDS = 5.0
"""Seconds for which a node waits for room in a full inbox. After that the request is retried until its caller's
deadline.
"""
DEATH_SECONDS = 2.0
"""Seconds within which the death of a killed node is detected."""
SILENCE_SECONDS = 45.0
"""Seconds without a byte after which a stream counts as lost; nodes send one every 15 s."""
LATE_SECONDS = 2.0
"""Seconds for which a former owner that is alive may still answer a request other than GET."""
UNREACHABLE_SECONDS = 1.0
"""Seconds for which a node is not tried again after a failed connection."""
MAX_IDLE_CONNECTIONS = 64
"""Maximum number of idle connections to one node."""
MAX_IDLE_SECONDS = 60.0
"""Seconds after which an idle connection is closed instead of being reused."""
_OF_CONNECTION = frozenset({"content-length", "transfer-encoding", "connection", EPOCH_HEADER})
"""Headers of an answer that belong to the node protocol. The node has left out all others that are not for clients."""
_FIRST_ERROR = 400


@attrs.define(eq=False)
class _Connection:
    """An HTTP connection to a node."""

    address: str
    stream: trio.SocketStream
    reader: MessageReader
    idle_since: float = 0.0

    def is_usable(self) -> bool:
        """True if an idle connection can be used for another request, because it is open and not too old."""
        if trio.current_time() - self.idle_since > MAX_IDLE_SECONDS:
            return False
        return not self.stream.socket.is_readable()

    def close(self) -> None:
        self.stream.socket.close()


@attrs.define(eq=False)
class _Exchange:
    """One request to a node, and the answer of the node."""

    connection: _Connection
    requested_owner: Owner
    """Owner to which the request was sent, with its epoch."""
    status: int = 0
    headers: dict[str, str] = attrs.field(factory=dict)
    is_complete: bool = False
    """True once the whole answer was read, so the connection can be reused."""
    is_read: bool = True
    """True if the request is a GET, which has no side effect."""
    has_moved: bool = False
    """True once the partition has another owner."""
    _scope: trio.CancelScope | None = None
    _late_until: float = 0.0
    """Monotonic time in seconds until which a response of the former owner may still arrive."""

    def move(self, *, is_alive: bool) -> None:
        """End the exchange because the partition has another owner now. `is_alive` is True if the former owner is alive.

        If the former owner is alive, a request other than GET may still be answered for `LATE_SECONDS`.
        """
        if not self.has_moved:
            late = LATE_SECONDS if is_alive and not self.is_read else 0.0
            self.has_moved, self._late_until = True, trio.current_time() + late
        if not is_alive:
            self._late_until = 0.0
        if self._scope is not None:
            self._scope.deadline = min(self._scope.deadline, self._late_until)

    async def send(self, request: bytes, seconds: float) -> None:
        """Send a request, and read the head (status line and headers) of the response.

        Raises:
            ConnectionLost: The connection failed, or no head arrived within `seconds`.
        """
        with self._limit_wait(seconds):
            await self.connection.stream.send_all(request)
            head = await self.connection.reader.read_head()
            if head is None:
                raise trio.BrokenResourceError("the node has closed the connection")
            self.status, self.headers = decode_answer(head)

    async def read_all(self) -> bytes:
        """Read the whole body of the answer. Raises as `pieces`."""
        async with aclosing(self.pieces()) as pieces:
            return b"".join([piece async for piece in pieces])

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of the response body when they are received.

        Raises:
            ConnectionLost: The connection ends before the body does, or is silent for too long.
        """
        reader = self.connection.reader
        if (length := self.headers.get("content-length")) is not None:
            with self._limit_wait(SILENCE_SECONDS):
                data = await reader.read_body(int(length))
            self.is_complete = True
            yield data
            return
        while True:
            with self._limit_wait(SILENCE_SECONDS):
                data = await reader.read_chunk()
            if not data:
                self.is_complete = True
                return
            yield data

    @contextmanager
    def _limit_wait(self, seconds: float) -> Iterator[None]:
        """Context manager: end its block after `seconds`, or when the node loses the partition of the request.

        Raises:
            ConnectionLost: The connection failed or the time ran out. The request may have had its effect.
        """
        until = trio.current_time() + seconds
        with trio.move_on_at(min(until, self._late_until) if self.has_moved else until) as self._scope:
            try:
                yield
            except (trio.BrokenResourceError, trio.ClosedResourceError, MalformedMessage) as error:
                reason = f"the connection to the node was lost: {str(error) or type(error).__name__}"
                if not self.status and isinstance(error, trio.BrokenResourceError):
                    raise NodeConnectionBroken(reason, node=_name_of(self.requested_owner)) from error
                raise ConnectionLost(reason, was_sent=True) from error
        if self._scope.cancelled_caught:
            reason = (
                "the session has moved to another node"
                if self.has_moved
                else f"the node sent no data for {seconds:g} s"
            )
            raise ConnectionLost(reason, was_sent=True)


class NodeTransport(Transport):
    """Transport to the nodes of one pool: each request goes to the node that owns its session."""

    def __init__(
        self,
        directory: PoolDirectory,
        *,
        key: bytes,
        now: Callable[[], float],
        owner: str = "user",
        pending: PendingMessages | None = None,
    ) -> None:
        """Create a transport without connections. Run `run` in the background.

        Args:
            directory: Nodes and owners of the pool.
            key: Cluster key.
            now: Unix time in seconds by the clock of the database.
            owner: Name of the session owner for whom requests without an owner are sent.
            pending: Stores messages for sessions without an owner; None makes them wait for an owner.
        """
        self.directory, self._key, self._now, self._owner = directory, key, now, owner
        self._pending = pending
        self._idle: dict[str, list[_Connection]] = {}
        self._open: set[_Exchange] = set()
        """Exchanges that are not completed yet."""
        self._is_closed = False
        self._unreachable: dict[str, float] = {}
        """Monotonic time in seconds until which a node is not tried, by node name."""

    def __repr__(self) -> str:
        return f"<NodeTransport of {self.directory.name}>"

    async def run(self) -> None:
        """Until cancelled, end requests to nodes that have lost the session, and close idle connections to ended nodes.

        When cancelled, close all idle connections.
        """
        try:
            while True:
                for exchange in list(self._open):
                    self._check_owner(exchange)
                self._close_idle_connections()
                await self.directory.wait_changed()
        finally:
            self._close()

    def _check_owner(self, exchange: _Exchange) -> None:
        """End an exchange if another node has acquired its partition since the request was sent."""
        requested_owner = exchange.requested_owner
        if requested_owner.partition >= 0:
            owner = self.directory.owner_of_partition(requested_owner.partition)
            if owner.epoch != requested_owner.epoch or _name_of(owner) != _name_of(requested_owner):
                exchange.move(
                    is_alive=requested_owner.node is not None
                    and requested_owner.node.name in self.directory.nodes
                )

    def _close_idle_connections(self) -> None:
        """Close the idle connections to nodes that have ended, because no request is sent to these nodes any more."""
        nodes = self.directory.nodes
        live = {each.address for each in nodes.values()}
        for address in self._idle.keys() - live:
            for connection in self._idle.pop(address):
                connection.close()
        self._unreachable = {name: until for name, until in self._unreachable.items() if name in nodes}

    # --- requests of this process --------------------------------------------------------

    async def call(self, request: RemoteRequest) -> Any:
        request, over = _to_node_request(request), trio.current_time() + _inbox_timeout_of(request)
        while True:
            try:
                return await self._call(_shorten(request, over - trio.current_time()))
            except Refused as problem:
                if problem.kind != "inbox-full" or trio.current_time() >= over:
                    raise
            await trio.lowlevel.checkpoint()

    async def _call(self, request: RemoteRequest) -> Any:
        async with self._ask(request, to_http(request), ANSWER_SECONDS + request.wait) as exchange:
            data = await exchange.read_all()
        return parse_response(request, exchange.status, data)

    @asynccontextmanager
    async def events(self, request: RemoteRequest) -> AsyncGenerator[Events | None, None]:
        async with self._ask(request, to_http(request, accept=EVENT_STREAM_TYPE), ANSWER_SECONDS) as exchange:
            if exchange.status >= _FIRST_ERROR:
                raise parse_problem(exchange.status, await exchange.read_all())
            if exchange.status == NO_CONTENT:
                yield None
                return
            async with aclosing(exchange.pieces()) as pieces, aclosing(decode_events(pieces)) as events:
                yield events

    @asynccontextmanager
    async def download(self, request: RemoteRequest) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
        async with self._ask(request, to_http(request, accept="*/*"), ANSWER_SECONDS) as exchange:
            if exchange.status >= _FIRST_ERROR:
                raise parse_problem(exchange.status, await exchange.read_all())
            async with aclosing(exchange.pieces()) as pieces:
                yield pieces

    @asynccontextmanager
    async def _ask(
        self, request: RemoteRequest, http_request: HTTPRequest, seconds: float
    ) -> AsyncGenerator[_Exchange, None]:
        """Async context manager: send a request of this process, with the scope `admin`, and give the block the exchange.

        `seconds` limits the wait for the response head.
        """
        relayed = RelayedRequest(
            http_request=http_request,
            session_id=_session_of(request),
            owner=request.owner or self._owner,
            scopes=("admin",),
        )
        async with self._exchange(relayed, seconds) as exchange:
            yield exchange

    # --- requests of gateways and other pools --------------------------------------------

    @asynccontextmanager
    async def relay(self, request: RelayedRequest, *, seconds: float) -> AsyncGenerator[RelayedAnswer, None]:
        """Async context manager: relay a gateway's request once, and give the block the answer.

        Raises:
            NoOwner: No live node owns the session.
            ConnectionLost: The connection failed before the answer, or while its body is read.
        """
        async with self._exchange(request, seconds + ANSWER_SECONDS) as exchange:
            headers = {name: value for name, value in exchange.headers.items() if name not in _OF_CONNECTION}
            async with aclosing(exchange.pieces()) as pieces:
                yield RelayedAnswer(status=exchange.status, headers=headers, pieces=pieces)

    async def has_died(self, node: str) -> bool:
        """Wait up to `DEATH_SECONDS` until a node has left the pool.

        Return True if the node died. Return False if it ended as planned or is still in the pool.
        """
        with trio.move_on_after(DEATH_SECONDS):
            while node in self.directory.nodes:
                await self.directory.wait_changed()
        return self.directory.is_dead(node)

    async def store(self, request: RelayedRequest, *, message_id: str) -> bool:
        """Store a message for the next owner of its session.

        Return False if the partition has an owner, to which the message must be sent instead; see `OwnerClient.store`.
        """
        known = self.directory.owner_of(request.session_id)
        if self._pending is None or known.node is not None:
            return False
        return await self._pending.store(known, request, message_id)

    async def exchange(self, request: RelayedRequest, *, seconds: float) -> tuple[int, bytes]:
        """Send a request to the owner node of a session. Return the status and the body of the response.

        Raises:
            NoOwner, ConnectionLost: See `relay`.
        """
        async with self._exchange(request, seconds + ANSWER_SECONDS) as exchange:
            return exchange.status, await exchange.read_all()

    # --- one exchange --------------------------------------------------------------------

    @asynccontextmanager
    async def _exchange(self, request: RelayedRequest, seconds: float) -> AsyncGenerator[_Exchange, None]:
        """Async context manager: send a request to a session's owner node, and run the block after the response head.

        An empty session id allows any node.

        Raises:
            NoOwner: No live node owns the session.
            ConnectionLost: The node is not reachable, or the connection failed, or the node does not own the session.
        """
        to = await self._locate(request.session_id)
        exchange = _Exchange(await self._connect(to), to, is_read=request.http_request.verb == "GET")
        self._open.add(exchange)
        try:
            data = encode_request(request, epoch=to.epoch, key=self._key, now=self._now())
            await exchange.send(data, seconds)
            if exchange.status == MISDIRECTED and EPOCH_HEADER in exchange.headers:
                await exchange.read_all()
                await self._wait_moved(to)
                raise ConnectionLost("the session has moved to another node", was_sent=False)
            if exchange.headers.get("connection") == "close":  # only answers to unreadable requests have it
                reason = "the node rejected the signature of the request: compare the clocks of the nodes"
                raise ConnectionLost(reason, was_sent=False)
            yield exchange
        finally:
            self._open.discard(exchange)
            self._release(exchange)

    async def _locate(self, session_id: str) -> Owner:
        """Wait until a session has an owner node that can be reached, and return this node.

        An empty session id allows any node.

        Raises:
            NoOwner: The session had no such owner for `LOCATE_SECONDS`.
        """
        directory = self.directory
        if not session_id:
            return self._choose_any_node()
        with trio.move_on_after(LOCATE_SECONDS):
            while True:
                owner = directory.owner_of(session_id)
                if owner.node is not None and self._may_try(owner.node.name, session_id):
                    return owner
                with trio.move_on_after(UNREACHABLE_SECONDS):
                    await directory.wait_changed()
        raise NoOwner

    def _choose_any_node(self) -> Owner:
        """Return this node, or another node that is not leaving, as an owner without a partition.

        Raise `NoOwner` without nodes.
        """
        nodes = self.directory.nodes
        staying = [each for each in nodes.values() if not each.is_leaving]
        found = nodes.get(self.directory.name) or (staying[0] if staying else None)
        if found is None:
            raise NoOwner
        return Owner(partition=-1, epoch=0, node=found)

    async def _wait_moved(self, requested_owner: Owner) -> None:
        """Wait until a session's partition has another owner than `requested_owner`, for at most `UNREACHABLE_SECONDS`.

        The node of `requested_owner` has answered 421.
        """
        await self._refresh()
        with trio.move_on_after(UNREACHABLE_SECONDS):
            while self.directory.owner_of_partition(requested_owner.partition) == requested_owner:
                await self.directory.wait_changed()

    def _may_try(self, name: str, session_id: str) -> bool:
        """Return True if a request for a session may be sent to the node with this name.

        Return False for a node that is marked unreachable, and for this node if it does not serve the session.
        """
        if name == self.directory.name and not self.directory.is_ours(session_id):
            return False
        return self._unreachable.get(name, 0.0) <= trio.current_time()

    async def _connect(self, to: Owner) -> _Connection:
        """Return an idle connection to a node, or open a new one.

        Raises:
            ConnectionLost: The node is not reachable; the request was not sent.
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
        """Read the owners from the database again. Errors are ignored, since the membership logs them."""
        with suppress(JournalError):
            await self.directory.refresh()

    def _release(self, exchange: _Exchange) -> None:
        """Keep the connection of a completed exchange for reuse while its node is live.

        Also close the oldest idle connection if it is unusable. If the exchange is not complete, close its connection,
        which cancels the answer.
        """
        connection = exchange.connection
        is_live = _name_of(exchange.requested_owner) in self.directory.nodes
        idle = self._idle.setdefault(connection.address, []) if is_live else []
        if idle and not idle[0].is_usable():
            idle.pop(0).close()
        if exchange.is_complete and is_live and not self._is_closed and len(idle) < MAX_IDLE_CONNECTIONS:
            connection.idle_since = trio.current_time()
            idle.append(connection)
        else:
            connection.close()

    def _close(self) -> None:
        """Close all idle connections. Connections that are released later are closed as well."""
        self._is_closed = True
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def calm_seconds(self) -> float:
        await trio.lowlevel.checkpoint()
        return trio.current_time() - self.directory.calm_since

    async def aclose(self) -> None:
        self._close()
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def open_pool_transport(
    journal: str, pool: str, *, key: bytes, now: Callable[[], float], owner: str
) -> AsyncGenerator[NodeTransport, None]:
    """Async context manager: open a transport to the nodes of a pool, for a process that is no node of this pool.

    The arguments are those of `follow_pool` and `NodeTransport`, and so are the errors.
    """
    async with follow_pool(journal, pool) as directory, trio.open_nursery() as nursery:
        transport = NodeTransport(directory, key=key, now=now, owner=owner)
        nursery.start_soon(transport.run)
        yield transport
        nursery.cancel_scope.cancel()


def _name_of(owner: Owner) -> str:
    """Return the name of the node in an `Owner`; empty if the `Owner` has no node.

    Owners are compared by name, since other fields of an owner's row may change, for example when it leaves.
    """
    return "" if owner.node is None else owner.node.name


def _to_node_request(request: RemoteRequest) -> RemoteRequest:
    """Convert a client's request to the request that is sent to a node.

    A request for a new session gets a session id here, because the id determines the node. A request with a message does
    not wait for the outcome: further requests wait for it.
    """
    if request.operation == "post_session":
        return attrs.evolve(request, operation="put_session", session_id=request.key or new_secret(), key="")
    return attrs.evolve(request, wait=0) if request.operation == "say" else request


def _session_of(request: RemoteRequest) -> str:
    """Return the id of the session whose owner must answer a request. Empty if any node may answer."""
    if request.operation == "post_decision":
        return session_of(request.part)
    if request.operation == "post_fork":  # it writes only the copy
        return str((request.body or {}).get("session_id") or request.session_id)
    return request.session_id


def _inbox_timeout_of(request: RemoteRequest) -> float:
    """Return how many seconds the message of a request may wait for room in a full inbox; 0 for other requests."""
    return float((request.body or {}).get("deadline", 0)) if request.operation == "say" else 0.0


def _shorten(request: RemoteRequest, seconds: float) -> RemoteRequest:
    """Limit the deadline of a message to `ROOM_SECONDS` and to the `seconds` that are left.

    So the sender notices early if its node loses the session.
    """
    if _inbox_timeout_of(request) <= ROOM_SECONDS:
        return request
    deadline = min(max(seconds, 1.0), ROOM_SECONDS)
    return attrs.evolve(request, body={**(request.body or {}), "deadline": deadline})


# --- non member pool directory ---------------------------------------------------------------

POLL_SECONDS = 1.0
"""Poll interval in seconds of the partition owners if no notification arrives."""
DISCONNECTED_POLL_SECONDS = 0.25
"""Poll interval in seconds while the database connection is lost, so that no notification can arrive."""
_log = logger_of(__name__)


@asynccontextmanager
async def follow_pool(journal: str, pool: str) -> AsyncGenerator[PoolDirectory, None]:
    """Async context manager: keep a directory of a pool's nodes and partition owners, without joining the pool.

    Args:
        journal: Address of the database, `postgresql://...`.
        pool: Name of the pool.

    Raises:
        ConfigurationError: The pool has no partitions yet, or the address is invalid.
        JournalFailed: The database cannot be read.
    """
    layout = await read_layout(journal, pool)
    address, schema = split_schema(journal, default="actgent", owner="the journal")
    table = NodeTable(address, schema, pool=pool, node="")
    turn = trio.Lock()

    async def refresh() -> None:
        async with turn:
            seen, _ = await table.nodes()
            partitions = await table.partitions()
        directory.update([each.row for each in seen if not each.is_suspicious], partitions)

    async def follow() -> None:
        while True:
            try:
                await refresh()
            except JournalError as error:
                _log.warning(
                    "the nodes of pool %s cannot be read: %s", LogVariable(pool), LogVariable(str(error))
                )
            with trio.move_on_after(POLL_SECONDS):
                await _wait_notification(table)

    directory = PoolDirectory("", layout.partitions, refresh)
    try:
        await refresh()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            yield directory
            nursery.cancel_scope.cancel()
    finally:
        table.close()


async def _wait_notification(table: NodeTable) -> None:
    """Wait until a database notification can be read.

    Without a connection, wait `DISCONNECTED_POLL_SECONDS` seconds instead.
    """
    if (socket := table.fileno()) is None:
        await trio.sleep(DISCONNECTED_POLL_SECONDS)
    else:
        await trio.lowlevel.wait_readable(socket)
