"""Anthropic messages: typed content blocks, strict turns of user and assistant, explicit prompt caching.

Source: https://docs.claude.com/en/api/messages
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Unpack

import httpx2

from actgent.errors import UnsupportedPart
from actgent.llm.base import Answer, Chat, ChatMessage, ResponseFormat, StopReason
from actgent.llm.http import (
    ANTHROPIC_STYLE,
    INVALID_JSON,
    PDF,
    PICTURES,
    Body,
    Fold,
    Remote,
    RemoteOptions,
    SchemaStyle,
    Sdk,
    attached,
    base64_text,
    count,
    described,
    offered_tools,
    provider_form,
    read_arguments,
    read_call,
    whole_calls,
    wire_id,
    wire_name,
)
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
"""The API requires a limit; this one fits every model since Claude 3.5."""
_STOPS: dict[str, StopReason] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "pause",
    "compaction": "pause",
}
_CACHE = {"type": "ephemeral"}
_OPENING = "(The conversation begins with your own message.)"
"""The first message must be a user's."""


class Anthropic(Remote):
    """A model behind the Anthropic messages API, or a server that speaks it."""

    provider: ClassVar[str] = "anthropic"
    dialect: ClassVar[str] = _DIALECT
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
        """See `RemoteOptions`; `max_tokens` is 8192 if nobody sets it.

        `cache` marks the ends of the tool list, the system prompt, the last answer and the conversation for the
        provider's prompt cache: writing costs a quarter more, reading a tenth.
        """
        super().__init__(model, **options)
        self._cache = cache

    def _connect(self, **options: Any) -> Sdk:
        from ._anthropic_sdk import make_sdk  # noqa: PLC0415 - a second and 60 MB, only when a client is made

        return make_sdk(**options)

    def _url(self, argument: str | None) -> str:
        # The SDK's paths begin with /v1, the addresses that people copy often end with it.
        return super()._url(argument).removesuffix("/v1")

    def _source(self) -> str:
        # The API itself drops the thoughts of models that the asked model cannot read; another host refuses them.
        return f"{self.provider}@{httpx2.URL(self.base_url).host}"

    def encode(self, chat: Chat) -> Body:
        body: Body = {
            "max_tokens": chat.max_tokens or DEFAULT_MAX_TOKENS,
            "messages": _messages(chat, self.source),
        }
        if chat.system.strip():
            body["system"] = [{"type": "text", "text": chat.system}]
        if chat.tools and (tools := [_tool(*each) for each in offered_tools(chat.tools, self.style)]):
            body["tools"] = tools
        if chat.temperature is not None:
            body["temperature"] = chat.temperature
        if chat.response_format is not None and (form := self._form(chat.response_format)):
            body["output_config"] = {"format": form}
        if self._cache:
            _mark(body)
        return body

    def _form(self, wanted: ResponseFormat) -> Body | None:
        from ._anthropic_sdk import closed_schema  # noqa: PLC0415 - loaded since the client was made

        try:
            schema = closed_schema(provider_form(wanted.schema, self.style).schema)
        except ValueError:  # the prompt says the form, and the answer is checked by it
            return None
        return {"type": "json_schema", "schema": schema}

    def fold(self) -> Fold:
        return _MessageFold()

    def decode(self, body: Body, names: Mapping[str, str]) -> Answer:
        reason = body["stop_reason"]
        if not isinstance(reason, str):
            raise ValueError(f"its stop_reason is {reason!r}")  # noqa: TRY004 - the provider's, not the caller's
        stop = _STOPS.get(reason, "end")
        blocks = body["content"]
        if stop in ("length", "refusal") and blocks and _is_decoded_call(blocks[-1]):
            blocks = blocks[:-1]
        parts = tuple(part for block in blocks for part in _read_block(block, names, self.source))
        return Answer(
            parts=whole_calls(parts) if stop in ("length", "refusal") else parts,
            stop=stop,
            usage=self._usage(body),
            model=body.get("model") or "",
            id=body.get("id"),
        )

    def _usage(self, body: Body) -> Usage:
        raw = body.get("usage") or {}
        read, written = count(raw, "cache_read_input_tokens"), count(raw, "cache_creation_input_tokens")
        usage = Usage(
            # On this wire the three are separate.
            input_tokens=count(raw, "input_tokens") + read + written,
            output_tokens=count(raw, "output_tokens"),
            cached_tokens=read,
            cache_write_tokens=written,
            reasoning_tokens=count(raw, "output_tokens_details", "thinking_tokens"),
        )
        return self.priced(usage, body.get("model") or "", raw)


# --- from ours to theirs ----------------------------------------------------------------------------


def _messages(chat: Chat, source: str) -> list[Body]:
    """Turns in strict alternation, the user's first: neighbours of one role become one message."""
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
    return list(_said(parts, source) if message.role == "assistant" else _heard(parts))


def _said(parts: tuple[Part, ...], source: str) -> Iterator[Body]:
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
            raise UnsupportedPart(f"Anthropic takes no {type(part).__name__} in a message of the model's")
        elif isinstance(part, Thinking | Opaque) and part.dialect == _DIALECT and part.source in ("", source):
            if part.data.get("type") == _CITATIONS:
                text["citations"] = part.data["citations"]
            else:
                yield dict(part.data)


