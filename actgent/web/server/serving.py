"""The server below the gateway: Hypercorn on trio, with limits on what connections may take of it.

Hypercorn sends inside of a shield without a time limit, so a client that reads nothing would keep the process alive; and
it waits for the head of a request as long as something comes. So it is handed streams that end by themselves: by a time
for each head, each body and each send.
"""

import math
import os
import re
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import orjson
import trio
from hypercorn.config import Config
from hypercorn.events import Event, RawData, Updated
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import wrap_app

from actgent.errors import ConfigurationError
from actgent.messages import new_id
from actgent.web.bounds import GatewayLimits
from actgent.web.problems import MEDIA_TYPE, Problem

from .addresses import split_address
from .framing import DIRECT, Framing

BACKLOG = 1000
_EMPTY = re.compile(rb"HTTP/1\.1 (4\d\d) (?:.|\r\n)*\r\n\r\n")


def _problem(status: int, reason: str, problem: Problem) -> bytes:
    """An error of the server below the application, as a whole answer, after which the connection ends."""
    body = orjson.dumps({**problem.document(new_id()), "status": status})
    extra = "".join(f"{name}: {value}\r\n" for name, value in problem.headers.items())
    head = (
        f"HTTP/1.1 {status} {reason}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        f"cache-control: no-store\r\n{extra}connection: close\r\n\r\n"
    )
    return head.encode() + body


def _full() -> bytes:
    return _problem(
        503, "Service Unavailable", Problem("unavailable", "there are as many connections as may be")
    )


def _worded(data: bytes) -> bytes:
    """What Hypercorn sends; an answer without a body to what is no request gets one."""
    found = _EMPTY.fullmatch(data)
    if found is None or b"content-length: 0\r\n" not in data or b"connection: close\r\n" not in data:
        return data
    problem = Problem("malformed-request", "the request cannot be read, or could be read in two ways")
    return _problem(int(found[1]), "Bad Request", problem)


class LimitedStream:
    """A connection whose sends, heads and bodies have their time; as far as Hypercorn uses one."""

    def __init__(self, stream: trio.SocketStream, limits: GatewayLimits, *, secure: Any = None) -> None:
        self._stream: trio.abc.HalfCloseableStream | Any = stream if secure is None else secure
        self._limits = limits
        self._framing = Framing(limits.header_bytes)
        self._since = trio.current_time()
        """When the head or body that comes now began to; of a new connection, when it came."""
        self._is_new = True
        self.socket = stream.socket
        self.server: _Connection | None = None
        """What serves it."""
        self.is_over = False
        """True: nothing comes any more."""
        self.is_cut = False
        """True: it took nothing of what was sent."""

    async def receive_some(self, most: int | None = None) -> bytes:
        """The next bytes that the server may see; none where the client took too long."""
        while True:
            data = await self._receive(most)
            if not data:
                self.is_over = True
                if self.server is not None:
                    await self.server.idle_task.stop()
                return b""
            if self._framing.is_between:
                self._since = trio.current_time()
            was_head = self._framing.state == "head"
            passed = self._framing.take(data)
            if was_head and self._framing.state != "head":
                self._since = trio.current_time()
            if passed:
                self._is_new = False
                return passed

    async def _receive(self, most: int | None) -> bytes:
        with trio.move_on_at(self._deadline):
            try:
                return bytes(await self._stream.receive_some(most))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return b""
        return b""

    @property
    def _deadline(self) -> float:
        framing, limits = self._framing, self._limits
        if framing.state == "head":
            is_waited_for = self._is_new or not framing.is_between
            return self._since + limits.header_seconds if is_waited_for else math.inf
        return self._since + limits.body_seconds * 2  # the application answers 408 before that

    def send_now(self, data: bytes) -> int:
        """Send what the socket takes at once, and return how much that is; of who has gone it is all."""
        try:
            return os.write(self.socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    async def send_all(self, data: bytes) -> None:
        """Send, or break the connection where the client takes nothing."""
        with trio.move_on_after(self._limits.send_seconds) as limit:
            await self._stream.send_all(data)
        if limit.cancelled_caught:
            self.is_cut = True
            await trio.aclose_forcefully(self._stream)
            raise trio.BrokenResourceError("the client takes nothing of what is sent to it")

    async def send_eof(self) -> None:
        """Say that nothing follows."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close the connection."""
        with trio.move_on_after(1):
            await self._stream.aclose()


class SecureStream(LimitedStream):
    """The same with TLS."""

    def __init__(self, stream: trio.SocketStream, limits: GatewayLimits, context: ssl.SSLContext) -> None:
        self._secure = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        super().__init__(stream, limits, secure=self._secure)
        self.transport_stream = stream

    async def do_handshake(self) -> None:
        """Agree on keys."""
        await self._secure.do_handshake()

    def selected_alpn_protocol(self) -> str:
        """There is one."""
        return "http/1.1"

    async def send_eof(self) -> None:
        raise AttributeError("TLS cannot close one direction alone")


class _Connection(TCPServer):
    """Hypercorn's own would wait for a further request of a client that has gone, as long as one may be idle."""

    stream: LimitedStream  # type: ignore[assignment]  # as much of a stream as is used

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData) and event.data.startswith(b"HTTP/1.1 4"):
            event = RawData(data=_worded(event.data))
        await super().protocol_send(event)
        if isinstance(event, Updated) and event.idle and self.stream.is_over:
            await self.idle_task.stop()


