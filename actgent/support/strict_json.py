"""Strict JSON decoding for model answers, tool arguments and stored values, and encoding of any value for clients.

A value must follow RFC 8259 and be storable:

- no NaN or Infinity, no duplicate keys, valid Unicode;
- integers of at most 64 bits, and no float that over- or underflows;
- at most `MAX_DEPTH` levels of nesting.
"""

import json
import math
from collections.abc import Callable
from enum import Enum
from typing import Any

import orjson

from actgent.errors import ParseError

MAX_DEPTH = 100
"""Maximum nesting depth; msgpack, validators and printers recurse."""
MAX_DIGITS = 20
"""Number of characters of the longest 64-bit integer with its sign."""
_MAX_SHOWN_DIGITS = 30
_MAX_BITS = 10_000
"""Bits of the longest integer that is encoded; Python refuses to write integers of more than 4,300 digits."""


def loads(text: str) -> Any:
    """Decode a text that consists of one JSON value.

    Raises:
        ParseError: The text is not JSON, or the value is not storable (see the module).
    """
    try:
        return decode_all(text)
    except json.JSONDecodeError as error:
        raise ParseError(f"invalid JSON: {error.msg} at character {error.pos}", text) from None
    except ParseError as error:
        raise ParseError(error.reason, text) from None


def loads_or_text(text: str) -> Any:
    """Decode JSON; return a text that is not JSON unchanged."""
    try:
        return loads(text)
    except ParseError:
        return text


def decode_all(text: str) -> Any:
    """Decode a text that consists of one JSON value; errors have the position of the invalid JSON.

    Raises:
        JSONDecodeError: The text is not JSON, or has further text after the value.
        ParseError: The value is not storable.
    """
    text = text.strip(" \t\r\n\ufeff")
    value, end = decode_at(text, 0)
    if end != len(text):
        raise json.JSONDecodeError("more text after the value", text, end)
    return value


def decode_at(text: str, start: int) -> tuple[Any, int]:
    """Decode the JSON value that begins at index `start`; return the value and the index after its end.

    Raises:
        JSONDecodeError: No JSON value begins at `start`.
        ParseError: The value is not storable.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise depth_error() from None
    if text.count("[", start, end) + text.count("{", start, end) > MAX_DEPTH:
        check_depth(value)
    if text.find("\\u", start, end) >= 0 or not text.isascii():
        check_unicode(value)
    return value, end


def load_document(text: str | bytes) -> Any:
    """Decode JSON of an untrusted document like `json.loads`, with at most `MAX_DEPTH` levels of nesting.

    Raises:
        ValueError: The text is not JSON, or nested too deeply.
    """
    try:
        value = json.loads(text)
        check_depth(value)
    except (RecursionError, ParseError):
        shown = text if isinstance(text, str) else ""
        raise json.JSONDecodeError(f"nested deeper than {MAX_DEPTH} levels", shown, 0) from None
    return value


# --- encoding ------------------------------------------------------------------------------------------


def encode_json(value: Any, default: Callable[[Any], Any] = repr) -> bytes:
    """Encode a value as JSON in UTF-8, on one line. Each value has an encoding, so this raises no error.

    Integers of more than 64 bits are written in full. NaN and Infinity become null, and an unpaired surrogate becomes U+FFFD,
    because strict decoders refuse it. A value that contains itself or has more than `MAX_DEPTH` levels is cut.

    Args:
        value: Value to encode.
        default: Converts objects of other types. If it fails, the name of the type is encoded.
    """
    try:
        return orjson.dumps(value, default=default, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # rare values, for which the conversion in Python is fast enough
        return json.dumps(_to_plain(value, default, ()), ensure_ascii=False, separators=(",", ":")).encode()


def _to_plain(value: Any, default: Callable[[Any], Any], parents: tuple[int, ...]) -> Any:
    """Convert a value to types that `json.dumps` encodes; `parents` are the ids of the values that contain it."""
    if len(parents) > MAX_DEPTH or id(value) in parents:
        return _type_name(value)
    parents = (*parents, id(value))
    plain: Any
    match value:
        case None | bool():
            plain = value
        case Enum():
            plain = _to_plain(value.value, default, parents)
        case str():
            plain = _to_characters(value)
        case int():
            plain = int(value) if value.bit_length() <= _MAX_BITS else _type_name(value)
        case float():
            plain = float(value) if math.isfinite(value) else None
        case dict():
            members = value.items()
            plain = {_to_key(key, default): _to_plain(each, default, parents) for key, each in members}
        case list():
            plain = [_to_plain(each, default, parents) for each in value]
        case _ if type(value) is tuple:
            plain = [_to_plain(each, default, parents) for each in value]
        case _:
            plain = _other_to_plain(value, default, parents)
    return plain


def _other_to_plain(value: Any, default: Callable[[Any], Any], parents: tuple[int, ...]) -> Any:
    try:  # dates, UUIDs and data classes
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    except TypeError:
        return _to_plain(_converted(value, default), default, parents)


def _to_key(key: Any, default: Callable[[Any], Any]) -> str:
    plain = _to_plain(key, default, ())
    return plain if isinstance(plain, str) else json.dumps(plain)


def _to_characters(text: str) -> str:
    """Return a text in which each unpaired surrogate is replaced by U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _converted(value: Any, default: Callable[[Any], Any]) -> Any:
    try:
        return default(value)
    except Exception:  # noqa: BLE001 - e.g. the `__repr__` of a foreign object
        return _type_name(value)


