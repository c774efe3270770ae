"""Text from strangers as it may stand in logs and errors: on one line, bounded, and steering nothing."""

from typing import Any

LIMIT = 200
"""Characters of a name or an id that are shown."""


def shown(value: Any, limit: int = LIMIT) -> str:
    """A value's text with everything escaped that is not printable, cut at `limit` characters.

    That is what ends a line (U+2028 too), steers a terminal (ESC), hides or turns text round (zero-width, bidi), and what no
    file can hold (surrogates).
    """
    text = value if isinstance(value, str) else _text_of(value)
    cut = text[:limit]
    if not cut.isprintable():
        cut = "".join([character if character.isprintable() else _escaped(character) for character in cut])
    return cut if len(text) <= limit else f"{cut}... ({len(text):,} characters)"


def quoted(value: Any, limit: int = LIMIT) -> str:
    """The same in quotes."""
    text = value if isinstance(value, str) else _text_of(value)
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}... ({len(text):,} characters)"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as `1 message` or `1,000 messages`; `plural` where that takes more than an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _text_of(value: Any) -> str:
    try:
        return str(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: ASYNC103, BLE001 - an object of a stranger's, which is only to be named
        return type(value).__name__  # noqa: ASYNC104


def _escaped(character: str) -> str:
    return repr(character)[1:-1]
