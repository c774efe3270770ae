"""HTTP transport to a gateway: JSON requests, and streams of server-sent events."""

import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import httpx2
import orjson
import trio

from actgent.client.transport_interface import ConnectionLost, Events, RemoteRequest, Transport
from actgent.errors import ConfigurationError, UsageError
from actgent.llm.http.sse import EventTooLarge
from actgent.support.proxy_environment_validation import reading_environment
from actgent.support.user_code_calls import explained_text

from .http_request import (
    EVENT_STREAM_TYPE,
    NO_CONTENT,
    REPEATED_HEADER,
    RETRY_TIMEOUT_HEADER,
    HTTPRequest,
    parse_problem,
    parse_response,
    to_http,
)
from .sse import decode_events

ANSWER_SECONDS = 30.0
"""Read timeout of an answer in seconds. The long-poll time of the request is added to it."""
STREAM_SILENCE_SECONDS = 45.0
"""Seconds without a byte after which a stream counts as lost; the gateway sends a keep-alive every 15 s."""
CONNECT_SECONDS = 10.0
"""Connect timeout in seconds."""
GATEWAY_SHARE = 0.9
"""Fraction of the remaining time that a gateway may use, so that its answer arrives before the client's timeout."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum size of one answer in bytes."""
_IDENTITY = "identity"
_HOST = re.compile(r"\w[\w.-]*|[\da-fA-F.]*:[\da-fA-F:.]*(%[\w.-]+)?")
_UNAVAILABLE_STATUSES = (502, 503, 504)
"""HTTP statuses after which the next request goes to the next gateway."""
PROBE_SECONDS = 10.0
"""Timeout in seconds of one probe of a gateway."""
PROBE_PAUSES = 0.0, 0.1, 0.4
"""Pauses in seconds before each probe. There are several probes, because the first may reach a process that is ending,
or use an idle connection to it.
"""
_PROBE_ERRORS = httpx2.RequestError, httpx2.StreamError, EventTooLarge, ValueError, AttributeError
_PROBE = HTTPRequest(verb="GET", path="/health/live", query="", headers={}, body=None)
_BROKEN_ERRORS = (httpx2.ReadError, httpx2.RemoteProtocolError)
_received_sizes: ContextVar[list[int]] = ContextVar("_received_sizes")
"""Sizes in bytes of all reads for the current task's request; empty if no byte of an answer has arrived."""
_NOT_SENT_ERRORS = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class HTTPTransport(Transport):
    """Transport that sends requests over HTTP/1.1 to one gateway, or to one of several gateways of a cluster.

    Args:
        url: Address of a gateway without `/v1`, for example `https://agents.example.com`, or a list of addresses. After a
            lost connection, requests are sent to the next address of the list.
        token: Access token, as `actgent token new` prints it.
        owner: Owner on whose behalf requests are sent, with a token that has the scope `impersonate:`; None for the token's
            owner.

    Raises:
        ConfigurationError: An address is not an HTTP URL, or the token is missing or not printable ASCII.
    """

    def __init__(self, url: str | Sequence[str], *, token: str | None, owner: str | None = None) -> None:
        addresses = [
            _parse_address(each) for each in ([url] if isinstance(url, str) else _check_addresses(url))
        ]
        if token is None:
            raise ConfigurationError(
                "token= is missing: pass the token of a gateway, which `actgent token new` creates"
            )
        if not isinstance(token, str) or not (token.isascii() and token.isprintable() and token.strip()):  # type: ignore[redundant-expr]
            raise ConfigurationError(
                "token= must be the printable ASCII text that `actgent token new` prints"
            )
        self.url = str(addresses[0]).rstrip("/") if not isinstance(url, str) else url
        """Address of the first gateway."""
        headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
        if owner is not None:
            headers["actgent-owner"] = owner
        with reading_environment():
            self._client = httpx2.AsyncClient(
                headers=headers,
                timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
                follow_redirects=False,
            )
        self._bases = [f"{str(address).rstrip('/')}/v1" for address in addresses]
        self._current = 0
        """Index of the gateway to which the next request goes."""

    def __repr__(self) -> str:
        return f"<HTTPTransport {self.url}>"

    async def call(self, request: RemoteRequest) -> Any:
        with _convert_errors():
            seconds = min(ANSWER_SECONDS, request.accept_timeout) + request.wait
            async with self._open_response(
                to_http(request), seconds, accept_timeout=request.accept_timeout
            ) as answer:
                data = await _read(answer)
        return parse_response(
            request,
            answer.status_code,
            data,
            is_repeated=REPEATED_HEADER in answer.headers,
            headers=answer.headers,
        )

    @asynccontextmanager
    async def events(self, request: RemoteRequest) -> AsyncGenerator[Events | None, None]:
        with _convert_errors():
            async with self._open_response(
                to_http(request, accept=EVENT_STREAM_TYPE), STREAM_SILENCE_SECONDS
            ) as answer:
                if not answer.is_success:
                    raise parse_problem(answer.status_code, await _read(answer), answer.headers)
                if answer.status_code == NO_CONTENT:
                    yield None
                    return
                if not answer.headers.get("content-type", "").startswith(EVENT_STREAM_TYPE):
                    text = "the response is not an event stream: check that the address is that of an actgent gateway"
                    raise ConnectionLost(text, was_sent=True)
                yield decode_events(answer.aiter_bytes())

    @asynccontextmanager
    async def download(self, request: RemoteRequest) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
        with _convert_errors():
            async with self._open_response(to_http(request, accept="*/*"), STREAM_SILENCE_SECONDS) as answer:
                if not answer.is_success:
                    raise parse_problem(answer.status_code, await _read(answer), answer.headers)
                if answer.headers.get("content-encoding", _IDENTITY) != _IDENTITY:
                    text = "a proxy compressed the file, so that a truncated file is not detected: switch its compression off"
                    raise ConnectionLost(text, was_sent=True)
                yield _chunks(answer.aiter_bytes())

    @asynccontextmanager
    async def _open_response(
        self, request: HTTPRequest, seconds: float, *, accept_timeout: float = math.inf
    ) -> AsyncGenerator[httpx2.Response, None]:
        """Send a request, and yield the response as soon as its headers have arrived.

        `seconds` is the read timeout, and `accept_timeout` the seconds in which a node must accept the request. If the
        connection is lost, the next request is sent to the next gateway.

        Raises:
            UsageError: The client is closed.
        """
        if self._client.is_closed:
            raise UsageError(
                "the client is closed: use the client only inside its block `async with connect(...)`"
            )
        index = self._current
        url = f"{self._bases[index]}{request.path}" + (f"?{request.query}" if request.query else "")
        timeout = httpx2.Timeout(ANSWER_SECONDS, connect=min(CONNECT_SECONDS, accept_timeout), read=seconds)
        headers = request.headers
        if math.isfinite(accept_timeout):
            headers = {**headers, RETRY_TIMEOUT_HEADER: f"{accept_timeout * GATEWAY_SHARE:.3f}"}
        _received_sizes.set([])
        try:
            async with self._client.stream(
                request.verb,
                url,
                headers=headers,
                content=request.body,
                timeout=timeout,
                extensions={"trace": _count_received_bytes},
            ) as answer:
                if answer.status_code in _UNAVAILABLE_STATUSES:
                    self._switch_gateway(index)
                yield answer
        except (httpx2.RequestError, httpx2.StreamError, trio.Cancelled):
            self._switch_gateway(index)
            raise

    def _switch_gateway(self, index: int) -> None:
        """Switch from the gateway address `index` to the next one. Do nothing if another task has already switched."""
        if self._current == index:
            self._current = (index + 1) % len(self._bases)

    async def is_up(self) -> bool:
        return await self._probe() is not None

    async def calm_seconds(self) -> float:
        known = await self._probe()
        return 0.0 if known is None else known

    async def _probe(self) -> float | None:
        """Ask a gateway for the seconds since a node of the cluster died; infinite if the gateway does not report them.

        Return None if no gateway answers.
        """
        for pause in PROBE_PAUSES:
            await trio.sleep(pause)
            with suppress(*_PROBE_ERRORS):
                async with self._open_response(_PROBE, PROBE_SECONDS, accept_timeout=PROBE_SECONDS) as answer:
                    if answer.is_success:
                        return float(orjson.loads(await _read(answer)).get("calm_seconds", math.inf))
        return None

    async def aclose(self) -> None:
        await self._client.aclose()


