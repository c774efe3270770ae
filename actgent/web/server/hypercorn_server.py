"""HTTP server of the gateway: Hypercorn on trio, with time limits and a limit on connections.

Hypercorn sends inside a shielded scope without a time limit, so a client that does not read would keep the process alive. It
also waits for a request's headers as long as bytes arrive. `LimitedStream` adds time limits for headers, bodies and sends.
"""

import math
import os
import re
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import orjson
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import wrap_app

from actgent.errors import ConfigurationError
from actgent.messages import new_id
from actgent.web.gateway_limits import GatewayLimits
from actgent.web.problem_documents import MEDIA_TYPE, Problem

from .http_request_framing import DIRECT, RequestParser
from .listen_addresses import split_address

BACKLOG = 1000
_SENT_BYTES = 65536
"""Number of bytes that a client must read within the time limit for sending."""
_DROPPED_BYTES = 65_536
"""Maximum number of bytes that one read drops."""
_EMPTY = re.compile(rb"HTTP/1\.1 (4\d\d) (?:.|\r\n)*\r\n\r\n")


def _problem(status: int, reason: str, problem: Problem) -> bytes:
    """Return the bytes of an HTTP response with a problem document, for errors before the ASGI application is called.

    The response tells the client that the connection closes.
    """
    body = orjson.dumps({**problem.document(new_id()), "status": status})
    extra = "".join(f"{name}: {value}\r\n" for name, value in problem.headers.items())
    head = (
        f"HTTP/1.1 {status} {reason}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        f"cache-control: no-store\r\n{extra}connection: close\r\n\r\n"
    )
    return head.encode() + body


def _limit_response() -> bytes:
    return _problem(
        503, "Service Unavailable", Problem("unavailable", "there are as many connections as may be")
    )


def _add_problem_document(data: bytes) -> bytes:
    """Add a problem document to Hypercorn's empty response to a malformed request. Other data is returned unchanged."""
    found = _EMPTY.fullmatch(data)
    if found is None or b"content-length: 0\r\n" not in data or b"connection: close\r\n" not in data:
        return data
    problem = Problem("malformed-request", "the request cannot be read, or could be read in two ways")
    return _problem(int(found[1]), "Bad Request", problem)


