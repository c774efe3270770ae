"""Size limit of HTTP responses of MCP servers, equal to that of messages over pipes. Compressed responses are rejected.

The SDK limits single events of an event stream, but reads any other response to its end.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2

from actgent.errors import ToolError

_SESSION = "mcp-session-id"
_NOT_FOUND = 404


class SessionExpired(ToolError):
    """The server no longer knows the session of a call, so the call did not run."""


class ResponseTooLong(httpx2.StreamError):
    """A response is longer than a message may be, or compressed. The SDK handles it like an unreadable response."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class BoundedTransport(httpx2.AsyncBaseTransport):
    """HTTP transport that limits the size of responses, except of event streams, whose events the SDK limits."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, most: int, *, on_session_end: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._most = most
        self._on_session_end = on_session_end

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        response = await self._inner.handle_async_request(request)
        if response.status_code == _NOT_FOUND and _SESSION in request.headers and request.method != "DELETE":
            self._on_session_end()
        stream: Any = response.stream
        kind = response.headers.get("content-type", "")
        is_packed = response.headers.get("content-encoding", "identity").strip().lower() not in (
            "",
            "identity",
        )
        if is_packed or not kind.startswith("text/event-stream"):
            response.stream = _Bounded(stream, 0 if is_packed else self._most)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, most: int) -> None:
        self._inner = inner
        self._left = most
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            self._left -= len(piece)
            if self._left < 0:
                reason = (
                    f"is longer than {self._most:,} bytes"
                    if self._most
                    else "is packed, which was not asked for"
                )
                raise ResponseTooLong(f"the server's response {reason}")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()
