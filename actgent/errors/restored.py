"""Errors made again from the class name and the words that a record or a server has of them."""

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from actgent import errors
from actgent.errors import ActgentError

E = TypeVar("E", bound=ActgentError)
_SHORT = 200
"""Characters of a text that is kept as an attribute, at most."""


def reworded(cls: type[E], words: str, **fields: Any) -> E:
    """Make an error of a class with these words. Its other fields have the values of `fields`, else their defaults, else None."""
    error = cls.__new__(cls)
    error.args = (words,)
    for name, parameter in list(inspect.signature(cls.__init__).parameters.items())[1:]:
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            known = None if parameter.default is parameter.empty else parameter.default
            error.__dict__.setdefault(name, known)
    error.__dict__.update(fields)
    return error


def plain_fields(error: Exception) -> dict[str, Any]:
    """Return the attributes of an error that are numbers, short texts or flat mappings of these."""
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in vars(error).items()
        if _is_plain(value)
        or (
            isinstance(value, Mapping)
            and all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
        )
    }


def _is_plain(value: object) -> bool:
    return value is None or type(value) in (bool, int, float) or (type(value) is str and len(value) <= _SHORT)


def restored_failure(name: str, words: str, kind: str, fields: Mapping[str, Any]) -> ActgentError:
    """Make the error of a recorded failure: of the class of this name, or an `ActgentError` if the class is not actgent's."""
    cls = getattr(errors, name, None)
    words = words or f"the message ended as {kind} failure ({name or 'the class of the error is not known'})"
    if isinstance(cls, type) and issubclass(cls, ActgentError):
        return reworded(cls, words, **fields)
    return ActgentError(words)
