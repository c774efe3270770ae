"""Error texts for models and observers, without texts of third-party exceptions, which may contain secrets."""

from actgent.errors import ActgentError, HandlerFailed, ModelError, UserCodeExit

_MAX_TEXT_CHARS = 2000


def model_error_text(error: Exception) -> str:
    """Return the text of an error for a model: the text of an `ActgentError`, else only the class name."""
    text = str(error) if isinstance(error, ActgentError) else type(error).__name__
    return (_client_error_text(error) or text)[:_MAX_TEXT_CHARS]


def cause_text(error: BaseException) -> str:
    """Return the class and text of the third-party exception that caused an error, for administrators.

    The result is empty if no such exception caused the error.
    """
    seen = set[int]()
    cause: BaseException | None = error
    while isinstance(cause, ActgentError) and id(cause) not in seen:
        seen.add(id(cause))
        cause = cause.__cause__
    if cause is None or isinstance(cause, ActgentError):
        return ""
    try:
        text = str(cause)
    except Exception:  # noqa: BLE001 - `str()` of a third-party exception may raise
        text = "(its text cannot be read)"
    return f"{type(cause).__name__}: {text}"[:_MAX_TEXT_CHARS]


def observer_error_text(error: Exception) -> str:
    """Return the text of an error if actgent wrote the text, so that observers of the session may see it; else empty."""
    is_ours = isinstance(error, ActgentError) and not isinstance(error, HandlerFailed | UserCodeExit)
    return (_client_error_text(error) or str(error))[:_MAX_TEXT_CHARS] if is_ours else ""


def _client_error_text(error: Exception) -> str:
    """Return the text of a model error without the text of the exception that the model's client library raised.

    The result is empty if no such exception caused the error.
    """
    if not isinstance(error, ModelError) or not error.client_error:
        return ""
    return f"{error.model}: its client raised {error.client_error}"
