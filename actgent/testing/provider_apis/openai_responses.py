"""OpenAI responses API, `POST /v1/responses`. Source: the API reference, and recorded requests."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from actgent.llm.model_interface import ChatMessage, ModelRequest, ModelResponse, ResponseFormat, Role
from actgent.messages import File, Image, Opaque, Part, Text, Thinking, ToolCall, ToolResult, ToolSpec

from .openai_errors import openai_error
from .openai_request_validation import check_compaction, check_responses_input, check_responses_request
from .provider_api_interface import (
    NEW_YEAR,
    ErrorBody,
    Pieces,
    ProviderAPI,
    ProviderRequest,
    arguments_text,
    call_id,
    decode_arguments,
    plain_text,
    split,
    sse,
    thinking_data,
    to_media,
    usage_of,
)
from .transcript_rules import Problems

_INCOMPLETE = {"length": "max_output_tokens", "filter": "content_filter"}


class OpenAIResponsesAPI(ProviderAPI):
    """Parses requests and formats answers of the OpenAI responses API."""

    name = "openai-responses"
    path = "/v1/responses"
    counting_path = "/v1/responses/input_tokens"
    compacting_path = "/v1/responses/compact"
    terminal = re.compile(rb"event: response\.(completed|incomplete)\n")

    def check_request(self, body: Mapping[str, Any]) -> Problems:
        return check_responses_request(body)

    def check_messages(self, messages: object) -> Problems:
        return check_responses_input(messages)

    def read(self, body: Mapping[str, Any]) -> ModelRequest:
        items = _items(body.get("input") or ())
        names = {item["call_id"]: item["name"] for item in items if item.get("type") == "function_call"}
        system = [
            body.get("instructions") or "",
            *(plain_text(item["content"]) for item in items if _is_system(item)),
        ]
        return ModelRequest(
            system="\n\n".join(filter(None, system)),
            messages=tuple(_messages((item for item in items if not _is_system(item)), names)),
            tools=tuple(_tool(tool) for tool in body.get("tools") or () if tool.get("type") == "function"),
            temperature=body.get("temperature"),
            max_tokens=body.get("max_output_tokens"),
            response_format=_response_format((body.get("text") or {}).get("format")),
        )

    def body(self, answer: ModelResponse, request: ProviderRequest) -> Mapping[str, Any]:
        return _response(answer, request, output=list(_output(answer, request)))

    def events(self, answer: ModelResponse, request: ProviderRequest, *, chunk: int) -> Pieces:
        for number, (kind, data) in enumerate(_events(answer, request, chunk)):
            name = f"response.{kind}"
            yield sse({"type": name, "sequence_number": number, **data}, event=name)

    def check_compaction(self, body: Mapping[str, Any]) -> Problems:
        return check_compaction(body)

    def compacted(self, request: ProviderRequest) -> Mapping[str, Any]:
        usage = _usage(ModelResponse(parts=()), request)
        users = [item for item in _items(request.json.get("input") or ()) if item.get("role") == "user"]
        sealed = {
            "id": f"cmp_{request.number:08d}",
            "type": "compaction",
            "encrypted_content": f"sealed_{request.number:08d}",
        }
        return {
            "id": f"resp_{request.number:08d}",
            "object": "response.compaction",
            "created_at": NEW_YEAR + request.number,
            "output": [*users, sealed],
            "usage": usage,
        }

    def error(self, status: int, *, code: str | None = None, message: str | None = None) -> ErrorBody:
        return ErrorBody(status, {"error": openai_error(status, code=code, message=message)})

    def error_event(self, *, code: str | None = None, message: str | None = None) -> bytes:
        error = openai_error(500, code=code, message=message)
        return sse({"type": "error", "sequence_number": 0, "error": error}, event="error")


# --- writing -----------------------------------------------------------------------------


def _response(
    answer: ModelResponse, request: ProviderRequest, *, output: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Encode a scripted answer as the completed response object with these output items."""
    reason = _INCOMPLETE.get(answer.stop)
    return _head(answer, request) | {
        "status": "completed" if reason is None else "incomplete",
        "completed_at": NEW_YEAR + request.number if reason is None else None,
        "incomplete_details": None if reason is None else {"reason": reason},
        "output": output,
        "usage": _usage(answer, request),
    }


