"""Conversion of exceptions to problem documents for clients: `application/problem+json` (RFC 9457).

Documents contain no traceback and no message of an exception of other libraries. An exception without a mapping becomes a
500 response with the request id, under which the server log has the details.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import orjson

from actgent.errors import (
    ActgentError,
    ActorFailed,
    ApprovalAlreadyDecided,
    ApprovalMismatch,
    ApprovalNotFound,
    ConfigurationError,
    DepsMissing,
    DuplicateMessage,
    Fenced,
    InboxFull,
    InvalidArguments,
    JournalDamaged,
    JournalError,
    JournalFull,
    LimitReached,
    MemoriesFailed,
    MemoryNotFound,
    MemoryReplaced,
    MessageTooLarge,
    ModeChangeRejected,
    NotRunning,
    NotSerializable,
    NotSuspended,
    ParseError,
    ServerUnreachable,
    SessionBusy,
    SessionClosed,
    SessionExists,
    SessionNotFound,
    Suspended,
    TooManySchedules,
    UsageError,
    WouldDeadlock,
)
from actgent.errors.text_escaping import shown

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 1
"""Default value of `Retry-After` in 429 and 503 responses."""
_MAX_DETAIL_CHARS = 1000

TITLES: Mapping[str, tuple[int, str]] = {
    "malformed-request": (400, "The request cannot be read"),
    "unauthorized": (401, "The token is missing or unknown"),
    "forbidden": (403, "The token does not allow this"),
    "wrong-origin": (403, "Cross-origin requests are not allowed"),
    "mode-refused": (403, "The agent does not allow this mode switch"),
    "not-found": (404, "The requested object does not exist"),
    "method-not-allowed": (405, "The path does not support this HTTP method"),
    "not-acceptable": (406, "No requested media type is available"),
    "timeout": (408, "The request was not received in time"),
    "ambiguous": (409, "Several agents have a session with this id"),
    "session-exists": (409, "A session with this id already exists"),
    "session-busy": (409, "The session is busy with a turn"),
    "session-closed": (409, "The session is closed"),
    "already-decided": (409, "The approval is already decided"),
    "source-unknown": (409, "The label of the session does not have the source"),
    "suspended": (409, "The session waits for an approval"),
    "not-suspended": (409, "The session does not wait for an approval"),
    "conflict": (409, "The request conflicts with the current state"),
    "message-too-large": (413, "The message is too large"),
    "body-too-large": (413, "The body is too large"),
    "unsupported-media-type": (415, "The media type of the body is not supported"),
    "wrong-host": (421, "The Host header is not allowed"),
    "invalid": (422, "A value is invalid"),
    "invalid-arguments": (422, "The arguments do not match the schema"),
    "key-reused": (422, "The Idempotency-Key belongs to another request"),
    "inbox-full": (429, "The inbox is full"),
    "too-many-schedules": (429, "The session has its maximum number of schedules"),
    "limit-reached": (429, "A usage limit is reached"),
    "busy": (429, "Too many requests of the session are waiting"),
    "too-many-requests": (429, "Too many requests"),
    "internal": (500, "Internal error"),
    "poison": (500, "Every process that handled this request crashed"),
    "unavailable": (503, "Temporarily unavailable"),
    "journal-full": (503, "The journal's disk is full"),
}
"""HTTP status and title of each kind of problem. The kind is the last path segment of the problem's `type`."""


