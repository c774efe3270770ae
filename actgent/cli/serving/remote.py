"""A running server, as `actgent top` and `actgent watch` ask it."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import attrs
import httpx2
import orjson
import trio

from actgent.errors import UsageError
from actgent.support.foreign import telling_text

from .place import TOKEN, PlaceOptions

TIMEOUT = 30.0
"""Seconds without anything from the server, which tells every 15 s that it is there."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
UNKNOWN, MISSING = 401, 404


class NotThere(UsageError):
    """The server has nothing at an address, or the token does not reach it."""


class Lost(Exception):
    """The server cannot be reached, or broke off."""


@attrs.frozen
class ServerEvent:
    """One event of a stream."""

    name: str
    data: Mapping[str, Any]
    id: str | None = None


class RemoteServer:
    """A server that is asked."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def get(self, path: str, **query: str | int) -> Any:
        """What an address answers.

        Raises:
            UsageError: it refuses; the words are the server's.
            Lost: it cannot be reached.
        """
        return await self._ask("GET", path, params=query)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """What an address answers to a body.

        Raises:
            UsageError, Lost: see `get`.
        """
        return await self._ask("POST", path, json=dict(body))

    async def _ask(self, verb: str, path: str, **sent: Any) -> Any:
        try:
            response = await self._client.request(
                verb, f"/v1{path}", headers={"accept": "application/json"}, **sent
            )
        except httpx2.HTTPError as error:
            raise Lost(f"{self._client.base_url} does not answer ({_why(error)})") from None
        return _checked(response, response.content)

    async def events(self, path: str, after: str) -> AsyncIterator[ServerEvent]:
        """The events of a stream behind a number, to the end of the connection.

        Raises:
            UsageError, Lost: see `get`.
        """
        headers = {"accept": "text/event-stream", "last-event-id": after}
        try:
            async with self._client.stream("GET", f"/v1{path}", headers=headers) as response:
                if not response.is_success:
                    _checked(response, await response.aread())
                async for event in _parsed(response.aiter_lines()):
                    yield event
        except httpx2.HTTPError as error:
            raise Lost(f"{self._client.base_url} broke off ({_why(error)})") from None


def _why(error: httpx2.HTTPError) -> str:
    """What went wrong; of what may quote a header with a token, only its class."""
    name = type(error).__name__
    return f"{name}: {telling_text(error)}" if isinstance(error, httpx2.ConnectError) else name


def path_of(*segments: str) -> str:
    """An address of ids, each in one segment."""
    return "".join(f"/{quote(each, safe='')}" for each in segments)


def _checked(response: httpx2.Response, body: bytes) -> Any:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = {}
    if response.is_success:
        return document
    if response.status_code == UNKNOWN:
        raise UsageError(
            f"the server does not know this token (401): it is wrong, too old, or another server's; look at {TOKEN} or --token-file"
        )
    said = document.get("detail") or document.get("title") if isinstance(document, dict) else None
    error = NotThere if response.status_code == MISSING else UsageError
    raise error(f"the server answered {response.status_code}: {said or 'nothing that can be read'}")


async def _parsed(lines: AsyncIterator[str]) -> AsyncIterator[ServerEvent]:
    """Events of a stream, by the HTML standard, section 9.2."""
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
async def open_remote(options: PlaceOptions) -> AsyncGenerator[RemoteServer, None]:
    """A server, for the block.

    Raises:
        ConfigurationError: there is no token.
    """
    headers = {"authorization": f"Bearer {options.token()}"}
    async with httpx2.AsyncClient(
        base_url=options.url, headers=headers, timeout=TIMEOUT, trust_env=False
    ) as client:
        yield RemoteServer(client)


class GrowingPauses:
    """Growing pauses between attempts to reach a server again."""

    def __init__(self) -> None:
        self._next = FIRST_PAUSE

    def reset(self) -> None:
        """It was reached."""
        self._next = FIRST_PAUSE

    async def wait(self) -> None:
        """Wait for the next attempt."""
        await trio.sleep(self._next)
        self._next = min(2 * self._next, LONGEST_PAUSE)
