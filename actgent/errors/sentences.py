"""What a user of a program reads where a message failed: one sentence, with no word about how the program works."""

from collections.abc import Mapping

UNEXPECTED = "An unexpected error occurred. Please try again."
_BY_STATUS: Mapping[int, str] = {
    400: "The request was improperly formatted. Please try to say it in another way.",
    401: "Authentication failed. Please contact support.",
    403: "Access was denied. Please contact support.",
    404: "The requested resource was not found. Please contact support.",
    422: "The service could not process this input. Please try to say it in another way.",
    429: "The service has reached its rate limit. Please wait a moment and try again.",
}
_BY_KIND: Mapping[str, str] = {
    "context": "The conversation has become too long. Please begin a new one.",
    "deadline": "The answer took too long. Please try again.",
    "guard": "This cannot be answered here.",
    "refusal": "The service did not want to answer this.",
    "filter": "The service did not want to answer this.",
    "limit": "The limit of what may be used is reached. Please try again later.",
    "interrupted": "The answer was stopped.",
    "stopped": "The service is stopping. Please try again in a moment.",
}
_SERVER = "The service is experiencing issues. Please try again later."
_FIRST_SERVER_ERROR = 500


def sentence_for(kind: str, error: Exception) -> str:
    """The sentence for a failure: by the HTTP status of a provider's error, else by its kind."""
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return _SERVER if status >= _FIRST_SERVER_ERROR else _BY_STATUS.get(status, UNEXPECTED)
    return _BY_KIND.get(kind, UNEXPECTED)