class Problem(Exception):
    """An error response of the gateway, raised by its endpoints.

    Args:
        kind: Kind of the problem, a key of `TITLES`.
        detail: Explanation for humans.
        headers: Additional response headers.
        fields: Additional members of the document, such as `limit`.
    """

    def __init__(
        self, kind: str, detail: str = "", *, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> None:
        self.kind = kind
        self.status, self.title = TITLES[kind]
        self.detail = detail
        self.fields = fields
        self.headers = dict(headers or {})
        if self.status in (429, 503):
            self.fields.setdefault("retry_after", RETRY_AFTER_SECONDS)
            self.headers.setdefault("retry-after", str(self.fields["retry_after"]))
        if kind == "unauthorized":
            self.headers.setdefault("www-authenticate", 'Bearer realm="actgent"')
        super().__init__(f"{self.status} {kind}: {detail}")

    def document(self, instance: str) -> dict[str, Any]:
        """Return the problem document (RFC 9457) as JSON. `instance` is the id of the request."""
        return {
            "type": f"/errors/{self.kind}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "instance": instance,
            **self.fields,
        }


def read_problem(data: bytes) -> Problem | None:
    """Parse a problem document that another node has sent. Return None if the data is no problem document."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    kind = document.get("type") if isinstance(document, dict) else None
    if not isinstance(kind, str) or kind.removeprefix("/errors/") not in TITLES:
        return None
    own = ("type", "title", "status", "detail", "instance")
    fields = {name: value for name, value in document.items() if name not in own}
    return Problem(kind.removeprefix("/errors/"), document.get("detail", ""), **fields)


@attrs.frozen
class _Row:
    """Problem kind, and additional members of the document, for one class of exceptions."""

    error: type[ActgentError]
    kind: str
    fields: Callable[[Any], Mapping[str, Any]] = lambda _: {}


def _approval_decided_fields(error: ApprovalAlreadyDecided) -> Mapping[str, Any]:
    return {"approval_id": error.approval_id}


def _waiting_calls_fields(error: Suspended) -> Mapping[str, Any]:
    return {
        "waits_for": [{"id": each, "tool": tool} for each, tool in zip(error.ids, error.tools, strict=False)]
    }


def _unanswered_fields(error: ServerUnreachable) -> Mapping[str, Any]:
    return {"may_be_done": True} if error.was_sent else {}


def _bound(error: LimitReached) -> Mapping[str, Any]:
    return {"limit": error.limit}


_ROWS = (
    _Row(SessionNotFound, "not-found"),
    _Row(ApprovalNotFound, "not-found"),
    _Row(MemoryNotFound, "not-found"),
    _Row(MemoryReplaced, "conflict", lambda error: {"replaced_by": error.by}),
    _Row(MemoriesFailed, "unavailable"),
    _Row(SessionExists, "session-exists"),
    _Row(SessionClosed, "session-closed"),
    _Row(SessionBusy, "session-busy"),
    _Row(ApprovalAlreadyDecided, "already-decided", _approval_decided_fields),
    _Row(DuplicateMessage, "conflict"),
    _Row(ApprovalMismatch, "conflict"),
    _Row(NotSuspended, "not-suspended"),
    _Row(ModeChangeRejected, "mode-refused"),
    _Row(InvalidArguments, "invalid-arguments"),
    _Row(NotSerializable, "invalid"),
    _Row(MessageTooLarge, "message-too-large", lambda error: {"limit": error.limit}),
    _Row(InboxFull, "inbox-full"),
    _Row(TooManySchedules, "too-many-schedules"),
    _Row(LimitReached, "limit-reached", _bound),
    _Row(Suspended, "suspended", _waiting_calls_fields),
    _Row(WouldDeadlock, "conflict"),
    _Row(NotRunning, "unavailable", lambda error: {"agent": error.agent}),
    _Row(ActorFailed, "unavailable"),
    _Row(DepsMissing, "unavailable"),
    _Row(Fenced, "unavailable", lambda _: {"moved": True}),
    _Row(ServerUnreachable, "unavailable", _unanswered_fields),
    _Row(JournalFull, "journal-full"),
    _Row(JournalDamaged, "internal"),
    _Row(JournalError, "unavailable"),
    _Row(ConfigurationError, "invalid"),
    _Row(ParseError, "malformed-request"),
    _Row(UsageError, "conflict"),
)
"""Pairs of exception class and problem. The first match is used, so subclasses come first."""
_WITHOUT_DETAIL = {"unavailable", "journal-full", "internal"}
"""Problem kinds whose error messages may contain file, process or host names. The messages are logged and not sent."""


def problem_of(error: Exception) -> Problem | None:
    """Return the error response for an exception. Return None if its class has no mapping, so that it is a server error."""
    if isinstance(error, Problem):
        return error
    row = next((row for row in _ROWS if isinstance(error, row.error)), None)
    if row is None:
        return None
    if isinstance(error, SessionNotFound | ApprovalNotFound | MemoryNotFound):
        return missing()
    detail = (
        ""
        if row.kind in _WITHOUT_DETAIL and not isinstance(error, NotRunning)
        else shown(error, _MAX_DETAIL_CHARS)
    )
    return Problem(row.kind, detail, **row.fields(error))


def public_text(error: ActgentError) -> str:
    """Return the message of an error for a client. Unlike `str(error)` it has no file, process or host names."""
    problem = problem_of(error)
    if problem is None:
        return f"the agent failed with {type(error).__name__}: its log has the details"
    return problem.detail or problem.title


def missing(**fields: Any) -> Problem:
    """Return the error response for an unknown object. An object of another owner gets an equal response.

    `fields` are additional members of the problem document.
    """
    return Problem("not-found", "this id does not exist", **fields)
