"""Encoding and decoding shared by all clients: JSON, tool names and arguments, media, token counts and stop reasons.

Providers accept only names and call ids that match `^[a-zA-Z0-9_-]{1,64}$`. The encoded name depends on the name alone, so that
the bytes of a prompt do not depend on the other tools of an agent. A valid name is unchanged; any other becomes a readable stem
and a digest. A valid name that looks like an encoded one is encoded as well, so that two names never become equal.
"""

import base64
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import msgspec

from actgent.errors import ParseError
from actgent.llm.model_interface import ModelResponse, StopReason
from actgent.messages import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult, ToolSpec
from actgent.support.strict_json import decode_at, depth_error, unique

NAME_LIMIT = 64
"""Maximum length of a tool name in characters."""
ID_LIMIT = 40
"""Maximum length of a call id in characters: the lowest limit among providers (OpenAI chat completions)."""

_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")
_MAPPED = re.compile(r"_[0-9a-f]{12}\Z")


@functools.lru_cache(maxsize=4096)
def provider_tool_name(name: str, limit: int = NAME_LIMIT) -> str:
    """Encode a tool name in a form that every provider accepts, with at most `limit` characters.

    Equal names give equal results.
    """
    if 0 < len(name) <= limit and not _FOREIGN.search(name) and not _MAPPED.search(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{_FOREIGN.sub('_', name)[: limit - 13]}_{digest}"


def provider_call_id(call_id: str) -> str:
    """Encode a tool call id in a form that every provider accepts.

    An invalid or long id is replaced by a shorter one with a digest.
    """
    # Not cached: each id is new, and would evict names from the cache.
    if 0 < len(call_id) <= ID_LIMIT and not _FOREIGN.search(call_id):
        return call_id
    return provider_tool_name(call_id, ID_LIMIT)


def names_by_provider_name(tools: Iterable[ToolSpec]) -> Mapping[str, str]:
    """Return the real names of tools by their encoded names."""
    return {provider_tool_name(tool.name): tool.name for tool in tools}


_WORDS: tuple[tuple[re.Pattern[str], StopReason | None], ...] = (
    (
        re.compile(
            r"content.?filter|safety|recitation|prohibited|blocklist|\bspii\b|sensitive|moderat|guardrail|toxic|^language$"
        ),
        "filter",
    ),
    (re.compile(r"refus"), "refusal"),
    (re.compile(r"length|max\w*.?tokens|token.?limit|context.?window"), "length"),
    (
        re.compile(
            r"error|abort|cancel|fail|timeout|malformed|unexpected_tool_call|insufficient_system_resource|interrupt"
        ),
        None,
    ),
)
"""Patterns of the words in a stop reason, in the order in which they are tried. None means that the server aborted the answer.

Servers add prefixes and details, such as `content_filter: RECITATION` or `function_call_filter: MALFORMED_FUNCTION_CALL`.
"""


def stop_reason(reason: object) -> StopReason:
    """Convert a provider's `finish_reason` or `stop_reason` to a stop reason. Unknown words mean a normal end.

    Raises:
        ValueError: The server aborted the answer.
    """
    text = str(reason).lower()
    for pattern, stop in _WORDS:
        if pattern.search(text):
            if stop is None:
                raise ValueError(f"the provider aborted the answer with the finish_reason {reason!r}")
            return stop
    return "end"


_DECODED_CALL = re.compile(rb'"tool_use"|"arguments"\s*:\s*\{')
Body = dict[str, Any]
"""JSON object of a request or response."""
INVALID_JSON = "invalid_json"
"""Property that holds a call's invalid arguments in later requests, for APIs that only accept objects as arguments."""
_MAX_VALUES = 8
"""Maximum number of consecutive JSON values in the arguments of one call."""
CALL_FIELDS = "actgent.call_fields"
"""Type of the `Opaque` part after a call that holds the provider's unknown fields of the call."""


def decode_leniently(data: bytes) -> Any:
    """Decode JSON that may have a byte order mark, NaN or lone surrogates. Return None if the data is not JSON.

    Lone surrogates are kept.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def join_surrogates(value: Any) -> Any:
    """Join surrogate pairs in all texts of a decoded value, and replace lone surrogates by U+FFFD."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {join_surrogates(key): join_surrogates(inner) for key, inner in value.items()}
    return [join_surrogates(inner) for inner in value] if isinstance(value, list) else value


def split_surrogate(text: str) -> tuple[str, str]:
    """Split a piece of streamed text into its complete characters and an incomplete character (high surrogate) at its end.

    The surrogate is empty if the text does not end with one.
    """
    half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    return join_surrogates(text[: len(text) - len(half)]), half


def to_json(value: object) -> bytes:
    """Encode a request body as JSON. A lone surrogate, which UTF-8 cannot represent, becomes `?`."""
    # msgspec is twenty times as fast as json on long histories, and unlike orjson it keeps integers above 64 bits.
    try:
        return msgspec.json.encode(value, enc_hook=_encode_default)
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=False, default=_encode_default).encode("utf-8", "replace")