def _type_name(value: Any) -> str:
    return f"<{type(value).__name__}>"


# --- values that are not storable ------------------------------------------------------------------------


def depth_error(maximum: int = MAX_DEPTH) -> ParseError:
    """Build the error for a JSON value that is nested deeper than `maximum` levels."""
    return ParseError(f"nested deeper than {maximum} levels")


def check_depth(value: Any, maximum: int = MAX_DEPTH) -> None:
    """Raise a ParseError if a value has more than `maximum` levels of nesting. The check works without recursion."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(maximum + 1):
        if not level:
            return
        members = (item for each in level for item in (each.values() if isinstance(each, dict) else each))
        level = [item for item in members if isinstance(item, dict | list)]
    raise depth_error(maximum)


def check_unicode(value: Any) -> None:
    """Raise a ParseError if a string in a value contains an unpaired surrogate."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ParseError("a string holds half of a surrogate pair, which is not a character") from None


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object from its members; the `object_pairs_hook` of a JSON decoder.

    Raise a ParseError on a duplicate key.
    """
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ParseError("an object has the same key twice, so its value is ambiguous")
    return members


def integer(digits: str) -> int:
    """Parse an integer as `parse_int` of a JSON decoder. Raise a ParseError if it needs more than 64 bits."""
    # Journals and most receivers store 64-bit integers; a float would change the number.
    if len(digits) > MAX_DIGITS or not -(2**63) <= int(digits) < 2**64:
        raise ParseError(
            f"the integer {digits[:_MAX_SHOWN_DIGITS]} needs more than 64 bits: write it as a string"
        )
    return int(digits)


def real(digits: str) -> float:
    """Parse a number with a fraction or exponent, as `parse_float` of a JSON decoder.

    Raise a ParseError if the float overflows or underflows.
    """
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ParseError(f"the number {digits[:_MAX_SHOWN_DIGITS]} is too large: write it as a string")
    if not value and digits.lower().partition("e")[0].strip("+-0."):
        raise ParseError(f"the number {digits[:_MAX_SHOWN_DIGITS]} is too small: write it as a string")
    return value


def constant(name: str) -> Any:
    """Reject NaN and Infinity, as `parse_constant` of a JSON decoder. Always raises a ParseError."""
    raise ParseError(f"{name} is not a JSON value: write null or a number")


# strict=False accepts line breaks within strings: invalid JSON, but frequent and unambiguous.
_DECODER = json.JSONDecoder(
    strict=False, object_pairs_hook=unique, parse_int=integer, parse_float=real, parse_constant=constant
)
