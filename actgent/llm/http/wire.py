"""Values on the wire that all clients read and write alike: JSON, arguments, media, counts."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import msgspec

from actgent.errors import ParseError
from actgent.llm.base import Answer
from actgent.messages import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from actgent.support.strict_json import decode_at, depth_error, unique

_DECODED_CALL = re.compile(rb'"tool_use"|"arguments"\s*:\s*\{')
Body = dict[str, Any]
"""A JSON object of the wire."""
INVALID_JSON = "invalid_json"
"""Member under which the model sees arguments that it wrote, and that are not JSON, where only objects are allowed."""
_MAX_VALUES = 8
"""JSON values in a row that are read from the arguments of one call."""
CALL_FIELDS = "actgent.call_fields"
"""Type of the opaque part that follows a call and holds the provider's unknown fields of that call."""


def decode_leniently(data: bytes) -> Any:
    """Decode JSON with a byte order mark, NaN, or halves of surrogate pairs, which stay halves; None if it is not JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def joined_surrogates(value: Any) -> Any:
    """Return a decoded value whose texts are Unicode: halves of surrogate pairs are joined, single ones become U+FFFD."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {joined_surrogates(key): joined_surrogates(inner) for key, inner in value.items()}
    return [joined_surrogates(inner) for inner in value] if isinstance(value, list) else value


def split_surrogate(text: str) -> tuple[str, str]:
    """Return a growing text as Unicode, and the half of a character at its end that waits for the other half."""
    half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    return joined_surrogates(text[: len(text) - len(half)]), half


def to_json(value: object) -> bytes:
    """JSON text of a body; a lone surrogate, which UTF-8 cannot carry, becomes `?`."""
    # msgspec: twenty times as fast as json on long histories, and unlike orjson it keeps integers beyond 64 bits.
    try:
        return msgspec.json.encode(value, enc_hook=_plain)
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=False, default=_plain).encode("utf-8", "replace")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def described(description: str) -> Body:
    """The description of a tool, left out if there is none."""
    return {"description": description} if description else {}


def data_url(part: Media) -> str:
    """The part's own address, or its bytes as one (RFC 2397)."""
    return part.url or f"data:{part.media_type};base64,{base64_text(part)}"


def base64_text(part: Media) -> str:
    """The part's bytes as base64."""
    return base64.b64encode(part.data or b"").decode()


def result_text(result: ToolResult) -> str:
    """The result of a call that stood in the text of an answer, for the user's side of the conversation."""
    return f"Result of {result.tool_name}:\n{result.text}"


def read_arguments(arguments: object) -> Mapping[str, Any] | str:
    """Return a call's arguments as an object, or the text that cannot be decoded.

    `null`, an empty text and no arguments are `{}`.
    Of several JSON values in a row the empty ones and repetitions are dropped: gateways send `{}` before the arguments,
    or all of them once more at the end.
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
    """Decode the one value of a text that is not empty.

    Raises:
        JSONDecodeError: The text is not JSON, or holds several different values.
        ParseError: The text holds what cannot be stored.
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
    """Refuse a body with a call whose arguments came decoded, where the decoder has left out a key that is there twice.

    Raises:
        ParseError: a key is.
    """
    if _DECODED_CALL.search(data):
        try:
            json.loads(data, object_pairs_hook=unique)
        except RecursionError:
            raise depth_error() from None


def write_arguments(arguments: Mapping[str, Any] | str) -> str:
    """Return a call's arguments as the JSON text that providers take; text that is not JSON stays as it is."""
    return arguments if isinstance(arguments, str) else to_json(arguments).decode()


def write_object(arguments: Mapping[str, Any] | str) -> str:
    """As `write_arguments`, for servers that decode the arguments of earlier calls: undecodable text becomes a member."""
    return write_arguments({INVALID_JSON: arguments} if isinstance(arguments, str) else arguments)


def read_call(name: object, arguments: object, call_id: object, names: Mapping[str, str]) -> ToolCall:
    """A tool call of the wire as ours."""
    wire = name if isinstance(name, str) else ""
    return ToolCall(
        names.get(wire, wire),
        read_arguments(arguments),
        provider_id=call_id if isinstance(call_id, str) and call_id else None,
    )


def whole_calls(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the parts of an answer that was cut, without the calls that are cut or may be, and without their fields."""
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


def with_words(answer: Answer) -> Answer:
    """The answer, in which all that should be text is.

    Raises:
        TypeError: something is not.
    """
    given: object = answer.id
    if isinstance(given, int):  # some servers number their answers
        answer = attrs.evolve(answer, id=str(given))
    said = [part.text for part in answer.parts if isinstance(part, Text | Thinking)]
    called = [part.name for part in answer.parts if isinstance(part, ToolCall)]
    for word in (*said, *called, answer.model, answer.id or ""):
        if not isinstance(word, str):
            raise TypeError(f"{type(word).__name__} where a text should be")
    return answer


def count(usage: Mapping[str, Any], *path: str) -> int:
    """A number of tokens out of a nested usage object; 0 where there is none."""
    value: object = usage
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) else int(value) if isinstance(value, float) else 0
