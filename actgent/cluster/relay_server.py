"""Server side of the node protocol: answers requests that other nodes relay to this node.

A request for a session that this node does not own is answered with status 421 and the epoch that this node knows. The sender
then reads the owners again, and sends the request to the current owner.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import attrs
import orjson
import trio

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import quoted
from actgent.support.plain_nursery import plain_nursery
from actgent.support.safe_logging import LogVariable, logger_of
from actgent.web.problem_documents import Problem
from actgent.web.server.listen_addresses import is_loopback
from actgent.web.server.relayed_request_handler import RelayApplication, has_moved
from actgent.web.server.request_relay import RelayedRequest, WaitReleased

from .node_and_partition_cache import PoolDirectory
from .node_metrics import NodeMetrics
from .relay_http_encoding import (
    EPOCH_HEADER,
    MalformedMessage,
    MessageReader,
    decode_request,
    encode_answer,
    encode_chunk,
)

BACKLOG = 1000
ACQUIRING_SECONDS = 5.0
"""Seconds for which a request waits while this node is acquiring the session's partition."""
SENDING_SECONDS = 30.0
"""Send timeout in seconds per piece of an answer; after that the connection is closed."""
MISDIRECTED = 421
_log = logger_of(__name__)


@attrs.frozen(kw_only=True, eq=False)
class RelayServer:
    """Server for the requests that other nodes relay to this node."""

    application: RelayApplication
    directory: PoolDirectory
    key: bytes
    """Cluster key, with which nodes sign their requests to each other."""
    now: Callable[[], float]
    """Function that returns the Unix time in seconds by the clock of the database."""
    is_draining: Callable[[str], bool]
    """Function that returns True for the id of a session whose partition this node is draining."""
    wait_released: WaitReleased
    metrics: NodeMetrics

    async def serve(self, stream: trio.SocketStream) -> None:
        """Answer the requests of one connection, one after another, until the connection ends."""
        send, receive = trio.open_memory_channel[tuple[RelayedRequest, trio.Event]](0)
        async with stream, plain_nursery() as nursery:
            nursery.start_soon(self._read, stream, send)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async for request, gone in receive:
                    await self._answer(request, _RelayResponse(stream, gone), gone)
            nursery.cancel_scope.cancel()

    async def _read(
        self, stream: trio.SocketStream, send: trio.MemorySendChannel[tuple[RelayedRequest, trio.Event]]
    ) -> None:
        """Read the requests of another node from a connection, verify their signatures, and pass them to `send`.

        When the connection ends, the answer in progress is cancelled.
        """
        reader, gone = MessageReader(stream), trio.Event()
        try:
            with send:
                while (data := await reader.read_head()) is not None:
                    head = decode_request(data, key=self.key, now=self.now())
                    request, gone = head.add_body(await reader.read_body(head.length)), trio.Event()
                    await send.send((request, gone))
        except MalformedMessage as error:
            _log.warning("a connection to the node's relay listener was closed: %s", LogVariable(str(error)))
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
                await stream.send_all(encode_answer(400, {"connection": "close"}, b""))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            gone.set()

    async def _answer(self, request: RelayedRequest, response: "_RelayResponse", gone: trio.Event) -> None:
        """Answer a verified request of another node. First wait until this node serves the session of the request.

        If the session is quarantined after crashes, the request waits. If another node owns the session, the status is 421.
        `gone` is set when the sender has disconnected.
        """
        session_id, http_request = request.session_id, request.http_request
        frees_waiters = self.application.is_served_while_draining(http_request.verb, http_request.path)
        if session_id and not await self._wait_served(session_id, frees_waiters):
            await response.misdirect(self.directory.owner_of(session_id).epoch)
            return
        response.epoch = self.directory.owner_of(session_id).epoch if session_id else 0
        try:
            await self.wait_released(session_id)
        except Problem as held:
            await response(held.status, orjson.dumps(held.document("")), True, held.headers)  # noqa: FBT003 - as `SendChunk`
            return
        self.metrics.relayed += 1
        try:
            await self.application.answer(request, response, gone)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):  # the sender has gone
            gone.set()
        except* Exception:  # noqa: BLE001 - the edge: a stream failed that has begun
            _log.exception("a relayed request to %s failed", LogVariable(http_request.path))
        if response.is_open:
            raise trio.BrokenResourceError  # an incomplete stream: close the connection, so that its reader reconnects

    async def _wait_served(self, session_id: str, frees_waiters: bool) -> bool:  # noqa: FBT001 - as below
        """Wait while this node is acquiring the session's partition.

        Return True if it serves the session. While the partition is drained, only requests that end or continue turns
        (`frees_waiters`) are served.
        """
        directory = self.directory
        if self.is_draining(session_id):
            return frees_waiters
        with trio.move_on_after(ACQUIRING_SECONDS):
            while not directory.is_ours(session_id):
                owner = directory.owner_of(session_id).node
                if owner is not None and owner.name != directory.name:
                    await directory.refresh()
                    break
                await directory.wait_changed()
        return directory.is_ours(session_id)


