"""Extraction of JSON values from a model's text. Text around a value is tolerated; the value itself must be unambiguous.

A text is read in three steps. A later step never reads text that an earlier step has consumed:

1. The complete text is JSON.
2. The outermost values among prose, code fences and tags, in order. A bracketed part that is not JSON is parsed by `lenient`,
   or skipped completely. A value inside of a skipped part is a fragment (an argument, an example) and not an answer. Values in
   code are also skipped, as in `f({...})` or `x = {...}`.
3. No value was found, and the text is exactly one closed value: small syntax errors are repaired, see `lenient`. Each string
   and number of the result appears in the text, unchanged and in the same order.

A bracket that is opened and never closed is `truncated`. It is never completed to a value. All values obey `strict_json`.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from actgent.errors import ParseError
from actgent.support.strict_json import MAX_DEPTH, decode_all, decode_at, loads

__all__ = [
    "MAX_DEPTH",
    "Check",
    "accept_anything",
    "extract",
    "extract_only",
    "is_truncated",
    "loads",
    "parse_partial_json",
    "remove_thinking",
    "strip_code_fence",
]

Check = Callable[[Any], str | None]
"""Function that returns the error text of a value, worded for the model, or None if the value is valid."""

MAX_SEARCHED_CHARS = 200_000
"""Maximum length of a text with values among prose, in characters. A text that is one JSON value may be longer."""
MAX_PARTS = 1_000
"""Maximum number of bracketed parts in a text."""
_NOTHING = object()
_OPENER = re.compile(r"[\[{]|(?<=[A-Za-z0-9_])\(")
_ARGUMENT = re.compile(r"(?:=|[\"']\s*:)\s*\Z|(?<![`A-Za-z0-9_])[A-Za-z0-9_]+\Z")
_CONTINUED = re.compile(r"""\s*,\s*(["'])[^"']*\1\s*:""")
_STRING = r'"(?:[^"\\]|\\.)*"?'
_TOKEN = re.compile(_STRING + r"|(?<=[\[{(:,\s])'(?:[^'\\]|\\.)*'|[\[\]{}()]", re.DOTALL)
_THINK = re.compile(r"\s*<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)
_THOUGHT = re.compile(r"(?!\s*[\[{`])(?:(?!<think).)*?</think(?:ing)?>", re.DOTALL)
_FENCE = "```"
_LANGUAGE = re.compile(r"[\w+-]*")
_CLOSERS = {"{": "}", "[": "]", "(": ")"}


def accept_anything(_: Any) -> str | None:
    """Return None, which accepts every value. Default of `check=`."""
    return None


# --- public functions ------------------------------------------------------------------------


def extract(text: str, check: Check = accept_anything) -> Any:
    """Return the first JSON value in a text that passes `check`, a function that returns an error text or None.

    Raises:
        ParseError: No value passes, or the text is truncated. The error contains the reason and, for truncated text, the
            position of the opening bracket.
    """
    reasons: list[str] = []
    for value in _values(text):
        reason = check(value)
        if reason is None:
            return value
        reasons.append(reason)
    raise ParseError(reasons[0] if reasons else "no JSON in the answer", text)


def extract_only(text: str, check: Check = accept_anything) -> Any:
    """Return the only value in a text that passes `check`. Several different values are an error, since any choice would be a guess.

    Raises:
        ParseError: No value or several different values pass, or the text is truncated.
    """
    accepted: list[Any] = []
    reasons: list[str] = []
    for value in _values(text):
        if reason := check(value):
            reasons.append(reason)
        else:
            accepted.append(value)
    if accepted:
        if len(accepted) == 1 or len({json.dumps(value, sort_keys=True) for value in accepted}) == 1:
            return accepted[-1]
        raise ParseError(
            f"the answer has {len(accepted)} different JSON objects: it must have exactly one", text
        )
    raise ParseError(reasons[0] if reasons else "no JSON in the answer", text)


def remove_thinking(text: str) -> str:
    """Return a model's text without the `<think>` section that some models write before the answer."""
    if thought := _THINK.match(text) or (_THOUGHT.match(text) if "</think" in text else None):
        return text[thought.end() :].lstrip()
    return text


def strip_code_fence(text: str) -> str:
    """Return the content of a text that is exactly one fenced code block; other texts are returned unchanged."""
    block = text.strip()
    inside = block[len(_FENCE) : -len(_FENCE)]
    is_fenced = block.startswith(_FENCE) and block.endswith(_FENCE) and len(block) >= 2 * len(_FENCE)
    if not is_fenced or _FENCE in inside:
        return text
    return inside[_LANGUAGE.match(inside).end() :].strip()  # type: ignore[union-attr] # the pattern also matches empty text, so match() is never None


def is_truncated(text: str) -> bool:
    """Return True if the first opening bracket of a text is never closed."""
    opener = _OPENER.search(text)
    try:
        return opener is not None and _close(text, opener.start()) < 0
    except ParseError as error:
        return error.reason.startswith("truncated")


def parse_partial_json(text: str) -> Any:
    """Parse an incomplete JSON text as if all open brackets were closed at its end. Return None if no value has begun.

    The value may be wrong, so use it for display only.
    """
    import jiter  # noqa: PLC0415 - only streamed JSON needs it

    try:
        return jiter.from_json(text.encode(), partial_mode="trailing-strings")
    except ValueError:
        return None


# --- the outermost values --------------------------------------------------------------------


def _values(text: str) -> Iterator[Any]:
    """Yield the outermost JSON values in a text. Raise ParseError at a bracket that is never closed."""
    try:
        yield from _read(text)
    except ParseError as error:
        raise ParseError(error.reason, text) from None


def _read(text: str) -> Iterator[Any]:
    try:
        whole = decode_all(text)
    except json.JSONDecodeError:
        yield from _search(remove_thinking(text))
    else:
        yield whole


def _search(text: str) -> Iterator[Any]:
    if len(text) > MAX_SEARCHED_CHARS:
        raise ParseError(f"the text has more than {MAX_SEARCHED_CHARS} characters and is not one JSON value")
    found = False
    for value in _outermost_values(text):
        found = True
        yield value
    if not found and (value := _parse_leniently(strip_code_fence(text).strip().rstrip(",;"))) is not _NOTHING:
        yield value


def _outermost_values(text: str) -> Iterator[Any]:
    position = parts = 0
    while opener := _OPENER.search(text, position):
        if (parts := parts + 1) > MAX_PARTS:
            raise ParseError(f"the text has more than {MAX_PARTS} bracketed parts and is not one JSON value")
        start = opener.start()
        value, position = _value_at(text, start)
        if value is not _NOTHING and not _is_fragment(text, start, position):
            yield value


def _is_fragment(text: str, start: int, end: int) -> bool:
    """Return True if the bracketed part `text[start:end]` is only a fragment of a value, which must be skipped.

    Fragments are an argument in code, and a part that another object member follows.
    """
    return bool(_ARGUMENT.search(text[max(0, start - 40) : start]) or _CONTINUED.match(text, end))


def _value_at(text: str, start: int) -> tuple[Any, int]:
    """Parse the JSON value whose bracket opens at index `start`.

    Return the value and the index after its end. The value is _NOTHING if the bracketed text is not a value.
    """
    if text[start] == "(":
        return _NOTHING, _close(text, start)
    try:
        return decode_at(text, start)
    except json.JSONDecodeError:
        end = _close(text, start)
    return _literal(text[start:end]), end


def _close(text: str, start: int) -> int:
    """Return the index after the bracket that closes the bracket at index `start`.

    Raises:
        ParseError: The bracket is never closed, is closed by a wrong bracket, or encloses too many levels.
    """
    open_brackets: list[str] = []
    for token in _TOKEN.finditer(text, start):
        mark = token.group()
        if mark in _CLOSERS:
            open_brackets.append(_CLOSERS[mark])
            if len(open_brackets) > MAX_DEPTH:
                raise ParseError(f"the JSON is nested deeper than {MAX_DEPTH} levels")
        elif mark in "]})":
            if open_brackets.pop() != mark:
                return _mismatch(text, start, token.end())
            if not open_brackets:
                return token.end()
    raise ParseError(f"truncated JSON: the bracket at character {start} is never closed")


def _mismatch(text: str, start: int, end: int) -> int:
    """Return `end`, the index after a wrong closing bracket, if `text[start:end]` is prose like `[0, 1)`.

    Raises:
        ParseError: The bracketed text contains a brace or quote, so it is a broken value.
    """
    if any(mark in text[start:end] for mark in "{\"'"):
        raise ParseError(
            f"broken JSON: {text[end - 1]!r} at character {end - 1} does not match an opening bracket"
        )
    return end


# --- one value ---------------------------------------------------------------------------------


def _literal(span: str) -> Any:
    """Parse a bracketed text with `lenient_json`, without repairs. Return _NOTHING if the text is not a value."""
    from .lenient_json import Unreadable, read  # noqa: PLC0415 - compiles 12 patterns, which valid JSON does not need

    try:
        return read(span)
    except Unreadable:
        return _NOTHING


def _parse_leniently(text: str) -> Any:
    """Parse a text that is one value with small syntax errors. Return _NOTHING if a bracket of the value is not closed.

    Raises:
        ParseError: The errors cannot be repaired.
    """
    if not _is_closed(text):
        return _NOTHING
    from .lenient_json import Unreadable, read  # noqa: PLC0415 - as above

    try:
        return read(text, repairs=True)
    except Unreadable as error:
        raise ParseError(f"broken JSON: {error}") from None


def _is_closed(text: str) -> bool:
    return text[:1] in ("{", "[") and text[-1] == _CLOSERS[text[0]] and _close(text, 0) == len(text)
