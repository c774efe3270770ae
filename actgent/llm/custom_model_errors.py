"""Conversion of exceptions of custom model clients to `ModelError`."""

from typing import Any

from actgent.errors import ActgentError, ModelError, ModelTimeout, ProviderUnavailable
from actgent.support.user_code_calls import explained_text, leaves

_MAX_TEXT_CHARACTERS = 1000
_FIRST, _LAST = 400, 599
"""Lowest and highest HTTP status that is an error."""


def as_model_error(error: Exception, model: str) -> Exception:
    """Convert an exception of a custom model client to a `ModelError`. Errors of actgent are returned unchanged.

    A connection error, a timeout, or an HTTP status that may succeed on retry becomes an error with `retryable` True. The
    status is the attribute `status_code` of the exception or of its `response`. Any other exception becomes a plain
    `ModelError`. Its `__cause__` is the exception, and `client_error` is the name of the exception's class.
    """
    if isinstance(error, ActgentError):
        return error
    raised = list(leaves(error))
    leaf = raised[0] if len(raised) == 1 else error
    if isinstance(leaf, ActgentError):
        return leaf
    kind, status = _kind_of(leaf)
    return wrap_as_model_error(leaf, kind, model=model, status=status)


def wrap_as_model_error(
    error: BaseException, kind: type[ModelError], *, model: str, status: int | None = None
) -> ModelError:
    """Make a ModelError of class `kind` with the text of `error`, which is truncated to 1,000 characters."""
    name = type(error).__name__
    words = (explained_text(error) or "")[:_MAX_TEXT_CHARACTERS]
    made = kind(f"{name}: {words}" if words else name, model=model, status=status)
    made.client_error, made.__cause__ = name, error
    return made


def _kind_of(error: BaseException) -> tuple[type[ModelError], int | None]:
    if isinstance(error, ConnectionError):
        return ProviderUnavailable, None
    if isinstance(error, TimeoutError):
        return ModelTimeout, None
    if (status := _status_of(error)) is None:
        return ModelError, None
    from .http.provider_errors import kind_of_status  # noqa: PLC0415 - its package imports the HTTP client

    return kind_of_status(status), status


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an exception of requests, httpx or an SDK.

    Return None if the exception has no status, or if reading the status raises.
    """
    try:
        for holder in (error, getattr(error, "response", None)):
            status: Any = getattr(holder, "status_code", None)
            if type(status) is int and _FIRST <= status <= _LAST:
                return status
    except Exception:  # noqa: BLE001 - an attribute of a foreign class may raise anything
        return None
    return None
