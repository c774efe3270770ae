"""Conversion of error responses of providers to exceptions, by error code and HTTP status."""

import email.utils
import math
import re
import time
from collections.abc import Iterator, Mapping
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
from .wire_encoding import decode_leniently

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

_CODE_PATTERNS: tuple[tuple[re.Pattern[str], type[ModelError]], ...] = (
    (
        re.compile(
            r"insufficient.*(quota|balance|credit|fund)|exceeded_current_quota|arrear|overdue|credit.*exhausted",
            re.IGNORECASE,
        ),
        QuotaExhausted,
    ),
    (re.compile(r"throttl|too.?many.?requests", re.IGNORECASE), RateLimited),
    (
        re.compile(r"api_?key_?(invalid|expired)|(invalid|expired)_?api_?key|unauthenticated", re.IGNORECASE),
        NotAuthorized,
    ),
)
"""Exception classes by words in error codes: AWS, Google, Moonshot, one-api, DashScope."""
_TEXT_PATTERNS: tuple[tuple[re.Pattern[str], type[ModelError]], ...] = (
    (
        re.compile(
            r"credit balance is too low|insufficient (account )?(balance|credits?|funds)|out of credits|"
            r"(no|not enough) credits|used all available credits|specified api usage limits|欠费|余额不足",
            re.IGNORECASE,
        ),
        QuotaExhausted,
    ),
    (
        re.compile(r"(invalid|incorrect) api.?key|api.?key (is )?(not valid|invalid|expired)", re.IGNORECASE),
        NotAuthorized,
    ),
)
"""Exception classes by words in error texts, for providers whose code and status say no more than "bad request"."""
_CLIENT_STATUSES = (None, 200, 400, 401, 403, 429)
"""Statuses with which providers report a lack of credit or a wrong key."""
_MESSAGES = (
    "message",
    "detail",
    "msg",
    "error_description",
    "error_message",
    "errorMessage",
    "error_msg",
    "status_msg",
    "Message",
)
"""Fields of error objects that may hold the text, in order."""

