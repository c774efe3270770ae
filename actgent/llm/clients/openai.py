"""OpenAI chat completions, and all servers with a compatible API (OpenRouter, vLLM, Ollama, DeepSeek ...).

Source: https://platform.openai.com/docs/api-reference/chat
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from actgent.errors import UnsupportedPart
from actgent.llm.base import Answer, Chat, ChatMessage, ResponseFormat, StopReason
from actgent.llm.http import (
    PDF,
    PICTURES,
    Body,
    Fold,
    Remote,
    Sdk,
    Takes,
    attached,
    base64_text,
    count,
    data_url,
    described,
    is_strict,
    provider_error,
    read_arguments,
    read_call,
    whole_calls,
    wire_id,
    wire_name,
    write_arguments,
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
    Usage,
)

_DIALECT = "openai"
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

    def _connect(self, **options: Any) -> Sdk:
        from ._openai_sdk import make_sdk  # noqa: PLC0415 - a second and 60 MB, only when a client is made

        return make_sdk(**options)

    def encode(self, chat: Chat) -> Body:
        body: Body = {"messages": list(_messages(chat, self._takes, self._takes_video))}
        if chat.tools:
            body["tools"] = [_tool(tool.name, tool.description, tool.parameters) for tool in chat.tools]
        if chat.temperature is not None:
            body["temperature"] = chat.temperature
        if chat.max_tokens is not None:
            body[self._limit_field()] = chat.max_tokens
        if chat.response_format is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": _schema(chat.response_format)}
        return body

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
        return _CompletionFold()

    def decode(self, body: Body, names: Mapping[str, str]) -> Answer:
        choice = _first_choice(body["choices"])
        if error := choice.get("error"):
            raise provider_error(error, model=self.name, secrets=self._secrets, headers={})
        finish = choice.get("finish_reason")
        if not finish:
            raise ValueError("it has no finish_reason")
        if finish.lower() in _BREAKS:
            raise ValueError(f"its finish_reason is {finish!r}")
        message = choice.get("message") or {}
        parts, stop = _read_message(message, names), _STOPS.get(finish.lower(), "end")
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


def _messages(chat: Chat, takes: Takes, takes_video: bool) -> Iterator[Body]:  # noqa: FBT001 - passed on
    if chat.system:
        yield {"role": "system", "content": chat.system}
    for message in chat.messages:
        parts = message.parts
        if len(parts) == 1 and type(parts[0]) is Text:
            yield {"role": "assistant" if message.role == "assistant" else "user", "content": parts[0].text}
        elif message.role == "assistant":
            yield from _said(message)
        else:
            yield from _heard(message, takes, takes_video)


def _said(message: ChatMessage) -> Iterator[Body]:
    """A message of the model's: at most one in the request."""
    body: Body = {}
    texts = [part.text for part in message.parts if isinstance(part, Text)]
    calls = [_call(part) for part in message.parts if isinstance(part, ToolCall) and part.native]
    for part in message.parts:
        if isinstance(part, Thinking) and part.dialect == _DIALECT:
            body.update(part.data)
        elif isinstance(part, Opaque) and part.dialect == _DIALECT and "audio" in part.data:
            body["audio"] = {"id": part.data["audio"]["id"]}
        elif isinstance(part, Media):
            raise UnsupportedPart(
                f"chat completions take no {type(part).__name__} in a message of the model's"
            )
    if calls:
        body["tool_calls"] = calls
    if texts or body:
        yield {"role": "assistant", "content": "".join(texts) if texts else None, **body}


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


def _call(call: ToolCall) -> Body:
    function = {"name": wire_name(call.name), "arguments": write_arguments(call.arguments)}
    return {"id": wire_id(call.id or call.provider_id or ""), "type": "function", "function": function}


def _tool(name: str, description: str, parameters: Mapping[str, Any]) -> Body:
    function = {"name": wire_name(name), **described(description), "parameters": parameters}
    return {"type": "function", "function": function}


def _schema(wanted: ResponseFormat) -> Body:
    return {"name": wire_name(wanted.name), "schema": wanted.schema, "strict": is_strict(wanted.schema)}


# --- from theirs to ours ----------------------------------------------------------------------------


def _first_choice(choices: list[Body]) -> Body:
    return next((choice for choice in choices if choice.get("index") == 0), choices[0])


def _read_message(message: Body, names: Mapping[str, str]) -> tuple[Part, ...]:
    return (
        *_read_thinking(message),
        *_read_content(message.get("content")),
        *_read_content(message.get("refusal")),
        *(Opaque(_DIALECT, {key: message[key]}) for key in ("audio", "annotations") if message.get(key)),
        *_read_calls(message, names),
    )


def _read_thinking(message: Body) -> Iterator[Part]:
    """`reasoning_content` (DeepSeek, vLLM) or `reasoning` with details (OpenRouter, Ollama), to go back as it came."""
    data = {
        key: message[key]
        for key in ("reasoning_content", "reasoning", "reasoning_details")
        if message.get(key)
    }
    if data:
        text = data.get("reasoning_content") or data.get("reasoning")
        yield Thinking(text if isinstance(text, str) else "", _DIALECT, data)


def _read_content(content: object) -> Iterator[Part]:
    if isinstance(content, str):
        if content:
            yield Text(content)
    elif isinstance(content, list):
        for item in content:
            is_text = isinstance(item.get("text"), str)
            yield Text(item["text"]) if is_text else Opaque(_DIALECT, {"content": [item]})