class LimitedStream:
    """Connection with timeouts for receiving headers and bodies and for sending. It has the stream interface that Hypercorn uses."""

    def __init__(self, stream: trio.SocketStream, limits: GatewayLimits, *, secure: Any = None) -> None:
        self._stream: trio.abc.HalfCloseableStream | Any = stream if secure is None else secure
        self._plain = stream
        self._limits = limits
        self._framing = RequestParser(limits.header_bytes)
        self._since = trio.current_time()
        """Monotonic time at which the current head or body began; for a new connection, when it was accepted."""
        self._is_new = True
        """True until the first complete head of a request has arrived."""
        self.socket = stream.socket
        self.server: _Connection | None = None
        """The Hypercorn server of this connection."""
        self.is_over = False
        """True once the client has closed its side or a time limit has passed, so no further bytes arrive."""
        self._is_dropping = False
        """True if the connection closes, so bytes of a request body are dropped."""
        self.is_cut = False
        """True if the connection was closed because the client did not read in time."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Receive and validate bytes, and return them to Hypercorn; empty at the end of the connection or after a timeout."""
        while True:
            data = await self._receive(max_bytes)
            if not data:
                self.is_over = True
                if self.server is not None:
                    await self.server.idle_task.stop()
                return b""
            if self._is_dropping:
                continue
            if self._framing.is_between:
                self._since = trio.current_time()
            was_head = self._framing.state == "head"
            passed = self._framing.feed(data)
            if was_head and self._framing.state != "head":
                self._since = trio.current_time()
            if passed:
                self._is_new = False
                return passed

    async def _receive(self, max_bytes: int | None) -> bytes:
        """Receive bytes without validating them; empty at the end of the connection or after a timeout."""
        with trio.move_on_at(self._deadline):
            try:
                return bytes(await self._stream.receive_some(max_bytes))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return b""
            except trio.BusyResourceError:  # `_drop_until_closed` reads the connection
                return b""
        return b""

    @property
    def _deadline(self) -> float:
        """Time by trio's clock until which the current request head or body must be complete; infinite between requests."""
        framing, limits = self._framing, self._limits
        if framing.state == "head":
            is_waited_for = self._is_new or not framing.is_between
            return self._since + limits.header_seconds if is_waited_for else math.inf
        return self._since + limits.body_seconds * 2  # the application answers 408 before that

    def send_now(self, data: bytes) -> int:
        """Send as many bytes as the socket accepts without waiting, and return the number of sent bytes.

        On a closed connection all bytes count as sent, and a later `send_all` raises.
        """
        try:
            return os.write(self.socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    async def send_all(self, data: bytes) -> None:
        """Send all data. If the client does not read the next 64 KiB in time, close the connection and raise `BrokenResourceError`."""
        if self._stream is self._plain:
            with suppress(OSError):  # the stream reports the error
                data = data[os.write(self.socket.fileno(), data) :]
            if not data:
                return
        with trio.CancelScope() as limit, memoryview(data) as view:
            # a slow client may need minutes for a large response
            for start in range(0, len(view), _SENT_BYTES):
                limit.deadline = trio.current_time() + self._limits.send_seconds
                await self._stream.send_all(view[start : start + _SENT_BYTES])
        if limit.cancelled_caught:
            self.is_cut = True
            await trio.aclose_forcefully(self._stream)
            raise trio.BrokenResourceError(
                "the client did not read the response in time, so the connection was closed"
            )

    async def send_eof(self) -> None:
        """Close the sending direction of the connection."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close the connection, within one second.

        First drop the rest of a request body: a client that still sends would lose the response, as RFC 9112 section 9.6 explains.
        """
        with trio.move_on_after(1):
            if not self._framing.is_between:
                await self._drop_until_closed()
            await self._stream.aclose()

    async def _drop_until_closed(self) -> None:
        """Receive and drop bytes until the client has closed its side, so that the client can read the response."""
        self._is_dropping, has_ended = True, False
        while not has_ended:
            try:
                has_ended = not await self._stream.receive_some(_DROPPED_BYTES)
            except trio.BusyResourceError:  # the task that reads the connection drops the bytes
                has_ended = self.is_over
                await trio.sleep(0.01)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                has_ended = True


class SecureStream(LimitedStream):
    """TLS connection with the timeouts of `LimitedStream`."""

    def __init__(self, stream: trio.SocketStream, limits: GatewayLimits, context: ssl.SSLContext) -> None:
        self._secure = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        super().__init__(stream, limits, secure=self._secure)
        self.transport_stream = stream

    async def do_handshake(self) -> None:
        """Run the TLS handshake."""
        await self._secure.do_handshake()

    def selected_alpn_protocol(self) -> str:
        """Return the protocol of the connection, which is always `http/1.1`."""
        return "http/1.1"

    async def send_eof(self) -> None:
        raise AttributeError("a TLS connection cannot close only its sending direction: call aclose()")


class _Connection(TCPServer):
    """Hypercorn's handler of one connection. It ends as soon as the client disconnects, instead of after the idle timeout."""

    stream: LimitedStream  # type: ignore[assignment]  # implements the part of the stream interface that is used

    _head = b""
    """Head of a response with a known length, until the server sends the head together with the beginning of the body."""

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._send_bytes(event.data)
        elif isinstance(event, Closed):
            # The end of a stream cancels the task that closes the connection. A client of HTTP/1.0 would wait for the close forever.
            with trio.CancelScope(shield=True):
                await self._send_bytes(b"")
                await super().protocol_send(event)
        else:
            await super().protocol_send(event)
            if isinstance(event, Updated) and event.idle and self.stream.is_over:
                await self.idle_task.stop()

    async def _send_bytes(self, data: bytes) -> None:
        """Send bytes of a response.

        If the length of the body is known, send the head together with the first bytes of the body.

        Hypercorn sends the head, the body and an empty end one by one. Each send cost 60 us of CPU, and woke the client.
        """
        if data.startswith(b"HTTP/1.1 4"):
            data = _add_problem_document(data)
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n") and b"\r\ncontent-length: " in data:
            self._head = data
            return
        if data:
            await super().protocol_send(RawData(data=data))


class Server:
    """Server that accepts and serves the HTTP connections of an ASGI application."""

    def __init__(self, app: Any, limits: GatewayLimits, *, tls: ssl.SSLContext | None) -> None:
        self._limits = limits
        self._tls = tls
        self._config = _config_for(limits)
        self._app: AppWrapper = wrap_app(app, limits.parts_bytes, "asgi")
        self._context = WorkerContext(None)
        self._streams: set[trio.SocketStream] = set()

    @property
    def connections(self) -> int:
        """Number of open HTTP connections."""
        return len(self._streams)

    async def handle(self, stream: trio.SocketStream) -> None:
        """Serve one connection until it ends. Respond with status 503 if the limit of connections is reached."""
        if self.connections >= self._limits.connections:
            with trio.move_on_after(1):
                await stream.send_all(_limit_response())
            await trio.aclose_forcefully(stream)
            return
        self._streams.add(stream)
        try:
            limited = (
                LimitedStream(stream, self._limits)
                if self._tls is None
                else SecureStream(stream, self._limits, self._tls)
            )
            limited.server = _Connection(
                self._app,
                self._config,
                self._context,
                ConnectionState({} if self._tls is not None or os.name == "nt" else {DIRECT: limited}),
                limited,  # type: ignore[arg-type]  # implements the part of the stream interface that is used
            )
            await limited.server
        finally:
            self._streams.discard(stream)
            await trio.aclose_forcefully(stream)

    async def end(self) -> None:
        """Stop accepting requests on the open connections. Running requests finish."""
        await self._context.terminated.set()

    async def close_after_grace(self, ending: trio.Event, grace: float) -> None:
        """Close all remaining connections `grace` seconds after `ending` is set, or when this task is cancelled.

        Hypercorn's sends are shielded, so a client that does not read would delay the shutdown.
        """
        try:
            await ending.wait()
            await trio.sleep(grace)
        finally:
            for stream in tuple(self._streams):
                await trio.aclose_forcefully(stream)  # noqa: ASYNC102 - it does not block


def _config_for(limits: GatewayLimits) -> Config:
    """Return Hypercorn's configuration for the limits of a gateway."""
    config = Config()
    config.accesslog = config.errorlog = (
        None  # the application logs failures itself, without data that clients have sent
    )
    config.include_server_header = False
    config.h11_max_incomplete_size = limits.header_bytes
    config.keep_alive_timeout = limits.idle_seconds
    config.keep_alive_max_requests = 1_000_000
    config.ssl_handshake_timeout = limits.header_seconds
    return config


@asynccontextmanager
async def served(
    app: Any, listeners: list[trio.SocketListener], limits: GatewayLimits, *, tls: ssl.SSLContext | None
) -> AsyncGenerator[Server, None]:
    """Serve an ASGI application on listeners during the `async with` block.

    When the block exits, running requests may finish within `limits.grace` seconds.
    """
    server, raised = Server(app, limits, tls=tls), None
    async with _closing_after_grace(server, limits.grace) as ending, trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            accepting.start_soon(
                partial(trio.serve_listeners, server.handle, listeners, handler_nursery=connections)
            )
            try:
                yield server
            except BaseException as error:  # noqa: ASYNC103, BLE001 - raised again below, not wrapped into a group
                raised = error
            accepting.cancel_scope.cancel()
        connections.cancel_scope.deadline = trio.current_time() + limits.grace
        ending.set()
        await server.end()
    if raised is not None:
        raise raised


@asynccontextmanager
async def _closing_after_grace(server: Server, grace: float) -> AsyncGenerator[trio.Event, None]:
    """Open an `async with` block, and yield an event that begins the shutdown of a server.

    Connections are closed `grace` seconds after the event is set, or on cancellation.
    """
    ending = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.close_after_grace, ending, grace)
        yield ending
        nursery.cancel_scope.cancel()


async def open_listeners(bind: str) -> list[trio.SocketListener]:
    """Open TCP listeners at the address `HOST:PORT`. Port 0 chooses a free port.

    Raises:
        ConfigurationError: The address is invalid, or the port is in use.
    """
    host, port = split_address(bind)
    try:
        return await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as error:
        raise ConfigurationError(f"cannot listen at {bind}: {error.strerror or error}") from error


def tls_context(cert: str, key: str) -> ssl.SSLContext:
    """Return the TLS context of a server for a certificate and its key, both in PEM files.

    Raises:
        ConfigurationError: The certificate or the key cannot be read.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigurationError(
            f"certificate {cert} and key {key} cannot be read as PEM: {reason}"
        ) from error
    return context
