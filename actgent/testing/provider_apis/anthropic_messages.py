"""Anthropic messages API, `POST /v1/messages`. Source: the API reference, and recorded requests."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from actgent.llm.model_interface import ChatMessage, ModelRequest, ModelResponse, ResponseFormat
from actgent.messages import File, Image, Opaque, Part, Text, Thinking, ToolCall, ToolResult, ToolSpec

from .anthropic_request_validation import check_anthropic_messages, check_anthropic_request
from .provider_api_interface import (
    ErrorBody,
    Pieces,
    ProviderAPI,
    ProviderRequest,
    arguments_text,
    call_id,
    plain_text,
    split,
    sse,
    thinking_data,
    to_media,
    usage_of,
)
from .transcript_rules import Problems

_STOP = {
    "end": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "refusal": "refusal",
    "filter": "refusal",
    "pause": "pause_turn",
}
_ERRORS = {
    400: ("invalid_request_error", "The request is not valid."),
    401: ("authentication_error", "invalid x-api-key"),
    402: ("billing_error", "Your payment could not be processed."),
    403: ("permission_error", "Your API key does not have permission to use the specified resource."),
    404: ("not_found_error", "model: not found"),
    408: ("timeout_error", "Request timed out."),
    409: ("conflict_error", "The resource was changed by another request."),
    413: ("request_too_large", "Request exceeds the maximum size"),
    422: ("invalid_request_error", "The request cannot be processed."),
    429: ("rate_limit_error", "This request would exceed your rate limit. Please try again later."),
    529: ("overloaded_error", "Overloaded"),
}
_INTERNAL = ("api_error", "Internal server error")
_NO_CREDIT = (400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API.")

PING = sse({"type": "ping"}, event="ping")


class AnthropicMessagesAPI(ProviderAPI):
    """Parses requests and formats answers of the Anthropic messages API."""

    name = "anthropic"
    path = "/v1/messages"
    counting_path = "/v1/messages/count_tokens"
    base = ""
    request_id_header = "request-id"
    terminal = re.compile(rb"event: message_stop\n")

    def check_request(self, body: Mapping[str, Any]) -> Problems:
        return check_anthropic_request(body)

    def check_messages(self, messages: object) -> Problems:
        return check_anthropic_messages(messages)

    def read(self, body: Mapping[str, Any]) -> ModelRequest:
        names: dict[str, str] = {}
        config = body.get("output_config") or {}
        return ModelRequest(
            system=plain_text(body.get("system") or ""),
            messages=tuple(_messages(body["messages"], names)),
            tools=tuple(_tool(tool) for tool in body.get("tools") or () if "input_schema" in tool),
            temperature=body.get("temperature"),
            max_tokens=body.get("max_tokens"),
            response_format=_response_format(config.get("format") or body.get("output_format")),
        )

    def body(self, answer: ModelResponse, request: ProviderRequest) -> Mapping[str, Any]:
        return {
            **_head(answer, request),
            "content": [_block(part, request, index) for index, part in enumerate(answer.parts)],
            "stop_reason": _STOP[answer.stop],
            "stop_details": _stop_details(answer),
            "usage": _usage(answer, request),
        }

    def events(self, answer: ModelResponse, request: ProviderRequest, *, chunk: int) -> Pieces:
        usage = _usage(answer, request)
        message = _head(answer, request) | {"usage": usage | {"output_tokens": 1}}
        yield _event("message_start", message=message)
        for index, part in enumerate(answer.parts):
            block = _block(part, request, index)
            yield _event("content_block_start", index=index, content_block=_started_block(block))
            if index == 0:
                yield PING
            for delta in _deltas(block, chunk):
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        delta = {
            "stop_reason": _STOP[answer.stop],
            "stop_sequence": None,
            "stop_details": _stop_details(answer),
            "container": None,
        }
        yield _event("message_delta", delta=delta, usage={key: usage[key] for key in _CUMULATIVE})
        yield _event("message_stop")

    def error(self, status: int, *, code: str | None = None, message: str | None = None) -> ErrorBody:
        kind, default = _ERRORS.get(status, _INTERNAL)
        if code == "insufficient_quota":
            status, kind, default = _NO_CREDIT
        elif code is not None:
            kind = code
        return ErrorBody(status, {"type": "error", "error": {"type": kind, "message": message or default}})

    def error_event(self, *, code: str | None = None, message: str | None = None) -> bytes:
        return sse(self.error(529, code=code, message=message).body, event="error")


def _event(kind: str, **data: Any) -> bytes:
    return sse({"type": kind, **data}, event=kind)


# --- writing -----------------------------------------------------------------------------


def _head(answer: ModelResponse, request: ProviderRequest) -> dict[str, Any]:
    return {
        "id": answer.id or f"msg_{request.number:08d}",
        "type": "message",
        "role": "assistant",
        "model": answer.model or request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
    }


def _stop_details(answer: ModelResponse) -> dict[str, Any] | None:
    if _STOP[answer.stop] != "refusal":
        return None
    return {"type": "refusal", "category": None, "explanation": None}


_CUMULATIVE = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
    "output_tokens_details",
    "server_tool_use",
)
"""Token counts that are repeated in the last event of a stream."""


def _usage(answer: ModelResponse, request: ProviderRequest) -> dict[str, Any]:
    """Encode the usage of an answer in the API's format, in which `input_tokens` excludes cached tokens."""
    usage = usage_of(answer, request)
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write_tokens,
            "ephemeral_1h_input_tokens": 0,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": "global",
    }


