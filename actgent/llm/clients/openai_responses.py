"""`OpenAIResponses`: client of the OpenAI responses API (items instead of messages, encrypted reasoning).

The provider stores nothing (`store=False`), so each request contains the complete conversation.
Source: https://platform.openai.com/docs/api-reference/responses
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Unpack

from actgent.errors import UnsupportedPart
from actgent.llm.http.base_provider_client import Remote, RemoteOptions, StreamAssembler
from actgent.llm.http.provider_schemas import SchemaStyle, UnsupportedSchema, answer_schema, supported_tools
from actgent.llm.http.provider_sdk_client_and_token_counter import Sdk
from actgent.llm.http.tool_result_media import PDF, PICTURES, attach_media
from actgent.llm.http.wire_encoding import (
    Body,
    data_url,
    description_field,
    drop_incomplete_calls,
    provider_call_id,
    provider_tool_name,
    read_call,
    read_count,
    write_arguments,
)
from actgent.llm.model_interface import ChatMessage, ModelRequest, ModelResponse, ResponseFormat, StopReason
from actgent.messages import (
    File,
    Image,
    Medium,
    Opaque,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)

_DIALECT = "openai-responses"
_REASONING = re.compile(r"(.*/)?(o\d|codex|gpt-([5-9]|\d\d)(?!.*-chat-latest))")
"""Pattern of the names of models that can return encrypted reasoning. Other models answer a request for it with
status 400.
"""
_CUTS: dict[str, StopReason] = {"content_filter": "filter"}


class OpenAIResponses(Remote):
    """Client of a model behind the OpenAI responses API or a compatible server.

    A server at an `http://` URL needs no API key; any other server does.
    """

    provider: ClassVar[str] = "openai-responses"
    dialect: ClassVar[str] = _DIALECT
    answer_field: ClassVar[str] = "output"
    conversation: ClassVar[str] = "input"
    path: ClassVar[str] = "/responses"
    counting_path: ClassVar[str] = "/responses/input_tokens"
    counted_fields: ClassVar[tuple[str, ...]] = (
        "instructions",
        "tools",
        "tool_choice",
        "text",
        "reasoning",
        "input",
    )
    key_variables: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY",)
    url_variables: ClassVar[tuple[str, ...]] = ("OPENAI_BASE_URL",)
    default_url: ClassVar[str] = "https://api.openai.com/v1"

    def __init__(self, model: str, *, store: bool = False, **options: Unpack[RemoteOptions]) -> None:
        """Create a client for a model of OpenAI's Responses API.

        Args:
            model: Model name, such as `gpt-5.2`.
            store: True if the provider may store the answers.
            options: Options of `RemoteOptions`.
        """
        super().__init__(model, **options)
        self._store = store

    def _connect(self, **options: Any) -> Sdk:
        from ._openai_sdk_import import make_sdk  # noqa: PLC0415 - a second and 60 MB, only when a client is made

        return make_sdk(**options)

    def encode(self, chat: ModelRequest) -> Body:
        body: Body = {
            "input": [item for message in chat.messages for item in self._items(message)],
            "store": self._store,
        }
        if _REASONING.match(self.model) and not self._store:
            body["include"] = ["reasoning.encrypted_content"]
        if chat.system:
            body["instructions"] = chat.system
        if chat.tools and (tools := [_tool(*each) for each in supported_tools(chat.tools, self.style)]):
            body["tools"] = tools
        if chat.temperature is not None:
            body["temperature"] = chat.temperature
        if chat.max_tokens is not None:
            body["max_output_tokens"] = chat.max_tokens
        if chat.response_format is not None and (
            form := _response_format_field(chat.response_format, self.style)
        ):
            body["text"] = {"format": form}
        return body

    def _items(self, message: ChatMessage) -> Iterator[Body]:
        parts = message.parts
        if len(parts) == 1 and type(parts[0]) is Text:
            yield {"role": "assistant" if message.role == "assistant" else "user", "content": parts[0].text}
        elif message.role == "assistant":
            yield from self._encode_assistant(parts)
        else:
            yield from _encode_user(parts)

    def _encode_assistant(self, parts: tuple[Part, ...]) -> Iterator[Body]:
        phase: Body = {}
        for part in parts:
            if isinstance(part, Text):
                if part.text:
                    yield {"role": "assistant", "content": part.text, **phase}
                phase = {}
            elif isinstance(part, ToolCall):
                if part.native:
                    yield _call(part)
            elif isinstance(part, Thinking | Opaque):
                if part.dialect != _DIALECT or part.source not in ("", self.source):
                    continue
                if part.data.get("type") == _PHASE:
                    phase = {"phase": part.data["phase"]}
                elif part.data.get("type") != _ANNOTATIONS and self._may_return(part.data):
                    yield dict(part.data)
            else:
                raise UnsupportedPart(
                    f"the responses API accepts no {type(part).__name__} in a message of the model"
                )

    def _may_return(self, item: Mapping[str, Any]) -> bool:
        # The provider would look up a reasoning item without content by its id, but it has not stored the item.
        return (
            item.get("type") != "reasoning"
            or self._store
            or bool(item.get("encrypted_content") or item.get("content"))
        )

    def assembler(self) -> StreamAssembler:
        return _ResponseAssembler()

    def decode(self, body: Body, names: Mapping[str, str]) -> ModelResponse:
        status = body.get("status") or ("completed" if body.get("output") else None)
        if status not in ("completed", "incomplete"):
            raise ValueError(f"status must be completed or incomplete, not {status!r}")
        parts = tuple(
            part for item in body.get("output") or () for part in _read_item(item, names, self.source)
        )
        stop = self._stop(body, parts)
        return ModelResponse(
            parts=parts if stop in ("end", "tool_calls") else drop_incomplete_calls(parts),
            stop=stop,
            usage=self._usage(body),
            model=body.get("model") or "",
            id=body.get("id"),
        )

    def _stop(self, body: Body, parts: tuple[Part, ...]) -> StopReason:
        if body.get("status") == "incomplete":
            return _CUTS.get((body.get("incomplete_details") or {}).get("reason") or "", "length")
        if any(_refusals(item) for item in body.get("output") or ()):
            return "refusal"
        return "tool_calls" if any(isinstance(part, ToolCall) for part in parts) else "end"

    def _usage(self, body: Body) -> Usage:
        raw = body.get("usage") or {}
        usage = Usage(
            input_tokens=read_count(raw, "input_tokens"),
            output_tokens=read_count(raw, "output_tokens"),
            cached_tokens=read_count(raw, "input_tokens_details", "cached_tokens"),
            cache_write_tokens=read_count(raw, "input_tokens_details", "cache_write_tokens"),
            reasoning_tokens=read_count(raw, "output_tokens_details", "reasoning_tokens"),
        )
        return self.priced(usage, body.get("model") or "", raw)


# --- requests ---------------------------------------------------------------------------------------

_PHASE = "actgent.phase"
_ANNOTATIONS = "actgent.annotations"
"""Types of `Opaque` parts after a text that hold its phase and its annotations. They are not items of the API."""


def _encode_user(parts: tuple[Part, ...]) -> Iterator[Body]:
    """Encode a message of the user or of tools for a request.

    Yield one item for each native tool result, then one for the other parts.
    """
    rest: list[Body] = []
    for part in parts:
        if isinstance(part, ToolResult) and part.native:
            yield {
                "type": "function_call_output",
                "call_id": provider_call_id(part.call_id),
                "output": _output(part),
            }
        elif isinstance(part, ToolResult):
            rest += _encode_result(part)
        elif isinstance(part, Opaque):
            rest += [dict(part.data)] if part.dialect == _DIALECT else []
        elif not isinstance(part, Thinking | ToolCall):
            rest.append(_content(part))
    if rest:
        yield {"role": "user", "content": rest}


def _output(result: ToolResult) -> str | list[Body]:
    return _encode_result(result) if result.media else result.text


def _encode_result(result: ToolResult) -> list[Body]:
    text, media = attach_media(result, _accepts)
    return [{"type": "input_text", "text": text}, *map(_content, media)]


def _accepts(medium: Medium) -> bool:
    return medium.media_type in PICTURES or medium.media_type == PDF


def _content(part: Part) -> Body:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, Image):
        return {"type": "input_image", "image_url": data_url(part)}
    if not isinstance(part, File):
        raise UnsupportedPart(f"the responses API accepts no {type(part).__name__}")
    if part.media_type.startswith(("audio/", "video/")):
        raise UnsupportedPart(
            f"the responses API accepts no {part.media_type} ({part.name}): use chat completions with a model that accepts audio"
        )
    if part.data is None:
        return {"type": "input_file", "file_url": part.url}
    return {"type": "input_file", "filename": part.name, "file_data": data_url(part)}


def _call(call: ToolCall) -> Body:
    return {
        "type": "function_call",
        "call_id": provider_call_id(call.id or call.provider_id or ""),
        "name": provider_tool_name(call.name),
        "arguments": write_arguments(call.arguments),
    }


def _tool(tool: ToolSpec, parameters: Mapping[str, Any]) -> Body:
    # In this API strict is on by default, and rejects schemas with optional properties.
    return {
        "type": "function",
        "name": provider_tool_name(tool.name),
        **description_field(tool.description),
        "parameters": parameters,
        "strict": False,
    }


def _response_format_field(response_format: ResponseFormat, style: SchemaStyle) -> Body | None:
    try:
        form = answer_schema(response_format.schema, style)
    except UnsupportedSchema:
        return None
    return {
        "type": "json_schema",
        "name": provider_tool_name(response_format.name),
        "schema": form.schema,
        "strict": form.strict,
    }


# --- responses --------------------------------------------------------------------------------------


def _read_item(item: Body, names: Mapping[str, str], source: str) -> Iterator[Part]:
    kind = item.get("type")
    if kind == "message":
        yield from _read_message(item)
    elif kind == "reasoning":
        yield Thinking(_reasoning_text(item), _DIALECT, item, source)
    elif kind == "function_call":
        # A truncated call has the status incomplete. Its arguments stay text, so that they are never executed.
        whole = item.get("status") != "incomplete"
        call = read_call(
            item.get("name"), item.get("arguments"), item.get("call_id") or item.get("id"), names
        )
        yield call if whole else ToolCall(call.name, str(item.get("arguments")), provider_id=call.provider_id)
    elif kind == "custom_tool_call":
        yield ToolCall(
            names.get(item["name"], item["name"]), item.get("input") or "", provider_id=item.get("call_id")
        )
    else:
        yield Opaque(_DIALECT, item, source)


def _read_message(item: Body) -> Iterator[Part]:
    for content in _message_content(item):
        if item.get("phase"):
            yield Opaque(_DIALECT, {"type": _PHASE, "phase": item["phase"]})
        if text := content.get("text") or content.get("refusal"):
            yield Text(text)
        if content.get("annotations"):
            yield Opaque(_DIALECT, {"type": _ANNOTATIONS, "annotations": content["annotations"]})


def _message_content(item: Body) -> list[Body]:
    content = item.get("content") or []
    return [{"type": "output_text", "text": content}] if isinstance(content, str) else content


def _refusals(item: Body) -> bool:
    is_message = item.get("type") == "message"
    return is_message and any(content.get("type") == "refusal" for content in _message_content(item))


def _reasoning_text(item: Body) -> str:
    pieces = item.get("summary") or item.get("content") or ()
    if isinstance(pieces, str):
        return pieces
    return "\n\n".join(piece["text"] for piece in pieces if isinstance(piece.get("text"), str))


_SHOWN = ("response.output_text.delta", "response.refusal.delta")
_LAST = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


class _ResponseAssembler(StreamAssembler):
    """Assembles the response body: the response in the last event, with the items of earlier events if it contains none.

    Items are taken from the events that end them. If a server sends no such events, the text is joined from its pieces.
    """

    def __init__(self) -> None:
        self._items: dict[int, Body] = {}
        self._texts: dict[int, list[str]] = {}
        self._response: Body | None = None

    def feed(self, event: Body) -> str:
        kind = event.get("type")
        if kind in _SHOWN:
            text = str(event.get("delta") or "")
            self._texts.setdefault(event.get("output_index") or 0, []).append(text)
            return text
        if kind == "response.output_item.done":
            self._items[event.get("output_index", len(self._items))] = event["item"]
        elif kind in _LAST:
            self._response = event["response"]
            self.ended = True
        return ""

    def body(self) -> Body | None:
        if self._response is None or self._response.get("output"):
            return self._response
        items = self._items or {
            index: {"type": "message", "content": "".join(texts)} for index, texts in self._texts.items()
        }
        return {**self._response, "output": [item for _, item in sorted(items.items())]}
