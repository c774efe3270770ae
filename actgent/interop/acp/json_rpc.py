"""JSON-RPC 2.0 over two byte streams: one JSON object on each line, requests in both directions."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import trio

from actgent.interop.line_reader import MAX_LINE_BYTES, LongLine, read_lines
from actgent.support.json_rpc_decoding import decode_message, message_id
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
    """JSON-RPC error that is sent to the peer or was received from it.

    Args:
        code: Error number of JSON-RPC or ACP.
        text: Description of the error for humans.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


@attrs.frozen
class RPCRequest:
    """JSON-RPC request that the peer has sent."""

    id: RequestId
    """Id of the request, chosen by the peer."""
    params: Mapping[str, Any]
    """Parameters of the request, by name; empty if it has none."""

    def text(self, name: str) -> str:
        """Return the text parameter `name`, which must not be empty.

        Raises:
            RPCError: The parameter is missing, empty or no text.
        """
        value = self.params.get(name)
        if not isinstance(value, str) or not value or "\x00" in value:
            raise RPCError(INVALID_PARAMS, f"{name} must be a string that is not empty")
        return value


Handler = Callable[[RPCRequest], Awaitable[Wire]]
"""Handler of a method. The call runs in the order of the requests; the returned awaitable runs in a task of the request."""
NotificationHandler = Callable[[Mapping[str, Any]], Awaitable[None]]


@attrs.define
class _Reply:
    """Response for which a request that we have sent to the peer waits."""

    arrived: trio.Event = attrs.field(factory=trio.Event)
    message: Mapping[str, Any] = attrs.field(factory=dict)


class JSONRPCConnection:
    """JSON-RPC connection with one peer. Each request of the peer is handled in its own task, so that reading never waits."""

    def __init__(
        self,
        receive_stream: trio.abc.ReceiveStream,
        send_stream: trio.abc.SendStream,
        *,
        handlers: Mapping[str, Handler],
        notification_handlers: Mapping[str, NotificationHandler],
    ) -> None:
        """Create a connection. `handlers` and `notification_handlers` handle the peer's messages, by method name."""
        self._receive_stream, self._send_stream = receive_stream, send_stream
        self._handlers, self._notification_handlers = handlers, notification_handlers
        self._send_lock = trio.Lock()
        self._replies: dict[RequestId, _Reply] = {}
        self._next_id = 0
        self._open_requests = 0
        self._nursery: trio.Nursery

    async def run(self) -> None:
        """Read and handle messages until the peer closes its stream. Then cancel the running handlers and close the send stream."""
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
        """Wait until the line that is being sent is complete, and close the send stream.

        Without the close, a shielded send could block forever.
        """
        try:
            with trio.move_on_after(LAST_LINE_SECONDS, shield=True):
                async with self._send_lock:
                    pass
        finally:
            await trio.aclose_forcefully(self._send_stream)

    def start(self, task: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Start `task(*arguments)` in the background. The task is cancelled when the connection ends."""
        self._nursery.start_soon(task, *arguments)

    async def start_ready(self, task: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Start `task(*arguments)` in the background, and wait until it calls `task_status.started()`.

        The task is cancelled when the connection ends.
        """
        await self._nursery.start(task, *arguments)

    async def notify(self, method: str, params: Wire) -> None:
        """Send a notification, which the peer does not answer."""
        await self._send({"method": method, "params": params})

    async def request(self, method: str, params: Wire) -> Mapping[str, Any]:
        """Send a request to the peer and return the result.

        Raises:
            RPCError: The peer responded with an error.
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
        """Send a JSON-RPC message as one line. If the sender is cancelled, the line is either sent completely or not at all."""
        line = encode_json({"jsonrpc": "2.0", **message}) + b"\n"
        try:
            async with self._send_lock:
                with trio.CancelScope(shield=True):  # until `run` ends and closes the stream
                    await self._send_stream.send_all(line)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._nursery.cancel_scope.cancel()  # the peer does not read the output any more

    async def _send_error(self, request_id: RequestId, error: RPCError) -> None:
        await self._send({"id": request_id, "error": {"code": error.code, "message": error.text}})

    def _receive(self, line: bytes) -> None:
        """Process a received line: start the handler of a request or notification, or complete the request that it answers."""
        if isinstance(line, LongLine):
            text = f"the line is longer than {MAX_LINE_BYTES:,} bytes"
            self._report_error(message_id(line, b"method"), INVALID_REQUEST, text)
            return
        if not line.strip():
            return
        try:
            message = decode_message(line)
        except ValueError as error:
            self._report_error(message_id(line, b"method"), PARSE_ERROR, f"the line is not JSON: {error}")
            return
        if not isinstance(message, dict):
            self._report_error(None, INVALID_REQUEST, "a message must be a JSON object")
            return
        request_id, method = message.get("id"), message.get("method")
        if isinstance(request_id, bool) or not isinstance(request_id, str | int | None):
            self._report_error(None, INVALID_REQUEST, "id must be a string or an integer")
        elif isinstance(method, str):
            self._receive_call(message, method, request_id)
        elif "result" in message or "error" in message:
            if (reply := self._replies.get(request_id)) is not None:
                reply.message = message
                reply.arrived.set()
        else:
            self._report_error(request_id, INVALID_REQUEST, "method must be a string")

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
        """Wait for the result of the peer's request, and send it. An exception becomes an error response.

        Exceptions other than `RPCError` and `ActgentError` are also logged.
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
