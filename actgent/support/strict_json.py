"""JSON text to a value, strictly: one rule for what is checked, run, written and sent back.

A value keeps to RFC 8259 and to what can be stored: no NaN or Infinity, no key twice, integers of 64 bits, no number
that a float turns into another one, valid Unicode, at most `MAX_DEPTH` levels.
"""

import json
from typing import Any

from actgent.errors import ParseError

MAX_DEPTH = 100
"""Levels of nesting; msgpack, validators and printers recurse, so they need a bound."""
MAX_DIGITS = 20
"""Of the longest integer of 64 bits, with its sign."""
_SHOWN = 30


def loads(text: str) -> Any:
    """The value of a text that is JSON and nothing else.

    Raises:
        ParseError: it is not, or it holds what is not stored (see the module).
    """
    try:
        return decode_all(text)
    except json.JSONDecodeError as error:
        raise ParseError(f"invalid JSON: {error.msg} at character {error.pos}", text) from None
    except ParseError as error:
        raise ParseError(error.reason, text) from None


def decode_all(text: str) -> Any:
    """The same with the place of what is not JSON.

    Raises:
        JSONDecodeError: it is not JSON, or more than that.
        ParseError: it holds what is not stored.
    """
    text = text.strip(" \t\r\n\ufeff")
    value, end = decode_at(text, 0)
    if end != len(text):
        raise json.JSONDecodeError("more text behind the value", text, end)
    return value


def decode_at(text: str, start: int) -> tuple[Any, int]:
    """The value that begins at `start`, and the place behind its end.

    Raises:
        JSONDecodeError: none does.
        ParseError: it holds what is not stored.
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
    """Decode the JSON of a document that a stranger may have written: as `json.loads`, with at most `MAX_DEPTH` levels.

    Raises:
        ValueError: The text is not JSON, or nested deeper.
    """
    try:
        value = json.loads(text)
        check_depth(value)
    except (RecursionError, ParseError):
        shown = text if isinstance(text, str) else ""
        raise json.JSONDecodeError(f"nested deeper than {MAX_DEPTH} levels", shown, 0) from None
    return value


# --- what is not stored ------------------------------------------------------------------------


def depth_error(most: int = MAX_DEPTH) -> ParseError:
    """The error for a value with too many levels."""
    return ParseError(f"nested deeper than {most} levels")


def check_depth(value: Any, most: int = MAX_DEPTH) -> None:
    """Raise a ParseError for a value with more levels than that, without recursion."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most + 1):
        if not level:
            return
        members = (item for each in level for item in (each.values() if isinstance(each, dict) else each))
        level = [item for item in members if isinstance(item, dict | list)]
    raise depth_error(most)


def check_unicode(value: Any) -> None:
    """Raise a ParseError for a value that holds half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ParseError("a string holds half of a surrogate pair, which is not a character") from None


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of these members; a ParseError if a key is there twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ParseError("an object has the same key twice, so it could mean either")
    return members


def integer(digits: str) -> int:
    """An integer; a ParseError if it needs more than 64 bits."""
    # Journals and most receivers hold 64 bits; a float would be another number.
    if len(digits) > MAX_DIGITS or not -(2**63) <= int(digits) < 2**64:
        raise ParseError(f"the integer {digits[:_SHOWN]} needs more than 64 bits: write it as a string")
    return int(digits)


def real(digits: str) -> float:
    """A number with a fraction or an exponent; a ParseError if a float makes infinity or zero of it."""
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ParseError(f"the number {digits[:_SHOWN]} is too large: write it as a string")
    if not value and digits.lower().partition("e")[0].strip("+-0."):
        raise ParseError(f"the number {digits[:_SHOWN]} is too small: write it as a string")
    return value


def constant(name: str) -> Any:
    """Refuse NaN and Infinity."""
    raise ParseError(f"{name} is not a JSON value")


# A line break inside of a string is not valid JSON, frequent, and can mean only itself: strict=False.
_DECODER = json.JSONDecoder(
    strict=False, object_pairs_hook=unique, parse_int=integer, parse_float=real, parse_constant=constant
)
