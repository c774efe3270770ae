"""Bounds on what a server answers over HTTP: no more bytes in a message than over pipes, and none that are packed.

The SDK bounds an event of a stream by itself; an answer that is one body it would read to its end.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2

from actgent.errors import ToolError

_SESSION = "mcp-session-id"
_NOT_FOUND = 404


class SessionForgotten(ToolError):
    """The server does not know the session of a call any more, so the call did not run."""


class AnswerTooLong(httpx2.StreamError):
    """A server's answer is longer than a message may be, or packed; the SDK takes it as an answer that cannot be read."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Another transport, whose answers are bounded, but for streams of events."""

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
                why = (
                    f"is longer than {self._most:,} bytes"
                    if self._most
                    else "is packed, which was not asked for"
                )
                raise AnswerTooLong(f"the server's answer {why}")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()
