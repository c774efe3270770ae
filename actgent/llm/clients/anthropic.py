"""`Anthropic`: client of the Anthropic messages API (typed content blocks, alternating turns, explicit prompt caching).

Source: https://docs.claude.com/en/api/messages
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Unpack

import httpx2

from actgent.errors import UnsupportedPart
from actgent.llm.http.base_provider_client import Remote, RemoteOptions, StreamAssembler
from actgent.llm.http.provider_schemas import ANTHROPIC_STYLE, SchemaStyle, answer_schema, supported_tools
from actgent.llm.http.provider_sdk_client_and_token_counter import Sdk
from actgent.llm.http.tool_result_media import PDF, PICTURES, attach_media
from actgent.llm.http.wire_encoding import (
    INVALID_JSON,
    Body,
    base64_text,
    description_field,
    drop_incomplete_calls,
    provider_call_id,
    provider_tool_name,
    read_arguments,
    read_call,
    read_count,
    stop_reason,
    to_json,
)
from actgent.llm.model_interface import ChatMessage, ModelRequest, ModelResponse, ResponseFormat, StopReason
from actgent.messages import (
    File,
    Media,
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

_DIALECT = "anthropic"
DEFAULT_MAX_TOKENS = 8192
"""Default maximum of an answer in tokens. The API requires one, and this one fits every model since Claude 3.5."""
_STOPS: dict[str, StopReason] = {"tool_use": "tool_calls", "pause_turn": "pause", "compaction": "pause"}
"""Stop reasons of this API that no other API has."""
_CACHE = {"type": "ephemeral"}
_OPENING = "(The conversation begins with your own message.)"
"""Text of a user message that is inserted before a conversation that starts with the assistant, since the API
rejects such conversations.
"""


class Anthropic(Remote):
    """Client of a model behind the Anthropic messages API or a compatible server."""

    provider: ClassVar[str] = "anthropic"
    dialect: ClassVar[str] = _DIALECT
    answer_field: ClassVar[str] = "content"
    path: ClassVar[str] = "/v1/messages"
    counting_path: ClassVar[str] = "/v1/messages/count_tokens"
    counted_fields: ClassVar[tuple[str, ...]] = ("system", "tools", "tool_choice", "thinking", "messages")
    key_variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_API_KEY",)
    url_variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_BASE_URL",)
    default_url: ClassVar[str] = "https://api.anthropic.com"
    default_max_tokens: ClassVar[int | None] = DEFAULT_MAX_TOKENS
    style: SchemaStyle = ANTHROPIC_STYLE
    key_needed_everywhere: ClassVar[bool] = True

    def __init__(self, model: str, *, cache: bool = True, **options: Unpack[RemoteOptions]) -> None:
        """Create a client for a model of Anthropic's Messages API.

        Args:
            model: Model name, such as `claude-sonnet-4-5`.
            cache: True uses the provider's prompt cache at the ends of tools, system prompt, last answer and conversation.
                Writing to the cache costs a quarter more, reading a tenth.
            options: Options of `RemoteOptions`. The default of `max_tokens` is 8192.
        """
        super().__init__(model, **options)
        self._cache = cache

    def _connect(self, **options: Any) -> Sdk:
        from ._anthropic_sdk_import import make_sdk  # noqa: PLC0415 - a second and 60 MB, only when a client is made

        return make_sdk(**options)

    def _url(self, argument: str | None) -> str:
        # The SDK's paths begin with /v1, and copied URLs often end with it.
        return super()._url(argument).removesuffix("/v1")

    def _source(self) -> str:
        # The API ignores thinking that the requested model cannot read, so the model is not part of the source. Other hosts reject it.
        return f"{self.provider}@{httpx2.URL(self.base_url).host}"

    def encode(self, chat: ModelRequest) -> Body:
        body: Body = {
            "max_tokens": chat.max_tokens or DEFAULT_MAX_TOKENS,
            "messages": _messages(chat, self.source),
        }
        if chat.system.strip():
            body["system"] = [{"type": "text", "text": chat.system}]
        if chat.tools and (tools := [_tool(*each) for each in supported_tools(chat.tools, self.style)]):
            body["tools"] = tools
        if chat.temperature is not None:
            body["temperature"] = chat.temperature
        if chat.response_format is not None and (form := self._response_format_field(chat.response_format)):
            body["output_config"] = {"format": form}
        if self._cache:
            _set_cache_markers(body)
        return body

    def _response_format_field(self, response_format: ResponseFormat) -> Body | None:
        from ._anthropic_sdk_import import closed_schema  # noqa: PLC0415 - already imported when the client was created

        try:
            schema = closed_schema(answer_schema(response_format.schema, self.style).schema)
        except ValueError:  # the prompt contains the schema, and the answer is validated with it
            return None
        return {"type": "json_schema", "schema": schema}

    def assembler(self) -> StreamAssembler:
        return _MessageAssembler()

    def decode(self, body: Body, names: Mapping[str, str]) -> ModelResponse:
        reason = body.get("stop_reason")
        if not isinstance(reason, str | None):
            raise ValueError(f"stop_reason must be a string, not {reason!r}")  # noqa: TRY004 - an error of the provider, not of the caller
        stop = _STOPS.get(reason) or stop_reason(reason) if reason else "end"
        blocks = _content_blocks(body)
        if stop in ("length", "refusal") and blocks and _is_decoded_call(blocks[-1]):
            blocks = blocks[:-1]
        parts = tuple(part for block in blocks for part in _read_block(block, names, self.source))
        calls = [part for part in parts if isinstance(part, ToolCall)]
        if not reason and (not parts or any(isinstance(call.arguments, str) for call in calls)):
            raise ValueError(
                "stop_reason must not be empty in a response without content or with an incomplete call"
            )
        if stop == "end" and calls:  # compatible servers end such an answer with end_turn
            stop = "tool_calls"
        return ModelResponse(
            parts=drop_incomplete_calls(parts) if stop in ("length", "refusal") else parts,
            stop=stop,
            usage=self._usage(body),
            model=body.get("model") or "",
            id=body.get("id"),
        )

    def _usage(self, body: Body) -> Usage:
        raw = body.get("usage") or {}
        read, written = (
            read_count(raw, "cache_read_input_tokens"),
            read_count(raw, "cache_creation_input_tokens"),
        )
        usage = Usage(
            # This API reports the three counts separately.
            input_tokens=read_count(raw, "input_tokens") + read + written,
            output_tokens=read_count(raw, "output_tokens"),
            cached_tokens=read,
            cache_write_tokens=written,
            reasoning_tokens=read_count(raw, "output_tokens_details", "thinking_tokens"),
        )
        return self.priced(usage, body.get("model") or "", raw)


# --- requests ---------------------------------------------------------------------------------------


def _messages(chat: ModelRequest, source: str) -> list[Body]:
    """Encode a conversation as alternating turns that start with the user. Adjacent messages of one role become one turn."""
    turns: list[Body] = []
    for message in chat.messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message, source)
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        if turn["role"] == "user" and len(turn["content"]) > 1:
            turn["content"].sort(key=_is_no_result)
    if turns and turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": [{"type": "text", "text": _OPENING}]})
    return turns


def _is_no_result(block: Body) -> bool:
    return bool(block["type"] != "tool_result")


def _blocks(message: ChatMessage, source: str) -> list[Body]:
    parts = message.parts
    if len(parts) == 1 and type(text := parts[0]) is Text:
        return [{"type": "text", "text": text.text}] if text.text.strip() else []
    return list(_encode_assistant(parts, source) if message.role == "assistant" else _encode_user(parts))


def _encode_assistant(parts: tuple[Part, ...], source: str) -> Iterator[Body]:
    text: Body = {}
    for part in parts:
        if isinstance(part, Text):
            if part.text.strip():
                text = {"type": "text", "text": part.text}
                yield text
        elif isinstance(part, ToolCall):
            if part.native:
                yield _call(part)
        elif isinstance(part, Media):
            raise UnsupportedPart(f"Anthropic accepts no {type(part).__name__} in a message of the model")
        elif isinstance(part, Thinking | Opaque) and part.dialect == _DIALECT and part.source in ("", source):
            if part.data.get("type") == _CITATIONS:
                text["citations"] = part.data["citations"]
            else:
                yield dict(part.data)


def _encode_user(parts: tuple[Part, ...]) -> Iterator[Body]:
    for part in parts:
        if isinstance(part, ToolResult):
            yield from _result(part)
        elif isinstance(part, Text):
            if part.text.strip():
                yield {"type": "text", "text": part.text}
        elif isinstance(part, Media):
            yield _medium(part)
        elif isinstance(part, Opaque) and part.dialect == _DIALECT:
            yield dict(part.data)


def _call(call: ToolCall) -> Body:
    arguments = call.arguments
    return {
        "type": "tool_use",
        "id": provider_call_id(call.id or call.provider_id or ""),
        "name": provider_tool_name(call.name),
        # The API only accepts objects. The model still sees its invalid arguments.
        "input": {INVALID_JSON: arguments} if isinstance(arguments, str) else arguments,
    }


def _result(result: ToolResult) -> Iterator[Body]:
    text, media = attach_media(result, _accepts)
    shown = [{"type": "text", "text": text}, *map(_medium, media)] if media else []
    if not result.native:
        yield from shown or [{"type": "text", "text": text}]
        return
    block: Body = {"type": "tool_result", "tool_use_id": provider_call_id(result.call_id)}
    if text:
        block["content"] = shown or text
    if result.status != "success":
        block["is_error"] = True
    yield block


def _accepts(medium: Medium) -> bool:
    return medium.media_type in PICTURES or medium.media_type == PDF


def _medium(part: Media) -> Body:
    return _document(part) if isinstance(part, File) else {"type": "image", "source": _source(part)}


def _source(part: Media) -> Body:
    if part.data is None:
        return {"type": "url", "url": part.url}
    return {"type": "base64", "media_type": part.media_type, "data": base64_text(part)}


def _document(part: File) -> Body:
    if part.media_type == "application/pdf":
        return {"type": "document", "source": _source(part), "title": part.name}
    if not part.media_type.startswith("text/") or part.data is None:
        transfer = "by URL" if part.data is None else "as bytes"
        raise UnsupportedPart(
            f"Anthropic accepts no {part.media_type} {transfer} ({part.name}): use a PDF, or text as bytes"
        )
    source = {"type": "text", "media_type": "text/plain", "data": part.data.decode("utf-8", "replace")}
    return {"type": "document", "source": source, "title": part.name}


def _tool(tool: ToolSpec, parameters: Mapping[str, Any]) -> Body:
    return {
        "name": provider_tool_name(tool.name),
        **description_field(tool.description),
        "input_schema": parameters,
    }


def _set_cache_markers(body: Body) -> None:
    """Set prompt cache markers in a request body: at the ends of tools, system prompt, last answer and conversation.

    The last answer is marked because the messages after it may be sent only in this request.
    """
    turns = body["messages"]
    answer = next((turn["content"] for turn in reversed(turns) if turn["role"] == "assistant"), None)
    for blocks in (body.get("tools"), body.get("system"), answer, turns[-1]["content"] if turns else None):
        if blocks and blocks[-1].get("type", "tool") in _MARKABLE:
            blocks[-1] = {**blocks[-1], "cache_control": _CACHE}


_MARKABLE = ("tool", "text", "image", "document", "tool_result", "tool_use")

# --- responses --------------------------------------------------------------------------------------

_CITATIONS = "actgent.citations"
"""Type of the `Opaque` part that follows a text and holds the citations of the text."""


def _content_blocks(body: Body) -> list[Body]:
    content = body.get("content")
    if content is None:
        raise ValueError("the response must have the field content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _read_block(block: Body, names: Mapping[str, str], source: str) -> Iterator[Part]:
    kind = block.get("type") or ("text" if "text" in block else "")
    if kind == "text":
        if block.get("text"):
            yield Text(block["text"])
        if block.get("citations"):
            yield Opaque(_DIALECT, {"type": _CITATIONS, "citations": block["citations"]}, source)
    elif kind in ("thinking", "redacted_thinking"):
        yield Thinking(block.get("thinking") or "", _DIALECT, block, source)
    elif kind == "tool_use":
        yield read_call(block.get("name"), block.get("input"), block.get("id"), names)
    else:
        yield Opaque(_DIALECT, block, source)


def _is_decoded_call(block: Body) -> bool:
    """Return True if a content block is a tool call whose input is already decoded, which hides a truncated input."""
    return block.get("type") == "tool_use" and not isinstance(block.get("input"), str)


_STARTED_BY = {"text_delta": "text", "thinking_delta": "thinking"}
"""Type of the block that a delta of some type starts, if the server omitted the event that starts the block."""


class _MessageAssembler(StreamAssembler):
    """Assembles the content blocks of a streamed answer from their start and delta events.

    The first and last events contain the message's fields.
    """

    def __init__(self) -> None:
        self._message: Body = {}
        self._blocks: list[Body] = []
        self._pieces: list[dict[str, list[str]]] = []
        self._places: dict[Any, int] = {}
        """Position of the last block that was started with an index. Some proxies start every block with the index 0."""

    def feed(self, event: Body) -> str:
        kind = event.get("type")
        if kind == "content_block_delta":
            return self._grow(event.get("index"), event["delta"])
        if kind == "content_block_start":
            return self._begin(event.get("index"), event["content_block"])
        if kind == "message_start":
            # A second one restarts the answer, after the provider has switched to another model.
            self._message, self._blocks, self._pieces = dict(event["message"]), [], []
            self._places = {}
        elif kind == "message_delta":
            self._finish(event)
        elif kind == "message_stop":
            self.ended = True
        return ""

    def _begin(self, index: object, block: Body) -> str:
        self._places[index] = len(self._blocks)
        self._blocks.append(block)
        self._pieces.append({})
        return block.get("text") or "" if block.get("type") == "text" else ""

    def _grow(self, index: object, delta: Body) -> str:
        if index not in self._places and (kind := _STARTED_BY.get(delta.get("type", ""))):
            self._begin(index, {"type": kind})
        place = self._places[index]
        block, pieces = self._blocks[place], self._pieces[place]
        for key, value in delta.items():
            if key == "citation":
                block["citations"] = block.get("citations") or []
                block["citations"].append(value)
            elif key == "partial_json" and isinstance(value, Mapping):
                pieces.setdefault(key, []).append(to_json(value).decode())
            elif key != "type" and isinstance(value, str):
                pieces.setdefault(key, []).append(value)
            elif key != "type":
                block[key] = value
        return delta["text"] if block["type"] == "text" and isinstance(delta.get("text"), str) else ""

    def _finish(self, event: Body) -> None:
        delta = event.get("delta") or {}
        self._message.update({key: value for key, value in delta.items() if value is not None})
        # Counts are totals. Some proxies send zeros for the counts of the first event.
        usage = {key: value for key, value in (event.get("usage") or {}).items() if value}
        self._message["usage"] = {**(self._message.get("usage") or {}), **usage}

    def body(self) -> Body | None:
        if not self.ended:
            return None
        content = [_join_pieces(*each) for each in zip(self._blocks, self._pieces, strict=True)]
        return {**self._message, "content": content}


def _join_pieces(block: Body, pieces: dict[str, list[str]]) -> Body:
    """Return a content block with the joined pieces of its texts, by field.

    Input of the agent's tools stays text; input of the provider's tools is decoded.
    """
    whole = dict(block)
    for key, texts in pieces.items():
        text = "".join(texts)
        if key != "partial_json":
            whole[key] = (block.get(key) or "") + text
        elif text:
            whole["input"] = text if block["type"] == "tool_use" else read_arguments(text)
    return whole