def _read_calls(message: Body, names: Mapping[str, str]) -> Iterator[Part]:
    for call in message.get("tool_calls") or ():
        custom = call.get("custom")
        if custom:
            yield ToolCall(custom["name"], custom.get("input") or "", provider_id=call.get("id"))
        else:
            function = call["function"]
            yield read_call(function.get("name"), function.get("arguments"), call.get("id"), names)
    if legacy := message.get("function_call"):
        yield read_call(legacy.get("name"), legacy.get("arguments"), None, names)


class _CompletionFold(Fold):
    """Chunks carry pieces of one message; the first choice is the answer."""

    def __init__(self) -> None:
        self._body: Body = {}
        self._choice: Body = {"index": 0}
        self._message: Body = {}
        self._calls: list[Body] = []
        self._open: dict[int | None, Body] = {}
        self._by_id: dict[str, Body] = {}

    def feed(self, event: Body) -> str:
        for key in ("id", "model", "usage", "x_groq"):
            if event.get(key):
                self._body[key] = event[key]
        text = ""
        for choice in event.get("choices") or ():
            if (choice.get("index") or 0) == 0:
                text += self._take(choice)
        return text

    def _take(self, choice: Body) -> str:
        for key in ("finish_reason", "error"):
            if choice.get(key):
                self._choice[key] = choice[key]
        delta = choice.get("delta") or {}
        for call in delta.get("tool_calls") or ():
            self._take_call(call)
        for key, value in delta.items():
            if value and key not in ("role", "tool_calls"):
                _grow(self._message, key, value)
        return _delta_text(delta.get("content")) + _delta_text(delta.get("refusal"))

    def _take_call(self, delta: Body) -> None:
        call = self._call_of(delta)
        if delta.get("id"):
            call["id"] = delta["id"]
            self._by_id.setdefault(call["id"], call)
        for kind in ("function", "custom"):
            for field, value in (delta.get(kind) or {}).items():
                if value:
                    _grow(call.setdefault(kind, {}), field, value)

    def _call_of(self, delta: Body) -> Body:
        number, call_id = delta.get("index"), delta.get("id")
        known = self._unnumbered(call_id) if number is None else self._open.get(number)
        # Some servers number every call 0, or none: a new id then begins a new call, or without ids a new name.
        if (
            known is None
            or (call_id and known.get("id") and call_id != known["id"])
            or (not call_id and _begins_anew(delta, known))
        ):
            known = self._open[number] = {"function": {}}
            self._calls.append(known)
        return known

    def _unnumbered(self, call_id: str | None) -> Body | None:
        """The call that a piece without a number goes on with."""
        if call_id:
            return self._by_id.get(call_id)
        return self._calls[-1] if self._calls else None

    def body(self) -> Body | None:
        if "finish_reason" not in self._choice and "error" not in self._choice:
            return None
        message = _joined({**self._message, "tool_calls": self._calls})
        return {**self._body, "choices": [{**self._choice, "message": message}]}


def _begins_anew(delta: Body, known: Body) -> bool:
    """Return True for a piece without an id that brings a name and arguments although the call so far is whole."""
    function = delta.get("function") or {}
    if not (function.get("name") and function.get("arguments")):
        return False
    said, more = known["function"].get("arguments"), function["arguments"]
    if not (isinstance(said, _Pieces) and isinstance(more, str)):
        return False
    # Most pieces are told by their ends: to read all that was said with each would take quadratic time.
    is_between = said[-1].rstrip().endswith("}") and more.lstrip().startswith("{")
    return is_between and isinstance(read_arguments("".join(said)), Mapping)


def _delta_text(content: object) -> str:
    if isinstance(content, list):
        return "".join(item["text"] for item in content if isinstance(item.get("text"), str))
    return content if isinstance(content, str) else ""


_WHOLE = frozenset({"id", "index", "type", "name", "format"})
"""Fields that come in one piece, though perhaps again and again."""


class _Pieces(list[str]):
    """Text that still grows: appending to a str in a dict copies it each time."""


def _grow(target: Body, key: str, value: Any) -> None:
    """Add a piece: text is appended, objects and numbered lists grow item by item, anything else replaces."""
    known = target.get(key)
    if isinstance(value, str) and key not in _WHOLE:
        if isinstance(known, _Pieces):
            known.append(value)
        else:
            target[key] = _Pieces([value])
    elif isinstance(value, dict):
        for inner, piece in value.items():
            _grow(target.setdefault(key, {}), inner, piece)
    elif isinstance(value, list):
        for item in value:
            _grow_list(target.setdefault(key, []), item)
    else:
        target[key] = value


def _grow_list(known: list[Any], item: Any) -> None:
    if not isinstance(item, dict):
        known.append(item)
        return
    if not known or "index" not in item or _number(known[-1]) != _number(item):
        known.append({})
    for inner, piece in item.items():
        _grow(known[-1], inner, piece)


def _number(item: Body) -> tuple[Any, Any]:
    return item.get("index"), item.get("type")


def _joined(value: Any) -> Any:
    """A grown value with its texts put together."""
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict):
        return {key: _joined(inner) for key, inner in value.items()}
    return [_joined(inner) for inner in value] if isinstance(value, list) else value
