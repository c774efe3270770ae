"""Sampling: a server that wants a model asked, while a call of its tool runs.

It is off unless the program gives a function that answers. That is called in the task of the call, so what it asks of
agents is paid by the turn that called the tool, and ends with the call.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, TypeVarTuple

import attrs
import mcp_types
import outcome
import trio

from actgent.errors.printable import shown
from actgent.messages import ChatMessage
from actgent.support.foreign import failure_of
from actgent.support.logs import logger_of

Sampling = Callable[[Sequence[ChatMessage], str, int], Awaitable[str]]
"""Answers a conversation: its messages, a system prompt (or nothing), and how many tokens the answer may have."""
MOST_SAMPLES = 10
"""How often a server may ask in one call."""
MOST_TOKENS = 4096
"""How long an answer may be that a server asks for."""
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Read = Callable[[mcp_types.SamplingMessage], ChatMessage]
Reply = mcp_types.CreateMessageResult | mcp_types.ErrorData
_log = logger_of(__name__)


@attrs.define(eq=False)
class _Request:
    params: mcp_types.CreateMessageRequestParams
    reply: Reply
    is_answered: trio.Event = attrs.field(factory=trio.Event)


class SampledCall:
    """A call during which its server may have a model asked."""

    def __init__(self, answer: Sampling, read: Read) -> None:
        self._answer = answer
        self._read = read
        self._asked = 0
        self._send, self._receive = trio.open_memory_channel[_Request](0)

    async def serve(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Await `fn(*args)`, and meanwhile answer the server in this task."""
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
        assert result is not None  # noqa: S101 - the block ends when it is there, or is cancelled
        return result.unwrap()

    async def ask(self, params: mcp_types.CreateMessageRequestParams) -> Reply:
        """Return what the server is answered; called by the task of the connection."""
        self._asked += 1
        if self._asked > MOST_SAMPLES:
            return not_asked(f"a call may ask {MOST_SAMPLES} times")
        request = _Request(params, not_asked("the call has ended"))
        try:
            await self._send.send(request)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return request.reply
        await request.is_answered.wait()
        return request.reply

    async def _serve_one(self, request: _Request) -> None:
        params = request.params
        most = min(params.max_tokens, MOST_TOKENS)
        try:
            messages = [self._read(message) for message in params.messages]
            text = await self._answer(messages, params.system_prompt or "", most)
            content = mcp_types.TextContent(type="text", text=str(text))
            request.reply = mcp_types.CreateMessageResult(role="assistant", content=content, model="actgent")
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            error = failure_of(raised, "function", "sampling")
            _log.warning("an MCP server asked for a model, and was refused: %s", shown(str(error)))
            request.reply = not_asked(f"the model was not asked: {type(error).__name__}")
        finally:
            request.is_answered.set()


def not_asked(why: str) -> mcp_types.ErrorData:
    """Return what a server is told that may not have a model asked."""
    return mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message=why)
