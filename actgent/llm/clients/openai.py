"""`OpenAI`: client of OpenAI chat completions and compatible servers (OpenRouter, vLLM, Ollama, DeepSeek ...).

Source: https://platform.openai.com/docs/api-reference/chat
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Unpack

from actgent.errors import UnsupportedPart
from actgent.llm.http.base_provider_client import Remote, RemoteOptions, StreamAssembler
from actgent.llm.http.provider_errors import provider_error
from actgent.llm.http.provider_schemas import STYLES, UnsupportedSchema, answer_schema, supported_tools
from actgent.llm.http.provider_sdk_client_and_token_counter import Sdk
from actgent.llm.http.tool_result_media import PDF, PICTURES, AcceptsMedium, attach_media
from actgent.llm.http.wire_encoding import (
    CALL_FIELDS,
    Body,
    base64_text,
    data_url,
    description_field,
    drop_incomplete_calls,
    provider_call_id,
    provider_tool_name,
    read_call,
    read_count,
    stop_reason,
    write_arguments,
    write_object,
)
from actgent.llm.model_interface import ChatMessage, ModelRequest, ModelResponse, ResponseFormat
from actgent.messages import (
    File,
    Image,
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

from .openai_chat_stream_assembly import CompletionAssembler, delta_text
from .provider_table import OPENAI, CompatibleProvider, find_provider_row

_DIALECT = "openai"
_MESSAGE_FIELDS = "actgent.message_fields"
"""Type of the `Opaque` part that holds the fields of a message that the API does not define."""
_FOREIGN_CALL_SIGNATURE = "skip_thought_signature_validator"
"""Signature that Google documents for tool calls of another model
(ai.google.dev/gemini-api/docs/thought-signatures).
"""
_BRIDGE = "Understood."
"""Text of an assistant message that is inserted between a tool message and a user message, for providers that
require one.
"""
_OPENING = "(The conversation begins with your own message.)"
_COMPLETION_LIMIT_MODELS = re.compile(r"(.*/)?(o\d|gpt-([5-9]|\d\d))")
"""Pattern of the names of models that reject `max_tokens` and require `max_completion_tokens`."""
_OPENAI_HOSTS = (".openai.com", ".azure.com")
_AUDIO_MODELS = re.compile("audio|gemini|voxtral|omni")
"""Pattern of the names of models that accept audio. Other models reject a request that contains audio."""
_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


class OpenAI(Remote):
    """Client of a model behind OpenAI chat completions, or behind a compatible server at `base_url`.

    A server at an `http://` URL needs no API key; any other server does.
    """

    provider: ClassVar[str] = "openai"
    dialect: ClassVar[str] = _DIALECT
    answer_field: ClassVar[str] = "choices"
    event_field: ClassVar[str] = "choices"
    path: ClassVar[str] = "/chat/completions"
    key_variables: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY",)
    url_variables: ClassVar[tuple[str, ...]] = ("OPENAI_BASE_URL",)
    default_url: ClassVar[str] = "https://api.openai.com/v1"
    row: CompatibleProvider = OPENAI
    """Row of the provider table: differences of the provider's API from OpenAI's."""

    def __init__(self, model: str, **options: Unpack[RemoteOptions]) -> None:
        """Create a client for the model `model` of an API that is compatible with OpenAI's Chat Completions.

        `options` are those of `RemoteOptions`.
        """
        super().__init__(model, **options)
        if self.row is OPENAI and self._accepts_video:
            self.row = find_provider_row(self._host)
        self.style = STYLES[self.row.schemas]

    def _connect(self, **options: Any) -> Sdk:
        from ._openai_sdk_import import make_sdk  # noqa: PLC0415 - a second and 60 MB, only when a client is made

        return make_sdk(**options)

    def encode(self, chat: ModelRequest) -> Body:
        body: Body = {"messages": _fix_order(self._messages(chat), self.row)}
        if chat.tools and (tools := [_tool(*each) for each in supported_tools(chat.tools, self.style)]):
            body["tools"] = tools
        if chat.temperature is not None:
            body["temperature"] = chat.temperature
        if chat.max_tokens is not None:
            body[self._limit_field()] = chat.max_tokens
        if chat.response_format is not None and (
            form := self._response_format_field(chat.response_format, bool(chat.tools))
        ):
            body["response_format"] = form
        return body

    def _response_format_field(self, response_format: ResponseFormat, with_tools: bool) -> Body | None:  # noqa: FBT001 - one caller
        """Return the value of the request field by which the provider enforces a response format.

        Return None if the model does not support it; then only the prompt contains the schema.
        """
        if with_tools and not re.search(self.row.format_with_tools, self.model):
            return None
        try:
            form = answer_schema(response_format.schema, self.style)
        except UnsupportedSchema:
            return None
        if not re.search(self.row.json_schema_models, self.model):
            return None if form.is_wrapped else {"type": "json_object"}
        schema = {
            "name": provider_tool_name(response_format.name),
            "schema": form.schema,
            "strict": form.strict,
        }
        return {"type": "json_schema", "json_schema": schema}

    def _messages(self, chat: ModelRequest) -> Iterator[Body]:
        if chat.system:
            yield {"role": "system", "content": chat.system}
        for message in chat.messages:
            parts = message.parts
            if len(parts) == 1 and type(parts[0]) is Text:
                yield {
                    "role": "assistant" if message.role == "assistant" else "user",
                    "content": parts[0].text,
                }
            elif message.role == "assistant":
                yield from self._encode_assistant(message)
            else:
                yield from _encode_user(message, self._accepts, self._accepts_video)

    def _encode_assistant(self, message: ChatMessage) -> Iterator[Body]:
        """Encode an earlier answer of the model as one request message. Yield nothing if the answer has no content."""
        body: Body = {}
        content: list[Body] = []
        calls: list[Body] = []
        for part in message.parts:
            if isinstance(part, Text):
                content.append({"type": "text", "text": part.text})
            elif isinstance(part, ToolCall):
                if part.native:
                    calls.append(_call(part, write_object if self.row.decodes_arguments else write_arguments))
            elif isinstance(part, Thinking | Opaque):
                if part.dialect == _DIALECT and part.source in ("", self.source):
                    self._restore_fields(part, body, content, calls)
            elif isinstance(part, Media):
                raise UnsupportedPart(
                    f"chat completions accept no {type(part).__name__} in a message of the model"
                )
        if calls:
            body["tool_calls"] = self._add_signature(calls)
        if content or body:
            yield {"role": "assistant", "content": _join_content(content), **body}

    def _restore_fields(
        self, part: Thinking | Opaque, body: Body, content: list[Body], calls: list[Body]
    ) -> None:
        """Add a thinking part or unknown field of an earlier answer to `body`, the request message of this answer.

        `content` and `calls` are the content parts and tool calls of that message.
        """
        data = part.data
        kind = data.get("type")
        if kind == CALL_FIELDS:
            if calls and self.row.takes_unknown_fields:
                fields = dict(data["fields"])
                calls[-1]["function"] |= fields.pop("function", {})
                calls[-1] |= fields
        elif kind == _MESSAGE_FIELDS:
            if self.row.takes_unknown_fields:
                body |= data["fields"]
        elif "content" in data:
            if part.source:
                content += data["content"]
        elif "audio" in data:
            body["audio"] = {"id": data["audio"]["id"]}
        elif isinstance(part, Thinking):
            body |= {key: value for key, value in data.items() if re.fullmatch(self.row.reasoning, key)}

    def _add_signature(self, calls: list[Body]) -> list[Body]:
        """Add a placeholder signature to tool calls of another model, because Gemini 3 rejects calls without a signature."""
        is_signed = not self.row.signed_call_models or any("extra_content" in call for call in calls)
        if not is_signed and re.search(self.row.signed_call_models, self.model):
            calls[0]["extra_content"] = {"google": {"thought_signature": _FOREIGN_CALL_SIGNATURE}}
        return calls

    def _accepts(self, medium: Medium) -> bool:
        """Return True if this model can receive a medium of a tool result, in a user message after the result."""
        if medium.media_type in _AUDIO:
            return medium.data is not None and _AUDIO_MODELS.search(self.model) is not None
        return medium.media_type in PICTURES or (medium.media_type == PDF and medium.data is not None)

    @property
    def _accepts_video(self) -> bool:
        """True if videos are sent as `video_url`, which some servers other than OpenAI's accept."""
        return not f".{self._host}".endswith(_OPENAI_HOSTS)

    def _limit_field(self) -> str:
        # OpenAI has replaced max_tokens, but most compatible servers only support this field.
        official = not self._accepts_video or _COMPLETION_LIMIT_MODELS.match(self.model)
        return "max_completion_tokens" if official else "max_tokens"

    def stream_fields(self) -> Body:
        return {"stream": True, "stream_options": {"include_usage": True}}

    def assembler(self) -> StreamAssembler:
        return CompletionAssembler()

    def decode(self, body: Body, names: Mapping[str, str]) -> ModelResponse:
        choice = _first_choice(body.get("choices"))
        if error := choice.get("error"):
            raise provider_error(error, model=self.name, secrets=self._secrets, headers={})
        # A server with the text completions format returns `text` and no message.
        message = choice.get("message") or {"content": choice.get("text")}
        parts, finish = _read_message(message, names, self.source), choice.get("finish_reason")
        if not finish:
            # Ollama omits it in complete answers. The content length shows that the body is complete.
            if not parts:
                raise ValueError("finish_reason must not be empty in a response without content")
            finish = "stop"
        stop = stop_reason(finish)
        if message.get("refusal"):
            stop = "refusal"
        if stop == "end" and any(isinstance(part, ToolCall) for part in parts):
            stop = "tool_calls"
        return ModelResponse(
            parts=parts if stop in ("end", "tool_calls") else drop_incomplete_calls(parts),
            stop=stop,
            usage=self._usage(body),
            model=body.get("model") or "",
            id=body.get("id"),
        )

    def _usage(self, body: Body) -> Usage:
        raw = body.get("usage") or (body.get("x_groq") or {}).get("usage") or {}
        usage = Usage(
            input_tokens=_count_any(raw, ("prompt_tokens",), ("input_tokens",)),
            output_tokens=_count_any(raw, ("completion_tokens",), ("output_tokens",)),
            cached_tokens=_count_any(raw, *_CACHED_COUNTS),
            cache_write_tokens=_count_any(raw, *_CACHE_WRITE_COUNTS),
            reasoning_tokens=_count_any(
                raw, ("completion_tokens_details", "reasoning_tokens"), ("reasoning_tokens",)
            ),
        )
        return self.priced(usage, body.get("model") or "", raw)