def _block(part: Part, request: ProviderRequest, index: int) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text, "citations": None}
        case Thinking():
            signed = {
                "type": "thinking",
                "thinking": part.text,
                "signature": f"sig_{request.number:08d}_{index}",
            }
            return thinking_data(part, "anthropic") or signed
        case ToolCall():
            key = call_id(part, default=f"toolu_{request.number:08d}_{index}")
            call = {"type": "tool_use", "id": key, "name": part.name, "input": part.arguments}
            return {**call, "caller": {"type": "direct"}}
        case Opaque():
            return dict(part.data)
        case _:
            raise TypeError(
                f"a scripted answer must not contain a {type(part).__name__}"
            )  # `to_answer` has rejected it


_GROWING: Mapping[str, Mapping[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
    "server_tool_use": {"input": {}},
}


def _started_block(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of a content block in its start event: members that deltas fill are empty. Other blocks are complete."""
    return {**block, **_GROWING.get(block["type"], {})}


def _deltas(block: Mapping[str, Any], chunk: int) -> Iterator[dict[str, Any]]:
    match block["type"]:
        case "text":
            yield from ({"type": "text_delta", "text": piece} for piece in split(block["text"], chunk))
        case "thinking":
            pieces = split(block["thinking"], chunk)
            yield from ({"type": "thinking_delta", "thinking": piece} for piece in pieces)
            yield {"type": "signature_delta", "signature": block.get("signature", "")}
        case "tool_use" | "server_tool_use":
            yield {"type": "input_json_delta", "partial_json": ""}
            pieces = split(_input_text(block), chunk)
            yield from ({"type": "input_json_delta", "partial_json": piece} for piece in pieces)


def _input_text(block: Mapping[str, Any]) -> str:
    """Return the arguments of a tool use block as JSON text; empty for a call without arguments, as in recorded streams."""
    return arguments_text(ToolCall(block["name"], block["input"])) if block["input"] else ""


# --- reading -----------------------------------------------------------------------------


def _messages(items: Sequence[Mapping[str, Any]], names: dict[str, str]) -> Iterator[ChatMessage]:
    """Convert messages in the API's format to chat messages. Tool results in user messages become messages of the role `tool`."""
    for item in items:
        parts = tuple(_parts(item["content"], names))
        results = tuple(part for part in parts if isinstance(part, ToolResult))
        others = tuple(part for part in parts if not isinstance(part, ToolResult))
        if results:
            yield ChatMessage("tool", results)
        if others:
            yield ChatMessage("assistant" if item["role"] == "assistant" else "user", others)


def _parts(content: object, names: dict[str, str]) -> Iterator[Part]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for block in blocks if isinstance(blocks, Sequence) else ():
        yield _part(block, names)


def _part(block: Mapping[str, Any], names: dict[str, str]) -> Part:
    match block["type"]:
        case "text":
            return Text(block["text"])
        case "thinking" | "redacted_thinking":
            return Thinking(block.get("thinking", ""), "anthropic", block)
        case "tool_use":
            names[block["id"]] = block["name"]
            return ToolCall(block["name"], block["input"], id=block["id"])
        case "tool_result":
            return _result(block, names)
        case "image" | "document":
            return _media(block)
        case _:
            return Opaque("anthropic", block)


def _media(block: Mapping[str, Any]) -> Part:
    source, name = block["source"], block.get("title") or "file"
    match source["type"], block["type"]:
        case "text", _:
            return File(media_type=source["media_type"], data=source["data"].encode(), name=name)
        case (("url" | "base64"), "image"):
            return Image(**to_media(_url(source), media_type="image/*"))
        case (("url" | "base64"), _):
            return File(**to_media(_url(source), media_type="application/pdf"), name=name)
        case _:
            return Opaque("anthropic", block)


def _url(source: Mapping[str, Any]) -> str:
    return str(source.get("url") or f"data:{source['media_type']};base64,{source['data']}")


def _result(block: Mapping[str, Any], names: Mapping[str, str]) -> ToolResult:
    key, text = block["tool_use_id"], plain_text(block.get("content") or "")
    blocks = block["content"] if isinstance(block.get("content"), list) else []
    shown = [_media(each) for each in blocks if each["type"] in ("image", "document")]
    media = tuple(part for part in shown if isinstance(part, Image | File))
    result = ToolResult(call_id=key, tool_name=names.get(key, ""), content=text, media=media)
    return attrs.evolve(result, status="error", content="", error=text) if block.get("is_error") else result


def _tool(tool: Mapping[str, Any]) -> ToolSpec:
    return ToolSpec(tool["name"], tool.get("description") or "", tool["input_schema"])


def _response_format(value: Mapping[str, Any] | None) -> ResponseFormat | None:
    return ResponseFormat("output", value["schema"]) if value and "schema" in value else None
