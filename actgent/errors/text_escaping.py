"""Escaping and shortening of untrusted text for logs and errors: one line, bounded length, no control characters."""

from typing import Any

MAX_SHOWN_CHARS = 200
"""Maximum number of characters of a name or an id in a log line or error text."""


def shown(value: Any, limit: int = MAX_SHOWN_CHARS) -> str:
    """Return the text of a value with non-printable characters escaped, cut after `limit` characters.

    Escaped are line separators (also U+2028), terminal control codes (ESC), characters that hide or reorder
    text (zero-width, bidirectional), and surrogates, which no file can store.
    """
    text = value if isinstance(value, str) else _text_of(value)
    cut = text[:limit]
    if not cut.isprintable():
        cut = "".join([character if character.isprintable() else repr(character)[1:-1] for character in cut])
    return cut if len(text) <= limit else f"{cut}... ({len(text):,} characters)"


def quoted(value: Any, limit: int = MAX_SHOWN_CHARS) -> str:
    """Return the `repr` of a value's text, cut after `limit` characters; non-printable characters are escaped."""
    text = value if isinstance(value, str) else _text_of(value)
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}... ({len(text):,} characters)"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as `1 message` or `1,000 messages`.

    `plural` is the plural of the noun; empty means the noun plus s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _text_of(value: Any) -> str:
    try:
        return str(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: ASYNC103, BLE001 - `str()` of a foreign object may raise anything; the text only labels it
        return type(value).__name__  # noqa: ASYNC104