# --- requests ---------------------------------------------------------------------------------------


def _join_content(content: list[Body]) -> str | list[Body] | None:
    if not content:
        return None
    if all(part.keys() == {"type", "text"} for part in content):
        return "".join([part["text"] for part in content])
    return content


def _encode_user(message: ChatMessage, accepts: AcceptsMedium, accepts_video: bool) -> Iterator[Body]:  # noqa: FBT001 - as above
    """Encode a message of the user or of tools for a request.

    Yield one message for each native tool result, then one for the other parts. `accepts` returns True for media of tool
    results that the model can receive.
    """
    rest: list[Body] = []
    for part in message.parts:
        if isinstance(part, ToolResult) and part.native:
            text, media = attach_media(part, accepts)
            yield {"role": "tool", "tool_call_id": provider_call_id(part.call_id), "content": text}
            rest += _encode_result_media(part, media)
        elif isinstance(part, ToolResult):
            text, media = attach_media(part, accepts)
            rest += [{"type": "text", "text": text}, *map(_content, media)]
        elif isinstance(part, Opaque):
            rest += [dict(part.data)] if part.dialect == _DIALECT else []
        elif isinstance(part, File) and part.media_type.startswith("video/"):
            rest.append(_video(part, accepts_video=accepts_video))
        elif not isinstance(part, Thinking | ToolCall):
            rest.append(_content(part))
    if rest:
        plain = all(content.get("type") == "text" for content in rest)
        # Text-only servers only accept a string.
        yield {"role": "user", "content": "\n\n".join(content["text"] for content in rest) if plain else rest}


