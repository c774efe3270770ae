"""Conversion of error responses of providers to exceptions, by error code and HTTP status."""

import email.utils
import math
import re
import time
from collections.abc import Mapping
from typing import Any

from actgent.errors import (
    BadRequest,
    ModelError,
    ModelTimeout,
    NotAuthorized,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
    StreamInterrupted,
)
from actgent.errors.text_escaping import shown
from actgent.llm.context_overflow_errors import OVERFLOW_CODES, STATUS_TOO_LARGE, says_too_long
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Text, ToolCall, Usage

from .secret_removal import Secrets

Headers = Mapping[str, str]
_STATUS = re.compile(r"[45][0-9]{2}")

_CODES: dict[str, type[ModelError]] = {
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
    "not_found_error": BadRequest,
    "model_not_found": BadRequest,
    "content_filter": BadRequest,
    **dict.fromkeys(OVERFLOW_CODES, BadRequest),
}
"""Exception classes by error code, for codes that decide the class with any status. `insufficient_quota` has status
429, but a retry never helps.
"""

_VAGUE_CODES: dict[str, type[ModelError]] = {
    "invalid_request_error": BadRequest,
    "invalid_prompt": BadRequest,
    "invalid_image": BadRequest,
    "api_error": ProviderUnavailable,
    "server_error": ProviderUnavailable,
}
"""Exception classes by error type, used only if the response has no status. Providers also send these types with 401
and 429.
"""

_STATUSES: dict[int, type[ModelError]] = {
    401: NotAuthorized,
    402: QuotaExhausted,
    403: NotAuthorized,
    408: ModelTimeout,
    409: ProviderUnavailable,
    429: RateLimited,
}
_KEY_STATUSES = (401, 402, 403)
"""Statuses about the API key or its account."""
_MAX_TEXT_CHARS = 1000
_DURATION = re.compile(
    r"(?:([\d.]+) ?d(?:ays?)?,? ?)?(?:([\d.]+) ?h(?:ours?)?,? ?)?(?:([\d.]+) ?m(?:in(?:utes?)?)?,? ?)?"
    r"(?:([\d.]+) ?s(?:ec(?:onds?)?)?)?(?:([\d.]+) ?ms)?"
)
_TIME = r"(?:\d[\d.]* ?(?:ms|days?|d|hours?|h|minutes?|min|m|seconds?|sec|s)\b,? ?|\d[\d.]*(?:h|m)(?=\d))+"
_RETRY_HINT = re.compile(rf"(?:retry|try again) (?:in|after) ({_TIME})", re.IGNORECASE)
"""Pattern of the duration in the message of a rate-limit error."""
_UNKNOWN_USAGE = Usage(cost=None)
_UNREADABLE_CODES = frozenset({"tool_use_failed", "output_parse_failed", "json_validate_failed"})
"""Error codes that Groq sends if it could not parse the model's output. The error body contains the output."""
_CALLED = re.compile(r"<function[=(]\s*\"?([\w.-]+)|\"name\"\s*:\s*\"([\w.-]+)\"|^\W*([\w.-]+)\(")


class UnreadableCall(BadRequest):
    """Error: the provider could not parse the model's output, which is `generation`."""

    def __init__(self, message: str, *, generation: str, **details: Any) -> None:
        super().__init__(message, **details)
        self.generation = generation

    def answer(self, names: Mapping[str, str]) -> ModelResponse:
        """Convert the unparsed output to an answer: an invalid tool call, or a text.

        The agent rejects the invalid call, and the model can try again. `names` maps encoded tool names to real ones.
        """
        found = _CALLED.search(self.generation) if self.code != "json_validate_failed" else None
        if found is None:
            return ModelResponse(parts=(Text(self.generation),), usage=_UNKNOWN_USAGE)
        name = next(filter(None, found.groups()))
        return ModelResponse(
            parts=(ToolCall(names.get(name, name), self.generation),), stop="tool_calls", usage=_UNKNOWN_USAGE
        )


def provider_error(
    detail: object, *, model: str, secrets: Secrets, headers: Headers, status: int | None = None
) -> ModelError:
    """Convert a provider's error to the exception to raise.

    Args:
        detail: Error in the response body: any JSON value, or text.
        model: `provider:model`.
        secrets: Secrets that are removed from the error text.
        headers: Response headers.
        status: HTTP status; None if the error was received with status 200.
    """
    fields: Mapping[str, Any] = detail if isinstance(detail, Mapping) else {"message": detail}
    codes = [str(fields[key]) for key in ("code", "type") if fields.get(key) is not None]
    status = status or _status_in(fields)
    text = _text(fields, status, secrets)
    details: dict[str, Any] = {
        "model": model,
        "status": status,
        "code": shown(secrets.redact(_choose_code(codes))) if codes else None,
        "request_id": request_id(headers, secrets),
    }
    if (generation := _generation(codes, fields)) is not None:
        return UnreadableCall(text, generation=generation, **details)
    header_delay = retry_after(headers)
    kind = _kind(codes, status, text)
    error = _build(kind, text, retry_delay(fields) if header_delay is None else header_delay, **details)
    if headers.get("x-should-retry") == "false":
        error.retryable = False
    return error