def _heard(parts: tuple[Part, ...]) -> Iterator[Body]:
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
        "id": wire_id(call.id or call.provider_id or ""),
        "name": wire_name(call.name),
        # Only objects are allowed here; the model still sees what it wrote.
        "input": {INVALID_JSON: arguments} if isinstance(arguments, str) else arguments,
    }


def _result(result: ToolResult) -> Iterator[Body]:
    text, media = attached(result, _takes)
    shown = [{"type": "text", "text": text}, *map(_medium, media)] if media else []
    if not result.native:
        yield from shown or [{"type": "text", "text": text}]
        return
    block: Body = {"type": "tool_result", "tool_use_id": wire_id(result.call_id)}
    if text:
        block["content"] = shown or text
    if result.status != "success":
        block["is_error"] = True
    yield block


def _takes(medium: Medium) -> bool:
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
        where = "by its address" if part.data is None else "as bytes"
        raise UnsupportedPart(
            f"Anthropic takes no {part.media_type} {where} ({part.name}): only PDF, and text as bytes"
        )
    source = {"type": "text", "media_type": "text/plain", "data": part.data.decode("utf-8", "replace")}
    return {"type": "document", "source": source, "title": part.name}


def _tool(tool: ToolSpec, parameters: Mapping[str, Any]) -> Body:
    return {"name": wire_name(tool.name), **described(tool.description), "input_schema": parameters}


def _mark(body: Body) -> None:
    """Mark where prefixes end that later requests share: tools, system, the last answer, the conversation.

    The last answer has a mark of its own because what comes after it may be said for this one call only.
    """
    turns = body["messages"]
    answer = next((turn["content"] for turn in reversed(turns) if turn["role"] == "assistant"), None)
    for blocks in (body.get("tools"), body.get("system"), answer, turns[-1]["content"] if turns else None):
        if blocks and blocks[-1].get("type", "tool") in _MARKABLE:
            blocks[-1] = {**blocks[-1], "cache_control": _CACHE}


_MARKABLE = ("tool", "text", "image", "document", "tool_result", "tool_use")

# --- from theirs to ours ----------------------------------------------------------------------------

_CITATIONS = "actgent.citations"
"""A mark after a text block whose citations it holds."""


def _read_block(block: Body, names: Mapping[str, str], source: str) -> Iterator[Part]:
    kind = block["type"]
    if kind == "text":
        if block["text"]:
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
    """Return True for a call whose input the provider decoded itself, which hides whether it was cut."""
    return block.get("type") == "tool_use" and not isinstance(block.get("input"), str)


class _MessageFold(Fold):
    """Blocks begin, grow by deltas and end; the message's frame comes in its first and last events."""

    def __init__(self) -> None:
        self._message: Body = {}
        self._blocks: dict[int, Body] = {}
        self._pieces: dict[int, dict[str, list[str]]] = {}

    def feed(self, event: Body) -> str:
        kind = event.get("type")
        if kind == "content_block_delta":
            return self._grow(event["index"], event["delta"])
        if kind == "content_block_start":
            return self._begin(event["index"], event["content_block"])
        if kind == "message_start":
            # A second one begins the answer anew (the provider went over to another model).
            self._message, self._blocks, self._pieces = dict(event["message"]), {}, {}
        elif kind == "message_delta":
            self._finish(event)
        elif kind == "message_stop":
            self.ended = True
        return ""

    def _begin(self, index: int, block: Body) -> str:
        self._blocks[index] = block
        self._pieces[index] = {}
        return block.get("text") or "" if block.get("type") == "text" else ""

    def _grow(self, index: int, delta: Body) -> str:
        block, pieces = self._blocks[index], self._pieces[index]
        for key, value in delta.items():
            if key == "citation":
                block["citations"] = block.get("citations") or []
                block["citations"].append(value)
            elif key != "type" and isinstance(value, str):
                pieces.setdefault(key, []).append(value)
            elif key != "type":
                block[key] = value
        return delta["text"] if block["type"] == "text" and isinstance(delta.get("text"), str) else ""

    def _finish(self, event: Body) -> None:
        self._message.update({key: value for key, value in event["delta"].items() if value is not None})
        usage = {key: value for key, value in (event.get("usage") or {}).items() if value is not None}
        self._message["usage"] = {**(self._message.get("usage") or {}), **usage}

    def body(self) -> Body | None:
        if not self.ended:
            return None
        content = [_joined(block, self._pieces[index]) for index, block in sorted(self._blocks.items())]
        return {**self._message, "content": content}


def _joined(block: Body, pieces: dict[str, list[str]]) -> Body:
    """The block with its pieces; input stays text for our own calls, and is decoded for the provider's."""
    whole = dict(block)
    for key, texts in pieces.items():
        text = "".join(texts)
        if key != "partial_json":
            whole[key] = (block.get(key) or "") + text
        elif text:
            whole["input"] = text if block["type"] == "tool_use" else read_arguments(text)
    return whole