def _encode_result_media(result: ToolResult, media: Sequence[Medium]) -> Iterator[Body]:
    """Encode the media of a tool result as parts of a user message, because a tool message can only contain text."""
    if media:
        yield {
            "type": "text",
            "text": f"[returned by the tool {result.tool_name}, call {provider_call_id(result.call_id)}:]",
        }
        yield from map(_content, media)


def _content(part: Part) -> Body:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image):
        return {"type": "image_url", "image_url": {"url": data_url(part)}}
    if isinstance(part, File):
        return _file(part)
    raise UnsupportedPart(f"chat completions accept no {type(part).__name__}")


def _video(part: File, *, accepts_video: bool) -> Body:
    if not accepts_video:
        raise UnsupportedPart(
            f"OpenAI accepts no {part.media_type} ({part.name}): pass images of it, or its audio"
        )
    return {"type": "video_url", "video_url": {"url": data_url(part)}}


def _file(part: File) -> Body:
    if part.data is None:
        raise UnsupportedPart(f"chat completions accept no file by URL ({part.name}): pass data=")
    if kind := _AUDIO.get(part.media_type):
        return {"type": "input_audio", "input_audio": {"data": base64_text(part), "format": kind}}
    if part.media_type.startswith("audio/"):
        raise UnsupportedPart(
            f"chat completions accept WAV and MP3, not {part.media_type} ({part.name}): convert it"
        )
    return {"type": "file", "file": {"filename": part.name, "file_data": data_url(part)}}


