"""AG-UI 1.0: `POST /agui/{agent}` starts a run and streams its events. Source: docs.ag-ui.com, protocol 1.0.0.

The thread id is the session id, and the run id is the message id: a repeated run gives the same events.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from starlette.responses import Response

from actgent.agents.session import Session, context_of
from actgent.approvals import Approval, Approve, Decision, Edit, Reject, Respond
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
    to_file,
)
from .run_events import (
    AnswerDone,
    DeferredCalls,
    RunCallerAsked,
    RunEnded,
    RunEvent,
    RunSuspended,
    RunToolDone,
    TextDelta,
    TextDiscarded,
    tool_error_text,
    visible_text_filter,
)
from .runs_of_protocol_requests import Run, RunStream, caller_tools, existing_session, find_session, to_sse

Wire = dict[str, Any]
_MEDIA = ("image", "audio", "video", "document")


@attrs.define
class AGUIEncoder:
    """Encoder of the events of a run as AG-UI events."""

    thread_id: str
    run_id: str
    session: Session
    shows_exception_texts: bool
    """True if the client may see texts of exceptions that user code or libraries raised."""
    earlier_messages: Sequence[Wire] = ()
    """Messages of the client before this run. The client receives them if it has a part of the run, and drops that part."""
    _open: str = ""
    """Id of the text message whose end was not sent yet; empty if there is none."""
    _restarts: int = 0
    """Number of messages that began again because their text was discarded."""
    _calls: set[str] = attrs.field(factory=set)
    """Ids of the tool calls that were sent in this run."""
    _deferred: DeferredCalls = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._deferred = DeferredCalls(self.session)

    def first(self) -> bytes:
        """Return the encoded events with which each run begins."""
        begun = self._sse("RUN_STARTED", threadId=self.thread_id, runId=self.run_id, protocolVersion="1.0")
        if not self.earlier_messages:
            return begun
        return begun + self._sse("MESSAGES_SNAPSHOT", messages=self.earlier_messages)

    def encode(self, event: RunEvent) -> bytes:
        """Encode an event of a run as server-sent events; empty if AG-UI has no counterpart."""
        return b"".join(self._encode(event))

    def _encode(self, event: RunEvent) -> Iterator[bytes]:
        match event:
            case TextDelta():
                yield from self._add_text(event)
            case TextDiscarded():
                yield from self._close_text()
                self._restarts += 1
            case AnswerDone():
                parent = self._open
                yield from self._close_text()
                for call in self._deferred.ready(event.calls):
                    yield from self._call(call, parent)
            case RunCallerAsked():
                yield from self._call(self._deferred.take_asked(event.approval), "")
            case RunToolDone():
                if (deferred := self._deferred.take(event.result.call_id)) is not None:
                    yield from self._call(deferred, "")
                yield from self._result(event.result)
            case RunSuspended():
                yield from self._suspend(event)
            case RunEnded():
                yield from self._end(event)

    def _add_text(self, event: TextDelta) -> Iterator[bytes]:
        message_id = f"{event.reply_id}-{self._restarts}" if self._restarts else event.reply_id
        if self._open != message_id:
            yield from self._close_text()
            self._open = message_id
            yield self._sse("TEXT_MESSAGE_START", messageId=message_id, role="assistant")
        yield self._sse("TEXT_MESSAGE_CONTENT", messageId=message_id, delta=event.text)

    def _close_text(self) -> Iterator[bytes]:
        if self._open:
            yield self._sse("TEXT_MESSAGE_END", messageId=self._open)
            self._open = ""

    def _call(self, call: ToolCall, parent: str) -> Iterator[bytes]:
        self._calls.add(call.id)
        above = {"parentMessageId": parent} if parent else {}
        yield self._sse("TOOL_CALL_START", toolCallId=call.id, toolCallName=call.name, **above)
        yield self._sse("TOOL_CALL_ARGS", toolCallId=call.id, delta=to_text(call_arguments(call)))
        yield self._sse("TOOL_CALL_END", toolCallId=call.id)

    def _result(self, result: ToolResult) -> Iterator[bytes]:
        """Encode a tool result. Yield nothing if the tool call was sent in an earlier run."""
        if result.call_id not in self._calls:
            return
        content = result.content
        if result.status != "success":
            content = tool_error_text(
                result.status, result.error, result.raised, shows_exception_texts=self.shows_exception_texts
            )
        yield self._sse(
            "TOOL_CALL_RESULT", messageId=result.id, toolCallId=result.call_id, content=content, role="tool"
        )

    def _suspend(self, event: RunSuspended) -> Iterator[bytes]:
        """Yield the events that end the AG-UI run because the turn is suspended.

        The last event has the questions of the approvals, or the ids of the tool calls that the client must execute.
        """
        if event.user_approvals:
            yield from self._finish(
                {"type": "interrupt", "interrupts": [*map(_interrupt, event.user_approvals)]}
            )
        else:
            pending = [each.call_id for each in event.caller_calls]
            yield from self._finish({"type": "success"}, pendingToolCallIds=pending)

    def _end(self, event: RunEnded) -> Iterator[bytes]:
        yield from self._close_text()
        if self._restarts:
            yield self._sse("MESSAGES_SNAPSHOT", messages=_snapshot(self.session))
        if event.failed in ("interrupted", "stopped"):
            yield from self._finish({"type": "cancelled"})
        elif event.failed:
            words = event.reason or f"the agent failed: {event.failed}"
            yield self._sse("RUN_ERROR", message=words, code=event.failed)
        else:
            yield from self._finish({"type": "success"})

    def _finish(self, outcome: Wire, **fields: Any) -> Iterator[bytes]:
        yield from self._close_text()
        yield self._sse("RUN_FINISHED", threadId=self.thread_id, runId=self.run_id, outcome=outcome, **fields)

    @staticmethod
    def _sse(kind: str, **fields: Any) -> bytes:
        return to_sse({"type": kind, "timestamp": int(time.time() * 1000), **fields})


def _interrupt(approval: Approval) -> Wire:
    found: Wire = {
        "id": approval.id,
        "reason": "tool_call",
        "message": question_text(approval),
        "toolCallId": approval.call_id,
    }
    if approval.form is not None:
        found["responseSchema"] = dict(approval.form)
    return found


def _snapshot(session: Session) -> list[Wire]:
    """Return the user and assistant messages of a session, without tool calls, for AG-UI's messages snapshot event."""
    visible_text = visible_text_filter(session)
    texts = [
        (each, each.text if each.sender.kind == "user" else visible_text(each.text))
        for each in session.history
        if each.sender.kind in ("user", "assistant")
    ]
    return [{"id": each.id, "role": each.sender.kind, "content": text} for each, text in texts if text]


