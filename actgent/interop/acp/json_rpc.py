"""JSON-RPC 2.0 over two byte streams: one JSON object on each line, requests in both directions."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import orjson
import trio

from actgent.interop.line_reader import MAX_LINE_BYTES, read_lines
from actgent.support.safe_logging import logger_of
from actgent.support.strict_json import encode_json

MAX_REQUESTS = 1000
"""Maximum number of open requests. Each request is a task."""
LAST_LINE_SECONDS = 1
"""Seconds that the peer has to read the last line before the stream is closed."""
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND = -32700, -32600, -32601
INVALID_PARAMS, INTERNAL_ERROR, NOT_FOUND = -32602, -32603, -32002

Wire = dict[str, Any]
RequestId = str | int | None
_log = logger_of(__name__)


class RPCError(Exception):
    """An error object of JSON-RPC, sent or received.

    Args:
        code: Number of the error.
        text: Description of the error.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


@attrs.frozen
class RPCRequest:
    """A request of the peer."""

    id: RequestId
    """Id of the request, chosen by the peer."""
    params: Mapping[str, Any]
    """Parameters by name; empty if there are none."""

    def text(self, name: str) -> str:
        """Return a parameter that is a text and not empty.

        Raises:
            RPCError: The parameter is missing, or is no such text.
        """
        value = self.params.get(name)
        if not isinstance(value, str) or not value or "\x00" in value:
            raise RPCError(INVALID_PARAMS, f"{name} is a string that is not empty")
        return value


Handler = Callable[[RPCRequest], Awaitable[Wire]]
"""Handler of a method. The call runs in the order of the requests; the returned awaitable runs in a task of the request."""
NotificationHandler = Callable[[Mapping[str, Any]], Awaitable[None]]


@attrs.define
class _Reply:
    """The response that a request of ours waits for."""

    arrived: trio.Event = attrs.field(factory=trio.Event)
    message: Mapping[str, Any] = attrs.field(factory=dict)


