"""What is said of errors where words of foreign code might tell secrets."""

from actgent.errors import ActgentError, ForeignExit, HandlerFailed

_MAX_WORDS = 2000


def safe_words(error: Exception) -> str:
    """An error for a model: what actgent words itself; of anything else, which may tell secrets, the class."""
    text = str(error) if isinstance(error, ActgentError) else type(error).__name__
    return text[:_MAX_WORDS]


def own_words(error: Exception) -> str:
    """An error for people who watch: what actgent words itself, without words of foreign code in it."""
    is_ours = isinstance(error, ActgentError) and not isinstance(error, HandlerFailed | ForeignExit)
    return str(error)[:_MAX_WORDS] if is_ours else ""