_STATUSES: dict[int, type[ModelError]] = {
    401: NotAuthorized,
    402: QuotaExhausted,
    403: NotAuthorized,
    408: ModelTimeout,
    409: ProviderUnavailable,
    424: ProviderUnavailable,  # Bedrock: the model failed
    425: ProviderUnavailable,
    429: RateLimited,
    498: ProviderUnavailable,  # Groq: no free capacity
    499: ProviderUnavailable,  # proxies: the connection to the provider was closed
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
        """Convert model output that the provider could not parse to an answer: an invalid tool call, or a text.

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
    codes = [*_error_codes(fields)]
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
    if isinstance(error, RateLimited) and error.retry_after is None:
        error.retry_after = _limit_reset(headers, fields)
    if headers.get("x-should-retry") == "false":
        error.retryable = False
    return error


def interrupted_answer_error(
    reason: str, headers: Headers, *, model: str, secrets: Secrets, code: str | None = None
) -> StreamInterrupted:
    """Build the error for an answer that cannot be used, although its HTTP status is 200. `reason` is its text."""
    return StreamInterrupted(
        reason, model=model, status=200, code=code, request_id=request_id(headers, secrets)
    )


def request_id(headers: Headers, secrets: Secrets) -> str | None:
    """Return the provider's request id in response headers, as one line without secrets; None if there is no request id."""
    value = headers.get("x-request-id") or headers.get("request-id")
    return shown(secrets.redact(value)) if value else None


def retry_after(headers: Headers) -> float | None:
    """Return the seconds of the Retry-After header (RFC 9110, section 10.2.3); None if it is absent or invalid."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    if text is None or (seconds := _number(text)) is not None:
        return seconds if text is not None else None
    if (seconds := _seconds(text)) is not None:
        return seconds
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def retry_delay(fields: Mapping[str, Any]) -> float | None:
    """Return the seconds until a retry that an error object contains; None if the error object contains no delay.

    Gemini sends a google.rpc.RetryInfo and no Retry-After header. Groq, OpenAI and Azure write the time in the message.
    """
    details = fields.get("details")
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, Mapping) else None
        if isinstance(delay, Mapping):  # a google.protobuf.Duration as an object in place of a text
            delay = f"{delay.get('seconds') or 0}s"
        if isinstance(delay, str) and (seconds := _seconds(delay)) is not None:
            return seconds
    if (seconds := retry_after(_upstream_headers(fields))) is not None:
        return seconds
    found = _RETRY_HINT.search(str(fields.get("message") or ""))
    return None if found is None else _seconds(found[1])


def _upstream_headers(fields: Mapping[str, Any]) -> Headers:
    """Return the headers of the upstream provider that OpenRouter includes in an error object, with lower-case names."""
    metadata = fields.get("metadata")
    headers = metadata.get("headers") if isinstance(metadata, Mapping) else None
    return (
        {str(name).lower(): str(value) for name, value in headers.items()}
        if isinstance(headers, Mapping)
        else {}
    )


def _limit_reset(headers: Headers, fields: Mapping[str, Any]) -> float | None:
    """Return the seconds until an exhausted limit is reset, from the Unix time that OpenRouter sends; None without this time."""
    for found in (headers, _upstream_headers(fields)):
        reset = _number(found.get("x-ratelimit-reset"))
        if found.get("x-ratelimit-remaining") == "0" and reset is not None and reset > _FIRST_UNIX_TIME:
            seconds = reset / 1000 if reset > _FIRST_UNIX_TIME * 1000 else reset
            return max(0.0, seconds - time.time())
    return None


_FIRST_UNIX_TIME = 1e9
"""Unix time in seconds, of the year 2001. Smaller numbers are durations."""


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
    if (kind := _kind_of_words(codes, status, text)) is not None:
        return kind
    if status is not None:
        return kind_of_status(status)
    return next((_VAGUE_CODES[word] for word in codes if word in _VAGUE_CODES), ProviderUnavailable)


def _kind_of_words(codes: list[str], status: int | None, text: str) -> type[ModelError] | None:
    """Return the exception class that an error's codes or text decide, whatever its status is; None if they do not decide."""
    if known := [_CODES[word] for word in codes if word in _CODES]:
        return known[0]
    found = [kind for pattern, kind in _CODE_PATTERNS if any(map(pattern.search, codes))]
    if not found and status in _CLIENT_STATUSES:
        found = [kind for pattern, kind in _TEXT_PATTERNS if pattern.search(text)]
    return found[0] if found else None


def kind_of_status(status: int) -> type[ModelError]:
    """Return the exception class for an HTTP status from 400 to 599.

    Unknown statuses below 500 become `BadRequest`.
    """
    if status >= 500:  # noqa: PLR2004 - first status of server errors
        return ProviderUnavailable
    return _STATUSES.get(status, BadRequest)


def _choose_code(codes: list[str]) -> str:
    """Return the error code that decides the exception class: a code for a too long request if there is one, else the first code."""
    return next((word for word in codes if word in OVERFLOW_CODES), codes[0])


def _generation(codes: list[str], fields: Mapping[str, Any]) -> str | None:
    """Return the model's output in an error object that reports unparsable output; None for other errors."""
    text = fields.get("failed_generation")
    return text if isinstance(text, str) and text.strip() and _UNREADABLE_CODES.intersection(codes) else None


def _error_codes(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield the codes and types in an error object."""
    for key in ("code", "type"):
        if fields.get(key) is not None:
            yield str(fields[key])
    for key in ("__type", "error_code", "errorCode", "status_code"):
        if fields.get(key):
            yield str(fields[key])
    details = fields.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, Mapping) and detail.get("reason"):  # Google's ErrorInfo
            yield str(detail["reason"])


def _status_in(fields: Mapping[str, Any]) -> int | None:
    """Return the HTTP status inside an error object (OpenRouter: `code`, Azure: `status`); None if it contains no status."""
    for key in ("status", "status_code", "code"):
        value = fields.get(key)
        if isinstance(value, str) and _STATUS.fullmatch(value):
            value = int(value)
        if isinstance(value, int) and 400 <= value < 600:  # noqa: PLR2004
            return value
    return None


def _text(fields: Mapping[str, Any], status: int | None, secrets: Secrets) -> str:
    message = next((fields[key] for key in _MESSAGES if fields.get(key)), None)
    if message is None and fields.get("errors"):
        message = fields["errors"]
    text = _message_text(message) if message else f"HTTP status {status}"
    metadata = fields.get("metadata")
    if isinstance(metadata, Mapping) and (
        raw := metadata.get("raw")
    ):  # OpenRouter: the upstream provider's error
        text = f"{text}: {_message_text(raw)}"
    return secrets.redact(text)[:_MAX_TEXT_CHARS]


def _message_text(message: object) -> str:
    """Return the text in an error message, which may be an object, a list of errors, encoded JSON, or a web page."""
    if isinstance(message, str):
        if message.lstrip()[:1] in ("{", "[") and isinstance(
            found := decode_leniently(message.encode()), dict
        ):
            return _message_text(found)
        return page_title_or_text(message)
    if isinstance(message, Mapping):
        if message.get("loc") and message.get("msg"):  # FastAPI
            path = message["loc"] if isinstance(message["loc"], list) else [message["loc"]]
            return f"{'.'.join(map(str, path))}: {message['msg']}"
        inner = message.get("error") or next((message[key] for key in _MESSAGES if message.get(key)), None)
        return _message_text(inner) if inner else str(message)
    if isinstance(message, list):
        return "; ".join(map(_message_text, message))
    return str(message)


def page_title_or_text(text: str) -> str:
    """Return the title of a web page, such as a proxy's error page. Return any other text unchanged."""
    if text.lstrip()[:1] != "<":
        return text
    title = _TITLE.search(text)
    return f"web page {' '.join(title[1].split())!r}" if title else text


_TITLE = re.compile(r"<title[^>]*>(.{1,300}?)</title>", re.IGNORECASE | re.DOTALL)


def error_object(body: Mapping[str, Any]) -> object:
    """Return the error in a response body with status 200 or in a stream event; None if there is no error.

    Servers send such errors in many forms: `{"object": "error", "message": ...}`, `{"code": 401, "msg": ...}`,
    `{"base_resp": {"status_code": 1008, "status_msg": ...}}`, `{"detail": ...}`.
    """
    inner = body.get("base_resp")
    found = inner if isinstance(inner, Mapping) else body
    return found if any(isinstance(found.get(key), str | list) for key in (*_MESSAGES, "errors")) else None


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
