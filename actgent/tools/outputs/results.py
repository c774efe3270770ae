"""What a tool returned or raised, as text that a model reads."""

import base64
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import ipaddress
import json
import math
import pathlib
import re
import types
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterable, Callable, Collection, Coroutine, Iterator, Mapping
from types import NoneType
from typing import Any

import attrs
import msgspec

from actgent.errors import ToolError, UnusableResult
from actgent.messages import Media
from actgent.support.foreign import advice_on, failure_of, leaves, telling_text, type_name

_TEXTUAL = (
    uuid.UUID,
    pathlib.PurePath,
    decimal.Decimal,
    fractions.Fraction,
    complex,
    dt.tzinfo,
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Network,
    ipaddress.IPv6Network,
    ipaddress.IPv4Interface,
    ipaddress.IPv6Interface,
)
_BINARY = (bytes, bytearray, memoryview)
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters but for tab, line feed and carriage return: terminals and databases act on them."""
_PICTURES = {code: 0x2400 + code if code < 0x7F else 0xFFFD for code in (*range(0x20), *range(0x7F, 0xA0))}  # noqa: PLR2004
"""Replacement of each control character by code point: the pictures of U+2400, or U+FFFD from DEL on."""
for _kept in "\t\n\r":
    del _PICTURES[ord(_kept)]
_EXPORTS = ("model_dump", "tolist")
"""How values like those of pydantic and numpy name their way to plain data."""


def _plain(value: object) -> Any:
    """One step from a value that JSON does not know to one that it may know."""
    if isinstance(value, Media):
        raise TypeError(
            f"{type(value).__name__} stands alone or in a list, not in other data: return [text, {type(value).__name__}(...)]"
        )
    for kinds, write in _STEPS:
        if isinstance(value, kinds):
            return write(value)
    if not isinstance(value, type) and (fields := _fields(value)) is not None:
        return fields
    return _elements(value)


def _bytes_text(value: bytes) -> str:
    """Return bytes as the UTF-8 text that they are, or else as base64."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
    return base64.b64encode(value).decode() if _CONTROLS.search(text) else text


def _fields(value: Any) -> Any:
    if attrs.has(type(value)):
        return attrs.asdict(value, recurse=False)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if hasattr(value, "__pydantic_serializer__") and hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    export = next(filter(None, (getattr(value, name, None) for name in _EXPORTS)), None)
    return None if export is None else export()


def _elements(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return _sorted(value)
    if isinstance(value, Collection):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value: {_remedy(value)}")


def _remedy(value: object) -> str:
    if isinstance(value, Coroutine):
        value.close()  # Python would warn of it once more
        return "await it in the tool"
    if isinstance(value, AsyncIterable):
        return "collect it in a list first"
    if isinstance(value, Iterator):
        return "return a list"
    return "return text, a number, a list, a dict, or a dataclass"


def _sorted(value: Collection[Any]) -> list[Any]:
    try:
        return sorted(value)
    except TypeError:
        return list(value)


_STEPS: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    ((dt.date, dt.time), lambda value: value.isoformat()),
    (enum.Enum, lambda value: value.value),
    (_TEXTUAL, str),
    (dt.timedelta, msgspec.to_builtins),  # ISO 8601, as parameters are read
    (_BINARY, lambda value: _bytes_text(bytes(value))),
    (BaseException, lambda value: describe(value)),  # noqa: PLW0108 - defined below
    (re.Pattern, lambda value: value.pattern),
    (
        re.Match,
        lambda value: {
            "match": value[0],
            "span": value.span(),
            "groups": value.groupdict() or value.groups(),
        },
    ),
    (types.SimpleNamespace, vars),
)
"""How values of the standard library become data: a tool that returned one has done its work."""
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain).encode
_MAX_LEVELS = 100