def _session_of(call: HTTPCall) -> str:
    return session_of_field(call.body.get("threadId"))


async def start_run(call: HTTPCall) -> Response:
    """Start an AG-UI run, or resume one with `resume`, and stream its events. A repeated `runId` gives the same run."""
    body = call.body
    thread_id, run_id = text_field(body.get("threadId"), "threadId"), text_field(body.get("runId"), "runId")
    agent, offered = call.path["agent"], body.get("tools")
    earlier = _messages_before_run(body)
    if earlier and await _has_run(call, agent, thread_id, run_id):
        body = {**body, "messages": earlier}
    else:
        earlier = []
    tools = caller_tools(call, agent, _tools_of(offered)) if offered else ()
    decisions, results = _decisions_of(body), _results_of(body)
    if decisions and not call.caller.allows("approve"):
        raise Problem("forbidden", "the field resume requires a token with the scope `approve`")
    is_answer = bool(decisions or results)
    content = "" if is_answer else _content_of(body)
    session = await find_session(call, agent, to_client_id(thread_id))
    asked = Run(
        call=call,
        session=session,
        message_id="" if is_answer else to_client_id(run_id),
        content=content,
        decisions=decisions,
        results=results,
        options=TurnOptions(tools=tools) if tools else None,
    )
    encoder = AGUIEncoder(thread_id, run_id, session, call.shows_exception_texts, earlier)
    return RunStream(asked, encoder.encode, first=encoder.first)


def _messages_before_run(body: Mapping[str, Any]) -> list[Wire]:
    """Return the client's messages up to the last user message, if other messages follow it.

    A client that reconnects to a run has added the received part of the run after the user message. That part begins with a
    message of the assistant. The list is empty if no such message follows the last user message.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        return []
    last = max((place for place, each in enumerate(messages) if each.get("role") == "user"), default=-1)
    has_part = any(each.get("role") == "assistant" for each in messages[last + 1 :])
    return messages[: last + 1] if has_part else []


async def _has_run(call: HTTPCall, agent: str, thread_id: str, run_id: str) -> bool:
    """Return True if the caller's thread has a run with this id that began with a user message."""
    try:
        session, _ = await existing_session(call, agent, to_client_id(thread_id))
    except Problem:
        return False
    return context_of(session).has_accepted(to_client_id(run_id))


