"""Vercel UI message stream, version 1: the backend of `useChat` at `POST /vercel/{agent}`. Source: ai-sdk.dev, `ai` 7.

The chat id is the session id, and the id of the last message is the message id: a repeated request gives the same answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from starlette.responses import Response

from actgent.agents.session import Session, context_of
from actgent.approvals import Approval, Approve, Decision, Reject, Respond
from actgent.journal.record_types import TurnOptions
from actgent.messages import Part, Text, ToolCall, ToolResult
from actgent.tools.outputs.result_text import to_text
from actgent.web.problem_documents import Problem
from actgent.web.routes.endpoints import Endpoint, Forwarding, HTTPCall, sends_always, streams_always

from .approval_forms import question_text
from .request_field_parsing import (
    call_arguments,
    content_parts,
    media_of_url,
    session_of_field,
    text_field,
    to_client_id,
)
from .run_events import (
    AnswerDone,
    DeferredCalls,
    RunApprovalAsked,
    RunCallerAsked,
    RunEnded,
    RunEvent,
    RunSuspended,
    RunToolDone,
    TextDelta,
    TextDiscarded,
    tool_error_text,
)
from .runs_of_protocol_requests import Run, RunStream, caller_tools, existing_session, find_session, to_sse

HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
_ANSWER_HEADERS = {"X-Vercel-AI-UI-Message-Stream": "Version of the stream."}
LAST = b"data: [DONE]\n\n"
_FINISH = {
    "length": "length",
    "refusal": "content-filter",
    "filter": "content-filter",
    "guard": "content-filter",
}


@attrs.define
class VercelEncoder:
    """Encoder of the events of a run as parts of a Vercel UI message stream."""

    message_id: str
    """Id of the answer in the client's chat."""
    session: Session
    shows_exception_texts: bool
    """True if the client may see texts of exceptions that user code or libraries raised."""
    _open: str = ""
    """Id of the text part whose end was not sent yet; empty if there is none."""
    _is_in_step: bool = False
    _deferred: DeferredCalls = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._deferred = DeferredCalls(self.session)

    def first(self) -> bytes:
        """Return the encoded part with which each stream begins."""
        return to_sse({"type": "start", "messageId": self.message_id})

    def encode(self, event: RunEvent) -> bytes:
        """Encode an event of a run as parts of the stream; empty if the protocol has no counterpart."""
        return b"".join(map(to_sse, self._encode(event)))

    def _encode(self, event: RunEvent) -> Iterator[dict[str, Any]]:
        match event:
            case TextDelta():
                yield from self._add_text(event)
            case TextDiscarded():
                self._open = ""
                yield {"type": "reset-step"}
            case AnswerDone():
                yield from self._complete(event)
            case RunCallerAsked():
                yield from self._call(self._deferred.take_asked(event.approval))
            case RunToolDone():
                yield from self._end_call(event.result)
            case RunApprovalAsked():
                yield from self._ask(event.approval)
            case RunSuspended():
                yield from self._close_step()
                yield {"type": "finish", "finishReason": "tool-calls"}
            case RunEnded():
                yield from self._end(event)

    def _end_call(self, result: ToolResult) -> Iterator[dict[str, Any]]:
        if (call := self._deferred.take(result.call_id)) is not None:
            yield from self._call(call)
        yield self._result(result)

    def _ask(self, approval: Approval) -> Iterator[dict[str, Any]]:
        """Encode the request for an approval.

        If the call depends on untrusted text, a text with the question and the arguments precedes the request. The request itself
        has no member for untrusted sources, and with isolation the call may have references in place of values.
        """
        if (call := self._deferred.get(approval.call_id)) is not None:
            yield from self._begin_call(call)
        if approval.sources:
            yield {"type": "text-start", "id": approval.id}
            yield {"type": "text-delta", "id": approval.id, "delta": question_text(approval)}
            yield {"type": "text-end", "id": approval.id}
        yield {"type": "tool-approval-request", "approvalId": approval.id, "toolCallId": approval.call_id}

    def _add_text(self, event: TextDelta) -> Iterator[dict[str, Any]]:
        if self._open != event.reply_id:
            yield from self._begin_step()
            self._open = event.reply_id
            yield {"type": "text-start", "id": self._open}
        yield {"type": "text-delta", "id": self._open, "delta": event.text}

    def _complete(self, event: AnswerDone) -> Iterator[dict[str, Any]]:
        if self._open:
            yield {"type": "text-end", "id": self._open}
            self._open = ""
        elif event.calls:
            yield from self._begin_step()
        for call in self._deferred.ready(event.calls):
            yield from self._call(call)

    def _begin_call(self, call: ToolCall) -> Iterator[dict[str, Any]]:
        if not self._is_in_step:
            yield from self._begin_step()
        yield {"type": "tool-input-start", "toolCallId": call.id, "toolName": call.name, "dynamic": True}

    def _call(self, call: ToolCall) -> Iterator[dict[str, Any]]:
        yield from self._begin_call(call)
        named = {"toolCallId": call.id, "toolName": call.name, "dynamic": True}
        yield {"type": "tool-input-available", **named, "input": call_arguments(call)}

    def _result(self, result: ToolResult) -> dict[str, Any]:
        known = {"toolCallId": result.call_id}
        if result.status == "success":
            return {"type": "tool-output-available", **known, "output": result.content, "dynamic": True}
        words = tool_error_text(
            result.status, result.error, result.raised, shows_exception_texts=self.shows_exception_texts
        )
        return {"type": "tool-output-error", **known, "errorText": words, "dynamic": True}

    def _begin_step(self) -> Iterator[dict[str, Any]]:
        yield from self._close_step()
        self._is_in_step = True
        yield {"type": "start-step"}

    def _close_step(self) -> Iterator[dict[str, Any]]:
        if self._open:
            yield {"type": "text-end", "id": self._open}
            self._open = ""
        if self._is_in_step:
            self._is_in_step = False
            yield {"type": "finish-step"}

    def _end(self, event: RunEnded) -> Iterator[dict[str, Any]]:
        yield from self._close_step()
        if event.failed in ("interrupted", "stopped"):
            yield {"type": "abort"}
            return
        if event.failed:
            yield {"type": "error", "errorText": event.reason or f"the agent failed: {event.failed}"}
        used = event.usage
        usage = {"inputTokens": used.input_tokens, "outputTokens": used.output_tokens}
        yield {"type": "message-metadata", "messageMetadata": {"usage": usage}}
        reason = _FINISH.get(event.failed, "error") if event.failed else "stop"
        yield {"type": "finish", "finishReason": reason}


