"""OpenAI chat completions, and all servers with a compatible API (OpenRouter, vLLM, Ollama, DeepSeek ...).

Source: https://platform.openai.com/docs/api-reference/chat
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Unpack

from actgent.errors import UnsupportedPart
from actgent.llm.base import Answer, Chat, ChatMessage, ResponseFormat, StopReason
from actgent.llm.http import (
    CALL_FIELDS,
    PDF,
    PICTURES,
    STYLES,
    Body,
    Fold,
    Inexpressible,
    Remote,
    RemoteOptions,
    Sdk,
    Takes,
    attached,
    base64_text,
    count,
    data_url,
    described,
    offered_tools,
    provider_error,
    provider_form,
    read_call,
    whole_calls,
    wire_id,
    wire_name,
    write_arguments,
    write_object,
)
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

from .chat_stream import CompletionFold, delta_text
from .providers import OPENAI, CompatibleProvider, row_at

_DIALECT = "openai"
_MESSAGE_FIELDS = "actgent.message_fields"
"""Type of the opaque part that holds the provider's unknown fields of a message."""
_UNSIGNED = "skip_thought_signature_validator"
"""Google's word for a call that another model made (ai.google.dev/gemini-api/docs/thought-signatures)."""
_BRIDGE = "Understood."
"""The assistant's word between a tool's message and a user's."""
_OPENING = "(The conversation begins with your own message.)"
_STOPS: dict[str, StopReason] = {
    "length": "length",
    "max_tokens": "length",
    "content_filter": "filter",
    "safety": "filter",
    "recitation": "filter",
    "prohibited_content": "filter",
    "refusal": "refusal",
}
"""Any other word ends an answer normally; servers have their own (`eos`, `stop_sequence`, `function_call`)."""
_BREAKS = frozenset({"error", "abort", "insufficient_system_resource", "malformed_function_call"})
"""Words of servers that gave up in the middle of an answer (OpenRouter, vLLM, DeepSeek, Gemini)."""
_NEW_LIMIT = re.compile(r"(.*/)?(o\d|gpt-([5-9]|\d\d))")
"""Models that refuse `max_tokens`."""
_OPENAI_HOSTS = (".openai.com", ".azure.com")
_HEARS = re.compile("audio|gemini|voxtral|omni")
"""Models that take sound; others refuse a request with any."""
_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