class Server:
    """An application on the sockets of one address."""

    def __init__(self, app: Any, limits: GatewayLimits, *, tls: ssl.SSLContext | None) -> None:
        self._limits = limits
        self._tls = tls
        self._config = _config_for(limits)
        self._app: AppWrapper = wrap_app(app, limits.parts_bytes, "asgi")
        self._context = WorkerContext(None)
        self._streams: set[trio.SocketStream] = set()

    @property
    def connections(self) -> int:
        """The number of those that are open."""
        return len(self._streams)

    async def handle(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end."""
        if self.connections >= self._limits.connections:
            with trio.move_on_after(1):
                await stream.send_all(_full())
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
                limited,  # type: ignore[arg-type]  # as much of a stream as is used
            )
            await limited.server
        finally:
            self._streams.discard(stream)
            await trio.aclose_forcefully(stream)

    async def end(self) -> None:
        """Take no further request on the connections that are open."""
        await self._context.terminated.set()

    async def break_late(self, ending: trio.Event, grace: float) -> None:
        """Break the connections that are there a while after the end began, or when this is cancelled.

        A send is shielded: who takes nothing of what is sent would hold up the end.
        """
        try:
            await ending.wait()
            await trio.sleep(grace)
        finally:
            for stream in tuple(self._streams):
                await trio.aclose_forcefully(stream)  # noqa: ASYNC102 - it waits for nothing


def _config_for(limits: GatewayLimits) -> Config:
    config = Config()
    config.accesslog = config.errorlog = (
        None  # what fails is logged by the application, without what clients sent
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
    """Serve an application for the block; connections that work at its end have `limits.grace` seconds more."""
    server, raised = Server(app, limits, tls=tls), None
    async with _breaking(server, limits.grace) as ending, trio.open_nursery() as connections:
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
async def _breaking(server: Server, grace: float) -> AsyncGenerator[trio.Event, None]:
    """Break what is left of connections so long after the event that is given, or when the block is cancelled."""
    ending = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.break_late, ending, grace)
        yield ending
        nursery.cancel_scope.cancel()


async def open_listeners(bind: str) -> list[trio.SocketListener]:
    """Listen at `HOST:PORT`; port 0 is one that is free.

    Raises:
        ConfigurationError: it is no address, or it is taken.
    """
    host, port = split_address(bind)
    try:
        return await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as error:
        raise ConfigurationError(f"cannot listen at {bind}: {error.strerror or error}") from error


def tls_context(cert: str, key: str) -> ssl.SSLContext:
    """Return what a server with this certificate uses.

    Raises:
        ConfigurationError: it cannot be read.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigurationError(
            f"no certificate and its key, as PEM, can be read from {cert} and {key}: {reason}"
        ) from error
    return context
