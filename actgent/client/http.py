"""The way to a gateway over HTTP: JSON, and streams of server-sent events."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import quote

import httpx2
import orjson

from actgent.errors import ConfigurationError
from actgent.llm.http.sse import EventTooLarge

from .sse import StreamDecoder
from .transport import ConnectionLost, Events, Operation, Refused, RemoteRequest, StreamEvent, Transport

PATHS: Mapping[Operation, tuple[str, str]] = {
    "cancel_task": ("DELETE", "/sessions/{session}/tasks/{part}"),
    "close": ("POST", "/sessions/{session}/close"),
    "delegate": ("POST", "/sessions/{session}/tasks"),
    "erase": ("DELETE", "/sessions/{session}"),
    "get_agent": ("GET", "/agents/{part}"),
    "get_approvals": ("GET", "/approvals"),
    "get_events": ("GET", "/sessions/{session}/events"),
    "get_message": ("GET", "/sessions/{session}/messages/{part}"),
    "get_messages": ("GET", "/sessions/{session}/messages"),
    "get_observations": ("GET", "/sessions/{session}/observations"),
    "get_session": ("GET", "/sessions/{session}"),
    "get_state": ("GET", "/sessions/{session}/state"),
    "interrupt": ("POST", "/sessions/{session}/interrupt"),
    "list_agents": ("GET", "/agents"),
    "list_of_session": ("GET", "/sessions/{session}/approvals"),
    "list_schedules": ("GET", "/sessions/{session}/schedules"),
    "list_sessions": ("GET", "/sessions"),
    "post_decision": ("POST", "/approvals/{part}/decision"),
    "post_session": ("POST", "/sessions"),
    "put_mode": ("PUT", "/sessions/{session}/mode"),
    "put_session": ("PUT", "/sessions/{session}"),
    "say": ("POST", "/sessions/{session}/messages"),
    "schedule": ("POST", "/sessions/{session}/schedules"),
    "unschedule": ("DELETE", "/sessions/{session}/schedules/{part}"),
}
"""Verb and path of each operation, as in the gateway's description."""
_MADE = ("put_session", "post_session", "list_sessions", "get_approvals")
"""Operations whose body or query says the agent, if any."""
ANSWER = 30.0
"""Seconds for which an answer may be awaited, besides those that the server was asked to wait."""
SILENCE = 45.0
"""Seconds without a sign of life after which a stream counts as cut; the gateway gives one every 15 s."""
MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of one answer."""
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_CREATED, _NO_CONTENT = 201, 204
_FIRST_ERROR = 400
_KINDS = {502: "unavailable", 503: "unavailable", 504: "unavailable", 429: "too-many-requests"}
"""What errors of proxies are, which say nothing of ours."""


class HTTPTransport(Transport):
    """A gateway over HTTP/1.1.

    Args:
        url: Where the gateway is: `https://agents.example.com`, without the `/v1`.
        token: As `actgent token new` shows it once.
        owner: For whom it acts, with a token that has the scope `impersonate:`.
    """

    def __init__(self, url: str, *, token: str, owner: str | None = None) -> None:
        address = _checked(url)
        if not (token.isascii() and token.isprintable() and token.strip()):
            raise ConfigurationError("token= is the text that `actgent token new` shows, not something else")
        self.url = url
        headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
        if owner is not None:
            headers["actgent-owner"] = owner
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
            async with self._sent(request, {"accept": "application/json"}, ANSWER + request.wait) as answer:
                data = await _read(answer)
        if answer.status_code >= _FIRST_ERROR:
            raise _refused(answer.status_code, data)
        found: Any = _decoded(data) if data else None
        if request.operation == "put_session":
            found["is_new"] = answer.status_code == _CREATED
        return found

    @asynccontextmanager
    async def events(self, request: RemoteRequest) -> AsyncGenerator[Events | None, None]:
        with _lost():
            async with self._sent(request, {"accept": "text/event-stream"}, SILENCE) as answer:
                if answer.status_code >= _FIRST_ERROR:
                    raise _refused(answer.status_code, await _read(answer))
                yield None if answer.status_code == _NO_CONTENT else _events(answer.aiter_bytes())

    @asynccontextmanager
    async def _sent(
        self, request: RemoteRequest, headers: Mapping[str, str], seconds: float
    ) -> AsyncGenerator[httpx2.Response, None]:
        """One request on its way, and the head of its answer."""
        verb, path = PATHS[request.operation]
        place = path.format(session=quote(request.session_id, safe=""), part=quote(request.part, safe=""))
        query = dict(request.query)
        if request.agent and request.operation not in _MADE and "{session}" in path:
            query["agent"] = request.agent
        more = dict(headers)
        if request.wait:
            more["prefer"] = f"wait={request.wait:.0f}"
        if request.key:
            more["idempotency-key"] = request.key
        body = None if verb in ("GET", "DELETE") else orjson.dumps(dict(request.body or {}))
        if body is not None:
            more["content-type"] = "application/json"
        timeout = httpx2.Timeout(ANSWER, connect=10.0, read=seconds)
        async with self._client.stream(
            verb, place, params=query, headers=more, content=body, timeout=timeout
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
    if address.scheme not in ("http", "https") or not address.host or address.query or address.userinfo:
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
        raise ConnectionLost(f"{type(error).__name__}: {error}", was_sent=was_sent) from error


async def _events(pieces: AsyncIterator[bytes]) -> AsyncGenerator[StreamEvent | None, None]:
    decoder = StreamDecoder()
    async for piece in pieces:
        yield None
        for event in decoder.feed(piece):
            yield event


async def _read(answer: httpx2.Response) -> bytes:
    data = bytearray()
    async for piece in answer.aiter_bytes():
        data += piece
        if len(data) > MAX_ANSWER:
            raise EventTooLarge(f"an answer has more than {MAX_ANSWER} bytes")
    return bytes(data)


def _decoded(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise ConnectionLost("the answer is no JSON: perhaps this is no gateway", was_sent=True) from None


def _refused(status: int, data: bytes) -> Refused:
    """The problem (RFC 9457) that an answer is, or what its status says."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("type"), str):
        return Refused(_KINDS.get(status, "other"), f"HTTP status {status}", status=status, fields={})
    kind, detail = document["type"].rpartition("/")[2], document.get("detail") or document.get("title", "")
    return Refused(kind, str(detail), status=status, fields=document)
