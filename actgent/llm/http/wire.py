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
from actgent.messages import Media, Part, Text, Thinking, ToolCall, ToolResult
from actgent.support.strict_json import loads, unique

_DECODED_CALL = re.compile(rb'"tool_use"|"arguments"\s*:\s*\{')
Body = dict[str, Any]
"""A JSON object of the wire."""


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
    """A call's arguments as an object; text that is none stays as it is, and nothing at all is `{}`."""
    if isinstance(arguments, Mapping):
        return arguments
    text = "" if arguments is None else arguments
    if not isinstance(text, str):
        return to_json(text).decode()
    if not text.strip():
        return {}
    try:
        value = loads(text)
    except ParseError:
        return text
    return value if isinstance(value, dict) else text


def check_decoded(data: bytes) -> None:
    """Refuse a body with a call whose arguments came decoded, where the decoder has left out a key that is there twice.

    Raises:
        ParseError: a key is.
    """
    if _DECODED_CALL.search(data):
        json.loads(data, object_pairs_hook=unique)


def write_arguments(arguments: Mapping[str, Any] | str) -> str:
    """A call's arguments as the JSON text that providers take."""
    return arguments if isinstance(arguments, str) else to_json(arguments).decode()


def read_call(name: object, arguments: object, call_id: object, names: Mapping[str, str]) -> ToolCall:
    """A tool call of the wire as ours."""
    wire = name if isinstance(name, str) else ""
    return ToolCall(
        names.get(wire, wire),
        read_arguments(arguments),
        provider_id=call_id if isinstance(call_id, str) and call_id else None,
    )


def whole_calls(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The parts of an answer that was cut, without the calls that have lost their end, or may have."""
    kept = [part for part in parts if not (isinstance(part, ToolCall) and isinstance(part.arguments, str))]
    if kept and isinstance(kept[-1], ToolCall) and not kept[-1].arguments:
        kept.pop()
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


def is_strict(schema: object) -> bool:
    """Return True for a JSON Schema in the form that OpenAI enforces: closed objects, every property required."""
    if isinstance(schema, Mapping):
        if schema.get("type") == "object" or "properties" in schema:
            properties = schema.get("properties") or {}
            if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != set(
                properties
            ):
                return False
        return all(is_strict(value) for value in schema.values())
    return not isinstance(schema, list) or all(is_strict(value) for value in schema)


def count(usage: Mapping[str, Any], *path: str) -> int:
    """A number of tokens out of a nested usage object; 0 where there is none."""
    value: object = usage
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) else int(value) if isinstance(value, float) else 0