def _tools_of(given: Any) -> list[Mapping[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise Problem("invalid", "tools must be a list of objects")
    return [{name: each.get(name) for name in ("name", "description", "parameters")} for each in given]


def _results_of(body: Mapping[str, Any]) -> dict[str, Decision]:
    """Return the results of the client's tools, which are the last messages of the request, by call id."""
    found: dict[str, Decision] = {}
    messages = body.get("messages")
    for message in reversed(messages if isinstance(messages, list) else []):
        if not isinstance(message, dict) or message.get("role") != "tool":
            break
        content = message.get("content")
        text = content if isinstance(content, str) else to_text(content)
        error = message.get("error")
        call_id = text_field(message.get("toolCallId"), "toolCallId")
        found[call_id] = Reject(str(error)) if error else Respond(text)
    return found


def _content_of(body: Mapping[str, Any]) -> str | Sequence[Part]:
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or last.get("role") != "user":
        raise Problem("invalid", "the last item of messages must have the role user")
    content = last.get("content")
    if isinstance(content, list) and content:
        return [_part_of(each) for each in content_parts(content)]
    return text_field(content, "content of the last message")


def _part_of(part: Any) -> Part:
    if not isinstance(part, dict):
        raise Problem("invalid", "a part of the content must be an object")
    if part.get("type") == "text":
        return Text(text_field(part.get("text"), "text"))
    source = _source_of_binary(part) if part.get("type") == "binary" else part.get("source")
    if part.get("type") not in (*_MEDIA, "binary") or not isinstance(source, dict):
        raise Problem("invalid", "the type of a part must be text, image, audio, video or document")
    value, kind = text_field(source.get("value"), "value"), str(source.get("mimeType") or "")
    if source.get("type") == "url":
        return media_of_url(value, kind or ("image/*" if part["type"] == "image" else ""))
    return to_file(value, kind)


def _source_of_binary(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the source of a part of the type `binary`, which AG-UI had before 1.0, in the form of the other types."""
    kind = "data" if part.get("data") else "url"
    return {"type": kind, "value": part.get(kind), "mimeType": part.get("mimeType")}


def _decisions_of(body: Mapping[str, Any]) -> dict[str, Decision]:
    """Return the approval decisions in the field `resume`, by interrupt id."""
    given = body.get("resume") or []
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise Problem("invalid", "resume must be a list of objects")
    return {text_field(each.get("interruptId"), "interruptId"): _decision_of(each) for each in given}


def _decision_of(given: Mapping[str, Any]) -> Decision:
    payload = given.get("payload")
    fields = payload if isinstance(payload, dict) else {}
    if given.get("status") == "cancelled" or fields.get("approved") is False:
        return Reject(str(fields.get("reason") or "the user has cancelled it"))
    if isinstance(fields.get("editedArgs"), dict):
        return Edit(fields["editedArgs"])
    if "response" in fields:
        response = fields["response"]
        return Respond(response if isinstance(response, str) else to_text(response))
    content = {name: value for name, value in fields.items() if name != "approved"}
    return Approve(content=content or None)


@attrs.frozen
class AGUIProtocol:
    """The protocol AG-UI 1.0 at `/agui/{agent}` of a gateway."""

    name: str = attrs.field(default="ag-ui", init=False)
    title: str = attrs.field(default="AG-UI clients", init=False)
    address: str = attrs.field(default="/agui/AGENT", init=False)
    background: None = attrs.field(default=None, init=False)

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint(
                prefix="",
                verb="POST",
                path="/agui/{agent}",
                answer=start_run,
                scope="chat",
                body={"type": "object"},
                has_parts=True,
                media_type="text/event-stream",
                streams=True,
                is_stream=streams_always,
                forwarding=Forwarding(session_of=_session_of, awaits_run=True, sends_message=sends_always),
            ),
        )


__all__ = ["AGUIEncoder", "AGUIProtocol"]
