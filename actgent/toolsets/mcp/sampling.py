"""Sampling: an MCP server requests a model's answer while a call of its tool runs.

Disabled unless the program passes a function that answers. The function runs in the task of the tool call, and ends with the
call. So its model usage is charged to the turn of the call.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, TypeVarTuple

import attrs
import mcp_types
import outcome
import trio

from actgent.errors.text_escaping import shown
from actgent.messages import ChatMessage
from actgent.support.safe_logging import logger_of
from actgent.support.user_code_calls import convert_user_error
from actgent.tools.untrusted_sources_of_call import reading_text_of

Sampling = Callable[[Sequence[ChatMessage], str, int], Awaitable[str]]
"""Function that answers a conversation, given its messages, a system prompt (may be empty) and the maximum tokens of the answer."""
MAX_SAMPLES = 10
"""Maximum number of sampling requests per call."""
MAX_SAMPLE_TOKENS = 4096
"""Maximum number of tokens of an answer."""
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Read = Callable[[mcp_types.SamplingMessage], ChatMessage]
Reply = mcp_types.CreateMessageResult | mcp_types.ErrorData
_log = logger_of(__name__)


@attrs.define(eq=False)
class _Request:
    """Sampling request of a server, and the reply once it is known."""

    params: mcp_types.CreateMessageRequestParams
    reply: Reply
    is_answered: trio.Event = attrs.field(factory=trio.Event)


class SampledCall:
    """A tool call during which the server may send sampling requests."""

    def __init__(self, answer: Sampling, read: Read, source: str) -> None:
        """Store the function `answer`, which answers sampling requests. `source` is the server's name, the source of its texts."""
        self._answer = answer
        self._read = read
        self._source = source
        self._asked = 0
        self._send, self._receive = trio.open_memory_channel[_Request](0)

    async def serve(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Await `fn(*args)` and return its result. While it runs, answer the server's sampling requests in the calling task."""
        result: outcome.Outcome[T] | None = None

        async def run() -> None:
            nonlocal result
            result = await outcome.acapture(fn, *args)
            nursery.cancel_scope.cancel()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                async for request in self._receive:
                    await self._serve_one(request)
        finally:
            self._receive.close()
        assert result is not None  # noqa: S101 - the block ends with a result or by cancellation
        return result.unwrap()

    async def ask(self, params: mcp_types.CreateMessageRequestParams) -> Reply:
        """Pass a sampling request to the task that runs the tool call, and return the reply to the request.

        Called by the connection's task.
        """
        self._asked += 1
        if self._asked > MAX_SAMPLES:
            return sampling_rejection(f"a call may send at most {MAX_SAMPLES} sampling requests")
        request = _Request(params, sampling_rejection("the call has ended"))
        try:
            await self._send.send(request)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return request.reply
        await request.is_answered.wait()
        return request.reply

    async def _serve_one(self, request: _Request) -> None:
        params = request.params
        most = min(params.max_tokens, MAX_SAMPLE_TOKENS)
        try:
            messages = [self._read(message) for message in params.messages]
            with reading_text_of(self._source):
                text = await self._answer(messages, params.system_prompt or "", most)
            content = mcp_types.TextContent(type="text", text=str(text))
            request.reply = mcp_types.CreateMessageResult(role="assistant", content=content, model="actgent")
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - user code may raise anything
            error = convert_user_error(raised, "function", "sampling")
            _log.warning("the sampling request of an MCP server failed: %s", shown(str(error)))
            request.reply = sampling_rejection(f"sampling failed: {type(error).__name__}")
        finally:
            request.is_answered.set()


def sampling_rejection(reason: str) -> mcp_types.ErrorData:
    """Return the error that rejects a sampling request. `reason` is the text for the server."""
    return mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message=reason)
