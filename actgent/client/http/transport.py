"""The way to a gateway over HTTP: JSON, and streams of server-sent events."""

import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import httpx2
import trio

from actgent.client.transport import ConnectionLost, Events, RemoteRequest, StreamEvent, Transport
from actgent.errors import ConfigurationError
from actgent.llm.http import EventTooLarge
from actgent.support.foreign import telling_text
from actgent.support.http_environment import reading_environment

from .forms import (
    NO_CONTENT,
    PATIENCE,
    REPEATED,
    STREAM,
    HTTPForm,
    read_answer,
    refused,
    to_http,
)
from .sse import StreamDecoder

ANSWER = 30.0
"""Seconds for which an answer may be awaited, besides those that the server was asked to wait."""
SILENCE = 45.0
"""Seconds without a sign of life after which a stream counts as cut; the gateway gives one every 15 s."""
CONNECT = 10.0
"""Seconds for which a connection may be awaited, at most."""
RELAYED = 0.9
"""Part of the patience of a request that its gateway may use up, so that the gateway's answer arrives in time."""
MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of one answer."""
_HOST = re.compile(r"\w[\w.-]*|[\da-fA-F.]*:[\da-fA-F:.]*(%[\w.-]+)?")
_PASSING = (502, 503, 504)
"""Statuses with which a gateway, or a proxy before it, says that another one may answer."""
PROBE_SECONDS = 10.0
"""Seconds for which the answer of a probe is awaited."""
PROBE_PAUSES = 0.0, 0.1, 0.4
"""Seconds before each of the probes: the first one may go to the process that has just ended."""
_PROBE = HTTPForm(verb="GET", path="/health/live", query="", headers={}, body=None)
_BROKEN = (httpx2.ReadError, httpx2.RemoteProtocolError)
_received: ContextVar[list[int]] = ContextVar("_received")
"""The numbers of bytes that the task's request has received so far."""
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class HTTPTransport(Transport):
    """Gateways over HTTP/1.1.

    Args:
        url: Address of a gateway, `https://agents.example.com`, without the `/v1`; or of several, which are tried in turn: the
            next one after a connection is lost.
        token: Token as `actgent token new` shows it.
        owner: Owner for whom the client acts, with a token that has the scope `impersonate:`.

    Raises:
        ConfigurationError: An address or the token has another form.
    """

    def __init__(self, url: str | Sequence[str], *, token: str | None, owner: str | None = None) -> None:
        addresses = [_checked(each) for each in ([url] if isinstance(url, str) else _listed(url))]
        if token is None:
            raise ConfigurationError("token= is missing: a gateway takes one; `actgent token new` makes it")
        if not isinstance(token, str) or not (token.isascii() and token.isprintable() and token.strip()):  # type: ignore[redundant-expr]
            raise ConfigurationError("token= is the text that `actgent token new` shows, not something else")
        self.url = str(addresses[0]).rstrip("/") if not isinstance(url, str) else url
        """Address of the first gateway."""
        headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
        if owner is not None:
            headers["actgent-owner"] = owner
        with reading_environment():
            self._client = httpx2.AsyncClient(
                headers=headers,
                timeout=httpx2.Timeout(ANSWER, connect=CONNECT),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
                follow_redirects=False,
            )
        self._bases = [f"{str(address).rstrip('/')}/v1" for address in addresses]
        self._current = 0
        """Index of the gateway that the next request goes to."""

    def __repr__(self) -> str:
        return f"<HTTPTransport {self.url}>"

    async def call(self, request: RemoteRequest) -> Any:
        with _lost():
            seconds = min(ANSWER, request.within) + request.wait
            async with self._sent(to_http(request), seconds, within=request.within) as answer:
                data = await _read(answer)
        return read_answer(request, answer.status_code, data, is_repeated=REPEATED in answer.headers)

    @asynccontextmanager
    async def events(self, request: RemoteRequest) -> AsyncGenerator[Events | None, None]:
        with _lost():
            async with self._sent(to_http(request, accept=STREAM), SILENCE) as answer:
                if not answer.is_success:
                    raise refused(answer.status_code, await _read(answer))
                yield None if answer.status_code == NO_CONTENT else _events(answer.aiter_bytes())

    @asynccontextmanager
    async def download(self, request: RemoteRequest) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
        with _lost():
            async with self._sent(to_http(request, accept="*/*"), SILENCE) as answer:
                if not answer.is_success:
                    raise refused(answer.status_code, await _read(answer))
                yield _pieces(answer.aiter_bytes())

    @asynccontextmanager
    async def _sent(
        self, form: HTTPForm, seconds: float, *, within: float = math.inf
    ) -> AsyncGenerator[httpx2.Response, None]:
        """Send a request, and yield the head of its answer. If the connection is lost, the next request goes to the next gateway."""
        index = self._current
        url = f"{self._bases[index]}{form.path}" + (f"?{form.query}" if form.query else "")
        timeout = httpx2.Timeout(ANSWER, connect=min(CONNECT, within), read=seconds)
        headers = form.headers
        if math.isfinite(within):
            headers = {**headers, PATIENCE: f"{within * RELAYED:.3f}"}
        _received.set([])
        try:
            async with self._client.stream(
                form.verb,
                url,
                headers=headers,
                content=form.body,
                timeout=timeout,
                extensions={"trace": _watch_connection},
            ) as answer:
                if answer.status_code in _PASSING:
                    self._leave(index)
                yield answer
        except (httpx2.TransportError, httpx2.StreamError, trio.Cancelled):
            self._leave(index)
            raise

    def _leave(self, index: int) -> None:
        """Send the next requests to the gateway after this one, unless that was decided already."""
        if self._current == index:
            self._current = (index + 1) % len(self._bases)

    async def is_up(self) -> bool:
        for pause in PROBE_PAUSES:
            await trio.sleep(pause)
            with suppress(httpx2.TransportError, httpx2.StreamError):
                async with self._sent(_PROBE, PROBE_SECONDS, within=PROBE_SECONDS) as answer:
                    if answer.is_success:
                        return True
        return False

    async def aclose(self) -> None:
        await self._client.aclose()