def _head(answer: ModelResponse, request: ProviderRequest) -> dict[str, Any]:
    """Return the response object of a stream's first event. It has no output yet."""
    asked = request.json
    return {
        "id": answer.id or f"resp_{request.number:08d}",
        "object": "response",
        "created_at": NEW_YEAR + request.number,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.get("instructions"),
        "max_output_tokens": asked.get("max_output_tokens"),
        "model": answer.model or request.model,
        "output": [],
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "previous_response_id": asked.get("previous_response_id"),
        "reasoning": asked.get("reasoning") or {"effort": None, "summary": None},
        "store": asked.get("store", True),
        "temperature": asked.get("temperature", 1.0),
        "text": asked.get("text") or {"format": {"type": "text"}},
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": [_echo_tool(tool) for tool in asked.get("tools") or ()],
        "top_p": asked.get("top_p", 1.0),
        "top_logprobs": asked.get("top_logprobs", 0),
        "presence_penalty": asked.get("presence_penalty", 0.0),
        "frequency_penalty": asked.get("frequency_penalty", 0.0),
        "max_tool_calls": asked.get("max_tool_calls"),
        "prompt_cache_key": asked.get("prompt_cache_key"),
        "safety_identifier": asked.get("safety_identifier"),
        "service_tier": "default",
        "truncation": asked.get("truncation", "disabled"),
        "usage": None,
        "metadata": asked.get("metadata") or {},
    }


def _echo_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the form of a requested tool in the response object, with the API's default values."""
    if tool.get("type") != "function":
        return tool
    return {"description": None, "strict": True, "parameters": None, **tool}


def _usage(answer: ModelResponse, request: ProviderRequest) -> dict[str, Any]:
    usage = usage_of(answer, request)
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _output(answer: ModelResponse, request: ProviderRequest) -> Iterator[dict[str, Any]]:
    """Encode the parts of a scripted answer as output items. Consecutive text and refusal parts become one message."""
    numbered = enumerate(itertools.groupby(answer.parts, key=type))
    for index, (kind, group) in numbered:
        if kind is Text:
            yield _message(group, answer, f"msg_{request.number:08d}_{index}")
        else:
            for place, part in enumerate(group):
                yield _item(part, request, f"{request.number:08d}_{index}_{place}")


