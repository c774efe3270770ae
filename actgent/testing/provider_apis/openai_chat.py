"""OpenAI chat completions API, `POST /v1/chat/completions`.

Source: the API reference, and recorded requests. Fields of compatible providers (`reasoning`) follow OpenRouter and
Ollama.
"""

import base64
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from actgent.llm.model_interface import ChatMessage, ModelRequest, ModelResponse, ResponseFormat
from actgent.messages import File, Image, Opaque, Part, Text, Thinking, ToolCall, ToolResult, ToolSpec

from .openai_errors import openai_error
from .openai_request_validation import check_chat_messages, check_chat_request
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

_FINISH = {
    "end": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "refusal": "stop",
    "filter": "content_filter",
    "pause": "stop",
}
_REASONING = ("reasoning", "reasoning_content")


class OpenAIChatAPI(ProviderAPI):
    """Parses requests and formats answers of the OpenAI chat completions API, which compatible providers also use."""

    name = "openai"
    path = "/v1/chat/completions"
    terminal = re.compile(rb'data: (\[DONE\]|.*"finish_reason":")')

    def check_request(self, body: Mapping[str, Any]) -> Problems:
        return check_chat_request(body)

    def check_messages(self, messages: object) -> Problems:
        return check_chat_messages(messages)

    def read(self, body: Mapping[str, Any]) -> ModelRequest:
        messages = body["messages"]
        names = _tool_names(messages)
        return ModelRequest(
            system="\n\n".join(plain_text(item["content"]) for item in messages if _is_system(item)),
            messages=tuple(_messages((item for item in messages if not _is_system(item)), names)),
            tools=tuple(_tool(tool) for tool in body.get("tools") or () if tool.get("type") == "function"),
            temperature=body.get("temperature"),
            max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
            response_format=_response_format(body.get("response_format")),
        )

    def body(self, answer: ModelResponse, request: ProviderRequest) -> Mapping[str, Any]:
        choice = {
            "index": 0,
            "message": _encode_answer(answer, request),
            "logprobs": None,
            "finish_reason": _FINISH[answer.stop],
        }
        return {
            **_head(answer, request, "chat.completion"),
            "choices": [choice],
            "usage": _usage(answer, request),
        }

    def events(self, answer: ModelResponse, request: ProviderRequest, *, chunk: int) -> Pieces:
        options = request.json.get("stream_options") or {}
        head = _head(answer, request, "chat.completion.chunk")
        tail = {"usage": None} if options.get("include_usage") else {}
        for delta, finish in _deltas(answer, request, chunk):
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            yield sse({**head, "choices": [choice], **tail})
        if tail:
            yield sse({**head, "choices": [], "usage": _usage(answer, request)})
        yield b"data: [DONE]\n\n"

    def error(self, status: int, *, code: str | None = None, message: str | None = None) -> ErrorBody:
        return ErrorBody(status, {"error": openai_error(status, code=code, message=message)})

    def error_event(self, *, code: str | None = None, message: str | None = None) -> bytes:
        return sse({"error": openai_error(500, code=code, message=message)})


def _head(answer: ModelResponse, request: ProviderRequest, kind: str) -> dict[str, Any]:
    return {
        "id": answer.id or f"chatcmpl-{request.number:08d}",
        "object": kind,
        "created": NEW_YEAR + request.number,
        "model": answer.model or request.model,
        "service_tier": "default",
        "system_fingerprint": "fp_actgent",
    }


def _usage(answer: ModelResponse, request: ProviderRequest) -> dict[str, Any]:
    usage = usage_of(answer, request)
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens, "audio_tokens": 0},
    }


# --- writing -----------------------------------------------------------------------------


def _encode_answer(answer: ModelResponse, request: ProviderRequest) -> dict[str, Any]:
    """Encode a scripted answer as the assistant message of a response without streaming."""
    text = answer.text or None
    is_refused = answer.stop == "refusal"
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if is_refused else text,
        "refusal": text if is_refused else None,
        "annotations": [],
    }
    for part in answer.parts:
        if isinstance(part, Thinking):
            message |= thinking_data(part, "openai") or {_REASONING[0]: part.text}
        elif isinstance(part, Opaque):
            message |= part.data
    calls = [_call(call, request, index) for index, call in enumerate(answer.tool_calls)]
    return message | ({"tool_calls": calls} if calls else {})


def _call(call: ToolCall, request: ProviderRequest, index: int) -> dict[str, Any]:
    return {
        "id": call_id(call, default=f"call_{request.number:08d}_{index}"),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments_text(call)},
    }


