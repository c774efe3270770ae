"""HTTP client of `actgent top`, `watch` and `webhooks`."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import attrs
import httpx2
import orjson
import trio

from actgent.errors import UsageError
from actgent.support.user_code_calls import explained_text

from .server_or_journal_options import TOKEN_VARIABLE, ServerOptions

TIMEOUT_SECONDS = 30.0
"""Time in seconds without data from the server after which a connection is lost. Servers send a heartbeat every 15 s."""
MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.5, 15.0
"""Shortest and longest pause between two reconnects, in seconds."""
"""First pause before a reconnect, in seconds."""
UNAUTHORIZED, NOT_FOUND = 401, 404
"""HTTP statuses of a request without a valid token and of a missing resource."""
"""HTTP status of an unknown token."""


class SessionNotOnServer(UsageError):
    """The server responded with status 404: the resource does not exist, or the token cannot access it."""


class RemoteUnreachable(Exception):
    """The server cannot be reached, or the connection was lost."""


@attrs.frozen
class ServerEvent:
    """One server-sent event."""

    name: str
    """Type of the event, such as `reply`."""
    data: Mapping[str, Any]
    """Decoded JSON data of the event."""
    id: str | None = None
    """Id of the event, a record number; None for events without a record, such as tokens."""


class RemoteServer:
    """HTTP client of a running `actgent serve`."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def get(self, path: str, **query: str | int) -> Any:
        """Send a GET request and return the decoded JSON of the response.

        Raises:
            UsageError: The server rejects the request; the error has the server's message.
            RemoteUnreachable: The server cannot be reached.
        """
        return await self._request("GET", path, params=query)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a POST request with a JSON body and return the decoded JSON of the response.

        Raises:
            UsageError: The server rejects the request; the error has the server's message.
            RemoteUnreachable: The server cannot be reached.
        """
        return await self._request("POST", path, json=dict(body))

    async def _request(self, method: str, path: str, **body: Any) -> Any:
        try:
            response = await self._client.request(
                method, f"/v1{path}", headers={"accept": "application/json"}, **body
            )
        except httpx2.HTTPError as error:
            raise RemoteUnreachable(f"{self._client.base_url} does not answer ({_describe(error)})") from None
        return _parse_answer(response, response.content)

    async def events(self, path: str, after: str) -> AsyncIterator[ServerEvent]:
        """Yield the server-sent events of a stream after the event id `after`, until the connection ends.

        Raises:
            UsageError: The server rejects the request; the error has the server's message.
            RemoteUnreachable: The server cannot be reached, or the connection broke.
        """
        headers = {"accept": "text/event-stream", "last-event-id": after}
        try:
            async with self._client.stream("GET", f"/v1{path}", headers=headers) as response:
                if not response.is_success:
                    _parse_answer(response, await response.aread())
                async for event in _parse_events(response.aiter_lines()):
                    yield event
        except httpx2.HTTPError as error:
            raise RemoteUnreachable(
                f"{self._client.base_url} closed the connection ({_describe(error)})"
            ) from None


def _describe(error: httpx2.HTTPError) -> str:
    """Describe an HTTP error by its class, and for connection errors also by its text.

    Texts of other errors may contain a header with the token.
    """
    name = type(error).__name__
    return f"{name}: {explained_text(error)}" if isinstance(error, httpx2.ConnectError) else name


def path_of(*segments: str) -> str:
    """Join texts such as session ids to a URL path. Each one is quoted, so that it stays one path segment."""
    return "".join(f"/{quote(each, safe='')}" for each in segments)


def _parse_answer(response: httpx2.Response, body: bytes) -> Any:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = {}
    if response.is_success:
        return document
    if response.status_code == UNAUTHORIZED:
        raise UsageError(
            f"the server rejected the token (401): it is wrong, expired, or belongs to another server; check {TOKEN_VARIABLE} or --token-file"
        )
    detail = document.get("detail") or document.get("title") if isinstance(document, dict) else None
    error = SessionNotOnServer if response.status_code == NOT_FOUND else UsageError
    raise error(f"the server answered {response.status_code}: {detail or 'without an error message'}")


async def _parse_events(lines: AsyncIterator[str]) -> AsyncIterator[ServerEvent]:
    """Parse the lines of an event stream (HTML standard, section 9.2)."""
    name, data, number = "message", list[str](), None
    async for line in lines:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield ServerEvent(name, orjson.loads("\n".join(data)), number)
            name, data, number = "message", [], None
        elif field == "data":
            data.append(value)
        elif field == "event":
            name = value
        elif field == "id":
            number = value


@asynccontextmanager
async def open_remote(options: ServerOptions) -> AsyncGenerator[RemoteServer, None]:
    """Yield an HTTP client of the server in the options. It sends the access token with each request.

    Raises:
        ConfigurationError: The access token is missing.
    """
    headers = {"authorization": f"Bearer {options.token()}"}
    async with httpx2.AsyncClient(
        base_url=options.url, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False
    ) as client:
        yield RemoteServer(client)


class Backoff:
    """Exponentially growing pauses between attempts to reconnect."""

    def __init__(self) -> None:
        self._seconds = MIN_BACKOFF_SECONDS

    def reset(self) -> None:
        """Set the next pause to the shortest one, after a successful request."""
        self._seconds = MIN_BACKOFF_SECONDS

    async def wait(self) -> None:
        """Sleep for the current pause, and double the next pause."""
        await trio.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, MAX_BACKOFF_SECONDS)