@attrs.define(eq=False)
class _RelayResponse:
    """Sends the answer to one request over the connection; a `SendChunk`."""

    stream: trio.SocketStream
    gone: trio.Event
    epoch: int = 0
    is_open: bool = False
    """True from the start of a chunked body until its last chunk."""

    async def __call__(self, status: int, data: bytes, is_last: bool, headers: Mapping[str, str]) -> None:  # noqa: FBT001 - as `SendChunk`
        if self.is_open:
            await self._send(_last_chunks(data) if is_last else encode_chunk(data) if data else b"")
            self.is_open = not is_last
        elif not is_last:
            self.is_open = True
            await self._send(encode_answer(status, headers, None) + (encode_chunk(data) if data else b""))
        elif has_moved(status, data):
            await self.misdirect(self.epoch)
        else:
            await self._send(encode_answer(status, headers, data))

    async def misdirect(self, epoch: int) -> None:
        """Answer the relayed request with status 421, because another node owns the session.

        `epoch` is the newest epoch of the session's partition that this node knows. The answer contains it.
        """
        document = orjson.dumps({"moved": True, "epoch": epoch})
        await self._send(encode_answer(MISDIRECTED, {EPOCH_HEADER: str(epoch)}, document))

    async def _send(self, data: bytes) -> None:
        """Send bytes to the node that relayed the request.

        Raises:
            BrokenResourceError: The node did not read the bytes within `SENDING_SECONDS`.
        """
        with trio.move_on_after(SENDING_SECONDS) as limit:
            await self.stream.send_all(data)
        if limit.cancelled_caught:
            self.gone.set()
            raise trio.BrokenResourceError


def _last_chunks(data: bytes) -> bytes:
    return (encode_chunk(data) if data else b"") + encode_chunk(b"")


@asynccontextmanager
async def open_relay_listeners(
    advertise: str | None,
) -> AsyncGenerator[tuple[str, list[trio.SocketListener]], None]:
    """Async context manager: listen for other nodes, and give the block this node's URL and listening sockets.

    Args:
        advertise: Base URL, `http://HOST:PORT`; port 0 chooses a free one. None listens on a free port of 127.0.0.1.

    Raises:
        ConfigurationError: The URL has another form, or the port is in use.
    """
    host, port = _parse_advertise("http://127.0.0.1:0" if advertise is None else advertise)
    bind = host if is_loopback(host) else None
    try:
        listeners = await trio.open_tcp_listeners(port, host=bind, backlog=BACKLOG)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen at port {port} of advertise={advertise!r}: {error.strerror or error}"
        ) from error
    try:
        chosen = listeners[0].socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{chosen}", listeners
    finally:
        for each in listeners:
            each.socket.close()


async def serve_relays(
    server: RelayServer,
    listeners: list[trio.SocketListener],
    *,
    task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept and serve the connections of other nodes until cancelled."""
    await trio.serve_listeners(server.serve, listeners, task_status=task_status)


def _parse_advertise(url: str) -> tuple[str, int]:
    """Return the host and the port of the URL at which other nodes reach this node.

    Raises:
        ConfigurationError: The URL does not have the form `http://HOST:PORT`.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except (ValueError, AttributeError, TypeError):
        parts, host, port = urlsplit(""), None, None
    if parts.scheme != "http" or not host or port is None or parts.path.strip("/") or parts.username:
        raise ConfigurationError(
            f"advertise= (--advertise) must be the URL at which other nodes reach this one, http://HOST:PORT, not {quoted(url)}"
        )
    return host, port
