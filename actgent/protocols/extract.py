"""From a model's text to JSON: tolerant of what stands around a value, strict about the value.

A text is read in three steps, and what one step finds the next never looks at again:

1. The whole text is JSON.
2. The outermost values among prose, fences and tags, in order. A part that is not JSON is read as a
   Python literal or with its comments and trailing commas removed, or it is skipped *whole*: a value
   inside of it is a fragment (an argument, an example), never an answer. So is what stands as an
   argument in code, as in `f({...})` or `x = {...}`.
3. Nothing was found, and the text is nothing but one closed value: json-repair may propose one. It
   counts only if it adds, drops and quotes no word.

What is opened and never closed is `truncated`, and is never completed into a value. Every value
keeps to RFC 8259 and to what can be stored: no NaN, no key twice, integers of 64 bits, valid Unicode.
"""

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jiter
import json_repair

from actgent.errors import ParseError

Check = Callable[[Any], str | None]
"""Says what is wrong with a value, worded for the model; None accepts it."""

MAX_DEPTH = 100
"""Levels of nesting; msgpack, validators and printers recurse, so they need a bound."""
MAX_SEARCHED = 200_000
"""Characters of a text that is searched for values; a text that is JSON as a whole may be longer."""
MAX_PARTS = 1_000
"""Bracketed parts of a text that are looked at."""
MAX_LITERAL = 50_000
"""Characters that are tried as a Python literal."""
MAX_DIGITS = 20
"""Of the longest integer of 64 bits, with its sign."""
MAX_MENDED = 4_000
"""Characters given to json-repair, which takes quadratic time (0.2 s at this size)."""

