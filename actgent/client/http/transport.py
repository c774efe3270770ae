"""The way to a gateway over HTTP: JSON, and streams of server-sent events."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2

from actgent.client.transport import ConnectionLost, Events, RemoteRequest, StreamEvent, Transport
from actgent.errors import ConfigurationError
from actgent.llm.http import EventTooLarge
from actgent.support.foreign import telling_text
from actgent.support.http_environment import reading_environment

from .forms import NO_CONTENT, REPEATED, STREAM, HTTPForm, read_answer, refused, to_http
from .sse import StreamDecoder

ANSWER = 30.0
"""Seconds for which an answer may be awaited, besides those that the server was asked to wait."""
SILENCE = 45.0
"""Seconds without a sign of life after which a stream counts as cut; the gateway gives one every 15 s."""
MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of one answer."""
_HOST = re.compile(r"\w[\w.-]*|[\da-fA-F.]*:[\da-fA-F:.]*(%[\w.-]+)?")
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class HTTPTransport(Transport):
    """A gateway over HTTP/1.1.

    Args:
        url: Where the gateway is: `https://agents.example.com`, without the `/v1`.
        token: As `actgent token new` shows it once.
        owner: For whom it acts, with a token that has the scope `impersonate:`.
    """

    def __init__(self, url: str, *, token: str | None, owner: str | None = None) -> None:
        address = _checked(url)
        if token is None:
            raise ConfigurationError("token= is missing: a gateway takes one; `actgent token new` makes it")
        if not isinstance(token, str) or not (token.isascii() and token.isprintable() and token.strip()):  # type: ignore[redundant-expr]
            raise ConfigurationError("token= is the text that `actgent token new` shows, not something else")
        self.url = url
        headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
        if owner is not None:
            headers["actgent-owner"] = owner
        with reading_environment():
            self._client = httpx2.AsyncClient(
                base_url=str(address).rstrip("/") + "/v1",
                headers=headers,
                timeout=httpx2.Timeout(ANSWER, connect=10.0),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
                follow_redirects=False,
            )

    def __repr__(self) -> str:
        return f"<HTTPTransport {self.url}>"

    async def call(self, request: RemoteRequest) -> Any:
        with _lost():
            async with self._sent(to_http(request), ANSWER + request.wait) as answer:
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
    async def _sent(self, form: HTTPForm, seconds: float) -> AsyncGenerator[httpx2.Response, None]:
        """One request on its way, and the head of its answer."""
        url = f"{form.path}?{form.query}" if form.query else form.path
        timeout = httpx2.Timeout(ANSWER, connect=10.0, read=seconds)
        async with self._client.stream(
            form.verb, url, headers=form.headers, content=form.body, timeout=timeout
        ) as answer:
            yield answer

    async def aclose(self) -> None:
        await self._client.aclose()


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
        raise ConnectionLost(f"{type(error).__name__}: {telling_text(error)}", was_sent=was_sent) from error


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