async def send_chat(call: HTTPCall) -> Response:
    """Send the last message of a chat, or its approval responses, and stream the answer."""
    body = call.body
    if body.get("trigger") == "regenerate-message":
        raise Problem(
            "invalid",
            "regenerate-message is not supported: fork the session with POST /v1/sessions/{id}/fork",
        )
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or not isinstance(last.get("parts"), list):
        raise Problem("invalid", "messages must be a list of messages with parts")
    is_answer = last.get("role") == "assistant"
    decisions = _decisions_of(last["parts"]) if is_answer else {}
    results = _results_of(last["parts"]) if is_answer else {}
    if decisions and not call.caller.allows("approve"):
        raise Problem("forbidden", "an approval response requires a token with the scope `approve`")
    if last.get("role") not in ("user", "assistant") or (is_answer and not (decisions or results)):
        raise Problem(
            "invalid", "the last message must have the role user, approval responses or tool outputs"
        )
    agent, offered = call.path["agent"], body.get("tools")
    tools = caller_tools(call, agent, _tools_of(offered)) if offered else ()
    last_id = text_field(last.get("id"), "id of the last message")
    chat_id = text_field(body.get("id"), "id")
    session = await find_session(call, agent, to_client_id(chat_id))
    asked = Run(
        call=call,
        session=session,
        message_id="" if is_answer else to_client_id(last_id),
        content="" if is_answer else _content_of(last["parts"]),
        decisions=decisions,
        results=results,
        options=TurnOptions(tools=tools) if tools else None,
    )
    # An answer after an approval or a tool output continues the client's assistant message.
    encoder = VercelEncoder(
        last_id if is_answer else f"{last_id}-answer", session, call.shows_exception_texts
    )
    return RunStream(asked, encoder.encode, first=encoder.first, last=LAST, headers=HEADERS)


def _content_of(parts: Sequence[Any]) -> list[Part]:
    """Convert the parts of a user's message. Parts that `convertToModelMessages` of `ai` omits are omitted."""
    return [_part_of(each) for each in content_parts(parts) if not _is_omitted(each)]


