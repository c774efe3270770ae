"""From a model's text to JSON: tolerant of what stands around a value, strict about the value.

A text is read in three steps, and what one step finds the next never looks at again:

1. The whole text is JSON.
2. The outermost values among prose, fences and tags, in order. A part that is not JSON is read as `lenient` reads it,
   or it is skipped *whole*: a value inside of it is a fragment (an argument, an example), never an answer. So is what
   stands as an argument in code, as in `f({...})` or `x = {...}`.
3. Nothing was found, and the text is nothing but one closed value: small losses are mended, see `lenient`. Each string
   and number that comes out stands in the text, as it is and at its place.

What is opened and never closed is `truncated`, and is never completed into a value. Every value keeps to what can be
stored, see `strict_json`.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import jiter

from actgent.errors import ParseError
from actgent.support.strict_json import MAX_DEPTH, decode_all, decode_at, loads

from .lenient import Unreadable, read

__all__ = [
    "MAX_DEPTH",
    "Check",
    "anything",
    "extract",
    "extract_only",
    "grown",
    "is_cut",
    "loads",
    "unfenced",
    "visible",
]

Check = Callable[[Any], str | None]
"""Says what is wrong with a value, worded for the model; None accepts it."""

MAX_SEARCHED = 200_000
"""Characters of a text that is searched for values; a text that is JSON as a whole may be longer."""
MAX_PARTS = 1_000
"""Bracketed parts of a text that are looked at."""
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


def anything(_: Any) -> str | None:
    """Accept every value."""
    return None


# --- the three readings ----------------------------------------------------------------------


def extract(text: str, check: Check = anything) -> Any:
    """The first value of a text that `check` accepts.

    Raises:
        ParseError: there is none; the text says why, `truncated` with the place of the opening.
    """
    reasons: list[str] = []
    for value in _values(text):
        reason = check(value)
        if reason is None:
            return value
        reasons.append(reason)
    raise ParseError(reasons[0] if reasons else "no JSON in the answer", text)


def extract_only(text: str, check: Check = anything) -> Any:
    """The one value of a text that `check` accepts: what a text wants done must not be a matter of choice.

    Raises:
        ParseError: there is none, there are several different ones, or the text is truncated.
    """
    accepted: dict[str, Any] = {}
    reasons: list[str] = []
    for value in _values(text):
        if reason := check(value):
            reasons.append(reason)
        else:
            accepted[json.dumps(value, sort_keys=True)] = value
    if len(accepted) == 1:
        return accepted.popitem()[1]
    if accepted:
        raise ParseError(f"the answer holds {len(accepted)} different JSON objects: give exactly one", text)
    raise ParseError(reasons[0] if reasons else "no JSON in the answer", text)


def visible(text: str) -> str:
    """A text without the thoughts that some models write before it in `<think>` tags."""
    if thought := _THINK.match(text) or (_THOUGHT.match(text) if "</think" in text else None):
        return text[thought.end() :].lstrip()
    return text


def unfenced(text: str) -> str:
    """The inside of a text that is one fenced block; any other text as it is."""
    block = text.strip()
    inside = block[len(_FENCE) : -len(_FENCE)]
    is_fenced = block.startswith(_FENCE) and block.endswith(_FENCE) and len(block) >= 2 * len(_FENCE)
    if not is_fenced or _FENCE in inside:
        return text
    return inside[_LANGUAGE.match(inside).end() :].strip()  # type: ignore[union-attr] # it matches nothing, too


def is_cut(text: str) -> bool:
    """True for text whose first bracket is never closed."""
    opener = _OPENER.search(text)
    try:
        return opener is not None and _close(text, opener.start()) < 0
    except ParseError as error:
        return error.reason.startswith("truncated")


def grown(text: str) -> Any:
    """Return what can be seen of a JSON text that still grows, None if nothing; for display only, never to act on."""
    try:
        return jiter.from_json(text.encode(), partial_mode="trailing-strings")
    except ValueError:
        return None


# --- the outermost values --------------------------------------------------------------------


def _values(text: str) -> Iterator[Any]:
    """Each outermost value; ends with a ParseError where something is opened and not closed."""
    try:
        yield from _read(text)
    except ParseError as error:
        raise ParseError(error.reason, text) from None


def _read(text: str) -> Iterator[Any]:
    try:
        whole = decode_all(text)
    except json.JSONDecodeError:
        yield from _searched(visible(text))
    else:
        yield whole


def _searched(text: str) -> Iterator[Any]:
    if len(text) > MAX_SEARCHED:
        raise ParseError(f"more than {MAX_SEARCHED} characters, and not JSON as a whole")
    found = False
    for value in _outermost(text):
        found = True
        yield value
    if not found and (value := _mended(unfenced(text).strip().rstrip(",;"))) is not _NOTHING:
        yield value


def _outermost(text: str) -> Iterator[Any]:
    position = parts = 0
    while opener := _OPENER.search(text, position):
        if (parts := parts + 1) > MAX_PARTS:
            raise ParseError(f"more than {MAX_PARTS} parts in brackets, and not JSON as a whole")
        start = opener.start()
        value, position = _value_at(text, start)
        if value is not _NOTHING and not _is_fragment(text, start, position):
            yield value


def _is_fragment(text: str, start: int, end: int) -> bool:
    """True for an argument in code, and for a value that its text goes on with as if it had not ended."""
    return bool(_ARGUMENT.search(text[max(0, start - 40) : start]) or _CONTINUED.match(text, end))


def _value_at(text: str, start: int) -> tuple[Any, int]:
    """The value that opens at `start`, or _NOTHING, and the place behind its end."""
    if text[start] == "(":
        return _NOTHING, _close(text, start)
    try:
        return decode_at(text, start)
    except json.JSONDecodeError:
        end = _close(text, start)
    return _literal(text[start:end]), end


def _close(text: str, start: int) -> int:
    """The place behind the bracket that closes the one at `start`."""
    open_brackets: list[str] = []
    for token in _TOKEN.finditer(text, start):
        mark = token.group()
        if mark in _CLOSERS:
            open_brackets.append(_CLOSERS[mark])
            if len(open_brackets) > MAX_DEPTH:
                raise ParseError(f"nested deeper than {MAX_DEPTH} levels")
        elif mark in "]})":
            if open_brackets.pop() != mark:
                return _mismatch(text, start, token.end())
            if not open_brackets:
                return token.end()
    raise ParseError(f"truncated JSON: what opens at character {start} is never closed")


def _mismatch(text: str, start: int, end: int) -> int:
    """The place behind a wrong closer if what it ends is prose like `[0, 1)`; a broken value is refused."""
    if any(mark in text[start:end] for mark in "{\"'"):
        raise ParseError(f"broken JSON: {text[end - 1]!r} at character {end - 1} closes nothing")
    return end


# --- one value ---------------------------------------------------------------------------------


def _literal(span: str) -> Any:
    """The value of a bracketed part in other people's spelling, or _NOTHING."""
    try:
        return read(span)
    except Unreadable:
        return _NOTHING


def _mended(text: str) -> Any:
    """The value of a text that is one closed value with small losses, or _NOTHING."""
    if not _is_closed(text):
        return _NOTHING
    try:
        return read(text, mends=True)
    except Unreadable as error:
        raise ParseError(f"broken JSON: {error}") from None


def _is_closed(text: str) -> bool:
    return text[:1] in ("{", "[") and text[-1] == _CLOSERS[text[0]] and _close(text, 0) == len(text)
