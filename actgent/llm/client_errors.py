"""Exceptions of a model's own client, e.g. a function or a class of the program, as a `ModelError`."""

from typing import Any

from actgent.errors import ActgentError, ModelError, ModelTimeout, ProviderUnavailable
from actgent.support.foreign import leaves, telling_text

_MAX_WORDS = 1000
_FIRST, _LAST = 400, 599
"""HTTP statuses that are errors."""


def as_model_error(error: Exception, model: str) -> Exception:
    """Return the ModelError for an exception that the client of a model raised; an error of actgent is returned as it is.

    A connection error, a timeout and an HTTP status that a retry may change (`status_code` of the exception or of its `response`)
    become an error that is `retryable`. Any other exception becomes a plain `ModelError`. The exception is the `__cause__`, and
    `client_error` is the name of its class.
    """
    if isinstance(error, ActgentError):
        return error
    raised = list(leaves(error))
    leaf = raised[0] if len(raised) == 1 else error
    if isinstance(leaf, ActgentError):
        return leaf
    kind, status = _kind_of(leaf)
    return wrapped(leaf, kind, model=model, status=status)


def wrapped(
    error: BaseException, kind: type[ModelError], *, model: str, status: int | None = None
) -> ModelError:
    """Return a ModelError of a kind with the words of a client's exception."""
    name = type(error).__name__
    words = (telling_text(error) or "")[:_MAX_WORDS]
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
    from .http.failures import kind_of_status  # noqa: PLC0415 - its package imports the HTTP client

    return kind_of_status(status), status


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an exception has, as those of requests, httpx and the SDKs; None if it has none."""
    try:
        for holder in (error, getattr(error, "response", None)):
            status: Any = getattr(holder, "status_code", None)
            if type(status) is int and _FIRST <= status <= _LAST:
                return status
    except Exception:  # noqa: BLE001 - an attribute of a foreign class may raise anything
        return None
    return None