def _is_omitted(part: object) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and (kind == "step-start" or kind.startswith("data-"))


def _part_of(part: Any) -> Part:
    if isinstance(part, dict) and part.get("type") == "text":
        return Text(text_field(part.get("text"), "text"))
    if isinstance(part, dict) and part.get("type") == "file":
        name = str(part.get("filename") or "file")
        return media_of_url(text_field(part.get("url"), "url"), str(part.get("mediaType") or ""), name=name)
    raise Problem("invalid", "the type of a part of the user's message must be text or file")


def _tools_of(tools: Any) -> list[Mapping[str, Any]]:
    """Return the tools of the client as a list of objects with names. The client sends a list, or a map by tool name."""
    if isinstance(tools, dict):
        tools = [{"name": name, **each} for name, each in tools.items() if isinstance(each, dict)]
    if not isinstance(tools, list) or not all(isinstance(each, dict) for each in tools):
        raise Problem("invalid", "tools must be a list or a map of objects", param="tools")
    return [
        {
            "name": each.get("name"),
            "description": each.get("description"),
            "parameters": each.get("inputSchema") or each.get("parameters"),
        }
        for each in tools
    ]


def _results_of(parts: Sequence[Any]) -> dict[str, Decision]:
    """Return the tool outputs in an assistant message, by call id.

    They include outputs of the agent's tools, which are ignored later.
    """
    found: dict[str, Decision] = {}
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("toolCallId"), str):
            continue
        if part.get("state") == "output-available":
            output = part.get("output")
            found[part["toolCallId"]] = Respond(output if isinstance(output, str) else to_text(output))
        elif part.get("state") == "output-error":
            found[part["toolCallId"]] = Reject(str(part.get("errorText") or "the tool failed"))
    return found


def _decisions_of(parts: Sequence[Any]) -> dict[str, Decision]:
    """Return the approval responses in an assistant message, by approval id."""
    found: dict[str, Decision] = {}
    for part in parts:
        approval = part.get("approval") if isinstance(part, dict) else None
        if not isinstance(approval, Mapping) or part.get("state") != "approval-responded":
            continue
        reason = str(approval.get("reason") or "")
        decision = Approve(reason) if approval.get("approved") else Reject(reason)
        found[text_field(approval.get("id"), "approval.id")] = decision
    return found


async def resume_chat(call: HTTPCall) -> Response:
    """Stream the running or suspended turn of a chat from its beginning. The status is 204 if the chat has no such turn."""
    session, _ = await existing_session(call, call.path["agent"], to_client_id(call.path["id"]))
    message_id = context_of(session).open_turn_id
    if message_id is None:
        return Response(status_code=204)
    asked = Run(call=call, session=session, message_id=message_id, is_read=True, is_whole=True)
    encoder = VercelEncoder(f"{message_id}-answer", session, call.shows_exception_texts)
    return RunStream(asked, encoder.encode, first=encoder.first, last=LAST, headers=HEADERS)


@attrs.frozen
class VercelProtocol:
    """The Vercel UI message stream protocol at `/vercel/{agent}` of a gateway."""

    name: str = attrs.field(default="vercel", init=False)
    title: str = attrs.field(default="Vercel AI SDK (useChat)", init=False)
    address: str = attrs.field(default="/vercel/AGENT", init=False)
    background: None = attrs.field(default=None, init=False)

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint(
                prefix="",
                verb="POST",
                path="/vercel/{agent}",
                answer=send_chat,
                scope="chat",
                body={"type": "object"},
                has_parts=True,
                media_type="text/event-stream",
                streams=True,
                is_stream=streams_always,
                answer_headers=_ANSWER_HEADERS,
                forwarding=Forwarding(
                    session_of=lambda call: session_of_field(call.body.get("id")),
                    awaits_run=True,
                    sends_message=sends_always,
                ),
            ),
            Endpoint(
                prefix="",
                verb="GET",
                path="/vercel/{agent}/{id}/stream",
                answer=resume_chat,
                scope="read",
                statuses=(200, 204),
                media_type="text/event-stream",
                streams=True,
                is_stream=streams_always,
                answer_headers=_ANSWER_HEADERS,
                forwarding=Forwarding(
                    session_of=lambda call: session_of_field(call.path["id"]),
                    awaits_run=True,
                    served_while_draining=True,
                ),
            ),
        )
