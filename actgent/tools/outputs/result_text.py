"""Conversion of values and exceptions of tools to text that a model reads."""

import base64
import json
import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from types import NoneType
from typing import Any

import attrs

from actgent.errors import InvalidToolResult, ToolError
from actgent.information_flow_labels import Labelled
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.user_code_calls import advice_for, convert_user_error, explained_text, leaves, type_name

_BINARY = (bytes, bytearray, memoryview)
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters except tab, line feed and carriage return; terminals and databases interpret them."""
_REPLACEMENTS = {
    code: 0x2400 + code if code < 0x7F else 0xFFFD  # noqa: PLR2004 - DEL
    for code in (*range(0x20), *range(0x7F, 0xA0))
}
"""Visible replacement of each control character by code point: the pictures of U+2400, or U+FFFD from DEL on."""
for _allowed in "\t\n\r":
    del _REPLACEMENTS[ord(_allowed)]


def _bytes_text(value: bytes) -> str:
    """Convert bytes to text: UTF-8 without control characters is decoded, all other bytes are written as base64."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
    return base64.b64encode(value).decode() if _CONTROL_CHARACTERS.search(text) else text


def _simplify(value: object) -> Any:
    """Convert a value that JSON does not support to a text or a simpler value: bytes and exceptions to text, dates, objects."""
    if isinstance(value, _BINARY):
        return _bytes_text(bytes(value))
    if isinstance(value, BaseException):
        return describe(value)
    if isinstance(value, Labelled):  # its label would be lost
        raise TypeError("a Labelled value is the result of a tool, or an item of a list or dict in it")
    from .json_safe_values import simplify  # noqa: PLC0415 - loads 20 modules, for values that few tools return

    return simplify(value)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_simplify).encode
_MAX_LEVELS = 100


def _with_text_keys(value: Any, level: int = 0) -> Any:
    """Replace mapping keys that JSON does not support by text, and also the numbers NaN and Infinity.

    Applies to all nested values.
    """
    if level > _MAX_LEVELS:
        raise RecursionError(f"the value is nested deeper than {_MAX_LEVELS} levels")
    if isinstance(value, Mapping):
        return {_key(key): _with_text_keys(item, level + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_text_keys(item, level + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, (str, int, float, NoneType)):
        return value
    return _with_text_keys(_simplify(value), level + 1)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    plain = key if isinstance(key, (int, float, tuple, NoneType)) else _simplify(key)
    return plain if isinstance(plain, str) else to_text(plain)


def to_text(value: object) -> str:
    """Convert a tool's value to the text that a model reads: text stays text, any other value becomes JSON.

    Characters that UTF-8 cannot encode become `?`. Control characters in text, except tabs and line ends, become
    visible symbols; JSON escapes them. Instances of attrs and dataclasses, msgspec structs, pydantic models, enums,
    dates and sets are converted to their fields or elements.

    Raises:
        InvalidToolResult: The value contains itself, or has no data: a function, a generator, a lock.
    """
    try:
        if isinstance(value, str):
            return replace_control_characters(str.__str__(value))
        if isinstance(value, _BINARY):
            return replace_control_characters(_bytes_text(bytes(value)))
        if isinstance(value, BaseException):
            return describe(value)
        if type(value) is int:  # the usual small result; the encoder takes ten times as long
            return str(value)
        return _json_text(value)
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - the value's own methods may raise anything
        error = convert_user_error(raised, "result", type_name(value))
    raise InvalidToolResult(f"the result cannot be converted to JSON: {describe(error)}") from error


def _json_text(value: object) -> str:
    try:
        return _replace_surrogates(_encode(value))
    except (TypeError, ValueError) as error:
        if not str(error).startswith(("keys must be", "Out of range float")):
            raise
        return _replace_surrogates(_encode(_with_text_keys(value)))


def to_result_text(value: object) -> str:
    """Return the text of a tool's result: like `to_text`, or `str(value)` if JSON cannot represent the value.

    Never raises, so a tool that completed is not reported as failed.
    """
    try:
        return to_text(value)
    except InvalidToolResult:
        return fallback_text(value)


def fallback_text(value: object) -> str:
    """Return `str(value)`, or a sentence with the value's type if `str()` raises."""
    try:
        return replace_control_characters(str.__str__(str(value)))
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - of the value's own method
        error = convert_user_error(raised, "result", type_name(value))
    return (
        f"[the tool ran and returned a value of the type {type_name(value)} without readable text: "
        f"str() raised {type_name(next(leaves(error)))}]"
    )


def to_json_text(data: object) -> str | None:
    """Encode data as JSON text; None if the data is None or cannot be written as JSON."""
    if data is None:
        return None
    try:
        return json.dumps(data, ensure_ascii=False) if isinstance(data, str) else to_text(data)
    except InvalidToolResult:
        return None


def replace_control_characters(text: str) -> str:
    """Return text with visible symbols for control characters, and `?` for characters that UTF-8 cannot encode."""
    text = _replace_surrogates(text)
    # Not `re.sub`: it creates one object per match, 90 MB for a megabyte of NUL.
    return text if _CONTROL_CHARACTERS.search(text) is None else text.translate(_REPLACEMENTS)


def _replace_surrogates(text: str) -> str:
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def truncate(text: str, limit: int) -> str:
    """Truncate a text to `limit` characters. A truncated text ends with a notice of its full length."""
    if len(text) <= limit:
        return text
    notice = f"\n[truncated: the text has {len(text)} characters; request less at a time]"
    return text[: limit - len(notice)] + notice if limit > len(notice) else text[:limit]


def describe(error: BaseException) -> str:
    """Describe an exception for a model: a `ToolError` by its text, others by class name and text.

    For an exception group, describe the exceptions in it.
    """
    return replace_control_characters("; ".join(dict.fromkeys(map(_with_advice, leaves(error)))))


def _with_advice(error: BaseException) -> str:
    advice = advice_for(error)
    return f"{error_text(error)} ({advice})" if advice else error_text(error)


def error_text(error: BaseException) -> str:
    """Describe an exception by its class name and its text. A `ToolError` is described only by its text.

    Exceptions inside a group are not described.
    """
    kind = type(error).__name__
    if (text := explained_text(error)) is None:
        return f"{kind} (its text is not readable)"
    text = text.strip()
    if isinstance(error, ToolError):
        return text or kind
    return f"{kind}: {text}" if text else kind


def canonical_json(arguments: Mapping[str, Any]) -> str:
    """Encode tool arguments as JSON with sorted keys, as a cache key. 1, 1.0 and true give different texts."""
    return json.dumps(arguments, sort_keys=True, separators=(",", ":"))


@attrs.define(repr=False)
class ResultCache(FieldRepr):
    """Cache of result texts that evicts the least recently used text."""

    capacity: int
    """Maximum number of cached texts."""
    _texts: OrderedDict[str, str] = attrs.field(factory=OrderedDict, init=False, repr=False)

    def get(self, key: str) -> str | None:
        """Return the cached text of a key and mark it as recently used; None if the key is not cached."""
        if key not in self._texts:
            return None
        self._texts.move_to_end(key)
        return self._texts[key]

    def put(self, key: str, text: str) -> None:
        """Store a text, and evict the least recently used text if the cache is full."""
        self._texts[key] = text
        self._texts.move_to_end(key)
        if len(self._texts) > self.capacity:
            self._texts.popitem(last=False)

    def __len__(self) -> int:
        return len(self._texts)
