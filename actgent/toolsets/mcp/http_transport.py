"""HTTP transport to an MCP server: limits the size of responses, repairs them, and turns failures into errors of one call.

The SDK accepts only valid messages, and drops the status and the text of an error response. An exception of the transport would
end the connection and every running call. Compressed responses are rejected.
"""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import mcp_types

from actgent.errors.text_escaping import shown
from actgent.support.safe_logging import logger_of
from actgent.support.user_code_calls import explained_text

from .message_repair import error_response, read_messages

MAX_ERROR_CHARACTERS = 300
"""Maximum number of characters of the text of an error response."""
LOST = "Connection closed"
"""Start of the message of an error if the connection was lost after the request was sent, as in the SDK."""
_SESSION = "mcp-session-id"
_EVENTS = "text/event-stream"
_NOT_FOUND = 404
_FIRST_ERROR_STATUS = 400
_FIRST_SERVER_ERROR_STATUS = 500
_PASSED_STATUSES = (202, 301, 302, 303, 307, 308)
"""HTTP statuses of responses that the SDK handles: no response, and redirects."""
_log = logger_of(__name__)


class RepairingTransport(httpx2.AsyncBaseTransport):
    """HTTP transport that gives the SDK one valid response to each request of the MCP protocol."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, max_bytes: int, *, on_unreachable: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self._on_unreachable = on_unreachable

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        if _EVENTS not in request.headers.get("accept", ""):  # authorization
            response = await self._inner.handle_async_request(request)
            response.stream = _BoundedStream(response.stream, self._max_bytes)
            return response
        number = json.loads(await request.aread()).get("id") if request.method == "POST" else None
        try:
            return await self._repair_response(
                await self._inner.handle_async_request(request), request, number
            )
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            self._on_unreachable()
            return _make_error_response(502, number, f"the server cannot be reached: {explained_text(error)}")
        except (httpx2.TransportError, ResponseTooLong) as error:
            is_lost = isinstance(error, httpx2.TransportError)
            message = f"{LOST}: {explained_text(error)}" if is_lost else str(error)
            code = mcp_types.CONNECTION_CLOSED if is_lost else mcp_types.INTERNAL_ERROR
            return _make_error_response(502, number, message, code=code)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _repair_response(
        self, response: httpx2.Response, request: httpx2.Request, number: Any
    ) -> httpx2.Response:
        """Return the response, or one that replaces it, with a body of valid JSON-RPC messages only.

        An invalid answer to a request becomes a JSON-RPC error. `number` is the JSON-RPC id of the request; None if the client
        sent no request, for example a notification.
        """
        status, kind = response.status_code, response.headers.get("content-type", "").lower()
        encoding = response.headers.get("content-encoding", "").strip().lower()
        is_compressed = encoding not in ("", "identity")
        stream: Any = response.stream
        if kind.startswith(_EVENTS) and status < _FIRST_ERROR_STATUS and not is_compressed:
            response.stream = _RepairedEvents(stream, number, self._max_bytes)
            return response
        response.stream = _BoundedStream(stream, 0 if is_compressed else self._max_bytes)
        if number is None or status in _PASSED_STATUSES:
            return response
        try:
            body = b"".join([piece async for piece in response.stream])
        finally:
            await response.aclose()
        reason = _error_text(response, body)
        if status == _NOT_FOUND and _SESSION in request.headers:
            return _make_error_response(status, number, f"session not found: {reason}", response)
        reply = _find_response(body, number)
        if status < _FIRST_ERROR_STATUS and reply is None:
            reason = f"the response is not a JSON-RPC response to the request: {reason}"
            return _make_error_response(status, number, reason, response)
        if reply is None or (status >= _FIRST_ERROR_STATUS and not isinstance(reply, mcp_types.JSONRPCError)):
            return _make_error_response(status, number, reason, response)
        reply.id = number
        return _make_response(status, _dump(reply), response)


def _make_error_response(
    status: int,
    number: Any,
    message: str,
    response: httpx2.Response | None = None,
    *,
    code: int | None = None,
) -> httpx2.Response:
    """Return a response with a JSON-RPC error. `response` has the headers to keep; None if the server sent no response."""
    is_request_error = _FIRST_ERROR_STATUS <= status < _FIRST_SERVER_ERROR_STATUS
    default = mcp_types.INVALID_REQUEST if is_request_error else mcp_types.INTERNAL_ERROR
    error = error_response(number, message, code=default if code is None else code)
    return _make_response(status, json.dumps(error).encode(), response)


def _make_response(status: int, body: bytes, response: httpx2.Response | None) -> httpx2.Response:
    headers = httpx2.Headers() if response is None else httpx2.Headers(response.headers)
    for name in ("content-length", "content-encoding", "transfer-encoding"):
        headers.pop(name, None)
    headers["content-type"] = "application/json"
    return httpx2.Response(status, headers=headers, content=body)


def _error_text(response: httpx2.Response, body: bytes) -> str:
    """Return the status of an error response, the time to wait before a retry, and the text of the body unless it is HTML."""
    kind = response.headers.get("content-type", "").lower()
    phrase = httpx2.codes.get_reason_phrase(response.status_code)
    parts = [f"HTTP {response.status_code} {phrase}".strip()]
    if wait := response.headers.get("retry-after"):
        parts.append(f"retry after {shown(wait[:40])}")
    text = kind if "html" in kind else body.decode("utf-8", "replace").strip()[:MAX_ERROR_CHARACTERS]
    return ": ".join(filter(None, ["; ".join(parts), text]))


def _find_response(body: bytes, number: Any) -> mcp_types.JSONRPCResponse | mcp_types.JSONRPCError | None:
    """Find the JSON-RPC response to the request with the id `number` in the body of an HTTP response.

    Return None if the body does not contain this response.
    """
    try:
        messages = read_messages(body)
    except ValueError:
        return None
    for each in messages:
        if isinstance(each, mcp_types.JSONRPCResponse | mcp_types.JSONRPCError) and _belongs(each, number):
            return each
    return None


def _belongs(message: mcp_types.JSONRPCResponse | mcp_types.JSONRPCError, number: Any) -> bool:
    """Return True if a response belongs to the request with the id `number`. An error without an id also belongs to it."""
    return str(message.id) == str(number) or (
        message.id is None and isinstance(message, mcp_types.JSONRPCError)
    )


def _dump(message: mcp_types.JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


class ResponseTooLong(httpx2.StreamError):
    """A response is longer than a message may be, or compressed."""


class _BoundedStream(httpx2.AsyncByteStream):
    """Body of a response, with a limit on its size."""

    def __init__(self, inner: Any, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._max_bytes
        async for piece in self._inner:
            left -= len(piece)
            if left < 0:
                reason = (
                    f"is longer than {self._max_bytes:,} bytes"
                    if self._max_bytes
                    else "is compressed, although the request asked for an uncompressed one"
                )
                raise ResponseTooLong(f"the server's response {reason}")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


class _RepairedEvents(httpx2.AsyncByteStream):
    """Event stream of a response with only valid messages, and without responses to other requests.

    An event at the end of the stream without the empty line after it is complete if its data is a message.
    """

    def __init__(self, inner: Any, number: Any, max_bytes: int) -> None:
        self._inner = inner
        self._number = number
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        event: list[bytes] = []
        begun = bytearray()
        async for piece in self._inner:
            *ends, rest = piece.split(b"\n")
            for end in ends:
                line = bytes(begun + end).rstrip(b"\r")
                begun.clear()
                if line:
                    event.append(line)
                elif event:
                    yield self._repair(event)
                    event = []
            begun += rest
            if len(begun) + sum(map(len, event)) > self._max_bytes:
                raise httpx2.SSEError(f"the server's message is longer than {self._max_bytes:,} bytes")
        if begun:
            yield self._repair([*event, bytes(begun)])
        elif event:
            yield self._repair(event)

    def _repair(self, event: list[bytes]) -> bytes:
        data = b"\n".join(
            line.removeprefix(b"data:").removeprefix(b" ") for line in event if line.startswith(b"data:")
        )
        if not data.strip():
            return b"\n".join(event) + b"\n\n"
        try:
            messages = read_messages(data)
        except ValueError:
            _log.warning(
                "an MCP server sent an event that is not a message: %s",
                shown(data[:200].decode(errors="replace")),
            )
            return b""
        kept = [line for line in event if line.startswith((b"id", b"retry"))]
        return b"".join(
            b"\n".join([*kept, b"data: " + _dump(each)]) + b"\n\n"
            for each in messages
            if self._number is None
            or not isinstance(each, mcp_types.JSONRPCResponse | mcp_types.JSONRPCError)
            or _belongs(each, self._number)
        )

    async def aclose(self) -> None:
        await self._inner.aclose()