def _message(parts: Iterator[Part], answer: ModelResponse, key: str) -> dict[str, Any]:
    text = "".join(part.text for part in parts if isinstance(part, Text))
    text_part = {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
    content = {"type": "refusal", "refusal": text} if answer.stop == "refusal" else text_part
    status = "incomplete" if answer.stop in _INCOMPLETE else "completed"
    return {"id": key, "type": "message", "status": status, "role": "assistant", "content": [content]}


def _item(part: Part, request: ProviderRequest, key: str) -> dict[str, Any]:
    match part:
        case ToolCall():
            return {
                "id": f"fc_{key}",
                "type": "function_call",
                "status": "completed",
                "arguments": arguments_text(part),
                "call_id": call_id(part, default=f"call_{key}"),
                "name": part.name,
            }
        case Thinking():
            return thinking_data(part, "openai-responses") or _reasoning(part, request, key)
        case Opaque():
            return dict(part.data)
        case _:
            raise TypeError(
                f"a scripted answer must not contain a {type(part).__name__}"
            )  # to_answer has refused it


def _reasoning(part: Thinking, request: ProviderRequest, key: str) -> dict[str, Any]:
    """Encode a thinking part as a reasoning item. Its encrypted content is included only if the request asks for it."""
    is_encrypted = "reasoning.encrypted_content" in (request.json.get("include") or ())
    summary = [{"type": "summary_text", "text": part.text}] if part.text else []
    item = {"id": f"rs_{key}", "type": "reasoning", "summary": summary}
    return item | ({"encrypted_content": f"sealed_{key}"} if is_encrypted else {})


_Event = tuple[str, dict[str, Any]]


def _events(answer: ModelResponse, request: ProviderRequest, chunk: int) -> Iterator[_Event]:
    head = _head(answer, request)
    output = list(_output(answer, request))
    yield "created", {"response": head}
    yield "in_progress", {"response": head}
    for index, item in enumerate(output):
        yield "output_item.added", {"output_index": index, "item": _started_item(item)}
        for kind, data in _item_events(item, chunk):
            yield kind, {"item_id": item.get("id"), "output_index": index, **data}
        yield "output_item.done", {"output_index": index, "item": item}
    response = _response(answer, request, output=output)
    yield response["status"], {"response": response}


_GROWING: Mapping[str, Mapping[str, Any]] = {
    "message": {"status": "in_progress", "content": []},
    "function_call": {"status": "in_progress", "arguments": ""},
    "reasoning": {"summary": []},
}


def _started_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of an output item in its start event: members that deltas fill are empty."""
    return {**item, **_GROWING.get(item["type"], {})}


def _item_events(item: Mapping[str, Any], chunk: int) -> Iterator[_Event]:
    match item["type"]:
        case "message":
            for index, part in enumerate(item["content"]):
                yield from _content_events(part, index, chunk)
        case "function_call":
            for piece in split(item["arguments"], chunk):
                yield "function_call_arguments.delta", {"delta": piece}
            yield "function_call_arguments.done", {"arguments": item["arguments"]}
        case "reasoning":
            for index, part in enumerate(item["summary"]):
                yield from _summary_events(part, index, chunk)


def _content_events(part: Mapping[str, Any], index: int, chunk: int) -> Iterator[_Event]:
    field, name = ("refusal", "refusal") if part["type"] == "refusal" else ("text", "output_text")
    place = {"content_index": index}
    more: dict[str, Any] = {} if field == "refusal" else {"logprobs": []}
    yield "content_part.added", {**place, "part": {**part, field: ""}}
    for piece in split(part[field], chunk):
        yield f"{name}.delta", {**place, "delta": piece, **more}
    yield f"{name}.done", {**place, field: part[field], **more}
    yield "content_part.done", {**place, "part": part}


def _summary_events(part: Mapping[str, Any], index: int, chunk: int) -> Iterator[_Event]:
    place = {"summary_index": index}
    yield "reasoning_summary_part.added", {**place, "part": {**part, "text": ""}}
    for piece in split(part["text"], chunk):
        yield "reasoning_summary_text.delta", {**place, "delta": piece}
    yield "reasoning_summary_text.done", {**place, "text": part["text"]}
    yield "reasoning_summary_part.done", {**place, "part": part}


# --- reading -----------------------------------------------------------------------------

_ROLES: Mapping[str, Role] = {
    "function_call": "assistant",
    "reasoning": "assistant",
    "function_call_output": "tool",
}


def _items(given: str | Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def _is_system(item: Mapping[str, Any]) -> bool:
    return item.get("role") in ("system", "developer")


def _role(item: Mapping[str, Any]) -> Role:
    if item.get("role") in ("user", "assistant"):
        return "user" if item["role"] == "user" else "assistant"
    return _ROLES.get(item.get("type", ""), "assistant")


def _messages(items: Iterator[Mapping[str, Any]], names: Mapping[str, str]) -> Iterator[ChatMessage]:
    """Convert input items in the API's format to chat messages. Consecutive items of the model become one message."""
    for role, group in itertools.groupby(items, key=_role):
        parts = tuple(part for item in group for part in _parts(item, names))
        yield ChatMessage(role, parts)


def _parts(item: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[Part]:
    match item.get("type", "message"):
        case "message":
            yield from _content(item["content"])
        case "function_call":
            yield ToolCall(item["name"], decode_arguments(item["arguments"]), id=item["call_id"])
        case "function_call_output":
            key = item["call_id"]
            shown = _content(item["output"]) if isinstance(item["output"], list) else ()
            yield ToolResult(
                call_id=key,
                tool_name=names.get(key, ""),
                content=plain_text(item["output"]),
                media=tuple(part for part in shown if isinstance(part, Image | File)),
            )
        case "reasoning":
            summary = "".join(part["text"] for part in item.get("summary") or ())
            yield Thinking(summary, "openai-responses", item)
        case _:
            yield Opaque("openai-responses", item)


def _content(content: object) -> Iterator[Part]:
    blocks = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    for block in blocks if isinstance(blocks, Sequence) else ():
        match block["type"]:
            case "input_text" | "output_text" | "text":
                yield Text(block["text"])
            case "refusal":
                yield Text(block["refusal"])
            case "input_image" if block.get("image_url"):
                yield Image(**to_media(block["image_url"], media_type="image/*"))
            case "input_file" if block.get("file_data"):
                data = to_media(block["file_data"], media_type="application/pdf")
                yield File(**data, name=block.get("filename", "file"))
            case _:
                yield Opaque("openai-responses", block)


def _tool(tool: Mapping[str, Any]) -> ToolSpec:
    return ToolSpec(tool["name"], tool.get("description") or "", tool.get("parameters") or {})


def _response_format(value: Mapping[str, Any] | None) -> ResponseFormat | None:
    if not value or value.get("type") != "json_schema":
        return None
    return ResponseFormat(value["name"], value["schema"])
