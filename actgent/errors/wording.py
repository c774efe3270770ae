"""What is said of errors where words of foreign code might tell secrets."""

from actgent.errors import ActgentError, ForeignExit, HandlerFailed, ModelError

_MAX_WORDS = 2000


def safe_words(error: Exception) -> str:
    """An error for a model: what actgent words itself; of anything else, which may tell secrets, the class."""
    text = str(error) if isinstance(error, ActgentError) else type(error).__name__
    return (_of_client(error) or text)[:_MAX_WORDS]


def cause_words(error: BaseException) -> str:
    """The class and words of the foreign exception that an error comes from, for administrators; empty if there is none."""
    seen = set[int]()
    cause: BaseException | None = error
    while isinstance(cause, ActgentError) and id(cause) not in seen:
        seen.add(id(cause))
        cause = cause.__cause__
    if cause is None or isinstance(cause, ActgentError):
        return ""
    try:
        words = str(cause)
    except Exception:  # noqa: BLE001 - the exception is foreign code
        words = "(its text cannot be read)"
    return f"{type(cause).__name__}: {words}"[:_MAX_WORDS]


def own_words(error: Exception) -> str:
    """An error for people who watch: what actgent words itself, without words of foreign code in it."""
    is_ours = isinstance(error, ActgentError) and not isinstance(error, HandlerFailed | ForeignExit)
    return (_of_client(error) or str(error))[:_MAX_WORDS] if is_ours else ""


def _of_client(error: Exception) -> str:
    """Return the text of a model error without the text of the client's exception; empty if no client exception is the cause."""
    if not isinstance(error, ModelError) or not error.client_error:
        return ""
    return f"{error.model}: its client raised {error.client_error}"