class OpenAI(Remote):
    """A model behind OpenAI chat completions or a compatible server, which `base_url` names.

    A server at an `http://` address is asked without a key if there is none; every other one needs a key.
    """

    provider: ClassVar[str] = "openai"
    dialect: ClassVar[str] = _DIALECT
    path: ClassVar[str] = "/chat/completions"
    key_variables: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY",)
    url_variables: ClassVar[tuple[str, ...]] = ("OPENAI_BASE_URL",)
    default_url: ClassVar[str] = "https://api.openai.com/v1"
    row: CompatibleProvider = OPENAI
    """What the server at the other end takes and refuses."""

    def __init__(self, model: str, **options: Unpack[RemoteOptions]) -> None:
        """See `RemoteOptions`."""
        super().__init__(model, **options)
        if self.row is OPENAI and self._takes_video:
            self.row = row_at(self._host)
        self.style = STYLES[self.row.schemas]

    def _connect(self, **options: Any) -> Sdk:
        from ._openai_sdk import make_sdk  # noqa: PLC0415 - a second and 60 MB, only when a client is made

        return make_sdk(**options)

    def encode(self, chat: Chat) -> Body:
        body: Body = {"messages": _in_order(self._messages(chat), self.row)}
        if chat.tools and (tools := [_tool(*each) for each in offered_tools(chat.tools, self.style)]):
            body["tools"] = tools
        if chat.temperature is not None:
            body["temperature"] = chat.temperature
        if chat.max_tokens is not None:
            body[self._limit_field()] = chat.max_tokens
        if chat.response_format is not None and (form := self._form(chat.response_format, bool(chat.tools))):
            body["response_format"] = form
        return body

    def _form(self, wanted: ResponseFormat, with_tools: bool) -> Body | None:  # noqa: FBT001 - one caller
        """Return the response format that this model takes; None: only the prompt says the form."""
        if with_tools and not re.search(self.row.format_with_tools, self.model):
            return None
        try:
            form = provider_form(wanted.schema, self.style)
        except Inexpressible:
            return None
        if not re.search(self.row.json_schema_models, self.model):
            return None if form.is_wrapped else {"type": "json_object"}
        schema = {"name": wire_name(wanted.name), "schema": form.schema, "strict": form.strict}
        return {"type": "json_schema", "json_schema": schema}

    def _messages(self, chat: Chat) -> Iterator[Body]:
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
                yield from self._said(message)
            else:
                yield from _heard(message, self._takes, self._takes_video)

    def _said(self, message: ChatMessage) -> Iterator[Body]:
        """Encode a message of the model: at most one in the request."""
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
                    self._return(part, body, content, calls)
            elif isinstance(part, Media):
                raise UnsupportedPart(
                    f"chat completions take no {type(part).__name__} in a message of the model's"
                )
        if calls:
            body["tool_calls"] = self._signed(calls)
        if content or body:
            yield {"role": "assistant", "content": _joined_content(content), **body}

    def _return(self, part: Thinking | Opaque, body: Body, content: list[Body], calls: list[Body]) -> None:
        """Add what the provider sent beside text and calls to the message that it belongs to."""
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

    def _signed(self, calls: list[Body]) -> list[Body]:
        """Mark the calls of a message that another model wrote: Gemini 3 refuses calls without a signature."""
        is_signed = not self.row.unsigned_calls or any("extra_content" in call for call in calls)
        if not is_signed and re.search(self.row.unsigned_calls, self.model):
            calls[0]["extra_content"] = {"google": {"thought_signature": _UNSIGNED}}
        return calls

    def _takes(self, medium: Medium) -> bool:
        """Return True for what this model may be shown of a result, in a user's message behind it."""
        if medium.media_type in _AUDIO:
            return medium.data is not None and _HEARS.search(self.model) is not None
        return medium.media_type in PICTURES or (medium.media_type == PDF and medium.data is not None)

    @property
    def _takes_video(self) -> bool:
        """True for servers other than OpenAI's, of which some take videos, by the name that they have agreed on."""
        return not f".{self._host}".endswith(_OPENAI_HOSTS)

    def _limit_field(self) -> str:
        # OpenAI has replaced max_tokens; most compatible servers know no other.
        official = not self._takes_video or _NEW_LIMIT.match(self.model)
        return "max_completion_tokens" if official else "max_tokens"

    def stream_fields(self) -> Body:
        return {"stream": True, "stream_options": {"include_usage": True}}

    def fold(self) -> Fold:
        return CompletionFold()

    def decode(self, body: Body, names: Mapping[str, str]) -> Answer:
        choice = _first_choice(body["choices"])
        if error := choice.get("error"):
            raise provider_error(error, model=self.name, secrets=self._secrets, headers={})
        # A server of text completions answers with `text` and without a message.
        message = choice.get("message") or {"content": choice.get("text")}
        parts, finish = _read_message(message, names, self.source), choice.get("finish_reason")
        if not finish:
            # Ollama sends whole answers without; the length of the HTTP body says that all of it is here.
            if not parts:
                raise ValueError("it has no finish_reason")
            finish = "stop"
        if finish.lower() in _BREAKS:
            raise ValueError(f"its finish_reason is {finish!r}")
        stop = _STOPS.get(finish.lower(), "end")
        if message.get("refusal"):
            stop = "refusal"
        if stop == "end" and any(isinstance(part, ToolCall) for part in parts):
            stop = "tool_calls"
        return Answer(
            parts=parts if stop in ("end", "tool_calls") else whole_calls(parts),
            stop=stop,
            usage=self._usage(body),
            model=body.get("model") or "",
            id=body.get("id"),
        )

    def _usage(self, body: Body) -> Usage:
        raw = body.get("usage") or (body.get("x_groq") or {}).get("usage") or {}
        usage = Usage(
            input_tokens=count(raw, "prompt_tokens"),
            output_tokens=count(raw, "completion_tokens"),
            cached_tokens=count(raw, "prompt_tokens_details", "cached_tokens")
            or count(raw, "prompt_cache_hit_tokens"),
            cache_write_tokens=count(raw, "prompt_tokens_details", "cache_write_tokens"),
            reasoning_tokens=count(raw, "completion_tokens_details", "reasoning_tokens"),
        )
        return self.priced(usage, body.get("model") or "", raw)


# --- from ours to theirs ----------------------------------------------------------------------------


def _joined_content(content: list[Body]) -> str | list[Body] | None:
    if not content:
        return None
    if all(part.keys() == {"type", "text"} for part in content):
        return "".join([part["text"] for part in content])
    return content


def _heard(message: ChatMessage, takes: Takes, takes_video: bool) -> Iterator[Body]:  # noqa: FBT001 - as above
    """Encode a message of the user or of tools: each native result is a message of its own, and they come first."""
    rest: list[Body] = []
    for part in message.parts:
        if isinstance(part, ToolResult) and part.native:
            text, media = attached(part, takes)
            yield {"role": "tool", "tool_call_id": wire_id(part.call_id), "content": text}
            rest += _beside(part, media)
        elif isinstance(part, ToolResult):
            text, media = attached(part, takes)
            rest += [{"type": "text", "text": text}, *map(_content, media)]
        elif isinstance(part, Opaque):
            rest += [dict(part.data)] if part.dialect == _DIALECT else []
        elif isinstance(part, File) and part.media_type.startswith("video/"):
            rest.append(_video(part, takes_video=takes_video))
        elif not isinstance(part, Thinking | ToolCall):
            rest.append(_content(part))
    if rest:
        plain = all(content.get("type") == "text" for content in rest)
        # Servers that know only text take only a string.
        yield {"role": "user", "content": "\n\n".join(content["text"] for content in rest) if plain else rest}