_NOTHING = object()
_OPENER = re.compile(r"[\[{]|(?<=[A-Za-z0-9_])\(")
_ARGUMENT = re.compile(r"(?:=|[\"']\s*:)\s*\Z|(?<![`A-Za-z0-9_])[A-Za-z0-9_]+\Z")
_CONTINUED = re.compile(r"""\s*,\s*(["'])[^"']*\1\s*:""")
_STRING = r'"(?:[^"\\]|\\.)*"?'
_TOKEN = re.compile(_STRING + r"|(?<=[\[{(:,\s])'(?:[^'\\]|\\.)*'|[\[\]{}()]", re.DOTALL)
_UNTIDY = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?\*/|,(?=\s*[\]}}])|\b(?:True|False|None)\b", re.DOTALL)
_QUOTED = re.compile(r'"([^"]*)"|\'([^\']*)\'|“([^”]*)”|‘([^’]*)’')
_OPENING = re.compile(r"[\[{]")
_WORD = re.compile(r"\w+")
_THINK = re.compile(r"\s*<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)
_THOUGHT = re.compile(r"(?!\s*[\[{`])(?:(?!<think).)*?</think(?:ing)?>", re.DOTALL)
_FENCE = re.compile(r"\s*```[\w+-]*\s*(.*?)\s*```\s*", re.DOTALL)
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


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


def loads(text: str) -> Any:
    """The value of a text that is JSON and nothing else.

    Raises:
        ParseError: it is not, or it holds what we do not store (see the module).
    """
    try:
        return _decoded(text)
    except json.JSONDecodeError as error:
        raise ParseError(f"invalid JSON: {error.msg} at character {error.pos}", text) from None
    except ParseError as error:
        raise ParseError(error.reason, text) from None


def visible(text: str) -> str:
    """A text without the thoughts that some models write before it in `<think>` tags."""
    if thought := _THINK.match(text) or (_THOUGHT.match(text) if "</think" in text else None):
        return text[thought.end() :].lstrip()
    return text


def unfenced(text: str) -> str:
    """The inside of a text that is one fenced block; any other text as it is."""
    fence = _FENCE.fullmatch(text)
    return fence.group(1) if fence and "```" not in fence.group(1) else text


def is_cut(text: str) -> bool:
    """True for text whose first bracket is never closed."""
    opener = _OPENER.search(text)
    try:
        return opener is not None and _close(text, opener.start()) < 0
    except ParseError as error:
        return error.reason.startswith("truncated")


def grown(text: str) -> Any:
    """What can be seen of a JSON text that still grows, None if nothing; for display only, never to act on."""
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
        whole = _decoded(text)
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
        return _decode(text, start)
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


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ParseError("an object has the same key twice, so it could mean either")
    return members


def _integer(digits: str) -> int:
    # Journals and most receivers hold 64 bits; a float would be another number.
    if len(digits) > MAX_DIGITS or not -(2**63) <= int(digits) < 2**64:
        raise ParseError(f"the integer {digits[:30]} needs more than 64 bits: write it as a string")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ParseError(f"the number {digits[:30]} is too large: write it as a string")
    return value


def _constant(name: str) -> Any:
    raise ParseError(f"{name} is no JSON value")


# A line break inside of a string is not valid JSON, frequent, and can mean only itself: strict=False.
_DECODER = json.JSONDecoder(
    strict=False, object_pairs_hook=_unique, parse_int=_integer, parse_float=_real, parse_constant=_constant
)


def _decoded(text: str) -> Any:
    text = text.strip(" \t\r\n\ufeff")
    value, end = _decode(text, 0)
    if end != len(text):
        raise json.JSONDecodeError("more text behind the value", text, end)
    return value


def _decode(text: str, start: int) -> tuple[Any, int]:
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise ParseError(f"nested deeper than {MAX_DEPTH} levels") from None
    if text.count("[", start, end) + text.count("{", start, end) > MAX_DEPTH:
        _close(text, start)
    if text.find("\\u", start, end) >= 0 or not text.isascii():
        _refuse_surrogates(value)
    return value, end


def _refuse_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ParseError("a string holds half of a surrogate pair, which is no character") from None


def _literal(span: str) -> Any:
    """The value of a part that is JSON but for comments, commas and constants, or a Python literal."""
    try:
        return _decoded(_tidied(span))
    except json.JSONDecodeError:
        return _python(span) if len(span) <= MAX_LITERAL else _NOTHING


def _tidied(text: str) -> str:
    """A text without comments and trailing commas, its constants spelt as in JSON."""
    return _UNTIDY.sub(lambda match: match[1] or _CONSTANTS.get(match[0], ""), text)


def _python(span: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in the model's strings
            tree = ast.parse(span, mode="eval")
        if any(_repeats_key(node) for node in ast.walk(tree)):
            return _NOTHING
        return loads(json.dumps(ast.literal_eval(tree)))
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return _NOTHING


def _repeats_key(node: ast.AST) -> bool:
    if not isinstance(node, ast.Dict):
        return False
    keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
    return len(set(keys)) != len(keys)


# --- repair ------------------------------------------------------------------------------------


def _mended(text: str) -> Any:
    """What json-repair makes of a text that is one closed value, if it kept every word."""
    if len(text) > MAX_MENDED or not _is_closed(text):
        return _NOTHING
    try:
        value = json_repair.loads(text, skip_json_loads=True)
    except (ValueError, RecursionError):
        return _NOTHING
    return loads(json.dumps(value)) if _keeps_words(value, text) else _NOTHING


def _is_closed(text: str) -> bool:
    return text[:1] in ("{", "[") and text[-1] == _CLOSERS[text[0]] and _close(text, 0) == len(text)


def _keeps_words(value: Any, text: str) -> bool:
    """True if a repaired value has the words and brackets of its text, and as strings only what was quoted."""
    if "..." in _QUOTED.sub("", text):
        return False  # something was left out
    quoted = {_words(next(filter(None, match), "")) for match in _QUOTED.findall(text)}
    tidy = _tidied(text)
    if len(_OPENING.findall(_QUOTED.sub("", tidy))) != _containers(value):
        return False
    return _words(tidy) == _words(json.dumps(value, ensure_ascii=False)) and _strings(value) <= quoted


def _containers(value: Any) -> int:
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if members is None else 1 + sum(map(_containers, members))


def _words(text: str) -> str:
    return "".join(_WORD.findall(text))


def _strings(value: Any) -> set[str]:
    """The words of each string in a value; keys may stand without quotes."""
    if isinstance(value, str):
        return {_words(json.dumps(value, ensure_ascii=False))}
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set().union(*map(_strings, members))
