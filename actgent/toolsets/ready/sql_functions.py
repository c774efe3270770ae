"""Functions of SQLite that take time for the product of two lengths, written so that they take it for the sum.

Nothing stops SQLite within a function: a megabyte that is searched for half a megabyte takes minutes, whatever the time limit.
"""

from typing import Any

MAX_VALUE = 1_000_000
"""Bytes of one value that SQLite makes."""
Value = str | bytes | int | float | None


def install(connection: Any) -> None:
    """Put them in place of SQLite's own, in a connection of apsw."""
    connection.create_scalar_function("instr", instr, 2, deterministic=True)
    connection.create_scalar_function("replace", replace, 3, deterministic=True)
    for name, function in (("trim", trim), ("ltrim", ltrim), ("rtrim", rtrim)):
        for arguments in (1, 2):
            connection.create_scalar_function(name, function, arguments, deterministic=True)


def instr(text: Value, wanted: Value) -> int | None:
    """Return where one text stands first in another, from 1; 0: nowhere."""
    if text is None or wanted is None:
        return None
    if isinstance(text, bytes) and isinstance(wanted, bytes):
        return text.find(wanted) + 1
    return _text(text).find(_text(wanted)) + 1


def replace(text: Value, old: Value, new: Value) -> Value:
    """Return a text with another one in place of each that stands in it.

    Raises:
        ValueError: it would be too long.
    """
    if text is None or old is None:
        return None
    whole, gone = _text(text), _text(old)
    if not gone:
        return whole if isinstance(text, bytes) else text
    if new is None:
        return None
    put = _text(new)
    if len(whole) + whole.count(gone) * (len(put) - len(gone)) > MAX_VALUE:
        raise ValueError("string or blob too big")
    return whole.replace(gone, put)


def trim(text: Value, signs: Value = " ") -> str | None:
    """Return a text without these characters at both ends."""
    return rtrim(ltrim(text, signs), signs)


def ltrim(text: Value, signs: Value = " ") -> str | None:
    """Return a text without these characters at its beginning."""
    if text is None or signs is None:
        return None
    whole, gone = _text(text), frozenset(_text(signs))
    return whole[next((place for place, sign in enumerate(whole) if sign not in gone), len(whole)) :]


def rtrim(text: Value, signs: Value = " ") -> str | None:
    """Return a text without these characters at its end."""
    found = ltrim(None if text is None else _text(text)[::-1], signs)
    return None if found is None else found[::-1]


def _text(value: str | bytes | float) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