def _call(call: ToolCall, write: Callable[[Mapping[str, Any] | str], str]) -> Body:
    function = {"name": provider_tool_name(call.name), "arguments": write(call.arguments)}
    return {
        "id": provider_call_id(call.id or call.provider_id or ""),
        "type": "function",
        "function": function,
    }


def _tool(tool: ToolSpec, parameters: Mapping[str, Any]) -> Body:
    function = {
        "name": provider_tool_name(tool.name),
        **description_field(tool.description),
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def _fix_order(messages: Iterable[Body], row: CompatibleProvider) -> list[Body]:
    """Make encoded messages follow the provider's rules for the order of roles.

    Insert filler messages, and merge adjacent messages of one role.
    """
    if row.has_user_after_tool and not row.alternates:
        return list(messages)
    ordered: list[Body] = []
    for message in messages:
        before, role = (ordered[-1]["role"] if ordered else ""), message["role"]
        if before == "tool" and role == "user" and not row.has_user_after_tool:
            ordered.append({"role": "assistant", "content": _BRIDGE})
        elif row.alternates and role == "assistant" and before in ("", "system"):
            ordered.append({"role": "user", "content": _OPENING})
        elif row.alternates and role == before != "tool":
            ordered[-1] = _merge_messages(ordered[-1], message)
            continue
        ordered.append(message)
    return ordered


def _merge_messages(first: Body, second: Body) -> Body:
    """Merge two adjacent messages of one role into one message with the contents and the tool calls of both messages."""
    one, other = first.get("content"), second.get("content")
    content: Any = one or other
    if one and other:
        is_text = isinstance(one, str) and isinstance(other, str)
        content = f"{one}\n\n{other}" if is_text else [*_parts(one), *_parts(other)]
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    return {**first, **second, "content": content, **({"tool_calls": calls} if calls else {})}


def _parts(content: str | list[Body]) -> list[Body]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


# --- responses --------------------------------------------------------------------------------------


_CACHED_COUNTS = (
    ("prompt_tokens_details", "cached_tokens"),
    ("prompt_cache_hit_tokens",),  # DeepSeek
    ("cached_tokens",),  # Moonshot
    ("cache_read_input_tokens",),  # LiteLLM and Databricks before Claude
)
"""Paths in a usage object that may hold the number of prompt tokens read from the cache."""
_CACHE_WRITE_COUNTS = (("prompt_tokens_details", "cache_write_tokens"), ("cache_creation_input_tokens",))
"""Paths in a usage object that may hold the number of prompt tokens written to the cache."""


def _count_any(usage: Mapping[str, Any], *paths: tuple[str, ...]) -> int:
    """Look up several key paths in a usage object, and return the first number above 0; 0 if no path has one."""
    return next((number for path in paths if (number := read_count(usage, *path))), 0)


def _first_choice(choices: list[Body] | None) -> Body:
    if not choices:
        raise ValueError("the response must have at least one choice")
    return next((choice for choice in choices if choice.get("index") == 0), choices[0])


_KNOWN_FIELDS = frozenset(
    {"role", "content", "refusal", "tool_calls", "function_call", "audio", "annotations"}
)
"""Message fields that the client decodes. All other fields are kept as unknown fields."""
_REASONING_FIELDS = (
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "reasoning_text",
    "thinking",
    "thinking_blocks",
)


def _read_message(message: Body, names: Mapping[str, str], source: str) -> tuple[Part, ...]:
    unknown = {
        key: value
        for key, value in message.items()
        if value and key not in _KNOWN_FIELDS and key not in _REASONING_FIELDS
    }
    return (
        *_read_thinking(message, source),
        *_read_content(message.get("content"), source),
        *_read_content(message.get("refusal"), source),
        *(Opaque(_DIALECT, {key: message[key]}) for key in ("audio", "annotations") if message.get(key)),
        *([Opaque(_DIALECT, {"type": _MESSAGE_FIELDS, "fields": unknown}, source)] if unknown else ()),
        *_read_calls(message, names, source),
    )


def _read_thinking(message: Body, source: str) -> Iterator[Part]:
    """Yield the thinking part of a response message with all its fields, so that later requests contain this part unchanged.

    The fields are `reasoning_content` (DeepSeek, vLLM) or `reasoning` with details (OpenRouter, Ollama).
    """
    data = {key: message[key] for key in _REASONING_FIELDS if message.get(key)}
    if data:
        texts = (data.get(key) for key in ("reasoning_content", "reasoning", "reasoning_text", "thinking"))
        yield Thinking(
            next((text for text in texts if isinstance(text, str) and text), ""), _DIALECT, data, source
        )


def _read_content(content: object, source: str) -> Iterator[Part]:
    if isinstance(content, str):
        if content:
            yield Text(content)
    elif isinstance(content, list):
        for item in content:
            if isinstance(item, str):
                yield Text(item)
            elif isinstance(item.get("text"), str):
                yield Text(item["text"])
            elif item.get("type") == "thinking":
                yield Thinking(_thinking_text(item), _DIALECT, {"content": [item]}, source)
            else:
                yield Opaque(_DIALECT, {"content": [item]}, source)


def _thinking_text(item: Body) -> str:
    """Return the text of a content item with thinking, as Mistral's reasoning models send it: a text or a list."""
    thoughts = item.get("thinking")
    return thoughts if isinstance(thoughts, str) else delta_text(thoughts or [])


def _read_calls(message: Body, names: Mapping[str, str], source: str) -> Iterator[Part]:
    for call in message.get("tool_calls") or ():
        custom = call.get("custom")
        if custom:
            yield ToolCall(custom["name"], custom.get("input") or "", provider_id=call.get("id"))
        else:
            function = call["function"]
            yield read_call(function.get("name"), function.get("arguments"), call.get("id"), names)
            yield from _read_fields(call, function, source)
    if legacy := message.get("function_call"):
        yield read_call(legacy.get("name"), legacy.get("arguments"), None, names)


def _read_fields(call: Body, function: Body, source: str) -> Iterator[Part]:
    """If a tool call has fields that the API does not define, yield a part with these fields.

    Gemini's `extra_content` must be sent back with the call.
    """
    fields = {key: value for key, value in call.items() if value is not None and key not in _CALL}
    inner = {key: value for key, value in function.items() if value is not None and key not in _FUNCTION}
    if inner:
        fields["function"] = inner
    if fields:
        yield Opaque(_DIALECT, {"type": CALL_FIELDS, "fields": fields}, source)


_CALL = frozenset({"id", "index", "type", "function", "custom"})
_FUNCTION = frozenset({"name", "arguments"})
