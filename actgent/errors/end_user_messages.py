"""Sentences about failures for end users: one sentence per failure, without technical details."""

from collections.abc import Mapping

UNEXPECTED = "An unexpected error occurred. Please try again."
_BY_STATUS: Mapping[int, str] = {
    400: "The request was improperly formatted. Please try to say it in another way.",
    401: "Authentication failed. Please contact support.",
    402: "The service has no credit left. Please contact support.",
    403: "Access was denied. Please contact support.",
    404: "The requested resource was not found. Please contact support.",
    408: "The answer took too long. Please try again.",
    413: "This is too long for the service. Please say it in fewer words, or begin a new conversation.",
    422: "The service could not process this input. Please try to say it in another way.",
    429: "The service has reached its rate limit. Please wait a moment and try again.",
}
_BY_KIND: Mapping[str, str] = {
    "context": "The conversation has become too long. Please begin a new one.",
    "deadline": "The answer took too long. Please try again.",
    "guard": "This cannot be answered here.",
    "refusal": "The service did not want to answer this.",
    "filter": "The service did not want to answer this.",
    "length": "The answer became too long. Please ask for less at once.",
    "parse": "The service gave no usable answer. Please try to say it in another way.",
    "empty": "The service gave no answer. Please try again.",
    "suspended": "This waits for an approval.",
    "limit": "The limit of what may be used is reached. Please try again later.",
    "interrupted": "The answer was stopped.",
    "stopped": "The service is stopping. Please try again in a moment.",
}
_BY_CLASS: Mapping[str, str] = {
    "ModelTimeout": _BY_STATUS[408],
    "NotAuthorized": _BY_STATUS[401],
    "MissingKey": _BY_STATUS[401],
    "QuotaExhausted": _BY_STATUS[402],
    "RateLimited": _BY_STATUS[429],
    "UnsupportedPart": "The service cannot read what was attached. Please send it in another form.",
}
"""Sentences by class name of the error, for errors without a provider's HTTP status."""
_SERVER = "The service is experiencing issues. Please try again later."
_FIRST_SERVER_ERROR_STATUS = 500


def end_user_sentence(kind: str, error: Exception) -> str:
    """Return the end-user sentence for a failure: by the provider's HTTP status, else by the error's class, else by its kind."""
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return _SERVER if status >= _FIRST_SERVER_ERROR_STATUS else _BY_STATUS.get(status, UNEXPECTED)
    return _BY_CLASS.get(type(error).__name__) or _BY_KIND.get(kind, UNEXPECTED)