def broken(
    reason: str, headers: Headers, *, model: str, secrets: Secrets, code: str | None = None
) -> StreamInterrupted:
    """Make the error for an unusable answer with status 200."""
    return StreamInterrupted(
        reason, model=model, status=200, code=code, request_id=request_id(headers, secrets)
    )


def request_id(headers: Headers, secrets: Secrets) -> str | None:
    """Return the provider's request id in response headers, on one line and without secrets; None if they have none."""
    value = headers.get("x-request-id") or headers.get("request-id")
    return shown(secrets.redact(value)) if value else None


def retry_after(headers: Headers) -> float | None:
    """Return the seconds of the Retry-After header (RFC 9110, section 10.2.3); None if it is absent or invalid."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    if text is None or (seconds := _number(text)) is not None:
        return seconds if text is not None else None
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def retry_delay(fields: Mapping[str, Any]) -> float | None:
    """Return the seconds until a retry that an error object contains; None if it contains none.

    Gemini sends a google.rpc.RetryInfo and no Retry-After header. Groq, OpenAI and Azure write the time in the message.
    """
    details = fields.get("details")
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, Mapping) else None
        if isinstance(delay, Mapping):  # a google.protobuf.Duration as an object in place of a text
            delay = f"{delay.get('seconds') or 0}s"
        if isinstance(delay, str) and (seconds := _seconds(delay)) is not None:
            return seconds
    metadata = fields.get("metadata")
    headers = metadata.get("headers") if isinstance(metadata, Mapping) else None
    if isinstance(headers, Mapping):  # OpenRouter includes the headers of the upstream provider
        lower = {str(name).lower(): str(value) for name, value in headers.items()}
        if (seconds := retry_after(lower)) is not None:
            return seconds
    found = _RETRY_HINT.search(str(fields.get("message") or ""))
    return None if found is None else _seconds(found[1])


def _seconds(text: str) -> float | None:
    """Parse a duration such as `1.5s`, `2m59.56s`, `250ms` or `6 seconds` into seconds; return None for other texts."""
    whole = _DURATION.fullmatch(text.strip())
    if whole is None or not any(whole.groups()):
        return None
    units = (86_400, 3_600, 60, 1, 0.001)
    return sum(float(count) * unit for count, unit in zip(whole.groups(), units, strict=True) if count)


def _kind(codes: list[str], status: int | None, text: str) -> type[ModelError]:
    if status == STATUS_TOO_LARGE:
        return BadRequest
    if status not in _KEY_STATUSES and says_too_long(text):
        return BadRequest
    for word in codes:
        if word in _CODES:
            return _CODES[word]
    if status is not None:
        return kind_of_status(status)
    return next((_VAGUE_CODES[word] for word in codes if word in _VAGUE_CODES), ProviderUnavailable)


def kind_of_status(status: int) -> type[ModelError]:
    """Return the exception class for an HTTP status from 400 to 599.

    Unknown statuses below 500 become `BadRequest`.
    """
    if status >= 500:  # noqa: PLR2004 - first status of server errors
        return ProviderUnavailable
    return _STATUSES.get(status, BadRequest)


def _choose_code(codes: list[str]) -> str:
    """Choose the error code that decides the exception class: the first code for a too long request, else the first code."""
    return next((word for word in codes if word in OVERFLOW_CODES), codes[0])


def _generation(codes: list[str], fields: Mapping[str, Any]) -> str | None:
    """Return the model's output that an error object contains, if the error says that the output could not be parsed.

    Return None for other errors.
    """
    text = fields.get("failed_generation")
    return text if isinstance(text, str) and text.strip() and _UNREADABLE_CODES.intersection(codes) else None


def _status_in(fields: Mapping[str, Any]) -> int | None:
    """Return the HTTP status that an error object contains (OpenRouter in `code`, Azure in `status`); None without one."""
    for key in ("status", "status_code", "code"):
        value = fields.get(key)
        if isinstance(value, str) and _STATUS.fullmatch(value):
            value = int(value)
        if isinstance(value, int) and 400 <= value < 600:  # noqa: PLR2004
            return value
    return None


def _text(fields: Mapping[str, Any], status: int | None, secrets: Secrets) -> str:
    message = fields.get("message") or fields.get("detail") or f"HTTP status {status}"
    return secrets.redact(str(message))[:_MAX_TEXT_CHARS]


def _build(kind: type[ModelError], text: str, delay: float | None, **details: Any) -> ModelError:
    if issubclass(kind, RateLimited | ProviderUnavailable):
        return kind(text, retry_after=delay, **details)
    return kind(text, **details)


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else -1.0
    except ValueError:
        return None
    return value if value >= 0 and math.isfinite(value) else None