async def _watch_connection(event: str, info: Mapping[str, Any]) -> None:
    """Have a new connection count what its requests receive; a callback of httpcore2's extension `trace`.

    The exceptions of httpcore2 do not tell a connection that ended before an answer from one that was cut within its head.
    """
    if not event.endswith(("connect_tcp.complete", "start_tls.complete")):
        return
    stream = info["return_value"]
    read = stream.read

    async def read_and_count(*given: Any, **named: Any) -> bytes:
        data: bytes = await read(*given, **named)
        if data:
            _received.get([]).append(len(data))
        return data

    stream.read = read_and_count


def _listed(urls: Sequence[str]) -> Sequence[str]:
    """Return the addresses of several servers.

    Raises:
        ConfigurationError: There are none, or it is not a list.
    """
    if not isinstance(urls, Sequence) or not urls:  # type: ignore[redundant-expr]
        raise ConfigurationError(f"url= is the address of a gateway, or a list of such, not {urls!r:.200}")
    return urls


def _checked(url: str) -> httpx2.URL:
    """An address of a server.

    Raises:
        ConfigurationError: it is none.
    """
    try:
        address = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError):
        address = httpx2.URL("")
    is_host = _HOST.fullmatch(address.host) is not None
    if address.scheme not in ("http", "https") or not is_host or address.query or address.userinfo:
        raise ConfigurationError(
            f"url= is the address of a gateway, such as https://agents.example.com, not {url!r:.200}: "
            "the token goes into token="
        )
    return address


@contextmanager
def _lost() -> Iterator[None]:
    """Tell what became of a connection in the words of all transports."""
    try:
        yield
    except (httpx2.TransportError, httpx2.StreamError, EventTooLarge) as error:
        was_sent = not isinstance(error, _NOT_SENT)
        is_broken = isinstance(error, _BROKEN) and not _received.get([])
        raise ConnectionLost(
            f"{type(error).__name__}: {telling_text(error)}", was_sent=was_sent, is_broken=is_broken
        ) from error


async def _events(pieces: AsyncIterator[bytes]) -> AsyncGenerator[StreamEvent | None, None]:
    decoder = StreamDecoder()
    async for piece in pieces:
        yield None
        for event in decoder.feed(piece):
            yield event


async def _pieces(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    async for piece in pieces:
        yield piece


async def _read(answer: httpx2.Response) -> bytes:
    data = bytearray()
    async for piece in answer.aiter_bytes():
        data += piece
        if len(data) > MAX_ANSWER:
            raise EventTooLarge(f"an answer has more than {MAX_ANSWER} bytes")
    return bytes(data)