def _deltas(
    answer: ModelResponse, request: ProviderRequest, chunk: int
) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Yield the deltas of a streamed answer, each with its finish reason. Only the last delta has one; others have None."""
    yield {"role": "assistant", "content": "" if answer.text else None, "refusal": None}, None
    calls = 0
    for part in answer.parts:
        for delta in _part_deltas(part, answer, request, chunk=chunk, index=calls):
            yield delta, None
        calls += isinstance(part, ToolCall)
    yield {}, _FINISH[answer.stop]


def _part_deltas(
    part: Part, answer: ModelResponse, request: ProviderRequest, *, chunk: int, index: int
) -> Iterator[dict[str, Any]]:
    if isinstance(part, Text):
        field = "refusal" if answer.stop == "refusal" else "content"
        yield from ({field: piece} for piece in split(part.text, chunk))
    elif isinstance(part, Thinking):
        field = next((key for key in _REASONING if key in part.data), _REASONING[0])
        yield from ({field: piece} for piece in split(part.text, chunk))
    elif isinstance(part, Opaque):
        yield dict(part.data)
    elif isinstance(part, ToolCall):
        yield from _call_deltas(_call(part, request, index), chunk, index)


def _call_deltas(call: dict[str, Any], chunk: int, index: int) -> Iterator[dict[str, Any]]:
    function = call["function"]
    start = {"index": index, **call, "function": {**function, "arguments": ""}}
    yield {"tool_calls": [start]}
    for piece in split(function["arguments"], chunk):
        yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


# --- reading -----------------------------------------------------------------------------


def _is_system(item: Mapping[str, Any]) -> bool:
    return item["role"] in ("system", "developer")


def _tool_names(messages: list[Mapping[str, Any]]) -> dict[str, str]:
    calls = (call for item in messages for call in item.get("tool_calls") or ())
    return {call["id"]: call["function"]["name"] for call in calls if "function" in call}


def _messages(items: Iterable[Mapping[str, Any]], names: Mapping[str, str]) -> Iterator[ChatMessage]:
    """Convert messages in the API's format to chat messages. Consecutive tool messages become one message."""
    for is_tool, group in itertools.groupby(items, key=lambda item: item["role"] == "tool"):
        if is_tool:
            yield ChatMessage("tool", tuple(_result(item, names) for item in group))
        else:
            yield from map(_message, group)


def _message(item: Mapping[str, Any]) -> ChatMessage:
    if item["role"] == "assistant":
        return ChatMessage("assistant", tuple(_assistant_parts(item)))
    return ChatMessage("user", tuple(_user_parts(item["content"])))


def _result(item: Mapping[str, Any], names: Mapping[str, str]) -> ToolResult:
    key = item["tool_call_id"]
    return ToolResult(call_id=key, tool_name=names.get(key, ""), content=plain_text(item["content"]))


def _assistant_parts(item: Mapping[str, Any]) -> Iterator[Part]:
    for field in _REASONING:
        if item.get(field):
            yield Thinking(item[field], "openai", {field: item[field]})
    if text := plain_text(item.get("content")):
        yield Text(text)
    for call in item.get("tool_calls") or ():
        function = call["function"]
        yield ToolCall(function["name"], decode_arguments(function["arguments"]), id=call["id"])


def _user_parts(content: str | list[dict[str, Any]]) -> Iterator[Part]:
    blocks: list[dict[str, Any]] = (
        [{"type": "text", "text": content}] if isinstance(content, str) else content
    )
    for block in blocks:
        match block["type"]:
            case "text":
                yield Text(block["text"])
            case "image_url":
                yield Image(**to_media(block["image_url"]["url"], media_type="image/*"))
            case "file" if "file_data" in block["file"]:
                file = block["file"]
                data = to_media(file["file_data"], media_type="application/pdf")
                yield File(**data, name=file.get("filename", "file"))
            case "input_audio":
                sound = block["input_audio"]
                kind = "audio/mpeg" if sound["format"] == "mp3" else f"audio/{sound['format']}"
                yield File(media_type=kind, data=base64.b64decode(sound["data"]))
            case "video_url":
                yield File(**to_media(block["video_url"]["url"], media_type="video/*"))
            case _:
                yield Opaque("openai", block)


def _tool(tool: Mapping[str, Any]) -> ToolSpec:
    function = tool["function"]
    return ToolSpec(function["name"], function.get("description") or "", function.get("parameters") or {})


def _response_format(value: Mapping[str, Any] | None) -> ResponseFormat | None:
    if not value or value.get("type") != "json_schema":
        return None
    return ResponseFormat(value["json_schema"]["name"], value["json_schema"].get("schema") or {})
