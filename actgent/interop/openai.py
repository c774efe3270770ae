"""OpenAI-compatible endpoints below `/openai/v1`: chat completions and Responses, with an agent as the model.

Sources: OpenAI API reference; Open Responses, revision 2026-04-24. A request without a session is stateless: its earlier
messages are the history of a session that ends with the answer. A Responses request continues the session of its
`previous_response_id`. The id of a response holds the id of its session and of its message, so the server keeps no table.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import filterfalse
from typing import Any

import attrs
from starlette.responses import Response

from actgent.agents.session import Session, context_of
from actgent.approvals import Approval, Approve, Decision, Reject, Respond, session_of
from actgent.errors import ConfigurationError, SessionExists
from actgent.journal.record_types import TurnOptions
from actgent.messages import (
    ChatMessage,
    File,
    Image,
    Medium,
    Part,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
    new_id,
)
from actgent.sessions.imported_history import ImportedMessage, LabelledMessage
from actgent.support.strict_json import load_document
from actgent.tools.outputs.result_text import to_text
from actgent.tools.schemas import compile_schema
from actgent.web.problem_documents import Problem, missing
from actgent.web.routes.common_request_schemas import NUMBER
from actgent.web.routes.endpoints import (
    ANY_NODE,
    JSON,
    Endpoint,
    Forwarding,
    HTTPCall,
    is_stream_requested,
    sends_always,
)

from .approval_forms import question_text
from .request_field_parsing import (
    check_types,
    content_parts,
    is_empty_text,
    media_of_url,
    object_of,
    session_of_field,
    text_field,
    to_client_id,
    to_file,
)
from .run_events import AnswerDone, RunEnded, RunEvent, RunSuspended, TextDelta, TextDiscarded
from .runs_of_protocol_requests import (
    Run,
    RunStream,
    caller_tools,
    collect,
    create_session,
    existing_session,
    find_session,
    suspended_session,
    to_sse,
    with_system_layer,
)

Wire = dict[str, Any]
UNSUPPORTED: Mapping[str, str] = {
    "functions": "use tools",
    "conversation": "use previous_response_id",
    "prompt": "use instructions",
    **dict.fromkeys(
        (
            "logprobs",
            "top_logprobs",
            "logit_bias",
            "audio",
            "prediction",
            "modalities",
            "stop",
            "seed",
            "max_tool_calls",
            "web_search_options",
        ),
        "it has no effect on an agent",
    ),
}
"""Fields of a request that change the answer and cannot be served, with the reason or the alternative."""
_TYPES: Mapping[str, Sequence[type]] = {
    "model": (str,),
    "stream": (bool,),
    "store": (bool,),
    "tools": (list,),
    "tool_choice": (str, dict),
    "parallel_tool_calls": (bool,),
    "temperature": (float,),
    "metadata": (dict,),
    "n": (int,),
}
_CHAT_TYPES: Mapping[str, Sequence[type]] = {
    **_TYPES,
    "messages": (list,),
    "stream_options": (dict,),
    "response_format": (dict,),
    "max_completion_tokens": (int,),
    "max_tokens": (int,),
}
_RESPONSE_TYPES: Mapping[str, Sequence[type]] = {
    **_TYPES,
    "input": (str, list),
    "instructions": (str,),
    "previous_response_id": (str,),
    "background": (bool,),
    "text": (dict,),
    "reasoning": (dict,),
    "truncation": (str,),
    "max_output_tokens": (int,),
}
HISTORY_SOURCE = "client history"
"""Untrusted source of the answers and tool results in the history that a client sends."""
DONE = b"data: [DONE]\n\n"
_FINISH = {
    "length": "length",
    "refusal": "content_filter",
    "filter": "content_filter",
    "guard": "content_filter",
}
_CODES = {
    "unauthorized": "invalid_api_key",
    "too-many-requests": "rate_limit_exceeded",
    "inbox-full": "rate_limit_exceeded",
    "limit-reached": "rate_limit_exceeded",
}
_AFTER = ".a"
"""Suffix of the id of a response that followed results or decisions. The part before it is the beginning of an
approval id.
"""
_SEPARATOR = "_"
"""Separator between the two ids in a response id. Ids made by the server do not contain it."""


def to_error(problem: Problem, request_id: str) -> Response:
    """Convert a problem to an error response in OpenAI's format."""
    kind = "invalid_request_error" if problem.status < 500 else "server_error"  # noqa: PLR2004 - server errors
    code = problem.fields.get("code") or _CODES.get(problem.kind)
    error = {
        "message": problem.detail or problem.title,
        "type": kind,
        "param": problem.fields.get("param"),
        "code": code,
    }
    headers = {**problem.headers, "x-request-id": request_id}
    status = 400 if problem.kind == "invalid" else problem.status
    return JSON({"error": error}, status_code=status, headers=headers)


# --- requests --------------------------------------------------------------------------------


def agent_of(call: HTTPCall) -> str:
    """Return the name of the agent in the field `model` of a request.

    Raises:
        Problem: `model` is missing, or no agent has this name.
    """
    name = text_field(call.body.get("model"), "model")
    if name not in call.gateway.access.runtime.agents:
        raise Problem(
            "not-found",
            f"no agent has the name {name!r:.100}: GET /openai/v1/models lists the agents",
            code="model_not_found",
        )
    return name


def check_supported(body: Mapping[str, Any]) -> None:
    """Check that a request has no field that would change the answer but is not supported.

    Raises:
        Problem: The request has such a field.
    """
    for name, why in UNSUPPORTED.items():
        if body.get(name) and not (name == "modalities" and body[name] == ["text"]):
            raise Problem("invalid", f"{name} is not supported: {why}", param=name)
    if body.get("n") not in (None, 1):
        raise Problem("invalid", "n must be 1, because an agent gives one answer", param="n")