def _encode_default(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


def description_field(description: str) -> Body:
    """Return the field `description` of an encoded tool; no field if the description is empty."""
    return {"description": description} if description else {}


def data_url(part: Media) -> str:
    """Return the URL of a medium, or its bytes as a data URL (RFC 2397)."""
    return part.url or f"data:{part.media_type};base64,{base64_text(part)}"


def base64_text(part: Media) -> str:
    """Return the bytes of a medium as base64; empty if the medium has no bytes."""
    return base64.b64encode(part.data or b"").decode()


def result_text(result: ToolResult) -> str:
    """Return a tool result as text for a user message, if the model wrote the call as text."""
    return f"Result of {result.tool_name}:\n{result.text}"


def read_arguments(arguments: object) -> Mapping[str, Any] | str:
    """Decode the arguments of a tool call to a mapping. If they cannot be decoded, return the original text.

    `null`, an empty text and missing arguments become `{}`. Of several consecutive JSON values, empty ones and repetitions are
    dropped: gateways send `{}` before the arguments, or repeat all of them at the end.
    """
    if isinstance(arguments, Mapping):
        return arguments
    text = "" if arguments is None else arguments
    if not isinstance(text, str):
        return to_json(text).decode()
    try:
        value = _arguments_value(text)
    except (ParseError, json.JSONDecodeError):
        return text
    return value if isinstance(value, dict) else text


def _arguments_value(text: str) -> Any:
    """Decode a text that contains exactly one distinct JSON value.

    Raises:
        JSONDecodeError: The text is not JSON, or contains several different values.
        ParseError: The text contains a value that cannot be stored.
    """
    found: Any = {}
    for _ in range(_MAX_VALUES):
        if not (text := text.strip(" \t\r\n\ufeff")):
            return found
        value, end = decode_at(text, 0)
        text = text[end:]
        if value not in (None, "", {}):
            if found and repr(found) != repr(value):
                break
            found = value
    raise json.JSONDecodeError("several values", text, 0)


def check_decoded(data: bytes) -> None:
    """Raise if the arguments of a call repeat a key, because a JSON decoder would silently drop one of the values.

    Raises:
        ParseError: A key is repeated, or the body is nested too deep.
    """
    if _DECODED_CALL.search(data):
        try:
            json.loads(data, object_pairs_hook=unique)
        except RecursionError:
            raise depth_error() from None


def write_arguments(arguments: Mapping[str, Any] | str) -> str:
    """Encode the arguments of a tool call as JSON text. Invalid arguments, which are a text, are returned unchanged."""
    return arguments if isinstance(arguments, str) else to_json(arguments).decode()


def write_object(arguments: Mapping[str, Any] | str) -> str:
    """Encode the arguments of a tool call as the JSON text of an object.

    Invalid arguments, which are a text, become a property named `INVALID_JSON`.
    """
    return write_arguments({INVALID_JSON: arguments} if isinstance(arguments, str) else arguments)


def read_call(name: object, arguments: object, call_id: object, names: Mapping[str, str]) -> ToolCall:
    """Decode a tool call of a response. `names` maps encoded tool names to the real names."""
    wire = name if isinstance(name, str) else ""
    return ToolCall(
        names.get(wire, wire),
        read_arguments(arguments),
        provider_id=call_id if isinstance(call_id, str) and call_id else None,
    )


def drop_incomplete_calls(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the parts of a truncated answer, but omit the tool calls that may be incomplete."""
    last = next((part for part in reversed(parts) if isinstance(part, ToolCall)), None)
    kept: list[Part] = []
    drops_fields = False
    for part in parts:
        if isinstance(part, ToolCall):
            drops_fields = isinstance(part.arguments, str) or (part is last and not part.arguments)
            if drops_fields:
                continue
        elif drops_fields and isinstance(part, Opaque) and part.data.get("type") == CALL_FIELDS:
            continue
        kept.append(part)
    return tuple(kept)


def check_texts(answer: ModelResponse) -> ModelResponse:
    """Check that the texts, names and ids of an answer are strings, and return the answer.

    A numeric answer id is converted to a string.

    Raises:
        TypeError: A text, name or id is not a string.
    """
    answer_id: object = answer.id
    if isinstance(answer_id, int):  # some servers number their answers
        answer = attrs.evolve(answer, id=str(answer_id))
    texts = [part.text for part in answer.parts if isinstance(part, Text | Thinking)]
    called = [part.name for part in answer.parts if isinstance(part, ToolCall)]
    for word in (*texts, *called, answer.model, answer.id or ""):
        if not isinstance(word, str):
            raise TypeError(f"the text of the answer must be a string, not {type(word).__name__}")
    return answer


def read_count(usage: Mapping[str, Any], *path: str) -> int:
    """Return the number at a path of keys in a nested usage object; 0 if the number is absent, negative or infinite.

    Servers that generate their JSON from protocol buffers send numbers as texts.
    """
    value: object = usage
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    return int(value) if isinstance(value, int | float) and 0 < value < _MAX_COUNT else 0


_DIGITS = re.compile(r"[0-9]{1,15}")
_MAX_COUNT = 2**53
"""Limit of a token count. Larger numbers cannot be counts, and journals do not store integers above 64 bits."""
