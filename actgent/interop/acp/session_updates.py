"""Events of runs and messages of histories as `session/update` notifications of ACP."""

from collections.abc import Iterable, Iterator

import attrs

from actgent.interop.run_events import (
    AnswerDone,
    RunEvent,
    RunToolDone,
    RunToolProgressed,
    TextDelta,
    TextDiscarded,
    tool_error_text,
)
from actgent.messages import CallProgress, Message, ToolCall, ToolResult

from .content_blocks import text_block, to_blocks
from .json_rpc import Wire


@attrs.define
class UpdateEncoder:
    """Encoder of one session's events and messages as updates of ACP."""

    _restarts: int = 0
    """Number of answer texts that were discarded and started again."""
    _discarded: str = ""
    """Id of the client's message whose text is void. The next chunk gets a new id."""
    _loaded: set[str] = attrs.field(factory=set)
    """Ids of messages that were sent to the client as history."""

    def encode_history(self, messages: Iterable[Message]) -> Iterator[Wire]:
        """Yield the updates that show earlier messages of a session to the client."""
        for message in messages:
            self._loaded.add(message.id)
            kind = message.sender.kind
            if kind in ("user", "assistant"):
                chunk = "user_message_chunk" if kind == "user" else "agent_message_chunk"
                for block in to_blocks(message.parts):
                    yield {"sessionUpdate": chunk, "content": block, "messageId": message.id}
            for call in message.tool_calls:
                yield encode_call(call)
            for result in message.tool_results:
                yield _encode_result(result)

    def encode(self, event: RunEvent) -> Iterator[Wire]:
        """Convert an event of a run to updates for the client. Yield nothing if ACP has no counterpart."""
        match event:
            case TextDelta() if event.reply_id not in self._loaded:
                yield self._add_text(event)
            case TextDiscarded():
                self._discarded = self._id_of(event.reply_id)
                self._restarts += 1
            case AnswerDone() if event.reply_id not in self._loaded:
                yield from map(encode_call, event.calls)
            case RunToolProgressed():
                yield _encode_progress(event.progress)
            case RunToolDone():
                yield _encode_result(event.result)

    def _add_text(self, event: TextDelta) -> Wire:
        """Return a text chunk. A text that replaces a void text begins a new message for the client."""
        chunk: Wire = {
            "sessionUpdate": "agent_message_chunk",
            "content": text_block(event.text),
            "messageId": self._id_of(event.reply_id),
        }
        if self._discarded:
            chunk["_meta"] = {"actgent": {"voided": self._discarded}}
            self._discarded = ""
        return chunk

    def _id_of(self, reply_id: str) -> str:
        return f"{reply_id}-{self._restarts}" if self._restarts else reply_id


def encode_call(call: ToolCall) -> Wire:
    """Encode a tool call that has not run yet as an update."""
    return {
        "sessionUpdate": "tool_call",
        "toolCallId": call.id,
        "title": call.name,
        "kind": "other",
        "status": "pending",
        "rawInput": call.arguments if isinstance(call.arguments, str) else dict(call.arguments),
    }


def _encode_progress(progress: CallProgress) -> Wire:
    update: Wire = {
        "sessionUpdate": "tool_call_update",
        "toolCallId": progress.call_id,
        "status": "in_progress",
    }
    if progress.text:
        update["content"] = [{"type": "content", "content": text_block(progress.text)}]
    return update


def _encode_result(result: ToolResult) -> Wire:
    """Encode the result of a tool call as an update.

    Texts of exceptions of user code are left out; they are in the agent's log.
    """
    is_done = result.status == "success"
    text = result.content
    if not is_done:
        text = tool_error_text(result.status, result.error, result.raised, shows_foreign=False)
    blocks = [*([text_block(text)] if text else []), *to_blocks(result.media)]
    return {
        "sessionUpdate": "tool_call_update",
        "toolCallId": result.call_id,
        "status": "completed" if is_done else "failed",
        "content": [{"type": "content", "content": block} for block in blocks],
    }
