"""Error bodies of both OpenAI APIs."""

from typing import Any

_KIND = {
    400: ("invalid_request_error", None, "The request is not valid."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("request_forbidden", "unsupported_country_region_territory", "Country not supported."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist."),
    408: ("server_error", "request_timeout", "The request took too long."),
    409: ("invalid_request_error", "conflict", "The resource was changed by another request."),
    413: ("invalid_request_error", "request_too_large", "The request is too large."),
    422: ("invalid_request_error", None, "The request cannot be processed."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached. Please try again later."),
    500: ("server_error", None, "The server had an error while processing your request."),
    502: ("bad_gateway", None, "Bad gateway."),
    503: ("service_unavailable_error", None, "The server is overloaded. Please try again later."),
    529: ("service_unavailable_error", "overloaded", "The server is overloaded. Please try again later."),
}
_UNKNOWN = ("server_error", None, "An error occurred.")
_QUOTA = "You exceeded your current quota, please check your plan and billing details."


def openai_error(status: int, *, code: str | None = None, message: str | None = None) -> dict[str, Any]:
    """Return the `error` object in the body of an OpenAI error with this HTTP status.

    None uses the usual code and message of the status. The code `insufficient_quota` has a separate type.
    """
    kind, default_code, default_message = _KIND.get(status, _UNKNOWN)
    if code == "insufficient_quota":
        kind, default_message = code, _QUOTA
    return {"message": message or default_message, "type": kind, "param": None, "code": code or default_code}
