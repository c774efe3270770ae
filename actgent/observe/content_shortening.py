"""Shortening of recorded contents to a maximum length, so that JSON stays valid JSON."""

from typing import Any

import orjson

_MARK = "..."
"""End of a truncated text."""
_SMALLEST_CHARS = len('"..."')
"""Length as JSON of the shortest truncated text."""
_LEFT_OUT = object()
"""Marks a value that does not fit, even if it is shortened."""


def encode_content(value: object) -> str:
    """Return a value as JSON text. Objects that JSON does not have become their `str`."""
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def shorten_text(text: str, limit: int) -> str:
    """Return a text with at most `limit` characters. JSON objects and arrays stay valid JSON; other texts are truncated."""
    if len(text) <= limit:
        return text
    if text.lstrip()[:1] in ("{", "["):
        try:
            return shorten_json(orjson.loads(text), limit)
        except (orjson.JSONDecodeError, RecursionError):
            pass
    return f"{text[: limit - len(_MARK)]}{_MARK}"


def shorten_json(value: object, limit: int) -> str:
    """Return a value as valid JSON text with at most `limit` characters.

    Long texts are truncated. Of a list, the last items are kept, because they are the newest messages.
    """
    text = encode_content(value)
    if len(text) <= limit:
        return text
    fitted = _fit(orjson.loads(text), limit)
    return "null" if fitted is _LEFT_OUT else encode_content(fitted)


def _fit(value: Any, room: int) -> Any:
    """Return a JSON value with at most `room` characters as JSON, or `_LEFT_OUT`."""
    length = len(encode_content(value))
    if length <= room:
        return value
    if room < _SMALLEST_CHARS:
        return _LEFT_OUT
    match value:
        case str():
            kept = value[: room - _SMALLEST_CHARS]
            while len(encode_content(kept)) + len(_MARK) > room:  # escapes are longer than their characters
                kept = kept[: len(kept) // 2]
            return f"{kept}{_MARK}"
        case list():
            return _fit_list(value, room)
        case dict():
            return _fit_object(value, room)
        case _:
            return _LEFT_OUT


def _fit_list(items: list[Any], room: int) -> list[Any]:
    """Keep items from the end. Each item before the first one gets at most half of the room that is left."""
    kept: list[Any] = []
    left = room - len("[]")
    for index in range(len(items) - 1, -1, -1):
        item = _fit(items[index], left // 2 if index else left)
        if item is _LEFT_OUT:
            break
        kept.append(item)
        left -= len(encode_content(item)) + len(",")
    return kept[::-1]


def _fit_object(members: dict[str, Any], room: int) -> dict[str, Any]:
    """Keep all members if possible. Short members stay whole, and long members share the rest of the room."""
    left = room - len("{}")
    lengths = {
        name: len(encode_content(name)) + len(encode_content(value)) + len(":,")
        for name, value in members.items()
    }
    fitted: dict[str, Any] = {}
    waiting = sorted(members, key=lengths.__getitem__)
    for place, name in enumerate(waiting):
        share = left // (len(waiting) - place)
        value = _fit(members[name], share - len(encode_content(name)) - len(":,"))
        if value is _LEFT_OUT:
            continue
        fitted[name] = value
        left -= len(encode_content(name)) + len(encode_content(value)) + len(":,")
    return {name: fitted[name] for name in members if name in fitted}