async def _count_received_bytes(event: str, info: Mapping[str, Any]) -> None:
    """Make each new connection add the sizes of its reads to `_received_sizes`. A callback of httpcore2's `trace` extension.

    The exceptions of httpcore2 do not show whether a connection ended before a response or within the response's headers.
    """
    if not event.endswith(("connect_tcp.complete", "start_tls.complete")):
        return
    stream = info["return_value"]
    read = stream.read

    async def read_and_count(*args: Any, **kwargs: Any) -> bytes:
        data: bytes = await read(*args, **kwargs)
        if data:
            _received_sizes.get([]).append(len(data))
        return data

    stream.read = read_and_count


def _check_addresses(urls: Sequence[str]) -> Sequence[str]:
    """Check that `urls` is a sequence of at least one address, and return it.

    Raises:
        ConfigurationError: `urls` is empty, or not a sequence.
    """
    if not isinstance(urls, Sequence) or not urls:  # type: ignore[redundant-expr]
        raise ConfigurationError(
            f"url= must be the address of a gateway or a list of addresses, not {urls!r:.200}"
        )
    return urls


def _parse_address(url: str) -> httpx2.URL:
    """Parse the address of a gateway.

    Raises:
        ConfigurationError: The address is not an HTTP URL, or it contains a query or a user.
    """
    try:
        address = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError):
        address = httpx2.URL("")
    is_host = _HOST.fullmatch(address.host) is not None
    if address.scheme not in ("http", "https") or not is_host or address.query or address.userinfo:
        raise ConfigurationError(
            f"url= must be the address of a gateway, such as https://agents.example.com, not {url!r:.200}; "
            "pass the token as token="
        )
    return address


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Convert exceptions of httpx2 in the `with` block to `ConnectionLost`."""
    try:
        yield
    except (httpx2.RequestError, httpx2.StreamError, EventTooLarge) as error:
        was_sent = not isinstance(error, _NOT_SENT_ERRORS)
        is_broken = isinstance(error, _BROKEN_ERRORS) and not _received_sizes.get([])
        raise ConnectionLost(
            f"{type(error).__name__}: {explained_text(error)}", was_sent=was_sent, is_broken=is_broken
        ) from error


async def _chunks(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a response body.

    Unlike the iterator of httpx2, this generator can be closed by the caller.
    """
    async for chunk in chunks:
        yield chunk


async def _read(answer: httpx2.Response) -> bytes:
    """Read the whole body of a response. Raise `EventTooLarge` if the body has more than `MAX_ANSWER_BYTES`."""
    data = bytearray()
    async for chunk in answer.aiter_bytes():
        data += chunk
        if len(data) > MAX_ANSWER_BYTES:
            raise EventTooLarge(f"a response of the server must have at most {MAX_ANSWER_BYTES} bytes")
    return bytes(data)