class JSONRPCConnection:
    """One JSON-RPC connection. Each request of the peer runs as a task, so that reading never waits for a handler."""

    def __init__(
        self,
        receive_stream: trio.abc.ReceiveStream,
        send_stream: trio.abc.SendStream,
        *,
        handlers: Mapping[str, Handler],
        notification_handlers: Mapping[str, NotificationHandler],
    ) -> None:
        """Keep the streams, and the handlers of requests and notifications by method."""
        self._receive_stream, self._send_stream = receive_stream, send_stream
        self._handlers, self._notification_handlers = handlers, notification_handlers
        self._send_lock = trio.Lock()
        self._replies: dict[RequestId, _Reply] = {}
        self._next_id = 0
        self._open_requests = 0
        self._nursery: trio.Nursery

    async def run(self) -> None:
        """Read requests until the peer closes its stream, then cancel the handlers that are running, and close the send stream."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                async for line in read_lines(self._receive_stream):
                    self._receive(line)
            except trio.BrokenResourceError:
                pass  # the peer is gone
            finally:
                nursery.cancel_scope.cancel()
                await self._finish_line()  # noqa: ASYNC102 - it shields itself, with a time limit

    async def _finish_line(self) -> None:
        """Wait until the line that is being sent is complete, and close the stream.

        Without the close, a shielded send could block forever.
        """
        try:
            with trio.move_on_after(LAST_LINE_SECONDS, shield=True):
                async with self._send_lock:
                    pass
        finally:
            await trio.aclose_forcefully(self._send_stream)

    def start(self, task: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Start a task in the background. It is cancelled when the connection ends."""
        self._nursery.start_soon(task, *arguments)

    async def start_ready(self, task: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Start a task in the background, and wait until it calls `task_status.started()`.

        It is cancelled when the connection ends.
        """
        await self._nursery.start(task, *arguments)

    async def notify(self, method: str, params: Wire) -> None:
        """Send a notification, a message to which the peer does not answer."""
        await self._send({"method": method, "params": params})

    async def request(self, method: str, params: Wire) -> Mapping[str, Any]:
        """Send a request and return its result.

        Raises:
            RPCError: The peer answers with an error.
        """
        self._next_id += 1
        request_id = self._next_id
        reply = self._replies[request_id] = _Reply()
        try:
            await self._send({"id": request_id, "method": method, "params": params})
            await reply.arrived.wait()
        finally:
            del self._replies[request_id]
        error, result = reply.message.get("error"), reply.message.get("result")
        if isinstance(error, Mapping):
            code = error.get("code")
            raise RPCError(code if isinstance(code, int) else INTERNAL_ERROR, str(error.get("message")))
        return result if isinstance(result, Mapping) else {}

    async def _send(self, message: Wire) -> None:
        """Send a message as one line. If the sender is cancelled, the line is either complete or not sent."""
        line = encode_json({"jsonrpc": "2.0", **message}) + b"\n"
        try:
            async with self._send_lock:
                with trio.CancelScope(shield=True):  # until `run` ends and closes the stream
                    await self._send_stream.send_all(line)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._nursery.cancel_scope.cancel()  # the peer does not read the output any more

    async def _send_error(self, request_id: RequestId, error: RPCError) -> None:
        await self._send({"id": request_id, "error": {"code": error.code, "message": error.text}})

    def _receive(self, line: bytes | None) -> None:
        """Start the handler of a received line, or complete the request that it answers.

        None is a line that was too long.
        """
        if line is None:
            self._report_error(None, INVALID_REQUEST, f"the line is longer than {MAX_LINE_BYTES:,} bytes")
            return
        if not line.strip():
            return
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            self._report_error(None, PARSE_ERROR, f"the line is not JSON: {error}")
            return
        if not isinstance(message, dict):
            self._report_error(None, INVALID_REQUEST, "a message must be a JSON object")
            return
        request_id, method = message.get("id"), message.get("method")
        if isinstance(request_id, bool) or not isinstance(request_id, str | int | None):
            self._report_error(None, INVALID_REQUEST, "id must be a text or an integer")
        elif isinstance(method, str):
            self._receive_call(message, method, request_id)
        elif "result" in message or "error" in message:
            if (reply := self._replies.get(request_id)) is not None:
                reply.message = message
                reply.arrived.set()
        else:
            self._report_error(request_id, INVALID_REQUEST, "method must be a text")

    def _receive_call(self, message: Wire, method: str, request_id: RequestId) -> None:
        params = message.get("params") or {}
        is_request = "id" in message
        if not isinstance(params, dict):
            if is_request:
                self._report_error(request_id, INVALID_PARAMS, "params must be an object")
        elif is_request:
            if self._open_requests >= MAX_REQUESTS:
                self._report_error(request_id, INTERNAL_ERROR, f"more than {MAX_REQUESTS} requests are open")
                return
            self._start_request(method, RPCRequest(request_id, params))
        elif (handler := self._notification_handlers.get(method)) is not None:
            self._nursery.start_soon(self._handle_notification, handler, params)

    def _start_request(self, method: str, request: RPCRequest) -> None:
        handler = self._handlers.get(method)
        if handler is None:
            self._report_error(request.id, METHOD_NOT_FOUND, f"the method {method!r:.100} is not supported")
            return
        try:
            result = handler(request)
        except RPCError as error:
            self._report_error(request.id, error.code, error.text)
            return
        self._open_requests += 1
        self._nursery.start_soon(self._answer, method, request, result)

    def _report_error(self, request_id: RequestId, code: int, text: str) -> None:
        self._nursery.start_soon(self._send_error, request_id, RPCError(code, text))

    async def _answer(self, method: str, request: RPCRequest, pending: Awaitable[Wire]) -> None:
        """Wait for the result of a request, and send it.

        An error becomes an error response; unknown errors are logged.
        """
        try:
            result = await pending
        except RPCError as error:
            await self._send_error(request.id, error)
        except Exception as error:  # noqa: BLE001 - the client gets an error of any kind, and the log has it
            _log.exception("the method %s failed", method)
            text = f"the agent failed with {type(error).__name__}: see its standard error"
            await self._send_error(request.id, RPCError(INTERNAL_ERROR, text))
        else:
            await self._send({"id": request.id, "result": result})
        finally:
            self._open_requests -= 1

    async def _handle_notification(self, handler: NotificationHandler, params: Mapping[str, Any]) -> None:
        try:
            await handler(params)
        except Exception:  # noqa: BLE001 - a notification has no answer, so the log has the error
            _log.exception("a notification failed")