def _text_keys(value: Any, level: int = 0) -> Any:
    """Return a value with text where JSON takes nothing else: keys that are dates or tuples, NaN and Infinity."""
    if level > _MAX_LEVELS:
        raise RecursionError(f"nested deeper than {_MAX_LEVELS} levels")
    if isinstance(value, Mapping):
        return {_key(key): _text_keys(item, level + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_text_keys(item, level + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, (str, int, float, NoneType)):
        return value
    return _text_keys(_plain(value), level + 1)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    plain = key if isinstance(key, (int, float, tuple, NoneType)) else _plain(key)
    return plain if isinstance(plain, str) else to_text(plain)


def to_text(value: object) -> str:
    """Text as it is, anything else as JSON; characters that UTF-8 cannot carry become `?`.

    Control characters in text, but for tabs and ends of lines, become their pictures; JSON escapes them.

    attrs and dataclass instances, msgspec structs, pydantic models, enums, dates, sets and the like are written
    by their fields or elements.

    Raises:
        UnusableResult: The value is a cycle, or an object that has no data: a function, a generator, a lock.
    """
    try:
        if isinstance(value, str):
            return controls_shown(str.__str__(value))
        if isinstance(value, _BINARY):
            return controls_shown(_bytes_text(bytes(value)))
        if isinstance(value, BaseException):
            return describe(value)
        if type(value) is int:  # the usual small result; the encoder takes ten times as long
            return str(value)
        return _json_text(value)
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - the value's own methods may raise anything
        error = failure_of(raised, "result", type_name(value))
    raise UnusableResult(f"the result cannot be written as JSON: {describe(error)}") from error


def _json_text(value: object) -> str:
    try:
        return _carried(_encode(value))
    except (TypeError, ValueError) as error:
        if not str(error).startswith(("keys must be", "Out of range float")):
            raise
        return _carried(_encode(_text_keys(value)))


def to_result_text(value: object) -> str:
    """Return the text of a tool's result: as `to_text`, or `str(value)` if JSON cannot carry the value.

    If `str()` raises too, the text has the type of the value. So a tool that did its work never looks as if it had failed.
    """
    try:
        return to_text(value)
    except UnusableResult:
        return fallback_text(value)


def fallback_text(value: object) -> str:
    """Return `str(value)` for a result that JSON cannot carry; if `str()` raises, a sentence with the type of the value."""
    try:
        return controls_shown(str.__str__(str(value)))
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - of the value's own method
        error = failure_of(raised, "result", type_name(value))
    return (
        f"[the tool ran and returned a value of the type {type_name(value)} without readable text: "
        f"str() raised {type_name(next(leaves(error)))}]"
    )


def to_json_text(data: object) -> str | None:
    """Return structured data as JSON text; None if there is no data, or JSON cannot carry it."""
    if data is None:
        return None
    try:
        return json.dumps(data, ensure_ascii=False) if isinstance(data, str) else to_text(data)
    except UnusableResult:
        return None


def controls_shown(text: str) -> str:
    """Text with its control characters as pictures, and `?` for what UTF-8 cannot carry."""
    text = _carried(text)
    # Not `re.sub`: that makes one object for each match, 90 MB for a megabyte of NUL.
    return text if _CONTROLS.search(text) is None else text.translate(_PICTURES)


def _carried(text: str) -> str:
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def capped(text: str, limit: int) -> str:
    """At most `limit` characters; what is cut is announced at the end, with the full size."""
    if len(text) <= limit:
        return text
    notice = f"\n[cut: the first of {len(text)} characters; ask for less at a time]"
    return text[: limit - len(notice)] + notice if limit > len(notice) else text[:limit]


def describe(error: BaseException) -> str:
    """An exception in words for a model: a `ToolError` by its text, others with their class; groups flattened."""
    return controls_shown("; ".join(dict.fromkeys(map(_advised, leaves(error)))))


def _advised(error: BaseException) -> str:
    advice = advice_on(error)
    return f"{worded(error)} ({advice})" if advice else worded(error)


def worded(error: BaseException) -> str:
    """An exception in words, without a look at what is in it."""
    kind = type(error).__name__
    if (text := telling_text(error)) is None:
        return f"{kind} (its text cannot be read)"
    text = text.strip()
    if isinstance(error, ToolError):
        return text or kind
    return f"{kind}: {text}" if text else kind


def canonical(arguments: Mapping[str, Any]) -> str:
    """Arguments as text: the same for equal arguments in any order, another for 1, 1.0 and true."""
    return json.dumps(arguments, sort_keys=True, separators=(",", ":"))


@attrs.define
class ResultCache:
    """At most `capacity` texts; the least recently used one makes room."""

    capacity: int
    _texts: OrderedDict[str, str] = attrs.field(factory=OrderedDict, init=False, repr=False)

    def get(self, key: str) -> str | None:
        """The text kept for a key, or None."""
        if key not in self._texts:
            return None
        self._texts.move_to_end(key)
        return self._texts[key]

    def put(self, key: str, text: str) -> None:
        """Keep a text."""
        self._texts[key] = text
        self._texts.move_to_end(key)
        if len(self._texts) > self.capacity:
            self._texts.popitem(last=False)

    def __len__(self) -> int:
        return len(self._texts)
