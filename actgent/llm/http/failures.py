"""What a provider's error object means: one table of its words, one of HTTP statuses."""

import email.utils
import math
import re
import time
from collections.abc import Mapping
from typing import Any

from actgent.errors import (
    BadRequest,
    BrokenAnswer,
    ModelError,
    ModelTimeout,
    NotAuthorized,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
)
from actgent.errors.printable import shown

from .secrets import Secrets

Headers = Mapping[str, str]
_STATUS = re.compile(r"[45][0-9]{2}")

_WORDS: dict[str, type[ModelError]] = {
    "insufficient_quota": QuotaExhausted,
    "billing_error": QuotaExhausted,
    "billing_hard_limit_reached": QuotaExhausted,
    "billing_not_active": QuotaExhausted,
    "insufficient_balance": QuotaExhausted,
    "invalid_api_key": NotAuthorized,
    "authentication_error": NotAuthorized,
    "permission_error": NotAuthorized,
    "rate_limit_error": RateLimited,
    "rate_limit_exceeded": RateLimited,
    "overloaded_error": ProviderUnavailable,
    "server_is_overloaded": ProviderUnavailable,
    "timeout_error": ModelTimeout,
    "request_too_large": BadRequest,
    "not_found_error": BadRequest,
    "model_not_found": BadRequest,
    "context_length_exceeded": BadRequest,
    "content_filter": BadRequest,
}
"""Words that mean one thing whatever the status: `insufficient_quota` is a 429 that no waiting mends."""

_VAGUE_WORDS: dict[str, type[ModelError]] = {
    "invalid_request_error": BadRequest,
    "invalid_prompt": BadRequest,
    "invalid_image": BadRequest,
    "api_error": ProviderUnavailable,
    "server_error": ProviderUnavailable,
}
"""Words that providers also use for 401 and 429, so that a status says more."""

_STATUSES: dict[int, type[ModelError]] = {
    401: NotAuthorized,
    402: QuotaExhausted,
    403: NotAuthorized,
    408: ModelTimeout,
    409: ProviderUnavailable,
    429: RateLimited,
}
_MAX_TEXT = 1000


def provider_error(
    detail: object, *, model: str, secrets: Secrets, headers: Headers, status: int | None = None
) -> ModelError:
    """The exception for an error object of a provider; `detail` may be any JSON value, or text.

    `status` is that of the HTTP response, None when the error came inside a 200. `secrets` are blotted out of the text.
    """
    fields: Mapping[str, Any] = detail if isinstance(detail, Mapping) else {"message": detail}
    words = [str(fields[key]) for key in ("code", "type") if fields.get(key) is not None]
    status = status or _status_in(fields)
    kind = _kind(words, status)
    error = _build(
        kind,
        _text(fields, status, secrets),
        retry_after(headers),
        model=model,
        status=status,
        code=shown(secrets.blotted(words[0])) if words else None,
        request_id=request_id(headers, secrets),
    )
    if headers.get("x-should-retry") == "false":
        error.retryable = False
    return error


def broken(
    reason: str, headers: Headers, *, model: str, secrets: Secrets, code: str | None = None
) -> BrokenAnswer:
    """The exception for an answer that came with status 200 and cannot be used."""
    return BrokenAnswer(reason, model=model, status=200, code=code, request_id=request_id(headers, secrets))


def request_id(headers: Headers, secrets: Secrets) -> str | None:
    """The provider's id of the exchange, for its support, on one line and without what it quotes of the request."""
    given = headers.get("x-request-id") or headers.get("request-id")
    return shown(secrets.blotted(given)) if given else None


def retry_after(headers: Headers) -> float | None:
    """Seconds until the provider wants to be asked again (RFC 9110, section 10.2.3); None if it does not say."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    if text is None or (seconds := _number(text)) is not None:
        return seconds if text is not None else None
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _kind(words: list[str], status: int | None) -> type[ModelError]:
    for word in words:
        if word in _WORDS:
            return _WORDS[word]
    if status is not None:
        return kind_of_status(status)
    return next((_VAGUE_WORDS[word] for word in words if word in _VAGUE_WORDS), ProviderUnavailable)


def kind_of_status(status: int) -> type[ModelError]:
    """Return the class of error that an HTTP status from 400 to 599 stands for."""
    if status >= 500:  # noqa: PLR2004 - HTTP's own border
        return ProviderUnavailable
    return _STATUSES.get(status, BadRequest)


def _status_in(fields: Mapping[str, Any]) -> int | None:
    """The status that a gateway writes into its error object (OpenRouter: `code`, Azure: `status`)."""
    for key in ("status", "status_code", "code"):
        value = fields.get(key)
        if isinstance(value, str) and _STATUS.fullmatch(value):
            value = int(value)
        if isinstance(value, int) and 400 <= value < 600:  # noqa: PLR2004
            return value
    return None


def _text(fields: Mapping[str, Any], status: int | None, secrets: Secrets) -> str:
    message = fields.get("message") or fields.get("detail") or f"HTTP status {status}"
    return secrets.blotted(str(message))[:_MAX_TEXT]


def _build(kind: type[ModelError], text: str, wish: float | None, **details: Any) -> ModelError:
    if issubclass(kind, RateLimited | ProviderUnavailable):
        return kind(text, retry_after=wish, **details)
    return kind(text, **details)


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else -1.0
    except ValueError:
        return None
    return value if value >= 0 and math.isfinite(value) else None