def _beside(result: ToolResult, media: Sequence[Medium]) -> Iterator[Body]:
    """Return what a result shows besides its text, which is all that a message of a tool takes."""
    if media:
        yield {
            "type": "text",
            "text": f"[returned by the tool {result.tool_name}, call {wire_id(result.call_id)}:]",
        }
        yield from map(_content, media)


def _content(part: Part) -> Body:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image):
        return {"type": "image_url", "image_url": {"url": data_url(part)}}
    if isinstance(part, File):
        return _file(part)
    raise UnsupportedPart(f"chat completions take no {type(part).__name__}")


def _video(part: File, *, takes_video: bool) -> Body:
    if not takes_video:
        raise UnsupportedPart(
            f"OpenAI takes no {part.media_type} ({part.name}): pass pictures of it, or its sound"
        )
    return {"type": "video_url", "video_url": {"url": data_url(part)}}


def _file(part: File) -> Body:
    if part.data is None:
        raise UnsupportedPart(f"chat completions take no file by its address ({part.name}): pass data=")
    if kind := _AUDIO.get(part.media_type):
        return {"type": "input_audio", "input_audio": {"data": base64_text(part), "format": kind}}
    if part.media_type.startswith("audio/"):
        raise UnsupportedPart(
            f"chat completions take WAV and MP3, and no {part.media_type} ({part.name}): convert it"
        )
    return {"type": "file", "file": {"filename": part.name, "file_data": data_url(part)}}


def _call(call: ToolCall, write: Callable[[Mapping[str, Any] | str], str]) -> Body:
    function = {"name": wire_name(call.name), "arguments": write(call.arguments)}
    return {"id": wire_id(call.id or call.provider_id or ""), "type": "function", "function": function}


def _tool(tool: ToolSpec, parameters: Mapping[str, Any]) -> Body:
    function = {"name": wire_name(tool.name), **described(tool.description), "parameters": parameters}
    return {"type": "function", "function": function}


def _in_order(messages: Iterable[Body], row: CompatibleProvider) -> list[Body]:
    """Return the messages with what the provider's order demands between them."""
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
            ordered[-1] = _merged(ordered[-1], message)
            continue
        ordered.append(message)
    return ordered


def _merged(first: Body, second: Body) -> Body:
    """Two neighbours of one role as one message."""
    one, other = first.get("content"), second.get("content")
    content: Any = one or other
    if one and other:
        is_text = isinstance(one, str) and isinstance(other, str)
        content = f"{one}\n\n{other}" if is_text else [*_parts(one), *_parts(other)]
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    return {**first, **second, "content": content, **({"tool_calls": calls} if calls else {})}


def _parts(content: str | list[Body]) -> list[Body]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


# --- from theirs to ours ----------------------------------------------------------------------------


def _first_choice(choices: list[Body]) -> Body:
    return next((choice for choice in choices if choice.get("index") == 0), choices[0])


_READ = frozenset({"role", "content", "refusal", "tool_calls", "function_call", "audio", "annotations"})
"""Fields of a message that are parts of the answer."""
_REASONING_FIELDS = (
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "reasoning_text",
    "thinking_blocks",
)


def _read_message(message: Body, names: Mapping[str, str], source: str) -> tuple[Part, ...]:
    unknown = {
        key: value
        for key, value in message.items()
        if value and key not in _READ and key not in _REASONING_FIELDS
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
    """`reasoning_content` (DeepSeek, vLLM) or `reasoning` with details (OpenRouter, Ollama), to go back as it came."""
    data = {key: message[key] for key in _REASONING_FIELDS if message.get(key)}
    if data:
        texts = (data.get(key) for key in ("reasoning_content", "reasoning", "reasoning_text"))
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
                yield Thinking(_thoughts_of(item), _DIALECT, {"content": [item]}, source)
            else:
                yield Opaque(_DIALECT, {"content": [item]}, source)


def _thoughts_of(item: Body) -> str:
    """Return the readable text of a content part of Mistral's reasoning models."""
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
    """Return the fields of a call that this API does not define; Gemini's `extra_content` must come back with the call."""
    fields = {key: value for key, value in call.items() if value is not None and key not in _CALL}
    inner = {key: value for key, value in function.items() if value is not None and key not in _FUNCTION}
    if inner:
        fields["function"] = inner
    if fields:
        yield Opaque(_DIALECT, {"type": CALL_FIELDS, "fields": fields}, source)


_CALL = frozenset({"id", "index", "type", "function", "custom"})
_FUNCTION = frozenset({"name", "arguments"})
