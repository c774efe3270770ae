"""Strict JSON decoding for model answers, tool arguments and stored values.

A value must follow RFC 8259 and be storable: no NaN or Infinity, no duplicate keys, integers of at most 64 bits, no float
that over- or underflows, valid Unicode, at most `MAX_DEPTH` levels of nesting.
"""

import json
from typing import Any

from actgent.errors import ParseError

MAX_DEPTH = 100
"""Maximum nesting depth; msgpack, validators and printers recurse."""
MAX_DIGITS = 20
"""Number of characters of the longest 64-bit integer, including its sign."""
_MAX_SHOWN_DIGITS = 30


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


# --- values that are not storable ------------------------------------------------------------------------


def depth_error(maximum: int = MAX_DEPTH) -> ParseError:
    """Return the error for a value with more than `maximum` levels."""
    return ParseError(f"nested deeper than {maximum} levels")


def check_depth(value: Any, maximum: int = MAX_DEPTH) -> None:
    """Raise a ParseError if a value has more than `maximum` levels; works without recursion."""
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
    """Build an object from its members; raise a ParseError on a duplicate key."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ParseError("an object has the same key twice, so it could mean either")
    return members


def integer(digits: str) -> int:
    """Parse an integer; raise a ParseError if it needs more than 64 bits."""
    # Journals and most receivers store 64-bit integers; a float would change the number.
    if len(digits) > MAX_DIGITS or not -(2**63) <= int(digits) < 2**64:
        raise ParseError(
            f"the integer {digits[:_MAX_SHOWN_DIGITS]} needs more than 64 bits: write it as a string"
        )
    return int(digits)


def real(digits: str) -> float:
    """Parse a number with a fraction or exponent; raise a ParseError if the float overflows or underflows."""
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ParseError(f"the number {digits[:_MAX_SHOWN_DIGITS]} is too large: write it as a string")
    if not value and digits.lower().partition("e")[0].strip("+-0."):
        raise ParseError(f"the number {digits[:_MAX_SHOWN_DIGITS]} is too small: write it as a string")
    return value


def constant(name: str) -> Any:
    """Raise a ParseError for NaN or Infinity."""
    raise ParseError(f"{name} is not a JSON value")


# strict=False accepts line breaks within strings: invalid JSON, but frequent and unambiguous.
_DECODER = json.JSONDecoder(
    strict=False, object_pairs_hook=unique, parse_int=integer, parse_float=real, parse_constant=constant
)
