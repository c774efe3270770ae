"""Exceptions rebuilt from the class name and text that a record or a server response stores."""

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from actgent import errors
from actgent.errors import ActgentError

E = TypeVar("E", bound=ActgentError)
_MAX_TEXT_CHARS = 200
"""Maximum length of a text attribute that is stored with an error."""
_FORMER_NAMES = {
    "AccessRefused": "PermissionDenied",
    "AddressRefused": "AddressBlocked",
    "AlreadyAnswered": "DuplicateMessage",
    "AlreadyDecided": "ApprovalAlreadyDecided",
    "BrokenAnswer": "StreamInterrupted",
    "CursorUnknown": "InvalidCursor",
    "ForeignExit": "UserCodeExit",
    "GuardRefused": "GuardrailTripped",
    "ModeRefused": "ModeChangeRejected",
    "NoThread": "ThreadPoolExhausted",
    "RequestFailed": "HTTPToolError",
    "ThreadsLeft": "ThreadsStillRunning",
    "UnusableResult": "InvalidToolResult",
    "WaitCycle": "DeadlockDetected",
}
"""Class names in records of earlier versions, with the names of today."""


def error_with_text(cls: type[E], text: str, **fields: Any) -> E:
    """Create an error of the class `cls` with the given text, without calling the constructor of the class.

    Attributes get their values from `fields`, else the defaults of the constructor's parameters, else None.
    """
    error = cls.__new__(cls)
    error.args = (text,)
    for name, parameter in list(inspect.signature(cls.__init__).parameters.items())[1:]:
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            default = None if parameter.default is parameter.empty else parameter.default
            error.__dict__.setdefault(name, default)
    error.__dict__.update(fields)
    return error


def plain_fields(error: Exception) -> dict[str, Any]:
    """Return the attributes of an error that can be recorded: numbers, short texts, and flat mappings of these."""
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
    return (
        value is None
        or type(value) in (bool, int, float)
        or (type(value) is str and len(value) <= _MAX_TEXT_CHARS)
    )


def restored_failure(name: str, text: str, kind: str, fields: Mapping[str, Any]) -> ActgentError:
    """Rebuild the error of a recorded failure from its class name, text, failure kind and attributes.

    Return an `ActgentError` if the class is not part of actgent.
    """
    cls = getattr(errors, _FORMER_NAMES.get(name, name), None)
    text = text or f"the message ended as {kind} failure ({name or 'unknown error class'})"
    if isinstance(cls, type) and issubclass(cls, ActgentError):
        return error_with_text(cls, text, **fields)
    return ActgentError(text)