def options_of(call: HTTPCall, agent: str, system: str, token_limit_field: str) -> TurnOptions | None:
    """Return the turn options that a request sets; None if it sets none.

    Args:
        call: Request with the options.
        agent: Name of the agent.
        system: Text to append to the system prompt.
        token_limit_field: Name of the request field with the maximum number of output tokens.
    """
    body = call.body
    tools, hint = _tools_of(call, agent)
    system = "\n\n".join(filter(None, (system, hint)))
    schema, name = _schema_of(body)
    temperature, tokens = body.get("temperature"), body.get(token_limit_field)
    if tokens is None:
        tokens = body.get("max_tokens")
    if temperature is not None and not (isinstance(temperature, int | float) and 0 <= temperature <= 2):  # noqa: PLR2004 - OpenAI's range
        raise Problem("invalid", "temperature must be a number from 0 to 2", param="temperature")
    if tokens is not None and not (isinstance(tokens, int) and tokens > 0):
        raise Problem(
            "invalid", f"{token_limit_field} must be a whole number above 0", param=token_limit_field
        )
    if temperature is None and tokens is None and not (system or tools) and schema is None:
        return None
    return TurnOptions(
        temperature=None if temperature is None else float(temperature),
        max_tokens=tokens,
        tail=system,
        output=schema,
        output_name=name,
        tools=tools,
    )


def _tools_of(call: HTTPCall, agent: str) -> tuple[tuple[ToolSpec, ...], str]:
    """Return the tools of the client, and a sentence for the model if `tool_choice` requires a call; else an empty text.

    Raises:
        Problem: A tool is no valid function, or the choice names an unknown tool.
    """
    given, choice = call.body.get("tools") or [], call.body.get("tool_choice") or "auto"
    tools = caller_tools(call, agent, [_function_of(each) for each in given]) if given else ()
    names = [each.name for each in tools]
    one = f" {_ONE_CALL}" if names and call.body.get("parallel_tool_calls") is False else ""
    if choice in ("none", "auto"):
        return ((), "") if choice == "none" else (tools, one.strip())
    if choice == "required" and names:
        return tools, f"Call at least one of these tools before you answer: {', '.join(names)}.{one}"
    if isinstance(choice, dict) and choice.get("type") == "function":
        name = choice.get("name") or object_of(choice.get("function"), "tool_choice").get("name")
        if name in names:
            return tools, f"Call the tool {name} before you answer.{one}"
    raise Problem(
        "invalid",
        "tool_choice must be none, auto, required or one of the functions in tools",
        param="tool_choice",
    )


_ONE_CALL = "Call at most one tool at a time."
"""Instruction to the model for `parallel_tool_calls: false`."""


def _function_of(tool: Any) -> Wire:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise Problem("invalid", "the type of a client tool must be function", param="tools")
    function = tool.get("function", tool)
    if not isinstance(function, dict):
        raise Problem("invalid", "function must be an object", param="tools")
    return {name: function.get(name) for name in ("name", "description", "parameters")}


