"""Decoding of JSON-RPC messages of other programs, and the id of a message that cannot be decoded."""

import json
import re
from typing import Any, NoReturn

import orjson

_HEAD = re.compile(
    rb'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(\d{1,15}|"[^"\\]{1,200}")\s*,\s*"(\w+)"'
)
"""Beginning of a message as common libraries write it."""


def decode_message(data: bytes) -> Any:
    """Decode a JSON value. Invalid UTF-8 and unpaired surrogates, as JavaScript creates by cutting text, become U+FFFD.

    Raises:
        ValueError: The data is not JSON, or is nested too deeply.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        text = data.decode("utf-8", "replace").lstrip("\ufeff")
        value = json.loads(text, strict=False, parse_constant=_reject_constant)
        if "\\u" in text:
            whole = json.dumps(value, ensure_ascii=False).encode("utf-16-le", "surrogatepass")
            value = json.loads(whole.decode("utf-16-le", "replace"))
    except RecursionError:
        raise ValueError("the message is nested too deeply") from None
    return value


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def message_id(head: bytes, *members: bytes) -> int | str | None:
    """Return the id of a message that cannot be decoded, so that an error can name it.

    The message must begin with its id, followed by one of `members`: `method` in a request, `result` or `error` in a
    response. For other messages, return None.
    """
    found = _HEAD.match(head)
    return None if found is None or found[2] not in members else orjson.loads(found[1])