def _schema_of(body: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the JSON Schema of the requested answer format as JSON text, and the name of the schema.

    Return None and an empty name if the request asks for text.
    """
    field = "response_format" if body.get("response_format") else "text"
    given = object_of(body.get("response_format") or (body.get("text") or {}).get("format"), field)
    kind = given.get("type", "text")
    if kind == "text":
        return None, ""
    if kind == "json_object":
        return '{"type": "object"}', "answer"
    schema = object_of(given.get("json_schema") or given, field)
    if kind != "json_schema" or not isinstance(schema.get("schema"), dict):
        raise Problem(
            "invalid", "the format must be text, json_object or json_schema with a schema", param=field
        )
    try:
        compile_schema(schema["schema"], owner=field)
    except ConfigurationError as error:
        raise Problem("invalid", str(error), param=field) from None
    return json.dumps(schema["schema"]), str(schema.get("name") or "answer")


def parts_of(content: Any) -> str | list[Part]:
    """Convert the content of a client's message to message parts. A text is returned unchanged.

    Raises:
        Problem: A part has an unknown type.
    """
    if isinstance(content, str):
        return text_field(content, "content")
    if not isinstance(content, list) or not content:
        raise Problem("invalid", "content must be a string or a list of parts", param="messages")
    return [_part_of(each) for each in content_parts(content)]


def _part_of(part: Any) -> Part:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "input_text", "output_text"):
        return Text(text_field(part.get("text"), "text"))
    if kind == "refusal":
        return Text(text_field(part.get("refusal"), "refusal"))
    if kind in ("image_url", "input_image"):
        url = part.get("image_url")
        if part.get("file_id"):
            raise Problem(
                "invalid", "file_id is not supported: send the image as image_url", param="messages"
            )
        return media_of_url(text_field(url.get("url") if isinstance(url, dict) else url, "image_url"))
    if kind in ("file", "input_file"):
        file = object_of(part.get("file"), "file") if kind == "file" else part
        if file.get("file_id"):
            raise Problem("invalid", "file_id is not supported: send the file as file_data", param="messages")
        data, name = file.get("file_data") or file.get("file_url"), str(file.get("filename") or "file")
        text = text_field(data, "file_data")
        if text.startswith(("data:", "http:", "https:")):
            return media_of_url(text, "" if text.startswith("data:") else "application/pdf", name=name)
        return to_file(text, "application/pdf", name=name)
    raise Problem("invalid", "a part must be a string, an image or a file", param="messages")


def _content_text(content: Any) -> str:
    """Return the text in the content of a message; empty if the content is null or empty."""
    if content is None or content in ("", []):
        return ""
    parts = [] if isinstance(content, list) and all(map(is_empty_text, content)) else parts_of(content)
    return parts if isinstance(parts, str) else "".join(each.text for each in parts if isinstance(each, Text))


@attrs.frozen(kw_only=True)
class RequestMessages:
    """Messages of a request, split into system text, history, and the message, results or decisions to process."""

    system: str
    """Text of the system and developer messages."""
    history: Sequence[ImportedMessage]
    """Earlier messages of the user and the assistant, with tool calls and their results."""
    last: str | list[Part]
    """Content of the message to answer; empty if the request contains results or decisions."""
    results: Mapping[str, Decision] = attrs.field(factory=dict)
    """Results of tool calls at the end of the request, by call id."""
    decisions: Mapping[str, Decision] = attrs.field(factory=dict)
    """Decisions about approvals at the end of the request, by approval id."""

    @property
    def session_id(self) -> str:
        """Id of the session to which the results and decisions belong; empty if this server did not create their ids."""
        return next(map(session_of, (*self.results, *self.decisions)), "")


def messages_of_request(
    body: Mapping[str, Any], field: str, *, instructions: str | None = None
) -> RequestMessages:
    """Parse and split the messages of a request.

    Args:
        body: Body of the request.
        field: Name of the field with the messages.
        instructions: System text that the request has in another field; None without one.

    Raises:
        Problem: The body has no messages, the last one is neither a user message nor a result, or a role is unknown.
    """
    try:
        return _messages_of(body.get(field), instructions)
    except Problem as problem:  # its text names the member of the message
        problem.fields["param"] = field
        raise


def _messages_of(items: Any, instructions: str | None) -> RequestMessages:
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items or not all(isinstance(each, dict) for each in items):
        raise Problem("invalid", "the messages must be a list of objects that is not empty", param="messages")
    system, messages = [instructions] if instructions else [], list[Wire]()
    for item in items:
        if item.get("role") in ("system", "developer"):
            system += filter(None, (_content_text(item.get("content")),))
        elif item.get("type") not in ("reasoning", "mcp_approval_request"):
            messages.append(item)
    results, decisions = dict[str, Decision](), dict[str, Decision]()
    while messages and _kind_of(messages[-1]) in ("tool", "decision"):
        item = messages.pop()
        if _kind_of(item) == "tool":
            results[_call_id_of(item)] = Respond(_text_output_of(item))
        else:
            decisions[text_field(item.get("approval_request_id"), "approval_request_id")] = _approval_of(item)
    known = RequestMessages(
        system="\n\n".join(system), history=(), last="", results=results, decisions=decisions
    )
    if results or decisions:
        return known
    if not messages or _kind_of(messages[-1]) != "user":
        raise Problem(
            "invalid", "the last message must be one of the user, or the result of a tool", param="messages"
        )
    return attrs.evolve(known, history=_history_of(messages[:-1]), last=parts_of(messages[-1].get("content")))


def _kind_of(item: Mapping[str, Any]) -> str:
    """Return the kind of a message or Responses item: `user`, `assistant`, `call`, `tool` or `decision`."""
    kind = {"function_call": "call", "function_call_output": "tool", "mcp_approval_response": "decision"}
    found = kind.get(str(item.get("type"))) or item.get("role")
    if found not in ("user", "assistant", "call", "tool", "decision"):
        item_type = "" if item.get("role") else item.get("type")
        raise Problem(
            "invalid",
            f"items of the type {item_type!r:.100} are not supported"
            if item_type
            else "a message must have the role system, developer, user, assistant or tool",
            param="messages",
        )
    return str(found)


def _call_id_of(item: Mapping[str, Any]) -> str:
    name = "call_id" if item.get("type") == "function_call_output" else "tool_call_id"
    return text_field(item.get(name), name)


def _output_of(item: Mapping[str, Any]) -> str:
    """Return the tool result in a message or item as text; it may be empty."""
    output = item.get("output", item.get("content"))
    return output if isinstance(output, str) else _content_text(output)


def _text_output_of(item: Mapping[str, Any]) -> str:
    """Return the result of a waiting tool call, which must be text."""
    if _media_of(item):
        text = "the result of a waiting tool call must be text: send images and files in a user message"
        raise Problem("invalid", text, param="messages")
    return _output_of(item)


def _media_of(item: Mapping[str, Any]) -> tuple[Medium, ...]:
    """Return the images and files in the tool result of a message or item."""
    output = item.get("output", item.get("content"))
    parts = output if isinstance(output, list) else []
    return tuple(
        each for each in map(_part_of, filterfalse(is_empty_text, parts)) if isinstance(each, Image | File)
    )


def _approval_of(item: Mapping[str, Any]) -> Decision:
    reason = str(item.get("reason") or "")
    return Approve(reason) if item.get("approve") is True else Reject(reason)


def _history_of(items: Sequence[Mapping[str, Any]]) -> list[ImportedMessage]:
    """Convert earlier messages of a client to the history of a session. Tool results get the name of the called tool.

    Answers and results are untrusted, because they may repeat untrusted text that an earlier session has read, and the client
    does not send its label.
    """
    found: list[ImportedMessage] = []
    names: dict[str, str] = {}
    for item in items:
        kind = _kind_of(item)
        if kind == "tool":
            call_id = _call_id_of(item)
            result = ToolResult(
                call_id=call_id,
                tool_name=names.get(call_id, ""),
                content=_output_of(item),
                media=_media_of(item),
                via=HISTORY_SOURCE,
            )
            found.append(ChatMessage("tool", (result,)))
        elif kind == "user":
            given = parts_of(item["content"]) if item.get("content") else []
            _append(found, ChatMessage("user", (Text(given),) if isinstance(given, str) else tuple(given)))
        elif kind in ("assistant", "call"):
            text = _content_text(item.get("content")) or _content_text(item.get("refusal"))
            calls = [_past_call(each) for each in _calls_of(item)]
            names |= {each.id: each.name for each in calls}
            parts = (*([Text(text)] if text else ()), *calls)
            _append(found, LabelledMessage("assistant", parts, HISTORY_SOURCE))
    return found


def _append(history: list[ImportedMessage], message: ChatMessage) -> None:
    """Append a message to the history. Consecutive messages of the model are merged, because Responses has an item per call."""
    last = history[-1] if history else None
    if isinstance(last, ChatMessage) and last.role == message.role == "assistant":
        history[-1] = attrs.evolve(last, parts=(*last.parts, *message.parts))
    elif message.parts:
        history.append(message)


def _calls_of(item: Mapping[str, Any]) -> Sequence[Any]:
    if item.get("type") == "function_call":
        return [{"id": item.get("call_id"), "function": item}]
    calls = item.get("tool_calls") or ()
    if not isinstance(calls, list | tuple):
        raise Problem("invalid", "tool_calls must be a list", param="messages")
    return calls


def _past_call(given: Any) -> ToolCall:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict):
        raise Problem("invalid", "a tool call must have an id and a function", param="messages")
    try:
        arguments = load_document(function.get("arguments") or "{}")
    except (TypeError, ValueError):
        arguments = {}
    name = text_field(function.get("name"), "name")
    call_id = text_field(given.get("id"), "the id of a tool call")
    return ToolCall(name, arguments if isinstance(arguments, dict) else {}, id=call_id)


# --- chat completions ------------------------------------------------------------------------


def _session_of_chat(call: HTTPCall) -> str:
    """Return the id of the session that a chat completion request continues; empty for a new session.

    The id is in the header `X-Session-Id`, or in the ids of the tool calls whose results the request contains.
    """
    return session_of_field(call.header("x-session-id")) or _session_of_result(call.body.get("messages"))


def _session_of_result(items: Any) -> str:
    """Return the id of the session to which the last item belongs, if it is a tool result or decision; else an empty text."""
    last = items[-1] if isinstance(items, list) and items else None
    if not isinstance(last, dict):
        return ""
    named = last.get("tool_call_id") or last.get("call_id") or last.get("approval_request_id")
    return session_of(named) if isinstance(named, str) else ""


def _with_idempotency_key(call: HTTPCall, session_of: Callable[[HTTPCall], str]) -> HTTPCall:
    """Return a copy of a request to an existing session with an `Idempotency-Key`, if it has none."""
    if call.header("idempotency-key") or not session_of(call):
        return call
    return attrs.evolve(call, headers={**call.headers, "idempotency-key": new_id()})


async def list_models(call: HTTPCall) -> Response:
    """List the running agents as OpenAI models."""
    names = sorted(call.gateway.access.runtime.agents)
    return JSON({"object": "list", "data": [_model(name) for name in names]})


async def get_model(call: HTTPCall) -> Response:
    """Return one agent as an OpenAI model."""
    if call.path["id"] not in call.gateway.access.runtime.agents:
        raise Problem("not-found", "no agent has this name", code="model_not_found")
    return JSON(_model(call.path["id"]))


def _model(name: str) -> Wire:
    return {"id": name, "object": "model", "created": 0, "owned_by": "actgent"}


async def chat_completions(call: HTTPCall) -> Response:
    """Answer a chat completion request.

    With the header `X-Session-Id` a session stores the conversation; without it, the request's earlier messages are the
    history.
    """
    body, agent = call.body, agent_of(call)
    check_types(body, _CHAT_TYPES)
    check_supported(body)
    request = messages_of_request(body, "messages")
    options = options_of(call, agent, request.system, "max_completion_tokens")  # before a session is created
    session_id = call.header("x-session-id")
    if request.results:
        session = await _find_waiting_session(
            call, agent, request, to_client_id(session_id) if session_id else ""
        )
    elif session_id:
        session = await find_session(call, agent, to_client_id(session_id))
    else:
        session = await _new_session(call, agent, request, "messages")
    message_id = (call.idempotency_key if session_id else "") or new_id()
    run = Run(
        call=call,
        session=session,
        message_id="" if request.results else message_id,
        content=request.last,
        results=request.results,
        options=with_system_layer(session, options),
        is_temporary=not session_id,
    )
    base = {"id": f"chatcmpl-{message_id}", "created": int(time.time()), "model": agent}
    if body.get("stream"):
        wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        encoder = ChatEncoder(base, wants_usage=wants_usage)
        return RunStream(run, encoder.encode, first=encoder.first, last=DONE)
    return _completion(base, await collect(run))


async def _new_session(
    call: HTTPCall, agent: str, request: RequestMessages, field: str, *, session_id: str | None = None
) -> Session:
    """Create a session with the earlier messages of a request, which are in `field`. None lets the server choose the id.

    Raises:
        Problem: The messages are no valid conversation, for example because a tool call has no result.
    """
    opener = call.gateway.access.known_opener(agent)
    try:
        return await create_session(call, opener, session_id=session_id, history=request.history)
    except SessionExists:  # a request with the same `Idempotency-Key` created it
        return await find_session(call, agent, session_id or "")
    except ConfigurationError as error:
        raise Problem("invalid", f"{field} has no valid order: {error}", param=field) from None


async def _find_waiting_session(
    call: HTTPCall, agent: str, request: RequestMessages, session_id: str = ""
) -> Session:
    """Return the session whose turn waits for the tool results or decisions in a request.

    Args:
        call: Request of the client.
        agent: Name of the agent.
        request: Parsed messages of the request.
        session_id: Id of the session that the request names; empty if it names none.

    Raises:
        Problem: The caller has no such session, or the results belong to another session.
    """
    found = request.session_id
    if not found or session_id not in ("", found):
        raise _unknown_call()
    try:
        return await suspended_session(call, agent, found)
    except Problem as problem:
        raise (_unknown_call() if problem.kind == "not-found" else problem) from None


def _unknown_call() -> Problem:
    return Problem(
        "invalid", "no tool call of this id waits for a result", param="messages", code="unknown_tool_call"
    )


def _completion(base: Wire, events: Sequence[RunEvent]) -> Response:
    text, failed = text_of_run(events), _end_of(events)
    if failed.failed and failed.failed not in (*_FINISH, "interrupted", "stopped"):
        kind = "limit-reached" if failed.failed == "limit" else "unavailable"
        problem = Problem(kind, failed.reason or f"the agent failed: {failed.failed}", code=failed.failed)
        # OpenAI's SDKs would send the same message again, although its turn has ended.
        problem.headers["x-should-retry"] = "false"
        raise problem
    message: Wire = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    finish = _FINISH.get(failed.failed or "", "stop")
    suspended = next((event for event in events if isinstance(event, RunSuspended)), None)
    if suspended is not None and suspended.caller_calls:
        message["content"] = text or None
        message["tool_calls"] = [_tool_call(each) for each in suspended.caller_calls]
        finish = "tool_calls"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    document = {
        **base,
        "object": "chat.completion",
        "choices": [choice],
        "usage": chat_usage(failed.usage),
        "service_tier": "default",
    }
    if suspended is not None and suspended.user_approvals:
        document["actgent"] = {"approvals": [each.id for each in suspended.user_approvals]}
    return JSON(document)


def _tool_call(approval: Approval) -> Wire:
    """Encode a call of a client's tool. Its id is the approval id, which contains the session id."""
    function = {"name": approval.tool_name, "arguments": to_text(dict(approval.arguments))}
    return {"id": approval.id, "type": "function", "function": function}


def text_of_run(events: Sequence[RunEvent]) -> str:
    """Return the answer text of a run: its last text. If the run is suspended, append the questions to the user."""
    texts = [event.text for event in events if isinstance(event, AnswerDone) and event.text]
    for event in events:
        if isinstance(event, RunSuspended):
            return "\n".join([*texts[-1:], *map(question_text, event.user_approvals)])
    return texts[-1] if texts else ""


def _end_of(events: Sequence[RunEvent]) -> RunEnded:
    for event in reversed(events):
        if isinstance(event, RunEnded):
            return event
    usage = Usage()
    for event in events:
        if isinstance(event, AnswerDone):
            usage += event.usage
    return RunEnded(failed=None, reason="", stop="", usage=usage)


def chat_usage(usage: Usage) -> Wire:
    """Encode a token usage as chat completions define it."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


@attrs.define
class ChatEncoder:
    """Encoder of the events of a run as chunks of a streamed chat completion."""

    base: Wire
    wants_usage: bool = attrs.field(kw_only=True)
    _has_text: bool = False
    _usage: Usage = attrs.field(factory=Usage)
    _gap: str = ""
    """Text to send before the next delta: it separates two answers, or marks that the text so far is discarded."""

    def first(self) -> bytes:
        """Return the first encoded chunk of a stream, which has the role of the answer."""
        return self._chunk({"role": "assistant", "content": ""})

    def encode(self, event: RunEvent) -> bytes:
        """Encode an event of a run as chunks of the stream; empty if the protocol has no counterpart."""
        match event:
            case TextDelta():
                text, self._gap, self._has_text = self._gap + event.text, "", True
                return self._chunk({"content": text})
            case TextDiscarded():
                self._gap = "\n\n" if self._has_text else ""
            case AnswerDone() if event.text:
                self._gap = "\n\n"
                self._usage += event.usage
            case RunSuspended():
                return self._suspend(event)
            case AnswerDone():
                self._usage += event.usage
            case RunEnded():
                return self._end(event)
        return b""

    def _suspend(self, event: RunSuspended) -> bytes:
        questions = "\n".join(map(question_text, event.user_approvals))
        data = self._chunk({"content": self._gap + questions}) if questions else b""
        for place, asked in enumerate(event.caller_calls):
            data += self._chunk({"tool_calls": [{"index": place, **_tool_call(asked)}]})
        return data + self._finish("tool_calls" if event.caller_calls else "stop", self._usage)

    def _end(self, event: RunEnded) -> bytes:
        if event.failed and event.failed not in (*_FINISH, "interrupted", "stopped"):
            words = event.reason or f"the agent failed: {event.failed}"
            return to_sse(
                {"error": {"message": words, "type": "server_error", "param": None, "code": event.failed}}
            )
        return self._finish(_FINISH.get(event.failed or "", "stop"), event.usage)

    def _finish(self, reason: str, usage: Usage) -> bytes:
        last = self._chunk({}, reason)
        if self.wants_usage:
            last += to_sse(
                {**self.base, "object": "chat.completion.chunk", "choices": [], "usage": chat_usage(usage)}
            )
        return last

    def _chunk(self, delta: Wire, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return to_sse({**self.base, "object": "chat.completion.chunk", "choices": [choice]})


# --- Responses -------------------------------------------------------------------------------


def _session_of_response(call: HTTPCall) -> str:
    """Return the id of the session that a Responses request continues; empty for a new session."""
    previous = call.body.get("previous_response_id")
    if isinstance(previous, str) and previous:
        return _parts_of_id(previous)[0]
    return _session_of_result(call.body.get("input")) or _session_id_of_idempotency_key(call)


def _session_id_of_idempotency_key(call: HTTPCall) -> str:
    """Derive the id of a new session from the header `Idempotency-Key`. A retry then finds the session of the first request.

    Return an empty id, so that a random one is used, if the header is missing or the request has `store: false`.
    """
    if call.body.get("store") is False:
        return ""
    key = call.header("idempotency-key")
    text = f"{call.caller.owner}\n{key}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16, person=b"actgent.openai").hexdigest() if key else ""


def _session_of_path(call: HTTPCall) -> str:
    return _parts_of_id(call.path["id"])[0]


def _parts_of_id(response_id: str) -> tuple[str, str]:
    """Return the session id and the message id that a response id contains; empty texts if this server did not create it."""
    if not response_id.startswith("resp_"):
        return "", ""
    session_id, _, message_id = response_id.removeprefix("resp_").partition(_SEPARATOR)
    return session_id, message_id


async def create_response(call: HTTPCall) -> Response:
    """Answer a Responses request. With `previous_response_id`, continue the session of an earlier response."""
    body, agent = call.body, agent_of(call)
    check_types(body, _RESPONSE_TYPES)
    check_supported(body)
    if body.get("background") and body.get("store") is False:
        raise Problem("invalid", "background cannot be combined with store: false", param="background")
    request = messages_of_request(body, "input", instructions=body.get("instructions"))
    if request.decisions and not call.caller.allows("approve"):
        raise Problem("forbidden", "mcp_approval_response requires a token with the scope `approve`")
    options = options_of(call, agent, request.system, "max_output_tokens")  # before a session is created
    previous = body.get("previous_response_id")
    if previous is not None:
        session, _ = await _session_of(call, agent, text_field(previous, "previous_response_id"))
    decided = next(iter((*request.results, *request.decisions)), "")
    if decided:
        session = await _find_waiting_session(call, agent, request, "" if previous is None else session.id)
    elif previous is None:
        session = await _new_session(
            call, agent, request, "input", session_id=_session_id_of_idempotency_key(call) or new_id()
        )
    is_temporary = previous is None and body.get("store") is False
    message_id = ("" if is_temporary else _id_of_key(call)) or new_id()
    run = Run(
        call=call,
        session=session,
        message_id="" if decided else message_id,
        content=request.last,
        results=request.results,
        decisions=request.decisions,
        options=with_system_layer(session, options),
        is_temporary=is_temporary,
    )
    made_id = response_id(session.id, decided.partition(".")[0] + _AFTER if decided else message_id)
    resource = partial(response_resource, made_id, int(time.time()), agent, dict(body))
    encoder = ResponseEncoder(resource)
    if body.get("background") and not body.get("stream"):
        async with run.open(
            streams=False
        ):  # the message is accepted, and its turn does not depend on this request
            return JSON(resource("queued", [], None))
    if body.get("stream"):
        return RunStream(run, encoder.encode, first=encoder.first)
    for event in await collect(run):
        encoder.encode(event)
    return JSON(encoder.final)


def _id_of_key(call: HTTPCall) -> str:
    """Derive a message id from the `Idempotency-Key`, so that a retry finds its message; empty without a key."""
    key = call.header("idempotency-key").encode("utf-8", "surrogatepass")
    return hashlib.blake2b(key, digest_size=16).hexdigest() if key else ""


async def get_response(call: HTTPCall) -> Response:
    """Return a response that was created before. With `stream=true`, stream its events after number `starting_after`.

    Without a stream, the status of the response is `in_progress` until its run has ended.
    """
    session, run, turn_id = await _run_of(call)
    resource = partial(response_resource, call.path["id"], 0, session.agent_name, {})
    if call.query.get("stream") == "true":
        encoder = ResponseEncoder(resource, starting_after=call.query.get("starting_after", -1))
        return RunStream(run, encoder.encode, first=encoder.first)
    context = context_of(session)
    waiting = any(each.id == turn_id for each in context.waiting_messages)
    if waiting or (context.turn is not None and context.turn.message.id == turn_id):
        return JSON(resource("queued" if waiting else "in_progress", [], None))
    encoder = ResponseEncoder(resource)
    for event in await collect(run):
        encoder.encode(event)
    return JSON(encoder.final)


async def _run_of(call: HTTPCall) -> tuple[Session, Run, str]:
    """Return the session and the run of the response whose id is in the path, and the id of the message that started its turn.

    Raises:
        Problem: The caller has no such response.
    """
    session, message_id = await _session_of(call, None, call.path["id"])
    if not message_id.endswith(_AFTER):
        return session, Run(call=call, session=session, message_id=message_id, is_read=True), message_id
    # The response followed results or decisions.
    decided = f"{message_id.removesuffix(_AFTER)}.{session.id}"
    run = Run(call=call, session=session, after_decision=decided, is_read=True)
    return session, run, (await run.find_decision()).turn


async def cancel_response(call: HTTPCall) -> Response:
    """Interrupt the run of a response, and return the response."""
    session, _, turn_id = await _run_of(call)
    if not context_of(session).has_accepted(turn_id):
        raise missing()
    opened = await call.gateway.access.session(call.caller, session.id, session.agent_name)
    await opened.interrupt("cancelled by the client", message_id=turn_id)
    return await get_response(call)


async def compact(_call: HTTPCall) -> Response:
    """Reject a request to compact a conversation, because each agent shortens its own context."""
    raise Problem("not-found", "conversations are not compacted here: each agent shortens its own context")


def response_id(session_id: str, message_id: str) -> str:
    """Build the id of a response from its session id and its message id."""
    return f"resp_{session_id}{_SEPARATOR}{message_id}"


async def _session_of(call: HTTPCall, agent: str | None, response_id: str) -> tuple[Session, str]:
    """Return the session and the message id that belong to a response id.

    Raises:
        Problem: The caller has no such response, or another agent created it.
    """
    session_id, message_id = _parts_of_id(response_id)
    gone = Problem("not-found", "no response has this id", param="previous_response_id", code="not_found")
    if not session_id:
        raise gone
    try:
        session, _ = await existing_session(call, agent, session_id)
    except Problem:
        raise gone from None
    return session, message_id


def response_resource(  # noqa: PLR0917 - called with the first four bound
    given_id: str,
    created: int,
    agent: str,
    body: Mapping[str, Any],
    status: str,
    output: Sequence[Wire],
    usage: Usage | None,
) -> Wire:
    """Encode a response object as the Responses API defines it."""
    return {
        "id": given_id,
        "object": "response",
        "created_at": created,
        "completed_at": int(time.time()) if status == "completed" else None,
        "status": status,
        "incomplete_details": None,
        "model": agent,
        "previous_response_id": body.get("previous_response_id"),
        "instructions": body.get("instructions"),
        "output": list(output),
        "error": None,
        "tools": [{"strict": None, "description": None, **each} for each in body.get("tools") or ()],
        "tool_choice": body.get("tool_choice") or "auto",
        "truncation": "disabled",
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "text": body.get("text") or {"format": {"type": "text"}},
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "temperature": body.get("temperature") if body.get("temperature") is not None else 1.0,
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "usage": None if usage is None else response_usage(usage),
        "max_output_tokens": body.get("max_output_tokens"),
        "max_tool_calls": None,
        "store": body.get("store") is not False,
        "background": bool(body.get("background")),
        "service_tier": "default",
        "metadata": body.get("metadata") or {},
        "safety_identifier": None,
        "prompt_cache_key": None,
    }


def response_usage(usage: Usage) -> Wire:
    """Encode a token usage as the Responses API defines it."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


@attrs.define
class ResponseEncoder:
    """Encoder of the events of a run as events of the Responses API. It also stores the completed response.

    The number of a text delta is the number of its item plus the number of characters of the item's text up to the delta's
    end. So a repeated stream has the same numbers, however the text is divided, and a client can resume within a text.
    """

    resource: Any
    """Builds the response object from its status, its output and its usage."""
    starting_after: int = -1
    """Number of the last event that the client has received. Events up to it are left out, except the final event."""
    final: Wire = attrs.field(factory=dict)
    """The completed response object; empty before the run has ended."""
    _number: int = 0
    """`sequence_number` of the next event."""
    _output: list[Wire] = attrs.field(factory=list)
    _open: str = ""
    """Id of the item whose text is being sent; empty between texts."""
    _text: str = ""
    _usage: Usage = attrs.field(factory=Usage)

    def first(self) -> bytes:
        """Return the encoded events with which each stream begins."""
        begun = self.resource("in_progress", [], None)
        return self._sse("response.created", response=begun) + self._sse(
            "response.in_progress", response=begun
        )

    def encode(self, event: RunEvent) -> bytes:
        """Encode an event of a run as server-sent events; empty if the protocol has no counterpart."""
        return b"".join(self._encode(event))

    def _encode(self, event: RunEvent) -> Iterator[bytes]:
        match event:
            case TextDelta():
                yield from self._add_text(event)
            case TextDiscarded():
                yield from self._close_item("incomplete")
            case AnswerDone():
                self._usage += event.usage
                yield from self._close_item("completed")
            case RunSuspended():
                yield from self._close_item("completed")
                for asked in event.caller_calls:
                    yield from self._add_call(asked)
                for approval in event.user_approvals:
                    if approval.sources:  # the item of an approval has no member for the sources
                        question = TextDelta(reply_id=approval.id, text=question_text(approval))
                        yield from self._add_text(question)
                        yield from self._close_item("completed")
                    item = {
                        "id": approval.id,
                        "type": "mcp_approval_request",
                        "name": approval.tool_name,
                        "arguments": to_text(dict(approval.arguments)),
                        "server_label": approval.agent,
                    }
                    yield from self._add_item(item)
                yield from self._end("completed", {})
            case RunEnded():
                self._usage = event.usage
                yield from self._close_item("incomplete")
                yield from self._end(*_status_of(event))

    def _add_text(self, event: TextDelta) -> Iterator[bytes]:
        item_id, place = f"msg_{event.reply_id}", len(self._output)
        if self._open != item_id:
            yield from self._close_item("incomplete")
            self._open, self._text, place = item_id, "", len(self._output)
            item = {**_message_item(item_id, "", "in_progress"), "content": []}
            yield self._sse("response.output_item.added", output_index=place, item=item)
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield self._sse("response.content_part.added", **self._item_position(place), part=part)
        self._text += event.text
        received = min(max(self.starting_after - self._number + 1, 0), len(event.text))
        self._number += len(event.text) - 1
        delta = event.text[received:]
        yield self._sse("response.output_text.delta", **self._item_position(place), delta=delta, logprobs=[])

    def _item_position(self, place: int) -> Wire:
        return {"item_id": self._open, "output_index": place, "content_index": 0}

    def _close_item(self, status: str) -> Iterator[bytes]:
        if not self._open:
            return
        place, item = len(self._output), _message_item(self._open, self._text, status)
        yield self._sse(
            "response.output_text.done", **self._item_position(place), text=self._text, logprobs=[]
        )
        yield self._sse("response.content_part.done", **self._item_position(place), part=item["content"][0])
        yield self._sse("response.output_item.done", output_index=place, item=item)
        self._output.append(item)
        self._open = self._text = ""

    def _add_item(self, item: Wire) -> Iterator[bytes]:
        place = len(self._output)
        yield self._sse("response.output_item.added", output_index=place, item=item)
        yield self._sse("response.output_item.done", output_index=place, item=item)
        self._output.append(item)

    def _add_call(self, approval: Approval) -> Iterator[bytes]:
        """Add a call of a client's tool to the output, and yield the events for it.

        The id of the call is the approval id, which contains the session id.
        """
        place, arguments = len(self._output), to_text(dict(approval.arguments))
        known = {
            "id": f"fc_{approval.id}",
            "type": "function_call",
            "call_id": approval.id,
            "name": approval.tool_name,
        }
        at = {"item_id": known["id"], "output_index": place}
        begun = {**known, "arguments": "", "status": "in_progress"}
        item = {**known, "arguments": arguments, "status": "completed"}
        yield self._sse("response.output_item.added", output_index=place, item=begun)
        yield self._sse("response.function_call_arguments.delta", **at, delta=arguments)
        yield self._sse(
            "response.function_call_arguments.done", **at, name=approval.tool_name, arguments=arguments
        )
        yield self._sse("response.output_item.done", output_index=place, item=item)
        self._output.append(item)

    def _end(self, status: str, fields: Wire) -> Iterator[bytes]:
        self.final = {**self.resource(status, self._output, self._usage), **fields}
        self._number = max(self._number, self.starting_after + 1)
        name = "response.failed" if status == "cancelled" else f"response.{status}"
        yield self._sse(name, response=self.final)

    def _sse(self, kind: str, **fields: Any) -> bytes:
        number = self._number
        self._number += 1
        if number <= self.starting_after:
            return b""
        return to_sse({"type": kind, "sequence_number": number, **fields}, event=kind)


def _status_of(event: RunEnded) -> tuple[str, Wire]:
    """Return the status of a response whose run has ended, and the fields that explain a status other than `completed`."""
    if event.failed is None:
        return "completed", {}
    if event.failed in _FINISH:
        reason = "max_output_tokens" if event.failed == "length" else "content_filter"
        return "incomplete", {"incomplete_details": {"reason": reason}}
    if event.failed in ("interrupted", "stopped"):
        return "cancelled", {}
    code = "rate_limit_exceeded" if event.failed == "limit" else "server_error"
    words = event.reason or f"the agent failed: {event.failed}"
    return "failed", {"error": {"code": code, "message": words}}


def _message_item(item_id: str, text: str, status: str) -> Wire:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": [part]}


# --- addresses -------------------------------------------------------------------------------

_Row = partial(Endpoint, prefix="", to_error=to_error)
ENDPOINTS = (
    _Row(verb="GET", path="/openai/v1/models", answer=list_models, scope="read", forwarding=ANY_NODE),
    _Row(verb="GET", path="/openai/v1/models/{id}", answer=get_model, scope="read", forwarding=ANY_NODE),
    _Row(
        verb="POST",
        path="/openai/v1/chat/completions",
        answer=chat_completions,
        scope="chat",
        body={"type": "object"},
        has_parts=True,
        streams=True,
        is_stream=is_stream_requested,
        headers={"X-Session-Id": "Id of the session that keeps the conversation."},
        id_field="",
        forwarding=Forwarding(
            session_of=_session_of_chat,
            awaits_run=True,
            add_ids=partial(_with_idempotency_key, session_of=_session_of_chat),
            sends_message=sends_always,
        ),
    ),
    _Row(
        verb="POST",
        path="/openai/v1/responses",
        answer=create_response,
        scope="chat",
        body={"type": "object"},
        has_parts=True,
        streams=True,
        is_stream=is_stream_requested,
        id_field="",
        forwarding=Forwarding(
            session_of=_session_of_response,
            awaits_run=True,
            add_ids=partial(_with_idempotency_key, session_of=_session_of_response),
            sends_message=sends_always,
        ),
    ),
    _Row(
        verb="POST",
        path="/openai/v1/responses/compact",
        answer=compact,
        scope="chat",
        body={"type": "object"},
        forwarding=ANY_NODE,
    ),
    _Row(
        verb="GET",
        path="/openai/v1/responses/{id}",
        answer=get_response,
        scope="read",
        query={"stream": {"enum": ["true", "false"]}, "starting_after": NUMBER},
        streams=True,
        is_stream=is_stream_requested,
        forwarding=Forwarding(session_of=_session_of_path, awaits_run=True, served_while_draining=True),
    ),
    _Row(
        verb="POST",
        path="/openai/v1/responses/{id}/cancel",
        answer=cancel_response,
        scope="chat",
        body={"type": "object"},
        forwarding=Forwarding(session_of=_session_of_path, awaits_run=True, served_while_draining=True),
    ),
)


@attrs.frozen
class OpenAIProtocol:
    """The OpenAI-compatible protocol at `/openai/v1` of a gateway: chat completions and Responses."""

    name: str = attrs.field(default="openai", init=False)
    title: str = attrs.field(default="OpenAI clients", init=False)
    address: str = attrs.field(default="/openai/v1", init=False)
    background: None = attrs.field(default=None, init=False)

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return ENDPOINTS
